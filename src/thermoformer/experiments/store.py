"""Results on disk: netCDF files, each with the fingerprint of the config that made it, and tables as CSV."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from .._files import read_netcdf, write_netcdf, write_safely
from .._validation import fail

# To be raised if the variables of a file or the meaning of a seed change: earlier files are then set aside.
FORMAT = 1


def fingerprint(config: Any, *, apart_from: tuple[str, ...] = ()) -> str:
    """A short hash of a config: equal configs have equal hashes.

    Arguments:
        config: a dataclass of plain values.
        apart_from: fields that do not count.
    """
    fields = {name: value for name, value in dataclasses.asdict(config).items() if name not in apart_from}
    text = json.dumps([FORMAT, type(config).__name__, fields], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(file: Path, config_hash: str) -> xr.Dataset | None:
    """The file of an earlier run with this config, if there is one; a file of another config is set aside."""
    if not file.exists():
        return None
    dataset = read_netcdf(file, name="out")
    found = dataset.attrs.get("config_hash")
    if found is None:
        raise fail("out", f"{file}, which no experiment wrote", "another folder, or no such file there")
    if found == config_hash:
        return dataset
    aside = file.with_name(f"{file.stem}-{found}{file.suffix}")
    os.replace(file, aside)
    warnings.warn(f"{file} holds a run with other settings: kept as {aside.name}, starting anew", stacklevel=2)
    return None


def save(dataset: xr.Dataset, file: Path, config_hash: str) -> None:
    """Writes a file, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    compressed = {name: {"zlib": True} for name, variable in dataset.data_vars.items() if variable.ndim}
    write_netcdf(dataset.assign_attrs(config_hash=config_hash), file, encoding=compressed)


def kept(file: Path | None, config_hash: str, compute: Callable[[], xr.Dataset]) -> xr.Dataset:
    """What the file has from an earlier run with this config; else what is computed now, and saved there."""
    found = None if file is None else load(file, config_hash)
    if found is None:
        found = compute()
        if file is not None:
            save(found, file, config_hash)
    return found


def write_table(frame: pd.DataFrame, file: Path) -> None:
    """Writes a table as CSV, whole or not at all."""
    write_safely(file, frame.to_csv(index=False, lineterminator="\r\n"))

"""Results on disk: one netCDF file per run, rewritten whole after each finished seed.

A run that is killed keeps its finished seeds, and the same run started again goes on from there. A file belongs to the
config that made it: the file carries the config's fingerprint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import xarray as xr

from .._files import read_netcdf, write_netcdf
from .._validation import fail

# Raise it when the variables of a file or the meaning of a seed change: files from before are then set aside.
FORMAT = 1


def fingerprint(config: Any, *, apart_from: tuple[str, ...] = ()) -> str:
    """A short hash of a config record: equal configs, equal hashes.

    Arguments:
        config: a dataclass of plain values.
        apart_from: fields that do not change any single seed's numbers, such as how many seeds there are.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     width: int
        ...     seeds: int
        >>> fingerprint(Config(10, 2), apart_from=("seeds",)) == fingerprint(Config(10, 5), apart_from=("seeds",))
        True
    """
    fields = {name: value for name, value in dataclasses.asdict(config).items() if name not in apart_from}
    text = json.dumps([FORMAT, type(config).__name__, fields], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(file: Path, config_hash: str) -> xr.Dataset | None:
    """What an earlier run with this config finished, or nothing; a file of another config is set aside, and says so."""
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
    """Writes the file whole: either the old or the new one is there at any moment, never half of one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    compressed = {name: {"zlib": True} for name, variable in dataset.data_vars.items() if variable.ndim}
    write_netcdf(dataset.assign_attrs(config_hash=config_hash), file, encoding=compressed)

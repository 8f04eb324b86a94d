"""Results on disk: one netCDF file per run, with the fingerprint of the config that made it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import xarray as xr

ENGINE = "h5netcdf"

# Raise it when the variables of a file or the meaning of a seed change.
FORMAT = 1


def fingerprint(config: Any) -> str:
    """A short hash of a config record: equal configs, equal hashes.

    Arguments:
        config: a dataclass of plain values.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     width: int
        >>> fingerprint(Config(10)) == fingerprint(Config(10)) != fingerprint(Config(20))
        True
    """
    text = json.dumps([FORMAT, type(config).__name__, dataclasses.asdict(config)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def save(dataset: xr.Dataset, file: Path, config_hash: str) -> None:
    """Writes the file whole: either the old or the new one is there at any moment, never half of one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    compressed = {name: {"zlib": True} for name, variable in dataset.data_vars.items() if variable.ndim}
    try:
        dataset.assign_attrs(config_hash=config_hash).to_netcdf(part, engine=ENGINE, encoding=compressed)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)

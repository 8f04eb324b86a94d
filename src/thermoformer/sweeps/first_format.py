"""Folders of format 1, which had no checksums: the description did not hold the metadata of the arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .chunks import BY_HAND, GROUP, CheckedFiles, array_metadata, damaged, is_over_grid, read_file
from .grid import RESERVED, Grid


def first_arrays(data: Path, grid: Grid) -> dict[str, Any]:
    """The files `zarr.json` of a folder of format 1, by name. They have no checksums, but must fit together."""
    found: dict[str, Any] = {}
    if not data.is_dir():
        raise damaged(data, "it is missing", BY_HAND)
    for folder in (data, *sorted(path for path in data.iterdir() if path.is_dir())):
        file, name = folder / "zarr.json", "" if folder == data else folder.name
        content = read_file(file)
        if content is None and name and not (folder / "c").exists():
            continue  # a run was killed while it made the array
        try:
            record = json.loads(content or b"")
            found[name] = _first_array(name, record, grid) if name else {**GROUP, "attributes": record["attributes"]}
            if not isinstance(record["attributes"], dict):
                raise ValueError("attributes of another type")
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
            why = f"it is not as the sweep wrote it: {type(error).__name__} {error}"
            raise damaged(file, why, BY_HAND) from error
    if absent := {*RESERVED, *grid.names} - set(found):
        raise damaged(data, f"array {min(absent)!r} is missing", BY_HAND)
    files = CheckedFiles(data, found, grid)
    for name, values in grid.axes.items():
        if not np.array_equal(files.array(name)[:], values):
            raise damaged(data / name, "its values are not those of sweep.json", BY_HAND)
    return found


def _first_array(name: str, record: Mapping[str, Any], grid: Grid) -> dict[str, Any]:
    """The metadata of an array of format 1; an error where a sweep cannot have written it."""
    shape, axes, kind = record["shape"], record["dimension_names"], record["data_type"]
    chunks, fill = record["chunk_grid"]["configuration"]["chunk_shape"], 0
    if is_over_grid(name, record):
        count = len(grid.shape)
        chunks, fill = [*grid.chunks, *shape[count:]], np.nan if kind.startswith(("float", "complex")) else 0
        if tuple(axes[:count]) != grid.names or len(axes) != len(shape):
            raise ValueError(f"axes {axes}")
    expected = array_metadata("U" if kind == "string" else kind, shape, chunks, axes, fill)
    for entry in ("data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "zarr_format", "node_type"):
        if record[entry] != expected[entry]:
            raise ValueError(f"{entry} {record[entry]}")
    if record["codecs"] not in (expected["codecs"][:1], expected["codecs"][:2]):
        raise ValueError(f"codecs {record['codecs']}")
    return expected | {"codecs": record["codecs"], "attributes": record["attributes"]}

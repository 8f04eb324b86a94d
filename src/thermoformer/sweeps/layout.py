"""The zarr arrays of a sweep: what their metadata must be, and chunks that show when they are damaged.

zarr reads a missing chunk as fill values, and its metadata has no checksum. So every chunk ends with its own place and
a CRC-32C, and the description of the sweep holds the metadata of every array: the files `zarr.json` are for other
readers. These verify the checksum too (it is a codec of zarr), and skip the place (a skippable frame of zstd).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numcodecs.vlen import VLenUTF8
from numcodecs.zstd import Zstd
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore

from .._files import open_file
from .grid import Grid

TO_DO, DONE, FAILED = 0, 1, 2
# Types of numbers that arrays may have, as zarr names them; text is "string".
_NUMBERS = {"bool", "complex64", "complex128"} | {
    f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)
} - {"float8"}
# Only chunks of format 1 have no checksum.
_CODECS = {(first, *rest) for first in ("bytes", "vlen-utf8") for rest in ((), ("zstd",), ("zstd", "crc32c"))}
# The first bytes of a zstd frame that decoders skip.
_SKIPPED = 0x184D2A50
_CHUNK_KEYS = {"name": "default", "configuration": {"separator": "/"}}
# What arrays are filled with where nothing was written: 0, no text, or NaN.
_FILLS = (0, "", "NaN", ["NaN", 0.0], [0.0, 0.0])


# What to do about a damaged file, unless said otherwise.
RUN_AGAIN = "run or resume the sweep, which computes its points again"


class StoreError(ValueError):
    """A folder that does not hold this sweep, is damaged, or is in use."""


def damaged(file: Path, why: str, advice: str = RUN_AGAIN) -> StoreError:
    """The error for a file of a sweep that is missing or not as it was written."""
    return StoreError(f"store: got {file}, which is damaged ({why}); expected it as the sweep wrote it: {advice}")


def read_file(file: Path) -> bytes | None:
    """The content of a file; none if there is no such file."""
    try:
        with open_file(file, name="store") as stream:
            return stream.read()
    except FileNotFoundError:
        return None
    except PermissionError:  # nothing is damaged
        raise
    except OSError as error:
        raise damaged(file, str(error)) from error


@dataclass(frozen=True)
class ArrayLayout:
    """One zarr array of a sweep.

    Fields:
        name: of the array.
        metadata: the content of its zarr.json, checked by `layout_of`.
        over_grid: whether it has a value at every point; otherwise it holds values along one axis.
    """

    name: str
    metadata: Mapping[str, Any]
    over_grid: bool

    @cached_property
    def codecs(self) -> tuple[str, ...]:
        """Names of the codecs, in the order in which they are applied."""
        return tuple(codec["name"] for codec in self.metadata["codecs"])

    @cached_property
    def is_text(self) -> bool:
        """Whether it holds strings."""
        return self.metadata["data_type"] == "string"

    @cached_property
    def dtype(self) -> np.dtype:
        """Type of its values; objects for strings."""
        return np.dtype(object) if self.is_text else np.dtype(self.metadata["data_type"]).newbyteorder("<")

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """The shape of a chunk."""
        return tuple(self.metadata["chunk_grid"]["configuration"]["chunk_shape"])

    @cached_property
    def fill(self) -> Any:
        """The value where nothing was written."""
        return "" if self.is_text else np.nan if self.dtype.kind in "fc" else 0

    @property
    def always_written(self) -> bool:
        """Whether a chunk without a file is an error. Compressed chunks of format 1 had none if all values were 0."""
        return "crc32c" in self.codecs or "zstd" not in self.codecs

    def encoded(self, block: np.ndarray, file: Path) -> bytes:
        """The content of a chunk's file.

        Arguments:
            block: its values; smaller than the chunk at the ends of axes.
            file: where the chunk is stored in the group.
        """
        chunk = np.full(self.chunks, self.fill, self.dtype)
        chunk[tuple(slice(size) for size in block.shape)] = block
        content = bytes(VLenUTF8().encode(chunk)) if self.is_text else chunk.tobytes()
        if "zstd" in self.codecs:
            content = Zstd().encode(content)
        if "crc32c" in self.codecs:
            content += self._place(file)
            content += _checksum(content)
        return content

    def _place(self, file: Path) -> bytes:
        """The frame that names the array and the chunk, so that another chunk's file is not taken for this one."""
        place = "/".join(file.parts[-2 - len(self.chunks) :]).encode()
        return struct.pack("<II", _SKIPPED, len(place)) + place

    def unpacked(self, content: bytes, file: Path) -> bytes:
        """The content of a chunk's file without compression, place and checksum; an error if it is damaged."""
        if "crc32c" in self.codecs:
            if content[-4:] != _checksum(content[:-4]):
                raise damaged(file, "its checksum does not match its content")
            content = content[:-4]
            if not content.endswith(self._place(file)):
                raise damaged(file, "it is the file of another chunk")
        try:
            if "zstd" in self.codecs:
                content = bytes(Zstd().decode(content))
            if self.is_text:
                VLenUTF8().decode(content).reshape(self.chunks)
        except Exception as error:  # the decoders raise errors of many types for damaged bytes
            raise damaged(file, f"it cannot be decoded: {error}") from error
        expected = math.prod(self.chunks) * self.dtype.itemsize
        if not self.is_text and len(content) != expected:
            raise damaged(file, f"{len(content)} bytes in place of {expected}")
        return content

    def decoded(self, content: bytes, file: Path) -> np.ndarray:
        """The values of a chunk from its file, an array of the chunk's shape.

        Arguments:
            file: where the content is from, for its place and for errors.
        """
        content = self.unpacked(content, file)
        values = VLenUTF8().decode(content) if self.is_text else np.frombuffer(content, self.dtype)
        return values.reshape(self.chunks)


def layout_of(name: str, metadata: Any, grid: Grid) -> ArrayLayout:
    """An array from the content of its zarr.json; a ValueError says what cannot be.

    Lengths along the axes of the grid are those of the grid: a run that is killed while axes grow leaves others.
    """
    try:
        axes, shape = tuple(metadata["dimension_names"]), tuple(metadata["shape"])
        chunks = tuple(metadata["chunk_grid"]["configuration"]["chunk_shape"])
        codecs = tuple(codec["name"] for codec in metadata["codecs"])
        little = all(codec.get("configuration", {}).get("endian", "little") == "little" for codec in metadata["codecs"])
        kind, over_grid = metadata["data_type"], axes != (name,)
        own = shape[len(grid.shape) :] if over_grid else shape
        if not over_grid:
            shape = grid.axes[name].shape if name in grid.axes else shape
            wanted, fits = chunks, len(shape) == len(chunks) == 1
        else:
            shape = (*grid.shape, *own)
            wanted, fits = (*grid.chunks, *(max(size, 1) for size in own)), axes[: len(grid.shape)] == grid.names
        checks = {
            "zarr_format": metadata["zarr_format"] == 3 and metadata["node_type"] == "array",
            "data_type": kind == "string" or kind in _NUMBERS,
            "codecs": codecs in _CODECS and (codecs[0] == "vlen-utf8") == (kind == "string") and little,
            "dimension_names": fits and len(axes) == len(shape) and all(isinstance(axis, str) for axis in axes),
            "shape": all(type(size) is int and size >= 0 for size in own),
            "chunk_grid": chunks == wanted and all(type(size) is int and size >= 1 for size in chunks),
            "chunk_key_encoding": metadata["chunk_key_encoding"] == _CHUNK_KEYS,
            "fill_value": metadata["fill_value"] in _FILLS,
            "attributes": isinstance(metadata["attributes"], dict),
            "storage_transformers": not metadata.get("storage_transformers"),
        }
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"it is not the metadata of an array: {type(error).__name__} {error}") from error
    if wrong := [what for what, right in checks.items() if not right]:
        raise ValueError(f"it has another {wrong[0]} than the sweep gave it")
    return ArrayLayout(name, {**metadata, "shape": list(shape)}, over_grid)


class CheckedFiles(LocalStore):
    """The zarr group of a sweep for reading: its metadata is given, and every chunk is verified.

    It has no attributes: xarray would take some of them for instructions how to decode values.

    Arguments:
        root: folder of the group.
        layouts: its arrays by name.
        grid: of the sweep.
        status: of every point; chunks of points that are done must be there.
    """

    def __init__(
        self,
        root: Path,
        layouts: Mapping[str, ArrayLayout],
        grid: Grid,
        status: np.ndarray,
    ) -> None:
        super().__init__(root, read_only=True)
        arrays = {name: {**layout.metadata, "attributes": {}} for name, layout in layouts.items()}
        for array in arrays.values():  # chunks are passed on unpacked
            array["codecs"] = array["codecs"][:1]
        inline = {"kind": "inline", "must_understand": False, "metadata": arrays}
        group = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": inline}
        self._group = json.dumps(group).encode()
        self._layouts, self._chunks, self._status = layouts, grid.chunks, status

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """The metadata of the group, or a chunk; there are no other files."""
        found = await asyncio.to_thread(self._content, key)
        return None if found is None else (prototype or default_buffer_prototype()).buffer.from_bytes(found)

    def _content(self, key: str) -> bytes | None:
        if key == "zarr.json":
            return self._group
        name, chunk, place = key.partition("/c/")
        if not chunk:
            return None
        layout, file = self._layouts[name], self.root / key
        content = read_file(file)
        if content is not None:
            return layout.unpacked(content, file)
        if layout.always_written and self._needed(layout, place):
            raise damaged(file, "it is missing")
        return None

    def _needed(self, layout: ArrayLayout, place: str) -> bool:
        """Whether something was written to a chunk."""
        if not layout.over_grid:
            return True
        numbers = [int(number) for number in place.split("/")]
        region = tuple(slice(at * size, (at + 1) * size) for at, size in zip(numbers, self._chunks, strict=False))
        return must_exist(layout.name, self._status[region])


def must_exist(name: str, status: np.ndarray) -> bool:
    """Whether the chunk of an array over the grid was written, for points of this status."""
    if name == "status":
        return False
    return bool((status != TO_DO).any() if name == "seconds" else (status == DONE).any())


def seal(record: Mapping[str, Any], file: Path) -> bytes:
    """A record as JSON with a checksum of its content and of the name of its file."""
    plain = json.loads(json.dumps(record))
    return json.dumps(plain | {"checksum": _digest(plain, file)}, indent=2).encode()


def unseal(file: Path, advice: str) -> tuple[dict[str, Any], bool] | None:
    """The record of a JSON file, and whether it had a checksum, which is verified; none if there is no such file.

    Arguments:
        advice: what to do if the file is damaged.
    """
    content = read_file(file)
    if content is None:
        return None
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise damaged(file, f"it is not JSON: {error}", advice) from error
    if not isinstance(record, dict):
        raise damaged(file, "it is not a JSON object", advice)
    if "checksum" not in record:
        return record, False
    if record.pop("checksum") != _digest(record, file):
        raise damaged(file, "its checksum does not match its content", advice)
    return record, True


def metadata_on_disk(group: Path) -> Iterator[tuple[str, Any]]:
    """What the zarr.json of a group holds, under the empty name, and those of its arrays by name."""
    for folder in (group, *sorted(path for path in group.iterdir() if path.is_dir())):
        file = folder / "zarr.json"
        content = read_file(file)
        if content is None and folder != group and not (folder / "c").exists():
            continue  # a run was killed while it made the array
        try:
            yield folder.name if folder != group else "", json.loads(content or b"")
        except (ValueError, RecursionError) as error:
            raise damaged(file, f"it is not JSON: {error}", "restore it from a copy") from error


def _checksum(content: bytes) -> bytes:
    return struct.pack("<I", google_crc32c.value(content))


def _digest(record: Any, file: Path) -> str:
    return hashlib.sha256(json.dumps([file.name, record], sort_keys=True).encode()).hexdigest()[:16]

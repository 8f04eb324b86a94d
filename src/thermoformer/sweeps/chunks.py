"""Files of a sweep that show when they are damaged: zarr chunks, and JSON with a checksum.

zarr reads a missing chunk as fill values, and its metadata has no checksum. So every chunk ends with its own place, in
a frame that zstd skips, and with a CRC-32C, a codec of zarr. The description of the sweep holds the metadata of all
arrays: the files `zarr.json` are for other readers.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numcodecs.vlen import VLenUTF8
from numcodecs.zstd import Zstd
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore

from .._files import open_file
from .._validation import InputError
from .grid import Grid

TO_DO, DONE, FAILED = 0, 1, 2
# The first bytes of a zstd frame that decoders skip.
_SKIPPED = 0x184D2A50
# What to do about a damaged file, unless said otherwise.
RUN_AGAIN = "run or resume the sweep, which computes its points again"
# ... if the next run cannot repair it.
BY_HAND = "restore it from a copy, or use another folder; zarr can still read data.zarr"
# The zarr.json of a group.
GROUP = {"attributes": {}, "zarr_format": 3, "node_type": "group"}


class StoreError(InputError):
    """A folder that does not hold this sweep, is damaged, or is in use."""


def damaged(file: Path, why: str, advice: str = RUN_AGAIN) -> StoreError:
    """The error for a file of a sweep that is missing or not as it was written."""
    return StoreError("store", f"{file}, which is damaged ({why})", f"it as the sweep wrote it: {advice}")


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


def array_metadata(
    kind: Any, shape: Sequence[int], chunks: Sequence[int], axes: Sequence[str], fill: Any = 0
) -> dict[str, Any]:
    """The zarr.json of an array that is compressed and has checksums.

    Arguments:
        kind: type of its values; any type of strings stands for text of any length.
        chunks: shape of a chunk.
        axes: names of the axes.
        fill: the value of numbers where nothing was written.
    """
    text = np.dtype(kind).kind in "UT"
    array = zarr.create_array(
        MemoryStore(),
        shape=shape,
        chunks=tuple(max(size, 1) for size in chunks),
        dtype=str if text else kind,
        fill_value="" if text else fill,
        dimension_names=axes,
        compressors=[ZstdCodec(), Crc32cCodec()],
    )
    return json.loads(json.dumps(array.metadata.to_dict()))


def is_over_grid(name: str, metadata: Mapping[str, Any]) -> bool:
    """Whether an array has a value at every point; otherwise it holds values along one axis."""
    return list(metadata["dimension_names"]) != [name]


def chunk_key(name: str, metadata: Mapping[str, Any], place: Sequence[int]) -> str:
    """Where zarr has the chunk of a task in the group (Zarr 3, default chunk keys)."""
    inner = len(metadata["shape"]) - len(place)
    return "/".join([name, "c", *map(str, place), *("0" for _ in range(inner))])


class CheckedFiles(LocalStore):
    """The zarr group of a sweep: its metadata is given, and every chunk is verified when it is read.

    It has no attributes: xarray would take some of them for instructions how to decode values.

    Arguments:
        root: folder of the group.
        metadata: the zarr.json of its arrays, by name.
        grid: of the sweep.
        status: of every point; chunks of points that are done must be there. By default no chunk must be.
    """

    def __init__(
        self,
        root: Path,
        metadata: Mapping[str, Mapping[str, Any]],
        grid: Grid,
        status: np.ndarray | None = None,
        *,
        read_only: bool = True,
    ) -> None:
        super().__init__(root, read_only=read_only)
        self._arrays = {name: {**record, "attributes": {}} for name, record in metadata.items() if name}
        self._codecs = {name: [codec["name"] for codec in record["codecs"]] for name, record in self._arrays.items()}
        self._task, self._status = grid.chunks, status
        # Keys that are read as if nothing was written there.
        self.ignored: set[str] = set()

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """The metadata of the group or of an array, or a chunk; there are no other files."""
        # Not in a thread of its own: chunks are small, and handing one over takes longer than reading it.
        found = self.content(key)
        return None if found is None else (prototype or default_buffer_prototype()).buffer.from_bytes(found)

    def write(self, name: str, place: Sequence[int], block: np.ndarray) -> None:
        """Writes a chunk, with its place before the checksum.

        By hand, because an assignment to an array of zarr takes five times as long: see `benchmarks/sweeps.py`.

        Arguments:
            place: of the chunk, along the axes of the grid or along the one axis of the array.
            block: its values; smaller than the chunk at the ends of axes.
        """
        record, codecs, key = self._arrays[name], self._codecs[name], chunk_key(name, self._arrays[name], place)
        text = record["data_type"] == "string"
        fill = "" if text else np.nan if block.dtype.kind in "fc" else 0
        kind = object if text else np.dtype(record["data_type"]).newbyteorder("<")
        chunk = np.full(record["chunk_grid"]["configuration"]["chunk_shape"], fill, kind)
        chunk[tuple(slice(size) for size in block.shape)] = block
        content = bytes(VLenUTF8().encode(chunk)) if text else chunk.tobytes()
        if "zstd" in codecs:
            content = Zstd().encode(content)
        if "crc32c" in codecs:
            content += _frame(key)
            content += _checksum(content)
        self.set_sync(key, default_buffer_prototype().buffer.from_bytes(content))

    def array(self, name: str) -> zarr.Array:
        """One of the arrays, to read it."""
        if not self.root.is_dir():
            raise damaged(self.root, "it is missing")
        return zarr.open_array(self, path=name, mode="r" if self.read_only else "r+", zarr_format=3)

    def content(self, key: str) -> bytes | None:
        """What is stored under a key, verified; none if nothing was written there."""
        name, _, place = key.partition("/")
        if key == "zarr.json":
            inline = {"kind": "inline", "must_understand": False, "metadata": self._arrays}
            return json.dumps({**GROUP, "consolidated_metadata": inline}).encode()
        if name not in self._arrays or key in self.ignored:
            return None
        if place == "zarr.json":
            return json.dumps(self._arrays[name]).encode()
        content = read_file(self.root / key)
        if content is not None:
            self._verify(name, key, content)
        elif self._is_needed(name, place):
            raise damaged(self.root / key, "it is missing")
        return content

    def _verify(self, name: str, key: str, content: bytes) -> None:
        """Raises an error for the content of a chunk that is not as it was written."""
        file, codecs = self.root / key, self._codecs[name]
        if "crc32c" in codecs:
            if content[-4:] != _checksum(content[:-4]):
                raise damaged(file, "its checksum does not match its content")
            if not content[:-4].endswith(_frame(key)):
                raise damaged(file, "it is the file of another chunk")
            return
        # Format 1 had no checksums.
        try:
            plain = Zstd().decode(content) if "zstd" in codecs else content
        except RuntimeError as error:
            raise damaged(file, f"it cannot be decoded: {error}") from error
        record = self._arrays[name]
        if record["data_type"] != "string":
            numbers = math.prod(record["chunk_grid"]["configuration"]["chunk_shape"])
            expected = numbers * np.dtype(record["data_type"]).itemsize
            if len(plain) != expected:
                raise damaged(file, f"{len(plain)} bytes in place of {expected}")

    def _is_needed(self, name: str, place: str) -> bool:
        """Whether something was written to a chunk."""
        codecs = self._codecs[name]
        if "zstd" in codecs and "crc32c" not in codecs:  # format 1 wrote no file if all values were 0
            return False
        if not is_over_grid(name, self._arrays[name]):
            return True
        if self._status is None or name == "status":
            return False
        numbers = [int(number) for number in place.removeprefix("c/").split("/")]
        region = tuple(slice(at * size, (at + 1) * size) for at, size in zip(numbers, self._task, strict=False))
        codes = self._status[region]
        return bool((codes != TO_DO).any() if name == "seconds" else (codes == DONE).any())


def _frame(key: str) -> bytes:
    """The place of a chunk in a frame that zstd skips, so that another chunk's file is not taken for this one."""
    return struct.pack("<II", _SKIPPED, len(key.encode())) + key.encode()


def _checksum(content: bytes) -> bytes:
    return struct.pack("<I", google_crc32c.value(content))


def sealed(record: Mapping[str, Any], file: Path) -> bytes:
    """A record as JSON with a checksum of its content and of the name of its file."""
    plain = json.loads(json.dumps(record))
    return json.dumps(plain | {"checksum": _digest(plain, file)}, indent=2).encode()


def unsealed(file: Path, advice: str = RUN_AGAIN) -> tuple[dict[str, Any], bool] | None:
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


def _digest(record: Any, file: Path) -> str:
    return hashlib.sha256(json.dumps([file.name, record], sort_keys=True).encode()).hexdigest()[:16]

"""A user's own file in the explorer: read here, kept in memory, refused with a sentence where it does not fit."""

from __future__ import annotations

import csv
import io
import math
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from .._validation import fail
from ..arrays import Arrays, read_arrays

LARGEST_FILE = 8 * 2**20
# What the arrays of an archive may take together, as a small archive can unpack to anything.
LARGEST_ARRAYS = 64 * 2**20
MOST_ARRAYS = 16
MOST_CELLS = 500_000


@dataclass(frozen=True, eq=False)
class Upload:
    """What a user's file holds.

    Fields:
        xi: attentioned inputs ξ [example, path, feature].
        labels: y [example].
        heads: heads per layer.
        columns: of a csv file, the number of the column of labels and those of each path; none for an npz file.
    """

    xi: np.ndarray
    labels: np.ndarray
    heads: tuple[int, ...]
    columns: tuple[int, list[list[int]]] | None = None


def upload_of(name: str, content: bytes) -> Upload:
    """Attentioned inputs, labels and heads per layer of a user's file.

    An npz file is what `thermoformer.read_arrays` takes. In a csv file each row is an example; the column `label` holds
    the label, and the others the features of one path, or of several where the header names them as `path.feature`.
    Where a file says nothing of heads, its paths are the heads of one layer.

    Arguments:
        name: of the file; its ending says what it is.
        content: of the file.

    Example:
        >>> text = b"label,one.a,one.b,two.a,two.b\\n1,1,2,3,4\\n-1,5,6,7,8\\n"
        >>> upload = upload_of("mine.csv", text)
        >>> upload.xi[0].tolist(), upload.labels.tolist(), upload.heads, upload.columns
        ([[1.0, 2.0], [3.0, 4.0]], [1.0, -1.0], (2,), (0, [[1, 2], [3, 4]]))
    """
    if _ending(name, content) == ".npz":
        found = _archive(content)
        xi = np.asarray(found.features.values)
        return Upload(xi, found.labels, found.heads or (xi.shape[1],))
    header, rows = _table(content)
    if header is None or "label" not in header:
        raise fail("file", "no column named label", "a first row of names, one of them label")
    label = header.index("label")
    columns: dict[str, list[int]] = {}
    for place, column in enumerate(header):
        if place != label:
            columns.setdefault(column.split(".")[0] if "." in column else "", []).append(place)
    sizes = {path: len(places) for path, places in columns.items()}
    if len(set(sizes.values())) != 1:
        got = ", ".join(f"{path or 'without a path'}: {size}" for path, size in sizes.items()) or "none"
        raise fail("file", f"features by path ({got})", "as many features for every path, and at least one")
    xi = np.stack([rows[:, places] for places in columns.values()], axis=1)
    return Upload(xi, rows[:, label], (xi.shape[1],), (label, list(columns.values())))


def table(name: str, content: bytes) -> np.ndarray:
    """The numbers of a csv file, or of an npz file with one array [row, column].

    Arguments:
        name: of the file; its ending says what it is.
        content: of the file.

    Example:
        >>> table("signs.csv", b"1,-1,1\\n-1,-1,1\\n").tolist()
        [[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]]
    """
    if _ending(name, content) == ".csv":
        return _table(content)[1]
    _check_archive(content)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            found = {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise fail(
            "file", f"{Path(name).name}, which cannot be read", "arrays of numbers, saved with numpy.savez"
        ) from error
    if len(found) != 1:
        raise fail("file", f"arrays {', '.join(sorted(found)) or 'none'}", "one array [row, column]")
    (array,) = found.values()
    if array.ndim != 2 or array.dtype.kind not in "fiub" or not np.isfinite(array).all():
        raise fail("file", f"an array of shape {array.shape} and type {array.dtype}", "finite numbers [row, column]")
    return array.astype(np.float64)


def _ending(name: str, content: bytes) -> str:
    if len(content) > LARGEST_FILE:
        raise fail("file", f"{len(content) / 2**20:.1f} MiB", f"at most {LARGEST_FILE // 2**20} MiB")
    ending = Path(name).suffix.lower()
    if ending not in (".npz", ".csv"):
        raise fail("file", f"the ending {ending or 'none'!r}", ".npz or .csv")
    return ending


def _archive(content: bytes) -> Arrays:
    _check_archive(content)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "uploaded.npz"
        file.write_bytes(content)
        try:
            return read_arrays(file)
        except ValueError as error:
            # Where it lay for a moment means nothing to the user.
            raise ValueError(str(error).replace(str(file), "the file")) from error


def _check_archive(content: bytes) -> None:
    """The sizes that an archive claims, of members and in headers of arrays, before anything is unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if len(members) > MOST_ARRAYS:
                raise fail("file", f"{len(members)} arrays", f"at most {MOST_ARRAYS}")
            unpacked = sum(member.file_size for member in members)
            if unpacked > LARGEST_ARRAYS:
                raise fail("file", f"{unpacked / 2**20:.0f} MiB unpacked", f"at most {LARGEST_ARRAYS // 2**20} MiB")
            for member in members:
                with archive.open(member) as stream:
                    _check_header(stream, member)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise fail("file", f"a damaged archive ({error})", "an npz file, as numpy.savez writes it") from error


def _check_header(stream: IO[bytes], member: zipfile.ZipInfo) -> None:
    """NumPy makes room for what a header claims before it reads a number."""
    format = np.lib.format
    try:
        version = format.read_magic(stream)
        read = format.read_array_header_1_0 if version == (1, 0) else format.read_array_header_2_0
        shape, _, kind = read(stream)
    except ValueError as error:
        raise fail("file", f"{member.filename}, which is no array", "arrays, as numpy.savez writes them") from error
    if kind.hasobject:
        raise fail("file", f"{member.filename} with Python objects", "arrays of numbers only")
    if math.prod(shape) * kind.itemsize > member.file_size:
        raise fail("file", f"{member.filename}, shorter than its shape {shape}", "whole arrays")


def _table(content: bytes) -> tuple[list[str] | None, np.ndarray]:
    """The header of a csv file, where its first row is not numbers, and its numbers."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise fail("file", f"bytes that are no text (at {error.start})", "a csv file in UTF-8") from error
    try:
        lines = [row for row in csv.reader(io.StringIO(text), strict=True) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise fail("file", f"a row that is not csv ({error})", "values separated by commas") from error
    if not lines:
        raise fail("file", "no rows", "at least one")
    header = None
    if any(_number(cell) is None for cell in lines[0]):
        header = [cell.strip() for cell in lines.pop(0)]
        if len(set(header)) != len(header):
            raise fail("file", "a name twice in its first row", "each column named once")
    width = len(header or lines[0])
    if not lines or width * len(lines) > MOST_CELLS:
        raise fail("file", f"{len(lines)} rows of {width}", f"at least one row, and at most {MOST_CELLS} numbers")
    numbers = np.empty((len(lines), width))
    for row, cells in enumerate(lines):
        if len(cells) != width:
            raise fail("file", f"{len(cells)} values in row {row + 1}", f"{width}, as in the first row")
        for column, cell in enumerate(cells):
            value = _number(cell)
            if value is None or not math.isfinite(value):
                raise fail("file", f"{cell.strip()[:20]!r} in row {row + 1}, column {column + 1}", "a finite number")
            numbers[row, column] = value
    return header, numbers


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None

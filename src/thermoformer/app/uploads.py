"""A user's own file in the explorer: read here, kept in memory, refused with a sentence where it does not fit."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .._files import read_npz
from .._validation import fail
from ..arrays import arrays_in
from .learning_view import check_sizes

LARGEST_FILE = 8 * 2**20
# What the arrays of an npz file may take in memory, at eight bytes or more per number.
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
        arrays = {name: array for name, array in _unpacked(content).items() if "_test" not in name}
        # Paths are products of heads: a small file may ask for more of them than any machine can hold.
        layers = [array for name, array in arrays.items() if name.startswith("attention_") and array.ndim == 4]
        if layers and (x := arrays.get("x")) is not None and x.ndim == 3:
            check_sizes(len(x), math.prod(layer.shape[1] for layer in layers), x.shape[2])
        found = arrays_in(arrays)
        xi = np.asarray(found.features.values)
        check_sizes(*xi.shape)
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
    found = _unpacked(content)
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


def _unpacked(content: bytes) -> dict[str, np.ndarray]:
    return read_npz(content, most_bytes=LARGEST_ARRAYS, most_arrays=MOST_ARRAYS)


def _table(content: bytes) -> tuple[list[str] | None, np.ndarray]:
    """The header of a csv file, if its first row is not numbers, and its numbers."""
    lines = _rows(content)
    if not lines:
        raise fail("file", "no rows", "at least one")
    header = None
    if any(_number(cell) is None for cell in lines[0]):
        header = [cell.strip() for cell in lines.pop(0)]
        if len(set(header)) != len(header):
            raise fail("file", "a name twice in its first row", "each column named once")
    width = len(header or lines[0])
    if not lines:
        raise fail("file", f"0 rows of {width}", "at least one row of numbers")
    for row, cells in enumerate(lines, 1):
        if len(cells) != width:
            raise fail("file", f"{len(cells)} values in row {row}", f"{width}, as in the first row")
    numbers = np.array([[_number(cell) for cell in cells] for cells in lines], float)
    for row, column in np.argwhere(~np.isfinite(numbers)):
        cell = lines[row][column].strip()[:20]
        raise fail("file", f"{cell!r} in row {row + 1}, column {column + 1}", "a finite number")
    return header, numbers


def _rows(content: bytes) -> list[list[str]]:
    """Rows that are not empty, as long as there are not too many cells in them."""
    lines, cells = [], 0
    try:
        for row in csv.reader(io.StringIO(content.decode("utf-8-sig")), strict=True):
            if any(cell.strip() for cell in row):
                lines.append(row)
                cells += len(row)
            if cells > MOST_CELLS:
                raise fail("file", f"more than {MOST_CELLS} values", "fewer")
    except UnicodeDecodeError as error:
        raise fail("file", f"bytes that are no text (at {error.start})", "a csv file in UTF-8") from error
    except csv.Error as error:
        raise fail("file", f"a row that is not csv ({error})", "values separated by commas") from error
    return lines


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None

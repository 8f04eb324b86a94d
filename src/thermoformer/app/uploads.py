"""A user's own file in the explorer: read here, kept in memory, refused with a sentence where it does not fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .._files import csv_table, read_npz
from .._validation import fail
from ..arrays import arrays_in, arrays_of_columns
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
        notes: how labels were read, as in `Arrays`.
    """

    xi: np.ndarray
    labels: np.ndarray
    heads: tuple[int, ...]
    notes: tuple[str, ...] = ()


def upload_of(name: str, content: bytes) -> Upload:
    """Attentioned inputs, labels and heads per layer of a user's file.

    The file is what `thermoformer.read_arrays` takes, npz or csv. Where it says nothing of heads, its paths are the
    heads of one layer.

    Arguments:
        name: of the file; its ending says what it is.
        content: of the file.

    Example:
        >>> text = b"label,one.a,one.b,two.a,two.b\\n1,1,2,3,4\\n-1,5,6,7,8\\n"
        >>> upload = upload_of("mine.csv", text)
        >>> upload.xi[0].tolist(), upload.labels.tolist(), upload.heads
        ([[1.0, 2.0], [3.0, 4.0]], [1.0, -1.0], (2,))
    """
    if _ending(name, content) == ".npz":
        arrays = {name: array for name, array in _unpacked(content).items() if "_test" not in name}
        # Paths are products of heads: a small file may ask for more of them than any machine can hold.
        layers = [array for name, array in arrays.items() if name.startswith("attention_") and array.ndim == 4]
        if layers and (x := arrays.get("x")) is not None and x.ndim == 3:
            check_sizes(len(x), math.prod(layer.shape[1] for layer in layers), x.shape[2])
        found = arrays_in(arrays)
        check_sizes(*found.features.values.shape)
    else:
        found = arrays_in(arrays_of_columns(*csv_table(content, most_cells=MOST_CELLS)))
    xi = np.asarray(found.features.values)
    return Upload(xi, found.labels, found.heads or (xi.shape[1],), found.notes)


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
        return csv_table(content, most_cells=MOST_CELLS)[1]
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

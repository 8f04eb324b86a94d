"""A user's own data: an npz or csv file read and checked, nothing in it ever unpickled."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from ._files import LARGEST_TEXT, csv_table, read_bytes, read_npz
from ._validation import attention_matrices, check_memory, fail, labels_for, real_array
from .learning import PathFeatures

# A solution needs about a hundred matrices [path, path], 4 GiB at this number of paths. Paths are products of heads, so
# a small file can ask for any number of them.
MOST_PATHS = 2048
_ZERO_ONE, _SIGNS = (0, 1), (-1, 1)
_EXPECTED = "y with xi, or y with x and attention_1, attention_2, ..."


@dataclass(frozen=True, eq=False)
class Arrays:
    """What `read_arrays` found in a file.

    Fields:
        features: the attentioned inputs of the training examples.
        labels: y [example].
        heads: heads per layer, (H_1..H_L), where the file holds attention; none where it holds attentioned inputs.
        test_features: the same for examples to predict, if any.
        test_labels: their labels, if any.
        notes: how labels were read, in words, where they are not taken as they are.
    """

    features: PathFeatures
    labels: np.ndarray
    heads: tuple[int, ...] | None = None
    test_features: PathFeatures | None = None
    test_labels: np.ndarray | None = None
    notes: tuple[str, ...] = ()

    def heads_per_layer(self, given: tuple[int, ...] | None) -> tuple[int, ...]:
        """The heads of each layer: those of the file, or those given where the file does not say.

        Arguments:
            given: (H_1..H_L); may be none where the file holds attention.
        """
        if given is None and self.heads is None:
            paths = self.features.paths
            expected = f"the heads of each layer, whose product is the {paths} paths of xi; {paths} for one layer"
            raise fail("heads", "nothing", expected)
        if given is not None and self.heads not in (None, given):
            raise fail("heads", given, f"{self.heads}, as in the attention of the file")
        return given or self.heads or ()


def read_arrays(path: str | PathLike[str], *, readout: str = "last") -> Arrays:
    """Training examples, and examples to predict, from an npz or csv file.

    An npz file holds the labels `y` and either attentioned inputs or tokens with their attention; others are ignored.

    - `xi` [example, path, feature]; optionally `xi_test`.
    - `x` [example, token, feature] with `attention_1`..`attention_L` [example, head, query, key], first layer first;
      optionally `x_test` with `attention_test_1`..`attention_test_L`.
    - optionally `y_test` [example].

    A csv file holds training examples only, one per row under a first row of names: the column `label`, and the
    features of one path, or of several where columns are called `path.feature`.

    Labels 0 and 1, or False and True, are two classes and become −1 and +1; other labels stay as they are. Labels
    [example, 1] become [example]. `notes` says what was done.

    Arguments:
        path: the file, csv if its name ends so.
        readout: the query position of the top layer: "last", "first" or "mean"; used with attention only.

    Example:
        >>> import tempfile
        >>> from thermoformer import read_arrays
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/mine.npz", xi=np.ones((5, 4, 3)), y=np.ones(5))
        ...     read_arrays(f"{folder}/mine.npz").features
        PathFeatures(examples=5, paths=4, token_width=3)
    """
    if Path(path).suffix.lower() != ".csv":
        return arrays_in(read_npz(path), readout)
    content = read_bytes(path, LARGEST_TEXT, expected="a csv file with a column named label")
    return arrays_in(arrays_of_columns(*csv_table(content)), readout)


def arrays_of_columns(header: list[str] | None, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays `y` and `xi` in a csv file with a row per example.

    Arguments:
        header: names of the columns: `label`, and one per feature, as `path.feature` where there are several paths.
        rows: [example, column].

    Example:
        >>> rows = np.array([[1.0, 1, 2, 3, 4], [-1, 5, 6, 7, 8]])
        >>> found = arrays_of_columns(["label", "one.a", "one.b", "two.a", "two.b"], rows)
        >>> found["y"].tolist(), found["xi"][0].tolist()
        ([1.0, -1.0], [[1.0, 2.0], [3.0, 4.0]])
    """
    if header is None or "label" not in header:
        raise fail("file", "no column named label", "a first row of names, one of them label")
    columns: dict[str, list[int]] = {}
    for place, column in enumerate(header):
        if column != "label":
            columns.setdefault(column.split(".")[0] if "." in column else "", []).append(place)
    sizes = {path: len(places) for path, places in columns.items()}
    if len(set(sizes.values())) != 1:
        got = ", ".join(f"{path or 'without a path'}: {size}" for path, size in sizes.items()) or "none"
        raise fail("file", f"features by path ({got})", "as many features for every path, and at least one")
    return {"y": rows[:, header.index("label")], "xi": rows[:, np.array([*columns.values()])]}


def arrays_in(found: dict[str, np.ndarray], readout: str = "last") -> Arrays:
    """The same as `read_arrays` from arrays by name, as a file would hold them.

    Example:
        >>> arrays = arrays_in({"xi": np.ones((2, 4, 3)), "y": np.array([[0], [1]])})
        >>> arrays.labels.tolist(), arrays.notes
        ([-1.0, 1.0], ('y: [2, 1] is read as [2]', 'y: labels 0 and 1 are read as −1 and +1'))
    """
    if "y" not in found or ("xi" in found) == ("x" in found):
        raise fail("file", f"arrays {_names(found)}", _EXPECTED)
    features, heads = _features(found, "", readout)
    notes: list[str] = []
    labels = _labels("y", found["y"], features.examples, notes)
    coding = _classes(labels)
    if coding == _ZERO_ONE:
        notes.append("y: labels 0 and 1 are read as −1 and +1")
        labels = 2 * labels - 1
    if not any(name in found for name in ("xi_test", "x_test")):
        if "y_test" in found:
            raise fail("file", "y_test without inputs", "xi_test, or x_test with attention_test_1, ..., beside it")
        return Arrays(features, labels, heads, notes=tuple(notes))

    test_features, test_heads = _features(found, "_test", readout)
    if test_heads != heads:
        raise fail("attention_test", f"heads {test_heads}", f"{heads}, as in the training examples")
    frame, test_frame = features.values.shape[1:], test_features.values.shape[1:]
    if test_frame != frame:
        name = "xi_test" if heads is None else "x_test"
        raise fail(name, f"{test_frame} [path, feature]", f"{frame}, as in the training examples")
    test_labels = None
    if "y_test" in found:
        test_labels = _labels("y_test", found["y_test"], test_features.examples, notes)
        if coding and not set(np.unique(test_labels)) <= set(coding):
            strange = test_labels[~np.isin(test_labels, coding)][0]
            raise fail("y_test", f"a label of {strange:g}", f"{coding[0]} and {coding[1]} only, as in y")
        if coding == _ZERO_ONE:
            test_labels = 2 * test_labels - 1
    return Arrays(features, labels, heads, test_features, test_labels, tuple(notes))


def _labels(name: str, value: np.ndarray, examples: int, notes: list[str]) -> np.ndarray:
    """Labels [example], with a note where they came with a second axis."""
    labels = labels_for(name, value, examples)
    if np.ndim(value) == 2:
        notes.append(f"{name}: [{examples}, 1] is read as [{examples}]")
    return labels


def _classes(labels: np.ndarray) -> tuple[int, int] | None:
    """The two values that stand for classes; None for labels that are numbers to be met."""
    found = set(np.unique(labels))
    return next((coding for coding in (_ZERO_ONE, _SIGNS) if found == set(coding)), None)


def _features(found: dict[str, np.ndarray], suffix: str, readout: str) -> tuple[PathFeatures, tuple[int, ...] | None]:
    """Features of the training (no suffix) or test examples, and the heads per layer where attention tells them."""
    if f"xi{suffix}" in found:
        xi = real_array(f"xi{suffix}", found[f"xi{suffix}"], ("example", "path", "feature"))
        _check_size(f"xi{suffix}", *xi.shape)
        return PathFeatures.from_attentioned_inputs(xi), None
    prefix = f"attention{suffix}_"
    numbers = sorted(int(name[len(prefix) :]) for name in found if re.fullmatch(rf"{prefix}[1-9]\d*", name))
    if not numbers or numbers != list(range(1, len(numbers) + 1)):
        raise fail("file", f"arrays {_names(found)}", f"{prefix}1, {prefix}2, ... beside x{suffix}, one per layer")
    # Checked here under the names the arrays have in the file; the library would call them x and attention[0].
    x = real_array(f"x{suffix}", found[f"x{suffix}"], ("example", "token", "feature"))
    attention = [attention_matrices(f"{prefix}{number}", found[f"{prefix}{number}"]) for number in numbers]
    heads = tuple(layer.shape[1] for layer in attention)
    _check_size(f"attention{suffix}", len(x), math.prod(heads), x.shape[2])
    return PathFeatures.from_attention(x, attention, readout), heads


def _check_size(name: str, examples: int, paths: int, features: int) -> None:
    if paths > MOST_PATHS:
        raise fail(name, f"{paths} paths, the product of the heads of all layers", f"at most {MOST_PATHS}")
    # The attentioned inputs and a few copies of them.
    check_memory(
        name, f"{examples} examples of {paths} paths and {features} features", 4 * 8 * examples * paths * features
    )


def _names(found: dict[str, np.ndarray]) -> str:
    return ", ".join(sorted(found)) or "none"

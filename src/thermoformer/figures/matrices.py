"""Matrices as images: order parameters and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from .._validation import fail, labels_for, real_array
from .display import Axis, Curve, Display, Image, Mark, Text
from .style import DIVERGING, SEQUENTIAL, ink_on

# Past this many paths the numbers in the cells no longer fit and are left out.
_LARGEST_WITH_NUMBERS = 8
# Past this many names they would overlap, and every second or later one stands for the rest.
_MOST_NAMES = 20


def order_parameter_display(
    order_parameter: Any,
    path_names: Sequence[str] | None = None,
    *,
    limit: float | None = None,
    colorbar: bool = True,
    row_names: bool = True,
    column_names: bool = True,
) -> Display:
    """The picture of `order_parameter_matrix`, whose arguments these are."""
    matrix = _square("order_parameter", order_parameter, ("path", "path"))
    count = len(matrix)
    names = [str(path) for path in range(count)] if path_names is None else [str(name) for name in path_names]
    if len(names) != count:
        raise fail("path_names", f"{len(names)} names", f"{count}, one per path")
    limit = float(real_array("limit", np.abs(matrix).max() if limit is None else limit, ())) or 1.0
    if limit < 0:
        raise fail("limit", limit, "a number above 0")
    notes = np.array([[f"{one}, {other}: " for other in names] for one in names], object)
    notes = notes + np.vectorize("{:.3g}".format, otypes=[object])(matrix)
    edges = np.arange(count + 1) - 0.5
    bar = "U" if colorbar else ""
    marks: list[Mark] = [Image(matrix, edges, edges, DIVERGING, (-limit, limit), bar=bar, notes=notes)]
    if count <= _LARGEST_WITH_NUMBERS:
        for (row, column), value in np.ndenumerate(matrix):
            ink = ink_on(colormaps[DIVERGING](0.5 + 0.5 * value / limit))
            marks.append(Text(column, row, _short(value), ink))
    ticks = range(0, count, -(-count // _MOST_NAMES))
    shown = [names[tick] for tick in ticks]
    hidden = [""] * len(shown)
    across = Axis("", (-0.5, count - 0.5), ticks=ticks, names=shown if column_names else hidden, tilt=40)
    down = Axis("", (count - 0.5, -0.5), ticks=ticks, names=shown if row_names else hidden)
    about = "order parameter U between paths"
    return Display(marks, across, down, "", size=(4.4, 3.8), frame=False, square=True, about=about)


def order_parameter_matrix(
    order_parameter: Any,
    path_names: Sequence[str] | None = None,
    ax: Axes | None = None,
    *,
    limit: float | None = None,
    colorbar: bool = True,
    row_names: bool = True,
    column_names: bool = True,
) -> Axes:
    """The order parameter U as a matrix over paths; white is zero.

    Arguments:
        order_parameter: U [path, path].
        path_names: one name per path; default: numbers.
        limit: the colours run from −limit to limit; default: the largest entry.
        colorbar, row_names, column_names: turn off in the inner panels of a row.

    Example:
        >>> ax = order_parameter_matrix([[2.0, -0.5], [-0.5, 1.0]], ["good", "random"])
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['good', 'random']
    """
    shown = {"limit": limit, "colorbar": colorbar, "row_names": row_names, "column_names": column_names}
    return order_parameter_display(order_parameter, path_names, **shown).plot(ax)


def kernel_display(
    kernel: Any,
    labels: Any = None,
    *,
    limits: tuple[float, float] | None = None,
    colorbar: bool = True,
    classes: Sequence[str] | None = None,
) -> Display:
    """The picture of `kernel_image`, whose arguments these are; `classes` are the names of the labels, ascending."""
    matrix = _square("kernel", kernel, ("example", "example"))
    count = len(matrix)
    edges = np.arange(count + 1) - 0.5
    across: dict[str, Any] = {"label": "example"}
    down: dict[str, Any] = across
    marks: list[Mark] = []
    if labels is not None:
        labels = labels_for("labels", labels, count)
        order = np.argsort(labels, kind="stable")
        matrix = matrix[np.ix_(order, order)]
        values, counts = np.unique(labels, return_counts=True)
        ends = np.cumsum(counts)
        for end in ends[:-1] - 0.5:
            for x, y in (([end, end], edges[[0, -1]]), (edges[[0, -1]], [end, end])):
                marks.append(Curve(x, y, "white", line=1.2))
        names = [f"{value:+g}".replace("-", "−") for value in values] if classes is None else classes
        across = {"ticks": ends - counts / 2 - 0.5, "names": [f"class {name}" for name in names]}
        down = {**across, "tilt": 90}
    ends = kernel_limits(matrix) if limits is None else limits
    marks.insert(0, Image(matrix, edges, edges, SEQUENTIAL, ends, bar="K" if colorbar else ""))
    axes = Axis(**across, limits=(-0.5, count - 0.5)), Axis(**down, limits=(count - 0.5, -0.5))
    about = "kernel K between training examples, by class"
    return Display(marks, *axes, "", size=(4.4, 3.8), frame=False, square=True, about=about)


def kernel_limits(*kernels: np.ndarray) -> tuple[float, float]:
    """The middle 98 % of the entries off the diagonals of kernels [example, example] that share their colours.

    Diagonals are often far above the rest and would take the whole range of colours.

    Example:
        >>> kernel_limits(np.eye(3), 2 - np.eye(3))
        (0.0, 2.0)
    """
    rest = [matrix[~np.eye(len(matrix), dtype=bool)] if len(matrix) > 1 else matrix[0] for matrix in kernels]
    low, high = np.quantile(np.concatenate(rest), [0.01, 0.99]).tolist()
    return low, high if high > low else low + 1


def kernel_image(
    kernel: Any,
    labels: Any = None,
    ax: Axes | None = None,
    *,
    limits: tuple[float, float] | None = None,
    colorbar: bool = True,
) -> Axes:
    """A kernel K over examples as an image, examples sorted by label, lines between the classes.

    Arguments:
        kernel: K [example, example].
        labels: one number per example; by default examples stay in their order.
        limits: entries at the two ends of the colours; default: the middle 98 % of those off the diagonal.

    Example:
        >>> import numpy as np
        >>> ax = kernel_image(np.eye(4), [1, -1, 1, -1])
        >>> [label.get_text() for label in ax.get_xticklabels()]
        ['class −1', 'class +1']
    """
    return kernel_display(kernel, labels, limits=limits, colorbar=colorbar).plot(ax)


def _short(value: float) -> str:
    """A number in at most two decimals, so that it fits its cell; a rounded zero has no sign."""
    text = f"{value:.2f}" if abs(value) < 10 else f"{value:.3g}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def _square(name: str, value: Any, axes: tuple[str, str]) -> np.ndarray:
    matrix = real_array(name, value, axes)
    if matrix.shape[0] != matrix.shape[1]:
        raise fail(name, f"shape {matrix.shape}", "a square matrix")
    return matrix

"""Matrices as images: order parameters and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .._validation import fail, labels_for, real_array
from .style import DIVERGING, SEQUENTIAL, axes_or_new, styled

# Past this many paths the numbers in the cells no longer fit and are left out.
_LARGEST_WITH_NUMBERS = 8


@styled
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
        path_names: one name per path; numbers where absent.
        limit: the colours run from −limit to limit; the largest entry where absent.
        colorbar, row_names, column_names: turn off in the inner panels of a row.

    Example:
        >>> ax = order_parameter_matrix([[2.0, -0.5], [-0.5, 1.0]], ["good", "random"])
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['good', 'random']
    """
    matrix = _square("order_parameter", order_parameter, ("path", "path"))
    names = [str(path) for path in range(len(matrix))] if path_names is None else [str(name) for name in path_names]
    if len(names) != len(matrix):
        raise fail("path_names", f"{len(names)} names", f"{len(matrix)}, one per path")
    limit = float(real_array("limit", np.abs(matrix).max() if limit is None else limit, ())) or 1.0
    if limit < 0:
        raise fail("limit", limit, "a number above 0")

    ax = axes_or_new(ax, size=(4.4, 3.8))
    image = ax.imshow(matrix, cmap=DIVERGING, vmin=-limit, vmax=limit)
    ax.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(labelleft=row_names, labelbottom=column_names)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if len(matrix) <= _LARGEST_WITH_NUMBERS:
        for (row, column), value in np.ndenumerate(matrix):
            colour = "white" if abs(value) > 0.6 * limit else "black"
            ax.text(column, row, _short(value), ha="center", va="center", fontsize=9.5, color=colour)
    if colorbar:
        ax.figure.colorbar(image, ax=ax, label="U", shrink=0.85)
    return ax


@styled
def kernel_image(kernel: Any, labels: Any = None, ax: Axes | None = None, *, colorbar: bool = True) -> Axes:
    """A kernel K over examples as an image, examples sorted by label, lines between the classes.

    Arguments:
        kernel: K [example, example].
        labels: one number per example; examples stay in their order where absent.

    Example:
        >>> import numpy as np
        >>> ax = kernel_image(np.eye(4), [1, -1, 1, -1])
        >>> [label.get_text() for label in ax.get_xticklabels()]
        ['class −1', 'class +1']
    """
    matrix = _square("kernel", kernel, ("example", "example"))
    ax = axes_or_new(ax, size=(4.4, 3.8))
    if labels is not None:
        labels = labels_for("labels", labels, len(matrix))
        order = np.argsort(labels, kind="stable")
        matrix = matrix[np.ix_(order, order)]
    # The diagonal is often far above the rest and would take the whole range of colours.
    rest = matrix[~np.eye(len(matrix), dtype=bool)] if len(matrix) > 1 else matrix
    low, high = np.quantile(rest, [0.01, 0.99])
    image = ax.imshow(matrix, cmap=SEQUENTIAL, vmin=low, vmax=high if high > low else low + 1, interpolation="nearest")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    if labels is None:
        ax.set_xlabel("example")
        ax.set_ylabel("example")
    else:
        _mark_classes(ax, labels)
    if colorbar:
        ax.figure.colorbar(image, ax=ax, label="K", shrink=0.85, extend="both")
    return ax


def _mark_classes(ax: Axes, labels: np.ndarray) -> None:
    classes, counts = np.unique(labels, return_counts=True)
    ends = np.cumsum(counts)
    for end in ends[:-1]:
        ax.axhline(end - 0.5, color="white", linewidth=1.2)
        ax.axvline(end - 0.5, color="white", linewidth=1.2)
    names = [f"class {value:+g}".replace("-", "−") for value in classes]
    middles = ends - counts / 2 - 0.5
    ax.set_xticks(middles, names)
    ax.set_yticks(middles, names, rotation=90, va="center")


def _short(value: float) -> str:
    """A number in at most two decimals, so that it fits its cell; a rounded zero has no sign."""
    text = f"{value:.2f}" if abs(value) < 10 else f"{value:.3g}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def _square(name: str, value: Any, axes: tuple[str, str]) -> np.ndarray:
    matrix = real_array(name, value, axes)
    if matrix.shape[0] != matrix.shape[1]:
        raise fail(name, f"shape {matrix.shape}", "a square matrix")
    return matrix

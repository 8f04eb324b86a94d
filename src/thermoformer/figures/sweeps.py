"""What is there of a sweep: results over its grid, with the points that failed and those still to come."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from .._validation import fail, one_of
from .style import PALETTE, SEQUENTIAL, axes_or_new, styled

_DONE, _FAILED = 1, 2
# An axis of at most this number of values makes lines of different colours; a longer one makes an image.
_MOST_LINES = 6
_COLOURS = [PALETTE[name] for name in ("blue", "vermilion", "green", "purple", "orange", "sky")]
_GREY = "#E4E4E4"


@styled
def sweep_results(dataset: xr.Dataset, result: str | None = None, ax: Axes | None = None) -> Axes:
    """One result of a sweep over its grid, as far as it is there.

    One axis, or a second with a few values, makes lines; two long ones make an image. Of further axes of the grid the
    mean is drawn, of an array as result its first entry; the title says so. Failed points are marked.

    Arguments:
        dataset: of `Sweep.dataset`, finished or not.
        result: which; default: the first one.

    Example:
        >>> import tempfile
        >>> from thermoformer.sweeps import Sweep
        >>> found = Sweep(lambda a, b: {"sum": a + b}, {"a": [1, 2], "b": [1, 2, 3]}, tempfile.mkdtemp()).run()
        >>> sweep_results(found).get_title()
        'sum: 6 of 6 points'
    """
    if "status" not in dataset:
        raise fail("dataset", f"variables {list(dataset.data_vars)}", "a Dataset of `Sweep.dataset`, with its `status`")
    status = dataset.status
    ax = axes_or_new(ax, (6.4, 4.2))
    names = result_names(dataset)
    if not names:
        ax.set_title(f"nothing of {status.size} points yet")
        return ax
    name = names[0] if result is None else one_of("result", result, tuple(names))
    values, remark = _on_grid(dataset[name], status)
    kept, failed, means = _two_axes(values, (status == _FAILED).astype(float))
    done = int((status == _DONE).sum())
    parts = [f"{name}{remark}", *([f"mean over {', '.join(means)}"] if means else [])]
    lost = int((status == _FAILED).sum())
    ax.set_title(f"{', '.join(parts)}: {done} of {status.size} points" + (f", {lost} failed" if lost else ""))
    if kept.ndim == 1 or min(kept.shape) <= _MOST_LINES:
        _lines(ax, kept, failed, name)
    else:
        _image(ax, kept, failed, name)
    return ax


def result_names(dataset: xr.Dataset) -> list[str]:
    """The results of a sweep that can be drawn: numbers over the grid."""
    grid = set(dataset.status.dims)
    return [
        str(name)
        for name, variable in dataset.data_vars.items()
        if name not in ("status", "seconds") and grid <= set(variable.dims) and variable.dtype.kind in "fiub"
    ]


def _on_grid(values: xr.DataArray, status: xr.DataArray) -> tuple[xr.DataArray, str]:
    """The result on the grid alone, NaN where a point is not done; and what was left out."""
    inner = [axis for axis in values.dims if axis not in status.dims]
    first = values.isel({axis: 0 for axis in inner}, drop=True).astype(float)
    remark = f"[{', '.join('0' for _ in inner)}]" if inner else ""
    return first.transpose(*status.dims).where(status == _DONE), remark


def _two_axes(values: xr.DataArray, failed: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray, list[str]]:
    """The two longest axes of the grid, means over the others, with the share of failed points there."""
    order = sorted(values.dims, key=lambda axis: -values.sizes[axis])
    means = [str(axis) for axis in values.dims if axis not in order[:2] and values.sizes[axis] > 1]
    others = [axis for axis in values.dims if axis not in order[:2]]
    kept = [axis for axis in order[:2] if values.sizes[axis] > 1 or axis == order[0]]
    single = [axis for axis in order[:2] if axis not in kept]
    return (
        values.mean([*others, *single], skipna=True).transpose(*kept),
        failed.max([*others, *single]).transpose(*kept),
        means,
    )


def _lines(ax: Axes, values: xr.DataArray, failed: xr.DataArray, name: str) -> None:
    along = values.dims[0]
    place, labels = _places(values[along].values)
    rows = [(None, values, failed)]
    if values.ndim == 2:
        other = values.dims[1]
        rows = [
            (
                f"{other} = {_text(values[other].values[number])}",
                values.isel({other: number}),
                failed.isel({other: number}),
            )
            for number in range(values.sizes[other])
        ]
    marker = "o" if len(place) <= 60 else ""
    for number, (label, row, bad) in enumerate(rows):
        ax.plot(place, row.values, marker=marker, color=_COLOURS[number % len(_COLOURS)], label=label)
        wrong = np.flatnonzero(bad.values > 0)
        if wrong.size:
            ax.plot(
                place[wrong],
                np.zeros(wrong.size),
                "x",
                color=_COLOURS[number % len(_COLOURS)],
                transform=ax.get_xaxis_transform(),
                clip_on=False,
            )
    _label(ax, "x", str(along), place, labels)
    # The whole axis, also where nothing is there yet.
    if ax.get_xscale() == "log":
        ax.set_xlim(place.min() / 1.15, place.max() * 1.15)
    else:
        span = (place.max() - place.min()) * 0.04 or 0.5
        ax.set_xlim(place.min() - span, place.max() + span)
    ax.set_ylabel(name)
    if values.ndim == 2:
        ax.legend()


def _image(ax: Axes, values: xr.DataArray, failed: xr.DataArray, name: str) -> None:
    down, across = values.dims[1], values.dims[0]  # the longer axis goes across
    places = {axis: _places(values[axis].values) for axis in (down, across)}
    grid = values.transpose(down, across).values
    wrong = failed.transpose(down, across).values > 0
    edges = [_edges(places[axis][0]) for axis in (across, down)]
    ax.set_facecolor(_GREY)
    image = ax.pcolormesh(*edges, np.ma.masked_invalid(grid), cmap=SEQUENTIAL, rasterized=True)
    if wrong.any():
        ax.pcolormesh(*edges, np.ma.masked_equal(wrong, False), cmap=ListedColormap([PALETTE["vermilion"]]))
    ax.figure.colorbar(image, ax=ax, label=name)  # type: ignore[union-attr]
    _label(ax, "x", str(across), *places[across])
    _label(ax, "y", str(down), *places[down])
    patches = [("to come", _GREY, bool((np.isnan(grid) & ~wrong).any())), ("failed", PALETTE["vermilion"], wrong.any())]
    shown = [Patch(facecolor=colour, edgecolor="none", label=text) for text, colour, there in patches if there]
    if shown:
        ax.legend(handles=shown, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _places(values: np.ndarray) -> tuple[np.ndarray, list[str] | None]:
    """Where values lie on an axis: numbers where they are, words in order."""
    if values.dtype.kind in "fiu":
        return values.astype(float), None
    return np.arange(len(values), dtype=float), [str(value) for value in values]


def _label(ax: Axes, which: str, name: str, place: np.ndarray, labels: list[str] | None) -> None:
    getattr(ax, f"set_{which}label")(name)
    if labels is not None:
        getattr(ax, f"set_{which}ticks")(place, labels)
    elif len(place) > 2 and place.min() > 0 and place.max() / place.min() > 50:
        getattr(ax, f"set_{which}scale")("log")


def _edges(place: np.ndarray) -> np.ndarray:
    """Borders half way between neighbours."""
    if len(place) == 1:
        return np.array([place[0] - 0.5, place[0] + 0.5])
    middle = (place[1:] + place[:-1]) / 2
    return np.concatenate([[2 * place[0] - middle[0]], middle, [2 * place[-1] - middle[-1]]])


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

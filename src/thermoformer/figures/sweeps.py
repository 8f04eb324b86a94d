"""What is there of a sweep: results over its grid, with the points that failed and those still to come."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from .._validation import fail, one_of
from .display import cell_edges
from .style import PALETTE, SEQUENTIAL, axes_or_new, styled

_DONE, _FAILED = 1, 2
# An axis with no more values than these makes lines of different colours; a longer one makes an image.
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
    done, failed = status == _DONE, status == _FAILED
    ax = axes_or_new(ax, (6.4, 4.2))
    names = result_names(dataset)
    if not names:
        ax.set_title(f"nothing of {status.size} points yet")
        return ax
    name = names[0] if result is None else one_of("result", result, tuple(names))
    inner = [axis for axis in dataset[name].dims if axis not in status.dims]
    values = dataset[name].isel({axis: 0 for axis in inner}, drop=True).astype(float).where(done)
    longest = sorted(status.dims, key=lambda axis: -status.sizes[axis])[:2]
    shown = [axis for axis in longest if status.sizes[axis] > 1] or longest[:1]
    others = [axis for axis in status.dims if axis not in shown]
    what = name + (f"[{', '.join('0' for _ in inner)}]" if inner else "")
    if means := [str(axis) for axis in others if status.sizes[axis] > 1]:
        what += f", mean over {', '.join(means)}"
    lost = f", {int(failed.sum())} failed" if failed.any() else ""
    ax.set_title(f"{what}: {int(done.sum())} of {status.size} points{lost}")
    drawn = _image if len(shown) == 2 and status.sizes[shown[1]] > len(_COLOURS) else _lines
    drawn(ax, values.mean(others).transpose(*shown), failed.any(others).transpose(*shown), name)
    return ax


def result_names(dataset: xr.Dataset) -> list[str]:
    """The results of a sweep that can be drawn: numbers over the grid."""
    grid = set(dataset.status.dims)
    return [
        str(name)
        for name, variable in dataset.data_vars.items()
        if name not in ("status", "seconds") and grid <= set(variable.dims) and variable.dtype.kind in "fiub"
    ]


def _lines(ax: Axes, values: xr.DataArray, failed: xr.DataArray, name: str) -> None:
    """A line along the first axis for each value of the second, with crosses below where points failed."""
    along, *other = map(str, values.dims)
    place, labels = _places(values[along].values)
    columns, wrong = (table.values.reshape(len(place), -1).T for table in (values, failed))
    marker = "o" if len(place) <= 60 else ""
    for number, (colour, column, bad) in enumerate(zip(_COLOURS, columns, wrong, strict=False)):
        label = f"{other[0]} = {_text(values[other[0]].values[number])}" if other else None
        ax.plot(place, column, marker=marker, color=colour, label=label)
        if bad.any():
            below = {"transform": ax.get_xaxis_transform(), "clip_on": False}
            ax.plot(place[bad], np.zeros(bad.sum()), "x", color=colour, **below)
    _label(ax, "x", along, place, labels)
    # The whole axis, also where nothing is there yet.
    if ax.get_xscale() == "log":
        ax.set_xlim(place.min() / 1.15, place.max() * 1.15)
    else:
        span = (place.max() - place.min()) * 0.04 or 0.5
        ax.set_xlim(place.min() - span, place.max() + span)
    ax.set_ylabel(name)
    if other:
        ax.legend()


def _image(ax: Axes, values: xr.DataArray, failed: xr.DataArray, name: str) -> None:
    """Colours over both axes, the first of which goes across."""
    axes = [(str(axis), *_places(values[axis].values)) for axis in values.dims]
    edges = [cell_edges(place) for _, place, _ in axes]
    grid, wrong = values.values.T, failed.values.T
    ax.set_facecolor(_GREY)
    image = ax.pcolormesh(*edges, np.ma.masked_invalid(grid), cmap=SEQUENTIAL, rasterized=True)
    if wrong.any():
        ax.pcolormesh(*edges, np.ma.masked_equal(wrong, False), cmap=ListedColormap([PALETTE["vermilion"]]))
    ax.figure.colorbar(image, ax=ax, label=name)  # type: ignore[union-attr]
    for which, axis in zip("xy", axes, strict=True):
        _label(ax, which, *axis)
    keys = {"to come": (_GREY, (np.isnan(grid) & ~wrong).any()), "failed": (PALETTE["vermilion"], wrong.any())}
    shown = [Patch(facecolor=colour, edgecolor="none", label=text) for text, (colour, there) in keys.items() if there]
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


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

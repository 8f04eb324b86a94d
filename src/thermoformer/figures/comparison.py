"""Theories and samplers of one problem side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from .._validation import fail
from .convergence import approach_label, approach_looks
from .display import Axis, Curve, Display, Level, Mark
from .style import PALETTE, figure_grid, styled

# More entries of U than this do not fit beside each other: the largest are drawn.
_MOST_ENTRIES = 12
_NEEDED = ("mean", "variance", "order_parameter", "order_parameter_error")


@styled
def comparison_panels(dataset: xr.Dataset, axes: Sequence[Axes] | np.ndarray | None = None) -> np.ndarray:
    """Predictor means and standard deviations against the reference, and the entries of U side by side.

    Arguments:
        dataset: what `Comparison.to_xarray()` gives: `mean` and `variance` [approach, example] (and output),
            `order_parameter` and `order_parameter_error` [approach, path, path_other], and the attribute `reference`.
            Approaches that are nan throughout are left out.
        axes: three Axes to draw on; default: a new figure, reached as `axes[0].figure`.

    Returns:
        The three Axes.

    Example:
        >>> import numpy as np
        >>> import xarray as xr
        >>> data = {name: (("approach", "example"), np.ones((2, 3))) for name in ("mean", "variance")}
        >>> square = ("approach", "path", "path_other")
        >>> data |= {name: (square, np.ones((2, 1, 1))) for name in ("order_parameter", "order_parameter_error")}
        >>> dataset = xr.Dataset(data, {"approach": ["saddle", "exact"]}, {"reference": "exact"})
        >>> [ax.get_ylabel() for ax in comparison_panels(dataset)][:2]
        ['mean of each approach', 'standard deviation of each approach']
    """
    names, reference = _check(dataset)
    panels = figure_grid(1, 3, size=(4.6, 4.4))[1][0] if axes is None else np.asarray(axes)
    if panels.shape != (3,):
        raise fail("axes", f"shape {panels.shape}", "three Axes")
    looks = approach_looks(names)
    deviation = dataset.variance.clip(min=0) ** 0.5
    for ax, values, what in zip(panels, (dataset["mean"], deviation), ("mean", "standard deviation"), strict=False):
        truth = values.sel(approach=reference).values.ravel()
        marks: list[Mark] = []
        # Sampled networks scatter most and come first, so that they hide nothing.
        for name in sorted(names, key=lambda name: name != "sampled"):
            if name != reference:
                ours = values.sel(approach=name).values.ravel()
                marks.append(Curve(truth, ours, line=0, size=3, opacity=0.7, **looks[name]))
        ends = [truth.min(), truth.max()]
        marks.append(Curve(ends, ends, PALETTE["black"], line=1, order=-1))
        Display(marks, Axis(f"{what}, {approach_label(reference)}"), Axis(f"{what} of each approach")).plot(ax)
    entries, rest = _entries(dataset, names, looks)
    entries.plot(panels[2]).tick_params(axis="x", length=0)
    panels[2].set_title(rest, fontsize=10)
    handles, labels = panels[2].get_legend_handles_labels()
    if axes is None:
        panels[0].figure.legend(handles, labels, loc="outside lower center", ncols=len(names), fontsize=11)
    else:
        panels[0].legend(handles, labels)
    return panels


def _entries(dataset: xr.Dataset, names: list[str], looks: dict[str, dict[str, Any]]) -> tuple[Display, str]:
    """Entries of U on and above the diagonal, approaches beside each other; and a title where some are left out."""
    reference = dataset.order_parameter.sel(approach=dataset.attrs["reference"]).values
    rows, columns = np.triu_indices(len(reference))
    chosen, title = np.arange(len(rows)), ""
    if len(rows) > _MOST_ENTRIES:
        chosen = np.sort(np.argsort(-np.abs(reference[rows, columns]), kind="stable")[:_MOST_ENTRIES])
        title = f"the {_MOST_ENTRIES} largest of {len(rows)} entries"
    rows, columns = rows[chosen], columns[chosen]
    places = np.arange(len(chosen))
    marks: list[Mark] = [Level(0, PALETTE["grey"], line=0.8, order=-1)]
    marks += [Level(place + 0.5, "#DADADA", line=0.6, upright=True, order=-1) for place in places[:-1]]
    for index, name in enumerate(names):
        shift = 0.7 * ((index + 0.5) / len(names) - 0.5)
        own = dataset.sel(approach=name)
        values, errors = (own[key].values[rows, columns] for key in ("order_parameter", "order_parameter_error"))
        look: dict[str, Any] = {"line": 0, "size": 5, "label": approach_label(name), **looks[name]}
        marks.append(Curve(places + shift, values, errors=errors, **look))
    ticks = [f"{row + 1},{column + 1}" for row, column in zip(rows, columns, strict=True)]
    across = Axis(_path_key(dataset), (-0.6, len(places) - 0.4), ticks=places, names=ticks)
    return Display(marks, across, Axis("entry of U"), ""), title


def _path_key(dataset: xr.Dataset) -> str:
    """What the numbers of the paths stand for, two to a line; only the word where there are too many to list."""
    if "path" not in dataset.coords or dataset.sizes["path"] > 6:
        return "between paths"
    names = [f"{number}: {name}" for number, name in enumerate(dataset.path.values.tolist(), start=1)]
    return "between paths\n" + "\n".join("   ".join(names[start : start + 2]) for start in range(0, len(names), 2))


def _check(dataset: xr.Dataset) -> tuple[list[str], str]:
    """The approaches that have numbers, and the reference among them."""
    if not isinstance(dataset, xr.Dataset) or not all(name in dataset for name in _NEEDED):
        raise fail("dataset", type(dataset).__name__, "an xarray Dataset with the variables " + ", ".join(_NEEDED))
    known = np.isfinite(dataset["mean"].transpose("approach", ...).values.reshape(dataset.sizes["approach"], -1))
    names = [str(name) for name in dataset.approach.values[known.any(axis=1)]]
    reference = dataset.attrs.get("reference")
    if reference not in names:
        raise fail("dataset", f"the reference {reference!r}", "an attribute `reference`, one of " + ", ".join(names))
    return names, str(reference)

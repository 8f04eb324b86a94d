"""Errors of approximations against the width of the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from .._validation import fail
from .style import PALETTE, axes_or_new, styled

# One look per approach in every figure: colours told apart with any colour vision, markers without colour.
APPROACH_STYLES = {
    "gaussian process": {"color": PALETTE["grey"], "marker": "D"},
    "saddle": {"color": PALETTE["blue"], "marker": "o"},
    "one-loop": {"color": PALETTE["vermilion"], "marker": "s"},
    "exact": {"color": PALETTE["green"], "marker": "^"},
    "sampled": {"color": PALETTE["black"], "marker": "v"},
}
_OTHER_STYLES = (
    {"color": PALETTE["purple"], "marker": "P"},
    {"color": PALETTE["orange"], "marker": "X"},
    {"color": PALETTE["sky"], "marker": "*"},
)
# The orders in 1/N that the theory promises (learning §6).
GUIDES = {"saddle": -1, "one-loop": -2}
# Guide lines run beside their curve, this factor above it, so that neither hides the other.
_GUIDE_OFFSET = 1.9


def approach_styles(names: list[str]) -> dict[str, dict[str, Any]]:
    """Colour and marker of each approach; names that the library does not know take colours of their own."""
    others = [name for name in names if name not in APPROACH_STYLES]
    extra = {name: _OTHER_STYLES[index % len(_OTHER_STYLES)] for index, name in enumerate(others)}
    return {name: (APPROACH_STYLES | extra)[name] for name in names}


@styled
def convergence(
    dataset: xr.Dataset, ax: Axes | None = None, *, guides: Mapping[str, float] | None = None, legend: bool = True
) -> Axes:
    """Relative error against N on logarithmic axes: geometric mean over seeds, one standard deviation either side.

    Arguments:
        dataset: `error` [width, approach], or [seed, width, approach]. Drawn as well when there: `noise`, of the same
            shape, what Monte-Carlo noise alone would show, as a shaded floor. Entries that are nan are left out.
        guides: by approach, the power of N of a guide line beside its curve; −1 for the saddle and −2 for one-loop
            where absent, {} for none.

    Example:
        >>> import xarray as xr
        >>> error = ("width", "approach"), [[0.1, 0.02], [0.01, 0.0002]]
        >>> ax = convergence(xr.Dataset({"error": error}, {"width": [10, 100], "approach": ["saddle", "one-loop"]}))
        >>> ax.get_xlabel(), ax.get_yscale()
        ('width N', 'log')
    """
    _check(dataset)
    ax = axes_or_new(ax, size=(5.2, 4.2))
    names = [str(name) for name in dataset.approach.values]
    styles = approach_styles(names)
    widths = dataset.width.values.astype(float)
    floor = _noise_floor(dataset)
    ax.set_xscale("log")
    ax.set_yscale("log")
    lowest, highest = np.inf, 0.0
    for index, name in enumerate(names):
        middle, factor = _geometric(dataset.error.sel(approach=name))
        drawn = np.isfinite(middle)
        if not drawn.any():
            continue
        lowest = min(lowest, (middle / factor)[drawn].min())
        highest = max(highest, (middle * factor)[drawn].max())
        bars = [middle - middle / factor, middle * factor - middle]
        # At one width alone points stand beside each other; over several, lines tell them apart.
        aside = 1.12 ** (index - (len(names) - 1) / 2) if len(widths) == 1 else 1.0
        ax.errorbar(
            aside * widths[drawn],
            middle[drawn],
            [bar[drawn] for bar in bars],
            **styles[name],
            capsize=3,
            elinewidth=1.2,
            label=approach_label(name),
            zorder=3,
        )
        power = (GUIDES if guides is None else guides).get(name)
        # A slope is seen where the curve is clear of the noise only.
        clear = drawn if floor is None else drawn & ~(middle < 2 * floor)
        if power is not None and clear.sum() > 1:
            _guide(ax, widths[clear], middle[clear], power, styles[name])
    # A little room on both sides, and some for one width alone.
    room = (widths[-1] / widths[0]) ** 0.06 if len(widths) > 1 else 2.0
    ax.set_xlim(widths[0] / room, widths[-1] * room)
    if floor is not None and np.isfinite(floor).any():
        known = np.isfinite(floor)
        lowest = min(lowest, floor[known].min())
        across = np.concatenate([[widths[known][0] / room], widths[known], [widths[known][-1] * room]])
        level = floor[known][[0, *range(known.sum()), -1]]
        style = {"color": PALETTE["black"], "alpha": 0.12, "linewidth": 0, "label": "Monte-Carlo noise"}
        ax.fill_between(across, 1e-300, level, **style)
    if highest > 0:
        ax.set_ylim(lowest / 2, highest * 2)
    ax.xaxis.set_major_locator(FixedLocator(widths.tolist()))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(widths, [f"{width:g}" for width in widths])
    ax.set_xlabel("width N")
    ax.set_ylabel("relative error")
    if legend and ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize=11, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return ax


def _guide(ax: Axes, widths: np.ndarray, middle: np.ndarray, power: float, style: dict[str, Any]) -> None:
    """A dashed line of the given slope above the later half of a curve."""
    first = min(len(widths) // 2, len(widths) - 2)
    widths, line = widths[first:], _GUIDE_OFFSET * middle[-1] * (widths[first:] / widths[-1]) ** power
    ax.plot(widths, line, color=style["color"], linestyle=(0, (4, 3)), linewidth=1.2, zorder=2)
    middle_of_line = np.sqrt(widths[0] * widths[-1]), np.sqrt(line[0] * line[-1])
    text = f"$N^{{{power:g}}}$".replace("-", "−")
    place = {"xytext": (3, 3), "textcoords": "offset points", "ha": "left", "va": "bottom"}
    ax.annotate(text, middle_of_line, color=style["color"], fontsize=11.5, **place)


def _geometric(values: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Geometric mean over seeds and the factor of one standard deviation, [width]; 0 and nan count as absent."""
    values = values.transpose(..., "width") if "seed" in values.dims else values.expand_dims("seed")
    logs = np.log(np.where(values.values > 0, values.values, np.nan))
    count = np.isfinite(logs).sum(axis=0)
    mean = np.nansum(logs, axis=0) / np.where(count, count, np.nan)
    spread = np.sqrt(np.nansum((logs - mean) ** 2, axis=0) / np.maximum(count - 1, 1))
    return np.exp(mean), np.exp(spread)


def _noise_floor(dataset: xr.Dataset) -> np.ndarray | None:
    """The largest noise of any approach at each width; None where nothing is noisy."""
    if "noise" not in dataset or not (dataset.noise > 0).any():
        return None
    floors = np.stack([_geometric(dataset.noise.sel(approach=name))[0] for name in dataset.approach.values])
    largest = np.max(np.where(np.isfinite(floors), floors, 0.0), axis=0)
    return np.where(largest > 0, largest, np.nan)


def approach_label(name: str) -> str:
    """How an approach is called in legends."""
    return {"gaussian process": "Gaussian process"}.get(name, name)


def _check(dataset: xr.Dataset) -> None:
    if not isinstance(dataset, xr.Dataset) or "error" not in dataset:
        raise fail("dataset", type(dataset).__name__, "an xarray Dataset with the variable 'error'")
    if set(dataset.error.dims) - {"seed"} != {"width", "approach"}:
        expected = "the dimensions width and approach, and perhaps seed"
        raise fail("dataset", f"error with dimensions {dataset.error.dims}", expected)
    if "noise" in dataset and set(dataset.noise.dims) != set(dataset.error.dims):
        raise fail("dataset", f"noise with dimensions {dataset.noise.dims}", f"{dataset.error.dims}, as the error")

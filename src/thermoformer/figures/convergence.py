"""Errors of approximations against the width of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from .._validation import fail
from .display import Axis, Band, Curve, Display, Mark, Text
from .style import PALETTE
from .widths import width_axis

# One look per approach in every figure: colours told apart with any colour vision, markers without colour.
_LOOKS = {
    "gaussian process": (PALETTE["grey"], "D"),
    "saddle": (PALETTE["blue"], "o"),
    "one-loop": (PALETTE["vermilion"], "s"),
    "exact": (PALETTE["green"], "^"),
    "sampled": (PALETTE["black"], "v"),
}
_OTHERS = ((PALETTE["purple"], "P"), (PALETTE["orange"], "X"), (PALETTE["sky"], "*"))
# The orders in 1/N that the theory promises (learning §6).
GUIDES = {"saddle": -1, "one-loop": -2}
# Guide lines run beside their curve, this factor above it, so that neither hides the other.
_GUIDE_OFFSET = 1.9


def approach_looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and marker of each approach; names that the library does not know take colours of their own."""
    others = [name for name in names if name not in _LOOKS]
    looks = _LOOKS | {name: _OTHERS[index % len(_OTHERS)] for index, name in enumerate(others)}
    return {name: dict(zip(("colour", "marker"), looks[name], strict=True)) for name in names}


def convergence(
    dataset: xr.Dataset, ax: Axes | None = None, *, guides: Mapping[str, float] | None = None, legend: bool = True
) -> Axes:
    """Relative error against N on logarithmic axes: geometric mean over seeds, one standard deviation either side.

    Arguments:
        dataset: `error` [width, approach], or [seed, width, approach]. Drawn as well when there: `noise`, of the same
            shape, what Monte-Carlo noise alone would show, as a shaded floor. Entries that are nan are left out.
        guides: by approach, the power of N of a guide line beside its curve; default: −1 for the saddle and −2 for
            one-loop; {} for none.

    Example:
        >>> import xarray as xr
        >>> error = ("width", "approach"), [[0.1, 0.02], [0.01, 0.0002]]
        >>> ax = convergence(xr.Dataset({"error": error}, {"width": [10, 100], "approach": ["saddle", "one-loop"]}))
        >>> ax.get_xlabel(), ax.get_yscale()
        ('width N', 'log')
    """
    _check(dataset)
    names = [str(name) for name in dataset.approach.values]
    looks = approach_looks(names)
    widths = dataset.width.values.astype(float)
    # A little room on both sides, and some for one width alone.
    room = (widths[-1] / widths[0]) ** 0.06 if len(widths) > 1 else 2.0
    floor = _noise_floor(dataset)
    ends: list[float] = []
    marks: list[Mark] = []
    for index, name in enumerate(names):
        middle, factor = (part.values for part in _geometric(dataset.error.sel(approach=name)))
        drawn = np.isfinite(middle)
        if not drawn.any():
            continue
        low, high = (middle / factor)[drawn], (middle * factor)[drawn]
        ends += [low.min(), high.max()]
        # At one width alone points stand beside each other; over several, lines tell them apart.
        aside = 1.12 ** (index - (len(names) - 1) / 2) if len(widths) == 1 else 1.0
        bars = np.stack([middle[drawn] - low, high - middle[drawn]])
        label = approach_label(name)
        marks.append(Curve(aside * widths[drawn], middle[drawn], errors=bars, label=label, order=1, **looks[name]))
        power = (GUIDES if guides is None else guides).get(name)
        # A slope is seen where the curve is clear of the noise only.
        clear = drawn if floor is None else drawn & ~(middle < 2 * floor)
        if power is not None and clear.sum() > 1:
            marks += _guide(widths[clear], middle[clear], power, looks[name]["colour"])
    if floor is not None:
        known = np.isfinite(floor)
        ends.append(floor[known].min())
        across = np.concatenate([[widths[known][0] / room], widths[known], [widths[known][-1] * room]])
        level = floor[known][[0, *range(known.sum()), -1]]
        marks.append(Band(across, 1e-300, level, PALETTE["black"], 0.12, label="Monte-Carlo noise"))
    up = Axis("relative error", (min(ends) / 2, max(ends) * 2) if ends else None, log=True)
    across_axis = width_axis(widths, limits=(widths[0] / room, widths[-1] * room))
    return Display(marks, across_axis, up, "below" if legend else "", columns=2, size=(5.2, 4.2)).plot(ax)


def _guide(widths: np.ndarray, middle: np.ndarray, power: float, colour: str) -> list[Mark]:
    """A dashed line of the given slope above the later half of a curve, with its power of N."""
    first = min(len(widths) // 2, len(widths) - 2)
    widths, line = widths[first:], _GUIDE_OFFSET * middle[-1] * (widths[first:] / widths[-1]) ** power
    place = np.sqrt(widths[0] * widths[-1]), np.sqrt(line[0] * line[-1])
    beside: dict[str, Any] = {"across": "left", "up": "bottom", "shift": (3, 3)}
    text = f"$N^{{{power:g}}}$".replace("-", "−")
    return [Curve(widths, line, colour, line=1.2, dashes=(4, 3)), Text(*place, text, colour, 11.5, **beside)]


def _geometric(values: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Geometric mean over seeds and the factor of one standard deviation; 0 and nan count as absent."""
    several = values if "seed" in values.dims else values.expand_dims("seed")
    logs = xr.ufuncs.log(several.where(several > 0))
    # One seed has no spread.
    return xr.ufuncs.exp(logs.mean("seed")), xr.ufuncs.exp(logs.std("seed", ddof=1).fillna(0.0))


def _noise_floor(dataset: xr.Dataset) -> np.ndarray | None:
    """The largest noise of any approach at each width; None where nothing is noisy."""
    if "noise" not in dataset or not (dataset.noise > 0).any():
        return None
    return _geometric(dataset.noise)[0].max("approach").values


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

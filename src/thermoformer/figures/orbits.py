"""Orbits drawn: over time, in a plane of two features, and by their spectrum and autocorrelation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from .._validation import fail, real_array
from .display import Axis, Band, Curve, Display, Level, Mark
from .style import PALETTE

# Features are told apart by colour, the same one in every figure.
FEATURE_COLOURS = tuple(PALETTE[name] for name in ("blue", "vermilion", "green", "purple", "orange", "sky", "black"))
# Power this far below the largest is rounding.
_FAINTEST_POWER = 1e-14
# An orbit with fewer different points is a cycle: its points are drawn large.
_FEW_POINTS = 300


def overlap_name(feature: int, role: str = "o") -> str:
    """How the overlap with a feature is called on axes; features are counted from 1 there.

    Example:
        >>> overlap_name(0)
        '$m_{o,1}$'
    """
    return f"$m_{{{role},{feature + 1}}}$"


def orbit_series(
    values: Any,
    ax: Axes | None = None,
    *,
    first_step: int = 0,
    legend: bool = True,
    spread: Any = None,
    stacked: bool = False,
) -> Axes:
    """An orbit against the step, one colour per feature.

    Arguments:
        values: m_o [step, feature], or [step] of one feature.
        first_step: number of the first row.
        spread: half the height of a band around each curve, of the shape of `values`, such as
            `2 * Fluctuations.deviation(bits)` for 95 % of the networks of N bits.
        stacked: draw each feature about a zero line of its own, the first on top, with one scale for all.

    Example:
        >>> ax = orbit_series([[0.1, 0.2], [0.3, 0.1]], first_step=100)
        >>> ax.get_xlabel(), ax.lines[0].get_xdata().tolist()
        ('step', [100, 101])
    """
    if stacked:
        return stacked_display(values, first_step=first_step).plot(ax)
    return series_display(values, first_step=first_step, legend=legend, spread=spread).plot(ax)


def stacked_display(values: Any, *, first_step: int = 0) -> Display:
    """Features one below the other; the label of the axis says how far apart their zero lines are."""
    columns = _columns("values", values)
    count = columns.shape[1]
    # A round number in which the largest swing has room.
    swing = 2.1 * float(np.abs(columns).max()) or 1.0
    power = 10.0 ** np.floor(np.log10(swing))
    apart = next(factor * power for factor in (1, 1.5, 2, 3, 5, 7, 10) if factor * power >= swing)
    zeros = -apart * np.arange(count)
    marks: list[Mark] = [Level(zero, PALETTE["grey"], line=0.5, order=-1) for zero in zeros]
    steps, names = first_step + np.arange(len(columns)), [overlap_name(feature) for feature in range(count)]
    axes = Axis("step", margin=0.01), Axis(f"zero lines {apart:g} apart", ticks=zeros, names=names)
    moved = _curves(steps, columns + zeros, axes, False, *marks, names=names, line=1.0, marker=".", size=4.0, order=1)
    return replace(moved, size=(5.8, 0.9 * count + 0.9))


def series_display(
    values: Any, *, first_step: int = 0, legend: bool = True, role: str = "o", spread: Any = None
) -> Display:
    """The picture of `orbit_series`, whose arguments these are; `role` names the overlaps."""
    columns = _columns("values", values)
    steps = first_step + np.arange(len(columns))
    names = [overlap_name(feature, role) for feature in range(columns.shape[1])]
    axes = Axis("step", margin=0.01), Axis(f"$m_{role}$")
    bands: list[Mark] = []
    if spread is not None:
        widths = _columns("spread", spread)
        if widths.shape != columns.shape or widths.min() < 0:
            got = f"shape {widths.shape}, smallest {widths.min():.6g}"
            raise fail("spread", got, f"shape {columns.shape}, as values, and no negative numbers")
        for feature, (middle, half) in enumerate(zip(columns.T, widths.T, strict=True)):
            colour = FEATURE_COLOURS[feature % len(FEATURE_COLOURS)]
            bands.append(Band(steps, middle - half, middle + half, colour, opacity=0.25))
    return _curves(steps, columns, axes, legend, *bands, names=names, line=1.0, marker=".", size=4.0, order=1)


def phase_plane(values: Any, features: tuple[int, int] = (0, 1), ax: Axes | None = None) -> Axes:
    """The points of an orbit in the plane of two features, on one scale.

    Arguments:
        values: m_o [step, feature].
        features: number of the feature across and of the one upwards, from 0.

    Example:
        >>> phase_plane([[0.1, 0.2], [0.3, 0.1]]).get_ylabel()
        '$m_{o,2}$'
    """
    columns = _columns("values", values)
    for number in features:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < columns.shape[1]:
            raise fail("features", features, f"two numbers from 0 to {columns.shape[1] - 1}")
    across, up = features
    ax = plane_display(columns[:, across], columns[:, up], (overlap_name(across), overlap_name(up))).plot(ax)
    # Few enough for names of ticks not to touch in a narrow panel.
    ax.locator_params(nbins=4)
    return ax


def plane_display(across: np.ndarray, up: np.ndarray, names: tuple[str, str]) -> Display:
    """Points in a plane; those of a cycle each once, since many on one place have ragged edges.

    Arguments:
        across, up: [point].
        names: of the axes.
    """
    points = np.unique(np.round(np.stack([across, up]), 8), axis=1)
    few = points.shape[1] < _FEW_POINTS
    look: dict[str, Any] = {"line": 0, "marker": ".", "size": 7.5 if few else 2.0}
    x, y = points if few else (across, up)
    curve = Curve(x, y, PALETTE["blue"], **look)
    return Display((curve,), Axis(names[0]), Axis(names[1]), size=(4.2, 3.8), square=True, about="phase plane")


def power_spectrum_curve(spectrum: xr.DataArray, ax: Axes | None = None, *, legend: bool = True) -> Axes:
    """Power against frequency, the power on a logarithmic axis.

    Arguments:
        spectrum: [frequency] or [frequency, feature], as `thermoformer.dynamics.power_spectrum` gives it.

    Example:
        >>> from thermoformer.dynamics import power_spectrum
        >>> power_spectrum_curve(power_spectrum([0.0, 1.0] * 50)).get_yscale()
        'log'
    """
    return spectrum_display(spectrum, legend=legend).plot(ax)


def spectrum_display(spectrum: xr.DataArray, *, legend: bool = True) -> Display:
    """The picture of `power_spectrum_curve`, whose arguments these are."""
    columns = _along("spectrum", spectrum, "frequency")
    shown = np.where(columns > _FAINTEST_POWER * columns.max(), columns, np.nan)
    axes = Axis("frequency, cycles per step", (0, 0.5)), Axis("power", log=True)
    return _curves(spectrum.frequency.values, shown, axes, legend)


def autocorrelation_curve(correlation: xr.DataArray, ax: Axes | None = None, *, legend: bool = True) -> Axes:
    """Autocorrelation against the lag.

    Arguments:
        correlation: [lag] or [lag, feature], as `thermoformer.dynamics.autocorrelation` gives it.

    Example:
        >>> from thermoformer.dynamics import autocorrelation
        >>> autocorrelation_curve(autocorrelation([0.0, 1.0] * 50, lags=10)).get_xlabel()
        'lag, steps'
    """
    columns = _along("correlation", correlation, "lag")
    axes = Axis("lag, steps", margin=0.01), Axis("autocorrelation", (-1.08, 1.08))
    zero = Level(0, PALETTE["grey"], line=0.8)
    return _curves(correlation.lag.values, columns, axes, legend, zero).plot(ax)


def _curves(
    x: np.ndarray,
    columns: np.ndarray,
    axes: tuple[Axis, Axis],
    legend: bool,
    *behind: Mark,
    names: Sequence[str] = (),
    **look: Any,
) -> Display:
    """One curve per feature [point, feature], with what lies behind them."""
    count = columns.shape[1]
    names = names or [overlap_name(feature) for feature in range(count)]
    marks = [*behind]
    look.setdefault("line", 0.9)
    for feature, (values, name) in enumerate(zip(columns.T, names, strict=True)):
        colour = FEATURE_COLOURS[feature % len(FEATURE_COLOURS)]
        marks.append(Curve(x, values, colour, label=name, **look))
    where = "corner" if legend and 1 < count <= len(FEATURE_COLOURS) else ""
    return Display(marks, *axes, where, columns=count, size=(5.8, 3.3))


def _columns(name: str, values: Any) -> np.ndarray:
    """[step, feature], also from [step]."""
    values = real_array(name, values)
    if values.ndim not in (1, 2) or not len(values):
        raise fail(name, f"shape {values.shape}", "[step] or [step, feature]")
    return values.reshape(len(values), -1)


def _along(name: str, values: xr.DataArray, axis: str) -> np.ndarray:
    """[axis, feature] of an array that has this axis first; nan is allowed and not drawn."""
    if not isinstance(values, xr.DataArray) or values.dims[:1] != (axis,) or values.ndim > 2:
        got = values.dims if isinstance(values, xr.DataArray) else type(values).__name__
        raise fail(name, got, f"a DataArray [{axis}] or [{axis}, feature]")
    return values.values.reshape(len(values), -1)

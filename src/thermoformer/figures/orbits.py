"""Orbits drawn: over time, in a plane of two features, and by their spectrum and autocorrelation."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from .._validation import fail, real_array
from .style import PALETTE, axes_or_new, styled

# Features are told apart by colour, the same one in every figure.
FEATURE_COLOURS = tuple(PALETTE[name] for name in ("blue", "vermilion", "green", "purple", "orange", "sky", "black"))
# Power this far below the largest is rounding.
_FAINTEST_POWER = 1e-14


@styled
def orbit_series(values: Any, ax: Axes | None = None, *, first_step: int = 0, legend: bool = True) -> Axes:
    """An orbit against the step, one colour per feature.

    Arguments:
        values: m_o [step, feature], or [step] of one feature.
        first_step: number of the first row.

    Example:
        >>> ax = orbit_series([[0.1, 0.2], [0.3, 0.1]], first_step=100)
        >>> ax.get_xlabel(), ax.lines[0].get_xdata().tolist()
        ('step', [100, 101])
    """
    columns = _columns("values", values)
    ax = axes_or_new(ax, size=(6.4, 3.2))
    steps = first_step + np.arange(len(columns))
    for feature, series in enumerate(columns.T):
        look = {"linewidth": 1.0, "marker": ".", "markersize": 3.0}
        ax.plot(steps, series, color=_colour(feature), label=_name(feature), **look)
    ax.margins(x=0.01)
    ax.set_xlabel("step")
    ax.set_ylabel("$m_o$")
    return _with_legend(ax, columns, legend)


@styled
def phase_plane(values: Any, features: tuple[int, int] = (0, 1), ax: Axes | None = None) -> Axes:
    """The points of an orbit in the plane of two features.

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
    ax = axes_or_new(ax, size=(4.2, 3.8))
    across, up = (columns[:, number] for number in features)
    # A cycle of few points needs large ones, an attractor of many fine ones.
    size = 60.0 if len(np.unique(np.round(columns, 8), axis=0)) < 300 else 2.0
    ax.scatter(across, up, s=size / 4, color=PALETTE["blue"], linewidths=0, rasterized=True)
    ax.set_xlabel(_name(features[0]))
    ax.set_ylabel(_name(features[1]))
    return ax


@styled
def power_spectrum_curve(spectrum: xr.DataArray, ax: Axes | None = None, *, legend: bool = True) -> Axes:
    """Power against frequency, the power on a logarithmic axis.

    Arguments:
        spectrum: [frequency] or [frequency, feature], as `thermoformer.dynamics.power_spectrum` gives it.

    Example:
        >>> from thermoformer.dynamics import power_spectrum
        >>> power_spectrum_curve(power_spectrum([0.0, 1.0] * 50)).get_yscale()
        'log'
    """
    columns = _along("spectrum", spectrum, "frequency")
    ax = axes_or_new(ax, size=(5.2, 3.4))
    floor = _FAINTEST_POWER * columns.max()
    for feature, power in enumerate(columns.T):
        shown = np.where(power > floor, power, np.nan)
        ax.plot(spectrum.frequency.values, shown, color=_colour(feature), linewidth=0.9, label=_name(feature))
    ax.set_yscale("log")
    ax.set_xlim(0, 0.5)
    ax.set_xlabel("frequency, cycles per step")
    ax.set_ylabel("power")
    return _with_legend(ax, columns, legend)


@styled
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
    ax = axes_or_new(ax, size=(5.2, 3.4))
    ax.axhline(0, color=PALETTE["grey"], linewidth=0.8)
    for feature, values in enumerate(columns.T):
        ax.plot(correlation.lag.values, values, color=_colour(feature), linewidth=0.9, label=_name(feature))
    ax.margins(x=0.01)
    ax.set_ylim(-1.08, 1.08)
    ax.set_xlabel("lag, steps")
    ax.set_ylabel("autocorrelation")
    return _with_legend(ax, columns, legend)


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


def _colour(feature: int) -> str:
    return FEATURE_COLOURS[feature % len(FEATURE_COLOURS)]


def _name(feature: int) -> str:
    return f"$m_{{o,{feature + 1}}}$"


def _with_legend(ax: Axes, columns: np.ndarray, legend: bool) -> Axes:
    if legend and 1 < columns.shape[1] <= len(FEATURE_COLOURS):
        ax.legend(loc="upper right", ncols=columns.shape[1], handlelength=1.0, columnspacing=1.0, borderaxespad=0.1)
    return ax

"""Orbits: kept step by step, or as statistics that do not grow with them; their spectra and correlations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import numpy as np
import scipy.signal
import xarray as xr
from jax import lax
from jaxtyping import Array

from .._validation import (
    fail,
    nonnegative_integer,
    numbers,
    numpy_for,
    pair_of_numbers,
    positive_integer,
    real_array,
    traced,
)
from .lanes import Lanes
from .lyapunov import check_steps
from .maps import as_map
from .meanfield import MeanField, Window
from .plan import Density, Plan, pieces_of, unbounded
from .survey import MOST_AT_ONCE, many_steps, steps_at_once, survey
from .window_lanes import MeanFieldLanes


@dataclass(frozen=True, eq=False)
class Orbit:
    """An orbit of the mean-field map. Row t of overlaps is of token t, the query; row t of A makes token t + 1.

    Fields:
        A: [step, feature].
        m_o: [step, feature], (1−ε) times the overlap of the semantic bits with o; the network reads no more of o.
        m_v, m_q, m_k: [step, feature], or [step, head, feature] with several heads; positions included.
        final_state: the window after the last step.
    """

    A: np.ndarray
    m_o: np.ndarray
    m_v: np.ndarray
    m_q: np.ndarray
    m_k: np.ndarray
    final_state: Window = field(repr=False)

    def to_xarray(self) -> xr.Dataset:
        """The orbit with named axes."""
        variables: dict[str, Any] = {"A": (("step", "feature"), self.A), "m_o": (("step", "feature"), self.m_o)}
        for name in ("m_v", "m_q", "m_k"):
            values = getattr(self, name)
            variables[name] = (("step", "feature") if values.ndim == 2 else ("step", "head", "feature"), values)
        return xr.Dataset(variables, {"feature": np.arange(1, self.A.shape[1] + 1)})


@dataclass(frozen=True, eq=False)
class MapOrbit:
    """An orbit of any other map.

    Fields:
        x: [step, coordinate], the first row one step after the transient.
        final_state: the last row.
    """

    x: np.ndarray
    final_state: np.ndarray = field(repr=False)

    def to_xarray(self) -> xr.Dataset:
        """The orbit with named axes."""
        return xr.Dataset({"x": (("step", "coordinate"), self.x)})


def orbit(model: Any, state: Any, *, steps: int, transient: int = 0) -> Any:
    """The orbit from a state, step by step.

    Works under `jax.jit`, `jax.vmap` and `jax.grad` over parameters and states. An orbit that leaves every bound raises
    no error there.

    Arguments:
        model: a MeanField, a DiscreteMap or a step function of a vector.
        state: model.window(...), model.token(...), or a vector.
        steps: steps that are kept.
        transient: steps before, which are not.

    Returns:
        An `Orbit` of a MeanField, a `MapOrbit` of any other map.

    Example:
        >>> from thermoformer.dynamics import Features
        >>> model = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
        >>> orbit(model, model.token(), steps=100).m_o.shape
        (100, 3)
    """
    check_steps(steps, transient)
    model = as_map(model, state)
    if not isinstance(model, MeanField):
        lanes = model.lanes({}, state)
        lane_state = many_steps(lanes, model.start(lanes, [state]), transient, steps_at_once(model.dimension, 1))
        (rows,), last = _kept(_follow, lanes, lane_state, steps)
        return MapOrbit(rows, model.state(lanes, last, 0))
    rows, skipped = [], 0
    # A window that is still growing, or holds x_0, is not yet of the map.
    model.check(state)
    while skipped + len(rows) < transient + steps and len(state.A) < model.dimension // model.features.features:
        attention, overlaps = model.look(state)
        if skipped < transient:
            skipped += 1
        else:
            rows.append((attention, *(overlaps[role] for role in ("o", "v", "q", "k"))))
        state = model.step(state)
    columns = [numpy_for(column).stack(column) for column in zip(*rows, strict=True)]
    if len(rows) < steps:
        lanes = model.lanes({}, state)
        at_once = steps_at_once(model.dimension, 1)
        lane_state = many_steps(lanes, model.start(lanes, [state]), transient - skipped, at_once)
        fast, last = _kept(_record, lanes, lane_state, steps - len(rows))
        columns = [numpy_for(pair).concatenate(pair) for pair in zip(columns, fast, strict=True)] if columns else fast
        state = model.state(lanes, last, 0)
    if model.features.heads == 1:
        columns = [column[:, 0] if column.ndim == 3 else column for column in columns]
    return Orbit(*columns, final_state=state)


def _kept(follow: Callable[..., Any], lanes: Lanes, state: Any, steps: int) -> tuple[list[np.ndarray], Any]:
    """Columns [step, ...] of the one lane, and the last state; Ctrl-C is heard between pieces."""
    pieces: list[list[np.ndarray]] = []
    for some in pieces_of(steps, MOST_AT_ONCE):
        columns, state = follow(lanes, state, some)
        pieces.append([numbers(column)[..., 0] for column in columns])
        if not traced(pieces[-1]) and not all(np.isfinite(column).all() for column in pieces[-1]):
            raise unbounded()
    return [numpy_for(column).concatenate(column) for column in zip(*pieces, strict=True)], state


@eqx.filter_jit
def _record(lanes: MeanFieldLanes, state: Any, steps: int) -> tuple[tuple[Array, ...], Any]:
    last, rows = lax.scan(lambda state, _: (lanes.step(state), lanes.record(state)), state, None, steps)
    return rows, last


@eqx.filter_jit
def _follow(lanes: Lanes, state: Any, steps: int) -> tuple[tuple[Array], Any]:
    def one(state: Any, _: None) -> tuple[Any, Array]:
        state = lanes.step(state)
        return state, lanes.observe(state)

    last, rows = lax.scan(one, state, None, steps)
    return (rows,), last


def orbit_statistics(
    model: Any,
    state: Any,
    *,
    steps: int,
    transient: int = 0,
    show: int = 0,
    bins: int = 0,
    limits: tuple[float, float] = (-1.0, 1.0),
) -> xr.Dataset:
    """Statistics of an orbit of any length; memory does not grow with the steps.

    Arguments:
        model, state, steps, transient: as in `orbit`.
        show, bins, limits: the observable that is counted in a histogram, its bins (0: none) and their range.

    Returns:
        A Dataset with `average`, `deviation`, `lowest` and `highest` of every observable, and `density`.

    Example:
        >>> found = orbit_statistics(lambda x: 4 * x * (1 - x), 0.3, steps=100_000, transient=10)
        >>> round(float(found.deviation[0]), 2)
        0.35
    """
    check_steps(steps, transient)
    model = as_map(model, state)
    state, used = model.settled(state)
    # What is shown is checked also where nothing is counted.
    counted = density_of(model, show, nonnegative_integer("bins", bins) or 1, limits)
    density = counted if bins else None
    plan = Plan(max(transient - used, 0), steps, density=density, blocks=1, pieces=1)
    found = survey(model, [state], {}, plan).bounded()
    names = ("average", "deviation", "lowest", "highest")
    dataset = xr.Dataset(
        {name: ("observable", getattr(found, name)[0]) for name in names}, {"observable": list(model.observables)}
    )
    if density is not None:
        edges = np.linspace(density.low, density.high, bins + 1)
        dataset = dataset.assign(density=("value", found.density[0])).assign_coords(value=(edges[1:] + edges[:-1]) / 2)
    return dataset.assign_attrs(steps=steps, transient=transient)


def density_of(
    model: Any, show: int, bins: int, limits: tuple[float, float], section: tuple[int, float] | None = None
) -> Density:
    """How an orbit is counted, checked."""
    count = len(model.observables)
    numbers = {"show": show} | ({} if section is None else {"section": section[0]})
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or not 0 <= number < count:
            raise fail(name, repr(number), f"a whole number from 0 to {count - 1}: {', '.join(model.observables)}")
    low, high = pair_of_numbers("limits", limits)
    return Density(positive_integer("bins", bins), low, high, int(show), section)


def power_spectrum(values: Any, *, segment: int | None = None) -> xr.DataArray:
    """Power spectral density by Welch's method: the mean over half-overlapping windowed segments.

    Arguments:
        values: [step] or [step, feature].
        segment: steps per segment; an eighth of all, rounded to a power of two, where absent.

    Returns:
        [frequency] or [frequency, feature]; frequencies in cycles per step, from 0 to 1/2.

    Example:
        >>> wave = np.cos(2 * np.pi * np.arange(4096) / 8)
        >>> float(power_spectrum(wave).idxmax())
        0.125
    """
    values = _series("values", values)
    length = segment or max(2 ** int(np.log2(max(len(values) / 8, 8))), 8)
    if positive_integer("segment", length) > len(values):
        raise fail("segment", segment, f"at most {len(values)}, the number of steps")
    frequency, power = scipy.signal.welch(values, nperseg=int(length), axis=0, detrend="constant")
    axes = ("frequency",) if values.ndim == 1 else ("frequency", "feature")
    attributes = {"long_name": "power spectral density"}
    where = {"frequency": ("frequency", frequency, {"long_name": "frequency", "units": "cycles per step"})}
    return xr.DataArray(power, where, axes, attrs=attributes)


def autocorrelation(values: Any, *, lags: int | None = None) -> xr.DataArray:
    """Correlation of a series with itself some steps later, 1 at lag 0.

    Arguments:
        values: [step] or [step, feature].
        lags: the largest lag; a quarter of the steps where absent.

    Returns:
        [lag] or [lag, feature]; nan for a series that does not move.

    Example:
        >>> float(autocorrelation(np.cos(np.pi * np.arange(1000)), lags=1)[1].round(2))
        -1.0
    """
    values = _series("values", values)
    steps = len(values)
    lags = steps // 4 if lags is None else positive_integer("lags", lags)
    if lags >= steps:
        raise fail("lags", lags, f"less than {steps}, the number of steps")
    centred = values - values.mean(axis=0)
    # Zeros behind the series keep its end from meeting its beginning.
    spectrum = np.abs(np.fft.rfft(centred, 2 * steps, axis=0)) ** 2
    sums = np.fft.irfft(spectrum, axis=0)[: lags + 1]
    pairs = (steps - np.arange(lags + 1)).reshape(-1, *(1,) * (values.ndim - 1))
    covariance = sums / pairs
    moves = np.ptp(values, axis=0) > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.where(moves, covariance / covariance[0], np.nan)
    axes = ("lag",) if values.ndim == 1 else ("lag", "feature")
    where = {"lag": ("lag", np.arange(lags + 1), {"long_name": "lag", "units": "steps"})}
    return xr.DataArray(correlation, where, axes, attrs={"long_name": "autocorrelation"})


def _series(name: str, values: Any) -> np.ndarray:
    values = real_array(name, values)
    if values.ndim not in (1, 2) or len(values) < 8:
        raise fail(name, f"shape {values.shape}", "[step] or [step, feature] with 8 steps or more")
    return values

"""Orbits: kept step by step, or as statistics that do not grow with them; their spectra and correlations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from .._notebook import Result, draw, span
from .._validation import fail, nonnegative_integer, numpy_for, positive_integer, real_array, traced
from . import engine
from .engine import Density, Plan, Tally, check_steps, kept_rows
from .maps import Lanes, Map, as_map
from .meanfield import MeanField, Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class Orbit(Result):
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
        arrays = {name: value for name, value in vars(self).items() if name != "final_state"}
        axes = {2: ("step", "feature"), 3: ("step", "head", "feature")}
        variables = {name: (axes[array.ndim], array) for name, array in arrays.items()}
        return xr.Dataset(variables, {"feature": np.arange(1, self.A.shape[1] + 1)})

    def summary(self) -> dict[str, Any]:
        """Its length, the number of features, and the range of m_o."""
        steps, features = np.shape(self.A)
        return {"steps": steps, "features": features, "m_o": span(self.m_o)}

    def plot(self, ax: Axes | None = None, *, steps: int = 120, **options: Any) -> Axes:
        """Draws the overlaps m_o over the last steps.

        Arguments:
            ax: Axes to draw on; default: a new figure, which notebooks show.
            steps: how many steps, counted from the end.
            options: those of `figures.orbit_series`.

        Example:
            >>> from thermoformer.dynamics import Features
            >>> model = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
            >>> orbit(model, model.token(), steps=100).plot(steps=20).lines[0].get_xdata()[:2].tolist()
            [80, 81]
        """
        first = max(len(self.m_o) - positive_integer("steps", steps), 0)
        return draw("orbit_series", self.m_o[first:], ax=ax, **{"first_step": first, **options})


@dataclass(frozen=True, eq=False, repr=False)
class MapOrbit(Result):
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

    def summary(self) -> dict[str, Any]:
        """Its length, the number of coordinates, and their range."""
        steps, coordinates = np.shape(self.x)
        return {"steps": steps, "coordinates": coordinates, "x": span(self.x)}


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
    state, early = model.settled(state, transient + steps)
    columns = [numpy_for(column).stack(column) for column in zip(*early[transient:], strict=True)]
    if (left := transient + steps - len(early)) > 0:
        lanes, lane_state = _walked(model, state, max(left - steps, 0))
        lane_state, rows = kept_rows(_recorded, lanes, lane_state, min(left, steps))
        if not traced(rows) and not all(np.isfinite(column).all() for column in rows):
            raise engine.unbounded()
        columns = [numpy_for(pair).concatenate(pair) for pair in zip(columns, rows, strict=True)] if columns else rows
        (state,) = lanes.states(lane_state)
    if not isinstance(model, MeanField):
        return MapOrbit(*columns, final_state=state)
    if model.features.heads == 1:
        columns = [column[:, 0] if column.ndim == 3 else column for column in columns]
    return Orbit(*columns, final_state=state)


def iterate(model: Any, state: Any, steps: int) -> Any:
    """The state some steps later; nothing in between is kept.

    Arguments:
        model, state: as in `orbit`.
        steps: zero or more.

    Example:
        >>> iterate(lambda x: x / 2, 1.0, 3).tolist()
        [0.125]
    """
    model, steps = as_map(model, state), nonnegative_integer("steps", steps)
    state, early = model.settled(state, steps)
    if steps == len(early):
        return state
    lanes, lane_state = _walked(model, state, steps - len(early))
    return lanes.states(lane_state)[0]


def _walked(model: Map, state: Any, steps: int) -> tuple[Lanes, Any]:
    """One lane, and its state some steps later."""
    lanes, lane_state = model.in_lanes([state])
    return lanes, engine.walk(lanes, lane_state, steps)[0]


def _recorded(lanes: Lanes, before: Any) -> Any:
    after = lanes.step(before)
    return after, [row[..., 0] for row in lanes.record(before, after)]


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
    # `show` and `limits` are checked also if nothing is counted.
    density = Density.of(model, show, nonnegative_integer("bins", bins) or 1, limits)
    recorders = (Tally(), density) if bins else (Tally(),)
    found = engine.one_orbit(model, state, Plan(transient, steps, None, recorders, blocks=1))
    variables = {name: ("observable", found[name]) for name in engine.STATISTICS}
    where: dict[str, Any] = {"observable": list(model.observables)}
    if bins:
        variables["density"], where["value"] = ("value", found["density"]), density.middles
    return xr.Dataset(variables, where, {"steps": steps, "transient": transient, "engine": str(found["engine"])})


def power_spectrum(values: Any, *, segment: int | None = None) -> xr.DataArray:
    """Power spectral density by Welch's method: the mean over half-overlapping windowed segments.

    Arguments:
        values: [step] or [step, feature].
        segment: steps per segment; by default an eighth of all, rounded to a power of two.

    Returns:
        [frequency] or [frequency, feature]; frequencies in cycles per step, from 0 to 1/2.

    Example:
        >>> wave = np.cos(2 * np.pi * np.arange(4096) / 8)
        >>> float(power_spectrum(wave).idxmax())
        0.125
    """
    values = _series(values)
    length = segment or max(2 ** int(np.log2(max(len(values) / 8, 8))), 8)
    if positive_integer("segment", length) > len(values):
        raise fail("segment", segment, f"at most {len(values)}, the number of steps")
    import scipy.signal  # imported late: slow, and only this function needs it

    frequency, power = scipy.signal.welch(values, nperseg=int(length), axis=0, detrend="constant")
    return _along("frequency", frequency, "cycles per step", power, "power spectral density")


def autocorrelation(values: Any, *, lags: int | None = None) -> xr.DataArray:
    """Correlation of a series with itself some steps later, 1 at lag 0.

    Arguments:
        values: [step] or [step, feature].
        lags: the largest lag; a quarter of the steps by default.

    Returns:
        [lag] or [lag, feature]; nan for a series that does not move.

    Example:
        >>> float(autocorrelation(np.cos(np.pi * np.arange(1000)), lags=1)[1].round(2))
        -1.0
    """
    values = _series(values)
    steps = len(values)
    lags = steps // 4 if lags is None else positive_integer("lags", lags)
    if lags >= steps:
        raise fail("lags", lags, f"less than {steps}, the number of steps")
    # Zeros behind the series keep its end from meeting its beginning.
    spectrum = np.abs(np.fft.rfft(values - values.mean(axis=0), 2 * steps, axis=0)) ** 2
    pairs = (steps - np.arange(lags + 1)).reshape(-1, *(1,) * (values.ndim - 1))
    covariance = np.fft.irfft(spectrum, axis=0)[: lags + 1] / pairs
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.where(np.ptp(values, axis=0) > 0, covariance / covariance[0], np.nan)
    return _along("lag", np.arange(lags + 1), "steps", correlation, "autocorrelation")


def _series(values: Any) -> np.ndarray:
    values = real_array("values", values)
    if values.ndim not in (1, 2) or len(values) < 8:
        raise fail("values", f"shape {values.shape}", "[step] or [step, feature] with 8 steps or more")
    return values


def _along(axis: str, places: np.ndarray, units: str, values: np.ndarray, about: str) -> xr.DataArray:
    where = {axis: (axis, places, {"long_name": axis, "units": units})}
    return xr.DataArray(values, where, (axis, "feature")[: values.ndim], attrs={"long_name": about})

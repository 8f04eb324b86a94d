"""Orbit diagrams and phase diagrams: every point of a grid of parameters in one compiled program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from .._validation import fail, nonnegative_integer, one_of, positive_number, real_array
from .lyapunov import check_steps, exponent_count, mean_and_error, quick_interval
from .maps import Map, as_map, check_names
from .meanfield import Window
from .orbits import density_of
from .plan import Plan, Survey
from .regimes import CHAOS, REGIMES, UNDECIDED, classify, on_torus
from .survey import Report, survey

# Looks at a few points find the range of the shown observable, where none is given.
PILOT_POINTS, PILOT_TRANSIENT, PILOT_STEPS = 128, 1000, 400
FOLLOW = ("start", "up", "down", "both")


def orbit_diagram(
    model: Any,
    state: Any,
    parameter: str,
    values: Any,
    *,
    steps: int = 2_000,
    transient: int = 10_000,
    k: int | None = 2,
    show: int = 0,
    bins: int = 400,
    limits: tuple[float, float] | None = None,
    section: tuple[int, float] | None = None,
    follow: str = "start",
    longest_period: int = 512,
    tolerance: float = 1e-9,
    batch: int | None = None,
    devices: Sequence[Any] | None = None,
    progress: Report | None = None,
) -> xr.Dataset:
    """An orbit (bifurcation) diagram: at each value of a parameter, where the orbit goes and its Lyapunov exponents.

    Arguments:
        model: a MeanField, a DiscreteMap, or a step function step(x, parameter).
        state: where every orbit begins; several Windows make an axis `start`.
        parameter, values: what varies, and its values [value].
        steps, transient: steps that count, and steps before.
        k: leading exponents; 0 for none, all where absent. The usual two are one where the map has one.
        show: number of the observable that is shown: the feature of m_o, or the coordinate.
        bins, limits: of its density; the range is found by a look at some points where absent.
        section: (number, tolerance): a second density, of those points where another observable is that close to 0.
        follow: "start" begins everywhere at the state. "up" and "down" begin where the orbit of the neighbouring value
            ended, in ascending or descending order, and "both" makes an axis `direction`: hysteresis shows.
        longest_period, tolerance: as in `regime`; 0 seeks no returns.
        batch: values at a time; chosen by cache or memory where absent.
        devices: devices that share the work; the first one where absent.
        progress: called as progress(done, total, message).

    Returns:
        A Dataset along the parameter: `density` (and `section_density`) [.., value_of_observable], `exponents`,
        `errors`, `lost`, `regime` (numbers of `REGIMES`), `period`, `average`, `deviation`, `lowest`, `highest`.

    Example:
        >>> found = orbit_diagram(lambda x, r: r * x * (1 - x), 0.3, "r", [3.2, 3.5, 4.0], steps=500, transient=500)
        >>> found.period.values.tolist()
        [2, 4, 0]
    """
    values = _axis(parameter, values)
    one_of("follow", follow, FOLLOW)
    starts = _states(state)
    model = as_map(model, starts[0], {parameter: float(values[0])})
    check_names("parameter", {parameter: 0}, model.parameters)
    _check_ends(model, {parameter: values})
    settled = [model.settled(start)[0] for start in starts]
    plan = _plan(model, steps, transient, k, longest_period, tolerance)
    range_given = _limits(model, settled, {parameter: values}, show) if limits is None else limits
    density = density_of(model, show, bins, range_given, _section(section))
    plan = Plan(**{**vars(plan), "density": density})
    coordinates = {parameter: (parameter, values)}
    if follow == "start":
        points = {parameter: np.tile(values, len(settled))}
        chosen = [state for state in settled for _ in values] if len(settled) > 1 else settled
        given = {"batch": batch, "devices": devices, "progress": progress}
        found = survey(model, chosen, points, plan, **given)
        shape = (len(settled), len(values))
        dataset = _dataset(model, found, plan, shape, ("start", parameter), coordinates)
    else:
        directions = ("up", "down") if follow == "both" else (follow,)
        if len(settled) > 1:
            raise fail("state", f"{len(settled)} starts", "one start where a diagram follows its neighbours")
        dataset = _followed(model, settled[0], parameter, values, plan, directions, progress)
    return _tidy(dataset, model, {"parameter": parameter, "observable": model.observables[show]})


def phase_diagram(
    model: Any,
    state: Any,
    grid: Mapping[str, Any],
    *,
    steps: int = 4_000,
    transient: int = 20_000,
    k: int | None = 2,
    longest_period: int = 512,
    tolerance: float = 1e-9,
    batch: int | None = None,
    devices: Sequence[Any] | None = None,
    progress: Report | None = None,
) -> xr.Dataset:
    """The regime at every point of a grid of parameters.

    Arguments:
        model: a MeanField, a DiscreteMap, or a step function whose parameters are those of the grid.
        state: where every orbit begins; several Windows make an axis `start`.
        grid: values [value] by name of parameter, one or more.
        steps, transient, k, longest_period, tolerance, batch, devices, progress: as in `orbit_diagram`; k at least 1.

    Returns:
        A Dataset on the grid: `regime` (numbers of `REGIMES`), `period`, `exponents`, `errors`, `lost`, and `average`,
        `deviation`, `lowest` and `highest` of the observables.

    Example:
        >>> from thermoformer.dynamics import DiscreteMap
        >>> step = lambda x, r, s: s * r * x * (1 - x)
        >>> found = phase_diagram(DiscreteMap(step, {"r": 3.0, "s": 1.0}), 0.3, {"r": [3.2, 4.0], "s": [0.9, 1.0]})
        >>> [REGIMES[code] for code in found.regime.values.ravel()]
        ['fixed point', 'periodic', 'chaos', 'chaos']
    """
    if not isinstance(grid, Mapping) or not grid:
        raise fail("grid", repr(grid), "values by name of parameter, as in {'beta': [...], 'gamma': [...]}")
    axes = {str(name): _axis(str(name), values) for name, values in grid.items()}
    starts = _states(state)
    model = as_map(model, starts[0], {name: float(values[0]) for name, values in axes.items()})
    check_names("grid", axes, model.parameters)
    _check_ends(model, axes)
    settled = [model.settled(start)[0] for start in starts]
    plan = _plan(model, steps, transient, k, longest_period, tolerance)
    if not plan.exponents:
        raise fail("k", k, "1 or more: regimes need the leading exponent")
    mesh = [part.ravel() for part in np.meshgrid(*axes.values(), indexing="ij")]
    points = {name: np.tile(part, len(settled)) for name, part in zip(axes, mesh, strict=True)}
    count = len(mesh[0])
    chosen = [state for state in settled for _ in range(count)] if len(settled) > 1 else settled
    found = survey(model, chosen, points, plan, batch=batch, devices=devices, progress=progress)
    shape = (len(settled), *(len(values) for values in axes.values()))
    coordinates = {name: (name, values) for name, values in axes.items()}
    dataset = _dataset(model, found, plan, shape, ("start", *axes), coordinates)
    return _tidy(dataset, model, {})


def attractors(
    model: Any,
    states: Sequence[Any],
    *,
    steps: int = 4_000,
    transient: int = 20_000,
    k: int | None = 2,
    longest_period: int = 512,
    tolerance: float = 1e-9,
    progress: Report | None = None,
) -> xr.Dataset:
    """Where several starts of one map end: more than one regime, period or mean is multistability.

    Arguments:
        states: starts, [start]; windows, or vectors.
        steps, transient, k, longest_period, tolerance, progress: as in `orbit_diagram`.

    Returns:
        The variables of `phase_diagram` along `start`.

    Example:
        >>> found = attractors(lambda x: x - 0.1 * (x**3 - x), [-0.4, 0.2, 0.7], steps=200, transient=1000)
        >>> found.average.values.ravel().round(3).tolist()
        [-1.0, 1.0, 1.0]
    """
    if not hasattr(states, "__len__"):
        raise fail("states", type(states).__name__, "a list of starts")
    if len(states) == 0:
        raise fail("states", "nothing", "one start or more")
    model = as_map(model, states[0])
    plan = _plan(model, steps, transient, k, longest_period, tolerance)
    settled = [model.settled(start)[0] for start in states]
    found = survey(model, settled, {}, plan, progress=progress)
    dataset = _dataset(model, found, plan, (len(settled),), ("start",), {})
    return _described(dataset, model, {})


def regime_names(dataset: xr.Dataset) -> xr.DataArray:
    """The regimes of a diagram as words.

    Example:
        >>> found = orbit_diagram(lambda x, r: r * x * (1 - x), 0.3, "r", [3.2, 4.0], steps=500, transient=500)
        >>> regime_names(found).values.tolist()
        ['periodic', 'chaos']
    """
    _check_diagram(dataset)
    return dataset.regime.copy(data=np.array(REGIMES)[dataset.regime.values]).drop_attrs()


def intervals(values: Any, inside: Any) -> list[tuple[float, float]]:
    """First and last value of every run of neighbours inside.

    Arguments:
        values: [value], ascending.
        inside: [value], whether each belongs.

    Example:
        >>> intervals([1.0, 2.0, 3.0, 4.0], [True, True, False, True])
        [(1.0, 2.0), (4.0, 4.0)]
    """
    values, inside = real_array("values", values, ("value",)), np.asarray(inside)
    if (np.diff(values) < 0).any():
        raise fail("values", "numbers that fall", "numbers [value] that rise")
    if inside.dtype != bool or inside.shape != values.shape:
        got = f"{inside.dtype} of shape {inside.shape}"
        raise fail("inside", got, f"True or False for each of the {len(values)} values")
    edges = np.diff(np.concatenate([[False], inside, [False]]).astype(int))
    first, last = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    return [(float(values[low]), float(values[high])) for low, high in zip(first, last, strict=True)]


def chaotic_intervals(dataset: xr.Dataset) -> list[tuple[float, float]]:
    """Where an orbit diagram is chaotic: first and last value of every run of chaotic neighbours."""
    _check_diagram(dataset)
    parameter = dataset.attrs.get("parameter")
    if parameter is None or dataset.regime.dims != (parameter,):
        raise fail("dataset", f"regimes along {dataset.regime.dims}", "an orbit diagram of one start and direction")
    dataset = dataset.sortby(parameter)
    return intervals(dataset[parameter].values, (dataset.regime == CHAOS).values)


def _followed(
    model: Map,
    state: Any,
    parameter: str,
    values: np.ndarray,
    plan: Plan,
    directions: tuple[str, ...],
    progress: Report | None,
) -> xr.Dataset:
    """Each value from where its neighbour ended; the directions run beside each other."""
    order = np.argsort(values, kind="stable")
    orders = [order if direction == "up" else order[::-1] for direction in directions]
    states = [state for _ in directions]
    plan = Plan(**{**vars(plan), "pieces": 1, "blocks": min(plan.blocks, 5)})
    parts: list[list[Survey]] = [[] for _ in directions]
    for step in range(len(values)):
        if progress is not None:
            progress(step, len(values), f"{parameter} = {values[orders[0][step]]:.6g}")
        here = np.array([values[one[step]] for one in orders])
        found = survey(model, states, {parameter: here}, plan, batch=len(directions))
        states = found.finals
        for number, part in enumerate(parts):
            part.append(found.part(slice(number, number + 1)))
    coordinates = {parameter: (parameter, values)}
    rows: list[xr.Dataset] = []
    for part, one in zip(parts, orders, strict=True):
        back = np.argsort(one)
        joined = Survey.joined([part[number] for number in back])
        rows.append(_dataset(model, joined, plan, (len(values),), (parameter,), coordinates))
    return xr.concat(rows, xr.Variable("direction", list(directions)))


def _dataset(
    model: Map, found: Survey, plan: Plan, shape: tuple[int, ...], axes: tuple[str, ...], coordinates: Mapping[str, Any]
) -> xr.Dataset:
    """The survey as a Dataset with these axes."""

    def variable(values: np.ndarray, *more: str) -> tuple[tuple[str, ...], np.ndarray]:
        return (*axes, *more), values.reshape(shape + values.shape[1:])

    names = ("average", "deviation", "lowest", "highest")
    variables = {name: variable(getattr(found, name), "observable") for name in names}
    where: dict[str, Any] = {**coordinates, "observable": list(model.observables)}
    if plan.exponents:
        exponents, errors = mean_and_error(found)
        variables |= {"exponents": variable(exponents, "exponent"), "errors": variable(errors, "exponent")}
        variables |= {"lost": variable(found.lost, "exponent")}
        where["exponent"] = np.arange(1, plan.exponents + 1)
        if plan.longest_period:
            code, _, _ = classify(exponents, errors, found.period, plan.steps, on_torus(found))
            code = np.where(found.finite, code, UNDECIDED)
            variables["regime"] = variable(code.astype(np.int8))
    if plan.longest_period:
        variables["period"] = variable(found.period)
    if plan.density is not None:
        edges = np.linspace(plan.density.low, plan.density.high, plan.density.bins + 1)
        where["value"] = (edges[1:] + edges[:-1]) / 2
        variables["density"] = variable(found.density, "value")
        if plan.density.section is not None:
            variables["section_density"] = variable(found.section, "value")
    attributes = {"steps": plan.steps, "transient": plan.transient}
    return xr.Dataset(variables, where, attributes)


def _tidy(dataset: xr.Dataset, model: Map, attributes: Mapping[str, Any]) -> xr.Dataset:
    """Without an axis of one start."""
    if dataset.sizes.get("start") == 1:
        dataset = dataset.isel(start=0)
    return _described(dataset, model, attributes)


_LONG_NAMES = {
    "exponents": "Lyapunov exponent per step; −inf: lost to rounding; nan: the orbit leaves every bound",
    "errors": "standard error of the exponent, by batch means",
    "lost": "share of steps in which the exponent was lost to rounding",
    "regime": "regime",
    "period": "steps to the exact return; 0: none found",
    "density": "points of the orbit in each bin of the shown observable",
    "section_density": "the same, of points on the section alone",
    "average": "average over the orbit",
    "deviation": "standard deviation over the orbit",
    "lowest": "lowest value on the orbit",
    "highest": "highest value on the orbit",
}


def _described(dataset: xr.Dataset, model: Map, attributes: Mapping[str, Any]) -> xr.Dataset:
    for name, variable in dataset.data_vars.items():
        variable.attrs["long_name"] = _LONG_NAMES[str(name)]
    if "regime" in dataset:
        names = [name.replace(" ", "_") for name in REGIMES]
        flags = {"flag_values": np.arange(len(REGIMES), dtype=np.int8), "flag_meanings": " ".join(names)}
        dataset.regime.attrs.update(flags)
    kept = {f"model_{name}": value for name, value in model.parameters.items() if name not in dataset.coords}
    return dataset.assign_attrs(kept | dict(attributes))


def _plan(model: Map, steps: int, transient: int, k: int | None, longest_period: int, tolerance: float) -> Plan:
    check_steps(steps, transient)
    nonnegative_integer("longest_period", longest_period)
    positive_number("tolerance", tolerance)
    if k is not None:
        nonnegative_integer("k", k)
    # The usual two are asked of maps with one exponent as well.
    count = 0 if k == 0 else exponent_count(None if k == 2 and model.dimension == 1 else k, model.dimension)
    every = quick_interval(count, model.dimension) if count else 1
    blocks = min(20, max(steps // every, 1))
    return Plan(transient, steps, count, every, blocks, longest_period=longest_period, tolerance=float(tolerance))


def _limits(model: Map, states: Sequence[Any], parameters: Mapping[str, np.ndarray], show: int) -> tuple[float, float]:
    """A range that holds the shown observable at some of the points, with a margin."""
    density_of(model, show, 1, (0.0, 1.0))  # checks the number
    (name, values), *_ = parameters.items()
    some = values[np.unique(np.linspace(0, len(values) - 1, PILOT_POINTS).astype(int))]
    found = survey(model, states[:1], {name: some}, Plan(PILOT_TRANSIENT, PILOT_STEPS, blocks=1, pieces=1))
    low, high = float(np.nanmin(found.lowest[:, show])), float(np.nanmax(found.highest[:, show]))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise fail("state", "orbits that leave every bound", "a start from which orbits stay finite, or limits")
    margin = 0.03 * (high - low) or 0.5
    return low - margin, high + margin


def _section(section: Any) -> tuple[int, float] | None:
    if section is None:
        return None
    try:
        number, near = section
    except (TypeError, ValueError) as error:
        raise fail("section", repr(section), "a pair: number of an observable, tolerance") from error
    if not float(real_array("section", near, ())) > 0:
        raise fail("section", repr(section), "a tolerance above 0")
    return number, float(near)


def _axis(name: str, values: Any) -> np.ndarray:
    values = real_array(name, values)
    if values.ndim != 1:
        raise fail(name, f"shape {values.shape}", "values along one axis")
    return values


def _check_ends(model: Map, axes: Mapping[str, np.ndarray]) -> None:
    """Refuses parameters out of the model's bounds, as the model itself does."""
    for name, values in axes.items():
        for end in (values.min(), values.max()):
            model.replace(**{name: float(end)})


def _check_diagram(dataset: Any) -> None:
    if not isinstance(dataset, xr.Dataset) or "regime" not in dataset:
        got = "a Dataset without regimes" if isinstance(dataset, xr.Dataset) else type(dataset).__name__
        raise fail("dataset", got, "a diagram with regimes, as of orbit_diagram or phase_diagram")


def _states(state: Any) -> list[Any]:
    """Several starts are a list of windows; anything else is one start."""
    if isinstance(state, Sequence) and len(state) and all(isinstance(one, Window) for one in state):
        return list(state)
    return [state]

"""Orbit diagrams and phase diagrams: every point of a grid of parameters in one compiled program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from .._notebook import draw
from .._validation import fail, nonnegative_integer, one_of, real_array
from .engine import Density, Plan, Report, Returns, Tally, check_steps, joined, survey, unbounded
from .maps import Map, as_map, check_names
from .meanfield import Window
from .regimes import CHAOS, REGIMES, UNDECIDED, classify
from .tangents import exponents_of

# Looks at a few points find the range of the shown observable, if none is given.
PILOT_POINTS, PILOT_TRANSIENT, PILOT_STEPS = 128, 1000, 400


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
        k: leading exponents; 0 for none, None for all. The default is 1 for a map with one exponent.
        show: number of the observable that is shown: the feature of m_o, or the coordinate.
        bins, limits: of its density; by default the range is found by a short look at some points.
        section: (number, tolerance): a second density, of those points where another observable is that close to 0.
        follow: "start" begins everywhere at the state. "up" and "down" begin where the orbit of the neighbouring value
            ended, in ascending or descending order, and "both" makes an axis `direction`: hysteresis shows.
        longest_period, tolerance: as in `regime`; 0 seeks no returns.
        batch: values at a time; chosen by cache or memory by default.
        devices: devices that share the work; the first one by default.
        progress: called as progress(done, total, message).

    Returns:
        A Dataset along the parameter: `density` (and `section_density`) [.., value_of_observable], `exponents`,
        `errors`, `lost`, `regime` (numbers of `REGIMES`), `period`, `average`, `deviation`, `lowest`, `highest`. The
        attribute `engine` is "kernel" if one GPU kernel took the steps, else "steps".

    Example:
        >>> found = orbit_diagram(lambda x, r: r * x * (1 - x), 0.3, "r", [3.2, 3.5, 4.0], steps=500, transient=500)
        >>> found.period.values.tolist()
        [2, 4, 0]
    """
    one_of("follow", follow, ("start", "up", "down", "both"))
    model, states, axes = _checked(model, state, {parameter: values}, "parameter")
    plan = plan_of(model, steps, transient, k, longest_period, tolerance)
    Density.of(model, show, 1, (0.0, 1.0))  # checks the number before any orbit
    limits = _limits(model, states[0], axes, show) if limits is None else limits
    plan = dataclasses.replace(plan, recorders=(Tally(), Density.of(model, show, bins, limits, section)))
    if follow == "start":
        dataset = _grid(model, states, axes, plan, batch=batch, devices=devices, progress=progress)
    elif len(states) > 1:
        raise fail("state", f"{len(states)} starts", "one start if a diagram follows its neighbours")
    else:
        directions = ("up", "down") if follow == "both" else (follow,)
        dataset = _followed(model, states[0], axes, plan, directions, progress)
    return dataset.assign_attrs(parameter=parameter, observable=model.observables[show])


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
    model, states, axes = _checked(model, state, grid, "grid")
    plan = plan_of(model, steps, transient, k, longest_period, tolerance)
    if plan.exponents is None:
        raise fail("k", k, "1 or more: regimes need the leading exponent")
    return _grid(model, states, axes, plan, batch=batch, devices=devices, progress=progress)


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
    if not hasattr(states, "__len__") or not len(states):
        raise fail("states", "nothing" if hasattr(states, "__len__") else type(states).__name__, "a list of starts")
    model = as_map(model, states[0])
    plan = plan_of(model, steps, transient, k, longest_period, tolerance)
    settled = [model.settled(start)[0] for start in states]
    return _dataset(model, survey(model, settled, plan, progress=progress), plan, {"start": len(settled)}, {})


@xr.register_dataset_accessor("diagram")
class Diagram:
    """What xarray calls an accessor: `found.diagram.plot()` draws a diagram, also one that was read from a file."""

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draws `figures.orbit_diagram_panels`, `figures.hysteresis` or `figures.phase_diagram_image`, as it fits.

        Arguments:
            ax: where to draw, for an orbit diagram a sequence; default: a new figure, which notebooks show.
            options: of the figure.

        Example:
            >>> found = orbit_diagram(lambda x, r: r * x * (1 - x), 0.3, "r", [3.2, 3.5, 4.0], steps=500, transient=500)
            >>> [ax.get_ylabel() for ax in found.diagram.plot()]
            ['x', 'exponents', '']
        """
        _check_diagram(self._dataset)
        orbits = "hysteresis" if "direction" in self._dataset.dims else "orbit_diagram_panels"
        return draw(orbits if "density" in self._dataset else "phase_diagram_image", self._dataset, ax=ax, **options)


def regime_names(dataset: xr.Dataset) -> xr.DataArray:
    """The regimes of a diagram as words.

    Example:
        >>> found = orbit_diagram(lambda x, r: r * x * (1 - x), 0.3, "r", [3.2, 3.5, 4.0], steps=500, transient=500)
        >>> regime_names(found).values.tolist()
        ['periodic', 'periodic', 'chaos']
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
        expected = f"True or False for each of the {len(values)} values"
        raise fail("inside", f"{inside.dtype} of shape {inside.shape}", expected)
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


def _checked(model: Any, state: Any, grid: Mapping[str, Any], argument: str) -> tuple[Map, list[Any], dict[str, Any]]:
    """The map, its settled starts, and the values [value] of every parameter of a grid."""
    axes = axes_of(grid)
    # Several starts are a list of windows; anything else is one start.
    several = isinstance(state, Sequence) and len(state) and all(isinstance(one, Window) for one in state)
    starts = list(state) if several else [state]
    model = as_map(model, starts[0], {name: float(values[0]) for name, values in axes.items()})
    check_axes(model, axes, argument)
    return model, [model.settled(start)[0] for start in starts], axes


def axes_of(grid: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The values [value] of every parameter of a grid."""
    axes = {str(name): real_array(str(name), values) for name, values in grid.items()}
    for name, values in axes.items():
        if values.ndim != 1:
            raise fail(name, f"shape {values.shape}", "values along one axis")
    return axes


def check_axes(model: Map, axes: Mapping[str, np.ndarray], argument: str) -> None:
    """Refuses parameters that a model does not have, or that are out of its bounds."""
    check_names(argument, axes, model.parameters)
    for name, values in axes.items():
        for end in (values.min(), values.max()):
            model.replace(**{name: float(end)})


def plan_of(model: Map, steps: int, transient: int, k: int | None, longest_period: int, tolerance: float) -> Plan:
    """What `orbit_diagram` and its like do at every point, checked."""
    check_steps(steps, transient)
    returns = Returns.of(longest_period, tolerance)
    if k is not None and nonnegative_integer("k", k) == 2 and model.dimension == 1:
        k = 1  # the default is for maps with one exponent as well
    exponents = None if k == 0 else exponents_of(model.dimension, k, quick=True)
    return Plan(transient, steps, exponents, returns=returns)


def _limits(model: Map, state: Any, axes: Mapping[str, np.ndarray], show: int) -> tuple[float, float]:
    """A range that holds the shown observable at some of the points, with a margin."""
    (name, values), *_ = axes.items()
    some = values[np.unique(np.linspace(0, len(values) - 1, PILOT_POINTS).astype(int))]
    found = survey(model, [state], Plan(PILOT_TRANSIENT, PILOT_STEPS, blocks=1), {name: some})
    low, high = float(np.nanmin(found["lowest"][:, show])), float(np.nanmax(found["highest"][:, show]))
    if not np.isfinite([low, high]).all():
        raise unbounded(", or limits")
    margin = 0.03 * (high - low) or 0.5
    return low - margin, high + margin


def _grid(model: Map, states: list[Any], axes: Mapping[str, np.ndarray], plan: Plan, **given: Any) -> xr.Dataset:
    """Every point of a grid from every start; one start makes no axis."""
    mesh = [part.ravel() for part in np.meshgrid(*axes.values(), indexing="ij")]
    points = {name: np.tile(part, len(states)) for name, part in zip(axes, mesh, strict=True)}
    chosen = [state for state in states for _ in mesh[0]] if len(states) > 1 else states
    found = survey(model, chosen, plan, points, **given)
    starts = {"start": len(states)} if len(states) > 1 else {}
    return _dataset(model, found, plan, starts | {name: len(values) for name, values in axes.items()}, axes)


def _followed(
    model: Map, state: Any, axes: Mapping[str, Any], plan: Plan, directions: Sequence[str], progress: Report | None
) -> xr.Dataset:
    """Each value from where its neighbour ended; the directions run beside each other."""
    ((parameter, values),) = axes.items()
    order = np.argsort(values, kind="stable")
    orders = np.stack([order if direction == "up" else order[::-1] for direction in directions])
    plan = dataclasses.replace(plan, blocks=min(plan.blocks, 5))
    states, parts = [state for _ in directions], []
    for step, here in enumerate(values[orders].T):
        if progress is not None:
            progress(step, len(values), f"{parameter} = {here[0]:.6g}")
        parts.append(survey(model, states, plan, {parameter: here}, batch=len(directions)))
        states = parts[-1]["finals"]
    # From [step, direction] to the order of the values in every direction.
    found, rows = joined(parts), np.argsort(orders, axis=1) * len(directions) + np.arange(len(directions))[:, None]
    found = {name: value[rows.ravel()] for name, value in found.items() if name != "finals"}
    dataset = _dataset(model, found, plan, {"direction": len(directions), parameter: len(values)}, axes)
    return dataset.assign_coords(direction=list(directions))


# The axis behind those of the grid, and the long name.
_VARIABLES = {
    "exponents": ("exponent", "Lyapunov exponent per step; −inf: lost to rounding; nan: the orbit leaves every bound"),
    "errors": ("exponent", "standard error of the exponent, by batch means"),
    "lost": ("exponent", "share of steps in which the exponent was lost to rounding"),
    "regime": ("", "regime"),
    "period": ("", "steps to the exact return; 0: none found"),
    "density": ("value", "points of the orbit in each bin of the shown observable"),
    "section_density": ("value", "the same, of points on the section alone"),
    "average": ("observable", "average over the orbit"),
    "deviation": ("observable", "standard deviation over the orbit"),
    "lowest": ("observable", "lowest value on the orbit"),
    "highest": ("observable", "highest value on the orbit"),
}


def _dataset(
    model: Map, found: dict[str, Any], plan: Plan, sizes: Mapping[str, int], coordinates: Mapping[str, Any]
) -> xr.Dataset:
    """The survey as a Dataset with axes of these sizes."""
    values, where = dict(found), {**coordinates, "observable": list(model.observables)}
    if plan.exponents is not None:
        where["exponent"] = np.arange(1, plan.exponents.count + 1)
        if "period" in values:
            values["regime"] = np.where(found["finite"], classify(found, plan.steps)[0], UNDECIDED).astype(np.int8)
    where |= dict(("value", one.middles) for one in plan.recorders if isinstance(one, Density))
    variables = {}
    for name, (axis, words) in _VARIABLES.items():
        if name in values:
            array = values[name].reshape(*sizes.values(), *values[name].shape[1:])
            variables[name] = ([*sizes, axis][: array.ndim], array, {"long_name": words})
    kept = {f"model_{name}": value for name, value in model.parameters.items() if name not in coordinates}
    kept["engine"] = str(found["engine"][0])
    dataset = xr.Dataset(variables, where, {"steps": plan.steps, "transient": plan.transient, **kept})
    if "regime" in dataset:
        meanings = " ".join(name.replace(" ", "_") for name in REGIMES)
        dataset.regime.attrs |= {"flag_values": np.arange(len(REGIMES), dtype=np.int8), "flag_meanings": meanings}
    return dataset


def _check_diagram(dataset: Any) -> None:
    if not isinstance(dataset, xr.Dataset) or "regime" not in dataset:
        got = "a Dataset without regimes" if isinstance(dataset, xr.Dataset) else type(dataset).__name__
        raise fail("dataset", got, "a diagram with regimes, as of orbit_diagram or phase_diagram")

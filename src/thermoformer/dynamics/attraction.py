"""Basins of attraction: which attractor every start ends on, and what share of all starts each attracts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from jax import lax

from .._notebook import Result, draw
from .._validation import fail, real_array
from .diagrams import axes_of, check_axes, plan_of
from .engine import STATISTICS, Plan, Report, kept_rows, survey
from .maps import Lanes, Map, as_map, check_names
from .meanfield import MeanField, Window
from .regimes import FIXED, PERIODIC, REGIMES, classify
from .regimes import UNDECIDED as NO_REGIME

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Numbers of what is no attractor, with their names.
UNDECIDED, UNBOUNDED = -1, -2
OTHERS = {UNDECIDED: "undecided", UNBOUNDED: "unbounded"}
# Points of an orbit that does not return, which others are compared with; no new point of the same orbit is further
# from them than this factor times what the points of its second half are from those of the first.
CLOUD, REACH = 2048, 2.0
# At each value of the parameters as many attractors are told apart: a conservative map has one for every start.
MOST_ATTRACTORS = 256
# Orbits that run beside each other when attractors are told apart.
AT_ONCE = 256


@dataclass(frozen=True, eq=False, repr=False)
class Basins(Result):
    """Which attractor every point of a grid of starts and parameters ends on.

    Fields:
        dataset: `basin` on the grid, the number of the attractor: −1 where nothing is decided, −2 where the orbit
            leaves every bound. Along `attractor`, the largest basin first: `regime`, `period`, `exponent` (the leading
            one), `average`, `deviation`, `lowest` and `highest` of the observables, and the `fraction` of the starts
            with its standard `error`, that of as many random starts; by parameter if parameters vary too.
        states: [attractor], the last state of the first point of each basin.
    """

    dataset: xr.Dataset
    states: tuple[Any, ...] = field(repr=False)

    def to_xarray(self) -> xr.Dataset:
        """The basins as a Dataset."""
        return self.dataset

    def summary(self) -> dict[str, Any]:
        """The number of points, and the attractors with the shares of all points that they attract."""
        found = self.dataset
        shares = [float((found.basin == number).mean()) for number in found.attractor.values]
        return {"points": found.basin.size, "attractors": tuple(attractor_names(found)), "shares": np.array(shares)}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws the basins over one or two axes.

        Arguments:
            ax: Axes to draw on; default: a new figure, which notebooks show.
        """
        return draw("basin_map", self.dataset, ax=ax)


def attractor_names(dataset: xr.Dataset) -> list[str]:
    """Names of the attractors in the Dataset of basins.

    Example:
        >>> attractor_names(basins(lambda x: 3.2 * x * (1 - x), [0.1, 0.7, 1.5], steps=200, transient=500).dataset)
        ['2-cycle', 'unbounded']
    """
    pairs = zip(dataset.regime.values.tolist(), dataset.period.values.tolist(), strict=True)
    return [f"{period}-cycle" if period > 1 else regime for regime, period in pairs]


def basins(
    model: Any,
    starts: Any,
    grid: Mapping[str, Any] | None = None,
    *,
    steps: int = 2_000,
    transient: int = 10_000,
    k: int | None = 1,
    longest_period: int = 512,
    tolerance: float = 1e-9,
    batch: int | None = None,
    devices: Sequence[Any] | None = None,
    progress: Report | None = None,
) -> Basins:
    """The basins of attraction of a map: which attractor every start ends on, at one or at several parameter values.

    Two orbits end on one attractor if the last state of one lies on the other orbit as it goes on: a cycle is the same
    from wherever it is reached, and its mirror image is another. Cycles are compared within 2 · longest_period ·
    tolerance of their extent, other orbits within twice the distance between their points. Across neighbouring
    parameter values, attractors of equal regime and period are one if each is the nearest such to the other.

    Arguments:
        model: a MeanField, a DiscreteMap or a step function of a vector.
        starts: values by name of coordinate, as in {"x": [...], "y": 0.0}; or an array or DataArray of vectors
            [..., coordinate], of windows A [..., token, feature] for a MeanField (newest first), of numbers [...] for a
            map of one number; or a list of Windows.
        grid: values [value] by name of parameter, if parameters vary.
        steps, transient, k, longest_period, tolerance, batch, devices, progress: as in `orbit_diagram`; k at least 1.

    Example:
        >>> found = basins(lambda x: x - 0.1 * (x**3 - x), {"x": [-0.5, 0.0, 0.5, 1.5]}, steps=200, transient=1000)
        >>> found.dataset.basin.values.tolist()
        [1, -1, 0, 0]
        >>> found.dataset.average.values.ravel().round(6).tolist()
        [1.0, -1.0, nan]
    """
    if grid is not None and (not isinstance(grid, Mapping) or not grid):
        raise fail("grid", repr(grid), "values by name of parameter, as in {'beta': [...], 'gamma': [...]}")
    axes = axes_of(grid or {})
    model, first, points, where = _starts(model, starts, {name: float(values[0]) for name, values in axes.items()})
    check_axes(model, axes, "grid")
    if taken := where.keys() & {*axes, "attractor", "observable"}:
        raise fail("starts", f"an axis {min(taken)!r}", "axes with other names than those of the grid and the result")
    plan = plan_of(model, steps, transient, k, longest_period, tolerance)
    for name, value, needed in (("k", k, plan.exponents), ("longest_period", longest_period, plan.returns)):
        if needed is None:
            raise fail(name, value, "1 or more")
    sizes = [len(values) for values in axes.values()]
    cells = math.prod(sizes)
    mesh = np.meshgrid(*axes.values(), indexing="ij")
    parameters = {name: np.tile(values.ravel(), len(points)) for name, values in zip(axes, mesh, strict=True)}
    given = {"coordinates": np.repeat(points, cells, axis=0), "batch": batch, "devices": devices, "progress": progress}
    found = survey(model, [first], plan, parameters, **given)
    found["code"] = np.where(found["finite"], classify(found, plan.steps)[0], NO_REGIME)
    groups, labels = _matched(model, found, plan, parameters, cells)
    kinds, labels = _joined(groups, labels, np.arange(cells).reshape(sizes))
    dataset = _dataset(model, found, kinds, labels, where, axes)
    firsts = [int(np.argmax(labels == number)) for number in range(len(kinds))]
    dataset.attrs = {"steps": steps, "transient": transient, "engine": str(found["engine"][0])}
    return Basins(dataset, tuple(found["finals"][first] for first in firsts))


def _starts(
    model: Any, starts: Any, parameters: Mapping[str, float]
) -> tuple[Map, Any, np.ndarray, dict[str, np.ndarray]]:
    """The map, its first start, the coordinates of all [point, coordinate], and the values of their axes by name."""
    if isinstance(starts, Mapping):
        given = {str(name): real_array(f"starts[{name!r}]", values) for name, values in starts.items()}
        model = as_map(model, np.zeros(max(len(given), 1)), parameters)
        names = () if isinstance(model, MeanField) else model.observables
        check_names("starts", given, dict.fromkeys(names))
        for name in names:
            if name not in given or given[name].ndim > 1:
                got = f"shape {given[name].shape}" if name in given else "nothing"
                raise fail(f"starts[{name!r}]", got, "a number, or values along one axis")
        mesh = np.meshgrid(*(given[name] for name in names), indexing="ij")
        where = {name: given[name] for name in names if given[name].ndim}
        rows = np.stack([values.ravel() for values in mesh], axis=1)
        return model, rows[0], rows, where
    several = [starts] if isinstance(starts, Window) else starts
    if isinstance(several, Sequence) and len(several) and all(isinstance(one, Window) for one in several):
        model = as_map(model, several[0])
        where = {"start": np.arange(len(several))} if several is starts else {}
        windows = [model.settled(one)[0] for one in several]
        model.in_lanes(windows)  # refuses different positions
        return model, windows[0], np.stack([model.coordinates(window) for window in windows]), where
    array = real_array("starts", starts)
    model = as_map(model, array.reshape(-1, *array.shape[-1:] if array.ndim > 1 else (1,))[0], parameters)
    of_vectors = (model.dimension,) if model.dimension > 1 else ()
    shape = (model.context, model.features.count) if isinstance(model, MeanField) else of_vectors
    outer = array.ndim - len(shape)
    if outer < 0 or array.shape[outer:] != shape:
        raise fail("starts", f"shape {array.shape}", f"[..., {', '.join(map(str, shape))}]: axes, and one start")
    names = list(starts.dims) if isinstance(starts, xr.DataArray) else [f"start_{axis}" for axis in range(outer)]
    names = ["start"] if names == ["start_0"] else names
    where = {str(name): np.arange(size) for name, size in zip(names[:outer], array.shape, strict=False)}
    if isinstance(starts, xr.DataArray):
        where |= {name: starts[name].values for name in where if name in starts.coords}
    rows = array.reshape(-1, *(shape or (1,)))
    if isinstance(model, MeanField):  # the oldest token is the first coordinate, and the last of a window
        return model, model.window(rows[0]), rows[:, ::-1].reshape(len(rows), -1), where
    return model, rows[0], rows, where


@dataclass(eq=False)
class _Group:
    """Points of one cell, all of the same parameters, that end on one attractor.

    Fields:
        cell: of the grid of parameters.
        returns: whether its orbits return.
        points: [point, coordinate], on the attractor.
        reach: how far others on it may be from these.
        kind: regime and period.
    """

    cell: int
    returns: bool
    points: np.ndarray
    reach: float = 0.0
    kind: tuple[int, int] = (NO_REGIME, 0)

    @cached_property
    def tree(self) -> Any:
        """For searches of neighbours."""
        return _tree(self.points)

    def near(self, points: np.ndarray) -> np.ndarray:
        """Which points [point] are on the attractor."""
        return self.tree.query(points, p=np.inf)[0] <= self.reach

    def distance(self, other: _Group) -> float:
        """The mean distance of the points of each from the other."""
        return float(self.tree.query(other.points)[0].mean() + other.tree.query(self.points)[0].mean())


def _tree(points: np.ndarray) -> Any:
    from scipy.spatial import KDTree  # imported late: slow, and only basins need it

    return KDTree(points)


def _matched(
    model: Map, found: dict[str, Any], plan: Plan, parameters: Mapping[str, np.ndarray], cells: int
) -> tuple[list[_Group], np.ndarray]:
    """The attractors of all cells, and their numbers [point]; points of one cell are `cells` apart."""
    codes, finals, points = found["code"], found["finals"], len(found["code"])
    ends = finals.coordinates
    labels = np.where(found["finite"], UNDECIDED, UNBOUNDED)
    # Cycles lead, then what is known not to return. What has no regime may join, but does not lead.
    rank = np.where(np.isin(codes, (FIXED, PERIODIC)), 0, np.where(codes == NO_REGIME, 2, 1))
    assert plan.returns is not None
    # Two orbits on a cycle that return within the tolerance, and come closer: each may be half this far from it.
    closeness = 2 * plan.returns.longest_period * float(plan.returns.tolerance)
    groups: list[_Group] = []
    of_cell = defaultdict[int, list[int]](list)
    for _ in range(MOST_ATTRACTORS):
        order = np.where((labels == UNDECIDED) & (rank < 2), rank * points + np.arange(points), 2 * points)
        first = order.reshape(-1, cells).argmin(axis=0) * cells + np.arange(cells)
        leaders = first[order[first] < 2 * points]
        for some in np.split(leaders, range(AT_ONCE, len(leaders), AT_ONCE)) if len(leaders) else ():
            lanes = np.resize(some, min(AT_ONCE, cells))  # one program for any number of leaders
            given = {name: values[lanes] for name, values in parameters.items()}
            orbits = _orbits(model, finals[some[0]], ends[lanes], given, found["period"][lanes] * (rank[lanes] < 1))
            for leader, orbit in zip(some, orbits, strict=False):
                if not np.isfinite(orbit).all():
                    labels[leader] = UNBOUNDED
                    continue
                cell, returned = int(leader % cells), bool(rank[leader] < 1)
                number = _group_of(groups, of_cell[cell], cell, orbit, closeness if returned else None)
                free = np.arange(cell, points, cells)
                free = free[labels[free] == UNDECIDED]
                labels[[leader, *free[groups[number].near(ends[free])]]] = number
        if not len(leaders):
            break
    for number, group in enumerate(groups):
        members = labels == number
        period = int(found["period"][members & (rank == 0)].min()) if group.returns else 0
        often = np.bincount(codes[members & (rank == 1)]).argmax() if not group.returns else 0
        group.kind = (FIXED if period == 1 else PERIODIC if period else int(often)), period
    return groups, labels


def _group_of(groups: list[_Group], known: list[int], cell: int, orbit: np.ndarray, closeness: float | None) -> int:
    """The number of the attractor that an orbit [step, coordinate] is on: a known one of its cell, or a new one.

    `closeness` is the reach of a cycle as a share of its extent, None for an orbit that does not return.
    """
    if closeness is not None:
        extent = float(np.ptp(orbit, axis=0).max()) or 1.0  # that of a point is 1, as in the search for returns
        group = _Group(cell, True, orbit, closeness * extent)
    else:
        for number in known:
            if not groups[number].returns and groups[number].near(orbit).mean() > 0.5:
                one = groups[number]
                groups[number] = replace(one, points=np.concatenate([one.points, orbit]))
                return number
        first, second = np.split(orbit, 2)
        group = _Group(cell, False, orbit, REACH * float(_tree(first).query(second, p=np.inf)[0].max()))
    known.append(len(groups))
    groups.append(group)
    return known[-1]


def _orbits(
    model: Map, state: Any, coordinates: np.ndarray, parameters: Mapping[str, np.ndarray], periods: np.ndarray
) -> list[Any]:
    """Points [point, coordinate] of orbits, all at the positions of a state: a period of them, a cloud where it is 0.

    The orbits start from coordinates [orbit, coordinate].
    """
    lanes, _ = model.in_lanes([state], parameters, count=len(coordinates))
    state = lanes.at(np.ascontiguousarray(coordinates.T))
    counts = np.where(periods > 0, periods // np.gcd(periods, lanes.phases), CLOUD)
    _, (rows,) = kept_rows(_round, lanes, state, int(counts.max()))
    return [rows[:count, :, lane] for lane, count in enumerate(counts)]


def _round(lanes: Lanes, state: Any) -> tuple[Any, tuple[Any]]:
    """The state when its positions are back, and its coordinates."""
    state = lax.fori_loop(0, lanes.phases, lambda _, state: lanes.step(state), state)
    return state, (lanes.coordinates(state),)


def _joined(groups: list[_Group], labels: np.ndarray, grid: np.ndarray) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Regime and period of the attractors of a grid of cells, the largest basin first, and their numbers [point]."""
    from scipy.sparse import coo_array  # imported late: slow
    from scipy.sparse.csgraph import connected_components

    of_kind = defaultdict[tuple[int, tuple[int, int]], list[int]](list)
    for number, group in enumerate(groups):
        of_kind[group.cell, group.kind].append(number)
    links = []
    for axis, size in enumerate(grid.shape):
        here, there = (grid.take(range(first, size - 1 + first), axis).ravel() for first in (0, 1))
        after = dict(zip(here.tolist(), there.tolist(), strict=True))
        for (cell, kind), some in of_kind.copy().items():
            if others := of_kind.get((after.get(cell, -1), kind)):
                pairs = [[(one, other) for other in others] for one in some]
                links += pairs[0] if len(some) == len(others) == 1 else _nearest(groups, pairs)
    ends = np.array(links, int).reshape(-1, 2).T
    _, parts = connected_components(coo_array((np.ones(len(links)), tuple(ends)), (len(groups),) * 2), directed=False)
    sizes = np.bincount(parts[labels[labels >= 0]])
    place = np.argsort(np.argsort(-sizes, kind="stable"))[parts]
    kinds = dict(zip(place.tolist(), (group.kind for group in groups), strict=True))
    return [kinds[number] for number in sorted(kinds)], np.append(place, [UNBOUNDED, UNDECIDED])[labels]


def _nearest(groups: list[_Group], pairs: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Those of the pairs [one, other] of attractors in which each is the nearest to the other."""
    apart = np.array([[groups[one].distance(groups[other]) for one, other in row] for row in pairs])
    nearest = [(row, int(column)) for row, column in enumerate(apart.argmin(axis=1))]
    return [pairs[row][column] for row, column in nearest if apart[:, column].argmin() == row]


def _dataset(
    model: Map,
    found: dict[str, Any],
    kinds: list[tuple[int, int]],
    labels: np.ndarray,
    where: Mapping[str, np.ndarray],
    axes: Mapping[str, np.ndarray],
) -> xr.Dataset:
    """The basins as a Dataset."""
    names = [REGIMES[code] for code, _ in kinds], {number: name for number, name in OTHERS.items() if number in labels}
    numbers = [*range(len(kinds)), *names[1]]
    periods = [period for _, period in kinds] + [0] * len(names[1])
    variables: dict[str, Any] = {"regime": [*names[0], *names[1].values()], "period": periods}
    variables = {name: ("attractor", values, {"long_name": name}) for name, values in variables.items()}
    # Over all points that end there.
    measured = {name: (found[name], np.mean) for name in STATISTICS} | {"exponent": (found["exponents"][:, 0], np.mean)}
    measured |= {"lowest": (found["lowest"], np.min), "highest": (found["highest"], np.max)}
    for name, (values, reduce) in measured.items():
        rows = np.full((len(numbers), *values.shape[1:]), np.nan)
        for number in range(len(kinds)):
            rows[number] = reduce(values[labels == number], axis=0)
        variables[name] = (("attractor", "observable")[: rows.ndim], rows)
    table = labels.reshape([len(values) for values in (*where.values(), *axes.values())])
    meaning = "number of the attractor; −1: nothing is decided, −2: the orbit leaves every bound"
    variables["basin"] = ([*where, *axes], table, {"long_name": meaning})
    over = tuple(range(len(where))) or tuple(range(table.ndim))  # of one start the share of the parameters
    total = math.prod(table.shape[axis] for axis in over)
    counts = np.stack([(table == number).sum(axis=over) for number in numbers])
    # Spread of the fraction given the count, by Jeffreys' prior: it is not 0 where all or none end there.
    errors = np.sqrt((counts + 0.5) * (total - counts + 0.5) / (total + 2)) / (total + 1)
    for name, values in (("fraction", counts / total), ("error", errors)):
        variables[name] = (("attractor", *axes)[: counts.ndim], values)
    return xr.Dataset(variables, {**where, **axes, "attractor": numbers, "observable": list(model.observables)})

"""Many parameter sets and starts at once: the engine of statistics, spectra, regimes and diagrams.

Points are laid out in batches of lanes. All batches have one shape, so there is one compiled program for the whole
grid, and the number of steps is an argument of it. Nothing grows with the number of steps: recorders add up what they
see. A new statistic is one more `Recorder`.
"""

from __future__ import annotations

import abc
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from .. import _validation as check
from .._validation import fail, numbers, numpy_for, traced
from .kernel import Kernel, mode_on
from .maps import Lanes, Map
from .scalars import UnsupportedError
from .tangents import UNROLLED, Exponents, orthonormalise

# Bytes of one batch, tangent vectors and densities included: on a CPU what stays in a core's cache.
CPU_BATCH_BYTES, ACCELERATOR_BATCH_BYTES = 2**18, 2**32
MOST_LANES, LANE_MULTIPLE = 2**17, 8
# Ctrl-C is heard between compiled calls. This many numbers take a CPU a second at most; an accelerator, which mostly
# starts kernels, gets the fewest steps at once.
NUMBERS_AT_ONCE, FEWEST_AT_ONCE, MOST_AT_ONCE = 2**26, 2**12, 2**19
# The transient is cut into pieces of this many steps, or into a few longer ones.
PIECE, MOST_PIECES = 10_000, 10
# Tangent vectors align for this share of the counted steps before averaging, and for this many steps at most.
ALIGNMENT_SHARE, LONGEST_ALIGNMENT = 0.1, 1000
# Motion of less than this share of the largest coordinate may be rounding, which a cycle amplifies.
RESOLUTION = 4096 * np.finfo(np.float64).eps
# A return is confirmed over this many periods, or over as many steps as the search if that is longer.
CONFIRMED_PERIODS = 4

STATISTICS = ("average", "deviation", "lowest", "highest")

Report = Callable[[int, int, str], None]
Sums = dict[str, Any]


class Recorder(eqx.Module):
    """A statistic of orbits in lanes: sums [..., lane] begin empty, take every step, and become numbers at the end."""

    bins = 0  # numbers that are kept for every lane, if they are many

    @abc.abstractmethod
    def init(self, lanes: Lanes, state: Any) -> Sums:
        """The sums before the first step."""

    @abc.abstractmethod
    def update(self, sums: Sums, lanes: Lanes, before: Any, after: Any) -> Sums:
        """The sums with one more step of the orbits, inside the compiled loop."""

    def result(self, sums: Sums, steps: int, early: Sums, early_steps: int) -> dict[str, np.ndarray]:
        """Numbers by name, [lane, ...], from the sums over all steps and over the first half of the blocks."""
        return {}


class Tally(Recorder):
    """`average`, `deviation`, `lowest` and `highest` of every observable [lane, observable], and `drift` [lane].

    The drift is the difference of the root-mean-square changes in the two halves of the steps, over their mean: whether
    the orbit still changes its width. It is nan for one block.
    """

    def init(self, lanes: Lanes, state: Any) -> Sums:
        """Nothing is counted yet."""
        first = lanes.observe(state)  # deviations are summed from here, which loses fewer digits
        zeros, infinite = jnp.zeros_like(first), jnp.full_like(first, jnp.inf)
        moments = {"origin": first, "total": zeros, "squares": zeros, "changes": zeros[0]}
        return moments | {"lowest": infinite, "highest": -infinite}

    def update(self, sums: Sums, lanes: Lanes, before: Any, after: Any) -> Sums:
        """One more point of the orbit, and its distance to the next."""
        values = lanes.observe(before)
        offset = values - sums["origin"]
        return sums | {
            "total": sums["total"] + offset,
            "squares": sums["squares"] + offset**2,
            "lowest": jnp.minimum(sums["lowest"], values),
            "highest": jnp.maximum(sums["highest"], values),
            "changes": sums["changes"] + lanes.change(before, after),
        }

    def result(self, sums: Sums, steps: int, early: Sums, early_steps: int) -> dict[str, np.ndarray]:
        """See the class."""
        xp, mean = numpy_for(sums), sums["total"] / steps
        with np.errstate(invalid="ignore", over="ignore"):  # orbits that leave every bound
            deviation = xp.sqrt(xp.maximum(sums["squares"] / steps - mean**2, 0.0))
            first = xp.sqrt(early["changes"] / max(early_steps, 1))
            second = xp.sqrt((sums["changes"] - early["changes"]) / max(steps - early_steps, 1))
            both = first + second
            drift = xp.where(both > 0, 2 * abs(first - second) / xp.where(both > 0, both, 1.0), 0.0)
            found = {"average": sums["origin"] + mean, "deviation": deviation, **sums}
        drift = drift if early_steps else xp.full_like(drift, np.nan)
        return {name: found[name].T for name in STATISTICS} | {"drift": drift}


class Density(Recorder):
    """`density` [lane, bin], a histogram of one observable; what falls outside the range is not counted.

    `section_density` counts only points where the observable `section` is closer to 0 than `near`.
    """

    bins: int = eqx.field(static=True)
    low: np.float64 = eqx.field(converter=np.float64)  # an argument of the compiled program
    high: np.float64 = eqx.field(converter=np.float64)
    shown: int = eqx.field(static=True)
    section: int | None = eqx.field(default=None, static=True)
    near: np.float64 = eqx.field(default=0.0, converter=np.float64)

    @classmethod
    def of(cls, model: Map, show: Any, bins: Any, limits: Any, section: Any = None) -> Density:
        """The histogram of an observable of a map, checked; a section is a pair of another observable and `near`."""
        pair = () if section is None else tuple(section) if np.iterable(section) else (section,)
        if section is not None and (len(pair) != 2 or not float(check.real_array("section", pair[1], ())) > 0):
            raise fail("section", repr(section), "a pair: number of an observable, tolerance above 0")
        for name, number in zip(("show", "section"), (show, *pair[:1]), strict=False):
            whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
            if not whole or not 0 <= number < len(model.observables):
                expected = f"a whole number from 0 to {len(model.observables) - 1}: {', '.join(model.observables)}"
                raise fail(name, repr(number), expected)
        return cls(check.positive_integer("bins", bins), *check.pair_of_numbers("limits", limits), int(show), *pair)

    @property
    def middles(self) -> np.ndarray:
        """Middles of the bins, [bin]."""
        edges = np.linspace(float(self.low), float(self.high), self.bins + 1)
        return (edges[1:] + edges[:-1]) / 2

    def init(self, lanes: Lanes, state: Any) -> Sums:
        """Empty bins."""
        names = ("density", "section_density")[: 1 if self.section is None else 2]
        return dict.fromkeys(names, jnp.zeros((self.bins, lanes.observe(state).shape[1]), jnp.int32))

    def places(self, lanes: Lanes, before: Any) -> dict[str, Array]:
        """The bins [lane] of one more point of the orbit; a point that is not counted has the number of bins."""
        values = lanes.observe(before)
        place = jnp.floor((values[self.shown] - self.low) / ((self.high - self.low) / self.bins))
        # Out of range is out of bounds, and dropped.
        index = jnp.where((place >= 0) & (place < self.bins), place, self.bins).astype(jnp.int32)
        found = {"density": index}
        if self.section is not None:
            found["section_density"] = jnp.where(jnp.abs(values[self.section]) < self.near, index, self.bins)
        return found

    def update(self, sums: Sums, lanes: Lanes, before: Any, after: Any) -> Sums:
        """One more point of the orbit."""
        found = self.places(lanes, before)
        return {name: sums[name].at[index, jnp.arange(len(index))].add(1, mode="drop") for name, index in found.items()}

    def result(self, sums: Sums, steps: int, early: Sums, early_steps: int) -> dict[str, np.ndarray]:
        """See the class."""
        return {name: counts.T for name, counts in sums.items()}


class Returns(Recorder):
    """A search for the first return of every orbit after the counted steps, confirmed on the steps after the search.

    The state returns within `tolerance` times the extent of the orbit so far or, on an orbit that shrinks to a point,
    within `tolerance` itself. This is confirmed if the orbit then rests within rounding, or if the distance between
    returns halves: `period` [lane] counts the steps to such a return, `unconfirmed` to another, 0 for none. `nearness`
    is the smallest p times the distance after p steps, over the largest distance: about 1 or a tenth if an orbit winds
    around a torus, near 0 if it closes slowly. `nearest` is that p. To confirm, `candidate` [lane] is the period and
    `middle` half of the steps.
    """

    longest_period: int = eqx.field(static=True)
    tolerance: np.float64 = eqx.field(converter=np.float64)
    candidate: Any = None
    middle: Any = None

    @classmethod
    def of(cls, longest_period: Any, tolerance: Any) -> Returns | None:
        """The search up to a period, checked; none for 0."""
        longest_period = check.nonnegative_integer("longest_period", longest_period)
        tolerance = check.positive_number("tolerance", tolerance)
        return cls(longest_period, tolerance) if longest_period else None

    def find(self, lanes: Lanes, state: Any, walk: Callable[..., Any]) -> dict[str, np.ndarray]:
        """The numbers; `walk(state, steps, recorders, sums)` is the loop of the batch."""

        # The search and the confirmation, and those of other periods, share one compiled program.
        def follow(state: Any, candidate: np.ndarray, steps: int) -> Any:
            one = Returns(0, self.tolerance, candidate, np.int64(steps // 2))
            state, (sums,), *_ = walk(state, steps, (one,), _begin(lanes, state, (one,)))
            return state, jax.device_get(sums)

        never = np.full(jax.tree.leaves(state)[0].shape[-1], np.iinfo(np.int64).max)
        state, search = follow(state, never, self.longest_period)
        candidate = np.where(search["period"] > 0, search["period"], search["shrunk"])
        confirmed = np.zeros(len(candidate), bool)
        if candidate.any():
            steps = max(self.longest_period, CONFIRMED_PERIODS * int(candidate.max()))
            _, gaps = follow(state, np.where(candidate > 0, candidate, never), steps)
            rests = gaps["moved"] <= RESOLUTION * gaps["size"]
            confirmed = (candidate > 0) & (rests | (gaps["late"] <= gaps["early"] / 2))
        farthest = search["farthest"]
        with np.errstate(invalid="ignore"):  # orbits that leave every bound
            nearness = np.where(farthest > 0, search["nearness"] / np.where(farthest > 0, farthest, 1.0), 0.0)
        period, unconfirmed = np.where(confirmed, candidate, 0), np.where(confirmed, 0, candidate)
        return {"period": period, "unconfirmed": unconfirmed, "nearness": nearness, "nearest": search["nearest"]}

    def init(self, lanes: Lanes, state: Any) -> Sums:
        """Distances are from this state."""
        home = lanes.coordinates(state)
        zeros, none = jnp.zeros(home.shape[1]), jnp.zeros(home.shape[1], jnp.int64)
        sums = {"steps": jnp.zeros((), jnp.int64), "home": home, "before": home, "size": _largest(home)}
        sums |= dict.fromkeys(("extent", "farthest", "moved", "early", "late"), zeros) | {"nearness": zeros + jnp.inf}
        return sums | dict.fromkeys(("period", "shrunk", "nearest"), none)

    def update(self, sums: Sums, lanes: Lanes, before: Any, after: Any) -> Sums:
        """One more step of the search and of the confirmation."""
        here, steps = lanes.coordinates(after), sums["steps"] + 1
        distance, counts = _largest(here - sums["home"]), lax.rem(steps, lanes.phases) == 0
        size = jnp.maximum(sums["size"], _largest(here))
        back = distance <= jnp.maximum(self.tolerance * sums["extent"], RESOLUTION * size)
        nearer = counts & (steps * distance < sums["nearness"])
        now = lax.rem(jnp.full_like(self.candidate, steps), self.candidate) == 0
        gap = jnp.where(now, _largest(here - sums["before"]), 0.0)
        return sums | {
            "steps": steps,
            "size": size,
            # The search.
            "extent": jnp.maximum(sums["extent"], distance),
            "period": jnp.where(counts & back & (sums["period"] == 0), steps, sums["period"]),
            "shrunk": jnp.where(counts & (distance < self.tolerance) & (sums["shrunk"] == 0), steps, sums["shrunk"]),
            "nearness": jnp.where(nearer, steps * distance, sums["nearness"]),
            "nearest": jnp.where(nearer, steps, sums["nearest"]),
            "farthest": jnp.where(counts, jnp.maximum(sums["farthest"], distance), sums["farthest"]),
            # The confirmation: the largest distance from the first return, and between returns in each half.
            "before": jnp.where(now[None], here, sums["before"]),
            "moved": jnp.where(now, jnp.maximum(sums["moved"], distance), sums["moved"]),
            "early": jnp.where(steps <= self.middle, jnp.maximum(sums["early"], gap), sums["early"]),
            "late": jnp.where(steps <= self.middle, sums["late"], jnp.maximum(sums["late"], gap)),
        }


def _largest(coordinates: Array) -> Array:
    return jnp.max(jnp.abs(coordinates), axis=0)


@dataclass(frozen=True)
class Plan:
    """What is done at every point."""

    transient: int  # steps before anything is counted
    steps: int  # steps that are counted; with exponents, whole intervals between orthonormalisations
    exponents: Exponents | None = None
    recorders: tuple[Recorder, ...] = (Tally(),)
    returns: Returns | None = None  # the search for returns after the last step
    blocks: int = 20  # of counted steps, or one for each of fewer; their scatter gives the error of exponents

    def __post_init__(self) -> None:
        most = max(self.steps // (1 if self.exponents is None else self.exponents.every), min(self.steps, 1))
        object.__setattr__(self, "blocks", min(self.blocks, most))

    @property
    def pieces(self) -> int:
        """Parts of the transient; progress moves and Ctrl-C is heard between them."""
        return min(1 + self.transient // PIECE, MOST_PIECES)


def check_steps(steps: Any, transient: Any) -> None:
    """Refuses less than one counted step, and a negative transient."""
    check.positive_integer("steps", steps)
    check.nonnegative_integer("transient", transient)


def survey(
    model: Map,
    states: Sequence[Any],
    plan: Plan,
    parameters: Mapping[str, np.ndarray] | None = None,
    *,
    coordinates: np.ndarray | None = None,
    batch: int | None = None,
    devices: Sequence[Any] | None = None,
    progress: Report | None = None,
) -> dict[str, Any]:
    """Runs a plan at every point, with one settled state per point or one for all, and parameters [point] by name.

    With `coordinates` [point, coordinate] points start there, at the positions of the one state. The result has the
    numbers of the recorders, exponents and returns by name, [point, ...]; `finite`, whether the orbit stayed within
    bounds, [point]; `engine`, "kernel" or "steps", [point]; and `finals`, with the state after the last counted step of
    every point.
    """
    parameters = parameters or {}
    given = [states, *parameters.values(), *([] if coordinates is None else [coordinates])]
    points = max(map(len, given))
    expected = "one or more devices, as in jax.local_devices()"
    devices = jax.local_devices()[:1] if devices is None else devices
    if not isinstance(devices, Sequence) or not devices or not all(isinstance(one, jax.Device) for one in devices):
        raise fail("devices", repr(devices), expected)
    usual = usual_batch(model, plan, points, devices[0].platform)
    size = usual if batch is None else check.positive_integer("batch", batch)
    size = -(-size // len(devices)) * len(devices)
    starts = range(0, points, size)
    # Batches that call LAPACK (see `tangents`) can block each other inside XLA: they run one after another.
    by_lapack = plan.exponents is not None and plan.exponents.count > UNROLLED
    alone = devices[0].platform != "cpu" or len(devices) > 1 or by_lapack
    workers = 1 if alone else min(len(starts), os.cpu_count() or 1)
    clock = _Clock(len(starts) * (plan.pieces + plan.blocks), progress)

    def one_batch(start: int) -> dict[str, Any]:
        # The last batch is filled up with copies of its last point.
        index = np.minimum(np.arange(start, start + size), points - 1)
        chosen = [states[number] for number in index] if len(states) > 1 else states
        values = {name: np.broadcast_to(array, (points,))[index] for name, array in parameters.items()}
        where = None if coordinates is None else coordinates[index]
        found = _run_batch(model, chosen, size, values, where, plan, list(devices), clock)
        lanes, state = found.pop("end")
        count = min(size, points - start)
        return {name: value[:count] for name, value in found.items()} | {"finals": Finals([(lanes, state, count)])}

    if workers == 1:
        return joined([one_batch(start) for start in starts])
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(one_batch, start) for start in starts]
        try:
            for future in as_completed(futures):
                future.result()  # raises the first error, which stops the other batches
        except BaseException:
            clock.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
        return joined([future.result() for future in futures])


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Points of several surveys in a row."""
    if len(parts) == 1:
        return parts[0]
    rows = {name: [part[name] for part in parts] for name in parts[0]}
    finals = Finals([part for some in rows.pop("finals") for part in some.parts])
    return {name: np.concatenate(row) for name, row in rows.items()} | {"finals": finals}


class Finals(Sequence[Any]):
    """The last states [point] of batches, made when they are asked for: diagrams ask for none.

    Arguments:
        parts: lanes, their state, and how many of them are points.
    """

    def __init__(self, parts: Sequence[tuple[Lanes, Any, int]]) -> None:
        self.parts = parts

    @cached_property
    def states(self) -> list[Any]:
        """All of them."""
        return [state for lanes, state, count in self.parts for state in lanes.states(state)[:count]]

    @property
    def coordinates(self) -> np.ndarray:
        """Where they are, [point, coordinate]."""
        return np.concatenate([np.asarray(_coordinates(*part).T)[:count] for *part, count in self.parts])

    def __len__(self) -> int:
        return sum(count for *_, count in self.parts)

    def __getitem__(self, number: Any) -> Any:
        if "states" in vars(self) or len(self) <= LANE_MULTIPLE:
            return self.states[number]
        for lanes, state, count in self.parts:  # one alone, of a million
            if 0 <= number < count:
                one = jax.tree.map(lambda part: part[..., number : number + 1] if np.ndim(part) else part, state)  # noqa: B023
                return lanes.states(one)[0]
            number -= count
        raise IndexError(number)


@eqx.filter_jit
def _coordinates(lanes: Lanes, state: Any) -> Array:
    return lanes.coordinates(state)


def one_orbit(model: Map, state: Any, plan: Plan, progress: Report | None = None) -> dict[str, Any]:
    """A plan for one state, which may be growing still; an orbit that leaves every bound is refused."""
    state, early = model.settled(state)
    plan = replace(plan, transient=max(plan.transient - len(early), 0))
    found = {name: values[0] for name, values in survey(model, [state], plan, progress=progress).items()}
    if not traced(found["finite"]) and not found["finite"]:
        raise unbounded()
    return found


def unbounded(advice: str = "") -> ValueError:
    """The error of orbits that grow without end."""
    return fail("state", "orbits that leave every bound", f"a start from which orbits stay finite{advice}")


def usual_batch(model: Map, plan: Plan, points: int, platform: str) -> int:
    """Lanes that fit a core's cache, or an accelerator's memory."""
    vectors = 0 if plan.exponents is None else plan.exponents.count
    # Of each tangent vector the coordinates; beside them the window, its derivatives, and the densities.
    count = model.dimension * (vectors + 12) + sum(recorder.bins for recorder in plan.recorders)
    on_cpu, cores = platform == "cpu", os.cpu_count() or 1
    lanes = max((CPU_BATCH_BYTES if on_cpu else ACCELERATOR_BATCH_BYTES) // (8 * count), LANE_MULTIPLE)
    batches = -(-points // min(lanes, 256 if on_cpu else MOST_LANES))
    if points <= LANE_MULTIPLE:
        return -(-points // batches)
    if on_cpu:  # every core gets as many batches as any other
        batches = -(-batches // cores) * cores
    return -(-points // batches // LANE_MULTIPLE) * LANE_MULTIPLE


class _Clock:
    """Progress of batches that run in threads, and the signal to stop them."""

    def __init__(self, total: int, progress: Report | None) -> None:
        self.total, self.progress, self.done = total, progress, 0
        self.stop, self.lock = threading.Event(), threading.Lock()

    def listen(self) -> None:
        if self.stop.is_set():
            raise InterruptedError("another batch was stopped")

    def tick(self, message: str) -> None:
        self.listen()
        with self.lock:
            self.done += 1
            if self.progress is not None:
                self.progress(self.done, self.total, message)


def _run_batch(
    model: Map,
    states: Sequence[Any],
    count: int,
    parameters: Mapping[str, Any],
    coordinates: np.ndarray | None,
    plan: Plan,
    devices: list[Any],
    clock: _Clock,
) -> dict[str, Any]:
    """Steps the lanes of one batch and hands their states to the recorders."""
    exponents, recorders = plan.exponents, plan.recorders if plan.steps else ()
    every = 1 if exponents is None else exponents.every
    mesh = Mesh(np.array(devices), ("lane",))

    def place(array: Array) -> Array:
        """Spreads an array whose last axis is the lane over devices; a number is copied to all."""
        axes = (None,) * (array.ndim - 1) + ("lane",) if array.ndim else ()
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes))) if len(devices) > 1 else array

    with jax.default_device(devices[0]):
        lanes, state = model.in_lanes(states, parameters, place, count)
        state = state if coordinates is None else jax.tree.map(place, lanes.at(np.ascontiguousarray(coordinates.T)))
        lanes, state, kernel = _in_kernel(model, states[0], lanes, state, count, plan, devices)
        walk_on = partial(walk, lanes, listen=clock.listen, kernel=kernel)
        alignment = min(int(ALIGNMENT_SHARE * plan.steps), LONGEST_ALIGNMENT) // every if exponents else 0
        aligns_before = alignment * every <= plan.transient
        for steps in _shares(plan.transient - aligns_before * alignment * every, 1 if traced(state) else plan.pieces):
            clock.tick("transient")
            state, *_ = walk_on(state, steps)
        *sums, columns = _begin(lanes, state, (*recorders, exponents)) if plan.steps else (None,)
        if alignment:
            ahead, _, columns, _ = walk_on(state, alignment, recorders, sums, columns, every)
            # A transient too short to align in is left as it is: the orbit is counted from its end.
            state = ahead if aligns_before else state
        turns, early, blocks = _shares(max(plan.steps // every, plan.blocks), plan.blocks), sums, []
        for number, some in enumerate(turns):
            clock.tick("orbit")
            early = sums if number == plan.blocks // 2 else early
            state, sums, columns, growth = walk_on(state, some, recorders, sums, columns, every)
            blocks.append(growth)
        values = {} if plan.returns is None else plan.returns.find(lanes, state, walk_on)
        # NumPy needs no compilation. From a GPU the results leave sooner than what they are computed from.
        as_they_are, ends = devices[0].platform == "cpu" and not traced(state), (sums, early, blocks, state)
        sums, early, blocks, state = numbers(ends) if as_they_are else ends
        steps, first = sum(turns) * every, sum(turns[: plan.blocks // 2]) * every
        result = _results if as_they_are else _compiled_results
        values |= numbers(result(recorders, exponents, sums, early, blocks, state, steps, first))
        used = np.full(count, "steps" if kernel is None else "kernel")
        return values | {"end": (lanes, numbers(state)), "engine": used}


def _in_kernel(
    model: Map, first: Any, lanes: Lanes, state: Any, count: int, plan: Plan, devices: list[Any]
) -> tuple[Lanes, Any, Kernel | None]:
    """The kernel that takes the steps, with lanes and state in its form; none where they are taken one by one."""
    mode = "off" if len(devices) > 1 or traced(lanes, state) else mode_on(devices[0])
    if mode == "off":
        return lanes, state, None
    recorders, exponents = (plan.recorders, plan.exponents) if plan.steps else ((), None)
    every = 1 if exponents is None else exponents.every
    try:
        ahead, begun = lanes.for_kernel(state)
        kernel = Kernel.of(model, first, ahead, count, mode)
        *sums, columns = _begin(ahead, begun, (*recorders, exponents))
        *_, growth = walk(ahead, begun, 1, recorders, sums, columns, every, kernel=kernel)
        if growth is not None and not np.isfinite(growth[1]).all():
            raise UnsupportedError("threads are not in the order that the kernel expects")
    except Exception as error:  # from the map of a user or from a compiler
        logging.getLogger(__name__).info("no kernel: %s", error)
        return lanes, state, None
    return ahead, begun, kernel


def _results(recorders: Any, exponents: Any, sums: Any, early: Any, blocks: Any, state: Any, steps: int, first: int):
    """Numbers by name, [lane, ...], from the sums over all steps and over the first ones, and from the last state."""
    values = {"finite": finite_lanes(state)}
    for recorder, whole, part in zip(recorders, sums, early, strict=True):
        values |= recorder.result(whole, steps, part, first)
    for name in {"lowest", "highest"} & values.keys():
        values["finite"] = values["finite"] & numpy_for(values[name]).isfinite(values[name]).all(1)
    return values if exponents is None else values | exponents.result(blocks, steps, values["finite"])


_compiled_results = eqx.filter_jit(_results)


def _shares(total: int, parts: int) -> list[int]:
    """A number of steps in almost equal parts."""
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


@eqx.filter_jit
def _begin(lanes: Lanes, state: Any, recorders: tuple[Any, ...]) -> Any:
    """Sums before the first step. Compiled as a whole: every eager operation would compile by itself."""
    return tuple(None if recorder is None else recorder.init(lanes, state) for recorder in recorders)


def walk(
    lanes: Lanes,
    state: Any,
    turns: int,
    recorders: Sequence[Recorder] = (),
    sums: Sequence[Sums] = (),
    columns: Array | None = None,
    every: int = 1,
    listen: Callable[[], None] = lambda: None,
    kernel: Kernel | None = None,
) -> tuple[Any, Any, Any, Any]:
    """The state, sums, tangent vectors and their growth after any number of turns; Ctrl-C is heard on the way.

    A turn is `every` steps, after which tangent vectors `columns` are orthonormalised. The growth is the sum of its
    logarithms, and how often rounding was all that was left, [vector, lane] each.
    """
    growth = None if columns is None else (np.zeros((columns.shape[0], columns.shape[-1])),) * 2
    carry, vectors = (state, tuple(sums), columns, growth), 0 if columns is None else len(columns)
    at_once = steps_at_once(state, vectors) if kernel is None else kernel.steps_at_once(columns)
    at_once = max(at_once // every, 1)
    differentiable = traced(lanes, state) and not recorders and columns is None  # if programs know the number of turns
    for done in range(0, turns, at_once):
        listen()
        some = min(at_once, turns - done)
        some = some if differentiable else np.int64(some)
        carry = jax.block_until_ready((kernel or run)(lanes, tuple(recorders), every, carry, some))
    return carry


@eqx.filter_jit
def run(lanes: Lanes, recorders: tuple[Recorder, ...], every: int, carry: Any, turns: Any) -> Any:
    """Some turns of `walk` in one program; their number is an argument of it."""
    state, sums, columns, growth = carry
    tangent = columns is not None

    def one(_: Any, carry: Any) -> Any:
        here, columns, sums = carry
        before = here.state if tangent else here
        columns = lanes.push(here, columns) if tangent else None
        here = lanes.advance(here) if tangent else lanes.step(here)
        after = here.state if tangent else here
        pairs = zip(recorders, sums, strict=True)
        return here, columns, tuple(recorder.update(part, lanes, before, after) for recorder, part in pairs)

    def turn(_: Array, carry: Any) -> Any:
        inner, growth = carry
        here, columns, sums = one(0, inner) if every == 1 else lax.fori_loop(0, every, one, inner)
        if tangent:
            columns, logarithms, lost = orthonormalise(columns)
            growth = growth[0] + logarithms, growth[1] + lost
        return (here, columns, sums), growth

    inner = (lanes.linearise(state) if tangent else state, columns, sums)
    (here, columns, sums), growth = lax.fori_loop(0, turns, turn, (inner, growth))
    return here.state if tangent else here, sums, columns, growth


def finite_lanes(state: Any) -> np.ndarray:
    """Whether all numbers of each lane [lane] are finite; arrays without a lane axis are shared by all lanes."""
    xp = numpy_for(state)
    parts = [xp.isfinite(part).reshape(-1, part.shape[-1]) for part in jax.tree.leaves(state) if np.ndim(part)]
    return xp.asarray(xp.concatenate(parts).all(axis=0))


def steps_at_once(arrays: Any, vectors: int = 0) -> int:
    """Steps of one compiled call, so few that Ctrl-C is heard after about a second."""
    if jax.default_backend() != "cpu":
        return FEWEST_AT_ONCE
    # Orthonormalising costs as the square of the number of vectors.
    work = sum(array.size for array in jax.tree.leaves(arrays)) * (1 + vectors) ** 2
    return min(max(NUMBERS_AT_ONCE // work, FEWEST_AT_ONCE), MOST_AT_ONCE)


def rounded_up(steps: int) -> int:
    """Room for rows of this many steps, of one size for many numbers of steps: each size is another program."""
    return next((size for size in (32, 128, 512) if steps <= size), -(-steps // 1024) * 1024)


def kept_rows(step: Callable[..., Any], lanes: Any, carry: Any, steps: int) -> Any:
    """The last carry and all rows [step, ...], for carry, rows = step(lanes, carry) at every step."""
    at_once, pieces = steps_at_once(carry), []
    for done in range(0, steps, at_once):
        some = min(at_once, steps - done)
        # Orbits of several lengths share one program. Derivatives need a number of steps that is known to it.
        sizes = (some, some) if traced(lanes, carry) else (rounded_up(some), np.int64(some))
        carry, rows = _rows(step, lanes, carry, *sizes)
        pieces.append([numbers(column)[:some] for column in rows])
    return carry, [numpy_for(column).concatenate(column) for column in zip(*pieces, strict=True)]


@eqx.filter_jit
def _rows(step: Callable[..., Any], lanes: Any, carry: Any, size: int, steps: Any) -> Any:
    """The last carry, and room for `size` rows in which those of the steps are first."""
    shapes = jax.eval_shape(lambda: step(lanes, carry)[1])
    room = jax.tree.map(lambda row: jnp.zeros((size, *row.shape), row.dtype), shapes)

    def one(number: Any, both: Any) -> Any:
        carry, new = step(lanes, both[0])
        return carry, jax.tree.map(lambda column, row: column.at[number].set(row), both[1], new)

    return lax.fori_loop(0, steps, one, (carry, room))

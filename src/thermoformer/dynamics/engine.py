"""Many parameter sets and starts at once: the engine of statistics, spectra, regimes and diagrams.

Points are laid out in batches of lanes. All batches have one shape, so there is one compiled program for the whole
grid, and the number of steps is an argument of it. Nothing grows with the number of steps: recorders add up what they
see. A new statistic is one more `Recorder`.
"""

from __future__ import annotations

import abc
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from .._validation import (
    fail,
    nonnegative_integer,
    numbers,
    numpy_for,
    pair_of_numbers,
    positive_integer,
    positive_number,
    traced,
)
from .maps import Lanes, Map
from .tangents import UNROLLED, Exponents, orthonormalise

# Bytes of one batch on a CPU: what stays in a core's cache.
CPU_BATCH_BYTES = 2**18
# Bytes of one batch on an accelerator, tangent vectors and densities included.
ACCELERATOR_BATCH_BYTES = 2**32
MOST_LANES, LANE_MULTIPLE = 2**17, 8
# Ctrl-C is heard between compiled calls. This many numbers take a CPU a second at most; an accelerator, which mostly
# starts kernels, gets the fewest steps at once.
NUMBERS_AT_ONCE, FEWEST_AT_ONCE, MOST_AT_ONCE = 2**26, 2**12, 2**19
# Tangent vectors align for this share of the counted steps before averaging, and for this many steps at most.
ALIGNMENT_SHARE, LONGEST_ALIGNMENT = 0.1, 1000
# Motion of less than this share of the largest coordinate may be rounding, which a cycle amplifies.
RESOLUTION = 4096 * np.finfo(np.float64).eps
# A return is confirmed over this many periods, or over as many steps as the search if that is longer.
CONFIRMED_PERIODS = 4

Report = Callable[[int, int, str], None]
Sums = dict[str, Array]


class Recorder(eqx.Module):
    """A statistic of orbits in lanes: sums that begin empty, take every step, and become numbers at the end."""

    @property
    def size(self) -> int:
        """Numbers that are kept for every lane, if they are many."""
        return 0

    @abc.abstractmethod
    def init(self, lanes: Lanes, state: Any) -> Sums:
        """The sums before the first step; arrays [..., lane]."""

    @abc.abstractmethod
    def update(self, sums: Sums, lanes: Lanes, before: Any, after: Any) -> Sums:
        """The sums with one more step of the orbits, inside the compiled loop."""

    def half_way(self, sums: Sums) -> Sums:
        """The sums when half of the blocks are done."""
        return sums

    def result(self, sums: Any, steps: int, half: int) -> dict[str, np.ndarray]:
        """Numbers by name, [lane, ...], of all steps; `half` is the number of steps before `half_way`."""
        return {}


class Tally(Recorder):
    """Mean, deviation and range of every observable, and whether the orbit still changes its width.

    `drift` is the difference of the root-mean-square changes over a rotation of the positions in the two halves of the
    steps, over their mean; nan for one block.
    """

    def init(self, lanes: Lanes, state: Any) -> Sums:
        """Deviations are summed from the first value, which loses fewer digits."""
        first = lanes.observe(state)
        zeros, infinite = jnp.zeros_like(first), jnp.full_like(first, jnp.inf)
        sums = {"origin": first, "total": zeros, "squares": zeros, "lowest": infinite, "highest": -infinite}
        return sums | {"changes": zeros[0], "early": zeros[0]}

    def update(self, sums: Sums, lanes: Lanes, before: Any, after: Any) -> Sums:
        """One more point of the orbit, and the squared distance to the next."""
        values = lanes.observe(before)
        offset = values - sums["origin"]
        return sums | {
            "total": sums["total"] + offset,
            "squares": sums["squares"] + offset**2,
            "lowest": jnp.minimum(sums["lowest"], values),
            "highest": jnp.maximum(sums["highest"], values),
            "changes": sums["changes"] + lanes.change(before, after),
        }

    def half_way(self, sums: Sums) -> Sums:
        """The changes of the first half are kept."""
        return sums | {"early": sums["changes"]}

    def result(self, sums: Any, steps: int, half: int) -> dict[str, np.ndarray]:
        """`average`, `deviation`, `lowest`, `highest` [lane, observable] and `drift` [lane]."""
        xp, mean = numpy_for(sums), sums["total"] / steps
        with np.errstate(invalid="ignore", over="ignore"):  # orbits that leave every bound
            deviation = xp.sqrt(xp.maximum(sums["squares"] / steps - mean**2, 0.0))
            first = xp.sqrt(sums["early"] / max(half, 1))
            second = xp.sqrt((sums["changes"] - sums["early"]) / max(steps - half, 1))
            both = first + second
            drift = xp.where(both > 0, 2 * abs(first - second) / xp.where(both > 0, both, 1.0), 0.0)
        found = {"average": sums["origin"] + mean, "deviation": deviation}
        found |= {"lowest": sums["lowest"], "highest": sums["highest"]}
        return {name: value.T for name, value in found.items()} | {
            "drift": drift if half else xp.full_like(drift, np.nan)
        }


def _number(value: Any) -> Array:
    """A number as an argument of compiled programs, which are then the same for all values."""
    return jnp.asarray(value, jnp.float64)


class Density(Recorder):
    """A histogram of one observable; what falls outside the range is not counted.

    Fields:
        bins, low, high: number of bins, and their range.
        shown: number of the observable.
        section: number of another observable; a second histogram counts the points where it is closer to 0 than `near`.
    """

    bins: int = eqx.field(static=True)
    low: Array = eqx.field(converter=_number)
    high: Array = eqx.field(converter=_number)
    shown: int = eqx.field(default=0, static=True)
    section: int | None = eqx.field(default=None, static=True)
    near: Array = eqx.field(default=0.0, converter=_number)

    @property
    def size(self) -> int:
        """The number of bins."""
        return self.bins

    @property
    def middles(self) -> np.ndarray:
        """Middles of the bins, [bin]."""
        edges = np.linspace(float(self.low), float(self.high), self.bins + 1)
        return (edges[1:] + edges[:-1]) / 2

    def init(self, lanes: Lanes, state: Any) -> Sums:
        """Empty bins."""
        names = ("density",) if self.section is None else ("density", "section")
        return dict.fromkeys(names, jnp.zeros((self.bins, lanes.observe(state).shape[1]), jnp.int32))

    def update(self, sums: Sums, lanes: Lanes, before: Any, after: Any) -> Sums:
        """One more point of the orbit."""
        values = lanes.observe(before)
        place = jnp.floor((values[self.shown] - self.low) / ((self.high - self.low) / self.bins))
        # Out of range is out of bounds, and dropped.
        index = jnp.where((place >= 0) & (place < self.bins), place, self.bins).astype(jnp.int32)
        found, lane = {"density": index}, jnp.arange(values.shape[1])
        if self.section is not None:
            found["section"] = jnp.where(jnp.abs(values[self.section]) < self.near, index, self.bins)
        return {name: sums[name].at[index, lane].add(1, mode="drop") for name, index in found.items()}

    def result(self, sums: Any, steps: int, half: int) -> dict[str, np.ndarray]:
        """`density` and `section`, [lane, bin]."""
        return {name: counts.T for name, counts in sums.items()}


@dataclass(frozen=True)
class Returns:
    """A search for the first return of every orbit, confirmed on the steps after the search.

    A return is one of two things. The state comes back within `tolerance` times the extent of the orbit so far. Or it
    comes back within `tolerance` itself, which an orbit that shrinks to a point does, whatever its extent.
    It is confirmed if the orbit then rests within rounding, or if the distance between returns halves.

    Fields:
        longest_period: steps up to which returns are sought; 0 for no search.
        tolerance: how close a return must be in every coordinate.
    """

    longest_period: int
    tolerance: float

    def __post_init__(self) -> None:
        nonnegative_integer("longest_period", self.longest_period)
        positive_number("tolerance", self.tolerance)

    def result(self, lanes: Lanes, state: Any, walk: Callable[..., Any]) -> dict[str, np.ndarray]:
        """`period`, `unconfirmed`, `nearness` and `nearest`, [lane] each.

        `period` counts the steps to the first confirmed return, 0 for none. `unconfirmed` is that of a return after
        which the orbit neither rests nor comes closer. `nearness` is the smallest p times the distance after p steps,
        over the largest distance: about 1 or a tenth if an orbit winds around a torus, near 0 if it closes slowly.
        `nearest` is that p.

        Arguments:
            walk: the loop of the batch: walk(state, steps, recorders, sums).
        """

        # The search and the confirmation share one compiled program; each ignores the other's sums.
        def follow(state: Any, period: np.ndarray, steps: int) -> Any:
            both = (_Search(_number(self.tolerance)), _Gaps(jnp.asarray(period), jnp.asarray(steps // 2)))
            state, sums, *_ = walk(state, steps, both, _begin(lanes, state, both))
            return state, *jax.device_get(sums)

        never = np.full(jax.tree.leaves(state)[0].shape[-1], np.iinfo(np.int64).max)
        state, search, _ = follow(state, never, self.longest_period)
        candidate = np.where(search["period"] > 0, search["period"], search["shrunk"])
        confirmed = np.zeros(len(candidate), bool)
        if candidate.any():
            steps = max(self.longest_period, CONFIRMED_PERIODS * int(candidate.max()))
            _, _, gaps = follow(state, np.where(candidate > 0, candidate, never), steps)
            rests = gaps["moved"] <= RESOLUTION * gaps["size"]
            confirmed = (candidate > 0) & (rests | (gaps["late"] <= gaps["early"] / 2))
        farthest = search["farthest"]
        with np.errstate(invalid="ignore"):  # orbits that leave every bound
            nearness = np.where(farthest > 0, search["nearness"] / np.where(farthest > 0, farthest, 1.0), 0.0)
        period, unconfirmed = np.where(confirmed, candidate, 0), np.where(confirmed, 0, candidate)
        return {"period": period, "unconfirmed": unconfirmed, "nearness": nearness, "nearest": search["nearest"]}


class _Search(Recorder):
    """The first returns so far, the nearest ones, and how large the orbit is."""

    tolerance: Array

    def init(self, lanes: Lanes, state: Any) -> Sums:
        home = lanes.coordinates(state)
        zeros, none = jnp.zeros(home.shape[1]), jnp.zeros(home.shape[1], jnp.int64)
        sums = {"steps": jnp.zeros((), jnp.int64), "home": home, "size": _largest(home), "extent": zeros}
        return sums | {"period": none, "shrunk": none, "nearness": zeros + jnp.inf, "nearest": none, "farthest": zeros}

    def update(self, sums: Sums, lanes: Lanes, before: Any, after: Any) -> Sums:
        here, steps = lanes.coordinates(after), sums["steps"] + 1
        distance, counts = _largest(here - sums["home"]), lanes.returns_count(steps)
        size = jnp.maximum(sums["size"], _largest(here))
        back = distance <= jnp.maximum(self.tolerance * sums["extent"], RESOLUTION * size)
        nearer = counts & (steps * distance < sums["nearness"])
        return {
            "steps": steps,
            "home": sums["home"],
            "size": size,
            "extent": jnp.maximum(sums["extent"], distance),
            "period": jnp.where(counts & back & (sums["period"] == 0), steps, sums["period"]),
            "shrunk": jnp.where(counts & (distance < self.tolerance) & (sums["shrunk"] == 0), steps, sums["shrunk"]),
            "nearness": jnp.where(nearer, steps * distance, sums["nearness"]),
            "nearest": jnp.where(nearer, steps, sums["nearest"]),
            "farthest": jnp.where(counts, jnp.maximum(sums["farthest"], distance), sums["farthest"]),
        }


class _Gaps(Recorder):
    """Distances between successive returns: the largest in each half, and the largest from the first."""

    period: Array
    middle: Array

    def init(self, lanes: Lanes, state: Any) -> Sums:
        home = lanes.coordinates(state)
        zeros = jnp.zeros(home.shape[1])
        sums = {"steps": jnp.zeros((), jnp.int64), "home": home, "before": home, "size": _largest(home)}
        return sums | {"moved": zeros, "early": zeros, "late": zeros}

    def update(self, sums: Sums, lanes: Lanes, before: Any, after: Any) -> Sums:
        here, steps = lanes.coordinates(after), sums["steps"] + 1
        now = lax.rem(jnp.full_like(self.period, steps), self.period) == 0
        gap = jnp.where(now, _largest(here - sums["before"]), 0.0)
        return {
            "steps": steps,
            "home": sums["home"],
            "before": jnp.where(now[None], here, sums["before"]),
            "size": jnp.maximum(sums["size"], _largest(here)),
            "moved": jnp.where(now, jnp.maximum(sums["moved"], _largest(here - sums["home"])), sums["moved"]),
            "early": jnp.where(steps <= self.middle, jnp.maximum(sums["early"], gap), sums["early"]),
            "late": jnp.where(steps <= self.middle, sums["late"], jnp.maximum(sums["late"], gap)),
        }


def _largest(coordinates: Array) -> Array:
    """The largest coordinate by size, [lane]."""
    return jnp.max(jnp.abs(coordinates), axis=0)


@dataclass(frozen=True)
class Plan:
    """What is done at every point.

    Fields:
        transient: steps before anything is counted.
        steps: steps that are counted; with exponents, whole intervals between orthonormalisations.
        exponents: Lyapunov exponents; none by default.
        recorders: what is counted beside them.
        returns: the search for returns after the last step; none by default.
        blocks: the counted steps are cut into this many blocks, or one for each of fewer steps. Their scatter gives the
            error of exponents.
        pieces: the transient is cut into this many; progress moves and Ctrl-C is heard between them.
    """

    transient: int
    steps: int
    exponents: Exponents | None = None
    recorders: tuple[Recorder, ...] = (Tally(),)
    returns: Returns | None = None
    blocks: int = 20
    pieces: int = 10

    def __post_init__(self) -> None:
        every = 1 if self.exponents is None else self.exponents.every
        object.__setattr__(self, "blocks", min(self.blocks, max(self.steps // every, min(self.steps, 1))))


def density_of(model: Map, show: Any, bins: Any, limits: Any, section: tuple[Any, float] | None = None) -> Density:
    """The histogram of an observable, checked."""
    names = model.observables
    for name, number in [("show", show), *([] if section is None else [("section", section[0])])]:
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or not 0 <= number < len(names):
            raise fail(name, repr(number), f"a whole number from 0 to {len(names) - 1}: {', '.join(names)}")
    low, high = pair_of_numbers("limits", limits)
    return Density(positive_integer("bins", bins), low, high, int(show), *(section or ()))


def check_steps(steps: Any, transient: Any) -> None:
    """One counted step at least, and no negative transient."""
    positive_integer("steps", steps)
    nonnegative_integer("transient", transient)


@dataclass(frozen=True, eq=False)
class Survey:
    """What was found at every point.

    Fields:
        values: [point, ...] by name, as the recorders name them; `finite` says whether the orbit stayed within bounds.
        finals: state after the last counted step, one per point.
    """

    values: dict[str, np.ndarray]
    finals: list[Any] = field(repr=False)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.values[name]

    def bounded(self) -> Survey:
        """Itself; an orbit that left every bound is refused."""
        if not traced(self["finite"]) and not self["finite"].all():
            raise unbounded()
        return self

    def part(self, points: slice) -> Survey:
        """Some of the points."""
        return Survey({name: value[points] for name, value in self.values.items()}, self.finals[points])

    @classmethod
    def joined(cls, parts: Sequence[Survey]) -> Survey:
        """Points of several surveys in a row."""
        if len(parts) == 1:
            return parts[0]
        values = {name: np.concatenate([part[name] for part in parts]) for name in parts[0].values}
        return cls(values, [state for part in parts for state in part.finals])


def unbounded(advice: str = "") -> ValueError:
    """The error of orbits that grow without end."""
    return fail("state", "orbits that leave every bound", f"a start from which orbits stay finite{advice}")


def survey(
    model: Map,
    states: Sequence[Any],
    plan: Plan,
    parameters: Mapping[str, np.ndarray] | None = None,
    *,
    batch: int | None = None,
    devices: Sequence[Any] | None = None,
    progress: Report | None = None,
) -> Survey:
    """Runs a plan at every point.

    Arguments:
        states: one settled state per point, or one for all.
        parameters: values by name, one per point.
        batch: lanes at a time; chosen by cache or memory by default.
        devices: the devices that share every batch; the first local one by default.
        progress: called as progress(done, total, message).
    """
    parameters = parameters or {}
    points = max([len(states), *(len(values) for values in parameters.values())])
    devices = jax.local_devices()[:1] if devices is None else _devices(devices)
    usual = usual_batch(model, plan, points, devices[0].platform)
    size = usual if batch is None else positive_integer("batch", batch)
    size = -(-size // len(devices)) * len(devices)
    starts = range(0, points, size)
    # Batches that call LAPACK (see `tangents`) can block each other inside XLA: they run one after another.
    by_lapack = plan.exponents is not None and plan.exponents.count > UNROLLED
    alone = devices[0].platform != "cpu" or len(devices) > 1 or by_lapack
    workers = 1 if alone else min(len(starts), os.cpu_count() or 1)
    clock = _Clock(len(starts) * (plan.pieces + plan.blocks), progress)

    def one_batch(start: int) -> Survey:
        # The last batch is filled up with copies of its last point.
        index = np.minimum(np.arange(start, start + size), points - 1)
        chosen = [states[number] for number in index] if len(states) > 1 else list(states) * size
        values = {name: np.broadcast_to(array, (points,))[index] for name, array in parameters.items()}
        return _run_batch(model, chosen, values, plan, devices, clock).part(slice(min(size, points - start)))

    if workers == 1:
        return Survey.joined([one_batch(start) for start in starts])
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(one_batch, start) for start in starts]
        try:
            return Survey.joined([future.result() for future in futures])
        except BaseException as error:
            clock.stop.set()
            for future in futures:
                future.cancel()
            # Re-raise the original error, not the InterruptedError of the other batches.
            raise (clock.cause or error) from None


def _devices(devices: Any) -> list[Any]:
    expected = "one or more devices, as in jax.local_devices()"
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not len(devices):
        raise fail("devices", repr(devices), expected)
    for device in devices:
        if not isinstance(device, jax.Device):
            raise fail("devices", f"{device!r} among them", expected)
    return list(devices)


def usual_batch(model: Map, plan: Plan, points: int, platform: str) -> int:
    """Lanes that fit a core's cache, or an accelerator's memory."""
    vectors = 0 if plan.exponents is None else plan.exponents.count
    # Of each tangent vector the coordinates; beside them the window, its derivatives, and the densities.
    count = model.dimension * (vectors + 12) + sum(recorder.size for recorder in plan.recorders)
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
        self.cause: BaseException | None = None

    def listen(self) -> None:
        if self.stop.is_set():
            raise InterruptedError("another batch was stopped")

    def tick(self, message: str) -> None:
        self.listen()
        with self.lock:
            self.done += 1
            try:
                if self.progress is not None:
                    self.progress(self.done, self.total, message)
            except BaseException as error:
                self.cause = error
                self.stop.set()  # the other batches end at their next tick
                raise


def _run_batch(
    model: Map, states: list[Any], parameters: Mapping[str, Any], plan: Plan, devices: list[Any], clock: _Clock
) -> Survey:
    """Steps the lanes of one batch and hands their states to the recorders."""
    exponents, platform = plan.exponents, devices[0].platform
    every, vectors = (1, 0) if exponents is None else (exponents.every, exponents.count)
    with jax.default_device(devices[0]):
        lanes, state = model.in_lanes(states, parameters, _over_devices(devices) if len(devices) > 1 else lambda a: a)
        at_once = {count: steps_at_once(model.dimension, len(states), count, platform) for count in (0, vectors)}

        def walk_on(state: Any, turns: int, recorders: Any = (), sums: Any = (), columns: Any = None) -> Any:
            some, steps = (at_once[0], 1) if columns is None else (at_once[vectors] // every or 1, every)
            return walk(lanes, state, turns, some, recorders, sums, columns, steps, clock.listen)

        alignment = min(int(ALIGNMENT_SHARE * plan.steps), LONGEST_ALIGNMENT) // every if vectors else 0
        aligns_before = alignment * every <= plan.transient
        for steps in _shares(plan.transient - aligns_before * alignment * every, plan.pieces):
            clock.tick("transient")
            state, *_ = walk_on(state, steps)
        recorders, sums, columns, blocks = plan.recorders if plan.steps else (), (), None, []
        if plan.steps:
            *sums, columns = _begin(lanes, state, (*recorders, exponents))
        if alignment:
            ahead, _, columns, _ = walk_on(state, alignment, recorders, sums, columns)
            # A transient too short to align in is left as it is: the orbit is counted from its end.
            state = ahead if aligns_before else state
        turns = _shares(max(plan.steps // every, plan.blocks), plan.blocks)
        for number, some in enumerate(turns):
            clock.tick("orbit")
            if number == plan.blocks // 2:
                sums = [one.half_way(part) for one, part in zip(recorders, sums, strict=True)]
            state, sums, columns, growth = walk_on(state, some, recorders, sums, columns)
            blocks.append(numbers(growth))
        values = plan.returns.result(lanes, state, walk_on) if plan.returns and plan.returns.longest_period else {}
        sums, last = numbers((sums, state))
        seen, half = sum(turns) * every, sum(turns[: plan.blocks // 2]) * every
        for one, part in zip(recorders, sums, strict=True):
            values |= one.result(part, seen, half)
        values["finite"] = finite_lanes(last)
        for name in {"lowest", "highest"} & values.keys():
            values["finite"] = values["finite"] & numpy_for(values).isfinite(values[name]).all(1)
        if exponents is not None:
            values |= exponents.result(blocks, sum(turns), values["finite"])
        return Survey(values, [model.state(lanes, last, lane) for lane in range(len(states))])


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
    at_once: int,
    recorders: Sequence[Recorder] = (),
    sums: Sequence[Sums] = (),
    columns: Array | None = None,
    every: int = 1,
    listen: Callable[[], None] = lambda: None,
) -> tuple[Any, Any, Any, Any]:
    """The state after any number of turns, and what was recorded; Ctrl-C is heard between compiled calls.

    A turn is one step, or `every` steps with tangent vectors `columns`, which are then orthonormalised.

    Returns:
        The state; the sums; the tangent vectors; and their growth, [vector, lane] each: the sum of its logarithms, and
        how often rounding was all that was left.
    """
    growth = None
    if columns is not None:
        zeros = np.zeros((columns.shape[0], columns.shape[-1]))  # from NumPy, which compiles nothing
        growth = jnp.asarray(zeros), jnp.asarray(zeros)
    carry = (state, tuple(sums), columns, growth)
    for done in range(0, turns, at_once):
        listen()
        some = jnp.asarray(min(at_once, turns - done))
        carry = jax.block_until_ready(run(lanes, tuple(recorders), every, carry, some))
    return carry


@eqx.filter_jit
def run(lanes: Lanes, recorders: tuple[Recorder, ...], every: int, carry: Any, turns: int | Array) -> Any:
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


def steps_at_once(dimension: int, lanes: int, vectors: int = 0, platform: str | None = None) -> int:
    """Steps of one compiled call, so few that Ctrl-C is heard after about a second."""
    if (platform or jax.default_backend()) != "cpu":
        return FEWEST_AT_ONCE
    # Orthonormalising costs as the square of the number of vectors.
    return min(max(NUMBERS_AT_ONCE // (lanes * dimension * (1 + vectors) ** 2), FEWEST_AT_ONCE), MOST_AT_ONCE)


def pieces_of(steps: int, at_once: int) -> Iterator[int]:
    """The steps of one compiled call after the other.

    Example:
        >>> list(pieces_of(10, 4)), list(pieces_of(0, 4))
        ([4, 4, 2], [])
    """
    return (min(at_once, steps - done) for done in range(0, steps, at_once))


def kept_rows(
    program: Callable[[Any, int], tuple[Any, tuple[Array, ...]]], carry: Any, steps: int, at_once: int | None = None
) -> tuple[Any, list[np.ndarray]]:
    """Rows [step, ...] of the one lane that a program records, called as program(carry, steps); and the last carry."""
    pieces: list[list[np.ndarray]] = []
    for some in pieces_of(steps, at_once or MOST_AT_ONCE):
        carry, rows = program(carry, some)
        pieces.append([numbers(column)[..., 0] for column in rows])
    return carry, [numpy_for(column).concatenate(column) for column in zip(*pieces, strict=True)]


def _over_devices(devices: Sequence[Any]) -> Callable[[Array], Array]:
    """Spreads an array whose last axis is the lane over devices; a number is copied to all."""
    mesh = Mesh(np.array(devices), ("lane",))

    def place(array: Array) -> Array:
        axes = (None,) * (array.ndim - 1) + ("lane",) if array.ndim else ()
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes)))

    return place

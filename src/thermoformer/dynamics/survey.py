"""Many parameter sets and starts at once: the engine of spectra, regimes and diagrams.

Points are laid out in batches of lanes. All batches have one shape, so there is one compiled program for the whole
grid, and how many steps it runs is an argument. Nothing grows with the number of steps: orbits are tallied as they go.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from .._validation import fail, numbers, numpy_for, positive_integer
from .lanes import Lanes
from .maps import Map
from .plan import Plan, Survey, Tally, pieces_of
from .returns import Returns, find_returns
from .tangents import UNROLLED, largest_first, orthonormalise, random_frame

# Bytes of one batch on a CPU: what stays in a core's cache.
CPU_BATCH_BYTES = 2**18
# Bytes of one batch on an accelerator, tangent vectors and densities included.
ACCELERATOR_BATCH_BYTES = 2**32
MOST_LANES, LANE_MULTIPLE = 2**17, 8
# Ctrl-C is heard between compiled calls. So many numbers take a CPU a second at most; an accelerator, which mostly
# starts kernels, gets the fewest steps at once.
NUMBERS_AT_ONCE, FEWEST_AT_ONCE, MOST_AT_ONCE = 2**26, 2**12, 2**19
# Tangent vectors align for this share of the counted steps before averaging, and for this many steps at most.
ALIGNMENT_SHARE, LONGEST_ALIGNMENT = 0.1, 1000

Report = Callable[[int, int, str], None]


def survey(
    model: Map,
    states: Sequence[Any],
    parameters: Mapping[str, np.ndarray],
    plan: Plan,
    *,
    batch: int | None = None,
    devices: Sequence[Any] | None = None,
    progress: Report | None = None,
) -> Survey:
    """Runs a plan at every point.

    Arguments:
        states: one settled state per point, or one for all.
        parameters: values by name, one per point.
        batch: lanes at a time; chosen by cache or memory where absent.
        devices: the devices that share every batch; the first local one where absent.
        progress: called as progress(done, total, message).
    """
    points = max([len(states), *(len(values) for values in parameters.values())])
    everywhere = {name: np.broadcast_to(values, (points,)) for name, values in parameters.items()}
    devices = jax.local_devices()[:1] if devices is None else _devices(devices)
    usual = usual_batch(model, plan, points, devices[0].platform)
    size = usual if batch is None else positive_integer("batch", batch)
    size = -(-size // len(devices)) * len(devices)
    starts = list(range(0, points, size))
    # Batches that call LAPACK (see `tangents`) can block each other inside XLA: they run one after another.
    alone = devices[0].platform != "cpu" or len(devices) > 1 or plan.exponents > UNROLLED
    workers = 1 if alone else min(len(starts), os.cpu_count() or 1)
    clock = _Clock(len(starts) * (plan.pieces + plan.blocks), progress)

    def one_batch(start: int) -> Survey:
        # The last batch is filled up with copies of its last point.
        index = np.minimum(np.arange(start, start + size), points - 1)
        chosen = [states[number] for number in index] if len(states) > 1 else list(states) * size
        values = {name: array[index] for name, array in everywhere.items()}
        found = _run_batch(model, chosen, values, plan, devices, clock)
        return found.part(slice(min(size, points - start)))

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
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not len(devices):
        raise fail("devices", repr(devices), "one or more devices, as in jax.local_devices()")
    for device in devices:
        if not isinstance(device, jax.Device):
            raise fail("devices", f"{device!r} among them", "one or more devices, as in jax.local_devices()")
    return list(devices)


def usual_batch(model: Map, plan: Plan, points: int, platform: str) -> int:
    """Lanes that fit a core's cache, or an accelerator's memory."""
    # Of each tangent vector the coordinates; beside them the window, its derivatives, and the densities.
    numbers = model.dimension * (plan.exponents + 12) + (0 if plan.density is None else plan.density.bins)
    room = CPU_BATCH_BYTES if platform == "cpu" else ACCELERATOR_BATCH_BYTES
    lanes = min(max(room // (8 * numbers), LANE_MULTIPLE), 256 if platform == "cpu" else MOST_LANES)
    batches = -(-points // lanes)
    if platform == "cpu" and points > LANE_MULTIPLE:
        # Every core gets as many batches as any other.
        cores = os.cpu_count() or 1
        batches = -(-batches // cores) * cores
    even = -(-points // batches)
    return -(-even // LANE_MULTIPLE) * LANE_MULTIPLE if points > LANE_MULTIPLE else even


class _Clock:
    """Progress of batches that run in threads, and the word to stop."""

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
    model: Map,
    states: list[Any],
    parameters: Mapping[str, np.ndarray],
    plan: Plan,
    devices: list[Any],
    clock: _Clock,
) -> Survey:
    with jax.default_device(devices[0]):
        lanes = model.lanes(parameters, states[0], len(states))
        state = model.start(lanes, states)
        if len(devices) > 1:
            place = over_devices(devices)
            lanes, state = lanes.shared(place), jax.tree.map(place, state)
        platform = devices[0].platform
        at_once = steps_at_once(model.dimension, lanes.count, platform=platform)
        alignment = min(int(ALIGNMENT_SHARE * plan.steps), LONGEST_ALIGNMENT) // plan.every if plan.exponents else 0
        aligns_before = alignment * plan.every <= plan.transient
        transient = plan.transient - aligns_before * alignment * plan.every
        for piece in range(plan.pieces):
            clock.tick("transient")
            steps = transient * (piece + 1) // plan.pieces - transient * piece // plan.pieces
            state = many_steps(lanes, state, steps, at_once, clock.listen)
        density, bins, how, section = plan.density, 0, (0.0, 1.0, 0.0), None
        if density is not None:
            bins, section = density.bins, None if density.section is None else density.section[0]
            near = 0.0 if density.section is None else density.section[1]
            how = (density.low, (density.high - density.low) / density.bins, near)
        how = tuple(jnp.asarray(number, jnp.float64) for number in how)
        shown = 0 if density is None else density.shown
        frame = jnp.asarray(random_frame(plan.exponents, model.dimension)) if plan.exponents else None
        origin, tally, columns = _beginning(lanes, state, bins, 0 if section is None else bins, frame)
        blocks, lost, counted = [], np.zeros((plan.exponents, lanes.count)), []
        half, half_steps, seen = tally, 0, 0
        all_turns = max(plan.steps // plan.every, plan.blocks)
        turns_at_once = steps_at_once(model.dimension, lanes.count, plan.exponents, platform) // plan.every or 1

        def with_tangents(state: Any, columns: Array, tally: Tally, turns: int) -> tuple[Any, Array, Tally, Any]:
            """The orbit so many turns on, a turn being the steps between orthonormalisations."""
            # From NumPy, which compiles nothing.
            sums = (jnp.asarray(np.zeros(lost.shape)), jnp.asarray(np.zeros(lost.shape)))
            for some in pieces_of(turns, turns_at_once):
                clock.listen()
                state, columns, tally, sums = jax.block_until_ready(
                    run_tangents(
                        lanes, state, columns, tally, origin, how, jnp.asarray(some), plan.every, shown, section, sums
                    )
                )
            return state, columns, tally, sums

        if alignment:
            ahead, columns, _, _ = with_tangents(state, columns, tally, alignment)
            # A transient too short to align in is left as it is: the orbit is counted from its end.
            state = ahead if aligns_before else state
        for block in range(plan.blocks):
            clock.tick("orbit")
            if block == plan.blocks // 2:
                half, half_steps = tally, seen
            steps = plan.steps * (block + 1) // plan.blocks - plan.steps * block // plan.blocks
            if plan.exponents:
                turns = all_turns * (block + 1) // plan.blocks - all_turns * block // plan.blocks
                state, columns, tally, sums = with_tangents(state, columns, tally, turns)
                # By the mean length of a block, so that the mean over blocks is that over all steps.
                blocks.append(numbers(sums[0]) * plan.blocks / (all_turns * plan.every))
                lost = lost + numbers(sums[1])
                counted.append(turns)
                seen += turns * plan.every
            else:
                seen += steps
                for some in pieces_of(steps, at_once):
                    clock.listen()
                    state, tally = jax.block_until_ready(
                        run_tally(lanes, state, tally, origin, how, jnp.asarray(some), shown, section)
                    )
        if plan.longest_period:
            returns = find_returns(lanes, state, plan.longest_period, plan.tolerance, at_once, clock.listen)
        else:
            none = np.zeros(lanes.count, int)
            returns = Returns(none - 1, none, np.full(lanes.count, np.nan), none)
        origin, tally, half, last = numbers((origin, tally, half, state))
        xp = numpy_for(last)
        mean, deviation = _moments(tally.total, tally.squares, seen)
        first = xp.sqrt(half.changes / max(half_steps, 1))
        second = xp.sqrt((tally.changes - half.changes) / max(seen - half_steps, 1))
        finite = finite_lanes(last)
        if seen:
            finite = finite & xp.isfinite(tally.lowest).all(0) & xp.isfinite(tally.highest).all(0)
        means, shares = np.zeros((lanes.count, plan.blocks, plan.exponents)), (lost / max(sum(counted), 1)).T
        if blocks:
            means, shares = largest_first(xp.stack(blocks).transpose(2, 0, 1), shares)
        return Survey(
            blocks=means,
            lost=shares,
            average=(origin + mean).T,
            deviation=deviation.T,
            lowest=tally.lowest.T,
            highest=tally.highest.T,
            density=tally.density.T,
            section=tally.section.T,
            **vars(returns),
            drift=_drift(first, second) if half_steps else np.full(lanes.count, np.nan),
            finite=finite,
            finals=[model.state(lanes, last, lane) for lane in range(lanes.count)],
        )


@eqx.filter_jit
def _beginning(
    lanes: Lanes, state: Any, bins: int, section_bins: int, frame: Array | None
) -> tuple[Array, Tally, Array]:
    """Where the orbits are, nothing counted yet, and tangents: one program, not one for every operation."""
    origin = lanes.observe(state)
    columns = jnp.zeros(()) if frame is None else lanes.columns(state, frame)
    return origin, Tally.empty(origin, bins, section_bins), columns


def _moments(total: Any, squares: Any, steps: int) -> tuple[Any, Any]:
    """Mean and standard deviation from sums over steps."""
    xp, mean = numpy_for(total), total / max(steps, 1)
    with np.errstate(invalid="ignore", over="ignore"):  # orbits that leave every bound
        return mean, xp.sqrt(xp.maximum(squares / max(steps, 1) - mean**2, 0.0))


def _drift(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The relative difference of two sets of numbers [lane]."""
    xp, both = numpy_for(first, second), first + second
    with np.errstate(invalid="ignore"):  # orbits that leave every bound
        return xp.where(both > 0, 2 * abs(first - second) / xp.where(both > 0, both, 1.0), 0.0)


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
    numbers = lanes * dimension * (1 + vectors) ** 2
    return min(max(NUMBERS_AT_ONCE // numbers, FEWEST_AT_ONCE), MOST_AT_ONCE)


def many_steps(lanes: Lanes, state: Any, steps: int, at_once: int, listen: Callable[[], None] = lambda: None) -> Any:
    """The state any number of steps on; Ctrl-C is heard on the way. The number is an argument of one program."""
    for some in pieces_of(steps, at_once):
        listen()
        state = jax.block_until_ready(run_steps(lanes, state, jnp.asarray(some)))
    return state


@eqx.filter_jit
def run_steps(lanes: Lanes, state: Any, steps: int | Array) -> Any:
    """The state so many steps on."""
    return lax.fori_loop(0, steps, lambda _, state: lanes.step(state), state)


@eqx.filter_jit
def run_tally(
    lanes: Lanes,
    state: Any,
    tally: Tally,
    origin: Array,
    how: tuple[Array, ...],
    steps: int | Array,
    shown: int,
    section: int | None,
) -> tuple[Any, Tally]:
    """The state so many steps on, with every step counted."""

    def one(_: Array, carry: tuple[Any, Tally]) -> tuple[Any, Tally]:
        before, tally = carry
        after = lanes.step(before)
        change = lanes.change(before, after)
        return after, tally.count(lanes.observe(before), change, origin, how, shown, section)

    return lax.fori_loop(0, steps, one, (state, tally))


@eqx.filter_jit
def run_tangents(
    lanes: Lanes,
    state: Any,
    columns: Array,
    tally: Tally,
    origin: Array,
    how: tuple[Array, ...],
    turns: int | Array,
    every: int,
    shown: int,
    section: int | None,
    sums: tuple[Array, Array],
) -> tuple[Any, Array, Tally, tuple[Array, Array]]:
    """The same with tangent vectors; local exponents, and how often rounding was all that was left, are added up."""

    def one(_: Array, carry: tuple) -> tuple:
        prepared, linear, columns, tally = carry
        before = lanes.bare(prepared)
        columns = lanes.push(linear, columns)
        prepared = lanes.advance(prepared, linear)
        change = lanes.change(before, lanes.bare(prepared))
        tally = tally.count(lanes.observe(before), change, origin, how, shown, section)
        return prepared, lanes.linearise(prepared), columns, tally

    def turn(_: Array, carry: tuple) -> tuple:
        inner, sums, lost = carry
        inner = one(jnp.zeros(()), inner) if every == 1 else lax.fori_loop(0, every, one, inner)
        prepared, linear, columns, tally = inner
        columns, logarithms, lost_here = orthonormalise(columns)
        return (prepared, linear, columns, tally), sums + logarithms, lost + lost_here

    prepared = lanes.prepare(state)
    inner = (prepared, lanes.linearise(prepared), columns, tally)
    (prepared, _, columns, tally), *sums_after = lax.fori_loop(0, turns, turn, (inner, *sums))
    return lanes.bare(prepared), columns, tally, (sums_after[0], sums_after[1])


def over_devices(devices: Sequence[Any]) -> Callable[[Array], Array]:
    """Spreads an array whose last axis is the lane over devices; a number is copied to all."""
    mesh = Mesh(np.array(devices), ("lane",))

    def place(array: Array) -> Array:
        axes = (None,) * (array.ndim - 1) + ("lane",) if array.ndim else ()
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes)))

    return place

"""The loop of the engine as one GPU kernel: all steps of a lane run inside a thread, so that no step waits for a launch.

A map is traced for one lane, and written out number by number (`Scalars`). A thread has one lane, or one lane with a few
of its tangent vectors. The kernel computes what `engine.run` computes, for any map and recorders that can be written out
so. It is made with Pallas and Triton for CUDA. Everything else, and everything if the environment variable
`THERMOFORMER_KERNEL` is `off`, runs step by step.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .maps import Lanes, Map
from .scalars import Scalars, array_of
from .tangents import LOST

# A block of threads is one warp: its threads exchange numbers without memory. Of the tangent vectors of a lane a thread
# has this many. More need more registers and a longer program; fewer need more threads, each of which computes the step.
WARP, VECTORS = 32, 2
# The numbers of the threads that an index names, in two halves of 32 bits each.
EXCHANGE = """{ .reg .b32 low, high; mov.b64 {low, high}, $1; shfl.sync.idx.b32 low, low, $2, 31, -1;
shfl.sync.idx.b32 high, high, $2, 31, -1; mov.b64 $0, {low, high}; }"""
# Steps of one launch without tangent vectors: a few tenths of a second with as many lanes as a batch has.
STEPS_AT_ONCE = 2**15


def mode_on(device: Any) -> str:
    """How a device runs kernels: "compiled", "interpreted" by JAX, which tests ask for, or "off"."""
    wish = os.environ.get("THERMOFORMER_KERNEL", "on")
    if wish == "on":
        is_cuda = device.platform == "gpu" and "cuda" in device.client.platform_version.lower()
        return "compiled" if is_cuda else "off"
    return "interpreted" if wish == "interpret" else "off"


@dataclass(frozen=True)
class Kernel:
    """`engine.run` for lanes of one map: called in the same way, it computes the same.

    Fields:
        structure: of the lanes.
        known: the numbers that all lanes share, by leaf of the lanes; none for a leaf that varies from lane to lane.
        interpret: whether JAX computes what the kernel would, for tests without a GPU.
    """

    structure: Any
    known: tuple[_Known | None, ...]
    interpret: bool

    @classmethod
    def of(cls, model: Map, state: Any, lanes: Lanes, count: int, mode: str) -> Kernel:
        """For `count` lanes that a model made for states like the given one."""
        # Arrays that vary from lane to lane are those whose shapes vary with the number of lanes.
        values = dict.fromkeys(model.parameters, jax.ShapeDtypeStruct((1 if count > 1 else 2,), jnp.float64))
        others = jax.tree.leaves(jax.eval_shape(lambda values: model.lanes(values, state), values))
        leaves, structure = jax.tree.flatten(lanes)
        fixed = (one.shape == other.shape for one, other in zip(leaves, others, strict=True))
        known = tuple(_Known(leaf) if is_fixed else None for leaf, is_fixed in zip(leaves, fixed, strict=True))
        return cls(structure, known, mode == "interpreted")

    def steps_at_once(self, vectors: int) -> int:
        """Steps of one launch, so few that Ctrl-C is heard within a second."""
        return STEPS_AT_ONCE // (1 + vectors)

    def __call__(self, lanes: Lanes, recorders: tuple[Any, ...], every: int, carry: Any, turns: Any) -> Any:
        leaves = zip(jax.tree.leaves(lanes), self.known, strict=True)
        varying = [leaf for leaf, known in leaves if known is None]
        return _launch(self, every, varying, recorders, carry, np.int32(turns))

    def step(self, varying: Sequence[Any], recorders: Any, state: Any, sums: Any, columns: Sequence[Any]) -> Any:
        """A step of the lanes: the state, sums and tangent vectors after it, and where `places` adds 1."""
        rest = iter(varying)
        lanes = jax.tree.unflatten(self.structure, [next(rest) if one is None else one.array for one in self.known])
        after, columns = lanes.step(state), [lanes.tangent(state, column) for column in columns]
        pairs = list(zip(recorders, sums, strict=True))
        sums = [part if recorder.bins else recorder.update(part, lanes, state, after) for recorder, part in pairs]
        return after, sums, columns, [recorder.places(lanes, state) for recorder in recorders if recorder.bins]


class _Known:
    """An array that a compiled program knows."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)
        self.key = self.array.shape, self.array.dtype, self.array.tobytes()

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self.key == other.key


@functools.partial(jax.jit, static_argnums=(0, 1))
def _launch(kernel: Kernel, every: int, varying: Any, recorders: Any, carry: Any, turns: Any) -> Any:
    """Some turns of `every` steps."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    state, sums, columns, growth = carry
    pairs = list(zip(recorders, sums, strict=True))
    counts, counted = jax.tree.flatten([part for recorder, part in pairs if recorder.bins])
    kept, structure = jax.tree.flatten((state, [() if recorder.bins else part for recorder, part in pairs]))
    fixed, lanes = jax.tree.leaves((varying, recorders)), next(array.shape[-1] for array in kept if array.ndim)
    body = _Body(kernel, every, varying, recorders, state, sums, columns)
    # Lanes are filled up with copies of the last one, vectors with zeros. The last bin is for what is not counted.
    extra = -lanes % body.tile[1]
    tables = [_table([*fixed, *kept], lanes)]
    if columns is not None:
        vectors = jnp.pad(columns.reshape(len(columns), -1), ((0, body.slots - len(columns)), (0, 0)))
        tables.append(vectors.reshape(-1, lanes))
    tables = [jnp.pad(table, ((0, 0), (0, extra)), mode="edge") for table in tables]
    counts = [jnp.pad(array, ((0, 1), (0, extra))) for array in counts]
    rows = [sum(body.sizes[len(fixed) :])] + ([body.slots * body.dimension, 2 * body.slots] if body.slots else [])
    out = [jax.ShapeDtypeStruct((number, lanes + extra), jnp.float64) for number in rows]
    found = pl.pallas_call(
        body,
        grid=((lanes + extra) // body.tile[1],),
        out_shape=[*out, *(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in counts)],
        input_output_aliases={1 + len(tables) + number: len(out) + number for number in range(len(counts))},
        interpret=kernel.interpret,
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        name="orbits",
    )(turns[None], *tables, *counts)
    found = [array[..., :lanes] for array in found]
    state, small = jax.tree.unflatten(structure, _arrays(found[0], kept))
    counts = iter(jax.tree.unflatten(counted, [array[:-1] for array in found[len(out) :]]))
    sums = tuple(next(counts) if recorder.bins else part for recorder, part in zip(recorders, small, strict=True))
    if columns is None:
        return state, sums, None, None
    columns = found[1].reshape(body.slots, -1, lanes)[: len(columns)].reshape(columns.shape)
    new = found[2].reshape(2, body.slots, lanes)[:, : len(columns)]
    return state, sums, columns, (growth[0] + new[0], growth[1] + new[1])


class _Body:
    """What every block of threads does: a tile [vector, lane] of threads, each with a lane and some of its vectors.

    Tables have a row for each number of a lane. Vector k·R + r is the k-th of the thread in row r, of R rows.
    """

    def __init__(self, kernel: Kernel, every: int, varying: Any, recorders: Any, state: Any, sums: Any, columns: Any):
        self.interpret, self.every = kernel.interpret, every
        self.vectors = 0 if columns is None else len(columns)
        self.in_thread = min(VECTORS, self.vectors)
        rows = 1 << (-(-self.vectors // self.in_thread) - 1).bit_length() if self.vectors else 1
        self.tile, self.slots = (rows, WARP // rows), rows * self.in_thread
        sums = [() if recorder.bins else part for recorder, part in zip(recorders, sums, strict=True)]
        one = jax.tree.map(_of_one_lane, (varying, recorders, state, sums))
        column = _of_one_lane(columns[0]) if self.vectors else None
        self.dimension = int(np.prod(column.shape)) if column else 0
        closed = jax.make_jaxpr(kernel.step)(*one, [column] * self.in_thread)
        self.jaxpr, self.constants = closed.jaxpr, [np.asarray(constant) for constant in closed.consts]
        # The leaves of `one`, of which those of the lanes and recorders stay as they are.
        self.shapes, self.types = zip(*((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(one)), strict=True)
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.fixed = len(jax.tree.leaves(one[:2]))
        self.column = column.shape if column else ()

    def __call__(self, turns: Any, *refs: Any) -> None:
        from jax.experimental import pallas as pl

        tables, changed = (2, 3) if self.vectors else (1, 1)
        counted = (len(refs) - tables - changed) // 2
        given, made, counts = refs[:tables], refs[tables + counted : -counted or None], refs[len(refs) - counted :]
        vector, lane = (lax.broadcasted_iota(jnp.int32, self.tile, axis) for axis in (0, 1))
        of_row = functools.partial(self.of_row, vector, lane)
        lane = pl.program_id(0) * self.tile[1] + lane
        types = (each for each, size in zip(self.types, self.sizes, strict=True) for _ in range(size))
        numbers = [_from_float(given[0][row, lane], each) for row, each in enumerate(types)]
        first = sum(self.sizes[: self.fixed])
        constant, numbers = self.arrays(numbers[:first], slice(self.fixed)), numbers[first:]
        slots = [number * self.tile[0] + vector for number in range(self.in_thread)]
        columns = [[given[1][slot * self.dimension + entry, lane] for entry in range(self.dimension)] for slot in slots]

        def one(_: Any, carry: Any) -> Any:
            numbers, columns = carry
            scalars = Scalars(self.tile)
            tangent = [array_of(column, self.column) for column in columns]
            inputs = [*constant, *self.arrays(numbers, slice(self.fixed, None)), *tangent]
            found = scalars.evaluate(self.jaxpr, self.constants, inputs)
            found = [[scalars.variable(entry) for entry in array.ravel()] for array in found]
            places = found[len(found) - counted :]
            for (index,), count in zip(places, counts, strict=True):
                self.count(count, jnp.where(vector == 0, index, count.shape[0] - 1), lane)
            kept = len(self.sizes) - self.fixed
            return list(itertools.chain(*found[:kept])), found[kept : len(found) - counted]

        def turn(_: Any, carry: Any) -> Any:
            inner, growth = carry
            numbers, columns = one(0, inner) if self.every == 1 else lax.fori_loop(0, self.every, one, inner)
            if columns:
                columns, new = _orthonormal(columns, vector, self.vectors, of_row)
                growth = [
                    [total + more for total, more in zip(*both, strict=True)] for both in zip(growth, new, strict=True)
                ]
            return (numbers, columns), growth

        zeros = [[lax.full(self.tile, 0.0, jnp.float64)] * self.in_thread] * 2
        (numbers, columns), growth = lax.fori_loop(np.int32(0), turns[0], turn, ((numbers, columns), zeros))
        for row, number in enumerate(numbers):
            made[0][row, lane] = _to_float(number)
        for slot, column, *sums in zip(slots, columns, *growth, strict=True):
            for entry, number in enumerate(column):
                made[1][slot * self.dimension + entry, lane] = number
            for half, number in enumerate(sums):
                made[2][half * self.slots + slot, lane] = number

    def arrays(self, numbers: Iterable[Any], leaves: slice) -> list[np.ndarray]:
        """Numbers in the shapes of some of the leaves."""
        rest, some = iter(numbers), zip(self.shapes[leaves], self.sizes[leaves], strict=True)
        return [array_of(list(itertools.islice(rest, size)), shape) for shape, size in some]

    def count(self, counts: Any, index: Any, lane: Any) -> None:
        """Adds 1 in the bin of every lane; the last bin is not read."""
        from jax.experimental.pallas import triton

        mask = None if self.interpret else index < counts.shape[0] - 1
        triton.atomic_add(counts, (index, lane), lax.full(self.tile, 1, jnp.int32), mask=mask)

    def of_row(self, vector: Any, lane: Any, row: Any, number: Any) -> Any:
        """What the thread in a row has, for all threads of a lane."""
        if self.interpret:
            return jnp.broadcast_to(jnp.sum(jnp.where(vector == row, number, 0.0), 0, keepdims=True), self.tile)
        from jax.experimental.pallas import triton

        result = jax.ShapeDtypeStruct(self.tile, jnp.float64)
        given = {"constraints": "=d,d,r", "pack": 1, "args": (number, row * self.tile[1] + lane)}
        return triton.elementwise_inline_asm(EXCHANGE, result_shape_dtypes=[result], **given)[0]


def _orthonormal(columns: list[Any], vector: Any, count: int, of_row: Callable[..., Any]) -> tuple[list[Any], Any]:
    """What `tangents.orthonormalise` finds, of vectors [number in the thread][coordinate]: vectors, and two sums of each.

    `of_row(row, number)` is the number that the thread in a row has.
    """
    before, lengths = [_length(column) for column in columns], []
    for number in range(len(columns)):

        def without(row: Any, carry: Any, number: int = number) -> Any:
            columns, length = carry
            here = vector == row
            unit = [of_row(row, x) for x in columns[number]] if vector.shape[0] > 1 else columns[number]
            size = _length(unit)
            inverse = jnp.where(size > 0, 1 / size, 0.0)
            unit, changed = [x * inverse for x in unit], list(columns)
            for other in range(number, len(columns)):
                share = functools.reduce(lax.add, (x * y for x, y in zip(unit, columns[other], strict=True)))
                share = share if other > number else jnp.where(vector > row, share, 0.0)
                changed[other] = [y - x * share for x, y in zip(unit, columns[other], strict=True)]
            changed[number] = [jnp.where(here, x, y) for x, y in zip(unit, changed[number], strict=True)]
            return changed, jnp.where(here, size, length)

        rows = min(vector.shape[0], count - number * vector.shape[0])
        columns, length = lax.fori_loop(np.int32(0), np.int32(rows), without, (columns, jnp.zeros(vector.shape)))
        lengths.append(length)
    lost = [jnp.where(length <= LOST * old, 1.0, 0.0) for length, old in zip(lengths, before, strict=True)]
    return columns, ([jnp.log(jnp.where(length > 0, length, 1.0)) for length in lengths], lost)


def _length(column: Iterable[Any]) -> Any:
    return lax.sqrt(functools.reduce(lax.add, (x * x for x in column)))


def _of_one_lane(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*array.shape[:-1], 1) if array.ndim else (), array.dtype)


def _table(arrays: Sequence[Any], lanes: int) -> Any:
    """Arrays [..., lane] and numbers of all lanes as rows of floats; whole numbers keep their bits."""
    rows = (array.reshape(-1, lanes) if array.ndim else jnp.broadcast_to(array, (1, lanes)) for array in arrays)
    return jnp.concatenate([_to_float(row) for row in rows])


def _arrays(table: Any, like: Sequence[Any]) -> list[Any]:
    """The inverse of `_table`."""
    found, first = [], 0
    for array in like:
        size = int(np.prod(_of_one_lane(array).shape))
        rows = _from_float(table[first : first + size], array.dtype)
        found.append(rows.reshape(array.shape) if array.ndim else rows[0, 0])
        first += size
    return found


def _to_float(entry: Any) -> Any:
    if jnp.issubdtype(entry.dtype, jnp.floating):
        return entry.astype(jnp.float64)
    return lax.bitcast_convert_type(entry.astype(jnp.int64), jnp.float64)


def _from_float(entry: Any, dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return entry.astype(dtype)
    return lax.bitcast_convert_type(entry, jnp.int64).astype(dtype)

"""The loop of the engine as one GPU kernel: a thread takes all steps of a lane, and no step waits for a launch.

A map is traced for one lane, and written out number by number (`Scalars`). A thread has one lane, and with exponents
one tangent vector of it. The kernel computes what `engine.run` computes, for any map and recorders that can be written
out. It is made with Pallas and Triton for CUDA, unless the environment variable `THERMOFORMER_KERNEL` is `off`.
Everything else runs step by step.
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
from .scalars import Scalars, UnsupportedError, array_of
from .tangents import LOST, UNROLLED

# A block of threads is one warp: its threads exchange numbers without memory.
WARP = 32
# Moves a number from the thread that an index names, in two halves of 32 bits each.
EXCHANGE = """{ .reg .b32 low, high; mov.b64 {low, high}, $1; shfl.sync.idx.b32 low, low, $2, 31, -1;
shfl.sync.idx.b32 high, high, $2, 31, -1; mov.b64 $0, {low, high}; }"""
# A table is read in at most this many parts: Triton's time to compile grows as the number of memory accesses times the
# square of that of operations, and with large parts a thread needs more registers.
PARTS, SMALLEST_PART = 8, 8
# Steps of one launch without tangent vectors, and steps times numbers in all tangent vectors: a few tenths of a second
# with as many lanes as a batch has.
STEPS_AT_ONCE, NUMBERS_AT_ONCE = 2**15, 2**34


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

    def steps_at_once(self, columns: Any) -> int:
        """Steps of one launch with these tangent vectors, so few that Ctrl-C is heard within a second."""
        if columns is None:
            return STEPS_AT_ONCE
        return min(STEPS_AT_ONCE // (1 + len(columns)), NUMBERS_AT_ONCE // columns.size)

    def __call__(self, lanes: Lanes, recorders: tuple[Any, ...], every: int, carry: Any, turns: Any) -> Any:
        """The carry after some turns."""
        leaves = zip(jax.tree.leaves(lanes), self.known, strict=True)
        varying = [leaf for leaf, known in leaves if known is None]
        return _launch(self, every, varying, recorders, carry, np.int32(turns))

    def lanes(self, varying: Sequence[Any]) -> Lanes:
        """The lanes with these arrays."""
        rest = iter(varying)
        return jax.tree.unflatten(self.structure, [next(rest) if one is None else one.array for one in self.known])

    def step(self, varying: Sequence[Any], recorders: Any, state: Any, sums: Any, column: Any) -> Any:
        """A step of the lanes: the state, sums and a tangent vector after it, and the bins that are counted."""
        lanes = self.lanes(varying)
        after, column = lanes.step(state), None if column is None else lanes.tangent(state, column)
        pairs = list(zip(recorders, sums, strict=True))
        sums = [part if recorder.bins else recorder.update(part, lanes, state, after) for recorder, part in pairs]
        return after, sums, column, [recorder.places(lanes, state) for recorder in recorders if recorder.bins]


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
    # Counts are floats in the kernel, because some versions of Pallas take every atomic sum for one of floats.
    extra = -lanes % body.tile[1]
    tables, stored = [_table([*fixed, *kept], lanes)], sum(body.sizes[body.fixed + leaf] for leaf in body.stored)
    tables = [jnp.pad(tables[0], ((0, -len(tables[0]) % body.rows), (0, 0)))]
    out = [jax.ShapeDtypeStruct((stored + -stored % body.rows, lanes + extra), jnp.float64)]
    if columns is not None:
        rows = columns.reshape(len(columns), -1, lanes)
        filled = jnp.pad(rows, ((0, body.tile[0] - len(rows)), (0, body.width - rows.shape[1]), (0, 0)))
        tables.append(filled.reshape(-1, lanes))
        out.append(jax.ShapeDtypeStruct((len(tables[1]), lanes + extra), jnp.float64))
    tables = [jnp.pad(table, ((0, 0), (0, extra)), mode="edge") for table in tables]
    counts = [jnp.pad(array.astype(jnp.float64), ((0, 1), (0, extra))) for array in counts]
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
    for leaf, array in zip(body.stored, _arrays(found[0], [kept[leaf] for leaf in body.stored]), strict=True):
        kept[leaf] = array
    state, small = jax.tree.unflatten(structure, kept)
    copies = kernel.lanes(varying)
    state = copies.whole(copies.core(state))
    counts = iter(jax.tree.unflatten(counted, [array[:-1].astype(jnp.int32) for array in found[len(out) :]]))
    sums = tuple(next(counts) if recorder.bins else part for recorder, part in zip(recorders, small, strict=True))
    if columns is None:
        return state, sums, None, None
    new = found[1].reshape(body.tile[0], body.width, lanes)[: len(columns)]
    growth = growth[0] + new[:, body.dimension], growth[1] + new[:, body.dimension + 1]
    return state, sums, new[:, : body.dimension].reshape(columns.shape), growth


class _Body:
    """What every block of threads does: thread v · B + b of a tile [vector, lane] of R · B has vector v of lane b.

    Tables have a row for each number of a lane, or `width` rows for each of its vectors: the coordinates of the vector
    and two numbers of its growth. The numbers that are the same for all vectors of a lane are computed by all of their
    threads.
    """

    def __init__(self, kernel: Kernel, every: int, varying: Any, recorders: Any, state: Any, sums: Any, columns: Any):
        self.interpret, self.every = kernel.interpret, every
        self.vectors = 0 if columns is None else len(columns)
        if self.vectors > UNROLLED:
            raise UnsupportedError(f"more than {UNROLLED} exponents")
        rows = 1 << max(self.vectors - 1, 0).bit_length()
        self.tile = (rows, WARP // rows)
        sums = [() if recorder.bins else part for recorder, part in zip(recorders, sums, strict=True)]
        one = jax.tree.map(_of_one_lane, (varying, recorders, state, sums))
        column = None if columns is None else _of_one_lane(columns[0])
        closed = jax.make_jaxpr(kernel.step)(*one, column)
        self.jaxpr, self.constants = closed.jaxpr, [np.asarray(constant) for constant in closed.consts]
        # The leaves of `one`, of which those of the lanes and recorders stay as they are, and the tangent vector.
        leaves, self.fixed = jax.tree.leaves((one, column)), len(jax.tree.leaves(one[:2]))
        self.shapes, self.types = [leaf.shape for leaf in leaves], [leaf.dtype for leaf in leaves]
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.dimension = self.sizes.pop() if column else 0
        # Rows of a part, a power of two.
        self.rows = max(1 << (sum(self.sizes) // PARTS).bit_length(), SMALLEST_PART)
        self.width = self.dimension + 2 + -(self.dimension + 2) % self.rows
        # Only leaves that change and do not follow from others are stored.
        state, structure = jax.tree.flatten(state)
        numbers = jax.tree.unflatten(structure, range(len(state)))
        core = jax.tree.leaves(kernel.lanes(jax.tree.leaves(varying)).core(numbers))
        before, after = self.jaxpr.invars[self.fixed :], self.jaxpr.outvars[: len(self.sizes) - self.fixed]
        changing = [leaf for leaf, each in enumerate(after) if each is not before[leaf]]
        self.stored = [leaf for leaf in changing if leaf in core or leaf >= len(state)]

    def __call__(self, turns: Any, *refs: Any) -> None:
        from jax.experimental import pallas as pl

        tables = 2 if self.vectors else 1
        counted = len(refs) // 2 - tables
        given, made, counts = refs[:tables], refs[tables + counted : len(refs) - counted], refs[len(refs) - counted :]
        vector, lane = (lax.broadcasted_iota(jnp.int32, self.tile, axis) for axis in (0, 1))
        thread, of_row = vector * self.tile[1] + lane, functools.partial(self.of_row, vector, lane)
        # Were threads in another order, growth would be nan, and `engine` would use no kernel.
        in_order = of_row(0, thread.astype(jnp.float64)).astype(jnp.int32) == lane
        growth = [jnp.where(in_order, 0.0, jnp.nan)] * 2
        lane = pl.program_id(0) * self.tile[1] + lane
        types = (each for each, size in zip(self.types, self.sizes, strict=False) for _ in range(size))
        loaded = self.read(given[0], 0, lane, sum(self.sizes))
        numbers = [_from_float(number, each) for number, each in zip(loaded, types, strict=True)]
        fixed, own = sum(self.sizes[: self.fixed]), vector * self.width
        column = self.read(given[1], own, lane, self.dimension) if self.vectors else []

        def one(_: Any, carry: Any) -> Any:
            changing, column = carry
            scalars = Scalars(self.tile)
            inputs = self.arrays([*numbers[:fixed], *changing, *column])
            found = scalars.evaluate(self.jaxpr, self.constants, inputs)
            found = [scalars.variable(entry) for array in found for entry in array.ravel()]
            for index, count in zip(found[len(found) - counted :], counts, strict=True):
                self.count(count, jnp.where(vector == 0, index, count.shape[0] - 1), lane)
            return found[: len(changing)], found[len(changing) : len(found) - counted]

        def turn(_: Any, carry: Any) -> Any:
            inner, growth = carry
            changing, column = one(0, inner) if self.every == 1 else lax.fori_loop(0, self.every, one, inner)
            if self.vectors:
                column, *new = _orthonormal(column, vector, self.vectors, of_row)
                growth = [total + more for total, more in zip(growth, new, strict=True)]
            return (changing, column), growth

        (changing, column), growth = lax.fori_loop(np.int32(0), turns[0], turn, ((numbers[fixed:], column), growth))
        ends = np.cumsum([0, *self.sizes[self.fixed :]])
        stored = [_to_float(number) for leaf in self.stored for number in changing[ends[leaf] : ends[leaf + 1]]]
        self.write(made[0], 0, lane, stored)
        if self.vectors:
            self.write(made[1], own, lane, [*column, *growth])

    def arrays(self, numbers: Iterable[Any]) -> list[np.ndarray]:
        """Numbers in the shapes of the leaves."""
        rest = iter(numbers)
        return [array_of(list(itertools.islice(rest, int(np.prod(shape)))), shape) for shape in self.shapes]

    def read(self, table: Any, first: Any, lane: Any, count: int) -> list[Any]:
        """The numbers of each thread, in rows of a table from its first one on."""
        numbers: list[Any] = []
        for row in range(0, count, self.rows):
            parts = lax.split(table[self.places(first + row, lane)], (1,) * self.rows, 0)
            numbers += [part.reshape(lane.shape) for part in parts]
        return numbers[:count]

    def write(self, table: Any, first: Any, lane: Any, numbers: Sequence[Any]) -> None:
        """The inverse of `read`; what is left of the last part has copies of the last number."""

        def together(numbers: Sequence[Any]) -> Any:
            if len(numbers) == 1:
                return numbers[0][..., None]
            halves = [together(numbers[half::2])[..., None] for half in (0, 1)]
            return jnp.concatenate(halves, -1).reshape(*lane.shape, len(numbers))

        for row in range(0, len(numbers), self.rows):
            some = [*numbers[row : row + self.rows]]
            some += some[-1:] * (self.rows - len(some))
            table[self.places(first + row, lane)] = jnp.moveaxis(together(some), -1, 0)

    def places(self, first: Any, lane: Any) -> tuple[Any, Any]:
        """The rows of a part and the lanes, [row, *thread] each."""
        shape = (self.rows, *lane.shape)
        rows = jnp.broadcast_to(first, lane.shape)[None] + lax.broadcasted_iota(jnp.int32, shape, 0)
        return rows, jnp.broadcast_to(lane[None], shape)

    def count(self, counts: Any, index: Any, lane: Any) -> None:
        """Adds 1 in the bin of every lane; the last bin is not read."""
        from jax.experimental.pallas import triton

        mask = None if self.interpret else index < counts.shape[0] - 1
        triton.atomic_add(counts, (index, lane), lax.full(self.tile, 1.0, jnp.float64), mask=mask)

    def of_row(self, vector: Any, lane: Any, row: Any, number: Any) -> Any:
        """What the thread in a row has, for all threads of a lane."""
        if self.tile[0] == 1:
            return number
        if self.interpret:
            bits = jnp.where(vector == row, lax.bitcast_convert_type(number, jnp.int64), 0)
            found = jnp.broadcast_to(jnp.sum(bits, 0, keepdims=True), self.tile)
            return lax.bitcast_convert_type(found, jnp.float64)
        from jax.experimental.pallas import triton

        result = jax.ShapeDtypeStruct(self.tile, jnp.float64)
        given = {"constraints": "=d,d,r", "pack": 1, "args": (number, row * self.tile[1] + lane)}
        return triton.elementwise_inline_asm(EXCHANGE, result_shape_dtypes=[result], **given)[0]


def _orthonormal(column: list[Any], vector: Any, count: int, of_row: Callable[..., Any]) -> tuple[list[Any], Any, Any]:
    """What `tangents.orthonormalise` finds: the tangent vector of each thread, [coordinate], and two numbers of it.

    `of_row(row, number)` is the number that the thread in a row has, and `vector` the row of each thread.
    """
    before = _length(column)

    def without(row: Any, carry: Any) -> Any:
        column, length = carry
        unit = [of_row(row, x) for x in column]
        size = _length(unit)
        inverse = jnp.where(size > 0, 1 / size, 0.0)
        unit = [x * inverse for x in unit]
        share = functools.reduce(lax.add, (x * y for x, y in zip(unit, column, strict=True)))
        share = jnp.where(vector > row, share, 0.0)
        column = [jnp.where(vector == row, x, y - x * share) for x, y in zip(unit, column, strict=True)]
        return column, jnp.where(vector == row, size, length)

    column, length = lax.fori_loop(np.int32(0), np.int32(count), without, (column, jnp.zeros_like(before)))
    return column, jnp.log(jnp.where(length > 0, length, 1.0)), jnp.where(length <= LOST * before, 1.0, 0.0)


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

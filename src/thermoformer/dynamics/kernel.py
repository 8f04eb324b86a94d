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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .maps import Lanes, Map
from .scalars import Scalars, array_of
from .tangents import LOST

# Threads of a block, and tangent vectors of one thread. More vectors need more registers; fewer need more threads, each
# of which computes the step, and more exchange between them.
THREADS, VECTORS = 32, 3
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
    vectors = 0 if columns is None else len(columns)
    in_thread = min(VECTORS, vectors)
    rows = 1 << (-(-vectors // max(in_thread, 1)) - 1).bit_length() if vectors else 1
    tile = (rows, max(THREADS // rows, 1))
    # Numbers of lanes in one table [row, lane], those first that do not change.
    small = [() if recorder.bins else part for recorder, part in zip(recorders, sums, strict=True)]
    counts = jax.tree.leaves([part for recorder, part in zip(recorders, sums, strict=True) if recorder.bins])
    fixed, (changing, kept) = jax.tree.leaves((varying, recorders)), jax.tree.flatten((state, small))
    lanes = next(array.shape[-1] for array in changing if array.ndim)
    tables = [_table([*fixed, *changing], lanes)]
    one = jax.tree.map(_of_one_lane, (varying, recorders, state, small))
    column = [] if columns is None else [jax.ShapeDtypeStruct((*columns.shape[1:-1], 1), columns.dtype)]
    closed = jax.make_jaxpr(kernel.step)(*one, column * in_thread)
    shapes = [_of_one_lane(array).shape for array in (*fixed, *changing)]
    size = 0 if columns is None else int(np.prod(columns.shape[1:-1]))
    if columns is not None:
        filled = jnp.pad(columns.reshape(vectors, size, lanes), ((0, in_thread * rows - vectors), (0, 0), (0, 0)))
        tables.append(filled.reshape(-1, lanes))
    extra = -lanes % tile[1]
    tables = [jnp.pad(table, ((0, 0), (0, extra)), mode="edge") for table in tables]
    counts = [jnp.pad(array, ((0, 1), (0, extra))) for array in counts]  # the last bin is for what is not counted

    def body(*refs: Any) -> None:
        refs_in, refs_out = refs[: 1 + len(tables) + len(counts)], refs[1 + len(tables) + len(counts) :]
        lane = pl.program_id(0) * tile[1] + lax.broadcasted_iota(jnp.int32, tile, 1)
        vector = lax.broadcasted_iota(jnp.int32, tile, 0)
        table = iter(range(len(shapes) and sum(int(np.prod(shape)) for shape in shapes)))
        loaded = []
        for array, shape in zip((*fixed, *changing), shapes, strict=True):
            entries = [_from_float(refs_in[1][next(table), lane], array.dtype) for _ in range(int(np.prod(shape)))]
            loaded.append(entries)
        constant = [array_of(entries, shape) for entries, shape in zip(loaded[: len(fixed)], shapes, strict=False)]
        place = lambda number, entry: (number * rows + vector) * size + entry  # noqa: E731
        pushed = [[refs_in[2][place(number, entry), lane] for entry in range(size)] for number in range(in_thread)]
        zero = [lax.full(tile, 0.0, jnp.float64)] * in_thread

        def one_step(_: Any, carry: Any) -> Any:
            numbers, columns = carry
            scalars = Scalars(tile)
            groups = [array_of(entries, shape) for entries, shape in zip(numbers, shapes[len(fixed) :], strict=True)]
            groups += [array_of(entries, column[0].shape) for entries in columns]
            found = scalars.evaluate(closed.jaxpr, [np.asarray(one) for one in closed.consts], [*constant, *groups])
            entries = [[scalars.variable(entry) for entry in array.ravel()] for array in found]
            after = entries[: len(changing)]
            for index, count in zip(entries[len(changing) + in_thread :], refs_out[-len(counts) :], strict=counts != []):
                # Only one of the threads of a lane counts.
                index = lax.select(vector == 0, index[0], lax.full_like(index[0], count.shape[0] - 1))
                inside = None if kernel.interpret else index < count.shape[0] - 1
                triton.atomic_add(count, (index, lane), lax.full(tile, 1, jnp.int32), mask=inside)
            return after, entries[len(changing) : len(changing) + in_thread]

        def turn(_: Any, carry: Any) -> Any:
            inner, sums = carry
            after, columns = one_step(0, inner) if every == 1 else lax.fori_loop(0, every, one_step, inner)
            if not columns:
                return (after, columns), sums
            columns, lengths, lost = _orthonormal(columns, vector, vectors)
            logarithms = [lax.log(lax.select(one > 0, one, lax.full_like(one, 1.0))) for one in lengths]
            both = [[total + new for total, new in zip(*pair, strict=True)] for pair in zip(sums, (logarithms, lost))]
            return (after, columns), both

        carry = ((loaded[len(fixed) :], pushed), [zero, zero])
        (numbers, pushed), sums = lax.fori_loop(np.int32(0), refs_in[0][0], turn, carry)
        for row, entry in enumerate(itertools.chain(*numbers)):
            refs_out[0][row, lane] = _to_float(entry)
        for number, entries in enumerate(pushed):
            for entry, value in enumerate(entries):
                refs_out[1][place(number, entry), lane] = value
            for which in (0, 1):
                refs_out[2][(which * in_thread + number) * rows + vector, lane] = sums[which][number]

    changed = sum(int(np.prod(shape)) for shape in shapes[len(fixed) :])
    width = lanes + extra
    out = [(changed, width)] + ([(in_thread * rows * size, width), (2 * in_thread * rows, width)] if vectors else [])
    out = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in out]
    found = pl.pallas_call(
        body,
        grid=(width // tile[1],),
        out_shape=[*out, *(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in counts)],
        input_output_aliases={1 + len(tables) + number: len(out) + number for number in range(len(counts))},
        interpret=kernel.interpret,
        compiler_params=triton.CompilerParams(num_warps=max(tile[0] * tile[1] // 32, 1), num_stages=1),
        name="orbits",
    )(turns[None], *tables, *counts)
    found = [array[..., :lanes] for array in found]
    state, small = jax.tree.unflatten(kept, _arrays(found[0], changing))
    counted = iter(found[len(out) :])
    sums = tuple(
        jax.tree.map(lambda _: next(counted)[:-1], old) if recorder.bins else new
        for recorder, old, new in zip(recorders, sums, small, strict=True)
    )
    if columns is None:
        return state, sums, None, None
    columns = found[1].reshape(-1, size, lanes)[:vectors].reshape(columns.shape)
    new = found[2].reshape(2, -1, lanes)[:, :vectors]
    return state, sums, columns, (growth[0] + new[0], growth[1] + new[1])


def _orthonormal(columns: Any, vector: Any, count: int) -> tuple[Any, Any, Any]:
    """`tangents.orthonormalise` of vectors of which every thread has some: vector, [number in the thread][coordinate].

    Vector k·R + r is the k-th of the thread in row r, of R rows.
    """
    rows, zero = vector.shape[0], lax.full(vector.shape, 0.0, jnp.float64)
    before = [_length(column) for column in columns]
    lengths = [zero] * len(columns)
    for number in range(len(columns)):

        def without(row: Any, carry: Any, number: int = number) -> Any:
            columns, length = carry
            here, later = vector == row, vector > row
            unit = columns[number]
            if rows > 1:  # all threads of a lane get the vector of one
                unit = [jnp.broadcast_to(jnp.sum(jnp.where(here, x, 0.0), 0, keepdims=True), x.shape) for x in unit]
            size = _length(unit)
            inverse = jnp.where(size > 0, 1 / size, 0.0)
            unit = [x * inverse for x in unit]
            changed = list(columns)
            for other in range(number, len(columns)):
                share = functools.reduce(lax.add, (x * y for x, y in zip(unit, columns[other], strict=True)))
                share = jnp.where(later, share, 0.0) if other == number else share
                changed[other] = [y - x * share for x, y in zip(unit, columns[other], strict=True)]
            changed[number] = [jnp.where(here, x, y) for x, y in zip(unit, changed[number], strict=True)]
            return changed, jnp.where(here, size, length)

        left = min(rows, count - number * rows)
        columns, lengths[number] = lax.fori_loop(np.int32(0), np.int32(left), without, (columns, zero))
    lost = [jnp.where(one <= LOST * other, 1.0, 0.0) for one, other in zip(lengths, before, strict=True)]
    return columns, lengths, lost


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

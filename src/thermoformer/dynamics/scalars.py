"""Traced functions of arrays, written out as operations on single numbers: what one thread of a GPU can compute."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Triton's time to compile a step grows faster than its operations. A mean field with context 8, two heads of three
# features and 24 exponents has about 1400.
MOST_OPERATIONS = 2000

_ELEMENTWISE = frozenset(
    "abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp convert_element_type cos cosh div eq "
    "erf_inv exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min mul ne neg nextafter "
    "not or pow rem rsqrt select_n sign sin sinh sqrt square sub tan tanh xor".split()
)
# Primitives that call a function, and the parameter that holds it.
_CALLS = dict.fromkeys(("jit", "pjit", "remat2", "checkpoint"), "jaxpr")
_CALLS |= dict.fromkeys(("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr")
_REDUCTIONS = {"reduce_sum": lax.add_p, "reduce_max": lax.max_p, "reduce_min": lax.min_p, "reduce_prod": lax.mul_p}
_REDUCTIONS |= {"reduce_and": lax.and_p, "reduce_or": lax.or_p}
# Primitives that move entries, called as move(parameters, shape of the result, *inputs).
_MOVES: dict[str, Callable[..., np.ndarray]] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), lambda given, shape, x: x.reshape(shape)),
    **dict.fromkeys(("copy", "stop_gradient"), lambda given, shape, x: x),
    "broadcast_in_dim": lambda given, shape, x, *_: np.broadcast_to(
        np.expand_dims(x, tuple(set(range(len(shape))) - set(given["broadcast_dimensions"]))), shape
    ),
    "concatenate": lambda given, shape, *some: np.concatenate(some, given["dimension"]),
    "slice": lambda given, shape, x: x[
        tuple(map(slice, given["start_indices"], given["limit_indices"], given["strides"] or (1,) * x.ndim))
    ],
    "transpose": lambda given, shape, x: x.transpose(given["permutation"]),
    "rev": lambda given, shape, x: np.flip(x, given["dimensions"]),
}
# Others that move entries to places that must be known, and the inputs whose entries they move.
_MOVES_BY_INDEX = {"gather": (0,), "scatter": (0, 2), "pad": (0, 1), "split": (0,)}


class UnsupportedError(Exception):
    """What a kernel cannot do."""


class Scalars:
    """Evaluates a traced function number by number, with variables of one shape.

    A value is a NumPy array: of numbers if they are known, else of objects, a variable for each entry. Moving entries
    costs nothing. Equal operations on the same variables are done once.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.done: dict[Any, tuple[Any, Any]] = {}

    def evaluate(self, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any]) -> list[np.ndarray]:
        """The results of a function [result] for constants and inputs."""
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *inputs), strict=True))

        def value(atom: Any) -> np.ndarray:
            return np.asarray(atom.val, atom.aval.dtype) if hasattr(atom, "val") else known[atom]

        for equation in jaxpr.eqns:
            given = [value(atom) for atom in equation.invars]
            known.update(zip(equation.outvars, self.results(equation, given), strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def results(self, equation: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """The results of one equation."""
        primitive, given, shape = equation.primitive, equation.params, equation.outvars[0].aval.shape
        if (name := primitive.name) in _CALLS:
            inner = given[_CALLS[name]]
            return self.evaluate(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs)
        if name in _MOVES:
            return [_MOVES[name](given, shape, *inputs)]
        if all(array.dtype != object for array in inputs):
            return _at_once(equation, inputs)
        if name in _ELEMENTWISE:
            return [self.each(primitive, given, shape, *inputs)]
        if name in _REDUCTIONS:
            rows = np.moveaxis(inputs[0], given["axes"], range(len(given["axes"]))).reshape(-1, *shape)
            return [self.joined(_REDUCTIONS[name], rows)]
        if name == "dot_general":
            return [self.products(given["dimension_numbers"], *inputs).reshape(shape)]
        if name in ("dynamic_slice", "dynamic_update_slice"):
            return [self.at_index(shape, inputs, given.get("slice_sizes"))]
        if name in _MOVES_BY_INDEX:
            return _moved(equation, inputs)
        raise UnsupportedError(f"{name} of numbers that are not known before")

    def each(self, primitive: Any, given: dict[str, Any], shape: tuple[int, ...], *inputs: np.ndarray) -> np.ndarray:
        """An operation on every entry."""
        entries = zip(*(np.broadcast_to(array, shape).ravel() for array in inputs), strict=True)
        return array_of([self.once(primitive, given, list(numbers)) for numbers in entries], shape)

    def once(self, primitive: Any, given: dict[str, Any], numbers: list[Any]) -> Any:
        """An operation on numbers that may have been done before."""
        if primitive is lax.select_n_p and numbers[1] is numbers[2]:
            return numbers[1]
        key = (primitive, str(given), *map(_identity, numbers))
        if key not in self.done:
            if len(self.done) > MOST_OPERATIONS:
                raise UnsupportedError(f"more than {MOST_OPERATIONS} operations in a step")
            function = _EXACT.get(primitive, functools.partial(primitive.bind, **given))
            # The numbers are kept, since another one could get the id of one that is not.
            self.done[key] = function(*map(self.variable, numbers)), numbers
        return self.done[key][0]

    def variable(self, number: Any) -> Any:
        """A number as a variable."""
        return number if isinstance(number, jax.Array) else lax.full(self.shape, number)

    def joined(self, primitive: Any, rows: Any) -> np.ndarray:
        """Rows joined by an operation, one after another."""
        each = (rows[number, ...] for number in range(len(rows)))  # arrays, also if they have no axes
        return functools.reduce(lambda one, other: self.each(primitive, {}, one.shape, one, other), each)

    def products(self, numbers: Any, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Sums of products [batch, left, right]."""
        sides = []
        for array, summed, batch in zip((left, right), *numbers, strict=True):
            free = [axis for axis in range(array.ndim) if axis not in (*summed, *batch)]
            sizes = [int(np.prod([array.shape[axis] for axis in axes])) for axes in (batch, free, summed)]
            sides.append(array.transpose(*batch, *free, *summed).reshape(sizes))
        left, right = sides[0][:, :, None], sides[1][:, None]
        terms = self.each(lax.mul_p, {}, np.broadcast_shapes(left.shape, right.shape), left, right)
        return self.joined(lax.add_p, np.moveaxis(terms, -1, 0))

    def at_index(self, shape: tuple[int, ...], inputs: list[np.ndarray], sizes: Any) -> np.ndarray:
        """A slice that begins at an index, or another array put there: one of those for all values of the index."""
        (array, *new), starts = (inputs[:1], inputs[1:]) if sizes else (inputs[:2], inputs[2:])
        most = np.array(array.shape) - (sizes or new[0].shape)
        unknown = [axis for axis, start in enumerate(starts) if start.dtype == object]
        if len(unknown) > 1:
            raise UnsupportedError("a slice at more than one index that is not known before")

        def at(value: int) -> np.ndarray:
            first = [value if axis in unknown else int(start) for axis, start in enumerate(starts)]
            where = tuple(
                slice(low, low + size) for low, size in zip(np.clip(first, 0, most), sizes or new[0].shape, strict=True)
            )
            if sizes:
                return array[where]
            changed = array.astype(object)
            changed[where] = new[0]
            return changed

        if not unknown:
            return at(0)
        result, index = at(last := int(most[unknown[0]])), starts[unknown[0]]
        for value in reversed(range(last)):
            before = self.each(lax.le_p, {}, (), index, np.asarray(value, index.item().dtype))
            result = self.each(lax.select_n_p, {}, shape, before, result, at(value))
        return result


def array_of(entries: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """An array of objects; NumPy would look into each for entries of its own."""
    array = np.empty(len(entries), object)
    for number, entry in enumerate(entries):
        array[number] = entry
    return array.reshape(shape)


def _identity(number: Any) -> Any:
    return id(number) if isinstance(number, jax.Array) else (np.asarray(number).dtype, np.asarray(number).tobytes())


def _extreme(comparison: Callable[..., Any]) -> Callable[..., Any]:
    """The larger or the smaller number; nan if one is nan, of which Triton would return the other."""
    return lambda one, other: lax.select(comparison(one, other) | (one != one), one, other)


_EXACT = {lax.max_p: _extreme(lax.gt), lax.min_p: _extreme(lax.lt)}


def _at_once(equation: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results for known inputs."""
    with jax.ensure_compile_time_eval():
        found = equation.primitive.bind(*map(jnp.asarray, inputs), **equation.params)
        return [np.asarray(one) for one in (found if equation.primitive.multiple_results else [found])]


def _moved(equation: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Moves the places of entries in place of entries, to see from where each comes."""
    data, first, places = _MOVES_BY_INDEX[equation.primitive.name], 0, list(inputs)
    for number in data:
        places[number] = np.arange(first, first + inputs[number].size).reshape(inputs[number].shape)
        first += inputs[number].size
    if any(array.dtype == object for array in places):
        raise UnsupportedError(f"{equation.primitive.name} at places that are not known before")
    entries = np.concatenate([inputs[number].astype(object).ravel() for number in data])
    found = _at_once(equation, places)
    if not all(((array >= 0) & (array < first)).all() for array in found):
        raise UnsupportedError(f"{equation.primitive.name} out of bounds")
    return [entries[array.ravel()].reshape(array.shape) for array in found]

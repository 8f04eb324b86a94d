"""Many copies of a map side by side: the lane is the last axis of every array.

A lane is one parameter set with one state. Every operation is elementwise over lanes, so that a CPU fills its vector
units and a GPU its threads with lanes, whatever the map does inside a lane. Small axes (token, head, feature) come
first and are summed with reductions: XLA keeps what a reduction reads in memory instead of computing it again for
every reader, which a chain of elementwise operations does not get.

A step with tangents is split in two: `linearise` finds the step and its Jacobian at a state, `push` and `advance` apply
them to tangent vectors and to the state. A loop that carries the linearisation from one turn to the next has it in
memory, once, for all tangent vectors.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .. import _precision  # noqa: F401  (float64 before the first array)

State = TypeVar("State")

# A sum of up to this many products is written out term by term.
WRITTEN_OUT = 128


class Lanes(eqx.Module, Generic[State]):
    """What orbits, exponents and diagrams need of a map."""

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """How many lanes there are."""

    @abc.abstractmethod
    def step(self, state: State) -> State:
        """One step of every lane."""

    @abc.abstractmethod
    def prepare(self, state: State) -> Any:
        """The state as `linearise` and `advance` want it."""

    @abc.abstractmethod
    def linearise(self, state: Any) -> Any:
        """The next step at a prepared state: where it leads and its Jacobian."""

    @abc.abstractmethod
    def push(self, linear: Any, columns: Array) -> Array:
        """Tangent vectors [vector, *coordinates, lane], one step on."""

    @abc.abstractmethod
    def advance(self, state: Any, linear: Any) -> Any:
        """A prepared state, one step on."""

    @abc.abstractmethod
    def bare(self, prepared: Any) -> State:
        """The state inside a prepared one."""

    @abc.abstractmethod
    def columns(self, state: State, vectors: Float[Array, "vector coordinate"]) -> Array:
        """Tangent vectors at a state, the same in all lanes, as `push` takes them; the inverse of `in_order`."""

    @abc.abstractmethod
    def coordinates(self, state: State) -> Float[Array, "coordinate lane"]:
        """Where a state is, in an order that does not depend on the step."""

    @abc.abstractmethod
    def at(self, coordinates: Float[Array, "coordinate lane"]) -> State:
        """The state with these coordinates, at the positions where the lanes began."""

    @abc.abstractmethod
    def in_order(self, state: State, column: Array) -> Float[Array, "coordinate lane"]:
        """A tangent vector at a state, in the order of the coordinates."""

    @abc.abstractmethod
    def shared(self, place: Callable[[Array], Array]) -> Lanes[State]:
        """The same lanes with arrays of one entry per lane placed elsewhere."""

    @abc.abstractmethod
    def returns_count(self, steps: Int[Array, ""]) -> Array:
        """Whether equal coordinates so many steps apart are equal states."""

    @abc.abstractmethod
    def change(self, before: State, after: State) -> Float[Array, " lane"]:
        """How far one step leads away from where the orbit was at the same positions, squared."""

    @abc.abstractmethod
    def observe(self, state: State) -> Float[Array, "feature lane"]:
        """What diagrams show of a state."""


class StepLanes(Lanes[Array]):
    """Any step function of a vector.

    Fields:
        function: called as function(x, **parameters) on one lane, x [coordinate].
        parameters: by name, one per lane.
        size: how many lanes.
    """

    function: Callable[..., Any] = eqx.field(static=True)
    parameters: dict[str, Float[Array, " lane"]]
    size: int = eqx.field(static=True)

    @property
    def count(self) -> int:
        """How many lanes there are."""
        return self.size

    def step(self, state: Array) -> Array:
        """One step of every lane."""
        return jax.vmap(self._one, in_axes=(-1, -1), out_axes=-1)(state, self.parameters)

    def prepare(self, state: Array) -> Array:
        """Nothing to prepare."""
        return state

    def linearise(self, state: Array) -> tuple[Array, Array]:
        """The next state, and the Jacobian [from coordinate, coordinate, lane]."""
        jacobian = jax.vmap(jax.jacfwd(self._one), in_axes=(-1, -1), out_axes=-1)(state, self.parameters)
        return self.step(state), jnp.swapaxes(jacobian, 0, 1)

    def push(self, linear: tuple[Array, Array], columns: Array) -> Array:
        """Tangent vectors [vector, coordinate, lane], one step on."""
        return sum_of_products(linear[1], columns)

    def advance(self, state: Array, linear: tuple[Array, Array]) -> Array:
        """The next state."""
        return linear[0]

    def bare(self, prepared: Array) -> Array:
        """The state."""
        return prepared

    def columns(self, state: Array, vectors: Float[Array, "vector coordinate"]) -> Array:
        """The vectors, once for every lane."""
        return jnp.repeat(vectors[..., None], self.count, axis=-1)

    def coordinates(self, state: Array) -> Array:
        """The state."""
        return state

    def at(self, coordinates: Array) -> Array:
        """The state."""
        return coordinates

    def in_order(self, state: Array, column: Array) -> Array:
        """The tangent vector."""
        return column

    def shared(self, place: Callable[[Array], Array]) -> StepLanes:
        """The same lanes with their parameters placed elsewhere."""
        return StepLanes(self.function, {name: place(value) for name, value in self.parameters.items()}, self.size)

    def returns_count(self, steps: Int[Array, ""]) -> Array:
        """Every return counts."""
        return steps > 0

    def change(self, before: Array, after: Array) -> Float[Array, " lane"]:
        """The step."""
        return jnp.sum((after - before) ** 2, 0)

    def observe(self, state: Array) -> Array:
        """The state."""
        return state

    def _one(self, x: Array, parameters: dict[str, Array]) -> Array:
        return jnp.reshape(jnp.asarray(self.function(x, **parameters), x.dtype), x.shape)


def sum_of_products(
    jacobian: Float[Array, "other coordinate lane"], columns: Float[Array, "vector other lane"]
) -> Float[Array, "vector coordinate lane"]:
    """Σ_other jacobian · column of every vector; few terms are written out, which makes one pass over the vectors."""
    terms = jacobian.shape[0]
    if terms > WRITTEN_OUT:
        return jnp.sum(jacobian[None] * columns[:, :, None], 1)
    total = jacobian[0][None] * columns[:, 0, None]
    for number in range(1, terms):
        total = total + jacobian[number][None] * columns[:, number, None]
    return total

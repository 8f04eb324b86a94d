"""Maps, and many copies of a map side by side: the lane is the last axis of every array.

A lane is one parameter set with one state. Every operation is elementwise over lanes, so that a CPU fills its vector
units and a GPU its threads with lanes, whatever the map does inside a lane. Small axes (token, head, feature) come
first and are summed with reductions: XLA keeps what a reduction reads in memory instead of computing it again for
every reader, as it does for a chain of elementwise operations.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import operator
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _precision  # noqa: F401  (float64 before the first array)
from .._validation import fail, numbers, numpy_for, one_number, real_array, traced

State = TypeVar("State")

# A sum of up to this many products is written out term by term, which makes one pass over the vectors.
WRITTEN_OUT = 128


def pytree(*static: str) -> Callable[[type[State]], type[State]]:
    """Registers a dataclass as a JAX pytree whose named fields are static. It is rebuilt without its checks.

    Records with many methods are no `eqx.Module`: each look-up of a method would cost 30 µs.
    """

    def register(cls: type[State]) -> type[State]:
        dynamic = [each.name for each in dataclasses.fields(cls) if each.name not in static]  # type: ignore[arg-type]

        def parts(record: Any) -> tuple[Any, Any]:
            return [getattr(record, name) for name in dynamic], tuple(getattr(record, name) for name in static)

        def rebuilt(fixed: Any, leaves: Any) -> Any:
            record = object.__new__(cls)
            vars(record).update(zip((*dynamic, *static), (*leaves, *fixed), strict=True))
            return record

        jax.tree_util.register_pytree_node(cls, parts, rebuilt)
        return cls

    return register


def as_one_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled as a whole for traced values: run by themselves, all of its operations would compile."""
    compiled = eqx.filter_jit(function)

    @functools.wraps(function)
    def call(*given: Any) -> Any:
        return (compiled if traced(given) else function)(*given)

    return call


# A state, the state one step later, and the Jacobian of this step [from coordinate, coordinate, lane].
Linear = namedtuple("Linear", ("state", "after", "jacobian"))


class Lanes(eqx.Module, Generic[State]):
    """Copies of a map side by side. A map whose state is a vector [coordinate, lane] defines `step` only.

    A loop with tangent vectors carries the linearisation from step to step: it is in memory once for all vectors.
    """

    phases = 1  # states are equal if their coordinates are, a multiple of this many steps apart

    @abc.abstractmethod
    def step(self, state: State) -> State:
        """One step of every lane."""

    def linearise(self, state: Any) -> Any:
        """The step from a state with its Jacobian; `.state` of the result is the state."""

        def along(direction: Array) -> tuple[Array, Array]:
            return jax.jvp(self.step, (state,), (jnp.broadcast_to(direction[:, None], state.shape),))

        return Linear(state, *jax.vmap(along, out_axes=(None, 0))(jnp.eye(len(state))))

    def push(self, linear: Any, columns: Array) -> Array:
        """Tangent vectors [vector, *coordinates, lane], one step on."""
        return sum_of_products(linear.jacobian, columns)

    def advance(self, linear: Any) -> Any:
        """The linearisation one step on."""
        return self.linearise(linear.after)

    def tangent(self, state: Any, column: Any) -> Any:
        """One tangent vector [*coordinates, lane], one step on."""
        return jax.jvp(self.step, (state,), (column,))[1]

    def for_kernel(self, state: Any) -> tuple[Lanes, Any]:
        """The lanes and their state in the form that takes a single thread the fewest operations."""
        return self, state

    def core(self, state: Any) -> Any:
        """The arrays of a state from which the others follow."""
        return state

    def whole(self, core: Any) -> Any:
        """The state with this core."""
        return core

    def coordinates(self, state: State) -> Float[Array, "coordinate lane"]:
        """Where a state is, in an order that does not depend on the step."""
        return state  # type: ignore[return-value]

    def at(self, coordinates: Any) -> State:
        """The state with these coordinates [coordinate, lane], at the positions where the lanes began."""
        return coordinates

    def states(self, state: Any) -> list[Any]:
        """The states of all lanes, as a user has them."""
        return [vector.copy() for vector in numbers(state).T]

    def columns(self, state: Any, vectors: Float[Array, "vector coordinate"]) -> Array:
        """Tangent vectors at a state, the same in all lanes, as `push` takes them; the inverse of `in_order`."""
        return jnp.repeat(vectors[..., None], state.shape[-1], axis=-1)

    def in_order(self, state: State, column: Array) -> Float[Array, "coordinate lane"]:
        """A tangent vector at a state, in the order of the coordinates."""
        return column

    def change(self, before: Any, after: Any) -> Float[Array, " lane"]:
        """The squared distance from the previous state with the same positions."""
        return jnp.sum((after - before) ** 2, 0)

    def observe(self, state: State) -> Float[Array, "observable lane"]:
        """The observables of a state, which diagrams show."""
        return self.coordinates(state)

    def record(self, before: State, after: State) -> tuple[Array, ...]:
        """What an orbit keeps of a step, [..., lane] each."""
        return (self.observe(after),)


class Map(abc.ABC):
    """A map with named parameters, which diagrams can vary. The defaults are those of a map of a vector."""

    parameters: Any  # numbers by name

    @property
    @abc.abstractmethod
    def observables(self) -> tuple[str, ...]:
        """Names of what diagrams show."""

    @property
    def dimension(self) -> int:
        """The number of Lyapunov exponents."""
        return len(self.observables)

    @abc.abstractmethod
    def replace(self, **parameters: float) -> Self:
        """The same map with other parameters."""

    @abc.abstractmethod
    def lanes(self, values: Mapping[str, Array], state: Any) -> Lanes:
        """Copies side by side with these parameters [lane], for states like the given one."""

    def settled(self, state: Any, most: float = np.inf) -> tuple[Any, list[Any]]:
        """The first state from which the map is autonomous, or that after `most` steps, and a record of each step."""
        return state, []

    def coordinates(self, state: Any) -> np.ndarray:
        """The coordinates [coordinate] of a state, as those of lanes."""
        return np.asarray(state)

    def start(self, lanes: Lanes, states: Sequence[Any], count: int) -> Any:
        """The states of several lanes, or one for that many, as one."""

        def checked(state: Any) -> Any:
            vector = numpy_for(state).atleast_1d(real_array("state", state))
            if vector.shape != (self.dimension,):
                expected = f"[{self.dimension}], one entry per coordinate ({', '.join(self.observables)})"
                raise fail("state", f"shape {vector.shape}", expected)
            return vector

        return jnp.asarray(side_by_side(states, checked, count), float)

    def in_lanes(
        self,
        states: Sequence[Any],
        parameters: Mapping[str, Any] | None = None,
        place: Any = lambda array: array,
        count: int | None = None,
    ) -> tuple[Lanes, Any]:
        """Copies side by side, with parameters [lane] by name, and their states as one.

        There is a copy for each state, or `count` copies for one state. `place` puts an array with a lane axis on
        devices.
        """
        count, values = len(states) if count is None else count, {}
        for name, value in {**self.parameters, **(parameters or {})}.items():
            # Without a type, `asarray` would compile a program for every shape.
            values[name] = place(jnp.asarray(numpy_for(value).broadcast_to(value, (count,)), jnp.float64))
        lanes = self.lanes(values, states[0])
        return lanes, jax.tree.map(place, self.start(lanes, states, count))


@pytree("step", "names")
@dataclasses.dataclass(frozen=True, eq=False)
class DiscreteMap(Map):
    """Any map x → f(x) of a vector (or a number), written with JAX.

    Arguments:
        step: called as step(x, **parameters) with x [coordinate]; returns the next x.
        parameters: numbers that the step takes by name; diagrams vary them.
        names: names of the coordinates.

    Example:
        >>> logistic = DiscreteMap(lambda x, r: r * x * (1 - x), {"r": 4.0})
        >>> logistic.replace(r=3.2).parameters
        {'r': 3.2}
    """

    step: Callable[..., Any]
    parameters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    names: tuple[str, ...] = ("x",)

    def __post_init__(self) -> None:
        if not callable(self.step):
            raise fail("step", type(self.step).__name__, "a function step(x, **parameters)")
        given = {name: one_number(name, value) for name, value in dict(self.parameters).items()}
        object.__setattr__(self, "parameters", given)
        object.__setattr__(self, "names", tuple(self.names))
        _check_step(self.step, self.parameters, len(self.names))

    @property
    def observables(self) -> tuple[str, ...]:
        """The coordinates."""
        return self.names

    def replace(self, **parameters: float) -> Self:
        """The same map with other parameters."""
        check_names("parameters", parameters, self.parameters)
        return dataclasses.replace(self, parameters={**self.parameters, **parameters})

    def lanes(self, values: Mapping[str, Array], state: Any = None) -> Lanes:
        """Copies of the map side by side."""
        return _StepLanes(self.step, dict(values))


class _StepLanes(Lanes[Array]):
    """A function of one lane, called as function(x, **parameters) with x [coordinate]."""

    function: Callable[..., Any] = eqx.field(static=True)
    parameters: dict[str, Float[Array, " lane"]]

    def step(self, state: Array) -> Array:
        """One step of every lane."""

        def one(x: Array, parameters: dict[str, Array]) -> Array:
            return jnp.reshape(jnp.asarray(self.function(x, **parameters), x.dtype), x.shape)

        return jax.vmap(one, in_axes=(-1, -1), out_axes=-1)(state, self.parameters)


def _check_step(step: Callable[..., Any], parameters: Mapping[str, float], count: int) -> None:
    """Refuses a step function that does not lead from a vector to a vector; nothing is computed or compiled."""
    returned: list[Any] = []

    def array_of(x: Any, given: Mapping[str, Any]) -> Any:
        returned.append(step(x, **given))
        return jnp.asarray(returned[0])

    vector, number = (jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((count,), ()))
    returns = "1 real number" if count == 1 else f"{count} real numbers"
    expected = f"a JAX function of x [{count}] and its parameters that returns {returns}"
    try:
        found = jax.eval_shape(array_of, vector, dict.fromkeys(parameters, number))
    except Exception as error:  # a user's function may raise anything
        got = f"{type(error).__name__} ({(str(error).strip().splitlines() or [''])[0]})"
        got = f"a function that returns {type(returned[0]).__name__}" if returned else got
        raise fail("step", got, expected) from error
    if found.size != count or jnp.issubdtype(found.dtype, jnp.complexfloating):
        raise fail("step", f"{found.dtype} of shape {found.shape}", expected)


def as_map(model: Any, state: Any, parameters: Mapping[str, float] | None = None) -> Map:
    """A map from a user's model: the model itself, or a bare step function of a state and of parameters by name."""
    if isinstance(model, Map):
        return model
    if not callable(model):
        raise fail("model", type(model).__name__, "a MeanField, a DiscreteMap or a step function")
    size = real_array("state", state).size
    return DiscreteMap(model, parameters or {}, ("x",) if size == 1 else tuple(f"x{number}" for number in range(size)))


def check_names(argument: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuses names that a map does not have."""
    for name in given:
        if name not in known:
            raise fail(argument, repr(name), "one of " + (", ".join(map(repr, known)) or "none: it has no parameters"))


def side_by_side(states: Sequence[Any], array: Callable[[Any], Any], count: int) -> Any:
    """The array of every state, or `count` times that of one, along a last axis; made once for each state."""
    distinct = {id(state): state for state in states}
    arrays = [array(state) for state in distinct.values()]
    together = numpy_for(arrays).stack(arrays, axis=-1)
    if len(distinct) < len(states):
        places = {key: place for place, key in enumerate(distinct)}
        together = together[..., [places[id(state)] for state in states]]
    return numpy_for(together).broadcast_to(together, (*together.shape[:-1], count))


def sum_of_products(jacobian: Array, columns: Array) -> Array:
    """Σ_other jacobian [other, coordinate, lane] · columns [vector, other, lane], as [vector, coordinate, lane]."""
    if len(jacobian) > WRITTEN_OUT:
        return jnp.sum(jacobian[None] * columns[:, :, None], 1)
    terms = (jacobian[number][None] * columns[:, number, None] for number in range(len(jacobian)))
    return functools.reduce(operator.add, terms)

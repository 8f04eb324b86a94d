"""What the tools of this room take as a map: a mean-field model, or any step function of a vector."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from .._validation import fail, numpy_for, one_number, real_array, traced
from .lanes import Lanes, StepLanes


@runtime_checkable
class Map(Protocol):
    """A map with named parameters; `MeanField` and `DiscreteMap` are maps."""

    @property
    def parameters(self) -> Mapping[str, float]:
        """The numbers that diagrams can vary, by name."""
        ...

    @property
    def dimension(self) -> int:
        """How many Lyapunov exponents there are."""
        ...

    @property
    def observables(self) -> tuple[str, ...]:
        """Names of what diagrams show."""
        ...

    def lanes(self, parameters: Mapping[str, Any], state: Any, count: int = 1) -> Lanes:
        """Copies of the map side by side, for states like the given one.

        Arguments:
            parameters: by name, one number per lane or one for all; the map's own by default.
        """
        ...

    def start(self, lanes: Lanes, states: Sequence[Any]) -> Any:
        """States as one state of all lanes."""
        ...

    def replace(self, **parameters: float) -> Map:
        """The same map with other parameters."""
        ...

    def settled(self, state: Any) -> tuple[Any, int]:
        """A state from which the map is autonomous, and how many steps it took to come there."""
        ...

    def state(self, lanes: Lanes, lane_state: Any, lane: int) -> Any:
        """The state of one lane."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class DiscreteMap:
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
        numbers = {name: one_number(name, value) for name, value in dict(self.parameters).items()}
        object.__setattr__(self, "parameters", numbers)
        object.__setattr__(self, "names", tuple(self.names))
        check_step(self.step, self.parameters, len(self.names))

    @property
    def dimension(self) -> int:
        """As many exponents as coordinates."""
        return len(self.names)

    @property
    def observables(self) -> tuple[str, ...]:
        """The coordinates."""
        return self.names

    def replace(self, **parameters: float) -> DiscreteMap:
        """The same map with other parameters."""
        check_names("parameters", parameters, self.parameters)
        return dataclasses.replace(self, parameters={**self.parameters, **parameters})

    def lanes(self, parameters: Mapping[str, Any], state: Any = None, count: int = 1) -> StepLanes:
        """Copies of the map side by side."""
        return StepLanes(self.step, lane_values(self.parameters, parameters, count), count)

    def start(self, lanes: Lanes, states: Sequence[Any]) -> Any:
        """States [coordinate] side by side."""
        vectors = [numpy_for(state).atleast_1d(real_array("state", state)) for state in states]
        for vector in vectors:
            if vector.shape != (self.dimension,):
                expected = f"[{self.dimension}], one entry per coordinate ({', '.join(self.names)})"
                raise fail("state", f"shape {vector.shape}", expected)
        return jnp.asarray(numpy_for(vectors).stack(vectors, axis=-1))

    def settled(self, state: Any) -> tuple[Any, int]:
        """Every state will do."""
        return state, 0

    def state(self, lanes: Lanes, lane_state: Any, lane: int) -> np.ndarray:
        """The state of one lane."""
        return lane_state[:, lane] if traced(lane_state) else np.asarray(lane_state)[:, lane].copy()


def check_step(step: Callable[..., Any], parameters: Mapping[str, float], count: int) -> None:
    """Refuses a step function that does not lead from a vector to a vector; nothing is computed or compiled."""
    number = jax.ShapeDtypeStruct((), jnp.float64)
    vector = jax.ShapeDtypeStruct((count,), jnp.float64)
    numbers = "1 real number" if count == 1 else f"{count} real numbers"
    expected = f"a JAX function of x [{count}] and its parameters that returns {numbers}"
    returned: list[str] = []

    def numbers_of(x: Any, given: Mapping[str, Any]) -> Any:
        after = step(x, **given)
        returned.append(type(after).__name__)
        return jnp.asarray(after)

    try:
        found = jax.eval_shape(numbers_of, vector, dict.fromkeys(parameters, number))
    except Exception as error:  # whatever the function does with what JAX hands it
        lines = str(error).strip().splitlines() or [""]
        got = f"a function that returns {returned[0]}" if returned else f"{type(error).__name__} ({lines[0]})"
        raise fail("step", got, expected) from error
    if found.size != count or jnp.issubdtype(found.dtype, jnp.complexfloating):
        raise fail("step", f"{found.dtype} of shape {found.shape}", expected)


def as_map(model: Any, state: Any = None, parameters: Mapping[str, float] | None = None) -> Map:
    """A map from what a user gave: itself, or a bare step function.

    Arguments:
        state: a state of the bare function, which tells its dimension.
        parameters: what the bare function takes by name.
    """
    if isinstance(model, Map):
        return model
    if not callable(model):
        raise fail("model", type(model).__name__, "a MeanField, a DiscreteMap or a step function")
    size = real_array("state", state).size
    names = ("x",) if size == 1 else tuple(f"x{number}" for number in range(size))
    return DiscreteMap(model, parameters or {}, names)


def check_names(argument: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuses names that a map does not have."""
    for name in given:
        if name not in known:
            raise fail(argument, repr(name), "one of " + (", ".join(map(repr, known)) or "none: it has no parameters"))


def lane_values(own: Mapping[str, float], given: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Every parameter of a map, one value per lane: as given, or the map's own."""
    found = {}
    for name, value in own.items():
        value = given.get(name, value)
        found[name] = jnp.asarray(numpy_for(value).broadcast_to(numpy_for(value).asarray(value, np.float64), (count,)))
    return found

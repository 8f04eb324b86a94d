"""Cycles, their multipliers, and the parameter values at which they lose their stability."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import xarray as xr
from jax import lax
from jaxtyping import Array

from .._validation import fail, pair_of_numbers, positive_integer, positive_number, true_or_false
from .lanes import Lanes
from .maps import Map, as_map, check_names

NEWTON_STEPS = 50
# A return within this of every coordinate, and no better after one more Newton step, is as exact as float64 gets.
RETURN = 1e-13
# A multiplier further than this from the real axis is one of a complex pair.
COMPLEX = 1e-6
# A state that returns this well after a part of the period is on a shorter cycle. Near a period doubling the longer
# cycle comes as close to the shorter as the root of the distance in the parameter.
SHORTER = 1e-6


class NoCycleError(RuntimeError):
    """No cycle of the asked period was found near the start."""


@dataclass(frozen=True, eq=False)
class Cycle:
    """A cycle of a map, stable or not.

    Fields:
        state: one of its states.
        period: steps to the return.
        multipliers: [multiplier], complex eigenvalues of the Jacobian of the return, largest modulus first.
        error: how far the state is from itself after one period.
    """

    state: Any = field(repr=False)
    period: int
    multipliers: np.ndarray
    error: float

    @property
    def stable(self) -> bool:
        """Whether all multipliers are inside the unit circle."""
        return bool(np.all(np.abs(self.multipliers) < 1))

    def to_xarray(self) -> xr.Dataset:
        """Modulus and angle of the multipliers."""
        size, angle = np.abs(self.multipliers), np.angle(self.multipliers)
        attributes = {"period": self.period, "error": self.error}
        return xr.Dataset({"modulus": ("multiplier", size), "angle": ("multiplier", angle)}, attrs=attributes)


@dataclass(frozen=True, eq=False)
class Bifurcation:
    """Where a cycle loses its stability.

    Fields:
        parameter, value: what was varied, and its critical value.
        kind: "Neimark–Sacker" (a complex pair), "period doubling" (−1) or "fold or branching" (+1).
        cycle: the cycle there.
    """

    parameter: str
    value: float
    kind: str
    cycle: Cycle

    def to_xarray(self) -> xr.Dataset:
        """The cycle at the critical value."""
        attributes = {"parameter": self.parameter, "value": self.value, "kind": self.kind}
        return self.cycle.to_xarray().assign_attrs(attributes)


def find_cycle(model: Any, state: Any, period: int, *, throw: bool = True) -> Cycle | None:
    """The cycle of a period nearest to a state, by Newton's method on the return; unstable ones are found as well.

    Arguments:
        model: a MeanField, a DiscreteMap or a step function.
        state: a start near the cycle.
        period: steps to the return, and no fewer: a shorter cycle is not the answer. Where positions are read it is a
            multiple of the context.
        throw: whether to raise `NoCycleError` where there is none; otherwise the result is none.

    Example:
        >>> find_cycle(lambda x: 3.2 * x * (1 - x), 0.5, 2).multipliers.real.round(6).tolist()
        [0.16]
    """
    model = as_map(model, state)
    positive_integer("period", period)
    true_or_false("throw", throw)
    state, _ = model.settled(state)
    lanes = model.lanes({"": np.zeros(1)}, state)
    if not bool(lanes.returns_count(jnp.asarray(period))):
        raise fail("period", period, "a multiple of the period of the positions")
    x = np.asarray(lanes.coordinates(model.start(lanes, [state])))[:, 0]
    error, jacobian = np.inf, np.eye(len(x))
    for _ in range(NEWTON_STEPS):
        there, jacobian = (np.asarray(part) for part in _return(lanes, jnp.asarray(x[:, None]), jnp.asarray(period)))
        miss = there - x
        better = np.max(np.abs(miss)) < error / 2
        error = float(np.max(np.abs(miss)))
        if not np.isfinite(error) or (error < RETURN and not better):
            break
        # The pseudo-inverse takes the shortest way where a multiplier is 1.
        x = x - np.linalg.lstsq(jacobian - np.eye(len(x)), miss, rcond=None)[0]
    if not error < 1e-9:
        if throw:
            raise NoCycleError(f"state: Newton's method found no cycle of period {period} near it (miss {error:.2g})")
        return None
    shorter = _shorter_period(lanes, x, period, jacobian, error)
    if shorter is not None:
        if throw:
            raise NoCycleError(f"state: Newton's method found a cycle of period {shorter} near it, none of {period}")
        return None
    multipliers = np.linalg.eigvals(jacobian)
    final = model.state(lanes, lanes.at(jnp.asarray(x[:, None])), 0)
    return Cycle(final, period, multipliers[np.argsort(-np.abs(multipliers), kind="stable")], error)


def bifurcation_point(
    model: Any, state: Any, parameter: str, bracket: tuple[float, float], period: int, *, tolerance: float = 1e-12
) -> Bifurcation:
    """The parameter value at which a cycle loses its stability: the root of the largest |multiplier| − 1.

    Arguments:
        model, period: as in `find_cycle`.
        state: a start near the cycle at the lower end of the bracket.
        parameter: name of the parameter.
        bracket: two values with the cycle stable at one and unstable at the other.
        tolerance: absolute, of the value.

    Example:
        >>> from thermoformer.dynamics import DiscreteMap
        >>> logistic = DiscreteMap(lambda x, r: r * x * (1 - x), {"r": 2.8})
        >>> found = bifurcation_point(logistic, 0.6, "r", (2.8, 3.2), 1)
        >>> round(found.value, 8), found.kind
        (3.0, 'period doubling')
    """
    low, high = pair_of_numbers("bracket", bracket)
    positive_number("tolerance", tolerance)
    model = as_map(model, state, {parameter: low})
    check_names("parameter", {parameter: 0}, model.parameters)
    known = {low: _cycle_at(model, state, parameter, low, period)}

    def growth(value: float) -> float:
        if value not in known:
            nearest = min(known, key=lambda other: abs(other - value))
            known[value] = _walk(model, known[nearest], parameter, nearest, value, period)
        return float(np.abs(known[value].multipliers[0])) - 1

    ends = growth(low), growth(high)
    if ends[0] * ends[1] > 0:
        got = f"{bracket}, where the largest |multiplier| is {ends[0] + 1:.6g} and {ends[1] + 1:.6g}"
        raise fail("bracket", got, "one end with a stable and one with an unstable cycle")
    value = scipy.optimize.root_scalar(growth, bracket=(low, high), method="brentq", xtol=tolerance, rtol=1e-15).root
    value = float(value)
    growth(value)
    critical = known[value].multipliers[0]
    if abs(critical.imag) > COMPLEX:
        kind = "Neimark–Sacker"
    else:
        kind = "period doubling" if critical.real < 0 else "fold or branching"
    return Bifurcation(parameter, value, kind, known[value])


def _cycle_at(model: Map, state: Any, parameter: str, value: float, period: int) -> Cycle:
    found = find_cycle(model.replace(**{parameter: value}), state, period)
    assert found is not None  # it would have raised
    return found


def _walk(model: Map, cycle: Cycle, parameter: str, here: float, there: float, period: int) -> Cycle:
    """The cycle at another value, by smaller steps where one is too long."""
    found = find_cycle(model.replace(**{parameter: there}), cycle.state, period, throw=False)
    pieces = 2
    while found is None and pieces <= 64:
        found = cycle
        for value in np.linspace(here, there, pieces + 1)[1:]:
            found = find_cycle(model.replace(**{parameter: float(value)}), found.state, period, throw=False)
            if found is None:
                break
        pieces *= 2
    if found is None:
        raise NoCycleError(
            f"bracket: the cycle of period {period} ends, or meets a shorter one, before {parameter} = {there:.8g}"
        )
    return found


def _shorter_period(lanes: Lanes, x: np.ndarray, period: int, jacobian: np.ndarray, error: float) -> int | None:
    """The part of the period after which the state is back already, if there is one."""
    rounding = max(error, np.finfo(float).eps * (1 + np.max(np.abs(x))))
    # How far a state that returns so well can be from the cycle.
    reach = rounding * np.linalg.norm(np.linalg.pinv(jacobian - np.eye(len(x))), 2)
    for part in (number for number in range(1, period // 2 + 1) if period % number == 0):
        if not bool(lanes.returns_count(jnp.asarray(part))):
            continue
        there, slope = (np.asarray(found) for found in _return(lanes, jnp.asarray(x[:, None]), jnp.asarray(part)))
        within = rounding + reach * np.linalg.norm(slope - np.eye(len(x)), 2)
        if np.max(np.abs(there - x)) < min(10 * within, SHORTER):
            return part
    return None


@eqx.filter_jit
def _return(lanes: Lanes, x: Array, period: int | Array) -> tuple[Array, Array]:
    """Where coordinates [coordinate, 1] are one period later, and the Jacobian [coordinate, from coordinate]."""
    state = lanes.at(x)
    columns = lanes.unit_columns(state, x.shape[0])
    # Which coordinate each unit vector is of: its order is that of the tangent space.
    units = jax.vmap(lambda column: lanes.in_order(state, column))(columns)[..., 0]

    def one(_: Array, carry: tuple) -> tuple:
        prepared, columns = carry
        linear = lanes.linearise(prepared)
        return lanes.advance(prepared, linear), lanes.push(linear, columns)

    prepared, columns = lax.fori_loop(0, period, one, (lanes.prepare(state), columns))
    state = lanes.bare(prepared)
    jacobian = jax.vmap(lambda column: lanes.in_order(state, column))(columns)[..., 0]
    return lanes.coordinates(state)[:, 0], jacobian.T @ units

"""Cycles, their multipliers, and the parameter values at which they lose their stability."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import lax
from jaxtyping import Array, Float

from .._validation import fail, pair_of_numbers, positive_integer, positive_number, true_or_false
from .maps import Lanes, Map, as_map, check_names
from .tangents import LOST, random_frame

NEWTON_STEPS = 100
EPSILON = float(np.finfo(np.float64).eps)
# A return is evaluated with an error of about this many units of rounding of the largest coordinate on the cycle.
ROUNDING = 16 * EPSILON
# Newton's method has converged to a cycle if its last step is shorter than this share of the largest coordinate, and
# the Jacobian of the miss changes by less than this share within twice the step (Kantorovich: a root for less than 1).
LAST_STEP, CHANGE = 1e-6, 0.5
# Without this test, a miss of this many units of rounding still counts as a return.
CRITICAL = 256 * EPSILON
# An error message names a multiplier this close to 1.
NEAR_ONE = 1e-3
# A multiplier further than this from the real axis is one of a complex pair.
COMPLEX = 1e-6
# A state that returns this well after a part of the period is on a shorter cycle. Near a period doubling the longer
# cycle comes as close to the shorter as the root of the distance in the parameter.
SHORTER = 1e-6
# Multipliers come from QR factors over this many steps along the cycle, and over this many turns at least.
QR_STEPS, QR_TURNS = 1_000, 20
# They are computed again from Jacobians with other rounding, this often. What then changes by more than this factor,
# as a logarithm, is below rounding error.
ROUNDED_AGAIN, UNCERTAIN = 3, 0.5
# Below this, directions that QR has not parted yet count as parted.
PARTED = 1e-12


class NoCycleError(RuntimeError):
    """No cycle of the asked period was found near the start."""


@dataclass(frozen=True, eq=False)
class Cycle:
    """A cycle of a map, stable or not.

    Fields:
        state: one of its states.
        period: steps to the return.
        multipliers: [multiplier], complex eigenvalues of the Jacobian of the return, largest modulus first; 0 where
            the modulus is below rounding error, or below what float64 can represent.
        error: how far the state is from itself after one period.
        exponents: [multiplier], ln |multiplier| / period: the Lyapunov exponents of the cycle; −inf where the
            multiplier is below rounding error.
    """

    state: Any = field(repr=False)
    period: int
    multipliers: np.ndarray
    error: float
    exponents: np.ndarray

    @property
    def stable(self) -> bool:
        """Whether all multipliers are inside the unit circle."""
        return bool(np.all(np.abs(self.multipliers) < 1))

    def to_xarray(self) -> xr.Dataset:
        """Modulus and angle of the multipliers, and the exponents."""
        values = {"modulus": np.abs(self.multipliers), "angle": np.angle(self.multipliers), "exponent": self.exponents}
        attributes = {"period": self.period, "error": self.error}
        return xr.Dataset({name: ("multiplier", value) for name, value in values.items()}, attrs=attributes)


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
        period: steps to the return, and no fewer: a shorter cycle is not the answer. If positions are read it is a
            multiple of the context.
        throw: whether to raise `NoCycleError` if there is none; otherwise the result is None.

    Example:
        >>> find_cycle(lambda x: 3.2 * x * (1 - x), 0.5, 2).multipliers.real.round(6).tolist()
        [0.16]
    """
    model = as_map(model, state)
    true_or_false("throw", throw)
    try:
        return _root(model, state, period).cycle
    except NoCycleError:
        if throw:
            raise
        return None


class _Root(NamedTuple):
    """A solution x [coordinate] of the return equation, as a state too, and the Jacobian of the return there."""

    lanes: Lanes
    x: np.ndarray
    state: Any
    period: int
    error: float
    jacobian: np.ndarray

    @property
    def growth(self) -> complex:
        """The multiplier of largest modulus."""
        multipliers = np.linalg.eigvals(self.jacobian)
        return complex(multipliers[np.argmax(np.abs(multipliers))])

    @property
    def cycle(self) -> Cycle:
        """The cycle with all of its multipliers."""
        state, jacobians = self.lanes.at(self.x[:, None]), []
        for _ in range(self.period):
            state, _, jacobian, _ = _followed(self.lanes, state, np.int64(1))
            jacobians.append(np.asarray(jacobian))
        multipliers, exponents = _multipliers(np.stack(jacobians))
        return Cycle(self.state, self.period, multipliers, self.error, exponents)


def _root(model: Map, state: Any, period: int, *, isolated: bool = True) -> _Root:
    """Solves for a return by Newton's method. An isolated one is certain: no multiplier is 1 within rounding."""
    positive_integer("period", period)
    lanes, lane_state = model.in_lanes([model.settled(state)[0]])
    if period % lanes.phases:
        raise fail("period", period, "a multiple of the period of the positions")
    x = np.asarray(_followed(lanes, lane_state, np.int64(0))[1])
    before, error, jacobian, one = np.inf, np.inf, np.eye(len(x)), np.eye(len(x))
    for _ in range(NEWTON_STEPS):
        there, jacobian, size = _return(lanes, x, period)
        before, error = error, float(np.max(np.abs(there - x)))
        if not np.isfinite(error):
            break
        # The pseudo-inverse takes the shortest way if a multiplier is 1.
        step = np.linalg.lstsq(jacobian - one, there - x, rcond=None)[0]
        if error >= before / 2 and (
            _is_certain(lanes, x, period, step, jacobian, size)
            or (not isolated and error <= CRITICAL * size * max(1.0, np.linalg.norm(jacobian, 2)))
        ):
            shorter = _shorter_period(lanes, x, period, jacobian, max(error, ROUNDING * size), size)
            if shorter is not None:
                found = f"a cycle of period {shorter} near it, none of {period}"
                raise NoCycleError(f"state: Newton's method found {found}")
            (final,) = lanes.states(lanes.at(x[:, None]))
            return _Root(lanes, x, final, period, error, jacobian)
        x = x - step
    why = ""
    if np.isfinite(error) and (nearest := float(np.min(np.abs(np.linalg.eigvals(jacobian) - 1)))) < NEAR_ONE:
        why = f": a multiplier is 1 within {nearest:.2g}, too close to tell a cycle from a near miss"
    raise NoCycleError(f"state: Newton's method found no cycle of period {period} near it (miss {error:.2g}){why}")


def _is_certain(lanes: Lanes, x: np.ndarray, period: int, step: np.ndarray, jacobian: np.ndarray, size: float) -> bool:
    """Whether there is a cycle near x, however the return is rounded: the theorem of Newton and Kantorovich.

    The Jacobian of the miss must change little within twice the distance at which Newton's method expects the cycle.
    Near a fold without a cycle it changes much: the miss is small, but so is its slope.
    """
    left, singular, right = np.linalg.svd(jacobian - np.eye(len(x)))
    if not singular[-1] > 0 or np.max(np.abs(step)) > LAST_STEP * size:
        return False
    shift = 2 * ROUNDING * size / singular[-1] * right[-1]  # where rounding moves the solution most
    changes = (_return(lanes, x + offset, period)[1] - jacobian for offset in (-2 * step, shift, -shift))
    return all(np.linalg.norm((left.T @ change) / singular[:, None], 2) < CHANGE for change in changes)


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
    known = {low: _root(model.replace(**{parameter: low}), state, period)}

    def growth(value: float, *, isolated: bool = False) -> float:
        if value not in known:
            nearest = min(known, key=lambda other: abs(other - value))
            known[value] = _walk(model, known[nearest], parameter, nearest, value, isolated)
        return abs(known[value].growth) - 1

    # The cycle is certain at both ends. Between them a multiplier may come to 1, where certainty ends.
    ends = growth(low), growth(high, isolated=True)
    if ends[0] * ends[1] > 0:
        got = f"{bracket}, where the largest |multiplier| is {ends[0] + 1:.6g} and {ends[1] + 1:.6g}"
        raise fail("bracket", got, "one end with a stable and one with an unstable cycle")
    import scipy.optimize  # imported late: slow, and only this function needs it

    found = scipy.optimize.root_scalar(growth, bracket=(low, high), method="brentq", xtol=tolerance, rtol=1e-15)
    value = float(found.root)
    growth(value)
    critical = known[value].growth
    kind = "period doubling" if critical.real < 0 else "fold or branching"
    kind = "Neimark–Sacker" if abs(critical.imag) > COMPLEX else kind
    return Bifurcation(parameter, value, kind, known[value].cycle)


def _walk(model: Map, root: _Root, parameter: str, here: float, there: float, isolated: bool) -> _Root:
    """The cycle at another value, by smaller steps where one is too long."""
    for pieces in 2 ** np.arange(7):
        found = root
        try:
            for value in np.linspace(here, there, pieces + 1)[1:]:
                changed = model.replace(**{parameter: float(value)})
                found = _root(changed, found.state, root.period, isolated=isolated)
            return found
        except NoCycleError:
            continue
    end = f"the cycle of period {root.period} ends, or meets a shorter one, before {parameter} = {there:.8g}"
    raise NoCycleError(f"bracket: {end}")


def _shorter_period(lanes: Lanes, x: np.ndarray, period: int, jacobian: Any, rounding: float, size: float) -> Any:
    """The part of the period after which the state is back already, if there is one."""
    # How far a state that returns this well can be from the cycle.
    reach = rounding * np.linalg.norm(np.linalg.pinv(jacobian - np.eye(len(x))), 2)
    for part in range(1, period // 2 + 1):
        if not period % part and not part % lanes.phases:
            there, slope, _ = _return(lanes, x, part)
            within = rounding + reach * np.linalg.norm(slope - np.eye(len(x)), 2)
            if np.max(np.abs(there - x)) <= min(10 * within, SHORTER * size):
                return part
    return None


def _return(lanes: Lanes, x: np.ndarray, period: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Coordinates one period later, the Jacobian [coordinate, from coordinate], and the largest coordinate between."""
    _, there, jacobian, size = _followed(lanes, lanes.at(x[:, None]), np.int64(period))
    return np.asarray(there), np.asarray(jacobian), float(size)


@eqx.filter_jit
def _followed(lanes: Lanes, state: Any, steps: Any) -> tuple[Any, Array, Array, Array]:
    """The state some steps later, its coordinates, their Jacobian, and the largest coordinate between."""

    def one(_: Array, carry: Any) -> Any:
        linear, columns, size = carry
        after = lanes.advance(linear)
        return after, lanes.push(linear, columns), jnp.maximum(size, largest(after.state))

    def largest(state: Any) -> Array:
        return jnp.max(jnp.abs(lanes.coordinates(state)))

    columns = lanes.columns(state, jnp.eye(len(lanes.coordinates(state))))
    linear, columns, size = lax.fori_loop(0, steps, one, (lanes.linearise(state), columns, largest(state)))
    jacobian = jax.vmap(lambda column: lanes.in_order(linear.state, column))(columns)
    return linear.state, lanes.coordinates(linear.state)[:, 0], jacobian[..., 0].T, size


def _multipliers(jacobians: Float[np.ndarray, "step coordinate other"]) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of a product of Jacobians, and the logarithms of their moduli per step, largest first."""
    # The product itself has only those multipliers that are above rounding error of the largest. QR factors of the
    # single steps, over several turns around the cycle, have the small ones as well. Two rules tell what is lost: that
    # of `orthonormalise`, and whether Jacobians that are rounded otherwise give another value.
    steps, size = jacobians.shape[:2]
    noise = np.random.default_rng(0).normal(size=(ROUNDED_AGAIN, *jacobians.shape))
    copies = np.concatenate([jacobians[None], jacobians * (1 + EPSILON * noise)])
    turns = max(QR_TURNS, QR_STEPS // steps)
    units = np.broadcast_to(random_frame(size, size).T, (len(copies), size, size))
    first, triangles, lost = units, [], np.zeros((len(copies), size), bool)
    for turn in range(turns):
        first, triangles = units, []
        for step in range(steps):
            columns = copies[:, step] @ units
            units, triangle = np.linalg.qr(columns)
            triangles.append(triangle)
            if turn >= turns // 2:  # the directions have settled
                left = np.abs(np.diagonal(triangle, axis1=1, axis2=2))
                lost |= left <= LOST * np.linalg.norm(columns, axis=1)
    turned = np.swapaxes(first, 1, 2) @ units
    found = [_eigenvalues(one, [part[copy] for part in triangles]) for copy, one in enumerate(turned)]
    logarithms, phases = np.stack([one[0] for one in found]), found[0][1]
    with np.errstate(invalid="ignore"):  # −inf less −inf
        changed = ~(np.abs(logarithms - logarithms[0]).max(axis=0) < UNCERTAIN)
    # What is not larger than a lost one is lost as well.
    lost_first = np.maximum.accumulate(changed | lost.any(axis=0))
    exponents = np.where(lost_first, -np.inf, logarithms[0] / steps)
    return np.where(lost_first, 0.0, phases * np.exp(steps * exponents)), exponents


def _eigenvalues(turned: np.ndarray, triangles: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of turned · triangles[-1] ⋯ triangles[0]: logarithms of the moduli, largest first, and phases."""
    # Directions with close moduli, such as those of a complex pair, are not parted: they form a block of `turned`.
    # Blocks are multiplied apart from each other, so that the large ones leave no rounding in the small ones.
    size = len(turned)
    logarithms, phases, start = np.full(size, -np.inf), np.ones(size, complex), 0
    for stop in range(1, size + 1):
        if np.abs(turned[stop:, :stop]).max(initial=0.0) > PARTED:
            continue
        here = slice(start, stop)
        block, scale, start = turned[here, here], 0.0, stop
        for triangle in reversed(triangles):
            block = block @ triangle[here, here]
            largest = np.abs(block).max() or 1.0
            block, scale = block / largest, scale + np.log(largest)
        values = np.linalg.eigvals(block).astype(complex)
        sizes = np.abs(values)
        known = sizes > 0
        logarithms[here][known] = np.log(sizes[known]) + scale
        phases[here][known] = values[known] / sizes[known]
    order = np.argsort(-logarithms, kind="stable")
    return logarithms[order], phases[order]

"""Fluctuations of a network of N bits about its mean field, and its responses, to first order (fluctuations §1).

Given A the semantic bits of the next token are independent. Its overlaps are their mean plus noise of covariance Q/N,
so N times the covariance of the overlaps in the window follows C' = J C Jᵀ + Q along the mean-field orbit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import lax

from .._precision import MATMUL_PRECISION
from .._validation import (
    check_memory,
    fail,
    nonnegative_integer,
    numbers,
    numpy_for,
    one_of,
    positive_integer,
    real_array,
    traced,
    true_or_false,
)
from .cycles import Cycle
from .engine import kept_rows
from .features import ROLES
from .finite import NetworkArrays, attend, network_arrays
from .meanfield import MeanField
from .orbits import iterate
from .site_classes import merge
from .tangents import random_frame

# The covariance of a window has the square of this many numbers at most, 134 MB.
LARGEST_WINDOW = 4096
# A cycle of another model misses its start by far more than this share of the largest overlap.
RETURN = 1e-6
# Over an orbit with a zero exponent, tangent vectors change their mean length by less than this factor.
STEADY = 2.0
# Parts of an orbit that give the standard error of a phase diffusion constant.
BATCHES = 10
# The phase is the angle about the mean of the orbit. Its mean derivative along the orbit is 0 if the orbit does not
# wind around the mean, and of the order of its root mean square if it does.
WINDING = 0.05


class _Window(NamedTuple):
    """The overlaps in a window of the mean field, newest token first, and how many tokens it has so far."""

    time: Any  # since the start, whose newest token has time 0
    overlaps: Any  # [token, overlap]
    filled: Any


class _Linear(NamedTuple):
    """One step: the next token's mean overlaps, their slopes by A, their noise, and the slopes of A by the window."""

    overlaps: Any  # [overlap]
    slopes: Any  # ∂m/∂A, [overlap, feature]
    noise: Any  # Q, [overlap, other]
    attention: Any  # ∂A/∂z, [feature, token and overlap]


@dataclass(frozen=True, eq=False)
class Fluctuations:
    """Fluctuations about an orbit of the mean field, to first order; row t is of token t, as in `Orbit`.

    Covariances are N times those of a network of N bits. The overlaps are those of all roles, o, v, q, k in turn, with
    v, q and k head by head, as `Orbit` and `FiniteOrbit` have them: semantic parts times 1−ε, plus positional parts.

    Fields:
        names: of the overlaps, "m_o[0]", ….
        mean: [step, overlap], the orbit of the mean field.
        covariance: [step, overlap, other], N·Cov of the newest token's overlaps.
        window: [token, overlap, other token, other], N·Cov of the window after the last step, newest token first.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    covariance: np.ndarray
    window: np.ndarray
    _system: NetworkArrays = field(repr=False)
    _start: Any = field(repr=False)

    def deviation(self, bits: int, role: str = "o") -> np.ndarray:
        """Standard deviations of the overlaps of one role in a network of N bits, [step, feature].

        Arguments:
            bits: N.
            role: "o", "v", "q" or "k"; with several heads v, q and k have their features head by head.

        Example:
            >>> from thermoformer.dynamics import Features
            >>> model = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
            >>> fluctuations(model, model.token(keep=True), steps=2).deviation(bits=10_000).round(4).tolist()
            [[0.0, 0.0, 0.0], [0.0062, 0.0062, 0.0062]]
        """
        chosen = self._of(role)
        variances = numpy_for(self.covariance).einsum("taa->ta", self.covariance)[:, chosen]
        return numpy_for(variances).sqrt(variances / positive_integer("bits", bits))

    def correlation(self, t: int, s: int) -> np.ndarray:
        """N·Cov of the overlaps of token t with those of token s, [overlap, other].

        Example:
            >>> from thermoformer.dynamics import Features
            >>> model = MeanField(Features.paper(), beta=1.2, gamma=220.0, epsilon=0.02)
            >>> found = fluctuations(model, model.token(keep=True), steps=9)
            >>> bool(np.allclose(found.correlation(8, 8), found.covariance[8]))
            True
        """
        t, s = nonnegative_integer("t", t), nonnegative_integer("s", s)
        if t < s:
            return self.correlation(s, t).T
        window, covariance = _walked(self._system, self._start, np.int64(s))
        return self._later(window, covariance[:, : len(self.names)], t - s)

    def response(self, t: int, s: int) -> np.ndarray:
        """Change of the mean overlaps of token t per change of those of token s, [overlap, changed overlap].

        A small field on the features of token s changes its overlaps; later tokens follow. It is 0 for t < s.

        Example:
            >>> from thermoformer.dynamics import Features
            >>> model = MeanField(Features.paper(), beta=1.2, gamma=220.0, epsilon=0.02)
            >>> fluctuations(model, model.token(keep=True), steps=9).response(8, 3).shape
            (12, 12)
        """
        t, s = nonnegative_integer("t", t), nonnegative_integer("s", s)
        count = len(self.names)
        if t < s:
            return np.zeros((count, count))
        window, covariance = _walked(self._system, self._start, np.int64(s))
        return self._later(window, jnp.eye(len(covariance), count), t - s)

    def horizon(self, bits: int, extent: Any = None) -> int | None:
        """The first token whose predicted standard deviation in a network of N bits reaches the extent of the orbit.

        There a network can be anywhere on the attractor, and the linear theory has failed. In chaos this is about
        ln(√N)/λ₁ steps. Both sides are root sums of squares over the overlaps with o.

        Arguments:
            bits: N.
            extent: standard deviations of the overlaps with o on the attractor, [feature]; by default those along
                `mean`.

        Returns: the token, or None if none of the tokens that were followed is beyond the horizon.

        Example:
            >>> from thermoformer.dynamics import Features
            >>> model = MeanField(Features.paper(), beta=1.28, gamma=220.0, epsilon=0.02)
            >>> found = fluctuations(model, model.token(keep=True), steps=400)
            >>> 1 < found.horizon(10**6) < found.horizon(10**12) < 400
            True
        """
        spread = np.sum(self.deviation(bits) ** 2, axis=1)
        count = self._of("o").stop
        extent = self.mean[:, :count].std(axis=0) if extent is None else real_array("extent", extent, ("feature",))
        if extent.shape != (count,) or not (extent > 0).all():
            raise fail("extent", extent, f"{count} numbers above 0, one per feature")
        beyond = np.flatnonzero(spread >= np.sum(extent**2))
        return int(beyond[0]) if len(beyond) else None

    def to_xarray(self) -> xr.Dataset:
        """All arrays with named axes; overlaps have their names.

        Example:
            >>> from thermoformer.dynamics import Features
            >>> model = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
            >>> found = fluctuations(model, model.token(), steps=5).to_xarray()
            >>> found.covariance.sel(overlap="m_o[0]", other="m_v[2]").dims
            ('step',)
        """
        variables = {
            "mean": (("step", "overlap"), self.mean),
            "covariance": (("step", "overlap", "other"), self.covariance),
            "window": (("token", "overlap", "other_token", "other"), self.window),
        }
        return xr.Dataset(variables, {"overlap": list(self.names), "other": list(self.names)})

    def _of(self, role: str) -> slice:
        """Where the overlaps of a role are."""
        start = f"m_{one_of('role', role, ROLES)}["
        places = [number for number, name in enumerate(self.names) if name.startswith(start)]
        return slice(places[0], places[-1] + 1)

    def _later(self, window: _Window, columns: Any, steps: int) -> np.ndarray:
        """Deviations [overlap, column] of the newest token some steps after a window with deviations of its own."""
        return numbers(_pushed_on(self._system, window, columns, np.int64(steps)))[: len(self.names)]


@dataclass(frozen=True, eq=False)
class PhaseDiffusion:
    """How the phase of a network of N bits on a quasi-periodic orbit diffuses: its variance grows as 2 D t / N.

    Fields:
        constant: D, in radians² per step.
        error: standard error of D by batch means.
        rotation: by how many radians the phase advances while the window is renewed once, from 0 to π.
    """

    constant: float
    error: float
    rotation: float

    def to_xarray(self) -> xr.Dataset:
        """The numbers as a Dataset without axes."""
        return xr.Dataset(vars(self))


def fluctuations(model: Any, state: Any, steps: int, *, drawn: bool = False) -> Fluctuations:
    """N·Cov of the overlaps at every step of an orbit: C' = J C Jᵀ + Q, from a start without fluctuations.

    It holds to first order, as long as the predicted deviations are small against the distance in which the map bends;
    `Fluctuations.horizon` says where it certainly fails. The covariance of A, or of an overlap with anything else, is
    linear in these. Works under `jax.jit` and `jax.vmap` over parameters.

    Arguments:
        model: a MeanField with explicit columns, which have the same fractions in the network. Features known by
            correlations only do not give Q: use those of a network, `features.with_bits(N)`.
        state: model.window(...), or model.token(..., keep=True) for comparison with a `FiniteNetwork` run.
        steps: tokens, the newest of the start included.
        drawn: whether the tokens of the start are drawn from its A, and so fluctuate as well. A token that was given,
            with `keep=True`, never does.

    Example:
        >>> from thermoformer.dynamics import Features
        >>> model = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
        >>> found = fluctuations(model, model.token(keep=True), steps=10)
        >>> found.covariance.shape, found.names[3]
        ((10, 12, 12), 'm_v[0]')
    """
    system, window = _begin(model, state)
    steps, size = positive_integer("steps", steps), window.overlaps.size
    check_memory("steps", steps, 8 * steps * len(system.patterns) ** 2)
    covariance = jnp.zeros((size, size))
    if true_or_false("drawn", drawn) and len(state.A):
        noise = _noise_of_tokens(system, jnp.asarray(state.A, float))
        rest = size - len(noise) * len(system.patterns)
        covariance = jax.scipy.linalg.block_diag(*noise, jnp.zeros((rest, rest)))
    return _followed(model, system, (window, covariance), steps)


def stationary_covariance(model: Any, cycle: Cycle, *, steps: int | None = None) -> Fluctuations:
    """Stationary fluctuations on a stable cycle: the solution of C = J C Jᵀ + Q for the map of one period.

    Arguments:
        model: as in `fluctuations`.
        cycle: a stable cycle of this model, from `find_cycle`; a fixed point has the period 1.
        steps: tokens that are kept, from the state of the cycle on; one period by default.

    Example:
        >>> from thermoformer.dynamics import Features, find_cycle
        >>> model = MeanField(Features.paper(), beta=1.2, gamma=220.0, epsilon=0.02)
        >>> cycle = find_cycle(model, iterate(model, model.token(), 2000), 4)
        >>> stationary_covariance(model, cycle).deviation(bits=10_000).shape
        (4, 3)
    """
    if not isinstance(cycle, Cycle):
        raise fail("cycle", type(cycle).__name__, "a Cycle, from find_cycle")
    steps = cycle.period if steps is None else positive_integer("steps", steps)
    system, window = _begin(model, cycle.state)
    after, jacobian = _pushed_from(system, window, np.int64(cycle.period))
    miss = np.abs(after.overlaps - window.overlaps).max()
    if not miss <= RETURN * np.abs(window.overlaps).max():
        raise fail("cycle", f"a state that misses its return by {miss:.2g}", "a cycle of this model")
    growth = np.abs(np.linalg.eigvals(jacobian)).max()
    if growth >= 1:
        raise fail("cycle", f"a multiplier of modulus {growth:.6g}", "a stable cycle: others have no stationary noise")
    nothing = jnp.zeros(jacobian.shape)
    noise = np.asarray(_walked(system, (window, nothing), np.int64(cycle.period))[1])
    import scipy.linalg  # imported late: slow, and only this function needs it

    covariance = scipy.linalg.solve_discrete_lyapunov(np.asarray(jacobian), noise)
    return _followed(model, system, (window, jnp.asarray(covariance)), steps)


def phase_diffusion(model: Any, state: Any, *, steps: int = 10_000, transient: int = 5_000) -> PhaseDiffusion:
    """The diffusion constant of the phase on a quasi-periodic orbit, where C grows along the neutral direction.

    With v the tangent vector of the torus per radian, and w the covector with w·v = 1 that the Jacobians keep, the
    phase is w·δz. It changes by noise alone, so that 2 D is the mean of wᵀ Q w along the orbit.

    Arguments:
        model: as in `fluctuations`.
        state: a start whose orbit is quasi-periodic, with one zero exponent.
        steps: steps that are averaged over.
        transient: steps before, and at both ends again for v and w to align: many times 1/|λ₂|.

    Example:
        >>> from thermoformer.dynamics import Features
        >>> model = MeanField(Features.paper(), beta=1.255, gamma=220.0, epsilon=0.02)
        >>> found = phase_diffusion(model, model.token())
        >>> found.constant > 10 * found.error > 0
        True
    """
    steps, transient = positive_integer("steps", steps), nonnegative_integer("transient", transient)
    if steps < BATCHES * model.context:
        raise fail("steps", steps, f"{BATCHES * model.context} or more, for an error")
    # Checked first, also where no step is made before.
    system, _ = _begin(model, state)
    system, window = _begin(model, iterate(model, model.settled(state)[0], transient))
    size, width = window.overlaps.size, len(system.patterns)
    # Covectors, noise, slopes and attention of every step.
    numbers_per_step = 2 * size + width**2 + (size + width) * model.features.count
    check_memory("steps", steps, 8 * numbers_per_step * (steps + transient))
    first, last = random_frame(2, size)
    carry = _aligned(system, window, jnp.asarray(first), np.int64(transient))
    (_, column), rows = kept_rows(_tangent_rows, system, carry, steps + transient)
    overlaps, tangents = (row[: steps // model.context * model.context : model.context] for row in rows[:2])
    with np.errstate(over="ignore", invalid="ignore"):  # in chaos
        early, late = (np.sqrt(np.mean(part**2)) for part in np.array_split(tangents, 2))
        factor = late / early
    if not 1 / STEADY < factor < STEADY:
        got = f"an orbit whose tangent vectors {'shrink' if factor < 1 else 'grow'}: the largest exponent is not 0"
        raise fail("state", got, "a state on a quasi-periodic orbit, or a longer transient")
    # The phase is the angle in the plane of the largest variance, up to a periodic function of itself; so their mean
    # derivatives along the orbit are equal.
    offsets = overlaps - overlaps.mean(axis=0)
    plane = np.linalg.svd(offsets, full_matrices=False)[2][:2].T
    (x, y), (across, up) = (offsets @ plane).T, (tangents @ plane).T
    turns = (x * up - y * across) / (x**2 + y**2)
    scale = turns.mean()
    if not abs(scale) > WINDING * np.sqrt(np.mean(turns**2)):
        raise fail("state", "an orbit that does not wind around its mean", "a state on a quasi-periodic orbit")
    covectors = np.asarray(_adjoint(*map(jnp.asarray, (rows[2], rows[3], last))))[:, :width]
    growth = np.einsum("ta,tab,tb->t", covectors, rows[4], covectors)[:steps] * (scale / (last @ column)) ** 2 / 2
    batches = np.array([part.mean() for part in np.array_split(growth, BATCHES)])
    advance = np.angle(np.exp(1j * np.diff(np.arctan2(y, x))))
    error = batches.std(ddof=1) / np.sqrt(BATCHES)
    return PhaseDiffusion(float(growth.mean()), float(error), float(abs(advance.mean())))


def _begin(model: Any, state: Any) -> tuple[NetworkArrays, _Window]:
    """The network of a model as arrays, and the overlaps of a start."""
    if not isinstance(model, MeanField):
        raise fail("model", type(model).__name__, "a MeanField")
    features = model.features
    if features.columns is None or features.fractions is None:
        got = "features known by correlations only, which do not give the noise"
        raise fail("model", got, "a MeanField of explicit columns, such as features.with_bits(N)")
    model.settled(state, 0)  # refuses what is no window of this model
    tokens = model.overlaps(state.A, state.positions[: len(state.A)])
    if state.first is not None:
        tokens = {
            role: numpy_for(part, state.first).concatenate([part, state.first[role][None]])
            for role, part in tokens.items()
        }
    filled = len(tokens["o"])
    rows = numpy_for(tokens).concatenate([tokens[role].reshape(filled, -1) for role in ROLES], axis=1)
    if model.context * rows.shape[1] > LARGEST_WINDOW:
        got = f"{model.context} tokens of {rows.shape[1]} overlaps in the window"
        raise fail("model", got, f"at most {LARGEST_WINDOW} overlaps: their covariance is kept")
    # Token t has the positions of row −t of the window, which rotate.
    positions = state.positions[-np.arange(model.context) % model.context]
    system = network_arrays(model, *merge(features.columns, features.fractions), 1.0, positions)
    overlaps = jnp.zeros((model.context, rows.shape[1])).at[:filled].set(rows)
    return system, _Window(np.int64(0), overlaps, np.int64(filled))


def _followed(model: MeanField, system: NetworkArrays, start: Any, steps: int) -> Fluctuations:
    """The record of some steps from a window with its covariance."""
    (_, last), (mean, covariance) = kept_rows(_covariance_rows, system, start, steps)
    if not traced(covariance, last) and not np.isfinite(last).all():
        finite = int(np.isfinite(covariance).all(axis=(1, 2)).sum())
        raise fail("steps", steps, f"at most {finite}: later covariances are too large for float64")
    counts = {role: (1 if role == "o" else model.features.heads) * model.features.count for role in ROLES}
    names = tuple(f"m_{role}[{number}]" for role, count in counts.items() for number in range(count))
    window = numbers(last).reshape(model.context, len(names), model.context, len(names))
    return Fluctuations(names, mean, covariance, window, system, start)


def _drawn(system: NetworkArrays, A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Semantic means of the overlaps of a token drawn from A, their slopes by A and their noise Q."""
    product = partial(jnp.matmul, precision=MATMUL_PRECISION)
    fields = system.beta * product(A, system.o)
    # 1 − tanh² without the loss of digits near ±1.
    spread = 4 * jax.nn.sigmoid(2 * fields) * jax.nn.sigmoid(-2 * fields) * system.counts / system.bits
    weighted = system.semantic_weight * system.patterns * spread[None]
    means = system.semantic_weight * product(system.patterns, jnp.tanh(fields) * system.counts / system.bits)
    noise = system.semantic_weight * product(weighted, system.patterns.T)
    return means, system.beta * product(weighted, system.o.T), noise


@eqx.filter_jit
def _noise_of_tokens(system: NetworkArrays, A: jax.Array) -> jax.Array:
    return jax.vmap(lambda one: _drawn(system, one)[2])(A)


def _linearised(system: NetworkArrays, window: _Window) -> _Linear:
    """The next token to first order in the deviations of the window."""
    context, _, heads, features = system.positional.shape
    filled = jnp.arange(context) < window.filled

    def output(overlaps: jax.Array) -> jax.Array:
        v, q, k = jnp.moveaxis(overlaps[:, features:].reshape(context, 3, heads, features), 1, 0)
        return attend(system.logit_scale, q[0], v, k, filled)

    means, slopes, noise = _drawn(system, output(window.overlaps))
    positional = system.positional[(window.time + 1) % context].reshape(-1)
    overlaps = means.at[features:].add(positional)
    attention = jax.jacrev(output)(window.overlaps).reshape(features, -1)
    return _Linear(overlaps, slopes, noise, attention)


def _advanced(linear: _Linear, window: _Window) -> _Window:
    overlaps = jnp.concatenate([linear.overlaps[None], window.overlaps[:-1]])
    return _Window(window.time + 1, overlaps, jnp.minimum(window.filled + 1, len(overlaps)))


def _pushed(linear: _Linear, columns: jax.Array) -> jax.Array:
    """Deviations of a window [token and overlap, column] one step on: J times the columns."""
    product = partial(jnp.matmul, precision=MATMUL_PRECISION)
    new = product(linear.slopes, product(linear.attention, columns))
    return jnp.concatenate([new, columns[: -len(new)]])


def _with_covariance(system: NetworkArrays, start: Any) -> Any:
    """A window and its covariance C one step on: J C Jᵀ, and Q for the newest token."""
    window, covariance = start
    linear, width = _linearised(system, window), len(system.patterns)
    covariance = _pushed(linear, _pushed(linear, covariance).T)
    return _advanced(linear, window), covariance.at[:width, :width].add(linear.noise)


def _covariance_rows(system: NetworkArrays, carry: Any) -> Any:
    window, covariance = carry
    width = len(system.patterns)
    return _with_covariance(system, carry), (window.overlaps[0], covariance[:width, :width])


@eqx.filter_jit
def _walked(system: NetworkArrays, start: Any, steps: Any) -> Any:
    """A window and its covariance some steps later."""
    return lax.fori_loop(0, steps, lambda _, carry: _with_covariance(system, carry), start)


def _with_columns(system: NetworkArrays, carry: Any) -> Any:
    window, columns = carry
    linear = _linearised(system, window)
    return _advanced(linear, window), _pushed(linear, columns)


@eqx.filter_jit
def _pushed_on(system: NetworkArrays, window: _Window, columns: jax.Array, steps: Any) -> jax.Array:
    """Deviations of a window some steps later."""
    return lax.fori_loop(0, steps, lambda _, carry: _with_columns(system, carry), (window, columns))[1]


@eqx.filter_jit
def _pushed_from(system: NetworkArrays, window: _Window, steps: Any) -> tuple[_Window, jax.Array]:
    """A window some steps later, and its Jacobian."""
    start = window, jnp.eye(window.overlaps.size)
    return lax.fori_loop(0, steps, lambda _, carry: _with_columns(system, carry), start)


@eqx.filter_jit
def _aligned(system: NetworkArrays, window: _Window, column: jax.Array, steps: Any) -> Any:
    """A window some steps later, and the direction to which a tangent vector has turned."""

    def one(_: Any, carry: Any) -> Any:
        window, columns = _with_columns(system, carry)
        return window, columns / jnp.linalg.norm(columns)

    window, columns = lax.fori_loop(0, steps, one, (window, column[:, None]))
    return window, columns[:, 0]


def _tangent_rows(system: NetworkArrays, carry: Any) -> Any:
    """Overlaps and tangent of the newest token, and the slopes and noise of the step that follows."""
    window, column = carry
    linear, width = _linearised(system, window), len(system.patterns)
    after = _advanced(linear, window), _pushed(linear, column[:, None])[:, 0]
    return after, (window.overlaps[0], column[:width], linear.slopes, linear.attention, linear.noise)


@jax.jit
def _adjoint(slopes: jax.Array, attention: jax.Array, last: jax.Array) -> jax.Array:
    """The covector after each step that becomes the last one: w = Jᵀ w', [step, token and overlap]."""

    def back(covector: jax.Array, step: Any) -> tuple[jax.Array, jax.Array]:
        slopes, attention = step
        width, product = len(slopes), partial(jnp.matmul, precision=MATMUL_PRECISION)
        through = product(product(covector[:width], slopes), attention)
        return through + jnp.concatenate([covector[width:], jnp.zeros(width)]), covector

    return lax.scan(back, last, (slopes, attention), reverse=True)[1]

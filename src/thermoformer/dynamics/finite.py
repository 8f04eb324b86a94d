"""The finite network: N bits drawn from its own attention, token after token (dynamics §1, §5).

Two forms with the same law: every bit drawn by itself, or, because bits with equal columns are exchangeable, one
binomial number per joint class. The cost of the second does not depend on N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from .._keys import KeyLike, as_key
from .._notebook import Result, span
from .._precision import MATMUL_PRECISION
from .._validation import fail, numpy_for, one_of, positive_integer, real_array
from .engine import kept_rows
from .features import ROLES, Features
from .meanfield import checked_network
from .site_classes import Arrays, merge

# Memory of the bit-by-bit form: a dozen patterns of this many bits are some 10 GB.
_LARGEST_BITS = 10**8
# Hörmann's rejection method is made for ten expected successes or more; fewer are found by inversion in few steps.
_INVERSION_BELOW = 10.0
# With fewer than 10 successes expected, more than 100 have a probability below 1e-60.
_MOST_BY_INVERSION = 100
# The acceptance test loses digits in proportion to the trials: at 10^12 it is still good to 1e-4 at any point.
LARGEST_TRIALS = 10**12

# Rests of Stirling's formula where its series is poor.
_FIRST_RESTS = [math.lgamma(k) - (k - 0.5) * math.log(k) + k - 0.5 * math.log(2 * math.pi) for k in range(1, 11)]


@dataclass(frozen=True, eq=False, repr=False)
class FiniteOrbit(Result):
    """A run of the finite network; index t = 0, 1, ... counts tokens.

    Fields:
        A: attention output from the window that ends with token t, [copy, step, feature].
        m_o_semantic: overlap of token t with o, semantic bits only and without the factor 1−ε, [copy, step, feature].
        m_v, m_q, m_k: overlaps of token t, [copy, step, feature]; [copy, step, head, feature] with several heads.
        epsilon: ε, the weight of positions.
    """

    A: np.ndarray
    m_o_semantic: np.ndarray
    m_v: np.ndarray
    m_q: np.ndarray
    m_k: np.ndarray
    epsilon: float

    @property
    def m_o(self) -> np.ndarray:
        """Overlap with o, semantic bits times 1−ε, [copy, step, feature]."""
        return (1 - self.epsilon) * self.m_o_semantic

    def to_xarray(self) -> xr.Dataset:
        """All arrays with named axes.

        Example:
            >>> network = FiniteNetwork(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02, bits=990)
            >>> dict(network.run(100, copies=5).to_xarray().sizes)
            {'copy': 5, 'step': 100, 'feature': 3}
        """
        arrays = {name: getattr(self, name) for name in ("A", "m_o", "m_o_semantic", "m_v", "m_q", "m_k")}
        axes = {3: ("copy", "step", "feature"), 4: ("copy", "step", "head", "feature")}
        variables = {name: (axes[array.ndim], array) for name, array in arrays.items()}
        return xr.Dataset(variables, attrs={"epsilon": self.epsilon})

    def summary(self) -> dict[str, Any]:
        """Copies, their length, the number of features, and the range of m_o."""
        copies, steps, features = np.shape(self.A)
        return {"copies": copies, "steps": steps, "features": features, "m_o": span(self.m_o)}


class NetworkArrays(NamedTuple):
    """What one step needs, as arrays."""

    patterns: jax.Array  # [overlap, site]: rows o, v, q, k, all heads
    o: jax.Array  # [feature, site]
    counts: jax.Array  # [site]; ones where a site is one bit
    bits: jax.Array  # N
    beta: jax.Array
    logit_scale: jax.Array  # γ/√M
    semantic_weight: jax.Array  # 1−ε
    positional: jax.Array  # [position, role (v, q, k), head, feature]: ε times the positional part


@dataclass(frozen=True, eq=False)
class FiniteNetwork:
    """A self-attention network of N semantic bits that feeds on its own output.

    Arguments:
        features: the patterns of the four roles.
        beta: β, the inverse temperature of the output.
        gamma: γ, the inverse temperature of attention.
        epsilon: ε, the weight of positions, in [0, 1].
        bits: N; by default one bit per column of the features, which must then have equal fractions. The columns share
            the bits by their fractions. If these do not give whole numbers, or the features are known by correlations
            only, the bits' columns are drawn once (see `Features.joint_classes`).
        context, positions: as in `MeanField`.
        key: an integer or a JAX key, for columns that are drawn.

    Example:
        >>> network = FiniteNetwork(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02, bits=990)
        >>> network.run(100, copies=5, key=1).m_o.shape
        (5, 100, 3)
        >>> huge = FiniteNetwork(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02, bits=999_999_999)
        >>> huge.run(100, form="classes").A.shape
        (1, 100, 3)
    """

    features: Features
    beta: float
    gamma: float
    epsilon: float
    bits: int = None  # type: ignore[assignment]
    context: int = None  # type: ignore[assignment]
    positions: Any = None
    key: KeyLike = 0
    _sites: Features = field(init=False, repr=False)
    _counts: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checked, features, bits = checked_network(self), self.features, self.bits
        if bits is None:
            if features.fractions is None or np.ptp(features.fractions) > 1e-12:
                raise fail("bits", None, "the number of semantic bits: these features are not given bit by bit")
            bits = len(features.fractions)
        if positive_integer("bits", bits) > LARGEST_TRIALS:
            raise fail("bits", bits, f"at most {LARGEST_TRIALS}")
        columns, counts = features.allocate(bits, self.key)
        sites = Features.from_patterns(columns, features.positional, fractions=counts / bits)
        for name, value in (checked | {"bits": bits, "_sites": sites, "_counts": counts}).items():
            object.__setattr__(self, name, value)

    def run(
        self,
        steps: int,
        x0: Any = None,
        *,
        copies: int = 1,
        key: KeyLike = 0,
        uniforms: Any = None,
        form: str = "bits",
    ) -> FiniteOrbit:
        """Overlaps and attention outputs of `steps` tokens, the first of which is x0.

        Arguments:
            steps: how many tokens, x0 included.
            x0: the first token: N semantic bits, or one number in [−1, 1] per column of the features, the average of
                its bits; then the positional bits. By default pattern o_1 at position 0.
            copies: how many independent runs from the same x0.
            key: an integer or a JAX key; copy i is the same for any number of copies.
            uniforms: numbers in [0, 1], [step, bit], or [copy, step, bit] for several copies, at least steps − 1 along
                their axis: a bit is +1 if (1 + tanh h)/2 is larger than its number. For comparisons bit by bit.
            form: "bits" draws every bit; "classes" draws one binomial number per joint class: same law, any N.

        Example:
            >>> network = FiniteNetwork(Features.paper(), beta=0.0, gamma=220.0, epsilon=0.02, bits=990)
            >>> bool(abs(network.run(100, copies=5, key=3).m_o[:, 1:]).max() < 0.2)
            True
        """
        steps, copies = positive_integer("steps", steps), positive_integer("copies", copies)
        token = self._token(x0)
        overlaps = self._sites.token_overlaps(token, self.epsilon)
        attended = np.stack([overlaps[role] for role in ROLES[1:]])
        by_class = one_of("form", form, ("bits", "classes")) == "classes"
        draws = None if uniforms is None else self._uniforms(uniforms, steps, copies, by_class)
        # The first token sees only itself, with weight 1.
        window = np.zeros((self.context, 2, *attended.shape[1:]))
        window[0] = attended[::2]
        first = window, (self._sites.token_overlaps(token, 0.0)["o"], attended, attended[0].sum(axis=0))
        carry = jax.tree.map(lambda part: np.broadcast_to(part, (copies, *part.shape)), first)
        fixed = self._system(by_class), by_class, as_key(key), np.arange(copies), draws
        _, rows = kept_rows(_advance, fixed, (np.int64(0), *carry), steps)
        o, attended, A = (np.swapaxes(row, 0, 1) for row in rows)
        attended = attended[:, :, :, 0] if self.features.heads == 1 else attended
        return FiniteOrbit(A, o, *np.moveaxis(attended, 2, 0), epsilon=self.epsilon)

    def _token(self, x0: Any) -> np.ndarray:
        """The first token as one number per site and its positional bits."""
        bits, counts, width = self.bits, self._counts, self.features.positional_bits
        if x0 is None:
            return np.concatenate([self._sites.columns["o"][0], self.positions[0]])  # type: ignore[index]
        token = real_array("x0", x0, ("bit",))
        if len(token) not in (bits + width, len(counts) + width):
            expected = f"{bits + width} ({bits} semantic and {width} positional bits)"
            raise fail("x0", f"{len(token)} entries", f"{expected} or {len(counts) + width}, one number per column")
        if np.abs(token).max() > 1:
            raise fail("x0", f"an entry of size {np.abs(token).max():.6g}", "entries in [−1, 1]")
        if len(token) == len(counts) + width:
            return token
        sums = np.bincount(np.repeat(np.arange(len(counts)), counts), token[:bits], len(counts))
        return np.concatenate([sums / np.maximum(counts, 1), token[bits:]])

    def _uniforms(self, uniforms: Any, steps: int, copies: int, by_class: bool) -> np.ndarray:
        if by_class:
            raise fail("uniforms", "numbers for every bit", "none with form='classes'")
        array = real_array("uniforms", uniforms)
        if array.ndim == 2 and copies == 1:
            array = array[None]
        if array.ndim != 3 or array.shape[0] != copies or array.shape[1] < steps - 1 or array.shape[2] != self.bits:
            expected = f"[step, {self.bits}]" if copies == 1 else f"[{copies}, step, {self.bits}]"
            raise fail("uniforms", f"shape {np.shape(uniforms)}", f"{expected} with at least {steps - 1} steps")
        if array.min() < 0 or array.max() > 1:
            raise fail("uniforms", f"numbers from {array.min():.6g} to {array.max():.6g}", "numbers in [0, 1]")
        return array

    def _system(self, by_class: bool) -> NetworkArrays:
        columns, counts = self._sites.columns, self._counts
        assert columns is not None
        if by_class:
            columns, counts = merge(columns, counts)
        elif self.bits > _LARGEST_BITS:
            raise fail("form", f"'bits' with {self.bits} bits", f"'classes' for more than {_LARGEST_BITS} bits")
        else:
            columns = {role: np.repeat(columns[role], counts, axis=-1) for role in ROLES}
            counts = np.ones(self.bits)
        return network_arrays(self, columns, counts, self.bits, self.positions)


def network_arrays(network: Any, columns: Arrays, counts: Any, bits: Any, positions: Any) -> NetworkArrays:
    """The arrays of a finite network or a mean field with these columns; `positions` [position, bit] in their order."""
    features = network.features
    xp = numpy_for(positions, network.epsilon, counts)
    parts = [positions @ np.swapaxes(features.positional[role], -1, -2) for role in ROLES[1:]]
    positional = xp.moveaxis(xp.stack(parts), 2, 0)  # [role, head, position, feature] to position first
    positional = positional * network.epsilon / max(1, features.positional_bits)
    patterns = np.concatenate([columns[role].reshape(-1, len(counts)) for role in ROLES])
    scale = network.gamma / np.sqrt(features.count)
    parts = patterns, columns["o"], counts, bits, network.beta, scale, 1 - network.epsilon, positional
    return NetworkArrays(*(jnp.asarray(part, float) for part in parts))


def _advance(fixed: Any, carry: Any) -> Any:
    """The next token of all copies; o [copy, feature], (v, q, k) [copy, role, head, feature] and A of this one."""
    system, by_class, key, copies, uniforms = fixed
    time, window, token = carry
    following = partial(_next_token, system, by_class, time + 1, key)
    return (time + 1, *jax.vmap(following)(copies, uniforms, window, token[-1])), token


def _next_token(
    system: NetworkArrays, by_class: bool, time: Any, key: Any, copy: Any, uniforms: Any, window: Any, A: Any
):
    """The window after one more token, which is drawn from A, and o, (v, q, k) and A of this token."""
    key = jax.random.fold_in(jax.random.fold_in(key, copy), time)
    fields = system.beta * jnp.einsum("b,bs->s", A, system.o, precision=MATMUL_PRECISION)
    if by_class:
        # The rarer sign is counted: its probability keeps all digits however close to 0.
        against = rare_binomial(key, system.counts, jax.nn.sigmoid(-2 * jnp.abs(fields)))
        bits = jnp.where(fields >= 0, 1.0, -1.0) * (system.counts - 2 * against)
    else:
        uniform = jax.random.uniform(key, fields.shape, fields.dtype) if uniforms is None else uniforms[time - 1]
        bits = jnp.where((1 + jnp.tanh(fields)) / 2 > uniform, 1.0, -1.0)
    context, _, heads, features = system.positional.shape
    sums = jnp.einsum("rs,s->r", system.patterns, bits, precision=MATMUL_PRECISION) / system.bits
    o, rest = sums[:features], sums[features:].reshape(3, heads, features)
    v, q, k = attended = system.semantic_weight * rest + system.positional[time % context]
    # The token joins the window, newest first, and looks at all of it.
    window = jnp.concatenate([jnp.stack([v, k])[None], window[:-1]])
    A = attend(system.logit_scale, q, window[:, 0], window[:, 1], jnp.arange(context) <= time)
    return window, (o, attended, A)


def attend(scale: jax.Array, query: jax.Array, values: jax.Array, keys: jax.Array, filled: jax.Array) -> jax.Array:
    """A [feature] of a query [head, feature] that sees values and keys [token, head, feature] where `filled` [token].

    `scale` is γ/√M.
    """
    match = jnp.einsum("ha,dha->hd", query, keys, precision=MATMUL_PRECISION) * jnp.sign(scale)
    filled = jnp.broadcast_to(filled, match.shape)
    # The largest is subtracted before γ multiplies: the other way round, a fused multiply-add leaves γ times a
    # rounding error in the exponent, which overflows at γ above 10^18. A shift needs no derivative.
    largest = jax.lax.stop_gradient(jnp.max(match, axis=1, keepdims=True, where=filled, initial=-jnp.inf))
    weights = jnp.where(filled, jnp.exp(jnp.abs(scale) * jnp.where(filled, match - largest, 0.0)), 0.0)
    weights = weights / weights.sum(axis=1, keepdims=True)
    return jnp.einsum("hd,dha->a", weights, values, precision=MATMUL_PRECISION)


def rare_binomial(key: jax.Array, trials: jax.Array, probability: jax.Array) -> jax.Array:
    """Independent binomial numbers as floats, for up to 10^12 trials, probabilities of at most 1/2; exact in law.

    `jax.random.binomial` (read in JAX 0.10) cuts the argument of its Stirling correction at 9: tenths of a percent in
    the acceptance ratio where about ten successes are expected. This is the same method with the full correction.
    """
    # Written so that NaN counts as small: inversion ends after a fixed number of steps, rejection would never accept.
    small = ~(trials * probability >= _INVERSION_BELOW)
    inversion_key, rejection_key = jax.random.split(key)
    few = _by_inversion(inversion_key, trials, jnp.where(small, probability, 0.0))
    many = _by_rejection(rejection_key, jnp.where(small, 100.0, trials), jnp.where(small, 0.5, probability), small)
    return jnp.where(small, few, many)


def _by_inversion(key: jax.Array, trials: jax.Array, probability: jax.Array) -> jax.Array:
    """The smallest k whose cumulative probability exceeds one uniform number, terms by their recursion."""
    uniform = jax.random.uniform(key, trials.shape, trials.dtype)
    odds = probability / (1 - probability)
    term = jnp.exp(trials * jnp.log1p(-probability))

    def unfinished(state):
        k, _, cumulative, _ = state
        return (k < _MOST_BY_INVERSION) & (uniform >= cumulative).any()

    def advance(state):
        k, term, cumulative, found = state
        term = term * odds * jnp.maximum(trials - k, 0) / (k + 1)
        return k + 1, term, cumulative + term, found + (uniform >= cumulative)

    start = (jnp.zeros((), trials.dtype), term, term, jnp.zeros_like(trials))
    return jnp.minimum(jax.lax.while_loop(unfinished, advance, start)[3], trials)


def _by_rejection(key: jax.Array, trials: jax.Array, probability: jax.Array, done: jax.Array) -> jax.Array:
    """Transformed rejection with squeeze, algorithm BTRS of Hörmann (J. Stat. Comput. Simul. 46, 1993)."""
    deviation = jnp.sqrt(trials * probability * (1 - probability))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * probability
    centre = trials * probability + 0.5
    squeeze = 0.92 - 4.2 / b
    alpha = (2.83 + 5.1 / b) * deviation
    odds = probability / (1 - probability)
    mode = jnp.floor((trials + 1) * probability)

    def log_ratio(k):
        """log of the probability of k over that of the mode."""
        rest = _stirling_rest(jnp.stack([mode, trials - mode, k, trials - k]))
        of_mode = (mode + 0.5) * jnp.log((mode + 1) / (odds * (trials - mode + 1)))
        between = (trials + 1) * jnp.log1p((k - mode) / (trials - k + 1))
        of_k = (k + 0.5) * jnp.log(odds * (trials - k + 1) / (k + 1))
        return of_mode + between + of_k + rest[0] + rest[1] - rest[2] - rest[3]

    def attempt(state):
        round_, done, chosen = state
        u, v = jax.random.uniform(jax.random.fold_in(key, round_), (2, *trials.shape), trials.dtype)
        u = u - 0.5
        edge = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / edge + b) * u + centre)
        inside = (k >= 0) & (k <= trials)
        k = jnp.where(inside, k, mode)
        accepted = (edge >= 0.07) & (v <= squeeze)
        accepted |= jnp.log(v * alpha / (a / edge**2 + b)) <= log_ratio(k)
        accepted &= inside & ~done
        return round_ + 1, done | accepted, jnp.where(accepted, k, chosen)

    return jax.lax.while_loop(lambda state: ~state[1].all(), attempt, (0, done, mode))[2]


def _stirling_rest(k: jax.Array) -> jax.Array:
    """log k! − [½ log 2π + (k + ½) log(k + 1) − (k + 1)]."""
    few = jnp.asarray(_FIRST_RESTS, k.dtype)[jnp.clip(k, 0, 9).astype(int)]
    many = jnp.maximum(k, 10.0) + 1
    series = (1 / 12 - (1 / 360 - 1 / (1260 * many**2)) / many**2) / many
    return jnp.where(k < 10, few, series)

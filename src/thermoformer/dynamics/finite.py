"""The finite network: N bits drawn from its own attention, token after token (dynamics §1, §5).

Two forms with the same law: every bit drawn by itself, or, because bits with equal columns are exchangeable, one
binomial number per joint class. The cost of the second does not depend on N.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from .._keys import KeyLike, as_key
from .._precision import MATMUL_PRECISION
from .._validation import fail, one_of, positive_integer, real_array
from . import joint_classes
from ._feature_checks import weight_of_positions
from .binomial import LARGEST_TRIALS, rare_binomial
from .features import Features
from .positions import context_and_positions
from .site_classes import ROLES

# Memory of the bit-by-bit form: a dozen patterns of this many bits are some 10 GB.
_LARGEST_BITS = 10**8


@dataclass(frozen=True, eq=False)
class FiniteOrbit:
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
            >>> network = FiniteNetwork(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02, bits=99)
            >>> dict(network.run(5, copies=2).to_xarray().sizes)
            {'copy': 2, 'step': 5, 'feature': 3}
        """
        axes = ("copy", "step", "feature")
        head_axes = axes if self.m_v.ndim == 3 else ("copy", "step", "head", "feature")
        variables: dict[str, Any] = {name: (axes, getattr(self, name)) for name in ("A", "m_o", "m_o_semantic")}
        variables |= {name: (head_axes, getattr(self, name)) for name in ("m_v", "m_q", "m_k")}
        return xr.Dataset(variables, attrs={"epsilon": self.epsilon})


class _System(NamedTuple):
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
        features: what the four roles look for.
        beta: β, the inverse temperature of the output.
        gamma: γ, the inverse temperature of attention.
        epsilon: ε, the weight of positions, in [0, 1].
        bits: N. If not given, one bit per column of the features, which must then have equal fractions. The columns
            share the bits by their fractions; where these do not give whole numbers, or the features are known by
            correlations only, the bits' columns are drawn once (see `Features.drawn_classes`).
        context: L, how many tokens attention sees; 2^B if not given.
        positions: [context, bit], ±1, the positional bits of positions 0, 1, ...; binary digits if not given.
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
    bits: int | None = None
    context: int | None = None
    positions: Any = None
    key: KeyLike = 0
    _sites: Features = field(init=False, repr=False)
    _counts: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.features, Features):
            raise fail("features", type(self.features).__name__, "Features")
        for name in ("beta", "gamma"):
            object.__setattr__(self, name, float(real_array(name, getattr(self, name), ())))
        object.__setattr__(self, "epsilon", weight_of_positions(self.epsilon))
        if self.features.positional_bits == 0 and self.epsilon > 0:
            raise fail("epsilon", self.epsilon, "0: these features have no positional bits")
        context, positions = context_and_positions(self.context, self.positions, self.features.positional_bits)
        bits = self._default_bits() if self.bits is None else positive_integer("bits", self.bits)
        if bits > LARGEST_TRIALS:
            raise fail("bits", bits, f"at most {LARGEST_TRIALS}")
        columns, counts = self.features.allocate(bits, self.key)
        positional = self.features.positional if self.features.positional_bits else None
        sites = Features.from_patterns(columns, positional, fractions=counts / bits)
        for name, value in (("context", context), ("positions", positions), ("bits", bits)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_sites", sites)
        object.__setattr__(self, "_counts", counts)

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
                its bits; then the positional bits. Pattern o_1 at position 0 if not given.
            copies: how many independent runs from the same x0.
            key: an integer or a JAX key; copy i is the same for any number of copies.
            uniforms: numbers in [0, 1], [step, bit], or [copy, step, bit] for several copies, at least steps − 1 along
                their axis: a bit is +1 if (1 + tanh h)/2 is larger than its number. For comparisons bit by bit.
            form: "bits" draws every bit; "classes" draws one binomial number per joint class: same law, any N.

        Example:
            >>> network = FiniteNetwork(Features.paper(), beta=0.0, gamma=220.0, epsilon=0.02, bits=30_000)
            >>> bool(abs(network.run(50, key=3).m_o[0, 1:]).max() < 0.03)
            True
        """
        steps, copies = positive_integer("steps", steps), positive_integer("copies", copies)
        token = self._token(x0)
        overlaps = self._sites.token_overlaps(token, self.epsilon)
        first = self._sites.token_overlaps(token, 0.0)["o"], np.stack([overlaps[role] for role in ROLES[1:]])
        by_class = one_of("form", form, ("bits", "classes")) == "classes"
        draws = None if uniforms is None else self._uniforms(uniforms, steps, copies, by_class)
        shape = {"copies": copies, "steps": steps, "by_class": by_class}
        o, attended, A = _run(self._system(by_class), first, as_key(key), draws, **shape)
        m_v, m_q, m_k = np.moveaxis(np.asarray(attended, np.float64), 2, 0)
        if self.features.heads == 1:
            m_v, m_q, m_k = m_v[:, :, 0], m_q[:, :, 0], m_k[:, :, 0]
        return FiniteOrbit(np.asarray(A, np.float64), np.asarray(o, np.float64), m_v, m_q, m_k, self.epsilon)

    def _default_bits(self) -> int:
        fractions = self.features.fractions
        if fractions is None or np.ptp(fractions) > 1e-12:
            raise fail("bits", None, "the number of semantic bits: these features are not given bit by bit")
        return len(fractions)

    def _token(self, x0: Any) -> np.ndarray:
        """The first token as one number per site and its positional bits."""
        bits, counts, width = self.bits or 0, self._counts, self.features.positional_bits
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
        return array[:, : steps - 1]

    def _system(self, by_class: bool) -> _System:
        columns, counts = self._sites.columns, self._counts
        assert columns is not None and self.bits is not None
        if by_class:
            columns, counts = joint_classes.merge(columns, counts)
        elif self.bits > _LARGEST_BITS:
            raise fail("form", f"'bits' with {self.bits} bits", f"'classes' for more than {_LARGEST_BITS} bits")
        else:
            columns = {role: np.repeat(columns[role], counts, axis=-1) for role in ROLES}
            counts = np.ones(self.bits)
        parts = [self.positions @ np.swapaxes(self.features.positional[role], -1, -2) for role in ROLES[1:]]
        positional = np.moveaxis(np.stack(parts), 2, 0)  # [role, head, position, feature] to position first
        return _System(
            patterns=jnp.asarray(np.concatenate([columns[role].reshape(-1, len(counts)) for role in ROLES])),
            o=jnp.asarray(columns["o"]),
            counts=jnp.asarray(counts, float),
            bits=jnp.asarray(self.bits, float),
            beta=jnp.asarray(self.beta),
            logit_scale=jnp.asarray(self.gamma / np.sqrt(self.features.features)),
            semantic_weight=jnp.asarray(1 - self.epsilon),
            positional=jnp.asarray(positional * self.epsilon / max(1, self.features.positional_bits)),
        )


@partial(jax.jit, static_argnames=("copies", "steps", "by_class"))
def _run(system: _System, first: Any, key: jax.Array, uniforms: Any, *, copies: int, steps: int, by_class: bool) -> Any:
    """o [copy, step, feature], (v, q, k) [copy, step, role, head, feature] and A [copy, step, feature]."""

    def one(copy, draws):
        return _one_copy(system, first, jax.random.fold_in(key, copy), draws, steps, by_class)

    return jax.vmap(one)(jnp.arange(copies), uniforms)


def _one_copy(system: _System, first: Any, key: jax.Array, uniforms: Any, steps: int, by_class: bool) -> Any:
    context, _, heads, features = system.positional.shape

    def attend(window, attended, time):
        """The token joins the window, newest first, and looks at all of it."""
        v, q, k = attended
        window = jnp.concatenate([jnp.stack([v, k])[None], window[:-1]])
        match = jnp.einsum("ha,dha->hd", q, window[:, 1], precision=MATMUL_PRECISION) * jnp.sign(system.logit_scale)
        filled = jnp.broadcast_to(jnp.arange(context) <= time, match.shape)
        # The largest is subtracted before γ multiplies: the other way round, a fused multiply-add leaves γ times a
        # rounding error in the exponent, which overflows at γ above 10^18.
        gap = match - jnp.max(match, axis=1, keepdims=True, where=filled, initial=-jnp.inf)
        weights = jnp.where(filled, jnp.exp(jnp.abs(system.logit_scale) * jnp.where(filled, gap, 0.0)), 0.0)
        weights = weights / weights.sum(axis=1, keepdims=True)
        return window, jnp.einsum("hd,dha->a", weights, window[:, 0], precision=MATMUL_PRECISION)

    def draw(A, time, given):
        """Sum of the semantic bits of every site."""
        fields = system.beta * jnp.einsum("b,bs->s", A, system.o, precision=MATMUL_PRECISION)
        step_key = jax.random.fold_in(key, time)
        if by_class:
            # The rarer sign is counted: its probability keeps all digits however close to 0.
            against = rare_binomial(step_key, system.counts, jax.nn.sigmoid(-2 * jnp.abs(fields)))
            return jnp.where(fields >= 0, 1.0, -1.0) * (system.counts - 2 * against)
        uniform = jax.random.uniform(step_key, fields.shape, fields.dtype) if given is None else given
        return jnp.where((1 + jnp.tanh(fields)) / 2 > uniform, 1.0, -1.0)

    def step(state, inputs):
        window, A = state
        time, given = inputs
        sums = jnp.einsum("rs,s->r", system.patterns, draw(A, time, given), precision=MATMUL_PRECISION) / system.bits
        o, rest = sums[:features], sums[features:].reshape(3, heads, features)
        attended = system.semantic_weight * rest + system.positional[time % context]
        window, A = attend(window, attended, time)
        return (window, A), (o, attended, A)

    o, attended = (jnp.asarray(part) for part in first)
    # The first token sees only itself, with weight 1.
    window = jnp.zeros((context, 2, heads, features)).at[0].set(attended[::2])
    A = attended[0].sum(axis=0)
    _, later = jax.lax.scan(step, (window, A), (jnp.arange(1, steps), uniforms))
    return tuple(jnp.concatenate([start[None], rest]) for start, rest in zip((o, attended, A), later, strict=True))

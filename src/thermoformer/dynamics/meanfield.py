"""The mean-field map of a self-attention network that feeds on its own output (dynamics §2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import lax
from jaxtyping import Array, Float, Int

from .. import _validation as check
from .._validation import fail, numbers, numpy_for, traced
from .features import ROLES, Features, share_of_positions
from .maps import Lanes, Map, as_one_program, check_names, pytree, side_by_side, sum_of_products

# The usual context is 2^bits, so a small file with many positional bits can ask for any size.
LARGEST_CONTEXT = 2**16


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """The tokens that attention sees, newest first.

    Fields:
        A: [token, feature], the attention output that made each token.
        positions: [context, bit], ±1, positional bits of the last L positions, the newest token's first; they rotate.
        first: overlaps by role of an explicit token x_0 that is still in the window, older than all others; else none.
    """

    A: np.ndarray
    positions: np.ndarray
    first: Mapping[str, np.ndarray] | None = None

    def to_xarray(self) -> xr.Dataset:
        """The window with named axes."""
        return xr.Dataset({"A": (("token", "feature"), self.A), "positions": (("position", "bit"), self.positions)})


@pytree("context", "observed")
@dataclasses.dataclass(frozen=True, eq=False)
class MeanField(Map):
    """The deterministic map that the network becomes as its tokens grow: N → ∞ at fixed M, L.

    m_d = (1−ε) Σ_s p_s g_s tanh(β s·A_d) + ε · positional part;  w = softmax(γ/√M m^q_0 · m^k_d);  A' = Σ_d w_d m^v_d.

    Arguments:
        features: the patterns of the four roles.
        beta: β, the inverse temperature of the output.
        gamma: γ, the inverse temperature of attention.
        epsilon: ε, the weight of positions, in [0, 1].
        context: L; 2^B by default.
        positions: [context, bit], the positional bits of positions 0, 1, ...; binary digits by default.
        observed: the role whose overlaps are the observables of diagrams and statistics; "o" by default.

    Example:
        >>> model = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
        >>> model.context, model.dimension
        (4, 12)
    """

    features: Features
    beta: float
    gamma: float
    epsilon: float
    context: int = None  # type: ignore[assignment]
    positions: Any = None
    observed: str = "o"

    def __post_init__(self) -> None:
        for name, value in checked_network(self).items():
            object.__setattr__(self, name, value)
        check.one_of("observed", self.observed, ROLES)

    @property
    def parameters(self) -> Mapping[str, float]:
        """β, γ and ε, which diagrams can vary."""
        return {"beta": self.beta, "gamma": self.gamma, "epsilon": self.epsilon}

    @property
    def dimension(self) -> int:
        """M·L: positions permute, and have no exponents of their own."""
        return self.features.count * self.context

    @property
    def observables(self) -> tuple[str, ...]:
        """The overlaps with the observed role, feature by feature; with v, q and k head by head."""
        heads = 1 if self.observed == "o" else self.features.heads
        return tuple(f"m_{self.observed}[{number}]" for number in range(heads * self.features.count))

    def replace(self, **parameters: float) -> Self:
        """The same model with other parameters.

        Example:
            >>> MeanField(Features.paper(), 1.27, 220.0, 0.02).replace(beta=1.4).beta
            1.4
        """
        check_names("parameters", parameters, self.parameters)
        return dataclasses.replace(self, **parameters)

    def window(self, A0: Any = None, positions0: Any = None) -> Window:
        """A start from a full window.

        Arguments:
            A0: [context, feature], newest first; by default the window that the token start without x_0 leads to.
            positions0: [context, bit], newest first; the newest is at the last position by default.

        Example:
            >>> model = MeanField(Features.paper(), 1.27, 220.0, 0.02)
            >>> model.window(np.full((4, 3), 0.1)).positions[0].tolist()
            [1.0, 1.0]
        """
        if A0 is None:
            return self.settled(self.token())[0]
        A = check.real_array("A0", A0, ("token", "feature"))
        if A.shape != (shape := (self.context, self.features.count)):
            raise fail("A0", f"shape {A.shape}", f"[{shape[0]}, {shape[1]}]: context and features of the model")
        if positions0 is None:
            return Window(A, self.positions[::-1].copy())
        if np.shape(positions0) != (shape := (self.context, self.features.positional_bits)):
            raise fail("positions0", f"shape {np.shape(positions0)}", f"[{shape[0]}, {shape[1]}]: context and bits")
        return Window(A, _plus_or_minus("positions0", positions0))

    def token(self, x0: Any = None, *, keep: bool = False) -> Window:
        """A start from one token at position 0; the window grows from there.

        Arguments:
            x0: [column + bit], values in [−1, 1]: the columns of the features, then the positional bits; by default the
                first pattern of o with the bits of position 0.
            keep: whether x_0 itself stays in the window until it is full, as in the finite network. Otherwise the first
                token is the one that A_0 = m^v(x_0) makes.

        Example:
            >>> MeanField(Features.paper(), 1.27, 220.0, 0.02).token().A.round(4).tolist()
            [[0.3467, 0.3267, 0.98]]
        """
        overlaps = self.features.token_overlaps(self.first_token() if x0 is None else x0, self.epsilon)
        rotated = np.roll(self.positions[::-1], 1, axis=0)
        if check.true_or_false("keep", keep):
            return Window(np.zeros((0, self.features.count)), rotated, overlaps)
        return Window(overlaps["v"].sum(axis=0)[None], rotated)

    def first_token(self) -> np.ndarray:
        """The first pattern of o, with the bits of position 0."""
        if self.features.columns is None:
            raise fail("x0", "nothing", "a window start: features known by correlations only have no tokens")
        return np.concatenate([self.features.columns["o"][0], self.positions[0]])

    def step(self, window: Window) -> Window:
        """One step, of a window that may still be growing; plain NumPy, for few steps and for checks.

        Example:
            >>> model = MeanField(Features.paper(), 1.27, 220.0, 0.02)
            >>> model.step(model.token()).A.shape
            (2, 3)
        """
        return self._moved(window, self.look(window)[0])

    def _moved(self, window: Window, A: np.ndarray) -> Window:
        kept = numpy_for(A, window.A).concatenate([A[None], window.A])[: self.context]
        first = window.first if len(window.A) < self.context - 1 else None
        return Window(kept, numpy_for(window.positions).roll(window.positions, 1, axis=0), first)

    @as_one_program
    def look(self, window: Window) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """A' of a window, and the overlaps of its newest token by role: o [feature], others [head, feature]."""
        tokens = self.overlaps(window.A, window.positions[: len(window.A)])
        xp = numpy_for(tokens, self.gamma)
        if window.first is not None:
            tokens = {role: xp.concatenate([tokens[role], window.first[role][None]]) for role in tokens}
        scale = self.gamma / np.sqrt(self.features.count)
        logits = scale * xp.einsum("ha,dha->dh", tokens["q"][0], tokens["k"])
        largest = logits.max(axis=0)[None]
        powers = xp.exp(logits - (lax.stop_gradient(largest) if traced(largest) else largest))
        attention = xp.einsum("dh,dha->a", powers / powers.sum(axis=0)[None], tokens["v"])
        return attention, {role: tokens[role][0] for role in ROLES}

    def overlaps(self, A: np.ndarray, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Overlaps of tokens with A [token, feature] and positions [token, bit], [token, ...] as `look` has them."""
        xp = numpy_for(A, positions, self.beta, self.epsilon, self.features.signs)
        means, share = xp.tanh(self.beta * A @ self.features.signs.T), 1 - self.epsilon
        found = {"o": share * means @ self.features.weights["o"]}
        for role, positional in self._positional_parts(positions).items():
            semantic = xp.einsum("ds,sha->dha", means, self.features.weights[role])
            found[role] = share * semantic + self.epsilon * positional
        return found

    def settled(self, state: Window, most: float = np.inf) -> tuple[Window, list[Any]]:
        """The window when it is full of the map's own tokens, or after `most` steps, and a record of each step."""
        if not isinstance(state, Window):
            raise fail("state", type(state).__name__, "a Window: model.window(...) or model.token(...)")
        shape, length, features = np.shape(state.A), len(state.positions), self.features.count
        if shape[1:] != (features,) or shape[0] > self.context or length != self.context:
            got = f"a window with A {shape} and {length} positions"
            raise fail("state", got, f"a window of this model: context {self.context}, {features} features")
        early: list[Any] = []
        while len(state.A) < self.context and len(early) < most:
            A, overlaps = self.look(state)
            early.append((A, *(overlaps[role] for role in ROLES)))
            state = self._moved(state, A)
        return state, early

    def lanes(self, values: Mapping[str, Array], state: Window) -> _WindowLanes:
        """Copies of the model side by side, for windows at the positions of a given one."""
        positions = state.positions[::-1]  # slots hold the oldest token first
        parts = self._positional_parts(positions)
        # Every pattern of positions repeats after L steps; traced ones may repeat sooner.
        phases = self.context
        if not traced(parts):
            table, shifts = np.concatenate([*parts.values()], axis=1), range(1, self.context + 1)
            phases = next(shift for shift in shifts if np.array_equal(np.roll(table, shift, axis=0), table))
        reads_positions = traced(values["epsilon"]) or bool(np.asarray(values["epsilon"]).any())
        return _WindowLanes(
            **values,
            signs=jnp.asarray(self.features.signs, float),
            weights={role: jnp.asarray(self.features.weights[role], float) for role in ROLES},
            biases={role: jnp.asarray(part, float) for role, part in parts.items()},
            positions=jnp.asarray(positions, float),
            phases=phases if reads_positions else 1,
            observed=self.observed,
        )

    def coordinates(self, state: Window) -> np.ndarray:
        """The A of the tokens, oldest first."""
        return state.A[::-1].ravel()

    def start(self, lanes: Any, states: Sequence[Window], count: int) -> _WindowState:
        """Full windows side by side; all at the same positions."""
        positions = numbers(lanes.positions)[::-1]
        given = {id(state): state.positions for state in states}.values()
        if not traced(positions, list(given)) and not all(np.array_equal(one, positions) for one in given):
            raise fail("state", "windows at different positions", "equal positions in all windows of one call")
        return lanes.start(jnp.asarray(side_by_side(states, lambda state: state.A[::-1], count), float))

    def _positional_parts(self, positions: Any) -> dict[str, Any]:
        """Positional parts of the overlaps v, q, k without ε, [position, head, feature]."""
        bits, xp = max(self.features.positional_bits, 1), numpy_for(positions, self.features.signs)
        return {role: xp.einsum("di,hai->dha", positions, self.features.positional[role]) / bits for role in ROLES[1:]}


class _WindowState(eqx.Module):
    """The tokens in a full window. A slot holds a token until the window has moved on by its length.

    `attention` is the A that made each token, `overlaps` are those with v, q and k, and `slot` is the slot of the
    oldest token, which the next one replaces.
    """

    attention: Float[Array, "slot feature lane"]
    overlaps: dict[str, Float[Array, "slot head feature lane"]]
    slot: Int[Array, ""]

    def newest(self, slots: Array) -> Array:
        """The entry of the newest token, in the slot before the oldest."""
        return lax.dynamic_index_in_dim(slots, lax.rem(self.slot + len(slots) - 1, len(slots)), 0, False)


class _LinearWindow(eqx.Module):
    """A window, the slopes ∂m/∂A of its tokens by role, and the A of the next token with its Jacobian."""

    state: _WindowState
    slopes: dict[str, Float[Array, "slot other head feature lane"]]
    attention: Float[Array, "feature lane"]
    jacobian: Float[Array, "slot other feature lane"]


class _WindowLanes(Lanes[_WindowState]):
    """The mean-field map (dynamics §2) with cached tokens: a step computes the overlaps of one token, not of L.

    `weights` are p_s g_s by role, `biases` the positional parts of the overlaps v, q, k without ε, and `phases` their
    period; 1 if they are equal for all slots.
    """

    beta: Float[Array, " lane"]
    gamma: Float[Array, " lane"]
    epsilon: Float[Array, " lane"]
    signs: Float[Array, "class feature"]
    weights: dict[str, Float[Array, "class *head feature"]]
    biases: dict[str, Float[Array, "slot head feature"]]
    positions: Float[Array, "slot bit"]
    phases: int = eqx.field(static=True)
    observed: str = eqx.field(static=True)

    @property
    def context(self) -> int:
        return self.positions.shape[0]

    @eqx.filter_jit
    def start(self, window: Float[Array, "slot feature lane"]) -> _WindowState:
        """The state of full windows, oldest token first."""
        responses = jax.vmap(self._responses)(window)
        overlaps = {role: jax.vmap(partial(self._overlaps, role))(responses, self.biases[role]) for role in ROLES[1:]}
        return _WindowState(window, overlaps, jnp.zeros((), jnp.int64))

    def step(self, state: _WindowState) -> _WindowState:
        return self._append(state, self._attend(state)[0])[0]

    def linearise(self, state: _WindowState) -> _LinearWindow:
        """The step with A' and ∂A'/∂A_d, from the overlaps of all tokens."""
        responses = jax.vmap(self._responses)(state.attention)
        return self._linear(state, {role: jax.vmap(partial(self._slopes, role))(responses) for role in ROLES[1:]})

    def advance(self, linear: _LinearWindow) -> _LinearWindow:
        """The linearisation one step on: the slopes of one token are new."""
        state, responses = self._append(linear.state, linear.attention)
        new = {role: self._slopes(role, responses) for role in ROLES[1:]}
        return self._linear(state, _put(linear.slopes, new, linear.state.slot))

    def push(self, linear: _LinearWindow, columns: Array) -> Array:
        """Tangent vectors [vector, slot, feature, lane], one step on: the new token takes the slot of the oldest."""
        jacobian = linear.jacobian.reshape(-1, *linear.jacobian.shape[2:])
        new = sum_of_products(jacobian, columns.reshape(columns.shape[0], -1, columns.shape[-1]))
        return lax.dynamic_update_slice_in_dim(columns, new[:, None], linear.state.slot, 1)

    def coordinates(self, state: _WindowState) -> Float[Array, "coordinate lane"]:
        return self.in_order(state, state.attention)

    def at(self, coordinates: Any) -> _WindowState:
        return self.start(coordinates.reshape(self.context, -1, coordinates.shape[-1]))

    @as_one_program
    def states(self, state: _WindowState) -> list[Window]:
        """The windows of all lanes."""
        slot, attention, positions = numbers((state.slot, state.attention, self.positions))
        newest_first = (slot - 1 - np.arange(self.context)) % self.context
        windows, positions = numpy_for(attention).moveaxis(attention[newest_first], -1, 0), positions[newest_first]
        return [Window(window.copy(), positions) for window in windows]

    def columns(self, state: _WindowState, vectors: Float[Array, "vector coordinate"]) -> Array:
        """Vectors whose tokens are in order, oldest first, with the entries of each token put in its slot."""
        token = lax.rem(jnp.arange(self.context) + self.context - state.slot, self.context)
        by_token = vectors.reshape(len(vectors), self.context, -1)
        return jnp.repeat(by_token[:, token, :, None], len(self.beta), axis=-1)

    def in_order(self, state: _WindowState, column: Array) -> Float[Array, "coordinate lane"]:
        """Entries by slot, put in the order of the tokens, oldest first."""
        order = lax.rem(state.slot + jnp.arange(self.context), self.context)
        return column[order].reshape(-1, column.shape[-1])

    def change(self, before: _WindowState, after: _WindowState) -> Float[Array, " lane"]:
        """The new token against the one whose slot it takes, which has the same position."""
        old, new = (lax.dynamic_index_in_dim(state.attention, before.slot, 0, False) for state in (before, after))
        return jnp.sum((new - old) ** 2, 0)

    def observe(self, state: _WindowState) -> Float[Array, "observable lane"]:
        return self._newest_overlaps(state)[self.observed].reshape(-1, len(self.beta))

    def record(self, before: _WindowState, after: _WindowState) -> tuple[Array, ...]:
        """A' and the overlaps o, v, q, k of the newest token before the step."""
        return after.newest(after.attention), *self._newest_overlaps(before).values()

    def for_kernel(self, state: _WindowState) -> tuple[Lanes, Any]:
        """Windows whose oldest token is in the first slot, as in one that has not moved yet."""
        lanes = _OrderedLanes(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})
        return lanes, lanes.start(state.attention)

    def _newest_responses(self, state: Any) -> Float[Array, "class lane"]:
        return self._responses(state.newest(state.attention))

    def _newest_overlaps(self, state: Any) -> dict[str, Array]:
        """m of the newest token by role; of o (1−ε) times the overlap of the semantic bits."""
        responses = self._newest_responses(state)
        o = (1 - self.epsilon)[None] * jnp.sum(self.weights["o"][:, :, None] * responses[:, None], 0)
        return {"o": o} | {role: state.newest(state.overlaps[role]) for role in ROLES[1:]}

    @property
    def _scale(self) -> Float[Array, "1 lane"]:
        return (self.gamma / np.sqrt(self.signs.shape[1]))[None]

    def _responses(self, attention: Float[Array, "feature lane"]) -> Float[Array, "class lane"]:
        """tanh(β s·A): the mean bit of every site class."""
        return jnp.tanh(self.beta[None] * jnp.sum(self.signs[:, :, None] * attention[None], 1))

    def _overlaps(self, role: str, responses: Array, bias: Array) -> Float[Array, "head feature lane"]:
        """m of one token from its class means [class, lane] and its positional part [head, feature]."""
        semantic = jnp.sum(self.weights[role][..., None] * responses[:, None, None], 0)
        epsilon = self.epsilon[None, None]
        return (1 - epsilon) * semantic + epsilon * bias[..., None]

    def _slopes(self, role: str, responses: Float[Array, "class lane"]) -> Float[Array, "other head feature lane"]:
        """∂m/∂A of one token."""
        steepness = ((1 - self.epsilon) * self.beta)[None] * (1 - responses**2)
        pairs = self.signs[:, :, None, None] * self.weights[role][:, None]
        return jnp.sum(pairs[..., None] * steepness[:, None, None, None], 0)

    def _attend(self, state: _WindowState) -> tuple[Array, Array, Array]:
        """A', the weights of all tokens [slot, head, lane], and the part of each head in A' [head, feature, lane]."""
        m = state.overlaps
        products = jnp.sign(self._scale)[None] * jnp.sum(state.newest(m["q"])[None] * m["k"], 2)
        # The largest exponent is exactly 0, whatever γ is: γ comes after the difference, so that it scales no rounding.
        # A shift changes no weight and needs no derivative. That of a maximum may be 0/0 on a GPU, where XLA computes
        # the products twice with different rounding, and none of them equals the maximum.
        largest = lax.stop_gradient(jnp.max(products, 0))
        powers = jnp.exp(jnp.abs(self._scale)[None] * (products - largest[None]))
        weights = powers * (1 / jnp.sum(powers, 0))[None]
        of_heads = jnp.sum(weights[:, :, None] * m["v"], 0)
        return jnp.sum(of_heads, 0), weights, of_heads

    def _append(self, state: _WindowState, attention: Array) -> tuple[_WindowState, Array]:
        """The window after one more token, and the class means of this token."""
        slot, responses = state.slot, self._responses(attention)
        here = {role: lax.dynamic_index_in_dim(bias, slot, 0, False) for role, bias in self.biases.items()}
        new = {role: self._overlaps(role, responses, here[role]) for role in ROLES[1:]}
        tokens, overlaps = _put((state.attention, state.overlaps), (attention, new), slot)
        return _WindowState(tokens, overlaps, jnp.where(slot + 1 == self.context, 0, slot + 1)), responses

    def _linear(self, state: _WindowState, slopes: dict[str, Array]) -> _LinearWindow:
        """A' and ∂A'/∂A_d: through the values, and through queries and keys into the softmax."""
        attention, weights, of_heads = self._attend(state)
        m = state.overlaps
        # ∂A'/∂z_d of each head, times the scale of the logits z.
        to_logits = (self._scale[None] * weights)[:, :, None] * (m["v"] - of_heads[None])
        by_key = jnp.sum(state.newest(m["q"])[None, None] * slopes["k"], 3)  # [slot, other, head]
        by_value = jnp.sum(weights[:, None, :, None] * slopes["v"], 2)  # [slot, other, feature]
        through_keys = jnp.sum(by_key[:, :, :, None] * to_logits[:, None], 2)
        by_query = jnp.sum(m["k"][:, :, :, None] * to_logits[:, :, None], 0)  # [head, query feature, feature]
        through_query = jnp.sum(state.newest(slopes["q"])[:, :, :, None] * by_query[None], (1, 2))
        newest = lax.rem(state.slot + self.context - 1, self.context)
        is_newest = jnp.where(jnp.arange(self.context) == newest, 1.0, 0.0)[:, None, None, None]
        jacobian = by_value + through_keys + is_newest * through_query[None]
        return _LinearWindow(state, slopes, attention, jacobian)


class _OrderedState(eqx.Module):
    """A window with its oldest token in the first slot. Tokens move from slot to slot, so that every slot is known.

    `responses` are the class means of the tokens, `overlaps` those with v and k, and with q of the newest token alone.
    `slot` is that of `_WindowState`, which tells the positions.
    """

    attention: Float[Array, "slot feature lane"]
    responses: Float[Array, "slot class lane"]
    overlaps: dict[str, Float[Array, "slot head feature lane"]]
    slot: Int[Array, ""]

    def newest(self, slots: Array) -> Array:
        """The entry of the newest token."""
        return slots[-1]


class _OrderedLanes(_WindowLanes):
    """The mean-field map for a kernel: only the index of a position depends on the step, and no tanh is repeated."""

    def start(self, window: Float[Array, "slot feature lane"]) -> Any:
        """The state of full windows, oldest token first."""
        return self.whole((window, jnp.zeros((), jnp.int64)))

    def core(self, state: Any) -> Any:
        return state.attention, state.slot

    @eqx.filter_jit
    def whole(self, core: Any) -> Any:
        attention, slot = core
        responses, places = jax.vmap(self._responses)(attention), lax.rem(slot + jnp.arange(self.context), self.context)
        overlaps = {
            role: jax.vmap(partial(self._overlaps, role))(responses, self.biases[role][places]) for role in ROLES[1:]
        }
        return _OrderedState(attention, responses, overlaps | {"q": overlaps["q"][-1:]}, slot)

    def step(self, state: Any) -> Any:
        attention = self._attend(state)[0]
        responses = self._responses(attention)
        here = {role: lax.dynamic_index_in_dim(bias, state.slot, 0, False) for role, bias in self.biases.items()}
        new = {role: self._overlaps(role, responses, here[role]) for role in ROLES[1:]}
        slot = jnp.where(state.slot + 1 == self.context, 0, state.slot + 1)
        responses = _moved_on(state.responses, responses)
        return _OrderedState(_moved_on(state.attention, attention), responses, _moved_on(state.overlaps, new), slot)

    def tangent(self, state: Any, column: Any) -> Any:
        """The derivative of A' through the class means of all tokens and the softmax."""
        steepness = ((1 - self.epsilon) * self.beta)[None, None] * (1 - state.responses**2)
        moved = steepness * jnp.sum(self.signs[None, :, :, None] * column[:, None], 2)
        overlaps = {
            role: jnp.sum(self.weights[role][None, ..., None] * moved[-len(m) :, :, None, None], 1)
            for role, m in state.overlaps.items()
        }

        def attend(overlaps: Any) -> Array:
            return self._attend(dataclasses.replace(state, overlaps=overlaps))[0]

        return _moved_on(column, jax.jvp(attend, (state.overlaps,), (overlaps,))[1])

    def coordinates(self, state: Any) -> Float[Array, "coordinate lane"]:
        return state.attention.reshape(-1, state.attention.shape[-1])

    def states(self, state: Any) -> list[Window]:
        """The windows of all lanes."""
        slot, attention = numbers((state.slot, state.attention))
        return super().states(_WindowState(np.roll(attention, slot, axis=0), {}, slot))

    def columns(self, state: Any, vectors: Float[Array, "vector coordinate"]) -> Array:
        return jnp.repeat(vectors.reshape(len(vectors), self.context, -1)[..., None], len(self.beta), axis=-1)

    def change(self, before: Any, after: Any) -> Float[Array, " lane"]:
        return jnp.sum((after.attention[-1] - before.attention[0]) ** 2, 0)

    def _newest_responses(self, state: Any) -> Float[Array, "class lane"]:
        return state.responses[-1]


def _moved_on(slots: Any, entries: Any) -> Any:
    """Arrays by slot without the first entry and with a new one behind the last."""
    return jax.tree.map(lambda old, new: jnp.concatenate([old[1:], new[None]]), slots, entries)


def _put(slots: Any, entries: Any, slot: Array) -> Any:
    """Arrays by slot with new entries in one of them."""
    return jax.tree.map(lambda old, new: lax.dynamic_update_index_in_dim(old, new, slot, 0), slots, entries)


def checked_network(network: Any) -> dict[str, Any]:
    """β, γ, ε, context and positions of a mean-field or a finite network, checked against its features."""
    features, context, positions = network.features, network.context, network.positions
    if not isinstance(features, Features):
        raise fail("features", type(features).__name__, "Features")
    beta, gamma = check.one_number("beta", network.beta), check.one_number("gamma", network.gamma)
    epsilon, bits = share_of_positions(network.epsilon), features.positional_bits
    if bits == 0 and not traced(epsilon) and epsilon > 0:
        raise fail("epsilon", epsilon, "0: these features have no positional bits")
    length = context if context is None else check.positive_integer("context", context)
    if positions is None:
        if length is None and bits == 0:
            raise fail("context", "nothing", "the context length: without positional bits there is no usual one")
        length = 2**bits if length is None else length
        if length > LARGEST_CONTEXT:
            raise fail("context", length, f"at most {LARGEST_CONTEXT} tokens; set it if there are many positional bits")
        if bits and length > 2**bits:
            raise fail("context", length, f"at most {2**bits}, or positions for all: {bits} bits count no further")
        positions = 2.0 * ((np.arange(length)[:, None] >> np.arange(bits)[::-1]) & 1) - 1.0  # most significant first
    if np.ndim(positions) != 2 or np.shape(positions)[1] != bits:
        raise fail("positions", f"shape {np.shape(positions)}", f"[context, {bits}]: one row of bits per position")
    if length not in (None, len(positions)):
        raise fail("context", length, f"{len(positions)}, the length of the positions")
    checked = {"beta": beta, "gamma": gamma, "epsilon": epsilon, "context": len(positions)}
    return checked | {"positions": _plus_or_minus("positions", positions)}


def _plus_or_minus(name: str, bits: Any) -> Any:
    if traced(bits):
        return bits
    if not np.isin(bits, (-1, 1)).all():
        raise fail(name, "entries other than ±1", "±1 only")
    return np.asarray(bits, np.float64)

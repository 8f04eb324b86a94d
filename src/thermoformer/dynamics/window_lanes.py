"""The mean-field map in lanes, with its Jacobian: a step computes one token and keeps the others (dynamics §2)."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from .lanes import Lanes, sum_of_products


class WindowState(eqx.Module):
    """The tokens in a full window. A slot holds a token until the window has moved on by its length.

    Fields:
        attention: A of the step that made each token.
        query: of the newest token.
        keys, values: of every token.
        slot: the slot of the oldest token, which the next one replaces.
    """

    attention: Float[Array, "slot feature lane"]
    query: Float[Array, "head feature lane"]
    keys: Float[Array, "slot head feature lane"]
    values: Float[Array, "slot head feature lane"]
    slot: Int[Array, ""]


class PreparedWindow(eqx.Module):
    """A window with the derivatives of every token's overlaps by its own A."""

    window: WindowState
    query_slope: Float[Array, "other head feature lane"]
    key_slopes: Float[Array, "slot other head feature lane"]
    value_slopes: Float[Array, "slot other head feature lane"]


class LinearStep(eqx.Module):
    """The A of the next token, and its derivative by the A of every token in the window."""

    attention: Float[Array, "feature lane"]
    jacobian: Float[Array, "slot other feature lane"]
    slot: Int[Array, ""]


class MeanFieldLanes(Lanes[WindowState]):
    """The mean-field map (dynamics §2) with cached tokens: a step computes the overlaps of one token, not of L.

    Fields:
        beta, gamma, epsilon: one per lane.
        signs: s, the site classes.
        weights: p_s g_s of the roles q, k and v, one array each.
        overlap_weights: those of o.
        biases: positional parts of the overlaps without ε, by slot, in the order q, k, v.
        positions: the positional bits themselves, by slot.
        phases: the period of the positional parts; 1 where they are equal for all slots.
    """

    beta: Float[Array, " lane"]
    gamma: Float[Array, " lane"]
    epsilon: Float[Array, " lane"]
    signs: Float[Array, "class feature"]
    weights: tuple[Float[Array, "class head feature"], ...]
    overlap_weights: Float[Array, "class feature"]
    biases: tuple[Float[Array, "slot head feature"], ...]
    positions: Float[Array, "slot bit"]
    phases: int = eqx.field(static=True)

    @property
    def count(self) -> int:
        """How many lanes there are."""
        return self.beta.shape[0]

    @property
    def context(self) -> int:
        """L."""
        return self.biases[0].shape[0]

    @eqx.filter_jit
    def start(self, window: Float[Array, "slot feature lane"]) -> WindowState:
        """The state of full windows, oldest token first."""
        responses = jax.vmap(self._responses)(window)
        query, keys, values = (
            jax.vmap(lambda one, bias, role=role: self._overlaps(role, one, bias))(responses, self.biases[role])
            for role in range(3)
        )
        return WindowState(window, query[-1], keys, values, jnp.zeros((), jnp.int64))

    def step(self, state: WindowState) -> WindowState:
        """One step of every lane."""
        attention, _, _ = self._attend(state)
        return self._append(state, attention)[0]

    def prepare(self, state: WindowState) -> PreparedWindow:
        """The window with the derivatives of its tokens."""
        responses = jax.vmap(self._responses)(state.attention)
        query, keys, values = (jax.vmap(lambda one, role=role: self._slopes(role, one))(responses) for role in range(3))
        newest = lax.rem(state.slot + self.context - 1, self.context)
        return PreparedWindow(state, lax.dynamic_index_in_dim(query, newest, 0, False), keys, values)

    def linearise(self, state: PreparedWindow) -> LinearStep:
        """A' and ∂A'/∂A_d: through the values, and through queries and keys into the softmax."""
        window = state.window
        attention, weights, of_heads = self._attend(window)
        # ∂A'/∂z_d of each head, times the scale of the logits z.
        to_logits = (self._scale[None] * weights)[:, :, None] * (window.values - of_heads[None])
        by_key = jnp.sum(window.query[None, None] * state.key_slopes, 3)  # [slot, other, head]
        by_value = jnp.sum(weights[:, None, :, None] * state.value_slopes, 2)  # [slot, other, feature]
        through_keys = jnp.sum(by_key[:, :, :, None] * to_logits[:, None], 2)
        by_query = jnp.sum(window.keys[:, :, :, None] * to_logits[:, :, None], 0)  # [head, query feature, feature]
        through_query = jnp.sum(state.query_slope[:, :, :, None] * by_query[None], (1, 2))
        newest = lax.rem(window.slot + self.context - 1, self.context)
        is_newest = jnp.where(jnp.arange(self.context) == newest, 1.0, 0.0)[:, None, None, None]
        jacobian = by_value + through_keys + is_newest * through_query[None]
        return LinearStep(attention, jacobian, window.slot)

    def push(self, linear: LinearStep, columns: Array) -> Array:
        """Tangent vectors [vector, slot, feature, lane], one step on: the new token takes the slot of the oldest."""
        jacobian = linear.jacobian.reshape(-1, *linear.jacobian.shape[2:])
        new = sum_of_products(jacobian, columns.reshape(columns.shape[0], -1, self.count))
        return lax.dynamic_update_slice_in_dim(columns, new[:, None], linear.slot, 1)

    def advance(self, state: PreparedWindow, linear: LinearStep) -> PreparedWindow:
        """The window, one step on."""
        slot = state.window.slot
        window, responses = self._append(state.window, linear.attention)
        query, key, value = (self._slopes(role, responses) for role in range(3))
        keys = lax.dynamic_update_index_in_dim(state.key_slopes, key, slot, 0)
        values = lax.dynamic_update_index_in_dim(state.value_slopes, value, slot, 0)
        return PreparedWindow(window, query, keys, values)

    def bare(self, prepared: PreparedWindow) -> WindowState:
        """The window alone."""
        return prepared.window

    def columns(self, state: WindowState, vectors: Float[Array, "vector coordinate"]) -> Array:
        """Vectors whose tokens are in order, oldest first, with the entries of each token put in its slot."""
        token = lax.rem(jnp.arange(self.context) + self.context - state.slot, self.context)
        by_token = vectors.reshape(len(vectors), self.context, -1)
        return jnp.repeat(by_token[:, token, :, None], self.count, axis=-1)

    def coordinates(self, state: WindowState) -> Float[Array, "coordinate lane"]:
        """A of all tokens, oldest first."""
        return self.in_order(state, state.attention)

    def at(self, coordinates: Float[Array, "coordinate lane"]) -> WindowState:
        """The window with these A, oldest first."""
        return self.start(coordinates.reshape(self.context, -1, self.count))

    def in_order(self, state: WindowState, column: Array) -> Float[Array, "coordinate lane"]:
        """Entries by slot, put in the order of the tokens, oldest first."""
        order = lax.rem(state.slot + jnp.arange(self.context), self.context)
        return column[order].reshape(-1, self.count)

    def shared(self, place: Callable[[Array], Array]) -> MeanFieldLanes:
        """The same lanes with their parameters placed elsewhere."""
        parameters = (place(self.beta), place(self.gamma), place(self.epsilon))
        return eqx.tree_at(lambda lanes: (lanes.beta, lanes.gamma, lanes.epsilon), self, parameters)

    def returns_count(self, steps: Int[Array, ""]) -> Array:
        """Positions are part of the state: only whole periods of theirs count."""
        return lax.rem(steps, jnp.asarray(self.phases, steps.dtype)) == 0

    def change(self, before: WindowState, after: WindowState) -> Float[Array, " lane"]:
        """The new token against the one whose slot it takes: a full turn of the positions lies between."""
        old, new = (lax.dynamic_index_in_dim(state.attention, before.slot, 0, False) for state in (before, after))
        return jnp.sum((new - old) ** 2, 0)

    def observe(self, state: WindowState) -> Float[Array, "feature lane"]:
        """m_o of the newest token: (1−ε) times the overlap of its semantic bits."""
        responses = self._responses(newest_entry(state.attention, state.slot))
        return (1 - self.epsilon)[None] * jnp.sum(self.overlap_weights[:, :, None] * responses[:, None], 0)

    def record(self, state: WindowState) -> tuple[Array, ...]:
        """A' and the overlaps o, v, q, k of the newest token."""
        attention, _, _ = self._attend(state)
        key, value = newest_entry(state.keys, state.slot), newest_entry(state.values, state.slot)
        return attention, self.observe(state), value, state.query, key

    @property
    def _scale(self) -> Float[Array, "1 lane"]:
        return (self.gamma / np.sqrt(self.signs.shape[1]))[None]

    def _responses(self, attention: Float[Array, "feature lane"]) -> Float[Array, "class lane"]:
        """tanh(β s·A): the mean bit of every site class."""
        return jnp.tanh(self.beta[None] * jnp.sum(self.signs[:, :, None] * attention[None], 1))

    def _overlaps(
        self, role: int, responses: Float[Array, "class lane"], bias: Float[Array, "head feature"]
    ) -> Float[Array, "head feature lane"]:
        """m of one token from its class means and its positional part."""
        semantic = jnp.sum(self.weights[role][..., None] * responses[:, None, None], 0)
        epsilon = self.epsilon[None, None]
        return (1 - epsilon) * semantic + epsilon * bias[..., None]

    def _slopes(self, role: int, responses: Float[Array, "class lane"]) -> Float[Array, "other head feature lane"]:
        """∂m/∂A of one token."""
        steepness = ((1 - self.epsilon) * self.beta)[None] * (1 - responses**2)
        pairs = self.signs[:, :, None, None] * self.weights[role][:, None]
        return jnp.sum(pairs[..., None] * steepness[:, None, None, None], 0)

    def _attend(self, state: WindowState) -> tuple[Array, Array, Array]:
        """A', the weights of all tokens [slot, head, lane], and the part of each head in A' [head, feature, lane]."""
        products = jnp.sign(self._scale)[None] * jnp.sum(state.query[None] * state.keys, 2)
        # The largest exponent is exactly 0, whatever γ is: γ comes after the difference, so that it scales no rounding.
        powers = jnp.exp(jnp.abs(self._scale)[None] * (products - jnp.max(products, 0)[None]))
        weights = powers * (1 / jnp.sum(powers, 0))[None]
        of_heads = jnp.sum(weights[:, :, None] * state.values, 0)
        return jnp.sum(of_heads, 0), weights, of_heads

    def _append(self, state: WindowState, attention: Array) -> tuple[WindowState, Array]:
        """The window after one more token, and the class means of this token."""
        slot = state.slot
        responses = self._responses(attention)
        here = [lax.dynamic_index_in_dim(bias, slot, 0, False) for bias in self.biases]
        query, key, value = (self._overlaps(role, responses, here[role]) for role in range(3))
        window = WindowState(
            lax.dynamic_update_index_in_dim(state.attention, attention, slot, 0),
            query,
            lax.dynamic_update_index_in_dim(state.keys, key, slot, 0),
            lax.dynamic_update_index_in_dim(state.values, value, slot, 0),
            jnp.where(slot + 1 == self.context, 0, slot + 1),
        )
        return window, responses


def newest_entry(slots: Array, slot: Int[Array, ""]) -> Array:
    """The entry of the newest token, in the slot before the oldest."""
    context = slots.shape[0]
    return lax.dynamic_index_in_dim(slots, lax.rem(slot + context - 1, context), 0, False)

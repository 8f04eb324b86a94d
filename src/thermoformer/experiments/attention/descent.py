"""The teacher's head, and gradient descent on all weights of a network that has one like it."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...learning import Architecture, AttentionModel, prior_weights
from ...learning.network import path_vectors


def tied_logits(theta: Any, x: Any) -> list[Any]:
    """One head whose query is its key: 2 (q·x_t)(q·x_s)/N0."""
    seen = x @ theta["q"]
    return [2 / x.shape[2] * seen[:, None, :, None] * seen[:, None, None, :]]


def overlap(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """|cos| between directions [..., feature] and another."""
    return np.abs(one @ other) / np.linalg.norm(one, axis=-1) / np.linalg.norm(other)


def descended(
    model: AttentionModel,
    arch: Architecture,
    x: np.ndarray,
    y: np.ndarray,
    new: np.ndarray,
    random: np.random.Generator,
    *,
    temperature: float,
    networks: int,
    steps: int,
    rate: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient descent (Adam) on q and all weights of networks drawn from the prior, with its weight decay.

    Returns q of the network with the lowest loss, and its outputs for new tokens.
    """
    key = int(random.integers(2**31))
    weights = prior_weights(arch, x.shape[2], key=key, draws=networks)
    start = {"q": jnp.asarray(random.normal(size=(networks, x.shape[2])))}, weights
    ends, losses = _descend(model, arch, start, x, y, temperature, rate, steps)
    best = int(np.nanargmin(losses))
    theta, weights = jax.tree.map(lambda leaf: leaf[best], ends)
    return np.asarray(theta["q"]), np.asarray(_output(model, arch, theta, weights, new))


@partial(jax.jit, static_argnames="arch")
def _output(model: AttentionModel, arch: Architecture, theta: Any, weights: Any, x: Any) -> jax.Array:
    """f [example] of one network with one head: e·V⁰ξ/√N0."""
    vector = path_vectors(arch, weights.readout, weights.values)[0, 0]
    return model.features(theta, x).values[:, 0] @ (vector @ weights.embedding) / np.sqrt(x.shape[2])


@partial(jax.jit, static_argnames=("arch", "steps"))
def _descend(
    model: AttentionModel, arch: Architecture, starts: Any, x: Any, y: Any, temperature: Any, rate: Any, steps: int
) -> Any:
    """Networks after training, one after another, and −ln of their posterior density, less a constant."""
    import optax

    optimiser = optax.adam(optax.cosine_decay_schedule(1.0, steps))

    def loss(network: Any) -> jax.Array:
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(network))
        return squares / 2 + jnp.sum((y - _output(model, arch, *network, x)) ** 2) / (2 * temperature)

    def trained(network: Any) -> Any:
        def step(state: Any, _: None) -> Any:
            network, memory = state
            moves, memory = optimiser.update(jax.grad(loss)(network), memory)
            return (jax.tree.map(lambda leaf, move: leaf + rate * move, network, moves), memory), None

        network = jax.lax.scan(step, (network, optimiser.init(network)), length=steps)[0][0]
        return network, loss(network)

    return jax.lax.map(trained, starts)

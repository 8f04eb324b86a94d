"""Blocked Gibbs sampling of all weights (learning §10).

Every layer is a block of weights W [head, out, in]: V⁰ is one of one head, the readout a is one of one head and D rows.
Given the others the output is affine in one block,

    f_d(μ) = f⁰_d(μ) + Σ_{h,ρ} e_{dρ} · W^h z_{hρ}(μ),

with e the vectors of the paths ρ above the layer and z the lower part of the network; f⁰ is what the paths that pass
the layer by carry. With prior W ~ N(0, σ²) and J the linear map, an exact draw needs one solve in the space of labels:

    W = W⁰ + σ² Jᵀ (σ² JJᵀ + τI)⁻¹ (y − f⁰ − JW⁰ − ε),      W⁰ ~ prior, ε ~ N(0, τI).

A sweep costs Π P products with each N×N matrix of weights, and nothing larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Float

from .._precision import MATMUL_PRECISION
from .gibbs_moves import UNIFORMS_PER_TURN, flipped, rescaled, rescaling_moves, turned
from .kernels import Problem
from .layout import Layout
from .network import Weights
from .path_network import PathData, readout_vectors, split_states, step_down, step_up, vector_shapes, vectors_below


def split_normals(key: Array, shapes: Sequence[Sequence[int]]) -> list[Array]:
    """Standard-normal arrays of the given shapes from one call, which takes far less compilation than many."""
    sizes = [math.prod(shape) for shape in shapes]
    parts = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def draw_block(
    prior: Float[Array, "head out in"],
    noise: Float[Array, "output example"],
    vectors: Float[Array, "output path out"],
    states: Float[Array, "example head path in"],
    target: Float[Array, "output example"],
    deviation: Array,
    temperature: Array,
) -> Float[Array, "head out in"]:
    """An exact draw of one block of weights given all others.

    Arguments:
        prior, noise: standard-normal numbers.
        vectors: e of the paths above.
        states: z of the paths below, for each head.
        target: y − f⁰.
        deviation: σ of the block.
    """
    outputs, paths, out = vectors.shape
    examples, heads, _, width = states.shape
    prior, noise = deviation * prior, jnp.sqrt(temperature) * noise
    flat_vectors = vectors.reshape(outputs * paths, out)
    seen = jnp.stack([jnp.matmul(flat_vectors, one, precision=MATMUL_PRECISION) for one in prior])
    seen = seen.reshape(heads, outputs, paths, width).transpose(1, 0, 2, 3).reshape(outputs, -1)
    flat_states = states.reshape(examples, -1)
    gap = target - noise - jnp.matmul(seen, flat_states.T, precision=MATMUL_PRECISION)
    covariance = deviation**2 * block_kernel(vectors, states) + temperature * jnp.eye(target.size)
    pull = jsl.cho_solve((jnp.linalg.cholesky(covariance), True), gap.reshape(-1)).reshape(target.shape)
    back = jnp.matmul(pull, flat_states, precision=MATMUL_PRECISION)
    back = back.reshape(outputs, heads, paths, width).transpose(1, 0, 2, 3).reshape(heads, outputs * paths, width)
    change = jnp.stack([jnp.matmul(flat_vectors.T, one, precision=MATMUL_PRECISION) for one in back])
    return prior + deviation**2 * change


def block_kernel(vectors: Array, states: Array) -> Float[Array, "row row"]:
    """JJᵀ = Σ_h Σ_ρρ' (e_dρ · e_d'ρ') (z_hρ(μ) · z_hρ'(ν)), rows (output, example) with the output slowest."""
    outputs, paths, out = vectors.shape
    examples = states.shape[0]
    flat = vectors.reshape(outputs * paths, out)
    gram = jnp.matmul(flat, flat.T, precision=MATMUL_PRECISION).reshape(outputs, paths, outputs, paths)
    mixed = jnp.einsum("dres,phri->dpehsi", gram, states, precision=MATMUL_PRECISION)
    mixed = mixed.reshape(outputs * examples * outputs, -1)
    product = jnp.matmul(mixed, states.reshape(examples, -1).T, precision=MATMUL_PRECISION)
    return product.reshape(outputs * examples, outputs * examples)


class GibbsSweep(eqx.Module):
    """One sweep, (key, weights) -> weights: moves from the readout down, then a draw of every block from V⁰ up.

    Fields:
        data: the training data.
        problem: the same data made ready for K(U) + τI.
    """

    data: PathData
    problem: Problem

    def __call__(self, key: Array, weights: Weights) -> Weights:
        """The weights after one sweep; they have the posterior's law where those before it have."""
        arch = self.data.structure
        keys = jax.random.split(key, 3)
        # Blocks of V⁰, V^1..V^L, a.
        blocks = [weights.embedding[None], *weights.values, weights.readout.reshape(1, arch.outputs, -1)]
        # With skips a layer has no neighbour of its own: what it gives goes to all above it.
        if not arch.skip:
            blocks = self.rescale_all(keys[0], blocks)
        # From here on V⁰ is integrated out. It is the first block that is drawn afterwards.
        if Layout.at_finite_width(arch.heads, arch.outputs, arch.skip, arch.widths).narrow:
            uniforms = jax.random.uniform(jax.random.fold_in(key, 3), (sum(arch.heads),))
            blocks = flipped(uniforms, self.data, self.problem, blocks)
        blocks, above = self.turn_all(keys[1], blocks)
        blocks = self.draw_all(keys[2], blocks, above)
        return Weights(blocks[0][0], tuple(blocks[1:-1]), blocks[-1].reshape(weights.readout.shape))

    def rescale_all(self, key: Array, blocks: list[Array]) -> list[Array]:
        """`rescaled` between all neighbours, from the readout down."""
        arch, sigma = self.data.structure, self.data.deviations
        blocks, keys = list(blocks), jax.random.split(key)
        shapes = [rescaling_moves(shape) for shape in vector_shapes(arch)]
        normals = split_normals(keys[0], shapes)
        moves = np.cumsum([count for count, _ in shapes])
        uniforms = jnp.split(jax.random.uniform(keys[1], (int(moves[-1]), 2)), moves[:-1])
        vectors = readout_vectors(arch, blocks[-1])
        for layer in reversed(range(arch.layers + 1)):
            deviations = sigma[layer], sigma[layer + 1]
            blocks[layer], blocks[layer + 1], vectors = rescaled(
                normals[layer], uniforms[layer], vectors, blocks[layer], blocks[layer + 1], deviations
            )
            if layer > 0:
                vectors = step_down(arch, vectors, blocks[layer], layer - 1)
        return blocks

    def turn_all(self, key: Array, blocks: list[Array]) -> tuple[list[Array], list[Array]]:
        """`turned` for the readout and for every layer down to the first; and the vectors above every block."""
        arch = self.data.structure
        blocks, keys = list(blocks), jax.random.split(key)
        shapes = [*vector_shapes(arch)[1:], (arch.outputs, 1, arch.outputs)]
        rows = [min(outputs * paths, out) for outputs, paths, out in shapes]
        normals = split_normals(
            keys[0], [(block.shape[0], count, block.shape[2]) for block, count in zip(blocks[1:], rows, strict=True)]
        )
        uniforms = jax.random.uniform(keys[1], (arch.layers + 1, UNIFORMS_PER_TURN))
        above = [jnp.eye(arch.outputs)[:, None, :]]
        for layer in reversed(range(arch.layers + 1)):
            numbers = normals[layer], uniforms[layer]
            blocks[layer + 1] = turned(*numbers, self.data, self.problem, above[0], blocks, layer)
            above.insert(0, vectors_below(arch, above[0], blocks[layer + 1], layer))
        return blocks, above

    def draw_all(self, key: Array, blocks: list[Array], above: list[Array]) -> list[Array]:
        """`draw_block` for V⁰ and for every layer up to the readout, each between the paths above and below it."""
        data, arch, sigma = self.data, self.data.structure, self.data.deviations
        count = len(blocks)
        numbers = split_normals(key, [block.shape for block in blocks] + [data.labels.shape] * count)

        def drawn(index: int, states: Array, target: Array) -> Array:
            own = numbers[index], numbers[count + index]
            return draw_block(*own, above[index], states, target, sigma[index], data.temperature)

        found = [drawn(0, data.features[:, None], data.labels)]
        states = jnp.einsum("pai,oi->pao", data.features, found[0][0], precision=MATMUL_PRECISION)
        for layer in range(arch.layers):
            kept, entering = split_states(arch, states, layer)
            target = data.labels
            if kept is not None:
                target = target - jnp.einsum("dao,pao->dp", above[layer + 1], kept, precision=MATMUL_PRECISION)
            found.append(drawn(layer + 1, entering, target))
            states = step_up(kept, entering, found[-1])
        found.append(drawn(count - 1, states[:, None] / math.sqrt(arch.widths[-1]), data.labels))
        return found

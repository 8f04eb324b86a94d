"""Blocked Gibbs sampling of all weights (learning §10), and the network as the samplers of weights see it.

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

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Float

from .._precision import MATMUL_PRECISION
from .kernels import feature_basis
from .network import Architecture, Weights
from .paths import PathFeatures

# Rescalings along random directions per path vector and interface of two layers; a move costs a few small products.
MOVES_PER_VECTOR = 3


class PathData(eqx.Module):
    """Training data as the samplers of weights use it.

    Fields:
        features: ξ/√N0 [example', path, feature'], the feature axis cut to the rank of ξ, and the examples rotated to
            as few as there are features of all paths, where those are fewer.
        labels: [output, example'].
        temperature: τ.
        deviations: σ0, σ1..σL, σa.
        structure: the architecture with its variances set to 1, so that other variances do not compile again.
    """

    features: Float[Array, "example path feature"]
    labels: Float[Array, "output example"]
    temperature: Float[Array, ""]
    deviations: Float[Array, " layer"]
    structure: Architecture = eqx.field(static=True)

    def outputs(self, weights: Weights) -> Float[Array, "output example"]:
        """f = Σ_π e_πᵀV⁰ ξ_π/√N0 of all (rotated) examples."""
        vectors = scaled_path_vectors(self.structure, weights)
        flat = vectors.reshape(-1, vectors.shape[-1])
        coefficients = jnp.matmul(flat, weights.embedding, precision=MATMUL_PRECISION)
        features = self.features.reshape(len(self.features), -1)
        return jnp.matmul(coefficients.reshape(len(vectors), -1), features.T, precision=MATMUL_PRECISION)


def path_data(
    arch: Architecture, features: PathFeatures, labels: np.ndarray, temperature: float, *, reduce: bool = True
) -> tuple[PathData, Array | None]:
    """The training data reduced without loss, and the basis [feature, feature'] of the features that were kept.

    Without `reduce` all features are kept, and the basis is None, as where all are needed. Rotating the examples adds a constant to the log density, and nothing else.
    """
    basis = feature_basis(features.values) if reduce else None
    values = features.values / math.sqrt(features.token_width)
    if basis is not None:
        values = jnp.matmul(values, basis, precision=MATMUL_PRECISION)
    y = jnp.asarray(labels).reshape(features.examples, arch.outputs)
    examples, paths, width = values.shape
    if paths * width < examples:
        rotation, triangle = jnp.linalg.qr(values.reshape(examples, -1))
        values, y = triangle.reshape(-1, paths, width), rotation.T @ y
    deviations = jnp.sqrt(jnp.asarray(arch.variances))
    return PathData(values, y.T, jnp.asarray(temperature), deviations, arch.replace(variances=1.0)), basis


def scaled_weights(standard: Weights, deviations: Array) -> Weights:
    """Weights of standard-normal coordinates: every layer times its σ."""
    values = tuple(deviations[layer + 1] * value for layer, value in enumerate(standard.values))
    return Weights(deviations[0] * standard.embedding, values, deviations[-1] * standard.readout)


def step_down(arch: Architecture, vectors: Float[Array, "output path out"], value: Array, layer: int) -> Array:
    """The vectors [output, path, N_l] of paths from layer l up, from those [output, path, N_{l+1}] above it.

    All scales are in: e_π = ∏ V^{l,h}ᵀ/√(H_l N_l) a/√N_a, so that f = Σ_π e_π · V⁰ ξ_π/√N0.
    """
    outputs, paths, _ = vectors.shape
    flat = vectors.reshape(outputs * paths, -1) / math.sqrt(arch.heads[layer] * arch.widths[layer])
    below = [jnp.matmul(flat, one, precision=MATMUL_PRECISION).reshape(outputs, paths, -1) for one in value]
    return jnp.concatenate([vectors, *below] if arch.skip else below, axis=1)


def step_up(arch: Architecture, states: Float[Array, "example path in"], value: Array, layer: int) -> Array:
    """The states [example, path, N_{l+1}] above layer l of the paths left to go, from those [example, path, N_l] below."""
    kept, split = split_states(arch, states, layer)
    examples, heads, paths, width = split.shape
    up = sum(
        jnp.matmul(split[:, head].reshape(examples * paths, width), value[head].T, precision=MATMUL_PRECISION)
        for head in range(heads)
    )
    up = up.reshape(examples, paths, -1)
    return up if kept is None else kept + up


def split_states(arch: Architecture, states: Array, layer: int) -> tuple[Array | None, Array]:
    """Below layer l: states [example, path, N_l] that pass it by, if any, and [example, head, path, N_l] that enter."""
    examples, _, width = states.shape
    split = states.reshape(examples, arch.choices[layer], -1, width)
    scale = 1 / math.sqrt(arch.heads[layer] * arch.widths[layer])
    return (split[:, 0], scale * split[:, 1:]) if arch.skip else (None, scale * split)


def readout_vectors(arch: Architecture, readout: Array) -> Float[Array, "output path out"]:
    """a/√N_a as the vectors of the one path above the top layer."""
    return readout.reshape(arch.outputs, 1, -1) / math.sqrt(arch.widths[-1])


def scaled_path_vectors(arch: Architecture, weights: Weights) -> Float[Array, "output path in"]:
    """e_π of all paths with all scales in (see `step_down`)."""
    vectors = readout_vectors(arch, weights.readout)
    for layer in reversed(range(arch.layers)):
        vectors = step_down(arch, vectors, weights.values[layer], layer)
    return vectors


def draw_block(
    key: Array,
    vectors: Float[Array, "output path out"],
    states: Float[Array, "example head path in"],
    target: Float[Array, "output example"],
    deviation: Array,
    temperature: Array,
) -> Float[Array, "head out in"]:
    """An exact draw of one block of weights given all others.

    Arguments:
        vectors: e of the paths above.
        states: z of the paths below, for each head.
        target: y − f⁰.
        deviation: σ of the block.
    """
    outputs, paths, out = vectors.shape
    examples, heads, _, width = states.shape
    key_prior, key_noise = jax.random.split(key)
    prior = deviation * jax.random.normal(key_prior, (heads, out, width))
    noise = jnp.sqrt(temperature) * jax.random.normal(key_noise, target.shape)
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
    """One sweep, (key, weights) -> weights: rescalings from the readout down, then a draw of every block from V⁰ up.

    Fields:
        data: the training data.
        rescale: whether to rescale neighbouring layers (`rescaled`).
    """

    data: PathData
    rescale: bool = eqx.field(static=True, default=True)

    def __call__(self, key: Array, weights: Weights) -> Weights:
        """The weights after one sweep; they have the posterior's law where those before it have."""
        data, arch = self.data, self.data.structure
        sigma = data.deviations
        key_rescale, key_draw = jax.random.split(key)
        rescale_keys = jax.random.split(key_rescale, arch.layers + 1)
        draw_keys = jax.random.split(key_draw, arch.layers + 2)
        # Blocks of V⁰, V^1..V^L, a; block l is drawn between the paths `above[l]` and the states below it.
        blocks = [weights.embedding[None], *weights.values, weights.readout.reshape(1, arch.outputs, -1)]
        if self.rescale and arch.skip:
            blocks = rescaled_throughout(rescale_keys[0], blocks, sigma)
        above = [jnp.eye(arch.outputs)[:, None, :]]
        vectors = readout_vectors(arch, blocks[-1])
        for layer in reversed(range(arch.layers + 1)):
            if self.rescale and not arch.skip:
                pair = blocks[layer], blocks[layer + 1]
                *pair, vectors = rescaled(rescale_keys[layer], vectors, *pair, sigma[layer], sigma[layer + 1])
                blocks[layer], blocks[layer + 1] = pair
            above.insert(0, vectors)
            if layer > 0:
                vectors = step_down(arch, vectors, blocks[layer], layer - 1)

        states, labels = data.features, data.labels
        blocks[0] = draw_block(draw_keys[0], above[0], states[:, None], labels, sigma[0], data.temperature)
        states = jnp.einsum("pai,oi->pao", states, blocks[0][0], precision=MATMUL_PRECISION)
        for layer in range(arch.layers):
            kept, entering = split_states(arch, states, layer)
            target = labels
            if kept is not None:
                target = labels - jnp.einsum("dao,pao->dp", above[layer + 1], kept, precision=MATMUL_PRECISION)
            drawn = draw_block(
                draw_keys[layer + 1], above[layer + 1], entering, target, sigma[layer + 1], data.temperature
            )
            blocks[layer + 1] = drawn
            states = step_up(arch, states, drawn, layer)
        top = states[:, None] / math.sqrt(arch.widths[-1])
        blocks[-1] = draw_block(draw_keys[-1], above[-1], top, labels, sigma[-1], data.temperature)
        return Weights(blocks[0][0], tuple(blocks[1:-1]), blocks[-1].reshape(weights.readout.shape))


def rescaled(
    key: Array, vectors: Array, below: Array, above: Array, deviation_below: Array, deviation_above: Array
) -> tuple[Array, Array, Array]:
    """Move weights between two neighbouring layers without changing the output: W → GW below, W → WG⁻¹ above.

    Along a direction ê in the span of the path vectors e between the layers, G = I + (c−1)êêᵀ. A fixed combination
    ê ∝ Σ k e of them keeps its direction under G (e → G⁻¹e), so the moves along it are a group, and drawing ln c from

        exp(t (n_below − n_above + 1 − N) − (c² |êᵀW_below|²/σ² + |W_above ê|²/(c² σ²))/2),      t = ln c,

    leaves the posterior as it is. n are the columns below and the rows above. The power is the Jacobian: the rows of
    W_above other than the one that makes ê have only their component along ê divided by c, that one (N numbers) all.
    Only these directions matter to the output; along them the block draws move U by small steps.
    All moves happen in the small space of the path vectors; the weights are touched once.
    """
    basis, triangle = jnp.linalg.qr(vectors.reshape(-1, vectors.shape[-1]).T)
    size, count = triangle.shape
    small_below = jnp.stack([jnp.matmul(basis.T, one, precision=MATMUL_PRECISION) for one in below])
    small_above = jnp.stack([jnp.matmul(one, basis, precision=MATMUL_PRECISION) for one in above])
    gram_below = jnp.einsum("hai,hbi->ab", small_below, small_below, precision=MATMUL_PRECISION) / deviation_below**2
    gram_above = jnp.einsum("hoa,hob->ab", small_above, small_above, precision=MATMUL_PRECISION) / deviation_above**2
    power = below.shape[0] * below.shape[2] - above.shape[0] * above.shape[1] + 1 - above.shape[2]

    def move(state: tuple, key: Array) -> tuple[tuple, None]:
        grow, shrink, gram_below, gram_above, triangle = state
        key_direction, key_scale = jax.random.split(key)
        direction = triangle @ jax.random.normal(key_direction, (count,))
        direction = direction / jnp.linalg.norm(direction)
        squares = direction @ gram_below @ direction, direction @ gram_above @ direction
        scale = jnp.exp(log_scale_draw(key_scale, power, *squares))
        along = jnp.outer(direction, direction)
        larger, smaller = jnp.eye(size) + (scale - 1) * along, jnp.eye(size) + (1 / scale - 1) * along
        return (
            larger @ grow,
            shrink @ smaller,
            larger @ gram_below @ larger,
            smaller @ gram_above @ smaller,
            smaller @ triangle,
        ), None

    # One direction needs one draw, which is exact; several mix by repetition.
    keys = jax.random.split(key, 1 if size == 1 else MOVES_PER_VECTOR * size)
    start = (jnp.eye(size), jnp.eye(size), gram_below, gram_above, triangle)
    (grow, shrink, _, _, triangle), _ = jax.lax.scan(move, start, keys)
    grow, shrink = grow - jnp.eye(size), shrink - jnp.eye(size)
    below = below + jnp.stack([basis @ (grow @ one) for one in small_below])
    above = above + jnp.stack([(one @ shrink) @ basis.T for one in small_above])
    return below, above, (basis @ triangle).T.reshape(vectors.shape)


def rescaled_throughout(key: Array, blocks: list[Array], deviations: Array) -> list[Array]:
    """The move of `rescaled` where skips tie all layers together: V⁰ → GV⁰, V → GVG⁻¹, a → aG⁻¹.

    ê is a random combination of the rows of a. V → GVG⁻¹ has determinant 1, so the power is N0 − D + 1 − N.
    """
    embedding, *values, readout = blocks
    key_direction, key_scale = jax.random.split(key)
    direction = jax.random.normal(key_direction, (readout.shape[1],)) @ readout[0]
    direction = direction / jnp.linalg.norm(direction)
    below = jnp.sum((direction @ embedding[0]) ** 2) / deviations[0] ** 2
    above = jnp.sum((readout[0] @ direction) ** 2) / deviations[-1] ** 2
    for value, deviation in zip(values, deviations[1:-1], strict=True):
        rows = jnp.einsum("o,hoi->hi", direction, value, precision=MATMUL_PRECISION)
        columns = jnp.einsum("hoi,i->ho", value, direction, precision=MATMUL_PRECISION)
        both = jnp.sum((rows @ direction) ** 2)
        below = below + (jnp.sum(rows**2) - both) / deviation**2
        above = above + (jnp.sum(columns**2) - both) / deviation**2
    power = embedding.shape[2] - readout.shape[1] + 1 - readout.shape[2]
    scale = jnp.exp(log_scale_draw(key_scale, power, below, above))
    grow = lambda block: (
        block
        + (scale - 1)
        * direction[None, :, None]
        * (jnp.einsum("o,hoi->hi", direction, block, precision=MATMUL_PRECISION)[:, None, :])
    )
    shrink = lambda block: (
        block
        + (1 / scale - 1)
        * direction[None, None, :]
        * (jnp.einsum("hoi,i->ho", block, direction, precision=MATMUL_PRECISION)[:, :, None])
    )
    return [grow(embedding), *(shrink(grow(value)) for value in values), shrink(readout)]


def log_scale_draw(key: Array, power: float, below: Array, above: Array) -> Array:
    """t from exp(power·t − (below·e^{2t} + above·e^{−2t})/2), by one Metropolis step from t = 0.

    The proposal does not depend on where the step starts: a logistic law at the mode, with tails heavier than the
    target's, so that hardly any step is refused and none can be refused for long.
    """
    key_proposal, key_accept = jax.random.split(key)

    def target(t: Array) -> Array:
        return power * t - (below * jnp.exp(2 * t) + above * jnp.exp(-2 * t)) / 2

    root = jnp.sqrt(power**2 + 4 * below * above)
    # e^{2t} at the mode, from whichever form of the quadratic's root does not cancel.
    square = (power + root) / (2 * below) if power > 0 else 2 * above / (root - power)
    mode = jnp.log(square) / 2
    # A logistic law of scale 0.6 has about the spread of a standard normal one.
    width = 0.6 / jnp.sqrt(2 * root)

    def proposal(t: Array) -> Array:
        return -(t - mode) / width - 2 * jax.nn.softplus(-(t - mode) / width)

    proposed = mode + width * jax.random.logistic(key_proposal)
    start = jnp.zeros_like(mode)
    gain = target(proposed) - target(start) + proposal(start) - proposal(proposed)
    return jnp.where(jnp.log(jax.random.uniform(key_accept)) < gain, proposed, start)

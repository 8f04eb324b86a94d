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
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Float

from .._precision import MATMUL_PRECISION
from .architecture import Architecture
from .kernels import Problem, reachable_energy
from .network import PathData, Weights, order_factor, path_vectors, readout_vectors, step_down

# Rescalings along random directions per path vector and interface of two layers; a move costs a few small products.
MOVES_PER_VECTOR = 3
# The first interval of angles that a turn tries, in radians. A whole circle would be shrunk to less in most cases.
FIRST_INTERVAL = 1.0
# Random numbers that one turn may use. An interval shrinks to 2/3 and less on average: after 64 tries it is 1e-11.
UNIFORMS_PER_TURN = 64


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

    `prior` and `noise` are standard-normal numbers, `vectors` are e of the paths above, `states` are z of the paths
    below for each head, and `target` is y − f⁰.
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
    """One sweep, (key, weights) -> weights: moves from the readout down, then a draw of every block from V⁰ up."""

    data: PathData
    problem: Problem  # the same data prepared for K(U) + τI

    def __call__(self, key: Array, weights: Weights) -> Weights:
        """The weights after one sweep, which leaves the posterior invariant."""
        arch = self.data.structure
        keys = jax.random.split(key, 3)
        # Blocks of V⁰, V^1..V^L, a.
        blocks = [weights.embedding[None], *weights.values, weights.readout.reshape(1, arch.outputs, -1)]
        # With skips a layer has no neighbour of its own: what it gives goes to all above it.
        if not arch.skip:
            blocks = self.rescale_all(keys[0], blocks)
        # From here on V⁰ is integrated out. It is the first block that is drawn afterwards.
        if arch.finite_layout.narrow:
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
            above.insert(0, step_down(arch, above[0], blocks[layer + 1], layer))
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


def vector_shapes(arch: Architecture) -> list[tuple[int, int, int]]:
    """Shapes [output, path, N_l] of the path vectors below layers 1..L and below the readout."""
    return [(arch.outputs, math.prod(arch.choices[layer:]), arch.widths[layer]) for layer in range(arch.layers + 1)]


def step_up(kept: Array | None, entering: Float[Array, "example head path in"], value: Array) -> Array:
    """The states [example, path, N_{l+1}] above layer l of the paths left to go, from those below (`split_states`)."""
    examples, heads, paths, width = entering.shape
    flat = entering.transpose(1, 0, 2, 3).reshape(heads, examples * paths, width)
    up = sum(jnp.matmul(flat[head], value[head].T, precision=MATMUL_PRECISION) for head in range(heads))
    up = jnp.reshape(up, (examples, paths, -1))
    return up if kept is None else kept + up


def split_states(arch: Architecture, states: Array, layer: int) -> tuple[Array | None, Array]:
    """Below layer l: states [example, path, N_l] that pass it by, if any, and [example, head, path, N_l] that enter."""
    examples, _, width = states.shape
    split = states.reshape(examples, arch.choices[layer], -1, width)
    scale = 1 / math.sqrt(arch.heads[layer] * arch.widths[layer])
    return (split[:, 0], scale * split[:, 1:]) if arch.skip else (None, scale * split)


def rescaling_moves(shape: tuple[int, int, int]) -> tuple[int, int]:
    """How many rescalings there are between two layers, and how many vectors make a direction, from those' shape."""
    outputs, paths, width = shape
    size = min(outputs * paths, width)
    # One direction needs one draw; several mix by repetition.
    return 1 if size == 1 else MOVES_PER_VECTOR * size, outputs * paths


def rescaled(
    normals: Float[Array, "move vector"],
    uniforms: Float[Array, "move two"],
    vectors: Float[Array, "output path width"],
    below: Float[Array, "head width in"],
    above: Float[Array, "head_above out width"],
    deviations: tuple[Array, Array],
) -> tuple[Array, Array, Array]:
    """Move weights between two neighbouring layers without changing the output: W → GW below, W → WG⁻¹ above.

    Along a direction ê in the span of the path vectors e between the layers, G = I + (c−1)êêᵀ. A fixed combination
    ê ∝ Σ k e of them keeps its direction under G (e → G⁻¹e), so the moves along it are a group, and drawing ln c from

        exp(t (n_below − n_above + 1 − N) − (c² |êᵀW_below|²/σ² + |W_above ê|²/(c² σ²))/2),      t = ln c,

    leaves the posterior as it is. n are the columns below and the rows above. The power is the Jacobian: the rows of
    W_above other than the one that makes ê have only their component along ê divided by c, that one (N numbers) all.
    Only these directions matter to the output; along them the block draws move U by small steps.
    All moves happen in the small space of the path vectors; the weights are touched once.
    `vectors` are e between the two layers. Returns the weights below and above, and the vectors between them.
    """
    basis, triangle = jnp.linalg.qr(vectors.reshape(-1, vectors.shape[-1]).T)
    size = len(triangle)
    small_below = jnp.stack([jnp.matmul(basis.T, one, precision=MATMUL_PRECISION) for one in below])
    small_above = jnp.stack([jnp.matmul(one, basis, precision=MATMUL_PRECISION) for one in above])
    gram_below = jnp.einsum("hai,hbi->ab", small_below, small_below, precision=MATMUL_PRECISION) / deviations[0] ** 2
    gram_above = jnp.einsum("hoa,hob->ab", small_above, small_above, precision=MATMUL_PRECISION) / deviations[1] ** 2
    power = below.shape[0] * below.shape[2] - above.shape[0] * above.shape[1] + 1 - above.shape[2]

    def move(state: tuple, numbers: tuple[Array, Array]) -> tuple[tuple, None]:
        grow, shrink, gram_below, gram_above, triangle = state
        direction = triangle @ numbers[0]
        direction = direction / jnp.linalg.norm(direction)
        squares = direction @ gram_below @ direction, direction @ gram_above @ direction
        scale = jnp.exp(log_scale_draw(numbers[1], power, *squares))
        along = jnp.outer(direction, direction)
        larger, smaller = jnp.eye(size) + (scale - 1) * along, jnp.eye(size) + (1 / scale - 1) * along
        grams = larger @ gram_below @ larger, smaller @ gram_above @ smaller
        return (larger @ grow, shrink @ smaller, *grams, smaller @ triangle), None

    start = (jnp.eye(size), jnp.eye(size), gram_below, gram_above, triangle)
    (grow, shrink, _, _, triangle), _ = jax.lax.scan(move, start, (normals, uniforms))
    grow, shrink = grow - jnp.eye(size), shrink - jnp.eye(size)
    below = below + jnp.stack([basis @ (grow @ one) for one in small_below])
    above = above + jnp.stack([(one @ shrink) @ basis.T for one in small_above])
    return below, above, (basis @ triangle).T.reshape(vectors.shape)


def log_scale_draw(uniforms: Float[Array, " two"], power: float, below: Array, above: Array) -> Array:
    """t from exp(power·t − (below·e^{2t} + above·e^{−2t})/2), by one Metropolis step from t = 0.

    The proposal does not depend on where the step starts: a logistic law at the mode, with tails heavier than the
    target's, so that hardly any step is refused and none can be refused for long.
    """

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

    proposed = mode + width * jax.scipy.special.logit(uniforms[0])
    start = jnp.zeros_like(mode)
    gain = target(proposed) - target(start) + proposal(start) - proposal(proposed)
    return jnp.where(jnp.log(uniforms[1]) < gain, proposed, start)


def turned(
    normals: Float[Array, "head row in"],
    uniforms: Float[Array, " number"],
    data: PathData,
    problem: Problem,
    above: Float[Array, "output path out"],
    blocks: Sequence[Array],
    layer: int,
) -> Float[Array, "head out in"]:
    """Move one block above V⁰ with V⁰ integrated out: the labels are then N(0, K(U) + τI), with U linear in W ⊗ W.

    A slice of the ellipse W cos θ + W' sin θ, W' ~ prior (Murray, Adams & MacKay 2010), where only the rows of W in the
    span of the path vectors above it matter and move. Without this U moves by 1/√N0 of itself per sweep: given V⁰,
    which has N0 numbers in each direction, its scale is known to that accuracy.
    `normals` has a random row for every row of W that moves; `above` are e above the block of the given layer.
    """
    arch, block = data.structure, blocks[layer + 1]
    basis, triangle = jnp.linalg.qr(above.reshape(-1, above.shape[-1]).T)
    rows = jnp.stack([jnp.matmul(basis.T, one, precision=MATMUL_PRECISION) for one in block])
    other = data.deviations[layer + 1] * normals
    small = triangle.T.reshape(*above.shape[:2], -1)

    def path_rows(rows: Array, passing: Array) -> Float[Array, "row in"]:
        vectors = step_down(arch, small, rows, layer, passing)
        for lower in reversed(range(layer)):
            vectors = step_down(arch, vectors, blocks[lower + 1], lower)
        return order_factor(arch, vectors)

    still = jnp.zeros_like(above)
    parts = [path_rows(rows, still), path_rows(other, still)]
    if arch.skip and layer < arch.layers:
        parts.append(path_rows(jnp.zeros_like(rows), above))
    # Only inner products matter: the vectors in a basis of their span.
    compact = jnp.linalg.qr(jnp.concatenate(parts).T, mode="r").T
    now, then, *rest = jnp.split(compact, len(parts))

    def log_likelihood(angle: Array) -> Array:
        factor = jnp.cos(angle) * now + jnp.sin(angle) * then + sum(rest)
        return -reachable_energy(problem, factor, data.temperature) / 2

    angle = slice_angle(uniforms, log_likelihood)
    change = (jnp.cos(angle) - 1) * rows + jnp.sin(angle) * other
    return block + jnp.stack([jnp.matmul(basis, one, precision=MATMUL_PRECISION) for one in change])


def flipped(
    uniforms: Float[Array, " head"], data: PathData, problem: Problem, blocks: Sequence[Array]
) -> list[Float[Array, "head out in"]]:
    """Change the signs of heads, V^{l,h} → −V^{l,h}, one Metropolis step for each, with V⁰ integrated out.

    The prior does not change, so the likelihood N(y; 0, K(U) + τI) decides. In narrow networks these moves lead from
    one mode to another where the others rarely do.
    """
    arch = data.structure
    edges = np.cumsum(arch.heads)[:-1]

    def with_signs(signs: Array) -> list[Array]:
        pairs = zip(jnp.split(signs, edges), blocks[1:-1], strict=True)
        return [sign[:, None, None] * block for sign, block in pairs]

    def log_likelihood(signs: Array) -> Array:
        factor = order_factor(arch, path_vectors(arch, blocks[-1], with_signs(signs)))
        return -reachable_energy(problem, factor, data.temperature) / 2

    def propose(state: tuple[Array, Array], numbers: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        signs, value = state
        head, uniform = numbers
        proposed = signs.at[head].multiply(-1)
        there = log_likelihood(proposed)
        accepted = jnp.log(uniform) < there - value
        return (jnp.where(accepted, proposed, signs), jnp.where(accepted, there, value)), None

    start = jnp.ones(sum(arch.heads))
    (signs, _), _ = jax.lax.scan(propose, (start, log_likelihood(start)), (jnp.arange(len(start)), uniforms))
    return [blocks[0], *with_signs(signs), blocks[-1]]


def slice_angle(uniforms: Float[Array, " number"], log_likelihood: Callable[[Array], Array]) -> Array:
    """An angle on the ellipse whose likelihood is above a random level under that at angle 0, by shrinking."""
    level = log_likelihood(jnp.zeros(())) + jnp.log(uniforms[0])
    upper = FIRST_INTERVAL * uniforms[1]
    lower = upper - FIRST_INTERVAL

    def angle_in(lower: Array, upper: Array, tries: Array) -> Array:
        return lower + (upper - lower) * uniforms[tries]

    def refused(state: tuple) -> Array:
        angle, _, _, tries = state
        # A likelihood of NaN, from a covariance that rounding made indefinite, is refused too.
        return ~(log_likelihood(angle) >= level) & (tries < UNIFORMS_PER_TURN)

    def shrink(state: tuple) -> tuple:
        angle, lower, upper, tries = state
        lower, upper = jnp.where(angle < 0, angle, lower), jnp.where(angle < 0, upper, angle)
        return angle_in(lower, upper, tries), lower, upper, tries + 1

    start = (angle_in(lower, upper, jnp.asarray(2)), lower, upper, jnp.asarray(3))
    angle, _, _, tries = jax.lax.while_loop(refused, shrink, start)
    # The interval shrinks to angle 0, which is above the level; rounding must not make this endless.
    return jnp.where(tries < UNIFORMS_PER_TURN, angle, 0.0)

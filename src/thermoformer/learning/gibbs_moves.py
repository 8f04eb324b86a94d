"""Exact moves with which a Gibbs sampler of weights mixes: rescaled neighbours, turned layers, changed signs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._precision import MATMUL_PRECISION
from .kernels import Problem, reachable_energy
from .path_network import PathData, readout_vectors, row_scales, step_down, vectors_below

# Rescalings along random directions per path vector and interface of two layers; a move costs a few small products.
MOVES_PER_VECTOR = 3
# The first interval of angles that a turn tries, in radians. A whole circle would be shrunk to less in most cases.
FIRST_INTERVAL = 1.0
# Random numbers that one turn may use. An interval shrinks to 2/3 and less on average: after so many tries it is 1e-11.
UNIFORMS_PER_TURN = 64


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

    Arguments:
        normals, uniforms: random numbers of all moves (`rescaling_moves`).
        vectors: e between the two layers.
        below, above: their weights.
        deviations: σ of both.

    Returns:
        The weights below and above, and the vectors between them.
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
        return (
            larger @ grow,
            shrink @ smaller,
            larger @ gram_below @ larger,
            smaller @ gram_above @ smaller,
            smaller @ triangle,
        ), None

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

    Arguments:
        normals: a random row for every row of W that moves, as many as the smaller of path vectors above and width.
        uniforms: random numbers of the slice, `UNIFORMS_PER_TURN`.
        above: e above the block.
        blocks: all blocks.
        layer: of the block, counted from 0; the readout comes after the last.
    """
    arch, block = data.structure, blocks[layer + 1]
    basis, triangle = jnp.linalg.qr(above.reshape(-1, above.shape[-1]).T)
    rows = jnp.stack([jnp.matmul(basis.T, one, precision=MATMUL_PRECISION) for one in block])
    other = data.deviations[layer + 1] * normals
    small = triangle.T.reshape(*above.shape[:2], -1)

    def path_rows(rows: Array, passing: Array) -> Float[Array, "row in"]:
        vectors = vectors_below(arch, small, rows, layer, passing)
        for lower in reversed(range(layer)):
            vectors = step_down(arch, vectors, blocks[lower + 1], lower)
        return vectors.reshape(-1, arch.widths[0]) / jnp.asarray(row_scales(arch))[:, None]

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

    Arguments:
        uniforms: a random number for every head of every layer.
        blocks: all blocks.
    """
    arch = data.structure
    edges = np.cumsum(arch.heads)[:-1]

    def with_signs(signs: Array) -> list[Array]:
        values = [
            sign[:, None, None] * block for sign, block in zip(jnp.split(signs, edges), blocks[1:-1], strict=True)
        ]
        return [blocks[0], *values, blocks[-1]]

    def log_likelihood(signs: Array) -> Array:
        vectors = readout_vectors(arch, blocks[-1])
        for layer, block in reversed(list(enumerate(with_signs(signs)[1:-1]))):
            vectors = step_down(arch, vectors, block, layer)
        factor = vectors.reshape(-1, arch.widths[0]) / jnp.asarray(row_scales(arch))[:, None]
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
    return with_signs(signs)


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

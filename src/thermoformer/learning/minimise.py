"""Minimisers of a function of a vector of order one: Newton with the exact Hessian, and limited-memory BFGS.

Both are pure functions of arrays: they run under jit and vmap. They stop at a gradient, at a step limit, or where
rounding leaves nothing to gain; whether the end is good enough is for `saddle.solve` to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Whitened coordinates are of order one (logarithms of factors): a first step longer than this leaves the region
# where a quadratic model says anything.
FIRST_RADIUS = 1.0
# Gains under which the gradient decides, and not the value, whether a step is good.
NEAR = 1e-10
# Steps in a row that rounding may spoil before a search ends.
STALLS = 5
# Candidate shifts of the Hessian, in units of its largest curvature.
DAMPINGS = 10.0 ** np.linspace(-12, 4, 65)
# Steps that limited-memory BFGS remembers: the action costs far more than the recursion over them.
MEMORY = 60
# Relative rounding of the action; differences under it decide nothing.
ROUNDING = 1e-13


class Minimum(NamedTuple):
    """Where a minimiser stopped."""

    vector: Float[Array, " parameter"]
    gradient_norm: Float[Array, ""]
    smallest_curvature: Float[Array, ""]  # of the Hessian; NaN where it was not formed
    evaluations: Array
    remaining_gain: Float[Array, ""]  # what a further Newton step would take off the function; NaN if not known
    value: Float[Array, ""]
    hessian: Float[Array, "parameter parameter"] | None = None  # none where it was not formed


def newton(
    function: Callable[[Array], tuple[Array, Array, Array]], start: Array, *, tolerance: Any, max_steps: Any
) -> Minimum:
    """Newton's method in a trust region (Moré and Sorensen's step from the eigenvectors of the Hessian).

    Arguments:
        function: a vector → value, gradient and Hessian; each step costs one call.
    """

    def derivatives(vector: Array) -> tuple[Array, Array, Array, Array]:
        value, gradient, hessian = function(vector)
        # A failed Cholesky factor gives NaN everywhere, which eigh may not survive.
        usable = jnp.isfinite(value) & jnp.isfinite(hessian).all()
        curvatures, directions = jnp.linalg.eigh(jnp.where(usable, hessian, jnp.eye(len(vector))))
        return jnp.where(usable, value, jnp.inf), gradient, curvatures, directions

    def proceed(state: tuple) -> Array:
        _, (_, gradient, _, _), _, _, radius, evaluations, stalls = state
        unfinished = jnp.abs(gradient).max() > tolerance
        return (evaluations == 0) | (unfinished & (evaluations < max_steps) & (stalls < STALLS) & (radius > 1e-14))

    def advance(state: tuple) -> tuple:
        # The state carries the next trial move, so that the derivatives stand, and are compiled, only once.
        vector, best, move, predicted, radius, evaluations, stalls = state
        found = derivatives(vector + move)
        first = evaluations == 0
        gain, length = best[0] - found[0], jnp.linalg.norm(move)
        size = jnp.maximum(jnp.abs(found[0]), 1)
        # So near the minimum the value may be rounded more coarsely than it falls; the gradient then decides.
        near = (jnp.abs(gain) <= NEAR * size) & (predicted <= NEAR * size)
        level = near | (jnp.abs(gain) <= ROUNDING * size)
        smaller = jnp.abs(found[1]).max() < jnp.abs(best[1]).max()
        accept = first | (gain > 1e-4 * predicted) | (level & smaller)
        # On level ground steps that do not shrink the gradient, even as they get shorter, mean that rounding has won.
        stuck = level & ~smaller & ~first
        stalls = jnp.where(~jnp.isfinite(found[0]) & first, STALLS, jnp.where(stuck, stalls + 1, 0))
        grown = jnp.where((gain > 0.75 * predicted) & (length > 0.5 * radius), 2 * radius, radius)
        shorter = jnp.where(level, stuck, gain < 0.25 * predicted)
        radius = jnp.where(first, radius, jnp.where(shorter, 0.25 * length, jnp.where(level, radius, grown)))
        vector = jnp.where(accept, vector + move, vector)
        best = jax.tree.map(lambda new, old: jnp.where(accept, new, old), found, best)
        _, gradient, curvatures, directions = best
        move, predicted = trust_region_move(gradient, curvatures, directions, radius)
        return vector, best, move, predicted, radius, evaluations + 1, stalls

    zero, count = jnp.zeros_like(start), len(start)
    blank = (jnp.asarray(jnp.inf), zero + jnp.inf, zero, jnp.zeros((count, count)))
    first = (start, blank, zero, jnp.zeros(()), jnp.asarray(FIRST_RADIUS), jnp.asarray(0), jnp.asarray(0))
    vector, best, _, _, _, evaluations, _ = jax.lax.while_loop(proceed, advance, first)
    value, gradient, curvatures, directions = best
    norm = jnp.where(jnp.isfinite(value), jnp.abs(gradient).max(), jnp.nan)
    _, remaining = trust_region_move(gradient, curvatures, directions, jnp.asarray(jnp.inf))
    hessian = (directions * curvatures[None, :]) @ directions.T
    return Minimum(vector, norm, curvatures[0], evaluations, remaining, value, hessian)


def trust_region_move(gradient: Array, curvatures: Array, directions: Array, radius: Array) -> tuple[Array, Array]:
    """The step −(H + λI)⁻¹g that a quadratic model takes within the radius, and the gain it predicts.

    λ is the smallest on a geometric grid that keeps the step within the radius: all candidates at once is one small
    matrix, where root-finding would be a loop of tiny operations.
    """
    slope = directions.T @ gradient
    largest = jnp.abs(curvatures).max()
    shift = jnp.maximum(0, -curvatures[0]) + largest * jnp.concatenate([jnp.zeros(1), DAMPINGS])
    denominator = jnp.maximum(curvatures[:, None] + shift[None, :], 1e-14 * largest)
    moves = -slope[:, None] / denominator
    fits = jnp.sum(moves**2, axis=0) <= radius**2
    chosen = moves[:, jnp.argmax(fits.at[-1].set(True))]
    chosen = chosen * jnp.minimum(1, radius / jnp.linalg.norm(chosen))
    return directions @ chosen, -(slope @ chosen + 0.5 * curvatures @ chosen**2)


def limited_memory(function: Callable[[Array], Array], start: Array, *, tolerance: Any, max_steps: Any) -> Minimum:
    """Limited-memory BFGS with optax's zoom line search, for more numbers than a Hessian is worth.

    Each step costs about one evaluation of the function with its gradient.
    """
    import optax  # imported late: small problems never need it

    search = optax.scale_by_zoom_linesearch(max_linesearch_steps=20, initial_guess_strategy="one")
    optimiser = optax.lbfgs(memory_size=MEMORY, linesearch=search)
    value_and_gradient = optax.value_and_grad_from_state(function)

    def proceed(state: tuple) -> Array:
        _, _, norm, steps, _, stalled = state
        return (norm > tolerance) & (steps < max_steps) & ~stalled

    def advance(state: tuple) -> tuple:
        vector, memory, _, steps, evaluations, _ = state
        value, gradient = value_and_gradient(vector, state=memory)
        move, memory = optimiser.update(gradient, memory, vector, value=value, grad=gradient, value_fn=function)
        gradient = optax.tree_utils.tree_get(memory, "grad")
        information = optax.tree_utils.tree_get(memory, "info")
        norm = jnp.abs(gradient).max()
        moved = jnp.where(jnp.isfinite(norm), jnp.asarray(optax.apply_updates(vector, move)), vector)
        stalled = (moved == vector).all()
        return moved, memory, norm, steps + 1, evaluations + information.num_linesearch_steps, stalled

    first = (start, optimiser.init(start), jnp.asarray(jnp.inf), 0, 0, jnp.asarray(False))
    vector, memory, norm, _, evaluations, _ = jax.lax.while_loop(proceed, advance, first)
    value = jnp.asarray(optax.tree_utils.tree_get(memory, "value"))
    unknown = jnp.asarray(jnp.nan)
    return Minimum(vector, norm, unknown, jnp.asarray(evaluations), unknown, value)

"""Tangent vectors of many lanes, kept orthonormal: what Lyapunov exponents are made of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

# What is left of a vector after its projections are taken away has a rounding error of about one unit of its length
# before: with less than this share left, the rest is rounding.
LOST = 64 * np.finfo(np.float64).eps
# With more vectors than this the triangle of projections is a loop, not one long program.
UNROLLED = 24

# Projections on this many vectors at a time are taken away in one pass.
PANEL = 2


def orthonormalise(
    columns: Float[Array, "vector *coordinates lane"],
) -> tuple[Array, Float[Array, "vector lane"], Bool[Array, "vector lane"]]:
    """Orthonormal vectors that span the same spaces (modified Gram–Schmidt).

    Arguments:
        columns: [vector, *coordinates, lane].

    Returns:
        The vectors; the logarithm of the length that each had left without its projections on those before; and
        whether rounding is all that was left. A vector of length 0 stays 0, and counts as lost.

    Example:
        >>> pair = jnp.array([[[2.0], [0.0]], [[1.0], [3.0]]])
        >>> np.exp(orthonormalise(pair)[1]).ravel().round(6).tolist()
        [2.0, 3.0]
    """
    shape = columns.shape
    flat = columns.reshape(shape[0], -1, shape[-1])
    before = jnp.sqrt(jnp.sum(flat**2, 1))
    if shape[0] > UNROLLED:
        flat, lengths = _many(flat)
    elif jax.default_backend() == "cpu":
        flat, lengths = _each_apart(flat)
    else:
        flat, lengths = _all_at_once(flat)
    lost = lengths <= LOST * before
    return flat.reshape(shape), jnp.log(jnp.where(lengths > 0, lengths, 1.0)), lost


def _unit(vector: Float[Array, "coordinate lane"]) -> tuple[Array, Array]:
    length = jnp.sqrt(jnp.sum(vector**2, 0))
    return vector * jnp.where(length > 0, 1 / length, 0.0)[None], length


def _each_apart(stacked: Float[Array, "vector coordinate lane"]) -> tuple[Array, Array]:
    """Gram–Schmidt on separate arrays: small enough for a CPU's cache; reductions, so nothing is computed twice."""
    columns, lengths = list(stacked), []
    for first in range(0, len(columns), PANEL):
        panel = range(first, min(first + PANEL, len(columns)))
        for number in panel:
            columns[number], length = _unit(columns[number])
            lengths.append(length)
            for later in range(number + 1, panel.stop):
                columns[later] = _without(columns[later], [columns[number]])
        for later in range(panel.stop, len(columns)):
            columns[later] = _without(columns[later], columns[first : panel.stop])
    return jnp.stack(columns), jnp.stack(lengths)


def _without(column: Array, units: list[Array]) -> Array:
    """A vector less its projections on orthonormal ones."""
    shared = [jnp.sum(unit * column, 0) for unit in units]
    for unit, share in zip(units, shared, strict=True):
        column = column - unit * share[None]
    return column


def _all_at_once(rest: Float[Array, "vector coordinate lane"]) -> tuple[Array, Array]:
    """Gram–Schmidt on one array: few large operations, which is what launching kernels favours."""
    units, lengths = [], []
    for _ in range(rest.shape[0]):
        column, length = _unit(rest[0])
        units.append(column)
        lengths.append(length)
        rest = rest[1:]
        shared = jnp.sum(column[None] * rest, 1)
        rest = rest - column[None] * shared[:, None]
    return jnp.stack(units), jnp.stack(lengths)


def _many(columns: Float[Array, "vector coordinate lane"]) -> tuple[Array, Array]:
    """Many vectors: LAPACK's QR on a CPU, Gram–Schmidt in a loop elsewhere, where lanes fill the machine."""
    if jax.default_backend() == "cpu":
        unitary, triangle = jnp.linalg.qr(jnp.transpose(columns, (2, 1, 0)))
        lengths = jnp.abs(jnp.diagonal(triangle, axis1=1, axis2=2)).T
        # QR completes a basis where vectors vanish; here what vanished stays so.
        return jnp.transpose(unitary, (2, 1, 0)) * (lengths > 0)[:, None], lengths
    numbers = jnp.arange(columns.shape[0])

    def orthogonal_to(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        columns, lengths = carry
        column, length = _unit(lax.dynamic_index_in_dim(columns, number, 0, False))
        shared = jnp.sum(column[None] * columns, 1)
        # The vector itself becomes its unit, those before stay, those after lose their projection.
        taken = jnp.where((numbers > number)[:, None], shared, 0.0)
        columns = columns - column[None] * taken[:, None]
        columns = lax.dynamic_update_index_in_dim(columns, column, number, 0)
        return columns, lax.dynamic_update_index_in_dim(lengths, length, number, 0)

    return lax.fori_loop(0, columns.shape[0], orthogonal_to, (columns, jnp.zeros(columns.shape[::2])))

"""Tangent vectors of many lanes, kept orthonormal: what Lyapunov exponents are made of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from .._validation import numpy_for

# What is left of a vector after its projections are taken away has a rounding error of about one unit of its length
# before: with less than this share left, the rest is rounding.
LOST = 64 * np.finfo(np.float64).eps
# An exponent counts as lost where rounding was all that was left in more than this share of the orthonormalisations.
# Each of these adds about −32 in place of something lower: one in ten thousand shifts the mean by a few thousandths.
LOST_SHARE = 1e-4
# With more vectors than this the triangle of projections is a loop, not one long program.
UNROLLED = 24

# Projections on this many vectors at a time are taken away in one pass.
PANEL = 2

# Tangent vectors start in this random frame. It is the same in every run, so that results repeat.
FRAME_SEED = 18


def random_frame(count: int, dimension: int) -> Float[np.ndarray, "vector coordinate"]:
    """Orthonormal vectors in random directions; the first ones are the same for every count.

    Unit vectors may lie in an invariant subspace of the map, which they never leave: the largest exponent can then be
    missed. Random vectors have a part in every direction.

    Example:
        >>> bool(np.array_equal(random_frame(2, 5), random_frame(5, 5)[:2]))
        True
    """
    # Rows are drawn one after another, and QR of the first columns depends on the others by rounding only. Small frames
    # are parts of one, without this rounding.
    drawn = max(count, min(dimension, UNROLLED))
    return np.linalg.qr(np.random.default_rng(FRAME_SEED).normal(size=(drawn, dimension)).T)[0].T[:count]


def largest_first(
    blocks: Float[np.ndarray, "lane block exponent"], lost: Float[np.ndarray, "lane exponent"]
) -> tuple[np.ndarray, np.ndarray]:
    """Block means and lost shares of exponents, sorted by the mean over all blocks.

    Vectors are in descending order only in the limit of many steps. Exponents from the first lost one on stay at the
    end, in the order of their vectors: their values mean nothing.

    Example:
        >>> largest_first(np.array([[[-1.0, 0.5, 3.0]]]), np.array([[0.0, 0.0, 0.2]]))[0].tolist()
        [[[0.5, -1.0, 3.0]]]
    """
    xp = numpy_for(blocks, lost)
    means = xp.where(lost_from_first(lost), -np.inf, blocks.mean(axis=1))
    order = xp.argsort(-means, axis=1, stable=True)
    return xp.take_along_axis(blocks, order[:, None], axis=2), xp.take_along_axis(lost, order, axis=1)


def lost_from_first(lost: Float[np.ndarray, "lane exponent"]) -> Bool[np.ndarray, "lane exponent"]:
    """Which exponents are lost to rounding: those after a lost one are not larger than it, and are lost as well."""
    return (lost > LOST_SHARE).cumsum(axis=1) > 0


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

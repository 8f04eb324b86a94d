"""Tangent vectors of many lanes, kept orthonormal, and the Lyapunov exponents that their growth gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from .._validation import fail, numpy_for, positive_integer
from .maps import Lanes

# What is left of a vector after its projections are taken away has a rounding error of about one unit of its length
# before: with less than this share left, the rest is rounding.
LOST = 64 * np.finfo(np.float64).eps
# An exponent counts as lost if rounding was all that was left in more than this share of the orthonormalisations.
# Each of these adds about −32 in place of something lower: one in ten thousand shifts the mean by a few thousandths.
LOST_SHARE = 1e-4
# With more vectors than this the triangle of projections is a loop, not one long program. Up to this many,
# orthonormalising costs less than pushing: it is done at every step.
UNROLLED = 24
# Projections on this many vectors at a time are taken away in one pass.
PANEL = 2
# Tangent vectors start in this random frame. It is the same in every run, so that results repeat.
FRAME_SEED = 18


class Exponents(eqx.Module):
    """Growth of tangent vectors that start in a frame and are orthonormalised every few steps (Benettin et al.)."""

    frame: Float[Array, "vector coordinate"]
    every: int = eqx.field(static=True)

    @property
    def count(self) -> int:
        """The number of leading exponents."""
        return len(self.frame)

    def init(self, lanes: Lanes, state: Any) -> Array:
        """Tangent vectors at a state, [vector, *coordinates, lane]."""
        return lanes.columns(state, self.frame)

    def result(self, blocks: Sequence[tuple[Any, Any]], steps: int, finite: np.ndarray) -> dict[str, np.ndarray]:
        """`exponents`, standard `errors`, shares `lost` to rounding [lane, exponent].

        A single lane also has `blocks` [lane, block, exponent]: of many they would be most of what leaves a GPU.

        They come from the growth of each block of steps, as `engine.walk` gives it. The largest exponent is first; they
        are −inf from the first lost one on, and nan for orbits that are not `finite` [lane].
        """
        xp = numpy_for(blocks)
        # By the mean length of a block, so that the mean over blocks is that over all steps.
        means = [growth * len(blocks) / steps for growth, _ in blocks]
        lost = xp.stack([counts for _, counts in blocks]).sum(axis=0) / (steps // self.every)
        means, lost = largest_first(xp.stack(means).transpose(2, 0, 1), lost.T)
        bounded = xp.where(finite[:, None, None], means, np.nan)
        exponents, count = bounded.mean(axis=1), len(blocks)
        errors = bounded.std(axis=1, ddof=1) / np.sqrt(count) if count > 1 else xp.full_like(exponents, np.nan)
        is_lost = _lost_from_first(lost) & finite[:, None]
        exponents, errors = xp.where(is_lost, -np.inf, exponents), xp.where(is_lost, np.nan, errors)
        found = {"lost": lost, "exponents": exponents, "errors": errors}
        return found | {"blocks": means} if len(means) == 1 else found


def exponents_of(dimension: int, k: Any = None, every: Any = None, *, quick: bool = False) -> Exponents:
    """The k leading exponents of a map, all by default, orthonormalised after `every` steps."""
    if k is not None and positive_integer("k", k) > dimension:
        raise fail("k", k, f"at most {dimension}, the dimension of the map")
    count = dimension if k is None else int(k)
    # Orthonormalising many vectors costs more than pushing them. Doing it less often loses a few more low exponents.
    usual = 1 if count <= UNROLLED else int(np.clip(dimension // 6, 1, 16))
    usual = max(4, usual) if quick and count > 4 else usual
    every = usual if every is None else positive_integer("every", every)
    return Exponents(jnp.asarray(random_frame(count, dimension), float), every)


def random_frame(count: int, dimension: int) -> Float[np.ndarray, "vector coordinate"]:
    """Orthonormal vectors in random directions; the first ones are the same for every count."""
    # Unit vectors may lie in an invariant subspace of the map and miss the largest exponent. Rows are drawn one after
    # another, and QR of the first depends on the others by rounding only. Small frames are parts of one, without it.
    drawn = max(count, min(dimension, UNROLLED))
    return np.linalg.qr(np.random.default_rng(FRAME_SEED).normal(size=(drawn, dimension)).T)[0].T[:count]


def largest_first(blocks: np.ndarray, lost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Block means [lane, block, exponent] and lost shares [lane, exponent], sorted by the mean over all blocks."""
    xp = numpy_for(blocks, lost)
    # Exponents from the first lost one on stay at the end, in the order of their vectors: their values mean nothing.
    means = xp.where(_lost_from_first(lost), -np.inf, blocks.mean(axis=1))
    order = xp.argsort(-means, axis=1, stable=True)
    return xp.take_along_axis(blocks, order[:, None], axis=2), xp.take_along_axis(lost, order, axis=1)


def _lost_from_first(lost: Float[np.ndarray, "lane exponent"]) -> Bool[np.ndarray, "lane exponent"]:
    """Which exponents are lost to rounding: those after a lost one are not larger than it, and are lost as well."""
    return (lost > LOST_SHARE).cumsum(axis=1) > 0


def orthonormalise(columns: Float[Array, "vector *coordinates lane"]) -> tuple[Array, Array, Array]:
    """Orthonormal vectors that span the same spaces (modified Gram–Schmidt), and [vector, lane] two numbers of each.

    These are the logarithm of the length that it had left without its projections on those before, and whether rounding
    is all that was left. A vector of length 0 stays 0, and counts as lost.
    """
    shape, on_cpu = columns.shape, jax.default_backend() == "cpu"
    flat = columns.reshape(shape[0], -1, shape[-1])
    before = jnp.sqrt(jnp.sum(flat**2, 1))
    if shape[0] > UNROLLED:
        flat, lengths = _by_lapack(flat) if on_cpu else _in_a_loop(flat)
    else:
        flat, lengths = _each_apart(flat) if on_cpu else _all_at_once(flat)
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
    for unit, share in [(unit, jnp.sum(unit * column, 0)) for unit in units]:
        column = column - unit * share[None]
    return column


def _all_at_once(rest: Float[Array, "vector coordinate lane"]) -> tuple[Array, Array]:
    """Gram–Schmidt on one array: few large operations, because a GPU pays for every kernel it starts."""
    units, lengths = [], []
    for _ in range(rest.shape[0]):
        column, length = _unit(rest[0])
        units.append(column)
        lengths.append(length)
        rest = rest[1:]
        rest = rest - column[None] * jnp.sum(column[None] * rest, 1)[:, None]
    return jnp.stack(units), jnp.stack(lengths)


def _by_lapack(columns: Float[Array, "vector coordinate lane"]) -> tuple[Array, Array]:
    """QR of many vectors on a CPU."""
    unitary, triangle = jnp.linalg.qr(jnp.transpose(columns, (2, 1, 0)))
    lengths = jnp.abs(jnp.diagonal(triangle, axis1=1, axis2=2)).T
    # QR completes a basis if vectors vanish; here they stay 0.
    return jnp.transpose(unitary, (2, 1, 0)) * (lengths > 0)[:, None], lengths


def _in_a_loop(columns: Float[Array, "vector coordinate lane"]) -> tuple[Array, Array]:
    """Gram–Schmidt of many vectors on a GPU, which lanes fill."""
    numbers = jnp.arange(columns.shape[0])

    def orthogonal_to(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        columns, lengths = carry
        column, length = _unit(lax.dynamic_index_in_dim(columns, number, 0, False))
        # The vector itself becomes its unit, those before stay, those after lose their projection.
        taken = jnp.where((numbers > number)[:, None], jnp.sum(column[None] * columns, 1), 0.0)
        columns = lax.dynamic_update_index_in_dim(columns - column[None] * taken[:, None], column, number, 0)
        return columns, lax.dynamic_update_index_in_dim(lengths, length, number, 0)

    return lax.fori_loop(0, columns.shape[0], orthogonal_to, (columns, jnp.zeros(columns.shape[::2])))

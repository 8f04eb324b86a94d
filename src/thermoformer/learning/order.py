"""Order parameters: whitened factors to Gram matrices and back, and from weights (learning §3, §5).

A vector of numbers holds the whitened factors R_1..R_{L+1}: for each, row by row, the lower triangle with the
logarithm of the diagonal in place of the diagonal. Zero everywhere is R = I, the limit of infinite width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._precision import MATMUL_PRECISION
from .._validation import fail, real_array
from .network import Architecture, Weights, check_weights


@lru_cache(maxsize=64)
def _triangle(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each entry of an n × n factor sits in the vector (past its end above the diagonal), and the diagonal."""
    count = size * (size + 1) // 2
    place = np.full((size, size), count)
    place[np.tril_indices(size)] = np.arange(count)
    return place, np.diagonal(place).copy()


@lru_cache(maxsize=64)
def parameter_kinds(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """For each number in the vector: which factor it belongs to, and whether it is a log-diagonal."""
    counts = [size * (size + 1) // 2 for size in sizes]
    layer = np.repeat(np.arange(len(sizes)), counts)
    diagonal = np.zeros(sum(counts), bool)
    for start, size in zip(np.cumsum([0, *counts[:-1]]), sizes, strict=True):
        diagonal[start + _triangle(size)[1]] = True
    return layer, diagonal


def whitened_factors(vector: Float[Array, " parameter"], sizes: tuple[int, ...]) -> list[Array]:
    """R_1..R_{L+1}, lower triangular with positive diagonal, from the vector."""
    _, diagonal = parameter_kinds(sizes)
    entries = jnp.where(diagonal, jnp.exp(vector), vector)
    factors, start = [], 0
    for size in sizes:
        count = size * (size + 1) // 2
        part = jnp.concatenate([entries[start : start + count], jnp.zeros(1, vector.dtype)])
        factors.append(part[_triangle(size)[0]])
        start += count
    return factors


def gram_factors(whitened: Sequence[Array], heads: Sequence[int], scales: Array | np.ndarray) -> list[Array]:
    """F_1..F_{L+1} with U^l = F_l F_lᵀ: F_{L+1} = σa R_{L+1}, F_l = σ_l (I ⊗ F_{l+1}) R_l (learning §3).

    Arguments:
        scales: standard deviations σ1..σL, σa.
    """
    factors = [scales[len(heads)] * whitened[-1]]
    for layer in reversed(range(len(heads))):
        above = factors[0]
        blocks = whitened[layer].reshape(heads[layer], above.shape[1], -1)
        product = jnp.einsum("ij,hjk->hik", above, blocks, precision=MATMUL_PRECISION)
        factors.insert(0, scales[layer] * product.reshape(-1, blocks.shape[-1]))
    return factors


def whitened_vector(arch: Architecture, order_parameters: Sequence[Any]) -> np.ndarray:
    """The vector of whitened factors of given Gram matrices U^1..U^{L+1}: the inverse of the parametrisation.

    Example:
        >>> import numpy as np
        >>> whitened_vector(Architecture((2,), 10), [np.eye(2), np.eye(1)]).tolist()
        [0.0, 0.0, 0.0, 0.0]
    """
    if len(order_parameters) != arch.layers + 1:
        raise fail("order_parameters", f"{len(order_parameters)} matrices", f"{arch.layers + 1}: U^1..U^{{L+1}}")
    grams = [
        gram_matrix(f"order_parameters[{index}]", gram, size, strictly=True)
        for index, (gram, size) in enumerate(zip(order_parameters, arch.order_sizes, strict=True))
    ]
    parts: list[np.ndarray] = []
    above = np.eye(1)
    for layer in reversed(range(arch.layers + 1)):
        factor = np.linalg.cholesky(grams[layer])
        outer = np.kron(np.eye(len(factor) // len(above)), above) * math.sqrt(arch.variances[layer + 1])
        whitened = np.linalg.solve(outer, factor)
        part = whitened[np.tril_indices(len(whitened))]
        part[_triangle(len(whitened))[1]] = np.log(np.diagonal(whitened))
        parts.insert(0, part)
        above = factor
    return np.concatenate(parts)


def gram_matrix(name: str, value: Any, size: int, *, strictly: bool = False) -> np.ndarray:
    """A symmetric positive (semi)definite matrix of the given size, checked."""
    gram = real_array(name, value, ("path", "path"))
    if gram.shape != (size, size):
        raise fail(name, f"shape {gram.shape}", f"({size}, {size})")
    scale = np.abs(gram).max()
    if np.abs(gram - gram.T).max() > 1e-8 * scale:
        raise fail(name, "a matrix that is not symmetric", "a symmetric matrix")
    smallest = np.linalg.eigvalsh((gram + gram.T) / 2)[0]
    if smallest < -1e-8 * scale or (strictly and smallest <= 0):
        raise fail(name, f"a smallest eigenvalue of {smallest:.3g}", "a positive definite matrix")
    return (gram + gram.T) / 2


def factor_of(gram: np.ndarray) -> np.ndarray:
    """Any F with F Fᵀ = U, for a positive semidefinite U."""
    eigenvalues, vectors = np.linalg.eigh(gram)
    return vectors * np.sqrt(np.maximum(eigenvalues, 0))


def effective_path_weights(arch: Architecture, weights: Weights) -> Float[Array, "*draw path width"]:
    """e_π = (1/√N_a) aᵀ V^{L,h_L} (1/√N_L) ... (1/√N_2) V^{1,h_1} ∈ R^{N_1} (learning §5).

    Example:
        >>> from thermoformer.learning import prior_weights
        >>> arch = Architecture((2, 3), 5)
        >>> effective_path_weights(arch, prior_weights(arch, 4, key=0)).shape
        (6, 5)
    """
    weights = check_weights(arch, weights)
    paths = weights.readout[..., None, :] / math.sqrt(arch.widths[-1])
    for layer in reversed(range(arch.layers)):
        paths = jnp.einsum("...ao,...hoi->...hai", paths, weights.values[layer], precision=MATMUL_PRECISION)
        paths = paths.reshape(*paths.shape[:-3], -1, arch.widths[layer])
        if layer > 0:
            paths = paths / math.sqrt(arch.widths[layer])
    return paths


def order_parameter_from_weights(arch: Architecture, weights: Weights) -> Float[Array, "path path"]:
    """U^1 of given weights: e_π · e_π' / N_1, averaged over draws where there are several (learning §5).

    Example:
        >>> from thermoformer.learning import prior_weights
        >>> arch = Architecture((2,), 500)
        >>> order_parameter_from_weights(arch, prior_weights(arch, 4, key=0, draws=20)).round(0).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    effective = effective_path_weights(arch, weights)
    gram = jnp.einsum("...ai,...bi->...ab", effective, effective, precision=MATMUL_PRECISION) / arch.widths[0]
    return gram if gram.ndim == 2 else gram.mean(axis=0)

"""Order parameters: whitened factors to Gram matrices and back, and from weights (learning §3, §5, §7, §8).

A vector of numbers holds the whitened factors; `layout` says how. The rows of a Gram matrix that leaves the library
are (output, path) with the output slowest (learning §7). Inside, the recursion over layers puts the output fastest,
since it starts from the readout; `output_first` turns one into the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._precision import MATMUL_PRECISION
from .._validation import fail, real_array, traced
from .layout import Layout
from .network import Architecture, Weights, check_weights, checked_architecture


def whitened_blocks(vector: Float[Array, " parameter"], layout: Layout) -> list[tuple[Array, Array]]:
    """(Z, B) of layers 1..L and of the readout from the vector; B lower triangular with a positive diagonal."""
    entries = jnp.where(layout.diagonal, jnp.exp(vector), vector)
    blocks, start = [], 0
    for block in layout.blocks:
        part = jnp.concatenate([entries[start : start + block.count], jnp.zeros(1, vector.dtype)])
        old = part[block.triangle : block.count].reshape(block.rows, block.old)
        blocks.append((old, part[block.places]))
        start += block.count
    return blocks


def gram_factors(
    blocks: Sequence[tuple[Array, Array]], layout: Layout, scales: Array | np.ndarray
) -> list[Float[Array, "row column"]]:
    """F_1..F_{L+1} with U^l = F_l F_lᵀ, rows (path, output): the recursion of `layout` (learning §3, §8).

    Arguments:
        scales: standard deviations σ1..σL, σa.
    """
    factors = [scales[len(layout.heads)] * blocks[-1][1]]
    for layer in reversed(range(len(layout.heads))):
        above = factors[0]
        old, new = blocks[layer]
        joined = jnp.concatenate([old, new], axis=1)
        by_head = joined.reshape(layout.heads[layer], above.shape[1], -1)
        product = jnp.einsum("ij,hjk->hik", above, by_head, precision=MATMUL_PRECISION)
        factor = scales[layer] * product.reshape(-1, by_head.shape[-1])
        if layout.skip:
            kept = jnp.pad(above, ((0, 0), (0, new.shape[1])))
            factor = jnp.concatenate([kept, factor], axis=0)
        factors.insert(0, factor)
    return factors


def output_first(factor: Float[Array, "row column"], outputs: int) -> Float[Array, "row column"]:
    """A factor with rows (path, output) as one with rows (output, path)."""
    if outputs == 1:
        return factor
    return factor.reshape(-1, outputs, factor.shape[1]).transpose(1, 0, 2).reshape(factor.shape)


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
    above = np.eye(arch.outputs)
    for layer in reversed(range(arch.layers + 1)):
        size = len(grams[layer])
        inside = np.arange(size).reshape(arch.outputs, -1).T.ravel()
        factor = np.linalg.cholesky(grams[layer][np.ix_(inside, inside)])
        block = arch.layout.blocks[layer]
        # With skips the upper rows repeat the layer above, and only the lower ones are new.
        new = factor[size - block.rows :]
        kept = size - block.rows
        if kept and np.abs(factor[:kept, :kept] - above).max() > 1e-6 * np.abs(above).max():
            expected = f"its first {len(above)} paths, which skip layer {layer + 1}, to have U^{layer + 2}"
            raise fail(f"order_parameters[{layer}]", "another matrix", expected)
        outer = np.kron(np.eye(block.rows // len(above)), above) * math.sqrt(arch.variances[layer + 1])
        whitened = np.linalg.solve(outer, new)
        old, triangle = whitened[:, : block.old], whitened[:, block.old :]
        part = triangle[np.tril_indices(block.rows)]
        part[block.diagonal] = np.log(np.diagonal(triangle))
        parts.insert(0, np.concatenate([part, old.ravel()]))
        above = factor
    return np.concatenate(parts)


def gram_matrix(name: str, value: Any, size: int, *, strictly: bool = False) -> Any:
    """A symmetric positive (semi)definite matrix of the given size, checked; of a traced one its shape."""
    gram = real_array(name, value, ("path", "path"))
    if gram.shape != (size, size):
        raise fail(name, f"shape {gram.shape}", f"({size}, {size})")
    if traced(gram):
        return (gram + gram.T) / 2
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


def effective_path_weights(arch: Architecture, weights: Weights) -> Float[Array, ...]:
    """e_π = (1/√N_a) aᵀ V^{L,h_L} (1/√N_L) ... (1/√N_2) V^{1,h_1} ∈ R^{N_1} (learning §5).

    With skips all widths are N: e_π = aᵀ ∏ V^{l,h_l}/√N over the layers where the path attends (learning §8).

    Returns:
        e [path, N_1], with a draw axis in front for several networks, and an output axis before the paths where there
        are several outputs.

    Example:
        >>> from thermoformer.learning import prior_weights
        >>> arch = Architecture((2, 3), 5)
        >>> effective_path_weights(arch, prior_weights(arch, 4, key=0)).shape
        (6, 5)
    """
    # Weights are as they are: networks that differ in their prior alone share a program.
    return _compiled_vectors(checked_architecture(arch).replace(variances=1.0), check_weights(arch, weights))


def path_vectors(arch: Architecture, weights: Weights) -> Array:
    """`effective_path_weights` without its checks, for use under jit and grad."""
    vectors = weights.readout[..., None, :]
    for layer in reversed(range(arch.layers)):
        value = weights.values[layer]
        if arch.outputs > 1:
            value = value[..., None, :, :, :]
        attended = jnp.einsum("...ao,...hoi->...hai", vectors, value, precision=MATMUL_PRECISION)
        # What multiplies V is summed over N_{l+1} entries: their number is its scale.
        attended = attended / math.sqrt(arch.widths[layer + 1])
        if arch.skip:
            attended = jnp.concatenate([vectors[..., None, :, :], attended], axis=-3)
        vectors = attended.reshape(*attended.shape[:-3], -1, arch.widths[layer])
    return vectors


# JIT-compiled once per shape; run eagerly, every operation would compile separately.
_compiled_vectors = partial(jax.jit, static_argnames="arch")(path_vectors)


def order_parameter_from_weights(arch: Architecture, weights: Weights) -> Float[Array, "row row"]:
    """U^1 of given weights: e_π · e_π' / N_1, averaged over draws where there are several (learning §5).

    With several outputs its rows are (output, path), the output slowest.

    Example:
        >>> from thermoformer.learning import prior_weights
        >>> arch = Architecture((2,), 500)
        >>> order_parameter_from_weights(arch, prior_weights(arch, 4, key=0, draws=20)).round(0).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    gram = gram_of_vectors(arch, effective_path_weights(arch, weights))
    return gram if gram.ndim == 2 else gram.mean(axis=0)


def gram_of_vectors(arch: Architecture, vectors: Array) -> Array:
    """U^1 [*draw, row, row] of effective path weights."""
    if arch.outputs > 1:
        vectors = vectors.reshape(*vectors.shape[:-3], -1, vectors.shape[-1])
    return jnp.einsum("...ai,...bi->...ab", vectors, vectors, precision=MATMUL_PRECISION) / arch.widths[0]

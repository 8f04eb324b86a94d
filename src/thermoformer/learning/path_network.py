"""The network on attentioned inputs, layer by layer: the form in which samplers of weights run it (learning §5, §10).

From the readout down go the vectors e of paths, from V⁰ up the states z of examples along paths; where they meet,
f = Σ_π e_π · z_π. All scales, 1/√(H_l N_l) and 1/√N_a, are in both.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._keys import standard_normal
from .._precision import MATMUL_PRECISION
from .kernels import feature_basis
from .network import Architecture, Weights
from .paths import PathFeatures


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

    Without `reduce` all features are kept, and the basis is None, as where all are needed. Rotating the examples adds
    a constant to the log density, and nothing else.
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
    return PathData(values, y.T, jnp.asarray(temperature, dtype=float), deviations, arch.replace(variances=1.0)), basis


def scaled_weights(standard: Weights, deviations: Array) -> Weights:
    """Weights of standard-normal coordinates: every layer times its σ."""
    values = tuple(deviations[layer + 1] * value for layer, value in enumerate(standard.values))
    return Weights(deviations[0] * standard.embedding, values, deviations[-1] * standard.readout)


def step_down(
    arch: Architecture,
    vectors: Float[Array, "output path out"],
    value: Array,
    layer: int,
    passing: Array | None = None,
) -> Array:
    """The vectors [output, path, N_l] of paths from layer l up, from those [output, path, N_{l+1}] above it.

    All scales are in: e_π = ∏ V^{l,h}ᵀ/√(H_l N_l) a/√N_a, so that f = Σ_π e_π · V⁰ ξ_π/√N0.

    Arguments:
        passing: what the paths that pass the layer by have, where it is not `vectors`.
    """
    outputs, paths, _ = vectors.shape
    flat = vectors.reshape(outputs * paths, -1) / math.sqrt(arch.heads[layer] * arch.widths[layer])
    below = [jnp.matmul(flat, one, precision=MATMUL_PRECISION).reshape(outputs, paths, -1) for one in value]
    passing = vectors if passing is None else passing
    return jnp.concatenate([passing, *below] if arch.skip else below, axis=1)


def vectors_below(arch: Architecture, vectors: Array, block: Array, layer: int, passing: Array | None = None) -> Array:
    """`step_down` where the readout counts as the block above the last layer, under vectors that pick the output."""
    if layer < arch.layers:
        return step_down(arch, vectors, block, layer, passing)
    return jnp.einsum("dao,oi->dai", vectors, block[0], precision=MATMUL_PRECISION) / math.sqrt(arch.widths[-1])


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


def readout_vectors(arch: Architecture, readout: Array) -> Float[Array, "output path out"]:
    """a/√N_a as the vectors of the one path above the top layer."""
    return readout.reshape(arch.outputs, 1, -1) / math.sqrt(arch.widths[-1])


def vector_shapes(arch: Architecture) -> list[tuple[int, int, int]]:
    """Shapes [output, path, N_l] of the path vectors below layers 1..L and below the readout."""
    return [(arch.outputs, math.prod(arch.choices[layer:]), arch.widths[layer]) for layer in range(arch.layers + 1)]


def row_scales(arch: Architecture) -> np.ndarray:
    """∏ 1/√H_l of each row (output, path) of U: what the scaled vectors e have that those of U do not."""
    return np.tile(arch.path_scales, arch.outputs)


def scaled_path_vectors(arch: Architecture, weights: Weights) -> Float[Array, "output path in"]:
    """e_π of all paths with all scales in (see `step_down`)."""
    vectors = readout_vectors(arch, weights.readout)
    for layer in reversed(range(arch.layers)):
        vectors = step_down(arch, vectors, weights.values[layer], layer)
    return vectors


def completed_coefficients(
    arch: Architecture, coefficients: np.ndarray, grams: np.ndarray, basis: np.ndarray, key: jax.Array
) -> np.ndarray:
    """c with its part outside the span of the training data: σ0 e_πᵀZ of a Z at its prior, given e through U alone."""
    eigenvalues, vectors = np.linalg.eigh(grams)
    factors = vectors * np.sqrt(np.maximum(eigenvalues, 0))[..., None, :]
    factors *= np.sqrt(arch.variances[0]) * row_scales(arch)[:, None]
    full = np.empty((*coefficients.shape[:3], len(basis)))
    for chain, chain_key in enumerate(jax.random.split(key, len(full))):  # a chain at a time, for memory
        noise = factors[chain] @ np.asarray(standard_normal(chain_key, full.shape[1:]))
        full[chain] = noise + (coefficients[chain] - noise @ basis) @ basis.T
    return full

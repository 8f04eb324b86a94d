"""Small problems that the tests of the learning theory share."""

from __future__ import annotations

import numpy as np

from thermoformer.learning import Architecture, PathFeatures


def small_problem(
    heads: tuple[int, ...] = (2, 2), examples: int = 30, token_width: int = 8, seed: int = 0, widths=10, variances=1.0
) -> tuple[Architecture, PathFeatures, np.ndarray]:
    """Features with a signal in the first path, and labels ±1."""
    generator = np.random.default_rng(seed)
    arch = Architecture(heads, widths, variances)
    xi = generator.normal(size=(examples, arch.paths, token_width))
    labels = np.sign(xi[:, 0, 0] + 0.3 * generator.normal(size=examples))
    return arch, PathFeatures.from_attentioned_inputs(xi), labels


def dense_kernel(arch: Architecture, xi: np.ndarray, order_parameter: np.ndarray, other: np.ndarray | None = None):
    """K(U) straight from its definition (learning §2), with nothing clever."""
    other = xi if other is None else other
    pair = np.einsum("man,vbn->abmv", xi, other) * arch.variances[0] / xi.shape[2]
    return np.einsum("ab,abmv->mv", order_parameter, pair) / arch.paths


def dense_action(arch: Architecture, xi: np.ndarray, labels: np.ndarray, grams, temperature: float) -> float:
    """S straight from its definition in the raw matrices U^1..U^{L+1} (learning §3), not divided by a width."""
    covariance = dense_kernel(arch, xi, grams[0]) + temperature * np.eye(len(labels))
    total = np.linalg.slogdet(covariance)[1] + labels @ np.linalg.solve(covariance, labels)
    readout = float(np.squeeze(grams[-1]))
    total += arch.widths[-1] * (readout / arch.variances[-1] - np.log(readout))
    for layer, heads in enumerate(arch.heads):
        above = grams[layer + 1]
        inner = np.trace(np.linalg.solve(np.kron(np.eye(heads), above), grams[layer])) / arch.variances[layer + 1]
        logs = -np.linalg.slogdet(grams[layer])[1] + heads * np.linalg.slogdet(above)[1]
        total += arch.widths[layer] * (inner + logs)
    return float(total)

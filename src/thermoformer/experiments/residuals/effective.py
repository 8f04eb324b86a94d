"""The effective theory of networks with norms inside: each norm replaced by its mean-field value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...learning import Architecture, PathFeatures


def effective_features(
    arch: Architecture, x: Any, attention: Sequence[Any], layer_norm: str
) -> tuple[PathFeatures, np.ndarray]:
    """Attentioned inputs of a network with norms inside, and the last norm of every example [example].

    In a wide network the N entries of a token are independent given the tokens x, and the square of its norm over N is
    their variance. The variances follow from layer to layer, each with the norms of the layers below:
    C⁰ = σ0² x xᵀ/N0 and C^l = C^{l−1} + (σ_l²/H_l) Σ_h A^{l,h} Ĉ^{l−1} A^{l,h}ᵀ, with the first term if there are skips
    and Ĉ the normalised one. Given these numbers the network is linear in its tokens, and a sum over paths.

    Arguments:
        x: tokens [example, token, feature].
        attention: one array [example, head, query, key] per layer.
        layer_norm: as in `forward`: "pre", "rms" or "post".
    """
    x, inside, one = np.asarray(x), layer_norm != "post", np.ones(np.shape(x)[:2])
    covariance = arch.variances[0] / x.shape[2] * x @ x.transpose(0, 2, 1)
    layers, norms = [], _norms(covariance)
    for given, variance in zip(attention, arch.variances[1:], strict=False):
        heads = np.asarray(given) * (1 / norms if inside else one)[:, None, None]
        added = variance / heads.shape[1] * (heads @ covariance[:, None] @ heads.transpose(0, 1, 3, 2)).sum(axis=1)
        covariance = covariance + added if arch.skip else added
        norms = _norms(covariance)
        after = one if inside else 1 / norms
        covariance = covariance * after[:, :, None] * after[:, None]
        layers.append((heads, after))
    weights = np.zeros((len(x), 1, x.shape[1]))
    weights[:, 0, -1] = 1 / norms[:, -1] if inside else 1
    # From the top layer down: the choice in the layer just added becomes the slowest index, the way past it first.
    for heads, after in reversed(layers):
        weights = weights * after[:, None]
        attended = np.einsum("pat,phts->phas", weights, heads, optimize=True)
        parts = [weights[:, None], attended] if arch.skip else [attended]
        weights = np.concatenate(parts, axis=1).reshape(len(x), -1, x.shape[1])
    return PathFeatures.from_attentioned_inputs(weights @ x), norms[:, -1]


def _norms(covariance: np.ndarray) -> np.ndarray:
    """√C_tt [example, token]; infinite for a token of zeros, so that it stays one."""
    variances = np.diagonal(covariance, axis1=1, axis2=2)
    return np.where(variances > 0, np.sqrt(variances), np.inf)

"""Teachers, their inputs and labels, and how their output splits into pairs of paths."""

from __future__ import annotations

import numpy as np

from ...learning import (
    Architecture,
    PathFeatures,
    effective_path_weights,
    order_parameter_from_weights,
    prior_weights,
    random_attention,
)
from ..sampled import whole_key
from .config import CASES, HEADS, MISSING, MORE_HEADS, UNUSED, UNUSED_HEAD, TeacherConfig

# Examples whose attention is computed at once, which bounds the memory.
AT_ONCE = 10_000


def attentioned_inputs(config: TeacherConfig, teacher: int, width: int, part: str, examples: int) -> np.ndarray:
    """ξ [example, path, feature] of the network with one more head; its first paths are those of the student.

    Arguments:
        part: "training" or "test".
    """
    random = np.random.default_rng((config.seed, teacher, width, ("training", "test").index(part)))
    pieces = []
    for first in range(0, examples, AT_ONCE):
        x = random.normal(size=(min(AT_ONCE, examples - first), config.tokens, config.token_width))
        attention = [
            random_attention(x, heads, key=whole_key(config.seed, teacher, width, layer), scale=config.attention_scale)
            for layer, heads in enumerate(MORE_HEADS)
        ]
        pieces.append(np.asarray(PathFeatures.from_attention(x, attention).values))
    return np.concatenate(pieces)


def teacher_network(config: TeacherConfig, case: str, teacher: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The readout w [path, feature] of a teacher, f = Σ_π w_π·ξ_π, and its U in the student's normalisation.

    Its weights are one draw of the prior. Without the unused head the others stay as they are.
    """
    arch, student = Architecture(MORE_HEADS if case == MISSING else HEADS, width), Architecture(HEADS, width)
    key = whole_key(config.seed, teacher, width, 2 + CASES.index(case))
    weights = prior_weights(arch, config.token_width, key=key)
    if case == UNUSED:
        layer, head = UNUSED_HEAD
        used = np.arange(HEADS[layer])[:, None, None] != head
        values = [value * used if index == layer else value for index, value in enumerate(weights.values)]
        weights = weights._replace(values=tuple(values))
    vectors = np.asarray(effective_path_weights(arch, weights))
    readout = vectors @ np.asarray(weights.embedding) / np.sqrt(arch.paths * width * config.token_width)
    # The kernel has U/Π, which is what teacher and student must agree on.
    order = np.asarray(order_parameter_from_weights(arch, weights)) * student.paths / arch.paths
    return readout, order[: student.paths, : student.paths]


def output_of(readout: np.ndarray, xi: np.ndarray) -> np.ndarray:
    """f = Σ_π w_π·ξ_π [example] of a readout, whose paths are the first ones of ξ."""
    return np.einsum("xai,ai->x", xi[:, : len(readout)], readout, optimize=True)


def kernel_shares(order: np.ndarray, xi: np.ndarray, output: np.ndarray) -> np.ndarray:
    """The share of every pair of paths in fᵀKf: U_ππ' fᵀC_ππ'f over its sum, [path, path].

    Arguments:
        order: U.
        xi: of the student's paths, [example, path, feature].
        output: f, the teacher's output without noise.
    """
    aligned = np.einsum("x,xai->ai", output, xi)
    parts = order * (aligned @ aligned.T)
    return parts / parts.sum()


def output_shares(readout: np.ndarray, xi: np.ndarray) -> np.ndarray:
    """The share of every pair of paths in ⟨f²⟩: ⟨c_π c_π'⟩ over its sum, with c_π = w_π·ξ_π, [path, path]."""
    contributions = np.einsum("xai,ai->xa", xi, readout)
    parts = contributions.T @ contributions
    return parts / parts.sum()


def irreducible_error(xi: np.ndarray, output: np.ndarray) -> float:
    """The mean squared error of the best linear function of ξ, without the bias of fitting it on the same examples."""
    flat = xi.reshape(len(xi), -1)
    left = output - flat @ np.linalg.lstsq(flat, output)[0]
    return float(np.sum(left**2) / (len(xi) - flat.shape[1]))

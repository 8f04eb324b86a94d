"""What the experiments on dynamics share: the paper's network and start, and diagrams computed part by part."""

from __future__ import annotations

import jax

from ..dynamics import Features, MeanField, Window, orbit

GAMMA, EPSILON = 220.0, 0.02
# What the reference runs of the paper's system found: where the 4-cycle of the positions loses its stability, and the
# multipliers of its four steps there.
NEIMARK_SACKER, NEIMARK_SACKER_MULTIPLIER = 1.2434445478, 0.05063 + 0.99872j


def paper_model(beta: float, gamma: float = GAMMA, epsilon: float = EPSILON) -> MeanField:
    """The mean-field map of the paper's features."""
    return MeanField(Features.paper(), beta=beta, gamma=gamma, epsilon=epsilon)


def paper_start(beta: float, steps: int, gamma: float = GAMMA, epsilon: float = EPSILON) -> Window:
    """The paper's rule: the final window of a long orbit at the largest β, itself begun from the first pattern of o."""
    model = paper_model(beta, gamma, epsilon)
    return orbit(model, model.token(), steps=1, transient=steps).final_state


def usual_parts(parts: int) -> int:
    """The number of parts of a diagram: the given one on a CPU, one on an accelerator, which a whole diagram fills."""
    return parts if jax.default_backend() == "cpu" else 1

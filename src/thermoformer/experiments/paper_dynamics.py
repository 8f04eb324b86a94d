"""What the experiments on dynamics share: the paper's network and start, and diagrams computed part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .._validation import fail, real_array
from ..dynamics import Features, MeanField, Window, orbit

PAPER = "Poc-López, Aguilera, Dynamical mean-field theory of self-attention neural networks, arXiv 2406.07247"
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


def check_numbers(record: Any, names: Sequence[str], ranges: Sequence[str] = ()) -> None:
    """The named fields of a config are finite numbers, ε in [0, 1]; ranges are a lower and a higher number."""
    for name in ranges:
        low, high = getattr(record, name)
        if not (np.isfinite([low, high]).all() and low < high):
            raise fail(name, (low, high), "a lower and a higher number")
    for name in names:
        value = float(real_array(name, getattr(record, name), ()))
        if name == "epsilon" and not 0 <= value <= 1:
            raise fail(name, value, "a number from 0 to 1")


def usual_parts(parts: int) -> int:
    """So many parts on a CPU, where each takes a while; one on an accelerator, which a whole diagram just fills."""
    return parts if jax.default_backend() == "cpu" else 1

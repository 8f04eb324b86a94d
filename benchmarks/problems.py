"""The problems that the benchmarks share."""

from __future__ import annotations

import math

import numpy as np

from thermoformer.learning import PathFeatures, bilinear_attention
from thermoformer.tasks import HiddenMarkovTask


def markov(examples: int = 100, seed: int = 0) -> tuple[PathFeatures, np.ndarray]:
    """The hidden-Markov task with 4 paths (heads 2, 2) and token width 231."""
    task = HiddenMarkovTask()
    data = task.sample(examples, seed=seed)
    first = np.stack([task.good_head(), task.random_head(1)])
    second = np.stack([task.uniform_head(), task.random_head(2)])
    pieces = []
    for start in range(0, examples, 500):
        x = data.x[start : start + 500]
        layers = [bilinear_attention(x, first), bilinear_attention(x, second)]
        pieces.append(np.asarray(PathFeatures.from_attention(x, layers).values))
    return PathFeatures.from_attentioned_inputs(np.concatenate(pieces)), data.labels


def made(examples: int, heads: tuple[int, ...], token_width: int, seed: int = 0, tokens: int = 8):
    """Random tokens under random attention, labels from a teacher on three of the paths."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(examples, tokens, token_width))
    attention = generator.dirichlet(np.full(tokens, 0.5), size=(examples, math.prod(heads)))
    xi = np.matmul(attention, x)
    labels = np.where(xi[:, :3].sum(1) @ generator.normal(size=token_width) > 0, 1.0, -1.0)
    return PathFeatures.from_attentioned_inputs(xi), labels

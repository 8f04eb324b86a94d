"""How fast models are, measured side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .._validation import fail, positive_integer
from .data import Examples
from .passes import reading, without_cache


def measured_speed(
    models: Mapping[str, Any],
    examples: Examples,
    *,
    batch: int = 64,
    repeats: int = 5,
    device: torch.device | str | None = None,
) -> dict[str, float]:
    """Examples per second of each model, forward passes only: the median over repeats.

    The models take turns, so that what else the machine does falls on all of them alike; each runs once unmeasured.
    Ratios between models of one call are worth more than the numbers themselves.

    Arguments:
        models: by name.
        examples: what they read, tokenised and batched ahead.
        repeats: passes over the examples by each model.
        device: as in `pooled`.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=9)
        >>> speeds = measured_speed({"whole": BertModel(BertConfig(**sizes))}, Examples.from_tokens([[1, 2, 3]]))
        >>> speeds["whole"] > 0
        True
    """
    if not models:
        raise fail("models", "none", "one or more")
    positive_integer("repeats", repeats)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for repeat in range(repeats + 1):
        for name, model in models.items():
            with reading(model, examples, device) as place:
                batches = [inputs for _, inputs in examples.batches(batch, place)]
                _wait(place)
                start = time.perf_counter()
                for inputs in batches:
                    model(**inputs, **without_cache(inputs, model))
                _wait(place)
                if repeat:
                    seconds[name].append(time.perf_counter() - start)
    return {name: len(examples) / float(np.median(times)) for name, times in seconds.items()}


def _wait(place: torch.device) -> None:
    """A GPU works on after the call returns."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)

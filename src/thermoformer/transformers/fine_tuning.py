"""A classifier trained from a pretrained model, whole or pruned: AdamW with a warm-up and a linear decay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from .._progress import Progress, shown_progress
from .._validation import fail, positive_integer, positive_number
from .data import Examples
from .passes import check_fits, padded_with, run

# Share of the steps over which the rate rises from zero, decay of the weights, and largest norm of the gradient: the
# settings with which models of this kind are usually trained.
_WARM_UP = 0.1
_DECAY = 0.01
_LARGEST_NORM = 1.0


def train_classifier(
    model: Any,
    train: Examples,
    *,
    epochs: int = 4,
    rate: float = 1e-4,
    batch: int = 32,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Progress | bool | None = None,
) -> np.ndarray:
    """Trains a classifier with a head of its own on labelled examples, in place; returns the loss of every step.

    Arguments:
        model: one of transformers' models for sequence or image classification, pruned or not.
        epochs: passes over the examples.
        rate: the largest step of AdamW.
        batch: examples of a step.
        seed: of the order of examples and of dropout.
        device: where to train; the model is moved there and stays there.
        progress: called as progress(steps done, steps in all, message), or True or False for a bar or none.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
        >>> model = BertForSequenceClassification(BertConfig(**sizes))
        >>> texts = {"input_ids": tuple(np.array([1, 3 + place % 2]) for place in range(8))}
        >>> data = Examples(texts, np.arange(8) % 2, 2, "labelled")
        >>> train_classifier(model, data, epochs=2, batch=4, progress=False).shape
        (4,)
    """
    labels = train.need_labels()
    if not hasattr(model, "num_labels") or not hasattr(model, "base_model"):
        raise TypeError(str(fail("model", f"a {type(model).__name__}", "a classifier of transformers")))
    if train.classes > model.num_labels:
        raise fail("model", f"a head for {model.num_labels} classes", f"{train.classes}, as the examples have")
    check_fits(model, train)
    positive_integer("epochs", epochs)
    positive_integer("batch", batch)
    positive_number("rate", rate)
    place = model.to(device).device if device is not None else model.device
    steps = epochs * math.ceil(len(train) / batch)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=_DECAY)
    order = np.random.default_rng(seed)
    losses: list[float] = []
    before = model.training
    model.train()
    forked = [place] if place.type == "cuda" else []
    with shown_progress(progress) as report, torch.random.fork_rng(devices=forked), padded_with(model, train):
        torch.manual_seed(seed)
        try:
            for _ in range(epochs):
                places = order.permutation(len(train))
                for start in range(0, len(train), batch):
                    some = places[start : start + batch]
                    rise = (len(losses) + 1) / max(1.0, _WARM_UP * steps)
                    for group in optimiser.param_groups:
                        group["lr"] = rate * min(1.0, rise) * (1 - len(losses) / steps)
                    found, inputs = next(train.subset(some).batches(len(some), place))
                    logits = run(model, inputs).logits.float()
                    loss = cross_entropy(logits, torch.from_numpy(labels[some[found]]).to(place))
                    losses.append(float(loss.detach()))
                    if not math.isfinite(losses[-1]):
                        raise fail("rate", rate, f"a smaller one: the loss is {losses[-1]} at step {len(losses)}")
                    optimiser.zero_grad()
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), _LARGEST_NORM)
                    optimiser.step()
                    report(len(losses), steps, f"loss {losses[-1]:.3f}")
        finally:
            model.train(before)
    return np.array(losses)

"""The order in which heads are removed: by one score, or scored again as heads go."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .._progress import Progress, shown_progress, silent
from .._validation import fail, nonnegative_integer, one_of, positive_integer, true_or_false
from .data import Examples
from .families import Head, adapter_for
from .goals import Expansion
from .scores import METHODS, Scoring

# Rounds in which all heads of a model would go, where heads are scored again.
ROUNDS = 12


def removal_order(
    model: Any,
    data: Examples,
    method: str = "evidence",
    *,
    count: int | None = None,
    every: int | None = None,
    within_layers: bool = False,
    goal: str = "auto",
    readout: str = "mean",
    seed: int = 0,
    batch: int = 64,
    device: torch.device | str | None = None,
    progress: Progress | bool | None = None,
) -> list[Head]:
    """Heads in the order in which to remove them.

    After every few removals the heads left are scored again, since later layers then see other inputs. Where the
    method is "evidence" and the evidence has a curvature, the heads of a round are chosen one by one with the
    quadratic form, so that of two heads that do the same only one goes.

    Arguments:
        method: as in `score_heads`.
        count: how many heads to remove; all but one where absent.
        every: removals between scorings: a twelfth of the heads where absent. 0 scores once and for all.
        within_layers: take from all layers alike: no layer is more than one head ahead of another, as far as it has
            heads. It tells which heads of a layer matter, with depth out of the question.
        goal, readout, seed, batch, device, progress: as in `score_heads`.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=9)
        >>> model, data = BertModel(BertConfig(**sizes)), Examples.from_tokens([[1, 2]])
        >>> removal_order(model, data, "deepest"), removal_order(model, data, "deepest", count=2, within_layers=True)
        ([(1, 0), (1, 1), (0, 0)], [(1, 0), (0, 0)])
    """
    one_of("method", method, tuple(METHODS))
    heads = adapter_for(model).all_heads()
    if len(heads) < 2:
        raise fail("model", f"a model with {len(heads)} heads", "two heads or more to choose among")
    count = len(heads) - 1 if count is None else positive_integer("count", count)
    if count >= len(heads):
        raise fail("count", count, f"at most {len(heads) - 1}, so that one of the {len(heads)} heads is left")
    every = rounds_of(len(heads)) if every is None else every
    if isinstance(every, bool) or not isinstance(every, (int, np.integer)) or every < 0:
        raise fail("every", every, "a whole number of removals, 0 for one scoring")
    # Rules that see neither data nor other heads need no second look.
    once = every == 0 or method in ("magnitude", "deepest", "shallowest", "random")
    true_or_false("within_layers", within_layers)
    mask = np.ones(len(heads))
    layers = np.array([layer for layer, _ in heads])
    options = {"readout": readout, "batch": batch, "device": device, "seed": nonnegative_integer("seed", seed)}
    order: list[int] = []
    with shown_progress(progress) as report:
        # Scorings inside an order show no progress of their own.
        scoring = Scoring(model, data, goal, options, mask, silent)
        while len(order) < count:
            report(len(order), count, f"heads removed by {method}")
            scoring.mask = mask.copy()
            some = count - len(order) if once else min(int(every), count - len(order))
            order += _chosen(scoring, method, some, _Quota(layers, mask) if within_layers else None)
            mask[order] = 0.0
    return [heads[place] for place in order]


def rounds_of(heads: int) -> int:
    """Removals between scorings, where not said otherwise."""
    return max(1, heads // ROUNDS)


class _Quota:
    """Which layers may lose a head next: those that have lost the fewest and have one left."""

    def __init__(self, layers: np.ndarray, mask: np.ndarray) -> None:
        self.layers = layers
        self.lost = np.bincount(layers, 1 - mask)
        self.size = np.bincount(layers)

    def allowed(self) -> np.ndarray:
        """Whether each head may go [head]."""
        open_layers = self.lost < self.size
        least = self.lost[open_layers].min()
        return (open_layers & (self.lost == least))[self.layers]

    def take(self, head: int) -> None:
        """A head goes."""
        self.lost[self.layers[head]] += 1


def _chosen(scoring: Scoring, method: str, count: int, quota: _Quota | None) -> list[int]:
    """The heads of one round, by the places they have among all heads."""
    if method == "evidence":
        expansion = scoring.expansion()
    else:
        values = METHODS[method](scoring)
        expansion = Expansion(values, np.zeros((len(values), len(values))))
    return greedy(expansion, scoring.mask > 0, count, quota)


def greedy(expansion: Expansion, left: np.ndarray, count: int, quota: _Quota | None = None) -> list[int]:
    """Heads that cost the least together by a quadratic form, chosen one after the other.

    Arguments:
        expansion: of the log evidence around the mask.
        left: which heads can go [head].
        count: how many do.

    Example:
        >>> slope, curvature = np.array([0.0, 0.0, 0.5]), np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> greedy(Expansion(slope, curvature), np.ones(3, bool), 2)
        [0, 2]
    """
    cost = expansion.losses()
    left, chosen = left.copy(), []
    for _ in range(count):
        allowed = left & quota.allowed() if quota is not None else left
        head = int(np.argmin(np.where(allowed, cost, np.inf)))
        chosen.append(head)
        left[head] = False
        cost = cost + expansion.curvature[:, head]
        if quota is not None:
            quota.take(head)
    return chosen

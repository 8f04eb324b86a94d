"""Which heads matter: scores by evidence, by the theory of attention paths, and by the usual rules (transformers).

An order in which to remove heads follows from one score, or from scoring again as heads go.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from .._progress import Progress, advanced_by_passes, shown_progress, silent
from .._validation import fail, nonnegative_integer, one_of, positive_integer, true_or_false
from ..learning.scores import HeadScores
from .contributions import POSITIONS, head_contributions
from .data import IGNORED, Examples, examples_of
from .families import Head, adapter_for, checked_heads
from .goals import Expansion, Goal, Loss, TokensGoal, goal_for
from .masks import head_masks
from .passes import reading
from .readout_evidence import class_targets, standardised
from .theory import path_theory

# The theory's sizes (transformers): examples, width and temperature, and outputs of the random codes of tokens.
THEORY_EXAMPLES = 600
THEORY_WIDTH = 20.0
THEORY_TEMPERATURE = 0.05
CODES = 16

# Scorings that it takes to remove all heads of a model, where heads are scored again.
ROUNDS = 12
# Rules that see neither data nor other heads, so that scoring again changes nothing.
_UNCHANGED = ("magnitude", "deepest", "shallowest", "random")


def score_heads(
    model: Any,
    data: Any,
    method: str = "evidence",
    *,
    removed: Sequence[Head] = (),
    goal: str | Loss = "auto",
    readout: str = "mean",
    seed: int = 0,
    batch: int = 64,
    device: torch.device | str | None = None,
    progress: Progress | bool | None = None,
) -> HeadScores:
    """A score for every head of a model: the lowest is the first to go.

    Methods of the theory:

    - "evidence": the log evidence lost when the head is removed, from the slope of ln p in its mask; for a model with a
      readout of its own, from the curvature too. A negative score favours removing the head.
    - "evidence_exact": the same with each head removed in turn.
    - "theory": U_ππ of the theory with one path per head, from what the head adds at the readout.

    Others to compare with:

    - "gradient": |∂ loss / ∂ mask| averaged over examples (Michel, Levy and Neubig 2019).
    - "gradient_by_layer": the same divided by its norm within the layer, as they advise.
    - "magnitude": the norm of the head's value weights times its output weights.
    - "ablation": the loss gained with each head removed in turn.
    - "deepest", "shallowest": layers from the last or from the first on.
    - "random": by the seed.

    Arguments:
        data: `Examples`: labelled ones, or sequences of tokens for a language model; or a data set or a loader that
            `Examples.from_dataset` reads.
        removed: heads that are switched off already; they get no score.
        goal: what the model is for: "probe", "classifier", "language", "auto" or a loss, as in `goal_for`.
        readout: of tokens, "mean", "first" or "last", for a probe, and for the theory of a probe.
        seed: of the random scores, and of what other methods draw.
        batch: examples at once.
        device: where to compute; the model is moved there.
        progress: called as progress(done, all, message), or True or False for a bar or none.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=9)
        >>> score_heads(BertModel(BertConfig(**sizes)), Examples.from_tokens([[1, 2]]), "deepest").ascending()[0]
        (1, 0)
    """
    one_of("method", method, tuple(METHODS))
    heads = adapter_for(model).all_heads()
    gone = set(checked_heads(adapter_for(model), removed, "removed"))
    if len(gone) == len(heads):
        raise fail("removed", "every head", "at least one head left to score")
    left = np.array([head not in gone for head in heads])
    options = {"readout": readout, "batch": batch, "device": device, "seed": nonnegative_integer("seed", seed)}
    with shown_progress(progress) as shown, advanced_by_passes(shown) as report:
        values = METHODS[method](Scoring(model, examples_of(data), goal, options, left.astype(float), report))
    return HeadScores(tuple(head for head in heads if head not in gone), np.asarray(values)[left])


def removal_order(
    model: Any,
    data: Any,
    method: str = "evidence",
    *,
    count: int | None = None,
    every: int | None = None,
    within_layers: bool = False,
    quick: bool = False,
    goal: str | Loss = "auto",
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
        count: how many heads to remove; by default all but one.
        every: removals between scorings; by default a twelfth of the heads. 0 scores only once.
        within_layers: take from all layers alike: no layer is more than one head ahead of another, as far as it has
            heads. This compares the heads of a layer with each other only.
        quick: of a language model and "evidence", rounds after the first take the mean of its curvature and of an
            estimate from the slopes of the examples. They take a third of the time.
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
    every = max(1, len(heads) // ROUNDS) if every is None else nonnegative_integer("every", every)
    step = count if every == 0 or method in _UNCHANGED else every
    true_or_false("quick", quick)
    layers = np.array([layer for layer, _ in heads]) if true_or_false("within_layers", within_layers) else None
    options = {"readout": readout, "batch": batch, "device": device, "seed": nonnegative_integer("seed", seed)}
    order: list[int] = []
    first: Expansion | None = None
    with shown_progress(progress) as shown, advanced_by_passes(shown) as report:
        # Scorings inside an order show no progress of their own.
        scoring = Scoring(model, examples_of(data), goal, options, np.ones(len(heads)), silent)
        while len(order) < count:
            report(len(order) // step, -(-count // step), f"scores by {method}, {len(order)} of {count} heads removed")
            if method == "evidence":
                expansion = scoring.expansion(earlier=first)
                first = expansion if quick and first is None else first
            else:
                expansion = Expansion(METHODS[method](scoring), np.zeros((len(heads), len(heads))))
            order += greedy(expansion, scoring.mask > 0, min(step, count - len(order)), layers)
            scoring.mask[order] = 0.0
    return [heads[place] for place in order]


def greedy(expansion: Expansion, left: np.ndarray, count: int, layers: np.ndarray | None = None) -> list[int]:
    """Some of the heads left [head] that cost the least together by a quadratic form, chosen one after the other.

    With the layer of each head given, heads are taken from those layers that have lost the fewest.
    """
    cost, left = expansion.losses(), left.copy()
    chosen: list[int] = []
    for _ in range(count):
        allowed = left
        if layers is not None:
            lost = np.bincount(layers, ~left)[layers]
            allowed = left & (lost == lost[left].min())
        chosen.append(int(np.argmin(np.where(allowed, cost, np.inf))))
        left[chosen[-1]] = False
        cost = cost + expansion.curvature[:, chosen[-1]]
    return chosen


@dataclass(eq=False)
class Scoring:
    """What a method scores with: model and data, a mask over all heads, and the goal where the method needs it."""

    model: Any
    data: Examples
    wanted: str | Loss
    options: dict[str, Any]
    mask: np.ndarray
    report: Any

    @cached_property
    def goal(self) -> Goal:
        """The goal; made when a method first asks for it, since some rules need no data."""
        goal = goal_for(self.model, self.data, self.wanted, **self.options)
        goal.report = self.report
        return goal

    @cached_property
    def heads(self) -> list[Head]:
        """All heads of the model, those switched off too."""
        return adapter_for(self.model).all_heads()

    @property
    def layers(self) -> np.ndarray:
        """The layer of each head."""
        return np.array([layer for layer, _ in self.heads])

    def expansion(self, earlier: Expansion | None = None) -> Expansion:
        """The log evidence around the mask."""
        return self.goal.expansion(self.mask, earlier=earlier)

    def without_each(self, value: Callable[[np.ndarray], float], name: str) -> np.ndarray:
        """A value with each head that is left removed in turn, less the value with none removed [head]."""
        whole = value(self.mask)
        found = np.zeros(len(self.mask))
        left = np.flatnonzero(self.mask)
        for done, head in enumerate(left):
            self.report(done, len(left), f"{name} without each head")
            without = self.mask.copy()
            without[head] = 0.0
            found[head] = value(without) - whole
        return found


def _theory(scoring: Scoring) -> np.ndarray:
    """U_ππ of the heads left; the contributions are those under the mask."""
    scoring.report(0, 2, "contributions of heads")
    contributions, targets = _contributions_and_targets(scoring)
    left = np.flatnonzero(scoring.mask)
    scoring.report(1, 2, "theory")
    sizes = {"width": THEORY_WIDTH, "temperature": THEORY_TEMPERATURE, "device": scoring.options["device"]}
    found = path_theory(contributions[:, left], targets, **sizes)
    if not found.converged:
        note = f"theory: the order parameter has not converged ({found.message}); the scores are of the last step"
        warnings.warn(note, RuntimeWarning, stacklevel=3)
    values = np.zeros(len(scoring.mask))
    values[left] = np.diagonal(found.order_parameter)
    return values


def _gradient(scoring: Scoring) -> np.ndarray:
    return np.abs(scoring.goal.slopes(scoring.mask)).mean(axis=0)


def _gradient_by_layer(scoring: Scoring) -> np.ndarray:
    values = _gradient(scoring) * scoring.mask
    norms = np.sqrt(np.bincount(scoring.layers, values**2))
    return values / np.maximum(norms, np.finfo(float).tiny)[scoring.layers]


def _magnitude(scoring: Scoring) -> np.ndarray:
    adapter = adapter_for(scoring.model)
    norms = []
    for layer, head in scoring.heads:
        output = adapter.projection_weight(layer)[adapter.columns(layer, head)].detach().float()
        norms.append(float(torch.linalg.matrix_norm(adapter.value_weight(layer, head).detach().float() @ output)))
    return np.array(norms)


METHODS: dict[str, Callable[[Scoring], np.ndarray]] = {
    "evidence": lambda scoring: scoring.expansion().losses(),
    "evidence_exact": lambda scoring: -scoring.without_each(scoring.goal.log_evidence, "evidence"),
    "theory": _theory,
    "gradient": _gradient,
    "gradient_by_layer": _gradient_by_layer,
    "magnitude": _magnitude,
    "ablation": lambda scoring: scoring.without_each(scoring.goal.loss, "loss"),
    "deepest": lambda scoring: -scoring.layers.astype(float),
    "shallowest": lambda scoring: scoring.layers.astype(float),
    "random": lambda scoring: np.random.default_rng(scoring.options["seed"]).random(len(scoring.mask)),
}


def _contributions_and_targets(scoring: Scoring) -> tuple[np.ndarray, np.ndarray]:
    """What the theory learns from: contributions ξ [row, head, feature] and targets Y [row, output].

    For classes a row is an example and a column a class. Where tokens are predicted a row is a position drawn at
    random. For a language model Y is then the random code of the predicted token: as near for two tokens as for any
    others.
    """
    model, data, goal, options = scoring.model, scoring.data, scoring.goal, scoring.options
    generator = np.random.default_rng(options["seed"])
    tokens, count = goal if isinstance(goal, TokensGoal) else None, 0
    # A classifier's own head reads one token.
    readouts = {"classifier": adapter_for(model).parts.read}
    readout = "positions" if tokens else readouts.get(goal.name) or options["readout"]
    if tokens:
        counts = tokens.counts
        data, counts = data.subset(np.flatnonzero(counts)), counts[counts > 0]
        count = max(1, min(int(counts.min()), -(-THEORY_EXAMPLES // len(data))))
    elif len(data) > THEORY_EXAMPLES:
        data = data.subset(np.sort(generator.choice(len(data), THEORY_EXAMPLES, replace=False)))
    # By batch: the places of the examples, or the targets of their tokens.
    read: list[np.ndarray] = []

    def batches(place: torch.device) -> Iterator[dict[str, torch.Tensor]]:
        for places, inputs in data.batches(options["batch"], place):
            if tokens:
                wanted = data.token_labels(places, inputs)[:, int(tokens.following) :].cpu().numpy()
                among = (np.flatnonzero(row != IGNORED) for row in wanted)
                chosen = np.stack([generator.choice(ones, count, replace=False) for ones in among])
                inputs[POSITIONS] = torch.from_numpy(chosen).to(place)
                places = np.take_along_axis(wanted, chosen, 1).ravel()
            read.append(places)
            yield inputs

    mask = torch.as_tensor(scoring.mask, dtype=torch.float32)
    with reading(model, data, options["device"]) as place, head_masks(model, mask):
        found = head_contributions(model, batches(place), readout=readout, progress=False).values
    places = np.concatenate(read)
    if tokens:
        return found, _token_codes(places, generator) if goal.name == "language" else class_targets(places).numpy()
    targets = class_targets(data.labels).numpy() if data.kind == "labelled" else standardised(data.labels)
    return found[np.argsort(places, kind="stable")], targets


def _token_codes(tokens: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A random code of normal numbers for each token that occurs [row, code], centred, of unit variance."""
    found, places = np.unique(tokens, return_inverse=True)
    if len(found) < 2:
        raise fail("data", "one and the same token everywhere", "two different tokens or more to predict")
    return standardised(generator.normal(size=(len(found), CODES))[places])

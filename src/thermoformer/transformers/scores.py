"""Which heads matter: scores by evidence, by the theory of attention paths, and by the usual rules (transformers)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from .._progress import Progress, shown_progress
from .._validation import fail, nonnegative_integer, one_of
from ..learning.scores import HeadScores
from .contributions import POSITIONS, head_contributions
from .data import Examples
from .families import Head, adapter_for, checked_heads
from .goals import Expansion, Goal, goal_for
from .masks import head_masks
from .passes import reading
from .readout_evidence import class_targets, standardised
from .theory import path_theory

# The theory's sizes (transformers): examples, width and temperature, and outputs of the random codes of tokens.
THEORY_EXAMPLES = 600
THEORY_WIDTH = 20.0
THEORY_TEMPERATURE = 0.05
CODES = 16


def score_heads(
    model: Any,
    data: Examples,
    method: str = "evidence",
    *,
    removed: Sequence[Head] = (),
    goal: str = "auto",
    readout: str = "mean",
    seed: int = 0,
    batch: int = 64,
    device: torch.device | str | None = None,
    progress: Progress | bool | None = None,
) -> HeadScores:
    """A score for every head of a model: the lowest is the first to go.

    Methods of the theory:

    - "evidence": the log evidence that the data would lose with the head, from the slope of ln p in its mask; where the
      model's own readout stays, with the curvature too. Below zero, the data prefer the head gone.
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
        data: labelled examples, or sequences of tokens for a language model.
        removed: heads that are switched off already; they get no score.
        goal: what the model is for: "probe", "classifier", "language" or "auto", as in `goal_for`.
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
    mask = np.array([head not in gone for head in heads], float)
    options = {"readout": readout, "batch": batch, "device": device, "seed": nonnegative_integer("seed", seed)}
    with shown_progress(progress) as report:
        values = METHODS[method](Scoring(model, data, goal, options, mask, report))
    left = mask > 0
    return HeadScores(tuple(head for head, one in zip(heads, left, strict=True) if one), np.asarray(values)[left])


@dataclass(eq=False)
class Scoring:
    """What a method scores with: model and data, a mask over all heads, and the goal where the method needs it."""

    model: Any
    data: Examples
    wanted: str
    options: dict[str, Any]
    mask: np.ndarray
    report: Any

    @cached_property
    def goal(self) -> Goal:
        """The goal; made when a method first asks for it, since some rules need no data."""
        return goal_for(self.model, self.data, self.wanted, **self.options)

    @cached_property
    def heads(self) -> list[Head]:
        """All heads of the model, those switched off too."""
        return adapter_for(self.model).all_heads()

    def expansion(self) -> Expansion:
        """The log evidence around the mask."""
        self.report(0, 1, "evidence")
        return self.goal.expansion(self.mask)

    def without_each(self, value: Callable[[np.ndarray], float], name: str) -> np.ndarray:
        """A value with each head that is left removed in turn, less the value with none removed [head]."""
        whole = value(self.mask)
        found = np.zeros(len(self.mask))
        left = np.flatnonzero(self.mask)
        for done, head in enumerate(left):
            self.report(done, len(left), name)
            without = self.mask.copy()
            without[head] = 0.0
            found[head] = value(without) - whole
        return found


def _evidence(scoring: Scoring) -> np.ndarray:
    return scoring.expansion().losses()


def _evidence_exact(scoring: Scoring) -> np.ndarray:
    return -scoring.without_each(scoring.goal.log_evidence, "evidence without each head")


def _theory(scoring: Scoring) -> np.ndarray:
    """U_ππ of the heads left; the contributions are those under the mask."""
    scoring.report(0, 2, "contributions of heads")
    contributions, targets = contributions_and_targets(
        scoring.model, scoring.data, scoring.mask, wanted=scoring.goal.name, **scoring.options
    )
    left = np.flatnonzero(scoring.mask)
    scoring.report(1, 2, "theory")
    device = scoring.options["device"]
    found = path_theory(
        contributions[:, left], targets, width=THEORY_WIDTH, temperature=THEORY_TEMPERATURE, device=device
    )
    if not found.converged:
        note = f"theory: the order parameter has not converged ({found.message}); the scores are of the last step"
        warnings.warn(note, RuntimeWarning, stacklevel=4)
    values = np.zeros(len(scoring.mask))
    values[left] = np.diagonal(found.order_parameter)
    return values


def _gradient(scoring: Scoring) -> np.ndarray:
    scoring.report(0, 1, "gradient")
    return np.abs(scoring.goal.slopes(scoring.mask)).mean(axis=0)


def _gradient_by_layer(scoring: Scoring) -> np.ndarray:
    values = _gradient(scoring) * scoring.mask
    layers = np.array([layer for layer, _ in scoring.heads])
    norms = np.sqrt(np.bincount(layers, values**2))
    return values / np.maximum(norms, np.finfo(float).tiny)[layers]


def _magnitude(scoring: Scoring) -> np.ndarray:
    adapter = adapter_for(scoring.model)
    norms = []
    for layer, head in scoring.heads:
        output = adapter.projection_weight(layer)[adapter.columns(layer, head)].detach().float()
        norms.append(float(torch.linalg.matrix_norm(adapter.value_weight(layer, head).detach().float() @ output)))
    return np.array(norms)


def _ablation(scoring: Scoring) -> np.ndarray:
    return scoring.without_each(scoring.goal.loss, "loss without each head")


def _deepest(scoring: Scoring) -> np.ndarray:
    return -np.array([layer for layer, _ in scoring.heads], float)


def _shallowest(scoring: Scoring) -> np.ndarray:
    return np.array([layer for layer, _ in scoring.heads], float)


def _random(scoring: Scoring) -> np.ndarray:
    return np.random.default_rng(scoring.options["seed"]).random(len(scoring.mask))


METHODS: dict[str, Callable[[Scoring], np.ndarray]] = {
    "evidence": _evidence,
    "evidence_exact": _evidence_exact,
    "theory": _theory,
    "gradient": _gradient,
    "gradient_by_layer": _gradient_by_layer,
    "magnitude": _magnitude,
    "ablation": _ablation,
    "deepest": _deepest,
    "shallowest": _shallowest,
    "random": _random,
}


def contributions_and_targets(
    model: Any,
    data: Examples,
    mask: np.ndarray,
    *,
    wanted: str,
    readout: str,
    batch: int,
    device: Any,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """What the theory learns from: contributions ξ [row, head, feature] and targets Y [row, output].

    For classes a row is an example and a column a class. For a language model a row is a position drawn at random, and
    Y the random code of the token that follows: as near for two tokens as for any others.
    """
    generator = np.random.default_rng(seed)
    rows = np.arange(len(data))
    if wanted != "language" and len(rows) > THEORY_EXAMPLES:
        rows = np.sort(generator.choice(rows, THEORY_EXAMPLES, replace=False))
    if wanted == "language":
        some = data.subset(rows)
        positions = max(1, min(int(some.lengths.min()) - 1, -(-THEORY_EXAMPLES // len(some))))
        readout = "positions"
    else:
        some, positions = data.subset(rows), 0
    if wanted == "classifier":
        # What its own head reads.
        readout = adapter_for(model).parts.read
    order: list[np.ndarray] = []
    tokens: list[np.ndarray] = []

    def batches(place: Any) -> Any:
        for places, inputs in some.batches(batch, place):
            order.append(places)
            if positions:
                last = inputs["attention_mask"].sum(1).cpu().numpy() - 1
                chosen = np.stack([generator.choice(end, positions, replace=False) for end in last])
                index = torch.from_numpy(chosen).to(place)
                tokens.append(inputs["input_ids"].gather(1, index + 1).cpu().numpy().ravel())
                inputs = {**inputs, POSITIONS: index}
            yield inputs

    with reading(model, some, device) as place:
        with head_masks(model, torch.as_tensor(mask, dtype=torch.float32, device=place)):
            found = head_contributions(model, batches(place), readout=readout, progress=False).values
    if positions:
        return found, token_codes(np.concatenate(tokens), generator)
    back = np.argsort(np.concatenate(order), kind="stable")
    return found[back], class_targets(some.need_labels()).numpy()


def token_codes(tokens: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A random code of normal numbers for each token that occurs [row, code], centred, of unit variance."""
    found, places = np.unique(tokens, return_inverse=True)
    if len(found) < 2:
        raise fail("data", "one and the same token everywhere", "two different tokens or more to predict")
    return standardised(generator.normal(size=(len(found), CODES))[places])

"""What a pretrained model is wanted for, as functions of a mask over its heads.

A goal knows the loss of the examples under a mask, its slope in the mask for each example, and the log evidence: of a
Bayesian linear readout where a probe is to be fitted, of the model's own readout where it has one. The latter is the
limit of a prior that holds the trained readout fixed: ln p = Σ ln softmax(logits)[target].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from .._progress import Progress, silent
from .._validation import fail, one_of
from .data import IGNORED, Examples, examples_of
from .families import adapter_for
from .judge import features_of, need_outputs, pooled, probe_for
from .masks import head_masks
from .passes import READOUTS, need_token_logits, predicts_next, reading, run
from .probe import LinearProbe, NumberProbe
from .readout_evidence import ReadoutEvidence, class_targets, readout_evidence, standardised

# Sets of tokens drawn from the model itself for its Fisher information.
_FISHER_DRAWS = 4

Inputs = dict[str, torch.Tensor]
# Of the output of a model and a batch, the loss of each example.
Loss = Callable[[Any, Inputs], torch.Tensor]


class Expansion(NamedTuple):
    """The log evidence around a mask: ln p(m) ≈ ln p + slope·δm − ½ δm·curvature·δm.

    Fields:
        slope: [head].
        curvature: [head, head], positive semi-definite (Gauss–Newton); zero where it is left out.
    """

    slope: np.ndarray
    curvature: np.ndarray

    def losses(self) -> np.ndarray:
        """What ln p loses when the mask of one head goes from 1 to 0: slope + ½ curvature, for each head alone."""
        return self.slope + 0.5 * np.diagonal(self.curvature)


class Goal(ABC):
    """The base of the goals; `goal_for` makes the one that fits model and examples.

    Arguments:
        model: of a known family.
        examples: what the heads are scored with.
        readout: of tokens, for a probe.
        batch: examples at once.
        device: where to compute; the model is moved there.
        seed: of what is drawn at random.
    """

    name = ""
    # What the model is judged by.
    measure = "accuracy"

    def __init__(
        self,
        model: Any,
        examples: Examples,
        *,
        readout: str = "mean",
        batch: int = 64,
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> None:
        one_of("readout", readout, READOUTS)
        self.model, self.examples, self.readout = model, examples, readout
        self.batch, self.device, self.seed = batch, device, seed
        self.heads = adapter_for(model).all_heads()
        # Of slopes, the longest passes.
        self.report: Progress = silent

    @abstractmethod
    def loss(self, mask: np.ndarray) -> float:
        """The mean loss of an example, or of a token, under a mask [head]."""

    @abstractmethod
    def slopes(self, mask: np.ndarray) -> np.ndarray:
        """∂ loss / ∂ mask of each example by itself [example, head]."""

    @abstractmethod
    def log_evidence(self, mask: np.ndarray) -> float:
        """ln p(labels | mask)."""

    @abstractmethod
    def expansion(self, mask: np.ndarray, *, earlier: Expansion | None = None) -> Expansion:
        """The log evidence around a mask.

        Arguments:
            earlier: an expansion around fewer removals. Where the curvature costs much more than the slope, that of
                this mask is the mean of that one and of an estimate from the slopes of the examples.
        """

    @contextmanager
    def _passes(
        self, mask: np.ndarray, *, own: bool = False, shared: bool = False
    ) -> Iterator[Iterator[tuple[np.ndarray, Inputs, torch.Tensor]]]:
        """Batches under a mask: the places of their examples, the inputs, and the mask.

        Gradients can be taken in the mask where every example has its own [example, head], or where all share one.
        """
        tensor = torch.as_tensor(np.asarray(mask, np.float32))
        with (
            reading(self.model, self.examples, self.device, gradients=own or shared) as place,
            head_masks(self.model, tensor.to(place)) as masks,
        ):
            tensor = masks.mask.clone().requires_grad_(shared)

            def batches() -> Iterator[tuple[np.ndarray, Inputs, torch.Tensor]]:
                done = 0
                for places, inputs in self.examples.batches(self.batch, place):
                    if own or shared:
                        self.report(done, len(self.examples), "slopes of examples")
                    done += len(places)
                    masks.mask = tensor.expand(len(places), -1).clone().requires_grad_(True) if own else tensor
                    yield places, inputs, masks.mask

            yield batches()

    def _slopes(self, mask: np.ndarray, lost: Callable[[np.ndarray, Inputs], torch.Tensor]) -> np.ndarray:
        """Slopes of a sum over the examples of a batch, each in the mask of its example [example, head]."""
        found = np.empty((len(self.examples), len(self.heads)))
        with self._passes(mask, own=True) as batches:
            for places, inputs, own in batches:
                found[places] = torch.autograd.grad(lost(places, inputs), own)[0].cpu().numpy()
        return found

    def _features(self, inputs: Inputs) -> torch.Tensor:
        """The model's representation, read out, float64 [example, feature]."""
        return features_of(self.model, inputs, self.readout).double()

    def _logits(self, inputs: Inputs) -> torch.Tensor:
        """The logits of the model's own head, in float32."""
        return run(self.model, inputs).logits.float()


class ProbeGoal(Goal):
    """A linear probe is fitted on the features of a model whose weights stay as they are."""

    name = "probe"

    def __init__(self, model: Any, examples: Examples, **options: Any) -> None:
        super().__init__(model, examples, **options)
        self.probe = probe_for(examples)
        self.labels = examples.labels
        if examples.kind == "labelled":
            self.targets = class_targets(self.labels)
        else:
            self.measure = "error"
            if not np.ptp(self.labels, axis=0).any():
                raise fail("labels", "one and the same number", "different numbers to tell apart")
            self.targets = torch.from_numpy(standardised(self.labels))

    def features(self, mask: np.ndarray) -> torch.Tensor:
        """The model's features under a mask, float64 [example, feature]."""
        with head_masks(self.model, torch.as_tensor(np.asarray(mask, np.float32))):
            rows = pooled(self.model, self.examples, readout=self.readout, batch=self.batch, device=self.device)
        return torch.from_numpy(rows).to(next(self.model.parameters()).device, torch.float64)

    def evidence(self, mask: np.ndarray) -> ReadoutEvidence:
        """The evidence of a linear readout of the features under a mask."""
        features = self.features(mask)
        return readout_evidence(features, self.targets.to(features.device))

    def log_evidence(self, mask: np.ndarray) -> float:  # noqa: D102
        return self.evidence(mask).value

    def loss(self, mask: np.ndarray) -> float:
        """The mean loss of examples that the probe did not learn from: each half is judged by the other."""
        features = self.features(mask).cpu().numpy()
        order = np.random.default_rng(self.seed).permutation(len(features))
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        lost = 0.0
        for one, other in (halves, halves[::-1]):
            fitted = self._fitted(features[one], self.labels[one])
            lost += len(other) * fitted.loss(features[other], self.labels[other])
        return lost / len(features)

    def slopes(self, mask: np.ndarray) -> np.ndarray:
        """Slopes of the loss of a probe that was fitted under this mask, and is held fixed."""
        features = self.features(mask)
        affine = self._fitted(features.cpu().numpy(), self.labels).affine()
        matrix, offset = (torch.from_numpy(part).to(features.device) for part in affine)
        labels = torch.from_numpy(self.labels).to(features.device)

        def lost(places: np.ndarray, inputs: Inputs) -> torch.Tensor:
            said = self._features(inputs) @ matrix + offset
            if self.measure == "error":
                return 0.5 * ((said - labels[places]) ** 2).sum()
            return cross_entropy(said, labels[places], reduction="sum")

        return self._slopes(mask, lost)

    def _fitted(self, features: np.ndarray, labels: np.ndarray) -> LinearProbe | NumberProbe:
        fitted = self.probe.fit(features, labels, classes=self.examples.classes)
        # Its penalty is chosen once, with all heads or nearly all.
        self.probe = LinearProbe(fitted.penalty) if isinstance(fitted, LinearProbe) else NumberProbe()
        return fitted

    def expansion(self, mask: np.ndarray, *, earlier: Expansion | None = None, curvature: bool = False) -> Expansion:
        """The evidence of the refitted readout around a mask, to first order or with its curvature.

        A head changes what the readout W says of example μ by J = W·∂f/∂m. With W fitted anew, the second order of the
        energy in these changes is Jᵀ(sK + τI)⁻¹J.
        """
        evidence = self.evidence(mask)
        direction = evidence.gradient()
        slope, bend = np.zeros(len(self.heads)), np.zeros((len(self.heads), len(self.heads)))
        if not curvature:
            with self._passes(mask, shared=True) as batches:
                for places, inputs, shared in batches:
                    value = (self._features(inputs) * direction[places]).sum()
                    slope += torch.autograd.grad(value, shared)[0].cpu().numpy()
            return Expansion(slope, bend)
        readout = evidence.readout()
        shape = len(self.labels), len(self.heads), 1 + readout.shape[1]
        found = torch.empty(shape, dtype=torch.float64, device=direction.device)
        with self._passes(mask, own=True) as batches:
            for places, inputs, own in batches:
                features = self._features(inputs)
                values = [(features * direction[places]).sum(), *(features @ readout).sum(0)]
                found[places] = _each_slope(values, own)
        changes = found[..., 1:] - found[..., 1:].mean(0)
        bend = torch.einsum("ehd,ekd->hk", changes, evidence.residual(changes) / evidence.temperature)
        return Expansion(found[..., 0].sum(0).cpu().numpy(), bend.cpu().numpy())


class ClassifierGoal(Goal):
    """A model with a head of its own: classes, several labels, or numbers.

    The loss is that of the labels. The evidence is that of the full model's own predictions, for classes Σ_c p_c(all
    heads) ln p_c(mask): the model has learned the labels, whose slopes would only make it surer of the training set. In
    each of these families ∂ ln p / ∂ logits is the label less its mean, and the curvature is the label's covariance.
    """

    name = "classifier"

    def __init__(self, model: Any, examples: Examples, **options: Any) -> None:
        super().__init__(model, examples, **options)
        need_outputs(model, examples)
        self.labels, self.kind = examples.labels, examples.kind
        if self.kind == "numbers":
            self.measure = "error"

    @cached_property
    def said(self) -> np.ndarray:
        """The mean of the labels by the model with all its heads [example, output]: probabilities, or numbers."""
        return self._mean(torch.from_numpy(self._outputs(np.ones(len(self.heads))))).numpy()

    def loss(self, mask: np.ndarray) -> float:  # noqa: D102
        places = np.arange(len(self.labels))
        return float(self._lost(torch.from_numpy(self._outputs(mask)), self._wanted(places)).mean())

    def log_evidence(self, mask: np.ndarray) -> float:
        """ln p of what the model with all its heads says, summed over examples."""
        return -float(self._lost(torch.from_numpy(self._outputs(mask)), torch.from_numpy(self.said)).sum())

    def _outputs(self, mask: np.ndarray) -> np.ndarray:
        """The logits, float64 [example, output]."""
        rows = np.empty((len(self.labels), self.model.config.num_labels))
        with self._passes(mask) as batches:
            for places, inputs, _ in batches:
                rows[places] = self._logits(inputs).double().cpu().numpy()
        return rows

    def _wanted(self, places: np.ndarray) -> torch.Tensor:
        """The labels as what their mean is compared with, float64 [example, output]."""
        labels = torch.from_numpy(self.labels[places])
        return one_hot(labels, self.model.config.num_labels).double() if self.kind == "labelled" else labels

    def _mean(self, logits: torch.Tensor) -> torch.Tensor:
        if self.kind == "numbers":
            return logits
        return torch.sigmoid(logits) if self.kind == "several" else torch.softmax(logits, dim=1)

    def _lost(self, logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """−ln p of labels, or of means of them [example]; of numbers with unit variance."""
        if self.kind == "labelled":
            return cross_entropy(logits, wanted, reduction="none")
        if self.kind == "several":
            return binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(1)
        return 0.5 * ((logits - wanted) ** 2).sum(1)

    def slopes(self, mask: np.ndarray) -> np.ndarray:  # noqa: D102
        def lost(places: np.ndarray, inputs: Inputs) -> torch.Tensor:
            logits = self._logits(inputs).double()
            return self._lost(logits, self._wanted(places).to(logits.device)).sum()

        return self._slopes(mask, lost)

    def expansion(self, mask: np.ndarray, *, earlier: Expansion | None = None) -> Expansion:
        """ln p around a mask; the curvature is Σ Jᵀ C J of the changes J of the logits, C the covariance of labels."""
        said = self.said
        slope, bend = np.zeros(len(self.heads)), np.zeros((len(self.heads), len(self.heads)))
        with self._passes(mask, own=True) as batches:
            for places, inputs, own in batches:
                logits = self._logits(inputs).double()
                means = self._mean(logits.detach())
                changes = _each_slope(list(logits.sum(0)), own)
                wanted = torch.from_numpy(said[places]).to(means.device) - means
                slope += torch.einsum("ehc,ec->h", changes, wanted).cpu().numpy()
                if self.kind == "labelled":
                    changes = changes - torch.einsum("ehc,ec->eh", changes, means)[..., None]
                weights = {"labelled": means, "several": means * (1 - means), "numbers": torch.ones_like(means)}
                bend += torch.einsum("ehc,ec,ekc->hk", changes, weights[self.kind], changes).cpu().numpy()
        return Expansion(slope, bend)


class TokensGoal(Goal):
    """A model that predicts tokens: the next ones, masked ones, or the class of each.

    The evidence is that of the targets. Tokens that have none do not count.
    """

    name, measure = "language", "perplexity"

    def __init__(self, model: Any, examples: Examples, **options: Any) -> None:
        super().__init__(model, examples, **options)
        need_token_logits(model, examples)
        self.following = predicts_next(model)
        # By example, how many tokens are predicted.
        self.counts = np.empty(len(examples), np.int64)
        for places, inputs in examples.batches(self.batch):
            targets = examples.token_labels(places, inputs)[:, int(self.following) :]
            self.counts[places] = (targets != IGNORED).sum(1).numpy()
        self.tokens = int(self.counts.sum())
        if self.tokens < 1:
            raise fail("examples", "sequences of one token", "two tokens or more in a sequence")

    def loss(self, mask: np.ndarray) -> float:  # noqa: D102
        return -self.log_evidence(mask) / self.tokens

    def log_evidence(self, mask: np.ndarray) -> float:  # noqa: D102
        total = 0.0
        with self._passes(mask) as batches:
            for places, inputs, _ in batches:
                total += float(self._chosen(*self._rows(places, inputs)).double().sum())
        return total

    def slopes(self, mask: np.ndarray) -> np.ndarray:  # noqa: D102
        return self._slopes(mask, lambda places, inputs: -self._chosen(*self._rows(places, inputs)).sum())

    def expansion(self, mask: np.ndarray, *, earlier: Expansion | None = None) -> Expansion:
        """ln p of the targets around a mask; the curvature is the Fisher information, by targets that the model draws.

        Slopes of ln p of targets drawn from the model itself do not correlate between tokens, so that the square of
        their sum over a sequence has the Fisher information of the sequence as its mean. Every draw takes a backward
        pass. After an earlier expansion the targets of the examples stand for draws, and the covariance of their slopes
        for the mean of the square: the slopes alone, a third of the cost, tell both. There are few examples, so that
        the mean with the earlier curvature is closer.
        """
        if earlier is not None and len(self.examples) > 1:
            slopes = -self.slopes(mask)
            return Expansion(slopes.sum(0), (len(slopes) * np.cov(slopes.T) + earlier.curvature) / 2)
        slope, bend = np.zeros(len(self.heads)), np.zeros((len(self.heads), len(self.heads)))
        with self._passes(mask, own=True) as batches:
            generator = torch.Generator(self.model.device).manual_seed(self.seed)
            for places, inputs, own in batches:
                logarithms, targets = self._rows(places, inputs)
                chances = logarithms.detach().exp()
                drawn = torch.multinomial(chances, _FISHER_DRAWS, True, generator=generator)
                values = [self._chosen(logarithms, wanted).sum() for wanted in (targets, *drawn.T)]
                found = _each_slope(values, own).cpu().numpy()
                slope += found[..., 0].sum(0)
                bend += np.einsum("ehd,ekd->hk", found[..., 1:], found[..., 1:]) / _FISHER_DRAWS
        return Expansion(slope, bend)

    def _rows(self, places: np.ndarray, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """ln p of all classes [token, class] at the tokens that count, and their targets [token]."""
        logits, targets = self._logits(inputs), self.examples.token_labels(places, inputs)
        if self.following:
            logits, targets = logits[:, :-1], targets[:, 1:]
        counted = targets != IGNORED
        return torch.log_softmax(logits[counted], dim=1), targets[counted]

    @staticmethod
    def _chosen(logarithms: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return logarithms.gather(1, targets[:, None])


class TokenClassesGoal(TokensGoal):
    """A model with a head of its own for the class of each token."""

    name, measure = "classifier", "accuracy"


class FunctionGoal(Goal):
    """A loss of the user's own, to be as small as possible; its negative sum is taken for the log evidence.

    Arguments:
        function: (output of the model, batch) → loss of each example, a tensor [example]. The batch has what the model
            read, and "labels" where the examples have them: [example], [example, output] or [example, token].
    """

    name, measure = "function", "loss"

    def __init__(self, model: Any, examples: Examples, function: Loss, **options: Any) -> None:
        super().__init__(model, examples, **options)
        self.function = function

    def loss(self, mask: np.ndarray) -> float:  # noqa: D102
        return -self.log_evidence(mask) / len(self.examples)

    def log_evidence(self, mask: np.ndarray) -> float:  # noqa: D102
        total = 0.0
        with self._passes(mask) as batches:
            for places, inputs, _ in batches:
                total -= float(self._losses(places, inputs).double().sum())
        return total

    def slopes(self, mask: np.ndarray) -> np.ndarray:  # noqa: D102
        return self._slopes(mask, lambda places, inputs: self._losses(places, inputs).sum())

    def expansion(self, mask: np.ndarray, *, earlier: Expansion | None = None) -> Expansion:
        """The slope; nothing is known of the curvature."""
        return Expansion(-self.slopes(mask).sum(0), np.zeros((len(self.heads), len(self.heads))))

    def _losses(self, places: np.ndarray, inputs: Inputs) -> torch.Tensor:
        output, batch = run(self.model, inputs), dict(inputs)
        if self.examples.kind == "tokens":
            batch["labels"] = self.examples.token_labels(places, inputs)
        elif self.examples.labels is not None:
            batch["labels"] = torch.from_numpy(self.examples.labels[places]).to(next(iter(inputs.values())).device)
        found = self.function(output, batch)
        if not isinstance(found, torch.Tensor) or found.shape != (len(places),):
            shape = f" of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else ""
            expected = f"a function that returns a tensor [example] of {len(places)} losses"
            raise fail("goal", f"a {type(found).__name__}{shape} from the function", expected)
        if not bool(torch.isfinite(found).all()):
            raise fail("goal", "NaN or infinite losses from the function", "finite numbers")
        return found


_KINDS: dict[str, type[Goal]] = {kind.name: kind for kind in (ProbeGoal, ClassifierGoal, TokensGoal)}


def goal_for(model: Any, examples: Any, goal: str | Loss = "auto", **options: Any) -> Goal:
    """The goal that fits a model and examples.

    Arguments:
        examples: `Examples`, or data that `Examples.from_dataset` reads.
        goal: "probe" (a linear probe on the features), "classifier" (the model's own head: for classes, several labels,
            numbers, or classes of tokens), "language" (the next token, or masked ones), or "auto": language for a model
            of language and examples without labels or with tokens for labels, classifier where the model has a head of
            its own, probe otherwise. Or a loss of your own, a function (output of the model, batch) → loss of each
            example, a tensor [example]; the batch has what the model read, and "labels" where the examples have them.
        options: as of `Goal`.

    Example:
        >>> from transformers import BertConfig, BertForQuestionAnswering
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=9)
        >>> model = BertForQuestionAnswering(BertConfig(**sizes))
        >>> texts = {"input_ids": (np.array([1, 2, 3]), np.array([4, 5, 6]))}
        >>> begins = Examples(texts, np.array([0, 2]), 3, "labelled")
        >>> def loss(output, batch):
        ...     return cross_entropy(output.start_logits, batch["labels"], reduction="none")
        >>> goal_for(model, begins, loss).slopes(np.ones(8)).shape
        (2, 8)
    """
    examples = examples_of(examples)
    if len(examples) == 0:
        raise fail("data", "no examples", "at least one")
    if not isinstance(goal, str) and callable(goal):
        return FunctionGoal(model, examples, goal, **options)
    one_of("goal", goal, ("auto", *_KINDS))
    kind = type(model).__name__
    if goal == "auto":
        own = kind.endswith(("ForSequenceClassification", "ForImageClassification", "ForTokenClassification"))
        unlabelled = examples.kind == "language"
        goal = "classifier" if own and not unlabelled else "probe"
        if unlabelled or (examples.kind == "tokens" and not own):
            goal = "language"
    if goal == "classifier" and examples.kind == "tokens":
        return TokenClassesGoal(model, examples, **options)
    return _KINDS[goal](model, examples, **options)


def _each_slope(values: list[torch.Tensor], own: torch.Tensor) -> torch.Tensor:
    """Slopes of several sums over examples in the examples' own masks, float64 [example, head, value]."""
    last = len(values) - 1
    slopes = [torch.autograd.grad(value, own, retain_graph=place < last)[0] for place, value in enumerate(values)]
    return torch.stack(slopes, dim=-1).double()

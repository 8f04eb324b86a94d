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
from torch.nn.functional import cross_entropy

from .._validation import fail, one_of
from .data import Examples
from .families import adapter_for
from .judge import features_of, pooled
from .masks import head_masks
from .passes import READOUTS, need_causal, reading, run
from .probe import PENALTY, LinearProbe
from .readout_evidence import ReadoutEvidence, class_targets, readout_evidence

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
    def expansion(self, mask: np.ndarray) -> Expansion:
        """The log evidence around a mask."""

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
                for places, inputs in self.examples.batches(self.batch, place):
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
        self.labels = examples.need_labels()
        self.targets = class_targets(self.labels)

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
            lost += len(other) * self._fitted(features[one], self.labels[one]).loss(features[other], self.labels[other])
        return lost / len(features)

    def slopes(self, mask: np.ndarray) -> np.ndarray:
        """Slopes of the loss of a probe that was fitted under this mask, and is held fixed."""
        features = self.features(mask)
        affine = self._fitted(features.cpu().numpy(), self.labels).affine()
        matrix, offset = (torch.from_numpy(part).to(features.device) for part in affine)
        labels = torch.from_numpy(self.labels).to(features.device)

        def lost(places: np.ndarray, inputs: Inputs) -> torch.Tensor:
            return cross_entropy(self._features(inputs) @ matrix + offset, labels[places], reduction="sum")

        return self._slopes(mask, lost)

    def _fitted(self, features: np.ndarray, labels: np.ndarray) -> LinearProbe:
        return LinearProbe(PENALTY).fit(features, labels, classes=self.examples.classes)

    def expansion(self, mask: np.ndarray, *, curvature: bool = False) -> Expansion:
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
    """A classifier with a head of its own.

    The loss is that of the labels. The evidence is that of the full model's own predictions, Σ_c p_c(all heads)
    ln p_c(mask): the model has learned the labels, whose slopes would only make it surer of the training set.
    """

    name = "classifier"

    def __init__(self, model: Any, examples: Examples, **options: Any) -> None:
        super().__init__(model, examples, **options)
        self.labels = examples.need_labels()
        count = getattr(getattr(model, "config", None), "num_labels", 0)
        if count < 2 or examples.classes > count:
            raise fail("model", f"a classifier of {count} classes", f"{max(examples.classes, 2)}, as the examples have")

    @cached_property
    def said(self) -> np.ndarray:
        """The probabilities of the classes by the model with all its heads [example, class]."""
        return np.exp(self._log_chances(np.ones(len(self.heads))))

    def loss(self, mask: np.ndarray) -> float:  # noqa: D102
        return -float(self._log_chances(mask)[np.arange(len(self.labels)), self.labels].mean())

    def log_evidence(self, mask: np.ndarray) -> float:
        """Σ_c p_c(all heads) ln p_c(mask), summed over examples."""
        return float((self.said * self._log_chances(mask)).sum())

    def _log_chances(self, mask: np.ndarray) -> np.ndarray:
        rows = np.empty((len(self.labels), self.model.config.num_labels))
        with self._passes(mask) as batches:
            for places, inputs, _ in batches:
                rows[places] = torch.log_softmax(self._logits(inputs).double(), dim=1).cpu().numpy()
        return rows

    def slopes(self, mask: np.ndarray) -> np.ndarray:  # noqa: D102
        def lost(places: np.ndarray, inputs: Inputs) -> torch.Tensor:
            logits = self._logits(inputs)
            return cross_entropy(logits, torch.from_numpy(self.labels[places]).to(logits.device), reduction="sum")

        return self._slopes(mask, lost)

    def expansion(self, mask: np.ndarray) -> Expansion:
        """ln p around a mask; the curvature is Σ Jᵀ(diag p − ppᵀ)J of the changes J of the logits."""
        said = self.said
        slope, bend = np.zeros(len(self.heads)), np.zeros((len(self.heads), len(self.heads)))
        with self._passes(mask, own=True) as batches:
            for places, inputs, own in batches:
                logits = self._logits(inputs).double()
                chances = torch.softmax(logits.detach(), dim=1)
                changes = _each_slope(list(logits.sum(0)), own)
                wanted = torch.from_numpy(said[places]).to(chances.device) - chances
                slope += torch.einsum("ehc,ec->h", changes, wanted).cpu().numpy()
                centred = changes - torch.einsum("ehc,ec->eh", changes, chances)[..., None]
                bend += torch.einsum("ehc,ec,ekc->hk", centred, chances, centred).cpu().numpy()
        return Expansion(slope, bend)


class LanguageGoal(Goal):
    """A language model that predicts the next token."""

    name = "language"

    def __init__(self, model: Any, examples: Examples, **options: Any) -> None:
        super().__init__(model, examples, **options)
        examples.need_tokens()
        need_causal(model)
        self.tokens = int(examples.lengths.sum()) - len(examples)
        if self.tokens < 1:
            raise fail("examples", "sequences of one token", "two tokens or more in a sequence")

    def loss(self, mask: np.ndarray) -> float:  # noqa: D102
        return -self.log_evidence(mask) / self.tokens

    def log_evidence(self, mask: np.ndarray) -> float:  # noqa: D102
        total = 0.0
        with self._passes(mask) as batches:
            for _, inputs, _ in batches:
                total += float(_token_likelihood(self._logits(inputs), inputs).double().sum())
        return total

    def slopes(self, mask: np.ndarray) -> np.ndarray:  # noqa: D102
        return self._slopes(mask, lambda _, inputs: -_token_likelihood(self._logits(inputs), inputs).sum())

    def expansion(self, mask: np.ndarray) -> Expansion:
        """ln p of the tokens around a mask; the curvature is the Fisher information, by tokens that the model draws.

        Slopes of ln p of tokens drawn from the model itself do not correlate between positions, so that the square of
        their sum over a sequence has the Fisher information of the sequence as its mean.
        """
        slope, bend = np.zeros(len(self.heads)), np.zeros((len(self.heads), len(self.heads)))
        with self._passes(mask, own=True) as batches:
            generator = torch.Generator(self.model.device).manual_seed(self.seed)
            for _, inputs, own in batches:
                logits = self._logits(inputs)
                chances = torch.softmax(logits.detach()[:, :-1], dim=2)
                drawn = torch.multinomial(chances.flatten(0, 1), _FISHER_DRAWS, True, generator=generator)
                wanted = [inputs["input_ids"][:, 1:], *drawn.T.unflatten(1, chances.shape[:2])]
                values = [_token_likelihood(logits, inputs, tokens).sum() for tokens in wanted]
                found = _each_slope(values, own).cpu().numpy()
                slope += found[..., 0].sum(0)
                bend += np.einsum("ehd,ekd->hk", found[..., 1:], found[..., 1:]) / _FISHER_DRAWS
        return Expansion(slope, bend)


class FunctionGoal(Goal):
    """A loss of the user's own, to be as small as possible; its negative sum is taken for the log evidence.

    Arguments:
        function: (output of the model, batch) → loss of each example, a tensor [example]. The batch has what the model
            read, and "labels" [example] where the examples have them.
    """

    name = "function"

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

    def expansion(self, mask: np.ndarray) -> Expansion:
        """The slope; nothing is known of the curvature."""
        return Expansion(-self.slopes(mask).sum(0), np.zeros((len(self.heads), len(self.heads))))

    def _losses(self, places: np.ndarray, inputs: Inputs) -> torch.Tensor:
        output, batch = run(self.model, inputs), dict(inputs)
        if self.examples.labels is not None:
            batch["labels"] = torch.from_numpy(self.examples.labels[places]).to(next(iter(inputs.values())).device)
        found = self.function(output, batch)
        if not isinstance(found, torch.Tensor) or found.shape != (len(places),):
            shape = f" of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else ""
            expected = f"a function that returns a tensor [example] of {len(places)} losses"
            raise fail("goal", f"a {type(found).__name__}{shape} from the function", expected)
        if not bool(torch.isfinite(found).all()):
            raise fail("goal", "NaN or infinite losses from the function", "finite numbers")
        return found


_KINDS: dict[str, type[Goal]] = {kind.name: kind for kind in (ProbeGoal, ClassifierGoal, LanguageGoal)}


def goal_for(model: Any, examples: Examples, goal: str | Loss = "auto", **options: Any) -> Goal:
    """The goal that fits a model and examples.

    Arguments:
        goal: "probe" (a linear probe on the features), "classifier" (the model's own head), "language" (the next
            token), or "auto": language for examples without labels, classifier where the model has a head for as many
            classes, probe otherwise. Or a loss of your own, a function (output of the model, batch) → loss of each
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
    if len(examples) == 0:
        raise fail("data", "no examples", "at least one")
    if not isinstance(goal, str) and callable(goal):
        return FunctionGoal(model, examples, goal, **options)
    one_of("goal", goal, ("auto", *_KINDS))
    if goal == "auto":
        own = type(model).__name__.endswith(("ForSequenceClassification", "ForImageClassification"))
        goal = "language" if examples.kind == "language" else "classifier" if own else "probe"
    return _KINDS[goal](model, examples, **options)


def _each_slope(values: list[torch.Tensor], own: torch.Tensor) -> torch.Tensor:
    """Slopes of several sums over examples in the examples' own masks, float64 [example, head, value]."""
    last = len(values) - 1
    slopes = [torch.autograd.grad(value, own, retain_graph=place < last)[0] for place, value in enumerate(values)]
    return torch.stack(slopes, dim=-1).double()


def _token_likelihood(logits: torch.Tensor, inputs: Inputs, tokens: torch.Tensor | None = None) -> torch.Tensor:
    """ln p of the tokens to predict [example, token − 1], those of the text or given ones; 0 where there is padding."""
    targets = inputs["input_ids"][:, 1:] if tokens is None else tokens
    found = -cross_entropy(logits[:, :-1].transpose(1, 2), targets, reduction="none")
    return found * inputs["attention_mask"][:, 1:]

"""What a pretrained model is wanted for, as functions of a mask over its heads.

A goal knows the loss of the examples under a mask, its slope in the mask for each example, and the log evidence: of a
Bayesian linear readout where a probe is to be fitted, of the model's own readout where it has one. The latter is the
limit of a prior that holds the trained readout fixed: ln p = Σ ln softmax(logits)[target].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from .._validation import fail, one_of
from .data import Examples
from .families import adapter_for
from .judge import PENALTY, pooled
from .masks import head_masks
from .passes import READOUTS, need_causal, read_out, reading, without_cache
from .probe import LinearProbe
from .readout_evidence import ReadoutEvidence, class_targets, readout_evidence

GOALS = ("auto", "probe", "classifier", "language")

# Sets of tokens drawn from the model itself for its Fisher information.
_FISHER_DRAWS = 4


class Expansion(NamedTuple):
    """The log evidence around a mask: ln p(m) ≈ ln p + slope·δm − ½ δm·curvature·δm.

    Fields:
        slope: [head].
        curvature: [head, head], positive semi-definite (Gauss–Newton); zero where it was not asked for.
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
    # Whether the log evidence needs its curvature to say what the removal of a whole head does.
    curved = True

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
        """The mean loss of an example under a mask [head]."""

    @abstractmethod
    def slopes(self, mask: np.ndarray) -> np.ndarray:
        """∂ loss / ∂ mask of each example by itself [example, head]."""

    @abstractmethod
    def log_evidence(self, mask: np.ndarray) -> float:
        """ln p(labels | mask)."""

    @abstractmethod
    def expansion(self, mask: np.ndarray, *, curvature: bool | None = None) -> Expansion:
        """The log evidence around a mask, to first order, or with its curvature."""

    @contextmanager
    def _masked(self, mask: np.ndarray, *, gradients: bool = False) -> Iterator[_Passes]:
        tensor = torch.as_tensor(np.asarray(mask, np.float32))
        with reading(self.model, self.examples, self.device, gradients=gradients) as place:
            with head_masks(self.model, tensor.to(place)) as masks:
                yield _Passes(self, masks, place)


class _Passes:
    """Batches of a model under a mask."""

    def __init__(self, goal: Goal, masks: Any, place: torch.device) -> None:
        self.goal, self.masks, self.place = goal, masks, place
        self.mask = masks.mask

    def batches(self) -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor]]]:
        """As `Examples.batches`, under one mask for all examples."""
        self.masks.mask = self.mask
        yield from self.goal.examples.batches(self.goal.batch, self.place)

    def with_own_masks(self) -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor], torch.Tensor]]:
        """Batches in which every example has a mask of its own [example, head], to take gradients in."""
        for places, inputs in self.goal.examples.batches(self.goal.batch, self.place):
            own = self.mask.expand(len(places), -1).clone().requires_grad_(True)
            self.masks.mask = own
            yield places, inputs, own

    def features(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """The model's representation, read out [example, feature]."""
        body = self.goal.model.base_model
        states = body(**inputs, **without_cache(inputs, body)).last_hidden_state
        return read_out(states.float(), inputs.get("attention_mask"), self.goal.readout)

    def logits(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """What the model's own head says, in float32."""
        return self.goal.model(**inputs, **without_cache(inputs, self.goal.model)).logits.float()


class ProbeGoal(Goal):
    """A linear probe is fitted on the features of a model whose weights stay as they are."""

    name = "probe"
    curved = False

    def __init__(self, model: Any, examples: Examples, **options: Any) -> None:
        super().__init__(model, examples, **options)
        self.labels = examples.need_labels()
        self.targets = class_targets(self.labels)

    def features(self, mask: np.ndarray) -> torch.Tensor:
        """The model's features under a mask, float64 [example, feature]."""
        where = {"readout": self.readout, "batch": self.batch, "device": self.device}
        with head_masks(self.model, torch.as_tensor(np.asarray(mask, np.float32))):
            rows = pooled(self.model, self.examples, **where)
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
            probe = _fitted(features[one], self.labels[one], self.examples.classes)
            lost += len(other) * probe.loss(features[other], self.labels[other])
        return lost / len(features)

    def slopes(self, mask: np.ndarray) -> np.ndarray:
        """Slopes of the loss of a probe that was fitted under this mask, and is held fixed."""
        features = self.features(mask).cpu().numpy()
        weights, bias = _fitted(features, self.labels, self.examples.classes).affine()
        found = np.empty((len(features), len(self.heads)))
        with self._masked(mask, gradients=True) as passes:
            matrix = torch.from_numpy(weights).to(passes.place)
            offset = torch.from_numpy(bias).to(passes.place)
            for places, inputs, own in passes.with_own_masks():
                logits = passes.features(inputs).double() @ matrix + offset
                labels = torch.from_numpy(self.labels[places]).to(passes.place)
                (slope,) = torch.autograd.grad(cross_entropy(logits, labels, reduction="sum"), own)
                found[places] = slope.cpu().numpy()
        return found

    def expansion(self, mask: np.ndarray, *, curvature: bool | None = None) -> Expansion:
        """The evidence of the refitted readout around a mask.

        A head changes what the readout W says of example μ by J = W·∂f/∂m. With W fitted anew, the second order of the
        energy in these changes is Jᵀ(sK + τI)⁻¹J.
        """
        evidence = self.evidence(mask)
        directions = [evidence.gradient()]
        if self.curved if curvature is None else curvature:
            readout = evidence.readout()
            directions += [readout[:, output].expand(len(self.labels), -1) for output in range(readout.shape[1])]
            found = self._changes(mask, directions)
            changes = found[..., 1:] - found[..., 1:].mean(0)
            weighted = evidence.residual(changes) / evidence.temperature
            bend = torch.einsum("ehd,ekd->hk", changes, weighted).cpu().numpy()
            return Expansion(found[..., 0].sum(0).cpu().numpy(), bend)
        slope = np.zeros(len(self.heads))
        with self._masked(mask, gradients=True) as passes:
            passes.mask = passes.mask.clone().requires_grad_(True)
            for places, inputs in passes.batches():
                value = (passes.features(inputs).double() * directions[0][places]).sum()
                slope += torch.autograd.grad(value, passes.mask)[0].cpu().numpy()
        return Expansion(slope, np.zeros((len(slope), len(slope))))

    def _changes(self, mask: np.ndarray, directions: list[torch.Tensor]) -> torch.Tensor:
        """∂(features·direction)/∂mask [example, head, direction]."""
        shape = len(self.labels), len(self.heads), len(directions)
        found = torch.empty(shape, dtype=torch.float64, device=directions[0].device)
        with self._masked(mask, gradients=True) as passes:
            for places, inputs, own in passes.with_own_masks():
                features = passes.features(inputs).double()
                values = [(features * direction[places]).sum() for direction in directions]
                found[places] = _each_slope(values, own)
        return found


class ClassifierGoal(Goal):
    """A model with a head of its own that names the class.

    The loss is that of the labels. The evidence is of what the whole model says, Σ_c p_c(all heads) ln p_c(mask): it
    has learned the labels, and what slopes they leave are those of being surer still of the training set.
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
        with self._masked(mask) as passes:
            for places, inputs in passes.batches():
                rows[places] = torch.log_softmax(passes.logits(inputs).double(), dim=1).cpu().numpy()
        return rows

    def slopes(self, mask: np.ndarray) -> np.ndarray:  # noqa: D102
        found = np.empty((len(self.labels), len(self.heads)))
        with self._masked(mask, gradients=True) as passes:
            for places, inputs, own in passes.with_own_masks():
                lost = cross_entropy(passes.logits(inputs), self._labels(places, passes), reduction="sum")
                found[places] = torch.autograd.grad(lost, own)[0].cpu().numpy()
        return found

    def expansion(self, mask: np.ndarray, *, curvature: bool | None = None) -> Expansion:
        """ln p around a mask; the curvature is Σ Jᵀ(diag p − ppᵀ)J of the changes J of the logits."""
        said = self.said
        slope, bend = np.zeros(len(self.heads)), np.zeros((len(self.heads), len(self.heads)))
        with self._masked(mask, gradients=True) as passes:
            for places, inputs, own in passes.with_own_masks():
                logits = passes.logits(inputs).double()
                chances = torch.softmax(logits.detach(), dim=1)
                changes = _each_slope([logits[:, one].sum() for one in range(logits.shape[1])], own)
                wanted = torch.from_numpy(said[places]).to(passes.place) - chances
                slope += torch.einsum("ehc,ec->h", changes, wanted).cpu().numpy()
                centred = changes - torch.einsum("ehc,ec->eh", changes, chances)[..., None]
                bend += torch.einsum("ehc,ec,ekc->hk", centred, chances, centred).cpu().numpy()
        return Expansion(slope, bend if curvature is None or curvature else np.zeros_like(bend))

    def _labels(self, places: np.ndarray, passes: _Passes) -> torch.Tensor:
        return torch.from_numpy(self.labels[places]).to(passes.place)


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

    def loss(self, mask: np.ndarray) -> float:
        """The mean loss of a token."""
        return -self.log_evidence(mask) / self.tokens

    def log_evidence(self, mask: np.ndarray) -> float:  # noqa: D102
        total = 0.0
        with self._masked(mask) as passes:
            for _, inputs in passes.batches():
                total += float(_token_likelihood(passes.logits(inputs), inputs).double().sum())
        return total

    def slopes(self, mask: np.ndarray) -> np.ndarray:  # noqa: D102
        found = np.empty((len(self.examples), len(self.heads)))
        with self._masked(mask, gradients=True) as passes:
            for places, inputs, own in passes.with_own_masks():
                lost = -_token_likelihood(passes.logits(inputs), inputs).sum()
                found[places] = torch.autograd.grad(lost, own)[0].cpu().numpy()
        return found

    def expansion(self, mask: np.ndarray, *, curvature: bool | None = None) -> Expansion:
        """ln p of the tokens around a mask; the curvature is the Fisher information, by tokens that the model draws.

        Slopes of ln p of tokens drawn from the model itself do not correlate between positions, so that the square of
        their sum over a sequence has the Fisher information of the sequence as its mean.
        """
        curved = curvature is None or curvature
        slope, bend = np.zeros(len(self.heads)), np.zeros((len(self.heads), len(self.heads)))
        with self._masked(mask, gradients=True) as passes:
            generator = torch.Generator(passes.place).manual_seed(self.seed)
            for _, inputs, own in passes.with_own_masks():
                logits = passes.logits(inputs)
                values = [_token_likelihood(logits, inputs).sum()]
                if curved:
                    chances = torch.softmax(logits.detach()[:, :-1], dim=2)
                    drawn = torch.multinomial(chances.flatten(0, 1), _FISHER_DRAWS, True, generator=generator)
                    for column in drawn.T:
                        tokens = column.reshape(chances.shape[:2])
                        values.append(_token_likelihood(logits, inputs, tokens).sum())
                found = _each_slope(values, own).cpu().numpy()
                slope += found[..., 0].sum(0)
                bend += np.einsum("ehd,ekd->hk", found[..., 1:], found[..., 1:]) / _FISHER_DRAWS
        return Expansion(slope, bend)


def goal_for(model: Any, examples: Examples, goal: str = "auto", **options: Any) -> Goal:
    """The goal that fits a model and examples.

    Arguments:
        goal: "probe" (a linear probe on the features), "classifier" (the model's own head), "language" (the next
            token), or "auto": language for examples without labels, classifier where the model has a head for as many
            classes, probe otherwise.
        options: as of `Goal`.
    """
    one_of("goal", goal, GOALS)
    if len(examples) == 0:
        raise fail("data", "no examples", "at least one")
    if goal == "auto":
        own = type(model).__name__.endswith(("ForSequenceClassification", "ForImageClassification"))
        goal = "language" if examples.kind == "language" else "classifier" if own else "probe"
    kinds = {"probe": ProbeGoal, "classifier": ClassifierGoal, "language": LanguageGoal}
    return kinds[goal](model, examples, **options)


def _fitted(features: np.ndarray, labels: np.ndarray, classes: int) -> LinearProbe:
    return LinearProbe(PENALTY).fit(features, labels, classes=classes)


def _each_slope(values: list[torch.Tensor], own: torch.Tensor) -> torch.Tensor:
    """Slopes of several sums over examples in the examples' own masks, float64 [example, head, value]."""
    last = len(values) - 1
    slopes = [torch.autograd.grad(value, own, retain_graph=place < last)[0] for place, value in enumerate(values)]
    return torch.stack(slopes, dim=-1).double()


def _token_likelihood(
    logits: torch.Tensor, inputs: dict[str, torch.Tensor], tokens: torch.Tensor | None = None
) -> torch.Tensor:
    """ln p of the tokens to predict [example, token − 1], those of the text or given ones; 0 where there is padding."""
    targets = inputs["input_ids"][:, 1:] if tokens is None else tokens
    found = -cross_entropy(logits[:, :-1].transpose(1, 2), targets, reduction="none")
    return found * inputs["attention_mask"][:, 1:]

"""Settings of the hidden-Markov experiment (experiments §1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..._validation import fail, nonnegative_number
from ...learning import Architecture
from ...tasks import HiddenMarkovTask
from ..sweeping import check_fields, config_of


@dataclass(frozen=True)
class MarkovVariant:
    """One choice of heads and noise.

    Fields:
        name: how the variant is called in data and figures.
        perpendicular_noise: σ_⊥ of the task.
        heads: kinds of head of both layers, "good" first in the first and "uniform" first in the second, so that
            path 0 is the good path: good, then uniform.
    """

    name: str
    perpendicular_noise: float
    heads: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def slug(self) -> str:
        """The name without spaces, for names of variables and files."""
        return self.name.replace(" ", "_")

    def architecture(self, width: int = 1, variance: float = 1.0) -> Architecture:
        """The network with these heads."""
        return Architecture(tuple(len(layer) for layer in self.heads), width, variance)

    @property
    def denoises_everywhere(self) -> bool:
        """Whether all paths average in the second layer, so that good + denoising is simply every path."""
        return set(self.heads[1]) == {"uniform"}

    @property
    def path_names(self) -> tuple[str, ...]:
        """The heads along each path, first layer first."""
        return self.architecture().path_names(self.heads)


FOUR_PATHS = MarkovVariant("4 paths", 1.0, (("good", "random"), ("uniform", "random")))
TWO_PATHS = MarkovVariant("2 paths", 5.0, (("good", "uniform"), ("uniform",)))


# What may differ from the published runs without making it another task.
_FREE = ("seeds", "seed", "widths", "components")
_FREE += ("sampled_seeds", "exact_draws", "exact_up_to", "sampled_draws", "sampled_up_to", "chains")


@dataclass(frozen=True)
class MarkovConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        seeds: how many independent repetitions, each with its own sequences and random heads.
        seed: of all random numbers; repetition i uses (seed, i).
        widths: N, finite; the Gaussian process (N → ∞) always comes on top.
        components: principal components whose overlap with the labels is kept, at most training_examples.
        sampled_seeds: how many repetitions, from the first on, also have the exact posterior at finite width and
            sampled networks (Gibbs over all weights) beside the theory.
        exact_draws, exact_up_to: draws per chain of the exact posterior, and the largest width that has it (default:
            all).
        sampled_draws, sampled_up_to: the same for sampled networks, whose cost grows with the width.
        chains: chains of every sampler.
    """

    seeds: int = 10
    seed: int = 0
    widths: tuple[int, ...] = (10, 30, 50, 100, 300, 500, 1000)
    training_examples: int = 100
    test_examples: int = 1000
    temperature: float = 0.01
    variance: float = 1.0
    components: int = 30
    tokens: int = 30
    feature_width: int = 200
    variants: tuple[MarkovVariant, ...] = (FOUR_PATHS, TWO_PATHS)
    sampled_seeds: int = 3
    exact_draws: int = 300
    exact_up_to: int | None = None
    sampled_draws: int = 1500
    sampled_up_to: int | None = 100
    chains: int = 2

    def __post_init__(self) -> None:
        check_fields(self, nonnegative=["sampled_seeds"], above_zero=["variance"], ascending={"widths": "width"})
        if self.components > self.training_examples:
            raise fail("components", self.components, f"at most {self.training_examples}, the training examples")
        if not self.variants:
            raise fail("variants", "nothing", "at least one variant")
        if nonnegative_number("temperature", self.temperature) == 0 and self.sampled_seeds:
            raise fail("temperature", 0.0, "a number above 0 where something is sampled, or sampled_seeds=0")

    @classmethod
    def quick(cls, seed: int = 0) -> MarkovConfig:
        """The small size: fewer repetitions, and samplers in one of them at the widths that matter most."""
        return cls(
            seeds=3,
            seed=seed,
            sampled_seeds=1,
            exact_draws=150,
            exact_up_to=30,
            sampled_draws=1000,
            sampled_up_to=10,
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> MarkovConfig:
        """The config of a record."""
        variants = tuple(config_of(MarkovVariant, one) for one in record["variants"])
        return config_of(cls, {**record, "variants": variants})

    @property
    def is_published_task(self) -> bool:
        """Whether task and theory are the published ones; seeds, widths, components and samplers are free."""
        return dataclasses.replace(MarkovConfig(), **{name: getattr(self, name) for name in _FREE}) == self

    def task(self, variant: MarkovVariant) -> HiddenMarkovTask:
        """The task of a variant."""
        return HiddenMarkovTask(variant.perpendicular_noise, tokens=self.tokens, feature_width=self.feature_width)

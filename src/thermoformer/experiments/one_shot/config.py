"""Settings of the one-shot experiment (experiments §2)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from ..._validation import fail
from ..sweeping import check_fields
from .training import OneShotTrainingConfig


@dataclass(frozen=True)
class ManyExamples:
    """The part of an experiment that has more and more training examples.

    Arguments:
        examples: numbers of training sequences P.
        widths, temperatures: of the theory at each of them; the Gaussian process is always added.
        turned: whether characters that are also turned, as in training, are tried at the largest number of examples.
    """

    examples: tuple[int, ...] = (600, 4000, 20_000, 60_000)
    widths: tuple[int, ...] = (10, 100, 512)
    temperatures: tuple[float, ...] = (0.1, 0.3, 0.7, 1.5)
    turned: bool = False

    def __post_init__(self) -> None:
        names = {"examples": "number of examples", "widths": "width", "temperatures": "temperature"}
        check_fields(self, ascending=names)

    @classmethod
    def quick(cls) -> ManyExamples:
        """The small size."""
        return cls(examples=(200, 2000), widths=(10,), temperatures=(0.3, 0.7))


@dataclass(frozen=True)
class OneShotConfig:
    """Everything that decides the numbers of the experiment.

    Arguments:
        training_examples: P, sequences of training characters, none of them turned.
        validation_sequences, test_sequences, other_sequences: of validation characters, of test characters, and of
            Fashion-MNIST and MNIST each.
        widths: finite widths N; the Gaussian process is always added.
        temperatures: τ, of which one is chosen for each width.
        variance: every prior variance.
        choose_variances: whether the evidence chooses the product of all prior variances too, together with τ.
        components: how many principal components of the kernel are compared with the labels.
        seed: of all sequences and of the sampler.
        repetitions: how often the theory is computed, with the sequences of as many seeds from the first on; the
            accuracies of all give means and spreads, and everything else is that of the first.
        network: path of a network that `save_network` wrote; default: the one of the package.
        channels, classes, characters: of the task that the network was trained for, as in `OneShotTrainingConfig`.
        sampled_draws: draws of each chain of sampled networks at one width; 0 leaves them out.
        chains: of sampled networks.
        many: the theory with more and more training examples; None leaves it out.
    """

    training_examples: int = 600
    validation_sequences: int = 2000
    test_sequences: int = 4000
    other_sequences: int = 2000
    widths: tuple[int, ...] = (10, 30, 100, 300, 1000, 3000, 10_000)
    temperatures: tuple[float, ...] = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.5, 1.0)
    variance: float = 1.0
    choose_variances: bool = True
    components: int = 50
    seed: int = 0
    repetitions: int = 3
    network: str | None = None
    channels: int = 1
    classes: tuple[int, int, int] = (1028, 172, 423)
    characters: int | None = None
    sampled_draws: int = 500
    chains: int = 2
    many: ManyExamples | None = field(default_factory=lambda: ManyExamples(turned=True))

    def __post_init__(self) -> None:
        ascending = {"widths": "width", "temperatures": "temperature"}
        check_fields(self, nonnegative=["sampled_draws"], above_zero=["variance"], ascending=ascending)
        if self.components > self.training_examples:
            raise fail("components", self.components, f"at most {self.training_examples}, the training examples")

    @classmethod
    def quick(cls, seed: int = 0) -> OneShotConfig:
        """The small size: fewer sequences, widths and temperatures; the same network."""
        return cls(
            training_examples=200,
            validation_sequences=500,
            test_sequences=1000,
            other_sequences=500,
            widths=(10, 100, 1000),
            temperatures=(0.001, 0.01, 0.1, 0.5),
            sampled_draws=200,
            repetitions=1,
            many=ManyExamples.quick(),
            seed=seed,
        )

    def with_network(self, file: Path, training: OneShotTrainingConfig) -> OneShotConfig:
        """The config for a trained network and the parts of the characters that it was trained with."""
        same = {name: getattr(training, name) for name in ("channels", "classes", "characters")}
        return dataclasses.replace(self, network=str(file.resolve()), **same)

    def training_config(self) -> OneShotTrainingConfig:
        """What names the tasks; without turned characters, whose labels the theory would have to learn as well."""
        same = {name: getattr(self, name) for name in ("seed", "channels", "classes", "characters")}
        return OneShotTrainingConfig(rotations=False, **same)

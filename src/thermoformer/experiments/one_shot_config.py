"""Settings of the one-shot experiment (experiments §2)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from .._validation import fail, nonnegative_integer, positive_integer, positive_number
from .one_shot_training import OneShotTrainingConfig


@dataclass(frozen=True)
class OneShotConfig:
    """Everything that decides the numbers of the experiment.

    Arguments:
        training_examples: P, sequences of training characters, none of them turned.
        validation_sequences, test_sequences, other_sequences: of validation characters, of test characters, and of
            Fashion-MNIST and MNIST each.
        widths: finite widths N; the Gaussian process comes by itself.
        temperatures: τ, of which one is chosen for each width.
        variance: every prior variance.
        products, product_temperatures: products of all prior variances, and temperatures, among which the evidence
            chooses both; none leaves that out.
        components: how many principal components of the kernel are compared with the labels.
        seed: of all sequences and of the sampler.
        network: path of a network that `save_network` wrote; the one of the package where none is given.
        channels, classes, characters: of the task that the network was trained for, as in `OneShotTrainingConfig`.
        exact_draws: draws of each chain of the exact posterior at one width; 0 leaves it out.
        exact_examples: how many of the training examples it sees; the cost of a draw grows as their square or faster.
        chains: of the exact posterior.

    Example:
        >>> OneShotConfig(widths=(10, 100)).training_examples
        600
    """

    training_examples: int = 600
    validation_sequences: int = 2000
    test_sequences: int = 4000
    other_sequences: int = 2000
    widths: tuple[int, ...] = (10, 30, 100, 300, 1000, 3000, 10_000)
    temperatures: tuple[float, ...] = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.5, 1.0)
    variance: float = 1.0
    products: tuple[float, ...] = (10.0, 100.0)
    product_temperatures: tuple[float, ...] = (0.5, 0.7)
    components: int = 50
    seed: int = 0
    network: str | None = None
    channels: int = 1
    classes: tuple[int, int, int] = (1028, 172, 423)
    characters: int | None = None
    exact_draws: int = 300
    exact_examples: int = 150
    chains: int = 2

    def __post_init__(self) -> None:
        for name in ("training_examples", "validation_sequences", "test_sequences", "other_sequences", "components"):
            positive_integer(name, getattr(self, name))
        for name in ("chains", "exact_examples"):
            positive_integer(name, getattr(self, name))
        for name in ("seed", "exact_draws"):
            nonnegative_integer(name, getattr(self, name))
        if not self.widths or list(self.widths) != sorted({positive_integer("widths", width) for width in self.widths}):
            raise fail("widths", self.widths, "at least one width, in ascending order")
        if not self.temperatures:
            raise fail("temperatures", self.temperatures, "at least one temperature, in ascending order")
        for name in ("temperatures", "products", "product_temperatures"):
            values = getattr(self, name)
            if list(values) != sorted({positive_number(name, value) for value in values}):
                raise fail(name, values, "different numbers in ascending order")
        if self.products and not self.product_temperatures:
            raise fail("product_temperatures", (), "at least one, where there are products")
        positive_number("variance", self.variance)
        for name in ("components", "exact_examples"):
            if getattr(self, name) > self.training_examples:
                raise fail(name, getattr(self, name), f"at most {self.training_examples}, the training examples")

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
            products=(100.0,),
            product_temperatures=(0.5, 1.0),
            exact_draws=200,
            exact_examples=60,
            seed=seed,
        )

    def with_network(self, file: Path, training: OneShotTrainingConfig) -> OneShotConfig:
        """The config on a network of one's own and on the parts of the characters that it was trained with."""
        return dataclasses.replace(
            self,
            network=str(file.resolve()),
            channels=training.channels,
            classes=training.classes,
            characters=training.characters,
        )

    def training_config(self) -> OneShotTrainingConfig:
        """What names the tasks; without turned characters, whose labels the theory would have to learn as well."""
        return OneShotTrainingConfig(
            rotations=False,
            seed=self.seed,
            channels=self.channels,
            classes=self.classes,
            characters=self.characters,
        )

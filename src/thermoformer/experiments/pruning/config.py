"""Settings of the pruning experiment (experiments §2), and the network and sequences that they name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._validation import fail, positive_integer, positive_number
from ...learning.scores import head_labels
from ...networks import AttentionNetwork, TrainingSettings, load_network
from ...tasks import OneShotTask
from ..one_shot.config import ManyExamples
from ..one_shot.training import OneShotTrainingConfig, one_shot_parts, one_shot_tasks, shipped_network
from ..sweeping import check_fields

# Where accuracies are measured: characters that nothing has seen, and images of other data sets.
MEASURED = ("test", "fashion-mnist", "mnist")
# Orders of removal that a score gives, and the sets of heads that are best on validation sequences.
SCORES = ("theory", "evidence", "gradient", "trained")
RESCORED = ("theory, rescored", "evidence, rescored")
ORDERS = (*SCORES, "theory, descending", "search")
# The sets of heads that the theory with the largest number of examples predicts to be best.
PREDICTED = "predicted"


@dataclass(frozen=True)
class PruningConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        network: a file that `save_network` wrote; default: the network that comes with the package.
        seed: of the sequences and of the random orders.
        training_sequences: P, what the scores are computed from: training characters, not turned.
        validation_sequences: what width and temperature of the theory are chosen on.
        test_sequences, other_sequences: what pruned networks are measured on: test characters, and each other data set.
        widths, temperatures: the theory's, to choose from.
        random_orders: how many random orders the others are compared with.
        rescored: also orders in which the theory is solved again after each head.
        finetuned_removed: numbers of removed heads at which pruned networks are fine-tuned; () for none.
        finetuned_orders, finetuned_random: their orders, and how many of the random orders, from the first on.
        finetuning_steps, finetuning_batch, finetuning_rate: batches of training characters, turned ones too, sequences
            in each, and Adam's rate, which falls to 0.
        finetuned_sequences: what fine-tuned networks are measured on, of test characters and of each other data set.
        many: the theory with more and more training examples, and what it predicts; None leaves it out.
        channels, characters, classes: of the images, as in `OneShotTrainingConfig`.
    """

    network: str | None = None
    seed: int = 0
    training_sequences: int = 600
    validation_sequences: int = 2048
    test_sequences: int = 10_240
    other_sequences: int = 4096
    widths: tuple[int, ...] = (10, 100, 1000)
    temperatures: tuple[float, ...] = (0.01, 0.1, 0.5, 1.0)
    random_orders: int = 1000
    rescored: bool = True
    finetuned_removed: tuple[int, ...] = (2, 4, 6)
    finetuned_orders: tuple[str, ...] = (*ORDERS, PREDICTED)
    finetuned_random: int = 10
    finetuning_steps: int = 200
    finetuning_batch: int = 64
    finetuning_rate: float = 2e-4
    finetuned_sequences: int = 4096
    many: ManyExamples | None = field(default_factory=ManyExamples)
    channels: int = 1
    characters: int | None = None
    classes: tuple[int, int, int] = (1028, 172, 423)

    def __post_init__(self) -> None:
        check_fields(self, nonnegative=["finetuned_random"], above_zero=["finetuning_rate"])
        for name in ("widths", "temperatures"):
            if not getattr(self, name):
                raise fail(name, "nothing", "at least one number")
        for width in self.widths:
            positive_integer("widths", width)
        for temperature in self.temperatures:
            positive_number("temperatures", temperature)
        for count in self.finetuned_removed:
            positive_integer("finetuned_removed", count)
        if self.finetuned_random > self.random_orders:
            raise fail("finetuned_random", self.finetuned_random, f"at most {self.random_orders}, the random orders")
        known = (*ORDERS, "magnitude", PREDICTED)
        if unknown := set(self.finetuned_orders) - set(known):
            raise fail("finetuned_orders", sorted(unknown), f"names from {known}")

    @classmethod
    def quick(cls, seed: int = 0, **changes: Any) -> PruningConfig:
        """The small size: fewer sequences, one width, and few networks that are fine-tuned a little."""
        small: dict[str, Any] = {"training_sequences": 200, "validation_sequences": 512, "test_sequences": 4096}
        small |= {"other_sequences": 1024, "finetuned_sequences": 1024, "seed": seed}
        small |= {"widths": (10,), "temperatures": (0.1, 0.5), "rescored": False, "finetuned_removed": (4,)}
        small |= {"finetuned_orders": ("theory",), "finetuned_random": 1}
        small |= {"finetuning_steps": 40, "finetuning_batch": 32, "many": ManyExamples.quick()}
        return cls(**small | changes)

    def with_network(self, file: Path, training: OneShotTrainingConfig) -> PruningConfig:
        """The config for a trained network and the parts of the characters that it was trained with."""
        same = {name: getattr(training, name) for name in ("channels", "classes", "characters")}
        removed = sum(training.heads) - len(training.heads)  # one head stays in each layer
        counts = tuple(count for count in self.finetuned_removed if count <= removed)
        return dataclasses.replace(self, network=str(file.resolve()), finetuned_removed=counts, **same)

    def measured_on(self, part: str) -> int:
        """How many sequences of a part networks as pruned are measured on."""
        counts = {"validation": self.validation_sequences, "test": self.test_sequences}
        return counts.get(part, self.other_sequences)

    def settings(self) -> TrainingSettings:
        """How pruned networks are fine-tuned."""
        steps = self.finetuning_steps
        return TrainingSettings(
            steps=steps, learning_rate=self.finetuning_rate, warmup=min(20, steps // 10), validate_every=steps
        )


class PruningInputs(NamedTuple):
    """What a run reads.

    Fields:
        network: the trained network.
        tasks: by part: training (as drawn), fine-tuning (turned as well), validation, test, fashion-mnist and mnist.
    """

    network: AttentionNetwork
    tasks: dict[str, OneShotTask]

    @property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """(layer, head) of every head."""
        return head_labels(self.network.arch)


@lru_cache(maxsize=1)
def pruning_inputs(config: PruningConfig) -> PruningInputs:
    """The network and the sequences of a config; kept for the next point of the same run."""
    network = shipped_network() if config.network is None else load_network(config.network)
    same = {name: getattr(config, name) for name in ("seed", "channels", "characters", "classes")}
    images = OneShotTrainingConfig(rotations=False, **same)
    tasks = one_shot_tasks(images, one_shot_parts(images))
    tasks["fine-tuning"] = dataclasses.replace(tasks["training"], part="fine-tuning", rotations=True)
    width = tasks["test"].token_width
    if network.token_width != width:
        raise fail("network", f"tokens of width {network.token_width}", f"{width}, as the images have")
    if network.arch.outputs != 1 or min(network.arch.heads) < 2:
        got = f"heads {network.arch.heads} and {network.arch.outputs} outputs"
        raise fail("network", got, "one output, and two heads or more in each layer")
    return PruningInputs(network, tasks)


@lru_cache(maxsize=4)
def sequences(config: PruningConfig, part: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences of a part, x [example, token, feature] and labels; kept for the next network."""
    return pruning_inputs(config).tasks[part].sequences(count)

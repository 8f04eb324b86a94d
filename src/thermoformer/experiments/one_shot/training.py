"""Training of the one-shot networks (experiments §2): config to a trained network with its record."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ... import __version__
from ..._files import write_safely
from ..._progress import Progress, silent
from ..._validation import check_memory, nonnegative_integer, positive_integer
from ...learning import Architecture
from ...networks import AttentionNetwork, Training, TrainingSettings, load_network, save_network, train
from ...tasks import ImageClasses, OneShotTask, load_omniglot, load_other_images, split_classes

# Accuracy of the published network of two layers with four heads, in percent.
PUBLISHED_ACCURACY = 83.8
# The trained network of the package.
SHIPPED = "one_shot_h4.safetensors"
_BATCH_OF_SEQUENCES = 128
# Patches of a sequence, and numbers of a patch for each channel.
_TOKENS, _FEATURES = 48, 64


@dataclass(frozen=True)
class OneShotTrainingConfig:
    """Everything that decides a trained network.

    Batches, steps, weight decay and sizes are the published ones. Other than there, images have one channel, the rate
    (of weights over the root of their fan-in) rises and falls, gradients are cut, and rotations add training classes.

    Arguments:
        heads: heads of each layer.
        width: N.
        key_size: G.
        steps, batch: how many batches, and sequences in each.
        seed: of the initial weights and of the sequences; the split by character is always the same.
        learning_rate, weight_decay, clip, head_dropout, warmup, scale: as in `TrainingSettings`.
        key_scale, validate_every, checkpoint_every, patience: likewise.
        rotations: turned characters are training classes of their own; validation and test have none.
        channels: of the images, 1 or 3.
        classes: characters for training, validation and test.
        characters: how many characters are read; default: all.
        validation_sequences, test_sequences: how many of each; the second also for images of other data sets.
    """

    heads: tuple[int, ...] = (4, 4)
    width: int = 512
    key_size: int = 128
    steps: int = 41_000
    batch: int = 128
    seed: int = 0
    learning_rate: float = 1e-3
    weight_decay: float = 5e-5
    clip: float | None = 1.0
    head_dropout: float = 0.0
    warmup: int = 1000
    scale: float = 1.0
    key_scale: float = 0.5
    validate_every: int = 500
    checkpoint_every: int = 1000
    patience: int | None = None
    rotations: bool = True
    channels: int = 1
    classes: tuple[int, int, int] = (1028, 172, 423)
    characters: int | None = None
    validation_sequences: int = 4096
    test_sequences: int = 10_240

    def __post_init__(self) -> None:
        positive_integer("batch", self.batch)
        nonnegative_integer("seed", self.seed)
        for name in ("validation_sequences", "test_sequences"):
            positive_integer(name, getattr(self, name))
        self.architecture()
        self.settings()
        sizes = f"heads {self.heads}, width {self.width}, key_size {self.key_size}, batch {self.batch}"
        check_memory("sizes", sizes, self._memory())

    def _memory(self) -> int:
        """Bytes that training takes, about: weights with gradients and moments of Adam, and a batch with gradients."""
        heads, tokens, features = sum(self.heads), _TOKENS, _FEATURES * self.channels
        weights = self.width * (features + heads * self.width) + 2 * heads * self.key_size * features
        each = tokens * (features + heads * (self.width + 2 * self.key_size + tokens))
        return 4 * (6 * weights + 2 * self.batch * each)

    @classmethod
    def full(cls, **changes: Any) -> OneShotTrainingConfig:
        """The published size, but for the changes that are not None; a clip of 0 cuts nothing."""
        return cls._changed({}, changes)

    @classmethod
    def quick(cls, **changes: Any) -> OneShotTrainingConfig:
        """A small network on a few characters: enough to see everything run, too little to learn the task."""
        small: dict[str, Any] = {"heads": (2, 2), "width": 32, "key_size": 16, "steps": 400, "batch": 64}
        small |= {"validate_every": 40, "checkpoint_every": 40}
        small |= {"characters": 100, "classes": (60, 20, 20), "validation_sequences": 256, "test_sequences": 512}
        return cls._changed(small, changes)

    @classmethod
    def _changed(cls, fields: dict[str, Any], changes: dict[str, Any]) -> OneShotTrainingConfig:
        fields |= {name: value for name, value in changes.items() if value is not None}
        if fields.get("clip") == 0:
            fields["clip"] = None
        if "steps" in fields:
            fields.setdefault("warmup", min(cls.warmup, positive_integer("steps", fields["steps"]) // 10))
        return cls(**fields)

    def architecture(self) -> Architecture:
        """The sizes of the network."""
        return Architecture(self.heads, self.width)

    def settings(self) -> TrainingSettings:
        """How it is trained."""
        names = {field.name for field in dataclasses.fields(TrainingSettings)}
        given = {name: value for name, value in dataclasses.asdict(self).items() if name in names}
        return TrainingSettings(readout="mean", **given)

    def command(self) -> str:
        """The command line that trains this network, where its other settings are the usual ones."""
        heads = ",".join(str(count) for count in self.heads)
        sizes = f"--width {self.width} --key-size {self.key_size} --steps {self.steps} --batch {self.batch}"
        usual = OneShotTrainingConfig.learning_rate
        rate = "" if self.learning_rate == usual else f" --learning-rate {self.learning_rate}"
        clip = "" if self.clip == OneShotTrainingConfig.clip else f" --clip {self.clip or 0:g}"
        clip += f" --head-dropout {self.head_dropout:g}" if self.head_dropout else ""
        patience = "" if self.patience is None else f" --patience {self.patience}"
        quick = " --quick" if self.characters is not None else ""
        return f"thermoformer train one-shot --heads {heads} {sizes} --seed {self.seed}{rate}{clip}{patience}{quick}"


def run_one_shot_training(
    config: OneShotTrainingConfig, out: str | Path, progress: Progress | None = None
) -> dict[str, Any]:
    """Trains a network, or goes on with one that was interrupted, and returns its record.

    Arguments:
        out: folder for `training.safetensors` (the checkpoint), `network.safetensors` (float16, the network with the
            lowest validation loss) and `record.json`; the accuracies in the record are those of the network as saved.
        progress: called as progress(done, total, message) along the way.
    """
    report, folder = progress or silent, Path(out)
    parts = one_shot_parts(config, report)
    tasks = one_shot_tasks(config, parts)
    training = train(
        config.architecture(),
        lambda number: tasks["training"].batch(number, config.batch),
        tasks["validation"].sequences(config.validation_sequences),
        settings=config.settings(),
        key=config.seed,
        checkpoint=folder / "training.safetensors",
        progress=report,
    )
    network = load_network(save_network(training.network, folder / "network.safetensors", precision="float16"))
    measured = {}
    for name, task in tasks.items():
        if name != "training":
            report(config.steps, config.steps, f"measuring: {name}")
            count = config.validation_sequences if name == "validation" else config.test_sequences
            measured[name] = one_shot_accuracy(network, task, count)
    record = _record(config, training, measured)
    write_safely(folder / "record.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return record


def trained_network(
    folder: str | Path, *, quick: bool = False, seed: int = 0, progress: Progress | None = None
) -> tuple[Path, OneShotTrainingConfig]:
    """A network trained in a folder at its usual or quick size, for the experiments that start from one.

    A training that was interrupted there goes on, and one that is done is not done again.

    Returns:
        The file of the network, and the config that it was trained with.
    """
    config = OneShotTrainingConfig.quick(seed=seed) if quick else OneShotTrainingConfig.full(seed=seed)
    return one_shot_network(config, folder, progress), config


def one_shot_network(config: OneShotTrainingConfig, folder: str | Path, progress: Progress | None = None) -> Path:
    """The file of a network trained in a folder; a training that is done there is not done again."""
    network, record = Path(folder) / "network.safetensors", Path(folder) / "record.json"
    done = json.loads(record.read_text())["config"] if record.is_file() and network.is_file() else None
    # A record from before a setting existed has its default.
    usual, asked = (json.loads(json.dumps(dataclasses.asdict(one))) for one in (OneShotTrainingConfig(), config))
    if done is None or usual | done != asked:
        run_one_shot_training(config, folder, progress)
    return network


def one_shot_parts(config: OneShotTrainingConfig, progress: Progress = silent) -> dict[str, ImageClasses]:
    """The characters for training, validation and test; no character is in two of them."""
    characters = load_omniglot(classes=config.characters, progress=progress)
    names: tuple[str, ...] = ("training", "validation", "test")
    return split_classes(characters, sizes=dict(zip(names, config.classes, strict=True)))


def one_shot_tasks(config: OneShotTrainingConfig, parts: dict[str, ImageClasses]) -> dict[str, OneShotTask]:
    """The task on each part of the characters, and on images of other data sets: clothes and digits, class 0 or 1."""
    images = {name: part.images for name, part in parts.items()}
    images |= {name: load_other_images(name).images for name in ("fashion-mnist", "mnist")}
    return {
        name: OneShotTask(
            array,
            part=name,
            seed=config.seed,
            channels=config.channels,
            rotations=config.rotations and name == "training",
        )
        for name, array in images.items()
    }


def one_shot_accuracy(network: AttentionNetwork, task: OneShotTask, sequences: int) -> float:
    """The accuracy of a network on the first sequences of a task."""
    right = 0.0
    for start in range(0, sequences, _BATCH_OF_SEQUENCES):
        count = min(_BATCH_OF_SEQUENCES, sequences - start)
        x, labels = task.batch(start // _BATCH_OF_SEQUENCES)
        right += count * network.accuracy(x[:count], np.asarray(labels)[:count])
    return right / sequences


def shipped_network() -> AttentionNetwork:
    """A trained network that comes with the package: two layers of four heads, N = 512, one channel.

    It belongs to `OneShotTask` with its usual label embedding, and to the parts of `OneShotTrainingConfig()`: it has
    not seen their validation and test characters. `one_shot_h4.json` beside it says how it was trained.

    Example:
        >>> shipped_network().arch.heads
        (4, 4)
    """
    with as_file(files("thermoformer.experiments") / "data" / SHIPPED) as file:
        return load_network(file)


def _record(config: OneShotTrainingConfig, training: Training, measured: dict[str, float]) -> dict[str, Any]:
    device = jax.devices()[0]
    machine = f"{os.cpu_count()} CPU cores" if device.platform == "cpu" else f"one {device.device_kind}"
    history = training.history
    rows = zip(history.validation_step, history.validation_loss, history.validation_accuracy, strict=True)
    return {
        "command": config.command(),
        "config": dataclasses.asdict(config),
        "accuracy": measured,
        "sequences": {
            name: config.validation_sequences if name == "validation" else config.test_sequences for name in measured
        },
        "parameters": training.network.parameters,
        "steps": int(history.sizes["step"]),
        "best_step": training.best_step,
        "validation_loss": training.best_loss,
        "training_loss": float(history.loss[-500:].mean()),
        "stopped": training.stopped,
        "validation": [[int(step), float(loss), float(accuracy)] for step, loss, accuracy in rows],
        "precision": f"weights float32, products {training.precision}; saved as float16, accuracies of the saved file",
        "split": "by character, at random with seed 0; the sizes of Vinyals et al., not their list",
        "augmentation": "training characters also turned by 90°, 180° and 270°" if config.rotations else "none",
        "machine": machine,
        "versions": {"thermoformer": __version__, "jax": jax.__version__},
    }

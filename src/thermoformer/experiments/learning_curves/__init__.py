"""Theory and networks that gradient descent trains on the same P sequences (trained networks §3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from ..._progress import inside
from ...learning import prior_weights
from ...networks import AttentionNetwork, TrainingSettings, train
from ...sweeps import resumable
from ..base import Study, legend_below
from ..one_shot.config import ManyExamples, OneShotConfig
from ..one_shot.many import many_examples
from ..one_shot.numbers import PART_NAMES
from ..one_shot.points import PARTS, frozen_heads, one_shot_record
from ..one_shot.training import OneShotTrainingConfig
from ..sweeping import Workspace, check_fields, config_of, record_of
from ..words import percent, spread, width_name

# Networks with the heads of the theory, of which the other weights are trained; and networks that train all weights.
KINDS = ("frozen heads", "learned heads")
# What the temperature of the theory is chosen by. Networks are chosen by validation, too: by its loss on their way.
CHOICES = ("validation", "evidence")


@dataclass(frozen=True)
class LearningCurvesConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        many: numbers of training sequences P, and widths and temperatures of the theory.
        seeds: of the initial weights and the order of sequences of the networks.
        steps, batch, learning_rate: of gradient descent; the network with the lowest validation loss on the way counts.
        validation_sequences, test_sequences, other_sequences: as in `OneShotConfig`.
        network: whose heads are frozen; default: the network of the package.
        channels, classes, characters: as in `OneShotTrainingConfig`.
        seed: of the sequences.
    """

    many: ManyExamples = field(
        default_factory=lambda: ManyExamples(
            (100, 300, 1000, 3000, 10_000, 30_000, 60_000), (10, 512), (0.03, 0.1, 0.3, 0.7, 1.5)
        )
    )
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 5000
    batch: int = 128
    learning_rate: float = 1e-3
    validation_sequences: int = 2000
    test_sequences: int = 4000
    other_sequences: int = 2000
    network: str | None = None
    channels: int = 1
    classes: tuple[int, int, int] = (1028, 172, 423)
    characters: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, above_zero=["learning_rate"], ascending={"seeds": "seed"})
        self.settings(frozen=True)

    @classmethod
    def quick(cls, seed: int = 0) -> LearningCurvesConfig:
        """The small size: few sequences and steps."""
        many = ManyExamples(examples=(100, 1000), widths=(10,), temperatures=(0.3, 0.7))
        small: dict[str, Any] = {"validation_sequences": 500, "test_sequences": 1000, "other_sequences": 500}
        return cls(many=many, seeds=(0,), steps=40, seed=seed, **small)

    def with_network(self, file: Any, training: OneShotTrainingConfig) -> LearningCurvesConfig:
        """The config for a trained network and the parts of the characters that it was trained with."""
        same = {name: getattr(training, name) for name in ("channels", "classes", "characters")}
        return dataclasses.replace(self, network=str(file.resolve()), **same)

    def one_shot(self) -> OneShotConfig:
        """The config of the theory with more and more examples."""
        names = ("many", "network", "channels", "classes", "characters", "seed")
        names += ("validation_sequences", "test_sequences", "other_sequences")
        return OneShotConfig(training_examples=128, components=1, **{name: getattr(self, name) for name in names})

    def settings(self, *, frozen: bool) -> TrainingSettings:
        """How a network is trained."""
        every = max(self.steps // 50, 1)
        rate = {"learning_rate": self.learning_rate, "warmup": self.steps // 20}
        return TrainingSettings(steps=self.steps, frozen_heads=frozen, validate_every=every, **rate)


@lru_cache(maxsize=1)
def _training(config: OneShotConfig, checksum: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first training sequences and their labels; kept for the next point."""
    return frozen_heads(config, checksum).tasks["training"].sequences(count)


@resumable
def trained_point(kind: str, examples: int, seed: int, config: Mapping[str, Any]) -> xr.Dataset:
    """`trained` [part], the accuracy of a network trained on the first sequences: a point of the sweep.

    Arguments:
        kind: one of `KINDS`.
        examples: P.
        config: the record of a `LearningCurvesConfig`, and the checksum of its network.
    """
    fields = dict(config)
    checksum = fields.pop("network_checksum")
    settings = config_of(LearningCurvesConfig, fields)
    heads = frozen_heads(settings.one_shot(), checksum)
    x, labels = _training(settings.one_shot(), checksum, examples)

    def batches(number: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = np.random.default_rng((seed, number)).integers(examples, size=settings.batch)
        return x[drawn], labels[drawn]

    network, frozen = heads.network, kind == KINDS[0]
    how = settings.settings(frozen=frozen)
    how = dataclasses.replace(how, key_size=network.queries[0].shape[1], readout=network.readout)
    new = prior_weights(network.arch.replace(variances=1.0), network.token_width, key=seed)
    start = AttentionNetwork(network.arch, new, network.queries, network.keys, network.readout) if frozen else None
    held_out = heads.tasks["validation"].sequences(settings.validation_sequences)
    found = train(network.arch, batches, held_out, settings=how, key=seed, start=start, progress=inside.get()).network
    accuracy = [found.accuracy(*heads.tasks[part].sequences(len(heads.labels[part]))) for part in PARTS]
    return xr.Dataset({"trained": ("part", accuracy)}, {"part": list(PARTS)})


class LearningCurves(Study):
    """Accuracies of the theory and of networks trained on the same sequences.

    `trained` [kind, examples, seed, part] of networks; `theory` [choice, examples, width, part] and its `temperature`
    [choice, examples, width], chosen by validation or by evidence; `source` [part] of the network with these heads.
    """

    name, title, config, point = "learning_curves", "Learning curves", LearningCurvesConfig, trained_point
    folder = ""
    long_names: ClassVar = {
        "trained": "accuracy of networks trained on P sequences",
        "theory": "accuracy of the theory",
        "temperature": "temperature chosen",
        "source": "accuracy of the network whose heads the theory has",
    }

    def axes(self, config: LearningCurvesConfig) -> dict[str, list]:
        """Kinds, numbers of sequences, and seeds."""
        return {"kind": list(KINDS), "examples": list(config.many.examples), "seed": list(config.seeds)}

    def record(self, config: LearningCurvesConfig) -> dict[str, Any]:
        """What decides a network: all but the theory, and the network whose heads it may have."""
        record = record_of(config, seeds=(0,))
        del record["many"]
        return record | {"network_checksum": one_shot_record(config.one_shot())["network_checksum"]}

    def compute(self, config: LearningCurvesConfig, workspace: Workspace) -> xr.Dataset:
        """The theory, and then the networks, which take longest."""
        one_shot = config.one_shot()
        many = many_examples(one_shot, workspace).sel(turned=0, drop=True)
        validation = many.accuracy.sel(part="validation", drop=True).idxmax("temperature")
        chosen = [validation.rename("temperature"), many.temperature_by_evidence.rename("temperature")]
        temperature = xr.concat(chosen, xr.Variable("choice", list(CHOICES)))
        found = workspace.part("trained").sweep(trained_point, self.axes(config), self.record(config))
        heads = frozen_heads(one_shot)
        return found.assign(
            theory=many.accuracy.sel(temperature=temperature).drop_vars("temperature"),
            temperature=temperature,
            source=("part", [heads.accuracy[part] for part in PARTS]),
        )

    def figures(self, dataset: xr.Dataset, config: LearningCurvesConfig) -> dict[str, Any]:
        """Accuracy against the number of sequences, on every part but validation."""
        from ... import figures

        figure, axes = figures.figure_grid(1, len(PARTS) - 1, size=(3.9, 3.9))
        colours = dict(zip(KINDS, ("orange", "green"), strict=True))
        for ax, part in zip(axes[0], PARTS[1:], strict=True):
            one = 100 * dataset.sel(part=part).sel(choice="validation")[["trained", "theory", "source"]]
            for width, colour in zip(one.width.values, ("blue", "sky", "purple", "black"), strict=False):
                look = {"color": figures.PALETTE["black" if np.isinf(width) else colour]}
                label = f"theory, {width_name(width)}"
                ax.plot(
                    one.examples, one.theory.sel(width=width), "--" if np.isinf(width) else "-", label=label, **look
                )
            for kind, colour in colours.items():
                values = one.trained.sel(kind=kind)
                look = {"color": figures.PALETTE[colour], "label": f"gradient descent, {kind}", "capsize": 2}
                error = values.std("seed", ddof=1) if one.sizes["seed"] > 1 else None
                ax.errorbar(one.examples, values.mean("seed"), error, fmt="o-", **look)
            ax.axhline(
                float(one.source), color=figures.PALETTE["grey"], linestyle=":", label="network with these heads"
            )
            ax.set(xscale="log", xlabel="training sequences P", title=PART_NAMES[part])
        axes[0, 0].set_ylabel("accuracy, %")
        legend_below(figure, ncols=3)
        return {"curves": figure}

    def tables(self, dataset: xr.Dataset, config: LearningCurvesConfig) -> dict[str, pd.DataFrame]:
        """All networks, and all theories."""
        return {name: dataset[[name]].to_dataframe().reset_index() for name in ("trained", "theory")}

    def values(self, dataset: xr.Dataset, config: LearningCurvesConfig) -> dict[str, Any]:
        """Accuracies by number of sequences, for each kind of images."""
        tables = {}
        for part in PARTS[1:]:
            one = dataset.sel(part=part)
            theory = [
                [f"theory, {width_name(width)}, τ by {choice}", *map(percent, theory.sel(width=width).values)]
                for choice, theory in zip(CHOICES, one.theory.transpose("choice", "examples", "width"), strict=True)
                for width in one.width.values
            ]
            networks = [
                [
                    f"gradient descent, {kind}",
                    *map(spread, 100 * one.trained.sel(kind=kind).transpose("examples", ...).values),
                ]
                for kind in KINDS
            ]
            tables[PART_NAMES[part]] = [*theory, *networks]
        return {
            "tables": tables,
            "source": {PART_NAMES[part]: float(dataset.source.sel(part=part)) for part in PARTS[1:]},
        }


STUDY = LearningCurves()

"""Theory and several networks trained apart: the same U, readouts and pruned networks (trained networks §3)."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from ..._validation import fail
from ..base import Study
from ..one_shot.config import ManyExamples
from ..one_shot.training import OneShotTrainingConfig, one_shot_network
from ..pruning import STUDY as PRUNING
from ..pruning import PruningConfig
from ..pruning.config import MEASURED, PREDICTED
from ..pruning.numbers import TITLES, order_curves
from ..pruning.predicted import agreement
from ..sweeping import Workspace, check_fields
from ..threads import within
from ..words import percent, spread, width_name

# Orders that are compared, ours first.
COMPARED = (PREDICTED, "gradient", "magnitude", "theory", "trained", "search")
# Those whose pruned networks are fine-tuned.
FINETUNED = (PREDICTED, "gradient", "magnitude", "search")
# What is measured of each network, by number of examples and width.
_MEASURES = {
    "order_correlation": "U off the diagonal, Pearson",
    "order_chance": "orders of the heads with a U as near",
    "readout_cosine": "readout of all paths, cosine",
    "theory_accuracy": "accuracy of the theory on test characters",
    "all_sets": "all pruned networks, Pearson",
    "single": "networks without one head, Spearman",
    "sum_of_order": "sum of |U| and accuracy lost, Spearman",
}


@dataclass(frozen=True)
class Family:
    """Networks that differ by their seed alone.

    Fields:
        heads, head_dropout: as in `OneShotTrainingConfig`.
        seeds: of the networks: of their initial weights and of the sequences that they are trained on.
        finetuned_removed: numbers of removed heads at which pruned networks are fine-tuned; () for none.
    """

    heads: tuple[int, ...] = (4, 4)
    head_dropout: float = 0.0
    seeds: tuple[int, ...] = (11, 12, 13, 14, 15, 16)
    finetuned_removed: tuple[int, ...] = (2, 4)

    @property
    def name(self) -> str:
        """What the family is called in tables and folders."""
        dropout = f", dropout {self.head_dropout:g}" if self.head_dropout else ""
        return " + ".join(map(str, self.heads)) + " heads" + dropout


@dataclass(frozen=True)
class TrainedNetworksConfig:
    """Everything that decides the numbers of a run. All networks have the same settings; test data choose none.

    Arguments:
        families: the networks; by default six of two layers with four heads. `Family((8, 8))` has more heads, and
            `Family(head_dropout=0.2)` leaves heads out at random in training.
        key_size, steps: as in `OneShotTrainingConfig`.
        many: numbers of training examples, widths and temperatures of the theory.
        validation_sequences, test_sequences, other_sequences, random_orders, training_sequences: as in `PruningConfig`.
        finetuned_random, finetuning_steps, finetuned_sequences: likewise.
        quick_training: networks of the quick size of `thermoformer train`.
        seed: of the sequences that theory and networks are compared on, and of the random orders.
    """

    families: tuple[Family, ...] = (Family(),)
    key_size: int = 128
    steps: int = 41_000
    many: ManyExamples = field(default_factory=lambda: ManyExamples((600, 4000, 60_000), (10, 512), (0.1, 0.3, 0.7)))
    training_sequences: int = 600
    validation_sequences: int = 2048
    test_sequences: int = 10_240
    other_sequences: int = 4096
    random_orders: int = 1000
    finetuned_random: int = 3
    finetuning_steps: int = 200
    finetuned_sequences: int = 4096
    quick_training: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, nonnegative=["finetuned_random"])
        if not self.families:
            raise fail("families", "none", "at least one family of networks")
        for family in self.families:
            check_fields(family, ascending={"seeds": "seed"})
            self.training(family, family.seeds[0])

    @classmethod
    def quick(cls, seed: int = 0) -> TrainedNetworksConfig:
        """The small size: two small networks that have hardly learned the task."""
        small: dict[str, Any] = {"families": (Family((2, 2), seeds=(11, 12), finetuned_removed=()),)}
        small |= {"key_size": 16, "steps": 400, "finetuned_random": 1}
        small |= {"many": ManyExamples(examples=(200, 2000), widths=(10,), temperatures=(0.3, 0.7))}
        small |= {"training_sequences": 200, "validation_sequences": 512, "test_sequences": 2048}
        return cls(**small, other_sequences=1024, random_orders=100, quick_training=True, seed=seed)

    def training(self, family: Family, seed: int) -> OneShotTrainingConfig:
        """How one of the networks is trained."""
        make = OneShotTrainingConfig.quick if self.quick_training else OneShotTrainingConfig.full
        of_family = {"heads": family.heads, "head_dropout": family.head_dropout, "seed": seed}
        return make(key_size=self.key_size, steps=self.steps, **of_family)

    def pruning(self, family: Family, file: Any, training: OneShotTrainingConfig) -> PruningConfig:
        """How one of the networks is compared with the theory."""
        names = ("many", "training_sequences", "validation_sequences", "test_sequences", "other_sequences", "seed")
        names += ("random_orders", "finetuned_random", "finetuning_steps", "finetuned_sequences")
        same: dict[str, Any] = {name: getattr(self, name) for name in names}
        same |= {"finetuned_removed": family.finetuned_removed, "finetuned_orders": FINETUNED}
        widths = {"widths": self.many.widths, "temperatures": self.many.temperatures}
        return PruningConfig(**same, **widths, rescored=False).with_network(file, training)


class TrainedNetworks(Study):
    """Networks trained apart, each compared with the theory that has its frozen heads.

    Its Dataset has, for every network, with its `family` [network] and `seed` [network], the measures of `_MEASURES`
    [network, examples, many_width] on test characters, `network_accuracy` and `predicted_accuracy` [network, part],
    `curve` [network, order, removed, part] of accuracies as heads go, `finetuned` in the same form on test characters,
    and `random_mean`, `random_spread` and `finetuned_random` of random orders; nan beyond the heads that a network has.
    Numbers of single networks are in the folders of their own, as `reproduce pruning` writes them.
    """

    name, title, config = "trained_networks", "Theory and trained networks", TrainedNetworksConfig
    folder = ""
    long_names: ClassVar = {
        **_MEASURES,
        "network_accuracy": "accuracy of the trained network",
        "curve": "accuracy as heads are removed, nothing trained",
        "random_mean": "mean of it over random orders",
        "random_spread": "standard deviation of it over random orders",
        "finetuned": "accuracy on test characters as heads are removed, fine-tuned",
        "finetuned_random": "mean of it over random orders",
        "predicted_accuracy": "accuracy of the theory with the largest number of examples",
    }

    def compute(self, config: TrainedNetworksConfig, workspace: Workspace) -> xr.Dataset:
        """All networks are trained, or read if they are there, and compared one after another."""
        if workspace.folder is None:
            with tempfile.TemporaryDirectory() as scratch:
                return self.compute(config, dataclasses.replace(workspace, folder=Path(scratch)))
        everyone = [(family, seed) for family in config.families for seed in family.seeds]
        found = []
        for number, (family, seed) in enumerate(everyone):
            report = within(workspace.progress, number, len(everyone), f"{family.name}, seed {seed}")
            found.append(self.network(config, family, seed, dataclasses.replace(workspace, progress=report)))
        whole = xr.concat(found, "network", data_vars="all", coords="minimal", compat="equals", join="outer")
        families, seeds = zip(*((family.name, seed) for family, seed in everyone), strict=True)
        return whole.assign_coords(family=("network", list(families)), seed=("network", list(seeds)))

    def network(self, config: TrainedNetworksConfig, family: Family, seed: int, workspace: Workspace) -> xr.Dataset:
        """The numbers of one network, in a folder of its own."""
        assert workspace.folder is not None
        folder = workspace.folder / re.sub(r"[^0-9a-z.]+", "_", family.name) / f"network_{seed}"
        training = config.training(family, seed)
        file = one_shot_network(training, folder / "training", workspace.progress)
        own = config.pruning(family, file, training)
        return compared(PRUNING.data(own, folder=folder, executor=workspace.executor, progress=workspace.progress), own)

    def tables(self, dataset: xr.Dataset, config: TrainedNetworksConfig) -> dict[str, pd.DataFrame]:
        """Every measure of every network, and all curves."""
        curves = dataset[["curve", "random_mean", "random_spread"]].to_dataframe().dropna(subset="curve")
        measures = dataset[list(_MEASURES)].to_dataframe()
        return {"measures": measures.reset_index(), "curves": curves.reset_index()}

    def values(self, dataset: xr.Dataset, config: TrainedNetworksConfig) -> dict[str, Any]:
        """Means and standard deviations over the networks of each family."""
        families = [self._family(dataset.isel(network=dataset.family == one.name), one) for one in config.families]
        return {"examples": dataset.examples.values.tolist(), "families": families}

    def _family(self, dataset: xr.Dataset, family: Family) -> dict[str, Any]:
        """What the page says of one family."""
        from ...figures.pruning import ORDER_LABELS

        rows = []
        for name, text in _MEASURES.items():
            factor, digits = (100, 1) if name == "theory_accuracy" else (1, 2)
            for width in dataset.many_width.values:
                values = factor * dataset[name].sel(many_width=width).transpose("examples", "network")
                if np.isfinite(values).all():
                    rows.append([text, width_name(width), *(spread(one, digits) for one in values.values)])
        removed = list(range(1, sum(family.heads) - len(family.heads) + 1))

        def lines(accuracy: xr.DataArray, random: xr.DataArray, counts: Sequence[int]) -> list[list[str]]:
            one = 100 * accuracy.sel(removed=list(counts)).transpose("order", "removed", "network")
            named = [[ORDER_LABELS[order], *map(spread, one.sel(order=order).values)] for order in one.order.values]
            by_chance = 100 * random.sel(removed=list(counts)).transpose("removed", "network")
            return [*named, ["random orders", *map(spread, by_chance.values)]]

        parts = {"validation": "validation characters", **TITLES}
        return {
            "name": family.name,
            "count": dataset.sizes["network"],
            "rows": rows,
            "networks": [
                [str(seed), *map(percent, one.network_accuracy.sel(part=list(parts)).values)]
                for seed, one in zip(dataset.seed.values.tolist(), _each(dataset), strict=True)
            ],
            "other": [
                [title, spread(100 * true), spread(100 * ours), spread(100 * (ours - true))]
                for part, title in parts.items()
                for true, ours in [
                    (dataset.network_accuracy.sel(part=part).values, dataset.predicted_accuracy.sel(part=part).values)
                ]
            ],
            "removed": removed,
            "curves": {
                TITLES[part]: lines(dataset.curve.sel(part=part), dataset.random_mean.sel(part=part), removed)
                for part in MEASURED
            },
            "ahead": {
                TITLES[part]: [spread(one) for one in _ahead(dataset.curve.sel(part=part)).sel(removed=removed).values]
                for part in MEASURED
            },
            "finetuned_removed": list(family.finetuned_removed),
            "finetuned": lines(
                dataset.finetuned.sel(order=list(FINETUNED)), dataset.finetuned_random, family.finetuned_removed
            ),
        }


def _each(dataset: xr.Dataset) -> list[xr.Dataset]:
    return [dataset.isel(network=number) for number in range(dataset.sizes["network"])]


def _ahead(curves: xr.DataArray) -> xr.DataArray:
    """By how many points the order that the theory predicts is ahead of the gradient's, [removed, network]."""
    ahead = curves.sel(order=PREDICTED, drop=True) - curves.sel(order="gradient", drop=True)
    return (100 * ahead).transpose("removed", "network")


def compared(dataset: xr.Dataset, config: PruningConfig) -> xr.Dataset:
    """What is kept of one network, from the Dataset of `reproduce pruning`."""
    whole = dataset.sel(subset=0)
    found = agreement(dataset)
    for name in ("order_correlation", "order_chance", "readout_cosine"):
        found[name] = dataset[name]
    found["theory_accuracy"] = whole.predicted_accuracy.sel(part="test", drop=True)
    curves = {part: order_curves(dataset, str(part), config.measured_on(str(part))) for part in dataset.part.values}
    both = xr.concat(list(curves.values()), xr.Variable("part", list(curves)))
    found["curve"] = both.accuracy.sel(order=list(COMPARED))
    found["random_mean"], found["random_spread"] = both.random_mean, both.random_spread
    tuned = order_curves(dataset, "test", config.finetuned_sequences, finetuned=config.finetuned_random)
    found["finetuned"], found["finetuned_random"] = tuned.accuracy.sel(order=list(COMPARED)), tuned.random_mean
    found["network_accuracy"] = whole.accuracy
    last = whole.predicted_accuracy.isel(examples=-1).sel(many_width=dataset.attrs["many_chosen_width"])
    found["predicted_accuracy"] = last
    return found.reset_coords(drop=True)


STUDY = TrainedNetworks()

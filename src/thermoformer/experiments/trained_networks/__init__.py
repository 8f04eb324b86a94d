"""Theory and several networks trained apart: the same U, readouts and pruned networks (trained networks §3)."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from ..base import Study
from ..one_shot.config import ManyExamples
from ..one_shot.training import OneShotTrainingConfig, one_shot_network
from ..pruning import STUDY as PRUNING
from ..pruning import PruningConfig
from ..pruning.config import FORESEEN, MEASURED
from ..pruning.numbers import TITLES, order_curves
from ..pruning.predicted import agreement
from ..sampled import side_by_side
from ..sweeping import Workspace, check_fields
from ..threads import within
from ..words import percent, spread, width_name

# Orders that are compared, ours first.
COMPARED = (FORESEEN, "gradient", "magnitude", "theory", "trained", "search")
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
class TrainedNetworksConfig:
    """Everything that decides the numbers of a run. All networks have the same settings; test data choose none.

    Arguments:
        seeds: of the networks: of their initial weights and of the sequences that they are trained on.
        heads, key_size, steps, head_dropout: as in `OneShotTrainingConfig`.
        many: numbers of training examples, widths and temperatures of the theory.
        validation_sequences, test_sequences, other_sequences, random_orders, training_sequences: as in `PruningConfig`.
        characters, classes: as in `OneShotTrainingConfig`.
        quick_training: networks of the quick size of `thermoformer train`.
        seed: of the sequences that theory and networks are compared on, and of the random orders.
    """

    seeds: tuple[int, ...] = (11, 12, 13, 14, 15, 16)
    heads: tuple[int, ...] = (4, 4)
    key_size: int = 128
    steps: int = 20_000
    head_dropout: float = 0.0
    many: ManyExamples = field(default_factory=lambda: ManyExamples((600, 4000, 60_000), (10, 512), (0.1, 0.3, 0.7)))
    training_sequences: int = 600
    validation_sequences: int = 2048
    test_sequences: int = 10_240
    other_sequences: int = 4096
    random_orders: int = 1000
    quick_training: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, ascending={"seeds": "seed"})
        self.training(self.seeds[0])

    @classmethod
    def quick(cls, seed: int = 0) -> TrainedNetworksConfig:
        """The small size: two small networks that have hardly learned the task."""
        small: dict[str, Any] = {"seeds": (11, 12), "heads": (2, 2), "key_size": 16, "steps": 400}
        small |= {"many": ManyExamples(examples=(200, 2000), widths=(10,), temperatures=(0.3, 0.7))}
        small |= {"training_sequences": 200, "validation_sequences": 512, "test_sequences": 2048}
        return cls(**small, other_sequences=1024, random_orders=100, quick_training=True, seed=seed)

    def training(self, seed: int) -> OneShotTrainingConfig:
        """How one of the networks is trained."""
        make = OneShotTrainingConfig.quick if self.quick_training else OneShotTrainingConfig.full
        names = ("heads", "key_size", "steps", "head_dropout")
        return make(seed=seed, **{name: getattr(self, name) for name in names})

    def pruning(self, file: Any, training: OneShotTrainingConfig) -> PruningConfig:
        """How one of the networks is compared with the theory."""
        names = ("many", "training_sequences", "validation_sequences", "test_sequences", "other_sequences", "seed")
        same: dict[str, Any] = {name: getattr(self, name) for name in (*names, "random_orders")}
        widths = {"widths": self.many.widths, "temperatures": self.many.temperatures}
        own = PruningConfig(**same, **widths, rescored=False, finetuned_removed=(), finetuned_random=0)
        return own.with_network(file, training)


class TrainedNetworks(Study):
    """Networks trained apart, each compared with the theory that has its frozen heads.

    Its Dataset has, for every network, the measures of `_MEASURES` [network, examples, many_width] on test characters,
    `network_accuracy` [network, part], `curve` [network, order, removed, part] of accuracies as heads go, and
    `random_mean` and `random_spread` of random orders in the same form. Numbers of single networks are in the folders
    of their own, as `reproduce pruning` writes them.
    """

    name, title, config = "trained_networks", "Theory and trained networks", TrainedNetworksConfig
    folder = ""
    long_names: ClassVar = {
        **_MEASURES,
        "network_accuracy": "accuracy of the trained network",
        "curve": "accuracy as heads are removed, nothing trained",
        "random_mean": "mean of it over random orders",
        "random_spread": "standard deviation of it over random orders",
        "foreseen_accuracy": "accuracy of the theory with the largest number of examples",
    }

    def compute(self, config: TrainedNetworksConfig, workspace: Workspace) -> xr.Dataset:
        """All networks are trained, or read if they are there, and compared one after another."""
        if workspace.folder is None:
            with tempfile.TemporaryDirectory() as scratch:
                return self.compute(config, dataclasses.replace(workspace, folder=Path(scratch)))
        found: list[xr.Dataset] = []
        for number, seed in enumerate(config.seeds):
            report = within(workspace.progress, number, len(config.seeds), f"network {seed}")
            place = dataclasses.replace(workspace, progress=report, folder=workspace.folder / f"network_{seed}")
            training = config.training(seed)
            file = one_shot_network(training, workspace.folder / f"network_{seed}" / "training", report)
            own = config.pruning(file, training)
            found.append(
                compared(PRUNING.data(own, folder=place.folder, executor=place.executor, progress=report), own)
            )
        return side_by_side(found, xr.Variable("network", list(config.seeds)))

    def tables(self, dataset: xr.Dataset, config: TrainedNetworksConfig) -> dict[str, pd.DataFrame]:
        """Every measure of every network, and all curves."""
        curves = dataset[["curve", "random_mean", "random_spread"]].to_dataframe().reset_index()
        return {"measures": dataset[list(_MEASURES)].to_dataframe().reset_index(), "curves": curves}

    def values(self, dataset: xr.Dataset, config: TrainedNetworksConfig) -> dict[str, Any]:
        """Means and standard deviations over networks."""
        from ...figures.pruning import ORDER_LABELS

        rows = []
        for name, text in _MEASURES.items():
            factor, digits = (100, 1) if name == "theory_accuracy" else (1, 2)
            for width in dataset.many_width.values:
                values = factor * dataset[name].sel(many_width=width).transpose("examples", "network")
                if np.isfinite(values).all():
                    rows.append([text, width_name(width), *(spread(one, digits) for one in values.values)])
        curves = 100 * dataset.curve.transpose("part", "order", "removed", "network")
        random = 100 * dataset.random_mean.transpose("part", "removed", "network")
        removed = [count for count in dataset.removed.values.tolist() if count]
        return {
            "examples": dataset.examples.values.tolist(),
            "rows": rows,
            "removed": removed,
            "networks": [
                [str(seed), *(percent(value) for value in dataset.network_accuracy.sel(network=seed).values)]
                for seed in config.seeds
            ],
            "curves": {
                TITLES[part]: [
                    *(
                        [ORDER_LABELS[order], *(spread(one) for one in curves.sel(part=part, order=order).values[1:])]
                        for order in COMPARED
                    ),
                    ["random orders", *(spread(one) for one in random.sel(part=part).values[1:])],
                ]
                for part in MEASURED
            },
            "ahead": {
                TITLES[part]: [spread(one) for one in _ahead(curves.sel(part=part)).values[1:]] for part in MEASURED
            },
        }


def _ahead(curves: xr.DataArray) -> xr.DataArray:
    """By how many points the order that the theory foresees is ahead of the gradient's, [removed, network]."""
    return curves.sel(order=FORESEEN, drop=True) - curves.sel(order="gradient", drop=True)


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
    found["network_accuracy"] = whole.accuracy
    last = whole.predicted_accuracy.isel(examples=-1).sel(many_width=dataset.attrs["many_chosen_width"])
    found["foreseen_accuracy"] = last
    return found.reset_coords(drop=True)


STUDY = TrainedNetworks()

"""Heads pruned from a trained one-shot network (experiments §2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from ..._progress import Progress, inside
from ..._validation import fail
from ...networks import pruned_accuracies
from ...networks import train as train_network
from ...sweeps import resumable
from .. import store
from ..base import Study
from ..one_shot.many import many_examples
from ..sweeping import Workspace, config_of, record_of
from . import numbers
from .config import MEASURED, ORDERS, PREDICTED, SCORES, PruningConfig, PruningInputs, pruning_inputs, sequences
from .numbers import rank_correlation, single_drops
from .predicted import agreement_rows, chosen_sets, one_shot_config, predicted_data, set_rows, temperature_rows
from .scores import all_codes, order_codes, removed_heads, rescored_data, score_data

# Fields that change no number of the plain accuracies and of the scores.
_LATER = (
    "many",
    "random_orders",
    "rescored",
    *(name for name in PruningConfig.__dataclass_fields__ if "finetun" in name),
)
# Fields that change no fine-tuned network have these values in its record, whatever their defaults are.
_SAME: dict[str, Any] = {
    "random_orders": 1000,
    "rescored": True,
    "finetuned_removed": (2, 4, 6),
    "finetuned_orders": ORDERS,
    "finetuned_random": 4,
    "widths": (10, 100, 1000),
    "temperatures": (0.01, 0.1, 0.5, 1.0),
    "training_sequences": 600,
    "test_sequences": 10_240,
    "other_sequences": 4096,
}
# A network of more heads than this has too many sets of heads to measure all; two layers of eight have 65 025.
MOST_HEADS = 16


def subset_data(config: PruningConfig, inputs: PruningInputs, progress: Progress) -> xr.Dataset:
    """`accuracy` [part, subset] of every set of heads: the layers rescaled, nothing trained."""
    arch, heads = inputs.network.arch, inputs.heads
    if len(heads) > MOST_HEADS:
        raise fail("network", f"{len(heads)} heads", f"at most {MOST_HEADS}: all sets of heads are measured")
    codes = all_codes(arch, heads)
    sets = [removed_heads(heads, code) for code in codes]
    names = ("validation", *MEASURED)
    accuracy = []
    for number, name in enumerate(names):
        progress(number, len(names), f"every set of heads: {name}")
        examples = inputs.tasks[name].sequences(config.measured_on(name))
        accuracy.append(pruned_accuracies(inputs.network, sets, *examples))
    return xr.Dataset(
        {"accuracy": (("part", "subset"), np.array(accuracy))},
        {"part": list(names), "subset": np.array(codes, np.int64)},
    )


@resumable
def finetuned_network(subset: int, config: Mapping[str, Any]) -> xr.Dataset:
    """`finetuned_accuracy` [part] of the network without a set of heads, trained a little more: a point of the sweep.

    Arguments:
        subset: which heads are gone, as a number.
        config: the record of a `PruningConfig`, and the digest of its network.
    """
    settings = config_of(PruningConfig, {name: value for name, value in config.items() if name != "digest"})
    inputs = pruning_inputs(settings)
    if inputs.network.digest != config["digest"]:
        raise fail(
            "network", f"one with digest {inputs.network.digest}", f"{config['digest']}, as the sweep began with"
        )
    smaller = inputs.network.without(removed_heads(inputs.heads, subset))
    batch = settings.finetuning_batch
    trained = train_network(
        smaller.arch,
        lambda number: inputs.tasks["fine-tuning"].batch(number, batch),
        sequences(settings, "validation", min(512, settings.validation_sequences)),
        settings=settings.settings(),
        key=settings.seed,
        start=smaller,
        progress=inside.get(),
    )
    found = []
    for name in MEASURED:
        found.append(trained.network.accuracy(*sequences(settings, name, settings.finetuned_sequences)))
    return xr.Dataset({"finetuned_accuracy": ("part", found)}, {"part": list(MEASURED)})


def _codes_to_finetune(config: PruningConfig, orders: xr.Dataset) -> list[int]:
    """The whole network as the control, and the sets that orders pass through at the numbers of heads to fine-tune."""
    counts = [count for count in config.finetuned_removed if count in orders.removed.values]
    if not counts:
        return []
    tuned = [name for name in config.finetuned_orders if name in orders.order.values]
    named = orders.order_code.sel(order=tuned, removed=counts).values
    random = orders.random_code[: config.finetuned_random].sel(removed=counts).values
    return [0, *sorted({int(code) for code in (*named.ravel(), *random.ravel())} - {0})]


def _with_orders(orders: xr.Dataset, more: xr.DataArray) -> xr.Dataset:
    """The orders with more of them, [order, removed]."""
    both = xr.concat([orders.order_code, more.reset_coords(drop=True).rename("order_code")], "order")
    return orders.drop_vars(["order_code", "order"]).assign(order_code=both)


class Pruning(Study):
    """Heads pruned from a trained network: every set of heads measured, scores that rank them, and fine-tuning.

    Its Dataset has `accuracy` [part, subset] of every set of heads that leaves one in each layer, on validation, test,
    fashion-mnist and mnist sequences; `finetuned_accuracy` in the same form, nan if it was not fine-tuned; a subset
    is a number whose bit i says that head i is gone. `score` [score_name, head]. `order_code` [order, removed] and
    `random_code` [random, removed], the subsets that the orders pass through. `grid_accuracy` [width, temperature] of
    the theory on validation sequences, its choice in the attributes. With more and more training examples:
    `predicted_accuracy` [examples, many_width, part, subset] and `ablation` [head].
    """

    name, title, config, point = "pruning", "Pruning", PruningConfig, finetuned_network
    folder = ""
    long_names: ClassVar = {
        "accuracy": "accuracy of the network without the heads, layers rescaled",
        "finetuned_accuracy": "accuracy of the network without the heads, fine-tuned",
        "score": "score of the head",
        "grid_accuracy": "accuracy of the theory on validation sequences",
        "grid_converged": "whether the theory's solver reached its tolerance",
        "order_code": "heads gone, as bits",
        "predicted_accuracy": "accuracy without the heads predicted by the theory",
        "order_correlation": "correlation of U, off the diagonal, with that of the trained network",
        "order_chance": "part of orders of the heads in which this correlation is as large",
        "readout_cosine": "cosine of the readouts of all paths with those of the trained network",
        "many_sum": "sum of |U| over pairs of paths with the head, over the largest",
        "last_predicted": "the same at every temperature with the largest number of examples",
        "ablation": "loss added without the head, as predicted with the largest number of examples",
        "random_code": "heads gone in random orders, as bits",
    }

    def compute(self, config: PruningConfig, workspace: Workspace) -> xr.Dataset:
        """Sets of heads and scores, which are kept in files, and a sweep over networks that are fine-tuned."""
        workspace.progress(0, 1, "network and images")
        inputs = pruning_inputs(config)
        # The file that a config names may come to hold another network.
        mark = f"{store.fingerprint(config, apart_from=_LATER)}-{inputs.network.digest}"

        def kept(name: str, compute: Callable[..., xr.Dataset], *given: Any) -> xr.Dataset:
            file = workspace.part(f"{name}.nc").folder
            return store.kept(file, mark, lambda: compute(config, inputs, *given, workspace.progress))

        subsets, scores = kept("subsets", subset_data), kept("scores", score_data)
        orders = order_codes(config, inputs, scores, subsets)
        predicted = xr.Dataset()
        if config.many is not None:
            many = many_examples(one_shot_config(config), workspace)
            file = workspace.part("foreseen.nc").folder
            of_many = f"{mark}-{store.fingerprint(config.many)}-4"  # raised where `predicted_data` gives more
            predicted = store.kept(file, of_many, lambda: predicted_data(config, inputs, many, workspace.progress))
            best = chosen_sets(predicted.predicted_accuracy).sel(many_width=predicted.many_chosen_width)
            orders = _with_orders(orders, best.isel(examples=-1).expand_dims(order=[PREDICTED]))
        finetuned = xr.full_like(subsets, np.nan).rename(accuracy="finetuned_accuracy")
        if codes := _codes_to_finetune(config, orders):
            record = record_of(config, **_SAME) | {"digest": inputs.network.digest}
            del record["many"]  # it changes no fine-tuned network
            found = workspace.part("finetuned").sweep(finetuned_network, {"subset": codes}, record)
            finetuned = found.reindex(subset=subsets.subset.values, part=subsets.part.values)
        if config.rescored:
            again = kept("rescored", rescored_data, scores).rescored.assign_coords(removed=orders.removed)
            orders = _with_orders(orders, again)
        parts = [subsets, scores.drop_attrs(deep=False), finetuned, orders, predicted.drop_attrs(deep=False)]
        whole = xr.merge(parts, combine_attrs="drop", join="exact")
        return whole.assign_attrs(scores.attrs | predicted.attrs, heads=list(inputs.network.arch.heads))

    def tables(self, dataset: xr.Dataset, config: PruningConfig) -> dict[str, pd.DataFrame]:
        """Heads one by one, and all curves."""
        return {"heads": numbers.head_table(dataset, config), "curves": numbers.curve_table(dataset, config)}

    def values(self, dataset: xr.Dataset, config: PruningConfig) -> dict[str, Any]:
        """Correlations of scores and losses, and curves beside random orders."""
        from ...figures.pruning import ORDER_LABELS

        drops, published = single_drops(dataset), numbers.PUBLISHED_SINGLE
        curves = {part: numbers.order_curves(dataset, part, config.measured_on(part)) for part in MEASURED}
        finetuned = numbers.finetuned_curves(dataset, "test", config)
        tuned = 100 * dataset.finetuned_accuracy.sel(subset=0)
        return {
            "layers": np.atleast_1d(dataset.attrs["heads"]).tolist(),
            "score_names": [numbers.SCORE_NAMES[name] for name in SCORES],
            "head_rows": numbers.head_rows(dataset, config),
            "correlations": {
                numbers.SCORE_NAMES[name]: rank_correlation(dataset.score.sel(score_name=name).values, drops)
                for name in SCORES
            },
            "published": rank_correlation(range(len(published)), [-accuracy for accuracy in published]),
            "many": self._predicted(dataset, drops) if config.many is not None else None,
            "curves": {
                numbers.TITLES[part]: (*numbers.curve_rows(one, ORDER_LABELS), numbers.verdicts(one))
                for part, one in curves.items()
            },
            "control": {numbers.TITLES[part]: float(tuned.sel(part=part)) for part in MEASURED},
            "finetuned": numbers.curve_rows(finetuned, ORDER_LABELS),
        }

    def _predicted(self, dataset: xr.Dataset, drops: np.ndarray) -> dict[str, Any]:
        """What the page says of networks that the theory predicts."""
        return {
            "examples": dataset.examples.values.tolist(),
            "picked": [f"predicted, P = {count}" for count in dataset.examples.values.tolist()],
            "width": int(dataset.many_chosen_width),
            "temperature": dataset.many_chosen_temperature,
            "agreement": agreement_rows(dataset),
            "temperatures": temperature_rows(dataset),
            "removed": [f"{count} removed" for count in dataset.removed.values[1:4].tolist()],
            "sets": {numbers.TITLES[part]: set_rows(dataset, part) for part in MEASURED},
            "ablation": rank_correlation(dataset.ablation.values, drops),
        }


STUDY = Pruning()

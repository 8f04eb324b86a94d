"""Pruned networks as the theory predicts them, before anything is measured (trained networks §2, §3)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import xarray as xr

from ..._progress import Progress
from ...learning import head_scores
from ...learning.scores import accuracies_with_factors, path_factors
from ..one_shot.config import OneShotConfig
from ..one_shot.many import at_evidence, with_agreement
from ..words import fixed, percent, width_name
from .config import MEASURED, PruningConfig, PruningInputs
from .numbers import rank_correlation
from .scores import all_codes, removed_heads


def one_shot_config(config: PruningConfig) -> OneShotConfig:
    """The config of the one-shot experiment whose theory has more and more examples, for the same network."""
    names = ("network", "seed", "channels", "characters", "classes", "many", "validation_sequences")
    same: dict[str, Any] = {name: getattr(config, name) for name in names}
    sizes = {"test_sequences": config.finetuned_sequences, "other_sequences": config.finetuned_sequences}
    return OneShotConfig(training_examples=config.training_sequences, components=1, **sizes, **same)


def chosen_width(many: xr.Dataset) -> float:
    """The finite width with the highest evidence of the largest number of training labels."""
    last = at_evidence(many).log_evidence.sel(turned=0).isel(examples=-1)
    return float(last.where(np.isfinite(last.width), -np.inf).idxmax("width"))


def predicted_data(config: PruningConfig, inputs: PruningInputs, many: xr.Dataset, progress: Progress) -> xr.Dataset:
    """What the theory with more and more examples predicts, from the readouts of its paths alone.

    `predicted_accuracy` [examples, width, part, subset] of every set of heads that is gone, nothing solved again, and
    `last_predicted` [width, temperature, part, subset] at every temperature with the largest number of examples;
    `order_correlation`, `order_chance` and `readout_cosine` [examples, width] of `with_agreement`;
    `many_sum` [examples, width, head], the scores by the sum of |U|; and `ablation` [head], the loss on validation
    characters that the chosen width predicts without each head, with the largest number of examples.
    """
    arch, heads = inputs.network.arch, inputs.heads
    codes = all_codes(arch, heads)
    factors = np.array([path_factors(arch, removed_heads(heads, code)) for code in codes])
    plain, names = at_evidence(many).sel(turned=0), ("validation", *MEASURED)
    last = many.readout.sel(turned=0).isel(examples=-1)
    readouts = [
        plain.readout.transpose("examples", "width", "path", "feature").values,
        last.transpose("width", "temperature", "path", "feature").values,
    ]
    accuracy, by_temperature = (np.empty((*one.shape[:2], len(names), len(codes))) for one in readouts)
    for number, name in enumerate(names):
        progress(number, len(names), f"every set of heads, predicted: {name}")
        x, y = inputs.tasks[name].sequences(config.measured_on(name))
        xi = np.asarray(inputs.network.path_features(x).values)
        for readout, found in zip(readouts, (accuracy, by_temperature), strict=True):
            for at in np.ndindex(readout.shape[:2]):
                parts = np.einsum("xai,ai->xa", xi, readout[at])
                found[(*at, number)] = accuracies_with_factors(parts, factors, y)
    agreeing = with_agreement(plain, inputs.network)[["order_correlation", "order_chance", "readout_cosine"]]
    orders = plain.order_parameter.transpose("examples", "width", "path", "other_path").values
    sums = [[head_scores(arch, order).values for order in row] for row in orders]
    width = chosen_width(many)
    chosen = plain.readout.sel(width=width).isel(examples=-1).transpose("path", "feature").values
    x, y = inputs.tasks["validation"].sequences(config.validation_sequences)
    parts = np.einsum("xai,ai->xa", np.asarray(inputs.network.path_features(x).values), chosen)
    losses = [np.mean((parts @ path_factors(arch, gone) - y) ** 2) for gone in ([], *([head] for head in heads))]
    return xr.Dataset(
        {
            "predicted_accuracy": (("examples", "many_width", "part", "subset"), accuracy),
            "last_predicted": (("many_width", "many_temperature", "part", "subset"), by_temperature),
            **{name: (("examples", "many_width"), one.values) for name, one in agreeing.data_vars.items()},
            "many_sum": (("examples", "many_width", "head"), np.array(sums)),
            "ablation": ("head", np.array(losses[1:]) - losses[0]),
        },
        {
            "examples": plain.examples.values,
            "many_width": plain.width.values,
            "many_temperature": last.temperature.values,
            "part": list(names),
            "subset": np.array(codes, np.int64),
        },
        {
            "many_chosen_width": width,
            "many_chosen_temperature": float(plain.temperature_by_evidence.sel(width=width).isel(examples=-1)),
        },
    )


def chosen_sets(predicted: xr.DataArray) -> xr.DataArray:
    """The sets of heads whose removal the theory predicts to cost least on validation sequences: codes [..., removed].

    Arguments:
        predicted: `predicted_accuracy`.
    """
    size = np.array([int(code).bit_count() for code in predicted.subset.values])
    validation = predicted.sel(part="validation", drop=True)
    best = [validation.isel(subset=size == count).idxmax("subset") for count in range(size.max() + 1)]
    both = xr.concat(best, "removed").assign_coords(removed=np.arange(size.max() + 1))
    return both.transpose(..., "removed").astype(np.int64)


def agreement(dataset: xr.Dataset, part: str = "test") -> xr.Dataset:
    """How well pruned networks are predicted on a part, [examples, many_width].

    `all_sets`: Pearson's correlation of predicted and true accuracy over all sets of heads; `single`: Spearman's over
    single heads; `sum_of_order`: Spearman's of the sum of |U| with what is lost without each head.
    """
    found = _correlations(dataset, dataset.predicted_accuracy, part)
    lost = -dataset.accuracy.sel(part=part, subset=_singles(dataset)).values
    sums = dataset.many_sum.transpose(*found.all_sets.dims, "head").values
    found["sum_of_order"] = xr.full_like(found.all_sets, np.nan)
    for at in np.ndindex(found.all_sets.shape):
        found.sum_of_order[at] = rank_correlation(sums[at], lost).value
    return found


def _correlations(dataset: xr.Dataset, predicted: xr.DataArray, part: str) -> xr.Dataset:
    """`all_sets` and `single` of `agreement`, along the axes that predicted accuracies have besides part and subset."""
    true, ours = dataset.accuracy.sel(part=part), predicted.sel(part=part, drop=True).transpose(..., "subset")
    alone, axes = true.sel(subset=_singles(dataset)).values, ours.dims[:-1]
    found = xr.Dataset(coords={name: dataset[name] for name in axes})
    found["all_sets"], found["single"] = ((axes, np.full(ours.shape[:-1], np.nan)) for _ in range(2))
    for at in np.ndindex(ours.shape[:-1]):
        with np.errstate(invalid="ignore"):  # predictions that are all the same have no correlation
            found.all_sets[at] = np.corrcoef(ours[at].values, true.values)[0, 1]
        found.single[at] = rank_correlation(ours[at].sel(subset=_singles(dataset)).values, alone).value
    return found


def _singles(dataset: xr.Dataset) -> list[int]:
    """The codes of single heads."""
    return [1 << index for index in range(dataset.sizes["head"])]


def temperature_rows(dataset: xr.Dataset, part: str = "test") -> list[list[str]]:
    """What is predicted with the largest number of examples, at every width and temperature."""
    found, predicted = _correlations(dataset, dataset.last_predicted, part), dataset.last_predicted
    chosen, true, lines = chosen_sets(predicted), dataset.accuracy.sel(part=part), []
    for width, temperature in itertools.product(dataset.many_width.values, dataset.many_temperature.values):
        at = {"many_width": width, "many_temperature": temperature}
        whole = predicted.sel(subset=0, **at)
        picked = [percent(true.sel(subset=int(code))) for code in chosen.sel(**at).values[1:4]]
        cells = [percent(whole.sel(part=name)) for name in ("validation", part)]
        cells += [
            "" if np.isnan(one) else fixed(float(one), 2) for one in (found.all_sets.sel(at), found.single.sel(at))
        ]
        lines.append([width_name(width), f"{temperature:g}", *cells, *picked])
    return lines


def set_rows(dataset: xr.Dataset, part: str = "test") -> list[list[str]]:
    """True accuracies of the sets that the theory picks, beside all sets of their size, by heads removed."""
    true = dataset.accuracy.sel(part=part)
    size = np.array([int(code).bit_count() for code in dataset.subset.values])
    chosen = chosen_sets(dataset.predicted_accuracy).sel(many_width=dataset.attrs["many_chosen_width"])
    lines = []
    for removed in range(1, int(size.max()) + 1):
        every = 100 * true.values[size == removed]
        picked = [percent(true.sel(subset=int(code))) for code in chosen.sel(removed=removed).values]
        search = true.sel(subset=int(dataset.order_code.sel(order="search", removed=removed)))
        spread = f"{every.mean():.1f} ± {every.std(ddof=1):.1f}" if len(every) > 1 else f"{every.mean():.1f}"
        lines.append([str(removed), *picked, percent(search), spread, f"{every.max():.1f}"])
    return lines


def agreement_rows(dataset: xr.Dataset) -> list[list[str]]:
    """The numbers of `agreement` on test characters, by width, one line per measure."""
    found, lines = agreement(dataset), []
    texts = {
        "all_sets": "all sets, Pearson",
        "single": "single heads, Spearman",
        "sum_of_order": "sum of |U|, Spearman",
    }
    for name, text in texts.items():
        for width in found.many_width.values:
            values = found[name].sel(many_width=width).values
            lines.append([text, width_name(width), *("" if np.isnan(value) else fixed(value, 2) for value in values)])
    return lines

"""What pruning shows in numbers: rank correlations, curves beside random orders, and tables of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import rankdata

from ..._validation import fail, real_array
from ...learning.scores import head_name, head_of
from ..one_shot.training import PUBLISHED_ACCURACY
from ..words import binomial_error, fixed, listed, minus, with_texts
from .config import MEASURED, SCORES, PruningConfig
from .scores import removed_heads

TITLES = {"test": "test characters", "fashion-mnist": "Fashion-MNIST", "mnist": "MNIST"}
SCORE_NAMES = {
    "theory": "theory's U",
    "evidence": "evidence lost",
    "gradient": "gradient importance",
    "trained": "U of the trained weights",
}

# Accuracies in percent without one head, in ascending score (experiments §2), of the published network.
PUBLISHED_SINGLE = (81.8, 83.0, 79.5, 75.4, 76.0, 76.5, 74.3, 74.9)
# Up to this many heads every permutation is counted; beyond it, this many random ones.
_EXACT_UP_TO = 8
_PERMUTATIONS = 20_000


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rank correlation.

    Fields:
        value: from −1 to 1; nan where one side is constant.
        chance: the part of all pairings whose correlation is as far from 0 or further (two-sided p).
    """

    value: float
    chance: float


def rank_correlation(first: Any, second: Any) -> RankCorrelation:
    """Spearman's rank correlation with its permutation p: exact up to 8 numbers, else of 20 000 random pairings.

    Example:
        >>> rank_correlation([1, 2, 3, 4], [10, 20, 30, 40])
        RankCorrelation(value=1.0, chance=0.08333333333333333)
    """
    one, two = real_array("first", first, ("head",)), real_array("second", second, ("head",))
    if len(one) != len(two):
        raise fail("second", f"{len(two)} numbers", f"{len(one)}, as many as first")
    ranks = [rankdata(side) - (len(one) + 1) / 2 for side in (one, two)]
    scale = np.sqrt(np.prod([side @ side for side in ranks]))
    if scale == 0:
        return RankCorrelation(float("nan"), 1.0)
    value = float(ranks[0] @ ranks[1] / scale)
    if len(one) <= _EXACT_UP_TO:
        orders = np.array(list(itertools.permutations(range(len(one)))))
    else:
        random = np.random.default_rng(0)
        orders = np.array([random.permutation(len(one)) for _ in range(_PERMUTATIONS)])
    others = ranks[1][orders] @ ranks[0] / scale
    # Equal sums differ in the last digit by the order of their terms.
    return RankCorrelation(round(value, 12), float(np.mean(np.abs(others) >= abs(value) - 1e-9)))


def single_drops(dataset: xr.Dataset, part: str = "test") -> np.ndarray:
    """The accuracy lost without each head alone, in percent points, [head]."""
    accuracy = 100 * dataset.accuracy.sel(part=part)
    codes = [1 << index for index in range(dataset.sizes["head"])]
    return float(accuracy.sel(subset=0)) - accuracy.sel(subset=codes).values


def order_curves(dataset: xr.Dataset, part: str, examples: int, *, finetuned: int | None = None) -> xr.Dataset:
    """`accuracy` and `error` [order, removed], `random_mean` and `random_spread` [removed], for `pruning_curves`.

    `beats` [order, removed] is the part of random orders with a lower accuracy, ties counted half; `deviations` how
    many standard deviations of random orders the accuracy is above their mean.

    Arguments:
        examples: how many sequences an accuracy was measured on.
        finetuned: how many random orders of fine-tuned networks there are; default: networks as pruned.
    """
    table = (dataset.accuracy if finetuned is None else dataset.finetuned_accuracy).sel(part=part)
    accuracy = table.sel(subset=dataset.order_code).drop_vars(["subset", "part"])
    codes = dataset.random_code if finetuned is None else dataset.random_code[:finetuned]
    random = table.sel(subset=codes).drop_vars(["subset", "part"])
    mean = random.mean("random")
    spread = random.std("random", ddof=1) if random.sizes["random"] > 1 else xr.full_like(mean, np.nan)
    difference = accuracy - mean
    below = ((random < accuracy) + 0.5 * (random == accuracy)).mean("random")
    return xr.Dataset(
        {
            "accuracy": accuracy,
            "error": accuracy.copy(data=binomial_error(accuracy, examples)),
            "random_mean": mean,
            "random_spread": spread,
            "deviations": (difference / spread.where(spread > 1e-12)).transpose(*accuracy.dims),
            "beats": below.where(accuracy.notnull()).transpose(*accuracy.dims),
        }
    )


def finetuned_curves(dataset: xr.Dataset, part: str, config: PruningConfig) -> xr.Dataset:
    """`order_curves` of fine-tuned networks, at the numbers of heads that have some."""
    curves = order_curves(dataset, part, config.finetuned_sequences, finetuned=config.finetuned_random)
    return curves.isel(removed=curves.accuracy.notnull().any("order"))


def head_rows(dataset: xr.Dataset, config: PruningConfig) -> list[list[str]]:
    """Heads in ascending score of the theory, beside the published accuracies in theirs."""
    drops, scores = single_drops(dataset), {name: dataset.score.sel(score_name=name).values for name in SCORES}
    whole = 100 * float(dataset.accuracy.sel(part="test", subset=0))
    names = dataset["head"].values
    published = PUBLISHED_SINGLE if len(names) == len(PUBLISHED_SINGLE) else ("",) * len(names)
    lines = []
    for place, index in enumerate(np.argsort(scores["theory"], kind="stable")):
        error = 100 * float(binomial_error((whole - drops[index]) / 100, config.test_sequences))
        ours = f"{whole - drops[index]:.1f} ± {error:.1f}"
        lines.append(
            [names[index], *(fixed(values[index], 2) for values in scores.values()), ours, str(published[place])]
        )
    return [*lines, ["all heads", "", "", "", "", f"{whole:.1f}", str(PUBLISHED_ACCURACY) if published[0] else ""]]


def curve_rows(curves: xr.Dataset, labels: Mapping[str, str]) -> tuple[list[str], list[list[str]]]:
    """Numbers of heads removed, and the accuracies of every order and of random orders there."""
    counts = [int(count) for count in curves.removed.values if count > 0]
    lines = []
    for order in curves.order.values.tolist():
        at = curves.sel(order=order, removed=counts)
        found = zip(at.accuracy.values, at.deviations.values, at.beats.values, strict=True)
        cells = [_beside_random(*numbers) for numbers in found]
        if any(cells):
            lines.append([labels.get(order, order), *cells])
    at = curves.sel(removed=counts)
    pairs = zip(100 * at.random_mean.values, 100 * at.random_spread.values, strict=True)
    random = [f"{mean:.1f}" + ("" if np.isnan(deviation) else f" ± {deviation:.1f}") for mean, deviation in pairs]
    return [str(count) for count in counts], [*lines, ["random orders", *random]]


def _beside_random(accuracy: float, deviations: float, beats: float) -> str:
    text = "" if np.isnan(accuracy) else f"{100 * accuracy:.1f}"
    return minus(f"{text} ({deviations:+.1f}; {100 * beats:.0f} %)" if np.isfinite(deviations) else text)


def verdicts(curves: xr.Dataset) -> list[dict[str, str]]:
    """Where each score beats random orders by more than one standard deviation, and where it is worse by as much."""
    found = []
    for order in SCORES:
        at = curves.deviations.sel(order=order)
        better, worse = (listed(curves.removed.values[chosen.values]) for chosen in (at > 1, at < -1))
        found.append({"name": SCORE_NAMES[order], "better": better, "worse": worse})
    return found


def head_table(dataset: xr.Dataset, config: PruningConfig) -> pd.DataFrame:
    """Scores and single drops of every head."""
    scores = {f"score_{name}": dataset.score.sel(score_name=name).values for name in SCORES}
    drops = {f"drop_{part}_points": single_drops(dataset, part) for part in MEASURED}
    whole = float(dataset.accuracy.sel(part="test", subset=0))
    drops["error_test_points"] = 100 * binomial_error(whole - drops["drop_test_points"] / 100, config.test_sequences)
    frame = pd.DataFrame({"head": dataset["head"].values} | scores | drops)
    return with_texts(frame, **dict.fromkeys(scores, ".6g"), **dict.fromkeys(drops, ".2f"))


def curve_table(dataset: xr.Dataset, config: PruningConfig) -> pd.DataFrame:
    """Every curve."""
    labels = [head_of(name) for name in dataset["head"].values.tolist()]
    measures = ["accuracy", "error", "random_mean", "random_spread", "deviations", "beats"]
    frames = []
    for part, finetuned in itertools.product(MEASURED, (None, config.finetuned_random)):
        examples = config.measured_on(part) if finetuned is None else config.finetuned_sequences
        curves = order_curves(dataset, part, examples, finetuned=finetuned).assign(code=dataset.order_code)
        frame = curves.to_dataframe(dim_order=("order", "removed")).dropna(subset=["accuracy"]).reset_index()
        frames.append(frame.assign(part=part, fine_tuned="no" if finetuned is None else "yes"))
    whole = pd.concat(frames)
    heads = [" ".join(map(head_name, removed_heads(labels, code))) for code in whole.code]
    whole = whole.assign(heads=heads)[["part", "fine_tuned", "order", "removed", "heads", *measures]]
    return with_texts(whole, **dict.fromkeys(measures, ".4f"))

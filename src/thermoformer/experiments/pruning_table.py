"""What pruning shows in numbers: rank correlations, curves beside random orders, and the published accuracies."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import rankdata

from .._validation import fail, real_array

# Accuracies in percent without one head, in ascending score (experiments §2), of the published network.
PUBLISHED_SINGLE = (81.8, 83.0, 79.5, 75.4, 76.0, 76.5, 74.3, 74.9)
# Up to this many heads every permutation is counted; beyond it, so many random ones.
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


def binomial_error(accuracy: Any, examples: int) -> np.ndarray:
    """The standard error of an accuracy, both from 0 to 1."""
    value = np.asarray(accuracy, float)
    return np.sqrt(value * (1 - value) / examples)


def order_curves(dataset: xr.Dataset, part: str, examples: int, *, finetuned: int | None = None) -> xr.Dataset:
    """`accuracy` and `error` [order, removed], `random_mean` and `random_spread` [removed], for `pruning_curves`.

    `beats` [order, removed] is the part of random orders with a lower accuracy, ties counted half; `deviations` how
    many standard deviations of random orders the accuracy is above their mean.

    Arguments:
        examples: how many sequences an accuracy was measured on.
        finetuned: of fine-tuned networks, with the first so many random orders; of networks as pruned where absent.
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

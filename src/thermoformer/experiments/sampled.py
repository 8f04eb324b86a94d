"""Theory, exact posterior and sampled networks of one problem side by side, as experiments keep them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from .._progress import Progress
from ..learning import PathFeatures, Solution
from ..learning.comparison import Comparison, compare

# How `compare` calls what experiments call theory, exact finite width and sampled networks.
THEORY, EXACT, SAMPLED = "saddle", "exact", "sampled"

# What variables are called in words, wherever they occur.
PREDICTION_NAMES = {
    "accuracy": "test accuracy of the sign of the mean predictor",
    "bias": "mean squared difference of mean predictor and label on the test set",
    "mean": "mean of the predictor",
    "variance": "variance of the predictor, without temperature",
    "mean_error": "Monte-Carlo standard error of the mean",
    "variance_error": "Monte-Carlo standard error of the variance",
    "log_evidence": "log evidence of the training labels",
    "test_label": "labels of the test sequences",
}
FINITE_WIDTH_NAMES = {
    "exact_accuracy": "test accuracy of the exact mean predictor at finite width; nan: not computed",
    "exact_distance": "root-mean-square distance of theory and exact mean predictor over that of the exact one",
    "exact_distance_noise": "what Monte-Carlo noise alone would show as exact_distance",
    "exact_mixed": "1: the chains of the exact posterior mixed, 0: they did not, nan: not computed",
    "exact_note": "why the chains of the exact posterior count as not mixed",
    "sampled_accuracy": "test accuracy of the mean predictor of sampled networks; nan: not computed",
    "sampled_distance": "root-mean-square distance of theory and mean of sampled networks over that of the networks",
    "sampled_distance_noise": "what Monte-Carlo noise alone would show as sampled_distance",
    "sampled_mixed": "1: the chains of sampled networks mixed, 0: they did not, nan: not computed",
    "sampled_note": "why the chains of sampled networks count as not mixed",
}


def beside_theory(
    solution: Solution,
    features: PathFeatures,
    labels: Any,
    test_features: PathFeatures,
    test_labels: Any,
    *,
    key: int,
    exact_draws: int | None,
    sampled_draws: int | None,
    chains: int,
    progress: Progress | None = None,
) -> Comparison:
    """The exact posterior and sampled networks at the width of a solution, beside the solution itself.

    Chains that have not mixed do not warn: `unmixed` of the result says why.

    Arguments:
        solution: the theory for these features and labels.
        exact_draws, sampled_draws: draws per chain of order parameters and of networks (Gibbs); none leaves them out.
        progress: called as progress(done, total, message).
    """
    prediction = solution.predict(test_features)
    draws = {EXACT: exact_draws, SAMPLED: sampled_draws}
    wanted = {name: count for name, count in draws.items() if count is not None}
    alone = Comparison(
        architecture=solution.architecture,
        temperature=solution.temperature,
        results={THEORY: solution},
        predictions={THEORY: prediction},
        test_labels=np.asarray(test_labels),
        reference=THEORY,
        seconds={THEORY: 0.0},
        left_out={},
        unmixed={},
    )
    if not wanted:
        return alone
    found = compare(
        solution.architecture,
        features,
        labels,
        test_features,
        test_labels,
        temperature=solution.temperature,
        key=key,
        methods=list(wanted),
        draws={name: wanted.get(name, 1) for name in draws},
        chains=chains,
        progress=progress,
    )
    return joined(alone, found)


def joined(first: Comparison, second: Comparison) -> Comparison:
    """The methods of two comparisons of one problem, measured against the reference of the second."""
    parts = ("results", "predictions", "seconds", "left_out", "unmixed")
    return dataclasses.replace(second, **{name: getattr(first, name) | getattr(second, name) for name in parts})


def side_by_side(parts: Sequence[xr.Dataset], axis: Any) -> xr.Dataset:
    """Datasets along a new axis; coordinates must agree."""
    return xr.concat(parts, axis, data_vars="all", coords="minimal", compat="equals", join="exact")


def whole_key(*numbers: int) -> int:
    """One seed for a sampler from several whole numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def finite_width_variables(comparisons: Sequence[Comparison | None], axis: str) -> dict[str, tuple[str, list]]:
    """The variables of `FINITE_WIDTH_NAMES` along an axis, ready for a Dataset; nan where there is no comparison."""
    rows = [_finite_width(comparison) for comparison in comparisons]
    return {name: (axis, [row[name] for row in rows]) for name in FINITE_WIDTH_NAMES}


def _finite_width(comparison: Comparison | None) -> dict[str, Any]:
    found = {name: "" if name.endswith("note") else np.nan for name in FINITE_WIDTH_NAMES}
    for name in (EXACT, SAMPLED):
        if comparison is not None and name in comparison.results:
            apart = comparison.distance(THEORY, name)
            found |= {
                f"{name}_accuracy": comparison.predictions[name].accuracy(comparison.test_labels),
                f"{name}_distance": apart.mean,
                f"{name}_distance_noise": apart.mean_noise,
                f"{name}_mixed": float(name not in comparison.unmixed),
                f"{name}_note": comparison.unmixed.get(name, ""),
            }
    return found


def not_mixed(mixed: xr.DataArray, notes: xr.DataArray) -> dict[str, Any]:
    """How many `runs` of a sampler there are, how many of them `failed` to mix, and the `reason` of the first."""
    failed = mixed.values == 0
    reason = next(iter(notes.values[failed]), "")
    return {"runs": int(np.isfinite(mixed).sum()), "failed": int(failed.sum()), "reason": reason}

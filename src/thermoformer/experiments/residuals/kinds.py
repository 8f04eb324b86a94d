"""Kinds of network of the experiment on skips and normalisation, and one point of it as a Dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from ...learning import Posterior, Solution, head_scores
from ...learning.comparison import Comparison
from ..markov import FOUR_PATHS
from ..sampled import EXACT, SAMPLED, THEORY

PLAIN, SKIPS, INPUT_NORM, NORM_INSIDE = KINDS = ("plain", "skips", "skips, input norm", "skips, norm inside")
# Those that the theory describes.
EXACT_KINDS = KINDS[:3]
APPROACHES = {"theory": THEORY, "exact": EXACT, "sampled": SAMPLED}
QUANTITIES = {"mean": "mean", "standard deviation": "deviation"}
HEADS = tuple(f"layer {layer}: {kind}" for layer, kinds in enumerate(FOUR_PATHS.heads, start=1) for kind in kinds)

LONG_NAMES = {
    "accuracy": "test accuracy of the sign of the mean predictor",
    "bias": "mean squared difference of mean predictor and label on the test set",
    "distance": "root-mean-square difference from sampled networks over the root mean square of these",
    "noise": "what Monte-Carlo noise alone would show as distance",
    "inside_distance": "distance of the theory of each kind from sampled networks with layer norm inside",
    "inside_noise": "what Monte-Carlo noise alone would show as inside_distance",
    "mean": "mean of the predictor",
    "variance": "variance of the predictor, without temperature",
    "mean_error": "Monte-Carlo standard error of the mean",
    "variance_error": "Monte-Carlo standard error of the variance",
    "test_label": "labels of the test sequences",
    "head_score": "sum of |U| over pairs of paths that use the head, over the largest such sum",
    "mixed": "1: chains mixed, 0: they did not, nan: nothing was sampled",
    "note": "why chains count as not mixed",
    "r_hat": "largest R-hat over the quantities watched",
    "effective": "smallest bulk effective sample size over the quantities watched",
    "gradients": "gradient evaluations of the sampler, all chains together",
    "seconds": "seconds to sample and predict, compilation included",
    "converged": "whether the solver of the theory met its tolerance",
}
LONG_NAMES |= {
    f"order_parameter_{kind}": "order parameter U between attention paths"
    for kind in ("plain", "skips", "skips_input_norm")
}


def slug(kind: str) -> str:
    """A kind's name in names of variables and files.

    Example:
        >>> slug("skips, input norm")
        'skips_input_norm'
    """
    return kind.replace(",", "").replace(" ", "_")


def point_data(found: Mapping[str, Comparison]) -> xr.Dataset:
    """One point as a Dataset with the dimensions kind and approach.

    Arguments:
        found: by kind, theory, exact posterior and sampled networks; with layer norm inside, theory and exact
            posterior are those with skips.
    """
    axes, labels = ("kind", "approach"), found[PLAIN].test_labels
    kinds = [found[kind] for kind in KINDS]
    names = list(APPROACHES.values())
    data: dict[str, Any] = {
        "accuracy": (axes, [[one.predictions[name].accuracy(labels) for name in names] for one in kinds]),
        "bias": (axes, [[one.predictions[name].bias(labels) for name in names] for one in kinds]),
        "seconds": (axes, [[one.seconds[name] for name in names] for one in kinds]),
        "converged": ("kind", [_solution(one).converged for one in kinds]),
        "test_label": ("example", np.asarray(labels)),
    }
    for part in ("mean", "variance", "mean_error", "variance_error"):
        data[part] = ((*axes, "example"), [[_of(one, name, part) for name in names] for one in kinds])
    samplers = {name: [[_judged(one, approach)[name] for approach in names] for one in kinds] for name in _JUDGED}
    data |= {name: (axes, values) for name, values in samplers.items()}
    apart = [[_distance(one, name) for name in names] for one in kinds]
    data["distance"], data["noise"] = (
        ((*axes, "quantity"), [[entry[part] for entry in row] for row in apart]) for part in (0, 1)
    )
    inside = [_distance(_with_theory_of(found[NORM_INSIDE], found[kind]), THEORY) for kind in EXACT_KINDS]
    data["inside_distance"], data["inside_noise"] = (
        (("theory_kind", "quantity"), [entry[part] for entry in inside]) for part in (0, 1)
    )
    data["head_score"] = (
        ("theory_kind", "approach", "head"),
        [
            [head_scores(found[kind].architecture, _order(found[kind], name)).values for name in names]
            for kind in EXACT_KINDS
        ],
    )
    coordinates: dict[str, Any] = {
        "kind": list(KINDS),
        "theory_kind": list(EXACT_KINDS),
        "approach": list(APPROACHES),
        "quantity": list(QUANTITIES),
        "head": list(HEADS),
    }
    for kind in EXACT_KINDS:
        square = path_axes(kind)
        paths = found[kind].architecture.path_names(FOUR_PATHS.heads)
        coordinates |= {axis: list(paths) for axis in square}
        data[f"order_parameter_{slug(kind)}"] = (("approach", *square), [_order(found[kind], name) for name in names])
    return xr.Dataset(data, coordinates)


def path_axes(kind: str) -> tuple[str, str]:
    """The axes of a kind's order parameter."""
    return f"path_{slug(kind)}", f"other_path_{slug(kind)}"


def _solution(comparison: Comparison) -> Solution:
    found = comparison.results[THEORY]
    assert isinstance(found, Solution)
    return found


def _order(comparison: Comparison, name: str) -> np.ndarray:
    return np.asarray(comparison.results[name].order_parameter)


def _of(comparison: Comparison, name: str, part: str) -> np.ndarray:
    """A part of a prediction; errors of what is not sampled are 0."""
    prediction = comparison.predictions[name]
    found = getattr(prediction, part)
    return np.zeros_like(prediction.mean) if found is None else found


_JUDGED = ("mixed", "note", "r_hat", "effective", "gradients")


def _judged(comparison: Comparison, name: str) -> dict[str, Any]:
    """What a sampler says about itself; nan where nothing was sampled."""
    result = comparison.results[name]
    if not isinstance(result, Posterior):
        return {"mixed": np.nan, "note": "", "r_hat": np.nan, "effective": np.nan, "gradients": np.nan}
    record = result.diagnostics
    return {
        "mixed": float(record.mixed),
        "note": record.reason,
        "r_hat": record.r_hat,
        "effective": record.bulk_effective,
        "gradients": float(record.gradient_evaluations),
    }


def _distance(comparison: Comparison, name: str) -> tuple[list[float], list[float]]:
    """Distance from sampled networks and its noise, by quantity; nan for the networks themselves."""
    if name == SAMPLED:
        return [np.nan] * len(QUANTITIES), [np.nan] * len(QUANTITIES)
    apart = vars(comparison.distance(name, SAMPLED))
    return [apart[part] for part in QUANTITIES.values()], [apart[f"{part}_noise"] for part in QUANTITIES.values()]


def _with_theory_of(networks: Comparison, other: Comparison) -> Comparison:
    """The networks of one comparison beside the theory of another; order parameters, whose sizes differ, stay."""
    theory = {THEORY: other.predictions[THEORY]}
    return dataclasses.replace(networks, predictions=networks.predictions | theory)

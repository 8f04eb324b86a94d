"""Kinds of network of the experiment on skips and normalisation, and one point of it as a Dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from ...learning import Posterior, head_scores
from ...learning.comparison import Comparison
from ..markov import FOUR_PATHS
from ..sampled import EXACT, PREDICTION_NAMES, SAMPLED, THEORY, side_by_side

PLAIN, SKIPS, INPUT_NORM, NORM_INSIDE = KINDS = ("plain", "skips", "skips, input norm", "skips, norm inside")
# Those that the theory describes.
EXACT_KINDS = KINDS[:3]
APPROACHES = {"theory": THEORY, "exact": EXACT, "sampled": SAMPLED}
QUANTITIES = {"mean": "mean", "standard deviation": "deviation"}
HEADS = tuple(f"layer {layer}: {kind}" for layer, kinds in enumerate(FOUR_PATHS.heads, start=1) for kind in kinds)

LONG_NAMES = {
    **PREDICTION_NAMES,
    "distance": "root-mean-square difference from sampled networks over the root mean square of these",
    "noise": "what Monte-Carlo noise alone would show as distance",
    "inside_distance": "distance of the theory of each kind from sampled networks with layer norm inside",
    "inside_noise": "what Monte-Carlo noise alone would show as inside_distance",
    "head_score": "sum of |U| over pairs of paths that use the head, over the largest such sum",
    "mixed": "1: chains mixed, 0: they did not, nan: nothing was sampled",
    "note": "why chains count as not mixed",
    "r_hat": "largest R-hat over the quantities watched",
    "effective": "smallest bulk effective sample size over the quantities watched",
    "gradients": "gradient evaluations of the sampler, all chains together",
    "seconds": "seconds to sample and predict, compilation included",
    "converged": "whether the solver of the theory met its tolerance",
    **{
        f"order_parameter_{kind}": "order parameter U between attention paths"
        for kind in ("plain", "skips", "skips_input_norm")
    },
}
# What a sampler says about itself, if nothing was sampled.
_NOTHING = {"mixed": np.nan, "note": "", "r_hat": np.nan, "effective": np.nan, "gradients": np.nan}


def slug(kind: str) -> str:
    """A kind's name in names of variables and files."""
    return kind.replace(",", "").replace(" ", "_")


def point_data(found: Mapping[str, Comparison]) -> xr.Dataset:
    """One point as a Dataset with the dimensions kind and approach.

    Arguments:
        found: by kind, theory, exact posterior and sampled networks; with layer norm inside, theory and exact
            posterior are those with skips.
    """
    names, axes = list(APPROACHES.values()), ("kind", "approach")
    tables = {kind: found[kind].to_xarray(FOUR_PATHS.heads).sel(approach=names) for kind in KINDS}
    shared = ["accuracy", "bias", "seconds", "mean", "variance", "mean_error", "variance_error"]
    dataset = side_by_side([table[shared].drop_attrs() for table in tables.values()], "kind")
    solutions: list[Any] = [found[kind].results[THEORY] for kind in KINDS]
    judged = [[_judged(found[kind].results[name]) for name in names] for kind in KINDS]
    apart = np.array([[_distance(found[kind], name) for name in names] for kind in KINDS])
    # Order parameters, whose sizes differ, stay those of the networks.
    theories = [{THEORY: found[kind].predictions[THEORY]} for kind in EXACT_KINDS]
    networks = found[NORM_INSIDE]
    beside = [dataclasses.replace(networks, predictions=networks.predictions | theory) for theory in theories]
    inside = np.array([_distance(one, THEORY) for one in beside])
    orders = {kind: tables[kind].order_parameter for kind in EXACT_KINDS}
    scores = [[head_scores(found[kind].architecture, one).values for one in orders[kind].values] for kind in orders]
    coordinates = {"kind": KINDS, "theory_kind": EXACT_KINDS, "approach": tuple(APPROACHES)}
    coordinates |= {"quantity": tuple(QUANTITIES), "head": HEADS}
    data = {name: (axes, [[one[name] for one in row] for row in judged]) for name in _NOTHING}
    data |= {f"order_parameter_{slug(kind)}": _with_own_axes(one, kind) for kind, one in orders.items()}
    data |= {
        "converged": ("kind", [theory.converged for theory in solutions]),
        "test_label": ("example", np.asarray(networks.test_labels)),
        "distance": ((*axes, "quantity"), apart[..., 0]),
        "noise": ((*axes, "quantity"), apart[..., 1]),
        "inside_distance": (("theory_kind", "quantity"), inside[..., 0]),
        "inside_noise": (("theory_kind", "quantity"), inside[..., 1]),
        "head_score": (("theory_kind", "approach", "head"), scores),
    }
    return dataset.assign(data).assign_coords({name: list(values) for name, values in coordinates.items()})


def path_axes(kind: str) -> tuple[str, str]:
    """The axes of a kind's order parameter."""
    return f"path_{slug(kind)}", f"other_path_{slug(kind)}"


def _with_own_axes(order: xr.DataArray, kind: str) -> xr.DataArray:
    return order.rename(dict(zip(("path", "path_other"), path_axes(kind), strict=True))).drop_attrs()


def _judged(result: Any) -> dict[str, Any]:
    """What a sampler says about itself."""
    if not isinstance(result, Posterior):
        return _NOTHING
    record = result.diagnostics
    found = float(record.mixed), record.reason, record.r_hat, record.bulk_effective, float(record.gradient_evaluations)
    return dict(zip(_NOTHING, found, strict=True))


def _distance(comparison: Comparison, name: str) -> np.ndarray:
    """Distance from sampled networks and its noise, [quantity, 2]; nan for the networks themselves."""
    if name == SAMPLED:
        return np.full((len(QUANTITIES), 2), np.nan)
    apart = vars(comparison.distance(name, SAMPLED))
    return np.array([[apart[part], apart[f"{part}_noise"]] for part in QUANTITIES.values()])

"""Kinds of network of the experiment on skips and normalisation, and one point of it as a Dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from ...learning import Posterior, Prediction, head_scores
from ...learning.comparison import Comparison
from ..markov import FOUR_PATHS
from ..sampled import EXACT, PREDICTION_NAMES, SAMPLED, THEORY, side_by_side


@dataclass(frozen=True)
class Kind:
    """A kind of network.

    Fields:
        skip: whether layers add to their input.
        scale: of what a layer adds.
        input_norm: whether tokens are normalised before anything else.
        query_key_norm: whether queries and keys are, in the heads, which read the bare tokens.
        layer_norm: where tokens are normalised inside the network, as in `forward`; "" for nowhere.
    """

    skip: bool = True
    scale: float = 1.0
    input_norm: bool = False
    query_key_norm: bool = False
    layer_norm: str = ""


KINDS = {
    "plain": Kind(skip=False),
    "skips": Kind(),
    "skips, input norm": Kind(input_norm=True),
    "skips, query-key norm": Kind(query_key_norm=True),
    "skips over √L": Kind(scale=1 / np.sqrt(len(FOUR_PATHS.heads))),
    "skips, norm inside": Kind(layer_norm="pre"),
    "skips, RMS norm inside": Kind(layer_norm="rms"),
    "skips, norm after layers": Kind(layer_norm="post"),
}
# Those that the theory describes exactly, and those with norms inside, for which it is an approximation.
EXACT_KINDS = tuple(name for name, kind in KINDS.items() if not kind.layer_norm)
INSIDE_KINDS = tuple(name for name, kind in KINDS.items() if kind.layer_norm)
APPROACHES = {"theory": THEORY, "exact": EXACT, "sampled": SAMPLED}
QUANTITIES = {"mean": "mean", "standard deviation": "deviation", "order parameter": "order_parameter"}
HEADS = tuple(f"layer {layer}: {kind}" for layer, kinds in enumerate(FOUR_PATHS.heads, start=1) for kind in kinds)

LONG_NAMES = {
    **PREDICTION_NAMES,
    "distance": "root-mean-square difference from sampled networks over the root mean square of these",
    "noise": "what Monte-Carlo noise alone would show as distance",
    "ignoring_distance": "distance of the theory that ignores norms inside from sampled networks; nan without norms",
    "ignoring_noise": "what Monte-Carlo noise alone would show as ignoring_distance",
    "norm_spread": "mean-field norm at the readout: standard deviation over examples over the mean; nan without norms",
    "order_parameter": "order parameter U between attention paths; nan for paths that the network does not have",
    "head_score": "sum of |U| over pairs of paths that use the head, over the largest such sum",
    "mixed": "1: chains mixed, 0: they did not, nan: nothing was sampled",
    "note": "why chains count as not mixed",
    "r_hat": "largest R-hat over the quantities watched",
    "effective": "smallest bulk effective sample size over the quantities watched",
    "gradients": "gradient evaluations of the sampler, all chains together",
    "seconds": "seconds to sample and predict, compilation included",
    "converged": "whether the solver of the theory met its tolerance",
}
# What a sampler says about itself, if nothing was sampled.
_NOTHING = {"mixed": np.nan, "note": "", "r_hat": np.nan, "effective": np.nan, "gradients": np.nan}


def slug(kind: str) -> str:
    """A kind's name in names of variables and files."""
    return kind.replace(",", "").replace(" ", "_")


def point_data(
    found: Mapping[str, Comparison], ignoring: Mapping[str, Prediction], norms: Mapping[str, np.ndarray]
) -> xr.Dataset:
    """One point as a Dataset with the dimensions kind and approach.

    Arguments:
        found: by kind, theory, exact posterior and sampled networks.
        ignoring, norms: by kind with norms inside, the prediction of the theory that ignores them, and the mean-field
            value of the last one [example].
    """
    names, axes = list(APPROACHES.values()), ("kind", "approach")
    tables = [one.to_xarray(FOUR_PATHS.heads).sel(approach=names) for one in found.values()]
    shared = ["accuracy", "bias", "seconds", "mean", "variance", "mean_error", "variance_error"]
    dataset = side_by_side([table[shared].drop_attrs() for table in tables], "kind")
    judged = [[_judged(one.results[name]) for name in names] for one in found.values()]
    apart = np.array([[_distance(one, name) for name in names] for one in found.values()])
    without = np.full((len(found), len(QUANTITIES), 2), np.nan)
    spreads = np.full(len(found), np.nan)
    for number, kind in enumerate(found):
        if kind in norms:
            predictions = found[kind].predictions | {THEORY: ignoring[kind]}
            without[number, :2] = _distance(dataclasses.replace(found[kind], predictions=predictions), THEORY)[:2]
            spreads[number] = norms[kind].std() / norms[kind].mean()
    # A network without skips has some of the paths of one with skips.
    paths = list(FOUR_PATHS.architecture().replace(skip=True).path_names(FOUR_PATHS.heads))
    orders = [table.order_parameter.reindex(path=paths, path_other=paths) for table in tables]
    scores = [
        [head_scores(one.architecture, order).values for order in table.order_parameter.values]
        for one, table in zip(found.values(), tables, strict=True)
    ]
    coordinates = {"kind": list(found), "approach": list(APPROACHES), "quantity": list(QUANTITIES), "head": list(HEADS)}
    data: dict[str, Any] = {name: (axes, [[one[name] for one in row] for row in judged]) for name in _NOTHING}
    data |= {
        "order_parameter": ((*axes, "path", "path_other"), np.stack(orders)),
        "converged": ("kind", [bool(one.results[THEORY].converged) for one in found.values()]),  # type: ignore[attr-defined]
        "test_label": ("example", np.asarray(next(iter(found.values())).test_labels)),
        "distance": ((*axes, "quantity"), apart[..., 0]),
        "noise": ((*axes, "quantity"), apart[..., 1]),
        "ignoring_distance": (("kind", "quantity"), without[..., 0]),
        "ignoring_noise": (("kind", "quantity"), without[..., 1]),
        "norm_spread": ("kind", spreads),
        "head_score": ((*axes, "head"), scores),
    }
    return dataset.assign(data).assign_coords({**coordinates, "path": paths, "path_other": paths})


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

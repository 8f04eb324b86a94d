"""Skips and normalisation (experiments §4).

The hidden-Markov task with 4 paths in four kinds of network. Three are inside the theory: without skips; with skips;
with skips and layer norm of the input tokens, which is a fixed preprocessing. In the fourth, layer norm acts inside the
network, where there are no paths any more: the theory with skips is compared with it all the same, to see how far off
it is. Attention matrices are those of the task's heads on the bare tokens in every kind, so that kinds differ in one
thing.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from ..._progress import Progress, inside
from ..._validation import real_array
from ...learning import Architecture, PathFeatures, Posterior, Prediction, SamplingWarning, sample_weights, solve
from ...learning.comparison import Comparison
from ...sweeps import resumable
from ..base import Study
from ..markov import FOUR_PATHS, MarkovConfig, sequences_and_attention
from ..sampled import SAMPLED, beside_theory, not_mixed, whole_key
from ..sweeping import check_fields, config_of
from ..threads import in_threads, usual_workers, within
from ..words import duration, fixed, spread, with_texts
from .kinds import (
    EXACT_KINDS,
    INPUT_NORM,
    KINDS,
    LONG_NAMES,
    NORM_INSIDE,
    PLAIN,
    QUANTITIES,
    SKIPS,
    point_data,
    slug,
)

# Measured for NUTS with layer norm inside: gradients per draw (P = 100, N = 10, temperature 0.01); operations per
# second and the least time of a gradient on two CPU cores; the time of a gradient, all chains at once, on an H200 GPU.
_GRADIENTS_PER_DRAW = 360
_OPERATIONS_PER_SECOND, _LEAST_GRADIENT = 2e10, 2e-4
_GPU_GRADIENT = 2.7e-4


@dataclass(frozen=True)
class ResidualsConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        seeds: how many independent repetitions, each with its own sequences and random heads.
        seed: of all random numbers; repetition i has the sequences of (seed, i) at every width, and its samplers at
            width N follow from (seed, i, N).
        widths: N.
        tokens, feature_width: length of the sequences and width of the token features, without start and positions.
        exact_draws: draws per chain of the exact posterior.
        sampled_draws: draws per chain of networks without layer norm inside (Gibbs).
        inside_draws, inside_warmup: draws per chain of networks with layer norm inside (NUTS over all weights), and
            those before them that are thrown away: what a run costs.
        chains: chains of every sampler.
    """

    seeds: int = 5
    seed: int = 0
    widths: tuple[int, ...] = (10,)
    training_examples: int = 100
    test_examples: int = 1000
    temperature: float = 0.01
    variance: float = 1.0
    tokens: int = 30
    feature_width: int = 200
    exact_draws: int = 500
    sampled_draws: int = 4000
    inside_draws: int = 500
    inside_warmup: int = 300
    chains: int = 2

    def __post_init__(self) -> None:
        check_fields(self, above_zero=("temperature", "variance"), ascending={"widths": "width"})
        self.task().task(FOUR_PATHS)  # they have the other checks

    @classmethod
    def quick(cls, seed: int = 0) -> ResidualsConfig:
        """The small size: one repetition with fewer, shorter and narrower sequences, and fewer draws."""
        return cls(
            seeds=1,
            seed=seed,
            training_examples=50,
            test_examples=500,
            tokens=16,
            feature_width=100,
            exact_draws=300,
            sampled_draws=2000,
            inside_draws=80,
            inside_warmup=80,
        )

    def task(self) -> MarkovConfig:
        """The hidden-Markov task."""
        names = ("seeds", "seed", "training_examples", "test_examples", "tokens", "feature_width")
        same = {name: getattr(self, name) for name in names}
        return MarkovConfig(components=1, variants=(FOUR_PATHS,), **same)

    def architecture(self, kind: str, width: int) -> Architecture:
        """The network of a kind; layer norm is not part of it."""
        return FOUR_PATHS.architecture(width, self.variance).replace(skip=kind != PLAIN)

    def inside_cost(self, width: int) -> str:
        """Roughly what sampling networks with layer norm inside takes at one width, in words."""
        length, chains = self.tokens + 1, self.chains
        heads = [len(layer) for layer in FOUR_PATHS.heads]
        embedding = length * (self.feature_width + length) * width
        # All positions of layer 1, the one that is read of layer 2; a gradient is three times the forward pass.
        layers = sum(
            count * queries * (length * width + width**2) for count, queries in zip(heads, (length, 1), strict=True)
        )
        operations = 3 * 2 * self.training_examples * (embedding + layers)
        draws = _GRADIENTS_PER_DRAW * (self.inside_draws + self.inside_warmup)
        cores = chains * draws * (_LEAST_GRADIENT + operations / _OPERATIONS_PER_SECOND)
        return f"about {duration(cores)} on two cores, {duration(draws * _GPU_GRADIENT)} on a GPU"


@resumable
def residuals_point(seed: int, width: int, config: Mapping[str, Any]) -> xr.Dataset:
    """All kinds of network on one repetition at one width: a point of the sweep.

    Arguments:
        seed: which repetition.
        width: N.
        config: the record of a `ResidualsConfig`.
    """
    report = within(inside.get(), 0, 1, f"N = {width}, seed {seed + 1}")
    found = _all_kinds(config_of(ResidualsConfig, config), seed, width, report)
    # A sweep has `seconds` of its own: those of the point.
    return found.rename(seconds="approach_seconds")


def _all_kinds(config: ResidualsConfig, index: int, width: int, progress: Progress) -> xr.Dataset:
    problem = sequences_and_attention(config.task(), 0, index)
    # Networks with norm inside take longest, and wait for nothing.
    tasks = [
        lambda report: _inside_the_theory(config, index, width, problem, report),
        lambda report: _norm_inside(config, index, width, problem, report),
    ]
    found, networks = in_threads(tasks, progress, usual_workers())
    return point_data(found | {NORM_INSIDE: _beside_networks(found[SKIPS], networks)})


def normalised_tokens(x: Any) -> np.ndarray:
    """Layer norm of every token over its features: mean 0, variance 1; a token of equal entries becomes 0.

    Arguments:
        x: [example, token, feature].
    """
    x = real_array("x", x, ("example", "token", "feature"))
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.mean(centred**2, axis=-1, keepdims=True))
    return np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation > 0)


def _inside_the_theory(
    config: ResidualsConfig, index: int, width: int, problem: tuple, progress: Progress
) -> dict[str, Comparison]:
    """Theory, exact posterior and sampled networks of the kinds that the theory describes."""
    x, attention, labels = problem
    split, found = config.training_examples, {}
    for number, kind in enumerate(EXACT_KINDS):
        progress(number, len(KINDS), kind)
        arch = config.architecture(kind, width)
        tokens = normalised_tokens(x) if kind == INPUT_NORM else x
        features = PathFeatures.from_attention(tokens, attention, "last", arch.skip)
        # One point that does not converge must not end the run: it is marked in the data, and the page says so.
        solution = solve(arch, features[:split], labels[:split], temperature=config.temperature, throw=False)
        found[kind] = beside_theory(
            solution,
            features[:split],
            labels[:split],
            features[split:],
            labels[split:],
            key=whole_key(config.seed, index, width, KINDS.index(kind)),
            exact_draws=config.exact_draws,
            sampled_draws=config.sampled_draws,
            chains=config.chains,
            progress=within(progress, number, len(KINDS), kind),
        )
    return found


def _norm_inside(
    config: ResidualsConfig, index: int, width: int, problem: tuple, progress: Progress
) -> tuple[Posterior, Prediction, float]:
    """Networks that have skips and layer norm inside, their prediction, and the seconds that both took."""
    x, attention, labels = problem
    split, began = config.training_examples, time.perf_counter()
    what = f"{NORM_INSIDE} ({config.inside_cost(width)})"
    progress(len(EXACT_KINDS), len(KINDS), what)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)  # said in the data and on the page
        networks = sample_weights(
            config.architecture(NORM_INSIDE, width),
            x[:split],
            [layer[:split] for layer in attention],
            labels[:split],
            temperature=config.temperature,
            key=whole_key(config.seed, index, width, KINDS.index(NORM_INSIDE)),
            method="nuts",
            draws=config.inside_draws,
            warmup=config.inside_warmup,
            chains=config.chains,
            layer_norm=True,
            progress=within(progress, len(EXACT_KINDS), len(KINDS), what),
        )
    prediction = networks.predict_tokens(x[split:], [layer[split:] for layer in attention])
    return networks, prediction, time.perf_counter() - began


def _beside_networks(with_skips: Comparison, found: tuple[Posterior, Prediction, float]) -> Comparison:
    """Theory and exact posterior with skips, beside sampled networks that have layer norm inside too."""
    networks, prediction, seconds = found
    unmixed = {name: reason for name, reason in with_skips.unmixed.items() if name != SAMPLED}
    if not networks.diagnostics.mixed:
        unmixed[SAMPLED] = networks.diagnostics.reason
    return dataclasses.replace(
        with_skips,
        results=with_skips.results | {SAMPLED: networks},
        predictions=with_skips.predictions | {SAMPLED: prediction},
        seconds=with_skips.seconds | {SAMPLED: seconds},
        unmixed=unmixed,
    )


class Residuals(Study):
    """Skips and normalisation: a sweep over repetitions and widths, all kinds of network at every point.

    Its Dataset has the dimensions seed (repetition), width, kind and approach: `accuracy` and `bias`; `distance` from
    sampled networks with its `noise`, of each quantity; predictions (`mean`, `variance` and their Monte-Carlo errors)
    along example; one `order_parameter_…` per kind inside the theory; `head_score`; `mixed` and `note` of samplers,
    `seconds` and `converged`; and `inside_distance` of every theory from networks with layer norm inside. What does
    not apply is nan.
    """

    name, title, config, point = "residuals", "Skips and normalisation", ResidualsConfig, residuals_point
    # Which other repetitions and widths there are changes no point.
    over: ClassVar = {"seed": "seeds", "width": "widths"}
    same: ClassVar = {"seeds": 1, "widths": (1,)}
    long_names = LONG_NAMES

    def complete(self, found: xr.Dataset, config: ResidualsConfig) -> xr.Dataset:
        """With the seconds of each approach under their usual name."""
        return found.rename(approach_seconds="seconds")

    def tables(self, dataset: xr.Dataset, config: ResidualsConfig) -> dict[str, pd.DataFrame]:
        """Accuracy and distances of every kind and approach, means over seeds."""
        means = 100 * dataset[["accuracy", "distance", "noise"]].mean("seed")
        deviation = 100 * dataset.accuracy.std("seed", ddof=min(1, dataset.sizes["seed"] - 1))
        found = {"accuracy_percent": means.accuracy, "spread_percent": deviation}
        forms = dict.fromkeys(found, ".2f")
        for quantity, part in itertools.product(QUANTITIES, ("distance", "noise")):
            found[f"{part}_{slug(quantity)}_percent"] = means[part].sel(quantity=quantity, drop=True)
            forms[f"{part}_{slug(quantity)}_percent"] = ".3f"
        frame = xr.Dataset(found).to_dataframe(dim_order=("width", "kind", "approach")).reset_index()
        frame.insert(3, "seeds", dataset.sizes["seed"])
        return {"residuals": with_texts(frame, **forms)}

    def values(self, dataset: xr.Dataset, config: ResidualsConfig) -> dict[str, Any]:
        """Distances, accuracies, paths and how far to trust the samplers."""
        paths, first = {}, dataset.isel(width=0).sel(approach="theory").mean("seed")
        for kind in EXACT_KINDS:
            order = first[f"order_parameter_{slug(kind)}"]
            weights, names = np.diagonal(order.values), order[order.dims[0]].values
            heaviest = [(names[place], weights[place]) for place in np.argsort(-weights)[:2]]
            paths[kind] = {"heaviest": heaviest, "head": first.head_score.sel(theory_kind=kind).idxmax("head").item()}
        groups = {
            "of the exact posterior": dataset.sel(approach="exact", kind=list(EXACT_KINDS)),
            "of networks without norm inside": dataset.sel(approach="sampled", kind=list(EXACT_KINDS)),
            "of networks with norm inside": dataset.sel(approach="sampled", kind=NORM_INSIDE),
        }
        gradients = float(groups["of networks with norm inside"].gradients.mean())
        return {
            "kinds": KINDS,
            "widths": [_at_width(dataset, width) for width in dataset.width.values],
            "paths": paths,
            "samplers": [
                {"of": of, "seconds": float(chosen.seconds.mean()), **not_mixed(chosen.mixed, chosen.note)}
                for of, chosen in groups.items()
            ],
            "gradients": f"{gradients:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}"),
            "failed": int((~dataset.converged.sel(kind=list(EXACT_KINDS)).astype(bool)).sum()),
        }


def _at_width(dataset: xr.Dataset, width: int) -> dict[str, Any]:
    """What the page says about one width: distances and accuracies in %, means over seeds."""
    at = dataset[["distance", "noise", "inside_distance", "accuracy"]].sel(width=width)
    means, accuracy = 100 * at.mean("seed"), 100 * at.accuracy
    near = means.sel(approach="exact", quantity="mean")
    ratios = near.distance / near.noise
    theory = means.distance.sel(kind=NORM_INSIDE, approach="theory")
    theories = means.inside_distance.sel(quantity="mean")
    columns = means.sel(approach=["theory", "exact"]).stack(column=("quantity", "approach"))
    rows = []
    for kind in KINDS:
        found = zip(columns.distance.sel(kind=kind).values, columns.noise.sel(kind=kind).values, strict=True)
        rows.append([kind, *(f"{_short(value)} ± {_short(noise)}" for value, noise in found)])
    return {
        "width": width,
        "rows": rows,
        "exact": [_short(near.distance.sel(kind=kind)) for kind in EXACT_KINDS],
        "ratios": (ratios.sel(kind=list(EXACT_KINDS)).min().item(), ratios.sel(kind=list(EXACT_KINDS)).max().item()),
        "inside": _short(near.distance.sel(kind=NORM_INSIDE)),
        "inside_ratio": ratios.sel(kind=NORM_INSIDE).item(),
        "theory": _short(theory.sel(quantity="mean")),
        "theory_deviation": _short(theory.sel(quantity="standard deviation")),
        "theories": {kind: _short(theories.sel(theory_kind=kind)) for kind in EXACT_KINDS},
        "nearest": theories.idxmin("theory_kind").item(),
        "accuracies": [spread(accuracy.sel(kind=kind, approach="sampled")) for kind in KINDS],
        "gap": (means.accuracy.sel(approach="theory") - means.accuracy.sel(approach="sampled")).sel(kind=NORM_INSIDE),
    }


def _short(number: Any) -> str:
    return fixed(number, 1 if number < 10 else 0)


STUDY = Residuals()

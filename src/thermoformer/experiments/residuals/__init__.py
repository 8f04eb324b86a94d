"""Skips and normalisation (experiments §4).

The hidden-Markov task with 4 paths in several kinds of network. Attention matrices are those of the task's heads on the
bare tokens in every kind, so that kinds differ in one thing. Without norms inside the network the theory is exact:
skips, what a layer adds times a number (a variance), layer norm of the input tokens (a fixed preprocessing), and norms
of queries and keys (other attention matrices). With norms inside the output is not linear in the tokens. There each
norm is replaced by its mean-field value, which leaves a sum over paths: the effective theory.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from ..._progress import Progress, inside
from ..._validation import real_array
from ...learning import (
    Architecture,
    PathFeatures,
    Prediction,
    SamplingWarning,
    attention_from_logits,
    bilinear_attention,
    sample_weights,
    solve,
)
from ...learning.comparison import Comparison
from ...sweeps import resumable
from ..base import Study
from ..markov import FOUR_PATHS, MarkovConfig, sequences_and_attention
from ..sampled import SAMPLED, beside_theory, not_mixed, whole_key
from ..sweeping import check_fields, config_of
from ..threads import in_threads, usual_workers, within
from ..words import duration, fixed, spread, with_texts
from .effective import effective_features
from .kinds import EXACT_KINDS, INSIDE_KINDS, KINDS, LONG_NAMES, QUANTITIES, point_data, slug

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
            exact_draws=200,
            sampled_draws=1000,
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
        chosen, arch = KINDS[kind], FOUR_PATHS.architecture(width, self.variance)
        # What a layer adds times a number is what weights of another variance add.
        within = (chosen.scale**2 * self.variance,) * arch.layers
        return arch.replace(skip=chosen.skip, variances=(self.variance, *within, self.variance))

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
    # Networks with norms inside take longest, and begin.
    order = (*INSIDE_KINDS, *EXACT_KINDS)
    tasks = [partial(_one_kind, config, index, width, kind) for kind in order]
    found = dict(zip(order, in_threads(tasks, progress, usual_workers()), strict=True))
    comparisons = {kind: found[kind][0] for kind in KINDS}
    return point_data(comparisons, *({kind: found[kind][part] for kind in INSIDE_KINDS} for part in (1, 2)))


def normalised_tokens(x: Any) -> np.ndarray:
    """Layer norm of every token over its features: mean 0, variance 1; a token of equal entries becomes 0.

    Arguments:
        x: [example, token, feature].
    """
    x = real_array("x", x, ("example", "token", "feature"))
    return _of_mean_square_1(x - x.mean(axis=-1, keepdims=True))


def normalised_heads(x: np.ndarray, weights: np.ndarray) -> Any:
    """Attention with logits q·k/√N0 of normalised queries Wᵀx_q and keys x_k, each of mean square 1."""
    queries, keys = _of_mean_square_1(np.einsum("pqi,hij->phqj", x, weights, optimize=True)), _of_mean_square_1(x)
    return attention_from_logits(queries @ keys[:, None].transpose(0, 1, 3, 2) / np.sqrt(x.shape[2]))


def _of_mean_square_1(vectors: np.ndarray) -> np.ndarray:
    """Vectors [..., entry] by their root mean square; those of zeros stay as they are."""
    size = np.sqrt(np.mean(vectors**2, axis=-1, keepdims=True))
    return np.divide(vectors, size, out=np.zeros_like(vectors), where=size > 0)


def kind_of_problem(config: ResidualsConfig, index: int, kind: str) -> tuple[np.ndarray, list[Any], np.ndarray]:
    """Tokens, attention and labels of one repetition as networks of a kind read them, training first."""
    chosen = KINDS[kind]
    attend = normalised_heads if chosen.query_key_norm else bilinear_attention
    x, attention, labels = sequences_and_attention(config.task(), 0, index, attend)
    return normalised_tokens(x) if chosen.input_norm else x, attention, labels


def _one_kind(
    config: ResidualsConfig, index: int, width: int, kind: str, progress: Progress
) -> tuple[Comparison, Prediction | None, np.ndarray | None]:
    """Theory, exact posterior and sampled networks of a kind.

    With norms inside theory and exact posterior are those of the effective theory. Then come the prediction of the
    theory that ignores the norms, and the last mean-field norm.
    """
    x, attention, labels = kind_of_problem(config, index, kind)
    arch, split, norm = config.architecture(kind, width), config.training_examples, KINDS[kind].layer_norm
    bare = PathFeatures.from_attention(x, attention, "last", arch.skip)
    features, norms = effective_features(arch, x, attention, norm) if norm else (bare, None)
    number, key = list(KINDS).index(kind), whole_key(config.seed, index, width, list(KINDS).index(kind))
    progress(number, len(KINDS), kind)
    # One point that does not converge must not end the run: it is marked in the data, and the page says so.
    solved = partial(solve, arch, labels=labels[:split], temperature=config.temperature, throw=False)
    found = beside_theory(
        solved(features[:split]),
        features[:split],
        labels[:split],
        features[split:],
        labels[split:],
        key=key,
        exact_draws=config.exact_draws,
        sampled_draws=None if norm else config.sampled_draws,
        chains=config.chains,
        progress=within(progress, number, len(KINDS), kind),
    )
    if not norm:
        return found, None, None
    began = time.perf_counter()
    what = f"{kind} ({config.inside_cost(width)})"
    progress(number, len(KINDS), what)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)  # said in the data and on the page
        networks = sample_weights(
            arch,
            x[:split],
            [layer[:split] for layer in attention],
            labels[:split],
            temperature=config.temperature,
            key=key,
            method="nuts",
            draws=config.inside_draws,
            warmup=config.inside_warmup,
            chains=config.chains,
            layer_norm=norm,
            progress=within(progress, number, len(KINDS), what),
        )
    prediction = networks.predict_tokens(x[split:], [layer[split:] for layer in attention])
    both = dataclasses.replace(
        found,
        results=found.results | {SAMPLED: networks},
        predictions=found.predictions | {SAMPLED: prediction},
        seconds=found.seconds | {SAMPLED: time.perf_counter() - began},
        unmixed=found.unmixed | ({} if networks.diagnostics.mixed else {SAMPLED: networks.diagnostics.reason}),
    )
    return both, solved(bare[:split]).predict(bare[split:]), norms


class Residuals(Study):
    """Skips and normalisation: a sweep over repetitions and widths, all kinds of network at every point.

    Its Dataset has the dimensions seed (repetition), width, kind and approach: `accuracy` and `bias`; `distance` from
    sampled networks with its `noise`, of each quantity; predictions (`mean`, `variance` and their Monte-Carlo errors)
    along example; `order_parameter` between paths; `head_score`; `mixed` and `note` of samplers, `seconds` and
    `converged`. With norms inside, theory and exact posterior are those of the effective theory; there are also the
    `ignoring_distance` of the theory that ignores norms, and the `norm_spread`. What does not apply is nan.
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
            weights = first.order_parameter.sel(kind=kind)
            diagonal = np.nan_to_num(np.diagonal(weights.values))
            heaviest = [(weights.path.values[place], diagonal[place]) for place in np.argsort(-diagonal)[:2]]
            paths[kind] = {"heaviest": heaviest, "head": first.head_score.sel(kind=kind).idxmax("head").item()}
        groups = {
            "of the exact posterior": dataset.sel(approach="exact"),
            "of networks without norms inside": dataset.sel(approach="sampled", kind=list(EXACT_KINDS)),
            "of networks with norms inside": dataset.sel(approach="sampled", kind=list(INSIDE_KINDS)),
        }
        gradients = float(groups["of networks with norms inside"].gradients.mean())
        return {
            "widths": [_at_width(dataset, width) for width in dataset.width.values],
            "paths": paths,
            "samplers": [
                {"of": of, "seconds": float(chosen.seconds.mean()), **not_mixed(chosen.mixed, chosen.note)}
                for of, chosen in groups.items()
            ],
            "gradients": f"{gradients:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}"),
            "failed": int((~dataset.converged.astype(bool)).sum()),
        }


def _at_width(dataset: xr.Dataset, width: int) -> dict[str, Any]:
    """What the page says about one width: distances and accuracies in %, means over seeds."""
    names = ["distance", "noise", "accuracy", "ignoring_distance", "ignoring_noise", "norm_spread"]
    at = 100 * dataset[names].sel(width=width)
    means = at.mean("seed")
    columns = means.sel(approach=["theory", "exact"]).stack(column=("quantity", "approach"))
    rows, ignoring = [], []
    for kind in KINDS:
        found = zip(columns.distance.sel(kind=kind).values, columns.noise.sel(kind=kind).values, strict=True)
        rows.append([kind, *(f"{_short(value)} ± {_short(noise)}" for value, noise in found)])
    for kind in INSIDE_KINDS:
        one = means.sel(kind=kind)
        cells = (one.ignoring_distance, one.distance.sel(approach="theory"), one.distance.sel(approach="exact"))
        parts = [_short(cell.sel(quantity=part)) for part in ("mean", "standard deviation") for cell in cells]
        ignoring.append([kind, _short(one.norm_spread), *parts])
    near = means.sel(approach="exact", quantity="mean", kind=list(EXACT_KINDS))
    ratios = near.distance / near.noise
    return {
        "width": width,
        "rows": rows,
        "ignoring": ignoring,
        "ratios": (ratios.min().item(), ratios.max().item()),
        "accuracies": [
            [kind, *(spread(at.accuracy.sel(kind=kind, approach=name)) for name in ("theory", "exact", "sampled"))]
            for kind in KINDS
        ],
    }


def _short(number: Any) -> str:
    return fixed(number, 1 if number < 10 else 0)


STUDY = Residuals()

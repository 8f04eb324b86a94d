"""Heads of the hidden-Markov task, learned from its labels in a small family that contains the good head."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from ...learning import Architecture, AttentionModel, learn_attention, solve
from ...sweeps import resumable
from ...tasks import HiddenMarkovTask
from ..sampled import whole_key
from ..sweeping import check_fields, config_of

LEARNED, ANNEALED, GOOD, UNIFORM, FREE = "learned", "annealed", "good", "uniform", "free W"
HEADS = (LEARNED, ANNEALED, GOOD, UNIFORM, FREE)
SEARCHES = {LEARNED: 0, ANNEALED: 4}  # higher temperatures that starts pass
# Largest slope at which a start has converged: the attention of θ is settled long before the usual tolerance.
SLOPE = 1e-4
_TRAINING, _TEST, _SEARCH = 0, 1, 2  # what a seed is for


@dataclass(frozen=True)
class HiddenMarkovConfig:
    """The part in which two layers with two heads and one learn to look at the token before.

    Arguments:
        data_sets: independent repetitions.
        seed: of all random numbers.
        examples: numbers P of training sequences.
        width: N of the network.
        temperature: τ.
        perpendicular_noise: of the tokens, as in `HiddenMarkovTask`.
        scale: prior standard deviation of the parameters.
        shifts: how many distances 0, 1, … from key to query have a parameter of their own.
        starts: of the search.
        free_steps: most steps of the search over the full W of every head, from one start.
    """

    data_sets: int = 3
    seed: int = 0
    examples: tuple[int, ...] = (20, 50, 100, 200)
    width: int = 10
    temperature: float = 0.01
    perpendicular_noise: float = 5.0
    scale: float = 10.0
    shifts: int = 4
    test_examples: int = 1000
    starts: int = 16
    free_steps: int = 100

    def __post_init__(self) -> None:
        above_zero = ("temperature", "perpendicular_noise", "scale")
        check_fields(self, above_zero=above_zero, ascending={"examples": "number"})


@cache  # one function, one program
def family(task: HiddenMarkovTask, heads: tuple[int, ...], shifts: int, scale: float) -> AttentionModel:
    """Heads that compare the states of two tokens, and prefer some distances or the start token.

    θ of each layer has `match` [head], the factor of the product of both tokens' states, and `place`
    [head, distance], the logits of the distances 0, 1, … from key to query and last of the start token. A head with
    θ = 0 is uniform; for the good head see `good_heads`.
    """
    plus, minus = task.state_features
    direction = 2 * (plus - minus) / np.sum((plus - minus) ** 2)
    places = np.arange(task.tokens + 1)
    distance = np.where(places > 0, places[:, None] - places, -1)
    start = (places[:, None] > 0) & (places == 0)
    kinds = np.stack([*(distance == shift for shift in range(shifts)), start]).astype(float)

    def logits(theta: Any, x: Any) -> list[Any]:
        state = x[..., : task.feature_width] @ direction
        match = state[:, None, :, None] * state[:, None, None, :]
        return [
            one["match"][None, :, None, None] * match + jnp.einsum("hk,kts->hts", one["place"], kinds)[None]
            for one in theta
        ]

    scales = [{"match": np.full(count, scale), "place": np.full((count, shifts + 1), scale)} for count in heads]
    return AttentionModel(logits, tuple(scales))


def good_heads(task: HiddenMarkovTask, model: AttentionModel) -> Any:
    """θ at which the first head is `HiddenMarkovTask.good_head`, and all others are uniform."""
    layers = [{name: np.zeros_like(value) for name, value in one.items()} for one in model.scales]
    layers[0]["match"][0] = layers[0]["place"][0, 1] = task.logit_scale
    layers[0]["place"][0, -1] = 1.5 * task.logit_scale
    return tuple(layers)


def free_heads(task: HiddenMarkovTask, heads: tuple[int, ...]) -> AttentionModel:
    """Heads with a full W each, whose prior is the law of `HiddenMarkovTask.random_head`."""
    width = np.where(np.arange(task.token_width) < task.feature_width, 1 / np.sqrt(task.feature_width), 1.0)
    deviations = task.logit_scale * np.outer(width, width)
    scales = tuple(np.broadcast_to(deviations, (count, *deviations.shape)) for count in heads)
    return AttentionModel(full_logits, scales)


def full_logits(theta: Any, x: Any) -> list[Any]:
    """xᵀ W x, with a W for every head."""
    return [jnp.einsum("pti,hij,psj->phts", x, one, x) for one in theta]


@resumable
def hidden_markov_point(examples: int, data_set: int, config: Mapping[str, Any]) -> xr.Dataset:
    """Evidence and test accuracy with learned heads and with given ones [heads], and of every start.

    Arguments:
        examples: P.
        data_set: number of the repetition.
        config: the record of a `HiddenMarkovConfig`.
    """
    settings = config_of(HiddenMarkovConfig, config)
    task = HiddenMarkovTask(perpendicular_noise=settings.perpendicular_noise)
    x, y, _ = task.sample(examples, seed=(settings.seed, data_set, _TRAINING))
    new, labels, _ = task.sample(settings.test_examples, seed=(settings.seed, data_set, _TEST))
    arch = Architecture((2, 1), settings.width)
    given: dict[str, Any] = {"temperature": settings.temperature}
    options = {**given, "key": whole_key(settings.seed, data_set, _SEARCH), "tolerance": SLOPE, "throw": False}
    model = family(task, arch.heads, settings.shifts, settings.scale)

    def judged(theta: Any) -> tuple[float, float]:
        """The log evidence and the test accuracy."""
        found = solve(arch, model.features(theta, x), y, **given, throw=False)
        return found.log_evidence, found.predict(model.features(theta, new)).accuracy(labels)

    good = good_heads(task, model)
    uniform = jax.tree.map(np.zeros_like, good)
    values: dict[str, tuple[float, float]] = {GOOD: judged(good), UNIFORM: judged(uniform)}
    seconds: dict[str, float] = dict.fromkeys(HEADS, np.nan)
    gains: dict[str, np.ndarray] = {}
    accuracies: dict[str, list[float]] = {}
    for search, annealing in SEARCHES.items():
        began = time.perf_counter()
        learned = learn_attention(model, arch, x, y, **options, starts=settings.starts, annealing=annealing)
        seconds[search] = time.perf_counter() - began
        values[search] = learned.solution.log_evidence, learned.predict(new).accuracy(labels)
        gains[search] = learned.objectives - values[GOOD][0] - float(model.log_prior(good))
        each = [jax.tree.map(lambda leaf, start=start: leaf[start], learned.ends) for start in range(settings.starts)]
        accuracies[search] = [judged(theta)[1] for theta in each]
    began = time.perf_counter()
    free = learn_attention(free_heads(task, arch.heads), arch, x, y, **options, starts=1, max_steps=settings.free_steps)
    seconds[FREE] = time.perf_counter() - began
    values[FREE] = free.solution.log_evidence, free.predict(new).accuracy(labels)
    by_heads = np.array([values[heads] for heads in HEADS])
    return xr.Dataset(
        {
            "evidence": ("heads", by_heads[:, 0]),
            "accuracy": ("heads", by_heads[:, 1]),
            "duration": ("heads", [seconds[heads] for heads in HEADS]),
            "start_gain": (("search", "start"), [gains[search] for search in SEARCHES]),
            "start_accuracy": (("search", "start"), [accuracies[search] for search in SEARCHES]),
        },
        {"heads": list(HEADS), "search": list(SEARCHES)},
    )

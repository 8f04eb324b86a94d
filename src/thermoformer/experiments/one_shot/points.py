"""Points of the one-shot experiment's sweeps: one Dataset each, from the features of a network's frozen heads."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Mapping
from functools import lru_cache, partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from ..._progress import inside
from ..._validation import fail
from ...learning import (
    Architecture,
    ConvergenceError,
    PathFeatures,
    SamplingWarning,
    Solution,
    choose_by_evidence,
    gaussian_process,
    head_scores,
    label_alignment,
    order_parameter_from_weights,
    sample_order_parameters,
    sample_weights_on_paths,
    solve,
)
from ...learning.evidence import limit_choice
from ...networks import AttentionNetwork, load_network
from ...sweeps import resumable
from ...tasks import OneShotTask
from ..sampled import whole_key
from ..sweeping import config_of, record_of
from .config import OneShotConfig
from .training import SHIPPED, one_shot_parts, one_shot_tasks, shipped_network

# Folders name points by the module that these functions were in first; `one_shot_points` leads here.
_MODULE = "thermoformer.experiments.one_shot_points"
# Where accuracy is measured. Choices are made on the first alone.
PARTS = ("validation", "test", "fashion-mnist", "mnist")
# All weights are sampled up to this width, where it costs little; beyond it, the order parameters alone.
WIDEST_GIBBS = 100
# Fields that no record of a point has, and fields that change no single point, as every record has them.
_NO_NUMBERS = ("choose_variances", "repetitions", "many")
_EVERY_POINT: dict[str, Any] = {"widths": (1,), "temperatures": (1.0,), "sampled_draws": 0, "chains": 1}


class FrozenHeads(NamedTuple):
    """What the theory learns from: the network, and of every part its features, labels and the network's accuracy.

    `tasks` has the sequences of every part, and "turned": training characters in all orientations.
    """

    network: AttentionNetwork
    tasks: dict[str, OneShotTask]
    features: dict[str, PathFeatures]
    labels: dict[str, np.ndarray]
    accuracy: dict[str, float]

    def architecture(self, width: int, config: OneShotConfig) -> Architecture:
        """The theory's network: the trained one's heads, with a width and prior variances of its own."""
        return Architecture(self.network.arch.heads, width, config.variance)

    def accuracies(self, predict: Any) -> list[float]:
        """Accuracy on each of `PARTS` of what a function makes of its features."""
        return [predict(self.features[part]).accuracy(self.labels[part]) for part in PARTS]


def one_shot_record(config: OneShotConfig, *, sampled: bool = False) -> dict[str, Any]:
    """A config as its sweeps keep it, with the checksum of the network.

    Arguments:
        sampled: whether it is for the sampler, whose settings are then part of it.
    """
    same = dict(_EVERY_POINT)
    if sampled:
        same |= {"sampled_draws": config.sampled_draws, "chains": config.chains}
    if config.network is not None:
        load_network(config.network)  # says what is wrong with it
    record = {**record_of(config, **same), "network_checksum": _checksum(config)}
    return {name: value for name, value in record.items() if name not in _NO_NUMBERS}


def _checksum(config: OneShotConfig) -> str:
    if config.network is not None:
        return hashlib.sha256(Path(config.network).read_bytes()).hexdigest()
    with as_file(files("thermoformer.experiments") / "data" / SHIPPED) as file:
        return hashlib.sha256(file.read_bytes()).hexdigest()


def network_of(config: OneShotConfig) -> AttentionNetwork:
    """The trained network of a config."""
    return shipped_network() if config.network is None else load_network(config.network)


def frozen_heads(config: OneShotConfig, checksum: str = "") -> FrozenHeads:
    """The features of a config's network on all parts of the images; computed once in a process.

    Arguments:
        checksum: of the network, so that another one under the same path is not taken for it; any where empty.
    """
    same = {"components": 1, "variance": 1.0, "choose_variances": False, "repetitions": 1, "many": None, **_EVERY_POINT}
    return _frozen_heads(dataclasses.replace(config, **same), checksum)


@lru_cache(maxsize=1)
def _frozen_heads(config: OneShotConfig, checksum: str) -> FrozenHeads:
    if checksum and checksum != _checksum(config):
        raise fail(
            "network", f"{config.network or SHIPPED}, which is another by now", "the one that the sweep began with"
        )
    network = network_of(config)
    if network.arch.outputs > 1 or network.arch.skip:
        raise fail("network", str(network.arch), "a network with one output and without skips")
    training, report = config.training_config(), inside.get()
    tasks = one_shot_tasks(training, one_shot_parts(training))
    width = next(iter(tasks.values())).token_width
    if network.token_width != width:
        expected = f"{width}, as the task with channels={config.channels} has"
        raise fail("network", f"tokens of width {network.token_width}", expected)
    counts = dict.fromkeys(tasks, config.other_sequences) | {
        "training": config.training_examples,
        "validation": config.validation_sequences,
        "test": config.test_sequences,
    }
    features, labels, accuracy = {}, {}, {}
    for part, task in tasks.items():
        report(0, 1, f"features: {part}")
        x, signs = task.sequences(counts[part])
        features[part], labels[part] = network.path_features(x), signs.astype(float)
        if part in PARTS:
            accuracy[part] = network.accuracy(x, labels[part])
    tasks = tasks | {"turned": dataclasses.replace(tasks["training"], rotations=True)}
    return FrozenHeads(network, tasks, features, labels, accuracy)


def given_config(record: Mapping[str, Any]) -> tuple[OneShotConfig, FrozenHeads]:
    """The config of a record, and what its theory learns from."""
    fields = dict(record)
    checksum = fields.pop("network_checksum")
    config = config_of(OneShotConfig, fields)
    return config, frozen_heads(config, checksum)


_given = given_config  # the name in the text of these points, of which folders keep a hash


@resumable
def one_shot_point(width: int, temperature: float, config: Mapping[str, Any]) -> xr.Dataset:
    """The theory at one width and temperature: a point of the sweep.

    Arguments:
        config: what `one_shot_record` gives.
    """
    settings, heads = _given(config)
    arch = heads.architecture(width, settings)
    data = heads.features["training"], heads.labels["training"]
    # One point that does not converge must not end the run: it is marked in the data, and the page says so.
    return xr.Dataset(_of_solution(solve(arch, *data, temperature=temperature, throw=False), heads, settings))


@resumable
def one_shot_limit(temperature: float, config: Mapping[str, Any]) -> xr.Dataset:
    """The Gaussian process at one temperature, and the predictor with the U of the trained weights in its place."""
    settings, heads = _given(config)
    arch = heads.architecture(1, settings)
    limit = gaussian_process(arch, heads.features["training"], heads.labels["training"], temperature=temperature)
    trained = _trained_order_parameter(heads)
    scaled = limit.with_order_parameter(trained * np.trace(limit.order_parameter) / np.trace(trained))
    found = _of_solution(limit, heads, settings)
    return xr.Dataset(found | {"trained_order_accuracy": ("part", heads.accuracies(scaled.predict))})


@resumable
def one_shot_free(width: int, config: Mapping[str, Any]) -> xr.Dataset:
    """The theory at one width, with temperature and product of the prior variances as the evidence chooses them."""
    settings, heads = _given(config)
    arch = heads.architecture(width, settings)
    try:
        found = choose_by_evidence(arch, heads.features["training"], heads.labels["training"])
    except ConvergenceError:
        # One width without a choice must not end the run: it is left out of figures and tables.
        nothing = dict.fromkeys(("free_temperature", "free_product", "free_log_evidence"), np.nan)
        return xr.Dataset({**nothing, "free_at_bound": False, "free_accuracy": ("part", [np.nan] * len(PARTS))})
    return _of_choice(found.solution, heads, at_bound=found.at_bound)


@resumable
def one_shot_limit_free(seed: int, config: Mapping[str, Any]) -> xr.Dataset:
    """The Gaussian process, with temperature and product of the prior variances as the evidence chooses them.

    Arguments:
        seed: that of the config; a sweep needs an axis.
    """
    settings, heads = _given(config)
    arch = heads.architecture(1, settings)
    data = heads.features["training"], heads.labels["training"]
    kernel = gaussian_process(arch, *data, temperature=1.0).kernel(data[0])
    factor, temperature, at_bound = limit_choice(kernel, data[1])
    arch = arch.replace(variances=settings.variance * factor ** (1 / len(arch.variances)))
    return _of_choice(gaussian_process(arch, *data, temperature=temperature), heads, at_bound=at_bound)


@resumable
def one_shot_trained(seed: int, config: Mapping[str, Any]) -> xr.Dataset:
    """The trained network itself on the same sequences, and the U of its weights.

    Arguments:
        seed: that of the config; a sweep needs an axis.
    """
    _, heads = _given(config)
    order = _trained_order_parameter(heads)
    return xr.Dataset(
        {
            "trained_accuracy": ("part", [heads.accuracy[part] for part in PARTS]),
            "trained_order_parameter": (("path", "other_path"), order),
            "trained_head_score": ("head", head_scores(heads.network.arch, order).values),
            "trained_width": heads.network.arch.widths[0],
            "heads": ("layer", list(heads.network.arch.heads)),
        }
    )


@resumable
def one_shot_sampled(width: int, temperature: float, config: Mapping[str, Any]) -> xr.Dataset:
    """Networks of one width sampled at one temperature, on all training examples: no theory in between.

    U is a matrix of inner products of path vectors: it is the same for hidden units in another order, with other signs
    or turned, and heads are told apart by their attention. So it may be averaged over draws as it is.
    """
    settings, heads = _given(config)
    arch = heads.architecture(width, settings)
    sample = partial(sample_weights_on_paths, method="gibbs") if width <= WIDEST_GIBBS else sample_order_parameters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)  # it is kept as a note
        found = sample(
            arch,
            heads.features["training"],
            heads.labels["training"],
            temperature=temperature,
            key=whole_key(settings.seed, width),
            draws=settings.sampled_draws,
            chains=settings.chains,
            progress=inside.get(),
        )
    return xr.Dataset(
        {
            "sampled_order_parameter": (("path", "other_path"), found.order_parameter),
            "sampled_order_parameter_error": (("path", "other_path"), found.order_parameter_error),
            "sampled_head_score": ("head", head_scores(arch, found.order_parameter).values),
            "sampled_accuracy": ("part", heads.accuracies(found.predict)),
            "sampled_mixed": float(found.diagnostics.mixed),
            "sampled_note": found.diagnostics.reason,
            "sampled_method": found.diagnostics.method,
            "sampled_r_hat": found.diagnostics.r_hat,
            "sampled_effective": found.diagnostics.bulk_effective,
        }
    )


def _of_choice(solution: Solution, heads: FrozenHeads, *, at_bound: bool) -> xr.Dataset:
    return xr.Dataset(
        {
            "free_temperature": solution.temperature,
            "free_product": float(np.prod(solution.architecture.variances)),
            "free_log_evidence": solution.log_evidence,
            "free_at_bound": at_bound,
            "free_accuracy": ("part", heads.accuracies(solution.predict)),
        }
    )


def _trained_order_parameter(heads: FrozenHeads) -> np.ndarray:
    return np.asarray(order_parameter_from_weights(heads.network.arch, heads.network.weights))


def _of_solution(solution: Solution, heads: FrozenHeads, config: OneShotConfig) -> dict[str, Any]:
    predictions = [solution.predict(heads.features[part]) for part in PARTS]
    labels = [heads.labels[part] for part in PARTS]
    kernel, training = solution.kernel(heads.features["training"]), heads.labels["training"]
    scores = head_scores(solution.architecture, solution.order_parameter)
    pairs = list(zip(predictions, labels, strict=True))
    return {
        "accuracy": ("part", [one.accuracy(signs) for one, signs in pairs]),
        "expected_accuracy": ("part", [one.expected_accuracy(signs) for one, signs in pairs]),
        "log_evidence": solution.log_evidence,
        "converged": bool(solution.converged),
        "order_parameter": (("path", "other_path"), solution.order_parameter),
        "head_score": ("head", scores.values),
        "label_overlap": ("component", label_alignment(kernel, training, components=config.components)),
    }


for _point in (one_shot_point, one_shot_limit, one_shot_free, one_shot_limit_free, one_shot_trained, one_shot_sampled):
    _point.__module__ = _MODULE

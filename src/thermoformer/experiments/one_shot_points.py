"""Points of the one-shot experiment's sweeps: one Dataset each, from the features of a network's frozen heads."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from .._progress import inside
from .._validation import fail
from ..learning import (
    Architecture,
    AttentionNetwork,
    PathFeatures,
    SamplingWarning,
    Solution,
    gaussian_process,
    head_scores,
    label_alignment,
    load_network,
    order_parameter_from_weights,
    sample_order_parameters,
    solve,
)
from ..sweeps import resumable
from .one_shot_config import OneShotConfig
from .one_shot_training import SHIPPED, one_shot_parts, one_shot_tasks, shipped_network
from .sampled import whole_key
from .sweeping import config_of, record_of

# Where accuracy is measured. Choices are made on the first alone.
PARTS = ("validation", "test", "fashion-mnist", "mnist")
# Fields that change no single point of the theory, as every record has them; those of the products are left out.
_EVERY_POINT: dict[str, Any] = {"widths": (1,), "temperatures": (1.0,), "exact_draws": 0, "chains": 1}


class FrozenHeads(NamedTuple):
    """What the theory learns from: the network, and of every part its features, labels and the network's accuracy."""

    network: AttentionNetwork
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
        same |= {"exact_draws": config.exact_draws, "chains": config.chains}
    if config.network is not None:
        load_network(config.network)  # says what is wrong with it
    record = {**record_of(config, **same), "network_checksum": _checksum(config)}
    if not sampled:
        record.pop("exact_examples")
    return {name: value for name, value in record.items() if not name.startswith("product")}


def _checksum(config: OneShotConfig) -> str:
    if config.network is not None:
        return hashlib.sha256(Path(config.network).read_bytes()).hexdigest()
    with as_file(files("thermoformer.experiments") / "data" / SHIPPED) as file:
        return hashlib.sha256(file.read_bytes()).hexdigest()


def frozen_heads(config: OneShotConfig, checksum: str = "") -> FrozenHeads:
    """The features of a config's network on all parts of the images; computed once in a process.

    Arguments:
        checksum: of the network, so that another one under the same path is not taken for it; any where empty.
    """
    return _frozen_heads(
        dataclasses.replace(config, components=1, variance=1.0, products=(), exact_examples=1, **_EVERY_POINT), checksum
    )


@lru_cache(maxsize=1)
def _frozen_heads(config: OneShotConfig, checksum: str) -> FrozenHeads:
    if checksum and checksum != _checksum(config):
        raise fail(
            "network", f"{config.network or SHIPPED}, which is another by now", "the one that the sweep began with"
        )
    network = shipped_network() if config.network is None else load_network(config.network)
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
    return FrozenHeads(network, features, labels, accuracy)


def _given(record: Mapping[str, Any]) -> tuple[OneShotConfig, FrozenHeads]:
    fields = dict(record)
    checksum = fields.pop("network_checksum")
    config = config_of(OneShotConfig, {"exact_examples": 1} | fields)
    return config, frozen_heads(config, checksum)


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
def one_shot_product(width: int, product: float, temperature: float, config: Mapping[str, Any]) -> xr.Dataset:
    """The theory at one width with another product of the prior variances."""
    settings, heads = _given(config)
    arch = _with_product(heads.architecture(width, settings), product)
    data = heads.features["training"], heads.labels["training"]
    return _of_product(solve(arch, *data, temperature=temperature, throw=False), heads)


@resumable
def one_shot_limit_product(product: float, temperature: float, config: Mapping[str, Any]) -> xr.Dataset:
    """The Gaussian process with another product of the prior variances."""
    settings, heads = _given(config)
    arch = _with_product(heads.architecture(1, settings), product)
    data = heads.features["training"], heads.labels["training"]
    return _of_product(gaussian_process(arch, *data, temperature=temperature), heads)


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
def one_shot_exact(width: int, temperature: float, config: Mapping[str, Any]) -> xr.Dataset:
    """The exact posterior of the order parameters at one width and temperature, and the theory on the same examples."""
    settings, heads = _given(config)
    arch, count = heads.architecture(width, settings), settings.exact_examples
    data = heads.features["training"][:count], heads.labels["training"][:count]
    theory = solve(arch, *data, temperature=temperature, throw=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)  # it is kept as a note
        found = sample_order_parameters(
            arch,
            *data,
            temperature=temperature,
            key=whole_key(settings.seed, width),
            draws=settings.exact_draws,
            chains=settings.chains,
            progress=inside.get(),
        )
    return xr.Dataset(
        {
            "exact_order_parameter": (("path", "other_path"), found.order_parameter),
            "exact_order_parameter_error": (("path", "other_path"), found.order_parameter_error),
            "exact_theory_order_parameter": (("path", "other_path"), theory.order_parameter),
            "exact_theory_accuracy": ("part", heads.accuracies(theory.predict)),
            "exact_head_score": ("head", head_scores(arch, found.order_parameter).values),
            "exact_accuracy": ("part", heads.accuracies(found.predict)),
            "exact_mixed": float(found.diagnostics.mixed),
            "exact_note": found.diagnostics.reason,
            "exact_r_hat": found.diagnostics.r_hat,
            "exact_effective": found.diagnostics.bulk_effective,
        }
    )


def _with_product(arch: Architecture, product: float) -> Architecture:
    """Only the product of the variances enters the theory, so that each may have the same part in it."""
    return arch.replace(variances=product ** (1 / len(arch.variances)))


def _of_product(solution: Solution, heads: FrozenHeads) -> xr.Dataset:
    accuracy = ("part", heads.accuracies(solution.predict))
    evidence = solution.log_evidence if solution.converged else -np.inf
    return xr.Dataset({"accuracy": accuracy, "log_evidence": evidence})


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

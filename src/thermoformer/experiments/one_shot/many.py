"""The theory with more and more training examples, against the trained network (trained networks §3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr

from ..._progress import inside
from ...learning import (
    PathFeatures,
    Solution,
    gaussian_process,
    order_parameter_from_weights,
    rotate_examples,
    solve,
)
from ...networks import AttentionNetwork
from ...sweeps import resumable
from ..sampled import side_by_side
from ..sweeping import Workspace
from ..words import fixed, percent, width_name
from .config import OneShotConfig
from .numbers import PART_NAMES, order_chance, order_correlation
from .points import PARTS, FrozenHeads, frozen_heads, given_config, one_shot_record

# What names of its variables and axes begin with among those of an experiment.
_MARK = "many_"
# Sequences whose features are computed at once.
_BATCH = 128
# Examples whose theory is solved in seconds, so that its time is not worth a report.
_REPORTED = 2000


@resumable
def many_point(examples: int, width: int, temperature: float, turned: int, config: Mapping[str, Any]) -> xr.Dataset:
    """The theory with a number of training examples, at one width and temperature: a point of the sweep.

    Arguments:
        turned: 1 if training characters are also turned by 90°, 180° and 270°, as in the training of the network.
        config: what `one_shot_record` gives.
    """
    settings, heads = given_config(config)
    data = rotated_training(settings, config["network_checksum"], examples, bool(turned))
    arch = heads.architecture(width, settings)
    # One point that does not converge must not end the run: it is marked in the data, and the page says so.
    return _of_solution(solve(arch, *data, temperature=temperature, throw=False), heads)


@resumable
def many_limit(examples: int, temperature: float, turned: int, config: Mapping[str, Any]) -> xr.Dataset:
    """The Gaussian process with a number of training examples at one temperature."""
    settings, heads = given_config(config)
    data = rotated_training(settings, config["network_checksum"], examples, bool(turned))
    return _of_solution(gaussian_process(heads.architecture(1, settings), *data, temperature=temperature), heads)


def _of_solution(solution: Solution, heads: FrozenHeads) -> xr.Dataset:
    return xr.Dataset(
        {
            "accuracy": ("part", heads.accuracies(solution.predict)),
            "log_evidence": solution.log_evidence,
            "converged": bool(solution.converged),
            "order_parameter": (("path", "other_path"), solution.order_parameter),
            "readout": (("path", "feature"), solution.path_readout()),
        }
    )


@lru_cache(maxsize=8)
def rotated_training(
    config: OneShotConfig, checksum: str, examples: int, turned: bool
) -> tuple[PathFeatures, np.ndarray]:
    """Features and labels of the first training sequences, rotated; kept for other widths and temperatures."""
    return rotate_examples(training_batches(frozen_heads(config, checksum), examples, turned))


def training_batches(heads: FrozenHeads, examples: int, turned: bool) -> Iterator[tuple[PathFeatures, np.ndarray]]:
    """Features and labels of the first training sequences, some at a time."""
    task, report = heads.tasks["turned" if turned else "training"], inside.get()
    for start in range(0, examples, _BATCH):
        if examples > _REPORTED:
            report(start, examples, f"features of {examples} sequences")
        count = min(_BATCH, examples - start)
        x, labels = task.batch(start // _BATCH)
        # All batches have one shape, so that one program serves them.
        features = heads.network.path_features(np.asarray(x))
        yield features[:count], np.asarray(labels, float)[:count]


def many_examples(config: OneShotConfig, workspace: Workspace) -> xr.Dataset:
    """The numbers of `many_point` and `many_limit` at all their points, with the temperature chosen by evidence.

    Dimensions: turned, examples, width (infinite: Gaussian process), temperature, part, path, other_path, feature.
    Characters that are turned, as in training, are tried at the largest number of examples alone, if at all.
    """
    many, record, found = config.many, one_shot_record(config), []
    assert many is not None
    for turned, counts in ((0, many.examples), (1, many.examples[-1:]))[: 2 if many.turned else 1]:
        examples, rest = {"examples": list(counts)}, {"temperature": list(many.temperatures), "turned": [turned]}
        name = "many_turned" if turned else "many"
        finite = workspace.part(name).sweep(many_point, {**examples, "width": list(many.widths), **rest}, record)
        limit = workspace.part(f"{name}_limit").sweep(many_limit, examples | rest, record)
        finite = finite.assign_coords(width=finite.width.values.astype(float))
        found.append(side_by_side([finite, limit.expand_dims(width=[np.inf])], "width"))
    dataset = xr.concat(found, "turned", join="outer").assign_coords(part=list(PARTS))
    evidence = dataset.log_evidence.where(np.isfinite(dataset.log_evidence), -np.inf)
    return dataset.assign(temperature_by_evidence=evidence.idxmax("temperature"))


def packed(dataset: xr.Dataset) -> xr.Dataset:
    """The Dataset of `many_examples` under names that other parts of an experiment do not have."""
    return dataset.rename({name: f"{_MARK}{name}" for name in (*dataset.data_vars, "width", "temperature")})


def unpacked(dataset: xr.Dataset) -> xr.Dataset:
    """The Dataset of `many_examples`, from that of an experiment."""
    names = [str(name) for name in dataset.variables if str(name).startswith(_MARK)]
    found = dataset[[name for name in names if name in dataset.data_vars]]
    return found.rename({name: name.removeprefix(_MARK) for name in names})


def with_agreement(dataset: xr.Dataset, network: AttentionNetwork) -> xr.Dataset:
    """The Dataset of `many_examples` with what U and the readouts have in common with those of the trained network.

    `order_correlation` is Pearson's over the entries of U off the diagonal, `order_chance` how often heads in another
    order correlate as much, and `readout_cosine` the cosine between the readouts of all paths.
    """
    trained = np.asarray(order_parameter_from_weights(network.arch, network.weights))
    readout = np.asarray(network.path_readout())
    orders = dataset.order_parameter.transpose(..., "path", "other_path")
    axes = orders.dims[:-2]
    readouts = dataset.readout.transpose(*axes, "path", "feature").values
    found = {
        name: np.full(orders.shape[:-2], np.nan) for name in ("order_correlation", "order_chance", "readout_cosine")
    }
    for at in np.ndindex(orders.shape[:-2]):
        order = orders.values[at]
        if np.isfinite(order).all():
            found["order_correlation"][at] = order_correlation(order, trained, diagonal=False)
            found["order_chance"][at] = order_chance(order, trained, network.arch.heads, diagonal=False)
            norms = np.linalg.norm(readouts[at]) * np.linalg.norm(readout)
            found["readout_cosine"][at] = np.vdot(readouts[at], readout) / norms
    return dataset.assign({name: (axes, values) for name, values in found.items()})


def at_evidence(dataset: xr.Dataset) -> xr.Dataset:
    """The Dataset at the temperature that the evidence chooses for each number of examples and width."""
    return dataset.sel(temperature=dataset.temperature_by_evidence)


def by_examples(dataset: xr.Dataset, network: xr.DataArray) -> list[tuple[str, list[list[str]]]]:
    """Tables of what the theory has in common with the trained network, by number of examples.

    Arguments:
        dataset: of `with_agreement`.
        network: accuracy of the trained network [part].
    """
    plain = at_evidence(dataset).sel(turned=0)

    def rows(values: xr.DataArray, form: Any, widths: Any = dataset.width.values) -> list[list[str]]:
        lines = values.transpose("width", "examples").sel(width=widths).values
        return [[width_name(width), *map(form, line)] for width, line in zip(widths, lines, strict=True)]

    finite = dataset.width.values[np.isfinite(dataset.width.values)]
    tables = []
    for part in PARTS:
        accuracy = rows(plain.accuracy.sel(part=part), percent)
        last = ["trained network", *([""] * (len(plain.examples) - 1)), percent(network.sel(part=part))]
        tables.append((f"accuracy on {PART_NAMES[part]}, %", [*accuracy, last]))
    tables.append(("U off the diagonal, Pearson", rows(plain.order_correlation, _hundredths, finite)))
    tables.append(("readout of all paths, cosine", rows(plain.readout_cosine, _hundredths)))
    tables.append(("τ by evidence", rows(plain.temperature_by_evidence, "{:g}".format)))
    return tables


def choices_of_theory(dataset: xr.Dataset) -> list[list[str]]:
    """At the largest number of examples, every width and temperature, and characters turned or not."""
    last, lines = dataset.isel(examples=-1), []
    for width, turned, temperature in itertools.product(
        dataset.width.values, dataset.turned.values, dataset.temperature.values
    ):
        at = last.sel(width=width, turned=turned, temperature=temperature)
        cells = [percent(at.accuracy.sel(part=part)) for part in PARTS[:2]]
        cells += [_hundredths(at.order_correlation), _hundredths(at.readout_cosine)]
        lines.append([width_name(width), "yes" if turned else "no", f"{temperature:g}", *cells])
    return lines


def _hundredths(value: Any) -> str:
    return "" if np.isnan(value) else fixed(float(value), 2)

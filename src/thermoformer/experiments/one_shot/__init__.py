"""One-shot images with the frozen heads of a trained network (experiments §2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import spearmanr

from ...learning import Architecture
from ...learning.scores import head_labels, head_name
from ..base import Study
from ..sampled import side_by_side
from ..sweeping import Workspace
from ..words import width_name
from . import numbers
from .config import OneShotConfig
from .many import at_evidence, by_examples, choices_of_theory, many_examples, packed, unpacked, with_agreement
from .numbers import COEFFICIENTS, at_choice, correlations, order_correlation, repeated, with_choices
from .points import (
    PARTS,
    network_of,
    one_shot_free,
    one_shot_limit,
    one_shot_limit_free,
    one_shot_point,
    one_shot_record,
    one_shot_sampled,
    one_shot_trained,
)
from .training import PUBLISHED_ACCURACY


def _theory(config: OneShotConfig, workspace: Workspace, mark: str = "") -> xr.Dataset:
    """The theory with the sequences of one seed; the mark is that of its folders."""
    record, seed, widths = one_shot_record(config), {"seed": [config.seed]}, {"width": list(config.widths)}
    temperatures = {"temperature": list(config.temperatures)}

    def swept(name: str, point: Callable[..., xr.Dataset], axes: Mapping[str, list[Any]]) -> xr.Dataset:
        found = workspace.part(f"{name}{mark}").sweep(point, axes, record)
        return found.isel(seed=0, drop=True) if "seed" in axes else found

    trained = swept("trained", one_shot_trained, seed)
    finite, limit = swept("widths", one_shot_point, widths | temperatures), swept("limit", one_shot_limit, temperatures)
    found = _with_limit(finite, limit).assign(trained_order_accuracy=limit.trained_order_accuracy)
    if config.choose_variances:
        free, limit = swept("free", one_shot_free, widths), swept("limit_free", one_shot_limit_free, seed)
        found = found.merge(_with_limit(free, limit))
    return with_choices(found.merge(trained).assign_coords(part=list(PARTS)))


def _with_limit(finite: xr.Dataset, limit: xr.Dataset) -> xr.Dataset:
    """Finite widths, and the Gaussian process as the infinite one."""
    widths = finite.assign_coords(width=finite.width.values.astype(float))
    return side_by_side([widths, limit[list(finite.data_vars)].expand_dims(width=[np.inf])], "width")


_LONG_NAMES = {
    "accuracy": "accuracy of the sign of the mean predictor",
    "expected_accuracy": "expected accuracy of one network from the posterior",
    "log_evidence": "log evidence of the training labels",
    "converged": "whether the solver met its tolerance",
    "order_parameter": "order parameter U between attention paths",
    "head_score": "score of a head: sum of |U| over pairs of paths with the head, over the largest",
    "label_overlap": "overlap |v_k . y| / sqrt(P) of the labels with the principal components of the kernel",
    "temperature_by_validation": "temperature with the highest accuracy on validation characters",
    "temperature_by_evidence": "temperature with the highest evidence of the training labels",
    "compared_width": "finite width with the highest accuracy on validation characters",
    "free_temperature": "temperature chosen by evidence, together with the product of the variances",
    "free_product": "product of all prior variances chosen by evidence",
    "free_log_evidence": "log evidence at this choice",
    "free_at_bound": "whether this choice is at the edge of what is allowed",
    "free_accuracy": "accuracy at this choice",
    "trained_accuracy": "accuracy of the trained network",
    "trained_width": "width of the trained network",
    "trained_order_parameter": "order parameter U of the trained weights",
    "trained_head_score": "score of a head from the U of the trained weights",
    "trained_order_accuracy": "accuracy of the Gaussian predictor with the U of the trained weights",
    "sampled_order_parameter": "mean order parameter U of sampled networks",
    "sampled_order_parameter_error": "its Monte-Carlo standard error",
    "sampled_head_score": "score of a head from the mean U of sampled networks",
    "sampled_accuracy": "accuracy of the mean predictor of sampled networks",
    "sampled_mixed": "whether the chains of sampled networks mixed",
    "sampled_note": "why the chains of sampled networks count as not mixed",
    "sampled_method": "sampler: gibbs over all weights, or nuts over the order parameters",
    "sampled_r_hat": "largest R-hat of sampled networks",
    "sampled_effective": "smallest effective sample size of sampled networks",
    "repeated_accuracy": "accuracy at the temperature by validation, for every repetition",
    "repeated_evidence_accuracy": "accuracy at the temperature by evidence, for every repetition",
    "repeated_free_accuracy": "accuracy at temperature and variances by evidence, for every repetition",
    "repeated_trained_accuracy": "accuracy of the trained network, for every repetition",
    "repeated_trained_order_accuracy": "accuracy with the U of the trained weights, for every repetition",
    "many_accuracy": "accuracy with more and more training examples",
    "many_order_parameter": "order parameter U with more and more training examples",
    "many_readout": "readout of every path with more and more training examples",
    "many_log_evidence": "log evidence with more and more training examples",
    "many_converged": "whether the solver met its tolerance with more and more training examples",
    "many_order_correlation": "correlation of U, off the diagonal, with that of the trained network",
    "many_order_chance": "part of orders of the heads in which this correlation is as large",
    "many_readout_cosine": "cosine of the readouts of all paths with those of the trained network",
    "many_temperature_by_evidence": "temperature with the highest evidence of the training labels",
    "correlation": "correlation of the entries of U with those of the trained network",
    "correlation_chance": "part of orders of the heads in which the correlation is as large",
}


class OneShot(Study):
    """One-shot images: a sweep over widths and temperatures, and smaller ones beside it.

    Temperatures are chosen, and the width that is looked at closely, by validation characters or by the evidence of
    the training labels. Nothing is tuned on the test characters or on the other data sets.

    Its Dataset has the dimensions width (infinite: Gaussian process), temperature, part (of the images), path,
    other_path, head and component:

    - `accuracy`, `expected_accuracy` [width, temperature, part], `log_evidence`, `converged`, `order_parameter`,
      `head_score` and `label_overlap` at every point;
    - `temperature_by_validation`, `temperature_by_evidence` [width], and `compared_width`, the finite width that
      does best on validation characters;
    - `free_…` [width]: temperature and product of the prior variances both chosen by evidence;
    - `trained_…` of the trained network itself, and `trained_order_accuracy` [temperature, part] of the Gaussian
      predictor with its U, scaled to the trace of the Gaussian process;
    - `sampled_…` from networks sampled at `compared_width` and the temperature chosen there by validation;
    - `repeated_accuracy` [repetition, width, part] at the temperature that each repetition's validation characters
      choose, and `repeated_…_accuracy` of the other choices and predictors, if there are several repetitions;
    - `many_…` [turned, examples, many_width, many_temperature] of the theory with more and more training examples;
    - `correlation` [coefficient, width, temperature] of U with that of the trained network, and
      `correlation_chance`, how often heads in another order correlate as much.
    """

    name, title, config, point = "one_shot", "One-shot images", OneShotConfig, one_shot_point
    long_names = _LONG_NAMES

    def compute(self, config: OneShotConfig, workspace: Workspace) -> xr.Dataset:
        """The theory on all repetitions, correlations, and sampled networks at the width that is compared."""
        dataset = _theory(config, workspace)
        dataset = dataset.merge(correlations(dataset))
        if config.sampled_draws:
            width = int(dataset.compared_width)
            point = {"width": [width], "temperature": [dataset.temperature_by_validation.sel(width=width).item()]}
            record = one_shot_record(config, sampled=True)
            sampled = workspace.part("sampled").sweep(one_shot_sampled, point, record)
            dataset = dataset.merge(sampled.isel(width=0, temperature=0, drop=True))
        if config.many is not None:
            many = with_agreement(many_examples(config, workspace), network_of(config))
            dataset = dataset.merge(packed(many), compat="equals", join="exact")
        if config.repetitions > 1:
            seeds = range(config.seed + 1, config.seed + config.repetitions)
            others = [_theory(dataclasses.replace(config, seed=seed), workspace, f"_{seed}") for seed in seeds]
            dataset = dataset.merge(repeated([dataset, *others]))
        arch = Architecture(tuple(dataset.heads.values.tolist()), 1)
        paths, heads = list(arch.path_names()), [head_name(label) for label in head_labels(arch)]
        names = {"path": paths, "other_path": paths, "head": heads, "component": np.arange(1, config.components + 1)}
        dataset = dataset.drop_vars("heads").assign_coords(names)
        dataset.width.attrs["long_name"] = "width N; infinite: Gaussian process"
        return dataset.assign_attrs(layers=list(arch.heads))

    def tables(self, dataset: xr.Dataset, config: OneShotConfig) -> dict[str, pd.DataFrame]:
        """Accuracies at every point, and scores of heads."""
        return {"accuracy": numbers.accuracy_table(dataset), "head_scores": numbers.score_table(dataset)}

    def values(self, dataset: xr.Dataset, config: OneShotConfig) -> dict[str, Any]:
        """Accuracies by choice, correlations of U, scores of heads and overlaps with the labels."""
        best, widest = float(dataset.compared_width), numbers.finite_widths(dataset)[-1]
        chosen, shown = at_choice(dataset, "validation"), [best, widest, np.inf]
        ways = {"validation": chosen.accuracy, "evidence": at_choice(dataset, "evidence").accuracy}
        if "free_accuracy" in dataset:
            ways["free"] = dataset.free_accuracy
        bound, edges = dataset.get("free_at_bound", xr.zeros_like(dataset.width)) == 1, dataset.temperature[[0, -1]]
        test = dataset.accuracy.sel(part="test").transpose("width", "temperature")
        theory, *sampled, trained = numbers.order_parameters(dataset).values()
        scores, names = numbers.head_scores(dataset), dataset["head"].values
        ours, *_, theirs = scores.values()
        rank: Any = spearmanr(ours, theirs)
        return {
            "best": best,
            "widest": widest,
            "ways": {way: accuracy.sel(part="test", width=shown).values for way, accuracy in ways.items()},
            "at_bound": [width_name(one) for one in dataset.width.values[bound.values]],
            "at_edge": [width_name(one) for one in dataset.width.values[chosen.temperature.isin(edges).values]],
            "repetitions": numbers.repetition_tables(dataset),
            "chosen": numbers.chosen_tables(dataset),
            "temperatures": [f"τ = {value:g}" for value in dataset.temperature.values],
            "accuracies": [
                [width_name(width), *(f"{100 * value:.1f}" for value in row)]
                for width, row in zip(dataset.width.values, test.values, strict=True)
            ],
            "published_accuracy": PUBLISHED_ACCURACY,
            "coefficients": list(COEFFICIENTS),
            "identity": order_correlation(np.eye(len(trained)), trained),
            "sampled": _beside_sampled(dataset, theory, sampled[0]) if sampled else None,
            "pairs": numbers.pair_rows(dataset),
            "correlations": numbers.correlation_rows(dataset),
            "rank": rank.statistic,
            "highest": [names[np.argmax(values)] for values in (ours, theirs)],
            "lowest": [names[np.argmin(values)] for values in (ours, theirs)],
            "many": _many_values(dataset) if config.many is not None else None,
            "overlaps": {width_name(one): chosen.label_overlap.sel(width=one).values for one in (best, np.inf)},
            "failed": int((~dataset.converged.astype(bool)).sum()),
        }


def _many_values(dataset: xr.Dataset) -> dict[str, Any]:
    """What the page says of more and more examples: tables, and the agreement at the last number of examples."""
    many = unpacked(dataset)
    last = at_evidence(many).sel(turned=0).isel(examples=-1)
    best = last.sel(width=last.order_correlation.idxmax("width"))
    return {
        "examples": many.examples.values.tolist(),
        "failed": int((many.converged == 0).sum()),
        "tables": by_examples(many, dataset.trained_accuracy),
        "choices": choices_of_theory(many),
        "width": width_name(float(best.width)),
        "correlation": float(best.order_correlation),
        "chance": float(best.order_chance),
        "cosine": float(best.readout_cosine),
        "accuracy": float(last.accuracy.sel(part="test").max()),
    }


def _beside_sampled(dataset: xr.Dataset, theory: np.ndarray, sampled: np.ndarray) -> dict[str, Any]:
    """How far the theory's U is from that of sampled networks, both with one trace, and how they were sampled."""
    mean, error = dataset.sampled_order_parameter.values, dataset.sampled_order_parameter_error.values
    accuracy = at_choice(dataset, "validation").accuracy.sel(width=float(dataset.compared_width), part="test")
    return {
        "apart": np.linalg.norm(theory - sampled) / np.linalg.norm(sampled),
        "noise": np.linalg.norm(error) / np.linalg.norm(mean),
        "larger": np.trace(theory) / np.trace(mean) - 1,
        "theory": float(accuracy),
        "accuracy": float(dataset.sampled_accuracy.sel(part="test")),
        "method": dataset.sampled_method.item(),
        "mixed": bool(float(dataset.sampled_mixed)),
        "note": dataset.sampled_note.item(),
    }


STUDY = OneShot()

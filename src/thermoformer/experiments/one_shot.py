"""One-shot images with the frozen heads of a trained network (experiments §2): config to data.

`one_shot_points` has the numbers of a single point, `one_shot_report` makes the page.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from .._progress import Progress, silent
from ..learning import Architecture
from ..learning.scores import head_labels, head_name
from .executor import HERE, Executor
from .one_shot_choices import repeated, with_choices
from .one_shot_config import OneShotConfig
from .one_shot_overlap import correlations
from .one_shot_points import (
    PARTS,
    one_shot_free,
    one_shot_limit,
    one_shot_limit_free,
    one_shot_point,
    one_shot_record,
    one_shot_sampled,
    one_shot_trained,
)
from .one_shot_training import trained_network
from .sweeping import finished, swept


def run(
    out: Path,
    *,
    quick: bool = False,
    seed: int = 0,
    train: bool = False,
    executor: Executor = HERE,
    progress: Progress | None = None,
) -> Path:
    """The experiment at its usual or quick size; returns the path of its page (see `Experiment.run`)."""
    config = OneShotConfig.quick(seed) if quick else OneShotConfig(seed=seed)
    if train:
        file, training = trained_network(out / "training", quick=quick, seed=seed, progress=progress)
        config = config.with_network(file, training)
    return run_one_shot(config, out, executor=executor, progress=progress)


def run_one_shot(
    config: OneShotConfig, out: str | Path, *, executor: Executor = HERE, progress: Progress | None = None
) -> Path:
    """Data, figures, tables and page of the experiment into a folder; returns the path of the page.

    Points that a run with the same settings finished in this folder are reused.

    Arguments:
        executor: where points run.
    """
    from .one_shot_report import write_report  # matplotlib is slow to import: only when something is drawn

    out = Path(out)
    progress = progress or silent
    dataset = one_shot_data(config, folder=out / "sweep", executor=executor, progress=progress)
    return finished(dataset, config, out / "one_shot.nc", write_report, points=1, progress=progress)


def one_shot_data(
    config: OneShotConfig,
    *,
    folder: str | Path | None = None,
    executor: Executor = HERE,
    progress: Progress | None = None,
) -> xr.Dataset:
    """The numbers of the experiment: a sweep over widths and temperatures, and smaller ones beside it.

    Temperatures are chosen, and the width that is looked at closely, by validation characters or by the evidence of
    the training labels. Test characters and the other worlds choose nothing.

    Arguments:
        folder: where the sweeps are kept and gone on with.
        executor: where points run.
        progress: called as progress(done, total, message).

    Returns:
        A Dataset with the dimensions width (infinite: Gaussian process), temperature, part (of the images), path,
        other_path, head and component:

        - `accuracy`, `expected_accuracy` [width, temperature, part], `log_evidence`, `converged`, `order_parameter`,
          `head_score` and `label_overlap` at every point;
        - `temperature_by_validation`, `temperature_by_evidence` [width], and `compared_width`, the finite width that
          does best on validation characters;
        - `free_…` [width]: temperature and product of the prior variances both chosen by evidence, where asked for;
        - `trained_…` of the trained network itself, and `trained_order_accuracy` [temperature, part] of the Gaussian
          predictor with its U, scaled to the trace of the Gaussian process;
        - `sampled_…` from networks sampled at `compared_width` and the temperature chosen there by validation, where
          they were asked for;
        - `repeated_accuracy` [repetition, width, part] at the temperature that each repetition's validation characters
          choose, and `repeated_…_accuracy` of the other choices and predictors, where there is more than one;
        - `correlation` [coefficient, width, temperature] of U with that of the trained network, and
          `correlation_chance`, how often heads in another order correlate as much.
    """
    progress, record = progress or silent, one_shot_record(config)
    place = None if folder is None else Path(folder)
    given: dict[str, Any] = {"config": record, "executor": executor, "progress": progress}

    def kept(name: str) -> Path | None:
        return None if place is None else place / name

    temperatures, widths = list(config.temperatures), list(config.widths)

    def theory(seed: int, mark: str = "") -> xr.Dataset:
        own: dict[str, Any] = given | {"config": one_shot_record(dataclasses.replace(config, seed=seed))}
        trained = swept(one_shot_trained, {"seed": [seed]}, kept(f"trained{mark}"), **own).isel(seed=0, drop=True)
        axes = {"width": widths, "temperature": temperatures}
        finite = swept(one_shot_point, axes, kept(f"widths{mark}"), **own)
        limit = swept(one_shot_limit, {"temperature": temperatures}, kept(f"limit{mark}"), **own)
        joined = _with_limit(finite, limit)
        joined["trained_order_accuracy"] = limit.trained_order_accuracy
        if config.choose_variances:
            free = swept(one_shot_free, {"width": widths}, kept(f"free{mark}"), **own)
            limit = swept(one_shot_limit_free, {"seed": [seed]}, kept(f"limit_free{mark}"), **own)
            joined = joined.merge(_with_limit(free, limit.isel(seed=0, drop=True)))
        return with_choices(joined.merge(trained).assign_coords(part=list(PARTS)))

    dataset = theory(config.seed)
    dataset = dataset.merge(correlations(dataset))
    if config.sampled_draws:
        width = int(dataset.compared_width)
        temperature = float(dataset.temperature_by_validation.sel(width=width))
        given["config"] = one_shot_record(config, sampled=True)
        point = {"width": [width], "temperature": [temperature]}
        sampled = swept(one_shot_sampled, point, kept("sampled"), **given)
        dataset = dataset.merge(sampled.isel(width=0, temperature=0, drop=True))
    if config.repetitions > 1:
        seeds = range(config.seed + 1, config.seed + config.repetitions)
        dataset = dataset.merge(repeated([dataset, *(theory(seed, f"_{seed}") for seed in seeds)]))
    return _described(dataset, config)


def _with_limit(finite: xr.Dataset, limit: xr.Dataset) -> xr.Dataset:
    """Finite widths, and the Gaussian process as the infinite one."""
    widths = finite.assign_coords(width=finite.width.values.astype(float))
    parts = [widths, limit[list(finite.data_vars)].expand_dims(width=[np.inf])]
    return xr.concat(parts, "width", data_vars="all", coords="minimal", compat="equals", join="exact")


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
    "correlation": "correlation of the entries of U with those of the trained network",
    "correlation_chance": "part of orders of the heads in which the correlation is as large",
}


def _described(dataset: xr.Dataset, config: OneShotConfig) -> xr.Dataset:
    """The Dataset with its coordinates, long names and the config it came from."""
    heads = tuple(int(count) for count in dataset.heads.values)
    dataset = dataset.drop_vars("heads")
    arch = Architecture(heads, 1)
    paths = list(arch.path_names())
    dataset = dataset.assign_coords(
        path=paths,
        other_path=paths,
        head=[head_name(label) for label in head_labels(arch)],
        component=np.arange(1, config.components + 1),
    )
    dataset.width.attrs["long_name"] = "width N; infinite: Gaussian process"
    for name, variable in dataset.data_vars.items():
        variable.attrs["long_name"] = _LONG_NAMES[str(name)]
    fields = json.dumps(dataclasses.asdict(config))
    return dataset.assign_attrs(title="One-shot images", config=fields, layers=list(heads))

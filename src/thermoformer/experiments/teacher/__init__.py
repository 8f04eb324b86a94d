"""Known ground truth: a teacher network with known path weights labels random tokens; does the theory find it?

Three cases share their inputs and heads. *Same heads*: the student has the teacher's heads and prior, so that its exact
posterior is the right one. *Head missing*: the teacher has one more head in the first layer than the student. *Head
unused*: the teacher gives no weight to one of the student's heads.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from ..._progress import Progress, inside
from ...learning import (
    Architecture,
    PathFeatures,
    PathSum,
    SamplingWarning,
    evidence_scores,
    head_scores,
    one_loop,
    sample_order_parameters,
    solve,
)
from ...learning.scores import head_labels, head_name, paths_of_heads
from ...sweeps import resumable
from ..base import Study
from ..sampled import side_by_side, whole_key
from ..sweeping import config_of
from ..threads import within
from ..words import with_texts
from .config import (
    APPROACHES,
    CASES,
    EXACT,
    HEADS,
    LIMIT,
    MATCHED,
    MISSING,
    MORE_HEADS,
    ONE_LOOP,
    PAIR,
    SADDLE,
    SCORES,
    UNUSED,
    TeacherConfig,
    training_examples,
)
from .numbers import (
    beside_exact,
    calibrated,
    found_rates,
    gain_rates,
    linear_ceiling,
    negative_rates,
    order_correlation,
    prior_variance,
    ratio_of_means,
    rows_of_distances,
    rows_of_rates,
    rows_with_errors,
)
from .task import attentioned_inputs, irreducible_error, kernel_shares, output_of, output_shares, teacher_network


@resumable
def teacher_point(teacher: int, width: int, ratio: float, config: Mapping[str, Any]) -> xr.Dataset:
    """All cases for one teacher at one width and P/N: a point of the sweep.

    Arguments:
        teacher: which repetition.
        width: N.
        ratio: P/N.
        config: the record of a `TeacherConfig`.
    """
    settings, examples = config_of(TeacherConfig, config), training_examples(width, ratio)
    report = within(inside.get(), 0, 1, f"N = {width}, P = {examples}, teacher {teacher + 1}")
    report(0, 1, "examples")
    training = attentioned_inputs(settings, teacher, width, "training", examples)
    test = attentioned_inputs(settings, teacher, width, "test", settings.test_examples)
    return side_by_side(
        [_one_case(settings, case, teacher, width, training, test, report) for case in CASES],
        xr.Variable("case", list(CASES)),
    )


def _one_case(
    config: TeacherConfig,
    case: str,
    teacher: int,
    width: int,
    training: np.ndarray,
    test: np.ndarray,
    progress: Progress,
) -> xr.Dataset:
    """What a point holds of one case."""
    readout, order = teacher_network(config, case, teacher, width)
    noise = np.random.default_rng((config.seed, teacher, width, 2)).normal(size=len(training))
    labels = output_of(readout, training) + np.sqrt(config.temperature) * noise
    output = output_of(readout, test)
    student, temperature = Architecture(HEADS, width), config.temperature
    features, new = (PathFeatures.from_attentioned_inputs(xi[:, : student.paths]) for xi in (training, test))
    xi = np.asarray(new.values)
    progress(0, 1, f"{case}: theory")
    # One search that fails must not end the run: its results are nan, and the page counts them.
    saddle = solve(student, features, labels, temperature=temperature, throw=False)
    limit = saddle.with_order_parameter(student.infinite_width_variance * np.eye(student.paths))
    found: dict[str, PathSum] = {LIMIT: limit}
    if saddle.converged:
        found |= {SADDLE: saddle, ONE_LOOP: one_loop(saddle)}
    mixed = spread = np.nan
    if case == MATCHED and teacher < config.exact_teachers and width <= config.exact_up_to:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SamplingWarning)  # the page says what has not mixed
            posterior = sample_order_parameters(
                student,
                features,
                labels,
                temperature=temperature,
                key=whole_key(config.seed, teacher, width, len(training), 9),
                draws=config.draws,
                warmup=config.draws,
                chains=config.chains,
                progress=within(progress, 0, 1, EXACT),
            )
        found[EXACT], mixed = posterior, float(posterior.diagnostics.mixed)
        draws: Any = posterior.draws["posterior"]["order_parameter"]
        spread = float(draws.var(["chain", "draw"]).sum())
    table = xr.Dataset(
        {
            "teacher_order_parameter": (PAIR, order),
            "teacher_kernel_share": (PAIR, kernel_shares(order, xi, output)),
            "teacher_output_share": (PAIR, output_shares(readout[: student.paths], xi)),
            "signal": ((), np.mean(output**2)),
            "floor": ((), irreducible_error(xi, output) if case == MISSING else 0.0),
            "mixed": ((), mixed),
            "order_spread": ((), spread),
            "gain": ((), np.nan),
            "leading_gain": ((), np.nan),
            "score": (("score_kind", "head"), np.full((len(SCORES), sum(HEADS)), np.nan)),
        },
        {"path": list(student.path_names()), "path_other": list(student.path_names())}
        | {"score_kind": list(SCORES), "head": [head_name(head) for head in head_labels(student)]},
    )
    by_approach = {name: _of_approach(result, new, output) for name, result in found.items()}
    names = xr.Variable("approach", list(by_approach))
    table = table.merge(side_by_side(list(by_approach.values()), names).reindex(approach=list(APPROACHES)))
    if not saddle.converged:
        return table
    if case == UNUSED:
        score = table.score.copy()
        score.loc[SCORES[0]] = head_scores(student, saddle.order_parameter).values
        removed = saddle.path_contributions(new) @ paths_of_heads(student).T
        score.loc[SCORES[1]] = np.mean(removed**2, axis=0)
        given = {"temperature": temperature, "solution": saddle}
        score.loc[SCORES[2]] = evidence_scores(student, features, labels, **given).values
        return table.assign(score=score)
    progress(0, 1, f"{case}: one more head")
    everything = PathFeatures.from_attentioned_inputs(training)
    more = solve(Architecture(MORE_HEADS, width), everything, labels, temperature=temperature, throw=False)
    if more.converged:
        table["leading_gain"] = more.log_evidence - saddle.log_evidence
        table["gain"] = one_loop(more).log_evidence - found[ONE_LOOP].log_evidence  # type: ignore[attr-defined]
    return table


def _of_approach(result: PathSum, new: PathFeatures, output: np.ndarray) -> xr.Dataset:
    """Errors on new examples, U, and shares of pairs of paths, of one approach."""
    prediction, xi = result.predict(new), np.asarray(new.values)
    order = np.asarray(result.order_parameter)
    names = list(result.architecture.path_names())
    return xr.Dataset(
        {
            "true_error": ((), np.mean((prediction.mean - output) ** 2)),
            "predicted_error": ((), prediction.mean_variance()),
            "order_parameter": (PAIR, order),
            "kernel_share": (PAIR, kernel_shares(order, xi, output)),
            "output_share": (PAIR, output_shares(result.path_readout(), xi)),
        },
        {"path": names, "path_other": names},
    )


class Teacher(Study):
    """Known ground truth: a sweep over teachers, widths and P/N, all cases at every point.

    Its Dataset has the dimensions teacher, width, ratio, case and approach: `true_error` and `predicted_error`;
    `order_parameter`, `kernel_share` and `output_share` of pairs of paths, and the same three of the teacher;
    `signal`, `floor`, `mixed`, `order_spread`; `gain` and `leading_gain` of one more head; `score` of every head.
    Over teachers it has, each with its error: `explained` (how much of U is found, same heads), `calibration` and
    `order_calibration` (predicted over true error, of the output and of U) and `relative_error`; and
    `relative_prediction` and `share_distance`. What does not apply is nan.
    """

    name, title, config, point = "teacher", "Known ground truth: teacher and student", TeacherConfig, teacher_point
    # Which other teachers, widths and ratios there are changes no point.
    over: ClassVar = {"teacher": "teachers", "width": "widths", "ratio": "ratios"}
    same: ClassVar = {"teachers": 2, "widths": (10,), "ratios": (1.0,)}
    long_names: ClassVar = {
        "true_error": "mean squared difference of mean predictor and noiseless teacher on new examples",
        "predicted_error": "mean predictive variance on new examples, without temperature",
        "order_parameter": "order parameter U between attention paths",
        "kernel_share": "share of a pair of paths in the kernel along the teacher's output",
        "output_share": "share of a pair of paths in the mean square of the output",
        "teacher_order_parameter": "U of the teacher's weights",
        "teacher_kernel_share": "share of a pair of paths in the teacher's kernel along its output",
        "teacher_output_share": "share of a pair of paths in the mean square of the teacher's output",
        "signal": "mean square of the teacher's output on new examples",
        "floor": "error that the student's heads cannot get rid of",
        "order_spread": "variance of U in the exact posterior, summed over its entries",
        "mixed": "1: the chains of the exact posterior mixed, 0: they did not, nan: not sampled",
        "gain": "log evidence gained with one more head in the first layer, one-loop",
        "leading_gain": "log evidence gained with one more head in the first layer, saddle",
        "score": "score of a head of the student",
        "explained": "share of the variance of U under the prior that is found",
        "explained_error": "standard error of explained over teachers",
        "calibration": "predicted over true generalisation error, ratio of means over teachers",
        "calibration_error": "standard error of calibration over teachers",
        "order_calibration": "order_spread over the true squared error of U, ratio of means over teachers",
        "order_calibration_error": "standard error of order_calibration over teachers",
        "relative_error": "true generalisation error over the mean square of the teacher's output",
        "relative_error_error": "standard error of relative_error over teachers",
        "relative_prediction": "predicted generalisation error over the mean square of the teacher's output",
        "share_distance": "half the sum of the differences of shares in the kernel between approach and teacher",
    }

    def complete(self, found: xr.Dataset, config: TeacherConfig) -> xr.Dataset:
        """With ratios of means over teachers and their errors."""
        missed = ((found.order_parameter - found.teacher_order_parameter) ** 2).sum(PAIR, skipna=False)
        # The variance of the prior is known, and without the noise of a few teachers.
        missed_share = missed.where(found.case == MATCHED) / xr.DataArray(
            [prior_variance(int(width)) for width in found.width], dims="width"
        )
        explained_error = missed_share.std("teacher", ddof=1) / np.sqrt(missed_share.notnull().sum("teacher"))
        calibration, calibration_error = ratio_of_means(found.predicted_error, found.true_error)
        relative, relative_error = ratio_of_means(found.true_error, found.signal)
        order = ratio_of_means(found.order_spread, missed.sel(approach=EXACT, drop=True))
        apart = abs(found.kernel_share - found.teacher_kernel_share)
        return found.assign(
            explained=1 - missed_share.mean("teacher"),
            explained_error=explained_error,
            calibration=calibration,
            calibration_error=calibration_error,
            order_calibration=order[0],
            order_calibration_error=order[1],
            relative_error=relative,
            relative_error_error=relative_error,
            relative_prediction=ratio_of_means(found.predicted_error, found.signal)[0],
            share_distance=apart.sum(PAIR, skipna=False) / 2,
        )

    def tables(self, dataset: xr.Dataset, config: TeacherConfig) -> dict[str, pd.DataFrame]:
        """Errors, calibration and U by width, P/N, case and approach; and what is found of wrong heads."""
        names = ("relative_error", "relative_prediction", "calibration", "explained")
        both = [part for name in names for part in (name, f"{name}_error") if part in dataset]
        frame: Any = dataset[both].to_dataframe(dim_order=["case", "width", "ratio", "approach"])
        frame = frame.dropna(how="all").reset_index()
        rates = xr.Dataset({**found_rates(dataset), **gain_rates(dataset)}).to_dataframe(dim_order=["width", "ratio"])
        return {
            "errors": with_texts(frame, **dict.fromkeys(both, ".4g")),
            "heads": rates.reset_index(),
        }

    def values(self, dataset: xr.Dataset, config: TeacherConfig) -> dict[str, Any]:
        """What the page says of calibration, U, pairs of paths, and wrong heads."""
        matched, missing = dataset.sel(case=MATCHED), dataset.sel(case=MISSING)
        ratios = [f"P/N = {ratio:g}" for ratio in config.ratios]
        tables = {
            name: {
                approach: rows_with_errors(at[name], at[f"{name}_error"])
                for approach in shown
                for at in [matched.sel(approach=approach)]
                if at[name].notnull().any()
            }
            for name, shown in (("calibration", (LIMIT, SADDLE, EXACT)), ("explained", (SADDLE, EXACT)))
        }
        missed = ((matched.order_parameter - matched.teacher_order_parameter) ** 2).sum(PAIR, skipna=False)
        last = matched.sel(ratio=config.ratios[-1])
        saddle = {"approach": SADDLE}
        return {
            "cases": CASES,
            "ratios": ratios,
            "tables": tables,
            "calibrated": {
                name: calibrated(at.predicted_error, at.true_error)
                for name in APPROACHES
                for at in [matched.sel(approach=name)]
            },
            "order_calibrated": calibrated(matched.order_spread, missed.sel(approach=EXACT)),
            "beside_exact": {
                "saddle": beside_exact(matched.predicted_error, SADDLE),
                "limit": beside_exact(matched.true_error, LIMIT),
            },
            "order_rows": rows_with_errors(matched.order_calibration, matched.order_calibration_error),
            "unconverged": int(dataset.true_error.sel(saddle).isnull().sum()),
            "mixed": {"runs": int(matched.mixed.notnull().sum()), "failed": int((matched.mixed == 0).sum())},
            "correlations": {
                width: order_correlation(last.sel(width=width, approach=SADDLE)) for width in config.widths
            },
            "ceilings": {width: linear_ceiling(width, config.token_width) for width in config.widths},
            "distances": rows_of_distances(matched),
            "gains": rows_of_rates(gain_rates(dataset), config),
            "found": rows_of_rates(found_rates(dataset), config),
            "negative": rows_of_rates(negative_rates(dataset), config),
            "floor": {
                width: {
                    "floor": float(at.floor.mean("teacher") / at.signal.mean("teacher")),
                    "true": float(at.relative_error.sel(saddle)),
                    "predicted": float(at.relative_prediction.sel(saddle)),
                }
                for width in config.widths
                for at in [missing.sel(width=width, ratio=config.ratios[-1])]
            },
        }


STUDY = Teacher()

"""Known teachers: their labels and shares, what holds on average over teachers, and the experiment at a tiny size."""

from __future__ import annotations

import csv
import dataclasses

import numpy as np
import pytest
import xarray as xr
from scipy.stats import kstest

from thermoformer.experiments import teacher
from thermoformer.experiments.sampled import whole_key
from thermoformer.experiments.sweeping import record_of
from thermoformer.experiments.teacher import STUDY, TeacherConfig, config, numbers, task
from thermoformer.experiments.teacher.config import CASES, MATCHED, MISSING, MORE_HEADS, SCORES, UNUSED
from thermoformer.learning import (
    Architecture,
    PathFeatures,
    effective_path_weights,
    forward,
    gaussian_process,
    prior_weights,
    random_attention,
    sample_order_parameters,
)

from .test_page import assert_written

TINY = TeacherConfig(
    teachers=2,
    exact_teachers=2,
    exact_up_to=8,
    widths=(8, 12),
    ratios=(2.0, 5.0),
    tokens=3,
    token_width=4,
    test_examples=40,
    draws=20,
)


@pytest.fixture(scope="module")
def point() -> xr.Dataset:
    """One real point, whose searches and samplers are compiled once: other tests make theirs from it."""
    return teacher.teacher_point(0, 8, 5.0, record_of(TINY))


@pytest.fixture
def computed(monkeypatch, point) -> list[tuple[int, int, float]]:
    """The points that would have been computed; a factor on the errors tells them apart."""
    calls: list[tuple[int, int, float]] = []

    def pretended(settings, number, width, part, examples):
        if part == "training":
            calls.append((number, width, examples))
        return number

    def one_case(settings, case, number, width, training, test, progress):
        found = point.sel(case=case, drop=True)
        return found.assign(true_error=found.true_error * (1 + 0.1 * number), gain=found.gain + 5 * number)

    monkeypatch.setattr(teacher, "attentioned_inputs", pretended)
    monkeypatch.setattr(teacher, "_one_case", one_case)
    return calls


@pytest.mark.parametrize("case", CASES)
def test_the_readout_of_a_teacher_is_its_network(case):
    """The forward pass through tokens and attention gives what Σ w_π·ξ_π gives."""
    width, number = 9, 3
    x = np.random.default_rng((TINY.seed, number, width, 1)).normal(size=(6, TINY.tokens, TINY.token_width))
    arch = Architecture(MORE_HEADS if case == MISSING else config.HEADS, width)
    attention = [
        random_attention(x, heads, key=whole_key(TINY.seed, number, width, layer), scale=TINY.attention_scale)[:, :used]
        for layer, (heads, used) in enumerate(zip(MORE_HEADS, arch.heads, strict=True))
    ]
    weights = prior_weights(arch, TINY.token_width, key=whole_key(TINY.seed, number, width, 2 + CASES.index(case)))
    if case == UNUSED:
        first = np.array(weights.values[0])
        first[config.UNUSED_HEAD[1]] = 0
        weights = weights._replace(values=(first, weights.values[1]))
    readout, order = task.teacher_network(TINY, case, number, width)
    xi = task.attentioned_inputs(TINY, number, width, "test", 6)
    np.testing.assert_allclose(task.output_of(readout, xi), forward(arch, weights, x, attention), atol=1e-12)
    # U over the number of paths is what enters the kernel, of teacher and student alike.
    vectors = np.asarray(effective_path_weights(arch, weights))[:4]
    np.testing.assert_allclose(order / 4, vectors @ vectors.T / width / arch.paths, atol=1e-12)
    assert (np.abs(order[2:]).max() < 1e-12) == (case == UNUSED)


def test_a_teacher_keeps_its_examples_when_there_are_more(monkeypatch):
    few, many = (task.attentioned_inputs(TINY, 0, 8, "training", examples) for examples in (5, 23))
    np.testing.assert_allclose(many[:5], few, atol=1e-14)
    monkeypatch.setattr(task, "AT_ONCE", 10)
    np.testing.assert_allclose(task.attentioned_inputs(TINY, 0, 8, "training", 23), many, atol=1e-14)
    assert np.abs(task.attentioned_inputs(TINY, 1, 8, "training", 5) - few).max() > 0.1
    assert np.abs(task.attentioned_inputs(TINY, 0, 8, "test", 5) - few).max() > 0.1


def test_shares_are_those_of_the_kernel_and_of_the_output():
    random = np.random.default_rng(0)
    xi, readout = random.normal(size=(30, 4, 5)), random.normal(size=(4, 5))
    order = np.cov(random.normal(size=(4, 9)))
    output = task.output_of(readout, xi)
    products = np.einsum("xai,ybi->abxy", xi, xi)
    parts = np.array([[order[a, b] * output @ products[a, b] @ output for b in range(4)] for a in range(4)])
    np.testing.assert_allclose(task.kernel_shares(order, xi, output), parts / parts.sum())
    shares = task.output_shares(readout, xi)
    assert shares.sum() == pytest.approx(1)
    alone = np.mean((xi[:, 2] @ readout[2]) ** 2) / np.mean(output**2)
    assert shares[2, 2] == pytest.approx(alone)


def test_the_floor_is_the_part_that_no_readout_of_these_paths_has():
    random = np.random.default_rng(1)
    xi, other = random.normal(size=(20_000, 4, 3)), random.normal(size=20_000)
    output = task.output_of(random.normal(size=(4, 3)), xi)
    assert task.irreducible_error(xi, output) == pytest.approx(0, abs=1e-20)
    assert task.irreducible_error(xi, output + 0.5 * other) == pytest.approx(0.25, rel=0.05)
    # Few examples fit their own noise; the estimate must not shrink with them.
    few = [task.irreducible_error(xi[at : at + 24], other[at : at + 24]) for at in range(0, 20_000 - 24, 24)]
    assert np.mean(few) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("heads", [(2, 2), (1, 3)])
def test_the_variance_of_u_is_that_of_draws_of_the_prior(heads):
    arch, draws = Architecture(heads, 6), 4000
    vectors = np.asarray(effective_path_weights(arch, prior_weights(arch, 1, key=0, draws=draws)))
    orders = np.einsum("dai,dbi->dab", vectors, vectors) / 6
    # The fourth moments of a product of three matrices: 4000 draws leave an error of several percent.
    assert np.var(orders, axis=0).sum() == pytest.approx(numbers.prior_variance(6, heads), rel=0.15)
    np.testing.assert_allclose(orders.mean(axis=0), np.eye(arch.paths), atol=0.1)


def test_the_ceiling_is_that_of_the_best_linear_estimate():
    # One path in one layer: var U = V, and |w|² adds 2⟨U²⟩/N0 to it.
    variance = numbers.prior_variance(10, (1,))
    share = variance / (variance + 2 * (1 + variance) / 32)
    assert numbers.linear_ceiling(10, 32, (1,)) == pytest.approx(share, abs=0.02)
    # No fluctuation is hidden where a readout has very many numbers.
    assert numbers.linear_ceiling(10, 20_000) == pytest.approx(1, abs=0.01)


def matched_errors(teachers: int, noise: float, temperature: float, exact: bool) -> np.ndarray:
    """True error, predicted error, and the rank of the teacher's tr U among draws, [3, teacher]: same heads, N = 4."""
    settings = dataclasses.replace(TINY, token_width=3, test_examples=60)
    width, arch, found = 4, Architecture(config.HEADS, 4), []
    for number in range(teachers):
        readout, order = task.teacher_network(settings, MATCHED, number, width)
        training, test = (
            task.attentioned_inputs(settings, number, width, part, examples)[:, : arch.paths]
            for part, examples in (("training", 16), ("test", 60))
        )
        labels = task.output_of(readout, training)
        labels = labels + np.sqrt(noise) * np.random.default_rng((7, number)).normal(size=16)
        given = arch, PathFeatures.from_attentioned_inputs(training), labels
        rank = np.nan
        if exact:
            result = sample_order_parameters(
                *given, temperature=temperature, key=number, draws=150, warmup=150, chains=1
            )
            traces = np.trace(result.draws["posterior"]["order_parameter"].values[0], axis1=1, axis2=2)
            rank = np.mean(traces < np.trace(order))
        else:
            result = gaussian_process(*given, temperature=temperature)
        prediction = result.predict(PathFeatures.from_attentioned_inputs(test))
        true = np.mean((prediction.mean - task.output_of(readout, test)) ** 2)
        found.append((true, prediction.mean_variance(), rank))
    return np.transpose(found)


def sigmas(true: np.ndarray, predicted: np.ndarray) -> float:
    """How many standard errors over teachers the mean of predicted − true is from 0."""
    apart = predicted - true
    return float(apart.mean() / (apart.std(ddof=1) / np.sqrt(len(apart))))


def test_the_gaussian_process_knows_its_error_on_average_over_teachers():
    """Its mean is linear in the labels, and ⟨U⟩ is its U: no identity is needed but that of second moments."""
    true, predicted, _ = matched_errors(250, noise=0.1, temperature=0.1, exact=False)
    assert abs(sigmas(true, predicted)) < 3
    # With other noise than it assumes, it does not.
    assert sigmas(*matched_errors(250, noise=0.4, temperature=0.1, exact=False)[:2]) < -5


@pytest.mark.filterwarnings("ignore::thermoformer.learning.SamplingWarning")
def test_the_exact_posterior_knows_its_errors_on_average_over_teachers():
    """Nishimori: where teachers are drawn from the prior, a teacher is distributed as a draw of the posterior."""
    true, predicted, ranks = matched_errors(120, noise=0.1, temperature=0.1, exact=True)
    assert abs(sigmas(true, predicted)) < 3
    # U has heavy tails at this width: its rank among the draws, which is uniform, shows more than its square error.
    assert kstest(ranks, "uniform").pvalue > 0.01
    # It beats the Gaussian process on the same teachers.
    assert sigmas(matched_errors(120, noise=0.1, temperature=0.1, exact=False)[0], true) < -2
    # Labels with more noise than the student assumes are put down to large path weights.
    assert kstest(matched_errors(40, noise=1.0, temperature=0.1, exact=True)[2], "uniform").pvalue < 0.001


def test_a_point_has_every_case(point):
    assert point.case.values.tolist() == list(CASES) and point["head"].values.tolist() == ["0.0", "0.1", "1.0", "1.1"]
    assert np.isfinite(point.true_error.sel(case=MATCHED)).all()
    assert np.isnan(point.true_error.sel(case=[MISSING, UNUSED], approach="exact")).all()
    np.testing.assert_array_equal(point.order_parameter.sel(case=MATCHED, approach="gaussian process"), np.eye(4))
    np.testing.assert_allclose(point.kernel_share.sel(case=MATCHED).sum(["path", "path_other"]), 1)
    assert np.isfinite(point.gain.sel(case=[MATCHED, MISSING])).all() and np.isnan(point.gain.sel(case=UNUSED))
    assert np.isfinite(point.score.sel(case=UNUSED)).all() and np.isnan(point.score.sel(case=MATCHED)).all()
    # The order parameter of a teacher that does not use a head has no weight on its paths.
    unused = point.teacher_order_parameter.sel(case=UNUSED)
    assert np.abs(unused[2:]).max() == 0 < np.abs(unused[:2, :2]).min()
    assert point.floor.sel(case=MISSING) > 0 and point.floor.sel(case=MATCHED) == 0


@pytest.mark.parametrize("case", CASES)
def test_a_point_is_of_the_labels_of_its_teacher(point, case):
    readout, order = task.teacher_network(TINY, case, 0, 8)
    training, test = (task.attentioned_inputs(TINY, 0, 8, part, 40) for part in ("training", "test"))
    noise = 0.1**0.5 * np.random.default_rng((TINY.seed, 0, 8, 2)).normal(size=40)
    features, new = (PathFeatures.from_attentioned_inputs(xi[:, :4]) for xi in (training, test))
    labels = task.output_of(readout, training) + noise
    fitted = gaussian_process(Architecture(config.HEADS, 8), features, labels, temperature=0.1).predict(new)
    at, output = point.sel(case=case), task.output_of(readout, test)
    limit = at.sel(approach="gaussian process")
    assert float(limit.true_error) == pytest.approx(np.mean((fitted.mean - output) ** 2))
    assert float(limit.predicted_error) == pytest.approx(np.mean(fitted.variance))
    assert float(at.signal) == pytest.approx(np.mean(output**2))
    np.testing.assert_allclose(at.teacher_order_parameter, order)


def test_a_search_that_fails_leaves_its_numbers_out(monkeypatch, point):
    def failed(*given, **options):
        return dataclasses.replace(teacher_solve(*given, **options), converged=False)

    teacher_solve = teacher.solve
    monkeypatch.setattr(teacher, "solve", failed)
    wide = dataclasses.replace(TINY, exact_up_to=1)
    found = teacher.teacher_point(0, 8, 5.0, record_of(wide))
    assert np.isnan(found.true_error.sel(approach=["saddle", "one-loop", "exact"])).all() and np.isnan(found.gain).all()
    limits = (one.true_error.sel(approach="gaussian process") for one in (found, point))
    xr.testing.assert_allclose(*limits)


def test_ratios_leave_out_teachers_without_a_value():
    top = xr.DataArray([[1.0, 3.0, np.nan], [2.0, 4.0, 6.0]], dims=("width", "teacher"))
    bottom = xr.DataArray([2.0, 2.0, 100.0], dims="teacher")
    value, error = numbers.ratio_of_means(top, bottom)
    assert value.values.tolist() == [1.0, pytest.approx(12 / 104)] and float(error[0]) == pytest.approx(0.5)


def test_calibration_counts_every_teacher_once():
    """Two teachers at two widths and three ratios: one predicts twice its error at one width, all else is right."""
    true = xr.DataArray(np.ones((2, 2, 3)), {"width": [5, 9], "ratio": [1.0, 2.0, 3.0]}, ("teacher", "width", "ratio"))
    predicted = true.copy()
    predicted[0, 0] = 2.0
    found = numbers.calibrated(predicted, true)
    assert found["points"] == 6 and found["far"] == 0 and (found["least"], found["most"]) == (1.0, 1.5)
    assert (found["worst_width"], found["worst"]) == (5, 1.5)
    assert (found["pooled"], found["pooled_error"]) == (pytest.approx(1.25), pytest.approx(0.25))
    predicted[0, 0] = predicted[1, 0] = 1.4
    assert numbers.calibrated(predicted, true)["far"] == 3
    assert numbers.calibrated(np.nan * predicted, true) == {"points": 0}


def test_errors_beside_the_exact_ones_are_of_the_same_teachers():
    values = np.array([[[2.0, 9.0], [4.0, 8.0]], [[1.0, np.nan], [2.0, np.nan]]])
    axes = {"approach": ["saddle", "exact"], "ratio": [1.0, 2.0]}
    errors = xr.DataArray(values, axes, ("approach", "ratio", "teacher")).expand_dims(width=[7])
    assert numbers.beside_exact(errors, "saddle") == [{"width": 7, "least": 2.0, "most": 2.0}]


def scored(unused: list[float], used: float = 1.0) -> xr.Dataset:
    """Scores of one point, of as many teachers as there are scores of the unused head; the same for every score."""
    heads = np.full((len(unused), len(SCORES), 4), used)
    heads[:, :, 1] = np.array(unused)[:, None]
    return xr.Dataset(
        {"score": (("case", "teacher", "score_kind", "head"), heads[None])},
        {"case": [UNUSED], "score_kind": list(SCORES), "head": ["0.0", "0.1", "1.0", "1.1"]},
    )


def test_rates_count_teachers():
    found = numbers.found_rates(scored([0.5, 2.0, -1.0, np.nan]))
    assert {name: float(rate) for name, rate in found.items()} == dict.fromkeys(SCORES, pytest.approx(2 / 3))
    negative = numbers.negative_rates(scored([0.5, 2.0, -1.0, np.nan]))
    assert float(negative["unused head"]) == pytest.approx(1 / 3) and float(negative["used heads"]) == 0
    gains = xr.Dataset({"gain": (("case", "teacher"), [[-1.0, -2.0], [3.0, np.nan]])}, {"case": [MATCHED, MISSING]})
    assert {name: float(rate) for name, rate in numbers.gain_rates(gains).items()} == {MISSING: 1.0, MATCHED: 0.0}


def test_run_writes_data_figures_tables_and_page(tmp_path, computed):
    reports = []
    page = STUDY.run(TINY, tmp_path / "out", progress=lambda *report: reports.append(report))
    assert sorted(computed) == [(i, n, p) for i in (0, 1) for n, p in ((8, 16), (8, 40), (12, 24), (12, 60))]
    stems = ("calibration", "errors", "order_parameter", "shares", "heads")
    assert_written(page, stems, tables=["errors", "heads"])
    assert reports[-1] == (8, 8, "done")
    saved = xr.load_dataset(page.parent / "teacher.nc", engine="h5netcdf")
    xr.testing.assert_allclose(saved, STUDY.data(TINY))
    assert all(variable.attrs["long_name"] for variable in saved.data_vars.values())
    with (tmp_path / "out" / "errors.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["case"] for row in rows} == set(CASES) and len(rows) == 4 * (4 + 3 + 3)
    text = page.read_text()
    assert "The solver found a saddle at every point." in text and "<td>saddle</td>" in text
    # Means over teachers are divided, not ratios averaged; every other teacher has errors that are a tenth larger.
    at = saved.sel(case=MATCHED, approach="saddle", width=8, ratio=5.0)
    assert float(at.calibration) == pytest.approx(float(at.predicted_error[0] / at.true_error[0]) / 1.05)
    computed.clear()
    more = dataclasses.replace(TINY, teachers=3, ratios=(2.0, 3.0, 5.0))
    assert STUDY.data(more, folder=tmp_path / "out" / "sweep").sizes["teacher"] == 3
    assert len(computed) == 18 - 8


def test_the_page_says_what_was_left_out(tmp_path, computed, point, monkeypatch):
    spoiled = point.assign(mixed=0 * point.mixed, true_error=point.true_error.where(point.approach != "saddle"))
    monkeypatch.setattr(teacher, "_one_case", lambda settings, case, *given: spoiled.sel(case=case, drop=True))
    text = STUDY.run(TINY, tmp_path).read_text()
    assert "Of 8 runs, 8 had chains that did not count as mixed" in text
    assert "The solver found no saddle at 24 points; they are left out." in text

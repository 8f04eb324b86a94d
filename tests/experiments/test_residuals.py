"""Skips and normalisation at a tiny size: the data, the files, going on after an interruption, and bad settings."""

from __future__ import annotations

import csv
import dataclasses

import numpy as np
import pytest
import xarray as xr

from thermoformer._progress import inside
from thermoformer.experiments import residuals
from thermoformer.experiments.markov import FOUR_PATHS, sequences_and_attention
from thermoformer.experiments.residuals import ResidualsConfig, normalised_tokens
from thermoformer.experiments.residuals.kinds import EXACT_KINDS, INPUT_NORM, KINDS, NORM_INSIDE, PLAIN, SKIPS, slug
from thermoformer.experiments.sweeping import record_of
from thermoformer.learning import PathFeatures, head_scores, solve

from .pretended import NOISE, REASON, pretend_to_sample
from .test_page import assert_written

TINY = ResidualsConfig(
    seeds=1,
    training_examples=10,
    test_examples=20,
    tokens=5,
    feature_width=6,
    exact_draws=30,
    sampled_draws=40,
    inside_draws=50,
    inside_warmup=50,
)
TABLED = ("accuracy", "bias", "seconds", "mixed", "note", "r_hat", "effective", "gradients")


@pytest.fixture(scope="module")
def point() -> xr.Dataset:
    """One point with real theory and real networks with norm inside: every other test makes its points from it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residuals, "beside_theory", pretend_to_sample)
        return residuals.residuals_point(0, 10, record_of(TINY)).rename(approach_seconds="seconds")


@pytest.fixture
def computed(monkeypatch, point) -> list[tuple[int, int]]:
    """The (repetition, width) pairs that would have been computed; accuracies tell them apart."""
    calls: list[tuple[int, int]] = []

    def pretended(config, index, width, progress):
        for number, kind in enumerate(KINDS):
            progress(number, len(KINDS), kind)
        calls.append((index, width))
        return point.assign(accuracy=point.accuracy * (1 - 0.01 * index - 0.001 * width))

    monkeypatch.setattr(residuals, "_all_kinds", pretended)
    return calls


def test_dataset_has_the_documented_variables(computed):
    dataset = residuals.STUDY.data(dataclasses.replace(TINY, seeds=2, widths=(10, 20)))
    assert computed == [(0, 10), (0, 20), (1, 10), (1, 20)]
    for name in TABLED:
        assert dataset[name].dims == ("seed", "width", "kind", "approach"), name
    assert dataset.distance.dims == dataset.noise.dims == ("seed", "width", "kind", "approach", "quantity")
    assert dataset.order_parameter_plain.shape == (2, 2, 3, 4, 4)
    assert dataset.order_parameter_skips.shape == dataset.order_parameter_skips_input_norm.shape == (2, 2, 3, 9, 9)
    assert dataset.path_skips.values[:2].tolist() == ["skip→skip", "skip→uniform"]
    assert dataset.converged.dtype == bool and dataset.converged.all()
    assert all(variable.attrs["long_name"] for variable in dataset.data_vars.values())
    np.testing.assert_allclose(
        dataset.accuracy.sel(seed=1, width=20), 0.97 / 0.99 * dataset.accuracy.isel(seed=0, width=0)
    )


def test_theory_of_each_kind_is_solved_on_its_own_tokens(point):
    x, attention, labels = sequences_and_attention(TINY.task(), 0, 0)
    for kind, tokens in {PLAIN: x, SKIPS: x, INPUT_NORM: normalised_tokens(x)}.items():
        arch = TINY.architecture(kind, 10)
        features = PathFeatures.from_attention(tokens, attention, skip=arch.skip)
        solution = solve(arch, features[:10], labels[:10], temperature=TINY.temperature)
        order = point[f"order_parameter_{slug(kind)}"].sel(approach="theory")
        np.testing.assert_allclose(order, solution.order_parameter, atol=1e-6)
        at = point.sel(kind=kind, approach="theory")
        np.testing.assert_allclose(at["mean"], solution.predict(features[10:]).mean, atol=1e-6)
        scores = head_scores(arch, solution.order_parameter).values
        np.testing.assert_allclose(point.head_score.sel(theory_kind=kind, approach="theory"), scores, atol=1e-6)
    assert point.path_skips.values.tolist() == list(TINY.architecture(SKIPS, 10).path_names(FOUR_PATHS.heads))


def test_norm_inside_is_compared_with_the_theory_with_skips(point):
    both = point[["mean", "variance", "accuracy"]].sel(kind=[SKIPS, NORM_INSIDE])
    expected = both.isel(kind=0, drop=True)
    found = both.isel(kind=1, drop=True)
    for approach in ("theory", "exact"):
        xr.testing.assert_equal(found.sel(approach=approach), expected.sel(approach=approach))
    assert not np.allclose(found["mean"].sel(approach="sampled"), expected["mean"].sel(approach="sampled"))
    np.testing.assert_allclose(
        point.inside_distance.sel(theory_kind=SKIPS), point.distance.sel(kind=NORM_INSIDE, approach="theory")
    )


def test_distances_are_from_sampled_networks_with_their_noise(point):
    at = point.sel(approach="exact", quantity="mean", kind=list(EXACT_KINDS))
    size = np.sqrt((point["mean"].sel(approach="sampled", kind=list(EXACT_KINDS)) ** 2).mean("example"))
    np.testing.assert_allclose(at.noise, np.sqrt(2) * NOISE / size)
    assert (at.distance < 2 * at.noise).all()
    inside = point.sel(kind=NORM_INSIDE, approach="theory", quantity="mean")
    assert inside.distance > 2 * inside.noise
    assert point.distance.sel(approach="sampled").isnull().all()


def test_what_samplers_say_of_themselves_is_kept(point):
    assert point.mixed.sel(approach="theory").isnull().all()
    assert point.mixed.sel(approach="exact").values.tolist() == [1, 1, 1, 1]
    assert point.mixed.sel(approach="sampled", kind=list(EXACT_KINDS)).values.tolist() == [0, 0, 0]
    assert str(point.note.sel(approach="sampled", kind=PLAIN).values) == REASON
    assert ((point.mixed == 0) == (point.note != "")).all()
    assert point.gradients.sel(approach="sampled", kind=NORM_INSIDE) > 1000


def test_progress_says_what_norm_inside_costs(monkeypatch):
    class Enough(Exception):
        pass

    reports = []

    def report(done, total, message):
        reports.append((done, total, message))
        if NORM_INSIDE in message:
            raise Enough

    monkeypatch.setattr(residuals, "beside_theory", pretend_to_sample)
    monkeypatch.setattr(residuals, "usual_workers", lambda: 1)
    token = inside.set(report)
    try:
        with pytest.raises(Enough):
            residuals.residuals_point(1, 10, record_of(TINY))
    finally:
        inside.reset(token)
    assert [message for _, _, message in reports[:2]] == ["N = 10, seed 2: plain", "N = 10, seed 2: plain: exact"]
    assert reports[-1][2] == f"N = 10, seed 2: {NORM_INSIDE} ({TINY.inside_cost(10)})"
    assert ResidualsConfig().inside_cost(10) == "about 30 min on two cores, 78 s on a GPU"


def test_layer_norm_of_tokens():
    x, _, _ = sequences_and_attention(TINY.task(), 0, 0)
    tokens = normalised_tokens(x)
    np.testing.assert_allclose(tokens.mean(axis=-1), 0, atol=1e-12)
    np.testing.assert_allclose(tokens.std(axis=-1), 1)
    np.testing.assert_allclose(normalised_tokens(3 * x + 2), tokens, atol=1e-10)
    with pytest.raises(ValueError, match=r"x: got shape \(2,\); expected 3 axes \[example, token, feature\]"):
        normalised_tokens([1.0, 2.0])


def test_run_writes_data_figures_table_and_page(tmp_path, computed):
    seeds, widths = 2, (10, 20)
    config = dataclasses.replace(TINY, seeds=seeds, widths=widths)
    reports = []
    page = residuals.STUDY.run(config, tmp_path / "out", progress=lambda *report: reports.append(report))
    assert page == tmp_path / "out" / "residuals.html"
    stems = ("accuracy", "distances", "predictions", "order_parameters", "head_scores")
    assert_written(page, stems, tables=["residuals"])
    points = seeds * len(widths)
    assert reports[:2] == [(0, points, "starting"), (0, points, "N = 10, seed 1: plain")]
    assert reports[-1] == (points, points, "done")
    assert [done for done, _, _ in reports] == sorted(done for done, _, _ in reports)
    saved = xr.load_dataset(page.parent / "residuals.nc", engine="h5netcdf")
    xr.testing.assert_allclose(saved, residuals.STUDY.data(config))
    with (tmp_path / "out" / "residuals.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(widths) * len(KINDS) * 3
    assert all(float(row["distance_mean_percent"]) > 0 for row in rows if row["approach"] != "sampled")


def test_the_page_says_what_has_not_mixed_and_what_did_not_converge(tmp_path, computed, point, monkeypatch):
    spoiled = point.assign(
        mixed=point.mixed * 0, note=(point.note.dims, np.where(point.mixed.isnull(), "", "too few draws")),
        converged=point.converged & False,
    )  # fmt: skip
    monkeypatch.setattr(residuals, "_all_kinds", lambda *arguments: spoiled)
    text = residuals.STUDY.run(TINY, tmp_path).read_text()
    assert text.count("had not mixed (the first: too few draws)") == 3
    assert "3 solutions of the theory did not reach the solver" in text

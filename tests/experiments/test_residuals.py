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
from thermoformer.experiments.residuals import ResidualsConfig, kind_of_problem, normalised_heads, normalised_tokens
from thermoformer.experiments.residuals.effective import effective_features
from thermoformer.experiments.residuals.kinds import EXACT_KINDS, INSIDE_KINDS, KINDS
from thermoformer.experiments.sweeping import record_of
from thermoformer.learning import (
    Architecture,
    PathFeatures,
    Weights,
    compare,
    forward,
    gaussian_process,
    head_scores,
    prior_weights,
    solve,
)

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
    inside_draws=20,
    inside_warmup=30,
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
    assert dataset.order_parameter.shape == (2, 2, len(KINDS), 3, 9, 9)
    assert dataset.path.values[:2].tolist() == ["skip→skip", "skip→uniform"]
    assert dataset.order_parameter.sel(kind="plain").isel(seed=0, width=0, approach=0).count() == 16
    assert dataset.converged.dtype == bool and dataset.converged.all()
    assert all(variable.attrs["long_name"] for variable in dataset.data_vars.values())
    np.testing.assert_allclose(
        dataset.accuracy.sel(seed=1, width=20), 0.97 / 0.99 * dataset.accuracy.isel(seed=0, width=0)
    )


def test_theory_of_each_kind_is_solved_on_its_own_problem(point):
    for name, kind in KINDS.items():
        x, attention, labels = kind_of_problem(TINY, 0, name)
        arch = TINY.architecture(name, 10)
        bare = PathFeatures.from_attention(x, attention, skip=arch.skip)
        features = effective_features(arch, x, attention, kind.layer_norm)[0] if kind.layer_norm else bare
        solution = solve(arch, features[:10], labels[:10], temperature=TINY.temperature)
        order = point.order_parameter.sel(kind=name, approach="theory").dropna("path", how="all")
        order = order.dropna("path_other", how="all")
        assert order.path.values.tolist() == list(arch.path_names(FOUR_PATHS.heads))
        np.testing.assert_allclose(order, solution.order_parameter, atol=1e-6)
        at = point.sel(kind=name, approach="theory")
        np.testing.assert_allclose(at["mean"], solution.predict(features[10:]).mean, atol=1e-6)
        np.testing.assert_allclose(at.head_score, head_scores(arch, solution.order_parameter).values, atol=1e-6)
        if kind.layer_norm:
            ignoring = solve(arch, bare[:10], labels[:10], temperature=TINY.temperature).predict(bare[10:]).mean
            networks = point["mean"].sel(kind=name, approach="sampled").values
            apart = np.sqrt(np.mean((ignoring - networks) ** 2) / np.mean(networks**2))
            assert float(point.ignoring_distance.sel(kind=name, quantity="mean")) == pytest.approx(apart, rel=1e-4)
    assert point.ignoring_distance.sel(kind=list(EXACT_KINDS)).isnull().all()
    assert (point.norm_spread.sel(kind=list(INSIDE_KINDS)) > 0).all()


def test_kinds_differ_in_one_thing():
    x, attention, _ = kind_of_problem(TINY, 0, "skips")
    for kind, same in (("skips, input norm", False), ("skips, query-key norm", True), ("skips over √L", True)):
        other, heads, _ = kind_of_problem(TINY, 0, kind)
        assert np.array_equal(other, x) == same
        assert np.allclose(heads[0], attention[0]) == (kind != "skips, query-key norm")
    weights = np.random.default_rng(0).normal(size=(2, x.shape[2], x.shape[2]))
    np.testing.assert_allclose(normalised_heads(x, 5 * weights), normalised_heads(3 * x, weights), rtol=1e-9)
    scaled, plain = (TINY.architecture(kind, 10) for kind in ("skips over √L", "skips"))
    one = prior_weights(plain, x.shape[2], key=0)
    half = one._replace(values=tuple(value / np.sqrt(2) for value in one.values))
    np.testing.assert_allclose(prior_weights(scaled, x.shape[2], key=0).values[1], half.values[1], rtol=1e-12)


@pytest.mark.parametrize("kind", ["skips, input norm", "skips, query-key norm", "skips over √L"])
def test_the_theory_is_exact_for_networks(kind):
    """All weights by NUTS against the posterior of the order parameters, at width 4."""
    x, attention, labels = kind_of_problem(TINY, 0, kind)
    arch = TINY.architecture(kind, 4)
    features = PathFeatures.from_attention(x, attention, skip=True)
    parts = features[:10], labels[:10], features[10:], labels[10:]
    given = {"temperature": 0.3, "key": 1, "methods": ["exact", "sampled"], "draws": {"exact": 500, "sampled": 500}}
    apart = compare(arch, *parts, **given, sampler="nuts").distance("sampled")
    for quantity in ("mean", "deviation", "order_parameter"):
        assert getattr(apart, quantity) < 2.5 * getattr(apart, f"{quantity}_noise"), quantity
    assert apart.mean_noise < 0.15 and apart.deviation_noise < 0.1


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("norm", ["pre", "rms", "post"])
def test_mean_field_norms_are_those_of_wide_networks(norm, skip):
    """The covariance of outputs over the prior, of which the readout and the neurons are averaged exactly."""
    random, width, draws = np.random.default_rng(2), 100, 64
    x = random.normal(size=(4, 3, 5)) * np.array([0.3, 1, 2, 1.5])[:, None, None]
    attention = [np.exp(2 * random.normal(size=(4, 2, 3, 3))) for _ in range(2)]
    attention = [layer / layer.sum(axis=-1, keepdims=True) for layer in attention]
    arch = Architecture((2, 2), width, (1.3, 0.7, 1.5, 1.0), skip=skip)
    values = tuple(np.sqrt(variance) * random.normal(size=(draws, 2, width, width)) for variance in (0.7, 1.5))
    readout = np.broadcast_to(np.sqrt(width) * np.eye(width), (draws, width, width))
    weights = Weights(np.sqrt(1.3) * random.normal(size=(draws, width, 5)), values, readout)
    found = np.asarray(forward(arch.replace(outputs=width), weights, x, attention, layer_norm=norm))
    features, norms = effective_features(arch, x, attention, norm)
    kernel = np.asarray(gaussian_process(arch, features, np.ones(4), temperature=1.0).kernel(features))
    np.testing.assert_allclose(np.einsum("dpi,dqi->pq", found, found) / width / draws, kernel, atol=0.04)
    np.testing.assert_allclose(np.diagonal(kernel), 1, rtol=1e-9)
    # The kernel without norms, in units of its diagonal, is another one.
    bare = PathFeatures.from_attention(x, attention, skip=skip)
    other = np.asarray(gaussian_process(arch, bare, np.ones(4), temperature=1.0).kernel(bare))
    size = np.sqrt(np.diagonal(other))
    assert np.abs(other / size / size[:, None] - kernel).max() > 0.05
    assert norms.shape == (4,) and np.ptp(norms) > 0.05


def test_distances_are_from_sampled_networks_with_their_noise(point):
    at = point.sel(approach="exact", quantity="mean", kind=list(EXACT_KINDS))
    size = np.sqrt((point["mean"].sel(approach="sampled", kind=list(EXACT_KINDS)) ** 2).mean("example"))
    np.testing.assert_allclose(at.noise, np.sqrt(2) * NOISE / size)
    assert (at.distance < 2 * at.noise).all()
    assert point.distance.sel(approach="sampled").isnull().all()


def test_what_samplers_say_of_themselves_is_kept(point):
    assert point.mixed.sel(approach="theory").isnull().all()
    assert (point.mixed.sel(approach="exact") == 1).all()
    assert (point.mixed.sel(approach="sampled", kind=list(EXACT_KINDS)) == 0).all()
    assert str(point.note.sel(approach="sampled", kind="plain").values) == REASON
    assert ((point.mixed == 0) == (point.note != "")).all()
    assert (point.gradients.sel(approach="sampled", kind=list(INSIDE_KINDS)) > 500).all()


def test_progress_says_what_norm_inside_costs(monkeypatch):
    class Enough(Exception):
        pass

    reports = []

    def report(done, total, message):
        reports.append((done, total, message))
        if "two cores" in message:
            raise Enough

    monkeypatch.setattr(residuals, "beside_theory", pretend_to_sample)
    monkeypatch.setattr(residuals, "usual_workers", lambda: 1)
    token = inside.set(report)
    try:
        with pytest.raises(Enough):
            residuals.residuals_point(1, 10, record_of(TINY))
    finally:
        inside.reset(token)
    first = f"N = 10, seed 2: {INSIDE_KINDS[0]}"
    assert [message for _, _, message in reports[:2]] == [first, f"{first}: exact"]
    assert reports[-1][2] == f"{first} ({TINY.inside_cost(10)})"
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
    assert "8 solutions of the theory did not reach the solver" in text

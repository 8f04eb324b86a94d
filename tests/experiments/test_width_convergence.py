"""Width convergence: the quadrature and the orders in 1/N that it shows, and the experiment at a tiny size."""

from __future__ import annotations

import csv
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

from thermoformer import figures
from thermoformer.experiments import width_convergence
from thermoformer.experiments.one_path import (
    APPROACHES,
    QUANTITIES,
    OnePath,
    OnePathConfig,
    fitted_slope,
    one_path_problem,
)
from thermoformer.experiments.width_convergence import (
    STUDY,
    WidthConvergence,
    WidthConvergenceConfig,
    expected_seconds,
    width_convergence_point,
    width_within,
)
from thermoformer.experiments.words import duration, small_percent
from thermoformer.learning import Architecture, Posterior, gaussian_process
from thermoformer.learning.comparison import METHODS, Comparison, compare

from .test_page import assert_written

TINY = WidthConvergenceConfig(
    seeds=2,
    widths=(4, 8),
    sampled_widths=(4,),
    test_examples=10,
    tokens=4,
    feature_width=6,
)


class FakePosterior(Posterior):
    """The predictions and U of a solution, moved a little, with Monte-Carlo errors."""

    def predict(self, features):
        return self.draws

    def predictor_draws(self, features):
        raise NotImplementedError

    def path_readout(self):
        raise NotImplementedError


def fake_compare(arch, features, labels, test, test_labels, *, temperature, key, methods, draws, chains, progress):
    """A comparison without any search or sampler: every method is the Gaussian process, moved by a factor."""
    progress(0, 1, "nothing")
    limit = gaussian_process(arch, features, labels, temperature=temperature)
    truth = limit.predict(test)
    factors = {"gaussian process": 2.0, "saddle": 1 + 1 / arch.widths[0], "one-loop": 1 + 1 / arch.widths[0] ** 2}
    diagnostics = SimpleNamespace(mixed=True, reason="")
    results, predictions = {}, {}
    for name in methods:
        factor = factors.get(name, 1.0)
        moved = dataclasses.replace(truth, mean=factor * truth.mean, variance=factor**2 * truth.variance)
        results[name] = dataclasses.replace(limit, order_parameter=factor * limit.order_parameter)
        if name not in factors:
            moved = dataclasses.replace(moved, mean_error=0.001 + 0 * truth.mean, variance_error=0.001 + 0 * truth.mean)
            error = 0.001 * np.ones_like(limit.order_parameter)
            results[name] = FakePosterior(arch, temperature, limit.order_parameter, error, diagnostics, moved)
        predictions[name] = moved
    seconds = dict.fromkeys(methods, 1.0)
    return Comparison(arch, temperature, results, predictions, test_labels, "exact", seconds, {}, {})


@pytest.fixture
def computed(monkeypatch) -> list[tuple[int, int]]:
    """The (repetition, width) pairs that were really computed, all of them with `fake_compare`."""
    calls: list[tuple[int, int]] = []
    original = width_convergence.path_features

    def counted(task, variant_number, index):
        calls.append((index, task.widths[0]))
        return original(task, variant_number, index)

    monkeypatch.setattr(width_convergence, "compare", fake_compare)
    monkeypatch.setattr(width_convergence, "path_features", counted)
    return calls


@pytest.fixture(scope="module")
def one_path() -> xr.Dataset:
    # Two widths and not more: each is compiled anew.
    return OnePath().data(OnePathConfig(widths=(16, 256), data_sets=4))


def test_errors_fall_with_the_promised_orders(one_path):
    for quantity in QUANTITIES[:2]:
        errors = one_path.error.sel(quantity=quantity)
        assert fitted_slope(errors.sel(approach="saddle")) == pytest.approx(-1, abs=0.15)
        assert fitted_slope(errors.sel(approach="one-loop")) == pytest.approx(-2, abs=0.2)
        assert abs(fitted_slope(errors.sel(approach="gaussian process"))) < 0.4, "at fixed P/N it stays wrong"
    assert fitted_slope(one_path.evidence_error.sel(approach="one-loop")) == pytest.approx(-1, abs=0.3)
    assert (one_path.error.sel(approach="one-loop", width=256, quantity="mean") < 1e-5).all()


def test_one_path_goes_on_and_takes_more_widths_and_data_sets(tmp_path, monkeypatch, one_path):
    from thermoformer.experiments import one_path as module

    calls = []

    def counted(config, width, index):
        calls.append((index, width))
        return one_path_problem(config, 16, index)  # a width that is compiled already

    monkeypatch.setattr(module, "one_path_problem", counted)
    monkeypatch.setattr(module, "Architecture", lambda heads, width: Architecture(heads, 16))
    config, folder = OnePathConfig(widths=(4, 16), data_sets=2), tmp_path / "sweep"

    def interrupt(done, total, message):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        OnePath().data(config, folder=folder, progress=interrupt)
    assert calls == [(0, 4), (1, 4)], "width by width"
    calls.clear()
    more = OnePath().data(dataclasses.replace(config, widths=(4, 8, 16)), folder=folder)
    assert sorted(calls) == [(0, 8), (0, 16), (1, 8), (1, 16)] and more.width.values.tolist() == [4, 8, 16]
    np.testing.assert_allclose(more.error.sel(width=16), one_path.error.sel(width=16, seed=[0, 1]), rtol=1e-3)
    assert more.error.dims == ("seed", "width", "approach", "quantity") and more.error.attrs["long_name"]
    calls.clear()
    assert OnePath().data(dataclasses.replace(config, data_sets=3), folder=folder).sizes["seed"] == 3
    assert sorted(calls) == [(2, 4), (2, 16)]


def test_a_point_has_every_approach_on_the_task(monkeypatch):
    # The cheapest stands for all: what matters here is the task that comes in and the table that goes out.
    def without_searches(*given, methods, **options):
        return compare(*given, methods=METHODS[:1], **options)

    monkeypatch.setattr(width_convergence, "compare", without_searches)
    point = width_convergence_point(0, 8, STUDY.record(TINY))
    assert point.approach.values.tolist() == list(METHODS)
    assert point.path.values.tolist() == ["good→uniform", "good→random", "random→uniform", "random→random"]
    assert np.isfinite(point["mean"].sel(approach="gaussian process")).all()
    assert np.isnan(point["mean"].sel(approach="exact")).all() and np.isnan(point.error).all()
    np.testing.assert_array_equal(point.order_parameter.sel(approach="gaussian process"), np.eye(4))


def test_data_have_errors_against_both_references(computed):
    dataset = STUDY.data(TINY)
    assert computed == [(0, 4), (0, 8), (1, 4), (1, 8)], "cheap widths first"
    assert dict(dataset.sizes) == {
        "seed": 2, "width": 2, "approach": 5, "example": 10, "path": 4, "path_other": 4, "reference": 2, "quantity": 3,
    }  # fmt: skip
    exact = dataset.error.sel(reference="exact")
    np.testing.assert_allclose(exact.sel(approach="saddle", width=8), 1 / 8)
    np.testing.assert_allclose(exact.sel(approach="one-loop", width=4, quantity="mean"), 1 / 16)
    assert np.isnan(exact.sel(approach=["exact", "sampled"])).all()
    sampled = dataset.error.sel(reference="sampled")
    assert np.isfinite(sampled.sel(approach="exact", width=4)).all() and np.isnan(sampled.sel(width=8)).all()
    # Against sampled networks the exact posterior's own noise counts too.
    noise = dataset.noise.sel(reference="sampled", width=4, quantity="mean")
    np.testing.assert_allclose(noise.sel(approach="exact"), np.sqrt(2) * noise.sel(approach="saddle"))
    assert all(variable.attrs["long_name"] for variable in dataset.data_vars.values())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_point_is_the_same_in_threads(computed, monkeypatch, workers):
    monkeypatch.setattr(width_convergence, "usual_workers", lambda: workers)
    point = width_convergence_point(1, 4, STUDY.record(TINY))
    assert np.isfinite(point.approach_seconds).all() and point.mixed.all()
    xr.testing.assert_equal(point, width_convergence_point(1, 4, STUDY.record(TINY)))
    whole = STUDY.data(TINY).sel(seed=1, width=4, drop=True)
    np.testing.assert_array_equal(whole.error, point.error)


def test_a_point_that_failed_stops_only_those_who_ask_for_it(computed, tmp_path, monkeypatch):
    def fail_at_eight(arch, *given, **options):
        if arch.widths[0] == 8:
            raise RuntimeError("broken")
        return fake_compare(arch, *given, **options)

    monkeypatch.setattr(width_convergence, "compare", fail_at_eight)
    with pytest.raises(RuntimeError, match="2 of 4 points failed, the first at seed = 0, width = 8:(.|\n)*broken"):
        STUDY.data(TINY, folder=tmp_path / "sweep")
    narrow = dataclasses.replace(TINY, widths=(4,))
    assert STUDY.data(narrow, folder=tmp_path / "sweep").sizes["seed"] == 2
    monkeypatch.setattr(width_convergence, "compare", fake_compare)
    computed.clear()
    assert np.isfinite(STUDY.data(TINY, folder=tmp_path / "sweep").accuracy.sel(approach="exact")).all()
    assert computed == [(0, 8), (1, 8)], "the next run tries them again"


def test_a_failure_in_a_thread_ends_the_others(computed, monkeypatch):
    monkeypatch.setattr(width_convergence, "usual_workers", lambda: 2)

    def fail_at_the_theory(*given, methods, progress, **options):
        if "saddle" in methods:
            raise RuntimeError("broken")
        while True:
            progress(0, 1, "running")

    monkeypatch.setattr(width_convergence, "compare", fail_at_the_theory)
    with pytest.raises(RuntimeError, match="4 of 4 points failed, the first at seed = 0, width = 4:(.|\n)*broken"):
        STUDY.data(TINY)


def test_run_writes_data_figures_tables_and_page(tmp_path, computed, one_path, monkeypatch):
    reports = []
    monkeypatch.setattr(OnePath, "data", lambda self, config, **given: one_path)
    page = STUDY.run(TINY, tmp_path / "out", progress=lambda *report: reports.append(report))
    stems = ("one_path", "against_exact", "against_sampled", "comparison")
    assert_written(page, stems, tables=("errors", "one_path"), others=["one_path.nc"])
    text = page.read_text()
    assert "Saddle, mean: not within 1 % of the exact one up to N = 8 (12 % there)" in text
    assert any("on two cores" in message for _, _, message in reports), "what a point costs is said before it starts"
    saved = xr.load_dataset(page.parent / "width_convergence.nc", engine="h5netcdf")
    xr.testing.assert_allclose(saved, STUDY.data(TINY))
    assert reports[-1] == (4, 4, "done")
    with (page.parent / "errors.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 2 * 3 * 3 + 2 * 4 * 3
    with (page.parent / "one_path.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 2 * 4 * len(APPROACHES)


def test_page_without_sampled_networks(tmp_path, computed, one_path):
    config = dataclasses.replace(TINY, sampled_widths=(), seeds=1)
    page = WidthConvergence(one_path).write(STUDY.data(config), config, tmp_path)
    assert not (tmp_path / "against_sampled.png").exists() and "at no width" in page.read_text()


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([0.1, 0.01, 0.001], 100.0),
        ([0.1, 0.001, 0.001], 31.622777),
        ([0.005, 0.02, 0.005], 316.227766),
        ([0.005, 0.004, 0.003], 10.0),
        ([0.1, 0.05, 0.02], None),
        ([np.nan, 0.001, 0.001], 100.0),
    ],
)
def test_width_within(errors, expected):
    found = width_within(np.array([10, 100, 1000]), np.array(errors))
    assert found is None if expected is None else found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("errors", "noise", "sentence"),
    [
        ((0.05, 0.02), (1e-4, 1e-4), "not within 1 % of the exact one up to N = 8 (2.0 % there)."),
        ((0.005, 0.001), (1e-4, 1e-4), "within 1 % of the exact one at every width from N = 4 on."),
        ((0.02, 0.005), (1e-4, 1e-4), "within 1 % of the exact one from about N = 5.7 on."),
        (
            (0.02, 0.005),
            (0.02, 0.001),
            "within 1 % of the exact one at the latest from about N = 5.7 on; "
            "not told from the Monte-Carlo noise at N = 4, where that is up to 2.0 %.",
        ),
    ],
)
def test_the_page_says_from_which_width_on_and_what_noise_hides(
    tmp_path, computed, one_path, monkeypatch, errors, noise, sentence
):
    def blank(figure, stem):
        """Rendering takes most of the time of a page; the words do not depend on it."""
        (file := stem.with_suffix(".svg")).write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
        return (file,)

    monkeypatch.setattr(figures, "save", blank)
    dataset = STUDY.data(TINY)
    at = {"reference": "exact", "approach": "saddle", "quantity": "mean"}
    for name, values in (("error", errors), ("noise", noise)):
        dataset[name].loc[at] = xr.DataArray(list(values), {"width": [4, 8]}, "width")
    text = WidthConvergence(one_path).write(dataset, TINY, tmp_path).read_text()
    assert f"Saddle, mean: {sentence}" in text


def test_small_shares():
    assert small_percent(0.5) == "50 %" and small_percent(0.0) == "0 %" and small_percent(np.nan) == "unknown"


def test_cost_grows_with_width_and_is_said_in_words():
    config = WidthConvergenceConfig()
    costs = [expected_seconds(config, width) for width in (300, 1000)]
    assert 600 < costs[0] < costs[1]
    assert (duration(40), duration(600), duration(7200)) == ("40 s", "10 min", "2.0 h")

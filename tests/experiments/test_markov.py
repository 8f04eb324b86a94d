"""The hidden-Markov experiment at a tiny size: its data, its files, and going on after an interruption."""

from __future__ import annotations

import csv
import dataclasses

import numpy as np
import pytest
import xarray as xr

from thermoformer._progress import silent
from thermoformer.experiments import Executor, markov
from thermoformer.experiments.markov import FOUR_PATHS, TWO_PATHS, MarkovConfig, gp_references
from thermoformer.experiments.markov.published import compare
from thermoformer.experiments.sampled import FINITE_WIDTH_NAMES as FINITE_WIDTH
from thermoformer.sweeps import Sweep, SweepStore, status_of

from .pretended import REASON, pretend_to_sample
from .test_page import assert_written

TINY = MarkovConfig(
    seeds=2,
    widths=(5, 20),
    training_examples=12,
    test_examples=30,
    components=6,
    tokens=6,
    feature_width=10,
    sampled_seeds=0,
)
SAMPLED = dataclasses.replace(TINY, sampled_seeds=1, sampled_up_to=5)


@pytest.fixture(scope="module")
def dataset() -> xr.Dataset:
    return markov.STUDY.data(TINY)


@pytest.fixture(scope="module")
def sampled() -> xr.Dataset:
    """With pretended samplers; `test_sampled` has the real ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(markov, "beside_theory", pretend_to_sample)
        return markov.STUDY.data(SAMPLED)


def test_dataset_has_the_documented_variables(dataset):
    assert dict(dataset.sizes) == {
        "seed": 2, "variant": 2, "width": 3, "kernel_width": 2, "component": 6, "reference": 2, "example": 12,
        "other_example": 12, "path_4_paths": 4, "other_path_4_paths": 4, "path_2_paths": 2, "other_path_2_paths": 2,
    }  # fmt: skip
    for name in ("accuracy", "accuracy_diagonal", "expected_accuracy", "bias", "variance", "log_evidence", "converged"):
        assert set(dataset[name].dims) == {"seed", "variant", "width"}
    assert dataset.width.values.tolist() == [5, 20, np.inf]
    assert dataset.converged.all()
    assert ((dataset.accuracy >= 0) & (dataset.accuracy <= 1)).all()
    assert all(variable.attrs["long_name"] for variable in dataset.data_vars.values())
    assert dataset.path_2_paths.values.tolist() == ["good→uniform", "uniform→uniform"]


def test_samplers_run_where_they_are_asked_to(sampled):
    for name in FINITE_WIDTH:
        assert sampled[name].dims == sampled.accuracy.dims
        ran = (sampled[name] != "") if name.endswith("note") else sampled[name].notnull()
        widths = [True, True, False] if name.startswith("exact") else [True, False, False]
        expected = [[False] * 3 if name == "exact_note" else widths] * 2
        assert ran.values.tolist() == [expected, [[False] * 3] * 2], name


def test_samplers_are_compared_with_the_theory(sampled):
    first = sampled.sel(seed=0, width=5)
    assert (abs(first.exact_accuracy - first.accuracy) <= 0.1).all()
    assert (first.exact_distance < 3 * first.exact_distance_noise).all()
    assert (first.exact_mixed == 1).all() and (first.sampled_mixed == 0).all()
    assert (first.sampled_note == REASON).all()


def test_nothing_is_sampled_without_sampled_seeds(dataset):
    assert dataset.exact_accuracy.isnull().all() and dataset.sampled_accuracy.isnull().all()


def test_samplers_are_drawn_and_written(tmp_path, sampled):
    text = markov.STUDY.write(sampled, SAMPLED, tmp_path).read_text()
    assert "Theory against exact finite width and sampled networks" in text
    assert "on the first seed, placed by their difference from the theory" in text
    assert "All runs of the exact posterior (4) mixed." in text
    assert f"Of 2 runs of sampled networks, 2 had not mixed (the first: {REASON})." in text
    with (tmp_path / "accuracy.csv").open() as stream:
        rows = {tuple(row[name] for name in ("variant", "predictor", "width")): row for row in csv.DictReader(stream)}
    row = rows["4 paths", "exact_accuracy", "5"]
    assert row["seeds"] == "1"
    expected = 100 * float(sampled.accuracy.isel(seed=0, variant=0, width=0))
    assert float(row["theory_on_same_seeds_percent"]) == pytest.approx(expected, abs=0.01)
    assert ("4 paths", "sampled_accuracy", "20") not in rows


def test_infinite_width_is_the_gaussian_process(dataset):
    limit = dataset.sel(width=np.inf)
    np.testing.assert_allclose(limit.order_parameter_4_paths, np.broadcast_to(np.eye(4), (2, 4, 4)), atol=1e-12)
    np.testing.assert_array_equal(limit.accuracy, limit.accuracy_diagonal)
    # With two paths, good + denoising is every path.
    two = limit.sel(variant="2 paths")
    np.testing.assert_array_equal(two.accuracy, two.reference_accuracy.sel(reference="good + denoising"))


def test_kernels_and_overlaps_belong_together(dataset):
    one = dataset.isel(seed=1, variant=0, kernel_width=0)
    vectors = np.linalg.eigh(one.kernel.values)[1][:, ::-1]
    expected = np.abs(vectors.T @ dataset.label.values)[:6] / np.sqrt(12)
    np.testing.assert_allclose(one.label_overlap, expected, atol=1e-8)


def test_reference_paths():
    four, two = gp_references(FOUR_PATHS), gp_references(TWO_PATHS)
    assert [paths for _, paths in four.values()] == [[0], [0, 2]]
    assert [paths for _, paths in two.values()] == [[0], [0, 1]]
    assert all(arch.paths == len(paths) for arch, paths in (*four.values(), *two.values()))


def test_a_repetition_depends_on_its_seed_alone(dataset):
    last_only = markov._reported_part(TINY, 1, 1, silent)
    np.testing.assert_array_equal(last_only.accuracy, dataset.accuracy.sel(variant="2 paths", seed=1))
    other = markov._reported_part(dataclasses.replace(TINY, seed=1), 1, 1, silent)
    assert not np.array_equal(last_only.log_evidence, other.log_evidence)


def test_run_writes_data_figures_table_and_page(tmp_path, dataset):
    reports = []
    page = markov.STUDY.run(TINY, tmp_path / "out", progress=lambda *report: reports.append(report))
    assert page == tmp_path / "out" / "markov.html"
    assert_written(page, ("accuracy", "order_parameters", "label_overlap", "kernels"), tables=["accuracy"])
    assert reports[:2] == [(0, 2, "starting"), (0, 2, "4 paths, seed 1")]
    assert (1, 2, "4 paths, seed 2") in reports and reports[-1] == (2, 2, "done")
    saved = xr.load_dataset(tmp_path / "out" / "markov.nc", engine="h5netcdf")
    xr.testing.assert_allclose(saved, dataset)
    with (tmp_path / "out" / "accuracy.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * (3 + 3 + 2)
    assert float(rows[0]["mean_percent"]) == pytest.approx(100 * float(dataset.accuracy[:, 0, 0].mean()), abs=0.01)
    assert not any(row["published_percent"] for row in rows), "another task than the published one"


def test_one_thread_other_processes_and_a_resume_from_the_folder_give_the_same(tmp_path, dataset, monkeypatch):
    processes = markov.STUDY.data(TINY, folder=tmp_path / "p", executor=Executor("processes", workers=2))
    xr.testing.assert_allclose(processes, dataset)
    assert status_of(SweepStore(tmp_path / "p")).done == 2
    monkeypatch.setattr(markov, "usual_workers", lambda: 1)
    xr.testing.assert_allclose(markov.STUDY.data(TINY), dataset)
    # The folder says all that is needed to go on, without the experiment.
    (tmp_path / "p" / "data.zarr" / "status" / "c" / "1").unlink()
    again = Sweep.from_store(tmp_path / "p")
    assert again.status().left == 1
    np.testing.assert_allclose(again.run().accuracy.values, dataset.transpose("seed", ...).accuracy.values)


def test_the_theory_alone_allows_temperature_zero():
    assert MarkovConfig(temperature=0.0, sampled_seeds=0).temperature == 0


def test_published_numbers_stand_beside_the_published_task_only(dataset):
    assert MarkovConfig(seeds=3, widths=(10, 20)).is_published_task
    assert MarkovConfig.quick().is_published_task
    assert not MarkovConfig(training_examples=50).is_published_task
    narrow = dataset.isel(width=[0, 2]).assign_coords(width=[10, np.inf])
    narrow["sampled_accuracy"] = narrow.accuracy.where(np.isfinite(narrow.width) & (narrow.seed == 0)) - 0.01
    rows = compare(narrow, MarkovConfig(widths=(10,)))
    published = {(row.variant, row.predictor, row.width): row.published for row in rows}
    assert published["4 paths", "accuracy", 10] == 96.4
    assert published["4 paths", "GP, good path", np.inf] == 94.0
    assert published["4 paths", "sampled_accuracy", 10] == 96.3
    assert [row.gap for row in rows if row.predictor == "sampled_accuracy"] == pytest.approx([-1, -1])

"""The experiments on dynamics at tiny sizes: right numbers, runs that go on, pages that say what they should."""

from __future__ import annotations

import csv
import dataclasses
import re

import numpy as np
import pytest
import xarray as xr

from thermoformer.dynamics import REGIMES, Features, MeanField, orbit, orbit_diagram
from thermoformer.experiments import Executor, finite_size, phase_diagram, trajectories
from thermoformer.experiments import orbit_diagram as diagram_experiment
from thermoformer.experiments.finite_size import (
    FiniteSizeConfig,
    fitted_power,
    power_of,
    z_scores,
)
from thermoformer.experiments.orbit_diagram import (
    OrbitDiagramConfig,
    neimark_sacker,
    regime_runs,
    summary,
)
from thermoformer.experiments.paper_dynamics import paper_start
from thermoformer.experiments.phase_diagram import PhaseDiagramConfig
from thermoformer.experiments.trajectories import TrajectoriesConfig
from thermoformer.sweeps import SweepStore, status_of

from .test_page import assert_written

DIAGRAM = OrbitDiagramConfig(
    between=(1.0, 2.0), count=12, steps=2000, transient=500, bins=20, exponents=3, longest_period=100
)
PHASE = PhaseDiagramConfig(count=6, start_steps=500, steps=300, transient=500, longest_period=100)
TRAJECTORIES = TrajectoriesConfig(
    betas=(1.1, 1.28), steps=400, exponent_steps=3000, transient=400, confirm=8000, windows=5
)
SIZES = FiniteSizeConfig(bits=(99, 9900, 990_000, 99_000_000), plain_bits=(99, 9900), copies=60, fit_from=9900)


def text_of(page):
    return re.sub(r"<[^>]*>", " ", re.sub(r"base64,[^\"]*", "", page.read_text()))


@pytest.fixture(scope="module")
def diagram(tmp_path_factory):
    """A finished diagram in a folder of its own."""
    out = tmp_path_factory.mktemp("diagram")
    reports = []
    page = diagram_experiment.STUDY.run(DIAGRAM, out, progress=lambda *report: reports.append(report))
    return page, xr.load_dataset(out / "orbit_diagram.nc", engine="h5netcdf"), reports


def test_a_diagram_in_parts_is_the_diagram(diagram, tmp_path, monkeypatch):
    _, found, _ = diagram
    start = paper_start(2.0, 2500)
    model = MeanField(Features.paper(), beta=2.0, gamma=220.0, epsilon=0.02)
    sizes = {"steps": 2000, "transient": 500, "k": 3, "bins": 20, "limits": (-1.0, 1.0), "longest_period": 100}
    whole = orbit_diagram(model, start, "beta", DIAGRAM.betas, section=(1, 0.001), **sizes)
    np.testing.assert_array_equal(found.beta, whole.beta)
    # Where orbits are not chaotic, lanes of another batch make no difference but rounding.
    calm = whole.exponents.values[:, 0] < -0.01
    assert calm.any()
    np.testing.assert_allclose(found.exponents.values[calm, 0], whole.exponents.values[calm, 0], atol=1e-6)
    np.testing.assert_array_equal(found.period.values[calm], whole.period.values[calm])
    monkeypatch.setattr(diagram_experiment, "usual_parts", lambda parts: 3)
    parts = diagram_experiment.STUDY.data(DIAGRAM, folder=tmp_path / "parts")
    np.testing.assert_allclose(parts.exponents.values[calm, 0], whole.exponents.values[calm, 0], atol=1e-6)


def test_a_diagram_goes_on_from_its_finished_parts(diagram, tmp_path, monkeypatch):
    _, found, _ = diagram
    calls, original = [], diagram_experiment.diagram_of

    def counted(model, start, name, betas, **settings):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(len(betas))
        return original(model, start, name, betas, **settings)

    monkeypatch.setattr(diagram_experiment, "usual_parts", lambda parts: 4)
    monkeypatch.setattr(diagram_experiment, "diagram_of", counted)
    with pytest.raises(KeyboardInterrupt):
        diagram_experiment.STUDY.data(DIAGRAM, folder=tmp_path / "sweep")
    assert status_of(SweepStore(tmp_path / "sweep")).done == sum(calls) > 0
    first = sum(calls)
    monkeypatch.setattr(diagram_experiment, "diagram_of", original)
    whole = diagram_experiment.STUDY.data(DIAGRAM, folder=tmp_path / "sweep")
    assert whole.sizes["beta"] == DIAGRAM.count > first
    assert whole.attrs["observable"] == found.attrs["observable"] and "long_name" in whole.exponents.attrs
    calm = found.exponents.values[:, 0] < -0.01
    np.testing.assert_allclose(whole.exponents.values[calm, 0], found.exponents.values[calm, 0], atol=1e-6)


def test_the_page_of_a_diagram(diagram):
    page, found, reports = diagram
    assert_written(page, ("orbit_diagram", "section"), tables=["regimes"])
    text = text_of(page)
    assert "β = 1.2434445478" in text and "0.05063 ± 0.99872i" in text and "Neimark–Sacker" in text
    assert "Chaos is first seen at β" in text and "No value is hyperchaotic" in text
    assert reports[-1] == (12, 12, "done")
    with (page.parent / "regimes.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert sum(int(row["values"]) for row in rows) == 12 and {row["regime"] for row in rows} <= set(REGIMES)
    numbers = summary(found)
    assert sum(numbers[f"share_{name}"] for name in REGIMES) == pytest.approx(1)
    assert numbers["largest_exponent"] == found.exponents.values.max()
    first = regime_runs(found).iloc[0]
    assert (first["regime"], first["period"], first["first"]) == ("periodic", 4, 1.0)


def test_a_page_without_chaos_or_bifurcation(tmp_path):
    calm = dataclasses.replace(DIAGRAM, between=(0.5, 1.0), count=4)
    assert neimark_sacker(calm) is None
    text = text_of(diagram_experiment.STUDY.run(calm, tmp_path))
    assert "No value is chaotic" in text and "Neimark" not in text


def test_the_simple_cycle_ends_where_it_should():
    point = neimark_sacker(OrbitDiagramConfig.zoom())
    assert point is not None and point.value == pytest.approx(1.2434445478, abs=1e-9)


def test_trajectories(tmp_path):
    page = trajectories.STUDY.run(TRAJECTORIES, tmp_path)
    assert_written(page, ("time_series", "phase_planes", "spectra", "autocorrelations"), tables=["trajectories"])
    found = xr.load_dataset(tmp_path / "trajectories.nc", engine="h5netcdf")
    assert found.regime.values.tolist() == ["periodic", "chaos"] and found.period.values.tolist() == [4, 0]
    assert int(found.steps_run[1]) > int(found.steps_run[0]), "chaos is followed further"
    assert found.window_regime.shape == (2, 5)
    model = MeanField(Features.paper(), beta=1.1, gamma=220.0, epsilon=0.02)
    again = orbit(model, paper_start(3.0, 400), steps=400, transient=400).m_o
    np.testing.assert_allclose(found.m_o.sel(beta=1.1), again, atol=1e-12)
    text = text_of(page)
    assert "4-cycle" in text and "0.143" in text and "still chaos after" in text and "4-cycle: 5" in text
    # One more value of β costs one value.
    reports = []
    more = dataclasses.replace(TRAJECTORIES, betas=(1.1, 1.2, 1.28))
    trajectories.STUDY.run(more, tmp_path, progress=lambda *report: reports.append(report))
    assert {message.split(":")[0] for _, _, message in reports if message.startswith("β")} == {"β = 1.2"}


def test_trajectories_without_other_starts_are_the_same_from_other_processes(tmp_path):
    short = dataclasses.replace(TRAJECTORIES, betas=(1.1,), confirm=0, windows=0)
    here = trajectories.STUDY.data(short)
    there = trajectories.STUDY.data(short, folder=tmp_path / "sweep", executor=Executor("processes", workers=1))
    xr.testing.assert_allclose(there, here)
    assert here.window_period.shape == (1, 0) and here.regime.values.tolist() == ["periodic"]
    trajectories.STUDY.run(short, tmp_path)


def test_phase_diagram(tmp_path):
    page = phase_diagram.STUDY.run(PHASE, tmp_path)
    assert_written(page, ("phase_diagram", "regimes"))
    found = xr.load_dataset(tmp_path / "phase_diagram.nc", engine="h5netcdf").transpose("beta", "gamma", ...)
    assert found.regime.shape == (6, 6) and (found.regime.values[0] == REGIMES.index("periodic")).all()
    again = phase_diagram.STUDY.data(PHASE).transpose("beta", "gamma", ...)
    np.testing.assert_array_equal(found.regime.values[0], again.regime.values[0])
    np.testing.assert_allclose(found.exponents.values[0], again.exponents.values[0], atol=1e-9)
    assert "The largest exponent is" in text_of(page) and "periodic" in text_of(page)


def test_finite_size(tmp_path):
    reports = []
    page = finite_size.STUDY.run(SIZES, tmp_path, progress=lambda *report: reports.append(report))
    assert_written(page, ["finite_size", "fluctuations"], tables=["finite_size"])
    found = finite_size.STUDY.data(SIZES, folder=tmp_path / "sweep")
    slope, error, _ = power_of(found, SIZES)
    assert abs(slope + 0.5) < 4 * error + 0.02 and error < 0.05
    scores = z_scores(found)
    assert np.abs(scores[:2]).max() < 4 and np.isnan(scores[2:]).all()
    assert "N = 99000000, counts per class" in [message for _, _, message in reports]
    saved = xr.load_dataset(tmp_path / "finite_size.nc", engine="h5netcdf")
    xr.testing.assert_identical(saved.drop_attrs(), found.drop_attrs())
    text = text_of(page)
    assert "0.356" in text and "decades" in text and "For √N |Δm| it predicts 1.61" in text
    # Nothing is fitted: a large network is where linear noise says, at every step and on average.
    large = found.sel(form="classes", bits=99_000_000)
    assert (np.abs(large.by_step * np.sqrt(99e6) - found.predicted_by_step) < 5 * found.predicted_error).all()
    assert abs(np.sqrt(99e6) * large.error - found.predicted) < 4 * np.sqrt(99e6) * large.standard_error
    # Finished points are kept, and a size more costs one point, wherever it is among them.
    reports.clear()
    more = dataclasses.replace(SIZES, bits=(99, 990, *SIZES.bits[1:]))
    finite_size.STUDY.run(more, tmp_path, progress=lambda *report: reports.append(report))
    assert [message for _, _, message in reports if message.startswith("N")] == ["N = 990, counts per class"]
    assert finite_size.STUDY.data(more, folder=tmp_path / "sweep").bits.values.tolist() == list(more.bits)


def test_copies_are_those_of_the_seed():
    one = finite_size.distances(SIZES, 990, "classes")
    same = finite_size.distances(SIZES, 990, "classes")
    other = finite_size.distances(dataclasses.replace(SIZES, seed=1), 990, "classes")
    assert one.shape == (SIZES.copies, 10) and (one == same).all() and (one != other).any()


def test_a_power_is_fitted_by_its_errors():
    bits = np.array([1e2, 1e4, 1e6])
    slope, error, chi_squared = fitted_power(bits, bits**-0.5, 0.1 * bits**-0.5)
    assert (
        slope == pytest.approx(-0.5) and error == pytest.approx(0.1 / np.sqrt(2) / np.log(100)) and chi_squared < 1e-9
    )

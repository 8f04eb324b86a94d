"""Noise that is not Gaussian at a tiny size: the laws of the noise, the numbers, and the files."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import xarray as xr

from thermoformer.experiments import noise
from thermoformer.experiments.noise import APPROACHES, CASES, EXACT, KNOWN, REWEIGHTED, STUDY, NoiseConfig
from thermoformer.experiments.sweeping import record_of
from thermoformer.learning import Diagnostics, Likelihood, Prediction, solve

from .pretended import NOISE, Pretended
from .test_page import assert_written

TINY = NoiseConfig(
    seeds=1,
    tasks=("hidden Markov",),
    cases=("Gaussian", "outliers, 20 %", "flipped, 20 %"),
    training_examples=12,
    validation_examples=12,
    test_examples=20,
    temperatures=(0.1, 0.3),
    tokens=5,
    feature_width=6,
)


def pretend(arch, features, labels, *, temperature, draws, warmup, chains, key, likelihood):
    """In place of the sampler: the theory with Gaussian noise, and an error of its mean."""
    assert isinstance(likelihood, Likelihood)
    solution = solve(arch, features, labels, temperature=temperature)
    record = Diagnostics("nuts", chains, draws, warmup, 1.2, 200.0, 200.0, "", 0, None, 0, 1.0, 1.0)

    class Answers(Pretended):
        def predict(self, features):
            found = solution.predict(features)
            errors = np.full_like(found.mean, NOISE)
            return Prediction(found.mean, found.variance, errors, errors)

    order = solution.order_parameter
    return Answers(arch, temperature, order, 0 * order, record, xr.DataTree(), None)


@pytest.fixture
def quick_sampler(monkeypatch):
    monkeypatch.setattr(noise, "sample_order_parameters", pretend)


@pytest.mark.parametrize("case", CASES)
def test_noise_has_the_law_and_the_variance_that_its_case_names(case):
    config = dataclasses.replace(TINY, training_examples=40_000, validation_examples=10_000)
    generator = np.random.default_rng(0)
    labels = np.sign(generator.normal(size=50_000))
    features = noise.PathFeatures.from_attentioned_inputs(generator.normal(size=(50_000, 4, 3)))
    found = noise.with_noise(config, features, labels, case, seed=1)
    kind, strength = CASES[case]
    gap = found.labels - labels
    if kind == "logistic":
        assert np.mean(gap != 0) == pytest.approx(strength, abs=0.01) and set(found.labels) == {-1.0, 1.0}
        assert found.variance == config.class_temperature + 4 * strength * (1 - strength)
        return
    assert gap.mean() == pytest.approx(0, abs=0.02) and found.variance == found.temperature == 0.3
    # Student's law with ν ≤ 4 has no fourth moment, so that the variance of a sample says little. Half of the variance
    # may come from 1 % outliers, 500 here: their part has an error of √(3/500), 8 %.
    if strength not in (2.5, 3.0):
        assert gap.var() == pytest.approx(0.3, rel=0.12)
    # The likelihood at the true outputs is higher than with noise half or twice as strong.
    own = gap[:40_000] / found.deviations, np.zeros(40_000), 0.3

    def loss(factor):
        # The normalisation: noise of `factor` times the deviation.
        return np.mean(np.asarray(found.likelihood.loss(own[0] / factor, own[1], own[2]))) + np.log(factor)

    assert loss(1.0) < min(loss(0.7), loss(1.4))


def test_a_point_measures_theories_against_the_exact_posterior(quick_sampler):
    point = noise.noise_point(0, "hidden Markov", "Gaussian", record_of(TINY))
    assert point.approach.values.tolist() == list(APPROACHES)
    # The pretended sampler is the theory with known variance; with Gaussian noise nothing is reweighted.
    for name in (KNOWN, REWEIGHTED, EXACT):
        at = point.sel(approach=name)
        assert at["mean"] == pytest.approx(0, abs=1e-6) and at.deviation == pytest.approx(1)
        assert at.order_parameter == pytest.approx(0, abs=1e-6) and at.order == 1
    assert not point.mixed and "R-hat" in str(point.note.values)


def test_flipped_classes_are_compared_in_one_unit(quick_sampler):
    point = noise.noise_point(0, "hidden Markov", "flipped, 20 %", record_of(TINY))
    # The best factor leaves less than the whole of the exact mean.
    assert 0 < point["mean"].sel(approach=KNOWN) and np.isfinite(point.deviation).all()


def test_training_and_validation_examples_have_both_classes():
    _, labels = noise.task_features(TINY, "hidden Markov", 0)
    assert len(labels) == 44 and abs(labels[:12].mean()) < 1 and abs(labels[12:24].mean()) < 1


def test_one_shot_features_are_those_of_four_paths(real_data):
    features, labels = noise.task_features(dataclasses.replace(TINY, seed=1), "one-shot", 0)
    assert features.values.shape == (44, 4, 64) and set(labels) == {-1.0, 1.0}


def test_page_and_files(quick_sampler, tmp_path):
    page = STUDY.run(TINY, tmp_path)
    assert_written(page, ["errors", "structure", "residuals"], tables=["noise"])
    found = xr.load_dataset(tmp_path / "noise.nc", engine="h5netcdf")
    assert found.accuracy.dims == ("seed", "task", "case", "approach")
    assert all(variable.attrs["long_name"] for variable in found.data_vars.values())
    assert (found.accuracy_lost.sel(approach=EXACT) == 0).all()
    text = page.read_text()
    assert "In 3 of 3 runs its chains count as not mixed" in text and "###" not in text

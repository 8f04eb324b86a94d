"""Predictions, their metrics, label alignment, scores and evidence."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from problems import dense_kernel, small_problem

from thermoformer.learning import (
    Architecture,
    ConvergenceError,
    PathFeatures,
    Prediction,
    choose_by_evidence,
    evidence_scores,
    gaussian_predictor,
    gaussian_process,
    head_scores,
    label_alignment,
    path_scores,
    solve,
)


@pytest.mark.parametrize("form", ["pairs", "features", "dual"])
@pytest.mark.parametrize("examples", [20, 80])
def test_mean_and_variance_from_the_definition(form, examples):
    arch, features, labels = small_problem((2, 2), examples, variances=(0.5, 1.0, 2.0, 1.0))
    test = np.random.default_rng(9).normal(size=(7, 4, 8))
    gram = np.cov(np.random.default_rng(2).normal(size=(4, 9)))
    fitted = gaussian_predictor(arch, features, labels, order_parameter=gram, temperature=0.2, form=form)
    found = fitted.predict(PathFeatures.from_attentioned_inputs(test))
    xi = np.asarray(features.values)
    covariance = dense_kernel(arch, xi, gram) + 0.2 * np.eye(examples)
    cross = dense_kernel(arch, xi, gram, test)
    np.testing.assert_allclose(found.mean, cross.T @ np.linalg.solve(covariance, labels), atol=1e-11)
    variance = np.diag(dense_kernel(arch, test, gram)) - np.sum(cross * np.linalg.solve(covariance, cross), axis=0)
    np.testing.assert_allclose(found.variance, variance, atol=1e-11)
    np.testing.assert_allclose(fitted.kernel(features), dense_kernel(arch, xi, gram), atol=1e-11)
    assert fitted.to_xarray()["order_parameter"].dims == ("path", "path_other")


def test_prediction_in_pieces(monkeypatch):
    arch, features, labels = small_problem((2, 2))
    solution = solve(arch, features, labels, temperature=0.1)
    whole = solution.predict(features)
    monkeypatch.setattr("thermoformer.learning.results.CHUNK", 200)
    pieces = solution.predict(features)
    np.testing.assert_allclose(pieces.mean, whole.mean, atol=1e-12)
    np.testing.assert_allclose(pieces.variance, whole.variance, atol=1e-12)


def test_metrics():
    prediction = Prediction(np.array([1.0, -0.5, 0.0, 2.0]), np.array([1.0, 0.25, 1.0, 0.0]))
    labels = [1, 1, 1, 1]
    assert prediction.accuracy(labels) == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    normal = scipy.stats.norm.cdf
    assert prediction.expected_accuracy(labels) == pytest.approx((normal(1) + normal(-1) + 0.5 + 1) / 4)
    assert prediction.bias(labels) == pytest.approx((0 + 2.25 + 1 + 1) / 4)
    assert prediction.mean_variance() == pytest.approx(2.25 / 4)
    assert prediction.to_xarray()["mean"].dims == ("example",)


def test_alignments_of_signs_have_unit_sum_of_squares():
    arch, features, labels = small_problem((2, 2))
    limit = gaussian_process(arch, features, labels, temperature=0.1)
    alignment = label_alignment(limit.kernel(features), labels)
    assert np.sum(alignment**2) == pytest.approx(1, abs=1e-12)
    assert label_alignment(limit.kernel(features), labels, 5).shape == (5,)


def test_scores_of_heads_and_paths():
    arch = Architecture((2, 2), 10)
    gram = np.diag([4.0, 2.0, 1.0, 1.0])
    gram[0, 3] = gram[3, 0] = -0.5
    # Head (0, 0) is in paths 0 and 1: 4 + 2 + twice |−0.5|.
    raw = head_scores(arch, gram, normalise=False)
    assert raw[0, 0] == pytest.approx(7.0) and raw[0, 1] == pytest.approx(3.0)
    assert raw[1, 0] == pytest.approx(6.0) and raw[1, 1] == pytest.approx(4.0)
    scores = head_scores(arch, gram)
    assert scores.values.max() == 1 and scores.ascending()[0] == (0, 1)
    assert scores.to_xarray().sel(layer=1, head=0) == pytest.approx(6 / 7)
    np.testing.assert_allclose(path_scores(arch, gram), [4, 2, 1, 1])
    np.testing.assert_allclose(path_scores(arch, gram, kind="row"), [4.5, 2, 1, 1.5])


def test_evidence_score_is_the_difference_of_two_networks():
    arch, features, labels = small_problem((2, 2))
    scores = evidence_scores(arch, features, labels, temperature=0.1)
    whole = solve(arch, features, labels, temperature=0.1)
    left = solve(Architecture((2, 1), 10), features.select([0, 2]), labels, temperature=0.1)
    assert scores[1, 1] == pytest.approx(whole.log_evidence - left.log_evidence, abs=1e-8)
    assert scores.ascending()[-1] in [(0, 0), (1, 0)]  # the signal is in path 0


def test_evidence_score_of_an_only_head_compares_with_silence():
    arch, features, labels = small_problem((1,))
    scores = evidence_scores(arch, features, labels, temperature=0.5)
    silence = scipy.stats.norm(0, np.sqrt(0.5)).logpdf(labels).sum()
    whole = solve(arch, features, labels, temperature=0.5)
    assert scores[0, 0] == pytest.approx(whole.log_evidence - silence, abs=1e-9)


def test_evidence_choice_beats_its_neighbours():
    arch, features, labels = small_problem((2, 2))
    choice = choose_by_evidence(arch, features, labels)
    assert not choice.at_bound
    best = choice.solution.log_evidence
    for temperature_factor, variance_factor in ((1.2, 1), (1 / 1.2, 1), (1, 1.1), (1, 1 / 1.1)):
        nearby = choice.architecture.replace(variances=[v * variance_factor for v in choice.architecture.variances])
        other = solve(nearby, features, labels, temperature=choice.temperature * temperature_factor)
        assert other.log_evidence < best


def test_an_unfinished_choice_is_reported():
    arch, features, labels = small_problem((2, 2))
    with pytest.raises(ConvergenceError, match="after 2 steps the evidence over .* still has a slope of .*; try more"):
        choose_by_evidence(arch, features, labels, max_steps=2)


def test_labels_of_pure_noise_switch_the_kernel_off():
    """The evidence then has a plateau without end towards small variances; its best temperature is ⟨y²⟩."""
    generator = np.random.default_rng(0)
    features = PathFeatures.from_attentioned_inputs(generator.normal(size=(30, 2, 8)))
    choice = choose_by_evidence(Architecture((2,), 10), features, np.sign(generator.normal(size=30)))
    assert choice.temperature == pytest.approx(1.0, rel=0.01)
    assert np.prod(choice.architecture.variances) < 1e-2


def test_evidence_is_not_content_with_silence():
    """Paths have much in common and labels lie in their differences: near the Gaussian process noise is best."""
    generator = np.random.default_rng(0)
    xi = 3 * generator.normal(size=(100, 1, 20)) + generator.normal(size=(100, 4, 20))
    labels = np.sign((xi[:, 0, :3] - xi[:, 3, :3]).sum(axis=1))
    choice = choose_by_evidence(Architecture((2, 2), 2), PathFeatures.from_attentioned_inputs(xi), labels)
    silence = scipy.stats.norm.logpdf(labels).sum()
    assert not choice.at_bound and choice.solution.log_evidence == pytest.approx(silence + 23.9, abs=0.1)


def test_evidence_recovers_the_noise():
    """Labels drawn from the Gaussian process itself, with known noise."""
    generator = np.random.default_rng(4)
    arch = Architecture((2,), 10**5)
    xi = generator.normal(size=(400, 2, 10))
    truth = dense_kernel(arch, xi, 3.0 * np.eye(2)) + 0.2 * np.eye(400)
    labels = np.linalg.cholesky(truth) @ generator.normal(size=400)
    choice = choose_by_evidence(arch, PathFeatures.from_attentioned_inputs(xi), labels)
    # Relative error of a variance from n numbers is √(2/n): 380 for the noise, 20 for the kernel's directions.
    assert choice.temperature == pytest.approx(0.2, rel=3 * np.sqrt(2 / 380))
    assert np.prod(choice.architecture.variances) == pytest.approx(3.0, rel=3 * np.sqrt(2 / 20))
    alone = choose_by_evidence(arch, PathFeatures.from_attentioned_inputs(xi), labels, variances=False)
    assert alone.architecture == arch and alone.solution.log_evidence < choice.solution.log_evidence


def test_evidence_slope_in_temperature_is_partial():
    """At the saddle the total derivative of the log evidence equals the partial one (used by choose_by_evidence)."""
    arch, features, labels = small_problem((2, 2))
    step = 1e-5
    ends = [solve(arch, features, labels, temperature=0.1 + sign * step, tolerance=1e-11) for sign in (-1, 1)]
    total = (ends[1].log_evidence - ends[0].log_evidence) / (2 * step)
    middle = solve(arch, features, labels, temperature=0.1, tolerance=1e-11)
    energies = [
        gaussian_predictor(
            arch, features, labels, order_parameter=middle.order_parameter, temperature=0.1 + sign * step
        ).data_energy()
        for sign in (-1, 1)
    ]
    assert total == pytest.approx(-0.5 * (energies[1] - energies[0]) / (2 * step), rel=1e-6)

"""The exact posterior of one path through one layer: its prior, the convergence of the quadrature, and its limits."""

from __future__ import annotations

import numpy as np
import pytest

from thermoformer.learning import Architecture, PathFeatures
from thermoformer.learning.quadrature import log_prior_density, quadrature_posterior


def problem(width: int) -> tuple[PathFeatures, np.ndarray, PathFeatures]:
    """Training features and labels, as many as the width, and test features."""
    generator = np.random.default_rng((0, 0, width))
    inputs = generator.normal(size=(width + 100, 1, 2 * width))
    direction = generator.normal(size=2 * width) / np.sqrt(2 * width)
    labels = np.tanh(2 * inputs[:width, 0] @ direction) + 0.3 * generator.normal(size=width)
    features = PathFeatures.from_attentioned_inputs(inputs)
    return features[:width], labels, features[width:]


@pytest.mark.parametrize("width", [1, 4, 100])
def test_prior_of_one_path_is_normalised_with_the_right_mean(width):
    w = np.linspace(-60, 5, 200_001)
    density = np.exp(log_prior_density(w, width)) * (w[1] - w[0])
    assert density.sum() == pytest.approx(1, abs=1e-10)
    assert density @ np.exp(2 * w) == pytest.approx(1, abs=1e-10)  # E[r1² r2²] = 1
    assert density @ np.exp(4 * w) == pytest.approx((1 + 2 / width) ** 2, rel=1e-10)  # E[χ⁴] = N² + 2N


@pytest.mark.parametrize("width", [1, 4, 64])
def test_quadrature_has_converged(width):
    features, labels, test = problem(width)
    given = (Architecture((1,), width, variances=(1.3, 0.7, 1.1)), features, labels)
    coarse, usual, fine = (quadrature_posterior(*given, temperature=0.3, nodes=nodes) for nodes in (200, 400, 2000))
    for other in (coarse, usual):
        assert other.log_evidence == pytest.approx(fine.log_evidence, abs=1e-10)
        np.testing.assert_allclose(other.predict(test).mean, fine.predict(test).mean, atol=1e-11)
        np.testing.assert_allclose(other.predict(test).variance, fine.predict(test).variance, rtol=1e-10)


def test_quadrature_against_draws_from_the_prior():
    features, labels, test = problem(5)
    arch = Architecture((1,), 5)
    exact = quadrature_posterior(arch, features, labels, temperature=0.3)
    generator = np.random.default_rng(0)
    order = np.prod(generator.chisquare(5, size=(2, 200_000)) / 5, axis=0)
    inputs, new = (np.asarray(each.values)[:, 0] / np.sqrt(10) for each in (features, test))
    values, vectors = np.linalg.eigh(inputs @ inputs.T)
    rotated = vectors.T @ labels
    spread = order[:, None] * values + 0.3
    likelihood = np.exp(-0.5 * np.sum(np.log(2 * np.pi * spread) + rotated**2 / spread, axis=1))
    assert exact.log_evidence == pytest.approx(np.log(likelihood.mean()), abs=0.01)
    weights = likelihood / likelihood.sum()
    assert exact.order_parameter[0, 0] == pytest.approx(weights @ order, rel=0.02)
    means = (order[:, None] / spread * rotated) @ (vectors.T @ (inputs @ new.T))
    np.testing.assert_allclose(exact.predict(test).mean, weights @ means, atol=0.01)


def test_no_data_leave_the_prior():
    features = PathFeatures.from_attentioned_inputs(np.zeros((3, 1, 4)))
    nothing = quadrature_posterior(Architecture((1,), 4), features, [1.0, 2.0, 3.0], temperature=0.5)
    assert nothing.order_parameter[0, 0] == pytest.approx(1, abs=1e-12)
    assert nothing.log_evidence == pytest.approx(-0.5 * (3 * np.log(2 * np.pi * 0.5) + 14 / 0.5), abs=1e-11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": Architecture((2,), 4)}, "arch: got .*; expected one layer with one head"),
        ({"arch": Architecture((1,), (4, 5))}, "arch: got .*; expected one layer with one head, equal widths"),
        ({"features": PathFeatures.from_attentioned_inputs(np.ones((3, 2, 4)))}, "features: got 2 paths; expected one"),
        ({"labels": [1.0]}, "labels: got 1 labels; expected 3"),
        ({"temperature": 0.0}, "temperature: got 0.0; expected a number above 0"),
        ({"nodes": 10}, "nodes: got 10; expected 50 or more"),
    ],
)
def test_bad_input(changes, message):
    features = PathFeatures.from_attentioned_inputs(np.ones((3, 1, 4)))
    given = {"arch": Architecture((1,), 4), "features": features, "labels": np.ones(3), "temperature": 0.3}
    with pytest.raises(ValueError, match=message):
        quadrature_posterior(**(given | changes))

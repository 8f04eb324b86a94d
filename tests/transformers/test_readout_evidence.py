"""The evidence of a linear readout against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

torch = pytest.importorskip("torch")

from thermoformer.transformers.readout_evidence import class_targets, readout_evidence  # noqa: E402


def problem(examples: int, features: int, outputs: int = 2, seed: int = 0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(examples, features)) * np.geomspace(1, 0.1, features) + 3
    y = x @ random.normal(size=(features, outputs)) + 0.5 * random.normal(size=(examples, outputs))
    y = (y - y.mean(0)) / y.std(0)
    return x, torch.from_numpy(y)


def by_definition(x: np.ndarray, y: np.ndarray) -> float:
    """The same maximum by a search in s and τ over Gaussian log densities with the full kernel."""
    centred = x - x.mean(0)
    kernel = centred @ centred.T
    kernel /= np.trace(kernel) / len(kernel)
    # An orthonormal basis of what is orthogonal to the constant.
    others = np.linalg.qr(np.column_stack([np.ones(len(y)), np.eye(len(y))[:, 1:]]))[0][:, 1:]
    kernel, y = others.T @ kernel @ others, others.T @ y

    def minus(logarithms: np.ndarray) -> float:
        s, temperature = np.exp(logarithms)
        covariance = s * kernel + temperature * np.eye(len(y))
        density = scipy.stats.multivariate_normal(np.zeros(len(y)), covariance)
        return -float(np.sum(density.logpdf(y.T)))

    options = {"xatol": 1e-8, "fatol": 1e-10, "maxiter": 2000}
    starts = [(0.0, -1.0), (3.0, -3.0), (-3.0, 0.0)]
    best = min(scipy.optimize.minimize(minus, at, method="Nelder-Mead", options=options).fun for at in starts)
    return -float(best) + 0.5 * y.size * np.log(2 * np.pi)


@pytest.mark.parametrize(("examples", "features"), [(30, 4), (12, 25)])
def test_it_is_the_maximum_of_gaussian_log_densities(examples, features):
    x, y = problem(examples, features)
    assert readout_evidence(x, y).value == pytest.approx(by_definition(x, y.numpy()), abs=1e-6)


@pytest.mark.parametrize(("examples", "features"), [(30, 4), (12, 25)])
def test_its_slope_is_that_of_the_maximum(examples, features):
    x, y = problem(examples, features)
    slope = readout_evidence(x, y).gradient().numpy()
    random = np.random.default_rng(1)
    for _ in range(4):
        direction = random.normal(size=x.shape)
        step = 1e-5
        values = [readout_evidence(x + sign * step * direction, y).value for sign in (1, -1)]
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(float((slope * direction).sum()), rel=1e-5)


def test_rotations_shifts_and_scales_change_nothing():
    x, y = problem(30, 4)
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(4, 4)))[0]
    value = readout_evidence(x, y).value
    assert readout_evidence(7 * x @ rotation - 2, y).value == pytest.approx(value, rel=1e-9)


def test_the_readout_is_the_ridge_solution():
    x, y = problem(30, 4)
    found = readout_evidence(x, y)
    centred = x - x.mean(0)
    ridge = found.size**2 / found.ratio
    expected = np.linalg.solve(centred.T @ centred + ridge * np.eye(4), centred.T @ y.numpy())
    np.testing.assert_allclose(found.readout(), expected, rtol=1e-8)
    kernel = found.features @ found.features.T
    direct = np.linalg.solve(np.eye(30) + found.ratio * kernel.numpy(), y.numpy())
    np.testing.assert_allclose(found.residual(y), direct, atol=1e-9)


def test_labels_of_noise_have_no_more_evidence_than_silence():
    random = np.random.default_rng(3)
    y = class_targets(np.arange(200) % 2)
    found = readout_evidence(random.normal(size=(200, 50)), y)
    # Without features τ = 200/199 explains everything.
    silence = -0.5 * 199 * (np.log(200 / 199) + 1)
    assert found.value == pytest.approx(silence, abs=3)
    constant = readout_evidence(np.ones((200, 3)), y)
    assert constant.value == pytest.approx(silence, abs=1e-6) and not constant.gradient().any()


def test_labels_without_noise_have_a_finite_evidence():
    x = np.random.default_rng(4).normal(size=(40, 3))
    y = x[:, :1] - x[:, :1].mean()
    assert np.isfinite(readout_evidence(x, torch.from_numpy(y / y.std())).value)


def test_targets_of_classes():
    columns = class_targets([0, 2, 2, 5, 0, 5]).numpy()
    assert columns.shape == (6, 3)
    np.testing.assert_allclose(columns.mean(0), 0, atol=1e-15)
    np.testing.assert_allclose(columns.std(0), 1)
    assert class_targets([0, 1, 1, 0]).tolist() == [[-1], [1], [1], [-1]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: class_targets([1, 1]), "labels: got 1 class; expected examples of two classes or more"),
        (lambda: readout_evidence(np.ones((3, 2)), torch.ones(4, 1)), "features: got shape"),
        (lambda: readout_evidence(np.full((3, 2), np.nan), torch.ones(3, 1)), "features: got NaN or infinite"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()

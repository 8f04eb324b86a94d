"""Binomial numbers against their law, from one trial to 10^12."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.stats

from thermoformer.dynamics.finite import rare_binomial

DRAWS = 200_000


# One program for all tests, which differ in numbers only.
sample = jax.jit(rare_binomial)


def draws(trials, probability, key=0):
    """Independent numbers; trials and probabilities repeat."""
    given = (np.resize(np.asarray(values, float), DRAWS) for values in (trials, probability))
    return np.asarray(sample(jax.random.key(key), *given))


# Pairs on both sides of the change of method at ten expected successes, and at the largest sizes.
FEW = [(1, 0.5), (3, 0.1), (19, 0.5), (100, 0.0999), (10**9, 2e-9)]
SOME = [(21, 0.5), (25, 0.45), (100, 0.1001), (1000, 0.013), (10**9, 1.2e-8), (10**12, 3e-11)]
MANY = [(10**4, 0.3), (10**6, 0.5), (10**9, 0.5), (10**9, 1e-4), (10**12, 0.5)]


@pytest.mark.parametrize(("trials", "probability"), FEW + SOME + MANY)
def test_the_law_is_binomial(trials, probability):
    found = draws(trials, probability)
    law = scipy.stats.binom(trials, probability)
    assert found.min() >= 0 and found.max() <= trials and (found == np.floor(found)).all()
    # Cells of about equal probability, as far as whole numbers allow; their counts against a chi-square law.
    edges = np.unique(law.ppf(np.linspace(0.02, 0.98, 40)))
    expected = np.diff(law.cdf(edges), prepend=0, append=1) * DRAWS
    counts = np.histogram(found, np.concatenate([[-np.inf], edges + 0.5, [np.inf]]))[0]
    kept = expected > 5
    statistic = np.sum((counts[kept] - expected[kept]) ** 2 / expected[kept])
    assert scipy.stats.chi2.sf(statistic, max(1, kept.sum() - 1)) > 1e-4
    assert abs(found.mean() - law.mean()) < 4.5 * law.std() / np.sqrt(DRAWS)


def test_certain_outcomes():
    assert (draws(10**9, 0.0) == 0).all()
    assert (draws(10**9, 1e-300) == 0).all()
    assert (draws(0, 0.5) == 0).all()


def test_mixed_sizes_in_one_call():
    trials, probability = np.array([1e9, 3.0, 0.0, 50.0, 1e6]), np.array([0.5, 0.5, 0.5, 0.4, 1e-6])
    found = draws(trials, probability, key=1).reshape(-1, 5)
    mean, variance = trials * probability, trials * probability * (1 - probability)
    assert (np.abs(found.mean(0) - mean) <= 4.5 * np.sqrt(variance / len(found))).all()
    np.testing.assert_allclose(found.var(0), variance, rtol=0.06)
    correlation = np.corrcoef(found[:, [0, 1, 3, 4]].T) - np.eye(4)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(len(found))

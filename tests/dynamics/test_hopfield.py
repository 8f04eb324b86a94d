"""The Hopfield limit (fluctuations §2): with one token of context the map is a Hopfield network; exact targets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.optimize

from thermoformer.dynamics import Features, MeanField, bifurcation_point, find_cycle, iterate, orbit

M = 3
# Every column of signs once: patterns whose overlaps and higher correlations are those of infinitely many random bits.
COLUMNS = np.array(list(itertools.product((1.0, -1.0), repeat=M))).T
# One token of context, no positions; γ then has nothing to choose from.
ONE_TOKEN = {"gamma": 220.0, "epsilon": 0.0, "context": 1}


def associative(beta, **changes):
    """v = o: a symmetric Hopfield network of M random patterns."""
    features = Features.from_patterns([COLUMNS] * 4)
    return MeanField(features, beta, **(ONE_TOKEN | changes))


def sequential(beta, **changes):
    """v_a = o_{a−1}: pattern a is followed by pattern a + 1."""
    shifted = np.roll(np.arange(M), 1).tolist()
    features = Features.permuted(COLUMNS, permutations=dict.fromkeys("vqk", shifted))
    return MeanField(features, beta, **(ONE_TOKEN | changes))


def magnetisation(beta):
    """The positive root of m = tanh(βm), by bisection."""
    return scipy.optimize.brentq(lambda m: m - np.tanh(beta * m), 1e-6, 1.0, xtol=1e-15)


def mixture(beta):
    """Overlap of the symmetric mixture of three patterns: m = E[s_1 tanh βm(s_1 + s_2 + s_3)]."""
    return scipy.optimize.brentq(lambda m: m - (np.tanh(3 * beta * m) + np.tanh(beta * m)) / 4, 1e-3, 1.0, xtol=1e-15)


@pytest.mark.parametrize("gamma", [0.0, 220.0])
def test_one_token_is_a_hopfield_network_whatever_gamma(gamma):
    """m' = E[α tanh(β o·m^v)], for any patterns and from any state."""
    features = Features.random(60, M, positional_bits=0, key=4)
    model = MeanField(features, 1.7, gamma, 0.0, context=1)
    found = orbit(model, model.window([[0.3, -0.2, 0.5]]), steps=12)
    o, v = features.columns["o"], features.columns["v"][0]
    m_v = v @ np.tanh(1.7 * np.array([0.3, -0.2, 0.5]) @ o) / 60
    for t in range(12):
        np.testing.assert_allclose(found.m_v[t], m_v, atol=1e-13)
        m_v = v @ np.tanh(1.7 * m_v @ o) / 60


@pytest.mark.parametrize("beta", [1.1, 1.5, 3.0])
def test_a_retrieved_pattern(beta):
    m = magnetisation(beta)
    model = associative(beta)
    start = np.array([0.8, 0.05, -0.02])
    np.testing.assert_allclose(iterate(model, model.window(start[None]), 3000).A[0], [m, 0, 0], atol=1e-9)
    retrieved = find_cycle(model, model.window([[m, 0.0, 0.0]]), 1)
    # All multipliers are β(1 − m²): patterns that are not retrieved feel the same field without a sign.
    np.testing.assert_allclose(retrieved.multipliers, beta * (1 - m**2), atol=1e-9)
    assert retrieved.stable


def test_the_critical_temperature_is_1():
    found = bifurcation_point(associative(0.9), associative(0.9).window([[0.0, 0.0, 0.0]]), "beta", (0.9, 1.2), 1)
    assert found.value == pytest.approx(1, abs=1e-11)
    assert found.kind == "fold or branching"
    # Below it nothing is remembered.
    cold, warm = associative(1.02), associative(0.98)
    assert iterate(cold, cold.window([[1.0, 0.0, 0.0]]), 2000).A[0, 0] == pytest.approx(magnetisation(1.02), abs=1e-9)
    assert abs(iterate(warm, warm.window([[1.0, 0.0, 0.0]]), 2000).A).max() < 1e-9


def test_mixtures_of_three_patterns_become_stable():
    """Transverse multiplier β(1 − tanh² βm) = 1: at β = 2.175 (published: 1/β = 0.46, Amit et al. 1985)."""
    critical = scipy.optimize.brentq(lambda beta: beta * (1 - np.tanh(beta * mixture(beta)) ** 2) - 1, 1.5, 3.0)
    assert critical == pytest.approx(2.174886, abs=1e-6)
    for beta, stable in ((0.999 * critical, False), (1.001 * critical, True), (3.0, True)):
        m, model = mixture(beta), associative(beta)
        found = find_cycle(model, model.window(np.full((1, 3), 1.01 * m)), 1)
        np.testing.assert_allclose(found.state.A[0], m, atol=1e-9)
        assert found.stable == stable
        transverse, along = 1 - np.tanh(beta * m) ** 2, 1 - np.tanh(3 * beta * m) ** 2
        expected = beta * np.array([transverse, transverse, (transverse + 3 * along) / 4])
        np.testing.assert_allclose(found.multipliers, expected, atol=1e-9)


@pytest.mark.parametrize("beta", [1.5, 3.0])
def test_a_shift_makes_a_sequence_of_all_patterns(beta):
    m, model = magnetisation(beta), sequential(beta)
    cycle = find_cycle(model, model.window([[m, 0.0, 0.0]]), M)
    assert cycle.stable
    np.testing.assert_allclose(np.abs(cycle.multipliers), (beta * (1 - m**2)) ** M, atol=1e-9)
    seen = orbit(model, cycle.state, steps=2 * M).m_o
    expected = m * np.eye(M)[np.arange(2 * M) % M]
    np.testing.assert_allclose(seen, expected, atol=1e-9)


# Longer windows: γ → 0 is a mean over the window, γ → ∞ the single best match.

WINDOW = np.array([[0.5, -0.1, 0.2], [0.1, 0.7, -0.3], [-0.4, 0.2, 0.6], [0.3, 0.3, -0.2]])


def tokens(features, beta, A):
    """m^v, m^q, m^k [token, feature] of tokens made by A."""
    bits = np.tanh(beta * A @ features.columns["o"]) * features.fractions
    return [bits @ features.columns[role][0].T for role in "vqk"]


def test_without_gamma_attention_is_the_mean_of_the_window():
    features = Features.random(60, M, positional_bits=0, key=4)
    model = MeanField(features, 1.7, 0.0, 0.0, context=4)
    state, A = model.window(WINDOW), WINDOW
    for _ in range(12):
        state = iterate(model, state, 1)
        A = np.concatenate([tokens(features, 1.7, A)[0].mean(axis=0)[None], A[:-1]])
        np.testing.assert_allclose(state.A, A, atol=1e-13)


def test_delayed_averaging_keeps_the_critical_temperature():
    """v = o: at m = 0 multipliers solve μ^L = (β/L) Σ_{j<L} μ^j, for each of the M features."""
    model = associative(0.9, gamma=0.0, context=4)
    found = find_cycle(model, model.window(np.zeros((4, 3))), 1)
    roots = np.roots([1, *(-0.9 / 4 * np.ones(4))])
    np.testing.assert_allclose(np.sort(np.abs(found.multipliers)), np.sort(np.abs(np.repeat(roots, M))), atol=1e-9)
    critical = bifurcation_point(model, model.window(np.zeros((4, 3))), "beta", (0.9, 1.2), 1)
    assert critical.value == pytest.approx(1, abs=1e-11)


def test_large_gamma_attends_to_the_best_match_alone():
    features = Features.random(60, M, positional_bits=0, key=4)
    model = MeanField(features, 1.7, 1e9, 0.0, context=4)
    state, A, chosen = model.window(WINDOW), WINDOW, set()
    for _ in range(12):
        state = iterate(model, state, 1)
        v, q, k = tokens(features, 1.7, A)
        best = int(np.argmax(k @ q[0]))
        A = np.concatenate([v[best][None], A[:-1]])
        chosen.add(best)
        np.testing.assert_allclose(state.A, A, atol=1e-12)
    # Not always the newest one.
    assert len(chosen) > 1

"""The exact posterior at finite width (learning §6): limits, quadrature, reference draws."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from problems import attention_problem, dense_kernel, small_problem
from scipy.special import gammaln, logsumexp

from thermoformer.learning import (
    Architecture,
    PathFeatures,
    SamplingWarning,
    gaussian_process,
    one_loop,
    sample_order_parameters,
    solve,
)
from thermoformer.learning.action import Action
from thermoformer.learning.exact import prior_vectors, whitened_target
from thermoformer.learning.kernels import prepare

# Sizes and draws are those of test_brute_force, whose compiled samplers serve here too.
ARCH, FEATURES, LABELS = small_problem((2, 2), examples=10, token_width=4, widths=6)


def sampled(**changes):
    given = {"arch": ARCH, "features": FEATURES, "labels": LABELS, "temperature": 0.1, "key": 0}
    return sample_order_parameters(**(given | changes))


@pytest.fixture(scope="module")
def posterior():
    return sampled()


def test_reference_draws_of_all_weights(reference):
    """`4paths` at N = 10: the exact predictor within the Monte-Carlo error of 100 networks drawn by NUTS."""
    data, drawn = reference("learning/4paths_inputs.npz"), reference("learning/4paths_N10_nuts.npz")
    training, test = (PathFeatures.from_attentioned_inputs(data[f"xi_{part}"]) for part in ("train", "test"))
    arch = Architecture((2, 2), 10)
    exact = sample_order_parameters(arch, training, data["y_train"], temperature=0.01, key=0, draws=300)
    prediction = exact.predict(test)
    error = np.sqrt(drawn["variance_test"] / 100 + prediction.mean_error**2)
    score = (prediction.mean - drawn["mean_test"]) / error
    # Test examples share the 100 networks, so the scores are not independent: their mean square is 1 on average.
    assert np.abs(score).max() < 4.5 and 0.5 < np.mean(score**2) < 1.6
    # A variance from 100 draws has a relative error of √(2/99).
    ratio = drawn["variance_test"] / prediction.variance
    assert np.abs(ratio - 1).max() < 5 * np.sqrt(2 / 99) and abs(ratio.mean() - 1) < 0.1
    assert prediction.accuracy(data["y_test"]) == pytest.approx(0.963, abs=0.006)
    draws = exact.draws["posterior"]["order_parameter"].values.reshape(-1, 4, 4)
    apart = (exact.order_parameter - drawn["U1"]) / np.sqrt(draws.var(axis=0) / 100)
    assert np.abs(apart).max() < 3.5


@pytest.mark.parametrize("width", [1, 3, 40])
def test_one_path_against_quadrature(width):
    """One head in one layer: U = r1² r2² with √N r ~ χ_N, so every average is an integral over two numbers."""
    generator = np.random.default_rng(1)
    xi = generator.normal(size=(16, 1, 4))
    labels = xi[:, 0] @ generator.normal(size=4) / 2 + 0.3 * generator.normal(size=16)
    training, test = PathFeatures.from_attentioned_inputs(xi[:10]), PathFeatures.from_attentioned_inputs(xi[10:])
    arch = Architecture((1,), width)
    exact = sample_order_parameters(arch, training, labels[:10], temperature=0.2, key=1, draws=4000)
    axis = np.linspace(-9, 3, 600)
    gamma = gammaln(width / 2)
    prior = width * (np.log(width) / 2 + axis) - width * np.exp(2 * axis) / 2 + (1 - width / 2) * np.log(2) - gamma
    # Both factors have the same law and only their sum enters: its density is a convolution on the grid.
    total = 2 * axis[0] + (axis[1] - axis[0]) * np.arange(2 * len(axis) - 1)
    density = np.convolve(np.exp(prior), np.exp(prior)) * (axis[1] - axis[0])
    inner = xi[:10, 0] @ xi[:10, 0].T / 4
    cross, own = xi[:10, 0] @ xi[10:, 0].T / 4, (xi[10:, 0] ** 2).sum(-1) / 4
    logs, means, seconds = [], [], []
    for point in total:
        u = np.exp(2 * point)
        covariance = u * inner + 0.2 * np.eye(10)
        solved = np.linalg.solve(covariance, np.column_stack([labels[:10], u * cross]))
        logs.append(-0.5 * (np.linalg.slogdet(covariance)[1] + labels[:10] @ solved[:, 0]))
        means.append(u * cross.T @ solved[:, 0])
        seconds.append(means[-1] ** 2 + u * own - np.einsum("pt,pt->t", u * cross, solved[:, 1:]))
    logs = np.array(logs) + np.log(np.maximum(density, 1e-300))
    weights = np.exp(logs - logsumexp(logs))
    mean = weights @ np.array(means)
    prediction = exact.predict(test)
    assert np.abs((prediction.mean - mean) / prediction.mean_error).max() < 4.5
    variance = weights @ np.array(seconds) - mean**2
    assert np.abs((prediction.variance - variance) / prediction.variance_error).max() < 4.5
    order = (exact.order_parameter - weights @ np.exp(2 * total)) / exact.order_parameter_error
    assert np.abs(order).max() < 4.5
    if width > 1:
        corrected = one_loop(solve(arch, training, labels[:10], temperature=0.2))
        evidence = logsumexp(logs) + np.log(axis[1] - axis[0]) - 5 * np.log(2 * np.pi)
        assert corrected.log_evidence == pytest.approx(evidence, abs=0.4 / width)


def test_wide_networks_are_the_gaussian_process():
    wide = sampled(arch=ARCH.replace(widths=10**8))
    limit = gaussian_process(ARCH, FEATURES, LABELS, temperature=0.1)
    np.testing.assert_allclose(wide.order_parameter, np.eye(4), atol=1e-4)
    np.testing.assert_allclose(wide.predict(FEATURES).mean, limit.predict(FEATURES).mean, atol=1e-4)
    np.testing.assert_allclose(wide.predict(FEATURES).variance, limit.predict(FEATURES).variance, atol=1e-4)


def test_high_temperature_is_the_prior():
    # As many draws as in the next test, whose compiled sampler serves here too.
    prior = sampled(temperature=1e6, draws=3000)
    assert np.abs((prior.order_parameter - np.eye(4)) / prior.order_parameter_error).max() < 4.5


def test_the_correction_is_closer_than_the_saddle():
    arch = ARCH.replace(widths=60)
    exact = sampled(arch=arch, draws=3000).predict(FEATURES)
    saddle = solve(arch, FEATURES, LABELS, temperature=0.1)
    corrected = solve(arch, FEATURES, LABELS, temperature=0.1, correction="one-loop")
    miss = [np.abs(one.predict(FEATURES).mean - exact.mean).max() for one in (saddle, corrected)]
    assert miss[1] < 0.5 * miss[0]
    assert np.abs((corrected.predict(FEATURES).mean - exact.mean) / exact.mean_error).max() < 6
    np.testing.assert_array_equal(corrected.saddle.order_parameter, saddle.order_parameter)


@pytest.mark.parametrize("width", [30, 300])
def test_evidence_of_the_correction_against_an_average_over_the_prior(width):
    """p(y) = E[N(y; 0, K(U) + τI)] over U from the prior; the correction leaves an error of order 1/N."""
    arch, features, labels = small_problem((2,), examples=5, token_width=4, widths=width)
    action = Action.of(arch, None, 0.1)
    vectors = prior_vectors(arch.layout, action.setting, np.random.default_rng(0), 20_000)
    factors = np.asarray(jax.jit(jax.vmap(action.path_factor))(vectors))
    grams = factors @ factors.transpose(0, 2, 1)
    xi = np.asarray(features.values)
    pair = np.einsum("man,vbn->abmv", xi, xi) / xi.shape[2] / 2
    covariance = np.einsum("zab,abmv->zmv", grams, pair) + 0.1 * np.eye(5)
    solved = np.linalg.solve(covariance, np.broadcast_to(labels[:, None], (len(grams), 5, 1)))[..., 0]
    logs = -0.5 * (np.linalg.slogdet(covariance)[1] + solved @ labels + 5 * np.log(2 * np.pi))
    estimate = logsumexp(logs) - np.log(len(logs))
    error = np.exp(logs - estimate).std() / np.sqrt(len(logs))
    corrected = solve(arch, features, labels, temperature=0.1, correction="one-loop")
    assert abs(corrected.log_evidence - estimate) < 1 / width + 4 * error
    assert abs(corrected.saddle.log_evidence - estimate) > abs(corrected.log_evidence - estimate)


@pytest.mark.parametrize("form", ["pairs", "features"])
def test_chains_start_with_the_potential_and_gradient_of_the_target(form):
    """They come from the search for the mode, in other coordinates."""
    action = Action.at_finite_width(ARCH, prepare(ARCH, FEATURES, LABELS, form, 0.1), 0.1)
    target, starts, (potentials, gradients) = whitened_target(action, jax.random.key(0), 2)
    for start, potential, gradient in zip(starts, potentials, gradients, strict=True):
        value, slope = jax.jit(jax.value_and_grad(target.__call__))(start)
        assert float(value) == pytest.approx(float(potential), rel=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=0, atol=1e-12)
        assert 0 < np.abs(gradient).max() < 1e-3


def test_kernel_forms_agree(posterior):
    """Another form is another path through phase space to the same averages."""
    other = sampled(form="features", draws=1500)
    error = np.hypot(posterior.order_parameter_error, other.order_parameter_error)
    assert np.abs((other.order_parameter - posterior.order_parameter) / error).max() < 4.5


def test_predictions_do_not_depend_on_the_pieces(posterior, monkeypatch):
    whole = posterior.predict(FEATURES)
    draws = posterior.predictor_draws(FEATURES)
    assert draws.shape == (2, 1000, 10)
    np.testing.assert_allclose(draws.mean(axis=(0, 1)), whole.mean, rtol=1e-10)
    monkeypatch.setattr("thermoformer.learning.results.CHUNK", 1000)
    pieces = posterior.predict(FEATURES)
    np.testing.assert_allclose(pieces.mean, whole.mean, rtol=1e-10)
    np.testing.assert_allclose(pieces.variance, whole.variance, rtol=1e-8)
    np.testing.assert_allclose(pieces.mean_error, whole.mean_error, rtol=1e-8)


def test_total_variance_by_hand(posterior):
    """Var f = E[Var f | U] + Var E[f | U], from the draws of U one by one."""
    grams = posterior.draws["posterior"]["order_parameter"].values.reshape(-1, 4, 4)
    base = solve(ARCH, FEATURES, LABELS, temperature=0.1)
    predictions = [base.with_order_parameter(gram).predict(FEATURES) for gram in grams[::20]]
    means = np.array([one.mean for one in predictions])
    variance = np.mean([one.variance for one in predictions], axis=0) + means.var(axis=0)
    thinned = posterior.predictor_draws(FEATURES).reshape(-1, 10)[::20]
    np.testing.assert_allclose(thinned, means, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(variance, posterior.predict(FEATURES).variance, rtol=0.5)


def test_the_kernel_of_draws_is_that_of_their_mean(posterior):
    """K is linear in U."""
    expected = dense_kernel(ARCH, np.asarray(FEATURES.values), posterior.order_parameter)
    np.testing.assert_allclose(posterior.kernel(FEATURES), expected, atol=1e-12)


def test_several_outputs_have_an_axis_of_their_own():
    arch = Architecture((2,), (6, 5), outputs=3)
    _, _, features = attention_problem(arch, examples=16, token_width=4)
    labels, new = np.random.default_rng(0).normal(size=(10, 3)), features[10:]
    every = sample_order_parameters(arch, features[:10], labels, temperature=0.3, key=0)
    assert every.order_parameter.shape == (6, 6)
    assert every.predict(new).mean.shape == (6, 3)
    assert every.predictor_draws(new).shape == (2, 1000, 6, 3)
    assert list(every.draws["posterior"]["path"].values) == ["0: 0", "0: 1", "1: 0", "1: 1", "2: 0", "2: 1"]


def test_draws_repeat_by_key_and_report_progress(posterior):
    seen = []
    again = sampled(progress=lambda done, total, message: seen.append((done, total, message)))
    np.testing.assert_array_equal(again.vectors, posterior.vectors)
    assert seen[0][0] == 0 and seen[-1][0] < seen[-1][1] == 1500
    assert {message for _, _, message in seen} == {"NUTS, warm-up", "NUTS, draws"}
    assert not np.array_equal(sampled(key=1).vectors, posterior.vectors)


def test_arviz_reads_the_draws(posterior):
    import arviz_stats

    summary = arviz_stats.summary(posterior.draws, var_names=["order_parameter"])
    assert len(summary) == 16
    sizes = arviz_stats.ess(posterior.draws, var_names=["order_parameter"], method="bulk")
    smallest = float(sizes["order_parameter"].min())
    assert smallest >= posterior.diagnostics.bulk_effective > 100
    assert set(posterior.draws["sample_stats"].data_vars) == {"diverging", "acceptance_rate", "n_steps", "lp"}


def test_a_chain_that_has_not_mixed_says_so():
    with pytest.warns(SamplingWarning, match="nuts has not mixed: .*effective sample size is"):
        short = sampled(draws=10, warmup=1)
    assert not short.diagnostics.mixed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draws": 0}, "draws: got 0; expected a whole number, 1 or more"),
        ({"chains": 0}, "chains: got 0; expected a whole number, 1 or more"),
        ({"warmup": 0}, "warmup: got 0; expected a whole number, 1 or more"),
        ({"temperature": 0.0}, "temperature: got 0.0; expected a number above 0"),
        ({"labels": LABELS[:-1]}, "labels: got 9 labels; expected 10, one per example"),
        ({"labels": np.ones((10, 2))}, r"labels: got shape \(10, 2\); expected 1 axis"),
        ({"key": "seed"}, "key: got 'seed'; expected an integer or one JAX random key"),
        ({"arch": ARCH.replace(skip=True)}, "features: got 4 paths; expected 9"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(ValueError, match=message):
        sampled(**changes)


def test_bad_input_of_the_correction():
    with pytest.raises(ValueError, match="correction: got 'two-loop'; expected one of 'one-loop'"):
        solve(ARCH, FEATURES, LABELS, temperature=0.1, correction="two-loop")
    with pytest.raises(ValueError, match=r"widths: got \(3, 3, 3\); expected widths of at least 4"):
        solve(ARCH.replace(widths=3), FEATURES, LABELS, temperature=0.1, correction="one-loop")
    with pytest.raises(ValueError, match="solution: got no minimum of the action"):
        one_loop(gaussian_process(ARCH, FEATURES, LABELS, temperature=0.1))

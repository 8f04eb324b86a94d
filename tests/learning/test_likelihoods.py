"""Likelihoods that are not Gaussian: their laws, their sites, and both samplers against brute force in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import dense_kernel
from scipy import stats

from thermoformer.learning import (
    Architecture,
    Likelihood,
    PathFeatures,
    sample_order_parameters,
    sample_weights_on_paths,
    solve,
)
from thermoformer.learning.action import Action
from thermoformer.learning.exact import NUGGET, LatentTarget, Target
from thermoformer.learning.kernels import prepare
from thermoformer.learning.likelihoods import reweighted

TAU, OUTPUTS = 0.4, np.linspace(-3, 3, 13)
# The deviation of an ordinary label among 20 % of outliers with five times its deviation, at variance TAU.
ORDINARY = np.sqrt(TAU / (0.8 + 0.2 * 25))
LAWS = {
    "gaussian": (Likelihood("gaussian"), lambda f: stats.norm.logpdf(1, f, np.sqrt(TAU))),
    "student-t": (
        Likelihood("student-t", degrees_of_freedom=3.0),
        lambda f: stats.t.logpdf(1, 3, f, np.sqrt(TAU / stats.t.var(3))),
    ),
    "laplace": (Likelihood("laplace"), lambda f: stats.laplace.logpdf(1, f, np.sqrt(TAU / stats.laplace.var()))),
    "outliers": (
        Likelihood("outliers", share=0.2, factor=5.0),
        lambda f: np.log(0.8 * stats.norm.pdf(1, f, ORDINARY) + 0.2 * stats.norm.pdf(1, f, 5 * ORDINARY)),
    ),
    "logistic": (Likelihood("logistic"), lambda f: stats.logistic.logcdf(f / np.sqrt(TAU))),
    "flipped": (
        Likelihood("logistic", share=0.1),
        lambda f: np.log(0.1 + 0.8 * stats.logistic.cdf(f / np.sqrt(TAU))),
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_losses_are_the_laws_of_scipy(name):
    law, log_density = LAWS[name]
    found = np.asarray(jax.jit(law.loss)(np.ones_like(OUTPUTS), OUTPUTS, TAU))
    expected = -log_density(OUTPUTS)
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", LAWS)
def test_sites_have_the_slope_of_the_law_at_a_known_output(name):
    law, log_density = LAWS[name]
    outputs = OUTPUTS + 0.13  # away from the kink of Laplace's law
    label, temperature = law.sites(np.ones_like(outputs), outputs, np.zeros_like(outputs), TAU)
    slope = (log_density(outputs + 1e-5) - log_density(outputs - 1e-5)) / 2e-5
    np.testing.assert_allclose((label - outputs) / temperature, slope, rtol=1e-6, atol=1e-8)


ARCH = Architecture((2,), (3, 4), (1.2, 0.8, 1.5))
EXAMPLES = 6


def problem():
    generator = np.random.default_rng(3)
    x = generator.normal(size=(EXAMPLES + 4, 3, 2))
    attention = [generator.dirichlet(np.ones(3), size=(len(x), 2, 3))]
    return x, attention, np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0])


def weighted_networks(law, x, attention, labels, draws=200_000):
    """Mean, variance and U from networks drawn from the prior and weighted by their likelihood, with errors."""
    generator, (first, last) = np.random.default_rng(5), ARCH.widths
    deviations = np.sqrt(ARCH.variances)
    xi = np.einsum("phs,psi->phi", attention[0][:, :, -1], x)
    logs, outputs, grams = [], [], []
    for _ in range(8):
        size = draws // 8
        embedding = deviations[0] * generator.normal(size=(size, first, 2))
        values = deviations[1] * generator.normal(size=(size, 2, last, first))
        readout = deviations[2] * generator.normal(size=(size, last))
        effective = np.einsum("zo,zhoi->zhi", readout, values) / np.sqrt(last)
        found = np.einsum("zhi,zij,phj->zp", effective, embedding, xi, optimize=True) / np.sqrt(2 * 2 * first)
        logs.append(-np.asarray(law.loss(labels, found[:, :EXAMPLES], TAU)).sum(axis=1))
        outputs.append(found[:, EXAMPLES:])
        grams.append(np.einsum("zhi,zgi->zhg", effective, effective) / first)
    logs, outputs, grams = (np.concatenate(part) for part in (logs, outputs, grams))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    assert 1 / np.sum(weights**2) > 1000

    def average(values):
        centre = np.tensordot(weights, values, 1)
        return centre, np.sqrt(np.tensordot(weights**2, (values - centre) ** 2, 1))

    mean = average(outputs)
    return mean, average((outputs - mean[0]) ** 2), average(grams)


@pytest.fixture(scope="module")
def brute():
    return weighted_networks(LAWS["flipped"][0], *problem())


@pytest.mark.parametrize(("sample", "draws"), [(sample_order_parameters, 1500), (sample_weights_on_paths, 2000)])
def test_both_samplers_against_weighted_draws_of_the_prior(brute, sample, draws):
    """With flipped classes; other laws have the same programs but for their loss, which is tested above."""
    x, attention, labels = problem()
    features, law = PathFeatures.from_attention(x, attention), LAWS["flipped"][0]
    posterior = sample(ARCH, features[:EXAMPLES], labels, temperature=TAU, key=1, likelihood=law, draws=draws)
    assert posterior.diagnostics.mixed
    found = posterior.predict(features[EXAMPLES:])
    ours = [(found.mean, found.mean_error), (found.variance, found.variance_error)]
    ours.append((posterior.order_parameter, posterior.order_parameter_error))
    for (value, error), (other, noise) in zip(ours, brute, strict=True):
        assert np.abs((value - other) / np.hypot(error, noise)).max() < 4.5
    # The readout of the paths makes the same mean.
    parts = posterior.path_contributions(features[EXAMPLES:])
    np.testing.assert_allclose(parts.sum(axis=1), found.mean, atol=1e-3)


def test_target_with_two_outputs_and_skips_is_the_dense_density():
    """−ln p(U) p(f|U) ∏ p(y|f) |∂f/∂z|, with inverses and determinants of dense matrices in NumPy."""
    arch, generator = Architecture((1,), 4, skip=True, outputs=2), np.random.default_rng(2)
    features = PathFeatures.from_attentioned_inputs(generator.normal(size=(5, 2, 3)))
    labels, law = generator.normal(size=(5, 2)), Likelihood("student-t", degrees_of_freedom=3.0)
    # Any sites will do.
    units, own = generator.uniform(0.5, 2, size=5), generator.normal(size=(5, 2))
    data = PathFeatures.from_attentioned_inputs(np.asarray(features.values) / units[:, None, None])
    action = Action.at_finite_width(arch, prepare(arch, data, own, "pairs", TAU), TAU * (1 + NUGGET))
    count = action.layout.count
    sites = Target(action, jnp.zeros(count), jnp.ones(count))
    rows = labels.T.ravel(), np.tile(units, 2)
    target = LatentTarget(sites, law, *map(jnp.asarray, rows), jnp.asarray(TAU))
    found = jax.jit(lambda at: (target(at), target.energy_and_output(at)[1], action.path_factor(at[:count])))
    gaps = []
    for position in 0.5 * generator.normal(size=(3, count + 10)):
        value, output, factor = found(position)
        output = rows[1] * np.asarray(output)
        prior = dense_kernel(arch, np.asarray(features.values), factor @ factor.T) + NUGGET * TAU * np.diag(
            rows[1] ** 2
        )
        covariance = np.linalg.inv(np.linalg.inv(prior) + np.diag(1 / (TAU * rows[1] ** 2)))
        expected = float(sites.prior(jnp.asarray(position[:count]))) + output @ np.linalg.solve(prior, output) / 2
        expected += (np.linalg.slogdet(prior)[1] - np.linalg.slogdet(covariance)[1]) / 2
        gaps.append(float(value) - expected - np.asarray(law.loss(rows[0], output, TAU)).sum())
    np.testing.assert_allclose(gaps, gaps[0], rtol=1e-6)


def test_gaussian_noise_two_ways():
    """Student's law with very many degrees of freedom is Gaussian; only its outputs are sampled."""
    x, attention, labels = problem()
    features = PathFeatures.from_attention(x, attention)
    given = {"temperature": TAU, "draws": 1500}
    law = Likelihood("student-t", degrees_of_freedom=1e9)
    latent = sample_order_parameters(ARCH, features[:EXAMPLES], labels, key=1, likelihood=law, **given)
    plain = sample_order_parameters(ARCH, features[:EXAMPLES], labels, key=2, **given)
    ours, theirs = latent.predict(features), plain.predict(features)
    for name in ("mean", "variance"):
        errors = np.hypot(vars(ours)[f"{name}_error"], vars(theirs)[f"{name}_error"])
        assert np.abs((vars(ours)[name] - vars(theirs)[name]) / errors).max() < 4.5


def test_sites_forget_an_outlier():
    generator = np.random.default_rng(0)
    xi = generator.normal(size=(40, 2, 3))
    labels = xi[:, 0, 0] + 0.1 * generator.normal(size=40)
    labels[7] += 20
    features, arch = PathFeatures.from_attentioned_inputs(xi), Architecture((2,), 20)
    law = Likelihood("student-t", degrees_of_freedom=3.0)
    data, own, units = reweighted(arch, features, labels, law, 0.01)
    assert np.argmax(units) == 7 and units[7] > 20 * np.median(units)
    robust, plain = (solve(arch, *given, temperature=0.01) for given in ((data, own), (features, labels)))
    error, usual = (np.mean((one.predict(features).mean - xi[:, 0, 0]) ** 2) for one in (robust, plain))
    assert error < 0.01 < usual


@pytest.mark.parametrize(
    ("sample", "changes", "message"),
    [
        (sample_weights_on_paths, {"likelihood": "cauchy"}, "likelihood: got 'cauchy'; expected one of 'gaussian', "),
        (
            sample_weights_on_paths,
            {"likelihood": "logistic"},
            "labels: got values such as 0.5; expected labels −1 and 1",
        ),
        (
            sample_weights_on_paths,
            {"method": "gibbs"},
            "method: got 'gibbs'; expected 'nuts' with likelihood='laplace'",
        ),
        (sample_order_parameters, {"likelihood": 3}, "likelihood: got 3; expected one of"),
        (sample_order_parameters, {"method": "tempered"}, "method: got 'tempered'; expected 'nuts' or 'auto'"),
        (sample_order_parameters, {"form": "dual"}, "form: got 'dual'; expected one that keeps the examples apart"),
    ],
)
def test_bad_arguments_are_refused(sample, changes, message):
    features = PathFeatures.from_attentioned_inputs(np.ones((2, 2, 2)))
    with pytest.raises(ValueError, match=message):
        sample(ARCH, features, [0.5, 1.0], temperature=0.1, key=0, **({"likelihood": "laplace"} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"degrees_of_freedom": 2.0}, "degrees_of_freedom: got 2.0; expected a number above 2"),
        ({"share": 0.5}, "share: got 0.5; expected a number from 0 to below 0.5"),
        ({"factor": 0.0}, "factor: got 0.0; expected a number above 0"),
    ],
)
def test_laws_that_do_not_exist_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Likelihood("outliers", **changes)

"""The joint posterior of attention parameters and order parameters: quadrature, brute force, and the limits."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import logsumexp

from thermoformer import InputError
from thermoformer.learning import (
    Architecture,
    AttentionModel,
    SamplingWarning,
    gaussian_process,
    prior_weights,
    sample_attention,
)
from thermoformer.learning.attention_models import AttentionData
from thermoformer.learning.attention_posterior import JointTarget
from thermoformer.learning.network import network_output, order_factor, path_vectors
from thermoformer.learning.quadrature import quadrature_posterior
from thermoformer.learning.results import Prediction, mean_over_draws
from thermoformer.learning.sampling import Plan, diagnose, run_nuts
from thermoformer.learning.tempering import _energies
from thermoformer.learning.weights import scaled_weights

EXAMPLES, TOKENS, WIDTH, TEMPERATURE = 12, 3, 2, 0.1
X = np.random.default_rng(0).normal(size=(EXAMPLES + 6, TOKENS, WIDTH))
PAIR = AttentionModel.low_rank((2,), WIDTH, rank=1, scale=2.0)
NARROW = Architecture((2,), (2, 3), (1.0, 0.7, 1.5))


def late(theta, x):
    """One head that prefers later tokens."""
    return [theta["slope"] * (np.ones((x.shape[0], 1, TOKENS, TOKENS)) * np.arange(TOKENS))]


def tied(theta, x):
    """One head whose query is its key."""
    seen = x @ theta["q"]
    return [seen[:, None, :, None] * seen[:, None, None, :]]


LATE, TIED = AttentionModel(late, {"slope": 2.0}), AttentionModel(tied, {"q": np.ones(WIDTH)})
ONE_HEAD = Architecture((1,), 3)


def taught(model: AttentionModel, seed: int) -> np.ndarray:
    """Labels of the training examples by a teacher with attention of the model."""
    generator = np.random.default_rng(seed)
    xi = np.asarray(model.features(model.draw(seed), X[:EXAMPLES]).values).reshape(EXAMPLES, -1)
    return xi @ generator.normal(size=xi.shape[1]) + 0.3 * generator.normal(size=EXAMPLES)


def sample(model, arch, y, **options):
    # Tempered chains start from levels that have their step sizes: a short warm-up does.
    given = {"temperature": TEMPERATURE, "key": 1, "warmup": 200} | options
    return sample_attention(model, arch, X[:EXAMPLES], y, **given)


def assert_close(found, error, expected):
    """Scores of unit variance: the largest of some tens is under 4.5 in all but one of a thousand runs."""
    scores = np.ravel((found - expected) / error)
    assert np.abs(scores).max() < 4.5, scores


def assert_same_prediction(one: Prediction, mean, variance, mean_error=0.0, variance_error=0.0):
    assert_close(one.mean, np.hypot(one.mean_error, mean_error), mean)
    assert_close(one.variance, np.hypot(one.variance_error, variance_error), variance)


def mixture(weights, predictions):
    """Mean and variance over the nodes of a grid."""
    means, variances = (np.array([getattr(one, name) for one in predictions]) for name in ("mean", "variance"))
    return weights @ means, weights @ (variances + means**2) - (weights @ means) ** 2


@pytest.fixture(scope="module")
def posterior():
    """Of one slope, at width 3."""
    return sample(LATE, ONE_HEAD, taught(LATE, 2))


def test_one_parameter_at_finite_width_against_quadrature(posterior):
    """One head: given the slope the evidence is an integral over one number, and the slope is another."""
    y = taught(LATE, 2)
    assert posterior.diagnostics.mixed and posterior.diagnostics.crossings >= 40
    slopes = np.linspace(-8, 8, 161)
    features = [LATE.features({"slope": slope}, X) for slope in slopes]
    exact = [quadrature_posterior(ONE_HEAD, one[:EXAMPLES], y, temperature=TEMPERATURE) for one in features]
    logs = np.array([one.log_evidence for one in exact]) - slopes**2 / 8
    weights = np.exp(logs - logsumexp(logs))
    draws = posterior.theta["slope"]
    for power in (1, 2):
        assert_close(*mean_over_draws(draws**power), weights @ slopes**power)
    predictions = [one.predict(feature[EXAMPLES:]) for one, feature in zip(exact, features, strict=True)]
    assert_same_prediction(posterior.predict(X[EXAMPLES:]), *mixture(weights, predictions))
    order = weights @ np.array([one.order_parameter for one in exact]).reshape(-1)
    assert_close(posterior.order_parameter, posterior.order_parameter_error, order)
    assert "parameters=1" in repr(posterior) and posterior.predictor_draws(X).shape == (2, 1000, len(X))


def test_two_parameters_at_infinite_width_against_quadrature():
    """q and −q are the same attention: both modes are visited, and the grid is symmetric."""
    y = taught(TIED, 3)
    posterior = sample(TIED, ONE_HEAD, y, theory="gaussian process")
    assert posterior.diagnostics.mixed
    np.testing.assert_array_equal(posterior.order_parameter, [[1.0]])
    axis = np.linspace(-4.5, 4.5, 41)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)

    @jax.jit
    def solved(q):
        features = TIED.features({"q": q}, X)
        found = gaussian_process(ONE_HEAD, features[:EXAMPLES], y, temperature=TEMPERATURE, form="pairs")
        return found.log_evidence - q @ q / 2, found.predict(features[EXAMPLES:])

    logs, predictions = jax.lax.map(solved, jnp.asarray(grid))
    weights = np.exp(np.asarray(logs) - logsumexp(logs))
    draws = posterior.theta["q"]
    assert_close(*mean_over_draws(draws), 0)
    products = draws[..., :, None] * draws[..., None, :]
    found, error = mean_over_draws(products)
    assert_close(found, error, np.einsum("n,ni,nj->ij", weights, grid, grid))
    means, variances = np.asarray(predictions.mean), np.asarray(predictions.variance)
    mean = weights @ means
    assert_same_prediction(posterior.predict(X[EXAMPLES:]), mean, weights @ (variances + means**2) - mean**2)


class EveryWeight(eqx.Module):
    """−ln of the posterior of standard-normal coordinates: whitened θ, then all weights of the network over their σ."""

    y: jax.Array
    temperature: float

    def output(self, position, x):
        theta = PAIR.parameters_of(position[: PAIR.parameters])
        weights = scaled_weights(SHAPED(position[PAIR.parameters :]), NARROW.deviations)
        attention = PAIR.attention(theta, x)
        return network_output(weights, x, attention, "last"), weights, attention[0]

    def __call__(self, position):
        squares = jnp.sum((self.y - self.output(position, X[:EXAMPLES])[0]) ** 2)
        return squares / (2 * self.temperature) + position @ position / 2

    def observed(self, position, _):
        """Of the new examples: the output, and attention summed over heads; and the trace and the sum of U."""
        output, weights, attention = self.output(position, X[EXAMPLES:])
        factor = order_factor(NARROW, path_vectors(NARROW, weights.readout, weights.values))
        return output, attention.sum(axis=1)[:, -1, :-1], invariants(factor @ factor.T)


PLAIN, SHAPED = ravel_pytree(prior_weights(NARROW.replace(variances=1.0), WIDTH, key=0))


def invariants(grams):
    """What does not change where heads change places: chains need not cross between such modes."""
    return jnp.stack([jnp.trace(grams, axis1=-2, axis2=-1), jnp.sum(grams, axis=(-2, -1))], axis=-1)


def test_brute_force_over_every_weight_and_attention_parameter():
    """Two heads with queries and keys, all values and the readout, against θ and order parameters alone."""
    y = taught(PAIR, 4)
    # Noise at which chains over all weights move well: at half of it they take half as many steps again.
    posterior = sample(PAIR, NARROW, y, temperature=0.2)
    assert posterior.diagnostics.mixed
    target, plan = EveryWeight(jnp.asarray(y), 0.2), Plan.of(1500, 2, 400, None, None)
    start = np.random.default_rng(6).normal(size=(2, PAIR.parameters + len(PLAIN)))
    (outputs, attention, grams), stats = run_nuts(target, target.observed, start, jax.random.key(5), plan)
    assert diagnose("nuts", {"output": outputs, "attention": attention, "grams": grams}, stats).mixed
    mean, mean_error = mean_over_draws(outputs)
    second, second_error = mean_over_draws((outputs - mean) ** 2)
    assert_same_prediction(posterior.predict(X[EXAMPLES:]), mean, second, mean_error, second_error)
    theta = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), posterior.theta)
    seen = jax.vmap(lambda one: PAIR.attention(one, X[EXAMPLES:])[0].sum(axis=1)[:, -1, :-1])(theta)
    ours = posterior.draws["posterior"]["order_parameter"].values
    for one, other in ((np.asarray(seen).reshape(2, -1, *seen.shape[1:]), attention), (invariants(ours), grams)):
        (found, error), (expected, brute_error) = mean_over_draws(np.asarray(one)), mean_over_draws(other)
        assert_close(found, np.hypot(error, brute_error), expected)


def test_forms_of_the_kernel_agree():
    """θ turns the examples of the dual form: what the kernel cannot reach of the labels depends on θ."""
    y = taught(LATE, 2)
    targets = [
        JointTarget.of(AttentionData.of(LATE, ONE_HEAD, X[:EXAMPLES], y, TEMPERATURE, "exact", "last", form))
        for form in ("pairs", "features", "dual")
    ]
    positions = targets[0].prior_draws(np.random.default_rng(0), 5)
    energies = [np.asarray(_energies(target, positions)) for target in targets]
    np.testing.assert_allclose(energies[1], energies[0], rtol=1e-9)
    np.testing.assert_allclose(energies[2], energies[0], rtol=1e-9)


def test_chains_without_tempering(posterior):
    other = sample(LATE, ONE_HEAD, taught(LATE, 2), method="nuts", form="dual")
    assert other.diagnostics.mixed and other.diagnostics.method == "nuts"
    one, other = (each.predict(X[EXAMPLES:]) for each in (posterior, other))
    assert_same_prediction(one, other.mean, other.variance, other.mean_error, other.variance_error)


def test_what_is_refused_and_what_is_warned_of():
    y = taught(TIED, 3)
    refused = {
        "^theory: got 'saddle'; expected": {"theory": "saddle"},
        "^method: got 'gibbs'": {"method": "gibbs"},
        "^target_acceptance: got 1": {"target_acceptance": 1},
        "^draws: got 0": {"draws": 0},
        "^temperature: got 0": {"temperature": 0},
    }
    for message, options in refused.items():
        with pytest.raises(InputError, match=message):
            sample(TIED, ONE_HEAD, y, **options)
    with pytest.warns(SamplingWarning, match="has not mixed"):
        sample(TIED, ONE_HEAD, y, theory="gaussian process", draws=40, warmup=10)

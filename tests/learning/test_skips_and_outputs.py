"""Several outputs and skips (learning §7, §8): against definitions, and against networks drawn from the prior."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import attention_problem, dense_action, dense_kernel, small_problem, whitened_vector

from thermoformer.learning import (
    Architecture,
    PathFeatures,
    Weights,
    choose_by_evidence,
    effective_path_weights,
    evidence_scores,
    forward,
    gaussian_predictor,
    gaussian_process,
    head_scores,
    order_parameter_from_weights,
    path_scores,
    prior_weights,
    solve,
)
from thermoformer.learning.action import Action
from thermoformer.learning.exact import prior_vectors
from thermoformer.learning.kernels import energy, prepare

NETWORKS = {
    "one output": Architecture((2, 3), (3, 4, 5), (0.7, 2.0, 0.5, 1.5)),
    "three outputs": Architecture((2, 3), (3, 4, 5), (0.7, 2.0, 0.5, 1.5), outputs=3),
    "skips": Architecture((2, 2), 6, (0.7, 2.0, 0.5, 1.5), skip=True),
    "skips, two outputs": Architecture((2, 1), 7, (0.7, 2.0, 0.5, 1.5), outputs=2, skip=True),
}


@pytest.mark.parametrize("readout", ["last", "first", "mean"])
@pytest.mark.parametrize("arch", NETWORKS.values(), ids=NETWORKS)
def test_the_network_is_a_sum_over_paths(arch, readout):
    x, attention, _ = attention_problem(arch)
    weights = prior_weights(arch, x.shape[2], key=1, draws=2)
    xi = PathFeatures.from_attention(x, attention, readout, skip=arch.skip).values
    vectors = np.asarray(effective_path_weights(arch, weights)).reshape(2, arch.outputs, arch.paths, -1)
    summed = np.einsum("zdan,zni,pai,a->zpd", vectors, weights.embedding, xi, arch.path_scales)
    summed = summed / np.sqrt(x.shape[2] * arch.widths[0])
    output = np.asarray(forward(arch, weights, x, attention, readout=readout)).reshape(summed.shape)
    np.testing.assert_allclose(output, summed, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("arch", NETWORKS.values(), ids=NETWORKS)
def test_prior_covariance_of_the_output_is_the_kernel_of_infinite_width(arch):
    """E[U] does not depend on the width, so the covariance of prior networks is the GP's kernel at every width."""
    x, attention, features = attention_problem(arch, examples=3)
    draws = 20_000
    weights = prior_weights(arch, x.shape[2], key=3, draws=draws)
    output = np.asarray(forward(arch, weights, x, attention)).reshape(draws, 3, arch.outputs)
    output = output.transpose(0, 2, 1).reshape(draws, -1)
    limit = gaussian_process(arch, features, np.zeros((3, arch.outputs)), temperature=1.0)
    products = output[:, :, None] * output[:, None, :]
    score = (products.mean(0) - limit.kernel(features)) / (products.std(0) / np.sqrt(draws))
    assert np.abs(score).max() < 4.5


# Widths under the number of vectors among them: the factors are trapezoids there.
CHAINS = {
    "wide": Architecture((2, 2), (6, 5, 7), (1.0, 0.5, 2.0, 1.5)),
    "narrow below": Architecture((2, 2), (3, 8, 2), (1.0, 0.5, 2.0, 1.5)),
    "one wide": Architecture((3, 2), (1, 1, 1)),
    "three layers": Architecture((2, 1, 2), (3, 2, 3, 2)),
    "outputs": Architecture((2,), (5, 4), outputs=3),
    "outputs, narrow": Architecture((2,), (4, 2), (1.0, 0.5, 2.0), outputs=3),
    "skips": Architecture((2, 1), 8, (1.0, 0.5, 2.0, 1.5), skip=True),
    "skips, narrow": Architecture((2, 2), 4, (1.0, 0.5, 2.0, 1.5), skip=True),
    "skips, one wide": Architecture((1, 1), 1, skip=True),
    "skips, outputs": Architecture((2,), 3, (1.0, 0.5, 2.0), outputs=2, skip=True),
}


@pytest.mark.parametrize("arch", CHAINS.values(), ids=CHAINS)
def test_bartlett_factors_have_the_law_of_the_weights(arch):
    """First and second moments of U^1: networks drawn from the prior against the chain of small matrices."""
    draws = 20_000
    vectors = np.asarray(effective_path_weights(arch, prior_weights(arch, 1, key=0, draws=draws)))
    vectors = vectors.reshape(draws, -1, arch.widths[0])
    sampled = vectors @ vectors.transpose(0, 2, 1) / arch.widths[0]
    action = Action.at_finite_width(arch, None, 1.0)
    whitened = prior_vectors(action.layout, action.setting, np.random.default_rng(1), draws)
    factors = np.asarray(jax.jit(jax.vmap(action.path_factor))(whitened))
    chain = factors @ factors.transpose(0, 2, 1)
    upper = np.triu_indices(sampled.shape[1])
    first, second = sampled[:, *upper], chain[:, *upper]
    # The tails of products of χ's are heavy: second moments are compared after a bounded function.
    for bend in (lambda u: u, lambda u: np.tanh(u) ** 2, lambda u: np.tanh(u[:, :1]) * np.tanh(u)):
        one, other = bend(first), bend(second)
        error = np.sqrt((one.var(0) + other.var(0)) / draws)
        score = (one.mean(0) - other.mean(0)) / np.where(error > 0, error, 1)
        assert np.abs(score).max() < 4.5


def test_the_prior_density_is_normalised():
    """∫ exp(log prior) over the vector of a chain of two numbers."""
    for width in (1, 3, 10):
        arch = Architecture((1,), (width, width + 2))
        log_prior = Action.at_finite_width(arch, None, 1.0).log_prior
        density = jax.jit(jax.vmap(log_prior))
        axis, zero = np.linspace(-14, 3, 3000), np.zeros(3000)
        along = [np.asarray(density(np.stack(points, axis=1))) for points in ((axis, zero), (zero, axis))]
        at_zero = float(log_prior(jnp.zeros(2)))
        for one, other in (along, along[::-1]):
            total = np.trapezoid(np.exp(one), axis) * np.trapezoid(np.exp(other - at_zero), axis)
            assert total == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("form", ["pairs", "features", "dual"])
@pytest.mark.parametrize("arch", NETWORKS.values(), ids=NETWORKS)
def test_energy_and_prediction_equal_their_definitions(arch, form):
    _, _, features = attention_problem(arch, examples=40)
    generator = np.random.default_rng(2)
    labels = generator.normal(size=(30, arch.outputs))
    root = generator.normal(size=(arch.order_sizes[0],) * 2)
    gram = root @ root.T / 10
    xi = np.asarray(features.values)
    whole = dense_kernel(arch, xi, gram)
    train = np.concatenate([np.arange(30) + 40 * output for output in range(arch.outputs)])
    test = np.concatenate([np.arange(30, 40) + 40 * output for output in range(arch.outputs)])
    covariance = whole[np.ix_(train, train)] + 0.3 * np.eye(len(train))
    flat = labels.T.ravel()
    solved = np.linalg.solve(covariance, flat)
    problem = prepare(arch, features[:30], labels, form)
    factor = np.linalg.cholesky(gram)
    expected = np.linalg.slogdet(covariance)[1] + flat @ solved
    assert float(jax.jit(energy)(problem, factor, 0.3)) == pytest.approx(expected, rel=1e-10)
    predictor = gaussian_predictor(arch, features[:30], labels, order_parameter=gram, temperature=0.3, form=form)
    cross = whole[np.ix_(train, test)]
    mean = (cross.T @ solved).reshape(arch.outputs, -1).T.squeeze()
    explained = np.einsum("ab,ab->b", cross, np.linalg.solve(covariance, cross))
    variance = (np.diagonal(whole)[test] - explained).reshape(arch.outputs, -1).T.squeeze()
    prediction = predictor.predict(features[30:])
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(prediction.variance, variance, rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(predictor.kernel(features), whole, rtol=1e-10, atol=1e-12)


def test_action_of_several_outputs_equals_its_definition():
    arch = NETWORKS["three outputs"].replace(widths=(9, 8, 7))
    _, _, features = attention_problem(arch, examples=12)
    labels = np.random.default_rng(0).normal(size=(12, 3))
    solution = solve(arch, features, labels, temperature=0.2)
    definition = dense_action(arch, np.asarray(features.values), labels, solution.order_parameters, 0.2)
    assert solution.action * max(arch.widths) == pytest.approx(definition, rel=1e-10)
    np.testing.assert_allclose(whitened_vector(arch, solution.order_parameters), solution.vector, atol=1e-9)


@pytest.mark.parametrize("arch", [NETWORKS["skips"], NETWORKS["skips, two outputs"]], ids=["skips", "and outputs"])
def test_the_saddle_with_skips_is_stationary_and_whitening_is_inverted(arch):
    _, _, features = attention_problem(arch, examples=12)
    labels = np.random.default_rng(0).normal(size=(12, arch.outputs))
    solution = solve(arch, features, labels, temperature=0.2)
    slope = jax.jit(jax.grad(Action.of(arch, solution.problem, 0.2)))(solution.vector)
    assert float(jnp.abs(slope).max()) < 1e-5
    np.testing.assert_allclose(whitened_vector(arch, solution.order_parameters), solution.vector, atol=1e-8)
    # Rows that skip layer 1 are the order parameter of the layer above.
    above = solution.order_parameters[1].shape[0] // arch.outputs
    rows = np.concatenate([np.arange(above) + output * arch.paths for output in range(arch.outputs)])
    inner = solution.order_parameter[np.ix_(rows, rows)]
    np.testing.assert_allclose(inner, solution.order_parameters[1], atol=1e-10)


@pytest.mark.parametrize("arch", [NETWORKS["three outputs"], NETWORKS["skips"]], ids=["outputs", "skips"])
def test_wide_networks_are_the_gaussian_process(arch):
    wide = arch.replace(widths=10**9)
    _, _, features = attention_problem(arch, examples=12)
    labels = np.random.default_rng(0).normal(size=(12, arch.outputs))
    solution = solve(wide, features, labels, temperature=0.2)
    limit = gaussian_process(wide, features, labels, temperature=0.2)
    np.testing.assert_allclose(solution.order_parameter, limit.order_parameter, atol=1e-6)
    assert solution.log_evidence == pytest.approx(limit.log_evidence, abs=1e-4)
    weights = prior_weights(arch.replace(widths=60), 1, key=0, draws=1000)
    sampled = np.asarray(order_parameter_from_weights(arch.replace(widths=60), weights))
    np.testing.assert_allclose(sampled, limit.order_parameter, atol=0.15)


def test_one_output_as_a_column_gives_the_same_numbers():
    arch, features, labels = small_problem((2, 2))
    plain = solve(arch, features, labels, temperature=0.1)
    column = solve(arch.replace(outputs=1), features, labels[:, None], temperature=0.1)
    np.testing.assert_allclose(column.order_parameter, plain.order_parameter, rtol=0, atol=1e-12)
    np.testing.assert_allclose(column.predict(features).mean, plain.predict(features).mean, rtol=0, atol=1e-12)
    assert column.action == pytest.approx(plain.action, rel=1e-12)


def test_the_general_kernel_of_outputs_at_one_output_equals_the_special_one():
    """Two outputs whose labels and U do not mix are two problems of one output, to rounding."""
    arch, features, labels = small_problem((2, 2))
    both = arch.replace(outputs=2)
    gram = solve(arch, features, labels, temperature=0.1).order_parameter
    stacked = np.kron(np.eye(2), gram)
    twice = np.stack([labels, -labels], axis=1)
    single = gaussian_predictor(arch, features, labels, order_parameter=gram, temperature=0.1)
    double = gaussian_predictor(both, features, twice, order_parameter=stacked, temperature=0.1)
    assert double.data_energy() == pytest.approx(2 * single.data_energy(), rel=1e-12)
    np.testing.assert_allclose(double.predict(features).mean[:, 1], -single.predict(features).mean, atol=1e-12)
    assert double.predict(features).accuracy(twice) == pytest.approx(single.predict(features).accuracy(labels))
    assert double.predict(features).accuracy((labels < 0).astype(int)) == double.predict(features).accuracy(twice)


def test_rotating_the_outputs_rotates_the_prediction():
    arch = NETWORKS["three outputs"].replace(widths=8, variances=1.0)
    _, _, features = attention_problem(arch, examples=12)
    labels = np.random.default_rng(0).normal(size=(12, 3))
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    plain = solve(arch, features, labels, temperature=0.2)
    turned = solve(arch, features, labels @ rotation, temperature=0.2)
    assert turned.action == pytest.approx(plain.action, rel=1e-8)
    mean = plain.predict(features).mean @ rotation
    np.testing.assert_allclose(turned.predict(features).mean, mean, atol=1e-5)


def test_scores_with_skips_and_outputs():
    arch = Architecture((1, 2), 10, skip=True)
    names = arch.path_names()
    assert names == ("skip→skip", "skip→0", "skip→1", "0→skip", "0→0", "0→1")
    weight = np.array([5.0, 1.0, 0.0, 2.0, 0.0, 0.0])
    scores = head_scores(arch, np.diag(weight), normalise=False)
    assert [scores[label] for label in scores.labels] == [2.0, 1.0, 0.0]
    doubled = arch.replace(outputs=2)
    twice = head_scores(doubled, np.kron(np.eye(2), np.diag(weight)), normalise=False)
    np.testing.assert_allclose(twice.values, 2 * scores.values)
    np.testing.assert_allclose(path_scores(doubled, np.kron(np.eye(2), np.diag(weight))), 2 * weight)


def test_evidence_with_skips():
    """A layer whose only head goes leaves the network without that layer; the informative head is the one missed."""
    arch = Architecture((1, 1), 10, skip=True)
    generator = np.random.default_rng(0)
    xi = generator.normal(size=(40, 4, 5))
    labels = np.sign(xi[:, 1, 0])  # the path skip→0: the head of layer 1 alone
    scores = evidence_scores(arch, PathFeatures.from_attentioned_inputs(xi), labels, temperature=0.1)
    assert scores.ascending()[-1] == (1, 0)
    choice = choose_by_evidence(arch, PathFeatures.from_attentioned_inputs(xi), labels)
    assert choice.architecture.skip and choice.architecture.variances[0] == 1.0
    start = solve(arch, PathFeatures.from_attentioned_inputs(xi), labels, temperature=0.1)
    assert choice.solution.log_evidence > start.log_evidence
    only = Architecture((1,), 10, skip=True)
    with pytest.raises(ValueError, match="arch: got one head in all; expected at least two heads"):
        evidence_scores(only, PathFeatures.from_attentioned_inputs(xi[:, :2]), labels, temperature=0.1)


def test_layer_norm_makes_every_token_of_unit_variance():
    arch = Architecture((1,), 6, skip=True)
    x, attention, _ = attention_problem(arch, examples=3)
    weights = prior_weights(arch, x.shape[2], key=0)
    scaled = Weights(10 * weights.embedding, tuple(0 * value for value in weights.values), weights.readout)
    plain = forward(arch, weights._replace(values=scaled.values), x, attention, layer_norm=True)
    # With nothing added, the norm hides the scale of the embedding.
    np.testing.assert_allclose(forward(arch, scaled, x, attention, layer_norm=True), plain, rtol=1e-9)
    assert not np.allclose(forward(arch, scaled, x, attention), forward(arch, weights, x, attention))


@pytest.mark.parametrize("layer_norm", ["pre", "rms", "post"])
def test_norms_act_where_they_are_said_to(layer_norm):
    """Token by token in NumPy."""
    arch = Architecture((2, 1), 6, skip=True)
    x, attention, _ = attention_problem(arch, examples=3)
    weights = prior_weights(arch, x.shape[2], key=0)

    def norm(z, place):
        if (place == "post") != (layer_norm == "post"):
            return z
        z = z - z.mean() * (layer_norm != "rms")
        return z / np.sqrt(np.mean(z**2))

    expected = []
    for example, tokens in enumerate(np.asarray(x)):
        z = [np.asarray(weights.embedding) @ token / np.sqrt(x.shape[2]) for token in tokens]
        for layer, values in zip(attention, map(np.asarray, weights.values), strict=True):
            seen = [norm(one, "pre") for one in z]
            for query in range(len(z)):
                for head, value in enumerate(values):
                    read = sum(share * one for share, one in zip(layer[example, head, query], seen, strict=True))
                    z[query] = z[query] + value @ np.asarray(read) / np.sqrt(len(values) * 6)
            z = [norm(one, "post") for one in z]
        expected.append(np.asarray(weights.readout) @ norm(z[-1], "pre") / np.sqrt(6))
    np.testing.assert_allclose(forward(arch, weights, x, attention, layer_norm=layer_norm), expected, rtol=1e-9)

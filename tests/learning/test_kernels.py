"""The three exact forms of the kernel against each other and against the definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import dense_kernel, small_problem

from thermoformer.learning import PathFeatures, gaussian_predictor
from thermoformer.learning.kernels import choose_form, energy, energy_derivatives, feature_basis, prepare, with_pairs

FORMS = ("pairs", "features", "dual")
value_and_gradient = jax.jit(jax.value_and_grad(energy, argnums=1))
value_of = jax.jit(energy)


def dense_energy(arch, xi, labels, factor, temperature):
    covariance = dense_kernel(arch, xi, factor @ factor.T) + temperature * np.eye(len(labels))
    return np.linalg.slogdet(covariance)[1] + labels @ np.linalg.solve(covariance, labels)


# examples, heads, token width, rank of the features
SHAPES = [
    (1, (1,), 1, 1),
    (4, (1,), 2, 1),
    (12, (2, 2), 8, 8),
    (40, (2, 2), 8, 3),
    (30, (3, 2), 4, 4),
    (25, (2, 1, 2), 12, 5),
]


@pytest.mark.parametrize(("examples", "heads", "token_width", "rank"), SHAPES)
@given(temperature=st.sampled_from([0.01, 0.3, 10.0]), seed=st.integers(0, 10**6))
@settings(max_examples=10)
def test_forms_agree_in_value_and_gradient(examples, heads, token_width, rank, temperature, seed):
    arch, features, labels = small_problem(heads, examples, token_width, seed, variances=0.7)
    generator = np.random.default_rng(seed + 1)
    # Features of a given rank, of unit size.
    span = np.linalg.qr(generator.normal(size=(token_width, rank)))[0]
    xi = np.asarray(features.values) @ span @ span.T
    xi /= np.sqrt(np.mean(xi**2))
    features = PathFeatures.from_attentioned_inputs(xi)
    factor = np.tril(generator.normal(size=(arch.paths, arch.paths)))
    values, gradients = [], []
    for form in FORMS:
        problem = prepare(arch, features, labels, form)
        value, gradient = value_and_gradient(problem, jnp.asarray(factor), temperature)
        values.append(float(value))
        gradients.append(np.asarray(gradient))
    expected = dense_energy(arch, xi, labels, factor, temperature)
    np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-10)
    scale = max(1.0, np.abs(gradients[0]).max())
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-10, atol=1e-10 * scale)
    np.testing.assert_allclose(gradients[2], gradients[0], rtol=1e-10, atol=1e-10 * scale)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("examples", [12, 60])
def test_gradient_is_that_of_the_definition(form, examples):
    arch, features, labels = small_problem((2, 2), examples, token_width=5)
    xi, factor = np.asarray(features.values), np.tril(np.random.default_rng(3).normal(size=(4, 4))) + np.eye(4)
    _, gradient = value_and_gradient(prepare(arch, features, labels, form), jnp.asarray(factor), 0.2)
    step = 1e-6
    for index in [(0, 0), (2, 1), (3, 3)]:
        moved = [factor.copy(), factor.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        slope = np.diff([dense_energy(arch, xi, labels, m, 0.2) for m in moved[::-1]])[0] / (2 * step)
        assert float(gradient[index]) == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_exact_hessian_equals_automatic_differentiation():
    arch, features, labels = small_problem((2, 2), 25, token_width=6)
    problem = prepare(arch, features, labels, "pairs")
    upper = np.triu_indices(4)

    def energy_of_entries(entries):
        gram = jnp.zeros((4, 4)).at[upper].set(entries)
        gram = gram + gram.T - jnp.diag(jnp.diagonal(gram))
        covariance = jnp.tensordot(gram[upper], problem.pairs, 1) + 0.3 * jnp.eye(25)
        return jnp.linalg.slogdet(covariance)[1] + problem.labels @ jnp.linalg.solve(covariance, problem.labels)

    factor = np.eye(4) + 0.1 * np.tril(np.ones((4, 4)))
    entries = (factor @ factor.T)[upper]
    value, gradient, hessian = jax.jit(energy_derivatives)(problem, factor, 0.3)
    expected, slope = jax.jit(jax.value_and_grad(energy_of_entries))(entries)
    assert float(value) == pytest.approx(float(expected), rel=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(hessian, jax.jit(jax.hessian(energy_of_entries))(entries), rtol=1e-8, atol=1e-8)


def test_rank_reduction_is_lossless_and_keeps_the_prior_variance():
    """The basis spans training features only; a test example outside it keeps its whole prior variance."""
    arch, _, labels = small_problem((2,), 20)
    generator = np.random.default_rng(0)
    xi = np.zeros((20, 2, 9))
    xi[:, :, :4] = generator.normal(size=(20, 2, 4))
    basis = feature_basis(jnp.asarray(xi))
    assert basis is not None and basis.shape == (9, 4)
    new = generator.normal(size=(7, 2, 9))
    gram = np.array([[2.0, 0.3], [0.3, 0.5]])
    for form in FORMS:
        fitted = gaussian_predictor(
            arch, PathFeatures.from_attentioned_inputs(xi), labels, order_parameter=gram, temperature=0.1, form=form
        )
        found = fitted.predict(PathFeatures.from_attentioned_inputs(new))
        covariance = dense_kernel(arch, xi, gram) + 0.1 * np.eye(20)
        cross = dense_kernel(arch, xi, gram, new)
        np.testing.assert_allclose(found.mean, cross.T @ np.linalg.solve(covariance, labels), atol=1e-12)
        variance = np.diag(dense_kernel(arch, new, gram)) - np.sum(cross * np.linalg.solve(covariance, cross), axis=0)
        np.testing.assert_allclose(found.variance, variance, atol=1e-12)


def test_more_features_than_rows_are_reduced_too():
    arch, _, _ = small_problem((2,), 3)
    xi = np.random.default_rng(0).normal(size=(3, 2, 50))
    basis = feature_basis(jnp.asarray(xi))
    assert basis is not None and basis.shape == (50, 6)
    factor = np.eye(2)
    problem = prepare(arch, PathFeatures.from_attentioned_inputs(xi), np.ones(3), "features")
    assert float(value_of(problem, jnp.asarray(factor), 0.1)) == pytest.approx(
        dense_energy(arch, xi, np.ones(3), factor, 0.1), rel=1e-12
    )


def test_the_dual_stays_accurate_at_small_temperature():
    """Woodbury's identity as usually written loses |y|²/τ · 1e-16 here; the rotation does not."""
    arch, features, _ = small_problem((1,), examples=200, token_width=3)
    labels = np.asarray(features.values)[:, 0] @ [1.0, -2.0, 0.5]  # labels that the kernel reaches exactly
    temperature = 1e-9
    value = float(value_of(prepare(arch, features, labels, "dual"), np.eye(1), temperature))
    spread, vectors = np.linalg.eigh(dense_kernel(arch, np.asarray(features.values), np.eye(1)))
    reach = slice(-3, None)
    exact = 197 * np.log(temperature) + np.log(spread[reach] + temperature).sum()
    exact += ((vectors[:, reach].T @ labels) ** 2 / (spread[reach] + temperature)).sum()
    assert value == pytest.approx(exact, rel=1e-12)


def test_pairs_can_be_added_to_any_form():
    arch, features, labels = small_problem((2, 2), 40, token_width=3)
    problem = prepare(arch, features, labels, "dual")
    both = with_pairs(problem)
    assert both.pairs is not None
    factor = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))
    assert float(value_of(both, factor, 0.1)) == pytest.approx(float(value_of(problem, factor, 0.1)), rel=1e-12)


def test_the_automatic_form_follows_cost_and_memory():
    assert choose_form(100, 4, 231) == "pairs"
    assert choose_form(600, 64, 192) == "features"
    assert choose_form(4000, 4, 231) == "dual"
    assert choose_form(20_000, 16, 5000) == "features"  # the pairs would take hundreds of gigabytes

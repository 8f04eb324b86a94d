"""The minimum of the action: identities, limits, symmetries, convergence."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
import scipy.optimize
from problems import dense_action, dense_kernel, small_problem, whitened_vector

from thermoformer.learning import (
    ConvergenceError,
    PathFeatures,
    gaussian_process,
    solve,
    solve_grid,
    whitened_hessian,
)
from thermoformer.learning.action import Action

CASES = [
    ((1,), 10, 1.0),
    ((3,), (9, 14), (1.0, 0.9, 1.4)),
    ((2, 2), 10, 1.0),
    ((3, 2), (20, 15, 30), (0.7, 1.5, 1.2, 0.6)),
    ((2, 1, 2), (5, 7, 11, 6), (1.0, 2.0, 0.5, 1.0, 3.0)),
]


@pytest.mark.parametrize(("heads", "widths", "variances"), CASES)
def test_action_equals_its_definition_in_raw_matrices(heads, widths, variances):
    arch, features, labels = small_problem(heads, widths=widths, variances=variances)
    solution = solve(arch, features, labels, temperature=0.1)
    raw = dense_action(arch, np.asarray(features.values), labels, solution.order_parameters, 0.1)
    assert solution.action * max(arch.widths) == pytest.approx(raw, rel=1e-11)
    assert solution.action == pytest.approx(solution.energy + solution.entropy, rel=1e-12)


@pytest.mark.parametrize(("heads", "widths", "variances"), CASES)
def test_whitening_is_inverted_exactly(heads, widths, variances):
    arch, features, labels = small_problem(heads, widths=widths, variances=variances)
    solution = solve(arch, features, labels, temperature=0.1)
    np.testing.assert_allclose(whitened_vector(arch, solution.order_parameters), solution.vector, atol=1e-10)


@pytest.mark.parametrize(("heads", "widths", "variances"), CASES)
def test_fixed_point_form_holds_at_the_minimum(heads, widths, variances):
    """(U¹)⁻¹ = (σ1² I⊗U²)⁻¹ + (1/N_1) ∂E/∂U¹, with ∂E/∂U from its own formula (learning §3)."""
    arch, features, labels = small_problem(heads, widths=widths, variances=variances)
    solution = solve(arch, features, labels, temperature=0.1, tolerance=1e-11)
    xi, gram = np.asarray(features.values), solution.order_parameter
    inverse = np.linalg.inv(dense_kernel(arch, xi, gram) + 0.1 * np.eye(len(labels)))
    alpha = inverse @ labels
    pair = np.einsum("man,vbn->abmv", xi, xi) * arch.variances[0] / xi.shape[2]
    slope = np.einsum("mv,abmv->ab", inverse - np.outer(alpha, alpha), pair) / arch.paths
    prior = np.kron(np.eye(arch.heads[0]), solution.order_parameters[1]) * arch.variances[1]
    right = np.linalg.inv(prior) + (slope + slope.T) / 2 / arch.widths[0]
    np.testing.assert_allclose(np.linalg.inv(gram), right, rtol=1e-7, atol=1e-8)


def test_no_nearby_matrices_have_a_lower_action():
    arch, features, labels = small_problem((2, 2))
    solution = solve(arch, features, labels, temperature=0.1)
    xi = np.asarray(features.values)
    least = dense_action(arch, xi, labels, solution.order_parameters, 0.1)
    generator = np.random.default_rng(0)
    for _ in range(50):
        moved = []
        for gram in solution.order_parameters:
            shake = np.eye(len(gram)) + 0.01 * generator.normal(size=gram.shape)
            moved.append(shake @ gram @ shake.T)
        assert dense_action(arch, xi, labels, moved, 0.1) > least


def test_one_head_is_a_scalar_problem():
    """L = 1, H = 1: two numbers, minimised by a general-purpose routine on the definition."""
    arch, features, labels = small_problem((1,), widths=(6, 9), variances=(1.0, 0.8, 1.3))
    xi = np.asarray(features.values)

    def raw(logs):
        return dense_action(arch, xi, labels, [np.exp([[logs[0]]]), np.exp([[logs[1]]])], 0.1)

    found = scipy.optimize.minimize(raw, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    solution = solve(arch, features, labels, temperature=0.1)
    mine = [math.log(float(gram[0, 0])) for gram in solution.order_parameters]
    np.testing.assert_allclose(mine, found.x, atol=1e-6)


def test_infinite_width_is_the_gaussian_process():
    arch, features, labels = small_problem((2, 2), widths=10**6, variances=(1.0, 0.5, 2.0, 1.5))
    solution = solve(arch, features, labels, temperature=0.1)
    limit = gaussian_process(arch, features, labels, temperature=0.1)
    np.testing.assert_allclose(limit.order_parameter, 1.5 * np.eye(4), atol=1e-14)
    np.testing.assert_allclose(solution.order_parameter, limit.order_parameter, atol=1e-3)
    assert solution.log_evidence == pytest.approx(limit.log_evidence, abs=1e-3)
    # The distance falls as 1/N.
    nearer = solve(arch.replace(widths=10**7), features, labels, temperature=0.1)
    ratio = np.abs(solution.order_parameter - limit.order_parameter).max()
    ratio /= np.abs(nearer.order_parameter - limit.order_parameter).max()
    assert ratio == pytest.approx(10, rel=1e-2)


def test_log_evidence_of_the_limit_is_the_marginal_likelihood():
    arch, features, labels = small_problem((2, 2))
    limit = gaussian_process(arch, features, labels, temperature=0.3)
    covariance = dense_kernel(arch, np.asarray(features.values), np.eye(4)) + 0.3 * np.eye(30)
    expected = -0.5 * (labels @ np.linalg.solve(covariance, labels) + np.linalg.slogdet(2 * np.pi * covariance)[1])
    assert limit.log_evidence == pytest.approx(expected, rel=1e-12)


def test_evidence_normalises_the_prior():
    """Where the labels say nothing (τ → ∞) the evidence is that of pure noise, whatever the head set."""
    for heads in ((1,), (2, 2), (2, 1, 2)):
        arch, features, labels = small_problem(heads, variances=0.6)
        solution = solve(arch, features, labels, temperature=1e9)
        noise = -0.5 * 30 * (math.log(2 * math.pi * 1e9) + 1e-9)
        assert solution.log_evidence == pytest.approx(noise, abs=1e-6)


def test_high_temperature_is_the_prior():
    arch, features, labels = small_problem((2, 2), variances=(1.0, 2.0, 1.0, 0.5))
    solution = solve(arch, features, labels, temperature=1e8)
    np.testing.assert_allclose(solution.order_parameter, np.eye(4), atol=1e-5)


def test_permuting_heads_permutes_the_order_parameter():
    arch, features, labels = small_problem((3, 2))
    order = [4, 5, 0, 1, 2, 3]  # the three heads of layer 1 in turn
    solution = solve(arch, features, labels, temperature=0.1)
    exchanged = solve(arch, features.select(order), labels, temperature=0.1)
    np.testing.assert_allclose(exchanged.order_parameter, solution.order_parameter[np.ix_(order, order)], atol=1e-7)
    assert exchanged.action == pytest.approx(solution.action, rel=1e-10)


def test_only_the_product_of_variances_enters_the_predictor():
    arch, features, labels = small_problem((2, 2))
    other = arch.replace(variances=(4.0, 0.5, 0.25, 2.0))
    one, two = (solve(a, features, labels, temperature=0.1) for a in (arch, other))
    np.testing.assert_allclose(two.order_parameter, one.order_parameter / 4, atol=1e-8)
    np.testing.assert_allclose(two.predict(features).mean, one.predict(features).mean, atol=1e-8)
    assert two.log_evidence == pytest.approx(one.log_evidence, rel=1e-10)


def test_rotating_features_changes_nothing():
    arch, features, labels = small_problem((2, 2))
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(8, 8)))[0]
    turned = PathFeatures.from_attentioned_inputs(np.asarray(features.values) @ rotation)
    one, two = (solve(arch, f, labels, temperature=0.1) for f in (features, turned))
    np.testing.assert_allclose(two.order_parameter, one.order_parameter, atol=1e-8)


@pytest.mark.parametrize("form", ["pairs", "features", "dual"])
def test_forms_and_methods_find_the_same_minimum(form):
    arch, features, labels = small_problem((2, 2), token_width=6)
    expected = solve(arch, features, labels, temperature=0.1, form="pairs", method="newton")
    found = solve(arch, features, labels, temperature=0.1, form=form, method="limited-memory")
    np.testing.assert_allclose(found.order_parameter, expected.order_parameter, rtol=1e-5, atol=1e-6)
    assert found.action == pytest.approx(expected.action, rel=1e-12)
    assert found.stats.method == "limited-memory" and found.stats.form == form


def test_temperature_zero_interpolates():
    arch, features, labels = small_problem((2, 2), examples=20, token_width=8)
    solution = solve(arch, features, labels, temperature=0)
    np.testing.assert_allclose(solution.predict(features).mean, labels, atol=1e-9)
    np.testing.assert_allclose(solution.predict(features).variance, 0, atol=1e-9)


WIDTHS = (1, 3, 10, 100, 10**4, 10**6)
TEMPERATURES = (1e-6, 1e-3, 0.1, 10.0)


@pytest.mark.parametrize(
    ("heads", "token_width", "examples"), [((2, 2), 40, 100), ((2, 2), 3, 100), ((2, 2, 2), 6, 100), ((6,), 5, 100)]
)
def test_converges_over_widths_and_temperatures(heads, token_width, examples):
    """N from 1 to 10⁶, τ from 1e-6 to 10, P/N from 1e-4 to 100, from the Gaussian-process start."""
    arch, features, labels = small_problem(heads, examples, token_width)
    grid = solve_grid(arch, features, labels, widths=WIDTHS, temperatures=TEMPERATURES)
    assert grid.converged.all()
    assert all(solution.stats.smallest_curvature > 0 for row in grid.solutions for solution in row)


def test_many_paths_converge_where_it_is_hard():
    """20 paths, fewer units than paths, small τ: limited-memory BFGS gives up and Newton's method finishes."""
    arch, features, labels = small_problem((5, 4), examples=40, token_width=4, widths=2)
    for temperature, max_steps in ((1e-3, 80), (1e-6, 1000)):
        setting = {"temperature": temperature, "max_steps": max_steps}
        assert not solve(arch, features, labels, method="limited-memory", throw=False, **setting).converged
        solution = solve(arch, features, labels, **setting)
        assert solution.stats.method == "limited-memory, then newton"
        assert solution.converged and solution.stats.smallest_curvature > 0


def test_grid_equals_single_solutions_and_batches():
    arch, features, labels = small_problem((2, 2))
    widths, temperatures = (5, (5, 10, 20), 100), (0.01, 1.0)
    # Searches from different starts: they end within the tolerance of each other.
    axes = {"widths": widths, "temperatures": temperatures, "tolerance": 1e-12}
    grid = solve_grid(arch, features, labels, **axes)
    side_by_side = solve_grid(arch, features, labels, **axes, batch=4)
    for i, width in enumerate(widths):
        for j, temperature in enumerate(temperatures):
            alone = solve(arch.replace(widths=width), features, labels, temperature=temperature, tolerance=1e-12)
            at = grid.at(width=width, temperature=temperature)
            np.testing.assert_allclose(at.order_parameter, alone.order_parameter, rtol=1e-9, atol=1e-10)
            np.testing.assert_allclose(side_by_side.order_parameter[i, j], alone.order_parameter, rtol=1e-9, atol=1e-10)
            assert grid.log_evidence[i, j] == pytest.approx(alone.log_evidence, rel=1e-12)
    assert grid.to_xarray().sizes == {"width": 3, "temperature": 2, "path": 4, "path_other": 4}


def test_whitened_hessian_in_both_forms():
    arch, features, labels = small_problem((2, 2), token_width=6)
    hessians = []
    for form in ("pairs", "features"):
        solution = solve(arch, features, labels, temperature=0.1, form=form, tolerance=1e-9)
        hessians.append(whitened_hessian(solution))
    np.testing.assert_allclose(hessians[0], hessians[1], atol=1e-6)
    action = Action.of(arch, solution.problem, 0.1)
    exact = jax.jit(jax.hessian(lambda vector: action(vector) / 40))(solution.vector)
    np.testing.assert_allclose(hessians[1], exact, atol=1e-9)


def test_non_convergence_is_reported():
    arch, features, labels = small_problem((2, 2))
    with pytest.raises(ConvergenceError, match="after 2 evaluations the gradient is .*, not under the tolerance"):
        solve(arch, features, labels, temperature=0.1, max_steps=2)
    unfinished = solve(arch, features, labels, temperature=0.1, max_steps=2, throw=False)
    assert not unfinished.converged and unfinished.stats.gradient_norm > 1e-8
    with pytest.raises(ConvergenceError, match=r"2 of 2 points: \(widths \(10, 10, 10\), temperature 0.1\)"):
        solve_grid(arch, features, labels, widths=[10, 20], temperatures=0.1, max_steps=2)


def test_a_singular_kernel_is_reported():
    arch, _, _ = small_problem((2, 2))
    features = PathFeatures.from_attentioned_inputs(np.ones((30, 4, 8)))  # thirty times the same example
    with pytest.raises(ConvergenceError, match="the kernel is singular to rounding at temperature 0"):
        solve(arch, features, np.ones(30), temperature=0)


def test_to_xarray_names_the_paths():
    arch, features, labels = small_problem((2, 2))
    dataset = solve(arch, features, labels, temperature=0.1).to_xarray()
    assert list(dataset["path"].values) == ["0→0", "0→1", "1→0", "1→1"]
    assert dataset["order_parameter_2"].shape == (2, 2)


def test_least_entropy_is_the_entropy_of_the_limit():
    arch, features, labels = small_problem((3, 2), variances=(0.7, 1.5, 1.2, 0.6), widths=(20, 15, 30))
    limit = gaussian_process(arch, features, labels, temperature=0.1)
    assert limit.entropy * 30 == pytest.approx(float(Action.of(arch, limit.problem, 0.1).least_entropy()), rel=1e-13)


def test_continued_is_solve_on_the_same_data():
    arch, features, labels = small_problem((2, 2))
    near = solve(arch.replace(widths=12), features, labels, temperature=0.1)
    found, alone = near.continued(widths=10, temperature=0.2), solve(arch, features, labels, temperature=0.2)
    assert found.converged and found.architecture == arch and found.temperature == 0.2
    np.testing.assert_allclose(found.order_parameter, alone.order_parameter, atol=1e-7)
    assert near.continued().stats.evaluations == 1
    assert not near.continued(widths=2, max_steps=1).converged
    with pytest.raises(ValueError, match="method: got 'adam'; expected one of 'auto', 'newton'"):
        near.continued(method="adam")


@pytest.mark.parametrize("method", ["newton", "limited-memory"])
def test_near_and_far_starts_lead_to_the_minimum(method):
    arch, features, labels = small_problem((2, 2))
    start = solve(arch.replace(widths=400), features, labels, temperature=0.1, method=method)
    for width, temperature, variance in ((380, 0.1, 1.0), (400, 0.09, 1.1), (4, 0.01, 1.0)):
        changed = arch.replace(widths=width, variances=variance)
        given = {"temperature": temperature, "method": method, "tolerance": 1e-7}
        cold, warm = (solve(changed, features, labels, start=one, **given) for one in (None, start))
        np.testing.assert_allclose(warm.order_parameter, cold.order_parameter, atol=1e-6 * variance)
        assert width == 4 or warm.stats.evaluations <= cold.stats.evaluations / (2 if method == "newton" else 1)


@pytest.mark.parametrize("first", ["newton", "limited-memory"])
def test_a_start_may_come_from_the_other_minimiser_and_hold_numpy_arrays(first):
    arch, features, labels = small_problem()
    start = solve(arch, features, labels, temperature=0.1, method=first)
    copied = jax.tree.map(lambda leaf: np.asarray(leaf) if hasattr(leaf, "ndim") else leaf, start)
    for method in ("newton", "limited-memory"):
        found = solve(arch, features, labels, temperature=0.1, method=method, start=copied)
        np.testing.assert_allclose(found.order_parameter, start.order_parameter, atol=1e-6)


def test_a_start_lends_its_data_only_if_they_are_the_same():
    arch, features, labels = small_problem((2, 2))
    start = solve(arch, features, labels, temperature=0.1)
    assert solve(arch, features, labels.copy(), temperature=0.2, start=start).problem is start.problem
    others = PathFeatures.from_attentioned_inputs(2 * features.values)
    labels[0] *= -1
    changed = {"labels": (arch, features, labels), "features": (arch, others, labels)}
    changed["variance"] = (arch.replace(variances=2.0), features, labels)
    for given in changed.values():
        cold, warm = (solve(*given, temperature=0.2, start=one) for one in (None, start))
        np.testing.assert_allclose(warm.order_parameter, cold.order_parameter, atol=1e-6)
        assert warm.problem is not start.problem

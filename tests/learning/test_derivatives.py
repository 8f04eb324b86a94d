"""jit, vmap and derivatives through the public functions, against finite differences and loops."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import small_problem

from thermoformer.learning import (
    Architecture,
    PathFeatures,
    attention_from_logits,
    bilinear_attention,
    gaussian_predictor,
    gaussian_process,
    head_scores,
    one_loop,
    path_scores,
    query_key_attention,
    solve,
    uniform_attention,
)

NETWORKS = {
    "plain": Architecture((2, 2), 8, (0.8, 1.2, 0.9, 1.1)),
    "skips": Architecture((1, 1), 8, (0.8, 1.2, 0.9, 1.1), skip=True),
    "outputs": Architecture((2,), 8, (0.8, 1.2, 0.9), outputs=2),
}
# (network, form): the dual form is that of more examples than features of all paths.
CASES = [("plain", "pairs"), ("plain", "features"), ("plain", "dual"), ("skips", "pairs"), ("outputs", "features")]


def problem_of(arch: Architecture, form: str, seed: int = 0) -> dict[str, np.ndarray]:
    """What a solution depends on, all of it as numbers that can change.

    All are NumPy arrays, also the single numbers: a Python number has another type in JAX and needs another program.
    """
    generator = np.random.default_rng(seed)
    examples, width = (30, 3) if form == "dual" else (14, 6)
    return {
        "temperature": np.asarray(0.3),
        "variances": np.asarray(arch.variances),
        "labels": generator.normal(size=(examples, arch.outputs)),
        "tokens": generator.normal(size=(examples + 4, 5, width)),
        "logits": generator.normal(size=(len(arch.heads), examples + 4, max(arch.heads), 5, 5)),
    }


def numbers_of(arch: Architecture, form: str, given: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Evidence, order parameter, predictions and contributions of paths, all from public functions."""
    attention = [
        attention_from_logits(layer[:, :heads]) for layer, heads in zip(given["logits"], arch.heads, strict=True)
    ]
    features = PathFeatures.from_attention(given["tokens"], attention, skip=arch.skip)
    training = len(given["labels"])
    labels = given["labels"] if arch.outputs > 1 else given["labels"][:, 0]
    network = arch.replace(variances=tuple(given["variances"]))
    solution = solve(network, features[:training], labels, temperature=given["temperature"], form=form, tolerance=1e-13)
    prediction = solution.predict(features[training:])
    return {
        "evidence": solution.log_evidence,
        "energy": solution.energy,
        "order parameter": solution.order_parameter,
        "mean": prediction.mean,
        "variance": prediction.variance,
        "paths": solution.path_contributions(features[training:]),
    }


@cache
def pushed(name: str, form: str):
    """A compiled function: (given, direction) → the numbers and their derivatives along the direction."""
    arch = NETWORKS[name]
    return jax.jit(lambda given, direction: jax.jvp(lambda at: numbers_of(arch, form, at), (given,), (direction,)))


def slope(function, given, direction, step: float = 1e-3):
    """The derivative along a direction by central differences of fourth order."""

    def at(size: float):
        moved = jax.tree.map(lambda one, other: np.asarray(one + size * other), given, direction)
        return jax.tree.map(np.asarray, function(moved))

    ends = [at(size * step) for size in (-2, -1, 1, 2)]
    return jax.tree.map(lambda a, b, c, d: (a - 8 * b + 8 * c - d) / (12 * step), *ends)


@pytest.mark.parametrize(("name", "form"), CASES, ids=[" ".join(case) for case in CASES])
def test_derivatives_against_finite_differences(name, form):
    arch = NETWORKS[name]
    given, generator, push = problem_of(arch, form), np.random.default_rng(1), pushed(name, form)
    for changed in given:
        direction = jax.tree.map(np.zeros_like, given)
        size = 0.1 if changed in ("temperature", "variances") else 1.0
        direction[changed] = np.asarray(size * generator.normal(size=given[changed].shape))
        found = push(given, direction)[1]
        expected = slope(lambda at, direction=direction: push(at, direction)[0], given, direction)
        for part, value in found.items():
            size = np.abs(expected[part]).max()
            assert size > 1e-6, part
            np.testing.assert_allclose(value, expected[part], atol=1e-6 * size, rtol=0, err_msg=f"{part}, {changed}")


@pytest.mark.parametrize("form", ["pairs", "features"])
def test_reverse_mode_is_forward_mode(form):
    """Of one number with respect to everything at once, which is what an optimiser asks for."""
    arch = NETWORKS["plain"]
    given = problem_of(arch, form)

    def score(given):
        found = numbers_of(arch, form, given)
        return found["evidence"] + jnp.sum(found["mean"] ** 2) + jnp.sum(found["order parameter"])

    backwards = jax.jit(jax.grad(score))(given)
    direction = jax.tree.map(lambda leaf: np.cos(np.arange(leaf.size, dtype=float)).reshape(leaf.shape), given)
    found, change = jax.tree.map(np.asarray, pushed("plain", form)(given, direction))
    along = change["evidence"] + np.sum(2 * found["mean"] * change["mean"]) + np.sum(change["order parameter"])
    products = jax.tree.map(lambda one, other: np.sum(np.asarray(one) * other), backwards, direction)
    assert float(sum(products.values())) == pytest.approx(float(along), rel=1e-9)


def test_second_derivative_of_the_evidence():
    arch, features, labels = small_problem((2, 2))

    def evidence(temperature):
        return solve(arch, features, labels, temperature=temperature, tolerance=1e-13).log_evidence

    # One program for both: the first derivative and the derivative of that.
    both = jax.jit(jax.value_and_grad(jax.grad(evidence)))
    expected = slope(lambda temperature: both(temperature)[0], np.asarray(0.1), np.asarray(1.0))
    assert float(both(np.asarray(0.1))[1]) == pytest.approx(float(expected), rel=1e-7)


def test_derivatives_of_the_correction_and_of_the_limit():
    arch, features, labels = small_problem((2,), examples=12, token_width=4)

    def numbers(temperature):
        corrected = one_loop(solve(arch, features, labels, temperature=temperature, tolerance=1e-13))
        limit = gaussian_process(arch, features, labels, temperature=temperature)
        fixed = gaussian_predictor(
            arch, features, labels, order_parameter=corrected.saddle.order_parameter, temperature=temperature
        )
        predictions = [one.predict(features) for one in (corrected, limit, fixed)]
        return [
            corrected.log_evidence,
            corrected.order_parameter,
            corrected.path_contributions(features),
            limit.log_evidence,
            [(one.mean, one.variance) for one in predictions],
        ]

    # One program for both: the numbers, and their derivatives.
    both = jax.jit(lambda temperature: jax.jvp(numbers, (temperature,), (jnp.ones_like(temperature),)))
    found = both(np.asarray(0.2))[1]
    expected = slope(lambda temperature: both(temperature)[0], np.asarray(0.2), np.asarray(1.0))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6 * np.abs(other).max(), rtol=0)


def test_vmap_is_a_loop_and_solutions_go_through_it_and_jit():
    """A vmap inside jit is that of `solve_grid` with batches, which `test_saddle` compares with single solutions."""
    arch, features, labels = small_problem((2, 2))
    temperatures = np.array([0.05, 0.1, 0.4])
    flipped = np.stack([labels, -labels, np.roll(labels, 3)])

    def solved(temperature, labels):
        return solve(arch, features, labels, temperature=temperature, tolerance=1e-12)

    together = jax.vmap(solved)(temperatures, flipped)
    assert together.order_parameter.shape == (3, 4, 4) and together.converged.all()
    means = jax.jit(jax.vmap(lambda solution: solution.predict(features).mean))(together)
    for index, (temperature, y) in enumerate(zip(temperatures, flipped, strict=True)):
        alone = solved(float(temperature), y)
        for one, other in (
            (together.log_evidence, alone.log_evidence),
            (together.order_parameter, alone.order_parameter),
            (means, alone.predict(features).mean),
        ):
            np.testing.assert_allclose(one[index], other, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(together.vector[index], alone.vector, atol=1e-9)
    compiled = jax.jit(lambda solution, features: solution.predict(features).mean)(alone, features)
    np.testing.assert_allclose(compiled, alone.predict(features).mean, rtol=1e-12)


def test_attention_and_scores_are_traced():
    generator = np.random.default_rng(0)
    x, weights = generator.normal(size=(3, 4, 5)), generator.normal(size=(2, 5, 5))
    queries, keys = generator.normal(size=(2, 2, 3, 5))
    np.testing.assert_allclose(
        jax.jit(bilinear_attention)(x, weights), bilinear_attention(x, weights), rtol=1e-12, atol=1e-15
    )
    np.testing.assert_allclose(
        jax.jit(query_key_attention)(x, queries, keys), query_key_attention(x, queries, keys), rtol=1e-12, atol=1e-15
    )
    assert jax.vmap(uniform_attention)(x[:, None]).shape == (3, 1, 1, 4, 4)
    arch = Architecture((2,), 10)
    gram = np.array([[2.0, 0.5], [0.5, 1.0]])
    np.testing.assert_allclose(
        jax.jit(lambda u: head_scores(arch, u).values)(gram), head_scores(arch, gram).values, rtol=1e-14
    )
    np.testing.assert_allclose(jax.jit(lambda u: path_scores(arch, u))(gram), path_scores(arch, gram), rtol=1e-14)


def test_bad_shapes_are_refused_while_traced():
    arch, features, labels = small_problem((2, 2))
    with pytest.raises(ValueError, match="labels: got 29 labels; expected 30, one per example"):
        jax.jit(lambda y: solve(arch, features, y, temperature=0.1).log_evidence)(labels[1:])
    with pytest.raises(ValueError, match=r"temperature: got shape \(2,\); expected one number"):
        jax.jit(lambda t: solve(arch, features, labels, temperature=t).log_evidence)(np.ones(2))


def test_a_solution_to_start_from():
    arch, features, labels = small_problem((2, 2))
    near = solve(arch.replace(widths=12), features, labels, temperature=0.1)
    cold, warm = (solve(arch, features, labels, temperature=0.1, start=start) for start in (None, near))
    np.testing.assert_allclose(warm.order_parameter, cold.order_parameter, atol=1e-7)
    assert warm.stats.evaluations < cold.stats.evaluations
    again = solve(arch, features, labels, temperature=0.1, start=cold)
    assert again.stats.evaluations == 1
    with pytest.raises(ValueError, match="start: got an array of shape .*; expected a Solution"):
        solve(arch, features, labels, temperature=0.1, start=cold.vector)
    other, more, y = small_problem((3,))
    with pytest.raises(ValueError, match="start: got a solution of .*; expected one with the heads, outputs and skips"):
        solve(other, more, y, temperature=0.1, start=cold)

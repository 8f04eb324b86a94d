"""What paths, heads, examples and labels do to a prediction: against definitions, and by leaving things out."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from problems import attention_problem, dense_kernel, small_problem

from thermoformer.learning import (
    Architecture,
    gaussian_process,
    influence,
    sample_order_parameters,
    sample_weights,
    solve,
)

TRAINING, NEW, TEMPERATURE = 20, 6, 0.3


def problem_of(arch: Architecture, training: int = TRAINING, token_width: int = 8):
    x, attention, features = attention_problem(arch, examples=training + NEW, token_width=token_width, tokens=3)
    labels = np.random.default_rng(3).normal(size=(training, arch.outputs))
    return x, attention, features, labels if arch.outputs > 1 else labels[:, 0]


def contributions(arch: Architecture, features, labels, order_parameter) -> np.ndarray:
    """c_π(x) as the mean with U's rows of one path alone, in NumPy: [example, path] (and output)."""
    xi, count, flat = np.asarray(features.values), len(labels), labels.reshape(len(labels), -1).T.ravel()
    whole = dense_kernel(arch, xi[:count], order_parameter) + TEMPERATURE * np.eye(len(flat))
    solved = np.linalg.solve(whole, flat)
    parts = []
    for path in range(arch.paths):
        one = order_parameter.reshape(arch.outputs, arch.paths, -1).copy()
        one[:, np.arange(arch.paths) != path] = 0
        cross = dense_kernel(arch, xi[count:], one.reshape(order_parameter.shape), xi[:count])
        parts.append((cross @ solved).reshape(arch.outputs, -1).T)
    return np.stack(parts, axis=1) if arch.outputs > 1 else np.stack(parts, axis=1)[:, :, 0]


NETWORKS = {
    "plain": Architecture((2, 2), 8),
    "skips": Architecture((1, 1), 8, skip=True),
    "outputs": Architecture((2,), 8, outputs=2),
}


@cache
def solved(name: str, form: str):
    """Features, labels and the saddle of a network."""
    arch = NETWORKS[name]
    _, _, features, labels = problem_of(arch)
    if form == "dual" and arch.paths * 8 >= TRAINING:  # more examples than features of all paths
        features = type(features).from_attentioned_inputs(np.asarray(features.values)[:, :, :4])
    return features, labels, solve(arch, features[:TRAINING], labels, temperature=TEMPERATURE, form=form)


@pytest.mark.parametrize(
    ("name", "form"),
    [("plain", "pairs"), ("skips", "features"), ("skips", "dual"), ("outputs", "pairs"), ("outputs", "dual")],
    ids=["plain pairs", "skips features", "skips dual", "outputs pairs", "outputs dual"],
)
def test_contributions_of_a_saddle_equal_their_definition(name, form):
    arch, (features, labels, solution) = NETWORKS[name], solved(name, form)
    assert (solution.problem.null_directions > 0) == (form == "dual")
    found = solution.path_contributions(features[TRAINING:])
    expected = contributions(arch, features, labels, solution.order_parameter)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.sum(axis=1), solution.predict(features[TRAINING:]).mean, rtol=1e-9, atol=1e-11)


# Network, sizes and draws are those of a case of test_brute_force, whose compiled samplers serve here too.
THREE_OUTPUTS = Architecture((2,), (6, 5), (1.0, 0.7, 1.5), outputs=3)


@pytest.fixture(scope="module")
def corrected():
    _, _, features, labels = problem_of(THREE_OUTPUTS, 10, 4)
    return solve(THREE_OUTPUTS, features[:10], labels, temperature=TEMPERATURE, correction="one-loop")


def test_contributions_of_all_results_sum_to_their_mean(corrected):
    arch = THREE_OUTPUTS
    x, attention, features, labels = problem_of(arch, 10, 4)
    given = (arch, features[:10], labels)
    new = features[10:]
    saddle = solve(*given, temperature=TEMPERATURE)
    exact = sample_order_parameters(*given, temperature=TEMPERATURE, key=0)
    layers = [layer[:10] for layer in attention]
    chains = {"key": 1, "method": "gibbs", "draws": 6000, "warmup": 200}
    sampled = sample_weights(arch, x[:10], layers, labels, temperature=TEMPERATURE, **chains)
    for result in (gaussian_process(*given, temperature=TEMPERATURE), saddle, corrected, exact, sampled):
        parts = result.path_contributions(new)
        assert parts.shape == (6, 2, *labels.shape[1:])
        np.testing.assert_allclose(parts.sum(axis=1), result.predict(new).mean, rtol=1e-9, atol=1e-10)
    # Of the exact posterior: the mean over draws of what each U gives, here of all of them one by one.
    grams = exact.draws["posterior"]["order_parameter"].values[:, ::40].reshape(-1, *saddle.order_parameter.shape)
    every = np.stack([contributions(arch, features, labels, gram) for gram in grams])
    error = every.std(axis=0) / np.sqrt(len(grams))
    assert (np.abs(every.mean(axis=0) - exact.path_contributions(new)) < 4.5 * error).all()
    # Sampled networks share no formula with the theory past prior and likelihood.
    apart = np.abs(sampled.path_contributions(new) - exact.path_contributions(new))
    assert apart.max() < 0.1 * np.abs(exact.path_contributions(new)).max()


@pytest.mark.parametrize(
    ("name", "width", "form"),
    [("plain", 10, "features"), ("outputs", 8, "pairs"), ("skips", 20, "pairs")],
    ids=["plain", "outputs", "skips"],
)
def test_influence_by_leaving_out_and_solving_again(name, width, form):
    arch = NETWORKS[name].replace(widths=width)
    _, _, features, labels = problem_of(arch)
    settings = {"temperature": TEMPERATURE, "form": form, "tolerance": 1e-12}
    new = features[TRAINING:]
    solution = solve(arch, features[:TRAINING], labels, **settings)
    found, mean = influence(solution, new), solution.predict(new).mean
    for example in (0, 7, 13):
        # An example without features and with label zero says nothing: leaving it out gives the same numbers.
        silent, others = np.array(features.values)[:TRAINING], labels.copy()
        silent[example], others[example] = 0, 0
        silenced = type(features).from_attentioned_inputs(silent)
        change = solve(arch, silenced, others, **settings).predict(new).mean - mean
        if name == "plain":
            kept = np.delete(np.arange(TRAINING), example)
            without = solve(arch, features[kept], labels[kept], **settings).predict(new).mean
            np.testing.assert_allclose(change, without - mean, rtol=0, atol=1e-9)
        # One step of Newton's method: U without an example is not quite where the step leads.
        assert np.abs(found.examples[..., example] - change).max() < 0.05 * np.abs(change).max()
        moved = []
        for sign in (1, -1):
            shifted = labels.copy()
            shifted[example] += sign * 1e-5
            moved.append(solve(arch, features[:TRAINING], shifted, **settings).predict(new).mean)
        slope = found.labels[..., example] if arch.outputs == 1 else found.labels[:, :, example].sum(axis=-1)
        np.testing.assert_allclose(slope, (moved[0] - moved[1]) / 2e-5, atol=1e-7)
    parts = solution.path_contributions(new)
    np.testing.assert_array_equal(found.paths, -parts if arch.outputs == 1 else -parts.transpose(0, 2, 1))
    uses = arch.path_heads()[:, 0] == 0
    np.testing.assert_allclose(found.heads[..., 0], found.paths[..., uses].sum(axis=-1), atol=1e-14)
    assert found.to_xarray()["heads"].sizes["head"] == sum(arch.heads)


def test_influence_in_the_limit_is_exact():
    """U is fixed there: leaving out changes nothing else."""
    arch, features, labels = small_problem((2, 2))
    limit = gaussian_process(arch, features[:20], labels[:20], temperature=0.1)
    new = features[20:26]
    found, mean = influence(limit, new), limit.predict(new).mean
    kept = np.delete(np.arange(20), 4)
    without = gaussian_process(arch, features[kept], labels[kept], temperature=0.1).predict(new).mean
    np.testing.assert_allclose(found.examples[:, 4], without - mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.labels @ labels[:20], mean, rtol=1e-9, atol=1e-11)


def test_bad_input(corrected):
    features, _, dual = solved("outputs", "dual")
    with pytest.raises(ValueError, match="solution: got a CorrectedSolution; expected a solution of solve"):
        influence(corrected, features)
    with pytest.raises(ValueError, match="solution: got one in the dual form; expected a solution of solve"):
        influence(dual, features)
    with pytest.raises(ValueError, match="features: got 2 paths of token width 3; expected 2 paths of token width 8"):
        dual.path_contributions(type(features).from_attentioned_inputs(np.ones((5, 2, 3))))

"""Results without some of their heads, and scores by what that loses (trained networks §1, §2)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from problems import attention_problem

from thermoformer.learning import (
    Architecture,
    PathFeatures,
    accuracies_without,
    gaussian_process,
    head_scores,
    solve,
    without_heads,
)

TRAINING, TEMPERATURE = 20, 0.3
NETWORKS = {
    "plain": (Architecture((2, 2), 8, variances=(1.5, 1.0, 0.5, 1.0)), [(0, 1)]),
    "skips": (Architecture((2, 1), 8, skip=True), [(0, 0)]),
    "outputs": (Architecture((3,), 8, outputs=2), [(0, 0), (0, 2)]),
}


@cache
def solved(name: str):
    arch, _ = NETWORKS[name]
    _, _, features = attention_problem(arch, examples=TRAINING + 10, token_width=6, tokens=3)
    labels = np.random.default_rng(3).normal(size=(TRAINING + 10, arch.outputs))
    labels = labels if arch.outputs > 1 else np.sign(labels[:, 0])
    return features, labels, solve(arch, features[:TRAINING], labels[:TRAINING], temperature=TEMPERATURE)


def factor_of(arch: Architecture, row: np.ndarray, gone: list[tuple[int, int]]) -> float:
    """The factor of a path, straight from the division of each layer by the root of the heads it has."""
    factor = 1.0
    for layer, head in enumerate(row):
        if (layer, head) in gone:
            return 0.0
        if head >= 0:
            left = arch.heads[layer] - sum(at == layer for at, _ in gone)
            factor *= np.sqrt(arch.heads[layer] / left)
    return factor


@pytest.mark.parametrize("name", NETWORKS)
def test_a_prediction_without_heads_is_that_of_the_weights_left(name):
    """Bayesian regression in the space of all readouts, in NumPy: w ~ N(0, s U ⊗ I), then the paths that are left."""
    arch, gone = NETWORKS[name]
    features, labels, solution = solved(name)
    xi = np.asarray(features.values)
    hops = [np.prod([1 / np.sqrt(arch.heads[k]) for k, h in enumerate(row) if h >= 0]) for row in arch.path_heads()]
    scaled = xi * np.array(hops)[None, :, None] * np.sqrt(arch.variances[0] / xi.shape[2])
    width, outputs = xi[0].size, arch.outputs
    prior = np.kron(solution.order_parameter, np.eye(xi.shape[2]))
    rows = np.kron(np.eye(outputs), scaled[:TRAINING].reshape(TRAINING, width))
    y = labels[:TRAINING].reshape(TRAINING, -1).T.ravel()
    precision = np.linalg.inv(prior) + rows.T @ rows / TEMPERATURE
    mean = np.linalg.solve(precision, rows.T @ y) / TEMPERATURE
    factors = np.array([factor_of(arch, row, gone) for row in arch.path_heads()])
    new = np.kron(np.eye(outputs), (scaled[TRAINING:] * factors[None, :, None]).reshape(-1, width))
    expected_variance = np.einsum("ni,ni->n", new, np.linalg.solve(precision, new.T).T)
    rest = without_heads(solution, gone)
    found = rest.predict(features[TRAINING:])
    np.testing.assert_allclose(found.mean.reshape(10, -1).T.ravel(), new @ mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.variance.reshape(10, -1).T.ravel(), expected_variance, rtol=1e-8, atol=1e-10)
    parts = rest.path_contributions(features[TRAINING:])
    np.testing.assert_allclose(parts.sum(axis=1), found.mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_array_equal(factors == 0, (parts == 0).all(axis=tuple(i for i in range(parts.ndim) if i != 1)))


def test_the_gaussian_process_has_ablations():
    features, labels, solution = solved("plain")
    limit = gaussian_process(solution.architecture, features[:TRAINING], labels[:TRAINING], temperature=TEMPERATURE)
    rest = without_heads(limit, [(1, 1)])
    found = rest.predict(features[TRAINING:])
    np.testing.assert_allclose(found.mean, rest.path_contributions(features[TRAINING:]).sum(axis=1), atol=1e-9)
    assert (found.variance >= 0).all()


def test_accuracies_of_many_sets_are_those_of_each():
    features, labels, solution = solved("plain")
    new, y = features[TRAINING:], labels[TRAINING:]
    sets = [[], [(0, 0)], [(0, 1), (1, 0)]]
    found = accuracies_without(solution.architecture, solution.path_contributions(new), sets, y)
    assert found.tolist() == [without_heads(solution, gone).predict(new).accuracy(y) for gone in sets]


def test_scores_answer_their_questions():
    features, labels, solution = solved("plain")
    arch, held_out = solution.architecture, {"features": features[TRAINING:], "labels": labels[TRAINING:]}
    mean, y = solution.predict(held_out["features"]).mean, held_out["labels"]
    ablated = head_scores(arch, solution, method="predicted ablation", normalise=False, **held_out)
    again = head_scores(arch, solution, method="solved again", normalise=False, **held_out)
    for label in ablated.labels:
        parts = solution.path_contributions(held_out["features"])
        kept = arch.path_heads()[:, label[0]] != label[1]
        lost = np.mean((np.sqrt(2) * parts[:, kept].sum(axis=1) - y) ** 2) - np.mean((mean - y) ** 2)
        np.testing.assert_allclose(ablated[label], lost, rtol=1e-9)
        heads = tuple(count - (layer == label[0]) for layer, count in enumerate(arch.heads))
        left = PathFeatures.from_attentioned_inputs(np.asarray(features.values)[:, kept])
        smaller = solve(arch.replace(heads=heads), left[:TRAINING], labels[:TRAINING], temperature=TEMPERATURE)
        lost = np.mean((smaller.predict(left[TRAINING:]).mean - y) ** 2) - np.mean((mean - y) ** 2)
        np.testing.assert_allclose(again[label], lost, rtol=1e-6)
    # Networks that never had the head learn without it: they lose less than the network that loses it.
    assert ablated.values.sum() > again.values.sum()
    assert head_scores(arch, solution, method="predicted ablation", **held_out).values.max() == 1


def test_the_only_head_of_a_layer_is_needed():
    arch = Architecture((1, 2), 8)  # of the size of a network that is solved again above
    _, _, features = attention_problem(arch, examples=TRAINING, token_width=6, tokens=3)
    labels = np.sign(np.random.default_rng(3).normal(size=TRAINING))
    solution = solve(arch, features, labels, temperature=TEMPERATURE)
    scores = head_scores(arch, solution, method="predicted ablation", features=features, labels=labels, normalise=False)
    assert scores[0, 0] == np.inf and np.isfinite(scores.values[1:]).all()


def test_bad_requests():
    features, labels, solution = solved("plain")
    arch, held_out = solution.architecture, {"features": features, "labels": labels}
    limit = gaussian_process(arch, features[:TRAINING], labels[:TRAINING], temperature=TEMPERATURE)
    cases = [
        (lambda: head_scores(arch, solution, method="sum"), "method: got 'sum'; expected"),
        (
            lambda: head_scores(arch, solution.order_parameter, method="solved again", **held_out),
            "order_parameter: got",
        ),
        (lambda: head_scores(arch, solution, method="predicted ablation"), "features: got None; expected validation"),
        (lambda: head_scores(arch, solution, method="solved again", features=features), "labels: got None"),
        (
            lambda: head_scores(Architecture((4,), 8), solution, method="solved again", **held_out),
            "order_parameter: got",
        ),
        (lambda: head_scores(arch, limit, method="solved again", **held_out), "solution: got one without its training"),
        (lambda: without_heads(solution, [(0, 0), (0, 1)]), "heads: got all 2 heads of layer 0"),
        (lambda: without_heads(solution, [(2, 0)]), "heads: got"),
        (lambda: without_heads(solution.order_parameter, [(0, 0)]), "result: got"),
        (lambda: accuracies_without(arch, np.ones((3, 2)), [[]], np.ones(3)), "contributions: got shape"),
    ]
    for request, message in cases:
        with pytest.raises(ValueError) as caught:
            request()
        assert str(caught.value).startswith(message), str(caught.value)

"""Training examples in batches: the results of all examples at once, from a rotation of the examples."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from problems import small_problem

from thermoformer.learning import (
    Architecture,
    PathFeatures,
    evidence_scores,
    gaussian_process,
    influence,
    one_loop,
    rotate_examples,
    solve,
)

PLAIN = small_problem((2, 1), examples=90, token_width=8)
CASES = {"plain": PLAIN[0], "outputs": Architecture((2, 1), 10, outputs=2)}


def batches(features, labels, *ends):
    edges = [0, *ends, len(labels)]
    return [(features[a:b], labels[a:b]) for a, b in pairwise(edges)]


@pytest.mark.parametrize("name", CASES)
def test_batches_give_the_results_of_all_examples_at_once(name):
    arch, (_, features, labels) = CASES[name], PLAIN
    if arch.outputs > 1:
        labels = np.stack([labels, np.roll(labels, 1)], axis=1)
    # Batches of uneven sizes, some smaller and some larger than what is rotated at once.
    rotated, turned = rotate_examples(batches(features, labels, 1, 80, 83))
    assert rotated.values.shape == (16, 2, 8) and rotated.observed == 90
    for temperature in (0.01, 1.0):
        whole = solve(arch, features, labels, temperature=temperature)
        found = solve(arch, rotated, turned, temperature=temperature)
        assert found.problem.null_directions == whole.problem.null_directions
        for field in ("order_parameter", "log_evidence", "energy", "action"):
            np.testing.assert_allclose(getattr(found, field), getattr(whole, field), rtol=1e-7, atol=1e-9)
        pairs = [(found, whole)] + [(one_loop(found), one_loop(whole))] * (arch.outputs == 1)
        for ours, theirs in pairs:
            ours, theirs = ours.predict(features[:5]), theirs.predict(features[:5])
            np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(ours.variance, theirs.variance, rtol=1e-6, atol=1e-8)


def test_scores_by_evidence_know_all_examples():
    arch, features, labels = PLAIN
    rotated, turned = rotate_examples(batches(features, labels, 40))
    solution = solve(arch, rotated, turned, temperature=0.1)
    found = evidence_scores(arch, rotated, turned, temperature=0.1, solution=solution)
    expected = evidence_scores(arch, features, labels, temperature=0.1)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-6)


def test_features_of_low_rank_are_reduced_further():
    arch, features, labels = PLAIN
    values = np.array(features.values)
    values[:, :, 5:] = values[:, :, :3]
    features = PathFeatures.from_attentioned_inputs(values)
    whole = gaussian_process(arch, features, labels, temperature=0.1)
    found = gaussian_process(arch, *rotate_examples(batches(features, labels, 50)), temperature=0.1)
    assert len(found.problem.labels) == 10
    np.testing.assert_allclose(found.log_evidence, whole.log_evidence, rtol=1e-9)


def test_fewer_examples_than_columns_stay_as_they_are():
    _, features, labels = PLAIN
    found, same = rotate_examples(batches(features[:16], labels[:16], 5))
    assert type(found) is PathFeatures
    np.testing.assert_array_equal(found.values, features[:16].values)
    np.testing.assert_array_equal(same, labels[:16])


def test_rotated_rows_are_no_examples():
    arch, features, labels = PLAIN
    rotated, turned = rotate_examples(batches(features, labels))
    solution = solve(arch, rotated, turned, temperature=0.1)
    for refused in (
        lambda: rotated[:3],
        lambda: solution.predict(rotated),
        lambda: solution.path_contributions(rotated),
    ):
        with pytest.raises(ValueError, match="features: got .*rotated"):
            refused()
    with pytest.raises(ValueError, match="solution: got one in the dual form"):
        influence(solution, features[:3])
    with pytest.raises(
        ValueError, match="temperature: got 0.0; expected a number above 0: 90 examples in 16 dimensions"
    ):
        solve(arch, rotated, turned, temperature=0.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda f, y: [], "batches: got nothing"),
        (lambda f, y: [(f, y[:-1])], r"batches\[0\]: labels: got 89 labels; expected 90"),
        (lambda f, y: [(f, y), (f.select([0]), y)], r"batches\[1\]: got ξ \(90, 1, 8\) and labels \(90,\); expected"),
        (lambda f, y: [(f.values, y)], r"batches\[0\]: got .*; expected PathFeatures"),
        (lambda f, y: [rotate_examples([(f, y)])], r"batches\[0\]: got RotatedFeatures"),
        (lambda f, y: [(f, np.where(y > 0, np.nan, y))], r"batches\[0\]: labels: got "),
    ],
)
def test_bad_batches(given, message):
    _, features, labels = PLAIN
    with pytest.raises(ValueError, match=message):
        rotate_examples(given(features, labels))

"""The theory with one path per head against the learning room and its own definition."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from thermoformer.learning import Architecture, PathFeatures, solve  # noqa: E402
from thermoformer.transformers import path_theory  # noqa: E402


def contributions(examples: int = 40, paths: int = 3, features: int = 6, rank: int | None = None, seed: int = 0):
    random = np.random.default_rng(seed)
    rank = features if rank is None else rank
    narrow = random.normal(size=(examples, paths, rank))
    return np.einsum("epr,prf->epf", narrow, random.normal(size=(paths, rank, features)))


def scaled(xi: np.ndarray) -> np.ndarray:
    xi = xi - xi.mean(0)
    return xi / np.sqrt((xi**2).sum() / len(xi))


@pytest.mark.parametrize("rank", [6, 2])
def test_the_action_is_that_of_the_definition_and_has_its_minimum_there(rank):
    xi, random = contributions(rank=rank), np.random.default_rng(1)
    y = random.normal(size=(40, 2))
    found = path_theory(xi, y, width=5, temperature=0.3)
    features = scaled(xi)

    def action(r: np.ndarray) -> float:
        kernel = np.einsum("pq,apf,bqf->ab", r @ r.T, features, features) + 0.3 * np.eye(40)
        energy = 2 * np.linalg.slogdet(kernel)[1] + np.trace(y.T @ np.linalg.solve(kernel, y))
        return energy + 5.0 * ((r**2).sum() - 2 * np.log(np.diagonal(r)).sum())

    factor = np.linalg.cholesky(found.order_parameter)
    assert found.converged and found.action == pytest.approx(action(factor), rel=1e-9)
    for row, column in zip(*np.tril_indices(3), strict=True):
        moved = np.zeros((3, 3))
        moved[row, column] = 1e-4
        higher = action(factor + moved) - found.action, action(factor - moved) - found.action
        slope, curvature = (higher[0] - higher[1]) / 2e-4, (higher[0] + higher[1]) / 1e-8
        assert abs(slope) < 1e-3 < 5 < curvature


def test_one_output_is_the_theory_of_the_learning_room():
    xi = contributions()
    y = np.sign(xi[:, 1, 0] + 0.3 * xi[:, 0, 1])
    found = path_theory(xi, y[:, None], width=10, temperature=0.2)
    # There the kernel is divided by paths and features; the readout's own width is taken to infinity.
    raw = scaled(xi) * np.sqrt(xi.shape[1] * xi.shape[2])
    other = solve(Architecture((3,), (10, 10**5)), PathFeatures.from_attentioned_inputs(raw), y, temperature=0.2)
    np.testing.assert_allclose(found.order_parameter, other.order_parameter, atol=1e-4)


def test_a_wide_network_does_not_learn_its_order_parameter():
    xi = contributions()
    found = path_theory(xi, np.sign(xi[:, :1, 0]), width=1e7)
    np.testing.assert_allclose(found.order_parameter, np.eye(3), atol=1e-4)
    assert found.converged


def test_permuting_heads_and_rotating_features_changes_nothing_else():
    xi = contributions()
    y = np.sign(xi[:, 1, :1])
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(6, 6)))[0]
    found = path_theory(xi, y, width=5).order_parameter
    other = path_theory(xi[:, [2, 0, 1]] @ rotation, y, width=5).order_parameter
    np.testing.assert_allclose(other, found[np.ix_([2, 0, 1], [2, 0, 1])], atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contributions": np.ones((3, 2))}, "contributions: got shape"),
        ({"targets": np.ones((4, 1))}, "targets: got 4 rows; expected 40, one per example"),
        ({"width": 0}, "width: got 0"),
        ({"temperature": -1}, "temperature: got -1"),
    ],
)
def test_wrong_input_is_named(change, message):
    given = {"contributions": contributions(), "targets": np.ones((40, 1))} | change
    with pytest.raises(ValueError, match=message):
        path_theory(given.pop("contributions"), given.pop("targets"), **given)

"""On the published sequences themselves the theory gives every published accuracy, to the digit."""

from __future__ import annotations

import numpy as np
import pytest

from thermoformer.experiments.markov import gp_references
from thermoformer.experiments.markov.config import FOUR_PATHS, TWO_PATHS, MarkovVariant
from thermoformer.experiments.markov.published import PUBLISHED, PUBLISHED_LARGEST_OVERLAP, PUBLISHED_REFERENCES
from thermoformer.learning import PathFeatures, bilinear_attention, gaussian_process, label_alignment, solve_grid
from thermoformer.tasks import HiddenMarkovTask

TEMPERATURE = 0.01
TOKENS, FEATURES = 30, 200


def published_sequences(stream: int, examples: int, perpendicular_noise: float) -> tuple[np.ndarray, np.ndarray]:
    """The published x and labels, from the random numbers they were made of.

    Those are 53-bit uniforms of a Mersenne twister, first one coin per token, then the noise by the Box–Muller
    transform in blocks of 16.
    """
    words = np.random.RandomState(stream).bytes(8 * examples * TOKENS * (1 + FEATURES))
    high, low = np.frombuffer(words, dtype="<u4").astype(np.uint64).reshape(-1, 2).T
    uniforms = (((high << np.uint64(32)) | low) & np.uint64(2**53 - 1)).astype(float) * 2.0**-53
    coins, rest = uniforms[: examples * TOKENS].reshape(examples, TOKENS), uniforms[examples * TOKENS :]

    labels = np.where(np.arange(examples) < examples // 2, 1.0, -1.0)
    steps = np.where(coins < np.where(labels > 0, 0.7, 0.3)[:, None], 1, -1)
    steps[:, 0] = np.where(coins[:, 0] >= 0.5, 1, -1)
    states = np.cumprod(steps, axis=1)

    first, second = np.moveaxis(rest.reshape(-1, 2, 8), 1, 0)
    radius, angle = np.sqrt(-2 * np.log(1 - first)), 2 * np.pi * second
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    normal = normal.reshape(examples, FEATURES, TOKENS).transpose(0, 2, 1)

    plus, minus = HiddenMarkovTask().state_features
    plane = sum(np.outer(v, v) / (v @ v) for v in (plus + minus, plus - minus))
    noise = perpendicular_noise * normal + (1 - perpendicular_noise) * normal @ plane
    x = np.zeros((examples, TOKENS + 1, FEATURES + TOKENS + 1))
    x[:, 1:, :FEATURES] = np.where(states[..., None] > 0, plus, minus) + noise
    x[:, :, FEATURES:] = np.eye(TOKENS + 1)
    return x, labels


def two_path_features(x: np.ndarray) -> PathFeatures:
    task = HiddenMarkovTask()
    layers = [np.stack([task.head(kind) for kind in kinds]) for kinds in TWO_PATHS.heads]
    return PathFeatures.from_attention(x, [bilinear_attention(x, weights) for weights in layers])


def check_against_published(variant: MarkovVariant, training, labels, test, test_labels):
    arch = variant.architecture()
    widths = (10, 30, 50, 100, 300, 500, 1000)
    grid = solve_grid(arch, training, labels, widths=widths, temperatures=TEMPERATURE)
    solutions = {width: grid.at(width=width) for width in widths}
    solutions[np.inf] = gaussian_process(arch, training, labels, temperature=TEMPERATURE)

    def percent(predictor) -> float:
        return round(100 * predictor.predict(test).accuracy(test_labels), 1)

    full = {width: percent(solution) for width, solution in solutions.items()}
    assert full == PUBLISHED[variant.name, "accuracy"]
    diagonal = {
        width: percent(solution.with_order_parameter(np.diag(np.diag(solution.order_parameter))))
        for width, solution in solutions.items()
        if np.isfinite(width)
    }
    assert diagonal == PUBLISHED[variant.name, "accuracy_diagonal"]
    for width in (10, np.inf):
        overlap = label_alignment(solutions[width].kernel(training), labels, components=30)
        assert round(float(overlap.max()), 3) == PUBLISHED_LARGEST_OVERLAP[variant.name, width]


def test_two_paths():
    x, labels = published_sequences(27, 100, TWO_PATHS.perpendicular_noise)
    test_x, test_labels = published_sequences(59, 1000, TWO_PATHS.perpendicular_noise)
    check_against_published(TWO_PATHS, two_path_features(x), labels, two_path_features(test_x), test_labels)


@pytest.fixture(scope="module")
def published(reference):
    return reference("learning/4paths_inputs.npz")


def four_path_data(published):
    training, test = (PathFeatures.from_attentioned_inputs(published[name]) for name in ("xi_train", "xi_test"))
    return training, published["y_train"], test, published["y_test"]


def test_the_published_sequences_are_the_reference_ones(published):
    x, labels = published_sequences(27, 100, FOUR_PATHS.perpendicular_noise)
    np.testing.assert_allclose(x[:20], published["x"], atol=1e-12)
    np.testing.assert_array_equal(labels, published["y_train"])


def test_four_paths(published):
    check_against_published(FOUR_PATHS, *four_path_data(published))


def test_gp_references(published):
    training, labels, test, test_labels = four_path_data(published)
    for name, (arch, paths) in gp_references(FOUR_PATHS).items():
        gp = gaussian_process(arch, training.select(paths), labels, temperature=TEMPERATURE)
        accuracy = gp.predict(test.select(paths)).accuracy(test_labels)
        assert round(100 * accuracy, 1) == PUBLISHED_REFERENCES["4 paths", name]

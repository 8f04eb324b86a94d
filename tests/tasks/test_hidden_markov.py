"""The hidden-Markov task against the published inputs, its own statistics and bad input."""

from __future__ import annotations

import numpy as np
import pytest

from thermoformer.learning import PathFeatures, bilinear_attention
from thermoformer.tasks import HiddenMarkovTask, hidden_markov_inputs


@pytest.fixture(scope="module")
def published(reference):
    return reference("learning/4paths_inputs.npz")


def noise_variances(task: HiddenMarkovTask, x: np.ndarray) -> tuple[float, float, float]:
    """Variance of the token noise per direction: along v_+ + v_−, along v_+ − v_−, and orthogonal to both."""
    plus, minus = task.state_features
    features = x[:, 1:, : task.feature_width]
    sum_unit, difference_unit = (v / np.linalg.norm(v) for v in (plus + minus, plus - minus))
    state = np.sign(features @ difference_unit)[..., None]
    noise = features - np.where(state > 0, plus, minus)
    along = noise @ sum_unit, noise @ difference_unit
    rest = noise - along[0][..., None] * sum_unit - along[1][..., None] * difference_unit
    return along[0].var(), along[1].var(), float((rest**2).sum(-1).mean() / (task.feature_width - 2))


def test_good_and_uniform_heads_equal_the_published_ones(published):
    task = HiddenMarkovTask()
    np.testing.assert_allclose(task.good_head(), published["logit_weights_layer1"][0], atol=1e-12)
    np.testing.assert_allclose(task.uniform_head(), published["logit_weights_layer2"][0], atol=1e-12)


@pytest.mark.parametrize("layer", [1, 2])
def test_random_head_has_the_published_statistics(published, layer):
    ours, theirs = HiddenMarkovTask().random_head(3), published[f"logit_weights_layer{layer}"][1]
    for rows in (slice(0, 200), slice(200, None)):
        for columns in (slice(0, 200), slice(200, None)):
            block, published_block = ours[rows, columns], theirs[rows, columns]
            assert block.std() == pytest.approx(published_block.std(), rel=5 / np.sqrt(block.size))
            assert abs(block.mean()) < 5 * block.std() / np.sqrt(block.size)


def test_tokens_have_the_published_statistics(published):
    task = HiddenMarkovTask(perpendicular_noise=1.0)
    theirs, ours = published["x"], task.sample(20, seed=0).x
    for x in (theirs, ours):
        assert x.shape == (20, 31, 231)
        assert not x[:, 0, :200].any(), "the start token has no features"
        np.testing.assert_array_equal(x[:, :, 200:], np.broadcast_to(np.eye(31), (20, 31, 31)))
        # 600 tokens: the variance along one direction is known to 6 %, over 198 directions to 0.4 %.
        along_sum, along_difference, perpendicular = noise_variances(task, x)
        assert along_sum == pytest.approx(1, abs=0.25)
        assert along_difference == pytest.approx(1, abs=0.25)
        assert perpendicular == pytest.approx(1, abs=0.02)


def test_perpendicular_noise_leaves_the_state_directions_alone():
    task = HiddenMarkovTask(perpendicular_noise=5.0)
    along_sum, along_difference, perpendicular = noise_variances(task, task.sample(100, seed=1).x)
    assert along_sum == pytest.approx(1, abs=0.1)
    assert along_difference == pytest.approx(1, abs=0.1)
    assert perpendicular == pytest.approx(25, rel=0.01)


def test_states_stay_in_one_class_and_change_in_the_other():
    _, labels, states = HiddenMarkovTask().sample(2000, seed=2)
    stays = (states[:, 1:] == states[:, :-1]).mean(axis=1)
    assert stays[labels > 0].mean() == pytest.approx(0.7, abs=0.015)
    assert stays[labels < 0].mean() == pytest.approx(0.3, abs=0.015)
    assert abs(states[:, 0].mean()) < 0.1, "the first state is either, at random"


@pytest.mark.parametrize(("examples", "plus"), [(100, 50), (7, 4), (1, 1)])
def test_classes_are_balanced(examples, plus):
    labels = HiddenMarkovTask(tokens=3, feature_width=4).sample(examples, seed=0).labels
    assert (labels == 1).sum() == plus
    assert (labels == -1).sum() == examples - plus


def test_features_show_the_state():
    task = HiddenMarkovTask(perpendicular_noise=0.0, parallel_noise=0.0)
    x, _, states = task.sample(4, seed=0)
    plus, minus = task.state_features
    np.testing.assert_allclose(x[:, 1:, :200], np.where(states[..., None] > 0, plus, minus), atol=1e-12)


def test_good_head_looks_at_the_previous_token_if_it_has_the_same_state():
    task = HiddenMarkovTask(perpendicular_noise=0.0, parallel_noise=0.0)
    x, _, states = task.sample(4, seed=0)
    looked_at = np.einsum("pqi,ij,pkj->pqk", x, task.good_head(), x)[:, 2:].argmax(-1)
    same = states[:, 1:] == states[:, :-1]
    np.testing.assert_array_equal(looked_at, np.where(same, np.arange(1, 30), 0))


def test_equal_seeds_give_equal_numbers_and_others_do_not():
    task = HiddenMarkovTask(tokens=4, feature_width=6)
    first, again, other = task.sample(5, seed=(3, 1)), task.sample(5, seed=(3, 1)), task.sample(5, seed=(3, 2))
    np.testing.assert_array_equal(first.x, again.x)
    assert not np.array_equal(first.x, other.x)
    np.testing.assert_array_equal(task.random_head(7), task.head("random", seed=7))
    assert not np.array_equal(task.random_head(7), task.random_head(8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"perpendicular_noise": -1.0}, r"perpendicular_noise: got -1.0; expected a finite number, zero or more"),
        ({"parallel_noise": float("nan")}, r"parallel_noise: got nan; expected a finite number"),
        ({"perpendicular_noise": "loud"}, r"perpendicular_noise: got 'loud'; expected one number"),
        ({"tokens": 1}, r"tokens: got 1; expected 2 or more"),
        ({"tokens": 2.5}, r"tokens: got 2.5; expected a whole number, 1 or more"),
        ({"feature_width": 7}, r"feature_width: got 7; expected an even number"),
        ({"stay_probability": 1.2}, r"stay_probability: got 1.2; expected a probability from 0 to 1"),
    ],
)
def test_bad_task(arguments, message):
    with pytest.raises(ValueError, match=message):
        HiddenMarkovTask(**arguments)


def test_bad_calls():
    task = HiddenMarkovTask(tokens=3, feature_width=4)
    with pytest.raises(ValueError, match="examples: got 0; expected a whole number, 1 or more"):
        task.sample(0, seed=0)
    for seed in (-1, 1.5, "a", (), (1, None)):
        with pytest.raises(ValueError, match="seed: got .*; expected a whole number, zero or more"):
            task.sample(2, seed=seed)
    with pytest.raises(ValueError, match="kind: got 'bad'; expected one of 'good', 'uniform', 'random'"):
        task.head("bad")
    with pytest.raises(ValueError, match="seed: got None; expected"):
        task.head("random")


@pytest.mark.parametrize("kinds", [(("good", "random"),), (("good", "uniform", "random"), ("random", "good"))])
def test_inputs_that_are_quick_at_another_noise_are_those_of_the_library(kinds):
    task = HiddenMarkovTask(0.7, 1.4, stay_probability=0.6)
    heads = [[(kind, (5, layer, head)) for head, kind in enumerate(names)] for layer, names in enumerate(kinds)]
    sample = task.sample(9, seed=(1, 2))
    weights = [np.stack([task.head(kind, seed=seed) for kind, seed in layer]) for layer in heads]
    attention = [bilinear_attention(sample.x, layer) for layer in weights]
    for known in (HiddenMarkovTask(), task):  # the second takes what the first has left
        features, labels = hidden_markov_inputs(known, 9, heads, seed=(1, 2))
    expected = PathFeatures.from_attention(sample.x, attention)
    np.testing.assert_allclose(features.values, expected.values, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(labels, sample.labels)


def test_inputs_are_of_one_or_two_layers():
    with pytest.raises(ValueError, match="heads: got 3 layers; expected one or two"):
        hidden_markov_inputs(HiddenMarkovTask(), 4, [[("good", (0,))]] * 3, seed=(0,))

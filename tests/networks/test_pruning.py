"""Heads that go: cut or zeroed, scored, in which order, and what fine-tuning starts from."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from training_process import ARCH, SETTINGS, batch

from thermoformer.learning import (
    Architecture,
    PathFeatures,
    evidence_scores,
    head_scores,
    order_parameter_from_weights,
    prior_weights,
    solve,
)
from thermoformer.learning.scores import head_labels
from thermoformer.networks import (
    AttentionNetwork,
    gradient_importance,
    load_network,
    pruned_accuracies,
    pruning_curve,
    random_orders,
    rescored_order,
    save_network,
    train,
    trained_scores,
)
from thermoformer.networks.pruning import path_factors

SHORT = replace(SETTINGS, steps=6, validate_every=2, checkpoint_every=2, schedule="constant")


def random_network(heads=(3, 2), *, outputs=1, skip=False, width=5, readout="mean") -> AttentionNetwork:
    arch = Architecture(heads, width, outputs=outputs, skip=skip)
    random = np.random.default_rng(1)
    maps = [[random.normal(size=(count, 3, 4)) for count in heads] for _ in range(2)]
    return AttentionNetwork(arch, prior_weights(arch, 4, key=2), tuple(maps[0]), tuple(maps[1]), readout)


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(20, 6, 4))


@pytest.mark.parametrize(("outputs", "skip", "readout"), [(2, False, "last"), (1, True, "mean")])
def test_cut_heads_and_the_paths_without_them_are_the_same_network(x, outputs, skip, readout):
    network = random_network(outputs=outputs, skip=skip, readout=readout)
    for heads in ([(0, 1)], [(0, 2), (0, 0), (1, 1)]):
        cut = network.without(heads)
        assert cut.arch.heads == tuple(
            count - sum(layer == at for at, _ in heads) for layer, count in enumerate((3, 2))
        )
        assert cut.parameters == network.parameters - len(heads) * (25 + 24)
        # The outputs are the sum over paths with the factors of what is gone.
        paths = np.asarray(network.path_contributions(x)) @ path_factors(network.arch, heads)
        np.testing.assert_allclose(cut.predict(x), paths, rtol=1e-12, atol=1e-13)


def test_paths_add_up_to_the_output(x):
    network = random_network(outputs=2)
    parts = network.path_contributions(x)
    assert parts.shape == (20, 2, network.arch.paths)
    np.testing.assert_allclose(parts.sum(axis=-1), network.predict(x), rtol=1e-12, atol=1e-13)


def test_a_cut_network_is_saved_and_known_by_its_digest(x, tmp_path):
    network = random_network().without([(0, 1)])
    again = load_network(save_network(network, tmp_path / "small.safetensors"))
    np.testing.assert_allclose(again.predict(x), network.predict(x), rtol=1e-5)
    assert network.digest == random_network().without([(0, 1)]).digest != random_network().without([(0, 0)]).digest


def with_masks(network, masks):
    """The network with each head's values times its mask."""
    values = tuple(
        value * np.asarray(mask)[:, None, None] for value, mask in zip(network.weights.values, masks, strict=True)
    )
    return replace(network, weights=network.weights._replace(values=values))


@pytest.mark.parametrize("outputs", [1, 2])
def test_gradient_importance_is_the_slope_of_the_loss(x, outputs):
    network = random_network(outputs=outputs)
    y = np.random.default_rng(4).normal(size=(20, 2) if outputs == 2 else 20)
    scores, step = gradient_importance(network, x, y), 1e-5

    def losses(layer, head, change):
        masks = [np.ones(3), np.ones(2)]
        masks[layer][head] += change
        squares = (np.asarray(with_masks(network, masks).predict(x)) - y) ** 2
        return squares.reshape(20, -1).mean(axis=1)

    for layer, head in head_labels(network.arch):
        slopes = (losses(layer, head, step) - losses(layer, head, -step)) / (2 * step)
        assert scores[layer, head] == pytest.approx(np.abs(slopes).mean(), rel=1e-6)


def test_scores_of_the_networks_own_weights():
    network = random_network()
    expected = head_scores(network.arch, order_parameter_from_weights(network.arch, network.weights))
    np.testing.assert_array_equal(trained_scores(network).values, expected.values)


def test_the_curve_of_a_network_whose_useless_heads_are_known():
    """One head of each layer reads the label; the others add noise of their own, or nothing."""
    arch = Architecture((3, 2), 4)
    weights = prior_weights(arch, 4, key=0)
    first, second = jnp.zeros((3, 4, 4)), jnp.zeros((2, 4, 4))
    # Head 1 of layer 0 and head 0 of layer 1 pass the first feature on; the rest of the network gives nothing.
    values = (first.at[1, 0, 0].set(1.0), second.at[0, 0, 0].set(1.0))
    weights = weights._replace(embedding=jnp.eye(4), values=values, readout=jnp.eye(4)[0])
    uniform = (np.zeros((3, 2, 4)), np.zeros((2, 2, 4)))
    network = AttentionNetwork(arch, weights, uniform, uniform)
    random = np.random.default_rng(0)
    x = random.normal(size=(50, 3, 4))
    y = np.sign(x[:, :, 0].sum(axis=1))
    useless_first = pruning_curve(network, [(0, 0), (1, 1), (0, 2), (0, 1), (1, 0)], x, y)
    assert useless_first.heads == ((0, 0), (1, 1), (0, 2))
    np.testing.assert_array_equal(useless_first.accuracy, [1.0, 1.0, 1.0, 1.0])
    np.testing.assert_array_equal(useless_first.error, np.zeros(4))
    # Without its one good head the output is exactly 0, which counts half.
    good_first = pruning_curve(network, [(0, 1), (1, 0), (0, 0), (0, 2), (1, 1)], x, y)
    np.testing.assert_array_equal(good_first.accuracy, [1.0, 0.5, 0.5, 0.5])
    assert good_first.error[1] == pytest.approx(np.sqrt(0.25 / 50))
    importance = gradient_importance(network, x, 2 * y)
    assert set(importance.ascending()[-2:]) == {(0, 1), (1, 0)}
    assert importance[0, 0] == importance[0, 2] == importance[1, 1] == 0
    table = useless_first.to_xarray()
    assert dict(table.sizes) == {"removed": 4} and table.removed.values.tolist() == [0, 1, 2, 3]


def test_accuracies_are_those_of_the_pruned_networks(x):
    network = random_network()
    y = np.where(np.random.default_rng(0).random(20) < 0.5, 1.0, -1.0)
    sets = [[], [(0, 1)], [(1, 0), (0, 0), (0, 2)]]
    expected = [np.mean(np.sign(network.without(heads).predict(x)) == y) for heads in sets]
    np.testing.assert_allclose(pruned_accuracies(network, sets, x, y), expected)


@pytest.mark.parametrize("heads", [(4, 4), (1, 3), (2, 1, 3), (1, 1)])
def test_no_order_empties_a_layer(heads):
    arch = Architecture(heads, 5)
    orders = random_orders(arch, 50, key=0)
    assert orders == random_orders(arch, 50, key=0) != random_orders(arch, 50, key=1) or sum(heads) == len(heads)
    for order in orders:
        assert len(order) == len(set(order)) == sum(heads) - len(heads)
        assert all(sum(at == layer for at, _ in order) == count - 1 for layer, count in enumerate(heads))


def test_rescored_orders_follow_the_theory_of_the_heads_left():
    xi, arch = np.random.default_rng(0).normal(size=(30, 3, 5)), Architecture((3,), 10)
    features, y = PathFeatures.from_attentioned_inputs(xi), np.sign(xi[:, 1, 0] + 0.4 * xi[:, 2, 1])

    def scored(score, arch, features):
        if score == "evidence":
            return evidence_scores(arch, features, y, temperature=0.2)
        return head_scores(arch, solve(arch, features, y, temperature=0.2).order_parameter)

    for score in ("evidence", "order parameter"):
        order = rescored_order(arch, features, y, temperature=0.2, score=score)
        assert len(order) == 2 and order[0] == scored(score, arch, features).ascending()[0]
        # The second: scored by hand among the paths that are left, where heads are numbered anew.
        left = [head for head in range(3) if head != order[0][1]]
        again = scored(score, Architecture((2,), 10), features.select(left))
        assert order[1] == (0, left[again.ascending()[0][1]])


def test_fine_tuning_goes_on_where_the_network_is():
    first = train(ARCH, batch, batch(5), settings=replace(SETTINGS, steps=60, validate_every=60), key=3)
    more = train(ARCH, batch, batch(5), settings=SHORT, key=8, start=first.network)
    x, y = batch(0)
    expected = np.mean((np.asarray(first.network.predict(x)) - y) ** 2)
    assert float(more.history.loss[0]) == pytest.approx(float(expected), rel=1e-5)
    fresh = train(ARCH, batch, batch(5), settings=SHORT, key=3)
    assert more.history.loss.mean() < 0.5 * fresh.history.loss.mean()
    # With a rate of next to nothing the network stays as it is, whatever the settings of random weights.
    still = replace(SHORT, learning_rate=1e-12, key_size=9, readout="last", scale=5.0)
    same = train(ARCH, batch, batch(5), settings=still, key=0, start=first.network).network
    assert same.readout == "mean"
    np.testing.assert_allclose(same.predict(x), first.network.predict(x), rtol=1e-6)


def test_a_pruned_network_is_fine_tuned(tmp_path):
    small = train(ARCH, batch, batch(5), settings=SHORT, key=3).network.without([(0, 1)])
    file = tmp_path / "run.safetensors"
    tuned = train(small.arch, batch, batch(5), settings=SHORT, key=3, start=small, checkpoint=file)
    assert tuned.network.arch.heads == (1, 2)
    again = train(small.arch, batch, batch(5), settings=SHORT, key=3, start=small, checkpoint=file)
    np.testing.assert_array_equal(again.history.loss, tuned.history.loss)
    whole = file.read_bytes()
    other = replace(small, weights=small.weights._replace(readout=2 * small.weights.readout))
    for start in (None, other):
        with pytest.raises(ValueError, match="checkpoint: got a run with start = "):
            train(small.arch, batch, batch(5), settings=SHORT, key=3, start=start, checkpoint=file)
    assert file.read_bytes() == whole


def test_bad_input(x):
    network, y = random_network(), np.ones(20)
    for heads, message in (
        ([(0, 3)], ": got .*different pairs .* with heads \\(3, 2\\)"),
        ([(0, 1), (0, 1)], ": got .*different pairs"),
        ([(1, 0), (1, 1)], ": got all 2 heads of layer 1; expected every layer to keep one"),
    ):
        for name, call in (
            ("heads", network.without),
            (r"removed\[0\]", lambda heads: pruned_accuracies(network, [heads], x, y)),
        ):
            with pytest.raises(ValueError, match=f"^{name}{message}"):
                call(heads)
    with pytest.raises(ValueError, match="order: got .*different pairs"):
        pruning_curve(network, [(2, 0)], x, y)
    with pytest.raises(ValueError, match="labels: got 3 labels; expected 20"):
        pruning_curve(network, [(0, 0)], x, y[:3])
    with pytest.raises(ValueError, match="labels: got values such as 0.5; expected labels −1 and 1"):
        pruning_curve(network, [(0, 0)], x, 0.5 * y)
    with pytest.raises(ValueError, match="x: got tokens of width 3; expected 4"):
        gradient_importance(network, x[..., :3], y)
    with pytest.raises(ValueError, match="count: got 0"):
        random_orders(network.arch, 0, key=0)
    features = network.path_features(x)
    with pytest.raises(ValueError, match="score: got 'gradient'"):
        rescored_order(network.arch, features, y, temperature=0.1, score="gradient")
    for arch in (Architecture((2, 2), 5), Architecture((3, 2), 6), Architecture((3, 2), 5, skip=True)):
        with pytest.raises(ValueError, match="start: got heads \\(3, 2\\), widths \\(5, 5, 5\\)"):
            train(arch, batch, batch(5), settings=SHORT, key=0, start=network)

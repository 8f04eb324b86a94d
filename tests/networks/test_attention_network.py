from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from thermoformer.learning import Architecture, PathFeatures, forward, prior_weights, query_key_attention
from thermoformer.networks import AttentionNetwork, load_network, save_network

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(9, 6, 4))


def network_of(arch, readout="mean", key_size=3, seed=0):
    random = np.random.default_rng(seed)
    queries, keys = (tuple(random.normal(size=(heads, key_size, 4)) for heads in arch.heads) for _ in range(2))
    return AttentionNetwork(arch, prior_weights(arch, 4, key=seed), queries, keys, readout)


ARCHITECTURES = [
    Architecture((3,), (5, 7)),
    Architecture((2, 3), (5, 6, 7)),
    Architecture((2, 2), 6, skip=True),
    Architecture((2, 2), 6, outputs=3),
    Architecture((3, 3, 3), 2),  # more paths than weights: token by token
]


def by_hand(network, x, heads=None):
    """f and ξ by plain sums, with the heads of each layer that are named."""
    arch = network.arch
    heads = heads or [list(range(count)) for count in arch.heads]
    rows = {"mean": np.full(6, 1 / 6), "last": np.eye(6)[-1], "first": np.eye(6)[0]}[network.readout]
    weights = jax.device_get(network.weights)
    z = x @ weights.embedding.T / 2
    omega = [np.broadcast_to(np.eye(6), (len(x), 6, 6))]
    for layer, kept in enumerate(heads):
        added, ways = 0, list(omega) if arch.skip else []
        by_head = []
        for head in kept:
            q, k = (x @ np.asarray(maps[layer][head]).T for maps in (network.queries, network.keys))
            attention = np.exp(q @ k.transpose(0, 2, 1) / 3**0.5)
            attention /= attention.sum(-1, keepdims=True)
            by_head.append(attention)
            added = added + attention @ z @ weights.values[layer][head].T / (len(kept) * arch.widths[layer]) ** 0.5
        z = z + added if arch.skip else added
        # Paths in the order of the theory: the layer just added is the fastest index.
        ways = [None] * arch.skip + by_head
        omega = [path if way is None else way @ path for path in omega for way in ways]
    f = np.einsum("t,pto->po", rows, z) @ weights.readout.T / arch.widths[-1] ** 0.5
    xi = np.stack([np.einsum("t,pts,psi->pi", rows, path, x) for path in omega], axis=1)
    return f, xi


@pytest.mark.parametrize(
    ("arch", "readout"),
    [*((arch, "mean") for arch in ARCHITECTURES[1:]), (ARCHITECTURES[0], "last"), (ARCHITECTURES[0], "first")],
    ids=lambda value: value if isinstance(value, str) else f"{value.heads}-{value.skip}-{value.outputs}",
)
def test_outputs_and_features_by_hand(arch, readout):
    network = network_of(arch, readout)
    f, xi = by_hand(network, X)
    np.testing.assert_allclose(network.predict(X), f, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(network.path_features(X).values, xi, rtol=1e-9, atol=1e-12)


def test_output_attention_and_features_are_those_of_the_plain_functions():
    network = network_of(ARCHITECTURES[1])
    attention = [query_key_attention(X, *pair) for pair in zip(network.queries, network.keys, strict=True)]
    for mine, plain in zip(network.attention(X), attention, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-12)
    expected = forward(network.arch, network.weights, X, attention, readout="mean")
    np.testing.assert_allclose(network.predict(X), expected, rtol=1e-10, atol=1e-12)
    features = PathFeatures.from_attention(X, attention, "mean")
    np.testing.assert_allclose(network.path_features(X).values, features.values, rtol=1e-10, atol=1e-12)


def test_memory_is_bounded_and_chunks_change_nothing(monkeypatch):
    network = network_of(ARCHITECTURES[1])
    whole, features = network.predict(X), network.path_features(X).values
    parts = network.path_contributions(X)
    monkeypatch.setattr("thermoformer.networks.attention_network._CHUNK_NUMBERS", 1500)
    seen = [len(part) for part in network._chunks(X)]
    assert sum(seen) == 9 and max(seen) == 1500 // (36 * 5 + 6 * (6 + 4)) == 6
    np.testing.assert_allclose(network.predict(X), whole, rtol=1e-12)
    np.testing.assert_allclose(network.path_features(X).values, features, rtol=1e-12)
    np.testing.assert_allclose(network.path_contributions(X), parts, rtol=1e-12, atol=1e-13)


def test_a_pruned_network_is_the_network_without_the_heads():
    arch = Architecture((2, 3), (5, 6, 7))
    network = network_of(arch)
    # By hand the smaller network divides by the roots of its own numbers of heads.
    expected, _ = by_hand(network, X, heads=[[1], [0, 2]])
    pruned = network.without([(0, 0), (1, 1)])
    np.testing.assert_allclose(pruned.predict(X), expected, rtol=1e-10)
    assert pruned.arch == arch.replace(heads=(1, 2))
    np.testing.assert_array_equal(network.without([]).predict(X), network.predict(X))
    one = network.without([(1, 1)]).weights.values
    np.testing.assert_array_equal(one[1], network.weights.values[1][np.array([0, 2])])
    np.testing.assert_array_equal(one[0], network.weights.values[0])


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([(0, 3)], "heads: got \\[\\(0, 3\\)\\]; expected different pairs"),
        ([(2, 0)], "expected different pairs \\(layer, head\\) of a network with heads \\(3, 2\\)"),
        ([(0, 1), (0, 1)], "expected different pairs"),
        ([(1, 0), (1, 1)], "heads: got all 2 heads of layer 1; expected every layer to keep one head or more"),
    ],
)
def test_bad_heads_to_prune(heads, message):
    with pytest.raises(ValueError, match=message):
        network_of(Architecture((3, 2), 5)).without(heads)


def test_bad_networks_and_inputs():
    arch = Architecture((2, 2), 5)
    good = network_of(arch)
    fields = {name: getattr(good, name) for name in ("arch", "weights", "queries", "keys")}
    bad = [
        ({"readout": "middle"}, "readout: got 'middle'; expected one of 'last', 'first', 'mean'"),
        ({"weights": prior_weights(arch, 4, key=0, draws=2)}, "weights: got 2 draws; expected one network"),
        ({"queries": good.queries[:1]}, "queries: got 1 layers; expected 2, one array per layer"),
        ({"queries": (np.ones((3, 3, 4)),) * 2}, "queries\\[0\\]: got shape \\(3, 3, 4\\); expected \\[2, G, 4\\]"),
        ({"keys": (np.ones((2, 5, 4)),) * 2}, "keys\\[0\\]: got shape \\(2, 5, 4\\); expected the shape of queries"),
        ({"keys": (np.full((2, 3, 4), np.nan),) * 2}, "keys\\[0\\]: got 24 NaN or infinite entries"),
        ({"arch": Architecture((2, 2), 6)}, "weights.embedding: got shape"),
    ]
    for changes, message in bad:
        with pytest.raises(ValueError, match=message):
            AttentionNetwork(**(fields | changes))
    with pytest.raises(ValueError, match="x: got tokens of width 3; expected 4"):
        good.predict(X[..., :3])
    with pytest.raises(ValueError, match="x: got 1 NaN"):
        good.attention(np.where(np.arange(4) + np.zeros((1, 1, 4)) == 2, np.nan, 1.0))


@pytest.mark.parametrize("arch", ARCHITECTURES[1:4], ids=lambda arch: f"{arch.heads}-{arch.skip}-{arch.outputs}")
def test_a_network_comes_back_from_its_file(arch, tmp_path):
    network = network_of(arch, readout="mean")
    file = tmp_path / "folder" / "network.safetensors"
    for precision, exact in (("float64", 0), ("float32", 1e-5), ("float16", 0.05)):
        again = load_network(save_network(network, file, precision=precision))
        assert again.arch == arch and again.readout == "mean"
        np.testing.assert_allclose(again.predict(X), network.predict(X), rtol=exact, atol=exact)
    assert [path.name for path in file.parent.iterdir()] == ["network.safetensors"]


def test_foreign_and_damaged_files_are_refused_and_left_alone(tmp_path):
    network, file = network_of(ARCHITECTURES[1]), tmp_path / "network.safetensors"
    with pytest.raises(ValueError, match="network.safetensors, which is not there"):
        load_network(file)
    save_network(network, file)
    whole = file.read_bytes()
    for content in (b"", b"something else", whole[:100], whole[:-8]):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="file: got .*damaged, or no safetensors file.*it is left as it is"):
            load_network(file)
        with pytest.raises(ValueError, match="it is left as it is"):
            save_network(network, file)
        assert file.read_bytes() == content
    save_file({"embedding": np.ones(3)}, file)
    with pytest.raises(ValueError, match="thermoformer did not write it"):
        load_network(file)
    header = {"kind": "thermoformer network 1", "header": json.dumps({"heads": [2], "widths": 5, "readout": "mean"})}
    save_file({"embedding": np.ones((5, 4))}, file, metadata=header)
    with pytest.raises(ValueError, match="whose arrays and header do not fit"):
        load_network(file)


def test_places_that_cannot_be_written_are_named(tmp_path):
    network, taken = network_of(ARCHITECTURES[1]), tmp_path / "taken"
    taken.write_text("precious")
    for file in (taken / "n.safetensors", taken / "deeper" / "n.safetensors"):
        with pytest.raises(ValueError, match=r"file: got .*n.safetensors \(.*\); expected a file in a folder"):
            save_network(network, file)
    with pytest.raises(ValueError, match="file: got .*, which is a folder; expected a file of"):
        save_network(network, tmp_path)
    assert taken.read_text() == "precious"


def test_a_precision_that_is_too_small_is_refused(tmp_path):
    arch = Architecture((1,), 2)
    weights = prior_weights(arch, 4, key=0)
    network = AttentionNetwork(
        arch, weights._replace(embedding=weights.embedding * 1e6), (np.ones((1, 2, 4)),), (np.ones((1, 2, 4)),)
    )
    with pytest.raises(ValueError, match="precision: got float16, too small for the largest entry of embedding"):
        save_network(network, tmp_path / "n.safetensors", precision="float16")
    with pytest.raises(ValueError, match="precision: got 'int8'"):
        save_network(network, tmp_path / "n.safetensors", precision="int8")
    assert not list(tmp_path.iterdir())

"""Heads, paths and the forward pass: definitions, brute force, the law of the prior."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from problems import dense_kernel

from thermoformer.learning import (
    Architecture,
    PathFeatures,
    Weights,
    attention_from_logits,
    bilinear_attention,
    effective_path_weights,
    forward,
    given_attention,
    join_heads,
    order_parameter_from_weights,
    path_attention,
    prior_weights,
    query_key_attention,
    random_attention,
    uniform_attention,
)


@pytest.fixture
def tokens():
    return np.random.default_rng(0).normal(size=(6, 5, 4))


def loop_softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def test_bilinear_attention_row_by_row(tokens):
    weights = np.random.default_rng(1).normal(size=(2, 4, 4))
    attention = bilinear_attention(tokens, weights)
    for example, head, query in itertools.product(range(6), range(2), range(5)):
        logits = [tokens[example, query] @ weights[head] @ tokens[example, key] for key in range(5)]
        np.testing.assert_allclose(attention[example, head, query], loop_softmax(np.array(logits)), atol=1e-13)


def test_query_key_attention_is_a_bilinear_one(tokens):
    generator = np.random.default_rng(1)
    queries, keys = generator.normal(size=(2, 3, 7, 4))
    bilinear = np.einsum("hgi,hgj->hij", queries, keys) / np.sqrt(7)
    np.testing.assert_allclose(
        query_key_attention(tokens, queries, keys), bilinear_attention(tokens, bilinear), atol=1e-13
    )


def test_causal_and_hard_attention(tokens):
    weights = np.random.default_rng(1).normal(size=(1, 4, 4))
    causal = np.asarray(bilinear_attention(tokens, weights, causal=True))
    assert (causal[:, :, ~np.tri(5, dtype=bool)] == 0).all()
    np.testing.assert_allclose(causal.sum(-1), 1, atol=1e-14)
    # Dropping later tokens does not change what earlier ones attend to.
    np.testing.assert_allclose(
        causal[:, :, :3, :3], bilinear_attention(tokens[:, :3], weights, causal=True), atol=1e-14
    )
    hard = np.asarray(bilinear_attention(tokens, weights, hard=True))
    soft = np.asarray(bilinear_attention(tokens, 1e4 * weights))
    np.testing.assert_allclose(hard, soft, atol=1e-8)
    ties = attention_from_logits(np.zeros((1, 1, 4, 4)), hard=True)
    np.testing.assert_allclose(ties, 0.25)


def test_large_logits_do_not_overflow():
    attention = attention_from_logits(np.array([[[[1e6, 0.0], [-1e6, 0.0]]]]))
    np.testing.assert_allclose(attention[0, 0], [[1, 0], [0, 1]])


def test_uniform_random_given_and_joined(tokens):
    uniform = uniform_attention(tokens, heads=2)
    assert uniform.shape == (6, 2, 5, 5)
    np.testing.assert_allclose(uniform, 0.2)
    random = random_attention(tokens, heads=3, key=7)
    np.testing.assert_array_equal(random, random_attention(tokens, heads=3, key=jax.random.key(7)))
    assert np.abs(np.asarray(random) - np.asarray(random_attention(tokens, heads=3, key=8))).max() > 0.01
    joined = join_heads(uniform, random)
    assert joined.shape == (6, 5, 5, 5)
    np.testing.assert_array_equal(given_attention(joined), joined)


@pytest.mark.parametrize("readout", ["last", "first", "mean"])
def test_features_are_sums_over_all_token_routes(tokens, readout):
    """ω_π(s) by enumeration of every route s_1, s_2 through two layers (learning §2)."""
    layers = [random_attention(tokens, heads=heads, key=heads, scale=3.0) for heads in (3, 2)]
    features = PathFeatures.from_attention(tokens, layers, readout)
    position = {"last": [0, 0, 0, 0, 1], "first": [1, 0, 0, 0, 0], "mean": [0.2] * 5}[readout]
    low, high = (np.asarray(layer) for layer in layers)
    for example, first, second in itertools.product(range(6), range(3), range(2)):
        omega = np.zeros(5)
        for t, middle, s in itertools.product(range(5), repeat=3):
            omega[s] += position[t] * high[example, second, t, middle] * low[example, first, middle, s]
        path = first * 2 + second  # h_1 slowest, h_L fastest
        np.testing.assert_allclose(path_attention(tokens, layers, readout)[example, path], omega, atol=1e-13)
        np.testing.assert_allclose(features.values[example, path], omega @ tokens[example], atol=1e-13)


@pytest.mark.parametrize("readout", ["last", "first", "mean"])
def test_forward_is_a_sum_over_paths(tokens, readout):
    """f = (1/√Π) Σ_π e_π · V⁰ ξ_π / √(N_1 N0): the network seen as its paths."""
    arch = Architecture((3, 2), (4, 6, 5), (0.5, 1.0, 2.0, 0.7))
    layers = [random_attention(tokens, heads=heads, key=heads) for heads in (3, 2)]
    weights = prior_weights(arch, 4, key=0, draws=3)
    output = forward(arch, weights, tokens, layers, readout=readout)
    xi = PathFeatures.from_attention(tokens, layers, readout).values
    effective = effective_path_weights(arch, weights)
    by_paths = np.einsum("dai,dij,paj->dp", effective, weights.embedding, xi) / np.sqrt(6 * 4 * 4)
    np.testing.assert_allclose(output, by_paths, atol=1e-12)


def test_prior_covariance_is_the_kernel_of_the_limit(tokens):
    """⟨f f⟩ over prior weights is K(⟨U⟩) with ⟨U⟩ the infinite-width U, exactly at any width; z-test over all pairs."""
    arch = Architecture((2, 2), (2, 3, 2), (0.5, 1.0, 2.0, 0.7))
    layers = [random_attention(tokens, heads=2, key=key, scale=2.0) for key in (1, 2)]
    draws = 40_000
    output = np.asarray(forward(arch, prior_weights(arch, 4, key=5, draws=draws), tokens, layers))
    xi = np.asarray(PathFeatures.from_attention(tokens, layers).values)
    expected = dense_kernel(arch, xi, arch.infinite_width_variance * np.eye(4))
    products = np.einsum("dp,dq->dpq", output, output)
    z = (products.mean(0) - expected) / (products.std(0) / np.sqrt(draws))
    assert np.abs(z).max() < 4.5


def test_order_parameter_of_prior_weights():
    """Wishart chain: ⟨U⟩ is the infinite-width U."""
    arch = Architecture((2, 2), 50, (1.0, 1.5, 0.5, 2.0))
    gram = order_parameter_from_weights(arch, prior_weights(arch, 4, key=0, draws=1600))
    np.testing.assert_allclose(gram, 1.5 * np.eye(4), atol=0.05)


def test_one_network_needs_no_draw_axis(tokens):
    arch = Architecture((2,), 3)
    layers = [uniform_attention(tokens, heads=2)]
    single = prior_weights(arch, 4, key=0)
    several = Weights(single.embedding[None], tuple(v[None] for v in single.values), single.readout[None])
    assert forward(arch, single, tokens, layers).shape == (6,)
    np.testing.assert_allclose(
        forward(arch, single, tokens, layers), forward(arch, several, tokens, layers)[0], atol=1e-14
    )
    np.testing.assert_allclose(
        order_parameter_from_weights(arch, single), order_parameter_from_weights(arch, several), atol=1e-14
    )


def test_features_select_and_index():
    features = PathFeatures.from_attentioned_inputs(np.arange(24.0).reshape(4, 3, 2))
    assert features[1:3].examples == 2 and len(features[[0]]) == 1
    np.testing.assert_array_equal(features.select([2, 0]).values[0], [[4, 5], [0, 1]])
    assert repr(features) == "PathFeatures(examples=4, paths=3, token_width=2)"

"""Samplers of all weights: the path form, exact conditionals, moves that keep the posterior, agreement, errors."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thermoformer.learning import (
    Architecture,
    PathFeatures,
    SamplingWarning,
    Weights,
    forward,
    order_parameter_from_weights,
    prior_weights,
    sample_weights,
    sample_weights_on_paths,
    weight_sampling_memory,
)
from thermoformer.learning.gibbs import GibbsSweep
from thermoformer.learning.kernels import prepare, reachable_energy
from thermoformer.learning.network import network_output, order_factor, path_vectors, step_down
from thermoformer.learning.weights import Observed, Potential, path_data, queries_read

# Largest |z| allowed among up to a few hundred: once in thousands of seeds by chance, and the seeds are fixed.
LARGEST_Z = 4.5

NETWORKS = {
    "one output": Architecture((2, 1), (3, 2, 2), (1.3, 0.8, 1.2, 0.7)),
    "three outputs": Architecture((2, 1), (2, 3, 2), (1.3, 0.8, 1.2, 0.7), outputs=3),
    "skips": Architecture((2, 1), 2, (1.3, 0.8, 1.2, 0.7), skip=True),
    "skips, three outputs": Architecture((2, 1), 2, (1.3, 0.8, 1.2, 0.7), skip=True, outputs=3),
}


@pytest.fixture(params=NETWORKS)
def arch(request):
    return NETWORKS[request.param]


def tokens(arch, examples=4, length=3, width=2, seed=0):
    """Tokens, attention with a random mixture over keys, and labels."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(examples, length, width))
    attention = [generator.dirichlet(np.ones(length), size=(examples, heads, length)) for heads in arch.heads]
    labels = generator.normal(size=(examples, arch.outputs))
    return x, attention, labels[:, 0] if arch.outputs == 1 else labels


def sampling_problem(arch, examples=3, width=2, temperature=0.3, seed=0):
    generator = np.random.default_rng(seed)
    features = PathFeatures.from_attentioned_inputs(generator.normal(size=(examples, arch.paths, width)))
    labels = generator.normal(size=(examples, arch.outputs))
    labels = labels[:, 0] if arch.outputs == 1 else labels
    data, basis = path_data(arch, features, labels, temperature)
    assert basis is None and data.features.shape == features.values.shape
    return data, prepare(arch, features, labels)


def as_weights(arch, blocks):
    readout = blocks[-1][0] if arch.outputs > 1 else blocks[-1][0, 0]
    return Weights(blocks[0][0], tuple(blocks[1:-1]), readout)


def as_blocks(arch, weights):
    return [weights.embedding[None], *weights.values, weights.readout.reshape(1, arch.outputs, -1)]


@pytest.mark.parametrize(("name", "readout"), list(zip(NETWORKS, ("first", "mean", "last", "mean"), strict=True)))
def test_forward_equals_the_path_form(name, readout):
    arch = NETWORKS[name]
    x, attention, labels = tokens(arch)
    data, _ = path_data(arch, PathFeatures.from_attention(x, attention, readout, arch.skip), labels, 1.0)
    weights = prior_weights(arch, 2, key=1)
    direct = forward(arch, weights, x, attention, readout=readout)
    np.testing.assert_allclose(eqx.filter_jit(data.outputs)(weights).T.reshape(direct.shape), direct, atol=1e-14)


def test_a_draw_keeps_what_the_weights_say(arch):
    data, _ = sampling_problem(arch)
    weights = prior_weights(arch, 2, key=1)
    kept, outputs = jax.jit(lambda one: (Observed(data, False, True)(one), data.outputs(one)))(weights)
    np.testing.assert_allclose(kept["order_parameter"], order_parameter_from_weights(arch, weights), rtol=1e-12)
    found = kept["coefficients"].reshape(arch.outputs, -1) @ data.features.reshape(3, -1).T
    np.testing.assert_allclose(found, outputs, atol=1e-14)
    prior = sum(
        np.sum(np.square(leaf)) / variance
        for leaf, variance in zip(jax.tree.leaves(weights), arch.variances, strict=True)
    )
    expected = -(prior + np.sum(np.square(data.labels - found)) / 0.3) / 2
    assert float(kept["log_density"]) == pytest.approx(expected, rel=1e-12)


def test_rotated_examples_change_the_density_by_a_constant():
    arch = NETWORKS["three outputs"]
    generator = np.random.default_rng(0)
    xi, labels = generator.normal(size=(20, arch.paths, 2)), generator.normal(size=(20, 3))
    data, _ = path_data(arch, PathFeatures.from_attentioned_inputs(xi), labels, 0.3)
    assert len(data.features) == arch.paths * 2
    potential = eqx.filter_jit(Potential(data))
    gaps = []
    for key in range(3):
        position = prior_weights(arch.replace(variances=1.0), 2, key=key)
        blocks = [
            np.asarray(block)[None] * np.sqrt(variance)
            for block, variance in zip(as_blocks(arch, position), arch.variances, strict=True)
        ]
        outputs = dense_outputs(arch, xi / np.sqrt(2), blocks)[0].T
        prior = sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(position))
        gaps.append(float(potential(position)) - (prior + np.sum((labels - outputs) ** 2) / 0.3) / 2)
    np.testing.assert_allclose(gaps, gaps[0], rtol=1e-11)


def dense_outputs(arch, features, blocks):
    """f [draw, output, example] from blocks [draw, head, out, in], path by path as defined (learning §1, §8)."""
    total = 0.0
    for path, heads in enumerate(arch.path_heads()):
        state = features[None, :, path] @ blocks[0][:, 0].transpose(0, 2, 1)
        for layer, head in enumerate(heads):
            if head >= 0:
                scale = np.sqrt(arch.heads[layer] * arch.widths[layer])
                state = state @ blocks[layer + 1][:, head].transpose(0, 2, 1) / scale
        total = total + blocks[-1][:, 0] @ state.transpose(0, 2, 1) / np.sqrt(arch.widths[-1])
    return total


def test_every_block_draw_has_the_dense_conditional(arch):
    """Whitened by the Gaussian conditional from an explicit Jacobian, given all other blocks, draws are N(0, I)."""
    data, problem = sampling_problem(arch)
    draws, features = 3000, np.asarray(data.features)
    start = as_blocks(arch, prior_weights(arch, 2, key=3))

    above = [jnp.eye(arch.outputs)[:, None, :]]
    for layer in reversed(range(arch.layers + 1)):
        above.insert(0, step_down(arch, above[0], start[layer + 1], layer))

    @jax.jit
    def drawn(keys):
        return jax.lax.map(lambda key: GibbsSweep(data, problem).draw_all(key, start, above), keys)

    after = [np.asarray(block) for block in drawn(jax.random.split(jax.random.key(1), draws))]
    before = [np.broadcast_to(block, (draws, *block.shape)) for block in start]
    for index, variance in enumerate(arch.variances):
        # Blocks are drawn from V⁰ up: those below are new, those above are old.
        given = [*after[:index], np.zeros_like(after[index]), *before[index + 1 :]]
        constant = dense_outputs(arch, features, given).reshape(draws, -1)
        columns = []
        for place in range(after[index][0].size):
            given[index] = np.zeros_like(after[index])
            given[index].reshape(draws, -1)[:, place] = 1.0
            columns.append(dense_outputs(arch, features, given).reshape(draws, -1) - constant)
        jacobian = np.stack(columns, axis=2)
        precision = jacobian.transpose(0, 2, 1) @ jacobian / 0.3 + np.eye(len(columns)) / variance
        gap = np.asarray(data.labels).ravel() - constant
        mean = np.linalg.solve(precision, jacobian.transpose(0, 2, 1) @ gap[..., None] / 0.3)[..., 0]
        apart = after[index].reshape(draws, -1) - mean
        white = np.einsum("nij,ni->nj", np.linalg.cholesky(precision), apart)
        assert np.abs(white.mean(axis=0)).max() * np.sqrt(draws) < LARGEST_Z
        excess = white.T @ white / draws - np.eye(len(columns))
        assert np.abs(excess / np.sqrt((1 + np.eye(len(columns))) / draws)).max() < LARGEST_Z


def statistics(arch, blocks, problem, temperature):
    """What must keep its law: U, its logarithms, the misfit of the labels given U, squares and entries of weights."""
    factor = order_factor(arch, path_vectors(arch, blocks[-1], blocks[1:-1]))
    gram = factor @ factor.T
    factor = jnp.linalg.cholesky(gram + 1e-12 * jnp.eye(len(gram)))
    misfit = reachable_energy(problem, factor, temperature)
    squares = [jnp.sum(block**2) for block in blocks]
    entries = [block.ravel()[0] for block in blocks]
    upper = gram[jnp.triu_indices(len(gram))]
    return jnp.concatenate([upper, jnp.log(jnp.diagonal(gram)), jnp.stack([misfit, *squares, *entries])])


@pytest.mark.parametrize("name", ["one output", "skips, three outputs"])
def test_every_part_of_a_sweep_keeps_the_joint_law(name):
    """Weights from the prior and labels from the likelihood keep their joint law under whatever keeps the posterior.

    (Geweke 2004.) Rescalings and turns are also looked at alone: the draws after them would hide their errors. At a
    huge temperature the labels say nothing, and the same is the check that the prior is kept.
    """
    arch = NETWORKS[name]
    data, problem = sampling_problem(arch)
    replicas = 1500

    def changes(key, temperature):
        keys = jax.random.split(key, 5)
        start = as_blocks(arch, prior_weights(arch, 2, key=keys[0]))
        noise = jnp.sqrt(temperature) * jax.random.normal(keys[1], data.labels.shape)
        labels = data.outputs(as_weights(arch, start)) + noise
        sweep = GibbsSweep(
            eqx.tree_at(lambda one: (one.labels, one.temperature), data, (labels, temperature)),
            eqx.tree_at(lambda one: one.labels, problem, labels.ravel()),
        )

        def moved(step, key, times):
            return jax.lax.scan(lambda now, key: (step(key, now), None), start, jax.random.split(key, times))[0]

        states = [
            start,
            moved(lambda key, now: as_blocks(arch, sweep(key, as_weights(arch, now))), keys[2], 3),
            moved(lambda key, now: sweep.turn_all(key, now)[0], keys[3], 5),
        ]
        if not arch.skip:
            states.append(moved(sweep.rescale_all, keys[4], 5))
        states = jax.tree.map(lambda *blocks: jnp.stack(blocks), *states)
        found = jax.lax.map(lambda blocks: statistics(arch, blocks, sweep.problem, temperature), states)
        return found[1:] - found[:1]

    every = jax.jit(lambda keys, temperature: jax.lax.map(lambda key: changes(key, temperature), keys))
    for temperature in (0.05, 1e8):
        found = np.asarray(every(jax.random.split(jax.random.key(0), replicas), jnp.asarray(temperature)))
        spread = found.std(axis=0)
        moving = spread > 0  # turns leave V⁰ behind as it was
        assert np.abs(found.mean(axis=0)[moving] / spread[moving]).max() * np.sqrt(replicas) < LARGEST_Z


def test_rescaling_changes_weights_and_not_the_output():
    arch = NETWORKS["one output"]
    data, problem = sampling_problem(arch)
    before = as_blocks(arch, prior_weights(arch, 2, key=3))
    after = eqx.filter_jit(GibbsSweep(data, problem).rescale_all)(jax.random.key(0), before)
    outputs = [
        dense_outputs(arch, np.asarray(data.features), [np.asarray(block)[None] for block in blocks])
        for blocks in (before, after)
    ]
    np.testing.assert_allclose(*outputs, rtol=1e-12)
    assert all(np.abs(new - old).max() > 1e-3 for new, old in zip(after, before, strict=True))


@pytest.fixture(scope="module")
def small():
    """Tokens wider than the span of the training data, so that Gibbs samples only a part of V⁰."""
    arch = Architecture((2,), (4, 3), (1.0, 1.3, 0.8))
    x, attention, labels = tokens(arch, examples=3, width=8)
    new, new_attention, _ = tokens(arch, examples=5, width=8, seed=1)
    return arch, (x, attention, np.sign(labels)), PathFeatures.from_attention(new, new_attention)


@pytest.fixture(scope="module")
def gibbs(small):
    arch, training, _ = small
    return sample_weights(arch, *training, temperature=0.1, key=0, method="gibbs", draws=4000)


@pytest.fixture(scope="module")
def nuts(small):
    arch, training, _ = small
    return sample_weights(arch, *training, temperature=0.1, key=0, draws=1500, keep_weights=True)


def test_gibbs_and_nuts_agree(small, gibbs, nuts):
    """Also where new examples leave the span of the training data: NUTS keeps, and so samples, all of V⁰."""
    assert gibbs.diagnostics.mixed and nuts.diagnostics.mixed
    error = np.hypot(gibbs.order_parameter_error, nuts.order_parameter_error)
    assert np.abs((gibbs.order_parameter - nuts.order_parameter) / error).max() < LARGEST_Z
    ours, theirs = gibbs.predict(small[2]), nuts.predict(small[2])
    for part in ("mean", "variance"):
        error = np.hypot(getattr(ours, part + "_error"), getattr(theirs, part + "_error"))
        assert np.abs((getattr(ours, part) - getattr(theirs, part)) / error).max() < LARGEST_Z


def test_kept_weights_give_the_predictor(small, nuts):
    arch, (x, attention, _), new = small
    last = jax.tree.map(lambda leaf: leaf[1, -3:], nuts.weights)
    direct = forward(arch, last, x, attention)
    found = nuts.predictor_draws(PathFeatures.from_attention(x, attention))
    assert found.shape == (2, 1500, 3)
    np.testing.assert_allclose(found[1, -3:], direct, atol=1e-12)
    prediction = nuts.predict(new)
    draws = nuts.predictor_draws(new)
    np.testing.assert_allclose(prediction.mean, draws.mean(axis=(0, 1)), rtol=1e-10)
    np.testing.assert_allclose(prediction.variance, draws.var(axis=(0, 1)), rtol=1e-8)
    np.testing.assert_allclose(nuts.predict_tokens(x, attention).mean, found.mean(axis=(0, 1)), rtol=1e-10)


def test_draws_leave_as_named_arrays(nuts, gibbs):
    assert gibbs.weights is None and "embedding" not in gibbs.to_xarray()["posterior"]
    posterior = nuts.to_xarray()["posterior"]
    assert posterior["order_parameter"].dims == ("chain", "draw", "path", "path_other")
    assert posterior["coefficients"].shape == (2, 1500, 2, 8)
    assert posterior["values_1"].dims == ("chain", "draw", "head_1", "unit_2", "unit_1")
    np.testing.assert_array_equal(posterior["readout"], nuts.weights.readout)
    assert nuts.to_xarray()["sample_stats"]["lp"].shape == (2, 1500)


def test_the_same_key_gives_the_same_draws(small, gibbs):
    arch, training, new = small
    again = sample_weights(arch, *training, temperature=0.1, key=jax.random.key(0), method="gibbs", draws=4000)
    np.testing.assert_array_equal(again.predict(new).mean, gibbs.predict(new).mean)
    other = sample_weights(arch, *training, temperature=0.1, key=1, method="gibbs", draws=4000)
    assert np.abs(other.predict(new).mean - gibbs.predict(new).mean).max() > 0


@pytest.mark.parametrize(
    ("name", "readout"),
    [("one output", "first"), ("skips", "first"), ("skips, three outputs", "last"), ("skips", "mean")],
)
def test_only_the_query_that_is_read_is_needed(name, readout):
    arch = NETWORKS[name]
    x, attention, _ = tokens(arch)
    weights = prior_weights(arch, 2, key=0)
    few = queries_read([jnp.asarray(layer) for layer in attention], readout)
    assert few[-1].shape[2] == (3 if readout == "mean" else 1)
    with jax.numpy_rank_promotion("raise"):
        found = network_output(weights, jnp.asarray(x), few, readout, skip=arch.skip, layer_norm="pre")
    whole = forward(arch, weights, x, attention, readout=readout, layer_norm=True)
    np.testing.assert_allclose(found, whole, rtol=1e-12)


def test_layer_norm_runs_on_tokens():
    arch = Architecture((1, 1), 3, skip=True, outputs=2)
    x, attention, labels = tokens(arch)
    messages = []
    # So few draws never count as mixed, and say so.
    with pytest.warns(SamplingWarning, match="nuts has not mixed: .*effective sample size") as caught:
        posterior = sample_weights(
            arch,
            x,
            attention,
            labels,
            temperature=0.1,
            key=0,
            draws=20,
            warmup=80,
            layer_norm=True,
            progress=lambda done, total, message: messages.append(message),
        )
    assert not posterior.diagnostics.mixed and caught[0].filename == __file__
    assert messages[0].startswith("NUTS, warm-up") and all(message.endswith("GB") for message in messages)
    draws = posterior.token_draws(x, attention)
    assert draws.shape == (2, 20, 4, 2)
    one = jax.tree.map(lambda leaf: leaf[1, 7], posterior.weights)
    np.testing.assert_allclose(draws[1, 7], forward(arch, one, x, attention, layer_norm=True), rtol=1e-10)
    prediction = posterior.predict_tokens(x, attention)
    np.testing.assert_allclose(prediction.mean, draws.mean(axis=(0, 1)), rtol=1e-10)
    # Four examples and many weights: the labels are met as far as noise allows.
    assert np.sqrt(np.mean((prediction.mean - labels) ** 2)) < np.sqrt(0.1)
    with pytest.raises(ValueError, match="features: got attentioned inputs; expected tokens"):
        posterior.predict(PathFeatures.from_attention(x, attention, skip=True))
    with pytest.raises(ValueError, match="x: got token width 3; expected 2"):
        posterior.predict_tokens(np.ones((4, 3, 3)), attention)


def test_memory_counts_what_is_kept(nuts):
    arch = nuts.architecture
    needed = weight_sampling_memory(arch, 8, 3, draws=1500, chains=2, keep_weights=True)
    kept = sum(values.nbytes for values in nuts.to_xarray()["posterior"].data_vars.values())
    assert kept < needed < 20 * kept
    assert weight_sampling_memory(arch, 8, 3, draws=1500) < needed
    # The largest network of learning §10 fits, unless all its weights are to be kept.
    large = Architecture((2, 2), 1000)
    assert weight_sampling_memory(large, 231, 100, method="gibbs") < 1e9
    assert weight_sampling_memory(large, 231, 100, method="gibbs", keep_weights=True) > 1e10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draws": 0}, "draws: got 0; expected a whole number, 1 or more"),
        ({"chains": 0}, "chains: got 0; expected a whole number, 1 or more"),
        ({"warmup": 0}, "warmup: got 0; expected a whole number, 1 or more"),
        ({"method": "hmc"}, "method: got 'hmc'; expected one of 'nuts', 'gibbs'"),
        ({"readout": "middle"}, "readout: got 'middle'; expected one of"),
        ({"temperature": 0.0}, "temperature: got 0.0; expected a number above 0"),
        ({"labels": np.ones((4, 2))}, r"labels: got shape \(4, 2\); expected 1 axis"),
        ({"labels": np.ones(3)}, "labels: got 3 labels; expected 4"),
        ({"memory_limit": 1e3}, "memory_limit: got 1e\\+03 bytes; expected at least .* bytes for this run"),
        ({"memory_limit": 0}, "memory_limit: got 0.0; expected a number above 0"),
        ({"layer_norm": True, "method": "gibbs"}, "method: got 'gibbs'; expected 'nuts' with layer_norm=True"),
        ({"layer_norm": True, "memory_limit": 1e3}, "memory_limit: got 1e\\+03 bytes"),
        ({"key": "seed"}, "key: got 'seed'; expected an integer or one JAX random key"),
        ({"attention": [np.full((4, 3, 3, 3), 1 / 3)]}, r"attention: got heads \(3,\); expected \(2,\)"),
    ],
)
def test_bad_input_is_named(change, message):
    arch = Architecture((2,), 3)
    x, attention, labels = tokens(arch)
    given = {"x": x, "attention": attention, "labels": labels, "temperature": 0.1, "key": 0} | change
    with pytest.raises(ValueError, match=message):
        sample_weights(arch, **given)


def test_paths_of_another_network_are_named(small, gibbs):
    _, (_, _, labels), new = small
    with pytest.raises(ValueError, match="features: got 2 paths; expected 3"):
        sample_weights_on_paths(Architecture((3,), 4), new, labels, temperature=0.1, key=0)
    with pytest.raises(ValueError, match="features: got 1 paths of token width 8; expected 2 paths of token width 8"):
        gibbs.predict(new.select([0]))

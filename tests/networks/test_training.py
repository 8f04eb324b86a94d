from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import training_process
from safetensors import safe_open
from safetensors.numpy import save_file
from training_process import ARCH, SETTINGS, batch

from thermoformer.learning import Architecture, Weights
from thermoformer.learning.scores import path_factors
from thermoformer.networks import AttentionNetwork, TrainingSettings, save_network, train
from thermoformer.networks.files import TrainingState, read_checkpoint, sole_writer, write_checkpoint
from thermoformer.networks.training import _weights, dropped_heads, initial_parameters, learning_rate

SHORT = replace(SETTINGS, steps=6, validate_every=2, checkpoint_every=2)


@pytest.fixture(scope="module")
def undisturbed():
    return training_process.run()


def test_descent_lowers_the_loss(undisturbed):
    history = undisturbed.history
    assert float(history.loss[-30:].mean()) < 0.4 * float(history.loss[:5].mean())
    assert undisturbed.best_accuracy > 0.85 and undisturbed.stopped == "all 240 steps done"
    assert undisturbed.best_loss == float(history.validation_loss.min())
    assert undisturbed.best_step == int(history.validation_step[np.argmin(history.validation_loss.values)])
    assert history.validation_step.values.tolist() == list(range(30, 241, 30))
    assert history.step.values.tolist() == list(range(1, 241)) and undisturbed.precision == "float32"


def test_the_network_has_the_numbers_of_its_history(undisturbed):
    x, y = batch(10**6)
    predicted = np.asarray(undisturbed.network.predict(x))
    assert np.mean((predicted - y) ** 2) == pytest.approx(undisturbed.best_loss, rel=1e-5)
    assert np.mean(np.sign(predicted) == y) == undisturbed.best_accuracy


def test_the_first_steps_are_adam_on_the_network_of_the_theory():
    """One Adam step by hand: sign of the gradient times the rate, in weights over the root of their fan-in."""
    settings = replace(SETTINGS, steps=1, validate_every=1, weight_decay=0.3, schedule="constant", clip=None)
    trained = train(ARCH, batch, batch(5), settings=settings, key=3).network
    start = initial_parameters(ARCH, 4, settings, jax.random.key(3))
    x, y = batch(0)

    def loss(parameters):
        weights = Weights(
            parameters.embedding * 2, tuple(v * 6**0.5 for v in parameters.values), parameters.readout * 6**0.5
        )
        q = [jnp.einsum("pti,hgi->phtg", x, query) for query in parameters.queries]
        k = [jnp.einsum("pti,hgi->phtg", x, key) for key in parameters.keys]
        attention = [jax.nn.softmax(jnp.einsum("phtg,phsg->phts", *pair) / 3**0.5) for pair in zip(q, k, strict=True)]
        z = jnp.einsum("pti,oi->pto", x, weights.embedding) / 2
        for layer, value in zip(attention, weights.values, strict=True):
            z = jnp.einsum("phts,psi,hoi->pto", layer, z, value) / 12**0.5
        return jnp.mean((z.mean(axis=1) @ weights.readout / 6**0.5 - y) ** 2)

    start = jax.tree.map(lambda array: np.asarray(array, float), start)
    start, slopes = jax.device_get((start, jax.jit(jax.grad(loss))(start)))
    gradient = jax.tree.map(lambda slope, weight: slope + 0.3 * weight, slopes, start)
    moved = jax.tree.map(lambda weight, slope: weight - 0.01 * slope / (np.abs(slope) + 1e-8), start, gradient)
    np.testing.assert_allclose(trained.weights.embedding, moved.embedding * 2, rtol=1e-4, atol=1e-5)
    for layer in (0, 1):
        np.testing.assert_allclose(trained.weights.values[layer], moved.values[layer] * 6**0.5, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(trained.queries[layer], moved.queries[layer], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(trained.keys[layer], moved.keys[layer], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(trained.weights.readout, moved.readout * 6**0.5, rtol=1e-4, atol=1e-5)


def test_first_loss_is_that_of_random_weights():
    settings = replace(SHORT, scale=0.7, key_scale=2.0)
    first = train(ARCH, batch, batch(5), settings=settings, key=3).history.loss[0]
    start = jax.device_get(initial_parameters(ARCH, 4, settings, jax.random.key(3)))
    x, y = batch(0)
    z = x @ start.embedding.T
    for query, key, value in zip(start.queries, start.keys, start.values, strict=True):
        logits = np.einsum("pqi,hgi,hgj,pkj->phqk", x, query, key, x) / 3**0.5
        attention = np.exp(logits - logits.max(-1, keepdims=True))
        attention /= attention.sum(-1, keepdims=True)
        z = np.einsum("phts,psi,hoi->pto", attention, z, value) / 2**0.5  # two heads
    assert np.mean((z.mean(axis=1) @ start.readout - y) ** 2) == pytest.approx(float(first), rel=1e-5)
    # In the form of the theory a weight is the trained number times the root of its fan-in.
    assert np.std(np.concatenate([np.ravel(v) for v in start.values])) * 6**0.5 == pytest.approx(0.7, rel=0.1)
    assert np.std(np.concatenate([np.ravel(q) for q in start.queries])) * 4**0.5 == pytest.approx(2.0, rel=0.25)


def test_a_training_that_is_killed_goes_on_to_the_same_bit(undisturbed, tmp_path):
    """SIGKILL at a random moment; then the rest here, in another process."""
    checkpoint = tmp_path / "run.safetensors"
    moments = random.Random(os.getpid())
    process = subprocess.Popen(
        [sys.executable, training_process.__file__, checkpoint], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 40:
            break
    time.sleep(moments.uniform(0, 0.5))
    process.send_signal(signal.SIGKILL)
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL and checkpoint.exists()
    resumed = training_process.run(str(checkpoint))
    np.testing.assert_array_equal(resumed.history.loss, undisturbed.history.loss)
    np.testing.assert_array_equal(resumed.history.validation_loss, undisturbed.history.validation_loss)
    for mine, theirs in zip(
        jax.tree.leaves(resumed.network.weights), jax.tree.leaves(undisturbed.network.weights), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    left = {file.name for file in tmp_path.iterdir()} - {".run.safetensors.part"}
    assert left == {"run.safetensors", ".run.safetensors.lock"}


def test_two_processes_do_not_train_into_one_file(tmp_path):
    checkpoint = tmp_path / "run.safetensors"
    process = subprocess.Popen(
        [sys.executable, training_process.__file__, checkpoint], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(
        ValueError, match=rf"checkpoint: got .*run.safetensors, which process {process.pid} on .* is training into; "
    ):
        training_process.run(str(checkpoint))
    process.kill()
    process.stdout.close()
    process.wait()
    # The lock of a process that died is no lock.
    assert training_process.run(str(checkpoint)).stopped == "all 240 steps done"


def test_a_finished_run_is_read_while_another_holds_the_file(tmp_path):
    file = tmp_path / "run.safetensors"
    train(ARCH, batch, batch(5), settings=SHORT, key=3, checkpoint=file)
    with sole_writer(file):
        assert train(ARCH, batch, batch(5), settings=SHORT, key=3, checkpoint=file).stopped == "all 6 steps done"


def test_a_finished_run_is_read_and_not_repeated(tmp_path):
    file = tmp_path / "run.safetensors"
    first = train(ARCH, batch, batch(5), settings=SHORT, key=3, checkpoint=file)
    numbers = []

    def counted(number):
        numbers.append(number)
        return batch(number)

    again = train(ARCH, counted, batch(5), settings=replace(SHORT, checkpoint_every=5), key=3, checkpoint=file)
    assert numbers == [0] and again.stopped == first.stopped
    np.testing.assert_array_equal(again.history.loss, first.history.loss)


def test_it_stops_when_validation_gets_no_better():
    x, y = batch(0)
    settings = replace(SETTINGS, patience=2, validate_every=10)
    found = train(ARCH, batch, (x, -y), settings=settings, key=3)  # what is learned is wrong there
    assert found.stopped.startswith("no lower validation loss in 2 validations, at step ")
    assert found.history.sizes["step"] == found.best_step + 20 < 240


def test_the_rate_rises_and_falls():
    settings = TrainingSettings(steps=100, warmup=10, learning_rate=2.0)
    rates = [learning_rate(settings, step) for step in range(100)]
    assert rates[0] == 0 and rates[10] == 2.0 and rates[55] == pytest.approx(1.0) and 0 < rates[99] < 0.001
    assert np.argmax(rates) == 10 and (np.diff(rates[10:]) < 0).all()
    constant = replace(settings, schedule="constant")
    assert [learning_rate(constant, step) for step in (5, 10, 99)] == [1.0, 2.0, 2.0]


def test_a_gradient_that_is_too_long_is_cut():
    """Cut to a norm far below Adam's 1e-8, it moves nothing."""
    settings = replace(SHORT, clip=1e-14, weight_decay=0.0)
    found = train(ARCH, batch, batch(5), settings=settings, key=3)
    start = initial_parameters(ARCH, 4, settings, jax.random.key(3))
    np.testing.assert_allclose(found.network.weights.embedding, np.asarray(start.embedding, float) * 2, atol=1e-6)


@pytest.mark.parametrize("skip", [False, True])
def test_dropped_heads_are_those_of_pruned_networks(skip):
    arch, rate = Architecture((3, 2), 6, skip=skip), 0.4
    factors = np.asarray(dropped_heads(arch, rate, jax.random.key(0), 4000))
    sets = [
        [(0, h) for h in range(3) if h not in first] + [(1, h) for h in range(2) if h not in second]
        for first in ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2])
        for second in ([0], [1], [0, 1])
    ]
    known = np.array([path_factors(arch, gone) for gone in sets])
    nearest = np.abs(factors[:, None] - known[None]).max(axis=2)
    np.testing.assert_allclose(nearest.min(axis=1), 0, atol=1e-6)
    share = np.bincount(nearest.argmin(axis=1), minlength=len(sets)) / len(factors)
    # Independent heads; where all of a layer would go, one of them stays.
    whole = {1: 0.6 * 0.4**2 + 0.4**3 / 3, 2: 0.6**2 * 0.4, 3: 0.6**3}, {1: 0.6 * 0.4 + 0.4**2 / 2, 2: 0.6**2}
    expected = [whole[0][3 - sum(at == 0 for at, _ in gone)] * whole[1][2 - sum(at for at, _ in gone)] for gone in sets]
    assert np.abs(share - expected).max() < 5 * np.sqrt(max(expected) / len(factors))


def test_training_with_dropped_heads():
    settings = replace(SHORT, steps=2, head_dropout=0.5, validate_every=1)
    trained = train(ARCH, batch, batch(5), settings=settings, key=3)
    start = initial_parameters(ARCH, 4, settings, jax.random.key(3))
    x, y = batch(0)
    network = AttentionNetwork(ARCH, _weights(ARCH, start), start.queries, start.keys, settings.readout)
    factors = dropped_heads(ARCH, 0.5, jax.random.fold_in(jax.random.key(3), 0), len(x))
    expected = float(np.mean((np.sum(network.path_contributions(x) * factors, axis=1) - y) ** 2))
    assert float(trained.history.loss[0]) == pytest.approx(expected, rel=1e-5)
    # Validation has all heads.
    found = np.mean((np.asarray(trained.network.predict(batch(5)[0])) - batch(5)[1]) ** 2)
    assert trained.best_loss == pytest.approx(found, rel=1e-5)


def test_frozen_heads_stay_and_the_rest_is_trained():
    settings = replace(SHORT, frozen_heads=True, weight_decay=0.1, clip=None)
    start = train(ARCH, batch, batch(5), settings=SHORT, key=4).network
    found = train(ARCH, batch, batch(5), settings=settings, key=3, start=start).network
    for ours, theirs in zip((*found.queries, *found.keys), (*start.queries, *start.keys), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not np.allclose(found.weights.embedding, start.weights.embedding)
    # Queries and keys that are trained move.
    free = train(ARCH, batch, batch(5), settings=replace(settings, frozen_heads=False), key=3, start=start).network
    assert not np.allclose(free.queries[0], start.queries[0])


def test_progress_is_told():
    told = []
    train(ARCH, batch, batch(5), settings=replace(SETTINGS, steps=60), key=3, progress=lambda *now: told.append(now))
    assert told[-1][:2] == (60, 60) and "validation loss" in told[-1][2] and "accuracy" in told[-1][2]


def test_other_readouts_and_several_outputs():
    arch = Architecture((2,), 6, outputs=2)

    def two(number):
        x, y = batch(number)
        return x, np.stack([y, -y], axis=1)

    found = train(arch, two, two(5), settings=replace(SHORT, readout="last"), key=3)
    x, y = two(5)
    assert found.network.readout == "last"
    assert np.mean((found.network.predict(x) - y) ** 2) == pytest.approx(found.best_loss, rel=1e-5)


def test_a_checkpoint_of_another_run_is_refused_and_left_alone(tmp_path):
    file = tmp_path / "run.safetensors"
    train(ARCH, batch, batch(5), settings=SHORT, key=3, checkpoint=file)
    whole = file.read_bytes()

    def try_again(message, arch=ARCH, batches=batch, validation=None, settings=SHORT, key=3):
        with pytest.raises(ValueError, match=message):
            train(arch, batches, validation or batch(5), settings=settings, key=key, checkpoint=file)
        assert file.read_bytes() == whole

    try_again(
        "checkpoint: got a run with widths = \\[7, 7, 7\\]; expected widths = \\[6, 6, 6\\]",
        arch=Architecture((2, 2), 7),
    )
    try_again("checkpoint: got a run with steps = 7; expected steps = 6", settings=replace(SHORT, steps=7))
    try_again("a run with learning_rate = 0.02", settings=replace(SHORT, learning_rate=0.02))
    try_again("a run with key = ", key=4)
    try_again("a run on other data; expected the same data", batches=lambda number: batch(number + 1))
    try_again("a run on other data", validation=batch(6))
    for content in (whole[:50], whole[:-4], b"", b"words"):
        file.write_bytes(content)
        whole = content
        try_again("it is left as it is")
    file.unlink()
    network = train(ARCH, batch, batch(5), settings=SHORT, key=3).network
    whole = save_network(network, file).read_bytes()
    try_again("it is 'thermoformer network 1'.*expected a file of 'thermoformer training 1'")


def test_checkpoints_show_when_they_are_damaged(tmp_path):
    file, settings, data = tmp_path / "run.safetensors", {"width": 5}, [0.5, 2.0]
    tree = {"a": jnp.ones(2)}
    fresh = TrainingState(0, tree, tree, tree, np.zeros(0), np.zeros((0, 3)), "")
    write_checkpoint(file, fresh._replace(step=2, losses=np.ones(2)), settings, data)
    whole = file.read_bytes()
    assert read_checkpoint(file, fresh, settings, data).step == 2
    with safe_open(file, "numpy") as opened:
        metadata = opened.metadata()
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match="its checksum does not match its content"):
        read_checkpoint(file, fresh, settings, data)
    # Files of earlier versions have no checksum.
    del metadata["checksum"]
    header = json.loads(metadata["header"])
    for changes, message in (
        ({}, ""),
        ({"step": 3}, "losses .2,. and validation .0, 3. of 3 steps"),
        ({"step": "2"}, "step in its header is missing or of another type"),
        ({"stopped": 5}, "stopped in its header"),
        ({"settings": [1]}, "settings in its header"),
        ({"data": 1.5}, "data in its header"),
        ({"data": ["x", {}]}, "a run on other data"),
    ):
        save_file(arrays, file, metadata | {"header": json.dumps(header | changes)})
        if changes:
            with pytest.raises(ValueError, match=f"checkpoint: got .*{message}.*; expected"):
                read_checkpoint(file, fresh, settings, data)
        else:
            assert read_checkpoint(file, fresh, settings, data).step == 2


def test_a_loss_that_is_not_finite_is_an_error_and_keeps_the_checkpoint(tmp_path):
    file = tmp_path / "run.safetensors"

    def spoiled(number):
        x, y = batch(number)
        return (x * np.nan if number == 3 else x), y

    with pytest.raises(ValueError, match="loss: got nan at step 3; expected finite numbers: a lower learning_rate"):
        train(ARCH, spoiled, batch(5), settings=SHORT, key=3, checkpoint=file)
    resumed = train(ARCH, batch, batch(5), settings=SHORT, key=3, checkpoint=file)
    np.testing.assert_array_equal(
        resumed.history.loss, train(ARCH, batch, batch(5), settings=SHORT, key=3).history.loss
    )


def test_bad_batches():
    x, y = batch(0)

    def try_with(message, batches=batch, validation=(x, y), arch=ARCH):
        with pytest.raises(ValueError, match=message):
            train(arch, batches, validation, settings=SHORT, key=0)

    try_with("batches\\(0\\): got a ndarray; expected two arrays", batches=lambda number: x)
    try_with("batches\\(0\\): tokens: got shape", batches=lambda number: (x[0], y))
    try_with("batches\\(0\\): labels: got 3 labels; expected 16", batches=lambda number: (x, y[:3]))
    try_with("batches\\(0\\): tokens: got .* NaN", batches=lambda number: (x * np.nan, y))
    try_with("batches\\(1\\): got shapes \\(16, 5, 4\\)", batches=lambda number: (x[:, number:], y))
    try_with("validation: tokens: got shape", validation=(y, y))
    try_with("validation: got tokens \\(5, 4\\); expected \\(6, 4\\), as in batches\\(0\\)", validation=(x[:, 1:], y))
    try_with("batches\\(0\\): labels: got shape \\(16,\\)", arch=Architecture((2,), 3, outputs=2))
    with pytest.raises(ValueError, match="key: got 'seed'"):
        train(ARCH, batch, batch(5), settings=SHORT, key="seed")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("key_size", 1.5),
        ("readout", "middle"),
        ("learning_rate", 0),
        ("weight_decay", -1),
        ("clip", 0),
        ("head_dropout", 1.0),
        ("warmup", 100),
        ("schedule", "steps"),
        ("scale", float("nan")),
        ("key_scale", -1),
        ("validate_every", 0),
        ("patience", 0),
        ("checkpoint_every", 0),
        ("precision", "float8"),
    ],
)
def test_bad_settings(name, value):
    with pytest.raises(ValueError, match=f"^{name}: got "):
        TrainingSettings(**({"steps": 100} | {name: value}))

"""Sweep points and chains over several devices, here two made of one processor: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

SCRIPT = """
import tempfile
import warnings
import jax, jax.numpy as jnp, numpy as np
from thermoformer.learning import Architecture, PathFeatures, sample_weights_on_paths
from thermoformer.sweeps import Sweep

assert jax.local_device_count() == 2
seen = []

def together(a, b, seed):
    seen.append(len(a.sharding.device_set) if hasattr(a, "sharding") else 1)
    return {"sum": jnp.sin(a) + b, "noise": jax.vmap(lambda s: jax.random.normal(jax.random.key(s)))(seed)}

def one(a, b, seed):
    return {"sum": jnp.sin(a) + b, "where": float(jnp.zeros(()).device.id)}

grid = {"a": [1.0, 2.0, 3.0], "b": np.arange(5.0)}
folder = tempfile.mkdtemp
alone = Sweep(together, grid, folder(), batch=5, vectorised=True).run()
assert set(seen) == {1}
seen.clear()
shared = Sweep(together, grid, folder(), batch=5, vectorised=True).run(devices=2)  # 5 points do not come out even
assert set(seen) == {2}
for name in ("sum", "noise"):
    np.testing.assert_allclose(shared[name], alone[name], rtol=1e-15, atol=1e-15)
threads = Sweep(one, grid, folder()).run(devices=2)
np.testing.assert_allclose(threads["sum"], alone["sum"], rtol=1e-15)
assert set(threads["where"].values.ravel().tolist()) == {0.0, 1.0}

def refused(call, words):
    try:
        call()
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)

refused(lambda: Sweep(one, grid, folder()).run(devices=3), "devices: got 3; expected at most 2")
refused(lambda: Sweep(one, grid, folder()).run("processes", devices=2), "devices: got 2; expected none with")

warnings.simplefilter("ignore")
features = PathFeatures.from_attentioned_inputs(np.random.default_rng(0).normal(size=(8, 1, 3)))
given = {"temperature": 0.1, "key": 0, "draws": 30, "warmup": 20, "chains": 4, "method": "gibbs"}
problem = (Architecture((1,), 4), features, np.sign(np.arange(8) - 3.5))
first = sample_weights_on_paths(*problem, **given)
second = sample_weights_on_paths(*problem, devices=2, **given)
np.testing.assert_allclose(first.order_parameter, second.order_parameter, rtol=1e-12)
refused(lambda: sample_weights_on_paths(*problem, devices=2, **(given | {"chains": 3})), "a divisor of the 3 chains")
print("fine")
"""


def test_points_and_chains_share_two_devices():
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.stdout.strip() == "fine", run.stderr

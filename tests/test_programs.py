"""Compiled programs on disk: found by the next process, limited in size, and off where the user says so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from thermoformer import _programs

CODE = """
import jax, jax.monitoring
import thermoformer.learning
seen = []
jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
print(float(jax.jit(lambda x: x * 3 + 1)(2.0)), "/jax/compilation_cache/cache_hits" in seen)
"""


def run(**environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "THERMOFORMER_"))}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=kept | environment)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.strip()


def test_the_next_process_finds_the_program(tmp_path):
    first, second = (run(THERMOFORMER_CACHE=str(tmp_path / "cache")) for _ in range(2))
    assert first == "7.0 False" and second == "7.0 True"
    # Half a file, as a killed process leaves it: compiled again, without a warning.
    (folder,) = (tmp_path / "cache").iterdir()
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:100])
    assert run(THERMOFORMER_CACHE=str(tmp_path / "cache")) == "7.0 False"


@pytest.mark.parametrize("folder", ["", "0", "/dev/null/nowhere"])
def test_off_or_not_writable(folder, tmp_path):
    assert run(THERMOFORMER_CACHE=folder, HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path)) == "7.0 False"
    assert not list(tmp_path.iterdir())


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    for age, name in enumerate("abcd"):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000))
    _programs._shrink(tmp_path, most=400)
    assert len(list(tmp_path.iterdir())) == 4
    _programs._shrink(tmp_path, most=399)
    assert {file.name for file in tmp_path.iterdir()} == {"a"}

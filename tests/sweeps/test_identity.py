"""A folder is continued only by the function that began it, with the same bound values, and runs no other program."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import sweep_functions as functions

from thermoformer.sweeps import StoreError, Sweep
from thermoformer.sweeps.identity import recorded, revision_of, same_record

CONSTANT = 2.0


@dataclass
class Scaled:
    """An object that can be called, and has a method."""

    factor: float

    def __call__(self, a):
        return {"x": a * self.factor}

    def times(self, a):
        return {"x": a * self.factor}


class Plain:
    """Without a text of its own that tells two of them apart."""

    def __init__(self, factor):
        self.factor = factor

    @functools.cached_property
    def square(self):
        return self.factor**2


def power(a, p=1, q=1):
    return {"x": a**p * q}


def closing(p):
    def inner(a):
        return {"x": a * np.size(p)}

    return inner


def with_default(value):
    def inner(a, p=value, *, q=value):
        return {"x": a * p * q}

    return inner


def with_global(a):
    return {"x": [a * CONSTANT for _ in range(1)]}


def weighed(a, weights):
    return {"x": a * weights.factor}


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda p: functools.partial(power, p=p), "bound 'partial p' (2, now 9)"),
        (lambda p: functools.partial(functools.partial(power, q=3), p=p), "bound 'partial p' (2, now 9)"),
        (lambda p: closing(p), "bound 'closure p' (2, now 9)"),
        (lambda p: closing(np.arange(p)), "bound 'closure p' (int64[2], now int64[9])"),
        (lambda p: closing((1, p)), "bound 'closure p' ((1, 2), now (1, 9))"),
        (lambda p: closing({3: [p]}), "bound 'closure p' ({3: [2]}, now {3: [9]})"),
        (lambda p: functools.partial(closing(p)), "bound 'closure p' (2, now 9)"),
        (with_default, "bound 'default p' (2, now 9)"),
        (Scaled, "bound 'self' (Scaled(factor=2), now Scaled(factor=9))"),
        (lambda p: Scaled(p).times, "bound 'self' (Scaled(factor=2), now Scaled(factor=9))"),
    ],
)
def test_another_bound_value_is_refused_and_named(tmp_path, make, what):
    Sweep(make(2), {"a": [1, 2]}, tmp_path / "s").run(only={"a": [1]})
    assert Sweep(make(2), {"a": [1, 2]}, tmp_path / "s").changes() == []
    changed = Sweep(make(9), {"a": [1, 2]}, tmp_path / "s")
    with pytest.raises(StoreError) as caught:
        changed.run()
    assert f"made with {what}; expected no change in bound" in str(caught.value)
    assert changed.run(accept_changes=True).x.shape == (2,) and changed.changes() == []


def test_constants_of_the_module_and_fixed_objects_count(tmp_path, monkeypatch):
    Sweep(with_global, {"a": [1]}, tmp_path / "g").run()
    monkeypatch.setitem(globals(), "CONSTANT", 9.0)
    with pytest.raises(StoreError, match=r"bound 'global CONSTANT' \(2.0, now 9.0\)"):
        Sweep(with_global, {"a": [1]}, tmp_path / "g").run()
    Sweep(weighed, {"a": [1]}, tmp_path / "f", fixed={"weights": Plain(2)}).run()
    same = Plain(2)
    assert same.square == 4  # a value that is kept does not make it another object
    assert Sweep(weighed, {"a": [1]}, tmp_path / "f", fixed={"weights": same}).changes() == []
    with pytest.raises(StoreError, match="made with fixed 'weights' .*Plain object"):
        Sweep(weighed, {"a": [1]}, tmp_path / "f", fixed={"weights": Plain(9)}).run()


def test_a_value_that_cannot_be_compared_is_refused(tmp_path):
    lock = threading.Lock()

    def locked(a):
        with lock:
            return {"x": a}

    sweep = Sweep(locked, {"a": [1, 2]}, tmp_path / "s")
    sweep.run(only={"a": [1]})
    with pytest.raises(StoreError, match="'closure lock' .* has changed or cannot be compared"):
        sweep.run()
    assert sweep.run(accept_changes=True).x.values.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ([1, 2], (1, 2)),
        (np.arange(3), np.arange(3.0)),
        (np.random.default_rng(0), np.random.default_rng(1)),
        (Path("a"), Path("b")),
        (np.sin, np.cos),
        (OrderedDict(a=1), OrderedDict(a=2)),
        (power, functools.partial(power)),
        ({1, 2}, {1, 3}),
    ],
)
def test_different_values_have_different_records(one, other):
    assert same_record(recorded(one), recorded(one)) and same_record(recorded(other), recorded(other))
    assert not same_record(recorded(one), recorded(other))


def test_records_are_the_same_in_every_process():
    """Also of sets and objects, whose order and place in memory change."""
    code = """
import functools, json, numpy as np
from thermoformer.sweeps.identity import recorded
cycle = [1]
cycle.append(cycle)
value = {"set": {"a", "b", "c", "d"}, 1: functools.partial(np.sin, where=np.float32(2)), "cycle": cycle}
print(recorded(value)["digest"])
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1 and len(found.pop().strip()) == 16


def test_axes_in_another_order_or_of_another_type_are_another_grid(tmp_path):
    """Both are equal in Python; the results would be mixed up."""
    sweep = Sweep(functions.plain, {"a": [1.0, 2.0], "b": [5, 6]}, tmp_path / "s")
    sweep.run(only={"a": [1.0]})
    for grid in ({"b": [5, 6], "a": [1.0, 2.0]}, {"a": [1, 2], "b": [5, 6]}):
        with pytest.raises(StoreError, match="with another grid"):
            Sweep(functions.plain, grid, tmp_path / "s").run()


def test_configuration_of_a_git_repository_runs_nothing(tmp_path, monkeypatch):
    """A function of a folder whose repository names programs: for its own commands, and for filters of files."""
    hostile, proof = tmp_path / "hostile", tmp_path / "proof"
    hostile.mkdir()
    (hostile / "hostile_module.py").write_text("def f(a):\n    return {'x': a}\n")
    git = ["git", "-C", str(hostile), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {proof}\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "filter.hostile.clean", "diff.hostile.textconv"):
        subprocess.run([*git, "config", name, str(program)], check=True)
    (hostile / ".gitattributes").write_text("*.py filter=hostile diff=hostile\n")
    (hostile / "hostile_module.py").touch()
    monkeypatch.syspath_prepend(str(hostile))
    monkeypatch.chdir(hostile)
    from hostile_module import f  # type: ignore[import-not-found]

    found = Sweep(f, {"a": [1]}, tmp_path / "s").run()
    assert not proof.exists() and found.x.values.tolist() == [1]
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["revision"] == commit
    (hostile / ".git" / "config").write_text("")
    subprocess.run([*git, "pack-refs", "--all"], check=True, capture_output=True)
    assert revision_of(functools.partial(f, a=1)) == commit
    (hostile / ".git" / "HEAD").write_text("ref: refs/heads/gone\n")
    assert revision_of(f) == "" == revision_of(len)


def test_names_of_functions_that_cannot_be(tmp_path):
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    Sweep(functions.nothing, {"a": [1]}, tmp_path / "s").run()
    for name in ("..:x", ".:x", "a..b:x", ":x", "os:", "os.path:..", "os:<lambda>", "a b:c", "\0:x"):
        with pytest.raises(ValueError, match="function: got .* expected a function as module:name"):
            Sweep.from_store(tmp_path / "s", name)
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(ValueError, match="ZeroDivisionError: division by zero"):
            Sweep.from_store(tmp_path / "s", "broken_module:f")
    finally:
        sys.path.remove(str(tmp_path))

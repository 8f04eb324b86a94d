"""The fuzz harness itself: it tells refusals from failures, and its damage is damage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import planted_targets
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def fuzz():
    # Children import targets by module, so that the folder must be on their path too.
    sys.path.insert(0, str(BENCHMARKS))
    import fuzz

    yield fuzz
    sys.path.remove(str(BENCHMARKS))


def test_every_kind_of_failure_is_told_from_a_refusal(fuzz, tmp_path, capsys):
    target = fuzz.Target("planted", planted_targets.planted, share=1, seconds=3, memory=2**26)
    numbers = list(range(len(planted_targets.EXPECTED)))
    results, interrupted = fuzz.run([fuzz.Job(target, 0, numbers)], workers=1, saved=tmp_path, shown=False)
    kinds = [kind for kind, _ in planted_targets.EXPECTED]
    assert not interrupted
    assert results.counts == {"planted": {kind: kinds.count(kind) for kind in ("accepted", "refused", "failure")}}
    found = {one.number: one.signature for some in results.failures.values() for one in some}
    expected = {at: text for at, (kind, text) in enumerate(planted_targets.EXPECTED) if kind == "failure"}
    assert found.keys() == expected.keys()
    for number, beginning in expected.items():
        assert found[number].startswith(beginning)
        # Inputs are kept, and follow from the seed and the number.
        assert (tmp_path / f"planted-{number}" / "input" / "input.txt").read_text() == str(
            Random(f"0 planted {number}").random()
        )
    fuzz.report(results, tmp_path, seed=0)
    assert f"planted: 1 × KeyError: '{'x'}' (input 4)" in capsys.readouterr().out
    assert {one["number"] for one in json.loads((tmp_path / "failures.json").read_text())["failures"]} == set(expected)


def test_inputs_are_dealt_by_share_and_expensive_ones_are_few(fuzz):
    cheap, dear, other = (
        fuzz.Target(name, planted_targets.planted, share, most)
        for name, share, most in (("cheap", 3, None), ("dear", 2, 10), ("other", 1, None))
    )
    jobs = fuzz.jobs_for([cheap, dear, other], 10_000, seed=0)
    counts = {
        name: sum(len(job.numbers) for job in jobs if job.target.name == name) for name in ("cheap", "dear", "other")
    }
    assert counts["dear"] == 10 and sum(counts.values()) >= 10_000
    assert counts["cheap"] == pytest.approx(3 * counts["other"], abs=3)
    assert sorted(number for job in jobs if job.target is cheap for number in job.numbers) == list(
        range(counts["cheap"])
    )


def test_damage_follows_from_the_seed_and_changes_something(fuzz):
    import fuzz_inputs

    content, arrays = bytes(range(200)), {"xi": np.ones((2, 2, 2)), "y": np.ones(2)}
    for number in range(50):
        assert fuzz_inputs.damaged(Random(number), content) == fuzz_inputs.damaged(Random(number), content)
    assert sum(fuzz_inputs.damaged(Random(number), content) != content for number in range(200)) > 180
    assert len({fuzz_inputs.odd_archive(Random(number), arrays) for number in range(100)}) > 60


def test_the_program_runs_a_real_reader(tmp_path):
    command = [sys.executable, BENCHMARKS / "fuzz.py", "--target", "arrays", "--inputs", "40", "--workers", "1"]
    environment = os.environ | {"PYTHONWARNINGS": "default"}
    result = subprocess.run([*command, "--out", tmp_path], capture_output=True, text=True, timeout=120, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    row = next(line for line in result.stdout.splitlines() if line.startswith("arrays")).split()
    assert int(row[1]) == 40 == int(row[2]) + int(row[3]) and int(row[2]) > 0 and int(row[3]) > 0

"""How long a fresh process takes, compilation included: without kept programs, with an empty and with a full folder.

Each line is the median over fresh processes; ratios are against the first column of the same run. `--cpu` counts the
seconds of all cores in place of the wall clock, which says more on a machine that is busy with other work. With
`--before FOLDER` the source in that folder, such as `src` of an earlier version, runs without kept programs as well.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

THEORY = """
from thermoformer.learning import Architecture, PathFeatures, sample_order_parameters, solve
import numpy as np
random = np.random.default_rng(0)
features = PathFeatures.from_attentioned_inputs(random.normal(size=(20, 4, 5)))
given = (Architecture((2, 2), 10), features, np.sign(random.normal(size=20)))
"""
README = (Path(__file__).resolve().parents[1] / "README.md").read_text()
PROGRAMS = {
    "the first lines of the README": ["-c", re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)[0]],
    "solve and predict, 20 examples": [
        "-c",
        THEORY + "solve(*given, temperature=0.1).predict(features).mean",
    ],
    "sample_order_parameters, 20 examples": [
        "-c",
        THEORY + "sample_order_parameters(*given, temperature=0.1, key=0).predict(features).mean",
    ],
    "thermoformer solve": [
        *("-m", "thermoformer", "solve", "arrays.npz"),
        *("--heads", "2,2", "--width", "10", "--temperature", "0.1"),
    ],
    "thermoformer lyapunov": [
        *("-m", "thermoformer", "lyapunov", "paper"),
        *("--beta", "1.27", "--steps", "2000", "--transient", "1000"),
    ],
    "thermoformer demo": ["-m", "thermoformer", "demo"],
}


def cores() -> float:
    """Seconds that all cores have spent on processes that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def seconds(command: list[str], cache: str, clock: Callable[[], float], source: Path | None = None) -> float:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment |= {"THERMOFORMER_CACHE": cache} | ({} if source is None else {"PYTHONPATH": str(source)})
    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(0)
        arrays = {"xi": random.normal(size=(100, 4, 5)), "y": np.sign(random.normal(size=100))}
        np.savez(Path(folder) / "arrays.npz", **arrays)
        began = clock()
        quiet = subprocess.DEVNULL
        subprocess.run([sys.executable, *command], cwd=folder, env=environment, check=True, stdout=quiet, stderr=quiet)
        return clock() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", type=Path, help="source folder of an earlier version")
    parser.add_argument("--cpu", action="store_true", help="seconds of all cores in place of the wall clock")
    options = parser.parse_args()
    clock = cores if options.cpu else time.perf_counter
    before = [] if options.before is None else [f"{'before':>7s} {'off / before':>13s}"]
    print(f"{'seconds':38s} {'off':>7s} {'empty':>7s} {'full':>7s} {'full / off':>11s}", *before)
    for title, command in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            caches = [f"{folder}/{number}" for number in range(options.repeats)]
            off, empty, full = (
                statistics.median(seconds(command, cache, clock) for cache in kind)
                for kind in (["0"] * options.repeats, caches, caches)
            )
        row = f"{title:38s} {off:7.2f} {empty:7.2f} {full:7.2f} {full / off:11.2f}"
        if options.before is not None:
            source = options.before.resolve()
            earlier = statistics.median(seconds(command, "0", clock, source) for _ in range(options.repeats))
            row += f" {earlier:7.2f} {off / earlier:13.2f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()

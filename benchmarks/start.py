"""How long a fresh process takes, compilation included: without kept programs, with an empty and with a full folder.

Each line is the median over fresh processes; ratios are against the first column of the same run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

THEORY = """
from thermoformer.learning import Architecture, PathFeatures, sample_order_parameters, solve
import numpy as np
random = np.random.default_rng(0)
features = PathFeatures.from_attentioned_inputs(random.normal(size=(20, 4, 5)))
given = (Architecture((2, 2), 10), features, np.sign(random.normal(size=20)))
"""
PROGRAMS = {
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
}


def seconds(command: list[str], folder: Path, cache: str) -> float:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment | {"THERMOFORMER_CACHE": cache},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print(f"{'seconds':38s} {'off':>7s} {'empty':>7s} {'full':>7s} {'full / off':>11s}")
    with tempfile.TemporaryDirectory() as name:
        folder, random = Path(name), np.random.default_rng(0)
        np.savez(folder / "arrays.npz", xi=random.normal(size=(100, 4, 5)), y=np.sign(random.normal(size=100)))
        for title, command in PROGRAMS.items():
            found = []
            for kind in ("off", "empty", "full"):
                caches = ["0" if kind == "off" else str(folder / f"cache{number}") for number in range(repeats)]
                caches = [f"{cache} {title}" if kind != "off" else cache for cache in caches]
                found.append(statistics.median(seconds(command, folder, cache) for cache in caches))
            print(
                f"{title:38s} {found[0]:7.2f} {found[1]:7.2f} {found[2]:7.2f} {found[2] / found[0]:11.2f}", flush=True
            )


if __name__ == "__main__":
    main()

"""What a start saves: neighbouring points of a sweep, and the choice of temperature and variances by evidence.

*Neighbours*: `solve` at 41 widths from 1000 down to 10, each 0.89 times the last. Every point starts from the Gaussian
process, from the solution before (`start=`), or by `continued` of the solution before, which does not prepare the data
again. *Evidence*: `choose_by_evidence` against a nested search: SciPy's L-BFGS-B over ln τ and ln of the product of
variances, with the gradient of the evidence from `jax.grad` and one `solve` per step. Both are timed after a first run
that compiles. Ratios are of the same run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import jax
import numpy as np
import scipy.optimize
from problems import made, markov

from thermoformer.learning import Architecture, PathFeatures, Solution, choose_by_evidence, solve

# Name, heads and data: the hidden-Markov task, and random tokens under random attention.
CASES = {
    "P=100, 4 paths": ((2, 2), lambda: markov(100)),
    "P=600, 16 paths": ((4, 4), lambda: made(600, (4, 4), 192)),
}
WIDTHS = np.geomspace(1000, 10, 41).round().astype(int).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="neighbours,evidence", help="which parts, with commas")
    parser.add_argument("--width", type=int, default=100, help="of the network in the part on evidence")
    options = parser.parse_args()
    measures = {"neighbours": neighbours, "evidence": partial(evidence, options.width)}
    for part in options.parts.split(","):
        print(f"{part}: case | way | s | evaluations or calls of solve | over the first way")
        for case, (heads, data) in CASES.items():
            rows = measures[part](heads, *data())
            first = rows[0][1]
            for name, seconds, count in rows:
                print(f"{case} | {name} | {seconds:.2f} | {count} | {seconds / first:.2f}", flush=True)


def neighbours(heads: tuple[int, ...], features: PathFeatures, labels: np.ndarray) -> list[tuple[str, float, int]]:
    arch = Architecture(heads, WIDTHS[0])

    def sweep(following: Callable[[Solution | None, int], Solution]) -> tuple[float, int]:
        began, solution, evaluations = time.perf_counter(), None, 0
        for width in WIDTHS:
            solution = following(solution, width)
            evaluations += solution.stats.evaluations
        return time.perf_counter() - began, evaluations

    def at(width: int, start: Solution | None = None) -> Solution:
        return solve(arch.replace(widths=width), features, labels, temperature=0.01, start=start)

    ways = {
        "from the Gaussian process": lambda before, width: at(width),
        "from the solution before": lambda before, width: at(width, before),
        "continued": lambda before, width: at(width) if before is None else before.continued(widths=width),
    }
    at(WIDTHS[0]).continued(widths=WIDTHS[1])
    return [(name, *sweep(way)) for name, way in ways.items()]


def evidence(
    width: int, heads: tuple[int, ...], features: PathFeatures, labels: np.ndarray
) -> list[tuple[str, float, int]]:
    arch, calls = Architecture(heads, width), 0

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal calls
        calls += 1

        def value(temperature, product):
            scaled = arch.replace(variances=tuple(product ** (1 / len(arch.variances)) for _ in arch.variances))
            return -solve(scaled, features, labels, temperature=temperature).log_evidence

        found, slopes = jax.value_and_grad(value, argnums=(0, 1))(*np.exp(logs))
        return float(found), np.array([float(slope) for slope in slopes]) * np.exp(logs)

    def nested() -> float:
        bounds = [(np.log(1e-6), np.log(1e3)), (-np.log(1e6), np.log(1e6))]
        found = scipy.optimize.minimize(loss, np.log([0.1, 1.0]), jac=True, method="L-BFGS-B", bounds=bounds)
        return -found.fun

    timed = []
    for name, run in (
        ("nested search", nested),
        ("choose_by_evidence", lambda: choose_by_evidence(arch, features, labels).solution.log_evidence),
    ):
        run()
        calls, began = 0, time.perf_counter()
        value = run()
        timed.append((f"{name}, log evidence {value:.3f}", time.perf_counter() - began, calls))
    return timed


if __name__ == "__main__":
    main()

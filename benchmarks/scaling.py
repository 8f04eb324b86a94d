"""How time and memory of one solution grow with examples and with paths; on a GPU also P = 20 000 with 16 paths.

With `--batches` instead: any number of examples in batches of 1000, rotated by `rotate_examples`.

Each size runs in a fresh process, so that its peak memory is its own. `first` includes compilation, `again` is the
median of compiled solutions; the last column is its ratio to the row above in the same table. On a CPU the peak is that
of the whole process, on a GPU that of its device memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

# examples, heads, token width, width
WITH_EXAMPLES = [(examples, (2, 2), 231, 100) for examples in (100, 250, 500, 1000, 2000, 4000)]
WITH_PATHS = [(600, heads, 192, 100) for heads in ((2, 2), (4, 4), (4, 4, 4), (4, 4, 4, 4))]
IN_BATCHES = (10_000, 100_000, 1_000_000)
ON_GPU = [(20_000, (4, 4), 192, 1000), (20_000, (4, 4), 2048, 1000)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", action="store_true", help="examples in batches")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        case = json.loads(options.child)
        print(json.dumps(in_batches(*case) if len(case) == 1 else measure(*case)))
        return
    if options.batches:
        print("P | rotated, s | solved, s | peak GB | rotation, times the row above\n---|---|---|---|---")
        before = None
        for examples in IN_BATCHES:
            row = child((examples,))
            ratio = "" if before is None else f"{row['rotated'] / before:.1f}"
            before = row["rotated"]
            print(f"{examples} | {before:.1f} | {row['solved']:.1f} | {row['peak']:.2f} | {ratio}", flush=True)
        return
    tables = {"examples": WITH_EXAMPLES, "paths": WITH_PATHS}
    if backend() != "cpu":
        tables["beyond one machine's cores"] = ON_GPU
    for title, cases in tables.items():
        print(f"\nGrowing {title}\n")
        print("P | heads | N0 | N | form, method | evaluations | first s | again s | peak GB | times the row above")
        print("---|---|---|---|---|---|---|---|---|---", flush=True)
        before = None
        for case in cases:
            row = child(case)
            ratio = "" if before is None else f"{row['again'] / before:.1f}"
            before = row["again"]
            print(
                " | ".join(str(part) for part in case) + f" | {row['form']}, {row['method']} | {row['evaluations']} | "
                f"{row['first']:.2f} | {row['again']:.3f} | {row['peak']:.2f} | {ratio}",
                flush=True,
            )


def backend() -> str:
    """Where JAX computes, asked of another process: this one must not hold the device."""
    program = "import jax; print(jax.default_backend())"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip()


def child(case: tuple) -> dict:
    """One size in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--child", json.dumps(case)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(examples: int, heads: list[int], token_width: int, width: int) -> dict:
    """Solve once cold and once compiled."""
    from problems import made, markov

    from thermoformer.learning import Architecture, solve

    features, labels = markov(examples) if token_width == 231 else made(examples, tuple(heads), token_width)
    arch = Architecture(heads, width)
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < 6 and sum(seconds[1:]) < 10):
        start = time.perf_counter()
        solution = solve(arch, features, labels, temperature=0.01)
        seconds.append(time.perf_counter() - start)
    return {
        "first": seconds[0],
        "again": sorted(seconds[1:])[(len(seconds) - 1) // 2],
        "peak": peak_memory(),
        "form": solution.stats.form,
        "method": solution.stats.method,
        "evaluations": solution.stats.evaluations,
    }


def in_batches(examples: int) -> dict:
    """Rotate examples of 16 paths with 64 features, made batch by batch, and solve; compilation included."""
    import numpy as np

    from thermoformer.learning import Architecture, PathFeatures, rotate_examples, solve

    def batches():
        for start in range(0, examples, 1000):
            random = np.random.default_rng([0, start])
            xi = random.standard_normal((1000, 16, 64))
            yield (
                PathFeatures.from_attentioned_inputs(xi),
                xi[:, 0, 0] - xi[:, 5, 1] + 0.5 * random.standard_normal(1000),
            )

    start = time.perf_counter()
    data = rotate_examples(batches())
    rotated = time.perf_counter() - start
    solve(Architecture((4, 4), 10), *data, temperature=0.25)
    return {"rotated": rotated, "solved": time.perf_counter() - start - rotated, "peak": peak_memory()}


def peak_memory() -> float:
    """Peak memory in GB: of the process on a CPU, of the device memory on a GPU."""
    import jax

    memory = jax.local_devices()[0].memory_stats() or {}
    return memory.get("peak_bytes_in_use", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1e9


if __name__ == "__main__":
    main()

"""What a sweep costs beside its function: milliseconds per point, and memory of the main process.

The function does nothing; every point is a task of its own, as bad as it gets. Baselines in the same run: the bare
function in a loop, and the standard library's process pool without a store. Last, a real point: two Lyapunov exponents
of the mean-field map, in a loop and in a sweep.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from thermoformer.dynamics import Features, MeanField, lyapunov_spectrum
from thermoformer.sweeps import Sweep


def nothing(a):
    return {"double": 2.0 * a}


def exponents(beta):
    model = MeanField(Features.paper(), beta=beta, gamma=220.0, epsilon=0.02)
    return {"exponents": lyapunov_spectrum(model, model.window(), steps=2000, transient=2000, k=2).exponents}


def resident() -> float:
    """Memory of this process in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    points = np.arange(options.points)
    began = time.perf_counter()
    for a in points:
        nothing(a)
    print(f"bare loop: {(time.perf_counter() - began) / len(points) * 1e3:.4f} ms per point")
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(nothing, points[: options.workers]))  # all workers up
        began = time.perf_counter()
        list(pool.map(nothing, points))
        print(f"process pool, nothing kept: {(time.perf_counter() - began) / len(points) * 1e3:.3f} ms per point")
    for executor, batch in (("local", 1), ("processes", 1), ("processes", 100), ("dask", 1), ("dask", 100)):
        with tempfile.TemporaryDirectory() as folder:
            sizes = []

            def watch(done: int, total: int, message: str, sizes: list = sizes) -> None:
                if done % (total // 10) == 0:
                    sizes.append(resident())

            sweep = Sweep(nothing, {"a": points}, f"{folder}/sweep", batch=batch)
            began = time.perf_counter()
            sweep.run(executor, **({} if executor == "local" else {"workers": options.workers}), progress=watch)
            each = (time.perf_counter() - began) / len(points) * 1e3
            grown = f"main process {sizes[0]:.0f} MiB after a tenth, {sizes[-1]:.0f} MiB at the end"
            print(f"sweep, {executor}, batch {batch}: {each:.3f} ms per point, start-up included; {grown}", flush=True)
    betas = np.linspace(1.2, 1.4, 100)
    exponents(betas[0])  # compiled
    began = time.perf_counter()
    for beta in betas:
        exponents(beta)
    loop = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        Sweep(exponents, {"beta": betas}, f"{folder}/sweep").run(progress=False)
        swept = time.perf_counter() - began
    each = (loop / len(betas) * 1e3, swept / len(betas) * 1e3, swept / loop)
    print("real points: {:.1f} ms in a loop, {:.1f} ms in a sweep, ratio {:.2f}".format(*each))


if __name__ == "__main__":
    main()

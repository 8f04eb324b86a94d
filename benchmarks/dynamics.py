"""Steps of the mean-field map per second, without and with all Lyapunov exponents.

Against two baselines in the same run: a plain NumPy loop over the window, one orbit after another with the Jacobian
formed and orthonormalised (QR) at every step, which is how such diagrams were made; and a compiled loop (numba) with
cached tokens, the analytic Jacobian in block form and Gram–Schmidt, one orbit per iteration on all cores. Paper
features with two positional bits (context 4, 12 exponents), random segments with five (context 32, 96 exponents).

    python benchmarks/dynamics.py            # rates of all three
    python benchmarks/dynamics.py --diagram  # a phase diagram and the paper's orbit diagrams at full size, timed, on a
                                             # CUDA GPU both by one kernel and step by step, and how far the two agree
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from thermoformer.dynamics import DiscreteMap, Features, MeanField, Window, basins, orbit, orbit_diagram, phase_diagram
from thermoformer.dynamics.engine import Plan, survey
from thermoformer.dynamics.kernel import mode_on
from thermoformer.dynamics.regimes import CHAOS
from thermoformer.dynamics.tangents import exponents_of

try:
    import numba
except ImportError:  # the baseline is left out, and the table says so
    numba = None


def models() -> dict[str, MeanField]:
    return {
        "B = 2": MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02),
        "B = 5": MeanField(Features.segments(3, 3, positional_bits=5, key=1), beta=1.4, gamma=220.0, epsilon=0.02),
    }


def numpy_steps(model: MeanField, window: Window, steps: int, exponents: bool) -> float:
    """Seconds that a plain loop takes: overlaps of the whole window at every step, as the equations are written."""
    features, scale = model.features, model.gamma / np.sqrt(model.features.count)
    signs, share, count = features.signs, 1 - model.epsilon, features.count
    weights = {role: features.weights[role][:, 0] for role in "vqk"}
    patterns = {role: features.positional[role][0] for role in "vqk"}
    bits = features.positional_bits
    A, positions, size = window.A.copy(), window.positions.copy(), window.A.size
    frame, sums = np.eye(size), np.zeros(size)
    began = time.perf_counter()
    for _ in range(steps):
        means = np.tanh(model.beta * A @ signs.T)
        m = {
            role: share * means @ weights[role] + model.epsilon * positions @ patterns[role].T / bits for role in "vqk"
        }
        logits = scale * m["k"] @ m["q"][0]
        w = np.exp(logits - logits.max())
        w /= w.sum()
        new = w @ m["v"]
        if exponents:
            slope = share * model.beta * (1 - means**2)
            jacobian = np.zeros((size, size))
            to_logits = scale * w[:, None] * (m["v"] - new)
            for d in range(len(A)):
                dv, dk = ((weights[role].T * slope[d]) @ signs for role in "vk")
                jacobian[:count, d * count : (d + 1) * count] = w[d] * dv + np.outer(to_logits[d], m["q"][0] @ dk)
            dq = (weights["q"].T * slope[0]) @ signs
            jacobian[:count, :count] += to_logits.T @ m["k"] @ dq
            jacobian[count:, :-count] = np.eye(size - count)
            frame, triangle = np.linalg.qr(jacobian @ frame)
            sums += np.log(np.abs(np.diag(triangle)) + 1e-300)
        A = np.concatenate([new[None], A[:-1]])
        positions = np.roll(positions, 1, axis=0)
    return time.perf_counter() - began


def compiled_loop() -> Callable:
    """One orbit per iteration of a parallel loop, all arithmetic by hand."""
    assert numba is not None

    @numba.njit(parallel=True, fastmath=True, cache=False)
    def run(betas, gamma, epsilon, signs, wv, wq, wk, bv, bq, bk, start, steps, exponents):
        context, count = start.shape
        classes, size = signs.shape[0], context * count
        scale, share = gamma / np.sqrt(count), 1 - epsilon
        result = np.zeros((len(betas), size))
        for point in numba.prange(len(betas)):
            beta = betas[point]
            A = start.copy()
            K, V = np.zeros((context, count)), np.zeros((context, count))
            DK, DV = np.zeros((context, count, count)), np.zeros((context, count, count))
            q, dq = np.zeros(count), np.zeros((count, count))
            z, new, t = np.zeros(context), np.zeros(count), np.zeros(classes)
            J, F = np.zeros((context, count, count)), np.zeros((exponents, size))
            for i in range(exponents):  # newest token first; it is in the last slot
                F[i, (context - 1 - i // count) * count + i % count] = 1.0
            for turn in range(context + steps):
                slot = turn % context
                if turn < context:  # fill the caches with the window, oldest first
                    for a in range(count):
                        new[a] = start[slot, a]
                else:
                    newest = (slot + context - 1) % context
                    top = -1e300
                    for d in range(context):
                        z[d] = 0.0
                        for a in range(count):
                            z[d] += q[a] * K[d, a]
                        z[d] *= scale
                        top = max(top, z[d])
                    total = 0.0
                    for d in range(context):
                        z[d] = np.exp(z[d] - top)
                        total += z[d]
                    for a in range(count):
                        new[a] = 0.0
                    for d in range(context):
                        z[d] /= total
                        for a in range(count):
                            new[a] += z[d] * V[d, a]
                    if exponents:
                        for d in range(context):
                            for e in range(count):
                                by_key = 0.0
                                for b in range(count):
                                    by_key += q[b] * DK[d, b, e]
                                for a in range(count):
                                    J[d, a, e] = z[d] * (DV[d, a, e] + scale * (V[d, a] - new[a]) * by_key)
                        for a in range(count):
                            for b in range(count):
                                through = 0.0
                                for d in range(context):
                                    through += scale * z[d] * (V[d, a] - new[a]) * K[d, b]
                                for e in range(count):
                                    J[newest, a, e] += through * dq[b, e]
                        for i in range(exponents):
                            for a in range(count):
                                pushed = 0.0
                                for d in range(context):
                                    for e in range(count):
                                        pushed += J[d, a, e] * F[i, d * count + e]
                                A[slot, a] = pushed  # borrowed until all of the vector is read
                            for a in range(count):
                                F[i, slot * count + a] = A[slot, a]
                        for i in range(exponents):
                            length = 0.0
                            for c in range(size):
                                length += F[i, c] * F[i, c]
                            length = np.sqrt(length)
                            if turn >= context:
                                result[point, i] += np.log(length + 1e-300)
                            inverse = 1.0 / (length + 1e-300)
                            for c in range(size):
                                F[i, c] *= inverse
                            for j in range(i + 1, exponents):
                                shared = 0.0
                                for c in range(size):
                                    shared += F[i, c] * F[j, c]
                                for c in range(size):
                                    F[j, c] -= shared * F[i, c]
                for s in range(classes):
                    field = 0.0
                    for b in range(count):
                        field += signs[s, b] * new[b]
                    t[s] = np.tanh(beta * field)
                for a in range(count):
                    A[slot, a] = new[a]
                    V[slot, a], K[slot, a], q[a] = epsilon * bv[slot, a], epsilon * bk[slot, a], epsilon * bq[slot, a]
                    for s in range(classes):
                        V[slot, a] += share * wv[s, a] * t[s]
                        K[slot, a] += share * wk[s, a] * t[s]
                        q[a] += share * wq[s, a] * t[s]
                if exponents:
                    for a in range(count):
                        for e in range(count):
                            DV[slot, a, e], DK[slot, a, e], dq[a, e] = 0.0, 0.0, 0.0
                            for s in range(classes):
                                slope = share * beta * (1 - t[s] * t[s]) * signs[s, e]
                                DV[slot, a, e] += wv[s, a] * slope
                                DK[slot, a, e] += wk[s, a] * slope
                                dq[a, e] += wq[s, a] * slope
            for i in range(size):
                if exponents:
                    result[point, i] /= steps
                else:
                    result[point, i] = A[i // count, i % count]
        return result

    def call(model: MeanField, window: Window, betas: np.ndarray, steps: int, exponents: int) -> np.ndarray:
        features, positions = model.features, window.positions[::-1]
        weights = [np.ascontiguousarray(features.weights[role][:, 0]) for role in "vqk"]
        biases = [positions @ features.positional[role][0].T / features.positional_bits for role in "vqk"]
        start = np.ascontiguousarray(window.A[::-1])
        given = (betas, model.gamma, model.epsilon, features.signs, *weights, *biases, start, steps, exponents)
        return run(*given)

    return call


def seconds(function: Callable[[], object], repeats: int = 3) -> float:
    """The best of some runs, after one that compiles."""
    function()
    best = np.inf
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - began)
    return best


def rates(lanes: int, scale: float) -> None:
    loop = None if numba is None else compiled_loop()
    print(f"{'':<8}{'what':<20}{'way':<26}{'steps/s':>12}{'over NumPy':>12}{'over compiled':>15}", flush=True)
    for name, model in models().items():
        window = model.window()
        window = orbit(model, window, steps=1, transient=10_000 * model.context - 1).final_state
        betas = np.linspace(model.beta - 0.02, model.beta + 0.02, lanes)
        for what, count in (("without exponents", 0), (f"all {model.dimension} exponents", model.dimension)):
            light = 1.0 if count == 0 else (0.04 if model.dimension < 20 else 0.0008)
            single = max(int(20_000 * light * scale), 20)
            many = max(int(40_000 * light * scale), 40)
            base = single / numpy_steps(model, window, single, bool(count))
            print(f"{name:<8}{what:<20}{'NumPy loop':<26}{base:>12.3g}{1:>12}", flush=True)
            compiled = None
            if loop is not None:
                compiled = lanes * many / seconds(lambda: loop(model, window, betas, many, count))  # noqa: B023
                way = f"compiled loop, {numba.get_num_threads()} threads"
                print(f"{name:<8}{what:<20}{way:<26}{compiled:>12.3g}{compiled / base:>12.0f}{1:>15}", flush=True)
            plan = Plan(many, 0)
            if count:
                plan = Plan(0, many, exponents_of(model.dimension, count, quick=True), blocks=1)
            ours = lanes * many / seconds(lambda: survey(model, [window], plan, {"beta": betas}))  # noqa: B023
            over = "" if compiled is None else f"{ours / compiled:>15.2f}"
            print(f"{name:<8}{what:<20}{'thermoformer':<26}{ours:>12.3g}{ours / base:>12.0f}{over}", flush=True)


def agreement() -> None:
    """The three ways find the same exponents: what is timed is the same work."""
    if numba is None:
        return
    model = models()["B = 2"]
    window = orbit(model, model.token(), steps=1, transient=9_999).final_state
    theirs = compiled_loop()(model, window, np.array([1.255]), 2000, 12)[0]
    plan = Plan(0, 2000, exponents_of(12, 12), blocks=1)
    ours = survey(model, [window], plan, {"beta": np.array([1.255])})["blocks"][0, 0]
    difference = abs(theirs - ours).max()
    print(f"largest difference of 12 exponents over 2000 steps, compiled loop and thermoformer: {difference:.1e}")


def engines() -> list[str]:
    """How steps can be taken here."""
    return ["steps"] if mode_on(jax.devices()[0]) == "off" else ["kernel", "steps"]


def each_engine(what: str, work: int, function: Callable[..., xr.Dataset]) -> None:
    """Times a diagram with each engine twice, since the first run compiles; `work` is its number of steps.

    Then says how far kernel and steps agree, and beside it, how far the steps of GPU and CPU do: they round in other
    ways, of which chaos and several attractors make another orbit.
    """
    found, mode = {}, os.environ.get("THERMOFORMER_KERNEL", "on")
    for engine in [*engines(), *(["CPU"] if "kernel" in engines() else [])]:
        os.environ["THERMOFORMER_KERNEL"] = mode if engine == "kernel" else "off"
        times = []
        for _ in range(2):
            began = time.perf_counter()
            found[engine] = function(devices=jax.devices("cpu" if engine == "CPU" else None)[:1])
            times.append(time.perf_counter() - began)
        print(f"{what}, {engine}: {times[1]:.2f} s", end=" ")
        print(f"({times[0]:.1f} s the first time), {work / times[1]:.3g} steps/s", flush=True)
    if "kernel" in found:
        compared("kernel and steps", found["kernel"], found["steps"])
        compared("steps of CPU and GPU", found["CPU"], found["steps"])
    os.environ["THERMOFORMER_KERNEL"] = mode


def compared(what: str, one: xr.Dataset, other: xr.Dataset) -> None:
    """How far two diagrams agree: regimes, leading exponents within their errors, and densities by a χ² test."""
    print(f"  {what}:", flush=True)
    if "exponents" in one:
        apart = np.abs(one.exponents - other.exponents)[..., 0]
        errors = np.hypot(one.errors, other.errors)[..., 0] + 10 / one.steps
        print(f"    leading exponents more than 4 errors apart: {int((apart > 4 * errors).sum())} of {apart.size}")
    if "regime" in one:
        # A point is at a boundary if one of its neighbours has another regime.
        regimes, edge = other.regime.values, np.zeros(other.regime.shape, bool)
        for axis in range(regimes.ndim):
            for step in (-1, 1):
                edge |= np.roll(regimes, step, axis) != regimes
        differ = one.regime.values != regimes
        print(f"    regimes that differ: {int(differ.sum())} of {differ.size},", end=" ")
        print(f"{int((differ & ~edge).sum())} of them not at a boundary")
    if "density" in one:
        counts = one.density.values, other.density.values
        print(f"    points counted: {counts[0].sum()} and {counts[1].sum()}; equal densities: ", end="")
        print(f"{(counts[0] == counts[1]).all(-1).mean():.1%}", end="")
        if "regime" in one:  # chaotic orbits are other samples of one density; their points are correlated
            chaotic = (one.regime.values == CHAOS) & (other.regime.values == CHAOS)
            one_share, other_share = (part[chaotic][:, ::10].astype(float) for part in counts)
            total = one_share + other_share
            squares = np.where(total > 0, (one_share - other_share) ** 2 / np.maximum(total, 1), 0.0).sum(1)
            print(f"; χ² per bin of chaotic ones, median {np.median(squares / (total > 0).sum(1)):.2f}", end="")
        print(flush=True)


def diagram(values: int, transient: int, steps: int) -> None:
    model = MeanField(Features.paper(), beta=3.0, gamma=220.0, epsilon=0.02)
    start = orbit(model, model.token(), steps=1, transient=transient).final_state
    for low, high in ((0.0, 3.0), (1.24, 1.28)):
        for k, what in ((0, "density"), (None, "density and all exponents")):
            betas = np.linspace(low, high, values)
            given = {"steps": steps, "transient": transient, "k": k, "section": (1, 1e-3), "limits": (-1.0, 1.0)}
            what = f"β {low:g}–{high:g}, {values} × {transient + steps} steps, {what}"
            work = values * (transient + steps)
            each_engine(what, work, partial(orbit_diagram, model, start, "beta", betas, **given))


def kernels(lanes: int, steps: int) -> None:
    """The first steps of the kernel against those of a CPU, and its steps per second with the mean field and others."""
    model = MeanField(Features.paper(), beta=3.0, gamma=220.0, epsilon=0.02)
    window, betas = model.window(), {"beta": np.linspace(0.0, 3.0, 1024)}
    moved = Window(np.nextafter(window.A, np.inf), window.positions)
    runs = {"kernel": (window, None), "CPU": (window, "cpu"), "CPU, start moved by a rounding": (moved, "cpu")}
    ends = {
        name: survey(model, [one], Plan(50, 0), betas, devices=jax.devices(platform)[:1])["finals"].coordinates
        for name, (one, platform) in runs.items()
    }
    for name in ("kernel", "CPU, start moved by a rounding"):
        apart = abs(ends[name] - ends["CPU"]).max(axis=1)
        print(f"1024 windows after 50 steps, {name} against CPU: {(apart <= 1e-9).mean():.1%} within 1e-9,", end=" ")
        print(f"largest difference {apart.max():.1e}", flush=True)
    maps: dict[str, tuple[Any, Any, str, tuple[float, float]]] = {
        "mean field": (model, window, "beta", (0.0, 3.0)),
        "logistic map": (DiscreteMap(lambda x, r: r * x * (1 - x), {"r": 4.0}), [0.3], "r", (3.0, 4.0)),
        "Hénon map": (DiscreteMap(henon, {"a": 1.4}, ("x", "y")), [0.1, 0.1], "a", (1.0, 1.4)),
        "standard map": (DiscreteMap(standard, {"K": 1.0}, ("p", "x")), [0.5, 0.7], "K", (0.0, 5.0)),
    }
    for name, (one, state, parameter, (low, high)) in maps.items():
        points = {parameter: np.linspace(low, high, lanes)}
        for what, plan in (
            ("steps", Plan(20 * steps, 0)),
            ("all exponents", Plan(0, steps, exponents_of(one.dimension))),
        ):
            spent = seconds(lambda: survey(one, [state], plan, points))  # noqa: B023
            work = lanes * (plan.transient + plan.steps)
            print(f"{name}, {lanes} × {work // lanes}, {what}: {work / spent:.3g} steps/s", flush=True)
    if numba is not None:
        loop, betas = compiled_loop(), np.linspace(0.0, 3.0, 4001)
        for what, count, light in (("without exponents", 0, 2000), ("all 12 exponents", 12, 200)):
            rate = 4001 * light / seconds(lambda: loop(model, window, betas, light, count))  # noqa: B023
            print(f"compiled loop, {numba.get_num_threads()} threads, {what}: {rate:.3g} steps/s", flush=True)


def henon(x: jax.Array, a: jax.Array) -> jax.Array:
    return jnp.array([1 - a * x[0] ** 2 + x[1], 0.3 * x[0]])


def standard(x: jax.Array, K: jax.Array) -> jax.Array:
    momentum = jnp.mod(x[0] + K * jnp.sin(x[1]), 2 * jnp.pi)
    return jnp.array([momentum, jnp.mod(x[1] + momentum, 2 * jnp.pi)])


def whole_spectrum(values: int, steps: int) -> None:
    """A few steps of the diagram of the larger network with all of its exponents: the whole would take long."""
    model = models()["B = 5"]
    given = {"steps": steps, "transient": 0, "k": None, "longest_period": 0, "limits": (-1.0, 1.0)}
    times = []
    for _ in range(3):
        began = time.perf_counter()
        found = orbit_diagram(model, model.window(), "beta", np.linspace(0.0, 3.0, values), **given)
        times.append(time.perf_counter() - began)
    rate = values * steps / min(times[1:])
    print(f"context 32, {values} × {steps} steps, {found.sizes['exponent']} exponents: {rate:.3g} steps/s", flush=True)


def phases(side: int, transient: int, steps: int) -> None:
    model = MeanField(Features.paper(), beta=3.0, gamma=220.0, epsilon=0.02)
    start = orbit(model, model.token(), steps=1, transient=10_003).final_state
    grid = {"beta": np.linspace(0.5, 3.0, side), "gamma": np.linspace(20.0, 420.0, side)}
    what = f"phase diagram, {side} × {side} points, {transient + steps} steps, 2 exponents"
    work = side**2 * (transient + steps)
    each_engine(what, work, partial(phase_diagram, model, start, grid, steps=steps, transient=transient))


def million_starts() -> None:
    """The basins of the three cycles at β = 1.27, from a plane of windows of four equal tokens."""
    model = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
    values = np.linspace(-1, 1, 1000)
    starts = np.zeros((1000, 1000, 4, 3))
    starts[..., 0], starts[..., 1] = values[:, None, None], values[None, :, None]
    for _ in range(2):
        began = time.perf_counter()
        found = basins(model, starts, transient=20_000)
        spent = time.perf_counter() - began
    print(f"basins of 1000 × 1000 starts, {found.dataset.engine}: {spent:.1f} s; {found}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=512, help="orbits side by side")
    parser.add_argument("--scale", type=float, default=1.0, help="longer or shorter runs")
    parser.add_argument("--diagram", action="store_true", help="time diagrams at full size instead")
    parser.add_argument("--values", type=int, default=4001)
    parser.add_argument("--transient", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    print(f"backend: {jax.default_backend()}, {os.cpu_count()} cores")
    if options.diagram:
        phases(200, 20_000, 4_000)
        diagram(options.values, options.transient, options.steps)
        whole_spectrum(options.values, 60)
        if "kernel" in engines():
            kernels(65_536, options.steps)
            million_starts()
        return
    agreement()
    rates(options.lanes, options.scale)


if __name__ == "__main__":
    main()

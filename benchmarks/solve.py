"""`solve` against Adam on the raw matrices, in the same run: wall time warm and cold, and evaluations of the action.

The baseline is Adam at rate 0.1 on the raw symmetric matrices U^1..U^{L+1} in float64, from the Gaussian-process start,
until the largest gradient entry of S/max N is under 1e-5, the whole loop compiled. It comes in two kinds: *plain*
differentiates log-determinant and solve as they stand; *our kernels* evaluates the energy with this library's code, so
that the ratio shows the algorithm alone. `solve` goes on to its own, tighter tolerance. A baseline that is not done
within --limit seconds is stopped, and its ratios are lower bounds (≥).

Every measurement is a fresh process. Cold is import, compilation and solution; warm is the solution alone.
"""

from __future__ import annotations

import time

CLOCK = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402

TEMPERATURE = 0.01
# examples, heads, token width, width
CASES = [
    (100, (2, 2), 231, 10),
    (100, (2, 2), 231, 100),
    (600, (4, 4), 192, 10),
    (600, (4, 4), 192, 100),
    (600, (8, 8), 192, 10),
    (600, (8, 8), 192, 100),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=120, help="seconds a baseline may take")
    parser.add_argument("--cases", default="0,1,3,5", help="which of the cases, by number, or all")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(*json.loads(options.child), options.limit)))
        return
    chosen = range(len(CASES)) if options.cases == "all" else [int(case) for case in options.cases.split(",")]
    print("case | method | cold s | warm s | evaluations | S/max N − least | Adam/solve warm | cold | evaluations")
    print("---|---|---|---|---|---|---|---|---", flush=True)
    for case in chosen:
        rows = {name: child(case, name, options.limit) for name in ("solve", "adam, our kernels", "adam, plain")}
        ours = rows["solve"]
        for name, row in rows.items():
            bound = "" if row["done"] else "≥ "
            ratios = [f"{bound}{row[part] / ours[part]:.1f}" for part in ("warm", "cold", "evaluations")]
            examples, heads, token_width, width = CASES[case]
            print(
                f"P={examples} heads={heads} N0={token_width} N={width} | {name} | {row['cold']:.2f} | "
                f"{row['warm']:.4f} | {row['evaluations']} | {row['action'] - ours['action']:.1e} | "
                + " | ".join(ratios),
                flush=True,
            )


def child(case: int, name: str, limit: float) -> dict:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--child", json.dumps([case, name]), "--limit", str(limit)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(case: int, name: str, limit: float) -> dict:
    """Import, compile and solve one case by one method, timed apart."""
    from thermoformer.learning import Architecture, solve

    imported = time.perf_counter() - CLOCK
    from problems import made, markov

    examples, heads, token_width, width = CASES[case]
    features, labels = markov(examples) if token_width == 231 else made(examples, heads, token_width)
    arch = Architecture(heads, width)
    if name != "solve":
        return adam(arch, features, labels, name == "adam, plain", limit, imported)
    start = time.perf_counter()
    solution = solve(arch, features, labels, temperature=TEMPERATURE)
    cold = time.perf_counter() - start
    times: list[float] = []
    while len(times) < 3 or (sum(times) < 5 and len(times) < 50):
        start = time.perf_counter()
        solve(arch, features, labels, temperature=TEMPERATURE)
        times.append(time.perf_counter() - start)
    return {
        "cold": imported + cold,
        "warm": sorted(times)[len(times) // 2],
        "evaluations": solution.stats.evaluations,
        "action": solution.action,
        "done": solution.converged,
    }


def adam(arch, features, labels, plain: bool, limit: float, imported: float) -> dict:
    """The baseline, with the same data made ready in the same form."""
    import jax
    import jax.numpy as jnp
    import optax

    from thermoformer.learning.kernels import prepare

    start = time.perf_counter()
    problem = prepare(arch, features, labels)
    optimiser = optax.adam(0.1)

    @jax.jit
    def many(state, problem, steps):
        value_and_gradient = jax.value_and_grad(lambda grams: raw_action(grams, problem, arch, plain))

        def proceed(carry):
            return (carry[2] > 1e-5) & (carry[3] < steps)

        def advance(carry):
            grams, memory, _, count = carry
            _, gradient = value_and_gradient(grams)
            move, memory = optimiser.update(gradient, memory)
            norm = jnp.max(jnp.stack([jnp.abs(part).max() for part in gradient]))
            return optax.apply_updates(grams, move), memory, norm, count + 1

        return jax.lax.while_loop(proceed, advance, (*state, 0))

    grams = [jnp.eye(size) for size in arch.order_sizes]
    state, steps, piece = (grams, optimiser.init(grams), jnp.asarray(jnp.inf), 0), 0, 10
    # Twice: JAX compiles anew for the types of its own output, which must not count as run time.
    for _ in range(2):
        state = jax.block_until_ready(many(state[:3], problem, 0))
    compiled = time.perf_counter() - start
    start = time.perf_counter()
    seconds = 0.0
    while float(state[2]) > 1e-5 and seconds < limit:
        state = jax.block_until_ready(many(state[:3], problem, piece))
        steps += int(state[3])
        seconds = time.perf_counter() - start
        piece = max(1, min(2 * piece, int((limit - seconds) * steps / seconds)))
    return {
        "cold": imported + compiled + seconds,
        "warm": seconds,
        "evaluations": steps,
        "action": float(raw_action(state[0], problem, arch, plain)),
        "done": float(state[2]) <= 1e-5,
    }


def raw_action(grams, problem, arch, plain: bool):
    """S/max N in the raw symmetric matrices (learning §3)."""
    import jax.numpy as jnp
    import numpy as np

    from thermoformer.learning.kernels import gaussian_energy

    grams = [(gram + gram.T) / 2 for gram in grams]
    entries = grams[0][np.triu_indices(arch.paths)]
    if problem.pairs is not None and plain:
        covariance = jnp.tensordot(entries, problem.pairs, 1)
    elif problem.pairs is not None:
        covariance = (entries @ problem.pairs.reshape(len(entries), -1)).reshape(problem.pairs.shape[1:])
    else:
        mixed = problem.features @ grams[0]
        covariance = mixed.reshape(len(mixed), -1) @ problem.features.reshape(len(mixed), -1).T
    y, covariance = problem.labels, covariance + TEMPERATURE * jnp.eye(len(problem.labels))
    if plain:
        total = jnp.linalg.slogdet(covariance)[1] + y @ jnp.linalg.solve(covariance, y)
    else:
        total = gaussian_energy((covariance + covariance.T) / 2, y)
    readout = grams[-1][0, 0]
    total += arch.widths[-1] * (readout / arch.variances[-1] - jnp.log(readout))
    for layer, heads in enumerate(arch.heads):
        above, size = grams[layer + 1], len(grams[layer + 1])
        blocks = sum(grams[layer][h * size : (h + 1) * size, h * size : (h + 1) * size] for h in range(heads))
        inner = jnp.trace(jnp.linalg.solve(above, blocks)) / arch.variances[layer + 1]
        logs = heads * jnp.linalg.slogdet(above)[1] - jnp.linalg.slogdet(grams[layer])[1]
        total += arch.widths[layer] * (inner + logs)
    return total / max(arch.widths)


if __name__ == "__main__":
    main()

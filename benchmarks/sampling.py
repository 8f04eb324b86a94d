"""Effective samples of the predictor per second: exact order parameters, NUTS over all weights, Gibbs.

The hidden-Markov task with 4 paths (P = 100, N0 = 231, τ = 0.01), all samplers in one run on one machine. Counted is
what the draws cost after warm-up and compilation; an effective sample is one independent draw of the predictor at a
test example (median over 50 examples). For the exact sampler the predictor of a draw is mean_U, which scatters less
than a network does: the last column says how many independent networks would give the mean predictor as precisely.
"""

from __future__ import annotations

import argparse
import warnings

import jax
import numpy as np
from problems import markov

from thermoformer.learning import (
    Architecture,
    SamplingWarning,
    sample_order_parameters,
    sample_weights_on_paths,
)


def effective(draws: np.ndarray) -> np.ndarray:
    """Effective sample size of each example's predictor, from [chain, draw, example]."""
    from arviz_stats.base.array import array_stats

    return np.asarray(array_stats.ess(draws, chain_axis=0, draw_axis=1, method="mean"))


def measure(name: str, width: int, posterior, test, variance: np.ndarray | None = None) -> tuple[float, np.ndarray]:
    draws = posterior.predictor_draws(test)
    sizes = effective(draws)
    scatter = draws.var(axis=(0, 1))
    whole = posterior.predict(test).variance if variance is None else variance
    seconds = posterior.diagnostics.draw_seconds
    rate = float(np.median(sizes)) / seconds
    networks = float(np.median(sizes * whole / scatter)) / seconds
    record = posterior.diagnostics
    print(
        f"{name:<22}{width:>9}{record.draws * record.chains:>7}{np.median(sizes):>9.0f}{seconds:>10.2f}"
        f"{rate:>12.3g}{networks:>12.3g}{record.r_hat:>8.3f}  {'yes' if record.mixed else 'no'}",
        flush=True,
    )
    return rate, whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--draws", type=int, default=500, help="draws per chain of the exact sampler")
    parser.add_argument("--gibbs-draws", type=int, default=2000)
    parser.add_argument("--nuts-draws", type=int, nargs="+", default=[100], help="one number, or one for each width")
    parser.add_argument("--nuts-warmup", type=int, nargs="+", default=[200], help="one number, or one for each width")
    parser.add_argument(
        "--no-nuts-above", type=int, default=1000, help="leave NUTS over all weights out beyond this width"
    )
    options = parser.parse_args()
    dear = {}
    for name in ("nuts_draws", "nuts_warmup"):
        given = getattr(options, name)
        if len(given) not in (1, len(options.widths)):
            parser.error(f"--{name.replace('_', '-')}: one number, or one for each of {len(options.widths)} widths")
        dear[name] = dict(zip(options.widths, given * len(options.widths) if len(given) == 1 else given, strict=True))
    warnings.simplefilter("ignore", SamplingWarning)  # the table says which chains have mixed
    features, every_label = markov(150)
    training, labels, few = features[:100], every_label[:100], features[100:]
    print(f"backend: {jax.default_backend()}")
    header = f"{'sampler':<22}{'N':>9}{'draws':>7}{'ESS':>9}{'s':>10}{'ESS/s':>12}{'networks/s':>12}{'R-hat':>8}  mixed"
    print(header, flush=True)
    rates: dict[tuple[str, int], float] = {}
    for width in (*options.widths, 10**6):
        arch = Architecture((2, 2), width)
        given = {"temperature": 0.01, "key": 0, "chains": 2}
        exact = sample_order_parameters(arch, training, labels, draws=options.draws, **given)
        rates["exact", width], variance = measure("exact", width, exact, few)
        if width > max(options.widths):
            continue
        sweeps = sample_weights_on_paths(arch, training, labels, method="gibbs", draws=options.gibbs_draws, **given)
        rates["gibbs", width], _ = measure("Gibbs, all weights", width, sweeps, few, variance)
        if width <= options.no_nuts_above:
            whole = sample_weights_on_paths(
                arch,
                training,
                labels,
                method="nuts",
                draws=dear["nuts_draws"][width],
                warmup=dear["nuts_warmup"][width],
                **given,
            )
            rates["nuts", width], _ = measure("NUTS, all weights", width, whole, few, variance)
    print()
    for width in options.widths:
        for other in ("nuts", "gibbs"):
            if (other, width) in rates:
                ratio = rates["exact", width] / rates[other, width]
                print(f"N = {width}: exact has {ratio:.3g} times the effective samples per second of {other}")
    widest = max(options.widths)
    ratio = rates["exact", 10**6] / rates["exact", widest]
    print(f"exact at N = 10^6 has {ratio:.2f} times the effective samples per second of exact at N = {widest}")


if __name__ == "__main__":
    main()

"""Markov chains: NUTS from NumPyro and any other transition, run in compiled pieces, and judged.

A sampler is a pure function compiled once per structure: the target is an equinox module, whose arrays are arguments
of the program, so that another data set of the same shape costs no compilation. Chains run side by side (vmap) on an
accelerator. On a CPU, where batched matrix products are slower than single ones, they run one after another.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from .._validation import fail, positive_integer, positive_number

# Largest R-hat, and smallest effective sample size per chain, at which chains count as mixed. Vehtari et al. (2021)
# advise 1.01 and 100 for one quantity; here the worst of tens or hundreds of quantities is taken.
R_HAT_LIMIT = 1.03
EFFECTIVE_PER_CHAIN = 50
# Moves between modes that are asked for. Two chains with this number of independent states miss a mode that holds a
# fifth of the posterior with a probability of 0.8^40 = 1e-4.
CROSSINGS_PER_CHAIN = 20
# Draws come back in at most this many pieces: progress moves and Ctrl-C is heard between them.
PIECES = 25


class SamplingWarning(UserWarning):
    """Chains that have not mixed: their averages are not to be trusted yet."""


# Called before each piece as progress(steps done, steps in all, message).
Report = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Plan:
    """The arguments that all samplers share, checked."""

    draws: int  # per chain, after warm-up
    chains: int
    warmup: int  # steps before the draws; default: half the draws, at least 200
    devices: int  # that share the chains
    progress: Report | None

    @classmethod
    def of(cls, draws: Any, chains: Any, warmup: Any, devices: Any, progress: Report | None) -> Plan:
        """The plan of a user's arguments."""
        draws, chains = positive_integer("draws", draws), positive_integer("chains", chains)
        warmup = max(200, draws // 2) if warmup is None else positive_integer("warmup", warmup)
        count, local = 1 if devices is None else positive_integer("devices", devices), jax.local_device_count()
        if count > local or chains % count:
            raise fail("devices", count, f"at most {local}, the local devices, and a divisor of the {chains} chains")
        return cls(draws, chains, warmup, count, progress)


def checked_acceptance(value: Any) -> float:
    """The acceptance probability that a user wants, if it is one."""
    if positive_number("target_acceptance", value) >= 1:
        raise fail("target_acceptance", value, "a number between 0 and 1")
    return float(value)


class SamplerStats(NamedTuple):
    """The record of a run: per draw [chain, draw], None if a sampler has no such numbers, and as in `Diagnostics`."""

    diverging: np.ndarray | None
    acceptance: np.ndarray | None
    steps: np.ndarray | None
    gradient_evaluations: int
    seconds: float
    draw_seconds: float
    warmup: int
    crossings: int | None = None


@dataclass(frozen=True)
class Diagnostics:
    """Whether chains have mixed.

    Fields:
        method: "nuts", "tempered nuts" or "gibbs".
        chains, draws, warmup: draws per chain, after warm-up.
        r_hat: largest rank-normalised split R-hat over the quantities watched.
        bulk_effective, tail_effective: smallest effective sample sizes over the same quantities.
        worst: the quantity with the smallest bulk effective sample size.
        divergences: diverging trajectories after warm-up.
        acceptance: mean acceptance probability, or None.
        gradient_evaluations: in all, warm-up included; 0 for samplers without gradients.
        seconds: wall-clock time, compilation included.
        draw_seconds: of this, what the draws took after warm-up.
        crossings: how often the chains moved between modes. With tempering: how many independent draws of the prior
            have travelled to the posterior. In narrow networks without tempering: how often the nearest mode changed.
            None where a second mode is not known.
    """

    method: str
    chains: int
    draws: int
    warmup: int
    r_hat: float
    bulk_effective: float
    tail_effective: float
    worst: str
    divergences: int
    acceptance: float | None
    gradient_evaluations: int
    seconds: float
    draw_seconds: float
    crossings: int | None = None

    @property
    def mixed(self) -> bool:
        """Whether nothing speaks against the draws: see `reason`."""
        return not self.reason

    @property
    def reason(self) -> str:
        """What speaks against the draws, in words; empty where nothing does."""
        found = []
        if not self.r_hat <= R_HAT_LIMIT:
            found.append(f"R-hat is {self.r_hat:.3f}, over {R_HAT_LIMIT:g}")
        wanted = EFFECTIVE_PER_CHAIN * self.chains
        for name, value in (("bulk", self.bulk_effective), ("tail", self.tail_effective)):
            if not value >= wanted:
                found.append(f"the {name} effective sample size is {value:.0f}, under {wanted} ({self.worst})")
        # A few in a thousand are common at small width; more of them say that corners are missed.
        if self.divergences > 0.01 * self.chains * self.draws:
            found.append(f"{self.divergences} of {self.chains * self.draws} trajectories diverged")
        wanted = CROSSINGS_PER_CHAIN * self.chains
        if self.crossings is not None and self.crossings < wanted:
            found.append(f"the chains moved between modes {self.crossings} times, under {wanted}")
        return "; ".join(found)


def diagnose(method: str, watched: Mapping[str, Any], stats: SamplerStats) -> Diagnostics:
    """R-hat and effective sample sizes of named arrays [chain, draw, ...]; constant entries are left out."""
    from arviz_stats.base.array import array_stats

    r_hat, bulk, tail, worst = -math.inf, math.inf, math.inf, ""
    chains = draws = 0
    for name, values in watched.items():
        values = np.asarray(values, dtype=float)
        chains, draws = values.shape[:2]
        flat = values.reshape(chains, draws, -1)
        if not np.isfinite(flat).all():
            r_hat, bulk, tail, worst = math.nan, 0.0, 0.0, f"{name} is not finite"
            break
        flat = flat[:, :, np.ptp(flat, axis=(0, 1)) > 0]
        if draws < 4 or flat.shape[2] == 0:
            continue
        axes: dict[str, Any] = {"chain_axis": 0, "draw_axis": 1}
        with np.errstate(all="ignore"):  # a chain that stands still divides by zero: R-hat is then infinite
            r_hat = max(r_hat, float(np.max(array_stats.rhat(flat, method="rank", **axes))))
            smallest = float(np.min(array_stats.ess(flat, method="bulk", **axes)))
            ends = float(np.min(array_stats.ess(flat, method="tail", prob=(0.05, 0.95), **axes)))
        if smallest < bulk:
            bulk, worst = smallest, name
        tail = min(tail, ends)
    if bulk == math.inf:  # fewer than four draws, or nothing that varies: nothing can be said
        r_hat, bulk, tail = math.nan, 0.0, 0.0
    divergences = 0 if stats.diverging is None else int(np.sum(stats.diverging))
    acceptance = None if stats.acceptance is None else float(np.mean(stats.acceptance))
    found = method, chains, draws, stats.warmup, r_hat, bulk, tail, worst, divergences, acceptance
    return Diagnostics(*found, stats.gradient_evaluations, stats.seconds, stats.draw_seconds, stats.crossings)


def warn_if_unmixed(diagnostics: Diagnostics) -> None:
    """Issues a `SamplingWarning` with the reason and what to try if chains have not mixed."""
    if not diagnostics.mixed:
        advice = "take more draws" if diagnostics.r_hat < 1.2 else "take more warm-up and draws, or another method"
        message = f"{diagnostics.method} has not mixed: {diagnostics.reason}; {advice}"
        warnings.warn(message, SamplingWarning, stacklevel=3)


class Settings(NamedTuple):
    """The settings that NUTS is compiled for."""

    warmup: int
    target_acceptance: float
    dense: bool
    max_tree_depth: int


def run_nuts(
    potential: Callable[[Any], jax.Array],
    observe: Callable[[Any, Any], Any],
    start: Any,
    key: jax.Array,
    plan: Plan,
    target_acceptance: float = 0.8,
    known: tuple[Any, Any] | None = None,
) -> tuple[Any, SamplerStats]:
    """NUTS with step size and diagonal mass matrix adapted during warm-up.

    Arguments:
        potential: an equinox module, position → −ln density.
        observe: an equinox module, (position, potential there) → what is kept of a draw.
        start: where chains start, a pytree with a leading chain axis.
        known: potential and its gradient at the start; default: they are computed.

    Returns:
        What was observed, with leading axes [chain, draw], and the stats of the run.
    """
    began = time.perf_counter()
    settings = Settings(plan.warmup, target_acceptance, dense=False, max_tree_depth=10)
    state = nuts_start(potential, settings, start, jax.random.split(key, plan.chains), known=known)
    return in_pieces(partial(nuts_advance, potential, observe, settings), state, plan, "NUTS", began)


def run_steps(
    step: Callable[[jax.Array, Any], Any], observe: Callable[[Any, Any], Any], start: Any, key: jax.Array, plan: Plan
) -> tuple[Any, SamplerStats]:
    """Any Markov chain: `step` (an equinox module, (key, state) → state) again and again; returns as `run_nuts`."""
    began = time.perf_counter()
    state = (jax.random.split(key, plan.chains), start)
    return in_pieces(partial(_plain_advance, step, observe), state, plan, "Gibbs", began)


def in_pieces(advance: Callable, state: Any, plan: Plan, name: str, began: float) -> tuple[Any, SamplerStats]:
    """Runs warm-up and draws in pieces of one size, so that one program serves both; returns as `run_nuts`.

    Arguments:
        advance: (state, steps, devices) → state, what was observed and the sampler's record, [chain, step, ...].
        began: when the run began, in seconds.
    """
    total = plan.warmup + plan.draws
    # A power of two, so that runs of other lengths share the program.
    piece = 2 ** max(0, math.ceil(math.log2(total / PIECES)))
    parts, evaluations, done, drawing = [], 0, 0, 0.0
    while done < total:
        if plan.progress is not None:
            plan.progress(done, total, f"{name}, {'warm-up' if done < plan.warmup else 'draws'}")
        start = time.perf_counter()
        state, kept = advance(state, piece, plan.devices)
        # Off the device at once: it holds one piece, however many draws there are.
        observed, info = jax.tree.map(np.asarray, kept)
        first, last = (min(max(edge - done, 0), piece) for edge in (plan.warmup, total))
        parts.append(jax.tree.map(lambda values, cut=slice(first, last): values[:, cut], (observed, info)))
        evaluations += 0 if info is None else int(np.sum(info[2]))
        drawing += (time.perf_counter() - start) * (last - first) / piece
        done += piece
    observed, info = jax.tree.map(lambda *pieces: np.concatenate(pieces, axis=1), *parts)
    seconds = time.perf_counter() - began
    diverging, acceptance, steps = info or (None,) * 3
    return observed, SamplerStats(diverging, acceptance, steps, evaluations, seconds, drawing, plan.warmup)


def over_chains(one: Callable, arguments: Any, devices: int = 1) -> Any:
    """One chain's function over all of them; devices take equal shares and need nothing of each other."""

    def here(some: Any) -> Any:
        return jax.lax.map(one, some) if jax.default_backend() == "cpu" else jax.vmap(one)(some)

    if devices == 1:
        return here(arguments)
    mesh, share = Mesh(np.array(jax.local_devices()[:devices]), ("chain",)), PartitionSpec("chain")
    return jax.shard_map(here, mesh=mesh, in_specs=(share,), out_specs=share, check_vma=False)(arguments)


def nuts_kernels(potential: Callable, settings: Settings) -> tuple[Callable, Callable]:
    """NumPyro's initialiser and step; both take the further arguments of the potential as `model_args`."""
    from numpyro.infer.hmc import hmc

    start, advance = hmc(potential_fn_gen=lambda *further: lambda position: potential(position, *further), algo="NUTS")
    options: dict[str, Any] = {"target_accept_prob": settings.target_acceptance, "find_heuristic_step_size": False}
    options |= {"dense_mass": settings.dense, "max_tree_depth": settings.max_tree_depth}
    return partial(start, num_warmup=settings.warmup, **options), advance


def nuts_step(potential: Callable, settings: Settings, position: Any, *further: jax.Array) -> Callable:
    """NumPyro's step, (state, model_args) → state.

    Its kernel learns the settings from its initialiser, which is called here at any position with made-up values of the
    potential. What that returns is not used, and compiled away.
    """
    from numpyro.infer.util import ParamInfo

    begin, advance = nuts_kernels(potential, settings)
    begin(ParamInfo(position, 0.0, position), rng_key=jax.random.key(0), model_args=further)
    return advance


@eqx.filter_jit
def nuts_start(
    potential: Callable,
    settings: Settings,
    start: Any,
    keys: jax.Array,
    *further: jax.Array,
    covariance: jax.Array | None = None,
    known: tuple[jax.Array, Any] | None = None,
) -> Any:
    """States of NUTS, [chain, ...]; `further` are arguments of the potential, [chain].

    Arguments:
        covariance: an estimate of the posterior's, from which the adaptation starts; default: the identity.
        known: potential and its gradient at the start; default: they are computed.
    """
    from numpyro.infer.util import ParamInfo

    begin = partial(nuts_kernels(potential, settings)[0], inverse_mass_matrix=covariance)
    places = start if known is None else ParamInfo(start, *known)
    return jax.lax.map(lambda one: begin(one[0], rng_key=one[1], model_args=one[2]), (places, keys, further))


@eqx.filter_jit
def nuts_advance(
    potential: Callable,
    observe: Callable,
    settings: Settings,
    states: Any,
    steps: int,
    devices: int,
    *further: jax.Array,
) -> tuple[Any, Any]:
    """States after some steps of NUTS, what was observed and the sampler's record, [chain, step, ...]."""
    first = jax.tree.map(lambda leaf: leaf[0], (states.z, further))
    advance = nuts_step(potential, settings, first[0], *first[1])

    def one(chain: Any) -> tuple[Any, Any]:
        def step(state: Any, _: None) -> tuple[Any, Any]:
            state = advance(state, model_args=chain[1])
            kept = observe(state.z, state.potential_energy)
            return state, (kept, (state.diverging, state.accept_prob, state.num_steps))

        return jax.lax.scan(step, chain[0], None, length=steps)

    return over_chains(one, (states, further), devices)


@eqx.filter_jit
def _plain_advance(step: Callable, observe: Callable, states: Any, steps: int, devices: int) -> Any:
    def one_step(carry: tuple[jax.Array, Any], _: None) -> tuple[Any, Any]:
        key, state = carry
        key, now = jax.random.split(key)
        state = step(now, state)
        return (key, state), (observe(state, None), None)

    return over_chains(lambda carry: jax.lax.scan(one_step, carry, None, length=steps), states, devices)

"""Parallel tempering: chains that cross between the modes of a posterior.

Replicas of a chain run NUTS at inverse temperatures 0 < β_1 < … < β_K = 1 of the likelihood, with densities
prior · likelihood^β, and neighbours exchange their states by Metropolis steps. Below β_1 is the prior itself, of which
every step takes a new draw. A state that travels from there to β = 1 is independent of all earlier ones. These
crossings are counted: a chain that stays in one mode cannot have many of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._keys import numpy_generator
from .sampling import (
    Plan,
    SamplerStats,
    Settings,
    in_pieces,
    nuts_advance,
    nuts_start,
    nuts_step,
    over_chains,
)

# Draws of the prior from which the lowest inverse temperature is chosen.
PRIOR_DRAWS = 2000
# Neighbouring levels overlap so that draws of one, weighted to the next, keep this share of their number; about half
# of all exchanges are then accepted.
OVERLAP = 0.5
# Chains that run at a level while the ladder is built, their steps of adaptation, and the steps that are kept.
LEVEL_CHAINS, LEVEL_WARMUP, LEVEL_DRAWS = 4, 300, 100
# Trajectories have up to 2^6 − 1 steps. Longer ones, common before the adaptation, would make all levels wait.
MAX_TREE_DEPTH = 6


class _Power(eqx.Module):
    """The potential βE + S of a target with E = −ln likelihood (`energy`) and S = −ln prior density (`prior`)."""

    target: Any

    def __call__(self, position: jax.Array, beta: jax.Array) -> jax.Array:
        return beta * self.target.energy(position) + self.target.prior(position)

    def observed(self, position: jax.Array, _: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What is kept while the ladder is built: position and energy."""
        return position, self.target.energy(position)


class _Replicas(NamedTuple):
    """One chain: states of NUTS at β_1..β_K, the steps at which each came from the prior, steps so far, and a key."""

    levels: Any
    births: jax.Array
    clock: jax.Array
    key: jax.Array


def run_tempered(
    target: Any,
    observe: Callable[[Any, Any], Any],
    prior_draws: Callable[[np.random.Generator, int], np.ndarray],
    key: jax.Array,
    plan: Plan,
    target_acceptance: float = 0.8,
) -> tuple[Any, SamplerStats]:
    """Parallel tempering with NUTS; arguments and results as of `run_nuts`.

    The inverse temperatures are chosen from the prior up, each from draws of the one below it.

    Arguments:
        target: an equinox module with methods `energy` and `prior` of a position: −ln likelihood and −ln prior density.
        prior_draws: (generator, count) → positions drawn from the prior [draw, parameter].
    """
    began, chains = time.perf_counter(), plan.chains
    generator = numpy_generator(key)
    ladder_key, run_key = jax.random.split(key)
    settings = Settings(LEVEL_WARMUP, target_acceptance, dense=True, max_tree_depth=MAX_TREE_DEPTH)
    report = None if plan.progress is None else partial(plan.progress, 0, plan.warmup + plan.draws)
    betas, levels, steps = _ladder(target, settings, prior_draws(generator, PRIOR_DRAWS), ladder_key, chains, report)
    births = jnp.asarray(np.full((chains, len(betas)), -1), dtype=int)
    start = _Replicas(levels, births, jnp.asarray(np.zeros(chains), dtype=int), jax.random.split(run_key, chains))

    def advance(state: Any, count: int, devices: int) -> tuple[Any, Any]:
        fresh = prior_draws(generator, chains * count).reshape(chains, count, -1)
        return _advance(target, observe, settings, np.asarray(betas), state, fresh, devices)

    name = f"NUTS at {len(betas)} temperatures"
    (observed, origins), stats = in_pieces(advance, start, plan, name, began)
    # Steps count from 0; −1 marks the states that the ladder started from.
    crossings = sum(len(np.unique(chain[chain >= 0])) for chain in origins)
    evaluations = stats.gradient_evaluations + steps
    return observed, stats._replace(gradient_evaluations=evaluations, crossings=crossings)


def _ladder(
    target: Any,
    settings: Settings,
    positions: np.ndarray,
    key: jax.Array,
    chains: int,
    report: Callable[[str], None] | None,
) -> tuple[list[float], Any, int]:
    """Inverse temperatures up to 1, adapted states of NUTS at each [chain, level, ...], and steps, from prior draws."""
    potential, lanes = _Power(target), max(chains, LEVEL_CHAINS)
    energies = np.asarray(_energies(target, positions))
    beta, betas, levels, steps = 0.0, [], [], 0
    while beta < 1:
        if report is not None:
            report(f"tempering, likelihood to the power {beta:.2g}")
        now = jax.random.fold_in(key, len(betas))
        last, beta = beta, _next_beta(energies, beta)
        weights = np.exp(-(beta - last) * (energies - energies.min()))
        chosen = numpy_generator(now).choice(len(weights), size=lanes, p=weights / weights.sum())
        powers = jnp.asarray(np.full(lanes, beta), dtype=float)
        spread = np.cov(positions.T, aweights=weights).reshape(positions.shape[1], -1)
        covariance = jnp.asarray(spread, dtype=float)
        start, keys = positions[chosen], jax.random.split(now, lanes)
        state = nuts_start(potential, settings, start, keys, powers, covariance=covariance)
        state, ((positions, energies), info) = nuts_advance(
            potential, potential.observed, settings, state, LEVEL_WARMUP + LEVEL_DRAWS, 1, powers
        )
        positions = np.asarray(positions)[:, LEVEL_WARMUP:].reshape(lanes * LEVEL_DRAWS, -1)
        energies = np.asarray(energies)[:, LEVEL_WARMUP:].ravel()
        steps += int(np.sum(info[2]))
        betas.append(beta)
        # The warm-up of a level is short, and a lane may end with steps that are too long: all take over the step size
        # and mass matrix of the lane that accepted most.
        best = int(np.argmax(np.mean(np.asarray(info[1])[:, LEVEL_WARMUP:], axis=1)))
        levels.append(_like_the_best(state, best, chains))
    return betas, _stacked(levels), steps


@partial(jax.jit, static_argnames="chains")
def _like_the_best(state: Any, best: Any, chains: int) -> Any:
    """The first chains of a level, adapted as one lane is."""
    adapted = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[best], leaf.shape), state.adapt_state)
    return jax.tree.map(lambda leaf: leaf[:chains], state._replace(adapt_state=adapted))


@jax.jit
def _stacked(levels: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *levels)


def _next_beta(energies: np.ndarray, beta: float) -> float:
    """The largest β' ≤ 1 at which weights exp(−(β' − β)E) keep the wanted share of the draws."""

    def share(step: float) -> float:
        weights = np.exp(-step * (energies - energies.min()))
        return weights.sum() ** 2 / (weights**2).sum() / len(weights)

    low, high = 0.0, 1 - beta
    if share(high) >= OVERLAP:
        return 1.0
    for _ in range(60):  # by bisection of the logarithm, since first steps can be very small
        middle = np.sqrt(max(low, 1e-12 * high) * high)
        low, high = (middle, high) if share(middle) >= OVERLAP else (low, middle)
    return float(beta + max(low, 1e-12))


@eqx.filter_jit
def _energies(target: Any, positions: Any) -> jax.Array:
    return jax.lax.map(target.energy, positions)


@eqx.filter_jit
def _advance(
    target: Any,
    observe: Callable,
    settings: Settings,
    betas: Any,
    chains: _Replicas,
    fresh: Any,  # draws of the prior, [chain, step, parameter]
    devices: int,
) -> tuple[_Replicas, Any]:
    """All chains after as many steps as there are draws of the prior, what was observed, and the sampler's record."""
    advance = nuts_step(_Power(target), settings, chains.levels.z[0, 0], betas[0])

    def parts(position: jax.Array) -> Any:
        return jax.value_and_grad(target.energy)(position), jax.value_and_grad(target.prior)(position)

    def step(state: _Replicas, new: jax.Array) -> tuple[_Replicas, Any]:
        key, exchange_key = jax.random.split(state.key)
        positions = jnp.concatenate([new[None], state.levels.z])
        births = jnp.concatenate([state.clock[None], state.births])
        (energies, energy_slopes), (priors, prior_slopes) = over_chains(parts, positions)
        order = _exchanged(exchange_key, energies, jnp.concatenate([jnp.zeros(1), betas]), state.clock % 2)[1:]
        levels = state.levels._replace(
            z=positions[order],
            potential_energy=betas * energies[order] + priors[order],
            z_grad=betas[:, None] * energy_slopes[order] + prior_slopes[order],
        )
        levels = over_chains(lambda lane: advance(lane[0], model_args=(lane[1],)), (levels, betas))
        births = births[order]
        info = levels.diverging[-1], levels.accept_prob[-1], jnp.sum(levels.num_steps)
        kept = observe(levels.z[-1], levels.potential_energy[-1]), births[-1]
        return _Replicas(levels, births, state.clock + 1, key), (kept, info)

    return over_chains(lambda one: jax.lax.scan(step, *one), (chains, fresh), devices)


def _exchanged(key: jax.Array, energies: jax.Array, betas: jax.Array, parity: jax.Array) -> jax.Array:
    """Which replica each level takes over: pairs of neighbours, even and odd ones in turn (Syed et al. 2022)."""
    count = len(betas)
    gain = (betas[:-1] - betas[1:]) * (energies[:-1] - energies[1:])
    accepted = jnp.log(jax.random.uniform(key, (count - 1,))) < gain
    accepted &= jnp.arange(count - 1) % 2 == parity
    none = jnp.zeros(1, bool)
    return jnp.arange(count) + jnp.concatenate([accepted, none]) - jnp.concatenate([none, accepted])

"""Binomial numbers at any size, exact in law and at a cost that does not grow with the number of trials.

`jax.random.binomial` (read in JAX 0.10) cuts the argument of its Stirling correction at 9: tenths of a percent in the
acceptance ratio where about ten successes are expected. 10^7 draws do not show it clearly (its mean is 2.7 standard
errors off), but nothing here should rest on that; hence the same method with the correction in full.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

# Hörmann's rejection method is made for ten expected successes or more; fewer are found by inversion in few steps.
_INVERSION_BELOW = 10.0
# With fewer than 10 successes expected, more than 100 have a probability below 1e-60.
_MOST_BY_INVERSION = 100
# The acceptance test loses digits in proportion to the trials: at 10^12 it is still good to 1e-4 at any point.
LARGEST_TRIALS = 10**12

# Rests of Stirling's formula where its series is poor.
_FIRST_RESTS = tuple(
    math.lgamma(k + 1) - (k + 0.5) * math.log(k + 1) + (k + 1) - 0.5 * math.log(2 * math.pi) for k in range(10)
)


def rare_binomial(key: jax.Array, trials: jax.Array, probability: jax.Array) -> jax.Array:
    """Independent binomial numbers as floats, for probabilities of at most 1/2.

    Arguments:
        key: a JAX key.
        trials: whole numbers up to 10^12, as floats.
        probability: in [0, 1/2], of the shape of trials.

    Example:
        >>> rare_binomial(jax.random.key(0), jnp.array([1e9, 5.0]), jnp.array([0.0, 0.5]))[0].item()
        0.0
    """
    # Written so that NaN counts as small: inversion ends after a fixed number of steps, rejection would never accept.
    small = ~(trials * probability >= _INVERSION_BELOW)
    inversion_key, rejection_key = jax.random.split(key)
    few = _by_inversion(inversion_key, trials, jnp.where(small, probability, 0.0))
    many = _by_rejection(rejection_key, jnp.where(small, 100.0, trials), jnp.where(small, 0.5, probability), small)
    return jnp.where(small, few, many)


def _by_inversion(key: jax.Array, trials: jax.Array, probability: jax.Array) -> jax.Array:
    """The smallest k whose cumulative probability exceeds one uniform number, terms by their recursion."""
    uniform = jax.random.uniform(key, trials.shape, trials.dtype)
    odds = probability / (1 - probability)
    term = jnp.exp(trials * jnp.log1p(-probability))

    def unfinished(state):
        k, _, cumulative, _ = state
        return (k < _MOST_BY_INVERSION) & (uniform >= cumulative).any()

    def advance(state):
        k, term, cumulative, found = state
        term = term * odds * jnp.maximum(trials - k, 0) / (k + 1)
        return k + 1, term, cumulative + term, found + (uniform >= cumulative)

    start = (jnp.zeros((), trials.dtype), term, term, jnp.zeros_like(trials))
    return jnp.minimum(jax.lax.while_loop(unfinished, advance, start)[3], trials)


def _by_rejection(key: jax.Array, trials: jax.Array, probability: jax.Array, done: jax.Array) -> jax.Array:
    """Transformed rejection with squeeze, algorithm BTRS of Hörmann (J. Stat. Comput. Simul. 46, 1993)."""
    deviation = jnp.sqrt(trials * probability * (1 - probability))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * probability
    centre = trials * probability + 0.5
    squeeze = 0.92 - 4.2 / b
    alpha = (2.83 + 5.1 / b) * deviation
    odds = probability / (1 - probability)
    mode = jnp.floor((trials + 1) * probability)

    def log_ratio(k):
        """log of the probability of k over that of the mode."""
        rest = _stirling_rest(jnp.stack([mode, trials - mode, k, trials - k]))
        return (
            (mode + 0.5) * jnp.log((mode + 1) / (odds * (trials - mode + 1)))
            + (trials + 1) * jnp.log1p((k - mode) / (trials - k + 1))
            + (k + 0.5) * jnp.log(odds * (trials - k + 1) / (k + 1))
            + rest[0]
            + rest[1]
            - rest[2]
            - rest[3]
        )

    def unfinished(state):
        return ~state[1].all()

    def attempt(state):
        round_, done, chosen = state
        u, v = jax.random.uniform(jax.random.fold_in(key, round_), (2, *trials.shape), trials.dtype)
        u = u - 0.5
        edge = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / edge + b) * u + centre)
        inside = (k >= 0) & (k <= trials)
        k = jnp.where(inside, k, mode)
        accepted = (edge >= 0.07) & (v <= squeeze)
        accepted |= jnp.log(v * alpha / (a / edge**2 + b)) <= log_ratio(k)
        accepted &= inside & ~done
        return round_ + 1, done | accepted, jnp.where(accepted, k, chosen)

    return jax.lax.while_loop(unfinished, attempt, (0, done, mode))[2]


def _stirling_rest(k: jax.Array) -> jax.Array:
    """log k! − [½ log 2π + (k + ½) log(k + 1) − (k + 1)]."""
    few = jnp.asarray(_FIRST_RESTS, k.dtype)[jnp.clip(k, 0, 9).astype(int)]
    many = jnp.maximum(k, 10.0) + 1
    series = (1 / 12 - (1 / 360 - 1 / (1260 * many**2)) / many**2) / many
    return jnp.where(k < 10, few, series)

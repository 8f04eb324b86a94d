"""The action of the order parameters: energy, entropy, evidence (learning §3, §9)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .kernels import Problem, null_energy, reachable_energy
from .network import Architecture, order_sizes
from .order import gram_factors, parameter_kinds, whitened_factors


class Setting(NamedTuple):
    """What a sweep varies at fixed heads: widths N_1..N_a [L+1], scales σ1..σa [L+1] and temperature τ."""

    # NumPy arrays until a compiled program takes them, JAX arrays inside.
    widths: Any
    scales: Any
    temperature: Any

    @classmethod
    def of(cls, arch: Architecture, temperature: float) -> Setting:
        """The setting of one architecture at one temperature."""
        # Arrays this small would cost JAX more to dispatch than to compute.
        return cls(np.array(arch.widths, float), np.sqrt(arch.variances[1:]), np.array(temperature, float))


def entropy(vector: Float[Array, " parameter"], heads: tuple[int, ...], setting: Setting) -> Array:
    """S_a + Σ_l S_l = Σ_{l=1..L+1} N_l (‖R_l‖² − 2 Σ ln diag R_l − n_l ln σ_l²), whitened (learning §3, entropy)."""
    return entropy_derivatives(vector, heads, setting)[0]


def entropy_derivatives(vector: Array, heads: tuple[int, ...], setting: Setting) -> tuple[Array, Array, Array]:
    """The entropy, its gradient and the diagonal of its Hessian, which has no other entries.

    In whitened coordinates the entropy is a sum over parameters v: N (e^{2v} − 2v) for a log-diagonal, N v² below it.
    """
    layer, diagonal = parameter_kinds(order_sizes(heads))
    width = setting.widths[layer]
    square = jnp.where(diagonal, jnp.exp(2 * vector), vector**2)
    value = width @ jnp.where(diagonal, square - 2 * vector, square) - _log_scales(heads, setting)
    slope = width * jnp.where(diagonal, 2 * square - 2, 2 * vector)
    curvature = width * jnp.where(diagonal, 4 * square, 2.0)
    return value, slope, curvature


def path_factor(vector: Array, heads: tuple[int, ...], scales: Any) -> Float[Array, "path path"]:
    """F_1, with U^1 = F_1 F_1ᵀ."""
    return gram_factors(whitened_factors(vector, order_sizes(heads)), heads, scales)[0]


def action(vector: Array, problem: Problem, heads: tuple[int, ...], setting: Setting) -> Array:
    """S = E + S_a + Σ_l S_l at a whitened vector, not divided by a width."""
    return reachable_action(vector, problem, heads, setting) + null_energy(problem, setting.temperature)


def reachable_action(vector: Array, problem: Problem, heads: tuple[int, ...], setting: Setting) -> Array:
    """S less the part of the energy that no U can change."""
    factor = path_factor(vector, heads, setting.scales)
    return reachable_energy(problem, factor, setting.temperature) + entropy(vector, heads, setting)


def least_entropy(heads: tuple[int, ...], setting: Setting) -> Array:
    """The entropy at R = I, its smallest value: the prior's own normalisation to leading order."""
    return setting.widths @ jnp.asarray(order_sizes(heads), dtype=float) - _log_scales(heads, setting)


def log_evidence(action_value: Array, examples: int, heads: tuple[int, ...], setting: Setting) -> Array:
    """Leading log evidence ln p(y) = −½ [S − least entropy + P ln 2π].

    Subtracting the least entropy normalises the prior over U to leading order, so that the value tends to the log
    marginal likelihood of the Gaussian process as N → ∞, and evidences of different head sets can be compared.
    """
    return -0.5 * (action_value - least_entropy(heads, setting) + examples * math.log(2 * math.pi))


def _log_scales(heads: tuple[int, ...], setting: Setting) -> Array:
    """Σ_l N_l n_l ln σ_l²."""
    return (setting.widths * jnp.asarray(order_sizes(heads), dtype=float)) @ (2 * jnp.log(setting.scales))

"""The action of the order parameters: energy, entropy, evidence (learning §3, §9)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from .kernels import Problem, null_energy, reachable_energy
from .layout import Layout
from .network import Architecture
from .order import gram_factors, output_first, whitened_blocks


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


def entropy(vector: Float[Array, " parameter"], layout: Layout, setting: Setting) -> Array:
    """S_a + Σ_l S_l = Σ_{l=1..L+1} N_l (‖R_l‖² − 2 Σ ln diag R_l − n_l ln σ_l²), whitened (learning §3, entropy).

    With skips R = [Z B] (learning §8). In a layout of finite width it is −2 ln of the exact prior density of the
    vector, less constants: the i-th diagonal entry counts N_l − i times in place of N_l (learning §6).
    """
    return entropy_derivatives(vector, layout, setting)[0]


def entropy_derivatives(vector: Array, layout: Layout, setting: Setting) -> tuple[Array, Array, Array]:
    """The entropy, its gradient and the diagonal of its Hessian, which has no other entries.

    In whitened coordinates the entropy is a sum over parameters v: N (e^{2v} − 2v) for a log-diagonal, N v² below it.
    """
    diagonal, width = layout.diagonal, jnp.asarray(setting.widths)[layout.layer]
    freedom = width - layout.lost_freedom if layout.finite else width
    square = jnp.where(diagonal, jnp.exp(2 * vector), vector**2)
    value = width @ square - 2 * freedom @ jnp.where(diagonal, vector, 0.0) - _log_scales(layout, setting)
    slope = width * jnp.where(diagonal, 2 * square, 2 * vector) - jnp.where(diagonal, 2 * freedom, 0.0)
    curvature = width * jnp.where(diagonal, 4 * square, 2.0)
    return value, slope, curvature


def path_factor(vector: Array, layout: Layout, scales: Any) -> Float[Array, "row column"]:
    """F_1, with U^1 = F_1 F_1ᵀ and rows (output, path)."""
    return output_first(gram_factors(whitened_blocks(vector, layout), layout, scales)[0], layout.outputs)


def action(vector: Array, problem: Problem, layout: Layout, setting: Setting) -> Array:
    """S = E + S_a + Σ_l S_l at a whitened vector, not divided by a width."""
    return reachable_action(vector, problem, layout, setting) + null_energy(problem, setting.temperature)


def reachable_action(vector: Array, problem: Problem, layout: Layout, setting: Setting) -> Array:
    """S less the part of the energy that no U can change."""
    factor = path_factor(vector, layout, setting.scales)
    return reachable_energy(problem, factor, setting.temperature) + entropy(vector, layout, setting)


def least_entropy(layout: Layout, setting: Setting) -> Array:
    """The entropy at R = I, its smallest value: the prior's own normalisation to leading order."""
    return setting.widths @ _sizes(layout) - _log_scales(layout, setting)


def log_evidence(action_value: Array, observations: int, layout: Layout, setting: Setting) -> Array:
    """Leading log evidence ln p(y) = −½ [S − least entropy + P ln 2π], with P·D for D outputs.

    Subtracting the least entropy normalises the prior over U to leading order, so that the value tends to the log
    marginal likelihood of the Gaussian process as N → ∞, and evidences of different head sets can be compared.
    """
    return -0.5 * (action_value - least_entropy(layout, setting) + observations * math.log(2 * math.pi))


def log_prior(vector: Array, layout: Layout, setting: Setting) -> Array:
    """ln of the exact prior density of the vector at finite width, normalised (learning §6).

    With x = √N e^v the i-th diagonal entry follows χ with k = N − i degrees of freedom, whose density in v is
    2^{1−k/2} x^k e^{−x²/2} / Γ(k/2); every other entry is normal with variance 1/N.
    """
    width = jnp.asarray(setting.widths)[layout.layer]
    freedom = jnp.where(layout.diagonal, width - layout.lost_freedom, 1.0)
    logarithm = 0.5 * jnp.log(width) + vector
    chi = (1 - freedom / 2) * math.log(2) + freedom * logarithm - width * jnp.exp(2 * vector) / 2
    normal = 0.5 * jnp.log(width / (2 * math.pi)) - width * vector**2 / 2
    return jnp.where(layout.diagonal, chi - gammaln(freedom / 2), normal).sum()


def _log_scales(layout: Layout, setting: Setting) -> Array:
    """Σ_l N_l n_l ln σ_l²."""
    return (setting.widths * _sizes(layout)) @ (2 * jnp.log(setting.scales))


def _sizes(layout: Layout) -> Array:
    """n_1..n_{L+1}: the new vectors of each layer."""
    return jnp.asarray([float(block.rows) for block in layout.blocks])

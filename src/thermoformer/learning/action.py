"""The action of the order parameters: energy, entropy, evidence, and its minimum (learning §3, §9)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from .kernels import energy_derivatives, null_energy, packed, reachable_energy
from .layout import Layout
from .minimise import Minimum, limited_memory, newton
from .network import Architecture
from .order import gram_factors, output_first, whitened_blocks

# Operations for one Hessian up to which Newton's method is taken from the start: a second or so on two cores.
NEWTON_OPERATIONS = 2e10
# Relative accuracy of the linear solves behind derivatives of a minimum whose Hessian is not formed, and most steps.
SOLVE_TOLERANCE, SOLVE_STEPS = 1e-12, 2000


class Setting(NamedTuple):
    """What a sweep varies at fixed heads: widths N_1..N_a [L+1], scales σ1..σa [L+1] and temperature τ."""

    # NumPy arrays until a compiled program takes them, JAX arrays inside.
    widths: Any
    scales: Any
    temperature: Any

    @classmethod
    def of(cls, arch: Architecture, temperature: Any) -> Setting:
        """The setting of one architecture at one temperature."""
        # Arrays this small would cost JAX more to dispatch than to compute.
        number = temperature if isinstance(temperature, jax.Array) else np.array(temperature, float)
        return cls(np.array(arch.widths, float), arch.deviations[1:], number)


class Action(eqx.Module):
    """S(v) = E + S_a + Σ_l S_l of one network on one data set, at a whitened vector v, not divided by a width.

    Fields:
        problem: the training data, made ready; None where the prior alone is asked for.
        setting: widths, scales and temperature.
        layout: how v holds the order parameters.
    """

    problem: Any
    setting: Setting
    layout: Layout = eqx.field(static=True)

    @classmethod
    def of(cls, arch: Architecture, problem: Any, temperature: Any) -> Action:
        """The action whose minimum is the saddle."""
        return cls(problem, Setting.of(arch, temperature), arch.layout)

    @classmethod
    def at_finite_width(cls, arch: Architecture, problem: Any, temperature: Any) -> Action:
        """The exact law at finite width: exp(−S/2) is the posterior density of v, up to a constant (learning §6)."""
        layout = Layout.at_finite_width(arch.heads, arch.outputs, arch.skip, arch.widths)
        return cls(problem, Setting.of(arch, temperature), layout)

    def __call__(self, vector: Array) -> Array:
        """The whole of S."""
        return self.reachable(vector) + null_energy(self.problem, self.setting.temperature)

    def reachable(self, vector: Array) -> Array:
        """S less the part of the energy that no U can change."""
        return self.reachable_energy(vector) + self.entropy(vector)

    def reachable_energy(self, vector: Array) -> Array:
        """E less the part that no U can change."""
        return reachable_energy(self.problem, self.path_factor(vector), self.setting.temperature)

    def entropy(self, vector: Float[Array, " parameter"]) -> Array:
        """S_a + Σ_l S_l = Σ_{l=1..L+1} N_l (‖R_l‖² − 2 Σ ln diag R_l − n_l ln σ_l²), whitened (learning §3, entropy).

        With skips R = [Z B] (learning §8). In a layout of finite width it is −2 ln of the exact prior density of the
        vector, less constants: the i-th diagonal entry counts N_l − i times in place of N_l (learning §6).
        """
        return self.entropy_derivatives(vector)[0]

    def entropy_derivatives(self, vector: Array) -> tuple[Array, Array, Array]:
        """The entropy, its gradient and the diagonal of its Hessian, which has no other entries.

        In whitened coordinates the entropy is a sum over parameters v: N (e^{2v} − 2v) for a log-diagonal, N v² below.
        """
        diagonal, width = self.layout.diagonal, jnp.asarray(self.setting.widths)[self.layout.layer]
        freedom = width - self.layout.lost_freedom if self.layout.finite else width
        square = jnp.where(diagonal, jnp.exp(2 * vector), vector**2)
        value = width @ square - 2 * freedom @ jnp.where(diagonal, vector, 0.0) - self._log_scales()
        slope = width * jnp.where(diagonal, 2 * square, 2 * vector) - jnp.where(diagonal, 2 * freedom, 0.0)
        curvature = width * jnp.where(diagonal, 4 * square, 2.0)
        return value, slope, curvature

    def factors(self, vector: Array) -> list[Float[Array, "row column"]]:
        """F_1..F_{L+1}, with U^l = F_l F_lᵀ and rows (output, path)."""
        found = gram_factors(whitened_blocks(vector, self.layout), self.layout, self.setting.scales)
        return [output_first(factor, self.layout.outputs) for factor in found]

    def path_factor(self, vector: Array) -> Float[Array, "row column"]:
        """F_1."""
        return self.factors(vector)[0]

    def grams(self, vector: Array) -> list[Float[Array, "row row"]]:
        """U^1..U^{L+1}."""
        return [factor @ factor.T for factor in self.factors(vector)]

    @property
    def scale(self) -> Array:
        """max N + P (P·D with D outputs): S over this is of order one whether the prior or the data dominate."""
        return jnp.max(self.setting.widths) + self.problem.observations

    def derivatives(self, vector: Array) -> tuple[Array, Array, Array]:
        """The reachable S, its gradient and its Hessian, from stored pairs.

        The Hessian is Jᵀ (∂²E/∂U²) J + (∂E/∂U)·∂²U, with ∂U and ∂²U free of the data, plus the diagonal of the entropy.
        """

        def entries(at: Array) -> Array:
            factor = self.path_factor(at)
            return packed(factor @ factor.T)

        value, slope, curvature = energy_derivatives(self.problem, self.path_factor(vector), self.setting.temperature)
        jacobian = jax.jacfwd(entries)(vector)
        bend = jax.jacfwd(jax.grad(lambda at: slope @ entries(at)))(vector)
        entropy, entropy_slope, entropy_curvature = self.entropy_derivatives(vector)
        hessian = jacobian.T @ curvature @ jacobian + bend + jnp.diag(entropy_curvature)
        return value + entropy, jacobian.T @ slope + entropy_slope, hessian

    def hessian(self, vector: Array) -> Float[Array, "parameter parameter"]:
        """The Hessian of S; without stored pairs one column after another, in the memory of a gradient."""
        if self.problem.pairs is not None:
            return self.derivatives(vector)[2]
        return jax.lax.map(partial(self.hessian_product, vector), jnp.eye(len(vector)))

    def hessian_product(self, vector: Array, direction: Array) -> Float[Array, " parameter"]:
        """The Hessian of S times a direction."""
        return jax.jvp(jax.grad(self.reachable), (vector,), (direction,))[1]

    @property
    def hessian_operations(self) -> float:
        """Operations for the exact Hessian, see `hessian_operations`; infinite without stored pairs."""
        pairs = self.problem.pairs
        return math.inf if pairs is None else hessian_operations(pairs.shape[0], pairs.shape[1], self.layout)

    @property
    def method(self) -> str:
        """The minimiser to begin with: "newton" where its exact Hessian is worth the cost, else "limited-memory"."""
        return "newton" if self.hessian_operations <= NEWTON_OPERATIONS else "limited-memory"

    def minimise(self, start: Any, tolerance: Any, max_steps: Any, method: str) -> Minimum:
        """A minimum of S from a start; gradient, curvature and gain are of S over its scale, value and Hessian of S."""
        return _minimise(self, start, tolerance, max_steps, method)

    def least_entropy(self) -> Array:
        """The entropy at R = I, its smallest value: the prior's own normalisation to leading order."""
        return self.setting.widths @ _sizes(self.layout) - self._log_scales()

    def log_evidence(self, value: Array) -> Array:
        """Leading log evidence ln p(y) = −½ [S − least entropy + P ln 2π], with P·D for D outputs, of a value of S.

        Subtracting the least entropy normalises the prior over U to leading order, so that the value tends to the log
        marginal likelihood of the Gaussian process as N → ∞, and evidences of different head sets can be compared.
        """
        return -0.5 * (value - self.least_entropy() + self.problem.observations * math.log(2 * math.pi))

    def log_prior(self, vector: Array) -> Array:
        """ln of the exact prior density of the vector at finite width, normalised (learning §6).

        With x = √N e^v the i-th diagonal entry follows χ with k = N − i degrees of freedom, whose density in v is
        2^{1−k/2} x^k e^{−x²/2} / Γ(k/2); every other entry is normal with variance 1/N.
        """
        layout, width = self.layout, jnp.asarray(self.setting.widths)[self.layout.layer]
        freedom = jnp.where(layout.diagonal, width - layout.lost_freedom, 1.0)
        logarithm = 0.5 * jnp.log(width) + vector
        chi = (1 - freedom / 2) * math.log(2) + freedom * logarithm - width * jnp.exp(2 * vector) / 2
        normal = 0.5 * jnp.log(width / (2 * math.pi)) - width * vector**2 / 2
        return jnp.where(layout.diagonal, chi - gammaln(freedom / 2), normal).sum()

    def _log_scales(self) -> Array:
        """Σ_l N_l n_l ln σ_l²."""
        return (self.setting.widths * _sizes(self.layout)) @ (2 * jnp.log(self.setting.scales))


def hessian_operations(pairs: int, size: int, layout: Layout) -> float:
    """Operations for the exact Hessian: one P³ product per pair, all traces of two, and second derivatives of U."""
    return 2.0 * pairs * size**2 * (size + pairs) + 20.0 * layout.count * layout.blocks[0].rows ** 3


@eqx.filter_custom_jvp
def stationary(action: Action, vector: Array) -> Array:
    """A minimum v of the action, with derivatives: v moves so that it stays one (implicit function theorem).

    From ∂S(v; θ)/∂v = 0: dv = −(∂²S/∂v²)⁻¹ d_θ(∂S/∂v) for any change dθ of data and setting.
    """
    return vector


@stationary.def_jvp
def _stationary_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (action, vector), (change, _) = primals, tangents
    # Called again so that second derivatives include the motion of the minimum.
    vector = stationary(action, vector)
    if not jax.tree.leaves(change):  # nothing of the action changes
        return vector, jnp.zeros_like(vector)
    _, slope_change = eqx.filter_jvp(lambda one: jax.grad(one.reachable)(vector), (action,), (change,))
    if action.problem.pairs is not None:
        return vector, -jnp.linalg.solve(action.hessian(vector), slope_change)
    curvature = action.entropy_derivatives(vector)[2]

    def conjugate_gradients(matrix: Callable, right: Array) -> Array:
        return jax.scipy.sparse.linalg.cg(
            matrix, right, tol=SOLVE_TOLERANCE, maxiter=SOLVE_STEPS, M=lambda direction: direction / curvature
        )[0]

    # JAX cannot transpose its own `cg` if only the right side depends on the input; it can transpose this.
    product = partial(action.hessian_product, vector)
    solved = jax.lax.custom_linear_solve(product, slope_change, conjugate_gradients, symmetric=True)
    return vector, -solved


@eqx.filter_custom_jvp
def stationary_value(action: Action, vector: Array) -> Array:
    """S at a minimum: its derivative is the explicit one, since S does not change with the minimum to first order."""
    return action(vector)


@stationary_value.def_jvp
def _stationary_value_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (action, vector), (change, _) = primals, tangents
    if not jax.tree.leaves(change):
        return action(vector), jnp.zeros(())
    return eqx.filter_jvp(lambda one: one(vector), (action,), (change,))


@partial(jax.jit, static_argnames=("method",))
def _minimise(action: Action, start: Any, tolerance: Any, max_steps: Any, method: str) -> Minimum:
    """Compiled once per shape. The search has no derivatives of its own: `stationary` gives them to where it ends."""
    action, start = jax.lax.stop_gradient((action, jnp.asarray(start)))
    scale = action.scale
    if method == "newton":
        found = newton(
            lambda vector: jax.tree.map(lambda part: part / scale, action.derivatives(vector)),
            start,
            tolerance=tolerance,
            max_steps=max_steps,
        )
    else:
        found = limited_memory(
            lambda vector: action.reachable(vector) / scale, start, tolerance=tolerance, max_steps=max_steps
        )
    hessian = None if found.hessian is None else scale * found.hessian
    return found._replace(value=scale * found.value, hessian=hessian)


def _sizes(layout: Layout) -> Array:
    """n_1..n_{L+1}: the new vectors of each layer."""
    return jnp.asarray([float(block.rows) for block in layout.blocks])

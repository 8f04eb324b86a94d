"""The action of the order parameters: energy, entropy, evidence, and its minimum (learning §3, §9).

Order parameters are a vector of whitened factors (see `architecture`). The rows of a Gram matrix that leaves the
library are (output, path) with the output slowest (learning §7). Inside, the recursion over layers puts the output
fastest, since it starts from the readout.

The minimisers, Newton with the exact Hessian and limited-memory BFGS, are pure functions of a vector of order one: they
run under jit and vmap. They stop at a gradient, at a step limit, or when rounding leaves nothing to gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from .._precision import MATMUL_PRECISION
from .architecture import Architecture, Layout
from .kernels import energy_derivatives, null_energy, packed, reachable_energy

# Operations for one Hessian up to which Newton's method is taken from the start: a second or so on two cores.
NEWTON_OPERATIONS = 2e10
# Relative accuracy of the linear solves behind derivatives of a minimum whose Hessian is not formed, and most steps.
SOLVE_TOLERANCE, SOLVE_STEPS = 1e-12, 2000
# Whitened coordinates are of order one (logarithms of factors): a first step longer than this leaves the region
# where a quadratic model says anything.
FIRST_RADIUS = 1.0
# Gains under which the gradient decides, and not the value, whether a step is good.
NEAR = 1e-10
# Steps in a row that rounding may spoil before a search ends.
STALLS = 5
# Candidate shifts of the Hessian, in units of its largest curvature.
DAMPINGS = 10.0 ** np.linspace(-12, 4, 65)
# Steps that limited-memory BFGS remembers: the action costs far more than the recursion over them.
MEMORY = 60
# Relative rounding of the action; differences under it decide nothing.
ROUNDING = 1e-13


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
        problem: the prepared training data; None if only the prior is needed.
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
        return cls(problem, Setting.of(arch, temperature), arch.finite_layout)

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
        diagonal, width = self.layout.diagonal, jnp.asarray(self.setting.widths)[self.layout.layer]
        freedom = width - self.layout.lost_freedom if self.layout.finite else width
        square = jnp.where(diagonal, jnp.exp(2 * vector), vector**2)
        value = width @ square - 2 * freedom @ jnp.where(diagonal, vector, 0.0)
        rows = np.array([float(block.rows) for block in self.layout.blocks])
        return value - (self.setting.widths * rows) @ (2 * jnp.log(self.setting.scales))

    @jax.jit
    def entropy_derivatives(self, vector: Array) -> tuple[Array, Array, Array]:
        """The entropy, its gradient and the diagonal of its Hessian, which has no other entries."""
        slope, curvature = jax.jvp(jax.grad(self.entropy), (vector,), (jnp.ones_like(vector),))
        return self.entropy(vector), slope, curvature

    def factors(self, vector: Float[Array, " parameter"]) -> list[Float[Array, "row column"]]:
        """F_1..F_{L+1}, with U^l = F_l F_lᵀ and rows (output, path), by the recursion in `architecture`."""
        layout, scales = self.layout, self.setting.scales
        entries = jnp.where(layout.diagonal, jnp.exp(vector), vector)
        parts = jnp.split(entries, np.cumsum([block.count for block in layout.blocks])[:-1])
        factors: list[Array] = []
        for layer, block in reversed(list(enumerate(layout.blocks))):
            part = parts[layer]
            new = jnp.concatenate([part, jnp.zeros(1, vector.dtype)])[block.places]
            if not factors:
                factors = [scales[layer] * new]
                continue
            above = factors[0]
            joined = jnp.concatenate([part[block.triangle :].reshape(block.rows, block.old), new], axis=1)
            by_head = joined.reshape(layout.heads[layer], above.shape[1], -1)
            product = jnp.einsum("ij,hjk->hik", above, by_head, precision=MATMUL_PRECISION)
            factor = scales[layer] * product.reshape(-1, by_head.shape[-1])
            if layout.skip:
                factor = jnp.concatenate([jnp.pad(above, ((0, 0), (0, new.shape[1]))), factor], axis=0)
            factors.insert(0, factor)
        if layout.outputs == 1:
            return factors
        by_path = [factor.reshape(-1, layout.outputs, factor.shape[1]) for factor in factors]
        return [one.transpose(1, 0, 2).reshape(-1, one.shape[2]) for one in by_path]

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

        factor = self.path_factor(vector)
        value, slope, curvature = energy_derivatives(self.problem, factor, self.setting.temperature)
        # 2 ∂E/∂U as a symmetric matrix: a pair off the diagonal stands for both of its entries.
        rows = len(factor)
        places = np.zeros((rows, rows), int)
        places[np.triu_indices(rows)] = np.arange(len(slope))
        pull = slope[np.maximum(places, places.T)] * (1 + np.eye(rows))

        def entries_and_gradient(at: Array) -> tuple[tuple[Array, Array], Array]:
            """The entries of U, and the gradient of (∂E/∂U)·U at fixed ∂E/∂U: one derivative serves both."""
            factor, pull_back = jax.vjp(self.path_factor, at)
            gradient = pull_back(pull @ factor)[0]
            return (packed(factor @ factor.T), gradient), gradient

        (jacobian, bend), gradient = jax.jacfwd(entries_and_gradient, has_aux=True)(vector)
        entropy, entropy_slope, entropy_curvature = self.entropy_derivatives(vector)
        hessian = jacobian.T @ curvature @ jacobian + bend + jnp.diag(entropy_curvature)
        return value + entropy, gradient + entropy_slope, hessian

    @jax.jit
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

    @partial(jax.jit, static_argnames=("method",))
    def minimise(self, start: Any, tolerance: Any, max_steps: Any, method: str, memory: Any = None) -> Minimum:
        """A minimum of S from a start; norm, curvature and gain are of S over its scale, value and derivatives of S.

        Compiled once per shape. The search has no derivatives of its own: `stationary` gives them to where it ends.
        `memory` is what limited-memory BFGS learned in an earlier search nearby.
        """
        action, start = jax.lax.stop_gradient((self, jnp.asarray(start)))
        scale, options = action.scale, {"tolerance": tolerance, "max_steps": max_steps}
        if method == "newton":
            found = newton(lambda at: jax.tree.map(lambda part: part / scale, action.derivatives(at)), start, **options)
        else:
            found = limited_memory(lambda at: action.reachable(at) / scale, start, memory, **options)
        hessian = None if found.hessian is None else scale * found.hessian
        return found._replace(value=scale * found.value, gradient=scale * found.gradient, hessian=hessian)

    def least_entropy(self) -> Array:
        """The entropy at R = I, its smallest value: the prior's own normalisation to leading order."""
        return self.entropy(jnp.zeros(self.layout.count))

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


def hessian_operations(pairs: int, size: int, layout: Layout) -> float:
    """Operations for the exact Hessian: one P³ product per pair, all traces of two, and second derivatives of U."""
    return 2.0 * pairs * size**2 * (size + pairs) + 20.0 * layout.count * layout.blocks[0].rows ** 3


@jax.jit
def follow(action: Action, before: Setting, vector: Any, hessian: Any, tolerance: Any, max_steps: Any) -> Array:
    """A start for `minimise`: BFGS from the minimum and the Hessian at another setting, by gradients alone.

    Only the entropy depends on the widths: the first step needs no gradient, since that of the energy at the old
    minimum is known. The last step is not evaluated if it will reach the tolerance; `minimise` will do that.
    """
    vector = jnp.asarray(vector)
    _, old_slope, old_curvature = replace(action, setting=before).entropy_derivatives(vector)
    _, slope, curvature = action.entropy_derivatives(vector)
    slope_of, goal = jax.grad(action.reachable), tolerance * action.scale

    def step(hessian: Array, gradient: Array) -> Array:
        move = -jax.scipy.linalg.solve(hessian, gradient, assume_a="pos")
        return move * jnp.minimum(1, FIRST_RADIUS / jnp.maximum(jnp.linalg.norm(move), FIRST_RADIUS))

    def proceed(state: tuple) -> Array:
        _, _, _, _, norm, last, steps = state
        return (norm * norm / last > goal / 10) & (norm < 0.7 * last) & (steps < max_steps)

    def advance(state: tuple) -> tuple:
        vector, move, gradient, hessian, norm, _, steps = state
        found = slope_of(vector + move)
        size = jnp.abs(found).max()
        better = size < norm  # false for NaN
        change, pull = found - gradient, hessian @ move
        update = jnp.outer(change, change) / (change @ move) - jnp.outer(pull, pull) / (move @ pull)
        # The first gradient was not evaluated: it has nothing to say about the curvature.
        hessian = jnp.where((steps > 0) & (change @ move > 0), hessian + update, hessian)
        moved = jnp.where(better, vector + move, vector)
        move = jnp.where(better & (size > goal), step(hessian, found), 0.0)
        return moved, move, found, hessian, jnp.where(better, size, jnp.inf), norm, steps + 1

    hessian = hessian + jnp.diag(curvature - old_curvature)
    move = step(hessian, slope - old_slope)
    far = 1.0 * action.scale  # gradients of this size are not those of a neighbour
    first = (vector, move, vector, hessian, far, 2 * far, jnp.asarray(0))
    vector, move, *_ = jax.lax.while_loop(proceed, advance, first)
    return vector + move


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


class Minimum(NamedTuple):
    """Where a minimiser stopped."""

    vector: Float[Array, " parameter"]
    gradient_norm: Float[Array, ""]
    smallest_curvature: Float[Array, ""]  # of the Hessian; NaN where it was not formed
    evaluations: Array
    remaining_gain: Float[Array, ""]  # what a further Newton step would take off the function; NaN if not known
    value: Float[Array, ""]
    gradient: Float[Array, " parameter"]
    hessian: Float[Array, "parameter parameter"] | None = None  # none where it was not formed
    memory: Any = None  # of limited-memory BFGS


def newton(
    function: Callable[[Array], tuple[Array, Array, Array]], start: Array, *, tolerance: Any, max_steps: Any
) -> Minimum:
    """Newton's method in a trust region (Moré and Sorensen's step from the eigenvectors of the Hessian).

    Arguments:
        function: a vector → value, gradient and Hessian; each step costs one call.
    """

    def derivatives(vector: Array) -> tuple[Array, Array, Array, Array, Array]:
        value, gradient, hessian = function(vector)
        # A failed Cholesky factor gives NaN everywhere, which eigh may not survive.
        usable = jnp.isfinite(value) & jnp.isfinite(hessian).all()
        curvatures, directions = jnp.linalg.eigh(jnp.where(usable, hessian, jnp.eye(len(vector))))
        return jnp.where(usable, value, jnp.inf), gradient, hessian, curvatures, directions

    def proceed(state: tuple) -> Array:
        _, (_, gradient, *_), _, _, _, radius, evaluations, stalls = state
        unfinished = jnp.abs(gradient).max() > tolerance
        return (evaluations == 0) | (unfinished & (evaluations < max_steps) & (stalls < STALLS) & (radius > 1e-14))

    def advance(state: tuple) -> tuple:
        # The state carries the next trial move, so that the derivatives stand, and are compiled, only once.
        vector, best, move, predicted, _, radius, evaluations, stalls = state
        found = derivatives(vector + move)
        first = evaluations == 0
        gain, length = best[0] - found[0], jnp.linalg.norm(move)
        size = jnp.maximum(jnp.abs(found[0]), 1)
        # So near the minimum the value may be rounded more coarsely than it falls; the gradient then decides.
        near = (jnp.abs(gain) <= NEAR * size) & (predicted <= NEAR * size)
        level = near | (jnp.abs(gain) <= ROUNDING * size)
        smaller = jnp.abs(found[1]).max() < jnp.abs(best[1]).max()
        accept = first | (gain > 1e-4 * predicted) | (level & smaller)
        # On level ground steps that do not shrink the gradient, even as they get shorter, mean that rounding has won.
        stuck = level & ~smaller & ~first
        stalls = jnp.where(~jnp.isfinite(found[0]) & first, STALLS, jnp.where(stuck, stalls + 1, 0))
        grown = jnp.where((gain > 0.75 * predicted) & (length > 0.5 * radius), 2 * radius, radius)
        shorter = jnp.where(level, stuck, gain < 0.25 * predicted)
        radius = jnp.where(first, radius, jnp.where(shorter, 0.25 * length, jnp.where(level, radius, grown)))
        vector = jnp.where(accept, vector + move, vector)
        best = jax.tree.map(lambda new, old: jnp.where(accept, new, old), found, best)
        _, gradient, _, curvatures, directions = best
        move, predicted, remaining = trust_region_move(gradient, curvatures, directions, radius)
        return vector, best, move, predicted, remaining, radius, evaluations + 1, stalls

    zero, none, count = jnp.zeros_like(start), jnp.zeros(()), len(start)
    blank = (jnp.asarray(jnp.inf), zero + jnp.inf, jnp.zeros((count, count)), zero, jnp.zeros((count, count)))
    first = (start, blank, zero, none, none, jnp.asarray(FIRST_RADIUS), jnp.asarray(0), jnp.asarray(0))
    vector, best, _, _, remaining, _, evaluations, _ = jax.lax.while_loop(proceed, advance, first)
    value, gradient, hessian, curvatures, _ = best
    norm = jnp.where(jnp.isfinite(value), jnp.abs(gradient).max(), jnp.nan)
    return Minimum(vector, norm, curvatures[0], evaluations, remaining, value, gradient, hessian)


def trust_region_move(gradient: Array, curvatures: Array, directions: Array, radius: Array) -> tuple[Array, ...]:
    """The step −(H + λI)⁻¹g that a quadratic model takes within the radius, its gain, and the gain of a free step.

    λ is the smallest on a geometric grid that keeps the step within the radius: all candidates at once is one small
    matrix, where root-finding would be a loop of tiny operations.
    """
    slope = directions.T @ gradient
    largest = jnp.abs(curvatures).max()
    shift = jnp.maximum(0, -curvatures[0]) + largest * np.concatenate([[0.0], DAMPINGS])
    denominator = jnp.maximum(curvatures[:, None] + shift[None, :], 1e-14 * largest)
    moves = -slope[:, None] / denominator
    fits = jnp.sum(moves**2, axis=0) <= radius**2
    chosen = moves[:, jnp.argmax(fits.at[-1].set(True))]
    chosen = chosen * jnp.minimum(1, radius / jnp.linalg.norm(chosen))
    steps = jnp.stack([chosen, moves[:, 0]])
    gains = -(steps @ slope + 0.5 * steps**2 @ curvatures)
    return directions @ chosen, gains[0], gains[1]


def limited_memory(
    function: Callable[[Array], Array], start: Array, memory: Any = None, *, tolerance: Any, max_steps: Any
) -> Minimum:
    """Limited-memory BFGS with optax's zoom line search, for more numbers than a Hessian is worth.

    Each step costs about one evaluation of the function with its gradient. `memory` is that of an earlier search.
    """
    import optax  # imported late: small problems never need it

    search = optax.scale_by_zoom_linesearch(max_linesearch_steps=20, initial_guess_strategy="one")
    optimiser = optax.lbfgs(memory_size=MEMORY, linesearch=search)
    value_and_gradient = optax.value_and_grad_from_state(function)

    def proceed(state: tuple) -> Array:
        _, _, norm, steps, _, stalled = state
        return (norm > tolerance) & (steps < max_steps) & ~stalled

    def advance(state: tuple) -> tuple:
        vector, memory, _, steps, evaluations, _ = state
        value, gradient = value_and_gradient(vector, state=memory)
        move, memory = optimiser.update(gradient, memory, vector, value=value, grad=gradient, value_fn=function)
        gradient = optax.tree_utils.tree_get(memory, "grad")
        information = optax.tree_utils.tree_get(memory, "info")
        norm = jnp.abs(gradient).max()
        moved = jnp.where(jnp.isfinite(norm), jnp.asarray(optax.apply_updates(vector, move)), vector)
        stalled = (moved == vector).all()
        return moved, memory, norm, steps + 1, evaluations + information.num_linesearch_steps, stalled

    blank: Any = optimiser.init(start)
    if memory is not None:
        # The last pair of differences is repeated: what the function itself changed by says nothing of its curvature.
        value, gradient = jax.value_and_grad(function)(start)
        step, change = (
            pairs[(memory.count - 2) % MEMORY] for pairs in (memory.diff_params_memory, memory.diff_updates_memory)
        )
        memory = memory._replace(count=memory.count - 1, params=start - step, updates=gradient - change)
        blank = (memory, *optax.tree_utils.tree_set(blank[1:], value=value, grad=gradient))
    first = (start, blank, jnp.asarray(jnp.inf), 0, 0, jnp.asarray(False))
    vector, memory, norm, _, evaluations, _ = jax.lax.while_loop(proceed, advance, first)
    value = jnp.asarray(optax.tree_utils.tree_get(memory, "value"))
    unknown = jnp.asarray(jnp.nan)
    gradient = jnp.asarray(optax.tree_utils.tree_get(memory, "grad"))
    return Minimum(vector, norm, unknown, jnp.asarray(evaluations), unknown, value, gradient, None, memory[0])

"""The one-loop correction: fluctuations of the order parameters around the saddle, to order 1/N (learning §6).

With weight exp(−S/2) and S of order N, the vector v of Bartlett factors scatters around the saddle v* with covariance
C = 2 (∂²S)⁻¹, and its mean is displaced by

    d = −½ C (b + ½ ∂³S : C)

where b·v is what the exact prior adds to the leading one: 2 i v for the i-th diagonal entry, which has N − i degrees
of freedom and not N. To order 1/N any function g of v has the mean g* + d·∂g + ½ C : ∂²g, and the variance ∂g C ∂g.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._validation import fail
from .action import Setting, log_prior, path_factor
from .kernels import PAIR_MEMORY, Problem, energy, with_pairs
from .layout import Layout
from .minimise import action_derivatives, action_scale
from .moments import NewExamples, moments, new_examples
from .order import gram_factors, output_first, whitened_blocks
from .paths import PathFeatures
from .predictor import Prediction
from .saddle import Solution, checked_solution


@dataclass(frozen=True, eq=False)
class CorrectedSolution(Solution):
    """A saddle with the correction of order 1/N to its order parameters, predictions and evidence.

    `order_parameter`, `order_parameters`, `log_evidence` and `predict` are the corrected ones; action, energy, entropy
    and vector are the saddle's.

    Fields, beside those of `Solution`:
        saddle: the solution without correction.
        displacement: by how much the mean of the vector lies off the saddle [parameter].
        covariance: of the vector, to order 1/N [parameter, parameter].
    """

    saddle: Solution
    displacement: np.ndarray
    covariance: np.ndarray

    def predict(self, features: PathFeatures) -> Prediction:
        """Mean and variance of the output for new examples to order 1/N, fluctuations of U included.

        Far from large N a corrected variance can come out under 0; it is cut there.
        """
        setting = Setting.of(self.architecture, self.temperature)
        root = _square_root(self.covariance)
        given = (
            self.problem,
            self.architecture.layout,
            setting,
            jnp.asarray(self.vector),
            jnp.asarray(self.displacement),
            root,
        )
        parts = [_corrected_moments(*given, new) for new in new_examples(self.architecture, features, self.problem)]
        mean, variance = (np.concatenate([np.asarray(part[index]) for part in parts], axis=1) for index in (0, 1))
        variance = np.maximum(variance, 0)
        return Prediction(mean[0], variance[0]) if self.architecture.outputs == 1 else Prediction(mean.T, variance.T)


def one_loop(solution: Solution) -> CorrectedSolution:
    """The correction of order 1/N around a saddle; `solve(..., correction="one-loop")` ends with this.

    Arguments:
        solution: a converged minimum; every width at least the number of vectors of its layer.

    Example:
        >>> import numpy as np
        >>> from thermoformer.learning import Architecture, solve
        >>> rng = np.random.default_rng(0)
        >>> feats = PathFeatures.from_attentioned_inputs(rng.normal(size=(30, 2, 8)))
        >>> saddle = solve(Architecture((2,), 50), feats, np.sign(rng.normal(size=30)), temperature=0.1)
        >>> bool(np.abs(one_loop(saddle).order_parameter - saddle.order_parameter).max() < 0.2)
        True
    """
    arch, problem = checked_solution(solution).architecture, solution.problem
    if not solution.converged or solution.stats.method == "limit":
        raise fail("solution", "no minimum of the action", "a converged solution of `solve`")
    layout = arch.layout
    for width, block in zip(arch.widths, layout.blocks, strict=True):
        if width < block.old + block.columns:
            expected = f"widths of at least {block.old + block.columns}, the vectors of that layer, for the correction"
            raise fail("widths", arch.widths, expected)
    rows = arch.order_sizes[0]
    # Its derivative keeps a handful of copies of what the Hessian needs.
    if 8 * 5 * (rows * (rows + 1) // 2) * len(problem.labels) ** 2 > 4 * PAIR_MEMORY:
        raise fail("correction", f"{rows} paths on {len(problem.labels)} observations", "a smaller problem")
    setting = Setting.of(arch, solution.temperature)
    vector = jnp.asarray(solution.vector)
    hessian, displacement, evidence = _fluctuations(with_pairs(problem), layout, setting, vector)
    covariance = 2 * jnp.linalg.inv(hessian)
    root = _square_root(covariance)
    grams = _corrected_grams(layout, setting, vector, displacement, root)
    return CorrectedSolution(
        **{field.name: getattr(solution, field.name) for field in dataclasses.fields(Solution)}
        | {
            "order_parameter": np.asarray(grams[0]),
            "order_parameters": tuple(np.asarray(gram) for gram in grams),
            "log_evidence": float(evidence),
        },
        saddle=solution,
        displacement=np.asarray(displacement),
        covariance=np.asarray(covariance),
    )


def _square_root(covariance: np.ndarray | jax.Array) -> jax.Array:
    return jnp.linalg.cholesky(jnp.asarray(covariance))


@eqx.filter_jit
def _fluctuations(
    problem: Problem, layout: Layout, setting: Setting, vector: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """∂²S, the displacement d, and the log evidence with its terms of order one."""

    def curvature(at: jax.Array) -> jax.Array:
        return action_derivatives(at, problem, layout, setting)[2] * action_scale(problem, setting)

    hessian, pull_back = jax.vjp(curvature, vector)
    covariance = 2 * jnp.linalg.inv(hessian)
    third = pull_back(covariance)[0]  # ∂³S : C, in one pass backwards through the Hessian
    lost = 2 * jnp.asarray(layout.lost_freedom)
    displacement = -0.5 * covariance @ (lost + third / 2)
    data = energy(problem, path_factor(vector, layout, setting.scales), setting.temperature)
    likelihood = -0.5 * (data + problem.observations * math.log(2 * math.pi))
    # ∫ exp(−S/2) ≈ exp(−S*/2) √det(2π C), with the exact prior in place of its leading order.
    volume = 0.5 * len(vector) * math.log(2 * math.pi) + jnp.log(jnp.diagonal(_square_root(covariance))).sum()
    return hessian, displacement, likelihood + log_prior(vector, layout, setting) + volume


@eqx.filter_jit
def _corrected_moments(
    problem: Problem,
    layout: Layout,
    setting: Setting,
    vector: jax.Array,
    displacement: jax.Array,
    root: jax.Array,
    new: NewExamples,
) -> tuple[jax.Array, jax.Array]:
    def at(point: jax.Array) -> jax.Array:
        factor = path_factor(point, layout, setting.scales)
        return jnp.stack(moments(problem, new, factor, setting.temperature))

    mean_of, scatter = _averages(at, vector, jnp.asarray(displacement), root)
    # The law of total variance: the scatter of mean_U comes on top of the mean of variance_U.
    return mean_of[0], mean_of[1] + scatter[0]


@eqx.filter_jit
def _corrected_grams(
    layout: Layout, setting: Setting, vector: jax.Array, displacement: jax.Array, root: jax.Array
) -> list[jax.Array]:
    def at(point: jax.Array) -> list[jax.Array]:
        factors = gram_factors(whitened_blocks(point, layout), layout, setting.scales)
        factors = [output_first(factor, layout.outputs) for factor in factors]
        return [factor @ factor.T for factor in factors]

    return _averages(at, vector, displacement, root)[0]


def _averages(function, vector: jax.Array, displacement: jax.Array, root: jax.Array):
    """The mean g* + d·∂g + ½ C : ∂²g of a function of v, and the variance ∂g C ∂g of each of its values."""

    def slope(at: jax.Array, direction: jax.Array):
        return jax.jvp(function, (at,), (direction,))[1]

    value, first = jax.jvp(function, (vector,), (displacement,))

    def add(sums, direction: jax.Array):
        along, bend = jax.jvp(lambda at: slope(at, direction), (vector,), (direction,))
        means, scatters = sums
        means = jax.tree.map(lambda total, part: total + part / 2, means, bend)
        return (means, jax.tree.map(lambda total, part: total + part**2, scatters, along)), None

    start = (jax.tree.map(jnp.add, value, first), jax.tree.map(jnp.zeros_like, value))
    return jax.lax.scan(add, start, root.T)[0]

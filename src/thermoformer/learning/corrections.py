"""The one-loop correction: fluctuations of the order parameters around the saddle, to order 1/N (learning §6).

With weight exp(−S/2) and S of order N, the vector v of Bartlett factors scatters around the saddle v* with covariance
C = 2 (∂²S)⁻¹, and its mean is displaced by

    d = −½ C (b + ½ ∂³S : C)

where b·v is what the exact prior adds to the leading one: 2 i v for the i-th diagonal entry, which has N − i degrees
of freedom and not N. To order 1/N any function g of v has the mean g* + d·∂g + ½ C : ∂²g, and the variance ∂g C ∂g.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._validation import fail, numbers, traced
from .action import Action
from .architecture import Architecture, squeeze_output
from .kernels import PAIR_MEMORY, energy, with_pairs
from .paths import PathFeatures
from .results import NewExamples, PathSum, Prediction, joined, new_examples, raw_readout, readout_at
from .saddle import Solution, checked_solution


class CorrectedSolution(PathSum, eqx.Module):
    """The correction of order 1/N to the order parameters, predictions and evidence of a saddle.

    All other attributes, such as `action`, `stats` or `vector`, are those of the saddle.

    Fields:
        architecture, temperature: of the network.
        order_parameter, order_parameters: the means of U^1 and of U^1..U^{L+1}.
        log_evidence: ln p(y) with its terms of order one.
        saddle: the solution without correction.
        displacement: by how much the mean of the vector lies off the saddle [parameter].
        covariance: of the vector, to order 1/N [parameter, parameter].
    """

    architecture: Architecture
    temperature: float
    order_parameter: np.ndarray
    order_parameters: tuple[np.ndarray, ...]
    log_evidence: float
    saddle: Solution
    displacement: np.ndarray
    covariance: np.ndarray

    def __getattr__(self, name: str) -> Any:
        if name not in ("problem", "action", "energy", "entropy", "converged", "stats", "vector"):
            raise AttributeError(name)
        return getattr(self.saddle, name)

    def summary(self) -> dict[str, Any]:
        """The network and the log evidence."""
        return super().summary() | {"log_evidence": self.log_evidence}

    def predict(self, features: PathFeatures) -> Prediction:
        """Mean and variance of the output for new examples to order 1/N, fluctuations of U included.

        Far from large N a corrected variance can come out under 0; it is set to 0 then.
        """
        new = new_examples(self.architecture, features, self.saddle.problem)
        return Prediction(*joined([_corrected_moments(*self._given, piece) for piece in new]))

    def path_readout(self) -> np.ndarray:
        """The mean readout of every path to order 1/N, [path, feature] (and output)."""
        return raw_readout(self.architecture, self.saddle.problem, _corrected_readout(*self._given))

    @property
    def _given(self) -> tuple[Action, Any, Any, Any]:
        """The action, the saddle, and the displacement and covariance around it."""
        return self.saddle.action_function, self.saddle.vector, self.displacement, self.covariance


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
    failed = not traced(solution.converged) and not solution.converged
    if failed or solution.infinite_width:
        raise fail("solution", "no minimum of the action", "a converged solution of `solve`")
    for width, block in zip(arch.widths, arch.layout.blocks, strict=True):
        if width < block.old + block.columns:
            expected = f"widths of at least {block.old + block.columns}, the vectors of that layer, for the correction"
            raise fail("widths", arch.widths, expected)
    rows = arch.order_sizes[0]
    # Its derivative keeps a handful of copies of what the Hessian needs.
    if 8 * 5 * (rows * (rows + 1) // 2) * len(problem.labels) ** 2 > 4 * PAIR_MEMORY:
        raise fail("correction", f"{rows} paths on {len(problem.labels)} observations", "a smaller problem")
    action = replace(solution.action_function, problem=with_pairs(problem))
    covariance, displacement, evidence, grams = numbers(_fluctuations(action, solution.vector))
    given = arch, solution.temperature, grams[0], tuple(grams), evidence
    return CorrectedSolution(*given, solution, displacement, covariance)


@eqx.filter_jit
def _fluctuations(action: Action, vector: Any) -> tuple[jax.Array, jax.Array, jax.Array, list[jax.Array]]:
    """The covariance C, the displacement d, the log evidence with its terms of order one, and the mean of all U."""
    hessian, pull_back = jax.vjp(lambda at: action.derivatives(at)[2], vector)
    covariance = 2 * jnp.linalg.inv(hessian)
    third = pull_back(covariance)[0]  # ∂³S : C, in one pass backwards through the Hessian
    lost = 2 * jnp.asarray(action.layout.lost_freedom)
    displacement = -0.5 * covariance @ (lost + third / 2)
    data = energy(action.problem, action.path_factor(vector), action.setting.temperature)
    likelihood = -0.5 * (data + action.problem.observations * math.log(2 * math.pi))
    # ∫ exp(−S/2) ≈ exp(−S*/2) √det(2π C), with the exact prior in place of its leading order.
    volume = len(vector) * math.log(2 * math.pi) / 2 + jnp.log(jnp.diagonal(jnp.linalg.cholesky(covariance))).sum()
    grams, _ = _averages(action.grams, vector, displacement, covariance)
    return covariance, displacement, likelihood + action.log_prior(vector) + volume, grams


@eqx.filter_jit
def _corrected_moments(
    action: Action, vector: jax.Array, displacement: jax.Array, covariance: jax.Array, new: NewExamples
) -> tuple[jax.Array, jax.Array]:
    found, scatter = _averages(partial(new.moments, action), vector, displacement, covariance)
    # The law of total variance: the scatter of mean_U comes on top of the mean of variance_U.
    return squeeze_output(found[0]), squeeze_output(jnp.maximum(found[1] + scatter[0], 0))


@eqx.filter_jit
def _corrected_readout(action: Action, vector: jax.Array, displacement: jax.Array, covariance: jax.Array) -> jax.Array:
    def at(point: jax.Array) -> jax.Array:
        return readout_at(action.problem, action.path_factor(point), action.setting.temperature)

    return _averages(at, vector, displacement, covariance)[0]


def _averages(function, vector: jax.Array, displacement: jax.Array, covariance: jax.Array):
    """The mean g* + d·∂g + ½ C : ∂²g of a function of v, and the variance ∂g C ∂g of each of its values."""
    value, first = jax.jvp(function, (vector,), (displacement,))

    def add(sums, direction: jax.Array):
        def slope(at: jax.Array):
            return jax.jvp(function, (at,), (direction,))[1]

        along, bend = jax.jvp(slope, (vector,), (direction,))
        means, scatters = sums
        means = jax.tree.map(lambda total, part: total + part / 2, means, bend)
        return (means, jax.tree.map(lambda total, part: total + part**2, scatters, along)), None

    start = (jax.tree.map(jnp.add, value, first), jax.tree.map(jnp.zeros_like, value))
    return jax.lax.scan(add, start, jnp.linalg.cholesky(covariance).T)[0]

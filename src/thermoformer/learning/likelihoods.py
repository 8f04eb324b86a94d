"""Likelihoods of the labels given the output: Gaussian noise, heavier tails, outliers, and classes ±1 (learning §10).

The theory needs Gaussian noise. The samplers take any of these. Each law has the temperature τ as its only scale:

*gaussian*   y = f + √τ n, with n a standard normal number.
*student-t*  y = f + s t, with t from Student's law with ν > 2 degrees of freedom and s² = τ (ν − 2)/ν: variance τ.
*laplace*    p(y|f) ∝ exp(−|y − f| √(2/τ)): variance τ.
*outliers*   y = f + n with normal n, whose deviation is κ times as large for a share of the labels: variance τ in all.
*logistic*   labels ±1 with p(y|f) = φ + (1 − 2φ) σ(y f/√τ), σ(m) = 1/(1 + e^−m), and φ the share of flipped classes.

Each of them is a mixture of Gaussians over their variances (the logistic one over those of the Pólya-Gamma law). If
the output at the training examples is known to have some mean and variance, every label therefore has a *site*: a
Gaussian likelihood with a label and a temperature of its own, by the mean inverse variance of its mixture. Sites and
output in turn are a variational expectation maximisation (`reweighted`).
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._precision import MATMUL_PRECISION
from .._validation import fail, one_number, one_of, positive_number
from .action import Action
from .architecture import Architecture, squeeze_output
from .kernels import Problem, choose_form, covariance, inverse_and_solve, prepare
from .paths import PathFeatures

LIKELIHOODS = ("gaussian", "student-t", "laplace", "outliers", "logistic")
# Rounds of sites and saddle at most, and the change of the output, relative to its largest, at which they end.
ROUNDS, ROUND_TOLERANCE = 50, 1e-3


class Likelihood(eqx.Module):
    """How labels scatter about the output: p(y|f) at temperature τ, as the samplers take it.

    Arguments:
        name: "gaussian", "student-t", "laplace", "outliers", or "logistic" for labels ±1.
        degrees_of_freedom: ν > 2 of "student-t".
        share: of the labels that are outliers ("outliers"), or whose class is flipped ("logistic"), from 0 to below
            1/2.
        factor: by how much the deviation of outliers is larger.

    Example:
        >>> round(float(Likelihood("logistic").loss(1.0, 0.0, 0.5)), 3)
        0.693
    """

    name: str = eqx.field(static=True)
    degrees_of_freedom: float = 4.0
    share: float = 0.0
    factor: float = 10.0

    def __post_init__(self) -> None:
        one_of("likelihood", self.name, LIKELIHOODS)
        if not one_number("degrees_of_freedom", self.degrees_of_freedom) > 2:
            raise fail("degrees_of_freedom", self.degrees_of_freedom, "a number above 2: the variance is finite")
        if not 0 <= one_number("share", self.share) < 0.5:
            raise fail("share", self.share, "a number from 0 to below 0.5")
        positive_number("factor", self.factor)

    @classmethod
    def of(cls, value: Any) -> Likelihood:
        """The likelihood of a name, or the likelihood itself."""
        return value if isinstance(value, Likelihood) else cls(value)

    @property
    def gaussian(self) -> bool:
        """Whether the noise is Gaussian, as the theory has it."""
        return self.name == "gaussian"

    def check(self, labels: np.ndarray) -> None:
        """Raises if the labels are not those of classes where they must be."""
        if self.name == "logistic" and not np.isin(labels, (-1, 1)).all():
            wrong = labels[~np.isin(labels, (-1, 1))].flat[0]
            raise fail("labels", f"values such as {wrong:g}", "labels −1 and 1 with likelihood='logistic'")

    def loss(self, labels: Any, outputs: Any, temperature: Any) -> Array:
        """−ln p(y|f) of every label, less what does not depend on f."""
        gap, nu = labels - outputs, self.degrees_of_freedom
        if self.name == "gaussian":
            return gap**2 / (2 * temperature)
        if self.name == "student-t":
            return (nu + 1) / 2 * jnp.log1p(gap**2 / ((nu - 2) * temperature))
        if self.name == "laplace":
            return jnp.abs(gap) * jnp.sqrt(2 / temperature)
        if self.name == "outliers":
            return -jnp.logaddexp(*self._parts(gap**2, temperature)[0])
        margin = labels * outputs / jnp.sqrt(temperature)
        # φ + (1 − 2φ) σ(m) = σ(m) (1 − φ + φ e^−m)
        return jax.nn.softplus(-margin) - self._log_mixture(margin)

    def sites(self, labels: Any, mean: Any, variance: Any, temperature: Any) -> tuple[Array, Array]:
        """Labels and temperatures of the Gaussian likelihoods that stand in for this one (`reweighted`).

        Arguments:
            labels, mean, variance: y, and mean and variance of the output f at the training examples, of one shape.
        """
        nu, squares = self.degrees_of_freedom, (labels - mean) ** 2 + variance
        if self.name == "student-t":
            return labels, ((nu - 2) * temperature + squares) / (nu + 1)
        if self.name == "laplace":
            return labels, jnp.sqrt(temperature / 2 * squares)
        if self.name == "outliers":
            logs, variances = self._parts(squares, temperature)
            ordinary, outlier = jax.nn.softmax(jnp.stack(logs), axis=0)
            return labels, 1 / (ordinary / variances[0] + outlier / variances[1])
        if self.name == "logistic":
            scale = jnp.sqrt(temperature)
            half = jnp.sqrt(mean**2 + variance) / scale / 2
            mixed = 4 * half / jnp.tanh(half)
            kept = jnp.exp(jnp.log1p(-self.share) - self._log_mixture(labels * mean / scale))
            # A label that may be flipped pulls to both sides.
            return (2 * kept - 1) * labels * scale * mixed / 2, temperature * mixed
        return labels, jnp.full_like(squares, temperature)

    def _parts(self, squares: Array, temperature: Any) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Logarithms of the weighted densities of ordinary labels and outliers, less ½ ln 2π, and their variances."""
        own = temperature / (1 - self.share + self.share * self.factor**2)
        variances = own, own * self.factor**2
        shares = jnp.log1p(-self.share), jnp.log(self.share)
        logs = [share - (squares / one + jnp.log(one)) / 2 for share, one in zip(shares, variances, strict=True)]
        return (logs[0], logs[1]), variances

    def _log_mixture(self, margin: Array) -> Array:
        """ln(1 − φ + φ e^−m)."""
        return jnp.logaddexp(jnp.log1p(-self.share), jnp.log(self.share) - margin)


def reweighted(
    arch: Architecture, features: PathFeatures, labels: Any, likelihood: Likelihood, temperature: float
) -> tuple[PathFeatures, np.ndarray, np.ndarray]:
    """Training data on which the theory with Gaussian noise stands in for another likelihood.

    The search starts from Gaussian noise: sites are found for the output of the saddle, the saddle for these sites, and
    so on, up to `ROUNDS` times. It may end at a local maximum. The noise of a site becomes τ if its features and label
    are divided by the root of its temperature over τ.

    Arguments:
        labels: y [example], or [example, output].

    Returns:
        The features and the labels of the sites, both divided, and by what [example].
    """
    y = np.asarray(labels).reshape(features.examples, -1)
    likelihood = jax.tree.map(jnp.asarray, likelihood)
    data, own, units, vector = features, y, np.ones(len(y)), np.zeros(arch.layout.count)
    mean, given, temperatures = np.zeros_like(y), y, np.full(len(y), temperature)
    for _ in range(ROUNDS):
        units = np.sqrt(np.asarray(temperatures) / temperature)
        data = PathFeatures.from_attentioned_inputs(np.asarray(features.values) / units[:, None, None])
        own = squeeze_output(np.asarray(given) / units[:, None])
        action = Action.of(arch, prepare(arch, data, own, unrotated_form(arch, data), temperature), temperature)
        vector = action.minimise(vector, 1e-4, 100, action.method).vector
        scaled, spread = (np.asarray(part) for part in _output(action, vector))
        last, mean = mean, scaled * units[:, None]
        if np.abs(mean - last).max() <= ROUND_TOLERANCE * np.abs(mean).max():
            break
        given, temperatures = _sites(likelihood, y, mean, spread * units[:, None] ** 2, temperature)
    return data, own, units


@jax.jit
def _sites(likelihood: Likelihood, labels: Any, mean: Any, variance: Any, temperature: Any) -> tuple[Array, Array]:
    """Labels [example, output] and temperatures [example] of sites; outputs of an example share their features."""
    found, temperatures = likelihood.sites(labels, mean, variance, temperature)
    shared = 1 / jnp.mean(1 / temperatures, axis=1, keepdims=True)
    # The pull of a site, label over temperature, stays.
    return mean + (found - mean) * shared / temperatures, shared[:, 0]


@jax.jit
def _output(action: Action, vector: Any) -> tuple[Array, Array]:
    """Mean and variance of the output at the training examples, [example, output]."""
    _, mean, spread = latent_moments(action.problem, action.path_factor(vector), action.setting.temperature)
    by_output = (part.reshape(action.problem.outputs, -1).T for part in (mean, jnp.diagonal(spread)))
    return tuple(by_output)  # type: ignore[return-value]


@jax.custom_jvp
def energy_and_inverse(matrix: Array, labels: Array) -> tuple[Array, Array]:
    """ln det C + yᵀC⁻¹y and C⁻¹, with derivatives in C alone that use C⁻¹ and not the Cholesky factor."""
    return inverse_and_solve(matrix, labels)[:2]


@energy_and_inverse.defjvp
def _energy_and_inverse_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    value, inverse, alpha = inverse_and_solve(*primals)
    change = jnp.matmul(inverse, tangents[0], precision=MATMUL_PRECISION)
    slope = jnp.trace(change) - alpha @ tangents[0] @ alpha
    return (value, inverse), (slope, -jnp.matmul(change, inverse, precision=MATMUL_PRECISION))


def latent_moments(problem: Problem, factor: Array, temperature: Any, nugget: Any = 0.0) -> tuple[Array, Array, Array]:
    """The energy, and mean [row] and covariance of the output at the training examples given U.

    The prior covariance of the output is K and the nugget.
    """
    value, inverse = energy_and_inverse(covariance(problem, factor, temperature + nugget), problem.labels)
    mean = problem.labels - temperature * jnp.matmul(inverse, problem.labels, precision=MATMUL_PRECISION)
    return value, mean, temperature * (jnp.eye(len(inverse)) - temperature * inverse)


def unrotated_form(arch: Architecture, features: PathFeatures) -> str:
    """The cheapest form of the kernel that keeps the examples apart: other likelihoods know them one by one."""
    form = choose_form(features.examples, features.paths, features.token_width, arch.outputs)
    return "features" if form == "dual" else form

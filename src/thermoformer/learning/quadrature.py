"""The exact posterior of one path through one layer, by quadrature: an integral over one number (learning §6).

With one head in one layer U = σ1² σa² r1² r2² is a number, and √N r1 and √N r2 follow χ with N degrees of freedom each.
Only w = ln r1 + ln r2 enters the likelihood. Its prior is the law of a product of two χ variables,

    q(w) = 4 (z/2)^N K_0(z) / Γ(N/2)²        z = N e^w,

with K_0 the modified Bessel function. Against w posterior averages are sums over a grid: the trapezoidal rule, which
converges faster than any power of the spacing for a smooth integrand that falls off on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln, k0e

from .._validation import fail, labels_for, positive_integer, positive_number
from .architecture import Architecture
from .paths import PathFeatures
from .results import Prediction

# The posterior of w is cut where its density has fallen by this factor, e^−45, from its largest value.
CUT = 45.0


@dataclass(frozen=True, eq=False)
class QuadraturePosterior:
    """The exact posterior of a network with one path and one layer.

    Fields:
        nodes, weights: values of U and their posterior probabilities, which sum to 1, [node].
        order_parameter: the posterior mean of U [1, 1].
        log_evidence: ln p(y), exact.
    """

    nodes: np.ndarray
    weights: np.ndarray
    order_parameter: np.ndarray
    log_evidence: float
    # Training inputs ξ/√N0, scaled by σ0; eigenvalues and eigenvectors of their kernel, and the labels in its basis.
    inputs: np.ndarray
    eigenvalues: np.ndarray
    eigenvectors: np.ndarray
    labels: np.ndarray
    scale: float
    temperature: float

    def predict(self, features: PathFeatures) -> Prediction:
        """mean = E_U[mean_U] and variance = E_U[variance_U] + Var_U[mean_U], by quadrature."""
        new = np.asarray(features.values)[:, 0] * self.scale
        cross = self.eigenvectors.T @ (self.inputs @ new.T)
        gain = self.nodes[:, None] / (self.nodes[:, None] * self.eigenvalues + self.temperature)
        means = (gain * self.labels) @ cross
        variances = self.nodes[:, None] * (np.sum(new**2, axis=1) - gain @ cross**2)
        mean = self.weights @ means
        return Prediction(mean, self.weights @ (variances + (means - mean) ** 2))


def quadrature_posterior(
    arch: Architecture, features: PathFeatures, labels: Any, *, temperature: float, nodes: int = 400
) -> QuadraturePosterior:
    """The exact posterior at finite width for one path and one layer, by quadrature (learning §6).

    Arguments:
        arch: one layer with one head, equal widths, one output, no skip.
        features: attentioned inputs ξ [example, 1, feature] of the training examples.
        labels: y [example].
        temperature: τ > 0.
        nodes: points of the grid; 400 give relative errors under 1e-12.

    Example:
        >>> import numpy as np
        >>> feats = PathFeatures.from_attentioned_inputs(np.random.default_rng(0).normal(size=(5, 1, 10)))
        >>> exact = quadrature_posterior(Architecture((1,), 4), feats, [1, -1, 1, 1, -1], temperature=0.3)
        >>> exact.order_parameter.shape, round(float(exact.weights.sum()), 12)
        ((1, 1), 1.0)
    """
    if arch.heads != (1,) or arch.outputs != 1 or arch.skip or len(set(arch.widths)) > 1:
        raise fail("arch", arch, "one layer with one head, equal widths, one output and no skip")
    if features.paths != 1:
        raise fail("features", f"{features.paths} paths", "one")
    y = labels_for("labels", labels, features.examples)
    temperature = positive_number("temperature", temperature)
    if positive_integer("nodes", nodes) < 50:
        raise fail("nodes", nodes, "50 or more")
    scale = math.sqrt(arch.variances[0] / features.token_width)
    inputs = np.asarray(features.values)[:, 0] * scale
    eigenvalues, eigenvectors = np.linalg.eigh(inputs @ inputs.T)
    eigenvalues, rotated = np.maximum(eigenvalues, 0), eigenvectors.T @ y

    def log_joint(w: np.ndarray) -> np.ndarray:
        """ln p(y | U) + ln q(w)."""
        spread = arch.infinite_width_variance * np.exp(2 * w)[:, None] * eigenvalues + temperature
        energy = np.sum(np.log(spread) + rotated**2 / spread, axis=1)
        return -0.5 * (energy + len(y) * math.log(2 * math.pi)) + log_prior_density(w, arch.widths[0])

    grid, values = _posterior_grid(log_joint, nodes, lowest=-2 * CUT / min(arch.widths[0], 4) - 20)
    largest = values.max()
    weights = np.exp(values - largest)
    total = weights.sum()
    order = arch.infinite_width_variance * np.exp(2 * grid)
    return QuadraturePosterior(
        nodes=order,
        weights=weights / total,
        order_parameter=np.array([[weights @ order / total]]),
        log_evidence=float(largest + np.log(total * (grid[1] - grid[0]))),
        inputs=inputs,
        eigenvalues=eigenvalues,
        eigenvectors=eigenvectors,
        labels=rotated,
        scale=scale,
        temperature=temperature,
    )


def _posterior_grid(
    log_density: Callable[[np.ndarray], np.ndarray], nodes: int, lowest: float
) -> tuple[np.ndarray, np.ndarray]:
    """A grid over where a density lies, and its logarithm there: from one over everything possible, in three cuts."""
    grid = np.linspace(lowest, 20.0, nodes)
    values = log_density(grid)
    for _ in range(3):
        likely = np.flatnonzero(values > values.max() - CUT)
        grid = np.linspace(grid[max(likely[0] - 1, 0)], grid[min(likely[-1] + 1, nodes - 1)], nodes)
        values = log_density(grid)
    return grid, values


def log_prior_density(w: np.ndarray, width: int) -> np.ndarray:
    """ln q(w), the prior of w = ln r1 + ln r2: see the head of this file."""
    z = width * np.exp(w)
    # k0e(z) = e^z K_0(z) neither under- nor overflows.
    return math.log(4) + width * np.log(z / 2) + np.log(k0e(z)) - z - 2 * gammaln(width / 2)

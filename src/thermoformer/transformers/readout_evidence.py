"""The evidence of a Bayesian linear readout of a model's features (transformers, the evidence score).

With features F, centred over the examples and scaled so that K = FFᵀ has a mean diagonal of 1, and labels Y,

    ln p(Y) = max over s and τ of −½ tr[Yᵀ(sK + τI)⁻¹Y] − (D/2) ln det(sK + τI) .

Centring took one direction from both features and labels. It holds no information and is left out: P stands for the
number of examples less one, and the determinant for that of the others. (As the formula is written, few examples of
many features would have an infinite evidence at τ = 0, from that direction alone.)

Only the ratio ρ = s/τ has to be searched for. With S = (I + ρK)⁻¹ the best τ is tr[YᵀSY]/(PD), whatever ρ is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
import torch

from .._validation import fail

# ρ is searched on this grid, then between the neighbours of the best. Beyond it, labels are all noise or have none.
_RATIOS = np.geomspace(1e-4, 1e8, 61)

# Eigenvalues of K relative to the largest that are rounding: features come in float32.
_ROUNDING = 1e-12

# The noise is at least this share of the variance of the labels; the evidence would have no bound otherwise.
_LEAST_NOISE = 1e-6


def class_targets(labels: Any) -> torch.Tensor:
    """Labels with one column per class that occurs, or one for two classes, centred and of unit variance."""
    found, places = np.unique(np.asarray(labels), return_inverse=True)
    if len(found) < 2:
        raise fail("labels", f"{len(found)} class", "examples of two classes or more")
    columns = np.eye(len(found))[places]
    if len(found) == 2:
        columns = columns[:, 1:]
    return torch.from_numpy(standardised(columns))


def standardised(columns: np.ndarray) -> np.ndarray:
    """Columns centred and of unit variance; those without any variance are left out."""
    columns = columns - columns.mean(axis=0)
    spread = columns.std(axis=0)
    return columns[:, spread > 0] / spread[spread > 0]


@dataclass(frozen=True, eq=False)
class ReadoutEvidence:
    """The log evidence of a linear readout, at its best scale and temperature.

    Fields:
        value: ln p(Y), without the constant −(PD/2) ln 2π.
        scale, temperature: s and τ.
        features: F [example, feature], centred and scaled.
        size: what the features were divided by.
        targets: Y [example, output].
        solved: F (I + ρFᵀF)⁻¹ [example, feature].
    """

    value: float
    scale: float
    temperature: float
    features: torch.Tensor
    size: float
    targets: torch.Tensor
    solved: torch.Tensor

    @property
    def ratio(self) -> float:
        """ρ = s/τ."""
        return self.scale / self.temperature

    def residual(self, columns: torch.Tensor) -> torch.Tensor:
        """(I + ρK)⁻¹ columns, for columns [example, ...]."""
        flat = columns.reshape(len(columns), -1)
        return (flat - self.ratio * self.solved @ (self.features.T @ flat)).reshape(columns.shape)

    def readout(self) -> torch.Tensor:
        """The posterior mean of the readout [feature, output], of features as they came."""
        return self.ratio * (self.solved.T @ self.targets) / self.size

    def gradient(self) -> torch.Tensor:
        """∂ ln p / ∂ features [example, feature], for features as they came; s and τ stay at their best.

        ∂ ln p/∂F = ρ (A AᵀF/τ − D S F) with A = S Y; then back through the common size and the centring.
        """
        fitted, features = self.residual(self.targets), self.features
        slope = fitted @ (fitted.T @ features) / self.temperature - self.targets.shape[1] * self.solved
        slope = self.ratio * slope
        slope = (slope - features * ((slope * features).sum() / len(features))) / self.size
        return slope - slope.mean(0)


def readout_evidence(features: Any, targets: torch.Tensor) -> ReadoutEvidence:
    """The log evidence of labels under a Bayesian linear readout of features.

    Arguments:
        features: [example, feature].
        targets: [example, output], centred.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> features = generator.normal(size=(50, 3))
        >>> readable = readout_evidence(features, class_targets(features[:, 0] > 0))
        >>> noise = readout_evidence(features, class_targets(generator.normal(size=50) > 0))
        >>> readable.value > noise.value
        True
    """
    given = torch.as_tensor(features).to(targets.device, torch.float64)
    if given.ndim != 2 or len(given) != len(targets):
        raise fail("features", f"shape {tuple(given.shape)}", f"[example, feature] with {len(targets)} examples")
    if not bool(torch.isfinite(given).all()):
        raise fail("features", "NaN or infinite entries", "finite numbers")
    examples, outputs = targets.shape
    centred = given - given.mean(0)
    size = float(torch.sqrt((centred**2).sum() / examples))
    centred = centred / size if size > 0 else centred
    wide = centred.shape[1] > examples
    gram = centred @ centred.T if wide else centred.T @ centred
    values, vectors = torch.linalg.eigh(gram)
    kept = values > _ROUNDING * float(values.max().clamp(min=1e-300))
    values, vectors = values[kept], vectors[:, kept]
    # ‖u_iᵀY‖² of the eigenvectors u_i of K.
    overlaps = ((vectors.T @ (targets if wide else centred.T @ targets)) ** 2).sum(1)
    overlaps = (overlaps if wide else overlaps / values).cpu().numpy()
    total = float((targets**2).sum())
    ratio, temperature, value = _best_ratio(values.cpu().numpy(), overlaps, total, examples - 1, outputs)
    inverse = torch.eye(len(gram), device=given.device, dtype=torch.float64) + ratio * gram
    solved = torch.linalg.solve(inverse, centred) if wide else torch.linalg.solve(inverse, centred.T).T
    return ReadoutEvidence(value, ratio * temperature, temperature, centred, size or 1.0, targets, solved)


def _best_ratio(
    values: np.ndarray, overlaps: np.ndarray, total: float, examples: int, outputs: int
) -> tuple[float, float, float]:
    """ρ, τ and ln p at the maximum, from eigenvalues of K and the labels' overlaps with its eigenvectors."""
    rest = max(total - float(overlaps.sum()), 0.0)

    def temperature(ratio: float) -> float:
        left = (float((overlaps / (1 + ratio * values)).sum()) + rest) / (examples * outputs)
        return max(left, _LEAST_NOISE * total / (examples * outputs))

    def value(logarithm: float) -> float:
        ratio = math.exp(logarithm)
        determinant = float(np.log1p(ratio * values).sum())
        return -0.5 * examples * outputs * (math.log(temperature(ratio)) + 1) - 0.5 * outputs * determinant

    tried = np.log(_RATIOS)
    best = int(np.argmax([value(one) for one in tried]))
    bounds = (tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)])
    found: Any = scipy.optimize.minimize_scalar(
        lambda one: -value(one), bounds=bounds, method="bounded", options={"xatol": 1e-9}
    )
    ratio = math.exp(float(found.x))
    return ratio, temperature(ratio), -float(found.fun)

"""Copying: the labels depend on the token before, and one number says how much a head prefers it.

The logit of the token before is b, all others are 0, so that attention has one parameter. With the prior variance s²/N0
of b, likelihood and prior are both exponential in N0, and the posterior of b has transitions in P/N0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from ...learning import Architecture, AttentionModel, learn_attention
from ...sweeps import resumable
from ..sweeping import check_fields, config_of
from .one_parameter import _evidences as log_evidences


@dataclass(frozen=True)
class CopyingConfig:
    """The part with a label that depends on the token before.

    Arguments:
        data_sets: independent repetitions.
        seed: of all random numbers.
        ratios: P/N0.
        token_width, tokens: N0 and T, of the independent Gaussian tokens.
        noise: standard deviation of the noise on labels, whose signal is about 1.
        softmax_scale, linear_scale: √N0 times the prior standard deviation of b, for each kind of attention.
        largest: b of the grid goes from minus this to this many times √N0 prior standard deviations.
        nodes: of the grid.
        starts: of `learn_attention`.
    """

    data_sets: int = 10
    seed: int = 0
    ratios: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    token_width: int = 100
    tokens: int = 32
    noise: float = 1.0
    softmax_scale: float = 6.0
    linear_scale: float = 22.6
    largest: float = 1.2
    nodes: int = 97
    starts: int = 4

    def __post_init__(self) -> None:
        above_zero = ("noise", "softmax_scale", "linear_scale", "largest")
        check_fields(self, above_zero=above_zero, ascending={"ratios": "ratio"})

    def scale(self, normalisation: str) -> float:
        """√N0 times the prior standard deviation of b."""
        return self.softmax_scale if normalisation == "softmax" else self.linear_scale

    def grid(self, normalisation: str) -> np.ndarray:
        """Values of b."""
        return self.largest * self.scale(normalisation) * np.linspace(-1, 1, self.nodes)

    def density_of_many(self, normalisation: str, ratio: float, logits: np.ndarray) -> np.ndarray:
        """ln [p(y | b) p(b)]/N0, less a constant, as N0 → ∞ at fixed P/N0."""
        weight, others = attention_of(logits, self.tokens, normalisation)
        evidence = evidence_of_many(weight, others, self.tokens, ratio, self.noise**2)
        return evidence - (logits / self.scale(normalisation)) ** 2 / 2

    def maxima_of_many(self, normalisation: str, ratio: float) -> np.ndarray:
        """Weights on the token before at the maxima of this density over b ≥ 0, the highest maximum first."""
        logits = self.largest * self.scale(normalisation) * np.linspace(0, 1, 2001)
        density = self.density_of_many(normalisation, ratio, logits)
        higher = np.diff(density, prepend=-np.inf) > 0
        peaks = np.flatnonzero(higher & ~np.append(higher[1:], False))
        return attention_of(logits[peaks[np.argsort(-density[peaks])]], self.tokens, normalisation)[0]


def copying_logits(theta: Any, x: Any) -> list[Any]:
    """One head whose logits are b for the token before, and 0 for all others."""
    examples, tokens, _ = x.shape
    return [theta["b"] * (np.ones((examples, 1, 1, 1)) * np.eye(tokens, k=-1))]


def attention_of(logit: np.ndarray, tokens: int, normalisation: str) -> tuple[np.ndarray, np.ndarray]:
    """The weight on the token before, and on each other token."""
    if normalisation == "linear":
        return logit / tokens, np.zeros_like(logit)
    others = 1 / (np.exp(logit) + tokens - 1)
    return 1 - (tokens - 1) * others, others


def evidence_of_many(weight: Any, others: Any, tokens: int, ratio: float, noise_variance: float) -> np.ndarray:
    """ln p(y | attention)/N0 as N0 → ∞ at fixed P/N0, for Gaussian tokens and the Gaussian process.

    Attentioned inputs are Gaussian with variance v = a² + (T − 1) o² of each component, a on the token before and o on
    each other. They carry a share a²/v of the signal; the rest of it is noise to the network. With G [P, N0] of unit
    Gaussians, M = GGᵀ/N0 and c = v/τ, traces follow from m = tr (I + cGᵀG/N0)⁻¹/N0, the positive root of
    c m² + (1 + c P/N0 − c) m = 1, and ln det (I + cM)/N0 = (P/N0) ln(1 + cm) − ln m + m − 1.

    Arguments:
        weight, others: a and o.
        tokens, ratio: T and P/N0.
        noise_variance: of the labels, and τ of the network.
    """
    variance = weight**2 + (tokens - 1) * others**2
    strength = variance / noise_variance
    middle = 1 + strength * (ratio - 1)
    root = 2 / (middle + np.sqrt(middle**2 + 4 * strength))
    share = np.divide(weight**2, variance, out=np.zeros_like(variance), where=variance > 0)
    determinant = ratio * np.log1p(strength * root) - np.log(root) + root - 1
    resolvent = (ratio - 1 + root) / noise_variance
    # tr M(vM + τ)⁻¹ = (1 − m)/v, finite as v → 0.
    explained = (ratio - noise_variance * resolvent) / np.where(variance > 0, variance, 1)
    squares = share * explained + (noise_variance + 1 - share) * resolvent
    return -(ratio * np.log(2 * np.pi * noise_variance) + determinant + squares) / 2


@resumable
def copying_point(normalisation: str, ratio: float, data_set: int, config: Mapping[str, Any]) -> xr.Dataset:
    """The posterior of b on a grid [node], and where starts end [start]: a point of the sweep.

    Arguments:
        normalisation: of the attention.
        ratio: P/N0.
        data_set: number of the repetition.
        config: the record of a `CopyingConfig`.
    """
    settings = config_of(CopyingConfig, config)
    width, tokens, scale = settings.token_width, settings.tokens, settings.scale(normalisation)
    random = np.random.default_rng((settings.seed, data_set))
    x = random.normal(size=(round(ratio * width), tokens, width))
    y = x[:, -2] @ random.normal(size=width) / np.sqrt(width) + settings.noise * random.normal(size=len(x))
    model = AttentionModel(copying_logits, {"b": scale / np.sqrt(width)}, normalisation=normalisation)
    arch, temperature, logits = Architecture((1,), 1), settings.noise**2, settings.grid(normalisation)
    theory = "gaussian process"
    evidence = np.asarray(log_evidences(model, arch, logits, x, y, temperature, theory))
    density = evidence / width - (logits / scale) ** 2 / 2
    mass = np.exp(width * (density - density.max()))
    key = int(random.integers(2**31))
    options = {"temperature": temperature, "theory": theory, "key": key, "starts": settings.starts}
    ends = learn_attention(model, arch, x, y, **options, throw=False).ends["b"]

    def weight(logit: np.ndarray) -> np.ndarray:
        # The evidence of linear attention is the same for b and −b.
        return abs(attention_of(logit, tokens, normalisation)[0])

    return xr.Dataset(
        {
            "density": ("node", density),
            "mean": mass @ weight(logits) / mass.sum(),
            "highest": weight(logits)[density.argmax()],
            "ends": ("start", weight(ends)),
        }
    )

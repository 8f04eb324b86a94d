"""One parameter of attention, whose posterior is known exactly: how far off is the saddle's?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from ...learning import Architecture, AttentionModel, gaussian_process, solve
from ...learning.quadrature import quadrature_posterior
from ...sweeps import resumable
from ..sweeping import check_fields, config_of

THEORIES = ("saddle", "gaussian process")


@dataclass(frozen=True)
class OneParameterConfig:
    """The part in which the posterior is known: one head that prefers late tokens by one number, a slope.

    Arguments:
        data_sets: independent repetitions.
        seed: of all random numbers.
        widths: N.
        noise: standard deviation of the noise on labels.
        scale: prior standard deviation of the slope.
        nodes: of the grid of slopes.
    """

    data_sets: int = 6
    seed: int = 0
    widths: tuple[int, ...] = (1, 3, 10, 30, 100)
    examples: int = 24
    tokens: int = 4
    token_width: int = 6
    noise: float = 0.3
    scale: float = 2.0
    nodes: int = 81

    def __post_init__(self) -> None:
        check_fields(self, above_zero=("noise", "scale"), ascending={"widths": "width"})


def late_logits(theta: Any, x: Any) -> list[Any]:
    """One head that prefers later tokens."""
    examples, tokens, _ = x.shape
    return [theta["slope"] * (np.ones((examples, 1, tokens, tokens)) * np.arange(tokens))]


@resumable
def one_parameter_point(data_set: int, config: Mapping[str, Any]) -> xr.Dataset:
    """How far the posterior of the slope by the saddle is from the exact one [theory, width]: a point of the sweep.

    Arguments:
        data_set: number of the repetition.
        config: the record of a `OneParameterConfig`.
    """
    settings = config_of(OneParameterConfig, config)
    random = np.random.default_rng((settings.seed, data_set))
    x = random.normal(size=(settings.examples, settings.tokens, settings.token_width))
    model = AttentionModel(late_logits, {"slope": settings.scale})
    xi = np.asarray(model.features({"slope": random.normal()}, x).values)[:, 0]
    y = xi @ random.normal(size=settings.token_width) / np.sqrt(settings.token_width)
    y = y + settings.noise * random.normal(size=settings.examples)
    slopes = settings.scale * np.linspace(-4, 4, settings.nodes)
    prior = -(slopes**2) / (2 * settings.scale**2)
    temperature = settings.noise**2

    def normalised(logs: Any) -> np.ndarray:
        logs = np.asarray(logs) + prior
        weights = np.exp(logs - logs.max())
        return weights / weights.sum()

    def moments(weights: np.ndarray) -> tuple[Any, Any]:
        mean = weights @ slopes
        return mean, np.sqrt(weights @ (slopes - mean) ** 2)

    shape = len(THEORIES), len(settings.widths)
    apart, shift, ratio = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    features = [model.features({"slope": slope}, x) for slope in slopes]
    for column, width in enumerate(settings.widths):
        arch = Architecture((1,), width)
        known = [quadrature_posterior(arch, one, y, temperature=temperature) for one in features]
        exact = normalised([one.log_evidence for one in known])
        mean, deviation = moments(exact)
        for row, theory in enumerate(THEORIES):
            weights = normalised(_evidences(model, arch, slopes, x, y, temperature, theory))
            other = moments(weights)
            apart[row, column] = np.abs(weights - exact).sum() / 2
            shift[row, column], ratio[row, column] = abs(other[0] - mean) / deviation, other[1] / deviation
    axes = ("theory", "width")
    arrays = {"variation": (axes, apart), "shift": (axes, shift), "deviation": (axes, ratio)}
    return xr.Dataset(arrays, {"theory": list(THEORIES), "width": list(settings.widths)})


@partial(jax.jit, static_argnames="theory")
def _evidences(
    model: AttentionModel, arch: Architecture, slopes: Any, x: Any, y: Any, temperature: Any, theory: str
) -> jax.Array:
    """The log evidence at every value of the one parameter of a model."""

    def at(slope: Any) -> Any:
        theta = jax.tree.map(lambda _: slope, model.scales)
        features, given = model.features(theta, x), {"temperature": temperature, "form": "pairs"}
        if theory == "saddle":
            return solve(arch, features, y, **given, throw=False).log_evidence
        return gaussian_process(arch, features, y, **given).log_evidence

    return jax.lax.map(at, jnp.asarray(slopes))

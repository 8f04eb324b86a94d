"""The joint posterior of attention parameters θ and order parameters, by NUTS (learning §6, §9).

Given θ the law of the order parameters is that of given attention: exact at every width, and Gaussian outputs given U.
So p(v, θ | y) ∝ p(θ) p(v) N(y; 0, K_θ(U(v)) + τI), with v the Bartlett factors. The number of coordinates does not
depend on the width. In the limit of infinite width θ alone is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._keys import KeyLike, as_key, numpy_generator
from .._notebook import Result
from .._precision import MATMUL_PRECISION
from .._validation import numbers, one_of, real_array
from .architecture import Architecture
from .attention_models import AttentionData, AttentionModel, climb
from .exact import DRAWS_AT_ONCE, prior_vectors
from .kernels import energy, feature_scales
from .results import (
    ROWS,
    Moments,
    PathSum,
    Prediction,
    fields_of_draws,
    means_by_chain,
    pieces,
    prediction_over_draws,
    products,
)
from .sampling import Diagnostics, Plan, Report, checked_acceptance, run_nuts, warn_if_unmixed
from .tempering import run_tempered
from .weights import WATCHED

if TYPE_CHECKING:
    import xarray

THEORIES = ("exact", "gaussian process")
METHODS = ("tempered", "nuts")
# Where chains without tempering start: slope of −ln density, and most steps of the search from a draw of the prior.
START_SLOPE, START_STEPS = 0.1, 300


class JointTarget(eqx.Module):
    """−ln of the joint posterior density at a point, less a constant: order parameters over their scale, whitened θ."""

    data: AttentionData
    root: Float[Array, " order_parameter"]

    @classmethod
    def of(cls, data: AttentionData) -> JointTarget:
        """The target whose order parameters have about unit variance in the prior."""
        # Arrays are arguments of the sampler's program; Python's numbers would be constants of it.
        data = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=float), data)
        prior = data.prior
        curvature = prior.entropy_derivatives(jnp.zeros(prior.layout.count))[2] / 2
        return cls(data, (1 / jnp.sqrt(curvature))[: data.order_parameters])

    # Of the search for where chains start.
    scale = 1

    def parts(self, position: Float[Array, " number"]) -> tuple[Array, Any]:
        """The vector of Bartlett factors, and θ."""
        count = self.data.order_parameters
        return self.data.parts(jnp.concatenate([self.root * position[:count], position[count:]]))

    def __call__(self, position: Float[Array, " number"]) -> Array:
        """−ln of the density."""
        return self.energy(position) + self.prior(position)

    def energy(self, position: Float[Array, " number"]) -> Array:
        """−ln p(y | v, θ), less a constant; a failed Cholesky factor counts as infinitely unlikely."""
        vector, theta = self.parts(position)
        action = self.data.action(theta)
        value = energy(action.problem, action.path_factor(vector), self.data.temperature) / 2
        return jnp.where(jnp.isnan(value), jnp.inf, value)

    def prior(self, position: Float[Array, " number"]) -> Array:
        """−ln of the prior density, less a constant."""
        whitened = position[self.data.order_parameters :]
        return (self.data.prior.entropy(self.parts(position)[0]) + whitened @ whitened) / 2

    def prior_draws(self, generator: np.random.Generator, draws: int) -> np.ndarray:
        """Positions drawn from the prior, [draw, number]."""
        whitened = generator.normal(size=(draws, self.data.model.parameters))
        prior = self.data.prior
        vectors = prior_vectors(prior.layout, jax.tree.map(np.asarray, prior.setting), generator, draws)
        return np.concatenate([vectors[:, : self.data.order_parameters] / np.asarray(self.root), whitened], axis=1)

    def moments(self, position: Array, x: Array) -> tuple[Array, Array]:
        """Mean and variance of the output [new, output] for new tokens, given a position."""
        vector, theta = self.parts(position)
        action, new = self.data.action(theta), self.data.features(theta, x).values
        scale = feature_scales(self.data.arch, x.shape[2])
        return products(action.problem, new, scale).moments(action, vector)

    def observed(self, position: Array, potential: Array) -> tuple[Array, Array, Array, Array]:
        """What is kept of a draw: the position, −ln density, U, and the predictor of some training examples."""
        factor = self.data.prior.path_factor(self.parts(position)[0])
        gram = jnp.matmul(factor, factor.T, precision=MATMUL_PRECISION)
        return position, potential, gram, self.moments(position, self.data.x[:WATCHED])[0]


@dataclass(frozen=True, eq=False, repr=False)
class AttentionPosterior(Result):
    """Draws of attention parameters and order parameters from their joint posterior.

    Fields:
        architecture, temperature: of the network.
        order_parameter: the mean of U over draws [row, row]; rows are paths, or (output, path).
        order_parameter_error: its Monte-Carlo standard error, entry by entry.
        diagnostics: whether the chains have mixed, θ included.
        draws: θ as one vector and U, with the groups `posterior` and `sample_stats`, as ArviZ reads them.
        theta: the draws of θ, every array with leading axes [chain, draw].
        target, positions: the density and its draws in the coordinates of the sampler, [chain, draw, number].
    """

    architecture: Architecture
    temperature: float
    order_parameter: np.ndarray
    order_parameter_error: np.ndarray
    diagnostics: Diagnostics
    draws: xarray.DataTree
    theta: Any
    target: JointTarget
    positions: np.ndarray

    @property
    def model(self) -> AttentionModel:
        """Of the attention."""
        return self.target.data.model

    def predict(self, x: Any) -> Prediction:
        """Mean and variance of the output for new tokens over all draws, with Monte-Carlo errors of both.

        The variance includes that of the mean from one θ to another.

        Arguments:
            x: tokens [example, token, feature].
        """
        return prediction_over_draws(self._moments(x), self.diagnostics.chains)

    def predictor_draws(self, x: Any) -> np.ndarray:
        """The predictor of every draw for new tokens, [chain, draw, example] (and output)."""
        return means_by_chain(self._moments(x), self.diagnostics.chains)

    def to_xarray(self) -> xarray.DataTree:
        """The draws, as `draws`."""
        return self.draws

    def summary(self) -> dict[str, Any]:
        """The network, the number of parameters, the draws, and whether their chains have mixed."""
        record = {name: getattr(self.diagnostics, name) for name in ("chains", "draws", "mixed")}
        return PathSum.summary(self) | {"parameters": self.model.parameters} | record  # type: ignore[arg-type]

    def _moments(self, x: Any) -> Iterator[Moments]:
        x = real_array("x", x, ("example", "token", "feature"))
        data, flat = self.target.data, self.positions.reshape(-1, self.positions.shape[-1])
        arch = data.arch
        for piece in pieces(x, arch.paths**2 * len(data.x) + arch.outputs * len(flat)):
            yield jax.tree.map(np.asarray, _moments_of_draws(self.target, flat, piece))


@eqx.filter_jit
def _parameters_of_draws(target: JointTarget, positions: Any) -> Any:
    return jax.vmap(jax.vmap(lambda position: target.parts(position)[1]))(positions)


@eqx.filter_jit
def _moments_of_draws(target: JointTarget, positions: Any, x: Any) -> Moments:
    """Mean and variance [draw, new, output] of every draw."""
    batch = None if jax.default_backend() == "cpu" else DRAWS_AT_ONCE
    return jax.lax.map(lambda position: target.moments(position, x), positions, batch_size=batch)


def sample_attention(
    model: AttentionModel,
    arch: Architecture,
    x: Any,
    y: Any,
    *,
    temperature: float,
    key: KeyLike,
    theory: str = "exact",
    draws: int = 1000,
    chains: int = 2,
    warmup: int | None = None,
    method: str = "tempered",
    readout: str = "last",
    form: str = "auto",
    target_acceptance: float = 0.8,
    devices: int | None = None,
    progress: Report | None = None,
) -> AttentionPosterior:
    """The joint posterior of attention parameters θ and order parameters, by NUTS (learning §9).

    It is exact at every width, and its cost does not grow with the width. Posteriors of θ often have several modes:
    symmetries make equal ones, and where attention begins to learn, two different ones compete. Chains are therefore
    tempered: they exchange states with replicas at lower powers of the likelihood, down to the prior.
    `diagnostics.crossings` counts the independent states that came from there.

    Arguments:
        x: tokens [example, token, feature].
        y: labels [example], or [example, output].
        temperature: τ > 0.
        theory: "exact", at the widths of the architecture, or "gaussian process", the limit of infinite width, in which
            θ alone is sampled.
        draws, chains, warmup: draws per chain after warm-up; warm-up is by default half of them, at least 200.
        method: "tempered", or "nuts" for chains that stay near the modes where they start. These are found from draws
            of the prior, one for each chain.
        readout: the query position of the top layer: "last", "first" or "mean".
        form: form of the kernel. "dual", quick for many examples, needs linearly independent features of all paths, so
            "auto" is "pairs" or "features".
        devices: the number of local devices that share the chains, a divisor of their number; default: one.
        progress: called as progress(done, total, message).

    Example:
        >>> import numpy as np
        >>> late = lambda theta, x: [theta["slope"] * (np.ones((len(x), 1, 3, 3)) * np.arange(3.0))]
        >>> model = AttentionModel(late, {"slope": 2.0})
        >>> rng = np.random.default_rng(0)
        >>> x, arch = rng.normal(size=(30, 3, 2)), Architecture((1,), widths=5)
        >>> y = model.features({"slope": 1.0}, x).values[:, 0] @ np.array([1.0, -1.0]) + 0.1 * rng.normal(size=30)
        >>> posterior = sample_attention(model, arch, x, y, temperature=0.01, key=0, draws=500)
        >>> posterior.theta["slope"].shape, posterior.diagnostics.mixed
        ((2, 500), True)
        >>> bool(abs(posterior.theta["slope"].mean() - 1) < 0.2)
        True
    """
    one_of("theory", theory, THEORIES)
    one_of("method", method, METHODS)
    given = AttentionData.of(model, arch, x, y, temperature, theory, readout, form)
    target_acceptance = checked_acceptance(target_acceptance)
    plan, key = Plan.of(draws, chains, warmup, devices, progress), as_key(key)
    target = JointTarget.of(given)
    if method == "tempered":
        name = "tempered nuts"
        found = run_tempered(target, target.observed, target.prior_draws, key, plan, target_acceptance)
    else:
        name = "nuts"
        start_key, run_key = jax.random.split(key)
        first = target.prior_draws(numpy_generator(start_key), plan.chains)
        start = climb(target, first, START_SLOPE, START_STEPS, None)[0]
        found = run_nuts(target, target.observed, start, run_key, plan, target_acceptance)
    (positions, potentials, grams, watched), stats = found
    theta = numbers(_parameters_of_draws(target, positions))
    flat = np.concatenate([leaf.reshape(*positions.shape[:2], -1) for leaf in jax.tree.leaves(theta)], axis=2)
    kept = {"order_parameter": (ROWS, grams), "theta": (("parameter",), flat), "predictor": ((), watched)}
    kept["log_density"] = (), -potentials
    fields = fields_of_draws(given.arch, given.temperature, "attention and order parameters", name, kept, stats)
    posterior = AttentionPosterior(*fields, theta, target, positions)
    warn_if_unmixed(posterior.diagnostics)
    return posterior

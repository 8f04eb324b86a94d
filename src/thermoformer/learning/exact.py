"""The exact posterior of a network of finite width, through its order parameters (learning §6–8).

The Wishart chain of the order parameters is exact at every width, and given U^1 the output is Gaussian. So the
posterior over all weights is the posterior over a few small matrices: the Bartlett factors of the chain. A sampler
over these gives the exact predictor at a cost that does not grow with the width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._keys import KeyLike, as_key, numpy_generator
from .._validation import fail, one_of, positive_number
from .action import Action, Minimum, Setting
from .architecture import Architecture, Layout
from .kernels import Problem, checked_labels, null_energy, prepare
from .likelihoods import Likelihood, latent_moments, reweighted, unrotated_form
from .paths import PathFeatures
from .results import ROWS, Moments, NewExamples, Posterior, fields_of_draws, new_examples, raw_readout, readout_at
from .sampling import Plan, Report, checked_acceptance, run_nuts, warn_if_unmixed
from .tempering import run_tempered

METHODS = ("auto", "nuts", "tempered")
# Searches for modes in narrow networks, and by how much ln of the density may be under the highest for a mode to count.
MODE_SEARCHES, MODE_RANGE = 16, 10.0
# Extra variance of the outputs at the training examples, over the temperature of their sites, if the noise is not
# Gaussian: it keeps their covariance regular where the kernel is singular, and is far below what draws can show.
NUGGET = 1e-6
# Draws whose predictions are computed at once on an accelerator.
DRAWS_AT_ONCE = 64


class Target(eqx.Module):
    """−ln of the posterior density of whitened coordinates ζ, v = centre + root ζ, less a constant."""

    action: Action
    centre: jax.Array
    root: jax.Array

    def vector(self, position: jax.Array) -> jax.Array:
        """The vector of Bartlett factors at a position."""
        return self.centre + (self.root * position if self.root.ndim == 1 else self.root @ position)

    def __call__(self, position: jax.Array) -> jax.Array:
        """½ S at finite width."""
        return self.energy(position) + self.prior(position)

    def energy(self, position: jax.Array) -> jax.Array:
        """½ E less a constant; a failed Cholesky factor counts as infinitely unlikely."""
        value = self.action.reachable_energy(self.vector(position)) / 2
        return jnp.where(jnp.isnan(value), jnp.inf, value)

    def prior(self, position: jax.Array) -> jax.Array:
        """½ of the entropy at finite width: −ln of the prior density, less a constant."""
        return self.action.entropy(self.vector(position)) / 2

    def observed(self, position: jax.Array, potential: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What is kept of a draw: the vector and −ln density."""
        return self.vector(position), potential


class LatentTarget(eqx.Module):
    """−ln of the posterior density under any likelihood, of ζ and whitened outputs z at the training examples.

    Gaussian sites N(ỹ; f, τ) take the place of the likelihood in the target of ζ, and are divided out again:

        p(U) p(f|U) ∏ p(y|f) = p(U) p(ỹ|U) N(f; m(U), Σ(U)) ∏ p(y|f)/N(ỹ; f, τ),      f = m(U) + √Σ(U) z.

    That is exact for any sites. Near the true likelihood they leave little but a standard normal z, whatever U.
    """

    sites: Target  # of the sites' labels and features, both divided by `units`
    likelihood: Likelihood
    labels: jax.Array  # y [row]
    units: jax.Array  # [row]
    temperature: jax.Array

    def __call__(self, position: jax.Array) -> jax.Array:
        """The potential, less a constant; a failed Cholesky factor counts as infinitely unlikely."""
        energy, output = self.energy_and_output(position)
        order, white = jnp.split(position, [self.sites.action.layout.count])
        gap = self.sites.action.problem.labels - output
        loss = self.likelihood.loss(self.labels, self.units * output, self.temperature)
        value = energy / 2 + self.sites.prior(order) + white @ white / 2
        value = value + jnp.sum(loss - gap**2 / (2 * self.temperature))
        return jnp.where(jnp.isnan(value), jnp.inf, value)

    def energy_and_output(self, position: jax.Array) -> tuple[jax.Array, jax.Array]:
        """E of the sites, and f over the units [row]."""
        order, white = jnp.split(position, [self.sites.action.layout.count])
        action = self.sites.action
        factor, nugget = action.path_factor(self.sites.vector(order)), NUGGET * self.temperature
        energy, mean, spread = latent_moments(action.problem, factor, self.temperature, nugget)
        return energy, mean + jnp.linalg.cholesky(spread) @ white

    def observed(self, position: jax.Array, potential: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What is kept of a draw: the vector, −ln density, and the outputs over their units."""
        return (
            self.sites.vector(position[: self.sites.action.layout.count]),
            potential,
            self.energy_and_output(position)[1],
        )


@dataclass(frozen=True, eq=False, repr=False)
class OrderPosterior(Posterior):
    """Draws of the order parameters from the exact posterior at finite width.

    Fields, beside those of `Posterior`:
        action: at finite width, with the prepared training data; under a likelihood that is not Gaussian, with that of
            its sites (`LatentTarget`).
        vectors: the draws of the vector of Bartlett factors [chain, draw, parameter].
        outputs: under a likelihood that is not Gaussian, the draws of the outputs at the training examples, each over
            the unit of its site, [chain, draw, row]; else None.
    """

    action: Action
    vectors: np.ndarray
    outputs: np.ndarray | None = None

    @property
    def problem(self) -> Problem:
        """The prepared training data."""
        return self.action.problem

    def path_readout(self) -> np.ndarray:
        """The mean over draws of the readout of every path given U, [path, feature] (and output)."""
        readout = _mean_readout(self._predicting, self._flat, self._flat_outputs)
        return raw_readout(self.architecture, self.problem, readout)

    def _moments(self, features: PathFeatures) -> Iterator[Moments]:
        for new in new_examples(self.architecture, features, self.problem, draws=len(self._flat)):
            found = _moments_of_draws(self._predicting, new, self._flat, self._flat_outputs)
            yield jax.tree.map(np.asarray, found)

    @property
    def _flat(self) -> np.ndarray:
        return self.vectors.reshape(-1, self.action.layout.count)

    @property
    def _flat_outputs(self) -> np.ndarray | None:
        return None if self.outputs is None else self.outputs.reshape(-1, self.outputs.shape[-1])

    @property
    def _predicting(self) -> Action:
        """The action whose temperature is the noise of what predictions start from: labels, or outputs of draws."""
        if self.outputs is None:
            return self.action
        noise = np.array(NUGGET * self.temperature)
        return replace(self.action, setting=self.action.setting._replace(temperature=noise))


def sample_order_parameters(
    arch: Architecture,
    features: PathFeatures,
    labels: Any,
    *,
    temperature: float,
    key: KeyLike,
    draws: int = 1000,
    chains: int = 2,
    warmup: int | None = None,
    method: str = "auto",
    form: str = "auto",
    likelihood: str | Likelihood = "gaussian",
    target_acceptance: float = 0.8,
    devices: int | None = None,
    progress: Report | None = None,
) -> OrderPosterior:
    """The exact posterior at finite width: NUTS over the Bartlett factors of the order parameters (learning §6).

    If every layer is at least as wide as its number of path vectors n_l, U has full rank, and we know of no posterior
    with a second mode. Each chain then starts at the mode that a search from its own draw of the prior finds, in
    coordinates whitened by the Hessian there. In a narrower network U has low rank, and its posterior often has several
    modes. The chains are then tempered: they exchange states with replicas at lower powers of the likelihood, down to
    the prior. `diagnostics.crossings` counts the independent states that came from there.

    Arguments:
        features: attentioned inputs ξ [example, path, feature] of the training examples.
        labels: y [example], or [example, output].
        temperature: τ > 0.
        key: an integer or a JAX key.
        draws, chains, warmup: draws per chain after warm-up; warm-up is by default half of them, at least 200.
        method: "nuts", "tempered", or "auto": tempered where some N_l < n_l. NUTS only if the noise is not Gaussian.
        form: form of the kernel: "auto", "pairs", "features" or "dual" (for Gaussian noise only).
        likelihood: of the labels given the output, as in `sample_weights`. If it is not Gaussian, the outputs at the
            training examples are sampled together with the order parameters.
        devices: the number of local devices that share the chains, a divisor of their number; default: one.
        progress: called as progress(done, total, message).

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> xi = rng.normal(size=(30, 2, 8))
        >>> feats, y = PathFeatures.from_attentioned_inputs(xi), np.sign(xi[:, 0, 0])
        >>> posterior = sample_order_parameters(Architecture((2,), 5), feats, y, temperature=0.1, key=0, draws=500)
        >>> posterior.order_parameter.shape, posterior.diagnostics.mixed
        ((2, 2), True)
    """
    y = checked_labels(arch, features, labels)
    temperature = positive_number("temperature", temperature)
    plan = Plan.of(draws, chains, warmup, devices, progress)
    target_acceptance = checked_acceptance(target_acceptance)
    one_of("method", method, METHODS)
    key, law = as_key(key), Likelihood.of(likelihood)
    if not law.gaussian:
        given = arch, features, y, temperature, law, key, plan, method, form, target_acceptance
        posterior = _under_another_likelihood(*given)
        warn_if_unmixed(posterior.diagnostics)
        return posterior
    problem = prepare(arch, features, y, form, temperature)
    action = Action.at_finite_width(arch, problem, temperature)
    layout = action.layout
    if method == "tempered" or (method == "auto" and layout.narrow):
        name = "tempered nuts"
        target = Target(action, jnp.zeros(layout.count), jnp.ones(layout.count))
        prior = partial(prior_vectors, layout, action.setting)
        found = run_tempered(target, target.observed, prior, key, plan, target_acceptance)
    else:
        name = "nuts"
        start_key, run_key = jax.random.split(key)
        target, start, known = whitened_target(action, start_key, plan.chains)
        found = run_nuts(target, target.observed, start, run_key, plan, target_acceptance, known)
    (vectors, potentials), stats = found
    grams = np.asarray(_grams(action, vectors))
    if layout.narrow and stats.crossings is None:
        stats = stats._replace(crossings=mode_crossings(action, key, grams))
    density = -potentials - float(null_energy(problem, temperature)) / 2
    found = {"order_parameter": (ROWS, grams), "whitened": (("parameter",), vectors), "log_density": ((), density)}
    fields = fields_of_draws(arch, temperature, "order parameters", name, found, stats)
    posterior = OrderPosterior(*fields, action, vectors)
    warn_if_unmixed(posterior.diagnostics)
    return posterior


def _under_another_likelihood(
    arch: Architecture,
    features: PathFeatures,
    labels: np.ndarray,
    temperature: float,
    likelihood: Likelihood,
    key: jax.Array,
    plan: Plan,
    method: str,
    form: str,
    target_acceptance: float,
) -> OrderPosterior:
    """`sample_order_parameters` if the noise is not Gaussian."""
    likelihood.check(labels)
    if method == "tempered":
        raise fail("method", "'tempered'", "'nuts' or 'auto': tempered chains need Gaussian noise")
    expected = "one that keeps the examples apart: the noise is not Gaussian"
    if form == "dual":
        raise fail("form", "'dual'", expected)
    if features.observed != features.examples:
        raise fail("features", repr(features), expected)
    data, own, units = reweighted(arch, features, labels, likelihood, temperature)
    form = unrotated_form(arch, data) if form == "auto" else form
    action = Action.at_finite_width(arch, prepare(arch, data, own, form, temperature), temperature * (1 + NUGGET))
    start_key, run_key, latent_key = jax.random.split(key, 3)
    sites, start, _ = whitened_target(action, start_key, plan.chains)
    rows = labels.reshape(features.examples, -1).T.ravel(), np.tile(units, arch.outputs)
    law, own, units = jax.tree.map(jnp.asarray, (likelihood, *rows))
    target = LatentTarget(sites, law, own, units, jnp.asarray(temperature))
    white = numpy_generator(latent_key).normal(size=(plan.chains, len(own)))
    start = np.concatenate([start, white], axis=1)
    (vectors, potentials, outputs), stats = run_nuts(target, target.observed, start, run_key, plan, target_acceptance)
    grams = np.asarray(_grams(action, vectors))
    if action.layout.narrow:
        stats = stats._replace(crossings=mode_crossings(action, key, grams))
    found = {"order_parameter": (ROWS, grams), "whitened": (("parameter",), vectors), "log_density": ((), -potentials)}
    fields = fields_of_draws(arch, temperature, "order parameters", "nuts", found | {"predictor": ((), outputs)}, stats)
    return OrderPosterior(*fields, action, vectors, outputs)


def whitened_target(action: Action, key: jax.Array, chains: int) -> tuple[Target, np.ndarray, Any]:
    """The exact density in coordinates centred at its mode and whitened by its Hessian there.

    Also returns where chains start, and the potential and its gradient there, [chain]. The mode is searched from one
    draw of the prior for every chain, and each chain starts where its search ended. If these are different modes, R-hat
    tells. The gradient is None if a search failed.
    """
    found = modes_from_prior(action, numpy_generator(key), chains)
    best = found[0]
    if best.hessian is None:
        root = np.sqrt(2 / np.asarray(action.entropy_derivatives(best.vector)[2]))
    else:
        root = _root(np.asarray(best.hessian) / 2, action.setting)
    offsets = np.stack([one.vector - best.vector for one in found])
    slopes = np.stack([one.gradient for one in found])
    diagonal = root.ndim == 1
    starts = offsets / root if diagonal else np.linalg.solve(root, offsets.T).T
    values = np.array([one.value for one in found]) / 2
    known = (values, (slopes * root if diagonal else slopes @ root) / 2) if np.isfinite(values).all() else None
    return Target(action, jnp.asarray(best.vector, dtype=float), jnp.asarray(root, dtype=float)), starts, known


def modes_from_prior(action: Action, generator: np.random.Generator, searches: int) -> list[Minimum]:
    """Modes of the exact posterior, highest first, as NumPy arrays.

    Each is found from one draw of the prior; the same one may appear several times. Where a search leaves the finite
    numbers, its start is kept, as the lowest.
    """
    modes = []
    for draw in prior_vectors(action.layout, action.setting, generator, searches):
        found = jax.tree.map(np.asarray, action.minimise(draw, 1e-6, 200, action.method))
        if not (np.isfinite(found.vector).all() and np.isfinite(found.value)):
            found = found._replace(vector=draw, value=np.array(np.inf), hessian=None)
        modes.append(found)
    return sorted(modes, key=lambda mode: mode.value)


def mode_crossings(action: Action, key: jax.Array, grams: np.ndarray) -> int | None:
    """How often the nearest mode changed from one draw of U [chain, draw, row, row] to the next; None with one mode."""
    modes = modes_from_prior(action, numpy_generator(key), MODE_SEARCHES)
    near = [mode.vector for mode in modes if mode.value - modes[0].value < 2 * MODE_RANGE]
    distinct: list[np.ndarray] = []
    for gram in np.asarray(_grams(action, np.stack(near)[None]))[0]:
        if all(np.abs(gram - other).max() > 0.01 * np.abs(gram).max() for other in distinct):
            distinct.append(gram)
    if len(distinct) < 2:
        return None
    distances = np.stack([np.square(grams - gram).sum(axis=(-2, -1)) for gram in distinct])
    nearest = distances.argmin(axis=0)
    return int(np.count_nonzero(nearest[:, 1:] != nearest[:, :-1]))


def prior_vectors(layout: Layout, setting: Setting, generator: np.random.Generator, draws: int) -> np.ndarray:
    """Draws of the vector of Bartlett factors from its exact prior, [draw, parameter] (learning §6)."""
    width = np.asarray(setting.widths)[layout.layer]
    freedom = np.where(layout.diagonal, width - layout.lost_freedom, 1.0)
    shape = (draws, layout.count)
    logarithm = 0.5 * np.log(generator.chisquare(freedom, shape) / width)
    return np.where(layout.diagonal, logarithm, generator.normal(size=shape) / np.sqrt(width))


def _root(hessian: np.ndarray, setting: Setting) -> np.ndarray:
    """A square root of the covariance (½ ∂²S)⁻¹; curvatures under the prior's smallest are raised to it."""
    curvatures, directions = np.linalg.eigh(hessian)
    least = np.min(np.asarray(setting.widths))
    return directions / np.sqrt(np.maximum(np.abs(curvatures), least))[None, :]


@eqx.filter_jit
def _grams(action: Action, vectors: Any) -> jax.Array:
    def gram(vector: jax.Array) -> jax.Array:
        factor = action.path_factor(vector)
        return factor @ factor.T

    return jax.vmap(jax.vmap(gram))(vectors)


@eqx.filter_jit
def _moments_of_draws(action: Action, new: NewExamples, vectors: Any, outputs: Any) -> Moments:
    """Mean and variance [draw, new, output] of every draw."""

    def moments(draw: tuple[jax.Array, Any]) -> tuple[jax.Array, jax.Array]:
        return new.moments(_given_outputs(action, draw[1]), draw[0])

    batch = None if jax.default_backend() == "cpu" else DRAWS_AT_ONCE
    return jax.lax.map(moments, (vectors, outputs), batch_size=batch)


@eqx.filter_jit
def _mean_readout(action: Action, vectors: Any, outputs: Any) -> jax.Array:
    """The readout given U, averaged over draws, [output, path, feature']."""

    def add(total: jax.Array, draw: tuple[jax.Array, Any]) -> tuple[jax.Array, None]:
        now = _given_outputs(action, draw[1])
        return total + readout_at(now.problem, now.path_factor(draw[0]), now.setting.temperature), None

    width, paths = action.problem.features.shape[1:]
    total, _ = jax.lax.scan(add, jnp.zeros((action.problem.outputs, paths, width)), (vectors, outputs))
    return total / len(vectors)


def _given_outputs(action: Action, outputs: Any) -> Action:
    """The action with outputs in place of labels, if there are any."""
    return action if outputs is None else replace(action, problem=replace(action.problem, labels=outputs))

"""The posterior over all weights of a network, by brute force: the ground truth for the theory (learning §10).

Attention is fixed and the network is linear in its tokens, so the tokens enter through the attentioned inputs ξ alone:
f = Σ_π c_π · ξ_π with c_π = ∏(1/√H_l) e_πᵀV⁰/√(N_1 N0). Of each draw U^1 and c are kept, which is all that any
prediction needs. Directions of V⁰ that no training example reaches keep their prior given the other weights: they are
not sampled, and their part of c is drawn afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._keys import KeyLike, as_key, standard_normal
from .._precision import MATMUL_PRECISION
from .._validation import fail, labels_for, one_of, positive_integer, positive_number, true_or_false
from .action import Action
from .architecture import Architecture, checked_architecture, squeeze_output
from .exact import mode_crossings
from .gibbs import GibbsSweep
from .kernels import check_new_examples, checked_labels, choose_form, feature_basis, prepare, reduced_data
from .likelihoods import Likelihood
from .network import (
    PathData,
    Weights,
    checked_norm,
    checked_tokens,
    network_output,
    order_factor,
    path_vectors,
    prior_weights,
    row_scales,
)
from .paths import READOUTS, PathFeatures
from .results import (
    ROWS,
    Moments,
    Posterior,
    Prediction,
    fields_of_draws,
    means_by_chain,
    pieces,
    prediction_over_draws,
)
from .sampling import Plan, Report, SamplerStats, run_nuts, run_steps, warn_if_unmixed

METHODS = ("nuts", "gibbs")
# What draws, state and work arrays may take together before a run is refused, in bytes.
MEMORY_LIMIT = 8e9
# Training examples whose predictor is watched for mixing.
WATCHED = 32


@dataclass(frozen=True, eq=False, repr=False)
class WeightPosterior(Posterior):
    """Draws of all weights from the posterior.

    Fields, beside those of `Posterior`:
        coefficients: c [chain, draw, row, feature], with which f = Σ_π c_π · ξ_π; rows are paths, or (output, path).
            None with layer norm, which makes f nonlinear in ξ.
        weights: the weights, every array with leading axes [chain, draw], if they were kept; else None.
        readout, layer_norm: of the network.
    """

    coefficients: np.ndarray | None
    weights: Weights | None
    readout: str = "last"
    layer_norm: str = ""

    @property
    def token_width(self) -> int:
        """N0 of the training data."""
        return self._path_coefficients().shape[-1]

    def path_readout(self) -> np.ndarray:
        """The mean over draws of the readout of every path, [path, feature] (and output)."""
        mean = self._path_coefficients().mean(axis=(0, 1))
        by_output = mean.reshape(self.architecture.outputs, self.architecture.paths, -1)
        return squeeze_output(by_output.transpose(1, 2, 0))

    def predict_tokens(self, x: Any, attention: Sequence[Any]) -> Prediction:
        """`predict` from tokens [example, token, feature] and attention; the only way with layer norm."""
        return prediction_over_draws(self._token_moments(x, attention), self.diagnostics.chains)

    def token_draws(self, x: Any, attention: Sequence[Any]) -> np.ndarray:
        """`predictor_draws` from tokens and attention; the only way with layer norm."""
        return means_by_chain(self._token_moments(x, attention), self.diagnostics.chains)

    def _moments(self, features: PathFeatures) -> Iterator[Moments]:
        coefficients, arch, width = self._path_coefficients(), self.architecture, self.token_width
        check_new_examples(features, arch.paths, width)
        flat = coefficients.reshape(-1, arch.paths * width)
        values = np.asarray(features.values).reshape(-1, arch.paths * width)
        for piece in pieces(values, len(flat) + arch.paths * width):
            yield (flat @ piece.T).reshape(-1, arch.outputs, len(piece)).transpose(0, 2, 1), 0.0

    def _path_coefficients(self) -> np.ndarray:
        if self.coefficients is None:
            raise fail("features", "attentioned inputs", "tokens, through predict_tokens: layer norm has no paths")
        return self.coefficients

    def _token_moments(self, x: Any, attention: Sequence[Any]) -> Iterator[Moments]:
        arch, weights = self.architecture, self.weights
        if not self.layer_norm:
            yield from self._moments(PathFeatures.from_attention(x, attention, self.readout, arch.skip))
            return
        x, layers = checked_tokens(arch, x, attention)
        assert weights is not None  # layer norm always keeps them
        if x.shape[2] != weights.embedding.shape[-1]:
            raise fail("x", f"token width {x.shape[2]}", f"{weights.embedding.shape[-1]}, as in training")
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), weights)
        read = queries_read(layers, self.readout)
        for piece in pieces((x, read), x.shape[1] * max(arch.heads) * max(arch.widths)):
            found = _run_draws(flat, *piece, self.readout, arch.skip, self.layer_norm)
            yield np.asarray(found).reshape(len(found), -1, arch.outputs), 0.0


def queries_read(attention: Sequence[jax.Array], readout: str) -> list[jax.Array]:
    """Attention whose top layer has only the query that is read; with skips the sum with all positions is broadcast."""
    queries = {"last": slice(-1, None), "first": slice(0, 1), "mean": slice(None)}[readout]
    return [*attention[:-1], attention[-1][:, :, queries]]


@partial(jax.jit, static_argnames=("readout", "skip", "norm"))
def _run_draws(weights: Weights, x: Any, attention: list[Any], readout: str, skip: bool, norm: str) -> jax.Array:
    """f [draw, example] (and output) with layer norm, one draw after another."""
    return jax.lax.map(lambda one: network_output(one, x, attention, readout, skip=skip, layer_norm=norm), weights)


class TokenData(eqx.Module):
    """Training data of a network with layer norm, which needs the tokens themselves; else as `PathData`."""

    labels: Float[jax.Array, "output example"]
    temperature: jax.Array
    deviations: jax.Array
    structure: Architecture = eqx.field(static=True)
    x: jax.Array
    attention: tuple[jax.Array, ...]
    readout: str = eqx.field(static=True)
    norm: str = eqx.field(static=True)

    def outputs(self, weights: Weights) -> jax.Array:
        """f [output, example]."""
        given: Any = {"skip": self.structure.skip, "layer_norm": self.norm}
        found = network_output(weights, self.x, self.attention, self.readout, **given)
        return found.reshape(len(self.x), -1).T


class Potential(eqx.Module):
    """−ln of the posterior density of standard-normal coordinates θ = weights/σ, less a constant."""

    data: PathData | TokenData
    likelihood: Likelihood = eqx.field(default_factory=lambda: Likelihood("gaussian"))

    def __call__(self, position: Weights) -> jax.Array:
        """½|θ|² − Σ ln p(y|f), the second |y − f|²/(2τ) for Gaussian noise."""
        found = self.data.outputs(scaled_weights(position, self.data.deviations))
        loss = jnp.sum(self.likelihood.loss(self.data.labels, found, self.data.temperature))
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position)) / 2 + loss


class Observed(eqx.Module):
    """What is kept of a draw: U^1, the log density less a constant, c or outputs, and weights if asked for."""

    data: PathData | TokenData
    standard: bool = eqx.field(static=True)  # positions are standard-normal coordinates, not the weights themselves
    keep_weights: bool = eqx.field(static=True)

    def __call__(self, position: Weights, potential: jax.Array | None = None) -> dict[str, Any]:
        """By name, one draw; the potential is computed if it is not given."""
        data, arch, sigma = self.data, self.data.structure, self.data.deviations
        weights = scaled_weights(position, sigma) if self.standard else position
        if potential is None:
            potential = Potential(data)(position if self.standard else scaled_weights(position, 1 / sigma))
        vectors = path_vectors(arch, weights.readout, weights.values)
        factor = order_factor(arch, vectors)
        kept: dict[str, Any] = {
            "order_parameter": jnp.matmul(factor, factor.T, precision=MATMUL_PRECISION),
            "log_density": -potential,
        }
        if isinstance(data, PathData):
            rows = vectors.reshape(arch.order_sizes[0], -1)
            kept["coefficients"] = jnp.matmul(rows, weights.embedding, precision=MATMUL_PRECISION)
        else:
            kept["outputs"] = data.outputs(weights)[:, _watched(len(data.x))]
        if self.keep_weights:
            kept["weights"] = weights
        return kept


def sample_weights(
    arch: Architecture,
    x: Any,
    attention: Sequence[Any],
    labels: Any,
    *,
    temperature: float,
    key: KeyLike,
    method: str = "nuts",
    draws: int = 1000,
    chains: int = 2,
    warmup: int | None = None,
    readout: str = "last",
    keep_weights: bool = False,
    layer_norm: bool | str = False,
    likelihood: str | Likelihood = "gaussian",
    memory_limit: float = MEMORY_LIMIT,
    devices: int | None = None,
    progress: Report | None = None,
) -> WeightPosterior:
    """The posterior over all weights V⁰, V^{l,h} and a, by NUTS or blocked Gibbs (learning §10).

    Arguments:
        x: training tokens [example, token, feature].
        attention: one array [example, head, query, key] per layer.
        labels: y [example], or [example, output].
        temperature: τ > 0.
        key: an integer or a JAX key.
        method: "nuts", over all weights at once; or "gibbs", which draws layer after layer exactly.
        draws, chains, warmup: draws per chain after warm-up; warm-up is by default half of them, at least 200.
        readout: "last", "first" or "mean" query position.
        keep_weights: keep the weights of every draw too, and not only U and what predictions need.
        layer_norm: normalise tokens inside the network, as in `forward`; outside the theory, NUTS only. Keeps weights.
        likelihood: of the labels given the output: "gaussian", "student-t", "laplace", "logistic" for labels ±1, or a
            `Likelihood`; learning §10 says how τ enters each of them. All but the first need NUTS, and moves between
            modes of narrow networks are then not counted.
        memory_limit: bytes over which the run is refused before it starts (`weight_sampling_memory`).
        devices: the number of local devices that share the chains, a divisor of their number; default: one.
        progress: called as progress(done, total, message).

    Example:
        >>> import numpy as np
        >>> from thermoformer.learning import uniform_attention
        >>> x = np.random.default_rng(0).normal(size=(6, 3, 2))
        >>> posterior = sample_weights(
        ...     Architecture((1,), 4), x, [uniform_attention(x)], np.sign(x[:, 0, 0]), temperature=0.5, key=0,
        ...     method="gibbs", draws=2000,
        ... )
        >>> posterior.order_parameter.shape, posterior.diagnostics.mixed
        ((1, 1), True)
    """
    x, layers = checked_tokens(arch, x, attention)
    norm = checked_norm(layer_norm)
    keep = true_or_false("keep_weights", keep_weights) or norm != ""
    plan = Plan.of(draws, chains, warmup, devices, progress)
    run = _Run(arch, temperature, key, method, keep, readout, Likelihood.of(likelihood), memory_limit, plan)
    if norm:
        posterior = run.on_tokens(x, layers, labels, norm)
    else:
        posterior = run.on_paths(PathFeatures.from_attention(x, layers, readout, arch.skip), labels)
    warn_if_unmixed(posterior.diagnostics)
    return posterior


def sample_weights_on_paths(
    arch: Architecture,
    features: PathFeatures,
    labels: Any,
    *,
    temperature: float,
    key: KeyLike,
    method: str = "nuts",
    draws: int = 1000,
    chains: int = 2,
    warmup: int | None = None,
    keep_weights: bool = False,
    readout: str = "last",
    likelihood: str | Likelihood = "gaussian",
    memory_limit: float = MEMORY_LIMIT,
    devices: int | None = None,
    progress: Report | None = None,
) -> WeightPosterior:
    """`sample_weights` from attentioned inputs, which are all that the network needs of tokens and attention.

    Arguments:
        features: attentioned inputs ξ of the training examples.
        readout: the query position that `predict_tokens` reads; the training data already contain it.
        others: as in `sample_weights`.

    Example:
        >>> import numpy as np
        >>> feats = PathFeatures.from_attentioned_inputs(np.random.default_rng(0).normal(size=(6, 1, 2)))
        >>> posterior = sample_weights_on_paths(
        ...     Architecture((1,), 4), feats, [1, -1, 1, 1, -1, 1], temperature=0.5, key=0, method="gibbs", draws=2000
        ... )
        >>> posterior.predict(feats).mean.shape
        (6,)
    """
    plan = Plan.of(draws, chains, warmup, devices, progress)
    run = _Run(arch, temperature, key, method, keep_weights, readout, Likelihood.of(likelihood), memory_limit, plan)
    posterior = run.on_paths(features, labels)
    warn_if_unmixed(posterior.diagnostics)
    return posterior


def weight_sampling_memory(
    arch: Architecture,
    token_width: int,
    examples: int,
    *,
    method: str = "nuts",
    draws: int = 1000,
    chains: int = 2,
    keep_weights: bool = False,
    tokens: int | None = None,
) -> int:
    """Bytes that `sample_weights` takes at most: draws, the chains' state and work arrays.

    Arguments:
        token_width, examples: N0 and P of the training data.
        tokens: T, for layer norm, which runs the network on tokens; default: on attentioned inputs.

    Example:
        >>> weight_sampling_memory(Architecture((2, 2), 1000), 231, 100, method="gibbs") / 1e9 < 1
        True
    """
    checked_architecture(arch)
    one_of("method", method, METHODS)
    keep_weights = true_or_false("keep_weights", keep_weights)
    tokens = None if tokens is None else positive_integer("tokens", tokens)
    sizes = (("token_width", token_width), ("examples", examples), ("draws", draws), ("chains", chains))
    token_width, examples, draws, chains = (positive_integer(name, value) for name, value in sizes)
    rows, widths = arch.order_sizes[0], arch.widths
    # Weights are kept whole, or V⁰ in the span of the training data.
    reach = token_width if keep_weights else min(token_width, examples * arch.paths)
    matrices = sum(
        heads * below * above for heads, below, above in zip(arch.heads, widths[:-1], widths[1:], strict=True)
    )
    weights = reach * widths[0] + matrices + arch.outputs * widths[-1]
    draw = rows**2 + rows * token_width + 4 + (weights if keep_weights else 0)
    # Pieces of draws and their concatenation.
    kept = 2 * chains * draws * draw
    # NUTS: position, momentum, gradient and mass matrix of every chain, in and out; tree ends and checkpoints of one.
    state = (14 * chains + 40) * weights if method == "nuts" else (3 * chains + 10) * weights
    if tokens is None:
        flow = arch.paths * examples * (reach + 2 * sum(widths)) * (arch.outputs**2 + 2)
        if method == "gibbs" and choose_form(examples, arch.paths, reach, arch.outputs) == "pairs":
            flow += rows * (rows + 1) // 2 * (examples * arch.outputs) ** 2
    else:
        flow = 4 * examples * tokens * (token_width + sum((2 + heads) * max(widths) for heads in arch.heads))
        flow += 2 * examples * tokens**2 * sum(arch.heads)
    return 8 * (kept + state + flow + 4 * (examples * arch.outputs) ** 2)


@dataclass(frozen=True)
class _Run:
    """How to sample which network, checked: the arguments that both public functions share."""

    arch: Architecture
    temperature: float
    key: Any
    method: str
    keep_weights: bool
    readout: str
    likelihood: Likelihood
    memory_limit: float
    plan: Plan

    def __post_init__(self) -> None:
        checked_architecture(self.arch)
        one_of("method", self.method, METHODS)
        if self.method == "gibbs" and not self.likelihood.gaussian:
            name = self.likelihood.name
            raise fail("method", "'gibbs'", f"'nuts' with likelihood={name!r}: Gibbs needs Gaussian noise")
        one_of("readout", self.readout, READOUTS)
        checks = {"temperature": positive_number, "keep_weights": true_or_false, "memory_limit": positive_number}
        for name, check in checks.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))  # the record is frozen once it is built
        object.__setattr__(self, "key", as_key(self.key))

    def on_paths(self, features: PathFeatures, labels: Any) -> WeightPosterior:
        """The posterior from attentioned inputs."""
        arch, y = self.arch, checked_labels(self.arch, features, labels)
        self.likelihood.check(y)
        plan = self._within_memory(features.token_width, features.examples)
        run_key, rest_key = jax.random.split(self.key)
        # Weights that are kept are kept whole.
        gaussian = self.likelihood.gaussian
        data, basis = path_data(arch, features, y, self.temperature, reduce=not self.keep_weights, rotate=gaussian)
        problem = prepare(arch, features, y)
        sweep = GibbsSweep(data, problem) if self.method == "gibbs" else None
        observed, stats = self._sampled(data, sweep, data.features.shape[2], run_key, plan)
        grams, coefficients = observed["order_parameter"], observed["coefficients"]
        action = Action.at_finite_width(arch, problem, self.temperature)
        if action.layout.narrow and gaussian:
            stats = stats._replace(crossings=mode_crossings(action, self.key, grams))
        if basis is not None:
            coefficients = completed_coefficients(arch, coefficients, grams, basis, rest_key)
        coefficients = coefficients / math.sqrt(features.token_width)
        by_output = coefficients.reshape(*grams.shape[:2], arch.outputs, -1)
        some = np.asarray(features.values)[_watched(features.examples)].reshape(-1, by_output.shape[-1])
        return self._posterior(observed | {"coefficients": coefficients, "outputs": by_output @ some.T}, stats)

    def on_tokens(self, x: jax.Array, attention: Sequence[jax.Array], labels: Any, norm: str) -> WeightPosterior:
        """The posterior from tokens, for a network with layer norm."""
        if self.method != "nuts":
            raise fail("method", repr(self.method), "'nuts' with layer_norm=True: Gibbs needs f linear in every layer")
        y = labels_for("labels", labels, len(x), self.arch.outputs)
        self.likelihood.check(y)
        plan = self._within_memory(x.shape[2], len(x), x.shape[1])
        prior = jnp.asarray(self.temperature), jnp.asarray(self.arch.deviations), self.arch.replace(variances=1.0)
        read = tuple(queries_read(attention, self.readout))
        data = TokenData(jnp.asarray(y).reshape(len(x), -1).T, *prior, x, read, self.readout, norm)
        return self._posterior(*self._sampled(data, None, x.shape[2], self.key, plan), norm)

    def _within_memory(self, token_width: int, examples: int, tokens: int | None = None) -> Plan:
        """The plan, with the memory in its progress messages; raises if the memory is over the limit."""
        plan, method, keep = self.plan, self.method, self.keep_weights
        sizes: Any = {"draws": plan.draws, "chains": plan.chains, "tokens": tokens}
        memory = weight_sampling_memory(self.arch, token_width, examples, method=method, keep_weights=keep, **sizes)
        if memory > self.memory_limit:
            wanted = f"at least {memory:.3g} bytes for this run: fewer draws, chains or kept weights need less"
            raise fail("memory_limit", f"{self.memory_limit:.3g} bytes", wanted)
        report, size = plan.progress, f"up to {memory / 1e9:.2g} GB"
        if report is None:
            return plan
        return replace(plan, progress=lambda done, total, message: report(done, total, f"{message}, {size}"))

    def _sampled(
        self, data: PathData | TokenData, sweep: GibbsSweep | None, width: int, key: jax.Array, plan: Plan
    ) -> tuple[dict[str, Any], SamplerStats]:
        """Chains from draws of the prior: by the Gibbs sweep if there is one, else by NUTS."""
        first, second = jax.random.split(key)
        start = prior_weights(data.structure, width, key=first, draws=plan.chains)
        observe = Observed(data, sweep is None, self.keep_weights)
        if sweep is None:
            # Arrays, so that another number is not another program.
            likelihood = jax.tree.map(jnp.asarray, self.likelihood)
            return run_nuts(Potential(data, likelihood), observe, start, second, plan)
        start = jax.vmap(scaled_weights, in_axes=(0, None))(start, data.deviations)
        return run_steps(sweep, observe, start, second, plan)

    def _posterior(self, observed: dict[str, Any], stats: SamplerStats, norm: str = "") -> WeightPosterior:
        arch, coefficients, weights = self.arch, observed.get("coefficients"), observed.get("weights")
        kept: dict[str, Any] = {"order_parameter": (ROWS, observed["order_parameter"])}
        kept |= {"log_density": ((), observed["log_density"]), "predictor": ((), observed["outputs"])}
        if coefficients is not None:
            kept["coefficients"] = (("path", "feature"), coefficients)
        if weights is not None:
            kept["embedding"] = (("unit_1", "feature"), weights.embedding)
            for layer, value in enumerate(weights.values, start=1):
                kept[f"values_{layer}"] = ((f"head_{layer}", f"unit_{layer + 1}", f"unit_{layer}"), value)
            axes = ("output", f"unit_{arch.layers + 1}") if arch.outputs > 1 else (f"unit_{arch.layers + 1}",)
            kept["readout"] = (axes, weights.readout)
        fields = fields_of_draws(arch, self.temperature, "weights", self.method, kept, stats)
        return WeightPosterior(*fields, coefficients, weights, self.readout, norm)


def path_data(
    arch: Architecture,
    features: PathFeatures,
    labels: np.ndarray,
    temperature: float,
    *,
    reduce: bool = True,
    rotate: bool = True,
) -> tuple[PathData, np.ndarray | None]:
    """The training data reduced without loss, and the basis [feature, feature'] of the features that were kept.

    Without `reduce` all features are kept. The basis is None if all features are kept. Rotating the examples adds a
    constant to the log density and changes nothing else, if the noise is Gaussian; without `rotate` they stay.
    """
    basis = feature_basis(features.values) if reduce else None
    width = features.token_width if basis is None else basis.shape[1]
    y = labels.reshape(features.examples, arch.outputs)
    rotate = rotate and width * features.paths < features.examples
    values, y = _reduced(features.values, y, 1 / math.sqrt(features.token_width), basis, rotate)
    scales = jnp.asarray(temperature, dtype=float), jnp.asarray(arch.deviations)
    return PathData(values, y, *scales, arch.replace(variances=1.0)), basis


@partial(jax.jit, static_argnames="rotate")
def _reduced(features: jax.Array, labels: Any, scale: Any, basis: Any, rotate: bool) -> tuple[jax.Array, jax.Array]:
    values, y, _ = reduced_data(features, labels, scale, basis, rotate)
    return values.transpose(0, 2, 1), y.T


def completed_coefficients(
    arch: Architecture, coefficients: np.ndarray, grams: np.ndarray, basis: np.ndarray, key: jax.Array
) -> np.ndarray:
    """c with its part outside the span of the training data: σ0 e_πᵀZ of a Z at its prior, given e through U alone."""
    eigenvalues, vectors = np.linalg.eigh(grams)
    factors = vectors * np.sqrt(np.maximum(eigenvalues, 0))[..., None, :]
    factors *= arch.deviations[0] * row_scales(arch)[:, None]
    full = np.empty((*coefficients.shape[:3], len(basis)))
    for chain, chain_key in enumerate(jax.random.split(key, len(full))):  # a chain at a time, for memory
        noise = factors[chain] @ np.asarray(standard_normal(chain_key, full.shape[1:]))
        full[chain] = noise + (coefficients[chain] - noise @ basis) @ basis.T
    return full


def scaled_weights(standard: Weights, deviations: jax.Array) -> Weights:
    """Weights of standard-normal coordinates: every layer times its σ."""
    values = tuple(deviations[layer + 1] * value for layer, value in enumerate(standard.values))
    return Weights(deviations[0] * standard.embedding, values, deviations[-1] * standard.readout)


def _watched(examples: int) -> np.ndarray:
    return np.unique(np.linspace(0, examples - 1, WATCHED).round().astype(int))

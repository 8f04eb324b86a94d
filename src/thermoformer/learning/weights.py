"""The posterior over all weights of a network, by brute force: the ground truth for the theory (learning §10).

Attention is fixed and the network is linear in its tokens, so the tokens enter through the attentioned inputs ξ alone:
f = Σ_π c_π · ξ_π with c_π = ∏(1/√H_l) e_πᵀV⁰/√(N_1 N0). Of each draw U^1 and c are kept, which is all that any
prediction needs. Directions of V⁰ that no training example reaches keep their prior given the other weights: they are
not sampled, and their part of c is drawn afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._keys import KeyLike, as_key
from .._precision import MATMUL_PRECISION
from .._validation import fail, labels_for, one_of, positive_integer, positive_number, true_or_false
from .action import Action
from .exact import mode_crossings
from .gibbs import GibbsSweep
from .kernels import choose_form, prepare
from .network import READOUTS, Architecture, Weights, checked_architecture, network_output, prior_weights
from .path_network import PathData, completed_coefficients, path_data, row_scales, scaled_path_vectors, scaled_weights
from .paths import PathFeatures, checked_features, checked_labels
from .posterior import draws_tree, mean_and_error
from .sampling import Report, SamplerStats, check_devices, check_sizes, diagnose, run_nuts, run_steps, warn_if_unmixed
from .weight_posterior import WeightPosterior, checked_tokens, queries_read

METHODS = ("nuts", "gibbs")
# What draws, state and work arrays may take together before a run is refused, in bytes.
MEMORY_LIMIT = 8e9
# Training examples whose predictor is watched for mixing.
WATCHED = 32


class TokenData(eqx.Module):
    """Training data of a network that only tokens can run: one with layer norm inside."""

    x: jax.Array
    attention: tuple[jax.Array, ...]
    labels: jax.Array
    temperature: jax.Array
    deviations: jax.Array
    structure: Architecture = eqx.field(static=True)
    readout: str = eqx.field(static=True)

    def outputs(self, weights: Weights) -> jax.Array:
        """f [output, example]."""
        found = network_output(weights, self.x, self.attention, self.readout, skip=self.structure.skip, layer_norm=True)
        return found.reshape(len(self.x), -1).T


class Potential(eqx.Module):
    """−ln of the posterior density of standard-normal coordinates θ = weights/σ, less a constant."""

    data: PathData | TokenData

    def __call__(self, position: Weights) -> jax.Array:
        """½|θ|² + |y − f|²/(2τ)."""
        found = self.data.outputs(scaled_weights(position, self.data.deviations))
        misfit = jnp.sum((self.data.labels - found) ** 2) / self.data.temperature
        return (sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position)) + misfit) / 2


class Observed(eqx.Module):
    """What is kept of a draw: U^1, the log density less a constant, and c, or outputs and weights where asked for.

    Fields:
        standard: whether positions are standard-normal coordinates, and not the weights themselves.
        keep_weights: whether the weights are kept too.
    """

    data: PathData | TokenData
    standard: bool = eqx.field(static=True)
    keep_weights: bool = eqx.field(static=True)

    def __call__(self, position: Weights) -> dict[str, Any]:
        """By name, one draw."""
        data, arch = self.data, self.data.structure
        sigma = data.deviations
        weights, standard = position, position
        if self.standard:
            weights = scaled_weights(position, sigma)
        else:
            standard = scaled_weights(position, 1 / sigma)
        vectors = scaled_path_vectors(arch, weights).reshape(arch.order_sizes[0], -1)
        plain = vectors / jnp.asarray(row_scales(arch))[:, None]
        kept: dict[str, Any] = {
            "order_parameter": jnp.matmul(plain, plain.T, precision=MATMUL_PRECISION),
            "log_density": -Potential(data)(standard),
        }
        if isinstance(data, PathData):
            kept["coefficients"] = jnp.matmul(vectors, weights.embedding, precision=MATMUL_PRECISION)
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
    layer_norm: bool = False,
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
        draws, chains, warmup: draws per chain after warm-up; warm-up is half of them, at least 200, where not given.
        readout: "last", "first" or "mean" query position.
        keep_weights: keep the weights of every draw too, and not only U and what predictions need.
        layer_norm: normalise tokens inside the network (see `forward`); outside the theory, NUTS only. Keeps weights.
        memory_limit: bytes over which the run is refused before it starts (`weight_sampling_memory`).
        devices: how many local devices share the chains, a divisor of their number; one where absent.
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
    one_of("readout", readout, READOUTS)
    one_of("method", method, METHODS)
    keep_weights = true_or_false("keep_weights", keep_weights)
    layer_norm = true_or_false("layer_norm", layer_norm)
    plan = _Plan(
        temperature, key, method, draws, chains, warmup, keep_weights or layer_norm, memory_limit, progress, devices
    )
    if layer_norm:
        posterior = _sample_on_tokens(arch, x, layers, labels, readout, plan)
    else:
        features = PathFeatures.from_attention(x, layers, readout, arch.skip)
        posterior = _sample_on_paths(arch, features, labels, readout, plan)
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
    memory_limit: float = MEMORY_LIMIT,
    devices: int | None = None,
    progress: Report | None = None,
) -> WeightPosterior:
    """`sample_weights` from attentioned inputs, which are all that the network needs of tokens and attention.

    Arguments:
        features: attentioned inputs ξ of the training examples.
        readout: what `predict_tokens` shall read; the training data have it in them.
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
    checked_architecture(arch)
    checked_features("features", features)
    one_of("readout", readout, READOUTS)
    plan = _Plan(temperature, key, method, draws, chains, warmup, keep_weights, memory_limit, progress, devices)
    posterior = _sample_on_paths(arch, features, labels, readout, plan)
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
        tokens: T, for layer norm, which runs the network on tokens; none: on attentioned inputs.

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


class _Plan:
    """How to sample, checked: the arguments that both ways in share."""

    def __init__(
        self,
        temperature: Any,
        key: Any,
        method: Any,
        draws: Any,
        chains: Any,
        warmup: Any,
        keep_weights: bool,
        memory_limit: Any,
        progress: Report | None,
        devices: Any,
    ) -> None:
        self.temperature = positive_number("temperature", temperature)
        self.key = as_key(key)
        self.method = one_of("method", method, METHODS)
        self.draws, self.chains, self.warmup = check_sizes(draws, chains, warmup)
        self.keep_weights = true_or_false("keep_weights", keep_weights)
        self.memory_limit = positive_number("memory_limit", memory_limit)
        self.progress = progress
        self.devices = check_devices(devices, self.chains)

    def report(self, arch: Architecture, token_width: int, examples: int, tokens: int | None = None) -> Report | None:
        """The progress call with the memory in its message, once the memory is known to be under the limit."""
        memory = weight_sampling_memory(
            arch,
            token_width,
            examples,
            method=self.method,
            draws=self.draws,
            chains=self.chains,
            keep_weights=self.keep_weights,
            tokens=tokens,
        )
        if memory > self.memory_limit:
            wanted = f"at least {memory:.3g} bytes for this run: fewer draws, chains or kept weights need less"
            raise fail("memory_limit", f"{self.memory_limit:.3g} bytes", wanted)
        progress = self.progress
        if progress is None:
            return None
        return lambda done, total, message: progress(done, total, f"{message}, up to {memory / 1e9:.2g} GB")

    def run(
        self, data: PathData | TokenData, sweep: GibbsSweep | None, width: int, key: jax.Array, progress: Report | None
    ) -> tuple[dict[str, Any], SamplerStats]:
        """Chains from draws of the prior: of the sweep, or else NUTS."""
        first, second = jax.random.split(key)
        start = prior_weights(data.structure, width, key=first, draws=self.chains)
        options: dict[str, Any] = {"warmup": self.warmup, "draws": self.draws, "progress": progress}
        options["devices"] = self.devices
        if sweep is None:
            return run_nuts(Potential(data), Observed(data, True, self.keep_weights), start, second, **options)
        start = jax.vmap(scaled_weights, in_axes=(0, None))(start, data.deviations)
        return run_steps(sweep, Observed(data, False, self.keep_weights), start, second, **options)


def _sample_on_paths(
    arch: Architecture, features: PathFeatures, labels: Any, readout: str, plan: _Plan
) -> WeightPosterior:
    if features.paths != arch.paths:
        raise fail("features", f"{features.paths} paths", f"{arch.paths}, those of the architecture")
    y = checked_labels(arch, features, labels)
    progress = plan.report(arch, features.token_width, features.examples)
    run_key, rest_key = jax.random.split(plan.key)
    # Weights that are kept are kept whole.
    data, basis = path_data(arch, features, y, plan.temperature, reduce=not plan.keep_weights)
    problem = prepare(arch, features, y)
    sweep = GibbsSweep(data, problem) if plan.method == "gibbs" else None
    observed, stats = plan.run(data, sweep, data.features.shape[2], run_key, progress)
    action = Action.at_finite_width(arch, problem, plan.temperature)
    if action.layout.narrow:
        stats = stats._replace(crossings=mode_crossings(action, plan.key, observed["order_parameter"]))
    coefficients = observed["coefficients"]
    if basis is not None:
        coefficients = completed_coefficients(
            arch, coefficients, observed["order_parameter"], np.asarray(basis), rest_key
        )
    coefficients = coefficients / math.sqrt(features.token_width)
    by_output = coefficients.reshape(plan.chains, plan.draws, arch.outputs, -1)
    some = np.asarray(features.values)[_watched(features.examples)].reshape(-1, by_output.shape[-1])
    return _posterior(arch, plan, observed, coefficients, by_output @ some.T, stats, readout, layer_norm=False)


def _sample_on_tokens(
    arch: Architecture, x: np.ndarray, attention: Sequence[np.ndarray], labels: Any, readout: str, plan: _Plan
) -> WeightPosterior:
    """With layer norm, which takes the tokens themselves."""
    if plan.method != "nuts":
        raise fail("method", repr(plan.method), "'nuts' with layer_norm=True: Gibbs needs f linear in every layer")
    y = labels_for("labels", labels, len(x), arch.outputs)
    progress = plan.report(arch, x.shape[2], len(x), x.shape[1])
    data = TokenData(
        x=jnp.asarray(x),
        attention=tuple(queries_read([jnp.asarray(layer) for layer in attention], readout)),
        labels=jnp.asarray(y).reshape(len(x), -1).T,
        temperature=jnp.asarray(plan.temperature, dtype=float),
        deviations=jnp.sqrt(jnp.asarray(arch.variances)),
        structure=arch.replace(variances=1.0),
        readout=readout,
    )
    observed, stats = plan.run(data, None, x.shape[2], plan.key, progress)
    return _posterior(arch, plan, observed, None, observed["outputs"], stats, readout, layer_norm=True)


def _posterior(
    arch: Architecture,
    plan: _Plan,
    observed: dict[str, Any],
    coefficients: np.ndarray | None,
    predictors: np.ndarray,
    stats: SamplerStats,
    readout: str,
    layer_norm: bool,
) -> WeightPosterior:
    grams = observed["order_parameter"]
    watched = {
        "order parameter": grams[..., *np.triu_indices(grams.shape[-1])],
        "predictor": predictors,
        "log density": observed["log_density"],
    }
    diagnostics = diagnose(plan.method, watched, stats)
    kept = {"order_parameter": (("path", "path_other"), grams), "log_density": ((), observed["log_density"])}
    if coefficients is not None:
        kept["coefficients"] = (("path", "feature"), coefficients)
    weights = observed.get("weights")
    if weights is not None:
        kept["embedding"] = (("unit_1", "feature"), weights.embedding)
        for layer, value in enumerate(weights.values, start=1):
            kept[f"values_{layer}"] = ((f"head_{layer}", f"unit_{layer + 1}", f"unit_{layer}"), value)
        axes = ("output", f"unit_{arch.layers + 1}") if arch.outputs > 1 else (f"unit_{arch.layers + 1}",)
        kept["readout"] = (axes, weights.readout)
    mean, error = mean_and_error(grams)
    return WeightPosterior(
        architecture=arch,
        temperature=plan.temperature,
        order_parameter=mean,
        order_parameter_error=error,
        diagnostics=diagnostics,
        draws=draws_tree(arch, kept, stats, temperature=plan.temperature, method=f"weights, {plan.method}"),
        coefficients=coefficients,
        weights=weights,
        readout=readout,
        layer_norm=layer_norm,
    )


def _watched(examples: int) -> np.ndarray:
    return np.unique(np.linspace(0, examples - 1, WATCHED).round().astype(int))

"""The posterior over all weights of a network, by brute force: the ground truth for the theory (learning §10).

Attention is fixed and the network is linear in its tokens, so the tokens enter through the attentioned inputs ξ alone:
f = Σ_π c_π · ξ_π with c_π = ∏(1/√H_l) e_πᵀV⁰/√(N_1 N0). Of each draw U^1 and c are kept, which is all that any
prediction needs. Directions of V⁰ that no training example reaches keep their prior given the other weights: they are
not sampled, and their part of c is drawn afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._precision import MATMUL_PRECISION
from .._validation import (
    fail,
    labels_for,
    layers_of_attention,
    one_of,
    positive_integer,
    positive_number,
    real_array,
)
from ._keys import KeyLike, as_key
from .gibbs import GibbsSweep, PathData, path_data, scaled_path_vectors, scaled_weights
from .network import READOUTS, Architecture, Weights, check_heads, network_output, prior_weights
from .paths import PathFeatures
from .posterior import Posterior, batch_numbers, draws_tree, mean_and_error, prediction_from_batches
from .predictor import CHUNK, Prediction
from .sampling import Report, SamplerStats, check_sizes, diagnose, run_nuts, run_steps, warn_if_unmixed

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
        plain = vectors / jnp.asarray(_row_scales(arch))[:, None]
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


@dataclass(frozen=True, eq=False)
class WeightPosterior(Posterior):
    """Draws of all weights from the posterior.

    Fields, beside those of `Posterior`:
        coefficients: c [chain, draw, row, feature], with which f = Σ_π c_π · ξ_π; rows are paths, or (output, path).
            None with layer norm, where there is no such thing.
        weights: the weights, every array with leading axes [chain, draw], where they were kept; else None.
        readout, layer_norm: of the network.
    """

    coefficients: np.ndarray | None
    weights: Weights | None
    readout: str = "last"
    layer_norm: bool = False

    def predict(self, features: PathFeatures) -> Prediction:
        """Mean and variance of f over draws for new examples, with Monte-Carlo errors of both.

        Arguments:
            features: the attentioned inputs of the new examples, with the paths and token width of training.
        """
        return self._prediction(self._outputs(features))

    def predictor_draws(self, features: PathFeatures) -> np.ndarray:
        """f of every draw for new examples, [chain, draw, example] (and output)."""
        return self._by_chain(np.concatenate(list(self._outputs(features)), axis=1))

    def predict_tokens(self, x: Any, attention: Sequence[Any]) -> Prediction:
        """`predict` from tokens [example, token, feature] and attention; the only way with layer norm."""
        if not self.layer_norm:
            return self.predict(PathFeatures.from_attention(x, attention, self.readout, self.architecture.skip))
        return self._prediction(self._token_outputs(x, attention))

    def token_draws(self, x: Any, attention: Sequence[Any]) -> np.ndarray:
        """`predictor_draws` from tokens and attention; the only way with layer norm."""
        if not self.layer_norm:
            return self.predictor_draws(PathFeatures.from_attention(x, attention, self.readout, self.architecture.skip))
        return self._by_chain(np.concatenate(list(self._token_outputs(x, attention)), axis=1))

    def _outputs(self, features: PathFeatures) -> Any:
        """Pieces [draw, example, output] of f, all chains in one row."""
        coefficients, arch = self.coefficients, self.architecture
        if coefficients is None:
            raise fail("features", "attentioned inputs", "tokens, through predict_tokens: layer norm has no paths")
        width = coefficients.shape[-1]
        if (features.paths, features.token_width) != (arch.paths, width):
            raise fail(
                "features",
                f"{features.paths} paths of token width {features.token_width}",
                f"{arch.paths} paths of token width {width}, as in training",
            )
        flat = coefficients.reshape(-1, arch.paths * width)
        size = max(1, CHUNK // (len(flat) + arch.paths * width))
        for start in range(0, features.examples, size):
            piece = np.asarray(features.values[start : start + size]).reshape(-1, arch.paths * width)
            yield (flat @ piece.T).reshape(-1, arch.outputs, len(piece)).transpose(0, 2, 1)

    def _token_outputs(self, x: Any, attention: Sequence[Any]) -> Any:
        x, layers = _checked_tokens(self.architecture, x, attention)
        weights = self.weights
        assert weights is not None  # layer norm always keeps them
        if x.shape[2] != weights.embedding.shape[-1]:
            raise fail("x", f"token width {x.shape[2]}", f"{weights.embedding.shape[-1]}, as in training")
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), weights)
        size = max(1, CHUNK // (x.shape[1] * max(self.architecture.heads) * max(self.architecture.widths)))
        for start in range(0, len(x), size):
            pieces = [jnp.asarray(layer[start : start + size]) for layer in layers]
            pieces = _queries_read(pieces, self.readout)
            found = _run_draws(flat, jnp.asarray(x[start : start + size]), pieces, self.readout, self.architecture.skip)
            yield np.asarray(found).reshape(len(found), -1, self.architecture.outputs)

    def _prediction(self, pieces: Any) -> Prediction:
        numbers = batch_numbers(*np.asarray(self.draws["posterior"]["order_parameter"]).shape[:2]).ravel()
        counts = np.bincount(numbers)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        sums = [[np.add.reduceat(piece**power, starts, axis=0) for power in (1, 2)] for piece in pieces]
        means, squares = (
            self._squeezed(np.concatenate(parts, axis=1) / counts[:, None, None]) for parts in zip(*sums, strict=True)
        )
        return prediction_from_batches(means, squares, np.zeros_like(means), counts)

    def _by_chain(self, values: np.ndarray) -> np.ndarray:
        return self._squeezed(values.reshape(self.diagnostics.chains, self.diagnostics.draws, *values.shape[1:]))

    def _squeezed(self, values: np.ndarray) -> np.ndarray:
        """One output has no axis of its own."""
        return values[..., 0] if self.architecture.outputs == 1 else values


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
    x, layers = _checked_tokens(arch, x, attention)
    one_of("readout", readout, READOUTS)
    if not layer_norm:
        features = PathFeatures.from_attention(x, layers, readout, arch.skip)
        options = dict(draws=draws, chains=chains, warmup=warmup, memory_limit=memory_limit, progress=progress)
        return sample_weights_on_paths(
            arch,
            features,
            labels,
            temperature=temperature,
            key=key,
            method=method,
            keep_weights=keep_weights,
            readout=readout,
            **options,
        )
    if one_of("method", method, METHODS) != "nuts":
        raise fail("method", repr(method), "'nuts' with layer_norm=True: Gibbs needs an output linear in each layer")
    y = labels_for("labels", labels, len(x), arch.outputs)
    tau = jnp.asarray(positive_number("temperature", temperature))
    sizes = check_sizes(draws, chains, warmup)
    memory = weight_sampling_memory(
        arch, x.shape[2], len(x), draws=sizes[0], chains=sizes[1], keep_weights=True, tokens=x.shape[1]
    )
    check_memory(memory, memory_limit)
    pieces = tuple(_queries_read([jnp.asarray(layer) for layer in layers], readout))
    structure = arch.replace(variances=1.0)
    deviations = jnp.sqrt(jnp.asarray(arch.variances))
    rows = jnp.asarray(y).reshape(len(x), -1).T
    data = TokenData(jnp.asarray(x), pieces, rows, tau, deviations, structure, readout)
    observed, stats = _run(data, x.shape[2], as_key(key), "nuts", True, sizes, _with_memory(progress, memory))
    watched = np.moveaxis(observed["outputs"], 3, 2)
    return _posterior(arch, temperature, observed, None, watched, stats, "nuts", readout, layer_norm=True)


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
    progress: Report | None = None,
) -> WeightPosterior:
    """`sample_weights` from attentioned inputs, which are all that the network needs of tokens and attention.

    Arguments:
        features: attentioned inputs ξ of the training examples.
        readout: what `predict_tokens` shall read; the training data have it in them.
        others: as in `sample_weights`.

    Example:
        >>> import numpy as np
        >>> feats = PathFeatures.from_attentioned_inputs(np.random.default_rng(0).normal(size=(5, 2, 3)))
        >>> posterior = sample_weights_on_paths(
        ...     Architecture((2,), 4), feats, [1, -1, 1, 1, -1], temperature=0.5, key=0, method="gibbs", draws=2000
        ... )
        >>> posterior.predict(feats).mean.shape
        (5,)
    """
    if features.paths != arch.paths:
        raise fail("features", f"{features.paths} paths", f"{arch.paths}, those of the architecture")
    y = labels_for("labels", labels, features.examples, arch.outputs)
    temperature = positive_number("temperature", temperature)
    one_of("method", method, METHODS)
    one_of("readout", readout, READOUTS)
    sizes = check_sizes(draws, chains, warmup)
    memory = weight_sampling_memory(
        arch,
        features.token_width,
        features.examples,
        method=method,
        draws=sizes[0],
        chains=sizes[1],
        keep_weights=keep_weights,
    )
    check_memory(memory, memory_limit)
    run_key, rest_key = jax.random.split(as_key(key))
    # Weights that are kept are kept whole.
    data, basis = path_data(arch, features, y, temperature, reduce=not keep_weights)
    width = data.features.shape[2]
    observed, stats = _run(data, width, run_key, method, keep_weights, sizes, _with_memory(progress, memory))
    coefficients = observed["coefficients"]
    if basis is not None:
        coefficients = _completed(arch, coefficients, observed["order_parameter"], np.asarray(basis), rest_key)
    coefficients = coefficients / np.sqrt(features.token_width)
    rows = coefficients.reshape(*sizes[1::-1], arch.outputs, -1)
    some = np.asarray(features.values)[_watched(features.examples)].reshape(-1, rows.shape[-1])
    return _posterior(arch, temperature, observed, coefficients, rows @ some.T, stats, method, readout)


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
    one_of("method", method, METHODS)
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
    state = (14 * chains + 40) * weights if method == "nuts" else (2 * chains + 5) * weights
    if tokens is None:
        flow = arch.paths * examples * (reach + 2 * sum(widths)) * (arch.outputs**2 + 2)
    else:
        flow = 4 * examples * tokens * (token_width + sum((2 + heads) * max(widths) for heads in arch.heads))
        flow += 2 * examples * tokens**2 * sum(arch.heads)
    return 8 * (kept + state + flow + 4 * (examples * arch.outputs) ** 2)


def check_memory(needed: int, memory_limit: float) -> None:
    """Refuse a run that needs more than the limit."""
    if needed > positive_number("memory_limit", memory_limit):
        wanted = f"at least {needed:.3g} bytes for this run: fewer draws, chains or kept weights need less"
        raise fail("memory_limit", f"{float(memory_limit):.3g} bytes", wanted)


def _run(
    data: PathData | TokenData,
    width: int,
    key: jax.Array,
    method: str,
    keep_weights: bool,
    sizes: tuple[int, int, int],
    progress: Report | None,
) -> tuple[dict[str, Any], SamplerStats]:
    """Chains from draws of the prior."""
    draws, chains, warmup = sizes
    first, second = jax.random.split(key)
    start = prior_weights(data.structure, width, key=first, draws=chains)
    options: dict[str, Any] = {"warmup": warmup, "draws": draws, "progress": progress}
    if method == "nuts":
        return run_nuts(Potential(data), Observed(data, True, keep_weights), start, second, **options)
    assert isinstance(data, PathData)
    start = jax.vmap(scaled_weights, in_axes=(0, None))(start, data.deviations)
    return run_steps(GibbsSweep(data), Observed(data, False, keep_weights), start, second, **options)


def _completed(
    arch: Architecture, coefficients: np.ndarray, grams: np.ndarray, basis: np.ndarray, key: jax.Array
) -> np.ndarray:
    """c with its part outside the span of the training data: σ0 e_πᵀZ of a Z at its prior, given e through U alone."""
    eigenvalues, vectors = np.linalg.eigh(grams)
    factors = vectors * np.sqrt(np.maximum(eigenvalues, 0))[..., None, :]
    factors *= np.sqrt(arch.variances[0]) * _row_scales(arch)[:, None]
    full = np.empty((*coefficients.shape[:3], len(basis)))
    for chain, chain_key in enumerate(jax.random.split(key, len(full))):  # a chain at a time, for memory
        noise = factors[chain] @ np.asarray(jax.random.normal(chain_key, full.shape[1:]))
        full[chain] = noise + (coefficients[chain] - noise @ basis) @ basis.T
    return full


def _posterior(
    arch: Architecture,
    temperature: float,
    observed: dict[str, Any],
    coefficients: np.ndarray | None,
    predictors: np.ndarray,
    stats: SamplerStats,
    method: str,
    readout: str,
    layer_norm: bool = False,
) -> WeightPosterior:
    grams = observed["order_parameter"]
    watched = {
        "order parameter": grams[..., *np.triu_indices(grams.shape[-1])],
        "predictor": predictors,
        "log density": observed["log_density"],
    }
    diagnostics = diagnose(method, watched, stats)
    warn_if_unmixed(diagnostics)
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
        temperature=float(temperature),
        order_parameter=mean,
        order_parameter_error=error,
        diagnostics=diagnostics,
        draws=draws_tree(arch, kept, stats, temperature=float(temperature), method=f"weights, {method}"),
        coefficients=coefficients,
        weights=weights,
        readout=readout,
        layer_norm=layer_norm,
    )


def _row_scales(arch: Architecture) -> np.ndarray:
    """∏ 1/√H_l of each row (output, path) of U: what the scaled vectors e have that those of U do not."""
    return np.tile(arch.path_scales, arch.outputs)


def _watched(examples: int) -> np.ndarray:
    return np.unique(np.linspace(0, examples - 1, WATCHED).round().astype(int))


def _checked_tokens(arch: Architecture, x: Any, attention: Sequence[Any]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    x = real_array("x", x, ("example", "token", "feature"))
    layers = layers_of_attention(attention, x.shape[0], x.shape[1])
    check_heads(arch, layers)
    return x, layers


def _queries_read(attention: Sequence[jax.Array], readout: str) -> list[jax.Array]:
    """Attention whose top layer has only the query that is read; with skips the sum with all positions is broadcast."""
    queries = {"last": slice(-1, None), "first": slice(0, 1), "mean": slice(None)}[readout]
    return [*attention[:-1], attention[-1][:, :, queries]]


@partial(jax.jit, static_argnames=("readout", "skip"))
def _run_draws(weights: Weights, x: jax.Array, attention: list[jax.Array], readout: str, skip: bool) -> jax.Array:
    """f [draw, example] (and output) with layer norm, one draw after another."""
    return jax.lax.map(lambda one: network_output(one, x, attention, readout, skip=skip, layer_norm=True), weights)


def _with_memory(progress: Report | None, memory: int) -> Report | None:
    if progress is None:
        return None
    return lambda done, total, message: progress(done, total, f"{message}, at most {memory / 1e9:.2g} GB")

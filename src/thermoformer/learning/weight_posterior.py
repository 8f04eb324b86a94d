"""What samplers of all weights return: their draws, run on new examples (learning §10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._validation import fail, real_array
from ._entries import attention_of_layers
from .network import Architecture, Weights, check_heads, checked_architecture, network_output
from .paths import PathFeatures
from .posterior import Posterior, batch_numbers, prediction_from_batches
from .predictor import CHUNK, Prediction, check_same_paths


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

    def path_readout(self) -> np.ndarray:
        """The mean over draws of the readout of every path, [path, feature] (and output)."""
        mean = (
            self._path_coefficients().mean(axis=(0, 1)).reshape(self.architecture.outputs, self.architecture.paths, -1)
        )
        return mean[0] if self.architecture.outputs == 1 else mean.transpose(1, 2, 0)

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

    def _outputs(self, features: PathFeatures) -> Iterator[np.ndarray]:
        """Pieces [draw, example, output] of f, all chains in one row."""
        coefficients, arch = self._path_coefficients(), self.architecture
        width = coefficients.shape[-1]
        check_same_paths(features, arch.paths, width)
        flat = coefficients.reshape(-1, arch.paths * width)
        size = max(1, CHUNK // (len(flat) + arch.paths * width))
        for start in range(0, features.examples, size):
            piece = np.asarray(features.values[start : start + size]).reshape(-1, arch.paths * width)
            yield (flat @ piece.T).reshape(-1, arch.outputs, len(piece)).transpose(0, 2, 1)

    def _path_coefficients(self) -> np.ndarray:
        if self.coefficients is None:
            raise fail("features", "attentioned inputs", "tokens, through predict_tokens: layer norm has no paths")
        return self.coefficients

    def _token_outputs(self, x: Any, attention: Sequence[Any]) -> Iterator[np.ndarray]:
        x, layers = checked_tokens(self.architecture, x, attention)
        weights = self.weights
        assert weights is not None  # layer norm always keeps them
        if x.shape[2] != weights.embedding.shape[-1]:
            raise fail("x", f"token width {x.shape[2]}", f"{weights.embedding.shape[-1]}, as in training")
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), weights)
        size = max(1, CHUNK // (x.shape[1] * max(self.architecture.heads) * max(self.architecture.widths)))
        for start in range(0, len(x), size):
            pieces = [jnp.asarray(layer[start : start + size]) for layer in layers]
            pieces = queries_read(pieces, self.readout)
            found = _run_draws(flat, jnp.asarray(x[start : start + size]), pieces, self.readout, self.architecture.skip)
            yield np.asarray(found).reshape(len(found), -1, self.architecture.outputs)

    def _prediction(self, pieces: Iterator[np.ndarray]) -> Prediction:
        numbers = batch_numbers(self.diagnostics.chains, self.diagnostics.draws).ravel()
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


def checked_tokens(arch: Architecture, x: Any, attention: Sequence[Any]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Tokens and attention as arrays that fit the architecture."""
    checked_architecture(arch)
    x = real_array("x", x, ("example", "token", "feature"))
    layers = attention_of_layers(attention, x.shape[0], x.shape[1])
    check_heads(arch, layers)
    return x, layers


def queries_read(attention: Sequence[jax.Array], readout: str) -> list[jax.Array]:
    """Attention whose top layer has only the query that is read; with skips the sum with all positions is broadcast."""
    queries = {"last": slice(-1, None), "first": slice(0, 1), "mean": slice(None)}[readout]
    return [*attention[:-1], attention[-1][:, :, queries]]


@partial(jax.jit, static_argnames=("readout", "skip"))
def _run_draws(weights: Weights, x: jax.Array, attention: list[jax.Array], readout: str, skip: bool) -> jax.Array:
    """f [draw, example] (and output) with layer norm, one draw after another."""
    return jax.lax.map(lambda one: network_output(one, x, attention, readout, skip=skip, layer_norm=True), weights)

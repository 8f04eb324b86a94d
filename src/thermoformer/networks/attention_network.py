"""A network with its own query and key weights, as gradient descent trains it (learning §1, experiments §2).

Given its attention the network is linear in the tokens, so its output is a sum over paths, f = Σ_π e_πᵀV⁰ ξ_π/√N0
(learning §5). That form never touches the width for each token: it is what training and prediction compute.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._precision import MATMUL_PRECISION
from .._validation import fail, instance, one_of, real_array, sequence, tokens_with_logits
from ..learning.architecture import Architecture, squeeze_output
from ..learning.network import Weights, check_weights, network_output, path_vectors
from ..learning.paths import READOUTS, PathFeatures, path_weights
from ..learning.results import Prediction
from ..learning.scores import heads_kept

# Numbers that one chunk of examples may hold at a time: 128 MiB of float64.
_CHUNK_NUMBERS = 2**24


@dataclass(frozen=True, eq=False)
class AttentionNetwork:
    """A network whose attention comes from its own query and key weights.

    Arguments:
        arch: sizes; the variances play no role here.
        weights: one network, no draw axis.
        queries, keys: Q and K, one array [head, G, N0] per layer.
        readout: "mean", "last" or "first" query position.

    Example:
        >>> import numpy as np
        >>> from thermoformer.learning import prior_weights
        >>> arch, random = Architecture((2, 2), 5), np.random.default_rng(0)
        >>> queries, keys = random.normal(size=(2, 2, 2, 3, 4))
        >>> network = AttentionNetwork(arch, prior_weights(arch, 4, key=0), tuple(queries), tuple(keys))
        >>> x = random.normal(size=(7, 6, 4))
        >>> network.predict(x).shape, network.path_features(x)
        ((7,), PathFeatures(examples=7, paths=4, token_width=4))
    """

    arch: Architecture
    weights: Weights
    queries: tuple[Float[Array, "head key_size feature"], ...]
    keys: tuple[Float[Array, "head key_size feature"], ...]
    readout: str = "mean"

    def __post_init__(self) -> None:
        one_of("readout", self.readout, READOUTS)
        weights = check_weights(self.arch, self.weights)
        if weights.embedding.ndim != 2:
            raise fail("weights", f"{len(weights.embedding)} draws", "one network, without a draw axis")
        vars(self)["weights"] = weights  # the record is frozen once it is built
        for name in ("queries", "keys"):
            vars(self)[name] = self._checked(name, getattr(self, name))
        for layer, (query, key) in enumerate(zip(self.queries, self.keys, strict=True)):
            if query.shape != key.shape:
                raise fail(f"keys[{layer}]", f"shape {key.shape}", f"the shape of queries[{layer}], {query.shape}")

    def _checked(self, name: str, value: Sequence[Any]) -> tuple[Array, ...]:
        if len(sequence(name, value, "one array per layer")) != self.arch.layers:
            raise fail(name, f"{len(value)} layers", f"{self.arch.layers}, one array per layer")
        layers = []
        for index, (layer, heads) in enumerate(zip(value, self.arch.heads, strict=True)):
            array = real_array(f"{name}[{index}]", layer, ("head", "G", "feature"))
            if (array.shape[0], array.shape[2]) != (heads, self.token_width):
                expected = f"[{heads}, G, {self.token_width}]: heads, any size, token width"
                raise fail(f"{name}[{index}]", f"shape {array.shape}", expected)
            layers.append(jnp.asarray(array))
        return tuple(layers)

    @property
    def token_width(self) -> int:
        """N0."""
        return self.weights.embedding.shape[1]

    @property
    def parameters(self) -> int:
        """How many numbers the network holds."""
        return sum(array.size for array in jax.tree.leaves((self.weights, self.queries, self.keys)))

    @property
    def digest(self) -> str:
        """A short hash of its sizes and weights, by which files know the network they belong to."""
        named = hashlib.sha256(repr((self.arch, self.readout)).encode())
        for array in jax.tree.leaves((self.weights, self.queries, self.keys)):
            named.update(np.asarray(array).tobytes())
        return named.hexdigest()[:16]

    def attention(self, x: Any) -> tuple[Float[Array, "example head query key"], ...]:
        """Its attention matrices on tokens x [example, token, feature], one array per layer."""
        return attention_layers(jnp.asarray(self._tokens(x)), self.queries, self.keys)

    def predict(self, x: Any) -> Float[Array, ...]:
        """f [example], or [example, output], on tokens x [example, token, feature]."""
        return self._in_chunks(partial(path_outputs, self.arch, self.weights), x)

    def accuracy(self, x: Any, labels: Any) -> float:
        """The fraction of labels that the sign of f has, or its largest output (see `Prediction.accuracy`).

        Arguments:
            x: tokens [example, token, feature].
            labels: ±1 [example], or [example, output].
        """
        outputs = np.asarray(self.predict(x))
        return Prediction(outputs, np.zeros(len(outputs))).accuracy(labels)

    def path_features(self, x: Any) -> PathFeatures:
        """The attentioned inputs of its paths, from which the theory with these heads, frozen, learns."""
        return PathFeatures.from_attentioned_inputs(self._in_chunks(partial(attentioned_inputs, self.arch), x))

    def path_contributions(self, x: Any) -> Float[Array, ...]:
        """What each path adds to f: [example, path], or [example, output, path]; the sum over paths is `predict`."""
        return squeeze_output(self._in_chunks(partial(contributions, self.arch, self.weights), x), axis=1)

    def path_readout(self) -> Float[Array, "path feature ..."]:
        """The readout w_π of every path, f(x) = Σ_π w_π·ξ_π(x): [path, feature] (and output)."""
        readout = _path_readout(self.arch, self.weights) / np.sqrt(self.token_width)
        return squeeze_output(jnp.moveaxis(readout, 0, 2))

    def without(self, heads: Sequence[tuple[int, int]]) -> AttentionNetwork:
        """The smaller network without the given heads; those that are left are renumbered.

        A layer divides by the root of the heads it has (experiments §2), so nothing needs rescaling.

        Arguments:
            heads: (layer, head) pairs counted from 0, as in `HeadScores.labels`; each layer must keep one head.
        """
        kept = heads_kept(self.arch, heads)
        arch = self.arch.replace(heads=tuple(len(layer) for layer in kept))
        values, queries, keys = (
            tuple(jnp.asarray(np.asarray(array)[layer], array.dtype) for array, layer in zip(arrays, kept, strict=True))
            for arrays in (self.weights.values, self.queries, self.keys)
        )
        return AttentionNetwork(arch, self.weights._replace(values=values), queries, keys, self.readout)

    @cached_property
    def _largest_product(self) -> float:
        """The largest possible logit over the square of the largest entry of the tokens."""
        pairs = zip(map(np.asarray, self.queries), map(np.asarray, self.keys), strict=True)
        sizes = [float(np.abs(query).max()) * float(np.abs(key).max()) * query.shape[1] for query, key in pairs]
        return max(sizes) * self.token_width**2

    def _tokens(self, x: Any) -> np.ndarray:
        x = real_array("x", x, ("example", "token", "feature"))
        if x.shape[2] != self.token_width:
            raise fail("x", f"tokens of width {x.shape[2]}", f"{self.token_width}, as the network has")
        return tokens_with_logits(x, self._largest_product)

    def _in_chunks(self, function: Callable, x: Any) -> Array:
        """A function of queries, keys, tokens and readout on all examples, some of them at a time."""
        pieces = self._chunks(self._tokens(x))
        return jnp.concatenate([function(self.queries, self.keys, piece, self.readout) for piece in pieces])

    def _chunks(self, x: np.ndarray) -> list[Array]:
        tokens = x.shape[1]
        numbers = tokens**2 * sum(self.arch.heads) + self.arch.paths * (tokens + self.token_width)
        size = max(1, _CHUNK_NUMBERS // numbers)
        return [jnp.asarray(x[start : start + size]) for start in range(0, len(x), size)]


def checked_network(name: str, value: Any) -> AttentionNetwork:
    """The value, if it is a network."""
    return instance(name, value, AttentionNetwork, "an AttentionNetwork, as train or load_network returns it")


@partial(jax.jit, static_argnames="precision")
def attention_layers(
    x: Array, queries: Sequence[Array], keys: Sequence[Array], precision: jax.lax.Precision = MATMUL_PRECISION
) -> tuple[Array, ...]:
    """`query_key_attention` of every layer without its checks, for use under jit and grad."""
    layers = []
    for query, key in zip(queries, keys, strict=True):
        # One product of four: which pair is multiplied first, QᵀK or Q x, is chosen by its cost.
        logits = jnp.einsum("pqi,hgi,hgj,pkj->phqk", x, query, key, x, precision=precision)
        layers.append(jax.nn.softmax(logits / np.sqrt(query.shape[1]).astype(x.dtype), axis=-1))
    return tuple(layers)


@partial(jax.jit, static_argnames=("arch", "readout", "precision"))
def attentioned_inputs(
    arch: Architecture,
    queries: Sequence[Array],
    keys: Sequence[Array],
    x: Array,
    readout: str,
    precision: jax.lax.Precision = MATMUL_PRECISION,
) -> Float[Array, "example path feature"]:
    """ξ_π of every path of a network with the given queries and keys."""
    attention = attention_layers(x, queries, keys, precision)
    return jnp.einsum("pas,psi->pai", path_weights(attention, readout, arch.skip, precision), x, precision=precision)


@partial(jax.jit, static_argnames=("arch", "readout", "precision"))
def path_outputs(
    arch: Architecture,
    weights: Weights,
    queries: Sequence[Array],
    keys: Sequence[Array],
    x: Array,
    readout: str,
    precision: jax.lax.Precision = MATMUL_PRECISION,
    factors: Array | None = None,
) -> Array:
    """f [example], or [example, output], summed over paths, or token by token if there are too many paths.

    Factors [example, path] multiply what each path adds.
    """
    if factors is None and arch.paths * (x.shape[1] + x.shape[2]) > sum(value.size for value in weights.values):
        attention = attention_layers(x, queries, keys, precision)
        return network_output(weights, x, attention, readout, skip=arch.skip)
    xi = attentioned_inputs(arch, queries, keys, x, readout, precision)
    xi = xi if factors is None else xi * factors[..., None]
    out = jnp.einsum("pai,dai->pd", xi, _path_readout(arch, weights), precision=precision)
    return squeeze_output(out / np.sqrt(x.shape[2]).astype(x.dtype))


@partial(jax.jit, static_argnames=("arch", "readout"))
def contributions(
    arch: Architecture, weights: Weights, queries: Sequence[Array], keys: Sequence[Array], x: Array, readout: str
) -> Float[Array, "example output path"]:
    """e_πᵀV⁰ ξ_π/√N0 of every path."""
    xi = attentioned_inputs(arch, queries, keys, x, readout)
    parts = jnp.einsum("pai,dai->pda", xi, _path_readout(arch, weights), precision=MATMUL_PRECISION)
    return parts / np.sqrt(x.shape[2])


def _path_readout(arch: Architecture, weights: Weights) -> Float[Array, "output path feature"]:
    """e_πᵀV⁰ of every path."""
    vectors = path_vectors(arch, weights.readout, weights.values)
    return jnp.matmul(vectors, weights.embedding, precision=MATMUL_PRECISION)

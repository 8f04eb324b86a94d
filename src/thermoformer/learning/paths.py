"""Paths: attention matrices to attentioned inputs (learning §2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._precision import MATMUL_PRECISION
from .._validation import layers_of_attention, one_of, places, real_array, traced, true_or_false

READOUTS = ("last", "first", "mean")


class PathFeatures(eqx.Module):
    """Attentioned inputs ξ_π of every example, raw: no variance, no 1/√N0, no 1/√Π.

    Fields:
        values: ξ [example, path, feature]; paths in the order h_1 slowest, h_L fastest. With skips, the way past a
            layer comes before its heads.

    Example:
        >>> import numpy as np
        >>> feats = PathFeatures.from_attentioned_inputs(np.ones((5, 4, 3)))
        >>> feats.examples, feats.paths, feats.token_width
        (5, 4, 3)
    """

    values: Float[Array, "example path feature"]

    def __init__(self, values: Any) -> None:
        self.values = jnp.asarray(real_array("values", values, ("example", "path", "feature")), dtype=float)

    @classmethod
    def _of(cls, values: Array) -> PathFeatures:
        """Features of an array that needs no check: it stays on its device."""
        made = object.__new__(cls)
        object.__setattr__(made, "values", values)  # modules are frozen once they are built
        return made

    @classmethod
    def from_attentioned_inputs(cls, xi: Any) -> PathFeatures:
        """Features from ξ [example, path, feature] that were computed elsewhere."""
        return cls._of(jnp.asarray(real_array("xi", xi, ("example", "path", "feature")), dtype=float))

    @classmethod
    def from_attention(
        cls, x: Any, attention: Sequence[Any], readout: str = "last", skip: bool = False
    ) -> PathFeatures:
        """ξ_π = Σ_s ω_π(s) x_s with ω_π the product of attention matrices along the path.

        Arguments:
            x: tokens [example, token, feature].
            attention: one array [example, head, query, key] per layer, first layer first.
            readout: the query position of the top layer: "last", "first" or "mean".
            skip: whether a path may also skip a layer (learning §8).

        Example:
            >>> import numpy as np
            >>> from thermoformer.learning import uniform_attention
            >>> x = np.arange(6.0).reshape(1, 3, 2)
            >>> PathFeatures.from_attention(x, [uniform_attention(x)]).values.tolist()
            [[[2.0, 3.0]]]
        """
        return cls._of(attentioned_inputs(*_checked_attention(x, attention, readout, skip)))

    @property
    def examples(self) -> int:
        """P."""
        return self.values.shape[0]

    @property
    def observed(self) -> int:
        """P, also where `examples` are rotated ones (see `rotate_examples`)."""
        return self.examples

    @property
    def paths(self) -> int:
        """Π."""
        return self.values.shape[1]

    @property
    def token_width(self) -> int:
        """N0."""
        return self.values.shape[2]

    def select(self, paths: Sequence[int] | np.ndarray) -> PathFeatures:
        """The same examples with only the given paths, in the given order."""
        chosen = self._indexed((slice(None), places("paths", paths, self.paths)))
        return eqx.tree_at(lambda features: features.values, self, chosen)

    def __getitem__(self, examples: Any) -> PathFeatures:
        """The given examples: a slice, an array of indices or a mask with one entry per example."""
        return self._of(self._indexed(places("examples", examples, self.examples)))

    def _indexed(self, index: Any) -> Array:
        """By NumPy on a CPU, where JAX would compile a program for every shape."""
        if traced(self.values) or jax.default_backend() != "cpu":
            return self.values[index]
        return jnp.asarray(np.asarray(self.values)[index], dtype=float)

    def __len__(self) -> int:
        return self.examples

    def __repr__(self) -> str:
        return f"PathFeatures(examples={self.examples}, paths={self.paths}, token_width={self.token_width})"


def path_attention(
    x: Any, attention: Sequence[Any], readout: str = "last", skip: bool = False
) -> Float[Array, "example path token"]:
    """ω_π(s): how much of token s each path carries to the readout (learning §2, §8).

    Example:
        >>> import numpy as np
        >>> from thermoformer.learning import uniform_attention
        >>> x = np.zeros((1, 2, 3))
        >>> path_attention(x, [uniform_attention(x, heads=2)] * 2).shape
        (1, 4, 2)
    """
    return _compiled_weights(*_checked_attention(x, attention, readout, skip)[1:])


def _checked_attention(x: Any, attention: Any, readout: str, skip: Any) -> tuple[Any, Any, str, bool]:
    x = real_array("x", x, ("example", "token", "feature"))
    layers = layers_of_attention(attention, *x.shape[:2])
    return x, layers, one_of("readout", readout, READOUTS), true_or_false("skip", skip)


def path_weights(
    attention: Sequence[Array], readout: str, skip: bool = False, precision: jax.lax.Precision = MATMUL_PRECISION
) -> Float[Array, "example path token"]:
    """`path_attention` without its checks, in the precision of its arrays, for use under jit and grad."""
    examples, _, tokens, _ = attention[0].shape
    position = {"last": np.eye(tokens)[-1], "first": np.eye(tokens)[0], "mean": np.full(tokens, 1 / tokens)}[readout]
    weights = jnp.broadcast_to(jnp.asarray(position, attention[0].dtype), (examples, 1, tokens))
    # From the top layer down: the choice in the layer just added becomes the slowest index.
    for layer in reversed(attention):
        attended = jnp.einsum("pat,phts->phas", weights, layer, precision=precision)
        if skip:
            attended = jnp.concatenate([weights[:, None], attended], axis=1)
        weights = attended.reshape(examples, -1, tokens)
    return weights


# JIT-compiled once per shape; run eagerly, every operation would compile separately.
_compiled_weights = partial(jax.jit, static_argnames=("readout", "skip"))(path_weights)


@partial(jax.jit, static_argnames=("readout", "skip"))
def attentioned_inputs(x: Array, attention: Sequence[Array], readout: str, skip: bool) -> Array:
    """ξ_π [example, path, feature], without checks."""
    return jnp.einsum("pas,psi->pai", path_weights(attention, readout, skip), x, precision=MATMUL_PRECISION)

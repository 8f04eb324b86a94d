"""The network with explicit weights: forward pass, and the same network as a sum over paths (learning §1, §5, §10).

Given its attention the network is linear in its tokens. From the readout down go the vectors e of paths, from V⁰ up the
states z of examples along paths; where they meet, f = Σ_π e_π · z_π. The vectors contain all scales:
e_π = ∏ V^{l,h}ᵀ/√(H_l N_l) a/√N_a, so that f = Σ_π e_π · V⁰ ξ_π/√N0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._keys import KeyLike, as_key, standard_normal
from .._precision import MATMUL_PRECISION
from .._validation import (
    fail,
    instance,
    layers_of_attention,
    numpy_for,
    one_of,
    positive_integer,
    real_array,
    sequence,
    true_or_false,
)
from .architecture import Architecture, checked_architecture, squeeze_output
from .paths import READOUTS

NORMS = ("pre", "rms", "post")


class Weights(NamedTuple):
    """All weights of a network, or of several (then every array has one more, leading, axis: draw).

    Fields:
        embedding: V⁰ [N_1, N0].
        values: V^{l,h}, one array [head, N_{l+1}, N_l] per layer, with N_{L+1} = N_a.
        readout: a [N_a], or [output, N_a] with several outputs.
    """

    embedding: Float[Array, "*draw out token_width"]
    values: tuple[Float[Array, "*draw head out in"], ...]
    readout: Float[Array, "*draw_and_output width"]


def weight_shapes(arch: Architecture, token_width: int) -> Weights:
    """The shapes of all weights of one network."""
    values = tuple(zip(arch.heads, arch.widths[1:], arch.widths[:-1], strict=True))
    outputs = () if arch.outputs == 1 else (arch.outputs,)
    return Weights((arch.widths[0], token_width), values, (*outputs, arch.widths[-1]))  # type: ignore[arg-type]


def prior_weights(arch: Architecture, token_width: int, *, key: KeyLike, draws: int | None = None) -> Weights:
    """Weights drawn from the prior: every entry N(0, σ²) with the variance of its layer.

    Arguments:
        token_width: N0.
        draws: the number of networks; None gives one network without a draw axis.

    Example:
        >>> prior_weights(Architecture((2,), 5), token_width=3, key=0).values[0].shape
        (2, 5, 5)
    """
    shapes = weight_shapes(checked_architecture(arch), positive_integer("token_width", token_width))
    lead = () if draws is None else (positive_integer("draws", draws),)
    keys = jax.random.split(as_key(key), arch.layers + 2)
    flat = (shapes.embedding, *shapes.values, shapes.readout)
    rows = [standard_normal(one, (*lead, *shape)) for one, shape in zip(keys, flat, strict=True)]  # type: ignore[misc]
    # Outside of JAX, where each shape would be one more program.
    numpy = numpy_for(rows, arch.deviations)
    scaled = [scale * numpy.asarray(row) for scale, row in zip(arch.deviations, rows, strict=True)]
    drawn = [jnp.asarray(row, dtype=float) for row in scaled]
    return Weights(drawn[0], tuple(drawn[1:-1]), drawn[-1])


def check_weights(arch: Architecture, weights: Weights) -> Weights:
    """The weights as float64 arrays whose shapes fit the architecture, with or without a leading draw axis."""
    checked_architecture(arch)
    instance("weights", weights, Weights, "Weights, as prior_weights makes them")
    sequence("weights.values", weights.values, "one array per layer")
    embedding = real_array("weights.embedding", weights.embedding)
    if embedding.ndim not in (2, 3) or embedding.shape[-2] != arch.widths[0]:
        expected = f"[{arch.widths[0]}, N0], with or without a draw axis in front"
        raise fail("weights.embedding", f"shape {embedding.shape}", expected)
    shapes = weight_shapes(arch, embedding.shape[-1])

    def checked(name: str, value: Any, shape: Any) -> Array:
        array, shape = real_array(f"weights.{name}", value), (*embedding.shape[:-2], *shape)
        if array.shape != shape:
            raise fail(f"weights.{name}", f"shape {array.shape}", f"{shape}")
        return jnp.asarray(array, dtype=float)

    readout = checked("readout", weights.readout, shapes.readout)
    if len(weights.values) != arch.layers:
        raise fail("weights.values", f"{len(weights.values)} layers", f"{arch.layers}")
    pairs = enumerate(zip(weights.values, shapes.values, strict=True))
    values = tuple(checked(f"values[{layer}]", value, shape) for layer, (value, shape) in pairs)
    return Weights(jnp.asarray(embedding, dtype=float), values, readout)


def checked_tokens(arch: Architecture, x: Any, attention: Any) -> tuple[Array, tuple[Array, ...]]:
    """Tokens [example, token, feature] and attention [example, head, query, key] with the heads of the architecture."""
    checked_architecture(arch)
    x = real_array("x", x, ("example", "token", "feature"))
    layers = layers_of_attention(attention, *x.shape[:2])
    heads = tuple(layer.shape[1] for layer in layers)
    if heads != arch.heads:
        raise fail("attention", f"heads {heads}", f"{arch.heads}")
    return jnp.asarray(x, dtype=float), tuple(jnp.asarray(layer, dtype=float) for layer in layers)


def forward(
    arch: Architecture,
    weights: Weights,
    x: Any,
    attention: Sequence[Any],
    *,
    readout: str = "last",
    layer_norm: bool | str = False,
) -> Float[Array, ...]:
    """The network's output f for explicit weights (learning §1, §7, §8).

    Arguments:
        weights: one network, or several with a leading draw axis.
        x: tokens [example, token, feature].
        attention: one array [example, head, query, key] per layer.
        readout: "last", "first" or "mean" query position.
        layer_norm: normalise every token inside the network, without a learned gain, which is outside the theory:
            True or "pre" before each attention layer and before the readout, to mean 0 and variance 1 over its entries;
            "rms" likewise, to mean square 1; "post" after each attention layer.

    Returns:
        f [example], with a draw axis in front for several networks and an output axis behind for several outputs.

    Example:
        >>> import numpy as np
        >>> from thermoformer.learning import uniform_attention
        >>> arch, x = Architecture((1,), 5), np.ones((4, 3, 2))
        >>> forward(arch, prior_weights(arch, 2, key=0), x, [uniform_attention(x)]).shape
        (4,)
    """
    one_of("readout", readout, READOUTS)
    layer_norm = checked_norm(layer_norm)
    weights = check_weights(arch, weights)
    x, layers = checked_tokens(arch, x, attention)
    if weights.embedding.shape[-1] != x.shape[2]:
        raise fail("weights.embedding", f"token width {weights.embedding.shape[-1]}", f"{x.shape[2]}, as in x")
    return _compiled_output(weights, x, layers, readout, skip=arch.skip, layer_norm=layer_norm)


def network_output(
    weights: Weights,
    x: Array,
    attention: Sequence[Array],
    readout: str,
    *,
    skip: bool = False,
    layer_norm: str = "",
) -> Array:
    """`forward` without its checks, for use under jit, grad and vmap; an empty `layer_norm` is none."""
    if weights.embedding.ndim == 3:
        one = partial(network_output, x=x, attention=attention, readout=readout, skip=skip, layer_norm=layer_norm)
        return jax.vmap(one)(weights)
    norm = partial(_normalised, centre=layer_norm != "rms")
    before = norm if layer_norm in ("pre", "rms") else lambda z: z
    after = norm if layer_norm == "post" else lambda z: z
    z = jnp.einsum("pti,oi->pto", x, weights.embedding, precision=MATMUL_PRECISION) / math.sqrt(x.shape[2])
    for value, layer in zip(weights.values, attention, strict=True):
        heads, _, width = value.shape
        attended = jnp.einsum("phts,psi->phti", layer, before(z), precision=MATMUL_PRECISION)
        added = jnp.einsum("phti,hoi->pto", attended, value, precision=MATMUL_PRECISION) / math.sqrt(heads * width)
        z = after(z + added if skip else added)
    final = {"last": lambda: before(z[:, -1]), "first": lambda: before(z[:, 0]), "mean": lambda: before(z).mean(axis=1)}
    out = jnp.matmul(final[readout](), weights.readout.T, precision=MATMUL_PRECISION)
    return out / math.sqrt(weights.readout.shape[-1])


# JIT-compiled once per shape; run eagerly, every operation would compile separately.
_compiled_output = partial(jax.jit, static_argnames=("readout", "skip", "layer_norm"))(network_output)


def checked_norm(layer_norm: Any) -> str:
    """Where tokens are normalised inside the network: "pre", "rms" or "post", and "" for nowhere."""
    if layer_norm in NORMS:
        return layer_norm
    if isinstance(layer_norm, str):
        raise fail("layer_norm", repr(layer_norm), f"True or False, or one of {', '.join(map(repr, NORMS))}")
    return "pre" if true_or_false("layer_norm", layer_norm) else ""


def _normalised(z: Array, centre: bool) -> Array:
    """Layer norm over the last axis, without gain; the constant keeps a token of zeros at zero."""
    centred = z - z.mean(axis=-1, keepdims=True) if centre else z
    return centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-12)


def readout_vectors(arch: Architecture, readout: Array) -> Float[Array, "output path out"]:
    """a/√N_a as the vectors of the one path above the top layer."""
    return readout.reshape(arch.outputs, 1, -1) / math.sqrt(arch.widths[-1])


def step_down(
    arch: Architecture,
    vectors: Float[Array, "output path out"],
    value: Array,
    layer: int,
    passing: Array | None = None,
) -> Array:
    """The vectors [output, path, N_l] of paths from layer l up, from those [output, path, N_{l+1}] above it.

    The readout counts as the block above the last layer, below vectors that select an output.

    Arguments:
        passing: vectors of the paths that skip the layer; default: `vectors`.
    """
    outputs, paths, _ = vectors.shape
    if layer == arch.layers:
        return jnp.einsum("dao,oi->dai", vectors, value[0], precision=MATMUL_PRECISION) / math.sqrt(arch.widths[-1])
    flat = vectors.reshape(outputs * paths, -1) / math.sqrt(arch.heads[layer] * arch.widths[layer])
    below = [jnp.matmul(flat, one, precision=MATMUL_PRECISION).reshape(outputs, paths, -1) for one in value]
    passing = vectors if passing is None else passing
    return jnp.concatenate([passing, *below] if arch.skip else below, axis=1)


def path_vectors(arch: Architecture, readout: Array, values: Sequence[Array]) -> Float[Array, "output path in"]:
    """e_π of all paths of one network, with all scales in."""
    vectors = readout_vectors(arch, readout)
    for layer in reversed(range(arch.layers)):
        vectors = step_down(arch, vectors, values[layer], layer)
    return vectors


def order_factor(arch: Architecture, vectors: Float[Array, "output path in"]) -> Float[Array, "row in"]:
    """F of one network with U^1 = F Fᵀ, rows (output, path): the path vectors without their factors ∏ 1/√H_l."""
    return vectors.reshape(arch.order_sizes[0], -1) / jnp.asarray(row_scales(arch))[:, None]


def row_scales(arch: Architecture) -> np.ndarray:
    """∏ 1/√H_l of each row (output, path) of U."""
    return np.tile(arch.path_scales, arch.outputs)


class PathData(eqx.Module):
    """Training data for samplers of weights, which need no tokens but only attentioned inputs.

    The feature axis of ξ/√N0 is reduced to its rank, and the examples are rotated to as many as there are features of
    all paths, if those are fewer.
    """

    features: Float[Array, "example path feature"]
    labels: Float[Array, "output example"]
    temperature: Float[Array, ""]
    deviations: Float[Array, " layer"]
    structure: Architecture = eqx.field(static=True)  # with variances 1, so that others do not compile again

    def outputs(self, weights: Weights) -> Float[Array, "output example"]:
        """f = Σ_π e_πᵀV⁰ ξ_π/√N0 of all (rotated) examples."""
        vectors = path_vectors(self.structure, weights.readout, weights.values)
        flat = vectors.reshape(-1, vectors.shape[-1])
        coefficients = jnp.matmul(flat, weights.embedding, precision=MATMUL_PRECISION)
        features = self.features.reshape(len(self.features), -1)
        return jnp.matmul(coefficients.reshape(len(vectors), -1), features.T, precision=MATMUL_PRECISION)


def effective_path_weights(arch: Architecture, weights: Weights) -> Float[Array, ...]:
    """e_π = (1/√N_a) aᵀ V^{L,h_L} (1/√N_L) ... (1/√N_2) V^{1,h_1} ∈ R^{N_1} (learning §5).

    With skips all widths are N: e_π = aᵀ ∏ V^{l,h_l}/√N over the layers where the path attends (learning §8).

    Returns:
        e [path, N_1], with a draw axis in front for several networks, and an output axis before the paths for several
        outputs.

    Example:
        >>> from thermoformer.learning import prior_weights
        >>> arch = Architecture((2, 3), 5)
        >>> effective_path_weights(arch, prior_weights(arch, 4, key=0)).shape
        (6, 5)
    """
    vectors, _ = _vectors_and_gram(arch, weights)
    return squeeze_output(vectors, axis=-3)


def order_parameter_from_weights(arch: Architecture, weights: Weights) -> Float[Array, "row row"]:
    """U^1 of given weights: e_π · e_π' / N_1, averaged over draws if there are several (learning §5).

    With several outputs its rows are (output, path), the output slowest.

    Example:
        >>> from thermoformer.learning import prior_weights
        >>> arch = Architecture((2,), 500)
        >>> order_parameter_from_weights(arch, prior_weights(arch, 4, key=0, draws=20)).round(0).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    return _vectors_and_gram(arch, weights)[1]


def _vectors_and_gram(arch: Architecture, weights: Weights) -> tuple[Array, Array]:
    # Networks that differ in their prior alone share a program.
    return _compiled_vectors(checked_architecture(arch).replace(variances=1.0), check_weights(arch, weights))


@partial(jax.jit, static_argnames="arch")
def _compiled_vectors(arch: Architecture, weights: Weights) -> tuple[Array, Array]:
    """e [*draw, output, path, N_1] without 1/√(N_1 ∏ H_l), and U averaged over draws."""

    def factor(readout: Array, *values: Array) -> Array:
        return order_factor(arch, path_vectors(arch, readout, values))

    factors = (jax.vmap(factor) if weights.embedding.ndim == 3 else factor)(weights.readout, *weights.values)
    gram = jnp.einsum("...ai,...bi->...ab", factors, factors, precision=MATMUL_PRECISION)
    vectors = math.sqrt(arch.widths[0]) * factors
    vectors = vectors.reshape(*factors.shape[:-2], arch.outputs, arch.paths, -1)
    return vectors, gram if gram.ndim == 2 else gram.mean(axis=0)

"""The network of learning §1: its architecture, its weights and the forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._keys import KeyLike, as_key, standard_normal
from .._precision import MATMUL_PRECISION
from .._validation import fail, one_of, positive_integer, positive_number, real_array, traced, true_or_false
from ._entries import attention_of_layers, instance, sequence
from .layout import Layout

READOUTS = ("last", "first", "mean")


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Architecture:
    """Sizes and prior variances of a deep attention network; a pytree whose leaves are the variances.

    Arguments:
        heads: heads of each attention layer, (H_1..H_L).
        widths: N_1..N_L and N_a, L+1 numbers: the fan-in of each layer and of the readout; one number is broadcast.
        variances: σ0², σ1²..σL², σa², L+2 prior variances (not standard deviations); one number is broadcast.
        outputs: D, the number of outputs.
        skip: whether every attention layer adds to its input, z^l = z^{l-1} + attention (learning §8); a path may
            then skip layers, and all widths must be equal.

    Example:
        >>> arch = Architecture(heads=(2, 2), widths=10, variances=1.0)
        >>> arch.paths, arch.widths, arch.variances
        (4, (10, 10, 10), (1.0, 1.0, 1.0, 1.0))
        >>> Architecture(heads=(2, 2), widths=10, skip=True).paths
        9
    """

    heads: tuple[int, ...]
    widths: tuple[int, ...]
    variances: tuple[float, ...]
    outputs: int
    skip: bool

    def __init__(
        self,
        heads: int | Sequence[int],
        widths: int | Sequence[int],
        variances: float | Sequence[float] = 1.0,
        *,
        outputs: int = 1,
        skip: bool = False,
    ) -> None:
        head_list = (heads,) if np.ndim(heads) == 0 else tuple(heads)  # type: ignore[arg-type]
        if not head_list:
            raise fail("heads", "no layers", "the number of heads of at least one layer")
        set_field = object.__setattr__  # the record is frozen once it is built
        set_field(self, "heads", tuple(positive_integer("heads", head) for head in head_list))
        layers = len(head_list)
        width_list = _broadcast("widths", widths, layers + 1, "N_1..N_L and N_a")
        set_field(self, "widths", tuple(positive_integer("widths", width) for width in width_list))
        variance_list = _broadcast("variances", variances, layers + 2, "σ0², σ1²..σL², σa²")
        set_field(self, "variances", tuple(positive_number("variances", variance) for variance in variance_list))
        set_field(self, "outputs", positive_integer("outputs", outputs))
        set_field(self, "skip", true_or_false("skip", skip))
        if skip and len(set(self.widths)) > 1:
            raise fail(
                "widths", self.widths, "equal widths with skip=True: a skip adds the input of a layer to its output"
            )

    def tree_flatten(self) -> tuple[tuple, tuple]:
        """For JAX: the variances, and the rest."""
        return self.variances, (self.heads, self.widths, self.outputs, self.skip)

    @classmethod
    def tree_unflatten(cls, rest: tuple, variances: Sequence[Any]) -> Architecture:
        """For JAX, which may put anything in place of the variances."""
        made = object.__new__(cls)
        heads, widths, outputs, skip = rest
        fields = {"heads": heads, "widths": widths, "variances": tuple(variances), "outputs": outputs, "skip": skip}
        for name, value in fields.items():
            object.__setattr__(made, name, value)
        return made

    @property
    def layers(self) -> int:
        """L, the number of attention layers."""
        return len(self.heads)

    @property
    def paths(self) -> int:
        """Π, the number of attention paths: ∏ H_l, or ∏ (1 + H_l) where a path may skip layers."""
        return math.prod(self.choices)

    @property
    def choices(self) -> tuple[int, ...]:
        """How many ways a path has through each layer: its heads and, with skips, past them."""
        return tuple(heads + self.skip for heads in self.heads)

    @property
    def order_sizes(self) -> tuple[int, ...]:
        """The sizes of U^1..U^{L+1}: D ∏_{k≥l} H_k, with 1 + H_k where a path may skip, and D for the readout."""
        return tuple(self.outputs * math.prod(self.choices[layer:]) for layer in range(self.layers + 1))

    @property
    def layout(self) -> Layout:
        """How the whitened order parameters lie in a vector, at widths above the number of paths."""
        return Layout(self.heads, self.outputs, self.skip)

    @property
    def parameters(self) -> int:
        """How many numbers the whitened order parameters hold."""
        return self.layout.count

    @property
    def deviations(self) -> np.ndarray:
        """σ0, σ1..σL, σa, the square roots of the variances, [L+2]."""
        if traced(self.variances):
            return jnp.sqrt(jnp.asarray(self.variances))  # type: ignore[return-value]
        return np.sqrt(self.variances)

    @property
    def infinite_width_variance(self) -> float:
        """σa² ∏_{l≥1} σ_l²: the diagonal entry of U^1 of a path through every layer in the limit of infinite width."""
        return math.prod(self.variances[1:])

    @property
    def path_scales(self) -> np.ndarray:
        """∏ 1/√H_l over the layers where a path attends, [path]: 1/√Π for every path where there are no skips."""
        hops = self.path_heads() >= 0
        return np.prod(np.where(hops, 1 / np.sqrt(self.heads), 1.0), axis=1)

    def path_heads(self) -> np.ndarray:
        """The head of each path in each layer, [path, layer], −1 where it skips; layer 1 slowest, skips first."""
        return np.stack(np.unravel_index(np.arange(self.paths), self.choices), axis=1) - int(self.skip)

    def path_names(self, head_names: Sequence[Sequence[str]] | None = None) -> tuple[str, ...]:
        """A readable name per path: its heads from layer 1 up, joined by an arrow; "skip" where it passes a layer by.

        Example:
            >>> Architecture((2, 1), 10).path_names([["good", "random"], ["uniform"]])
            ('good→uniform', 'random→uniform')
            >>> Architecture((1, 1), 10, skip=True).path_names()
            ('skip→skip', 'skip→0', '0→skip', '0→0')
        """
        names = head_names or [[str(head) for head in range(count)] for count in self.heads]
        if [len(layer) for layer in names] != list(self.heads):
            raise fail("head_names", [len(layer) for layer in names], f"one name per head, {list(self.heads)}")
        return tuple(
            "→".join(str(layer[int(head)]) if head >= 0 else "skip" for layer, head in zip(names, row, strict=True))
            for row in self.path_heads().tolist()
        )

    def order_names(self, head_names: Sequence[Sequence[str]] | None = None) -> tuple[str, ...]:
        """A name per row of U^1: the path and, where there are several outputs, the output before it.

        Example:
            >>> Architecture((2,), 10, outputs=2).order_names()
            ('0: 0', '0: 1', '1: 0', '1: 1')
        """
        paths = self.path_names(head_names)
        if self.outputs == 1:
            return paths
        return tuple(f"{output}: {path}" for output in range(self.outputs) for path in paths)

    def replace(self, **changes: Any) -> Architecture:
        """A copy with other heads, widths, variances, outputs or skips.

        Example:
            >>> Architecture((2, 2), 10).replace(widths=100).widths
            (100, 100, 100)
        """
        fields = {name: getattr(self, name) for name in ("heads", "widths", "variances", "outputs", "skip")}
        unknown = set(changes) - set(fields)
        if unknown:
            raise fail("changes", ", ".join(sorted(unknown)), "only " + ", ".join(fields))
        return Architecture(**(fields | changes))


def checked_architecture(value: Any) -> Architecture:
    """An architecture, and not its heads alone."""
    return instance("arch", value, Architecture, "an Architecture, as Architecture(heads=(2, 2), widths=100) makes it")


class Weights(NamedTuple):
    """All weights of a network, or of several (then every array has one more, leading, axis: draw).

    Fields:
        embedding: V⁰ [N_1, N0].
        values: V^{l,h}, one array [head, N_{l+1}, N_l] per layer, with N_{L+1} = N_a.
        readout: a [N_a], or [output, N_a] where there are several outputs.
    """

    embedding: Float[Array, "*draw out token_width"]
    values: tuple[Float[Array, "*draw head out in"], ...]
    readout: Float[Array, "*draw_and_output width"]


def prior_weights(arch: Architecture, token_width: int, *, key: KeyLike, draws: int | None = None) -> Weights:
    """Weights drawn from the prior: every entry N(0, σ²) with the variance of its layer.

    Arguments:
        token_width: N0.
        draws: how many networks; none gives one network without a draw axis.

    Example:
        >>> prior_weights(Architecture((2,), 5), token_width=3, key=0).values[0].shape
        (2, 5, 5)
    """
    checked_architecture(arch)
    token_width = positive_integer("token_width", token_width)
    lead = () if draws is None else (positive_integer("draws", draws),)
    keys = jax.random.split(as_key(key), arch.layers + 2)
    scales = arch.deviations
    embedding = scales[0] * standard_normal(keys[0], (*lead, arch.widths[0], token_width))
    values = tuple(
        scales[layer + 1] * standard_normal(keys[layer + 1], (*lead, heads, arch.widths[layer + 1], arch.widths[layer]))
        for layer, heads in enumerate(arch.heads)
    )
    readout = scales[-1] * standard_normal(keys[-1], (*lead, *_output_axis(arch), arch.widths[-1]))
    return Weights(embedding, values, readout)


def check_weights(arch: Architecture, weights: Weights) -> Weights:
    """The weights as float64 arrays whose shapes fit the architecture, with or without a leading draw axis."""
    checked_architecture(arch)
    instance("weights", weights, Weights, "Weights, as prior_weights makes them")
    sequence("weights.values", weights.values, "one array per layer")
    embedding = real_array("weights.embedding", weights.embedding)
    if embedding.ndim not in (2, 3) or embedding.shape[-2] != arch.widths[0]:
        expected = f"[{arch.widths[0]}, N0], with or without a draw axis in front"
        raise fail("weights.embedding", f"shape {embedding.shape}", expected)
    lead = embedding.shape[:-2]
    readout = real_array("weights.readout", weights.readout)
    if readout.shape != (*lead, *_output_axis(arch), arch.widths[-1]):
        expected = f"{(*lead, *_output_axis(arch), arch.widths[-1])}"
        raise fail("weights.readout", f"shape {readout.shape}", expected)
    if len(weights.values) != arch.layers:
        raise fail("weights.values", f"{len(weights.values)} layers", f"{arch.layers}")
    values = []
    for layer, value in enumerate(weights.values):
        value = real_array(f"weights.values[{layer}]", value)
        shape = (*lead, arch.heads[layer], arch.widths[layer + 1], arch.widths[layer])
        if value.shape != shape:
            raise fail(f"weights.values[{layer}]", f"shape {value.shape}", f"{shape}")
        values.append(jnp.asarray(value))
    return Weights(jnp.asarray(embedding), tuple(values), jnp.asarray(readout))


def forward(
    arch: Architecture,
    weights: Weights,
    x: Any,
    attention: Sequence[Any],
    *,
    readout: str = "last",
    layer_norm: bool = False,
) -> Float[Array, ...]:
    """The network's output f for explicit weights (learning §1, §7, §8).

    Arguments:
        weights: one network, or several with a leading draw axis.
        x: tokens [example, token, feature].
        attention: one array [example, head, query, key] per layer.
        readout: "last", "first" or "mean" query position.
        layer_norm: normalise every token before each attention layer and before the readout (mean 0, variance 1 over
            its entries, no learned gain). Outside the theory.

    Returns:
        f [example], with a draw axis in front for several networks and an output axis behind for several outputs.

    Example:
        >>> import numpy as np
        >>> from thermoformer.learning import uniform_attention
        >>> arch, x = Architecture((1,), 5), np.ones((4, 3, 2))
        >>> forward(arch, prior_weights(arch, 2, key=0), x, [uniform_attention(x)]).shape
        (4,)
    """
    x = real_array("x", x, ("example", "token", "feature"))
    layers = attention_of_layers(attention, x.shape[0], x.shape[1])
    one_of("readout", readout, READOUTS)
    layer_norm = true_or_false("layer_norm", layer_norm)
    weights = check_weights(arch, weights)
    if weights.embedding.shape[-1] != x.shape[2]:
        raise fail("weights.embedding", f"token width {weights.embedding.shape[-1]}", f"{x.shape[2]}, as in x")
    check_heads(arch, layers)
    arrays = tuple(jnp.asarray(layer) for layer in layers)
    return _compiled_output(weights, jnp.asarray(x), arrays, readout, skip=arch.skip, layer_norm=layer_norm)


def check_heads(arch: Architecture, attention: Sequence[Any]) -> None:
    """Attention must have the heads of the architecture, layer by layer."""
    heads = tuple(layer.shape[1] for layer in attention)
    if heads != arch.heads:
        raise fail("attention", f"heads {heads}", f"{arch.heads}")


def network_output(
    weights: Weights,
    x: Array,
    attention: Sequence[Array],
    readout: str,
    *,
    skip: bool = False,
    layer_norm: bool = False,
) -> Array:
    """`forward` without its checks, for use under jit, grad and vmap."""
    if weights.embedding.ndim == 3:
        one = partial(network_output, x=x, attention=attention, readout=readout, skip=skip, layer_norm=layer_norm)
        return jax.vmap(one)(weights)
    norm = _normalised if layer_norm else lambda z: z
    z = jnp.einsum("pti,oi->pto", x, weights.embedding, precision=MATMUL_PRECISION) / math.sqrt(x.shape[2])
    for value, layer in zip(weights.values, attention, strict=True):
        heads, _, width = value.shape
        attended = jnp.einsum("phts,psi->phti", layer, norm(z), precision=MATMUL_PRECISION)
        added = jnp.einsum("phti,hoi->pto", attended, value, precision=MATMUL_PRECISION) / math.sqrt(heads * width)
        z = z + added if skip else added
    final = {"last": lambda: norm(z[:, -1]), "first": lambda: norm(z[:, 0]), "mean": lambda: norm(z).mean(axis=1)}
    out = jnp.matmul(final[readout](), weights.readout.T, precision=MATMUL_PRECISION)
    return out / math.sqrt(weights.readout.shape[-1])


# JIT-compiled once per shape; run eagerly, every operation would compile separately.
_compiled_output = partial(jax.jit, static_argnames=("readout", "skip", "layer_norm"))(network_output)


def _normalised(z: Array) -> Array:
    """Layer norm over the last axis, without gain; the constant keeps a token of zeros at zero."""
    centred = z - z.mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-12)


def _output_axis(arch: Architecture) -> tuple[int, ...]:
    """One output has no axis of its own."""
    return () if arch.outputs == 1 else (arch.outputs,)


def _broadcast(name: str, value: Any, length: int, meaning: str) -> tuple:
    several = isinstance(value, (tuple, list)) or np.ndim(value) > 0
    values = tuple(value) if several else (value,) * length
    if len(values) != length:
        raise fail(name, f"{len(values)} numbers", f"one number or {length}: {meaning}")
    return values

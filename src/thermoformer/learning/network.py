"""The network of learning §1: its architecture, its weights and the forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._precision import MATMUL_PRECISION
from .._validation import fail, layers_of_attention, one_of, positive_integer, real_array
from ._keys import KeyLike, as_key

READOUTS = ("last", "first", "mean")


@dataclass(frozen=True)
class Architecture:
    """Sizes and prior variances of a deep attention network.

    Arguments:
        heads: heads of each attention layer, (H_1..H_L).
        widths: N_1..N_L and N_a, L+1 numbers: the fan-in of each layer and of the readout; one number is broadcast.
        variances: σ0², σ1²..σL², σa², L+2 prior variances (not standard deviations); one number is broadcast.
        outputs: 1; several outputs are not in this version, and refused.
        skip: False; skip connections are not in this version, and refused.

    Example:
        >>> arch = Architecture(heads=(2, 2), widths=10, variances=1.0)
        >>> arch.paths, arch.widths, arch.variances
        (4, (10, 10, 10), (1.0, 1.0, 1.0, 1.0))
    """

    heads: tuple[int, ...]
    widths: tuple[int, ...]
    variances: tuple[float, ...]

    def __init__(
        self,
        heads: int | Sequence[int],
        widths: int | Sequence[int],
        variances: float | Sequence[float] = 1.0,
        *,
        outputs: int = 1,
        skip: bool = False,
    ) -> None:
        if outputs != 1:
            raise fail("outputs", repr(outputs), "1: several outputs are not in this version")
        if skip is not False:
            raise fail("skip", repr(skip), "False: skip connections are not in this version")
        head_list = (heads,) if np.ndim(heads) == 0 else tuple(heads)  # type: ignore[arg-type]
        if not head_list:
            raise fail("heads", "no layers", "the number of heads of at least one layer")
        set_field = object.__setattr__  # the record is frozen once it is built
        set_field(self, "heads", tuple(positive_integer("heads", head) for head in head_list))
        layers = len(head_list)
        width_list = _broadcast("widths", widths, layers + 1, "N_1..N_L and N_a")
        set_field(self, "widths", tuple(positive_integer("widths", width) for width in width_list))
        variance_list = _broadcast("variances", variances, layers + 2, "σ0², σ1²..σL², σa²")
        checked = tuple(float(real_array("variances", variance)) for variance in variance_list)
        if min(checked) <= 0:
            raise fail("variances", min(checked), "numbers above 0")
        set_field(self, "variances", checked)

    @property
    def layers(self) -> int:
        """L, the number of attention layers."""
        return len(self.heads)

    @property
    def paths(self) -> int:
        """Π = ∏ H_l, the number of attention paths."""
        return math.prod(self.heads)

    @property
    def order_sizes(self) -> tuple[int, ...]:
        """n_1..n_{L+1}: the size of U^l is n_l = ∏_{k≥l} H_k, and 1 for the readout."""
        return order_sizes(self.heads)

    @property
    def parameters(self) -> int:
        """How many numbers the whitened order parameters hold."""
        return parameter_count(self.heads)

    @property
    def infinite_width_variance(self) -> float:
        """σa² ∏_{l≥1} σ_l²: every diagonal entry of U^1 in the limit of infinite width."""
        return math.prod(self.variances[1:])

    def path_heads(self) -> np.ndarray:
        """The head that each path takes in each layer, [path, layer]; h_1 slowest, h_L fastest."""
        return np.stack(np.unravel_index(np.arange(self.paths), self.heads), axis=1)

    def path_names(self, head_names: Sequence[Sequence[str]] | None = None) -> tuple[str, ...]:
        """A readable name per path: its heads from layer 1 up, joined by an arrow.

        Example:
            >>> Architecture((2, 1), 10).path_names([["good", "random"], ["uniform"]])
            ('good→uniform', 'random→uniform')
        """
        names = head_names or [[str(head) for head in range(count)] for count in self.heads]
        if [len(layer) for layer in names] != list(self.heads):
            raise fail("head_names", [len(layer) for layer in names], f"one name per head, {list(self.heads)}")
        return tuple(
            "→".join(layer[int(head)] for layer, head in zip(names, row, strict=True)) for row in self.path_heads()
        )

    def replace(self, **changes: Any) -> Architecture:
        """A copy with other heads, widths or variances.

        Example:
            >>> Architecture((2, 2), 10).replace(widths=100).widths
            (100, 100, 100)
        """
        fields = {"heads": self.heads, "widths": self.widths, "variances": self.variances}
        unknown = set(changes) - set(fields)
        if unknown:
            raise fail("changes", ", ".join(sorted(unknown)), "only " + ", ".join(fields))
        return Architecture(**(fields | changes))


def order_sizes(heads: Sequence[int]) -> tuple[int, ...]:
    """n_1..n_{L+1}: the size of U^l is n_l = ∏_{k≥l} H_k, and 1 for the readout."""
    return tuple(math.prod(heads[layer:]) for layer in range(len(heads) + 1))


def parameter_count(heads: Sequence[int]) -> int:
    """How many numbers the lower triangles R_1..R_{L+1} hold."""
    return sum(size * (size + 1) // 2 for size in order_sizes(heads))


class Weights(NamedTuple):
    """All weights of a network, or of several (then every array has one more, leading, axis: draw).

    Fields:
        embedding: V⁰ [N_1, N0].
        values: V^{l,h}, one array [head, N_{l+1}, N_l] per layer, with N_{L+1} = N_a.
        readout: a [N_a].
    """

    embedding: Float[Array, "*draw out token_width"]
    values: tuple[Float[Array, "*draw head out in"], ...]
    readout: Float[Array, "*draw width"]


def prior_weights(arch: Architecture, token_width: int, *, key: KeyLike, draws: int | None = None) -> Weights:
    """Weights drawn from the prior: every entry N(0, σ²) with the variance of its layer.

    Arguments:
        token_width: N0.
        draws: how many networks; none gives one network without a draw axis.

    Example:
        >>> prior_weights(Architecture((2,), 5), token_width=3, key=0).values[0].shape
        (2, 5, 5)
    """
    token_width = positive_integer("token_width", token_width)
    lead = () if draws is None else (positive_integer("draws", draws),)
    keys = jax.random.split(as_key(key), arch.layers + 2)
    scales = np.sqrt(arch.variances)
    embedding = scales[0] * jax.random.normal(keys[0], (*lead, arch.widths[0], token_width))
    values = tuple(
        scales[layer + 1]
        * jax.random.normal(keys[layer + 1], (*lead, heads, arch.widths[layer + 1], arch.widths[layer]))
        for layer, heads in enumerate(arch.heads)
    )
    readout = scales[-1] * jax.random.normal(keys[-1], (*lead, arch.widths[-1]))
    return Weights(embedding, values, readout)


def check_weights(arch: Architecture, weights: Weights) -> Weights:
    """The weights as float64 arrays whose shapes fit the architecture, with or without a leading draw axis."""
    readout = real_array("weights.readout", weights.readout)
    if readout.ndim not in (1, 2) or readout.shape[-1] != arch.widths[-1]:
        raise fail("weights.readout", f"shape {readout.shape}", f"[{arch.widths[-1]}] or [draw, {arch.widths[-1]}]")
    lead = readout.shape[:-1]
    embedding = real_array("weights.embedding", weights.embedding)
    if embedding.ndim != 2 + len(lead) or embedding.shape[:-1] != (*lead, arch.widths[0]):
        raise fail("weights.embedding", f"shape {embedding.shape}", f"{[*lead, arch.widths[0], 'N0']}")
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
    arch: Architecture, weights: Weights, x: Any, attention: Sequence[Any], *, readout: str = "last"
) -> Float[Array, "*draw example"]:
    """The network's output f for explicit weights (learning §1).

    Arguments:
        weights: one network, or several with a leading draw axis.
        x: tokens [example, token, feature].
        attention: one array [example, head, query, key] per layer.
        readout: "last", "first" or "mean" query position.

    Example:
        >>> import numpy as np
        >>> from thermoformer.learning import uniform_attention
        >>> arch, x = Architecture((1,), 5), np.ones((4, 3, 2))
        >>> forward(arch, prior_weights(arch, 2, key=0), x, [uniform_attention(x)]).shape
        (4,)
    """
    x = real_array("x", x, ("example", "token", "feature"))
    layers = layers_of_attention(attention, x.shape[0], x.shape[1])
    one_of("readout", readout, READOUTS)
    weights = check_weights(arch, weights)
    if weights.embedding.shape[-1] != x.shape[2]:
        raise fail("weights.embedding", f"token width {weights.embedding.shape[-1]}", f"{x.shape[2]}, as in x")
    if tuple(layer.shape[1] for layer in layers) != arch.heads:
        raise fail("attention", f"heads {tuple(layer.shape[1] for layer in layers)}", f"{arch.heads}")
    return network_output(weights, jnp.asarray(x), tuple(jnp.asarray(layer) for layer in layers), readout)


def network_output(weights: Weights, x: Array, attention: Sequence[Array], readout: str) -> Array:
    """`forward` without its checks, for use under jit, grad and vmap."""
    if weights.readout.ndim == 2:
        return jax.vmap(lambda one: network_output(one, x, attention, readout))(weights)
    z = jnp.einsum("pti,oi->pto", x, weights.embedding, precision=MATMUL_PRECISION) / math.sqrt(x.shape[2])
    for value, layer in zip(weights.values, attention, strict=True):
        heads, _, width = value.shape
        attended = jnp.einsum("phts,psi->phti", layer, z, precision=MATMUL_PRECISION)
        z = jnp.einsum("phti,hoi->pto", attended, value, precision=MATMUL_PRECISION) / math.sqrt(heads * width)
    final = {"last": lambda: z[:, -1], "first": lambda: z[:, 0], "mean": lambda: z.mean(axis=1)}[readout]()
    return final @ weights.readout / math.sqrt(weights.readout.shape[-1])


def _broadcast(name: str, value: Any, length: int, meaning: str) -> tuple:
    values = (value,) * length if np.ndim(value) == 0 else tuple(value)
    if len(values) != length:
        raise fail(name, f"{len(values)} numbers", f"one number or {length}: {meaning}")
    return values

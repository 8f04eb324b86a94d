"""Sizes of a network: its heads, widths, prior variances and paths, and the layout of its order parameters.

Whitened order parameters lie in one vector of numbers (learning §3, §6–8). From the readout down to layer 1 every layer
has one block, the matrix [Z B] of its new vectors in units of the old:

    F_{L+1} = σa B_{L+1}          F_l = σ_l (I ⊗ F_{l+1}) B_l                          (no skips)
                                  F_l = [ F_{l+1} 0 ; σ_l (I ⊗ F_{l+1}) [Z_l B_l] ]    (skips)

B is lower triangular with a positive diagonal; if a width is smaller than the number of vectors it is a trapezoid
whose rows past the width have no diagonal entry. Z, which only skips have, is full. The vector holds the blocks of
layers 1..L and of the readout one after another; of each, row by row, the lower part of B with the logarithm of its
diagonal, then Z. Zero everywhere is B = I, Z = 0: the limit of infinite width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import numpy as np

from .._validation import fail, instance, numpy_for, positive_integer, positive_number, true_or_false


@dataclass(frozen=True)
class Block:
    """The sizes of one layer's [Z B]."""

    rows: int  # H_l times the rank of the vectors above
    columns: int  # of B: rows, or what the width leaves beside the old vectors
    old: int  # columns of Z: the rank of the vectors above with skips, else 0

    @property
    def triangle(self) -> int:
        """How many numbers the lower part of B holds."""
        return sum(min(row + 1, self.columns) for row in range(self.rows))

    @property
    def count(self) -> int:
        """How many numbers the block holds."""
        return self.triangle + self.rows * self.old

    @property
    def places(self) -> np.ndarray:
        """The index of each entry of B in the block's part of the vector; above the diagonal, one past its end."""
        place = np.full((self.rows, self.columns), self.count)
        place[np.tril(np.ones(place.shape, bool))] = np.arange(self.triangle)
        return place


@dataclass(frozen=True)
class Layout:
    """The blocks of layers 1..L and of the readout; hashable, so that a program is compiled once per layout."""

    heads: tuple[int, ...]
    outputs: int
    skip: bool
    blocks: tuple[Block, ...]
    # Whether the numbers follow the exact law at finite width, in which the diagonal entries of B have fewer degrees of
    # freedom one after another, and not its leading order at large width.
    finite: bool

    @classmethod
    @functools.cache
    def of(cls, heads: tuple[int, ...], outputs: int, skip: bool, widths: tuple[int, ...] | None = None) -> Layout:
        """The layout at large width or, given widths, of the exact law."""
        blocks: list[Block] = []
        rows, old = outputs, 0
        for layer in reversed(range(len(heads) + 1)):
            columns = rows if widths is None else min(rows, widths[layer] - old)
            blocks.insert(0, Block(rows, columns, old))
            if layer > 0:
                rows, old = heads[layer - 1] * (old + columns), skip * (old + columns)
        return cls(heads, outputs, skip, tuple(blocks), finite=widths is not None)

    @property
    def narrow(self) -> bool:
        """Whether some width is smaller than the number of vectors: U then has low rank, and modes are common."""
        return any(block.columns < block.rows for block in self.blocks)

    @property
    def count(self) -> int:
        """How many numbers the vector holds."""
        return sum(block.count for block in self.blocks)

    @property
    def layer(self) -> np.ndarray:
        """For each number: the block it belongs to, counted from 0."""
        return np.repeat(np.arange(len(self.blocks)), [block.count for block in self.blocks])

    @property
    def diagonal(self) -> np.ndarray:
        """For each number: whether it is the logarithm of a diagonal entry."""
        return np.concatenate([np.isin(np.arange(block.count), block.places.diagonal()) for block in self.blocks])

    @property
    def lost_freedom(self) -> np.ndarray:
        """For each log-diagonal: by how much its χ law has fewer degrees of freedom than the width; else 0."""
        lost = np.zeros(self.count)
        lost[self.diagonal] = np.concatenate([block.old + np.arange(block.columns) for block in self.blocks])
        return lost


class Architecture(eqx.Module):
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

    heads: tuple[int, ...] = eqx.field(static=True)
    widths: tuple[int, ...] = eqx.field(static=True)
    variances: tuple[float, ...]
    outputs: int = eqx.field(static=True)
    skip: bool = eqx.field(static=True)

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
        self.heads = tuple(positive_integer("heads", head) for head in head_list)
        width_list = _broadcast("widths", widths, len(head_list) + 1, "N_1..N_L and N_a")
        variance_list = _broadcast("variances", variances, len(head_list) + 2, "σ0², σ1²..σL², σa²")
        self.widths = tuple(positive_integer("widths", width) for width in width_list)
        self.variances = tuple(positive_number("variances", variance) for variance in variance_list)
        self.outputs, self.skip = positive_integer("outputs", outputs), true_or_false("skip", skip)
        if skip and len(set(self.widths)) > 1:
            raise fail("widths", self.widths, "equal widths with skip=True: each layer's output is added to its input")

    def __repr__(self) -> str:
        return f"Architecture({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @property
    def layers(self) -> int:
        """L, the number of attention layers."""
        return len(self.heads)

    @property
    def paths(self) -> int:
        """Π, the number of attention paths: ∏ H_l, or ∏ (1 + H_l) if a path may skip layers."""
        return math.prod(self.choices)

    @property
    def choices(self) -> tuple[int, ...]:
        """How many ways a path has through each layer: its heads and, with skips, past them."""
        return tuple(heads + self.skip for heads in self.heads)

    @property
    def order_sizes(self) -> tuple[int, ...]:
        """The sizes of U^1..U^{L+1}: D ∏_{k≥l} H_k, with 1 + H_k if a path may skip, and D for the readout."""
        return tuple(self.outputs * math.prod(self.choices[layer:]) for layer in range(self.layers + 1))

    @property
    def layout(self) -> Layout:
        """The layout of the whitened order parameters at widths above the number of paths."""
        return Layout.of(self.heads, self.outputs, self.skip)

    @property
    def finite_layout(self) -> Layout:
        """The layout of the exact law: the same for all widths at or above the number of vectors."""
        return Layout.of(self.heads, self.outputs, self.skip, self.widths)

    @property
    def parameters(self) -> int:
        """How many numbers the whitened order parameters hold."""
        return self.layout.count

    @property
    def deviations(self) -> np.ndarray:
        """σ0, σ1..σL, σa, the square roots of the variances, [L+2]."""
        numpy = numpy_for(self.variances)
        return numpy.sqrt(numpy.asarray(self.variances))

    @property
    def infinite_width_variance(self) -> float:
        """σa² ∏_{l≥1} σ_l²: the diagonal entry of U^1 of a path through every layer in the limit of infinite width."""
        return math.prod(self.variances[1:])

    @property
    def path_scales(self) -> np.ndarray:
        """∏ 1/√H_l over the layers where a path attends, [path]: 1/√Π for every path without skips."""
        return np.prod(np.where(self.path_heads() >= 0, 1 / np.sqrt(self.heads), 1.0), axis=1)

    def path_heads(self) -> np.ndarray:
        """The head of each path in each layer, [path, layer], −1 where it skips; first layer slowest, skips first."""
        return np.stack(np.unravel_index(np.arange(self.paths), self.choices), axis=1) - int(self.skip)

    def path_names(self, head_names: Sequence[Sequence[str]] | None = None) -> tuple[str, ...]:
        """A readable name per path: its heads, first layer first, joined by an arrow; "skip" where it skips a layer.

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
        """A name per row of U^1: the path and, with several outputs, the output before it.

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
        unknown = set(changes) - set(vars(self))
        if unknown:
            raise fail("changes", ", ".join(sorted(unknown)), "only " + ", ".join(vars(self)))
        return Architecture(**(vars(self) | changes))


def checked_architecture(value: Any) -> Architecture:
    """The value, if it is an architecture."""
    return instance("arch", value, Architecture, "an Architecture, as Architecture(heads=(2, 2), widths=100) makes it")


def squeeze_output(values: Any, axis: int = -1) -> Any:
    """An array without its axis of outputs if the network has a single one."""
    return values.squeeze(axis) if values.shape[axis] == 1 else values


def _broadcast(name: str, value: Any, length: int, meaning: str) -> tuple:
    several = isinstance(value, (tuple, list)) or np.ndim(value) > 0
    values = tuple(value) if several else (value,) * length
    if len(values) != length:
        raise fail(name, f"{len(values)} numbers", f"one number or {length}: {meaning}")
    return values

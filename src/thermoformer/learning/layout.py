"""How the whitened order parameters of an architecture lie in one vector of numbers (learning §3, §6–8).

From the readout down to layer 1 every layer has one block, the matrix [Z B] of its new vectors in units of the old:

    F_{L+1} = σa B_{L+1}          F_l = σ_l (I ⊗ F_{l+1}) B_l                          (no skips)
                                  F_l = [ F_{l+1} 0 ; σ_l (I ⊗ F_{l+1}) [Z_l B_l] ]    (skips)

B is lower triangular with a positive diagonal; where a width is smaller than the number of vectors it is a trapezoid
whose rows past the width have no diagonal entry. Z, which only skips have, is full. The vector holds the blocks of
layers 1..L and of the readout one after another; of each, row by row, the lower part of B with the logarithm of its
diagonal, then Z. Zero everywhere is B = I, Z = 0: the limit of infinite width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Block:
    """The sizes of one layer's [Z B].

    Fields:
        rows: H_l times the rank of the vectors above.
        columns: of B: rows, or what the width leaves beside the old vectors.
        old: columns of Z: the rank of the vectors above with skips, else 0.
    """

    rows: int
    columns: int
    old: int

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
        """Where each entry of B sits in the block's part of the vector, past its end above the diagonal."""
        place = np.full((self.rows, self.columns), self.count)
        lower = np.tril(np.ones((self.rows, self.columns), bool))
        place[lower] = np.arange(self.triangle)
        return place

    @property
    def diagonal(self) -> np.ndarray:
        """Where the diagonal of B sits in the block's part of the vector."""
        return np.diagonal(self.places).copy()


@dataclass(frozen=True)
class Layout:
    """The blocks of an architecture; hashable, so that a program is compiled once per layout.

    Fields:
        heads, outputs, skip: of the architecture.
        ranks: most columns that [Z B] may have in layers 1..L and the readout, where a width limits them; None where
            none does.
        finite: whether the numbers follow the exact law at finite width, in which the diagonal entries of B have
            fewer degrees of freedom one after another, and not its leading order at large width.

    Example:
        >>> Layout((2, 2)).blocks[0], Layout((2, 2)).count
        (Block(rows=4, columns=4, old=0), 14)
    """

    heads: tuple[int, ...]
    outputs: int = 1
    skip: bool = False
    ranks: tuple[int, ...] | None = None
    finite: bool = False

    @classmethod
    def at_finite_width(cls, heads: tuple[int, ...], outputs: int, skip: bool, widths: Sequence[int]) -> Layout:
        """The layout of the exact law: the same for all widths at or above the number of vectors.

        Example:
            >>> Layout.at_finite_width((2, 2), 1, False, (3, 10, 10)).blocks[0]
            Block(rows=4, columns=3, old=0)
        """
        full = cls(heads, outputs, skip)
        limits = tuple(min(width, block.old + block.columns) for width, block in zip(widths, full.blocks, strict=True))
        cut = any(limit < block.old + block.columns for limit, block in zip(limits, full.blocks, strict=True))
        return cls(heads, outputs, skip, limits if cut else None, finite=True)

    @property
    def narrow(self) -> bool:
        """Whether some width is smaller than the number of vectors: U then has low rank, and modes are common."""
        return self.ranks is not None

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of layers 1..L and of the readout."""
        limits = self.ranks or (None,) * (len(self.heads) + 1)
        found: list[Block] = []
        rows, old = self.outputs, 0
        for layer in reversed(range(len(self.heads) + 1)):
            limit = limits[layer]
            columns = rows if limit is None else min(rows, limit - old)
            found.insert(0, Block(rows, columns, old))
            rank = old + columns
            if layer > 0:
                rows, old = self.heads[layer - 1] * rank, rank if self.skip else 0
        return tuple(found)

    @property
    def count(self) -> int:
        """How many numbers the vector holds."""
        return sum(block.count for block in self.blocks)

    @cached_property
    def layer(self) -> np.ndarray:
        """For each number: the block it belongs to, counted from 0."""
        return np.repeat(np.arange(len(self.blocks)), [block.count for block in self.blocks])

    @cached_property
    def diagonal(self) -> np.ndarray:
        """For each number: whether it is the logarithm of a diagonal entry."""
        found = np.zeros(self.count, bool)
        start = 0
        for block in self.blocks:
            found[start + block.diagonal] = True
            start += block.count
        return found

    @cached_property
    def lost_freedom(self) -> np.ndarray:
        """For each log-diagonal: by how much its χ law has fewer degrees of freedom than the width; else 0."""
        lost = np.zeros(self.count)
        start = 0
        for block in self.blocks:
            lost[start + block.diagonal] = block.old + np.arange(len(block.diagonal))
            start += block.count
        return lost

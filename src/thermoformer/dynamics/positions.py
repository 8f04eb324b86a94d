"""Positional bits: which positions a context has, and how they repeat."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._validation import fail, positive_integer

# The usual context is 2^bits, so a small file with many positional bits can ask for any size.
LARGEST_CONTEXT = 2**16


def binary_positions(context: int, bits: int) -> np.ndarray:
    """[context, bit]: binary digits of 0, 1, ..., most significant first, with −1 for 0.

    Example:
        >>> binary_positions(4, 2).astype(int).tolist()
        [[-1, -1], [-1, 1], [1, -1], [1, 1]]
    """
    digits = (np.arange(context)[:, None] >> np.arange(bits)[::-1]) & 1
    return 2.0 * digits - 1.0


def context_and_positions(context: Any, positions: Any, bits: int) -> tuple[int, np.ndarray]:
    """The context length L and the bits of its positions [context, bit], checked.

    Arguments:
        context: L, or nothing: then the length of the positions, or 2^bits.
        positions: [context, bit], ±1, or nothing: binary digits.
        bits: positional bits of the features.
    """
    if positions is None:
        if context is None and bits == 0:
            raise fail("context", "nothing", "the context length: without positional bits there is no usual one")
        length = 2**bits if context is None else positive_integer("context", context)
        if length > LARGEST_CONTEXT:
            raise fail("context", length, f"at most {LARGEST_CONTEXT} tokens; set it if there are many positional bits")
        if bits and length > 2**bits:
            expected = f"at most {2**bits}, or positions for all: {bits} bits count no further"
            raise fail("context", length, expected)
        return length, binary_positions(length, bits)
    table = np.asarray(positions, np.float64)
    if table.ndim != 2 or table.shape[1] != bits:
        raise fail("positions", f"shape {table.shape}", f"[context, {bits}]: one row of bits per position")
    if not np.isin(table, (-1, 1)).all():
        raise fail("positions", "entries other than ±1", "±1 only")
    length = len(table) if context is None else positive_integer("context", context)
    if length != len(table):
        raise fail("context", length, f"{len(table)}, the length of the positions")
    return length, table


def rotation_period(table: np.ndarray) -> int:
    """After how many rotations a table [slot, ...] is itself again.

    Example:
        >>> rotation_period(np.array([[0.0], [1.0], [0.0], [1.0]]))
        2
    """
    return next(shift for shift in range(1, len(table) + 1) if np.array_equal(np.roll(table, shift, axis=0), table))

"""Joint classes: the distinct columns over all four roles, and how many bits of a finite network have each.

Bits with the same column are exchangeable, so a finite network is known by its counts (dynamics §5).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from .._validation import fail
from .site_classes import CORRELATION_TOLERANCE, ROLES, Arrays

# Beyond these sizes a table of all joint columns is larger than the bits that one could draw instead.
_LARGEST_TABLE = 2**16
_LARGEST_DRAW = 10**7


class JointClasses(NamedTuple):
    """Distinct joint columns over all roles.

    Fields:
        columns: role to o [feature, class]; v, q, k [head, feature, class].
        counts: how many bits have each column, or what fraction of them, [class].
    """

    columns: Mapping[str, np.ndarray]
    counts: np.ndarray


def merge(columns: Arrays, counts: np.ndarray) -> JointClasses:
    """Equal columns as one, in the order of their first appearance; columns that no bit has are left out."""
    present = counts > 0
    rows = np.concatenate([columns[role].reshape(-1, len(counts)) for role in ROLES])[:, present].T
    _, first, members = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    totals = np.zeros(len(first), counts.dtype)
    np.add.at(totals, members.reshape(-1), counts[present])
    return JointClasses({role: columns[role][..., present][..., first[order]] for role in ROLES}, totals[order])


def whole_counts(fractions: np.ndarray, bits: int) -> np.ndarray | None:
    """Fractions of the bits as whole numbers that add up, or None if they are not whole."""
    counts = fractions * bits
    whole = np.rint(counts)
    # Fractions such as 1/3 are rounded once, so a count is off by round-off, never by a visible part of a bit.
    if np.abs(counts - whole).max() > min(1e-2, 1e-9 * max(1.0, counts.max())) or whole.sum() != bits:
        return None
    return whole.astype(np.int64)


def draw(
    signs: np.ndarray, weights: Arrays, bits: int, generator: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Columns and counts of bits drawn from a law that has the given site classes.

    o = s with probability P_s, the weight of s for o; given s every bit of another role by itself, mean weights/P_s.
    """
    probabilities = weights["o"][:, 0].clip(0)
    others = np.concatenate([weights[role].reshape(len(signs), -1) for role in ROLES[1:]], axis=1)
    own = np.abs(weights["o"] - probabilities[:, None] * signs).max()
    excess = (np.abs(others) - probabilities[:, None]).max()
    if max(own, excess, abs(probabilities.sum() - 1)) > 10 * CORRELATION_TOLERANCE:
        raise fail("features", "correlations that no ±1 patterns have", "features whose bits can be drawn")
    present = probabilities > 0
    signs, others, probabilities = signs[present], others[present], probabilities[present]
    means = (others / probabilities[:, None]).clip(-1, 1)
    sites = generator.multinomial(bits, probabilities / probabilities.sum())

    width = others.shape[1]
    if len(signs) * 2**width <= _LARGEST_TABLE:
        table = np.array(list(itertools.product((-1.0, 1.0), repeat=width)))
        laws = np.prod((1 + table * means[:, None]) / 2, axis=2)
        counts = np.array([generator.multinomial(n, law / law.sum()) for n, law in zip(sites, laws, strict=True)])
        site, other = np.nonzero(counts)
        rows, counts = np.concatenate([signs[site], table[other]], axis=1), counts[site, other]
    elif bits <= _LARGEST_DRAW:
        site = np.repeat(np.arange(len(signs)), sites)
        drawn = np.where(generator.random((bits, width)) < (1 + means[site]) / 2, 1.0, -1.0)
        rows, counts = np.concatenate([signs[site], drawn], axis=1), np.ones(bits, np.int64)
    else:
        raise fail("bits", bits, f"at most {_LARGEST_DRAW}: with {width} other bits per site each is drawn by itself")
    columns, start = {}, 0
    for role in ROLES:
        shape = weights[role].shape[1:]
        stop = start + int(np.prod(shape))
        columns[role] = rows[:, start:stop].T.reshape(*shape, -1)
        start = stop
    return columns, counts

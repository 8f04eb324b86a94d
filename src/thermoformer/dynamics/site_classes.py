"""Classes of bits: bits with equal columns are exchangeable, so a network is known by its columns and their shares.

Site classes are the distinct columns of the o patterns, all that the mean-field map knows of the bits (dynamics §2).
Because tanh is odd, a class s and its mirror −s enter every sum with opposite signs and are kept as one, the one whose
first entry is +1. The same information is in the odd correlations ⟨o_B α_a⟩, B any odd subset of the features: the two
are Walsh–Hadamard transforms of each other. Joint classes are the distinct columns over all four roles, which a finite
network needs (dynamics §5).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .._validation import fail

ROLES = ("o", "v", "q", "k")

# A set of correlations has 2^(M−1) rows: at 20 features half a million, beyond which a mistake is likelier than a use.
LARGEST_FEATURES = 20
# Correlations are averages over bits, known to a few units of round-off.
CORRELATION_TOLERANCE = 1e-9
# Weights that the transform should have made 0 carry its round-off, some 1e-16 per level.
ZERO_WEIGHT = 1e-14
# Beyond these sizes a table of all joint columns is larger than the bits that one could draw instead.
_LARGEST_TABLE, _LARGEST_DRAW = 2**16, 10**7

Arrays = Mapping[str, np.ndarray]


def from_columns(columns: Arrays, fractions: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Signs [class, feature] and weights [class, ..., feature] of explicit columns [..., feature, column]."""
    present = fractions > 0
    flips = columns["o"][0, present]
    signs, members = np.unique((columns["o"][:, present] * flips).T, axis=0, return_inverse=True)
    weights = {}
    for role in ROLES:
        signed = np.moveaxis(columns[role][..., present] * (fractions[present] * flips), -1, 0)
        weights[role] = np.zeros((len(signs), *signed.shape[1:]))
        np.add.at(weights[role], members.reshape(-1), signed)
    return signs, weights


def all_signs(features: int) -> np.ndarray:
    """Every sign vector that starts with +1, [class, feature], in the order of `numpy.unique`."""
    _check_count(features)
    return np.array([(1.0, *rest) for rest in itertools.product((-1.0, 1.0), repeat=features - 1)])


def odd_subsets(features: int) -> list[tuple[int, ...]]:
    """Odd subsets of the features 0..features−1, by size and then in lexicographic order."""
    _check_count(features)
    return [subset for size in range(1, features + 1, 2) for subset in itertools.combinations(range(features), size)]


def _check_count(features: int) -> None:
    if features > LARGEST_FEATURES:
        raise fail("features", features, f"at most {LARGEST_FEATURES}: there are 2^(features−1) site classes")


def _subset_name(subset: Sequence[int], role: str, feature: int) -> str:
    """A correlation as one reads it, counted from 1: "⟨o_1 o_2 o_3 v_1⟩"."""
    return f"⟨{' '.join(f'o_{b + 1}' for b in subset)} {role}_{feature + 1}⟩"


def _signs_name(signs: np.ndarray) -> str:
    return "(" + "".join("+" if sign > 0 else "−" for sign in signs) + ")"


def odd_correlations(signs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """⟨o_B α_a⟩ = Σ_s (Π_{b∈B} s_b) weights[s, ..., a] over odd subsets B, [subset, ..., feature]."""
    products = np.array([signs[:, subset].prod(axis=1) for subset in odd_subsets(signs.shape[1])])
    return np.tensordot(products, weights, axes=1)


def from_odd_correlations(correlations: np.ndarray) -> np.ndarray:
    """Weights of `all_signs` from correlations [subset, ..., feature]: the transform that undoes `odd_correlations`."""
    features = correlations.shape[-1]
    # With s_1 = + an odd subset is known by its members among the features 2..M, and any subset of these is possible.
    # So the sum over odd subsets is a full Walsh–Hadamard transform over M − 1 signs, done one sign at a time.
    table = np.zeros((2,) * (features - 1) + correlations.shape[1:])
    for subset, row in zip(odd_subsets(features), correlations, strict=True):
        table[tuple(int(b in subset) for b in range(1, features))] = row
    for axis in range(features - 1):
        even, odd = np.take(table, 0, axis), np.take(table, 1, axis)
        table = np.stack([even - odd, even + odd], axis) / 2
    return table.reshape(correlations.shape)


def check_possible(correlations: Arrays, signs: np.ndarray, weights: Arrays) -> None:
    """Refuse correlations that no joint distribution of ±1 bits has; the conditions are necessary and sufficient.

    With P_s = weights of o for feature 1, the classes must be probabilities whose own bits are s, and a mean of any
    other role within a class must lie in [−1, 1]. Bits drawn with these means, independently given s, then have them.
    """
    advice = "correlations of ±1 features (insist=True takes them anyway)"
    subsets = odd_subsets(signs.shape[1])
    for role in ROLES:
        sizes = np.abs(correlations[role])
        if sizes.max() > 1 + CORRELATION_TOLERANCE:
            subset, *_, feature = at = np.unravel_index(sizes.argmax(), sizes.shape)
            head = "" if sizes.ndim == 2 or sizes.shape[1] == 1 else f" of head {at[1]}"
            name = _subset_name(subsets[subset], role, int(feature)) + head
            raise fail("correlations", f"{name} of size {sizes.max():.6g}", f"{advice}, none larger than 1")
    # o_a² = 1, so ⟨o_B o_a⟩ depends on the even set of features that B and a do not share: all its spellings agree.
    seen: dict[frozenset[int], tuple[str, float]] = {frozenset(): ("a square", 1.0)}
    for row, subset in enumerate(subsets):
        for feature, value in enumerate(correlations["o"][row].tolist()):
            name = _subset_name(subset, "o", feature)
            other, known = seen.setdefault(frozenset(subset) ^ {feature}, (name, value))
            if abs(value - known) > CORRELATION_TOLERANCE:
                raise fail("correlations", f"{name} = {value:.6g}", f"{advice}: it equals {other} = {known:.6g}")
    probabilities = weights["o"][:, 0]
    worst = int(probabilities.argmin())
    if probabilities[worst] < -CORRELATION_TOLERANCE:
        name = _signs_name(signs[worst])
        got = f"⟨o_B o_a⟩ that give o = {name} or its mirror the probability {probabilities[worst]:.6g}"
        raise fail("correlations", got, f"{advice}: probabilities of zero or more")
    for role in ROLES[1:]:
        excess = np.abs(weights[role]) - probabilities[:, None, None]
        if excess.max() > CORRELATION_TOLERANCE:
            at, head, feature = np.unravel_index(excess.argmax(), excess.shape)
            weight, sign = weights[role][at, head, feature], _signs_name(signs[at])
            heads = f" of head {head}" if excess.shape[1] > 1 else ""
            got = f"⟨o_B {role}_{feature + 1}⟩{heads} whose part from o = {sign} is {weight:.6g}"
            expected = f"{advice}: no larger than the probability {probabilities[at]:.6g} of that o"
            raise fail("correlations", got, expected)


def role_shape(role: str, features: int, heads: int, *width: int) -> tuple[int, ...]:
    """Shape of one role's array: o has no head axis."""
    return (features, *width) if role == "o" else (heads, features, *width)


class JointClasses(NamedTuple):
    """Distinct joint columns over all roles, and how many bits have each, or what fraction of them."""

    columns: Arrays  # role to o [feature, class]; v, q, k [head, feature, class]
    counts: np.ndarray  # [class]


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


def draw(signs: np.ndarray, weights: Arrays, bits: int, generator: np.random.Generator) -> tuple[Arrays, np.ndarray]:
    """Columns and counts of bits drawn from a law that has the given site classes; see `Features.joint_classes`."""
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
    shapes = [weights[role].shape[1:] for role in ROLES]
    parts = np.split(rows.T, np.cumsum([np.prod(shape) for shape in shapes])[:-1].astype(int))
    return {role: part.reshape(*shape, -1) for role, part, shape in zip(ROLES, parts, shapes, strict=True)}, counts

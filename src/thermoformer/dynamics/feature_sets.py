"""Ways to make features: the paper's, random ones of several kinds, permuted copies of one set (dynamics §2)."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from .._keys import KeyLike
from .._validation import fail, positive_integer, positive_number
from . import _feature_checks as checks
from .site_classes import LARGEST_FEATURES, ROLES, Arrays, all_signs, odd_subsets, role_shape

# Dynamics §2, the paper's features: three semantic segments, then two positional bits.
PAPER_TABLE = """
o -++|--
o -+-|+-
o +++|++
v -+-|--
v --+|+-
v -++|-+
q +--|+-
q ---|++
q +-+|--
k ---|--
k --+|--
k -+-|-+
"""


class FeatureSets(abc.ABC):
    """The generating constructors of `Features`: the paper's set, random sets of several kinds, permuted copies."""

    @classmethod
    @abc.abstractmethod
    def from_patterns(cls, semantic: Any, positional: Any = None, *, fractions: Any = None) -> Self:
        """From explicit patterns."""

    @classmethod
    @abc.abstractmethod
    def from_correlations(cls, correlations: Any, positional: Any = None, *, insist: bool = False) -> Self:
        """From odd correlations."""

    @classmethod
    @abc.abstractmethod
    def from_table(cls, table: str | Path) -> Self:
        """From a table of signs."""

    @classmethod
    @abc.abstractmethod
    def _from_classes(cls, signs: np.ndarray, weights: Arrays, positional: Arrays) -> Self:
        """From site classes."""

    @classmethod
    def paper(cls) -> Self:
        """The features of the paper: three segments, three features, two positional bits (dynamics §2).

        Example:
            >>> from thermoformer.dynamics.features import Features
            >>> Features.paper().columns["o"].astype(int).tolist()
            [[-1, 1, 1], [-1, 1, -1], [1, 1, 1]]
        """
        return cls.from_table(PAPER_TABLE)

    @classmethod
    def random(cls, bits: int, features: int, positional_bits: int = 2, heads: int = 1, *, key: KeyLike = 0) -> Self:
        """Independent fair signs for every role, feature and bit.

        Arguments:
            bits: N, how many semantic bits.
            features: M of each role.
            positional_bits, heads: how many.
            key: an integer or a JAX key.

        Example:
            >>> from thermoformer.dynamics.features import Features
            >>> Features.random(60, 3, key=1).columns["v"].shape
            (1, 3, 60)
        """
        return cls._random_columns("bits", bits, features, positional_bits, heads, key)

    @classmethod
    def segments(
        cls, segments: int = 3, features: int = 3, positional_bits: int = 2, heads: int = 1, *, key: KeyLike = 0
    ) -> Self:
        """Semantic bits in equal blocks, one fair sign per role, feature and block; the paper's features are such.

        Arguments:
            segments: how many blocks.
            features, positional_bits, heads, key: as in `random`.

        Example:
            >>> from thermoformer.dynamics.features import Features
            >>> Features.segments(4, key=1).fractions.tolist()
            [0.25, 0.25, 0.25, 0.25]
        """
        return cls._random_columns("segments", segments, features, positional_bits, heads, key)

    @classmethod
    def gaussian(
        cls, features: int, scale: float, positional_bits: int = 2, heads: int = 1, *, key: KeyLike = 0
    ) -> Self:
        """Random correlations: every ⟨o_b α_a⟩ normal with the given standard deviation, clipped to ±1.

        ⟨o_a o_a⟩ = 1 and ⟨o_a o_b⟩ = ⟨o_b o_a⟩; a larger odd product is the product of the pairs ⟨o_b α_a⟩ over its
        members. In general no patterns have such correlations: the mean-field map takes them, a finite network cannot.

        Arguments:
            features: M of each role.
            scale: standard deviation of a correlation.
            positional_bits, heads, key: as in `random`; positional bits are fair signs.

        Example:
            >>> from thermoformer.dynamics.features import Features
            >>> Features.gaussian(3, 0.2, key=1).classes
            4
        """
        features, positional_bits, heads = checks.sizes(features, positional_bits, heads)
        generator = checks.generator_of(key)
        correlations = gaussian_correlations(generator, features, heads, positive_number("scale", scale))
        positional = random_signs(generator, features, heads, positional_bits)
        return cls.from_correlations(correlations, positional, insist=True)

    @classmethod
    def uniform_means(cls, features: int, positional_bits: int = 2, heads: int = 1, *, key: KeyLike = 0) -> Self:
        """Independent feature bits, each feature with its own mean, uniform on [−1, 1]: correlations are products.

        Arguments:
            features: M of each role.
            positional_bits, heads, key: as in `random`; positional bits are fair signs.

        Example:
            >>> from thermoformer.dynamics.features import Features
            >>> Features.uniform_means(3, key=1).classes
            4
        """
        features, positional_bits, heads = checks.sizes(features, positional_bits, heads)
        generator = checks.generator_of(key)
        means = {role: generator.uniform(-1, 1, role_shape(role, features, heads)) for role in ROLES}
        signs, weights = independent_bits(means)
        return cls._from_classes(signs, weights, random_signs(generator, features, heads, positional_bits))

    @classmethod
    def permuted(
        cls,
        base_semantic: Any,
        base_positional: Any = None,
        permutations: Mapping[str, Sequence[int]] | None = None,
        *,
        fractions: Any = None,
    ) -> Self:
        """One set of patterns for all roles: o is the base, feature a of another role is base feature permutation[a].

        Arguments:
            base_semantic: ±1 patterns [feature, column].
            base_positional: ±1 patterns [feature, bit]; None for no positional bits.
            permutations: the features 0..M−1 in some order for each of v, q, k. If not given, they are shifted in a
                circle by 1, 2, 3: v = [1, 2, 3, 0], q = [2, 3, 0, 1], k = [3, 0, 1, 2] for four features.
            fractions: as in `from_patterns`.

        Example:
            >>> from thermoformer.dynamics.features import Features
            >>> features = Features.permuted([[1, 1, -1], [1, -1, -1]])
            >>> features.columns["v"][0].astype(int).tolist()
            [[1, -1, -1], [1, 1, -1]]
        """
        base = checks.signs_of("base_semantic", base_semantic, (2,))
        order = np.arange(len(base))
        if permutations is None:
            permutations = {role: np.roll(order, -shift).tolist() for shift, role in enumerate(ROLES[1:], 1)}
        if not isinstance(permutations, Mapping) or set(permutations) != set(ROLES[1:]):
            raise fail("permutations", repr(permutations), "a mapping with the roles v, q, k")
        indices = {"o": order}
        for role in ROLES[1:]:
            if sorted(np.asarray(permutations[role]).tolist()) != order.tolist():
                raise fail(
                    f"permutations[{role!r}]", permutations[role], f"the numbers 0..{len(base) - 1} in some order"
                )
            indices[role] = np.asarray(permutations[role], int)
        positional = None
        if base_positional is not None:
            bits = checks.signs_of("base_positional", base_positional, (2,))
            if len(bits) != len(base):
                raise fail("base_positional", f"{len(bits)} features", f"{len(base)}, as in base_semantic")
            positional = {role: bits[index] for role, index in indices.items()}
        return cls.from_patterns(
            {role: base[index] for role, index in indices.items()}, positional, fractions=fractions
        )

    @classmethod
    def _random_columns(
        cls, name: str, columns: int, features: int, positional_bits: int, heads: int, key: KeyLike
    ) -> Self:
        columns = positive_integer(name, columns)
        features, positional_bits, heads = checks.sizes(features, positional_bits, heads)
        generator = checks.generator_of(key)
        semantic = random_signs(generator, features, heads, columns)
        positional = random_signs(generator, features, heads, positional_bits)
        return cls.from_patterns(semantic, positional)


def random_signs(generator: np.random.Generator, features: int, heads: int, width: int) -> dict[str, np.ndarray]:
    """Independent fair signs: o [feature, width], the others [head, feature, width]."""
    return {role: generator.choice([-1.0, 1.0], role_shape(role, features, heads, width)) for role in ROLES}


def gaussian_correlations(
    generator: np.random.Generator, features: int, heads: int, scale: float
) -> dict[str, np.ndarray]:
    """Pair correlations from a clipped normal law, and products of pairs for the larger odd subsets."""
    subsets = odd_subsets(features)
    correlations = {}
    for role in ROLES:
        pairs = np.clip(generator.normal(0, scale, (features, *role_shape(role, features, heads))), -1, 1)
        if role == "o":
            pairs = np.triu(pairs, 1) + np.triu(pairs, 1).T + np.eye(features)
        correlations[role] = np.array([pairs[list(subset)].prod(axis=0) for subset in subsets])
    return correlations


def independent_bits(means: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Signs and weights of features whose bits are all independent with the given means, o [feature] and so on.

    Products of means are the correlations; written as classes they are p_s = Π_b (1 + s_b μ_b)/2 and its mirror.
    """
    features = len(means["o"])
    if features > LARGEST_FEATURES:
        raise fail("features", features, f"at most {LARGEST_FEATURES}: there are 2^(features−1) site classes")
    signs = all_signs(features)
    here, mirror = (np.prod((1 + sign * signs * means["o"]) / 2, axis=1) for sign in (1, -1))
    weights = {"o": (here + mirror)[:, None] * signs}
    for role in ROLES[1:]:
        weights[role] = (here - mirror)[:, None, None] * means[role]
    return signs, weights

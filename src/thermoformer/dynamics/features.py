"""Features: the four sets of patterns that an attention network reads and writes with (dynamics §1, §2).

Roles o (output), v (value), q (query), k (key) have M features each: ±1 patterns over the semantic and the positional
bits of a token. The mean-field map needs the patterns as site classes only; the finite network needs their columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Any, Self

import numpy as np
import xarray as xr

from .._files import npz_bytes, read_npz, write_safely
from .._keys import KeyLike
from .._validation import fail, positive_integer, real_array
from . import _feature_checks as checks
from . import feature_files, joint_classes, site_classes
from .feature_sets import FeatureSets
from .joint_classes import JointClasses
from .site_classes import ROLES, Arrays, role_shape


@dataclass(frozen=True, eq=False)
class Features(FeatureSets):
    """Features of the four roles; made by a `from_...` constructor or one of those in `FeatureSets`.

    Fields (float64, read-only):
        signs: site classes of the o patterns up to their overall sign, first entry +1, [class, feature].
        weights: p_s g_s − p_{−s} g_{−s} by role, o [class, feature]; v, q, k [class, head, feature]. The semantic part
            of an overlap is (1−ε) Σ_s weights[s, a] tanh(β Σ_b signs[s, b] A_b).
        positional: positional bits by role, o [feature, bit]; v, q, k [head, feature, bit]; there may be none.
        columns: semantic columns by role, o [feature, column]; v, q, k [head, feature, column]. None for features that
            are known by correlations only.
        fractions: the fraction of the semantic bits that has each column, [column]; None without columns.

    Example:
        >>> features = Features.paper()
        >>> features.features, features.heads, features.positional_bits, features.classes
        (3, 1, 2, 3)
        >>> features.signs.astype(int).tolist()
        [[1, -1, 1], [1, 1, -1], [1, 1, 1]]
    """

    signs: np.ndarray
    weights: Mapping[str, np.ndarray]
    positional: Mapping[str, np.ndarray]
    columns: Mapping[str, np.ndarray] | None = None
    fractions: np.ndarray | None = None

    def __post_init__(self) -> None:
        held = [self.weights, self.positional] + ([] if self.columns is None else [self.columns])
        arrays = [array for group in held for array in group.values()]
        for array in (self.signs, *arrays, *([] if self.fractions is None else [self.fractions])):
            array.setflags(write=False)

    @property
    def features(self) -> int:
        """M, the number of features of each role."""
        return self.signs.shape[1]

    @property
    def heads(self) -> int:
        """H, the number of attention heads; each has its own v, q and k."""
        return self.weights["v"].shape[1]

    @property
    def positional_bits(self) -> int:
        """B, the number of positional bits of a token."""
        return self.positional["o"].shape[1]

    @property
    def classes(self) -> int:
        """How many site classes there are."""
        return len(self.signs)

    # Constructors.

    @classmethod
    def from_patterns(cls, semantic: Any, positional: Any = None, *, fractions: Any = None) -> Self:
        """Features from explicit ±1 patterns.

        Arguments:
            semantic: role to o [feature, column]; v, q, k [feature, column] or [head, feature, column]. Or one array
                [role, feature, column], roles in the order o, v, q, k.
            positional: the same with the positional bits in place of the columns; None for no positional bits.
            fractions: the fraction of the semantic bits that has each column, [column]; all equal if not given, as when
                every column is one bit.

        Example:
            >>> import numpy as np
            >>> ones = np.ones((2, 4))
            >>> features = Features.from_patterns({"o": ones, "v": ones, "q": -ones, "k": ones})
            >>> features.weights["q"].tolist()
            [[[-1.0, -1.0]]]
        """
        columns = checks.patterns("semantic", semantic)
        features, width = columns["o"].shape
        heads = len(columns["v"])
        bits = checks.positional_patterns(positional, features, heads)
        if fractions is None:
            share = np.full(width, 1 / width)
        else:
            share = real_array("fractions", fractions, ("column",))
            if share.shape != (width,):
                raise fail("fractions", f"{len(share)} fractions", f"{width}, one per column of semantic")
            if share.min() < 0 or abs(share.sum() - 1) > 1e-9:
                raise fail("fractions", f"a sum of {share.sum():.6g}, smallest {share.min():.6g}", "probabilities")
            share = share / share.sum()
        signs, weights = site_classes.from_columns(columns, share)
        return cls(signs, weights, bits, columns, share)

    @classmethod
    def from_correlations(cls, correlations: Any, positional: Any = None, *, insist: bool = False) -> Self:
        """Features from their odd correlations, averages over the semantic bits.

        Arguments:
            correlations: role to ⟨o_B α_a⟩, o [subset, feature]; v, q, k [subset, feature] or [subset, head, feature].
                The subsets B are all odd subsets of the features by size, then in lexicographic order: for two features
                {1}, {2}; for three {1}, {2}, {3}, {1, 2, 3}.
            positional: as in `from_patterns`.
            insist: take correlations that no ±1 patterns have.

        Example:
            >>> pairs = [[1.0, 0.2], [0.2, 1.0]]
            >>> features = Features.from_correlations({"o": pairs, "v": pairs, "q": pairs, "k": pairs})
            >>> features.weights["o"].round(3).tolist()
            [[0.4, -0.4], [0.6, 0.6]]
        """
        by_role = checks.by_role("correlations", correlations)
        arrays = {role: real_array(f"correlations[{role!r}]", by_role[role]) for role in ROLES}
        for role, array in arrays.items():
            if array.ndim not in ((2,) if role == "o" else (2, 3)):
                expected = "[subset, feature]" if role == "o" else "[subset, feature] or [subset, head, feature]"
                raise fail(f"correlations[{role!r}]", f"shape {array.shape}", expected)
            arrays[role] = array if role == "o" or array.ndim == 3 else array[:, None]
        features, heads = arrays["o"].shape[1], arrays["v"].shape[1]
        subsets = len(site_classes.odd_subsets(features))
        for role, array in arrays.items():
            if array.shape != (shape := (subsets, *role_shape(role, features, heads))):
                expected = f"shape {shape}: {features} features have {subsets} odd subsets"
                raise fail(f"correlations[{role!r}]", f"shape {array.shape}", expected)
        bits = checks.positional_patterns(positional, features, heads)
        signs = site_classes.all_signs(features)
        weights = {role: site_classes.from_odd_correlations(array) for role, array in arrays.items()}
        if not insist:
            site_classes.check_possible(arrays, signs, weights)
        largest = np.max([np.abs(weight).reshape(len(signs), -1).max(axis=1) for weight in weights.values()], axis=0)
        kept = largest > site_classes.ZERO_WEIGHT
        return cls(signs[kept], {role: weight[kept] for role, weight in weights.items()}, bits)

    @classmethod
    def from_table(cls, table: str | Path) -> Self:
        """Features from a table that one can type: per pattern one line with its role and its signs.

        The lines of a role are its features in order. A bar divides semantic columns, which share the bits equally,
        from positional bits. With several heads the roles v, q, k carry the head, counted from 1: "v2 -+|+". What
        follows # is not read.

        Arguments:
            table: the text, or the path to a file with it.

        Example:
            >>> Features.from_table('''
            ...     o -++|-   # the only feature
            ...     v +-+|+
            ...     q +++|-
            ...     k --+|-
            ... ''').odd_correlations("v").round(3).tolist()
            [[[-0.333]]]
        """
        semantic, positional = feature_files.read_table(table)
        return cls.from_patterns(semantic, positional)

    @classmethod
    def _from_classes(cls, signs: np.ndarray, weights: Arrays, positional: Arrays) -> Self:
        return cls(signs, weights, positional)

    # What follows from them.

    def odd_correlations(self, role: str) -> np.ndarray:
        """⟨o_B α_a⟩ over the semantic bits for all odd subsets B, by size and then in lexicographic order.

        Arguments:
            role: "o" gives [subset, feature]; "v", "q" and "k" give [subset, head, feature].

        Example:
            >>> Features.paper().odd_correlations("o").round(3).tolist()[3]
            [-0.333, 0.333, 0.333]
        """
        if role not in ROLES:
            raise fail("role", repr(role), "one of 'o', 'v', 'q', 'k'")
        return site_classes.odd_correlations(self.signs, self.weights[role])

    def token_overlaps(self, x: Any, epsilon: float) -> dict[str, np.ndarray]:
        """Overlaps of one token with all features (dynamics §1).

        The overlap with o is its semantic part times 1−ε: the network never reads the positional part of o.

        Arguments:
            x: the token, [column and positional bit]: numbers in [−1, 1], averages over the bits of a column.
            epsilon: weight of the positional part.

        Returns: role to o [feature]; v, q, k [head, feature].

        Example:
            >>> features = Features.paper()
            >>> features.token_overlaps([-1, 1, 1, -1, -1], epsilon=0.02)["o"].round(3).tolist()
            [0.98, 0.327, 0.327]
        """
        columns, fractions = self._explicit()
        width = len(fractions) + self.positional_bits
        x = real_array("x", x, ("column and positional bit",))
        if x.shape != (width,):
            expected = f"{width}: {len(fractions)} columns and {self.positional_bits} positional bits"
            raise fail("x", f"{len(x)} entries", expected)
        if np.abs(x).max() > 1:
            raise fail("x", f"an entry of size {np.abs(x).max():.6g}", "entries in [−1, 1]")
        epsilon = checks.weight_of_positions(epsilon)
        semantic, bits = np.split(x, [len(fractions)])
        overlaps = {role: (1 - epsilon) * (columns[role] @ (fractions * semantic)) for role in ROLES}
        for role in ROLES[1:] if self.positional_bits else ():
            overlaps[role] = overlaps[role] + epsilon * (self.positional[role] @ bits) / self.positional_bits
        return overlaps

    def joint_classes(self, bits: int | None = None) -> JointClasses:
        """The distinct joint columns over all roles, and how many bits have each.

        Arguments:
            bits: N; the counts are then whole numbers, and N must allow that. Without it, counts are fractions.

        Example:
            >>> Features.paper().joint_classes(bits=99).counts.tolist()
            [33, 33, 33]
        """
        columns, fractions = self._explicit()
        if bits is None:
            return joint_classes.merge(columns, fractions)
        counts = joint_classes.whole_counts(fractions, positive_integer("bits", bits))
        if counts is None:
            period = lcm(*(Fraction(share).limit_denominator(10**6).denominator for share in fractions.tolist()))
            raise fail("bits", bits, f"a multiple of {period}: the columns' fractions then give whole numbers of bits")
        return joint_classes.merge(columns, counts)

    def drawn_classes(self, bits: int, key: KeyLike = 0) -> JointClasses:
        """The joint classes of a network of N bits: whole counts where the fractions allow it, else drawn at random.

        Bits are drawn from the columns by their fractions. Features known by correlations only are drawn from a law
        that has them: o = s with probability P_s, the weight of s for o, and given s every bit of another role by
        itself, with mean weights/P_s. The cost does not grow with N, unless there are more than 65 536 joint columns
        to choose from: then every bit is drawn.

        Arguments:
            bits: N, how many semantic bits.
            key: an integer or a JAX key.

        Example:
            >>> int(Features.uniform_means(2, key=1).drawn_classes(10**9).counts.sum())
            1000000000
        """
        return joint_classes.merge(*self.allocate(bits, key))

    def with_bits(self, bits: int, key: KeyLike = 0) -> Self:
        """The same features with N explicit bits, columns in order; `drawn_classes` says how bits are shared out.

        Arguments:
            bits: N, how many semantic bits.
            key: an integer or a JAX key, for bits that are drawn.

        Example:
            >>> Features.paper().with_bits(99).columns["o"].shape
            (3, 99)
        """
        columns, counts = self.allocate(bits, key)
        explicit = {role: np.repeat(columns[role], counts, axis=-1) for role in ROLES}
        return type(self).from_patterns(explicit, self.positional if self.positional_bits else None)

    # On disk, and labelled.

    def save(self, path: str | Path) -> None:
        """The features to a NumPy archive (.npz) under exactly this path, for `load`.

        Example:
            >>> import tempfile, pathlib
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "paper.npz"
            >>> Features.paper().save(path)
            >>> Features.load(path).classes
            3
        """
        if self.columns is None or self.fractions is None:
            arrays = {"signs": self.signs, **{f"weights_{role}": self.weights[role] for role in ROLES}}
            arrays |= {f"positional_{role}": self.positional[role] for role in ROLES}
        else:
            both = {role: np.concatenate([self.columns[role], self.positional[role]], axis=-1) for role in ROLES}
            arrays = {f"pattern_{role}": array for role, array in both.items()}
            arrays |= {"semantic_bits": np.asarray(len(self.fractions)), "fractions": self.fractions}
        write_safely(path, npz_bytes(arrays | {"positional_bits": self.positional_bits}), name="path")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Features from a NumPy archive: `pattern_{role}` and `semantic_bits`, perhaps `fractions`, as `save` writes.

        Other arrays in the archive are not used. Nothing is unpickled.
        """
        arrays = read_npz(path, name="path")
        if "signs" in arrays and "pattern_o" not in arrays:
            return cls._load_classes(path, arrays)
        semantic, positional = feature_files.split_patterns(path, arrays)
        return cls.from_patterns(semantic, positional, fractions=arrays.get("fractions"))

    @classmethod
    def _load_classes(cls, path: str | Path, arrays: Mapping[str, np.ndarray]) -> Self:
        needed = [f"{kind}_{role}" for kind in ("weights", "positional") for role in ROLES]
        if missing := [name for name in needed if name not in arrays]:
            raise fail("path", f"{str(path)!r} without {', '.join(missing)}", "the arrays signs, " + ", ".join(needed))
        signs = checks.signs_of("signs", arrays["signs"], (2,))
        classes, features = signs.shape
        weights = {role: real_array(f"weights_{role}", arrays[f"weights_{role}"]) for role in ROLES}
        heads = weights["v"].shape[1] if weights["v"].ndim == 3 else 0
        for role, weight in weights.items():
            if weight.shape != (shape := (classes, *role_shape(role, features, heads))):
                raise fail(f"weights_{role}", f"shape {weight.shape} in {str(path)!r}", f"shape {shape}")
        positional = checks.positional_patterns({role: arrays[f"positional_{role}"] for role in ROLES}, features, heads)
        return cls(signs, weights, positional)

    def to_xarray(self) -> xr.Dataset:
        """Site classes, positional bits and, where there are any, columns with named axes.

        Example:
            >>> dict(Features.paper().to_xarray().sizes)
            {'class': 3, 'feature': 3, 'positional_bit': 2, 'column': 3, 'head': 1}
        """
        variables: dict[str, Any] = {"signs": (("class", "feature"), self.signs)}
        for role in ROLES:
            axes = ("feature",) if role == "o" else ("head", "feature")
            variables[f"weights_{role}"] = (("class", *axes), self.weights[role])
            variables[f"positional_{role}"] = ((*axes, "positional_bit"), self.positional[role])
            if self.columns is not None:
                variables[f"columns_{role}"] = ((*axes, "column"), self.columns[role])
        if self.fractions is not None:
            variables["fractions"] = (("column",), self.fractions)
        return xr.Dataset(variables)

    def _explicit(self) -> tuple[Mapping[str, np.ndarray], np.ndarray]:
        if self.columns is None or self.fractions is None:
            raise fail("features", "features known by correlations only", "explicit columns; with_bits draws some")
        return self.columns, self.fractions

    def allocate(self, bits: int, key: KeyLike) -> tuple[Mapping[str, np.ndarray], np.ndarray]:
        """Columns and whole counts for N bits, not merged: explicit bits keep their order; see `drawn_classes`."""
        bits = positive_integer("bits", bits)
        generator = checks.generator_of(key)
        if self.columns is not None and self.fractions is not None:
            counts = joint_classes.whole_counts(self.fractions, bits)
            return self.columns, generator.multinomial(bits, self.fractions) if counts is None else counts
        return joint_classes.draw(self.signs, self.weights, bits, generator)

"""Features: the four sets of patterns that an attention network reads and writes with (dynamics §1, §2).

Roles o (output), v (value), q (query), k (key) have M features each: ±1 patterns over the semantic and the positional
bits of a token. The mean-field map needs the patterns as site classes only; the finite network needs their columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
import xarray as xr

from .._files import LARGEST_TEXT, npz_bytes, number_table, open_file, read_npy, read_npz, write_safely
from .._keys import KeyLike, as_key, numpy_generator
from .._validation import (
    InputError,
    fail,
    nonnegative_integer,
    one_number,
    positive_integer,
    positive_number,
    real_array,
    traced,
)
from . import site_classes
from .maps import pytree
from .site_classes import ROLES, Arrays, JointClasses, all_signs, odd_subsets, role_shape

# What `Features.from_file` takes, in words.
FILE_OF_SIGNS = (
    "an npz file or a table of signs, or a matrix of 1 and -1 (csv, txt, npy, npz) "
    "such as the two lines 1,-1,1 and -1,1,1"
)
_ROLE = "o1?|[vqk][0-9]{0,9}"
_ZIP, _NPY = b"PK", b"\x93NUMPY"
SIGNS = {"+": 1.0, "-": -1.0, "−": -1.0}
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


@pytree()
@dataclass(frozen=True, eq=False)
class Features:
    """Features of the four roles; made by one of the constructors below.

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
        >>> features.count, features.heads, features.positional_bits, features.classes
        (3, 1, 2, 3)
        >>> features.signs.astype(int).tolist()
        [[1, -1, 1], [1, 1, -1], [1, 1, 1]]
    """

    signs: np.ndarray
    weights: Arrays
    positional: Arrays
    columns: Arrays | None = None
    fractions: np.ndarray | None = None

    def __post_init__(self) -> None:
        for array in jax.tree.leaves(vars(self)):
            array.setflags(write=False)

    @property
    def count(self) -> int:
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
        """The number of site classes."""
        return len(self.signs)

    # Constructors.

    @classmethod
    def from_patterns(cls, semantic: Any, positional: Any = None, *, fractions: Any = None) -> Self:
        """Features from explicit ±1 patterns.

        Arguments:
            semantic: role to o [feature, column]; v, q, k [feature, column] or [head, feature, column]. Or one array
                [role, feature, column], roles in the order o, v, q, k. Or one array [feature, column]: the same
                patterns for all roles, as in a Hopfield network.
            positional: the same with the positional bits in place of the columns; None for no positional bits.
            fractions: the fraction of the semantic bits that has each column, [column]; equal by default, as when every
                column is one bit.

        Example:
            >>> ones = np.ones((2, 4))
            >>> features = Features.from_patterns({"o": ones, "v": ones, "q": -ones, "k": ones})
            >>> features.weights["q"].tolist()
            [[[-1.0, -1.0]]]
            >>> Features.from_patterns([[1, 1, -1], [1, -1, 1]]).columns["k"].astype(int).tolist()
            [[[1, 1, -1], [1, -1, 1]]]
        """
        columns = _patterns("semantic", _for_all_roles(semantic))
        heads, count, width = columns["v"].shape
        bits = _positional(_for_all_roles(positional), count, heads)
        share = np.full(width, 1 / width) if fractions is None else real_array("fractions", fractions, ("column",))
        if share.shape != (width,):
            raise fail("fractions", f"{len(share)} fractions", f"{width}, one per column of semantic")
        if share.min() < 0 or abs(share.sum() - 1) > 1e-9:
            raise fail("fractions", f"a sum of {share.sum():.6g}, smallest {share.min():.6g}", "probabilities")
        share = share if fractions is None else share / share.sum()
        return cls(*site_classes.from_columns(columns, share), bits, columns, share)

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
        arrays = _by_role("correlations", correlations, ("subset", "feature"), 1)
        count, heads = arrays["o"].shape[1], arrays["v"].shape[1]
        subsets = len(odd_subsets(count))
        why = f": {count} features have {subsets} odd subsets"
        _check_shapes("correlations", arrays, lambda role: (subsets, *role_shape(role, count, heads)), why)
        bits, signs = _positional(positional, count, heads), all_signs(count)
        weights = {role: site_classes.from_odd_correlations(array) for role, array in arrays.items()}
        if not insist:
            site_classes.check_possible(arrays, signs, weights)
        largest = np.max([np.abs(weight).reshape(len(signs), -1).max(axis=1) for weight in weights.values()], axis=0)
        kept = largest > site_classes.ZERO_WEIGHT
        return cls(signs[kept], {role: weight[kept] for role, weight in weights.items()}, bits)

    @classmethod
    def from_table(cls, table: str | Path) -> Self:
        """Features from a table of signs, or the path to one: per pattern one line with its role and its signs.

        The lines of a role are its features in order. A bar divides semantic columns, which share the bits equally,
        from positional bits. With several heads the roles v, q, k carry the head, counted from 1: "v2 -+|+". What
        follows # is not read.

        Example:
            >>> Features.from_table('''
            ...     o -++|-   # the only feature
            ...     v +-+|+
            ...     q +++|-
            ...     k --+|-
            ... ''').odd_correlations("v").round(3).tolist()
            [[[-0.333]]]
        """
        expected = "the text of a table or a path to one"
        # One line is never a whole table, so a string of one line can only be a path.
        if isinstance(table, Path) or (isinstance(table, str) and "\n" not in table):
            table = _text_of(Path(table), "table", expected)
        if not isinstance(table, str):
            raise fail("table", type(table).__name__, expected)
        return cls.from_patterns(*_read_table(table))

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Features from a file: what `save` wrote, a table of signs, or a matrix of ±1. Its content tells which it is.

        A matrix [feature, column] has the same patterns for all four roles, as in a Hopfield network, and no positional
        bits. It is text with one pattern per row, numbers separated by commas or spaces, or an npy file, or an npz file
        with one array.

        Arguments:
            path: the file.

        Example:
            >>> import tempfile
            >>> path = Path(tempfile.mkdtemp()) / "mine.csv"
            >>> _ = path.write_text("1,-1,1\\n-1,1,1\\n")
            >>> Features.from_file(path).columns["o"].astype(int).tolist()
            [[1, -1, 1], [-1, 1, 1]]
        """
        with open_file(path, name="features", expected=FILE_OF_SIGNS) as stream:
            beginning = stream.read(len(_NPY))
        if beginning.startswith(_ZIP):
            return cls.load(path)
        if beginning == _NPY:
            return _from_matrix(cls, path, read_npy(path, name="features"))
        lines = [line.split("#")[0].strip() for line in _text_of(path, "features", FILE_OF_SIGNS).splitlines()]
        if re.fullmatch(_ROLE, next(filter(None, lines), "").partition(" ")[0]):
            return cls.from_table("\n".join([*lines, ""]))
        try:
            matrix = number_table(re.split(r"\s*[,;]\s*|\s+", line) for line in lines)[1]
        except InputError as error:
            raise fail("features", f"{path} with {error.got}", FILE_OF_SIGNS) from error
        return _from_matrix(cls, path, matrix)

    @classmethod
    def paper(cls) -> Self:
        """The features of the paper: three segments, three features, two positional bits (dynamics §2).

        Example:
            >>> Features.paper().columns["o"].astype(int).tolist()
            [[-1, 1, 1], [-1, 1, -1], [1, 1, 1]]
        """
        return cls.from_table(PAPER_TABLE)

    @classmethod
    def random(cls, bits: int, features: int, positional_bits: int = 2, heads: int = 1, *, key: KeyLike = 0) -> Self:
        """Independent fair signs for every role, feature and bit.

        Arguments:
            bits, features, positional_bits, heads: their numbers; each role has as many features.
            key: an integer or a JAX key.

        Example:
            >>> Features.random(60, 3, key=1).columns["v"].shape
            (1, 3, 60)
        """
        generator, bits = _generator(features, positional_bits, heads, key), positive_integer("bits", bits)
        semantic, positional = (_fair_signs(generator, features, heads, width) for width in (bits, positional_bits))
        return cls.from_patterns(semantic, positional)

    @classmethod
    def segments(
        cls, segments: int = 3, features: int = 3, positional_bits: int = 2, heads: int = 1, *, key: KeyLike = 0
    ) -> Self:
        """Like `random`, with the semantic bits in equal blocks of one sign each, as the paper's features have them.

        Example:
            >>> Features.segments(4, key=1).fractions.tolist()
            [0.25, 0.25, 0.25, 0.25]
        """
        return cls.random(positive_integer("segments", segments), features, positional_bits, heads, key=key)

    @classmethod
    def gaussian(
        cls, features: int, scale: float, positional_bits: int = 2, heads: int = 1, *, key: KeyLike = 0
    ) -> Self:
        """Random correlations: every ⟨o_b α_a⟩ normal with standard deviation `scale`, clipped to ±1; else as `random`.

        ⟨o_a o_a⟩ = 1 and ⟨o_a o_b⟩ = ⟨o_b o_a⟩; a larger odd product is the product of the pairs ⟨o_b α_a⟩ over its
        members. In general no patterns have such correlations: the mean-field map takes them, a finite network cannot.

        Example:
            >>> Features.gaussian(3, 0.2, key=1).classes
            4
        """
        generator, scale = _generator(features, positional_bits, heads, key), positive_number("scale", scale)
        subsets, correlations = odd_subsets(features), {}
        for role in ROLES:
            pairs = np.clip(generator.normal(0, scale, (features, *role_shape(role, features, heads))), -1, 1)
            if role == "o":
                pairs = np.triu(pairs, 1) + np.triu(pairs, 1).T + np.eye(features)
            correlations[role] = np.array([pairs[list(subset)].prod(axis=0) for subset in subsets])
        positional = _fair_signs(generator, features, heads, positional_bits)
        return cls.from_correlations(correlations, positional, insist=True)

    @classmethod
    def uniform_means(cls, features: int, positional_bits: int = 2, heads: int = 1, *, key: KeyLike = 0) -> Self:
        """Like `random`, with infinitely many bits whose mean is uniform on [−1, 1] for each feature.

        Bits are independent, so correlations are products of these means.

        Example:
            >>> Features.uniform_means(3, key=1).classes
            4
        """
        generator, signs = _generator(features, positional_bits, heads, key), all_signs(features)
        means = {role: generator.uniform(-1, 1, role_shape(role, features, heads)) for role in ROLES}
        # As classes the products of means are p_s = Π_b (1 + s_b μ_b)/2 and its mirror.
        here, mirror = (np.prod((1 + sign * signs * means["o"]) / 2, axis=1) for sign in (1, -1))
        weights = {"o": (here + mirror)[:, None] * signs}
        weights |= {role: (here - mirror)[:, None, None] * means[role] for role in ROLES[1:]}
        return cls(signs, weights, _fair_signs(generator, features, heads, positional_bits))

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
            permutations: the features 0..M−1 in some order for each of v, q, k. By default they are shifted in a circle
                by 1, 2, 3: v = [1, 2, 3, 0], q = [2, 3, 0, 1], k = [3, 0, 1, 2] for four features.
            fractions: as in `from_patterns`.

        Example:
            >>> features = Features.permuted([[1, 1, -1], [1, -1, -1]])
            >>> features.columns["v"][0].astype(int).tolist()
            [[1, -1, -1], [1, 1, -1]]
        """
        base = _signs("base_semantic", base_semantic, ("feature", "column"))
        bits = base[:, :0]
        if base_positional is not None:
            bits = _signs("base_positional", base_positional, ("feature", "bit"))
        if len(bits) != len(base):
            raise fail("base_positional", f"{len(bits)} features", f"{len(base)}, as in base_semantic")
        order = np.arange(len(base))
        if permutations is None:
            permutations = {role: np.roll(order, -shift).tolist() for shift, role in enumerate(ROLES[1:], 1)}
        if not isinstance(permutations, Mapping) or set(permutations) != set(ROLES[1:]):
            raise fail("permutations", repr(permutations), "a mapping with the roles v, q, k")
        for role, given in permutations.items():
            if sorted(np.asarray(given).tolist()) != order.tolist():
                raise fail(f"permutations[{role!r}]", given, f"the numbers 0..{len(base) - 1} in some order")
        places = [order, *(np.asarray(permutations[role], int) for role in ROLES[1:])]
        return cls.from_patterns([base[at] for at in places], [bits[at] for at in places], fractions=fractions)

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
        columns, fractions = self.columns, self.fractions
        if columns is None or fractions is None:
            raise fail("features", "features known by correlations only", "explicit columns; with_bits draws some")
        x = real_array("x", x, ("column and positional bit",))
        if len(x) != (width := len(fractions) + self.positional_bits):
            expected = f"{width}: {len(fractions)} columns and {self.positional_bits} positional bits"
            raise fail("x", f"{len(x)} entries", expected)
        if np.abs(x).max() > 1:
            raise fail("x", f"an entry of size {np.abs(x).max():.6g}", "entries in [−1, 1]")
        epsilon = share_of_positions(epsilon)
        semantic, bits = np.split(x, [len(fractions)])
        overlaps = {role: (1 - epsilon) * (columns[role] @ (fractions * semantic)) for role in ROLES}
        for role in ROLES[1:] if self.positional_bits else ():
            overlaps[role] = overlaps[role] + epsilon * (self.positional[role] @ bits) / self.positional_bits
        return overlaps

    def joint_classes(self, bits: int, key: KeyLike = 0) -> JointClasses:
        """The distinct joint columns over all roles in a network of N bits, and how many bits have each.

        The counts follow from the fractions of the columns. If these do not give whole numbers, bits are drawn at
        random. Features known by correlations only are drawn from a law that has them: o = s with probability P_s, the
        weight of s for o, and given s every bit of another role by itself, with mean weights/P_s. The cost does not
        grow with N, unless there are more than 65 536 joint columns to choose from: then every bit is drawn.

        Arguments:
            bits: N, the number of semantic bits.
            key: an integer or a JAX key, for bits that are drawn.

        Example:
            >>> Features.paper().joint_classes(bits=99).counts.tolist()
            [33, 33, 33]
            >>> int(Features.uniform_means(2, key=1).joint_classes(10**9).counts.sum())
            1000000000
        """
        return site_classes.merge(*self.allocate(bits, key))

    def with_bits(self, bits: int, key: KeyLike = 0) -> Self:
        """The same features with N explicit bits, columns in order.

        Arguments:
            bits, key: as in `joint_classes`.

        Example:
            >>> Features.paper().with_bits(99).columns["o"].shape
            (3, 99)
        """
        columns, counts = self.allocate(bits, key)
        explicit = {role: np.repeat(columns[role], counts, axis=-1) for role in ROLES}
        return type(self).from_patterns(explicit, self.positional)

    def allocate(self, bits: int, key: KeyLike) -> tuple[Arrays, np.ndarray]:
        """Columns and whole counts for N bits, not merged: explicit bits keep their order; see `joint_classes`."""
        bits, generator = positive_integer("bits", bits), numpy_generator(as_key(key))
        if self.columns is None or self.fractions is None:
            return site_classes.draw(self.signs, self.weights, bits, generator)
        counts = site_classes.whole_counts(self.fractions, bits)
        return self.columns, generator.multinomial(bits, self.fractions) if counts is None else counts

    # On disk, and labelled.

    def save(self, path: str | Path) -> None:
        """Writes the features to a NumPy archive (.npz) under exactly this path, for `load`.

        Features that are known by correlations only are kept as `signs`, `weights_{role}` and `positional_{role}`.

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
        """Features from a NumPy archive, as `save` writes it; nothing is unpickled.

        It holds `pattern_{o,v,q,k}` [feature, columns and positional bits] (v, q, k with a head axis first if there are
        several heads) and `semantic_bits`, the number of columns; perhaps `positional_bits` and, if the columns stand
        for unequal shares of the bits, `fractions`. Other arrays are not used. Or it holds one array [feature, column]
        of any other name, the same patterns for all roles.
        """
        arrays = read_npz(path, name="path")
        if len(arrays) == 1 and not re.match("pattern_|signs|weights_|positional_", name := next(iter(arrays))):
            return _from_matrix(cls, path, arrays[name])

        def named(kind: str, *also: str) -> dict[str, np.ndarray]:
            needed = [*(f"{kind}_{role}" for role in ROLES), *also]
            if missing := [name for name in needed if name not in arrays]:
                raise fail("path", f"{str(path)!r} without {', '.join(missing)}", "the arrays " + ", ".join(needed))
            return {role: arrays[f"{kind}_{role}"] for role in ROLES}

        if "signs" not in arrays or "pattern_o" in arrays:
            patterns = named("pattern", "semantic_bits")
            columns = positive_integer("semantic_bits", arrays["semantic_bits"][()])
            for role, pattern in patterns.items():
                if pattern.ndim not in (2, 3) or pattern.shape[-1] < columns:
                    expected = f"[feature, {columns} semantic bits and positional bits], perhaps with heads first"
                    raise fail(f"pattern_{role}", f"shape {pattern.shape} in {str(path)!r}", expected)
            bits = patterns["o"].shape[-1] - columns
            given = arrays.get("positional_bits", np.asarray(bits))
            if given.dtype.kind == "V" or not np.array_equal(given, bits):  # bytes without a type compare with nothing
                raise fail("positional_bits", f"{given!r} in {str(path)!r}", f"{bits}, as in pattern_o")
            semantic = {role: pattern[..., :columns] for role, pattern in patterns.items()}
            positional = {role: pattern[..., columns:] for role, pattern in patterns.items()}
            return cls.from_patterns(semantic, positional, fractions=arrays.get("fractions"))
        signs = _signs("signs", arrays["signs"], ("class", "feature"))
        weights = _by_role("weights", named("weights"), ("class", "feature"), 1)
        count, heads = signs.shape[1], weights["v"].shape[1]
        _check_shapes("weights", weights, lambda role: (len(signs), *role_shape(role, count, heads)))
        return cls(signs, weights, _positional(named("positional"), count, heads))

    def to_xarray(self) -> xr.Dataset:
        """Site classes, positional bits and, if there are any, columns with named axes.

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


def _roles(name: str, value: Any) -> dict[str, Any]:
    """A mapping with exactly the four roles, also from a sequence in the order o, v, q, k."""
    if not np.iterable(value):
        raise fail(name, type(value).__name__, "a mapping with the roles o, v, q, k")
    if isinstance(value, Mapping):
        if set(value) != set(ROLES):
            raise fail(name, f"roles {', '.join(map(repr, value))}", "the roles o, v, q, k")
        return {role: value[role] for role in ROLES}
    if len(given := list(value)) != len(ROLES):
        raise fail(name, f"{len(given)} arrays", "4, for the roles o, v, q, k in this order")
    return dict(zip(ROLES, given, strict=True))


def _by_role(name: str, value: Any, axes: tuple[str, ...], head_axis: int) -> dict[str, np.ndarray]:
    """Real arrays by role with the named axes; v, q, k have a head axis too, which one head may leave out."""
    with_head, arrays = (*axes[:head_axis], "head", *axes[head_axis:]), {}
    for role, given in _roles(name, value).items():
        array = real_array(f"{name}[{role!r}]", given)
        forms = [axes] if role == "o" else [axes, with_head]
        if array.ndim not in map(len, forms):
            expected = " or ".join(f"[{', '.join(form)}]" for form in forms)
            raise fail(f"{name}[{role!r}]", f"shape {array.shape}", expected)
        arrays[role] = array if array.ndim == len(forms[-1]) else np.expand_dims(array, head_axis)
    return arrays


def _signs(name: str, value: Any, axes: tuple[str, ...] | None = None) -> np.ndarray:
    """A float64 copy of an array with the named axes, all entries ±1."""
    array = np.array(real_array(name, value, axes))
    if (wrong := np.abs(array) != 1).any():
        raise fail(name, f"an entry of {array[wrong][0]:.6g}", "entries +1 and −1 only")
    return array


def _patterns(name: str, value: Any, count: int | None = None, heads: int | None = None) -> dict[str, np.ndarray]:
    """±1 patterns by role, all of one size; of given numbers of features and heads."""
    arrays = _by_role(name, value, ("feature", "bit"), 0)
    arrays = {role: _signs(f"{name}[{role!r}]", array) for role, array in arrays.items()}
    width = arrays["o"].shape[1]
    agree = ", to agree with " + ("o and v" if count is None else "the semantic part")
    count, heads = count or len(arrays["o"]), heads or len(arrays["v"])
    _check_shapes(name, arrays, lambda role: role_shape(role, count, heads, width), agree)
    return arrays


def _positional(value: Any, count: int, heads: int) -> dict[str, np.ndarray]:
    """±1 positional patterns by role; None and empty ones mean no positional bits."""
    if value is not None and any(np.size(given) for given in _roles("positional", value).values()):
        return _patterns("positional", value, count, heads)
    return {role: np.zeros(role_shape(role, count, heads, 0)) for role in ROLES}


def _check_shapes(name: str, arrays: Arrays, shape_of: Callable[[str], tuple[int, ...]], why: str = "") -> None:
    for role, array in arrays.items():
        if array.shape != (shape := shape_of(role)):
            raise fail(f"{name}[{role!r}]", f"shape {array.shape}", f"shape {shape}{why}")


def _generator(features: Any, positional_bits: Any, heads: Any, key: KeyLike) -> np.random.Generator:
    """A generator for features of checked sizes. NumPy draws: sizes vary, and each would compile a program."""
    positive_integer("features", features)
    positive_integer("heads", heads)
    nonnegative_integer("positional_bits", positional_bits)
    return numpy_generator(as_key(key))


def _fair_signs(generator: np.random.Generator, features: int, heads: int, width: int) -> dict[str, np.ndarray]:
    """Independent fair signs: o [feature, width], v, q, k [head, feature, width]."""
    return {role: generator.choice([-1.0, 1.0], role_shape(role, features, heads, width)) for role in ROLES}


def _for_all_roles(patterns: Any) -> Any:
    """One array [feature, bit] for each of the four roles; anything else as it is."""
    try:
        one = np.ndim(patterns) == 2
    except ValueError:  # a sequence of arrays with different shapes, one per role
        one = False
    return dict.fromkeys(ROLES, patterns) if one else patterns


def _from_matrix(cls: type[Features], path: str | Path, matrix: np.ndarray) -> Any:
    """Features with the same patterns for all roles, from a matrix in a file."""
    try:
        return cls.from_patterns(_signs("matrix", matrix, ("feature", "column")))
    except InputError as error:
        raise fail("features", f"{path} with {error.got}", FILE_OF_SIGNS) from error


def _text_of(path: str | Path, name: str, expected: str) -> str:
    """The content of a text file."""
    with open_file(path, name=name, expected=expected) as stream:
        content = stream.read(LARGEST_TEXT + 1)
    if len(content) > LARGEST_TEXT:
        raise fail(name, f"{path} of more than {LARGEST_TEXT // 2**20} MiB", expected)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise fail(name, f"{path}, which is not text in UTF-8 (byte {error.start})", expected) from error


def _read_table(table: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Semantic and positional signs from lines such as "o -++|--"; see `Features.from_table`."""
    rows: dict[str, dict[int, list[Any]]] = {role: {} for role in ROLES}
    for number, line in enumerate(table.splitlines(), 1):
        if not (content := line.split("#")[0].strip()):
            continue
        name, _, signs = content.partition(" ")
        known = re.fullmatch(_ROLE, name)
        head = int(name[1:] or 1) if known else 0
        if head < 1:
            raise fail(f"table, line {number}", repr(name), "a role o, v, q or k, for v, q, k perhaps with a head: v2")
        semantic, bar, positional = signs.replace(" ", "").partition("|")
        if not semantic or set(semantic + positional) - set(SIGNS) or (bar and not positional):
            raise fail(f"table, line {number}", repr(signs.strip()), "signs + and -, perhaps | and more signs")
        rows[name[0]].setdefault(head, []).append([[SIGNS[sign] for sign in part] for part in (semantic, positional)])
    for role, heads in rows.items():
        if sorted(heads) != list(range(1, len(heads) + 1)) or not heads:
            raise fail("table", f"heads {sorted(heads)} of role {role}", "every role, its heads counted from 1")

    def part(number: int) -> dict[str, Any]:
        named = {role: [[row[number] for row in heads[head]] for head in sorted(heads)] for role, heads in rows.items()}
        return named | {"o": named["o"][0]}

    return part(0), part(1)


def share_of_positions(value: Any) -> float:
    """ε, the weight of the positional part of an overlap, in [0, 1]."""
    epsilon = one_number("epsilon", value)
    if not traced(epsilon) and not 0 <= epsilon <= 1:
        raise fail("epsilon", epsilon, "a number from 0 to 1")
    return epsilon

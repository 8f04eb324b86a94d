"""Features: site classes against sums over bits, correlations there and back, files, and what is refused."""

from __future__ import annotations

import itertools
from contextlib import suppress

import numpy as np
import pytest

from thermoformer.dynamics.features import PAPER_TABLE, Features
from thermoformer.dynamics.meanfield import MeanField
from thermoformer.dynamics.site_classes import all_signs, odd_subsets

ROLES = ("o", "v", "q", "k")
SIZES = [(features, heads) for features in range(1, 6) for heads in (1, 2)]


def correlations_of(columns, fractions):
    """Odd correlations from their definition, an average over columns."""
    found = {}
    for role in ROLES:
        rows = []
        for subset in odd_subsets(columns["o"].shape[0]):
            product = np.prod([columns["o"][b] for b in subset], axis=0)
            rows.append(columns[role] @ (product * fractions))
        found[role] = np.array(rows)
    return found


def pairs(o12=0.2, v=0.0, o21=None, o11=1.0):
    o = [[o11, o12], [o12 if o21 is None else o21, 1.0]]
    return {"o": o, "v": [[v, 0.0], [0.0, 0.0]], "q": np.zeros((2, 2)), "k": np.zeros((2, 2))}


def patterns(features=2, bits=6, seed=0):
    draw = np.random.default_rng(seed).integers(0, 2, (4, features, bits)) * 2 - 1
    return dict(zip(ROLES, draw, strict=True))


# Site classes.


@pytest.mark.parametrize(("features", "heads"), SIZES)
def test_class_sums_are_sums_over_bits(features, heads):
    given = Features.random(23, features, heads=heads, key=features)
    beta, A = 1.7, np.random.default_rng(1).normal(size=features)
    by_bit = np.tanh(beta * A @ given.columns["o"])
    by_class = np.tanh(beta * given.signs @ A)
    assert (given.signs[:, 0] == 1).all() and len(np.unique(given.signs, axis=0)) == given.classes
    for role in ROLES:
        expected = given.columns[role] @ by_bit / 23
        np.testing.assert_allclose(np.tensordot(by_class, given.weights[role], 1), expected, atol=1e-14)


@pytest.mark.parametrize(("features", "heads"), SIZES)
def test_correlations_determine_the_classes(features, heads):
    given = Features.random(23, features, heads=heads, key=10 + features)
    correlations = correlations_of(given.columns, given.fractions)
    again = Features.from_correlations(correlations, given.positional)
    np.testing.assert_array_equal(again.signs, given.signs)
    for role in ROLES:
        np.testing.assert_allclose(given.odd_correlations(role), correlations[role], atol=1e-14)
        np.testing.assert_allclose(again.odd_correlations(role), correlations[role], atol=1e-14)
        np.testing.assert_allclose(again.weights[role], given.weights[role], atol=1e-14)


def test_unequal_fractions_weigh_the_columns():
    semantic = patterns(features=3, bits=4)
    weighted = Features.from_patterns(semantic, fractions=[0.5, 0.25, 0.25, 0.0])
    repeated = Features.from_patterns({role: array[:, [0, 0, 1, 2]] for role, array in semantic.items()})
    np.testing.assert_array_equal(weighted.signs, repeated.signs)
    for role in ROLES:
        np.testing.assert_allclose(weighted.weights[role], repeated.weights[role], atol=1e-15)


def test_odd_subsets_come_by_size():
    assert odd_subsets(3) == [(0,), (1,), (2,), (0, 1, 2)]
    assert [len(odd_subsets(features)) for features in range(1, 8)] == [2 ** (features - 1) for features in range(1, 8)]


def test_signs_are_in_the_order_of_unique():
    np.testing.assert_array_equal(all_signs(4), np.unique(all_signs(4), axis=0))


# Reference numbers.


@pytest.mark.parametrize(
    "name", ["traj_beta1.27", "token_beta1.27", "mode1_M2_seed7_beta1.5", "lyap_beta1.27_tr0_max400"]
)
def test_reference_correlations(reference, name, tmp_path):
    data = reference(f"dynamics/{name}.npz")
    np.savez(tmp_path / "reference.npz", **data)
    features = Features.load(tmp_path / "reference.npz")
    assert len(features.fractions) == data["semantic_bits"] and features.positional_bits == data["positional_bits"]
    for role in ROLES:
        found = features.odd_correlations(role).reshape(data[f"odd_correlations_{role}"].shape)
        np.testing.assert_allclose(found, data[f"odd_correlations_{role}"], atol=1e-14)
    correlations = {role: data[f"odd_correlations_{role}"] for role in ROLES}
    again = Features.from_correlations(correlations, features.positional)
    for role in ROLES:
        np.testing.assert_allclose(again.weights[role], features.weights[role], atol=1e-14)


def test_paper_is_the_reference(reference):
    data = reference("dynamics/traj_beta1.27.npz")
    paper = Features.paper()
    full = {role: np.split(data[f"pattern_{role}"], [99], axis=1) for role in ROLES}
    expected = Features.from_patterns({r: full[r][0] for r in ROLES}, {r: full[r][1] for r in ROLES})
    np.testing.assert_array_equal(paper.signs, expected.signs)
    for role in ROLES:
        np.testing.assert_allclose(paper.weights[role], expected.weights[role], atol=1e-15)
        np.testing.assert_array_equal(paper.positional[role], expected.positional[role])
        np.testing.assert_array_equal(paper.with_bits(99).columns[role], expected.columns[role])


# Overlaps.


@pytest.mark.parametrize("heads", [1, 2])
def test_token_overlaps_are_their_definition(heads):
    features = Features.random(7, 3, positional_bits=2, heads=heads, key=3)
    x = np.random.default_rng(0).choice([-1.0, 1.0], 9)
    overlaps = features.token_overlaps(x, 0.3)
    np.testing.assert_allclose(overlaps["o"], 0.7 * features.columns["o"] @ x[:7] / 7, atol=1e-15)
    for role in ROLES[1:]:
        expected = 0.7 * features.columns[role] @ x[:7] / 7 + 0.3 * features.positional[role] @ x[7:] / 2
        np.testing.assert_allclose(overlaps[role], expected, atol=1e-15)
        assert overlaps[role].shape == (heads, 3)


def test_without_positional_bits_there_is_no_positional_term():
    features = Features.from_patterns(patterns())
    overlaps = features.token_overlaps(np.ones(6), 0.5)
    np.testing.assert_allclose(overlaps["v"][0], 0.5 * features.columns["v"][0].mean(1))


# Impossible correlations.


@pytest.mark.parametrize(
    ("correlations", "message"),
    [
        (pairs(o12=0.2, o21=0.3), r"⟨o_2 o_1⟩ = 0.3.*it equals ⟨o_1 o_2⟩ = 0.2"),
        (pairs(o11=0.9), r"⟨o_1 o_1⟩ = 0.9.*a square = 1"),
        (pairs(o12=1.2), r"⟨o_1 o_2⟩ of size 1.2.*none larger than 1"),
        (pairs(v=-1.5), r"⟨o_1 v_1⟩ of size 1.5"),
        (pairs(o12=0.9, v=0.5), r"v_1⟩ whose part from o = \(\+−\) is 0.25.*the probability 0.05"),
    ],
)
def test_impossible_pairs_are_refused_unless_one_insists(correlations, message):
    with pytest.raises(ValueError, match=message):
        Features.from_correlations(correlations)
    insisted = Features.from_correlations(correlations, insist=True)
    for role in ROLES:
        found = insisted.odd_correlations(role)
        np.testing.assert_allclose(found.reshape(2, 2), correlations[role], atol=1e-14)


def test_negative_class_probabilities_are_refused():
    # Three features that all disagree with each other by more than two signs allow.
    o = np.full((4, 3), -0.5)
    o[:3] += 1.5 * np.eye(3)
    zero = np.zeros((4, 3))
    with pytest.raises(ValueError, match=r"o = \(\+\+\+\) or its mirror the probability -0.125"):
        Features.from_correlations({"o": o, "v": zero, "q": zero, "k": zero})
    insisted = Features.from_correlations({"o": o, "v": zero, "q": zero, "k": zero}, insist=True)
    assert insisted.weights["o"][:, 0].min() == -0.125
    with pytest.raises(ValueError, match="no ±1 patterns have"):
        insisted.with_bits(100)


def test_every_empirical_set_is_possible():
    for seed in range(20):
        features = Features.random(5, 4, key=seed)
        Features.from_correlations({role: features.odd_correlations(role) for role in ROLES})


# Classes of bits.


def test_joint_classes_hold_every_bit_once():
    features = Features.segments(5, features=2, key=2)
    classes = features.joint_classes(bits=50)
    assert classes.counts.sum() == 50 and classes.counts.dtype.kind == "i"
    rows = np.concatenate([classes.columns[role].reshape(-1, len(classes.counts)) for role in ROLES])
    assert len(np.unique(rows, axis=1).T) == len(classes.counts)
    for role in ROLES:
        assert classes.columns[role] @ classes.counts == pytest.approx(features.with_bits(50).columns[role].sum(-1))


@pytest.mark.parametrize("bits", [100, 1_000_000_000])
def test_whole_counts_are_not_drawn(bits):
    for key in (0, 1):
        assert Features.paper().joint_classes(3 * bits, key).counts.tolist() == [bits] * 3
        assert Features.paper().joint_classes(bits, key).counts.sum() == bits


def test_explicit_bits_keep_their_order():
    features = Features.random(17, 3, key=4)
    for role in ROLES:
        np.testing.assert_array_equal(features.with_bits(17).columns[role], features.columns[role])


def test_drawn_bits_have_the_correlations():
    for features in (Features.uniform_means(2, key=5), Features.uniform_means(6, key=6), Features.paper()):
        bits = 200_000 if features.columns is None else 200_002
        drawn = features.with_bits(bits, key=7)
        for role in ROLES:
            difference = drawn.odd_correlations(role) - features.odd_correlations(role)
            # Each correlation is an average of 2e5 signs: standard deviation at most 0.0022.
            assert np.abs(difference).max() < 5.5 * 0.0022
        np.testing.assert_array_equal(drawn.positional["v"], features.positional["v"])


def test_drawing_many_bits_costs_nothing():
    counts = Features.paper().joint_classes(10**12 + 1, key=1).counts
    assert counts.sum() == 10**12 + 1
    # Multinomial thirds: deviations of about sqrt(N · 2/9).
    assert 0 < np.abs(counts - (10**12 + 1) / 3).max() < 5e6


def test_draws_follow_the_key():
    features = Features.uniform_means(2, key=5)
    same, again, other = (features.with_bits(50, key).columns["v"] for key in (1, 1, 2))
    assert np.array_equal(same, again) and not np.array_equal(same, other)


# Generators.


def test_uniform_means_are_products_of_means():
    features = Features.uniform_means(3, heads=2, key=8)
    o, v = features.odd_correlations("o"), features.odd_correlations("v")
    np.testing.assert_allclose(np.diag(o), 1)
    # ⟨o_b v_a⟩ = μ_b ν_a has rank one, ⟨o_1 o_2 o_3 v⟩ = μ_1 μ_2 μ_3 ν, and ⟨o_1 o_2⟩ = μ_1 μ_2.
    assert np.linalg.matrix_rank(v.reshape(4, -1), tol=1e-12) == 1
    assert o[0, 1] * v[2, 0, 0] == pytest.approx(v[3, 0, 0])
    Features.from_correlations({role: features.odd_correlations(role) for role in ROLES})


def test_gaussian_correlations_are_as_described():
    features = Features.gaussian(3, 0.4, key=9)
    o, v = features.odd_correlations("o"), features.odd_correlations("v")[:, 0]
    np.testing.assert_allclose(np.diag(o), 1)
    np.testing.assert_allclose(o[:3], o[:3].T)
    np.testing.assert_allclose(v[3], v[:3].prod(0))
    wide = Features.gaussian(1, 50.0, heads=40, key=0).odd_correlations("v")
    assert np.abs(wide).max() == 1
    narrow = Features.gaussian(1, 0.2, heads=4000, key=0).odd_correlations("v")
    assert narrow.std() == pytest.approx(0.2, rel=0.05) and abs(narrow.mean()) < 0.02


def test_permuted_copies():
    base, bits = np.array([[1, 1, -1, 1], [1, -1, -1, 1], [-1, -1, 1, 1]]), np.array([[1], [-1], [1]])
    features = Features.permuted(base, bits)
    for role, shift in zip(ROLES, range(4), strict=True):
        expected = base[(np.arange(3) + shift) % 3]
        np.testing.assert_array_equal(features.columns[role].reshape(3, 4), expected)
    swapped = Features.permuted(base, bits, {"v": [1, 0, 2], "q": [0, 1, 2], "k": [2, 1, 0]})
    np.testing.assert_array_equal(swapped.columns["v"][0], base[[1, 0, 2]])
    np.testing.assert_array_equal(swapped.positional["k"][0], bits[[2, 1, 0]])


def test_random_features_follow_the_key():
    same, again, other = (Features.random(30, 2, key=key).columns for key in (1, 1, 2))
    for role, next_role in itertools.pairwise(ROLES):
        assert np.array_equal(same[role], again[role]) and not np.array_equal(same[role], other[role])
        assert not np.array_equal(same[role].ravel(), same[next_role].ravel())


# Files and tables.


@pytest.mark.parametrize(
    "features",
    [
        Features.paper(),
        Features.random(9, 2, positional_bits=0, heads=2, key=1),
        Features.uniform_means(3, heads=2, key=1),
        Features.from_patterns(patterns(bits=2), fractions=[0.25, 0.75]),
    ],
    ids=["paper", "heads", "correlations", "fractions"],
)
def test_saved_features_come_back(features, tmp_path):
    features.save(tmp_path / "features")
    again = Features.load(tmp_path / "features")
    np.testing.assert_array_equal(again.signs, features.signs)
    for role in ROLES:
        np.testing.assert_allclose(again.weights[role], features.weights[role], atol=1e-16)
        np.testing.assert_array_equal(again.positional[role], features.positional[role])
    assert (again.columns is None) == (features.columns is None)
    assert again.to_xarray().equals(features.to_xarray()) or again.columns is not None


def test_damaged_files_are_named(tmp_path):
    path = tmp_path / "features.npz"
    full = {f"pattern_{role}": np.ones((2, 5)) for role in ROLES} | {"semantic_bits": np.array(3)}

    def refuse(message, **changes):
        np.savez(path, **{name: array for name, array in (full | changes).items() if array is not None})
        with pytest.raises(ValueError, match=message):
            Features.load(path)

    refuse("without pattern_q", pattern_q=None)
    refuse("without semantic_bits", semantic_bits=None)
    refuse("semantic_bits: got", semantic_bits=np.array(2.5))
    refuse("pattern_o: got shape", semantic_bits=np.array(6))
    refuse("pattern_v.npy, an array of Python objects", pattern_v=np.array([[1, None]], object))
    refuse("an entry of 0.5; expected entries", pattern_k=np.full((2, 5), 0.5))
    refuse("NaN", pattern_k=np.full((2, 5), np.nan))
    refuse("agree with o and v", pattern_k=np.ones((3, 5)))
    for bits in (1, np.nan, np.inf, 1j, "x", np.void(b"bits")):
        refuse("positional_bits: got", positional_bits=np.array(bits))
    refuse("fractions", fractions=np.array([0.5, 0.5]))
    path.write_bytes(b"not an archive")
    with pytest.raises(ValueError, match="not an npz file, or a damaged one"):
        Features.load(path)
    with open(path, "wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(ValueError, match="not an npz file, or a damaged one"):
        Features.load(path)
    with pytest.raises(FileNotFoundError, match=r"path: got .*absent.npz, which is not there; expected"):
        Features.load(tmp_path / "absent.npz")
    with pytest.raises(OSError, match=r"path: got .*, which is a folder; expected an npz file"):
        Features.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"path: got .* \(No such file or directory\); expected a file in"):
        Features.paper().save(tmp_path / "no" / "folder.npz")
    for table in ("none", tmp_path):
        with pytest.raises(OSError, match=r"table: got .*, which is .*; expected the text of a table or a path"):
            Features.from_table(table)
    path.write_bytes(b"o \xff\n")
    with pytest.raises(ValueError, match=r"table: got .*, which is not text in UTF-8 \(byte 2\)"):
        Features.from_table(path)


def test_damaged_bytes_are_refused_or_harmless(tmp_path):
    path = tmp_path / "features.npz"
    features = Features.from_patterns(patterns(bits=2), fractions=[0.25, 0.75])
    features.save(path)
    content = path.read_bytes()
    for place in range(0, len(content), 5):
        flipped = bytes([content[place] ^ (1 << place % 8)])
        for damaged in (content[:place], content[:place] + flipped + content[place + 1 :]):
            path.write_bytes(damaged)
            with suppress(ValueError):
                np.testing.assert_array_equal(Features.load(path).signs, features.signs)


def test_many_positional_bits_do_not_ask_for_an_endless_context():
    one, bits = ({role: np.ones((1, size)) for role in ROLES} for size in (3, 40))
    with pytest.raises(ValueError, match="context: got 1099511627776; expected at most 65536"):
        MeanField(Features.from_patterns(one, bits), beta=1.2, gamma=220.0, epsilon=0.02)


def test_tables_with_heads_and_from_files(tmp_path):
    text = "# two heads\no −+|+\nv1 ++|-\nv2 -+|-\nq +-|+\nq2 --|+ # second\nk1 + + | +\nk2 --|-\n"
    features = Features.from_table(text)
    assert features.heads == 2 and features.positional_bits == 1
    assert features.columns["v"].tolist() == [[[1, 1]], [[-1, 1]]]
    (tmp_path / "table.txt").write_text(text, encoding="utf-8")
    for path in (tmp_path / "table.txt", str(tmp_path / "table.txt")):
        np.testing.assert_array_equal(Features.from_table(path).columns["q"], features.columns["q"])


MATRIX = np.array([[1, -1, 1], [-1, 1, 1]])


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("mine.csv", lambda path: path.write_text("1,-1,1\n-1,1,1\n")),
        ("mine.txt", lambda path: path.write_text("# two patterns\n1 -1 1\n\n-1 +1 1.0  # the second\n")),
        ("semicolons.csv", lambda path: path.write_text("a;b;c\n1; -1; 1\n-1; 1; 1\n")),
        ("savetxt.txt", lambda path: np.savetxt(path, MATRIX)),
        ("mine.npy", lambda path: np.save(path, MATRIX)),
        ("mine.npz", lambda path: np.savez(path, mine=MATRIX)),
    ],
)
def test_one_matrix_is_the_patterns_of_all_roles(name, save, tmp_path):
    save(tmp_path / name)
    features = Features.from_file(tmp_path / name)
    assert features.to_xarray().equals(Features.from_patterns([MATRIX] * 4).to_xarray())
    assert features.to_xarray().equals(Features.from_patterns(MATRIX).to_xarray())


def test_a_file_may_hold_a_table_or_what_save_wrote(tmp_path):
    paper = Features.paper()
    paper.save(tmp_path / "saved.npz")
    (tmp_path / "table.txt").write_text(PAPER_TABLE)
    for name in ("saved.npz", "table.txt"):
        assert Features.from_file(tmp_path / name).to_xarray().equals(paper.to_xarray())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1,-1\n0,1\n", "with an entry of 0; expected an npz file or a table of signs, or a matrix of 1 and -1"),
        (b"1,-1\n1\n", "with 1 values in row 2; expected .* such as the two lines 1,-1,1 and -1,1,1"),
        (b"The best engineers\nread 1 2\n", "with 'read' in row 1, column 1; expected an npz file or a table"),
        (b"", "with no rows"),
        (b"\xff\xfe", "not text in UTF-8"),
        (b"\x93NUMPY and no more", "not an array, or a damaged one"),
        (b"o +x\n", r"table, line 1: got '\+x'"),
    ],
)
def test_a_file_of_no_signs_is_told_what_would_do(content, message, tmp_path):
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Features.from_file(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("o -+\nx ++\n", "line 2: got 'x'"),
        ("o2 -+\n", "line 1: got 'o2'"),
        ("o -a\n", "line 1: got '-a'"),
        ("o -+|\n", "line 1"),
        ("o -+\nv ++\nq ++\n", "heads \\[\\] of role k"),
        ("o -+\nv2 ++\nq ++\nk ++\n", "heads \\[2\\] of role v"),
        ("o -+\nv ++\nq +++\nk ++\n", "semantic\\['q'\\]"),
        ("o -+\nv ++\nv +\nq ++\nk ++\n", "ragged"),
        ("o -+|+\nv ++\nq ++|-\nk ++|-\n", "positional"),
        (3, "got int"),
    ],
)
def test_bad_tables_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        Features.from_table(text)


# Bad input.

GOOD = patterns()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Features.from_patterns({role: GOOD[role] for role in "ovq"}), "roles 'o', 'v', 'q'; expected the"),
        (lambda: Features.from_patterns(GOOD | {"x": GOOD["o"]}), "roles .*, 'x'; expected the roles o, v, q, k"),
        (lambda: Features.from_patterns(np.ones((3, 2, 4))), "3 arrays"),
        (lambda: Features.from_patterns(7), "got int"),
        (lambda: Features.from_patterns(GOOD | {"v": GOOD["v"][:, :4]}), r"semantic\['k'\]|semantic\['v'\]"),
        (lambda: Features.from_patterns(GOOD | {"o": GOOD["o"] * 0.5}), r"semantic\['o'\]: got an entry of"),
        (lambda: Features.from_patterns(GOOD | {"o": GOOD["o"][None]}), r"semantic\['o'\]: got shape \(1, 2, 6\)"),
        (lambda: Features.from_patterns(GOOD | {"q": GOOD["q"] * np.nan}), "NaN"),
        (lambda: Features.from_patterns(GOOD | {"q": np.array([[None]])}), "type object"),
        (lambda: Features.from_patterns(np.ones((4, 2, 0))), "at least one entry"),
        (lambda: Features.from_patterns(GOOD, np.ones((4, 3, 2))), r"positional\['o'\]: got shape \(3, 2\)"),
        (lambda: Features.from_patterns(GOOD, fractions=[1.0]), "1 fractions; expected 6"),
        (lambda: Features.from_patterns(GOOD, fractions=np.full(6, 0.5)), "a sum of 3"),
        (lambda: Features.from_patterns(GOOD, fractions=[2, -1, 0, 0, 0, 0]), "smallest -1"),
        (lambda: Features.from_correlations(pairs() | {"v": np.zeros((3, 2))}), r"correlations\['v'\]: got shape"),
        (lambda: Features.from_correlations({role: np.eye(3) for role in ROLES}), "odd subsets"),
        (lambda: Features.from_correlations({role: np.ones(3) for role in ROLES}), r"expected \[subset, feature\]"),
        (lambda: Features.from_correlations(pairs() | {"v": np.full((2, 2), np.nan)}), "NaN"),
        (lambda: Features.from_correlations({role: np.ones((2, 25)) for role in ROLES}), "at most 20"),
        (lambda: Features.random(0, 3), "bits: got 0"),
        (lambda: Features.random(3, 2.5), "features: got 2.5"),
        (lambda: Features.random(3, 2, positional_bits=-1), "positional_bits: got -1"),
        (lambda: Features.random(3, 2, heads=0), "heads: got 0"),
        (lambda: Features.random(3, 2, key="one"), "key: got 'one'"),
        (lambda: Features.segments(0), "segments: got 0"),
        (lambda: Features.gaussian(3, -1.0), "scale: got -1"),
        (lambda: Features.uniform_means(25), "at most 20"),
        (lambda: Features.permuted(np.ones((3, 4)), None, {"v": [0, 0, 1], "q": [0, 1, 2], "k": [0, 1, 2]}), "'v'"),
        (lambda: Features.permuted(np.ones((3, 4)), None, {"v": [0, 1, 2]}), "roles v, q, k"),
        (lambda: Features.permuted(np.ones((3, 4)), np.ones((2, 1))), "base_positional: got 2 features"),
        (lambda: Features.paper().odd_correlations("x"), "role: got 'x'"),
        (lambda: Features.paper().token_overlaps(np.ones(4), 0.1), "x: got 4 entries; expected 5"),
        (lambda: Features.paper().token_overlaps(np.full(5, 2.0), 0.1), "size 2"),
        (lambda: Features.paper().token_overlaps(np.ones(5), 1.5), "epsilon: got 1.5"),
        (lambda: Features.uniform_means(2).token_overlaps(np.ones(5), 0.1), "correlations only"),
        (lambda: Features.paper().with_bits(0), "bits: got 0"),
        (lambda: Features.uniform_means(8).joint_classes(10**9), "bits: got 1000000000; expected at most"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_arrays_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        Features.paper().weights["v"][0] = 0.0


def test_patterns_given_stay_the_callers():
    semantic = {role: array.astype(float) for role, array in patterns().items()}
    Features.from_patterns(semantic)
    semantic["o"][0, 0] = 1.0

"""The finite network: reference run, an independent loop, the exact law at small N, both forms, and what is refused."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
import scipy.stats

from thermoformer.dynamics.features import Features
from thermoformer.dynamics.finite import FiniteNetwork

ROLES = ("o", "v", "q", "k")
PAPER = {"beta": 1.27, "gamma": 220.0, "epsilon": 0.02}
FORMS = ("bits", "classes")
# Runs of up to 32 steps with the same numbers of bits and copies share one compiled program; most tests use these.
BITS, STEPS = 30, 20
SHORT, FEW, COPIES = 9, 3, 20_000
HEADS = Features.random(BITS, 2, heads=2, key=3)


def paper(bits=99, **changes):
    return FiniteNetwork(Features.paper(), **(PAPER | changes), bits=bits)


def loop(features, beta, gamma, epsilon, context, x0, uniforms):
    """The network from its definition, one number at a time (dynamics §1)."""
    N, B = len(features.fractions), features.positional_bits
    M, H = features.count, features.heads
    o = features.columns["o"]
    tokens, records = [np.array(x0)], []
    for t in range(len(uniforms) + 1):
        x = tokens[-1]

        def overlap(role, head, a, x=x):
            pattern = np.concatenate([features.columns[role][head, a], features.positional[role][head, a]])
            return (1 - epsilon) * pattern[:N] @ x[:N] / N + epsilon * pattern[N:] @ x[N:] / B

        A = np.zeros(M)
        m = {role: np.array([[overlap(role, h, a) for a in range(M)] for h in range(H)]) for role in "vqk"}
        records.append((o @ x[:N] / N, m, A))
        for h in range(H):
            window = [record[1] for record in records[-context:]]
            logits = np.array([gamma / np.sqrt(M) * m["q"][h] @ past["k"][h] for past in window])
            weights = np.exp(logits - logits.max())
            A += weights @ np.array([past["v"][h] for past in window]) / weights.sum()
        if t < len(uniforms):
            semantic = np.where((1 + np.tanh(beta * A @ o)) / 2 > uniforms[t], 1.0, -1.0)
            digits = [2.0 * int(digit) - 1 for digit in np.binary_repr((t + 1) % context, B)]
            tokens.append(np.concatenate([semantic, digits]))
    return records


# The same numbers as others.


def test_reference_run(reference):
    data = reference("dynamics/finite_N990_beta1.27_seed123.npz")
    parts = {role: np.split(data[f"pattern_{role}"], [990], axis=1) for role in ROLES}
    features = Features.from_patterns({r: parts[r][0] for r in ROLES}, {r: parts[r][1] for r in ROLES})
    network = FiniteNetwork(features, beta=data["beta"], gamma=data["gamma"], epsilon=data["epsilon"])
    # The reference was made with NumPy's old generator, which draws a table row by row as it draws single rows.
    uniforms = np.random.RandomState(123).uniform(0, 1, (499, 990))
    for x0 in (data["x0"], None):
        found = network.run(500, x0, uniforms=uniforms)
        for name in ("m_o_semantic", "m_v", "m_q", "m_k", "A"):
            np.testing.assert_allclose(getattr(found, name)[0], data[name], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.m_o, 0.98 * found.m_o_semantic)
    # The paper's segments with as many bits are the same network.
    from_segments = paper(990, gamma=data["gamma"]).run(500, uniforms=uniforms)
    np.testing.assert_allclose(from_segments.A[0], data["A"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("features", "heads", "context"), [(2, 1, 3), (3, 2, 4), (5, 3, 2)])
def test_the_definition_step_by_step(features, heads, context):
    given = Features.random(12, features, heads=heads, key=heads)
    generator = np.random.default_rng(0)
    uniforms, x0 = generator.random((2, 9, 12)), generator.choice([-1.0, 1.0], 14)
    network = FiniteNetwork(given, beta=1.5, gamma=20.0, epsilon=0.1, context=context)
    found = network.run(10, x0, copies=2, uniforms=uniforms)
    for copy in range(2):
        expected = loop(given, 1.5, 20.0, 0.1, context, x0, uniforms[copy])
        for t, (o, m, A) in enumerate(expected):
            np.testing.assert_allclose(found.m_o_semantic[copy, t], o, atol=1e-13)
            np.testing.assert_allclose(found.A[copy, t], A, atol=1e-13)
            for role in "vqk":
                values = getattr(found, f"m_{role}")[copy, t]
                np.testing.assert_allclose(values, m[role] if heads > 1 else m[role][0], atol=1e-13)


# The exact law at small N: every token of one step with its probability.


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("bits", "key"), [(3, 3), (9, 6), (9, 9)])
def test_one_step_has_the_exact_law(form, bits, key):
    features = Features.segments(3, key=key)
    network = FiniteNetwork(features, beta=0.6, gamma=3.0, epsilon=0.1, bits=bits)
    copies = COPIES
    found = network.run(2, copies=copies, key=1, form=form)
    explicit = features.with_bits(bits)
    A = found.A[0, 0]
    up = (1 + np.tanh(0.6 * A @ explicit.columns["o"])) / 2
    law: dict[tuple[float, ...], float] = {}
    for token in itertools.product((-1, 1), repeat=bits):
        probability = np.prod(np.where(np.array(token) > 0, up, 1 - up))
        overlaps = explicit.token_overlaps([*token, *network.positions[1]], 0.1)
        point = tuple(np.round(np.concatenate([overlaps["o"] / 0.9, *overlaps["v"], *overlaps["k"]]), 9) + 0.0)
        law[point] = law.get(point, 0) + probability
    seen = np.concatenate([found.m_o_semantic[:, 1], found.m_v[:, 1], found.m_k[:, 1]], axis=1)
    points, counts = np.unique(np.round(seen, 9) + 0.0, axis=0, return_counts=True)
    counted = {tuple(point): count for point, count in zip(points.tolist(), counts, strict=True)}
    assert set(counted) <= set(law)
    expected = np.array(list(law.values())) * copies
    observed = np.array([counted.get(point, 0) for point in law])
    large = expected > 5
    statistic = np.sum((observed[large] - expected[large]) ** 2 / expected[large])
    assert scipy.stats.chi2.sf(statistic, max(1, large.sum() - 1)) > 1e-3


# The two forms have one law.


@pytest.mark.parametrize("features", [Features.paper(), HEADS], ids=["paper", "heads"])
def test_forms_agree_in_law(features):
    network = FiniteNetwork(features, beta=1.1, gamma=30.0, epsilon=0.05, bits=BITS)
    copies = COPIES
    one, other = (network.run(SHORT, copies=copies, key=key, form=form) for key, form in enumerate(FORMS))
    for name, time in itertools.product(("m_o", "m_v", "m_q", "m_k", "A"), (1, 2, 5, 8)):
        a, b = (getattr(orbit, name)[:, time].reshape(copies, -1) for orbit in (one, other))
        deviation = np.sqrt((a.var(0) + b.var(0)) / copies)
        assert (np.abs(a.mean(0) - b.mean(0)) <= 4.5 * deviation + 1e-12).all()
        # A variance from normal data has relative deviation sqrt(2/copies); bounded laws stay near that.
        assert (np.abs(a.var(0) - b.var(0)) <= 9 * np.sqrt(4 / copies) * a.var(0) + 1e-12).all()
        for feature in range(a.shape[1]):
            # Sums in another order differ by round-off, which would split ties between the two samples.
            pair = np.round(a[:, feature], 10), np.round(b[:, feature], 10)
            assert scipy.stats.ks_2samp(*pair).pvalue > 1e-4


@pytest.mark.parametrize("form", FORMS)
def test_fluctuations_of_one_step(form):
    bits, copies = 3000, 4000 if form == "bits" else COPIES
    network = paper(bits)
    found = network.run(2, copies=copies, key=4, form=form)
    columns = Features.paper().columns
    tanh = np.tanh(1.27 * found.A[0, 0] @ columns["o"])
    mean, variance = columns["o"] @ tanh / 3, (1 - tanh**2).sum() / 3 / bits
    seen = found.m_o_semantic[:, 1]
    assert (np.abs(seen.mean(0) - mean) < 4.5 * np.sqrt(variance / copies)).all()
    np.testing.assert_allclose(seen.var(0), variance, rtol=4.5 * np.sqrt(2 / copies))


def test_a_billion_bits():
    network = paper(999_999_999)
    found = network.run(STEPS, copies=COPIES, key=0, form="classes")
    assert np.isfinite(found.A).all() and np.abs(found.m_o_semantic).max() <= 1
    # One step from one start: overlaps spread by N^-1/2 and no more.
    spread = found.m_o_semantic[:, 1].std(0)
    assert (spread > 1e-6).all() and (spread < 1e-4).all()
    with pytest.raises(ValueError, match="form: got 'bits' with 999999999 bits"):
        network.run(3)


def test_forms_meet_when_bits_are_certain():
    # At β = 1000 every field is far from 0, so both forms are deterministic and equal.
    network = paper(BITS, beta=1e3, gamma=1e6)
    one, other = (network.run(STEPS, copies=FEW, key=key, form=form) for key, form in enumerate(FORMS))
    np.testing.assert_allclose(one.A, other.A, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("beta", "gamma"), [(1e3, 1e6), (-1e3, -1e6), (1e300, 1e300), (0.0, 0.0)])
def test_nothing_overflows(form, beta, gamma):
    found = paper(BITS, beta=beta, gamma=gamma).run(STEPS, copies=FEW, form=form)
    for name in ("A", "m_o", "m_v", "m_q", "m_k"):
        assert np.isfinite(getattr(found, name)).all() and np.abs(getattr(found, name)).max() <= 1 + 1e-12


# Copies and keys.


@pytest.mark.parametrize("form", FORMS)
def test_copies_are_independent_and_repeat(form):
    network = paper(BITS)
    first = network.run(SHORT, copies=COPIES, key=7, form=form).m_o
    again = network.run(SHORT, copies=COPIES, key=jax.random.key(7), form=form).m_o
    fewer = network.run(SHORT, copies=FEW, key=7, form=form).m_o
    other = network.run(SHORT, copies=FEW, key=8, form=form).m_o
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(first[:FEW], fewer, atol=1e-12)
    assert not np.allclose(other, fewer)
    assert len(np.unique(first[:, 1:].reshape(COPIES, -1), axis=0)) == COPIES
    # Neighbouring copies, all at the same time: no correlation beyond chance.
    step = first[:, 1, 0] - first[:, 1, 0].mean()
    assert abs(step[:-1] @ step[1:]) / (step @ step) < 4.5 / np.sqrt(COPIES)


def test_longer_runs_begin_like_shorter_ones():
    network = paper(BITS)
    longer, shorter = (network.run(steps, copies=FEW, key=2).A for steps in (STEPS, 8))
    np.testing.assert_allclose(longer[:, :8], shorter, atol=1e-12)


# Starts, positions, drawn bits.


def test_starts_by_bit_and_by_column():
    network = paper(BITS)
    by_column = np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    by_bit = np.concatenate([np.repeat(by_column[:3], BITS // 3), by_column[3:]])
    one, other = (network.run(STEPS, x0, copies=FEW, key=1) for x0 in (by_column, by_bit))
    np.testing.assert_allclose(one.A, other.A, atol=1e-14)
    expected = Features.paper().token_overlaps(by_column, 0.02)
    np.testing.assert_allclose(one.m_v[0, 0], expected["v"][0], atol=1e-15)
    # The first output is the only token's value, whatever the weights.
    np.testing.assert_allclose(one.A[0, 0], expected["v"][0], atol=1e-15)


def test_steps_of_one():
    # Sizes of the definition above.
    network = FiniteNetwork(Features.random(12, 2, key=1), beta=1.5, gamma=20.0, epsilon=0.1, context=3)
    assert network.run(1, copies=2, uniforms=np.zeros((2, 9, 12))).A.shape == (2, 1, 2)
    assert paper(BITS).run(1, copies=FEW).m_v.shape == (FEW, 1, 3)


def test_given_positions_are_used():
    table = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0]])
    network = paper(9, epsilon=1.0, positions=table)
    found = network.run(7)
    assert network.context == 3
    for t in range(7):
        expected = Features.paper().positional["v"][0] @ table[t % 3] / 2
        np.testing.assert_allclose(found.m_v[0, t], expected, atol=1e-15)
    assert np.isfinite(found.m_o_semantic).all() and (found.m_o == 0).all()


def test_no_positional_bits():
    # Sizes of the paper's features, whose programs are shared.
    features = Features.random(BITS, 3, positional_bits=0, key=1), Features.segments(3, positional_bits=0, key=1)
    for given, form in zip(features, FORMS, strict=True):
        network = FiniteNetwork(given, beta=1.0, gamma=2.0, epsilon=0.0, context=4)
        assert network.bits == len(given.fractions)
        assert network.run(8, copies=FEW, form=form).A.shape == (FEW, 8, 3)


@pytest.mark.parametrize("form", FORMS)
def test_bits_are_drawn_where_fractions_do_not_fit(form):
    for features in (Features.paper(), Features.uniform_means(3, key=1)):
        network = FiniteNetwork(features, **PAPER, bits=100, key=3)
        found = network.run(STEPS, copies=FEW, form=form).A
        assert np.isfinite(found).all()
        bits = np.concatenate([features.with_bits(100, 3).columns["o"][0], [-1.0, -1.0]])
        np.testing.assert_allclose(network.run(STEPS, bits, copies=FEW, form=form).A, found, atol=1e-14)


def test_labelled_axes():
    data = FiniteNetwork(HEADS, beta=1.0, gamma=2.0, epsilon=0.1).run(SHORT, copies=COPIES).to_xarray()
    assert data["m_q"].dims == ("copy", "step", "head", "feature") and data["m_o"].dims == ("copy", "step", "feature")
    assert data["A"].dtype == np.float64


# Bad input.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FiniteNetwork("paper", 1.0, 1.0, 0.1), "features: got str"),
        (lambda: paper(beta=np.nan), "beta"),
        (lambda: paper(gamma=np.inf), "gamma"),
        (lambda: paper(gamma=[1.0, 2.0]), "gamma"),
        (lambda: paper(epsilon=-0.1), "epsilon: got -0.1"),
        (lambda: paper(epsilon=1.1), "epsilon: got 1.1"),
        (lambda: paper(bits=0), "bits: got 0"),
        (lambda: paper(bits=10**13), "bits: got 10000000000000; expected at most"),
        (lambda: paper(bits=9.5), "bits: got 9.5"),
        (lambda: paper(context=5), "context: got 5"),
        (lambda: paper(context=0), "context: got 0"),
        (lambda: paper(context=3, positions=np.ones((4, 2))), "context: got 3"),
        (lambda: paper(positions=np.ones((4, 3))), "positions: got shape"),
        (lambda: FiniteNetwork(Features.uniform_means(2), 1.0, 1.0, 0.1), "bits: got None"),
        (lambda: FiniteNetwork(Features.gaussian(3, 2.0), 1.0, 1.0, 0.1, bits=9), "no ±1 patterns have"),
        (lambda: FiniteNetwork(Features.random(9, 2, 0), 1.0, 1.0, 0.1, context=4), "no positional bits"),
        (lambda: FiniteNetwork(Features.random(9, 2, 0), 1.0, 1.0, 0.0), "context: got nothing"),
        (lambda: paper().run(0), "steps: got 0"),
        (lambda: paper().run(3, copies=0), "copies: got 0"),
        (lambda: paper().run(3, key=0.5), "key: got 0.5"),
        (lambda: paper().run(3, form="counts"), "form: got 'counts'"),
        (lambda: paper().run(3, np.ones(50)), "x0: got 50 entries; expected 101"),
        (lambda: paper().run(3, np.full(101, 3.0)), "x0: got an entry of size 3"),
        (lambda: paper().run(3, np.full(5, np.nan)), "x0: got 5 NaN"),
        (lambda: paper().run(3, uniforms=np.zeros((1, 99))), "at least 2 steps"),
        (lambda: paper().run(3, uniforms=np.zeros((2, 98))), r"uniforms: got shape \(2, 98\)"),
        (lambda: paper().run(3, uniforms=np.zeros((2, 99)), copies=2), r"expected \[2, step, 99\]"),
        (lambda: paper().run(3, uniforms=np.full((2, 99), 1.5)), "numbers in"),
        (lambda: paper().run(3, uniforms=np.zeros((2, 99)), form="classes"), "none with form='classes'"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()

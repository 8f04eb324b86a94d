"""Regimes, cycles and bifurcations: the table and list of dynamics §4, and maps whose answers are known."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from thermoformer.dynamics import (
    DiscreteMap,
    Features,
    MeanField,
    NoCycleError,
    attractors,
    autocorrelation,
    bifurcation_point,
    find_cycle,
    lifetime,
    lyapunov_spectrum,
    orbit,
    orbit_statistics,
    phase_diagram,
    power_spectrum,
    regime,
    regime_names,
)
from thermoformer.dynamics.cycles import _multipliers
from thermoformer.dynamics.regimes import REGIMES, classify

GOLDEN = 2 * np.pi * (np.sqrt(5) - 1) / 2
SHORT = {"steps": 2000, "transient": 1000}


def rotated(x, angle):
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.array([cosine * x[0] - sine * x[1], sine * x[0] + cosine * x[1]])


def on_circle(x, angle, radius=1.0):
    """A rotation that attracts to a circle."""
    return rotated(x, angle) * radius / jnp.sqrt(jnp.sum(x**2))


# Maps of several tests, which share their programs.
LOGISTIC = DiscreteMap(lambda x, r: r * x * (1 - x), {"r": 3.5})
CIRCLE = DiscreteMap(
    lambda x, c, angle, radius: c + on_circle(x - c, angle, radius),
    {"c": 0.0, "angle": GOLDEN, "radius": 1.0},
    ("x", "y"),
)
SCALED = DiscreteMap(lambda x, r, scale: r * x * (1 - x / scale), {"r": 3.0, "scale": 1.0})


def paper(beta: float) -> MeanField:
    return MeanField(Features.paper(), beta=beta, gamma=220.0, epsilon=0.02)


@pytest.fixture(scope="module")
def window(request):
    """The reference's starting window."""
    reference = request.getfixturevalue("reference")
    data = reference("dynamics/traj_beta1.27.npz")
    return paper(1.27).window(data["A0"], data["positions0"])


@pytest.mark.parametrize(
    ("beta", "name", "period", "exponents", "within"),
    [
        (1.255, "quasi-periodic", None, (0.0, -0.0078), 2e-4),
        (1.28, "chaos", None, (0.143, -0.057), 0.012),
        (1.4, "chaos", None, (0.076, -0.133), 0.012),
    ],
)
def test_table_of_regimes(window, beta, name, period, exponents, within):
    found = regime(paper(beta), window)
    assert (found.name, found.period) == (name, period)
    np.testing.assert_allclose(found.exponents[:2], exponents, atol=within)
    # Where the numbers scatter, they agree within errors; both ways of averaging have one.
    assert np.all(np.abs(found.exponents[:2] - exponents) < 4 * found.errors[:2] + 6e-4)


def test_from_the_orbit_of_the_largest_beta():
    """Multistability: at β = 1.27 the windows of the cycle of β = 3 lead to 28-cycles and to 56-cycles.

    Which of them from which window is up to rounding, since the way there is chaotic.
    """
    wide = paper(3.0)
    start = orbit(wide, wide.token(), steps=1, transient=100_003).final_state
    assert regime(wide, start, steps=2000, transient=100).period == 24
    windows = []
    for _ in range(6):  # four steps on, so that all are at the same positions
        windows.append(start)
        for _ in range(4):
            start = wide.step(start)
    found = attractors(wide.replace(beta=1.27), windows * 2, steps=20_000, transient=200_000)
    kinds = dict(zip(found.period.values.tolist(), found.exponents.values[:, 0].tolist(), strict=True))
    assert set(kinds) <= {28, 56} and 28 in kinds
    assert kinds[28] == pytest.approx(-0.0478, abs=4e-4)
    assert kinds.get(56, -0.0035) == pytest.approx(-0.0035, abs=2e-4)


def test_both_cycles_at_one_beta_are_stable(window):
    """The 56-cycle beside the 28-cycle: an orbit that ended on it stays, and its multipliers are inside the circle."""
    data = paper(1.27)
    generator = np.random.default_rng(0)
    starts = [type(window)(window.A + 0.01 * generator.normal(size=(4, 3)), window.positions) for _ in range(48)]
    found = attractors(data, starts, steps=8000, transient=100_000)
    assert {28, 56} <= set(found.period.values.tolist())
    leading = found.exponents.values[:, 0]
    np.testing.assert_allclose(leading[found.period.values == 28], -0.0478, atol=1e-3)
    np.testing.assert_allclose(leading[found.period.values == 56], -0.0035, atol=1e-3)


def test_neimark_sacker_point(window):
    below = orbit(paper(1.2), window, steps=1, transient=20_001).final_state
    found = bifurcation_point(paper(1.2), below, "beta", (1.2, 1.25), 4)
    assert found.value == pytest.approx(1.2434445478, abs=1e-9)
    assert found.kind == "Neimark–Sacker"
    pair = found.cycle.multipliers[:2]
    np.testing.assert_allclose(pair.real, 0.05063, atol=5e-6)
    np.testing.assert_allclose(np.abs(pair.imag), 0.99872, atol=5e-6)
    # Just below a 4-cycle driven by the positions, with small overlaps.
    cycle = orbit(paper(1.24), window, steps=8, transient=60_000)
    assert 0 < np.abs(cycle.m_o).max() < 2e-3
    np.testing.assert_allclose(cycle.m_o[:4], cycle.m_o[4:], atol=1e-9)


def test_multipliers_are_the_exponents_of_a_cycle(window):
    """Logarithms of the moduli over the period, all twelve of them."""
    end = orbit(paper(1.27), window, steps=1, transient=100_003).final_state
    cycle = find_cycle(paper(1.27), end, 28)
    assert cycle.stable and cycle.error < 1e-12
    found = regime(paper(1.27), cycle.state, steps=2800, transient=2800, k=3)
    np.testing.assert_allclose(np.log(np.abs(cycle.multipliers[:3])) / 28, found.exponents, atol=2e-3)


def test_small_multipliers_are_right_or_flagged():
    """The truth has 320 digits. What is below it in float64 is 0, and its exponent −inf."""
    start = orbit(paper(2.8), paper(2.8).window(), steps=1, transient=20_003).final_state
    cycle = find_cycle(paper(2.8), start, 24)
    truth = [-0.07503754, -0.57137961, -0.74814245, -1.09429, -2.3922, -2.5386]  # and −13.94, −15.03, ...
    np.testing.assert_allclose(cycle.exponents[:6], truth, atol=3e-3)
    np.testing.assert_allclose(cycle.exponents[:4], truth[:4], atol=1e-5)
    assert np.isneginf(cycle.exponents[6:]).all() and not cycle.multipliers[6:].any()
    np.testing.assert_allclose(np.abs(cycle.multipliers), np.exp(24 * cycle.exponents), rtol=1e-9)
    # The spectrum of the orbit says the same, by another way.
    spectrum = lyapunov_spectrum(paper(2.8), start, steps=2400, transient=480)
    np.testing.assert_allclose(spectrum.exponents, cycle.exponents, atol=3e-3)
    assert "exponent" in cycle.to_xarray()


def test_products_of_steep_steps():
    """Powers of two in a basis of whole numbers are exact in float64, far below the rounding of their product."""
    middle = np.zeros((4, 4))
    middle[0, 0], middle[3, 3] = 1.0, -(2.0**-20)
    middle[1:3, 1:3] = 2.0**-10 * np.array([[0.0, -1.0], [1.0, 0.0]])
    basis = np.kron([[1, 1], [1, -1]], [[1, 1], [1, -1]])  # a Hadamard matrix
    multipliers, exponents = _multipliers(np.repeat((basis @ middle @ basis.T / 4)[None], 9, axis=0))
    np.testing.assert_allclose(exponents, np.log(2) * np.array([0, -10, -10, -20]), atol=1e-8)
    np.testing.assert_allclose(multipliers[[0, 3]], [1.0, -(2.0**-180)], rtol=1e-7)
    np.testing.assert_allclose(sorted(multipliers[1:3].imag), [-(2.0**-90), 2.0**-90], rtol=1e-7)
    # In an oblique basis rounding takes the last one, without a step in which it is all that is left.
    basis = np.array([[1, 2, 3, 1], [0, 1, 4, 2], [0, 0, 1, 5], [0, 0, 0, 1]])
    basis = basis @ np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 1, 1]])
    oblique = basis @ middle @ np.round(np.linalg.inv(basis))
    multipliers, exponents = _multipliers(np.repeat(oblique[None], 9, axis=0))
    np.testing.assert_allclose(exponents[:3], np.log(2) * np.array([0, -10, -10]), atol=1e-6)
    assert np.isneginf(exponents[3]) and multipliers[3] == 0


@pytest.mark.parametrize("distance", [1e-6, 1e-10, 1e-12])
def test_cycles_that_almost_exist(distance):
    """Beside a fold there is a pair of cycles on one side and none on the other."""
    parabola = DiscreteMap(lambda x, c: x + x**2 + c, {"c": 0.0})
    found = find_cycle(parabola.replace(c=-distance), -0.01, 1)
    assert found.state[0] == pytest.approx(-np.sqrt(distance)) and found.stable
    real = find_cycle(LOGISTIC.replace(r=1 + np.sqrt(8) + distance), 0.514, 3)
    assert abs(real.multipliers[0] - 1) == pytest.approx(16.65 * np.sqrt(distance), rel=0.02)
    for model, start, period in (
        (parabola.replace(c=distance), 0.01, 1),
        (parabola.replace(c=distance), -0.3, 1),
        (LOGISTIC.replace(r=1 + np.sqrt(8) - distance), 0.514, 3),
    ):
        with pytest.raises(NoCycleError, match=f"found no cycle of period {period} near it"):
            find_cycle(model, start, period)


def test_no_cycle_where_all_points_stay():
    """A cycle among many others cannot be told from a drift below rounding."""
    for step, period in ((lambda x: x + 0.0, 1), (lambda x: x + 1e-17, 1), (lambda x: -x, 2)):
        with pytest.raises(NoCycleError, match="a multiplier is 1 within 0, too close"):
            find_cycle(step, 0.5, period)


def test_branching_is_found_where_the_multiplier_is_1():
    """The cycle is certain at both ends of the bracket, and not at the point between."""
    pitchfork = DiscreteMap(lambda x, r: 0.3 + r * (x - 0.3) - (x - 0.3) ** 3, {"r": 0.5})
    found = bifurcation_point(pitchfork, 0.35, "r", (0.5, 1.4), 1)
    assert found.value == pytest.approx(1.0, abs=1e-9) and found.kind == "fold or branching"


def test_a_ghost_is_not_a_cycle():
    """Just before the 3-cycle is born, orbits linger where it will be."""
    before = LOGISTIC.replace(r=1 + np.sqrt(8) - 1e-9)
    ghost = regime(before, 0.5)
    assert (ghost.name, ghost.period) == ("undecided", None)
    assert "comes close after 3 steps" in ghost.reason and "find_cycle(model, final_state, 3)" in ghost.reason
    assert find_cycle(before, ghost.final_state, 3, throw=False) is None
    assert regime(before.replace(r=1 + np.sqrt(8) + 1e-4), 0.5).period == 3


def test_chaos_beside_tori_is_chaos():
    """Exponents that are found in any order: the largest decides."""

    def product(x):
        parts = on_circle(x[:2], GOLDEN), on_circle(x[2:4], 2 * np.pi * np.sqrt(2)), 3.99 * x[4:] * (1 - x[4:])
        return jnp.concatenate(parts)

    assert regime(product, [1.0, 0.0, 1.0, 0.0, 0.3], **SHORT).name == "chaos"
    driven = DiscreteMap(lambda x, r: jnp.array([0.5 * x[0] + x[1], r * x[1] * (1 - x[1])]), {"r": 4.0}, ("x", "y"))
    assert regime(driven, [0.1, 0.3], **SHORT, k=1).name == "chaos"
    found = phase_diagram(driven, [0.1, 0.3], {"r": [2.8, 3.2, 4.0]}, **SHORT, k=1)
    assert regime_names(found).values.tolist() == ["fixed point", "periodic", "chaos"]


@pytest.mark.parametrize("scale", [1e-12, 1e9])
def test_orbits_of_any_size(scale):
    found = phase_diagram(SCALED.replace(scale=scale), 0.3 * scale, {"r": [0.9, 2.8, 3.5, 3.83, 4.0]}, **SHORT)
    assert found.period.values.tolist() == [1, 1, 4, 3, 0]
    assert regime_names(found).values.tolist() == ["fixed point", "fixed point", "periodic", "periodic", "chaos"]


def test_orbits_smaller_than_the_tolerance():
    """A drift of 1e-10 a step is no fixed point, and a circle of radius 1e-10 is a torus."""
    drift = regime(lambda x: x + 1e-10, 0.3, **SHORT)
    assert (drift.name, drift.period) == ("undecided", None) and "drifts" in drift.reason
    for centre in (0.0, 1.0):
        small = regime(CIRCLE.replace(c=centre, radius=1e-10), [centre + 1e-10, centre], **SHORT)
        assert (small.name, small.period) == ("quasi-periodic", None)


def test_undecided_for_good_says_so():
    """No longer orbit decides these: the reason names them, and what to do."""
    rigid = regime(
        lambda x: jnp.concatenate([rotated(x[:2], GOLDEN), rotated(x[2:], 2.0)]), [1.0, 0.0, 0.5, 0.0], **SHORT
    )
    assert rigid.name == "undecided" and rigid.reason.startswith("3 exponents are 0") and "rigid" in rigid.reason
    almost = CIRCLE.replace(angle=2 * np.pi * (1 / 3 + 1e-4))
    found = regime(almost, [1.0, 0.0], **SHORT)
    assert found.name == "undecided" and "fraction of denominator 3;" in found.reason
    assert find_cycle(almost, found.final_state, 3, throw=False) is None


def test_supertransient_ends_in_a_cycle(window):
    """Chaos at β = 1.3 for 10^5 steps; of many copies followed for long, some have become the 32-cycle."""
    short = regime(paper(1.3), window)
    assert short.name == "chaos"
    found = lifetime(paper(1.3), window, copies=64, steps=600_000, looks=6)
    assert {0, 32} <= set(np.unique(found.periods)) <= {0, 32, 64}
    assert 1e6 < found.mean < 3e7 and found.error < found.mean
    ended = np.isfinite(found.ended)
    assert found.mean == pytest.approx(np.minimum(found.ended, 600_000).sum() / ended.sum())


def test_confirmation_runs_on():
    """A slow decay is undecided at first, and periodic when given time."""
    slow = LOGISTIC.replace(r=1.001)
    first = regime(slow, 0.6, steps=500, transient=500)
    assert first.name != "fixed point"
    later = regime(slow, 0.6, steps=500, transient=500, confirm=2_000_000)
    assert later.name == "fixed point" and later.period == 1
    assert len(later.changes) > 3 and later.changes[0][1] == first.name
    assert later.steps <= 2_001_000


def test_known_maps():
    def logistic(r):
        return regime(LOGISTIC.replace(r=r), 0.3, steps=5000, transient=5000)

    assert (logistic(2.8).name, logistic(2.8).period) == ("fixed point", 1)
    assert (logistic(3.5).name, logistic(3.5).period) == ("periodic", 4)
    assert (logistic(3.83).name, logistic(3.83).period) == ("periodic", 3)
    assert logistic(4.0).name == "chaos"
    # A rotation by the golden mean; a pair of independent doublings of the circle, as tent maps without dyadic points.
    torus = regime(CIRCLE, [1.0, 0.0], steps=5000, transient=100)
    assert torus.name == "quasi-periodic" and torus.zeros == 1
    pair = regime(lambda x: 3.99 * x * (1 - x), [0.3, 0.4], steps=5000, transient=100)
    assert pair.name == "hyperchaos"


def test_classification_rules():
    exponents = np.array([[0.1, -1], [0.1, 0.05], [1e-5, -0.1], [1e-5, -1e-5], [-0.1, -0.2], [-0.1, -0.2], [0.1, -1]])
    period = np.array([0, 0, 0, 0, 12, 0, 12])
    found = {"exponents": exponents, "errors": np.full_like(exponents, 1e-4), "period": period}
    code, zeros, _ = classify(found, 20_000)
    expected = ["chaos", "hyperchaos", "quasi-periodic", "quasi-periodic", "periodic", "undecided", "undecided"]
    assert [REGIMES[one] for one in code] == expected
    assert zeros.tolist() == [0, 0, 1, 2, 0, 0, 0]


def test_near_the_bifurcation_it_is_not_guessed(window):
    """Slow convergence: the exponent is negative, the state has not returned yet."""
    found = regime(paper(1.2434), window, steps=20_000, transient=20_000)
    assert found.name == "undecided" and "settling" in found.reason


def test_cycles_of_the_logistic_map():
    logistic = LOGISTIC.replace(r=3.2)
    assert find_cycle(logistic, 0.5, 2).multipliers[0].real == pytest.approx(4 + 2 * 3.2 - 3.2**2, abs=1e-10)
    found = bifurcation_point(logistic, 0.8, "r", (3.2, 3.5), 2)
    assert found.value == pytest.approx(1 + np.sqrt(6), abs=1e-9) and found.kind == "period doubling"
    unstable = find_cycle(logistic, 0.7, 1)
    assert not unstable.stable and unstable.state[0] == pytest.approx(1 - 1 / 3.2)
    with pytest.raises(NoCycleError, match="found no cycle of period 1"):
        find_cycle(lambda x: x + 1.0, 0.0, 1)
    with pytest.raises(ValueError, match="bracket: got"):
        bifurcation_point(logistic, 0.6, "r", (2.5, 2.9), 1)
    for bracket in (3, (3.0,), (3.2, 3.0), ("a", "b")):
        with pytest.raises(ValueError, match="bracket: got"):
            bifurcation_point(logistic, 0.6, "r", bracket, 1)
    with pytest.raises(ValueError, match="parameter: got 's'"):
        bifurcation_point(logistic, 0.6, "s", (2.5, 2.9), 1)
    with pytest.raises(ValueError, match="period: got 3; expected a multiple"):
        find_cycle(paper(1.2), paper(1.2).window(), 3)


def test_shorter_cycles_are_not_the_answer():
    logistic = LOGISTIC
    for start, period, true in ((0.3, 7, 1), (0.5, 8, 4)):
        with pytest.raises(NoCycleError, match=f"found a cycle of period {true} near it, none of {period}"):
            find_cycle(logistic, start, period)
        assert find_cycle(logistic, start, period, throw=False) is None
    # At 3.4 there is no 4-cycle yet: what Newton finds is the 2-cycle.
    with pytest.raises(NoCycleError, match="found a cycle of period 2 near it, none of 4"):
        bifurcation_point(logistic, 0.3, "r", (3.4, 3.5), 4)
    # Close to its birth at r = 3 the 2-cycle is still told from the fixed point: x± are 2 √(r − 3) / 6 or so apart.
    assert find_cycle(logistic.replace(r=3 + 1e-9), 0.66, 2).period == 2
    # Positions are part of the state: what returns after 1 step without them is the 4-cycle that they drive.
    quiet = paper(1.2)
    settled = orbit(quiet, quiet.window(), steps=1, transient=4003).final_state
    assert find_cycle(quiet, settled, 4).stable
    with pytest.raises(NoCycleError, match="found a cycle of period 4 near it, none of 12"):
        find_cycle(quiet, settled, 12)


def test_many_starts(window):
    starts = [window, *(paper(1.27).window(np.full((4, 3), size)) for size in (0.1, 0.2, 0.3, 0.4, 0.5))]
    found = attractors(paper(1.27), starts, steps=500, transient=100)
    assert regime_names(found).dims == ("start",) and found.exponents.shape == (6, 2)


def test_statistics_without_storing(window):
    model = paper(1.255)
    whole = orbit(model, window, steps=2000, transient=500).m_o
    found = orbit_statistics(model, window, steps=2000, transient=500, bins=50, limits=(-0.5, 0.5))
    np.testing.assert_allclose(found.average, whole.mean(axis=0), atol=1e-10)
    np.testing.assert_allclose(found.deviation, whole.std(axis=0), atol=1e-10)
    np.testing.assert_array_equal(found.lowest, whole.min(axis=0))
    counts = np.histogram(whole[:, 0], 50, (-0.5, 0.5))[0]
    assert np.abs(found.density.values - counts).sum() <= 2  # a value on an edge may fall either way


def test_spectra():
    steps = np.arange(8192)
    wave = np.cos(2 * np.pi * steps / 16) + 0.5 * np.cos(2 * np.pi * steps / 4)
    power = power_spectrum(np.stack([wave, np.roll(wave, 3)], axis=1), segment=1024)
    assert power.dims == ("frequency", "feature") and float(power[:, 0].idxmax()) == 1 / 16
    # Parseval: the power adds up to the variance.
    total = float(power[:, 0].sum() * (power.frequency[1] - power.frequency[0]))
    assert total == pytest.approx(wave.var(), rel=0.02)
    lagged = autocorrelation(np.random.default_rng(0).normal(size=20_000), lags=5)
    assert lagged[0] == 1 and np.abs(lagged[1:]).max() < 0.03
    assert np.isnan(autocorrelation(np.ones(20), lags=2)).all()
    with pytest.raises(ValueError, match="lags: got 30; expected less than 20"):
        autocorrelation(np.arange(20.0), lags=30)
    with pytest.raises(ValueError, match="segment: got 64"):
        power_spectrum(np.arange(20.0), segment=64)

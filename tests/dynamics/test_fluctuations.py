"""Linear noise about the mean field, against ensembles of finite networks, exact laws at small N, and identities."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from thermoformer.dynamics import (
    Features,
    FiniteNetwork,
    MeanField,
    find_cycle,
    fluctuations,
    iterate,
    lyapunov_spectrum,
    orbit,
    phase_diffusion,
    stationary_covariance,
)

from .ensembles import covariance_scores, ensemble, overlaps_of

PAPER = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
HEADS = MeanField(Features.random(30, 2, heads=2, key=3), beta=0.8, gamma=3.0, epsilon=0.1)
# Ensembles of one size share a program. A z of 5 is seen once in 10^6 numbers, of which no test has more than 10^4.
STEPS, COPIES, LARGEST_Z = 24, 4000, 5.0
# Cycles of the paper's network: β, period.
CYCLES = ((1.2, 4), (2.8, 24))


def cycle_at(beta, period):
    model = PAPER.replace(beta=beta)
    return model, find_cycle(model, iterate(model, model.token(), 20_000), period)


def run(model, bits, form="classes", copies=COPIES, steps=STEPS):
    """Overlaps [copy, step, overlap] of finite networks, and the linear noise from the same token."""
    network = FiniteNetwork(model.features, model.beta, model.gamma, model.epsilon, bits=bits)
    found = network.run(steps, copies=copies, key=1, form=form)
    parts = [getattr(found, f"m_{role}").reshape(copies, steps, -1) for role in "ovqk"]
    return np.concatenate(parts, axis=2), fluctuations(model, model.token(keep=True), steps)


# Exact: one step from a given token, at any N.


@pytest.mark.parametrize("heads", [1, 2])
def test_one_step_is_exact_at_any_size(heads):
    """Every token of one step with its probability: mean and covariance of its overlaps, no large N."""
    features = Features.random(9, 2, heads=heads, key=6)
    model = MeanField(features, beta=0.6, gamma=3.0, epsilon=0.1)
    found = fluctuations(model, model.token(keep=True), 2)
    A = orbit(model, model.token(keep=True), steps=1).A[0]
    up = (1 + np.tanh(0.6 * A @ features.columns["o"])) / 2
    tokens = np.array(list(itertools.product((-1, 1), repeat=9)))
    probabilities = np.prod(np.where(tokens > 0, up, 1 - up), axis=1)
    points = []
    for token in tokens:
        overlaps = features.token_overlaps([*token, *model.positions[1]], 0.1)
        points.append(np.concatenate([overlaps[role].ravel() for role in "ovqk"]))
    mean = probabilities @ points
    offsets = np.array(points) - mean
    np.testing.assert_allclose(found.mean[1], mean, atol=1e-13)
    np.testing.assert_allclose(found.covariance[1] / 9, (offsets.T * probabilities) @ offsets, atol=1e-13)
    assert not found.covariance[0].any()


# Ensembles of finite networks.


@pytest.mark.parametrize(
    ("beta", "bits", "steps"),
    # Until attention next jumps between tokens, linear noise holds at this size.
    [(2.8, 999_999, STEPS), (2.8, 99_999_999, STEPS), (1.27, 99_999, 7), (1.27, 99_999_999, STEPS)],
)
def test_covariances_of_finite_networks(beta, bits, steps):
    samples, found = run(PAPER.replace(beta=beta), bits)
    scores = covariance_scores(samples, found.covariance, bits)[1:steps]
    assert np.abs(scores).max() < LARGEST_Z
    # A wrong scale moves all of them at once: three class sums have six covariances at each step.
    assert np.mean(scores**2) < 2
    deviation = found.deviation(bits, "v")
    np.testing.assert_allclose(
        samples[:, 1:steps, 3:6].std(axis=0, ddof=1), deviation[1:steps], rtol=LARGEST_Z * 0.0112
    )
    t, s = steps - 1, steps - 4
    both = samples[:, [t, s]] - samples[:, [t, s]].mean(axis=0)
    measured = bits * np.einsum("ca,cb->ab", both[:, 0], both[:, 1]) / (COPIES - 1)
    expected = found.correlation(t, s)
    variances = np.diagonal(found.covariance[t])[:, None] * np.diagonal(found.covariance[s])[None]
    assert (np.abs(measured - expected) < LARGEST_Z * np.sqrt((variances + expected**2) / COPIES) + 1e-9).all()


def test_explicit_bits_at_small_size():
    """300 bits, each drawn by itself, two heads. With weak attention the first order is exact within about 1/300."""
    samples, found = run(HEADS, 300, "bits", steps=9)
    assert np.abs(covariance_scores(samples, found.covariance, 300)).max() < LARGEST_Z


@pytest.mark.parametrize(("beta", "period"), CYCLES)
def test_stationary_covariance_on_cycles(beta, period):
    model, cycle = cycle_at(beta, period)
    found = stationary_covariance(model, cycle, steps=2 * period)
    # It comes back after a period, and is where fluctuations end that begin with none.
    scale = np.abs(found.covariance).max()
    np.testing.assert_allclose(found.covariance[period:], found.covariance[:period], atol=1e-12 * scale)
    # Fluctuations forget as the square of the largest multiplier; it is up to 0.95 in 4 steps here.
    late = fluctuations(model, cycle.state, 1200 + period).covariance[1200:]
    np.testing.assert_allclose(late, found.covariance[:period], atol=1e-9 * scale)
    # The spread of an ensemble that began on the cycle: after 10 multiples of the memory only this is left.
    bits, steps = 99_999_999, 240 + period
    samples = ensemble(model, cycle.state, steps, bits=bits, copies=1000, seed=1)[:, -period:]
    scores = covariance_scores(samples, fluctuations(model, cycle.state, steps).covariance[-period:], bits)
    assert np.abs(scores).max() < LARGEST_Z and np.mean(scores**2) < 2
    forgotten = np.abs(cycle.multipliers[0]) ** (2 * 240 / period)
    closeness = np.abs(late - fluctuations(model, cycle.state, steps).covariance[-period:]).max() / scale
    assert closeness < 10 * forgotten + 1e-12


def test_memory_on_a_cycle_is_that_of_its_multipliers():
    """The window Jacobian of one period has the multipliers of the cycle, and is else 0."""
    from thermoformer.dynamics.fluctuations import _begin, _pushed_from

    model, cycle = cycle_at(1.2, 4)
    jacobian = _pushed_from(*_begin(model, cycle.state), np.int64(4))[1]
    found = np.sort(np.abs(np.linalg.eigvals(jacobian)))[::-1]
    np.testing.assert_allclose(found[:4], np.abs(cycle.multipliers[:4]), atol=1e-9)
    assert len(found) == 48 and found[12] < 1e-3


def angles(points, about):
    """Unwrapped angles of points [..., step, overlap] in the plane of the largest variance of an orbit."""
    middle = about.mean(axis=0)
    plane = np.linalg.svd(about - middle, full_matrices=False)[2][:2].T
    x, y = np.moveaxis((points - middle) @ plane, -1, 0)
    return np.unwrap(np.arctan2(y, x), axis=-1), plane, middle


def test_phase_diffusion_on_a_torus():
    model = PAPER.replace(beta=1.255)
    state = iterate(model, model.token(), 20_000)
    found = phase_diffusion(model, state, transient=5000)
    # The documentation has this number.
    assert found.constant == pytest.approx(1031.2, abs=1) and found.error < 0.5
    # Another part of the orbit, and longer: the same within the errors.
    again = phase_diffusion(model, iterate(model, state, 777), steps=20_000, transient=5000)
    assert abs(again.constant - found.constant) < LARGEST_Z * np.hypot(found.error, again.error)
    assert again.rotation == pytest.approx(found.rotation, abs=1e-3)
    # The variance of the angle grows as 2 D t, here without the adjoint: of each radian of phase, dθ/dφ has mean 1.
    noise = fluctuations(model, state, 12_001)
    seen = noise.mean[::4]
    _, plane, middle = angles(seen, seen)
    x, y = ((seen - middle) @ plane).T
    gradient = (np.stack([-y, x], axis=1) / (x**2 + y**2)[:, None]) @ plane.T
    deviation = np.sqrt(np.einsum("ta,tab,tb->t", gradient, noise.covariance[::4], gradient))
    # Mean deviations at 5000 and 11 000 steps; the start takes the same from both.
    means = [deviation[chosen].mean() ** 2 for chosen in (slice(1000, 1501), slice(2500, 3001))]
    assert (means[1] - means[0]) / 12_000 == pytest.approx(found.constant, rel=5e-3)
    # Ensembles: from 400 copies a deviation has an error of 3.5 %. At the smaller size phases spread by 0.6 radians.
    for bits in (9_999_999, 999_999_999):
        samples = ensemble(model, state, 1601, bits=bits, copies=400, seed=2)[:, ::4]
        spread = angles(samples, seen)[0].std(axis=0, ddof=1)
        ratios = np.sqrt(bits) * spread[200:] / deviation[200:401]
        assert abs(ratios.mean() - 1) < LARGEST_Z * np.sqrt(1 / 800)


@pytest.mark.parametrize("beta", [1.28, 1.4])
def test_horizon_in_chaos(beta):
    model = PAPER.replace(beta=beta)
    state = iterate(model, model.token(), 5000)
    exponent = lyapunov_spectrum(model, state, steps=20_000, k=1).exponents[0]
    extent = orbit(model, state, steps=10_000).m_o.std(axis=0)
    found = fluctuations(model, state, 200)
    horizons = []
    for bits in (9_999_999, 999_999_999, 99_999_999_999):
        horizons.append(found.horizon(bits, extent))
        # When half of the variance of the attractor is reached; a factor e² of the spread is 2/λ₁ steps.
        samples = ensemble(model, state, 160, bits=bits, copies=300, seed=1)[:, :, :3]
        saturated = np.flatnonzero(samples.var(axis=0).sum(axis=1) > np.sum(extent**2) / 2)[0]
        assert abs(horizons[-1] - saturated) < 2 / exponent
    # ln(√N)/λ₁ with local exponents instead of their mean.
    assert (np.diff(horizons) >= 0).all() and horizons[-1] < 2 * np.log(np.sqrt(bits)) / exponent
    assert fluctuations(model, state, 5).horizon(bits, extent) is None


# Identities.


@pytest.mark.parametrize("start", ["token", "kept", "window"])
@pytest.mark.parametrize("model", [PAPER, HEADS], ids=["paper", "heads"])
def test_means_are_the_orbit(model, start):
    state = {"token": model.token(), "kept": model.token(keep=True), "window": model.window()}[start]
    found, expected = fluctuations(model, state, STEPS), orbit(model, state, steps=STEPS)
    parts = [getattr(expected, f"m_{role}").reshape(STEPS, -1) for role in "ovqk"]
    np.testing.assert_allclose(found.mean, np.concatenate(parts, axis=1), atol=1e-11)


@pytest.mark.parametrize("model", [PAPER.replace(beta=1.1, gamma=60.0), HEADS], ids=["paper", "heads"])
def test_responses_are_derivatives_of_the_mean_field(model):
    """Overlaps of a token are moved up and down; a computation without derivatives follows the window."""
    state = iterate(model, model.window(), 6)
    found, first, size = fluctuations(model, state, 9), overlaps_of(model, state), 1e-5
    for moved in (1, len(first[0]) // 2, len(first[0]) - 1):
        ends = []
        for sign in (1, -1):
            start = first.copy()
            start[0, moved] += sign * size
            ends.append(ensemble(model, state, 9, bits=None, copies=1, seed=0, start=start)[0])
        for t in range(9):
            slope = (ends[0][t] - ends[1][t]) / (2 * size)
            np.testing.assert_allclose(found.response(t, 0)[:, moved], slope, atol=1e-7 * max(1, np.abs(slope).max()))
    # A later token is the first one of another start.
    later = fluctuations(model, iterate(model, state, 3), 6)
    np.testing.assert_allclose(found.response(8, 3), later.response(5, 0), atol=1e-9)
    assert not found.response(3, 8).any()
    np.testing.assert_array_equal(found.response(4, 4), np.eye(len(first[0])))


def test_covariance_is_the_sum_of_what_each_step_adds():
    """N·Cov(z_t, z_s) = Σ_u R(t, u) Q_u R(s, u)ᵀ, with Q from a record that begins at u."""
    state = iterate(PAPER, PAPER.window(), 50)
    found = fluctuations(PAPER, state, 10, drawn=False)
    for t, s in ((8, 8), (8, 5), (5, 8)):
        total = 0.0
        for u in range(1, min(t, s) + 1):
            noise = fluctuations(PAPER, iterate(PAPER, state, u - 1), 2).covariance[1]
            total = total + found.response(t, u) @ noise @ found.response(s, u).T
        np.testing.assert_allclose(found.correlation(t, s), total, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.correlation(8, 8), found.covariance[8], atol=1e-9)
    # The window has the same covariances as pairs of tokens.
    np.testing.assert_allclose(found.window[1, :, 3, :], found.correlation(9, 7), atol=1e-9)


def test_bits_that_are_drawn_in_the_start():
    state = iterate(PAPER, PAPER.window(), 50)
    given, drawn = (fluctuations(PAPER, state, 3, drawn=flag) for flag in (False, True))
    before = iterate(PAPER, PAPER.window(), 49)
    one_step = fluctuations(PAPER, before, 2).covariance[1]
    assert not given.covariance[0].any()
    np.testing.assert_allclose(drawn.covariance[0], one_step, atol=1e-12)
    assert np.trace(drawn.covariance[1]) > np.trace(given.covariance[1])


def test_columns_count_by_their_fractions_only():
    whole = MeanField(Features.paper().with_bits(99), 1.27, 220.0, 0.02)
    one, other = (fluctuations(model, model.token(keep=True), 9) for model in (PAPER, whole))
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-9, atol=1e-9)


def test_transforms():
    def total(beta):
        return fluctuations(PAPER.replace(beta=beta), PAPER.token(keep=True), 6).covariance[5, 0, 0]

    betas = np.array([1.1, 1.27])
    np.testing.assert_allclose(jax.jit(jax.vmap(total))(betas), [total(beta) for beta in betas], rtol=1e-9)


def test_axes_and_names():
    found = fluctuations(HEADS, HEADS.window(), 4)
    dataset = found.to_xarray()
    assert dict(dataset.sizes) == {"step": 4, "overlap": 14, "other": 14, "token": 4, "other_token": 4}
    assert found.names[:3] == ("m_o[0]", "m_o[1]", "m_v[0]") and found.names[-1] == "m_k[3]"
    by_name = dataset.covariance.sel(overlap="m_q[1]", other="m_q[1]").values
    np.testing.assert_allclose(found.deviation(10_000, "q")[:, 1], np.sqrt(by_name / 10_000))
    assert set(phase_diffusion_record().to_xarray().data_vars) == {"constant", "error", "rotation"}


def phase_diffusion_record():
    model = PAPER.replace(beta=1.255)
    return phase_diffusion(model, model.token(), transient=5000)


# What is refused.

GAUSSIAN = MeanField(Features.gaussian(3, 0.2, key=1), 1.2, 20.0, 0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fluctuations(lambda x: x, 0.3, 5), "model: got function; expected a MeanField"),
        (lambda: fluctuations(GAUSSIAN, GAUSSIAN.window(np.zeros((4, 3))), 5), "model: got features known by corr"),
        (lambda: fluctuations(PAPER, 0.3, 5), "state: got float; expected a Window"),
        (lambda: fluctuations(PAPER, PAPER.token(), 0), "steps: got 0; expected a whole number, 1 or more"),
        (lambda: fluctuations(PAPER, PAPER.token(), 5, drawn="no"), "drawn: got 'no'; expected True or False"),
        (lambda: fluctuations(PAPER, PAPER.token(), 5).deviation(9, "x"), "role: got 'x'; expected one of"),
        (lambda: fluctuations(PAPER, PAPER.token(), 5).deviation(0), "bits: got 0; expected"),
        (lambda: fluctuations(PAPER, PAPER.token(), 5).correlation(1, -1), "s: got -1; expected"),
        (lambda: fluctuations(PAPER, PAPER.token(), 5).horizon(9, [1.0]), "extent: got .* expected 3 numbers above 0"),
        (lambda: stationary_covariance(PAPER, PAPER.window()), "cycle: got Window; expected a Cycle"),
        (lambda: stationary_covariance(PAPER, cycle_at(1.2, 4)[1]), "cycle: got a state that misses .* this model"),
        (lambda: phase_diffusion(PAPER, PAPER.token(), steps=7), "steps: got 7; expected 40 or more"),
        (lambda: phase_diffusion(PAPER, PAPER.token()), "state: got an orbit whose tangent vectors shrink"),
        (lambda: phase_diffusion(PAPER.replace(beta=1.28), PAPER.token()), "state: got .* tangent vectors grow"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_unstable_cycles_and_covariances_too_large_are_refused():
    model, cycle = cycle_at(1.2, 4)
    unstable = find_cycle(model.replace(beta=1.26), cycle.state, 4)
    with pytest.raises(ValueError, match=r"cycle: got a multiplier of modulus 1\.\d+; expected a stable cycle"):
        stationary_covariance(model.replace(beta=1.26), unstable)
    with pytest.raises(ValueError, match=r"steps: got 4000; expected at most \d+: later covariances are too large"):
        fluctuations(PAPER.replace(beta=1.28), iterate(PAPER, PAPER.token(), 100), 4000)
    many = MeanField(Features.random(9, 3, positional_bits=9, key=1), 1.0, 1.0, 0.1)
    with pytest.raises(ValueError, match=r"model: got 512 tokens of 12 overlaps .* at most 4096 overlaps"):
        fluctuations(many, many.window(np.zeros((512, 3))), 2)

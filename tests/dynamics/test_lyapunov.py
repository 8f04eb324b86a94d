"""Exponents against known maps, the reference run, and the definition."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thermoformer.dynamics import (
    DiscreteMap,
    Features,
    MeanField,
    Window,
    kaplan_yorke_dimension,
    local_exponents,
    lyapunov_spectrum,
    orbit,
)
from thermoformer.dynamics.engine import kept_rows
from thermoformer.dynamics.lyapunov import _grow, _tangents
from thermoformer.dynamics.tangents import Exponents, largest_first, orthonormalise


def henon(x, a=1.4, b=0.3):
    return jnp.array([1 - a * x[0] ** 2 + x[1], b * x[0]])


def paper(beta: float) -> MeanField:
    return MeanField(Features.paper(), beta=beta, gamma=220.0, epsilon=0.02)


def test_henon_map():
    """Sum of both: ln 0.3 exactly. The leading one is 0.419."""
    found = lyapunov_spectrum(henon, [0.1, 0.1], steps=200_000, transient=1000)
    assert found.exponents.sum() == pytest.approx(np.log(0.3), abs=1e-9)
    assert abs(found.exponents[0] - 0.4192) < 4 * found.errors[0] + 1e-4
    assert found.errors[0] < 0.002
    assert found.kaplan_yorke_dimension == pytest.approx(1.258, abs=0.003)
    assert found.running.shape == (20, 2)
    np.testing.assert_allclose(found.running[-1], found.exponents)


def test_logistic_map():
    """ln 2 at r = 4, and the value at the golden-mean-like cycle: ln |f'| averaged over a 2-cycle."""
    logistic = DiscreteMap(lambda x, r: r * x * (1 - x), {"r": 4.0})
    found = lyapunov_spectrum(logistic, 0.3, steps=200_000, transient=10)
    assert abs(found.exponents[0] - np.log(2)) < 5 * found.errors[0] + 1e-4
    two = lyapunov_spectrum(logistic.replace(r=3.2), 0.3, steps=1000, transient=2000)
    # Of the 2-cycle of r the product of slopes is 4 + 2r − r².
    assert two.exponents[0] == pytest.approx(np.log(abs(4 + 2 * 3.2 - 3.2**2)) / 2, abs=1e-9)


def driven(x, r=4.0):
    """A logistic map that drives a contraction: the first unit vector spans an invariant subspace."""
    return jnp.array([0.5 * x[0] + x[1], r * x[1] * (1 - x[1])])


def test_no_invariant_subspace_hides_the_largest():
    for k in (1, 2):
        found = lyapunov_spectrum(driven, [0.1, 0.3], steps=5000, transient=500, k=k)
        expected = [np.log(2), np.log(0.5)][:k]
        assert np.all(np.abs(found.exponents - expected) < 5 * found.errors + 1e-3)
    np.testing.assert_allclose(found.running[-1], found.exponents, atol=1e-12)
    assert local_exponents(driven, [0.1, 0.3], steps=2000, k=1).mean() == pytest.approx(np.log(2), abs=0.02)


def by_name(name, matrix):
    """Entries of a matrix as parameters: maps with other matrices then share their programs."""
    return {f"{name}{number}": value for number, value in enumerate(matrix.ravel())}


def entries(parameters, name, size):
    return jnp.stack([parameters[f"{name}{number}"] for number in range(size**2)]).reshape(size, size)


def linear(matrix):
    size = len(matrix)
    return DiscreteMap(linear_step, by_name("m", matrix), tuple(f"x{number}" for number in range(size)))


def linear_step(x, **numbers):
    return entries(numbers, "m", len(x)) @ x


def test_coordinates_do_not_matter():
    """Permuted or mixed coordinates leave the spectrum as it is. On a 2-cycle it is exact, and nothing scatters."""
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])

    def step(x, **mixing):
        """A driven logistic map beside a rotation on a circle, in other coordinates."""
        there, back = (entries(mixing, name, 4) for name in "mi")
        y = back @ x
        circle = turn @ y[2:]
        return there @ jnp.concatenate([driven(y[:2], 3.2), circle / jnp.sqrt(jnp.sum(circle**2))])

    mixings = [np.eye(4), np.eye(4)[[1, 2, 0, 3]], np.eye(4) + 0.3 * np.random.default_rng(3).normal(size=(4, 4))]
    expected = [0.0, np.log(0.5), np.log(4 + 2 * 3.2 - 3.2**2) / 2]
    for mixing in mixings:
        numbers = by_name("m", mixing) | by_name("i", np.linalg.inv(mixing))
        model, start = DiscreteMap(step, numbers, ("a", "b", "c", "d")), mixing @ np.array([0.1, 0.3, 1.0, 0.0])
        few, whole = (lyapunov_spectrum(model, start, steps=2000, transient=1000, k=k).exponents for k in (2, 4))
        np.testing.assert_allclose(whole[:3], expected, atol=1e-3)
        assert np.isneginf(whole[3])
        np.testing.assert_allclose(few, whole[:2], atol=1e-9)


def test_lost_shares_follow_their_exponents():
    """The largest first, the lost ones last, with the blocks and shares of the same vectors."""
    blocks = np.array([[[1.0, 3.0, -2.0, 9.0], [1.0, 5.0, 0.0, 9.0]]])
    sorted_blocks, lost = largest_first(blocks, np.array([[1e-5, 2e-5, 0.5, 0.0]]))
    np.testing.assert_array_equal(sorted_blocks, blocks[:, :, [1, 0, 2, 3]])
    np.testing.assert_array_equal(lost, [[2e-5, 1e-5, 0.5, 0.0]])


def test_linear_maps_are_exact():
    """Logarithms of the moduli of eigenvalues, complex pairs included; frames at an interval change nothing."""
    angle = 0.7
    turn = 0.9 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = np.zeros((4, 4))
    matrix[:2, :2], matrix[2, 2], matrix[3, 3] = turn, 0.5, 0.1
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    matrix = basis @ matrix @ basis.T
    expected = np.log([0.9, 0.9, 0.5, 0.1])
    for every in (1, 5):
        found = lyapunov_spectrum(linear(matrix), np.ones(4), steps=4000, transient=10, every=every)
        np.testing.assert_allclose(found.exponents, expected, atol=1e-3)
    assert found.lost.max() == 0


def test_k_leading_are_the_first_of_all():
    model = paper(1.27)
    start = model.window()
    every = lyapunov_spectrum(model, start, steps=500, transient=500)
    for k in (1, 3, 7):
        found = lyapunov_spectrum(model, start, steps=500, transient=500, k=k)
        np.testing.assert_allclose(found.exponents, every.exponents[:k], atol=1e-10)


def test_many_vectors_take_the_other_way():
    """48 exponents go through QR in intervals; the leading ones are those of Gram–Schmidt at every step."""
    model = MeanField(Features.segments(3, 3, positional_bits=4, key=1), 1.4, 220.0, 0.02)
    start = orbit(model, model.token(), steps=1, transient=1000).final_state
    # Both align their vectors over 16 steps: two intervals of the many, sixteen of the few.
    whole = lyapunov_spectrum(model, start, steps=160, transient=16, blocks=2)
    few = lyapunov_spectrum(model, start, steps=160, transient=16, k=10, blocks=2)
    assert whole.exponents.shape == (48,)
    np.testing.assert_allclose(whole.exponents[:10], few.exponents, atol=1e-8)
    # Three site classes span three features, but the token that leaves the window takes three directions with it.
    assert np.isneginf(whole.exponents).any() and np.isnan(whole.errors[np.isneginf(whole.exponents)]).all()


UNIT_VECTORS = np.eye(12).reshape(4, 3, 12)[::-1].reshape(12, 12)


def from_unit_vectors(model, state, steps):
    """Local exponents [step, exponent] of tangents that start as the reference's: unit vectors, newest token first."""
    lanes, lane_state = model.in_lanes([state])
    carry = _tangents(lanes, lane_state, Exponents(jnp.asarray(UNIT_VECTORS), 1))
    return kept_rows(_grow, lanes, carry, steps)[1][0]


def test_reference_local_exponents(reference):
    """The first steps from the reference's window; then all 400 along its own orbit, where chaos cannot part us."""
    data = reference("dynamics/lyap_beta1.27_tr0_max400.npz")
    expected = data["lyapunov_per_step"][:, :3]
    model = paper(1.27)
    # As many steps as in the next test, for which the same program is compiled.
    found = from_unit_vectors(model, model.window(data["A0"], data["positions0"]), 2000)
    np.testing.assert_allclose(found[:40, :3], expected[:40], atol=1e-8)
    history = np.concatenate([data["A0"][::-1], data["A"]])
    lanes, _ = model.in_lanes([Window(data["A0"], data["positions0"])])
    columns = UNIT_VECTORS.reshape(12, 4, 3, 1)  # in their slots, the oldest token's first

    @jax.jit
    def one(window, slot, columns):
        """Tangents at the reference's window, whose tokens sit in their slots."""
        state = replace(lanes.start(window), slot=slot)
        return lanes.push(lanes.linearise(state), columns)

    local = []
    for step in range(400):
        window = np.zeros((4, 3, 1))
        for token in range(4):
            window[(step + token) % 4, :, 0] = history[step + token]
        pushed = np.asarray(one(window, step % 4, columns))
        units, triangle = np.linalg.qr(pushed.reshape(12, 12).T)
        columns = units.T.reshape(pushed.shape)
        local.append(np.log(np.abs(np.diag(triangle)[:3])))
    np.testing.assert_allclose(np.array(local), expected, atol=1e-8)


def test_reference_point(reference):
    data = reference("dynamics/point_beta1.24_transient5000_steps2000.npz")
    model = paper(1.24)
    start = model.window(data["A0"], data["positions0"])
    found = from_unit_vectors(model, orbit(model, start, steps=1, transient=4999).final_state, 2000).mean(axis=0)
    np.testing.assert_allclose(found, data["lyapunov_mean_all20"][:12], rtol=0, atol=1e-10)
    late = orbit(model, start, steps=200, transient=5000)
    np.testing.assert_allclose(late.A, data["A"][:200], rtol=0, atol=1e-10)


def test_exponents_lost_to_rounding_are_minus_infinity():
    """A direction that shrinks by 1e-20 a step cannot be told from one that vanishes."""
    found = lyapunov_spectrum(linear(np.diag([2.0, 1e-20, 0.0])), np.ones(3), steps=100, transient=0)
    # A diagonal map keeps its directions apart: 1e-20 is still told, 0 is not.
    assert found.exponents[1] == pytest.approx(np.log(1e-20))
    assert np.isneginf(found.exponents[2])
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    mixed = basis @ np.diag([2.0, 0.5, 1e-20]) @ basis.T
    found = lyapunov_spectrum(linear(mixed), np.ones(3), steps=100, transient=0)
    np.testing.assert_allclose(found.exponents[:2], np.log([2.0, 0.5]), atol=0.05)
    assert np.isneginf(found.exponents[2]) and np.isnan(found.errors[2])
    still = lyapunov_spectrum(paper(0.0), paper(0.0).window(np.zeros((4, 3))), steps=50, transient=0)
    assert np.isneginf(still.exponents).all()


def test_error_bars_cover():
    """A skewed tent map, whose local exponents are independent: averages scatter as their errors say."""
    low = 0.3
    exact = -low * np.log(low) - (1 - low) * np.log(1 - low)

    def tent(x):
        return jnp.where(x < low, x / low, (1 - x) / (1 - low))

    starts = np.random.default_rng(0).uniform(0.1, 0.9, 60)
    found = [lyapunov_spectrum(tent, start, steps=4000, transient=50) for start in starts]
    z = np.array([(one.exponents[0] - exact) / one.errors[0] for one in found])
    assert 0.75 < np.std(z) < 1.35 and abs(np.mean(z)) < 0.5


def test_orthonormal_in_every_way():
    columns = np.random.default_rng(0).normal(size=(30, 40, 3))
    for count in (5, 30):
        units, logarithms, lost = jax.jit(orthonormalise)(columns[:count])
        gram = np.einsum("ain,bin->abn", np.asarray(units), np.asarray(units))
        np.testing.assert_allclose(gram, np.repeat(np.eye(count)[..., None], 3, axis=2), atol=1e-12)
        triangle = np.linalg.qr(columns[:count].transpose(2, 1, 0))[1]
        expected = np.log(np.abs(np.diagonal(triangle, axis1=1, axis2=2))).T
        np.testing.assert_allclose(np.asarray(logarithms), expected, atol=1e-12)
        assert not np.asarray(lost).any()


def test_bad_input():
    model = paper(1.27)
    with pytest.raises(ValueError, match="k: got 13; expected at most 12"):
        lyapunov_spectrum(model, model.token(), k=13)
    with pytest.raises(ValueError, match="k: got 0"):
        lyapunov_spectrum(model, model.token(), k=0)
    with pytest.raises(ValueError, match="every: got 0"):
        lyapunov_spectrum(model, model.token(), every=0)
    with pytest.raises(ValueError, match="steps: got 0"):
        lyapunov_spectrum(model, model.token(), steps=0)
    with pytest.raises(ValueError, match="model: got int; expected a MeanField"):
        lyapunov_spectrum(3, 0.1)
    with pytest.raises(ValueError, match=r"state: got shape \(3,\)"):
        lyapunov_spectrum(DiscreteMap(henon, {}, ("x", "y")), [0.1, 0.2, 0.3], steps=5)
    with pytest.raises(ValueError, match="state: got 1 NaN"):
        lyapunov_spectrum(henon, [0.1, np.nan], steps=5)


def test_dimension_of_a_spectrum():
    assert kaplan_yorke_dimension([0.5, -1.0]) == kaplan_yorke_dimension([-1.0, 0.5]) == 1.5
    assert kaplan_yorke_dimension([0.1, -np.inf]) == 1.0
    assert np.isnan(kaplan_yorke_dimension([0.1]))


@pytest.mark.parametrize("exponents", [[np.nan, 1.0], [np.inf, 1.0], [], ["a"], [[0.5, -1.0]], [[0.5], [1.0, 2.0]]])
def test_what_is_no_spectrum(exponents):
    with pytest.raises(ValueError, match="exponents: got"):
        kaplan_yorke_dimension(exponents)


def test_one_block_has_no_error():
    found = lyapunov_spectrum(lambda x: 4 * x * (1 - x), 0.3, steps=100, transient=10, blocks=1)
    assert np.isfinite(found.exponents).all() and np.isnan(found.errors).all()

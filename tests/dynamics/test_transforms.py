"""jit, vmap and derivatives through steps, orbits and exponents, against loops and finite differences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thermoformer.dynamics import DiscreteMap, Features, MeanField, iterate, lyapunov_spectrum, orbit, orbit_statistics

MODEL = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
WINDOW = MODEL.window(np.linspace(-0.3, 0.4, 12).reshape(4, 3))
BETAS = np.array([1.2, 1.27, 1.4])


def as_numbers(tree):
    """NumPy arrays, whose entries can be read without a program for each."""
    return jax.tree.map(np.asarray, tree)


def slope(function, at: float, step: float = 1e-4):
    """The derivative by central differences of fourth order."""
    ends = [np.asarray(function(at + size * step)) for size in (-2, -1, 1, 2)]
    return (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step)


def _step(numbers):
    return MODEL.replace(**dict(zip(MODEL.parameters, numbers, strict=True))).step(WINDOW).A[0]


def _grown(numbers):
    """From one token, through the growing window and steps of the full one, of which some are kept and some are not."""
    model = MeanField(MODEL.features, *numbers, context=2)
    return orbit(model, model.token(), steps=5, transient=5).m_o[-1]


@pytest.fixture(scope="module")
def derivatives():
    """Jacobians [output, parameter] with respect to all parameters, so that each way is one program."""
    at = np.array([*MODEL.parameters.values()])
    ways = (jax.jacfwd, jax.jacrev)
    # Compiled as a whole: eager derivatives compile every operation by itself. The next test has one of these.
    return {function: [np.asarray(jax.jit(way(function))(at)) for way in ways] for function in (_step, _grown)}


@pytest.mark.parametrize(("number", "value"), [*enumerate(MODEL.parameters.values())])
def test_derivatives_of_a_step_and_of_an_orbit(derivatives, number, value):
    def changed(other):
        return [other if place == number else kept for place, kept in enumerate(MODEL.parameters.values())]

    for function, found in derivatives.items():
        expected = slope(lambda other, function=function: function(changed(other)), value, step=1e-4 * value)
        for jacobian in found:
            np.testing.assert_allclose(jacobian[:, number], expected, rtol=1e-6, atol=1e-9)


def test_derivative_with_respect_to_the_start():
    direction = np.cos(np.arange(12.0)).reshape(4, 3)

    def end(size):
        return orbit(MODEL, MODEL.window(WINDOW.A + size * direction), steps=6).A[-1]

    np.testing.assert_allclose(jax.jacfwd(end)(0.0), slope(end, 0.0), rtol=1e-6, atol=1e-9)


def test_vmap_of_steps_and_orbits_is_a_loop():
    def numbers(beta):
        model = MODEL.replace(beta=beta)
        found = orbit(model, WINDOW, steps=30, transient=10)
        return model.step(WINDOW).A, found.A, found.m_o, found.m_k, found.final_state.A

    together, compiled = as_numbers(jax.vmap(numbers)(BETAS)), as_numbers(jax.jit(jax.vmap(numbers))(BETAS))
    for index, beta in enumerate(BETAS):
        for one, two, alone in zip(together, compiled, numbers(float(beta)), strict=True):
            np.testing.assert_allclose(one[index], alone, rtol=0, atol=1e-12)
            np.testing.assert_allclose(two[index], alone, rtol=0, atol=1e-12)


def test_vmap_of_exponents_is_a_loop():
    def exponents(beta):
        # So few steps that chaos does not make rounding grow past the bound below.
        found = lyapunov_spectrum(MODEL.replace(beta=beta), WINDOW, steps=60, transient=20, k=4, blocks=2)
        return found.exponents, found.errors, found.running

    together = as_numbers(jax.jit(jax.vmap(exponents))(BETAS))
    for index, beta in enumerate(BETAS):
        alone = exponents(float(beta))
        # Low exponents are averages of rounding: programs that round differently agree on the leading ones only.
        for one, other in zip(together, alone, strict=True):
            np.testing.assert_allclose(one[index][..., :3], other[..., :3], rtol=0, atol=1e-9)
        np.testing.assert_array_equal(np.isfinite(together[0][index]), np.isfinite(alone[0]))


def test_any_map_under_vmap():
    henon = DiscreteMap(
        lambda x, a, b: jnp.array([1 - a * x[0] ** 2 + x[1], b * x[0]]), {"a": 1.4, "b": 0.3}, ("x", "y")
    )
    values = np.array([0.2, 1.0, 1.4])

    def numbers(a):
        model = henon.replace(a=a)
        return orbit(model, [0.1, 0.1], steps=20).x, lyapunov_spectrum(model, [0.1, 0.1], steps=40).exponents

    together = as_numbers(jax.vmap(numbers)(values))
    for index, a in enumerate(values):
        for one, alone in zip(together, numbers(float(a)), strict=True):
            np.testing.assert_allclose(one[index], alone, rtol=0, atol=1e-9)
    # The sum of both exponents is ln b, the contraction of areas, whatever a is.
    np.testing.assert_allclose(together[1].sum(axis=1), np.log(0.3), atol=1e-12)


def test_exponents_lost_to_rounding_are_so_under_vmap():
    flat = DiscreteMap(lambda x, a: jnp.array([a, 0.5, 0.0]) * x, {"a": 0.9}, ("x", "y", "z"))

    def exponents(a):
        found = lyapunov_spectrum(flat.replace(a=a), np.ones(3), steps=40, blocks=2)
        return found.exponents, found.errors, found.lost

    together = as_numbers(jax.jit(jax.vmap(exponents))(np.array([0.9, 0.7])))
    assert np.isneginf(together[0][:, 2]).all() and np.isnan(together[1][:, 2]).all()
    for index, a in enumerate((0.9, 0.7)):
        for one, alone in zip(together, exponents(a), strict=True):
            np.testing.assert_allclose(one[index], alone, rtol=0, atol=1e-12)


def test_an_orbit_without_bounds_has_no_exponents():
    doubling = DiscreteMap(lambda x, r: r * x, {"r": 2.0})
    found = jax.vmap(lambda r: lyapunov_spectrum(doubling.replace(r=r), [1.0], steps=2000).exponents)(
        np.array([0.5, 2])
    )
    assert float(found[0, 0]) == pytest.approx(np.log(0.5)) and np.isnan(found[1, 0])


def test_bad_shapes_are_refused_while_traced():
    with pytest.raises(ValueError, match=r"beta: got shape \(3,\); expected one number"):
        jax.jit(lambda beta: MODEL.replace(beta=beta).step(WINDOW).A)(BETAS)
    with pytest.raises(ValueError, match=r"A0: got shape \(3, 3\); expected \[4, 3\]"):
        jax.jit(lambda A: MODEL.window(A).A)(np.zeros((3, 3)))


def test_models_and_windows_are_pytrees():
    """Models and windows as arguments of jit, a stack of models under vmap, a gradient with respect to a model."""
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(MODEL.replace(beta=float(beta)) for beta in BETAS))
    together = as_numbers(jax.vmap(lambda model: orbit(model, WINDOW, steps=6).m_o)(stacked))
    for beta, found in zip(BETAS, together, strict=True):
        model = MODEL.replace(beta=float(beta))
        np.testing.assert_allclose(found, orbit(model, WINDOW, steps=6).m_o, rtol=0, atol=1e-12)
        np.testing.assert_allclose(jax.jit(MeanField.step)(model, WINDOW).A, model.step(WINDOW).A, rtol=0, atol=1e-12)
    gradient = jax.grad(lambda model: jnp.sum(model.step(WINDOW).A[0]))(MODEL)
    expected = slope(lambda beta: MODEL.replace(beta=beta).step(WINDOW).A[0].sum(), MODEL.beta)
    assert float(gradient.beta) == pytest.approx(float(expected), rel=1e-6) and gradient.context == MODEL.context


def test_another_role_is_observed():
    """Diagrams and statistics of v, q or k have the numbers of the orbit, head by head."""
    features = Features.random(30, 2, heads=2, key=1)
    for role in ("v", "q", "k"):
        model = MeanField(features, 1.2, 9.0, 0.1, observed=role)
        window = model.window(np.full((4, 2), 0.2))
        kept = getattr(orbit(model, window, steps=50, transient=4), f"m_{role}").reshape(50, -1)
        found = orbit_statistics(model, window, steps=50, transient=4)
        assert found.observable.values.tolist() == [f"m_{role}[{number}]" for number in range(4)]
        np.testing.assert_allclose(found.average, kept.mean(axis=0), rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.highest, kept.max(axis=0), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="observed: got 'x'; expected one of 'o', 'v', 'q', 'k'"):
        MeanField(features, 1.2, 9.0, 0.1, observed="x")


def test_iterating_is_an_orbit_that_is_not_kept():
    for start, steps in ((MODEL.token(keep=True), 2), (MODEL.token(), 20), (WINDOW, 9)):
        alone, kept = iterate(MODEL, start, steps), orbit(MODEL, start, steps=steps).final_state
        np.testing.assert_allclose(alone.A, kept.A, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(alone.positions, kept.positions)
    assert iterate(MODEL, WINDOW, 0) is WINDOW
    with pytest.raises(ValueError, match="steps: got -1"):
        iterate(MODEL, WINDOW, -1)

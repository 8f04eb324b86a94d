"""jit, vmap and derivatives through steps, orbits and exponents, against loops and finite differences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thermoformer.dynamics import DiscreteMap, Features, MeanField, lyapunov_spectrum, orbit

MODEL = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
WINDOW = MODEL.window(np.linspace(-0.3, 0.4, 12).reshape(4, 3))
BETAS = np.array([1.2, 1.27, 1.4])


def slope(function, at: float, step: float = 1e-4):
    """The derivative by central differences of fourth order."""
    ends = [np.asarray(function(at + size * step)) for size in (-2, -1, 1, 2)]
    return (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step)


@pytest.mark.parametrize(("name", "value"), [("beta", 1.27), ("gamma", 220.0), ("epsilon", 0.02)])
def test_derivatives_of_a_step_and_of_an_orbit(name, value):
    def step(number):
        return MODEL.replace(**{name: number}).step(WINDOW).A[0]

    def grown(number):
        """From one token, through the growing window and some steps of the full one."""
        model = MODEL.replace(**{name: number})
        return orbit(model, model.token(), steps=8, transient=2).m_o[-1]

    for function in (step, grown):
        expected = slope(function, value, step=1e-4 * value)
        for derivative in (jax.jacfwd, jax.jacrev):
            np.testing.assert_allclose(derivative(function)(value), expected, rtol=1e-6, atol=1e-9)


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

    together = jax.vmap(numbers)(BETAS)
    compiled = jax.jit(jax.vmap(numbers))(BETAS)
    for index, beta in enumerate(BETAS):
        for one, two, alone in zip(together, compiled, numbers(float(beta)), strict=True):
            np.testing.assert_allclose(one[index], alone, rtol=0, atol=1e-12)
            np.testing.assert_allclose(two[index], alone, rtol=0, atol=1e-12)


def test_vmap_of_exponents_is_a_loop():
    def exponents(beta):
        # So few steps that chaos does not make rounding grow past the bound below.
        found = lyapunov_spectrum(MODEL.replace(beta=beta), WINDOW, steps=60, transient=20, blocks=4)
        return found.exponents, found.errors, found.running

    together = jax.jit(jax.vmap(exponents))(BETAS)
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

    together = jax.vmap(numbers)(values)
    for index, a in enumerate(values):
        for one, alone in zip(together, numbers(float(a)), strict=True):
            np.testing.assert_allclose(one[index], alone, rtol=0, atol=1e-9)
    # The sum of both exponents is ln b, the contraction of areas, whatever a is.
    np.testing.assert_allclose(together[1].sum(axis=1), np.log(0.3), atol=1e-12)


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

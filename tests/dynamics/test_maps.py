"""Step functions of a user, orbits that end nowhere, and long runs that can be stopped."""

from __future__ import annotations

import _thread
import signal
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

from thermoformer.dynamics import (
    DiscreteMap,
    Features,
    MeanField,
    engine,
    local_exponents,
    lyapunov_spectrum,
    orbit,
    orbit_statistics,
    regime,
)


def logistic(x, r):
    return r * x * (1 - x)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda x: np.sin(x), "TracerArrayConversionError"),
        (lambda x: jnp.zeros(3), r"float64 of shape \(3,\)"),
        (lambda x: None, "a function that returns NoneType"),
        (lambda x: {"x": x}, "a function that returns dict"),
        (lambda x, r: r * x, "TypeError .*missing 1 required positional argument: 'r'"),
        (lambda x: x * 1j, "complex128"),
    ],
)
def test_what_is_no_step(step, message):
    with pytest.raises(ValueError, match=f"step: got {message}.*; expected a JAX function of x .* 1 real number"):
        orbit(step, 0.5, steps=5)


def test_steps_that_will_do():
    with pytest.raises(ValueError, match="step: got str"):
        DiscreteMap("x + 1")
    assert orbit(lambda x: [x[1], x[0]], [1.0, 2.0], steps=1).x.tolist() == [[2.0, 1.0]]
    assert orbit(lambda x: x[0] + 1, 0.5, steps=1).x.tolist() == [[1.5]]


@pytest.mark.parametrize("ask", [lyapunov_spectrum, local_exponents, regime, orbit, orbit_statistics])
def test_orbits_that_leave_every_bound(ask):
    with pytest.raises(ValueError, match="state: got orbits that leave every bound; expected a start"):
        ask(DiscreteMap(logistic, {"r": 5.0}), 0.3, steps=40)


def test_pieces_change_nothing(monkeypatch):
    """A chaotic orbit, bit by bit: many compiled calls are one."""
    model = MeanField(Features.paper(), beta=1.28, gamma=220.0, epsilon=0.02)
    henon = DiscreteMap(lambda x, a: jnp.array([1 - a * x[0] ** 2 + x[1], 0.3 * x[0]]), {"a": 1.4}, ("x", "y"))

    def everything():
        found = orbit(model, model.window(), steps=80, transient=1001)
        spectrum = lyapunov_spectrum(henon, [0.1, 0.1], steps=300, transient=1001, blocks=2)
        verdict = regime(DiscreteMap(logistic, {"r": 3.5}), 0.3, steps=500, transient=500, longest_period=99)
        counts = orbit_statistics(henon, [0.1, 0.1], steps=300, transient=1001, bins=30)
        parts = (found.m_o, found.final_state.A, spectrum.exponents, spectrum.running, spectrum.final_state)
        return *parts, counts.average.values, counts.density.values, verdict.exponents, verdict.period

    whole = everything()
    for name, steps in (("MOST_AT_ONCE", 40), ("FEWEST_AT_ONCE", 37), ("NUMBERS_AT_ONCE", 1)):
        monkeypatch.setattr(engine, name, steps)
    for one, other in zip(whole, everything(), strict=True):
        assert np.array_equal(one, other)
    assert whole[-1] == 4


@pytest.mark.parametrize("ask", [orbit, orbit_statistics])
def test_long_runs_are_stopped(ask):
    """Ctrl-C is heard between the pieces of one long transient."""
    model = DiscreteMap(logistic, {"r": 3.9})
    # Tests that run side by side are deaf to it.
    deaf = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(1.5, _thread.interrupt_main)
    began = time.monotonic()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            ask(model, 0.3, steps=1, transient=10**12)
    finally:
        signal.signal(signal.SIGINT, deaf)
    assert time.monotonic() - began < 10

"""Diagrams: every point is what the single tools find, whatever the batches, the devices and the direction."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
import xarray as xr

from thermoformer.dynamics import (
    REGIMES,
    DiscreteMap,
    Features,
    MeanField,
    attractors,
    chaotic_intervals,
    intervals,
    lyapunov_spectrum,
    orbit,
    orbit_diagram,
    phase_diagram,
    regime,
    regime_names,
)
from thermoformer.dynamics.engine import Plan, run, survey
from thermoformer.dynamics.tangents import exponents_of

# Diagrams of several tests. There is no chaos on the way, so that rounding stays rounding.
BETAS = np.linspace(1.0, 1.2, 21)
SMALL = {"steps": 300, "transient": 300, "k": 3, "bins": 32, "limits": (-1.0, 1.0), "section": (1, 0.001)}


def logistic(x, r):
    return r * x * (1 - x)


def paper(beta: float = 1.27) -> MeanField:
    return MeanField(Features.paper(), beta=beta, gamma=220.0, epsilon=0.02)


@pytest.fixture(scope="module")
def start():
    model = paper(3.0)
    return orbit(model, model.token(), steps=1, transient=2003).final_state


def test_logistic_diagram_has_the_known_windows():
    values = np.linspace(2.8, 4.0, 241)
    found = orbit_diagram(logistic, 0.3, "r", values, steps=4000, transient=4000, limits=(0.0, 1.0))
    at = found.sel(r=[2.9, 3.2, 3.5, 3.835, 4.0], method="nearest")
    assert at.period.values.tolist() == [1, 2, 4, 3, 0]
    assert regime_names(at).values.tolist() == ["fixed point", "periodic", "periodic", "periodic", "chaos"]
    assert float(at.exponents[-1, 0]) == pytest.approx(np.log(2), abs=5e-3)
    assert (found.density.sum("value") == 4000).all()
    # Density of r = 4: 1 / (π √(x (1 − x))).
    edges = np.linspace(0, 1, 401)
    share = found.density.sel(r=4.0, method="nearest").values / 4000
    exact = np.diff(2 / np.pi * np.arcsin(np.sqrt(edges)))
    assert np.abs(np.cumsum(share) - np.cumsum(exact)).max() < 0.03
    lowest = min(low for low, _ in chaotic_intervals(found))
    assert 3.56 < lowest < 3.58  # 3.5699...
    assert found.attrs["parameter"] == "r" and found.attrs["observable"] == "x"


def test_points_are_those_of_the_single_tools(start):
    betas = np.array([1.2, 1.255, 1.4])
    found = orbit_diagram(paper(), start, "beta", betas, steps=2000, transient=3000, k=12, bins=64, limits=(-1, 1))
    for number, beta in enumerate(betas):
        model = paper(float(beta))
        spectrum = lyapunov_spectrum(model, start, steps=2000, transient=3000, every=4)
        if beta < 1.3:  # beyond, chaos parts the ways
            np.testing.assert_allclose(found.exponents[number], spectrum.exponents, atol=1e-8)
            whole = orbit(model, start, steps=2000, transient=3000).m_o[:, 0]
            assert np.abs(found.density[number].values - np.histogram(whole, 64, (-1, 1))[0]).sum() <= 4
            np.testing.assert_allclose(found.lowest[number, 0], whole.min(), atol=1e-9)
        else:
            assert abs(found.exponents[number, 0] - spectrum.exponents[0]) < 5 * spectrum.errors[0]
    verdict = regime(paper(1.2), start, steps=2000, transient=3000)
    assert REGIMES[int(found.regime[0])] == verdict.name == "periodic"
    assert int(found.period[0]) == verdict.period == 4


def test_batches_do_not_matter(start):
    """Any split of the grid: the same numbers where there is no chaos."""
    one, three, all_ = (orbit_diagram(paper(), start, "beta", BETAS, batch=b, **SMALL) for b in (1, 8, 21))
    for name in ("exponents", "density", "section_density", "period", "average"):
        np.testing.assert_allclose(one[name], all_[name], atol=1e-10)
        np.testing.assert_allclose(three[name], all_[name], atol=1e-10)
    assert (all_.section_density <= all_.density).all()


def test_several_starts_and_hysteresis(start):
    bistable = DiscreteMap(lambda x, h: x + 0.2 * (x - x**3 + h), {"h": 0.0})
    fields = np.linspace(-0.6, 0.6, 49)
    given = {"steps": 50, "transient": 400, "k": 1, "bins": 20, "limits": (-2.0, 2.0)}
    both = orbit_diagram(bistable, 0.5, "h", fields, follow="both", **given)
    up, down = (both.average.sel(direction=name, observable="x") for name in ("up", "down"))
    # The fold of x − x³ + h is at |h| = 2/(3√3) = 0.385.
    inside = np.abs(fields) < 0.36
    assert (up.values[inside] < 0).all() and (down.values[inside] > 0).all()
    np.testing.assert_allclose(up.values[~(np.abs(fields) < 0.42)], down.values[~(np.abs(fields) < 0.42)], atol=1e-6)
    model = paper()
    other = model.window(np.full((4, 3), 0.1), start.positions)
    given = {"steps": 100, "transient": 100, "bins": 8, "limits": (-1.0, 1.0)}
    found = orbit_diagram(model, [start, other], "beta", [1.2, 1.28, 1.5], **given)
    assert found.sizes["start"] == 2 and found.density.dims == ("start", "beta", "value")
    with pytest.raises(ValueError, match="state: got 2 starts; expected one"):
        orbit_diagram(model, [start, other], "beta", [1.2, 1.5], follow="up", steps=100, transient=100)
    with pytest.raises(ValueError, match="state: got windows at different positions"):
        shifted = model.window(np.full((4, 3), 0.1), np.roll(start.positions, 1, axis=0))
        orbit_diagram(model, [start, shifted], "beta", [1.2], steps=10, transient=10)


def test_phase_diagram_on_a_grid(start):
    grid = {"beta": [1.2, 1.28, 2.6], "gamma": [100.0, 220.0], "epsilon": [0.02]}
    found = phase_diagram(paper(), start, grid, steps=1000, transient=4000)
    assert found.regime.dims == ("beta", "gamma", "epsilon") and found.regime.shape == (3, 2, 1)
    single = regime(paper(1.2), start, steps=1000, transient=4000, longest_period=512)
    assert REGIMES[int(found.regime.sel(beta=1.2, gamma=220.0, epsilon=0.02))] == single.name
    assert REGIMES[int(found.regime.sel(beta=1.28, gamma=220.0, epsilon=0.02))] == "chaos"
    assert found.regime.attrs["flag_meanings"].split()[3] == "chaos"


def test_memory_does_not_grow_with_steps(start):
    """The compiled program is one for any number of steps: its memory cannot depend on them."""
    model = paper()
    lanes, state = model.in_lanes([start] * 16, {"beta": np.linspace(1.2, 1.3, 16)})
    sizes = {}
    for steps in (10, 10**9):
        compiled = jax.jit(lambda carry, steps: run(lanes, (), 1, carry, steps)).lower((state, (), None, None), steps)
        compiled = compiled.compile()
        sizes[steps] = compiled.memory_analysis().temp_size_in_bytes
    assert sizes[10] == sizes[10**9] < 10**6


def test_interrupt_is_heard_between_pieces(start):
    calls = []

    def stop(done, total, message):
        calls.append(done)
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan = Plan(1000, 1000, exponents_of(12, 2))
        survey(paper(), [start], plan, {"beta": np.linspace(1, 2, 64)}, batch=8, progress=stop)
    assert len(calls) < 40


def test_two_devices_share_the_work(start, tmp_path):
    """Sharded lanes: the same numbers as on one device. Another process, since the number is fixed at start."""
    code = f"""
import jax, numpy as np, sys
from thermoformer.dynamics import Features, MeanField, Window, orbit_diagram
assert len(jax.local_devices()) == 2
model = MeanField(Features.paper(), 1.27, 220.0, 0.02)
start = Window(*np.load(sys.argv[1]).values())
found = orbit_diagram(model, start, "beta", {BETAS[:9].tolist()}, devices=jax.local_devices(), **{SMALL})
found.to_netcdf(sys.argv[2])
"""
    np.savez(tmp_path / "start.npz", A=start.A, positions=start.positions)
    arguments = [sys.executable, "-c", code, str(tmp_path / "start.npz"), str(tmp_path / "found.nc")]
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    subprocess.run(arguments, env=environment, check=True)
    one, two = orbit_diagram(paper(), start, "beta", BETAS[:9], **SMALL), xr.load_dataset(tmp_path / "found.nc")
    for name in ("exponents", "density", "section_density", "period", "average"):
        np.testing.assert_allclose(one[name], two[name], atol=1e-10)


def test_extreme_parameters(start):
    found = phase_diagram(paper(), start, {"beta": [0.0, 1e3], "gamma": [0.0, 220.0, 1e6]}, steps=100, transient=100)
    assert not np.isnan(found.exponents).any() and np.isfinite(found.average).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameter": "delta"}, "parameter: got 'delta'; expected one of 'beta', 'gamma', 'epsilon'"),
        ({"values": []}, "beta: got shape"),
        ({"values": [[1.0]]}, "beta: got shape"),
        ({"values": [np.nan]}, "beta: got 1 NaN"),
        ({"k": -1}, "k: got -1"),
        ({"show": 3}, "show: got 3; expected a whole number from 0 to 2"),
        ({"bins": 0}, "bins: got 0"),
        ({"limits": (1.0, -1.0)}, "limits: got"),
        ({"section": 3}, "section: got 3; expected a pair"),
        ({"section": (1, 0.0)}, "section: got"),
        ({"section": (7, 0.1)}, "section: got 7"),
        ({"follow": "sideways"}, "follow: got 'sideways'"),
        ({"steps": 0}, "steps: got 0"),
        ({"tolerance": 0.0}, "tolerance: got 0.0"),
        ({"model": 3}, "model: got int"),
        ({"limits": 3}, "limits: got 3; expected two numbers"),
        ({"k": 13}, "k: got 13; expected at most 12"),
        ({"longest_period": -1}, "longest_period: got -1"),
        ({"batch": 1.5}, "batch: got 1.5; expected a whole number"),
        ({"batch": 0}, "batch: got 0"),
        ({"devices": []}, "devices: got \\[\\]; expected one or more devices"),
        ({"devices": "cpu"}, "devices: got 'cpu'"),
        ({"devices": ["cpu"]}, "devices: got \\['cpu'\\]"),
        ({"parameter": "epsilon", "values": [0.5, 2.0]}, "epsilon: got 2.0; expected a number from 0 to 1"),
    ],
)
def test_bad_input(start, change, message):
    given = {"model": paper(), "state": start, "parameter": "beta", "values": [1.0, 1.1], "steps": 5, "transient": 0}
    with pytest.raises(ValueError, match=message):
        orbit_diagram(**(given | change))


def test_bad_grids(start):
    with pytest.raises(ValueError, match="grid: got {}"):
        phase_diagram(paper(), start, {})
    with pytest.raises(ValueError, match="grid: got 'delta'"):
        phase_diagram(paper(), start, {"delta": [1.0]})
    with pytest.raises(ValueError, match="epsilon: got 3.0; expected a number from 0 to 1"):
        phase_diagram(paper(), start, {"beta": [1.0], "epsilon": [0.1, 3.0]})
    with pytest.raises(ValueError, match="k: got 99; expected at most 12"):
        phase_diagram(paper(), start, {"beta": [1.0]}, k=99)
    with pytest.raises(ValueError, match="states: got Window; expected a list of starts"):
        attractors(paper(), start)
    with pytest.raises(ValueError, match="k: got 0; expected 1 or more"):
        phase_diagram(paper(), start, {"beta": [1.0]}, k=0)
    with pytest.raises(ValueError, match="state: got orbits that leave every bound"):
        orbit_diagram(lambda x, r: r * x, 1.0, "r", [3.0], steps=5, transient=2000)


def test_runs_of_neighbours():
    assert intervals([1, 2, 3], [False, False, False]) == []
    assert intervals([1, 2, 3], [True, True, True]) == [(1.0, 3.0)]


@pytest.mark.parametrize(
    ("values", "inside", "message"),
    [
        ([1, 2, 3], [True], "inside: got bool of shape"),
        ([1, 2, 3], [1, 0, 2], "inside: got int64"),
        ([3, 1, 2], [True, True, False], "values: got numbers that fall"),
        ([[1, 2]], [[True, True]], "values: got shape"),
    ],
)
def test_bad_runs(values, inside, message):
    with pytest.raises(ValueError, match=message):
        intervals(values, inside)


def test_orbits_that_leave_every_bound_have_no_exponents():
    """One point of a grid is lost, not the grid."""
    found = phase_diagram(DiscreteMap(logistic, {"r": 3.0}), 0.3, {"r": [3.2, 5.0]}, steps=200, transient=200)
    assert regime_names(found).values.tolist() == ["periodic", "undecided"]
    assert np.isfinite(found.exponents[0]).all() and np.isnan(found.exponents[1]).all()
    assert np.isnan(found.errors[1]).all() and int(found.period[1]) == 0


def test_diagrams_are_asked_for():
    for ask in (regime_names, chaotic_intervals):
        with pytest.raises(ValueError, match="dataset: got a Dataset without regimes; expected a diagram"):
            ask(xr.Dataset())
        with pytest.raises(ValueError, match="dataset: got int"):
            ask(3)
    codes = np.array([REGIMES.index(name) for name in ("chaos", "periodic", "chaos")])
    falling = xr.Dataset({"regime": ("r", codes)}, {"r": [3.9, 3.5, 3.7]}, {"parameter": "r"})
    assert chaotic_intervals(falling) == [(3.7, 3.9)]
    with pytest.raises(ValueError, match="dataset: got regimes along"):
        chaotic_intervals(falling.expand_dims("direction"))

"""Basins of attraction: against boundaries that are known, and attractors that single numbers do not tell apart."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from thermoformer.dynamics import DiscreteMap, Features, MeanField, Window, basins, find_cycle, iterate

# x → a x − x³ is odd. It keeps the sign of x for x² < a < 2.598; beyond x² = a + 1 orbits grow without bound.
# Fixed points ±√(a − 1) are stable up to a = 2, then come two 2-cycles, and from 2.303 two mirror images of chaos.
cubic = DiscreteMap(lambda x, a: a * x - x**3, {"a": 1.5})
SIZES = {"steps": 2000, "transient": 2000, "longest_period": 64}
STARTS = np.linspace(-1.99, 1.99, 200)


@pytest.fixture(scope="module")
def found():
    return basins(cubic, {"x": STARTS}, {"a": [1.5, 1.6, 2.1, 2.5]}, **SIZES)


def signs(a: float) -> np.ndarray:
    """The sign of each orbit in the end; 0 if it is unbounded."""
    x = STARTS.copy()
    for _ in range(4000):
        x = np.where(np.abs(x) < 10, a * x - x**3, 100.0)
    return np.where(np.abs(x) < 10, np.sign(x), 0)


def test_boundaries_of_an_odd_map(found):
    data = found.dataset
    assert data.basin.dims == ("x", "a")
    kinds = {1.5: ("fixed point", 1), 1.6: ("fixed point", 1), 2.1: ("periodic", 2), 2.5: ("chaos", 0)}
    for a, kind in kinds.items():
        labels, expected = data.basin.sel(a=a).values, signs(a)
        inside = STARTS**2 < a
        for sign in (-1, 1):
            (number,) = set(labels[expected == sign])
            assert number >= 0 and (labels[inside & (STARTS * sign > 0)] == number).all(), "the boundary is 0"
            one = data.sel(attractor=number)
            assert (str(one.regime.values), int(one.period)) == kind
            assert np.sign(one.average.item()) == sign
            assert float(one.fraction.sel(a=a)) == pytest.approx((expected == sign).mean())
        assert (labels[expected == 0] == -2).all() and (expected[STARTS**2 > a + 1] == 0).all()
    both = data.sel(attractor=[0, 1])
    np.testing.assert_allclose(np.abs(both.lowest.values), np.sqrt(0.5), atol=0.08)


def test_attractors_go_on_along_a_parameter(found):
    """Those of 1.5 and 1.6 are the same two; the cycles and the chaos beyond are others."""
    data = found.dataset
    bounded = data.basin.where(data.basin >= 0)
    kinds = [set(bounded.sel(a=a).values[np.isfinite(bounded.sel(a=a))]) for a in data.a.values]
    assert kinds[0] == kinds[1] and len(set.union(*map(set, kinds))) == 6
    assert (data.fraction.sum("attractor") == 1).all()
    sizes = [(data.basin == number).sum().item() for number in range(6)]
    assert sizes == sorted(sizes, reverse=True)


def test_states_are_on_the_attractors(found):
    data = found.dataset
    for number in range(6):
        a = float(data.a[np.argwhere(data.basin.values == number)[0, 1]])  # of the first point in the basin
        if data.regime.sel(attractor=number) != "chaos":
            model, state, period = cubic.replace(a=a), found.states[number], int(data.period.sel(attractor=number))
            np.testing.assert_allclose(find_cycle(model, state, period).state, state, atol=1e-6)


def test_cycles_that_no_single_number_tells_apart():
    """Two maps side by side with the 2-cycle ±x*, in phase if x y > 0: averages, extremes and exponents are equal."""
    pair = DiscreteMap(lambda x: -jnp.tanh(2 * x), names=("x", "y"))
    values = np.linspace(-1, 1, 11)
    data = basins(pair, {"x": values, "y": values}, steps=100, transient=200, longest_period=64).dataset
    products = np.sign(np.round(np.outer(values, values), 12))
    for sign in (-1, 1):
        assert len(set(data.basin.values[products == sign])) == 1
    # The axes are unstable: those on them stay there, and exponents are above 0.
    assert set(data.basin.values[products == 0]) == {-1}
    assert data.attractor.values.tolist() == [0, 1, -1] and data.period.values.tolist() == [2, 2, 0]
    first, second = (data.isel(attractor=number) for number in (0, 1))
    for name in ("deviation", "lowest", "highest", "exponent"):
        np.testing.assert_allclose(first[name], second[name], atol=1e-9)
    np.testing.assert_allclose(data.fraction, [50 / 121, 50 / 121, 21 / 121])
    np.testing.assert_allclose(data.error, np.sqrt(data.fraction * (1 - data.fraction) / 121), rtol=0.02)


def paper(beta: float) -> MeanField:
    return MeanField(Features.paper(), beta, 220.0, 0.02)


@pytest.mark.parametrize(("beta", "regime", "period"), [(1.27, "periodic", 28), (1.255, "quasi-periodic", 0)])
def test_one_attractor_from_all_of_its_phases(beta, regime, period):
    """Windows along one orbit of the mean field, 4 steps apart so that positions are equal."""
    model, windows = paper(beta), []
    window = iterate(model, model.window(), 20_000)
    for _ in range(7):
        windows.append(Window(window.A, model.window().positions))
        window = iterate(model, window, 4)
    found = basins(model, windows, steps=4000, transient=0)
    assert found.dataset.basin.values.tolist() == [0] * 7
    assert (found.dataset.regime.item(), found.dataset.period.item()) == (regime, period)
    assert found.summary()["points"] == 7 and found.states[0].A.shape == (4, 3)


def test_windows_as_an_array_and_mirror_images():
    """A Hopfield network of two patterns: it retrieves one of them or its mirror image, with m = tanh(βm)."""
    patterns = np.array([[1, 1, -1, -1], [1, -1, 1, -1]])
    model = MeanField(Features.from_patterns(patterns), 2.0, 1.0, 0.0, context=2)
    some = np.random.default_rng(1).uniform(-1, 1, (8, 2, 2))
    starts = xr.DataArray(np.stack([some, -some]), {"sign": [1, -1]}, ("sign", "draw", "token", "feature"))
    data = basins(model, starts, steps=500, transient=500).dataset
    assert data.basin.dims == ("sign", "draw") and data.attractor.values.tolist() == [0, 1, 2, 3]
    averages = data.average.sel(attractor=data.basin)
    np.testing.assert_allclose(averages.sel(sign=1), -averages.sel(sign=-1), atol=1e-9)
    sizes = np.sort(np.abs(averages.values), axis=-1)
    np.testing.assert_allclose(sizes[..., 1], np.tanh(2 * sizes[..., 1]), atol=1e-9)
    np.testing.assert_allclose(sizes[..., 0], 0, atol=1e-9)


def test_the_kernel_finds_the_same(monkeypatch):
    given = {"model": cubic.replace(a=1.6), "starts": [-0.3, 0.2, 1.0, 1.8], "steps": 100, "transient": 100}
    by_steps = basins(**given, longest_period=8).dataset
    monkeypatch.setenv("THERMOFORMER_KERNEL", "interpret")
    by_kernel = basins(**given, longest_period=8).dataset
    assert (by_steps.attrs.pop("engine"), by_kernel.attrs.pop("engine")) == ("steps", "kernel")
    xr.testing.assert_allclose(by_steps, by_kernel)
    assert by_steps.basin.values.tolist() == [1, 0, 0, -2]


def test_an_orbit_that_leaves_later_is_unbounded():
    """Chaos up to the last counted step, at a parameter just beyond the end of all attractors, a² = 9."""
    data = basins(cubic.replace(a=3.02), np.linspace(-1.5, 1.5, 40), steps=10, transient=0, longest_period=64).dataset
    assert set(data.basin.values) <= {-1, -2} and (data.basin == -2).any()


def test_one_start_and_many_parameters():
    """Fractions are then shares of the parameters."""
    data = basins(cubic, 0.4, {"a": [0.5, 1.5, 1.6]}, **SIZES).dataset
    assert data.basin.dims == ("a",) and data.fraction.dims == ("attractor",)
    assert data.fraction.values.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starts": {"y": [0.1]}}, "starts: got 'y'; expected one of 'x'"),
        ({"starts": {}}, r"starts\['x'\]: got nothing; expected a number, or values along one axis"),
        ({"starts": {"x": [[0.1]]}}, r"starts\['x'\]: got shape \(1, 1\)"),
        ({"starts": "all"}, "starts: got an array of type"),
        ({"starts": [np.nan]}, "starts: got 1 NaN"),
        ({"starts": {"x": [0.1]}, "grid": {"x": [1.0]}}, "grid: got 'x'; expected one of 'a'"),
        ({"starts": xr.DataArray([0.1], dims="a"), "grid": {"a": [1.0]}}, "starts: got an axis 'a'; expected"),
        ({"grid": {}}, "grid: got {}; expected values by name"),
        ({"grid": {"a": 1.0}}, r"a: got shape \(\); expected values along one axis"),
        ({"k": 0}, "k: got 0; expected 1 or more"),
        ({"longest_period": 0}, "longest_period: got 0; expected 1 or more"),
        ({"model": 3}, "model: got int"),
        ({"model": paper(1.27)}, r"starts: got shape \(2,\); expected \[..., 4, 3\]"),
        ({"model": paper(1.27), "starts": {"A": [0.1]}}, "starts: got 'A'"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        basins(**({"model": cubic, "starts": [0.1, 0.2]} | change))

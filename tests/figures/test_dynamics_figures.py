"""Figures of attention dynamics: what is drawn is what was given."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from thermoformer import figures
from thermoformer.dynamics import REGIMES, autocorrelation, basins, orbit_diagram, phase_diagram, power_spectrum
from thermoformer.figures import (
    REGIME_COLOURS,
    autocorrelation_curve,
    basin_map,
    finite_size_scaling,
    finite_size_steps,
    hysteresis,
    orbit_diagram_panels,
    orbit_series,
    phase_diagram_image,
    phase_plane,
    power_spectrum_curve,
)

SERIES = np.stack([np.cos(np.arange(200) * 0.3), np.sin(np.arange(200) * 0.3), np.zeros(200)], axis=1)
RANGE = np.linspace(3.4, 4.0, 25)


def logistic(x, r):
    return r * x * (1 - x)


@pytest.fixture(scope="module")
def diagram() -> xr.Dataset:
    sizes = {"steps": 400, "transient": 400, "bins": 30, "limits": (0.0, 1.0), "section": (0, 0.9)}
    return orbit_diagram(logistic, 0.3, "r", RANGE, **sizes)


@pytest.fixture(scope="module")
def grid() -> xr.Dataset:
    """The regimes of a logistic map whose parameter is a sum."""
    from thermoformer.dynamics import DiscreteMap

    model = DiscreteMap(lambda x, beta, gamma: (beta + gamma) * x * (1 - x), {"beta": 3.0, "gamma": 0.0})
    axes = {"beta": [2.8, 3.35, 3.9], "gamma": [0.0, 0.1]}
    return phase_diagram(model, 0.3, axes, steps=500, transient=1000)


def test_orbits_are_drawn_feature_by_feature():
    ax = orbit_series(SERIES, first_step=7)
    assert len(ax.lines) == 3 and len({line.get_color() for line in ax.lines}) == 3
    np.testing.assert_array_equal(ax.lines[1].get_xydata(), np.stack([np.arange(7, 207), SERIES[:, 1]], axis=1))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["$m_{o,1}$", "$m_{o,2}$", "$m_{o,3}$"]
    assert orbit_series(SERIES[:, 0]).get_legend() is None


def test_stacked_orbits_have_zero_lines_of_their_own():
    ax = orbit_series(SERIES, first_step=7, stacked=True)
    zeros, curves = ax.lines[:3], ax.lines[3:]
    apart = zeros[0].get_ydata()[0] - zeros[1].get_ydata()[0]
    assert apart > np.ptp(SERIES) and ax.get_ylabel() == f"zero lines {apart:g} apart"
    for number, curve in enumerate(curves):
        np.testing.assert_allclose(curve.get_ydata() + number * apart, SERIES[:, number])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["$m_{o,1}$", "$m_{o,2}$", "$m_{o,3}$"]


def test_the_plane_has_the_features_asked_for():
    ax = phase_plane(SERIES, (1, 2))
    found = np.unique(SERIES[:, 1:].round(8), axis=0)
    np.testing.assert_allclose(np.unique(ax.lines[0].get_xydata().round(8), axis=0), found)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("$m_{o,2}$", "$m_{o,3}$") and ax.get_aspect() == 1
    few, many = phase_plane(SERIES[:20]), phase_plane(np.random.default_rng(0).normal(size=(400, 2)))
    assert few.lines[0].get_markersize() > many.lines[0].get_markersize(), "cycles have large points"


def test_spectrum_and_autocorrelation_curves():
    spectrum, correlation = power_spectrum(SERIES), autocorrelation(SERIES, lags=50)
    ax = power_spectrum_curve(spectrum)
    assert ax.get_yscale() == "log" and ax.get_xlim() == (0, 0.5)
    drawn = ax.lines[0].get_ydata()
    np.testing.assert_array_equal(drawn[np.isfinite(drawn)], spectrum.values[:, 0][np.isfinite(drawn)])
    assert np.isnan(ax.lines[2].get_ydata()).all(), "a feature that does not move has no power"
    ax = autocorrelation_curve(correlation)
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), correlation.values[:, 0])


def test_diagram_and_exponents_share_the_axis(diagram):
    top, middle, strip = orbit_diagram_panels(diagram)
    assert top.get_xlim() == middle.get_xlim() == strip.get_xlim() == (3.4, 4.0)
    image = top.images[0]
    shown = image.get_array().T
    np.testing.assert_array_equal(np.ma.getmaskarray(np.ma.masked_invalid(shown)), diagram.density.values == 0)
    assert list(image.get_extent()[2:]) == pytest.approx([0.0, 1.0])
    np.testing.assert_array_equal(middle.lines[1].get_ydata(), diagram.exponents.values[:, 0])
    low, high = middle.get_ylim()
    assert low < 0 < diagram.exponents.values.max() < high
    np.testing.assert_array_equal(strip.collections[0].get_array().ravel(), diagram.regime.values)
    names = {text.get_text() for text in strip.get_legend().get_texts()}
    assert names == {REGIMES[code] for code in np.unique(diagram.regime)} and "chaos" in names


def test_lost_exponents_are_not_drawn_and_the_axis_can_be_cut(diagram):
    lost = diagram.copy(deep=True)
    lost["exponents"][3:] = -np.inf
    axes = orbit_diagram_panels(lost, exponents=1, lowest=-0.2)
    assert np.isfinite(axes[1].lines[1].get_ydata()).sum() == 3 and axes[1].get_ylim()[0] == -0.2


def test_a_section_is_dots(diagram):
    axes = orbit_diagram_panels(diagram, section=True)
    assert len(axes[0].lines[0].get_xydata()) == (diagram.section_density.values > 0).sum()
    assert not axes[0].images


def test_many_values_share_columns_and_keep_their_counts():
    from thermoformer.figures.diagrams import _pooled

    counts = np.random.default_rng(0).integers(0, 5, size=(4001, 3))
    pooled = _pooled(counts)
    assert 1200 < len(pooled) <= 1600 and (pooled.sum(axis=0) == counts.sum(axis=0)).all()


def test_uneven_values_and_given_axes(diagram):
    uneven = diagram.isel(r=[0, 1, 2, 5, 10, 24])
    _, axes = figures.figure_grid(2, 1)
    panels = orbit_diagram_panels(uneven, axes, colorbar=False)
    assert list(panels) == list(axes.ravel()) and panels[0].collections and not panels[0].images


def test_the_full_size_of_a_diagram_is_drawn_and_saved_alike(diagram, tmp_path):
    wide = diagram.interp(r=np.linspace(3.4, 4.0, 4001), method="nearest", kwargs={"fill_value": "extrapolate"})
    wide["regime"] = wide.regime.astype(int)
    for name in ("first", "second"):
        axes = orbit_diagram_panels(wide.assign_attrs(diagram.attrs))
        figures.save(axes[0].figure, tmp_path / name / "diagram")
    zero, *exponents = axes[1].lines
    assert zero.get_linestyle() == "-" and {line.get_linestyle() for line in exponents} == {"None"}, "dots, not lines"
    for file in (tmp_path / "first").iterdir():
        assert file.read_bytes() == (tmp_path / "second" / file.name).read_bytes()


def test_phase_diagrams_name_the_regimes_that_occur(grid):
    ax = phase_diagram_image(grid)
    np.testing.assert_array_equal(ax.images[0].get_array(), grid.regime.values.T)
    assert list(ax.images[0].get_extent()) == pytest.approx([2.525, 4.175, -0.05, 0.15])
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == [name for code, name in enumerate(REGIMES) if code in grid.regime]
    assert len(set(REGIME_COLOURS.values())) == len(REGIMES)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("β", "γ")


def test_leading_exponents_have_white_at_zero(grid):
    ax = phase_diagram_image(grid, show="exponent")
    low, high = ax.images[0].get_clim()
    assert low == -high and high == pytest.approx(float(grid.exponents.isel(exponent=0).max()))


def test_hysteresis_tells_directions_apart():
    def step(x, h):
        return x - 0.1 * (x**3 - x - h)

    found = orbit_diagram(step, -1.0, "h", np.linspace(-0.6, 0.6, 13), steps=50, transient=300, follow="both", k=1)
    codes = hysteresis(found).images[0].get_array()
    assert {1.0, 2.0, 3.0} == set(np.unique(codes[np.isfinite(codes)]))
    assert np.isfinite(codes[:, 6]).sum() == 2, "two branches in the middle"


def test_basins_are_named_with_their_shares():
    found = basins(lambda x: x - 0.1 * (x**3 - x), np.linspace(-2.05, 2, 28), steps=200, transient=1000).dataset
    ax = basin_map(found)
    np.testing.assert_array_equal(ax.images[0].get_array()[0], found.basin)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "0: fixed point, 50 ± 9 %",
        "1: fixed point, 50 ± 9 %",
    ]
    many = found.assign_coords(attractor=[0, 12]).assign(basin=found.basin.where(found.basin == 0, 12))
    assert [text.get_text() for text in basin_map(many).get_legend().get_texts()][1] == "6 more"


def test_finite_size_has_bars_and_the_line():
    bits = np.array([100, 10_000, 1_000_000])
    error = np.stack([2 / np.sqrt(bits), [0.21, np.nan, np.nan]])
    dataset = xr.Dataset(
        {"error": (("form", "bits"), error), "standard_error": (("form", "bits"), 0.01 * error)},
        {"form": ["classes", "bits"], "bits": bits},
        {"fit_from": 1000},
    )
    ax = finite_size_scaling(dataset)
    labels = ax.get_legend_handles_labels()[1]
    assert labels == ["$N^{−1/2}$", "counts per class", "every bit drawn"]
    line = next(line for line in ax.lines if line.get_label() == "$N^{−1/2}$").get_xydata()
    np.testing.assert_allclose(line[:, 1] * np.sqrt(line[:, 0]), 2)
    assert finite_size_scaling(dataset.sel(form="classes"), legend=False).get_legend() is None


def test_finite_size_has_the_line_that_is_predicted():
    error = ("bits", [0.2, 0.02])
    dataset = xr.Dataset({"error": error, "standard_error": error, "predicted": 1.5}, {"bits": [100, 10_000]})
    ax = finite_size_scaling(dataset)
    line = next(line for line in ax.lines if line.get_label() == "linear noise, nothing fitted").get_xydata()
    np.testing.assert_allclose(line[:, 1] * np.sqrt(line[:, 0]), 1.5)


def test_finite_size_by_step_is_times_the_root_of_the_bits():
    dataset = xr.Dataset(
        {
            "by_step": (("bits", "step"), [[0.1, 0.2], [0.01, 0.03]]),
            "predicted_by_step": ("step", [1.0, 2.5]),
            "predicted_error": ("step", [0.1, 0.1]),
        },
        {"bits": [100, 10_000], "step": [1, 2]},
    )
    ax = finite_size_steps(dataset)
    assert ax.get_legend_handles_labels()[1] == ["linear noise", "N = 100", "N = 10 000"]
    np.testing.assert_allclose([container.lines[0].get_ydata() for container in ax.containers], [[1, 2], [1, 3]])
    assert ax.get_ylim() == pytest.approx((0, 3.15))


def test_an_orbit_has_a_band_of_the_spread():
    spread = np.full_like(SERIES, 0.1)
    ax = orbit_series(SERIES, spread=spread, first_step=7)
    assert len(ax.collections) == SERIES.shape[1]
    for feature, band in enumerate(ax.collections):
        ends = band.get_paths()[0].vertices
        assert ends[:, 0].min() == 7
        assert np.ptp(ends[ends[:, 0] == 9, 1]) == pytest.approx(0.2)
        assert ends[:, 1].max() == pytest.approx(SERIES[:, feature].max() + 0.1)
    assert ax.get_legend_handles_labels()[1] == orbit_series(SERIES).get_legend_handles_labels()[1]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: orbit_series(SERIES, spread=SERIES[1:] ** 2), r"spread: got shape .*; expected shape .*, as values"),
        (lambda: orbit_series(SERIES, spread=np.full_like(SERIES, -1)), "spread: got .*; expected .* no negative numb"),
        (lambda: finite_size_steps(xr.Dataset()), "dataset: got Dataset; expected a Dataset with bits, by_step"),
        (lambda: orbit_series(np.zeros((2, 2, 2))), r"values: got shape \(2, 2, 2\); expected \[step\] or"),
        (lambda: phase_plane(SERIES, (0, 3)), r"features: got \(0, 3\); expected two numbers from 0 to 2"),
        (lambda: power_spectrum_curve(SERIES), "spectrum: got ndarray; expected a DataArray"),
        (lambda: autocorrelation_curve(power_spectrum(SERIES)), "correlation: got .*; expected a DataArray"),
        (lambda: orbit_diagram_panels(xr.Dataset()), "dataset: got a Dataset with nothing; expected an orbit diagram"),
        (lambda: orbit_diagram_panels(3), "dataset: got int; expected an orbit diagram"),
        (lambda: basin_map(xr.Dataset()), "dataset: got a Dataset with nothing; expected that of basins"),
        (lambda: phase_diagram_image(xr.Dataset()), "dataset: got a Dataset with nothing; expected a phase diagram"),
        (
            lambda: hysteresis(xr.Dataset()),
            "dataset: got a Dataset with nothing; expected an orbit diagram with follow",
        ),
        (lambda: finite_size_scaling(xr.Dataset()), "dataset: got Dataset; expected a Dataset with error"),
    ],
)
def test_bad_input(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_diagrams_without_what_is_drawn(diagram, grid):
    with pytest.raises(ValueError, match="dataset: got no exponents; expected"):
        orbit_diagram_panels(diagram.drop_vars("exponents"))
    with pytest.raises(ValueError, match="dataset: got regimes along .*; expected one start"):
        orbit_diagram_panels(diagram.expand_dims(start=2))
    with pytest.raises(ValueError, match="axes: got 1 Axes; expected two or three"):
        orbit_diagram_panels(diagram, [figures.figure_grid()[1][0, 0]])
    with pytest.raises(ValueError, match="show: got 'period'; expected"):
        phase_diagram_image(grid, show="period")

"""Figures of approximations against width and beside each other: what is drawn is what was given."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes

from thermoformer import figures
from thermoformer.figures.comparison import comparison_panels
from thermoformer.figures.convergence import convergence

WIDTHS = [10, 100, 1000]
NAMES = ["saddle", "one-loop"]


@pytest.fixture
def errors() -> xr.Dataset:
    """Two seeds, a factor of four apart; one-loop sinks into the noise."""
    widths = np.array(WIDTHS, float)
    middle = np.stack([1 / widths, np.maximum(1 / widths**2, 4e-5)], axis=1)
    return xr.Dataset(
        {
            "error": (("seed", "width", "approach"), np.stack([middle / 2, 2 * middle])),
            "noise": (("seed", "width", "approach"), np.full((2, 3, 2), 4e-5)),
        },
        {"width": WIDTHS, "approach": NAMES},
    )


@pytest.fixture
def compared() -> xr.Dataset:
    """Three approaches, of which one has no numbers."""
    names = ["saddle", "exact", "sampled"]
    generator = np.random.default_rng(0)
    mean = generator.normal(size=(3, 7))
    mean[2] = np.nan
    grams = np.stack([np.eye(2), 2 * np.eye(2), np.full((2, 2), np.nan)])
    square = ("approach", "path", "path_other")
    return xr.Dataset(
        {
            "mean": (("approach", "example"), mean),
            "variance": (("approach", "example"), mean**2),
            "order_parameter": (square, grams),
            "order_parameter_error": (square, np.full((3, 2, 2), 0.1)),
        },
        {"approach": names, "path": ["good", "random"]},
        {"reference": "exact"},
    )


def drawn(ax: Axes, label: str) -> np.ndarray:
    handles, labels = ax.get_legend_handles_labels()
    return handles[labels.index(label)].lines[0].get_xydata()


def test_convergence_draws_geometric_means(errors):
    ax = convergence(errors)
    np.testing.assert_allclose(drawn(ax, "saddle"), [[10, 0.1], [100, 0.01], [1000, 0.001]])
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["10", "100", "1000"]
    assert ax.get_legend_handles_labels()[1] == ["Monte-Carlo noise", *NAMES]


def test_guides_have_their_slopes_and_keep_clear_of_the_noise(errors):
    ax = convergence(errors)
    guides = [line.get_xydata() for line in ax.lines if line.get_linestyle() == "--"]
    slopes = [np.diff(np.log(line[:, 1])) / np.diff(np.log(line[:, 0])) for line in guides]
    np.testing.assert_allclose(slopes[0], -1)
    np.testing.assert_allclose(slopes[1], -2)
    assert guides[1][-1, 0] == 100, "not over the width where one-loop is noise"
    texts = [text.get_text() for text in ax.texts]
    assert texts == ["$N^{−1}$", "$N^{−2}$"]
    assert not [line for line in convergence(errors, guides={}).lines if line.get_linestyle() == "--"]


def test_noise_is_a_floor_up_to_the_largest(errors):
    errors["noise"][:, :, 1] = 3e-4
    (floor,) = convergence(errors).collections[-1:]
    assert floor.get_paths()[0].get_extents().ymax == pytest.approx(3e-4)


def test_convergence_without_seeds_noise_or_numbers(errors):
    plain = errors[["error"]].isel(seed=0)
    plain["error"][:, 1] = np.nan
    ax = convergence(plain)
    assert ax.get_legend_handles_labels()[1] == ["saddle"]
    alone = convergence(plain.isel(width=[0]))
    assert np.isfinite(alone.get_xlim()).all() and alone.get_xlim()[0] < 10 < alone.get_xlim()[1]
    assert convergence(errors * np.nan).get_legend_handles_labels()[1] == []


def test_unknown_approaches_have_looks_of_their_own(errors):
    ax = convergence(errors.assign_coords(approach=["saddle", "two-loop"]))
    handles, labels = ax.get_legend_handles_labels()
    colours = [handle.lines[0].get_color() for handle in handles[1:]]
    assert labels[1:] == ["saddle", "two-loop"] and len(set(colours)) == 2


def test_comparison_draws_each_approach_against_the_reference(compared):
    panels = comparison_panels(compared)
    assert panels.shape == (3,)
    truth, saddle = compared["mean"].sel(approach="exact").values, compared["mean"].sel(approach="saddle").values
    np.testing.assert_allclose(panels[0].lines[0].get_xydata(), np.stack([truth, saddle], axis=1))
    np.testing.assert_allclose(panels[1].lines[0].get_xydata(), np.abs(np.stack([truth, saddle], axis=1)))
    handles, labels = panels[2].get_legend_handles_labels()
    assert labels == ["saddle", "exact"], "what has no numbers is left out"
    np.testing.assert_allclose(handles[1].lines[0].get_ydata(), [2, 0, 2])
    assert [tick.get_text() for tick in panels[2].get_xticklabels()] == ["1,1", "1,2", "2,2"]
    assert "1: good" in panels[2].get_xlabel()


def test_many_paths_show_their_largest_entries(compared):
    grams = np.stack([np.diag(np.arange(1.0, 9))] * 3)
    many = compared.drop_vars(["order_parameter", "order_parameter_error", "path"])
    square = ("approach", "path", "path_other")
    many = many.assign(order_parameter=(square, grams), order_parameter_error=(square, 0 * grams))
    panels = comparison_panels(many)
    assert len(panels[2].get_xticks()) == 12
    assert panels[2].get_title() == "the 12 largest of 36 entries"
    assert {"1,1", "8,8"} <= {tick.get_text() for tick in panels[2].get_xticklabels()}


def test_given_axes_are_drawn_on(compared, errors):
    _, axes = figures.figure_grid(1, 4)
    assert list(comparison_panels(compared, axes[0, :3])) == list(axes[0, :3])
    assert axes[0, 0].get_legend() is not None
    assert convergence(errors, axes[0, 3], legend=False) is axes[0, 3]
    assert axes[0, 3].get_legend() is None


def test_equal_figures_are_equal_files(tmp_path, compared, errors):
    for name in ("first", "second"):
        figures.save(comparison_panels(compared)[0].figure, tmp_path / name / "comparison")
        figures.save(convergence(errors).figure, tmp_path / name / "convergence")
    for file in (tmp_path / "first").iterdir():
        assert file.read_bytes() == (tmp_path / "second" / file.name).read_bytes()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda: convergence(xr.Dataset()),
            "dataset: got Dataset; expected an xarray Dataset with the variable 'error'",
        ),
        (
            lambda: convergence(xr.Dataset({"error": ("width", [1.0])})),
            "dataset: got error with dimensions .*; expected the dimensions width and approach",
        ),
        (
            lambda: convergence(xr.Dataset({"error": (("width", "approach"), [[1.0]]), "noise": ("width", [1.0])})),
            "dataset: got noise with dimensions .*; expected .* as the error",
        ),
        (
            lambda: comparison_panels(xr.Dataset()),
            "dataset: got Dataset; expected an xarray Dataset with the variables",
        ),
    ],
)
def test_bad_input(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_bad_comparisons(compared):
    with pytest.raises(ValueError, match="dataset: got the reference 'sampled'; expected an attribute `reference`"):
        comparison_panels(compared.assign_attrs(reference="sampled"))
    with pytest.raises(ValueError, match="axes: got shape .2,.; expected three Axes"):
        comparison_panels(compared, figures.figure_grid(1, 2)[1][0])

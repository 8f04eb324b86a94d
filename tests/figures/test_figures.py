"""Figures: what is drawn is what was given; nothing global is left behind; equal figures give equal files."""

from __future__ import annotations

import sys
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes

from thermoformer import figures
from thermoformer.figures.groups import grouped_points

WIDTHS = [10.0, 100.0, np.inf]


@pytest.fixture
def dataset() -> xr.Dataset:
    return xr.Dataset(
        {
            "accuracy": (("seed", "width"), [[0.96, 0.91, 0.82], [0.94, 0.89, 0.84]]),
            "accuracy_diagonal": (("seed", "width"), [[0.95, 0.90, 0.82], [0.93, 0.88, 0.84]]),
            "reference_accuracy": (("seed", "reference"), [[0.94], [0.92]]),
        },
        {"width": WIDTHS, "reference": ["good path"]},
    )


def line(ax: Axes, label: str):
    """The drawn line of a legend entry."""
    handles, labels = ax.get_legend_handles_labels()
    found = handles[labels.index(label)]
    return found.lines[0] if hasattr(found, "lines") else found


def test_accuracy_draws_means_of_finite_widths_and_levels(dataset):
    ax = figures.accuracy_against_width(dataset, published={10: 0.964, np.inf: 0.826})
    np.testing.assert_allclose(line(ax, "theory").get_xydata(), [[10, 95], [100, 90]])
    np.testing.assert_allclose(line(ax, "theory, diagonal of U only").get_ydata(), [94, 89])
    np.testing.assert_allclose(line(ax, "GP, all paths").get_ydata(), 83)
    np.testing.assert_allclose(line(ax, "GP, good path").get_ydata(), 93)
    np.testing.assert_allclose(line(ax, "published, one seed").get_xydata(), [[10, 96.4]])
    assert ax.get_ylabel() == "test accuracy (%)"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["10", "100"]


def test_accuracy_needs_no_gaussian_process_and_no_references(dataset):
    ax = figures.accuracy_against_width(dataset[["accuracy"]].isel(width=[0, 1], seed=[0]))
    assert ax.get_legend_handles_labels()[1] == ["theory"]


def test_samplers_are_placed_by_their_difference_from_the_theory_on_the_same_seeds(dataset):
    nothing = [np.nan] * 3
    dataset["exact_accuracy"] = ("seed", "width"), [[0.95, 0.91, np.nan], nothing]
    dataset["sampled_accuracy"] = ("seed", "width"), [[np.nan, 0.90, np.nan], [np.nan, 0.90, np.nan]]
    ax = figures.accuracy_against_width(dataset)
    # 95 % on average, less 1 on the one seed that was sampled; 90 % and no difference.
    np.testing.assert_allclose(line(ax, "exact finite width").get_ydata(), [94, 90])
    np.testing.assert_allclose(line(ax, "sampled networks").get_ydata(), [90])
    assert (line(ax, "exact finite width").get_xdata() > [10, 100]).all(), "beside the theory, not over it"
    dataset["sampled_accuracy"] = dataset.accuracy * np.nan
    assert "sampled networks" not in figures.accuracy_against_width(dataset).get_legend_handles_labels()[1]


def test_grouped_points_draw_means_of_seeds_and_noise():
    values = {"theory": [[1.0, 4.0], [4.0, 16.0]], "exact": [3.0, np.nan]}
    ax = grouped_points(values, ["a", "b"])
    np.testing.assert_allclose(line(ax, "theory").get_ydata(), [2.5, 10])
    np.testing.assert_allclose(line(ax, "exact").get_ydata(), [3])
    logarithmic = grouped_points(values, ["a", "b"], floors={"theory": [1.0, 2.0]}, logarithmic=True, legend=False)
    np.testing.assert_allclose(line(logarithmic, "theory").get_ydata(), [2, 8])
    assert [bar.get_height() for bar in logarithmic.patches] == pytest.approx([1, 2])
    assert logarithmic.get_yscale() == "log" and logarithmic.get_legend() is None


def test_order_parameter_colours_are_symmetric_about_zero():
    ax = figures.order_parameter_matrix([[2.0, -3.0], [-3.0, 5.0]], ["a", "b"])
    image = ax.get_images()[0]
    assert image.get_clim() == (-5, 5)
    np.testing.assert_array_equal(image.get_array(), [[2, -3], [-3, 5]])
    assert [text.get_text() for text in ax.texts] == ["2.00", "−3.00", "−3.00", "5.00"]


def test_order_parameter_of_many_paths_has_no_numbers():
    assert not figures.order_parameter_matrix(np.eye(16)).texts


def test_order_parameter_of_zeros_is_drawn():
    assert figures.order_parameter_matrix(np.zeros((2, 2))).get_images()[0].get_clim() == (-1, 1)


def test_kernel_is_sorted_by_label():
    labels = np.array([1, -1, 1, -1])
    ax = figures.kernel_image(np.outer(labels, labels) + np.eye(4), labels)
    drawn = ax.get_images()[0].get_array()
    assert (drawn[:2, :2] > 0).all() and (drawn[:2, 2:] < 0).all()


def test_kernel_without_labels_and_of_one_example():
    assert figures.kernel_image(np.eye(3)).get_xlabel() == "example"
    figures.kernel_image(np.ones((1, 1)))


def test_label_overlap_adds_up_the_shares_of_the_labels():
    ax = figures.label_overlap({"N = 10": [[0.8, 0.2], [0.6, 0.4]], "GP": [0.3, 0.3]})
    np.testing.assert_allclose([line.get_ydata() for line in ax.lines], [[0, 0.5, 0.6], [0, 0.09, 0.18]])
    band = ax.collections[0].get_paths()[0].vertices
    assert np.ptp(band[band[:, 0] == 1, 1]) == pytest.approx(2 * np.std([0.64, 0.36], ddof=1))


def test_names_at_the_ends_of_curves_stand_apart_in_their_order(dataset):
    ax = figures.accuracy_against_width(dataset, limits=(80, 100))
    ax.figure.canvas.draw()
    boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
    assert ax.get_legend() is None and list(boxes) == ax.get_legend_handles_labels()[1]
    # The ends are at 93, 83, 89 and 90 %: where there is room names are level with them.
    for name, end in {"GP, good path": 93, "GP, all paths": 83}.items():
        middle = (boxes[name].y0 + boxes[name].y1) / 2
        assert ax.transData.inverted().transform((0, middle))[1] == pytest.approx(end, abs=0.5)
    ordered = sorted(boxes.values(), key=lambda box: box.y0)
    assert all(lower.y1 < upper.y0 for lower, upper in pairwise(ordered))
    assert boxes["theory"].y0 > boxes["theory, diagonal of U only"].y1


def test_kernels_with_given_limits_share_their_colours():
    images = [figures.kernel_image(factor * np.eye(3), limits=(0, 2)).images[0] for factor in (1, 2)]
    assert {image.get_clim() for image in images} == {(0, 2)}


def test_an_axes_is_drawn_on_and_returned(dataset):
    _, axes = figures.figure_grid(1, 4)
    drawn = [
        figures.accuracy_against_width(dataset, axes[0, 0]),
        figures.order_parameter_matrix(np.eye(2), ax=axes[0, 1]),
        figures.kernel_image(np.eye(2), ax=axes[0, 2]),
        figures.label_overlap({"GP": [0.1]}, axes[0, 3]),
    ]
    assert drawn == list(axes[0])


def test_settings_and_pyplot_are_left_alone(tmp_path, dataset):
    before = dict(matplotlib.rcParams)
    figures.save(figures.accuracy_against_width(dataset).figure, tmp_path / "figure")
    assert dict(matplotlib.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_equal_figures_are_equal_files(tmp_path, dataset):
    for name in ("first", "second"):
        png, svg = figures.save(figures.accuracy_against_width(dataset).figure, tmp_path / name / "figure.v1")
        assert (png.name, svg.name) == ("figure.v1.png", "figure.v1.svg")
    for name in ("figure.v1.png", "figure.v1.svg"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.accuracy_against_width(xr.Dataset()), "dataset: got Dataset; expected .*'accuracy'"),
        (
            lambda: figures.accuracy_against_width(xr.Dataset({"accuracy": ("width", [1.0])})),
            "dataset: got accuracy with dimensions .*; expected the dimensions seed and width",
        ),
        (lambda: figures.order_parameter_matrix(np.ones((2, 3))), r"order_parameter: got shape \(2, 3\); expected"),
        (lambda: figures.order_parameter_matrix(np.eye(2), ["a"]), "path_names: got 1 names; expected 2"),
        (lambda: figures.order_parameter_matrix(np.eye(2), limit=-1.0), "limit: got -1.0; expected a number above 0"),
        (lambda: figures.order_parameter_matrix([[np.nan]]), "order_parameter: got 1 NaN or infinite"),
        (lambda: figures.kernel_image(np.eye(2), [1.0]), "labels: got 1 labels; expected 2"),
        (lambda: figures.label_overlap({}), "overlaps: got nothing; expected at least one array"),
        (lambda: figures.label_overlap({"GP": np.ones((1, 1, 1))}), r"overlaps\['GP'\]: got shape \(1, 1, 1\)"),
        (lambda: grouped_points({}, ["a"]), "values: got nothing; expected at least one series"),
        (lambda: grouped_points({"a": [1.0, 2.0]}, ["a"]), r"values\['a'\]: got shape \(2,\); expected \[1\] or"),
        (
            lambda: grouped_points({"a": [0.0]}, ["a"], logarithmic=True),
            r"values\['a'\]: got 0; expected numbers above 0",
        ),
        (lambda: grouped_points({name: [1.0] for name in "abcdef"}, ["a"]), "values: got 6 series; expected at most 5"),
        (lambda: grouped_points({"a": [1.0]}, ["a"], colours=["pink"]), "colours: got 'pink'; expected one of 'blue'"),
        (lambda: figures.figure_grid(0, 1), "rows: got 0; expected a whole number, 1 or more"),
    ],
)
def test_bad_input(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_places_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "taken").write_text("precious")
    (tmp_path / "figure.png").mkdir()
    figure = figures.figure_grid()[0]
    for stem in ("taken/figure", "taken/deeper/figure", "figure"):
        with pytest.raises(ValueError, match=r"stem: got .*figure.*; expected a (path|file) in a folder that"):
            figures.save(figure, tmp_path / stem)
    with pytest.raises(ValueError, match="stem: got '.'; expected a path that ends in a name"):
        figures.save(figure, "")

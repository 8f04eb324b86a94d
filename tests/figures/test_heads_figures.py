"""Pruning curves of pretrained transformers, and maps of their heads' scores."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_hex

from thermoformer.figures import PALETTE, head_pruning_curves, head_score_map
from thermoformer.learning import HeadScores

METHODS = ["random", "evidence", "gradient", "theory"]


def curves(measure: str = "accuracy", seeds: int = 3, penalties: tuple[str, ...] = ()) -> xr.Dataset:
    random = np.random.default_rng(0)
    value = 0.9 - 0.1 * random.random((len(METHODS), seeds, 3))
    value[..., 0] = 0.95
    dims: tuple[str, ...] = ("rule", "seed", "removed")
    axes = {"rule": METHODS, "seed": range(seeds), "removed": [0, 2, 4], "fraction": ("removed", [0, 0.25, 0.5])}
    if penalties:
        value, dims = np.stack([value - 0.1 * place for place in range(len(penalties))]), ("penalty", *dims)
        axes["penalty"] = list(penalties)
    return xr.Dataset({"value": (dims, value)}, axes, {"measure": measure})


def drawn(ax) -> dict[str, np.ndarray]:
    """Points of every named line."""
    lines = [one.lines[0] for one in ax.containers] or ax.lines
    labels = [one.get_label() for one in ax.containers or ax.lines]
    return {label: line.get_xydata() for label, line in zip(labels, lines, strict=True)}


def test_lines_are_means_over_draws_with_their_standard_errors():
    dataset = curves()
    ax = head_pruning_curves(dataset)
    points = 100 * dataset.value.sel(rule="evidence")
    found = drawn(ax)["evidence, scored again"]
    np.testing.assert_allclose(found, np.stack([[0, 25, 50], points.mean("seed")], axis=1))
    container = next(one for one in ax.containers if one.get_label() == "gradient")
    ends = np.array([segment for segment in container.lines[2][0].get_segments()])
    spread = 100 * dataset.value.sel(rule="gradient").std("seed", ddof=1) / np.sqrt(3)
    np.testing.assert_allclose((ends[:, 1, 1] - ends[:, 0, 1]) / 2, spread, atol=1e-9)
    assert ax.get_ylabel() == "test accuracy, %\nmean ± standard error of 3 draws" and ax.get_yscale() == "linear"
    level = next(line for line in ax.lines if line.get_label() == "all heads")
    assert level.get_ydata()[0] == pytest.approx(95) and level.is_dashed()


def test_ours_lie_on_top_in_colour_and_others_are_grey():
    ax = head_pruning_curves(curves())
    lines = {one.get_label(): one.lines[0] for one in ax.containers}
    assert lines["evidence, scored again"].get_color() == PALETTE["blue"]
    for name in ("random", "gradient"):
        colour = to_hex(lines[name].get_color())
        assert colour[1:3] == colour[3:5] == colour[5:7]
        assert lines[name].get_zorder() < lines["theory's U"].get_zorder()
    assert lines["random"].get_marker() != lines["gradient"].get_marker()
    assert lines["random"].get_linestyle() != "-"
    # The names at the ends have the order of the dataset.
    texts = [text.get_text() for text in ax.texts]
    assert texts == ["random", "evidence, scored again", "gradient", "theory's U", "all heads"]


def test_perplexity_is_drawn_on_a_logarithmic_axis_and_one_draw_without_bars():
    ax = head_pruning_curves(curves("perplexity", seeds=1), legend=False)
    assert ax.get_yscale() == "log" and ax.get_ylabel() == "test perplexity\none draw" and ax.get_legend() is None
    np.testing.assert_allclose(drawn(ax)["random"][0], [0, 0.95])
    assert not ax.containers, "no bars"


def test_a_penalty_is_chosen_by_its_name():
    dataset = curves(penalties=("unit", "0.1"))
    first, second = (head_pruning_curves(dataset, penalty=one) for one in (None, 0.1))
    np.testing.assert_allclose(drawn(first)["random"][:, 1] - drawn(second)["random"][:, 1], 10)
    with pytest.raises(ValueError, match="penalty: got 3; expected one of unit, 0.1"):
        head_pruning_curves(dataset, penalty=3)
    with pytest.raises(ValueError, match="penalty: got 3; expected none: there is no probe in the dataset"):
        head_pruning_curves(curves(), penalty=3)


def test_other_datasets_are_refused():
    with pytest.raises(ValueError, match="dataset: got variables a; expected an xarray Dataset with value"):
        head_pruning_curves(xr.Dataset({"a": 1}))
    with pytest.raises(TypeError, match="dataset: got a dict"):
        head_pruning_curves({})


def scores(values) -> HeadScores:
    values = np.asarray(values, float)
    return HeadScores(tuple(np.ndindex(values.shape)), values.ravel())


def image_bar(ax):
    """The axes of the colour bar beside a map."""
    return next(other for other in ax.figure.axes if other is not ax)


def test_a_map_has_a_number_in_every_cell_and_crosses_what_is_removed():
    ax = head_score_map(scores([[0.5, 120.4], [-3.0, 2e-5], [7.0, 8e6]]), removed=[(1, 0)], label="evidence")
    *numbers, order = ax.texts
    assert [text.get_text() for text in numbers] == ["0.5", "120", "−3", "2e−5", "7", "8e6"]
    assert order.get_text() == "1" and order.get_position() == pytest.approx((0, 1), abs=0.5)
    assert len(ax.lines) == 2 and all(set(np.sign(line.get_xdata() - 0)) == {-1, 1} for line in ax.lines)
    assert all(np.mean(line.get_ydata()) == 1 for line in ax.lines)
    assert ax.get_title() == "evidence; × removed (1 of 6)"
    bar = image_bar(ax)
    assert [tick.get_text() for tick in bar.get_yticklabels()] == ["−3", "2e−5", "0.5", "7", "120", "8e6"]
    # Above and below zero have opposite colours, zero is the middle.
    image = ax.images[0]
    assert image.norm(0) == 0.5 and np.sign(image.get_array()[1, 0]) == -1


def test_layers_of_unlike_size_large_maps_and_scores_of_one_sign():
    uneven = HeadScores(((0, 0), (0, 2), (1, 1)), np.array([1.0, 2.0, 3.0]))
    ax = head_score_map(uneven)
    assert len(ax.texts) == 3 and len(ax.lines) == 0 and ax.get_title() == "score of the head"
    assert not head_score_map(scores(np.ones((2, 32)))).texts


def test_ink_can_be_read_on_every_shade():
    values = np.linspace(-1, 1, 24).reshape(2, 12)
    for given in (values, values + 2):
        ax = head_score_map(scores(given))
        for text in ax.texts:
            paper = np.array(text.get_bbox_patch().get_facecolor()[:3]) @ (0.299, 0.587, 0.114)
            assert (text.get_color() == "white") == (paper < 0.5)


@pytest.mark.parametrize(
    ("given", "removed", "message"),
    [
        (scores([[1.0, 2.0]]), [(1, 0)], r"removed: got \(1, 0\); expected heads that have a score"),
        (scores([[1.0, np.nan]]), [], "scores: got NaN or infinite scores; expected finite numbers"),
    ],
)
def test_bad_maps(given, removed, message):
    with pytest.raises(ValueError, match=message):
        head_score_map(given, removed=removed)
    with pytest.raises(TypeError, match="scores: got a list"):
        head_score_map([1.0])

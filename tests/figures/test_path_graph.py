"""Paths as a graph: bands as thick as U, heads by their names, labels that can be read."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from thermoformer import figures
from thermoformer.figures.style import CYCLE
from thermoformer.learning import Architecture

NAMES = [["good", "random"], ["uniform"]]
U = np.array([[3.0, -0.5], [-0.5, 1.0]])


def words(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


def legend(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def thickness(ax) -> np.ndarray:
    """Of every band in the middle of every column, [path, column]."""
    bands = []
    for band in ax.collections:
        x, y = band.get_paths()[0].vertices.T
        columns = np.arange(round(x.max()) + 1)
        bands.append([np.ptp(y[np.isclose(x, column)]) for column in columns])
    return np.array(bands)


def test_bands_are_as_thick_as_the_order_parameter_all_the_way():
    ax = figures.path_graph(Architecture((2, 1), 10), U, NAMES)
    np.testing.assert_allclose(thickness(ax), np.outer([0.75, 0.25], np.ones(4)))
    assert words(ax) == ["input", "0.0 good", "0.1 random", "1.0 uniform", "output"]
    assert legend(ax) == ["good→uniform  3", "random→uniform  1"]
    assert ax.get_legend().get_title().get_text() == r"as thick as $U_{\pi\pi}$"


def test_bands_meet_at_the_heads_they_go_through():
    ax = figures.path_graph(Architecture((2, 2), 10), np.diag([4.0, 3.0, 2.0, 1.0]))
    bars = {(int(line.get_xdata()[0]), name): line.get_ydata() for line, name in zip(ax.lines, words(ax), strict=True)}
    for (column, name), weight in {(1, "0"): 7, (1, "1"): 3, (2, "0"): 6, (2, "1"): 4, (3, "output"): 10}.items():
        low, high = bars[column, name]
        assert high - low == pytest.approx(weight / 10)
    (low, _), (_, high) = bars[1, "0"], bars[1, "1"]
    assert high < low, "the first head is on top, with room between"
    assert legend(ax) == ["0→0  4", "0→1  3", "1→0  2", "1→1  1"]


def test_a_path_that_passes_a_layer_by_goes_through_a_node_of_its_own():
    arch = Architecture((1, 2), 10, skip=True)
    ax = figures.path_graph(arch, np.eye(6), [["a"], ["b", "c"]])
    assert words(ax) == ["input", "skip", "0.0 a", "skip", "1.0 b", "1.1 c", "output"]
    assert [label.split("  ")[0] for label in legend(ax)] == list(arch.path_names([["a"], ["b", "c"]]))
    np.testing.assert_allclose(thickness(ax), 1 / 6)


def test_several_outputs_are_added():
    ax = figures.path_graph(Architecture((2,), 10, outputs=2), np.diag([1.0, 2.0, 3.0, 6.0]))
    assert legend(ax) == ["0  4", "1  8"]


@pytest.mark.parametrize("heads", [(1,), (2, 1)])
def test_a_network_without_weight_is_drawn(heads):
    arch = Architecture(heads, 10)
    ax = figures.path_graph(arch, np.zeros((arch.paths, arch.paths)))
    assert (thickness(ax) == 0).all() and np.ptp(ax.get_ylim()) > 0


@pytest.mark.parametrize(("heads", "named"), [((12,), True), ((13,), False), ((4, 3), True)])
def test_many_paths_leave_out_what_has_no_room(heads, named):
    arch = Architecture(heads, 10)
    ax = figures.path_graph(arch, np.eye(arch.paths))
    assert ax.get_legend() is None and ax.get_xlabel() == r"as thick as $U_{\pi\pi}$"
    assert len(words(ax)) == (2 + sum(heads) if named else 2)
    assert len(ax.collections) == arch.paths


SHAPES = [((count,), False) for count in range(1, 10)]
SHAPES += [((2, 2), False), ((3, 3), False), ((2, 4), False), ((2, 2, 2), False), ((2, 2), True), ((1, 1, 1), True)]


@pytest.mark.parametrize("grid", [False, True], ids=["alone", "in a grid"])
@pytest.mark.parametrize("even", [True, False], ids=["even", "one path has it all"])
@pytest.mark.parametrize(("heads", "skip"), SHAPES)
def test_words_do_not_overlap_and_are_inside_the_figure(heads, skip, even, grid):
    arch = Architecture(heads, 10, skip=skip)
    weights = np.ones(arch.paths) if even else np.r_[5.0, np.full(arch.paths - 1, 1e-9)]
    names = [[f"random {head}" for head in range(count)] for count in heads]
    ax = figures.figure_grid(2, 3, size=(5.0, 3.8))[1][0, 2] if grid else None
    ax = figures.path_graph(arch, np.diag(weights), names, ax)
    figure = ax.figure
    figure.draw_without_rendering()
    texts = [*ax.texts, *ax.get_legend().get_texts()]
    boxes = {text: text.get_window_extent() for text in texts}
    for one, other in combinations(texts, 2):
        assert not boxes[one].overlaps(boxes[other]), (one.get_text(), other.get_text())
    for box in boxes.values():
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    colours = [entry.get_facecolor()[0].tolist() for entry in ax.collections]
    assert len({tuple(colour) for colour in colours}) == arch.paths <= len(CYCLE)


def test_an_axes_is_drawn_on_and_returned():
    ax = figures.figure_grid()[1][0, 0]
    assert figures.path_graph(Architecture((2, 1), 10), U, ax=ax) is ax


def test_paths_need_not_cross_at_the_output():
    ax = figures.path_graph(Architecture((2, 2), 10), np.eye(4), [["a", "b"], ["c", "d"]])
    ends = []
    for band in ax.collections:
        x, y = band.get_paths()[0].vertices.T
        ends.append(y[np.isclose(x, x.max())].min())
    assert np.argsort(ends)[::-1].tolist() == [0, 2, 1, 3], "those of the first head of the last layer are on top"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Architecture((2, 1), 10), np.eye(3)), r"order_parameter: got shape \(3, 3\); expected \(2, 2\)"),
        ((Architecture((2, 1), 10), [1.0, 2.0]), r"order_parameter: got shape \(2,\); expected 2 axes"),
        ((Architecture((2, 1), 10), [[1.0, np.nan], [np.nan, 1.0]]), "order_parameter: got 2 NaN or infinite"),
        ((Architecture((2, 1), 10), -U), "order_parameter: got a smallest eigenvalue of"),
        ((Architecture((2, 1), 10), U, [["good"], ["uniform"]]), r"head_names: got \[1, 1\]; expected one name per"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        figures.path_graph(*arguments)


def test_what_is_no_architecture_is_refused():
    with pytest.raises(TypeError, match=r"architecture: got a tuple; expected an Architecture"):
        figures.path_graph((2, 1), U)

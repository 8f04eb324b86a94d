"""Figures of the Learning view: what is drawn is what the picture holds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from made_pictures import made_picture

from thermoformer.app import learning_pictures, pictures

NAMES = ("accuracy", "order", "kernel", "overlap", "paths")


@pytest.fixture(scope="module")
def picture():
    return made_picture((("good", "random"), ("uniform",)))


def figure_of(name, picture):
    return getattr(learning_pictures, f"{name}_figure")(picture)


def table_of(name, picture):
    return getattr(learning_pictures, f"{name}_table")(picture)


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_the_house_look_and_can_be_sent(name, picture):
    figure = getattr(learning_pictures, f"{name}_figure")(picture, height=300)
    assert figure.layout.height == 300 and figure.layout.uirevision
    assert figure.layout.template.layout.paper_bgcolor == "white"
    assert len(json.loads(figure.to_json())["data"]) == len(figure.data) > 0


@pytest.mark.parametrize("name", [*NAMES, "heads"])
def test_columns_of_a_table_are_equally_long(name, picture):
    table = table_of(name, picture)
    assert len({len(column) for column in table.values()}) == 1
    assert all(isinstance(column, np.ndarray) and column.ndim == 1 for column in table.values())


def test_accuracy_has_the_line_the_limit_and_the_place(picture):
    limit, theory, here = figure_of("accuracy", picture).data
    assert set(limit.y) == {100 * picture.limit_accuracy}
    assert list(theory.x) == sorted({*picture.widths, 40}) and list(here.x) == [40]
    assert list(here.y) == [100 * picture.test_accuracy]
    assert theory.marker.symbol == ("circle-open", "circle", "circle", "circle")  # one has not converged
    table = table_of("accuracy", picture)
    assert table["accuracy"][table["width"] == 40] == picture.test_accuracy
    np.testing.assert_array_equal(table["accuracy"][table["width"] != 40], picture.accuracies)


def test_order_parameter_is_named_and_white_at_zero(picture):
    figure = figure_of("order", picture)
    np.testing.assert_array_equal(figure.data[0].z, picture.order_parameter)
    assert figure.data[0].zmin == -figure.data[0].zmax
    assert figure.layout.xaxis.ticktext == picture.path_names
    table = table_of("order", picture)
    np.testing.assert_array_equal(table["order_parameter"].reshape(2, 2), picture.order_parameter)
    assert (table["path"][1], table["other_path"][1]) == picture.path_names


def test_kernel_and_overlaps(picture):
    np.testing.assert_array_equal(figure_of("kernel", picture).data[0].z, picture.kernel)
    table = table_of("kernel", picture)
    np.testing.assert_array_equal(table["kernel"].reshape(25, 25), picture.kernel)
    np.testing.assert_array_equal(table["other_label"][:25], picture.kernel_labels)
    narrow, limit = figure_of("overlap", picture).data
    np.testing.assert_array_equal(narrow.y, picture.overlaps)
    np.testing.assert_array_equal(limit.y, picture.limit_overlaps)


def test_paths_are_as_thick_as_their_order_parameter(picture):
    figure = figure_of("paths", picture)
    thickness = [float(path.y[0] - path.y[-1]) for path in figure.data]
    np.testing.assert_allclose(thickness, picture.path_scores / picture.path_scores.sum(), atol=1e-12)
    assert [path.name.split("  ")[0] for path in figure.data] == list(picture.path_names)
    assert len(figure.layout.shapes) == 1 + 2 + 1 + 1
    table = table_of("paths", picture)
    assert table["head_1"].tolist() == ["good", "random"] and table["head_2"].tolist() == ["uniform", "uniform"]
    assert table_of("heads", picture)["name"].tolist() == ["good", "random", "uniform"]


def test_many_paths_and_one_path():
    many = made_picture((tuple(f"head {head}" for head in range(16)),))
    assert figure_of("order", many).data[0].texttemplate is None
    assert figure_of("order", many).layout.xaxis.showticklabels is False
    assert not any(path.showlegend for path in figure_of("paths", many).data)
    assert len(figure_of("paths", many).layout.annotations) == 2  # input and output: heads have no room
    one = made_picture((("good",),))
    for name in NAMES:
        assert figure_of(name, one).data


def test_short_numbers():
    assert [pictures.short_number(value) for value in (0.0, -2.5, 1234.4, 2.5e-5, np.inf, -np.inf)] == [
        "0", "−2.5", "1234", "2.5e-5", "inf", "−inf"
    ]  # fmt: skip
    assert len(set(pictures.colours_for(9))) == 9
    with pytest.raises(ValueError, match="height: got 0; expected a whole number, 1 or more"):
        pictures.house(learning_pictures.go.Figure(), height=0)

"""Tables of the Learning view: what is saved is what the picture holds."""

from __future__ import annotations

import numpy as np
import pytest
from made_pictures import made_picture

from thermoformer.app import learning_tables


@pytest.fixture(scope="module")
def picture():
    return made_picture((("good", "random"), ("uniform",)))


def table_of(name, picture):
    return getattr(learning_tables, f"{name}_table")(picture)


@pytest.mark.parametrize("name", ["accuracy", "order", "kernel", "overlap", "paths"])
def test_columns_of_a_table_are_equally_long(name, picture):
    table = table_of(name, picture)
    assert len({len(column) for column in table.values()}) == 1
    assert all(isinstance(column, np.ndarray) and column.ndim == 1 for column in table.values())


def test_accuracy_has_the_curve_and_the_place(picture):
    table = table_of("accuracy", picture)
    assert table["width"].tolist() == sorted({*picture.curve.widths.tolist(), 40})
    assert table["accuracy"][table["width"] == 40] == picture.test_accuracy
    np.testing.assert_array_equal(table["accuracy"][table["width"] != 40], picture.curve.accuracies)
    assert table["converged"].tolist() == [False, True, True, True]
    assert set(table["gaussian_process"]) == {picture.limit.accuracy}


def test_order_parameter_kernel_and_overlaps(picture):
    table = table_of("order", picture)
    np.testing.assert_array_equal(table["order_parameter"].reshape(2, 2), picture.solution.order_parameter)
    assert (table["path"][1], table["other_path"][1]) == picture.path_names
    table = table_of("kernel", picture)
    np.testing.assert_array_equal(table["kernel"].reshape(25, 25), picture.kernel)
    np.testing.assert_array_equal(table["other_label"][:25], picture.kernel_labels)
    table = table_of("overlap", picture)
    np.testing.assert_array_equal(table["overlap"], picture.overlaps)
    np.testing.assert_array_equal(table["gaussian_process"], picture.limit.overlaps)


def test_paths_name_their_heads(picture):
    table = table_of("paths", picture)
    assert table["head_of_layer_0"].tolist() == ["good", "random"]
    assert table["head_of_layer_1"].tolist() == ["uniform", "uniform"]
    np.testing.assert_array_equal(table["order_parameter"], picture.path_scores)

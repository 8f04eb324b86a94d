"""What a reader of the Dynamics view may choose, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from sign_tables import NO_POSITIONS, TWO_HEADS

from thermoformer.app.dynamics_view import DynamicsChoice, features_from_table, features_of, table_text
from thermoformer.dynamics import Features


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"features": "mine"}, "features: got 'mine'; expected one of"),
        ({"role": "x"}, "role: got 'x'; expected one of"),
        ({"beta": -1.0}, "beta: got -1.0; expected"),
        ({"gamma": float("nan")}, "gamma: got nan; expected"),
        ({"epsilon": 1.5}, "epsilon: got 1.5; expected a number from 0 to 1"),
        ({"context": 5}, "context: got 5; expected one of 2, 4, 8, 16"),
        ({"band": 5}, "band: got 5; expected one of 0, 10000, 1000000"),
        ({"component": 4}, "component: got 4; expected a whole number from 1 to 3"),
        ({"component": 0}, "component: got 0; expected"),
        ({"against": 4}, "against: got 4; expected a whole number from 0 to 3"),
        ({"feature_count": 7}, "feature_count: got 7; expected a whole number from 1 to 6"),
        ({"bits": 65}, "bits: got 65; expected a whole number from 1 to 64"),
        ({"start": -1}, "start: got -1; expected"),
        ({"feature_seed": 2**40}, "feature_seed: got 1099511627776; expected a whole number from 0 to 4294967295"),
        ({"between": (2.0, 1.0)}, r"between: got \(2.0, 1.0\); expected"),
        ({"features": "table"}, "table: got 0 lines; expected"),
        ({"features": "table", "table": NO_POSITIONS, "against": 0}, "epsilon: got 0.02; expected 0"),
    ],
)
def test_a_choice_refuses_what_cannot_be(fields, message):
    with pytest.raises(ValueError, match=message):
        DynamicsChoice(**fields)


def test_the_nearest_choice_is_one_that_can_be():
    asked = {"features": "table", "table": NO_POSITIONS, "component": 3, "epsilon": 0.1, "role": "v"}
    choice = DynamicsChoice.nearest(**asked)
    assert (choice.component, choice.against, choice.epsilon, choice.role) == (1, 1, 0.0, "v")
    assert DynamicsChoice.nearest() == DynamicsChoice()
    with pytest.raises(ValueError, match="beta: got -1"):
        DynamicsChoice.nearest(beta=-1)


def test_a_table_is_text_or_signs_and_never_a_path(tmp_path):
    signs = np.random.default_rng(0).choice([-1, 1], (8, 5))
    features = features_from_table(table_text(signs))
    parts = signs.reshape(4, 2, 5)
    expected = Features.from_patterns(parts[..., :3], parts[..., 3:])
    for role in "ovqk":
        np.testing.assert_array_equal(features.weights[role], expected.weights[role])
        np.testing.assert_array_equal(features.positional[role], expected.positional[role])
    # The text is what a choice carries.
    choice = DynamicsChoice(features="table", table=table_text(signs))
    np.testing.assert_array_equal(features_of(choice).signs, features.signs)
    assert DynamicsChoice(features="table", table=TWO_HEADS, role="v", component=4).components == 4
    file = tmp_path / "table.txt"
    file.write_text(TWO_HEADS)
    for path in (str(file), f"\r{file}\r\r\r"):
        with pytest.raises(ValueError, match="table"):
            features_from_table(path)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[1, -1, 1], [1, 0, 1], [1, 1, 1], [1, 1, 1]], r"table: got 0 in row 2, column 2; expected entries \+1 and"),
        ([[1, -1, 1]] * 3, "table: got 3 rows; expected a multiple of 4"),
        ([[1, -1]] * 4, "table: got 2 columns; expected 3 or more"),
        ([[1] * 70] * 4, "table: got 68 semantic columns; expected at most 64"),
        ([[1, 1, 1]] * 28, "table: got 7 features; expected at most 6"),
        (np.ones((4, 9000)), r"table: got shape \(4, 9000\); expected at most"),
        ("o +|+++++\nv +|+++++\nq +|+++++\nk +|+++++", "table: got 5 positional bits; expected at most 4"),
        ("o +\nv x\nq +\nk +", "table, line 2: got 'x'; expected signs"),
        ("+" * 30_000, "table: got 30000 characters; expected at most"),
        ([["a"]] * 4, "table: got an array of type"),
    ],
)
def test_a_table_that_is_none_is_refused(table, message):
    with pytest.raises(ValueError, match=message):
        features_from_table(table if isinstance(table, str) else table_text(table))

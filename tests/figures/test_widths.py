"""Curves over the width."""

from __future__ import annotations

import numpy as np
import pytest

from thermoformer.figures import curves_against_width

WIDTHS = [10, 100, 1000]


def test_curves_levels_and_the_marked_width():
    curves = {"theory": [75.0, 70.0, np.nan], "other": [50.0, 51.0, 52.0]}
    ax = curves_against_width(WIDTHS, curves, levels={"GP": 64.0, "trained": 85.0}, marked=100)
    assert ax.get_xscale() == "log" and [label.get_text() for label in ax.get_xticklabels()] == ["10", "100", "1000"]
    lines = {line.get_label(): line for line in ax.lines}
    np.testing.assert_array_equal(lines["other"].get_ydata(), curves["other"])
    assert lines["GP"].get_ydata()[0] == 64 and lines["trained"].get_color() != lines["GP"].get_color()
    ring = next(line for line in ax.lines if line.get_markersize() == 13)
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (100, 70) and ring.get_label() == "N = 100"
    named = curves_against_width(WIDTHS, {"theory": [1, 2, 3]}, marked=10, marked_name="chosen")
    assert [text.get_text() for text in named.get_legend().get_texts()] == ["theory", "chosen"]
    assert curves_against_width(WIDTHS, curves, ax, legend=False) is ax


@pytest.mark.parametrize(
    ("curves", "settings", "message"),
    [
        ({}, {}, "curves: got 0 curves; expected from 1 to 6"),
        ({"a": [1.0]}, {}, r"curves\['a'\]: got shape \(1,\); expected \[3\], one number per width"),
        ({"a": [1.0] * 3}, {"marked": 20}, "marked: got 20; expected one of the widths"),
        ({"a": [1.0] * 3}, {"levels": dict.fromkeys("abcd", 1.0)}, "levels: got 4 levels; expected at most 3"),
    ],
)
def test_bad_input(curves, settings, message):
    with pytest.raises(ValueError, match=message):
        curves_against_width(WIDTHS, curves, **settings)

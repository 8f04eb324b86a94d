"""Figures of the Learning view; `learning_tables` has the numbers behind each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..figures.alignment import overlap_display
from ..figures.display import Axis, Curve
from ..figures.matrices import kernel_display, order_parameter_display
from ..figures.paths import numbered_heads, path_display
from ..figures.style import PALETTE
from ..figures.widths import width_display
from .drawings import drawing
from .learning_tables import accuracy_table
from .learning_view import WIDTHS, LearningPicture

# Paths whose names fit side by side under a matrix.
MOST_SIDE_BY_SIDE = 9
# The curve and the matrix above have half of the page each, the three below a third.
UPPER: dict[str, Any] = {"width": 480, "height": 380}
LOWER: dict[str, Any] = {"width": 330, "height": 350}


def accuracy_drawing(picture: LearningPicture) -> str:
    """Test accuracy against width, the Gaussian process, and the point where the reader is."""
    table, limit = accuracy_table(picture), 100 * picture.limit.accuracy
    widths, percent = table["width"], 100 * table["accuracy"]
    levels = {f"Gaussian process, {limit:.1f} %": limit}
    shown = width_display(widths, {"theory": percent}, levels=levels, marked=picture.width)
    lost = np.logical_not(table["converged"])
    open_points = Curve(widths[lost], percent[lost], PALETTE["blue"], line=0, marker="o", hollow=True, order=2)
    notes = [f"N = {width}: not converged" for width in widths[lost]]
    low, high = min(*percent, limit), max(*percent, limit)
    # A flat curve must not look like a mountain: at least six points of a hundred are shown.
    room = max(0.12 * (high - low), (6 - (high - low)) / 2, 0.8)
    across = replace(shown.x, limits=(WIDTHS[0] / 1.18, WIDTHS[-1] * 1.18), ticks=_TICKS, names=None)
    up = Axis("test accuracy (%)", (low - room, min(high + room, 101)))
    marks = (*shown.marks, replace(open_points, notes=notes))
    about = "test accuracy against width"
    return drawing(replace(shown, marks=marks, x=across, y=up, about=about), **UPPER)


_TICKS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000)


def order_drawing(picture: LearningPicture) -> str:
    """The order parameter U as a matrix over paths; white is zero."""
    names = picture.path_names
    beside = len(names) <= MOST_SIDE_BY_SIDE
    shown = order_parameter_display(picture.solution.order_parameter, names, column_names=beside)
    label = "" if beside else "paths in the order of the rows"
    return drawing(replace(shown, x=replace(shown.x, label=label)), **UPPER)


def kernel_drawing(picture: LearningPicture) -> str:
    """The kernel K between training examples, sorted by label, with lines between the classes."""
    shown = kernel_display(picture.kernel, picture.kernel_labels, classes=picture.data.classes)
    return drawing(replace(shown, x=replace(shown.x, label="training examples")), **LOWER)


def overlap_drawing(picture: LearningPicture) -> str:
    """How much of the labels lies along each principal component of the kernel, beside the Gaussian process."""
    overlaps = {f"N = {picture.width}": picture.overlaps, "Gaussian process": picture.limit.overlaps}
    return drawing(overlap_display(overlaps), **LOWER)


def paths_drawing(picture: LearningPicture) -> str:
    """The paths from input to output through the heads, each as thick as its U_ππ."""
    heads, through = numbered_heads(picture.data.heads), picture.solution.architecture.path_heads()
    return drawing(path_display(through, heads, picture.path_scores, picture.path_names), **LOWER)

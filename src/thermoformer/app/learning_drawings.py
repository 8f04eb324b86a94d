"""Figures of the Learning view; `learning_tables` has the numbers behind each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..figures.ribbons import Ribbons, numbered_heads, ribbons_of
from . import drawings
from .drawings import drawing, frame, grid_line, line, rectangle, words
from .learning_tables import accuracy_table, overlap_table
from .learning_view import WIDTHS, LearningPicture
from .pictures import COLOURS, INK, colours_for, short_number

# Past this many paths the numbers no longer fit their cells.
LARGEST_WITH_NUMBERS = 6
# Past this many names ticks would overlap, and every second or later one stands for the rest.
MOST_NAMES = 16
# Paths whose names fit side by side, under a matrix or in a legend.
MOST_SIDE_BY_SIDE = 9
# Nodes of the graph that still have room for a name.
MOST_NAMED_NODES = 12
# The curve and the matrix above have half of the page each, the three below a third.
HEIGHT, UPPER_WIDTH, LOWER_HEIGHT, LOWER_WIDTH = 380, 480, 350, 330
# White at zero, and evenly brighter: the same colours as in `pictures`, under matplotlib's names.
_DIVERGING, _SEQUENTIAL = "RdBu_r", "viridis"
# About how wide a letter is, as a share of its height.
_LETTER = 0.56


def accuracy_drawing(picture: LearningPicture) -> str:
    """Test accuracy against width, the Gaussian process, and the point where the reader is.

    Example:
        >>> from thermoformer.app.learning_view import LearningChoice, picture_of
        >>> text = accuracy_drawing(picture_of(LearningChoice(layers=("good+random", "uniform"), train=50)))
        >>> text.count("<circle") == 8 + 1, "N = 10" in text
        (True, True)
    """
    table, limit = accuracy_table(picture), 100 * picture.limit_accuracy
    widths, percent = table["width"], 100 * table["accuracy"]
    low, high = min(percent.min(), limit), max(percent.max(), limit)
    # A flat curve must not look like a mountain: at least six points of a hundred are shown.
    room = max(0.12 * (high - low), (6 - (high - low)) / 2, 0.8)
    low, high = low - room, min(high + room, 101)
    left, top, right, bottom = 56, 40, UPPER_WIDTH - 12, HEIGHT - 54
    first, last = (np.log(end) for end in (WIDTHS[0] / 1.18, WIDTHS[-1] * 1.18))

    def place(width: np.ndarray, value: np.ndarray) -> np.ndarray:
        across = left + (np.log(width) - first) / (last - first) * (right - left)
        return np.stack([across, bottom - (value - low) / (high - low) * (bottom - top)], axis=-1)

    parts = []
    for tick in drawings.round_ticks(low, high):
        parts += grid_line(left, right, float(place(np.array(1.0), np.array(tick))[1]), drawings.tick_text(tick))
    for tick in (5, 10, 20, 50, 100, 200, 500, 1000, 2000):
        x = float(place(np.array(tick), np.array(low))[0])
        parts += [line(x, bottom, x, bottom + 4), words(x, bottom + 14, str(tick))]
    parts += frame(left, top, right, bottom)
    level = float(place(np.array(1.0), np.array(limit))[1])
    parts.append(drawings.curve(np.array([[left, level], [right, level]]), COLOURS["grey"], 2, dashes="8 6"))
    points = place(widths, percent)
    parts.append(drawings.curve(points, COLOURS["blue"], 2.5))
    for (x, y), width, value, converged in zip(points.tolist(), widths, percent, table["converged"], strict=True):
        said = f"N = {width}: {value:.1f} %{'' if converged else ', not converged'}"
        parts.append(drawings.disc(x, y, 3.5, COLOURS["blue"], said, hollow=not converged))
    here = place(np.array(picture.width), np.array(100 * picture.test_accuracy))
    parts.append(_diamond(here, f"N = {picture.width}: {100 * picture.test_accuracy:.1f} %"))
    parts.append(drawings.curve(np.array([[left, 16], [left + 26, 16]]), COLOURS["grey"], 2, dashes="8 6"))
    parts.append(words(left + 32, 16, f"Gaussian process, {limit:.1f} %", anchor="start"))
    parts.append(drawings.curve(np.array([[left + 196, 16], [left + 222, 16]]), COLOURS["blue"], 2.5))
    parts += [drawings.disc(left + 209, 16, 3.5, COLOURS["blue"]), words(left + 228, 16, "theory", anchor="start")]
    parts += [_diamond(np.array([left + 294, 16])), words(left + 306, 16, f"N = {picture.width}", anchor="start")]
    parts.append(words((left + right) / 2, bottom + 36, "width N", size=13))
    parts.append(words(13, (top + bottom) / 2, "test accuracy (%)", size=13, turned=-90))
    return drawing(parts, width=UPPER_WIDTH, height=HEIGHT, title="test accuracy against width")


def _diamond(middle: np.ndarray, said: str = "") -> str:
    corners = middle + 8 * np.array([[0, -1], [1, 0], [0, 1], [-1, 0]])
    return drawings.outline(corners, COLOURS["vermilion"], said, rim="white", wide=2)


def order_drawing(picture: LearningPicture) -> str:
    """The order parameter U as a matrix over paths; white is zero.

    Example:
        >>> from thermoformer.app.learning_view import LearningChoice, picture_of
        >>> "good→uniform" in order_drawing(picture_of(LearningChoice(layers=("good+random", "uniform"), train=50)))
        True
    """
    matrix, names = picture.order_parameter, picture.path_names
    count, limit = len(names), float(np.abs(picture.order_parameter).max()) or 1.0
    width, every = UPPER_WIDTH, -(-len(names) // MOST_NAMES)
    longest = max(map(len, names)) * 12 * _LETTER
    left, below = min(longest + 8, 200), 24 if count <= 2 else min(0.6 * longest + 16, 110)
    side_by_side = count <= MOST_SIDE_BY_SIDE
    size = min(HEIGHT - 16 - (below if side_by_side else 30), width - left - 80)
    cell, top = size / count, 12
    left = max(left, (width - size - 70) / 2)
    parts = []
    for row, name in enumerate(names):
        middle = top + (row + 0.5) * cell
        for column, other in enumerate(names):
            value = matrix[row, column]
            colour, ink = drawings.colour_at(_DIVERGING, 0.5 + 0.5 * value / limit)
            place = left + column * cell
            parts.append(
                rectangle(place, top + row * cell, cell - 1, cell - 1, colour, f"{name}, {other}: {value:.3g}")
            )
            if count <= LARGEST_WITH_NUMBERS:
                text = short_number(round(value, 2))
                parts.append(words(place + cell / 2, middle, text, size=13, colour=ink))
        if row % every == 0:
            parts.append(words(left - 6, middle, name, anchor="end"))
        if side_by_side:
            across, under = left + (row + 0.5) * cell, top + size + 10
            tilted = count > 2
            parts.append(words(across, under, name, anchor="end" if tilted else "middle", turned=-35 if tilted else 0))
    if not side_by_side:
        parts.append(words(left + size / 2, top + size + 16, "paths in the order of the rows"))
    ticks = drawings.round_ticks(-limit, limit)
    parts += drawings.colour_bar(
        _DIVERGING, (-limit, limit), ticks, "U", x=left + size + 14, y=top + 24, height=size - 24
    )
    return drawing(parts, width=width, height=HEIGHT, title="order parameter U between paths")


def kernel_drawing(picture: LearningPicture) -> str:
    """The kernel K between training examples, sorted by label, with lines between the classes.

    Example:
        >>> from thermoformer.app.learning_view import LearningChoice, picture_of
        >>> "class −1" in kernel_drawing(picture_of(LearningChoice(layers=("good+random", "uniform"), train=50)))
        True
    """
    low, high = _kernel_ends(picture.kernel)
    count, first = len(picture.kernel), int(np.count_nonzero(picture.kernel_labels < 0))
    left, top, size = 30.0, 40.0, 240.0
    border = size * first / count
    parts = [
        drawings.image(picture.kernel, low, high, _SEQUENTIAL, left, top, size),
        line(left + border, top, left + border, top + size, "white", 2),
        line(left, top + border, left + size, top + border, "white", 2),
    ]
    for name, middle in zip(picture.classes, (border / 2, (border + size) / 2), strict=True):
        parts.append(words(left + middle, top + size + 13, f"class {name}"))
        parts.append(words(left - 12, top + middle, f"class {name}", turned=-90))
    parts.append(words(left + size / 2, top + size + 34, "training examples", size=13))
    ticks = drawings.round_ticks(low, high)
    parts += drawings.colour_bar(_SEQUENTIAL, (low, high), ticks, "K", x=left + size + 14, y=top + 12, height=size - 12)
    return drawing(parts, width=LOWER_WIDTH, height=LOWER_HEIGHT, title="kernel K between training examples, by class")


def _kernel_ends(matrix: np.ndarray) -> tuple[float, float]:
    """The values at the ends of the colours: the diagonal is often far above the rest and would take all of them."""
    low, high = np.quantile(matrix[~np.eye(len(matrix), dtype=bool)], [0.01, 0.99]).tolist()
    return low, high if high > low else low + 1


def overlap_drawing(picture: LearningPicture) -> str:
    """How much of the labels lies along each principal component of the kernel, beside the Gaussian process.

    Example:
        >>> from thermoformer.app.learning_view import LearningChoice, picture_of
        >>> text = overlap_drawing(picture_of(LearningChoice(layers=("good+random", "uniform"), train=50)))
        >>> text.count("<rect") == 2 * 30 + 2
        True
    """
    table = overlap_table(picture)
    left, top, right, bottom = 50, 36, LOWER_WIDTH - 6, LOWER_HEIGHT - 54
    count = len(table["component"])
    step = (right - left - 8) / count
    bar = 0.375 * step
    kinds = (("overlap", f"N = {picture.width}", "blue"), ("gaussian_process", "Gaussian process", "grey"))
    parts = []
    for number in range(6):
        parts += grid_line(left, right, bottom - number / 5 * (bottom - top), f"{number / 5:g}")
    for place, (column, name, colour) in enumerate(kinds):
        for component, value in zip(table["component"], table[column], strict=True):
            tall = float(value) * (bottom - top)
            x = left + 4 + (component - 0.5) * step + (place - 1) * bar
            said = f"component {component}, {name}: {value:.2f}"
            parts.append(rectangle(x, bottom - tall, bar, tall, COLOURS[colour], said))
        parts.append(rectangle(left + 120 * place, 10, 11, 11, COLOURS[colour]))
        parts.append(words(left + 120 * place + 18, 16, name, anchor="start"))
    for component in (1, *range(5, count + 1, 5)):
        x = left + 4 + (component - 0.5) * step
        parts += [line(x, bottom, x, bottom + 4), words(x, bottom + 14, str(component))]
    parts += frame(left, top, right, bottom)
    parts.append(words((left + right) / 2, bottom + 36, "principal component of K", size=13))
    parts.append(words(13, (top + bottom) / 2, "overlap with the labels", size=13, turned=-90))
    return drawing(
        parts, width=LOWER_WIDTH, height=LOWER_HEIGHT, title="overlap of the labels with the components of K"
    )


def paths_drawing(picture: LearningPicture) -> str:
    """The paths from input to output through the heads, each as thick as its U_ππ.

    Example:
        >>> from thermoformer.app.learning_view import LearningChoice, picture_of
        >>> text = paths_drawing(picture_of(LearningChoice(layers=("good+random", "uniform"), train=50)))
        >>> [name in text for name in ("1.1 good", "1.2 random", "2.1 uniform")]
        [True, True, True]
    """
    found = ribbons_of(picture.path_heads, numbered_heads(picture.heads), picture.path_scores, picture.path_names)
    named = found.labels if len(found.labels) <= MOST_SIDE_BY_SIDE else ()
    top, bottom = 24, LOWER_HEIGHT - 10 - (18 * len(named) + 20 if named else 0)
    scale = (bottom - top) / found.tallest
    middle = (top + bottom) / 2

    def place(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.stack([14 + x * (LOWER_WIDTH - 28) / (found.columns - 1), middle - y * scale], axis=1)

    parts = []
    for colour, label, (x, low, high) in zip(colours_for(len(found.labels)), found.labels, found.ribbons, strict=True):
        edge = np.concatenate([place(x, high), place(x[::-1], low[::-1])])
        parts.append(drawings.outline(edge, colour, label, opacity=0.8))
    parts += _nodes(found, place)
    if named:
        parts.append(words(14, bottom + 20, "as thick as its entry on the diagonal of U:", anchor="start"))
    for number, (colour, label) in enumerate(zip(colours_for(len(named)), named, strict=True)):
        y = bottom + 40 + 18 * number
        parts += [rectangle(14, y - 3, 24, 6, colour), words(46, y, label, anchor="start")]
    return drawing(parts, width=LOWER_WIDTH, height=LOWER_HEIGHT, title="paths through the heads, as thick as U")


def _nodes(found: Ribbons, place: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> list[str]:
    """Bars where paths meet, each with the name of its head above."""
    bars, names = [], []
    for column, spans in enumerate(found.spans):
        anchor = "start" if column == 0 else "end" if column == found.columns - 1 else "middle"
        for (low, high), name in zip(spans, found.names[column], strict=True):
            (x, upper), (_, lower) = place(np.array([column, column]), np.array([high, low]))
            bars.append(rectangle(x - 2, upper - 1, 4, lower - upper + 2, INK))
            if len(spans) <= MOST_NAMED_NODES:
                shift = {"start": -2, "end": 2, "middle": 0}[anchor]
                names.append(words(x + shift, upper - 10, name, anchor=anchor, size=13, bright=True))
    return bars + names

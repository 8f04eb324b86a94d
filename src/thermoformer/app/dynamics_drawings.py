"""The phase plane of the Dynamics view; `dynamics_pictures` has the other figures, and the tables behind all."""

from __future__ import annotations

import numpy as np

from . import drawings
from .drawings import drawing, frame, grid_line, line, words
from .dynamics_pictures import around, written
from .dynamics_view import DynamicsPicture
from .pictures import COLOURS, FAINT

# Points of one drawing: all are one outline, which a browser draws at once.
DRAWN_POINTS = 2000
# Fewer distinct points than this are a cycle, and want larger dots.
FEW_POINTS = 300


def plane_drawing(picture: DynamicsPicture, *, height: int = 320) -> str:
    """The phase plane: one component against another, or against itself one step later.

    Arguments:
        picture: of `picture_of`.
        height: in pixels.

    Example:
        >>> from thermoformer.app.dynamics_view import DynamicsChoice, picture_of
        >>> "one step later" in plane_drawing(picture_of(DynamicsChoice(beta=1.0, against=0)))
        True
    """
    choice = picture.choice
    across, up = _points(picture, DRAWN_POINTS)
    (low, high), (bottom_value, top_value) = map(around, picture.plane)
    left, top, right, bottom, width = 58, 14, 322, height - 52, 330
    columns = left + (across - low) / (high - low) * (right - left)
    rows = bottom - (up - bottom_value) / (top_value - bottom_value) * (bottom - top)
    parts = []
    for tick in drawings.round_ticks(bottom_value, top_value):
        y = bottom - (tick - bottom_value) / (top_value - bottom_value) * (bottom - top)
        parts += grid_line(left, right, y, drawings.tick_text(tick))
    for tick in drawings.round_ticks(low, high, most=5):
        x = left + (tick - low) / (high - low) * (right - left)
        parts += [line(x, top, x, bottom, FAINT), line(x, bottom, x, bottom + 4)]
        parts.append(words(x, bottom + 14, drawings.tick_text(tick)))
    size, opacity = (7.0, 1.0) if len(across) < FEW_POINTS else (2.6, 0.6)
    parts.append(drawings.dots(np.stack([columns, rows], axis=1), COLOURS["blue"], size, opacity=opacity))
    parts += frame(left, top, right, bottom)
    named = written(choice.role, choice.component)
    upwards = written(choice.role, choice.against) if choice.against else f"{named} one step later"
    parts.append(words((left + right) / 2, bottom + 36, named, size=13))
    parts.append(words(13, (top + bottom) / 2, upwards, size=13, turned=-90))
    return drawing(parts, width=width, height=height, title=f"phase plane of the magnetisation m_{choice.role}")


def _points(picture: DynamicsPicture, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The points of the phase plane that are drawn: the last ones, or those of a cycle each once, [point].

    Arguments:
        most: how many at most.
    """
    across, up = picture.plane
    points = np.unique(np.round(np.stack([across, up]), 8), axis=1)
    if points.shape[1] < FEW_POINTS:
        across, up = points  # each once: a hundred dots on one place have ragged edges
    return across[-most:], up[-most:]

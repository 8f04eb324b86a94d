"""The phase plane as a drawing, for the page; `dynamics_pictures` has the same one to save."""

from __future__ import annotations

import numpy as np

from . import drawings
from .drawings import drawing, frame, grid_line, line, words
from .dynamics_pictures import FEW_POINTS, plane_limits, plane_points, written
from .dynamics_view import DynamicsPicture
from .pictures import COLOURS, FAINT

# Points of one drawing: all are one outline, which a browser draws at once.
DRAWN_POINTS = 2000


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
    across, up = plane_points(picture, DRAWN_POINTS)
    (low, high), (bottom_value, top_value) = plane_limits(picture)
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

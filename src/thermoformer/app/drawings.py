"""The browser's painter: Displays of `thermoformer.figures` as SVG, quick enough to follow every move of a slider.

Lengths are in pixels of a drawing that is never shown larger than it is; narrow screens shrink it as a whole.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any
from xml.etree import ElementTree

import numpy as np
from matplotlib.colors import to_hex
from matplotlib.image import imsave

from ..figures.display import Axis, Band, Curve, Display, Image, Key, Level, Mark, Text
from ..figures.style import INK

FAINT = "#E3E3E3"
# DejaVu stands in where a machine has none of the others: it has every letter of the formulas.
FONT = "Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
# Pixels of a point, and about how wide a letter of the usual size is.
_POINT, _LETTER = 4 / 3, 6.8
# Room at the edges, of a line of a legend, of a colour bar with its numbers, and between panels.
_EDGE, _LINE, _BAR, _BETWEEN = 10, 19, 82, 12
_SHADES = 64
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)


@dataclass(frozen=True)
class Frame:
    """Where the axes of a display stand in a drawing, and the values at their ends."""

    left: float
    top: float
    right: float
    bottom: float
    x: Axis
    y: Axis

    def across(self, values: object) -> np.ndarray:
        """Pixels from the left."""
        return self.left + _shares(self.x, values) * (self.right - self.left)

    def down(self, values: object) -> np.ndarray:
        """Pixels from the top."""
        return self.bottom - _shares(self.y, values) * (self.bottom - self.top)

    def places(self, x: object, y: object) -> np.ndarray:
        """Points [point, 2]."""
        return np.stack(np.broadcast_arrays(self.across(x), self.down(y)), axis=-1)


def drawing(
    panels: Display | Sequence[Display],
    *,
    width: int,
    height: int,
    heights: Sequence[float] = (1.0,),
    sides: tuple[float, float] | None = None,
) -> str:
    """Displays below each other as one drawing, with a title that a screen reader says.

    Arguments:
        panels: one, or several that share the axis below the last one.
        width, height: in pixels.
        heights: of the panels, as shares.
        sides: room on the left and on the right; as much as is needed by default.

    Example:
        >>> curve = Curve([1, 2], [3.0, 4.0], "#0072B2", label="a < b")
        >>> text = drawing(Display((curve,), about="two points"), width=80, height=60)
        >>> text.count("<path"), "a &lt; b" in text, ">two points</title>" in text
        (2, True, True)
    """
    shown = [panels] if isinstance(panels, Display) else list(panels)
    shown = [replace(one, x=_with_ends(one, "x"), y=_with_ends(one, "y")) for one in shown]
    left, right = sides or (max(map(_room_left, shown)), max(map(_room_right, shown)))
    wide = width - left - right
    above = [_LINE * len(_rows(one, wide)) if one.legend != "below" else 0 for one in shown]
    free = height - _EDGE - sum(above) - _BETWEEN * (len(shown) - 1) - _room_below(shown[-1], wide)
    parts, top = [], float(_EDGE)
    for number, (one, room, share) in enumerate(zip(shown, above, heights, strict=True)):
        bottom = top + room + free * share / sum(heights)
        frame = Frame(left, top + room, width - right, bottom, one.x, one.y)
        parts += _panel(one, frame if not one.square else _squared(frame), last=number == len(shown) - 1)
        top = bottom + _BETWEEN
    title = html.escape(shown[0].about)
    look = f'font-family="{html.escape(FONT)}" font-size="12" fill="{INK}" role="img" aria-label="{title}"'
    place = f'style="max-width:{width}px" viewBox="0 0 {width} {height}"'
    return f'<svg class="tf-drawing" xmlns="{_SVG}" {place} {look}><title>{title}</title>{"".join(parts)}</svg>'


def file_of(shown: str) -> bytes:
    """A drawing as a file of its own: of its size, on white, as programs older than browsers read it too.

    Example:
        >>> file_of(drawing(Display((), about="none"), width=8, height=6))[:38]
        b"<?xml version='1.0' encoding='utf-8'?>"
    """
    root = ElementTree.fromstring(shown)
    for name in ("class", "style"):
        del root.attrib[name]
    width, height = root.attrib["viewBox"].split()[2:]
    size = {"width": width, "height": height}
    root.attrib.update(size)
    root.insert(1, ElementTree.Element(f"{{{_SVG}}}rect", size | {"fill": "white"}))
    for one in root.iter(f"{{{_SVG}}}image"):
        one.attrib[f"{{{_XLINK}}}href"] = one.attrib.pop("href")
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _panel(display: Display, frame: Frame, *, last: bool) -> list[str]:
    """The marks of a display, its axes and its legend."""
    parts = _axes(display, frame, names=last)
    for mark in sorted(display.marks, key=lambda mark: mark.order):
        parts.append(_svg(mark, frame))
        if isinstance(mark, Image) and mark.bar:
            parts += _colour_bar(mark, frame.right + 14, frame.top + _LINE, frame.bottom)
    if display.frame:
        corner = frame.left, frame.bottom
        parts += [_line(corner, (frame.left, frame.top)), _line(corner, (frame.right, frame.bottom))]
    return parts + _legend(display, frame)


def _axes(display: Display, frame: Frame, *, names: bool) -> list[str]:
    """Ticks with their names, faint lines across from those of y, and labels."""
    parts = []
    for value, text in _ticks(display.x) if names else ():
        place = float(frame.across(value))
        if display.frame:
            parts.append(_line((place, frame.bottom), (place, frame.bottom + 4)))
        tilted = 0 < display.x.tilt < 90
        parts.append(_words(place, frame.bottom + 14, text, "end" if tilted else "middle", turned=-35 if tilted else 0))
    for value, text in _ticks(display.y):
        place = float(frame.down(value))
        if display.frame:
            parts.append(_line((frame.left, place), (frame.right, place), FAINT))
            parts.append(_line((frame.left - 4, place), (frame.left, place)))
        if display.y.tilt:
            parts.append(_words(frame.left - 12, place, text, turned=-90))
        else:
            parts.append(_words(frame.left - 7, place, text, "end"))
    if display.x.label and names:
        deep = frame.bottom + (36 if any(text for _, text in _ticks(display.x)) else 16)
        parts.append(_words((frame.left + frame.right) / 2, deep, display.x.label, size=13))
    if display.y.label:
        parts.append(_words(_EDGE + 3, (frame.top + frame.bottom) / 2, display.y.label, size=13, turned=-90))
    return parts


@singledispatch
def _svg(mark: Mark, frame: Frame) -> str:
    """A mark as SVG; a key stands in the legend alone."""
    return ""


@_svg.register
def _(mark: Curve, frame: Frame) -> str:
    points = frame.places(mark.x, mark.y)
    # Nothing is drawn beyond the axes.
    shares = np.stack([_shares(frame.x, mark.x), _shares(frame.y, mark.y)])
    known = np.all(np.abs(shares - 0.5) <= 0.5 + 1e-9, axis=0)
    look = f'stroke="{mark.colour}" stroke-opacity="{mark.opacity:g}" fill="none"'
    parts = []
    if mark.line:
        starts = known & ~np.concatenate([[False], known[:-1]])
        steps = [f"{'M' if start else 'L'}{_pair(point)}" for point, start in zip(points, starts, strict=True)]
        text = "".join(step for step, there in zip(steps, known, strict=True) if there)
        dashes = " ".join(f"{mark.line * _POINT * length:.3g}" for length in mark.dashes)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(
            f'<path d="{text}" {look} stroke-width="{mark.line * _POINT:.3g}" stroke-linejoin="round"{dashed}/>'
        )
    if mark.marker and not mark.notes and not mark.hollow:
        # A line of no length with round ends is a dot; all are one element, which a browser draws at once.
        text = "".join(f"M{_pair(point)}h0" for point in points[known])
        size = max(mark.size * _POINT * (0.5 if mark.marker == "." else 1.0), 1.6)
        parts.append(f'<path d="{text}" {look} stroke-width="{size:.3g}" stroke-linecap="round"/>')
    elif mark.marker:
        radius, inside = mark.size * _POINT / 2, "white" if mark.hollow else mark.colour
        notes = mark.notes or [""] * len(points)
        for (x, y), note in zip(points[known], np.array(notes, object)[known], strict=True):
            place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:.3g}" fill="{inside}" stroke="{mark.colour}"'
            parts.append(_noted(f'circle {place} stroke-width="1.5"', note))
    return "".join(parts)


@_svg.register
def _(mark: Level, frame: Frame) -> str:
    dashes = " ".join(f"{mark.line * _POINT * length:.3g}" for length in mark.dashes)
    if mark.upright:
        place = float(frame.across(mark.value))
        ends = (place, frame.top), (place, frame.bottom)
    else:
        place = float(frame.down(mark.value))
        ends = (frame.left, place), (frame.right, place)
    return _line(*ends, mark.colour, mark.line * _POINT, dashes)


@_svg.register
def _(mark: Band, frame: Frame) -> str:
    x = np.asarray(mark.x)
    edge = np.concatenate([frame.places(x, mark.high), frame.places(x, mark.low)[::-1]])
    # A hair of a line, so that a band without area is seen too.
    look = f'fill="{mark.colour}" stroke="{mark.colour}" stroke-width="0.8" opacity="{mark.opacity:g}"'
    return _noted(f'polygon points="{" ".join(map(_pair, edge))}" {look}', mark.note)


@_svg.register
def _(mark: Image, frame: Frame) -> str:
    values, x, y = np.asarray(mark.values, float), frame.across(mark.x), frame.down(mark.y)
    painted = mark.map(mark.norm(np.ma.masked_invalid(values)), bytes=True)
    if mark.notes is not None:
        cells = np.ndindex(values.shape)
        # A pixel of paper between neighbours.
        return "".join(
            _box((x[j], y[i]), (x[j + 1] - 1, y[i + 1] - 1), f"#{painted[i, j, :3].tobytes().hex()}", mark.notes[i, j])
            for i, j in cells
        )
    stream = io.BytesIO()
    imsave(stream, painted if y[-1] > y[0] else painted[::-1], format="png", pil_kwargs={"compress_level": 1})
    picture = base64.b64encode(stream.getvalue()).decode()
    (left, right), (top, bottom) = sorted((x[0], x[-1])), sorted((y[0], y[-1]))
    place = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"'
    how = 'preserveAspectRatio="none" style="image-rendering:pixelated"'
    # An svg within another shows nothing beyond its edges: cells at the ends of an axis may be wider than it.
    wide, high = frame.right - frame.left, frame.bottom - frame.top
    edges = f'x="{frame.left:.1f}" y="{frame.top:.1f}" width="{wide:.1f}" height="{high:.1f}"'
    view = f'viewBox="{frame.left:.1f} {frame.top:.1f} {wide:.1f} {high:.1f}" preserveAspectRatio="none"'
    return f'<svg {edges} {view}><image {place} {how} href="data:image/png;base64,{picture}"/></svg>'


@_svg.register
def _(mark: Text, frame: Frame) -> str:
    ((x, y),) = frame.places([mark.x], [mark.y])
    right, up = mark.shift
    anchor = {"left": "start", "center": "middle", "right": "end"}[mark.across]
    half = {"bottom": -0.5, "center": 0.0, "top": 0.5}[mark.up] * mark.size * _POINT
    place = x + right * _POINT, y - up * _POINT + half
    return _words(*place, mark.text, anchor, size=mark.size * _POINT, colour=mark.colour, rim=mark.rim)


def _ends(mark: Mark, which: str) -> list[float]:
    """The lowest and the highest value of a mark along an axis."""
    across = which == "x"
    if isinstance(mark, Level):
        return [mark.value] if mark.upright == across else []
    if isinstance(mark, Text | Key):
        return []
    if isinstance(mark, Band):
        values = mark.x if across else np.concatenate([np.atleast_1d(mark.low), np.atleast_1d(mark.high)])
    else:
        values = getattr(mark, which)
    known = np.asarray(values, float)
    known = known[np.isfinite(known)]
    return [float(known.min()), float(known.max())] if known.size else []


def _with_ends(display: Display, which: str) -> Axis:
    """An axis with limits: its own, or those of the marks with a margin."""
    axis: Axis = getattr(display, which)
    if axis.limits is not None:
        return axis
    ends = [end for mark in display.marks for end in _ends(mark, which)] or [0.0, 1.0]
    low, high = min(ends), max(ends)
    if axis.log:
        room = (high / low) ** 0.05 if high > low else 2.0
        return replace(axis, limits=(low / room, high * room))
    margin = 0.05 if axis.margin is None else axis.margin
    room = max(margin * (high - low), 1e-6)
    return replace(axis, limits=(low - room, high + room))


def _shares(axis: Axis, values: object) -> np.ndarray:
    """Where values are between the ends of an axis, from 0 to 1."""
    assert axis.limits is not None
    numbers, ends = np.asarray(values, float), np.asarray(axis.limits, float)
    if axis.log:
        numbers, ends = np.log10(np.maximum(numbers, 1e-300)), np.log10(ends)
    return (numbers - ends[0]) / (ends[1] - ends[0])


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    """Places of ticks on an axis, with their names."""
    assert axis.limits is not None
    if axis.ticks is not None:
        names = axis.names or [tick_text(tick) for tick in axis.ticks]
        return list(zip(axis.ticks, names, strict=True))
    low, high = sorted(axis.limits)
    return [(tick, tick_text(tick)) for tick in (decades(low, high) if axis.log else round_ticks(low, high))]


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two.

    Example:
        >>> round_ticks(-10.3, 10.3), round_ticks(0.12, 0.57)
        ([-10.0, -5.0, 0.0, 5.0, 10.0], [0.2, 0.3, 0.4, 0.5])
    """
    raw = (high - low) / most
    size = 10.0 ** np.floor(np.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first, last = int(np.ceil(low / step)), int(np.floor(high / step))
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


def decades(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten between two numbers; round numbers where there are fewer than two.

    Example:
        >>> decades(2e-4, 0.3)
        [0.001, 0.01, 0.1]
    """
    first, last = int(np.ceil(np.log10(low) - 1e-9)), int(np.floor(np.log10(high) + 1e-9))
    if last <= first:
        return round_ticks(low, high)
    return [float(f"1e{power}") for power in range(first, last + 1, -(-(last - first) // most))]


def tick_text(value: float) -> str:
    """A number as it stands at an axis.

    Example:
        >>> tick_text(-0.5), tick_text(1e-12)
        ('−0.5', '$10^{−12}$')
    """
    text = f"{value:g}".replace("-", "−")
    return re.sub(r"^1e(−?)\+?0*(\d+)$", r"$10^{\1\2}$", text)


def _room_left(display: Display) -> float:
    longest = max((_long(text) for _, text in _ticks(display.y)), default=0) if not display.y.tilt else 12
    return _EDGE + longest + 10 + 20 * bool(display.y.label)


def _room_right(display: Display) -> float:
    return _BAR if any(isinstance(mark, Image) and mark.bar for mark in display.marks) else _EDGE


def _room_below(display: Display, width: float) -> float:
    names = [text for _, text in _ticks(display.x) if text]
    tilted = 0 < display.x.tilt < 90
    room = (max(map(_long, names)) * 0.6 + 18 if tilted else 24) if names else 4
    rows = _rows(display, width) if display.legend == "below" else []
    return room + 22 * bool(display.x.label) + _LINE * (len(rows) + bool(rows and display.heading)) + 4


def _squared(frame: Frame) -> Frame:
    """The largest square in a frame, at its top right."""
    size = min(frame.right - frame.left, frame.bottom - frame.top)
    middle = (frame.left + frame.right - size) / 2
    return replace(frame, left=middle, right=middle + size, bottom=frame.top + size)


def _rows(display: Display, width: float) -> list[list[Mark]]:
    """The marks that a legend names, in rows that fit."""
    rows, used = [], np.inf
    for mark in (mark for mark in display.marks if mark.label and display.legend):
        wide = 48 + _long(mark.label)
        if used + wide > width:
            rows.append([])
            used = 0.0
        rows[-1].append(mark)
        used += wide
    return rows


def _legend(display: Display, frame: Frame) -> list[str]:
    """Names of marks: in rows above the axes, or below them."""
    rows = _rows(display, frame.right - frame.left)
    parts, top = [], frame.top - _LINE * len(rows) + 3
    if display.legend == "below":
        top = frame.bottom + _room_below(replace(display, legend=""), 0) + 8
        if rows and display.heading:
            parts.append(_words(frame.left, top, f"{display.heading}:", "start"))
            top += _LINE
    for y, row in zip(top + _LINE * np.arange(len(rows)), rows, strict=True):
        x = frame.left
        for mark in row:
            parts += [_sample(mark, x, y), _words(x + 32, y, mark.label, "start")]
            x += 48 + _long(mark.label)
    return parts


def _sample(mark: Mark, x: float, y: float) -> str:
    """What stands for a mark in the legend."""
    frame = Frame(x, y - 4, x + 26, y + 4, Axis(limits=(0, 1)), Axis(limits=(0, 1)))
    if isinstance(mark, Level):
        return _svg(replace(mark, value=0.5, upright=False), frame)
    if isinstance(mark, Curve):
        line = _svg(replace(mark, x=[0, 1], y=[0.5, 0.5], marker=""), frame)
        point = replace(mark, x=[0.5], y=[0.5], line=0, notes=(), size=min(mark.size, 8))
        return line + (_svg(point, frame) if mark.marker else "")
    return _box((x, y - 3), (x + 24, y + 3), getattr(mark, "colour", INK), "")


def _colour_bar(image: Image, x: float, top: float, bottom: float) -> list[str]:
    """A bar of colours with ticks, its title above."""
    axis = Axis(limits=image.ends, log=image.log)
    frame = Frame(x, top, x + 12, bottom, axis, axis)
    edges = np.linspace(bottom, top, _SHADES + 1)
    shades = image.map(np.linspace(0, 1, _SHADES))
    # Each a little taller than its share, or the paper shines through between two.
    parts = [
        _box((x, upper), (x + 12, lower + 0.5), to_hex(shade), "")
        for lower, upper, shade in zip(edges, edges[1:], shades, strict=False)
    ]
    if len(image.bar) < 4:
        parts.append(_words(x + 2, top - 11, image.bar, "start"))
    else:
        parts.append(_words(x + _BAR - 20, (top + bottom) / 2, image.bar, turned=-90))
    for tick, text in _ticks(axis):
        place = float(frame.down(tick))
        parts += [_line((x + 12, place), (x + 15, place)), _words(x + 18, place, text, "start", size=11)]
    return parts


def _line(
    start: tuple[float, float], end: tuple[float, float], colour: str = INK, width: float = 1.0, dashes: str = ""
) -> str:
    (x, y), (other_x, other_y) = start, end
    place = f'x1="{x:.1f}" y1="{y:.1f}" x2="{other_x:.1f}" y2="{other_y:.1f}"'
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line {place} stroke="{colour}" stroke-width="{width:.3g}"{dashed}/>'


def _box(corner: Any, other: Any, colour: str, note: str) -> str:
    (left, right), (top, bottom) = sorted((corner[0], other[0])), sorted((corner[1], other[1]))
    place = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"'
    return _noted(f'rect {place} fill="{colour}"', note)


def _words(
    x: float,
    y: float,
    text: str,
    anchor: str = "middle",
    *,
    size: float = 12,
    colour: str = INK,
    turned: float = 0,
    rim: bool = False,
) -> str:
    """A line of text, at half its height; a white rim keeps it readable on colours."""
    turn = f' transform="rotate({turned:g} {x:.1f} {y:.1f})"' if turned else ""
    edge = ' stroke="white" stroke-width="7" stroke-linejoin="round" paint-order="stroke"' if rim else ""
    look = f'text-anchor="{anchor}" dy="0.35em" font-size="{size:.3g}" fill="{colour}"{edge}{turn}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{_formula(text)}</text>'


def _formula(text: str) -> str:
    """Text with the few formulas that labels have, between dollar signs: $m_{o,1}$, $10^{−3}$."""
    parts = html.escape(text).replace("\\pi", "π").split("$")
    parts[1::2] = [re.sub(r"([_^])(?:\{([^}]*)\}|(\w))", _moved, formula) for formula in parts[1::2]]
    return "".join(parts)


def _moved(match: re.Match[str]) -> str:
    """An index or an exponent, and back to the line."""
    down, back = ("0.35em", "-0.25em") if match[1] == "_" else ("-0.4em", "0.28em")
    return f'<tspan dy="{down}" font-size="70%">{match[2] or match[3]}</tspan><tspan dy="{back}">\u200b</tspan>'


def _long(text: str) -> float:
    """About how long a text is, without the signs of formulas."""
    return _LETTER * len(re.sub(r"[$_^{}\\]", "", text))


def _noted(element: str, note: str) -> str:
    """An element that says something under the pointer."""
    if not note:
        return f"<{element}/>"
    return f"<{element}><title>{html.escape(note)}</title></{element.split()[0]}>"


def _pair(point: Sequence[float]) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"

"""Figures as drawings (SVG) made here, for what follows every move of a slider: Plotly takes far longer to draw.

Places are in pixels of a drawing that is never shown larger than it is; narrow screens shrink it as a whole.
"""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from xml.etree import ElementTree

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from .._validation import positive_integer, real_array
from .pictures import FAINT, FONT, INK

# Steps of a colour bar.
_SHADES = 64
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)
# Letters below the line, and back.
_LOWER, _UPPER = '<tspan dy="0.35em" font-size="70%">', '</tspan><tspan dy="-0.25em">\u200b</tspan>'


def drawing(parts: Iterable[str], *, width: int, height: int, title: str) -> str:
    """A drawing, with a title that a screen reader says.

    Arguments:
        parts: what is drawn, from back to front.
        width, height: in pixels.
        title: what it shows, in words.

    Example:
        >>> drawing([rectangle(0, 0, 4, 4, "white")], width=8, height=8, title="a < b")[-83:]
        '><title>a &lt; b</title><rect x="0" y="0" width="4" height="4" fill="white"/></svg>'
    """
    size = positive_integer("width", width), positive_integer("height", height)
    look = f'font-family="{html.escape(FONT)}" font-size="12" fill="{INK}"'
    place = f'style="max-height:{size[1]}px" viewBox="0 0 {size[0]} {size[1]}"'
    named = f'role="img" aria-label="{html.escape(title)}"'
    inside = f"<title>{html.escape(title)}</title>{''.join(parts)}"
    return f'<svg class="tf-drawing" xmlns="{_SVG}" {place} {named} {look}>{inside}</svg>'


def file_of(shown: str) -> bytes:
    """A drawing as a file of its own: of its size, on white, as programs older than browsers read it too.

    Arguments:
        shown: of `drawing`.

    Example:
        >>> file_of(drawing([], width=8, height=6, title="none"))[-68:]
        b'><title>none</title><rect width="8" height="6" fill="white" /></svg>'
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


def rectangle(x: float, y: float, width: float, height: float, colour: str, said: str = "") -> str:
    """A filled rectangle, which says something under the pointer."""
    place = f'x="{_short(x)}" y="{_short(y)}" width="{_short(width)}" height="{_short(height)}"'
    return _with_words(f'rect {place} fill="{colour}"', said)


def outline(
    points: np.ndarray, colour: str, said: str = "", *, opacity: float = 1.0, rim: str = "", wide: float = 0.8
) -> str:
    """A filled outline through points [point, 2], with a hair of a line, so that one without area is still seen.

    Arguments:
        rim: colour of that line; the same where absent.
        wide: how wide the line is.
    """
    look = f'fill="{colour}" stroke="{rim or colour}" stroke-width="{wide:g}" opacity="{opacity:g}"'
    return _with_words(f'polygon points="{_places(points)}" {look}', said)


def curve(points: np.ndarray, colour: str, width: float, *, dashes: str = "") -> str:
    """A line through points [point, 2]."""
    look = f'fill="none" stroke="{colour}" stroke-width="{width:g}" stroke-linejoin="round"'
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{_places(points)}" {look}{dashed}/>'


def disc(x: float, y: float, radius: float, colour: str, said: str = "", *, hollow: bool = False) -> str:
    """A round mark; a hollow one is white within."""
    look = f'fill="{"white" if hollow else colour}" stroke="{colour}" stroke-width="1.5"'
    return _with_words(f'circle cx="{_short(x)}" cy="{_short(y)}" r="{radius:g}" {look}', said)


def dots(points: np.ndarray, colour: str, size: float, *, opacity: float = 1.0) -> str:
    """Round dots of one size at points [point, 2], all in one element."""
    # A line of no length with round ends is a dot.
    text = "".join(f"M{_short(x)} {_short(y)}h0" for x, y in points.tolist())
    look = f'stroke="{colour}" stroke-width="{size:g}" stroke-linecap="round" stroke-opacity="{opacity:g}" fill="none"'
    return f'<path d="{text}" {look}/>'


def line(x: float, y: float, other_x: float, other_y: float, colour: str = INK, width: float = 1.0) -> str:
    """A straight line."""
    ends = f'x1="{_short(x)}" y1="{_short(y)}" x2="{_short(other_x)}" y2="{_short(other_y)}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"/>'


def words(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "middle",
    size: float = 12,
    colour: str = INK,
    turned: float = 0,
    bright: bool = False,
) -> str:
    """A line of text, at half its height.

    Arguments:
        anchor: which end stands at x: "start", "middle" or "end".
        turned: degrees clockwise, about the place.
        bright: whether a white rim keeps it readable on colours.
    """
    turn = f' transform="rotate({turned:g} {_short(x)} {_short(y)})"' if turned else ""
    rim = ' stroke="white" stroke-width="3" stroke-opacity="0.75" paint-order="stroke"' if bright else ""
    look = f'text-anchor="{anchor}" dy="0.35em" font-size="{size:g}" fill="{colour}"{rim}{turn}'
    # m<sub>o,1</sub>, as figures of Plotly write it, and nothing else of the kind.
    written = html.escape(text).replace("&lt;sub&gt;", _LOWER).replace("&lt;/sub&gt;", _UPPER)
    return f'<text x="{_short(x)}" y="{_short(y)}" {look}>{written}</text>'


def image(values: np.ndarray, low: float, high: float, colours: str, x: float, y: float, size: float) -> str:
    """A square of cells, each coloured by its value.

    Arguments:
        values: [row, column], the first row on top.
        low, high: the values at the ends of the colours.
        colours: of matplotlib, by name.
        x, y, size: the place.
    """
    array = real_array("values", values, ("row", "column"))
    steps = np.rint(255 * np.clip((array - low) / (high - low), 0, 1)).astype(np.uint8)
    picture = base64.b64encode(_png(steps, _palette(colours, 256))).decode()
    place = f'x="{_short(x)}" y="{_short(y)}" width="{_short(size)}" height="{_short(size)}"'
    how = 'preserveAspectRatio="none" style="image-rendering:pixelated"'
    return f'<image {place} {how} href="data:image/png;base64,{picture}"/>'


def colour_bar(
    colours: str, ends: tuple[float, float], ticks: Sequence[float], title: str, *, x: float, y: float, height: float
) -> list[str]:
    """A bar of colours with ticks, its title above.

    Arguments:
        colours: of matplotlib, by name.
        ends: the values below and above.
        ticks: where numbers stand.
        x, y, height: the place of the bar.
    """
    low, high = ends
    step = height / _SHADES
    shades = _palette(colours, _SHADES)
    # Each a little taller than its share, or the paper shines through between two.
    parts = [
        rectangle(x, y + height - (number + 1) * step, 12, step + 0.5, to_hex(shade / 255))
        for number, shade in enumerate(shades)
    ]
    parts.append(words(x, y - 12, title, anchor="start"))
    for tick in ticks:
        place = y + height * (1 - (tick - low) / (high - low))
        parts += [line(x + 12, place, x + 15, place), words(x + 18, place, tick_text(tick), anchor="start", size=11)]
    return parts


def colour_at(colours: str, share: float) -> tuple[str, str]:
    """The colour at a share from 0 to 1, and that of text on it.

    Example:
        >>> colour_at("RdBu_r", 0.5), colour_at("RdBu_r", 1.0)
        (('#f7f6f6', '#222222'), ('#67001f', '#ffffff'))
    """
    red, green, blue, _ = colormaps[colours](float(share))
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
    return to_hex((red, green, blue)), "#ffffff" if dark else INK


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two, at most so many.

    Example:
        >>> round_ticks(-10.3, 10.3), round_ticks(0.12, 0.57)
        ([-10.0, -5.0, 0.0, 5.0, 10.0], [0.2, 0.3, 0.4, 0.5])
    """
    raw = (high - low) / most
    size = 10.0 ** np.floor(np.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first, last = int(np.ceil(low / step)), int(np.floor(high / step))
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


def tick_text(value: float) -> str:
    """A round number as it stands at an axis, with a true minus sign."""
    return f"{value:g}".replace("-", "−")


def frame(left: float, top: float, right: float, bottom: float) -> list[str]:
    """An axis below and one on the left."""
    return [line(left, bottom, right, bottom), line(left, top, left, bottom)]


def grid_line(left: float, right: float, y: float, text: str) -> list[str]:
    """A faint line across, with its number on the left."""
    return [
        line(left, y, right, y, FAINT),
        line(left - 4, y, left, y),
        words(left - 7, y, text, anchor="end"),
    ]


@lru_cache(maxsize=8)
def _palette(colours: str, count: int) -> np.ndarray:
    """Red, green and blue from 0 to 255, [colour, 3]."""
    return np.rint(255 * colormaps[colours](np.linspace(0, 1, count))[:, :3]).astype(np.uint8)


def _png(steps: np.ndarray, palette: np.ndarray) -> bytes:
    """An image of colours by number: a palette and one byte for each cell."""
    height, width = steps.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), steps], axis=1)  # 0: each row as it is
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 1)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _with_words(element: str, said: str) -> str:
    return f"<{element}/>" if not said else f"<{element}><title>{html.escape(said)}</title></{element.split()[0]}>"


def _places(points: np.ndarray) -> str:
    return " ".join(f"{_short(x)},{_short(y)}" for x, y in np.asarray(points).tolist())


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")

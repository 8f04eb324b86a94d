"""The look that all figures share, and the saver that makes equal figures equal files."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .._files import write_safely
from .._validation import fail, positive_integer

# Okabe and Ito's colours: told apart with every common kind of colour vision, and in grey by their lightness.
PALETTE = {
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "black": "#000000",
    "grey": "#6E6E6E",
}
# The order in which the things of one figure take them: neighbours differ in lightness too. The yellow of the same set
# is too pale for thin lines and comes last.
_ORDER = ("blue", "vermilion", "green", "purple", "orange", "sky", "black", "grey")
CYCLE = (*(PALETTE[name] for name in _ORDER), "#F0E442")
INK = "#222222"

# White at zero; blue and red stay apart for colour-blind readers, unlike red and green.
DIVERGING = "RdBu_r"
SEQUENTIAL = "viridis"

_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same glyphs, so the same files, everywhere
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "figure.facecolor": "white",
}

_SAVE_STYLE: dict[Any, Any] = {"svg.hashsalt": "thermoformer", "svg.fonttype": "path"}

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def styled(draw: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Runs a drawing function in the shared style and leaves the user's own settings as they were."""

    @functools.wraps(draw)
    def drawn(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return drawn


@styled
def figure_grid(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (4.5, 3.4)
) -> tuple[Figure, np.ndarray]:
    """A figure with a grid of Axes [row, column], outside pyplot.

    Arguments:
        rows, columns: panels down and across.
        size: width and height of one panel in inches.

    Example:
        >>> figure, axes = figure_grid(1, 2)
        >>> axes.shape
        (1, 2)
    """
    rows, columns = positive_integer("rows", rows), positive_integer("columns", columns)
    figure = Figure(figsize=(columns * size[0], rows * size[1]))
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def axes_or_new(ax: Axes | None, size: tuple[float, float] = (4.5, 3.4)) -> Axes:
    """The given Axes, or the one Axes of a new figure."""
    return figure_grid(size=size)[1][0, 0] if ax is None else ax


def save(figure: Figure, stem: str | Path) -> tuple[Path, Path]:
    """Writes a figure as PNG and SVG; the same figure gives the same bytes every time.

    Arguments:
        stem: path without an ending; folders that are missing are made.

    Returns:
        The paths of the PNG and of the SVG.
    """
    stem = Path(stem)
    if not stem.name:
        raise fail("stem", repr(str(stem)), "a path that ends in a name")
    png, svg = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail("stem", f"{stem} ({error.strerror})", "a path in a folder that can be written to") from error
    for file, metadata in ((png, {"Software": "thermoformer"}), (svg, {"Date": None, "Creator": "thermoformer"})):
        stream = io.BytesIO()
        with matplotlib.rc_context(_SAVE_STYLE):
            figure.savefig(stream, format=file.suffix[1:], dpi=200, metadata=metadata)
        write_safely(file, stream.getvalue(), name="stem")
    return png, svg


def colours_for(count: int) -> list[str]:
    """One colour per thing, from the start again past the ninth.

    Example:
        >>> colours_for(2)
        ['#0072B2', '#D55E00']
    """
    return [CYCLE[index % len(CYCLE)] for index in range(count)]


def ink_on(colour: Sequence[float] | np.ndarray) -> str:
    """Black or white, whichever can be read on a colour of red, green and blue from 0 to 1.

    Example:
        >>> ink_on((1.0, 1.0, 0.0)), ink_on((0.0, 0.0, 1.0))
        ('black', 'white')
    """
    red, green, blue = colour[:3]
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"


def short_number(value: float) -> str:
    """A number in three digits with a true minus sign; a rounded zero has no sign.

    Example:
        >>> short_number(-0.456), short_number(123456.0), short_number(-1e-9), short_number(1e-4)
        ('−0.456', '1.23e+5', '0', '1e-4')
    """
    if not np.isfinite(value):
        return str(value).replace("-", "−")
    if abs(value) < 1e-6:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        text = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
        return text.replace("-", "−")
    digits, _, exponent = f"{value:.2e}".partition("e")
    digits = digits.rstrip("0").rstrip(".").replace("-", "−")
    return f"{digits}e{int(exponent):+d}"

"""Displays: a picture as a record of what is drawn, with two axes and a legend, and its painter for matplotlib.

A function of this package computes a `Display` from data; `Display.plot` draws it. The explorer draws the same records
in the browser, with a painter of its own (`thermoformer.app.drawings`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize, to_rgb
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from .style import INK, axes_or_new, styled

# A vector file with more points than this is larger and slower than an image of them.
_MOST_VECTORS = 1000


@dataclass(frozen=True, eq=False, kw_only=True)
class Mark(ABC):
    """Something that is drawn.

    Marks have these fields in common: `colour`; `opacity`, from 0 to 1; `line`, the width of a line in points, and
    `dashes`, the lengths of its dashes and gaps in widths of the line; `notes`, what a browser says with the pointer on
    a part of the mark.

    Fields:
        label: its name in the legend; none where empty.
        order: marks of a higher order lie on top; of the same order, later ones do.
    """

    label: str = ""
    order: float = 0.0

    @abstractmethod
    def draw(self, ax: Axes, zorder: float) -> Any:
        """Draws it with matplotlib; returns what stands in the legend."""


@dataclass(frozen=True, eq=False)
class Curve(Mark):
    """A line through points, or the points alone, perhaps with bars of error.

    Fields:
        x, y: [point]; NaN leaves a gap.
        errors: half lengths of the bars, [point], or [2, point] below and above.
        line: 0 for points alone.
        marker, size: matplotlib's letter for the markers, and their size in points.
        hollow: whether the markers are white inside.
        rim: colour of the edge of the markers, `colour` by default.
    """

    x: Any
    y: Any
    colour: str
    errors: Any = None
    line: float = 1.8
    dashes: Sequence[float] = ()
    marker: str = ""
    size: float = 5.5
    hollow: bool = False
    rim: str = ""
    opacity: float = 1.0
    notes: Sequence[str] = ()

    def draw(self, ax: Axes, zorder: float) -> Any:
        """A line, or a container with bars of error."""
        look: dict[str, Any] = {"color": self.colour, "alpha": self.opacity, "zorder": zorder, "label": self.label}
        dashes = (0, tuple(self.dashes)) if self.dashes else "-"
        look |= {"linestyle": dashes if self.line else "none", "linewidth": self.line or None}
        look |= {"marker": self.marker or None, "markersize": self.size}
        look |= {"rasterized": np.size(self.x) > _MOST_VECTORS, "solid_joinstyle": "round"}
        if self.hollow:
            look["markerfacecolor"] = "white"
        if self.marker == ".":
            look["markeredgewidth"] = 0
        elif self.rim:
            look |= {"markeredgecolor": self.rim, "markeredgewidth": 0.6}
        if self.errors is None:
            return ax.plot(self.x, self.y, **look)[0]
        return ax.errorbar(self.x, self.y, self.errors, capsize=2.5, elinewidth=1.2, **look)


@dataclass(frozen=True, eq=False)
class Level(Mark):
    """A straight line all the way across, perhaps with a band about it.

    Fields:
        spread: half the width of the band.
        upright: whether it goes up instead of across.
    """

    value: float
    colour: str
    spread: float = 0.0
    line: float = 1.8
    dashes: Sequence[float] = ()
    upright: bool = False

    def draw(self, ax: Axes, zorder: float) -> Any:
        """A line, and a band where there is a spread."""
        span, line = (ax.axvspan, ax.axvline) if self.upright else (ax.axhspan, ax.axhline)
        if self.spread:
            ends = self.value - self.spread, self.value + self.spread
            span(*ends, color=self.colour, alpha=0.10, linewidth=0, zorder=zorder)
        dashes: Any = (0, tuple(self.dashes)) if self.dashes else "-"
        look = {"color": self.colour, "linestyle": dashes, "linewidth": self.line}
        return line(self.value, label=self.label, zorder=zorder, **look)


@dataclass(frozen=True, eq=False)
class Band(Mark):
    """What lies between two curves [point], filled."""

    x: Any
    low: Any
    high: Any
    colour: str
    opacity: float = 1.0
    note: str = ""

    def draw(self, ax: Axes, zorder: float) -> Any:
        """A filled polygon."""
        look: dict[str, Any] = {"color": self.colour, "alpha": self.opacity, "linewidth": 0, "zorder": zorder}
        return ax.fill_between(self.x, self.low, self.high, label=self.label, **look)


@dataclass(frozen=True, eq=False)
class Bars(Mark):
    """Bars from 0 upwards.

    Fields:
        x, heights: middles and heights, [bar].
        width: of each, in units of the axis.
    """

    x: Any
    heights: Any
    width: float
    colour: str
    opacity: float = 1.0

    def draw(self, ax: Axes, zorder: float) -> Any:
        """Rectangles."""
        look: dict[str, Any] = {"color": self.colour, "alpha": self.opacity, "linewidth": 0, "zorder": zorder}
        return ax.bar(self.x, self.heights, self.width, label=self.label, **look)


@dataclass(frozen=True, eq=False)
class Image(Mark):
    """Cells coloured by their values; nothing is drawn where a value is NaN.

    Fields:
        values: [row, column].
        x, y: edges of the columns and of the rows, one more than there are.
        colours: a colour map of matplotlib by name, or colours from low to high.
        ends: values at the two ends of the colours.
        log: whether colours follow the logarithm.
        bar: title of a colour bar; none where empty.
    """

    values: Any
    x: Any
    y: Any
    colours: str | Sequence[str]
    ends: tuple[float, float]
    log: bool = False
    bar: str = ""
    notes: Any = None

    @property
    def map(self) -> Colormap:
        """The colours."""
        return colormaps[self.colours] if isinstance(self.colours, str) else ListedColormap(list(self.colours))

    @property
    def beyond(self) -> str:
        """On which sides of the colours there are values: "neither", "min", "max" or "both"."""
        below, above = np.nanmin(self.values) < self.ends[0], np.nanmax(self.values) > self.ends[1]
        return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[int(below), int(above)]

    @property
    def norm(self) -> Normalize:
        """From values to shares of the colours."""
        return (LogNorm if self.log else Normalize)(*self.ends, clip=True)

    def draw(self, ax: Axes, zorder: float) -> Any:
        """An image; cells of unlike size are rectangles."""
        look: dict[str, Any] = {"cmap": self.map, "norm": self.norm, "zorder": zorder}
        steps = [np.diff(edges) for edges in (self.x, self.y)]
        if not all(np.allclose(step, step[0], rtol=1e-6) for step in steps):
            return ax.pcolormesh(self.x, self.y, self.values, rasterized=True, **look)
        place: dict[str, Any] = {"extent": (self.x[0], self.x[-1], self.y[0], self.y[-1]), "origin": "lower"}
        return ax.imshow(self.values, aspect=ax.get_aspect(), interpolation="nearest", **place, **look)


@dataclass(frozen=True, eq=False)
class Text(Mark):
    """A line of text at a point.

    Fields:
        across, up: its part that stands there: "left", "center" or "right"; "bottom", "center" or "top".
        shift: right and up, in points.
        rim: whether a white rim keeps it readable on colours.
    """

    x: float
    y: float
    text: str
    colour: str = INK
    size: float = 9.5
    across: str = "center"
    up: str = "center"
    shift: tuple[float, float] = (0.0, 0.0)
    rim: bool = False

    def draw(self, ax: Axes, zorder: float) -> Any:
        """An annotation; never in the legend."""
        effects = [withStroke(linewidth=4, foreground="white")] if self.rim else None
        place = {"xytext": self.shift, "textcoords": "offset points", "ha": self.across, "va": self.up}
        look: dict[str, Any] = {"color": self.colour, "fontsize": self.size, "path_effects": effects}
        return ax.annotate(self.text, (self.x, self.y), zorder=zorder, **place, **look)


@dataclass(frozen=True, eq=False)
class Key(Mark):
    """A coloured field in the legend alone."""

    colour: str

    def draw(self, ax: Axes, zorder: float) -> Any:
        """A patch that is on no axes."""
        return Patch(color=self.colour, label=self.label)


@dataclass(frozen=True)
class Axis:
    """One axis.

    Fields:
        label: what it shows.
        limits: its two ends, the first one left or below; from the marks by default.
        log: whether it is logarithmic.
        ticks: where ticks are; round numbers by default.
        names: what stands at the ticks; their numbers by default.
        tilt: of the names, in degrees; 90 for upright ones.
        whole: whether ticks are whole numbers.
        margin: room beyond the marks, as a share of their range; a little by default.
    """

    label: str = ""
    limits: tuple[float, float] | None = None
    log: bool = False
    ticks: Sequence[float] | np.ndarray | None = None
    names: Sequence[str] | None = None
    tilt: float = 0.0
    whole: bool = False
    margin: float | None = None

    def put(self, axis: Any, ax: Axes, which: str) -> None:
        """Sets ticks, limits and label of a matplotlib axis."""
        if self.ticks is not None:
            axis.set_ticks(list(self.ticks), self.names)
            axis.set_minor_locator(NullLocator())
        elif self.whole:
            axis.set_major_locator(MaxNLocator(integer=True))
        if self.tilt:
            axis.set_tick_params(labelrotation=self.tilt)
            for name in axis.get_ticklabels() if self.tilt != 90 else ():
                name.set(ha="right", rotation_mode="anchor")
        if self.margin is not None:
            margin: dict[str, Any] = {which: self.margin}
            ax.margins(**margin)
        if self.limits is not None:
            ax.set(**{f"{which}lim": self.limits})
        axis.set_label_text(self.label)


# Places of a legend beside the axes, as matplotlib has them; "inside" is where it hides least.
_LEGENDS: dict[str, dict[str, Any]] = {
    "inside": {"loc": "best"},
    "corner": {"loc": "upper right", "borderaxespad": 0.1},
    "left corner": {"loc": "upper left", "borderaxespad": 0.2, "markerscale": 4},
    "above": {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)},
    "below": {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0)},
    "ends": {"loc": "best"},
}
_NAME_SIZE = 9.5


@dataclass(frozen=True, eq=False)
class Display:
    """A picture: its marks from back to front, its axes, and where its legend stands.

    Fields:
        marks: what is drawn; the legend has them in this order.
        x, y: the axes.
        legend: "inside", "corner", "left corner", "above", "below", or "" for none; "ends" writes names beside the
            right ends of curves and levels, and has a legend inside for what ends before.
        columns: of the legend.
        heading: what stands above the legend.
        size: width and height of a figure of its own in inches.
        frame: whether the axes have lines and ticks.
        square: whether both axes have one scale.
        about: what a screen reader says.

    Example:
        >>> line = Curve([1, 2, 3], [0.1, 0.4, 0.9], "#0072B2", label="squares")
        >>> Display((line,), Axis("number"), Axis("square")).plot().get_xlabel()
        'number'
    """

    marks: Sequence[Mark]
    x: Axis = Axis()
    y: Axis = Axis()
    legend: str = "inside"
    columns: int = 1
    heading: str = ""
    size: tuple[float, float] = (4.5, 3.4)
    frame: bool = True
    square: bool = False
    about: str = ""

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws it with matplotlib on an Axes, or on that of a new figure, and returns the Axes."""
        ax = axes_or_new(ax, self.size)
        ax.set_aspect("equal" if self.square else "auto")
        # Scales come first: limits and bars depend on them.
        ax.set(xscale="log" if self.x.log else "linear", yscale="log" if self.y.log else "linear")
        entries = []
        for number, mark in enumerate(self.marks):
            drawn = mark.draw(ax, 2 + mark.order + number / 1000)
            if mark.label:
                entries.append(drawn)
            if isinstance(mark, Image) and mark.bar:
                bar = ax.figure.colorbar(drawn, ax=ax, label=mark.bar, shrink=0.85, extend=mark.beyond)
                bar.outline.set_visible(False)  # type: ignore[operator]
        self.x.put(ax.xaxis, ax, "x")
        self.y.put(ax.yaxis, ax, "y")
        if not self.frame:
            ax.spines[:].set_visible(False)
            ax.tick_params(length=0)
        if self.legend == "ends":
            entries = self._name_ends(ax, entries)
        if self.legend and entries:
            self._legend(ax, entries)
        return ax

    def _name_ends(self, ax: Axes, entries: list[Any]) -> list[Any]:
        """Names in the colours of their marks, each as near the end of its mark as the other names allow.

        Returns the legend's entries of what ends far from the right.
        """
        across, shares = ax.get_yaxis_transform(), ax.transData + ax.transAxes.inverted()
        named: list[tuple[Any, tuple[float, float], float]] = []
        left = []
        for mark, entry in zip((mark for mark in self.marks if mark.label), entries, strict=True):
            end = _right_end(mark)
            reach, height = shares.transform(end)
            if isinstance(mark, Level) or reach > 0.7:
                named.append((mark, end, height))
            else:
                left.append(entry)
        # In inches; labels and titles will make the axes a little smaller.
        heights = np.array([height for *_, height in named]) * ax.bbox.height / ax.figure.dpi
        moves = _apart(heights, 1.5 * _NAME_SIZE / 72) - heights
        for (mark, end, _), move in zip(named, moves, strict=True):
            line = {"arrowstyle": "-", "color": mark.colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 3}
            ax.annotate(
                mark.label,
                end,
                (1.04, end[1]),
                xycoords=across if isinstance(mark, Level) else ax.transData,
                textcoords=across + ScaledTranslation(0, move, ax.figure.dpi_scale_trans),
                va="center",
                color=tuple(0.75 * part for part in to_rgb(mark.colour)),
                fontsize=_NAME_SIZE,
                arrowprops=line | {"relpos": (0.0, 0.5)},
            )
        return left

    def _legend(self, ax: Axes, entries: list[Any]) -> None:
        look: dict[str, Any] = {"columnspacing": 1.2, "handlelength": 1.6, "ncols": self.columns}
        if self.legend == "below":
            # Beneath the names of the ticks and the label, where there are any.
            lines = bool(self.x.label) + (self.x.ticks is None or len(self.x.ticks) > 0)
            down = ScaledTranslation(0, -(4 + 16 * lines) / 72, ax.figure.dpi_scale_trans)
            look["bbox_transform"] = ax.transAxes + down
        look |= {"title": self.heading or None, "title_fontsize": 9.5, **_LEGENDS[self.legend]}
        ax.legend(handles=entries, **look).set_zorder(10)


def _right_end(mark: Any) -> tuple[float, float]:
    """The last point of a curve; for a level the right end of the axes, as a share of their width, and its value."""
    if isinstance(mark, Level):
        return 1.0, mark.value
    known = np.flatnonzero(np.isfinite(np.asarray(mark.y, float)))
    return float(np.asarray(mark.x, float)[known[-1]]), float(np.asarray(mark.y, float)[known[-1]])


def _apart(places: np.ndarray, step: float) -> np.ndarray:
    """The places nearest to given ones, in the mean of squares, that keep their order and are a step apart.

    Example:
        >>> _apart(np.array([0.5, 0.0, 0.5]), 0.2).round(6).tolist()
        [0.4, 0.0, 0.6]
    """
    order = np.argsort(places, kind="stable")
    # Less a step each, neighbours may touch: where they are out of order, they share the mean.
    blocks: list[list[float]] = []
    for place in places[order] - step * np.arange(len(places)):
        blocks.append([place])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    found = np.empty(len(places))
    found[order] = [np.mean(block) for block in blocks for _ in block]
    found[order] += step * np.arange(len(places))
    return found


def cell_edges(centres: np.ndarray) -> np.ndarray:
    """Edges of cells around centres in ascending order: half way between neighbours.

    Example:
        >>> cell_edges(np.array([1.0, 2.0, 4.0])).tolist()
        [0.5, 1.5, 3.0, 5.0]
    """
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    return np.array([2 * centres[0] - middle[0], *middle, 2 * centres[-1] - middle[-1]], float)

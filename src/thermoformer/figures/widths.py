"""Any numbers against the width of the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from .._validation import fail, real_array
from .style import PALETTE, axes_or_new, styled

_COLOURS = ("blue", "vermilion", "green", "purple", "orange", "sky")
_MARKERS = "osD^vP"
# Levels are told from curves by their dashes, and from each other by both.
_LEVELS = (("black", (0, (1, 1.2))), ("grey", (0, (5, 2))), ("grey", (0, (6, 1.5, 1, 1.5))))


@styled
def curves_against_width(
    widths: Any,
    curves: Mapping[str, Any],
    ax: Axes | None = None,
    *,
    levels: Mapping[str, float] | None = None,
    marked: float | None = None,
    legend: bool = True,
) -> Axes:
    """Curves over the width N on a logarithmic axis, with lines across for what has no width.

    Arguments:
        widths: finite, [width].
        curves: by name, [width]; nan where there is no such number. At most six.
        levels: by name, a number each, such as that of the Gaussian process. At most three.
        marked: a width at which a ring is drawn about the first curve.
        legend: whether names are written beside the curves.

    Example:
        >>> ax = curves_against_width([10, 100], {"theory": [75.0, 70.0]}, levels={"GP": 64.0}, marked=10)
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['theory', 'GP']
    """
    widths = real_array("widths", widths, ("width",))
    levels = dict(levels or {})
    if not 0 < len(curves) <= len(_COLOURS):
        raise fail("curves", f"{len(curves)} curves", f"from 1 to {len(_COLOURS)}")
    if len(levels) > len(_LEVELS):
        raise fail("levels", f"{len(levels)} levels", f"at most {len(_LEVELS)}")
    if marked is not None and marked not in widths:
        raise fail("marked", marked, "one of the widths")
    ax = axes_or_new(ax)
    tables = {name: np.asarray(values, float) for name, values in curves.items()}
    for (name, values), colour, marker in zip(tables.items(), _COLOURS, _MARKERS, strict=False):
        if values.shape != widths.shape:
            raise fail(f"curves[{name!r}]", f"shape {values.shape}", f"[{len(widths)}], one number per width")
        ax.plot(widths, values, color=PALETTE[colour], marker=marker, label=name, zorder=3)
    for (name, level), (colour, dashes) in zip(levels.items(), _LEVELS, strict=False):
        ax.axhline(level, color=PALETTE[colour], linestyle=dashes, linewidth=1.5, label=name, zorder=2)
    if marked is not None:
        first = next(iter(tables.values()))[np.flatnonzero(widths == marked)[0]]
        ring = {"markersize": 13, "markerfacecolor": "none", "markeredgewidth": 1.5, "clip_on": False}
        ax.plot([marked], [first], "o", markeredgecolor=PALETTE["black"], zorder=4, **ring)
    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(widths, [f"{width:g}" if width < 1e6 else f"{width:.0e}" for width in widths])
    ax.set_xlabel("width N")
    if legend:
        ax.legend()
    return ax

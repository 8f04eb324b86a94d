"""The look that all figures of the explorer share."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from .._validation import positive_integer
from ..figures.style import CYCLE, INK, PALETTE, colours_for, short_number

__all__ = [
    "COLOURS",
    "CYCLE",
    "DIVERGING",
    "FAINT",
    "FONT",
    "INK",
    "SEQUENTIAL",
    "colours_for",
    "house",
    "short_number",
]

# Okabe and Ito's colours by name, the same as in printed figures.
COLOURS = dict(PALETTE)
# White at zero; blue and red stay apart for colour-blind readers, unlike red and green.
DIVERGING = "RdBu_r"
SEQUENTIAL = "Viridis"

FAINT = "#E3E3E3"
# DejaVu stands in where a machine has none of the others: it has every letter of the formulas.
FONT = "Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"

_AXIS: dict[str, Any] = {
    "showline": True,
    "linecolor": INK,
    "linewidth": 1,
    "ticks": "outside",
    "ticklen": 4,
    "tickcolor": INK,
    "tickfont": {"size": 12},
    "title": {"font": {"size": 13}, "standoff": 8},
    "gridcolor": FAINT,
    "zeroline": False,
}
_TEMPLATE = go.layout.Template(
    layout={
        "colorway": CYCLE,
        "font": {"family": FONT, "size": 12, "color": INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "title": {"font": {"size": 14}, "x": 0.01, "xanchor": "left", "y": 0.97, "yanchor": "top"},
        "margin": {"l": 60, "r": 16, "t": 44, "b": 56},
        "legend": {
            "orientation": "h",
            "x": 0.0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"size": 12},
            "bgcolor": "rgba(255,255,255,0)",
        },
        "hoverlabel": {"bgcolor": "white", "bordercolor": INK, "font": {"family": FONT, "size": 12, "color": INK}},
        "hovermode": "closest",
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "colorscale": {"sequential": SEQUENTIAL, "diverging": DIVERGING},
    }
)


def house(figure: go.Figure, *, height: int = 380) -> go.Figure:
    """The figure in the shared look: white, colour-blind-safe, as wide as its place, keeping a reader's zoom.

    Arguments:
        height: in pixels; the width is that of the page.

    Example:
        >>> figure = house(go.Figure(go.Scatter(x=[1, 2], y=[3, 4])), height=300)
        >>> figure.layout.height, figure.layout.template.layout.plot_bgcolor, figure.layout.uirevision
        (300, 'white', 'kept')
    """
    height = positive_integer("height", height)
    figure.update_layout(template=_TEMPLATE, height=height, autosize=True)
    # A zoom is kept while this name stays: a figure whose axes begin to mean something else gives its own.
    if getattr(figure.layout, "uirevision", None) is None:
        figure.update_layout(uirevision="kept")
    return figure

"""Figures: data in, matplotlib Axes out; one function per figure.

Every function takes ``ax=None`` and returns the Axes it drew on. Without an Axes it makes a figure of its own, reached
as ``axes.figure``; pyplot is never touched, so nothing has to be closed. `save` writes a figure as PNG and SVG.
"""

from .accuracy import accuracy_against_width
from .alignment import label_overlap
from .comparison import comparison_panels
from .convergence import convergence
from .groups import grouped_points
from .matrices import kernel_image, order_parameter_matrix
from .style import PALETTE, figure_grid, save, styled

__all__ = [
    "PALETTE",
    "accuracy_against_width",
    "comparison_panels",
    "convergence",
    "figure_grid",
    "grouped_points",
    "kernel_image",
    "label_overlap",
    "order_parameter_matrix",
    "save",
    "styled",
]

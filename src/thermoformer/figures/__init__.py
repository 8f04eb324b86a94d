"""Figures: data in, matplotlib Axes out; one function per figure.

Every function takes ``ax=None`` and returns the Axes it drew on. Without an Axes it makes a figure of its own, reached
as ``axes.figure``; pyplot is never touched, so nothing has to be closed. `save` writes a figure as PNG and SVG.
"""

from .alignment import label_overlap
from .comparison import comparison_panels
from .convergence import convergence
from .diagrams import REGIME_COLOURS, basin_map, hysteresis, orbit_diagram_panels, phase_diagram_image
from .finite_size import finite_size_scaling, finite_size_steps
from .groups import grouped_points
from .heads import head_score_map
from .matrices import kernel_image, order_parameter_matrix
from .orbits import autocorrelation_curve, orbit_series, phase_plane, power_spectrum_curve
from .paths import path_graph
from .pruning import head_pruning_curves, pruning_curves, score_against_drop
from .style import PALETTE, figure_grid, save, styled
from .sweeps import sweep_results
from .widths import accuracy_against_width, curves_against_width

__all__ = [
    "PALETTE",
    "REGIME_COLOURS",
    "accuracy_against_width",
    "autocorrelation_curve",
    "basin_map",
    "comparison_panels",
    "convergence",
    "curves_against_width",
    "figure_grid",
    "finite_size_scaling",
    "finite_size_steps",
    "grouped_points",
    "head_pruning_curves",
    "head_score_map",
    "hysteresis",
    "kernel_image",
    "label_overlap",
    "orbit_diagram_panels",
    "orbit_series",
    "order_parameter_matrix",
    "path_graph",
    "phase_diagram_image",
    "phase_plane",
    "power_spectrum_curve",
    "pruning_curves",
    "save",
    "score_against_drop",
    "styled",
    "sweep_results",
]

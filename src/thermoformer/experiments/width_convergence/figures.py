"""Figures of width convergence: its Datasets in, one matplotlib Figure each out."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from ...figures import figure_grid, styled
from ...figures.comparison import comparison_panels
from ...figures.convergence import convergence
from ..base import legend_below
from ..one_path import QUANTITIES
from . import LEVEL


@styled
def draw_one_path(dataset: xr.Dataset) -> Figure:
    """Errors of mean, standard deviation and log evidence against width, one path in one layer."""
    figure, axes = figure_grid(1, 3, size=(4.6, 4.2))
    for ax, quantity in zip(axes[0], QUANTITIES[:2], strict=False):
        convergence(dataset.sel(quantity=quantity)[["error"]], ax, legend=False)
        ax.set_title(quantity)
    evidence = dataset[["evidence_error"]].rename(evidence_error="error")
    convergence(evidence, axes[0, 2], guides={"one-loop": -1}, legend=False)
    axes[0, 2].set_title("log evidence")
    axes[0, 2].set_ylabel("absolute error")
    legend_below(figure, fontsize=12)
    return figure


@styled
def draw_errors(dataset: xr.Dataset, reference: str) -> Figure:
    """Errors of mean, standard deviation and order parameter against width on the hidden-Markov task."""
    figure, axes = figure_grid(1, 3, size=(4.6, 4.2))
    chosen = dataset[["error", "noise"]].sel(reference=reference)
    known = np.isfinite(chosen.error)
    chosen = chosen.sel(
        approach=known.any(["seed", "width", "quantity"]), width=known.any(["seed", "approach", "quantity"])
    )
    for ax, quantity in zip(axes[0], QUANTITIES, strict=True):
        convergence(chosen.sel(quantity=quantity), ax, legend=False)
        ax.set_title(quantity)
        if ax.get_ylim()[0] < LEVEL < ax.get_ylim()[1]:
            ax.axhline(LEVEL, color="black", linewidth=0.8, linestyle=(0, (1, 2)))
            ax.annotate("1 %", (1.01, LEVEL), xycoords=("axes fraction", "data"), ha="left", va="center", fontsize=10)
    legend_below(figure, fontsize=12)
    return figure


def draw_comparison(dataset: xr.Dataset, width: int) -> Figure:
    """Every approach at one width, first seed."""
    one = dataset.isel(seed=0).sel(width=width).assign_attrs(reference="exact")
    return comparison_panels(one)[0].figure

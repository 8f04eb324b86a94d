"""Figures of the experiment on attention that learns."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from ...figures import PALETTE, styled
from ...figures.style import figure_grid
from ..base import legend_below
from . import ANNEALED, DESCENT, EVIDENCE, POSTERIOR, AttentionConfig
from .one_parameter import THEORIES

NAMES = {
    EVIDENCE: "maximum of the evidence",
    ANNEALED: "the same, annealed",
    POSTERIOR: "posterior mean",
    DESCENT: "gradient descent on all weights",
}
COLOURS = dict(zip(NAMES, (PALETTE[name] for name in ("sky", "blue", "vermilion", "green")), strict=True))


@styled
def draw_teachers(dataset: xr.Dataset, config: AttentionConfig) -> Figure:
    """Overlap and test error against P/N0, a row for each kind of attention."""
    figure, axes = figure_grid(len(config.normalisations), 2, size=(4.6, 3.4))
    for row, name in zip(axes, config.normalisations, strict=True):
        at = dataset.sel(normalisation=name)
        for approach, colour in COLOURS.items():
            one = at.sel(approach=approach)
            for ax, values in zip(row, (one.overlap, one.test_error), strict=True):
                count = np.maximum(values.notnull().sum("teacher"), 1)
                error = values.std("teacher", ddof=1) / np.sqrt(count) if values.sizes["teacher"] > 1 else None
                look = {"color": colour, "label": NAMES[approach], "markersize": 4, "linewidth": 1.2}
                ax.errorbar(at.ratio, values.mean("teacher"), yerr=error, fmt="o-", **look)
        row[1].plot(at.ratio, at.uniform_error.mean("teacher"), ":", color=PALETTE["grey"], label="uniform attention")
        row[1].plot(
            at.ratio, at.teacher_error.mean("teacher"), "--", color=PALETTE["black"], label="teacher's attention"
        )
        row[0].set(ylabel="overlap with the teacher", ylim=(0, 1.05), xlabel="P/N0")
        row[1].set(ylabel="test error", yscale="log", xlabel="P/N0")
        row[0].set_title(f"{name} attention", loc="left")
    legend_below(figure, ncols=3)
    return figure


@styled
def draw_assumption(dataset: xr.Dataset, config: AttentionConfig) -> Figure | None:
    """Distance of the posterior of one parameter from the exact one, against the width."""
    if config.one_parameter is None:
        return None
    figure, axes = figure_grid(size=(5.2, 3.6))
    for theory, colour in zip(THEORIES, (PALETTE["blue"], PALETTE["grey"]), strict=True):
        values = dataset.variation.sel(theory=theory)
        count = values.sizes["data_set"]
        error = values.std("data_set", ddof=1) / np.sqrt(count) if count > 1 else None
        axes[0, 0].errorbar(dataset.width, values.mean("data_set"), yerr=error, fmt="o-", color=colour, label=theory)
    axes[0, 0].set(xlabel="width N", ylabel="total variation distance", xscale="log", yscale="log")
    axes[0, 0].legend()
    return figure

"""Figures of the experiment on several trained networks."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from ... import figures
from ...figures import styled
from ..base import legend_below
from ..pruning.config import MEASURED
from ..pruning.numbers import TITLES
from ..words import width_name
from . import TrainedNetworksConfig


@styled
def draw_agreement(dataset: xr.Dataset, config: TrainedNetworksConfig) -> Figure:
    """What theory and trained networks have in common against the number of examples: mean and every network."""
    panels = {
        "order_correlation": "U off the diagonal, Pearson",
        "readout_cosine": "readout of all paths, cosine",
        "all_sets": "all pruned networks, Pearson",
    }
    figure, axes = figures.figure_grid(len(config.families), len(panels), size=(3.9, 3.3))
    colours = [figures.PALETTE[name] for name in ("blue", "vermilion", "green", "purple", "orange", "sky")]
    for row, family in zip(axes, config.families, strict=True):
        own = dataset.isel(network=dataset.family == family.name)
        for ax, (name, title) in zip(row, panels.items(), strict=True):
            for number, width in enumerate(dataset.many_width.values):
                values = own[name].sel(many_width=width).transpose("network", "examples").values
                if not np.isfinite(values).all():
                    continue
                colour = "black" if np.isinf(width) else colours[number % len(colours)]
                ax.plot(dataset.examples, values.T, color=colour, linewidth=0.6, alpha=0.35)
                ax.plot(dataset.examples, values.mean(axis=0), "o-", color=colour, label=width_name(width))
            ax.axhline(0, color=figures.PALETTE["grey"], linewidth=0.8, zorder=0)
            ax.set(xscale="log", xlabel="training examples P", title=title, ylim=(None, 1))
        row[0].set_ylabel(family.name if len(config.families) > 1 else "")
    legend_below(figure)
    return figure


@styled
def draw_curves(dataset: xr.Dataset, config: TrainedNetworksConfig) -> Figure:
    """Accuracy as heads are removed in several orders, mean over networks with its standard error."""
    figure, axes = figures.figure_grid(len(config.families), len(MEASURED), size=(4.3, 3.9))
    for row, family in zip(axes, config.families, strict=True):
        own = dataset.isel(network=dataset.family == family.name)
        own = own.isel(removed=own.curve.notnull().any([name for name in own.curve.dims if name != "removed"]))
        for ax, part in zip(row, MEASURED, strict=True):
            figures.pruning_curves(_means(own.sel(part=part)), ax, legend=False)
            ax.axhline(50, color=figures.PALETTE["grey"], linewidth=0.8, linestyle=":", zorder=0)
            ax.set_title(f"{family.name}: {TITLES[part]}" if len(config.families) > 1 else TITLES[part])
        low = min(ax.get_ylim()[0] for ax in row)
        for ax in row:
            ax.set_ylim(low, None)
    legend_below(figure, ncols=3)
    return figure


def _means(dataset: xr.Dataset) -> xr.Dataset:
    """What `pruning_curves` draws: means over networks of one part, with their standard errors."""
    curves = xr.Dataset(
        {
            "accuracy": dataset.curve.mean("network"),
            "random_mean": dataset.random_mean.mean("network"),
            "random_spread": dataset.random_spread.mean("network"),
        }
    )
    if dataset.sizes["network"] > 1:
        curves["error"] = dataset.curve.std("network", ddof=1) / np.sqrt(dataset.sizes["network"])
    return curves

"""Figures of the experiment on skips and normalisation: its Dataset in, one matplotlib Figure each out."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from ... import figures
from ...figures import PALETTE, styled
from ...figures.groups import grouped_points
from ..base import legend_below
from . import ResidualsConfig
from .kinds import EXACT_KINDS, HEADS, KINDS, QUANTITIES

LABELS = {"theory": "theory", "exact": "exact finite width", "sampled": "sampled networks"}
_BROKEN = [kind.replace("skips, ", "skips,\n") for kind in KINDS]
# Panels across, where there is one for each kind.
_ACROSS = 4


@styled
def draw_accuracy(dataset: xr.Dataset, config: ResidualsConfig) -> Figure:
    """Test accuracy of every kind of network, a panel per width."""
    widths = dataset.width.values
    figure, axes = figures.figure_grid(len(widths), 1, size=(11.0, 4.0))
    for ax, width in zip(axes[:, 0], widths, strict=True):
        percent = 100 * dataset.accuracy.sel(width=width)
        values = {label: _by_kind(percent.sel(approach=name)) for name, label in LABELS.items()}
        grouped_points(values, _BROKEN, ax, legend=False)
        ax.set_ylabel("test accuracy (%)")
        ax.set_title(f"N = {width}")
    legend_below(figure, ncols=3)
    return figure


@styled
def draw_distances(dataset: xr.Dataset, config: ResidualsConfig) -> Figure:
    """Distance of theory and exact posterior from sampled networks, a panel per width and quantity."""
    widths = dataset.width.values
    figure, axes = figures.figure_grid(len(widths) * len(QUANTITIES), 1, size=(11.0, 3.6))
    names = {name: label for name, label in LABELS.items() if name != "sampled"}
    for row, width in zip(axes.reshape(len(widths), -1), widths, strict=True):
        percent = 100 * dataset[["distance", "noise"]].sel(width=width, approach=list(names))
        percent = percent.where(percent > 0)  # the axis is logarithmic
        everything = percent.to_array()
        for ax, quantity in zip(row, QUANTITIES, strict=True):
            chosen = percent.sel(quantity=quantity)
            values = {label: _by_kind(chosen.distance.sel(approach=name)) for name, label in names.items()}
            floors = {label: _by_kind(chosen.noise.sel(approach=name)) for name, label in names.items()}
            grouped_points(values, _BROKEN, ax, floors=floors, logarithmic=True, legend=False)
            ax.set_ylabel("distance from sampled networks (%)")
            of = "" if quantity == "order parameter" else " of the predictor"
            ax.set_title(f"{quantity}{of}, N = {width}")
            ax.set_ylim(0.5 * everything.min().item(), 2 * everything.max().item())
            ax.yaxis.set_major_locator(FixedLocator([0.1, 0.3, 1, 3, 10, 30, 100, 300]))
            ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            ax.yaxis.set_minor_locator(NullLocator())
    handles, labels = axes[0, 0].get_legend_handles_labels()
    floor = Patch(color=PALETTE["grey"], alpha=0.35, linewidth=0)
    places = {"loc": "outside lower center", "ncols": 3, "frameon": False}
    figure.legend([*handles, floor], [*labels, "Monte-Carlo noise"], **places)
    return figure


@styled
def draw_predictions(dataset: xr.Dataset, config: ResidualsConfig) -> Figure:
    """The mean predictor of the theory against that of sampled networks for each test sequence, first seed."""
    first = dataset.isel(seed=0, width=0)
    figure, axes = figures.figure_grid(-(-len(KINDS) // _ACROSS), _ACROSS, size=(3.3, 3.5))
    means = first["mean"].sel(approach=["sampled", "theory"])
    reach = 1.05 * float(np.abs(means).max())
    for number, (ax, kind) in enumerate(zip(axes.ravel(), KINDS, strict=True)):
        for label, colour in ((1, PALETTE["blue"]), (-1, PALETTE["vermilion"])):
            chosen = first["mean"].sel(kind=kind).values[:, first.test_label.values == label]
            name = f"class {label:+d}".replace("-", "−")
            ax.plot(chosen[2], chosen[0], ".", color=colour, markersize=3, alpha=0.5, label=name)
        ax.plot([-reach, reach], [-reach, reach], color=PALETTE["black"], linewidth=1, zorder=0)
        ax.set_xlim(-reach, reach)
        ax.set_ylim(-reach, reach)
        ax.set_aspect("equal")
        ax.set_title(kind)
        ax.set_xlabel("mean, sampled networks")
        if number % _ACROSS == 0:
            ax.set_ylabel("mean, theory")
    for handle in legend_below(figure, markerscale=3).legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
    return figure


@styled
def draw_order_parameters(dataset: xr.Dataset, config: ResidualsConfig) -> Figure:
    """U of the theory at the smallest width for all kinds, mean over seeds."""
    figure, axes = figures.figure_grid(-(-len(KINDS) // _ACROSS), _ACROSS, size=(4.6, 4.0))
    orders = dataset.order_parameter.isel(width=0).sel(approach="theory").mean("seed")
    for ax, kind in zip(axes.ravel(), KINDS, strict=True):
        order = orders.sel(kind=kind).dropna("path", how="all").dropna("path_other", how="all")
        figures.order_parameter_matrix(order.values, order.path.values.tolist(), ax)
        ax.set_title(kind)
    return figure


@styled
def draw_head_scores(dataset: xr.Dataset, config: ResidualsConfig) -> Figure:
    """Head scores from the theory's U at the smallest width, for kinds without norms inside."""
    figure, axes = figures.figure_grid(1, 1, size=(7.4, 4.0))
    scores = dataset.head_score.isel(width=0).sel(approach="theory")
    values = {kind: scores.sel(kind=kind).transpose("seed", "head").values for kind in EXACT_KINDS}
    heads = [head.replace(": ", ":\n") for head in HEADS]
    ax = grouped_points(values, heads, axes[0, 0], colours=("grey", "vermilion", "green", "blue", "sky"), legend=False)
    ax.set_ylim(0, 1.05)
    ax.set_ylabel("head score")
    ax.set_title(f"N = {dataset.width.values[0]}")
    legend_below(figure, ncols=3)
    return figure


def _by_kind(values: xr.DataArray) -> np.ndarray:
    return values.transpose("seed", "kind").values

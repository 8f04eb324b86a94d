"""Figures of the experiment with known teachers: its Dataset in, one matplotlib Figure each out."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...figures import PALETTE, styled
from ...figures.style import colours_for, figure_grid
from ..base import legend_below
from .config import APPROACHES, EXACT, LIMIT, MATCHED, MISSING, SADDLE, SCORES, TeacherConfig
from .numbers import found_rates, gain_rates, linear_ceiling

COLOURS = dict(zip(APPROACHES, (PALETTE["grey"], PALETTE["blue"], PALETTE["orange"], PALETTE["black"]), strict=True))
NAMES = {LIMIT: "Gaussian process", EXACT: "exact posterior"}
RATIO = "training examples over width, P/N"


@styled
def draw_calibration(dataset: xr.Dataset, config: TeacherConfig) -> Figure:
    """Predicted over true generalisation error against P/N, one panel per approach and one curve per width."""
    matched = dataset.sel(case=MATCHED)
    shown = [name for name in APPROACHES if np.isfinite(matched.calibration.sel(approach=name)).any()]
    figure, axes = figure_grid(1, len(shown), size=(3.6, 3.6))
    for ax, name in zip(axes[0], shown, strict=True):
        at = matched.sel(approach=name)
        _by_width(ax, at.calibration, at.calibration_error)
        ax.axhline(1, color=PALETTE["black"], linewidth=0.8, zorder=0)
        ax.set_title(NAMES.get(name, name))
    ends = [ax.get_ylim() for ax in axes[0]]
    for ax in axes[0]:
        ax.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
        ax.set_xlabel(RATIO)
    axes[0, 0].set_ylabel("predicted over true error")
    legend_below(figure)
    return figure


@styled
def draw_errors(dataset: xr.Dataset, config: TeacherConfig) -> Figure:
    """True and predicted generalisation error against P/N, with the teacher's heads and with one head too few."""
    widths = list(dict.fromkeys([config.widths[0], config.widths[len(config.widths) // 2], config.widths[-1]]))
    figure, axes = figure_grid(2, len(widths), size=(4.0, 3.2))
    for row, case in zip(axes, (MATCHED, MISSING), strict=True):
        for ax, width in zip(row, widths, strict=True):
            at = dataset.sel(case=case, width=width)
            for name in (LIMIT, SADDLE, EXACT):
                one, colour = at.sel(approach=name), COLOURS[name]
                label = NAMES.get(name, name)
                if not np.isfinite(one.relative_error).any():
                    continue
                look: dict[str, Any] = {"color": colour, "marker": "o", "capsize": 2}
                ax.errorbar(one.ratio, one.relative_error, one.relative_error_error, label=f"{label}, true", **look)
                ax.plot(one.ratio, one.relative_prediction, "--", color=colour, label=f"{label}, predicted")
            if case == MISSING:
                floor = float((at.floor.mean("teacher") / at.signal.mean("teacher")).mean())
                ax.axhline(floor, color=PALETTE["vermilion"], linestyle=":", label="floor of the student's heads")
            ax.set(xscale="log", yscale="log", title=f"{case}, N = {width}")
        row[0].set_ylabel("error over ⟨f²⟩")
    for ax in axes[-1]:
        ax.set_xlabel(RATIO)
    legend_below(figure, ncols=len(widths) + 1)
    return figure


@styled
def draw_order_parameter(dataset: xr.Dataset, config: TeacherConfig) -> Figure:
    """How much of the teacher's U is found against P/N, and its entries one by one where most is found."""
    matched = dataset.sel(case=MATCHED)
    figure, axes = figure_grid(1, 3, size=(4.2, 3.6))
    for ax, name in zip(axes[0], (SADDLE, EXACT), strict=False):
        at = matched.sel(approach=name)
        _by_width(ax, at.explained, at.explained_error)
        ax.axhline(0, color=PALETTE["black"], linewidth=0.8, zorder=0)
        for width, colour in zip(config.widths, colours_for(len(config.widths)), strict=True):
            if np.isfinite(at.explained.sel(width=width)).any():
                ax.plot(1.5 * config.ratios[-1], linear_ceiling(width, config.token_width), "<", color=colour)
        ax.set(title=NAMES.get(name, name), xlabel=RATIO, ylim=(-0.35, 1))
    axes[0, 0].set_ylabel("share of the variance of U found")
    ax, at = axes[0, 2], matched.isel(width=0, ratio=-1)
    true = at.teacher_order_parameter.values
    for name in (SADDLE, EXACT):
        look: dict[str, Any] = {"color": COLOURS[name], "label": NAMES.get(name, name), "alpha": 0.7}
        ax.plot(true.ravel(), at.order_parameter.sel(approach=name).values.ravel(), ".", **look)
    ax.axline((0, 0), slope=1, color=PALETTE["black"], linewidth=0.8, zorder=0)
    ax.set(title=f"N = {config.widths[0]}, P/N = {config.ratios[-1]:g}", xlabel="U of the teacher", ylabel="U found")
    ax.legend()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


@styled
def draw_shares(dataset: xr.Dataset, config: TeacherConfig) -> Figure:
    """Shares of pairs of paths in kernel and output, of Gaussian process and saddle against the teacher's."""
    at = dataset.sel(case=MATCHED).isel(width=0)
    ratios = list(dict.fromkeys([config.ratios[0], config.ratios[len(config.ratios) // 2], config.ratios[-1]]))
    figure, axes = figure_grid(2, len(ratios), size=(3.8, 3.6))
    for row, name in zip(axes, ("kernel_share", "output_share"), strict=True):
        for ax, ratio in zip(row, ratios, strict=True):
            one = at.sel(ratio=ratio)
            true = one[f"teacher_{name}"].transpose("teacher", ...).values
            for approach in (LIMIT, SADDLE):
                own = one[name].sel(approach=approach).transpose("teacher", ...).values
                look: dict[str, Any] = {"color": COLOURS[approach], "alpha": 0.7}
                ax.plot(true.ravel(), own.ravel(), ".", label=NAMES.get(approach, approach), **look)
            ax.axline((0, 0), slope=1, color=PALETTE["black"], linewidth=0.8, zorder=0)
            ax.set(title=f"N = {config.widths[0]}, P/N = {ratio:g}", xlabel="share of the teacher")
        row[0].set_ylabel(f"share in the {name.partition('_')[0]}")
    legend_below(figure)
    return figure


@styled
def draw_heads(dataset: xr.Dataset, config: TeacherConfig) -> Figure:
    """How often evidence sees a missing head, and how often each score finds an unused one, against P/N."""
    gains, found = gain_rates(dataset), found_rates(dataset)
    figure, axes = figure_grid(1, 1 + len(SCORES), size=(3.6, 3.6))
    ax = axes[0, 0]
    _by_width(ax, 100 * gains[MISSING])
    for width, colour in zip(config.widths, colours_for(len(config.widths)), strict=True):
        ax.plot(config.ratios, 100 * gains[MATCHED].sel(width=width), ":", color=colour)
    ax.set_title("evidence for one more head")
    ax.set_ylabel("% of teachers")
    for ax, (name, rate) in zip(axes[0, 1:], found.items(), strict=True):
        _by_width(ax, 100 * rate)
        ax.axhline(25, color=PALETTE["black"], linewidth=0.8, linestyle=":", zorder=0)
        ax.set_title(f"unused head lowest:\n{name}")
    for ax in axes[0]:
        ax.set(xlabel=RATIO, ylim=(-4, 104))
    legend_below(figure)
    return figure


def _by_width(ax: Axes, values: xr.DataArray, errors: xr.DataArray | None = None) -> None:
    """One curve per width against the ratio, on a logarithmic axis; widths without values keep their colour.

    Curves with errors stand a little beside each other, so that their bars can be told apart.
    """
    for place, (width, colour) in enumerate(zip(values.width.values, colours_for(values.sizes["width"]), strict=True)):
        one = values.sel(width=width)
        if not np.isfinite(one).any():
            continue
        bars = None if errors is None else errors.sel(width=width)
        beside = 1.0 if errors is None else 1.08 ** (place - (values.sizes["width"] - 1) / 2)
        ax.errorbar(beside * one.ratio, one, bars, marker="o", capsize=2, color=colour, label=f"N = {width}")
    ax.set_xscale("log")

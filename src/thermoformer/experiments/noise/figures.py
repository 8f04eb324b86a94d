"""Figures of the experiment with noise that is not Gaussian: its Dataset in, one matplotlib Figure each out."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ...figures import PALETTE, styled
from ...figures.style import colours_for, figure_grid
from ..base import legend_below
from . import CASES, EVIDENCE, KNOWN, REWEIGHTED, VALIDATION, NoiseConfig

COLOURS = {
    KNOWN: PALETTE["grey"],
    EVIDENCE: PALETTE["blue"],
    VALIDATION: PALETTE["sky"],
    REWEIGHTED: PALETTE["vermilion"],
}
NAMES = {
    KNOWN: "Gaussian theory, variance known",
    EVIDENCE: "Gaussian theory, τ by evidence",
    VALIDATION: "Gaussian theory, τ by validation",
    REWEIGHTED: "theory on reweighted examples, true law",
}
KINDS = {
    "gaussian": "Gaussian",
    "student-t": "Student",
    "laplace": "Laplace",
    "outliers": "outliers",
    "uneven": "uneven",
    "logistic": "flipped classes",
}


@styled
def draw_errors(dataset: xr.Dataset, config: NoiseConfig) -> Figure:
    """How far each theory is from the exact posterior under the true law: mean, deviation, accuracy, confidence."""
    panels = {
        "mean_percent": ("mean off, %", None),
        "deviation": ("s.d. over the exact one", 1.0),
        "accuracy_lost": ("accuracy lost, points", 0.0),
        "overconfidence_added": ("confidence added, points", 0.0),
    }
    return _by_case(dataset, config, panels)


@styled
def draw_structure(dataset: xr.Dataset, config: NoiseConfig) -> Figure:
    """Order parameter and order of the heads of each theory against those of the exact posterior."""
    panels = {"order_parameter_percent": ("U off, %", None), "order_percent": ("pairs of heads in order, %", 100.0)}
    return _by_case(dataset, config, panels)


@styled
def draw_residuals(dataset: xr.Dataset, config: NoiseConfig) -> Figure:
    """What residuals of the theory say of its errors: one dot per run, by the law of its noise."""
    figure, axes = figure_grid(1, 2, size=(4.6, 3.8))
    at = dataset.sel(approach=EVIDENCE)
    kinds = list(dict.fromkeys(CASES[case][0] for case in config.cases))
    for ax, (name, label) in zip(
        axes[0],
        {"largest_residual": "largest residual, in standard deviations", "excess_kurtosis": "excess kurtosis"}.items(),
        strict=True,
    ):
        for kind, colour in zip(kinds, colours_for(len(kinds)), strict=True):
            one = at.sel(case=[case for case in config.cases if CASES[case][0] == kind])
            look: dict[str, Any] = {"color": colour, "label": KINDS[kind], "alpha": 0.8}
            ax.plot(one[name].values.ravel(), one.mean_percent.values.ravel(), "o", **look)
        ax.set(xlabel=f"{label} (left out)", yscale="log")
    axes[0, 0].set_ylabel("mean off, %")
    legend_below(figure)
    return figure


def _by_case(dataset: xr.Dataset, config: NoiseConfig, panels: dict[str, tuple[str, float | None]]) -> Figure:
    """One row of panels per task: cases from top to bottom, and a dot with its error for each theory."""
    height = 1.2 + 0.26 * len(config.cases)
    figure, axes = figure_grid(len(config.tasks), len(panels), size=(3.1, height))
    places = np.arange(len(config.cases))
    for row, task in zip(axes, config.tasks, strict=True):
        for ax, (name, (label, best)) in zip(row, panels.items(), strict=True):
            _dots(ax, dataset[name].sel(task=task), places)
            if best is not None:
                ax.axvline(best, color=PALETTE["black"], linewidth=0.8, zorder=0)
            ax.set(xlabel=label, ylim=(places[-1] + 0.6, -0.6))
            if label.endswith("off, %"):
                _decades(ax)
            ax.set_yticks(places, list(config.cases) if ax is row[0] else [""] * len(places))
            ax.tick_params(axis="y", length=0)
        row[0].set_title(f"{task} task", loc="left")
    legend_below(figure, ncols=2)
    return figure


def _decades(ax: Axes) -> None:
    """A logarithmic axis of percents, with plain numbers."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000) if low <= tick <= high]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.xaxis.set_minor_formatter(NullFormatter())


def _dots(ax: Axes, values: xr.DataArray, places: np.ndarray) -> None:
    for place in places[::2]:
        ax.axhspan(place - 0.5, place + 0.5, color="0.95", zorder=-1, linewidth=0)
    for number, (name, colour) in enumerate(COLOURS.items()):
        one = values.sel(approach=name)
        error = one.std("seed", ddof=1) / np.sqrt(one.sizes["seed"]) if one.sizes["seed"] > 1 else None
        look: dict[str, Any] = {"color": colour, "label": NAMES[name], "markersize": 4, "linewidth": 1.2}
        ax.errorbar(one.mean("seed"), places + 0.16 * (number - 1.5), xerr=error, fmt="o", **look)

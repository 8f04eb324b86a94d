"""Figures of the one-shot experiment: its Dataset in, one matplotlib Figure each out."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from ... import figures
from ...figures import styled
from ..base import legend_below
from ..words import fixed, width_name
from .config import OneShotConfig
from .many import at_evidence, unpacked
from .numbers import (
    COEFFICIENTS,
    PART_NAMES,
    at_choice,
    finite_widths,
    head_scores,
    order_correlation,
    order_parameters,
    repeated_accuracies,
)


@styled
def draw_accuracy(dataset: xr.Dataset, config: OneShotConfig) -> Figure:
    """Accuracy against width: test characters, and two data sets that the network was not trained on."""
    shown = ("test", "fashion-mnist", "mnist")
    figure, axes = figures.figure_grid(1, len(shown), size=(4.4, 4.3))
    finite = finite_widths(dataset)
    found = repeated_accuracies(dataset)
    means = {name: 100 * values.mean("repetition") for name, values in found.items()}
    several = min(1, next(iter(found.values())).sizes["repetition"] - 1)
    spreads = {name: 100 * values.std("repetition", ddof=several) for name, values in found.items()}
    lowest, highest = 50.0, 0.0
    for ax, part in zip(axes[0], shown, strict=True):
        curves = {
            f"theory, {name}": means[name].sel(width=finite, part=part)
            for name in ("τ by validation", "τ by evidence", "τ and variance by evidence")
            if name in found
        }
        levels = {
            "trained network": float(means["trained network"].sel(part=part)),
            "GP, τ by validation": float(means["τ by validation"].sel(width=np.inf, part=part)),
            "GP with the trained U, τ by validation": float(means["trained U"].sel(part=part)),
        }
        marked = float(dataset.compared_width)
        ring = {"marked": marked, "marked_name": f"{width_name(marked)}, looked at closely below"}
        figures.curves_against_width(finite, curves, ax, levels=levels, **ring, legend=False)
        if "repeated_accuracy" in dataset:
            for (name, mean), line in zip(curves.items(), ax.lines, strict=False):
                spread = spreads[name.removeprefix("theory, ")].sel(width=finite, part=part)
                ax.errorbar(finite, mean, yerr=spread, fmt="none", ecolor=line.get_color(), capsize=3, zorder=3)
        ax.set_title(PART_NAMES[part])
        ax.tick_params(axis="x", labelrotation=35)
        lowest, highest = min(lowest, ax.get_ylim()[0]), max(highest, ax.get_ylim()[1])
    for ax in axes[0]:
        ax.set_ylim(lowest, highest)
    axes[0, 0].set_ylabel("accuracy (%)")
    legend_below(figure, ncols=3)
    return figure


@styled
def draw_order_parameters(dataset: xr.Dataset, config: OneShotConfig) -> Figure:
    """U of the theory, of sampled networks and of the trained weights, all with the trace of the first."""
    matrices = order_parameters(dataset)
    figure, axes = figures.figure_grid(1, len(matrices), size=(4.4, 4.6))
    theory = next(iter(matrices.values()))
    limit = max(float(np.abs(matrix).max()) for matrix in matrices.values())
    names = dataset.path.values.tolist()
    for number, (ax, (name, matrix)) in enumerate(zip(axes.flat, matrices.items(), strict=True)):
        figures.order_parameter_matrix(matrix, names, ax, limit=limit, colorbar=False, row_names=number == 0)
        ax.tick_params(axis="x", labelrotation=90)
        for label in ax.get_xticklabels():
            label.set(ha="center", rotation_mode="default")
        ax.set_title(name)
        if number > 0:
            value = fixed(order_correlation(theory, matrix, diagonal=False), 3)
            ax.set_xlabel(f"correlation with theory\noff the diagonal: {value}")
    figure.colorbar(axes[0, -1].images[0], ax=axes[0, -1], label="U", shrink=0.8)
    return figure


@styled
def draw_head_scores(dataset: xr.Dataset, config: OneShotConfig) -> Figure:
    """Scores of all heads from the U of the theory, of sampled networks and of the trained weights."""
    figure, axes = figures.figure_grid(size=(7.0, 3.8))
    ax = figures.grouped_points(head_scores(dataset), dataset["head"].values.tolist(), axes[0, 0], legend=False)
    ax.set_ylim(0, 1.08)
    ax.set_xlabel("layer.head")
    ax.set_ylabel("score of the head")
    legend_below(figure, ncols=3, loc="outside upper center")
    return figure


@styled
def draw_label_overlap(dataset: xr.Dataset, config: OneShotConfig) -> Figure:
    """Share of the labels in the leading principal components of the kernel: best width and Gaussian process."""
    figure, axes = figures.figure_grid(size=(8.0, 3.6))
    overlap = at_choice(dataset, "validation").label_overlap
    shown = {width_name(width): overlap.sel(width=width) for width in (float(dataset.compared_width), np.inf)}
    figures.label_overlap(shown, axes[0, 0])
    return figure


@styled
def draw_correlation(dataset: xr.Dataset, config: OneShotConfig) -> Figure:
    """Correlation of the theory's U with that of the trained network: by temperature, and by coefficient."""
    figure, axes = figures.figure_grid(1, 2, size=(5.4, 4.2))
    finite = finite_widths(dataset)
    correlation = dataset.correlation.sel(width=finite)
    by_temperature = correlation.sel(coefficient=COEFFICIENTS[1])
    chosen = at_choice(dataset, "validation").correlation.sel(width=finite)
    # Six curves at most: where there are more temperatures, some between the lowest and the highest.
    temperatures = dataset.temperature.values
    picked = temperatures[np.unique(np.linspace(0, len(temperatures) - 1, 6).round().astype(int))]
    panels = (
        ({f"τ = {value:g}": by_temperature.sel(temperature=value) for value in picked}, "Pearson, off the diagonal"),
        ({name: chosen.sel(coefficient=name) for name in COEFFICIENTS}, "τ by validation"),
    )
    lowest = min(0.0, float(correlation.min()))
    for ax, (curves, title) in zip(axes[0], panels, strict=True):
        figures.curves_against_width(finite, curves, ax, legend=False)
        ax.axhline(0, color=figures.PALETTE["grey"], linewidth=0.8, zorder=1)
        ax.set_ylim(lowest - 0.1, 1)
        ax.set_title(title)
        ax.legend(ncols=3 if len(curves) > len(COEFFICIENTS) else 2, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    axes[0, 0].set_ylabel("correlation with the trained U")
    return figure


@styled
def draw_many(dataset: xr.Dataset, config: OneShotConfig) -> Figure | None:
    """Accuracy, and agreement of U and of readouts with the trained network, against the number of examples."""
    if config.many is None:
        return None
    many = at_evidence(unpacked(dataset)).sel(turned=0)
    panels = {
        "accuracy on test characters (%)": 100 * many.accuracy.sel(part="test"),
        "U off the diagonal, Pearson": many.order_correlation,
        "readout of all paths, cosine": many.readout_cosine,
    }
    figure, axes = figures.figure_grid(1, len(panels), size=(3.9, 3.9))
    colours = [figures.PALETTE[name] for name in ("blue", "vermilion", "green", "purple", "orange", "sky")]
    for ax, (title, values) in zip(axes[0], panels.items(), strict=True):
        for number, width in enumerate(many.width.values):
            look = {"color": "black", "linestyle": "--"} if np.isinf(width) else {"color": colours[number % 6]}
            curve = values.sel(width=width)
            if np.isfinite(curve).any():
                ax.plot(many.examples, curve, "o-" if np.isfinite(width) else "s", label=width_name(width), **look)
        ax.set(xscale="log", xlabel="training examples P", title=title)
    axes[0, 0].axhline(
        100 * float(dataset.trained_accuracy.sel(part="test")),
        color=figures.PALETTE["grey"],
        linestyle=":",
        label="trained network",
    )
    for ax in axes[0, 1:]:
        ax.set_ylim(min(0.0, ax.get_ylim()[0]), 1)
    legend_below(figure)
    return figure

"""Figures of the experiment on attention that learns."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from ...figures import PALETTE, styled
from ...figures.style import figure_grid
from ...learning.attention_models import NORMALISATIONS
from ..base import legend_below
from . import ANNEALED, DESCENT, EVIDENCE, POSTERIOR, SOLVED, AttentionConfig
from .hidden_markov import ANNEALED as ANNEALED_HEADS
from .hidden_markov import FREE, GOOD, HEADS, LEARNED, UNIFORM
from .one_parameter import THEORIES

NAMES = {
    EVIDENCE: "maximum of the evidence",
    ANNEALED: "the same, annealed",
    POSTERIOR: "posterior mean",
    DESCENT: "gradient descent on all weights",
}
COLOURS = dict(zip(NAMES, (PALETTE[name] for name in ("sky", "blue", "vermilion", "green")), strict=True))

HEAD_COLOURS = dict(zip(HEADS, (PALETTE[name] for name in ("sky", "blue", "black", "grey", "vermilion")), strict=True))
HEAD_NAMES = {
    LEARNED: "learned in the family",
    ANNEALED_HEADS: "the same, annealed",
    GOOD: "good head given",
    UNIFORM: "uniform heads",
    FREE: "free W learned",
}


def mean_and_error(values: xr.DataArray, over: str) -> tuple[xr.DataArray, xr.DataArray | None]:
    """Mean and standard error; no error of a single value."""
    count = np.maximum(values.notnull().sum(over), 1)
    return values.mean(over), values.std(over, ddof=1) / np.sqrt(count) if values.sizes[over] > 1 else None


@styled
def draw_teachers(dataset: xr.Dataset, config: AttentionConfig) -> Figure:
    """Overlap and test error against P/N0, a row for each kind of attention."""
    figure, axes = figure_grid(len(config.normalisations), 2, size=(4.6, 3.4))
    for row, name in zip(axes, config.normalisations, strict=True):
        at = dataset.sel(normalisation=name)
        for approach, colour in COLOURS.items():
            one = at.sel(approach=approach)
            for ax, values in zip(row, (one.overlap, one.test_error), strict=True):
                if values.notnull().any():
                    look = {"color": colour, "label": NAMES[approach], "markersize": 4, "linewidth": 1.2}
                    ax.errorbar(at.ratio, *mean_and_error(values, "teacher"), fmt="o-", **look)
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
        look = {"fmt": "o-", "color": colour, "label": theory}
        axes[0, 0].errorbar(dataset.width, *mean_and_error(values, "data_set"), **look)
    axes[0, 0].set(xlabel="width N", ylabel="total variation distance", xscale="log", yscale="log")
    axes[0, 0].legend()
    return figure


@styled
def draw_heads(dataset: xr.Dataset, config: AttentionConfig) -> Figure | None:
    """The hidden-Markov task: test accuracy against the number of labels, and where starts ended."""
    if config.hidden_markov is None:
        return None
    figure, axes = figure_grid(1, 2, size=(4.6, 3.4))
    left, right = axes[0]
    for heads, colour in HEAD_COLOURS.items():
        values = 100 * dataset.hidden_markov_accuracy.sel(hidden_markov_heads=heads)
        look = {"color": colour, "label": HEAD_NAMES[heads], "markersize": 4, "linewidth": 1.2}
        left.errorbar(
            dataset.hidden_markov_examples, *mean_and_error(values, "hidden_markov_data_set"), fmt="o-", **look
        )
    left.set(xlabel="P", ylabel="test accuracy (%)", xscale="log", ylim=(40, 102))
    left.set_xticks(config.hidden_markov.examples, [str(examples) for examples in config.hidden_markov.examples])
    left.minorticks_off()
    for examples, colour in zip(dataset.hidden_markov_examples, PALETTE.values(), strict=False):
        at = dataset.sel(hidden_markov_examples=examples)
        gain, accuracy = (at[f"hidden_markov_start_{name}"].values.ravel() for name in ("gain", "accuracy"))
        right.plot(gain / int(examples), 100 * accuracy, ".", color=colour, label=f"starts, P = {int(examples)}")
    right.axvline(0, color=PALETTE["grey"], linewidth=1)
    right.axhline(100 * SOLVED, color=PALETTE["grey"], linewidth=1, linestyle=":")
    right.set(xlabel="(objective − that of the good head)/P", ylabel="test accuracy (%)", ylim=(40, 102))
    legend_below(figure, ncols=3)
    return figure


@styled
def draw_copying(dataset: xr.Dataset, config: AttentionConfig) -> Figure | None:
    """Copying: the weight on the token before against P/N0, and the density of b, for both kinds of attention."""
    if config.copying is None:
        return None
    part = config.copying
    figure, axes = figure_grid(2, 2, size=(4.6, 3.2))
    ratios = np.linspace(part.ratios[0] / 2, part.ratios[-1] * 1.05, 200)
    for (top, bottom), name in zip(axes.T, NORMALISATIONS, strict=True):
        at = dataset.sel(copying_normalisation=name)
        maxima = [np.pad(part.maxima_of_many(name, one)[:2], (0, 2), constant_values=np.nan)[:2] for one in ratios]
        weights = np.where(abs(np.diff(maxima, axis=0, prepend=maxima[:1])) > 0.1, np.nan, maxima)  # no line at a jump
        look = {"color": PALETTE["black"], "linewidth": 1.2}
        top.plot(ratios, weights[:, 0], label="highest maximum, N0 → ∞", **look)
        top.plot(ratios, weights[:, 1], ":", label="lower maximum, N0 → ∞", **look)
        for values, colour, what in (
            (at.copying_highest, PALETTE["blue"], "maximum of the posterior"),
            (at.copying_mean, PALETTE["vermilion"], "posterior mean"),
        ):
            look = {"color": colour, "label": what, "markersize": 4, "linewidth": 1.2}
            top.errorbar(at.copying_ratio, *mean_and_error(values, "copying_data_set"), fmt="o", **look)
        ends = at.copying_ends.transpose("copying_ratio", ...).values.reshape(len(part.ratios), -1)
        places = np.broadcast_to(at.copying_ratio.values[:, None], ends.shape)
        top.plot(places, ends, "x", color=PALETTE["green"], markersize=4, label="ends of starts", alpha=0.4)
        top.set(xlabel="P/N0", ylabel="weight on the token before", ylim=(-0.03, 0.8))
        top.set_title(f"{name} attention", loc="left")
        logits, middle = part.grid(name), part.nodes // 2
        for ratio, colour in zip(part.ratios, PALETTE.values(), strict=False):
            measured = at.copying_density.sel(copying_ratio=ratio).mean("copying_data_set").values
            limit = part.density_of_many(name, ratio, logits)
            bottom.plot(logits[::4], (measured - measured[middle])[::4], ".", color=colour, label=f"P/N0 = {ratio:g}")
            bottom.plot(logits, limit - limit[middle], color=colour, linewidth=1.2)
        bottom.set(xlabel="b", ylabel="(ln p(b|y) − ln p(0|y))/N0", ylim=(-0.3, 0.6))
    legend_below(figure, ncols=4)
    return figure

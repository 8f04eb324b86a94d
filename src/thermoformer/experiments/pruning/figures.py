"""Figures of the pruning experiment: its Dataset in, one matplotlib Figure each out."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from ... import figures
from ...figures import styled
from ...learning.scores import head_of
from ..base import legend_below
from ..words import binomial_error, fixed, general, width_name
from .config import MEASURED, SCORES, PruningConfig
from .numbers import SCORE_NAMES, TITLES, finetuned_curves, order_curves, rank_correlation, single_drops
from .predicted import agreement

_AXES = {"evidence": "log evidence lost", "gradient": "|slope of the loss|"}


@styled
def draw_scores(dataset: xr.Dataset, config: PruningConfig) -> Figure:
    """The accuracy lost without each head against each of its scores."""
    figure, axes = figures.figure_grid(2, 2, size=(4.6, 3.7))
    drops = single_drops(dataset)
    accuracy = float(dataset.accuracy.sel(part="test", subset=0)) - drops / 100
    errors = 100 * binomial_error(accuracy, config.test_sequences)
    names = dataset["head"].values.tolist()
    layers = [head_of(name)[0] for name in names]
    for number, (ax, name) in enumerate(zip(axes.ravel(), SCORES, strict=True)):
        scores = dataset.score.sel(score_name=name).values
        figures.score_against_drop(scores, drops, ax, layers=layers, names=names, errors=errors, legend=number == 0)
        found = rank_correlation(scores, drops)
        ax.set_title(f"{SCORE_NAMES[name]}\nρ = {fixed(found.value, 2)}, p = {general(found.chance, 2)}")
        ax.set_xlabel(_AXES.get(name, "score of the head"))
    return figure


@styled
def draw_curves(dataset: xr.Dataset, config: PruningConfig) -> Figure:
    """Accuracy as heads go, layers rescaled and nothing trained, on each part."""
    return _panels({part: order_curves(dataset, part, config.measured_on(part)) for part in MEASURED})


@styled
def draw_finetuned(dataset: xr.Dataset, config: PruningConfig) -> Figure | None:
    """Accuracy as heads go, every network fine-tuned, on each part."""
    if dataset.finetuned_accuracy.isnull().all():
        return None
    return _panels({part: finetuned_curves(dataset, part, config) for part in MEASURED})


@styled
def draw_predicted(dataset: xr.Dataset, config: PruningConfig) -> Figure | None:
    """Accuracies of all pruned networks, predicted against true, and how they agree with more and more examples."""
    if config.many is None:
        return None
    figure, axes = figures.figure_grid(1, 2, size=(4.9, 4.1))
    left, right = axes[0]
    width = dataset.attrs["many_chosen_width"]
    sizes = np.array([int(code).bit_count() for code in dataset.subset.values])
    predicted = dataset.predicted_accuracy.sel(part="test", many_width=width).isel(examples=-1)
    true = dataset.accuracy.sel(part="test")
    colours = [figures.PALETTE[name] for name in ("black", "blue", "vermilion", "green", "purple", "orange", "sky")]
    for size in np.unique(sizes)[::-1]:
        here, look = sizes == size, {"s": 14 if size > 2 else 26, "zorder": 3 - size / 10}
        label = "whole network" if size == 0 else f"{size} removed"
        left.scatter(100 * predicted[here], 100 * true[here], color=colours[size % len(colours)], label=label, **look)
    ends = 100 * float(min(predicted.min(), true.min())) - 1, 100 * float(max(predicted.max(), true.max())) + 1
    left.plot(ends, ends, color=figures.PALETTE["grey"], linestyle=":", linewidth=0.8, zorder=0)
    left.set(xlabel="predicted accuracy (%)", ylabel="accuracy of the pruned network (%)")
    left.set_title(f"test characters, P = {int(dataset.examples[-1])}")
    left.legend(fontsize="small", ncols=2)
    found = agreement(dataset)
    for number, one in enumerate(found.many_width.values):
        colour = "black" if np.isinf(one) else colours[1 + number % (len(colours) - 1)]
        dashes = "--" if np.isinf(one) else "-"
        right.plot(
            found.examples, found.all_sets.sel(many_width=one), f"o{dashes}", color=colour, label=width_name(one)
        )
    right.axhline(0, color=figures.PALETTE["grey"], linewidth=0.8, zorder=0)
    right.set(xscale="log", xlabel="training examples P", ylabel="Pearson, predicted and true", ylim=(None, 1))
    right.set_title(f"all {dataset.sizes['subset']} sets of heads")
    right.legend()
    return figure


def _panels(curves: dict[str, xr.Dataset]) -> Figure:
    figure, axes = figures.figure_grid(1, len(curves), size=(4.3, 4.6))
    lowest = min(float(one.accuracy.min()) for one in curves.values())
    highest = max(float(one.accuracy.max()) for one in curves.values())
    for ax, (part, one) in zip(axes[0], curves.items(), strict=True):
        figures.pruning_curves(one, ax, legend=False)
        ax.axhline(50, color=figures.PALETTE["grey"], linewidth=0.8, linestyle=":", zorder=0)
        ax.set_title(TITLES[part])
        ax.set_ylim(min(100 * lowest, 49) - 2, np.ceil(100 * highest) + 2)
    legend_below(figure, ncols=3)
    return figure

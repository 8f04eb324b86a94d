"""Figures of the hidden-Markov experiment: its Dataset in, one matplotlib Figure each out."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from ... import figures
from ...figures import styled
from ...figures.matrices import kernel_limits
from ..words import width_name
from .config import MarkovConfig
from .published import published_numbers


@styled
def draw_accuracy(dataset: xr.Dataset, config: MarkovConfig) -> Figure:
    """Accuracy against width, one panel per variant."""
    figure, axes = figures.figure_grid(1, len(config.variants), size=(6.4, 4.2))
    lowest = 100 * min(float(dataset.accuracy.min()), float(dataset.accuracy_diagonal.min()))
    for ax, variant in zip(axes[0], config.variants, strict=True):
        chosen = dataset.sel(variant=variant.name)
        if variant.denoises_everywhere:
            chosen = chosen.drop_sel(reference="good + denoising")
        published = published_numbers(config)
        names = {width: (variant.name, "accuracy", width) for width in dataset.width.values.tolist()}
        shown = {width: published[name] / 100 for width, name in names.items() if name in published}
        chosen, below = _split_references(chosen, lowest)
        figures.accuracy_against_width(chosen, ax, published=shown, limits=(lowest - 3, 100))
        ax.set_title(f"{variant.name}, $\\sigma_\\perp$ = {variant.perpendicular_noise:g}")
        for name, value in below.items():
            look = {"ha": "right", "fontsize": 9.5, "transform": ax.transAxes}
            ax.text(0.98, 0.03, f"GP, {name}: {value:.0f} %, below the axis", **look)
    return figure


@styled
def draw_order_parameters(dataset: xr.Dataset, config: MarkovConfig) -> Figure:
    """U at small, middle and large width, one row per variant; mean over seeds."""
    widths = _shown_widths(config)
    figure, axes = figures.figure_grid(len(config.variants), len(widths), size=(3.9, 2.9))
    for row, variant in zip(axes, config.variants, strict=True):
        matrices = dataset[f"order_parameter_{variant.slug}"].mean("seed").sel(width=widths).values
        limit = float(np.abs(matrices).max())
        for column, (ax, matrix, width) in enumerate(zip(row, matrices, widths, strict=True)):
            figures.order_parameter_matrix(
                matrix,
                variant.path_names,
                ax,
                limit=limit,
                colorbar=column == len(widths) - 1,
                row_names=column == 0,
                column_names=False,
            )
            ax.set_title(f"{variant.name}, {width_name(width)}")
    return figure


@styled
def draw_label_overlap(dataset: xr.Dataset, config: MarkovConfig) -> Figure:
    """Share of the labels in the leading principal components, smallest width and Gaussian process, first seed.

    One seed: the component that carries the labels comes at another place in every seed, and a mean would blur it.
    """
    figure, axes = figures.figure_grid(1, len(config.variants), size=(5.2, 3.6))
    for ax, variant in zip(axes[0], config.variants, strict=True):
        overlap = dataset.label_overlap.isel(seed=0).sel(variant=variant.name)
        shown = {width_name(width): overlap.sel(kernel_width=width).values for width in dataset.kernel_width.values}
        figures.label_overlap(shown, ax)
        ax.set_title(variant.name)
    return figure


@styled
def draw_kernels(dataset: xr.Dataset, config: MarkovConfig) -> Figure:
    """Kernels of the first seed's training examples at the smallest width and for the Gaussian process.

    Those of one variant share their colours.
    """
    figure, axes = figures.figure_grid(len(config.variants), 2, size=(4.4, 3.7))
    for row, variant in zip(axes, config.variants, strict=True):
        kernels = dataset.kernel.isel(seed=0).sel(variant=variant.name)
        limits = kernel_limits(*kernels.values)
        for ax, kernel in zip(row, kernels, strict=True):
            figures.kernel_image(kernel.values, dataset.label.values, ax, limits=limits, colorbar=ax is row[-1])
            ax.set_title(f"{variant.name}, {width_name(float(kernel.kernel_width))}")
    return figure


def _shown_widths(config: MarkovConfig) -> list[int]:
    """N = 10, 100, 1000 where the run has them, else its smallest, middle and largest."""
    usual = [width for width in (10, 100, 1000) if width in config.widths]
    picked = (config.widths[0], config.widths[len(config.widths) // 2], config.widths[-1])
    return usual if len(usual) == 3 else list(dict.fromkeys(picked))


def _split_references(dataset: xr.Dataset, lowest: float) -> tuple[xr.Dataset, dict[str, float]]:
    """The Dataset with the GP references that fit above the lowest accuracy in %, and the others' means in %."""
    means = 100 * dataset.reference_accuracy.mean("seed")
    below = means.reference.values[means.values < lowest - 3].tolist()
    return dataset.drop_sel(reference=below), {name: float(means.sel(reference=name)) for name in below}

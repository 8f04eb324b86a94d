"""Figures of the trajectories: one panel per β."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import figures
from ...dynamics import autocorrelation, power_spectrum
from ..base import legend_below
from . import LAGS, SHOWN_STEPS


def draw(dataset: xr.Dataset, verdicts: Mapping[float, str]) -> dict[str, Figure]:
    """All figures.

    Arguments:
        verdicts: what is said of each β in the title of its panel.
    """

    def grid(draw_one: Callable[[np.ndarray, Axes], Axes], size: tuple[float, float], *, legend: bool = True) -> Figure:
        """One panel per β, three across; one legend of the features for all."""
        columns = min(3, len(verdicts))
        figure, axes = figures.figure_grid(-(-len(verdicts) // columns), columns, size=size)
        for ax in axes.flat[len(verdicts) :]:
            ax.remove()
        for ax, (beta, verdict) in zip(axes.flat, verdicts.items(), strict=False):
            draw_one(dataset.m_o.sel(beta=beta).values, ax)
            ax.set_title(f"β = {beta:g}: {verdict}", fontsize=11)
        if axes[0, 0].get_legend_handles_labels()[1] and legend:
            legend_below(figure, fontsize=12)
        return figure

    def correlation(values: np.ndarray, ax: Axes) -> Axes:
        found = autocorrelation(values, lags=min(LAGS, len(values) - 1))
        return figures.autocorrelation_curve(found, ax, legend=False)

    return {
        "time_series": grid(
            lambda m, ax: figures.orbit_series(m[:SHOWN_STEPS], ax, stacked=True), (4.6, 3.0), legend=False
        ),
        "phase_planes": grid(lambda m, ax: figures.phase_plane(m, (0, 1), ax), (4.0, 3.4)),
        "spectra": grid(lambda m, ax: figures.power_spectrum_curve(power_spectrum(m), ax, legend=False), (4.6, 2.7)),
        "autocorrelations": grid(correlation, (4.6, 2.5)),
    }

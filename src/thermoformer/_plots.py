"""The figures that `plot` of results draws: those of `figures`, and two that are of one result each."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from .figures import (
    PALETTE,
    accuracy_against_width,
    basin_map,
    comparison_panels,
    head_score_map,
    hysteresis,
    orbit_diagram_panels,
    orbit_series,
    order_parameter_matrix,
    phase_diagram_image,
)
from .figures.display import Axis, Band, Curve, Display, Level, Mark
from .figures.style import colours_for

__all__ = [
    "accuracy_against_width",
    "basin_map",
    "comparison_panels",
    "exponents_with_errors",
    "head_score_map",
    "hysteresis",
    "orbit_diagram_panels",
    "orbit_series",
    "order_parameter_matrix",
    "phase_diagram_image",
    "predicted_outputs",
]


def predicted_outputs(mean: np.ndarray, variance: np.ndarray, labels: np.ndarray | None, ax: Axes | None) -> Axes:
    """Means in ascending order, with a band of two standard deviations, and the labels as points.

    Arguments:
        mean, variance: [example], or [example, output].
        labels: y in the same shape, or None.

    Example:
        >>> ax = predicted_outputs(np.array([0.5, -1.0]), np.array([0.04, 0.01]), np.array([1.0, -1.0]), None)
        >>> [line.get_ydata().tolist() for line in ax.lines]
        [[-1.0, 1.0], [-1.0, 0.5]]
    """
    means, widths = mean.reshape(len(mean), -1), 2 * np.sqrt(np.maximum(variance, 0)).reshape(len(mean), -1)
    examples, several = np.arange(len(mean)), means.shape[1] > 1
    marks: list[Mark] = []
    for output, colour in enumerate(colours_for(means.shape[1])):
        order = np.argsort(means[:, output], kind="stable")
        middle, half = means[order, output], widths[order, output]
        marks.append(Band(examples, middle - half, middle + half, colour, opacity=0.25))
        if labels is not None:
            truth = labels.reshape(len(mean), -1)[order, output]
            marks.append(Curve(examples, truth, colour, line=0, marker=".", size=4, opacity=0.5))
        name = f"output {output}" if several else "mean ± two standard deviations"
        marks.append(Curve(examples, middle, colour, label=name, order=1))
    across = Axis("example, in ascending order of its mean", margin=0.01)
    return Display(marks, across, Axis("output"), size=(5.8, 3.3), about="predicted outputs").plot(ax)


def exponents_with_errors(exponents: np.ndarray, errors: np.ndarray, ax: Axes | None) -> Axes:
    """Lyapunov exponents by number, with two standard errors; those lost to rounding are left out.

    Arguments:
        exponents, errors: [exponent].

    Example:
        >>> exponents_with_errors(np.array([0.1, -np.inf]), np.array([0.01, np.nan]), None).get_xlabel()
        'exponent'
    """
    there = np.isfinite(exponents)
    numbers = 1 + np.flatnonzero(there)
    bars = 2 * np.nan_to_num(errors[there])
    marks: list[Mark] = [Level(0, PALETTE["grey"], line=0.8, order=-1)]
    marks.append(Curve(numbers, exponents[there], PALETTE["blue"], errors=bars, line=0, marker="o"))
    across = Axis("exponent", (0.5, len(exponents) + 0.5), whole=True)
    return Display(marks, across, Axis("Lyapunov exponent per step"), "", about="Lyapunov exponents").plot(ax)

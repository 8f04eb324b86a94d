"""Test accuracy against the width of the network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from .._validation import fail
from .style import PALETTE, axes_or_new, styled

# Samplers by variable: label, colour, marker, and a factor on the width, since their points all but cover the theory's.
_SAMPLERS = {
    "exact_accuracy": ("exact finite width", PALETTE["black"], "D", 1.09),
    "sampled_accuracy": ("sampled networks", PALETTE["sky"], "^", 1.19),
}
_REFERENCE_COLOURS = (PALETTE["green"], PALETTE["purple"], PALETTE["orange"])


@styled
def accuracy_against_width(
    dataset: xr.Dataset,
    ax: Axes | None = None,
    *,
    published: Mapping[float, float] | None = None,
    legend: bool = True,
) -> Axes:
    """Accuracy against N: mean over seeds, one standard deviation either side.

    Arguments:
        dataset: `accuracy` [seed, width] as fractions, with the infinite width for the Gaussian process. Drawn as well
            when there: `accuracy_diagonal` [seed, width], `reference_accuracy` [seed, reference], and of samplers
            `exact_accuracy` and `sampled_accuracy` [seed, width], nan where they did not run. A sampler that ran on
            some seeds only is placed by its mean difference from `accuracy` on these seeds, with the standard
            deviation of this difference: so it shows the sampler against the theory, not its seeds against the others.
        published: accuracies to compare with, by width, drawn as open circles.

    Example:
        >>> import numpy as np
        >>> import xarray as xr
        >>> accuracy = ("seed", "width"), np.array([[0.95, 0.9, 0.8]])
        >>> ax = accuracy_against_width(xr.Dataset({"accuracy": accuracy}, {"width": [10, 100, np.inf]}))
        >>> ax.get_xlabel()
        'width N'
    """
    _check(dataset)
    ax = axes_or_new(ax)
    finite = np.isfinite(dataset.width.values)
    widths = dataset.width.values[finite]

    for index, name in enumerate(_references(dataset)):
        values = dataset.reference_accuracy.sel(reference=name)
        _level(ax, values, _REFERENCE_COLOURS[index % len(_REFERENCE_COLOURS)], f"GP, {name}", (0, (1, 1.2)))
    if not finite.all():
        _level(ax, dataset.accuracy.isel(width=int(np.argmin(finite))), PALETTE["grey"], "GP, all paths", (0, (5, 2)))
    if "accuracy_diagonal" in dataset:
        diagonal = dataset.accuracy_diagonal.isel(width=finite)
        _points(ax, widths, diagonal, PALETTE["vermilion"], "theory, diagonal of U only", "s")
    _points(ax, widths, dataset.accuracy.isel(width=finite), PALETTE["blue"], "theory", "o")
    for name, (label, colour, marker, shift) in _SAMPLERS.items():
        if name in dataset:
            _sampler(ax, dataset, dataset[name].isel(width=finite), colour, label, marker, shift)
    if published:
        shown = {width: value for width, value in published.items() if np.isfinite(width)}
        ax.plot(
            list(shown),
            [100 * value for value in shown.values()],
            linestyle="none",
            marker="o",
            markersize=9,
            markerfacecolor="none",
            markeredgecolor=PALETTE["black"],
            label="published, one seed",
            zorder=4,
        )

    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator(widths.tolist()))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(widths, [f"{width:g}" for width in widths])
    ax.set_xlabel("width N")
    ax.set_ylabel("test accuracy (%)")
    if legend:
        ax.legend()
    return ax


def _points(ax: Axes, widths: np.ndarray, values: xr.DataArray, colour: str, label: str, marker: str) -> None:
    mean, spread = _mean_and_spread(values)
    ax.errorbar(widths, mean, spread, color=colour, marker=marker, capsize=3, elinewidth=1.2, label=label, zorder=3)


def _sampler(
    ax: Axes, dataset: xr.Dataset, values: xr.DataArray, colour: str, label: str, marker: str, shift: float
) -> None:
    values = values.dropna("width", how="all")
    if not values.sizes["width"]:
        return
    theory = dataset.accuracy.sel(width=values.width)
    gaps = 100 * (values - theory).transpose("seed", "width").values
    ran = np.isfinite(gaps).sum(axis=0)
    places = 100 * theory.mean("seed").values + np.nanmean(gaps, axis=0)
    spreads = np.array([np.nanstd(one, ddof=1) if count > 1 else 0.0 for one, count in zip(gaps.T, ran, strict=True)])
    style = {"marker": marker, "markersize": 5, "markeredgecolor": PALETTE["black"], "markeredgewidth": 0.6}
    ax.errorbar(
        shift * values.width.values, places, spreads, color=colour, linestyle="none", capsize=2, elinewidth=1.2,
        label=label, zorder=3.5, **style,
    )  # fmt: skip


def _level(ax: Axes, values: xr.DataArray, colour: str, label: str, dashes: tuple) -> None:
    mean, spread = _mean_and_spread(values)
    ax.axhspan(float(mean - spread), float(mean + spread), color=colour, alpha=0.10, linewidth=0)
    ax.axhline(float(mean), color=colour, linestyle=dashes, label=label)


def _mean_and_spread(values: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over seeds in percent; one seed has no spread."""
    percent = 100 * values.transpose("seed", ...).values
    return percent.mean(axis=0), percent.std(axis=0, ddof=1) if len(percent) > 1 else np.zeros(percent.shape[1:])


def _references(dataset: xr.Dataset) -> list[str]:
    return [str(name) for name in dataset.reference.values] if "reference_accuracy" in dataset else []


def _check(dataset: xr.Dataset) -> None:
    if not isinstance(dataset, xr.Dataset) or "accuracy" not in dataset:
        raise fail("dataset", type(dataset).__name__, "an xarray Dataset with the variable 'accuracy'")
    if set(dataset.accuracy.dims) != {"seed", "width"}:
        raise fail("dataset", f"accuracy with dimensions {dataset.accuracy.dims}", "the dimensions seed and width")

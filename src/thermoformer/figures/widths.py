"""Numbers against the width of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from .._validation import fail, real_array
from .display import Axis, Curve, Display, Level, Mark
from .style import PALETTE

_LOOKS = (("blue", "o"), ("vermilion", "s"), ("green", "D"), ("purple", "^"), ("orange", "v"), ("sky", "P"))
# Levels are told from curves by their dashes, and from each other by both.
_LEVELS: tuple[tuple[str, Sequence[float]], ...] = (("black", (1, 1.2)), ("grey", (5, 2)), ("grey", (6, 1.5, 1, 1.5)))
# Samplers by variable: label, look, and a factor on the width, since their points all but cover the theory's.
_SAMPLERS = {
    "exact_accuracy": ("exact finite width", PALETTE["black"], "D", 1.09),
    "sampled_accuracy": ("sampled networks", PALETTE["sky"], "^", 1.19),
}
_REFERENCE_COLOURS = (PALETTE["green"], PALETTE["purple"], PALETTE["orange"])


def width_axis(widths: Any, **more: Any) -> Axis:
    """A logarithmic axis of the width with a tick at each of some widths."""
    names = [f"{width:g}" if width < 1e6 else f"{width:.0e}" for width in widths]
    return Axis("width N", log=True, ticks=[float(width) for width in widths], names=names, **more)


def width_display(
    widths: Any,
    curves: Mapping[str, Any],
    *,
    levels: Mapping[str, float] | None = None,
    marked: float | None = None,
    marked_name: str = "",
    legend: bool = True,
) -> Display:
    """The picture of `curves_against_width`, whose arguments these are."""
    widths = real_array("widths", widths, ("width",))
    levels = dict(levels or {})
    if not 0 < len(curves) <= len(_LOOKS):
        raise fail("curves", f"{len(curves)} curves", f"from 1 to {len(_LOOKS)}")
    if len(levels) > len(_LEVELS):
        raise fail("levels", f"{len(levels)} levels", f"at most {len(_LEVELS)}")
    if marked is not None and marked not in widths:
        raise fail("marked", marked, "one of the widths")
    tables = {name: np.asarray(values, float) for name, values in curves.items()}
    marks: list[Mark] = []
    for (name, values), (colour, marker) in zip(tables.items(), _LOOKS, strict=False):
        if values.shape != widths.shape:
            raise fail(f"curves[{name!r}]", f"shape {values.shape}", f"[{len(widths)}], one number per width")
        notes = [f"{name}, N = {width:g}: {value:.4g}" for width, value in zip(widths, values, strict=True)]
        marks.append(Curve(widths, values, PALETTE[colour], marker=marker, label=name, order=1, notes=notes))
    for (name, level), (colour, dashes) in zip(levels.items(), _LEVELS, strict=False):
        marks.append(Level(level, PALETTE[colour], line=1.5, dashes=dashes, label=name))
    if marked is not None:
        first = next(iter(tables.values()))[widths == marked]
        ring = {"line": 0, "marker": "o", "size": 13, "hollow": True, "label": marked_name or f"N = {marked:g}"}
        marks.append(Curve([marked], first, PALETTE["black"], **ring, order=0.5))
    return Display(marks, width_axis(widths), legend="inside" if legend else "")


def curves_against_width(
    widths: Any,
    curves: Mapping[str, Any],
    ax: Axes | None = None,
    *,
    levels: Mapping[str, float] | None = None,
    marked: float | None = None,
    marked_name: str = "",
    legend: bool = True,
) -> Axes:
    """Curves over the width N on a logarithmic axis, with lines across for what has no width.

    Arguments:
        widths: finite, [width].
        curves: by name, [width]; nan where there is no such number. At most six.
        levels: by name, a number each, such as that of the Gaussian process. At most three.
        marked: a width at which a ring is drawn about the first curve.
        marked_name: what the legend says of the ring; default: the width.
        legend: whether names are written beside the curves.

    Example:
        >>> ax = curves_against_width([10, 100], {"theory": [75.0, 70.0]}, levels={"GP": 64.0}, marked=10)
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['theory', 'GP', 'N = 10']
    """
    shown = {"levels": levels, "marked": marked, "marked_name": marked_name, "legend": legend}
    return width_display(widths, curves, **shown).plot(ax)


def accuracy_against_width(
    dataset: xr.Dataset,
    ax: Axes | None = None,
    *,
    published: Mapping[float, float] | None = None,
    limits: tuple[float, float] | None = None,
    legend: bool = True,
) -> Axes:
    """Accuracy against N: mean over seeds, one standard deviation either side; names stand at the ends of the curves.

    Arguments:
        dataset: `accuracy` [seed, width] as fractions, with the infinite width for the Gaussian process. Drawn as well
            when there: `accuracy_diagonal` [seed, width], `reference_accuracy` [seed, reference], and of samplers
            `exact_accuracy` and `sampled_accuracy` [seed, width], nan where they did not run. A sampler that ran on
            some seeds only is placed by its mean difference from `accuracy` on these seeds, with the standard
            deviation of this difference: so it shows the sampler against the theory, not its seeds against the others.
        published: accuracies to compare with, by width, drawn as open circles.
        limits: lowest and highest accuracy of the axis, in percent; default: from the data.

    Example:
        >>> import numpy as np
        >>> import xarray as xr
        >>> accuracy = ("seed", "width"), np.array([[0.95, 0.9, 0.8]])
        >>> ax = accuracy_against_width(xr.Dataset({"accuracy": accuracy}, {"width": [10, 100, np.inf]}))
        >>> ax.get_xlabel()
        'width N'
    """
    _check(dataset)
    finite = np.isfinite(dataset.width.values)
    widths = dataset.width.values[finite]
    marks: list[Mark] = []
    for index, name in enumerate(dataset.reference.values.tolist() if "reference_accuracy" in dataset else ()):
        mean, spread = _mean_and_spread(dataset.reference_accuracy.sel(reference=name))
        colour = _REFERENCE_COLOURS[index % len(_REFERENCE_COLOURS)]
        marks.append(Level(float(mean), colour, float(spread), dashes=(1, 1.2), label=f"GP, {name}"))
    if not finite.all():
        mean, spread = _mean_and_spread(dataset.accuracy.isel(width=int(np.argmin(finite))))
        marks.append(Level(float(mean), PALETTE["grey"], float(spread), dashes=(5, 2), label="GP, all paths"))
    lines = [("accuracy", "theory", "blue", "o")]
    if "accuracy_diagonal" in dataset:
        lines.insert(0, ("accuracy_diagonal", "theory, diagonal of U only", "vermilion", "s"))
    for variable, label, colour, marker in lines:
        mean, spread = _mean_and_spread(dataset[variable].isel(width=finite))
        marks.append(Curve(widths, mean, PALETTE[colour], spread, marker=marker, label=label, order=1))
    for variable, (label, colour, marker, shift) in _SAMPLERS.items():
        if variable in dataset:
            there, mean, spread = _beside_theory(dataset, dataset[variable].isel(width=finite))
            if len(there):
                look: dict[str, Any] = {"line": 0, "marker": marker, "size": 5, "rim": PALETTE["black"], "order": 1}
                marks.append(Curve(shift * there, mean, colour, spread, label=label, **look))
    shown = {width: 100 * value for width, value in (published or {}).items() if np.isfinite(width)}
    if shown:
        ring: dict[str, Any] = {"line": 0, "marker": "o", "size": 9, "hollow": True, "order": 0.5}
        marks.append(Curve(list(shown), list(shown.values()), PALETTE["black"], label="published, one seed", **ring))
    up = Axis("test accuracy (%)", limits)
    return Display(marks, width_axis(widths), up, legend="ends" if legend else "", size=(6.0, 3.6)).plot(ax)


def _beside_theory(dataset: xr.Dataset, values: xr.DataArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Widths at which a sampler ran, and its mean and spread in percent, [width]."""
    values = values.dropna("width", how="all")
    theory = dataset.accuracy.sel(width=values.width)
    gaps = 100 * (values - theory).transpose("seed", "width")
    several = gaps.count("seed") > 1
    mean = 100 * theory.mean("seed") + gaps.mean("seed")
    return values.width.values, mean.values, gaps.std("seed", ddof=1).where(several, 0.0).values


def _mean_and_spread(values: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over seeds in percent; one seed has no spread."""
    percent = 100 * values.transpose("seed", ...).values
    return percent.mean(axis=0), percent.std(axis=0, ddof=1) if len(percent) > 1 else np.zeros(percent.shape[1:])


def _check(dataset: xr.Dataset) -> None:
    if not isinstance(dataset, xr.Dataset) or "accuracy" not in dataset:
        raise fail("dataset", type(dataset).__name__, "an xarray Dataset with the variable 'accuracy'")
    if set(dataset.accuracy.dims) != {"seed", "width"}:
        raise fail("dataset", f"accuracy with dimensions {dataset.accuracy.dims}", "the dimensions seed and width")

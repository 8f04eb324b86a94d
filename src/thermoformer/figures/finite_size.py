"""How far a finite network is from its mean field, against its size."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from .._validation import fail
from .display import Axis, Curve, Display, Mark
from .style import PALETTE

_LABELS = {"classes": "counts per class", "bits": "every bit drawn"}


def finite_size_scaling(dataset: xr.Dataset, ax: Axes | None = None, *, legend: bool = True) -> Axes:
    """|Δm| against N on logarithmic axes with standard errors, and a line N^−1/2.

    Arguments:
        dataset: `error` and `standard_error` [form, bits] or [bits]; entries that are nan are left out. The line is at
            the number `predicted` over √N, where there is one. Otherwise it goes through the points, from the N on that
            the attribute `fit_from` names, if it is there.

    Example:
        >>> error = ("bits", [0.1, 0.01])
        >>> scaling = xr.Dataset({"error": error, "standard_error": error}, {"bits": [100, 10_000]})
        >>> finite_size_scaling(scaling).get_xscale()
        'log'
    """
    if not isinstance(dataset, xr.Dataset) or not {"error", "standard_error", "bits"} <= set(dataset.variables):
        raise fail("dataset", type(dataset).__name__, "a Dataset with error and standard_error along bits")
    several = dataset if "form" in dataset.dims else dataset.expand_dims(form=["classes"])
    bits = several.bits.values.astype(float)
    marks: list[Mark] = []
    for name in several.form.values.tolist():
        one = several.sel(form=name).dropna("bits", subset=["error"])
        label, points = _LABELS.get(str(name), str(name)), (one.bits.values, one.error.values)
        if name == "bits":
            # Larger and open, so that the points of the other form show inside.
            look = {"colour": PALETTE["vermilion"], "marker": "s", "size": 10, "hollow": True, "order": 0}
        else:
            look = {"colour": PALETTE["blue"], "marker": "o", "order": 1}
        marks.append(Curve(*points, errors=one.standard_error.values, line=0, label=label, **look))
    first = several.error.isel(form=0).values
    fitted = np.isfinite(first) & (bits >= float(dataset.attrs.get("fit_from", 0)))
    level, name = np.nan, "$N^{−1/2}$"
    if "predicted" in dataset:
        level, name = float(dataset.predicted), "linear noise, nothing fitted"
    elif fitted.sum() > 1:
        level = np.exp(np.mean(np.log(first[fitted] * np.sqrt(bits[fitted]))))
    if np.isfinite(level):
        ends = np.array([bits.min() / 1.5, bits.max() * 1.5])
        line = {"line": 1.2, "dashes": (4, 3), "order": -0.5, "label": name}
        marks.append(Curve(ends, level / np.sqrt(ends), PALETTE["grey"], **line))
    axes = Axis("semantic bits N", log=True), Axis("|Δm|, finite network − mean field", log=True)
    return Display(marks, *axes, "inside" if legend else "", size=(5.6, 4.2)).plot(ax)


def finite_size_steps(dataset: xr.Dataset, ax: Axes | None = None, *, legend: bool = True) -> Axes:
    """√N |Δm| at every step for several N, and what linear noise predicts for all of them.

    Arguments:
        dataset: `by_step` [bits, step] or [form, bits, step], of which the first form is drawn; `predicted_by_step`
            [step] and `predicted_error` [step], the standard error of the points.

    Example:
        >>> steps = {"predicted_by_step": ("step", [1.0, 2.0]), "predicted_error": ("step", [0.1, 0.1])}
        >>> coordinates = {"bits": [100], "step": [1, 2]}
        >>> found = xr.Dataset({"by_step": (("bits", "step"), [[0.1, 0.2]]), **steps}, coordinates)
        >>> finite_size_steps(found).get_xlabel()
        'step'
    """
    needed = {"by_step", "predicted_by_step", "predicted_error", "bits", "step"}
    if not isinstance(dataset, xr.Dataset) or not needed <= set(dataset.variables):
        raise fail("dataset", type(dataset).__name__, f"a Dataset with {', '.join(sorted(needed))}")
    one = dataset.isel(form=0) if "form" in dataset.dims else dataset
    steps, predicted = one.step.values, one.predicted_by_step.values
    marks: list[Mark] = [Curve(steps, predicted, PALETTE["grey"], line=1.6, order=-0.5, label="linear noise")]
    names = ("orange", "vermilion", "green", "blue", "purple", "sky", "black")
    for number, bits in enumerate(one.bits.values.tolist()):
        # Side by side where they agree.
        places = steps + 0.12 * (number - (one.sizes["bits"] - 1) / 2)
        values = np.sqrt(bits) * one.by_step.sel(bits=bits).values
        colour = PALETTE[names[number % len(names)]]
        name = f"N = {bits:,}".replace(",", " " if bits >= 10_000 else "")
        look = {"line": 0, "marker": "o", "size": 4.5, "label": name}
        marks.append(Curve(places, values, colour, errors=one.predicted_error.values, **look))
    top = 1.05 * float(np.nanmax([np.sqrt(one.bits) * one.by_step.max("step"), [predicted.max()] * one.sizes["bits"]]))
    axes = Axis("step", whole=True), Axis("√N |Δm|, root-mean-square", (0, top))
    return Display(marks, *axes, "inside" if legend else "", size=(5.6, 4.2)).plot(ax)

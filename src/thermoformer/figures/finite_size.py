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
    """|Δm| against N on logarithmic axes with standard errors, and the line N^−1/2.

    Arguments:
        dataset: `error` and `standard_error` [form, bits] or [bits]; entries that are nan are left out. The attribute
            `fit_from`, where there is one, says from which N on the line goes through the points.

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
    if fitted.sum() > 1:
        level = np.exp(np.mean(np.log(first[fitted] * np.sqrt(bits[fitted]))))
        ends = np.array([bits.min() / 1.5, bits.max() * 1.5])
        line = {"line": 1.2, "dashes": (4, 3), "order": -0.5, "label": "$N^{−1/2}$"}
        marks.append(Curve(ends, level / np.sqrt(ends), PALETTE["grey"], **line))
    axes = Axis("semantic bits N", log=True), Axis("|Δm|, finite network − mean field", log=True)
    return Display(marks, *axes, "inside" if legend else "", size=(5.6, 4.2)).plot(ax)

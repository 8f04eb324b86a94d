"""How far a finite network is from its mean field, against its size."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from .._validation import fail
from .style import PALETTE, axes_or_new, styled

_LOOKS = {
    "classes": {"color": PALETTE["blue"], "marker": "o", "label": "counts per class"},
    "bits": {"color": PALETTE["vermilion"], "marker": "s", "label": "every bit drawn", "markerfacecolor": "none"},
}


@styled
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
    ax = axes_or_new(ax, size=(5.6, 4.2))
    several = dataset if "form" in dataset.dims else dataset.expand_dims(form=["classes"])
    bits = several.bits.values.astype(float)
    ax.set_xscale("log")
    ax.set_yscale("log")
    for name in several.form.values.tolist():
        one = several.sel(form=name)
        known = np.isfinite(one.error.values)
        look = _LOOKS.get(str(name), {"marker": "^", "label": str(name)})
        bars = {"linestyle": "none", "capsize": 3, "elinewidth": 1.2, "zorder": 3}
        if name == "bits":
            # Larger and open, so that the points of the other form show inside.
            bars |= {"markersize": 10, "markeredgewidth": 1.4}
        ax.errorbar(bits[known], one.error.values[known], one.standard_error.values[known], **look, **bars)
    first = several.isel(form=0)
    fitted = np.isfinite(first.error.values) & (bits >= float(dataset.attrs.get("fit_from", 0)))
    if fitted.sum() > 1:
        level = np.exp(np.mean(np.log(first.error.values[fitted] * np.sqrt(bits[fitted]))))
        ends = np.array([bits.min() / 1.5, bits.max() * 1.5])
        line = {"color": PALETTE["grey"], "linestyle": (0, (4, 3)), "linewidth": 1.2, "zorder": 2}
        ax.plot(ends, level / np.sqrt(ends), label="$N^{−1/2}$", **line)
    ax.set_xlabel("semantic bits N")
    ax.set_ylabel("|Δm|, finite network − mean field")
    if legend:
        ax.legend(fontsize=11)
    return ax

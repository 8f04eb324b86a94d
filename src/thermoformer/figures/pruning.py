"""Heads pruned from a trained network: what a score says against what is lost, and accuracy as heads go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .._validation import fail, real_array
from .style import PALETTE, axes_or_new, styled

# Layers by colour and marker, so that neither is needed alone.
_LAYERS = (("blue", "o"), ("vermilion", "s"), ("green", "^"), ("purple", "D"))
# One look per order in every figure; dashed: none that a score would take.
ORDER_STYLES: dict[str, dict[str, Any]] = {
    "theory": {"color": PALETTE["blue"], "marker": "o"},
    "evidence": {"color": PALETTE["green"], "marker": "^"},
    "gradient": {"color": PALETTE["vermilion"], "marker": "s"},
    "trained": {"color": PALETTE["purple"], "marker": "D"},
    "theory, rescored": {"color": PALETTE["blue"], "marker": "o", "linestyle": ":", "markerfacecolor": "white"},
    "evidence, rescored": {"color": PALETTE["green"], "marker": "^", "linestyle": ":", "markerfacecolor": "white"},
    "theory, descending": {"color": PALETTE["sky"], "marker": "v", "linestyle": "--"},
    "search": {"color": PALETTE["black"], "marker": "*", "linestyle": "--"},
}
_OTHER = {"color": PALETTE["orange"], "marker": "P"}
ORDER_LABELS = {
    "theory": "theory's U, lowest first",
    "evidence": "evidence, lowest first",
    "gradient": "gradient, lowest first",
    "trained": "trained U, lowest first",
    "theory, rescored": "theory's U, solved again",
    "evidence, rescored": "evidence, solved again",
    "theory, descending": "theory's U, highest first",
    "search": "best set on validation",
}


@styled
def score_against_drop(
    scores: Any,
    drops: Any,
    ax: Axes | None = None,
    *,
    layers: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    errors: Any = None,
    legend: bool = True,
) -> Axes:
    """What is lost without each head against its score, one point per head.

    Arguments:
        scores, drops: [head]; drops of the accuracy in percent points.
        layers: of each head, for colours and markers.
        names: written beside the points.
        errors: standard errors of the drops, [head].

    Example:
        >>> ax = score_against_drop([0.2, 1.0], [1.0, 8.0], layers=[0, 1], names=["0.0", "1.0"])
        >>> ax.get_xlabel(), len(ax.texts)
        ('score of the head', 2)
    """
    x, y = real_array("scores", scores, ("head",)), real_array("drops", drops, ("head",))
    if len(x) != len(y):
        raise fail("drops", f"{len(y)} heads", f"{len(x)}, as many as scores")
    for name, given in (("layers", layers), ("names", names), ("errors", errors)):
        if given is not None and len(given) != len(x):
            raise fail(name, f"{len(given)} heads", f"{len(x)}, as many as scores")
    ax = axes_or_new(ax)
    of_layer = np.zeros(len(x), int) if layers is None else np.asarray(layers)
    spread = np.zeros(len(x)) if errors is None else np.asarray(errors, float)
    for number, layer in enumerate(sorted(set(of_layer.tolist()))):
        here = of_layer == layer
        colour, marker = _LAYERS[number % len(_LAYERS)]
        look = {"color": PALETTE[colour], "marker": marker, "linestyle": "none", "capsize": 2, "elinewidth": 1.2}
        ax.errorbar(x[here], y[here], spread[here], label=f"layer {layer}", **look)
    ax.axhline(0, color=PALETTE["grey"], linewidth=0.8, zorder=0)
    if names is not None:
        for place, name, aside in zip(zip(x, y, strict=True), names, _free_places(x, y), strict=True):
            across, along = "left" if aside[0] > 0 else "right", "bottom" if aside[1] > 0 else "top"
            text = {"xytext": aside, "textcoords": "offset points", "fontsize": 9}
            ax.annotate(str(name), place, **text, ha=across, va=along)
    ax.margins(x=0.12, y=0.12)
    ax.set_xlabel("score of the head")
    ax.set_ylabel("accuracy lost, points")
    if legend and layers is not None:
        ax.legend()
    return ax


def _free_places(x: np.ndarray, y: np.ndarray) -> list[tuple[float, float]]:
    """Beside each point, where its name is furthest from other points and from the names set so far; in points."""
    panel = np.array([250.0, 170.0])  # about the size of a panel, in points
    ends = np.stack([x, y], axis=1)
    ends = (ends - ends.min(axis=0)) / np.where(np.ptp(ends, axis=0) > 0, np.ptp(ends, axis=0), 1) * panel
    corners = ((5.0, 4.0), (-5.0, 4.0), (5.0, -4.0), (-5.0, -4.0))
    taken, chosen = [], []
    for index, end in enumerate(ends):
        # The middle of a short name, from its corner.
        middles = [end + np.array([3.0, 2.2]) * corner for corner in corners]
        others = np.array([*np.delete(ends, index, axis=0), *taken]).reshape(-1, 2)
        # Names are wider than they are high; the first corner where there is room is the usual one.
        room = [min([np.hypot(*((other - middle) / (2, 1))) for other in others] + [12.0]) for middle in middles]
        best = int(np.argmax(room))
        taken.append(middles[best])
        chosen.append(corners[best])
    return chosen


@styled
def pruning_curves(curves: xr.Dataset, ax: Axes | None = None, *, legend: bool = True) -> Axes:
    """Accuracy in percent as heads go in several orders, beside random orders.

    Arguments:
        curves: `accuracy` [order, removed], nan where there is none. Drawn as well when there: `error` of the same
            shape as bars, and `random_mean` and `random_spread` [removed] as a grey band.

    Example:
        >>> import xarray as xr
        >>> accuracy = ("order", "removed"), [[0.85, 0.8], [0.85, 0.7]]
        >>> curves = xr.Dataset({"accuracy": accuracy}, {"order": ["theory", "gradient"], "removed": [0, 1]})
        >>> [text.get_text() for text in pruning_curves(curves).get_legend().get_texts()]
        ["theory's U, lowest first", 'gradient, lowest first']
    """
    if not isinstance(curves, xr.Dataset) or set(curves.get("accuracy", xr.DataArray()).dims) != {"order", "removed"}:
        raise fail("curves", type(curves).__name__, "an xarray Dataset with accuracy [order, removed]")
    ax = axes_or_new(ax, size=(5.2, 4.2))
    removed = curves.removed.values.astype(float)
    if "random_mean" in curves:
        mean, spread = 100 * curves.random_mean.values, 100 * curves.random_spread.values
        there = np.isfinite(mean)
        where, mean, spread = removed[there], mean[there], np.nan_to_num(spread[there])
        grey = PALETTE["grey"]
        ax.fill_between(where, mean - spread, mean + spread, color=grey, alpha=0.25, linewidth=0)
        ax.plot(where, mean, color=grey, label="random orders, ± one s.d.")
    for order in curves.order.values.tolist():
        one = curves.sel(order=order)
        there = np.isfinite(one.accuracy.values)
        if not there.any():
            continue
        bars = 100 * one.error.values[there] if "error" in curves else None
        look = {"label": ORDER_LABELS.get(order, order), "capsize": 2, "elinewidth": 1.0, "linewidth": 1.5}
        ax.errorbar(removed[there], 100 * one.accuracy.values[there], bars, **look, **ORDER_STYLES.get(order, _OTHER))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("heads removed")
    ax.set_ylabel("accuracy, %")
    if legend:
        ax.legend()
    return ax

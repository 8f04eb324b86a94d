"""How much of the labels lies in the leading principal components of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .._validation import fail, real_array
from .display import Axis, Band, Curve, Display, Mark
from .style import PALETTE

_COLOURS = ("blue", "grey", "vermilion", "green")


def overlap_display(overlaps: Mapping[str, Any]) -> Display:
    """The picture of `label_overlap`, whose arguments these are."""
    if not overlaps:
        raise fail("overlaps", "nothing", "at least one array [component] or [seed, component]")
    most, highest = 1, 0.0
    marks: list[Mark] = []
    for index, (name, values) in enumerate(overlaps.items()):
        values = np.atleast_2d(real_array(f"overlaps[{name!r}]", values))
        if values.ndim != 2:
            raise fail(f"overlaps[{name!r}]", f"shape {values.shape}", "[component] or [seed, component]")
        seeds, components = values.shape
        shares = np.cumsum(values**2, axis=1)
        most, highest = max(most, components), max(highest, float(shares.mean(axis=0).max()))
        numbers, mean = np.arange(components + 1), np.append(0, shares.mean(axis=0))
        colour = PALETTE[_COLOURS[index % len(_COLOURS)]]
        if seeds > 1:
            spread = np.append(0, shares.std(axis=0, ddof=1))
            marks.append(Band(numbers, mean - spread, mean + spread, colour, 0.15))
        marks.append(Curve(numbers, mean, colour, marker="o", size=3, label=name, order=1))
    across = Axis("leading principal components of K", (0, most + 0.6), ticks=[1, *range(5, most + 1, 5)])
    about = "share of the labels in the leading components of K"
    up = Axis("share of the labels", (0, min(1.02, 1.1 * highest or 1.0)))
    return Display(marks, across, up, "ends", size=(5.5, 3.4), about=about)


def label_overlap(overlaps: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Share of the labels in the first components of one or more kernels: the sum of (v_k · y)²/P, which ends at 1.

    Arguments:
        overlaps: by name, |v_k · y|/√P [component] or [seed, component], as `label_alignment` gives them; seeds give
            the mean with a band of one standard deviation.

    Example:
        >>> ax = label_overlap({"N = 10": [0.8, 0.6], "GP": [0.3, 0.4]})
        >>> ax.lines[0].get_ydata().round(2).tolist(), [text.get_text() for text in ax.texts]
        ([0.0, 0.64, 1.0], ['N = 10', 'GP'])
    """
    return overlap_display(overlaps).plot(ax)

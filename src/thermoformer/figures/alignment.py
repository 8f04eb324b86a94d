"""How much of the labels lies along each principal component of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .._validation import fail, real_array
from .display import Axis, Bars, Display, Mark
from .style import PALETTE

_COLOURS = ("blue", "grey", "vermilion", "green")


def overlap_display(overlaps: Mapping[str, Any]) -> Display:
    """The picture of `label_overlap`, whose arguments these are."""
    if not overlaps:
        raise fail("overlaps", "nothing", "at least one array [component] or [seed, component]")
    width, most = 0.8 / len(overlaps), 1
    marks: list[Mark] = []
    for index, (name, values) in enumerate(overlaps.items()):
        values = np.atleast_2d(real_array(f"overlaps[{name!r}]", values))
        if values.ndim != 2:
            raise fail(f"overlaps[{name!r}]", f"shape {values.shape}", "[component] or [seed, component]")
        seeds, components = values.shape
        most = max(most, components)
        numbers, mean = np.arange(1, components + 1), values.mean(axis=0)
        spread = values.std(axis=0, ddof=1) if seeds > 1 else None
        notes = [f"component {number}, {name}: {value:.2f}" for number, value in zip(numbers, mean, strict=True)]
        places = numbers + (index - (len(overlaps) - 1) / 2) * width
        colour = PALETTE[_COLOURS[index % len(_COLOURS)]]
        marks.append(Bars(places, mean, width, colour, spread, label=name, notes=notes))
    across = Axis("principal component of K", (0.4, most + 0.6), ticks=[1, *range(5, most + 1, 5)])
    about = "overlap of the labels with the components of K"
    return Display(marks, across, Axis("overlap with the labels", (0, 1)), size=(5.5, 3.4), about=about)


def label_overlap(overlaps: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Overlap |v_k · y|/√P of the labels with the first components of one or more kernels, side by side.

    Arguments:
        overlaps: by name, either [component] or [seed, component]; seeds give bars of the mean with one standard
            deviation.

    Example:
        >>> ax = label_overlap({"N = 10": [0.9, 0.2], "GP": [0.3, 0.3]})
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['N = 10', 'GP']
    """
    return overlap_display(overlaps).plot(ax)

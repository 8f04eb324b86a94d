"""How much of the labels lies along each principal component of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .._validation import fail, real_array
from .style import PALETTE, axes_or_new, styled

_COLOURS = (PALETTE["blue"], PALETTE["grey"], PALETTE["vermilion"], PALETTE["green"])


@styled
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
    if not overlaps:
        raise fail("overlaps", "nothing", "at least one array [component] or [seed, component]")
    ax = axes_or_new(ax, size=(5.5, 3.4))
    width = 0.8 / len(overlaps)
    most = 1
    for index, (name, values) in enumerate(overlaps.items()):
        values = np.atleast_2d(real_array(f"overlaps[{name!r}]", values))
        if values.ndim != 2:
            raise fail(f"overlaps[{name!r}]", f"shape {values.shape}", "[component] or [seed, component]")
        seeds, components = values.shape
        most = max(most, components)
        positions = np.arange(1, components + 1) + (index - (len(overlaps) - 1) / 2) * width
        spread = values.std(axis=0, ddof=1) if seeds > 1 else None
        error_style = {"elinewidth": 0.8, "ecolor": PALETTE["black"]}
        colour = _COLOURS[index % len(_COLOURS)]
        ax.bar(positions, values.mean(axis=0), width, yerr=spread, error_kw=error_style, color=colour, label=name)
    ax.set_xlabel("principal component of K")
    ax.set_ylabel("overlap with the labels")
    ax.set_xlim(0.4, most + 0.6)
    ax.set_xticks([1, *range(5, most + 1, 5)])
    ax.set_ylim(0, 1)
    ax.legend()
    return ax

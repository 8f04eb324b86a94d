"""Numbers of several approaches side by side, group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .._validation import fail, one_of
from .display import Axis, Bars, Curve, Display, Level, Mark
from .style import PALETTE

# Theory, exact finite width and sampled networks look here as they do against width.
_COLOURS = ("blue", "black", "sky", "vermilion", "green")
_MARKERS = "oD^sv"


def grouped_points(
    values: Mapping[str, Any],
    groups: Sequence[str],
    ax: Axes | None = None,
    *,
    floors: Mapping[str, Any] | None = None,
    logarithmic: bool = False,
    colours: Sequence[str] = _COLOURS,
    legend: bool = True,
) -> Axes:
    """Series side by side in every group: the mean over seeds with one standard deviation, and every seed as a dot.

    Arguments:
        values: by series, [group] or [seed, group]; nan where a group has no such number.
        groups: the names of the groups.
        floors: by series, in the same shapes, what noise alone would show: a grey bar up to their mean.
        logarithmic: on a logarithmic axis the mean is the geometric one, and the deviation that of the logarithm.
        colours: names of colours in `PALETTE`, one per series or more.

    Example:
        >>> ax = grouped_points({"theory": [0.9, 0.8], "exact": [[0.8, 0.8], [1.0, 0.9]]}, ["plain", "skips"])
        >>> [label.get_text() for label in ax.get_xticklabels()]
        ['plain', 'skips']
    """
    if not values:
        raise fail("values", "nothing", "at least one series, [group] or [seed, group]")
    most = min(len(colours), len(_MARKERS))
    if len(values) > most:
        raise fail("values", f"{len(values)} series", f"at most {most}")
    count, step = len(groups), 0.72 / len(values)
    borders = np.arange(count - 1) + 0.5
    marks: list[Mark] = [Level(border, "#DADADA", line=0.6, upright=True, order=-1) for border in borders]
    for index, (name, series) in enumerate(values.items()):
        table = _table(f"values[{name!r}]", series, count, logarithmic)
        places = np.arange(count) + (index - (len(values) - 1) / 2) * step
        colour = PALETTE[one_of("colours", colours[index], tuple(PALETTE))]
        if floors is not None and name in floors:
            floor, _ = _middle(_table(f"floors[{name!r}]", floors[name], count, logarithmic), logarithmic)
            marks.append(Bars(places, floor, 0.9 * step, PALETTE["grey"], opacity=0.35, order=-0.5))
        middle, spread = _middle(table, logarithmic)
        there = np.isfinite(middle)
        several = len(table) > 1
        look: dict[str, Any] = {"line": 0, "marker": _MARKERS[index], "rim": PALETTE["black"], "order": 1}
        errors = spread[:, there] if several else None
        marks.append(Curve(places[there], middle[there], colour, errors, label=name, **look))
        if several:
            beside = np.broadcast_to(places + 0.3 * step, table.shape)
            marks.append(Curve(beside.ravel(), table.ravel(), colour, line=0, marker=".", size=4, opacity=0.7))
    across = Axis("", (-0.5, count - 0.5), ticks=range(count), names=[str(group) for group in groups])
    ax = Display(marks, across, Axis(log=logarithmic), "inside" if legend else "", size=(5.2, 3.6)).plot(ax)
    ax.tick_params(axis="x", length=0)
    return ax


def _middle(table: np.ndarray, logarithmic: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds [group], and how far one standard deviation reaches below and above it [2, group]."""
    scaled = np.log(table) if logarithmic else table
    mean = scaled.mean(axis=0)
    spread = scaled.std(axis=0, ddof=1) if len(table) > 1 else np.zeros_like(mean)
    if not logarithmic:
        return mean, np.stack([spread, spread])
    middle = np.exp(mean)
    return middle, np.stack([middle - np.exp(mean - spread), np.exp(mean + spread) - middle])


def _table(name: str, value: Any, groups: int, logarithmic: bool) -> np.ndarray:
    """Numbers [seed, group]; not finite means not there."""
    table = np.atleast_2d(np.asarray(value, dtype=float))
    if table.ndim != 2 or table.shape[1] != groups or not len(table):
        raise fail(name, f"shape {np.shape(value)}", f"[{groups}] or [seed, {groups}], one number per group")
    if logarithmic and (table <= 0).any():
        raise fail(name, f"{np.nanmin(table):g}", "numbers above 0 on a logarithmic axis")
    return table

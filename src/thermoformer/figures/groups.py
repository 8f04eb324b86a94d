"""Numbers of several approaches side by side, group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .._validation import fail, one_of
from .style import PALETTE, axes_or_new, styled

# Theory, exact finite width and sampled networks look here as they do against width.
_COLOURS = ("blue", "black", "sky", "vermilion", "green")
_MARKERS = "oD^sv"


@styled
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
    groups = [str(group) for group in groups]
    ax = axes_or_new(ax, size=(5.2, 3.6))
    step = 0.72 / len(values)
    for index, (name, series) in enumerate(values.items()):
        table = _table(f"values[{name!r}]", series, len(groups), logarithmic)
        places = np.arange(len(groups)) + (index - (len(values) - 1) / 2) * step
        colour, marker = PALETTE[one_of("colours", colours[index], tuple(PALETTE))], _MARKERS[index]
        if floors is not None and name in floors:
            floor = _table(f"floors[{name!r}]", floors[name], len(groups), logarithmic)
            ax.bar(places, _middle(floor, logarithmic)[0], 0.9 * step, color=PALETTE["grey"], alpha=0.35, linewidth=0)
        middle, spread = _middle(table, logarithmic)
        there = np.isfinite(middle)
        ax.errorbar(
            places[there],
            middle[there],
            spread[:, there] if len(table) > 1 else None,
            color=colour,
            marker=marker,
            linestyle="none",
            capsize=3,
            elinewidth=1.2,
            markeredgecolor=PALETTE["black"],
            markeredgewidth=0.6,
            label=name,
            zorder=3,
        )
        if len(table) > 1:
            beside = np.broadcast_to(places + 0.3 * step, table.shape)
            ax.plot(beside.ravel(), table.ravel(), ".", color=colour, markersize=3.5, alpha=0.7, zorder=2)
    if logarithmic:
        ax.set_yscale("log")
    ax.set_xticks(range(len(groups)), groups)
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(-0.5, len(groups) - 0.5)
    for border in range(len(groups) - 1):
        ax.axvline(border + 0.5, color=PALETTE["grey"], alpha=0.25, linewidth=0.6, zorder=0)
    if legend:
        ax.legend()
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

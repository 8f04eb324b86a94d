"""Heads of pretrained transformers: how well a model does as heads go, by every method, and a map of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, ScalarFormatter

from .._validation import fail
from ..learning import HeadScores
from .style import DIVERGING, PALETTE, SEQUENTIAL, axes_or_new, styled

# Ours in strong colours and full lines.
_OURS: dict[str, dict[str, Any]] = {
    "evidence": {"color": PALETTE["blue"], "marker": "o"},
    "evidence_exact": {"color": PALETTE["green"], "marker": "D"},
    "evidence:once": {"color": PALETTE["sky"], "marker": "o", "markerfacecolor": "white"},
    "theory": {"color": PALETTE["vermilion"], "marker": "^"},
    "theory:again": {"color": PALETTE["orange"], "marker": "^", "markerfacecolor": "white"},
}
# Others in greys, told apart by dashes and markers; the lightest still has a contrast of 3 to 1 on white.
_GREYS = ("#4D4D4D", "#6E6E6E", "#8C8C8C")
_DASHES: tuple[Any, ...] = ((0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = "sPvXd<>*hp"
METHOD_LABELS = {
    "evidence": "evidence, scored again",
    "evidence:once": "evidence, scored once",
    "evidence:again": "evidence, scored again",
    "evidence_exact": "exact evidence, scored again",
    "evidence_exact:once": "exact evidence, scored once",
    "theory": "theory's U",
    "theory:again": "theory's U, solved again",
    "gradient": "gradient",
    "gradient:again": "gradient, scored again",
    "gradient_by_layer": "gradient by layer",
    "gradient_by_layer:again": "gradient by layer, scored again",
    "magnitude": "weights' norm",
    "ablation": "one by one",
    "ablation:again": "one by one, scored again",
    "deepest": "deepest first",
    "shallowest": "shallowest first",
    "random": "random",
}
# Larger maps have no room for numbers in their cells.
_WIDEST_WITH_NUMBERS = 24


@styled
def head_pruning_curves(
    dataset: xr.Dataset, ax: Axes | None = None, *, penalty: float | str | None = None, legend: bool = True
) -> Axes:
    """Accuracy in percent, or perplexity on a logarithmic axis, against the share of heads removed.

    One line per method: the mean over draws of the data, with its standard error as a bar; evidence and theory in
    strong colours, what others do in grey. A dotted line shows the model with all its heads.

    Arguments:
        dataset: as `thermoformer.transformers.pruning_curve` gives it.
        penalty: of the probe, one of those in the dataset; the first where absent.
        legend: whether names are written on the right.

    Example:
        >>> import xarray as xr
        >>> value = ("rule", "seed", "removed"), [[[0.9, 0.8], [0.8, 0.8]], [[0.9, 0.5], [0.8, 0.6]]]
        >>> axes = {"rule": ["evidence", "random"], "seed": [0, 1], "fraction": ("removed", [0.0, 0.5])}
        >>> ax = head_pruning_curves(xr.Dataset({"value": value}, axes, {"measure": "accuracy"}))
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['evidence, scored again', 'random', 'all heads']
    """
    values = _values(dataset, penalty)
    measure = dataset.attrs.get("measure", "accuracy")
    scale = 100.0 if measure == "accuracy" else 1.0
    ax = axes_or_new(ax, size=(7.4, 4.4) if legend else (5.2, 4.2))
    share = 100 * dataset.fraction.values
    draws = values.sizes["seed"]
    lines: dict[str, Any] = {}
    for name, look in _looks(dataset.rule.values.tolist()).items():
        points = scale * values.sel(rule=name).transpose("seed", "removed").values
        error = points.std(axis=0, ddof=1) / np.sqrt(draws) if draws > 1 else None
        label = METHOD_LABELS.get(name, name)
        lines[name] = ax.errorbar(share, points.mean(axis=0), error, label=label, capsize=2, **look)
    whole = scale * float(values.isel(removed=0).mean())
    level = ax.axhline(whole, color=PALETTE["black"], linestyle=":", linewidth=1.3, zorder=1, label="all heads")
    ax.set_xlabel("heads removed")
    ax.xaxis.set_major_formatter(PercentFormatter(decimals=0))
    ax.set_xticks(share)
    ax.set_xlim(min(share) - 2, max(share) + 2)
    spread = f"mean ± standard error of {draws} draws" if draws > 1 else "one draw"
    ax.set_ylabel(f"test {measure}{', %' if measure == 'accuracy' else ''}\n{spread}")
    if measure == "perplexity":
        _logarithmic(ax)
    if legend:
        # Ours were drawn last, to be on top; the legend keeps the order of the dataset.
        entries = [lines[name] for name in dataset.rule.values.tolist()] + [level]
        ax.legend(handles=entries, loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=3.2)
    return ax


def _logarithmic(ax: Axes) -> None:
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    # Within a decade or two a reader needs more numbers than powers of ten.
    if high / low < 200:
        steps = (1, 2, 5) if high / low > 20 else (1, 1.5, 2, 3, 5, 7)
        ax.yaxis.set_major_locator(LogLocator(subs=steps) if high / low > 3 else MaxNLocator(5))
        ax.yaxis.set_major_formatter(ScalarFormatter())
        ax.yaxis.set_minor_formatter(NullFormatter())


def _values(dataset: xr.Dataset, penalty: float | str | None) -> xr.DataArray:
    """The values [rule, seed, removed] of one penalty."""
    expected = "an xarray Dataset with value [rule, seed, removed], as `pruning_curve` gives it"
    if not isinstance(dataset, xr.Dataset):
        raise TypeError(str(fail("dataset", f"a {type(dataset).__name__}", expected)))
    values = dataset.get("value", xr.DataArray(0.0))
    if set(values.dims) - {"penalty"} != {"rule", "seed", "removed"} or "fraction" not in dataset:
        raise fail("dataset", f"variables {', '.join(map(str, dataset.variables))}", expected)
    if "penalty" not in values.dims:
        if penalty is not None:
            raise fail("penalty", penalty, "none: there is no probe in the dataset")
        return values
    known = [str(name) for name in values.penalty.values]
    chosen = known[0] if penalty is None else str(penalty)
    if chosen not in known:
        raise fail("penalty", repr(penalty), f"one of {', '.join(known)}")
    return values.isel(penalty=known.index(chosen))


def _looks(methods: list[str]) -> dict[str, dict[str, Any]]:
    """How each method is drawn; others first, so that ours lie on top."""
    others = [name for name in methods if name not in _OURS]
    looks: dict[str, dict[str, Any]] = {}
    for place, name in enumerate(others):
        looks[name] = {
            "color": _GREYS[place % len(_GREYS)],
            "marker": _MARKERS[place % len(_MARKERS)],
            "linestyle": _DASHES[place % len(_DASHES)],
            "linewidth": 1.1,
            "markersize": 4.5,
            "elinewidth": 0.8,
            "zorder": 2,
        }
    for name in reversed([name for name in methods if name in _OURS]):
        looks[name] = {**_OURS[name], "linewidth": 2.2, "markersize": 6.5, "elinewidth": 1.3, "zorder": 3}
    return looks


@styled
def head_score_map(
    scores: HeadScores,
    ax: Axes | None = None,
    *,
    removed: Sequence[tuple[int, int]] = (),
    label: str = "score of the head",
) -> Axes:
    """Scores as a map of layers and heads, with the numbers in it; heads that are removed are crossed out.

    Colours follow the rank of a score, since scores often differ by orders of magnitude; red is above zero and blue
    below where both occur.

    Arguments:
        scores: as `thermoformer.transformers.score_heads` gives them.
        removed: pairs (layer, head) to cross out.
        label: what the scores are.

    Example:
        >>> scores = HeadScores(((0, 0), (0, 1), (1, 0), (1, 1)), np.array([0.1, 2.0, -0.3, 4.0]))
        >>> ax = head_score_map(scores, removed=[(1, 0)])
        >>> ax.get_ylabel(), [text.get_text() for text in ax.texts]
        ('layer', ['0.1', '2', '−0.3', '4'])
    """
    if not isinstance(scores, HeadScores):
        raise TypeError(str(fail("scores", f"a {type(scores).__name__}", "HeadScores, as `score_heads` gives them")))
    strange = [head for head in removed if tuple(head) not in scores.labels]
    if strange:
        raise fail("removed", strange[0], "heads that have a score")
    if not np.isfinite(scores.values).all():
        raise fail("scores", "NaN or infinite scores", "finite numbers")
    table = scores.to_xarray().values
    layers, heads = table.shape
    ax = axes_or_new(ax, size=(min(1.6 + 0.62 * heads, 16.0), min(1.3 + 0.46 * layers, 14.0)))
    shades, norm, colours = _shades(table)
    image = ax.imshow(shades, cmap=colours, norm=norm, aspect="auto")
    painted = image.to_rgba(shades)
    for layer, head in np.argwhere(np.isfinite(table)):
        dark = painted[layer, head, :3] @ (0.299, 0.587, 0.114) < 0.5
        ink = "white" if dark else "black"
        if (layer, head) in {tuple(one) for one in removed}:
            corners = [head - 0.42, head + 0.42], [layer - 0.38, layer + 0.38]
            for rise in (corners[1], corners[1][::-1]):
                ax.plot(corners[0], rise, color=ink, linewidth=0.9, alpha=0.75, scalex=False, scaley=False)
        if heads <= _WIDEST_WITH_NUMBERS:
            box = {"boxstyle": "square,pad=0.1", "facecolor": painted[layer, head], "edgecolor": "none"}
            text = _short(float(table[layer, head]))
            ax.text(head, layer, text, ha="center", va="center", fontsize=8, color=ink, bbox=box, zorder=4)
    ax.set_xticks(range(heads))
    ax.set_yticks(range(layers))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.set_title(label + (f"; × removed ({len(removed)} of {len(scores.labels)})" if len(removed) else ""), fontsize=10)
    return ax


def _shades(table: np.ndarray) -> tuple[np.ndarray, Normalize, str]:
    """Ranks with the sign of the score [layer, head], and their colours."""
    there = np.isfinite(table)
    found = table[there]
    shades = np.full(table.shape, np.nan)
    if (found < 0).any() and (found > 0).any():
        sizes = np.searchsorted(np.unique(np.abs(found)), np.abs(found)) + 1.0
        shades[there] = np.sign(found) * sizes
        # The strongest shades of this map leave no contrast for numbers.
        edge = 1.25 * sizes.max()
        return shades, TwoSlopeNorm(0, -edge, edge), DIVERGING
    shades[there] = np.searchsorted(np.unique(found), found)
    return shades, Normalize(0, max(float(shades[there].max()), 1.0)), SEQUENTIAL


def _short(number: float) -> str:
    """Two or three digits, in as few characters as there are."""
    size = abs(number)
    if size >= 1e5 or (0 < size < 1e-3):
        digits, _, power = f"{number:.0e}".partition("e")
        text = f"{digits}e{int(power)}"
    else:
        text = f"{number:.0f}" if size >= 100 else f"{number:.2g}"
    return text.replace("-", "−")

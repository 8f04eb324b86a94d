"""A map of the scores of a pretrained transformer's heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.image import AxesImage

from .._validation import fail
from ..learning import HeadScores
from .style import DIVERGING, SEQUENTIAL, axes_or_new, ink_on, styled

# Larger maps have no room for numbers in their cells.
_WIDEST_WITH_NUMBERS = 24
_MOST_TICKS = 7


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
    below where both occur. The bar beside the map has scores at their ranks.

    Arguments:
        scores: as `thermoformer.transformers.score_heads` gives them.
        removed: pairs (layer, head) to cross out, in the order of removal, which their upper left corners say from 1.
        label: what the scores are.

    Example:
        >>> scores = HeadScores(((0, 0), (0, 1), (1, 0), (1, 1)), np.array([0.1, 2.0, -0.3, 4.0]))
        >>> ax = head_score_map(scores, removed=[(1, 0)])
        >>> ax.get_ylabel(), [text.get_text() for text in ax.texts]
        ('layer', ['0.1', '2', '−0.3', '4', '1'])
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
    numbered = heads <= _WIDEST_WITH_NUMBERS
    for layer, head in np.argwhere(np.isfinite(table)) if numbered else ():
        box = {"boxstyle": "square,pad=0.1", "facecolor": painted[layer, head], "edgecolor": "none"}
        look = {"fontsize": 8, "color": ink_on(painted[layer, head]), "bbox": box, "zorder": 4}
        ax.text(head, layer, _short(float(table[layer, head])), ha="center", va="center", **look)
    for step, (layer, head) in enumerate(removed, 1):
        ink = ink_on(painted[layer, head])
        corners = [head - 0.42, head + 0.42], [layer - 0.38, layer + 0.38]
        for rise in (corners[1], corners[1][::-1]):
            ax.plot(corners[0], rise, color=ink, linewidth=0.9, alpha=0.75, scalex=False, scaley=False)
        if numbered:
            box = {"boxstyle": "square,pad=0.1", "facecolor": painted[layer, head], "edgecolor": "none"}
            look = {"fontsize": 6.5, "fontweight": "bold", "color": ink, "bbox": box, "zorder": 4}
            ax.text(head - 0.46, layer - 0.45, str(step), ha="left", va="top", **look)
    _bar(ax, image, shades, table)
    ax.set_xticks(range(heads))
    ax.set_yticks(range(layers))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.set_title(label + (f"; × removed ({len(removed)} of {len(scores.labels)})" if len(removed) else ""), fontsize=10)
    return ax


def _bar(ax: Axes, image: AxesImage, shades: np.ndarray, table: np.ndarray) -> None:
    """A bar of the shades that occur, with the lowest, some middle and the highest score."""
    there = np.isfinite(table)
    ranks, places = np.unique(shades[there], return_index=True)
    chosen = np.unique(np.linspace(0, len(ranks) - 1, _MOST_TICKS).round().astype(int))
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02, fraction=0.04, label="score, by rank")
    bar.set_ticks(ranks[chosen].tolist(), labels=[_short(float(score)) for score in table[there][places[chosen]]])
    bar.ax.set_ylim(ranks[0], max(ranks[-1], ranks[0] + 1))
    bar.outline.set_visible(False)  # type: ignore[operator]


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

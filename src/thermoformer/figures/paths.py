"""The paths of a network as a graph: bands from the input through the heads to the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from .._validation import fail
from ..learning import Architecture, path_scores
from .ribbons import Ribbons, numbered_heads, ribbons_of
from .style import INK, axes_or_new, colours_for, styled

# Past this many paths colours repeat, and a legend would no longer tell them apart.
_MOST_IN_LEGEND = 9
# Nodes above each other that still have room for a name, and those whose names have room for the usual size.
_MOST_NAMED_NODES, _MOST_LARGE_NAMES = 12, 4
# Longer legends take two columns, where labels are short enough for it.
_LONGEST_COLUMN, _LONGEST_LABEL = 3, 26


@styled
def path_graph(
    architecture: Architecture,
    order_parameter: Any,
    head_names: Sequence[Sequence[str]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The paths from input to output through the heads, each as thick as its U_ππ.

    A path that passes a layer by goes through a node of its own, "skip". Past nine paths there is no legend, past
    twelve heads in a layer no names.

    Arguments:
        architecture: of the network.
        order_parameter: U [path, path], or [output and path, output and path]: U_ππ is then summed over outputs.
        head_names: one name per head, by layer; numbers where absent, as in `Architecture.path_names`.

    Example:
        >>> from thermoformer.learning import Architecture
        >>> ax = path_graph(Architecture((2, 1), 10), [[2.0, -0.5], [-0.5, 1.0]], [["good", "random"], ["uniform"]])
        >>> [text.get_text() for text in ax.texts]
        ['input', '1.1 good', '1.2 random', '2.1 uniform', 'output']
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['good→uniform  2', 'random→uniform  1']
    """
    if not isinstance(architecture, Architecture):
        raise TypeError(str(fail("architecture", f"a {type(architecture).__name__}", "an Architecture")))
    scores = path_scores(architecture, order_parameter)
    path_names = architecture.path_names(head_names)
    numbers = [[str(head) for head in range(count)] for count in architecture.heads]
    names = numbered_heads(head_names) if head_names else numbers
    if architecture.skip:
        names = [["skip", *layer] for layer in names]
    # Skips are −1 among the heads, and first among the nodes.
    found = ribbons_of(architecture.path_heads() + architecture.skip, names, scores, path_names)

    ax = axes_or_new(ax, size=(5.0, 3.8))
    for (x, low, high), label, colour in zip(found.ribbons, found.labels, colours_for(len(scores)), strict=True):
        ax.fill_between(x, low, high, color=colour, alpha=0.8, linewidth=0, label=label)
    _nodes(ax, found)
    ax.set(xticks=[], yticks=[], xlim=(-0.02, found.columns - 0.98), ylim=(-found.tallest / 2, found.tallest / 2))
    ax.spines[:].set_visible(False)
    meaning = r"as thick as $U_{\pi\pi}$"
    if len(scores) > _MOST_IN_LEGEND:
        ax.set_xlabel(meaning)
        return ax
    two = len(scores) > _LONGEST_COLUMN and max(map(len, found.labels)) <= _LONGEST_LABEL
    look = {"ncols": 2 if two else 1, "handlelength": 1.6, "labelspacing": 0.3, "columnspacing": 1.2}
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), title=meaning, title_fontsize=9.5, **look)
    return ax


def _nodes(ax: Axes, found: Ribbons) -> None:
    """Bars where paths meet, each with the name of its head above."""
    rim = [withStroke(linewidth=3, foreground="white", alpha=0.75)]
    for column, (spans, names) in enumerate(zip(found.spans, found.names, strict=True)):
        side = "left" if column == 0 else "right" if column == found.columns - 1 else "center"
        for (low, high), name in zip(spans, names, strict=True):
            # Caps that stand out keep a head visible whose paths have no weight.
            bar = {"color": INK, "linewidth": 3, "solid_capstyle": "projecting", "clip_on": False}
            ax.plot([column, column], [low, high], **bar)
            if len(spans) > _MOST_NAMED_NODES:
                continue
            size = 9.5 if len(spans) <= _MOST_LARGE_NAMES else 7.5
            place = {"xytext": (0, 2.5), "textcoords": "offset points", "ha": side, "va": "bottom"}
            ax.annotate(name, (column, high), fontsize=size, path_effects=rim, zorder=4, **place)

"""The paths of a network as a graph: bands from the input through the heads to the output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .._validation import fail
from ..learning import Architecture, path_scores
from .display import Axis, Band, Curve, Display, Mark, Text
from .style import INK, colours_for, short_number

# Past this many paths colours repeat, and a legend would no longer tell them apart.
_MOST_IN_LEGEND = 9
# Nodes above each other that still have room for a name, and those whose names have room for the usual size.
_MOST_NAMED_NODES, _MOST_LARGE_NAMES = 12, 4
# Longer legends take two columns, where labels are short enough for it.
_LONGEST_COLUMN, _LONGEST_LABEL = 3, 26
# Points of a band from one column to the next.
_STEPS = 24


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
        head_names: one name per head, by layer, as in `Architecture.path_names`; default: numbers.

    Example:
        >>> from thermoformer.learning import Architecture
        >>> ax = path_graph(Architecture((2, 1), 10), [[2.0, -0.5], [-0.5, 1.0]], [["good", "random"], ["uniform"]])
        >>> [text.get_text() for text in ax.texts]
        ['input', '0.0 good', '0.1 random', '1.0 uniform', 'output']
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
    return path_display(architecture.path_heads() + architecture.skip, names, scores, path_names).plot(ax)


def numbered_heads(head_names: Sequence[Sequence[str]]) -> list[list[str]]:
    """Names of heads by layer, each with the numbers of its layer and its place in it.

    Example:
        >>> numbered_heads([["good", "random"], ["uniform"]])
        [['0.0 good', '0.1 random'], ['1.0 uniform']]
    """
    return [[f"{layer}.{head} {name}" for head, name in enumerate(row)] for layer, row in enumerate(head_names)]


def path_display(
    path_nodes: np.ndarray, node_names: Sequence[Sequence[str]], scores: np.ndarray, path_names: Sequence[str]
) -> Display:
    """The paths as bands; heights are shares of the sum of all scores.

    Arguments:
        path_nodes: the node of each path in each layer, [path, layer]; every node has a path.
        node_names: of the nodes by layer, the first on top.
        scores: U_ππ, [path].
        path_names: one per path.
    """
    paths, layers = path_nodes.shape
    columns = [np.zeros(paths, int), *path_nodes.T, np.zeros(paths, int)]
    names = [["input"], *map(list, node_names), ["output"]]
    shares = scores / (float(scores.sum()) or 1.0)
    # At the output paths stand in the order of the heads they come from, so that they need not cross.
    orders = [np.arange(paths)] * (layers + 1) + [np.lexsort(path_nodes.T)]
    places = [
        _stack(shares, column, len(row), order) for column, row, order in zip(columns, names, orders, strict=True)
    ]
    labels = [f"{name}  {short_number(round(score, 2))}" for name, score in zip(path_names, scores, strict=True)]
    named = paths <= _MOST_IN_LEGEND
    marks: list[Mark] = []
    for path, (label, colour) in enumerate(zip(labels, colours_for(paths), strict=True)):
        x, low = _swing([lower[path] for lower, _ in places])
        marks.append(Band(x, low, low + shares[path], colour, 0.8, label, label=label if named else ""))
    for column, ((_, spans), row) in enumerate(zip(places, names, strict=True)):
        side = "left" if column == 0 else "right" if column == layers + 1 else "center"
        size = 9.5 if len(spans) <= _MOST_LARGE_NAMES else 7.5
        for (low, high), name in zip(spans, row, strict=True):
            marks.append(Curve([column, column], [low, high], INK, line=3))
            if len(spans) <= _MOST_NAMED_NODES:
                marks.append(Text(column, high, name, size=size, across=side, up="bottom", shift=(0, 2.5), rim=True))
    tallest = max(spans[0][1] - spans[-1][0] for _, spans in places) or 1.0
    meaning = r"as thick as $U_{\pi\pi}$"
    two = paths > _LONGEST_COLUMN and max(map(len, labels)) <= _LONGEST_LABEL
    return Display(
        marks,
        Axis("" if named else meaning, (-0.02, layers + 1.02), ticks=[]),
        Axis("", (-0.5 * tallest, 0.57 * tallest), ticks=[]),
        "below" if named else "",
        columns=2 if two else 1,
        heading=meaning,
        size=(5.0, 3.8),
        frame=False,
        about="paths through the heads, as thick as U",
    )


def _stack(
    shares: np.ndarray, column: np.ndarray, nodes: int, order: np.ndarray
) -> tuple[np.ndarray, list[tuple[float, float]]]:
    """Lower ends of all paths in one column, first head on top, and the span (low, high) of every node."""
    gap = 0.22 if nodes <= 4 else 1.0 / nodes
    top = (shares.sum() + gap * (nodes - 1)) / 2
    lower, spans = np.zeros(len(shares)), []
    for node in range(nodes):
        through = order[column[order] == node]
        ends = top - np.cumsum(shares[through])
        lower[through] = ends
        spans.append((float(ends[-1]), float(top)))
        top = ends[-1] - gap
    return lower, spans


def _swing(heights: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """A line that swings from column to column: x and y."""
    step = np.linspace(0, 1, _STEPS)
    swing = (1 - np.cos(np.pi * step)) / 2
    x = np.concatenate([column + step for column in range(len(heights) - 1)])
    return x, np.concatenate([start + (end - start) * swing for start, end in pairwise(heights)])

"""The paths of a network as bands from input to output: where each goes, for figures and for the explorer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .style import short_number

# Points of a band from one column to the next.
_STEPS = 24


class Ribbons(NamedTuple):
    """The paths as bands between columns of heads; heights are shares of the whole.

    Fields:
        labels: of the paths, with U_ππ.
        ribbons: x from 0, lower and upper edge of each path, [point].
        spans: (low, high) of every head by column, from the input to the output.
        names: of the heads by column.
    """

    labels: list[str]
    ribbons: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
    spans: list[list[tuple[float, float]]]
    names: list[list[str]]

    @property
    def columns(self) -> int:
        """Input, layers and output."""
        return len(self.spans)

    @property
    def tallest(self) -> float:
        """Height of the tallest column; 1 where all are flat."""
        return max(spans[0][1] - spans[-1][0] for spans in self.spans) or 1.0


def ribbons_of(
    path_nodes: np.ndarray, node_names: Sequence[Sequence[str]], scores: np.ndarray, path_names: Sequence[str]
) -> Ribbons:
    """Where the bands of all paths go.

    Arguments:
        path_nodes: the node of each path in each layer, [path, layer]; every node has a path.
        node_names: of the nodes by layer, the first on top.
        scores: U_ππ, [path].
        path_names: one per path.

    Example:
        >>> found = ribbons_of(np.array([[0], [1]]), [["good", "random"]], np.array([3.0, 1.0]), ["good", "random"])
        >>> found.labels, found.columns, found.spans[0]
        (['good  3', 'random  1'], 3, [(-0.5, 0.5)])
    """
    paths, layers = path_nodes.shape
    columns = [np.zeros(paths, int), *path_nodes.T, np.zeros(paths, int)]
    names = [["input"], *map(list, node_names), ["output"]]
    shares = scores / (float(scores.sum()) or 1.0)
    # At the output paths stand in the order of the heads they come from, so that they need not cross.
    orders = [np.arange(paths)] * (layers + 1) + [np.lexsort(path_nodes.T)]
    counts = map(len, names)
    places = [_stack(shares, *column) for column in zip(columns, counts, orders, strict=True)]
    return Ribbons(
        [f"{name}  {short_number(round(score, 2))}" for name, score in zip(path_names, scores, strict=True)],
        [_ribbon([lower[path] for lower, _ in places], shares[path]) for path in range(paths)],
        [spans for _, spans in places],
        names,
    )


def numbered_heads(head_names: Sequence[Sequence[str]]) -> list[list[str]]:
    """Names of heads by layer, each with the numbers of its layer and its place in it, from 1.

    Example:
        >>> numbered_heads([["good", "random"], ["uniform"]])
        [['1.1 good', '1.2 random'], ['2.1 uniform']]
    """
    return [[f"{layer}.{head} {name}" for head, name in enumerate(row, 1)] for layer, row in enumerate(head_names, 1)]


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


def _ribbon(lower: list[float], share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A path as a band that swings from column to column: x, and its lower and upper edge."""
    step = np.linspace(0, 1, _STEPS)
    swing = (1 - np.cos(np.pi * step)) / 2
    x = np.concatenate([column + step for column in range(len(lower) - 1)])
    pairs = pairwise(lower)
    low = np.concatenate([start + (end - start) * swing for start, end in pairs])
    return x, low, low + share

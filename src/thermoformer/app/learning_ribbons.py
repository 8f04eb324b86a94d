"""The paths of a network as bands from input to output: where each goes, for a figure and for a drawing."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ._learning_numbers import LearningPicture
from .pictures import short_number

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
        """Height of the tallest column."""
        return max(spans[0][1] - spans[-1][0] for spans in self.spans)


def ribbons_of(picture: LearningPicture) -> Ribbons:
    """Where the bands of all paths go."""
    paths, layers = picture.path_heads.shape
    columns = [np.zeros(paths, int), *picture.path_heads.T, np.zeros(paths, int)]
    nodes = [1, *(len(layer) for layer in picture.heads), 1]
    heads = (
        [f"{layer + 1}.{head + 1} {name}" for head, name in enumerate(row)] for layer, row in enumerate(picture.heads)
    )
    shares = picture.path_scores / (float(picture.path_scores.sum()) or 1.0)
    # At the output paths stand in the order of the heads they come from, so that they need not cross.
    orders = [np.arange(paths)] * (layers + 1) + [np.lexsort(picture.path_heads.T)]
    places = [_stack(shares, *column) for column in zip(columns, nodes, orders, strict=True)]
    scores = zip(picture.path_names, picture.path_scores, strict=True)
    return Ribbons(
        [f"{name}  {short_number(round(score, 2))}" for name, score in scores],
        [_ribbon([lower[path] for lower, _ in places], shares[path]) for path in range(paths)],
        [spans for _, spans in places],
        [["input"], *heads, ["output"]],
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


def _ribbon(lower: list[float], share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A path as a band that swings from column to column: x, and its lower and upper edge."""
    step = np.linspace(0, 1, _STEPS)
    swing = (1 - np.cos(np.pi * step)) / 2
    x = np.concatenate([column + step for column in range(len(lower) - 1)])
    pairs = pairwise(lower)
    low = np.concatenate([start + (end - start) * swing for start, end in pairs])
    return x, low, low + share

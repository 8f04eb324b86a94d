"""Heads and paths ranked by the order parameter (learning §5)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np

from .._validation import fail, gram_matrix, one_of, traced, true_or_false
from .architecture import Architecture, checked_architecture

if TYPE_CHECKING:
    import xarray


class HeadScores(eqx.Module):
    """One number per head.

    Fields:
        labels: (layer, head) of each score, counted from 0, layer 0 nearest the input.
        values: the scores, in the same order.

    Example:
        >>> import numpy as np
        >>> scores = head_scores(Architecture((2,), 10), np.diag([1.0, 4.0]))
        >>> scores[0, 1], scores[0, 0], scores.ascending()
        (1.0, 0.25, [(0, 0), (0, 1)])
    """

    labels: tuple[tuple[int, int], ...] = eqx.field(static=True)
    values: np.ndarray

    def __getitem__(self, label: tuple[int, int]) -> float:
        if label not in self.labels:
            raise fail("head", label, f"one of {', '.join(map(str, self.labels))}")
        value = self.values[self.labels.index(label)]
        return value if traced(value) else float(value)

    def ascending(self) -> list[tuple[int, int]]:
        """Heads from the lowest score (the first to prune) to the highest."""
        return [self.labels[index] for index in np.argsort(self.values, kind="stable")]

    def to_xarray(self) -> xarray.DataArray:
        """Scores [layer, head]; NaN where a layer has fewer heads than another."""
        import xarray

        layers = max(layer for layer, _ in self.labels) + 1
        table = np.full((layers, max(head for _, head in self.labels) + 1), np.nan)
        for label, value in zip(self.labels, self.values, strict=True):
            table[label] = value
        axes = {"layer": np.arange(table.shape[0]), "head": np.arange(table.shape[1])}
        return xarray.DataArray(table, coords=axes, dims=("layer", "head"), name="score")


def head_labels(arch: Architecture) -> tuple[tuple[int, int], ...]:
    """Every (layer, head), counted from 0."""
    return tuple((layer, head) for layer, count in enumerate(arch.heads) for head in range(count))


def paths_of_heads(arch: Architecture) -> np.ndarray:
    """1 where a head is on a path, else 0, [head, path]; heads in the order of `head_labels`."""
    paths = arch.path_heads()
    return np.stack([paths[:, layer] == head for layer, head in head_labels(arch)]).astype(float)


def head_name(head: tuple[int, int]) -> str:
    """How a head is called in data and figures: "0.3" is head 3 of layer 0."""
    return f"{head[0]}.{head[1]}"


def head_of(name: str) -> tuple[int, int]:
    """The head that `head_name` named."""
    layer, head = name.split(".")
    return int(layer), int(head)


def different_heads(name: str, arch: Architecture, value: Any) -> list[tuple[int, int]]:
    """Pairs (layer, head) of the network, each once."""
    expected = f"different pairs (layer, head) of a network with heads {arch.heads}"
    try:
        given = [(operator.index(layer), operator.index(head)) for layer, head in value]
    except (TypeError, ValueError) as error:
        raise fail(name, value, expected) from error
    if set(given) - set(head_labels(arch)) or len(set(given)) < len(given):
        raise fail(name, given, expected)
    return given


def heads_kept(arch: Architecture, removed: Sequence[tuple[int, int]], name: str = "heads") -> list[np.ndarray]:
    """The numbers of the heads that each layer keeps where the given ones are removed; every layer must keep one."""
    given = different_heads(name, arch, removed)
    kept = []
    for layer, count in enumerate(arch.heads):
        kept.append(np.array([head for head in range(count) if (layer, head) not in given], int))
        if len(kept[-1]) == 0:
            raise fail(name, f"all {count} heads of layer {layer}", "every layer to keep one head or more")
    return kept


def head_scores(arch: Architecture, order_parameter: Any, *, normalise: bool = True) -> HeadScores:
    """Σ |U_ππ'| over the pairs where π or π' uses the head, divided by the largest (learning §5).

    Arguments:
        order_parameter: U [path, path]; rows (output, path) with several outputs. With skips, a path that passes the
            layer by does not use its heads.
        normalise: divide by the largest score.

    Example:
        >>> import numpy as np
        >>> head_scores(Architecture((2, 1), 10), np.diag([3.0, 1.0])).values.round(3).tolist()
        [0.75, 0.25, 1.0]
    """
    checked_architecture(arch)
    normalise = true_or_false("normalise", normalise)
    gram = abs(gram_matrix("order_parameter", order_parameter, arch.order_sizes[0]))
    unused = 1 - np.tile(paths_of_heads(arch), arch.outputs)
    # All pairs, minus those in which neither path uses the head.
    scores = gram.sum() - ((unused @ gram) * unused).sum(axis=1)
    if normalise and (traced(scores) or scores.max() > 0):
        scores = scores / scores.max()
    return HeadScores(head_labels(arch), scores)


def path_scores(arch: Architecture, order_parameter: Any, *, kind: str = "diagonal") -> np.ndarray:
    """A score per path: its own weight U_ππ ("diagonal") or Σ_π' |U_ππ'| ("row"), summed over outputs.

    Example:
        >>> import numpy as np
        >>> path_scores(Architecture((2,), 10), np.array([[2.0, -1.0], [-1.0, 2.0]]), kind="row").tolist()
        [3.0, 3.0]
    """
    checked_architecture(arch)
    one_of("kind", kind, ("diagonal", "row"))
    gram = gram_matrix("order_parameter", order_parameter, arch.order_sizes[0])
    rows = gram.diagonal() if kind == "diagonal" else abs(gram).sum(axis=1)
    return rows.reshape(arch.outputs, -1).sum(axis=0)

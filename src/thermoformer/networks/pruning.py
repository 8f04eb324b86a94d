"""Pruning an `AttentionNetwork`: the order in which heads are removed, and the accuracy left (experiments §2).

Given its attention a network is a sum over paths, so every pruned network is a sum of the same path contributions: the
network runs once on the data for any number of head sets. `thermoformer.transformers` has functions of the same names
for pretrained models, which remove heads by surgery and run the model for every set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._keys import KeyLike, as_key, numpy_generator
from .._validation import labels_for, one_of, positive_integer
from ..learning.architecture import Architecture, checked_architecture
from ..learning.evidence import evidence_scores
from ..learning.kernels import checked_labels
from ..learning.network import order_parameter_from_weights
from ..learning.paths import PathFeatures
from ..learning.saddle import solve
from ..learning.scores import (
    HeadScores,
    accuracies_without,
    different_heads,
    head_labels,
    head_scores,
    heads_kept,
    path_factors,
)
from .attention_network import AttentionNetwork, checked_network

if TYPE_CHECKING:
    import xarray

Head = tuple[int, int]


def gradient_importance(network: AttentionNetwork, x: Any, labels: Any) -> HeadScores:
    """|∂ loss/∂ mask| of every head, averaged over examples, for a mask that multiplies the output of the head.

    This is the importance of Michel, Levy and Neubig (2019).

    Arguments:
        x: tokens [example, token, feature].
        labels: [example], or [example, output].

    Example:
        >>> from thermoformer.learning import prior_weights
        >>> arch, random = Architecture((2,), 5), np.random.default_rng(0)
        >>> weights = prior_weights(arch, 4, key=0)
        >>> useless = weights._replace(values=(weights.values[0].at[1].set(0.0),))
        >>> maps = random.normal(size=(1, 2, 3, 4))
        >>> x = random.normal(size=(6, 5, 4))
        >>> scores = gradient_importance(AttentionNetwork(arch, useless, maps, maps), x, np.ones(6))
        >>> scores[0, 0] > 0, scores[0, 1]
        (True, 0.0)
    """
    parts = np.asarray(checked_network("network", network).path_contributions(x))
    y = labels_for("labels", labels, len(parts), network.arch.outputs)
    residual = 2 * (parts.sum(axis=-1) - y)
    heads = network.arch.path_heads()
    slopes = []
    for layer, head in head_labels(network.arch):
        through = parts[..., heads[:, layer] == head].sum(axis=-1)
        # By example, the mean over outputs: the loss is a mean over both.
        slopes.append(np.abs((residual * through).reshape(len(y), -1).mean(axis=1)).mean())
    return HeadScores(head_labels(network.arch), np.array(slopes))


def trained_scores(network: AttentionNetwork) -> HeadScores:
    """`head_scores` of the order parameter that the network's own weights have (learning §5).

    Example:
        >>> from thermoformer.learning import prior_weights
        >>> arch = Architecture((2,), 5)
        >>> maps = np.ones((1, 2, 3, 4))
        >>> scores = trained_scores(AttentionNetwork(arch, prior_weights(arch, 4, key=0), maps, maps))
        >>> float(scores.values.max())
        1.0
    """
    checked_network("network", network)
    return head_scores(network.arch, order_parameter_from_weights(network.arch, network.weights))


def magnitude_scores(network: AttentionNetwork) -> HeadScores:
    """The norm of each head's value weights V, the commonest rule that needs no data.

    Example:
        >>> from thermoformer.learning import prior_weights
        >>> arch, maps = Architecture((2,), 5), np.ones((1, 2, 3, 4))
        >>> weights = prior_weights(arch, 4, key=0)
        >>> larger = weights._replace(values=(weights.values[0].at[1].multiply(9.0),))
        >>> magnitude_scores(AttentionNetwork(arch, larger, maps, maps)).ascending()
        [(0, 0), (0, 1)]
    """
    values = checked_network("network", network).weights.values
    norms = [np.linalg.norm(np.asarray(layer).reshape(len(layer), -1), axis=1) for layer in values]
    return HeadScores(head_labels(network.arch), np.concatenate(norms))


def removal_order(arch: Architecture, order: Sequence[Head]) -> list[Head]:
    """The heads of an order that can be removed one after another: the last head of a layer is kept.

    Arguments:
        order: (layer, head) pairs, the first to be removed first, as `HeadScores.ascending` gives them.

    Example:
        >>> removal_order(Architecture((2, 2), 5), [(1, 0), (1, 1), (0, 0), (0, 1)])
        [(1, 0), (0, 0)]
    """
    given = different_heads("order", checked_architecture(arch), order)
    left, gone = list(arch.heads), []
    for layer, head in given:
        if left[layer] > 1:
            left[layer] -= 1
            gone.append((layer, head))
    return gone


def random_orders(arch: Architecture, count: int, *, key: KeyLike) -> list[list[Head]]:
    """Random orders in which heads are removed; none empties a layer.

    Example:
        >>> [len(order) for order in random_orders(Architecture((4, 4), 5), 3, key=0)]
        [6, 6, 6]
    """
    labels, random = head_labels(checked_architecture(arch)), numpy_generator(as_key(key))
    drawn = [random.permutation(len(labels)) for _ in range(positive_integer("count", count))]
    return [removal_order(arch, [labels[index] for index in one]) for one in drawn]


def rescored_order(
    arch: Architecture, features: PathFeatures, labels: Any, *, temperature: float, score: str = "evidence"
) -> list[Head]:
    """The order in which heads are removed if the theory is solved, and the heads left are scored, after each removal.

    Arguments:
        features: of all paths.
        score: "evidence" for `evidence_scores`, or "order parameter" for `head_scores` of U.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> xi = rng.normal(size=(40, 3, 5))
        >>> feats = PathFeatures.from_attentioned_inputs(xi)
        >>> order = rescored_order(Architecture((3,), 20), feats, np.sign(xi[:, 1, 0]), temperature=0.1)
        >>> len(order), (0, 1) in order
        (2, False)
    """
    one_of("score", score, ("evidence", "order parameter"))
    y = checked_labels(arch, features, labels)
    gone: list[Head] = []
    while len(gone) < sum(arch.heads) - arch.layers:
        kept = heads_kept(arch, gone)
        smaller = arch.replace(heads=tuple(len(layer) for layer in kept))
        left = features.select(np.flatnonzero(path_factors(arch, gone)))
        solution = solve(smaller, left, y, temperature=temperature)
        if score == "evidence":
            scores = evidence_scores(smaller, left, y, temperature=temperature, solution=solution)
        else:
            scores = head_scores(smaller, solution.order_parameter)
        layer, head = removal_order(smaller, scores.ascending())[0]
        gone.append((layer, int(kept[layer][head])))
    return gone


@dataclass(frozen=True, eq=False)
class PruningCurve:
    """Accuracies as heads are removed one after another.

    Fields:
        heads: the heads removed, in order.
        accuracy: with none of them removed, with the first, with the first two, and so on.
        examples: how many examples each accuracy was measured on.
    """

    heads: tuple[Head, ...]
    accuracy: np.ndarray
    examples: int

    @property
    def error(self) -> np.ndarray:
        """The binomial standard error of each accuracy."""
        return np.sqrt(self.accuracy * (1 - self.accuracy) / self.examples)

    def to_xarray(self) -> xarray.Dataset:
        """`accuracy` and `error` against the number of heads removed."""
        import xarray

        data = {"accuracy": ("removed", self.accuracy), "error": ("removed", self.error)}
        return xarray.Dataset(data, {"removed": np.arange(len(self.accuracy))})


def pruning_curve(network: AttentionNetwork, order: Sequence[Head], x: Any, labels: Any) -> PruningCurve:
    """The accuracy of a network as its heads are removed in an order, each layer rescaled to the heads it has left.

    The last head of a layer is kept, so that a network of L layers loses at most all heads but L.

    Arguments:
        order: (layer, head) pairs, the first to be removed first.
        x: tokens [example, token, feature].
        labels: [example], +1 or −1, or [example, output].

    Example:
        >>> from thermoformer.learning import prior_weights
        >>> arch, random = Architecture((2, 2), 5), np.random.default_rng(0)
        >>> queries, keys = random.normal(size=(2, 2, 2, 3, 4))
        >>> network = AttentionNetwork(arch, prior_weights(arch, 4, key=0), tuple(queries), tuple(keys))
        >>> x = random.normal(size=(7, 6, 4))
        >>> curve = pruning_curve(network, trained_scores(network).ascending(), x, np.sign(network.predict(x)))
        >>> len(curve.heads), float(curve.accuracy[0])
        (2, 1.0)
    """
    gone = removal_order(checked_network("network", network).arch, order)
    accuracy = pruned_accuracies(network, [gone[:count] for count in range(len(gone) + 1)], x, labels)
    return PruningCurve(tuple(gone), accuracy, len(np.asarray(x)))


def pruned_accuracies(network: AttentionNetwork, removed: Sequence[Sequence[Head]], x: Any, labels: Any) -> np.ndarray:
    """The accuracy of a network without each of the given sets of heads; its paths are computed once.

    Arguments:
        removed: sets of (layer, head) pairs.
        x, labels: as in `pruning_curve`.

    Example:
        >>> from thermoformer.learning import prior_weights
        >>> arch, maps = Architecture((2,), 5), np.ones((1, 2, 3, 4))
        >>> network = AttentionNetwork(arch, prior_weights(arch, 4, key=0), maps, maps)
        >>> pruned_accuracies(network, [[], [(0, 0)], [(0, 1)]], np.ones((4, 3, 4)), np.ones(4)).shape
        (3,)
    """
    parts = np.asarray(checked_network("network", network).path_contributions(x))
    # Of several outputs the network has the axis before that of paths, results of the theory behind it.
    return accuracies_without(network.arch, np.moveaxis(parts, -1, 1), removed, labels)

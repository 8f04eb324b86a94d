"""Heads and paths ranked, and networks without some of their heads (learning §5, trained networks §2)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np

from .._notebook import Result, draw, short
from .._validation import fail, gram_matrix, instance, one_of, real_array, sequence, traced, true_or_false
from .architecture import Architecture, checked_architecture
from .kernels import check_new_examples
from .paths import PathFeatures
from .results import PathSum, Prediction, accuracies
from .saddle import Solution, solve

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes


class HeadScores(Result, eqx.Module):
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

    def summary(self) -> dict[str, Any]:
        """The number of heads, and those with the highest and the lowest score as layer.head."""
        found: dict[str, Any] = {"heads": len(self.labels)}
        if not traced(self.values):
            order = self.ascending()
            found |= {
                name: f"{head_name(head)} ({short(self[head])})"
                for name, head in (("highest", order[-1]), ("lowest", order[0]))
            }
        return found

    def plot(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draws a map of layers and heads.

        Arguments:
            ax: Axes to draw on; default: a new figure, which notebooks show.
            options: those of `figures.head_score_map`.
        """
        return draw("head_score_map", self, ax=ax, **options)


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


def path_factors(arch: Architecture, removed: Sequence[tuple[int, int]], name: str = "heads") -> np.ndarray:
    """The factor of each path when heads are removed: 0 through one of them, else the layers' rescaling."""
    factors = np.ones(arch.paths)
    for layer, (kept, heads) in enumerate(zip(heads_kept(arch, removed, name), arch.path_heads().T, strict=True)):
        scale = np.sqrt(arch.heads[layer] / len(kept))
        # A path that skips the layer, number −1, has neither its heads nor its scale.
        factors *= np.where(heads < 0, 1.0, scale * np.isin(heads, kept))
    return factors


class Ablation(PathSum, eqx.Module):
    """A result without some of its heads, nothing solved again: f(x) = Σ_π g_π w_π·ξ_π(x) (trained networks §2).

    Fields:
        architecture, temperature, order_parameter: of the whole network; U has rows and columns times g.
        whole: the result with all heads.
        heads: (layer, head) of the heads that are gone.
        factors: g_π, 0 for paths through one of them, else the rescaling of the layers to the heads they keep.
    """

    architecture: Architecture
    temperature: float
    order_parameter: np.ndarray
    whole: Any
    heads: tuple[tuple[int, int], ...] = eqx.field(static=True)
    factors: np.ndarray

    @property
    def token_width(self) -> int:
        """N0 of the training data."""
        return self.whole.token_width

    def predict(self, features: PathFeatures) -> Prediction:
        """Mean and variance of the output of the network that is left, for new examples [example, path, feature]."""
        check_new_examples(features, self.architecture.paths, self.token_width)
        return self.whole.predict(PathFeatures.from_attentioned_inputs(features.values * self.factors[None, :, None]))

    def path_readout(self) -> np.ndarray:
        """The readout g_π w_π of every path, [path, feature] (and output)."""
        readout = self.whole.path_readout()
        return readout * self.factors.reshape(-1, *(1,) * (readout.ndim - 1))


def without_heads(result: PathSum, heads: Sequence[tuple[int, int]]) -> Ablation:
    """A result without some of its heads: the same posterior, the paths that are left, and nothing solved again.

    This is what removing the heads from a network does to its output. For what a network with only the other heads
    would learn, solve again with `PathFeatures.select` (or see `head_scores` with method="solved again").

    Arguments:
        result: what `solve`, `gaussian_process`, `one_loop` or a sampler returns.
        heads: (layer, head) pairs, counted from 0. Every layer must keep one head; it is rescaled to those it keeps.

    Example:
        >>> xi = np.random.default_rng(0).normal(size=(30, 2, 8))
        >>> feats = PathFeatures.from_attentioned_inputs(xi)
        >>> solution = solve(Architecture((2,), 10), feats, np.sign(xi[:, 0, 0]), temperature=0.1)
        >>> rest = without_heads(solution, [(0, 1)])
        >>> bool(np.allclose(rest.predict(feats).mean, np.sqrt(2) * solution.path_contributions(feats)[:, 0]))
        True
    """
    arch = _checked_result("result", result).architecture
    factors = path_factors(arch, heads)
    outer = np.tile(factors, arch.outputs)
    order_parameter = result.order_parameter * np.outer(outer, outer)
    gone = tuple(different_heads("heads", arch, heads))
    return Ablation(arch, result.temperature, order_parameter, result, gone, factors)


def accuracies_without(
    arch: Architecture, contributions: Any, removed: Sequence[Sequence[tuple[int, int]]], labels: Any
) -> np.ndarray:
    """The accuracy of a sum over paths without each of the given sets of heads; all from one set of contributions.

    Arguments:
        contributions: c_π(x) [example, path] (and output), as `path_contributions` gives them.
        removed: sets of (layer, head) pairs.
        labels: ±1 [example], or [example, output], or class numbers.

    Example:
        >>> parts = np.array([[1.0, -2.0], [1.0, 3.0]])
        >>> accuracies_without(Architecture((2,), 5), parts, [[], [(0, 0)], [(0, 1)]], [1, 1]).tolist()
        [0.5, 0.5, 1.0]
    """
    sets = sequence("removed", removed, "a sequence of sets of (layer, head) pairs")
    factors = [path_factors(arch, heads, f"removed[{index}]") for index, heads in enumerate(sets)]
    parts = real_array("contributions", contributions)
    if parts.ndim < 2 or parts.shape[1] != arch.paths:
        raise fail("contributions", f"shape {parts.shape}", f"[example, {arch.paths}], one column per path")
    return accuracies_with_factors(parts, np.array(factors).reshape(-1, arch.paths), labels)


# Sets of heads whose outputs are computed at once.
_SETS_AT_ONCE = 256


def accuracies_with_factors(contributions: np.ndarray, factors: np.ndarray, labels: Any) -> np.ndarray:
    """The accuracy [set] of Σ_π g_π c_π(x) for every row g of factors [set, path], as in `accuracies_without`."""
    found = []
    for start in range(0, len(factors), _SETS_AT_ONCE):
        means = np.tensordot(factors[start : start + _SETS_AT_ONCE], contributions, axes=(1, 1))
        found.append(accuracies(means, labels))
    return np.concatenate([np.zeros(0), *found])


# Of a minimum that only a score is made of: looser than that of `solve`, which many examples take long to reach.
SCORE_TOLERANCE = 1e-6
SCORE_METHODS = ("order parameter", "predicted ablation", "solved again")


def head_scores(
    arch: Architecture,
    order_parameter: Any,
    *,
    method: str = "order parameter",
    features: PathFeatures | None = None,
    labels: Any = None,
    normalise: bool = True,
) -> HeadScores:
    """How much each head matters, by one of three questions.

    "order parameter": how large is U along its paths? Σ |U_ππ'| over the pairs where π or π' uses the head
    (learning §5). It needs no data, but U is large where ξ is small, so that it need not follow what a head does.
    "predicted ablation": what does this network lose without the head, nothing solved again (trained networks §2)?
    "solved again": what would a network that never had the head lose? Both are the mean squared error added on the
    given examples; a negative score favours removing the head.

    Arguments:
        order_parameter: U [path, path]; rows (output, path) with several outputs. With skips, a path that passes the
            layer by does not use its heads. The other methods need the result that it belongs to, in its place:
            "predicted ablation" of any kind, "solved again" one of `solve`.
        method: "order parameter", "predicted ablation" or "solved again".
        features, labels: validation examples, for the last two methods.
        normalise: divide by the largest score, if that is above 0.

    Example:
        >>> import numpy as np
        >>> head_scores(Architecture((2, 1), 10), np.diag([3.0, 1.0])).values.round(3).tolist()
        [0.75, 0.25, 1.0]
        >>> xi = np.random.default_rng(0).normal(size=(60, 2, 8))
        >>> feats, y = PathFeatures.from_attentioned_inputs(xi), np.sign(xi[:, 0, 0])
        >>> solution = solve(Architecture((2,), 10), feats[:30], y[:30], temperature=0.1)
        >>> held_out = {"features": feats[30:], "labels": y[30:]}
        >>> head_scores(solution.architecture, solution, method="predicted ablation", **held_out).ascending()
        [(0, 1), (0, 0)]
    """
    checked_architecture(arch)
    normalise = true_or_false("normalise", normalise)
    if one_of("method", method, SCORE_METHODS) == "order parameter":
        scores = _sums_of_order(arch, order_parameter)
    else:
        scores = _losses_without(arch, order_parameter, method, features, labels)
    if normalise and (traced(scores) or scores.max() > 0):
        scores = scores / scores.max()
    return HeadScores(head_labels(arch), scores)


def _sums_of_order(arch: Architecture, order_parameter: Any) -> Any:
    """Σ |U_ππ'| over the pairs with each head."""
    gram = abs(gram_matrix("order_parameter", order_parameter, arch.order_sizes[0]))
    unused = 1 - np.tile(paths_of_heads(arch), arch.outputs)
    # All pairs, minus those in which neither path uses the head.
    return gram.sum() - ((unused @ gram) * unused).sum(axis=1)


def _losses_without(arch: Architecture, result: Any, method: str, features: Any, labels: Any) -> np.ndarray:
    """The mean squared error on given examples without each head, minus that with all; infinite for an only head."""
    result = _checked_result("order_parameter", result)
    if result.architecture != arch:
        raise fail("order_parameter", f"a result of {result.architecture}", f"one of {arch}")
    if features is None or labels is None:
        name = "features" if features is None else "labels"
        raise fail(name, "None", f"validation examples with their labels, for method={method!r}")
    whole = result.predict(features).bias(labels)
    losses = []
    for head in head_labels(arch):
        if arch.heads[head[0]] == 1:
            losses.append(np.inf)
        elif method == "predicted ablation":
            losses.append(without_heads(result, [head]).predict(features).bias(labels))
        else:
            smaller, kept = solved_without(result, [head])
            losses.append(smaller.predict(features.select(kept)).bias(labels))
    return np.array(losses) - whole


def solved_without(solution: Solution, heads: Sequence[tuple[int, int]]) -> tuple[Solution, np.ndarray]:
    """`solve` on the training data of a solution without some heads, and the numbers of the paths that are left."""
    given = instance("solution", solution, Solution, "a Solution, as solve returns it").given
    if given is None:
        raise fail("solution", "one without its training data", "a Solution of solve, not traced")
    arch, temperature = solution.architecture, solution.temperature
    kept = np.flatnonzero(path_factors(arch, heads))
    smaller = arch.replace(heads=tuple(len(layer) for layer in heads_kept(arch, heads)))
    features, labels = given
    found = solve(smaller, features.select(kept), labels, temperature=temperature, tolerance=SCORE_TOLERANCE)
    return found, kept


def _checked_result(name: str, value: Any) -> PathSum:
    return instance(name, value, PathSum, "a result, as solve, gaussian_process or a sampler returns it")


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

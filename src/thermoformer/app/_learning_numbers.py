"""Numbers of the Learning view from attentioned inputs: the curve over widths, and one solution with all it says.

Everything but the search for the saddle is done in NumPy: it needs no compilation, and these matrices are small.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from .._validation import fail
from ..learning import (
    Architecture,
    PathFeatures,
    Solution,
    choose_form,
    head_scores,
    label_alignment,
    path_scores,
    solve,
)
from ._turn import learning_turn

# Widths of the curve, and fewer of them if each solution is expensive.
WIDTHS = (5, 10, 20, 50, 100, 300, 800, 2000)
FEW_WIDTHS = (5, 20, 100, 500, 2000)
# Operations of one Hessian above which it is expensive: the whole curve would take too long for a slider.
EXPENSIVE = 6e7
# Gradient at which the solution shown counts as found, and a point of the curve: accuracies are the same there.
TOLERANCE, CURVE_TOLERANCE = 1e-8, 1e-6
# Operations of one Hessian up to which Newton's method is used.
NEWTON_OPERATIONS = 2e10
# Up to this many paths the kernel stores pairs whatever the rank of the features (see `learning.choose_form`).
FEW_PATHS = 16
COMPONENTS = 30
# A heat map with more cells than pixels shows nothing more.
KERNEL_SHOWN = 100
MOST_STEPS = 1000
# Operations of one slice of a search, about a third of a second: then another session has its turn.
SLICE = 5e9
# Stored pairs of a user's arrays may take this much; many sessions share one machine.
PAIR_MEMORY = 100_000_000


@dataclass(frozen=True, eq=False)
class Data:
    """Training and test examples as paths see them.

    Fields:
        key: names the data among all others.
        xi, labels: training, [example, path, feature] and ±1 [example]; test_xi, test_labels: the same for testing.
        heads: names of the heads by layer.
        classes: what the labels −1 and +1 are called.
        form: of the kernel.
    """

    key: Hashable
    xi: np.ndarray
    labels: np.ndarray
    test_xi: np.ndarray
    test_labels: np.ndarray
    heads: tuple[tuple[str, ...], ...]
    classes: tuple[str, str] = ("−1", "+1")
    form: str = "pairs"

    def architecture(self, width: int) -> Architecture:
        """The network with these heads at one width."""
        return Architecture(tuple(len(layer) for layer in self.heads), width)


class Curve(NamedTuple):
    """Accuracy against width. Fields are those of `LearningPicture`."""

    widths: np.ndarray
    accuracies: np.ndarray
    curve_converged: np.ndarray


class Limit(NamedTuple):
    """The Gaussian process. Fields are those of `LearningPicture`."""

    limit_accuracy: float
    limit_log_evidence: float
    limit_overlaps: np.ndarray


@dataclass(frozen=True, eq=False)
class LearningPicture:
    """All that the Learning view shows.

    Fields:
        width, temperature: N and τ of the solution shown.
        widths, accuracies, curve_converged: test accuracy, from 0 to 1, over a fixed grid of widths, [width]; the
            widest of them where the others are still being solved.
        limit_accuracy, limit_log_evidence, limit_overlaps: of the Gaussian process.
        heads: names of the heads by layer; path_heads: the head of each path in each layer, [path, layer].
        path_names, order_parameter, path_scores: U [path, path] and its diagonal.
        head_labels, head_scores: (layer, head) counted from 0, and the score from U.
        kernel, kernel_labels: K between training examples sorted by label, at most 100 of them, and their labels.
        classes: what the labels −1 and +1 are called.
        overlaps: |v_k · y|/√P of the labels with the leading components of the whole kernel, [component].
        log_evidence, train_accuracy, test_accuracy, converged: of the solution.
        train_examples, test_examples: how many.
    """

    width: int
    temperature: float
    widths: np.ndarray
    accuracies: np.ndarray
    curve_converged: np.ndarray
    limit_accuracy: float
    limit_log_evidence: float
    limit_overlaps: np.ndarray
    heads: tuple[tuple[str, ...], ...]
    path_heads: np.ndarray
    path_names: tuple[str, ...]
    order_parameter: np.ndarray
    path_scores: np.ndarray
    head_labels: tuple[tuple[int, int], ...]
    head_scores: np.ndarray
    kernel: np.ndarray
    kernel_labels: np.ndarray
    classes: tuple[str, str]
    overlaps: np.ndarray
    log_evidence: float
    train_accuracy: float
    test_accuracy: float
    converged: bool
    train_examples: int
    test_examples: int

    def __post_init__(self) -> None:
        # One picture is shown to many readers.
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False


class Shelf:
    """The last few answers by name, for several threads.

    Example:
        >>> shelf = Shelf(1)
        >>> shelf.put("a", 1), shelf.put("b", 2), shelf.get("a"), shelf.get("b")
        (None, None, None, 2)
    """

    def __init__(self, places: int) -> None:
        self._places, self._answers, self._lock = places, OrderedDict[Hashable, Any](), threading.Lock()

    def get(self, name: Hashable) -> Any:
        """The answer, or None."""
        with self._lock:
            if name in self._answers:
                self._answers.move_to_end(name)
            return self._answers.get(name)

    def put(self, name: Hashable, answer: Any) -> None:
        """Keep an answer; the one not asked for the longest goes."""
        with self._lock:
            self._answers[name] = answer
            self._answers.move_to_end(name)
            while len(self._answers) > self._places:
                self._answers.popitem(last=False)


_curves, _limits = Shelf(256), Shelf(256)
# The last solution of a data set: it holds the prepared data, from which the next search continues.
_solutions = Shelf(4)
# Sizes whose programs are compiled.
_compiled: set[Hashable] = set()


class PictureWork:
    """The picture in slices: the solution where the reader is comes first, then the curve, one width at a time.

    Each `advance` takes its turn with other sessions; nothing runs between calls.

    Arguments:
        data: the examples.
        width, temperature: of the solution shown.
    """

    def __init__(self, data: Data, width: int, temperature: float) -> None:
        self.data, self.temperature = data, temperature
        self.picture: LearningPicture | None = None
        self._curve: Curve | None = _curves.get((data.key, temperature))
        # From the widest down: each start is where the last two solutions lead, beginning at the Gaussian process.
        self._left = [] if self._curve is not None else list(widths_for(data.xi.shape[1], len(data.labels)))
        self._slices = 1 + len(self._left)
        self._points: list[tuple[int, np.ndarray, float, bool]] = []
        self._search = Search(data, width, temperature)
        self._sizes = tuple(map(len, data.heads)), data.xi.shape, data.form

    @property
    def compiles(self) -> bool:
        """Whether the next slice compiles a program of a new size first, which takes seconds."""
        return self._sizes not in _compiled

    @property
    def done(self) -> bool:
        """Whether `picture` is there, with all of its curve."""
        return self.picture is not None and not self._left

    @property
    def fraction(self) -> float:
        """How much of the work is behind, from 0 to 1."""
        return ((self.picture is not None) + len(self._points)) / self._slices

    def advance(self) -> None:
        """One slice."""
        if self.done:
            return
        self._search.advance()
        _compiled.add(self._sizes)
        solution = self._search.solution
        if solution is None:
            return
        if self.picture is None:
            self.picture = _picture(self.data, self._curve or self._so_far(), solution)
        else:
            fit = Fit(self.data, solution.order_parameter, self.temperature)
            self._points.append((self._left.pop(), solution.vector, fit.test_accuracy, solution.converged))
            curve = self._so_far()
            self.picture = replace(self.picture, **curve._asdict())
            if not self._left:
                _curves.put((self.data.key, self.temperature), curve)
        if self._left:
            start = self._start(self._left[-1])
            self._search = Search(self.data, self._left[-1], self.temperature, start, CURVE_TOLERANCE)

    def _so_far(self) -> Curve:
        widths, accuracies, converged = ([point[place] for point in self._points[::-1]] for place in (0, 2, 3))
        return Curve(np.array(widths, int), np.array(accuracies, float), np.array(converged, bool))

    def finished(self) -> LearningPicture:
        """The picture, with all slices that are left done at once."""
        while not self.done:
            self.advance()
        assert self.picture is not None
        return self.picture

    def _start(self, width: int) -> np.ndarray | None:
        if len(self._points) < 2 or not all(converged for *_, converged in self._points[-2:]):
            return None
        (far, far_vector, *_), (near, near_vector, *_) = self._points[-2:]
        return near_vector + (near_vector - far_vector) * np.log(width / near) / np.log(near / far)


def widths_for(paths: int, examples: int) -> tuple[int, ...]:
    """The widths at which the curve is solved, for a number of paths and of training examples.

    Example:
        >>> widths_for(4, 100) == WIDTHS, widths_for(9, 100)
        (True, (5, 20, 100, 500, 2000))
    """
    pairs = paths * (paths + 1) // 2
    return WIDTHS if 2 * pairs * examples**2 * (examples + pairs) <= EXPENSIVE else FEW_WIDTHS


class Search:
    """The search of `learning.solve` from any start, in slices; the data are prepared only once.

    If limited-memory BFGS gives up, `solve` would continue with Newton's method at any price; this does not, and the
    solution says that it has not converged.

    Arguments:
        start: whitened coordinates; default: the Gaussian process.
    """

    def __init__(
        self,
        data: Data,
        width: int,
        temperature: float,
        start: np.ndarray | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        self.data, self.arch, self.temperature, self.tolerance = data, data.architecture(width), temperature, tolerance
        self.solution: Solution | None = None
        self._vector = np.zeros(self.arch.parameters) if start is None else start
        self._left = MOST_STEPS

    def advance(self) -> None:
        """As many steps as one turn allows."""
        with learning_turn:
            method, operations = _method(self.data)
            # A search that starts again has lost the curvature it had learned; Newton's method computes it at once.
            least = 3 if method == "newton" else 20
            steps = min(max(int(SLICE / operations), least), self._left)
            options: Any = {"method": method, "tolerance": self.tolerance, "max_steps": steps}
            earlier = _solutions.get(self.data.key)
            if earlier is None:
                features, labels = PathFeatures.from_attentioned_inputs(self.data.xi), self.data.labels
                given = {"temperature": self.temperature, "form": self.data.form, "throw": False}
                solution = solve(self.arch, features, labels, **given, **options)
            else:
                start = replace(earlier, vector=self._vector, curvature=None)
                solution = start.continued(widths=self.arch.widths, temperature=self.temperature, **options)
            _solutions.put(self.data.key, solution)
        self._left -= steps
        stuck = np.array_equal(solution.vector, self._vector) or not np.isfinite(solution.vector).all()
        self._vector = solution.vector
        if solution.converged or stuck or self._left == 0:
            self.solution = solution

    def finished(self) -> Solution:
        """The solution, with all slices that are left done at once."""
        while self.solution is None:
            self.advance()
        return self.solution


def _method(data: Data) -> tuple[str, float]:
    """The minimiser, and the operations of one step: an exact Hessian, or a gradient from pairs or from features."""
    examples, paths, width = data.xi.shape
    size, pairs = min(examples, paths * width), paths * (paths + 1) // 2
    form = choose_form(size, paths, width) if data.form == "auto" else data.form
    # Among more examples than features, pairs are certain to be stored for few paths only.
    if form != "pairs" or (data.form == "auto" and size < examples and paths > FEW_PATHS):
        return "limited-memory", 2.0 * size**3 + 6.0 * size**2 * paths * width
    hessian = 2.0 * pairs * size**2 * (size + pairs)
    if hessian <= NEWTON_OPERATIONS:
        return "newton", hessian
    return "limited-memory", 2.0 * size**3 + 16.0 * pairs * size**2


def form_for(examples: int, paths: int, features: int) -> str:
    """The form of the kernel of a user's arrays: pairs only where they are small."""
    small = 8 * (paths * (paths + 1) // 2) * examples**2 <= PAIR_MEMORY
    return "auto" if small or choose_form(examples, paths, features) != "pairs" else "features"


class Fit:
    """The Gaussian predictor of one order parameter: kernel, accuracies and log marginal likelihood (learning §4)."""

    def __init__(self, data: Data, order_parameter: np.ndarray, temperature: float) -> None:
        examples, paths, features = data.xi.shape
        # Rows of F with U = FFᵀ are scaled, and not the arrays themselves, which are far larger.
        arch = data.architecture(1)
        scale = (arch.deviations[0] / np.sqrt(features) * arch.path_scales)[:, None]
        eigenvalues, vectors = np.linalg.eigh(order_parameter)
        factor = scale * vectors * np.sqrt(np.maximum(eigenvalues, 0))
        mixed = (data.xi.transpose(0, 2, 1).reshape(-1, paths) @ factor).reshape(examples, -1)
        self.kernel = mixed @ mixed.T
        try:
            cholesky = cho_factor(self.kernel + temperature * np.eye(examples), lower=True, overwrite_a=True)
        except np.linalg.LinAlgError as error:
            got = f"features whose kernel has entries of {np.abs(self.kernel).max():.2g}, and rounding above τ"
            raise fail("xi", got, "features of the order of one, or a higher temperature") from error
        solved = cho_solve(cholesky, data.labels)
        weights = (scale * order_parameter * scale.T) @ np.tensordot(solved, data.xi, 1)
        self.train_accuracy = _accuracy(self.kernel @ solved, data.labels)
        self.test_accuracy = _accuracy(data.test_xi.reshape(len(data.test_xi), -1) @ weights.ravel(), data.test_labels)
        determinant = 2 * np.log(np.diagonal(cholesky[0])).sum()
        self.log_likelihood = -0.5 * (determinant + data.labels @ solved + examples * np.log(2 * np.pi))


def _accuracy(mean: np.ndarray, labels: np.ndarray) -> float:
    """Signs that are right; a mean of exactly 0 counts half."""
    margin = mean * labels
    return float(np.mean((margin > 0) + 0.5 * (margin == 0)))


def _limit(data: Data, temperature: float) -> Limit:
    """Accuracy, log evidence and label overlaps of the Gaussian process."""
    kept = _limits.get((data.key, temperature))
    if kept is None:
        arch = data.architecture(1)
        fit = Fit(data, arch.infinite_width_variance * np.eye(arch.paths), temperature)
        kept = Limit(fit.test_accuracy, float(fit.log_likelihood), _overlaps(fit, data))
        _limits.put((data.key, temperature), kept)
    return kept


def _overlaps(fit: Fit, data: Data) -> np.ndarray:
    return label_alignment(fit.kernel, data.labels, components=min(COMPONENTS, len(data.labels)))


def _picture(data: Data, curve: Curve, solution: Solution) -> LearningPicture:
    arch, temperature = solution.architecture, solution.temperature
    fit, scores = Fit(data, solution.order_parameter, temperature), head_scores(arch, solution.order_parameter)
    order = np.argsort(data.labels, kind="stable")
    if len(order) > KERNEL_SHOWN:
        order = order[np.linspace(0, len(order) - 1, KERNEL_SHOWN).round().astype(int)]
    return LearningPicture(
        width=arch.widths[0],
        temperature=temperature,
        **curve._asdict(),
        **_limit(data, temperature)._asdict(),
        heads=data.heads,
        path_heads=arch.path_heads(),
        path_names=arch.path_names(data.heads),
        order_parameter=np.array(solution.order_parameter),
        path_scores=np.array(path_scores(arch, solution.order_parameter)),
        head_labels=scores.labels,
        head_scores=scores.values,
        kernel=fit.kernel[np.ix_(order, order)],
        kernel_labels=data.labels[order],
        classes=data.classes,
        overlaps=_overlaps(fit, data),
        log_evidence=solution.log_evidence,
        train_accuracy=fit.train_accuracy,
        test_accuracy=fit.test_accuracy,
        converged=solution.converged,
        train_examples=len(data.labels),
        test_examples=len(data.test_labels),
    )

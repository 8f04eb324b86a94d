"""What a reader of the Learning view chooses, and the numbers that answer.

The task is the hidden-Markov classification of the paper at its real size. Every number is that of the public functions
of `thermoformer.learning`; `learning_code` prints the calls.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .._validation import fail, labels_for, nonnegative_integer, one_of, positive_integer, real_array
from ..learning import (
    Architecture,
    PathFeatures,
    PathSum,
    Prediction,
    Solution,
    choose_form,
    gaussian_process,
    label_alignment,
    path_scores,
)
from ..tasks import HiddenMarkovTask, hidden_markov_inputs
from ..tasks.hidden_markov import HEAD_KINDS
from .links import LARGEST_SEED, set_field, whole_within, within
from .work import Work, compiled, learning_lock

TRAIN_SIZES = (25, 50, 100, 200)
TEST_EXAMPLES = 500
MOST_LAYERS, MOST_HEADS = 2, 3
WIDTH_RANGE = (5, 2000)
TEMPERATURE_RANGE = (1e-4, 10.0)
LARGEST_NOISE = 20.0
# Limits of a user's own arrays: larger ones would keep every other session waiting.
MOST_EXAMPLES, MOST_PATHS, MOST_NUMBERS = 1000, 16, 2_000_000
# Bytes that stored pairs of a user's arrays may take; many sessions share one machine.
PAIR_MEMORY = 100_000_000
TRAINING, TEST, HEADS = 0, 1, 2  # what a seed is for

# Widths of the curve, and fewer of them if each solution is expensive.
WIDTHS = (5, 10, 20, 50, 100, 300, 800, 2000)
FEW_WIDTHS = (5, 20, 100, 500, 2000)
# Operations of one Hessian above which a solution is expensive.
EXPENSIVE = 6e7
# Gradient at which the solution shown counts as found, and a point of the curve: accuracies are the same there.
TOLERANCE, CURVE_TOLERANCE = 1e-8, 1e-6
MOST_STEPS = 1000
# Operations of one slice of a search, about a third of a second.
SLICE = 5e9
COMPONENTS = 30
# A heat map with more cells than pixels shows nothing more.
KERNEL_SHOWN = 100

_RANGES = {
    "perpendicular_noise": (0.0, LARGEST_NOISE),
    "parallel_noise": (0.0, LARGEST_NOISE),
    "stay_probability": (0.0, 1.0),
    "temperature": TEMPERATURE_RANGE,
}


@dataclass(frozen=True)
class LearningChoice:
    """What the reader has chosen; the defaults are the paper's network of four paths at width 10.

    Arguments:
        perpendicular_noise, parallel_noise: σ_⊥ and the noise along the states, as in `HiddenMarkovTask`.
        stay_probability: how often the hidden state stays, in class +1.
        layers: heads of each layer, one or two layers of one to three heads, each a list such as "good+random".
        width: N.
        temperature: τ.
        train: number of training examples: 25, 50, 100 or 200.
        seed: of sequences and random heads.

    Example:
        >>> LearningChoice(layers=("good", "uniform+random")).kinds
        (('good',), ('uniform', 'random'))
        >>> LearningChoice(train=30)
        Traceback (most recent call last):
        thermoformer.InputError: train: got 30; expected one of 25, 50, 100, 200
    """

    perpendicular_noise: float = 1.0
    parallel_noise: float = 1.0
    stay_probability: float = 0.7
    layers: tuple[str, ...] = ("good+random", "uniform+random")
    width: int = 10
    temperature: float = 0.01
    train: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name, ends in _RANGES.items():
            set_field(self, name, within(name, getattr(self, name), *ends))
        set_field(self, "layers", _checked_layers(self.layers))
        set_field(self, "width", whole_width(self.width))
        if self.train not in TRAIN_SIZES:
            raise fail("train", repr(self.train), f"one of {', '.join(map(str, TRAIN_SIZES))}")
        whole_within("seed", self.seed, 0, LARGEST_SEED)

    @property
    def kinds(self) -> tuple[tuple[str, ...], ...]:
        """Kinds of head by layer."""
        return tuple(tuple(layer.split("+")) for layer in self.layers)

    @property
    def task(self) -> HiddenMarkovTask:
        """The task with this noise."""
        return HiddenMarkovTask(self.perpendicular_noise, self.parallel_noise, stay_probability=self.stay_probability)

    @property
    def seeded_heads(self) -> list[list[tuple[str, tuple[int, ...]]]]:
        """Kind and seed of every head, by layer."""
        return [
            [(kind, (self.seed, HEADS, layer, head)) for head, kind in enumerate(kinds)]
            for layer, kinds in enumerate(self.kinds)
        ]


class Curve(NamedTuple):
    """Test accuracy, from 0 to 1, over a fixed grid of widths, [width]; empty by default."""

    widths: np.ndarray = np.zeros(0, int)
    accuracies: np.ndarray = np.zeros(0)
    converged: np.ndarray = np.zeros(0, bool)


class Limit(NamedTuple):
    """The Gaussian process with its test accuracy and label overlaps."""

    solution: Solution
    accuracy: float
    overlaps: np.ndarray


@dataclass(eq=False)
class Data:
    """Training and test examples, and what is known of them at any width.

    Fields:
        train, labels, test, test_labels: features and labels ±1 [example].
        heads: names of the heads by layer.
        classes: names of the labels −1 and +1.
        form: of the kernel.
        curves: those that are known, by temperature.
        limit: the last one.
    """

    train: PathFeatures
    labels: np.ndarray
    test: PathFeatures
    test_labels: np.ndarray
    heads: tuple[tuple[str, ...], ...]
    classes: tuple[str, str] = ("−1", "+1")
    form: str = "auto"
    curves: dict[float, Curve] = field(default_factory=dict)
    limit: Limit | None = None

    def architecture(self, width: int) -> Architecture:
        """The network with these heads at one width."""
        return Architecture(tuple(len(layer) for layer in self.heads), width)

    @property
    def sizes(self) -> tuple[Any, ...]:
        """What compiled programs depend on."""
        return tuple(map(len, self.heads)), self.train.values.shape, self.form


@dataclass(frozen=True, eq=False)
class LearningPicture:
    """All that the Learning view shows.

    Fields:
        data: the examples.
        solution: at the width shown.
        limit: the Gaussian process.
        curve: over all widths; the widest of them while the others are still being solved.
        kernel, kernel_labels: K between training examples sorted by label, at most 100 of them, and their labels.
        overlaps: |v_k · y|/√P of the labels with the leading components of the whole kernel, [component].
        train_accuracy, test_accuracy: of the solution.
    """

    data: Data
    solution: Solution
    limit: Limit
    curve: Curve
    kernel: np.ndarray
    kernel_labels: np.ndarray
    overlaps: np.ndarray
    train_accuracy: float
    test_accuracy: float

    @property
    def width(self) -> int:
        """N of the solution."""
        return self.solution.architecture.widths[0]

    @property
    def path_names(self) -> tuple[str, ...]:
        """One per path."""
        return self.solution.architecture.path_names(self.data.heads)

    @property
    def path_scores(self) -> np.ndarray:
        """U_ππ, [path]."""
        return path_scores(self.solution.architecture, self.solution.order_parameter)


@lru_cache(maxsize=12)  # 5 to 30 MB each
def data_of(
    task: HiddenMarkovTask, heads: tuple[tuple[tuple[str, tuple[int, ...]], ...], ...], train: int, seed: int
) -> Data:
    """Examples of the hidden-Markov task.

    Arguments:
        heads: kind and seed of every head, by layer.
        train, seed: as in `LearningChoice`.
    """
    examples = hidden_markov_inputs(task, train, heads, seed=(seed, TRAINING))
    test = hidden_markov_inputs(task, TEST_EXAMPLES, heads, seed=(seed, TEST))
    return Data(*examples, *test, named_heads([[kind for kind, _ in layer] for layer in heads]))


def data_of_arrays(xi: Any, labels: Any, heads: Sequence[int], *, seed: int = 0) -> Data:
    """A user's own attentioned inputs; half of the examples, drawn at random, are for training.

    Arguments:
        xi: ξ [example, path, feature], at most 1000 examples, 16 paths and 2 million numbers in all; paths in the
            order h_1 slowest, h_L fastest.
        labels: one of two values per example; the smaller becomes −1, the larger +1.
        heads: heads of each layer, whose product is the number of paths.
        seed: of the split.

    Example:
        >>> xi = np.random.default_rng(0).normal(size=(60, 2, 8))
        >>> data = data_of_arrays(xi, xi[:, 0, 0] > 0, [2])
        >>> data.heads, data.train.examples, data.classes
        ((('head 0', 'head 1'),), 30, ('False', 'True'))
    """
    array = real_array("xi", xi, ("example", "path", "feature"))
    examples, paths, features = array.shape
    check_sizes(examples, paths, features)
    counts = tuple(positive_integer("heads", count) for count in heads)
    if not counts or math.prod(counts) != paths:
        raise fail("heads", counts, f"numbers whose product is {paths}, the paths of xi")
    signs, classes = _two_classes(labels, examples)
    count = round(examples / 2)
    order = np.random.default_rng(nonnegative_integer("seed", seed)).permutation(examples)
    train, test = np.sort(order[:count]), np.sort(order[count:])
    inputs = PathFeatures.from_attentioned_inputs
    small = 4 * paths * (paths + 1) * count**2 <= PAIR_MEMORY
    form = "auto" if small or choose_form(count, paths, features) != "pairs" else "features"
    return Data(inputs(array[train]), signs[train], inputs(array[test]), signs[test], numbered(counts), classes, form)


def check_sizes(examples: int, paths: int, features: int) -> None:
    """Refuses arrays of more examples, paths or numbers than a page can answer for.

    Example:
        >>> check_sizes(100, 32, 10)
        Traceback (most recent call last):
        thermoformer.InputError: xi: got 32 paths; expected 16 or fewer
    """
    if examples < 4 or examples > MOST_EXAMPLES:
        raise fail("xi", f"{examples} examples", f"4 to {MOST_EXAMPLES}")
    if paths > MOST_PATHS:
        raise fail("xi", f"{paths} paths", f"{MOST_PATHS} or fewer")
    if (numbers := examples * paths * features) > MOST_NUMBERS:
        raise fail("xi", f"{numbers} numbers", f"{MOST_NUMBERS} or fewer: examples × paths × features")


class LearningWork(Work):
    """Computes the picture: first the solution at the chosen width, then the curve, from the widest network down.

    Arguments:
        data: the examples.
        width, temperature: of the solution shown.

    Fields:
        picture: as far as it is known; None before the solution.
    """

    def __init__(self, data: Data, width: int, temperature: float) -> None:
        super().__init__(learning_lock)
        self.data, self.width, self.temperature = data, width, temperature
        self.picture: LearningPicture | None = None

    @property
    def compiles(self) -> bool:
        """Whether the next slice compiles programs of new sizes, which takes seconds."""
        return self.data.sizes not in compiled

    def slices(self) -> Iterator[None]:
        """The solution, and one width of the curve after the other."""
        data, temperature = self.data, self.temperature
        limit, curve = _limit(data, temperature), data.curves.get(temperature)
        left = [] if curve else list(widths_for(data.train.paths, len(data.labels)))
        parts = 1 + len(left)
        solution = yield from self._minimum(limit.solution, self.width, TOLERANCE)
        picture = self.picture = _picture(data, limit, solution, curve or Curve())
        points: list[tuple[int, float, bool]] = []
        start = limit.solution
        while left:
            self.fraction = (1 + len(points)) / parts
            yield
            solution = yield from self._minimum(start, left.pop(), CURVE_TOLERANCE)
            start = solution if solution.converged else limit.solution
            accuracy = _accuracy(solution, data.test, data.test_labels)
            points.insert(0, (solution.architecture.widths[0], accuracy, solution.converged))
            curve = Curve(*map(np.array, zip(*points, strict=True)))
            self.picture = replace(picture, curve=curve)
        if curve is not None:
            data.curves[temperature] = curve

    def _minimum(self, start: Solution, width: int, tolerance: float) -> Generator[None, None, Solution]:
        """The solution at a width, in slices; if limited-memory BFGS gives up, it has not converged."""
        action = start.action_function
        newton, size = action.method == "newton", len(start.problem.labels)
        # One step: an exact Hessian, or a gradient.
        operations = action.hessian_operations if newton else 2.0 * size**3 + 8.0 * size * start.problem.features.size
        # A search that starts again has lost the curvature it had learned; Newton's method computes it at once.
        steps, left = max(int(SLICE / operations), 3 if newton else 20), MOST_STEPS
        while True:
            found = start.continued(widths=width, method=action.method, tolerance=tolerance, max_steps=min(steps, left))
            compiled.add(self.data.sizes)
            left -= steps
            stuck = np.array_equal(found.vector, start.vector) or not np.isfinite(found.vector).all()
            if found.converged or stuck or left <= 0:
                return found
            start = found
            yield


def work_of(choice: LearningChoice) -> LearningWork:
    """The picture of a choice, still to be computed."""
    heads = tuple(map(tuple, choice.seeded_heads))
    return LearningWork(data_of(choice.task, heads, choice.train, choice.seed), choice.width, choice.temperature)


def picture_of(choice: LearningChoice) -> LearningPicture:
    """All that the view shows for one choice.

    Example:
        >>> picture = picture_of(LearningChoice(layers=("good+random", "uniform"), train=50))
        >>> picture.path_names, picture.solution.order_parameter.shape
        (('good→uniform', 'random→uniform'), (2, 2))
        >>> picture.solution.converged, picture.curve.widths[:3].tolist()
        (True, [5, 10, 20])
    """
    work = work_of(choice)
    work.finish()
    assert work.picture is not None
    return work.picture


def widths_for(paths: int, examples: int) -> tuple[int, ...]:
    """The widths at which the curve is solved, for a number of paths and of training examples.

    Example:
        >>> widths_for(4, 100) == WIDTHS, widths_for(9, 100)
        (True, (5, 20, 100, 500, 2000))
    """
    pairs = paths * (paths + 1) // 2
    return WIDTHS if 2 * pairs * examples**2 * (examples + pairs) <= EXPENSIVE else FEW_WIDTHS


def named_heads(kinds: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Names of heads by layer: the kind, with a number if a layer has several of one kind.

    Example:
        >>> named_heads([["good", "random", "random"]])
        (('good', 'random 1', 'random 2'),)
    """
    return tuple(
        tuple(
            kind if layer.count(kind) == 1 else f"{kind} {list(layer[: place + 1]).count(kind)}"
            for place, kind in enumerate(layer)
        )
        for layer in map(tuple, kinds)
    )


def numbered(heads: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """Names of heads by layer that have only numbers."""
    return tuple(tuple(f"head {head}" for head in range(count)) for count in heads)


def whole_width(width: Any) -> int:
    """A width of the network."""
    number = within("width", width, *WIDTH_RANGE)
    if number != int(number):
        raise fail("width", f"{number:g}", "a whole number")
    return int(number)


def _checked_layers(layers: Any) -> tuple[str, ...]:
    if isinstance(layers, str) or not isinstance(layers, Sequence) or not 1 <= len(layers) <= MOST_LAYERS:
        raise fail("layers", repr(layers), f"1 to {MOST_LAYERS} lists of heads such as 'good+random'")
    for layer in layers:
        kinds = str(layer).split("+")
        if len(kinds) > MOST_HEADS:
            raise fail("layers", f"{len(kinds)} heads in one layer", f"{MOST_HEADS} or fewer")
        for kind in kinds:
            one_of("layers", kind, HEAD_KINDS)
    return tuple(layers)


def _two_classes(labels: Any, examples: int) -> tuple[np.ndarray, tuple[str, str]]:
    """Labels as ±1, and names of the two classes."""
    given = np.asarray(labels)
    numbers = labels_for("labels", given, examples)
    values = np.unique(numbers)
    if len(values) != 2:
        raise fail("labels", f"{len(values)} different values", "two: one per class")
    names = ("False", "True") if given.dtype.kind == "b" else tuple(f"{v:+g}".replace("-", "−") for v in values)
    return np.where(numbers == values[1], 1.0, -1.0), (names[0], names[1])


def _accuracy(result: PathSum, features: PathFeatures, labels: np.ndarray) -> float:
    """As of `result.predict`, without the variance, which would take most of the time."""
    mean = result.path_contributions(features).sum(axis=1)
    return Prediction(mean, np.zeros_like(mean)).accuracy(labels)


def _overlaps(kernel: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return label_alignment(kernel, labels, components=min(COMPONENTS, len(labels)))


def _limit(data: Data, temperature: float) -> Limit:
    """The Gaussian process of the data; a move of the width asks for the same one again."""
    if data.limit is None or data.limit.solution.temperature != temperature:
        arch, given = data.architecture(1), {"temperature": temperature, "form": data.form}
        found = gaussian_process(arch, data.train, data.labels, **given)
        overlaps = _overlaps(found.kernel(data.train), data.labels)
        data.limit = Limit(found, _accuracy(found, data.test, data.test_labels), overlaps)
    return data.limit


def _picture(data: Data, limit: Limit, solution: Solution, curve: Curve) -> LearningPicture:
    kernel = solution.kernel(data.train)
    order = np.argsort(data.labels, kind="stable")
    if len(order) > KERNEL_SHOWN:
        order = order[np.linspace(0, len(order) - 1, KERNEL_SHOWN).round().astype(int)]
    return LearningPicture(
        data,
        solution,
        limit,
        curve,
        kernel=kernel[np.ix_(order, order)],
        kernel_labels=data.labels[order],
        overlaps=_overlaps(kernel, data.labels),
        train_accuracy=_accuracy(solution, data.train, data.labels),
        test_accuracy=_accuracy(solution, data.test, data.test_labels),
    )

"""The Learning view: what a reader may choose, and the numbers that answer.

The task is the hidden-Markov classification of the paper at its real size, and every number is what the public
functions of `thermoformer.learning` give; `learning_code` writes the lines that say so.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .._validation import fail, labels_for, nonnegative_integer, one_of, positive_integer, positive_number, real_array
from ..tasks import HiddenMarkovTask
from ..tasks.hidden_markov import HEAD_KINDS
from ._learning_numbers import Data, LearningPicture, PictureWork, form_for
from ._task_features import attentioned_inputs
from .pictures import short_number

TRAIN_SIZES = (25, 50, 100, 200)
TEST_EXAMPLES = 500
MOST_LAYERS, MOST_HEADS = 2, 3
WIDTH_RANGE = (5, 2000)
TEMPERATURE_RANGE = (1e-4, 10.0)
LARGEST_NOISE = 20.0
LARGEST_SEED = 2**32 - 1
# Limits of a user's own arrays: beyond them one answer would keep every other session waiting.
MOST_EXAMPLES, MOST_PATHS, MOST_NUMBERS = 1000, 16, 2_000_000
TRAINING, TEST, HEADS = 0, 1, 2  # what a seed is for


@dataclass(frozen=True)
class LearningChoice:
    """What the reader has chosen; the defaults are the paper's network of four paths at width 10.

    Arguments:
        perpendicular_noise, parallel_noise: σ_⊥ and the noise along the states, as in `HiddenMarkovTask`.
        stay_probability: how often the hidden state stays, in class +1.
        layers: heads of each layer, one or two layers of one to three heads, each a list such as "good+random".
        width: N.
        temperature: τ.
        train: how many training examples: 25, 50, 100 or 200.
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
        for name in ("perpendicular_noise", "parallel_noise"):
            _settle(self, name, _within(name, getattr(self, name), 0.0, LARGEST_NOISE))
        _settle(self, "stay_probability", _within("stay_probability", self.stay_probability, 0.0, 1.0))
        _settle(self, "temperature", _within("temperature", self.temperature, *TEMPERATURE_RANGE))
        _settle(self, "layers", _checked_layers(self.layers))
        _settle(self, "width", _whole_width(self.width))
        if isinstance(self.train, bool) or self.train not in TRAIN_SIZES:
            raise fail("train", repr(self.train), f"one of {', '.join(map(str, TRAIN_SIZES))}")
        _settle(self, "train", int(self.train))
        _settle(self, "seed", nonnegative_integer("seed", self.seed))
        if self.seed > LARGEST_SEED:
            raise fail("seed", self.seed, f"at most {LARGEST_SEED}")

    @property
    def kinds(self) -> tuple[tuple[str, ...], ...]:
        """Kinds of head by layer."""
        return tuple(tuple(layer.split("+")) for layer in self.layers)

    @property
    def task(self) -> HiddenMarkovTask:
        """The task with this noise."""
        return HiddenMarkovTask(self.perpendicular_noise, self.parallel_noise, stay_probability=self.stay_probability)


@lru_cache(maxsize=64)
def picture_of(choice: LearningChoice) -> LearningPicture:
    """All that the view shows for one choice.

    Example:
        >>> picture = picture_of(LearningChoice(layers=("good+random", "uniform"), train=50))
        >>> picture.path_names, picture.order_parameter.shape
        (('good→uniform', 'random→uniform'), (2, 2))
        >>> picture.converged, picture.widths[:3].tolist()
        (True, [5, 10, 20])
    """
    return work_of(choice).finished()


def work_of(choice: LearningChoice) -> PictureWork:
    """The same in slices, for a page that shows how far it is while something compiles."""
    data = _task_data(choice.task, choice.kinds, choice.train, choice.seed)
    return PictureWork(data, choice.width, choice.temperature)


def warm(choice: LearningChoice | None = None) -> None:
    """Compile what a choice needs, the default where none is given: afterwards its sliders answer at once."""
    picture_of(choice or LearningChoice())


@lru_cache(maxsize=8)
def _task_data(task: HiddenMarkovTask, kinds: tuple[tuple[str, ...], ...], train: int, seed: int) -> Data:
    head_seeds = tuple(
        tuple((seed, HEADS, layer, head) for head in range(len(names))) for layer, names in enumerate(kinds)
    )
    xi, labels = attentioned_inputs(task, train, (seed, TRAINING), kinds, head_seeds)
    test_xi, test_labels = attentioned_inputs(task, TEST_EXAMPLES, (seed, TEST), kinds, head_seeds)
    return Data((task, kinds, train, seed), xi, labels, test_xi, test_labels, named_heads(kinds))


def named_heads(kinds: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Names of heads by layer: the kind, with a number where a layer has several of one kind.

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


def picture_of_arrays(
    xi: Any,
    labels: Any,
    heads: Sequence[int],
    *,
    width: int = 10,
    temperature: float = 0.01,
    train_fraction: float = 0.5,
    head_names: Sequence[Sequence[str]] | None = None,
    seed: int = 0,
) -> LearningPicture:
    """The same picture of a user's own attentioned inputs.

    Arguments:
        xi: ξ [example, path, feature], at most 1000 examples, 16 paths and 2 million numbers in all; paths in the
            order h_1 slowest, h_L fastest.
        labels: one of two values per example; the smaller becomes −1, the larger +1.
        heads: heads of each layer, whose product is the number of paths.
        train_fraction: the part of the examples that is learned from, drawn at random; the rest is for testing.
        head_names: names of the heads by layer; numbers where absent.
        seed: of the split.

    Example:
        >>> xi = np.random.default_rng(0).normal(size=(60, 2, 8))
        >>> picture = picture_of_arrays(xi, xi[:, 0, 0] > 0, [2], width=20, temperature=0.1)
        >>> picture.path_names, picture.train_examples, picture.classes
        (('head 1', 'head 2'), 30, ('False', 'True'))
    """
    return work_of_arrays(
        xi,
        labels,
        heads,
        width=width,
        temperature=temperature,
        train_fraction=train_fraction,
        head_names=head_names,
        seed=seed,
    ).finished()


def work_of_arrays(
    xi: Any,
    labels: Any,
    heads: Sequence[int],
    *,
    width: int = 10,
    temperature: float = 0.01,
    train_fraction: float = 0.5,
    head_names: Sequence[Sequence[str]] | None = None,
    seed: int = 0,
) -> PictureWork:
    """`picture_of_arrays` in slices: large arrays take seconds."""
    width, temperature = _whole_width(width), _within("temperature", temperature, *TEMPERATURE_RANGE)
    array = real_array("xi", xi, ("example", "path", "feature"))
    examples, paths, features = array.shape
    check_sizes(examples, paths, features)
    counts = tuple(positive_integer("heads", count) for count in heads)
    if not counts or math.prod(counts) != paths:
        raise fail("heads", counts, f"numbers whose product is {paths}, the paths of xi")
    names = names_for(head_names, counts)
    signs, classes = _two_classes(labels, examples)
    split = _split(examples, train_fraction, nonnegative_integer("seed", seed))
    digest = hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16)
    digest.update(signs.tobytes())
    key = (digest.hexdigest(), array.shape, names, classes, len(split[0]), seed)
    training, test = (array[part] for part in split)
    form = form_for(len(training), paths, features)
    data = Data(key, training, signs[split[0]], test, signs[split[1]], names, classes, form)
    return PictureWork(data, width, temperature)


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


def numbers_of(picture: LearningPicture) -> list[tuple[str, str]]:
    """What the picture comes down to, as short labels and values.

    Example:
        >>> numbers_of(picture_of(LearningChoice(layers=("good+random", "uniform"), train=50)))[1][0]
        'Gaussian process'
    """
    best = int(np.argmax(picture.path_scores))
    return [
        (f"test accuracy, N = {picture.width}", _percent(picture.test_accuracy)),
        ("Gaussian process", _percent(picture.limit_accuracy)),
        ("training accuracy", _percent(picture.train_accuracy)),
        ("log evidence", short_number(picture.log_evidence)),
        ("log evidence, GP", short_number(picture.limit_log_evidence)),
        ("heaviest path", picture.path_names[best]),
        ("largest label overlap", f"{picture.overlaps.max():.2f} (GP {picture.limit_overlaps.max():.2f})"),
        ("solver", "converged" if picture.converged else "not converged"),
    ]


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _settle(choice: LearningChoice, name: str, value: Any) -> None:
    """Set a checked field of a record that is frozen from now on: equal choices then have equal links."""
    object.__setattr__(choice, name, value)


def _within(name: str, value: Any, low: float, high: float) -> float:
    number = float(real_array(name, value, ()))
    if not low <= number <= high:
        raise fail(name, f"{number:g}", f"a number from {low:g} to {high:g}")
    return number


def _whole_width(width: Any) -> int:
    number = _within("width", width, *WIDTH_RANGE)
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
    return tuple(str(layer) for layer in layers)


def names_for(head_names: Sequence[Sequence[str]] | None, heads: tuple[int, ...]) -> tuple[tuple[str, ...], ...]:
    """Names of the heads by layer: those given, or numbers."""
    if head_names is None:
        return tuple(tuple(f"head {head + 1}" for head in range(count)) for count in heads)
    names = tuple(tuple(str(name) for name in layer) for layer in head_names)
    if tuple(len(layer) for layer in names) != heads:
        raise fail("head_names", [len(layer) for layer in names], f"one name per head, {list(heads)}")
    return names


def _two_classes(labels: Any, examples: int) -> tuple[np.ndarray, tuple[str, str]]:
    """Labels as ±1, and what the two classes are called."""
    given = np.asarray(labels)
    numbers = labels_for("labels", given, examples)
    values = np.unique(numbers)
    if len(values) != 2:
        raise fail("labels", f"{len(values)} different values", "two: one per class")
    names = ("False", "True") if given.dtype.kind == "b" else tuple(f"{v:+g}".replace("-", "−") for v in values)
    return np.where(numbers == values[1], 1.0, -1.0), (names[0], names[1])


def _split(examples: int, train_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    fraction = positive_number("train_fraction", train_fraction)
    count = round(fraction * examples)
    if not 2 <= count < examples:
        raise fail("train_fraction", f"{fraction:g}", "a part that leaves 2 examples or more to learn and 1 to test")
    order = np.random.default_rng(seed).permutation(examples)
    return np.sort(order[:count]), np.sort(order[count:])

"""The labelled grid of a sweep: its points, their seeds, and how they are cut into tasks."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._validation import fail, positive_integer


@dataclass(frozen=True)
class Task:
    """Neighbouring points along the last axis: what is run at once, and one chunk of every array in the store.

    Fields:
        number: which task.
        region: where its points are, one slice per axis of the grid.
        points: the points, parameter values by name.
        chosen: numbers of those points that are to be run; the others are done.
    """

    number: int
    region: tuple[slice, ...]
    points: tuple[dict[str, Any], ...]
    chosen: tuple[int, ...]

    @property
    def to_run(self) -> list[dict[str, Any]]:
        """The chosen points."""
        return [self.points[number] for number in self.chosen]

    def only(self, chosen: Iterable[int]) -> Task:
        """The same task with some of its points chosen."""
        return replace(self, chosen=tuple(int(number) for number in chosen))


class Grid:
    """All combinations of some values.

    Arguments:
        axes: values by name, one axis each, in order. Numbers or strings; no value twice.
        batch: points of a task, along the last axis.

    Example:
        >>> grid = Grid({"width": [10, 100], "temperature": [0.1, 0.2, 0.3]}, batch=2)
        >>> grid.size, grid.tasks, grid.task(1).points
        (6, 4, ({'width': 10, 'temperature': 0.3},))
    """

    def __init__(self, axes: Mapping[str, Any], batch: int = 1) -> None:
        if not isinstance(axes, Mapping) or not axes:
            raise fail("grid", repr(axes), "values by name, as in {'width': [10, 100]}")
        self.axes = {_name(name): _values(str(name), values) for name, values in axes.items()}
        self.batch = positive_integer("batch", batch)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Values along each axis."""
        return tuple(len(values) for values in self.axes.values())

    @property
    def size(self) -> int:
        """How many points."""
        return math.prod(self.shape)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The shape of a task."""
        return (*(1 for _ in self.shape[:-1]), min(self.batch, self.shape[-1]))

    @property
    def tasks(self) -> int:
        """How many tasks."""
        return math.prod(self.shape[:-1]) * -(-self.shape[-1] // self.chunks[-1])

    def task(self, number: int) -> Task:
        """The task of a number from 0 to tasks − 1."""
        along = -(-self.shape[-1] // self.chunks[-1])
        row, piece = divmod(number, along)
        index = np.unravel_index(row, self.shape[:-1]) if self.shape[:-1] else ()
        first = piece * self.chunks[-1]
        last = min(first + self.chunks[-1], self.shape[-1])
        region = (*(slice(int(at), int(at) + 1) for at in index), slice(first, last))
        *outer, inner = self.axes.items()
        fixed = {name: _plain(values[at]) for (name, values), at in zip(outer, index, strict=True)}
        points = tuple(fixed | {inner[0]: _plain(inner[1][at])} for at in range(first, last))
        return Task(number, region, points, tuple(range(len(points))))

    def __iter__(self) -> Iterator[Task]:
        return (self.task(number) for number in range(self.tasks))

    def to_json(self) -> dict[str, list[Any]]:
        """The axes as plain lists."""
        return {name: [_plain(value) for value in values] for name, values in self.axes.items()}


def point_seed(seed: int, point: Mapping[str, Any]) -> int:
    """A seed that follows from the point itself, whatever the order or the company it is run in.

    Example:
        >>> point_seed(0, {"a": 1.0, "b": 2}) == point_seed(0, {"b": 2, "a": 1.0}) != point_seed(1, {"a": 1.0, "b": 2})
        True
    """
    text = json.dumps([seed, sorted(point.items())])
    # 32 bits: what every random generator takes.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise fail("grid", repr(name), "names that can be arguments of the function")
    return name


def _values(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0:
        raise fail(f"grid[{name!r}]", f"shape {array.shape}", "one value or more along one axis")
    if array.dtype.kind not in "fiubU":
        raise fail(f"grid[{name!r}]", f"values of type {array.dtype}", "numbers or strings")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise fail(f"grid[{name!r}]", "NaN or infinite values", "finite numbers")
    if len(np.unique(array)) != len(array):
        raise fail(f"grid[{name!r}]", "a value twice", "different values")
    return array


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value

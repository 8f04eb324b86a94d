"""The labelled grid of a sweep: its points, their seeds, and how they are cut into tasks."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._validation import fail, nonnegative_integer, positive_integer

# Names that the store uses itself, beside the axes of the grid.
RESERVED = ("status", "seconds")
# A name is that of a folder, and file systems have a limit of 255 bytes.
LONGEST_NAME = 200


@dataclass(frozen=True)
class Task:
    """Neighbouring points: what is run at once, and one chunk of every array in the store.

    Fields:
        number: which task.
        place: which along each axis of the grid; it stays the same when axes grow.
        region: where its points are, one slice per axis of the grid.
        points: the points, parameter values by name, the last axis running fastest.
        chosen: numbers of those points that are to be run; the others are done.
    """

    number: int
    place: tuple[int, ...]
    region: tuple[slice, ...]
    points: tuple[dict[str, Any], ...]
    chosen: tuple[int, ...]

    @property
    def to_run(self) -> list[dict[str, Any]]:
        """The chosen points."""
        return [self.points[number] for number in self.chosen]

    @property
    def shape(self) -> tuple[int, ...]:
        """How many points it has along each axis."""
        return tuple(along.stop - along.start for along in self.region)

    def only(self, chosen: Iterable[int]) -> Task:
        """The same task with some of its points chosen."""
        return replace(self, chosen=tuple(int(number) for number in chosen))


class Grid:
    """All combinations of some values.

    Arguments:
        axes: values by name, one axis each, in order. Numbers or strings; no value twice.
        batch: points of a task: neighbours along the last axis, or along each axis that is named.

    Example:
        >>> grid = Grid({"width": [10, 100], "temperature": [0.1, 0.2, 0.3]}, batch=2)
        >>> grid.size, grid.tasks, grid.task(1).points
        (6, 4, ({'width': 10, 'temperature': 0.3},))
        >>> Grid({"width": [10, 100], "temperature": [0.1, 0.2, 0.3]}, batch={"width": 2, "temperature": 2}).tasks
        2
    """

    def __init__(self, axes: Mapping[str, Any], batch: int | Mapping[str, int] = 1) -> None:
        if not isinstance(axes, Mapping) or not axes:
            raise fail("grid", repr(axes), "values by name, as in {'width': [10, 100]}")
        self.axes = {_name(name): _values(str(name), values) for name, values in axes.items()}
        if isinstance(batch, Mapping):
            for name in batch:
                if name not in self.axes:
                    raise fail("batch", repr(name), f"axes of the grid: {', '.join(self.axes)}")
            self.batch = {name: positive_integer(f"batch[{name!r}]", count) for name, count in batch.items()}
        else:
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
        batch = self.batch if isinstance(self.batch, dict) else {self.names[-1]: self.batch}
        return tuple(min(batch.get(name, 1), count) for name, count in zip(self.names, self.shape, strict=True))

    @property
    def tasks(self) -> int:
        """How many tasks."""
        return math.prod(self._pieces)

    @property
    def _pieces(self) -> tuple[int, ...]:
        return tuple(-(-count // chunk) for count, chunk in zip(self.shape, self.chunks, strict=True))

    def task(self, number: int) -> Task:
        """The task of a number from 0 to tasks − 1."""
        if nonnegative_integer("number", number) >= self.tasks:
            raise fail("number", number, f"0 to {self.tasks - 1}, one of the tasks")
        place = tuple(int(at) for at in np.unravel_index(number, self._pieces))
        region = tuple(
            slice(at * chunk, min((at + 1) * chunk, count))
            for at, chunk, count in zip(place, self.chunks, self.shape, strict=True)
        )
        parts = [values[along].tolist() for values, along in zip(self.axes.values(), region, strict=True)]
        points = tuple(dict(zip(self.names, values, strict=True)) for values in itertools.product(*parts))
        return Task(number, place, region, points, tuple(range(len(points))))

    def __iter__(self) -> Iterator[Task]:
        return (self.task(number) for number in range(self.tasks))

    def to_json(self) -> dict[str, list[Any]]:
        """The axes as plain lists."""
        return {name: values.tolist() for name, values in self.axes.items()}


def point_seed(seed: int, point: Mapping[str, Any]) -> int:
    """A seed that follows from the point alone, whatever the order in which points are run.

    Example:
        >>> point_seed(0, {"a": 1.0, "b": 2}) == point_seed(0, {"b": 2, "a": 1.0}) != point_seed(1, {"a": 1.0, "b": 2})
        True
    """
    text = json.dumps([seed, sorted(point.items())])
    # 32 bits: what every random generator takes.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def check_stored_name(argument: str, what: str, name: str) -> None:
    """Refuses a name that the store cannot hold, or that it uses itself.

    Arguments:
        argument: where the name is from, for errors.
        what: has the name, for errors.
    """
    shown = f"{what} named {(name if len(name) <= 40 else name[:40] + '...')!r}"
    if name in RESERVED:
        raise fail(argument, shown, f"another name: the store has its own {' and '.join(RESERVED)}")
    storable = name and name.isprintable() and "/" not in name and not name.startswith(".") and name != "zarr.json"
    if not storable or len(name.encode()) > LONGEST_NAME:
        expected = f"printable text of at most {LONGEST_NAME} bytes, without '/' and not beginning with '.'"
        raise fail(argument, shown, f"a name that a folder can have: {expected}")


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise fail("grid", repr(name), "names that can be arguments of the function")
    check_stored_name("grid", "an axis", name)
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

"""What a task does, wherever it runs: calls the function at its points and sees to it that nothing escapes."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# The end of a traceback says what went wrong; all of it may be long.
LONGEST_ERROR = 4000


@dataclass(frozen=True)
class Work:
    """The function of a sweep with all that is the same at every point; travels to the workers.

    Fields:
        function: called as function(**point, **fixed), and with seed=... where it takes one.
        fixed: arguments that do not vary.
        seeded: whether it takes a seed.
        vectorised: whether it takes arrays of points, [point] each, and returns arrays with such a first axis.
        allow_nan: whether NaN is a result; otherwise a point that returns it has failed.
    """

    function: Callable[..., Any]
    fixed: Mapping[str, Any]
    seeded: bool
    vectorised: bool
    allow_nan: bool


@dataclass(frozen=True)
class PointResult:
    """One finished point.

    Fields:
        values: arrays by name; empty where it failed.
        error: why it failed; empty where it did not.
        seconds: how long it took.
    """

    values: Mapping[str, np.ndarray]
    error: str
    seconds: float


def run_points(work: Work, points: list[dict[str, Any]], seeds: list[int]) -> Iterator[PointResult]:
    """Results point by point, as they come; a vectorised function gives all at once."""
    if not work.vectorised:
        for point, seed in zip(points, seeds, strict=True):
            yield _guarded(lambda point=point, seed=seed: _one(work, point, seed), work)
        return
    began = time.perf_counter()
    try:
        together = _together(work, points, seeds)
    except Exception:
        # One bad point must not take its neighbours with it: they are called one by one.
        if len(points) == 1:
            yield PointResult({}, _trace(), time.perf_counter() - began)
            return
        for point, seed in zip(points, seeds, strict=True):
            yield _guarded(lambda point=point, seed=seed: _together(work, [point], [seed])[0], work)
        return
    seconds = (time.perf_counter() - began) / len(points)
    for values in together:
        yield PointResult(*_checked(values, work), seconds)


def _guarded(call: Callable[[], dict[str, np.ndarray]], work: Work) -> PointResult:
    began = time.perf_counter()
    try:
        values = call()
    except Exception:
        return PointResult({}, _trace(), time.perf_counter() - began)
    return PointResult(*_checked(values, work), time.perf_counter() - began)


def _one(work: Work, point: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    given = {**point, **work.fixed} | ({"seed": seed} if work.seeded else {})
    return _arrays(work.function(**given))


def _together(work: Work, points: list[dict[str, Any]], seeds: list[int]) -> list[dict[str, np.ndarray]]:
    given: dict[str, Any] = {name: np.array([point[name] for point in points]) for name in points[0]}
    found = _arrays(work.function(**given, **work.fixed, **({"seed": np.array(seeds)} if work.seeded else {})))
    for name, array in found.items():
        if array.ndim == 0 or array.shape[0] != len(points):
            raise ValueError(
                f"{name}: got shape {array.shape}; expected {len(points)} along the first axis, one per point"
            )
    return [{name: array[number] for name, array in found.items()} for number in range(len(points))]


def _arrays(found: Any) -> dict[str, np.ndarray]:
    if hasattr(found, "data_vars"):  # an xarray Dataset
        found = {str(name): variable.values for name, variable in found.data_vars.items()}
    if not isinstance(found, Mapping) or not found:
        raise TypeError(f"function: returned {type(found).__name__}; expected arrays or numbers by name")
    arrays = {str(name): np.asarray(value) for name, value in found.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "fiubc":
            raise TypeError(f"{name}: returned values of type {array.dtype}; expected numbers")
    return arrays


def _checked(values: dict[str, np.ndarray], work: Work) -> tuple[dict[str, np.ndarray], str]:
    if not work.allow_nan:
        for name, array in values.items():
            if array.dtype.kind in "fc" and np.isnan(array).any():
                return {}, f"ValueError: {name} is NaN (allow_nan=True takes it for a result)"
    return values, ""


def _trace() -> str:
    return traceback.format_exc()[-LONGEST_ERROR:]

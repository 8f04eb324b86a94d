"""What a task does, wherever it runs: it calls the function at its points and catches its errors."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .._plain import plain

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
        devices: how many local devices share the points of a task; JAX arrays spread over them where more than 1.
    """

    function: Callable[..., Any]
    fixed: Mapping[str, Any]
    seeded: bool
    vectorised: bool
    allow_nan: bool
    devices: int = 1


@dataclass(frozen=True)
class PointResult:
    """One finished point.

    Fields:
        values: arrays by name; empty where it failed.
        error: why it failed; empty where it did not.
        seconds: how long it took.
        axes: names of the axes of the values, where the function returned a Dataset.
        coordinates: values along those axes, [value] by name.
        attributes: what it says about its variables, by name; about the whole under the empty name.
        device: what it ran on, where it used JAX.
    """

    values: Mapping[str, np.ndarray]
    error: str = ""
    seconds: float = 0.0
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coordinates: Mapping[str, np.ndarray] = field(default_factory=dict)
    attributes: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    device: str = ""


def run_points(work: Work, points: list[dict[str, Any]], seeds: list[int]) -> Iterator[PointResult]:
    """Results point by point, as they come; a vectorised function gives all at once."""
    if work.vectorised and len(points) > 1:
        began = time.perf_counter()
        try:
            together = _together(work, points, seeds)
        except Exception:
            pass  # one bad point must not take its neighbours with it: they are called one by one
        else:
            seconds = (time.perf_counter() - began) / len(points)
            yield from (_checked(found, work, seconds) for found in together)
            return
    for point, seed in zip(points, seeds, strict=True):
        began = time.perf_counter()
        try:
            found = _together(work, [point], [seed])[0] if work.vectorised else _one(work, point, seed)
        except Exception:
            error = traceback.format_exc()[-LONGEST_ERROR:]
            yield PointResult({}, error, time.perf_counter() - began)
        else:
            yield _checked(found, work, time.perf_counter() - began)


def _one(work: Work, point: Mapping[str, Any], seed: int) -> PointResult:
    given = {**point, **work.fixed} | ({"seed": seed} if work.seeded else {})
    return _result(work.function(**given))


def _together(work: Work, points: list[dict[str, Any]], seeds: list[int]) -> list[PointResult]:
    given: dict[str, Any] = {name: np.array([point[name] for point in points]) for name in points[0]}
    if work.seeded:
        given["seed"] = np.array(seeds)
    count = len(points)
    if work.devices > 1:
        given = _spread(given, work.devices)
    found = _result(work.function(**given, **work.fixed))
    values = {name: array[:count] if work.devices > 1 and array.ndim else array for name, array in found.values.items()}
    for name, array in values.items():
        if array.ndim == 0 or array.shape[0] != count:
            raise ValueError(f"{name}: got shape {array.shape}; expected {count} along the first axis, one per point")
    axes = {name: named[1:] for name, named in found.axes.items()}
    inner = {name for named in axes.values() for name in named}
    coordinates = {name: array for name, array in found.coordinates.items() if name in inner}
    rows = ({name: array[number] for name, array in values.items()} for number in range(count))
    return [replace(found, values=row, axes=axes, coordinates=coordinates) for row in rows]


def _spread(given: Mapping[str, np.ndarray], devices: int) -> dict[str, Any]:
    """Arrays [point] as JAX arrays over local devices; the last point is repeated until all devices have as many."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    place = NamedSharding(Mesh(np.array(jax.local_devices()[:devices]), ("point",)), PartitionSpec("point"))
    missing = -len(next(iter(given.values()))) % devices
    return {name: jax.device_put(np.pad(array, (0, missing), mode="edge"), place) for name, array in given.items()}


def _result(found: Any) -> PointResult:
    """What the function returned, as arrays, and what it said about their axes."""
    axes, coordinates, attributes = {}, {}, {}
    if hasattr(found, "data_vars"):  # an xarray Dataset
        axes = {str(name): tuple(str(axis) for axis in variable.dims) for name, variable in found.data_vars.items()}
        coordinates = {str(name): index.values for name, index in found.coords.items() if name in found.dims}
        attributes = {str(name): _plain_attributes(found[name].attrs) for name in found.variables}
        attributes[""] = _plain_attributes(found.attrs)
        found = {str(name): variable.values for name, variable in found.data_vars.items()}
    if not isinstance(found, Mapping) or not found:
        raise TypeError(f"function: returned {type(found).__name__}; expected arrays or numbers by name")
    arrays = {str(name): _plain_text(np.asarray(value)) for name, value in found.items()}
    if len(arrays) < len(found):
        raise TypeError(f"function: returned {list(found)}; expected names that differ as text")
    for name, array in arrays.items():
        if array.dtype.kind not in "fiubcU":
            raise TypeError(f"{name}: returned values of type {array.dtype}; expected numbers or strings")
    lines = {name: _plain_text(array) for name, array in coordinates.items()}
    return PointResult(arrays, axes=axes, coordinates=lines, attributes=attributes)


def _plain_attributes(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as JSON has them; arrays become lists, and what JSON does not have becomes text."""
    return {str(name): plain(value) for name, value in attributes.items()}


def _plain_text(array: np.ndarray) -> np.ndarray:
    """Strings in the one form that the store knows."""
    if array.dtype.kind in "OT" and all(isinstance(value, str) for value in array.ravel().tolist()):
        return array.astype(str)
    return array


def _checked(found: PointResult, work: Work, seconds: float) -> PointResult:
    """The result with its time and device, or the error of a result that is NaN."""
    if not work.allow_nan:
        for name, array in found.values.items():
            if array.dtype.kind in "fc" and np.isnan(array).any():
                return PointResult({}, f"ValueError: {name} is NaN (allow_nan=True takes it for a result)", seconds)
    return replace(found, seconds=seconds, device=_device_name())


def _device_name() -> str:
    """What JAX runs on here; empty if JAX has not been imported, since asking would start it."""
    jax = sys.modules.get("jax")
    return "" if jax is None else f"{jax.local_device_count()} × {jax.devices()[0].device_kind}"

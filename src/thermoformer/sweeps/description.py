"""What a sweep is, in plain JSON: enough to notice a change, and to go on with it from its folder alone."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .. import __version__
from .._validation import fail
from .grid import Grid
from .work import Work

Function = TypeVar("Function", bound=Callable[..., Any])

# What makes it another sweep, and what may have changed since the folder was made.
IDENTITY, CHANGEABLE = ("grid", "batch", "seed"), ("function", "source", "fixed", "versions")


def describe(work: Work, grid: Grid, seed: int, axes: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The record of a sweep that is written beside its data."""
    return {
        "function": name_of(work.function),
        "source": _source(work.function),
        "grid": grid.to_json(),
        "batch": grid.batch,
        "seed": seed,
        "fixed": {name: _recorded(value) for name, value in work.fixed.items()},
        "vectorised": work.vectorised,
        "allow_nan": work.allow_nan,
        "axes": {name: list(named) for name, named in axes.items()},
        "versions": {"thermoformer": __version__, **{name: metadata.version(name) for name in ("jax", "numpy")}},
        "python": platform.python_version(),
        "revision": _revision(work.function),
        "created": now(),
        "runs": [],
    }


def now() -> str:
    """Date and time, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def name_of(function: Callable[..., Any]) -> str:
    """Where a function is found, as "module:name"; of a script that was run, the module is named after its file."""
    module = function.__module__
    if module == "__main__" and (file := getattr(sys.modules.get(module), "__file__", None)):
        module = Path(file).stem
    return f"{module}:{getattr(function, '__qualname__', type(function).__name__)}"


def found_function(name: str) -> Callable[..., Any]:
    """The function that "module:name" names. Imports the module: the name must come from the user, or be our own.

    Example:
        >>> found_function("math:sqrt")(9.0)
        3.0
    """
    module, _, path = name.partition(":")
    expected = "a function as module:name, where the module can be imported from here"
    if not module or not path or "<" in path:
        raise fail("function", repr(name), expected)
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise fail("function", f"{name!r} ({error})", expected) from error
    if not callable(found):
        raise fail("function", f"{name!r}, a {type(found).__name__}", expected)
    return found


def resumable(function: Function) -> Function:
    """Marks a function that a folder may name by itself: `Sweep.from_store` runs it without being told its name.

    Whoever can write a folder then chooses its arguments, so it must do no harm with any.

    Example:
        >>> @resumable
        ... def area(width, height):
        ...     return {"area": width * height}
        >>> area(2, 3)
        {'area': 6}
    """
    function.__resumable__ = True  # type: ignore[attr-defined]
    return function


def own_function(name: str) -> Callable[..., Any]:
    """The function of this library that a folder names: only such as are marked, found where they were made."""
    if name.startswith("thermoformer."):
        found = found_function(name)
        if name_of(found) == name and getattr(found, "__resumable__", False):
            return found
    raise fail("function", "nothing", f"the function of this sweep by name: {name!r}")


def fixed_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fixed arguments of a record, where plain JSON holds all of them."""
    for name, one in record.items():
        if "value" not in one:
            raise fail("store", f"a sweep with fixed argument {name!r} of another kind than JSON has", "its own script")
    return {name: one["value"] for name, one in record.items()}


def is_longer(grid: Mapping[str, list[Any]], than: Any) -> bool:
    """Whether a grid is another with more values at the ends of its axes."""
    if not isinstance(than, Mapping) or list(than) != list(grid):
        return False
    return grid != than and all(values[: len(than[name])] == than[name] for name, values in grid.items())


def _recorded(value: Any) -> dict[str, Any]:
    """A fixed argument: itself where JSON has such values; a digest of an array; else what it says about itself."""
    try:
        if json.loads(json.dumps(value, allow_nan=False)) == value:
            return {"value": value}
    except (TypeError, ValueError):
        pass
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        array = np.ascontiguousarray(value)
        digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
        return {"array": f"{array.dtype}{list(array.shape)}", "digest": digest}
    # Where an object lies in memory is not part of what it is.
    return {"text": re.sub(r" at 0x[0-9a-f]+", "", repr(value))}


def _source(function: Callable[..., Any]) -> str:
    """A hash of the function's text, so that a change is noticed; empty where there is no text."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return ""


def _revision(function: Callable[..., Any]) -> str:
    """The commit of the folder that the function is in; empty where there is none."""
    try:
        file = inspect.getsourcefile(function)
        folder = Path(file).parent if file else Path.cwd()
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, TypeError, subprocess.SubprocessError):
        return ""

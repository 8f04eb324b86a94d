"""The description of a sweep in plain JSON: enough to notice a change, and to continue it from its folder alone."""

from __future__ import annotations

import importlib
import json
import platform
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, TypeVar

from .. import __version__
from .._validation import fail
from .grid import Grid
from .identity import bound_values, name_of, recorded, revision_of, same_record, source_of
from .work import Work

Function = TypeVar("Function", bound=Callable[..., Any])

# What makes it another sweep, and what may have changed since the folder was made.
IDENTITY, CHANGEABLE = ("grid", "batch", "seed"), ("function", "source", "bound", "fixed", "versions")


def describe(work: Work, grid: Grid, seed: int, axes: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The record of a sweep that is written beside its data."""
    return {
        "function": name_of(work.function),
        "source": source_of(work.function),
        "bound": bound_values(work.function),
        "grid": grid.to_json(),
        "batch": grid.batch,
        "seed": seed,
        "fixed": {name: recorded(value) for name, value in work.fixed.items()},
        "vectorised": work.vectorised,
        "allow_nan": work.allow_nan,
        "axes": {name: list(named) for name, named in axes.items()},
        "versions": {"thermoformer": __version__, **{name: metadata.version(name) for name in ("jax", "numpy")}},
        "python": platform.python_version(),
        "revision": revision_of(work.function),
        "created": now(),
        "runs": [],
    }


def now() -> str:
    """Date and time, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def changed_entries(found: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, str]:
    """Entries of a description that differ from those of another, each with what differs in words.

    Arguments:
        found: the description of a folder. Folders of format 1 do not say what values a function is bound to.
        mine: what `describe` says now.
    """
    texts = {}
    for entry in (*IDENTITY, *CHANGEABLE):
        if "bound" not in found and (entry == "bound" or (entry == "source" and not found.get(entry))):
            continue
        if entry not in ("bound", "fixed", "versions"):
            # As JSON: 1, 1.0 and true are equal in Python, and so are mappings in another order.
            if json.dumps(found.get(entry)) != json.dumps(mine[entry]):
                texts[entry] = f"{entry} {short(found.get(entry))}"
            continue
        before, after = found.get(entry) or {}, mine[entry]
        for name in {**before, **after}:
            if not same_record(before.get(name), after.get(name)):
                was, now_is = _short_record(before.get(name)), _short_record(after.get(name))
                change = f"{was}, now {now_is}" if was != now_is else f"{was}, which has changed or cannot be compared"
                texts[entry] = f"{entry} {name!r} ({change})"
                break
    return texts


def _short_record(record: Any) -> str:
    if not isinstance(record, dict):
        return "absent" if record is None else short(record)
    return short(record.get("value", record.get("text", record.get("array"))))


def short(value: Any) -> str:
    """A value in at most 80 characters."""
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def found_function(name: str) -> Callable[..., Any]:
    """The function that "module:name" names. Imports the module: the name must come from the user, or be our own.

    Example:
        >>> found_function("math:sqrt")(9.0)
        3.0
    """
    module, _, path = name.partition(":")
    expected = "a function as module:name, where the module can be imported from here"
    if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise fail("function", repr(name), expected)
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module may raise anything while it is imported
        raise fail("function", f"{name!r} ({type(error).__name__}: {error})", expected) from error
    if not callable(found):
        raise fail("function", f"{name!r}, a {type(found).__name__}", expected)
    return found


def resumable(function: Function) -> Function:
    """Marks a function that `Sweep.from_store` may run because a folder names it.

    Whoever writes the folder chooses its arguments, so it must do no harm with any.

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

"""The identity of a function: where it is found, its text, and the values bound to it.

A sweep compares these with what its folder says, so that results of different functions are never mixed.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import inspect
import json
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# Constants of a module that a function may use: mutable globals are often caches.
_CONSTANTS = (bool, int, float, complex, str, bytes, np.ndarray, np.generic)


def name_of(function: Any) -> str:
    """Where a function is found, as "module:name"; of a script that was run, the module is named after its file."""
    module = function.__module__
    if module == "__main__" and (file := getattr(sys.modules.get(module), "__file__", None)):
        module = Path(file).stem
    return f"{module}:{getattr(function, '__qualname__', type(function).__name__)}"


def source_of(function: Any) -> str:
    """A hash of the function's text, so that a change is noticed; empty if there is no text."""
    return _inspected(function, lambda thing: _hash(inspect.getsource(thing).encode()))


def revision_of(function: Any) -> str:
    """The commit that is checked out where the function's file is; empty if there is none.

    It is read from the repository's files. Git itself is not run, since its configuration can name programs to run.
    """
    file = _inspected(function, lambda thing: inspect.getsourcefile(thing) or "")
    git = next((folder / ".git" for folder in Path(file).resolve().parents if (folder / ".git").is_dir()), None)
    if not file or git is None:
        return ""
    try:
        head = (git / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        if name != head:
            packed = (git / "packed-refs").read_text() if (git / "packed-refs").is_file() else ""
            known = {line[41:]: line[:40] for line in packed.splitlines()}
            head = (git / name).read_text().strip() if (git / name).is_file() else known.get(name, "")
    except (OSError, ValueError):
        return ""
    return head if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", head) else ""


def _inspected(function: Any, read: Callable[[Any], str]) -> str:
    """What is read of a function, or of the class of an object that can be called; empty if there is nothing."""
    while isinstance(function, functools.partial):
        function = function.func
    for thing in (function, type(function)):
        try:
            return read(thing)
        except (OSError, TypeError):
            continue
    return ""


def bound_values(function: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """Records of the values that are bound to a function, by name and where it has them from.

    Example:
        >>> bound_values(functools.partial(round, ndigits=2))
        {'partial ndigits': {'value': 2}}
    """
    return {name: recorded(value) for name, value in _bound(function)}


def _bound(function: Any) -> Iterator[tuple[str, Any]]:
    """Arguments of a partial, the object of a method, defaults, closure variables and constants of the module."""
    if isinstance(function, functools.partial):
        yield from ((f"partial argument {number}", value) for number, value in enumerate(function.args))
        yield from ((f"partial {name}", value) for name, value in function.keywords.items())
        yield from _bound(function.func)
    elif isinstance(function, types.MethodType):
        yield "self", function.__self__
        yield from _bound(function.__func__)
    elif isinstance(function, types.FunctionType):
        code, defaults = function.__code__, function.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        named = dict(zip(names, defaults, strict=True)) | (function.__kwdefaults__ or {})
        yield from ((f"default {name}", value) for name, value in named.items())
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield f"closure {name}", _content(cell)
        for name in sorted(_names_used(code) & function.__globals__.keys()):
            if _is_constant(function.__globals__[name]) and not name.startswith("__"):
                yield f"global {name}", function.__globals__[name]
    elif hasattr(function, "__wrapped__"):  # as that of jax.jit
        yield from _bound(function.__wrapped__)
    elif not isinstance(function, (type, types.BuiltinFunctionType)):
        yield "self", function


def recorded(value: Any) -> dict[str, Any]:
    """A value as JSON: itself if JSON has such values; else a hash of an array or of all that makes up an object.

    The entry `unknown` says why a value cannot be compared with another one.
    """
    try:
        if _is_json(value):
            json.dumps(value, allow_nan=False)
            return {"value": value}
    except (ValueError, RecursionError):  # NaN, or a list in itself
        pass
    if _is_array(value):
        array = np.ascontiguousarray(value)
        return {"array": f"{array.dtype}{list(array.shape)}", "digest": _hash(array.tobytes())}
    try:
        # Where an object is in memory is not part of what it is.
        text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    except Exception:  # code of the user
        text = type(value).__qualname__
    try:
        return {"text": text, "digest": _Digests().of(value)}
    except Exception as error:  # code of the user, or an object such as an open file
        return {"text": text, "unknown": f"{type(error).__name__}: {error}"}


def same_record(found: Any, mine: Any) -> bool:
    """Whether two records of `recorded` are those of the same value."""
    if not isinstance(found, dict) or not isinstance(mine, dict):
        return found == mine
    if set(found) == {"text"}:  # of format 1
        return found["text"] == mine.get("text")
    if "unknown" in found or "unknown" in mine:
        return False
    one, other = ({name: entry for name, entry in record.items() if name != "text"} for record in (found, mine))
    # As JSON: 1, 1.0 and true are equal in Python.
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class _Digests:
    """Hashes of values and of all that they consist of, equal in every process."""

    def __init__(self) -> None:
        self.open: list[int] = []
        # With the values themselves, so that no other value takes their place in memory.
        self.finished: dict[int, tuple[str, Any]] = {}

    def of(self, value: Any) -> str:
        """The hash of a value; raises an error if it cannot be copied."""
        if id(value) in self.finished:
            return self.finished[id(value)][0]
        if id(value) in self.open:
            return f"cycle {self.open.index(id(value))}"
        self.open.append(id(value))
        digest = _hash(json.dumps([type(value).__qualname__, *self._parts(value)]).encode())
        self.open.pop()
        self.finished[id(value)] = digest, value
        return digest

    def _parts(self, value: Any) -> Iterator[str]:
        kind: Any = type(value)
        if value is None or kind in (bool, int, float, complex, str, bytes):
            yield repr(value)
        elif _is_array(value):
            array = np.ascontiguousarray(value)
            yield from (str(array.dtype), str(array.shape), _hash(array.tobytes()))
        elif kind in (list, tuple):
            yield from (self.of(entry) for entry in value)
        elif kind in (set, frozenset):
            yield from sorted(self.of(entry) for entry in value)
        elif kind is dict:
            yield from sorted(f"{self.of(name)} {self.of(entry)}" for name, entry in value.items())
        elif kind is types.ModuleType:
            yield value.__name__
        elif isinstance(value, type) or (kind is types.BuiltinFunctionType and not _has_object(value)):
            yield name_of(value)
        elif kind in (types.FunctionType, types.MethodType, functools.partial) or hasattr(value, "__wrapped__"):
            yield from (name_of(value), source_of(value))
            yield from (f"{name} {self.of(entry)}" for name, entry in _bound(value))
        else:
            yield from self._state(value)

    def _state(self, value: Any) -> Iterator[str]:
        """What an object would be copied from; objects that cannot be copied raise a TypeError."""
        known = copyreg.dispatch_table.get(type(value))
        reduced = known(value) if known else value.__reduce_ex__(4)
        if isinstance(reduced, str):
            yield reduced
            return
        parts: list[Any] = [*reduced, None, None, None][:5]
        make, arguments, state, *entries = parts
        if isinstance(state, dict):  # values that a property keeps do not change what the object is
            kept = {name for name in state if isinstance(getattr(type(value), name, None), functools.cached_property)}
            state = {name: entry for name, entry in state.items() if name not in kept}
        yield from (self.of(part) for part in (make, arguments, state))
        yield from (self.of(list(part)) if part is not None else "" for part in entries)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _names_used(code: types.CodeType) -> set[str]:
    inner = (_names_used(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


def _is_constant(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(_is_constant(entry) for entry in value)
    return value is None or type(value) in _CONSTANTS or _is_array(value)


def _is_array(value: Any) -> bool:
    """Whether it is an array of NumPy or JAX, of numbers or strings."""
    ours = isinstance(value, (np.ndarray, np.generic)) or type(value).__module__.partition(".")[0] in ("jax", "jaxlib")
    kind = getattr(value, "dtype", None) if ours and hasattr(value, "__array__") else None
    return isinstance(kind, np.dtype) and not kind.hasobject


def _has_object(value: Any) -> bool:
    """Whether a built-in function is the method of an object."""
    owner = getattr(value, "__self__", None)
    return owner is not None and not isinstance(owner, types.ModuleType)


def _is_json(value: Any) -> bool:
    """Whether JSON gives a value back as it was."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(entry) for name, entry in value.items())
    if isinstance(value, list):
        return all(_is_json(entry) for entry in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]

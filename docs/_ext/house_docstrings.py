"""Docstrings of this library are plain text in the house form: made safe for Sphinx before napoleon reads them."""

from __future__ import annotations

import inspect
import re
from typing import Any

from sphinx.application import Sphinx

# What is within backticks stays as it is.
_LITERAL = re.compile(r"(`+[^`]+`+)")


def plain_text(lines: list[str]) -> list[str]:
    """The lines with the letters that Sphinx would read as markup escaped; examples are left alone."""
    safe, in_example = [], False
    for line in lines:
        in_example = line.lstrip().startswith(">>>") or (in_example and bool(line.strip()))
        safe.append(line if in_example else _escape(line))
    return safe


def _escape(line: str) -> str:
    # `Fields, beside ...:` or `Fields (read-only):` is a section like `Fields:`; napoleon knows sections by one word.
    line = re.sub(r"^Fields[ ,].*:$", "Fields:", line)
    parts = _LITERAL.split(line)
    parts[::2] = [re.sub(r"(\*|\||_(?!\w))", r"\\\1", part) for part in parts[::2]]
    # `first`..`last`: markup ends at a space, and an escaped one does not show.
    return "".join("\\ ..\\ " if part == ".." else part for part in parts)


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = plain_text(lines)


def _process_property(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """A property has no sections, and napoleon takes what stands before a colon for its type: the text as it was."""
    if what == "property":
        lines[:] = plain_text(inspect.cleandoc(obj.__doc__ or "").splitlines())


def _process_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, arguments: str, result: str
) -> tuple[str, str] | None:
    """Arrays of JAX by the name that users know."""
    if not arguments:
        return None
    return tuple((part or "").replace("jaxlib._jax.Array", "Array") for part in (arguments, result))


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Fields of named tuples are described in the class, not one by one as an alias for a field number."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Around napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("autodoc-process-docstring", _process_property, priority=600)
    app.connect("autodoc-process-signature", _process_signature)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True}

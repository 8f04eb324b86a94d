"""Choices as links: what a page shows is in its address, and an address from anywhere is read with care."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from .._validation import fail

Choice = TypeVar("Choice")
# Longer than any honest value: a table of signs is the longest.
LONGEST = 30_000


def to_link(choice: Any) -> dict[str, str]:
    """The fields of a choice as text, by name; those that are as by default are left out.

    Arguments:
        choice: a frozen dataclass of numbers, words and tuples of them, with defaults.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Some:
        ...     width: float = 10.0
        ...     layers: tuple[str, ...] = ("good", "random")
        >>> to_link(Some(width=20.0)), to_link(Some())
        ({'width': '20.0'}, {})
    """
    given = {field.name: getattr(choice, field.name) for field in fields(choice)}
    usual = type(choice)()
    return {name: _text(value) for name, value in given.items() if value != getattr(usual, name)}


def from_link(usual: Choice, given: Mapping[str, Any]) -> tuple[Choice, list[str]]:
    """A choice from text by name, and a sentence for each value that could not be taken; there the usual one stays.

    Arguments:
        usual: the choice where the address says nothing.
        given: text by name, as in the address; names that the choice does not have are ignored.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Some:
        ...     width: float = 10.0
        >>> from_link(Some(), {"width": "wide"})
        (Some(width=10.0), ["width: got 'wide'; expected a number; 10.0 is taken"])
    """
    problems: list[str] = []
    read: dict[str, Any] = {}
    for field in fields(usual):  # pyright: ignore[reportArgumentType]
        if field.name in given:
            stays = getattr(usual, field.name)
            try:
                read[field.name] = _value(field.name, given[field.name], stays)
            except ValueError as error:
                problems.append(f"{error}; {_text(stays)} is taken")
    # Values may need each other, so they are tried together, without those that an error names.
    while True:
        try:
            return replace(usual, **read), problems  # pyright: ignore[reportArgumentType]
        except ValueError as error:
            guilty = getattr(error, "argument", None)
            if guilty not in read:
                break
            problems.append(f"{error}; {_text(getattr(usual, guilty))} is taken")
            del read[guilty]
    # A usual value may not fit what the address asks for; some choices know what is nearest.
    if (nearest := getattr(usual, "nearest", None)) is not None:
        try:
            return nearest(**vars(usual) | read), problems
        except ValueError:
            pass
    # Where none is named that the address has, each is tried alone.
    for name, value in read.items():
        try:
            usual = replace(usual, **{name: value})  # pyright: ignore[reportArgumentType]
        except ValueError as error:
            problems.append(f"{error}; {_text(getattr(usual, name))} is taken")
    return usual, problems


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_text(entry) for entry in value)
    return str(int(value)) if isinstance(value, bool) else str(value)


def _value(name: str, text: Any, like: Any) -> Any:
    """Text as a value of the kind that stands there now."""
    if not isinstance(text, str) or len(text) > LONGEST:
        raise fail(name, "several values" if isinstance(text, list) else "too long a text", "one short value")
    if isinstance(like, tuple):
        entries = text.split(",") if text else []
        return tuple(_value(name, entry, like[0]) for entry in entries)
    if isinstance(like, bool):
        if text not in ("0", "1"):
            raise fail(name, repr(text), "0 or 1")
        return text == "1"
    if isinstance(like, int | float):
        try:
            return type(like)(text)
        except (ValueError, OverflowError):
            raise fail(name, repr(text), "a whole number" if isinstance(like, int) else "a number") from None
    return text

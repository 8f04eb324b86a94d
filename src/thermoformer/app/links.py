"""Choices as links: the address of the page holds what it shows, and any address can be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from .._validation import fail, nonnegative_integer, one_number

Choice = TypeVar("Choice")
# Longer than any valid value: a table of signs is the longest.
LONGEST = 30_000
LARGEST_SEED = 2**32 - 1


def to_link(choice: Any) -> dict[str, str]:
    """The fields of a choice as text, by name, without those at their default.

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
    default = type(choice)()
    return {name: _text(value) for name, value in vars(choice).items() if value != getattr(default, name)}


def from_link(default: Choice, given: Mapping[str, Any]) -> tuple[Choice, list[str]]:
    """A choice from text by name, and a sentence for each value that is not valid; the default stays there.

    Arguments:
        default: the choice if the address says nothing.
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
    made: Any = default

    def refuse(name: str, error: ValueError) -> None:
        problems.append(f"{error}; {_text(getattr(default, name))} is taken")

    for name in [field.name for field in fields(made) if field.name in given]:
        try:
            read[name] = _value(name, given[name], getattr(default, name))
        except ValueError as error:
            refuse(name, error)
    # Values may depend on each other: they are tried together, without those that an error names.
    while True:
        try:
            return replace(made, **read), problems
        except ValueError as error:
            name = getattr(error, "argument", None)
            if name not in read:
                break
            refuse(name, error)
            del read[name]
    # A default may not fit what the address asks for; some choices know the nearest one that does.
    if (nearest := getattr(made, "nearest", None)) is not None:
        try:
            return nearest(**vars(made) | read), problems
        except ValueError:
            pass
    for name, value in read.items():
        try:
            made = replace(made, **{name: value})
        except ValueError as error:
            refuse(name, error)
    return made, problems


def set_field(choice: Any, name: str, value: Any) -> None:
    """Sets a checked field of a frozen record that is being made: equal choices then have equal links."""
    object.__setattr__(choice, name, value)


def within(name: str, value: Any, low: float, high: float) -> float:
    """A number between two others."""
    number = one_number(name, value)
    if not low <= number <= high:
        raise fail(name, f"{number:g}", f"a number from {low:g} to {high:g}")
    return number


def whole_within(name: str, value: Any, low: int, high: int) -> int:
    """A whole number between two others."""
    number = nonnegative_integer(name, value)
    if not low <= number <= high:
        raise fail(name, number, f"a whole number from {low} to {high}")
    return number


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_text(entry) for entry in value)
    return str(value)


def _value(name: str, text: Any, like: Any) -> Any:
    """Text as a value of the type of another."""
    if not isinstance(text, str) or len(text) > LONGEST:
        raise fail(name, "several values" if isinstance(text, list) else "too long a text", "one short value")
    if isinstance(like, tuple):
        return tuple(_value(name, entry, like[0]) for entry in (text.split(",") if text else []))
    if isinstance(like, int | float):
        try:
            return type(like)(text)
        except (ValueError, OverflowError):
            raise fail(name, repr(text), "a whole number" if isinstance(like, int) else "a number") from None
    return text

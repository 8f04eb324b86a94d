"""Checks of what comes in at the public entries: one object in place of another, places and tokens that do not fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from .._validation import fail, layers_of_attention, positive_integer, real_array, traced

Kind = TypeVar("Kind")

# Steps are counted in 32 bits: more would never end.
MOST_STEPS = 2**31 - 1


def instance(name: str, value: Any, kind: type[Kind], expected: str) -> Kind:
    """The value, where it is of the kind; arrays are told by their shape, and small things as they are."""
    if isinstance(value, kind):
        return value
    raise fail(name, described(value), expected)


def described(value: Any) -> str:
    """What came, in few words: a shape, a number or a word, the heads of a tuple, or else the type."""
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    plain = isinstance(value, tuple) and all(isinstance(one, int) for one in value)
    if plain or value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


def sequence(name: str, value: Any, expected: str) -> Any:
    """The value, where it can be gone through."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise fail(name, repr(value), expected)
    return value


def attention_of_layers(value: Any, examples: int, tokens: int) -> tuple[np.ndarray, ...]:
    """`layers_of_attention` of whatever came."""
    if not hasattr(value, "shape"):
        sequence("attention", value, "a sequence with one array per layer")
    return layers_of_attention(value, examples, tokens)


def step_limit(value: Any) -> int:
    """The most steps of a search."""
    steps = positive_integer("max_steps", value)
    if steps > MOST_STEPS:
        raise fail("max_steps", steps, f"at most {MOST_STEPS}")
    return steps


def places(name: str, value: Any, count: int) -> np.ndarray | slice:
    """Which of `count` things are chosen, at least one: a slice, whole numbers (from the end if below 0) or a mask.

    JAX would take the first or the last thing in place of one that is not there.
    """
    expected = "a slice or an array of indices"
    if isinstance(value, slice):
        try:
            left = len(range(*value.indices(count)))
        except (TypeError, ValueError) as error:
            raise fail(name, value, expected) from error
        if not left:
            raise fail(name, "nothing", f"at least one of {count}")
        return value
    try:
        chosen = np.asarray(value)
    except ValueError as error:
        raise fail(name, "a ragged sequence", expected) from error
    if chosen.ndim == 0:
        raise fail(name, repr(value), expected)
    if chosen.size == 0:
        raise fail(name, "nothing", f"at least one of {count}")
    if chosen.ndim != 1:
        raise fail(name, f"an array of shape {chosen.shape}", expected)
    if chosen.dtype.kind == "b":
        if len(chosen) != count:
            raise fail(name, f"a mask of {len(chosen)}", f"{count}, one entry for each")
        if not chosen.any():
            raise fail(name, "nothing", f"at least one of {count}")
        return chosen
    if chosen.dtype.kind not in "iu":
        raise fail(name, f"an array of type {chosen.dtype}", expected)
    if chosen.min() < -count or chosen.max() >= count:
        raise fail(name, f"{chosen.min()} to {chosen.max()}", f"{-count} to {count - 1}")
    return chosen


def tokens_with_logits(x: np.ndarray, factor: float) -> np.ndarray:
    """Tokens whose logits, at most `factor` times the square of their largest entry, are numbers."""
    largest = float(np.abs(x).max())
    if not np.isfinite(largest * largest * factor):
        raise fail("x", f"numbers up to {largest:.3g}, whose logits overflow", "smaller numbers")
    return x


def check_logits(x: np.ndarray, terms: int, *weights: np.ndarray) -> None:
    """Raises if logits overflow: sums of `terms` products of two entries of x and one entry of each weight array."""
    if not traced(x, weights):
        tokens_with_logits(x, math.prod((float(np.abs(part).max()) for part in weights), start=float(terms)))


def batch_arrays(name: str, batch: Any) -> tuple[Any, Any]:
    """Tokens and labels of a batch as arrays, wherever they lie: nothing is fetched from a device."""
    if not isinstance(batch, tuple) or len(batch) != 2:
        kind = f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, Sequence) else "")
        raise fail(name, kind, "two arrays, tokens and labels")
    try:
        x, y = (part if hasattr(part, "dtype") else np.asarray(part) for part in batch)
    except ValueError as error:
        raise fail(name, "a ragged sequence", "two arrays, tokens and labels") from error
    for part in (x, y):
        if np.dtype(part.dtype).kind not in "fiub":
            raise fail(name, f"an array of type {part.dtype}", "two arrays of real numbers, tokens and labels")
    return x, y


def float32_tokens(name: str, x: Any) -> np.ndarray:
    """Tokens [example, token, feature] in the precision of training."""
    tokens = real_array(name, x, ("example", "token", "feature"))
    with np.errstate(over="ignore"):  # what does not fit is refused here
        short = tokens.astype(np.float32)
    if not np.isfinite(short).all():
        raise fail(name, f"numbers up to {np.abs(tokens).max():.3g}", "numbers that float32 holds, up to 3.4e38")
    return short

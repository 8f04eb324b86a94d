"""Checks of user input: each error names the argument, the value that was given and what was expected."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

Kind = TypeVar("Kind")

# Rows of attention are sums of floats; float32 softmax rows miss 1 by about 1e-6.
ROW_SUM_TOLERANCE = 1e-5
# Whole numbers from here on do not fit into the integers of NumPy and JAX.
INTEGER_LIMIT = 2**63
# JAX counts the steps of a search in 32 bits.
MOST_STEPS = 2**31 - 1


class InputError(ValueError):
    """Input that is refused, with the message `argument: got …; expected …`.

    Fields:
        argument: its name.
        got: what was given, in words.
        expected: what would do, in words.

    Example:
        >>> error = InputError("width", -1, "a whole number, 1 or more")
        >>> error.argument, str(error)
        ('width', 'width: got -1; expected a whole number, 1 or more')
    """

    # Where users find it; tracebacks show this name.
    __module__ = "thermoformer"

    def __init__(self, argument: str, got: object, expected: str) -> None:
        # All three are arguments of the exception, so that it can be sent to another process.
        super().__init__(argument, str(got), expected)
        self.argument, self.got, self.expected = argument, str(got), expected

    def __str__(self) -> str:
        return f"{self.argument}: got {self.got}; expected {self.expected}"


def fail(name: str, got: object, expected: str) -> InputError:
    """An error that names the argument, what it got and what was expected, to be raised."""
    return InputError(name, got, expected)


def traced(*values: Any) -> bool:
    """Whether JAX traces any of the values, for jit, vmap or a derivative: they have no numbers to check."""
    jax = sys.modules.get("jax")
    return jax is not None and any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def numpy_for(*values: Any) -> Any:
    """NumPy for numbers, `jax.numpy` where JAX traces any of the values."""
    return sys.modules["jax"].numpy if traced(values) else np


def numbers(tree: Any) -> Any:
    """The result of a program as NumPy arrays and Python numbers; traced results are returned unchanged."""
    if traced(tree):
        return tree
    jax = sys.modules["jax"]
    return jax.tree.map(lambda leaf: np.asarray(leaf) if np.ndim(leaf) else np.asarray(leaf).item(), tree)


def real_array(name: str, value: Any, axes: Sequence[str] | None = None) -> np.ndarray:
    """The value as a finite float64 array with the named axes; of a traced array type and shape are checked."""
    known = not traced(value)
    try:
        array = np.asarray(value) if known else sys.modules["jax"].numpy.asarray(value)
    except ValueError as error:
        raise fail(name, "a ragged sequence", "an array of real numbers") from error
    if array.dtype.kind not in "fiub":
        raise fail(name, f"an array of type {array.dtype}", "an array of real numbers")
    array = array.astype(np.float64, copy=False)
    if axes is not None and array.ndim != len(axes):
        raise fail(name, f"shape {array.shape}", f"{len(axes)} axes [{', '.join(axes)}]")
    if array.size == 0:
        raise fail(name, f"shape {array.shape}", "at least one entry along every axis")
    if known and not np.isfinite(array).all():
        bad = int(array.size - np.count_nonzero(np.isfinite(array)))
        raise fail(name, f"{bad} NaN or infinite entries", "finite numbers only")
    return array


def labels_for(name: str, value: Any, examples: int, outputs: int = 1) -> np.ndarray:
    """Labels as float64, [example] for one output and [example, output] for several."""
    labels = real_array(name, value)
    if outputs == 1 and labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if outputs == 1 and labels.ndim != 1:
        raise fail(name, f"shape {labels.shape}", "1 axis [example]: the network has one output")
    if outputs > 1 and (labels.ndim != 2 or labels.shape[1] != outputs):
        raise fail(name, f"shape {labels.shape}", f"[example, {outputs}]: the network has {outputs} outputs")
    if len(labels) != examples:
        raise fail(name, f"{len(labels)} labels", f"{examples}, one per example")
    return labels


def class_labels(name: str, value: Any, examples: int, classes: int | None = None) -> tuple[np.ndarray, int]:
    """Numbers of classes, counted from 0, as int64 [example], and how many classes there are.

    Arguments:
        classes: how many; by default one more than the largest label.
    """
    labels = np.asarray(value)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise fail(name, f"{labels.dtype} of shape {labels.shape}", "whole numbers [example]")
    if len(labels) != examples:
        raise fail(name, f"{len(labels)} labels", f"{examples}, one per example")
    count = int(labels.max()) + 1 if classes is None else positive_integer("classes", classes)
    if labels.min() < 0 or labels.max() >= count:
        raise fail(name, f"{labels.min()} to {labels.max()}", f"0 to {count - 1}")
    return labels.astype(np.int64), count


def attention_matrices(name: str, value: Any) -> np.ndarray:
    """Attention [example, head, query, key] whose rows are probabilities over keys."""
    attention = real_array(name, value, ("example", "head", "query", "key"))
    if attention.shape[2] != attention.shape[3]:
        raise fail(name, f"shape {attention.shape}", "as many queries as keys")
    if traced(attention):
        return attention
    if attention.min() < 0:
        raise fail(name, f"a smallest entry of {attention.min():.3g}", "no negative entries")
    miss = float(np.abs(attention.sum(-1) - 1).max())
    if miss > ROW_SUM_TOLERANCE:
        raise fail(name, f"rows that miss a sum of 1 by up to {miss:.3g}", "every row to sum to 1 over keys")
    return attention


def layers_of_attention(value: Any, examples: int, tokens: int) -> tuple[np.ndarray, ...]:
    """One checked attention array per layer, all for the same examples and tokens."""
    expected = "a sequence with one array per layer"
    if hasattr(value, "shape"):
        raise fail("attention", f"one array of shape {value.shape}", expected)
    sequence("attention", value, expected)
    layers = tuple(attention_matrices(f"attention[{index}]", layer) for index, layer in enumerate(value))
    if not layers:
        raise fail("attention", "no layers", "at least one array [example, head, query, key]")
    for index, layer in enumerate(layers):
        if layer.shape[0] != examples or layer.shape[2] != tokens:
            raise fail(
                f"attention[{index}]",
                f"{layer.shape[0]} examples of {layer.shape[2]} tokens",
                f"{examples} examples of {tokens} tokens, as in x",
            )
    return layers


def nonnegative_number(name: str, value: Any) -> float:
    """One finite number, zero or more: a temperature, say."""
    number = _number(name, value)
    if not traced(number) and not 0 <= number < np.inf:
        raise fail(name, number, "a finite number, zero or more")
    return number


def positive_number(name: str, value: Any) -> float:
    """One finite number above zero."""
    number = _number(name, value)
    if not traced(number) and not 0 < number < np.inf:
        raise fail(name, number, "a number above 0")
    return number


def one_number(name: str, value: Any) -> float:
    """One finite number, of any size and sign."""
    number = _number(name, value)
    return number if traced(number) else float(real_array(name, number))


def _number(name: str, value: Any) -> float:
    """One number, of any size and sign; of a traced one its shape is checked."""
    words = isinstance(value, (bool, np.bool_, str, bytes))  # these would read as numbers
    try:
        if not words and np.shape(value) == ():
            return value if traced(value) else float(value)
    except (TypeError, ValueError) as error:
        raise fail(name, repr(value), "one number") from error
    raise fail(name, f"shape {np.shape(value)}" if traced(value) else repr(value), "one number")


def positive_integer(name: str, value: Any) -> int:
    """A whole number, one or more."""
    return _integer(name, value, 1, "a whole number, 1 or more")


def nonnegative_integer(name: str, value: Any) -> int:
    """A whole number, zero or more."""
    return _integer(name, value, 0, "a whole number, zero or more")


def _integer(name: str, value: Any, least: int, expected: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise fail(name, repr(value), expected)
    if value >= INTEGER_LIMIT:
        raise fail(name, value, "a whole number below 2**63")
    return int(value)


def machine_memory() -> int:
    """Bytes of memory of this machine; `sys.maxsize` if the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize


def check_memory(name: str, value: Any, needed: int) -> None:
    """Refuses a size that needs more memory than the machine has.

    Arguments:
        name, value: the argument that sets the size.
        needed: bytes, estimated.

    Example:
        >>> check_memory("width", 10**9, 10**20)
        Traceback (most recent call last):
        thermoformer.InputError: width: got 1000000000, which needs about 9.31e+10 GiB of memory; ...
    """
    if needed > machine_memory():
        got = f"{value}, which needs about {needed / 2**30:.3g} GiB of memory"
        raise fail(name, got, f"a size that fits into {machine_memory() / 2**30:.3g} GiB")


def one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """One of the given words."""
    if value not in choices:
        raise fail(name, repr(value), "one of " + ", ".join(repr(choice) for choice in choices))
    return value


def instance(name: str, value: Any, kind: type[Kind], expected: str) -> Kind:
    """The value, if it has the given type."""
    if isinstance(value, kind):
        return value
    if hasattr(value, "shape"):
        raise fail(name, f"an array of shape {tuple(value.shape)}", expected)
    integers = isinstance(value, tuple) and all(isinstance(one, int) for one in value)
    if integers or value is None or isinstance(value, (bool, int, float, str)):
        raise fail(name, repr(value), expected)
    word = type(value).__name__
    raise fail(name, f"{'an' if word[0] in 'AEIOU' else 'a'} {word}", expected)


def sequence(name: str, value: Any, expected: str) -> Any:
    """The value, if it can be iterated over and is no string."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise fail(name, repr(value), expected)
    return value


def step_limit(value: Any) -> int:
    """The largest number of steps of a search."""
    steps = positive_integer("max_steps", value)
    if steps > MOST_STEPS:
        raise fail("max_steps", steps, f"at most {MOST_STEPS}")
    return steps


def gram_matrix(name: str, value: Any, size: int) -> Any:
    """A symmetric positive semidefinite matrix of the given size; of a traced matrix only the shape is checked."""
    gram = real_array(name, value, ("path", "path"))
    if gram.shape != (size, size):
        raise fail(name, f"shape {gram.shape}", f"({size}, {size})")
    symmetric = (gram + gram.T) / 2
    if not traced(gram):
        scale = np.abs(gram).max()
        if np.abs(gram - symmetric).max() > 5e-9 * scale:
            raise fail(name, "a matrix that is not symmetric", "a symmetric matrix")
        smallest = np.linalg.eigvalsh(symmetric)[0]
        if smallest < -1e-8 * scale:
            raise fail(name, f"a smallest eigenvalue of {smallest:.3g}", "a positive definite matrix")
    return symmetric


def chosen_places(name: str, value: Any, count: int) -> np.ndarray:
    """One or more indices from 0 into something of a given length, as an array [place]."""
    chosen = np.asarray(value)
    if chosen.ndim != 1 or not chosen.size or chosen.dtype.kind not in "iu":
        raise fail(name, f"{chosen.dtype} of shape {chosen.shape}", "one or more whole numbers")
    if chosen.min() < 0 or chosen.max() >= count:
        raise fail(name, f"{chosen.min()} to {chosen.max()}", f"0 to {count - 1}")
    return chosen


def places(name: str, value: Any, count: int) -> np.ndarray | slice:
    """A slice, indices (negative ones count from the end) or a mask that selects at least one of `count` entries.

    JAX would silently take the first or last entry in place of an index out of range.
    """
    expected, nothing = "a slice or an array of indices", fail(name, "nothing", f"at least one of {count}")
    try:
        chosen = np.arange(count)[value] if isinstance(value, slice) else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise fail(name, value if isinstance(value, slice) else "a ragged sequence", expected) from error
    if chosen.ndim == 0:
        raise fail(name, repr(value), expected)
    if chosen.size == 0:
        raise nothing
    if chosen.ndim != 1:
        raise fail(name, f"an array of shape {chosen.shape}", expected)
    if isinstance(value, slice):
        return value
    if chosen.dtype.kind == "b":
        if len(chosen) != count:
            raise fail(name, f"a mask of {len(chosen)}", f"{count}, one entry for each")
        if not chosen.any():
            raise nothing
    elif chosen.dtype.kind not in "iu":
        raise fail(name, f"an array of type {chosen.dtype}", expected)
    elif chosen.min() < -count or chosen.max() >= count:
        raise fail(name, f"{chosen.min()} to {chosen.max()}", f"{-count} to {count - 1}")
    return chosen


def tokens_with_logits(x: np.ndarray, factor: float) -> np.ndarray:
    """Tokens whose logits, at most `factor` times the square of their largest entry, do not overflow."""
    largest = float(np.abs(x).max())
    if not np.isfinite(largest * largest * factor):
        raise fail("x", f"numbers up to {largest:.3g}, whose logits overflow", "smaller numbers")
    return x


def check_logits(x: np.ndarray, terms: int, *weights: np.ndarray) -> None:
    """Raises if logits overflow: sums of `terms` products of two entries of x and one entry of each weight array."""
    if not traced(x, weights):
        tokens_with_logits(x, math.prod((float(np.abs(part).max()) for part in weights), start=float(terms)))


def batch_arrays(name: str, batch: Any) -> tuple[Any, Any]:
    """Tokens and labels of a batch as arrays; arrays on a device stay there."""
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
    """Tokens [example, token, feature] as float32, the precision of training."""
    tokens = real_array(name, x, ("example", "token", "feature"))
    with np.errstate(over="ignore"):  # numbers that do not fit are refused below
        short = tokens.astype(np.float32)
    if not np.isfinite(short).all():
        raise fail(name, f"numbers up to {np.abs(tokens).max():.3g}", "numbers that float32 holds, up to 3.4e38")
    return short


def true_or_false(name: str, value: Any) -> bool:
    """True or False, and nothing that merely counts as one of them: "no" would be true."""
    if not isinstance(value, (bool, np.bool_)):
        raise fail(name, repr(value), "True or False")
    return bool(value)


def pair_of_numbers(name: str, value: Any) -> tuple[float, float]:
    """A lower and a higher finite number."""
    ends = real_array(name, value)
    if ends.shape != (2,) or not ends[0] < ends[1]:
        raise fail(name, repr(value), "two numbers, the lower first")
    return float(ends[0]), float(ends[1])

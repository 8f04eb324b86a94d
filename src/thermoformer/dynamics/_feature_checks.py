"""Checks of patterns that a user hands in: each error names the role, what came and what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from .._keys import KeyLike, as_key
from .._validation import fail, nonnegative_integer, one_number, positive_integer, real_array, traced
from .site_classes import ROLES, role_shape


def by_role(name: str, value: Any) -> Mapping[str, Any]:
    """A mapping with exactly the four roles, also from a sequence in the order o, v, q, k."""
    if isinstance(value, Mapping):
        if missing := [role for role in ROLES if role not in value]:
            raise fail(name, f"no role {', '.join(missing)}", "the roles o, v, q, k")
        if foreign := [role for role in value if role not in ROLES]:
            raise fail(name, f"roles {', '.join(map(repr, foreign))}", "the roles o, v, q, k only")
        return value
    try:
        parts = list(value)
    except TypeError as error:
        raise fail(name, type(value).__name__, "a mapping with the roles o, v, q, k") from error
    if len(parts) != len(ROLES):
        raise fail(name, f"{len(parts)} arrays", "4, for the roles o, v, q, k in this order")
    return dict(zip(ROLES, parts, strict=True))


def signs_of(name: str, value: Any, axes: tuple[int, ...]) -> np.ndarray:
    """A float64 copy of an array with one of the given numbers of axes, all entries ±1."""
    array = np.array(real_array(name, value))
    if array.ndim not in axes:
        forms = {2: "[feature, bit]", 3: "[head, feature, bit]"}
        raise fail(name, f"shape {array.shape}", " or ".join(forms[count] for count in axes))
    if (wrong := np.abs(array) != 1).any():
        raise fail(name, f"an entry of {array[wrong][0]:.6g}", "entries +1 and −1 only")
    return array


def patterns(name: str, value: Any) -> dict[str, np.ndarray]:
    """±1 patterns by role, v, q, k with a head axis, all of one size."""
    given = by_role(name, value)
    arrays = {role: signs_of(f"{name}[{role!r}]", given[role], (2,) if role == "o" else (2, 3)) for role in ROLES}
    arrays = {role: array if role == "o" or array.ndim == 3 else array[None] for role, array in arrays.items()}
    features, width = arrays["o"].shape
    heads = len(arrays["v"])
    for role, array in arrays.items():
        if array.shape != (shape := role_shape(role, features, heads, width)):
            raise fail(f"{name}[{role!r}]", f"shape {array.shape}", f"shape {shape}, to agree with o and v")
    return arrays


def positional_patterns(value: Any, features: int, heads: int) -> dict[str, np.ndarray]:
    """±1 positional patterns by role for so many features and heads; None and empty ones mean no positional bits."""
    if value is not None:
        given = by_role("positional", value)
        if any(np.size(given[role]) for role in ROLES):
            arrays = patterns("positional", given)
            for role, array in arrays.items():
                if array.shape != (shape := role_shape(role, features, heads, array.shape[-1])):
                    expected = f"shape {shape}, to agree with the semantic part"
                    raise fail(f"positional[{role!r}]", f"shape {array.shape}", expected)
            return arrays
    return {role: np.zeros(role_shape(role, features, heads, 0)) for role in ROLES}


def sizes(features: Any, positional_bits: Any, heads: Any) -> tuple[int, int, int]:
    """Numbers of features, positional bits (perhaps 0) and heads."""
    features, heads = positive_integer("features", features), positive_integer("heads", heads)
    return features, nonnegative_integer("positional_bits", positional_bits), heads


def weight_of_positions(value: Any) -> float:
    """ε, the weight of the positional part of an overlap, in [0, 1]."""
    epsilon = one_number("epsilon", value)
    if not traced(epsilon) and not 0 <= epsilon <= 1:
        raise fail("epsilon", epsilon, "a number from 0 to 1")
    return epsilon


def generator_of(key: KeyLike) -> np.random.Generator:
    """NumPy's generator for a key: features are drawn once, in sizes that vary, which is no work for a compiler."""
    return np.random.default_rng(np.asarray(jax.random.key_data(as_key(key))).ravel())

"""Random keys: an integer or a JAX key, wherever a `key` is asked for; and what is drawn with them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._validation import fail, traced

KeyLike = int | jax.Array
# Above this many numbers, up to twice the memory costs more than another compilation.
SHARED_SIZE = 2**20


def as_key(key: Any) -> jax.Array:
    """A typed JAX key from an integer seed, a typed key or an old-style uint32 key."""
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        if not -(2**63) <= key < 2**63:
            raise fail("key", key, "an integer from -2**63 up to, but not including, 2**63")
        return jax.random.key(int(key))
    if isinstance(key, jax.Array):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
            return key
        if key.dtype == jnp.uint32 and key.shape == (2,):
            return jax.random.wrap_key_data(key)
    raise fail("key", repr(key), "an integer or one JAX random key")


def standard_normal(key: jax.Array, shape: tuple[int, ...]) -> Any:
    """The numbers of `jax.random.normal`, from a program that many shapes share.

    Each number depends on its place only, so up to SHARED_SIZE numbers are the first of the next power of two.

    Example:
        >>> key = as_key(0)
        >>> bool((standard_normal(key, (2, 3, 4)) == jax.random.normal(key, (2, 3, 4))).all())
        True
    """
    count = math.prod(shape)
    drawn = 2 ** max(count - 1, 0).bit_length() if count <= SHARED_SIZE else count
    row = _normal_row(key, drawn)
    # Cut by NumPy: JAX would compile two programs for every shape.
    return (row if traced(row) else np.asarray(row))[:count].reshape(shape)


@partial(jax.jit, static_argnames="count")
def _normal_row(key: jax.Array, count: int) -> jax.Array:
    return jax.random.normal(key, (count,))


def numpy_generator(key: jax.Array) -> np.random.Generator:
    """A NumPy generator seeded by a JAX key, for draws that are not worth a compiled program.

    Example:
        >>> numpy_generator(as_key(0)).integers(10) == numpy_generator(as_key(0)).integers(10)
        np.True_
    """
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))

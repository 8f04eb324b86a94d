"""Random keys: an integer or a JAX key, wherever a `key` is asked for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._validation import fail

KeyLike = int | jax.Array


def as_key(key: Any) -> jax.Array:
    """A typed JAX key from an integer seed, a typed key or an old-style uint32 key."""
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        return jax.random.key(int(key))
    if isinstance(key, jax.Array):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
            return key
        if key.dtype == jnp.uint32 and key.shape == (2,):
            return jax.random.wrap_key_data(key)
    raise fail("key", repr(key), "an integer or one JAX random key")

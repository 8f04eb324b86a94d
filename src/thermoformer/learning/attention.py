"""Attention matrices [example, head, query, key] from tokens; rows sum to 1 over keys (learning §1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._keys import KeyLike, as_key, standard_normal
from .._precision import MATMUL_PRECISION
from .._validation import (
    attention_matrices,
    check_logits,
    fail,
    nonnegative_number,
    numpy_for,
    positive_integer,
    real_array,
    true_or_false,
)

Attention = Float[Array, "example head query key"]


def attention_from_logits(logits: Any, *, causal: bool = False, hard: bool = False) -> Attention:
    """Softmax over keys of logits [example, head, query, key].

    Arguments:
        logits: any finite numbers, [example, head, query, key].
        causal: a query sees its own position and earlier ones only.
        hard: all weight on the largest logit (shared equally among exact ties) instead of the softmax.

    Example:
        >>> import numpy as np
        >>> attention_from_logits(np.zeros((1, 1, 2, 2)), causal=True)[0, 0].tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    logits = real_array("logits", logits, ("example", "head", "query", "key"))
    if logits.shape[2] != logits.shape[3]:
        raise fail("logits", f"shape {logits.shape}", "as many queries as keys")
    return _normalised(jnp.asarray, causal, hard, logits)


def bilinear_attention(x: Any, weights: Any, *, causal: bool = False, hard: bool = False) -> Attention:
    """Attention with logits x_qᵀ W x_k, no scaling (learning §1).

    Arguments:
        x: tokens [example, token, feature].
        weights: W [head, query feature, key feature].
        causal, hard: as in `attention_from_logits`.

    Example:
        >>> import numpy as np
        >>> x = np.eye(3)[None]
        >>> bilinear_attention(x, np.eye(3)[None] * 50)[0, 0].round(3).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    x = _tokens(x)
    weights = real_array("weights", weights, ("head", "query feature", "key feature"))
    if weights.shape[1:] != (x.shape[2], x.shape[2]):
        raise fail("weights", f"shape {weights.shape}", f"[head, {x.shape[2]}, {x.shape[2]}] for tokens of that width")
    check_logits(x, x.shape[2] ** 2, weights)
    return _normalised(bilinear_logits, causal, hard, x, weights)


def query_key_attention(x: Any, queries: Any, keys: Any, *, causal: bool = False, hard: bool = False) -> Attention:
    """Attention with logits (Q x_q)·(K x_k)/√G (learning §1).

    Arguments:
        x: tokens [example, token, feature].
        queries, keys: Q and K [head, G, feature].
        causal, hard: as in `attention_from_logits`.

    Example:
        >>> import numpy as np
        >>> query_key_attention(np.ones((1, 2, 3)), np.ones((1, 4, 3)), np.ones((1, 4, 3)))[0, 0].tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    x = _tokens(x)
    queries = real_array("queries", queries, ("head", "G", "feature"))
    keys = real_array("keys", keys, ("head", "G", "feature"))
    if queries.shape != keys.shape:
        raise fail("keys", f"shape {keys.shape}", f"the shape of queries, {queries.shape}")
    if queries.shape[2] != x.shape[2]:
        raise fail("queries", f"feature width {queries.shape[2]}", f"{x.shape[2]}, the width of the tokens in x")
    check_logits(x, queries.shape[1] * x.shape[2] ** 2, queries, keys)
    return _normalised(query_key_logits, causal, hard, x, queries, keys)


def uniform_attention(x: Any, heads: int = 1, *, causal: bool = False) -> Attention:
    """Equal attention to every key (to every earlier key and itself when causal).

    Example:
        >>> import numpy as np
        >>> uniform_attention(np.zeros((1, 2, 3)))[0, 0].tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    x = _tokens(x)
    heads = positive_integer("heads", heads)
    return _normalised(jnp.asarray, causal, False, np.zeros((x.shape[0], heads, x.shape[1], x.shape[1])))


def random_attention(
    x: Any, heads: int = 1, *, key: KeyLike, scale: float = 1.0, causal: bool = False, hard: bool = False
) -> Attention:
    """Attention of random bilinear heads: W has independent N(0, (scale/N0)²) entries, the same for all examples.

    With tokens of unit-variance entries the logits then have standard deviation `scale`.

    Example:
        >>> import numpy as np
        >>> random_attention(np.ones((5, 4, 3)), heads=2, key=0).shape
        (5, 2, 4, 4)
    """
    x = _tokens(x)
    heads = positive_integer("heads", heads)
    width, scale = x.shape[2], nonnegative_number("scale", scale)
    weights = standard_normal(as_key(key), (heads, width, width)) * scale / width
    return bilinear_attention(x, weights, causal=causal, hard=hard)


def given_attention(attention: Any) -> Attention:
    """Given attention matrices [example, head, query, key], checked: rows must sum to 1.

    Example:
        >>> import numpy as np
        >>> given_attention(np.full((1, 1, 2, 2), 0.5)).shape
        (1, 1, 2, 2)
    """
    return jnp.asarray(attention_matrices("attention", attention), dtype=float)


def join_heads(*attentions: Any) -> Attention:
    """One layer from several groups of heads, in the order given.

    Example:
        >>> import numpy as np
        >>> x = np.ones((5, 4, 3))
        >>> join_heads(uniform_attention(x), random_attention(x, heads=2, key=0)).shape
        (5, 3, 4, 4)
    """
    if not attentions:
        raise fail("attentions", "nothing", "at least one array [example, head, query, key]")
    groups = [attention_matrices(f"attentions[{index}]", group) for index, group in enumerate(attentions)]
    frames = {(group.shape[0], *group.shape[2:]) for group in groups}
    if len(frames) > 1:
        raise fail("attentions", f"shapes {[group.shape for group in groups]}", "shapes equal but for the head axis")
    return jnp.asarray(numpy_for(groups).concatenate(groups, axis=1), dtype=float)


def _tokens(x: Any) -> np.ndarray:
    return real_array("x", x, ("example", "token", "feature"))


def bilinear_logits(x: Array, weights: Array) -> Array:
    """x_qᵀ W x_k [example, head, query, key], for use under jit and grad."""
    return jnp.einsum("pqi,hij,pkj->phqk", x, weights, x, precision=MATMUL_PRECISION)


def query_key_logits(x: Array, queries: Array, keys: Array) -> Array:
    """(Q x_q)·(K x_k)/√G [example, head, query, key], for use under jit and grad."""
    q = jnp.einsum("pqi,hgi->phqg", x, queries, precision=MATMUL_PRECISION)
    k = jnp.einsum("pki,hgi->phkg", x, keys, precision=MATMUL_PRECISION)
    return jnp.einsum("phqg,phkg->phqk", q, k, precision=MATMUL_PRECISION) / np.sqrt(queries.shape[1])


def _normalised(logits_of: Callable[..., Array], causal: Any, hard: Any, *arrays: Any) -> Attention:
    return _compiled(logits_of, true_or_false("causal", causal), true_or_false("hard", hard), *arrays)


# JIT-compiled once per shape; run eagerly, every operation would compile separately.
@partial(jax.jit, static_argnums=(0, 1, 2))
def _compiled(logits_of: Callable[..., Array], causal: bool, hard: bool, *arrays: Array) -> Attention:
    logits = logits_of(*arrays)
    if causal:
        tokens = logits.shape[-1]
        logits = jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), logits, -jnp.inf)
    if hard:
        largest = (logits == logits.max(axis=-1, keepdims=True)).astype(logits.dtype)
        return largest / largest.sum(axis=-1, keepdims=True)
    return jax.nn.softmax(logits, axis=-1)

"""Attentioned inputs of the hidden-Markov task, quick to compute again at another noise.

The same numbers as `task.sample`, `bilinear_attention` and `PathFeatures.from_attention` give, to rounding. A token is
x = σ_⊥ a + c E: a is noise drawn once, orthogonal to both states; E are the two directions of the states and the
one-hot positions; and only the few coordinates c know the parallel noise and the states. So a logit,

    xᵀ W x' = σ_⊥² aᵀWa' + σ_⊥ (aᵀW Eᵀ c' + cᵀ E W a') + cᵀ (E W Eᵀ) c',

needs products with the wide W once per head, not once per noise. Of the top layer only the last query is read, and only
that is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from .._validation import fail
from ..learning import PathFeatures
from .hidden_markov import HiddenMarkovTask

Seed = tuple[int, ...]


def hidden_markov_inputs(
    task: HiddenMarkovTask, examples: int, heads: Sequence[Sequence[tuple[str, Seed]]], *, seed: Seed
) -> tuple[PathFeatures, np.ndarray]:
    """Attentioned inputs of sampled sequences at the last query, for one or two layers of heads, and their labels.

    What does not depend on the noise and on `stay_probability` is kept between calls.

    Arguments:
        examples, seed: as in `task.sample`; the seed a tuple.
        heads: kind and seed of every head by layer, as in `task.head`.

    Returns:
        ξ [example, path, feature], and labels [example].

    Example:
        >>> heads = [[("good", (0,)), ("random", (1,))], [("uniform", (2,))]]
        >>> features, labels = hidden_markov_inputs(HiddenMarkovTask(1.0), 6, heads, seed=(3,))
        >>> features, labels.tolist()
        (PathFeatures(examples=6, paths=2, token_width=231), [1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    """
    if len(heads) not in (1, 2):
        raise fail("heads", f"{len(heads)} layers", "one or two")
    # Kept for the task at standard noise.
    plain = HiddenMarkovTask(tokens=task.tokens, feature_width=task.feature_width, logit_scale=task.logit_scale)
    noise, along = _unit_noise(plain, examples, seed)
    places, labels = _places(task, along, examples, seed)
    layers = []
    for number, layer in enumerate(heads, 1):
        parts = [_head_parts(plain, examples, seed, kind, tuple(one), number == len(heads)) for kind, one in layer]
        layers.append([_attention(task, places, *part) for part in parts])
    carried = np.concatenate(layers[-1], axis=1)
    if len(layers) == 2:
        carried = np.concatenate([carried @ attention for attention in layers[0]], axis=1)
    xi = task.perpendicular_noise * (carried @ noise) + (carried @ places) @ _directions(task)
    return PathFeatures.from_attentioned_inputs(xi), labels


def _directions(task: HiddenMarkovTask) -> np.ndarray:
    """E [coordinate, token feature]: unit vectors of v_+ + v_− and v_+ − v_−, and the positions."""
    plus, minus = task.state_features
    states = np.stack([plus + minus, plus - minus])
    directions = np.zeros((2 + task.tokens + 1, task.token_width))
    directions[:2, : task.feature_width] = states / np.linalg.norm(states, axis=1, keepdims=True)
    directions[2:, task.feature_width :] = np.eye(task.tokens + 1)
    return directions


@lru_cache(maxsize=6)  # 30 MB for 500 examples
def _unit_noise(plain: HiddenMarkovTask, examples: int, seed: Seed) -> tuple[np.ndarray, np.ndarray]:
    """Noise at standard deviation 1: orthogonal to the states, [example, token, token feature], and along, [.., 2]."""
    sample = plain.sample(examples, seed=seed)
    states = _directions(plain)[:2]
    noise = np.zeros_like(sample.x)
    noise[:, 1:, : plain.feature_width] = sample.x[:, 1:, : plain.feature_width]
    inside = noise @ states.T
    noise -= inside @ states
    return noise, inside[:, 1:] - _clean(plain, sample.states)


def _clean(task: HiddenMarkovTask, states: np.ndarray) -> np.ndarray:
    """Tokens without noise, in the two directions of the states, [example, token, 2]."""
    places = np.stack(task.state_features) @ _directions(task)[:2, : task.feature_width].T
    return places[(states < 0).astype(int)]


def _places(task: HiddenMarkovTask, along: np.ndarray, examples: int, seed: Seed) -> tuple[np.ndarray, np.ndarray]:
    """c [example, token, coordinate] and labels."""
    # States are drawn before the noise: a task with hardly any features has the same ones.
    small = HiddenMarkovTask(0.0, 0.0, tokens=task.tokens, feature_width=2, stay_probability=task.stay_probability)
    sample = small.sample(examples, seed=seed)
    places = np.zeros((examples, task.tokens + 1, 2 + task.tokens + 1))
    places[:, 1:, :2] = _clean(task, sample.states) + task.parallel_noise * along
    places[:, :, 2:] = np.eye(task.tokens + 1)
    return places, sample.labels


@lru_cache(maxsize=16)  # 12 MB for 500 examples, and next to nothing in the top layer
def _head_parts(
    plain: HiddenMarkovTask, examples: int, seed: Seed, kind: str, head_seed: Seed, last: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """aᵀWa', aᵀWEᵀ, EWa' and EWEᵀ of one head: [example, query, ..] where the noise enters on the left."""
    noise, _ = _unit_noise(plain, examples, seed)
    queries = noise[:, -1:] if last else noise
    weights, directions = plain.head(kind, seed=head_seed), _directions(plain)
    across = (queries.reshape(-1, plain.token_width) @ weights).reshape(queries.shape)
    backward = (directions @ weights) @ noise.transpose(0, 2, 1)
    return across @ noise.transpose(0, 2, 1), across @ directions.T, backward, directions @ weights @ directions.T


def _attention(
    task: HiddenMarkovTask,
    places: np.ndarray,
    both: np.ndarray,
    forward: np.ndarray,
    backward: np.ndarray,
    none: np.ndarray,
) -> np.ndarray:
    """Attention of one head [example, query, key] from its parts."""
    strength = task.perpendicular_noise
    queries = places[:, -both.shape[1] :]
    logits = (strength * forward + queries @ none) @ places.transpose(0, 2, 1)
    logits += strength * (queries @ backward)
    logits += strength**2 * both
    logits -= logits.max(axis=-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=-1, keepdims=True)
    return logits

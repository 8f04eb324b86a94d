"""Hidden-Markov-chain classification: does the hidden state tend to stay or to change? (experiments §1)

A sequence is a chain of two hidden states seen through noisy tokens. In class +1 the state tends to stay, in class −1
to change, so no single token says anything: a network must compare neighbours. The task comes with bilinear head
weights that do this (good), that average (uniform) and that do nothing useful (random).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._validation import fail, nonnegative_number, one_number, one_of, positive_integer

HEAD_KINDS = ("good", "uniform", "random")

Seed = int | Sequence[int]

# The same seed must not give the same numbers to sequences and to heads.
_SEQUENCE_STREAM, _HEAD_STREAM = 0, 1


class MarkovSequences(NamedTuple):
    """Sampled sequences: examples of class +1 first, then class −1.

    Fields:
        x: tokens [example, token, feature]; token 0 is the start token, the last features are a one-hot position.
        labels: +1 or −1, [example].
        states: the hidden states, +1 or −1, [example, token without the start token].
    """

    x: np.ndarray
    labels: np.ndarray
    states: np.ndarray


@dataclass(frozen=True)
class HiddenMarkovTask:
    """The hidden-Markov task and its heads.

    Arguments:
        perpendicular_noise: σ_⊥, standard deviation of the token noise in every direction orthogonal to both states.
        parallel_noise: the same in the two directions v_+ + v_− and v_+ − v_−.
        tokens: length of the chain; the start token comes on top.
        feature_width: width of the token features, even; the one-hot position comes on top.
        stay_probability: how often the state stays, in class +1; in class −1 it changes that often.
        logit_scale: factor on the logits of all heads.

    Example:
        >>> task = HiddenMarkovTask(perpendicular_noise=1.0)
        >>> x, labels, states = task.sample(6, seed=0)
        >>> x.shape, labels.tolist()
        ((6, 31, 231), [1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
        >>> task.good_head().shape
        (231, 231)
    """

    perpendicular_noise: float = 1.0
    parallel_noise: float = 1.0
    tokens: int = 30
    feature_width: int = 200
    stay_probability: float = 0.7
    logit_scale: float = 10.0

    def __post_init__(self) -> None:
        for name in ("perpendicular_noise", "parallel_noise"):
            nonnegative_number(name, getattr(self, name))
        if positive_integer("tokens", self.tokens) < 2:
            raise fail("tokens", self.tokens, "2 or more: the classes differ in how one token follows another")
        if positive_integer("feature_width", self.feature_width) % 2:
            raise fail("feature_width", self.feature_width, "an even number: each state fills one half")
        if not 0 <= one_number("stay_probability", self.stay_probability) <= 1:
            raise fail("stay_probability", self.stay_probability, "a probability from 0 to 1")
        one_number("logit_scale", self.logit_scale)

    @property
    def token_width(self) -> int:
        """N0: features and one-hot position together."""
        return self.feature_width + self.tokens + 1

    @property
    def state_features(self) -> tuple[np.ndarray, np.ndarray]:
        """v_+ and v_−, the noiseless features of the two states."""
        first_half = np.arange(self.feature_width) < self.feature_width // 2
        return np.sqrt(2) * first_half, np.sqrt(2) * ~first_half

    def sample(self, examples: int, *, seed: Seed) -> MarkovSequences:
        """Sequences with their labels, half of each class (one more of class +1 when the number is odd).

        Arguments:
            examples: how many sequences.
            seed: a whole number or several; equal seeds give equal sequences.
        """
        examples = positive_integer("examples", examples)
        generator = _generator(seed, _SEQUENCE_STREAM)
        labels = np.where(np.arange(examples) < (examples + 1) // 2, 1.0, -1.0)

        probability = np.where(labels > 0, self.stay_probability, 1 - self.stay_probability)
        steps = np.where(generator.random((examples, self.tokens)) < probability[:, None], 1.0, -1.0)
        steps[:, 0] = np.where(generator.random(examples) < 0.5, 1.0, -1.0)  # the first state is drawn, not reached
        states = np.cumprod(steps, axis=1)

        plus, minus = self.state_features
        noise = self.perpendicular_noise * generator.standard_normal((examples, self.tokens, self.feature_width))
        for direction in (plus + minus, plus - minus):
            unit = direction / np.linalg.norm(direction)
            along = self.parallel_noise * generator.standard_normal((examples, self.tokens))
            noise += (along - noise @ unit)[..., None] * unit

        x = np.zeros((examples, self.tokens + 1, self.token_width))
        x[:, 1:, : self.feature_width] = np.where(states[..., None] > 0, plus, minus) + noise
        x[:, :, self.feature_width :] = np.eye(self.tokens + 1)
        return MarkovSequences(x, labels, states)

    def head(self, kind: str, *, seed: Seed | None = None) -> np.ndarray:
        """Logit weights W [query feature, key feature] of a head by name: "good", "uniform" or "random"."""
        if one_of("kind", kind, HEAD_KINDS) == "random":
            if seed is None:
                raise fail("seed", None, "a whole number or several for a random head")
            return self.random_head(seed)
        return self.good_head() if kind == "good" else self.uniform_head()

    def good_head(self) -> np.ndarray:
        """W of the head that looks at the previous token if it has the same state, else at the start token."""
        plus, minus = self.state_features
        # q·v_± = ±1, so the feature logit of two tokens is +1 for equal states and −1 for different ones.
        q = 2 * (plus - minus) / np.sum((plus - minus) ** 2)
        weights, position = self._blank()
        weights[: self.feature_width, : self.feature_width] = np.outer(q, q)
        position[:] = np.diag(np.arange(self.tokens) >= 1, k=-1)
        # The start token has no features: its logit of 1.5 lies between 1 + 1 (same state) and 1 − 1 (other state).
        position[1:, 0] = 1.5
        return self.logit_scale * weights

    def uniform_head(self) -> np.ndarray:
        """W of the head that looks at all tokens alike."""
        weights, position = self._blank()
        position[:] = 1.0
        return self.logit_scale * weights

    def random_head(self, seed: Seed) -> np.ndarray:
        """W of a head with independent normal entries: each of the four blocks adds to the logits at random.

        Arguments:
            seed: a whole number or several; use the same one for training and test sequences.
        """
        scale = np.ones(self.token_width)
        scale[: self.feature_width] = 1 / np.sqrt(self.feature_width)
        weights = _generator(seed, _HEAD_STREAM).standard_normal((self.token_width, self.token_width))
        return self.logit_scale * weights * np.outer(scale, scale)

    def _blank(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights of zero, and a view of their position block."""
        weights = np.zeros((self.token_width, self.token_width))
        return weights, weights[self.feature_width :, self.feature_width :]


def _generator(seed: Seed, stream: int) -> np.random.Generator:
    numbers: list[Any] = [seed] if np.ndim(seed) == 0 else list(seed)  # type: ignore[arg-type]
    whole = all(isinstance(number, (int, np.integer)) and not isinstance(number, bool) for number in numbers)
    if not whole or not numbers or min(numbers) < 0:
        raise fail("seed", repr(seed), "a whole number, zero or more, or several of them")
    return np.random.default_rng(np.random.SeedSequence([int(number) for number in numbers], spawn_key=(stream,)))

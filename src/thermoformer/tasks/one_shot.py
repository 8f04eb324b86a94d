"""One-shot image classification: which of two labelled images shows what the third shows? (experiments §2)

A sequence is two support images of different classes, one with label 0 and one with label 1 in either order, and a
query of one of the two classes. The target is +1 where the query is of the class with label 1, else −1. Tokens are
square patches: x = LayerNorm(patch) + sinusoidal position + label embedding, frozen and random, with a third row for
the query.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._validation import fail, nonnegative_integer, positive_integer, true_or_false

# Label 2 says: this is the query.
_QUERY = 2
# What keeps a blank patch at zero in the layer norm, for pixels from 0 to 1.
_EPSILON = 1e-5


class OneShotSequences(NamedTuple):
    """Sequences for a network.

    Fields:
        x: tokens [example, token, feature], float32.
        labels: +1 or −1, [example], float32; as many of each.
    """

    x: Array
    labels: Array


class OneShotDraw(NamedTuple):
    """What a batch of sequences shows.

    Fields:
        classes, drawings, quarter_turns: of the two support images and the query, [example, 3].
        label_ids: 0 and 1 in either order, then 2, [example, 3].
        labels: +1 or −1, [example].
    """

    classes: Array
    drawings: Array
    quarter_turns: Array
    label_ids: Array
    labels: Array


@dataclass(frozen=True, eq=False)
class OneShotTask:
    """Batches of one-shot sequences from the classes of one part, without end.

    Batch number b of a part under a seed is always the same, whatever came before. Only the images are held in memory.
    Batches are put together where JAX computes, a GPU if there is one.

    Arguments:
        images: uint8 [class, drawing, row, column], bright on dark, as in `ImageClasses.images`.
        part: any name; parts of different names draw different sequences.
        seed: of the sequences.
        channels: how often each pixel is repeated: 1, or 3 as in images with colours.
        patch: side of a patch in pixels.
        rotations: each class also comes turned by 90°, 180° and 270°, as classes of their own.
        embedding_seed: of the label embedding; a network belongs to the embedding it was trained with.

    Example:
        >>> import numpy as np
        >>> images = np.random.default_rng(0).integers(0, 256, (5, 20, 32, 32), np.uint8)
        >>> x, labels = OneShotTask(images).batch(0, 8)
        >>> x.shape, sorted(set(labels.tolist()))
        ((8, 48, 64), [-1.0, 1.0])
    """

    images: np.ndarray
    part: str = "training"
    seed: int = 0
    channels: int = 1
    patch: int = 8
    rotations: bool = False
    embedding_seed: int = 0

    def __post_init__(self) -> None:
        images = self.images
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4:
            kind = f"{images.dtype}{images.shape}" if hasattr(images, "shape") else type(images).__name__
            raise fail("images", kind, "a uint8 array [class, drawing, row, column]")
        classes, drawings, rows, columns = images.shape
        if classes < 2 or drawings < 2:
            raise fail("images", f"{classes} classes of {drawings} drawings", "2 or more of both")
        if rows != columns or rows % positive_integer("patch", self.patch):
            raise fail("images", f"{rows} × {columns} pixels", f"squares that {self.patch} × {self.patch} patches fill")
        if self.channels not in (1, 3):
            raise fail("channels", repr(self.channels), "1 or 3")
        if not isinstance(self.part, str):
            raise fail("part", repr(self.part), "a name")
        true_or_false("rotations", self.rotations)
        for name in ("seed", "embedding_seed"):
            nonnegative_integer(name, getattr(self, name))

    @property
    def tokens(self) -> int:
        """T: the patches of three images."""
        return 3 * (self.images.shape[-1] // self.patch) ** 2

    @property
    def token_width(self) -> int:
        """N0: the pixels of a patch times the channels."""
        return self.patch**2 * self.channels

    @cached_property
    def label_embedding(self) -> np.ndarray:
        """One row of standard-normal numbers for label 0, label 1 and the query, [3, feature]."""
        return np.random.default_rng(self.embedding_seed).standard_normal((3, self.token_width)).astype(np.float32)

    @cached_property
    def positions(self) -> np.ndarray:
        """Sines and cosines of the token's place at wavelengths from 2π to 20000π, in turn, [token, feature]."""
        place = np.arange(self.tokens)[:, None]
        rate = 10_000.0 ** (-np.arange(0, self.token_width, 2) / self.token_width)
        waves = np.stack([np.sin(place * rate), np.cos(place * rate)], axis=-1)
        return waves.reshape(self.tokens, -1)[:, : self.token_width].astype(np.float32)

    def draw(self, number: int, examples: int = 128) -> OneShotDraw:
        """What batch number `number` shows: classes, drawings and labels.

        Arguments:
            number: counted from 0.
            examples: how many sequences; the first of a larger batch are not those of a smaller one.
        """
        number, examples = nonnegative_integer("number", number), positive_integer("examples", examples)
        return _draw(self._key, number, examples, *self.images.shape[:2], 4 if self.rotations else 1)

    def batch(self, number: int, examples: int = 128) -> OneShotSequences:
        """Batch number `number`; arguments as in `draw`."""
        return _batch(self.draw(number, examples), *self._on_device, bool(self.rotations), self.patch, self.channels)

    def sequences(self, examples: int, *, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Many sequences as one array x [example, token, feature] and labels [example], for a validation or test set.

        Arguments:
            examples: how many.
            first: number of the batch (of 128) that they start with.
        """
        count = positive_integer("examples", examples)
        numbers = range(nonnegative_integer("first", first), first - (-count // 128))
        parts = [self.batch(number) for number in numbers]
        x, labels = (np.concatenate([np.asarray(part[index]) for part in parts]) for index in (0, 1))
        return x[:count], labels[:count]

    @cached_property
    def _key(self) -> Array:
        # A hash of the name that is the same in every process.
        return jax.random.fold_in(jax.random.key(self.seed), zlib.crc32(self.part.encode()))

    @cached_property
    def _on_device(self) -> tuple[Array, Array, Array]:
        return jnp.asarray(self.images), jnp.asarray(self.label_embedding), jnp.asarray(self.positions)


def one_shot_tokens(images: Any, label_ids: Any, task: OneShotTask) -> Array:
    """Tokens [example, 3 × patches, feature] of given triples of images, in the form of a task.

    Arguments:
        images: uint8 [example, 3, row, column]: two support images and the query.
        label_ids: [example, 3], from 0, 1 and 2 for the query.
        task: whose patches, channels, positions and label embedding are used.
    """
    images, label_ids = np.asarray(images), np.asarray(label_ids)
    expected = (len(images), 3, *task.images.shape[2:])
    if images.dtype != np.uint8 or images.shape != expected:
        raise fail("images", f"{images.dtype}{images.shape}", f"uint8 [example, 3, {expected[2]}, {expected[3]}]")
    if label_ids.shape != expected[:2] or not np.isin(label_ids, (0, 1, _QUERY)).all():
        raise fail("label_ids", f"shape {label_ids.shape}", "[example, 3] of 0, 1 and 2")
    _, embedding, positions = task._on_device
    return _tokens(jnp.asarray(images), jnp.asarray(label_ids), embedding, positions, task.patch, task.channels)


@partial(jax.jit, static_argnames="examples")
def _draw(key: Array, number: Any, examples: int, classes: Any, drawings: Any, rotations: Any) -> OneShotDraw:
    """A program of its own, the same for all images: its random numbers take long to compile."""
    keys = jax.random.split(jax.random.fold_in(key, number), 8)
    # All whole numbers in one call, which compiles once and not eight times.
    turn_keys = jax.random.split(keys[4])
    below = [classes, classes - 1, drawings, drawings, rotations, rotations, 2, drawings - 1]
    chosen_keys = jnp.concatenate([keys[:4], turn_keys, keys[5:6], keys[7:8]])
    first_class, other_class, *supports, first_turn, second_turn, second, other = jax.vmap(
        lambda key, below: jax.random.randint(key, (examples,), 0, below, jnp.int32)
    )(chosen_keys, jnp.asarray(below))
    second_class = (first_class + 1 + other_class) % classes  # any class but the first
    second_asked = second == 1
    # Exactly half of the labels are +1, one more or less where the number is odd.
    plus = jax.random.permutation(keys[6], jnp.arange(examples) % 2).astype(jnp.int32) == 1
    asked_drawing = jnp.where(second_asked, supports[1], supports[0])
    other_drawing = (asked_drawing + 1 + other) % drawings  # never the support image itself
    # The query's class has label 1 where the target is +1, so the second image has it where both or neither hold.
    second_label = (plus == second_asked).astype(jnp.int32)
    return OneShotDraw(
        jnp.stack([first_class, second_class, jnp.where(second_asked, second_class, first_class)], axis=1),
        jnp.stack([*supports, other_drawing], axis=1),
        jnp.stack([first_turn, second_turn, jnp.where(second_asked, second_turn, first_turn)], axis=1),
        jnp.stack([1 - second_label, second_label, jnp.full_like(second_label, _QUERY)], axis=1),
        jnp.where(plus, 1.0, -1.0).astype(jnp.float32),
    )


@partial(jax.jit, static_argnames=("rotations", "patch", "channels"))
def _batch(
    drawn: OneShotDraw, images: Array, embedding: Array, positions: Array, rotations: bool, patch: int, channels: int
) -> OneShotSequences:
    chosen = images[drawn.classes, drawn.drawings]
    if rotations:
        turned = jnp.stack([jnp.rot90(chosen, turn, axes=(2, 3)) for turn in range(4)])
        chosen = jnp.take_along_axis(turned, drawn.quarter_turns[None, ..., None, None], axis=0)[0]
    return OneShotSequences(_tokens(chosen, drawn.label_ids, embedding, positions, patch, channels), drawn.labels)


@partial(jax.jit, static_argnums=(4, 5))
def _tokens(images: Array, label_ids: Array, embedding: Array, positions: Array, patch: int, channels: int) -> Array:
    examples, count, size, _ = images.shape
    side = size // patch
    pixels = images.astype(jnp.float32) / 255
    patches = pixels.reshape(examples, count, side, patch, side, patch).transpose(0, 1, 2, 4, 3, 5)
    patches = jnp.repeat(patches.reshape(examples, count, side**2, patch**2), channels, axis=-1)
    centred = patches - patches.mean(axis=-1, keepdims=True)
    normalised = centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + _EPSILON)
    labelled = normalised + embedding[label_ids][:, :, None]
    return labelled.reshape(examples, count * side**2, -1) + positions[None]

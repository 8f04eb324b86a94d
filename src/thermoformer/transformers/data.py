"""What a pretrained transformer reads: texts as tokens, sequences of tokens, or images; tokenised once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from .._progress import inside
from .._validation import chosen_places, class_labels, fail, positive_integer

# Tokenizers without a limit of their own say so by an astronomic number.
_NO_LIMIT = 10**6


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples in the form in which a model reads them, made by one of the methods `from_`.

    Fields:
        inputs: by the names of the model's arguments. Of tokens one int64 array [token] per example, without padding;
            of images one float32 array [example, channel, row, column].
        labels: int64 [example], or None.
        classes: how many classes there are; 0 without labels. A subset keeps the number.
        kind: "labelled" where the targets are the labels, "language" where they are the next tokens.
        padding: the token that short examples are padded with; it is masked.

    Example:
        >>> sequences = Examples.from_tokens([[1, 5, 6, 7], [1, 8, 9, 5], [1, 6, 6, 6]])
        >>> len(sequences), sequences.kind, [indices.tolist() for indices, _ in sequences.batches(2)]
        (3, 'language', [[0, 1], [2]])
    """

    inputs: Mapping[str, tuple[np.ndarray, ...] | np.ndarray]
    labels: np.ndarray | None
    classes: int
    kind: str
    padding: int = 0

    @classmethod
    def from_texts(
        cls,
        tokenizer: Any,
        texts: Sequence[str],
        labels: Any = None,
        *,
        max_length: int = 128,
        classes: int | None = None,
    ) -> Examples:
        """Texts as the tokenizer of a model reads them, with its special tokens.

        Where the tokenizer has no token for padding (GPT-2), examples are padded with its end of text, masked, or, if a
        text ends with that, with the first token that ends none: classifiers read the last token that is no padding.

        Arguments:
            texts: one str per example.
            labels: whole numbers [example] from 0; without them the targets are the next tokens.
            max_length: tokens of an example at most, the rest is cut off; never more than the tokenizer says that its
                model reads.
            classes: how many there are; by default one more than the largest label.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise fail("texts", f"a {type(texts).__name__} of other things", "a sequence of str")
        if not len(texts):
            raise fail("texts", "none", "at least one text")
        positive_integer("max_length", max_length)
        limit = min(max_length, _limit(tokenizer) or max_length)
        read = tokenizer(list(texts), truncation=True, max_length=limit, padding=False, return_attention_mask=False)
        inputs = {name: tuple(np.array(row, np.int64) for row in rows) for name, rows in read.items()}
        empty = [place for place, row in enumerate(inputs["input_ids"]) if not len(row)]
        if empty:
            raise fail(f"texts[{empty[0]}]", f"{texts[empty[0]][:40]!r}, which has no tokens", "at least one token")
        padding = _padding(tokenizer, {int(row[-1]) for row in inputs["input_ids"]})
        if labels is None:
            return cls(inputs, None, 0, "language", padding)
        return cls(inputs, *checked_labels(labels, len(texts), classes), "labelled", padding)

    @classmethod
    def from_tokens(cls, tokens: Any) -> Examples:
        """Sequences of tokens for a language model; the targets are the next tokens.

        Arguments:
            tokens: whole numbers [sequence, token], two tokens or more.
        """
        array = _numpy(tokens)
        if array.ndim != 2 or array.dtype.kind not in "iu":
            raise fail("tokens", f"{array.dtype} of shape {array.shape}", "whole numbers [sequence, token]")
        if not len(array) or array.shape[1] < 2:
            raise fail("tokens", f"shape {array.shape}", "one sequence or more, of two tokens or more")
        if array.min() < 0:
            raise fail("tokens", f"a smallest of {array.min()}", "no negative numbers")
        return cls({"input_ids": tuple(array.astype(np.int64))}, None, 0, "language")

    @classmethod
    def from_text(cls, tokenizer: Any, text: str, *, length: int = 256) -> Examples:
        """One long text, cut into sequences for a language model; the targets are the next tokens.

        Each sequence starts with the tokenizer's token for a beginning, where it has one. The last sequence is as long
        as what is left, and left out where nothing in it could be predicted.

        Arguments:
            length: tokens of a sequence, its beginning included.
        """
        if not isinstance(text, str):
            raise fail("text", f"a {type(text).__name__}", "one str")
        limit = _limit(tokenizer)
        if positive_integer("length", length) < 2 or (limit and length > limit):
            raise fail("length", length, f"2 to {limit or 'any number of'} tokens")
        # No warning that the whole text is longer than the model reads: it is cut here.
        numbers = tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        step = length - len(begin)
        parts = [begin + numbers[start : start + step] for start in range(0, len(numbers), step)]
        sequences = tuple(np.array(part, np.int64) for part in parts if len(part) > 1)
        if not sequences:
            raise fail("text", f"{len(numbers)} tokens", "two tokens or more, so that one can be predicted")
        return cls({"input_ids": sequences}, None, 0, "language", _padding(tokenizer))

    @classmethod
    def from_images(cls, pixel_values: Any, labels: Any = None, *, classes: int | None = None) -> Examples:
        """Images as a model takes them, already resized and normalised.

        Arguments:
            pixel_values: finite numbers [example, channel, row, column].
            labels: whole numbers [example] from 0.
            classes: how many there are; by default one more than the largest label.

        Example:
            >>> import numpy as np
            >>> images = Examples.from_images(np.zeros((3, 1, 8, 8)), [0, 2, 1])
            >>> len(images), images.classes, next(images.batches())[1]["pixel_values"].shape
            (3, 3, torch.Size([3, 1, 8, 8]))
        """
        array = _numpy(pixel_values)
        if array.ndim != 4 or array.dtype.kind not in "fiu":
            got = f"{array.dtype} of shape {array.shape}"
            raise fail("pixel_values", got, "numbers [example, channel, row, column]")
        if not array.size or not np.isfinite(array).all():
            got = "NaN or infinite entries" if array.size else f"shape {array.shape}"
            raise fail("pixel_values", got, "at least one image of finite numbers")
        found, count = (None, 0) if labels is None else checked_labels(labels, len(array), classes)
        return cls({"pixel_values": array.astype(np.float32)}, found, count, "labelled")

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, int64 [example]; 1 for images, which are all alike."""
        if "input_ids" not in self.inputs:
            return np.ones(len(self), np.int64)
        return np.array([len(row) for row in self.inputs["input_ids"]], np.int64)

    def need_labels(self) -> np.ndarray:
        """The labels, int64 [example]; an error where there are none."""
        if self.labels is None:
            raise fail("labels", "none", "labelled examples; give labels when the examples are made")
        return self.labels

    def need_tokens(self) -> None:
        """An error where the examples are no tokens."""
        if "input_ids" not in self.inputs:
            raise fail("examples", f"{', '.join(self.inputs)}", "examples made of tokens")

    def subset(self, indices: Sequence[int] | np.ndarray) -> Examples:
        """The examples at the given places, counted from 0, in the given order."""
        chosen = chosen_places("indices", indices, len(self))
        inputs = {
            name: rows[chosen] if isinstance(rows, np.ndarray) else tuple(rows[index] for index in chosen)
            for name, rows in self.inputs.items()
        }
        return replace(self, inputs=inputs, labels=None if self.labels is None else self.labels[chosen])

    def batches(
        self, size: int = 64, device: torch.device | str | None = None
    ) -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor]]]:
        """Batches of examples of similar length, the shortest first, padded on the right.

        Arguments:
            size: examples of a batch.
            device: where the tensors go.

        Returns:
            Pairs: the places of the batch's examples, int64 [example], and what the model takes as keyword arguments;
            of tokens also the attention_mask. `result[places] = found` brings results back into order.
        """
        positive_integer("size", size)
        # Equal lengths keep their order, so that batches repeat.
        lengths = self.lengths
        order = np.argsort(lengths, kind="stable")
        for start in range(0, len(order), size):
            places = order[start : start + size]
            yield places, {name: tensor.to(device) for name, tensor in self._batch(places, lengths[places]).items()}
            done = start + len(places)
            inside.get()(done, len(order), f"{done} of {len(order)} examples")

    def _batch(self, places: np.ndarray, lengths: np.ndarray) -> dict[str, torch.Tensor]:
        if "input_ids" not in self.inputs:
            return {name: torch.from_numpy(np.asarray(rows)[places]) for name, rows in self.inputs.items()}
        mask = np.arange(lengths.max()) < lengths[:, None]
        batch = {"attention_mask": torch.from_numpy(mask.astype(np.int64))}
        for name, rows in self.inputs.items():
            filled = np.full(mask.shape, self.padding if name == "input_ids" else 0, np.int64)
            filled[mask] = np.concatenate([rows[place] for place in places])
            batch[name] = torch.from_numpy(filled)
        return batch


def checked_labels(labels: Any, count: int, classes: int | None = None) -> tuple[np.ndarray, int]:
    """Labels of `count` examples, int64 [example], and how many classes they have."""
    return class_labels("labels", _numpy(labels), count, classes)


def _numpy(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _padding(tokenizer: Any, ends: Set[int] = frozenset()) -> int:
    """The token to pad with; it is masked, so that any token that ends no text will do."""
    wanted = (number for number in (tokenizer.pad_token_id, tokenizer.eos_token_id) if number is not None)
    return next(number for number in (*wanted, *range(len(ends) + 1)) if number not in ends)


def _limit(tokenizer: Any) -> int | None:
    limit = getattr(tokenizer, "model_max_length", None)
    return int(limit) if limit and limit < _NO_LIMIT else None

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
# The label of a token that does not count, as transformers and PyTorch have it.
IGNORED = -100
# What a data set of rows may hold that a model reads; the rest, texts and numbers of rows, is left alone.
_READ = ("input_ids", "token_type_ids", "pixel_values")


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples in the form in which a model reads them, made by one of the methods `from_`.

    Fields:
        inputs: by the names of the model's arguments. Of tokens one int64 array [token] per example, without padding;
            of images one float32 array [example, channel, row, column].
        labels: by the kind, or None.
        classes: how many classes there are; 0 without. A subset keeps the number.
        kind: what the targets are. "labelled": a class of each example, int64 [example]; "several": any of several
            labels, 0 and 1 as float64 [example, label]; "numbers": float64 [example, output]; "tokens": the classes of
            its tokens, by example int64 [token], −100 where none counts; "language": the next tokens.
        padding: the token that short examples are padded with; it is masked.

    Example:
        >>> sequences = Examples.from_tokens([[1, 5, 6, 7], [1, 8, 9, 5], [1, 6, 6, 6]])
        >>> len(sequences), sequences.kind, [indices.tolist() for indices, _ in sequences.batches(2)]
        (3, 'language', [[0, 1], [2]])
    """

    inputs: Mapping[str, tuple[np.ndarray, ...] | np.ndarray]
    labels: Any
    classes: int
    kind: str
    padding: int = 0

    @classmethod
    def from_texts(
        cls,
        tokenizer: Any,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        labels: Any = None,
        *,
        max_length: int = 128,
        classes: int | None = None,
    ) -> Examples:
        """Texts as the tokenizer of a model reads them, with its special tokens.

        Where the tokenizer has no token for padding (GPT-2), examples are padded with its end of text, masked, or, if a
        text ends with that, with the first token that ends none: classifiers read the last token that is no padding.

        Arguments:
            texts: one str per example, or a pair of them.
            labels: classes, whole numbers [example] from 0; any of several labels, 0 and 1 [example, label]; or numbers
                [example] or [example, output]. Without them the targets are the next tokens.
            max_length: tokens of an example at most, the rest is cut off; never more than the tokenizer says that its
                model reads.
            classes: how many there are; by default one more than the largest label.
        """
        pairs = not isinstance(texts, str) and all(isinstance(text, (tuple, list)) and len(text) == 2 for text in texts)
        flat = [part for text in texts for part in text] if pairs else texts
        if isinstance(texts, str) or not all(isinstance(text, str) for text in flat):
            raise fail("texts", f"a {type(texts).__name__} of other things", "a sequence of str, or of pairs of them")
        if not len(texts):
            raise fail("texts", "none", "at least one text")
        positive_integer("max_length", max_length)
        limit = min(max_length, _limit(tokenizer) or max_length)
        columns = [list(column) for column in zip(*texts, strict=True)] if pairs else [list(texts)]
        read = tokenizer(*columns, truncation=True, max_length=limit, padding=False, return_attention_mask=False)
        inputs = {name: tuple(np.array(row, np.int64) for row in rows) for name, rows in read.items()}
        empty = [place for place, row in enumerate(inputs["input_ids"]) if not len(row)]
        if empty:
            raise fail(f"texts[{empty[0]}]", f"{texts[empty[0]][:40]!r}, which has no tokens", "at least one token")
        padding = _padding(tokenizer, {int(row[-1]) for row in inputs["input_ids"]})
        if labels is None:
            return cls(inputs, None, 0, "language", padding)
        return cls(inputs, *_targets(labels, len(texts), classes), padding)

    @classmethod
    def from_tokens(cls, tokens: Any) -> Examples:
        """Sequences of tokens for a language model; the targets are the next tokens.

        Arguments:
            tokens: whole numbers [sequence, token], two tokens or more.
        """
        try:
            array = _numpy(tokens)
        except ValueError as error:
            got = "sequences of unequal lengths, or of other things"
            expected = "whole numbers [sequence, token]; `from_dataset` takes sequences of any lengths"
            raise fail("tokens", got, expected + ', as [{"input_ids": [1, 2, 3]}, ...]') from error
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

        Each sequence starts with the tokenizer's token for a beginning, where it has one. Those of a model of masked
        tokens start and end with its special tokens. The last sequence is as long as what is left, and left out where
        nothing in it could be predicted.

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
        masks = None not in (tokenizer.mask_token_id, tokenizer.cls_token_id)
        around = (tokenizer.cls_token_id, tokenizer.sep_token_id) if masks else (tokenizer.bos_token_id, None)
        begin, end = ([] if token is None else [token] for token in around)
        step = length - len(begin) - len(end)
        if step < 1:
            raise fail("length", length, "3 tokens or more, two of which are special")
        parts = [begin + numbers[start : start + step] + end for start in range(0, len(numbers), step)]
        sequences = tuple(np.array(part, np.int64) for part in parts if len(part) > 1)
        if not sequences:
            raise fail("text", f"{len(numbers)} tokens", "two tokens or more, so that one can be predicted")
        return cls({"input_ids": sequences}, None, 0, "language", _padding(tokenizer))

    @classmethod
    def from_dataset(cls, data: Any, *, classes: int | None = None) -> Examples:
        """Examples from what training code iterates over: a `Dataset` of the datasets library, a `DataLoader`, a list.

        Functions that take examples take such data too. Without labels, or with labels that repeat the tokens, the
        targets are the next tokens. Labels of every token that are −100 do not count.

        Arguments:
            data: rows, or batches of rows, by the names that models have for them: "input_ids" (with "attention_mask"
                where they are padded, and "token_type_ids") or "pixel_values", and "labels" or "label". The rest is
                left alone.
            classes: how many there are; by default one more than the largest label.

        Example:
            >>> rows = [{"input_ids": [1, 5, 6], "label": 0}, {"input_ids": [1, 7], "label": 1}]
            >>> Examples.from_dataset(rows).lengths, Examples.from_dataset(rows).kind
            (array([3, 2]), 'labelled')
        """
        if isinstance(data, (str, bytes, Mapping)) or not hasattr(data, "__iter__"):
            expected = "a data set, a loader or a list, of rows or batches by name"
            raise TypeError(str(fail("data", f"a {type(data).__name__}", expected)))
        columns: dict[str, list[np.ndarray]] = {}
        for place, item in enumerate(data):
            for name, rows in _rows(item, f"data[{place}]").items():
                columns.setdefault(name, []).extend(rows)
        lengths = {name: len(rows) for name, rows in columns.items()}
        if not columns or len(set(lengths.values())) > 1:
            raise fail("data", f"rows of {lengths}" if columns else "no rows", "rows that all have the same names")
        labels = columns.pop("labels", None)
        if "pixel_values" in columns:
            images = _stacked(columns["pixel_values"], "pixel_values")
            return cls.from_images(images, labels and _stacked(labels), classes=classes)
        ids = columns["input_ids"]
        empty = [place for place, row in enumerate(ids) if not len(row)]
        if empty or min(int(row.min()) for row in ids) < 0:
            got = f"no tokens in row {empty[0]}" if empty else "negative tokens"
            raise fail("data", got, "a token or more in every row, none of them negative")
        inputs = {name: tuple(row.astype(np.int64) for row in rows) for name, rows in columns.items()}
        padding = _unused({int(row[-1]) for row in ids})
        if labels is None:
            return cls(inputs, None, 0, "language", padding)
        if not all(
            label.shape == row.shape and label.dtype.kind in "iu" for label, row in zip(labels, ids, strict=True)
        ):
            return cls(inputs, *_targets(_stacked(labels), len(ids), classes), padding)
        given = tuple(label.astype(np.int64) for label in labels)
        if all((label == row).all() for label, row in zip(given, ids, strict=True)):
            return cls(inputs, None, 0, "language", padding)
        counted = np.concatenate(given)
        counted = counted[counted != IGNORED]
        if not len(counted) or counted.min() < 0:
            raise fail("labels", "none that counts" if not len(counted) else "negative ones", "classes, or −100")
        return cls(inputs, given, classes or int(counted.max()) + 1, "tokens", padding)

    @classmethod
    def from_images(cls, pixel_values: Any, labels: Any = None, *, classes: int | None = None) -> Examples:
        """Images as a model takes them, already resized and normalised.

        Arguments:
            pixel_values: finite numbers [example, channel, row, column].
            labels: as in `from_texts`.
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
        found = (None, 0, "labelled") if labels is None else _targets(labels, len(array), classes)
        return cls({"pixel_values": array.astype(np.float32)}, *found)

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, int64 [example]; 1 for images, which are all alike."""
        if "input_ids" not in self.inputs:
            return np.ones(len(self), np.int64)
        return np.array([len(row) for row in self.inputs["input_ids"]], np.int64)

    def masked(self, tokenizer: Any, *, share: float = 0.15, seed: int = 0) -> Examples:
        """For a masked language model: in each example some tokens give way to the mask, and they are the targets.

        Arguments:
            tokenizer: with a token for the mask.
            share: of the tokens that are masked, one or more per example; special tokens are not.
            seed: of the choice.
        """
        self.need_tokens()
        if getattr(tokenizer, "mask_token_id", None) is None:
            raise fail("tokenizer", "one without a token for the mask", "the tokenizer of a masked language model")
        random, special = np.random.default_rng(seed), np.array(tokenizer.all_special_ids)
        rows, labels, kept = [], [], []
        for place, tokens in enumerate(self.inputs["input_ids"]):
            open_to = np.flatnonzero(~np.isin(tokens, special))
            if not len(open_to):
                continue
            hidden = random.choice(open_to, max(1, round(share * len(open_to))), replace=False)
            rows.append(tokens.copy())
            labels.append(np.full(len(tokens), IGNORED))
            labels[-1][hidden], rows[-1][hidden] = tokens[hidden], tokenizer.mask_token_id
            kept.append(place)
        if not kept:
            raise fail("examples", "special tokens only", "others, which can be masked")
        inputs = dict(self.subset(kept).inputs) | {"input_ids": tuple(rows)}
        return replace(self, inputs=inputs, labels=tuple(labels), classes=len(tokenizer), kind="tokens")

    def need_labels(self) -> np.ndarray:
        """The classes of the examples, int64 [example]; an error where there are none."""
        if self.labels is None or self.kind != "labelled":
            got = "none" if self.labels is None else f"labels of the kind {self.kind!r}"
            raise fail("labels", got, "labelled examples, of one class each; give labels when the examples are made")
        return self.labels

    def token_labels(self, places: np.ndarray, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The targets of the tokens of a batch [example, token]: their labels, else the tokens; −100 for padding."""
        shown = inputs["attention_mask"].bool()
        if self.kind != "tokens":
            return inputs["input_ids"].masked_fill(~shown, IGNORED)
        found = torch.full_like(inputs["input_ids"], IGNORED)
        found[shown] = torch.from_numpy(np.concatenate([self.labels[place] for place in places])).to(found.device)
        return found

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
        labels = tuple(self.labels[place] for place in chosen) if self.kind == "tokens" else self.labels
        return replace(
            self, inputs=inputs, labels=labels if labels is None or self.kind == "tokens" else labels[chosen]
        )

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


def examples_of(data: Any) -> Examples:
    """Examples as they are, or those of a data set or a loader."""
    return data if isinstance(data, Examples) else Examples.from_dataset(data)


def checked_labels(labels: Any, count: int, classes: int | None = None) -> tuple[np.ndarray, int]:
    """Labels of `count` examples, int64 [example], and how many classes they have."""
    return class_labels("labels", _numpy(labels), count, classes)


def _targets(labels: Any, count: int, classes: int | None) -> tuple[np.ndarray, int, str]:
    """Labels, how many classes they have, and of what kind they are."""
    expected = "whole numbers [example], 0 and 1 [example, label], or numbers [example, output]"
    try:
        array = _numpy(labels)
    except ValueError as error:
        raise fail("labels", "rows of unequal lengths, or other things", expected) from error
    if array.ndim == 1 and array.dtype.kind != "f":
        return *class_labels("labels", array, count, classes), "labelled"
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiub" or not np.isfinite(array).all():
        got = f"{array.dtype} of shape {array.shape}" + (" that is not finite" if array.dtype.kind == "f" else "")
        raise fail("labels", got, expected)
    if len(array) != count:
        raise fail("labels", f"{len(array)} labels", f"{count}, one per example")
    several = array.ndim == 2 and bool(np.isin(array, (0, 1)).all())
    array = array.astype(np.float64).reshape(count, -1)
    return (array, array.shape[1], "several") if several else (array, 0, "numbers")


def _rows(item: Any, name: str) -> dict[str, list[np.ndarray]]:
    """The rows of a row or of a batch of rows, by what models read, tokens without padding, and "labels"."""
    if not isinstance(item, Mapping):
        raise TypeError(str(fail(name, f"a {type(item).__name__}", "a row or a batch by name, a dictionary")))
    main = next((one for one in ("input_ids", "pixel_values") if one in item), None)
    if main is None:
        expected = "input_ids or pixel_values; apply a tokenizer to a data set of texts first"
        raise fail(name, ", ".join(map(str, item)) or "nothing", expected)
    read = {one: _column(item[one], f"{name}[{one!r}]") for one in (*_READ, "attention_mask") if one in item}
    if (label := item.get("labels", item.get("label"))) is not None:
        read["labels"] = _column(label, f"{name}['labels']")
    usual = 1 if main == "input_ids" else 3
    if read[main].ndim not in (usual, usual + 1):
        raise fail(f"{name}[{main!r}]", f"shape {read[main].shape}", f"{usual} axes, or {usual + 1} of a batch")
    if read[main].ndim == usual:
        read = {one: values[None] for one, values in read.items()}
    if any(len(values) != len(read[main]) for values in read.values()):
        got = ", ".join(f"{one} {values.shape}" for one, values in read.items())
        raise fail(name, got, "as many rows of each")
    shown = read.pop("attention_mask", None)
    found = {one: list(values) for one, values in read.items()}
    if main == "pixel_values":
        return found
    if read[main].dtype.kind not in "iu":
        raise fail(f"{name}['input_ids']", f"numbers of type {read[main].dtype}", "whole numbers")
    if shown is not None:
        for one, values in read.items():
            if values.shape == shown.shape:
                found[one] = [row[kept.astype(bool)] for row, kept in zip(values, shown, strict=True)]
    return found


def _column(value: Any, name: str) -> np.ndarray:
    try:
        array = _numpy(value)
    except (TypeError, ValueError) as error:
        raise fail(name, "no table of numbers", "numbers; batches are padded, rows need not be") from error
    if array.dtype.kind not in "fiub":
        raise fail(name, f"values of type {array.dtype}", "numbers; batches are padded, rows need not be")
    return array


def _stacked(rows: list[np.ndarray], name: str = "labels") -> np.ndarray:
    if len({row.shape for row in rows}) > 1:
        raise fail(name, "rows of unequal shapes", "all alike, or a label of every token")
    return np.stack(rows)


def _unused(ends: Set[int]) -> int:
    """The smallest token that ends no example."""
    return next(number for number in range(len(ends) + 1) if number not in ends)


def _numpy(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _padding(tokenizer: Any, ends: Set[int] = frozenset()) -> int:
    """The token to pad with; it is masked, so that any token that ends no text will do."""
    wanted = (number for number in (tokenizer.pad_token_id, tokenizer.eos_token_id) if number is not None)
    return next((number for number in wanted if number not in ends), _unused(ends))


def _limit(tokenizer: Any) -> int | None:
    limit = getattr(tokenizer, "model_max_length", None)
    return int(limit) if limit and limit < _NO_LIMIT else None

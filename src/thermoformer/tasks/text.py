"""Sentences with labels (questions of TREC, film reviews of SST-2, a file of the user's), and plain text."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._files import MissingFileError, read_bytes
from .._validation import chosen_places, class_labels, fail, nonnegative_integer, one_of, positive_integer
from .files import damaged, data_file, own_file

# A file is read as a whole; above this it is more likely the wrong one than a set of sentences.
LARGEST_FILE = 200_000_000
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
SST2_CLASSES = ("negative", "positive")

_TREC_FILES = {"train": "text/trec/train_5500.label", "test": "text/trec/TREC_10.label"}
_SST2_FILES = {part: f"text/sst2/{part}.tsv" for part in ("train", "dev", "test")}
_HEADERS = (("text", "label"), ("sentence", "label"))


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """Texts, each of one class.

    Fields:
        texts: one str per example.
        labels: int64 [example], positions in `classes`.
        classes: names of the classes; a subset keeps them all.

    Example:
        >>> three = LabelledTexts(("so good", "so bad", "good"), [1, 0, 1], ("negative", "positive"))
        >>> len(three), three.subset([2, 1]).texts, three.subset([2, 1]).labels.tolist()
        (3, ('good', 'so bad'), [1, 0])
    """

    texts: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Checks that texts, labels and classes belong together."""
        if isinstance(self.texts, str) or not all(isinstance(text, str) for text in self.texts):
            raise fail("texts", type(self.texts).__name__, "a sequence of str")
        texts, classes = tuple(self.texts), tuple(self.classes)
        if not texts:
            raise fail("texts", "none", "at least one text")
        labels, _ = class_labels("labels", self.labels, len(texts), len(classes))
        for name, value in (("texts", texts), ("labels", labels), ("classes", classes)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.texts)

    def subset(self, indices: Sequence[int] | np.ndarray) -> LabelledTexts:
        """The given examples, in the given order.

        Arguments:
            indices: places from 0, whole numbers.
        """
        chosen = chosen_places("indices", indices, len(self))
        return LabelledTexts(tuple(self.texts[index] for index in chosen), self.labels[chosen], self.classes)

    def sample(self, count: int, seed: int = 0) -> LabelledTexts:
        """So many examples drawn without replacement; equal seeds draw equal examples.

        Example:
            >>> four = LabelledTexts(("a", "b", "c", "d"), [0, 1, 0, 1], ("x", "y"))
            >>> sorted(four.sample(4, seed=1).texts), four.sample(2).texts == four.sample(2).texts
            (['a', 'b', 'c', 'd'], True)
        """
        return self.subset(self._shuffled(seed)[: self._count(count, len(self))])

    def split(self, count: int, seed: int = 0) -> tuple[LabelledTexts, LabelledTexts]:
        """So many examples drawn without replacement (those of `sample`), and all others.

        Example:
            >>> four = LabelledTexts(("a", "b", "c", "d"), [0, 1, 0, 1], ("x", "y"))
            >>> drawn, others = four.split(3)
            >>> len(drawn), len(others), sorted(drawn.texts + others.texts)
            (3, 1, ['a', 'b', 'c', 'd'])
        """
        order = self._shuffled(seed)
        if len(self) < 2:
            raise fail("count", count, "two or more texts to split, not 1")
        count = self._count(count, len(self) - 1)
        return self.subset(order[:count]), self.subset(order[count:])

    def _shuffled(self, seed: int) -> np.ndarray:
        return np.random.default_rng(nonnegative_integer("seed", seed)).permutation(len(self))

    def _count(self, count: Any, most: int) -> int:
        if positive_integer("count", count) > most:
            raise fail("count", count, f"at most {most} of {len(self)} texts")
        return int(count)


def trec(part: str = "train") -> LabelledTexts:
    """TREC-6: questions by what they ask for (Li and Roth 2002), 5452 to train on and 500 to test.

    The classes are the six coarse ones: abbreviation, description, entity, human, location, number.

    Arguments:
        part: "train" or "test".
    """
    file = data_file(_TREC_FILES[one_of("part", part, tuple(_TREC_FILES))])
    texts, labels = [], []
    for number, line in _lines(file, encoding="latin-1"):
        label, _, text = line.partition(" ")
        coarse, colon, _ = label.partition(":")
        if not colon or coarse not in TREC_CLASSES or not text.strip():
            raise fail("file", f"{file}, line {number}: {line[:60]!r}", "CLASS:detail and a question")
        texts.append(text.strip())
        labels.append(TREC_CLASSES.index(coarse))
    if not texts:
        raise fail("file", f"{file}, which is empty", "CLASS:detail and a question on every line")
    return LabelledTexts(tuple(texts), np.array(labels), TREC_CLASSES)


def sst2(part: str = "train") -> LabelledTexts:
    """SST-2: sentences of film reviews, negative or positive (Socher et al. 2013).

    Where the folder that `THERMOFORMER_DATA` names has `text/sst2/train.tsv`, `dev.tsv` and `test.tsv` (text, tab, 0
    or 1), these are read: the original split has 6920, 872 and 1821 sentences. Elsewhere the official file of GLUE is
    fetched, another split: its "train" has 67349 phrases of the training sentences. The labels of its test sentences
    are not published; so its 872 development sentences are dealt out in turns, the first to "dev", the second to
    "test" and so on, 436 to each. Accuracies on the two splits are therefore not the same number.

    Arguments:
        part: "train", "dev" or "test".
    """
    one_of("part", part, tuple(_SST2_FILES))
    own = {name: file for name, path in _SST2_FILES.items() if (file := own_file(path)) is not None}
    if part in own:
        return _sentiment(own[part], _lines(own[part]))
    if own:
        # A part of GLUE beside a part of the original split could repeat sentences.
        raise MissingFileError("part", repr(part), f"one of {sorted(own)}, as {_SST2_FILES[part]} is missing")
    file = data_file("text/sst2/SST-2.zip")
    member = "SST-2/train.tsv" if part == "train" else "SST-2/dev.tsv"
    try:
        with zipfile.ZipFile(file) as archive, archive.open(member) as stream:
            content = stream.read(LARGEST_FILE)
    except Exception as error:  # damaged archives raise errors of many kinds
        raise damaged(file, error, f"zip file with {member}") from error
    found = _sentiment(file, _lines(file, content))
    return found if part == "train" else found.subset(np.arange(part == "test", len(found), 2))


def read_labelled(path: str | Path) -> LabelledTexts:
    """Texts and labels of a file: on every line a text, a tab and a label, in UTF-8.

    A first line `text<TAB>label` or `sentence<TAB>label` is a header and left out, and so are blank lines. Labels may
    be any words; the classes are in their order, whole numbers in that of their size.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "fruit.tsv"
        >>> _ = file.write_text("text\\tlabel\\nround and red\\tapple\\nlong\\tbanana\\nround and green\\tapple\\n")
        >>> fruit = read_labelled(file)
        >>> fruit.classes, fruit.labels.tolist(), fruit.texts[0]
        (('apple', 'banana'), [0, 1, 0], 'round and red')
    """
    texts, names = _columns(path, _lines(path))
    numbers = all(name.removeprefix("-").isdecimal() for name in names)
    classes = tuple(sorted(set(names), key=(lambda name: (int(name), name)) if numbers else None))
    if len(classes) < 2:
        raise fail("path", f"{path}, where every label is {names[0]!r}", "two or more classes")
    places = {name: place for place, name in enumerate(classes)}
    return LabelledTexts(tuple(texts), np.array([places[name] for name in names]), classes)


def read_text(path: str | Path) -> str:
    """The text of a plain file in UTF-8.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "story.txt"
        >>> _ = file.write_text("Once upon a time.")
        >>> read_text(file)
        'Once upon a time.'
    """
    text = _decoded(path, _content(path), "utf-8")
    if not text.strip():
        raise fail("path", f"{path}, which is empty", "a file with text")
    return text


def _sentiment(file: Path, lines: list[tuple[int, str]]) -> LabelledTexts:
    texts, names = _columns(file, lines)
    wrong = [name for name in names if name not in ("0", "1")]
    if wrong:
        raise fail("file", f"{file} with the label {wrong[0]!r}", "0 (negative) or 1 (positive)")
    return LabelledTexts(tuple(texts), np.array([int(name) for name in names]), SST2_CLASSES)


def _columns(path: str | Path, lines: list[tuple[int, str]]) -> tuple[list[str], list[str]]:
    """The texts and labels of numbered lines."""
    texts, names = [], []
    for place, (number, line) in enumerate(lines):
        fields = [field.strip() for field in line.split("\t")]
        if place == 0 and tuple(field.lower() for field in fields) in _HEADERS:
            continue
        if len(fields) != 2 or not all(fields):
            raise fail("path", f"{path}, line {number}: {line[:60]!r}", "a text, a tab and a label on every line")
        texts.append(fields[0])
        names.append(fields[1])
    if not texts:
        raise fail("path", f"{path}, which is empty", "a text, a tab and a label on every line")
    return texts, names


def _lines(path: str | Path, content: bytes | None = None, encoding: str = "utf-8") -> list[tuple[int, str]]:
    """The lines of a file that are not blank, with their numbers from 1.

    Arguments:
        content: of the file, if it has been read already.
    """
    # Universal newlines alone: str.splitlines would also break at separators that occur inside of texts.
    text = io.StringIO(_decoded(path, _content(path) if content is None else content, encoding), newline=None)
    return [(number, line.rstrip("\n")) for number, line in enumerate(text, 1) if line.strip()]


def _decoded(path: str | Path, content: bytes, encoding: str) -> str:
    try:
        # The byte order mark of some editors is no part of the text.
        return content.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise fail("path", f"{path}, line {number} with the byte {content[error.start]:#04x}", "UTF-8") from error


def _content(path: str | Path) -> bytes:
    return read_bytes(path, LARGEST_FILE, name="path", expected="a text file")

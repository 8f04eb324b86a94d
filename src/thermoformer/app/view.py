"""What a view of the page is: controls, an answer to them in numbers, figures, and the code behind these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import marimo as mo

from .links import LARGEST_SEED
from .page import Card, compiling, problem, write_link
from .uploads import LARGEST_FILE


class View(ABC):
    """One view of one page. The notebook runs `answer` and then `figures` whenever a control moves.

    Arguments:
        address: marimo's query parameters.
        say_waits: called with the name of the view and whether it waits for ticks of the page's clock.

    Fields:
        controls: marimo's elements by name, made once.
        cards: where the figures stand, by name.
        waits: whether there is work that ticks of the clock go on with.
    """

    name: ClassVar[str]
    controls: Any
    cards: dict[str, Card]

    def __init__(self, address: Any, say_waits: Callable[[str, bool], None]) -> None:
        self.waits = False
        self._address, self._say_waits = address, say_waits

    @abstractmethod
    def panel(self) -> mo.Html:
        """The controls, in the order in which a reader needs them."""

    @abstractmethod
    def ask(self, values: dict[str, Any]) -> bool:
        """Takes the values of the controls; whether programs for them are still to be compiled.

        What is wrong with the values is a ValueError with a sentence.
        """

    @abstractmethod
    def numbers(self) -> mo.Html:
        """Computes what was asked for, or a part of it: numbers, and how far the work is."""

    @abstractmethod
    def forget(self) -> None:
        """Shows nothing until the next question, as the last one had no answer."""

    @abstractmethod
    def figures(self) -> Iterator[mo.Html]:
        """The figures and the code behind them, again each time more of them is known."""

    def answer(self, values: dict[str, Any]) -> Iterator[mo.Html]:
        """What stands above the figures: first a notice if something compiles, then numbers, or what is wrong."""
        try:
            if self.ask(values):
                yield compiling()
            yield self.numbers()
        except ValueError as error:
            self.forget()
            yield problem(str(error))

    def draw(self, picture: Any, kinds: Mapping[str, tuple[Any, Any]]) -> list[mo.Html]:
        """Draws figures of a picture on their cards.

        Arguments:
            kinds: by name of the card, what draws the figure, and what makes the table behind it.
        """
        return [
            self.cards[name].draw(drawing(picture), partial(table, picture)) for name, (drawing, table) in kinds.items()
        ]

    def write_link(self, choice: Any) -> None:
        """Writes a choice into the address."""
        write_link(self._address, self.name, choice)

    def wait(self, waits: bool) -> None:
        """Sets whether there is work left; only changes are told, as the clock depends on them."""
        if waits != self.waits:
            self.waits = waits
            self._say_waits(self.name, waits)


def menu(words: dict[str, Any], value: Any, label: str = "") -> Any:
    """A menu of words that stand for values."""
    word = next(word for word, meant in words.items() if meant == value)
    return mo.ui.dropdown(words, value=word, label=label, allow_select_none=False)


def upload(label: str) -> Any:
    """Takes a file of arrays or a table."""
    return mo.ui.file(filetypes=[".npz", ".csv"], max_size=LARGEST_FILE, label=label)


def seed(value: int, label: str = "seed") -> Any:
    """A box for a seed."""
    return mo.ui.number(0, LARGEST_SEED, 1, value=value, label=label)

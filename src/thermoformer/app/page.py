"""What both views of the page share: where it opens, cards with a figure and its files, sentences, links."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import marimo as mo
import numpy as np
import pandas as pd
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers.python import PythonLexer

from .drawings import file_of
from .dynamics_view import DynamicsChoice
from .learning_view import LearningChoice
from .links import from_link, to_link

# What a reader chooses in each view.
VIEWS = {"Learning": LearningChoice, "Dynamics": DynamicsChoice}

STYLE = f"<style>{Path(__file__).with_suffix('.css').read_text(encoding='utf-8')}</style>"


@dataclass(frozen=True)
class Opening:
    """Where the page opens, as its address says.

    Fields:
        view: "Learning" or "Dynamics".
        choices: of every view, by name.
        problems: a sentence for each value of the address that is not valid.
    """

    view: str
    choices: dict[str, Any]
    problems: tuple[str, ...]


def opening(address: Mapping[str, Any]) -> Opening:
    """Reads an address.

    Arguments:
        address: text by name, from behind the question mark.

    Example:
        >>> found = opening({"view": "Dynamics", "dynamics.beta": "1.28", "learning.width": "wide"})
        >>> found.view, found.choices["Dynamics"].beta, found.problems
        ('Dynamics', 1.28, ("width: got 'wide'; expected a whole number; 10 is taken",))
    """
    view, problems = address.get("view", "Learning"), []
    if view not in tuple(VIEWS):  # an address may name several
        problems.append(f"view: got {str(view)[:20]!r}; expected Learning or Dynamics; Learning is taken")
        view = "Learning"
    choices = {}
    for name, choice in VIEWS.items():
        given = {one.removeprefix(_prefix(name)): address[one] for one in address if one.startswith(_prefix(name))}
        choices[name], found = from_link(choice(), given)
        problems += found
    return Opening(view, choices, tuple(problems))


def write_link(address: Any, view: str, choice: Any) -> None:
    """Writes a view and its choice into the address, so that a reload or a copy of it comes back to the same picture.

    Arguments:
        address: marimo's query parameters.
        view: whose choice it is.
        choice: what is shown.
    """
    wanted = {_prefix(view) + name: text for name, text in to_link(choice).items()} | {"view": view}
    for name in [name for name in address if name.startswith(_prefix(view)) and name not in wanted]:
        address.remove(name)
    for name, text in wanted.items():
        if address.get(name) != text:
            address.set(name, text)


def _prefix(view: str) -> str:
    """What names of a view's choice begin with in the address."""
    return f"{view.lower()}."


def heading(view: Any, problems: Iterable[str]) -> mo.Html:
    """The title, the switch between views, and what was wrong with the address."""
    title = '<p class="tf-title">thermoformer</p><p class="tf-line">The statistical mechanics of attention, live.</p>'
    return mo.vstack([mo.Html(STYLE + title), view, problem(problems)], gap=0.3)


def row(elements: Iterable[Any], name: str = "") -> mo.Html:
    """Elements next to each other, under a name."""
    above = f"<span>{html.escape(name)}</span>" if name else ""
    beside = "".join(mo.as_html(element).text for element in elements)
    return mo.Html(f'<div class="tf-row">{above}{beside}</div>')


def slider(label: str, steps: Iterable[float], value: float) -> Any:
    """A slider over given steps, with the value of a link among them.

    Arguments:
        steps: whole numbers for a slider of whole numbers.
        value: where it stands.
    """
    known = list(steps)
    whole = all(isinstance(step, int) for step in known)
    places = sorted({*known, value if whole else float(value)})
    return mo.ui.slider(steps=places, value=value, label=label, show_value=True, full_width=True)


def problem(sentences: str | Iterable[str]) -> mo.Html:
    """Sentences about what could not be done; screen readers say them too."""
    some = [sentences] if isinstance(sentences, str) else list(sentences)
    return mo.Html("".join(f'<div class="tf-problem" role="alert">{html.escape(one)}</div>' for one in some))


def line(words: str) -> mo.Html:
    """A quiet line."""
    return mo.Html(f'<p class="tf-line">{html.escape(words)}</p>')


def numbers(pairs: Iterable[tuple[str, str]], called: str = "numbers") -> mo.Html:
    """A strip of names and values.

    Arguments:
        called: what tests find it by.
    """
    cells = "".join(
        f'<div class="tf-number"><span>{html.escape(name)}</span><b>{html.escape(value)}</b></div>'
        for name, value in pairs
    )
    return mo.Html(f'<div class="tf-numbers" data-testid="{called}">{cells}</div>')


def progress(name: str, fraction: float | None, words: str) -> mo.Html:
    """A bar with words, and the words alone at the end; without a fraction the bar moves."""
    value = "" if fraction is None else f'value="{fraction:.3f}" max="1" '
    bar = f'<progress {value}aria-label="{html.escape(name)}"></progress>' if fraction != 1 else ""
    return mo.Html(f'<div class="tf-progress" data-testid="{html.escape(name)}">{bar}{html.escape(words)}</div>')


def compiling() -> mo.Html:
    """What stands in place of numbers while their program is compiled."""
    return progress("compiling", None, "compiling a program for these sizes: some seconds, once")


def applies(element: Any, does: bool = True) -> mo.Html:
    """A control that is pale and cannot be moved where it does not apply."""
    text = mo.as_html(element).text
    if does:
        return mo.Html(f"<div>{text}</div>")
    # Elements are made once, so that they keep their values: their tags say whether they are disabled.
    off = text.replace("data-disabled='false'", "data-disabled='true'")
    return mo.Html(f'<div class="tf-off">{off}</div>')


def unseen(element: Any) -> mo.Html:
    """An element that works without being seen."""
    return mo.Html(f'<div class="tf-unseen">{"" if element is None else mo.as_html(element).text}</div>')


def nothing() -> mo.Html:
    """An empty element: if one of two parts went, a browser would rebuild the other."""
    return mo.Html("<div></div>")


class Card:
    """A drawing's place on the page, with what saves it: the drawing, and the numbers behind it.

    It is made once for a page, in a cell that does not run again, so that its links stay.

    Arguments:
        name: of the files.
        title, line: what stands above and below the drawing; the line says what is seen.

    Fields:
        shown: the drawing on the page; empty before the first.
        table: columns by name, asked for when they are saved.
    """

    def __init__(self, name: str, title: str = "", line: str = "") -> None:
        self.shown = ""
        self._title, self._line = html.escape(title), html.escape(line)
        self.table: Callable[[], Mapping[str, np.ndarray]] = dict
        saved = [
            mo.download(lambda: csv_of(self.table()), f"{name}.csv", "text/csv", label="data"),
            mo.download(self.file, f"{name}.svg", "image/svg+xml", label="picture"),
        ]
        self._saved = saved, "".join(element.text for element in saved)

    def draw(self, drawing: str, table: Callable[[], Mapping[str, np.ndarray]], over: str = "") -> mo.Html:
        """The card with another drawing.

        Arguments:
            drawing: of `drawings.drawing`.
            table: the columns behind it, by name.
            over: an element that lies over the drawing, as HTML.
        """
        self.shown, self.table = drawing, table
        return self.html(over)

    def html(self, over: str = "") -> mo.Html:
        """The card as it was shown last."""
        under = f'<div class="tf-wide"><div class="tf-under">{self.shown}{over}</div></div>'
        shown = under if over else self.shown
        # A heading by its role: marimo would list other headings in an outline beside the page.
        above = f'<p class="tf-name" role="heading" aria-level="2">{self._title}</p>'
        below = f'<p class="tf-line">{self._line}</p><div class="tf-saved">{self._saved[1]}</div>'
        return mo.Html(f'<div class="tf-card">{above}{shown}{below}</div>')

    def file(self) -> bytes:
        """The drawing as a file of its own."""
        return file_of(self.shown)


def picker(element: Any, sides: tuple[float, float]) -> str:
    """A slider that lies unseen over a drawing, so that a click there moves it.

    Arguments:
        element: the slider, without a label.
        sides: where it begins and ends, as shares of the width of the drawing.
    """
    place = f"left:{100 * sides[0]:.3f}%;right:{100 * (1 - sides[1]):.3f}%"
    return f'<div class="tf-picker" style="{place}"><div>{element.text}</div></div>'


def cards(shown: Iterable[mo.Html]) -> mo.Html:
    """Cards beside each other, or one below the other where the screen is narrow."""
    return mo.Html(f'<div class="tf-cards">{"".join(one.text for one in shown)}</div>')


def csv_of(columns: Mapping[str, np.ndarray]) -> bytes:
    """Columns of equal length as a csv file.

    Example:
        >>> csv_of({"width": np.array([1.0, 2.5]), "name": np.array(["a", "b"])}).decode().split()
        ['width,name', '1.0,a', '2.5,b']
    """
    return pd.DataFrame(columns).to_csv(index=False).encode()


def code(lines: str) -> mo.Html:
    """The lines behind a picture, folded."""
    said = '<summary role="button">Show me the code</summary>'
    coloured = "\n".join(map(_highlighted, lines.strip().split("\n")))
    shown = f'<div class="codehilite"><pre><code>{coloured}</code></pre></div>'
    return mo.Html(f'<details class="tf-code">{said}{shown}</details>')


@lru_cache(maxsize=2048)
def _highlighted(line: str) -> str:
    """One line in colours; most are the same from one move to the next."""
    return highlight(line, PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True))

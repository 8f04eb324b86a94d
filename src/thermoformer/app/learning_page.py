"""The Learning view on the page: its controls, and what stands where."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import marimo as mo
import numpy as np

from . import learning_drawings as drawings
from . import learning_tables as tables
from ._learning_numbers import LearningPicture, PictureWork
from .learning_code import code_of, code_of_file
from .learning_view import (
    MOST_HEADS,
    MOST_LAYERS,
    TEMPERATURE_RANGE,
    TRAIN_SIZES,
    WIDTH_RANGE,
    LearningChoice,
    numbers_of,
    work_of,
    work_of_arrays,
)
from .page import DrawnCard, cards, code, compiling, numbers, problem, progress, row, slider, write_link
from .uploads import LARGEST_FILE, Upload, upload_of

NONE = "–"
# Seconds that a page works on an answer before it shows a bar and lets others have their turn.
SLICE = 0.4
KINDS = (NONE, "good", "uniform", "random")


def controls(choice: LearningChoice) -> Any:
    """What a reader chooses."""
    kinds = [
        [*layer, *[NONE] * MOST_HEADS][:MOST_HEADS] for layer in [*choice.kinds, *[()] * MOST_LAYERS][:MOST_LAYERS]
    ]
    widths = np.unique(np.round(np.geomspace(*WIDTH_RANGE, 60)).astype(int)).tolist()
    temperatures = [float(f"{value:.2g}") for value in np.geomspace(*TEMPERATURE_RANGE, 51)]
    return mo.ui.dictionary(
        {
            "width": slider("width N", widths, choice.width),
            "temperature": slider("temperature τ", temperatures, choice.temperature),
            "perpendicular_noise": slider("noise across σ⊥", tenths(50), choice.perpendicular_noise),
            "parallel_noise": slider("noise along σ∥", tenths(50), choice.parallel_noise),
            "stay_probability": slider(
                "stay probability", (number / 50 for number in range(51)), choice.stay_probability
            ),
            "train": mo.ui.dropdown(
                [str(size) for size in TRAIN_SIZES],
                value=str(choice.train),
                label="training examples",
                allow_select_none=False,
            ),
            "layers": mo.ui.array([mo.ui.array([_kind(kind) for kind in layer]) for layer in kinds]),
            "seed": mo.ui.number(0, 2**32 - 1, 1, value=choice.seed, label="seed"),
        }
    )


def upload() -> Any:
    """Where a reader hands in arrays."""
    return mo.ui.file(filetypes=[".npz", ".csv"], max_size=LARGEST_FILE, label="a file (npz, csv)")


def tenths(count: int) -> list[float]:
    """0, 0.1, 0.2 and so on.

    Example:
        >>> tenths(3)
        [0.0, 0.1, 0.2, 0.3]
    """
    return [number / 10 for number in range(count + 1)]


def chosen(values: dict[str, Any]) -> LearningChoice:
    """The choice that the controls say; what is wrong with them is a ValueError with a sentence.

    Arguments:
        values: of the controls, by name.
    """
    layers = [[kind for kind in layer if kind != NONE] for layer in values["layers"]]
    if not layers[0] and any(layers):
        layers = layers[1:]
    named = tuple("+".join(layer) for layer in layers if layer)
    return LearningChoice(**{**values, "train": int(values["train"]), "layers": named})


@dataclass
class Pace:
    """What a page remembers between its runs.

    Fields:
        asked: what the work under way is for.
        work: the picture in slices.
        drawn: the work whose first figures have been shown.
        stopped: whether the reader stopped it, or it could not go on.
        trouble: why it could not.
        waits: whether there was more to do at the last run.
        button: the one that stops it.
        file: the file that was handed in, name and content, with what it holds.
    """

    asked: Any = None
    work: PictureWork | None = None
    drawn: PictureWork | None = None
    stopped: bool = False
    trouble: str = ""
    waits: bool = False
    button: Any = None
    file: tuple[tuple[str, bytes], Upload] | None = None

    def stop(self) -> None:
        """No slice more."""
        self.stopped = True

    def advance(self, enough: Callable[[PictureWork], bool]) -> None:
        """Goes on with the work until it is enough, or has taken its time; by one slice at least."""
        end = time.monotonic() + SLICE
        while self.work is not None and not (enough(self.work) or self.stopped):
            self.work.advance()
            if time.monotonic() > end:
                break


@dataclass(frozen=True)
class Answer:
    """What the controls say.

    Fields:
        top: numbers; how far the work is; what is wrong.
        work: the picture as far as it is there; none where something is wrong.
        lines: the code behind it.
    """

    top: mo.Html
    work: PictureWork | None = None
    lines: str = ""


def answer(values: dict[str, Any], own: Any, pace: Pace, address: Any) -> Answer:
    """The numbers that the controls ask for, or a part of the way to them.

    What takes long comes in slices, one at each tick of the page's clock, with a bar and a button that stops it.

    Arguments:
        values: of the controls, by name.
        own: the files that were handed in.
        pace: what the page remembers.
        address: marimo's query parameters.
    """
    try:
        work, lines = _work(values, own, pace, address)
        pace.advance(lambda work: work.picture is not None)
    except ValueError as error:
        return Answer(problem(str(error)))
    parts = [] if work.picture is None else [numbers(numbers_of(work.picture))]
    if pace.stopped and not work.done and not pace.trouble:
        parts.append(problem("stopped; any change of the controls begins anew"))
    # The curve has a moment to come by itself before a bar says that it does not.
    elif work.picture is None or (pace.waits and not work.done and not pace.stopped):
        # Kept, or nobody would be there to be told of a click.
        pace.button = mo.ui.button(label="stop", on_click=lambda _: pace.stop())
        parts.append(row([progress("solving", work.fraction, "solving width by width"), pace.button]))
    return Answer(mo.vstack(parts), work, lines)


def notice(values: dict[str, Any], own: Any, pace: Pace, address: Any) -> mo.Html | None:
    """What to show before `answer`, whose arguments these are, where that compiles first."""
    try:
        work, _ = _work(values, own, pace, address)
    except ValueError:  # said by the answer
        return None
    return compiling() if work.compiles else None


def cards_of_page() -> dict[str, DrawnCard]:
    """The places of all figures, by name."""
    return {name: DrawnCard(name) for name in (*_CURVE, *_SOLUTION)}


def figures(found: Answer, pace: Pace, places: dict[str, DrawnCard]) -> Iterator[mo.Html | None]:
    """All figures of an answer, and the code behind them: at once without the curve, which follows in a moment.

    Arguments:
        pace: what the page remembers; afterwards it says whether there is more to do.
        places: of the figures, by name.
    """
    work = found.work
    if work is not None and work.picture is not None:
        if pace.drawn is not work:
            pace.drawn = work
            _draw(work.picture, places, _SOLUTION)
            # Better the last curve for a moment longer than none, and then one on another scale.
            if not places["accuracy"].shown:
                _draw(work.picture, places, _CURVE)
            if not work.done:
                yield _page(places, found.lines)
        try:
            pace.advance(lambda work: work.done)
        except ValueError as error:  # another width than the one shown
            pace.trouble = str(error)
            pace.stop()
        _draw(work.picture, places, _CURVE)
    pace.waits = work is not None and not (work.done or pace.stopped)
    if work is None or work.picture is None:
        yield None
    else:
        said = [problem(pace.trouble)] if pace.trouble else []
        yield mo.vstack([*said, _page(places, found.lines)])


_CURVE = {"accuracy": (drawings.accuracy_drawing, tables.accuracy_table)}
_SOLUTION = {
    "order-parameter": (drawings.order_drawing, tables.order_table),
    "paths": (drawings.paths_drawing, tables.paths_table),
    "kernel": (drawings.kernel_drawing, tables.kernel_table),
    "label-overlap": (drawings.overlap_drawing, tables.overlap_table),
}


def _draw(picture: LearningPicture, places: dict[str, DrawnCard], kinds: dict[str, tuple[Any, Any]]) -> None:
    for name, (drawing, table) in kinds.items():
        places[name].draw(drawing(picture), partial(table, picture))


def _page(places: dict[str, DrawnCard], lines: str) -> mo.Html:
    rows = (("accuracy", "order-parameter"), ("paths", "kernel", "label-overlap"))
    return mo.vstack([*(cards([places[name].html() for name in row]) for row in rows), code(lines)], gap=0.4)


def _work(values: dict[str, Any], own: Any, pace: Pace, address: Any) -> tuple[PictureWork, str]:
    """The work for what the controls say, which goes on where it is the same as before."""
    if own:
        file, given = (own[0].name, own[0].contents), {name: values[name] for name in ("width", "temperature", "seed")}
        asked: Any = (*file, *given.values())
        write_link(address, "Learning", LearningChoice())  # a file is not part of a link
        if pace.file is None or pace.file[0] != file:
            pace.file = None
            pace.file = file, upload_of(*file)
        upload = pace.file[1]
        lines = code_of_file(own[0].name, upload, **given)
    else:
        asked, upload, given = chosen(values), None, {}
        lines = code_of(asked)
        write_link(address, "Learning", asked)
    if pace.work is None or asked != pace.asked:
        pace.asked, pace.stopped, pace.trouble = asked, False, ""
        pace.work = None  # what was for something else must not be shown where the new one fails
        pace.work = (
            work_of(asked) if upload is None else work_of_arrays(upload.xi, upload.labels, upload.heads, **given)
        )
    return pace.work, lines


def panel(elements: Any, uploaded: Any) -> mo.Html:
    """The controls, in the order in which one reaches for them."""
    names = ("width", "temperature", "perpendicular_noise", "parallel_noise", "stay_probability", "train")
    rows = [row(layer, f"heads of layer {number}") for number, layer in enumerate(elements["layers"], 1)]
    own = mo.accordion({"My own arrays": mo.vstack([uploaded, mo.md(_FORMS)])})
    return mo.vstack([*(elements[name] for name in names), *rows, elements["seed"], own], gap=0.7)


_FORMS = """
npz: `xi` [example, path, feature] and `y` [example]; or `x` [example, token, feature], `attention_1`, `attention_2`, …
[example, head, query, key] and `y`. csv: a row per example, a column `label`, and a column per feature, named
`path.feature` where there are several paths. Half of the examples are for training. Nothing leaves this machine.
"""


def _kind(kind: str) -> Any:
    return mo.ui.dropdown(list(KINDS), value=kind, allow_select_none=False)

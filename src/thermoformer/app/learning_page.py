"""The Learning view on the page: its controls, and what stands where."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import marimo as mo
import numpy as np

from . import learning_drawings as drawings
from . import learning_pictures as pictures
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
from .page import Card, cards, code, numbers, problem, progress, row, slider, write_link
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
        stopped: whether the reader stopped it.
        waits: whether there was more to do at the last run.
        button: the one that stops it.
        file: the file that was handed in, name and content, with what it holds.
    """

    asked: Any = None
    work: PictureWork | None = None
    stopped: bool = False
    waits: bool = False
    button: Any = None
    file: tuple[tuple[str, bytes], Upload] | None = None

    def stop(self) -> None:
        """No slice more."""
        self.stopped = True


@dataclass(frozen=True)
class Answer:
    """What the controls say.

    Fields:
        top: numbers; or how far the work is, or what is wrong.
        picture: none where there is nothing to draw yet.
        lines: the code behind it.
        waits: whether there is more to do.
    """

    top: mo.Html
    picture: LearningPicture | None = None
    lines: str = ""
    waits: bool = False


def answer(values: dict[str, Any], own: Any, pace: Pace, address: Any) -> Answer:
    """The answer to the controls, or a part of the way to it.

    What takes long comes in slices, one at each tick of the page's clock, with a bar and a button that stops it.

    Arguments:
        values: of the controls, by name.
        own: the files that were handed in.
        pace: what the page remembers.
        address: marimo's query parameters.
    """
    try:
        work, lines = _work(values, own, pace, address)
        end = time.monotonic() + SLICE
        while not (work.done or pace.stopped or time.monotonic() > end):
            work.advance()
    except ValueError as error:
        return Answer(problem(str(error)))
    if work.picture is not None:
        return Answer(numbers(numbers_of(work.picture)), work.picture, lines)
    if pace.stopped:
        return Answer(problem("stopped; any change of the controls begins anew"))
    # Kept, or nobody would be there to be told of a click.
    pace.button = mo.ui.button(label="stop", on_click=lambda _: pace.stop())
    bar = progress("solving", work.fraction, "solving width by width")
    return Answer(mo.vstack([bar, pace.button]), waits=True)


def cards_of_page() -> dict[str, Card]:
    """The places of all figures, by name."""
    return {name: Card(name) for name in ("accuracy", "order-parameter", "paths", "kernel", "label-overlap")}


def figures(found: Answer, places: dict[str, Card]) -> mo.Html | None:
    """All figures of an answer, and the code behind them.

    Arguments:
        places: of the figures, by name.
    """
    picture = found.picture
    if picture is None:
        return None

    def drawn(name: str, drawing: Any, figure: Any, table: Any) -> mo.Html:
        return places[name].drawn(drawing(picture), lambda: figure(picture), lambda: table(picture))

    accuracy = places["accuracy"].plotted(pictures.accuracy_figure(picture), lambda: pictures.accuracy_table(picture))
    order = drawn("order-parameter", drawings.order_drawing, pictures.order_figure, pictures.order_table)
    paths = drawn("paths", drawings.paths_drawing, pictures.paths_figure, pictures.paths_table)
    kernel = drawn("kernel", drawings.kernel_drawing, pictures.kernel_figure, pictures.kernel_table)
    overlap = drawn("label-overlap", drawings.overlap_drawing, pictures.overlap_figure, pictures.overlap_table)
    above, below = cards([accuracy, order]), cards([paths, kernel, overlap])
    return mo.vstack([above, below, code(found.lines)], gap=0.4)


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
        pace.asked, pace.stopped = asked, False
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

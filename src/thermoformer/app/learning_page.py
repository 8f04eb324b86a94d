"""The Learning view on the page: its controls, and where numbers and figures stand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import marimo as mo
import numpy as np

from ..figures.style import short_number
from . import learning_drawings as drawings
from . import learning_tables as tables
from .learning_code import code_of, code_of_file
from .learning_view import (
    MOST_HEADS,
    MOST_LAYERS,
    TEMPERATURE_RANGE,
    TRAIN_SIZES,
    WIDTH_RANGE,
    Data,
    LearningChoice,
    LearningPicture,
    LearningWork,
    data_of_arrays,
    whole_width,
    work_of,
)
from .links import within
from .page import Card, applies, cards, code, line, numbers, problem, progress, row, slider
from .uploads import Upload, upload_of
from .view import View, menu, seed, upload

NONE = "–"
KINDS = (NONE, "good", "uniform", "random")
# Seconds that a page works on an answer before it shows a bar and other sessions go on.
SLICE = 0.4

_CURVE = {"accuracy": (drawings.accuracy_drawing, tables.accuracy_table)}
_SOLUTION = {
    "order-parameter": (drawings.order_drawing, tables.order_table),
    "paths": (drawings.paths_drawing, tables.paths_table),
    "kernel": (drawings.kernel_drawing, tables.kernel_table),
    "label-overlap": (drawings.overlap_drawing, tables.overlap_table),
}
_ROWS = (("accuracy", "order-parameter"), ("paths", "kernel", "label-overlap"))
_SAID = {
    "accuracy": (
        "Accuracy against width",
        "How many test examples a network of width N classifies correctly. Dotted: infinite width.",
    ),
    "order-parameter": (
        "Order parameter U",
        "How much each path counts (the diagonal), and together with which others. At infinite width: the identity.",
    ),
    "paths": ("Paths", "The ways from input to output, each through one head per layer and as thick as it counts."),
    "kernel": ("Kernel K", "How similar training examples are to the network. Bright blocks tell the classes apart."),
    "label-overlap": (
        "Labels in the kernel",
        "Share of the labels in the leading components of K. The earlier it rises, the better K fits the labels.",
    ),
}
# What an own file has no use for.
_OF_THE_TASK = ("perpendicular_noise", "parallel_noise", "stay_probability", "train")
_SLIDERS = ("width", "temperature", *_OF_THE_TASK)

_FORMS = """
npz: `xi` [example, path, feature] and `y` [example]; or `x` [example, token, feature], `attention_1`, `attention_2`, …
[example, head, query, key] and `y`. csv: a row per example, a column `label`, and a column per feature, named
`path.feature` where there are several paths. Half of the examples are for training. Nothing leaves this machine.
"""


class LearningView(View):
    """The Learning view of one page.

    Arguments:
        choice: what the page opens with.
        address, say_waits: as in `View`.

    Fields:
        work: the computation under way; None if the last question was wrong.
        stopped: whether the reader stopped it, or it could not go on.
        trouble: why it could not.
        code: the lines behind the figures.
        notes: how labels of a file were read.
    """

    name = "Learning"

    def __init__(
        self, choice: LearningChoice, address: Any, say_waits: Callable[[str, bool], None] = lambda *_: None
    ) -> None:
        super().__init__(address, say_waits)
        self.controls = controls(choice)
        self.cards = {name: Card(name, *words) for name, words in _SAID.items()}
        self.work: LearningWork | None = None
        self.stopped, self.trouble = False, ""
        self._asked: Any = None
        self.code, self.notes = "", ()
        self._drawn: LearningWork | None = None
        self._file: tuple[Any, Upload, Data] | None = None
        self._button: Any = None

    def panel(self) -> mo.Html:
        """The controls, in the order in which a reader needs them."""
        task = not self.controls["file"].value
        sliders = [applies(self.controls[name], task or name not in _OF_THE_TASK) for name in _SLIDERS]
        layers = enumerate(self.controls["layers"])
        rows = [applies(row(layer, f"heads of layer {number}"), task) for number, layer in layers]
        own = mo.accordion({"My own arrays": mo.vstack([self.controls["file"], mo.md(_FORMS)])})
        return mo.vstack([*sliders, *rows, self.controls["seed"], own], gap=0.7)

    def ask(self, values: dict[str, Any]) -> bool:
        """Takes the values of the controls; work goes on if it is for the same ones as before."""
        file = values["file"]
        choice = LearningChoice() if file else chosen(values)  # a file is not part of a link
        self.write_link(choice)
        given = (values["width"], values["temperature"], values["seed"])
        asked = (file[0].name, file[0].contents, *given) if file else choice
        if self.work is None or asked != self._asked:
            self._asked, self.stopped, self.trouble = asked, False, ""
            self.work = None  # the work for something else must not be shown if this one fails
            if file:
                self.work = self._work_of_file(file[0].name, file[0].contents, *given)
            else:
                self.work, self.code, self.notes = work_of(choice), code_of(choice), ()
        return self.work.compiles

    def _work_of_file(self, name: str, content: bytes, width: Any, temperature: Any, seed: Any) -> LearningWork:
        width, temperature = whole_width(width), within("temperature", temperature, *TEMPERATURE_RANGE)
        if self._file is None or self._file[0] != (name, content, seed):
            self._file = None
            found = upload_of(name, content)
            self._file = (name, content, seed), found, data_of_arrays(found.xi, found.labels, found.heads, seed=seed)
        _, found, data = self._file
        self.notes = found.notes
        self.code = code_of_file(name, found, width=width, temperature=temperature, seed=seed)
        return LearningWork(data, width, temperature)

    def numbers(self) -> mo.Html:
        """Numbers, or a part of the way to them: what takes long goes on at each tick of the clock."""
        self._advance(lambda work: work.picture is not None)
        assert self.work is not None
        work, picture = self.work, self.work.picture
        parts = [] if picture is None else [numbers(numbers_of(picture)), *map(line, self.notes)]
        if self.stopped and not work.done and not self.trouble:
            parts.append(problem("stopped; any change of the controls begins anew"))
        # The curve has a moment to come by itself before a bar says that it does not.
        elif picture is None or (self.waits and not work.done and not self.stopped):
            # A reference keeps the button alive, so that a click is heard.
            self._button = mo.ui.button(label="stop", on_click=lambda _: self.stop())
            parts.append(row([progress("solving", work.fraction, "solving width by width"), self._button]))
        return mo.vstack(parts)

    def forget(self) -> None:
        """Shows nothing until the next question."""
        self.work = None

    def stop(self) -> None:
        """Computes nothing more of this picture."""
        self.stopped = True

    def figures(self) -> Iterator[mo.Html]:
        """All figures and their code: at once without the curve, which follows in a moment."""
        work = self.work
        if work is None or work.picture is None:
            self.wait(work is not None and not self.stopped)
            return
        if self._drawn is not work:
            self._drawn = work
            self.draw(work.picture, _SOLUTION)
            # Until the new curve is known, the last one stays.
            if not self.cards["accuracy"].shown:
                self.draw(work.picture, _CURVE)
            if not work.done:
                yield self._page()
        try:
            self._advance(lambda work: work.done)
        except ValueError as error:  # another width than the one shown
            self.trouble = str(error)
            self.stop()
        self.draw(work.picture, _CURVE)
        self.wait(not (work.done or self.stopped))
        yield mo.vstack([*([problem(self.trouble)] if self.trouble else []), self._page()])

    def _advance(self, enough: Callable[[LearningWork], bool]) -> None:
        """Goes on with the work until it is enough, or has taken its time; by one slice at least."""
        end = time.monotonic() + SLICE
        while self.work is not None and not (enough(self.work) or self.stopped):
            self.work.advance()
            if time.monotonic() > end:
                break

    def _page(self) -> mo.Html:
        rows = [cards([self.cards[name].html() for name in names]) for names in _ROWS]
        return mo.vstack([*rows, code(self.code)], gap=0.4)


def controls(choice: LearningChoice) -> Any:
    """The controls, set to a choice."""
    layers = [*choice.kinds, *[()] * MOST_LAYERS][:MOST_LAYERS]
    kinds = [[*layer, *[NONE] * MOST_HEADS][:MOST_HEADS] for layer in layers]
    widths = np.unique(np.round(np.geomspace(*WIDTH_RANGE, 60)).astype(int)).tolist()
    temperatures = [float(f"{value:.2g}") for value in np.geomspace(*TEMPERATURE_RANGE, 51)]
    noise, fiftieths = [number / 10 for number in range(51)], [number / 50 for number in range(51)]
    sizes = {str(size): size for size in TRAIN_SIZES}
    words = {kind: kind for kind in KINDS}
    return mo.ui.dictionary(
        {
            "width": slider("width N of the network", widths, choice.width),
            "temperature": slider("temperature τ, noise of labels", temperatures, choice.temperature),
            "perpendicular_noise": slider("noise across the states, σ⊥", noise, choice.perpendicular_noise),
            "parallel_noise": slider("noise along the states, σ∥", noise, choice.parallel_noise),
            "stay_probability": slider("stay probability, class +1", fiftieths, choice.stay_probability),
            "train": menu(sizes, choice.train, "training examples"),
            "layers": mo.ui.array([mo.ui.array([menu(words, kind) for kind in layer]) for layer in kinds]),
            "seed": seed(choice.seed),
            "file": upload("a file"),
        }
    )


def chosen(values: dict[str, Any]) -> LearningChoice:
    """The choice that values of the controls make; what is wrong with them is a ValueError with a sentence."""
    layers = [[kind for kind in layer if kind != NONE] for layer in values["layers"]]
    given: dict[str, Any] = {name: value for name, value in values.items() if name != "file"}
    given["layers"] = tuple("+".join(layer) for layer in layers if layer)
    return LearningChoice(**given)


def numbers_of(picture: LearningPicture) -> list[tuple[str, str]]:
    """Short labels with their values."""
    return [
        (f"test accuracy, N = {picture.width}", f"{100 * picture.test_accuracy:.1f} %"),
        ("Gaussian process", f"{100 * picture.limit.accuracy:.1f} %"),
        ("training accuracy", f"{100 * picture.train_accuracy:.1f} %"),
        ("log evidence", short_number(picture.solution.log_evidence)),
        ("log evidence, GP", short_number(picture.limit.solution.log_evidence)),
        ("heaviest path", picture.path_names[int(np.argmax(picture.path_scores))]),
        ("largest label overlap", f"{picture.overlaps.max():.2f} (GP {picture.limit.overlaps.max():.2f})"),
        ("solver", "converged" if picture.solution.converged else "not converged"),
    ]

"""The Dynamics view on the page: its controls, and where numbers and figures stand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import marimo as mo
import numpy as np

from . import dynamics_drawings as drawings
from . import dynamics_tables as tables
from .dynamics_code import code_of, diagram_code_of
from .dynamics_steps import DiagramStepper, Judgement, diagram_for
from .dynamics_view import (
    BANDS,
    CONTEXTS,
    HIGHEST_BETA,
    MOST_COLUMNS,
    MOST_FEATURES,
    MOST_HEADS,
    ROLES,
    DynamicsChoice,
    DynamicsPicture,
    compiles,
    computed_choice,
    picture_of,
    table_text,
)
from .page import Card, applies, cards, code, nothing, numbers, picker, progress, row, slider
from .uploads import table
from .view import View, menu, seed, upload
from .work import dynamics_lock

FEATURES = {"the paper's": "paper", "random": "random", "my own table": "table"}
WIDTHS = {"none": 0} | {f"{bits:,} bits".replace(",", " "): bits for bits in BANDS[1:]}
# Seconds after the last move of a slider in which the diagram waits, so that sliders answer at once.
PAUSE = 0.8
# Steps of the slider over the diagram on the left of its axis.
BESIDE = 20

_ORBIT = {
    "orbit": (drawings.orbit_drawing, tables.orbit_table),
    "phase-plane": (drawings.plane_drawing, tables.plane_table),
    "spectrum": (drawings.spectrum_drawing, tables.spectrum_table),
}

_SAID = {
    "orbit": ("Orbit", "Overlaps with the features, step by step, after the transient; the chosen component in front."),
    "phase-plane": (
        "Phase plane",
        "One component against another: points for a cycle, curves for a torus, a cloud for chaos.",
    ),
    "spectrum": ("Power spectrum", "How much of the motion has each frequency. The circle marks the strongest."),
    "orbit-diagram": (
        "Orbit diagram",
        "Where the orbit goes at every β, the darker the more often. Below: the largest Lyapunov exponent and the "
        "regime. A click goes to that β.",
    ),
}

EXAMPLE_TABLE = """o +-+|+-
v ++-|-+
q -++|++
k +--|-+"""


class DynamicsView(View):
    """The Dynamics view of one page.

    Arguments:
        choice: what the page opens with.
        address, say_waits: as in `View`.
        clicked: called after a click in the diagram, whose β is then in `beta`.

    Fields:
        span: both ends of the range of β, beside `controls`.
        beta: the last one that the slider or a click said.
        moved: when the reader last moved something, on the clock of `time.monotonic`.
        picture: what is shown; None if the last question was wrong.
        judgement: the longer look that is under way, if any.
    """

    name = "Dynamics"

    def __init__(
        self,
        choice: DynamicsChoice,
        address: Any,
        say_waits: Callable[[str, bool], None] = lambda *_: None,
        clicked: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(address, say_waits)
        self.controls = controls(choice)
        ends = {"lowest": "from", "highest": "to"}
        self.span: Any = mo.ui.dictionary(
            {
                name: mo.ui.number(0.0, HIGHEST_BETA, 0.01, value=value, label=label)
                for (name, label), value in zip(ends.items(), choice.between, strict=True)
            }
        )
        self.cards = {name: Card(name, *words) for name, words in _SAID.items()}
        self.beta, self.moved = choice.beta, 0.0
        self.picture: DynamicsPicture | None = None
        self.judgement: Judgement | None = None
        self._clicked, self._tick = clicked, ""
        self._sent: tuple[Any, list[mo.Html]] | None = None
        self._pick: Any = None
        self._shown: tuple[DiagramStepper, mo.Html] | None = None

    @property
    def betas(self) -> list[float]:
        """Values of β over the range of the diagram; an end that is empty stands at its default."""
        ends = zip(self.span.value.values(), DynamicsChoice().between, strict=True)
        low, high = sorted(default if value is None else value for value, default in ends)
        return np.round(np.linspace(low, high, 601), 6).tolist()

    def beta_slider(self) -> Any:
        """β at its last value."""
        return slider("β, inverse temperature of the output", self.betas, self.beta)

    def click(self, beta: Any) -> None:
        """Goes to a β of the diagram."""
        self.beta = max(beta, self.betas[0])
        self._clicked()

    def panel(self, beta: Any = None) -> mo.Html:
        """The controls, in the order in which a reader needs them, below the slider of β."""
        elements, values = self.controls, self.controls.value
        own = {"random": ("feature_count", "bits", "feature_seed"), "table": ("table", "file"), "paper": ()}
        looks = ("role", "component", "against", "band", "start")
        names = ("gamma", "epsilon", "context", "features", *own[values["features"]], *looks)
        # A table without a bar has no positions, and a file stands in for the table.
        typed = values["features"] == "table" and not values["file"]
        off = {"epsilon": typed and "|" not in values["table"], "table": bool(values["file"])}
        between = row([self.span["lowest"], self.span["highest"]], "β of the diagram")
        moved = [applies(elements[name], not off.get(name)) for name in names]
        shown = [*moved, between, elements["refine"], elements["longer"]]
        return mo.vstack([*([] if beta is None else [beta]), *shown], gap=0.6)

    def ask(self, values: dict[str, Any]) -> bool:
        """Takes the values of the controls, and those of `beta` and `span`."""
        self.moved, self.picture = time.monotonic(), None
        self._choice = chosen(values, tuple(self.span.value.values()), self.beta)
        return compiles(self._choice)

    def numbers(self) -> mo.Html:
        """Numbers of the orbit."""
        self.picture = picture_of(self._choice)
        self.write_link(self._choice)
        # The clock runs until the diagram has its line at the new β.
        self.wait(True)
        return numbers([("β", f"{self._choice.beta:.4f}"), *tables.numbers_of(self.picture)])

    def forget(self) -> None:
        """Shows nothing until the next question."""
        self.picture = None

    def figures(self) -> Iterator[mo.Html]:
        """Orbit, phase plane, spectrum, and the code behind them."""
        if self.picture is not None:
            shown = cards(self.draw(self.picture, _ORBIT))
            yield mo.vstack([shown, code(code_of(self.picture.choice))], gap=0.4)

    def advance(self, tick: str, refine: bool, longer: bool) -> DiagramStepper:
        """The diagram of what is shown, one slice further if it is time for one; says whether more is left.

        Arguments:
            tick: the value of the page's clock: nothing is computed between its ticks, and a closed page has none.
            refine: whether the reader wants the diagram to refine.
            longer: whether the reader wants a longer look at the regime.
        """
        assert self.picture is not None
        stepper, judged = diagram_for(self.picture.choice), computed_choice(self.picture.choice)
        if not longer:
            self.judgement = None
        elif self.judgement is None or self.judgement.choice != judged:
            self.judgement = Judgement(judged)
        left = [work for work in (self.judgement, stepper if refine else None) if work is not None and not work.done]
        ticked, self._tick = tick != self._tick, tick
        # Sliders come first: if another page computes, a slice is left for the next tick.
        if left and ticked and not self._moving and not dynamics_lock.locked():
            left[0].advance()
        self.wait(any(not work.done for work in left))
        return stepper

    @property
    def _moving(self) -> bool:
        return time.monotonic() - self.moved < PAUSE

    def diagram(self, tick: str) -> mo.Html | None:
        """The orbit diagram as far as it is there, and the longer look.

        The line at β follows when the reader pauses: drawn at every move, the diagram would delay all else.

        Arguments:
            tick: as in `advance`.
        """
        if self.picture is None:
            self.wait(False)
            return None
        switches = self.controls.value
        stepper = self.advance(tick, switches["refine"], switches["longer"])
        if self._moving:
            self.wait(True)
            if self._shown is not None and self._shown[0] is stepper:
                return self._shown[1]
        parts = mo.vstack([self._progress(stepper), *self._figure(stepper)], gap=0.2)
        self._shown = stepper, parts
        return parts

    def _progress(self, stepper: DiagramStepper) -> mo.Html:
        words = f"{stepper.level} of {stepper.columns} columns" if stepper.level else "the first columns are coming"
        above = [progress("diagram", stepper.fraction, words)]
        if self.judgement is not None:
            steps = f"longer look: {self.judgement.steps:,} steps".replace(",", " ")
            above.append(progress("judgement", self.judgement.fraction, steps))
            if self.judgement.verdict is not None and self.picture is not None:
                above.append(numbers(tables.numbers_of(self.picture, self.judgement), "longer"))
        return mo.vstack(above, gap=0.2)

    def _figure(self, stepper: DiagramStepper) -> list[mo.Html]:
        """The figure and its code, made once for each level and place of the line: it takes long to send and draw."""
        assert self.picture is not None
        choice = self.picture.choice
        wanted = stepper, stepper.level, choice
        if self._sent is None or self._sent[0] != wanted:
            found, betas = stepper.picture, self.betas
            # The slider takes clicks in the diagram. A click on its own handle moves nothing, so that the handle waits
            # on the left of the axis, at a value that stands for the lowest β.
            beside = [betas[0] - number * (betas[1] - betas[0]) for number in range(BESIDE, 0, -1)]
            left, right = drawings.DIAGRAM_ENDS
            sides = left - (right - left) * BESIDE / (len(betas) - 1), right
            # Kept, or nobody would be told of a click.
            self._pick = mo.ui.slider(steps=[*beside, *betas], value=beside[0], full_width=True, on_change=self.click)
            figure = self.cards["orbit-diagram"].draw(
                drawings.diagram_drawing(found, choice),
                lambda: tables.diagram_table(found),
                picker(self._pick, sides),
            )
            lines = code(diagram_code_of(stepper, beta=choice.beta)) if stepper.level else nothing()
            self._sent = wanted, [figure, lines]
        return self._sent[1]


def controls(choice: DynamicsChoice) -> Any:
    """The controls besides β and its range, set to a choice."""
    gammas, epsilons = (float(number) for number in range(0, 401, 5)), (number / 200 for number in range(41))
    contexts = {str(one): one for one in CONTEXTS}
    most = MOST_FEATURES * MOST_HEADS
    return mo.ui.dictionary(
        {
            "features": menu(FEATURES, choice.features, "features"),
            "table": mo.ui.text_area(choice.table or EXAMPLE_TABLE, label="signs", rows=5, debounce=600),
            "file": upload("file of signs"),
            "feature_count": slider("number of features M", range(1, MOST_FEATURES + 1), choice.feature_count),
            "bits": slider("semantic bits per feature", range(1, MOST_COLUMNS + 1), choice.bits),
            "feature_seed": seed(choice.feature_seed),
            "gamma": slider("γ, inverse temperature of attention", gammas, choice.gamma),
            "epsilon": slider("ε, weight of positions", epsilons, choice.epsilon),
            "context": menu(contexts, choice.context, "context L, in tokens"),
            "role": menu({f"m_{role}, {word}": role for role, word in ROLES.items()}, choice.role, "overlap"),
            # Boxes: features have three components mostly, and tables of several heads many. Labels break at spaces.
            "component": mo.ui.number(1, most, 1, value=choice.component, label="component"),
            "against": mo.ui.number(
                0, most, 1, value=choice.against, label="against\u00a0(0:\u00a0a\u00a0step\u00a0later)"
            ),
            "band": menu(WIDTHS, choice.band, "fluctuations at"),
            "start": seed(choice.start, "seed\u00a0of\u00a0the\u00a0start"),
            "refine": mo.ui.switch(value=True, label="refine the diagram"),
            "longer": mo.ui.switch(value=False, label="look longer at the regime"),
        }
    )


def chosen(values: dict[str, Any], between: tuple[float, ...], beta: float) -> DynamicsChoice:
    """The choice that values of the controls make; what is wrong with them is a ValueError with a sentence.

    Arguments:
        values: of the controls, by name.
        between: the range of β.
        beta: of its slider.
    """
    given: dict[str, Any] = {name: value for name, value in values.items() if name not in ("file", "refine", "longer")}
    if given["features"] != "table":
        given["table"] = ""
    elif values["file"]:
        given["table"] = table_text(table(values["file"][0].name, values["file"][0].contents))
    if given["features"] != "random":
        default = DynamicsChoice()
        given |= {name: getattr(default, name) for name in ("feature_count", "bits", "feature_seed")}
    return DynamicsChoice.nearest(beta=beta, between=between, **given)

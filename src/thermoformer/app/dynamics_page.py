"""The Dynamics view on the page: its controls, and what stands where."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import marimo as mo
import numpy as np

from . import dynamics_pictures as pictures
from ._turn import dynamics_turn
from .dynamics_code import code_of, diagram_code_of
from .dynamics_drawings import plane_drawing
from .dynamics_steps import DiagramStepper, Judgement, diagram_for
from .dynamics_view import (
    CONTEXTS,
    HIGHEST_BETA,
    MOST_COLUMNS,
    MOST_FEATURES,
    MOST_HEADS,
    DynamicsChoice,
    DynamicsPicture,
    compiles,
    computed_choice,
    picture_of,
    table_text,
)
from .page import (
    DrawnCard,
    PlottedCard,
    cards,
    code,
    compiling,
    nothing,
    numbers,
    problem,
    progress,
    row,
    slider,
    write_link,
)
from .uploads import LARGEST_FILE, table

FEATURES = {"the paper's": "paper", "random": "random", "my own table": "table"}
ROLES = {"m_o, output": "o", "m_v, value": "v", "m_q, query": "q", "m_k, key": "k"}
# While a reader moves sliders the diagram waits, so that they answer at once: so many seconds after the last move.
PAUSE = 0.8

EXAMPLE_TABLE = """o +-+|+-
v ++-|-+
q -++|++
k +--|-+"""


@dataclass
class Pace:
    """What a page remembers between its runs: the last tick it worked on, and when its reader last moved something.

    Fields:
        tick: the value of the last tick.
        moved: on the clock of `time.monotonic`.
        judgement: the longer look that is under way, if any.
        waits: whether there was more to do at the last run.
        beta: where β is: the link's at first, then that of the slider or of a click, whichever came last.
        drawn: the diagram as it stands on the page, with its stepper.
        figure: what of it was sent last, with its code, and what it shows.
    """

    tick: str = ""
    moved: float = 0.0
    judgement: Judgement | None = None
    waits: bool = True
    beta: float = 0.0
    drawn: tuple[DiagramStepper, mo.Html] | None = None
    figure: tuple[tuple[DiagramStepper, int, DynamicsChoice, PlottedCard], mo.Html, mo.Html] | None = None


def span(choice: DynamicsChoice) -> Any:
    """From where to where the diagram and the slider of β go."""
    return mo.ui.dictionary(
        {
            "lowest": mo.ui.number(0.0, HIGHEST_BETA, 0.01, value=choice.between[0], label="from"),
            "highest": mo.ui.number(0.0, HIGHEST_BETA, 0.01, value=choice.between[1], label="to"),
        }
    )


def beta_slider(values: dict[str, float | None], pace: Pace) -> Any:
    """β over the range of the diagram, where it was moved or clicked to last.

    Arguments:
        values: of the span, by name; none for an end that the reader has emptied, for which the usual one stands.
        pace: what the page remembers.
    """
    ends = zip((values["lowest"], values["highest"]), DynamicsChoice().between, strict=True)
    low, high = sorted(usual if value is None else value for value, usual in ends)
    steps = np.round(np.linspace(low, high, 601), 6).tolist()
    return slider("β", steps, pace.beta)


def controls(choice: DynamicsChoice) -> Any:
    """What a reader chooses besides β."""
    return mo.ui.dictionary(
        {
            "features": _choice_of(FEATURES, choice.features, "features"),
            "table": mo.ui.text_area(choice.table or EXAMPLE_TABLE, label="signs", rows=5, debounce=600),
            "feature_count": mo.ui.slider(
                1, MOST_FEATURES, 1, value=choice.feature_count, label="features M", show_value=True
            ),
            "bits": mo.ui.slider(1, MOST_COLUMNS, 1, value=choice.bits, label="semantic bits", show_value=True),
            "feature_seed": mo.ui.number(0, 2**32 - 1, 1, value=choice.feature_seed, label="seed"),
            "gamma": slider("γ", (float(number) for number in range(0, 401, 5)), choice.gamma),
            "epsilon": slider("ε", (number / 200 for number in range(41)), choice.epsilon),
            "context": _choice_of({str(one): one for one in CONTEXTS}, choice.context, "context L"),
            "role": _choice_of(ROLES, choice.role, "look at"),
            # Boxes: features have three components mostly, and tables of several heads many.
            "component": mo.ui.number(1, MOST_FEATURES * MOST_HEADS, 1, value=choice.component, label="component"),
            "against": mo.ui.number(0, MOST_FEATURES * MOST_HEADS, 1, value=choice.against, label="against"),
            "start": mo.ui.number(0, 2**32 - 1, 1, value=choice.start, label="start"),
        }
    )


def upload() -> Any:
    """Where a reader hands in a table of signs."""
    return mo.ui.file(filetypes=[".csv", ".npz"], max_size=LARGEST_FILE, label="signs from a file (csv, npz)")


def switches() -> Any:
    """What goes on by itself, and can be stopped."""
    return mo.ui.dictionary(
        {
            "refine": mo.ui.switch(value=True, label="refine the diagram"),
            "longer": mo.ui.switch(value=False, label="look longer at the regime"),
        }
    )


def chosen(values: dict[str, Any], between: dict[str, float], beta: float, own: Any) -> DynamicsChoice:
    """The choice that the controls say; what is wrong with them is a ValueError with a sentence.

    Arguments:
        values: of the controls, by name.
        between: of the span, by name.
        beta: of its slider.
        own: the files that were handed in.
    """
    given = dict(values)
    given["between"] = (between["lowest"], between["highest"])
    if given["features"] != "table":
        given["table"] = ""
    elif own:
        given["table"] = table_text(table(own[0].name, own[0].contents))
    if given["features"] != "random":
        usual = DynamicsChoice()
        given |= {name: getattr(usual, name) for name in ("feature_count", "bits", "feature_seed")}
    return DynamicsChoice.nearest(beta=beta, **given)


@dataclass(frozen=True)
class Answer:
    """What the controls say.

    Fields:
        top: numbers, or what is wrong.
        picture: none where something is wrong.
    """

    top: mo.Html
    picture: DynamicsPicture | None = None


def answer(
    values: dict[str, Any], between: dict[str, float], beta: float, own: Any, pace: Pace, address: Any
) -> Answer:
    """The answer to the controls.

    Arguments:
        values: of the controls, by name.
        between: of the span, by name.
        beta: of its slider.
        own: the files that were handed in.
        pace: what the page remembers.
        address: marimo's query parameters.
    """
    pace.beta, pace.moved = beta, time.monotonic()
    try:
        choice = chosen(values, between, beta, own)
        picture = picture_of(choice)
    except ValueError as error:
        return Answer(problem(str(error)))
    write_link(address, "Dynamics", choice)
    return Answer(numbers([("β", f"{choice.beta:.4f}"), *pictures.numbers_of(picture)]), picture)


def notice(values: dict[str, Any], between: dict[str, float], beta: float, own: Any) -> mo.Html | None:
    """What to show before `answer`, with the same arguments, where that compiles first."""
    try:
        choice = chosen(values, between, beta, own)
    except ValueError:  # said by the answer
        return None
    return compiling() if compiles(choice) else None


def cards_of_page() -> dict[str, Any]:
    """The places of the figures that follow every move, by name."""
    return {"orbit": PlottedCard("orbit"), "phase-plane": DrawnCard("phase-plane"), "spectrum": PlottedCard("spectrum")}


def diagram_card(pace: Pace, go_to: Callable[[], None]) -> PlottedCard:
    """The place of the orbit diagram, in which a click goes to its β; one that was clicked makes way for another.

    Arguments:
        pace: what the page remembers.
        go_to: called when β was clicked, which `pace` has by then.
    """

    def click(point: Any) -> None:
        pace.beta = round(float(point["x"]), 6)
        go_to()

    return PlottedCard("orbit-diagram", click)


def figures(found: Answer, places: dict[str, Any]) -> mo.Html | None:
    """Orbit, phase plane, spectrum, and the code behind them.

    Arguments:
        places: of the figures, by name.
    """
    picture = found.picture
    if picture is None:
        return None
    shown = [
        places["orbit"].plot(pictures.orbit_figure(picture, height=320), lambda: pictures.orbit_table(picture)),
        places["phase-plane"].draw(plane_drawing(picture), lambda: pictures.plane_table(picture)),
        places["spectrum"].plot(
            pictures.spectrum_figure(picture, height=320), lambda: pictures.spectrum_table(picture)
        ),
    ]
    return mo.vstack([cards(shown), code(code_of(picture.choice))], gap=0.4)


def advanced(pace: Pace, choice: DynamicsChoice, tick: str, refine: bool, longer: bool) -> tuple[DiagramStepper, bool]:
    """The diagram of a choice, a slice further where it is time for one, and whether there is more to do.

    Arguments:
        pace: what the page remembers.
        tick: the value of the page's clock: nothing is computed between its ticks, and a closed page has none.
        refine: whether the reader wants the diagram to refine.
        longer: whether the reader wants a longer look at the regime.
    """
    stepper = diagram_for(choice)
    judged = computed_choice(choice)
    if longer and (pace.judgement is None or pace.judgement.choice != judged):
        pace.judgement = Judgement(judged)
    elif not longer:
        pace.judgement = None
    ticked, pace.tick = tick != pace.tick, tick
    quiet = time.monotonic() - pace.moved > PAUSE
    # Whoever moves a slider comes first: a slice is left for the next tick rather than waited for.
    if ticked and quiet and not dynamics_turn.locked():
        if pace.judgement is not None and not pace.judgement.done:
            pace.judgement.advance()
        elif refine and not stepper.done:
            stepper.advance()
    waiting = pace.judgement is not None and not pace.judgement.done
    return stepper, waiting or (refine and not stepper.done)


def diagram(
    values: dict[str, Any],
    between: dict[str, float],
    own: Any,
    going: dict[str, bool],
    pace: Pace,
    tick: str,
    place: PlottedCard,
) -> tuple[mo.Html | None, bool]:
    """The orbit diagram as far as it is there, and whether there is more to do; a click goes to its β.

    The line at β follows when the reader pauses: drawn at every move of the slider, the diagram would hold all else up.

    Arguments:
        values: of the controls, by name.
        between: of the span, by name.
        own: the files that were handed in.
        going: of the switches, by name.
        pace: what the page remembers.
        tick: the value of the page's clock.
        place: of the diagram.
    """
    try:
        choice = chosen(values, between, pace.beta, own)
    except ValueError:  # said above
        return None, False
    stepper, waits = advanced(pace, choice, tick, going["refine"], going["longer"])
    moving = time.monotonic() - pace.moved < PAUSE
    if moving and pace.drawn is not None and pace.drawn[0] is stepper:
        return pace.drawn[1], True
    words = f"{stepper.level} of {stepper.columns} columns" if stepper.level else "the first columns are coming"
    above = [progress("diagram", stepper.fraction, words)]
    if pace.judgement is not None:
        steps = f"longer look: {pace.judgement.steps:,} steps".replace(",", " ")
        above.append(progress("judgement", pace.judgement.fraction, steps))
        if pace.judgement.verdict is not None:
            above.append(numbers(pictures.numbers_of(picture_of(choice), pace.judgement), "longer"))
    # A figure of so many cells is dear to send and to draw: once for each level and place of the line.
    shown = stepper, stepper.level, choice, place
    if pace.figure is None or pace.figure[0] != shown:
        found = stepper.picture
        figure = place.plot(pictures.diagram_figure(found, choice), lambda: pictures.diagram_table(found))
        pace.figure = shown, figure, code(diagram_code_of(stepper, beta=choice.beta)) if stepper.level else nothing()
    # The figure is always the second of three: in another place a browser would make it anew.
    parts = [mo.vstack(above, gap=0.2), *pace.figure[1:]]
    pace.drawn = stepper, mo.vstack(parts, gap=0.2)
    return pace.drawn[1], waits


def panel(elements: Any, ends: Any, beta: Any, uploaded: Any, switches: Any) -> mo.Html:
    """The controls, in the order in which one reaches for them."""
    own = {"random": ("feature_count", "bits", "feature_seed"), "table": ("table",), "paper": ()}
    names = ("gamma", "epsilon", "context", "features", *own[elements.value["features"]])
    files = [uploaded] if elements.value["features"] == "table" else []
    rest = [elements[name] for name in ("role", "component", "against", "start")]
    between = row([ends["lowest"], ends["highest"]], "β of the diagram")
    return mo.vstack(
        [beta, *(elements[name] for name in names), *files, *rest, between, *switches.elements.values()], gap=0.6
    )


def _choice_of(words: dict[str, Any], value: Any, label: str) -> Any:
    """A menu of words that stand for values."""
    word = next(word for word, meant in words.items() if meant == value)
    return mo.ui.dropdown(words, value=word, label=label, allow_select_none=False)

"""What joins controls to pictures, without a browser: links written, controls read, work done at ticks alone."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_pictures import Address

pytest.importorskip("marimo", reason="needs the extra `app`")

from thermoformer.app import dynamics_page, dynamics_view, learning_page, page, work
from thermoformer.app.dynamics_page import DynamicsView
from thermoformer.app.dynamics_view import DynamicsChoice
from thermoformer.app.learning_page import LearningView
from thermoformer.app.learning_view import LearningChoice, LearningWork, data_of_arrays
from thermoformer.app.work import dynamics_lock

SMALL = LearningChoice(train=25, layers=("good+random",))


class Told(dict):
    """What views have said of their waiting."""

    def __call__(self, name: str, waits: bool) -> None:
        assert self.get(name) != waits, "only changes are told"
        self[name] = waits


def view_of(choice: Any, **more: Any) -> Any:
    kinds = {LearningChoice: LearningView, DynamicsChoice: DynamicsView}
    return kinds[type(choice)](choice, Address(), Told(), **more)


def answer(view: Any, **changes: Any) -> list[str]:
    """What stands above the figures after a change of the controls."""
    return [shown.text for shown in view.answer(view.controls.value | changes)]


def figures(view: Any) -> list[str]:
    """What the page shows below, one after the other."""
    return [shown.text for shown in view.figures()]


# A choice of each view, a move of a slider, a value that is wrong, and a size that needs another program.
VIEWS = pytest.mark.parametrize(
    ("choice", "moved", "wrong", "resized"),
    [
        (SMALL, {"temperature": 0.2}, {"layers": [["–"] * 3] * 2}, {"train": 50}),
        (DynamicsChoice(beta=1.0), {"gamma": 201.0}, {"features": "table", "table": "o +"}, {"context": 8}),
    ],
    ids=["Learning", "Dynamics"],
)


@VIEWS
def test_a_view_answers_and_its_link_brings_the_answer_back(choice, moved, wrong, resized, monkeypatch):
    monkeypatch.setattr(learning_page, "SLICE", 60.0)
    view = view_of(choice)
    *_, numbers = answer(view)
    *_, shown = figures(view)
    assert 'data-testid="numbers"' in numbers and "Show me the code" in shown and "<svg" in shown
    *_, other = answer(view, **moved)
    assert other != numbers
    opened = page.opening(view._address)
    assert opened.view == view.name and opened.problems == ()
    assert opened.choices[view.name] == replace(choice, **moved)
    (again,) = answer(view_of(opened.choices[view.name]))[-1:]
    assert again == other


@VIEWS
def test_what_is_wrong_is_a_sentence_and_no_figures(choice, moved, wrong, resized):
    view = view_of(choice)
    answer(view)
    link = dict(view._address)
    (said,) = answer(view, **wrong)
    assert 'role="alert"' in said and ": got" in said and "expected" in said
    assert figures(view) == [] and view._address == link
    assert 'data-testid="numbers"' in answer(view)[-1] and len(figures(view)) >= 1


@VIEWS
def test_a_new_size_is_announced(choice, moved, wrong, resized):
    known = set(work.compiled)
    work.compiled.clear()
    for kept in (dynamics_view.picture_of, dynamics_view._computed):
        kept.cache_clear()
    try:
        view = view_of(choice)
        notice, numbers = answer(view)
        assert "compiling a program" in notice and "compiling a program" not in numbers
        assert len(answer(view)) == len(answer(view, **moved)) == 1
        assert len(answer(view, **resized)) == 2
        work.compiled.clear()
        assert len(answer(view, **wrong)) == 1  # the answer says what is wrong
    finally:
        work.compiled.update(known)


@pytest.mark.parametrize(
    "choice",
    [
        LearningChoice(width=37, temperature=0.123, layers=("good+random+random",), train=50, seed=4),
        # The ends of what an address may ask for.
        LearningChoice(width=2000, temperature=10.0, perpendicular_noise=20.0, seed=2**32 - 1),
        DynamicsChoice(features="random", feature_count=6, bits=64, feature_seed=2**32 - 1, component=6, against=6),
        DynamicsChoice(features="random", feature_count=1, bits=1, component=1, against=1, between=(0.0, 20.0)),
        DynamicsChoice(beta=1.3, gamma=123.4, epsilon=0.0123, context=8, role="v", component=2, between=(1.0, 2.0)),
        DynamicsChoice(features="random", feature_count=2, bits=4, feature_seed=5, component=2, against=0, start=3),
        "two heads",
        DynamicsChoice(features="table", table="o ++-|+-\nv +-+|-+\nq -++|++\nk ---|+-", component=1, against=0),
    ],
)
def test_controls_say_the_choice_they_were_made_from(choice):
    if choice == "two heads":  # six features and two heads, so twelve components
        choice = DynamicsChoice(features="table", table=two_heads(), role="k", component=12, against=11)
    view = view_of(choice)
    if isinstance(view, LearningView):
        assert learning_page.chosen(view.controls.value) == choice
    else:
        between = tuple(view.span.value.values())
        assert dynamics_page.chosen(view.controls.value, between, view.beta_slider().value) == choice


def two_heads() -> str:
    rng = np.random.default_rng(0)
    roles = ["o"] * 6 + [f"{role}{head}" for role in "vqk" for head in (1, 2) for _ in range(6)]
    signs = ("".join(row) for row in rng.choice(["+", "-"], (len(roles), 8)))
    return "\n".join(f"{role} {row[:6]}|{row[6:]}" for role, row in zip(roles, signs, strict=True))


def test_the_address_holds_what_is_not_default():
    address = Address()
    choice = LearningChoice(width=20, layers=("good", "random+random"))
    page.write_link(address, "Learning", choice)
    assert address == {"view": "Learning", "learning.width": "20", "learning.layers": "good,random+random"}
    before = address.sent
    page.write_link(address, "Learning", choice)
    assert address.sent == before
    page.write_link(address, "Learning", LearningChoice())
    assert address == {"view": "Learning"}
    # The other view's choice stays while one looks at this one.
    page.write_link(address, "Dynamics", DynamicsChoice(beta=1.3))
    page.write_link(address, "Learning", choice)
    opened = page.opening(address)
    assert opened.choices["Dynamics"].beta == 1.3 and opened.choices["Learning"] == choice
    assert opened.view == "Learning"


def test_a_file_is_answered_and_is_no_part_of_the_link():
    rows = [f"{label},{number}" for number, label in enumerate([0, 1] * 10)]
    file = [SimpleNamespace(name="mine.csv", contents="\n".join(["label,a", *rows]).encode())]
    view = view_of(LearningChoice(temperature=0.1))
    said = answer(view, file=file)[-1]
    assert "test accuracy" in said and "labels 0 and 1 are read as" in said and view._address == {"view": "Learning"}
    (said,) = answer(view, file=file, temperature=1e9)
    assert "temperature: got 1e+09; expected a number from 0.0001 to 10" in said
    signs = [SimpleNamespace(name="signs.csv", contents=b"1,-1,1\n-1,-1,1\n1,1,-1\n-1,1,1\n")]
    view = view_of(DynamicsChoice())
    chosen = dynamics_page.chosen(view.controls.value | {"features": "table", "file": signs}, (1.0, 2.0), 1.0)
    assert chosen.table == "o +|-+\nv -|-+\nq +|+-\nk -|++"


def test_an_emptied_end_of_the_diagram_is_said_and_breaks_nothing():
    view = view_of(DynamicsChoice())
    for between in ((None, 2.0), (1.0, None), (2.0, 2.0)):
        view.span = SimpleNamespace(value=dict(zip(("lowest", "highest"), between, strict=True)))
        assert view.beta in view.beta_slider().steps
        assert "between: got" in answer(view)[0]
        assert view.diagram("1") is None and not view.waits


def test_arrays_that_rounding_spoils_are_said():
    xi = 1e8 + np.random.default_rng(1).normal(size=(40, 4, 30))
    spoiled = LearningWork(data_of_arrays(xi, np.arange(40) % 2, [4]), 10, 1e-4)
    with pytest.raises(ValueError, match=r"temperature: got 0.0001; expected a larger number: the kernel .* singular"):
        spoiled.finish()


def test_a_curve_that_cannot_be_had_leaves_the_solution_and_a_sentence(monkeypatch):
    # A temperature of its own, or the curve would be there already.
    view = view_of(LearningChoice(temperature=0.017))
    answer(view)
    assert view.work.picture is not None and not view.work.done

    def fails() -> None:
        raise ValueError("xi: got something; expected another")

    monkeypatch.setattr(view.work, "advance", fails)
    *_, shown = figures(view)
    assert "xi: got something; expected another" in shown and "<svg" in shown
    assert not view.waits
    (again,) = answer(view)
    assert "stopped" not in again and "test accuracy" in again


@pytest.fixture
def stepper(monkeypatch):
    """A diagram of three slices that counts them, and the view that shows it."""

    class Stepper:
        """Three slices in all."""

        slices = 0

        @property
        def done(self) -> bool:
            return self.slices == 3

        def advance(self) -> None:
            self.slices += 1

    one = Stepper()
    monkeypatch.setattr(dynamics_page, "diagram_for", lambda choice: one)
    return one


def looking(choice: DynamicsChoice) -> DynamicsView:
    """A view that shows a choice, some time after the last move."""
    view = view_of(choice)
    view.picture, view.moved = SimpleNamespace(choice=choice), time.monotonic() - 10
    return view


def test_nothing_is_computed_between_ticks(stepper):
    view = looking(DynamicsChoice())
    assert view.advance("", True, False) is stepper and view.waits and stepper.slices == 0
    view.advance("0.5s (1)", True, False)
    assert stepper.slices == 1
    view.advance("0.5s (1)", True, False)  # a slider moved: the tick is the same
    assert stepper.slices == 1
    view.moved = time.monotonic()  # a slider is being moved
    view.advance("0.5s (2)", True, False)
    assert stepper.slices == 1
    view.moved -= 10
    with dynamics_lock:  # another page computes
        view.advance("0.5s (3)", True, False)
    assert stepper.slices == 1 and view.waits
    view.advance("0.5s (4)", False, False)  # stopped by its switch
    assert stepper.slices == 1 and not view.waits
    for number in (5, 6):
        view.advance(f"0.5s ({number})", True, False)
    assert stepper.slices == 3 and not view.waits


def test_a_longer_look_comes_first_and_follows_the_choice(stepper):
    view = looking(DynamicsChoice(beta=1.0))
    view.advance("1", True, True)
    assert stepper.slices == 0 and view.judgement is not None and view.judgement.steps > 0
    other = DynamicsChoice(beta=1.1)
    view.picture = SimpleNamespace(choice=other)
    view.advance("1", True, True)
    judged = view.judgement
    assert judged.choice.beta == 1.1 and judged.steps == 0
    # What is looked at changes nothing of the verdict.
    view.picture = SimpleNamespace(choice=replace(other, role="v", component=2, between=(0.0, 20.0)))
    view.advance("1", True, True)
    assert view.judgement is judged
    view.advance("1", True, False)
    assert view.judgement is None


def test_the_slider_of_beta_moves_for_clicks_alone():
    clicks = []
    view = view_of(DynamicsChoice(beta=1.4), clicked=lambda: clicks.append(view.beta))
    assert view.beta_slider().value == 1.4
    view.beta = 1.7  # the reader moved it
    answer(view)
    assert view.beta_slider().value == 1.7 and clicks == []
    view.click(1.234565)
    assert view.beta_slider().value == 1.234565 and clicks == [1.234565]
    view.click(0.9)
    assert clicks[-1] == min(view.betas), "beside the axis"


def test_work_that_takes_long_shows_how_far_it_is_and_can_be_stopped(monkeypatch):
    # A few steps of a search at a time, and one such slice at a tick.
    monkeypatch.setattr("thermoformer.app.learning_view.SLICE", 1.0)
    monkeypatch.setattr(learning_page, "SLICE", 0.0)
    # A temperature of its own, or the curve would be there already.
    view = view_of(replace(SMALL, temperature=0.019))
    *_, numbers = answer(view)
    assert "test accuracy" not in numbers and "solving width by width" in numbers
    assert figures(view) == [] and view.waits
    # The numbers are there before the curve, which goes on at every tick.
    while view.work.picture is None:
        (numbers,) = answer(view)
    assert "test accuracy" in numbers and "solving width by width" in numbers
    assert len(figures(view)) == 2 and view.waits
    while "N = 800: " not in view.cards["accuracy"].shown:
        assert len(figures(view)) == 1 and view.waits
    view.stop()
    (numbers,) = answer(view)
    assert "stopped; any change" in numbers and "test accuracy" in numbers
    for _ in range(20):
        assert len(figures(view)) == 1 and not view.waits
    assert view.work.picture.curve.widths.tolist() == [800, 2000]


def test_numbers_and_the_solution_come_before_the_curve(monkeypatch):
    monkeypatch.setattr(learning_page, "SLICE", 60.0)
    view = view_of(replace(SMALL, temperature=0.3))
    *_, numbers = answer(view)
    assert "test accuracy" in numbers and "solving" not in numbers and not view.work.done
    first, last = figures(view)
    assert first.count("<circle") == 1 + 2 and last.count("<circle") == 8 + 2 and not view.waits  # two for where one is
    assert last.count('class="tf-drawing"') == 5
    # Another temperature: the matrix follows at once, and the curve stays until the new one is there.
    answer(view, temperature=0.5)
    old = {name: place.shown for name, place in view.cards.items()}
    steps = view.figures()
    next(steps)
    assert view.cards["accuracy"].shown == old["accuracy"]
    assert view.cards["order-parameter"].shown != old["order-parameter"]
    next(steps)
    assert view.cards["accuracy"].shown != old["accuracy"]
    # Another width at a temperature whose curve is known: all at once, and the elements around figures stay the same.
    answer(view, width=23)
    assert view._address["learning.width"] == "23"
    (other,) = figures(view)
    elements = re.compile("random-id='([^']*)'")
    assert other != last and elements.findall(other) == elements.findall(last)


def test_numbers_are_short_strings():
    view = view_of(SMALL)
    answer(view)
    numbers = learning_page.numbers_of(view.work.picture)
    assert all(len(label) < 30 and len(value) < 30 for label, value in numbers)
    assert dict(numbers)["solver"] == "converged"

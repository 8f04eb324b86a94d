"""What joins controls to pictures, without a browser: links written, controls read, work done at ticks alone."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("marimo", reason="needs the extra `app`")

from thermoformer.app import dynamics_page, learning_page, page
from thermoformer.app._turn import dynamics_turn
from thermoformer.app.dynamics_view import DynamicsChoice
from thermoformer.app.learning_view import LearningChoice, picture_of_arrays


class Address(dict):
    """Stands for marimo's query parameters, and counts what is sent to the browser."""

    sent = 0

    def set(self, name: str, text: str) -> None:
        self[name] = text
        self.sent += 1

    def remove(self, name: str) -> None:
        del self[name]
        self.sent += 1


def test_the_address_holds_what_is_not_usual():
    address = Address()
    choice = LearningChoice(width=20, layers=("good", "random+random"))
    page.write_link(address, "Learning", choice)
    assert address == {"view": "Learning", "learning.width": "20", "learning.layers": "good,random+random"}
    before = address.sent
    page.write_link(address, "Learning", choice)
    assert address.sent == before
    assert page.opening(address).learning == choice
    page.write_link(address, "Learning", LearningChoice())
    assert address == {"view": "Learning"}
    # The other view's choice stays while one looks at this one.
    page.write_link(address, "Dynamics", DynamicsChoice(beta=1.3))
    page.write_link(address, "Learning", choice)
    assert page.opening(address).dynamics.beta == 1.3 and page.opening(address).view == "Learning"


def two_heads() -> str:
    """A table of six features and two heads, so of twelve components."""
    rng = np.random.default_rng(0)
    roles = ["o"] * 6 + [f"{role}{head}" for role in "vqk" for head in (1, 2) for _ in range(6)]
    signs = ("".join(row) for row in rng.choice(["+", "-"], (len(roles), 8)))
    return "\n".join(f"{role} {row[:6]}|{row[6:]}" for role, row in zip(roles, signs, strict=True))


def test_an_emptied_end_of_the_diagram_is_said_and_breaks_nothing():
    values, choice = dynamics_page.controls(DynamicsChoice()).value, DynamicsChoice()
    for span in ({"lowest": None, "highest": 2.0}, {"lowest": 1.0, "highest": None}, {"lowest": 2.0, "highest": 2.0}):
        assert choice.beta in dynamics_page.beta_slider(span, dynamics_page.Pace(beta=choice.beta)).steps
        with pytest.raises(ValueError, match="between: got"):
            dynamics_page.chosen(values, span, choice.beta, ())


def test_arrays_that_rounding_spoils_are_said():
    xi = 1e8 + np.random.default_rng(1).normal(size=(40, 4, 30))
    with pytest.raises(ValueError, match="xi: got features whose kernel has entries of .* expected features of the"):
        picture_of_arrays(xi, np.arange(40) % 2, [4], temperature=1e-4)


def test_a_curve_that_cannot_be_had_leaves_the_solution_and_a_sentence(monkeypatch):
    pace, places, values = learning_page.Pace(), learning_page.cards_of_page(), learning_page.controls(LearningChoice())
    # A temperature of its own, or the curve would be there already.
    asked = values.value | {"temperature": 0.017}
    found = learning_page.answer(asked, (), pace, Address())
    assert found.work is not None and found.work.picture is not None and not found.work.done

    def fails() -> None:
        raise ValueError("xi: got something; expected another")

    monkeypatch.setattr(found.work, "advance", fails)
    *_, shown = learning_page.figures(found, pace, places)
    assert shown is not None and "xi: got something; expected another" in shown.text and "<svg" in shown.text
    assert not pace.waits
    again = learning_page.answer(asked, (), pace, Address())
    assert "stopped" not in again.top.text and "test accuracy" in again.top.text


def test_controls_say_the_choice_they_were_made_from():
    choice = LearningChoice(width=37, temperature=0.123, layers=("good+random+random",), train=50, seed=4)
    assert learning_page.chosen(learning_page.controls(choice).value) == choice
    table = "o ++-|+-\nv +-+|-+\nq -++|++\nk ---|+-"
    # The ends of what an address may ask for.
    largest = LearningChoice(width=2000, temperature=10.0, perpendicular_noise=20.0, seed=2**32 - 1)
    assert learning_page.chosen(learning_page.controls(largest).value) == largest
    for wanted in (
        DynamicsChoice(features="random", feature_count=6, bits=64, feature_seed=2**32 - 1, component=6, against=6),
        DynamicsChoice(features="random", feature_count=1, bits=1, component=1, against=1, between=(0.0, 20.0)),
        DynamicsChoice(features="table", table=two_heads(), role="k", component=12, against=11),
        DynamicsChoice(beta=1.3, gamma=123.4, epsilon=0.0123, context=8, role="v", component=2, between=(1.0, 2.0)),
        DynamicsChoice(features="random", feature_count=2, bits=4, feature_seed=5, component=2, against=0, start=3),
        DynamicsChoice(features="table", table=table, component=1, against=0),
    ):
        values, span = dynamics_page.controls(wanted).value, dynamics_page.span(wanted).value
        assert dynamics_page.chosen(values, span, wanted.beta, ()) == wanted


def test_a_network_without_heads_is_refused():
    values = learning_page.controls(LearningChoice()).value | {"layers": [["–"] * 3, ["–"] * 3]}
    with pytest.raises(ValueError, match="layers: got"):
        learning_page.chosen(values)


@pytest.fixture
def stepper(monkeypatch):
    """A diagram that counts its slices."""

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


def test_nothing_is_computed_between_ticks(stepper):
    pace, choice = dynamics_page.Pace(moved=time.monotonic() - 10), DynamicsChoice()
    advance = dynamics_page.advanced
    assert advance(pace, choice, "", True, False) == (stepper, True) and stepper.slices == 0
    advance(pace, choice, "0.5s (1)", True, False)
    assert stepper.slices == 1
    advance(pace, choice, "0.5s (1)", True, False)  # a slider moved: the tick is the same
    assert stepper.slices == 1
    pace.moved = time.monotonic()  # a slider is being moved
    advance(pace, choice, "0.5s (2)", True, False)
    assert stepper.slices == 1
    pace.moved -= 10
    with dynamics_turn:  # another page computes
        assert advance(pace, choice, "0.5s (3)", True, False)[1]
    assert stepper.slices == 1
    assert advance(pace, choice, "0.5s (4)", False, False) == (stepper, False)  # stopped by its switch
    assert stepper.slices == 1
    for number in (5, 6):
        waits = advance(pace, choice, f"0.5s ({number})", True, False)[1]
    assert stepper.slices == 3 and not waits


def test_a_longer_look_comes_first_and_follows_the_choice(stepper):
    pace, choice = dynamics_page.Pace(moved=time.monotonic() - 10), DynamicsChoice(beta=1.0)
    dynamics_page.advanced(pace, choice, "1", True, True)
    assert stepper.slices == 0 and pace.judgement is not None and pace.judgement.steps > 0
    other = DynamicsChoice(beta=1.1)
    dynamics_page.advanced(pace, other, "1", True, True)
    judged = pace.judgement
    assert judged.choice.beta == 1.1 and judged.steps == 0
    # What is looked at changes nothing of the verdict.
    dynamics_page.advanced(pace, replace(other, role="v", component=2, between=(0.0, 20.0)), "1", True, True)
    assert pace.judgement is judged
    dynamics_page.advanced(pace, other, "1", True, False)
    assert pace.judgement is None


def test_the_slider_of_beta_moves_for_clicks_alone():
    pace, span = dynamics_page.Pace(beta=1.4), {"lowest": 1.0, "highest": 2.0}
    assert dynamics_page.beta_slider(span, pace).value == 1.4
    values, between = dynamics_page.controls(DynamicsChoice()).value, {"lowest": 1.2, "highest": 2.6}
    dynamics_page.answer(values, between, 1.7, (), pace, Address())  # the reader moved it
    assert dynamics_page.beta_slider(span, pace).value == 1.7
    pace.beta = 1.23456  # clicked
    assert dynamics_page.beta_slider(span, pace).value == 1.23456


def drawn(found, pace, places) -> list[str]:
    """Everything the page shows for an answer, one after the other."""
    return [shown.text for shown in learning_page.figures(found, pace, places) if shown is not None]


def test_work_that_takes_long_shows_how_far_it_is_and_can_be_stopped(monkeypatch):
    # A few steps of a search at a time, and one such slice at a tick.
    monkeypatch.setattr("thermoformer.app._learning_numbers.SLICE", 1.0)
    monkeypatch.setattr(learning_page, "SLICE", 0.0)
    pace, address, places = learning_page.Pace(), Address(), learning_page.cards_of_page()
    values = learning_page.controls(LearningChoice(train=25, layers=("good+random",))).value
    found = learning_page.answer(values, (), pace, address)
    assert "test accuracy" not in found.top.text and "solving width by width" in found.top.text
    assert drawn(found, pace, places) == [] and pace.waits
    # The numbers are there before the curve, which goes on at every tick.
    while found.work.picture is None:
        found = learning_page.answer(values, (), pace, address)
    assert "test accuracy" in found.top.text and "solving width by width" in found.top.text
    assert len(drawn(found, pace, places)) == 2 and pace.waits
    while "N = 800: " not in places["accuracy"].shown:
        assert len(drawn(found, pace, places)) == 1 and pace.waits
    pace.stop()
    found = learning_page.answer(values, (), pace, address)
    assert "stopped; any change" in found.top.text and "test accuracy" in found.top.text
    for _ in range(20):
        assert len(drawn(found, pace, places)) == 1 and not pace.waits
    assert found.work.picture.widths.tolist() == [800, 2000]


def test_a_new_size_is_announced(monkeypatch):
    monkeypatch.setattr("thermoformer.app._learning_numbers._compiled", set())
    pace, address = learning_page.Pace(), Address()
    values = learning_page.controls(LearningChoice(train=25, layers=("good+random",))).value
    assert "compiling a program" in learning_page.notice(values, (), pace, address).text
    learning_page.answer(values, (), pace, address)
    assert learning_page.notice(values, (), pace, address) is None
    assert learning_page.notice(values | {"width": 30, "temperature": 0.2}, (), pace, address) is None
    assert learning_page.notice(values | {"train": "50"}, (), pace, address) is not None
    nothing = values | {"layers": [["–"] * 3, ["–"] * 3]}
    assert learning_page.notice(nothing, (), pace, address) is None  # the answer says what is wrong
    monkeypatch.setattr("thermoformer.app.dynamics_view._compiled", set())
    given = dynamics_page.controls(DynamicsChoice()).value, {"lowest": 1.2, "highest": 2.6}, 1.0, ()
    assert "compiling a program" in dynamics_page.notice(*given).text
    assert dynamics_page.notice(given[0] | {"features": "table", "table": "o +"}, *given[1:]) is None


def test_numbers_and_the_solution_come_before_the_curve(monkeypatch):
    monkeypatch.setattr(learning_page, "SLICE", 60.0)
    pace, address, places = learning_page.Pace(), Address(), learning_page.cards_of_page()
    values = learning_page.controls(LearningChoice(train=25, layers=("good+random",), temperature=0.3)).value
    found = learning_page.answer(values, (), pace, address)
    assert "test accuracy" in found.top.text and "solving" not in found.top.text and not found.work.done
    first, last = drawn(found, pace, places)
    assert first.count("<circle") == 1 + 1 and last.count("<circle") == 8 + 1 and not pace.waits  # one in the legend
    assert last.count("<svg") == 5 and "marimo-plotly" not in last
    # Another temperature: the matrix follows at once, and the curve stays until the new one is there.
    found = learning_page.answer(values | {"temperature": 0.5}, (), pace, address)
    old = {name: place.shown for name, place in places.items()}
    steps = learning_page.figures(found, pace, places)
    next(steps)
    assert places["accuracy"].shown == old["accuracy"] and places["order-parameter"].shown != old["order-parameter"]
    next(steps)
    assert places["accuracy"].shown != old["accuracy"]
    # Another width at a temperature whose curve is known: all at once, and the elements around figures stay the same.
    found = learning_page.answer(values | {"width": 23}, (), pace, address)
    assert address["learning.width"] == "23"
    (other,) = drawn(found, pace, places)
    elements = re.compile("random-id='([^']*)'")
    assert other != last and elements.findall(other) == elements.findall(last)

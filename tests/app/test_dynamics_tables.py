"""The numbers behind the figures of the Dynamics view, and those above them."""

from __future__ import annotations

import numpy as np
import pytest
from made_pictures import made_diagram
from made_pictures import wave_picture as picture

from thermoformer.app.dynamics_steps import DiagramStepper, Judgement
from thermoformer.app.dynamics_tables import (
    diagram_table,
    numbers_of,
    orbit_table,
    plane_table,
    spectrum_table,
)
from thermoformer.app.dynamics_view import KEPT, DynamicsChoice
from thermoformer.dynamics import Regime


def test_the_orbit_has_every_component():
    shown = picture(DynamicsChoice(component=2))
    table = orbit_table(shown)
    assert list(table) == ["step", "m_o,1", "m_o,2", "m_o,3"]
    np.testing.assert_array_equal(table["m_o,2"], shown.series)


@pytest.mark.parametrize(("against", "name"), [(2, "m_v,2"), (0, "m_v,1 one step later"), (1, "m_v,1 again")])
def test_the_plane_has_two_columns(against, name):
    table = plane_table(picture(DynamicsChoice(role="v", against=against), wave=15.4321987))
    assert list(table) == ["m_v,1", name]
    assert all(len(column) >= KEPT - 1 for column in table.values())


def test_the_spectrum_has_all_frequencies():
    table = spectrum_table(picture())
    assert {name: len(column) for name, column in table.items()} == {"frequency": 513, "power": 513}


def test_what_does_not_move_has_no_frequency():
    labels = dict(numbers_of(picture(size=0.0, name="fixed point", exponents=(-np.inf, -np.inf))))
    assert labels["regime"] == "fixed point" and labels["λ1"] == "lost to rounding"
    assert not any(label.startswith("leading frequency") for label in labels)


def test_the_table_of_a_diagram_holds_all_of_it():
    diagram = made_diagram()
    table = diagram_table(diagram)
    assert {len(column) for column in table.values()} == {int((diagram.density > 0).sum())}
    assert table["points"].sum() == diagram.density.sum()
    first = diagram.density.sel(beta=table["beta"][0], value=table["value"][0])
    assert first == table["points"][0] and DiagramStepper(DynamicsChoice()).picture is None and not diagram_table(None)


def test_numbers_are_short_texts():
    numbers = numbers_of(picture())
    assert numbers[0] == ("regime", "chaos") and ("λ1", "0.14 ± 0.01 per step") in numbers
    assert ("λ2", "−0.05 ± 0.01 per step") in numbers and ("quick look", "36 000 steps") in numbers
    assert dict(numbers)["confidence"] == "chaos for 36 000 steps: it can still end later"
    cycle = picture(name="periodic", period=28, exponents=(-0.05, -0.05))
    assert numbers_of(cycle)[0] == ("regime", "periodic, 28 steps")


def test_a_longer_look_counts_once_it_has_a_verdict():
    shown, judgement = picture(), Judgement(DynamicsChoice())
    assert dict(numbers_of(shown, judgement))["regime"] == "chaos"
    judgement.verdict = Regime("periodic", 32, np.array([-0.01, -0.02]), np.zeros(2), 0.01, 0, "so it is", 2_560_000)
    labels = dict(numbers_of(shown, judgement))
    assert labels["regime"] == "periodic, 32 steps" and labels["longer look"] == "2 560 000 steps"

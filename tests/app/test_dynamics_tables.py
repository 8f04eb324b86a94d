"""Figures of the Dynamics view: they show what the numbers say, whatever these are."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

import numpy as np
import pytest
from made_pictures import wave_picture as picture

from thermoformer.app.dynamics_drawings import plane_drawing
from thermoformer.app.dynamics_pictures import (
    DRAWN_STEPS,
    diagram_figure,
    diagram_table,
    exponent_table,
    numbers_of,
    orbit_figure,
    orbit_table,
    plane_table,
    spectrum_figure,
    spectrum_table,
)
from thermoformer.app.dynamics_steps import DiagramPicture, DiagramStepper, Judgement
from thermoformer.app.dynamics_view import KEPT, DynamicsChoice
from thermoformer.dynamics import REGIMES, Regime


@pytest.fixture
def diagram() -> DiagramPicture:
    betas, bins = np.linspace(1.2, 2.6, 64), np.linspace(-0.5, 0.5, 160)
    counts = np.random.default_rng(0).multinomial(2000, np.full(160, 1 / 160), 64).T
    counts[:40] = 0
    exponents = np.stack([np.linspace(-0.1, 0.2, 64), np.full(64, -0.3)], axis=1)
    exponents[3] = -np.inf
    regimes = np.where(exponents[:, 0] > 0, 3, 1).astype(np.int8)
    return DiagramPicture(betas, bins, counts, counts / counts.sum(axis=0), exponents, regimes, 4 * (regimes == 1))


def title(axis) -> str:
    return axis.title.text


def test_the_orbit_has_every_component_with_the_chosen_one_in_front():
    shown = picture(DynamicsChoice(component=2))
    figure = orbit_figure(shown, height=300)
    assert [trace.name for trace in figure.data] == ["m<sub>o,1</sub>", "m<sub>o,3</sub>", "m<sub>o,2</sub>"]
    np.testing.assert_array_equal(figure.data[-1].y, shown.series[:DRAWN_STEPS])
    assert figure.data[-1].opacity == 1 > figure.data[0].opacity
    assert title(figure.layout.xaxis) == "step, after the first 20 000"
    assert figure.layout.height == 300 and figure.layout.uirevision == "orbit o"
    table = orbit_table(shown)
    assert list(table) == ["step", "m_o,1", "m_o,2", "m_o,3"]
    np.testing.assert_array_equal(table["m_o,2"], shown.series)


@pytest.mark.parametrize(
    ("against", "upwards", "name"), [(2, "mv,2", "m_v,2"), (0, "mv,1 one step later", "m_v,1 one step later")]
)
def test_the_plane_has_two_axes(against, upwards, name):
    shown = picture(DynamicsChoice(role="v", against=against), wave=15.4321987)
    words = "".join(ElementTree.fromstring(plane_drawing(shown)).itertext()).replace("\u200b", "")
    assert "mv,1" in words and words.endswith(upwards)
    table = plane_table(shown)
    assert list(table) == ["m_v,1", name]
    assert all(len(column) >= KEPT - 1 for column in table.values())


def test_a_component_against_itself_keeps_both_columns():
    assert list(plane_table(picture(DynamicsChoice(against=1)))) == ["m_o,1", "m_o,1 again"]


@pytest.mark.parametrize(("period", "side"), [(15.5, "right"), (2.6, "left")])
def test_the_spectrum_marks_its_peak_and_keeps_the_words_inside(period, side):
    shown = picture(wave=period)
    figure = spectrum_figure(shown)
    line, mark = figure.data
    assert abs(mark.x[0] - 1 / period) < 1 / 1024 and mark.y[0] == np.nanmax(line.y)
    assert side in mark.textposition and f"a turn in {1 / shown.peak:.3g} steps" in mark.text[0]
    assert figure.layout.yaxis.type == "log"
    assert {name: len(column) for name, column in spectrum_table(shown).items()} == {"frequency": 513, "power": 513}


def test_what_does_not_move_says_so():
    shown = picture(size=0.0, name="fixed point", exponents=(-np.inf, -np.inf))
    assert "does not move" in spectrum_figure(shown).layout.annotations[0].text
    low, high = orbit_figure(shown).layout.yaxis.range
    assert low < 0 < high
    labels = dict(numbers_of(shown))
    assert labels["regime"] == "fixed point" and labels["λ1"] == "lost to rounding"
    assert not any(label.startswith("leading frequency") for label in labels)


def test_the_diagram_shows_density_exponent_and_where_one_is(diagram):
    choice = DynamicsChoice(beta=1.4)
    figure = diagram_figure(diagram, choice)
    heat = figure.data[0]
    assert heat.z.shape == (160, 64) and heat.z.dtype == np.uint8
    np.testing.assert_array_equal(heat.z > 0, diagram.counts > 0)
    order = np.argsort(diagram.image, axis=None)
    assert (np.diff(heat.z.ravel()[order].astype(int)) >= 0).all() and heat.z.max() > 100
    np.testing.assert_array_equal(heat.x, diagram.betas)
    assert (title(figure.layout.yaxis), title(figure.layout.xaxis2)) == ("m<sub>o,1</sub>", "β")
    assert figure.layout.shapes[0].x0 == 1.4 and figure.layout.annotations[0].text == "β = 1.4"
    assert not diagram_figure(diagram, DynamicsChoice(beta=1.0)).layout.annotations
    assert np.isnan(figure.data[2].y[3]) and tuple(figure.layout.xaxis2.range) == choice.between


def test_the_tables_of_a_diagram_hold_all_of_it(diagram):
    table = diagram_table(diagram)
    assert {len(column) for column in table.values()} == {int((diagram.counts > 0).sum())}
    assert table["points"].sum() == diagram.counts.sum()
    rows = exponent_table(diagram)
    assert list(rows) == ["beta", "exponent_1", "exponent_2", "regime", "period"]
    assert set(rows["regime"]) == {REGIMES[1], REGIMES[3]}


def test_a_diagram_without_columns_is_a_figure_too():
    choice = DynamicsChoice()
    empty = DiagramStepper(choice).picture
    assert "on their way" in diagram_figure(empty, choice).layout.annotations[0].text
    assert all(len(column) == 0 for table in (diagram_table(empty), exponent_table(empty)) for column in table.values())


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


def test_figures_are_small_enough_to_send_at_every_move(diagram):
    shown = picture()
    finest = dataclasses.replace(diagram, betas=np.linspace(1.2, 2.6, 512), image=np.tile(diagram.image, (1, 8)))
    finest = dataclasses.replace(finest, exponents=np.tile(diagram.exponents, (8, 1)))
    figures = [orbit_figure(shown), spectrum_figure(shown), diagram_figure(finest, shown.choice)]
    sizes = [len(figure.to_json()) for figure in figures] + [len(plane_drawing(shown))]
    assert max(sizes) < 200_000

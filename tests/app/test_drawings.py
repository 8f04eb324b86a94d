"""Drawings of the page: what they show, and what is saved of them, is what the picture holds."""

from __future__ import annotations

import base64
import dataclasses
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from made_pictures import made_diagram, made_picture, wave_picture
from matplotlib import image as images

pytest.importorskip("marimo", reason="needs the extra `app`")

from thermoformer.app import drawings, dynamics_drawings, learning_drawings
from thermoformer.app.dynamics_code import SHOWN_STEPS
from thermoformer.app.dynamics_drawings import DRAWN_POINTS, diagram_drawing, plane_drawing
from thermoformer.app.dynamics_view import DynamicsChoice
from thermoformer.app.learning_view import Curve as LearningCurve
from thermoformer.app.page import Card
from thermoformer.figures.display import Axis, Curve, Display, Image, Text
from thermoformer.figures.style import PALETTE

NAMES = ("accuracy", "order", "kernel", "overlap", "paths")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def picture():
    return made_picture((("good", "random"), ("uniform",)))


def drawn(name: str, picture) -> ElementTree.Element:
    module = dynamics_drawings if name in ("orbit", "plane", "spectrum") else learning_drawings
    return ElementTree.fromstring(getattr(module, f"{name}_drawing")(picture))


def said(drawing: ElementTree.Element, kind: str) -> dict[str, ElementTree.Element]:
    """Elements by what they say under the pointer."""
    return {one.findtext(f"{SVG}title"): one for one in drawing.iter(SVG + kind) if one.find(f"{SVG}title") is not None}


def points_of(element: ElementTree.Element) -> np.ndarray:
    """The corners of a path or a polygon, [point, 2]."""
    text = element.get("d") or element.get("points") or ""
    return np.array([list(map(float, pair)) for pair in re.findall(r"(-?[\d.]+),(-?[\d.]+)", text)])


def words(drawing: ElementTree.Element) -> list[str]:
    return ["".join(one.itertext()).replace("\u200b", "") for one in drawing.iter(f"{SVG}text")]


def is_inside_its_frame(drawing: ElementTree.Element) -> None:
    assert drawing.get("role") == "img" and drawing.get("aria-label") == drawing.findtext(f"{SVG}title") != ""
    size = np.array(list(map(float, drawing.get("viewBox").split()[2:])))
    for one in (*drawing.iter(f"{SVG}rect"), *drawing.iter(f"{SVG}image")):
        x, y, wide, tall = (float(one.get(side)) for side in ("x", "y", "width", "height"))
        assert -0.5 <= x and x + wide <= size[0] + 0.5 and -0.5 <= y and y + tall <= size[1] + 0.5
    for one in drawing.iter(f"{SVG}circle"):
        x, y, radius = (float(one.get(name)) for name in ("cx", "cy", "r"))
        assert radius <= x <= size[0] - radius and radius <= y <= size[1] - radius
    for one in (*drawing.iter(f"{SVG}path"), *drawing.iter(f"{SVG}polygon")):
        points = points_of(one)
        assert (points >= 0).all() and (points <= size).all()
    for one in drawing.iter(f"{SVG}text"):
        assert 0 <= float(one.get("x")) <= size[0] and 0 <= float(one.get("y")) <= size[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "heads", [(("good",),), (("a <b> & c", "d"), ("e",)), (tuple(f"head {number}" for number in range(16)),)]
)
def test_every_drawing_of_learning_is_well_formed_named_and_inside_its_frame(name, heads):
    is_inside_its_frame(drawn(name, made_picture(heads)))


@pytest.mark.parametrize("name", ["orbit", "plane", "spectrum"])
@pytest.mark.parametrize("size", [1.0, 0.0], ids=["wave", "still"])
def test_every_drawing_of_dynamics_is_well_formed_named_and_inside_its_frame(name, size):
    is_inside_its_frame(drawn(name, wave_picture(DynamicsChoice(role="v", component=2), size=size)))


@pytest.mark.parametrize("found", [made_diagram(), None], ids=["columns", "none"])
def test_the_drawing_of_a_diagram_is_well_formed_named_and_inside_its_frame(found):
    drawing = ElementTree.fromstring(diagram_drawing(found, DynamicsChoice()))
    is_inside_its_frame(drawing)
    assert ("the first columns are on their way" in words(drawing)) == (found is None)


def test_a_curve_has_its_points_and_gaps_and_nothing_beyond_the_axes():
    x, y = [1.0, 10.0, 100.0, 1000.0, 2000.0], [0.0, 1.0, np.nan, 3.0, 9.0]
    curve = Curve(x, y, "#0072B2", marker="o", notes=list("abcde"), label="a < b")
    shown = Display((curve,), Axis("$x_{1}$", log=True), Axis("y", (0.0, 4.0)), about="a curve")
    drawing = ElementTree.fromstring(drawings.drawing(shown, width=300, height=200))
    is_inside_its_frame(drawing)
    marks = said(drawing, "circle")
    assert list(marks) == ["a", "b", "d"]
    across, down = (np.array([float(one.get(name)) for one in marks.values()]) for name in ("cx", "cy"))
    np.testing.assert_allclose((across[1] - across[0]) * 3, across[2] - across[0], atol=0.2)
    np.testing.assert_allclose((down[0] - down[1]) * 3, down[0] - down[2], atol=0.2)
    line = next(drawing.iter(f"{SVG}path"))
    assert line.get("d").count("M") == 2 and len(points_of(line)) == 3
    assert "x1" in words(drawing) and "a < b" in words(drawing) and "$10" not in "".join(words(drawing))


def test_an_image_has_its_rows_where_the_axis_has_them():
    values = np.array([[0.0, 1.0], [np.nan, 1.0]])
    edges = np.array([0.0, 1.0, 2.0])
    for limits, rows in (((0.0, 2.0), [1, 0]), ((2.0, 0.0), [0, 1])):
        shown = Display((Image(values, edges, edges, "gray", (0.0, 1.0)),), y=Axis("", limits))
        (image,) = ElementTree.fromstring(drawings.drawing(shown, width=100, height=100)).iter(f"{SVG}image")
        pixels = images.imread(io.BytesIO(base64.b64decode(image.get("href").split(",")[1])), format="png")
        np.testing.assert_array_equal(pixels[..., 3], np.isfinite(values)[rows])
        assert (pixels[:, 1, 0] == 1).all() and pixels[rows.index(0), 0, 0] == 0


def test_text_stands_where_it_is_told():
    def place(**how) -> tuple[float, float, str]:
        shown = Display((Text(0.5, 0.5, "here", **how),), Axis(limits=(0, 1)), Axis(limits=(0, 1)))
        drawing = ElementTree.fromstring(drawings.drawing(shown, width=100, height=100))
        one = next(one for one in drawing.iter(f"{SVG}text") if one.text == "here")
        return float(one.get("x")), float(one.get("y")), one.get("text-anchor")

    (x, y, anchor), (right, above, start) = place(), place(across="left", up="bottom", shift=(3.0, 3.0))
    assert anchor == "middle" and start == "start" and right == pytest.approx(x + 4, abs=0.2) and above < y - 4


def test_accuracy_has_the_curve_the_limit_and_the_place(picture):
    drawing = drawn("accuracy", picture)
    marks = said(drawing, "circle")
    values = {5: 90, 20: 80, 40: 75, 100: 70}
    assert list(marks) == [*(f"theory, N = {n}: {value}" for n, value in values.items()), "N = 5: not converged"]
    assert marks["N = 5: not converged"].get("fill") == "white"
    del marks["N = 5: not converged"]
    # Heights are linear in the accuracy and widths in the logarithm of N.
    x, y = (np.array([float(one.get(name)) for one in marks.values()]) for name in ("cx", "cy"))
    for place, value in ((x, np.log(list(values))), (y, np.array(list(values.values()), float))):
        np.testing.assert_allclose(place, np.polyval(np.polyfit(value, place, 1), value), rtol=0, atol=0.1)
    curve = next(one for one in drawing.iter(f"{SVG}path") if len(points_of(one)) == 4)
    np.testing.assert_allclose(points_of(curve), np.stack([x, y], axis=1), atol=0.06)
    level = next(one for one in drawing.iter(f"{SVG}line") if one.get("stroke-dasharray"))
    assert float(level.get("y1")) == pytest.approx(np.polyval(np.polyfit([90, 70], y[[0, -1]], 1), 65), abs=0.1)
    (ring,) = (one for one in drawing.iter(f"{SVG}circle") if float(one.get("r")) > 8)
    assert (float(ring.get("cx")), float(ring.get("cy"))) == pytest.approx((x[2], y[2]), abs=0.1)
    assert {"theory", "N = 40", "Gaussian process, 65.0 %", "width N", "test accuracy (%)"} <= set(words(drawing))
    # A flat curve does not look like a mountain.
    flat = dataclasses.replace(
        picture,
        curve=picture.curve._replace(accuracies=np.full(3, 0.75)),
        limit=picture.limit._replace(accuracy=0.752),
    )
    heights = [float(one.get("cy")) for one in said(drawn("accuracy", flat), "circle").values()]
    assert max(heights) - min(heights) < 1


def test_a_curve_that_is_still_being_solved_has_its_place_and_its_limit(picture):
    none = dataclasses.replace(picture, curve=LearningCurve())
    assert list(said(drawn("accuracy", none), "circle")) == ["theory, N = 40: 75"]


def test_a_saved_drawing_is_a_file_of_its_own(picture):
    shown = learning_drawings.kernel_drawing(picture)
    root = ElementTree.fromstring(drawings.file_of(shown))
    _, _, width, height = root.get("viewBox").split()
    assert (root.get("width"), root.get("height")) == (width, height) and root.get("style") is None
    paper = list(root)[1]
    assert (paper.tag, paper.get("fill"), paper.get("width")) == (f"{SVG}rect", "white", width)
    (image,) = root.iter(f"{SVG}image")
    assert image.get("{http://www.w3.org/1999/xlink}href").startswith("data:image/png;base64,")
    assert "".join(root.itertext()) == "".join(ElementTree.fromstring(shown).itertext())


def test_the_matrix_says_each_entry(picture):
    cells = said(drawn("order", picture), "rect")
    matrix, names = picture.solution.order_parameter, picture.path_names
    assert set(cells) == {
        f"{one}, {two}: {matrix[i, j]:.3g}" for i, one in enumerate(names) for j, two in enumerate(names)
    }


def test_curves_add_up_the_shares_of_the_labels(picture):
    limit = picture.limit._replace(overlaps=picture.limit.overlaps / 5)
    picture = dataclasses.replace(picture, overlaps=picture.overlaps / 4, limit=limit)
    drawing = drawn("overlap", picture)
    paths = [one for one in drawing.iter(f"{SVG}path") if one.get("d").count("L") > 1]
    curves = {one.get("stroke"): points_of(one)[:, 1] for one in paths}
    # Faint lines go across at the ticks of the axis, the lowest at 0.
    lines = [float(one.get("y1")) for one in drawing.iter(f"{SVG}line") if one.get("stroke") == drawings.FAINT]
    for colour, wanted in (("blue", picture.overlaps), ("grey", picture.limit.overlaps)):
        heights = max(lines) - curves[PALETTE[colour]]
        np.testing.assert_allclose(heights / heights[-1] * sum(wanted**2), np.cumsum([0, *wanted**2]), atol=2e-3)


def test_paths_are_as_thick_as_their_order_parameter(picture):
    bands = said(drawn("paths", picture), "polygon")
    assert [label.split("  ")[0] for label in bands] == list(picture.path_names)
    thickness = np.array([np.subtract(*points_of(band)[[-1, 0], 1]) for band in bands.values()])
    shares = picture.path_scores / picture.path_scores.sum()
    np.testing.assert_allclose(thickness / thickness.sum(), shares, atol=2e-3)


def test_many_paths_leave_out_what_has_no_room(picture):
    many = made_picture((tuple(f"head {number}" for number in range(16)),))
    few = {name: words(drawn(name, picture)) for name in ("order", "paths")}
    texts = {name: words(drawn(name, many)) for name in ("order", "paths")}
    entries = {
        f"{value:.2f}".replace("-", "−") for value in picture.solution.order_parameter.ravel() if abs(value) < 10
    }
    assert entries <= set(few["order"]) and "paths in the order of the rows" not in few["order"]
    # No entry in its cell, and the names of the rows stand for those of the columns.
    assert "paths in the order of the rows" in texts["order"]
    assert [text for text in texts["order"] if "head" in text] == [f"head {number}" for number in range(16)]
    assert len([text for text in texts["order"] if text]) < 16 + 12  # the rest is the colour bar's
    assert {"input", "0.0 good", "0.1 random", "1.0 uniform", "output"} <= set(few["paths"])
    assert texts["paths"][:2] == ["as thick as Uππ", "input"] and len(texts["paths"]) == 3


def test_the_kernel_is_an_image_of_its_entries(picture):
    drawing = drawn("kernel", picture)
    (image,) = drawing.iter(f"{SVG}image")
    assert {"class −1", "class +1"} <= set(words(drawing))
    pixels = images.imread(io.BytesIO(base64.b64decode(image.get("href").split(",")[1])), format="png")
    assert pixels.shape[:2] == picture.kernel.shape
    # Brighter is larger, wherever the colours are not at their ends.
    brightness = pixels[..., :3].sum(axis=-1)
    assert np.corrcoef(brightness.ravel(), picture.kernel.ravel())[0, 1] > 0.9


@pytest.mark.parametrize(("wave", "points"), [(16, 16), (15.4321987, DRAWN_POINTS)])
def test_the_plane_has_its_points(wave, points):
    shown = wave_picture(DynamicsChoice(against=0), wave=wave)
    drawing = ElementTree.fromstring(plane_drawing(shown))
    (dots,) = drawing.iter(f"{SVG}path")
    places = points_of(dots)
    assert len(places) == points and dots.get("d").count("h0") == points
    assert (float(dots.get("stroke-width")) > 4) == (points < DRAWN_POINTS), "cycles have large points"
    if points == DRAWN_POINTS:  # the last ones; of a cycle each once
        for place, values in zip(places.T, shown.plane, strict=True):
            scale = np.polyfit(values[-points:], place, 1)
            np.testing.assert_allclose(place, np.polyval(scale, values[-points:]), rtol=0, atol=0.06)
    assert "output overlap mo,1 one step later" in words(drawing)


def test_the_orbit_has_every_component_with_the_chosen_one_in_front():
    shown = wave_picture(DynamicsChoice(component=2))
    drawing = drawn("orbit", shown)
    curves = [one for one in drawing.iter(f"{SVG}path") if one.get("d").count("L") == SHOWN_STEPS - 1]
    assert [one.get("stroke-opacity") for one in curves] == ["0.45", "0.45", "1"]
    places = points_of(curves[-1])[:, 1]
    np.testing.assert_allclose(np.corrcoef(places, shown.series[:SHOWN_STEPS])[0, 1], -1)
    assert {"mo,1", "mo,2", "mo,3", "step, after the first 20 000"} <= set(words(drawing))


def test_the_band_is_that_of_the_chosen_component_and_ends_at_the_axes():
    spread = np.linspace(0, 5, SHOWN_STEPS)[:, None] * [1.0, 0.5, 2.0]
    shown = dataclasses.replace(wave_picture(DynamicsChoice(component=2, band=10**6)), spread=spread)
    drawing = drawn("orbit", shown)
    is_inside_its_frame(drawing)
    (band,) = drawing.iter(f"{SVG}polygon")
    high, low = np.split(points_of(band)[:, 1], 2)
    heights = low[::-1] - high
    assert len(heights) == SHOWN_STEPS
    np.testing.assert_allclose(heights[:5], heights[4] * np.arange(5) / 4, atol=0.2)
    assert drawn("orbit", wave_picture()).find(f"{SVG}polygon") is None


@pytest.mark.parametrize(("period", "anchor"), [(15.5, "start"), (2.6, "end")])
def test_the_spectrum_marks_its_peak_and_keeps_the_words_inside(period, anchor):
    shown = wave_picture(wave=period)
    drawing = drawn("spectrum", shown)
    (peak,) = (one for one in drawing.iter(f"{SVG}text") if "a turn in" in (one.text or ""))
    assert f"a turn in {1 / shown.peak:.3g} steps" in peak.text and peak.get("text-anchor") == anchor
    (ring,) = drawing.iter(f"{SVG}circle")
    curve = max(drawing.iter(f"{SVG}path"), key=lambda one: len(points_of(one)))
    assert float(ring.get("cy")) == pytest.approx(points_of(curve)[:, 1].min(), abs=0.06)


def test_what_does_not_move_says_so():
    still = wave_picture(size=0.0, name="fixed point", exponents=(-np.inf, -np.inf))
    assert "it does not move: no spectrum" in words(drawn("spectrum", still))


def test_the_diagram_shows_density_exponents_and_where_one_is():
    found = made_diagram()
    drawing = ElementTree.fromstring(diagram_drawing(found, DynamicsChoice(beta=1.9)))
    density, _ = drawing.iter(f"{SVG}image")
    pixels = images.imread(io.BytesIO(base64.b64decode(density.get("href").split(",")[1])), format="png")
    np.testing.assert_array_equal(pixels[::-1, :, 3] > 0, found.density.values.T > 0)
    left, wide = float(density.get("x")), float(density.get("width"))
    dashed = [one for one in drawing.iter(f"{SVG}line") if one.get("stroke-dasharray")]
    assert [float(one.get("x1")) for one in dashed] == pytest.approx([left + wide / 2] * 2, abs=0.2)
    assert {"β = 1.9", "output overlap mo,1", "β", "exponents", "periodic", "chaos"} <= set(words(drawing))
    beyond = ElementTree.fromstring(diagram_drawing(found, DynamicsChoice(beta=1.0)))
    assert not [text for text in words(beyond) if text.startswith("β =")]


def test_drawings_are_small_enough_to_send_at_every_move():
    shown, found = wave_picture(wave=15.4321987), made_diagram()
    finest = found.isel(beta=np.repeat(np.arange(64), 8)).assign_coords(beta=np.linspace(1.2, 2.6, 512))
    made = [getattr(dynamics_drawings, f"{name}_drawing")(shown) for name in ("orbit", "plane", "spectrum")]
    assert max(map(len, [*made, diagram_drawing(finest, shown.choice)])) < 200_000


def test_a_card_saves_what_it_shows_last():
    card = Card("kernel")
    for value in (1.0, 2.0):
        table = {"value": np.array([value])}
        shown = Display((), about=f"of {value}")
        card.draw(drawings.drawing(shown, width=80, height=80), lambda table=table: table)
    assert b"<title>of 2.0</title>" in card.file() and card.table()["value"] == 2.0

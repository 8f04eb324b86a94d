"""Drawings of the page: what they show, and what is saved of them, is what the picture holds."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from made_pictures import made_picture, wave_picture

pytest.importorskip("marimo", reason="needs the extra `app`")

import plotly.graph_objects as go
from matplotlib import image as images

from thermoformer.app import drawings, learning_drawings, page
from thermoformer.app.dynamics_drawings import DRAWN_POINTS, plane_drawing
from thermoformer.app.dynamics_view import DynamicsChoice
from thermoformer.app.page import DrawnCard, PlottedCard
from thermoformer.app.pictures import COLOURS, short_number

NAMES = ("accuracy", "order", "kernel", "overlap", "paths")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def picture():
    return made_picture((("good", "random"), ("uniform",)))


def drawn(name: str, picture) -> ElementTree.Element:
    return ElementTree.fromstring(getattr(learning_drawings, f"{name}_drawing")(picture))


def said(drawing: ElementTree.Element, kind: str) -> dict[str, ElementTree.Element]:
    """Elements by what they say under the pointer."""
    return {one.findtext(f"{SVG}title"): one for one in drawing.iter(SVG + kind) if one.find(f"{SVG}title") is not None}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "heads", [(("good",),), (("a <b> & c", "d"), ("e",)), (tuple(f"head {number}" for number in range(16)),)]
)
def test_every_drawing_is_well_formed_named_and_inside_its_frame(name, heads):
    drawing = drawn(name, made_picture(heads))
    assert drawing.get("role") == "img" and drawing.get("aria-label") == drawing.findtext(f"{SVG}title")
    width, height = map(float, drawing.get("viewBox").split()[2:])
    for one in drawing.iter(f"{SVG}rect"):
        x, y, wide, tall = (float(one.get(side)) for side in ("x", "y", "width", "height"))
        assert -0.5 <= x and x + wide <= width + 0.5 and -0.5 <= y and y + tall <= height + 0.5
    for one in drawing.iter(f"{SVG}circle"):
        x, y, radius = (float(one.get(name)) for name in ("cx", "cy", "r"))
        assert radius <= x <= width - radius and radius <= y <= height - radius
    for one in (*drawing.iter(f"{SVG}polyline"), *drawing.iter(f"{SVG}polygon")):
        points = np.array([list(map(float, place.split(","))) for place in one.get("points").split()])
        assert (points >= 0).all() and (points <= [width, height]).all()
    for one in drawing.iter(f"{SVG}text"):
        assert 0 <= float(one.get("x")) <= width and 0 <= float(one.get("y")) <= height


def test_accuracy_has_the_curve_the_limit_and_the_place(picture):
    drawing = drawn("accuracy", picture)
    marks = said(drawing, "circle")
    assert list(marks) == ["N = 5: 90.0 %, not converged", "N = 20: 80.0 %", "N = 40: 75.0 %", "N = 100: 70.0 %"]
    assert [one.get("fill") == "white" for one in marks.values()] == [True, False, False, False]
    # Heights are linear in the accuracy and widths in the logarithm of N.
    x, y = (np.array([float(one.get(name)) for one in marks.values()]) for name in ("cx", "cy"))
    for place, value in ((x, np.log([5, 20, 40, 100])), (y, [90.0, 80.0, 75.0, 70.0])):
        np.testing.assert_allclose(place, np.polyval(np.polyfit(value, place, 1), value), rtol=0, atol=0.1)
    limit, curve = (
        [list(map(float, point.split(","))) for point in one.get("points").split()]
        for one in list(drawing.iter(f"{SVG}polyline"))[:2]
    )
    slope = (y[-1] - y[0]) / (70 - 90)
    assert [height for _, height in limit] == pytest.approx([y[0] + slope * (65 - 90)] * 2, abs=0.1)
    np.testing.assert_allclose(curve, np.stack([x, y], axis=1), atol=0.06)
    (here,) = (one for name, one in said(drawing, "polygon").items() if name == "N = 40: 75.0 %")
    corners = np.array([list(map(float, point.split(","))) for point in here.get("points").split()])
    np.testing.assert_allclose(corners.mean(axis=0), [x[2], y[2]], atol=0.1)
    # A flat curve does not look like a mountain.
    flat = dataclasses.replace(picture, accuracies=np.full(3, 0.75), limit_accuracy=0.752)
    heights = [float(one.get("cy")) for one in said(drawn("accuracy", flat), "circle").values()]
    level = float(next(drawn("accuracy", flat).iter(f"{SVG}polyline")).get("points").split(",")[1].split()[0])
    assert max(heights) - min(heights) < 1 and abs(level - heights[0]) < 15


def test_a_curve_that_is_still_being_solved_has_its_place_and_its_limit(picture):
    none = dataclasses.replace(
        picture, widths=np.array([], int), accuracies=np.array([]), curve_converged=np.array([], bool)
    )
    assert list(said(drawn("accuracy", none), "circle")) == ["N = 40: 75.0 %"]


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


def test_the_matrix_says_each_entry_and_zero_is_white(picture):
    cells = said(drawn("order", picture), "rect")
    matrix, names = picture.order_parameter, picture.path_names
    assert set(cells) == {
        f"{one}, {two}: {matrix[i, j]:.3g}" for i, one in enumerate(names) for j, two in enumerate(names)
    }
    assert drawings.colour_at("RdBu_r", 0.5)[0] == "#f7f6f6"


def test_bars_are_as_high_as_the_overlaps(picture):
    drawing = drawn("overlap", picture)
    bars = [one for one in said(drawing, "rect").values()]
    blue = [float(one.get("height")) for one in bars if one.get("fill") == COLOURS["blue"]]
    grey = [float(one.get("height")) for one in bars if one.get("fill") == COLOURS["grey"]]
    for heights, wanted in ((blue, picture.overlaps), (grey, picture.limit_overlaps)):
        np.testing.assert_allclose(np.array(heights) / 260.0, wanted, atol=1e-3)


def test_paths_are_as_thick_as_their_order_parameter(picture):
    bands = said(drawn("paths", picture), "polygon")
    assert [label.split("  ")[0] for label in bands] == list(picture.path_names)
    thickness = []
    for band in bands.values():
        points = [float(point.split(",")[1]) for point in band.get("points").split()]
        thickness.append(points[-1] - points[0])
    shares = picture.path_scores / picture.path_scores.sum()
    np.testing.assert_allclose(np.array(thickness) / sum(thickness), shares, atol=2e-3)


def test_many_paths_leave_out_what_has_no_room(picture):
    many = made_picture((tuple(f"head {number}" for number in range(16)),))
    texts = {
        (name, which): ["".join(one.itertext()) for one in drawn(name, shown).iter(f"{SVG}text")]
        for name in ("order", "paths")
        for which, shown in (("few", picture), ("many", many))
    }
    entries = [short_number(round(value, 2)) for value in picture.order_parameter.ravel()]
    assert set(entries) <= set(texts["order", "few"]) and "paths in the order of the rows" not in texts["order", "few"]
    # No entry in its cell, and the names of the rows stand for those of the columns.
    assert "paths in the order of the rows" in texts["order", "many"]
    assert [text for text in texts["order", "many"] if "head" in text] == [f"head {number}" for number in range(16)]
    assert len(texts["order", "many"]) < 16 + 12  # the rest is the colour bar's; entries would be 256
    assert texts["paths", "few"][:5] == ["input", "1.1 good", "1.2 random", "2.1 uniform", "output"]
    assert texts["paths", "many"] == ["input", "output"]  # neither names of heads nor a legend


def test_the_kernel_is_an_image_of_its_entries(picture):
    (image,) = drawn("kernel", picture).iter(f"{SVG}image")
    pixels = images.imread(io.BytesIO(base64.b64decode(image.get("href").split(",")[1])), format="png")
    assert pixels.shape[:2] == picture.kernel.shape
    # Brighter is larger, wherever the colours are not at their ends.
    brightness = pixels[..., :3].sum(axis=-1)
    assert np.corrcoef(brightness.ravel(), picture.kernel.ravel())[0, 1] > 0.9


@pytest.mark.parametrize(("wave", "points", "size"), [(16, 16, 7.0), (15.4321987, DRAWN_POINTS, 2.6)])
def test_the_plane_has_its_points(wave, points, size):
    shown = wave_picture(DynamicsChoice(against=0), wave=wave)
    drawing = ElementTree.fromstring(plane_drawing(shown))
    (dots,) = drawing.iter(f"{SVG}path")
    places = np.array([list(map(float, place.split())) for place in re.findall(r"M([\d. ]+)h0", dots.get("d"))])
    assert len(places) == points and float(dots.get("stroke-width")) == size
    if points == DRAWN_POINTS:  # the last ones; of a cycle each once
        for place, values in zip(places.T, shown.plane, strict=True):
            scale = np.polyfit(values[-points:], place, 1)
            np.testing.assert_allclose(place, np.polyval(scale, values[-points:]), rtol=0, atol=0.06)
    # A wave against itself one step later is a tilted ellipse in the middle of the frame.
    np.testing.assert_allclose((places.min(axis=0) + places.max(axis=0)) / 2, [190, 141], atol=6)
    assert "one step later" in "".join(drawing.itertext())


def test_a_card_keeps_its_element_and_does_without_where_marimo_writes_it_otherwise(monkeypatch):
    card, table = PlottedCard("orbit"), lambda: {"x": np.arange(2)}
    shown = [card.plot(go.Figure(go.Scatter(y=[0, height]), {"title": "a < b $"}), table).text for height in (7, 8)]
    identity = re.compile("random-id='([^']*)'")
    assert identity.findall(shown[0]) == identity.findall(shown[1]) and shown[0] != shown[1]
    for text, height in zip(shown, (7, 8), strict=True):
        (figure,) = re.findall("data-figure='([^']*)'", text)
        read = json.loads(html.unescape(figure))
        assert read["data"][0]["y"] == [0, height] and read["layout"]["title"]["text"] == "a < b $"
    # Whatever becomes of the figure inside, it keeps its room.
    assert "min-height:320px" in card.plot(go.Figure(layout={"height": 320}), table).text
    monkeypatch.setattr(page, "_FIGURE", re.compile("no such attribute"))
    other = card.plot(go.Figure(go.Scatter(y=[0, 9])), table).text
    assert "[0,9]" in html.unescape(other).replace(" ", "")


def test_a_card_saves_what_it_shows_last():
    drawing, figure = DrawnCard("kernel"), PlottedCard("orbit")
    for value in (1.0, 2.0):
        table = {"value": np.array([value])}
        drawing.draw(drawings.drawing([], width=8, height=8, title=f"of {value}"), lambda table=table: table)
        figure.plot(go.Figure(go.Scatter(y=[value])), lambda table=table: table)
    for card, wanted in ((drawing, b"<title>of 2.0</title>"), (figure, b'"y":[2.0]')):
        assert wanted in card.file() and card.table()["value"] == 2.0

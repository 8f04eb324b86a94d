"""Drawings of the page: what they show is what the picture holds, and what the figures that are saved show."""

from __future__ import annotations

import base64
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
from thermoformer.app.page import Card
from thermoformer.app.pictures import COLOURS

NAMES = ("order", "kernel", "overlap", "paths")
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
    for one in drawing.iter(f"{SVG}text"):
        assert 0 <= float(one.get("x")) <= width and 0 <= float(one.get("y")) <= height


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


def test_the_kernel_is_an_image_of_its_entries(picture):
    (image,) = drawn("kernel", picture).iter(f"{SVG}image")
    pixels = images.imread(io.BytesIO(base64.b64decode(image.get("href").split(",")[1])), format="png")
    assert pixels.shape[:2] == picture.kernel.shape
    # Brighter is larger, wherever the colours are not at their ends.
    brightness = pixels[..., :3].sum(axis=-1)
    assert np.corrcoef(brightness.ravel(), picture.kernel.ravel())[0, 1] > 0.9


@pytest.mark.parametrize(("wave", "points", "size"), [(16, 16, 7.0), (15.4321987, DRAWN_POINTS, 2.6)])
def test_the_plane_has_its_points(wave, points, size):
    drawing = ElementTree.fromstring(plane_drawing(wave_picture(DynamicsChoice(against=0), wave=wave)))
    (dots,) = drawing.iter(f"{SVG}path")
    places = np.array([list(map(float, place.split())) for place in re.findall(r"M([\d. ]+)h0", dots.get("d"))])
    assert len(places) == points and float(dots.get("stroke-width")) == size
    # A wave against itself one step later is a tilted ellipse in the middle of the frame.
    np.testing.assert_allclose((places.min(axis=0) + places.max(axis=0)) / 2, [190, 141], atol=6)
    assert "one step later" in "".join(drawing.itertext())


def test_a_card_keeps_its_element_and_does_without_where_marimo_writes_it_otherwise(monkeypatch):
    card, table = Card("orbit"), lambda: {"x": np.arange(2)}
    shown = [card.plotted(go.Figure(go.Scatter(y=[0, height]), {"title": "a < b $"}), table).text for height in (7, 8)]
    identity = re.compile("random-id='([^']*)'")
    assert identity.findall(shown[0]) == identity.findall(shown[1]) and shown[0] != shown[1]
    for text, height in zip(shown, (7, 8), strict=True):
        (figure,) = re.findall("data-figure='([^']*)'", text)
        read = json.loads(html.unescape(figure))
        assert read["data"][0]["y"] == [0, height] and read["layout"]["title"]["text"] == "a < b $"
    monkeypatch.setattr(page, "_FIGURE", re.compile("no such attribute"))
    other = card.plotted(go.Figure(go.Scatter(y=[0, 9])), table).text
    assert "[0,9]" in html.unescape(other).replace(" ", "")


def test_a_card_saves_what_it_shows_last(picture):
    card = Card("kernel")
    for value in (1.0, 2.0):
        card.drawn("<svg></svg>", lambda: None, lambda value=value: {"value": np.array([value])})
    assert card._table()["value"] == 2.0

"""The lines that the Learning view shows: run as they stand, they make the numbers that the page shows."""

from __future__ import annotations

import dataclasses
import html
import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
from made_pictures import Address

pytest.importorskip("marimo", reason="needs the extra `app`")

from thermoformer.app import learning_page
from thermoformer.app.learning_code import code_of
from thermoformer.app.learning_drawings import paths_drawing
from thermoformer.app.learning_page import LearningView
from thermoformer.app.learning_view import LearningChoice, LearningPicture, picture_of

# Two paths and few examples: quick to compile.
SMALL = LearningChoice(layers=("good+random", "uniform"), train=25)


def run(lines: str, picture: LearningPicture, tolerance: float) -> dict:
    """What the lines define, after all of it was found equal to what the picture shows."""
    made: dict = {}
    exec(lines, made)
    solution, limit, train, test = (made[name] for name in ("solution", "limit", "train", "test"))
    curve = dict(zip(made["widths"], made["accuracies"], strict=True))
    np.testing.assert_array_equal([curve[width] for width in picture.curve.widths], picture.curve.accuracies)
    assert curve[picture.width] == picture.test_accuracy and made["limit_accuracy"] == picture.limit.accuracy
    assert solution.predict(train).accuracy(made["train_labels"]) == picture.train_accuracy
    assert made["arch"].path_names(made["head_names"]) == picture.path_names
    assert (train.examples, test.examples) == (picture.data.train.examples, picture.data.test.examples)
    for found, expected in (
        (solution.order_parameter, picture.solution.order_parameter),
        (solution.log_evidence, picture.solution.log_evidence),
        (limit.log_evidence, picture.limit.solution.log_evidence),
        (made["overlaps"], picture.overlaps),
        (made["limit_overlaps"], picture.limit.overlaps),
    ):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    order = np.argsort(made["train_labels"], kind="stable")
    np.testing.assert_allclose(picture.kernel, made["kernel"][np.ix_(order, order)], rtol=tolerance, atol=tolerance)
    assert picture.solution.converged and picture.curve.converged.all()
    shows_five_figures(made, picture)
    return made


def shows_five_figures(made: dict, picture: LearningPicture) -> None:
    """The five of the page, from the numbers that were found equal."""
    panels = [ax for ax in made["axes"].ravel() if ax in made["figure"].axes]
    accuracy, order, paths, kernel, overlap = panels
    np.testing.assert_array_equal(accuracy.lines[0].get_data(), [made["widths"], 100 * made["accuracies"]])
    np.testing.assert_array_equal(order.images[0].get_array(), made["solution"].order_parameter)
    assert kernel.images[0].get_array().shape == made["kernel"].shape
    drawn = [np.sqrt(np.diff(line.get_ydata())) for line in overlap.lines]
    for one, wanted in zip(drawn, (made["overlaps"], made["limit_overlaps"]), strict=True):
        np.testing.assert_allclose(one, wanted, atol=1e-6)
    # The graph has the bands, labels and heads of the drawing.
    drawing = paths_drawing(picture)
    _, *labels = (html.unescape(text) for text in re.findall("<title>(.*?)</title>", drawing))
    written = [html.unescape(text) for text in re.findall("<text[^>]*>(.*?)</text>", drawing)]
    assert [text.get_text() for text in paths.get_legend().get_texts()] == labels
    assert [text.get_text() for text in paths.texts] == written[: len(paths.texts)]
    assert len(paths.collections) == len(picture.path_names)


def test_code_makes_the_same_numbers(tmp_path, monkeypatch):
    choice = dataclasses.replace(SMALL, perpendicular_noise=0.4, temperature=0.2, width=37, seed=3)
    monkeypatch.chdir(tmp_path)
    run(code_of(choice), picture_of(choice), 1e-9)
    assert (tmp_path / "learning.png").stat().st_size > 10_000


# Files have more features than training examples: components without variance would be any that are left.
def csv_file() -> bytes:
    generator = np.random.default_rng(1)
    xi = generator.normal(size=(40, 2, 12))
    label = np.where(xi[:, 1, 0] > 0, 7, 3)
    rows = [f"{x[0, 0]},{y},{','.join(map(str, x.ravel()[1:]))}" for x, y in zip(xi, label, strict=True)]
    first, *others = (f"{path}.{number}" for path in ("one", "two") for number in range(12))
    head = ",".join([first, " label ", *others])
    return "\n".join(["\ufeff" + head, *rows[:5], "", *rows[5:], ""]).encode()


def npz_file(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def tokens_file() -> bytes:
    generator = np.random.default_rng(2)
    x, attention = generator.normal(size=(30, 4, 9)), generator.random(size=(2, 30, 2, 4, 4))
    attention /= attention.sum(axis=-1, keepdims=True)
    return npz_file(x=x, attention_1=attention[0], attention_2=attention[1], y=np.sign(x[:, 0, 0]))


def inputs_file() -> bytes:
    xi = np.random.default_rng(3).normal(size=(40, 2, 12))
    return npz_file(xi=xi, y=xi[:, 0, 0] > 0)


@pytest.mark.parametrize(
    ("name", "content", "paths"),
    [
        ("mine.csv", csv_file(), 2),
        ('it\'s "mine".npz', tokens_file(), 4),
        ("inputs.npz", inputs_file(), 2),
    ],
)
def test_code_of_a_users_own_file(name, content, paths, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(learning_page, "SLICE", 120.0)
    (tmp_path / name).write_bytes(content)
    view = LearningView(LearningChoice(width=20, temperature=0.1, seed=5), Address())
    values = view.controls.value | {"file": [SimpleNamespace(name=name, contents=content)]}
    *_, shown = view.answer(values)
    assert view.work is not None and view.work.picture is not None, shown.text
    *_, page = view.figures()
    made = run(view.code, view.work.picture, 1e-9)
    assert "Show me the code" in page.text
    assert made["arch"].paths == paths and (tmp_path / "learning.png").stat().st_size > 10_000
    # Another width is another answer about the same file, which is not read again.
    monkeypatch.setattr(learning_page, "upload_of", pytest.fail)
    list(view.answer(values | {"width": 30}))
    assert "widths=30" in view.code
    list(view.answer(values | {"width": 3000}))
    assert view.work is None

"""Sweeps that grow, that take Datasets and words, that run in part, and that go on from their folder alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import sweep_functions as functions
import xarray as xr
from typer.testing import CliRunner

from thermoformer.cli import app
from thermoformer.figures import sweep_results
from thermoformer.sweeps import Grid, StoreError, Sweep, SweepStore
from thermoformer.sweeps.chunks import sealed

HERE = Path(__file__).parents[1]
GRID = {"a": [1.0, 2.0, 3.0], "b": [0, 1, 2, 3]}


def test_axes_grow_at_their_ends(tmp_path):
    """More values of both axes: what is done stays, and is not run again; errors stay with their points."""
    log = tmp_path / "log"
    fixed = {"log": str(log)}
    small = Sweep(functions.logged, {"a": [1.0, 2.0], "b": [0, 1, 2]}, tmp_path / "s", batch=2, fixed=fixed)
    small.run()
    wide = {"a": [1.0, 2.0, 7.0], "b": [0, 1, 2, 3, 4]}
    larger = Sweep(functions.logged, wide, tmp_path / "s", batch=2, fixed=fixed)
    assert larger.changes() == ["grid"]
    found = larger.run()
    calls = log.read_text().splitlines()
    assert len(calls) == len(set(calls)) == 15
    whole = Sweep(functions.plain, wide, tmp_path / "whole", batch=2).run()
    for name in ("product", "powers", "noise"):
        np.testing.assert_array_equal(found[name], whole[name])
    with pytest.raises(StoreError, match="with another grid"):  # shorter, or another order
        small.run()
    assert not list((tmp_path / "s").glob(".data*"))


def test_errors_stay_with_their_points_when_axes_grow(tmp_path):
    sweep = Sweep(functions.faulty, {"a": [1.0], "b": [0, 2]}, tmp_path / "s")
    sweep.run()
    longer = Sweep(functions.faulty, {"a": [1.0, 5.0], "b": [0, 2, 3]}, tmp_path / "s")
    longer.run()
    assert list(longer.errors()) == [(1.0, 2)]


class KilledError(Exception):
    pass


@pytest.mark.parametrize("moment", range(11))
def test_killed_while_axes_grow(tmp_path, monkeypatch, moment):
    """At each file that is written meanwhile: the old data can be read, and the next run goes on."""
    small = {"a": [1.0], "b": [0, 1]}
    Sweep(functions.plain, small, tmp_path / "s").run()
    calls = []

    def stopping(original):
        def call(*arguments):
            if len(calls) == moment:
                raise KilledError
            calls.append(original)
            return original(*arguments)

        return call

    larger = Sweep(functions.plain, GRID, tmp_path / "s")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopping(os.replace))
        patch.setattr(Path, "write_bytes", stopping(Path.write_bytes))
        with pytest.raises(KilledError):
            larger.run()
    there = SweepStore(tmp_path / "s")
    half = there.dataset().load()
    assert int((half.status == 1).sum()) == 2 and half.product.values.ravel()[0] == 0.0
    whole = Sweep(functions.plain, GRID, tmp_path / "w").run()
    np.testing.assert_array_equal(larger.run().noise, whole.noise)


def test_batches_along_several_axes(tmp_path):
    grid = Grid(GRID, batch={"a": 2, "b": 3})
    assert grid.chunks == (2, 3) and grid.tasks == 4
    covered = np.zeros(grid.shape, int)
    for task in grid:
        covered[task.region] += 1
        assert len(task.points) == np.prod(task.shape)
    assert (covered == 1).all()
    whole = Sweep(functions.plain, GRID, tmp_path / "w").run()
    found = Sweep(functions.plain, GRID, tmp_path / "s", batch={"a": 2, "b": 3}).run()
    together = Sweep(functions.arrays, GRID, tmp_path / "v", batch={"a": 2, "b": 3}, vectorised=True).run()
    for name in ("product", "powers", "noise"):
        np.testing.assert_array_equal(found[name], whole[name])
    np.testing.assert_array_equal(together.product, whole.product)
    with pytest.raises(ValueError, match="batch: got 'c'; expected axes of the grid: a, b"):
        Sweep(functions.plain, GRID, tmp_path / "b", batch={"c": 2})


def test_datasets_words_and_large_arrays(tmp_path):
    """A Dataset names its axes, has coordinates and says what its variables are; chunks above a page are compressed."""

    def labelled(a):
        large = np.full((3, 400), a)
        spectrum = ("line", "sample"), large, {"long_name": "lines"}
        return xr.Dataset(
            {
                "spectrum": spectrum,
                "word": ((), "even" if a % 2 == 0 else "odd"),
                "flags": ("line", [True, False, True]),
            },
            {"line": ["x", "y", "zed"]},
            {"title": "labelled", "levels": np.arange(3)},
        )

    found = Sweep(labelled, {"a": [1, 2, 3]}, tmp_path / "s").run()
    assert found.spectrum.dims == ("a", "line", "sample") and found.line.values.tolist() == ["x", "y", "zed"]
    assert found.word.values.tolist() == ["odd", "even", "odd"] and found.spectrum.attrs["long_name"] == "lines"
    assert found.attrs["title"] == "labelled" and found.attrs["levels"] == [0, 1, 2]
    assert found.flags.dtype == bool and found.flags.values.tolist() == [[True, False, True]] * 3
    np.testing.assert_array_equal(found.spectrum.values[2], np.full((3, 400), 3))


def test_a_part_of_the_grid(tmp_path):
    sweep = Sweep(functions.plain, GRID, tmp_path / "s", batch=3)
    reports = []
    found = sweep.run(only={"a": [2.0], "b": [0, 3]}, progress=lambda *report: reports.append(report))
    assert found.status.values.tolist() == [[0] * 4, [1, 0, 0, 1], [0] * 4]
    assert reports[-1][:2] == (2, 2)
    np.testing.assert_array_equal(sweep.run().noise, Sweep(functions.plain, GRID, tmp_path / "w").run().noise)
    with pytest.raises(ValueError, match="only: got 'c'; expected axes of the grid: a, b"):
        sweep.run(only={"c": [1]})
    with pytest.raises(ValueError, match="only\\['b'\\]: got \\[9\\]; expected values of the grid"):
        sweep.run(only={"b": [9]})


def test_fixed_arguments_that_changed_are_noticed(tmp_path):
    """Also where an array is too large to be written out."""
    first = np.arange(5000.0)
    second = first.copy()
    second[2500] += 1
    Sweep(functions.weighed, {"a": [1]}, tmp_path / "s", fixed={"weights": first}).run()
    assert Sweep(functions.weighed, {"a": [1]}, tmp_path / "s", fixed={"weights": first.copy()}).changes() == []
    assert Sweep(functions.weighed, {"a": [1]}, tmp_path / "s", fixed={"weights": second}).changes() == ["fixed"]
    with pytest.raises(ValueError, match="fixed argument 'weights' of another kind than JSON has"):
        Sweep.from_store(tmp_path / "s", functions.weighed)


def test_from_its_folder_alone(tmp_path):
    """A function of this library needs no name; any other must be named by the user, never by the folder."""
    sweep = Sweep(functions.slow, GRID, tmp_path / "s", fixed={"wait": 0.0}, batch=2, seed=3)
    sweep.run(only={"a": [1.0]})
    with pytest.raises(ValueError, match="function: got nothing; expected .* by name: 'sweep_functions:slow'"):
        Sweep.from_store(tmp_path / "s")
    again = Sweep.from_store(tmp_path / "s", "sweep_functions:slow")
    np.testing.assert_array_equal(again.run().noise, Sweep(functions.plain, GRID, tmp_path / "w", seed=3).run().noise)
    for name, message in (
        ("sweep_functions:nowhere", "has no attribute 'nowhere'"),
        ("no_such_module:f", "No module named"),
        ("nonsense", "expected a function as module:name"),
        ("sweep_functions:np.pi", "a float"),
    ):
        with pytest.raises(ValueError, match=message):
            Sweep.from_store(tmp_path / "s", name)


def test_a_folder_does_not_decide_what_is_run(tmp_path):
    """One that names something dangerous, through a module of this library, is refused like any other."""
    folder, proof = tmp_path / "s", tmp_path / "proof"
    Sweep(functions.nothing, {"a": [1]}, folder).run()
    file = folder / "sweep.json"
    for name in ("thermoformer._files:subprocess.run", "thermoformer.sweeps.store:os.remove", "os:remove"):
        record = json.loads(file.read_text()) | {"function": name, "grid": {"args": [f"touch {proof}"]}}
        del record["checksum"]
        file.write_bytes(sealed(record | {"fixed": {"shell": {"value": True}}}, file))
        with pytest.raises(ValueError, match="function: got nothing; expected the function of this sweep by name"):
            Sweep.from_store(folder)
    assert not proof.exists()


def test_attributes_stay_when_axes_grow(tmp_path):
    """They do not change values either, as the `units` of a time or a `_FillValue` do in netCDF."""

    def timed(a):
        attributes = {"units": "days since 2000-01-01", "_FillValue": 2.0}
        return xr.Dataset({"time": ("k", [float(a), 2.0], attributes)}, {"k": [5, 6]}, {"title": "timed"})

    Sweep(timed, {"a": [1]}, tmp_path / "s").run()
    found = Sweep(timed, {"a": [1, 3]}, tmp_path / "s").run()
    assert found.time.values.tolist() == [[1.0, 2.0], [3.0, 2.0]] and found.attrs["title"] == "timed"
    assert found.time.attrs["units"] == "days since 2000-01-01" and found.k.values.tolist() == [5, 6]


def test_coordinates_must_be_the_same_at_all_points(tmp_path):
    sweep = Sweep(lambda a: xr.Dataset({"x": ("k", [1.0, 2.0])}, {"k": [a, np.nan]}), {"a": [1.0, 2.0]}, tmp_path / "s")
    assert sweep.run().status.values.tolist() == [1, 2]
    assert "k: returned other values along this axis" in sweep.errors()[(2.0,)]


def run_command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["sweep", *arguments])
    return result.exit_code, re.sub(r"\s+", " ", result.output)


def test_the_commands(tmp_path):
    folder = str(tmp_path / "s")
    sweep = Sweep(functions.faulty, {"a": [1.0, 5.0], "b": [0, 1, 2, 3]}, folder, batch=2)
    sweep.run(only={"a": [1.0]})
    code, text = run_command("status", folder)
    assert code == 0 and "2 a × 4 b = 8 points" in text and "no such luck" in text and "nobody is writing" in text
    report = json.loads(CliRunner().invoke(app, ["sweep", "status", folder, "--json"]).output)
    assert (report["done"], report["failed"], report["left"]) == (3, 1, 4)
    assert report["errors"] == [{"point": [1.0, 2], "error": "RuntimeError: no such luck"}]
    with sweep.store.lock():
        assert "is writing" in run_command("status", folder)[1]
    code, text = run_command("show", folder, "--out", str(tmp_path / "picture"))
    assert code == 0 and {file.suffix for file in tmp_path.glob("picture.*")} == {".png", ".svg", ".html"}
    page = (tmp_path / "picture.html").read_text()
    assert "<b>3</b> of 8 points done" in page and "data:image/svg+xml" in page and "refresh" not in page
    code, text = run_command("resume", folder)
    assert code == 2 and "by name: 'sweep_functions:faulty'" in text
    code, text = run_command("resume", folder, "--function", "sweep_functions:mended", "--retry")
    assert code == 2 and "--accept-changes" not in text and "made with function sweep_functions:faulty" in text
    code, text = run_command("resume", folder, "--function", "sweep_functions:mended", "--retry", "--accept-changes")
    assert code == 0 and "8 (100.0 %)" in text


def test_errors_with_brackets_are_shown_as_they_are(tmp_path):
    """rich would take them for the names of styles."""

    def bracketed(a):
        raise RuntimeError("[/x] of [red]")

    Sweep(bracketed, {"a": [1]}, tmp_path / "s").run()
    code, text = run_command("status", str(tmp_path / "s"))
    assert code == 0 and "RuntimeError: [/x] of [red]" in text


def test_a_picture_that_follows_a_sweep(tmp_path):
    """Another process writes; the page loads itself again until it is finished."""
    code = f"""
    import sys
    sys.path.insert(0, {str(HERE)!r})
    import sweep_functions as functions
    from thermoformer.sweeps import Sweep
    Sweep(functions.slow, {GRID!r}, {str(tmp_path / "s")!r}, fixed={{"wait": 0.3}}).run()
    """
    writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    try:
        for _ in range(200):
            if (tmp_path / "s" / "data.zarr" / "product").exists():
                break
            time.sleep(0.05)
        pages = []
        from thermoformer._sweep_page import follow

        page = follow(
            SweepStore(tmp_path / "s"),
            "product",
            tmp_path / "live",
            0.2,
            lambda page, report: pages.append((report["done"], "refresh" in page.read_text())),
        )
    finally:
        assert writer.wait(timeout=30) == 0
    assert len(pages) > 2 and pages[0][1] and pages[0][0] < 12
    assert pages[-1] == (12, False) and "<b>12</b> of 12 points done" in page.read_text()


def test_figures_of_what_is_there(tmp_path):
    nothing = Sweep(functions.plain, GRID, tmp_path / "n")
    nothing.run(only={"a": []})
    assert sweep_results(nothing.dataset()).get_title() == "nothing of 12 points yet"
    half = Sweep(functions.faulty, {"a": [1.0, 2.0], "b": list(range(40))}, tmp_path / "l")
    half.run(only={"b": list(range(20))})
    axes = sweep_results(half.dataset(), "product")
    assert axes.get_title() == "product: 38 of 80 points, 2 failed" and axes.get_xlabel() == "b"
    assert axes.get_legend_handles_labels()[1] == ["a = 1", "a = 2"]
    assert axes.get_xlim()[1] > 39, "the whole axis is shown, also where nothing is there yet"
    wide = Sweep(
        functions.nothing_at_three, {"a": np.arange(1, 9), "b": np.arange(1, 12), "c": ["p", "q"]}, tmp_path / "w"
    )
    wide.run(only={"b": np.arange(1, 8)})
    axes = sweep_results(wide.dataset())
    assert axes.get_title() == "sum[0], mean over c: 98 of 176 points, 14 failed"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["to come", "failed"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("b", "a")
    with pytest.raises(ValueError, match="dataset: got variables"):
        sweep_results(xr.Dataset({"x": 1}))

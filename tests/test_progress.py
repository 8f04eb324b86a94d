"""Progress bars: in a terminal, in a notebook, or none."""

from __future__ import annotations

import io
import sys
import types

import nbformat
import pytest
from nbclient import NotebookClient
from rich.console import Console

from thermoformer import _progress as progress

CELL = """
import tempfile
from thermoformer.sweeps import Sweep

def area(width, height):
    return {"area": width * height}

Sweep(area, {"width": [1, 2], "height": [1, 2, 3]}, tempfile.mkdtemp()).run().area.values.tolist()
"""


def test_where_progress_is_shown(monkeypatch):
    def callback(done, total, message):
        pass

    with progress.shown_progress(callback) as report:
        assert report is callback
    for nothing in (False, None):  # tests have no terminal
        with progress.shown_progress(nothing) as report:
            assert report is progress.silent
    monkeypatch.setattr(sys, "stderr", terminal := io.StringIO())
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    with progress.shown_progress(None) as report:
        report(1, 2, "half way")
    assert "half way" in terminal.getvalue()


def test_console():
    stream = io.StringIO()
    with progress.console_progress(Console(file=stream, force_terminal=True, width=120)) as report:
        report(1, 4, "begun")
        report(3, 4, "nearly [done]")
    assert "3/4" in stream.getvalue() and " s left" in stream.getvalue()


def test_steps_advance_with_the_passes_inside_them_and_learn_how_many_there_are():
    seen = []
    with progress.advanced_by_passes(lambda done, total, message: seen.append(done)) as report:
        for step in range(2):
            report(step, 2, "scores")
            for batch in (1, 2) * 3:  # three passes of two batches
                progress.inside.get()(batch, 2, "")
        with progress.advanced_by_passes(progress.silent) as nothing:
            nothing(0, 1, "")
            progress.inside.get()(1, 1, "")
    assert progress.inside.get() is progress.silent
    # Two passes were expected in the first step; the third does not take the bar beyond it.
    assert seen[:7] == pytest.approx([0, 1 / 4, 1 / 2, 3 / 4, 1, 1, 1])
    assert seen[7:] == pytest.approx([1, *(1 + batch / 6 for batch in range(1, 7)), 1 + 1])


def test_notebook_bar_escapes_what_it_shows():
    assert "&lt;b&gt;" in progress._bar(1, 2, "<b>", "") and 'max="1"' in progress._bar(0, 0, "", "")


def test_outside_ipython(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert not progress.in_notebook()


@pytest.mark.filterwarnings("default")  # of the notebook machinery
def test_in_a_real_notebook():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = notebook.cells[0].outputs
    shown = [output for output in outputs if output.output_type == "display_data"]
    assert len(shown) == 1, "one bar, redrawn in place"
    assert "6/6 6 done" in shown[0]["data"]["text/html"] and "points/s" in shown[0]["data"]["text/html"]
    assert outputs[-1]["data"]["text/plain"] == "[[1, 2, 3], [2, 4, 6]]"

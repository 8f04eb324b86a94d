"""The demo: both experiments, and one page that holds together."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from thermoformer.cli import app
from thermoformer.experiments import listing, run_demo


def small(name: str):
    """Stands for an experiment: what it leaves behind for the page, with numbers to find there again."""

    def run(out, *, quick, progress, **_):
        assert quick
        out.mkdir(parents=True, exist_ok=True)
        progress(0, 1, "working")
        picture = {"markov": "accuracy.png", "orbit-diagram": "orbit_diagram.png"}[name]
        (out / picture).write_bytes(b"\x89PNG")
        header = "variant,predictor,width,mean_percent,seeds"
        rows = ["4 paths,accuracy,10,95.63,3", "4 paths,accuracy,inf,85.27,3", "2 paths,accuracy,10,1.0,3"]
        (out / "accuracy.csv").write_text("\n".join([header, *rows]))
        (out / "regimes.csv").write_text("values,regime\n331,periodic\n1,chaos\n2,periodic\n")
        page = out / f"{name}.html"
        page.write_text("whole")
        return page

    return run


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(listing.Experiment, "run", lambda self, out, **given: small(self.name)(out, **given))


def test_one_page_for_both(quick, tmp_path):
    said = []
    page = run_demo(tmp_path, progress=lambda done, total, message: said.append((done, total, message)))
    text = page.read_text()
    assert page == tmp_path / "index.html" and text.count("data:image/png;base64,") == 2
    assert "95.6 %" in text and "85.3 %" in text and "333 periodic, 1 chaos." in text and "1.0 %" not in text
    for target in re.findall(r'href="([^"]+)"', text):
        assert (tmp_path / target).read_text() == "whole"
    assert said[0] == (0, 2, "markov (1 of 2): working") and said[-1] == (2, 2, "page")


def test_the_command_says_where_the_page_is(quick, tmp_path):
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 0 and "index.html" in result.output
    for number, name in enumerate(("markov", "orbit-diagram"), 1):
        assert f"{number}. {name}, {listing.EXPERIMENTS[name].quick_time}: " in result.output


def test_commands_on_the_page_exist(quick, tmp_path):
    typed = re.findall(r"<code>thermoformer ([\w-]+)", run_demo(tmp_path).read_text())
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert typed and set(typed) <= known

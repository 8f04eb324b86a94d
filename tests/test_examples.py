"""The notebooks of examples/: each runs, draws one figure, and its numbers are what its page says."""

from __future__ import annotations

import base64
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, PAGES = sorted((ROOT / "examples").glob("*.py")), ROOT / "docs" / "gallery"


@pytest.fixture(scope="module")
def gallery() -> Any:
    """The extension that makes the pages."""
    specification = importlib.util.spec_from_file_location("gallery", ROOT / "docs" / "_ext" / "gallery.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def accuracy_against_width(found):
    mean = found["accuracy"].accuracy.mean("seed")
    assert float(mean.sel(width=10)) > 0.93 > 0.86 > float(mean.sel(width=np.inf))
    assert (np.diff(mean.values) < 0.01).all()
    np.testing.assert_allclose(found["limit"].order_parameter, np.eye(4))


def exact_finite_width(found):
    error, noise = found["errors"].error, found["errors"].noise
    assert (error.sel(approach="gaussian process") > 2 * error.sel(approach="saddle")).all()
    assert (error.sel(approach="saddle") > error.sel(approach="one-loop")).all()
    assert (error.sel(approach="one-loop") < 3 * noise.sel(approach="one-loop")).all()


def which_heads_matter(found):
    assert found["whole"] > 0.9
    assert found["left"]["gradient"] > found["luckless"]
    assert set(found["table"].order.values) == {"theory", "evidence", "gradient", "trained"}


def attention_that_learns(found):
    mean = {noise: draws.mean() for noise, draws in found["drawn"].items()}
    assert mean[0.1] > 0.95 > 0.8 > mean[1.0]
    assert found["highest"][0.1] > 0.95
    assert max(found["errors"][0.1].values()) < 0.05 < 0.1 < min(found["errors"][1.0].values())


def orbit_and_regime(found):
    assert {beta: verdict.name for beta, verdict in found["verdicts"].items()} == {
        1.255: "quasi-periodic",
        1.28: "chaos",
    }
    quiet, wild = (found["spectra"][beta].exponents[0] for beta in (1.255, 1.28))
    assert abs(quiet) < 1e-3 and wild == pytest.approx(0.139, abs=0.02)


def orbit_diagram(found):
    assert found["diagram"].sizes["beta"] == sum(found["counts"].values()) == 301
    assert found["widest"] == pytest.approx((1.2738, 1.3), abs=2e-3)


def basins(found):
    assert found["rates"].keys() >= {28, 56}
    assert found["rates"][28] == pytest.approx(-0.0478, abs=1e-4)
    assert found["rates"][56] == pytest.approx(-0.0035, abs=1e-4)
    assert found["found"].dataset.fraction[0] == pytest.approx(0.8248, abs=0.02)
    assert found["apart"] == pytest.approx(0.29, abs=0.03)


def from_hopfield_to_attention(found):
    lengths, m = np.array(found["windows"]), found["largest"]
    np.testing.assert_allclose(found["rounds"][0.0], 6 * (lengths + 1) / 2, rtol=2e-3)
    np.testing.assert_allclose(found["rounds"][16.0], 6, rtol=1e-9)
    # A Hopfield network, whatever γ is: m = tanh(βm).
    assert all(values[0] == pytest.approx(np.tanh(4 * values[0]), abs=1e-12) for values in m.values())
    assert m[0.0][-1] < 0.5 < 0.9 < m[16.0][-1]
    # At γ = 4 attention picks one of two tokens, and averages over more.
    assert found["rounds"][4.0][1] == pytest.approx(6) and found["rounds"][4.0][2] > 11


def sweep_over_a_grid(found):
    assert (found["before"].done, found["after"].done, found["after"].failed) == (52, 117, 0)
    first = found["partly"].exponent.isel(gamma=slice(0, 4))
    np.testing.assert_array_equal(first, found["complete"].exponent.isel(gamma=slice(0, 4)))
    # Below the torus nothing is chaotic.
    assert (found["complete"].exponent.sel(beta=1.0) < 0).all()


CHECKS = (
    accuracy_against_width,
    exact_finite_width,
    which_heads_matter,
    attention_that_learns,
    orbit_and_regime,
    orbit_diagram,
    basins,
    from_hopfield_to_attention,
    sweep_over_a_grid,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_notebook(check, tmp_path, monkeypatch, gallery):
    """Run as `python examples/NAME.py --out FILE.png`; the page stays for the documentation, which runs it no more."""
    file, notebook = tmp_path / "figure.png", ROOT / "examples" / f"{check.__name__}.py"
    monkeypatch.setattr(sys, "argv", ["notebook.py", "--out", str(file)])
    PAGES.mkdir(exist_ok=True)
    found, printed = gallery.write_page(notebook, PAGES)
    assert isinstance(found["figure"], Figure)
    assert found["seen"] in printed
    assert file.read_bytes().startswith(b"\x89PNG")
    check(found)
    assert f"{check.__name__}.svg" in (PAGES / f"{check.__name__}.md").read_text()
    assert gallery.page_is_current(notebook, PAGES)
    copy = nbformat.read(PAGES / f"{check.__name__}.ipynb", as_version=4)
    nbformat.validate(copy)
    assert copy.cells[0].source.startswith("# ") and copy.cells[-1].source == found["seen"]
    (picture,) = [output.data["image/png"] for cell in copy.cells for output in cell.get("outputs", ())]
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    first, *cells = [cell.source for cell in copy.cells if cell.cell_type == "code"]
    code = "\n".join(cells)
    assert first == "%matplotlib inline"
    assert not re.search(r"\b(marimo|mo)\b", code)
    if check is from_hopfield_to_attention:  # the quickest one stands for all
        exec(compile(code, "notebook", "exec"), alone := {})
        assert alone["largest"] == found["largest"]


def test_every_example_is_checked_and_in_the_gallery(gallery):
    names = [file.stem for file in EXAMPLES]
    assert sorted(gallery.NOTEBOOKS) == names == sorted(check.__name__ for check in CHECKS)
    for file in EXAMPLES:
        setup, cells = gallery.written_cells(file.read_text())
        assert setup.startswith("import")
        compile(setup, file.name, "exec")
        for cell in cells:
            compile(cell.code, file.name, "exec")


def test_structure_of_the_notebooks():
    command = [sys.executable, "-m", "marimo", "check", "--strict", *map(str, EXAMPLES)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr

"""What README and documentation show: code that runs, commands that exist, every public name, the published numbers."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import shlex
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import thermoformer.experiments.markov
from thermoformer.cli import app
from thermoformer.experiments.markov.published import PUBLISHED, PUBLISHED_LARGEST_OVERLAP, PUBLISHED_REFERENCES

ROOT = Path(__file__).resolve().parents[1]
README, DOCS = ROOT / "README.md", ROOT / "docs"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
API = "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def commands() -> list[tuple[Path, list[str]]]:
    """Every line of every shell block, split into words, with its page."""
    lines = [(page, line) for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return [(page, shlex.split(line)) for page, line in lines]


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"(?<![\w.])\d+\.?\d*", text)]


def run(code: list[str], namespace: dict) -> dict:
    for block in code:
        exec(compile(block, "documentation", "exec"), namespace)
    return namespace


@pytest.mark.parametrize("page", [README, DOCS / "getting-started.md"], ids=lambda page: page.stem)
def test_code_prints_what_the_page_shows(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(blocks(page, "python"), {})
    printed, shown = capsys.readouterr().out, "".join(blocks(page, "text"))
    # One test example in a thousand may fall on the other side on another machine.
    assert numbers(printed) == pytest.approx(numbers(shown), abs=0.0031)
    assert re.sub(r"[\d.]+", "", printed) == re.sub(r"[\d.]+", "", shown)


def test_the_first_file_is_solved_from_the_shell_as_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run(blocks(DOCS / "getting-started.md", "python"), {})
    command = next(words for page, words in commands() if page.stem == "getting-started" and "mine.npz" in words)
    result = CliRunner().invoke(app, [*command[1:], "--json"])
    assert result.exit_code == 0, result.output
    accuracy = found["solution"].predict(found["features"][100:]).accuracy(found["y"][100:])
    assert f'"accuracy": {accuracy}' in result.stdout


def two_paths() -> dict:
    """What the blocks of a page that starts in the middle take as given."""
    from thermoformer.learning import Architecture, PathFeatures, choose_by_evidence, solve

    rng = np.random.default_rng(0)
    features = PathFeatures.from_attentioned_inputs(rng.normal(size=(30, 2, 8)))
    arch, labels = Architecture((2,), 10), np.sign(rng.normal(size=30))
    given = {"arch": arch, "features": features, "labels": labels}
    solution = solve(arch, features, labels, temperature=0.1)
    theory = {"solve": solve, "choose_by_evidence": choose_by_evidence, "solution": solution}
    # A page may call another solution by the same name later on.
    return given | theory | {"first_solution": solution}


def draws_and_arviz(monkeypatch) -> dict:
    """Draws of a posterior; of ArviZ the summary is installed, and its plots, which need the whole of it, are not."""
    import arviz_stats

    from thermoformer.learning import sample_order_parameters

    arviz = types.ModuleType("arviz")
    arviz.summary = arviz_stats.summary
    arviz.plot_trace = lambda draws, var_names: [draws["posterior"][name] for name in var_names]
    monkeypatch.setitem(sys.modules, "arviz", arviz)
    given = two_paths()
    inputs = (given["arch"], given["features"], given["labels"])
    return {"posterior": sample_order_parameters(*inputs, temperature=0.1, key=0, draws=300)}


def sweep_and_cluster() -> dict:
    """A sweep that says where it would run, and a cluster that says how far it would grow."""
    called: list[Any] = []
    sweep = types.SimpleNamespace(run=lambda executor, cluster: called.append((executor, cluster)))
    cluster = types.SimpleNamespace(adapt=lambda maximum_jobs: called.append(maximum_jobs))
    return {"sweep": sweep, "cluster": cluster, "called": called}


def choosing(found):
    diagonal = np.diag(np.diag(found["first_solution"].order_parameter))
    np.testing.assert_array_equal(found["diagonal"].order_parameter, diagonal)


def experiments(found):
    assert found["called"][0][0].temperature == 0.1


def sweeps(found):
    assert found["called"] == [("dask", "tcp://login-node:8786"), 20, ("dask", found["cluster"])]


def attention(found):
    rows = re.findall(r"^\| (\d[\d.]*) \|(.*)$", (DOCS / "attention.md").read_text(), flags=re.MULTILINE)
    assert {float(noise) for noise, _ in rows} == found["table"].keys()
    for noise, shown in rows:
        assert numbers(shown) == pytest.approx(found["table"][float(noise)], abs=0.011)


def approximations(found):
    assert Path("draws.nc").is_file()


# Pages that need something beside their own blocks; every other page stands on its own.
GIVEN = {
    "choosing": lambda monkeypatch: two_paths(),
    "approximations": draws_and_arviz,
    "sweeps": lambda monkeypatch: sweep_and_cluster(),
}
CHECKS = {check.__name__: check for check in (choosing, experiments, sweeps, attention, approximations)}
SHOWN_ELSEWHERE = ("README", "getting-started")
WITH_CODE = [page for page in PAGES if blocks(page, "python") and page.stem not in SHOWN_ELSEWHERE]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_every_block_of_every_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    called: list[Any] = []
    monkeypatch.setattr(thermoformer.experiments.markov, "run_markov", lambda *arguments: called.append(arguments))
    given = GIVEN.get(page.stem, lambda monkeypatch: {})(monkeypatch)
    found = run(blocks(page, "python"), {"called": called} | given)
    CHECKS.get(page.stem, lambda found: None)(found)
    if shown := "".join(blocks(page, "text")):
        assert capsys.readouterr().out == shown


def test_no_page_has_code_that_is_not_run():
    # `python` is run here, `code-cell` in the build, `sh` is checked below; `text` is what was printed.
    known = {"python", "text", "sh", "{code-cell}", "{toctree}", "{eval-rst}", "{include}", "{figure}", "{image}"}
    for page in PAGES:
        opened = re.findall(r"^```+([^\s`]+)", page.read_text(), flags=re.MULTILINE)
        assert set(opened) <= known, (page.name, set(opened) - known)


def is_an_extra(words: list[str]) -> bool:
    """Whether a pip command names an extra that this library, or the JAX that is installed, has."""
    *command, what = words
    package, _, extra = what.rstrip("]").partition("[")
    name = {".": "thermoformer", "jax": "jax"}.get(package)
    if name is None or command[:2] != ["pip", "install"] or command[2:] not in ([], ["-U"]):
        return False
    if name == "thermoformer":
        return extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return extra in importlib.metadata.metadata(name).get_all("Provides-Extra")


@pytest.mark.parametrize(("page", "words"), commands(), ids=lambda value: value.stem if isinstance(value, Path) else "")
def test_commands_exist(page, words):
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    elif words[0] == "thermoformer":
        group = typer.main.get_command(app)
        with group.make_context("thermoformer", words[1:]) as context:
            name, command, rest = group.resolve_command(context, words[1:])
            command.make_context(name, rest, parent=context)
    elif words[0] == "python":
        source = (ROOT / words[1]).read_text()
        assert all(f'"{word}"' in source for word in words if word.startswith("--"))
    else:
        assert words in (["pip", "install", "."], ["export", "THERMOFORMER_KEEP_PRECISION=1"]) or is_an_extra(words)


@pytest.mark.parametrize(
    "room", ["learning", "networks", "dynamics", "transformers", "tasks", "sweeps", "figures", "experiments", "app"]
)
def test_every_public_name_is_in_the_api_pages(room):
    for name in importlib.import_module(f"thermoformer.{room}").__all__:
        automatic = re.search(rf"^\.\. auto\w+:: thermoformer\.{room}\.{name}$", API, flags=re.MULTILINE)
        assert automatic or f".. py:data:: {name}\n   :module: thermoformer.{room}\n" in API, name


@pytest.mark.parametrize("name", ["read_arrays", "arrays.Arrays", "bibtex"])
def test_names_of_the_top_floor_are_in_the_api_pages(name):
    assert re.search(rf"^\.\. auto\w+:: thermoformer\.{name}$", API, flags=re.MULTILINE)


def test_the_picture_is_there_and_light():
    pictures = re.findall(r"!\[.+\]\((.+)\)", README.read_text())
    assert pictures and all((ROOT / picture).stat().st_size < 200_000 for picture in pictures)


def test_published_numbers_on_the_page_are_those_of_the_code():
    page = (DOCS / "experiments.md").read_text().partition("## §2")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    variant, seen = "", {}
    for first, *cells in rows:
        variant = first if first in ("4 paths", "2 paths") else variant
        width = 1.0 * int(first[5:-1]) if re.fullmatch(r"\$N = \d+\$", first) else np.inf
        if len(cells) == 4 and cells[1] not in ("", "published", "---"):
            predictor = "accuracy" if width < np.inf or first == "GP, all paths" else first.removeprefix("GP, ")
            seen[variant, predictor, width] = float(cells[1])
            if cells[3]:
                seen[variant, "accuracy_diagonal", width] = float(cells[3])
        elif "±" in cells[0] and len(cells) == 2:
            name, at = first.split(", ")
            seen[name, "overlap", np.inf if at == "GP" else 10.0] = float(cells[1])
    expected = {(*key, width): value for key, curve in PUBLISHED.items() for width, value in curve.items()}
    expected |= {(*key, np.inf): value for key, value in PUBLISHED_REFERENCES.items()}
    expected |= {(name, "overlap", width): value for (name, width), value in PUBLISHED_LARGEST_OVERLAP.items()}
    assert seen == expected

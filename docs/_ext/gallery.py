"""The gallery: every notebook of examples/ is run and becomes a page with its prose, code and figure.

The tests run the notebooks too, and leave pages with a stamp: these are taken as they are while the notebook, the
library and all that is installed are what they were. Without such pages every build runs every notebook.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import logging as standard_logging
import multiprocessing
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from sphinx.application import Sphinx
from sphinx.util import logging

import thermoformer
from thermoformer import figures

logger = logging.getLogger(__name__)

FOLDER = "gallery"
# What users do first comes first.
NOTEBOOKS = (
    "accuracy_against_width",
    "exact_finite_width",
    "which_heads_matter",
    "orbit_and_regime",
    "orbit_diagram",
    "sweep_over_a_grid",
)
_INDEX = """# Gallery

Six notebooks, each with one figure. They are in the folder `examples` of the repository and are run for this
documentation whenever they or the library change. Each is a [marimo](https://docs.marimo.io) notebook and a plain
script at once: `marimo edit examples/NAME.py` opens it in a browser, `python examples/NAME.py --out FILE.png` runs it
and keeps the picture. `pip install '.[app]'` brings marimo.

Heads of a pretrained transformer need its weights, so that example is not here:
[Heads of pretrained transformers](../heads.md) goes from a hub name to a pruned checkpoint.

"""


class Cell(NamedTuple):
    """A cell as it is written: its code, and whether the code is shown."""

    code: str
    shown: bool


def written_cells(source: str) -> tuple[str, list[Cell]]:
    """The code of the setup, and the cells in order."""
    setup, cells = "", []
    for node in ast.parse(source).body:
        if isinstance(node, ast.With):
            setup = _text(source, node.body)
        elif isinstance(node, ast.FunctionDef) and node.decorator_list:
            last = node.body[-1]
            body = node.body[:-1] if isinstance(last, ast.Return) else node.body
            hidden = any(
                keyword.arg == "hide_code"
                for decorator in node.decorator_list
                if isinstance(decorator, ast.Call)
                for keyword in decorator.keywords
            )
            cells.append(Cell(_text(source, body), not hidden))
    return setup, cells


def _text(source: str, nodes: list[Any]) -> str:
    """The lines of some statements with the comments before and between them, from the left margin."""
    # A function begins with its decorators, which Python does not count to it.
    first = min(node.lineno for node in (*getattr(nodes[0], "decorator_list", []), nodes[0]))
    lines = source.splitlines()
    while lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return textwrap.dedent("\n".join(lines[first - 1 : nodes[-1].end_lineno]))


def load_app(notebook: Path) -> Any:
    """The marimo App of a notebook, not yet run."""
    specification = importlib.util.spec_from_file_location(notebook.stem, notebook)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.app


def run_page(notebook: Path, folder: Path) -> None:
    """Runs a notebook and writes its page and its figure."""
    with _quiet():
        outputs, _ = load_app(notebook).run()
    write_page(notebook, outputs, folder)


def write_page(notebook: Path, outputs: Sequence[Any], folder: Path, *, began: float | None = None) -> None:
    """The page and the figure of a notebook that was run.

    Arguments:
        began: when the process began to read the library, in seconds since 1970: the page gets a stamp where nothing
            that it is made from changed since then. None: no stamp.
    """
    folder.mkdir(exist_ok=True)
    stamp_file = folder / f"{notebook.stem}.stamp"
    # Gone while the page is written: one that was left half done has no stamp.
    stamp_file.unlink(missing_ok=True)
    source = notebook.read_text()
    setup, cells = written_cells(source)
    summary = ast.get_docstring(ast.parse(source)) or notebook.stem
    parts: list[str] = []
    for cell, output in zip(cells, outputs, strict=True):
        if cell.shown:
            # The first code on the page begins with what all of it needs.
            parts.append(f"```python\n{setup}\n```\n\n" if setup else "")
            parts.append(f"```python\n{cell.code}\n```\n\n")
            setup = ""
        if isinstance(output, Figure):
            figures.save(output, folder / notebook.stem)
            parts.append(f"```{{image}} {notebook.stem}.svg\n:alt: {summary}\n```\n\n")
        elif output is not None:
            parts.append(output._repr_markdown_() + "\n\n")
    parts.append(f"Run it: `python examples/{notebook.name}`, or `marimo edit examples/{notebook.name}`.\n")
    _write(folder / f"{notebook.stem}.md", "".join(parts))
    if began is not None and all(file.stat().st_mtime < began for file in _sources(notebook)):
        stamp_file.write_text(stamp(notebook))


def stamp(notebook: Path) -> str:
    """A digest of all that a page is made from: notebook, this file, library, Python and what is installed."""
    digest = hashlib.sha256()
    for file in _sources(notebook):
        digest.update(f"{file} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    installed = {f"{one.name} {one.version}" for one in importlib.metadata.distributions()}
    digest.update("\n".join([sys.version, *sorted(installed)]).encode())
    return digest.hexdigest()


def _sources(notebook: Path) -> list[Path]:
    library = Path(thermoformer.__file__).parent
    files = (file for file in library.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return [notebook, Path(__file__), *sorted(files)]


def is_fresh(notebook: Path, folder: Path) -> bool:
    """Whether the page of a notebook is there with the stamp of what is here now."""
    stamp_file = folder / f"{notebook.stem}.stamp"
    return stamp_file.is_file() and stamp_file.read_text() == stamp(notebook)


def write_index(folder: Path) -> None:
    """The page with all figures, small."""
    parts = [_INDEX, "````{container} gallery\n"]
    for name in NOTEBOOKS:
        title = (folder / f"{name}.md").read_text().splitlines()[0].removeprefix("# ")
        parts.append(f"```{{figure}} {name}.svg\n:alt: {title}\n:target: {name}.html\n\n[{title}]({name}.md)\n```\n")
    parts += ["````\n\n```{toctree}\n:hidden:\n\n", *(f"{name}\n" for name in NOTEBOOKS), "```\n"]
    _write(folder / "index.md", "".join(parts))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what a notebook prints for those who run it as a script, and without the remarks of libraries."""
    before = standard_logging.root.manager.disable
    standard_logging.disable(standard_logging.INFO)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        standard_logging.disable(before)


def _write(file: Path, text: str) -> None:
    """Leaves a file with the same text alone: Sphinx reads what is new."""
    if not file.is_file() or file.read_text() != text:
        file.write_text(text)


def _make(app: Sphinx) -> None:
    examples, folder = Path(app.srcdir).parent / "examples", Path(app.srcdir) / FOLDER
    folder.mkdir(exist_ok=True)
    # Builds that run no notebooks take the pages of the last build that did, whatever changed since.
    kept = app.config.nb_execution_mode == "off"
    notebooks = [examples / f"{name}.py" for name in NOTEBOOKS]
    if kept:
        stale = [notebook for notebook in notebooks if not (folder / f"{notebook.stem}.md").is_file()]
    else:
        stale = [notebook for notebook in notebooks if not is_fresh(notebook, folder)]
    if stale:
        # Two at a time where there are cores, in processes of their own: Sphinx forks when it reads pages side by side,
        # and a process in which JAX has run must not.
        workers = min(2, os.cpu_count() or 1)
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            logger.info("gallery: running %s", ", ".join(notebook.stem for notebook in stale))
            list(pool.map(run_page, stale, [folder] * len(stale)))
    write_index(folder)


def setup(app: Sphinx) -> dict[str, bool]:
    """Pages are there before Sphinx looks for pages."""
    app.connect("builder-inited", _make)
    return {"parallel_read_safe": True}

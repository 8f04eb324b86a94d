"""The gallery: every notebook of examples/ is run and becomes a page with its prose, code and figure.

The tests run the notebooks too, and leave the pages here. A build takes a page that is of the same code, notebook and
environment, and runs the notebook otherwise.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import importlib.util
import io
import logging as standard_logging
import multiprocessing
import os
import textwrap
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from matplotlib.figure import Figure
from nbformat import v4 as jupyter
from sphinx.application import Sphinx
from sphinx.util import logging

from thermoformer import figures

logger = logging.getLogger(__name__)

FOLDER = "gallery"
# What users do first comes first.
NOTEBOOKS = (
    "accuracy_against_width",
    "exact_finite_width",
    "which_heads_matter",
    "attention_that_learns",
    "orbit_and_regime",
    "orbit_diagram",
    "basins",
    "from_hopfield_to_attention",
    "sweep_over_a_grid",
)
_INDEX = """# Gallery

Eight notebooks, each with one figure. They are in the folder `examples` of the repository and are run whenever this
documentation is built. Each is a [marimo](https://docs.marimo.io) notebook and a plain script at once:
`marimo edit examples/NAME.py` opens it in a browser, `python examples/NAME.py --out FILE.png` runs it and keeps the
picture. `pip install '.[app]'` brings marimo.

Heads of a pretrained transformer need its weights, so that example is not here:
[Heads of pretrained transformers](../heads.md) goes from a hub name to a pruned checkpoint.

"""
_JUPYTER = """
## In Jupyter and Colab

Every example, and every tutorial of this documentation, can be downloaded as a Jupyter notebook with its figures: the
link is at the end of the example and at the beginning of the tutorial.

- **Jupyter.** Run `pip install .` in a checkout of the repository, in the environment of the notebook's kernel, and
  open the file.
- **Colab.** Run `pip wheel . --no-deps` in a checkout. Open the notebook in Colab, upload the wheel to its files, and
  run `!pip install thermoformer-*.whl` in a first cell. Everything runs on a CPU.
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


def write_page(notebook: Path, folder: Path) -> tuple[dict[str, Any], str]:
    """Runs a notebook and writes its page, figure and Jupyter notebook; returns its definitions and what it printed."""
    source = notebook.read_text()
    setup, cells = written_cells(source)
    # Only cells that are not shown use marimo.
    setup = setup.replace("import marimo as mo\n", "")
    with _quiet() as printed:
        outputs, found = load_app(notebook).run()
    summary = ast.get_docstring(ast.parse(source)) or notebook.stem
    parts: list[str] = []
    copies: list[Any] = []
    for cell, output in zip(cells, outputs, strict=True):
        if cell.shown:
            # Jupyter shows a Figure only with this line; pyplot, which would do it too, is not imported.
            copies += [jupyter.new_code_cell("%matplotlib inline"), jupyter.new_code_cell(setup)] if setup else []
            copies.append(jupyter.new_code_cell(cell.code))
            # The first code on the page begins with what all of it needs.
            parts.append(f"```python\n{setup}\n```\n\n" if setup else "")
            parts.append(f"```python\n{cell.code}\n```\n\n")
            setup = ""
        if isinstance(output, Figure):
            picture, _ = figures.save(output, folder / notebook.stem)
            shown = {"image/png": base64.b64encode(picture.read_bytes()).decode()}
            copies[-1].outputs = [jupyter.new_output("display_data", shown)]
            parts.append(f"```{{image}} {notebook.stem}.svg\n:alt: {summary}\n```\n\n")
        elif output is not None:
            text = output._repr_markdown_()
            parts.append(text + "\n\n")
            copies.append(jupyter.new_markdown_cell(text))
    parts.append(
        f"Run it: `python examples/{notebook.name}`, or `marimo edit examples/{notebook.name}`, or\n"
        f"{{download}}`download it as a Jupyter notebook <{notebook.stem}.ipynb>`\n"
        "([how to run it](index.md#in-jupyter-and-colab)).\n"
    )
    for number, cell in enumerate(copies):
        cell.id = f"cell-{number}"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    _write(folder / f"{notebook.stem}.ipynb", nbformat.writes(jupyter.new_notebook(cells=copies, metadata=kernel)))
    _write(folder / f"{notebook.stem}.md", "".join(parts))
    (folder / f"{notebook.stem}.made-from").write_text(origin(notebook))
    return dict(found), printed.getvalue()


def _write_page_alone(notebook: Path, folder: Path) -> None:
    """`write_page` for another process, which cannot send back what a notebook defined."""
    write_page(notebook, folder)


def origin(notebook: Path) -> str:
    """A digest of all that a page depends on: this file, the notebook, the library, its data, and pinned versions."""
    root = notebook.parents[1]
    library = (file for file in (root / "src").rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    files = [Path(__file__), notebook, root / "pyproject.toml", root / "constraints.txt", *sorted(library)]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def page_is_current(notebook: Path, folder: Path) -> bool:
    """Whether the folder has the page of a notebook as it would be made now."""
    made_from = folder / f"{notebook.stem}.made-from"
    written = all((folder / f"{notebook.stem}.{kind}").is_file() for kind in ("md", "svg", "ipynb"))
    return written and made_from.is_file() and made_from.read_text() == origin(notebook)


def write_index(folder: Path) -> None:
    """The page with all figures, small."""
    parts = [_INDEX, "````{container} gallery\n"]
    for name in NOTEBOOKS:
        title = (folder / f"{name}.md").read_text().splitlines()[0].removeprefix("# ")
        parts.append(f"```{{figure}} {name}.svg\n:alt: {title}\n:target: {name}.html\n\n[{title}]({name}.md)\n```\n")
    parts += ["````\n", _JUPYTER, "\n```{toctree}\n:hidden:\n\n", *(f"{name}\n" for name in NOTEBOOKS), "```\n"]
    _write(folder / "index.md", "".join(parts))


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """Keeps what a notebook prints for those who run it as a script, and leaves out the remarks of libraries."""
    before = standard_logging.root.manager.disable
    standard_logging.disable(standard_logging.INFO)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            yield printed
    finally:
        standard_logging.disable(before)


def _write(file: Path, text: str) -> None:
    """Leaves a file with the same text alone: Sphinx reads what is new."""
    if not file.is_file() or file.read_text() != text:
        file.write_text(text)


def _make(app: Sphinx) -> None:
    examples, folder = Path(app.srcdir).parent / "examples", Path(app.srcdir) / FOLDER
    folder.mkdir(exist_ok=True)
    # Builds that run no notebooks take the pages of the last build that did.
    kept = app.config.nb_execution_mode == "off"
    names = [
        name
        for name in NOTEBOOKS
        if not ((kept and (folder / f"{name}.md").is_file()) or page_is_current(examples / f"{name}.py", folder))
    ]
    if names:
        # Two at a time where there are cores, in processes of their own: Sphinx forks when it reads pages side by side,
        # and a process in which JAX has run must not.
        workers = min(2, os.cpu_count() or 1)
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            logger.info("gallery: running %s", ", ".join(names))
            list(pool.map(_write_page_alone, [examples / f"{name}.py" for name in names], [folder] * len(names)))
    write_index(folder)


def setup(app: Sphinx) -> dict[str, bool]:
    """Pages are there before Sphinx looks for pages."""
    app.connect("builder-inited", _make)
    return {"parallel_read_safe": True}

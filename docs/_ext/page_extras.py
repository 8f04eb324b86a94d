"""What pages of a kind have in common.

API pages begin with a table of their names; pages with notebook cells begin with a link to their notebook.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

_NAMES = re.compile(r"^\.\. auto(?:function|class|exception):: (\S+)$", flags=re.MULTILINE)
_TABLE = "```{{eval-rst}}\n.. autosummary::\n   :nosignatures:\n\n{names}\n```\n\n"


def with_summary(text: str) -> str:
    """An API page with a table of its names and their first sentences after the introduction."""
    names = [f"   ~{name}" for name in _NAMES.findall(text)]
    start = re.search(r"^(## |```)", text, flags=re.MULTILINE)
    if not names or start is None:
        return text
    return text[: start.start()] + _TABLE.format(names="\n".join(names)) + text[start.start() :]


def _add_summary(app: Sphinx, document: str, content: list[str]) -> None:
    if document.startswith("api/"):
        content[0] = with_summary(content[0])


def _add_download(app: Sphinx, doctree: nodes.document) -> None:
    """Links to the notebook that MyST-NB has run for a page, below its title; the notebook itself stays as it is."""
    name = app.env.docname
    notebook = Path(app.env.mystnb_config.output_folder) / f"{name}.ipynb"
    title = next(doctree.findall(nodes.title), None)
    if title is None or not notebook.is_file():
        return
    target = "/" + os.path.relpath(notebook, app.srcdir)
    download = addnodes.download_reference("", "Download this page as a Jupyter notebook", reftarget=target)
    place = {"refdomain": "std", "reftype": "doc", "reftarget": "/gallery/index", "refexplicit": True, "refdoc": name}
    how = addnodes.pending_xref("", nodes.inline("", "how to run it"), **place)
    paragraph = nodes.paragraph("", "", download, nodes.Text("; "), how, nodes.Text("."))
    title.parent.insert(title.parent.index(title) + 1, paragraph)


def setup(app: Sphinx) -> dict[str, bool]:
    """The link is there before Sphinx, with priority 500, collects files to download."""
    app.connect("source-read", _add_summary)
    app.connect("doctree-read", _add_download, priority=400)
    return {"parallel_read_safe": True}

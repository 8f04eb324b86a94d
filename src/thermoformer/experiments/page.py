"""One self-contained HTML page from a Markdown template: nothing is fetched from elsewhere.

A template is Markdown with Jinja expressions. It begins with ``# Title`` and a paragraph that says what the page shows,
and ends with a footer after a line ``---``. Everything inserted is plain text: neither HTML nor Markdown in it counts.
Besides the values of the page a template has the filters of `words` and three functions:

- ``{% call figure("accuracy", "What it shows, for readers who do not see it") %}Caption.{% endcall %}``
- ``{{ table(header, rows, "Caption.", quiet=[2]) }}``, whose first column holds the names of the rows
- ``{% call row() %}`` … ``{% endcall %}`` around parts that stand side by side where there is room
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape, unescape
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from .._files import write_safely
from .._validation import fail
from .words import FILTERS

_HERE = Path(__file__).parent
_MEDIA_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
# Pixels on the screen per inch of a figure, whose words are then 9 to 10 pixels high; narrow screens scroll.
_READABLE = 64
# Columns with a longer text take several lines.
_LONG = 30
# Characters that mean something in HTML or in Markdown, as both write them where they mean nothing.
_PLAIN = str.maketrans({mark: f"&#{ord(mark)};" for mark in "&<>\"'\\`*_[]|~#"})


def plain(value: Any) -> Any:
    """A value as text that neither HTML nor Markdown reads anything into; what `table` and `figure` made stays.

    Example:
        >>> plain("P < N_0")
        Markup('P &#60; N&#95;0')
    """
    return value if hasattr(value, "__html__") else Markup(str(value).translate(_PLAIN))


def table(
    header: Sequence[Any], rows: Sequence[Sequence[Any]], caption: str = "", *, quiet: Sequence[int] = ()
) -> Markup:
    """A table; the first column holds the names of the rows.

    Arguments:
        header: one text per column.
        rows: rows of texts, as long as the header.
        quiet: numbers of the columns to set in grey, such as published values beside one's own.

    Example:
        >>> table(["N", "10"], [["accuracy", "96 %"]]).count("<td>")
        2
    """
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise fail(f"rows[{number}]", f"{len(row)} cells", f"{len(header)}, one per column of the header")
    kinds = [
        " ".join(["quiet"] * (column in quiet) + ["long"] * any(len(str(row[column])) > _LONG for row in rows))
        for column in range(len(header))
    ]
    classes = [f' class="{kind}"' if kind else "" for kind in kinds]

    def line(tag: str, cells: Sequence[Any]) -> str:
        name = tag.split()[0]
        return "".join(f"<{tag}{kind}>{_text(cell)}</{name}>" for kind, cell in zip(classes, cells, strict=True))

    body = "\n".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    below = f"<caption>{_text(caption)}</caption>" if caption else ""
    head = line('th scope="col"', header)
    return Markup(
        f'<div class="table"><table>{below}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'
    )


def render(
    template: str,
    values: Mapping[str, Any],
    images: Mapping[str, Path] | None = None,
    *,
    refresh: float | None = None,
) -> str:
    """The page of a template as HTML.

    Arguments:
        values: what the template inserts, by name.
        images: PNG or SVG files by the names that `figure` has for them; they are put into the page itself.
        refresh: seconds after which a browser loads the page again; by default never.

    Example:
        >>> page = render("# Title\\n\\n{{ lead }}", {"lead": "P < N"})
        >>> page[page.index("<h1>") : page.index("</main>")].split("\\n")[1]
        '<p class="lead">P &lt; N</p>'
    """
    environment = Environment(
        autoescape=True, finalize=plain, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= FILTERS

    def figure(name: str, alternative: str, caller: Callable[[], str]) -> Markup:
        file, caption = Path((images or {})[name]), " ".join(caller().split())
        size = f' style="min-width: {_READABLE * _inches(file):.0f}px"' if file.suffix == ".png" else ""
        picture = f'<div><img alt="{escape(alternative)}" src="{_data(file)}"{size}></div>'
        return Markup(f"<figure>{picture}<figcaption>{caption}</figcaption></figure>\n\n")

    def row(caller: Callable[[], str]) -> Markup:
        return Markup(f'<div class="row">\n\n{caller()}\n\n</div>\n\n')

    text = environment.from_string(template).render(**values, table=table, figure=figure, row=row)
    top, _, footer = text.partition("\n---\n")
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    markdown.add_render_rule("softbreak", lambda *_: " ")
    markdown.add_render_rule("table_open", lambda *_: '<div class="table"><table>\n')
    markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")
    body = markdown.render(top).replace("<p>", '<p class="lead">', 1)
    title = unescape(re.sub("<[^>]*>", "", body.partition("</h1>")[0]))
    parts = {"style": (_HERE / "page.css").read_text(), "body": body, "footer": markdown.renderInline(footer.strip())}
    whole = Environment(autoescape=True, keep_trailing_newline=True).from_string((_HERE / "page.html").read_text())
    return whole.render(title=title, refresh=refresh, **{name: Markup(part) for name, part in parts.items()})


def write_page(
    file: str | Path,
    template: str | Path,
    values: Mapping[str, Any],
    images: Mapping[str, Path] | None = None,
    *,
    refresh: float | None = None,
) -> Path:
    """Writes the page of a template file and returns its path; arguments as in `render`."""
    file, text = Path(file), Path(template).read_text(encoding="utf-8")
    file.parent.mkdir(parents=True, exist_ok=True)
    return write_safely(file, render(text, values, images, refresh=refresh))


def _text(cell: Any) -> str:
    return escape(" ".join(str(cell).split()))


def _inches(image: Path) -> float:
    """The width of a PNG that `figures.save` wrote, by its header."""
    with image.open("rb") as stream:
        return int.from_bytes(stream.read(20)[16:], "big") / 200


def _data(image: Path) -> str:
    if image.suffix not in _MEDIA_TYPES:
        raise fail("image", image.name, "a file that ends in " + " or ".join(_MEDIA_TYPES))
    return f"data:{_MEDIA_TYPES[image.suffix]};base64,{base64.b64encode(image.read_bytes()).decode()}"

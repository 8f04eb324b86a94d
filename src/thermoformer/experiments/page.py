"""One self-contained HTML page from text, tables and figures: nothing is fetched from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from .._files import write_safely
from .._validation import fail

_MEDIA_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}

_CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 60rem; color: #1c1c1c; background: #fff;
       font: 1.05rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .5rem; padding-top: 1rem; border-top: 1px solid #ddd; }
p { margin: .7rem 0; max-width: 46rem; }
p.lead { font-size: 1.1em; color: #444; }
figure { margin: 1.2rem 0; }
figure div, .table { overflow-x: auto; }
figure img { display: block; width: 100%; min-width: 38rem; height: auto; }
figcaption, caption { font-size: .9em; color: #444; text-align: left; padding: .4rem 0; max-width: 46rem; }
.table { margin: 1.2rem 0; }
.row { display: flex; flex-wrap: wrap; column-gap: 2.5rem; }
.row > * { min-width: 0; }
table { border-collapse: collapse; font-size: .9em; font-variant-numeric: tabular-nums; }
caption { caption-side: bottom; }
th, td { padding: .25rem .5rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e4e4; }
thead th { border-bottom: 2px solid #888; }
th:first-child, td:first-child { text-align: left; }
.quiet { color: #6e6e6e; }
dt { margin-top: .8rem; }
dd { margin: 0 0 0 1.2rem; color: #444; }
code { font: .95em ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; font-size: .85em; color: #6e6e6e; }
@media (max-width: 36rem) {
  th, td { padding: .25rem .3rem; }
  table { font-size: .8em; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  figure, .table { break-inside: avoid; }
  h2 { break-after: avoid; }
  figure div, .table { overflow: visible; }
  figure img { min-width: 0; }
  table { font-size: 8pt; }
  h1 { font-size: 16pt; }
  h2 { font-size: 12pt; }
}
"""


def heading(text: str) -> str:
    """A section heading."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    """A paragraph of plain text.

    Example:
        >>> paragraph("P < N")
        '<p>P &lt; N</p>'
    """
    return f"<p>{escape(text)}</p>"


def link(target: str, text: str) -> str:
    """A paragraph that leads to another page, by a path from this one.

    Example:
        >>> link("markov/markov.html", "More")
        '<p><a href="markov/markov.html">More</a></p>'
    """
    return f'<p><a href="{escape(target)}">{escape(text)}</a></p>'


def commands(pairs: Sequence[tuple[str, str]]) -> str:
    """Commands to type, each with what it does.

    Example:
        >>> commands([("make docs", "the documentation")])
        '<dl><dt><code>make docs</code></dt><dd>the documentation</dd></dl>'
    """
    rows = "".join(f"<dt><code>{escape(typed)}</code></dt><dd>{escape(does)}</dd>" for typed, does in pairs)
    return f"<dl>{rows}</dl>"


def figure(image: str | Path, caption: str, *, alternative: str) -> str:
    """A PNG or SVG file with a caption, put into the page itself.

    Arguments:
        image: path of the file. Each image is a document of its own, so ids inside SVG files cannot collide.
        alternative: what the figure shows, for readers who do not see it.
    """
    image = Path(image)
    if image.suffix not in _MEDIA_TYPES:
        raise fail("image", image.name, "a file that ends in " + " or ".join(_MEDIA_TYPES))
    data = base64.b64encode(image.read_bytes()).decode()
    source = f"data:{_MEDIA_TYPES[image.suffix]};base64,{data}"
    return (
        f'<figure><img alt="{escape(alternative)}" src="{source}"><figcaption>{escape(caption)}</figcaption></figure>'
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", *, quiet: Sequence[int] = ()) -> str:
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
    classes = [' class="quiet"' if column in quiet else "" for column in range(len(header))]
    head = "".join(f'<th scope="col"{kind}>{escape(cell)}</th>' for kind, cell in zip(classes, header, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(classes, row, strict=True)) + "</tr>"
        for row in rows
    )
    below = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="table"><table>{below}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def side_by_side(*parts: str) -> str:
    """Parts next to each other where there is room, else one under the other."""
    return f'<div class="row">{"".join(parts)}</div>'


def write_page(file: str | Path, title: str, lead: str, parts: Sequence[str], footer: str = "") -> Path:
    """Writes the page and returns its path.

    Arguments:
        title, lead, footer: plain texts.
        parts: what `heading`, `paragraph`, `figure`, `table` and `side_by_side` gave, in order.
    """
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    body = "\n".join(parts)
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_CSS}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
{body}
</main>
<footer>{escape(footer)}</footer>
</body>
</html>
"""
    return write_safely(file, text)

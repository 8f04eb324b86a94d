"""The page: self-contained, escaped, and strict about what it is given."""

from __future__ import annotations

import html
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import jinja2
import pytest

from thermoformer import figures
from thermoformer.experiments import page


class Links(HTMLParser):
    """Collects every address that a browser would fetch, and every script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.scripts += tag == "script"
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]


def assert_self_contained(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    links = Links(text)
    assert not links.scripts
    assert all(address.startswith("data:") for address in links.addresses)
    assert "@import" not in text and "url(" not in text


def assert_written(page: Path, figures: Sequence[str], tables: Sequence[str] = (), others: Sequence[str] = ()) -> None:
    """A run wrote its data, page, figures and tables, and nothing else but its sweep; the page stands alone."""
    expected = {f"{stem}.{end}" for stem in figures for end in ("png", "svg")} | {f"{stem}.csv" for stem in tables}
    expected |= {page.name, f"{page.stem}.nc", "sweep", *others}
    assert {file.name for file in page.parent.iterdir()} == expected
    assert_self_contained(page)


@pytest.fixture
def image(tmp_path) -> Path:
    file = tmp_path / "figure.svg"
    file.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    return file


TEMPLATE = """# Title {{ title }}

{{ lead }}

## Results

{% if lead %}
P < N_0 & so on,
{% endif %}
{{ text }} *twice*.

{% call figure("picture", 'What "it" shows') %}
A caption of {{ text }}
over two lines.
{% endcall %}

{% call row() %}
{{ table(["N", "10"], [["accuracy", 96], [text, ""]], "Below", quiet=[1]) }}

| a | b |
|---|---|
{% for one in [1, 2] %}
| {{ one }} | {{ text }} |
{% endfor %}

{% endcall %}
After.

---

Foot of {{ text }}.
"""
# Neither HTML nor Markdown may be read into what is inserted.
TEXT = "<b> a_b_c *d* | `e` [f](g) & 'h'"
SHOWN = "&lt;b&gt; a_b_c *d* | `e` [f](g) &amp; 'h'"


def test_page_holds_everything_itself(tmp_path, image):
    (tmp_path / "page.md").write_text(TEMPLATE)
    values = {"title": "<1>", "lead": "Lead", "text": TEXT}
    file = page.write_page(tmp_path / "deep" / "page.html", tmp_path / "page.md", values, {"picture": image})
    assert_self_contained(file)
    text = file.read_text(encoding="utf-8")
    assert "<title>Title &lt;1&gt;</title>" in text and "<h1>Title &lt;1&gt;</h1>" in text
    assert '<p class="lead">Lead</p>\n<h2>Results</h2>' in text
    assert f"<p>P &lt; N_0 &amp; so on, {SHOWN} <em>twice</em>.</p>" in text
    assert "What &quot;it&quot; shows" in text and text.count("<figure>") == text.count("</figure>") == 1
    assert html.unescape(text[text.index("<figcaption>") :]).startswith(
        f"<figcaption>A caption of {TEXT} over two lines.<"
    )
    assert '<td class="quiet">96</td>' in text and "<caption>Below</caption>" in text
    assert text.count('<div class="table">') == 2 and f"<td>{SHOWN}</td>" in text
    assert "<p>After.</p>\n</main>" in text and f"<footer>Foot of {SHOWN}.</footer>" in text
    assert 'name="viewport"' in text
    assert [other.name for other in file.parent.iterdir()] == ["page.html"], "no half-written file is left"


def test_a_wide_figure_scrolls_on_a_narrow_screen(tmp_path):
    figure, _ = figures.figure_grid(size=(10, 2))
    png, _ = figures.save(figure, tmp_path / "wide")
    template = "# T\n\nLead.\n\n{% call figure('wide', 'what') %}Caption.{% endcall %}"
    assert 'style="min-width: 640px"' in page.render(template, {}, {"wide": png})


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match=r"rows\[1\]: got 1 cells; expected 2, one per column"):
        page.table(["a", "b"], [["1", "2"], ["3"]])
    template = "# T\n\nLead.\n\n{% call figure('one', 'what') %}Caption.{% endcall %}"
    with pytest.raises(ValueError, match=r"image: got figure.gif; expected a file that ends in .svg or .png"):
        page.render(template, {}, {"one": tmp_path / "figure.gif"})
    with pytest.raises(jinja2.UndefinedError, match="'nobody' is undefined"):
        page.render("# T\n\n{{ nobody }}", {})

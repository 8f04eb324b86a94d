"""The page: self-contained, escaped, and strict about what it is given."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

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


@pytest.fixture
def image(tmp_path) -> Path:
    file = tmp_path / "figure.svg"
    file.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    return file


def test_page_holds_everything_itself(tmp_path, image):
    parts = [
        page.heading("Results"),
        page.paragraph("P < N & so on"),
        page.figure(image, "A caption", alternative='What "it" shows'),
        page.side_by_side(page.table(["N", "10"], [["accuracy", "96"]], "Below", quiet=[1])),
    ]
    file = page.write_page(tmp_path / "deep" / "page.html", "Title <1>", "Lead", parts, "Foot")
    assert_self_contained(file)
    text = file.read_text(encoding="utf-8")
    assert "<title>Title &lt;1&gt;</title>" in text
    assert "<p>P &lt; N &amp; so on</p>" in text
    assert "What &quot;it&quot; shows" in text
    assert '<td class="quiet">96</td>' in text
    assert 'name="viewport"' in text
    assert [other.name for other in file.parent.iterdir()] == ["page.html"], "no half-written file is left"


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match=r"rows\[1\]: got 1 cells; expected 2, one per column"):
        page.table(["a", "b"], [["1", "2"], ["3"]])
    with pytest.raises(ValueError, match=r"image: got figure.gif; expected a file that ends in .svg or .png"):
        page.figure(tmp_path / "figure.gif", "", alternative="")

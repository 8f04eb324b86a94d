from __future__ import annotations

import re
from pathlib import Path

import thermoformer
from thermoformer.citations import bibtex


def test_every_source_has_one_entry_with_author_title_and_year():
    entries = re.split(r"\n(?=@)", bibtex())
    keys = [re.match(r"@\w+\{([^,]+),", entry).group(1) for entry in entries]
    assert keys == [
        "thermoformer",
        "tiberi2024dissecting",
        "poclopez2024dynamical",
        "jax2018github",
        "kidger2021equinox",
        "phan2019composable",
        "benettin1980lyapunov",
        "michel2019sixteen",
    ]
    for entry in entries:
        for field in ("author", "title", "year"):
            assert len(re.findall(rf"^  {field} *= \{{.+", entry, re.MULTILINE)) == 1, (field, entry)


def test_braces_balance_and_the_papers_are_the_right_ones():
    text = bibtex()
    assert text.count("{") == text.count("}")
    assert "2405.15926" in text and "2406.07247" in text and "1905.10650" in text


def test_the_version_is_that_of_the_package():
    assert f"version = {{{thermoformer.__version__}}}" in bibtex()
    assert f"\nversion: {thermoformer.__version__}\n" in (Path(__file__).parents[1] / "CITATION.cff").read_text()

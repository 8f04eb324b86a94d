"""What to cite: the library, the papers whose theory it runs, and the software it stands on."""

from __future__ import annotations

from pathlib import Path

from . import __version__


def bibtex() -> str:
    """BibTeX entries of the library, the papers of both theories, and what else its results rest on.

    Example:
        >>> from thermoformer import bibtex
        >>> print(bibtex().splitlines()[0])
        @software{thermoformer,
    """
    entries = Path(__file__).with_suffix(".bib").read_text(encoding="utf-8")
    return entries.strip().replace("VERSION", __version__)

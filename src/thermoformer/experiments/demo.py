"""The first thing to run: the quick size of one experiment of each theory, on one page that says what comes next."""

from __future__ import annotations

import csv
from pathlib import Path

from .._progress import Progress, silent
from .listing import EXPERIMENTS

PARTS = ("markov", "orbit-diagram")


def run_demo(out: str | Path, *, progress: Progress | None = None) -> Path:
    """Runs the quick size of both experiments into folders of `out`; returns the path of the page about both.

    Arguments:
        out: folder for what is written; points finished there before are kept.
        progress: called as progress(done, total, message) along the way.
    """
    from .threads import within  # JAX, which the list of experiments does not wait for

    out, report = Path(out), progress or silent
    pages = {}
    for number, name in enumerate(PARTS):
        inside = within(report, number, len(PARTS), f"{name} ({number + 1} of {len(PARTS)})")
        pages[name] = EXPERIMENTS[name].run(out / name, quick=True, progress=inside)
    report(len(PARTS), len(PARTS), "page")
    return _write_page(out, pages)


def _write_page(out: Path, pages: dict[str, Path]) -> Path:
    from ..dynamics import REGIMES  # JAX, which the list of experiments does not wait for
    from .page import write_page

    accuracy = _rows(out / "markov" / "accuracy.csv", variant="4 paths", predictor="accuracy")
    regimes = _rows(out / "orbit-diagram" / "regimes.csv")
    counts = {name: sum(int(row["values"]) for row in regimes if row["regime"] == name) for name in REGIMES}
    values = {
        "accuracy": accuracy,
        "percents": [f"{float(row['mean_percent']):.1f}" for row in accuracy],
        "regimes": ", ".join(f"{count} {name}" for name, count in counts.items() if count),
        "pages": {name: file.relative_to(out).as_posix() for name, file in pages.items()},
    }
    images = {
        "accuracy": out / "markov" / "accuracy.png",
        "orbit_diagram": out / "orbit-diagram" / "orbit_diagram.png",
    }
    return write_page(out / "index.html", Path(__file__).with_name("demo.md"), values, images)


def _rows(file: Path, **wanted: str) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]

"""The first thing to run: the quick size of one experiment of each theory, on one page that says what comes next."""

from __future__ import annotations

import csv
from pathlib import Path

from .._progress import Progress, silent
from . import page
from ._registry import EXPERIMENTS

PARTS = ("markov", "orbit-diagram")

_NEXT = (
    ("thermoformer explore", "both theories in your browser, with sliders"),
    ("thermoformer reproduce", "the list of experiments; without --quick each runs at its full size"),
    ("thermoformer solve mine.npz --heads 4,4 --width 10 --temperature 0.01", "the theory of learning on your arrays"),
    ("thermoformer orbit features.txt --beta 1.27", "the dynamics of your own features"),
    ("thermoformer heads MODEL --task trec --prune 0.5 --out DIR", "which heads of a pretrained model to cut"),
    ("make docs", "tutorials, theory, gallery and every public name"),
)


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

    accuracy = _rows(out / "markov" / "accuracy.csv", variant="4 paths", predictor="accuracy")
    regimes = _rows(out / "orbit-diagram" / "regimes.csv")
    narrow, limit = accuracy[0], accuracy[-1]
    values = {name: sum(int(row["values"]) for row in regimes if row["regime"] == name) for name in REGIMES}
    seeds = narrow["seeds"]
    parts = [
        page.heading("Learning: a narrow network finds the good attention path"),
        page.figure(
            out / "markov" / "accuracy.png",
            f"Test accuracy against width, {seeds} draws of the task, one standard deviation either side.",
            alternative="Test accuracy falls with width towards that of the Gaussian process",
        ),
        page.paragraph(
            f"Four attention paths, one of them good. At width {narrow['width']} the network is right in "
            f"{_percent(narrow)} % of the test examples, at infinite width in {_percent(limit)} %: there, learning "
            "cannot change the order parameter between paths."
        ),
        page.table(
            ["width", *(row["width"].replace("inf", "∞") for row in accuracy)],
            [["accuracy in %", *(_percent(row) for row in accuracy)]],
        ),
        page.link(pages["markov"].relative_to(out).as_posix(), "All of this experiment"),
        page.heading("Dynamics: attention that reads its own output"),
        page.figure(
            out / "orbit-diagram" / "orbit_diagram.png",
            "Where the network ends, from hot to cold, with its Lyapunov exponents below.",
            alternative="Density of an overlap against β, with Lyapunov exponents and regimes below",
        ),
        page.paragraph(
            "Of the values of β in the diagram: "
            + ", ".join(f"{count} {name}" for name, count in values.items() if count)
            + "."
        ),
        page.link(pages["orbit-diagram"].relative_to(out).as_posix(), "All of this experiment"),
        page.heading("What to run next"),
        page.commands(_NEXT),
    ]
    return page.write_page(
        out / "index.html",
        "thermoformer: both theories, quick size",
        "The statistical mechanics of transformers that one can run: what a network of attention heads learns, and "
        "what attention does when it feeds on itself.",
        parts,
        "Quick sizes: the numbers of the full ones are in the documentation.",
    )


def _rows(file: Path, **wanted: str) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _percent(row: dict[str, str]) -> str:
    return f"{float(row['mean_percent']):.1f}"

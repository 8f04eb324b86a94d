"""The first thing to run: the quick size of one experiment of each theory, on one page that says what comes next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._progress import Progress, silent
from .listing import EXPERIMENTS

PARTS = ("markov", "orbit-diagram")


def run_demo(out: str | Path, *, progress: Progress | None = None) -> Path:
    """Runs the quick size of both experiments into folders of `out`; returns the path of the page about both.

    Arguments:
        out: folder for what is written; points finished there before are kept.
        progress: called as progress(done, total, message) along the way.
    """
    out, report = Path(out), progress or silent
    pages = {}
    for number, name in enumerate(PARTS):

        def inside(done: float, total: int, message: str, number: int = number, name: str = name) -> None:
            part = f"{name} ({number + 1} of {len(PARTS)})"
            report(number + done / max(total, 1), len(PARTS), f"{part}: {message}")

        pages[name] = EXPERIMENTS[name].run(out / name, quick=True, progress=inside)
    report(len(PARTS), len(PARTS), "page")
    return _write_page(out, pages)


def _write_page(out: Path, pages: dict[str, Path]) -> Path:
    # Slow imports, which the list of experiments does not wait for.
    import pandas as pd

    from ..dynamics import REGIMES
    from .page import write_page

    accuracy = pd.read_csv(out / "markov" / "accuracy.csv").query("variant == '4 paths' and predictor == 'accuracy'")
    counts: Any = pd.read_csv(out / "orbit-diagram" / "regimes.csv").groupby("regime")["values"].sum()
    values = {
        "accuracy": accuracy,
        "regimes": ", ".join(f"{counts[name]} {name}" for name in REGIMES if name in counts),
        "pages": {name: file.relative_to(out).as_posix() for name, file in pages.items()},
    }
    images = {
        "accuracy": out / "markov" / "accuracy.png",
        "orbit_diagram": out / "orbit-diagram" / "orbit_diagram.png",
    }
    return write_page(out / "index.html", Path(__file__).with_name("demo.md"), values, images)

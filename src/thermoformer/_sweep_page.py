"""The page of a sweep: a picture of what is there, which follows a sweep that grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._reports import sweep_report
from .experiments.page import write_page
from .figures import save, sweep_results
from .sweeps import SweepStore


def draw(store: SweepStore, result: str | None, stem: Path, every: float | None = None) -> Path:
    """Draws what is there, as PNG and SVG, and a page around it; returns the page.

    Arguments:
        stem: path of the files without their ending.
        every: seconds after which the page loads itself again, while the sweep grows.
    """
    figure = sweep_results(store.dataset(), result).figure
    _, picture = save(figure.get_figure(root=True), stem)  # type: ignore[arg-type]
    values = sweep_report(store) | {"time": time.strftime("%H:%M:%S")}
    template = Path(__file__).with_name("_sweep_page.md")
    return write_page(stem.with_suffix(".html"), template, values, {"sweep": picture}, refresh=every)


def follow(
    store: SweepStore, result: str | None, stem: Path, every: float, drawn: Callable[[Path, dict[str, Any]], None]
) -> Path:
    """Draws until the sweep is finished, or no process writes to it any more.

    Arguments:
        drawn: called with the page and the report after each drawing.
    """
    while True:
        report = sweep_report(store)
        last = not report["left"] or not report["writer"]
        page = draw(store, result, stem, None if last else every)
        drawn(page, report)
        if last:
            return page
        time.sleep(every)

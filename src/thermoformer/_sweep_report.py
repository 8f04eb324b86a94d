"""What the command line shows of a sweep: how far it is, why points failed, and a picture that follows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from ._plain import table_of_rows
from .experiments.page import write_page
from .figures import save, sweep_results
from .sweeps import SweepStore

# Errors that are shown one by one; more are counted.
MOST_ERRORS = 10


def sweep_report(store: SweepStore) -> dict[str, Any]:
    """How far a sweep is, as a plain dictionary."""
    description, survey, grid = store.description(), store.survey(), store.grid()
    status = survey.counts
    damage = {
        tuple(point.values()): text for number, text in survey.damage.items() for point in grid.task(number).points
    }
    runs = description.get("runs") or [{}]
    return {
        "function": description["function"],
        "created": description.get("created", ""),
        "grid": {name: len(values) for name, values in description["grid"].items()},
        "points": status.points,
        "done": status.done,
        "failed": status.failed,
        "left": status.left,
        "damaged": status.damaged,
        "seconds": round(status.seconds, 3),
        "executor": runs[-1].get("executor", ""),
        "devices": runs[-1].get("devices", []),
        "writer": store.writer(),
        "errors": _listed(survey.errors),
        "damage": _listed(damage),
    }


def _listed(texts: Mapping[tuple[Any, ...], str]) -> list[dict[str, Any]]:
    """Points with the last line of what is said about them."""
    return [{"point": list(point), "error": (text.strip().splitlines() or [""])[-1]} for point, text in texts.items()]


def sweep_tables(report: dict[str, Any]) -> Iterator[Table]:
    """The report for a screen."""
    axes = " × ".join(f"{count} {name}" for name, count in report["grid"].items())
    each = report["seconds"] / max(report["done"] + report["failed"], 1)
    damage = {"damaged": f"{report['damaged']}; the next run computes them again"} if report["damaged"] else {}
    lines = {
        "function": report["function"],
        "grid": f"{axes} = {report['points']} points",
        "done": f"{report['done']} ({100 * report['done'] / report['points']:.1f} %)",
        "failed": report["failed"],
        "left": report["left"],
        **damage,
        "time": f"{report['seconds']:.4g} s of work, {each:.3g} s per point",
        "ran on": ", ".join([report["executor"], *report["devices"]]).strip(", ") or "nothing yet",
        "now": f"{report['writer']} is writing" if report["writer"] else "nobody is writing",
    }
    yield table_of_rows(("", ""), lines.items(), show_header=False)
    for what, title in (("errors", "error"), ("damage", "damaged")):
        rows = [(*map(str, one["point"]), one["error"]) for one in report[what]]
        if len(rows) > MOST_ERRORS:
            rows[MOST_ERRORS:] = [(*("…" for _ in report["grid"]), f"{len(rows) - MOST_ERRORS} more")]
        if rows:
            yield table_of_rows((*report["grid"], title), rows)


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
    """Draws again and again until the sweep is finished, or nobody writes to it any more.

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

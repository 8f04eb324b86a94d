"""What the command line shows of a sweep: how far it is, why points failed, and a picture that follows it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from rich.table import Table

from .figures import save, sweep_results
from .sweeps import SweepStore, errors_of, status_of

# Errors that are shown one by one; more are counted.
MOST_ERRORS = 10


def sweep_report(store: SweepStore) -> dict[str, Any]:
    """How far a sweep is, as a plain dictionary."""
    description, status = store.description(), status_of(store)
    errors = [
        {"point": list(point), "error": text.strip().splitlines()[-1] if text.strip() else ""}
        for point, text in errors_of(store).items()
    ]
    runs = description.get("runs") or [{}]
    return {
        "function": description["function"],
        "created": description.get("created", ""),
        "grid": {name: len(values) for name, values in description["grid"].items()},
        "points": status.points,
        "done": status.done,
        "failed": status.failed,
        "left": status.left,
        "seconds": round(status.seconds, 3),
        "executor": runs[-1].get("executor", ""),
        "devices": runs[-1].get("devices", []),
        "writer": store.writer(),
        "errors": errors,
    }


def sweep_tables(report: dict[str, Any]) -> Iterator[Table]:
    """The report for a screen."""
    table = Table(show_header=False)
    axes = " × ".join(f"{count} {name}" for name, count in report["grid"].items())
    each = report["seconds"] / max(report["done"] + report["failed"], 1)
    for name, text in (
        ("function", report["function"]),
        ("grid", f"{axes} = {report['points']} points"),
        ("done", f"{report['done']} ({100 * report['done'] / report['points']:.1f} %)"),
        ("failed", str(report["failed"])),
        ("left", str(report["left"])),
        ("time", f"{report['seconds']:.4g} s of work, {each:.3g} s per point"),
        ("ran on", ", ".join([report["executor"], *report["devices"]]).strip(", ") or "nothing yet"),
        ("now", f"{report['writer']} is writing" if report["writer"] else "nobody is writing"),
    ):
        table.add_row(name, text)
    yield table
    if report["errors"]:
        failed = Table(*report["grid"], "error")
        for one in report["errors"][:MOST_ERRORS]:
            failed.add_row(*(str(value) for value in one["point"]), one["error"])
        more = len(report["errors"]) - MOST_ERRORS
        if more > 0:
            failed.add_row(*("…" for _ in report["grid"]), f"{more} more")
        yield failed


def draw(store: SweepStore, result: str | None, stem: Path, every: float | None = None) -> Path:
    """Draws what is there, as PNG and SVG, and a page around it; returns the page.

    Arguments:
        stem: path of the files without their ending.
        every: seconds after which the page loads itself again, while the sweep grows.
    """
    figure = sweep_results(store.dataset(), result).figure
    _, picture = save(figure.get_figure(root=True), stem)  # type: ignore[arg-type]
    report = sweep_report(store)
    again = f'<meta http-equiv="refresh" content="{every:g}">' if every else ""
    text = f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8">{again}<title>{escape(str(report["function"]))}</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 1.5rem auto; padding: 0 1rem; }}
svg {{ width: 100%; height: auto; }}</style></head>
<body><p>{escape(str(report["function"]))}: <b>{report["done"]}</b> of {report["points"]} points done,
{report["failed"]} failed, {report["left"]} left; drawn {time.strftime("%H:%M:%S")}.</p>
{picture.read_text("utf-8").partition("<svg")[1] + picture.read_text("utf-8").partition("<svg")[2]}
</body></html>
"""
    page = stem.with_suffix(".html")
    part = page.with_name(f".{page.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, page)
    return page


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

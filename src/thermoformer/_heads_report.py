"""A pruned pretrained transformer as tables for the screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table


def heads_tables(record: dict[str, Any]) -> Iterator[Table]:
    """The model before and after, and, where methods were compared, each of them."""
    from .experiments.heads import before_and_after

    header, rows, caption = before_and_after(record)
    summary = Table(*header, title=f"{record['class']}, {record['task']}, {record['method']}", caption=caption or None)
    for row in rows:
        summary.add_row(*row)
    yield summary
    if "curves" not in record:
        return
    counts = sorted({row["removed"] for row in record["curves"]})
    accuracy = record["measure"] == "accuracy"
    title = f"Test {record['measure']}{' in %' if accuracy else ''} without so many heads"
    compared = Table("method", *map(str, counts), title=title)
    for name in dict.fromkeys(row["method"] for row in record["curves"]):
        means = [row["mean"] for row in record["curves"] if row["method"] == name]
        compared.add_row(name, *(f"{100 * mean:.1f}" if accuracy else f"{mean:.4g}" for mean in means))
    yield compared

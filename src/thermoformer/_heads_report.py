"""A pruned pretrained transformer as tables for the screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from ._plain import table_of_rows


def heads_tables(record: dict[str, Any]) -> Iterator[Table]:
    """The model before and after, and, where methods were compared, each of them."""
    from .experiments.heads import before_and_after

    header, rows, caption = before_and_after(record)
    title = f"{record['class']}, {record['task']}, {record['method']}"
    yield table_of_rows(header, rows, title, caption=caption or None)
    if "curves" not in record:
        return
    counts = sorted({row["removed"] for row in record["curves"]})
    accuracy = record["measure"] == "accuracy"
    compared = []
    for name in dict.fromkeys(row["method"] for row in record["curves"]):
        means = [row["mean"] for row in record["curves"] if row["method"] == name]
        compared.append((name, *(f"{100 * mean:.1f}" if accuracy else f"{mean:.4g}" for mean in means)))
    title = f"Test {record['measure']}{' in %' if accuracy else ''} without so many heads"
    yield table_of_rows(("method", *map(str, counts)), compared, title)

"""Results as plain values for JSON, and as tables for a screen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Numbers, strings, lists and dictionaries alone; what is not finite is none."""
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    value = np.asarray(value).tolist()
    if isinstance(value, list):
        return plain(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cell(value: Any) -> str:
    """One value in a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


def table_of_rows(
    header: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None, **options: Any
) -> Any:
    """A table of rich; options are those of its `Table`. Cells are shown as they are: brackets name no styles."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, title=title, **options)
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    return table


def table_of_values(
    values: Mapping[str, Any],
    title: str | None = None,
    header: Sequence[str] = ("quantity", "value"),
    **options: Any,
) -> Any:
    """A table with one value per line, under its name; options as in `table_of_rows`."""
    rows = ((name.replace("_", " "), value) for name, value in values.items())
    return table_of_rows(header, rows, title, **options)

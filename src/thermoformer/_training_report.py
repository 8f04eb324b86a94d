"""A trained network as tables for the screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from ._plain import table_of_rows, table_of_values


def training_tables(record: dict[str, Any]) -> Iterator[Table]:
    """How the training went, and the accuracies of the network that was saved."""
    names = ("steps", "best_step", "stopped", "parameters", "machine", "precision", "augmentation")
    summary = {name: record[name] for name in names}
    summary |= {name: f"{record[name]:.4f}" for name in ("training_loss", "validation_loss")}
    yield table_of_values(summary, header=("training", ""))
    meaning = {"validation": "validation characters", "test": "test characters"}
    rows = []
    for name, accuracy in record["accuracy"].items():
        count = record["sequences"][name]
        shown = meaning.get(name, f"{name}, class 0 or 1 (out of distribution)")
        # Sequences are drawn independently, so the count of right ones is binomial.
        deviation = (accuracy * (1 - accuracy) / count) ** 0.5
        rows.append((shown, f"{100 * accuracy:.1f} ± {100 * deviation:.1f} %", count))
    yield table_of_rows(("images", "accuracy", "sequences"), rows)

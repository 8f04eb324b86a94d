"""A trained network as tables for the screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table


def training_tables(record: dict[str, Any]) -> Iterator[Table]:
    """How the training went, and the accuracies of the network that was saved."""
    summary = Table("training", "")
    for name in ("steps", "best_step", "stopped", "parameters", "machine", "precision", "augmentation"):
        summary.add_row(name.replace("_", " "), str(record[name]))
    for name in ("training_loss", "validation_loss"):
        summary.add_row(name.replace("_", " "), f"{record[name]:.4f}")
    yield summary
    accuracies = Table("images", "accuracy", "sequences")
    meaning = {"validation": "validation characters", "test": "test characters"}
    for name, accuracy in record["accuracy"].items():
        count = record["sequences"][name]
        shown = meaning.get(name, f"{name}, class 0 or 1 (out of distribution)")
        # Sequences are drawn independently, so the count of right ones is binomial.
        deviation = (accuracy * (1 - accuracy) / count) ** 0.5
        accuracies.add_row(shown, f"{100 * accuracy:.1f} ± {100 * deviation:.1f} %", str(count))
    yield accuracies

"""Heads removed from a pretrained transformer, put on paper: figures, tables and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from .. import figures
from .._files import csv_writer
from ..figures.heads import METHOD_LABELS
from ..learning import HeadScores
from ..transformers.families import Head
from . import page, store

_MEANING = {
    "evidence": "log evidence lost without the head",
    "evidence_exact": "log evidence lost without the head, each removed in turn",
    "theory": "U of the head's path",
    "gradient": "mean |slope of the loss| in the head's mask",
    "gradient_by_layer": "mean |slope of the loss|, divided by its norm in the layer",
    "magnitude": "norm of the head's values times its output weights",
    "ablation": "loss gained without the head",
}
_GOALS = {
    "probe": "accuracy of a linear probe on its features, which learns from the examples that heads were scored with",
    "classifier": "accuracy of its own head for classes",
    "language": "perplexity on the end of the text, which heads were not scored with",
}


def write_report(
    record: dict[str, Any], scores: HeadScores, removed: Sequence[Head], curves: xr.Dataset | None, out: Path
) -> Path:
    """Figures (PNG and SVG), the curves (netCDF and CSV) where there are any, and the page; returns its path."""
    label = _MEANING.get(record["method"], "score of the head")
    drawn: dict[str, Any] = {"scores": figures.head_score_map(scores, removed=removed, label=label).figure}
    if curves is not None:
        store.save(curves, out / "curves.nc", "")
        _write_curves(record, out / "curves.csv")
        drawn["curves"] = figures.head_pruning_curves(curves).figure
    images = {name: figures.save(figure, out / name)[1] for name, figure in drawn.items()}
    parts = [
        page.heading("Before and after"),
        page.paragraph(_story(record)),
        page.table(*before_and_after(record)),
        page.heading("Which heads"),
        page.figure(
            images["scores"],
            f"Scores of the whole model's heads by {record['method']}: {label}. Crossed out: removed. Layer 0 is "
            "nearest the input. Colours follow the rank of a score." + _again(record),
            alternative="Map of scores over layers and heads, with the removed heads crossed out",
        ),
    ]
    if curves is not None:
        parts += _comparison(record, curves, images["curves"])
    files = "scores.csv, order.csv, record.json" + (", curves.nc, curves.csv" if curves is not None else "")
    return page.write_page(
        out / "heads.html",
        f"{_name(record)} without {len(record['removed'])} of its {record['heads']} heads",
        f"Task {record['task']}; heads chosen by {record['method']}; nothing trained.",
        parts,
        f"thermoformer {record['version']}, seed {record['seed']}. The smaller model: folder pruned; data: {files}; "
        "figures: PNG and SVG, all beside this page.",
    )


def before_and_after(record: dict[str, Any]) -> tuple[list[str], list[list[str]], str]:
    """Header, rows and caption of the table of the model with all heads and without some."""
    before, after = record["before"], record["after"]
    left = record["heads"] - len(record["removed"])
    rows = [
        ["heads", str(record["heads"]), str(left), change(record["heads"], left)],
        [
            "parameters",
            f"{before['parameters']:,}",
            f"{after['parameters']:,}",
            change(before["parameters"], after["parameters"]),
        ],
    ]
    caption = ""
    if record["measure"] == "accuracy":
        cells = [
            f"{100 * one['accuracy']:.1f} ± {100 * binomial_error(one['accuracy'], record['test_examples']):.1f} %"
            for one in (before, after)
        ]
        lost = 100 * (after["accuracy"] - before["accuracy"])
        rows.append(["test accuracy", *cells, f"{lost:+.1f} points".replace("-", "−")])
        caption = f"± is the binomial error of {record['test_examples']} test examples."
    else:
        values = [one["perplexity"] for one in (before, after)]
        rows.append(["test perplexity", *(f"{value:.4g}" for value in values), change(*values)])
    if "examples_per_second" in before:
        values = [one["examples_per_second"] for one in (before, after)]
        rows.append(["examples per second", *(f"{value:.4g}" for value in values), change(*values)])
    return ["", "before", "after", "change"], rows, caption


def change(before: float, after: float) -> str:
    """By how much, in percent.

    Example:
        >>> change(200, 150), change(4, 5)
        ('−25.0 %', '+25.0 %')
    """
    return f"{100 * (after / before - 1):+.1f} %".replace("-", "−")


def binomial_error(accuracy: float, examples: int) -> float:
    """The standard error of a share of examples told right."""
    return (accuracy * (1 - accuracy) / examples) ** 0.5


def _story(record: dict[str, Any]) -> str:
    return (
        f"{record['class']} ({record['family']}) from {record['model']}. Heads were scored with {record['examples']} "
        f"examples, and the model was judged with {record['test_examples']} others: {_GOALS[record['goal']]}. The "
        "removed heads are cut out of the weights, and no weight was trained before or after."
    )


def _again(record: dict[str, Any]) -> str:
    if not record["scored_again"]:
        return ""
    return " Heads were scored again as they went, so that those removed are not simply the lowest of this map."


def _name(record: dict[str, Any]) -> str:
    return Path(record["model"]).name or record["model"]


def _comparison(record: dict[str, Any], curves: xr.Dataset, image: Path) -> list[str]:
    measure, counts = record["measure"], curves.removed.values.tolist()
    by_method: dict[str, list[str]] = {}
    for row in record["curves"]:
        by_method.setdefault(row["method"], []).append(_cell(row, measure))
    draws = curves.sizes["seed"]
    caption = f"Test {measure}{' in %' if measure == 'accuracy' else ''}, mean" + (
        f" ± standard error of {draws} draws of {record['examples']} examples to score with."
        if draws > 1
        else f" of one draw of {record['examples']} examples to score with."
    )
    rows = [[METHOD_LABELS.get(name, name), *cells] for name, cells in by_method.items()]
    first = next(iter(by_method))
    cut = f"Models without the heads that the first draw's order of {METHOD_LABELS.get(first, first)} removes."
    sizes = [["parameters", *(f"{count:,}" for count in curves.parameters.values)]]
    if "examples_per_second" in curves:
        sizes.append(["examples per second", *(f"{speed:.4g}" for speed in curves.examples_per_second.values)])
    return [
        page.heading("Against other ways to choose"),
        page.figure(
            image,
            f"Test {measure} as heads go, chosen by each method. Thick lines: ours; grey: what others do.",
            alternative=f"Test {measure} against the share of heads removed, one line per method",
        ),
        page.table(["heads removed", *map(str, counts)], rows, caption),
        page.table(["heads removed", *map(str, counts)], sizes, cut),
    ]


def _cell(row: dict[str, Any], measure: str) -> str:
    scale, form = (100, ".1f") if measure == "accuracy" else (1, ".4g")
    error = "" if row["error"] is None else f" ± {scale * row['error']:{'.1f' if scale == 100 else '.2g'}}"
    return f"{scale * row['mean']:{form}}{error}"


def _write_curves(record: dict[str, Any], file: Path) -> None:
    with csv_writer(file) as writer:
        writer.writerow(["method", "removed", f"{record['measure']}_mean", "standard_error"])
        for row in record["curves"]:
            error = "" if row["error"] is None else f"{row['error']:.6g}"
            writer.writerow([row["method"], row["removed"], f"{row['mean']:.6g}", error])

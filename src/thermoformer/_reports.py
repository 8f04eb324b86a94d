"""What the command line shows of results: plain dictionaries, printed as JSON, and tables of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from ._plain import plain, table_of_rows, table_of_values

# Packages are imported by the functions that need them: each command waits for its own alone.
if TYPE_CHECKING:
    from .arrays import Arrays
    from .dynamics import MeanField, Orbit, Regime
    from .learning import Solution
    from .sweeps import SweepStore

# What a solution is summed up by.
_SUMMARY = ("action", "energy", "entropy", "log_evidence", "converged")
# A matrix of more columns does not fit on a screen; its diagonal does, and the JSON report has all of it.
LARGEST_TABLE = 16
# Rows of an orbit that are shown on a screen.
FIRST_ROWS = 8
# Errors of a sweep that are shown one by one; more are counted.
MOST_ERRORS = 10


def solution_report(arrays: Arrays, solution: Solution) -> dict[str, Any]:
    """A solution and its predictions as numbers, strings, lists and dictionaries; what is not finite is none."""
    from .learning import head_scores

    arch = solution.architecture
    scores = head_scores(arch, solution.order_parameter)
    report: dict[str, Any] = {
        "architecture": {"heads": arch.heads, "widths": arch.widths, "variances": arch.variances},
        "temperature": solution.temperature,
        "examples": arrays.features.examples,
        "notes": arrays.notes,
        **{name: getattr(solution, name) for name in _SUMMARY},
        "stats": asdict(solution.stats),
        "paths": arch.path_names(),
        "order_parameter": solution.order_parameter,
        "head_scores": [
            {"layer": layer, "head": head, "score": score}
            for (layer, head), score in zip(scores.labels, scores.values, strict=True)
        ],
    }
    if arrays.test_features is not None:
        prediction = solution.predict(arrays.test_features)
        numbers: dict[str, Any] = {"mean": prediction.mean, "variance": prediction.variance}
        if arrays.test_labels is not None:
            numbers["bias"] = prediction.bias(arrays.test_labels)
            # Accuracy is of classes ±1; other labels are numbers to be met.
            if np.isin(arrays.test_labels, (-1, 1)).all():
                numbers["accuracy"] = prediction.accuracy(arrays.test_labels)
        report["prediction"] = numbers
    return plain(report)


def solution_tables(report: dict[str, Any]) -> Iterator[Table]:
    """The report of `solution_report` as tables for a screen."""
    summary = {name: report[name] for name in _SUMMARY}
    tested = report.get("prediction", {})
    summary |= report["stats"] | {f"test {name}": tested[name] for name in ("bias", "accuracy") if name in tested}
    yield table_of_values(summary, "Solution", caption="; ".join(report["notes"]) or None)
    paths, matrix = report["paths"], report["order_parameter"]
    if len(paths) <= LARGEST_TABLE:
        rows = ((path, *row) for path, row in zip(paths, matrix, strict=True))
        yield table_of_rows(("path", *paths), rows, "Order parameter U")
    else:
        rows = ((path, matrix[index][index]) for index, path in enumerate(paths))
        yield table_of_rows(("path", "U"), rows, "Diagonal of U")
    scores = (row.values() for row in report["head_scores"])
    counted = "layers and heads are counted from 0"
    yield table_of_rows(("layer", "head", "score"), map(list, scores), "Head scores", caption=counted)


def orbit_report(model: MeanField, orbit: Orbit, transient: int) -> dict[str, Any]:
    """Statistics of the overlaps m_o, feature by feature, their first rows, and the final window."""
    m_o = orbit.m_o
    return plain(
        {
            "settings": settings_of(model),
            "steps": len(m_o),
            "transient": transient,
            "features": [
                {
                    "feature": number + 1,
                    "average": column.mean(),
                    "deviation": column.std(),
                    "lowest": column.min(),
                    "highest": column.max(),
                }
                for number, column in enumerate(m_o.T)
            ],
            "first": m_o[:FIRST_ROWS],
            "final_window": {"A": orbit.final_state.A, "positions": orbit.final_state.positions},
        }
    )


def orbit_tables(report: dict[str, Any]) -> Iterator[Table]:
    """The report of `orbit_report` as tables for a screen."""
    steps, transient, features = report["steps"], report["transient"], report["features"]
    rows = (list(row.values()) for row in features)
    yield table_of_rows(list(features[0]), rows, f"Overlaps m_o over {steps} steps after {transient}")
    first = ((transient + number, *row) for number, row in enumerate(report["first"]))
    yield table_of_rows(("step", *(f"m_o {row['feature']}" for row in features)), first, "First rows")


def regime_report(model: MeanField, verdict: Regime) -> dict[str, Any]:
    """The verdict on an orbit with its exponents; an exponent lost to rounding is none."""
    return plain(
        {
            "settings": settings_of(model),
            "regime": verdict.name,
            "period": verdict.period,
            "reason": verdict.reason,
            "steps": verdict.steps,
            "verdicts": [{"steps": steps, "regime": name} for steps, name in verdict.changes],
            "exponents": [
                {"exponent": number + 1, "value": value, "error": error}
                for number, (value, error) in enumerate(zip(verdict.exponents, verdict.errors, strict=True))
            ],
        }
    )


def regime_tables(report: dict[str, Any]) -> Iterator[Table]:
    """The report of `regime_report` as tables for a screen."""
    yield table_of_values({name: report[name] for name in ("regime", "period", "reason", "steps")}, "Regime")
    rows = (
        (row["exponent"], "lost to rounding" if row["value"] is None else row["value"], row["error"])
        for row in report["exponents"]
    )
    yield table_of_rows(("exponent", "value", "error"), rows, "Lyapunov exponents per step")


def settings_of(model: MeanField) -> dict[str, Any]:
    """The parameters of a map and its context."""
    return dict(model.parameters) | {"context": model.context}


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
    title = f"Test {record['measure']}{' in %' if accuracy else ''} by heads removed"
    yield table_of_rows(("method", *map(str, counts)), compared, title)

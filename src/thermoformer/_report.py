"""What the command line shows of a solution: one plain dictionary, printed as JSON or as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from ._plain import plain, table_of_rows, table_of_values
from .arrays import Arrays
from .learning import Solution, head_scores

# A matrix of more columns does not fit on a screen; its diagonal does, and the JSON report has all of it.
LARGEST_TABLE = 16


def solution_report(arrays: Arrays, solution: Solution) -> dict[str, Any]:
    """A solution and its predictions as numbers, strings, lists and dictionaries; what is not finite is none."""
    arch = solution.architecture
    scores = head_scores(arch, solution.order_parameter)
    report: dict[str, Any] = {
        "architecture": {"heads": arch.heads, "widths": arch.widths, "variances": arch.variances},
        "temperature": solution.temperature,
        "examples": arrays.features.examples,
        "action": solution.action,
        "energy": solution.energy,
        "entropy": solution.entropy,
        "log_evidence": solution.log_evidence,
        "converged": solution.converged,
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
    summary = {name: report[name] for name in ("action", "energy", "entropy", "log_evidence", "converged")}
    tested = report.get("prediction", {})
    summary |= report["stats"] | {f"test {name}": tested[name] for name in ("bias", "accuracy") if name in tested}
    yield table_of_values(summary, "Solution")
    paths, matrix = report["paths"], report["order_parameter"]
    if len(paths) <= LARGEST_TABLE:
        rows = ((path, *row) for path, row in zip(paths, matrix, strict=True))
        yield table_of_rows(("path", *paths), rows, "Order parameter U")
    else:
        rows = ((path, matrix[index][index]) for index, path in enumerate(paths))
        yield table_of_rows(("path", "U"), rows, "Diagonal of U")
    scores = (row.values() for row in report["head_scores"])
    yield table_of_rows(("layer", "head", "score"), map(list, scores), "Head scores")

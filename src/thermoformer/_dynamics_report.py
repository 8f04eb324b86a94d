"""What the command line reads and shows of attention dynamics: features in, plain dictionaries and tables out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ._files import open_file, read_netcdf, write_netcdf
from ._plain import plain, table_of_rows, table_of_values
from ._validation import check_memory, fail
from .dynamics import Features, MeanField, Orbit, Regime, Window

PAPER = "paper"
# Rows of an orbit that are shown on a screen.
FIRST_ROWS = 8
# Features that are known by correlations only have no tokens to start from: they start from this value everywhere.
_SMALL_START = 0.1
_ZIP = b"PK"
_HDF5 = b"\x89HDF\r\n\x1a\n"
# Arrays of the size of a window that a step of the map takes, at most.
_COPIES = 16
# At a million steps per second these take eleven days.
MOST_STEPS = 10**12


def read_features(file: str) -> Features:
    """Features from a file, an npz archive or a table of signs by what is in it; `paper` for the paper's own."""
    if file == PAPER:
        return Features.paper()
    expected = "an npz file or a table of signs, or the word paper"
    with open_file(file, name="features", expected=expected) as stream:
        beginning = stream.read(len(_ZIP))
    return Features.load(file) if beginning == _ZIP else Features.from_table(Path(file))


def mean_field(file: str, **settings: Any) -> tuple[MeanField, Window]:
    """The mean-field map of the features in a file, and a start: the window that its first pattern of o leads to."""
    features = read_features(file)
    if (context := settings.get("context")) is not None:
        numbers = max(context, 0) * features.heads * features.count
        check_memory("context", context, 8 * _COPIES * numbers)
    model = MeanField(features, **settings)
    if features.columns is not None:
        return model, model.window()
    assert model.context is not None
    return model, model.window(np.full((model.context, features.count), _SMALL_START))


def check_sizes(model: MeanField, *, kept: int = 0, directions: int = 0, **steps: int) -> None:
    """Refuses runs that cannot end, or that do not fit into memory.

    Arguments:
        kept: rows of an orbit that are kept.
        directions: tangents that are followed, for Lyapunov exponents.
        steps: numbers of steps, by the name of their option.
    """
    for name, count in steps.items():
        if count > MOST_STEPS:
            raise fail(name, count, f"at most {MOST_STEPS}")
    features, context = model.features, model.context or 1
    row = features.heads * (context + 4 * features.count)
    # Three times: in pieces, as one array, and as the file that is being written.
    check_memory("steps", kept, 3 * 8 * kept * row)
    check_memory("context", context, 8 * _COPIES * directions * model.dimension)


def orbit_report(model: MeanField, orbit: Orbit, transient: int) -> dict[str, Any]:
    """Statistics of the overlaps m_o, feature by feature, their first rows, and the final window."""
    m_o = orbit.m_o
    return plain(
        {
            "settings": _settings(model),
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


def refuse_no_orbit(file: Path) -> None:
    """Refuses to write over a file that `write_orbit` did not write."""
    if not os.path.lexists(file):
        return
    error = fail("out", f"{file}, which is not an orbit of this command", "a new file, or an orbit to replace")
    with open_file(file, name="out", expected="a new file, or an orbit to replace") as stream:
        if stream.read(len(_HDF5)) != _HDF5:
            raise error
    found = read_netcdf(file, name="out")
    if "m_o" not in found or "transient" not in found.attrs:
        raise error


def write_orbit(model: MeanField, orbit: Orbit, transient: int, file: Path) -> None:
    """The whole orbit as netCDF, with the settings as attributes; folders that are missing are made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    attributes = _settings(model) | {"transient": transient}
    write_netcdf(orbit.to_xarray().assign_attrs(attributes), file)


def regime_report(model: MeanField, verdict: Regime) -> dict[str, Any]:
    """The verdict on an orbit with its exponents; an exponent lost to rounding is none."""
    return plain(
        {
            "settings": _settings(model),
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


def _settings(model: MeanField) -> dict[str, Any]:
    return dict(model.parameters) | {"context": model.context}

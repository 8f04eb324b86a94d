"""What the experiments on dynamics share: the paper's network and start, and diagrams computed part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from .._progress import Progress
from .._validation import fail, real_array
from ..dynamics import Features, MeanField, Window, orbit
from . import store

PAPER = "Poc-López, Aguilera, Dynamical mean-field theory of self-attention neural networks, arXiv 2406.07247"
GAMMA, EPSILON = 220.0, 0.02
# What the reference runs of the paper's system found: where the 4-cycle of the positions loses its stability, and the
# multipliers of its four steps there.
NEIMARK_SACKER, NEIMARK_SACKER_MULTIPLIER = 1.2434445478, 0.05063 + 0.99872j


def paper_model(beta: float, gamma: float = GAMMA, epsilon: float = EPSILON) -> MeanField:
    """The mean-field map of the paper's features."""
    return MeanField(Features.paper(), beta=beta, gamma=gamma, epsilon=epsilon)


def paper_start(beta: float, steps: int, gamma: float = GAMMA, epsilon: float = EPSILON) -> Window:
    """The paper's rule: the final window of a long orbit at the largest β, itself begun from the first pattern of o."""
    model = paper_model(beta, gamma, epsilon)
    return orbit(model, model.token(), steps=1, transient=steps).final_state


def check_numbers(record: Any, names: Sequence[str]) -> None:
    """The named fields of a config are finite numbers, ε in [0, 1]."""
    for name in names:
        value = float(real_array(name, getattr(record, name), ()))
        if name == "epsilon" and not 0 <= value <= 1:
            raise fail(name, value, "a number from 0 to 1")


def usual_parts(parts: int) -> int:
    """So many parts on a CPU, where each takes a while; one on an accelerator, which a whole diagram just fills."""
    return parts if jax.default_backend() == "cpu" else 1


def in_parts(
    values: np.ndarray,
    axis: str,
    compute: Callable[[np.ndarray, Progress], xr.Dataset],
    *,
    parts: int,
    file: Path | None,
    config_hash: str,
    progress: Progress,
) -> xr.Dataset:
    """A diagram along an axis, computed part by part; finished parts are on disk, and a run goes on from them.

    Arguments:
        values: all values of the axis.
        compute: the diagram of some of the values.
        parts: how many, as equal as can be. Parts may be cut differently in every run: what counts is which values
            there are.
        file, config_hash: where finished values are kept, and for which config.
        progress: called with thousandths of the whole.
    """
    found = store.load(file, config_hash) if file is not None else None
    missing = values if found is None else values[~np.isin(values, found[axis].values)]
    for piece in np.array_split(missing, max(min(parts, len(missing)), 1)) if len(missing) else []:
        # Part of the whole that was there before this piece.
        before = 0 if found is None else int(np.isin(values, found[axis].values).sum())

        def report(done: int, total: int, message: str, before: int = before, size: int = len(piece)) -> None:
            share = (before + size * done / max(total, 1)) / len(values)
            progress(int(1000 * share), 1000, f"{before} of {len(values)} values of {axis} done; {message}")

        report(0, 1, "compiling")
        one = compute(piece, report)
        attributes = one.attrs
        found = one if found is None else xr.concat([found, one], axis, data_vars="minimal", combine_attrs="override")
        found = found.sortby(axis).assign_attrs(attributes)
        if file is not None:
            store.save(found, file, config_hash)
    assert found is not None  # there is at least one value
    return found.sel({axis: values})

"""Experiments that scan parameters, as sweeps: resumed from their folder, in this process or on a cluster."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from .._progress import Progress
from .._validation import fail, nonnegative_integer, positive_integer, positive_number
from ..sweeps import Sweep, SweepStore
from ..sweeps.store import JSON_ATTRIBUTES, TEXT_ATTRIBUTES
from .listing import HERE, Executor

Config = TypeVar("Config")


def record_of(config: Any, **same: Any) -> dict[str, Any]:
    """A config as JSON has it.

    Arguments:
        same: fields that do not change the numbers of any point, with the values they shall have in every record.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     widths: tuple[int, ...] = (1, 2)
        ...     seeds: int = 5
        >>> record_of(Config(), seeds=1)
        {'widths': [1, 2], 'seeds': 1}
    """
    return json.loads(json.dumps(dataclasses.asdict(dataclasses.replace(config, **same))))


def config_of(kind: type[Config], record: Mapping[str, Any]) -> Config:
    """The config that `record_of` was given; lists become the tuples that they were.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     widths: tuple[int, ...] = ()
        >>> config_of(Config, {"widths": [1, 2]})
        Config(widths=(1, 2))
    """
    return kind(**{name: _with_tuples(value) for name, value in record.items()})


def _with_tuples(value: Any) -> Any:
    return tuple(_with_tuples(entry) for entry in value) if isinstance(value, list) else value


def check_fields(
    config: Any,
    *,
    positive: Sequence[str] = (),
    nonnegative: Sequence[str] = (),
    above_zero: Sequence[str] = (),
    ascending: Mapping[str, str] | None = None,
) -> None:
    """Refuses a config with bad fields.

    Arguments:
        positive, nonnegative: fields that are whole numbers, from 1 or from 0 on.
        above_zero: fields that are numbers above 0.
        ascending: fields that are whole numbers from 1 on in ascending order, each with what an entry is called.

    Example:
        >>> from types import SimpleNamespace
        >>> check_fields(SimpleNamespace(widths=(30, 10)), ascending={"widths": "width"})
        Traceback (most recent call last):
        thermoformer.InputError: widths: got (30, 10); expected at least one width, in ascending order
    """
    for name in positive:
        positive_integer(name, getattr(config, name))
    for name in nonnegative:
        nonnegative_integer(name, getattr(config, name))
    for name, noun in (ascending or {}).items():
        values = getattr(config, name)
        if not values or list(values) != sorted({positive_integer(name, value) for value in values}):
            raise fail(name, values, f"at least one {noun}, in ascending order")
    for name in above_zero:
        positive_number(name, getattr(config, name))


def swept(
    function: Callable[..., Any],
    axes: Mapping[str, Sequence[Any]],
    folder: Path | None,
    *,
    config: Mapping[str, Any],
    executor: Executor = HERE,
    batch: int | Mapping[str, int] = 1,
    vectorised: bool = False,
    progress: Progress,
) -> xr.Dataset:
    """A Dataset of the function over the axes, in memory; points that are in the folder already are not run again.

    Arguments:
        function: of a module, called with a value of each axis and the config.
        axes: the values asked for, by name. The folder may hold others too, and gains those that are missing.
        folder: where the sweep is kept; nowhere where absent. One with another config is set aside, and says so.
        config: what decides the numbers, as `record_of` gives it.
        batch, vectorised: as in `Sweep`; a folder keeps the batch that it was made with.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as scratch:
            given = {"config": config, "executor": executor, "batch": batch, "vectorised": vectorised}
            return swept(function, axes, Path(scratch) / "sweep", progress=progress, **given)
    everything, batch = _with_what_is_there(folder, axes, batch)
    fixed = {"config": config}
    made = {"fixed": fixed, "vectorised": vectorised, "allow_nan": True}
    sweep = Sweep(function, everything, folder, batch=batch, **made)
    if changed := [name for name in sweep.changes() if name != "grid"]:
        _set_aside(sweep.store, changed)
        sweep = Sweep(function, axes, folder, batch=batch, **made)
    # Points that failed were stopped by an error that has been mended since, or it is raised again.
    found = sweep.run(
        executor.name, workers=executor.workers, cluster=executor.cluster, only=axes, retry=True, progress=progress
    )
    chosen = found.sel({name: list(values) for name, values in axes.items()})
    # Others may have failed when they were asked for.
    errors = {
        point: text
        for point, text in sweep.errors().items()
        if all(value in values for value, values in zip(point, axes.values(), strict=True))
    }
    if errors:
        point, text = next(iter(errors.items()))
        where = ", ".join(f"{name} = {value}" for name, value in zip(axes, point, strict=True))
        raise RuntimeError(f"{len(errors)} of {chosen.status.size} points failed, the first at {where}:\n{text}")
    chosen = sweep.store.with_own_types(chosen.drop_vars(["status", "seconds"]).load())
    # The strings of zarr, as netCDF and NumPy have them.
    texts = {
        name: one.copy(data=np.array(one.values.tolist(), str).reshape(one.shape))
        for name, one in chosen.variables.items()
        if one.dtype.kind == "T"
    }
    return chosen.assign(texts).drop_attrs(deep=False).assign_attrs(_own_attributes(found))


def _with_what_is_there(folder: Path, axes: Mapping[str, Sequence[Any]], batch: Any) -> tuple[dict[str, list], Any]:
    """The axes of a folder with new values at their ends, and its batch."""
    store = SweepStore(folder)
    asked = {name: np.asarray(values).tolist() for name, values in axes.items()}
    if not store.exists():
        return asked, batch
    there = store.description()
    if list(there["grid"]) != list(asked):
        return asked, batch
    grid = {name: old + [one for one in asked[name] if one not in old] for name, old in there["grid"].items()}
    return grid, there["batch"]


def _set_aside(store: SweepStore, changed: list[str]) -> None:
    there = store.description()
    name = hashlib.sha256(json.dumps([there.get(name) for name in sorted(changed)]).encode()).hexdigest()[:8]
    aside = store.folder.with_name(f"{store.folder.name}-{name}")
    number = 1
    while aside.exists():
        number += 1
        aside = store.folder.with_name(f"{store.folder.name}-{name}-{number}")
    os.replace(store.folder, aside)
    what = "settings" if "fixed" in changed else ", ".join(changed)
    warnings.warn(f"{store.folder} holds a run with other {what}: kept as {aside.name}, starting anew", stacklevel=4)


def _own_attributes(dataset: xr.Dataset) -> dict[str, Any]:
    """What the function said about its results, without what the store says."""
    return {name: value for name, value in dataset.attrs.items() if name not in (*JSON_ATTRIBUTES, *TEXT_ATTRIBUTES)}

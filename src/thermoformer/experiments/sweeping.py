"""Experiments that scan parameters, as sweeps: resumed from their folder, in this process or on a cluster."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np
import xarray as xr

from .._progress import Progress, silent
from .._validation import fail, nonnegative_integer, one_number, positive_integer, positive_number
from ..sweeps import Sweep, SweepStore
from ..sweeps.store import JSON_ATTRIBUTES, TEXT_ATTRIBUTES
from .listing import HERE, Executor

Config = TypeVar("Config")


def record_of(config: Any, **same: Any) -> dict[str, Any]:
    """A config as JSON has it.

    Arguments:
        same: fields that do not change the numbers of any point, with the values they shall have in every record.
    """
    return json.loads(json.dumps(dataclasses.asdict(dataclasses.replace(config, **same))))


def config_of(kind: type[Config], record: Mapping[str, Any]) -> Config:
    """The config that `record_of` was given; lists become the tuples that they were."""
    return kind(**{name: _with_tuples(value) for name, value in record.items()})


def _with_tuples(value: Any) -> Any:
    return tuple(_with_tuples(entry) for entry in value) if isinstance(value, list) else value


def check_fields(
    config: Any,
    *,
    nonnegative: Collection[str] = (),
    above_zero: Collection[str] = (),
    shares: Collection[str] = (),
    ascending: Mapping[str, str] | None = None,
) -> None:
    """Refuses a config with bad fields. What a field may be follows from its type, and from the names given here.

    A whole number is 1 or more, a seed 0 or more; a number is finite; two numbers are a lower and a higher one. Fields
    that are None are not checked.

    Arguments:
        nonnegative: fields that are whole numbers from 0 on.
        above_zero: fields that are numbers above 0.
        shares: fields that are numbers from 0 to 1.
        ascending: fields that are numbers above 0 in ascending order, each with what an entry is called; a seed may
            be 0.
    """
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if value is None:
            continue
        if name == "seed" or name in nonnegative:
            nonnegative_integer(name, value)
        elif kind in (int, int | None):
            positive_integer(name, value)
        elif name in above_zero:
            positive_number(name, value)
        elif kind is float:
            if not 0 <= one_number(name, value) <= 1 and name in shares:
                raise fail(name, value, "a number from 0 to 1")
        elif kind == tuple[float, float] and not (np.isfinite(value).all() and value[0] < value[1]):
            raise fail(name, value, "a lower and a higher number")
        elif ascending and name in ascending:
            whole = nonnegative_integer if ascending[name] == "seed" else positive_integer
            check = whole if kind == tuple[int, ...] else positive_number
            if not value or list(value) != sorted({check(name, entry) for entry in value}):
                raise fail(name, value, f"at least one {ascending[name]}, in ascending order")


@dataclass(frozen=True)
class Workspace:
    """Where a run keeps its numbers, where its points run, and what it reports to.

    Fields:
        folder: for sweeps and files; None keeps nothing.
        executor: where points run.
        progress: called as progress(done, total, message).
    """

    folder: Path | None = None
    executor: Executor = HERE
    progress: Progress = silent

    def part(self, name: str) -> Workspace:
        """The same in a folder of this folder."""
        return dataclasses.replace(self, folder=None if self.folder is None else self.folder / name)

    def sweep(
        self,
        function: Callable[..., Any],
        axes: Mapping[str, Sequence[Any]],
        config: Mapping[str, Any],
        *,
        batch: int | Mapping[str, int] = 1,
        vectorised: bool = False,
    ) -> xr.Dataset:
        """A Dataset of the function over the axes, in memory; points that are in the folder already are not run again.

        A folder with another config is set aside, with a warning.

        Arguments:
            function: of a module, called with a value of each axis and the config.
            axes: the values asked for, by name. The folder may hold others too, and gains those that are missing.
            config: what decides the numbers, as `record_of` gives it.
            batch, vectorised: as in `Sweep`; a folder keeps the batch that it was made with.
        """
        if self.folder is None:
            with tempfile.TemporaryDirectory() as scratch:
                kept = dataclasses.replace(self, folder=Path(scratch) / "sweep")
                return kept.sweep(function, axes, config, batch=batch, vectorised=vectorised)
        everything, batch = _with_what_is_there(self.folder, axes, batch)
        made = {"fixed": {"config": config}, "vectorised": vectorised, "allow_nan": True}
        sweep = Sweep(function, everything, self.folder, batch=batch, **made)
        if changed := [name for name in sweep.changes() if name != "grid"]:
            _set_aside(sweep.store, changed)
            sweep = Sweep(function, axes, self.folder, batch=batch, **made)
        # Points that failed were stopped by an error that has been corrected since, or it is raised again.
        where = {"workers": self.executor.workers, "cluster": self.executor.cluster, "progress": self.progress}
        found = sweep.run(self.executor.name, only=axes, retry=True, **where)
        chosen = found.sel({name: list(values) for name, values in axes.items()})
        # Points that were not asked for now may have failed earlier.
        errors = {
            point: text
            for point, text in sweep.errors().items()
            if all(value in values for value, values in zip(point, axes.values(), strict=True))
        }
        if errors:
            point, text = next(iter(errors.items()))
            place = ", ".join(f"{name} = {value}" for name, value in zip(axes, point, strict=True))
            raise RuntimeError(f"{len(errors)} of {chosen.status.size} points failed, the first at {place}:\n{text}")
        chosen = sweep.store.with_own_types(chosen.drop_vars(["status", "seconds"]).load())
        # The strings of zarr, as netCDF and NumPy have them.
        texts = {
            name: one.copy(data=np.array(one.values.tolist(), str).reshape(one.shape))
            for name, one in chosen.variables.items()
            if one.dtype.kind == "T"
        }
        # What the function said about its results, without what the store says.
        own = {name: value for name, value in found.attrs.items() if name not in (*JSON_ATTRIBUTES, *TEXT_ATTRIBUTES)}
        return chosen.assign(texts).drop_attrs(deep=False).assign_attrs(own)


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
    mark = hashlib.sha256(json.dumps([there.get(name) for name in sorted(changed)]).encode()).hexdigest()[:8]
    aside = store.folder.with_name(f"{store.folder.name}-{mark}")
    number = 1
    while aside.exists():
        number += 1
        aside = store.folder.with_name(f"{store.folder.name}-{mark}-{number}")
    os.replace(store.folder, aside)
    what = "settings" if "fixed" in changed else ", ".join(changed)
    warnings.warn(f"{store.folder} holds a run with other {what}: kept as {aside.name}, starting anew", stacklevel=4)

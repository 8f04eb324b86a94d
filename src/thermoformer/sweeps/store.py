"""Where a sweep lives: a folder with one zarr group, a description, and the errors of points that failed.

A task is one chunk of every array. Chunks are written to a side file and renamed, and the chunk of `status` comes last:
whatever happens in between, a task is either done or as if it had never run. One process writes at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from .._validation import fail
from .grid import Grid, Task
from .work import PointResult

TO_DO, DONE, FAILED = 0, 1, 2
# Raise it when the layout of the folder changes.
FORMAT = 1
# Names that the store uses itself.
RESERVED = ("status", "seconds")


class StoreError(ValueError):
    """A folder that does not hold this sweep, or is in use."""


class SweepStore:
    """The folder of a sweep.

    Arguments:
        folder: where; made by `create`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._grid: Grid | None = None
        self._opened: dict[str, Any] = {}
        self._results: dict[str, Any] = {}

    @property
    def description_file(self) -> Path:
        """The JSON file that says what the sweep is."""
        return self.folder / "sweep.json"

    @property
    def data(self) -> Path:
        """The zarr group."""
        return self.folder / "data.zarr"

    def exists(self) -> bool:
        """Whether there is a sweep here."""
        return self.description_file.exists()

    def description(self) -> dict[str, Any]:
        """What the sweep is, as its JSON file says."""
        try:
            found = json.loads(self.description_file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise StoreError(f"store: got {self.folder}; expected a folder with a sweep in it") from error
        except (OSError, ValueError) as error:
            raise StoreError(f"store: got {self.description_file}, which cannot be read ({error})") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT or "grid" not in found:
            raise StoreError(f"store: got {self.description_file}; expected a sweep of format {FORMAT}")
        return found

    def grid(self) -> Grid:
        """The grid of the sweep, which never changes."""
        if self._grid is None:
            found = self.description()
            self._grid = Grid(found["grid"], found["batch"])
        return self._grid

    def create(self, description: Mapping[str, Any], grid: Grid) -> None:
        """A new folder with nothing done yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        others = [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]
        if others and not self._half_made(others):
            raise StoreError(f"store: got {self.folder}, which holds {others[0]}; expected an empty folder or a sweep")
        group = zarr.open_group(self.data, mode="w")
        for name, values in grid.axes.items():
            array = group.create_array(name, shape=values.shape, dtype=values.dtype, dimension_names=(name,))
            array[:] = values
        given = {"shape": grid.shape, "chunks": grid.chunks, "dimension_names": grid.names}
        group.create_array("status", dtype="int8", fill_value=TO_DO, **given)
        group.create_array("seconds", dtype="float64", fill_value=np.nan, **given)
        self.rewrite(description)  # last: a folder without it has nothing in it

    def rewrite(self, description: Mapping[str, Any]) -> None:
        """Writes the JSON file whole."""
        part = self.description_file.with_name(".sweep.json.part")
        part.write_text(json.dumps({"format": FORMAT, **description}, indent=2, ensure_ascii=False), encoding="utf-8")
        os.replace(part, self.description_file)

    def status(self) -> np.ndarray:
        """Of every point: 0 to do, 1 done, 2 failed."""
        return np.asarray(self._group("r")["status"][:])

    def write(self, task: Task, results: Sequence[PointResult], axes: Mapping[str, tuple[str, ...]]) -> int:
        """Writes a finished task, and returns how many of its points failed.

        Arguments:
            results: one per chosen point; the other points of the task stay as they are.
            axes: names of the axes of what the function returns, by name; others are named after the result.
        """
        good = [result for result in results if not result.error]
        if good and not self._results:
            self._make_results(good[0].values, axes)
        errors = {}
        for number, result in zip(task.chosen, results, strict=True):
            if error := result.error or self._misfit(result.values):
                errors[number] = error
        values = {number: result for number, result in zip(task.chosen, results, strict=True) if number not in errors}
        for name, array in self._results.items():
            self._write_block(array, task, {number: result.values[name] for number, result in values.items()})
        self._write_block(
            self._array("seconds"), task, dict(zip(task.chosen, (one.seconds for one in results), strict=True))
        )
        self._write_errors(task, errors)
        codes = {number: FAILED if number in errors else DONE for number in task.chosen}
        self._write_block(self._array("status"), task, codes)
        return len(errors)

    def _write_block(self, array: Any, task: Task, values: Mapping[int, Any]) -> None:
        """One chunk: the given points anew, the others as they were."""
        if not values:
            return
        inner = array.shape[len(task.region) :]
        region = (*task.region, *(slice(None) for _ in inner))
        if len(values) == len(task.points):
            block = np.stack([np.asarray(values[number], array.dtype) for number in range(len(task.points))])
        else:
            block = np.array(array[region]).reshape(len(task.points), *inner)
            for number, value in values.items():
                block[number] = value
        array[region] = block.reshape(*(1 for _ in task.region[:-1]), len(task.points), *inner)

    def errors(self) -> dict[int, dict[int, str]]:
        """Why points failed, by task and number of the point in it."""
        found = {}
        for file in sorted((self.folder / "errors").glob("*.json")):
            try:
                found[int(file.stem)] = {int(at): text for at, text in json.loads(file.read_text("utf-8")).items()}
            except (OSError, ValueError):  # it is being replaced: the next look finds it
                continue
        return found

    def dataset(self) -> xr.Dataset:
        """All that is there, read when it is used; what is not done yet has the fill value, and `status` 0."""
        description = self.description()
        opened = xr.open_zarr(self.data, consolidated=False, chunks=None)
        kept = {name: json.dumps(description[name]) for name in ("versions", "fixed") if name in description}
        for name in ("function", "seed", "revision", "device", "created"):
            kept[name] = str(description.get(name, ""))
        return opened.assign_attrs(kept)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the folder for this process; refused while another has it. A process that dies lets go."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise StoreError(
                    f"store: got {self.folder}, which {holder} is writing to; expected it to be free"
                ) from error
            file.truncate(0)
            began = time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(f"process {os.getpid()} on {socket.gethostname()} (since {began})")
            file.flush()
            yield

    def _group(self, mode: Any) -> Any:
        try:
            return zarr.open_group(self.data, mode=mode)
        except (FileNotFoundError, KeyError, ValueError) as error:
            raise StoreError(f"store: got {self.data}, which cannot be read as zarr ({error})") from error

    def _array(self, name: str) -> Any:
        """An array for writing, opened once."""
        if name not in self._opened:
            self._opened[name] = self._group("r+")[name]
        return self._opened[name]

    def begin(self) -> None:
        """Looks up which results there are already, before anything is written."""
        own = {*RESERVED, *self.grid().names}
        group = self._group("r+")
        self._opened = {}
        # Without a point that is done, arrays of results may be half made: they are made anew.
        finished = bool((np.asarray(group["status"][:]) == DONE).any())
        self._results = {name: group[name] for name in group if name not in own} if finished else {}

    def _make_results(self, values: Mapping[str, np.ndarray], axes: Mapping[str, tuple[str, ...]]) -> None:
        """Makes the arrays of the results, when the first of them come."""
        grid, group = self.grid(), self._group("r+")
        for name, value in values.items():
            if name in RESERVED or name in grid.names:
                raise fail("function", f"a result named {name!r}", "another name: the store has its own of this name")
            named = axes.get(name, tuple(f"{name}_{number}" for number in range(value.ndim)))
            if len(named) != value.ndim:
                raise fail(f"axes[{name!r}]", named, f"{value.ndim} names, one per axis of the result")
            self._results[name] = group.create_array(
                name,
                shape=(*grid.shape, *value.shape),
                chunks=(*grid.chunks, *(max(size, 1) for size in value.shape)),
                dtype=value.dtype,
                fill_value=np.nan if value.dtype.kind in "fc" else 0,
                dimension_names=(*grid.names, *named),
                overwrite=True,
            )

    def _misfit(self, values: Mapping[str, np.ndarray]) -> str:
        """Why results do not fit those of other points; empty where they do."""
        axes = len(self.grid().shape)
        if set(values) != set(self._results):
            return f"ValueError: returned {sorted(values)}; other points returned {sorted(self._results)}"
        for name, value in values.items():
            array = self._results[name]
            if array.shape[axes:] != value.shape or array.dtype != value.dtype:
                other = f"{array.dtype}{array.shape[axes:]}"
                return f"ValueError: {name}: returned {value.dtype}{value.shape}; other points returned {other}"
        return ""

    def _write_errors(self, task: Task, errors: Mapping[int, str]) -> None:
        file = self.folder / "errors" / f"{task.number:08d}.json"
        if not errors:
            file.unlink(missing_ok=True)  # all points of the task that had failed were chosen
            return
        file.parent.mkdir(exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        part.write_text(json.dumps(errors, ensure_ascii=False), encoding="utf-8")
        os.replace(part, file)

    def _half_made(self, names: Sequence[str]) -> bool:
        """Whether a run was killed while it made this folder: nothing but an empty group."""
        return set(names) <= {self.data.name}

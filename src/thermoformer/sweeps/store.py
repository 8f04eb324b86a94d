"""The folder of a sweep: one zarr group, a description, and the errors of points that failed.

A task is one chunk of every array, and the chunk of `status` is written last: whatever happens in between, a task is
either done or as if it had never run. One process writes at a time.

The description is one file, which is replaced as a whole, and names all arrays. What else other readers of zarr need is
written from it at the beginning of every run. All files show when they are damaged or missing (see `chunks`); the next
run discards a task with a damaged file and computes it again. Folders of format 1, which had no checksums, are read,
and become folders of format 2 when a run continues them.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from .._files import write_safely
from .._locks import lock_holder, locked
from .._validation import fail
from .chunks import (
    BY_HAND,
    DONE,
    FAILED,
    GROUP,
    TO_DO,
    CheckedFiles,
    StoreError,
    array_metadata,
    chunk_key,
    damaged,
    is_over_grid,
    read_file,
    sealed,
    unsealed,
)
from .first_format import first_arrays
from .grid import RESERVED, Grid, Task, check_stored_name
from .work import PointResult

# Never written: what `SweepStore.survey` calls points with a damaged file.
DAMAGED = 3
# Raise it when the layout of the folder changes. Format 1 had no checksums.
FORMAT = 2
# An earlier version put the group here for the moment in which a larger one took its place.
ASIDE = ".data.zarr.old"
# Attributes of the Dataset that come from the description: as JSON, and as text.
JSON_ATTRIBUTES, TEXT_ATTRIBUTES = ("versions", "fixed", "runs"), ("function", "seed", "revision", "created")
# Entries of the description that are read later, and their types.
_FIELDS: dict[str, Any] = {
    "function": str,
    "grid": dict,
    "batch": (int, dict),
    "seed": int,
    "fixed": dict,
    "vectorised": bool,
    "allow_nan": bool,
    "axes": dict,
}


@dataclass(frozen=True)
class SweepStatus:
    """How far a sweep is.

    Fields:
        points, done, failed: how many points there are, are done, and have failed.
        seconds: what the finished ones took, all together.
        damaged: points whose files are damaged or missing; the next run computes them again.
    """

    points: int
    done: int
    failed: int
    seconds: float
    damaged: int = 0

    @property
    def left(self) -> int:
        """Points that are still to run, also again because of damage."""
        return self.points - self.done - self.failed


@dataclass(frozen=True)
class Survey:
    """What a thorough look at the files of a sweep found.

    Fields:
        status: of every point: 0 to do, 1 done, 2 failed, 3 damaged.
        seconds: what every point took; NaN if it has not run or is damaged.
        errors: why points failed, by their values in the order of the grid.
        damage: what is wrong with a file of a task, by number of the task.
    """

    status: np.ndarray
    seconds: np.ndarray
    errors: dict[tuple[Any, ...], str]
    damage: dict[int, str]

    @property
    def counts(self) -> SweepStatus:
        """How many points are done, have failed and are damaged."""
        done, failed, broken = (int((self.status == code).sum()) for code in (DONE, FAILED, DAMAGED))
        return SweepStatus(self.status.size, done, failed, float(np.nansum(self.seconds)), broken)


class SweepStore:
    """The folder of a sweep.

    Arguments:
        folder: where; made by `prepare`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.description_file = self.folder / "sweep.json"
        # Set by `begin`, for writing: all arrays but the axes of the grid, and what is known of coordinates of results.
        self._files: CheckedFiles | None = None
        self._arrays: dict[str, zarr.Array] = {}
        self._results: list[str] = []
        self._coordinates: dict[str, np.ndarray] = {}

    @property
    def data(self) -> Path:
        """The zarr group."""
        usual, aside = self.folder / "data.zarr", self.folder / ASIDE
        return aside if aside.exists() and not usual.exists() else usual

    def exists(self) -> bool:
        """Whether there is a sweep here."""
        return self.description_file.exists()

    def description(self) -> dict[str, Any]:
        """What the sweep is, as its JSON file says."""
        file = self.description_file
        read = unsealed(file, BY_HAND)
        if read is None and self.data.exists():
            raise damaged(file, "it is missing", BY_HAND)
        if read is None:
            raise StoreError("store", self.folder, "a folder with a sweep in it")
        found, has_checksum = read
        if found.get("format") not in (1, FORMAT):
            raise StoreError("store", f"{file} of format {found.get('format')!r}", f"format 1 or {FORMAT}")
        if not has_checksum and found["format"] == FORMAT:
            raise damaged(file, "it has no checksum", BY_HAND)
        for name, kind in _FIELDS.items():
            if not isinstance(found.get(name), kind):
                raise damaged(file, f"{name!r} is missing or of another type", BY_HAND)
        runs = found.get("runs", [])
        records = [*found["fixed"].values(), *(runs if isinstance(runs, list) else [None])]
        records += [found.get(name, {}) for name in ("versions", "bound", "arrays")]
        lists = all(isinstance(one, list) for one in found["axes"].values())
        if not lists or not all(isinstance(one, dict) for one in records):
            raise damaged(file, "it has entries of another type", BY_HAND)
        return found

    def grid(self) -> Grid:
        """The grid of the sweep."""
        return self._grid_of(self.description())

    def _grid_of(self, description: Mapping[str, Any]) -> Grid:
        try:
            return Grid(description["grid"], description["batch"])
        except ValueError as error:
            raise damaged(self.description_file, str(error), BY_HAND) from error

    def _read(self) -> tuple[dict[str, Any], Grid, dict[str, Any]]:
        """The description, the grid, and the zarr.json of every array by name; that of the group has no name."""
        description = self.description()
        grid = self._grid_of(description)
        arrays = first_arrays(self.data, grid) if description["format"] == 1 else description["arrays"]
        return description, grid, {name: _with_grid(name, record, grid) for name, record in arrays.items()}

    def prepare(self, description: Mapping[str, Any]) -> None:
        """Makes the folder of a sweep, or brings one that is there to another description.

        Arguments:
            description: of a new sweep, or of the one that is there, perhaps with more values at the ends of the axes.
        """
        grid = self._grid_of(description)
        if self.exists():
            there, _, arrays = self._read()
        else:
            self._refuse_other_files()
            there, arrays = {}, {"": GROUP}
            arrays["status"] = array_metadata("int8", grid.shape, grid.chunks, grid.names)
            arrays["seconds"] = array_metadata("float64", grid.shape, grid.chunks, grid.names, np.nan)
        arrays = {name: _with_grid(name, record, grid) for name, record in arrays.items()}
        for name, values in grid.axes.items():
            line = array_metadata(values.dtype, values.shape, values.shape, (name,))
            arrays[name] = line | {"attributes": arrays.get(name, line)["attributes"]}
        if there.get("format") == 1:
            for file in (self.folder / "errors").glob("*.json"):
                record, _ = unsealed(file) or ({}, False)
                write_safely(file, sealed(record, file), name="store")
        description = {**description, "format": FORMAT, "arrays": arrays}
        if description != there:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.rewrite(description)
        if self.data.name == ASIDE:
            os.rename(self.data, self.folder / "data.zarr")
        self._write_metadata(arrays)
        self._write_axes(grid, arrays)

    def _refuse_other_files(self) -> None:
        """Refuses a folder with other files to make a sweep in; a run may have been killed as it made this one."""
        names = [path.name for path in self.folder.glob("[!.]*")]
        if names and (names != [self.data.name] or (self.data / "status" / "c").exists()):
            raise StoreError("store", f"{self.folder}, which holds {names[0]}", "an empty folder or a sweep")

    def _write_metadata(self, arrays: Mapping[str, Any]) -> None:
        """The files `zarr.json`, for other readers, where they are missing or damaged."""
        for name, record in arrays.items():
            file = self.data / name / "zarr.json"
            try:
                same = json.loads(read_file(file) or b"") == record
            except (ValueError, RecursionError):
                same = False
            if not same:
                _remove(file)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(json.dumps(record).encode())
        there = {path.name for path in self.data.iterdir()}
        if absent := [name for name in arrays if name and name not in there]:  # "A" beside "a", on some file systems
            raise StoreError("store", f"{self.data}, which cannot hold {absent[0]!r}", "names that differ by more")

    def _write_axes(self, grid: Grid, arrays: Mapping[str, Any]) -> None:
        """The values of the axes, for other readers, where they are missing or damaged."""
        files = CheckedFiles(self.data, {name: arrays[name] for name in grid.names}, grid, read_only=False)
        for name, values in grid.axes.items():
            array = files.array(name)
            try:
                same = np.array_equal(array[:], values)
            except ValueError:  # it is damaged, or it has the length from before the axis grew
                same = False
            if not same:
                _remove(self.data / name / "c")
                files.write(name, (0,), values)

    def rewrite(self, description: Mapping[str, Any]) -> None:
        """Replaces the JSON file."""
        write_safely(self.description_file, sealed(description, self.description_file), name="store")

    def _status(self, grid: Grid, arrays: Mapping[str, Any]) -> np.ndarray:
        codes = np.asarray(CheckedFiles(self.data, arrays, grid).array("status")[...])
        if not np.isin(codes, (TO_DO, DONE, FAILED)).all():
            raise damaged(self.data / "status", "it holds other values than 0, 1 and 2")
        return codes

    def survey(self) -> Survey:
        """Reads and verifies every file of every task."""
        description, grid, arrays = self._read()
        over_grid = {name: record for name, record in arrays.items() if name and is_over_grid(name, record)}
        damage: dict[int, str] = {}
        files = CheckedFiles(self.data, arrays, grid)
        for task in grid:
            keys = {name: chunk_key(name, over_grid[name], task.place) for name in RESERVED}
            try:
                for key in keys.values():
                    files.content(key)
            except StoreError as error:
                damage[task.number] = str(error)
                files.ignored.update(keys.values())
        status, seconds = (np.array(files.array(name)[...]) for name in RESERVED)
        files = CheckedFiles(self.data, arrays, grid, status)
        errors: dict[tuple[Any, ...], str] = {}
        for task in grid:
            codes = status[task.region]
            try:
                if not np.isin(codes, (TO_DO, DONE, FAILED)).all():  # format 1 alone
                    raise damaged(self.data / "status", "it holds other values than 0, 1 and 2")
                if (codes != TO_DO).any():
                    for name, record in over_grid.items():
                        if 0 not in record["shape"]:
                            files.content(chunk_key(name, record, task.place))
                errors |= self._read_errors(task, codes, description["format"] > 1)
            except StoreError as error:
                damage[task.number] = str(error)
        for name in arrays:
            if name and name not in over_grid and name not in grid.names:
                try:
                    files.array(name)[:]
                except StoreError as error:  # any task that is done computes the coordinates of results again
                    first = next((task for task in grid if (status[task.region] == DONE).any()), None)
                    if first is not None:
                        damage[first.number] = str(error)
        for number in damage:
            status[grid.task(number).region] = DAMAGED
        return Survey(status, np.where(np.isin(status, (DONE, FAILED)), seconds, np.nan), errors, damage)

    def begin(self) -> np.ndarray:
        """Opens the folder for writing, after `prepare`, and returns the status of every point.

        Discards tasks with a damaged file, with a warning, so that they are to do again.
        """
        _, grid, arrays = self._read()
        found = self.survey()
        for number in found.damage:
            self._discard(grid.task(number), arrays)
        if found.damage:
            count, first = int((found.status == DAMAGED).sum()), next(iter(found.damage.values()))
            warnings.warn(f"{count} points are damaged and will be computed again; the first: {first}", stacklevel=4)
        status = np.where(found.status == DAMAGED, TO_DO, found.status)
        # Without a point that is done, the next result decides about the arrays: they are made anew.
        known = [name for name in arrays if name and name not in grid.names] if (status == DONE).any() else RESERVED
        self._coordinates = {}
        self._results = [name for name in known if name not in RESERVED and is_over_grid(name, arrays[name])]
        self._files = CheckedFiles(self.data, arrays, grid, read_only=False)
        self._arrays = {name: self._files.array(name) for name in known}
        for name in set(known) - {*RESERVED, *self._results}:
            try:
                self._coordinates[name] = np.asarray(self._arrays[name][:])
            except StoreError:  # the next result writes them again
                continue
        return status

    def _discard(self, task: Task, arrays: Mapping[str, Any]) -> None:
        """Makes a task as if it had never run."""
        names = [name for name, record in arrays.items() if name and is_over_grid(name, record)]
        # The status first: from there on, nothing of the task counts.
        for name in ("status", *names):
            _remove(self.data / chunk_key(name, arrays[name], task.place))
        _remove(self._error_file(task))

    def write(self, task: Task, results: Sequence[PointResult], axes: Mapping[str, tuple[str, ...]]) -> int:
        """Writes a finished task, and returns how many of its points failed.

        Arguments:
            results: one per chosen point; the other points of the task stay as they are.
            axes: names of the axes of what the function returns, by name; others are named after the result.
        """
        found = dict(zip(task.chosen, results, strict=True))
        good = [result for result in results if not result.error]
        if good and not self._results:
            self._make_results(good[0], axes)
        errors = {number: error for number, one in found.items() if (error := one.error or self._misfit(task, one))}
        values = {number: one for number, one in found.items() if number not in errors}
        for name, line in next(iter(values.values())).coordinates.items() if values else ():
            if name not in self._coordinates:
                self._coordinates[name] = line
                self._write(name, (0,), line)
        for name in self._results if values else ():
            self._write_block(name, task, {number: one.values[name] for number, one in values.items()})
        self._write_block("seconds", task, {number: one.seconds for number, one in found.items()})
        self._write_errors(task, errors)
        self._write_block("status", task, {number: FAILED if number in errors else DONE for number in found})
        return len(errors)

    def _write_block(self, name: str, task: Task, values: Mapping[int, Any]) -> None:
        """One chunk: the given points anew, the others as they were."""
        array = self._arrays[name]
        shape = (*task.shape, *array.shape[len(task.shape) :])
        block = np.empty(shape, array.dtype) if len(values) == len(task.points) else np.array(array[task.region])
        points = block.reshape(len(task.points), *shape[len(task.shape) :])
        for number, value in values.items():
            points[number, ...] = value
        self._write(name, task.place, block)

    def _write(self, name: str, place: Sequence[int], block: np.ndarray) -> None:
        assert self._files is not None
        if block.size:  # an axis of a result may be empty
            self._files.write(name, place, block)

    def _misfit(self, task: Task, result: PointResult) -> str:
        """Why results do not fit those of other points; empty where they do."""
        values = result.values
        if set(values) != set(self._results):
            return f"ValueError: returned {sorted(values)}; other points returned {sorted(self._results)}"
        for name, value in values.items():
            array = self._arrays[name]
            inner, text = array.shape[len(task.shape) :], array.dtype.kind == "T"
            same = value.dtype.kind == "U" if text else array.dtype == value.dtype
            if inner != value.shape or not same:
                other = f"{'str' if text else array.dtype}{inner}"
                return f"ValueError: {name}: returned {value.dtype}{value.shape}; other points returned {other}"
        for name, given in result.coordinates.items():
            if name in self._coordinates and not _equal(self._coordinates[name], given):
                return f"ValueError: {name}: returned other values along this axis than other points did"
        return ""

    def _make_results(self, result: PointResult, axes: Mapping[str, tuple[str, ...]]) -> None:
        """Makes the arrays of the results, when the first of them come."""
        description, grid, arrays = self._read()
        named = {
            name: axes.get(name) or result.axes.get(name) or tuple(f"{name}_{at}" for at in range(value.ndim))
            for name, value in result.values.items()
        }
        _check_names(result, named, grid)
        arrays = {name: arrays[name] for name in ("", *grid.names, *RESERVED)}
        for name, value in result.values.items():
            shapes = (*grid.shape, *value.shape), (*grid.chunks, *value.shape)
            fill = np.nan if value.dtype.kind in "fc" else 0
            arrays[name] = array_metadata(value.dtype, *shapes, (*grid.names, *named[name]), fill)
        for name, line in result.coordinates.items():
            arrays[name] = array_metadata(line.dtype, line.shape, line.shape, (name,))
        for name, attributes in result.attributes.items():
            if name in arrays:
                arrays[name] = arrays[name] | {"attributes": arrays[name]["attributes"] | attributes}
        self._write_metadata(arrays)
        self.rewrite(description | {"arrays": arrays})  # before any chunk: what it does not name is not there
        self._files = CheckedFiles(self.data, arrays, grid, read_only=False)
        self._arrays = {name: self._files.array(name) for name in arrays if name and name not in grid.names}
        self._results, self._coordinates = [*result.values], {}

    def _write_errors(self, task: Task, errors: Mapping[int, str]) -> None:
        """Writes why points failed; reasons of points that were not run this time stay."""
        file, chosen = self._error_file(task), set(task.chosen)
        read = unsealed(file, BY_HAND) if len(chosen) < len(task.points) else None
        before = _error_texts(read[0]) if read else {}
        texts = {number: text for number, text in before.items() if number not in chosen} | dict(errors)
        if texts:
            file.parent.mkdir(exist_ok=True)
            write_safely(file, sealed({str(number): text for number, text in texts.items()}, file), name="store")
        else:
            file.unlink(missing_ok=True)

    def _read_errors(self, task: Task, codes: np.ndarray, has_checksum: bool) -> dict[tuple[Any, ...], str]:
        """Why the points of a task failed, of these codes, by their values."""
        failed = np.flatnonzero(codes == FAILED).tolist()
        if not failed:
            return {}
        file = self._error_file(task)
        read = unsealed(file)
        if read is None:
            raise damaged(file, "it is missing")
        texts = _error_texts(read[0])
        if (has_checksum and not read[1]) or any(number not in texts for number in failed):
            raise damaged(file, "it does not name all points that failed")
        return {tuple(task.points[number].values()): texts[number] for number in failed}

    def _error_file(self, task: Task) -> Path:
        """Named after the place of the task, which stays the same when axes grow."""
        return self.folder / "errors" / f"{'-'.join(map(str, task.place))}.json"

    def errors(self) -> dict[tuple[Any, ...], str]:
        """Why points failed, by their values in the order of the grid."""
        description, grid, arrays = self._read()
        status, found = self._status(grid, arrays), {}
        for task in grid:
            found |= self._read_errors(task, status[task.region], description["format"] > 1)
        return found

    def dataset(self) -> xr.Dataset:
        """All that is there; what is not done, or failed, is NaN (text: empty), and `status` says so.

        Whole numbers and truth values have no NaN: with such points among them they come as floats. Everything else
        is read when it is used. Reading a file that is damaged or missing raises a StoreError.
        """
        description, grid, arrays = self._read()
        # A sweep may grow while it is read. `status` comes first: what it calls done is there.
        status = self._status(grid, arrays)
        shown = {name: record for name, record in arrays.items() if name not in grid.names}
        files = CheckedFiles(self.data, shown, grid, status)
        try:
            opened = xr.open_zarr(files, consolidated=True, zarr_format=3, chunks=None, decode_cf=False)
        except StoreError:
            raise
        except Exception as error:  # of zarr or xarray, for metadata that no sweep has
            raise StoreError("store", f"{self.data}, which cannot be read as zarr ({error})", BY_HAND) from error
        # Strings in the type that zarr has for them.
        texts = {name: np.dtypes.StringDType() for name, values in grid.axes.items() if values.dtype.kind == "U"}
        axes = {name: (name, values.astype(texts.get(name, values.dtype))) for name, values in grid.axes.items()}
        opened = opened[sorted(str(name) for name in opened.data_vars)].assign_coords(axes)
        for name, variable in opened.variables.items():
            variable.attrs = dict(arrays[str(name)]["attributes"])
        kept = {name: json.dumps(description[name]) for name in JSON_ATTRIBUTES if name in description}
        kept |= {name: str(description[name]) for name in TEXT_ATTRIBUTES if name in description}
        return _with_gaps(opened.assign_attrs(arrays[""]["attributes"] | kept), status)

    def with_own_types(self, part: xr.Dataset) -> xr.Dataset:
        """A part of the Dataset in which every point is done, with whole numbers and truth values as such."""
        _, _, arrays = self._read()
        kinds = {str(name): arrays[str(name)]["data_type"] for name in part.data_vars}
        whole = {name: kind for name, kind in kinds.items() if kind.startswith(("int", "uint", "bool"))}
        return part.assign({name: part[name].astype(kind) for name, kind in whole.items()})

    def lock(self) -> AbstractContextManager[None]:
        """Locks the folder for this process; refused while another one writes. The lock ends with the process."""

        def refusal(who: str) -> StoreError:
            return StoreError("store", f"{self.folder}, which {who} is writing to", "it to be free")

        return locked(self.folder / ".lock", refusal, name="store")

    def writer(self) -> str:
        """Who is writing to the folder now, in words; empty if nobody is."""
        return lock_holder(self.folder / ".lock")


def _with_grid(name: str, metadata: Mapping[str, Any], grid: Grid) -> dict[str, Any]:
    """The metadata of an array with the lengths that the axes of the grid have now."""
    if not name or not is_over_grid(name, metadata):
        return dict(metadata)
    return {**metadata, "shape": [*grid.shape, *metadata["shape"][len(grid.shape) :]]}


def _with_gaps(opened: xr.Dataset, status: np.ndarray) -> xr.Dataset:
    """Results that cannot be NaN as floats that are, at the points that are not done."""
    names = [name for name, one in opened.data_vars.items() if name not in RESERVED and one.dtype.kind in "iub"]
    if not names or (status == DONE).all():
        return opened
    floats = {name: opened[name].astype(np.float64) for name in names}
    for one in floats.values():
        one.values[status != DONE] = np.nan
    return opened.assign(floats)


def _check_names(result: PointResult, named: Mapping[str, tuple[str, ...]], grid: Grid) -> None:
    """Refuses results whose names, or names of axes, the store and a Dataset cannot hold."""
    taken, sizes = {*grid.names, *result.values}, {name: len(values) for name, values in result.coordinates.items()}
    for name in (*result.values, *result.coordinates):
        check_stored_name("function", "a result", name)
        if name in grid.names:
            raise fail("function", f"a result named {name!r}", "another name: an axis of the grid has this name")
    for name, value in result.values.items():
        axes = named[name]
        if len(axes) != value.ndim:
            raise fail(f"axes[{name!r}]", axes, f"{value.ndim} names, one per axis of the result")
        for axis, size in zip(axes, value.shape, strict=True):
            check_stored_name(f"axes[{name!r}]", "an axis", axis)
            if axis in taken or axes.count(axis) > 1:
                raise fail(f"axes[{name!r}]", repr(axis), "names of axes that no result and no other axis has")
            if sizes.setdefault(axis, size) != size:
                raise fail(f"axes[{name!r}]", f"{axis!r} of length {size}", f"length {sizes[axis]}, as elsewhere")
    for name in result.attributes.get("", {}):
        if name in (*JSON_ATTRIBUTES, *TEXT_ATTRIBUTES):
            raise fail("function", f"an attribute {name!r}", "another name: the sweep has an attribute of this name")


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether arrays are the same; NaN is NaN, and strings may be of different types."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def _error_texts(record: Mapping[str, Any]) -> dict[int, str]:
    return {int(at): str(text) for at, text in record.items() if at.isdecimal()}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

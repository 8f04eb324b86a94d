"""Where a sweep lives: a folder with one zarr group, a description, and the errors of points that failed.

A task is one chunk of every array. Chunks are written to a side file and renamed, and the chunk of `status` comes last:
whatever happens in between, a task is either done or as if it had never run. One process writes at a time.

Small chunks are not compressed, so that they can be written and read as plain files: through zarr each costs more than
a millisecond.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from .._locks import held, holder
from .._validation import fail
from .grid import Grid, Task
from .work import PointResult

TO_DO, DONE, FAILED = 0, 1, 2
# Raise it when the layout of the folder changes.
FORMAT = 1
# Names that the store uses itself.
RESERVED = ("status", "seconds")
# Where the group is for the moment in which a larger one takes its place.
ASIDE = ".data.zarr.old"
# Chunks up to so many bytes are plain files.
PLAIN_BYTES = 4096


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
        usual, aside = self.folder / "data.zarr", self.folder / ASIDE
        return aside if aside.exists() and not usual.exists() else usual

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
        self._make_axes(group, grid)
        self._make_array(group, grid, "status", np.dtype("int8"), TO_DO)
        self._make_array(group, grid, "seconds", np.dtype("float64"), np.nan)
        self.rewrite(description)  # last: a folder without it has nothing in it

    def extend(self, description: Mapping[str, Any], grid: Grid) -> None:
        """Makes room for more values at the ends of the axes; what is there stays, and stays readable throughout."""
        old, new, aside = self.folder / "data.zarr", self.folder / ".data.zarr.new", self.folder / ASIDE
        if not old.exists():  # killed between the two renames below
            os.rename(aside, old)
        shutil.rmtree(new, ignore_errors=True)
        group = zarr.open_group(new, mode="w")
        self._make_axes(group, grid)
        for name in zarr.open_group(old, mode="r"):
            if name in grid.names:
                continue
            shutil.copytree(old / name, new / name, copy_function=_link)
            file = new / name / "zarr.json"
            record = json.loads(file.read_text("utf-8"))
            if list(grid.names) == record["dimension_names"][: len(grid.names)]:
                record["shape"][: len(grid.names)] = grid.shape
            _write_whole(file, json.dumps(record).encode())
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(old, aside)
        os.rename(new, old)
        self._grid = None
        self.rewrite(description)
        shutil.rmtree(aside)

    def rewrite(self, description: Mapping[str, Any]) -> None:
        """Writes the JSON file whole."""
        text = json.dumps({**description, "format": FORMAT}, indent=2, ensure_ascii=False)
        _write_whole(self.description_file, text.encode())

    def status(self) -> np.ndarray:
        """Of every point: 0 to do, 1 done, 2 failed."""
        grid, array = self.grid(), self._group("r")["status"]
        if not _is_plain(array):
            return np.asarray(array[:])
        found = np.full(grid.shape, TO_DO, np.int8)
        for task in grid:
            file = self._chunk_file(array, task)
            try:
                chunk = np.fromfile(file, np.int8)
            except FileNotFoundError:
                continue
            if chunk.size != math.prod(grid.chunks):
                raise StoreError(f"store: got {file} of {chunk.size} bytes; expected {math.prod(grid.chunks)}")
            found[task.region] = chunk.reshape(grid.chunks)[_corner(task)]
        return found

    def write(self, task: Task, results: Sequence[PointResult], axes: Mapping[str, tuple[str, ...]]) -> int:
        """Writes a finished task, and returns how many of its points failed.

        Arguments:
            results: one per chosen point; the other points of the task stay as they are.
            axes: names of the axes of what the function returns, by name; others are named after the result.
        """
        good = [result for result in results if not result.error]
        if good and not self._results:
            self._make_results(good[0], axes)
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
        inner = array.shape[len(task.region) :]
        if not values or 0 in inner:  # an axis of a result may be empty
            return
        region = (*task.region, *(slice(None) for _ in inner))
        shape = (*task.shape, *inner)
        if len(values) == len(task.points):
            block = np.stack([np.asarray(values[number], array.dtype) for number in range(len(task.points))])
        else:
            block = np.array(array[region]).reshape(len(task.points), *inner)
            for number, value in values.items():
                block[number] = value
        if not _is_plain(array):
            array[region] = block.reshape(shape)
            return
        # A chunk at the end of an axis is as large as any other.
        chunk = np.full(array.chunks, array.fill_value, array.dtype.newbyteorder("<"))
        chunk[_corner(task)] = block.reshape(shape)
        _write_whole(self._chunk_file(array, task), chunk.tobytes())

    def _chunk_file(self, array: Any, task: Task) -> Path:
        """Where zarr has the chunk of a task (Zarr 3, default chunk keys)."""
        index = [str(along.start // size) for along, size in zip(task.region, array.chunks, strict=False)]
        return self.data / array.basename / "c" / "/".join([*index, *("0" for _ in array.shape[len(index) :])])

    def errors(self) -> dict[int, dict[int, str]]:
        """Why points failed, by number of the task and of the point in it."""
        found = {}
        for task in self.grid() if (self.folder / "errors").exists() else ():
            try:
                texts = json.loads(self._error_file(task).read_text("utf-8"))
            except FileNotFoundError:
                continue
            found[task.number] = {int(at): text for at, text in texts.items()}
        return found

    def dataset(self) -> xr.Dataset:
        """All that is there; what is not done, or failed, is NaN (text: empty), and `status` says so.

        Whole numbers and truth values have no NaN: with such points among them they come as floats. Everything else
        is read when it is used.
        """
        description = self.description()
        opened = xr.open_zarr(self.data, consolidated=False, chunks=None)
        kept = {name: json.dumps(description[name]) for name in ("versions", "fixed", "runs") if name in description}
        for name in ("function", "seed", "revision", "created"):
            kept[name] = str(description.get(name, ""))
        sorted_by_name = opened[sorted(str(name) for name in opened.data_vars)].assign_attrs(opened.attrs | kept)
        return self._with_gaps(sorted_by_name)

    def seconds(self) -> np.ndarray:
        """What every point took; NaN where it has not run."""
        return np.asarray(self._group("r")["seconds"][:])

    def with_own_types(self, part: xr.Dataset) -> xr.Dataset:
        """A part of the Dataset in which every point is done, with whole numbers and truth values as such."""
        group = self._group("r")
        kinds = {str(name): group[str(name)].dtype for name in part.data_vars}
        return part.assign({name: part[name].astype(kind) for name, kind in kinds.items() if kind.kind in "iub"})

    def _with_gaps(self, opened: xr.Dataset) -> xr.Dataset:
        """Results that cannot be NaN as floats that are, at the points that are not done."""
        names = [name for name, one in opened.data_vars.items() if name not in RESERVED and one.dtype.kind in "iub"]
        if not names:
            return opened
        # A sweep may grow while it is read. `status` comes first: what it calls done is there.
        found, absent = self.status(), np.ones(opened["status"].shape, bool)
        shared = tuple(slice(min(sizes)) for sizes in zip(found.shape, absent.shape, strict=True))
        absent[shared] = found[shared] != DONE
        if not absent.any():
            return opened
        floats = {name: opened[name].astype(np.float64) for name in names}
        for one in floats.values():
            one.values[absent] = np.nan
        return opened.assign(floats)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the folder for this process; refused while another has it. A process that dies lets go."""

        def refusal(who: str) -> StoreError:
            return StoreError(f"store: got {self.folder}, which {who} is writing to; expected it to be free")

        with held(self.folder / ".lock", refusal, name="store"):
            yield

    def writer(self) -> str:
        """Who is writing to the folder now, in words; empty where nobody is."""
        return holder(self.folder / ".lock")

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
        group = self._group("r+")
        self._opened = {}
        # Without a point that is done, arrays of results may be half made: they are made anew.
        finished = bool((self.status() == DONE).any())
        names = self.grid().names
        self._results = {
            name: group[name]
            for name in group
            if finished and name not in RESERVED and name not in names and set(names) <= _dimensions(group[name])
        }

    def _make_results(self, result: PointResult, axes: Mapping[str, tuple[str, ...]]) -> None:
        """Makes the arrays of the results, when the first of them come."""
        grid, group = self.grid(), self._group("r+")
        coordinates = dict(result.coordinates)
        for name in (*result.values, *coordinates):
            if name in RESERVED or name in grid.names:
                raise fail("function", f"a result named {name!r}", "another name: the store has its own of this name")
        for name, value in result.values.items():
            named = axes.get(name) or result.axes.get(name) or tuple(f"{name}_{at}" for at in range(value.ndim))
            if len(named) != value.ndim:
                raise fail(f"axes[{name!r}]", named, f"{value.ndim} names, one per axis of the result")
            fill = np.nan if value.dtype.kind in "fc" else 0
            self._results[name] = self._make_array(group, grid, name, value.dtype, fill, value.shape, named)
        for name, value in coordinates.items():
            kind = str if value.dtype.kind == "U" else value.dtype
            given = {"dimension_names": (name,), "overwrite": True}
            group.create_array(name, shape=value.shape, dtype=kind, **given)[:] = value
        for name, attributes in result.attributes.items():
            if attributes and (not name or name in group):
                (group[name] if name else group).update_attributes(attributes)

    def _make_axes(self, group: Any, grid: Grid) -> None:
        for name, values in grid.axes.items():
            kind = str if values.dtype.kind == "U" else values.dtype
            group.create_array(name, shape=values.shape, dtype=kind, dimension_names=(name,))[:] = values

    def _make_array(
        self,
        group: Any,
        grid: Grid,
        name: str,
        dtype: np.dtype,
        fill: Any,
        inner: tuple[int, ...] = (),
        named: tuple[str, ...] = (),
    ) -> Any:
        """An array over the grid, with one chunk per task."""
        text = dtype.kind == "U"
        chunks = (*grid.chunks, *(max(size, 1) for size in inner))
        plain = not text and dtype.itemsize * int(np.prod(chunks)) <= PLAIN_BYTES
        return group.create_array(
            name,
            shape=(*grid.shape, *inner),
            chunks=chunks,
            dtype=str if text else dtype,
            fill_value="" if text else fill,
            dimension_names=(*grid.names, *named),
            overwrite=True,
            **({"compressors": None} if plain else {}),
        )

    def _misfit(self, values: Mapping[str, np.ndarray]) -> str:
        """Why results do not fit those of other points; empty where they do."""
        axes = len(self.grid().shape)
        if set(values) != set(self._results):
            return f"ValueError: returned {sorted(values)}; other points returned {sorted(self._results)}"
        for name, value in values.items():
            array = self._results[name]
            same = value.dtype.kind == "U" if array.dtype.kind == "T" else array.dtype == value.dtype
            if array.shape[axes:] != value.shape or not same:
                other = f"{array.dtype}{array.shape[axes:]}"
                return f"ValueError: {name}: returned {value.dtype}{value.shape}; other points returned {other}"
        return ""

    def _write_errors(self, task: Task, errors: Mapping[int, str]) -> None:
        file = self._error_file(task)
        if not errors:
            file.unlink(missing_ok=True)  # all points of the task that had failed were chosen
            return
        _write_whole(file, json.dumps(errors, ensure_ascii=False).encode())

    def _error_file(self, task: Task) -> Path:
        """Named after the place of the task, which stays the same when axes grow."""
        sizes = self.grid().chunks
        where = "-".join(str(along.start // size) for along, size in zip(task.region, sizes, strict=True))
        return self.folder / "errors" / f"{where}.json"

    def _half_made(self, names: Sequence[str]) -> bool:
        """Whether a run was killed while it made this folder: nothing but an empty group."""
        return set(names) <= {self.data.name}


def _corner(task: Task) -> tuple[slice, ...]:
    """Where the points of a task are in its chunk, which is larger at the ends of the axes."""
    return tuple(slice(count) for count in task.shape)


def _is_plain(array: Any) -> bool:
    """Whether chunks of an array are plain files of its numbers."""
    return not array.compressors and array.dtype.kind != "T"


def _dimensions(array: Any) -> set[str]:
    return set(array.metadata.dimension_names or ())


def _link(source: str, target: str) -> None:
    """The same file under another name, or a copy where the file system has no such thing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _write_whole(file: Path, content: bytes) -> None:
    """Either the old or the new file is there at any moment, never half of one."""
    part = file.with_name(f".{file.name}.part")
    try:
        try:
            part.write_bytes(content)
        except FileNotFoundError:
            file.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(content)
        os.replace(part, file)
    except OSError:
        part.unlink(missing_ok=True)
        raise

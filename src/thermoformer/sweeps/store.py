"""Where a sweep lives: a folder with one zarr group, a description, and the errors of points that failed.

A task is one chunk of every array. Chunks are written to a side file and renamed, and the chunk of `status` comes last:
whatever happens in between, a task is either done or as if it had never run. One process writes at a time.

All files show when they are damaged or missing (see `layout`). The next run discards a task with a damaged file and
computes it again. Folders of format 1 have no checksums; they are read and continued without.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from .._locks import held, holder
from .._validation import fail
from .grid import RESERVED, Grid, Task, check_stored_name
from .layout import (
    DONE,
    FAILED,
    RUN_AGAIN,
    TO_DO,
    ArrayLayout,
    CheckedFiles,
    StoreError,
    damaged,
    layout_of,
    metadata_on_disk,
    must_exist,
    read_file,
    seal,
    unseal,
)
from .work import PointResult

# Never written: what `SweepStore.survey` calls points with a damaged file.
DAMAGED = 3
# Raise it when the layout of the folder changes. Format 1 had no checksums.
FORMAT = 2
# Where the group is for the moment in which a larger one takes its place.
ASIDE = ".data.zarr.old"
# Attributes of the Dataset that come from the description: as JSON, and as text.
JSON_ATTRIBUTES, TEXT_ATTRIBUTES = ("versions", "fixed", "runs"), ("function", "seed", "revision", "created")
# Times beyond this number of seconds are damage.
LONGEST_SECONDS = 1e12
# What the next run cannot repair.
_BY_HAND = "restore it from a copy, or use another folder; zarr can still read data.zarr"
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
class Survey:
    """What a thorough look at the files of a sweep found.

    Fields:
        status: of every point: 0 to do, 1 done, 2 failed, 3 damaged.
        seconds: what every point took; NaN if it has not run or is damaged.
        errors: why points failed, by number of the task and of the point in it.
        damage: what is wrong with a file of a task, by number of the task.
    """

    status: np.ndarray
    seconds: np.ndarray
    errors: dict[int, dict[int, str]]
    damage: dict[int, str]


class SweepStore:
    """The folder of a sweep.

    Arguments:
        folder: where; made by `create`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._grid: Grid | None = None
        # Set by `begin`, for writing.
        self._own: dict[str, ArrayLayout] = {}
        self._results: dict[str, ArrayLayout] = {}
        self._coordinates: dict[str, np.ndarray] = {}
        self._lost: dict[str, ArrayLayout] = {}
        self._sealed = True

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
        file = self.description_file
        read = unseal(file, _BY_HAND)
        if read is None and self.data.exists():
            raise damaged(file, "it is missing", _BY_HAND)
        if read is None:
            raise StoreError(f"store: got {self.folder}; expected a folder with a sweep in it")
        found, sealed = read
        if found.get("format") not in (1, FORMAT):
            raise StoreError(f"store: got {file} of format {found.get('format')!r}; expected format 1 or {FORMAT}")
        if not sealed and found["format"] == FORMAT:
            raise damaged(file, "it has no checksum", _BY_HAND)
        for name, kind in _FIELDS.items():
            if not isinstance(found.get(name), kind):
                raise damaged(file, f"{name!r} is missing or of another type", _BY_HAND)
        runs = found.get("runs", [])
        records = [*found["fixed"].values(), *(runs if isinstance(runs, list) else [None])]
        mappings = [found.get(name, {}) for name in ("versions", "bound", "arrays")]
        if not all(
            isinstance(one, dict) for one in records + mappings + [found.get("arrays", {}).get("", {})]
        ) or not all(isinstance(one, list) for one in found["axes"].values()):
            raise damaged(file, "it has entries of another type", _BY_HAND)
        return found

    def grid(self) -> Grid:
        """The grid of the sweep."""
        if self._grid is None:
            self._grid = self._grid_of(self.description())
        return self._grid

    def _grid_of(self, description: Mapping[str, Any]) -> Grid:
        try:
            return Grid(description["grid"], description["batch"])
        except ValueError as error:
            raise damaged(self.description_file, str(error), _BY_HAND) from error

    def _read(self) -> tuple[dict[str, Any], Grid, dict[str, ArrayLayout]]:
        """The description, the grid and the arrays by name."""
        description = self.description()
        grid = self._grid_of(description)
        metadata, layouts = description.get("arrays"), {}
        if metadata is None:
            metadata = _metadata_of(self.data)
        for name, record in metadata.items():
            file = self.description_file if "arrays" in description else self.data / name / "zarr.json"
            if not name:
                if not isinstance(record.get("attributes"), dict):
                    raise damaged(file, "the zarr group has no attributes", _BY_HAND)
                continue
            try:
                layouts[name] = layout_of(name, record, grid)
            except ValueError as error:
                raise damaged(file, f"array {name!r}: {error}", _BY_HAND) from error
        if absent := [name for name in (*RESERVED, *grid.names) if name not in layouts]:
            raise damaged(self.data, f"array {absent[0]!r} is missing", _BY_HAND)
        if description["format"] == 1:
            self._check_axes(grid, layouts)
        return description | {"attributes": metadata[""]["attributes"]}, grid, layouts

    def _check_axes(self, grid: Grid, layouts: Mapping[str, ArrayLayout]) -> None:
        """Compares the axes with the description, which has no checksum in format 1."""
        for name, values in grid.axes.items():
            found = self._read_line(layouts[name])
            if found is not None and not np.array_equal(found, values):
                why = f"its values are not those of {self.description_file.name}"
                raise damaged(_line_file(self.data, name), why, _BY_HAND)

    def create(self, description: Mapping[str, Any], grid: Grid) -> None:
        """A new folder with nothing done yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        others = [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]
        if others and not self._half_made(others):
            raise StoreError(f"store: got {self.folder}, which holds {others[0]}; expected an empty folder or a sweep")
        group = zarr.open_group(self.data, mode="w")
        for name, values in grid.axes.items():
            _make_line(group, self.data, name, values, grid)
        self._make_array(group, grid, "status", np.dtype("int8"), TO_DO)
        self._make_array(group, grid, "seconds", np.dtype("float64"), np.nan)
        arrays = _metadata_of(self.data, [*grid.names, *RESERVED])
        self.rewrite({**description, "format": FORMAT, "arrays": arrays})  # last: a folder without it has nothing in it

    def extend(self, description: Mapping[str, Any], grid: Grid) -> None:
        """Makes room for more values at the ends of the axes; what is there stays, and stays readable throughout.

        Arguments:
            description: with the format and the arrays of the folder.
        """
        old, new, aside = self.folder / "data.zarr", self.folder / ".data.zarr.new", self.folder / ASIDE
        if not old.exists():  # killed between the two renames below
            os.rename(aside, old)
        shutil.rmtree(new, ignore_errors=True)
        there, _, layouts = self._read()
        group = zarr.open_group(new, mode="w", attributes=there["attributes"])
        for name, layout in layouts.items():
            if name in grid.names:
                _make_line(group, new, name, grid.axes[name], grid)
                group[name].update_attributes(layout.metadata["attributes"])
                continue
            (old / name).mkdir(exist_ok=True)  # it may be damaged
            shutil.copytree(old / name, new / name, copy_function=_link)
            metadata = layout_of(name, layout.metadata, grid).metadata
            _write_whole(new / name / "zarr.json", json.dumps(metadata).encode())
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(old, aside)
        os.rename(new, old)
        self._grid = None
        if "arrays" in description:
            description = {**description, "arrays": _metadata_of(old, [*layouts])}
        self.rewrite(description)
        shutil.rmtree(aside)

    def rewrite(self, description: Mapping[str, Any]) -> None:
        """Writes the JSON file whole, in the format that the description names."""
        file = self.description_file
        _write_whole(file, _json(description, file, description["format"] > 1))

    def status(self) -> np.ndarray:
        """Of every point: 0 to do, 1 done, 2 failed."""
        _, grid, layouts = self._read()
        return self._status(grid, layouts)

    def _status(self, grid: Grid, layouts: Mapping[str, ArrayLayout]) -> np.ndarray:
        found = np.full(grid.shape, TO_DO, np.int8)
        for task in grid:
            found[task.region] = self._read_status(layouts, task)
        return found

    def _read_status(self, layouts: Mapping[str, ArrayLayout], task: Task) -> np.ndarray:
        codes = self._read_block(layouts["status"], task)
        if codes is None:
            return np.full(task.shape, TO_DO, np.int8)
        if not np.isin(codes, (TO_DO, DONE, FAILED)).all():
            raise damaged(self._chunk_file(layouts["status"], task), "it holds other values than 0, 1 and 2")
        return codes

    def seconds(self) -> np.ndarray:
        """What every point took; NaN if it has not run or is damaged."""
        return self.survey().seconds

    def survey(self) -> Survey:
        """Reads and verifies every file of every task."""
        description, grid, layouts = self._read()
        found = Survey(np.full(grid.shape, TO_DO, np.int8), np.full(grid.shape, np.nan), {}, {})
        for task in grid:
            try:
                codes = self._read_status(layouts, task)
                if (codes != TO_DO).any():
                    found.seconds[task.region] = self._verify(task, codes, layouts)
                if (codes == FAILED).any():
                    found.errors[task.number] = self._read_errors(task, codes, description["format"] > 1)
                found.status[task.region] = codes
            except StoreError as error:
                found.status[task.region], found.damage[task.number] = DAMAGED, str(error)
        for layout in layouts.values():
            if not layout.over_grid and layout.name not in grid.names:
                try:
                    self._read_line(layout)
                except StoreError as error:  # any task that is done computes the coordinates of results again
                    for task in (task for task in grid if (found.status[task.region] == DONE).any()):
                        found.status[task.region], found.damage[task.number] = DAMAGED, str(error)
                        break
        return found

    def _verify(self, task: Task, codes: np.ndarray, layouts: Mapping[str, ArrayLayout]) -> np.ndarray:
        """Verifies the chunks of a task; returns what its points took."""
        for layout in layouts.values():
            if layout.over_grid and layout.name not in RESERVED:
                file = self._chunk_file(layout, task)
                content = read_file(file)
                if content is not None:
                    layout.unpacked(content, file)
                elif _has_chunks(layout) and layout.always_written and must_exist(layout.name, codes):
                    raise damaged(file, "it is missing")
        seconds, file = self._read_block(layouts["seconds"], task), self._chunk_file(layouts["seconds"], task)
        if seconds is None:
            if layouts["seconds"].always_written:
                raise damaged(file, "it is missing")
            return np.full(task.shape, np.nan)
        if not ((seconds >= 0) & (seconds < LONGEST_SECONDS))[codes != TO_DO].all():
            raise damaged(file, "it holds times that cannot be")
        return np.where(codes == TO_DO, np.nan, seconds)

    def begin(self) -> np.ndarray:
        """Prepares the folder for writing, and returns the status of every point.

        Repairs the metadata that other readers of zarr need. Discards tasks with a damaged file, with a warning, so
        that they are to do again.
        """
        description, grid, layouts = self._read()
        self._grid, self._sealed = grid, description["format"] > 1
        if "arrays" in description:
            self._restore_metadata(description, grid, layouts)
        found = self.survey()
        for number in found.damage:
            self._discard(grid.task(number), layouts)
        if found.damage:
            count, first = int((found.status == DAMAGED).sum()), next(iter(found.damage.values()))
            warnings.warn(f"{count} points are damaged and will be computed again; the first: {first}", stacklevel=4)
        status = np.where(found.status == DAMAGED, TO_DO, found.status)
        self._own = {name: layouts[name] for name in RESERVED}
        self._results, self._coordinates, self._lost = {}, {}, {}
        # Without a point that is done, the next result decides about the arrays: they are made anew.
        for name, layout in layouts.items() if (status == DONE).any() else ():
            if layout.over_grid and name not in RESERVED:
                self._results[name] = layout
            elif name not in RESERVED and name not in grid.names:
                try:
                    values = self._read_line(layout)
                except StoreError:  # the next result writes them again
                    self._lost[name] = layout
                    continue
                if values is not None:
                    self._coordinates[name] = values
        return status

    def _restore_metadata(self, description: Mapping[str, Any], grid: Grid, layouts: Mapping[str, ArrayLayout]) -> None:
        """Writes what other readers of zarr need from the description, if it is missing or damaged."""
        for name, record in description["arrays"].items():
            file = self.data / name / "zarr.json"
            try:
                same = json.loads(read_file(file) or b"") == record
            except (ValueError, RecursionError):
                same = False
            if not same:
                _remove(file)
                _write_whole(file, json.dumps(record).encode())
        for name, values in grid.axes.items():
            try:
                self._read_line(layouts[name])
            except StoreError:
                _write_line(self.data, layouts[name], values)

    def _discard(self, task: Task, layouts: Mapping[str, ArrayLayout]) -> None:
        """Makes a task as if it had never run."""
        _remove(self._chunk_file(layouts["status"], task))  # first: from here on, nothing of it counts
        _remove(self._error_file(task))
        for layout in layouts.values():
            if layout.over_grid:
                _remove(self._chunk_file(layout, task))

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
            if error := result.error or self._misfit(result):
                errors[number] = error
        values = {number: result for number, result in zip(task.chosen, results, strict=True) if number not in errors}
        for name in [*self._lost] if values else ():
            self._coordinates[name] = next(iter(values.values())).coordinates[name]
            _write_line(self.data, self._lost.pop(name), self._coordinates[name])
        for name, layout in self._results.items():
            self._write_block(layout, task, {number: result.values[name] for number, result in values.items()})
        seconds = {number: result.seconds for number, result in zip(task.chosen, results, strict=True)}
        self._write_block(self._own["seconds"], task, seconds)
        self._write_errors(task, errors)
        codes = {number: FAILED if number in errors else DONE for number in task.chosen}
        self._write_block(self._own["status"], task, codes)
        return len(errors)

    def _write_block(self, layout: ArrayLayout, task: Task, values: Mapping[int, Any]) -> None:
        """One chunk: the given points anew, the others as they were."""
        if not values or not _has_chunks(layout):
            return
        inner = layout.chunks[len(task.shape) :]
        there = self._read_block(layout, task) if len(values) < len(task.points) else None
        if there is None:
            block = np.full((len(task.points), *inner), layout.fill, layout.dtype)
        else:
            block = np.array(there).reshape(len(task.points), *inner)
        for number, value in values.items():
            block[number, ...] = value
        file = self._chunk_file(layout, task)
        _write_whole(file, layout.encoded(block.reshape(*task.shape, *inner), file))

    def _read_block(self, layout: ArrayLayout, task: Task) -> np.ndarray | None:
        """The values of a task; none if nothing was written."""
        file = self._chunk_file(layout, task)
        content = read_file(file)
        # A chunk at the end of an axis is as large as any other.
        return None if content is None else layout.decoded(content, file)[tuple(slice(size) for size in task.shape)]

    def _read_line(self, layout: ArrayLayout) -> np.ndarray | None:
        """Values along an axis; none if they are in several chunks, as long ones of format 1 are."""
        length, file = layout.metadata["shape"][0], _line_file(self.data, layout.name)
        if layout.chunks[0] < length:
            return None
        content = read_file(file)
        if content is not None:
            return layout.decoded(content, file)[:length]
        if length and layout.always_written:
            raise damaged(file, "it is missing")
        return np.full(length, "" if layout.is_text else 0, layout.dtype)

    def _chunk_file(self, layout: ArrayLayout, task: Task) -> Path:
        """Where zarr has the chunk of a task (Zarr 3, default chunk keys)."""
        index = [str(along.start // size) for along, size in zip(task.region, layout.chunks, strict=False)]
        return self.data / layout.name / "c" / "/".join([*index, *("0" for _ in layout.chunks[len(index) :])])

    def errors(self) -> dict[int, dict[int, str]]:
        """Why points failed, by number of the task and of the point in it."""
        _, grid, layouts = self._read()
        found = {}
        for task in grid if (self.folder / "errors").exists() else ():
            codes = self._read_status(layouts, task)
            if (codes == FAILED).any():
                found[task.number] = self._read_errors(task, codes, self.description()["format"] > 1)
        return found

    def dataset(self) -> xr.Dataset:
        """All that is there; what is not done, or failed, is NaN (text: empty), and `status` says so.

        Whole numbers and truth values have no NaN: with such points among them they come as floats. Everything else
        is read when it is used. Reading a file that is damaged or missing raises a StoreError.
        """
        description, grid, layouts = self._read()
        # A sweep may grow while it is read. `status` comes first: what it calls done is there.
        status = self._status(grid, layouts)
        shown = {name: layout for name, layout in layouts.items() if name not in grid.names}
        files = CheckedFiles(self.data, shown, grid, status)
        try:
            opened = xr.open_zarr(files, consolidated=True, zarr_format=3, chunks=None, decode_cf=False)
        except StoreError:
            raise
        except Exception as error:  # of zarr or xarray, for metadata that no sweep has
            raise StoreError(f"store: got {self.data}, which cannot be read as zarr ({error})") from error
        kinds = {name: np.dtypes.StringDType() if layouts[name].is_text else layouts[name].dtype for name in grid.axes}
        axes = {name: (name, values.astype(kinds[name])) for name, values in grid.axes.items()}
        opened = opened[sorted(str(name) for name in opened.data_vars)].assign_coords(axes)
        for name, variable in opened.variables.items():
            variable.attrs = dict(layouts[str(name)].metadata["attributes"])
        kept = {name: json.dumps(description[name]) for name in JSON_ATTRIBUTES if name in description}
        kept |= {name: str(description[name]) for name in TEXT_ATTRIBUTES if name in description}
        return self._with_gaps(opened.assign_attrs(description["attributes"] | kept), status)

    def with_own_types(self, part: xr.Dataset) -> xr.Dataset:
        """A part of the Dataset in which every point is done, with whole numbers and truth values as such."""
        _, _, layouts = self._read()
        kinds = {str(name): layouts[str(name)].dtype for name in part.data_vars}
        return part.assign({name: part[name].astype(kind) for name, kind in kinds.items() if kind.kind in "iub"})

    def _with_gaps(self, opened: xr.Dataset, status: np.ndarray) -> xr.Dataset:
        """Results that cannot be NaN as floats that are, at the points that are not done."""
        names = [name for name, one in opened.data_vars.items() if name not in RESERVED and one.dtype.kind in "iub"]
        if not names or (status == DONE).all():
            return opened
        floats = {name: opened[name].astype(np.float64) for name in names}
        for one in floats.values():
            one.values[status != DONE] = np.nan
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

    def _make_results(self, result: PointResult, axes: Mapping[str, tuple[str, ...]]) -> None:
        """Makes the arrays of the results, when the first of them come."""
        grid, coordinates = self.grid(), dict(result.coordinates)
        named = {
            name: axes.get(name) or result.axes.get(name) or tuple(f"{name}_{at}" for at in range(value.ndim))
            for name, value in result.values.items()
        }
        _check_names(result, named, grid)
        group = zarr.open_group(self.data, mode="r+", zarr_format=3, use_consolidated=False)
        for name, value in result.values.items():
            fill = np.nan if value.dtype.kind in "fc" else 0
            self._make_array(group, grid, name, value.dtype, fill, value.shape, named[name])
        for name, values in coordinates.items():
            _make_line(group, self.data, name, values, grid)
        for name, attributes in result.attributes.items():
            if attributes and (not name or name in group):
                (group[name] if name else group).update_attributes(attributes)
        description = self.description()
        arrays = _metadata_of(self.data, [*grid.names, *RESERVED, *result.values, *coordinates])
        if "arrays" in description:  # before any chunk: what it does not name is not there
            self.rewrite(description | {"arrays": arrays})
        self._results = {name: layout_of(name, arrays[name], grid) for name in result.values}
        self._coordinates = coordinates

    def _make_array(
        self,
        group: Any,
        grid: Grid,
        name: str,
        dtype: np.dtype,
        fill: Any,
        inner: tuple[int, ...] = (),
        named: tuple[str, ...] = (),
    ) -> None:
        """An array over the grid, with one chunk per task."""
        text = dtype.kind == "U"
        group.create_array(
            name,
            shape=(*grid.shape, *inner),
            chunks=(*grid.chunks, *(max(size, 1) for size in inner)),
            dtype=str if text else dtype,
            fill_value="" if text else fill,
            dimension_names=(*grid.names, *named),
            overwrite=True,
            compressors=[ZstdCodec(), Crc32cCodec()],
        )

    def _misfit(self, result: PointResult) -> str:
        """Why results do not fit those of other points; empty where they do."""
        values, axes = result.values, len(self.grid().shape)
        if set(values) != set(self._results):
            return f"ValueError: returned {sorted(values)}; other points returned {sorted(self._results)}"
        for name, value in values.items():
            layout = self._results[name]
            inner = tuple(layout.metadata["shape"][axes:])
            same = value.dtype.kind == "U" if layout.is_text else layout.dtype == value.dtype
            if inner != value.shape or not same:
                other = f"{'str' if layout.is_text else layout.dtype}{inner}"
                return f"ValueError: {name}: returned {value.dtype}{value.shape}; other points returned {other}"
        for name, given in result.coordinates.items():
            if name in self._coordinates and not _equal(self._coordinates[name], given):
                return f"ValueError: {name}: returned other values along this axis than other points did"
        return ""

    def _write_errors(self, task: Task, errors: Mapping[int, str]) -> None:
        """Writes why points failed; reasons of points that were not run this time stay."""
        file, chosen = self._error_file(task), set(task.chosen)
        read = unseal(file, _BY_HAND) if len(chosen) < len(task.points) else None
        before = _error_texts(read[0]) if read else {}
        texts = {number: text for number, text in before.items() if number not in chosen} | dict(errors)
        if texts:
            _write_whole(file, _json({str(number): text for number, text in texts.items()}, file, self._sealed))
        else:
            file.unlink(missing_ok=True)

    def _read_errors(self, task: Task, codes: np.ndarray, sealed: bool) -> dict[int, str]:
        """Why the points of a task failed, of these codes."""
        file = self._error_file(task)
        read = unseal(file, RUN_AGAIN)
        if read is None:
            raise damaged(file, "it is missing")
        texts, failed = _error_texts(read[0]), np.flatnonzero(codes == FAILED).tolist()
        if (sealed and not read[1]) or any(number not in texts for number in failed):
            raise damaged(file, "it does not name all points that failed")
        return {number: texts[number] for number in failed}

    def _error_file(self, task: Task) -> Path:
        """Named after the place of the task, which stays the same when axes grow."""
        sizes = self.grid().chunks
        where = "-".join(str(along.start // size) for along, size in zip(task.region, sizes, strict=True))
        return self.folder / "errors" / f"{where}.json"

    def _half_made(self, names: Sequence[str]) -> bool:
        """Whether a run was killed while it made this folder: nothing but a group without results."""
        return set(names) <= {self.data.name} and not (self.data / "status" / "c").exists()


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


def _metadata_of(group: Path, names: Sequence[str] | None = None) -> dict[str, Any]:
    """The content of the zarr.json of a group under the empty name, and of its arrays by name.

    Arguments:
        names: arrays that must be there; by default all that are.
    """
    found = dict(metadata_on_disk(group))
    if names is not None:
        names = ["", *names]
        if absent := [name for name in names if name not in found]:
            raise StoreError(f"store: got {group}, which cannot hold {absent[0]!r}; expected names that differ by more")
        found = {name: found[name] for name in names}
    return found


def _make_line(group: Any, folder: Path, name: str, values: np.ndarray, grid: Grid) -> None:
    """An array of values along one axis, in one chunk."""
    group.create_array(
        name,
        shape=values.shape,
        chunks=(max(len(values), 1),),
        dtype=str if values.dtype.kind == "U" else values.dtype,
        dimension_names=(name,),
        overwrite=True,
        compressors=[ZstdCodec(), Crc32cCodec()],
    )
    metadata = json.loads((folder / name / "zarr.json").read_text("utf-8"))
    _write_line(folder, layout_of(name, metadata, grid), values)


def _write_line(folder: Path, layout: ArrayLayout, values: np.ndarray) -> None:
    if len(values):
        file = _line_file(folder, layout.name)
        _write_whole(file, layout.encoded(values, file))


def _line_file(folder: Path, name: str) -> Path:
    return folder / name / "c" / "0"


def _has_chunks(layout: ArrayLayout) -> bool:
    """Whether it has any values: an axis of a result may be empty."""
    return 0 not in layout.metadata["shape"]


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether arrays are the same; NaN is NaN, and strings may be of different types."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def _error_texts(record: Mapping[str, Any]) -> dict[int, str]:
    return {int(at): str(text) for at, text in record.items() if at.isdecimal()}


def _json(record: Mapping[str, Any], file: Path, sealed: bool) -> bytes:
    return seal(record, file) if sealed else json.dumps(record, indent=2).encode()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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

"""A function over a grid of parameters, kept on disk as it grows."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from .._progress import Progress, duration, inside, shown_progress
from .._validation import fail, instance, nonnegative_integer, one_of, positive_integer, positive_number, true_or_false
from .chunks import DONE, FAILED, TO_DO, StoreError
from .cluster import run_on_dask
from .description import (
    CHANGEABLE,
    IDENTITY,
    changed_entries,
    describe,
    fixed_values,
    found_function,
    is_longer,
    now,
    own_function,
    short,
)
from .executors import Finished, run_here, run_in_processes, run_on_devices
from .grid import Grid, Task
from .store import SweepStatus, SweepStore
from .work import Work

EXECUTORS = ("local", "processes", "dask")


class Sweep:
    """A function at every point of a grid, each result written once, the whole a labelled Dataset.

    Arguments:
        function: called as function(**point, **fixed); returns numbers, strings or arrays by name (or a Dataset), of
            the same shapes at all points. An argument `seed` gets a seed that follows from the point.
        grid: values by name.
        store: the folder; what it holds of this sweep is kept. Values may be added at the ends of axes.
        fixed: arguments that are the same at every point.
        batch: points that are run, and written, together: neighbours along the last axis of the grid, or along each
            axis that is named.
        vectorised: the function takes arrays, [point] for each argument, and returns arrays with such a first axis.
        axes: names of the axes of results, by name; a Dataset names its own.
        seed: where the seeds of the points derive from.
        allow_nan: accept NaN as a result; otherwise a point that returns it has failed.

    Example:
        >>> import tempfile
        >>> from thermoformer.sweeps import Sweep
        >>> def area(width, height):
        ...     return {"area": width * height}
        >>> sweep = Sweep(area, {"width": [1, 2], "height": [1, 2, 3]}, tempfile.mkdtemp())
        >>> sweep.run().area.values.tolist()
        [[1, 2, 3], [2, 4, 6]]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        grid: Mapping[str, Any],
        store: str | Path,
        *,
        fixed: Mapping[str, Any] | None = None,
        batch: int | Mapping[str, int] = 1,
        vectorised: bool = False,
        axes: Mapping[str, tuple[str, ...]] | None = None,
        seed: int = 0,
        allow_nan: bool = False,
    ) -> None:
        if not callable(function):
            raise fail("function", type(function).__name__, "a function")
        self.grid = Grid(grid, batch)
        self.store = SweepStore(store)
        self.axes = {name: tuple(named) for name, named in (axes or {}).items()}
        self.seed = nonnegative_integer("seed", seed)
        seeded = _check_arguments(function, self.grid, dict(fixed or {}))
        how = true_or_false("vectorised", vectorised), true_or_false("allow_nan", allow_nan)
        self.work = Work(function, dict(fixed or {}), seeded, *how)

    @classmethod
    def from_store(cls, store: str | Path, function: Callable[..., Any] | str | None = None) -> Sweep:
        """The sweep of a folder, as it was described there.

        Arguments:
            function: the function, or its name as "module:name". By default the one that the folder names, if it is of
                this library and `resumable`: a folder from elsewhere must not decide what is run.
        """
        found = SweepStore(store).description()
        if function is None:
            function = own_function(str(found["function"]))
        return cls(
            found_function(function) if isinstance(function, str) else function,
            found["grid"],
            store,
            fixed=fixed_values(found["fixed"]),
            axes={name: tuple(named) for name, named in found["axes"].items()},
            **{name: found[name] for name in ("batch", "vectorised", "seed", "allow_nan")},
        )

    def run(
        self,
        executor: str = "local",
        *,
        workers: int | None = None,
        cluster: Any = None,
        devices: int | None = None,
        time_limit: float | None = None,
        only: Mapping[str, Any] | None = None,
        retry: bool = False,
        accept_changes: bool = False,
        progress: Progress | bool | None = None,
    ) -> xr.Dataset:
        """Runs what is not done yet, and returns all that is there.

        Ctrl-C, or a kill, loses the tasks in flight and nothing else; the same call continues.

        Arguments:
            executor: "local" in this process, "processes" in several, "dask" on a cluster.
            workers: how many processes; by default as many as cores.
            cluster: for dask: the address of a scheduler, a Cluster or a Client; by default a cluster of `workers`
                processes on this machine.
            devices: for local: how many JAX devices share the work; points of a vectorised task spread over them, other
                tasks run one on each. By default one.
            time_limit: seconds that a point may take (a task, for a vectorised function); not with local.
            only: values by name: run only these points.
            retry: run points again that have failed.
            accept_changes: continue although function, versions or fixed arguments have changed since then.
            progress: called as progress(done, total, message). By default a bar in a terminal or notebook; False for
                none.
        """
        one_of("executor", executor, EXECUTORS)
        true_or_false("retry", retry)
        true_or_false("accept_changes", accept_changes)
        start = self._executor(executor, workers, cluster, devices, time_limit)
        asked = self._asked(only)
        with self.store.lock():
            self._open(accept_changes)
            status = self.store.begin()
            wanted = np.isin(status, (TO_DO, FAILED) if retry else (TO_DO,)) & asked
            if not wanted.any():
                return self.dataset()
            counts = _Counts(
                points=int(asked.sum()),
                done=int(((status == DONE) & asked).sum()),
                failed=int(((status == FAILED) & asked & ~wanted).sum()),
            )
            record = {"began": now(), "executor": executor, "devices": []}
            with shown_progress(progress) as report, closing(start(self._tasks(wanted))) as finished:
                report(counts.run, counts.points, "starting")
                token = inside.set(lambda done, total, message: report(counts.run, counts.points, message))
                try:
                    for task, results in finished:
                        counts.add(len(results), self.store.write(task, results, self.axes))
                        self._note(record, {result.device for result in results})
                        report(counts.run, counts.points, counts.message())
                finally:
                    inside.reset(token)
        return self.dataset()

    def dataset(self) -> xr.Dataset:
        """All that is there; what is not done, or failed, is NaN (whole numbers are floats then); see `status`."""
        return self.store.dataset()

    def status(self) -> SweepStatus:
        """How far the sweep is, also while it runs."""
        return status_of(self.store)

    def errors(self) -> dict[tuple[Any, ...], str]:
        """Why points failed, by their values in the order of the grid."""
        return errors_of(self.store)

    def _executor(
        self, executor: str, workers: int | None, cluster: Any, devices: int | None, time_limit: float | None
    ) -> Callable[[Iterator[Task]], Generator[Finished, None, None]]:
        """What runs tasks. Options that an executor does not have are refused."""
        others = f"none with executor={executor!r}"
        if time_limit is not None:
            positive_number("time_limit", time_limit)
        for name, given, owners, why in (
            ("time_limit", time_limit, ("processes", "dask"), ": only another process can be stopped"),
            ("workers", workers, ("processes", "dask"), ", which is one process"),
            ("cluster", cluster if cluster is None else repr(cluster), ("dask",), ": it is dask's"),
            ("devices", devices, ("local",), ": every worker has its own"),
        ):
            if given is not None and executor not in owners:
                raise fail(name, given, others + why)
        apart = {"seed": self.seed, "workers": workers, "time_limit": time_limit}
        if executor == "dask":
            return partial(run_on_dask, self.work, cluster=cluster, **apart)
        if executor == "processes":
            return partial(run_in_processes, self.work, **apart)
        count = 1 if devices is None else _check_devices(devices)
        if count > 1 and not self.work.vectorised:
            return partial(run_on_devices, self.work, seed=self.seed, devices=count)
        return partial(run_here, replace(self.work, devices=count), seed=self.seed)

    def _asked(self, only: Mapping[str, Any] | None) -> np.ndarray:
        """Which points of the grid are asked for."""
        asked = np.ones(self.grid.shape, bool)
        for name, values in (only or {}).items():
            if name not in self.grid.axes:
                raise fail("only", repr(name), f"axes of the grid: {', '.join(self.grid.names)}")
            along = self.grid.axes[name]
            if not np.isin(values, along).all():
                raise fail(f"only[{name!r}]", short(values), "values of the grid")
            shape = [len(along) if axis == name else 1 for axis in self.grid.names]
            asked &= np.isin(along, values).reshape(shape)
        return asked

    def _tasks(self, wanted: np.ndarray) -> Iterator[Task]:
        """Tasks with a point to run, and which of their points."""
        for task in self.grid:
            if (chosen := np.flatnonzero(wanted[task.region])).size:
                yield task.only(chosen)

    def changes(self) -> list[str]:
        """What differs from the sweep that the folder holds; empty if it holds none, or this one."""
        if not self.store.exists():
            return []
        return list(changed_entries(self.store.description(), describe(self.work, self.grid, self.seed, self.axes)))

    def _open(self, accept_changes: bool) -> None:
        """Makes the folder, or checks that it holds this sweep."""
        description = describe(self.work, self.grid, self.seed, self.axes)
        if not self.store.exists():
            self.store.prepare(description)
            return
        found = self.store.description()
        changed = changed_entries(found, description)
        # More values along the last axis must not change what a chunk is.
        longer = is_longer(description["grid"], found["grid"]) and self.store.grid().chunks == self.grid.chunks
        for name in IDENTITY:
            if name in changed and not (name == "grid" and longer):
                got = f"{self.store.folder} with another {name} ({short(found.get(name))})"
                raise StoreError("store", got, f"{short(description[name])}, or another folder")
        what = {name: text for name, text in changed.items() if name in CHANGEABLE}
        if what and not accept_changes:
            got = f"{self.store.folder}, made with {', '.join(what.values())}"
            raise StoreError("store", got, f"no change in {', '.join(what)}, another folder, or accept_changes=True")
        if what or longer or "bound" not in found:
            found = description | {name: found[name] for name in ("created", "runs") if name in found}
        self.store.prepare(found)

    def _note(self, record: dict[str, Any], devices: set[str]) -> None:
        """Records the devices of this run as soon as they are known."""
        new = sorted(device for device in devices - set(record["devices"]) if device)
        if record["devices"] and not new:
            return
        record["devices"] = [*record["devices"], *new] or ["not JAX"]
        description = self.store.description()
        others = [run for run in description.get("runs", []) if run.get("began") != record["began"]]
        self.store.rewrite(description | {"runs": [*others, record]})


def status_of(store: SweepStore) -> SweepStatus:
    """How far the sweep in a folder is. Reads and verifies all of its files."""
    return instance("store", store, SweepStore, "a SweepStore, as SweepStore(folder) is").survey().counts


def errors_of(store: SweepStore) -> dict[tuple[Any, ...], str]:
    """Why points of the sweep in a folder failed, by their values."""
    return instance("store", store, SweepStore, "a SweepStore, as SweepStore(folder) is").errors()


def _check_arguments(function: Callable[..., Any], grid: Grid, fixed: dict[str, Any]) -> bool:
    """Checks that the function takes the arguments it will be given; returns whether it takes a seed."""
    twice = sorted(set(grid.names) & set(fixed))
    if twice:
        raise fail("fixed", twice[0], "names that are not in the grid")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in (*grid.names, *fixed):
        if name not in parameters and not takes_any:
            where = "grid" if name in grid.names else "fixed"
            raise fail(where, repr(name), f"arguments of the function: {', '.join(parameters)}")
    given = {*grid.names, *fixed}
    for name, parameter in parameters.items():
        several = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if name not in {*given, "seed"} and parameter.default is parameter.empty and not several:
            expected = "a value for every argument of the function, in grid or fixed"
            raise fail("grid", f"nothing for {name!r}", expected)
    return "seed" in parameters and "seed" not in given


def _check_devices(devices: int) -> int:
    import jax

    count = positive_integer("devices", devices)
    if count > jax.local_device_count():
        raise fail("devices", count, f"at most {jax.local_device_count()}, the local devices")
    return count


class _Counts:
    """Points of a run: all that were asked for, those that are done, and those that have failed."""

    def __init__(self, points: int, done: int, failed: int) -> None:
        self.points, self.done, self.failed = points, done, failed
        self.before, self.began = self.run, time.monotonic()

    @property
    def run(self) -> int:
        """Points that are done or have failed."""
        return self.done + self.failed

    def add(self, count: int, failed: int) -> None:
        """Counts the points of a finished task."""
        self.done, self.failed = self.done + count - failed, self.failed + failed

    def message(self) -> str:
        """The counts with the rate and the time left, for a progress bar."""
        rate = (self.run - self.before) / max(time.monotonic() - self.began, 1e-9)
        left = (self.points - self.run) / max(rate, 1e-9)
        bad = f", {self.failed} failed" if self.failed else ""
        return f"{self.done} done{bad}; {rate:.3g} points/s, {duration(left)} left"

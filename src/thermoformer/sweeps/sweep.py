"""A function over a grid of parameters, kept on disk as it grows."""

from __future__ import annotations

import hashlib
import inspect
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from .. import __version__
from .._validation import fail, nonnegative_integer, one_of, positive_number
from .executors import run_here, run_in_processes
from .grid import Grid, Task
from .store import DONE, FAILED, TO_DO, StoreError, SweepStore
from .work import Work

EXECUTORS = ("local", "processes")
Report = Callable[[int, int, str], None]


@dataclass(frozen=True)
class SweepStatus:
    """How far a sweep is.

    Fields:
        points, done, failed: how many points there are, are done, and have failed.
        seconds: what the finished ones took, all together.
    """

    points: int
    done: int
    failed: int
    seconds: float

    @property
    def left(self) -> int:
        """Points that were not tried yet."""
        return self.points - self.done - self.failed


class Sweep:
    """A function at every point of a grid, each result written once, the whole a labelled Dataset.

    Arguments:
        function: called as function(**point, **fixed); returns numbers or arrays by name (or a Dataset), of the same
            shapes at all points. Where it has an argument `seed`, it gets one that follows from the point.
        grid: values by name.
        store: the folder; one that holds a part of this sweep is gone on with.
        fixed: arguments that are the same at every point.
        batch: points that are run, and written, together: neighbours along the last axis of the grid.
        vectorised: the function takes arrays, [point] for each argument, and returns arrays with such a first axis.
        axes: names of the axes of results, by name.
        seed: where the seeds of the points derive from.
        allow_nan: take NaN for a result; otherwise a point that returns it has failed.

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
        batch: int = 1,
        vectorised: bool = False,
        axes: Mapping[str, tuple[str, ...]] | None = None,
        seed: int = 0,
        allow_nan: bool = False,
    ) -> None:
        if not callable(function):
            raise fail("function", type(function).__name__, "a function")
        self.grid = Grid(grid, batch)
        self.store = SweepStore(store)
        self.axes = dict(axes or {})
        self.seed = nonnegative_integer("seed", seed)
        seeded = _check_arguments(function, self.grid, dict(fixed or {}))
        self.work = Work(function, dict(fixed or {}), seeded, vectorised, allow_nan)

    def run(
        self,
        executor: str = "local",
        *,
        workers: int | None = None,
        time_limit: float | None = None,
        retry: bool = False,
        accept_changes: bool = False,
        progress: Report | None = None,
    ) -> xr.Dataset:
        """Runs what is not done yet, and returns all that is there.

        Ctrl-C, or a kill, loses the tasks in flight and nothing else; the same call goes on.

        Arguments:
            executor: "local" in this process, "processes" in several.
            workers: how many processes; as many as cores where absent.
            time_limit: seconds that a point may take (a task, for a vectorised function); needs processes.
            retry: run points again that failed before.
            accept_changes: go on though function, versions or fixed arguments have changed since the store was made.
            progress: called as progress(done, total, message).
        """
        one_of("executor", executor, EXECUTORS)
        if time_limit is not None:
            positive_number("time_limit", time_limit)
            if executor == "local":
                raise fail("time_limit", time_limit, "none with executor='local': only another process can be stopped")
        with self.store.lock():
            self._open(accept_changes)
            status = self.store.status()
            self.store.begin()
            tasks = self._open_tasks(status, retry)
            if executor == "local":
                finished = run_here(self.work, tasks, self.seed)
            else:
                finished = run_in_processes(self.work, tasks, self.seed, workers=workers, time_limit=time_limit)
            count, failed = int((status == DONE).sum()), 0 if retry else int((status == FAILED).sum())
            began, before = time.monotonic(), count + failed
            try:
                for task, results in finished:
                    bad = self.store.write(task, results, self.axes)
                    failed, count = failed + bad, count + len(results) - bad
                    if progress is not None:
                        rate = (count + failed - before) / max(time.monotonic() - began, 1e-9)
                        progress(count + failed, self.grid.size, _message(count, failed, rate, self.grid.size))
            finally:
                close = getattr(finished, "close", None)
                if close is not None:
                    close()
        return self.dataset()

    def dataset(self) -> xr.Dataset:
        """All that is there; what is not done yet is NaN (or 0 in whole numbers), and `status` says so."""
        return self.store.dataset()

    def status(self) -> SweepStatus:
        """How far the sweep is; may be asked while it runs."""
        return status_of(self.store)

    def errors(self) -> dict[tuple[Any, ...], str]:
        """Why points failed, by their values in the order of the grid."""
        return errors_of(self.store)

    def _open_tasks(self, status: np.ndarray, retry: bool) -> Iterator[Task]:
        """Tasks with a point to run, and which of their points."""
        wanted = np.isin(status, (TO_DO, FAILED) if retry else (TO_DO,))
        for task in self.grid:
            if (chosen := np.flatnonzero(wanted[task.region])).size:
                yield task.only(chosen)

    def _open(self, accept_changes: bool) -> None:
        description = self._description()
        if not self.store.exists():
            self.store.create(description, self.grid)
            return
        found = self.store.description()
        for name in ("grid", "batch", "seed"):
            if found.get(name) != description[name]:
                raise StoreError(
                    f"store: got {self.store.folder} with another {name} ({_short(found.get(name))}); "
                    f"expected {_short(description[name])}, or another folder"
                )
        changed = [name for name in ("function", "source", "fixed", "versions") if found.get(name) != description[name]]
        if changed and not accept_changes:
            what = ", ".join(f"{name} {_short(found.get(name))}" for name in changed)
            raise StoreError(
                f"store: got {self.store.folder}, made with {what}; expected no change in {', '.join(changed)}, "
                "another folder, or accept_changes=True"
            )
        if changed:
            self.store.rewrite(description | {"created": found.get("created", "")})

    def _description(self) -> dict[str, Any]:
        function = self.work.function
        return {
            "function": f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}",
            "source": _source(function),
            "grid": self.grid.to_json(),
            "batch": self.grid.batch,
            "seed": self.seed,
            "fixed": {name: repr(value) for name, value in self.work.fixed.items()},
            "versions": {"thermoformer": __version__, **{name: metadata.version(name) for name in ("jax", "numpy")}},
            "python": platform.python_version(),
            "revision": _revision(function),
            "device": _device(),
            "created": time.strftime("%Y-%m-%d %H:%M:%S"),
        }


def status_of(store: SweepStore) -> SweepStatus:
    """How far the sweep in a folder is."""
    data = store.dataset()
    status = data.status.values
    seconds = data.seconds.values[status != TO_DO]
    return SweepStatus(
        status.size, int((status == DONE).sum()), int((status == FAILED).sum()), float(np.nansum(seconds))
    )


def errors_of(store: SweepStore) -> dict[tuple[Any, ...], str]:
    """Why points of the sweep in a folder failed, by their values."""
    grid = store.grid()
    found = {}
    for number, errors in store.errors().items():
        points = grid.task(number).points
        found |= {tuple(points[at].values()): text for at, text in errors.items()}
    return found


def _check_arguments(function: Callable[..., Any], grid: Grid, fixed: dict[str, Any]) -> bool:
    """That the function takes what it will be given; returns whether it takes a seed."""
    twice = sorted(set(grid.names) & set(fixed))
    if twice:
        raise fail("fixed", twice[0], "names that are not in the grid")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions do not tell
        return False
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in (*grid.names, *fixed):
        if name not in parameters and not takes_any:
            raise fail(
                "grid" if name in grid.names else "fixed",
                repr(name),
                f"arguments of the function: {', '.join(parameters)}",
            )
    given = {*grid.names, *fixed, "seed"}
    missing = [
        name
        for name, parameter in parameters.items()
        if name not in given
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    if missing:
        raise fail(
            "grid", f"nothing for {missing[0]!r}", "a value for every argument of the function, in grid or fixed"
        )
    return "seed" in parameters and "seed" not in {*grid.names, *fixed}


def _source(function: Callable[..., Any]) -> str:
    """A hash of the function's text, so that a change is noticed; empty where there is no text."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return ""


def _revision(function: Callable[..., Any]) -> str:
    """The commit of the folder that the function is in; empty where there is none."""
    try:
        file = inspect.getsourcefile(function)
        folder = Path(file).parent if file else Path.cwd()
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, TypeError, subprocess.SubprocessError):
        return ""


def _device() -> str:
    """What JAX runs on; empty where nobody has asked for JAX yet, since finding out would start it."""
    jax = sys.modules.get("jax")
    return (
        "" if jax is None else f"{jax.default_backend()}, {jax.local_device_count()} of {jax.devices()[0].device_kind}"
    )


def _message(done: int, failed: int, rate: float, points: int) -> str:
    left = (points - done - failed) / max(rate, 1e-9)
    bad = f", {failed} failed" if failed else ""
    return f"{done} done{bad}; {rate:.3g} points/s, {left:.0f} s left"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."

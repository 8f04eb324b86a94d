"""Where tasks run: in this process, on its devices, or in worker processes that may hang or die."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

from .._validation import fail, positive_integer
from .grid import Task, point_seed
from .work import PointResult, Work, run_points

# A point whose worker dies is tried again this often: the worker may have died for another reason.
TRIES = 3

Finished = tuple[Task, list[PointResult]]
Resource = TypeVar("Resource")


def run_here(work: Work, tasks: Iterable[Task], seed: int) -> Generator[Finished, None, None]:
    """One task after another, in this process."""
    for task in tasks:
        yield task, list(run_points(work, task.to_run, seeds_of(task, seed)))


def run_on_devices(work: Work, tasks: Iterable[Task], seed: int, devices: int) -> Generator[Finished, None, None]:
    """Tasks in threads of this process, one for each local JAX device, which is the default device there."""
    import jax

    def run(task: Task, device: Any) -> list[PointResult]:
        with jax.default_device(device):
            return list(run_points(work, task.to_run, seeds_of(task, seed)))

    yield from _in_threads(run, tasks, jax.local_devices()[:devices])


def run_in_processes(
    work: Work, tasks: Iterable[Task], seed: int, *, workers: int | None = None, time_limit: float | None = None
) -> Generator[Finished, None, None]:
    """Tasks in worker processes, finished ones in the order in which they finish.

    A worker that dies is replaced, and its point tried again; one that takes longer over a point than the limit is
    killed, and the point has failed.

    Arguments:
        workers: how many; by default as many as cores.
        time_limit: seconds per point; per task for a vectorised function.
    """
    check_picklable(work)
    count = os.cpu_count() or 1 if workers is None else positive_integer("workers", workers)
    pool = [Worker(work) for _ in range(count)]

    def run(task: Task, worker: Worker) -> list[PointResult]:
        return worker.results(task.to_run, seeds_of(task, seed), time_limit)

    def end() -> None:
        for worker in pool:
            worker.end()

    yield from _in_threads(run, tasks, pool, end)


def _in_threads(
    run: Callable[[Task, Resource], list[PointResult]],
    tasks: Iterable[Task],
    resources: Sequence[Resource],
    end: Callable[[], None] | None = None,
) -> Generator[Finished, None, None]:
    """Tasks in threads of this process, each with a resource to itself.

    Arguments:
        end: called at the end, also at an early one: it makes threads that still run a task return.
    """
    free, source = list(resources), iter(tasks)
    running: dict[Future[list[PointResult]], tuple[Task, Resource]] = {}
    with ThreadPoolExecutor(len(free)) as pool, contextlib.ExitStack() as ending:
        if end is not None:
            ending.callback(end)
        while True:
            while free and (task := next(source, None)) is not None:
                resource = free.pop()
                running[pool.submit(run, task, resource)] = task, resource
            if not running:
                return
            for future in wait_for(running, return_when=FIRST_COMPLETED).done:
                task, resource = running.pop(future)
                free.append(resource)
                yield task, future.result()


class Worker:
    """A process that runs points. One that dies or hangs is replaced by another.

    Arguments:
        work: what it does.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self._ended = False
        # `end` comes from another thread than `results`.
        self._lock = threading.Lock()
        self._launch()

    def _launch(self) -> None:
        # Spawned, not forked: JAX has threads, and a forked child would inherit their locks.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.work), daemon=True)
        self._process.start()
        self._is_up = False
        theirs.close()

    def results(
        self, points: list[dict[str, Any]], seeds: list[int], time_limit: float | None = None
    ) -> list[PointResult]:
        """Results of some points, whatever becomes of the process meanwhile.

        Arguments:
            time_limit: seconds per point; for all of them together if the function is vectorised.
        """
        found: list[PointResult] = []
        tries = 0
        while len(found) < len(points):
            left = slice(len(found), None)
            try:
                for result in self._answers(points[left], seeds[left], time_limit):
                    found.append(result)
                    tries = 0
            except TimeoutError as error:
                self._replace()
                found.append(PointResult({}, f"TimeoutError: {error}", time_limit or 0.0))
                tries = 0
            except (EOFError, OSError):
                code = self._replace()
                tries += 1
                if tries == TRIES:
                    found.append(PointResult({}, f"RuntimeError: the worker died {TRIES} times (exit {code})", 0.0))
                    tries = 0
        return found

    def _answers(
        self, points: list[dict[str, Any]], seeds: list[int], time_limit: float | None
    ) -> Iterator[PointResult]:
        if not self._is_up:  # what it imports at its start is not the time of a point
            self._pipe.recv()
            self._is_up = True
        self._pipe.send((points, seeds))
        for _ in points:
            if not self._pipe.poll(time_limit):
                raise TimeoutError(f"took longer than time_limit = {time_limit:g} s")
            yield self._pipe.recv()

    def _replace(self) -> int | None:
        """Starts another process; returns the exit code of the last one."""
        with self._lock:
            if self._ended:
                raise RuntimeError("the worker was told to end")
            self._kill()
            code = self._process.exitcode
            self._launch()
        return code

    def end(self) -> None:
        """Ends the process, whatever it is doing."""
        with self._lock:
            self._ended = True
            self._kill()

    def _kill(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, work: Work) -> None:
    """A worker: points in, results out, until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which ends the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        pipe.send(None)
        while True:
            points, seeds = pipe.recv()
            for result in run_points(work, points, seeds):
                pipe.send(result)


def _end_with_parent() -> None:
    """Ends this process with the one that started it, even in the middle of a point that hangs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def seeds_of(task: Task, seed: int) -> list[int]:
    """The seeds of the points that are to be run."""
    return [point_seed(seed, point) for point in task.to_run]


def check_picklable(work: Work) -> None:
    """Refuses a function that cannot be sent to another process."""
    try:
        ForkingPickler.dumps(work)
    except Exception as error:
        name = getattr(work.function, "__qualname__", work.function)
        raise fail(
            "function",
            f"{name!r}, which cannot be sent to another process ({error})",
            "a function at the top of a module, or executor='local'",
        ) from error

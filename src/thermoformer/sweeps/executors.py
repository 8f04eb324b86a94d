"""Where tasks run: in this process, on its devices, or in worker processes that may hang or die."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from .._validation import fail, positive_integer
from .grid import Task, point_seed
from .work import PointResult, Work, run_points

# A point whose worker dies is tried again this often: the worker may have died for another reason.
TRIES = 3

Finished = tuple[Task, list[PointResult]]


def run_here(work: Work, tasks: Iterable[Task], seed: int) -> Iterator[Finished]:
    """One task after another, in this process."""
    for task in tasks:
        yield task, list(run_points(work, task.to_run, seeds_of(task, seed)))


def run_on_devices(work: Work, tasks: Iterable[Task], seed: int, devices: int) -> Iterator[Finished]:
    """Tasks in threads of this process, one for each local JAX device, which is the default device there."""
    import jax

    def run(task: Task, device: Any) -> list[PointResult]:
        with jax.default_device(device):
            return list(run_points(work, task.to_run, seeds_of(task, seed)))

    free, source = list(jax.local_devices()[:devices]), iter(tasks)
    running: dict[Future[list[PointResult]], tuple[Task, Any]] = {}
    with ThreadPoolExecutor(devices) as pool:
        while True:
            while free and (task := next(source, None)) is not None:
                device = free.pop()
                running[pool.submit(run, task, device)] = task, device
            if not running:
                return
            for future in wait_for(running, return_when=FIRST_COMPLETED).done:
                task, device = running.pop(future)
                free.append(device)
                yield task, future.result()


def run_in_processes(
    work: Work, tasks: Iterable[Task], seed: int, *, workers: int | None = None, time_limit: float | None = None
) -> Iterator[Finished]:
    """Tasks in worker processes, finished ones in the order in which they finish.

    A worker that dies is replaced, and its point tried again; one that takes longer over a point than the limit is
    killed, and the point has failed.

    Arguments:
        workers: how many; as many as cores where absent.
        time_limit: seconds per point; per task for a vectorised function.
    """
    check_picklable(work)
    count = os.cpu_count() or 1 if workers is None else positive_integer("workers", workers)
    pool = [Worker(work) for _ in range(count)]
    waiting, source = deque[Job](), iter(tasks)
    try:
        while True:
            for worker in pool:
                if worker.job is None and (job := _next_job(waiting, source, seed)) is not None:
                    worker.start(job)
            busy = [worker for worker in pool if worker.job is not None]
            if not busy:
                return
            for worker in _ready(busy, time_limit):
                job = worker.advance(time_limit)
                if job is None:
                    continue
                if job.complete:
                    yield job.task, job.results
                else:
                    waiting.appendleft(job)
    finally:
        for worker in pool:
            worker.close()


@dataclass
class Job:
    """A task on its way: what is finished of it, and how often the next point was tried."""

    task: Task
    seeds: list[int]
    results: list[PointResult] = field(default_factory=list)
    tries: int = 0

    @property
    def complete(self) -> bool:
        """Whether every point has its result."""
        return len(self.results) == len(self.task.chosen)


class Worker:
    """A process that runs points, and this end of the pipe to it."""

    def __init__(self, work: Work) -> None:
        self.work, self.job = work, None
        self.began = 0.0
        self._launch()

    def _launch(self) -> None:
        # Spawned, not forked: JAX has threads, and a forked child would inherit their locks.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.work), daemon=True)
        self.process.start()
        self.up = False
        theirs.close()

    def start(self, job: Job) -> None:
        """Sends the points that are left of a job."""
        self.job, self.began = job, time.monotonic()
        first = len(job.results)
        with contextlib.suppress(OSError):  # it has died: `advance` finds out
            self.pipe.send((job.task.to_run[first:], job.seeds[first:]))

    def advance(self, time_limit: float | None) -> Job | None:
        """Takes what the worker sent; returns its job when it is complete, or cannot go on here."""
        job = self.job
        assert job is not None
        if not self.pipe.poll():  # nothing came, so its time is up
            self._replace()
            job.results.append(
                PointResult({}, f"TimeoutError: took longer than time_limit = {time_limit:g} s", time_limit or 0)
            )
            job.tries = 0
            return self._let_go(job)
        try:
            result = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            self._replace()
            job.tries += 1
            if job.tries >= TRIES:
                job.results.append(PointResult({}, f"RuntimeError: the worker died {TRIES} times (exit {code})", 0.0))
                job.tries = 0
            return self._let_go(job)
        self.began = time.monotonic()
        if result is None:  # it is up, and begins now: what it imported is not the point's time
            self.up = True
            return None
        job.results.append(result)
        job.tries = 0
        return self._let_go(job) if job.complete else None

    def finish(self, job: Job, time_limit: float | None) -> list[PointResult]:
        """A whole job, one after another, whatever becomes of the process meanwhile."""
        self.start(job)
        while not job.complete:
            for _ in _ready([self], time_limit):
                if (back := self.advance(time_limit)) is not None and not back.complete:
                    self.start(back)
        return job.results

    def _let_go(self, job: Job) -> Job:
        self.job = None
        return job

    def _replace(self) -> None:
        self.close()
        self._launch()

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _ready(busy: list[Worker], time_limit: float | None) -> list[Worker]:
    """Workers that have sent something, have died, or have run out of time."""
    timeout, timed = None, [worker for worker in busy if worker.up and time_limit is not None]
    if timed and time_limit is not None:
        timeout = max(min(worker.began for worker in timed) + time_limit - time.monotonic(), 0.0)
    ready = wait([worker.pipe for worker in busy], timeout)
    late = time.monotonic() - (time_limit or 0.0)
    return [worker for worker in busy if worker.pipe in ready or (worker in timed and worker.began <= late)]


def _next_job(waiting: deque[Job], source: Iterator[Task], seed: int) -> Job | None:
    if waiting:
        return waiting.popleft()
    task = next(source, None)
    return None if task is None else Job(task, seeds_of(task, seed))


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
    """That the function can be sent to another process."""
    try:
        ForkingPickler.dumps(work)
    except Exception as error:
        name = getattr(work.function, "__qualname__", work.function)
        raise fail(
            "function",
            f"{name!r}, which cannot be sent to another process ({error})",
            "a function at the top of a module, or executor='local'",
        ) from error

"""Tasks on a dask cluster: workers come, die and come back; the store is written here, by one process."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import queue
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Any

from .._progress import inside
from .._validation import fail, positive_integer
from .executors import Finished, Worker, check_picklable, seeds_of
from .grid import Task
from .work import PointResult, Work, run_points

# Bundles of tasks that each thread of the cluster has at once: one runs, the others wait beside it.
AHEAD = 3
# Quick tasks are sent in bundles that keep a worker busy for about this long, in seconds: a message takes milliseconds.
BUSY, LARGEST_BUNDLE = 0.1, 100
# How often to ask for the number of workers, and whether the scheduler is there, in seconds.
LOOK = 1.0
# How long to wait for an answer from an address, in seconds.
CONNECT = 5


class ClusterLost(ConnectionError):
    """The scheduler is gone; what was finished is in the store, and the same call goes on from there."""


class NoChildProcessesError(RuntimeError):
    """A worker of the cluster may not start processes, which a time limit needs."""


def run_on_dask(
    work: Work,
    tasks: Iterable[Task],
    seed: int,
    *,
    cluster: Any = None,
    workers: int | None = None,
    time_limit: float | None = None,
) -> Generator[Finished, None, None]:
    """Tasks on a dask cluster, finished ones in the order in which they finish.

    When a worker dies, the scheduler runs its tasks elsewhere. Tasks that have crashed several workers are run again at
    the end, point by point and one at a time, so that only the point that crashes its worker is marked as failed.

    Arguments:
        cluster: address of a scheduler, a dask Cluster or Client; by default a LocalCluster on this machine.
        workers: processes of that LocalCluster.
        time_limit: seconds per point; per task for a vectorised function.
    """
    if time_limit is not None:
        check_picklable(work)
    with _connected(cluster, workers) as client:
        yield from _Run(client, work, seed, time_limit).finished(iter(tasks))


class _Run:
    """A sweep that runs on a cluster."""

    def __init__(self, client: Any, work: Work, seed: int, time_limit: float | None) -> None:
        self.client, self.work, self.seed, self.time_limit = client, work, seed, time_limit
        self.name = f"sweep-{uuid.uuid4().hex[:12]}"
        self.packed = _packed(work)
        self.returned: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.running: dict[Any, list[Task]] = {}
        # Points of tasks that crashed their workers, to be run one at a time at the end.
        self.suspects: list[Task] = []
        self.one_at_a_time = False
        self.submitted, self.capacity, self.bundle = 0, 1, 1
        self.looked = 0.0

    def finished(self, source: Iterator[Task]) -> Iterator[Finished]:
        """Submits tasks as there is capacity for them, and yields them as they come back."""
        try:
            while True:
                self._look_at_cluster()
                while len(self.running) < self.capacity and (some := list(islice(source, self.bundle))):
                    self._submit(some)
                if not self.running and self.suspects:
                    self.one_at_a_time = True
                    self._submit([self.suspects.pop()])
                if not self.running:
                    return
                try:
                    future = self.returned.get(timeout=LOOK)
                except queue.Empty:
                    continue
                yield from self._take(future)
        finally:
            with contextlib.suppress(Exception):  # of a cluster that is gone nothing can be cancelled
                self.client.cancel(list(self.running), force=True)

    def _submit(self, tasks: list[Task]) -> None:
        self.submitted += 1
        given = [(task.to_run, seeds_of(task, self.seed)) for task in tasks]
        key = f"{self.name}-{self.submitted}"
        future = self.client.submit(_on_worker, self.packed, given, self.time_limit, self.name, key=key, pure=False)
        self.running[future] = tasks
        future.add_done_callback(self.returned.put)

    def _take(self, future: Any) -> list[Finished]:
        """The tasks that came back with their results; none where they are to be run again."""
        from distributed import KilledWorker

        tasks = self.running.pop(future)
        if future.status == "finished":
            try:
                found, seconds = future.result()
            except Exception as error:  # it was there a moment ago: the scheduler is going
                self._check_scheduler(error)
                raise
            self.bundle = min(max(round(BUSY * len(tasks) / max(seconds, 1e-9)), 1), LARGEST_BUNDLE, 2 * self.bundle)
            return list(zip(tasks, found, strict=True))
        if future.status == "error":
            error = future.exception()
            if not isinstance(error, KilledWorker):
                raise _unusable(error, self.work) from error
            if self.one_at_a_time:
                return [(tasks[0], [PointResult({}, f"RuntimeError: the worker died every time ({error})")])]
            self.suspects += [task.only([number]) for task in tasks for number in task.chosen]
        else:  # cancelled or lost: the scheduler forgot it, or there is none any more
            self._check_scheduler()
            self._submit(tasks)
        return []

    def _look_at_cluster(self) -> None:
        """Asks now and then how many tasks the workers can have at once."""
        if time.monotonic() - self.looked < LOOK:
            return
        self._check_scheduler()
        try:
            threads = sum(self.client.nthreads().values())
        except Exception as error:
            self._check_scheduler(error)
            raise
        if not threads:
            # Jobs may wait in a queue for hours, or have died at their start: a bar that stands still says why.
            inside.get()(0, 0, "the cluster has no worker; its own logs say whether its jobs wait or have died")
        self.capacity = max(AHEAD * threads, 1)
        self.looked = time.monotonic()

    def _check_scheduler(self, cause: BaseException | None = None) -> None:
        """Raises an error if the scheduler is gone."""
        comm = getattr(self.client, "scheduler_comm", None)
        is_there = self.client.status == "running" and comm is not None and not comm.closed()
        if not is_there or isinstance(cause, OSError):
            raise ClusterLost(
                f"cluster: the dask scheduler is gone ({self.client.status}); what was finished is in the store, "
                "and the same call goes on from there"
            ) from cause


def _packed(work: Work) -> bytes:
    """The function as bytes, as dask would send it: the scheduler passes them on and need not know its modules."""
    from distributed.protocol.pickle import dumps

    try:
        return dumps(work)
    except Exception as error:
        raise _unusable(error, work) from error


# On a worker: the work of the latest run, unpacked once, and the process of each thread that a time limit needs.
_works: dict[str, Work] = {}
_kept = threading.local()


def _on_worker(
    packed: bytes, given: list[tuple[list[dict[str, Any]], list[int]]], time_limit: float | None, run: str
) -> tuple[list[list[PointResult]], float]:
    """What a worker does with a bundle of tasks: their results, and the seconds it took."""
    from distributed.protocol.pickle import loads

    began = time.perf_counter()
    if run not in _works:
        _works.clear()
        _works[run] = loads(packed)
    work = _works[run]
    if time_limit is None:
        results = [list(run_points(work, points, seeds)) for points, seeds in given]
    else:
        worker = _own_process(work, run)
        results = [worker.results(points, seeds, time_limit) for points, seeds in given]
    return results, time.perf_counter() - began


def _own_process(work: Work, run: str) -> Worker:
    """The process of this thread for points that may have to be stopped."""
    if multiprocessing.current_process().daemon:
        raise NoChildProcessesError
    if getattr(_kept, "run", None) != run:
        if hasattr(_kept, "worker"):
            _kept.worker.end()
        _kept.worker, _kept.run = Worker(work), run
    return _kept.worker


def _unusable(error: BaseException, work: Work) -> Exception:
    """What a cluster could not run at all, as an error of the argument that is to blame."""
    if isinstance(error, NoChildProcessesError):
        return fail(
            "time_limit",
            "workers that may not start processes",
            "workers started with DASK_DISTRIBUTED__WORKER__DAEMON=False, or no time limit",
        )
    name = getattr(work.function, "__qualname__", work.function)
    return fail(
        "function",
        f"{name!r}, which the workers cannot run ({type(error).__name__}: {error})",
        "one that can be sent to them; they need what it imports, and this library",
    )


@contextlib.contextmanager
def _connected(cluster: Any, workers: int | None) -> Iterator[Any]:
    """A client of the cluster; closed afterwards where it was made here."""
    try:
        from dask import config
        from distributed import Client, LocalCluster
    except ImportError as error:
        expected = "the extra: pip install 'thermoformer[cluster]', or another executor"
        raise fail("executor", "'dask', which is not installed", expected) from error
    if isinstance(cluster, Client):
        yield cluster
        return
    if cluster is None:
        count = None if workers is None else positive_integer("workers", workers)
        # Workers of this machine may start processes, which is what a time limit needs.
        with (
            config.set({"distributed.worker.daemon": False}),
            LocalCluster(n_workers=count, threads_per_worker=1, processes=True, dashboard_address=":0") as here,
            Client(here) as client,
        ):
            yield client
        return
    try:
        client = Client(cluster, timeout=CONNECT)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        expected = "the address of a dask scheduler, a Cluster or a Client"
        raise fail("cluster", f"{cluster!r} ({error})", expected) from error
    try:
        yield client
    finally:
        # A scheduler that is gone does not answer; the error of that has been raised already.
        log = logging.getLogger("distributed.client")
        before = log.disabled
        log.disabled = before or client.status != "running"
        with contextlib.suppress(Exception):
            client.close(timeout=2)
        log.disabled = before

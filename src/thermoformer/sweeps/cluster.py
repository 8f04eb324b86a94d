"""Tasks on a dask cluster: workers come, die and come back; the store is written here, by one process."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import queue
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from .._progress import inside
from .._validation import fail, positive_integer
from .executors import Finished, Worker, check_picklable, seeds_of
from .grid import Task
from .work import PointResult, Work, run_points

# Tasks per thread of the cluster that are handed over at once: one runs, the next waits beside it.
AHEAD = 3
# Quick tasks are handed over in bundles that keep a worker busy for about this long, in seconds: a message costs
# milliseconds.
BUSY, LARGEST_BUNDLE = 0.1, 100
# How often to look whether workers came or the scheduler is gone, in seconds.
LOOK = 1.0
# How long to knock at an address, in seconds.
CONNECT = 5


class ClusterLost(ConnectionError):
    """The scheduler is gone; what was finished is in the store, and the same call goes on from there."""


class NoChildProcessesError(RuntimeError):
    """A worker of the cluster may not start processes, which a time limit needs."""


@dataclass
class _Share:
    """A task on its way, all at once or point by point: results by their place among the chosen points."""

    task: Task
    seeds: list[int]
    results: dict[int, PointResult] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.results) == len(self.task.chosen)


# A task, or some of its points.
_Piece = tuple[_Share, list[int]]


def run_on_dask(
    work: Work,
    tasks: Iterable[Task],
    seed: int,
    *,
    cluster: Any = None,
    workers: int | None = None,
    time_limit: float | None = None,
) -> Iterator[Finished]:
    """Tasks on a dask cluster, finished ones in the order in which they finish.

    A worker that dies is the scheduler's business: it runs elsewhere what that worker had. What has seen several die is
    tried again at the end, point by point and alone, so that the guilty fail and not who waited beside them.

    Arguments:
        cluster: address of a scheduler, a dask Cluster or Client; a LocalCluster on this machine where absent.
        workers: processes of that LocalCluster.
        time_limit: seconds per point; per task for a vectorised function.
    """
    if time_limit is not None:
        check_picklable(work)
    with _connected(cluster, workers) as client:
        yield from _Run(client, work, seed, time_limit).finished(iter(tasks))


class _Run:
    """Tasks that are with a cluster."""

    def __init__(self, client: Any, work: Work, seed: int, time_limit: float | None) -> None:
        self.client, self.work, self.seed, self.time_limit = client, work, seed, time_limit
        self.name = f"sweep-{uuid.uuid4().hex[:12]}"
        self.sent = _packed(work)
        self.back: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.running: dict[Any, list[_Piece]] = {}
        self.suspects: list[tuple[_Share, int]] = []
        self.alone = False
        self.handed, self.room, self.looked = 0, 1, 0.0
        self.bundle = 1

    def finished(self, source: Iterator[Task]) -> Iterator[Finished]:
        """Hands tasks over as there is room, and yields them as they come back."""
        try:
            while True:
                self._look()
                while len(self.running) < self.room and (some := list(islice(source, self.bundle))):
                    shares = [_Share(task, seeds_of(task, self.seed)) for task in some]
                    self._hand_over([(share, list(range(len(share.seeds)))) for share in shares])
                if not self.running and self.suspects:
                    self.alone = True
                    share, place = self.suspects.pop()
                    self._hand_over([(share, [place])])
                if not self.running:
                    return
                try:
                    future = self.back.get(timeout=LOOK)
                except queue.Empty:
                    continue
                for share in self._take(future):
                    yield share.task, [share.results[place] for place in range(len(share.results))]
        finally:
            with contextlib.suppress(Exception):  # of a cluster that is gone nothing can be cancelled
                self.client.cancel(list(self.running), force=True)

    def _hand_over(self, pieces: list[_Piece]) -> None:
        self.handed += 1
        given = [
            ([share.task.to_run[place] for place in places], [share.seeds[place] for place in places])
            for share, places in pieces
        ]
        key = f"{self.name}-{self.handed}"
        future = self.client.submit(_on_worker, self.sent, given, self.time_limit, self.name, key=key, pure=False)
        self.running[future] = pieces
        future.add_done_callback(self.back.put)

    def _take(self, future: Any) -> list[_Share]:
        """What a bundle of tasks came back with: the shares that are complete by now."""
        from distributed import KilledWorker

        pieces = self.running.pop(future)
        if future.status == "finished":
            try:
                found, seconds = future.result()
            except Exception as error:  # it was there a moment ago: the scheduler is going
                self._lost(error)
                raise
            self.bundle = min(max(round(BUSY * len(pieces) / max(seconds, 1e-9)), 1), LARGEST_BUNDLE, 2 * self.bundle)
            for (share, places), results in zip(pieces, found, strict=True):
                share.results |= dict(zip(places, results, strict=True))
        elif future.status == "error":
            error = future.exception()
            if not isinstance(error, KilledWorker):
                raise _unusable(error, self.work) from error
            if self.alone:
                (share, places) = pieces[0]
                share.results[places[0]] = PointResult({}, f"RuntimeError: the worker died every time ({error})", 0.0)
            else:
                self.suspects += [(share, place) for share, places in pieces for place in places]
        else:  # cancelled or lost: the scheduler forgot it, or there is none any more
            self._lost(None)
            self._hand_over(pieces)
        return [share for share, _ in pieces if share.complete]

    def _look(self) -> None:
        """Whether the scheduler is there, and how many tasks its workers can have at once."""
        if time.monotonic() - self.looked < LOOK:
            return
        self._lost(None)
        try:
            threads = sum(self.client.nthreads().values())
        except Exception as error:
            self._lost(error)
            raise
        if not threads:
            # Jobs may wait in a queue for hours, or have died at their start: a bar that stands still says why.
            inside.get()(0, 0, "the cluster has no worker; its own logs say whether its jobs wait or have died")
        self.room = max(AHEAD * threads, 1)
        self.looked = time.monotonic()

    def _lost(self, cause: BaseException | None) -> None:
        comm = getattr(self.client, "scheduler_comm", None)
        there = self.client.status == "running" and comm is not None and not comm.closed()
        if not there or isinstance(cause, OSError):
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


def _on_worker(
    sent: bytes, given: list[tuple[list[dict[str, Any]], list[int]]], time_limit: float | None, run: str
) -> tuple[list[list[PointResult]], float]:
    """What a worker does with a bundle of tasks: their results, and the seconds it took."""
    from distributed.protocol.pickle import loads

    began = time.perf_counter()
    if run not in _works:
        _works.clear()
        _works[run] = loads(sent)
    results = [_finished(_works[run], points, seeds, time_limit, run) for points, seeds in given]
    return results, time.perf_counter() - began


def _finished(
    work: Work, points: list[dict[str, Any]], seeds: list[int], time_limit: float | None, run: str
) -> list[PointResult]:
    if time_limit is None:
        return list(run_points(work, points, seeds))
    if multiprocessing.current_process().daemon:
        raise NoChildProcessesError
    # Every thread of a worker keeps a process of its own for points that may have to be stopped.
    if getattr(_kept, "run", None) != run:
        if hasattr(_kept, "worker"):
            _kept.worker.end()
        _kept.worker, _kept.run = Worker(work), run
    return _kept.worker.results(points, seeds, time_limit)


# The work of the latest run, unpacked once; the process of each thread that a time limit needs.
_works: dict[str, Work] = {}
_kept = threading.local()


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
        raise fail(
            "executor", "'dask', which is not installed", "pip install 'thermoformer[cluster]', or another executor"
        ) from error
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
        raise fail(
            "cluster", f"{cluster!r} ({error})", "the address of a dask scheduler, a Cluster or a Client"
        ) from error
    try:
        yield client
    finally:
        # A scheduler that is gone cannot say goodbye; that it was sought in vain has been said already.
        log = logging.getLogger("distributed.client")
        before = log.disabled
        log.disabled = before or client.status != "running"
        with contextlib.suppress(Exception):
            client.close(timeout=2)
        log.disabled = before

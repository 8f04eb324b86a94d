"""Parts of a run: their progress, and independent ones in threads, so that compilation fills two cores."""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import jax

from .._progress import Progress
from .._validation import positive_integer
from ..learning import SamplingWarning


def in_threads(tasks: Sequence[Callable[[Progress], Any]], progress: Progress, workers: int) -> list[Any]:
    """The results of tasks, in order; where one ends with an error, or the user stops, the others end as well.

    Arguments:
        tasks: each takes what it reports its progress to, and can be stopped only where it reports.
        workers: how many run at once; one takes no threads.
    """
    if positive_integer("workers", workers) == 1:
        return [task(progress) for task in tasks]
    stop, lock = threading.Event(), threading.Lock()

    def report(done: float, total: int, message: str) -> None:
        if stop.is_set():
            raise InterruptedError("another part was stopped")
        with lock:
            progress(done, total, message)

    with warnings.catch_warnings():
        # Results say what has not mixed. Filters belong to the process: one that a task sets may end in mid-task.
        warnings.simplefilter("ignore", SamplingWarning)
        pool = ThreadPoolExecutor(workers)
        running = [pool.submit(task, report) for task in tasks]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
            for task in running:
                if task.done():
                    task.result()
            return [task.result() for task in running]
        except BaseException as error:
            stop.set()
            # Who presses Ctrl-C does not wait for parts to notice; their results are of no use to anybody.
            pool.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
            raise
        finally:
            pool.shutdown(wait=not stop.is_set())


def usual_workers() -> int:
    """Two on a CPU; one on an accelerator, which a single part fills, or in one of several processes."""
    alone = multiprocessing.parent_process() is None
    return 2 if alone and jax.default_backend() == "cpu" else 1


def within(progress: Progress, step: int, steps: int, where: str, *, counts: bool = False) -> Progress:
    """Progress of what happens inside a step: in the message, and added to the count only if it counts steps itself."""
    return lambda done, total, message: progress(step + done * counts, steps, f"{where}: {message}")

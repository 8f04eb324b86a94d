"""Long computations in slices, and the locks that let sessions take turns."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator

# One lock per view: neither waits for what the other compiles. In Learning it is necessary: two threads that call
# LAPACK inside XLA at once may block each other for good. Programs of Dynamics call no LAPACK.
learning_lock, dynamics_lock = threading.Lock(), threading.Lock()
# Sizes whose programs are compiled; any other takes seconds longer.
compiled: set[Hashable] = set()


class Work(ABC):
    """A computation in slices. Nothing runs between calls of `advance`, so a page that is closed costs nothing.

    Arguments:
        lock: held during a slice.

    Fields:
        fraction: how much is done, from 0 to 1.
        done: whether all is.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self.fraction, self.done = 0.0, False
        self._lock, self._slices = lock, self.slices()

    @abstractmethod
    def slices(self) -> Iterator[None]:
        """The computation, with a yield after each slice but the last."""

    def advance(self) -> None:
        """Computes the next slice, if one is left."""
        with self._lock:
            try:
                next(self._slices)
            except StopIteration:
                self.fraction, self.done = 1.0, True

    def finish(self) -> None:
        """Computes all slices that are left."""
        while not self.done:
            self.advance()

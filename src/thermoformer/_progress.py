"""Progress of long work: it reports to a callable, and a bar is drawn in the terminal or in a notebook."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

# A notebook is not redrawn more often than this, in seconds.
REDRAWN = 0.2


class Progress(Protocol):
    """What long work calls along the way: steps done, steps in all, what comes next."""

    def __call__(self, done: int, total: int, message: str) -> None:
        """Called before each step."""
        ...


def silent(done: int, total: int, message: str) -> None:
    """Progress for those who asked for none."""


# Where the function of a sweep may report what it does within a point: a message in the bar of a run in this process.
inside: ContextVar[Progress] = ContextVar("inside", default=silent)


@contextmanager
def console_progress(console: Console | None = None) -> Iterator[Progress]:
    """A progress bar on the console, as a callable that long work reports to.

    Arguments:
        console: where to draw; by default standard error, so that standard output holds results alone.

    Example:
        >>> from rich.console import Console
        >>> with console_progress(Console(quiet=True)) as progress:
        ...     progress(1, 2, "half way")
    """
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with RichProgress(*columns, console=console or Console(stderr=True)) as bars:
        bar = bars.add_task("starting", total=None)

        def report(done: int, total: int, message: str) -> None:
            bars.update(bar, completed=done, total=total, description=message)

        try:
            yield report
        except Exception:
            # The last state of a bar would be a line beside the error in a log.
            bars.live.transient = not bars.console.is_terminal
            raise


@contextmanager
def notebook_progress() -> Iterator[Progress]:
    """The same in a notebook: a bar of its own, redrawn in place."""
    from IPython.display import HTML, display  # type: ignore[reportMissingImports]

    shown = display(HTML(_bar(0, 1, "starting")), display_id=True)
    assert shown is not None  # a display with an identity of its own
    last, state = 0.0, (0, 1, "starting")

    def report(done: int, total: int, message: str) -> None:
        nonlocal last, state
        state = (done, total, message)
        if time.monotonic() - last >= REDRAWN:
            last = time.monotonic()
            shown.update(HTML(_bar(*state)))

    try:
        yield report
    finally:
        shown.update(HTML(_bar(*state)))


@contextmanager
def shown_progress(progress: Progress | bool | None) -> Iterator[Progress]:
    """Where long work reports to: the given callable; a bar for True; nothing for False.

    For None, a bar in a notebook or a terminal, and nothing in a script whose output goes to a file.
    """
    if callable(progress):
        yield progress
    elif progress is False:
        yield silent
    elif in_notebook():
        with notebook_progress() as report:
            yield report
    elif progress or sys.stderr.isatty():
        with console_progress() as report:
            yield report
    else:
        yield silent


def with_time_left(progress: Progress) -> Progress:
    """The same progress, whose messages end with the time left, by the steps since the total last changed.

    Example:
        >>> report = with_time_left(lambda done, total, message: print(message.split(", ")[-1][-6:]))
        >>> for done in range(3):
        ...     report(done, 2, "steps")
        steps
        s left
        steps
    """
    first, began, known = 0, 0.0, -1

    def report(done: int, total: int, message: str) -> None:
        nonlocal first, began, known
        if total != known or done < first:
            first, began, known = done, time.monotonic(), total
        elif first < done < total:
            left = (time.monotonic() - began) / (done - first) * (total - done)
            message = f"{message}, {duration(left)} left"
        progress(done, total, message)

    return report


def duration(seconds: float) -> str:
    """Seconds, or hours and minutes where there are many.

    Example:
        >>> duration(90), duration(6300)
        ('90 s', '1 h 45 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def in_notebook() -> bool:
    """Whether this is a cell of a notebook: IPython with a kernel behind it."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def _bar(done: int, total: int, message: str) -> str:
    return (
        f'<progress value="{done}" max="{max(total, 1)}" style="width: 16em; vertical-align: middle"></progress> '
        f"{done}/{total} {html.escape(message)}"
    )

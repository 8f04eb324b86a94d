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

    def __call__(self, done: float, total: int, message: str) -> None:
        """Called before each step, and perhaps in the middle of one."""
        ...


def silent(done: float, total: int, message: str) -> None:
    """Progress for those who asked for none."""


# Where work inside a step may report: the function of a sweep to the bar of a run in this process, passes of pretrained
# models over data to `advanced_by_passes`.
inside: ContextVar[Progress] = ContextVar("inside", default=silent)


@contextmanager
def advanced_by_passes(progress: Progress) -> Iterator[Progress]:
    """Progress whose steps also advance with the passes over data that report to `inside` meanwhile.

    A step is expected to have as many passes as the one before it, two at first.

    Example:
        >>> with advanced_by_passes(lambda done, total, message: print(done, total, message)) as report:
        ...     report(3, 10, "scores")
        ...     inside.get()(1, 2, "")
        3 10 scores
        3.25 10 scores
    """
    if progress is silent:  # what is around this has a bar
        yield progress
        return
    step, passes, expected = (0.0, 1, ""), 0, 2

    def begin(done: float, total: int, message: str) -> None:
        nonlocal step, passes, expected
        step, passes, expected = (done, total, message), 0, passes or expected
        progress(*step)

    def advance(done: float, total: int, message: str) -> None:
        nonlocal passes
        progress(step[0] + min((passes + done / total) / expected, 1.0), *step[1:])
        passes += done >= total

    token = inside.set(advance)
    try:
        yield begin
    finally:
        inside.reset(token)


class TimeLeft:
    """The time left at the pace so far, in words; the pace begins anew where other work does.

    Example:
        >>> left = TimeLeft()
        >>> left.after(0, 10, now=0.0), left.after(2, 10, now=60.0), left.after(0, 3, now=70.0)
        ('', '4 min left', '')
    """

    def __init__(self) -> None:
        self._total, self._first, self._last, self._began = 0, 0.0, 0.0, 0.0

    def after(self, done: float, total: int, now: float | None = None) -> str:
        """Empty before there is a pace, and at the end.

        Arguments:
            done, total: as reported.
            now: seconds; default: the clock.
        """
        now = time.monotonic() if now is None else now
        if total != self._total or done < self._last:
            self._total, self._first, self._began = total, done, now
        self._last = done
        if not self._first < done < total:
            return ""
        seconds = (now - self._began) * (total - done) / (done - self._first)
        minutes = round(seconds / 60)
        if seconds < 100:
            return f"{seconds:.0f} s left"
        return f"{minutes} min left" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min left"


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
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}"),
    )
    with RichProgress(*columns, console=console or Console(stderr=True)) as bars:
        bar, left = bars.add_task("starting", total=None, left=""), TimeLeft()

        def report(done: float, total: int, message: str) -> None:
            bars.update(bar, completed=done, total=total, description=message, left=left.after(done, total))

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

    state: tuple[float, int, str, str] = (0, 1, "starting", "")
    shown = display(HTML(_bar(*state)), display_id=True)
    assert shown is not None  # a display with an identity of its own
    last, left = 0.0, TimeLeft()

    def report(done: float, total: int, message: str) -> None:
        nonlocal last, state
        state = (done, total, message, left.after(done, total))
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


def in_notebook() -> bool:
    """Whether this is a cell of a notebook: IPython with a kernel behind it."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def _bar(done: float, total: int, message: str, left: str) -> str:
    bar = f'<progress value="{done:g}" max="{max(total, 1)}" style="width: 16em; vertical-align: middle"></progress>'
    return " ".join(filter(None, (bar, f"{int(done)}/{total}", left, html.escape(message))))

"""Progress of a long run: experiments report to a callable, the console draws a bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress


class Progress(Protocol):
    """What an experiment calls along the way: steps done, steps in all, what comes next."""

    def __call__(self, done: int, total: int, message: str) -> None:
        """Called before each step."""
        ...


@contextmanager
def console_progress(console: Console | None = None) -> Iterator[Progress]:
    """A progress bar on the console, as a callable that experiments report to.

    Arguments:
        console: where to draw; standard error where absent, so that standard output stays clean for results.

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

        yield report


def silent(done: int, total: int, message: str) -> None:
    """Progress for those who asked for none."""

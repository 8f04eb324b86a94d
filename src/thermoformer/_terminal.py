"""What the command line says and how it ends: results on one channel, messages on the other, errors in one line."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from ._validation import fail

BAD_INPUT, NOT_CONVERGED, INTERRUPTED = 2, 3, 130

screen = Console()
# Progress and errors go here, so that standard output holds results alone.
messages = Console(stderr=True)


@contextmanager
def plain_errors(kept: Path | None = None) -> Iterator[None]:
    """Errors that a user can mend are one line and an exit code; anything else is a bug and keeps its traceback."""
    try:
        yield
    except typer.Exit:  # a RuntimeError by descent
        raise
    except KeyboardInterrupt:
        # Locks and the like, whose names begin with a dot, hold no work.
        files = [file for file in kept.rglob("[!.]*") if file.is_file()] if kept else []
        held = f"{kept} holds {len(files)} files, and the same command goes on from there"
        stop(f"Interrupted; {held if files else 'nothing was written'}", INTERRUPTED)
    except (ValueError, OSError) as error:
        stop(str(error), BAD_INPUT)
    except ImportError as error:
        # Ours say what to install, and name no module.
        if error.name is not None:
            raise
        stop(str(error), BAD_INPUT)
    except RuntimeError as error:
        from .learning import ConvergenceError  # JAX, which most errors need not wait for

        if not isinstance(error, ConvergenceError):
            raise
        stop(str(error), NOT_CONVERGED)


@contextmanager
def quick_end() -> Iterator[None]:
    """Sees to it that Ctrl-C ends the process, and at once: for the command alone, never for a caller in Python.

    A program of XLA may still be under way in its threads; the usual end would take the ground from under it. What
    holds files, locks and other processes has let go by now, as the interruption went through it.
    """
    sys.unraisablehook = _interrupt_again
    try:
        yield
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a pipe that nobody reads any more
                stream.flush()
        os._exit(INTERRUPTED)
    finally:
        sys.unraisablehook = sys.__unraisablehook__


def _interrupt_again(found: Any) -> None:
    """Ctrl-C in the middle of a callback of JAX at the collection of garbage is dropped by Python: it comes again."""
    if not issubclass(found.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(found)
        return
    # From here it would be dropped as well.
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()


def folder_for_results(out: Path) -> None:
    """Refuses a folder that cannot be made or written to, before anything is computed for it."""
    place = out
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise fail("out", f"{out} ({place} is a file)", "a folder, there or to be made")
    if not os.access(place, os.W_OK):
        raise fail("out", f"{out} ({place} cannot be written to)", "a folder that can be written to")


def file_for_results(out: Path) -> None:
    """Refuses a file that cannot be written, before anything is computed for it."""
    if out.is_dir():
        raise fail("out", f"{out}, a folder", "a file")
    folder_for_results(out.parent)


def stop(message: str, code: int) -> NoReturn:
    """One line on the screen's other channel, and the end with this exit code."""
    messages.print(Text(" ".join(message.split()), style="red"), soft_wrap=True)
    raise typer.Exit(code)

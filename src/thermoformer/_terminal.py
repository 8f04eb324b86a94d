"""Output and exit of the command line: results on standard output, messages on standard error, errors in one line."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
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
        left = f"{kept} holds {len(files)} files, and the same command goes on from there"
        stop(f"Interrupted; {left if files else 'nothing was written'}", INTERRUPTED)
    except BrokenPipeError:  # typer ends quietly if nobody reads the output
        raise
    except ValueError as error:
        stop(str(error), BAD_INPUT)
    except OSError as error:
        # Errors of Python name a file; a write to a full disk names nothing.
        unnamed = error.errno is not None and error.filename is None
        stop(f"output: got an error ({error.strerror}); expected space to write" if unnamed else str(error), BAD_INPUT)
    except MemoryError as error:
        stop(f"memory: got a size that does not fit ({error}); expected smaller sizes", BAD_INPUT)
    except ImportError as error:
        # Ours say what to install, and name no module.
        if error.name is not None:
            raise
        stop(str(error), BAD_INPUT)
    except RuntimeError as error:
        # XLA's own error of memory.
        if "RESOURCE_EXHAUSTED" in str(error):
            stop("memory: got a size that does not fit; expected smaller sizes", BAD_INPUT)
        from .learning import ConvergenceError  # JAX, which most errors need not wait for

        if not isinstance(error, ConvergenceError):
            raise
        stop(str(error), NOT_CONVERGED)


def run_command(app: Callable[[], Any]) -> NoReturn:
    """Runs the command line in a process of its own, and ends the process: at once after Ctrl-C.

    After Ctrl-C a program of XLA may still run in its threads, and a normal exit would free the memory that it uses.
    Files, locks and other processes have been closed by then, by the exception.

    Arguments:
        app: the command line, which raises SystemExit at its end.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the encoding lacks are written as escapes
            stream.reconfigure(errors="backslashreplace")
    code: Any = 0
    sys.unraisablehook = _interrupt_again
    try:
        if sys.stdout is None:
            raise OSError(errno.EBADF, "closed")
        app()
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:  # before a command began
        _say("Interrupted; nothing was written")
        code = INTERRUPTED
    except OSError as error:
        code = _unwritable(error)
    finally:
        sys.unraisablehook = sys.__unraisablehook__
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        code = code or _unwritable(error)
    if code == INTERRUPTED:
        with suppress(OSError, ValueError):
            messages.file.flush()
        os._exit(INTERRUPTED)
    sys.exit(code)


def _unwritable(error: OSError) -> int:
    """Says why standard output cannot be written to; returns the exit code. Quiet if the reader of a pipe has left."""
    if not isinstance(error, BrokenPipeError):
        _say(f"standard output: got an error ({error.strerror}); expected a file or terminal to write to")
    if sys.stdout is not None:
        # What is left in the buffer goes nowhere: Python would try to write it again at its end.
        with suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return BAD_INPUT


def _interrupt_again(found: Any) -> None:
    """Repeats a Ctrl-C that Python dropped, as it does in a callback of JAX at the collection of garbage."""
    if not issubclass(found.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(found)
        return
    # Raised here it would be dropped as well, so it comes a little later; on a busy machine even that may be too early.
    repeated = False
    while not repeated:
        with suppress(KeyboardInterrupt):
            _interrupt_until_heard()
            repeated = True


def _interrupt_until_heard() -> None:
    """Sends Ctrl-C ten times a second until Python hears it: one that comes just before a sleep does not end it."""
    usual = signal.getsignal(signal.SIGINT)
    heard: list[bool] = []

    def hear(number: int, frame: Any) -> None:
        heard.append(True)
        signal.signal(signal.SIGINT, usual)
        if callable(usual):
            usual(number, frame)

    def send() -> None:
        time.sleep(0.1)
        while not heard:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    signal.signal(signal.SIGINT, hear)
    threading.Thread(target=send, daemon=True).start()


def folder_for_results(out: Path) -> None:
    """Refuses a folder that cannot be made or written to, before anything is computed for it."""
    place = out
    while not os.path.lexists(place) and place != place.parent:
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
    """Prints one line on standard error and ends with this exit code."""
    _say(message)
    raise typer.Exit(code)


def _say(message: str) -> None:
    with suppress(OSError, ValueError):  # standard error may be closed or full
        messages.print(Text(" ".join(message.split()), style="red"), soft_wrap=True)

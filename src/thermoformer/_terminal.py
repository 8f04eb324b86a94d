"""What the command line says and how it ends: results on one channel, messages on the other, errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

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


def stop(message: str, code: int) -> NoReturn:
    """One line on the screen's other channel, and the end with this exit code."""
    messages.print(Text(" ".join(message.split()), style="red"), soft_wrap=True)
    raise typer.Exit(code)

"""One writer at a time: a lock file that says who holds it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from filelock import lock_descriptor, unlock_descriptor

from ._validation import fail

# Whoever asks for the holder has the lock for an instant: attempts in a row, and the seconds between them.
_ATTEMPTS, _PAUSE = 5, 0.002
# Windows refuses to read the byte at 0, which is the one that is locked: the text begins behind it.
_TEXT = 1


@contextmanager
def locked(file: Path, refusal: Callable[[str], Exception], *, name: str = "folder") -> Iterator[None]:
    """Locks a file, which is made with its folder if missing. The lock ends with the process; the file stays.

    Arguments:
        refusal: makes the error to raise while another process holds the lock, from words that name it.
        name: of the argument that the folder came as.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / ".lock"
        >>> with locked(file, ValueError):
        ...     lock_holder(file).startswith("process ")
        True
        >>> lock_holder(file)
        ''
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        opened = file.open("a+", encoding="utf-8")
    except OSError as error:
        got = f"{file.parent} ({error.strerror})"
        raise fail(name, got, "a folder that can be written to") from error
    with opened as stream:
        try:
            acquired = _acquired(stream)
        except OSError as error:
            got = f"{file.parent} ({error.strerror})"
            raise fail(name, got, "a folder on a file system that can lock files") from error
        if not acquired:
            raise refusal(_holder(stream))
        try:
            stream.truncate(0)
            began = time.strftime("%Y-%m-%d %H:%M:%S")
            stream.write(f"{' ' * _TEXT}process {os.getpid()} on {socket.gethostname()} (since {began})")
            stream.flush()
            yield
        finally:
            unlock_descriptor(stream.fileno())


def lock_holder(file: Path) -> str:
    """Who holds the lock of a file, in words; empty if nobody does."""
    try:
        with file.open("r", encoding="utf-8") as stream:
            if not _acquired(stream):
                return _holder(stream)
            unlock_descriptor(stream.fileno())
    except OSError:  # none has ever held it, or we may not look
        pass
    return ""


def _acquired(stream: IO[str]) -> bool:
    """Whether the lock of an open file is ours now."""
    for _ in range(_ATTEMPTS):
        if lock_descriptor(stream.fileno(), blocking=False):
            return True
        time.sleep(_PAUSE)
    return False


def _holder(stream: IO[str]) -> str:
    stream.seek(_TEXT)
    return stream.read().strip() or "another process"

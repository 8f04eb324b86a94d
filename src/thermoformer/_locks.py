"""One writer at a time: a lock file that says who holds it."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ._validation import fail


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
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            stream.seek(0)
            raise refusal(stream.read().strip() or "another process") from error
        stream.truncate(0)
        began = time.strftime("%Y-%m-%d %H:%M:%S")
        stream.write(f"process {os.getpid()} on {socket.gethostname()} (since {began})")
        stream.flush()
        yield


def lock_holder(file: Path) -> str:
    """Who holds the lock of a file, in words; empty if nobody does."""
    try:
        with file.open("r", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return stream.read().strip() or "another process"
    except OSError:  # none has ever held it, or we may not look
        pass
    return ""

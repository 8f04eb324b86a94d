"""The explorer as a user starts it: the command, in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Explorer:
    """A running explorer: its link, its port, and how to stop it."""

    def __init__(self, process: subprocess.Popen[str], link: str) -> None:
        self.process, self.link = process, link
        found = re.search(r":(\d+)/", link)
        assert found is not None, link
        self.port = int(found[1])

    def stop(self) -> tuple[int, str]:
        """Ctrl-C: the exit code, and what it printed meanwhile."""
        self.process.send_signal(signal.SIGINT)
        try:
            printed, _ = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, printed


@contextmanager
def explorer(*options: str) -> Iterator[Explorer]:
    """The command, from the line that says where it is until the block ends."""
    command = [sys.executable, "-m", "thermoformer", "explore", "--no-browser", *options]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    # A command that never says where it is ends the test, not the patience of who runs it.
    limit = threading.Timer(120, process.kill)
    limit.start()
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"Explorer: (\S+)", line):
                limit.cancel()
                yield Explorer(process, found[1])
                break
        else:
            raise AssertionError("".join(said))
    finally:
        limit.cancel()
        if process.poll() is None:
            process.kill()
            process.communicate()

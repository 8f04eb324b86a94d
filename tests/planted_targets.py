"""Targets of the fuzz harness with known faults; its children import them by name."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np


def planted(folder: Path) -> Any:
    """Numbers decide what happens: see `EXPECTED`."""

    def attempt(random: Random, place: Path, number: int) -> None:
        (place / "input.txt").write_text(str(random.random()))
        actions = (
            lambda: None,
            lambda: _raise(ValueError("file: got this; expected that")),
            lambda: _raise(FileNotFoundError(2, "No such file", "x")),
            lambda: _raise(ValueError("bad")),
            lambda: _raise(KeyError("x")),
            lambda: os.abort(),
            lambda: time.sleep(60),
            lambda: subprocess.run(["true"], check=True),
            lambda: np.ones(2**24),  # 128 MiB
            lambda: None,
        )
        actions[number]()

    return attempt


# Per number: the outcome, and the beginning of a failure's signature.
EXPECTED = (
    ("accepted", ""),
    ("refused", ""),
    ("refused", ""),
    ("failure", "unclear message: ValueError"),
    ("failure", "KeyError"),
    ("failure", "crash: exit code -6"),
    ("failure", "no answer within 3 s"),
    ("failure", "subprocess.Popen"),
    ("failure", "memory"),
    ("accepted", ""),
)


def _raise(error: Exception) -> None:
    raise error

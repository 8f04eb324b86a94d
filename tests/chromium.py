"""A real browser for tests: Debian's Chromium, another in the path, or the one that the environment names."""

from __future__ import annotations

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# As an administrator in a container has no sandbox; nothing is asked of the network.
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Pages share a process: the second one finds the scripts of the first compiled.
    "--process-per-site",
]


def chromium() -> str:
    """The path of the browser; the test that asks is skipped where there is none."""
    found = os.environ.get("THERMOFORMER_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium in the path; install one, or name it in THERMOFORMER_CHROMIUM")
    return found

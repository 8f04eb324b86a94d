"""Functions that the tests of sweeps send to other processes."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import xarray as xr


def plain(a, b, seed):
    """A number, an array and a random number."""
    return {"product": a * b, "powers": np.array([a, a**2, a**3]) + b, "noise": np.random.default_rng(seed).normal()}


def arrays(a, b):
    return {"product": a * b, "powers": np.stack([a, a**2], axis=1)}


def slow(a, b, seed, wait=0.02):
    time.sleep(wait)
    return plain(a, b, seed)


def faulty(a, b, seed):
    """Some points raise, some return NaN, some hang, some kill their process."""
    if (a, b) == (1.0, 2):
        raise RuntimeError("no such luck")
    if (a, b) == (2.0, 0):
        return plain(np.nan, b, seed)
    if (a, b) == (3.0, 1):
        time.sleep(600)
    if (a, b) == (4.0, 3):
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(a, b, seed)


# What is said of the points of `faulty` in processes that may take 3 s over a point.
FAULTS = {
    (1.0, 2): "RuntimeError: no such luck",
    (2.0, 0): "ValueError: product is NaN (allow_nan=True takes it for a result)",
    (3.0, 1): "TimeoutError: took longer than time_limit = 3 s",
    (4.0, 3): "RuntimeError: the worker died 3 times (exit -9)",
}


def deadly(a, b, seed):
    if (a, b) == (4.0, 3):
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(a, b, seed)


def mended(a, b, seed):
    return plain(a, b, seed)


def nothing(a):
    return {"double": 2 * a}


def logged(a, b, seed, log="", wait=0.0):
    """Writes down that it was called; takes longer where told so, or where the environment says so."""
    with open(log, "a") as file:
        file.write(f"{a} {b}\n")
    time.sleep(float(os.environ.get("SECONDS_PER_POINT", wait)))
    return plain(a, b, seed)


def weighed(a, weights):
    return {"sum": a * np.sum(weights)}


def nothing_at_three(a, b, c):
    if a == 3:
        raise ValueError("three")
    return {"sum": np.array([a + b, 0.0])}


def hanging(a):
    if a == 2:
        time.sleep(600)
    return {"half": a / 2}


def varied(a, b):
    """Results of every kind that a store holds: a number, a count, a word and an array, with coordinates."""
    if (a, b) == (2.0, 1):
        raise RuntimeError("no such luck")
    spectrum = np.sin(a * np.arange(600.0)).reshape(2, 300) + b
    return xr.Dataset(
        {
            "product": a * b,
            "count": b + 1,
            "word": f"{a} of {b}",
            "spectrum": (("line", "sample"), spectrum, {"unit": "eV"}),
        },
        {"line": ["low", "high"]},
        {"title": "varied"},
    )

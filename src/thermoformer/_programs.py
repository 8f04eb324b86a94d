"""Compiled programs, kept on disk so that the next command starts sooner.

JAX compiles a program for every new shape, and most of a short command's time goes there. Commands therefore keep their
programs in a folder of the user. Python code does so if the environment variable `THERMOFORMER_CACHE` names a folder:
JAX has one folder for the whole process, and the choice is the user's. A program is found again by its contents, JAX's
version and the compiler's flags, so a changed formula is another program.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import warnings
from pathlib import Path
from typing import Any

# A program has about 50 kB; half of the folder goes when it is larger than this.
MOST_BYTES = 2**30


def keep_programs() -> None:
    """Lets JAX keep compiled programs on disk.

    The folder is `THERMOFORMER_CACHE`, by default `thermoformer` in the user's folder for caches; 0 or nothing turns it
    off. JAX's own `JAX_COMPILATION_CACHE_DIR` comes first.
    """
    # A write that was killed leaves half a file. JAX then compiles the program again; the user need not know.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    folder = os.environ.get("THERMOFORMER_CACHE", str(_caches() / "thermoformer"))
    if folder in ("", "0") or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    # Machines that share a home folder may have different processors.
    place = Path(folder) / f"programs-{_processor()}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        _shrink(place)
    except OSError:
        return
    wanted: dict[str, Any] = {
        "jax_compilation_cache_dir": str(place),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in wanted.items():
        # In the environment for JAX, which commands import late, and for processes that are started.
        os.environ.setdefault(name.upper(), str(value))
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name, value)


def _caches() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _processor() -> str:
    """A name for what a compiled program needs of this machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        features = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    except OSError:
        features = []
    text = "\n".join([platform.machine(), *features])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _shrink(folder: Path, most: int = MOST_BYTES) -> None:
    """Removes the files that were not used for longest, if all together are larger than the limit, down to its half."""
    found = [(entry.stat(), entry.path) for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
    size = sum(status.st_size for status, _ in found)
    if size <= most:
        return
    for status, path in sorted(found, key=lambda pair: pair[0].st_atime):
        Path(path).unlink(missing_ok=True)
        size -= status.st_size
        if size <= most // 2:
            break

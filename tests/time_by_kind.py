"""A pytest plugin that says where the time of the tests goes: `pytest -p time_by_kind -n 2 --dist loadfile`.

Compilation is measured by JAX's own events (tracing, lowering and compiling), subprocesses by the time that a test
waits for them, imports by the time until the tests are collected. Tests in a browser count as such whole. What is left
is execution. Times are summed over the worker processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

STARTED = time.perf_counter()
KINDS = ("compilation", "execution", "imports", "browser", "subprocesses", "documentation")
BROWSER, DOCUMENTATION = "test_page.py", ("test_docs.py", "test_examples.py")


class TimeByKind:
    """Seconds of each kind and of each file, in one process."""

    def __init__(self) -> None:
        self.compiled = self.waited = 0.0
        self.programs = 0
        self.kinds: Counter[str] = Counter()
        self.files: dict[str, Counter[str]] = {}
        self.main = threading.get_ident()

    def listen(self) -> None:
        """Counts JAX's compilation and the waiting for subprocesses from now on."""
        import jax.monitoring

        def compiled(event: str, duration: float, **_: Any) -> None:
            if event.startswith("/jax/core/compile/"):
                self.compiled += duration
                self.programs += event.endswith("backend_compile_duration")

        jax.monitoring.register_event_duration_secs_listener(compiled)
        for name in ("wait", "communicate"):
            self._count_waiting(name)

    def _count_waiting(self, name: str) -> None:
        original, waiting = getattr(subprocess.Popen, name), threading.local()

        def counted(process: Any, *args: Any, **options: Any) -> Any:
            if getattr(waiting, "inside", False) or threading.get_ident() != self.main:
                return original(process, *args, **options)
            began, waiting.inside = time.perf_counter(), True
            try:
                return original(process, *args, **options)
            finally:
                waiting.inside = False
                self.waited += time.perf_counter() - began

        setattr(subprocess.Popen, name, counted)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Splits the time of one test, its fixtures included."""
        before = time.perf_counter(), self.compiled, self.waited
        yield
        seconds, compiled, waited = time.perf_counter() - before[0], self.compiled - before[1], self.waited - before[2]
        name = item.path.name
        if name == BROWSER:
            parts = Counter(browser=seconds)
        elif name in DOCUMENTATION:
            parts = Counter(documentation=seconds)
        else:
            rest = max(seconds - compiled - waited, 0.0)
            parts = Counter(compilation=compiled, subprocesses=waited, execution=rest)
        self.kinds += parts
        self.files.setdefault(str(item.path.relative_to(item.config.rootpath)), Counter()).update(parts)

    def pytest_collection_finish(self) -> None:
        """Imports are what came before the first test."""
        self.kinds["imports"] += time.perf_counter() - STARTED

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker hands its times to the process that started it."""
        found = {"kinds": self.kinds, "files": self.files, "programs": self.programs}
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["time_by_kind"] = json.dumps(found)
        else:
            session.config.stash.setdefault(FOUND, []).append(found)


FOUND = pytest.StashKey[list]()


class Gather:
    """Collects the times of all workers and prints them."""

    def pytest_testnodedown(self, node: Any) -> None:
        """Takes over what a worker measured."""
        if "time_by_kind" in getattr(node, "workeroutput", {}):
            node.config.stash.setdefault(FOUND, []).append(json.loads(node.workeroutput["time_by_kind"]))

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """A line for each kind, and one for each of the slowest files."""
        kinds: Counter[str] = Counter()
        files: dict[str, Counter[str]] = {}
        programs = 0
        for found in config.stash.get(FOUND, []):
            kinds.update(found["kinds"])
            programs += found["programs"]
            for name, parts in found["files"].items():
                files.setdefault(name, Counter()).update(parts)
        terminalreporter.section("seconds by kind, summed over the workers")
        for kind in KINDS:
            terminalreporter.write_line(f"{kind:14s} {kinds[kind]:8.1f}")
        terminalreporter.write_line(f"{'all':14s} {sum(kinds.values()):8.1f}   ({programs} programs compiled)")
        terminalreporter.section("slowest files: all, compilation, execution, subprocesses")
        for name, parts in sorted(files.items(), key=lambda item: -sum(item[1].values()))[:40]:
            columns = (sum(parts.values()), parts["compilation"], parts["execution"], parts["subprocesses"])
            terminalreporter.write_line("".join(f"{column:8.1f}" for column in columns) + "  " + name)
        if folder := os.environ.get("TIME_BY_KIND"):
            Path(folder).write_text(json.dumps({"kinds": kinds, "files": files, "programs": programs}, indent=1))


def pytest_configure(config: pytest.Config) -> None:
    """Workers measure; the process that starts them gathers; without workers one process does both."""
    if not (config.getoption("numprocesses", None) and not hasattr(config, "workerinput")):
        measured = TimeByKind()
        config.pluginmanager.register(measured, "time-by-kind")
        measured.listen()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Gather(), "time-by-kind-gather")

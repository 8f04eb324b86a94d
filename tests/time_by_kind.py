"""A pytest plugin that says where the time of the tests goes: `pytest -p time_by_kind -n 2 --dist loadfile`.

Compilation is measured by JAX's own events (tracing, lowering, compiling), subprocesses by the time that a test waits
for them, imports by the time until the tests are collected. Tests in a browser count as such whole. The rest is
execution. Times are summed over the worker processes.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from typing import Any

import pytest

STARTED = time.perf_counter()
KINDS = ("compilation", "execution", "imports", "browser", "subprocesses", "documentation")
FILES = {"test_page.py": "browser", "test_docs.py": "documentation", "test_examples.py": "documentation"}


class Measure:
    """Runs where the tests run, and adds to each report where its time went."""

    def __init__(self) -> None:
        import jax.monitoring

        self.seconds: Counter[str] = Counter()
        self.main, self.waiting = threading.get_ident(), False
        self.before: tuple[float, Counter[str]] | None = None
        jax.monitoring.register_event_duration_secs_listener(self.compiled)
        for name in ("wait", "communicate"):
            setattr(subprocess.Popen, name, self.timed(getattr(subprocess.Popen, name)))

    def compiled(self, event: str, duration: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            self.seconds["compilation"] += duration
            self.seconds["programs"] += event.endswith("backend_compile_duration")

    def timed(self, wait: Any) -> Any:
        def counted(process: Any, *args: Any, **options: Any) -> Any:
            if self.waiting or threading.get_ident() != self.main:
                return wait(process, *args, **options)
            began, self.waiting = time.perf_counter(), True
            try:
                return wait(process, *args, **options)
            finally:
                self.waiting = False
                self.seconds["subprocesses"] += time.perf_counter() - began

        return counted

    def pytest_runtest_setup(self) -> None:
        now = time.perf_counter()
        if self.before is None:
            self.seconds["imports"] += now - STARTED
            self.before = now, Counter()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        report = (yield).get_result()
        assert self.before is not None
        now, parts = time.perf_counter(), self.seconds - self.before[1]
        whole = now - self.before[0]
        self.before = now, self.seconds.copy()
        if kind := FILES.get(item.path.name):
            parts = Counter({kind: whole, "programs": parts["programs"]})
        else:
            parts["execution"] = max(whole - parts["compilation"] - parts["subprocesses"], 0.0)
        report.time_by_kind = dict(parts)


class Gather:
    """Adds up the reports of all workers and prints a line for each kind and each of the slowest files."""

    def __init__(self) -> None:
        self.files: dict[str, Counter[str]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.files.setdefault(report.nodeid.split("::")[0], Counter()).update(getattr(report, "time_by_kind", {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        total: Counter[str] = sum(self.files.values(), Counter())
        terminalreporter.section("seconds by kind, summed over the workers")
        for kind in KINDS:
            terminalreporter.write_line(f"{kind:14s} {total[kind]:8.1f}")
        programs = int(total["programs"])
        terminalreporter.write_line(f"{'all':14s} {sum(total[kind] for kind in KINDS):8.1f}   ({programs} programs)")
        terminalreporter.section("slowest files: all, compilation, execution, subprocesses, programs")
        for name, parts in sorted(self.files.items(), key=lambda item: -sum(item[1][kind] for kind in KINDS))[:40]:
            columns = (sum(parts[kind] for kind in KINDS), *(parts[kind] for kind in ("compilation", "execution")))
            columns = (*columns, parts["subprocesses"], parts["programs"])
            terminalreporter.write_line("".join(f"{column:8.1f}" for column in columns) + "  " + name)


def pytest_configure(config: pytest.Config) -> None:
    """Workers measure, the process that starts them gathers; without workers one process does both."""
    worker = hasattr(config, "workerinput")
    if worker or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Measure(), "time-by-kind")
    if not worker:
        config.pluginmanager.register(Gather(), "time-by-kind-gather")

"""Rules of the code base that a machine can check: import direction, export lists, docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import thermoformer

SOURCE = Path(thermoformer.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
ROOMS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))

# A room may import rooms of a lower floor only. Single files of the top level are rooms of their own.
FLOORS = (
    ("_plain", "_programs", "_progress", "_validation", "citations"),
    ("_files", "_keys", "_locks", "_notebook", "_precision"),
    ("learning", "dynamics"),
    ("networks",),
    ("tasks", "transformers", "sweeps", "arrays", "estimators"),
    ("figures",),
    ("_plots",),
    ("experiments",),
    ("_reports", "_terminal"),
    ("_dynamics_files", "_sweep_page"),
    ("app",),
    ("cli",),
    ("__main__", "__init__"),
)
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
# Imports of higher floors inside a function: results draw themselves, and matplotlib is slow to import.
LATE = {("_notebook", "_plots")}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def rooms_imported(path: Path) -> set[str]:
    """Names directly under `thermoformer` that a file imports, anywhere in it."""
    package = ["thermoformer", *path.relative_to(SOURCE).parts[:-1]]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{stem}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("thermoformer.")}


def test_a_room_imports_only_lower_rooms():
    assert {room_of(path) for path in FILES} <= FLOOR.keys(), "a new room needs a floor"
    offenders = [
        f"{path.relative_to(SOURCE)} imports {other}"
        for path in FILES
        for other in sorted(rooms_imported(path) - {room_of(path), "__version__"})
        if FLOOR[other] >= FLOOR[room_of(path)] and (room_of(path), other) not in LATE
    ]
    assert not offenders


def test_late_imports_are_within_functions():
    for room, other in LATE:
        file = SOURCE / f"{room}.py"
        assert other in rooms_imported(file)
        at_once = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not [alias for node in at_once for alias in node.names if alias.name == other]


def test_the_check_of_imports_sees_every_way_to_write_one(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    (tmp_path / "learning").mkdir()
    file = tmp_path / "learning" / "sample.py"
    file.write_text(
        "import numpy\nimport thermoformer.tasks.text\nfrom thermoformer import figures\n"
        "from .. import cli\nfrom ..sweeps import grid\n"
        "def later():\n    from ..experiments.markov import run\n    from . import paths\n"
    )
    assert rooms_imported(file) == {"tasks", "figures", "cli", "sweeps", "experiments", "learning"}


def test_the_explorer_imports_no_internals_of_the_theories():
    parts = r"from \.\.(?:learning|networks|dynamics)\.|import thermoformer\.(?:learning|networks|dynamics)\."
    offenders = [path.name for path in (SOURCE / "app").glob("*.py") if re.search(parts, path.read_text())]
    assert not offenders


def test_export_lists_resolve_and_what_they_name_is_documented():
    undocumented = []
    for room in ("thermoformer", *(f"thermoformer.{room}" for room in ROOMS)):
        module = importlib.import_module(room)
        things = {room: module} | {f"{room}.{name}": getattr(module, name) for name in module.__all__}
        assert len(things) == len(module.__all__) + 1, f"{room} exports a name twice"
        for name, thing in list(things.items()):
            if inspect.isclass(thing):
                for method_name, method in inspect.getmembers(thing, inspect.isfunction):
                    if method.__module__.startswith("thermoformer") and not method_name.startswith("_"):
                        things[f"{name}.{method_name}"] = method
        undocumented += [
            name
            for name, thing in things.items()
            if (inspect.ismodule(thing) or inspect.isclass(thing) or inspect.isfunction(thing))
            and not (thing.__doc__ or "").strip()
        ]
    assert not undocumented


def test_no_module_of_posix_systems_alone_is_imported():
    posix = {"crypt", "fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
                assert not posix & set(names), path


def test_nothing_is_unpickled_or_evaluated():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                assert getattr(node.func, "id", "") not in {"eval", "exec"}, path
                for keyword in node.keywords:
                    assert keyword.arg != "allow_pickle" or getattr(keyword.value, "value", True) is False, path
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & {"pickle", "cloudpickle", "dill"}, path

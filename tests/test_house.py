"""Rules of the code base that a machine can check: import direction, export lists, docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import thermoformer

SOURCE = Path(thermoformer.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
ROOMS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))

# A room may import rooms of a lower floor only. Single files of the top level are rooms of their own.
FLOORS = (
    ("_locks", "_plain", "_precision", "_progress", "_validation", "citations"),
    ("_files", "_keys"),
    ("learning", "dynamics"),
    ("tasks", "transformers", "sweeps", "arrays"),
    ("figures",),
    ("experiments",),
    ("_report", "_dynamics_report", "_heads_report", "_sweep_report", "_terminal", "_training_report"),
    ("app",),
    ("cli",),
    ("__main__", "__init__"),
)
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_lower_rooms(path):
    room = room_of(path)
    imported = rooms_imported(path) - {room, "__version__"}
    assert room in FLOOR and imported <= FLOOR.keys(), "a new room needs a floor"
    assert all(FLOOR[other] < FLOOR[room] for other in imported), f"{room} imports {sorted(imported)}"


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


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_export_lists_resolve_and_what_they_name_is_documented(room):
    module = importlib.import_module(f"thermoformer.{room}" if room else "thermoformer")
    assert module.__doc__
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        thing = getattr(module, name)
        if not (inspect.isclass(thing) or inspect.isfunction(thing)):
            continue
        assert thing.__doc__ and thing.__doc__.strip(), f"{name} has no docstring"
        if inspect.isclass(thing):
            for method_name, method in inspect.getmembers(thing, inspect.isfunction):
                own = method.__module__.startswith("thermoformer") and not method_name.startswith("_")
                assert not own or method.__doc__, f"{name}.{method_name} has no docstring"


def test_nothing_is_unpickled_or_evaluated():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                assert getattr(node.func, "id", "") not in {"eval", "exec"}, path
                for keyword in node.keywords:
                    assert keyword.arg != "allow_pickle" or getattr(keyword.value, "value", True) is False, path
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & {"pickle", "cloudpickle", "dill"}, path

"""Two threads that parse at once, as the pages of the explorer do."""

from __future__ import annotations

import ast
import builtins
import gc
import threading
import time
from pathlib import Path

import pytest

import thermoformer
from thermoformer.app.syntax_lock import AFFECTED, one_tree_at_a_time

# Long enough for the collector to run in the middle of its tree.
SOURCE = Path(thermoformer.__file__).with_name("app").joinpath("page.py").read_text(encoding="utf-8")


def failures(*, threads: int = 3, trees: int = 40) -> list[str]:
    """What went wrong while threads made trees, the collector letting others in as often as it can."""
    said: list[str] = []

    def others_first(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)

    def make() -> None:
        for _ in range(trees):
            try:
                ast.parse(SOURCE)
            except SystemError as error:
                said.append(str(error))

    thresholds = gc.get_threshold()
    gc.callbacks.append(others_first)
    gc.set_threshold(100, 1000, 1000)
    try:
        running = [threading.Thread(target=make) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(others_first)
    return said


def test_threads_do_not_spoil_each_others_trees():
    with one_tree_at_a_time():
        assert failures() == []


@pytest.mark.skipif(not AFFECTED, reason="this Python parses in several threads")
def test_without_a_turn_they_do():
    assert any("recursion depth mismatch" in words for words in failures())


def test_code_is_compiled_as_ever():
    plain = builtins.compile
    with one_tree_at_a_time(needed=True):
        assert builtins.compile is not plain
        # This file has a flag of the future, which its own code inherits; a file that has none passes none on.
        definition, inherited, bare = "def f(x: 1 + 1): ...", {}, {"compile": builtins.compile}
        exec(compile(definition, "here", "exec"), inherited)
        exec(compile(f"code = compile({definition!r}, 'here', 'exec')", "here", mode="exec", dont_inherit=True), bare)
        exec(bare["code"], bare)
        assert inherited["f"].__annotations__ == {"x": "1 + 1"} and bare["f"].__annotations__ == {"x": 2}
        tree = compile("1 + 1", "here", "eval", flags=ast.PyCF_ONLY_AST)
        assert isinstance(tree, ast.Expression) and eval(compile(tree, "here", "eval")) == 2
        with pytest.raises(SyntaxError):
            ast.parse("1 +")
    assert builtins.compile is plain
    with one_tree_at_a_time(needed=False):
        assert builtins.compile is plain

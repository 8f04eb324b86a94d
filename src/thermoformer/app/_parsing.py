"""One syntax tree at a time, for the Pythons in which two threads spoil each other's."""

from __future__ import annotations
import __future__

import ast
import builtins
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# The parser counts the depth of the tree under way in one place for all threads (python/cpython#106905), and the
# collector of garbage may let another thread in. Every page of the explorer is parsed, and so are its cells.
_VERSION = sys.version_info
SPOILED = (3, 11) <= _VERSION < (3, 11, 8) or (3, 12) <= _VERSION < (3, 12, 2)

_FUTURE = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


@contextmanager
def one_tree_at_a_time(needed: bool = SPOILED) -> Iterator[None]:
    """Lets one thread at a time make a syntax tree, in all of this process, until the end of the block.

    Arguments:
        needed: whether to do anything; by default where this Python needs it.

    Example:
        >>> with one_tree_at_a_time(needed=True):
        ...     ast.unparse(ast.parse("1+1"))
        '1 + 1'
    """
    if not needed:
        yield
        return
    plain: Any = builtins.compile
    # What the collector calls may parse too, in the thread that holds the turn.
    turn = threading.RLock()

    def compile(
        source: Any, filename: Any, mode: str, flags: int = 0, dont_inherit: bool = False, *rest: Any, **named: Any
    ) -> Any:
        if not dont_inherit:  # from who calls, not from this file
            flags |= sys._getframe(1).f_code.co_flags & _FUTURE
        if not flags & ast.PyCF_ONLY_AST:
            return plain(source, filename, mode, flags, True, *rest, **named)
        with turn:
            return plain(source, filename, mode, flags, True, *rest, **named)

    builtins.compile = compile
    try:
        yield
    finally:
        builtins.compile = plain

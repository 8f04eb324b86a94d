"""Lets threads make syntax trees one at a time, for versions of Python in which two threads corrupt each other's."""

from __future__ import annotations
import __future__

import ast
import builtins
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

# The parser counts the depth of a tree in one place for all threads (python/cpython#106905), and garbage collection may
# switch threads. Every page of the explorer is parsed, and so are its cells.
AFFECTED = (3, 11) <= sys.version_info < (3, 11, 8) or (3, 12) <= sys.version_info < (3, 12, 2)

_FUTURE = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


@contextmanager
def one_tree_at_a_time(needed: bool = AFFECTED) -> Iterator[None]:
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
    # Garbage collection may run code that parses, in the thread that holds the lock.
    lock = threading.RLock()

    def compile(
        source: Any, filename: Any, mode: str, flags: int = 0, dont_inherit: bool = False, *rest: Any, **named: Any
    ) -> Any:
        if not dont_inherit:  # from the caller, not from this file
            flags |= sys._getframe(1).f_code.co_flags & _FUTURE
        with lock if flags & ast.PyCF_ONLY_AST else nullcontext():
            return plain(source, filename, mode, flags, True, *rest, **named)

    builtins.compile = compile
    try:
        yield
    finally:
        builtins.compile = plain

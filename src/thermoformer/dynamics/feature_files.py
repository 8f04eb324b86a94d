"""Features on disk: a NumPy archive of patterns without pickles, or a table of signs that one can type.

The archive holds `pattern_{o,v,q,k}` [feature, columns and positional bits] (v, q, k with a head axis first if there
are several heads), `semantic_bits`, `positional_bits` and, if the columns stand for unequal shares of the bits,
`fractions`. Features that are known by correlations only are kept as `signs`, `weights_{role}` and `positional_{role}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._files import open_file
from .._validation import fail
from .site_classes import ROLES

# A larger file is not a table that somebody typed.
LARGEST_TABLE = 64 * 2**20
_SIGNS = {"+": 1.0, "-": -1.0, "−": -1.0}


def split_patterns(path: str | Path, arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Semantic and positional parts of `pattern_{role}`, cut at `semantic_bits`."""
    (patterns,) = named_by_role(path, arrays, "pattern", also=("semantic_bits",))
    semantic_bits = arrays["semantic_bits"]
    if semantic_bits.shape != () or semantic_bits.dtype.kind not in "iu" or semantic_bits < 1:
        raise fail("semantic_bits", f"{semantic_bits!r} in {str(path)!r}", "one whole number, 1 or more")
    semantic, positional = {}, {}
    for role, pattern in patterns.items():
        if pattern.ndim not in (2, 3) or pattern.shape[-1] < semantic_bits:
            expected = f"[feature, {semantic_bits} semantic bits and positional bits], perhaps with heads first"
            raise fail(f"pattern_{role}", f"shape {pattern.shape} in {str(path)!r}", expected)
        semantic[role], positional[role] = np.split(pattern, [int(semantic_bits)], axis=-1)
    bits, named = positional["o"].shape[-1], arrays.get("positional_bits")
    if named is not None and (named.shape != () or named.dtype.kind not in "iu" or named != bits):
        raise fail("positional_bits", f"{named!r} in {str(path)!r}", f"{bits}, as in pattern_o")
    return semantic, positional


def named_by_role(
    path: str | Path, arrays: Mapping[str, np.ndarray], *kinds: str, also: tuple[str, ...] = ()
) -> list[dict[str, np.ndarray]]:
    """The arrays `{kind}_{role}` of an archive by role, for each kind."""
    needed = [*(f"{kind}_{role}" for kind in kinds for role in ROLES), *also]
    if missing := [name for name in needed if name not in arrays]:
        raise fail("path", f"{str(path)!r} without {', '.join(missing)}", "the arrays " + ", ".join(needed))
    return [{role: arrays[f"{kind}_{role}"] for role in ROLES} for kind in kinds]


def _text_of(path: Path) -> str:
    expected = "the text of a table or a path to one"
    with open_file(path, name="table", expected=expected) as stream:
        content = stream.read(LARGEST_TABLE + 1)
    if len(content) > LARGEST_TABLE:
        raise fail("table", f"{path} of more than {LARGEST_TABLE // 2**20} MiB", expected)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise fail("table", f"{path}, which is not text in UTF-8 (byte {error.start})", expected) from error


def read_table(table: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Semantic and positional signs from lines such as "o -++|--"; see `Features.from_table`."""
    # One line is never a whole table, so a string of one line can only be a path.
    if isinstance(table, Path) or (isinstance(table, str) and "\n" not in table):
        table = _text_of(Path(table))
    if not isinstance(table, str):
        raise fail("table", type(table).__name__, "the text of a table or a path to one")
    rows: dict[str, dict[int, list[tuple[list[float], list[float]]]]] = {role: {} for role in ROLES}
    for number, line in enumerate(table.splitlines(), 1):
        if not (content := line.split("#")[0].strip()):
            continue
        name, _, signs = content.partition(" ")
        known = re.fullmatch("o1?|[vqk][0-9]{0,9}", name)
        head = int(name[1:] or 1) if known else 0
        if head < 1:
            raise fail(f"table, line {number}", repr(name), "a role o, v, q or k, for v, q, k perhaps with a head: v2")
        semantic, bar, positional = signs.replace(" ", "").partition("|")
        if not semantic or set(semantic + positional) - set(_SIGNS) or (bar and not positional):
            raise fail(f"table, line {number}", repr(signs.strip()), "signs + and -, perhaps | and more signs")
        row = [_SIGNS[sign] for sign in semantic], [_SIGNS[sign] for sign in positional]
        rows[name[0]].setdefault(head, []).append(row)
    for role, heads in rows.items():
        if sorted(heads) != list(range(1, len(heads) + 1)) or not heads:
            raise fail("table", f"heads {sorted(heads)} of role {role}", "every role, its heads counted from 1")
    parts = []
    for part in (0, 1):
        named = {role: [[row[part] for row in heads[head]] for head in sorted(heads)] for role, heads in rows.items()}
        parts.append({role: value[0] if role == "o" else value for role, value in named.items()})
    return parts[0], parts[1]

"""Results as plain values for JSON, and as texts for the cells of a table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Numbers, strings, lists and dictionaries alone; what is not finite is none."""
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    value = np.asarray(value).tolist()
    if isinstance(value, list):
        return plain(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cell(value: Any) -> str:
    """One value in a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)

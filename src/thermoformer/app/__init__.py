"""The explorer: both theories in the browser, on this machine alone."""

from __future__ import annotations

from .server import Place, explore, place_for

__all__ = ["Place", "explore", "place_for"]

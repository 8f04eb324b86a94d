"""What results show of themselves: a short text, a table in notebooks, and figures."""

from __future__ import annotations

import html
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ._progress import in_notebook
from ._validation import traced

# Entries of an array or a tuple that a short text shows.
_FIRST = 4


class Result:
    """Base of results: the numbers of `summary` are its text, and its table in notebooks.

    Example:
        >>> class Fit(Result):
        ...     def summary(self):
        ...         return {"widths": (10, 20), "log_evidence": -12.3456789, "exponents": np.arange(6) / 4}
        >>> Fit()
        Fit(widths=(10, 20), log_evidence=-12.346, exponents=[0, 0.25, 0.5, 0.75, … 6])
        >>> Fit()._repr_html_()[:70]
        '<table><caption>Fit</caption><tr><th>widths</th><td>(10, 20)</td></tr>'
    """

    def summary(self) -> Mapping[str, Any]:
        """The few numbers that sum the result up, by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={short(value)}" for name, value in self.summary().items())
        return f"{type(self).__name__}({inside})"

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th>{html.escape(name.replace('_', ' '))}</th><td>{html.escape(short(value))}</td></tr>"
            for name, value in self.summary().items()
        )
        return f"<table><caption>{type(self).__name__}</caption>{''.join(rows)}</table>"


def short(value: Any) -> str:
    """A value in a few characters; never an error, since texts of results are also asked for in the middle of one."""
    if traced(value):
        return "traced"
    if isinstance(value, np.ndarray) and value.ndim:
        return f"[{_entries(value.ravel().tolist())}]"
    if isinstance(value, tuple):
        return f"({_entries(value)}{',' if len(value) == 1 else ''})"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _entries(values: Sequence[Any]) -> str:
    """The first entries and, if there are more, their number."""
    shown = [repr(value) if isinstance(value, str) else short(value) for value in values[:_FIRST]]
    return ", ".join([*shown, f"… {len(values)}"] if len(values) > _FIRST else shown)


def span(values: Any) -> str:
    """The lowest and the highest of some numbers, in words."""
    known = not traced(values) and np.size(values)
    return f"{short(float(np.min(values)))} to {short(float(np.max(values)))}" if known else short(values)


def draw(figure: str, *arguments: Any, ax: Any = None, **options: Any) -> Any:
    """Draws a figure of `_plots` by name, and shows it in notebooks if it has no Axes of the caller to be on."""
    from . import _plots  # late: matplotlib is slow to import

    axes = getattr(_plots, figure)(*arguments, ax, **options)
    if ax is None:
        _show(np.ravel(axes)[0].figure)
    return axes


def _show(figure: Any) -> None:
    """Displays a figure as pyplot does: in a notebook only. Figures of this library are outside pyplot."""
    if not in_notebook():
        return
    shell = sys.modules["IPython"].get_ipython()
    from IPython.core.pylabtools import select_figure_formats
    from IPython.display import display

    formatters = shell.display_formatter.formatters.values()
    if not any(type(figure) in formatter.type_printers for formatter in formatters):
        select_figure_formats(shell, {"png"})  # as %matplotlib inline does
    display(figure)

"""Numbers in words: how pages, tables and figures write counts, signs, widths, spreads and shares.

Functions of one number are filters of the page templates too: ``{{ seeds | count("seed") }}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd


def count(number: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> count(1, "seed"), count(3, "seed")
        ('1 seed', '3 seeds')
    """
    return f"{number} {noun}" + ("" if number == 1 else "s")


def minus(text: Any) -> str:
    """Text with minus signs in place of hyphens."""
    return str(text).replace("-", "−")


def fixed(value: Any, digits: int = 1, sign: str = "") -> str:
    """A number with this many decimals; `sign="+"` writes the sign of positive numbers too.

    Example:
        >>> fixed(-0.25, 2), fixed(3, 1, "+")
        ('−0.25', '+3.0')
    """
    return minus(f"{float(value):{sign}.{digits}f}")


def general(value: Any, digits: int = 6) -> str:
    """A number with this many significant digits.

    Example:
        >>> general(1.2434, 3), general(1e-7)
        ('1.24', '1e−07')
    """
    return minus(f"{float(value):.{digits}g}")


def signed(value: Any) -> str:
    """One decimal with its sign; a rounded zero has none.

    Example:
        >>> signed(-1.25), signed(-0.01)
        ('−1.2', '0.0')
    """
    return "0.0" if float(f"{float(value):.1f}") == 0 else fixed(value, 1, "+")


def percent(share: Any, digits: int = 1) -> str:
    """A share of one as a number of percent.

    Example:
        >>> percent(0.956)
        '95.6'
    """
    return fixed(100 * float(share), digits)


def small_percent(share: Any) -> str:
    """A share in % with two digits, however small.

    Example:
        >>> small_percent(0.0123), small_percent(3.4e-7)
        ('1.2 %', '0.000034 %')
    """
    value = 100 * float(share)
    if not np.isfinite(value):
        return "unknown"
    digits = 0 if value == 0 else max(0, 1 - int(np.floor(np.log10(abs(value)))))
    return f"{value:.{digits}f} %"


def spread(values: Any, digits: int = 1) -> str:
    """Mean ± standard deviation of several numbers; a single number alone.

    Example:
        >>> spread([1.0, 2.0, 3.0]), spread([1.0])
        ('2.0 ± 1.0', '1.0')
    """
    numbers = np.asarray(values, float)
    mean = fixed(numbers.mean(), digits)
    return f"{mean} ± {fixed(numbers.std(ddof=1), digits)}" if numbers.size > 1 else mean


def width_name(value: Any) -> str:
    """How a width is called in titles and tables; the infinite one is the Gaussian process.

    Example:
        >>> width_name(10), width_name(float("inf"))
        ('N = 10', 'GP')
    """
    return f"N = {value:g}" if np.isfinite(value) else "GP"


def listed(names: Iterable[Any]) -> str:
    """Several names as in a sentence.

    Example:
        >>> listed([1, 2, 3]), listed(["one"])
        ('1, 2 and 3', 'one')
    """
    *before, last = [str(name) for name in names] or [""]
    return f"{', '.join(before)} and {last}" if before else last


def capital(text: str) -> str:
    """Text with its first letter as a capital; the others stay."""
    return text[:1].upper() + text[1:]


def duration(seconds: float) -> str:
    """A time in words: 40 s, 3 min, 1.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def binomial_error(accuracy: Any, examples: int) -> np.ndarray:
    """The standard error of an accuracy, both from 0 to 1."""
    value = np.asarray(accuracy, float)
    return np.sqrt(value * (1 - value) / examples)


def with_texts(frame: Any, **forms: str) -> pd.DataFrame:
    """A table with the numbers of some columns as text; missing numbers are empty.

    Arguments:
        frame: a DataFrame; any, since pandas does not say of which type a selection is.
        forms: how each column is written, as in `format`.

    Example:
        >>> with_texts(pd.DataFrame({"width": [10, 30], "error": [0.1234, np.nan]}), error=".2f").values.tolist()
        [[10, '0.12'], [30, '']]
    """

    def texts(name: str) -> list[str]:
        return ["" if pd.isna(value) else format(value, forms[name]) for value in frame[name]]

    return frame.assign(**{name: texts(name) for name in forms})


_ALL = (count, minus, fixed, general, signed, percent, small_percent, spread, width_name, listed, capital, duration)
FILTERS: dict[str, Callable[..., str]] = {one.__name__: one for one in _ALL}

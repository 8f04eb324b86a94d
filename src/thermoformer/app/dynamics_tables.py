"""The columns of numbers behind each figure of the Dynamics view, and the numbers above them."""

from __future__ import annotations

import numpy as np
import xarray as xr

from ..dynamics import Regime
from ..figures.style import short_number
from .dynamics_steps import Judgement
from .dynamics_view import KEPT, DynamicsPicture, confidence_of


def orbit_table(picture: DynamicsPicture) -> dict[str, np.ndarray]:
    """Steps after the transient, and all components of the magnetisation."""
    columns = {f"m_{picture.choice.role},{number + 1}": column for number, column in enumerate(picture.values.T)}
    return {"step": np.arange(KEPT), **columns}


def plane_table(picture: DynamicsPicture) -> dict[str, np.ndarray]:
    """The points of the phase plane."""
    choice = picture.choice
    across, up = picture.plane
    other = f"m_{choice.role},{choice.against}" if choice.against else f"{choice.symbol} one step later"
    return {choice.symbol: across, other if other != choice.symbol else f"{other} again": up}


def spectrum_table(picture: DynamicsPicture) -> dict[str, np.ndarray]:
    """Frequencies in cycles per step, and power spectral density."""
    return {"frequency": picture.spectrum.frequency.values, "power": picture.spectrum.values}


def diagram_table(diagram: xr.Dataset | None) -> dict[str, np.ndarray]:
    """Every bin that the orbit visits: β, the middle of the bin, and how many steps were there."""
    if diagram is None:
        return {}
    counts = diagram.density.values
    column, cell = np.nonzero(counts)
    return {
        "beta": diagram.beta.values[column],
        "value": diagram.value.values[cell],
        "points": counts[column, cell],
    }


def numbers_of(picture: DynamicsPicture, judgement: Judgement | None = None) -> list[tuple[str, str]]:
    """Regime, exponents, period and leading frequency as labels with short texts.

    Arguments:
        picture: of `picture_of`.
        judgement: a longer look at the same choice, whose verdict counts once there is one.
    """
    longer = None if judgement is None else judgement.verdict
    verdict: Regime = longer or picture.verdict
    regime = f"{verdict.name}, {_grouped(verdict.period)} steps" if verdict.name == "periodic" else verdict.name
    numbers = [
        ("regime", regime),
        ("longer look" if longer else "quick look", f"{_grouped(verdict.steps)} steps"),
        ("confidence", confidence_of(verdict)),
    ]
    for number, (value, error) in enumerate(zip(verdict.exponents, verdict.errors, strict=True), 1):
        lost = not np.isfinite(value)
        text = "lost to rounding" if lost else f"{short_number(value)} ± {short_number(float(f'{error:.1g}'))} per step"
        numbers.append((f"λ{number}", text))
    if np.isfinite(picture.peak):
        numbers.append((f"leading frequency of {picture.choice.symbol}", f"{picture.peak:.4f} cycles per step"))
    return numbers


def _grouped(number: int | None) -> str:
    return f"{number:,}".replace(",", " ")

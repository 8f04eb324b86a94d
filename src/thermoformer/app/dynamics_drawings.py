"""Figures of the Dynamics view; `dynamics_tables` has the numbers behind each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from ..figures.diagrams import PANEL_HEIGHTS, diagram_displays
from ..figures.display import Axis, Band, Curve, Display, Level, Mark, Text
from ..figures.orbits import overlap_name, plane_display, series_display, spectrum_display
from ..figures.style import PALETTE, short_number
from .drawings import drawing
from .dynamics_view import ROLES, SHOWN_STEPS, TRANSIENT, DynamicsChoice, DynamicsPicture

# Points of the phase plane that are drawn.
DRAWN_POINTS = 2000
# Shares of the points at the ends of the colours of a diagram: the same while it refines.
DENSITY_ENDS = (10**-3.3, 10**-0.5)
SIZE: dict[str, Any] = {"width": 330, "height": 320}
DIAGRAM_SIZE: dict[str, Any] = {"width": 1100, "height": 420}
# Room beside the diagram, and where its axes begin and end, as shares of its width.
DIAGRAM_SIDES = (70, 90)
DIAGRAM_ENDS = (DIAGRAM_SIDES[0] / DIAGRAM_SIZE["width"], 1 - DIAGRAM_SIDES[1] / DIAGRAM_SIZE["width"])


def orbit_drawing(picture: DynamicsPicture) -> str:
    """The magnetisation against the step; the chosen component in front, with a band if one is asked for."""
    choice = picture.choice
    shown = series_display(picture.values[:SHOWN_STEPS], role=choice.role, spread=picture.spread)
    chosen, limits = choice.component - 1, _around(picture.values)
    others = {"opacity": 0.45, "marker": ""}
    bands = [mark for mark in shown.marks if isinstance(mark, Band)]
    curves = [mark for mark in shown.marks if not isinstance(mark, Band)]
    marks: list[Mark] = [
        replace(mark, low=np.clip(mark.low, *limits), high=np.clip(mark.high, *limits))
        for mark in bands[chosen : chosen + 1]
    ]
    marks += [
        replace(mark, order=2, line=1.6) if number == chosen else replace(mark, **others)
        for number, mark in enumerate(curves)
    ]
    transient = f"{TRANSIENT:,}".replace(",", " ")
    across = Axis(f"step, after the first {transient}", (-1, SHOWN_STEPS))
    up = replace(shown.y, limits=limits, label=axis_name(chosen, choice.role))
    about = f"orbit of the magnetisation m_{choice.role}"
    return drawing(replace(shown, marks=marks, x=across, y=up, about=about), **SIZE)


def plane_drawing(picture: DynamicsPicture) -> str:
    """The phase plane: one component against another, or against itself one step later."""
    choice = picture.choice
    across, up = picture.plane
    own = axis_name(choice.component - 1, choice.role)
    other = axis_name(choice.against - 1, choice.role) if choice.against else f"{own} one step later"
    shown = plane_display(across[-DRAWN_POINTS:], up[-DRAWN_POINTS:], (own, other))
    # One scale for both.
    ends = np.array([_around(across), _around(up)])
    middle, half = ends.mean(axis=1), np.ptp(ends, axis=1).max() / 2
    x, y = (replace(one, limits=(at - half, at + half)) for one, at in zip((shown.x, shown.y), middle, strict=True))
    about = f"phase plane of the magnetisation m_{choice.role}"
    return drawing(replace(shown, x=x, y=y, about=about), **SIZE)


def spectrum_drawing(picture: DynamicsPicture) -> str:
    """Power of the chosen component against frequency, with its leading peak."""
    choice, peak = picture.choice, picture.peak
    label = f"power of the {axis_name(choice.component - 1, choice.role)}"
    if not np.isfinite(peak):
        still = Text(0.25, 1e-6, "it does not move: no spectrum", PALETTE["grey"])
        axes = Axis("frequency, cycles per step", (0, 0.5)), Axis(label, (1e-12, 1.0), log=True)
        return drawing(Display((still,), *axes, about="power spectrum"), **SIZE)
    # The mean, at frequency 0, is no part of the motion.
    power = picture.spectrum[1:]
    shown = spectrum_display(power)
    largest = float(power.max())
    words, left = f"{peak:.4f}: a turn in {short_number(1 / peak)} steps", peak > 0.25
    colour = PALETTE["vermilion"]
    marks = (
        *shown.marks,
        Curve([peak], [largest], colour, line=0, marker="o", size=7, hollow=True),
        Text(peak, largest, words, colour, across="right" if left else "left", shift=(-7 if left else 7, 0), rim=True),
    )
    return drawing(replace(shown, marks=marks, y=Axis(label, log=True), about="power spectrum"), **SIZE)


def diagram_drawing(diagram: xr.Dataset | None, choice: DynamicsChoice) -> str:
    """The orbit diagram: the density of the chosen magnetisation over β, below it the exponents and the regimes.

    Arguments:
        diagram: of `DiagramStepper.picture`.
        choice: the choice, for its β, which a line shows, and its magnetisation.
    """
    about = "orbit diagram"
    if diagram is None:
        words = Text(0.5, 0.5, "the first columns are on their way", PALETTE["grey"])
        blank = Axis(limits=(0, 1), ticks=[])
        return drawing(Display((words,), blank, blank, about=about), **DIAGRAM_SIZE, sides=DIAGRAM_SIDES)
    density, exponents, regimes = diagram_displays(diagram, exponents=1, ends=DENSITY_ENDS)
    here = Level(choice.beta, PALETTE["blue"], line=1.2, dashes=(1, 1.5), upright=True, order=3)
    if density.y.limits is not None and choice.between[0] <= choice.beta <= choice.between[1]:
        top = density.y.limits[1]
        words = Text(
            choice.beta,
            top,
            f"β = {choice.beta:.5g}",
            PALETTE["blue"],
            across="left",
            up="top",
            shift=(4, -2),
            rim=True,
        )
        density = replace(density, marks=(*density.marks, here, words))
        exponents = replace(exponents, marks=(*exponents.marks, here))
    density = replace(density, y=replace(density.y, label=axis_name(choice.component - 1, choice.role)))
    panels = [replace(one, x=replace(one.x, limits=choice.between)) for one in (density, exponents, regimes)]
    panels[0] = replace(panels[0], about=about)
    return drawing(panels, heights=PANEL_HEIGHTS, sides=DIAGRAM_SIDES, **DIAGRAM_SIZE)


def axis_name(feature: int, role: str) -> str:
    """What an axis says of an overlap; features are counted from 1 there.

    Example:
        >>> axis_name(0, "o")
        'output overlap $m_{o,1}$'
    """
    return f"{ROLES[role]} overlap {overlap_name(feature, role)}"


def _around(values: np.ndarray) -> tuple[float, float]:
    """The range of values with a margin; some width where they do not move."""
    low, high = float(values.min()), float(values.max())
    margin = 0.06 * (high - low) if high - low > 1e-6 else 0.05
    return low - margin, high + margin

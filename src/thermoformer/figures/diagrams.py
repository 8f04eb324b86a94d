"""Orbit diagrams with their exponents, phase diagrams with their regimes, and hysteresis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from .._validation import fail, one_of, positive_integer
from ..dynamics import REGIMES
from ..dynamics.attraction import attractor_names
from .display import Axis, Curve, Display, Image, Key, Level, Mark, cell_edges
from .orbits import overlap_name
from .style import CYCLE, DIVERGING, PALETTE, figure_grid, styled

# Okabe and Ito's colours again; light grey says that nothing is said.
REGIME_COLOURS = dict(
    zip(
        REGIMES,
        (PALETTE["sky"], PALETTE["blue"], PALETTE["green"], PALETTE["vermilion"], PALETTE["black"], "#D9D9D9"),
        strict=True,
    )
)
_BASIN_COLOURS = (*CYCLE[:6], CYCLE[8], PALETTE["grey"])
_OTHER_COLOURS = ("#D9D9D9", PALETTE["black"])
# From light to dark, evenly in lightness, without the palest end, which white paper would hide.
DENSITY_COLOURS = tuple(map(to_hex, colormaps["magma_r"](np.linspace(0.12, 1.0, 255))))
_EXPONENT_COLOURS = tuple(PALETTE[name] for name in ("vermilion", "blue", "green", "purple"))
_SYMBOLS = {"beta": "β", "gamma": "γ", "epsilon": "ε"}
# A picture has no more columns than this; values beyond share one, with their counts added.
_MOST_COLUMNS = 1600
_MOST_WITH_LINES = 300
# Shares of the height: density, exponents, regimes.
PANEL_HEIGHTS = (3.0, 1.25, 0.12)


@styled
def orbit_diagram_panels(
    dataset: xr.Dataset,
    axes: Sequence[Axes] | np.ndarray | None = None,
    *,
    exponents: int = 2,
    lowest: float | None = None,
    section: bool = False,
    colorbar: bool = True,
) -> np.ndarray:
    """An orbit diagram as a density, below it the leading Lyapunov exponents and the regime, all on one axis.

    Arguments:
        dataset: of `thermoformer.dynamics.orbit_diagram`, without the axes `start` or `direction`.
        axes: two or three Axes, of the density, the exponents and, where there is a third, the regimes; a new figure
            has all three.
        exponents: how many leading exponents are drawn; those lost to rounding are not.
        lowest: lower end of the axis of the exponents; default: a little more below 0 than the largest is above.
        section: draw the points on the section alone, as dots.

    Returns:
        The Axes, [panel].

    Example:
        >>> from thermoformer.dynamics import orbit_diagram
        >>> r = np.linspace(3.4, 4, 20)
        >>> found = orbit_diagram(lambda x, r: r * x * (1 - x), 0.3, "r", r, steps=500, transient=500)
        >>> [ax.get_ylabel() for ax in orbit_diagram_panels(found)]
        ['x', 'exponents', '']
    """
    shown = diagram_displays(dataset, exponents=exponents, lowest=lowest, section=section, colorbar=colorbar)
    if axes is None:
        figure, grid = figure_grid(size=(9.0, 5.6))
        grid[0, 0].remove()
        panels = figure.subplots(3, 1, sharex=True, height_ratios=PANEL_HEIGHTS)
    else:
        panels = np.asarray(axes, object).ravel()
        if len(panels) not in (2, 3):
            raise fail("axes", f"{len(panels)} Axes", "two or three, for density, exponents and regimes")
    for ax, display in zip(panels, shown, strict=False):
        last = ax is panels[-1]
        across = display.x if last else replace(display.x, label="")
        replace(display, x=across).plot(ax).tick_params(labelbottom=last)
    return panels


def diagram_displays(
    dataset: xr.Dataset,
    *,
    exponents: int = 2,
    lowest: float | None = None,
    section: bool = False,
    colorbar: bool = True,
    ends: tuple[float, float] | None = None,
) -> tuple[Display, Display, Display]:
    """The pictures of `orbit_diagram_panels`, whose arguments these are: density, exponents and regimes.

    Arguments:
        ends: shares of the points at the ends of the colours; from the data by default.
    """
    _check_diagram(dataset, ("section_density" if section else "density",))
    parameter = str(dataset.attrs["parameter"])
    values = dataset[parameter].values
    across = Axis(_SYMBOLS.get(parameter, parameter), (float(values.min()), float(values.max())))
    cells = dataset.value.values
    if section:
        value, cell = np.nonzero(dataset.section_density.values)
        look: dict[str, Any] = {"line": 0, "marker": ".", "size": 1.6}
        mark: Mark = Curve(values[value], cells[cell], PALETTE["black"], **look)
    else:
        mark = _density(dataset, values, ends, "share of points per bin" if colorbar else "")
    return (
        Display((mark,), across, Axis(_observable(dataset), tuple(cell_edges(cells)[[0, -1]]))),
        _exponents(dataset, values, across, exponents, lowest),
        _strip(dataset, values, across),
    )


@styled
def phase_diagram_image(
    dataset: xr.Dataset, ax: Axes | None = None, *, show: str = "regime", legend: bool = True
) -> Axes:
    """A phase diagram over two parameters: the regime in colour, or the leading exponent.

    Arguments:
        dataset: of `thermoformer.dynamics.phase_diagram` over two parameters, without the axis `start`.
        show: "regime", or "exponent" for the leading one: red above 0, blue below, the range of the positive ones on
            both sides.
        legend: of the regimes that occur; or the colour bar.

    Example:
        >>> from thermoformer.dynamics import DiscreteMap, phase_diagram
        >>> model = DiscreteMap(lambda x, r, s: s * r * x * (1 - x), {"r": 3.0, "s": 1.0})
        >>> grid = {"r": [3.2, 4.0], "s": [0.9, 1.0]}
        >>> ax = phase_diagram_image(phase_diagram(model, 0.3, grid, steps=500, transient=500))
        >>> sorted(text.get_text() for text in ax.get_legend().get_texts())
        ['chaos', 'fixed point', 'periodic']
    """
    if not isinstance(dataset, xr.Dataset) or "regime" not in dataset or dataset.regime.ndim != 2:
        raise fail("dataset", _what(dataset), "a phase diagram over two parameters")
    names = [str(name) for name in dataset.regime.dims]
    x, y = (cell_edges(dataset[name].values) for name in names)
    if one_of("show", show, ("regime", "exponent")) == "regime":
        marks = _regimes(dataset.regime.values.T, x, y)
    else:
        leading = dataset.exponents.isel(exponent=0).transpose(*names).values.T
        finite = np.where(np.isfinite(leading), leading, np.nan)
        reach = max(float(np.nanmax(finite, initial=0)), 1e-3)
        marks = [Image(finite, x, y, DIVERGING, (-reach, reach), bar="leading exponent" if legend else "")]
    across, up = (Axis(_SYMBOLS.get(name, name)) for name in names)
    return Display(marks, across, up, "below" if legend else "", columns=4, size=(6.0, 4.6)).plot(ax)


def hysteresis(dataset: xr.Dataset, ax: Axes | None = None) -> Axes:
    """An orbit diagram that followed its neighbours up and down: where both go, and where only one does.

    Arguments:
        dataset: of `thermoformer.dynamics.orbit_diagram` with follow="both".

    Example:
        >>> from thermoformer.dynamics import orbit_diagram
        >>> step = lambda x, h: x - 0.1 * (x**3 - x - h)
        >>> h = np.linspace(-0.6, 0.6, 9)
        >>> found = orbit_diagram(step, -1.0, "h", h, steps=100, transient=400, follow="both", k=1)
        >>> [text.get_text() for text in hysteresis(found).get_legend().get_texts()]
        ['both', 'up alone', 'down alone']
    """
    if not isinstance(dataset, xr.Dataset) or set(dataset.get("direction", xr.DataArray([])).values) != {"up", "down"}:
        raise fail("dataset", _what(dataset), "an orbit diagram with follow='both'")
    parameter = str(dataset.attrs["parameter"])
    values = dataset[parameter].values
    up, down = (_pooled(dataset.density.sel(direction=name).values) > 0 for name in ("up", "down"))
    code = np.where(up & down, 1.0, np.where(up, 2.0, np.where(down, 3.0, np.nan)))
    looks = {"both": PALETTE["grey"], "up alone": PALETTE["vermilion"], "down alone": PALETTE["blue"]}
    edges = _column_edges(values, len(code)), cell_edges(dataset.value.values)
    image = Image(code.T, *edges, tuple(looks.values()), (0.5, 3.5))
    marks = [image, *(Key(colour, label=name) for name, colour in looks.items())]
    axes = Axis(_SYMBOLS.get(parameter, parameter)), Axis(_observable(dataset))
    return Display(marks, *axes, "above", columns=3, size=(8.0, 4.4)).plot(ax)


@styled
def basin_map(dataset: xr.Dataset, ax: Axes | None = None) -> Axes:
    """Basins of attraction over one or two axes of starts or parameters, the attractors named with their shares.

    Arguments:
        dataset: that of `thermoformer.dynamics.basins`; of more axes choose two with isel.

    Example:
        >>> from thermoformer.dynamics import basins
        >>> found = basins(lambda x: x - 0.1 * (x**3 - x), np.linspace(-1, 2, 30), steps=200, transient=1000)
        >>> [text.get_text() for text in basin_map(found.dataset).get_legend().get_texts()]
        ['0: fixed point, 67 ± 8 %', '1: fixed point, 33 ± 8 %']
    """
    if not isinstance(dataset, xr.Dataset) or "basin" not in dataset or dataset.basin.ndim not in (1, 2):
        raise fail("dataset", _what(dataset), "that of basins over one or two axes")
    numbers, names = dataset.attractor.values, attractor_names(dataset)
    # Attractors beyond the colours share the last one; then come what is undecided and what is unbounded.
    last = len(_BASIN_COLOURS) - 1
    values = np.where(dataset.basin < 0, last - dataset.basin, np.minimum(dataset.basin, last)).astype(float)
    colours = [*_BASIN_COLOURS, *_OTHER_COLOURS]
    keys: list[Mark] = []
    for number, name in zip(numbers, names, strict=True):
        label = name if number < 0 else f"{number}: {name}"
        if dataset.fraction.ndim == 1:
            share, error = (100 * float(dataset[part].sel(attractor=number)) for part in ("fraction", "error"))
            digits = max(0, 1 - int(np.floor(np.log10(2 * error))))
            label += f", {share:.{digits}f} ± {error:.{digits}f} %"
        if number < last:
            keys.append(Key(colours[last - number if number < 0 else number], label=label))
    if numbers.max() >= last:
        keys.append(Key(colours[last], label=f"{numbers.max() + 1 - last} more"))
    edges = [cell_edges(dataset[axis].values) for axis in dataset.basin.dims]
    axes = [Axis(_SYMBOLS.get(str(axis), str(axis))) for axis in dataset.basin.dims]
    # One axis makes one row.
    x, y = [*edges, np.array([0.0, 1.0])][:2]
    across, up = [*axes, Axis("", (0, 1), ticks=[])][:2]
    image = Image(np.atleast_2d(values.T), x, y, colours, (-0.5, len(colours) - 0.5))
    return Display([image, *keys], across, up, "below", columns=2, size=(6.0, 4.8)).plot(ax)


def _density(dataset: xr.Dataset, values: np.ndarray, ends: tuple[float, float] | None, bar: str) -> Image:
    counts = _pooled(dataset.density.values.astype(float))
    share = np.where(counts > 0, counts / max(counts.sum(axis=1).max(), 1.0), np.nan)
    if ends is None:
        known = share[np.isfinite(share)]
        low, high = np.quantile(known, [0.05, 0.99]).tolist() if known.size else (1e-3, 1.0)
        ends = max(low, high / 1e4), max(high, 1.001 * low)
    edges = _column_edges(values, len(share)), cell_edges(dataset.value.values)
    return Image(share.T, *edges, DENSITY_COLOURS, ends, log=True, bar=bar)


def _pooled(counts: np.ndarray) -> np.ndarray:
    """Counts [value, bin] with neighbouring values added where there are more than a picture has columns."""
    pool = -(-len(counts) // _MOST_COLUMNS)
    if pool == 1:
        return counts
    starts = np.linspace(0, len(counts), -(-len(counts) // pool) + 1).astype(int)[:-1]
    return np.add.reduceat(counts, starts, axis=0)


def _exponents(dataset: xr.Dataset, values: np.ndarray, across: Axis, count: int, lowest: float | None) -> Display:
    count = min(positive_integer("exponents", count), dataset.sizes["exponent"])
    order = np.argsort(values)
    shown = np.where(np.isfinite(dataset.exponents.values), dataset.exponents.values, np.nan)[order, :count]
    # Neighbours may be on different attractors: dots tell branches apart where a line would fill what is between.
    look = {"line": 0, "size": 1.6} if len(values) > _MOST_WITH_LINES else {"line": 0.8, "size": 2}
    marks: list[Mark] = [Level(0, PALETTE["black"], line=0.9)]
    for number, exponent in enumerate(shown.T):
        colour = _EXPONENT_COLOURS[number % len(_EXPONENT_COLOURS)]
        more = {"marker": ".", "order": 0.1 * (count - number), "label": f"$λ_{{{number + 1}}}$"}
        marks.append(Curve(values[order], exponent, colour, **look, **more))
    scale = float(np.nanmax(shown, initial=0)) or 0.1
    up = Axis("exponents", (-1.8 * scale if lowest is None else lowest, 1.15 * scale))
    return Display(marks, across, up, "left corner" if count > 1 else "", columns=count)


def _strip(dataset: xr.Dataset, values: np.ndarray, across: Axis) -> Display:
    order = np.argsort(values)
    edges = np.clip(cell_edges(values[order]), values.min(), values.max())
    marks = _regimes(dataset.regime.values[None, order], edges, np.array([0.0, 1.0]))
    return Display(marks, across, Axis("", (0, 1), ticks=[]), "below", columns=len(REGIMES), frame=False)


def _regimes(codes: np.ndarray, x: np.ndarray, y: np.ndarray) -> list[Mark]:
    """Regimes [row, column] by number as an image, with a key to those that occur."""
    found = [REGIMES[code] for code in np.unique(codes).astype(int)]
    image = Image(codes, x, y, tuple(REGIME_COLOURS.values()), (-0.5, len(REGIMES) - 0.5))
    return [image, *(Key(REGIME_COLOURS[name], label=name) for name in found)]


def _column_edges(values: np.ndarray, columns: int) -> np.ndarray:
    """Edges of the columns, among which the values are shared evenly."""
    if columns == len(values):
        return cell_edges(values)
    starts = np.linspace(0, len(values), columns + 1)
    return np.interp(starts - 0.5, np.arange(len(values)), values)


def _observable(dataset: xr.Dataset) -> str:
    """The name of the shown observable on an axis."""
    name = str(dataset.attrs["observable"])
    overlap = re.fullmatch(r"m_([ovqk])\[(\d+)\]", name)
    return overlap_name(int(overlap[2]), overlap[1]) if overlap else name


def _check_diagram(dataset: Any, needed: tuple[str, ...]) -> None:
    if not isinstance(dataset, xr.Dataset) or "parameter" not in dataset.attrs:
        raise fail("dataset", _what(dataset), "an orbit diagram")
    if missing := [name for name in (*needed, "exponents", "regime") if name not in dataset]:
        raise fail("dataset", f"no {', '.join(missing)}", "an orbit diagram with densities, exponents and regimes")
    if dataset.regime.ndim != 1:
        raise fail("dataset", f"regimes along {dataset.regime.dims}", "one start and one direction: choose with isel")


def _what(dataset: Any) -> str:
    if not isinstance(dataset, xr.Dataset):
        return type(dataset).__name__
    return f"a Dataset with {', '.join(map(str, dataset.data_vars)) or 'nothing'}"

"""Orbit diagrams with their exponents, phase diagrams with their regimes, and hysteresis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, LogNorm
from matplotlib.patches import Patch

from .._validation import fail, positive_integer
from ..dynamics import REGIMES
from .style import DIVERGING, PALETTE, axes_or_new, figure_grid, styled

# Okabe and Ito's colours again; light grey says that nothing is said.
REGIME_COLOURS = dict(
    zip(
        REGIMES,
        (PALETTE["sky"], PALETTE["blue"], PALETTE["green"], PALETTE["vermilion"], PALETTE["black"], "#D9D9D9"),
        strict=True,
    )
)
_SYMBOLS = {"beta": "β", "gamma": "γ", "epsilon": "ε"}
# A picture has no more columns than this; values beyond share one, with their counts added.
_MOST_COLUMNS = 1600
_MOST_WITH_LINES = 300
# Share of the height: density, exponents, regimes.
_HEIGHTS = (3.0, 1.25, 0.12)


def density_colours() -> Colormap:
    """From light to dark, evenly in lightness, without the palest end, which white paper would hide."""
    return ListedColormap(colormaps["magma_r"](np.linspace(0.12, 1.0, 256)))


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
        lowest: where the axis of the exponents ends below; a little more below 0 than the largest is above, where
            absent.
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
    _check_diagram(dataset, ("section_density" if section else "density",))
    parameter = dataset.attrs["parameter"]
    values = dataset[parameter].values
    if axes is None:
        figure, grid = figure_grid(size=(9.0, 5.6))
        grid[0, 0].remove()
        panels = figure.subplots(3, 1, sharex=True, height_ratios=_HEIGHTS)
    else:
        panels = np.asarray(axes, object).ravel()
        if len(panels) not in (2, 3):
            raise fail("axes", f"{len(panels)} Axes", "two or three, for density, exponents and regimes")
    top = panels[0]
    image = _points(top, dataset, values) if section else _density(top, dataset, values)
    top.set_ylabel(_observable(dataset))
    if colorbar and image is not None:
        _colorbar(top, image, panels.tolist() if axes is None else top)
    _exponents(panels[1], dataset, values, exponents, lowest)
    if len(panels) == 3:
        _strip(panels[2], dataset, values)
    for ax in panels:
        ax.set_xlim(values.min(), values.max())
        ax.tick_params(labelbottom=ax is panels[-1])
    panels[-1].set_xlabel(_SYMBOLS.get(parameter, parameter))
    return panels


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
    if show not in ("regime", "exponent"):
        raise fail("show", repr(show), "'regime' or 'exponent'")
    ax = axes_or_new(ax, size=(6.0, 4.6))
    across, up = (str(name) for name in dataset.regime.dims)
    extent = (*_edges(dataset[across].values), *_edges(dataset[up].values))
    place: dict[str, Any] = {"origin": "lower", "aspect": "auto", "extent": extent, "interpolation": "nearest"}
    if show == "regime":
        codes = dataset.regime.values.T
        ax.imshow(codes, cmap=_regime_colours(), vmin=-0.5, vmax=len(REGIMES) - 0.5, **place)
        if legend:
            _regime_legend(ax, codes, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4)
    else:
        leading = dataset.exponents.isel(exponent=0).values.T
        finite = leading[np.isfinite(leading)]
        limit = max(float(finite.max(initial=0.0)), 1e-3)
        image = ax.imshow(leading, cmap=DIVERGING, vmin=-limit, vmax=limit, **place)
        if legend:
            ax.figure.colorbar(image, ax=ax, label="leading exponent", extend="min")
    ax.set_xlabel(_SYMBOLS.get(across, across))
    ax.set_ylabel(_SYMBOLS.get(up, up))
    return ax


@styled
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
    ax = axes_or_new(ax, size=(8.0, 4.4))
    parameter = str(dataset.attrs["parameter"])
    values = dataset[parameter].values
    up, down = (_pooled(dataset.density.sel(direction=name).values) > 0 for name in ("up", "down"))
    code = np.where(up & down, 1.0, np.where(up, 2.0, np.where(down, 3.0, np.nan)))
    looks = {"both": PALETTE["grey"], "up alone": PALETTE["vermilion"], "down alone": PALETTE["blue"]}
    levels = {"vmin": 0.5, "vmax": 3.5, "cmap": ListedColormap(list(looks.values()))}
    _image(ax, code, values, dataset.value.values, **levels)
    handles = [Patch(color=colour, label=name) for name, colour in looks.items()]
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 1.1), ncols=3)
    ax.set_xlabel(_SYMBOLS.get(parameter, parameter))
    ax.set_ylabel(_observable(dataset))
    return ax


def _points(ax: Axes, dataset: xr.Dataset, values: np.ndarray) -> None:
    """The section as dots: it has too few points for a density."""
    value, cell = np.nonzero(dataset.section_density.values)
    look = {"s": 1.2, "color": PALETTE["black"], "linewidths": 0, "rasterized": True}
    ax.scatter(values[value], dataset.value.values[cell], **look)
    ax.set_ylim(*_edges(dataset.value.values))


def _density(ax: Axes, dataset: xr.Dataset, values: np.ndarray) -> Any:
    counts = _pooled(dataset.density.values.astype(float))
    share = np.where(counts > 0, counts / max(counts.sum(axis=1).max(), 1.0), np.nan)
    known = share[np.isfinite(share)]
    low, high = (np.quantile(known, 0.05), np.quantile(known, 0.99)) if known.size else (1e-3, 1.0)
    norm = LogNorm(max(low, high / 1e4), max(high, 1.001 * low), clip=True)
    return _image(ax, share, values, dataset.value.values, norm=norm, cmap=density_colours())


def _image(ax: Axes, cells: np.ndarray, across: np.ndarray, up: np.ndarray, **look: Any) -> Any:
    """Cells [value, bin] where they belong; unevenly spaced values get cells of their own width."""
    even = len(across) < 3 or np.allclose(np.diff(across), np.diff(across)[0], rtol=1e-6)
    if even:
        extent = (*_edges(across), *_edges(up))
        place = {"origin": "lower", "aspect": "auto", "interpolation": "nearest", "extent": extent}
        return ax.imshow(cells.T, **place, **look)
    pools = np.array_split(across, len(cells))
    return ax.pcolormesh([pool.mean() for pool in pools], up, cells.T, shading="nearest", rasterized=True, **look)


def _pooled(counts: np.ndarray) -> np.ndarray:
    """Counts [value, bin] with neighbouring values added where there are more than a picture has columns."""
    pool = -(-len(counts) // _MOST_COLUMNS)
    if pool == 1:
        return counts
    starts = np.linspace(0, len(counts), -(-len(counts) // pool) + 1).astype(int)[:-1]
    return np.add.reduceat(counts, starts, axis=0)


def _exponents(ax: Axes, dataset: xr.Dataset, values: np.ndarray, count: int, lowest: float | None) -> None:
    count = min(positive_integer("exponents", count), dataset.sizes["exponent"])
    ax.axhline(0, color=PALETTE["black"], linewidth=0.9, zorder=1)
    colours = (PALETTE["vermilion"], PALETTE["blue"], PALETTE["green"], PALETTE["purple"])
    order = np.argsort(values)
    largest = 0.0
    for number in range(count):
        exponent = dataset.exponents.isel(exponent=number).values
        exponent = np.where(np.isfinite(exponent), exponent, np.nan)
        label = f"$λ_{{{number + 1}}}$"
        if np.isfinite(exponent).any():
            largest = max(largest, float(np.nanmax(exponent)))
        look = {"color": colours[number % len(colours)], "zorder": count - number + 1}
        # Neighbours may be on different attractors: dots tell branches apart where a line would fill what is between.
        if len(values) > _MOST_WITH_LINES:
            ax.scatter(values, exponent, s=1.6, linewidths=0, rasterized=True, label=label, **look)
        else:
            ax.plot(values[order], exponent[order], linewidth=0.8, marker=".", markersize=2, label=label, **look)
    scale = largest or 0.1
    ax.set_ylim(-1.8 * scale if lowest is None else lowest, 1.15 * scale)
    ax.set_ylabel("exponents")
    if count > 1:
        legend = ax.legend(loc="upper left", ncols=count, handlelength=1.2, borderaxespad=0.2, markerscale=4)
        legend.set_zorder(10)


def _strip(ax: Axes, dataset: xr.Dataset, values: np.ndarray) -> None:
    codes = dataset.regime.values[None]
    look = {"cmap": _regime_colours(), "vmin": -0.5, "vmax": len(REGIMES) - 0.5, "rasterized": True}
    order = np.argsort(values)
    edges = np.concatenate([values[order][:1], (values[order][1:] + values[order][:-1]) / 2, values[order][-1:]])
    ax.pcolormesh(edges, [0.0, 1.0], codes[:, order], shading="flat", **look)
    ax.set_ylim(0, 1)
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    _regime_legend(ax, codes, loc="upper center", bbox_to_anchor=(0.5, -4.2), ncols=len(REGIMES))


def _regime_colours() -> ListedColormap:
    return ListedColormap([REGIME_COLOURS[name] for name in REGIMES])


def _regime_legend(ax: Axes, codes: np.ndarray, **place: Any) -> None:
    handles = [Patch(color=REGIME_COLOURS[REGIMES[code]], label=REGIMES[code]) for code in np.unique(codes).astype(int)]
    ax.legend(handles=handles, handlelength=1.0, columnspacing=1.4, **place)


def _colorbar(ax: Axes, image: Any, where: Any) -> None:
    bar = ax.figure.colorbar(
        image, ax=where, label="share of points per bin", shrink=0.6, anchor=(0, 1.0), aspect=22, extend="both"
    )
    bar.outline.set_visible(False)  # type: ignore[operator]


def _edges(centres: np.ndarray) -> tuple[float, float]:
    """Outer edges of equal cells around centres in ascending order."""
    half = (centres[-1] - centres[0]) / (2 * (len(centres) - 1)) if len(centres) > 1 else 0.5
    return float(centres[0] - half), float(centres[-1] + half)


def _observable(dataset: xr.Dataset) -> str:
    """The name of the shown observable; features are counted from 1 in figures."""
    name = str(dataset.attrs["observable"])
    if name.startswith("m_o[") and name.endswith("]"):
        return f"$m_{{o,{int(name[4:-1]) + 1}}}$"
    return name


def _check_diagram(dataset: Any, needed: tuple[str, ...]) -> None:
    if not isinstance(dataset, xr.Dataset) or "parameter" not in dataset.attrs:
        raise fail("dataset", _what(dataset), "an orbit diagram")
    if missing := [name for name in (*needed, "exponents", "regime") if name not in dataset]:
        raise fail("dataset", f"no {', '.join(missing)}", "an orbit diagram with densities, exponents and regimes")
    if dataset.regime.ndim != 1:
        raise fail("dataset", f"regimes along {dataset.regime.dims}", "one start and one direction: choose with isel")


def _what(dataset: Any) -> str:
    return (
        f"a Dataset with {', '.join(map(str, dataset.data_vars)) or 'nothing'}"
        if isinstance(dataset, xr.Dataset)
        else type(dataset).__name__
    )

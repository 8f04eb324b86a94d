"""Figures of the Dynamics view: orbit, spectrum and orbit diagram, and the tables behind these and the phase plane."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from matplotlib.colors import to_hex
from plotly.subplots import make_subplots

from ..dynamics import REGIMES, Regime
from ..figures.diagrams import density_colours
from .dynamics_steps import DiagramPicture, Judgement
from .dynamics_view import KEPT, TRANSIENT, DynamicsChoice, DynamicsPicture, confidence_of
from .pictures import COLOURS, FAINT, INK, colours_for, house, short_number

# Steps that the orbit's axis shows at first; the rest is there to move to.
SHOWN_STEPS = 120
# Of an orbit so many steps are drawn: a browser draws each by itself. Files have all.
DRAWN_STEPS = 360
# Powers below this share of the largest are rounding.
FAINTEST_POWER = 1e-14
# Shades of a density: logarithms of the share of steps, between these two, as whole numbers from 1 to 255. One byte
# each, so that a figure is quickly sent; 0 is for no step at all, and left white.
LOWEST_SHADE, HIGHEST_SHADE = -3.3, -0.5
# White paper would hide the palest colours, so they are left out; evenly darker from few points to many.
_DENSITY = [[0.0, "rgba(255,255,255,0)"], [0.5 / 255, "rgba(255,255,255,0)"]] + [
    [(0.5 + 254.5 * share) / 255, to_hex(density_colours()(share))] for share in np.linspace(0, 1, 17).tolist()
]
_LINE = {"color": COLOURS["blue"], "width": 1.6}


def orbit_figure(picture: DynamicsPicture, *, height: int = 380) -> go.Figure:
    """The magnetisation against the step; the chosen component in front.

    Arguments:
        picture: of `picture_of`.
        height: in pixels.

    Example:
        >>> from thermoformer.app.dynamics_view import picture_of
        >>> figure = orbit_figure(picture_of(DynamicsChoice(beta=1.0)))
        >>> len(figure.data), figure.layout.yaxis.title.text
        (3, 'm<sub>o</sub>')
    """
    choice, figure = picture.choice, go.Figure()
    colours = colours_for(choice.components)
    # The chosen one is drawn last, on top.
    for number in sorted(range(choice.components), key=lambda number: number == choice.component - 1):
        chosen = number == choice.component - 1
        figure.add_scatter(
            x0=0,
            dx=1,
            y=picture.values[:DRAWN_STEPS, number],
            mode="lines+markers" if chosen else "lines",
            line={"color": colours[number], "width": 1.6 if chosen else 1.0},
            marker={"size": 4},
            opacity=1.0 if chosen else 0.45,
            name=written(choice.role, number + 1),
            legendrank=number,
            hovertemplate="step %{x}: %{y:.4f}<extra>%{fullData.name}</extra>",
        )
    figure.update_xaxes(title_text=f"step, after the first {_grouped(TRANSIENT)}", range=[-1, SHOWN_STEPS])
    figure.update_yaxes(
        title_text=f"m<sub>{choice.role}</sub>", range=around(picture.values), nticks=7, exponentformat="power"
    )
    # Room for the legend below the buttons.
    figure.update_layout(
        uirevision=f"orbit {choice.role}", showlegend=choice.components > 1, dragmode="pan", margin={"t": 54}
    )
    return house(figure, height=height)


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


def spectrum_figure(picture: DynamicsPicture, *, height: int = 380) -> go.Figure:
    """Power of the chosen component against frequency, with its leading peak.

    Arguments:
        picture: of `picture_of`.
        height: in pixels.

    Example:
        >>> from thermoformer.app.dynamics_view import picture_of
        >>> spectrum_figure(picture_of(DynamicsChoice(beta=1.255))).layout.yaxis.type
        'log'
    """
    figure, power = go.Figure(), picture.power
    largest = float(power[1:].max())
    if np.isfinite(picture.peak):
        shown = np.where(power > FAINTEST_POWER * largest, power, np.nan)
        hover = "frequency %{x:.4f}: %{y:.2e}<extra></extra>"
        figure.add_scatter(
            x=picture.frequencies[1:], y=shown[1:], mode="lines", line=_LINE | {"width": 1.2}, hovertemplate=hover
        )
        look = {"size": 9, "color": COLOURS["vermilion"], "symbol": "circle-open", "line": {"width": 2}}
        text = f"{picture.peak:.4f}: a turn in {short_number(1 / picture.peak)} steps"
        left = picture.peak > 0.25
        figure.add_scatter(
            x=[picture.peak],
            y=[largest],
            mode="markers+text",
            marker=look,
            text=[f"{text}  " if left else f"  {text}"],
            textposition="middle left" if left else "middle right",
            textfont={"color": COLOURS["vermilion"], "size": 12},
            cliponaxis=False,
            hoverinfo="skip",
        )
        lowest = float(np.nanmin(shown[1:]))
        span = np.log10(largest / lowest)
        ends = [np.log10(lowest) - 0.04 * span, np.log10(largest) + 0.1 * span + 0.2]
        figure.update_yaxes(range=ends, dtick=max(round(span / 5), 1))
    else:
        figure.update_yaxes(range=[-12, 0], dtick=3)
        _say(figure, "it does not move: no spectrum")
    figure.update_xaxes(title_text="frequency, cycles per step", range=[0, 0.505])
    title = f"power of {written(picture.choice.role, picture.choice.component)}"
    figure.update_yaxes(title_text=title, type="log", exponentformat="power")
    figure.update_layout(uirevision="spectrum", showlegend=False)
    return house(figure, height=height)


def spectrum_table(picture: DynamicsPicture) -> dict[str, np.ndarray]:
    """Frequencies in cycles per step, and power spectral density."""
    return {"frequency": picture.frequencies, "power": picture.power}


def diagram_figure(diagram: DiagramPicture, choice: DynamicsChoice, *, height: int = 420) -> go.Figure:
    """The orbit diagram: the density of the chosen magnetisation over β, below it the leading exponent.

    A click gives x, the β of a column. A line stands at the β of the choice.

    Arguments:
        diagram: of `DiagramStepper.picture`.
        choice: the choice, for its β and its magnetisation.
        height: in pixels.

    Example:
        >>> from thermoformer.app.dynamics_steps import DiagramStepper
        >>> diagram_figure(DiagramStepper(DynamicsChoice()).picture, DynamicsChoice()).layout.xaxis2.title.text
        'β'
    """
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.76, 0.24], vertical_spacing=0.045)
    if len(diagram.betas):
        figure.add_heatmap(
            x=diagram.betas,
            y=diagram.bins,
            z=_shade(diagram.image),
            zmin=0,
            zmax=255,
            colorscale=_DENSITY,
            hovertemplate="β = %{x:.5f}, %{y:.3f}<extra></extra>",
            colorbar={
                "title": {"text": "share of steps", "side": "right", "font": {"size": 12}},
                "tickvals": _shade(np.array([1e-3, 1e-2, 1e-1])).tolist(),
                "ticktext": ["0.1 %", "1 %", "10 %"],
                "thickness": 12,
                "lenmode": "fraction",
                "len": 0.74,
                "y": 1.0,
                "yanchor": "top",
                "outlinewidth": 0,
            },
            row=1,
            col=1,
        )
        _add_exponents(figure, diagram)
        half = (diagram.bins[1] - diagram.bins[0]) / 2
        figure.update_yaxes(range=[diagram.bins[0] - half, diagram.bins[-1] + half], row=1, col=1)
    else:
        _say(figure, "the first columns are on their way")
        figure.update_yaxes(range=[-1, 1], row=1, col=1)
        figure.update_yaxes(range=[-0.1, 0.1], row=2, col=1)
    line = {"color": COLOURS["blue"], "width": 1.5, "dash": "dot"}
    figure.add_shape(type="line", x0=choice.beta, x1=choice.beta, y0=0, y1=1, xref="x2", yref="paper", line=line)
    if choice.between[0] <= choice.beta <= choice.between[1]:
        text = f"β = {choice.beta:.5g}"
        look = {"size": 12, "color": COLOURS["blue"]}
        figure.add_annotation(
            x=choice.beta, y=1.0, xref="x2", yref="paper", yanchor="bottom", text=text, font=look, showarrow=False
        )
    figure.update_xaxes(range=list(choice.between), showgrid=False)
    figure.update_xaxes(title_text="β", row=2, col=1)
    figure.update_yaxes(
        title_text=written(choice.role, choice.component), showgrid=False, exponentformat="power", row=1, col=1
    )
    figure.update_yaxes(title_text="λ<sub>1</sub>", nticks=4, exponentformat="power", row=2, col=1)
    kept = f"diagram {choice.role} {choice.component} {choice.between}"
    house(figure.update_layout(uirevision=kept, showlegend=False), height=height)
    return figure.update_layout(margin={"t": 28, "b": 44})


def diagram_table(diagram: DiagramPicture) -> dict[str, np.ndarray]:
    """Every bin that the orbit visits: β, the middle of the bin, and how many steps were there."""
    column, bin_number = np.nonzero(diagram.counts.T)
    return {
        "beta": diagram.betas[column],
        "value": diagram.bins[bin_number],
        "points": diagram.counts[bin_number, column],
    }


def exponent_table(diagram: DiagramPicture) -> dict[str, np.ndarray]:
    """Column by column: β, the exponents, the regime in words and the period, 0 for none."""
    exponents = {f"exponent_{number + 1}": column for number, column in enumerate(diagram.exponents.T)}
    names = np.array(REGIMES)[diagram.regimes.astype(int)]
    return {"beta": diagram.betas, **exponents, "regime": names, "period": diagram.periods}


def numbers_of(picture: DynamicsPicture, judgement: Judgement | None = None) -> list[tuple[str, str]]:
    """Regime, exponents, period and leading frequency as labels with short texts.

    Arguments:
        picture: of `picture_of`.
        judgement: a longer look at the same choice, whose verdict counts once there is one.

    Example:
        >>> from thermoformer.app.dynamics_view import picture_of
        >>> numbers_of(picture_of(DynamicsChoice(beta=1.0)))[:2]
        [('regime', 'periodic, 4 steps'), ('quick look', '36 000 steps')]
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


def _shade(shares: np.ndarray) -> np.ndarray:
    """Shares of steps as shades from 1 to 255, none as 0."""
    logarithms = np.log10(np.maximum(shares, 10.0**LOWEST_SHADE))
    scaled = 1 + 254 * np.clip((logarithms - LOWEST_SHADE) / (HIGHEST_SHADE - LOWEST_SHADE), 0, 1)
    return np.where(shares > 0, np.rint(scaled), 0).astype(np.uint8)


def _add_exponents(figure: go.Figure, diagram: DiagramPicture) -> None:
    leading = np.where(np.isfinite(diagram.exponents[:, 0]), diagram.exponents[:, 0], np.nan)
    hover = "β = %{x:.5f}: λ<sub>1</sub> = %{y:.4f}<extra></extra>"
    chaotic = np.maximum(np.nan_to_num(leading), 0.0)
    figure.add_scatter(
        x=diagram.betas,
        y=chaotic,
        mode="lines",
        line={"width": 0},
        fill="tozeroy",
        fillcolor=COLOURS["vermilion"],
        hoverinfo="skip",
        row=2,
        col=1,
    )
    line = {"color": INK, "width": 1}
    figure.add_scatter(x=diagram.betas, y=leading, mode="lines", line=line, hovertemplate=hover, row=2, col=1)
    # As far below 0 as above: strongly stable columns would flatten the rest.
    top = max(float(chaotic.max()) * 1.15, 0.02)
    figure.update_yaxes(range=[-top, top], zeroline=True, zerolinecolor=FAINT, zerolinewidth=1.5, row=2, col=1)


def _say(figure: go.Figure, text: str) -> None:
    place = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
    figure.add_annotation(text=text, font={"size": 13, "color": COLOURS["grey"]}, **place)


def written(role: str, component: int) -> str:
    """A component of a magnetisation as axes have it."""
    return f"m<sub>{role},{component}</sub>"


def around(values: np.ndarray) -> list[float]:
    """The range of values with a margin; some width where they do not move."""
    low, high = float(values.min()), float(values.max())
    margin = max(0.06 * (high - low), 1e-6)
    return [low - margin, high + margin]


def _grouped(number: int | None) -> str:
    return f"{number:,}".replace(",", " ")

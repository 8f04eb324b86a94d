"""The phase diagram put on paper: regimes and leading exponent, shares of the regimes, and the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from .. import figures
from ..dynamics import REGIMES, regime_names
from . import page
from .paper_dynamics import GAMMA, NEIMARK_SACKER, PAPER
from .phase_diagram import PhaseDiagramConfig

_WHAT = (
    "Two temperatures rule the network: 1/β is that of its output, 1/γ that of its attention. At every point of the "
    "grid the mean-field map runs from one and the same start; the colour names what it does in the end, by its "
    "Lyapunov exponents and by exact return of the state. Points that are undecided need a longer orbit, or have a "
    "cycle that is longer than was looked for."
)
_START = (
    "Attractors live side by side here, so that another start may give another picture; and chaos may be a "
    "supertransient, which ends in a cycle after many more steps than were run."
)


def write_report(dataset: xr.Dataset, config: PhaseDiagramConfig, out: Path) -> Path:
    """Figures (PNG and SVG) and the page into a folder; returns the path of the page."""
    drawn = {"phase_diagram": _both(dataset), "regimes": figures.phase_diagram_image(dataset).figure}
    images = {name: figures.save(figure, out / name)[0] for name, figure in drawn.items()}
    count = dataset.regime.size
    names = regime_names(dataset).values
    leading = dataset.exponents.isel(exponent=0)
    top = leading.where(np.isfinite(leading)).argmax(...)
    best = leading.isel(top)
    rows = []
    for name in REGIMES:
        if inside := int((names == name).sum()):
            rows.append([name, str(inside), f"{100 * inside / count:.1f} %"])
    parts = [
        page.paragraph(_WHAT),
        page.figure(
            images["phase_diagram"],
            "Left: the regime. Right: the leading exponent, red where nearby orbits part; colours end at the largest "
            "on either side.",
            alternative="Regimes and leading Lyapunov exponent over β and γ",
        ),
        page.heading("What is seen"),
        page.paragraph(
            f"The largest exponent is {float(best):.3f}, at β = {float(best.beta):.4g}, γ = {float(best.gamma):.4g}. "
            + _edge(dataset)
        ),
        page.table(["regime", "points", "share"], rows),
        page.paragraph(_START),
    ]
    return page.write_page(
        out / "phase_diagram.html",
        "Phase diagram: where attention is chaotic",
        "Regimes of a self-attention network that reads its own output, over the temperatures of output and attention.",
        parts,
        f"{config.count} × {config.count} points; {config.transient} steps passed over and {config.steps} counted at "
        f"each; cycles of up to {config.longest_period} steps; ε = {config.epsilon:g}. All orbits begin at the final "
        f"window of {config.start_steps} steps at β = {config.start_beta:g}, γ = {config.start_gamma:g}. Data: "
        f"phase_diagram.nc; figures: PNG and SVG, all beside this page. System: {PAPER}.",
    )


def _edge(dataset: xr.Dataset) -> str:
    """Where, at each γ, the first β is that is not simply periodic."""
    other = ~np.isin(regime_names(dataset).transpose("gamma", "beta").values, ("periodic", "fixed point"))
    if not other.any(axis=1).all():
        return ""
    first = dataset.beta.values[other.argmax(axis=1)]
    return (
        f"The first β that is not periodic is {np.median(first):.4g} in the median over γ, {first.min():.4g} to "
        f"{first.max():.4g} in all. At γ = {GAMMA:g} the simple cycle of the positions ends at β = "
        f"{NEIMARK_SACKER:.4f}."
    )


def _both(dataset: xr.Dataset) -> Figure:
    figure, axes = figures.figure_grid(1, 2, size=(5.8, 4.6))
    figures.phase_diagram_image(dataset, axes[0, 0])
    figures.phase_diagram_image(dataset, axes[0, 1], show="exponent")
    return figure

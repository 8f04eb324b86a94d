"""An orbit diagram put on paper: the picture with its exponents, where chaos is, and the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from .. import figures
from .._files import csv_writer
from ..dynamics import REGIMES, Bifurcation, chaotic_intervals, intervals, regime_names
from . import page
from .orbit_diagram import ZOOM, OrbitDiagramConfig
from .paper_dynamics import NEIMARK_SACKER, NEIMARK_SACKER_MULTIPLIER, PAPER

# So many chaotic neighbours are an interval; fewer may be a band between windows, or one orbit that is slow to settle.
STEADY = 3
# A page lists the widest intervals; the CSV file has all.
LISTED = 12
# Quoted beside what was found, by range of β: the paper's system as its reference runs have it.
REFERENCE = {
    ZOOM: "chaos near 1.2653–1.2669 and 1.2746–1.28, λ1 up to 0.155; cycles of 28, 56, 112, 32 and 64 in 1.267–1.274; "
    "a 16-cycle tongue at 1.2496–1.2509",
    (0.0, 3.0): "chaos with windows up to about 2.50, periodic from 2.523 on; no hyperchaos",
}

_WHAT = (
    "At every β the network's mean-field map runs from the same start. Above: how often each value of one overlap "
    "occurs; a line is a cycle, a cloud is chaos or a quasi-periodic orbit. Below, on the same axis: the two leading "
    "Lyapunov exponents. Above 0, nearby orbits part: chaos. The strip below names the regime, by the exponents and by "
    "exact return of the state."
)
_SECTION = (
    "The paper's own picture: only points where overlap {section} is within {near:g} of 0 are shown, so that a closed "
    "curve becomes points, and chaos a thinner cloud."
)


def write_report(dataset: xr.Dataset, point: Bifurcation | None, config: OrbitDiagramConfig, out: Path) -> Path:
    """Figures (PNG and SVG), the table of intervals (CSV) and the page; returns the path of the page."""
    exponents = min(2, config.exponents)
    drawn = {
        "orbit_diagram": figures.orbit_diagram_panels(dataset, exponents=exponents)[0].figure,
        "section": figures.orbit_diagram_panels(dataset, exponents=exponents, section=True)[0].figure,
    }
    images = {name: figures.save(figure, out / name)[0] for name, figure in drawn.items()}
    _write_table(dataset, out / "regimes.csv")
    return _write_page(dataset, point, config, images, out / "orbit_diagram.html")


def summary(dataset: xr.Dataset) -> dict[str, float]:
    """What a diagram says in numbers: chaos from and to, the largest λ1 and where, and shares of regimes.

    Example:
        >>> from thermoformer.dynamics import orbit_diagram
        >>> r = [3.2, 3.9, 4.0]
        >>> found = orbit_diagram(lambda x, r: r * x * (1 - x), 0.3, "r", r, steps=500, transient=500)
        >>> summary(found)["chaos_from"], summary(found)["hyperchaotic"]
        (3.9, 0)
    """
    values = dataset[dataset.attrs["parameter"]].values
    names = regime_names(dataset).values
    chaos, leading = values[names == "chaos"], dataset.exponents.isel(exponent=0).values
    top = int(np.argmax(leading))
    steady = [run for run in chaotic_intervals(dataset) if np.sum((values >= run[0]) & (values <= run[1])) >= STEADY]
    found = {
        "chaos_from": float(chaos.min()) if len(chaos) else np.nan,
        "chaos_to": float(chaos.max()) if len(chaos) else np.nan,
        "steady_chaos_from": min((low for low, _ in steady), default=np.nan),
        "steady_chaos_to": max((high for _, high in steady), default=np.nan),
        "largest_exponent": float(leading[top]),
        "largest_exponent_error": float(dataset.errors.isel(exponent=0).values[top]),
        "largest_exponent_at": float(values[top]),
        "hyperchaotic": int((names == "hyperchaos").sum()),
    }
    return found | {f"share_{name}": float((names == name).mean()) for name in REGIMES}


def period_windows(dataset: xr.Dataset) -> list[tuple[int, float, float, int]]:
    """Runs of neighbouring values with one and the same period: period, first, last, how many values."""
    parameter = dataset.attrs["parameter"]
    values, period = dataset[parameter].values, np.where(regime_names(dataset) == "periodic", dataset.period.values, 0)
    windows = []
    for one in np.unique(period[period > 0]):
        inside = period == one
        for low, high in intervals(values, inside):
            windows.append((int(one), low, high, int(((values >= low) & (values <= high)).sum())))
    return sorted(windows, key=lambda window: window[1])


def _write_page(
    dataset: xr.Dataset,
    point: Bifurcation | None,
    config: OrbitDiagramConfig,
    images: dict[str, Path],
    file: Path,
) -> Path:
    low, high = config.between
    size = f"{config.count} values of β from {low:g} to {high:g}"
    runs = f"{config.transient} steps passed over and {config.steps} counted at each"
    parts = [
        page.paragraph(_WHAT),
        page.figure(
            images["orbit_diagram"],
            f"{size}, {runs}; {config.bins} bins of overlap {config.show + 1}, logarithmic colours.",
            alternative="Density of an overlap against β, with Lyapunov exponents and regimes below",
        ),
        page.heading("What is seen"),
        *(page.paragraph(text) for text in _what_is_seen(dataset, config)),
        page.side_by_side(_chaos_table(dataset), _window_table(dataset)),
        *_bifurcation(point, dataset),
        page.heading("The paper's section"),
        page.paragraph(_SECTION.format(section=config.section + 1, near=config.near)),
        page.figure(
            images["section"],
            f"The points of the diagram above with overlap {config.section + 1} within {config.near:g} of 0.",
            alternative="Density of the points on the section against β",
        ),
    ]
    return page.write_page(
        file,
        "Orbit diagram: the way into chaos" if config.between == ZOOM else "Orbit diagram: order, chaos, order",
        "A self-attention network that reads its own output, from hot to cold: what its overlaps do in the end, and "
        "how fast nearby orbits part.",
        parts,
        f"{size}; {runs}; {_count(config.exponents, 'Lyapunov exponent')} at every value; γ = {config.gamma:g}, "
        f"ε = {config.epsilon:g}. All orbits begin at the final window of the one at β = {high:g}: other starts may "
        "have other attractors. Data: orbit_diagram.nc; intervals: regimes.csv; figures: PNG and SVG, all beside this "
        f"page. System: {PAPER}.",
    )


def _what_is_seen(dataset: xr.Dataset, config: OrbitDiagramConfig) -> list[str]:
    found = summary(dataset)
    spacing = (config.between[1] - config.between[0]) / max(config.count - 1, 1)
    texts = ["No value is chaotic."]
    if np.isfinite(found["chaos_from"]):
        texts = [
            f"Chaos is first seen at β = {found['chaos_from']:.6g} and last at β = {found['chaos_to']:.6g}, in "
            f"{_count(len(chaotic_intervals(dataset)), 'interval')} between windows of cycles (values are "
            f"{spacing:.2g} apart)."
        ]
    if np.isfinite(found["steady_chaos_from"]):
        texts[0] += (
            f" Intervals of {STEADY} values or more run from β = {found['steady_chaos_from']:.6g} to "
            f"{found['steady_chaos_to']:.6g}; what is chaotic outside are fewer neighbours."
        )
    texts[0] += (
        f" The largest exponent is {found['largest_exponent']:.4f} ± {found['largest_exponent_error']:.4f}, at "
        f"β = {found['largest_exponent_at']:.6g}."
    )
    hyper = int(found["hyperchaotic"])
    texts[0] += " No value is hyperchaotic." if not hyper else f" {_count(hyper, 'value')} count as hyperchaotic."
    shares = [f"{name} {100 * found[f'share_{name}']:.1f} %" for name in REGIMES if found[f"share_{name}"] > 0]
    texts.append(f"Shares of the values: {', '.join(shares)}.")
    if found["share_undecided"]:
        texts[-1] += (
            " Undecided are values where the orbit had not come to an exact return though its exponents are not "
            "positive, or where an exponent is 0 within a large error: a longer orbit would tell."
        )
    if (reference := REFERENCE.get(config.between)) is not None:
        texts.append(f"Reference runs of the paper's system: {reference}.")
    return texts


def _chaos_table(dataset: xr.Dataset) -> str:
    values = dataset[dataset.attrs["parameter"]].values
    leading = dataset.exponents.isel(exponent=0).values
    rows = []
    for low, high in chaotic_intervals(dataset):
        inside = (values >= low) & (values <= high)
        rows.append((int(inside.sum()), f"{low:.6g} – {high:.6g}", f"{leading[inside].max():.4f}"))
    widest = sorted(rows, reverse=True)[:LISTED]
    lines = [[text, str(count), top] for count, text, top in rows if (count, text, top) in widest]
    caption = f"The widest of {_count(len(rows), 'chaotic interval')}." if len(rows) > len(lines) else ""
    return page.table(["chaos", "values", "largest λ1"], lines, caption)


def _window_table(dataset: xr.Dataset) -> str:
    windows = period_windows(dataset)
    widest = sorted(windows, key=lambda window: -window[3])[:LISTED]
    lines = [
        [f"{low:.6g} – {high:.6g}", str(period), str(count)]
        for period, low, high, count in windows
        if (period, low, high, count) in widest
    ]
    caption = f"The widest of {len(windows)} runs of one period." if len(windows) > len(lines) else ""
    return page.table(["cycle", "period", "values"], lines, caption)


def _bifurcation(point: Bifurcation | None, dataset: xr.Dataset) -> list[str]:
    if point is None:
        return []
    leading = point.cycle.multipliers[0]
    text = (
        f"Below β = {point.value:.10f} positions drive a cycle of {point.cycle.period} steps with overlaps of about "
        f"0.001. There it loses its stability ({point.kind}): its largest multipliers are {leading.real:.5f} ± "
        f"{abs(leading.imag):.5f}i, of modulus {abs(leading):.8f}. The point is the root of that modulus − 1, not read "
        f"off the picture. Reference: β = {NEIMARK_SACKER}, {NEIMARK_SACKER_MULTIPLIER.real} ± "
        f"{NEIMARK_SACKER_MULTIPLIER.imag}i; difference {abs(point.value - NEIMARK_SACKER):.1e}."
    )
    unsettled = np.isin(regime_names(dataset).values, ("quasi-periodic", "undecided"))
    slow = int(((dataset.beta.values < point.value) & unsettled).sum())
    if slow:
        text += (
            f" Just below it orbits settle so slowly that {_count(slow, 'value')} of the diagram had not returned: the "
            "strip does not show them as periodic, the root-finding knows better."
        )
    return [page.heading("Where the simple cycle ends"), page.paragraph(text)]


def _write_table(dataset: xr.Dataset, file: Path) -> None:
    """Every run of neighbours with one regime and period."""
    parameter = dataset.attrs["parameter"]
    values, names, period = dataset[parameter].values, regime_names(dataset).values, dataset.period.values
    change = (names[1:] != names[:-1]) | (period[1:] != period[:-1])
    starts = np.concatenate([[0], np.flatnonzero(change) + 1])
    with csv_writer(file) as writer:
        writer.writerow(["first", "last", "values", "regime", "period", "largest_exponent"])
        for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
            top = float(dataset.exponents.isel(exponent=0).values[start:end].max())
            row = [f"{values[start]:.8g}", f"{values[end - 1]:.8g}", end - start, names[start], period[start]]
            writer.writerow([*row, f"{top:.6g}"])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")

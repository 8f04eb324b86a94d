"""The trajectories put on paper: figures, the table of regimes, and the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import figures
from .._files import csv_writer
from ..dynamics import autocorrelation, power_spectrum
from . import page
from .paper_dynamics import PAPER
from .trajectories import TrajectoriesConfig

# Regime, λ1 and λ2 of the reference runs of the paper's system, by β.
REFERENCE = {
    1.255: ("quasi-periodic", "0.0000", "−0.0078"),
    1.27: ("periodic, 28-cycle (from the β = 3 window: 56, λ1 −0.0035)", "−0.0478", "−0.0478"),
    1.28: ("chaos", "0.143", "−0.057"),
    1.4: ("chaos", "0.076", "−0.133"),
}
SHOWN_STEPS, LAGS = 160, 200

_SYSTEM = (
    "A self-attention network reads the tokens that it has written itself. For many bits per token its overlaps with "
    "the stored features follow a deterministic map, the mean field. Its window of four tokens and three features has "
    "12 dimensions, and the four positions drive it with period 4. The temperature of the output, 1/β, decides what "
    "the map does in the end."
)


def write_report(dataset: xr.Dataset, config: TrajectoriesConfig, out: Path) -> Path:
    """Figures (PNG and SVG), the table (CSV) and the page into a folder; returns the path of the page."""
    drawn = {
        "time_series": _grid(
            dataset,
            lambda values, ax: figures.orbit_series(values[:SHOWN_STEPS], ax, legend=False),
            (4.6, 2.5),
        ),
        "phase_planes": _grid(dataset, lambda values, ax: figures.phase_plane(values, (0, 1), ax), (4.0, 3.4)),
        "spectra": _grid(
            dataset,
            lambda values, ax: figures.power_spectrum_curve(power_spectrum(values), ax, legend=False),
            (4.6, 2.7),
        ),
        "autocorrelations": _grid(
            dataset,
            lambda values, ax: figures.autocorrelation_curve(
                autocorrelation(values, lags=min(LAGS, len(values) - 1)), ax, legend=False
            ),
            (4.6, 2.5),
        ),
    }
    images = {name: figures.save(figure, out / name)[0] for name, figure in drawn.items()}
    _write_table(dataset, out / "trajectories.csv")
    return _write_page(dataset, config, images, out / "trajectories.html")


def _grid(dataset: xr.Dataset, draw: Callable[[np.ndarray, Axes], Axes], size: tuple[float, float]) -> Figure:
    """One panel per β, three across; one legend of the features for all."""
    count = dataset.sizes["beta"]
    columns = min(3, count)
    figure, axes = figures.figure_grid(-(-count // columns), columns, size=size)
    for number, ax in enumerate(axes.flat):
        if number >= count:
            ax.remove()
            continue
        one = dataset.isel(beta=number)
        draw(one.m_o.values, ax)
        ax.set_title(f"β = {float(one.beta):g}: {_verdict(one)}", fontsize=11)
    handles, names = axes.flat[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=12)
    return figure


def _write_page(dataset: xr.Dataset, config: TrajectoriesConfig, images: dict[str, Path], file: Path) -> Path:
    parts = [
        page.paragraph(_SYSTEM),
        page.paragraph(
            f"Every orbit here begins at the final window of {config.transient} steps at β = {config.start_beta:g}, "
            f"which is the paper's rule; {config.transient} steps are passed over, {config.steps} are drawn, and "
            f"exponents are averages over {config.exponent_steps}."
        ),
        page.heading("What each orbit is"),
        _regime_table(dataset),
        page.paragraph(_running_on(dataset, config)),
        *_other_starts(dataset, config),
        page.heading("Over time"),
        page.figure(
            images["time_series"],
            f"The overlaps m_o over {SHOWN_STEPS} steps, counted from the end of the transient.",
            alternative="Overlaps against the step, one panel per β",
        ),
        page.heading("In the plane of two features"),
        page.figure(
            images["phase_planes"],
            f"All {config.steps} kept points: a cycle is a few points, a quasi-periodic orbit closed curves, chaos "
            "neither.",
            alternative="Points of the orbits in the plane of features 1 and 2, one panel per β",
        ),
        page.heading("By frequency"),
        page.figure(
            images["spectra"],
            "Power spectra by Welch's method: lines for cycles and quasi-periodic orbits, a broad floor for chaos. "
            "Power lower than 1e-14 of the largest is rounding and not drawn.",
            alternative="Power spectra, one panel per β",
        ),
        page.figure(
            images["autocorrelations"],
            "Autocorrelation: it stays for cycles and quasi-periodic orbits, and decays in chaos.",
            alternative="Autocorrelation against the lag, one panel per β",
        ),
    ]
    return page.write_page(
        file,
        "Trajectories: from a quasi-periodic orbit to chaos",
        "One network, six temperatures: a curve, cycles, and chaos.",
        parts,
        f"Features of the paper, γ = {config.gamma:g}, ε = {config.epsilon:g}. Data: trajectories.nc; table: "
        f"trajectories.csv; figures: PNG and SVG, all beside this page. System: {PAPER}.",
    )


def _regime_table(dataset: xr.Dataset) -> str:
    rows = []
    for number in range(dataset.sizes["beta"]):
        one = dataset.isel(beta=number)
        beta = float(one.beta)
        reference = REFERENCE.get(beta, ("", "", ""))
        leading = [_with_error(float(one.exponents[k]), float(one.errors[k])) for k in range(3)]
        rows.append([f"{beta:g}", _verdict(one), *leading, f"{float(one.dimension):.2f}", *reference])
    header = ["β", "regime", "λ1", "λ2", "λ3", "dimension", "published or specified", "λ1", "λ2"]
    caption = (
        "Lyapunov exponents per step with standard errors by batch means; dimension: Kaplan and Yorke's. Right, in "
        "grey: what reference runs of the paper's system gave."
    )
    return page.table(header, rows, caption, quiet=(6, 7, 8))


def _other_starts(dataset: xr.Dataset, config: TrajectoriesConfig) -> list[str]:
    if not config.windows:
        return []
    text = (
        f"The orbit at β = {config.start_beta:g} is a cycle itself, and which of its windows one begins with is a "
        f"matter of when one stops. From each of {config.windows} successive windows:"
    )
    return [page.heading("Other starts, other attractors"), page.paragraph(text), _window_table(dataset)]


def _window_table(dataset: xr.Dataset) -> str:
    rows = []
    for number in range(dataset.sizes["beta"]):
        one = dataset.isel(beta=number)
        names = [
            f"{period}-cycle" if name == "periodic" else str(name)
            for name, period in zip(one.window_regime.values, one.window_period.values, strict=True)
        ]
        counts = sorted(((names.count(name), name) for name in set(names)), reverse=True)
        rows.append([f"{float(one.beta):g}", ", ".join(f"{name}: {count}" for count, name in counts)])
    return page.table(["β", "ends, and from how many windows"], rows)


def _running_on(dataset: xr.Dataset, config: TrajectoriesConfig) -> str:
    if not config.confirm:
        return "Chaos was not followed further at this size: it may be a supertransient, which ends in a cycle later."
    texts = []
    for number in range(dataset.sizes["beta"]):
        one = dataset.isel(beta=number)
        if len(verdicts := str(one.verdicts.values).split("; ")) > 1:
            last = verdicts[-1].split(": ")[1]
            steps = int(one.steps_run)
            same = "still" if all(verdict.endswith(f": {last}") for verdict in verdicts) else "in the end"
            texts.append(f"β = {float(one.beta):g}: {same} {_verdict(one)} after {steps} steps.")
    chaos = "Chaos can be a supertransient that ends in a cycle much later, so such orbits were followed further. "
    return chaos + " ".join(texts) if texts else "No orbit was chaotic or undecided."


def _write_table(dataset: xr.Dataset, file: Path) -> None:
    with csv_writer(file) as writer:
        writer.writerow(["beta", "regime", "period", "dimension", "exponent", "value", "error", "steps", "verdicts"])
        for number in range(dataset.sizes["beta"]):
            one = dataset.isel(beta=number)
            head = [f"{float(one.beta):g}", str(one.regime.values), int(one.period), f"{float(one.dimension):.6g}"]
            tail = [int(one.steps_run), str(one.verdicts.values)]
            for value, error, k in zip(one.exponents.values, one.errors.values, one.exponent.values, strict=True):
                writer.writerow([*head, k, f"{value:.8g}", f"{error:.3g}", *tail])


def _verdict(one: xr.Dataset) -> str:
    name, period = str(one.regime.values), int(one.period)
    return f"{period}-cycle" if name == "periodic" else name


def _with_error(value: float, error: float) -> str:
    if not np.isfinite(value):
        return "lost to rounding"
    text = f"{value:.4f}" if np.isnan(error) else f"{value:.4f} ± {max(error, 1e-4):.4f}"
    return text.replace("-", "−")

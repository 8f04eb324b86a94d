"""The paper's orbit diagrams with all exponents (experiments §5)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr

from ..._progress import inside
from ...dynamics import (
    REGIMES,
    Bifurcation,
    MeanField,
    Window,
    bifurcation_point,
    chaotic_intervals,
    intervals,
    orbit,
    regime_names,
)
from ...dynamics import orbit_diagram as diagram_of
from ...sweeps import resumable
from ..base import Study
from ..paper_dynamics import (
    EPSILON,
    GAMMA,
    NEIMARK_SACKER,
    NEIMARK_SACKER_MULTIPLIER,
    PAPER,
    check_numbers,
    paper_model,
    paper_start,
    usual_parts,
)
from ..sweeping import check_fields, config_of

# The 4-cycle of the positions is stable at one end and unstable at the other.
BIFURCATION_BRACKET, POSITIONS = (1.24, 1.25), 4
WHOLE, ZOOM = (0.0, 3.0), (1.24, 1.28)
# So many chaotic neighbours are an interval; fewer may be a band between windows, or one orbit that is slow to settle.
STEADY = 3
# A page lists the widest intervals; the CSV file has all.
LISTED = 12
# What reference runs of the paper's system have, by range of β.
REFERENCE = {
    ZOOM: "chaos near 1.2653–1.2669 and 1.2746–1.28, λ1 up to 0.155; cycles of 28, 56, 112, 32 and 64 in 1.267–1.274; "
    "a 16-cycle tongue at 1.2496–1.2509",
    WHOLE: "chaos with windows up to about 2.50, periodic from 2.523 on; no hyperchaos",
}


@dataclass(frozen=True)
class OrbitDiagramConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        between: lowest and highest β.
        count: how many values of β, evenly spaced.
        gamma, epsilon: the other parameters of the network.
        steps, transient: steps that count at every value, and steps before.
        show: number of the feature of m_o that is shown.
        limits, bins: of its density.
        section, near: the second density has the points where this feature is that close to 0: the paper's rule.
        exponents: how many leading exponents.
        longest_period: returns are sought up to so many steps.

    All orbits begin at the final window of the one at the highest β, which begins from a token.

    Example:
        >>> OrbitDiagramConfig().betas[-1].item(), OrbitDiagramConfig.zoom().betas[0].item()
        (3.0, 1.24)
    """

    between: tuple[float, float] = WHOLE
    count: int = 4001
    gamma: float = GAMMA
    epsilon: float = EPSILON
    steps: int = 20_000
    transient: int = 100_000
    show: int = 0
    limits: tuple[float, float] = (-1.0, 1.0)
    bins: int = 400
    section: int = 1
    near: float = 0.001
    exponents: int = 12
    longest_period: int = 2000

    def __post_init__(self) -> None:
        sizes = ("count", "steps", "bins", "exponents", "longest_period")
        check_fields(self, positive=sizes, nonnegative=["transient"], above_zero=["near"])
        check_numbers(self, ("gamma", "epsilon"), ranges=("between", "limits"))

    @classmethod
    def zoom(cls) -> OrbitDiagramConfig:
        """The paper's second diagram, about the way into chaos."""
        return cls(between=ZOOM, limits=(-0.5, 0.5))

    def quick(self) -> OrbitDiagramConfig:
        """The small size of this diagram: fewer values, shorter orbits, two exponents."""
        return dataclasses.replace(self, count=801, steps=3000, transient=10_000, exponents=2, longest_period=600)

    @property
    def betas(self) -> np.ndarray:
        """All values of β."""
        return np.linspace(*self.between, self.count)


@resumable
def orbit_diagram_values(beta: np.ndarray, config: Mapping[str, Any]) -> xr.Dataset:
    """The diagram at some values of β: a part of the sweep.

    Arguments:
        beta: [point].
        config: the record of an `OrbitDiagramConfig`.
    """
    settings, report = config_of(OrbitDiagramConfig, config), inside.get()
    report(0, 1, "start")
    model, start = _begun(settings)
    return diagram_of(
        model,
        start,
        "beta",
        beta,
        steps=settings.steps,
        transient=settings.transient,
        k=settings.exponents,
        show=settings.show,
        bins=settings.bins,
        limits=settings.limits,
        section=(settings.section, settings.near),
        longest_period=settings.longest_period,
        progress=report,
    )


@lru_cache(maxsize=4)
def _begun(config: OrbitDiagramConfig) -> tuple[MeanField, Window]:
    """The map, and where every orbit begins."""
    highest = config.between[1]
    start = paper_start(highest, config.transient + config.steps, config.gamma, config.epsilon)
    return paper_model(highest, config.gamma, config.epsilon), start


def neimark_sacker(config: OrbitDiagramConfig) -> Bifurcation | None:
    """Where the cycle of the positions loses its stability; none where the diagram does not show it."""
    low, high = BIFURCATION_BRACKET
    if not config.between[0] <= low < high <= config.between[1] or (config.gamma, config.epsilon) != (GAMMA, EPSILON):
        return None
    model = paper_model(low, config.gamma, config.epsilon)
    settled = orbit(model, model.token(), steps=1, transient=10_000).final_state
    return bifurcation_point(model, settled, "beta", BIFURCATION_BRACKET, POSITIONS)


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


def widest(rows: list[tuple], size: int) -> list[tuple]:
    """The rows with the most values, in their own order.

    Arguments:
        size: which entry of a row says how many values it has.
    """
    chosen = sorted(rows, key=lambda row: row[size], reverse=True)[:LISTED]
    return [row for row in rows if row in chosen]


def regime_runs(dataset: xr.Dataset) -> list[list[Any]]:
    """Every run of neighbours with one regime and period, as rows of a table with its header."""
    values, names = dataset[dataset.attrs["parameter"]].values, regime_names(dataset).values
    period, leading = dataset.period.values, dataset.exponents.isel(exponent=0).values
    change = (names[1:] != names[:-1]) | (period[1:] != period[:-1])
    starts = np.concatenate([[0], np.flatnonzero(change) + 1])
    rows: list[list[Any]] = [["first", "last", "values", "regime", "period", "largest_exponent"]]
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        row = [f"{values[start]:.8g}", f"{values[end - 1]:.8g}", end - start, names[start], period[start]]
        rows.append([*row, f"{leading[start:end].max():.6g}"])
    return rows


class OrbitDiagram(Study):
    """The diagram, as `thermoformer.dynamics.orbit_diagram` gives it: a sweep over β, on a CPU in up to 16 parts.

    Arguments:
        usual: the config of the usual size.
    """

    name, title, config, point = "orbit_diagram", "Orbit diagram", OrbitDiagramConfig, orbit_diagram_values
    vectorised, embedded = True, "png"

    def __init__(self, usual: OrbitDiagramConfig) -> None:
        self.usual = usual

    def sized(self, quick: bool, seed: int) -> OrbitDiagramConfig:
        """Nothing here is random: the seed changes nothing."""
        return self.usual.quick() if quick else self.usual

    def axes(self, config: OrbitDiagramConfig) -> dict[str, list[float]]:
        """Values of β."""
        return {"beta": config.betas.tolist()}

    def batch(self, config: OrbitDiagramConfig) -> int:
        """A part."""
        return -(-config.count // usual_parts(min(16, max(config.count // 100, 1))))

    def complete(self, found: xr.Dataset, config: OrbitDiagramConfig) -> xr.Dataset:
        """With the window that every orbit begins with."""
        _, start = _begun(config)
        return found.assign_attrs(start=json.dumps({"A": start.A.tolist(), "positions": start.positions.tolist()}))

    def figures(self, dataset: xr.Dataset, config: OrbitDiagramConfig) -> dict[str, Any]:
        """The diagram with its exponents, and the same for the points on the section."""
        from ... import figures

        exponents = min(2, config.exponents)
        return {
            "orbit_diagram": figures.orbit_diagram_panels(dataset, exponents=exponents)[0].figure,
            "section": figures.orbit_diagram_panels(dataset, exponents=exponents, section=True)[0].figure,
        }

    def tables(self, dataset: xr.Dataset, config: OrbitDiagramConfig) -> dict[str, list[list[Any]]]:
        """Every run of neighbours with one regime and period."""
        return {"regimes": regime_runs(dataset)}

    def values(self, dataset: xr.Dataset, config: OrbitDiagramConfig) -> dict[str, Any]:
        """Where chaos is, cycles, and the bifurcation that ends the simple cycle."""
        betas, leading = dataset.beta.values, dataset.exponents.isel(exponent=0).values
        chaos = []
        for low, high in chaotic_intervals(dataset):
            inside = (betas >= low) & (betas <= high)
            chaos.append((f"{low:.6g} – {high:.6g}", int(inside.sum()), f"{leading[inside].max():.4f}"))
        windows = [(f"{low:.6g} – {high:.6g}", period, count) for period, low, high, count in period_windows(dataset)]
        point = neimark_sacker(config)
        unsettled = np.isin(regime_names(dataset).values, ("quasi-periodic", "undecided"))
        return {
            "found": summary(dataset),
            "regimes": REGIMES,
            "zoomed": config.between == ZOOM,
            "steady": STEADY,
            "spacing": (config.between[1] - config.between[0]) / max(config.count - 1, 1),
            "reference": REFERENCE.get(config.between),
            "chaos": chaos,
            "chaos_shown": widest(chaos, 1),
            "windows": windows,
            "windows_shown": widest(windows, 2),
            "bifurcation": point,
            "multiplier": None if point is None else point.cycle.multipliers[0],
            "slow": 0 if point is None else int(((betas < point.value) & unsettled).sum()),
            "known": NEIMARK_SACKER,
            "known_multiplier": NEIMARK_SACKER_MULTIPLIER,
            "system": PAPER,
        }


STUDY, ZOOMED = OrbitDiagram(OrbitDiagramConfig()), OrbitDiagram(OrbitDiagramConfig.zoom())
run_orbit_diagram, orbit_diagram_data = STUDY.run, STUDY.data

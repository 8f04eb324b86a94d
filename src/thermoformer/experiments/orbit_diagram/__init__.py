"""The paper's orbit diagrams with all exponents (experiments §5)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ..._progress import inside
from ...dynamics import (
    REGIMES,
    Bifurcation,
    MeanField,
    Window,
    bifurcation_point,
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
    paper_model,
    paper_start,
    usual_parts,
)
from ..sweeping import check_fields, config_of
from ..words import with_texts

# The 4-cycle of the positions is stable at one end and unstable at the other.
BIFURCATION_BRACKET, POSITIONS = (1.24, 1.25), 4
WHOLE, ZOOM = (0.0, 3.0), (1.24, 1.28)
# The least chaotic neighbours of an interval; fewer may be a band between windows, or one orbit that is slow to settle.
STEADY = 3
# A page lists the widest intervals; the CSV file has all.
LISTED = 12


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
        longest_period: the most steps after which a return is sought.

    All orbits begin at the final window of the one at the highest β, which begins from a token.
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
        check_fields(self, nonnegative=("transient", "show", "section"), above_zero=["near"], shares=["epsilon"])

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
    parameter, names = dataset.attrs["parameter"], regime_names(dataset).values
    chaos, leading = dataset[parameter].values[names == "chaos"], dataset.isel(exponent=0)
    top = leading.isel({parameter: leading.exponents.argmax(parameter).item()})
    runs = regime_runs(dataset)
    steady = runs[(runs.regime == "chaos") & (runs["values"] >= STEADY)]
    numbers = {
        "chaos_from": chaos.min().item() if len(chaos) else np.nan,
        "chaos_to": chaos.max().item() if len(chaos) else np.nan,
        "steady_chaos_from": steady["first"].min(),
        "steady_chaos_to": steady["last"].max(),
        "largest_exponent": top.exponents.item(),
        "largest_exponent_error": top.errors.item(),
        "largest_exponent_at": top[parameter].item(),
        "hyperchaotic": int((names == "hyperchaos").sum()),
    }
    return numbers | {f"share_{name}": float((names == name).mean()) for name in REGIMES}


def regime_runs(dataset: xr.Dataset) -> pd.DataFrame:
    """Every run of neighbours with one regime and period, and the largest exponent in it."""
    frame: Any = pd.DataFrame(
        {
            "value": dataset[dataset.attrs["parameter"]].values,
            "regime": regime_names(dataset).values,
            "period": dataset.period.values,
            "exponent": dataset.exponents.isel(exponent=0).values,
        }
    )
    kind = frame[["regime", "period"]]
    runs = frame.groupby((kind != kind.shift()).any(axis=1).cumsum())
    return runs.agg(
        first=("value", "first"),
        last=("value", "last"),
        values=("value", "size"),
        regime=("regime", "first"),
        period=("period", "first"),
        largest_exponent=("exponent", "max"),
    )


def widest(runs: Any) -> Iterator[Any]:
    """The runs with the most values, each also with its range of values as text."""
    chosen = runs.loc[runs["values"].nlargest(LISTED).index.sort_values()]
    ends = zip(chosen["first"], chosen["last"], strict=True)
    return chosen.assign(range=[f"{first:.6g} – {last:.6g}" for first, last in ends]).itertuples()


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

    def tables(self, dataset: xr.Dataset, config: OrbitDiagramConfig) -> dict[str, pd.DataFrame]:
        """Every run of neighbours with one regime and period."""
        return {"regimes": with_texts(regime_runs(dataset), first=".8g", last=".8g", largest_exponent=".6g")}

    def values(self, dataset: xr.Dataset, config: OrbitDiagramConfig) -> dict[str, Any]:
        """Where chaos is, cycles, and the bifurcation that ends the simple cycle."""
        runs, point = regime_runs(dataset), neimark_sacker(config)
        chaos, windows = runs[runs.regime == "chaos"], runs[runs.regime == "periodic"]
        unsettled = np.isin(regime_names(dataset).values, ("quasi-periodic", "undecided"))
        return {
            "found": summary(dataset),
            "regimes": REGIMES,
            "shown": {WHOLE: "whole", ZOOM: "zoom"}.get(config.between),
            "steady": STEADY,
            "spacing": (config.between[1] - config.between[0]) / max(config.count - 1, 1),
            "chaos": len(chaos),
            "chaos_rows": [[run.range, run.values, f"{run.largest_exponent:.4f}"] for run in widest(chaos)],
            "windows": len(windows),
            "window_rows": [[run.range, run.period, run.values] for run in widest(windows)],
            "bifurcation": point,
            "multiplier": None if point is None else point.cycle.multipliers[0],
            "slow": 0 if point is None else int(((dataset.beta.values < point.value) & unsettled).sum()),
            "known": NEIMARK_SACKER,
            "known_multiplier": NEIMARK_SACKER_MULTIPLIER,
        }


STUDY, ZOOMED = OrbitDiagram(OrbitDiagramConfig()), OrbitDiagram(OrbitDiagramConfig.zoom())

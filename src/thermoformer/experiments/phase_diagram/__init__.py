"""The phase diagram over β and γ (experiments §5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr

from ..._progress import inside
from ...dynamics import REGIMES, Window, regime_names
from ...dynamics import phase_diagram as diagram_of
from ...sweeps import resumable
from ..base import Study
from ..paper_dynamics import EPSILON, GAMMA, NEIMARK_SACKER, paper_model, paper_start, usual_parts
from ..sweeping import check_fields, config_of


@dataclass(frozen=True)
class PhaseDiagramConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        betas, gammas: lowest and highest value of β and of γ.
        count: how many values of each, evenly spaced.
        epsilon: the weight of positions.
        start_beta, start_gamma, start_steps: every orbit begins at the final window of `start_steps` steps there.
        steps, transient: steps that count at every point, and steps before.
        exponents: how many leading exponents.
        longest_period: the most steps after which a return is sought.
    """

    betas: tuple[float, float] = (1.0, 3.0)
    gammas: tuple[float, float] = (20.0, 420.0)
    count: int = 200
    epsilon: float = EPSILON
    start_beta: float = 3.0
    start_gamma: float = GAMMA
    start_steps: int = 120_000
    steps: int = 5000
    transient: int = 20_000
    exponents: int = 2
    longest_period: int = 600

    def __post_init__(self) -> None:
        check_fields(self, nonnegative=["transient"], shares=["epsilon"])

    @classmethod
    def quick(cls) -> PhaseDiagramConfig:
        """The small size: fewer points and shorter orbits."""
        return cls(count=64, steps=2000, transient=5000)

    @property
    def grid(self) -> dict[str, np.ndarray]:
        """All values of β and γ."""
        return {"beta": np.linspace(*self.betas, self.count), "gamma": np.linspace(*self.gammas, self.count)}


@resumable
def phase_diagram_values(beta: np.ndarray, gamma: np.ndarray, config: Mapping[str, Any]) -> xr.Dataset:
    """The regimes at some points: a part of the sweep.

    Arguments:
        beta, gamma: [point], all combinations of some values of each.
        config: the record of a `PhaseDiagramConfig`.
    """
    settings, report = config_of(PhaseDiagramConfig, config), inside.get()
    report(0, 1, "start")
    start = _start(settings)
    model = paper_model(settings.start_beta, settings.start_gamma, settings.epsilon)
    found = diagram_of(
        model,
        start,
        {"beta": np.unique(beta), "gamma": np.unique(gamma)},
        steps=settings.steps,
        transient=settings.transient,
        k=settings.exponents,
        longest_period=settings.longest_period,
        progress=report,
    )
    chosen = found.sel(beta=xr.DataArray(beta, dims="point"), gamma=xr.DataArray(gamma, dims="point"))
    return chosen.drop_vars(["beta", "gamma"]).transpose("point", ...)


@lru_cache(maxsize=4)
def _start(config: PhaseDiagramConfig) -> Window:
    """Where every orbit begins."""
    return paper_start(config.start_beta, config.start_steps, config.start_gamma, config.epsilon)


class PhaseDiagram(Study):
    """Regimes over β and γ: a sweep, with the Dataset of `thermoformer.dynamics.phase_diagram`.

    On a CPU it is computed in 20 parts, some values of γ with all of β.
    """

    name, title, config, point = "phase_diagram", "Phase diagram", PhaseDiagramConfig, phase_diagram_values
    vectorised, embedded = True, "png"

    def axes(self, config: PhaseDiagramConfig) -> dict[str, list[float]]:
        """Values of β and γ."""
        return {name: values.tolist() for name, values in config.grid.items()}

    def batch(self, config: PhaseDiagramConfig) -> dict[str, int]:
        """A part."""
        pieces = usual_parts(min(20, max(config.count // 10, 1)))
        return {"beta": config.count, "gamma": -(-config.count // pieces)}

    def figures(self, dataset: xr.Dataset, config: PhaseDiagramConfig) -> dict[str, Any]:
        """Regimes and leading exponent side by side, and the regimes alone."""
        from ... import figures
        from ...figures.display import Text

        figure, axes = figures.figure_grid(1, 2, size=(5.8, 4.6))
        alone = figures.phase_diagram_image(dataset)
        figures.phase_diagram_image(dataset, axes[0, 0])
        figures.phase_diagram_image(dataset, axes[0, 1], show="exponent")
        for ax in (*axes[0], alone):
            ax.axhline(GAMMA, color=figures.PALETTE["black"], linewidth=1.2, linestyle=(0, (4, 3)), zorder=4)
            Text(config.betas[1], GAMMA, f"γ = {GAMMA:g}", across="right", up="bottom", shift=(-4, 3), rim=True).draw(
                ax, 5
            )
            ax.set(xlabel="β, inverse temperature of the output", ylabel="γ, inverse temperature of attention")
        return {"phase_diagram": figure, "regimes": alone.figure}

    def values(self, dataset: xr.Dataset, config: PhaseDiagramConfig) -> dict[str, Any]:
        """The largest exponent, how many points each regime has, and at each γ the first β that is not periodic."""
        names = regime_names(dataset)
        leading = dataset.exponents.isel(exponent=0)
        other = ~np.isin(names.transpose("gamma", "beta").values, ("periodic", "fixed point"))
        edge = dataset.beta.values[other.argmax(axis=1)] if other.any(axis=1).all() else None
        return {
            "top": leading.isel(leading.where(np.isfinite(leading)).argmax(...)),
            "counts": {name: count for name in REGIMES if (count := int((names.values == name).sum()))},
            "edge": edge,
            "middle": np.median(edge) if edge is not None else None,
            "gamma": GAMMA,
            "neimark_sacker": NEIMARK_SACKER,
        }


STUDY = PhaseDiagram()

"""The phase diagram over β and γ (experiments §5): config to data; `phase_diagram_report` makes the page."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from .._progress import Progress, inside, silent
from .._validation import fail, nonnegative_integer, positive_integer
from ..dynamics import Window
from ..dynamics import phase_diagram as diagram_of
from ..sweeps import resumable
from .executor import HERE, Executor
from .paper_dynamics import EPSILON, GAMMA, check_numbers, paper_model, paper_start, usual_parts
from .sweeping import config_of, finished, record_of, swept


@dataclass(frozen=True)
class PhaseDiagramConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        betas, gammas: lowest and highest value of β and of γ.
        count: how many values of each, evenly spaced.
        epsilon: the weight of positions.
        start_beta, start_gamma, start_steps: every orbit begins at the final window of so many steps there.
        steps, transient: steps that count at every point, and steps before.
        exponents: how many leading exponents.
        longest_period: returns are sought up to so many steps.

    Example:
        >>> PhaseDiagramConfig().grid["gamma"][[0, -1]].tolist()
        [20.0, 420.0]
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
        for name in ("count", "start_steps", "steps", "exponents", "longest_period"):
            positive_integer(name, getattr(self, name))
        nonnegative_integer("transient", self.transient)
        check_numbers(self, ("epsilon", "start_beta", "start_gamma"))
        for name in ("betas", "gammas"):
            low, high = getattr(self, name)
            if not (np.isfinite([low, high]).all() and low < high):
                raise fail(name, (low, high), "a lower and a higher number")

    @classmethod
    def quick(cls) -> PhaseDiagramConfig:
        """The small size: fewer points and shorter orbits."""
        return cls(count=64, steps=2000, transient=5000)

    @property
    def grid(self) -> dict[str, np.ndarray]:
        """All values of β and γ."""
        return {"beta": np.linspace(*self.betas, self.count), "gamma": np.linspace(*self.gammas, self.count)}


def run(
    out: Path, *, quick: bool = False, seed: int = 0, executor: Executor = HERE, progress: Progress | None = None
) -> Path:
    """The experiment at its usual or quick size; returns the path of its page (see `Experiment.run`).

    Nothing here is random: the seed changes nothing.
    """
    config = PhaseDiagramConfig.quick() if quick else PhaseDiagramConfig()
    return run_phase_diagram(config, out, executor=executor, progress=progress)


def run_phase_diagram(
    config: PhaseDiagramConfig, out: str | Path, *, executor: Executor = HERE, progress: Progress | None = None
) -> Path:
    """Data, figures and page of the experiment into a folder; returns the path of the page."""
    from .phase_diagram_report import write_report  # matplotlib is slow to import: only when something is drawn

    out, progress = Path(out), progress or silent
    dataset = phase_diagram_data(config, folder=out / "sweep", executor=executor, progress=progress)
    return finished(dataset, config, out / "phase_diagram.nc", write_report, points=config.count**2, progress=progress)


def phase_diagram_data(
    config: PhaseDiagramConfig,
    *,
    folder: str | Path | None = None,
    parts: int = 20,
    executor: Executor = HERE,
    progress: Progress | None = None,
) -> xr.Dataset:
    """The diagram, as `thermoformer.dynamics.phase_diagram` gives it: a sweep over β and γ.

    Arguments:
        folder: where the sweep is kept and gone on with.
        parts: in how many parts, some values of γ with all of β, it is computed on a CPU.
        executor: where parts run.
        progress: called as progress(done, total, message).
    """
    pieces = usual_parts(min(parts, max(config.count // 10, 1)))
    found = swept(
        phase_diagram_values,
        {name: values.tolist() for name, values in config.grid.items()},
        None if folder is None else Path(folder),
        config=record_of(config),
        executor=executor,
        batch={"beta": config.count, "gamma": -(-config.count // pieces)},
        vectorised=True,
        progress=progress or silent,
    )
    return found.assign_attrs(title="Phase diagram", config=json.dumps(dataclasses.asdict(config)))


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

"""The phase diagram over β and γ (experiments §5): config to data; `phase_diagram_report` makes the page."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

from .._progress import Progress, silent
from .._validation import fail, nonnegative_integer, positive_integer
from ..dynamics import phase_diagram as diagram_of
from . import store
from .paper_dynamics import EPSILON, GAMMA, check_numbers, in_parts, paper_model, paper_start, usual_parts


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

    @property
    def config_hash(self) -> str:
        """Equal for configs with the same numbers."""
        return store.fingerprint(self)


def run(out: Path, *, quick: bool = False, seed: int = 0, progress: Progress | None = None) -> Path:
    """The experiment at its usual or quick size; returns the path of its page (see `Experiment.run`).

    Nothing here is random: the seed changes nothing.
    """
    return run_phase_diagram(PhaseDiagramConfig.quick() if quick else PhaseDiagramConfig(), out, progress=progress)


def run_phase_diagram(config: PhaseDiagramConfig, out: str | Path, *, progress: Progress | None = None) -> Path:
    """Data, figures and page of the experiment into a folder; returns the path of the page."""
    from .phase_diagram_report import write_report  # matplotlib is slow to import: only when something is drawn

    out, progress = Path(out), progress or silent
    dataset = phase_diagram_data(config, file=out / "phase_diagram.nc", progress=progress)
    progress(1000, 1000, "figures and page")
    page = write_report(dataset, config, out)
    progress(1000, 1000, "done")
    return page


def phase_diagram_data(
    config: PhaseDiagramConfig, *, file: str | Path | None = None, parts: int = 20, progress: Progress | None = None
) -> xr.Dataset:
    """The diagram, as `thermoformer.dynamics.phase_diagram` gives it.

    Arguments:
        file: a netCDF file to keep finished parts, some values of γ with all of β, in and to go on from.
        parts: in how many parts it is computed on a CPU.
        progress: called as progress(done, total, message).
    """
    progress = progress or silent
    progress(0, 1000, "start")
    start = paper_start(config.start_beta, config.start_steps, config.start_gamma, config.epsilon)
    model = paper_model(config.start_beta, config.start_gamma, config.epsilon)
    grid = config.grid

    def compute(gammas: np.ndarray, report: Progress) -> xr.Dataset:
        return diagram_of(
            model,
            start,
            {"beta": grid["beta"], "gamma": gammas},
            steps=config.steps,
            transient=config.transient,
            k=config.exponents,
            longest_period=config.longest_period,
            progress=report,
        )

    found = in_parts(
        grid["gamma"],
        "gamma",
        compute,
        parts=usual_parts(min(parts, max(config.count // 10, 1))),
        file=None if file is None else Path(file),
        config_hash=config.config_hash,
        progress=progress,
    )
    return found.assign_attrs(title="Phase diagram", config=json.dumps(dataclasses.asdict(config)))

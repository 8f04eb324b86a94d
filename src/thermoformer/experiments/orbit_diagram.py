"""The paper's orbit diagrams with all exponents (experiments §5): config to data; `orbit_diagram_report`: the page."""

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
from .._validation import fail, nonnegative_integer, positive_integer, positive_number
from ..dynamics import Bifurcation, MeanField, Window, bifurcation_point, orbit
from ..dynamics import orbit_diagram as diagram_of
from ..sweeps import resumable
from .executor import HERE, Executor
from .paper_dynamics import EPSILON, GAMMA, check_numbers, paper_model, paper_start, usual_parts
from .sweeping import config_of, finished, record_of, swept

# The 4-cycle of the positions is stable at one end and unstable at the other.
BIFURCATION_BRACKET, POSITIONS = (1.24, 1.25), 4
WHOLE, ZOOM = (0.0, 3.0), (1.24, 1.28)


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
        for name in ("count", "steps", "bins", "exponents", "longest_period"):
            positive_integer(name, getattr(self, name))
        nonnegative_integer("transient", self.transient)
        check_numbers(self, ("gamma", "epsilon"))
        for name in ("between", "limits"):
            low, high = getattr(self, name)
            if not (np.isfinite([low, high]).all() and low < high):
                raise fail(name, (low, high), "a lower and a higher number")
        positive_number("near", self.near)

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


def run(
    out: Path, *, quick: bool = False, seed: int = 0, executor: Executor = HERE, progress: Progress | None = None
) -> Path:
    """The diagram on [0, 3] at its usual or quick size; returns the path of its page (see `Experiment.run`).

    Nothing here is random: the seed changes nothing.
    """
    config = OrbitDiagramConfig()
    return run_orbit_diagram(config.quick() if quick else config, out, executor=executor, progress=progress)


def run_orbit_diagram(
    config: OrbitDiagramConfig, out: str | Path, *, executor: Executor = HERE, progress: Progress | None = None
) -> Path:
    """Data, figures, table and page of the experiment into a folder; returns the path of the page."""
    from .orbit_diagram_report import write_report  # matplotlib is slow to import: only when something is drawn

    out, progress = Path(out), progress or silent
    dataset = orbit_diagram_data(config, folder=out / "sweep", executor=executor, progress=progress)
    progress(config.count, config.count, "bifurcation")
    point = neimark_sacker(config)

    def write(dataset: xr.Dataset, config: OrbitDiagramConfig, folder: Path) -> Path:
        return write_report(dataset, point, config, folder)

    return finished(dataset, config, out / "orbit_diagram.nc", write, points=config.count, progress=progress)


def orbit_diagram_data(
    config: OrbitDiagramConfig,
    *,
    folder: str | Path | None = None,
    parts: int = 16,
    executor: Executor = HERE,
    progress: Progress | None = None,
) -> xr.Dataset:
    """The diagram, as `thermoformer.dynamics.orbit_diagram` gives it: a sweep over β.

    Arguments:
        folder: where the sweep is kept and gone on with.
        parts: in how many parts it is computed on a CPU.
        executor: where parts run.
        progress: called as progress(done, total, message).
    """
    pieces = usual_parts(min(parts, max(config.count // 100, 1)))
    found = swept(
        orbit_diagram_values,
        {"beta": config.betas.tolist()},
        None if folder is None else Path(folder),
        config=record_of(config),
        executor=executor,
        batch=-(-config.count // pieces),
        vectorised=True,
        progress=progress or silent,
    )
    _, start = _begun(config)
    texts = {"title": "Orbit diagram", "config": json.dumps(dataclasses.asdict(config)), "start": _text(start)}
    return found.assign_attrs(texts)


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


def _text(start: Window) -> str:
    return json.dumps({"A": start.A.tolist(), "positions": start.positions.tolist()})

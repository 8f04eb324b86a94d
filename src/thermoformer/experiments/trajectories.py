"""Orbits at the paper's six values of β (experiments §5): config to data; `trajectories_report` makes the page."""

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
from ..dynamics import REGIMES, Window, attractors, kaplan_yorke_dimension, orbit, regime
from ..sweeps import resumable
from .executor import HERE, Executor
from .paper_dynamics import EPSILON, GAMMA, check_numbers, paper_model, paper_start
from .sweeping import config_of, finished, record_of, swept
from .threads import within

# Exponents below this count as 0 in the dimension: on a torus the leading one is 0 but for rounding.
ZERO = 1e-3


@dataclass(frozen=True)
class TrajectoriesConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        betas: values of β.
        gamma, epsilon: the other parameters of the network.
        start_beta: every orbit begins at the final window of a long orbit at this β.
        steps: steps of the orbits that are kept.
        exponent_steps: steps over which exponents are averaged.
        transient: steps before both.
        confirm: where the verdict is chaos or undecided, run on for up to so many steps more: it may be a
            supertransient.
        windows: so many successive windows at the start β are starts too, to see other attractors; 0 for none.

    Example:
        >>> TrajectoriesConfig().betas
        (1.255, 1.26405, 1.266, 1.27, 1.28, 1.4)
    """

    betas: tuple[float, ...] = (1.255, 1.26405, 1.266, 1.27, 1.28, 1.4)
    gamma: float = GAMMA
    epsilon: float = EPSILON
    start_beta: float = 3.0
    steps: int = 20_000
    exponent_steps: int = 100_000
    transient: int = 100_000
    confirm: int = 3_000_000
    windows: int = 24

    def __post_init__(self) -> None:
        for name in ("steps", "exponent_steps"):
            positive_integer(name, getattr(self, name))
        for name in ("transient", "confirm", "windows"):
            nonnegative_integer(name, getattr(self, name))
        check_numbers(self, ("gamma", "epsilon", "start_beta"))
        if not self.betas or not np.all(np.diff(self.betas) > 0) or not np.all(np.isfinite(self.betas)):
            raise fail("betas", self.betas, "at least one value, in ascending order")

    @classmethod
    def quick(cls) -> TrajectoriesConfig:
        """The small size: shorter, without running on and without other starts."""
        return cls(steps=5000, exponent_steps=10_000, transient=20_000, confirm=0, windows=0)


def run(
    out: Path, *, quick: bool = False, seed: int = 0, executor: Executor = HERE, progress: Progress | None = None
) -> Path:
    """The experiment at its usual or quick size; returns the path of its page (see `Experiment.run`).

    Nothing here is random: the seed changes nothing.
    """
    config = TrajectoriesConfig.quick() if quick else TrajectoriesConfig()
    return run_trajectories(config, out, executor=executor, progress=progress)


def run_trajectories(
    config: TrajectoriesConfig, out: str | Path, *, executor: Executor = HERE, progress: Progress | None = None
) -> Path:
    """Data, figures and page of the experiment into a folder; returns the path of the page."""
    from .trajectories_report import write_report  # matplotlib is slow to import: only when something is drawn

    out, progress = Path(out), progress or silent
    dataset = trajectories_data(config, folder=out / "sweep", executor=executor, progress=progress)
    return finished(dataset, config, out / "trajectories.nc", write_report, points=len(config.betas), progress=progress)


def trajectories_data(
    config: TrajectoriesConfig,
    *,
    folder: str | Path | None = None,
    executor: Executor = HERE,
    progress: Progress | None = None,
) -> xr.Dataset:
    """The orbits and the verdicts on them: a sweep over β.

    Arguments:
        folder: where the sweep is kept and gone on with.
        executor: where values of β run.
        progress: called as progress(done, total, message).

    Returns:
        A Dataset along beta: `m_o` [step, feature] of the kept steps after the transient, `exponents` and `errors`,
        all of them, `regime`, `period`, `dimension` (Kaplan–Yorke), `steps_run`, and `verdicts`, a text of all
        verdicts with the number of steps at which they were given; `window_regime` and `window_period` [window] of
        successive starts.
    """
    found = swept(
        trajectories_point,
        {"beta": list(config.betas)},
        None if folder is None else Path(folder),
        # Which other values of β there are changes none of them.
        config=record_of(config, betas=(1.0,)),
        executor=executor,
        progress=progress or silent,
    )
    return found.assign_attrs(title="Trajectories", config=json.dumps(dataclasses.asdict(config)))


@resumable
def trajectories_point(beta: float, config: Mapping[str, Any]) -> xr.Dataset:
    """One orbit and the verdict on it: a point of the sweep.

    Arguments:
        beta: β.
        config: the record of a `TrajectoriesConfig`.
    """
    settings, report = config_of(TrajectoriesConfig, config), within(inside.get(), 0, 1, f"β = {beta:g}")
    report(0, 1, "start")
    start = _start(settings)
    model = paper_model(beta, settings.gamma, settings.epsilon)
    kept = orbit(model, start, steps=settings.steps, transient=settings.transient)
    verdict = regime(
        model,
        start,
        steps=settings.exponent_steps,
        transient=settings.transient,
        k=model.dimension,
        confirm=settings.confirm,
        progress=report,
    )
    codes, periods = _from_windows(settings, beta, start)
    return xr.Dataset(
        {
            "m_o": (("step", "feature"), kept.m_o, {"long_name": "overlap with o, semantic bits"}),
            "exponents": ("exponent", verdict.exponents, {"long_name": "Lyapunov exponent per step"}),
            "errors": ("exponent", verdict.errors, {"long_name": "standard error of the exponent"}),
            "regime": verdict.name,
            "period": verdict.period or 0,
            "dimension": kaplan_yorke_dimension(verdict.exponents, ZERO),
            "steps_run": verdict.steps,
            "verdicts": "; ".join(f"{steps}: {name}" for steps, name in verdict.changes),
            "window_regime": ("window", [REGIMES[code] for code in codes]),
            "window_period": ("window", periods),
        },
        {"feature": np.arange(1, kept.m_o.shape[1] + 1), "exponent": np.arange(1, model.dimension + 1)},
    )


@lru_cache(maxsize=4)
def _start(config: TrajectoriesConfig) -> Window:
    """Where every orbit begins."""
    return paper_start(config.start_beta, config.transient, config.gamma, config.epsilon)


def _from_windows(config: TrajectoriesConfig, beta: float, start: Window) -> tuple[np.ndarray, np.ndarray]:
    """Regimes and periods from the windows that follow the start at its own β, [window]."""
    home = paper_model(config.start_beta, config.gamma, config.epsilon)
    model = paper_model(beta, config.gamma, config.epsilon)
    states, state = [], start
    for _ in range(config.windows):
        states.append(state)
        state = home.step(state)
    codes, periods = np.zeros(config.windows, int), np.zeros(config.windows, int)
    context = len(start.A)
    for phase in range(min(context, config.windows)):
        # Only windows at the same positions can run side by side.
        found = attractors(model, states[phase::context], steps=10_000, transient=config.transient, longest_period=2000)
        codes[phase::context], periods[phase::context] = found.regime.values, found.period.values
    return codes, periods

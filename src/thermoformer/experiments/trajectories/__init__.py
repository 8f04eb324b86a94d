"""Orbits at the paper's six values of β (experiments §5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from ..._progress import inside
from ..._validation import fail
from ...dynamics import REGIMES, Window, attractors, kaplan_yorke_dimension, orbit, regime
from ...sweeps import resumable
from ..base import Study
from ..paper_dynamics import EPSILON, GAMMA, paper_model, paper_start
from ..sweeping import check_fields, config_of
from ..threads import within
from ..words import fixed, with_texts

# Exponents below this count as 0 in the dimension: on a torus the leading one is 0 but for rounding.
ZERO = 1e-3
# Regime, λ1 and λ2 of the reference runs of the paper's system, by β; at 1.27 another start gives another cycle.
REFERENCE = {
    1.255: "quasi-periodic; 0.0000, −0.0078",
    1.27: "28-cycle; −0.0478, −0.0478; from β = 3: 56-cycle; −0.0035",
    1.28: "chaos; 0.143, −0.057",
    1.4: "chaos; 0.076, −0.133",
}
SHOWN_STEPS, LAGS = 160, 200


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
        confirm: steps that an orbit is continued for at most if the verdict is chaos or undecided: it may be a
            supertransient.
        windows: the number of successive windows at the start β that are starts too, to see other attractors.
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
        check_fields(self, nonnegative=("transient", "confirm", "windows"), shares=["epsilon"])
        if not self.betas or not np.all(np.diff(self.betas) > 0) or not np.all(np.isfinite(self.betas)):
            raise fail("betas", self.betas, "at least one value, in ascending order")

    @classmethod
    def quick(cls) -> TrajectoriesConfig:
        """The small size: shorter, without running on and without other starts."""
        return cls(steps=5000, exponent_steps=10_000, transient=20_000, confirm=0, windows=0)


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


class Trajectories(Study):
    """The orbits and the verdicts on them: a sweep over β.

    Its Dataset has along beta: `m_o` [step, feature] of the kept steps after the transient, `exponents` and `errors`,
    all of them, `regime`, `period`, `dimension` (Kaplan–Yorke), `steps_run`, and `verdicts`, a text of all verdicts
    with the number of steps at which each was given; `window_regime` and `window_period` [window] of other starts.
    """

    name, title, config, point = "trajectories", "Trajectories", TrajectoriesConfig, trajectories_point
    # Which other values of β there are changes none of them.
    over: ClassVar = {"beta": "betas"}
    same: ClassVar = {"betas": (1.0,)}
    embedded = "png"

    def figures(self, dataset: xr.Dataset, config: TrajectoriesConfig) -> dict[str, Any]:
        """Overlaps over time, in a plane, by frequency and by lag, one panel per β."""
        from .figures import draw

        return draw(dataset, {float(one.beta): verdict_of(one) for one in orbits(dataset)})

    def tables(self, dataset: xr.Dataset, config: TrajectoriesConfig) -> dict[str, pd.DataFrame]:
        """Regime and all exponents of every orbit."""
        names = {"exponents": "value", "errors": "error", "steps_run": "steps"}
        columns = ["beta", "regime", "period", "dimension", "exponent", "value", "error", "steps", "verdicts"]
        chosen = dataset[["regime", "period", "dimension", *names, "verdicts"]].rename(names)
        frame = chosen.to_dataframe(dim_order=("beta", "exponent")).reset_index()[columns]
        table = with_texts(frame, beta="g", dimension=".6g", value=".8g", error=".3g")
        return {"trajectories": table.replace({"error": {"": "nan"}})}

    def values(self, dataset: xr.Dataset, config: TrajectoriesConfig) -> dict[str, Any]:
        """Rows of regimes and of other starts, and which orbits were followed further."""
        rows, followed, ends = [], [], []
        for one in orbits(dataset):
            beta, verdict = float(one.beta), verdict_of(one)
            leading = [_with_error(*pair) for pair in zip(one.exponents.values[:3], one.errors.values[:3], strict=True)]
            rows.append([f"{beta:g}", verdict, *leading, f"{float(one.dimension):.2f}", REFERENCE.get(beta, "")])
            given = [text.split(": ")[1] for text in one.verdicts.item().split("; ")]
            if len(given) > 1:
                how = "still" if set(given) == {given[-1]} else "in the end"
                followed.append({"beta": beta, "how": how, "verdict": verdict, "steps": int(one.steps_run)})
            names = Counter(map(_named, one.window_regime.values, one.window_period.values))
            counts = sorted(((count, name) for name, count in names.items()), reverse=True)
            ends.append([f"{beta:g}", ", ".join(f"{name}: {count}" for count, name in counts)])
        return {"rows": rows, "followed": followed, "ends": ends, "shown": SHOWN_STEPS}


def orbits(dataset: xr.Dataset) -> list[xr.Dataset]:
    """The part of each β."""
    return [dataset.isel(beta=number) for number in range(dataset.sizes["beta"])]


def verdict_of(one: xr.Dataset) -> str:
    """The regime at one β; a cycle with its period."""
    return _named(one.regime.item(), one.period.item())


def _named(regime: str, period: int) -> str:
    return f"{period:.0f}-cycle" if regime == "periodic" else str(regime)


def _with_error(value: float, error: float) -> str:
    if not np.isfinite(value):
        return "lost to rounding"
    return fixed(value, 4) if np.isnan(error) else f"{fixed(value, 4)} ± {max(error, 1e-4):.4f}"


STUDY = Trajectories()

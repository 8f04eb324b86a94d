"""Long work of the Dynamics view, slice by slice: a diagram that refines, and a longer look at a regime."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr

from ..dynamics import MeanField, Regime, iterate, orbit_diagram, regime
from .dynamics_view import DynamicsChoice, exponents_of, model_of, picture_of, start_of
from .work import Work, dynamics_lock

# Columns of the first level, and values of β side by side for features like the paper's: one shape, so one compiled
# program for every slice. Larger features take fewer at a time, and as long for a slice.
SLICE, FEWEST_LANES, USUAL_WORK = 64, 8, 90
DIAGRAM_STEPS, DIAGRAM_TRANSIENT, DIAGRAM_PERIOD, BINS = 2_000, 6_000, 256, 160
# A look at the first slice finds the range of the bins.
PILOT_STEPS, PILOT_TRANSIENT, MARGIN = 400, 1_000, 0.03
# A verdict of the longer look averages over this many steps; between verdicts the orbit runs on in slices.
VERDICT_STEPS, VERDICT_PERIOD, WAIT_SLICE = 20_000, 2_000, 320_000
UNFINISHED = ("chaos", "hyperchaos", "undecided")


class DiagramStepper(Work):
    """An orbit diagram over β that refines: each level adds the columns between those that exist.

    A column is that of `thermoformer.dynamics.orbit_diagram` at this β from the same start.

    Arguments:
        choice: what to show; its own β plays no part.
        columns: of the finest level, 64 times a power of two.

    Fields:
        lanes: columns of a slice.
        limits: the range of the bins; None before the first slice.

    Example:
        >>> stepper = DiagramStepper(DynamicsChoice(), columns=128)
        >>> stepper.advance()
        >>> stepper.level, stepper.fraction, stepper.picture.density.shape
        (64, 0.5, (64, 160))
    """

    def __init__(self, choice: DynamicsChoice, *, columns: int = 512) -> None:
        super().__init__(dynamics_lock)
        self.choice, self.columns = choice, columns
        # Its observables are the chosen magnetisation.
        self._model = dataclasses.replace(model_of(choice), observed=choice.role)
        self.lanes = usual_lanes(self._model)
        self.limits: tuple[float, float] | None = None
        self._found: list[xr.Dataset] = []
        self._picture: tuple[int, xr.Dataset] | None = None

    def slices(self) -> Iterator[None]:
        """One slice of columns after the other."""
        betas = np.linspace(*self.choice.between, self.columns)
        order = refining_order(self.columns, self.lanes)
        for number, columns in enumerate(order):
            if number:
                yield
            limits = self.limits or self._look(betas[columns])
            self._found.append(self._diagram(betas[columns], limits, DIAGRAM_STEPS, DIAGRAM_TRANSIENT))
            self.limits, self.fraction = limits, len(self._found) / len(order)

    @property
    def level(self) -> int:
        """Columns of the finest level that is complete; 0 before the first is."""
        there = len(self._found) * self.lanes // SLICE
        return SLICE * 2 ** int(np.log2(there)) if there else 0

    @property
    def picture(self) -> xr.Dataset | None:
        """Density, exponents, regime and period of the columns that are there, in order; None before the first slice.

        It is read-only, as sessions share it.
        """
        parts = list(self._found)  # another session may add one
        if parts and (self._picture is None or self._picture[0] != len(parts)):
            names = ["density", "exponents", "regime", "period"]
            picture = xr.concat([part[names] for part in parts], "beta").sortby("beta")
            for variable in picture.data_vars.values():
                variable.values.setflags(write=False)
            self._picture = len(parts), picture
        return None if self._picture is None else self._picture[1]

    def _look(self, betas: np.ndarray) -> tuple[float, float]:
        """A range with a margin that holds the magnetisation of the first columns."""
        found = self._diagram(betas, (-1.0, 1.0), PILOT_STEPS, PILOT_TRANSIENT)
        shown = found.isel(observable=self.choice.component - 1)
        low, high = float(shown.lowest.min()), float(shown.highest.max())
        margin = MARGIN * (high - low) or 0.5
        return low - margin, high + margin

    def _diagram(self, betas: np.ndarray, limits: tuple[float, float], steps: int, transient: int) -> xr.Dataset:
        return orbit_diagram(
            self._model,
            start_of(self.choice),
            "beta",
            betas,
            steps=steps,
            transient=transient,
            k=exponents_of(self._model),
            show=self.choice.component - 1,
            bins=BINS,
            limits=limits,
            longest_period=DIAGRAM_PERIOD,
            batch=len(betas),
        )


def refining_order(columns: int, lanes: int = SLICE) -> np.ndarray:
    """The order in which columns come: level by level, every slice spread over the whole range.

    Arguments:
        columns: of the finest level, 64 times a power of two.
        lanes: columns of a slice, 64 or a half, a quarter, ... of it.

    Returns:
        Numbers of columns, [slice, lane].

    Example:
        >>> refining_order(128)[:, :3].tolist()
        [[0, 2, 4], [1, 3, 5]]
    """
    stride = columns // SLICE
    levels = [np.arange(0, columns, stride)]
    while stride > 1:
        levels.append(np.arange(stride // 2, columns, stride))
        stride //= 2
    return np.concatenate([level.reshape(lanes, -1).T for level in levels])


def usual_lanes(model: MeanField) -> int:
    """Values of β in a slice."""
    work, lanes = work_of(model), SLICE
    while work > USUAL_WORK and lanes > FEWEST_LANES:
        work, lanes = work / 2, lanes // 2
    return lanes


def work_of(model: MeanField) -> int:
    """About how many products a step with tangents takes."""
    features = model.features
    return features.heads * features.count**2 * (features.classes + len(model.positions))


def diagram_for(choice: DynamicsChoice) -> DiagramStepper:
    """The diagram of a choice, shared by all who ask for the same; β, phase plane and band play no part in it.

    Example:
        >>> diagram_for(DynamicsChoice(beta=1.25)) is diagram_for(DynamicsChoice(beta=1.26))
        True
    """
    return _diagram(dataclasses.replace(choice, beta=choice.between[0], against=0, band=0))


@lru_cache(maxsize=32)
def _diagram(choice: DynamicsChoice) -> DiagramStepper:
    return DiagramStepper(choice)


class Judgement(Work):
    """A longer look at a regime, slice by slice: the rule of `thermoformer.dynamics.regime` with `confirm`.

    The orbit runs on while the verdict is chaos or undecided, with a new verdict each time its length has doubled.

    Arguments:
        choice: what to judge.
        limit: steps after which no more verdict is sought.

    Fields:
        verdict: the latest verdict, with all earlier ones in `changes`; None before the first.
        steps: steps that were run.

    Example:
        >>> judgement = Judgement(DynamicsChoice(beta=1.0))
        >>> judgement.finish()
        >>> judgement.verdict.name, judgement.verdict.period
        ('periodic', 4)
    """

    def __init__(self, choice: DynamicsChoice, *, limit: int = 2_560_000) -> None:
        super().__init__(dynamics_lock)
        self.choice, self.limit, self.steps = choice, limit, 0
        self.verdict: Regime | None = None

    def slices(self) -> Iterator[None]:
        """Some steps on, or a verdict."""
        model, state, changes = model_of(self.choice), start_of(self.choice), ()
        # By size, not by the clock: an orbit that is cut elsewhere rounds otherwise, and chaos would not repeat.
        piece = max(int(WAIT_SLICE * min(1.0, USUAL_WORK / work_of(model))), 1)
        averages: dict[str, Any] = {"steps": VERDICT_STEPS, "longest_period": VERDICT_PERIOD, "k": exponents_of(model)}
        wait = VERDICT_STEPS
        while True:
            while wait:
                steps = min(wait, piece)
                state, wait = iterate(model, state, steps), wait - steps
                self._count(steps)
                yield
            found = regime(model, state, transient=0, **averages)
            state = found.final_state
            self._count(VERDICT_STEPS)
            changes = (*changes, (self.steps, found.name))
            self.verdict = dataclasses.replace(found, steps=self.steps, changes=changes)
            if found.name not in UNFINISHED or 2 * self.steps > self.limit:
                return
            wait = self.steps - VERDICT_STEPS  # the next verdict comes when the length has doubled
            yield

    def _count(self, steps: int) -> None:
        self.steps += steps
        self.fraction = self.steps / self.limit


def warm() -> None:
    """Compiles what the view opens with, so that its sliders answer at once.

    ε = 0 is compiled too: positions then play no part, which makes another program.
    """
    choice = DynamicsChoice()
    picture_of(choice)
    picture_of(dataclasses.replace(choice, epsilon=0.0))
    diagram_for(choice).advance()
    Judgement(choice).advance()

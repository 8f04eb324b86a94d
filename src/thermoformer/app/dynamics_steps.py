"""Long work of the Dynamics view, slice by slice: a diagram that refines, and a longer look at a regime."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .._validation import fail, positive_integer
from ..dynamics import MeanField, Regime, iterate, orbit_diagram, regime
from ._turn import dynamics_turn
from .dynamics_view import DynamicsChoice, exponents_of, model_of, start_of

# Columns of the first level, and values of β side by side for features like the paper's: one shape, so one compiled
# program for every slice. Larger features take fewer at a time, and as long for a slice.
SLICE, FEWEST_LANES, USUAL_WORK = 64, 8, 90
DIAGRAM_STEPS, DIAGRAM_TRANSIENT, DIAGRAM_PERIOD = 2_000, 6_000, 256
# A look at the first slice finds the range of the bins.
PILOT_STEPS, PILOT_TRANSIENT, MARGIN = 400, 1_000, 0.03
# A verdict of the longer look averages over this many steps; between verdicts the orbit runs on in slices.
VERDICT_STEPS, VERDICT_PERIOD, WAIT_SLICE = 20_000, 2_000, 320_000
UNFINISHED = ("chaos", "hyperchaos", "undecided")


def shown_model(choice: DynamicsChoice) -> MeanField:
    """The map of a choice, whose observables are the chosen magnetisation."""
    return dataclasses.replace(model_of(choice), observed=choice.role)


@dataclass(frozen=True, eq=False)
class DiagramPicture:
    """The columns of an orbit diagram that are there.

    Fields:
        betas: [column], ascending.
        bins: [bin], middles of the bins of the chosen magnetisation.
        counts: [bin, column], points of the orbit.
        image: [bin, column], the share of a column's points.
        exponents: [column, exponent], the leading ones.
        regimes, periods: [column], numbers of `REGIMES` and steps to the return, 0 for none.
    """

    betas: np.ndarray
    bins: np.ndarray
    counts: np.ndarray
    image: np.ndarray
    exponents: np.ndarray
    regimes: np.ndarray
    periods: np.ndarray


class DiagramStepper:
    """An orbit diagram over β that refines: each level adds the columns between those that exist.

    A column is what `thermoformer.dynamics.orbit_diagram` finds at this β from the same start.

    Arguments:
        choice: what to show; its own β plays no part.
        columns: of the finest level, 64 times a power of two.
        bins: of the chosen magnetisation.

    Fields:
        limits: the range of the bins; none before the first slice.

    Example:
        >>> stepper = DiagramStepper(DynamicsChoice(), columns=128)
        >>> stepper.advance()
        >>> stepper.level, stepper.fraction, stepper.image.shape
        (64, 0.5, (160, 64))
    """

    def __init__(self, choice: DynamicsChoice, *, columns: int = 512, bins: int = 160) -> None:
        self.choice, self.columns = choice, columns
        self._all = np.linspace(*choice.between, columns)
        self._bins = positive_integer("bins", bins)
        self._model, self._start = shown_model(choice), start_of(choice)
        self._slices = refining_order(columns, usual_lanes(self._model))
        self._found: dict[int, dict[str, np.ndarray]] = {}
        self.limits: tuple[float, float] | None = None
        self._mine = threading.Lock()
        self._picture: DiagramPicture | None = None

    def advance(self) -> None:
        """One slice of columns; nothing where all are there."""
        with self._mine:
            if self.done:
                return
            number = len(self._found)
            betas = self._all[self._slices[number]]
            with dynamics_turn:
                limits = self.limits or self._look(betas)
                found = self._columns(betas, limits, DIAGRAM_STEPS, DIAGRAM_TRANSIENT)
            names = ("density", "exponents", "regime", "period")
            self.limits, self._picture = limits, None
            self._found[number] = {name: found[name].values for name in names}

    @property
    def lanes(self) -> int:
        """Columns of a slice."""
        return self._slices.shape[1]

    @property
    def done(self) -> bool:
        """Whether every column is there."""
        return len(self._found) == len(self._slices)

    @property
    def fraction(self) -> float:
        """The share of the columns that is there."""
        return len(self._found) / len(self._slices)

    @property
    def level(self) -> int:
        """Columns of the finest level that is complete; 0 before the first is."""
        there = len(self._found) * self.lanes // SLICE
        return SLICE * 2 ** int(np.log2(there)) if there else 0

    @property
    def picture(self) -> DiagramPicture:
        """The columns that are there, in order."""
        with self._mine:
            if self._picture is None:
                self._picture = self._put_together()
            return self._picture

    @property
    def betas(self) -> np.ndarray:
        """β of the columns that are there, ascending, [column]."""
        return self.picture.betas

    @property
    def bins(self) -> np.ndarray:
        """Middles of the bins, [bin]."""
        return self.picture.bins

    @property
    def image(self) -> np.ndarray:
        """The share of a column's points in each bin, [bin, column]."""
        return self.picture.image

    def _look(self, betas: np.ndarray) -> tuple[float, float]:
        """A range with a margin that holds the magnetisation of the first columns."""
        found = self._columns(betas, (-1.0, 1.0), PILOT_STEPS, PILOT_TRANSIENT)
        shown = found.isel(observable=self.choice.component - 1)
        low, high = float(shown.lowest.min()), float(shown.highest.max())
        margin = MARGIN * (high - low) or 0.5
        return low - margin, high + margin

    def _columns(self, betas: np.ndarray, limits: tuple[float, float], steps: int, transient: int) -> Any:
        return orbit_diagram(
            self._model,
            self._start,
            "beta",
            betas,
            steps=steps,
            transient=transient,
            k=exponents_of(self._model),
            show=self.choice.component - 1,
            bins=self._bins,
            limits=limits,
            longest_period=DIAGRAM_PERIOD,
            batch=len(betas),
        )

    def _put_together(self) -> DiagramPicture:
        if not self._found:
            none = np.zeros((0,))
            empty = np.zeros((self._bins, 0))
            return DiagramPicture(none, np.zeros(self._bins), empty, empty, np.zeros((0, 1)), none, none)
        index = np.concatenate([self._slices[number] for number in self._found])
        order = np.argsort(index)
        parts = {
            name: np.concatenate([found[name] for found in self._found.values()])[order] for name in self._found[0]
        }
        assert self.limits is not None  # since the first slice
        edges = np.linspace(*self.limits, self._bins + 1)
        counts = parts["density"].T
        image = counts / np.maximum(counts.sum(axis=0), 1)
        picture = DiagramPicture(
            betas=self._all[index[order]],
            bins=(edges[1:] + edges[:-1]) / 2,
            counts=counts,
            image=image,
            exponents=parts["exponents"],
            regimes=parts["regime"],
            periods=parts["period"],
        )
        for array in vars(picture).values():
            array.setflags(write=False)
        return picture


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
    stride = positive_integer("columns", columns) // SLICE
    if stride * SLICE != columns or stride & (stride - 1):
        raise fail("columns", columns, f"{SLICE} times a power of two")
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
    """The diagram of a choice, shared by all who ask for the same; β and the phase plane play no part in it.

    Example:
        >>> diagram_for(DynamicsChoice(beta=1.25)) is diagram_for(DynamicsChoice(beta=1.26))
        True
    """
    return _diagram(dataclasses.replace(choice, beta=choice.between[0], against=0))


@lru_cache(maxsize=32)
def _diagram(choice: DynamicsChoice) -> DiagramStepper:
    return DiagramStepper(choice)


class Judgement:
    """A longer look at a regime, slice by slice: the rule of `thermoformer.dynamics.regime` with `confirm`.

    The orbit runs on while the verdict is chaos or undecided, with a new verdict each time its length has doubled.

    Arguments:
        choice: what to judge.
        limit: steps after which no more verdict is sought.

    Fields:
        verdict: the latest verdict, with all earlier ones in `changes`; none before the first.
        steps: steps that were run.

    Example:
        >>> judgement = Judgement(DynamicsChoice(beta=1.0))
        >>> while not judgement.done:
        ...     judgement.advance()
        >>> judgement.verdict.name, judgement.firm
        ('periodic', True)
    """

    def __init__(self, choice: DynamicsChoice, *, limit: int = 2_560_000) -> None:
        if positive_integer("limit", limit) < 2 * VERDICT_STEPS:
            raise fail("limit", limit, f"{2 * VERDICT_STEPS} or more, the steps of the first verdict")
        self.choice, self.limit = choice, limit
        self.verdict: Regime | None = None
        self.steps, self.done = 0, False
        self._model, self._state = model_of(choice), start_of(choice)
        self._wait = VERDICT_STEPS
        # By size, not by the clock: an orbit that is cut elsewhere rounds otherwise, and chaos would not repeat.
        self._slice = max(int(WAIT_SLICE * min(1.0, USUAL_WORK / work_of(self._model))), 1)
        self._mine = threading.Lock()

    def advance(self) -> None:
        """One slice: some steps on, or a verdict; nothing where the look is over."""
        with self._mine:
            if self.done:
                return
            with dynamics_turn:
                if self._wait:
                    self._run_on(min(self._wait, self._slice))
                else:
                    self._judge()

    @property
    def firm(self) -> bool:
        """Whether the verdict is one that a longer orbit is not expected to change."""
        return self.verdict is not None and self.verdict.name not in UNFINISHED

    @property
    def fraction(self) -> float:
        """The share of the steps that may be needed."""
        return 1.0 if self.done else self.steps / self.limit

    def _run_on(self, steps: int) -> None:
        self._state = iterate(self._model, self._state, steps)
        self.steps += steps
        self._wait -= steps

    def _judge(self) -> None:
        found = regime(
            self._model,
            self._state,
            steps=VERDICT_STEPS,
            transient=0,
            k=exponents_of(self._model),
            longest_period=VERDICT_PERIOD,
        )
        self._state = found.final_state
        self.steps += VERDICT_STEPS
        earlier = () if self.verdict is None else self.verdict.changes
        changes = (*earlier, (self.steps, found.name))
        self.verdict = dataclasses.replace(found, steps=self.steps, changes=changes)
        self._wait = self.steps - VERDICT_STEPS  # the next verdict comes when the length has doubled
        self.done = self.firm or 2 * self.steps > self.limit

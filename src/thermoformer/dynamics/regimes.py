"""The regime of an orbit: fixed point, periodic, quasi-periodic, chaotic, or undecided; and how long chaos lasts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from .._keys import KeyLike, as_key, numpy_generator
from .._notebook import Result, draw
from .._validation import fail, nonnegative_integer, nonnegative_number, positive_integer
from .engine import Plan, Report, Returns, check_steps, one_orbit, survey
from .maps import as_map
from .meanfield import MeanField, Window
from .tangents import exponents_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REGIMES = ("fixed point", "periodic", "quasi-periodic", "chaos", "hyperchaos", "undecided")
UNSETTLED = ("chaos", "hyperchaos", "undecided")
FIXED, PERIODIC, QUASI_PERIODIC, CHAOS, HYPERCHAOS, UNDECIDED = range(len(REGIMES))

# An exponent that is 0 comes out as about a few over the number of steps: what a tangent vector gains once and for all
# while it turns into its direction. To this the standard error is added, this many times.
ZERO_GAIN, ZERO_ERRORS = 10.0, 3.0
# An orbit on a torus comes near its start after p steps to about a p-th of the torus, and is as wide in its second half
# as in its first. One that comes much nearer, or changes its width, may still be settling on a cycle.
TORUS_NEARNESS, TORUS_DRIFT = 0.02, 0.02
# On a torus errors shrink as the gain does, and stay below it. An exponent with a larger error may be 0, but is not
# known to be: weak chaos on a short orbit looks like that.
STEADY_ERRORS = 2 * ZERO_GAIN
# A torus with more zero exponents is not called quasi-periodic.
MOST_ZEROS = 2


@dataclass(frozen=True, eq=False, repr=False)
class Regime(Result):
    """The verdict on one orbit.

    Fields:
        name: one of `REGIMES`.
        period: steps to the confirmed return; None without one.
        exponents, errors: the leading Lyapunov exponents with standard errors.
        zero: exponents closer to 0 than this count as 0.
        zeros: how many exponents count as 0.
        reason: why, in a sentence.
        steps: how many steps were run in all.
        changes: earlier verdicts at the numbers of steps where they were given; one for a plain verdict.
        final_state: where the orbit ended.
        engine: "kernel" if one GPU kernel took the steps, else "steps".
    """

    name: str
    period: int | None
    exponents: np.ndarray
    errors: np.ndarray
    zero: float
    zeros: int
    reason: str
    steps: int
    changes: tuple[tuple[int, str], ...] = ()
    final_state: Any = field(default=None, repr=False)
    engine: str = "steps"

    def to_xarray(self) -> xr.Dataset:
        """The verdict as a Dataset."""
        return xr.Dataset(
            {"exponents": ("exponent", self.exponents), "errors": ("exponent", self.errors)},
            attrs={"regime": self.name, "period": self.period or 0, "reason": self.reason, "steps": self.steps}
            | {"engine": self.engine},
        )

    def summary(self) -> dict[str, Any]:
        """The verdict, the exponents, the period if there is one, and why nothing is decided where nothing is."""
        period = {"period": self.period} if self.period else {}
        reason = {"reason": self.reason} if self.name == "undecided" else {}
        return {"regime": self.name} | period | {"exponents": self.exponents, "steps": self.steps} | reason

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws the exponents with two standard errors; those lost to rounding are left out.

        Arguments:
            ax: Axes to draw on; default: a new figure, which notebooks show.
        """
        return draw("exponents_with_errors", self.exponents, self.errors, ax=ax)


def regime(
    model: Any,
    state: Any,
    *,
    steps: int = 20_000,
    transient: int = 100_000,
    k: int | None = None,
    longest_period: int = 2_000,
    tolerance: float = 1e-9,
    confirm: int = 0,
    progress: Report | None = None,
) -> Regime:
    """The regime of the orbit from a state, by its exponents and by exact return.

    Arguments:
        model, state: as in `lyapunov_spectrum`.
        steps, transient: steps that exponents are averaged over, and steps before.
        k: number of leading exponents; three, or as many as there are, by default.
        longest_period: returns are sought up to this number of steps.
        tolerance: how close a return must be in every coordinate, as a share of the extent of the orbit. An orbit that
            shrinks to a point counts as returning once it moves by less than the tolerance itself. A return counts only
            if the orbit then rests within rounding, about 1e-12 of its largest coordinate, or keeps coming closer.
        confirm: continue for up to this many steps while the verdict is chaos or undecided, with a new verdict each
            time the length has doubled. Chaos of 100 000 steps may still end in a cycle (a supertransient).
        progress: called as progress(done, total, message).

    Example:
        >>> verdict = regime(lambda x: 3.5 * x * (1 - x), 0.3, steps=1000, transient=1000)
        >>> verdict.name, verdict.period
        ('periodic', 4)
    """
    model = as_map(model, state)
    check_steps(steps, transient)
    nonnegative_integer("confirm", confirm)
    exponents = exponents_of(model.dimension, min(3, model.dimension) if k is None else k, 1)
    returns = Returns.of(positive_integer("longest_period", longest_period), tolerance)
    wait, spent, changes = max(transient, len(model.settled(state)[1])), 0, ()
    while True:
        found = one_orbit(model, state, Plan(wait, steps, exponents, returns=returns), progress)
        state, spent = found["finals"], spent + wait + steps
        verdict = _verdict(found, steps, spent, longest_period)
        changes = (*changes, (spent, verdict.name))
        wait = spent - steps  # the next verdict comes when the length has doubled
        if verdict.name not in UNSETTLED or spent + wait + steps > transient + steps + confirm:
            return replace(verdict, changes=changes)


def _verdict(found: dict[str, Any], steps: int, spent: int, longest: int) -> Regime:
    exponents, errors, drift, nearness = (found[name] for name in ("exponents", "errors", "drift", "nearness"))
    period, close, nearest = (int(found[name]) for name in ("period", "unconfirmed", "nearest"))
    points = {name: np.asarray(found[name])[None] for name in ("exponents", "errors", "period", "drift", "nearness")}
    code, zeros, zero = (values[0].item() for values in classify(points, steps))
    leading = f"leading exponent {exponents[0]:.3g} ± {errors[0]:.1g}"
    within = f"{leading} is 0 within {zero:.1g}"
    after = "after 1 step" if (period or close or nearest) == 1 else f"after {period or close or nearest} steps"
    if code != UNDECIDED:
        reason = {
            FIXED: "the state returns at every step, within rounding or closer each time",
            PERIODIC: f"the state returns {after}; {leading}",
            QUASI_PERIODIC: f"{within}, and there is no return within {longest} steps",
            CHAOS: f"{leading} is above {zero:.1g}",
            HYPERCHAOS: f"two or more exponents are above {zero:.1g}",
        }[code]
    # What keeps an orbit from a verdict, and what may help.
    elif period:
        reason = f"{leading}, but a return {after}"
    elif close:
        reason = (
            f"{leading}, and the state comes close {after}, but it neither rests nor comes closer: the "
            "orbit drifts, is smaller than the tolerance, or settles very slowly; "
            f"find_cycle(model, final_state, {close}) tells whether there is a cycle to settle on"
        )
    elif not abs(exponents[0]) <= zero:
        reason = f"{leading}, and no return within {longest} steps: a longer orbit, transient or period may tell"
    elif zeros > MOST_ZEROS:
        reason = (
            f"{zeros} exponents are 0 within {zero:.1g}: the motion neither attracts nor repels, like a rigid "
            "rotation, or it winds around a torus of more than two dimensions; a longer orbit does not tell, "
            "power_spectrum shows the frequencies"
        )
    elif drift > TORUS_DRIFT:
        reason = f"{within}, but the orbit is still settling (drift {drift:.1g}): a longer transient may tell"
    elif not nearness > TORUS_NEARNESS:
        reason = (
            f"{within}, but the orbit nearly closes {after} (nearness {nearness:.1g}): it is still "
            "settling on a cycle, or it winds around a torus with a rotation number very close to a fraction of "
            f"denominator {nearest}; it is a torus if find_cycle(model, final_state, {nearest}) finds no stable cycle"
        )
    else:
        reason = f"{within}, but its error is too large for a torus: a longer orbit may tell it from weak chaos"
    measured = period or None, exponents, errors, zero, zeros
    return Regime(REGIMES[code], *measured, reason, spent, final_state=found["finals"], engine=str(found["engine"]))


def classify(found: dict[str, Any], steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of `REGIMES`, how many exponents count as 0, and what counts as 0, [point] each, from a survey."""
    exponents, errors, period = found["exponents"], found["errors"][:, 0], found["period"]
    error = np.where(np.isfinite(errors), errors, 0.0)
    zero = ZERO_GAIN / steps + ZERO_ERRORS * error
    above = np.sum(exponents > zero[:, None], axis=1)
    zeros = np.sum(np.abs(exponents) <= zero[:, None], axis=1)
    returned = period > 0
    code = np.full(len(period), UNDECIDED)
    code[~returned & (above == 1)] = CHAOS
    code[~returned & (above > 1)] = HYPERCHAOS
    steady = ZERO_ERRORS * error <= STEADY_ERRORS / steps
    if "drift" in found:  # an orbit on a torus neither closes nor changes its width
        steady = steady & (found["nearness"] > TORUS_NEARNESS) & ~(found["drift"] > TORUS_DRIFT)
    code[~returned & (above == 0) & (zeros > 0) & (zeros <= MOST_ZEROS) & steady] = QUASI_PERIODIC
    # A return with a positive exponent is a contradiction, and stays undecided.
    code[returned & (above == 0)] = PERIODIC
    code[returned & (above == 0) & (period == 1)] = FIXED
    return code, zeros, zero


@dataclass(frozen=True, eq=False)
class Lifetime:
    """How long chaos lasts.

    Fields:
        ended: [copy], steps after which a copy was found periodic; inf for those that were not.
        periods: [copy], their periods; 0 for the others.
        steps: how far all copies were followed.
        mean: estimate of the mean lifetime in steps, of an exponential law cut off at `steps`; inf if none ended.
        error: its standard error.
    """

    ended: np.ndarray
    periods: np.ndarray
    steps: int
    mean: float
    error: float

    def to_xarray(self) -> xr.Dataset:
        """Lifetimes copy by copy."""
        variables = {"ended": ("copy", self.ended), "period": ("copy", self.periods)}
        return xr.Dataset(variables, attrs={"steps": self.steps, "mean": self.mean, "error": self.error})


def lifetime(
    model: MeanField,
    state: Window,
    *,
    copies: int = 64,
    steps: int = 1_000_000,
    looks: int = 50,
    spread: float = 1e-3,
    longest_period: int = 500,
    tolerance: float = 1e-9,
    key: KeyLike = 0,
    progress: Report | None = None,
) -> Lifetime:
    """How long chaos lasts: many copies of an orbit, apart by a little, followed until they are periodic.

    Copies cost little beside each other. A share that becomes periodic, at a steady rate, marks a supertransient.

    Arguments:
        copies, spread: how many, and the standard deviation of the noise on their windows.
        steps, looks: how far they are followed, and how often they are looked at.
        longest_period, tolerance: as in `regime`.
        key: random key of the noise.

    Example:
        >>> from thermoformer.dynamics import Features
        >>> model = MeanField(Features.paper(), beta=2.6, gamma=220.0, epsilon=0.02)
        >>> bool(np.isfinite(lifetime(model, model.window(), copies=4, steps=4000, looks=4).ended).all())
        True
    """
    copies, looks = positive_integer("copies", copies), positive_integer("looks", looks)
    if positive_integer("steps", steps) < looks:
        raise fail("steps", steps, f"{looks} or more, the number of looks")
    if not isinstance(model, MeanField):
        raise fail("model", type(model).__name__, "a MeanField")
    window, _ = model.settled(state)
    spread = nonnegative_number("spread", spread)
    returns = Returns.of(positive_integer("longest_period", longest_period), tolerance)
    noise = numpy_generator(as_key(key)).normal(size=(copies, *window.A.shape)) * spread
    states = [Window(window.A + one, window.positions) for one in noise]
    ended, periods = np.full(copies, np.inf), np.zeros(copies, int)
    plan = Plan(steps // looks, 0, returns=returns)
    for look in range(looks):
        if progress is not None:
            progress(look, looks, f"{int(np.isfinite(ended).sum())} of {copies} copies are periodic")
        found = survey(model, states, plan, batch=copies)
        states = found["finals"]
        now = (found["period"] > 0) & ~np.isfinite(ended)
        ended[now] = (look + 1) * plan.transient
        periods = np.where(now, found["period"], periods)
        if np.isfinite(ended).all():
            break
    count = int(np.isfinite(ended).sum())
    # The likeliest mean of an exponential law that is cut off: all time lived over the number of ends.
    mean = float(np.minimum(ended, steps).sum()) / count if count else np.inf
    return Lifetime(ended, periods, steps, mean, mean / np.sqrt(count) if count else np.inf)

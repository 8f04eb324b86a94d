"""Lyapunov exponents: how fast nearby orbits part, direction by direction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import xarray as xr

from .._notebook import Result, draw
from .._validation import fail, nonnegative_number, positive_integer
from .engine import Plan, Report, check_steps, finite_lanes, kept_rows, one_orbit, unbounded
from .maps import Lanes, as_map
from .tangents import Exponents, exponents_of, orthonormalise

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class LyapunovSpectrum(Result):
    """Lyapunov exponents per step, largest first.

    Fields:
        exponents: [exponent], sorted; −inf where the exponent is below rounding error.
        errors: [exponent], standard errors by batch means; nan for lost ones, and for one block.
        running: [block, exponent], average up to the end of each block, in the order of `exponents`.
        lost: [exponent], the share of steps in which rounding was all that was left, in the order of `exponents`.
        steps, transient: what the averages are over, and what came before.
        final_state: where the orbit ended.
        engine: "kernel" if one GPU kernel took the steps, else "steps".
    """

    exponents: np.ndarray
    errors: np.ndarray
    running: np.ndarray
    lost: np.ndarray
    steps: int
    transient: int
    final_state: Any = field(repr=False)
    engine: str = "steps"

    @property
    def kaplan_yorke_dimension(self) -> float:
        """j + Σ_{i≤j} λ_i / |λ_{j+1}| with the largest j whose sum is not negative; nan if too few are known."""
        return kaplan_yorke_dimension(self.exponents)

    def to_xarray(self) -> xr.Dataset:
        """Exponents with their errors and running averages."""
        variables = {
            "exponent_value": ("exponent", self.exponents, {"long_name": "Lyapunov exponent per step"}),
            "error": ("exponent", self.errors, {"long_name": "standard error by batch means"}),
            "lost": ("exponent", self.lost, {"long_name": "share of steps lost to rounding"}),
            "running": (("step", "exponent"), self.running, {"long_name": "average up to this step"}),
        }
        ends = np.linspace(0, self.steps, len(self.running) + 1)[1:]
        where = {"exponent": np.arange(1, len(self.exponents) + 1), "step": ends}
        return xr.Dataset(variables, where, {"steps": self.steps, "transient": self.transient, "engine": self.engine})

    def summary(self) -> dict[str, Any]:
        """Exponents with their errors, and what they are averages over."""
        return {
            "exponents": self.exponents,
            "errors": self.errors,
            "steps": self.steps,
            "transient": self.transient,
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws the exponents with two standard errors; those lost to rounding are left out.

        Arguments:
            ax: Axes to draw on; default: a new figure, which notebooks show.
        """
        return draw("exponents_with_errors", self.exponents, self.errors, ax=ax)


def kaplan_yorke_dimension(exponents: Any, zero: float = 0.0) -> float:
    """The dimension j + Σ_{i≤j} λ_i / |λ_{j+1}| that exponents, largest first, give an attractor.

    Arguments:
        exponents: [exponent], −inf for those lost to rounding. They are put in order, the largest first.
        zero: exponents closer to 0 than this count as 0.

    Example:
        >>> kaplan_yorke_dimension(np.array([0.1, -0.4])), kaplan_yorke_dimension(np.array([-0.1, -0.4]))
        (1.25, 0.0)
    """
    zero = nonnegative_number("zero", zero)
    try:
        given = np.asarray(exponents)
    except ValueError as error:
        raise fail("exponents", "a ragged sequence", "numbers [exponent]") from error
    if given.dtype.kind not in "fiu" or given.ndim != 1 or not given.size:
        raise fail("exponents", f"{given.dtype} of shape {given.shape}", "one or more numbers [exponent]")
    if np.isnan(given).any() or np.isposinf(given).any():
        raise fail("exponents", given, "numbers, or −inf where lost to rounding")
    exponents = np.sort(given.astype(np.float64))[::-1]  # averages over an orbit leave near ones in any order
    sums = np.cumsum(np.where(np.abs(exponents) < zero, 0.0, exponents))
    above = np.flatnonzero(sums >= 0)
    if not len(above):
        return 0.0
    last = int(above[-1])
    return np.nan if last + 1 == len(sums) else last + 1 + float(sums[last] / abs(exponents[last + 1]))


def lyapunov_spectrum(
    model: Any,
    state: Any,
    *,
    steps: int = 20_000,
    transient: int = 1_000,
    k: int | None = None,
    every: int | None = None,
    blocks: int = 20,
    progress: Report | None = None,
) -> LyapunovSpectrum:
    """The k leading Lyapunov exponents of the orbit from a state, by Gram–Schmidt on tangent vectors (Benettin et al.).

    The vectors start in random directions, always the same. Before averaging they turn into their own directions for a
    tenth of the steps, 1000 at most: within the transient if it is long enough, else along the first steps.

    Works under `jax.jit` and `jax.vmap` over parameters and states. Exponents of an orbit that leaves every bound are
    nan there.

    Arguments:
        model: a MeanField, a DiscreteMap or a step function of a vector.
        state: where the orbit begins: model.window(...), model.token(...), or a vector.
        steps: steps that are averaged over.
        transient: steps before.
        k: number of leading exponents; all by default.
        every: steps between orthonormalisations; by default 1 for up to 24 exponents, and up to 16 beyond. It changes
            rounding only: the longer, the sooner low exponents are lost to it.
        blocks: number of points of the running average; errors come from the scatter of these blocks.
        progress: called as progress(done, total, message).

    Example:
        >>> spectrum = lyapunov_spectrum(lambda x: 4 * x * (1 - x), 0.3, steps=50_000, transient=100)
        >>> bool(abs(spectrum.exponents[0] - np.log(2)) < 0.001)
        True
    """
    model = as_map(model, state)
    check_steps(steps, transient)
    plan = Plan(transient, steps, exponents_of(model.dimension, k, every), blocks=positive_integer("blocks", blocks))
    found = one_orbit(model, state, plan, progress)
    running = found["blocks"].cumsum(axis=0) / np.arange(1, plan.blocks + 1)[:, None]
    averages, errors, lost, final = (found[name] for name in ("exponents", "errors", "lost", "finals"))
    return LyapunovSpectrum(averages, errors, running, lost, steps, transient, final, str(found["engine"]))


def local_exponents(model: Any, state: Any, *, steps: int, k: int | None = None) -> np.ndarray:
    """The logarithm of how much each orthonormal tangent vector grows at every step, [step, exponent].

    Arguments:
        model, state, k: as in `lyapunov_spectrum`. Vectors start in the same random frame, and their order is kept:
            rows are not sorted.
        steps: steps that are recorded; the vectors turn into their directions during the first ones.

    Example:
        >>> local_exponents(lambda x: 2 * x, 1.0, steps=3).round(6).ravel().tolist()
        [0.693147, 0.693147, 0.693147]
    """
    model = as_map(model, state)
    exponents, steps = exponents_of(model.dimension, k), positive_integer("steps", steps)
    lanes, lane_state = model.in_lanes([model.settled(state)[0]])
    (linear, _), (rows,) = kept_rows(_grow, lanes, _tangents(lanes, lane_state, exponents), steps)
    if not finite_lanes(linear.state).all():
        raise unbounded()
    return rows


@eqx.filter_jit
def _tangents(lanes: Lanes, state: Any, exponents: Exponents) -> Any:
    return lanes.linearise(state), exponents.init(lanes, state)


def _grow(lanes: Lanes, carry: Any) -> Any:
    """The linearisation and tangent vectors one step on, and the growth of each, −inf if lost to rounding."""
    linear, columns = carry
    columns, logarithms, lost = orthonormalise(lanes.push(linear, columns))
    return (lanes.advance(linear), columns), (jnp.where(lost, -jnp.inf, logarithms)[:, 0],)

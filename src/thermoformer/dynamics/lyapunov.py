"""Lyapunov exponents: how fast nearby orbits part, direction by direction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import lax
from jaxtyping import Array

from .._validation import fail, nonnegative_integer, nonnegative_number, numpy_for, positive_integer
from .lanes import Lanes
from .maps import as_map
from .plan import Plan, Survey, pieces_of, unbounded
from .survey import Report, finite_lanes, steps_at_once, survey
from .tangents import lost_from_first, orthonormalise, random_frame

# Up to this many vectors, orthonormalising costs less than pushing: it is done at every step.
FEW_VECTORS = 24


@dataclass(frozen=True, eq=False)
class LyapunovSpectrum:
    """Lyapunov exponents per step, largest first.

    Fields:
        exponents: [exponent], sorted; −inf where the exponent is below rounding error.
        errors: [exponent], standard errors by batch means; nan for lost ones, and where there is one block.
        running: [block, exponent], average up to the end of each block, in the order of `exponents`.
        lost: [exponent], the share of steps in which rounding was all that was left, in the order of `exponents`.
        steps, transient: what the averages are over, and what came before.
        final_state: where the orbit ended.
    """

    exponents: np.ndarray
    errors: np.ndarray
    running: np.ndarray
    lost: np.ndarray
    steps: int
    transient: int
    final_state: Any = field(repr=False)

    @property
    def kaplan_yorke_dimension(self) -> float:
        """j + Σ_{i≤j} λ_i / |λ_{j+1}| with the largest j whose sum is not negative; nan if too few are known.

        Example:
            >>> henon = lambda x, a=1.4, b=0.3: jnp.array([1 - a * x[0] ** 2 + x[1], b * x[0]])
            >>> round(lyapunov_spectrum(henon, [0.1, 0.1], steps=20_000, transient=100).kaplan_yorke_dimension, 1)
            1.3
        """
        return kaplan_yorke_dimension(self.exponents)

    def to_xarray(self) -> xr.Dataset:
        """Exponents with their errors and running averages."""
        numbers = np.arange(1, len(self.exponents) + 1)
        ends = np.linspace(0, self.steps, len(self.running) + 1)[1:]
        return xr.Dataset(
            {
                "exponent_value": ("exponent", self.exponents, {"long_name": "Lyapunov exponent per step"}),
                "error": ("exponent", self.errors, {"long_name": "standard error by batch means"}),
                "lost": ("exponent", self.lost, {"long_name": "share of steps lost to rounding"}),
                "running": (("step", "exponent"), self.running, {"long_name": "average up to this step"}),
            },
            {"exponent": numbers, "step": ends},
            {"steps": self.steps, "transient": self.transient},
        )


def kaplan_yorke_dimension(exponents: Any, zero: float = 0.0) -> float:
    """The dimension j + Σ_{i≤j} λ_i / |λ_{j+1}| that exponents, largest first, give an attractor.

    Arguments:
        exponents: [exponent], −inf for those lost to rounding. They are put in order, the largest first.
        zero: exponents closer to 0 than this count as 0.

    Example:
        >>> kaplan_yorke_dimension(np.array([0.1, -0.4])), kaplan_yorke_dimension(np.array([-0.1, -0.4]))
        (1.25, 0.0)
    """
    exponents, zero = _spectrum(exponents), nonnegative_number("zero", zero)
    sums = np.cumsum(np.where(np.abs(exponents) < zero, 0.0, exponents))
    above = np.flatnonzero(sums >= 0)
    if not len(above):
        return 0.0
    last = int(above[-1])
    return np.nan if last + 1 == len(sums) else last + 1 + float(sums[last] / abs(exponents[last + 1]))


def _spectrum(exponents: Any) -> np.ndarray:
    """Exponents [exponent] as numbers, the largest first: averages over an orbit leave near ones in any order."""
    try:
        numbers = np.asarray(exponents)
    except ValueError as error:
        raise fail("exponents", "a ragged sequence", "numbers [exponent]") from error
    if numbers.dtype.kind not in "fiu" or numbers.ndim != 1 or not numbers.size:
        raise fail("exponents", f"{numbers.dtype} of shape {numbers.shape}", "one or more numbers [exponent]")
    if np.isnan(numbers).any() or np.isposinf(numbers).any():
        raise fail("exponents", numbers, "numbers, or −inf where lost to rounding")
    return np.sort(numbers.astype(np.float64))[::-1]


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
        every: steps between orthonormalisations; 1 for up to 24 exponents and up to 16 beyond where absent. It changes
            rounding only: the longer, the sooner low exponents are lost to it.
        blocks: number of points of the running average; errors come from the scatter of these blocks.
        progress: called as progress(done, total, message).

    Example:
        >>> spectrum = lyapunov_spectrum(lambda x: 4 * x * (1 - x), 0.3, steps=50_000, transient=100)
        >>> bool(abs(spectrum.exponents[0] - np.log(2)) < 0.001)
        True
    """
    model = as_map(model, state)
    count = exponent_count(k, model.dimension)
    check_steps(steps, transient)
    state, used = model.settled(state)
    every = usual_interval(count, model.dimension) if every is None else positive_integer("every", every)
    blocks = min(positive_integer("blocks", blocks), max(steps // every, 1))
    plan = Plan(max(transient - used, 0), steps, count, every, blocks)
    found = survey(model, [state], {}, plan, progress=progress).bounded()
    exponents, errors = mean_and_error(found)
    counts = np.arange(1, blocks + 1)[:, None]
    return LyapunovSpectrum(
        exponents=exponents[0],
        errors=errors[0],
        running=found.blocks[0].cumsum(axis=0) / counts,
        lost=found.lost[0],
        steps=steps,
        transient=transient,
        final_state=found.finals[0],
    )


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
    count = exponent_count(k, model.dimension)
    state, _ = model.settled(state)
    lanes = model.lanes({}, state)
    lane_state = model.start(lanes, [state])
    columns = lanes.columns(lane_state, jnp.asarray(random_frame(count, model.dimension)))
    rows: list[np.ndarray] = []
    for some in pieces_of(positive_integer("steps", steps), steps_at_once(model.dimension, 1, count)):
        lane_state, columns, found = _local(lanes, lane_state, columns, some)
        rows.append(np.asarray(found)[..., 0])
    if not finite_lanes(lane_state).all():
        raise unbounded()
    return np.concatenate(rows)


@eqx.filter_jit
def _local(lanes: Lanes, state: Any, columns: Array, steps: int) -> tuple[Any, Array, Array]:
    def one(carry: tuple, _: None) -> tuple[tuple, Array]:
        prepared, linear, columns = carry
        columns, logarithms, lost = orthonormalise(lanes.push(linear, columns))
        prepared = lanes.advance(prepared, linear)
        return (prepared, lanes.linearise(prepared), columns), jnp.where(lost, -jnp.inf, logarithms)

    prepared = lanes.prepare(state)
    (prepared, _, columns), rows = lax.scan(one, (prepared, lanes.linearise(prepared), columns), None, steps)
    return lanes.bare(prepared), columns, rows


def mean_and_error(found: Survey) -> tuple[np.ndarray, np.ndarray]:
    """Exponents and their standard errors [point, exponent] from blocks; −inf and nan from the first lost one on.

    An orbit that leaves every bound has no exponents: nan. One block has no scatter, and its errors are nan.
    """
    xp = numpy_for(found.blocks)
    blocks = xp.where(found.finite[:, None, None], found.blocks, np.nan)
    exponents, count = blocks.mean(axis=1), blocks.shape[1]
    errors = blocks.std(axis=1, ddof=1) / np.sqrt(count) if count > 1 else xp.full_like(exponents, np.nan)
    lost = lost_from_first(found.lost) & found.finite[:, None]
    return xp.where(lost, -np.inf, exponents), xp.where(lost, np.nan, errors)


def exponent_count(k: Any, dimension: int) -> int:
    """How many exponents: a number from 1 to the dimension, or all."""
    if k is None:
        return dimension
    if positive_integer("k", k) > dimension:
        raise fail("k", k, f"at most {dimension}, the dimension of the map")
    return int(k)


def usual_interval(count: int, dimension: int) -> int:
    """Steps between orthonormalisations: with many vectors it costs more than pushing them, and is done less often."""
    return 1 if count <= FEW_VECTORS else int(np.clip(dimension // 6, 1, 16))


def quick_interval(count: int, dimension: int) -> int:
    """The same for diagrams: with more than a few vectors, every fourth step; a few more low exponents are lost."""
    return 1 if count <= 4 else max(4, usual_interval(count, dimension))


def check_steps(steps: Any, transient: Any) -> None:
    """One counted step at least, and no negative transient."""
    positive_integer("steps", steps)
    nonnegative_integer("transient", transient)

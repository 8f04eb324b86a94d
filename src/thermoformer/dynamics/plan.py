"""What is done at every point of a survey, what is counted on the way, and what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._validation import fail, traced


@dataclass(frozen=True)
class Density:
    """How an orbit is counted.

    Fields:
        bins: how many bins of the shown observable.
        low, high: range of the bins; what falls outside is not counted.
        shown: number of the observable.
        section: number of an observable and a tolerance: only points where it is that close to 0 are counted in the
            second histogram; none for no second histogram.
    """

    bins: int
    low: float
    high: float
    shown: int = 0
    section: tuple[int, float] | None = None


@dataclass(frozen=True)
class Plan:
    """What is done at every point.

    Fields:
        transient: steps before anything is counted.
        steps: steps that are counted; with exponents, as many as are whole turns between orthonormalisations.
        exponents: how many leading Lyapunov exponents.
        every: steps between orthonormalisations.
        blocks: the counted steps are cut into so many blocks, whose scatter tells the error.
        density: how the orbit is counted; none for no density.
        longest_period: returns are sought up to so many steps after the end; 0 for no search.
        tolerance: how close a return must be in every coordinate, as a share of the extent of the orbit.
        pieces: the transient is cut into so many; progress moves and Ctrl-C is heard between them.
    """

    transient: int
    steps: int
    exponents: int = 0
    every: int = 1
    blocks: int = 20
    density: Density | None = None
    longest_period: int = 0
    tolerance: float = 1e-9
    pieces: int = 10


@dataclass(frozen=True, eq=False)
class Survey:
    """What was found at every point.

    Fields:
        blocks: [point, block, exponent], mean of the local exponents of each block; the largest exponent first.
        lost: [point, exponent], the share of steps in which rounding was all that was left; in the same order.
        average, deviation, lowest, highest: [point, observable].
        density, section: [point, bin], counts; empty where not asked for.
        period: [point], steps to the first confirmed return; 0 where none was found, -1 where none was sought.
        unconfirmed: [point], steps to a return that was not confirmed, see `Returns`; 0 for none.
        nearness: [point], the smallest p times the distance between the last state and the state p steps later, over
            the largest distance: about 1 or a tenth where an orbit winds around a torus, near 0 where it closes slowly.
        nearest: [point], that p.
        drift: [point], by how much the root-mean-square change over a turn of the positions differs between both halves
            of the counted steps, over the mean of the two; nan for one block.
        finite: [point], whether the orbit stayed within every bound.
        finals: state after the last counted step, one per point.
    """

    blocks: np.ndarray
    lost: np.ndarray
    average: np.ndarray
    deviation: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray
    density: np.ndarray
    section: np.ndarray
    period: np.ndarray
    unconfirmed: np.ndarray
    nearness: np.ndarray
    nearest: np.ndarray
    drift: np.ndarray
    finite: np.ndarray
    finals: list[Any] = field(repr=False)

    def bounded(self) -> Survey:
        """Itself; an orbit that left every bound is refused."""
        if not traced(self.finite) and not self.finite.all():
            raise unbounded()
        return self

    def part(self, points: slice) -> Survey:
        """Some of the points."""
        return Survey(**{name: value[points] for name, value in vars(self).items()})

    @classmethod
    def joined(cls, parts: Sequence[Survey]) -> Survey:
        """Points of several surveys in a row."""
        if len(parts) == 1:
            return parts[0]
        names = [name for name in vars(parts[0]) if name != "finals"]
        found = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return cls(**found, finals=[state for part in parts for state in part.finals])


def pieces_of(steps: int, at_once: int) -> Iterator[int]:
    """The steps of one compiled call after the other.

    Example:
        >>> list(pieces_of(10, 4)), list(pieces_of(0, 4))
        ([4, 4, 2], [])
    """
    return (min(at_once, steps - done) for done in range(0, steps, at_once))


def unbounded() -> ValueError:
    """What is said of orbits that grow without end."""
    return fail("state", "orbits that leave every bound", "a start from which orbits stay finite")


class Tally(eqx.Module):
    """Running sums of an orbit."""

    total: Float[Array, "observable lane"]
    squares: Float[Array, "observable lane"]
    lowest: Float[Array, "observable lane"]
    highest: Float[Array, "observable lane"]
    changes: Float[Array, " lane"]
    density: Int[Array, "bin lane"]
    section: Int[Array, "bin lane"]

    @classmethod
    def empty(cls, first: Array, bins: int, section_bins: int) -> Tally:
        """Nothing counted yet; deviations are summed from the first value, which spares digits."""
        lanes, zeros = first.shape[1], jnp.zeros_like(first)
        infinite = jnp.full_like(first, jnp.inf)
        counts = [jnp.zeros((count, lanes), jnp.int32) for count in (bins, section_bins)]
        return cls(zeros, zeros, infinite, -infinite, zeros[0], *counts)

    def count(
        self, values: Array, change: Array, origin: Array, how: tuple[Array, ...], shown: int, section: int | None
    ) -> Tally:
        """One more point of the orbit, and how far it led."""
        low, width, near = how
        density, sections, offset = self.density, self.section, values - origin
        if density.shape[0]:
            place = jnp.floor((values[shown] - low) / width)
            inside = (place >= 0) & (place < density.shape[0])
            # Out of range is out of bounds, and dropped.
            index = jnp.where(inside, place, density.shape[0]).astype(jnp.int32)
            lane = jnp.arange(values.shape[1])
            density = density.at[index, lane].add(1, mode="drop")
            if section is not None:
                index = jnp.where(jnp.abs(values[section]) < near, index, density.shape[0])
                sections = sections.at[index, lane].add(1, mode="drop")
        return Tally(
            self.total + offset,
            self.squares + offset**2,
            jnp.minimum(self.lowest, values),
            jnp.maximum(self.highest, values),
            self.changes + change,
            density,
            sections,
        )

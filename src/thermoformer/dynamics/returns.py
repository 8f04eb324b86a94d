"""Returns of many orbits: after how many steps each comes back, and whether it comes back again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from .lanes import Lanes
from .plan import pieces_of

# Motion of less than this share of the largest coordinate may be rounding, which a cycle amplifies.
RESOLUTION = 4096 * np.finfo(np.float64).eps
# A return is confirmed over this many periods, or over as many steps as the search if that is longer.
CONFIRMED_PERIODS = 4


@dataclass(frozen=True, eq=False)
class Returns:
    """What the search for returns found, [lane] each.

    Fields:
        period: steps to the first return that was confirmed; 0 for none.
        unconfirmed: steps to a return that was not: the orbit comes close, but neither rests nor comes closer; else 0.
        nearness: the smallest p times the distance after p steps, over the largest distance.
        nearest: that p.
    """

    period: np.ndarray
    unconfirmed: np.ndarray
    nearness: np.ndarray
    nearest: np.ndarray


def find_returns(
    lanes: Lanes, state: Any, longest: int, tolerance: float, at_once: int, listen: Callable[[], None]
) -> Returns:
    """Looks for the first return of every lane, and confirms it on the steps after the search.

    A return is one of two things. The state comes back within `tolerance` times the extent of the orbit so far. Or it
    comes back within `tolerance` itself, which an orbit that shrinks to a point does, whatever its extent.
    It is confirmed if the orbit then rests within rounding, or if the distance between returns halves.

    Arguments:
        longest: steps up to which returns are sought.
        at_once: steps of one compiled call; `listen` is called between them.
    """

    def follow(state: Any, search: _Search, period: np.ndarray, steps: int) -> tuple[Any, _Search, _Gaps]:
        gaps, done, given = _gaps(lanes, state), 0, (jnp.asarray(period), jnp.asarray(steps // 2))
        for some in pieces_of(steps, at_once):
            listen()
            bounds = jnp.asarray(done), jnp.asarray(done + some)
            state, search, gaps = jax.block_until_ready(
                _follow(lanes, state, search, gaps, jnp.asarray(tolerance), *given, *bounds)
            )
            done += some
        return state, search, gaps

    never = np.full(lanes.count, np.iinfo(np.int64).max)
    state, search, _ = follow(state, _search(lanes, state), never, longest)
    relative, absolute = np.asarray(search.period), np.asarray(search.shrunk)
    candidate = np.where(relative > 0, relative, absolute)
    confirmed = np.zeros(len(candidate), bool)
    if candidate.any():
        steps = max(longest, CONFIRMED_PERIODS * int(candidate.max()))
        _, _, gaps = follow(state, search, np.where(candidate > 0, candidate, never), steps)
        confirmed = (candidate > 0) & jax.device_get(gaps).closed
    nearness, farthest = np.asarray(search.nearness), np.asarray(search.farthest)
    with np.errstate(invalid="ignore"):  # orbits that leave every bound
        nearness = np.where(farthest > 0, nearness / np.where(farthest > 0, farthest, 1.0), 0.0)
    period, unconfirmed = np.where(confirmed, candidate, 0), np.where(confirmed, 0, candidate)
    return Returns(period, unconfirmed, nearness, np.asarray(search.nearest))


class _Search(eqx.Module):
    """The first returns so far, the nearest ones, and how large the orbit is."""

    home: Float[Array, "coordinate lane"]
    size: Float[Array, " lane"]
    extent: Float[Array, " lane"]
    period: Int[Array, " lane"]
    shrunk: Int[Array, " lane"]
    nearness: Float[Array, " lane"]
    nearest: Int[Array, " lane"]
    farthest: Float[Array, " lane"]

    @classmethod
    def begin(cls, home: Array) -> _Search:
        zeros, none = jnp.zeros(home.shape[1]), jnp.zeros(home.shape[1], jnp.int64)
        return cls(home, _largest(home), zeros, none, none, zeros + jnp.inf, none, zeros)

    def after(self, here: Array, steps: Array, counts: Array, tolerance: Array) -> _Search:
        """One more step of the search; `counts` says whether equal coordinates would be equal states."""
        distance = _largest(here - self.home)
        size = jnp.maximum(self.size, _largest(here))
        back = distance <= jnp.maximum(tolerance * self.extent, RESOLUTION * size)
        nearer = counts & (steps * distance < self.nearness)
        return _Search(
            self.home,
            size,
            jnp.maximum(self.extent, distance),
            jnp.where(counts & back & (self.period == 0), steps, self.period),
            jnp.where(counts & (distance < tolerance) & (self.shrunk == 0), steps, self.shrunk),
            jnp.where(nearer, steps * distance, self.nearness),
            jnp.where(nearer, steps, self.nearest),
            jnp.where(counts, jnp.maximum(self.farthest, distance), self.farthest),
        )


class _Gaps(eqx.Module):
    """Distances between successive returns: the largest in each half, and the largest from the first."""

    home: Float[Array, "coordinate lane"]
    before: Float[Array, "coordinate lane"]
    size: Float[Array, " lane"]
    moved: Float[Array, " lane"]
    early: Float[Array, " lane"]
    late: Float[Array, " lane"]

    @classmethod
    def begin(cls, home: Array) -> _Gaps:
        zeros = jnp.zeros(home.shape[1])
        return cls(home, home, _largest(home), zeros, zeros, zeros)

    def after(self, here: Array, steps: Array, period: Array, middle: Array) -> _Gaps:
        """One more step, which is a return in some lanes."""
        now = lax.rem(jnp.full_like(period, steps), period) == 0
        gap = jnp.where(now, _largest(here - self.before), 0.0)
        return _Gaps(
            self.home,
            jnp.where(now[None], here, self.before),
            jnp.maximum(self.size, _largest(here)),
            jnp.where(now, jnp.maximum(self.moved, _largest(here - self.home)), self.moved),
            jnp.where(steps <= middle, jnp.maximum(self.early, gap), self.early),
            jnp.where(steps <= middle, self.late, jnp.maximum(self.late, gap)),
        )

    @property
    def closed(self) -> Array:
        """Whether the orbit rests within rounding, or comes closer to rest."""
        return (self.moved <= RESOLUTION * self.size) | (self.late <= self.early / 2)


# Compiled as a whole: run eagerly, every operation would be a program.
@eqx.filter_jit
def _search(lanes: Lanes, state: Any) -> _Search:
    return _Search.begin(lanes.coordinates(state))


@eqx.filter_jit
def _gaps(lanes: Lanes, state: Any) -> _Gaps:
    return _Gaps.begin(lanes.coordinates(state))


@eqx.filter_jit
def _follow(
    lanes: Lanes,
    state: Any,
    search: _Search,
    gaps: _Gaps,
    tolerance: Array,
    period: Array,
    middle: Array,
    first: Array,
    last: Array,
) -> tuple[Any, _Search, _Gaps]:
    """Some steps on. The search and the confirmation share one compiled program; each ignores the other's result."""

    def one(number: Array, carry: tuple[Any, _Search, _Gaps]) -> tuple[Any, _Search, _Gaps]:
        state, search, gaps = carry
        state, steps = lanes.step(state), number + 1
        here = lanes.coordinates(state)
        search = search.after(here, steps, lanes.returns_count(steps), tolerance)
        return state, search, gaps.after(here, steps, period, middle)

    return lax.fori_loop(first, last, one, (state, search, gaps))


def _largest(coordinates: Float[Array, "coordinate lane"]) -> Float[Array, " lane"]:
    return jnp.max(jnp.abs(coordinates), axis=0)

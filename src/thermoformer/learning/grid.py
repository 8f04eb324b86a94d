"""Solutions over a grid of widths and temperatures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .._validation import fail, nonnegative_number, positive_integer, positive_number, true_or_false
from ._entries import step_limit
from .action import Action, Setting
from .kernels import Problem
from .layout import Layout
from .minimise import Minimum
from .network import Architecture
from .paths import PathFeatures, checked_labels
from .saddle import (
    TOLERANCE,
    ConvergenceError,
    Solution,
    reason_for,
    search,
    search_problem,
    solution_at,
    try_harder,
)

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True, eq=False)
class SolutionGrid:
    """Solutions over widths × temperatures on one training set.

    Fields:
        widths, temperatures: the axes.
        order_parameter: U^1 [width, temperature, path, path].
        action, energy, entropy, log_evidence, converged: [width, temperature].
    """

    widths: tuple[Any, ...]
    temperatures: tuple[float, ...]
    solutions: tuple[tuple[Solution, ...], ...]

    def at(self, *, width: Any, temperature: float | None = None) -> Solution:
        """The solution at one width (and temperature, where there are several)."""
        if width not in self.widths:
            raise fail("width", width, f"one of {self.widths}")
        if temperature is None and len(self.temperatures) == 1:
            temperature = self.temperatures[0]
        if temperature not in self.temperatures:
            raise fail("temperature", temperature, f"one of {self.temperatures}")
        return self.solutions[self.widths.index(width)][self.temperatures.index(temperature)]

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in ("order_parameter", "action", "energy", "entropy", "log_evidence", "converged"):
            raise AttributeError(name)
        return np.array([[getattr(solution, name) for solution in row] for row in self.solutions])

    def to_xarray(self) -> xarray.Dataset:
        """All of it with named axes (widths that differ by layer are named by their position)."""
        import xarray

        names = list(self.solutions[0][0].architecture.order_names())
        axes = ("width", "temperature")
        data: dict[str, Any] = {
            name: (axes, getattr(self, name)) for name in ("action", "energy", "entropy", "log_evidence", "converged")
        }
        data["order_parameter"] = ((*axes, "path", "path_other"), self.order_parameter)
        simple = all(np.ndim(width) == 0 for width in self.widths)
        coordinates = {
            "width": list(self.widths) if simple else [str(width) for width in self.widths],
            "temperature": list(self.temperatures),
            "path": names,
            "path_other": names,
        }
        return xarray.Dataset(data, coords=coordinates)


def solve_grid(
    arch: Architecture,
    features: PathFeatures,
    labels: Any,
    *,
    widths: Any,
    temperatures: Any,
    form: str = "auto",
    method: str = "auto",
    tolerance: float = TOLERANCE,
    max_steps: int = 1000,
    batch: int | None = None,
    throw: bool = True,
) -> SolutionGrid:
    """`solve` for every width and temperature.

    On a CPU the points are solved one after another, each from the solution of a neighbouring point. On an accelerator
    they are solved side by side (vmap), all from the Gaussian process.

    Arguments:
        widths: a sequence; each entry a number, or L+1 numbers.
        temperatures: a number or a sequence.
        batch: how many points run side by side under vmap; by default one on a CPU, and what memory allows elsewhere.
        throw: raise `ConvergenceError`, naming the points, where any has no minimum.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> feats = PathFeatures.from_attentioned_inputs(rng.normal(size=(30, 2, 8)))
        >>> y = np.sign(rng.normal(size=30))
        >>> grid = solve_grid(Architecture((2,), 1), feats, y, widths=[5, 50], temperatures=0.1)
        >>> grid.order_parameter.shape
        (2, 1, 2, 2)
    """
    y = checked_labels(arch, features, labels)
    width_axis = tuple(tuple(width) if np.ndim(width) else width for width in _axis("widths", widths))
    temperature_axis = tuple(nonnegative_number("temperatures", value) for value in _axis("temperatures", temperatures))
    architectures = [arch.replace(widths=width) for width in width_axis]
    max_steps, tolerance = step_limit(max_steps), positive_number("tolerance", tolerance)
    throw, batch = true_or_false("throw", throw), None if batch is None else positive_integer("batch", batch)
    problem = search_problem(arch, features, y, min(temperature_axis), form, method)
    points = [(one, value) for one in architectures for value in temperature_axis]
    first = Action.of(arch, problem, min(temperature_axis)).method if method == "auto" else method
    batch = batch or _points_at_once(problem, first, len(points))
    found: list[Solution] = [None] * len(points)  # type: ignore[list-item]
    if batch == 1:
        start = np.zeros(arch.parameters)
        for index in _through_neighbours(architectures, temperature_axis):
            one, value = points[index]
            found[index] = search(one, problem, value, start, method, tolerance, max_steps)
            # A search that failed is no start for the next.
            start = found[index].vector if np.isfinite(found[index].vector).all() else np.zeros(arch.parameters)
    else:
        actions = [Action.of(one, problem, value) for one, value in points]
        settings = jax.tree.map(lambda *parts: jnp.stack(parts), *(action.setting for action in actions))
        minima = _minimise_side_by_side(problem, arch.layout, settings, tolerance, max_steps, first, batch)
        for index, (one, value) in enumerate(points):
            minimum = jax.tree.map(lambda part, index=index: part[index], minima)
            solution = solution_at(one, value, actions[index], minimum, first, tolerance)
            found[index] = try_harder(solution, tolerance, max_steps) if method == "auto" else solution
    failed = [solution for solution in found if not solution.converged]
    if throw and failed:
        places = ", ".join(f"(widths {one.architecture.widths}, temperature {one.temperature:g})" for one in failed)
        raise ConvergenceError(f"{len(failed)} of {len(found)} points: {places}. {reason_for(failed[0], tolerance)}")
    rows = tuple(
        tuple(found[start : start + len(temperature_axis)]) for start in range(0, len(found), len(temperature_axis))
    )
    return SolutionGrid(width_axis, temperature_axis, rows)


@partial(jax.jit, static_argnames=("layout", "method", "batch"))
def _minimise_side_by_side(
    problem: Problem, layout: Layout, settings: Setting, tolerance: float, max_steps: int, method: str, batch: int
) -> Minimum:
    def at(setting: Setting) -> Minimum:
        minimum = Action(problem, setting, layout).minimise(jnp.zeros(layout.count), tolerance, max_steps, method)
        return minimum._replace(hessian=None)  # a matrix for every point would fill the memory

    return jax.lax.map(at, settings, batch_size=batch)


def _through_neighbours(architectures: list[Architecture], temperatures: tuple[float, ...]) -> list[int]:
    """An order of all points in which each is next to the one before: a search starts where the last one ended.

    It begins at the largest width, next to the Gaussian process, and goes to and fro over the widths.
    """
    widths = sorted(range(len(architectures)), key=lambda index: architectures[index].widths, reverse=True)
    order: list[int] = []
    for number, temperature in enumerate(np.argsort(temperatures)[::-1]):
        order += [index * len(temperatures) + int(temperature) for index in (widths, widths[::-1])[number % 2]]
    return order


def _axis(name: str, value: Any) -> list[Any]:
    # Not np.ndim: widths may mix single numbers and numbers by layer.
    if hasattr(value, "shape"):  # an array, of NumPy or JAX
        value = np.asarray(value).tolist()
    values = list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else [value]
    values = [np.asarray(one).tolist() if hasattr(one, "shape") else one for one in values]
    if not values:
        raise fail(name, "nothing", "at least one entry")
    return values


def _points_at_once(problem: Problem, method: str, points: int) -> int:
    """One on a CPU, whose batched products are slower than single ones; else what half a gigabyte holds."""
    if jax.default_backend() == "cpu":
        return 1
    size = len(problem.labels) ** 2
    if problem.pairs is not None and method == "newton":
        size *= 3 * problem.pairs.shape[0]
    elif problem.pairs is None:
        size += 3 * problem.features.size
    return int(np.clip(5e8 / (8 * size), 1, points))

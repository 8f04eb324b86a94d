"""The saddle point of the order parameters: the theory in the thermodynamic limit (learning §3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._notebook import Result, draw
from .._validation import (
    fail,
    instance,
    nonnegative_number,
    numbers,
    one_of,
    positive_integer,
    positive_number,
    step_limit,
    traced,
    true_or_false,
)
from .action import ROUNDING, Action, Minimum, Setting, follow, hessian_operations, stationary, stationary_value
from .architecture import Architecture
from .kernels import PAIR_MEMORY, Problem, checked_labels, prepare, with_pairs
from .paths import PathFeatures
from .results import ROWS, Predictor, singular_kernel

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

METHODS = ("auto", "newton", "limited-memory")
# Largest gradient entry, in whitened coordinates, of the action over (max N + P), at which a minimum counts as found.
TOLERANCE = 1e-8
# The action multiplies a few numbers of this size; float64 ends at 1e308.
OVERFLOW = 1e90
# Operations for one Hessian up to which Newton's method continues a search that limited-memory BFGS gave up.
FALLBACK_OPERATIONS = 1e11
# Most steps by gradients alone from a neighbouring solution: further away, Newton's method itself is quicker.
FOLLOWING = 12
# Numbers of a solution that a grid or a data set holds.
SCALARS = ("action", "energy", "entropy", "log_evidence", "converged")


class ConvergenceError(RuntimeError):
    """No minimum of the action was found; the message says how far the search came and what to try."""


class Stats(eqx.Module):
    """How a solution was found.

    Fields:
        method: "newton", "limited-memory", one then the other, or "limit" for the limit of infinite width.
        form: the form of the kernel.
        evaluations: evaluations of the action with its derivatives. Newton's method does not count the gradients that
            lead from an earlier solution to a neighbouring one.
        gradient_norm: largest gradient entry of the action over (max N + P) in whitened coordinates.
        smallest_curvature: smallest eigenvalue of the Hessian in the same units; None if it was not formed.
        remaining_gain: what one more Newton step would take off the action over (max N + P); None if not known.
    """

    method: str = eqx.field(static=True)
    form: str = eqx.field(static=True)
    evaluations: int
    gradient_norm: float
    smallest_curvature: float | None
    remaining_gain: float | None


class Solution(Predictor):
    """A minimum of the action, or the limit of infinite width, with the predictor it gives.

    A pytree: `solve` runs under `jax.jit` and `jax.vmap`, and derivatives of all numbers here with respect to
    temperature, variances, labels and features are those of the minimum (implicit function theorem).

    Fields, beside those of `Predictor`:
        order_parameters: U^1..U^{L+1}.
        action, energy, entropy: S, E and S − E over the largest width.
        log_evidence: leading ln p(y), comparable between head sets (learning §9).
        converged: whether a minimum was found; stats: how.
        vector: whitened coordinates, zero in the limit of infinite width.
        curvature: for a search from here: the Hessian of S, or the memory of limited-memory BFGS, or None.
        given: the features and y that `solve` prepared the training data from; None if they were traced.
    """

    order_parameters: tuple[np.ndarray, ...]
    action: float
    energy: float
    entropy: float
    log_evidence: float
    converged: bool
    stats: Stats
    vector: np.ndarray
    curvature: Any = None
    given: Any = None

    @property
    def infinite_width(self) -> bool:
        """Whether this is the limit of infinite width and not a minimum."""
        return self.stats.method == "limit"

    @property
    def action_function(self) -> Action:
        """The action S(v) as a function of whitened coordinates."""
        return Action.of(self.architecture, self.problem, self.temperature)

    def continued(
        self,
        *,
        widths: Any = None,
        temperature: float | None = None,
        method: str = "auto",
        tolerance: float = TOLERANCE,
        max_steps: int = 1000,
    ) -> Solution:
        """The minimum on the same training data at another width or temperature, searched from here.

        The training data are not prepared again. Nothing is raised: `converged` tells whether a minimum was found.

        Arguments:
            widths, temperature: of the network; default: those of this solution.
            method, tolerance, max_steps: as in `solve`.

        Example:
            >>> import numpy as np
            >>> xi = np.random.default_rng(0).normal(size=(30, 2, 8))
            >>> feats = PathFeatures.from_attentioned_inputs(xi)
            >>> wide = solve(Architecture((2,), 100), feats, np.sign(xi[:, 0, 0]), temperature=0.1)
            >>> wide.continued(widths=10).architecture.widths
            (10, 10)
        """
        arch = self.architecture if widths is None else self.architecture.replace(widths=widths)
        temperature = self.temperature if temperature is None else nonnegative_number("temperature", temperature)
        steps, tolerance = step_limit(max_steps), positive_number("tolerance", tolerance)
        return search(arch, self.problem, temperature, self, method, tolerance, steps)

    def to_xarray(self) -> xarray.Dataset:
        """The order parameters and scalars with named axes."""
        data: dict[str, Any] = {name: getattr(self, name) for name in SCALARS}
        for layer, gram in enumerate(self.order_parameters[1:], start=2):
            data[f"order_parameter_{layer}"] = ((f"path_{layer}", f"path_{layer}_other"), gram)
        return super().to_xarray().assign(data).assign_attrs(method=self.stats.method)

    def summary(self) -> dict[str, Any]:
        """The network, whether a minimum was found and by which method, and the log evidence."""
        found = {"method": self.stats.method, "converged": self.converged, "log_evidence": self.log_evidence}
        return super().summary() | found


def solve(
    arch: Architecture,
    features: PathFeatures,
    labels: Any,
    *,
    temperature: float,
    form: str = "auto",
    method: str = "auto",
    tolerance: float = TOLERANCE,
    max_steps: int = 1000,
    throw: bool = True,
    correction: str | None = None,
    start: Solution | None = None,
) -> Solution:
    """Minimise the action from the Gaussian-process start: the theory for N, P → ∞ at fixed P/N (learning §3).

    Works under `jax.jit`, `jax.vmap` and `jax.grad`. What is traced there is not checked: nothing is raised, and
    `converged` says whether a minimum was found.

    Arguments:
        features: attentioned inputs ξ [example, path, feature] of the training examples.
        labels: y [example], or [example, output] with several outputs.
        temperature: τ ≥ 0, the variance of the observation noise.
        form: form of the kernel: "auto", "pairs", "features" or "dual".
        method: "newton" (exact Hessian), "limited-memory" (BFGS), or "auto" by the cost of a Hessian.
        tolerance: largest gradient entry, in whitened coordinates, of S/(max N + P).
        max_steps: most steps of the minimiser.
        throw: raise `ConvergenceError` if no minimum is found; otherwise `converged` is False.
        correction: "one-loop" adds the correction of order 1/N to order parameters, predictions and evidence, and
            returns a `CorrectedSolution`; default: the saddle itself.
        start: an earlier solution for the same heads to search from, as of a neighbouring width or temperature. If it
            is of these features and labels, they are not prepared again, and form="auto" is its form.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> feats = PathFeatures.from_attentioned_inputs(rng.normal(size=(30, 2, 8)))
        >>> arch, y = Architecture((2,), widths=10), np.sign(rng.normal(size=30))
        >>> solution = solve(arch, feats, y, temperature=0.1)
        >>> solution.converged, solution.order_parameter.shape
        (True, (2, 2))
        >>> evidence = lambda temperature: solve(arch, feats, y, temperature=temperature).log_evidence
        >>> bool(jax.grad(evidence)(0.1) > 0)
        True
    """
    y = checked_labels(arch, features, labels)
    temperature = nonnegative_number("temperature", temperature)
    max_steps, tolerance = step_limit(max_steps), positive_number("tolerance", tolerance)
    throw = true_or_false("throw", throw)
    if correction is not None:
        one_of("correction", correction, ("one-loop",))
    one_of("method", method, METHODS)
    first = np.zeros(arch.parameters) if start is None else _checked_start(arch, start)
    if start is None or not _same_problem(start, arch, features, y, form, temperature):
        problem = prepare(arch, features, y, form, temperature)
    else:
        problem = start.problem
    solution = search(arch, problem, temperature, first, method, tolerance, max_steps)
    if not traced(solution):
        solution = replace(solution, given=(features, y.copy()))  # a copy, since users may change their labels
    converged = traced(solution) or solution.converged
    if throw and not converged:
        raise ConvergenceError(reason_for(solution, tolerance))
    if correction is not None and converged:
        from .corrections import one_loop  # builds on this module

        return one_loop(solution)  # type: ignore[return-value]
    return solution


def gaussian_process(
    arch: Architecture, features: PathFeatures, labels: Any, *, temperature: float, form: str = "auto"
) -> Solution:
    """The limit of infinite width: U^1 = σa² ∏σ_l² · I, the same type as `solve` returns.

    Action, energy and entropy are those of this U at the architecture's widths; the log evidence is the log marginal
    likelihood of the Gaussian process.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> feats = PathFeatures.from_attentioned_inputs(rng.normal(size=(30, 2, 8)))
        >>> limit = gaussian_process(Architecture((2,), 10), feats, np.sign(rng.normal(size=30)), temperature=0.1)
        >>> limit.order_parameter.tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    y = checked_labels(arch, features, labels)
    temperature = nonnegative_number("temperature", temperature)
    problem, vector = prepare(arch, features, y, form, temperature), np.zeros(arch.parameters)
    nothing: Any = vector, 0.0, np.nan, 0, np.nan, np.nan, None
    found = Minimum(*nothing), _values(Action.of(arch, problem, temperature), vector)
    solution = solution_at(arch, problem, temperature, found, "limit", TOLERANCE)
    if not traced(solution) and not np.isfinite(solution.energy):
        raise singular_kernel(temperature)
    return solution


def whitened_hessian(solution: Solution) -> np.ndarray:
    """The Hessian of S/(max N + P) in whitened coordinates at a solution, [parameter, parameter].

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> feats = PathFeatures.from_attentioned_inputs(rng.normal(size=(30, 2, 8)))
        >>> solution = solve(Architecture((2,), 10), feats, np.sign(rng.normal(size=30)), temperature=0.1)
        >>> bool(np.linalg.eigvalsh(whitened_hessian(solution))[0] > 0)
        True
    """
    action = checked_solution(solution).action_function
    return np.asarray(action.hessian(jnp.asarray(solution.vector)) / action.scale)


def checked_solution(value: Any) -> Solution:
    """The value, if it is a solution."""
    return instance("solution", value, Solution, "a Solution, as solve returns it")


def search(
    arch: Architecture, problem: Problem, temperature: Any, start: Any, method: str, tolerance: float, max_steps: int
) -> Solution:
    """The minimum of the action that is reached from a whitened vector, or from a solution for the same heads."""
    action = Action.of(arch, problem, temperature)
    first = _first_method(action, method)
    vector, memory = start, None
    if isinstance(start, Solution):
        vector = start.vector
        if not traced(vector, temperature, problem.labels) and start.converged:
            exact = hasattr(start.curvature, "ndim")  # a Hessian, of JAX or NumPy
            if first == "limited-memory" and not exact:
                memory = start.curvature
            if first == "newton" and exact and max_steps > 1:  # the last step is Newton's
                before, steps = Setting.of(start.architecture, start.temperature), min(FOLLOWING, max_steps - 1)
                vector = follow(action, before, vector, start.curvature, tolerance, steps)
    found = _found(action, vector, memory, tolerance, max_steps, first)
    solution = solution_at(arch, problem, temperature, found, first, tolerance)
    return _with_fallback(solution, tolerance, max_steps) if method == "auto" else solution


def _first_method(action: Action, method: str) -> str:
    """The minimiser to begin with: "newton" where its exact Hessian is worth the cost, or the one asked for."""
    one_of("method", method, METHODS)
    if method == "newton" and action.problem.pairs is None:
        paths = action.problem.features.shape[2]
        raise fail("method", "'newton'", f"'limited-memory' for {paths} paths: Newton's method needs stored pairs")
    return action.method if method == "auto" else method


def _checked_start(arch: Architecture, start: Any) -> Solution:
    """The earlier solution, if a search can start from it."""
    found = instance("start", start, Solution, "a Solution, as solve returns it").architecture
    if found.layout != arch.layout:
        raise fail("start", f"a solution of {found}", f"one with the heads, outputs and skips of {arch}")
    if not traced(start.vector) and not np.isfinite(start.vector).all():
        raise fail("start", "a solution that is not finite", "a solution that has converged")
    return start


def _same_problem(
    start: Solution, arch: Architecture, features: PathFeatures, labels: Any, form: str, temperature: Any
) -> bool:
    """Whether a solution was found on these very features (JAX arrays do not change), prepared as they would be now."""
    if start.given is None or traced(temperature, start.given, labels) or temperature == 0:
        return False
    same = start.given[0].values is features.values and np.array_equal(start.given[1], labels)
    return same and form in ("auto", start.problem.form) and start.architecture.variances[0] == arch.variances[0]


def _with_fallback(solution: Solution, tolerance: float, max_steps: int) -> Solution:
    """Continue with Newton's method, if affordable, where limited-memory BFGS gave up (small width, temperature)."""
    if solution.stats.method != "limited-memory" or traced(solution) or solution.converged:
        return solution
    problem, arch = solution.problem, solution.architecture
    size, rows = len(problem.labels), arch.order_sizes[0]
    pairs = rows * (rows + 1) // 2
    affordable = hessian_operations(pairs, size, arch.layout) <= FALLBACK_OPERATIONS
    if not affordable or 8 * pairs * size**2 > PAIR_MEMORY or not np.isfinite(solution.vector).all():
        return solution
    action = replace(solution.action_function, problem=with_pairs(problem))
    minimum, values = _found(action, solution.vector, None, tolerance, max_steps, "newton")
    found = minimum._replace(evaluations=minimum.evaluations + solution.stats.evaluations), values
    return solution_at(arch, problem, solution.temperature, found, "limited-memory, then newton", tolerance)


def _found(action: Action, start: Any, memory: Any, tolerance: Any, max_steps: Any, method: str) -> tuple:
    """Where a search ends, and v, F_1, all U, S, S − E and ln p(y) there; v moves with the action.

    Two programs: others take the search alone, and the limit of infinite width the values alone.
    """
    minimum = action.minimise(start, tolerance, max_steps, method, memory)
    # A minimum has no motion unless what it depends on is traced.
    vector = _moving(action, minimum.vector) if traced(action) else minimum.vector
    return minimum, _values(action, vector)


# One program: outside of others its derivatives would compile a hundred, one for each operation.
_moving = jax.jit(stationary)


@jax.jit
def _values(action: Action, vector: Any) -> tuple:
    total, factors = stationary_value(action, vector), action.factors(vector)
    grams = tuple(factor @ factor.T for factor in factors)
    return vector, factors[0], grams, total, action.entropy(vector), action.log_evidence(total)


def solution_at(
    arch: Architecture, problem: Problem, temperature: Any, found: tuple[Minimum, tuple], method: str, tolerance: float
) -> Solution:
    """The record of where a search ended."""
    minimum, values = found
    known = minimum.gradient_norm, minimum.smallest_curvature, minimum.remaining_gain, minimum.evaluations
    (vector, factor, grams, total, disorder, evidence), (norm, curvature, gain, evaluations) = numbers((values, known))
    # At small width and temperature curvatures differ by orders of magnitude, and rounding in the stiff directions
    # alone exceeds the tolerance: a minimum that a Newton step cannot lower beyond rounding is found all the same.
    # What is not known is NaN, which compares as false.
    finite = jnp.isfinite(total) if traced(total) else math.isfinite(total)
    converged = finite & ((norm <= tolerance) | (gain <= ROUNDING)) & ((curvature > 0) | (curvature != curvature))
    largest = max(arch.widths)
    return Solution(
        architecture=arch,
        temperature=temperature,
        order_parameter=grams[0],
        factor=factor,
        problem=problem,
        order_parameters=grams,
        action=total / largest,
        energy=(total - disorder) / largest,
        entropy=disorder / largest,
        log_evidence=evidence,
        converged=numbers(converged),
        stats=Stats(method, problem.form, evaluations, norm, _if_known(curvature), _if_known(gain)),
        vector=vector,
        curvature=minimum.memory if minimum.hessian is None else minimum.hessian,
    )


def _if_known(number: Any) -> Any:
    return None if not traced(number) and np.isnan(number) else number


def _overflow(solution: Solution) -> str:
    """Which argument is too large for the action, as an error message; empty if none is."""
    arrays = {"features": solution.problem.features, "labels": solution.problem.labels}
    sizes = {"variances": max(solution.architecture.variances), "temperature": solution.temperature}
    sizes |= {name: float(np.abs(array).max()) for name, array in arrays.items()}
    # NaN if it has overflowed already.
    name, size = max(sizes.items(), key=lambda pair: np.inf if np.isnan(pair[1]) else pair[1])
    return "" if size < OVERFLOW else str(fail(name, f"{size:.3g}", "smaller numbers: the action overflows"))


def reason_for(solution: Solution, tolerance: float) -> str:
    """Why a solution does not count as converged, in a sentence that helps."""
    stats = solution.stats
    if not np.isfinite(solution.action) or not np.isfinite(stats.gradient_norm):
        place = f"at temperature {solution.temperature:g}"
        return _overflow(solution) or f"the kernel is singular to rounding {place}; try a larger temperature"
    if stats.smallest_curvature is not None and stats.smallest_curvature < 0:
        return f"the search ended where the curvature is {stats.smallest_curvature:.3g}, not at a minimum"
    return (
        f"after {stats.evaluations} evaluations the gradient is {stats.gradient_norm:.3g}, not under the tolerance "
        f"{tolerance:g}; try more max_steps, a larger temperature (rounding grows as 1/temperature), or throw=False"
    )


@dataclass(frozen=True, eq=False, repr=False)
class SolutionGrid(Result):
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
        """The solution at one width (and temperature, if there are several)."""
        if width not in self.widths:
            raise fail("width", width, f"one of {self.widths}")
        if temperature is None and len(self.temperatures) == 1:
            temperature = self.temperatures[0]
        if temperature not in self.temperatures:
            raise fail("temperature", temperature, f"one of {self.temperatures}")
        return self.solutions[self.widths.index(width)][self.temperatures.index(temperature)]

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in ("order_parameter", *SCALARS):
            raise AttributeError(name)
        return np.array([[getattr(solution, name) for solution in row] for row in self.solutions])

    def to_xarray(self) -> xarray.Dataset:
        """All of it with named axes (widths that differ by layer are named by their position)."""
        import xarray

        axes, names = ("width", "temperature"), list(self.solutions[0][0].architecture.order_names())
        data: dict[str, Any] = {name: (axes, getattr(self, name)) for name in SCALARS}
        data["order_parameter"] = ((*axes, *ROWS), self.order_parameter)
        simple = all(np.ndim(width) == 0 for width in self.widths)
        widths = list(self.widths) if simple else [str(width) for width in self.widths]
        coordinates = {"width": widths, "temperature": list(self.temperatures)} | dict.fromkeys(ROWS, names)
        return xarray.Dataset(data, coords=coordinates)

    def summary(self) -> dict[str, Any]:
        """The axes, and how many solutions have converged."""
        found = self.converged
        axes = {"widths": self.widths, "temperatures": self.temperatures}
        return axes | {"converged": f"{np.count_nonzero(found)} of {found.size}"}

    def accuracy(self, features: PathFeatures, labels: Any, *, temperature: float | None = None) -> xarray.Dataset:
        """Accuracy on new examples by width, the infinite one included, as `figures.accuracy_against_width` takes it.

        Arguments:
            features: attentioned inputs of the new examples.
            labels: their labels, as in `Prediction.accuracy`.
            temperature: one of the grid; may be left out if there is one alone.

        Returns:
            `accuracy` [seed, width], and `accuracy_diagonal`, that of the predictor with the diagonal of U alone; one
            seed.
        """
        import xarray

        if any(np.ndim(width) for width in self.widths):
            raise fail("widths", self.widths, "one number per width, not one per layer")
        solutions: list[Predictor] = [self.at(width=width, temperature=temperature) for width in self.widths]
        first = self.at(width=self.widths[0], temperature=temperature)
        # Whitened coordinates are zero in the limit of infinite width.
        factor = np.asarray(first.action_function.path_factor(jnp.zeros_like(first.vector)))
        solutions.append(first.with_order_parameter(factor @ factor.T))
        diagonals = [one.with_order_parameter(np.diag(np.diag(one.order_parameter))) for one in solutions]
        data = {
            name: (("seed", "width"), [[one.predict(features).accuracy(labels) for one in predictors]])
            for name, predictors in (("accuracy", solutions), ("accuracy_diagonal", diagonals))
        }
        return xarray.Dataset(data, {"width": [*self.widths, np.inf]})

    def plot(
        self,
        features: PathFeatures,
        labels: Any,
        ax: Axes | None = None,
        *,
        temperature: float | None = None,
        **options: Any,
    ) -> Axes:
        """Draws the accuracy on new examples against the width, with that of the diagonal of U and of infinite width.

        Arguments:
            features, labels, temperature: as in `accuracy`.
            ax: Axes to draw on; default: a new figure, which notebooks show.
            options: those of `figures.accuracy_against_width`.
        """
        found = self.accuracy(features, labels, temperature=temperature)
        return draw("accuracy_against_width", found, ax=ax, **options)


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
        batch: how many points run side by side under vmap; default: one on a CPU, elsewhere as many as memory allows.
        throw: raise `ConvergenceError`, naming the points, if any has no minimum.

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
    max_steps, tolerance = step_limit(max_steps), positive_number("tolerance", tolerance)
    throw, batch = true_or_false("throw", throw), None if batch is None else positive_integer("batch", batch)
    problem = prepare(arch, features, y, form, min(temperature_axis))
    points = [(arch.replace(widths=width), value) for width in width_axis for value in temperature_axis]
    action = Action.of(arch, problem, min(temperature_axis))
    first = _first_method(action, method)
    batch = batch or _points_at_once(problem, first, len(points))
    found: dict[int, Solution] = {}
    if batch == 1:
        start = limit = np.zeros(arch.parameters)
        for index in _through_neighbours(points):
            start = search(points[index][0], problem, points[index][1], start, method, tolerance, max_steps)
            found[index] = replace(start, curvature=None)  # a matrix per point would fill the memory
            # A search that failed is no start for the next.
            start = start if np.isfinite(start.vector).all() else limit
    else:
        settings = jax.tree.map(lambda *parts: jnp.stack(parts), *(Setting.of(*point) for point in points))
        ends = jax.tree.map(np.asarray, _side_by_side(action, settings, tolerance, max_steps, first, batch))
        for index, (one, value) in enumerate(points):
            end = jax.tree.map(lambda part, index=index: part[index], ends)
            solution = solution_at(one, problem, value, end, first, tolerance)
            found[index] = _with_fallback(solution, tolerance, max_steps) if method == "auto" else solution
    failed = [found[index] for index in range(len(points)) if not found[index].converged]
    if throw and failed:
        places = ", ".join(f"(widths {one.architecture.widths}, temperature {one.temperature:g})" for one in failed)
        raise ConvergenceError(f"{len(failed)} of {len(found)} points: {places}. {reason_for(failed[0], tolerance)}")
    columns = len(temperature_axis)
    rows = [tuple(found[row * columns + column] for column in range(columns)) for row in range(len(width_axis))]
    return SolutionGrid(width_axis, temperature_axis, tuple(rows))


@partial(jax.jit, static_argnames=("method", "batch"))
def _side_by_side(action: Action, settings: Any, tolerance: Any, max_steps: Any, method: str, batch: int) -> tuple:
    def at(setting: Any) -> tuple:
        start = jnp.zeros(action.layout.count)
        minimum, values = _found(replace(action, setting=setting), start, None, tolerance, max_steps, method)
        # A matrix per point would fill the memory.
        return minimum._replace(hessian=None, memory=None), values

    return jax.lax.map(at, settings, batch_size=batch)


def _through_neighbours(points: list[tuple[Architecture, float]]) -> list[int]:
    """The indices of all points, ordered so that each is a neighbour of the one before it.

    It begins at the largest width and temperature, next to the Gaussian process, and alternates the order of widths.
    """
    order: list[int] = []
    for number, temperature in enumerate(sorted({value for _, value in points}, reverse=True)):
        row = [index for index, (_, value) in enumerate(points) if value == temperature]
        order += sorted(row, key=lambda index: points[index][0].widths, reverse=number % 2 == 0)
    return order


def _axis(name: str, value: Any) -> list[Any]:
    """The entries of an axis: numbers and, for widths by layer, lists of numbers."""
    value = value.tolist() if hasattr(value, "tolist") else value
    values: list[Any] = list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else [value]
    if not values:
        raise fail(name, "nothing", "at least one entry")
    return [one.tolist() if hasattr(one, "tolist") else one for one in values]


def _points_at_once(problem: Problem, method: str, points: int) -> int:
    """One on a CPU, whose batched products are slower than single ones; else as many as half a gigabyte holds."""
    if jax.default_backend() == "cpu":
        return 1
    size = len(problem.labels) ** 2
    if problem.pairs is not None and method == "newton":
        size *= 3 * problem.pairs.shape[0]
    elif problem.pairs is None:
        size += 3 * problem.features.size
    return int(np.clip(5e8 / (8 * size), 1, points))

"""The saddle point of the order parameters: the theory in the thermodynamic limit (learning §3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .._validation import fail, nonnegative_number, one_of, positive_number, true_or_false
from ._entries import instance, step_limit
from .action import Setting, action, entropy, log_evidence
from .kernels import PAIR_MEMORY, Problem, with_pairs
from .layout import Layout
from .minimise import ROUNDING, Minimum, action_derivatives, limited_memory, newton
from .network import Architecture
from .order import gram_factors, output_first, whitened_blocks
from .paths import PathFeatures, checked_labels
from .predictor import Predictor, ready_problem, singular_kernel

if TYPE_CHECKING:
    import xarray

METHODS = ("auto", "newton", "limited-memory")
# Largest gradient entry, in whitened coordinates, of the action over (max N + P), at which a minimum counts as found.
TOLERANCE = 1e-8
# The action multiplies a few numbers of this size; float64 ends at 1e308.
OVERFLOW = 1e90
# Operations for one Hessian up to which Newton's method is taken from the start (a second or so on two cores), and
# up to which it takes over where limited-memory BFGS gave up.
NEWTON_OPERATIONS = 2e10
FALLBACK_OPERATIONS = 1e11


class ConvergenceError(RuntimeError):
    """No minimum of the action was found; the message says how far the search came and what to try."""


@dataclass(frozen=True)
class Stats:
    """How a solution was found.

    Fields:
        method: "newton", "limited-memory", one then the other, or "limit" where nothing had to be searched.
        form: the form of the kernel.
        evaluations: evaluations of the action with its derivatives.
        gradient_norm: largest gradient entry of the action over (max N + P) in whitened coordinates.
        smallest_curvature: smallest eigenvalue of the Hessian in the same units; None where it was not formed.
        remaining_gain: what one more Newton step would take off the action over (max N + P); None where not known.
    """

    method: str
    form: str
    evaluations: int
    gradient_norm: float
    smallest_curvature: float | None
    remaining_gain: float | None


@dataclass(frozen=True, eq=False)
class Solution(Predictor):
    """A minimum of the action, or the limit of infinite width, with the predictor it gives.

    Fields, beside those of `Predictor`:
        order_parameters: U^1..U^{L+1}.
        action, energy, entropy: S, E and S − E over the largest width.
        log_evidence: leading ln p(y), comparable between head sets (learning §9).
        converged: whether a minimum was found; stats: how.
        vector: whitened coordinates, zero in the limit of infinite width.
    """

    order_parameters: tuple[np.ndarray, ...]
    action: float
    energy: float
    entropy: float
    log_evidence: float
    converged: bool
    stats: Stats
    vector: np.ndarray

    @property
    def _counts(self) -> bool:
        return self.converged

    def to_xarray(self) -> xarray.Dataset:
        """The order parameters and scalars with named axes."""
        import xarray

        names = list(self.architecture.order_names())
        data: dict[str, Any] = {"order_parameter": (("path", "path_other"), self.order_parameter)}
        for layer, gram in enumerate(self.order_parameters[1:], start=2):
            data[f"order_parameter_{layer}"] = ((f"path_{layer}", f"path_{layer}_other"), gram)
        for name in ("action", "energy", "entropy", "log_evidence", "converged"):
            data[name] = getattr(self, name)
        attributes = {
            "heads": list(self.architecture.heads),
            "widths": list(self.architecture.widths),
            "variances": list(self.architecture.variances),
            "outputs": self.architecture.outputs,
            "skip": int(self.architecture.skip),
            "temperature": self.temperature,
            "method": self.stats.method,
        }
        return xarray.Dataset(data, coords={"path": names, "path_other": names}, attrs=attributes)


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
) -> Solution:
    """Minimise the action from the Gaussian-process start: the theory for N, P → ∞ at fixed P/N (learning §3).

    Arguments:
        features: attentioned inputs ξ [example, path, feature] of the training examples.
        labels: y [example], or [example, output] with several outputs.
        temperature: τ ≥ 0, the variance of the observation noise.
        form: form of the kernel: "auto", "pairs", "features" or "dual".
        method: "newton" (exact Hessian), "limited-memory" (BFGS), or "auto" by the cost of a Hessian.
        tolerance: largest gradient entry, in whitened coordinates, of S/(max N + P).
        max_steps: most steps of the minimiser.
        throw: raise `ConvergenceError` where no minimum is found; otherwise say so in `converged`.
        correction: "one-loop" adds the correction of order 1/N to order parameters, predictions and evidence, and
            returns a `CorrectedSolution`; none is the saddle itself.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> feats = PathFeatures.from_attentioned_inputs(rng.normal(size=(30, 4, 8)))
        >>> solution = solve(Architecture((2, 2), widths=10), feats, np.sign(rng.normal(size=30)), temperature=0.1)
        >>> solution.converged, solution.order_parameter.shape
        (True, (4, 4))
    """
    y = checked_labels(arch, features, labels)
    temperature = nonnegative_number("temperature", temperature)
    max_steps, tolerance = step_limit(max_steps), positive_number("tolerance", tolerance)
    throw = true_or_false("throw", throw)
    if correction is not None:
        one_of("correction", correction, ("one-loop",))
    problem, first = ready_search(arch, features, y, temperature, form, method)
    start = np.zeros(arch.parameters)
    minimum = minimise_from(problem, arch.layout, Setting.of(arch, temperature), start, tolerance, max_steps, first)
    solution = solution_at(arch, temperature, problem, minimum, first, tolerance)
    if method == "auto":
        solution = try_harder(solution, tolerance, max_steps)
    if throw and not solution.converged:
        raise ConvergenceError(reason_for(solution, tolerance))
    if correction is not None and solution.converged:
        from .corrections import one_loop  # builds on this module

        return one_loop(solution)
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
    problem, _ = ready_search(arch, features, y, temperature, form, "auto")
    start = jnp.zeros(arch.parameters)
    unknown = jnp.asarray(jnp.nan)
    nothing = Minimum(start, jnp.zeros(()), unknown, jnp.asarray(0), unknown, unknown)
    solution = solution_at(arch, temperature, problem, nothing, "limit", TOLERANCE)
    if not np.isfinite(solution.energy):
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
    checked_solution(solution)
    arch, setting = solution.architecture, Setting.of(solution.architecture, solution.temperature)
    problem, vector = solution.problem, jnp.asarray(solution.vector)
    if problem.pairs is not None:
        return np.asarray(_hessian_from_pairs(vector, problem, arch.layout, setting))
    scale = max(arch.widths) + problem.observations
    gradient = jax.grad(lambda at: action(at, problem, arch.layout, setting) / scale)
    # One direction after another: all at once would hold as many copies of the features.
    column = jax.jit(lambda direction: jax.jvp(gradient, (vector,), (direction,))[1])
    return np.stack([np.asarray(column(direction)) for direction in np.eye(len(vector))])


def checked_solution(value: Any) -> Solution:
    """A solution, and not something else that was found."""
    return instance("solution", value, Solution, "a Solution, as solve returns it")


def ready_search(
    arch: Architecture, features: PathFeatures, labels: np.ndarray, temperature: float, form: str, method: str
) -> tuple[Problem, str]:
    """The prepared data and the minimiser to use on it."""
    one_of("method", method, METHODS)
    problem = ready_problem(arch, features, labels, temperature, form)
    if method == "newton" and problem.pairs is None:
        raise fail("method", "'newton'", f"'limited-memory' for {arch.paths} paths: Newton's method needs stored pairs")
    if method == "auto":
        method = "newton" if hessian_is_affordable(problem, arch.layout) else "limited-memory"
    return problem, method


def try_harder(solution: Solution, tolerance: float, max_steps: int) -> Solution:
    """Where limited-memory BFGS gave up (small width and temperature), go on with Newton's method if affordable."""
    problem, arch = solution.problem, solution.architecture
    if solution.converged or solution.stats.method != "limited-memory" or not np.isfinite(solution.vector).all():
        return solution
    size, rows = len(problem.labels), arch.order_sizes[0]
    pairs = rows * (rows + 1) // 2
    if 8 * pairs * size**2 > PAIR_MEMORY or _operations(pairs, size, arch.layout) > FALLBACK_OPERATIONS:
        return solution
    setting = Setting.of(arch, solution.temperature)
    ready = with_pairs(problem)
    minimum = minimise_from(ready, arch.layout, setting, solution.vector, tolerance, max_steps, "newton")
    minimum = minimum._replace(evaluations=minimum.evaluations + solution.stats.evaluations)
    return solution_at(arch, solution.temperature, problem, minimum, "limited-memory, then newton", tolerance)


def hessian_is_affordable(problem: Problem, layout: Layout) -> bool:
    """Whether Newton's method is worth its exact Hessian here."""
    return _hessian_operations(problem, layout) <= NEWTON_OPERATIONS


def _hessian_operations(problem: Problem, layout: Layout) -> float:
    return math.inf if problem.pairs is None else _operations(problem.pairs.shape[0], problem.pairs.shape[1], layout)


def _operations(pairs: int, size: int, layout: Layout) -> float:
    """Operations for the exact Hessian: one P³ product per pair, all traces of two, and second derivatives of U."""
    return 2.0 * pairs * size**2 * (size + pairs) + 20.0 * layout.count * layout.blocks[0].rows ** 3


@partial(jax.jit, static_argnames=("layout", "method"))
def minimise_from(
    problem: Problem, layout: Layout, setting: Setting, start: Any, tolerance: float, max_steps: int, method: str
) -> Minimum:
    """Search by one method from a start, compiled once per shape."""
    search = newton if method == "newton" else limited_memory
    return search(problem, layout, setting, jnp.asarray(start), tolerance=tolerance, max_steps=max_steps)


@partial(jax.jit, static_argnames=("layout",))
def _hessian_from_pairs(vector: jax.Array, problem: Problem, layout: Layout, setting: Setting) -> jax.Array:
    return action_derivatives(vector, problem, layout, setting)[2]


@partial(jax.jit, static_argnames=("layout",))
def _values(vector: jax.Array, problem: Problem, layout: Layout, setting: Setting) -> tuple:
    factors = gram_factors(whitened_blocks(vector, layout), layout, setting.scales)
    factors = [output_first(factor, layout.outputs) for factor in factors]
    total = action(vector, problem, layout, setting)
    evidence = log_evidence(total, problem.observations, layout, setting)
    return [factor @ factor.T for factor in factors], total, entropy(vector, layout, setting), evidence


def solution_at(
    arch: Architecture, temperature: float, problem: Problem, minimum: Minimum, method: str, tolerance: float
) -> Solution:
    """The record of where a search ended."""
    grams, total, disorder, evidence = _values(minimum.vector, problem, arch.layout, Setting.of(arch, temperature))
    largest = max(arch.widths)
    norm = float(minimum.gradient_norm)
    curvature, gain = (
        None if np.isnan(part) else float(part) for part in (minimum.smallest_curvature, minimum.remaining_gain)
    )
    # At small width and temperature curvatures differ by orders of magnitude, and rounding in the stiff directions
    # alone exceeds the tolerance: a minimum that a Newton step cannot lower beyond rounding is found all the same.
    found = norm <= tolerance or (gain is not None and gain <= ROUNDING)
    minimal = curvature is None or curvature > 0
    return Solution(
        architecture=arch,
        temperature=temperature,
        order_parameter=np.asarray(grams[0]),
        problem=problem,
        order_parameters=tuple(np.asarray(gram) for gram in grams),
        action=float(total) / largest,
        energy=float(total - disorder) / largest,
        entropy=float(disorder) / largest,
        log_evidence=float(evidence),
        converged=bool(np.isfinite(total)) and found and minimal,
        stats=Stats(method, problem.form, int(minimum.evaluations), norm, curvature, gain),
        vector=np.asarray(minimum.vector),
    )


def _overflow(solution: Solution) -> str:
    """Which argument is too large for the action, as an error message; empty if none is."""
    sizes = {
        "variances": max(solution.architecture.variances),
        "features": float(np.abs(solution.problem.features).max()),
        "labels": float(np.abs(solution.problem.labels).max()),
        "temperature": solution.temperature,
    }
    # NaN if it has overflowed already.
    name, size = max(sizes.items(), key=lambda pair: np.inf if np.isnan(pair[1]) else pair[1])
    return "" if size < OVERFLOW else str(fail(name, f"{size:.3g}", "smaller numbers: the action overflows"))


def reason_for(solution: Solution, tolerance: float) -> str:
    """Why a solution does not count as converged, in a sentence that helps."""
    stats = solution.stats
    if not np.isfinite(solution.action) or not np.isfinite(stats.gradient_norm):
        singular = (
            f"the kernel is singular to rounding at temperature {solution.temperature:g}; try a larger temperature"
        )
        return _overflow(solution) or singular
    if stats.smallest_curvature is not None and stats.smallest_curvature < 0:
        return f"the search ended where the curvature is {stats.smallest_curvature:.3g}, not at a minimum"
    return (
        f"after {stats.evaluations} evaluations the gradient is {stats.gradient_norm:.3g}, not under the tolerance "
        f"{tolerance:g}; try more max_steps, a larger temperature (rounding grows as 1/temperature), or throw=False"
    )

"""The saddle point of the order parameters: the theory in the thermodynamic limit (learning §3)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._validation import fail, nonnegative_number, numbers, one_of, positive_number, traced, true_or_false
from ._entries import instance, step_limit
from .action import Action, hessian_operations, stationary, stationary_value
from .kernels import PAIR_MEMORY, Problem, with_pairs
from .minimise import ROUNDING, Minimum
from .network import Architecture
from .paths import PathFeatures, checked_labels
from .predictor import Predictor, ready_problem, singular_kernel

if TYPE_CHECKING:
    import xarray

METHODS = ("auto", "newton", "limited-memory")
# Largest gradient entry, in whitened coordinates, of the action over (max N + P), at which a minimum counts as found.
TOLERANCE = 1e-8
# The action multiplies a few numbers of this size; float64 ends at 1e308.
OVERFLOW = 1e90
# Operations for one Hessian up to which Newton's method takes over where limited-memory BFGS gave up.
FALLBACK_OPERATIONS = 1e11


class ConvergenceError(RuntimeError):
    """No minimum of the action was found; the message says how far the search came and what to try."""


class Stats(eqx.Module):
    """How a solution was found.

    Fields:
        method: "newton", "limited-memory", one then the other, or "limit" where nothing had to be searched.
        form: the form of the kernel.
        evaluations: evaluations of the action with its derivatives.
        gradient_norm: largest gradient entry of the action over (max N + P) in whitened coordinates.
        smallest_curvature: smallest eigenvalue of the Hessian in the same units; None where it was not formed.
        remaining_gain: what one more Newton step would take off the action over (max N + P); None where not known.
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
    def _must_be_finite(self) -> bool:
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
        throw: raise `ConvergenceError` where no minimum is found; otherwise say so in `converged`.
        correction: "one-loop" adds the correction of order 1/N to order parameters, predictions and evidence, and
            returns a `CorrectedSolution`; none is the saddle itself.
        start: an earlier solution for the same heads to search from, as of a neighbouring width or temperature.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> feats = PathFeatures.from_attentioned_inputs(rng.normal(size=(30, 4, 8)))
        >>> arch, y = Architecture((2, 2), widths=10), np.sign(rng.normal(size=30))
        >>> solution = solve(arch, feats, y, temperature=0.1)
        >>> solution.converged, solution.order_parameter.shape
        (True, (4, 4))
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
    problem = search_problem(arch, features, y, temperature, form, method)
    solution = search(arch, problem, temperature, _start_vector(arch, start), method, tolerance, max_steps)
    converged = traced(solution) or solution.converged
    if throw and not converged:
        raise ConvergenceError(reason_for(solution, tolerance))
    if correction is not None and converged:
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
    problem = ready_problem(arch, features, y, temperature, form)
    nothing: Any = (np.zeros(arch.parameters), 0.0, np.nan, 0, np.nan, np.nan)
    action = Action.of(arch, problem, temperature)
    solution = solution_at(arch, temperature, action, Minimum(*nothing), "limit", TOLERANCE)
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
    action = action_of(checked_solution(solution))
    return np.asarray(_hessian(action, solution.vector) / action.scale)


def action_of(solution: Predictor) -> Action:
    """The action that a solution is a minimum of."""
    return Action.of(solution.architecture, solution.problem, solution.temperature)


def checked_solution(value: Any) -> Solution:
    """A solution, and not something else that was found."""
    return instance("solution", value, Solution, "a Solution, as solve returns it")


def search_problem(
    arch: Architecture, features: PathFeatures, labels: np.ndarray, temperature: float, form: str, method: str
) -> Problem:
    """The prepared data, in a form that the minimiser can use."""
    one_of("method", method, METHODS)
    problem = ready_problem(arch, features, labels, temperature, form)
    if method == "newton" and problem.pairs is None:
        raise fail("method", "'newton'", f"'limited-memory' for {arch.paths} paths: Newton's method needs stored pairs")
    return problem


def search(
    arch: Architecture, problem: Problem, temperature: Any, start: Any, method: str, tolerance: float, max_steps: int
) -> Solution:
    """The minimum of the action that is reached from a whitened vector."""
    action = Action.of(arch, problem, temperature)
    first = action.method if method == "auto" else method
    minimum = action.minimise(start, tolerance, max_steps, first)
    solution = solution_at(arch, temperature, action, minimum, first, tolerance)
    return try_harder(solution, tolerance, max_steps) if method == "auto" else solution


def _start_vector(arch: Architecture, start: Solution | None) -> np.ndarray:
    """Where a search begins, in whitened coordinates: an earlier solution, or the limit of infinite width."""
    if start is None:
        return np.zeros(arch.parameters)
    found = instance("start", start, Solution, "a Solution, as solve returns it").architecture
    if found.layout != arch.layout:
        raise fail("start", f"a solution of {found}", f"one with the heads, outputs and skips of {arch}")
    if not traced(start.vector) and not np.isfinite(start.vector).all():
        raise fail("start", "a solution that is not finite", "a solution that has converged")
    return start.vector


def try_harder(solution: Solution, tolerance: float, max_steps: int) -> Solution:
    """Where limited-memory BFGS gave up (small width and temperature), go on with Newton's method if affordable."""
    if solution.stats.method != "limited-memory" or traced(solution) or solution.converged:
        return solution
    problem, arch = solution.problem, solution.architecture
    size, rows = len(problem.labels), arch.order_sizes[0]
    pairs = rows * (rows + 1) // 2
    affordable = hessian_operations(pairs, size, arch.layout) <= FALLBACK_OPERATIONS
    if not affordable or 8 * pairs * size**2 > PAIR_MEMORY or not np.isfinite(solution.vector).all():
        return solution
    action = action_of(solution)
    ready = replace(action, problem=with_pairs(problem))
    minimum = ready.minimise(solution.vector, tolerance, max_steps, "newton")
    minimum = minimum._replace(evaluations=minimum.evaluations + solution.stats.evaluations)
    return solution_at(arch, solution.temperature, action, minimum, "limited-memory, then newton", tolerance)


@jax.jit
def _hessian(action: Action, vector: Any) -> jax.Array:
    return action.hessian(jnp.asarray(vector))


@partial(jax.jit, static_argnames=("minimum",))
def _values(action: Action, vector: Any, minimum: bool) -> tuple:
    """v, F_1, all U, S, S − E and ln p(y); at a minimum v moves with the action."""
    if minimum:
        vector = stationary(action, vector)
        total = stationary_value(action, vector)
    else:
        total = action(vector)
    factors = action.factors(vector)
    grams = [factor @ factor.T for factor in factors]
    return vector, factors[0], grams, total, action.entropy(vector), action.log_evidence(total)


def solution_at(
    arch: Architecture, temperature: Any, action: Action, minimum: Minimum, method: str, tolerance: float
) -> Solution:
    """The record of where a search ended."""
    found = _values(action, minimum.vector, minimum=method != "limit")
    vector, factor, grams, total, disorder, evidence = numbers(found)
    norm, curvature, gain, evaluations = numbers(
        (minimum.gradient_norm, minimum.smallest_curvature, minimum.remaining_gain, minimum.evaluations)
    )
    # At small width and temperature curvatures differ by orders of magnitude, and rounding in the stiff directions
    # alone exceeds the tolerance: a minimum that a Newton step cannot lower beyond rounding is found all the same.
    # What is not known is NaN, which compares as false.
    finite = jnp.isfinite(total) if traced(total) else np.isfinite(total)
    converged = finite & ((norm <= tolerance) | (gain <= ROUNDING)) & ((curvature > 0) | (curvature != curvature))
    largest = max(arch.widths)
    return Solution(
        architecture=arch,
        temperature=temperature,
        order_parameter=grams[0],
        factor=factor,
        problem=action.problem,
        order_parameters=tuple(grams),
        action=total / largest,
        energy=(total - disorder) / largest,
        entropy=disorder / largest,
        log_evidence=evidence,
        converged=numbers(converged),
        stats=Stats(method, action.problem.form, evaluations, norm, _if_known(curvature), _if_known(gain)),
        vector=vector,
    )


def _if_known(number: Any) -> Any:
    return None if not traced(number) and np.isnan(number) else number


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

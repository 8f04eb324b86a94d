"""Evidence: what a head is worth, and temperature and variances chosen on training data alone (learning §9)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from .._validation import fail, nonnegative_number, real_array, step_limit, true_or_false
from .action import Action, Setting, limited_memory
from .architecture import Architecture
from .kernels import checked_labels, prepare
from .paths import PathFeatures
from .saddle import TOLERANCE, ConvergenceError, Solution, checked_solution, reason_for, search, solve
from .scores import HeadScores, head_labels

# Largest slope of the log evidence over (max N + P), in any coordinate, at which a choice counts as made.
SLOPE = 1e-5
# Every search goes down to the first slope, and the best of them to the second: choices are then exact to about five
# digits.
ROUGH_SLOPE, TARGET_SLOPE = 1e-4, 1e-8
# Gradient at which the saddle that a search starts from is near enough.
ROUGH_SADDLE = 1e-5
# The product of the variances may move this far, in logarithm, from where it is.
REACH = math.log(1e6)


def evidence_scores(
    arch: Architecture, features: PathFeatures, labels: Any, *, temperature: float, solution: Solution | None = None
) -> HeadScores:
    """The log evidence lost when a head is removed and its layer rescaled to the heads left (learning §9).

    A negative score favours removing the head. Without the only head of a layer, what is left is the network whose
    output is zero or, with skips, the network without the layer.

    Arguments:
        solution: of the whole network, if it was solved already.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> xi = rng.normal(size=(30, 2, 8))
        >>> feats = PathFeatures.from_attentioned_inputs(xi)
        >>> scores = evidence_scores(Architecture((2,), 20), feats, np.sign(xi[:, 0, 0]), temperature=0.1)
        >>> scores[0, 0] > scores[0, 1]
        True
    """
    y = checked_labels(arch, features, labels)
    temperature = nonnegative_number("temperature", temperature)
    if solution is None:
        whole = solve(arch, features, y, temperature=temperature)
    else:
        whole = _solution_of(solution, arch, features, temperature)
    paths = arch.path_heads()
    lost = []
    for layer, head in head_labels(arch):
        if arch.heads[layer] == 1 and not arch.skip:
            square = float(np.vdot(y, y) + getattr(features, "rest", 0.0))
            lost.append(whole.log_evidence - _evidence_of_noise(features.observed * arch.outputs, square, temperature))
            continue
        left = features.select(np.flatnonzero(paths[:, layer] != head))
        rest = solve(_without_head(arch, layer), left, y, temperature=temperature)
        lost.append(whole.log_evidence - rest.log_evidence)
    return HeadScores(head_labels(arch), np.array(lost))


def _solution_of(solution: Solution, arch: Architecture, features: PathFeatures, temperature: float) -> Solution:
    """The solution, if its architecture, temperature and number of labels are those of this problem."""
    if checked_solution(solution).infinite_width:
        raise fail("solution", "the limit of infinite width", "a minimum of the action, as solve returns it")
    if solution.architecture != arch:
        raise fail("solution", solution.architecture, f"one of {arch}")
    if solution.temperature != temperature:
        raise fail("solution", f"temperature {solution.temperature:g}", f"{temperature:g}")
    if solution.problem.observations != (count := features.observed * arch.outputs):
        raise fail("solution", f"{solution.problem.observations} labels", f"{count}")
    return solution


def _without_head(arch: Architecture, layer: int) -> Architecture:
    """The architecture with one head less in a layer, or without the layer if that was its last and skips remain."""
    if arch.heads[layer] > 1:
        return arch.replace(heads=tuple(count - (index == layer) for index, count in enumerate(arch.heads)))
    if arch.layers == 1:
        raise fail("arch", "one head in all", "at least two heads: without its last head nothing of it is left")
    heads, widths, variances = list(arch.heads), list(arch.widths), list(arch.variances)
    del heads[layer], widths[layer], variances[layer + 1]
    return arch.replace(heads=heads, widths=widths, variances=variances)


@dataclass(frozen=True, eq=False)
class EvidenceChoice:
    """Temperature and variances that maximise the evidence, and the solution there.

    Fields:
        temperature, architecture: the choice.
        solution: `solve` at the choice.
        at_bound: whether the temperature or the scale ended at the edge of the range allowed.
    """

    temperature: float
    architecture: Architecture
    solution: Solution
    at_bound: bool


def choose_by_evidence(
    arch: Architecture,
    features: PathFeatures,
    labels: Any,
    *,
    temperature: float = 0.1,
    variances: bool = True,
    temperature_range: tuple[float, float] = (1e-6, 1e3),
    form: str = "auto",
    max_steps: int = 5000,
) -> EvidenceChoice:
    """Choose τ, and the product of the prior variances, by the log evidence of the training data (learning §9).

    In whitened coordinates only the product σ0² σ1² .. σa² enters the kernel, so the evidence cannot tell one variance
    from another: the product is chosen and spread evenly over the layers. With skips a path collects only the
    variances of the layers where it attends: then σ1²..σL² and σa² are chosen each, and σ0² stays. Order parameters,
    ln τ and the logarithms of the variances are optimised together: at a saddle the total and the partial derivative
    of the evidence are the same. The search starts twice, from the Gaussian process and from the saddle at the first
    τ, and continues from the higher evidence: the first alone may end where labels are all noise, though a network that
    has learned explains them better. There may still be a higher maximum that neither search finds.

    Arguments:
        temperature: where the search starts.
        variances: choose the variances too, not τ alone.
        temperature_range: smallest and largest τ allowed.
        form: form of the kernel: "auto", "pairs", "features" or "dual".
        max_steps: most steps of each search; `ConvergenceError` if they do not suffice.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> xi = rng.normal(size=(200, 2, 3))
        >>> y = xi[:, 0] @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=200)
        >>> feats = PathFeatures.from_attentioned_inputs(xi)
        >>> choice = choose_by_evidence(Architecture((2,), 100), feats, y)
        >>> 0.2 < choice.temperature < 0.3
        True
    """
    y = checked_labels(arch, features, labels)
    variances = true_or_false("variances", variances)
    ends = real_array("temperature_range", temperature_range)
    if ends.shape != (2,) or not 0 < ends[0] < ends[1]:
        raise fail("temperature_range", temperature_range, "two numbers above 0, the smaller first")
    low, high = float(ends[0]), float(ends[1])
    start, max_steps = nonnegative_number("temperature", temperature), step_limit(max_steps)
    if not low <= start <= high:
        raise fail("temperature", start, f"a number from {low:g} to {high:g}, the range allowed")
    problem = prepare(arch, features, y, form, low)
    first = Action.of(arch, problem, start)
    reach = np.array([math.log(high / low) / 2] + [REACH] * (len(first.setting.scales) if arch.skip else 1))
    allowed = _Allowed(first.setting, math.log(low * high) / 2, reach, variances)
    knobs = np.zeros(len(reach))
    knobs[0] = reach[0] * math.asin(np.clip((math.log(start) - allowed.middle) / reach[0], -0.999, 0.999))
    limit = np.zeros(arch.parameters)
    saddle = first.minimise(limit, ROUGH_SADDLE, 200, first.method).vector
    starts = [np.concatenate([vector, knobs]) for vector in (limit, saddle) if np.isfinite(vector).all()]
    rough = [_climb(first, allowed, start, ROUGH_SLOPE, max_steps) for start in starts]
    # NaN where the kernel is singular to rounding.
    best = min(rough, key=lambda end: np.nan_to_num(end[0], nan=np.inf))
    _, slope, place = _climb(first, allowed, best[2], TARGET_SLOPE, max_steps)
    # The search may wander for ever on a plateau (labels of pure noise); what counts is that nothing is left to gain.
    if not slope <= SLOPE:
        raise ConvergenceError(
            f"after {max_steps} steps the evidence over (max N + P) still has a slope of {float(slope):.3g}, over "
            f"{SLOPE:g}; try more max_steps, another starting temperature, or a smaller temperature_range"
        )
    vector, knobs = np.split(np.asarray(place), [arch.parameters])
    setting = allowed.setting(jnp.asarray(knobs))
    chosen = float(setting.temperature)
    if arch.skip:
        architecture = arch.replace(variances=(arch.variances[0], *(np.asarray(setting.scales) ** 2).tolist()))
    else:
        factor = float(jnp.prod((setting.scales / allowed.base.scales) ** 2)) ** (1 / len(arch.variances))
        architecture = arch.replace(variances=tuple(variance * factor for variance in arch.variances))
    edges = np.abs(np.sin(knobs / reach))[: None if variances else 1]
    ready = prepare(architecture, features, y, form, chosen)
    solution = search(architecture, ready, chosen, vector, "auto", TOLERANCE, max_steps)
    if not solution.converged:
        raise ConvergenceError(reason_for(solution, TOLERANCE))
    return EvidenceChoice(chosen, architecture, solution, bool((edges > 0.999).any()))


def limit_choice(kernel: np.ndarray, labels: np.ndarray) -> tuple[float, float, bool]:
    """The factor c and the temperature τ with the highest evidence of labels ~ N(0, cK + τI).

    Both are looked for as far as `choose_by_evidence` does. From the eigenvectors of K an evidence costs P operations,
    so that a grid finds the hill and a search its top.

    Returns:
        c, τ, and whether one of them is at the edge of what is allowed.

    Example:
        >>> kernel = np.diag(np.where(np.arange(400) < 200, 1.0, 0.0))
        >>> labels = np.sqrt(2 * np.diag(kernel) + 0.5)
        >>> factor, temperature, at_bound = limit_choice(kernel, labels)
        >>> round(factor, 2), round(temperature, 2), at_bound
        (2.0, 0.5, False)
    """
    eigenvalues, vectors = np.linalg.eigh(kernel)
    squares = (vectors.T @ labels) ** 2

    def loss(place: np.ndarray) -> float:
        variance = np.exp(place[0]) * np.maximum(eigenvalues, 0) + np.exp(place[1])
        return float(np.log(variance).sum() + (squares / variance).sum())

    bounds = np.log([[1e-6, 1e6], [1e-6, 1e3]])
    grid = itertools.product(*(np.linspace(low, high, 49) for low, high in bounds))
    start = min(grid, key=lambda place: loss(np.array(place)))
    place = minimize(loss, start, bounds=bounds, options={"ftol": 1e-14}).x
    return float(np.exp(place[0])), float(np.exp(place[1])), bool(np.isclose(place[:, None], bounds, atol=0.05).any())


class _Allowed(eqx.Module):
    """The settings that the search may choose, as a function of unbounded knobs.

    A knob k with reach r moves a logarithm by r sin(k/r): every k is allowed, and near the middle k is the logarithm
    itself, which has the size of the whitened coordinates beside it.
    """

    base: Setting
    middle: Any  # ln τ where its knob is 0
    reach: Any  # of ln τ, and of the logarithm of each product of variances, [knob]
    variances: bool = eqx.field(static=True)

    def setting(self, knobs: jax.Array) -> Setting:
        moved = self.reach * jnp.sin(knobs / self.reach)
        scales = jnp.asarray(self.base.scales)
        if self.variances:
            scales = scales * jnp.exp(moved[1:] / 2 / len(scales))
        return Setting(self.base.widths, scales, jnp.exp(self.middle + moved[0]))


@jax.jit
def _climb(
    first: Action, allowed: _Allowed, start: Any, slope: float, max_steps: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The end of a search: −log evidence over its scale, its largest slope, and the place; compiled once per shape."""
    count = first.layout.count

    def loss(point: jax.Array) -> jax.Array:
        action = replace(first, setting=allowed.setting(point[count:]))
        return -action.log_evidence(action(point[:count])) / first.scale

    found = limited_memory(loss, jnp.asarray(start), tolerance=slope, max_steps=max_steps)
    return loss(found.vector), found.gradient_norm, found.vector


def _evidence_of_noise(observations: int, square: float, temperature: float) -> float:
    """ln p(y) of a network whose output is zero, with |y|² = square."""
    if temperature == 0:
        return -math.inf
    return -0.5 * (observations * math.log(2 * math.pi * temperature) + square / temperature)

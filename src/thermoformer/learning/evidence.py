"""Evidence: what a head is worth, and temperature and variances chosen on training data alone (learning §9)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._validation import fail, labels_for, nonnegative_number, positive_integer
from .action import Setting, action, log_evidence
from .network import Architecture
from .paths import PathFeatures
from .predictor import ready_problem
from .saddle import ConvergenceError, Solution, solve
from .scores import HeadScores, head_labels

# Largest slope of the log evidence over (max N + P), in any coordinate, at which a choice counts as made.
SLOPE = 1e-5


def evidence_scores(
    arch: Architecture, features: PathFeatures, labels: Any, *, temperature: float, solution: Solution | None = None
) -> HeadScores:
    """The log evidence lost when a head is removed and its layer rescaled to the heads left (learning §9).

    A negative score says that the data prefer the network without the head. Where a layer has one head only, what is
    left without it is the network whose output is zero or, with skips, the network without the layer.

    Arguments:
        solution: of the whole network, where it was solved already.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> xi = rng.normal(size=(40, 2, 5))
        >>> feats = PathFeatures.from_attentioned_inputs(xi)
        >>> scores = evidence_scores(Architecture((2,), 20), feats, np.sign(xi[:, 0, 0]), temperature=0.1)
        >>> scores[0, 0] > scores[0, 1]
        True
    """
    y = labels_for("labels", labels, features.examples, arch.outputs)
    temperature = nonnegative_number("temperature", temperature)
    whole = solution or solve(arch, features, y, temperature=temperature)
    paths = arch.path_heads()
    lost = []
    for layer, head in head_labels(arch):
        if arch.heads[layer] == 1 and not arch.skip:
            lost.append(whole.log_evidence - _evidence_of_noise(y, temperature))
            continue
        left = features.select(np.flatnonzero(paths[:, layer] != head))
        rest = solve(_without_head(arch, layer), left, y, temperature=temperature)
        lost.append(whole.log_evidence - rest.log_evidence)
    return HeadScores(head_labels(arch), np.array(lost))


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
    of the evidence are the same.

    Arguments:
        temperature: where the search starts.
        variances: choose the variances too, not τ alone.
        temperature_range: smallest and largest τ allowed.
        form: form of the kernel: "auto", "pairs", "features" or "dual".
        max_steps: most steps of the search; more would be needed than this: `ConvergenceError`.

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
    import optimistix

    y = labels_for("labels", labels, features.examples, arch.outputs)
    low, high = (nonnegative_number("temperature_range", bound) for bound in temperature_range)
    if not 0 < low < high:
        raise fail("temperature_range", temperature_range, "two numbers above 0, the smaller first")
    start, max_steps = nonnegative_number("temperature", temperature), positive_integer("max_steps", max_steps)
    if not low <= start <= high:
        raise fail("temperature", start, f"a number from {low:g} to {high:g}, the range allowed")
    problem = ready_problem(arch, features, y, low, form)
    base = Setting.of(arch, start)
    scale = max(arch.widths) + features.examples * arch.outputs
    reach = math.log(1e6)  # the product may move this far, in logarithm, from where it is
    knob_count = len(base.scales) if arch.skip else 1

    def setting_at(knobs: jax.Array) -> Setting:
        # Bounded by a sine, so that every step of the search is allowed.
        middle, half = math.log(low * high) / 2, math.log(high / low) / 2
        spread = jnp.exp(reach * jnp.sin(knobs[1:]) / 2 / len(base.scales)) if variances else 1.0
        return Setting(base.widths, base.scales * spread, jnp.exp(middle + half * jnp.sin(knobs[0])))

    def loss(point: tuple[jax.Array, jax.Array], _: Any) -> jax.Array:
        vector, knobs = point
        setting = setting_at(knobs)
        total = action(vector, problem, arch.layout, setting)
        return -log_evidence(total, problem.observations, arch.layout, setting) / scale

    place = (2 * math.log(start) - math.log(low * high)) / math.log(high / low)
    knobs = jnp.asarray([math.asin(np.clip(place, -0.999, 0.999))] + [0.0] * knob_count)
    first = (jnp.zeros(arch.parameters), knobs)
    small = arch.parameters <= 200
    solver = (optimistix.BFGS if small else optimistix.LBFGS)(rtol=1e-7, atol=1e-7)
    found = optimistix.minimise(loss, solver, first, max_steps=max_steps, throw=False).value
    # The search may wander for ever on a plateau (labels of pure noise); what counts is that nothing is left to gain.
    slope = max(float(jnp.abs(part).max()) for part in jax.grad(loss)(found, None))
    if not slope <= SLOPE:
        raise ConvergenceError(
            f"after {max_steps} steps the evidence over (max N + P) still has a slope of {slope:.3g}, over {SLOPE:g}; "
            "try more max_steps, another starting temperature, or a smaller temperature_range"
        )
    setting = setting_at(found[1])
    chosen = float(setting.temperature)
    if arch.skip:
        architecture = arch.replace(variances=(arch.variances[0], *(np.asarray(setting.scales) ** 2).tolist()))
    else:
        factor = float(jnp.prod((setting.scales / base.scales) ** 2)) ** (1 / len(arch.variances))
        architecture = arch.replace(variances=tuple(variance * factor for variance in arch.variances))
    edges = np.abs(np.sin(np.asarray(found[1])))[: None if variances else 1]
    solution = solve(architecture, features, y, temperature=chosen, form=form)
    return EvidenceChoice(chosen, architecture, solution, bool((edges > 0.999).any()))


def _evidence_of_noise(labels: np.ndarray, temperature: float) -> float:
    """ln p(y) of a network whose output is zero."""
    if temperature == 0:
        return -math.inf
    return -0.5 * (labels.size * math.log(2 * math.pi * temperature) + float(np.vdot(labels, labels)) / temperature)

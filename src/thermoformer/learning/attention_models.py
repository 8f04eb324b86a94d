"""Attention that learns: its parameters θ at the maximum of log evidence + log prior (learning §9).

Attention of every layer reads the bare tokens, so given θ the theory is that of given heads, and the log evidence
ln p(y | θ) is a differentiable function of θ. Order parameters and θ are searched together, as in `choose_by_evidence`:
at a minimum of the action the total and the partial derivative of the evidence are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from .._keys import KeyLike, as_key, standard_normal
from .._notebook import Result
from .._validation import (
    fail,
    instance,
    labels_for,
    nonnegative_integer,
    numbers,
    one_of,
    positive_integer,
    positive_number,
    real_array,
    step_limit,
    traced,
    true_or_false,
)
from .action import Action, Minimum, Setting, limited_memory, newton
from .architecture import Architecture, Layout, checked_architecture
from .attention import attention_from_logits, bilinear_logits, query_key_logits
from .kernels import FORMS, choose_form, prepare
from .paths import READOUTS, PathFeatures, attentioned_inputs
from .results import Prediction
from .saddle import TOLERANCE, ConvergenceError, Solution, gaussian_process, reason_for, search

NORMALISATIONS = ("softmax", "linear")
THEORIES = ("saddle", "gaussian process")
# Largest slope of the objective over its scale, in any whitened coordinate, at which a start has converged.
SLOPE = 1e-6
# Most steps of a start at each of the higher temperatures that it passes.
ANNEALING_STEPS = 100
# Up to this many numbers, order parameters included, the Hessian of the objective is formed.
HESSIAN_SIZE = 300
# Most steps of Newton's method from the end of the best start.
NEWTON_STEPS = 100
# Curvature at a maximum, in units of the prior's own, under which a direction is flat: the maximum is then no point.
FLAT = 1e-3


class AttentionModel(eqx.Module):
    """Attention of every layer as a function of parameters θ, with independent normal priors of mean 0.

    θ is any pytree of arrays. `bilinear`, `low_rank` and `positional_semantic` make the usual models.

    Arguments:
        function: (θ, tokens [example, token, feature]) → logits [example, head, query, key], one array per layer,
            first layer first; a function that JAX can differentiate.
        scales: prior standard deviations, a pytree with the shape of θ.
        normalisation: "softmax" over keys, or "linear": attention is the logit over the number of keys that the query
            sees. Linear attention may be negative, and its rows need not sum to 1.
        causal: a query sees its own position and earlier ones only.

    Example:
        >>> import numpy as np
        >>> late = lambda theta, x: [theta["slope"] * (np.ones((len(x), 1, 3, 3)) * np.arange(3.0))]
        >>> model = AttentionModel(late, {"slope": 2.0})
        >>> model.attention({"slope": 1.0}, np.zeros((5, 3, 2)))[0][0, 0, -1].round(2).tolist()
        [0.09, 0.24, 0.67]
    """

    function: Callable[[Any, Any], Any] = eqx.field(static=True)
    scales: Any
    normalisation: str = eqx.field(static=True)
    causal: bool = eqx.field(static=True)

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        scales: Any,
        *,
        normalisation: str = "softmax",
        causal: bool = False,
    ) -> None:
        if not callable(function):
            raise fail("function", repr(function), "a function of θ and tokens")
        self.function = function
        self.scales = jax.tree.map(partial(real_array, "scales"), scales)
        if not jax.tree.leaves(self.scales):
            raise fail("scales", "no parameters", "at least one number")
        if not traced(self.scales) and min(leaf.min() for leaf in jax.tree.leaves(self.scales)) <= 0:
            raise fail("scales", "a number that is not above 0", "standard deviations above 0")
        self.normalisation = one_of("normalisation", normalisation, NORMALISATIONS)
        self.causal = true_or_false("causal", causal)

    @classmethod
    def bilinear(cls, heads: Any, token_width: int, *, scale: float = 1.0, **options: Any) -> AttentionModel:
        """Logits x_qᵀ W x_k with a full W per head; θ is {"weights": W [head, feature, feature]} for each layer.

        Arguments:
            heads: heads of each layer.
            token_width: N0.
            scale: prior standard deviation of the logits for tokens whose entries have variance 1.
            options: `normalisation` and `causal`.

        Example:
            >>> AttentionModel.bilinear((2, 1), token_width=5).parameters
            75
        """
        return cls._of_kinds(heads, options, lambda count: _semantic_scales(count, token_width, None, scale))

    @classmethod
    def low_rank(cls, heads: Any, token_width: int, rank: int, *, scale: float = 1.0, **options: Any) -> AttentionModel:
        """Logits (Q x_q)·(K x_k)/√r; θ is {"queries": Q, "keys": K [head, r, feature]} for each layer.

        Arguments:
            rank: r, the components of a query and of a key.
            heads, token_width, scale, options: as in `bilinear`.

        Example:
            >>> AttentionModel.low_rank((1,), token_width=5, rank=1).parameters
            10
        """
        rank = positive_integer("rank", rank)
        return cls._of_kinds(heads, options, lambda count: _semantic_scales(count, token_width, rank, scale))

    @classmethod
    def positional_semantic(
        cls,
        heads: Any,
        tokens: int,
        token_width: int,
        rank: int | None = None,
        *,
        position_scale: float = 1.0,
        scale: float = 1.0,
        **options: Any,
    ) -> AttentionModel:
        """Logits of positions, {"positions": B [head, query, key]} in θ, plus those of `bilinear` or `low_rank`.

        Arguments:
            tokens: T, the tokens of every example.
            rank: r of the low-rank part; default: a full W.
            position_scale: prior standard deviation of B.
            heads, token_width, scale, options: as in `bilinear`.

        Example:
            >>> AttentionModel.positional_semantic((1,), tokens=4, token_width=5, rank=1).parameters
            26
        """
        tokens, rank = positive_integer("tokens", tokens), None if rank is None else positive_integer("rank", rank)
        deviation = positive_number("position_scale", position_scale)

        def scales(count: int) -> dict[str, Any]:
            positions = np.full((count, tokens, tokens), deviation)
            return {"positions": positions} | _semantic_scales(count, token_width, rank, scale)

        return cls._of_kinds(heads, options, scales)

    @classmethod
    def _of_kinds(cls, heads: Any, options: dict[str, Any], scales: Callable[[int], Any]) -> AttentionModel:
        layers = (heads,) if np.ndim(heads) == 0 else tuple(heads)
        return cls(_usual_logits, tuple(scales(positive_integer("heads", count)) for count in layers), **options)

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.scales))

    def draw(self, key: KeyLike) -> Any:
        """Parameters θ drawn from the prior."""
        return self.parameters_of(standard_normal(as_key(key), (self.parameters,)))

    def log_prior(self, theta: Any) -> Float[Array, ""]:
        """ln p(θ), normalised."""
        return _log_prior(self, self._checked(theta))

    def logits(self, theta: Any, x: Any) -> tuple[Float[Array, "example head query key"], ...]:
        """The logits of every layer."""
        x = real_array("x", x, ("example", "token", "feature"))
        layers = self.function(self._checked(theta), x)
        if hasattr(layers, "shape"):
            raise fail("function", f"one array of shape {layers.shape}", "a sequence with one array per layer")
        examples, tokens, _ = x.shape
        for layer in layers:
            if np.ndim(layer) != 4 or (layer.shape[0], *layer.shape[2:]) != (examples, tokens, tokens):
                raise fail("function", f"logits of shape {np.shape(layer)}", f"[{examples}, head, {tokens}, {tokens}]")
        return tuple(jnp.asarray(layer, dtype=float) for layer in layers)

    def attention(self, theta: Any, x: Any) -> tuple[Float[Array, "example head query key"], ...]:
        """The attention of every layer to the given tokens.

        Arguments:
            theta: θ, with the structure of `scales`.
            x: tokens [example, token, feature].
        """
        return tuple(self._normalised(layer) for layer in self.logits(theta, x))

    def features(self, theta: Any, x: Any, *, readout: str = "last", skip: bool = False) -> PathFeatures:
        """The attentioned inputs of the given tokens; under `jax.jit`, `jax.vmap` and `jax.grad` too.

        Unlike `PathFeatures.from_attention` this takes linear attention, whose rows need not sum to 1.

        Arguments:
            theta: θ, with the structure of `scales`.
            x: tokens [example, token, feature].
            readout, skip: as in `PathFeatures.from_attention`.
        """
        x = real_array("x", x, ("example", "token", "feature"))
        readout, skip = one_of("readout", readout, READOUTS), true_or_false("skip", skip)
        return PathFeatures.from_attentioned_inputs(_inputs(self, self._checked(theta), x, readout, skip))

    def parameters_of(self, whitened: Any) -> Any:
        """θ from its numbers in units of their prior standard deviations, [parameter]."""
        deviations, shaped = ravel_pytree(self.scales)
        return shaped(deviations * whitened)

    def _checked(self, theta: Any) -> Any:
        theta = jax.tree.map(partial(real_array, "theta"), theta)
        wanted, found = (jax.tree.map(np.shape, tree) for tree in (self.scales, theta))
        if wanted != found:
            raise fail("theta", f"arrays of shapes {found}", f"{wanted}, as in scales")
        return theta

    def _normalised(self, logits: Array) -> Array:
        if self.normalisation == "softmax":
            return attention_from_logits(logits, causal=self.causal)
        tokens = logits.shape[-1]
        seen = np.tril(np.ones((tokens, tokens))) if self.causal else np.ones((tokens, tokens))
        return logits * (seen / seen.sum(axis=1, keepdims=True))[None, None]


def _semantic_scales(heads: int, token_width: int, rank: int | None, scale: float) -> dict[str, Any]:
    """Prior standard deviations at which the logits of tokens with entries of variance 1 have that of `scale`."""
    width, scale = positive_integer("token_width", token_width), positive_number("scale", scale)
    if rank is None:
        return {"weights": np.full((heads, width, width), scale / width)}
    return {name: np.full((heads, rank, width), math.sqrt(scale / width)) for name in ("queries", "keys")}


def _usual_logits(theta: Any, x: Array) -> list[Array]:
    """The logits of `bilinear`, `low_rank` and `positional_semantic`, by what θ names."""
    layers = []
    for layer in theta:
        semantic = [layer[name] for name in ("weights", "queries", "keys") if name in layer]
        if semantic[0].shape[-1] != x.shape[2]:
            raise fail("x", f"token width {x.shape[2]}", f"{semantic[0].shape[-1]}, that of the model")
        logits = bilinear_logits(x, *semantic) if "weights" in layer else query_key_logits(x, *semantic)
        if "positions" in layer:
            if layer["positions"].shape[1] != x.shape[1]:
                raise fail("x", f"{x.shape[1]} tokens", f"{layer['positions'].shape[1]}, those of the model")
            logits = logits + layer["positions"][None]
        layers.append(logits)
    return layers


@jax.jit
def _log_prior(model: AttentionModel, theta: Any) -> Array:
    normal = jax.tree.map(
        lambda number, scale: jax.scipy.stats.norm.logpdf(number, scale=scale).sum(), theta, model.scales
    )
    return sum(jax.tree.leaves(normal), jnp.zeros(()))


# JIT-compiled once per shape; run eagerly, every operation would compile separately.
@partial(jax.jit, static_argnames=("readout", "skip"))
def _inputs(model: AttentionModel, theta: Any, x: Array, readout: str, skip: bool) -> Array:
    return attentioned_inputs(x, model.attention(theta, x), readout, skip)


@dataclass(frozen=True, eq=False, repr=False)
class LearnedAttention(Result):
    """A maximum of log evidence + log prior over the parameters θ of attention, and the solution there.

    Fields:
        model: of the attention.
        readout: the query position of the top layer.
        theta: θ of the best start.
        solution: the theory with the attention of θ.
        objective: ln p(y | θ) + ln p(θ).
        converged: whether θ is a maximum.
        covariance: of the Laplace approximation of p(θ | y), [parameter, parameter] in the order of
            `jax.flatten_util.ravel_pytree(theta)`; None if θ is no maximum, one of a continuum of equal ones (of low
            rank 2 or more, whose components turn), or has too many numbers.
        laplace_evidence: ln ∫ p(y | θ) p(θ) dθ in the same approximation: of this maximum alone, and so without the
            equal maxima that exist by symmetry. None as above.
        ends: θ where each start ended, with an axis `start` in front of each array.
        objectives: there [start], NaN where the search failed.
        starts_converged: whether each start reached the tolerance, [start].
    """

    model: AttentionModel
    readout: str
    theta: Any
    solution: Solution
    objective: float
    converged: bool
    covariance: np.ndarray | None
    laplace_evidence: float | None
    ends: Any
    objectives: np.ndarray
    starts_converged: np.ndarray

    def attention(self, x: Any) -> tuple[Float[Array, "example head query key"], ...]:
        """The learned attention of every layer to the given tokens [example, token, feature]."""
        return self.model.attention(self.theta, x)

    def features(self, x: Any) -> PathFeatures:
        """The attentioned inputs of the given tokens [example, token, feature]."""
        return self.model.features(self.theta, x, readout=self.readout, skip=self.solution.architecture.skip)

    def predict(self, x: Any) -> Prediction:
        """Mean and variance of the output for new tokens [example, token, feature], at this θ."""
        return self.solution.predict(self.features(x))

    def summary(self) -> dict[str, Any]:
        """The solution, the number of parameters, and the maximum."""
        starts = f"{np.count_nonzero(self.starts_converged)} of {len(self.objectives)}"
        found = {"objective": self.objective, "converged": self.converged, "starts_converged": starts}
        return {**self.solution.summary(), "parameters": self.model.parameters, **found}


def learn_attention(
    model: AttentionModel,
    arch: Architecture,
    x: Any,
    y: Any,
    *,
    temperature: float,
    key: KeyLike,
    theory: str = "saddle",
    starts: int = 8,
    annealing: int = 0,
    readout: str = "last",
    form: str = "auto",
    tolerance: float = SLOPE,
    max_steps: int = 1000,
    throw: bool = True,
) -> LearnedAttention:
    """Attention at the maximum of ln p(y | θ) + ln p(θ) over its parameters θ (learning §9).

    Starts are drawn from the prior of θ. Limited-memory BFGS climbs from each, and Newton's method continues from the
    highest end if θ and order parameters together have at most 300 numbers. The highest end need not be the highest
    maximum: compare `objectives`, and try more starts.

    Arguments:
        x: tokens [example, token, feature].
        y: labels [example], or [example, output].
        temperature: τ > 0.
        theory: "saddle", whose evidence is that of `solve`, or "gaussian process", the limit of infinite width.
        starts: the number of starts; one after another on a CPU, elsewhere side by side (vmap).
        annealing: how many higher temperatures every start passes first, from the mean square of the labels down to τ
            in equal ratios. Try 4 where starts end far apart: at high temperature there are fewer maxima.
        readout: the query position of the top layer: "last", "first" or "mean".
        form: form of the kernel during the search. "dual" needs linearly independent features of all paths, so "auto"
            is "pairs" or "features".
        tolerance: largest slope of the objective, in units of the prior standard deviations, over max N + P (over P
            for the Gaussian process).
        max_steps: most steps of each start.
        throw: raise `ConvergenceError` if the best start did not end at a maximum; otherwise `converged` is False.

    Example:
        >>> import numpy as np
        >>> def logits(theta, x):
        ...     seen = x @ theta["q"]  # one head whose query is its key
        ...     return [2 / x.shape[2] * seen[:, None, :, None] * seen[:, None, None, :]]
        >>> rng = np.random.default_rng(0)
        >>> x, arch = rng.normal(size=(48, 4, 6)), Architecture((1,), widths=20)
        >>> model = AttentionModel(logits, {"q": np.ones(6)})
        >>> q = model.draw(0)["q"]
        >>> y = model.features({"q": q}, x).values[:, 0] @ rng.normal(size=6) + 0.1 * rng.normal(size=48)
        >>> options = {"temperature": 0.01, "theory": "gaussian process", "key": 0}
        >>> learned = learn_attention(model, arch, x, y, **options)
        >>> found = learned.theta["q"]
        >>> bool(abs(found @ q) > 0.95 * np.linalg.norm(found) * np.linalg.norm(q))
        True
        >>> learned.covariance.shape, learned.predict(x).mean.shape
        ((6, 6), (48,))
    """
    one_of("theory", theory, THEORIES)
    data = AttentionData.of(model, arch, x, y, temperature, theory, readout, form)
    model, arch, x, y, temperature = data.model, data.arch, data.x, data.y, data.temperature
    starts, tolerance = positive_integer("starts", starts), positive_number("tolerance", tolerance)
    annealing = nonnegative_integer("annealing", annealing)
    max_steps, throw = step_limit(max_steps), true_or_false("throw", throw)
    target = _Target(data)

    drawn = np.asarray(standard_normal(as_key(key), (starts, model.parameters)))
    first = np.concatenate([np.zeros((starts, data.order_parameters)), drawn], axis=1)
    batch = None if jax.default_backend() == "cpu" else starts
    for higher in np.geomspace(max(float(np.mean(y**2)), temperature), temperature, annealing + 1)[:-1]:
        warmer = _Target(replace(data, temperature=float(higher)))
        first = climb(warmer, first, tolerance, ANNEALING_STEPS, batch)[0]
    points, objectives, slopes = numbers(climb(target, first, tolerance, max_steps, batch))
    objectives = np.where(np.isfinite(objectives), objectives, np.nan)
    if np.isnan(objectives).all():
        expected = "a larger number: the log evidence is not finite at any start"
        raise fail("temperature", temperature, expected)
    best = int(np.nanargmax(objectives))
    point, slope, laplace = points[best], slopes[best], None
    converged = bool(slope <= tolerance)
    if len(point) <= HESSIAN_SIZE:
        minimum = _polished(target, point, min(tolerance, TOLERANCE), NEWTON_STEPS)
        point, slope = np.asarray(minimum.vector), float(minimum.gradient_norm)
        curvature = target.scale * float(minimum.smallest_curvature)
        converged = slope <= tolerance and curvature > -FLAT
        laplace = _laplace(target, minimum) if converged and curvature > FLAT else None
    if throw and not converged:
        raise ConvergenceError(
            f"the best of {starts} starts ended where the objective has a slope of {slope:.3g}, not at a maximum "
            f"within {tolerance:g}; try more max_steps or starts, or throw=False"
        )
    vector, theta = numbers(data.parts(point))
    features = data.features(theta, x)
    if theory == "saddle":
        problem = prepare(arch, features, y, "auto", temperature)
        solution = search(arch, problem, temperature, vector, "auto", TOLERANCE, max_steps)
        if throw and not solution.converged:
            raise ConvergenceError(reason_for(solution, TOLERANCE))
        converged = converged and bool(solution.converged)
    else:
        solution = gaussian_process(arch, features, y, temperature=temperature)
    objective = solution.log_evidence + float(model.log_prior(theta))
    covariance, evidence = (None, None) if laplace is None else (laplace[0], objective + laplace[1])
    ends = numbers(jax.vmap(data.parts)(points)[1])
    return LearnedAttention(
        model=model,
        readout=readout,
        theta=theta,
        solution=solution,
        objective=objective,
        converged=converged,
        covariance=covariance,
        laplace_evidence=evidence,
        ends=ends,
        objectives=objectives,
        starts_converged=slopes <= tolerance,
    )


class AttentionData(eqx.Module):
    """The training data of attention that learns, checked, and the action given θ.

    A point is one vector of numbers: the order parameters, then whitened θ. In the limit of infinite width order
    parameters are fixed, and a point is θ alone.
    """

    model: AttentionModel
    arch: Architecture
    x: Any
    y: Any
    temperature: Any
    theory: str = eqx.field(static=True)  # "saddle", "exact" (at finite width) or "gaussian process"
    readout: str = eqx.field(static=True)
    form: str = eqx.field(static=True)

    @classmethod
    def of(
        cls, model: Any, arch: Any, x: Any, y: Any, temperature: Any, theory: str, readout: str, form: str
    ) -> AttentionData:
        """The data of a user's arguments."""
        arch, model = checked_architecture(arch), instance("model", model, AttentionModel, "an AttentionModel")
        x = real_array("x", x, ("example", "token", "feature"))
        y = labels_for("y", y, len(x), arch.outputs)
        temperature = positive_number("temperature", temperature)
        one_of("readout", readout, READOUTS)
        one_of("form", form, FORMS)
        heads = tuple(layer.shape[1] for layer in jax.eval_shape(model.logits, model.scales, x))
        if heads != arch.heads:
            raise fail("model", f"heads {heads}", f"{arch.heads}, those of the architecture")
        if form == "auto":
            # Features as wide as the examples are many: a form other than the dual one.
            form = choose_form(len(x), arch.paths, max(len(x), x.shape[2]), arch.outputs)
        return cls(model, arch, x, y, temperature, theory, readout, form)

    @property
    def order_parameters(self) -> int:
        """How many numbers of a point are order parameters."""
        return 0 if self.theory == "gaussian process" else self._layout.count

    @property
    def _layout(self) -> Layout:
        return self.arch.finite_layout if self.theory == "exact" else self.arch.layout

    def parts(self, point: Any) -> tuple[Float[Array, " parameter"], Any]:
        """The vector of order parameters, and θ, of a point [number]."""
        order, whitened = jnp.split(point, [self.order_parameters])
        limit = jnp.zeros(self._layout.count)
        return limit if self.theory == "gaussian process" else order, self.model.parameters_of(whitened)

    def features(self, theta: Any, x: Any) -> PathFeatures:
        """The attentioned inputs of tokens [example, token, feature]."""
        return self.model.features(theta, x, readout=self.readout, skip=self.arch.skip)

    def action(self, theta: Any) -> Action:
        """The action of the order parameters given θ."""
        problem = prepare(self.arch, self.features(theta, self.x), self.y, self.form, self.temperature)
        return replace(self.prior, problem=problem)

    @property
    def prior(self) -> Action:
        """The action without data."""
        return Action(None, Setting.of(self.arch, self.temperature), self._layout)


class _Target(eqx.Module):
    """−[ln p(y | θ) + ln p(θ)] over its scale, at a point."""

    data: AttentionData

    @property
    def scale(self) -> int:
        """The size of the objective: max N + P, or P where the width does not count."""
        return np.size(self.data.y) + (max(self.data.arch.widths) if self.data.theory == "saddle" else 0)

    def __call__(self, point: Float[Array, " number"]) -> Float[Array, ""]:
        vector, theta = self.data.parts(point)
        action = self.data.action(theta)
        return -(action.log_evidence(action(vector)) + self.data.model.log_prior(theta)) / self.scale


@partial(jax.jit, static_argnames="batch")
def climb(
    target: Any, starts: Any, tolerance: Any, max_steps: Any, batch: int | None
) -> tuple[Float[Array, "start number"], Float[Array, " start"], Float[Array, " start"]]:
    """The end of the search from each start: the point, the objective and its largest slope.

    `target` is a function of a point to be minimised, over its `scale`.
    """

    def end(start: Array) -> tuple[Array, Array, Array]:
        found = limited_memory(target, start, tolerance=tolerance, max_steps=max_steps)
        return found.vector, -target.scale * found.value, found.gradient_norm

    return jax.lax.map(end, jnp.asarray(starts), batch_size=batch)


@jax.jit
def _polished(target: _Target, point: Any, tolerance: Any, max_steps: Any) -> Minimum:
    """Newton's method from a point, with the Hessian at its end."""

    def derivatives(at: Array) -> tuple[Array, Array, Array]:
        (value, gradient), push = jax.linearize(jax.value_and_grad(target), at)
        # One column after another: all at once would take the memory of a gradient for each.
        columns = jax.lax.map(lambda direction: push(direction)[1], jnp.eye(len(at)))
        return value, gradient, (columns + columns.T) / 2

    return newton(derivatives, jnp.asarray(point), tolerance=tolerance, max_steps=max_steps)


def _laplace(target: _Target, minimum: Minimum) -> tuple[np.ndarray, float]:
    """The covariance of θ at a maximum, and the logarithm of the Gaussian integral over θ.

    The order parameters follow θ, so the curvature in θ is the Schur complement H_θθ − H_θv H_vv⁻¹ H_vθ, whose inverse
    is a block of H⁻¹, and whose determinant is det H / det H_vv.
    """
    hessian, order = target.scale * np.asarray(minimum.hessian), target.data.order_parameters
    deviations = np.asarray(ravel_pytree(target.data.model.scales)[0])
    covariance = np.linalg.inv(hessian)[order:, order:] * np.outer(deviations, deviations)
    determinant = np.linalg.slogdet(covariance)[1]
    return covariance, float(len(deviations) * math.log(2 * math.pi) + determinant) / 2

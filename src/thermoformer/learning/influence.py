"""Influence: how much each training example, label, path and head changes a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._precision import MATMUL_PRECISION
from .._validation import fail
from .action import Action, stationary
from .kernels import kernel
from .moments import NewExamples, new_examples
from .paths import PathFeatures
from .predictor import joined
from .saddle import Solution, action_of, checked_solution
from .scores import head_labels

if TYPE_CHECKING:
    import xarray


class Influence(eqx.Module):
    """By how much the mean output for each new example moves, one row per new example.

    With several outputs an output axis follows that of the new examples, and the labels of an example have one too.

    Fields:
        labels: the derivative ∂mean/∂y with respect to each training label, [new, example]. It includes the response
            of U.
        examples: the mean without the training example minus the mean with it, [new, example]. It is exact at fixed
            U; the response of U is approximated by one Newton step.
        paths: the mean without the path minus the mean with it, [new, path]. This is −c_π: nothing is solved again.
        heads: the same for all paths that use a head, [new, head], in the order of `head_labels`.
        head_labels: (layer, head) of each head, counted from 0.
    """

    labels: np.ndarray
    examples: np.ndarray
    paths: np.ndarray
    heads: np.ndarray
    head_labels: tuple[tuple[int, int], ...] = eqx.field(static=True)

    def to_xarray(self) -> xarray.Dataset:
        """All four with named axes."""
        import xarray

        several = ("output",) if self.paths.ndim == 3 else ()
        rows = ("new", *several)
        return xarray.Dataset(
            {
                "labels": ((*rows, "example", *(f"label_{axis}" for axis in several)), self.labels),
                "examples": ((*rows, "example"), self.examples),
                "paths": ((*rows, "path"), self.paths),
                "heads": ((*rows, "head"), self.heads),
            },
            coords={"head": [f"{layer}.{head}" for layer, head in self.head_labels]},
        )


def influence(solution: Solution, features: PathFeatures) -> Influence:
    """How much each training label, training example, path and head moves the mean output for new examples.

    Arguments:
        solution: a result of `solve` or `gaussian_process` (where U is fixed) with the kernel in the form "pairs" or
            "features". The dual form keeps no row per training example.
        features: the attentioned inputs of the new examples.

    Example:
        >>> import numpy as np
        >>> from thermoformer.learning import Architecture, solve
        >>> xi = np.random.default_rng(0).normal(size=(30, 2, 12))
        >>> feats = PathFeatures.from_attentioned_inputs(xi)
        >>> solution = solve(Architecture((2,), 10), feats[:20], np.sign(xi[:20, 0, 0]), temperature=0.1)
        >>> found = influence(solution, feats[20:])
        >>> found.labels.shape, found.examples.shape, found.paths.shape, found.heads.shape
        ((10, 20), (10, 20), (10, 2), (10, 2))
    """
    arch, problem = checked_solution(solution).architecture, solution.problem
    if type(solution) is not Solution or problem.null_directions:
        kind = "one in the dual form" if type(solution) is Solution else f"a {type(solution).__name__}"
        raise fail("solution", kind, "a solution of solve or gaussian_process with form='pairs' or 'features'")
    if not solution.converged:
        raise fail("solution", "no minimum of the action", "a solution that has converged")
    moves = solution.stats.method != "limit"
    given = action_of(solution), jnp.asarray(solution.vector)
    pieces = [_of_training(*given, new, moves) for new in new_examples(arch, features, problem)]
    labels, examples = joined(pieces)
    paths = -solution.path_contributions(features)
    used = np.stack([arch.path_heads()[:, layer] == head for layer, head in head_labels(arch)]).astype(float)
    heads = np.tensordot(paths, used, axes=(1, 1))
    if arch.outputs == 1:
        labels, examples = labels[:, 0, :, 0], examples[:, 0]
    else:
        paths = paths.transpose(0, 2, 1)
    return Influence(labels, examples, paths, heads, head_labels(arch))


@eqx.filter_jit
def _of_training(action: Action, vector: jax.Array, new: NewExamples, moves: bool) -> tuple[jax.Array, jax.Array]:
    """∂mean/∂y [new, output, example, output] and the change without each example [new, output, example]."""
    outputs, examples = action.problem.outputs, action.problem.examples
    labels = action.problem.labels

    def slope_of(values: jax.Array) -> jax.Array:
        """The mean [output, new] as a function of the labels, on which U depends too."""
        moved = eqx.tree_at(lambda one: one.problem.labels, action, values)
        at = stationary(moved, vector) if moves else vector
        return _state(moved, at, new)[0]

    slopes = jax.jacrev(slope_of)(labels)
    slopes = slopes.reshape(outputs, -1, outputs, examples).transpose(1, 0, 3, 2)

    def without(at: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Of each example: the change of the mean without it [output, new, example], and its energy given the rest.

        With G = (K + τI)⁻¹, α = Gy and B the rows of the example these are −k(x)ᵀG_B (G_BB)⁻¹α_B and
        −ln det G_BB + α_Bᵀ(G_BB)⁻¹α_B.
        """
        _, cross, inverse, alpha = _state(action, at, new)
        by_example = inverse.reshape(outputs, examples, outputs, examples)
        own = jnp.einsum("dmem->mde", by_example)
        alphas = alpha.reshape(outputs, examples).T
        residuals = jnp.linalg.solve(own, alphas[:, :, None])[:, :, 0]
        reach = jnp.matmul(cross.T, inverse, precision=MATMUL_PRECISION).reshape(-1, outputs, examples)
        change = -jnp.einsum("xdm,md->xm", reach, residuals).reshape(outputs, -1, examples)
        return change, jnp.sum(alphas * residuals, axis=1) - jnp.linalg.slogdet(own)[1]

    if not moves:
        return slopes, without(vector)[0].transpose(1, 0, 2)
    pulls = jax.jacfwd(lambda at: without(at)[1])(vector)
    bends = jax.jacfwd(jax.jacfwd(lambda at: without(at)[1]))(vector)
    hessian, mean = _hessian(action, vector), _state(action, vector, new)[0]

    def change(example: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        """The change [output, new] after one step of Newton's method without the energy of one example."""
        number, pull, bend = example
        left = hessian - bend
        # If the curvature without the example is not positive, use the one with all examples.
        safe = jnp.linalg.eigvalsh(left)[0] > 0.1 * jnp.linalg.eigvalsh(hessian)[0]
        at = vector + jnp.linalg.solve(jnp.where(safe, left, hessian), pull)
        return _state(action, at, new)[0] + without(at)[0][:, :, number] - mean

    changes = jax.lax.map(change, (jnp.arange(examples), pulls, bends))
    return slopes, changes.transpose(2, 1, 0)


def _state(action: Action, vector: jax.Array, new: NewExamples) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The mean [output, new], k(x) [row, output · new], (K + τI)⁻¹ and (K + τI)⁻¹y."""
    problem, count = action.problem, new.own.shape[1]
    factor = action.path_factor(vector)
    cross = new.kernel(problem, factor)
    covariance = kernel(problem, factor) + action.setting.temperature * jnp.eye(len(problem.labels))
    inverse = jnp.linalg.inv(covariance)
    alpha = inverse @ problem.labels
    return (alpha @ cross).reshape(problem.outputs, count), cross, inverse, alpha


def _hessian(action: Action, vector: jax.Array) -> jax.Array:
    if action.problem.pairs is not None:
        return action.derivatives(vector)[2]
    return jax.hessian(action.reachable)(vector)

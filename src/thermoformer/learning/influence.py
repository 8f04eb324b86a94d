"""Influence: how much each training example, label, path and head changes a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._precision import MATMUL_PRECISION
from .._validation import fail, instance
from .action import Action, stationary
from .architecture import squeeze_output
from .kernels import covariance
from .paths import PathFeatures
from .results import NewExamples, joined, new_examples
from .saddle import Solution
from .scores import head_labels, paths_of_heads

if TYPE_CHECKING:
    import xarray


class Influence(eqx.Module):
    """Changes of the mean output, one row per new example.

    With several outputs an output axis follows the axis of new examples, and `labels` has a second one at its end.

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
    """How much each training label, training example, path and head changes the mean output for new examples.

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
    expected = "a solution of solve or gaussian_process with form='pairs' or 'features'"
    arch, problem = instance("solution", solution, Solution, expected).architecture, solution.problem
    if problem.null_directions:
        raise fail("solution", "one in the dual form", expected)
    if not solution.converged:
        raise fail("solution", "no minimum of the action", "a solution that has converged")
    given = solution.action_function, solution.vector
    pieces = [_of_training(*given, new, solution.infinite_width) for new in new_examples(arch, features, problem)]
    labels, examples = joined(pieces)
    paths = -solution.path_contributions(features)
    heads = np.tensordot(paths, paths_of_heads(arch), axes=(1, 1))
    if arch.outputs > 1:
        paths = paths.transpose(0, 2, 1)
    labels, examples = squeeze_output(squeeze_output(labels), 1), squeeze_output(examples, 1)
    return Influence(labels, examples, paths, heads, head_labels(arch))


@eqx.filter_jit
def _of_training(action: Action, vector: Any, new: NewExamples, fixed: bool) -> tuple[jax.Array, jax.Array]:
    """∂mean/∂y [new, output, example, output] and the change without each example [new, output, example].

    Arguments:
        fixed: whether U stays as it is, as in the limit of infinite width.
    """
    outputs, examples = action.problem.outputs, action.problem.examples

    def mean_of(labels: jax.Array) -> jax.Array:
        """The mean [output, new] as a function of the labels, on which U depends too."""
        changed = eqx.tree_at(lambda one: one.problem.labels, action, labels)
        return _state(changed, vector if fixed else stationary(changed, vector), new)[0]

    slopes = jax.jacrev(mean_of)(action.problem.labels)
    slopes = slopes.reshape(outputs, -1, outputs, examples).transpose(1, 0, 3, 2)

    def mean_without(at: jax.Array) -> jax.Array:
        """The mean at fixed U without each example, mean − k(x)ᵀG_B (G_BB)⁻¹α_B, [output, new, example].

        G = (K + τI)⁻¹, α = Gy, and B are the rows of the example.
        """
        mean, cross, inverse, alpha = _state(action, at, new)
        reach = jnp.matmul(cross.T, inverse, precision=MATMUL_PRECISION).reshape(-1, outputs, examples)
        change = jnp.einsum("xdm,md->xm", reach, residuals_of(inverse, alpha)[0])
        return mean[:, :, None] - change.reshape(outputs, -1, examples)

    def energies(at: jax.Array) -> jax.Array:
        """The energy of each example given the others, −ln det G_BB + α_Bᵀ(G_BB)⁻¹α_B, [example]."""
        _, _, inverse, alpha = _state(action, at, new)
        return residuals_of(inverse, alpha)[1]

    def residuals_of(inverse: jax.Array, alpha: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(G_BB)⁻¹α_B [example, output], and the energies."""
        own = jnp.einsum("dmem->mde", inverse.reshape(outputs, examples, outputs, examples))
        alphas = alpha.reshape(outputs, examples).T
        residuals = jnp.linalg.solve(own, alphas[:, :, None])[:, :, 0]
        return residuals, jnp.sum(alphas * residuals, axis=1) - jnp.linalg.slogdet(own)[1]

    mean = _state(action, vector, new)[0]
    if fixed:
        return slopes, (mean_without(vector) - mean[:, :, None]).transpose(1, 0, 2)
    hessian = action.hessian(vector)

    def change(example: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        """The change [output, new] without one example, after one Newton step on the action without its energy."""
        number, gradient, curvature = example
        left = hessian - curvature
        # If the curvature without the example is not positive, use the one with all examples.
        safe = jnp.linalg.eigvalsh(left)[0] > 0.1 * jnp.linalg.eigvalsh(hessian)[0]
        step = jnp.linalg.solve(jnp.where(safe, left, hessian), gradient)
        return mean_without(vector + step)[:, :, number] - mean

    gradients, curvatures = jax.jacfwd(energies)(vector), jax.jacfwd(jax.jacfwd(energies))(vector)
    changes = jax.lax.map(change, (jnp.arange(examples), gradients, curvatures))
    return slopes, changes.transpose(2, 1, 0)


def _state(action: Action, vector: jax.Array, new: NewExamples) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The mean [output, new], k(x) [row, output · new], (K + τI)⁻¹ and (K + τI)⁻¹y."""
    problem, factor = action.problem, action.path_factor(vector)
    cross, _ = new.kernels(problem, factor @ factor.T)
    inverse = jnp.linalg.inv(covariance(problem, factor, action.setting.temperature))
    alpha = inverse @ problem.labels
    return (alpha @ cross).reshape(problem.outputs, -1), cross, inverse, alpha

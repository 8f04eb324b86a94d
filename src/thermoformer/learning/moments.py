"""Mean and variance of the predictor for many order parameters on the same new examples.

What does not depend on U is done once: the kernels C_ππ'(x, μ) between new and training examples for every pair of
paths. After that one U costs a Cholesky factor and one triangular solve per new example, and nothing of the size of
the features.
"""

from __future__ import annotations

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Float

from .._precision import MATMUL_PRECISION
from .kernels import Problem, feature_scales, kernel
from .network import Architecture
from .paths import PathFeatures
from .predictor import CHUNK, check_same_paths


class NewExamples(eqx.Module):
    """A piece of new examples beside the training data.

    Fields:
        cross: C_ππ' between training rows and new examples, [path · path, example' · new].
        own: C_ππ' of each new example with itself, [path · path, new].
    """

    cross: Float[Array, "pair both"]
    own: Float[Array, "pair new"]

    def kernel(self, problem: Problem, factor: Float[Array, "row column"]) -> Float[Array, "row both"]:
        """K(U) between training rows and new examples, given U = FFᵀ, [row, output · new]."""
        outputs, count = problem.outputs, self.own.shape[1]
        cross = jnp.matmul(_gram_by_output(problem, factor), self.cross, precision=MATMUL_PRECISION)
        return cross.reshape(outputs, outputs, -1, count).transpose(0, 2, 1, 3).reshape(len(problem.labels), -1)

    def prior(self, problem: Problem, factor: Float[Array, "row column"]) -> Float[Array, "output new"]:
        """K(U) of each new example with itself, for every output."""
        by_output = _gram_by_output(problem, factor)[:: problem.outputs + 1]
        return jnp.matmul(by_output, self.own, precision=MATMUL_PRECISION)


def _gram_by_output(problem: Problem, factor: Array) -> Float[Array, "outputs pair"]:
    """U as rows for two outputs each, [output · output', path · path']."""
    paths, outputs = problem.features.shape[2], problem.outputs
    gram = jnp.matmul(factor, factor.T, precision=MATMUL_PRECISION)
    return gram.reshape(outputs, paths, outputs, paths).transpose(0, 2, 1, 3).reshape(outputs**2, paths**2)


def new_examples(arch: Architecture, features: PathFeatures, problem: Problem) -> Iterator[NewExamples]:
    """New examples, checked, in pieces that bound the memory."""
    check_same_paths(features, arch.paths, problem.token_width)
    scale = feature_scales(arch, features.token_width)
    rows = max(1, CHUNK // (arch.paths**2 * problem.features.shape[0] + arch.outputs * len(problem.labels)))
    for start in range(0, features.examples, rows):
        yield _new_examples(problem, features.values[start : start + rows] * scale)


@jax.jit
def _new_examples(problem: Problem, new: Float[Array, "new path feature"]) -> NewExamples:
    paths = new.shape[1]
    own = jnp.einsum("xai,xbi->abx", new, new, precision=MATMUL_PRECISION)
    if problem.basis is not None:
        new = jnp.matmul(new, problem.basis, precision=MATMUL_PRECISION)
    cross = jnp.einsum("mia,xbi->abmx", problem.features, new, precision=MATMUL_PRECISION)
    return NewExamples(cross.reshape(paths**2, -1), own.reshape(paths**2, -1))


def moments(
    problem: Problem, new: NewExamples, factor: Float[Array, "row column"], temperature: float | Array
) -> tuple[Float[Array, "output new"], Float[Array, "output new"]]:
    """Mean and variance of the output for new examples, given U = FFᵀ (learning §4); differentiable in F."""
    cross, prior = new.kernel(problem, factor), new.prior(problem, factor)
    cholesky = jnp.linalg.cholesky(kernel(problem, factor) + temperature * jnp.eye(len(problem.labels)))
    white = jsl.solve_triangular(cholesky, cross, lower=True)
    mean = jsl.solve_triangular(cholesky, problem.labels, lower=True) @ white
    explained = jnp.sum(white**2, axis=0)
    return mean.reshape(prior.shape), prior - explained.reshape(prior.shape)

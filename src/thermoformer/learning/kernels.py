"""The kernel K(U) + τI: its matrix, log-determinant and solves, in three exact forms (learning §2).

*pairs*     C_ππ' is stored for every pair of paths; cheapest per evaluation if it fits into memory.
*features*  K = (ΞF)(ΞF)ᵀ with U = FFᵀ; nothing of size Π² P² is stored.
*dual*      for Π·N0 < P: an orthogonal rotation of the examples, Ξ = Q T, leaves a problem of only Π·N0 examples,
            and P − Π·N0 directions where the kernel is zero and (K + τI) is τ. This is the algebra of Woodbury's
            identity without its cancellation at small τ: K' = T U Tᵀ has the dual's size and the primal's accuracy.

In the last two forms the feature axis is reduced to the rank of the stacked ξ, which changes no inner product.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Float

from .._precision import MATMUL_PRECISION
from .._validation import fail, instance, labels_for, one_of, traced
from .architecture import Architecture, checked_architecture
from .paths import PathFeatures

FORMS = ("auto", "pairs", "features", "dual")
# Bytes above which pairs are not stored.
PAIR_MEMORY = 1_000_000_000
# Up to this many paths pairs are kept in any case: they give the exact Hessian, and with it Newton's method.
FEW_PATHS = 16

Number = Array | np.ndarray | float


class Problem(eqx.Module):
    """Training data prepared for repeated evaluations of K(U).

    With D outputs a row is (output, example'), the output slowest; with one output rows are examples.

    Fields:
        features: scaled attentioned inputs [example', feature', path], ξ_π σ0/√N0 ∏ 1/√H_l, after both rotations.
        pairs: C_ππ' + C_π'π for π < π' and C_ππ, [pair, row, row], or None in the feature form; with D outputs the
            pairs are of (output, path).
        labels: rotated labels [row].
        examples: P, the number of examples before rotation.
        rest: |y_⊥|², the part of the labels in directions where the kernel is zero.
        basis: orthonormal basis [feature, feature'] of the reduced feature axis, or None.
    """

    features: Float[Array, "example feature path"]
    pairs: Float[Array, "pair row row"] | None
    labels: Float[Array, " row"]
    rest: Float[Array, ""]
    basis: Float[Array, "full_feature feature"] | None
    examples: int = eqx.field(static=True)
    form: str = eqx.field(static=True)
    outputs: int = eqx.field(static=True, default=1)

    @property
    def observations(self) -> int:
        """P·D, the number of labels before rotation."""
        return self.examples * self.outputs

    @property
    def token_width(self) -> int:
        """N0, the width of the features before reduction."""
        return self.features.shape[1] if self.basis is None else self.basis.shape[0]

    @property
    def null_directions(self) -> int:
        """How many directions of the space of observations the kernel cannot reach, whatever U."""
        return self.observations - self.labels.shape[0]


def checked_features(name: str, value: Any) -> PathFeatures:
    """The value, if it is a PathFeatures."""
    expected = "PathFeatures, as PathFeatures.from_attention or PathFeatures.from_attentioned_inputs makes them"
    return instance(name, value, PathFeatures, expected)


def checked_labels(arch: Any, features: Any, labels: Any) -> Any:
    """Labels y [example], or [example, output]; features must have the paths of the architecture."""
    checked_architecture(arch)
    examples, paths, _ = checked_features("features", features).values.shape
    if paths != arch.paths:
        ways = f"the product of heads {arch.heads}" + (", each plus one for the skip" if arch.skip else "")
        raise fail("features", f"{paths} paths", f"{arch.paths}, {ways}")
    return labels_for("labels", labels, examples, arch.outputs)


def check_new_examples(features: Any, paths: int, token_width: int, name: str = "features") -> None:
    """New examples must have the paths and the token width of training."""
    if checked_features(name, features).observed != features.examples:
        raise fail(name, repr(features), "features of examples; rotated ones are for training")
    found = features.values.shape[1:]
    if found != (paths, token_width):
        expected = f"{paths} paths of token width {token_width}, as in training"
        raise fail(name, f"{found[0]} paths of token width {found[1]}", expected)


def prepare(
    arch: Architecture, features: PathFeatures, labels: Any, form: str = "auto", temperature: Any = 1.0
) -> Problem:
    """Reduce, rotate and scale the training data, and choose the form of the kernel.

    Arguments:
        labels: y [example], or [example, output].
        form: "pairs", "features", "dual", or "auto" for the cheapest by operations within memory.
        temperature: τ; 0 is refused if the kernel cannot have full rank.
    """
    one_of("form", form, FORMS)
    examples, paths, width = features.values.shape
    automatic, basis, observed = form == "auto", None, features.observed
    if automatic:
        form = choose_form(observed, paths, width, arch.outputs)
    # The pair form needs no reduction: the feature axis is gone from every evaluation.
    if form != "pairs" and not traced(features.values):
        # The rank depends on values: traced features are not reduced, concrete ones are, also inside a jitted function.
        with jax.ensure_compile_time_eval():
            basis = feature_basis(features.values)
    if basis is not None:
        width = basis.shape[1]
    if not traced(temperature) and temperature == 0 and width * paths < observed:
        expected = f"a number above 0: {observed} examples in {width * paths} dimensions make K singular"
        raise fail("temperature", 0.0, expected)
    if automatic and form != "pairs":
        form = choose_form(observed, paths, width, arch.outputs)
    rotate = form == "dual" and width * paths < examples
    inner = choose_form(width * paths if rotate else examples, paths, width, arch.outputs) if form == "dual" else form
    scale, y = feature_scales(arch, features.values.shape[2]), labels.reshape(examples, arch.outputs)
    problem = _prepared(features.values, y, scale, basis, rotate=rotate, pairs=inner == "pairs", form=form)
    if observed == examples:
        return problem
    return replace(problem, examples=observed, rest=problem.rest + features.rest)  # type: ignore[attr-defined]


def feature_scales(arch: Architecture, token_width: int) -> Any:
    """σ0/√N0 ∏ 1/√H_l along each path, [1, path, 1]: factors of raw ξ in features whose inner products make K."""
    return (arch.deviations[0] / math.sqrt(token_width) * arch.path_scales)[None, :, None]


def with_pairs(problem: Problem) -> Problem:
    """The same problem with its pairs stored, whatever its form."""
    if problem.pairs is not None:
        return problem
    return replace(problem, pairs=_pairs(problem.features, problem.outputs))


def choose_form(examples: int, paths: int, width: int, outputs: int = 1) -> str:
    """The form with the fewest operations per evaluation whose storage fits.

    Per value and gradient: a Cholesky factor and an inverse cost 2 P³ in either space; building K and contracting its
    gradient costs 4 P² per stored pair, or 4 P² Π N0 from features. Pairs of a small kernel live in cache; reading
    them from memory is what costs, so one pair counts as four products of a matrix multiplication.

    Example:
        >>> choose_form(100, 4, 231), choose_form(600, 64, 192), choose_form(4000, 4, 231)
        ('pairs', 'features', 'dual')
    """
    if paths * width < examples:
        return "dual"
    rows = outputs * paths
    pair_count = rows * (rows + 1) // 2
    fits = 8 * pair_count * (outputs * examples) ** 2 <= PAIR_MEMORY
    return "pairs" if fits and (rows <= FEW_PATHS or 4 * pair_count <= rows * width) else "features"


def feature_basis(features: Float[Array, "example path feature"]) -> np.ndarray | None:
    """An orthonormal basis of the span of all ξ, [feature, rank], or None if the rank is full.

    Directions dropped carry less than rounding of K: eigenvalues of the Gram matrix under N0·ε of the largest.
    """
    width = features.shape[2]
    outer, gram = _outer_and_gram(features)
    eigenvalues, vectors = np.linalg.eigh(np.asarray(gram))
    keep = eigenvalues > width * np.finfo(float).eps * eigenvalues[-1]
    keep[-1] = True  # an all-zero input keeps one (zero) column
    if outer is None:
        return None if keep.all() else vectors[:, keep]
    return np.asarray(outer) @ vectors[:, keep]


@jax.jit
def _outer_and_gram(features: Array) -> tuple[Array | None, Array]:
    """A basis of all ξ if they are fewer than features, and the Gram matrix of the (projected) features."""
    stacked, outer = features.reshape(-1, features.shape[2]), None
    if stacked.shape[0] < stacked.shape[1]:
        outer = jnp.linalg.qr(stacked.T)[0]
        stacked = stacked @ outer
    return outer, jnp.matmul(stacked.T, stacked, precision=MATMUL_PRECISION)


def reduced_data(
    features: Float[Array, "example path feature"], labels: Array, scale: Any, basis: Any, rotate: bool
) -> tuple[Float[Array, "kept reduced path"], Float[Array, "kept output"], Array]:
    """Scaled features and labels with fewer features (in a basis) and, rotated, fewer examples; none of K is lost.

    Ξ = Q T: T in place of Ξ, Qᵀy in place of y. The third result is |y − QQᵀy|².
    """
    features = features * scale
    if basis is not None:
        features = jnp.matmul(features, basis, precision=MATMUL_PRECISION)
    features = features.transpose(0, 2, 1)
    if not rotate:
        return features, labels, jnp.zeros(())
    examples, width, paths = features.shape
    rotation, triangle = jnp.linalg.qr(features.reshape(examples, -1))
    inside = rotation.T @ labels
    outside = labels - rotation @ inside
    return triangle.reshape(-1, width, paths), inside, jnp.vdot(outside, outside)


@partial(jax.jit, static_argnames=("rotate", "pairs", "form"))
def _prepared(
    features: Array, labels: Array, scale: Any, basis: Any, *, rotate: bool, pairs: bool, form: str
) -> Problem:
    """All of `prepare` that depends on values, as one program."""
    examples, outputs = labels.shape
    values, y, rest = reduced_data(features, labels, scale, basis, rotate)
    stored = _pairs(values, outputs) if pairs else None
    return Problem(values, stored, y.T.ravel(), rest, basis, examples, form, outputs)


def kernel(problem: Problem, factor: Float[Array, "path column"]) -> Float[Array, "row row"]:
    """K(U) with U = FFᵀ, in the rotated space."""
    if problem.pairs is not None:
        # Flat on both sides: the derivative of a product over two axes at once is slow on a CPU.
        flat = problem.pairs.reshape(problem.pairs.shape[0], -1)
        entries = jnp.matmul(packed(factor @ factor.T), flat, precision=MATMUL_PRECISION)
        return entries.reshape(problem.pairs.shape[1:])
    mixed = mixed_features(problem.features, factor)
    return jnp.matmul(mixed, mixed.T, precision=MATMUL_PRECISION)


def covariance(problem: Problem, factor: Array, temperature: Number) -> Float[Array, "row row"]:
    """K(U) + τI."""
    return kernel(problem, factor) + temperature * jnp.eye(len(problem.labels))


def mixed_features(features: Float[Array, "example feature path"], factor: Array) -> Float[Array, "row column"]:
    """ΞF: rows (output, example) whose inner products are the kernel."""
    mixed = features_by_output(features, factor)
    return mixed.reshape(mixed.shape[0] * mixed.shape[1], -1)


def features_by_output(
    features: Float[Array, "example feature path"], factor: Array
) -> Float[Array, "output example feature column"]:
    """Σ_π ξ_π F_{(d, π)} for every output d, whose rows of F follow one another."""
    examples, width, paths = features.shape
    outputs = factor.shape[0] // paths
    columns = factor.reshape(outputs, paths, -1).transpose(1, 0, 2).reshape(paths, -1)
    mixed = jnp.matmul(features.reshape(-1, paths), columns, precision=MATMUL_PRECISION)
    return mixed.reshape(examples, width, outputs, -1).transpose(2, 0, 1, 3)


def kernel_between(
    gram: Float[Array, "row row"], features: Float[Array, "example feature path"], others: Array
) -> Float[Array, "output_example output_other"]:
    """K(U) between two sets of scaled examples, rows and columns (output, example)."""
    examples, width, paths = features.shape
    outputs = len(gram) // paths
    mixed = features_by_output(features, gram).reshape(outputs, examples, width, outputs, paths)
    mixed = mixed.transpose(0, 1, 3, 2, 4).reshape(-1, width * paths)
    product = jnp.matmul(mixed, others.reshape(len(others), -1).T, precision=MATMUL_PRECISION)
    return product.reshape(outputs * examples, -1)


def packed(gram: Float[Array, "path path"]) -> Float[Array, " pair"]:
    """The entries U_ππ' with π ≤ π', row by row."""
    return gram[np.triu_indices(gram.shape[0])]


def energy(problem: Problem, factor: Array, temperature: Number) -> Array:
    """E = ln det(K + τI) + yᵀ(K + τI)⁻¹y over all examples (learning §3)."""
    return reachable_energy(problem, factor, temperature) + null_energy(problem, temperature)


def reachable_energy(problem: Problem, factor: Array, temperature: Number) -> Array:
    """The part of E that depends on U."""
    if problem.pairs is None:
        return gaussian_energy_of_rows(mixed_features(problem.features, factor), problem.labels, temperature)
    return gaussian_energy(covariance(problem, factor, temperature), problem.labels)


def null_energy(problem: Problem, temperature: Number) -> Number:
    """The part of E where the kernel is zero whatever U: (P − P') ln τ + |y_⊥|²/τ.

    Minimisers leave it out: at small τ it is a constant so large that its rounding would hide all that U can gain.
    """
    if problem.null_directions == 0:
        return 0.0
    return problem.null_directions * jnp.log(temperature) + problem.rest / temperature


@jax.custom_jvp
def gaussian_energy(matrix: Float[Array, "row row"], labels: Float[Array, " row"]) -> Array:
    """ln det C + yᵀ C⁻¹ y, with the derivative tr[(C⁻¹ − αα^T) dC] in place of one through the Cholesky factor."""
    cholesky = jnp.linalg.cholesky(matrix)
    white = jsl.solve_triangular(cholesky, labels, lower=True)
    return 2 * jnp.log(jnp.diagonal(cholesky)).sum() + white @ white


@gaussian_energy.defjvp
def _gaussian_energy_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    value, inverse, alpha = inverse_and_solve(*primals)
    matrix_dot, labels_dot = tangents
    return value, jnp.vdot(inverse - jnp.outer(alpha, alpha), matrix_dot) + 2 * alpha @ labels_dot


@jax.custom_jvp
def gaussian_energy_of_rows(rows: Float[Array, "row column"], labels: Array, temperature: Number) -> Array:
    """`gaussian_energy` of BBᵀ + τI, with the derivative 2 tr[(C⁻¹ − ααᵀ) B dBᵀ]: one product, where BBᵀ has two."""
    return gaussian_energy(_covariance_of_rows(rows, temperature), labels)


@gaussian_energy_of_rows.defjvp
def _gaussian_energy_of_rows_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (rows, labels, temperature), (rows_dot, labels_dot, temperature_dot) = primals, tangents
    value, inverse, alpha = inverse_and_solve(_covariance_of_rows(rows, temperature), labels)
    slope = inverse - jnp.outer(alpha, alpha)
    pull = 2 * jnp.matmul(slope, rows, precision=MATMUL_PRECISION)
    return value, jnp.vdot(pull, rows_dot) + 2 * alpha @ labels_dot + jnp.trace(slope) * temperature_dot


def _covariance_of_rows(rows: Array, temperature: Number) -> Array:
    return jnp.matmul(rows, rows.T, precision=MATMUL_PRECISION) + temperature * jnp.eye(len(rows))


def inverse_and_solve(matrix: Array, labels: Array) -> tuple[Array, Array, Array]:
    """(ln det C + yᵀC⁻¹y, C⁻¹, C⁻¹y) from one Cholesky factor."""
    cholesky = jnp.linalg.cholesky(matrix)
    root = jsl.solve_triangular(cholesky, jnp.eye(len(labels), dtype=matrix.dtype), lower=True)
    inverse = jnp.matmul(root.T, root, precision=MATMUL_PRECISION)
    white = root @ labels
    value = 2 * jnp.log(jnp.diagonal(cholesky)).sum() + white @ white
    return value, inverse, root.T @ white


def energy_derivatives(problem: Problem, factor: Array, temperature: Number) -> tuple[Array, Array, Array]:
    """The reachable energy, its gradient and its Hessian in the packed entries of U, from stored pairs.

    With G = (K+τI)⁻¹, α = Gy: ∂E/∂U_s = tr[G C_s] − αᵀC_sα and ∂²E/∂U_s∂U_t = −tr[G C_s G C_t] + 2 αᵀC_s G C_t α.
    """
    pairs = problem.pairs
    assert pairs is not None
    value, inverse, alpha = inverse_and_solve(covariance(problem, factor, temperature), problem.labels)
    count, size, _ = pairs.shape
    # C_s G for all pairs as one matrix product: rows of all C_s are stacked.
    stacked = jnp.matmul(pairs.reshape(-1, size), inverse, precision=MATMUL_PRECISION)
    products = stacked.reshape(count, size, size)
    right = jnp.matmul(pairs.reshape(-1, size), alpha, precision=MATMUL_PRECISION).reshape(count, size)
    left = jnp.matmul(right, inverse, precision=MATMUL_PRECISION)
    gradient = jnp.trace(products, axis1=1, axis2=2) - right @ alpha
    turned = products.transpose(0, 2, 1).reshape(count, -1)
    hessian = 2 * jnp.matmul(left, right.T, precision=MATMUL_PRECISION)
    hessian = hessian - jnp.matmul(products.reshape(count, -1), turned.T, precision=MATMUL_PRECISION)
    return value, gradient, (hessian + hessian.T) / 2


@partial(jax.jit, static_argnames=("outputs",))
def _pairs(features: Float[Array, "example feature path"], outputs: int) -> Float[Array, "pair row row"]:
    paths = features.shape[2]
    first, second = np.triu_indices(outputs * paths)
    by_path = features.transpose(2, 0, 1)

    def pair(indices: tuple[Array, Array]) -> Array:
        left, right = (index % paths for index in indices)
        product = jnp.matmul(by_path[left], by_path[right].T, precision=MATMUL_PRECISION)
        if outputs > 1:
            # The pair (d, π), (d', π') fills the block of outputs d and d'.
            onto, off = (jnp.arange(outputs) == index // paths for index in indices)
            product = jnp.kron(jnp.outer(onto, off).astype(product.dtype), product)
        return jnp.where(indices[0] == indices[1], product, product + product.T)

    return jax.lax.map(pair, (jnp.asarray(first), jnp.asarray(second)))

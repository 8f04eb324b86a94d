"""The Bayesian predictor of a given order parameter, and its metrics (learning §4)."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import jax.scipy.stats as jss
import numpy as np

from .._precision import MATMUL_PRECISION
from .._validation import fail, labels_for, nonnegative_number, numbers, positive_integer, real_array, traced
from .kernels import Problem, energy, feature_scales, features_by_output, kernel, mixed_features, prepare
from .network import Architecture
from .order import factor_of, gram_matrix
from .paths import PathFeatures, checked_features, checked_labels

if TYPE_CHECKING:
    import xarray

# Test examples are predicted in pieces of about this many numbers, so that memory does not grow with the test set.
CHUNK = 20_000_000


class Prediction(eqx.Module):
    """Mean and variance of the network's output for each test example; τ is not part of the variance.

    Fields:
        mean, variance: [example], or [example, output] where there are several outputs.
        mean_error, variance_error: Monte-Carlo standard errors of both, where they come from draws; else None.

    Example:
        >>> import numpy as np
        >>> prediction = Prediction(np.array([0.5, -2.0]), np.array([0.25, 1.0]))
        >>> prediction.accuracy([1, 1])
        0.5
    """

    mean: np.ndarray
    variance: np.ndarray
    mean_error: np.ndarray | None = None
    variance_error: np.ndarray | None = None

    def accuracy(self, labels: Any) -> float:
        """The fraction of examples whose label the mean has.

        With one output, labels ±1 against the sign of the mean; a mean of exactly 0 counts half. With several, the
        largest output against the label's largest entry, or against class numbers 0..D−1.
        """
        if self.mean.ndim == 2:
            return float(np.mean(np.argmax(self.mean, axis=1) == self._classes(labels)))
        margin = self._signs(labels) * self.mean
        return float(np.mean((margin > 0) + 0.5 * (margin == 0)))

    def expected_accuracy(self, labels: Any) -> float:
        """The mean accuracy of one network drawn from the posterior: ⟨Φ(y·mean/√variance)⟩, for one output.

        Φ takes the output as Gaussian, which it is given U; for a posterior of many U, it is the Gaussian with the same
        mean and variance.
        """
        if self.mean.ndim == 2:
            raise fail("expected_accuracy", f"{self.mean.shape[1]} outputs", "a network with one output")
        margin = self._signs(labels) * self.mean
        # Where nothing is uncertain the draw is the mean: Φ becomes a step.
        spread = np.sqrt(np.maximum(self.variance, 0))
        certain = np.where(margin == 0, 0.0, np.copysign(np.inf, margin))
        ratio = np.divide(margin, spread, out=certain, where=spread > 0)
        return float(np.mean(np.asarray(jss.norm.cdf(ratio))))

    def bias(self, labels: Any) -> float:
        """⟨(mean − y)²⟩."""
        outputs = 1 if self.mean.ndim == 1 else self.mean.shape[1]
        return float(np.mean((self.mean - labels_for("labels", labels, len(self.mean), outputs)) ** 2))

    def mean_variance(self) -> float:
        """⟨variance⟩."""
        return float(np.mean(self.variance))

    def to_xarray(self) -> xarray.Dataset:
        """Mean and variance, and their Monte-Carlo errors where there are any, along `example` (and `output`)."""
        import xarray

        axes = ("example", "output")[: self.mean.ndim]
        fields = ("mean", "variance", "mean_error", "variance_error")
        return xarray.Dataset({name: (axes, getattr(self, name)) for name in fields if getattr(self, name) is not None})

    def _classes(self, labels: Any) -> np.ndarray:
        examples, outputs = self.mean.shape
        classes = real_array("labels", labels)
        if classes.shape == self.mean.shape:
            return np.argmax(classes, axis=1)
        if classes.shape != (examples,) or not np.isin(classes, np.arange(outputs)).all():
            expected = f"[{examples}, {outputs}] codes, or {examples} class numbers from 0 to {outputs - 1}"
            raise fail("labels", f"shape {classes.shape}", expected)
        return classes

    def _signs(self, labels: Any) -> np.ndarray:
        signs = labels_for("labels", labels, len(self.mean))
        if not np.isin(signs, (-1, 1)).all():
            raise fail("labels", f"values such as {signs[~np.isin(signs, (-1, 1))][0]:g}", "labels −1 and 1")
        return signs


class PathSum(abc.ABC):
    """Base of all results: the mean output is a sum over paths, f(x) = Σ_π w_π·ξ_π(x)."""

    architecture: Architecture

    @abc.abstractmethod
    def path_readout(self) -> np.ndarray:
        """The mean readout w_π of every path, [path, feature] (and output)."""

    def path_contributions(self, features: PathFeatures) -> np.ndarray:
        """What each path adds to the mean output for new examples: c_π(x) = w_π·ξ_π(x), [example, path] (and output).

        The sum over paths is the mean of `predict`.

        Arguments:
            features: the attentioned inputs of the new examples, with the paths and token width of training.

        Example:
            >>> import numpy as np
            >>> from thermoformer.learning import solve
            >>> xi = np.random.default_rng(0).normal(size=(30, 2, 8))
            >>> feats = PathFeatures.from_attentioned_inputs(xi)
            >>> solution = solve(Architecture((2,), 10), feats, np.sign(xi[:, 0, 0]), temperature=0.1)
            >>> parts = solution.path_contributions(feats)
            >>> parts.shape, bool(np.allclose(parts.sum(axis=1), solution.predict(feats).mean))
            ((30, 2), True)
        """
        readout = self.path_readout()
        check_same_paths(features, *readout.shape[:2])
        sums = "xai,ai->xa" if self.architecture.outputs == 1 else "xai,aid->xad"
        return numbers(jnp.einsum(sums, features.values, readout, precision=MATMUL_PRECISION))


class Predictor(eqx.Module, PathSum):
    """The Gaussian predictor with kernel K(U) on one training set.

    Fields:
        architecture, temperature: of the network.
        order_parameter: U = U^1 [path, path]; rows (output, path) with several outputs.
        problem: the training data, made ready by `kernels.prepare`.
        factor: any F with U = FFᵀ.
    """

    architecture: Architecture
    temperature: float
    order_parameter: np.ndarray
    problem: Problem
    factor: np.ndarray

    def predict(self, features: PathFeatures) -> Prediction:
        """mean = k(x)ᵀ(K + τI)⁻¹y and variance = κ(x,x) − k(x)ᵀ(K + τI)⁻¹k(x) for new examples.

        Arguments:
            features: the attentioned inputs of the new examples, with the paths and token width of training.
        """
        check_same_paths(features, self.architecture.paths, self.problem.token_width)
        factor = jnp.asarray(self.factor)
        state = posterior_state(self.problem, factor, self.temperature)
        if not traced(state) and self._must_be_finite and not np.isfinite(state[2]).all():
            raise singular_kernel(self.temperature)
        pieces = [
            predict_rows(self.problem, factor, piece, *state)
            for piece in scaled_pieces(self.architecture, features, len(self.problem.labels))
        ]
        return Prediction(*joined(pieces))

    def kernel(self, features: PathFeatures) -> np.ndarray:
        """K(U) between the given examples, [example, example], without τ; with outputs, rows (output, example)."""
        check_same_paths(features, self.architecture.paths, self.problem.token_width)
        blank = np.zeros((features.examples, self.architecture.outputs))
        problem = prepare(self.architecture, features, blank, "features")
        return numbers(_compiled_kernel(problem, jnp.asarray(self.factor)))

    def data_energy(self) -> float:
        """E = ln det(K + τI) + yᵀ(K + τI)⁻¹y, not divided by a width."""
        return numbers(_compiled_energy(self.problem, jnp.asarray(self.factor), self.temperature))

    def with_order_parameter(self, order_parameter: Any) -> Predictor:
        """The predictor of another U on the same data, for instance with its off-diagonal entries set to zero."""
        return _predictor_of(self.architecture, self.temperature, order_parameter, self.problem)

    def path_readout(self) -> np.ndarray:
        """The mean readout of every path, w_π = s Σ_π' U_ππ' Ξ_π'ᵀ (K + τI)⁻¹ y with s = σ0²/(N0 ∏ H_l).

        Returns:
            w [path, feature], with an output axis behind where there are several.
        """
        return readout_of_raw(self.architecture, self.problem, self._readout())

    def _readout(self) -> jax.Array:
        """The mean readout of scaled and reduced features, [output, path, feature']."""
        return _compiled_readout(self.problem, jnp.asarray(self.factor), self.temperature)

    @property
    def _must_be_finite(self) -> bool:
        """Whether predictions must be finite. They may be NaN if the solver did not converge."""
        return True


def _predictor_of(arch: Architecture, temperature: Any, order_parameter: Any, problem: Problem) -> Predictor:
    """The predictor of a given U; of a traced one, which must have full rank, a factor with derivatives."""
    checked = gram_matrix("order_parameter", order_parameter, arch.order_sizes[0])
    factor = jnp.linalg.cholesky(checked) if traced(checked) else factor_of(checked)
    return Predictor(arch, temperature, checked, problem, factor)


def joined(pieces: Sequence[Any], axis: int = 0) -> Any:
    """Pieces of the same pytree, one after another along an axis."""
    if len(pieces) == 1:
        return numbers(pieces[0])
    together = jnp.concatenate if traced(pieces) else np.concatenate
    return jax.tree.map(lambda *parts: together(parts, axis=axis), *pieces)


def singular_kernel(temperature: float) -> ValueError:
    """What to raise where K + τI has no inverse."""
    return fail("temperature", temperature, "a larger number: the kernel of these examples is singular")


def gaussian_predictor(
    arch: Architecture,
    features: PathFeatures,
    labels: Any,
    *,
    order_parameter: Any,
    temperature: float,
    form: str = "auto",
) -> Predictor:
    """The Gaussian predictor for any order parameter U, wherever it came from (learning §4).

    Arguments:
        features: attentioned inputs of the training examples.
        labels: y [example], or [example, output].
        order_parameter: U [path, path], positive semidefinite; rows (output, path) with several outputs.
        temperature: τ.
        form: form of the kernel: "auto", "pairs", "features" or "dual".

    Example:
        >>> import numpy as np
        >>> feats = PathFeatures.from_attentioned_inputs(np.eye(3)[:, None, :])
        >>> arch = Architecture((1,), 5)
        >>> fitted = gaussian_predictor(arch, feats, [1, -1, 1], order_parameter=[[3.0]], temperature=1.0)
        >>> fitted.predict(feats).mean.round(12).tolist()
        [0.5, -0.5, 0.5]
    """
    y = checked_labels(arch, features, labels)
    temperature = nonnegative_number("temperature", temperature)
    return _predictor_of(arch, temperature, order_parameter, ready_problem(arch, features, y, temperature, form))


def ready_problem(
    arch: Architecture, features: PathFeatures, labels: np.ndarray, temperature: float, form: str
) -> Problem:
    """`prepare`, with the check that temperature 0 leaves the covariance invertible."""
    problem = prepare(arch, features, labels, form)
    if not traced(temperature) and temperature == 0 and problem.features.shape[1] * features.paths < features.examples:
        reach = problem.features.shape[1] * features.paths
        raise fail(
            "temperature", 0.0, f"a number above 0: {features.examples} examples in {reach} dimensions make K singular"
        )
    return problem


def label_alignment(kernel_matrix: Any, labels: Any, components: int | None = None) -> np.ndarray:
    """|v_k · y| / √P for the unit eigenvectors v_k of K in descending order of eigenvalue (learning §4).

    Arguments:
        kernel_matrix: K [example, example], without τ.
        labels: y [example]; for labels ±1 the squares of all alignments sum to 1.
        components: how many leading components; none gives all.

    Example:
        >>> import numpy as np
        >>> label_alignment(np.diag([2.0, 1.0]), [1, -1]).round(3).tolist()
        [0.707, 0.707]
    """
    matrix = real_array("kernel_matrix", kernel_matrix, ("example", "example"))
    y = labels_for("labels", labels, len(matrix))
    matrix = gram_matrix("kernel_matrix", matrix, len(y))
    if components is not None and positive_integer("components", components) > len(y):
        raise fail("components", components, f"at most {len(y)}, the examples")
    _, vectors = np.linalg.eigh(matrix)
    return np.abs(vectors[:, ::-1].T @ y)[:components] / np.sqrt(len(y))


def check_same_paths(features: PathFeatures, paths: int, token_width: int) -> None:
    """New examples must have the paths and the token width of training."""
    checked_features("features", features)
    if (features.paths, features.token_width) != (paths, token_width):
        raise fail(
            "features",
            f"{features.paths} paths of token width {features.token_width}",
            f"{paths} paths of token width {token_width}, as in training",
        )


def readout_of_raw(arch: Architecture, problem: Problem, readout: jax.Array) -> np.ndarray:
    """A readout of scaled and reduced features [output, path, feature'] as one of raw features, as users have it."""
    if problem.basis is not None:
        readout = jnp.matmul(readout, problem.basis.T, precision=MATMUL_PRECISION)
    readout = readout * feature_scales(arch, readout.shape[2])
    return numbers(readout[0] if arch.outputs == 1 else jnp.moveaxis(readout, 0, 2))


def scaled_pieces(arch: Architecture, features: PathFeatures, observations: int) -> Iterator[jax.Array]:
    """New examples scaled as in training, [example, path, feature], in pieces that bound the memory."""
    scale = feature_scales(arch, features.token_width)
    rows = max(1, CHUNK // (arch.outputs * (features.paths * features.token_width + observations)))
    for start in range(0, features.examples, rows):
        yield features.values[start : start + rows] * scale


# JIT-compiled once per shape; run eagerly, every operation would compile separately.
_compiled_kernel, _compiled_energy = jax.jit(kernel), jax.jit(energy)


def readout_at(problem: Problem, factor: jax.Array, temperature: Any) -> jax.Array:
    """Σ_π' U_ππ' Ξ_π'ᵀ (K + τI)⁻¹y of scaled and reduced features, [output, path, feature']."""
    outputs, paths = problem.outputs, problem.features.shape[2]
    cholesky = jnp.linalg.cholesky(kernel(problem, factor) + temperature * jnp.eye(len(problem.labels)))
    solved = jsl.cho_solve((cholesky, True), problem.labels).reshape(outputs, -1)
    explained = jnp.einsum("mia,dm->dai", problem.features, solved, precision=MATMUL_PRECISION)
    gram = jnp.matmul(factor, factor.T, precision=MATMUL_PRECISION)
    flat = jnp.matmul(gram, explained.reshape(outputs * paths, -1), precision=MATMUL_PRECISION)
    return flat.reshape(explained.shape)


_compiled_readout = jax.jit(readout_at)


@jax.jit
def posterior_state(problem: Problem, factor: jax.Array, temperature: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mixed training features B = ΞF, the Cholesky factor of BBᵀ + τI, and the weights Bᵀ(K + τI)⁻¹y of the mean."""
    mixed = mixed_features(problem.features, factor)
    covariance = kernel(problem, factor) + temperature * jnp.eye(len(problem.labels))
    cholesky = jnp.linalg.cholesky(covariance)
    return mixed, cholesky, mixed.T @ jsl.cho_solve((cholesky, True), problem.labels)


@jax.jit
def predict_rows(
    problem: Problem, factor: jax.Array, features: jax.Array, mixed: jax.Array, cholesky: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean and variance [example] (or [example, output]) of scaled new examples [example, path, feature]."""
    new = features_by_output(features.transpose(0, 2, 1), factor)
    prior = jnp.sum(new**2, axis=(2, 3))
    if problem.basis is not None:
        new = jnp.einsum("dpic,ij->dpjc", new, problem.basis, precision=MATMUL_PRECISION)
    new = new.reshape(prior.size, -1)
    overlap = jnp.matmul(mixed, new.T, precision=MATMUL_PRECISION)
    explained = jnp.sum(jsl.solve_triangular(cholesky, overlap, lower=True) ** 2, axis=0)
    # Rounding may leave a variance of −1e-16 where the data pin the output.
    variance = jnp.maximum(prior - explained.reshape(prior.shape), 0)
    mean = (new @ weights).reshape(prior.shape)
    return (mean[0], variance[0]) if problem.outputs == 1 else (mean.T, variance.T)

"""The Bayesian predictor of a given order parameter, and its metrics (learning §4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import jax.scipy.stats as jss
import numpy as np

from .._precision import MATMUL_PRECISION
from .._validation import fail, labels_for, nonnegative_number, real_array
from .kernels import Problem, energy, kernel, mixed_features, prepare
from .network import Architecture
from .order import factor_of, gram_matrix
from .paths import PathFeatures

if TYPE_CHECKING:
    import xarray

# Test examples are predicted in pieces of about this many numbers, so that memory does not grow with the test set.
CHUNK = 20_000_000


@dataclass(frozen=True, eq=False)
class Prediction:
    """Mean and variance of the network's output for each test example; τ is not part of the variance.

    Example:
        >>> import numpy as np
        >>> prediction = Prediction(np.array([0.5, -2.0]), np.array([0.25, 1.0]))
        >>> prediction.accuracy([1, 1])
        0.5
    """

    mean: np.ndarray
    variance: np.ndarray

    def accuracy(self, labels: Any) -> float:
        """The fraction of labels ±1 whose sign the mean has; a mean of exactly 0 counts half."""
        margin = self._signs(labels) * self.mean
        return float(np.mean((margin > 0) + 0.5 * (margin == 0)))

    def expected_accuracy(self, labels: Any) -> float:
        """The mean accuracy of one network drawn from the posterior: ⟨Φ(y·mean/√variance)⟩."""
        margin = self._signs(labels) * self.mean
        # Where nothing is uncertain the draw is the mean: Φ becomes a step.
        spread = np.sqrt(np.maximum(self.variance, 0))
        certain = np.where(margin == 0, 0.0, np.copysign(np.inf, margin))
        ratio = np.divide(margin, spread, out=certain, where=spread > 0)
        return float(np.mean(np.asarray(jss.norm.cdf(ratio))))

    def bias(self, labels: Any) -> float:
        """⟨(mean − y)²⟩."""
        return float(np.mean((self.mean - labels_for("labels", labels, len(self.mean))) ** 2))

    def mean_variance(self) -> float:
        """⟨variance⟩."""
        return float(np.mean(self.variance))

    def to_xarray(self) -> xarray.Dataset:
        """Mean and variance along the axis `example`."""
        import xarray

        return xarray.Dataset({"mean": ("example", self.mean), "variance": ("example", self.variance)})

    def _signs(self, labels: Any) -> np.ndarray:
        signs = labels_for("labels", labels, len(self.mean))
        if not np.isin(signs, (-1, 1)).all():
            raise fail("labels", f"values such as {signs[~np.isin(signs, (-1, 1))][0]:g}", "labels −1 and 1")
        return signs


@dataclass(frozen=True, eq=False)
class Predictor:
    """The Gaussian predictor with kernel K(U) on one training set.

    Fields:
        architecture, temperature: of the network.
        order_parameter: U = U^1 [path, path].
        problem: the training data, made ready by `kernels.prepare`.
    """

    architecture: Architecture
    temperature: float
    order_parameter: np.ndarray
    problem: Problem

    def predict(self, features: PathFeatures) -> Prediction:
        """mean = k(x)ᵀ(K + τI)⁻¹y and variance = κ(x,x) − k(x)ᵀ(K + τI)⁻¹k(x) for new examples.

        Arguments:
            features: the attentioned inputs of the new examples, with the paths and token width of training.
        """
        trained = (self.architecture.paths, self._token_width)
        if (features.paths, features.token_width) != trained:
            raise fail(
                "features",
                f"{features.paths} paths of token width {features.token_width}",
                f"{trained[0]} paths of token width {trained[1]}, as in training",
            )
        factor = jnp.asarray(factor_of(self.order_parameter))
        state = _posterior(self.problem, factor, self.temperature)
        scale = np.sqrt(self.architecture.variances[0] / (self._token_width * features.paths))
        rows = max(1, CHUNK // (features.paths * features.token_width + len(self.problem.labels)))
        pieces = [
            _predict(features.values[start : start + rows] * scale, factor, self.problem.basis, *state)
            for start in range(0, features.examples, rows)
        ]
        mean, variance = (np.concatenate([np.asarray(piece[part]) for piece in pieces]) for part in (0, 1))
        return Prediction(mean, variance)

    def kernel(self, features: PathFeatures) -> np.ndarray:
        """K(U) between the given examples, [example, example], without τ."""
        problem = prepare(self.architecture, features, np.zeros(features.examples), "features")
        return np.asarray(kernel(problem, jnp.asarray(factor_of(self.order_parameter))))

    def data_energy(self) -> float:
        """E = ln det(K + τI) + yᵀ(K + τI)⁻¹y, not divided by a width."""
        return float(energy(self.problem, jnp.asarray(factor_of(self.order_parameter)), self.temperature))

    def with_order_parameter(self, order_parameter: Any) -> Predictor:
        """The predictor of another U on the same data, for instance with its off-diagonal entries set to zero."""
        checked = gram_matrix("order_parameter", order_parameter, self.architecture.paths)
        return Predictor(self.architecture, self.temperature, checked, self.problem)

    @property
    def _token_width(self) -> int:
        basis = self.problem.basis
        return self.problem.features.shape[1] if basis is None else basis.shape[0]


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
        labels: y [example].
        order_parameter: U [path, path], positive semidefinite.
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
    y = labels_for("labels", labels, features.examples)
    temperature = nonnegative_number("temperature", temperature)
    checked = gram_matrix("order_parameter", order_parameter, arch.paths)
    return Predictor(arch, temperature, checked, ready_problem(arch, features, y, temperature, form))


def ready_problem(
    arch: Architecture, features: PathFeatures, labels: np.ndarray, temperature: float, form: str
) -> Problem:
    """`prepare`, with the check that temperature 0 leaves the covariance invertible."""
    problem = prepare(arch, features, labels, form)
    if temperature == 0 and problem.features.shape[1] * features.paths < features.examples:
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
    _, vectors = np.linalg.eigh(matrix)
    return np.abs(vectors[:, ::-1].T @ y)[:components] / np.sqrt(len(y))


@jax.jit
def _posterior(problem: Problem, factor: jax.Array, temperature: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mixed training features B = ΞF, the Cholesky factor of BBᵀ + τI, and the weights Bᵀ(K + τI)⁻¹y of the mean."""
    mixed = mixed_features(problem.features, factor)
    covariance = kernel(problem, factor) + temperature * jnp.eye(len(problem.labels))
    cholesky = jnp.linalg.cholesky(covariance)
    return mixed, cholesky, mixed.T @ jsl.cho_solve((cholesky, True), problem.labels)


@jax.jit
def _predict(
    features: jax.Array,
    factor: jax.Array,
    basis: jax.Array | None,
    mixed: jax.Array,
    cholesky: jax.Array,
    weights: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    new = jnp.matmul(features.transpose(0, 2, 1), factor, precision=MATMUL_PRECISION)
    prior = jnp.sum(new**2, axis=(1, 2))
    if basis is not None:
        new = jnp.einsum("pic,ij->pjc", new, basis, precision=MATMUL_PRECISION)
    new = new.reshape(len(features), -1)
    overlap = jnp.matmul(mixed, new.T, precision=MATMUL_PRECISION)
    explained = jnp.sum(jsl.solve_triangular(cholesky, overlap, lower=True) ** 2, axis=0)
    # Rounding may leave a variance of −1e-16 where the data pin the output.
    return new @ weights, jnp.maximum(prior - explained, 0)

"""Results that can predict: the Gaussian predictor of an order parameter, and averages over draws (learning §4)."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Float

from .._notebook import Result, draw, span
from .._precision import MATMUL_PRECISION
from .._validation import (
    fail,
    gram_matrix,
    labels_for,
    nonnegative_number,
    numbers,
    positive_integer,
    real_array,
    traced,
)
from .action import Action
from .architecture import Architecture, squeeze_output
from .kernels import (
    Problem,
    check_new_examples,
    checked_labels,
    covariance,
    energy,
    feature_scales,
    kernel_between,
    prepare,
)
from .paths import PathFeatures
from .sampling import Diagnostics, SamplerStats, diagnose

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

# Names of axes: of predictions, of U, and of draws.
EXAMPLES, ROWS, DRAWS = ("example", "output"), ("path", "path_other"), ("chain", "draw")
# Test examples are predicted in pieces of about this many numbers, so that memory does not grow with the test set.
CHUNK = 20_000_000


class Prediction(Result, eqx.Module):
    """Mean and variance of the network's output for each test example; τ is not part of the variance.

    Fields:
        mean, variance: [example], or [example, output] with several outputs.
        mean_error, variance_error: Monte-Carlo standard errors of both if they come from draws; else None.

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

        With one output, labels ±1 are compared with the sign of the mean; a mean of exactly 0 counts half. With
        several, the largest output is compared with the label's largest entry, or with class numbers 0..D−1.
        """
        return float(accuracies(np.asarray(self.mean)[None], labels)[0])

    def expected_accuracy(self, labels: Any) -> float:
        """The mean accuracy of one network drawn from the posterior: ⟨Φ(y·mean/√variance)⟩, for one output.

        The output is Gaussian given U. A posterior of many U is taken as the Gaussian with its mean and variance.
        """
        if self.mean.ndim == 2:
            raise fail("expected_accuracy", f"{self.mean.shape[1]} outputs", "a network with one output")
        margin = _signs(labels, len(self.mean)) * self.mean
        # Without uncertainty the draw is the mean: Φ becomes a step.
        spread = np.sqrt(np.maximum(self.variance, 0))
        certain = np.where(margin == 0, 0.0, np.copysign(np.inf, margin))
        ratio = np.divide(margin, spread, out=certain, where=spread > 0)
        return float(np.mean(np.asarray(jax.scipy.stats.norm.cdf(ratio))))

    def bias(self, labels: Any) -> float:
        """⟨(mean − y)²⟩."""
        outputs = 1 if self.mean.ndim == 1 else self.mean.shape[1]
        return float(np.mean((self.mean - labels_for("labels", labels, len(self.mean), outputs)) ** 2))

    def mean_variance(self) -> float:
        """⟨variance⟩."""
        return float(np.mean(self.variance))

    def to_xarray(self) -> xarray.Dataset:
        """Mean and variance, and their Monte-Carlo errors if there are any, along `example` (and `output`)."""
        import xarray

        axes = EXAMPLES[: self.mean.ndim]
        return xarray.Dataset({name: (axes, value) for name, value in vars(self).items() if value is not None})

    def summary(self) -> dict[str, Any]:
        """Sizes, and the ranges of mean and variance."""
        outputs = {"outputs": self.mean.shape[1]} if np.ndim(self.mean) == 2 else {}
        sizes = {"examples": len(self.mean)} | outputs
        return sizes | {"mean": span(self.mean), "variance": span(self.variance)}

    def plot(self, labels: Any = None, ax: Axes | None = None) -> Axes:
        """Draws means in ascending order with two standard deviations, and the labels as points.

        Arguments:
            labels: y [example], or [example, output]; default: none are drawn.
            ax: Axes to draw on; default: a new figure, which notebooks show.

        Example:
            >>> Prediction(np.array([0.5, -2.0]), np.array([0.25, 1.0])).plot([1, -1]).get_ylabel()
            'output'
        """
        if labels is not None:
            labels = labels_for("labels", labels, len(self.mean), 1 if self.mean.ndim == 1 else self.mean.shape[1])
        return draw("predicted_outputs", self.mean, self.variance, labels, ax=ax)


def accuracies(means: np.ndarray, labels: Any) -> np.ndarray:
    """`Prediction.accuracy` of many means [set, example] or [set, example, output], by set."""
    if means.ndim == 3:
        classes = labels_or_classes("labels", labels, *means.shape[1:])
        classes = np.argmax(classes, axis=1) if classes.ndim == 2 else classes
        return np.mean(np.argmax(means, axis=2) == classes, axis=1)
    margins = _signs(labels, means.shape[1]) * means
    return (np.count_nonzero(margins > 0, axis=1) + 0.5 * np.count_nonzero(margins == 0, axis=1)) / means.shape[1]


def _signs(labels: Any, examples: int) -> np.ndarray:
    signs = labels_for("labels", labels, examples)
    if not np.isin(signs, (-1, 1)).all():
        raise fail("labels", f"values such as {signs[~np.isin(signs, (-1, 1))][0]:g}", "labels −1 and 1")
    return signs


def labels_or_classes(name: str, labels: Any, examples: int, outputs: int) -> np.ndarray:
    """Labels [example] or [example, output]; with several outputs also class numbers [example]."""
    values = real_array(name, labels)
    if outputs == 1 or values.ndim != 1:
        return labels_for(name, values, examples, outputs)
    if len(values) != examples or not np.isin(values, np.arange(outputs)).all():
        expected = f"[{examples}, {outputs}] codes, or {examples} class numbers from 0 to {outputs - 1}"
        raise fail(name, f"shape {values.shape}", expected)
    return values


class PathSum(Result, abc.ABC):
    """Base of all results: the mean output is a sum over paths, f(x) = Σ_π w_π·ξ_π(x).

    Fields:
        architecture, temperature: of the network.
        order_parameter: U = U^1 [path, path], or its mean; rows (output, path) with several outputs.
    """

    architecture: Architecture
    temperature: float
    order_parameter: np.ndarray

    @abc.abstractmethod
    def predict(self, features: PathFeatures) -> Prediction:
        """Mean and variance of the output for new examples."""

    @abc.abstractmethod
    def path_readout(self) -> np.ndarray:
        """The mean readout w_π of every path, [path, feature] (and output)."""

    @property
    def token_width(self) -> int:
        """N0 of the training data."""
        return self.problem.token_width  # type: ignore[attr-defined]

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
        check_new_examples(features, *readout.shape[:2])
        return numbers(_path_sums(features.values, readout))

    def kernel(self, features: PathFeatures) -> np.ndarray:
        """K(U) between the given examples, [example, example], without τ; with outputs, rows (output, example)."""
        check_new_examples(features, self.architecture.paths, self.token_width)
        scale = feature_scales(self.architecture, features.token_width)
        return numbers(_own_kernel(self.order_parameter, features.values, scale))

    def to_xarray(self) -> Any:
        """The order parameter with named axes, and a description of the network."""
        import xarray

        names = list(self.architecture.order_names())
        attributes = description(self.architecture) | {"temperature": self.temperature}
        data = {"order_parameter": (ROWS, self.order_parameter)}
        return xarray.Dataset(data, coords=dict.fromkeys(ROWS, names), attrs=attributes)

    def summary(self) -> dict[str, Any]:
        """The network and the temperature."""
        arch = self.architecture
        widths = arch.widths[0] if len(set(arch.widths)) == 1 else arch.widths
        more = {"outputs": arch.outputs} if arch.outputs > 1 else {}
        return {"heads": arch.heads, "widths": widths} | more | {"temperature": self.temperature}

    def plot(self, head_names: Sequence[Sequence[str]] | None = None, ax: Axes | None = None, **options: Any) -> Axes:
        """Draws the order parameter U between paths.

        Arguments:
            head_names: names of the heads of each layer, for the names of the paths; default: numbers.
            ax: Axes to draw on; default: a new figure, which notebooks show.
            options: those of `figures.order_parameter_matrix`.
        """
        names = self.architecture.order_names(head_names)
        return draw("order_parameter_matrix", self.order_parameter, names, ax=ax, **options)


def description(arch: Architecture) -> dict[str, Any]:
    """The architecture as attributes of a data set."""
    return {name: list(value) if isinstance(value, tuple) else int(value) for name, value in vars(arch).items()}


class NewExamples(eqx.Module):
    """New examples beside the training data, for use with many U: products C_ππ' of pairs of paths."""

    cross: Float[Array, "pair both"]  # between training rows and new examples
    own: Float[Array, "pair new"]  # of each new example with itself

    def kernels(self, problem: Problem, gram: Float[Array, "row row"]) -> tuple[Array, Float[Array, "output new"]]:
        """K(U) between training rows and new examples [row, output · new], and of each new example with itself."""
        outputs, paths = problem.outputs, problem.features.shape[2]
        by_output = gram.reshape(outputs, paths, outputs, paths).transpose(0, 2, 1, 3).reshape(outputs**2, paths**2)
        cross = jnp.matmul(by_output, self.cross, precision=MATMUL_PRECISION)
        cross = cross.reshape(outputs, outputs, -1, self.own.shape[1]).transpose(0, 2, 1, 3)
        own = jnp.matmul(by_output[:: outputs + 1], self.own, precision=MATMUL_PRECISION)
        return cross.reshape(len(problem.labels), -1), own

    def moments(self, action: Action, vector: Array) -> tuple[Array, Array]:
        """Mean and variance [new, output] given the U of a whitened vector."""
        problem, factor = action.problem, action.path_factor(vector)
        cross, own = self.kernels(problem, jnp.matmul(factor, factor.T, precision=MATMUL_PRECISION))
        return moments(problem, factor, action.setting.temperature, cross, own)


def _in_basis(problem: Problem, new: Float[Array, "new path feature"]) -> Array:
    return new if problem.basis is None else jnp.matmul(new, problem.basis, precision=MATMUL_PRECISION)


def new_examples(arch: Architecture, features: PathFeatures, problem: Problem, draws: int = 1) -> Iterator[NewExamples]:
    """New examples, checked, in pieces that bound the memory of their products and of moments for every draw."""
    size = arch.paths**2 * problem.features.shape[0] + arch.outputs * (len(problem.labels) + draws)
    check_new_examples(features, arch.paths, problem.token_width)
    for piece in pieces(features.values, size):
        yield products(problem, piece, feature_scales(arch, problem.token_width))


def pieces(arrays: Any, size: int) -> Iterator[Any]:
    """Parts of arrays [example, ...] with about CHUNK numbers each, given the numbers per example."""
    examples, rows = len(jax.tree.leaves(arrays)[0]), max(1, CHUNK // size)
    if rows >= examples:
        yield arrays
        return
    for start in range(0, examples, rows):
        yield jax.tree.map(lambda array, part=slice(start, start + rows): array[part], arrays)


@jax.jit
def products(problem: Problem, new: Float[Array, "new path feature"], scale: Any) -> NewExamples:
    """New examples ξ [new, path, feature], raw, beside the training data."""
    new, paths = new * scale, new.shape[1]
    own = jnp.einsum("xai,xbi->abx", new, new, precision=MATMUL_PRECISION)
    cross = jnp.einsum("mia,xbi->abmx", problem.features, _in_basis(problem, new), precision=MATMUL_PRECISION)
    return NewExamples(cross.reshape(paths**2, -1), own.reshape(paths**2, -1))


def solved_labels(problem: Problem, factor: Float[Array, "row column"], temperature: Any) -> tuple[Array, Array]:
    """The Cholesky factor of K + τI, and (K + τI)⁻¹y."""
    cholesky = jnp.linalg.cholesky(covariance(problem, factor, temperature))
    return cholesky, jsl.cho_solve((cholesky, True), problem.labels)


def moments(
    problem: Problem, factor: Float[Array, "row column"], temperature: Any, cross: Array, own: Array
) -> tuple[Float[Array, "new output"], Float[Array, "new output"]]:
    """mean = k(x)ᵀ(K + τI)⁻¹y and variance = κ(x,x) − k(x)ᵀ(K + τI)⁻¹k(x), given U = FFᵀ; differentiable in F.

    `cross` is k(x) [row, output · new], `own` is κ(x,x) [output, new].
    """
    cholesky, solved = solved_labels(problem, factor, temperature)
    explained = jnp.sum(jsl.solve_triangular(cholesky, cross, lower=True) ** 2, axis=0)
    return (solved @ cross).reshape(own.shape).T, (own - explained.reshape(own.shape)).T


def readout_at(problem: Problem, factor: Array, temperature: Any) -> Float[Array, "output path feature"]:
    """Σ_π' U_ππ' Ξ_π'ᵀ (K + τI)⁻¹y of scaled and reduced features."""
    outputs, paths = problem.outputs, problem.features.shape[2]
    solved = solved_labels(problem, factor, temperature)[1].reshape(outputs, -1)
    explained = jnp.einsum("mia,dm->dai", problem.features, solved, precision=MATMUL_PRECISION)
    gram = jnp.matmul(factor, factor.T, precision=MATMUL_PRECISION)
    flat = jnp.matmul(gram, explained.reshape(outputs * paths, -1), precision=MATMUL_PRECISION)
    return flat.reshape(explained.shape)


def raw_readout(arch: Architecture, problem: Problem, readout: Array) -> np.ndarray:
    """A readout of scaled and reduced features [output, path, feature'] as one of raw features, as users have them."""
    return numbers(_compiled_raw_readout(problem.basis, readout, feature_scales(arch, problem.token_width)))


@jax.jit
def _compiled_raw_readout(basis: Any, readout: Array, scale: Any) -> Array:
    if basis is not None:
        readout = jnp.matmul(readout, basis.T, precision=MATMUL_PRECISION)
    return squeeze_output(jnp.moveaxis(readout * scale, 0, 2))


# JIT-compiled once per shape; run eagerly, every operation would compile separately.
_compiled_energy, _compiled_readout = jax.jit(energy), jax.jit(readout_at)


@jax.jit
def _compiled_moments(problem: Problem, new: Array, scale: Any, factor: Array, temperature: Any) -> tuple[Array, Array]:
    new, gram = new * scale, jnp.matmul(factor, factor.T, precision=MATMUL_PRECISION)
    cross = kernel_between(gram, problem.features, _in_basis(problem, new).transpose(0, 2, 1))
    blocks = gram.reshape(problem.outputs, new.shape[1], problem.outputs, new.shape[1])
    own = jnp.einsum("dadb,xai,xbi->dx", blocks, new, new, precision=MATMUL_PRECISION)
    mean, variance = moments(problem, factor, temperature, cross, own)
    # Rounding may leave a variance of −1e-16 where the data pin the output.
    return squeeze_output(mean), squeeze_output(jnp.maximum(variance, 0))


@jax.jit
def _path_sums(features: Array, readout: Array) -> Array:
    sums = "xai,ai->xa" if readout.ndim == 2 else "xai,aid->xad"
    return jnp.einsum(sums, features, readout, precision=MATMUL_PRECISION)


@jax.jit
def _own_kernel(gram: Array, features: Array, scale: Any) -> Array:
    scaled = (features * scale).transpose(0, 2, 1)
    return kernel_between(gram, scaled, scaled)


def joined(parts: Sequence[Any]) -> Any:
    """Parts of the same pytree, one after another along the first axis."""
    if len(parts) == 1:
        return numbers(parts[0])
    together = jnp.concatenate if traced(parts) else np.concatenate
    return jax.tree.map(lambda *arrays: together(arrays), *parts)


class Predictor(PathSum, eqx.Module):
    """The Gaussian predictor with kernel K(U) on one training set.

    Fields, beside those of `PathSum`:
        problem: the prepared training data.
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
        arch, problem = self.architecture, self.problem
        check_new_examples(features, arch.paths, problem.token_width)
        size = arch.outputs * (arch.paths * problem.token_width + len(problem.labels))
        given = feature_scales(arch, problem.token_width), self.factor, self.temperature
        parts = [_compiled_moments(problem, piece, *given) for piece in pieces(features.values, size)]
        mean, variance = joined(parts)
        # A solution that was not found may predict NaN.
        if not traced(mean) and getattr(self, "converged", True) and not np.isfinite(mean).all():
            raise singular_kernel(self.temperature)
        return Prediction(mean, variance)

    def data_energy(self) -> float:
        """E = ln det(K + τI) + yᵀ(K + τI)⁻¹y, not divided by a width."""
        return numbers(_compiled_energy(self.problem, self.factor, self.temperature))

    def with_order_parameter(self, order_parameter: Any) -> Predictor:
        """The predictor of another U on the same data, for instance with its off-diagonal entries set to zero."""
        return _predictor_of(self.architecture, self.temperature, order_parameter, self.problem)

    def path_readout(self) -> np.ndarray:
        """The mean readout of every path, w_π = s Σ_π' U_ππ' Ξ_π'ᵀ (K + τI)⁻¹ y with s = σ0²/(N0 ∏ H_l).

        Returns:
            w [path, feature], with an output axis behind for several outputs.
        """
        readout = _compiled_readout(self.problem, self.factor, self.temperature)
        return raw_readout(self.architecture, self.problem, readout)


def _predictor_of(arch: Architecture, temperature: Any, order_parameter: Any, problem: Problem) -> Predictor:
    """The predictor of a given U; a traced U must have full rank, so that its factor has derivatives."""
    checked = gram_matrix("order_parameter", order_parameter, arch.order_sizes[0])
    if traced(checked):
        return Predictor(arch, temperature, checked, problem, jnp.linalg.cholesky(checked))
    eigenvalues, vectors = np.linalg.eigh(checked)
    return Predictor(arch, temperature, checked, problem, vectors * np.sqrt(np.maximum(eigenvalues, 0)))


def singular_kernel(temperature: float) -> ValueError:
    """The error if K + τI has no inverse."""
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
    """The Gaussian predictor for any given order parameter U (learning §4).

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
    return _predictor_of(arch, temperature, order_parameter, prepare(arch, features, y, form, temperature))


def label_alignment(kernel_matrix: Any, labels: Any, components: int | None = None) -> np.ndarray:
    """|v_k · y| / √P for the unit eigenvectors v_k of K in descending order of eigenvalue (learning §4).

    Arguments:
        kernel_matrix: K [example, example], without τ.
        labels: y [example]; for labels ±1 the squares of all alignments sum to 1.
        components: the number of leading components; default: all.

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


# Mean and variance of the output of every draw for some examples, [draw, example, output].
Moments = tuple[np.ndarray, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Posterior(PathSum):
    """Draws from the posterior of a network.

    Fields:
        architecture, temperature: of the network.
        order_parameter: the mean of U^1 over draws [row, row]; rows are paths, or (output, path).
        order_parameter_error: its Monte-Carlo standard error, entry by entry.
        diagnostics: whether the chains have mixed.
        draws: the draws themselves, with the groups `posterior` and `sample_stats`, as ArviZ reads them.
    """

    architecture: Architecture
    temperature: float
    order_parameter: np.ndarray
    order_parameter_error: np.ndarray
    diagnostics: Diagnostics
    draws: xarray.DataTree

    def _moments(self, features: PathFeatures) -> Iterator[Moments]:
        """Pieces of the new examples: mean and variance of every draw, all chains in one row."""
        raise NotImplementedError

    def predict(self, features: PathFeatures) -> Prediction:
        """Mean and variance of the output for new examples over all draws, with Monte-Carlo errors of both.

        Arguments:
            features: the attentioned inputs of the new examples, with the paths and token width of training.
        """
        return prediction_over_draws(self._moments(features), self.diagnostics.chains)

    def predictor_draws(self, features: PathFeatures) -> np.ndarray:
        """The predictor of every draw for new examples, [chain, draw, example] (and output)."""
        return means_by_chain(self._moments(features), self.diagnostics.chains)

    def to_xarray(self) -> xarray.DataTree:
        """The draws, as `draws`."""
        return self.draws

    def summary(self) -> dict[str, Any]:
        """The network, the draws, and whether their chains have mixed."""
        return super().summary() | {name: getattr(self.diagnostics, name) for name in ("chains", "draws", "mixed")}


def prediction_over_draws(parts: Iterable[Moments], chains: int) -> Prediction:
    """The law of total variance over draws; errors from the scatter of batches."""
    found = []
    for means, variances in parts:
        share, first = batch_means(means, chains)
        _, second = batch_means(means**2 + variances, chains)
        mean = np.tensordot(share, first, 1)
        variance = np.maximum(np.tensordot(share, second, 1) - mean**2, 0)
        # To first order the variance moves with E[f²] − 2 mean·E[f].
        errors = batch_error(share, first), batch_error(share, second - 2 * mean * first)
        found.append(Prediction(*(squeeze_output(part) for part in (mean, variance, *errors))))
    return joined(found)


def means_by_chain(parts: Iterable[Moments], chains: int) -> np.ndarray:
    """The means of all parts as [chain, draw, example] (and output)."""
    means = np.concatenate([mean for mean, _ in parts], axis=1)
    return squeeze_output(means.reshape(chains, -1, *means.shape[1:]))


def fields_of_draws(
    arch: Architecture, temperature: float, what: str, method: str, found: Mapping[str, Any], stats: SamplerStats
) -> tuple[Architecture, float, np.ndarray, np.ndarray, Diagnostics, xarray.DataTree]:
    """The fields of a `Posterior`, the draws as ArviZ names them.

    `found` has, by name, the axes after chain and draw, and the values [chain, draw, ...]: of U^1, the log density and
    whatever else is kept. "predictor" is only watched for mixing, and "theta" is watched too.
    """
    import xarray

    data = {name: ((*DRAWS, *axes), values) for name, (axes, values) in found.items()}
    grams, density = data["order_parameter"][1], data.pop("log_density")[1]
    predictor = {"predictor": data.pop("predictor")[1]} if "predictor" in data else {}
    upper = grams[..., *np.triu_indices(grams.shape[-1])]
    learned = {"attention parameters": data["theta"][1]} if "theta" in data else {}
    watched = {"order parameter": upper} | learned | predictor | {"log density": density}
    record = {"diverging": stats.diverging, "acceptance_rate": stats.acceptance, "n_steps": stats.steps, "lp": density}
    known: dict[str, Any] = {name: (DRAWS, values) for name, values in record.items() if values is not None}
    both = {axis: np.arange(size) for axis, size in zip(DRAWS, density.shape, strict=True)}
    rows = {axis: list(arch.order_names()) for axis in ROWS}
    attributes = description(arch) | {"temperature": temperature, "method": f"{what}, {method}"}
    groups = {
        "/posterior": xarray.Dataset(data, coords=both | rows, attrs=attributes),
        "/sample_stats": xarray.Dataset(known, coords=both),
    }
    tree = xarray.DataTree.from_dict(groups)
    return arch, temperature, *mean_over_draws(grams), diagnose(method, watched, stats), tree


def batch_means(values: np.ndarray, chains: int) -> tuple[np.ndarray, np.ndarray]:
    """Averages over batches of [chain · draw, ...]: about √draws runs of successive draws in every chain.

    Returns:
        The share of each batch in all draws [batch], and the averages [batch, ...].
    """
    draws = len(values) // chains
    per_chain = max(2, math.isqrt(draws)) if draws > 1 else 1
    edges = -(-draws * np.arange(per_chain) // per_chain)
    starts = (draws * np.arange(chains)[:, None] + edges).ravel()
    counts = np.diff(starts, append=len(values))
    means = np.add.reduceat(values, starts, axis=0) / counts.reshape(-1, *(1,) * (values.ndim - 1))
    return counts / len(values), means


def batch_error(share: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Monte-Carlo standard error of the mean over all draws, from what `batch_means` returns."""
    if len(share) < 2:
        return np.full(means.shape[1:], np.nan)
    apart = means - np.tensordot(share, means, 1)
    return np.sqrt(np.tensordot(share**2, apart**2, 1) * len(share) / (len(share) - 1))


def mean_over_draws(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean over [chain, draw] and its Monte-Carlo standard error."""
    flat = values.reshape(-1, *values.shape[2:])
    return flat.mean(axis=0), batch_error(*batch_means(flat, len(values)))

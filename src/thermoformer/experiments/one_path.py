"""One path through one layer, where the exact posterior is an integral over one number: no Monte Carlo.

With one head in one layer U = σ1² σa² r1² r2² is a number, and √N r1 and √N r2 follow χ with N degrees of freedom each
(learning §6). Only w = ln r1 + ln r2 enters the likelihood. Its prior is the law of a product of two χ variables,

    q(w) = 4 (z/2)^N K_0(z) / Γ(N/2)²        z = N e^w,

with K_0 the modified Bessel function. Against w posterior averages are sums over a grid: the trapezoidal rule, which
converges faster than any power of the spacing for a smooth integrand that falls off on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import gammaln, k0e

from .._progress import inside
from .._validation import fail, labels_for, positive_integer, positive_number
from ..learning import Architecture, PathFeatures, Prediction, gaussian_process, one_loop, solve
from ..sweeps import resumable
from .base import Study
from .sweeping import check_fields, config_of
from .words import with_texts

APPROACHES = ("gaussian process", "saddle", "one-loop")
QUANTITIES = ("mean", "standard deviation", "order parameter")
# Tokens are this many times as wide as there are training examples: the kernel keeps its shape as both grow.
TOKEN_WIDTH_PER_EXAMPLE = 2
# The posterior of w is cut where its density has fallen by this factor, e^−45, from its largest value.
CUT = 45.0


@dataclass(frozen=True)
class OnePathConfig:
    """Everything that decides the numbers of the one-path part.

    Arguments:
        widths: N, with P = N training examples.
        data_sets: how many independent data sets at each width.
        seed: data set i at width N follows from (seed, i, N), whatever else is run.

    Example:
        >>> OnePathConfig().widths[-1]
        1024
    """

    widths: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
    data_sets: int = 8
    test_examples: int = 100
    temperature: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, above_zero=["temperature"], ascending={"widths": "width"})


@dataclass(frozen=True, eq=False)
class QuadraturePosterior:
    """The exact posterior of a network with one path and one layer.

    Fields:
        nodes, weights: values of U and their posterior probabilities, which sum to 1, [node].
        order_parameter: the posterior mean of U [1, 1].
        log_evidence: ln p(y), exact.
    """

    nodes: np.ndarray
    weights: np.ndarray
    order_parameter: np.ndarray
    log_evidence: float
    # Training inputs ξ/√N0, scaled by σ0; eigenvalues and eigenvectors of their kernel, and the labels in its basis.
    inputs: np.ndarray
    eigenvalues: np.ndarray
    eigenvectors: np.ndarray
    labels: np.ndarray
    scale: float
    temperature: float

    def predict(self, features: PathFeatures) -> Prediction:
        """mean = E_U[mean_U] and variance = E_U[variance_U] + Var_U[mean_U], by quadrature."""
        new = np.asarray(features.values)[:, 0] * self.scale
        cross = self.eigenvectors.T @ (self.inputs @ new.T)
        gain = self.nodes[:, None] / (self.nodes[:, None] * self.eigenvalues + self.temperature)
        means = (gain * self.labels) @ cross
        variances = self.nodes[:, None] * (np.sum(new**2, axis=1) - gain @ cross**2)
        mean = self.weights @ means
        return Prediction(mean, self.weights @ (variances + (means - mean) ** 2))


def quadrature_posterior(
    arch: Architecture, features: PathFeatures, labels: Any, *, temperature: float, nodes: int = 400
) -> QuadraturePosterior:
    """The exact posterior at finite width for one path and one layer, by quadrature (learning §6).

    Arguments:
        arch: one layer with one head, equal widths, one output, no skip.
        features: attentioned inputs ξ [example, 1, feature] of the training examples.
        labels: y [example].
        temperature: τ > 0.
        nodes: points of the grid; 400 give relative errors under 1e-12.

    Example:
        >>> import numpy as np
        >>> feats = PathFeatures.from_attentioned_inputs(np.random.default_rng(0).normal(size=(5, 1, 10)))
        >>> exact = quadrature_posterior(Architecture((1,), 4), feats, [1, -1, 1, 1, -1], temperature=0.3)
        >>> exact.order_parameter.shape, round(float(exact.weights.sum()), 12)
        ((1, 1), 1.0)
    """
    if arch.heads != (1,) or arch.outputs != 1 or arch.skip or len(set(arch.widths)) > 1:
        raise fail("arch", arch, "one layer with one head, equal widths, one output and no skip")
    if features.paths != 1:
        raise fail("features", f"{features.paths} paths", "one")
    y = labels_for("labels", labels, features.examples)
    temperature = positive_number("temperature", temperature)
    if positive_integer("nodes", nodes) < 50:
        raise fail("nodes", nodes, "50 or more")
    scale = math.sqrt(arch.variances[0] / features.token_width)
    inputs = np.asarray(features.values)[:, 0] * scale
    eigenvalues, eigenvectors = np.linalg.eigh(inputs @ inputs.T)
    eigenvalues, rotated = np.maximum(eigenvalues, 0), eigenvectors.T @ y

    def log_joint(w: np.ndarray) -> np.ndarray:
        """ln p(y | U) + ln q(w)."""
        spread = arch.infinite_width_variance * np.exp(2 * w)[:, None] * eigenvalues + temperature
        energy = np.sum(np.log(spread) + rotated**2 / spread, axis=1)
        return -0.5 * (energy + len(y) * math.log(2 * math.pi)) + log_prior_density(w, arch.widths[0])

    grid, values = _posterior_grid(log_joint, nodes, lowest=-2 * CUT / min(arch.widths[0], 4) - 20)
    largest = values.max()
    weights = np.exp(values - largest)
    total = weights.sum()
    order = arch.infinite_width_variance * np.exp(2 * grid)
    return QuadraturePosterior(
        nodes=order,
        weights=weights / total,
        order_parameter=np.array([[weights @ order / total]]),
        log_evidence=float(largest + np.log(total * (grid[1] - grid[0]))),
        inputs=inputs,
        eigenvalues=eigenvalues,
        eigenvectors=eigenvectors,
        labels=rotated,
        scale=scale,
        temperature=temperature,
    )


def _posterior_grid(
    log_density: Callable[[np.ndarray], np.ndarray], nodes: int, lowest: float
) -> tuple[np.ndarray, np.ndarray]:
    """A grid over where a density lies, and its logarithm there: from one over everything possible, in three cuts."""
    grid = np.linspace(lowest, 20.0, nodes)
    values = log_density(grid)
    for _ in range(3):
        likely = np.flatnonzero(values > values.max() - CUT)
        grid = np.linspace(grid[max(likely[0] - 1, 0)], grid[min(likely[-1] + 1, nodes - 1)], nodes)
        values = log_density(grid)
    return grid, values


def log_prior_density(w: np.ndarray, width: int) -> np.ndarray:
    """ln q(w), the prior of w = ln r1 + ln r2: see the head of this file."""
    z = width * np.exp(w)
    # k0e(z) = e^z K_0(z) neither under- nor overflows.
    return math.log(4) + width * np.log(z / 2) + np.log(k0e(z)) - z - 2 * gammaln(width / 2)


def one_path_problem(config: OnePathConfig, width: int, index: int) -> tuple[PathFeatures, np.ndarray, PathFeatures]:
    """Training features and labels and test features: random inputs, labels a smooth function of one direction."""
    generator = np.random.default_rng((config.seed, index, width))
    token_width = TOKEN_WIDTH_PER_EXAMPLE * width
    inputs = generator.normal(size=(width + config.test_examples, 1, token_width))
    direction = generator.normal(size=token_width) / math.sqrt(token_width)
    labels = np.tanh(2 * inputs[:width, 0] @ direction) + 0.3 * generator.normal(size=width)
    features = PathFeatures.from_attentioned_inputs(inputs)
    return features[:width], labels, features[width:]


@resumable
def one_path_point(seed: int, width: int, config: Mapping[str, Any]) -> xr.Dataset:
    """One data set at one width: a point of the sweep.

    Arguments:
        seed: which data set.
        width: N, and P.
        config: the record of a `OnePathConfig`.
    """
    settings = config_of(OnePathConfig, config)
    inside.get()(0, 1, f"one path by quadrature, N = {width}, data set {seed + 1}")
    features, labels, test = one_path_problem(settings, width, seed)
    given = (Architecture((1,), width), features, labels)
    exact = quadrature_posterior(*given, temperature=settings.temperature)
    saddle = solve(*given, temperature=settings.temperature)
    limit = gaussian_process(*given, temperature=settings.temperature)
    found, truth = (limit, saddle, one_loop(saddle)), _values(exact, test)
    errors = [[_relative(*pair) for pair in zip(_values(each, test), truth, strict=True)] for each in found]
    evidence_errors = [abs(each.log_evidence - exact.log_evidence) for each in found]
    return xr.Dataset(
        {
            "error": (("approach", "quantity"), errors, {"long_name": "relative error against quadrature"}),
            "evidence_error": (
                "approach",
                evidence_errors,
                {"long_name": "absolute error of the log evidence against quadrature"},
            ),
            "log_evidence": ((), exact.log_evidence, {"long_name": "exact log evidence of the training labels"}),
        },
        {"approach": list(APPROACHES), "quantity": list(QUANTITIES)},
    )


def fitted_slope(error: xr.DataArray, least_width: int = 16) -> float:
    """The power of N that errors [seed, width] follow, by least squares in logarithms over widths from the least on.

    Example:
        >>> widths = [16, 32, 64]
        >>> values = xr.DataArray([[1.0, 0.5, 0.25]], {"width": widths}, ("seed", "width"))
        >>> round(fitted_slope(values), 6)
        -1.0
    """
    chosen = error.sel(width=error.width >= least_width)
    if chosen.sizes["width"] < 2:
        raise fail("error", f"{chosen.sizes['width']} widths of {least_width} or more", "two or more")
    logs = np.log(chosen.transpose("seed", "width").values).mean(axis=0)
    return float(np.polyfit(np.log(chosen.width.values), logs, 1)[0])


def _values(result: Any, test: PathFeatures) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The three quantities of a solution or of the exact posterior."""
    prediction = result.predict(test)
    return prediction.mean, np.sqrt(prediction.variance), np.asarray(result.order_parameter)


def _relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.sqrt(np.mean((ours - theirs) ** 2) / np.mean(theirs**2)))


class OnePath(Study):
    """Errors of Gaussian process, saddle and one-loop against quadrature, at P = N: a sweep over data sets and widths.

    Its Dataset has `error` [seed, width, approach, quantity], relative root-mean-square over the test examples;
    `evidence_error` [seed, width, approach], absolute; `log_evidence` [seed, width], exact. Here a seed is a data set.
    It has no page of its own: it is a part of the experiment on width convergence.
    """

    name, title = "one_path", "One path, one layer: theory against quadrature"
    config, point = OnePathConfig, one_path_point
    # Which other data sets and widths there are changes no point.
    over: ClassVar = {"seed": "data_sets", "width": "widths"}
    same: ClassVar = {"data_sets": 1, "widths": (1,)}

    def batch(self, config: OnePathConfig) -> dict[str, int]:
        """Width by width: each is compiled anew."""
        return {"seed": config.data_sets}

    def tables(self, dataset: xr.Dataset, config: OnePathConfig) -> dict[str, pd.DataFrame]:
        """Every error."""
        wide = dataset.error.to_dataset("quantity").assign(log_evidence=dataset.evidence_error)
        frame = wide.to_dataframe(dim_order=("width", "seed", "approach")).reset_index()
        columns = [*QUANTITIES, "log_evidence"]
        frame = frame[["width", "seed", "approach", *columns]].rename(columns={"seed": "data_set"})
        return {"one_path": with_texts(frame, **dict.fromkeys(columns, ".6g"))}

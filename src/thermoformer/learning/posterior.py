"""What samplers return: draws, the mean order parameter, and predictions with their Monte-Carlo errors."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .network import Architecture
from .paths import PathFeatures
from .predictor import PathSum, Prediction
from .sampling import Diagnostics, SamplerStats

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True, eq=False)
class Posterior(PathSum):
    """Draws from the posterior of a network, however it was sampled.

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

    @abc.abstractmethod
    def predict(self, features: PathFeatures) -> Prediction:
        """Mean and variance of the network's output for new examples, with Monte-Carlo errors."""

    @abc.abstractmethod
    def predictor_draws(self, features: PathFeatures) -> np.ndarray:
        """The predictor of every draw for new examples, [chain, draw, example] (and output)."""

    def to_xarray(self) -> xarray.DataTree:
        """The draws, as `draws`."""
        return self.draws


def draws_tree(
    arch: Architecture,
    posterior: Mapping[str, tuple[tuple[str, ...], np.ndarray]],
    stats: SamplerStats,
    **attributes: Any,
) -> xarray.DataTree:
    """Draws and the sampler's own record as ArviZ names them.

    Arguments:
        posterior: by name, the axes after chain and draw, and the values [chain, draw, ...].
    """
    import xarray

    names = list(arch.order_names())
    coordinates = {axis: names for axis in ("path", "path_other")}
    data = {name: (("chain", "draw", *axes), values) for name, (axes, values) in posterior.items()}
    chains, draws = next(iter(posterior.values()))[1].shape[:2]
    both = {"chain": np.arange(chains), "draw": np.arange(draws)}
    record = {"diverging": stats.diverging, "acceptance_rate": stats.acceptance, "n_steps": stats.steps}
    kept: dict[str, Any] = {name: (("chain", "draw"), values) for name, values in record.items() if values is not None}
    if "log_density" in data:
        kept["lp"] = data.pop("log_density")
    described = {
        "heads": list(arch.heads),
        "widths": list(arch.widths),
        "variances": list(arch.variances),
        "outputs": arch.outputs,
        "skip": int(arch.skip),
        **attributes,
    }
    used = {axis for axes, _ in data.values() for axis in axes}
    named = {axis: values for axis, values in coordinates.items() if axis in used}
    return xarray.DataTree.from_dict(
        {
            "/posterior": xarray.Dataset(data, coords=both | named, attrs=described),
            "/sample_stats": xarray.Dataset(kept, coords=both),
        }
    )


def batch_numbers(chains: int, draws: int) -> np.ndarray:
    """The batch that each draw belongs to [chain, draw]: about √draws runs of successive draws in every chain."""
    per_chain = max(2, math.isqrt(draws)) if draws > 1 else 1
    within = np.arange(draws) * per_chain // draws
    return np.arange(chains)[:, None] * per_chain + within[None, :]


def batch_error(means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Monte-Carlo standard error of the mean over all draws from the means of batches [batch, ...]."""
    if len(counts) < 2:
        return np.full(means.shape[1:], np.nan)
    share = (counts / counts.sum()).reshape(-1, *(1,) * (means.ndim - 1))
    apart = means - (share * means).sum(axis=0)
    return np.sqrt((share**2 * apart**2).sum(axis=0) * len(counts) / (len(counts) - 1))


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean over [chain, draw] and its Monte-Carlo standard error."""
    numbers = batch_numbers(*values.shape[:2]).ravel()
    flat = values.reshape(len(numbers), *values.shape[2:])
    counts = np.bincount(numbers)
    means = np.stack([flat[numbers == number].mean(axis=0) for number in range(len(counts))])
    return flat.mean(axis=0), batch_error(means, counts)


def prediction_from_batches(
    means: np.ndarray, squares: np.ndarray, variances: np.ndarray, counts: np.ndarray
) -> Prediction:
    """The law of total variance from averages within batches of draws, with errors from their scatter.

    Arguments:
        means, squares, variances: averages of mean_U, mean_U² and variance_U in each batch, [batch, example, ...].
        counts: draws in each batch.
    """
    share = (counts / counts.sum()).reshape(-1, *(1,) * (means.ndim - 1))
    mean = (share * means).sum(axis=0)
    second = squares + variances
    variance = np.maximum((share * second).sum(axis=0) - mean**2, 0)
    # To first order the variance moves with E[f²] − 2 mean·E[f].
    return Prediction(mean, variance, batch_error(means, counts), batch_error(second - 2 * mean * means, counts))

"""One path through one layer, where the exact posterior is an integral over one number: no Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from .._progress import inside
from .._validation import fail
from ..learning import Architecture, PathFeatures, gaussian_process, one_loop, solve
from ..learning.quadrature import quadrature_posterior
from ..sweeps import resumable
from .base import Study
from .sweeping import check_fields, config_of
from .words import with_texts

APPROACHES = ("gaussian process", "saddle", "one-loop")
QUANTITIES = ("mean", "standard deviation", "order parameter")
# Tokens are this many times as wide as there are training examples: the kernel keeps its shape as both grow.
TOKEN_WIDTH_PER_EXAMPLE = 2


@dataclass(frozen=True)
class OnePathConfig:
    """Everything that decides the numbers of the one-path part.

    Arguments:
        widths: N, with P = N training examples.
        data_sets: how many independent data sets at each width.
        seed: data set i at width N follows from (seed, i, N).
    """

    widths: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
    data_sets: int = 8
    test_examples: int = 100
    temperature: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, above_zero=["temperature"], ascending={"widths": "width"})


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
    """The power of N that errors [seed, width] follow, by least squares in logarithms over widths from the least on."""
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

"""Scores of the heads of a trained network, from training and validation sequences alone, and orders of removal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from ..._progress import Progress
from ...learning import HeadScores, PathFeatures, evidence_scores, head_scores, solve_grid
from ...learning.architecture import Architecture
from ...learning.scores import head_name
from ...networks import (
    gradient_importance,
    magnitude_scores,
    random_orders,
    removal_order,
    rescored_order,
    trained_scores,
)
from .config import RESCORED, SCORES, PruningConfig, PruningInputs

Head = tuple[int, int]


def code_of(heads: Sequence[Head], removed: Sequence[Head]) -> int:
    """A set of removed heads as one number: bit i stands for head i."""
    return sum(1 << heads.index(head) for head in removed)


def removed_heads(heads: Sequence[Head], code: int) -> list[Head]:
    """The set of removed heads that a number stands for."""
    return [head for index, head in enumerate(heads) if code >> index & 1]


def score_data(config: PruningConfig, inputs: PruningInputs, progress: Progress) -> xr.Dataset:
    """`score` [score, head], and `grid_accuracy` [width, temperature] on validation sequences.

    Width and temperature of the theory are those with the highest validation accuracy.
    """
    network = inputs.network
    x, y = inputs.tasks["training"].sequences(config.training_sequences)
    features = network.path_features(x)
    progress(0, 3, "theory over widths and temperatures")
    axes = {"widths": config.widths, "temperatures": config.temperatures}
    grid = solve_grid(network.arch, features, y, **axes, throw=False)
    held_out, labels = inputs.tasks["validation"].sequences(config.validation_sequences)
    validation = network.path_features(held_out)
    accuracy = np.array([[one.predict(validation).accuracy(labels) for one in row] for row in grid.solutions])
    row, column = np.unravel_index(np.argmax(accuracy), accuracy.shape)
    chosen = grid.solutions[row][column]
    progress(1, 3, "scores of heads")
    arch, temperature = chosen.architecture, chosen.temperature
    found: dict[str, HeadScores] = {
        "theory": head_scores(arch, chosen.order_parameter),
        "evidence": evidence_scores(arch, features, y, temperature=temperature, solution=chosen),
        "gradient": gradient_importance(network, x, y),
        "trained": trained_scores(network),
    }
    return xr.Dataset(
        {
            "score": (("score_name", "head"), np.array([found[name].values for name in SCORES])),
            "grid_accuracy": (("width", "temperature"), accuracy),
            "grid_converged": (("width", "temperature"), grid.converged.astype(np.int8)),
        },
        {
            "score_name": list(SCORES),
            "head": [head_name(head) for head in inputs.heads],
            "width": list(config.widths),
            "temperature": list(config.temperatures),
        },
        {"chosen_width": int(arch.widths[0]), "chosen_temperature": float(temperature)},
    )


def rescored_data(config: PruningConfig, inputs: PruningInputs, scores: xr.Dataset, progress: Progress) -> xr.Dataset:
    """`rescored` [order, removed]: codes of the heads gone where the theory is solved again after each."""
    x, y = inputs.tasks["training"].sequences(config.training_sequences)
    features: PathFeatures = inputs.network.path_features(x)
    arch: Architecture = inputs.network.arch.replace(widths=int(scores.chosen_width))
    codes = []
    for number, (name, kind) in enumerate(zip(RESCORED, ("order parameter", "evidence"), strict=True)):
        progress(number, len(RESCORED), name)
        order = rescored_order(arch, features, y, temperature=float(scores.chosen_temperature), score=kind)
        codes.append(codes_along(inputs.heads, order))
    return xr.Dataset({"rescored": (("order", "removed"), np.array(codes))}, {"order": list(RESCORED)})


def codes_along(heads: Sequence[Head], order: Sequence[Head]) -> list[int]:
    """The codes of what is gone as heads go in an order, none first."""
    return [code_of(heads, order[:count]) for count in range(len(order) + 1)]


def order_codes(config: PruningConfig, inputs: PruningInputs, scores: xr.Dataset, subsets: xr.Dataset) -> xr.Dataset:
    """`order_code` [order, removed] of every score, and `random_code` [random, removed].

    The search is no order: at each number of heads it is the set with the highest validation accuracy.
    """
    arch, heads = inputs.network.arch, inputs.heads
    codes: dict[str, list[int]] = {}
    for name in SCORES:
        ascending = HeadScores(heads, scores.score.sel(score_name=name).values).ascending()
        codes[name] = codes_along(heads, removal_order(arch, ascending))
        if name == "theory":
            codes["theory, descending"] = codes_along(heads, removal_order(arch, ascending[::-1]))
    codes["magnitude"] = codes_along(heads, removal_order(arch, magnitude_scores(inputs.network).ascending()))
    size = np.array([int(code).bit_count() for code in subsets.subset.values])
    validation = subsets.accuracy.sel(part="validation").values
    best = [np.flatnonzero(size == count)[np.argmax(validation[size == count])] for count in range(size.max() + 1)]
    codes["search"] = subsets.subset.values[best].tolist()
    drawn = random_orders(arch, config.random_orders, key=config.seed)
    return xr.Dataset(
        {
            "order_code": (("order", "removed"), np.array(list(codes.values()))),
            "random_code": (("random", "removed"), np.array([codes_along(heads, order) for order in drawn])),
        },
        {"order": list(codes), "removed": np.arange(size.max() + 1)},
    )


def all_codes(arch: Architecture, heads: Sequence[Head]) -> list[int]:
    """Every set of heads that leaves one in each layer, the empty one first."""
    allowed = []
    for code in range(1 << len(heads)):
        gone = [layer for layer, _ in removed_heads(heads, code)]
        if all(gone.count(layer) < count for layer, count in enumerate(arch.heads)):
            allowed.append(code)
    return allowed

"""What is chosen by validation and by evidence, how much the U of theory and trained network agree, and tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import rankdata

from ...learning import Architecture
from ..words import fixed, percent, spread, width_name, with_texts

PART_NAMES = {
    "validation": "validation characters",
    "test": "test characters",
    "fashion-mnist": "Fashion-MNIST",
    "mnist": "MNIST",
}

COEFFICIENTS = ("Pearson", "Pearson, off the diagonal", "Spearman", "Spearman, off the diagonal")
# Orders of the heads that chance is measured with, where there are too many to try them all.
_ORDERS = 1000


_CHOICES = ("validation", "evidence")
# Variables of all repetitions, by what is chosen how.
_REPEATED = {
    "τ by validation": "repeated_accuracy",
    "τ by evidence": "repeated_evidence_accuracy",
    "τ and variance by evidence": "repeated_free_accuracy",
    "trained U": "repeated_trained_order_accuracy",
    "trained network": "repeated_trained_accuracy",
}


def order_correlation(first: Any, second: Any, *, ranks: bool = False, diagonal: bool = True) -> float:
    """Correlation of the distinct entries of two symmetric matrices; nan if one of them is constant.

    Arguments:
        first, second: U [path, path].
        ranks: Spearman's coefficient, in place of Pearson's.
        diagonal: whether its entries count.

    Example:
        >>> round(order_correlation([[2.0, 1.0], [1.0, 3.0]], [[4.0, 2.0], [2.0, 6.0]]), 12)
        1.0
    """
    as_it_stands = [np.arange(len(second))]
    return float(_correlations_in_orders(first, second, as_it_stands, ranks=ranks, diagonal=diagonal)[0])


def order_chance(
    first: Any, second: Any, heads: tuple[int, ...], *, ranks: bool = False, diagonal: bool = True
) -> float:
    """How often the correlation is as large when the second matrix has its heads in another order, its own included.

    Arguments:
        first, second: U [path, path].
        heads: how many heads each layer has.
        ranks, diagonal: as in `order_correlation`.
    """
    return _chance(_correlations_in_orders(first, second, _orders(heads), ranks=ranks, diagonal=diagonal))


def correlations(dataset: xr.Dataset) -> xr.Dataset:
    """`correlation` and `correlation_chance` of the experiment's Dataset.

    Chance is measured by giving the heads of each layer of the trained network another order, which keeps everything
    but who is who: the part of such orders, its own included, with a correlation that is as large.
    """
    trained, orders = dataset.trained_order_parameter.values, _orders(tuple(dataset.heads.values.tolist()))
    matrices = dataset.order_parameter.transpose("width", "temperature", ...).values
    found = np.full((2, len(COEFFICIENTS), *matrices.shape[:2]), np.nan)
    for number, name in enumerate(COEFFICIENTS):
        for at in np.ndindex(matrices.shape[:2]):
            tried = _correlations_in_orders(matrices[at], trained, orders, **_setting(name))
            found[(slice(None), number, *at)] = tried[0], _chance(tried)
    axes = ("coefficient", "width", "temperature")
    data = {"correlation": (axes, found[0]), "correlation_chance": (axes, found[1])}
    return xr.Dataset(data, {"coefficient": list(COEFFICIENTS)})


def _correlations_in_orders(
    first: Any, second: Any, orders: list[np.ndarray], *, ranks: bool, diagonal: bool
) -> np.ndarray:
    """Correlations with the second matrix in every order of its paths; nan if a matrix is constant up to rounding."""
    first, second = np.asarray(first, float), np.asarray(second, float)
    rows, columns = np.triu_indices(len(first), 0 if diagonal else 1)
    ours, theirs = first[rows, columns], np.stack([second[np.ix_(order, order)][rows, columns] for order in orders])
    if ranks:
        ours, theirs = rankdata(ours), rankdata(theirs, axis=1)
    ours, theirs = ours - ours.mean(), theirs - theirs.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(theirs, axis=1) * np.linalg.norm(ours)
    # Entries of the Gaussian process are all the same off the diagonal, up to rounding.
    norm[norm <= 1e-12 * np.abs(second).max() ** 2] = np.nan
    return np.clip(theirs @ ours / norm, -1, 1)


def _chance(tried: np.ndarray) -> float:
    """The part of correlations that are as large as the first."""
    return float(np.mean(tried >= tried[0] - 1e-12)) if np.isfinite(tried[0]) else np.nan


def _orders(heads: tuple[int, ...]) -> list[np.ndarray]:
    """Orders of the paths that come from orders of the heads within their layers, that as they stand first."""
    paths = np.arange(Architecture(heads, 1).paths).reshape(heads)
    if math.prod(math.factorial(count) for count in heads) <= _ORDERS:
        everyone = itertools.product(*(itertools.permutations(range(count)) for count in heads))
        return [paths[np.ix_(*orders)].ravel() for orders in everyone]
    random = np.random.default_rng(0)
    others = [paths[np.ix_(*(random.permutation(count) for count in heads))].ravel() for _ in range(_ORDERS)]
    return [paths.ravel(), *others]


def with_choices(dataset: xr.Dataset) -> xr.Dataset:
    """The Dataset with the temperature of each width, and the width that is compared, from validation and evidence."""
    validation = dataset.accuracy.sel(part="validation", drop=True)
    evidence = dataset.log_evidence.where(np.isfinite(dataset.log_evidence), -np.inf)
    finite = validation.max("temperature").where(np.isfinite(dataset.width), -np.inf)
    return dataset.assign(
        temperature_by_validation=validation.idxmax("temperature"),
        temperature_by_evidence=evidence.idxmax("temperature"),
        compared_width=finite.idxmax("width"),
    )


def at_choice(dataset: xr.Dataset, how: str) -> xr.Dataset:
    """The Dataset at the temperature that was chosen for each width, by "validation" or by "evidence"."""
    return dataset.sel(temperature=dataset[f"temperature_by_{how}"])


def with_trained_order(dataset: xr.Dataset) -> xr.DataArray:
    """Accuracy of the Gaussian predictor with the U of the trained weights, at the τ that validation chooses."""
    accuracy = dataset.trained_order_accuracy
    return accuracy.sel(temperature=accuracy.sel(part="validation", drop=True).idxmax("temperature"))


def accuracies(dataset: xr.Dataset) -> dict[str, xr.DataArray]:
    """Accuracies [width, part], or [part], at the choices of validation characters and evidence; see `_REPEATED`."""
    found = {
        "τ by validation": at_choice(dataset, "validation").accuracy,
        "τ by evidence": at_choice(dataset, "evidence").accuracy,
        "trained U": with_trained_order(dataset),
        "trained network": dataset.trained_accuracy,
    }
    return found | ({"τ and variance by evidence": dataset.free_accuracy} if "free_accuracy" in dataset else {})


def repeated(repetitions: list[xr.Dataset]) -> xr.Dataset:
    """Accuracies of all repetitions, each at the choices of its own validation characters and evidence."""
    # Their temperatures differ, and would be taken for a coordinate that all share.
    found = [
        xr.Dataset({_REPEATED[name]: one.drop_vars("temperature", errors="ignore") for name, one in each.items()})
        for each in map(accuracies, repetitions)
    ]
    return xr.concat(found, "repetition", data_vars="all", coords="minimal", compat="override", join="exact")


def repeated_accuracies(dataset: xr.Dataset) -> dict[str, xr.DataArray]:
    """The same with a first axis repetition, of which there may be one."""
    if "repeated_accuracy" in dataset:
        return {name: dataset[variable] for name, variable in _REPEATED.items() if variable in dataset}
    return {name: values.expand_dims("repetition") for name, values in accuracies(dataset).items()}


def finite_widths(dataset: xr.Dataset) -> np.ndarray:
    """The widths without the infinite one."""
    return dataset.width.values[np.isfinite(dataset.width.values)]


def order_parameters(dataset: xr.Dataset) -> dict[str, np.ndarray]:
    """U by where it comes from, theory first and trained weights last, all with the trace of the theory's."""
    width = float(dataset.compared_width)
    theory = at_choice(dataset, "validation").order_parameter.sel(width=width).values
    found = {f"theory, {width_name(width)}": theory}
    if "sampled_order_parameter" in dataset:
        found[f"sampled networks, {width_name(width)}"] = dataset.sampled_order_parameter.values
    found["trained weights"] = dataset.trained_order_parameter.values
    return {name: matrix * np.trace(theory) / np.trace(matrix) for name, matrix in found.items()}


def head_scores(dataset: xr.Dataset) -> dict[str, np.ndarray]:
    """Scores of all heads by where U comes from, in the order of `order_parameters`."""
    width = float(dataset.compared_width)
    theory = at_choice(dataset, "validation").head_score.sel(width=width).values
    found = {f"theory, {width_name(width)}": theory}
    if "sampled_head_score" in dataset:
        found[f"sampled networks, {width_name(width)}"] = dataset.sampled_head_score.values
    return found | {"trained weights": dataset.trained_head_score.values}


def chosen_tables(dataset: xr.Dataset) -> list[tuple[list[str], list[list[str]]]]:
    """Headers and rows of accuracies by width and part of the images, one table per way to choose."""

    def rows(accuracy: xr.DataArray, settings: Iterable[str]) -> list[list[str]]:
        pairs = zip(dataset.width.values, settings, strict=True)
        return [[width_name(width), setting, *_by_part(accuracy.sel(width=width))] for width, setting in pairs]

    tables = []
    for how in _CHOICES:
        at = at_choice(dataset, how)
        tables.append(([f"by {how}", "τ"], rows(at.accuracy, (f"{value:g}" for value in at.temperature.values))))
    best = with_trained_order(dataset)
    tables[0][1].append(["GP, trained U", f"{best.temperature.item():g}", *_by_part(best)])
    tables[0][1].append(["trained network", "", *_by_part(dataset.trained_accuracy)])
    if "free_accuracy" in dataset:
        pairs = zip(dataset.free_temperature.values, dataset.free_product.values, strict=True)
        settings = (f"{temperature:.3g}, {product:.3g}" for temperature, product in pairs)
        tables.append((["by evidence", "τ, product of variances"], rows(dataset.free_accuracy, settings)))
    return tables


def repetition_tables(dataset: xr.Dataset) -> list[tuple[list[str], list[list[str]]]]:
    """The same as mean and standard deviation over draws of the sequences, if there are several."""
    if "repeated_accuracy" not in dataset:
        return []
    found, tables = repeated_accuracies(dataset), []
    for choice in ("τ by validation", "τ by evidence", "τ and variance by evidence"):
        if choice in found:
            rows = {width_name(width): found[choice].sel(width=width) for width in dataset.width.values}
            if choice == "τ by validation":
                rows |= {"GP, trained U": found["trained U"], "trained network": found["trained network"]}
            cells = {name: [spread(100 * one.sel(part=part)) for part in PART_NAMES] for name, one in rows.items()}
            tables.append(([choice], [[name, *texts] for name, texts in cells.items()]))
    return tables


def correlation_rows(dataset: xr.Dataset) -> list[list[str]]:
    """Correlations of the theory's U with that of the trained network, at every width."""
    lines, chosen = [], at_choice(dataset, "validation")
    for width in finite_widths(dataset):
        at = chosen.sel(width=width)
        pairs = zip(at.correlation.values, at.correlation_chance.values, strict=True)
        cells = ["" if np.isnan(value) else f"{fixed(value, 2)} (chance {chance:.3f})" for value, chance in pairs]
        lines.append([width_name(width), f"{float(at.temperature):g}", *cells])
    return lines


def pair_rows(dataset: xr.Dataset) -> list[list[str]]:
    """Correlations between every two of theory, sampled networks and trained weights."""
    matrices, heads = order_parameters(dataset), tuple(int(count) for count in np.atleast_1d(dataset.attrs["layers"]))
    *_, last = matrices
    lines = []
    for (first, one), (second, other) in itertools.combinations(matrices.items(), 2):
        cells = []
        for name in COEFFICIENTS:
            text = fixed(order_correlation(one, other, **_setting(name)), 3)
            if second == last:
                text += f" (chance {order_chance(one, other, heads, **_setting(name)):.3f})"
            cells.append(text)
        lines.append([f"{first}; {second}", *cells])
    return lines


def accuracy_table(dataset: xr.Dataset) -> pd.DataFrame:
    """Every width and temperature: all that choices, figures and correlations are made of."""
    percents = {f"{part}_percent": 100 * dataset.accuracy.sel(part=part, drop=True) for part in dataset.part.values}
    correlated = {
        name.lower().replace(",", "").replace(" ", "_"): dataset.correlation.sel(coefficient=name, drop=True)
        for name in COEFFICIENTS
    }
    chosen = {f"chosen_by_{how}": dataset[f"temperature_by_{how}"] == dataset.temperature for how in _CHOICES}
    data = percents | {"log_evidence": dataset.log_evidence, "converged": dataset.converged} | chosen | correlated
    frame = xr.Dataset(data).to_dataframe(dim_order=("width", "temperature"))[[*data]].reset_index()
    forms = {"width": "g", "temperature": "g", **dict.fromkeys(percents, ".2f"), "log_evidence": ".3f"}
    forms |= {**dict.fromkeys(("converged", *chosen), ".0f"), **dict.fromkeys(correlated, ".4f")}
    trained = dict(zip(percents, 100 * dataset.trained_accuracy.values, strict=True))
    rows = pd.concat([frame.astype(float), pd.DataFrame([trained])])
    return with_texts(rows, **forms).replace({"width": {"": "trained network"}})


def score_table(dataset: xr.Dataset) -> pd.DataFrame:
    """Scores of all heads."""
    scores = head_scores(dataset)
    return with_texts(pd.DataFrame({"head": dataset["head"].values, **scores}), **dict.fromkeys(scores, ".4f"))


def _by_part(accuracy: xr.DataArray) -> list[str]:
    return [percent(accuracy.sel(part=part)) for part in PART_NAMES]


def _setting(coefficient: str) -> dict[str, bool]:
    return {"ranks": coefficient.startswith("Spearman"), "diagonal": "off" not in coefficient}

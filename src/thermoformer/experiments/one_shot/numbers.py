"""What is chosen by validation and by evidence, how much the U of theory and trained network agree, and tables."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import rankdata

from ...learning import Architecture
from ..words import fixed, percent, width_name

PART_NAMES = {
    "validation": "validation characters",
    "test": "test characters",
    "fashion-mnist": "Fashion-MNIST",
    "mnist": "MNIST",
}

COEFFICIENTS = ("Pearson", "Pearson, off the diagonal", "Spearman", "Spearman, off the diagonal")
# Orders of the heads that chance is measured with, where there are too many to try them all.
_ORDERS = 1000


def order_correlation(first: Any, second: Any, *, ranks: bool = False, diagonal: bool = True) -> float:
    """Correlation of the distinct entries of two symmetric matrices; nan where one of them is constant.

    Arguments:
        first, second: U [path, path].
        ranks: Spearman's coefficient, in place of Pearson's.
        diagonal: whether its entries count.

    Example:
        >>> order_correlation([[2.0, 1.0], [1.0, 3.0]], [[4.0, 2.0], [2.0, 6.0]])
        1.0
    """
    first, second = np.asarray(first, float), np.asarray(second, float)
    rows, columns = np.triu_indices(len(first), 0 if diagonal else 1)
    one, other = first[rows, columns], second[rows, columns]
    if ranks:
        one, other = rankdata(one), rankdata(other)
    one, other = one - one.mean(), other - other.mean()
    norm = math.sqrt(float(one @ one) * float(other @ other))
    # Entries of the Gaussian process are all the same off the diagonal, up to rounding.
    return float(np.clip(one @ other / norm, -1, 1)) if norm > 1e-12 * np.abs(second).max() ** 2 else math.nan


def correlations(dataset: xr.Dataset) -> xr.Dataset:
    """`correlation` and `correlation_chance` of the experiment's Dataset.

    Chance is measured by giving the heads of each layer of the trained network another order, which keeps everything
    but who is who: the part of such orders, its own included, with a correlation that is as large.
    """
    trained = dataset.trained_order_parameter.values
    heads = tuple(int(count) for count in dataset.heads.values)
    matrices = dataset.order_parameter.transpose("width", "temperature", ...).values
    places = _orders(heads)
    found = np.full((len(COEFFICIENTS), *matrices.shape[:2]), np.nan)
    chance = found.copy()
    for number, name in enumerate(COEFFICIENTS):
        setting = _setting(name)
        for at in np.ndindex(matrices.shape[:2]):
            found[(number, *at)] = order_correlation(matrices[at], trained, **setting)
            if np.isfinite(found[(number, *at)]):
                tried = _correlations_in_orders(matrices[at], trained, places, **setting)
                chance[(number, *at)] = np.mean(tried >= tried[0] - 1e-12)
    axes = ("coefficient", "width", "temperature")
    data = {"correlation": (axes, found), "correlation_chance": (axes, chance)}
    return xr.Dataset(data, {"coefficient": list(COEFFICIENTS)})


def order_chance(
    first: Any, second: Any, heads: tuple[int, ...], *, ranks: bool = False, diagonal: bool = True
) -> float:
    """How often the correlation is as large when the second matrix has its heads in another order, its own included.

    Arguments:
        first, second: U [path, path].
        heads: how many heads each layer has.
        ranks, diagonal: as in `order_correlation`.

    Example:
        >>> order_chance(np.diag([1.0, 2.0, 3.0, 4.0]), np.diag([1.0, 2.0, 3.0, 4.0]), (2, 2))
        0.25
    """
    setting = {"ranks": ranks, "diagonal": diagonal}
    tried = _correlations_in_orders(np.asarray(first), np.asarray(second), _orders(heads), **setting)
    return float(np.mean(tried >= tried[0] - 1e-12))


def _correlations_in_orders(
    first: np.ndarray, second: np.ndarray, places: list[np.ndarray], *, ranks: bool, diagonal: bool
) -> np.ndarray:
    """Correlations with the second matrix in every order of its paths, its own first."""
    rows, columns = np.triu_indices(len(first), 0 if diagonal else 1)
    ours = first[rows, columns]
    theirs = np.stack([second[np.ix_(order, order)][rows, columns] for order in places])
    if ranks:
        ours, theirs = rankdata(ours), rankdata(theirs, axis=1)
    ours, theirs = ours - ours.mean(), theirs - theirs.mean(axis=1, keepdims=True)
    return theirs @ ours / (np.linalg.norm(theirs, axis=1) * np.linalg.norm(ours))


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


def repeated(repetitions: list[xr.Dataset]) -> xr.Dataset:
    """Accuracies of all repetitions, each at the choices of its own validation characters and evidence."""
    found: list[xr.Dataset] = []
    for one in repetitions:
        values = {
            "repeated_accuracy": at_choice(one, "validation").accuracy,
            "repeated_evidence_accuracy": at_choice(one, "evidence").accuracy,
            "repeated_trained_accuracy": one.trained_accuracy,
            "repeated_trained_order_accuracy": with_trained_order(one),
        }
        if "free_accuracy" in one:
            values["repeated_free_accuracy"] = one.free_accuracy
        # Their temperatures differ, and would be taken for a coordinate that all share.
        found.append(
            xr.Dataset({name: value.drop_vars("temperature", errors="ignore") for name, value in values.items()})
        )
    return xr.concat(found, "repetition", data_vars="all", coords="minimal", compat="override", join="exact")


def repeated_accuracies(dataset: xr.Dataset) -> dict[str, xr.DataArray]:
    """Accuracies [repetition, width, part], or [repetition, part], by what is chosen how."""
    if "repeated_accuracy" in dataset:
        names = {
            "τ by validation": "repeated_accuracy",
            "τ by evidence": "repeated_evidence_accuracy",
            "τ and variance by evidence": "repeated_free_accuracy",
            "trained U": "repeated_trained_order_accuracy",
            "trained network": "repeated_trained_accuracy",
        }
        return {name: dataset[variable] for name, variable in names.items() if variable in dataset}
    found = {
        "τ by validation": at_choice(dataset, "validation").accuracy,
        "τ by evidence": at_choice(dataset, "evidence").accuracy,
        "trained U": with_trained_order(dataset),
        "trained network": dataset.trained_accuracy,
    }
    if "free_accuracy" in dataset:
        found["τ and variance by evidence"] = dataset.free_accuracy
    return {name: values.expand_dims("repetition") for name, values in found.items()}


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
    tables = []
    for how in ("validation", "evidence"):
        chosen = at_choice(dataset, how)
        lines = []
        for width in dataset.width.values:
            at = chosen.sel(width=width)
            lines.append([width_name(width), f"{float(at.temperature):g}", *_by_part(at.accuracy)])
        if how == "validation":
            best = with_trained_order(dataset)
            lines.append(["GP, trained U", f"{float(best.temperature):g}", *_by_part(best)])
            lines.append(["trained network", "", *_by_part(dataset.trained_accuracy)])
        tables.append(([f"by {how}", "τ"], lines))
    if "free_accuracy" in dataset:
        lines = []
        for width in dataset.width.values:
            at = dataset.sel(width=width)
            setting = f"{float(at.free_temperature):.3g}, {float(at.free_product):.3g}"
            lines.append([width_name(width), setting, *_by_part(at.free_accuracy)])
        tables.append((["by evidence", "τ, product of variances"], lines))
    return tables


def repetition_tables(dataset: xr.Dataset) -> list[tuple[list[str], list[list[str]]]]:
    """The same as mean and standard deviation over draws of the sequences, where there are several."""
    if "repeated_accuracy" not in dataset:
        return []
    found, tables = repeated_accuracies(dataset), []
    for choice in ("τ by validation", "τ by evidence", "τ and variance by evidence"):
        if choice in found:
            rows = {width_name(width): found[choice].sel(width=width) for width in dataset.width.values}
            if choice == "τ by validation":
                rows |= {"GP, trained U": found["trained U"], "trained network": found["trained network"]}
            lines = []
            for name, values in rows.items():
                mean, spread = _by_part(values.mean("repetition")), _by_part(values.std("repetition", ddof=1))
                lines.append([name, *(f"{one} ± {other}" for one, other in zip(mean, spread, strict=True))])
            tables.append(([choice], lines))
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


def accuracy_table(dataset: xr.Dataset) -> list[list[Any]]:
    """Every width and temperature, as rows of a CSV file: all that choices, figures and correlations are made of."""
    parts = [f"{part}_percent" for part in dataset.part.values]
    correlated = [name.lower().replace(",", "").replace(" ", "_") for name in COEFFICIENTS]
    found = ["log_evidence", "converged", "chosen_by_validation", "chosen_by_evidence"]
    rows: list[list[Any]] = [["width", "temperature", *parts, *found, *correlated]]
    for width, temperature in itertools.product(dataset.width.values, dataset.temperature.values):
        at = dataset.sel(width=width, temperature=temperature)
        chosen = [int(float(at[f"temperature_by_{how}"]) == temperature) for how in ("validation", "evidence")]
        numbers = ["" if np.isnan(value) else f"{value:.4f}" for value in at.correlation.values]
        found = [f"{float(at.log_evidence):.3f}", int(at.converged), *chosen]
        rows.append([f"{width:g}", f"{temperature:g}", *_hundredths(at.accuracy), *found, *numbers])
    return [*rows, ["trained network", "", *_hundredths(dataset.trained_accuracy), *[""] * (4 + len(correlated))]]


def score_table(dataset: xr.Dataset) -> list[list[Any]]:
    """Scores of all heads, as rows of a CSV file."""
    scores = head_scores(dataset)
    rows: list[list[Any]] = [["head", *scores]]
    for number, head in enumerate(dataset["head"].values):
        rows.append([head, *(f"{values[number]:.4f}" for values in scores.values())])
    return rows


def _by_part(accuracy: xr.DataArray) -> list[str]:
    return [percent(accuracy.sel(part=part)) for part in PART_NAMES]


def _hundredths(accuracy: xr.DataArray) -> list[str]:
    return [f"{100 * value:.2f}" for value in accuracy.values]


def _setting(coefficient: str) -> dict[str, bool]:
    return {"ranks": coefficient.startswith("Spearman"), "diagonal": "off" not in coefficient}

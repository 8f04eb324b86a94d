"""How much the order parameter of the theory looks like that of a trained network."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import rankdata

from ..learning import Architecture

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
        setting = {"ranks": name.startswith("Spearman"), "diagonal": "off" not in name}
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

"""What follows from the points: ratios over teachers, rates of finding wrong heads, and rows of tables."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from scipy import stats

from ...learning.scores import head_name
from ..words import fixed
from .config import APPROACHES, EXACT, HEADS, MATCHED, MISSING, PAIR, SCORES, UNUSED, UNUSED_HEAD, TeacherConfig


def ratio_of_means(top: xr.DataArray, bottom: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """⟨top⟩/⟨bottom⟩ over teachers and its standard error, to first order; teachers without a top are left out.

    Example:
        >>> top, bottom = (xr.DataArray(values, dims="teacher") for values in ([1.0, 3.0, np.nan], [2.0, 2.0, 9.0]))
        >>> [float(one) for one in ratio_of_means(top, bottom)]
        [1.0, 0.5]
    """
    bottom = bottom.where(top.notnull())
    scale, count = bottom.mean("teacher"), top.notnull().sum("teacher")
    value = top.mean("teacher") / scale
    return value, (top - value * bottom).std("teacher", ddof=1) / (np.sqrt(count) * scale)


def prior_variance(width: int, heads: Sequence[int] = HEADS) -> float:
    """The variance of U under the prior, summed over its entries, with variances 1 and one width.

    From the moments of a Wishart matrix with N degrees of freedom and scale S/N: ⟨tr U²⟩ = (1 + 1/N) tr S² + (tr S)²/N
    and ⟨(tr U)²⟩ = (tr S)² + 2 tr S²/N, layer by layer from the readout down, with S = I ⊗ U of the layer above.

    Example:
        >>> round(prior_variance(10), 3), round(prior_variance(10, (1,)), 3)
        (4.976, 0.44)
    """
    square = trace = 1 + 2 / width
    for count in reversed(heads):
        square, trace = count * square, count**2 * trace
        square, trace = square + (square + trace) / width, trace + 2 * square / width
    return square - math.prod(heads)


@functools.cache
def linear_ceiling(width: int, token_width: int, heads: tuple[int, ...] = HEADS, draws: int = 20_000) -> float:
    """The share of the variance of U that the best linear estimate finds when the readouts w are known exactly.

    Given U, the products w_π·w_π' follow a Wishart law with N0 degrees of freedom and scale U/N0. The estimate is a
    linear function of these products, fitted to draws of the prior.
    """
    random = np.random.default_rng(0)

    def wishart(scale: np.ndarray, freedom: int) -> np.ndarray:
        rows = scale.shape[-1]
        root = np.linalg.cholesky(scale)
        standard = stats.wishart.rvs(freedom, np.eye(rows), draws, random_state=random).reshape(draws, rows, rows)
        return root @ standard @ root.swapaxes(1, 2) / freedom

    order = wishart(np.ones((draws, 1, 1)), width)
    for count in reversed(heads):
        order = wishart(np.kron(np.eye(count), order), width)
    seen = wishart(order, token_width).reshape(draws, -1)
    wanted = order.reshape(draws, -1) - np.eye(order.shape[-1]).ravel()
    known = np.column_stack([np.ones(draws), seen])
    left = wanted - known @ np.linalg.lstsq(known, wanted)[0]
    return 1 - float(np.sum(left**2) / np.sum(wanted**2))


def calibrated(predicted: xr.DataArray, true: xr.DataArray) -> dict[str, Any]:
    """How far predicted over true errors [teacher, width, ratio] are from 1: points over two standard errors, extremes.

    `pooled` averages over all widths and ratios, and `pooled_error` takes one number of every teacher: what a teacher
    shows at one ratio it shows at the next.
    """
    value, error = ratio_of_means(predicted, true)
    known = value.notnull()
    if not known.any():
        return {"points": 0}
    apart = (predicted - true) / true.where(predicted.notnull()).mean("teacher")
    each = apart.mean("ratio").stack(one=["teacher", "width"]).dropna("one")
    distance: Any = abs(np.log(value))
    worst = distance.argmax(["width", "ratio"])
    return {
        "points": int(known.sum()),
        "far": int(((abs(value - 1) > 2 * error) & known).sum()),
        "least": float(value.min()),
        "most": float(value.max()),
        "worst": float(value[worst]),
        "worst_width": int(value[worst].width),
        "worst_ratio": float(value[worst].ratio),
        "pooled": 1 + float(each.mean()),
        "pooled_error": float(each.std(ddof=1)) / math.sqrt(each.size),
    }


def beside_exact(errors: xr.DataArray, approach: str) -> list[dict[str, float]]:
    """Mean error of an approach over that of the exact posterior, on the same teachers: the extremes by width."""
    exact = errors.sel(approach=EXACT, drop=True)
    value = ratio_of_means(errors.sel(approach=approach, drop=True).where(exact.notnull()), exact)[0]
    value = value.sel(width=value.notnull().all("ratio"))
    return [
        {"width": int(one.width), "least": float(one.min()), "most": float(one.max())}
        for one in value.transpose("width", ...)
    ]


def order_correlation(at: xr.Dataset) -> float:
    """Pearson correlation of the distinct entries of U with the teacher's, all teachers together."""
    upper = np.triu_indices(at.sizes["path"])
    own, true = (at[name].transpose("teacher", *PAIR).values for name in ("order_parameter", "teacher_order_parameter"))
    if not np.isfinite(own).all():
        return np.nan
    # Diagonal entries have another mean than the others, which is known and no finding.
    first, second = ((one - np.eye(at.sizes["path"]))[:, *upper].ravel() for one in (own, true))
    return float(np.corrcoef(first, second)[0, 1])


def found_rates(dataset: xr.Dataset) -> dict[str, xr.DataArray]:
    """How often the unused head has the lowest score of all, by score, [width, ratio]."""
    score = dataset.score.sel(case=UNUSED, drop=True)
    lowest = (score.idxmin("head") == head_name(UNUSED_HEAD)).where(score.notnull().all("head"))
    return {name: lowest.sel(score_kind=name, drop=True).mean("teacher") for name in SCORES}


def negative_rates(dataset: xr.Dataset) -> dict[str, xr.DataArray]:
    """How often the evidence favours removing the unused head, and a used one, [width, ratio]."""
    score = dataset.score.sel(case=UNUSED, score_kind="evidence", drop=True)
    negative = (score < 0).where(score.notnull()).mean("teacher")
    unused = head_name(UNUSED_HEAD)
    return {
        "unused head": negative.sel(head=unused, drop=True),
        "used heads": negative.drop_sel(head=unused).mean("head"),
    }


def gain_rates(dataset: xr.Dataset) -> dict[str, xr.DataArray]:
    """How often the evidence favours one more head where it is missing, and where it is not, [width, ratio]."""
    gain = dataset.gain
    favoured = (gain > 0).where(gain.notnull()).mean("teacher")
    return {case: favoured.sel(case=case, drop=True) for case in (MISSING, MATCHED)}


def rows_of_rates(rates: Mapping[str, xr.DataArray], config: TeacherConfig) -> list[list[str]]:
    """Rows of a table: a name, a width, and a rate in % at every ratio."""
    return [
        [name, str(width), *(f"{100 * float(one):.0f}" for one in rate.sel(width=width).values)]
        for name, rate in rates.items()
        for width in config.widths
    ]


def rows_with_errors(value: xr.DataArray, error: xr.DataArray) -> list[list[str]]:
    """Rows of a table: the width, then value ± error at every ratio; empty where there is none."""
    rows = []
    for width in value.width.values:
        pairs = zip(value.sel(width=width).values, error.sel(width=width).values, strict=True)
        cells = ["" if np.isnan(one) else f"{fixed(one, 2)} ± {fixed(other, 2)}" for one, other in pairs]
        if any(cells):
            rows.append([str(width), *cells])
    return rows


def rows_of_distances(matched: xr.Dataset) -> list[list[str]]:
    """Rows of a table: approach, width, and the distance of its shares from the teacher's at every ratio."""
    rows = []
    for approach in APPROACHES:
        for width in matched.width.values:
            values = matched.share_distance.sel(approach=approach, width=width)
            # The median: where a teacher's kernel nearly cancels along its output, its shares have no bound.
            middle = values.median("teacher").values
            if np.isfinite(middle).any():
                rows.append([approach, str(width), *(fixed(one, 2) for one in middle)])
    return rows

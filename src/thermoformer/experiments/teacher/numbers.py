"""What follows from the points: ratios over teachers, rates of finding wrong heads, and rows of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from ...learning.scores import head_name
from ..words import fixed
from .config import APPROACHES, HEADS, MATCHED, MISSING, PAIR, SCORES, UNUSED, UNUSED_HEAD, TeacherConfig


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


def linear_ceiling(width: Any, token_width: int, layers: int = len(HEADS)) -> Any:
    """The share of the variance of U_ππ that the best linear estimate from |w_π|² explains, w_π known exactly.

    U_ππ has mean 1 and variance V = (1 + 2/N)^(L+1) − 1 under the prior. Given U, |w_π|² ~ U_ππ χ²/N0 with N0 degrees
    of freedom, which adds a variance of 2⟨U_ππ²⟩/N0.

    Example:
        >>> round(linear_ceiling(10, 32), 2), round(linear_ceiling(1000, 32), 2)
        (0.87, 0.09)
    """
    variance = (1 + 2 / width) ** (layers + 1) - 1
    return variance / (variance + 2 * (1 + variance) / token_width)


def calibrated(value: xr.DataArray, error: xr.DataArray) -> dict[str, Any]:
    """How far a calibration [width, ratio] is from 1: cells over two standard errors, and extremes."""
    known = value.notnull()
    far = abs(value - 1) > 2 * error
    if not known.any():
        return {"cells": 0}
    worst = abs(np.log(value)).argmax(["width", "ratio"])
    return {
        "cells": int(known.sum()),
        "far": int((far & known).sum()),
        "least": float(value.min()),
        "most": float(value.max()),
        "worst": float(value[worst]),
        "worst_width": int(value[worst].width),
        "worst_ratio": float(value[worst].ratio),
    }


def order_correlation(at: xr.Dataset) -> float:
    """Pearson correlation of the distinct entries of U with the teacher's, all teachers together."""
    upper = np.triu_indices(at.sizes["path"])
    own, true = (at[name].transpose("teacher", *PAIR).values for name in ("order_parameter", "teacher_order_parameter"))
    # Diagonal entries have another mean than the others, which is known and no finding.
    apart = [(one - np.eye(at.sizes["path"]))[:, *upper].ravel() for one in (own, true)]
    return float(np.corrcoef(apart)[0, 1]) if np.isfinite(own).all() else np.nan


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

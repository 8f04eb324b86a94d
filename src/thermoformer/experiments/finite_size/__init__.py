"""The finite network against its mean field (experiments §5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from ..._progress import inside
from ..._validation import fail
from ...dynamics import Features, FiniteNetwork, fluctuations, orbit
from ...sweeps import resumable
from ..base import Study
from ..paper_dynamics import EPSILON, GAMMA, paper_model
from ..sampled import whole_key
from ..sweeping import check_fields, config_of, record_of
from ..words import fixed, with_texts

FORMS = ("classes", "bits")
PREDICTED = {
    "predicted": "√N times the mean distance that linear noise predicts",
    "predicted_by_step": "√N times the root-mean-square of max_a |Δm| that linear noise predicts",
    "predicted_error": "standard error of √N times by_step that linear noise predicts",
}
# Draws of the Gaussian law that linear noise predicts: they leave an error of a fifteenth of a per cent.
PREDICTION_DRAWS, DRAWS_AT_ONCE = 200_000, 50_000
# Sizes in the figure of single steps: the largest fluctuations that are not linear, and the first that are.
SHOWN_FROM, SHOWN = 9900, 4
# One run each of the paper's system, N to root-mean-square over t ≤ 10 of max_a |Δm|, at β = 1.27.
REFERENCE = {99: 0.356, 990: 0.074, 9900: 0.014, 99_000: 0.0064}


@dataclass(frozen=True)
class FiniteSizeConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        bits: N, by class counts, which cost the same at any N.
        plain_bits: those of them where the plain network, bit by bit, runs too.
        copies: independent runs at each N.
        seed: all random numbers follow from it.
        beta, gamma, epsilon: parameters of the network.
        steps: tokens after the first that are compared.
        fit_from: the power of N is fitted from this N on: at 99 000 √N |Δm| is still some per cent above its limit.
    """

    bits: tuple[int, ...] = tuple(99 * 10**power for power in range(10))
    plain_bits: tuple[int, ...] = (99, 990, 9900)
    copies: int = 4000
    seed: int = 0
    beta: float = 1.27
    gamma: float = GAMMA
    epsilon: float = EPSILON
    steps: int = 10
    fit_from: int = 990_000

    def __post_init__(self) -> None:
        check_fields(self, shares=["epsilon"], ascending={"bits": "number"})
        if self.copies < 2:
            raise fail("copies", self.copies, "2 or more, for a standard error")
        if not set(self.plain_bits) <= set(self.bits):
            raise fail("plain_bits", self.plain_bits, f"some of {self.bits}")
        if sum(number >= self.fit_from for number in self.bits) < 2:
            raise fail("fit_from", self.fit_from, "two or more of the bits from there on")

    @classmethod
    def quick(cls, seed: int = 0) -> FiniteSizeConfig:
        """The small size: fewer copies."""
        return cls(copies=256, seed=seed)


@resumable
def finite_size_point(bits: int, config: Mapping[str, Any]) -> xr.Dataset:
    """Networks of so many bits in both forms: a point of the sweep.

    Arguments:
        bits: N.
        config: the record of a `FiniteSizeConfig`.
    """
    settings, report = config_of(FiniteSizeConfig, config), inside.get()
    each = np.full((len(FORMS), settings.copies), np.nan)
    by_step = np.full((len(FORMS), settings.steps), np.nan)
    for row, form in enumerate(FORMS):
        if form == "bits" and bits not in settings.plain_bits:
            continue
        report(0, 1, f"N = {bits}, {'counts per class' if form == 'classes' else 'every bit'}")
        squares = distances(settings, bits, form) ** 2
        each[row], by_step[row] = np.sqrt(squares.mean(axis=1)), np.sqrt(squares.mean(axis=0))
    return xr.Dataset(
        {
            "distance": (("form", "copy"), each, {"long_name": "root-mean-square over steps of max_a |Δm|, by copy"}),
            "by_step": (("form", "step"), by_step, {"long_name": "root-mean-square over copies of max_a |Δm|"}),
        },
        {"form": list(FORMS), "step": np.arange(1, settings.steps + 1)},
    )


def distances(config: FiniteSizeConfig, bits: int, form: str) -> np.ndarray:
    """max_a |Δm_a| of the semantic overlaps with o, [copy, step], steps 1, 2, ... after the first token."""
    model = paper_model(config.beta, config.gamma, config.epsilon)
    # The finite network keeps its first token in the window; so does the mean field here.
    limit = orbit(model, model.token(keep=True), steps=config.steps + 1).m_o / (1 - config.epsilon)
    network = FiniteNetwork(Features.paper(), config.beta, config.gamma, config.epsilon, bits=bits)
    key = whole_key(config.seed, FORMS.index(form), bits % 2**32, bits // 2**32)
    # Copies of many bits come a few at a time: a hundred million bits at once are enough memory.
    some = config.copies if form == "classes" else max(10**7 // bits, 1)
    rows = []
    for start in range(0, config.copies, some):
        count = min(some, config.copies - start)
        found = network.run(config.steps + 1, copies=count, key=whole_key(key, start), form=form)
        rows.append(np.abs(found.m_o_semantic - limit[None]).max(axis=2)[:, 1:])
    return np.concatenate(rows)


def prediction(config: FiniteSizeConfig) -> xr.Dataset:
    """What linear noise says of √N times the distances of N bits: nothing is fitted, and no network is run.

    The deviations of the first steps are normal, with the covariances N·Cov(m_t, m_s) of `fluctuations`. The law of
    their largest |Δm_a| is drawn.

    Returns: `predicted`, the mean over copies of the distance; `predicted_by_step` [step], the root-mean-square over
        copies; `predicted_error` [step], its standard error with as many copies as the config has. All times √N.
    """
    model = paper_model(config.beta, config.gamma, config.epsilon)
    found, count = fluctuations(model, model.token(keep=True), config.steps + 1), model.features.count
    steps = range(1, config.steps + 1)
    lower = {(t, s): found.correlation(t, s)[:count, :count] for t in steps for s in range(1, t + 1)}
    blocks = [[lower[t, s] if t >= s else lower[s, t].T for s in steps] for t in steps]
    # Of the semantic overlaps.
    values, vectors = np.linalg.eigh(np.block(blocks) / (1 - config.epsilon) ** 2)
    root = vectors * np.sqrt(values.clip(0))
    generator, totals = np.random.default_rng(config.seed), np.zeros((3, config.steps))
    for _ in range(PREDICTION_DRAWS // DRAWS_AT_ONCE):
        drawn = (generator.normal(size=(DRAWS_AT_ONCE, len(root))) @ root.T).reshape(DRAWS_AT_ONCE, -1, count)
        squares = np.max(drawn**2, axis=2)
        distance = np.sqrt(squares.mean(axis=1)).sum()
        totals += np.stack([np.full(config.steps, distance), squares.sum(axis=0), (squares**2).sum(axis=0)])
    distances, squares, fourths = totals / PREDICTION_DRAWS
    # The error of a root of a mean of squares, to first order.
    error = np.sqrt((fourths - squares**2) / config.copies / (4 * squares))
    by_step = {"predicted_by_step": ("step", np.sqrt(squares)), "predicted_error": ("step", error)}
    return xr.Dataset({"predicted": distances[0], **by_step})


def fitted_power(bits: np.ndarray, error: np.ndarray, standard_error: np.ndarray) -> tuple[float, float, float]:
    """The power of N by weighted least squares on logarithms: slope, its standard error, χ² per degree of freedom."""
    x, y, weight = np.log(bits), np.log(error), error / standard_error
    line, covariance = np.polyfit(x, y, 1, w=weight, cov="unscaled")
    rest = weight * (y - np.polyval(line, x))
    return float(line[0]), float(np.sqrt(covariance[0, 0])), float(rest @ rest / max(len(x) - 2, 1))


def power_of(dataset: xr.Dataset, config: FiniteSizeConfig) -> tuple[float, float, float]:
    """The fitted power of N from `fit_from` on: slope, standard error, χ² per degree of freedom."""
    one = dataset.sel(form="classes")
    chosen = one.isel(bits=one.bits.values >= config.fit_from)
    return fitted_power(chosen.bits.values.astype(float), chosen.error.values, chosen.standard_error.values)


def level_of(dataset: xr.Dataset, config: FiniteSizeConfig) -> tuple[float, float]:
    """√N times the distance, its weighted mean over N from `fit_from` on, and the standard error."""
    one = dataset.sel(form="classes")
    chosen = one.isel(bits=one.bits.values >= config.fit_from)
    weights = 1 / (chosen.bits * chosen.standard_error**2)
    level = (np.sqrt(chosen.bits) * chosen.error * weights).sum() / weights.sum()
    return level.item(), float(1 / np.sqrt(weights.sum()))


def z_scores(dataset: xr.Dataset) -> xr.DataArray:
    """Difference of the two forms' means over its standard error, [bits]; nan where one was not run."""
    classes, bits = (dataset[["error", "standard_error"]].sel(form=form, drop=True) for form in FORMS)
    return (bits.error - classes.error) / np.sqrt(classes.standard_error**2 + bits.standard_error**2)


class FiniteSize(Study):
    """How far networks are from the mean field: a sweep over N, both forms at every point.

    Its Dataset [form, bits] has the `distance` of every copy, `error`, its mean over copies, `standard_error`, and
    `by_step`, the root-mean-square over copies at every step. What was not run is nan. It also has the `prediction`.
    """

    name, title, config, point = "finite_size", "Finite size", FiniteSizeConfig, finite_size_point
    over: ClassVar = {"bits": "bits"}
    embedded = "png"

    def record(self, config: FiniteSizeConfig) -> dict[str, Any]:
        """Without the sizes, so that some can be added to a run."""
        # The fewest that a config takes, whichever there are.
        return record_of(config, bits=tuple(sorted({1, 2, *config.plain_bits})), fit_from=1)

    def complete(self, found: xr.Dataset, config: FiniteSizeConfig) -> xr.Dataset:
        """With means over copies."""
        found = found.transpose("form", "bits", ...)
        found["error"] = found.distance.mean("copy", skipna=False)
        found["error"].attrs["long_name"] = "mean over copies of the distance"
        found["standard_error"] = found.distance.std("copy", skipna=False, ddof=1) / np.sqrt(config.copies)
        predicted = prediction(config)
        for name, text in PREDICTED.items():
            predicted[name].attrs["long_name"] = text
        return found.assign(predicted.data_vars).assign_attrs(fit_from=config.fit_from)

    def figures(self, dataset: xr.Dataset, config: FiniteSizeConfig) -> dict[str, Any]:
        """|Δm| against N with the prediction, and √N |Δm| at every step for several N."""
        from ... import figures

        scaling, axes = figures.figure_grid(size=(5.6, 4.2))
        figures.finite_size_scaling(dataset, axes[0, 0])
        by_step, axes = figures.figure_grid(size=(5.6, 4.2))
        shown = [bits for bits in config.bits if bits >= SHOWN_FROM] or list(config.bits)
        figures.finite_size_steps(dataset.sel(bits=shown[:SHOWN]), axes[0, 0])
        return {"finite_size": scaling, "fluctuations": by_step}

    def tables(self, dataset: xr.Dataset, config: FiniteSizeConfig) -> dict[str, pd.DataFrame]:
        """Means of both forms, and how far apart they are."""
        # z stands beside the form that is compared with the other.
        z = z_scores(dataset).where(dataset.form == "bits")
        frame: Any = dataset[["error", "standard_error"]].assign(z=z).to_dataframe(dim_order=("form", "bits"))
        frame = frame[["error", "standard_error", "z"]].dropna(subset=["error"]).reset_index()
        return {"finite_size": with_texts(frame, error=".6g", standard_error=".3g", z=".3f")}

    def values(self, dataset: xr.Dataset, config: FiniteSizeConfig) -> dict[str, Any]:
        """Fits of the power of N, and the rows of the table."""
        smaller = [bits for bits in config.bits if bits < config.fit_from]
        again = smaller and power_of(dataset, dataclasses.replace(config, fit_from=smaller[-1]))
        first = min(bits for bits in config.bits if bits >= config.fit_from)
        rows = []
        for bits, score in zip(config.bits, z_scores(dataset).values, strict=True):
            at = dataset[["error", "standard_error"]].sel(bits=bits)
            found = zip(at.error.values, at.standard_error.values, strict=True)
            means = ["" if np.isnan(value) else f"{value:.4g} ± {error:.1g}" for value, error in found]
            z = "" if np.isnan(score) else fixed(score, 1, "+")
            scaled = at.error.sel(form="classes").item() * np.sqrt(bits)
            ratio = fixed(scaled / dataset.predicted.item(), 3)
            rows.append([bits, *means, z, f"{scaled:.3g}", ratio, REFERENCE.get(bits, "")])
        level, error = level_of(dataset, config)
        return {
            "level": level,
            "level_error": error,
            "away": (level - dataset.predicted.item()) / error,
            "power": power_of(dataset, config),
            "smaller": smaller,
            "again": again,
            "decades": np.log10(config.bits[-1] / first),
            "rows": rows,
        }


STUDY = FiniteSize()

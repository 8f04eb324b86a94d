"""Which width is wide enough (experiments §3).

Two parts. The hidden-Markov task at P = N, where the exact posterior and sampled networks carry Monte-Carlo noise; and
one path in one layer (`one_path`), where the exact posterior is an integral and errors can be followed down to 1e-7.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from ..._progress import Progress, inside, silent
from ..._validation import fail
from ...learning.comparison import METHODS, Comparison, compare
from ...sweeps import resumable
from .. import store
from ..base import Study
from ..listing import HERE, Executor
from ..markov import FOUR_PATHS, MarkovConfig, path_features
from ..one_path import QUANTITIES, OnePath, OnePathConfig, fitted_slope
from ..sampled import EXACT, PREDICTION_NAMES, SAMPLED, joined, whole_key
from ..sweeping import check_fields, config_of, record_of
from ..threads import in_threads, usual_workers, within
from ..words import duration, small_percent, with_texts

REFERENCES = (EXACT, SAMPLED)
# "Within 1 %", and the width over which a gradient of the exact posterior takes long.
LEVEL, WIDE = 0.01, 30
# Slopes are fitted where the expansion in 1/N has set in.
LEAST_WIDTH = 16
THEORIES = ("gaussian process", "saddle", "one-loop")

# Seconds on two CPU cores, measured on this task: a program per width to compile, a gradient of the exact posterior
# (0.1 s at P = 1000), a sweep over all weights; NUTS takes about ten gradients per draw.
_COMPILE, _GRADIENT, _SWEEP, _GRADIENTS_PER_DRAW = 30.0, 0.1, 0.008, 10


@dataclass(frozen=True)
class WidthConvergenceConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        seeds: how many independent repetitions of the hidden-Markov part.
        seed: of all random numbers; repetition i at width N uses (seed, i, N).
        widths: N, with P = N training sequences.
        sampled_widths: those of them at which networks are sampled too.
        draws, wide_draws: draws per chain of the exact posterior at widths up to 30, and over, where each costs more.
        network_draws: draws per chain of networks, which are noisier draws.
        one_path: the settings of the other part.
    """

    seeds: int = 5
    seed: int = 0
    widths: tuple[int, ...] = (4, 10, 30, 100, 300, 1000)
    sampled_widths: tuple[int, ...] = (4, 10, 30, 100)
    draws: int = 8000
    wide_draws: int = 2000
    network_draws: int = 10_000
    chains: int = 2
    test_examples: int = 1000
    temperature: float = 0.01
    tokens: int = 30
    feature_width: int = 200
    one_path: OnePathConfig = field(default_factory=OnePathConfig)

    def __post_init__(self) -> None:
        check_fields(self, above_zero=["temperature"], ascending={"widths": "width"})
        if not set(self.sampled_widths) <= set(self.widths):
            raise fail("sampled_widths", self.sampled_widths, f"some of the widths {self.widths}")

    @classmethod
    def quick(cls, seed: int = 0) -> WidthConvergenceConfig:
        """The small size: fewer widths, seeds and draws, and networks sampled at one width."""
        return cls(
            seeds=2,
            seed=seed,
            widths=(4, 10, 30, 100),
            sampled_widths=(10,),
            draws=300,
            wide_draws=150,
            network_draws=2000,
            one_path=OnePathConfig(widths=(8, 32, 128), data_sets=4, seed=seed),
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> WidthConvergenceConfig:
        """The config of a record."""
        return config_of(cls, {**record, "one_path": config_of(OnePathConfig, record["one_path"])})

    def exact_draws(self, width: int) -> int:
        """Draws per chain of the exact posterior at a width."""
        return self.draws if width <= WIDE else self.wide_draws

    def task(self, width: int) -> MarkovConfig:
        """The hidden-Markov task with as many training sequences as the width."""
        same = {name: getattr(self, name) for name in ("seed", "test_examples", "tokens", "feature_width")}
        return MarkovConfig(widths=(width,), training_examples=width, components=1, variants=(FOUR_PATHS,), **same)


@resumable
def width_convergence_point(seed: int, width: int, config: Mapping[str, Any]) -> xr.Dataset:
    """Every approach on one repetition at one width, with its errors against each reference: a point of the sweep.

    Arguments:
        seed: which repetition.
        width: N, and P.
        config: the record of a `WidthConvergenceConfig`.
    """
    settings = WidthConvergenceConfig.from_record(config)
    cost = f"about {duration(expected_seconds(settings, width))} on two cores"
    report = within(inside.get(), 0, 1, f"hidden-Markov, N = {width}, seed {seed + 1} ({cost})")
    report(0, 1, "data")
    comparison = _compared(settings, seed, width, report)
    dataset = comparison.to_xarray(FOUR_PATHS.heads)
    dataset = dataset.drop_vars([name for name in dataset.data_vars if str(name).startswith("distance_")])
    # Points without sampled networks, or where an approach does not apply, have the same table with nan in it.
    dataset = dataset.reindex(approach=list(METHODS), fill_value={"mixed": False})
    errors = _distances(comparison)
    axes = ("reference", "approach", "quantity")
    coordinates = {"reference": list(REFERENCES), "quantity": list(QUANTITIES)}
    dataset = dataset.assign(error=(axes, errors[0]), noise=(axes, errors[1])).assign_coords(coordinates)
    # A sweep has `seconds` of its own: those of the point.
    return dataset.rename(seconds="approach_seconds").drop_attrs()


def _compared(config: WidthConvergenceConfig, index: int, width: int, progress: Progress) -> Comparison:
    """Every approach on one repetition at one width; the exact posterior, which takes longest, beside all others."""
    others = ("gaussian process", "saddle", "one-loop", *([SAMPLED] if width in config.sampled_widths else []))
    problem = path_features(config.task(width), 0, index)

    def part(methods: tuple[str, ...], report: Progress) -> Comparison:
        return compare(
            FOUR_PATHS.architecture(width),
            *problem,
            temperature=config.temperature,
            key=whole_key(config.seed, index, width),
            methods=methods,
            draws={EXACT: config.exact_draws(width), SAMPLED: config.network_draws},
            chains=config.chains,
            progress=report,
        )

    return joined(*in_threads([partial(part, others), partial(part, (EXACT,))], progress, usual_workers()))


def _distances(comparison: Comparison) -> np.ndarray:
    """Errors and their noise, [2, reference, approach, quantity]; nan for what is not there."""
    table = np.full((2, len(REFERENCES), len(METHODS), len(QUANTITIES)), np.nan)
    for (row, reference), (column, name) in itertools.product(enumerate(REFERENCES), enumerate(METHODS)):
        # Sampled networks are the noisier truth: the exact posterior is measured against them, not they against it.
        if name != reference and {name, reference} <= set(comparison.results) and (name, reference) != (SAMPLED, EXACT):
            # Each quantity is followed by its noise.
            apart = np.reshape(dataclasses.astuple(comparison.distance(name, reference)), (len(QUANTITIES), 2))
            table[:, row, column] = apart.T
    return table


def geometric_mean(values: Any) -> Any:
    """The geometric mean over seeds, which is the middle on a logarithmic axis; nan is left out."""
    return np.exp(np.log(values.where(values > 0)).mean("seed"))


def width_within(widths: np.ndarray, errors: np.ndarray, level: float = LEVEL) -> float | None:
    """The width from which on errors stay at or under a level, interpolated in logarithms; None if they do not.

    Arguments:
        widths, errors: [width], ascending; nan counts as over the level.
    """
    widths, errors = np.asarray(widths, float), np.asarray(errors, float)
    over = np.flatnonzero(~(errors <= level))
    if len(over) == 0:
        return float(widths[0])
    last = over[-1]
    if last == len(widths) - 1:
        return None
    if not np.isfinite(errors[last]):
        return float(widths[last + 1])
    share = np.log(errors[last] / level) / np.log(errors[last] / errors[last + 1])
    return round(float(np.exp(np.log(widths[last]) + share * np.log(widths[last + 1] / widths[last]))), 6)


def expected_seconds(config: WidthConvergenceConfig, width: int) -> float:
    """Roughly what one point costs on two CPU cores."""
    draws = config.exact_draws(width)
    steps = config.chains * max(1.5 * draws, draws + 200)
    exact = steps * _GRADIENTS_PER_DRAW * (3e-4 + _GRADIENT * (width / 1000) ** 1.7)
    sweeps = config.chains * max(1.5 * config.network_draws, config.network_draws + 200)
    sampled = sweeps * (1e-3 + _SWEEP * (width / 100) ** 2) if width in config.sampled_widths else 0.0
    return _COMPILE + exact + sampled


class WidthConvergence(Study):
    """The hidden-Markov part is a sweep over repetitions and widths; the other part, one path, comes before it.

    The Dataset of the hidden-Markov part has the dimensions seed (repetition), width and approach: `error` and `noise`
    against each reference and of each quantity, predictions (`mean`, `variance` and their Monte-Carlo errors) along
    example, `order_parameter`, `accuracy`, `bias`, `log_evidence`, `seconds`, `mixed`. What does not apply or was
    left out is nan.

    Arguments:
        one_path: the Dataset of the other part, for figures, tables and page; `run` computes it.
    """

    name, title = "width_convergence", "Width convergence at P = N"
    config, point = WidthConvergenceConfig, width_convergence_point
    over: ClassVar = {"seed": "seeds", "width": "widths"}
    long_names: ClassVar = {
        **PREDICTION_NAMES,
        "error": "root-mean-square difference from the reference over that of the reference",
        "noise": "what Monte-Carlo noise alone would show as error",
        "order_parameter": "order parameter U between attention paths",
        "order_parameter_error": "Monte-Carlo standard error of U",
        "seconds": "seconds to find the result and predict, compilation included",
        "mixed": "whether chains have mixed; false where an approach is absent",
    }

    def __init__(self, one_path: xr.Dataset | None = None) -> None:
        self.one_path = one_path if one_path is not None else xr.Dataset()

    def sized(self, quick: bool, seed: int) -> WidthConvergenceConfig:
        """Both parts with the seed."""
        usual = WidthConvergenceConfig(seed=seed, one_path=OnePathConfig(seed=seed))
        return WidthConvergenceConfig.quick(seed) if quick else usual

    def record(self, config: WidthConvergenceConfig) -> dict[str, Any]:
        """Without seeds and widths, which can be added to a run, and without the other part."""
        # The fewest that a config takes, whichever there are.
        widths = tuple(sorted({1, *config.sampled_widths}))
        return record_of(config, seeds=1, widths=widths, one_path=OnePathConfig())

    def complete(self, found: xr.Dataset, config: WidthConvergenceConfig) -> xr.Dataset:
        """With the seconds of each approach under their usual name."""
        return found.rename(approach_seconds="seconds")

    def run(
        self,
        config: WidthConvergenceConfig,
        out: str | Path,
        *,
        executor: Executor = HERE,
        progress: Progress | None = None,
    ) -> Path:
        """Data, figures, tables and page of both parts into a folder; see `Study.run`."""
        where: dict[str, Any] = {"executor": executor, "progress": progress or silent}
        one_path = OnePath().data(config.one_path, folder=Path(out) / "sweep_one_path", **where)
        store.save(one_path, Path(out) / "one_path.nc", store.fingerprint(config.one_path))
        return Study.run(WidthConvergence(one_path), config, out, **where)

    def figures(self, dataset: xr.Dataset, config: WidthConvergenceConfig) -> dict[str, Any]:
        """Errors against width in both parts, and every approach at one width."""
        from . import figures as drawn

        found = {
            "one_path": drawn.draw_one_path(self.one_path),
            "against_exact": drawn.draw_errors(dataset, EXACT),
            "comparison": drawn.draw_comparison(dataset, shown_width(config)),
        }
        return found | ({"against_sampled": drawn.draw_errors(dataset, SAMPLED)} if config.sampled_widths else {})

    def tables(self, dataset: xr.Dataset, config: WidthConvergenceConfig) -> dict[str, pd.DataFrame]:
        """Every error of both parts."""
        axes = ["width", "seed", "reference", "approach", "quantity"]
        frame: Any = dataset[["error", "noise"]].to_dataframe(dim_order=axes).reset_index()
        frame = frame[[*axes, "error", "noise"]]
        errors = with_texts(frame.dropna(subset=["error"]), error=".6g", noise=".6g")
        return {"errors": errors, **OnePath().tables(self.one_path, config.one_path)}

    def values(self, dataset: xr.Dataset, config: WidthConvergenceConfig) -> dict[str, Any]:
        """Errors of both parts, what they cost, and what must be known before they are used."""
        from ...figures.convergence import approach_label

        means = geometric_mean(dataset[["error", "noise"]]).transpose("width", ...)
        apart = means.sel(reference=SAMPLED, quantity="mean", approach=EXACT).dropna("width", subset=["error"])
        seconds, there = dataset.seconds.mean("seed").transpose("width", "approach"), np.isfinite(dataset.seconds)
        within_level = []
        for quantity, approach in itertools.product(QUANTITIES[:2], THEORIES[1:]):
            at = means.sel(reference=EXACT, approach=approach, quantity=quantity)
            found = within_level_from(dataset.width.values, at.error.values, at.noise.values)
            within_level.append(found | {"approach": approach, "quantity": quantity})
        return self._one_path_values(approach_label) | {
            "level": LEVEL,
            "within_level": within_level,
            "limit": means.error.sel(reference=EXACT, approach=THEORIES[0], quantity="mean").values,
            "errors": {name: error_table(means.sel(reference=name), approach_label) for name in REFERENCES},
            "apart": list(zip(apart.width.values, apart.error.values, apart.noise.values, strict=True)),
            "shown_width": shown_width(config),
            "cost_header": [approach_label(str(name)) for name in dataset.approach.values],
            "costs": [
                [width, *("" if np.isnan(value) else duration(value) for value in row)]
                for width, row in zip(dataset.width.values, seconds.values, strict=True)
            ],
            "unmixed": _where(there & ~dataset.mixed.astype(bool), there, REFERENCES),
            "left_out": _where(~there, there, THEORIES[1:]),
        }

    def _one_path_values(self, label: Callable[[str], str]) -> dict[str, Any]:
        error, evidence = self.one_path.error.sel(quantity="mean"), self.one_path.evidence_error
        slopes = None
        if int((error.width >= LEAST_WIDTH).sum()) > 1:
            slopes = {name: fitted_slope(error.sel(approach=name)) for name in THEORIES[1:]}
            slopes["evidence"] = fitted_slope(evidence.sel(approach="one-loop"))
        means = geometric_mean(error).transpose("width", "approach")
        others = geometric_mean(evidence.sel(approach=list(THEORIES[1:]))).transpose("width", "approach")
        return {
            "path_widths": error.width.values,
            "path_errors": {name: means.sel(approach=name).values for name in THEORIES},
            "least_width": LEAST_WIDTH,
            "slopes": slopes,
            "path_header": [f"{label(name)}, mean" for name in THEORIES]
            + [f"{name}, log evidence" for name in THEORIES[1:]],
            "path_rows": [
                [width, *map(small_percent, row), *(f"{value:.2g}" for value in other)]
                for width, row, other in zip(error.width.values, means.values, others.values, strict=True)
            ],
        }


def within_level_from(widths: np.ndarray, errors: np.ndarray, noise: np.ndarray) -> dict[str, Any]:
    """From which width on errors are within the level, and what Monte-Carlo noise leaves of that; all [width].

    Returns:
        `width` in two digits, None without one; the `last` width and its `error`; the widths where an error is `hidden`
        in noise, with the largest `noise` there; and `bound`, whether the noise only bounds the width.
    """
    found = width_within(widths, errors)
    # At or under twice the noise an error is not told from none.
    hidden = errors <= 2 * noise
    over = [] if found is None else np.flatnonzero(widths < found)
    return {
        "width": found and round(found, 1 - int(np.floor(np.log10(found)))),
        "everywhere": found == widths[0],
        # Where the last error over the level is noise, the crossing is that of the noise.
        "bound": len(over) > 0 and bool(hidden[over[-1]]),
        "last": widths[-1],
        "error": errors[-1],
        "hidden": widths[hidden],
        "noise": noise[hidden].max(initial=0),
    }


def shown_width(config: WidthConvergenceConfig) -> int:
    """A width where the approaches can be told apart and networks were sampled, if possible; 10 if it is there."""
    among = config.sampled_widths or config.widths
    return 10 if 10 in among else among[len(among) // 2]


def error_table(means: xr.Dataset, label: Callable[[str], str]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the errors [width, approach, quantity] that are known, with their noise, by width."""
    known = np.isfinite(means.error).any("quantity")
    means = means.sel(width=known.any("approach"), approach=known.any("width"))
    header, columns = ["N = P"], [[str(width) for width in means.width.values]]
    for quantity, name in itertools.product(QUANTITIES[:2], means.approach.values):
        one = means.sel(quantity=quantity, approach=name)
        header.append(f"{label(str(name))}, {'mean' if quantity == 'mean' else 's.d.'}")
        pairs = zip(one.error.values, one.noise.values, strict=True)
        columns.append(["" if np.isnan(a) else f"{small_percent(a)} ± {small_percent(b)}" for a, b in pairs])
    return header, [list(row) for row in zip(*columns, strict=True)]


def _where(bad: xr.DataArray, there: xr.DataArray, names: Sequence[str]) -> list[dict[str, Any]]:
    """The approaches with bad points: how many, of how many, and at which widths."""
    found = []
    for name in names:
        failed, of = bad.sel(approach=name), int(there.sel(approach=name).sum())
        if failed.any():
            widths = ", ".join(f"N = {int(width)}" for width in failed.width.values[failed.any("seed").values])
            found.append({"name": name, "points": int(failed.sum()), "of": of, "widths": widths})
    return found


STUDY = WidthConvergence()

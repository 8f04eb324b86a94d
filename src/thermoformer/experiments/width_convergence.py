"""Which width is wide enough (experiments §3): config to data; `width_convergence_report` makes the page.

Two parts. The hidden-Markov task at P = N, where the exact posterior and sampled networks carry Monte-Carlo noise; and
one path in one layer (`one_path`), where the exact posterior is an integral and errors can be followed down to 1e-7.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from .._progress import Progress, inside, silent
from .._validation import fail, positive_integer, positive_number
from ..learning.comparison import METHODS, Comparison, compare
from ..sweeps import resumable
from . import store
from .executor import HERE, Executor
from .markov import path_features
from .markov_config import FOUR_PATHS, MarkovConfig
from .one_path import QUANTITIES, OnePathConfig, check_seed, check_widths, one_path_data
from .sampled import EXACT, SAMPLED, whole_key
from .sweeping import config_of, finished, record_of, swept
from .threads import in_threads, usual_workers, within

REFERENCES = (EXACT, SAMPLED)
# "Within 1 %", and the width over which a gradient of the exact posterior takes long.
LEVEL, WIDE = 0.01, 30

# Seconds on two CPU cores, measured on this task: a program per width to compile, a gradient of the exact posterior
# (0.1 s at P = 1000), a sweep over all weights; NUTS takes about ten gradients per draw.
_COMPILE, _GRADIENT, _SWEEP, _GRADIENTS_PER_DRAW = 30.0, 0.1, 0.008, 10


@dataclass(frozen=True)
class WidthConvergenceConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        seeds: how many independent repetitions of the hidden-Markov part.
        seed: where the repetitions' seeds derive from: repetition i at width N uses (seed, i, N), whatever else is run.
        widths: N, with P = N training sequences.
        sampled_widths: those of them at which networks are sampled too.
        draws, wide_draws: draws per chain of the exact posterior at widths up to 30, and over, where each costs more.
        network_draws: draws per chain of networks, which are noisier draws.
        one_path: the settings of the other part.

    Example:
        >>> WidthConvergenceConfig(seeds=2).widths
        (4, 10, 30, 100, 300, 1000)
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
        for name in ("seeds", "draws", "wide_draws", "network_draws", "chains", "test_examples"):
            positive_integer(name, getattr(self, name))
        check_seed(self.seed)
        check_widths(self.widths)
        if not set(self.sampled_widths) <= set(self.widths):
            raise fail("sampled_widths", self.sampled_widths, f"some of the widths {self.widths}")
        positive_number("temperature", self.temperature)

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

    @property
    def point_record(self) -> dict[str, Any]:
        """What decides the numbers of a point: seeds and widths can be added to a run, and the other part is apart."""
        # The fewest that a config takes, whichever there are.
        widths = tuple(sorted({1, *self.sampled_widths}))
        return record_of(self, seeds=1, widths=widths, one_path=OnePathConfig())

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> WidthConvergenceConfig:
        """The config of a record."""
        return config_of(cls, {**record, "one_path": config_of(OnePathConfig, record["one_path"])})

    def exact_draws(self, width: int) -> int:
        """Draws per chain of the exact posterior at a width."""
        return self.draws if width <= WIDE else self.wide_draws

    def task(self, width: int) -> MarkovConfig:
        """The hidden-Markov task with as many training sequences as the width."""
        return MarkovConfig(
            seed=self.seed,
            widths=(width,),
            training_examples=width,
            test_examples=self.test_examples,
            components=1,
            tokens=self.tokens,
            feature_width=self.feature_width,
            variants=(FOUR_PATHS,),
        )


def run(
    out: Path, *, quick: bool = False, seed: int = 0, executor: Executor = HERE, progress: Progress | None = None
) -> Path:
    """The experiment at its usual or quick size; returns the path of its page (see `Experiment.run`)."""
    usual = WidthConvergenceConfig(seed=seed, one_path=OnePathConfig(seed=seed))
    config = WidthConvergenceConfig.quick(seed) if quick else usual
    return run_width_convergence(config, out, executor=executor, progress=progress)


def run_width_convergence(
    config: WidthConvergenceConfig, out: str | Path, *, executor: Executor = HERE, progress: Progress | None = None
) -> Path:
    """Data, figures, tables and page of the experiment into a folder; returns the path of the page.

    Points that a run with the same settings finished in this folder are reused.

    Arguments:
        executor: where points run.
    """
    from .width_convergence_report import write_report  # matplotlib is slow to import: only when something is drawn

    out = Path(out)
    progress = progress or silent
    where = {"executor": executor, "progress": progress}
    one_path = one_path_data(config.one_path, folder=out / "sweep_one_path", **where)
    store.save(one_path, out / "one_path.nc", store.fingerprint(config.one_path))
    markov = width_convergence_data(config, folder=out / "sweep", **where)
    points = config.seeds * len(config.widths)

    def write(dataset: xr.Dataset, config: WidthConvergenceConfig, folder: Path) -> Path:
        return write_report(dataset, one_path, config, folder)

    return finished(markov, config, out / "width_convergence.nc", write, points=points, progress=progress)


def width_convergence_data(
    config: WidthConvergenceConfig,
    *,
    folder: str | Path | None = None,
    executor: Executor = HERE,
    progress: Progress | None = None,
) -> xr.Dataset:
    """The numbers of the hidden-Markov part: a sweep over repetitions and widths.

    Arguments:
        folder: where the sweep is kept and gone on with.
        executor: where points (one repetition, one width) run.
        progress: called as progress(done, total, message); the message says what a point costs.

    Returns:
        A Dataset with the dimensions seed (repetition), width and approach: `error` and `noise` against each
        reference and of each quantity, predictions (`mean`, `variance` and their Monte-Carlo errors) along example,
        `order_parameter`, `accuracy`, `bias`, `log_evidence`, `seconds`, `mixed`. What does not apply or was not asked
        for is nan.
    """
    found = swept(
        width_convergence_point,
        {"seed": list(range(config.seeds)), "width": list(config.widths)},
        None if folder is None else Path(folder),
        config=config.point_record,
        executor=executor,
        progress=progress or silent,
    )
    return _described(found.rename(approach_seconds="seconds"), config)


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

    tasks = [partial(part, others), partial(part, (EXACT,))]
    rest, exact = in_threads(tasks, progress, usual_workers())
    joined = {
        name: getattr(rest, name) | getattr(exact, name)
        for name in ("results", "predictions", "seconds", "left_out", "unmixed")
    }
    return dataclasses.replace(exact, **joined)


def _distances(comparison: Comparison) -> np.ndarray:
    """Errors and their noise, [2, reference, approach, quantity]; nan for what is not there."""
    table = np.full((2, len(REFERENCES), len(METHODS), len(QUANTITIES)), np.nan)
    for row, reference in enumerate(REFERENCES):
        for column, name in enumerate(METHODS):
            if name == reference or not {name, reference} <= set(comparison.results):
                continue
            # Sampled networks are the noisier truth: the exact posterior is measured against them, not they against it.
            if (name, reference) == (SAMPLED, EXACT):
                continue
            apart = comparison.distance(name, reference)
            table[0, row, column] = apart.mean, apart.deviation, apart.order_parameter
            table[1, row, column] = apart.mean_noise, apart.deviation_noise, apart.order_parameter_noise
    return table


def geometric_mean(values: xr.DataArray) -> xr.DataArray:
    """The geometric mean over seeds, which is the middle on a logarithmic axis; nan is left out."""
    logs = xr.apply_ufunc(np.log, values.where(values > 0))
    return xr.apply_ufunc(np.exp, logs.mean("seed"))


def width_within(widths: np.ndarray, errors: np.ndarray, level: float = LEVEL) -> float | None:
    """The width from which on errors stay at or under a level, interpolated in logarithms; None where they do not.

    Arguments:
        widths, errors: [width], ascending; nan counts as over the level.

    Example:
        >>> width_within([10, 1000], [0.1, 0.001], level=0.01)
        100.0
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


def duration(seconds: float) -> str:
    """A time in words: 40 s, 3 min, 1.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


_LONG_NAMES = {
    "error": "root-mean-square difference from the reference over that of the reference",
    "noise": "what Monte-Carlo noise alone would show as error",
    "mean": "mean of the predictor",
    "variance": "variance of the predictor, without temperature",
    "mean_error": "Monte-Carlo standard error of the mean",
    "variance_error": "Monte-Carlo standard error of the variance",
    "order_parameter": "order parameter U between attention paths",
    "order_parameter_error": "Monte-Carlo standard error of U",
    "accuracy": "test accuracy of the sign of the mean predictor",
    "bias": "mean squared difference of mean predictor and label on the test set",
    "log_evidence": "log evidence of the training labels",
    "seconds": "seconds to find the result and predict, compilation included",
    "mixed": "whether chains have mixed; false where an approach is absent",
    "test_label": "labels of the test sequences",
}


def _described(dataset: xr.Dataset, config: WidthConvergenceConfig) -> xr.Dataset:
    for name, variable in dataset.data_vars.items():
        variable.attrs["long_name"] = _LONG_NAMES[str(name)]
    return dataset.assign_attrs(title="Width convergence at P = N", config=json.dumps(dataclasses.asdict(config)))

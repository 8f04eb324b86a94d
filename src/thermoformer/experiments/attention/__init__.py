"""Attention that learns: when evidence, posterior and gradient descent find the heads that explain labels.

A teacher has one head of rank 1. Its direction is looked for at the maximum of the evidence, by the posterior, and by
gradient descent on all weights. Three smaller parts stand beside it: heads of the hidden-Markov task in a family that
contains the good one (`hidden_markov`), one number that begins to copy a token (`copying`), and a parameter whose
posterior is known exactly (`one_parameter`).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from ..._validation import fail
from ...learning import (
    Architecture,
    AttentionModel,
    PathFeatures,
    SamplingWarning,
    gaussian_process,
    learn_attention,
    sample_attention,
)
from ...learning.attention_models import NORMALISATIONS
from ...sweeps import resumable
from ..base import Study
from ..sweeping import Workspace, check_fields, config_of, record_of
from ..words import minus
from .copying import CopyingConfig, copying_point
from .descent import descended, overlap, tied_logits
from .hidden_markov import HEADS, SEARCHES, HiddenMarkovConfig, hidden_markov_point
from .one_parameter import THEORIES, OneParameterConfig, one_parameter_point

EVIDENCE, ANNEALED, POSTERIOR, DESCENT = "evidence", "annealed", "posterior", "descent"
APPROACHES = (EVIDENCE, ANNEALED, POSTERIOR, DESCENT)
# Higher temperatures that annealed starts pass.
ANNEALING = 4
# From this overlap on a start has found the teacher.
FOUND = 0.9
# From this test accuracy on a start has found heads that solve the hidden-Markov task; uniform heads have about a half.
SOLVED = 0.9
# Columns of the table of one parameter.
SADDLE_COLUMNS = ("variation", "shift", "deviation")


@dataclass(frozen=True)
class AttentionConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        teachers: how many, each with its own examples.
        seed: of all random numbers.
        ratios: P/N0.
        normalisations: "softmax" or "linear", of teacher and student.
        token_width, tokens: of the independent Gaussian tokens.
        noise: standard deviation of the noise on labels, whose signal is about 0.8.
        starts: of the search for the maximum.
        sampled: for how many of the teachers the posterior is sampled, which takes far longer than all else.
        draws, warmup: of each of two chains.
        width, descents, steps, rate: of the networks that gradient descent trains: their width, how many, and how.
        one_parameter, hidden_markov, copying: the other parts; None leaves one out.
    """

    teachers: int = 6
    seed: int = 0
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
    normalisations: tuple[str, ...] = NORMALISATIONS
    token_width: int = 50
    tokens: int = 8
    noise: float = 0.1
    test_examples: int = 500
    starts: int = 32
    sampled: int = 0
    draws: int = 150
    warmup: int = 50
    width: int = 20
    descents: int = 4
    steps: int = 1000
    rate: float = 0.02
    one_parameter: OneParameterConfig | None = field(default_factory=OneParameterConfig)
    hidden_markov: HiddenMarkovConfig | None = field(default_factory=HiddenMarkovConfig)
    copying: CopyingConfig | None = field(default_factory=CopyingConfig)

    def __post_init__(self) -> None:
        check_fields(self, nonnegative=("sampled",), above_zero=("noise", "rate"), ascending={"ratios": "ratio"})
        if not self.normalisations or not set(self.normalisations) <= set(NORMALISATIONS):
            raise fail("normalisations", self.normalisations, f"one or both of {NORMALISATIONS}")

    @classmethod
    def quick(cls, seed: int = 0) -> AttentionConfig:
        """The small size: one teacher, fewer features and starts."""
        return cls(
            teachers=1,
            seed=seed,
            ratios=(1.0, 4.0),
            token_width=8,
            starts=8,
            sampled=1,
            draws=100,
            descents=2,
            steps=500,
            one_parameter=OneParameterConfig(data_sets=2, seed=seed, widths=(1, 10), nodes=61),
            hidden_markov=HiddenMarkovConfig(data_sets=1, seed=seed, examples=(50,), starts=6),
            copying=CopyingConfig(data_sets=4, seed=seed, ratios=(2.0,), token_width=50),
        )


@resumable
def attention_point(normalisation: str, ratio: float, teacher: int, config: Mapping[str, Any]) -> xr.Dataset:
    """Overlaps and errors of all approaches [approach], and how the search went: a point of the sweep.

    Arguments:
        normalisation: of the attention.
        ratio: P/N0.
        teacher: number of the teacher.
        config: the record of an `AttentionConfig`.
    """
    settings = config_of(AttentionConfig, config)
    width, examples = settings.token_width, round(ratio * settings.token_width)
    model = AttentionModel(tied_logits, {"q": np.ones(width)}, normalisation=normalisation)
    arch, temperature = Architecture((1,), settings.width), settings.noise**2
    seeds = (settings.seed, teacher, examples)
    random = np.random.default_rng(seeds)
    x = random.normal(size=(examples + settings.test_examples, settings.tokens, width))
    truth = {"q": random.normal(size=width)}
    features = model.features(truth, x)
    signal = np.asarray(features.values)[:, 0] @ random.normal(size=width) / np.sqrt(width)
    y = signal[:examples] + settings.noise * random.normal(size=examples)
    new, wanted = x[examples:], signal[examples:]
    # One head with fewer features than examples: the dual form is far quicker.
    form = "dual" if width < examples else "auto"
    given = model, arch, x[:examples], y
    options = {
        "temperature": temperature,
        "theory": "gaussian process",
        "form": form,
        "key": int(random.integers(2**31)),
    }

    def error(mean: np.ndarray) -> float:
        return float(np.mean((mean - wanted) ** 2) / np.mean(wanted**2))

    def reference(inputs: PathFeatures) -> tuple[float, float]:
        found = gaussian_process(arch, inputs[:examples], y, temperature=temperature)
        return found.log_evidence, error(found.predict(inputs[examples:]).mean)

    evidence, teacher_error = reference(features)
    uniform = np.asarray(x.mean(axis=1, keepdims=True))
    blank: dict[str, Any] = dict.fromkeys(APPROACHES, np.nan)
    overlaps, errors, seconds = blank.copy(), blank.copy(), blank.copy()

    gains, shares = blank.copy(), blank.copy()
    for approach, annealing in ((EVIDENCE, 0), (ANNEALED, ANNEALING)):
        began = time.perf_counter()
        learned = learn_attention(*given, **options, starts=settings.starts, annealing=annealing, throw=False)
        seconds[approach] = time.perf_counter() - began
        overlaps[approach] = overlap(learned.theta["q"], truth["q"])
        errors[approach] = error(learned.predict(new).mean)
        gains[approach] = learned.objective - evidence - float(model.log_prior(truth))
        shares[approach] = np.mean(overlap(learned.ends["q"], truth["q"]) > FOUND)
    crossings: Any = np.nan
    mixed: Any = np.nan
    if teacher < settings.sampled:
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SamplingWarning)  # the page says how many have not mixed
            posterior = sample_attention(*given, **options, draws=settings.draws, warmup=settings.warmup)
        seconds[POSTERIOR] = time.perf_counter() - began
        overlaps[POSTERIOR] = np.mean(overlap(posterior.theta["q"], truth["q"]))
        errors[POSTERIOR] = error(posterior.predict(new).mean)
        crossings, mixed = posterior.diagnostics.crossings, posterior.diagnostics.mixed
    how = {"networks": settings.descents, "steps": settings.steps, "rate": settings.rate}
    began = time.perf_counter()
    direction, mean = descended(*given, new, random, temperature=temperature, **how)
    seconds[DESCENT] = time.perf_counter() - began
    overlaps[DESCENT], errors[DESCENT] = overlap(direction, truth["q"]), error(mean)
    scalars = {
        "uniform_error": reference(PathFeatures.from_attentioned_inputs(uniform))[1],
        "teacher_error": teacher_error,
        "crossings": float(crossings),
        "mixed": float(mixed),
    }
    by_approach = {"overlap": overlaps, "test_error": errors, "duration": seconds, "gain": gains, "share": shares}
    arrays = {name: ("approach", [values[one] for one in APPROACHES]) for name, values in by_approach.items()}
    return xr.Dataset(arrays | scalars, {"approach": list(APPROACHES)})


class Attention(Study):
    """Overlaps and errors [normalisation, ratio, teacher, approach]; also what `one_parameter` finds."""

    name, title, config, point = "attention", "Attention that learns", AttentionConfig, attention_point
    over: ClassVar = {"normalisation": "normalisations", "ratio": "ratios", "teacher": "teachers"}
    same: ClassVar = {"teachers": 1, "ratios": (1.0,), "normalisations": NORMALISATIONS, "one_parameter": None}
    # Later parts, which no record of a point has, so that folders of earlier runs go on.
    apart: ClassVar = ("hidden_markov", "copying")
    long_names: ClassVar = {
        "overlap": "overlap of the direction with the teacher's",
        "test_error": "squared test error over that of predicting zero",
        "duration": "time in seconds",
        "uniform_error": "test error with uniform attention",
        "teacher_error": "test error with the teacher's attention",
        "gain": "log evidence + log prior, found less teacher",
        "share": "share of starts that found the teacher",
        "crossings": "independent states that crossed from the prior",
        "mixed": "whether chains have mixed",
        "variation": "total variation distance from the exact posterior of the slope",
        "shift": "mean of the slope, off by this many standard deviations",
        "deviation": "standard deviation of the slope over the exact one",
        "hidden_markov_evidence": "log evidence with learned and with given heads",
        "hidden_markov_accuracy": "test accuracy with learned and with given heads",
        "hidden_markov_duration": "time in seconds",
        "hidden_markov_start_gain": "log evidence + log prior where a start ended, less that of the good heads",
        "hidden_markov_start_accuracy": "test accuracy where a start ended",
        "copying_density": "log posterior density of b over N0, less a constant",
        "copying_mean": "posterior mean of the weight on the token before",
        "copying_highest": "weight on the token before at the maximum of the posterior",
        "copying_ends": "weight on the token before where a start ended",
    }

    def record(self, config: AttentionConfig) -> dict[str, Any]:
        """What decides the numbers of a point of the teachers."""
        return {name: value for name, value in super().record(config).items() if name not in self.apart}

    def compute(self, config: AttentionConfig, workspace: Workspace) -> xr.Dataset:
        """All parts, each in a folder of its own."""
        found = super().compute(config, workspace.part("teacher"))
        if (part := config.one_parameter) is not None:
            axes, record = {"data_set": list(range(part.data_sets))}, record_of(part, data_sets=1)
            found = found.merge(workspace.part("one-parameter").sweep(one_parameter_point, axes, record))
        if (part := config.hidden_markov) is not None:
            axes = {"examples": list(part.examples), "data_set": list(range(part.data_sets))}
            record = record_of(part, data_sets=1, examples=(1,))
            swept = workspace.part("hidden-markov").sweep(hidden_markov_point, axes, record)
            found = found.merge(prefixed(swept, "hidden_markov"))
        if (part := config.copying) is not None:
            axes = {"normalisation": list(NORMALISATIONS), "ratio": list(part.ratios)}
            axes |= {"data_set": list(range(part.data_sets))}
            record = record_of(part, data_sets=1, ratios=(1.0,))
            found = found.merge(prefixed(workspace.part("copying").sweep(copying_point, axes, record), "copying"))
        return found

    def tables(self, dataset: xr.Dataset, config: AttentionConfig) -> dict[str, pd.DataFrame]:
        """Everything about the teachers, one row each."""
        names = ["uniform_error", "teacher_error", "crossings", "mixed"]
        names += ["overlap", "test_error", "gain", "share", "duration"]
        return {"attention": dataset[names].to_dataframe().reset_index()}

    def sized(self, quick: bool, seed: int) -> AttentionConfig:
        """With one seed for all parts."""
        if quick:
            return AttentionConfig.quick(seed)
        return AttentionConfig(
            seed=seed,
            one_parameter=OneParameterConfig(seed=seed),
            hidden_markov=HiddenMarkovConfig(seed=seed),
            copying=CopyingConfig(seed=seed),
        )

    def values(self, dataset: xr.Dataset, config: AttentionConfig) -> dict[str, Any]:
        """Rows of the tables."""
        shown = [one for one in APPROACHES if one != POSTERIOR or config.sampled]
        blocks = [
            {
                "name": name,
                "rows": [teacher_row(dataset.sel(normalisation=name, ratio=one), shown) for one in config.ratios],
            }
            for name in config.normalisations
        ]
        one_parameter = []
        if config.one_parameter is not None:
            one_parameter = [
                [str(width), *(row_of(at[name].sel(theory=one), 3) for name in SADDLE_COLUMNS for one in THEORIES)]
                for width in config.one_parameter.widths
                for at in [dataset.sel(width=width)]
            ]
        return {
            "blocks": blocks,
            "shown": shown,
            "found": FOUND,
            "solved": SOLVED,
            "annealing": ANNEALING,
            "one_parameter": one_parameter,
            "hidden_markov": [] if config.hidden_markov is None else hidden_markov_rows(dataset, config.hidden_markov),
            "copying": [] if config.copying is None else copying_rows(dataset, config.copying),
        }


def prefixed(found: xr.Dataset, prefix: str) -> xr.Dataset:
    """With a prefix to the names of axes and variables."""
    return found.rename({name: f"{prefix}_{name}" for name in {*found.variables, *found.dims}})


def row_of(values: xr.DataArray, digits: int) -> str:
    """Mean and standard error over repetitions; empty where nothing was measured."""
    known = values.values[np.isfinite(values.values)]
    if not len(known):
        return ""
    error = f" ± {known.std(ddof=1) / np.sqrt(len(known)):.{digits}f}" if len(known) > 1 else ""
    return minus(f"{known.mean():.{digits}f}{error}")


def teacher_row(at: xr.Dataset, shown: Sequence[str]) -> list[str]:
    """A row of the table of teachers, with some of the approaches."""
    by_approach = [at.sel(approach=one) for one in shown]
    return [
        f"{float(at.ratio):g}",
        *(row_of(one.overlap, 2) for one in by_approach),
        *(row_of(one.test_error, 3) for one in by_approach),
        row_of(at.uniform_error, 3),
        row_of(at.teacher_error, 3),
        *(row_of(one.gain, 0) for one in by_approach[:2]),
        *(row_of(100 * one.share, 0) for one in by_approach[:2]),
        *([row_of(at.crossings, 0)] if POSTERIOR in shown else []),
    ]


def hidden_markov_rows(dataset: xr.Dataset, part: HiddenMarkovConfig) -> list[list[str]]:
    """Rows of the table of the hidden-Markov task."""
    rows = []
    for examples in part.examples:
        at = dataset.sel(hidden_markov_examples=examples)
        by_heads = [at.sel(hidden_markov_heads=heads) for heads in HEADS]
        solved = 100 * (at.hidden_markov_start_accuracy > SOLVED).mean("hidden_markov_start")
        rows.append(
            [
                str(examples),
                *(row_of(100 * one.hidden_markov_accuracy, 1) for one in by_heads),
                *(row_of(one.hidden_markov_evidence, 0) for one in by_heads),
                *(row_of(solved.sel(hidden_markov_search=search), 0) for search in SEARCHES),
            ]
        )
    return rows


def copying_rows(dataset: xr.Dataset, part: CopyingConfig) -> list[list[str]]:
    """Rows of the table of copying: both kinds of attention side by side."""
    rows = []
    for ratio in part.ratios:
        at = dataset.sel(copying_ratio=ratio)
        row = [f"{ratio:g}"]
        for name in NORMALISATIONS:
            one = at.sel(copying_normalisation=name)
            limit = " or ".join(f"{weight:.2f}" for weight in part.maxima_of_many(name, ratio))
            row += [limit, row_of(one.copying_highest, 2), row_of(one.copying_mean, 2)]
            row.append(row_of(one.copying_ends.mean("copying_start"), 2))
        rows.append(row)
    return rows


STUDY = Attention()

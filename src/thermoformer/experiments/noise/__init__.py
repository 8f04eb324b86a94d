"""Labels whose noise is not Gaussian: how far off is a theory that takes it for Gaussian?

Labels of two tasks get noise of many laws, with one variance. The theory has Gaussian noise, with a temperature that is
known, chosen by evidence, or chosen by validation. It is compared with the exact posterior under the true law.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from scipy import stats

from ..._validation import fail
from ...learning import (
    Architecture,
    ConvergenceError,
    Likelihood,
    OrderPosterior,
    PathFeatures,
    PathSum,
    Prediction,
    SamplingWarning,
    choose_by_evidence,
    head_scores,
    sample_order_parameters,
    solve,
)
from ...learning.likelihoods import reweighted
from ...sweeps import resumable
from ...tasks import OneShotTask
from ...tasks.images import load_other_images
from ..base import Study
from ..markov import FOUR_PATHS, MarkovConfig, path_features
from ..one_shot.training import shipped_network
from ..sampled import whole_key
from ..sweeping import check_fields, config_of
from ..words import fixed, spread, with_texts

MARKOV, ONE_SHOT = "hidden Markov", "one-shot"
TASKS = (MARKOV, ONE_SHOT)
# The trained network's heads 0 and 1 of both layers; each layer of it has four.
ONE_SHOT_PATHS = (0, 1, 4, 5)
# Laws by the name of a case: kind, and how strong the violation is.
CASES = {
    "Gaussian": ("gaussian", 0.0),
    "Student, ν = 5": ("student-t", 5.0),
    "Student, ν = 3": ("student-t", 3.0),
    "Student, ν = 2.5": ("student-t", 2.5),
    "Laplace": ("laplace", 0.0),
    "outliers, 1 %": ("outliers", 0.01),
    "outliers, 5 %": ("outliers", 0.05),
    "outliers, 20 %": ("outliers", 0.2),
    "uneven, 3 to 1": ("uneven", 3.0),
    "uneven, 10 to 1": ("uneven", 10.0),
    "flipped, 0 %": ("logistic", 0.0),
    "flipped, 10 %": ("logistic", 0.1),
    "flipped, 20 %": ("logistic", 0.2),
    "flipped, 30 %": ("logistic", 0.3),
    "flipped, 40 %": ("logistic", 0.4),
}
# The theory with Gaussian noise, by where its temperature comes from; with the true law through sites; and the truth.
KNOWN, EVIDENCE, VALIDATION, REWEIGHTED, EXACT = "known", "evidence", "validation", "reweighted", "exact"
GAUSSIAN_THEORIES = (KNOWN, EVIDENCE, VALIDATION)
THEORIES = (*GAUSSIAN_THEORIES, REWEIGHTED)
APPROACHES = (*THEORIES, EXACT)
# A theory counts as misled by a law if, compared with Gaussian noise, the distance of its mean grows by this many
# percent, or if it loses this many points of accuracy more.
MEAN_LIMIT, ACCURACY_LIMIT = 15.0, 2.0
# What the table has, with means and errors over repetitions.
MEASURED = ("temperature", "accuracy", "accuracy_lost", "mean_percent", "deviation", "overconfidence")
MEASURED += ("order_parameter_percent", "order_percent")


@dataclass(frozen=True)
class NoiseConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        seeds: how many independent repetitions, each with its own examples, heads and noise.
        seed: of all random numbers.
        tasks: "hidden Markov" (4 paths), and "one-shot" (Fashion-MNIST, heads of the trained network of the package).
        cases: laws of the noise, by their names.
        width: N.
        validation_examples: with noise as in training; they choose a temperature.
        noise_variance: of the noise on labels ±1.
        class_temperature: of the logistic law of classes, from which some are then flipped.
        variance: every prior variance.
        temperatures: among which validation chooses.
        tokens, feature_width: of the hidden-Markov task.
        draws, warmup, chains: of the exact posterior.
    """

    seeds: int = 5
    seed: int = 0
    tasks: tuple[str, ...] = TASKS
    cases: tuple[str, ...] = tuple(CASES)
    width: int = 10
    training_examples: int = 80
    validation_examples: int = 80
    test_examples: int = 1000
    noise_variance: float = 0.3
    class_temperature: float = 0.1
    variance: float = 1.0
    temperatures: tuple[float, ...] = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0)
    tokens: int = 30
    feature_width: int = 200
    draws: int = 300
    warmup: int = 200
    chains: int = 2

    def __post_init__(self) -> None:
        positive = ("noise_variance", "class_temperature", "variance")
        check_fields(self, above_zero=positive, ascending={"temperatures": "temperature"})
        for name, known in (("tasks", TASKS), ("cases", tuple(CASES))):
            value = getattr(self, name)
            if not value or len(set(value)) < len(value) or not set(value) <= set(known):
                raise fail(name, value, f"one or more of {', '.join(map(repr, known))}")
        if self.cases[0] != "Gaussian":
            raise fail("cases", self.cases, "'Gaussian' first: others are compared with it")
        self.markov()  # has the other checks

    @classmethod
    def quick(cls, seed: int = 0) -> NoiseConfig:
        """The small size: one repetition of one task, few examples and draws, four laws."""
        return cls(
            seeds=1,
            seed=seed,
            tasks=(MARKOV,),
            cases=("Gaussian", "Student, ν = 2.5", "uneven, 10 to 1", "flipped, 20 %"),
            training_examples=50,
            validation_examples=50,
            test_examples=500,
            tokens=16,
            feature_width=100,
            draws=100,
            warmup=100,
        )

    def markov(self) -> MarkovConfig:
        """The hidden-Markov task; validation examples follow training examples."""
        both = self.training_examples + self.validation_examples
        same = {name: getattr(self, name) for name in ("seeds", "seed", "test_examples", "tokens", "feature_width")}
        return MarkovConfig(components=1, variants=(FOUR_PATHS,), training_examples=both, **same)

    def architecture(self) -> Architecture:
        """The network of both tasks: two layers of two heads."""
        return Architecture((2, 2), self.width, self.variance)


class Noise(NamedTuple):
    """A law of the noise on one set of labels.

    Fields:
        labels: with noise, of training and validation examples.
        likelihood: the true one.
        temperature: of the true likelihood.
        variance: of the labels around the output that a theory with Gaussian noise would find.
        deviations: of the noise of each training example, relative to the root of the temperature.
    """

    labels: np.ndarray
    likelihood: Likelihood
    temperature: float
    variance: float
    deviations: np.ndarray


@resumable
def noise_point(seed: int, task: str, case: str, config: Mapping[str, Any]) -> xr.Dataset:
    """One task with one law of the noise in one repetition: a point of the sweep."""
    settings = config_of(NoiseConfig, config)
    features, labels = task_features(settings, task, seed)
    return compared(settings, features, labels, case, whole_key(settings.seed, seed, TASKS.index(task)))


def task_features(config: NoiseConfig, task: str, index: int) -> tuple[PathFeatures, np.ndarray]:
    """Features and clean labels of one repetition: training, validation and test examples in this order."""
    if task == MARKOV:
        training, labels, test, test_labels = path_features(config.markov(), 0, index)
        # They come class by class, and are to be split into training and validation.
        order = np.random.default_rng((config.seed, index)).permutation(len(labels))
        values = np.concatenate([np.asarray(training.values)[order], test.values])
        return PathFeatures.from_attentioned_inputs(values), np.concatenate([labels[order], test_labels])
    count = config.training_examples + config.validation_examples + config.test_examples
    return _one_shot_features(whole_key(config.seed, index), count)


@lru_cache(maxsize=1)
def _one_shot_features(seed: int, count: int) -> tuple[PathFeatures, np.ndarray]:
    images = load_other_images("fashion-mnist").images
    x, labels = OneShotTask(images, part="fashion-mnist", seed=seed % 2**31).sequences(count)
    return shipped_network().path_features(x).select(ONE_SHOT_PATHS), labels.astype(float)


def with_noise(config: NoiseConfig, features: PathFeatures, labels: np.ndarray, case: str, seed: int) -> Noise:
    """Clean labels with the noise of a case; the same random numbers make the noise of every case.

    Arguments:
        features, labels: of training and validation examples.
    """
    kind, strength = CASES[case]
    generator, examples = np.random.default_rng(seed), config.training_examples
    quantiles, chances = generator.uniform(size=(2, len(labels)))
    direction = generator.normal(size=features.values.shape[1:])
    tau, ones = config.noise_variance, np.ones(examples)
    if kind == "logistic":
        flipped = labels * np.where(chances < strength, -1, 1)
        # A class that is flipped with probability φ has mean ±(1 − 2φ), and this variance.
        spread = config.class_temperature + 4 * strength * (1 - strength)
        return Noise(flipped, Likelihood(kind, share=strength), config.class_temperature, spread, ones)
    normal = np.sqrt(tau) * stats.norm.ppf(quantiles)
    if kind == "student-t":
        noise = np.sqrt(tau * (strength - 2) / strength) * stats.t.ppf(quantiles, strength)
        return Noise(labels + noise, Likelihood(kind, degrees_of_freedom=strength), tau, tau, ones)
    if kind == "laplace":
        return Noise(labels + np.sqrt(tau / 2) * stats.laplace.ppf(quantiles), Likelihood(kind), tau, tau, ones)
    if kind == "outliers":
        law = Likelihood(kind, share=strength)
        relative = np.where(chances < strength, law.factor, 1) / np.sqrt(1 + strength * (law.factor**2 - 1))
        return Noise(labels + relative * normal, law, tau, tau, ones)
    if kind == "uneven":
        projection = np.tensordot(np.asarray(features.values), direction, 2)
        loud = projection > np.median(projection)
        deviations = np.where(loud, strength, 1) / np.sqrt((1 + strength**2) / 2)
        return Noise(labels + deviations * normal, Likelihood("gaussian"), tau, tau, deviations[:examples])
    return Noise(labels + normal, Likelihood("gaussian"), tau, tau, ones)


def compared(config: NoiseConfig, features: PathFeatures, clean: np.ndarray, case: str, seed: int) -> xr.Dataset:
    """All approaches on one task with one law of the noise."""
    arch, split = config.architecture(), config.training_examples
    known = split + config.validation_examples
    noise = with_noise(config, features[:known], clean[:known], case, seed)
    training, labels, test = features[:split], noise.labels[:split], features[known:]
    results: dict[str, PathSum | None] = {KNOWN: solve(arch, training, labels, temperature=noise.variance, throw=False)}
    results[EVIDENCE] = _by_evidence(config, training, labels)
    results[VALIDATION] = _by_validation(config, training, labels, features[split:known], noise.labels[split:])
    data = _divided(training, noise.deviations), labels / noise.deviations
    tau = noise.temperature
    sites = data if noise.likelihood.gaussian else reweighted(arch, *data, noise.likelihood, tau)[:2]
    results[REWEIGHTED] = solve(arch, *sites, temperature=tau, throw=False)
    sampler: dict[str, Any] = {"draws": config.draws, "warmup": config.warmup, "chains": config.chains, "key": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)  # said in the data and on the page
        exact = sample_order_parameters(arch, *data, temperature=tau, likelihood=noise.likelihood, **sampler)
    results[EXACT] = exact
    truth = exact.predict(test)
    rows = []
    for name, result in results.items():
        units = CASES[case][0] == "logistic" and name in GAUSSIAN_THEORIES
        rows.append(_measured(result, exact, test, truth, clean[known:], units))
    found = {name: ("approach", [row[name] for row in rows]) for name in rows[0]}
    kurtosis, largest = _tails(results[EVIDENCE], training, labels)
    return xr.Dataset(
        found
        | {
            "excess_kurtosis": kurtosis,
            "largest_residual": largest,
            "noise": _relative(truth.mean_error, truth.mean),
            "mixed": exact.diagnostics.mixed,
            "note": exact.diagnostics.reason,
            "sampler_seconds": exact.diagnostics.seconds,
        },
        {"approach": list(APPROACHES)},
    )


def _by_evidence(config: NoiseConfig, training: PathFeatures, labels: np.ndarray) -> PathSum | None:
    """The theory at the temperature of the highest evidence; None where the search for it does not end."""
    try:
        start = config.noise_variance
        return choose_by_evidence(config.architecture(), training, labels, temperature=start, variances=False).solution
    except ConvergenceError:
        return None


def _by_validation(
    config: NoiseConfig, training: PathFeatures, labels: np.ndarray, validation: PathFeatures, noisy: np.ndarray
) -> PathSum:
    """The theory at the temperature with the smallest squared error on validation examples."""
    arch = config.architecture()
    found = [solve(arch, training, labels, temperature=tau, throw=False) for tau in config.temperatures]
    return min(found, key=lambda solution: solution.predict(validation).bias(noisy))


def _divided(features: PathFeatures, deviations: np.ndarray) -> PathFeatures:
    """Features over the deviation of the noise of each example, which thereby becomes the same for all."""
    return PathFeatures.from_attentioned_inputs(np.asarray(features.values) / deviations[:, None, None])


def _measured(
    result: PathSum | None,
    exact: OrderPosterior,
    test: PathFeatures,
    truth: Prediction,
    clean: np.ndarray,
    other_units: bool,
) -> dict[str, float]:
    """One approach against the exact posterior and the clean labels; nan where there is no result.

    Arguments:
        other_units: whether its output may differ from the exact one by a factor, which is then fitted.
    """
    names = ("temperature", "accuracy", "mean", "deviation", "overconfidence", "order_parameter", "order", "converged")
    if result is None:
        return dict.fromkeys(names, np.nan)
    arch, order = exact.architecture, np.asarray(result.order_parameter)
    own = truth if result is exact else result.predict(test)
    factor = float(own.mean @ truth.mean / (truth.mean @ truth.mean)) if other_units else 1.0
    spread = np.sqrt(own.variance)
    scores = [head_scores(arch, one).values for one in (order, exact.order_parameter)]
    agreement: Any = stats.kendalltau(*scores)
    accuracy = own.accuracy(clean)
    return {
        "temperature": result.temperature,
        "accuracy": accuracy,
        "mean": _relative(own.mean - factor * truth.mean, factor * truth.mean),
        "deviation": np.sqrt(own.mean_variance() / truth.mean_variance()) / abs(factor),
        "overconfidence": float(np.mean(stats.norm.cdf(np.abs(own.mean) / spread))) - accuracy,
        "order_parameter": _relative(order - factor**2 * exact.order_parameter, factor**2 * exact.order_parameter),
        "order": (1 + agreement.statistic) / 2,
        "converged": float(getattr(result, "converged", True)),
    }


def _relative(apart: Any, whole: Any) -> float:
    """Root mean square of a difference over that of the whole."""
    return float(np.sqrt(np.mean(np.square(apart)) / np.mean(np.square(whole))))


def _tails(result: PathSum | None, training: PathFeatures, labels: np.ndarray) -> tuple[float, float]:
    """Excess kurtosis, and largest size, of the theory's own residuals: each label left out, over its deviation."""
    if result is None:
        return np.nan, np.nan
    inverse = np.linalg.inv(result.kernel(training) + result.temperature * np.eye(len(labels)))
    residuals = inverse @ labels / np.sqrt(np.diagonal(inverse))
    return float(stats.kurtosis(residuals)), float(np.abs(residuals).max())


class NoiseStudy(Study):
    """The sweep over tasks, repetitions and laws of the noise, with all approaches at every point.

    Its Dataset has the dimensions seed, task, case and approach.
    """

    name, title, config, point = "noise", "Noise that is not Gaussian", NoiseConfig, noise_point
    over: ClassVar = {"seed": "seeds", "task": "tasks", "case": "cases"}
    # Which other tasks, repetitions and laws there are changes no point.
    same: ClassVar = {"tasks": (MARKOV,), "seeds": 1, "cases": ("Gaussian",)}
    long_names: ClassVar = {
        "temperature": "temperature of the approach",
        "accuracy": "test accuracy of the sign of the mean, on clean labels",
        "mean": "root-mean-square distance of the mean from the exact one, over that of the exact one",
        "deviation": "root-mean-square deviation of the predictor over that of the exact posterior",
        "overconfidence": "probability that the approach gives to its signs, less its accuracy",
        "order_parameter": "distance of U from the exact one, over the norm of the exact one",
        "order": "share of the pairs of heads that scores order as those of the exact posterior do",
        "converged": "1 where the solver reached its tolerance",
        "excess_kurtosis": "excess kurtosis of residuals of left-out labels, theory with the highest evidence",
        "largest_residual": "the largest of these residuals, in standard deviations",
        "noise": "what Monte-Carlo noise of the exact posterior alone would show as distance of the mean",
        "mixed": "whether the chains of the exact posterior mixed",
        "note": "why they count as not mixed",
        "sampler_seconds": "seconds of the exact posterior",
        "mean_percent": "distance of the mean, in percent",
        "order_parameter_percent": "distance of U, in percent",
        "order_percent": "share of the pairs of heads in order, in percent",
        "accuracy_lost": "accuracy of the exact posterior less that of the approach, in points",
        "overconfidence_added": "overconfidence less that of the exact posterior, in points",
    }

    def complete(self, found: xr.Dataset, config: NoiseConfig) -> xr.Dataset:
        """With percents and differences from the exact posterior."""
        exact = found.sel(approach=EXACT, drop=True)
        percent = {f"{name}_percent": 100 * found[name] for name in ("mean", "order_parameter", "order")}
        return found.assign(
            percent
            | {
                "accuracy_lost": 100 * (exact.accuracy - found.accuracy),
                "overconfidence_added": 100 * (found.overconfidence - exact.overconfidence),
            }
        )

    def tables(self, dataset: xr.Dataset, config: NoiseConfig) -> dict[str, pd.DataFrame]:
        """Means over repetitions, and their standard errors, of all that is measured."""
        found = dataset[list(MEASURED)]
        error = found.std("seed", ddof=1) / np.sqrt(dataset.sizes["seed"])
        both = found.mean("seed").merge(error.rename({name: f"{name}_error" for name in MEASURED}))
        frame = both.to_dataframe(dim_order=["task", "case", "approach"]).reset_index()
        return {"noise": with_texts(frame, **{str(name): ".3f" for name in both.data_vars})}

    def values(self, dataset: xr.Dataset, config: NoiseConfig) -> dict[str, Any]:
        """Tables of every task, and the laws that mislead each theory."""
        theories, mixed, examples = list(THEORIES), dataset.mixed.astype(bool), config.training_examples
        tasks = []
        for task in config.tasks:
            at = dataset.sel(task=task)
            exact = 100 * at.accuracy.sel(approach=EXACT)
            rows: dict[str, list] = {"accuracy": [], "mean": [], "rest": [], "residuals": []}
            for case in config.cases:
                one = at.sel(case=case)
                lost, off = (one[name].sel(approach=theories) for name in ("accuracy_lost", "mean_percent"))
                rows["accuracy"].append([case, spread(exact.sel(case=case)), *_cells(lost)])
                rows["mean"].append([case, *_cells(off), fixed(100 * one.noise.mean())])
                rest = [(name, which) for name in _REST for which in (EVIDENCE, REWEIGHTED)]
                rows["rest"].append(
                    [case, *(_mean(one[name].sel(approach=which), _REST[name]) for name, which in rest)]
                )
                rows["residuals"].append(
                    [case, *(spread(one[name]) for name in ("excess_kurtosis", "largest_residual"))]
                )
            tasks.append({"name": task, "rows": rows, "misled": [[name, _misled(at, name)] for name in theories]})
        return {
            "tasks": tasks,
            "theories": theories,
            "limits": (MEAN_LIMIT, ACCURACY_LIMIT),
            # Of as many normal numbers: the median of the largest size, and the error of the excess kurtosis.
            "usual": (stats.norm.ppf((1 + 0.5 ** (1 / examples)) / 2), np.sqrt(24 / examples)),
            "unmixed": int((~mixed).sum()),
            "runs": int(mixed.size),
            "reason": next(iter(dataset.note.values[~mixed.values]), ""),
            "failed": int((dataset.converged.sel(approach=theories) != 1).sum()),
            "seconds": float(dataset.sampler_seconds.mean()),
        }


# Decimals of what stands beside each other for the theory by evidence and on reweighted examples.
_REST = {"deviation": 2, "overconfidence_added": 1, "order_parameter_percent": 0, "order_percent": 0}


def _cells(values: xr.DataArray) -> list[str]:
    """Mean ± standard error over repetitions, one text per approach."""
    mean, count = values.mean("seed"), values.sizes["seed"]
    if count == 1:
        return [fixed(one) for one in mean]
    return [
        f"{fixed(one)} ± {fixed(error)}"
        for one, error in zip(mean, values.std("seed", ddof=1) / np.sqrt(count), strict=True)
    ]


def _mean(values: xr.DataArray, digits: int) -> str:
    return fixed(values.mean("seed"), digits)


def _misled(at: xr.Dataset, approach: str) -> str:
    """The cases in which an approach is over one of the limits, on average over repetitions, in words."""
    means = at[["mean_percent", "accuracy_lost"]].sel(approach=approach).mean("seed")
    more = means - means.sel(case="Gaussian")
    over = (more.mean_percent > MEAN_LIMIT) | (more.accuracy_lost > ACCURACY_LIMIT)
    return "; ".join(map(str, means.case.values[over.values])) or "none"


STUDY = NoiseStudy()

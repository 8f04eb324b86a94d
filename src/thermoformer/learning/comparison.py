"""Every theory and every sampler on one problem, side by side (learning §10)."""

from __future__ import annotations

import functools
import html
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .._keys import KeyLike, as_key
from .._notebook import Result, draw
from .._validation import fail, nonnegative_number, one_of, positive_integer, positive_number
from .architecture import Architecture
from .corrections import one_loop
from .exact import sample_order_parameters
from .kernels import check_new_examples, checked_labels
from .paths import PathFeatures
from .results import EXAMPLES, ROWS, PathSum, Posterior, Prediction, labels_or_classes
from .saddle import ConvergenceError, gaussian_process, solve
from .sampling import Report, SamplingWarning
from .weights import METHODS as SAMPLERS
from .weights import sample_weights_on_paths

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.axes import Axes

METHODS = ("gaussian process", "saddle", "one-loop", "exact", "sampled")
# What is taken as the truth, best first: the exact posterior has the same law as sampled networks and less noise.
REFERENCES = ("exact", "sampled")


@dataclass(frozen=True)
class Distance:
    """How far one method is from the reference: root-mean-square difference over that of the reference.

    Each comes with its noise: what finite draws alone would show between two methods that agree. Nothing is
    subtracted; a distance at its noise says that no difference is seen. nan where the reference is zero.

    Fields:
        mean, mean_noise: of the predictor's mean.
        deviation, deviation_noise: of the predictor's standard deviation.
        order_parameter, order_parameter_noise: of U.
    """

    mean: float
    mean_noise: float
    deviation: float
    deviation_noise: float
    order_parameter: float
    order_parameter_noise: float


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """Methods side by side on one problem, as `compare` returns it; print it for a table, which notebooks show.

    Fields:
        architecture, temperature: of the network.
        results: by method, the `Solution` or `Posterior`.
        predictions: by method, the prediction for the test examples.
        test_labels: of the test examples, or None.
        reference: the method that the others are measured against.
        seconds: by method, to find the result and predict, compilation included; one-loop with the saddle under it.
        left_out: methods that do not apply here, with the reason.
        unmixed: samplers whose chains have not mixed, with the reason.
    """

    architecture: Architecture
    temperature: float
    results: dict[str, PathSum]
    predictions: dict[str, Prediction]
    test_labels: np.ndarray | None
    reference: str
    seconds: dict[str, float]
    left_out: dict[str, str]
    unmixed: dict[str, str]

    def distance(self, name: str, reference: str | None = None) -> Distance:
        """How far a method is from the reference, or from another method.

        Arguments:
            name, reference: methods that have a result here.
        """
        names = tuple(self.results)
        other = self.reference if reference is None else one_of("reference", reference, names)
        if one_of("name", name, names) == other:
            return Distance(*(0.0,) * 6)
        pairs = zip(self._compared(name), self._compared(other), strict=True)
        return Distance(*(number for pair in pairs for number in _relative(*pair)))

    def _compared(self, name: str) -> list[tuple[np.ndarray, Any]]:
        """Mean, standard deviation and U of a method, each with its Monte-Carlo error; 0 if it is not sampled."""
        prediction, result = self.predictions[name], self.results[name]
        deviation, error = np.sqrt(np.maximum(prediction.variance, 0)), prediction.variance_error
        if error is not None:
            # d√v = dv / 2√v, which at v near 0 cannot exceed √dv.
            slope = np.divide(error, 2 * deviation, out=np.full_like(error, np.inf), where=deviation > 0)
            error = np.minimum(slope, np.sqrt(error))
        mean = prediction.mean, prediction.mean_error
        pairs = [mean, (deviation, error), (result.order_parameter, getattr(result, "order_parameter_error", None))]
        return [(value, np.zeros_like(value) if error is None else error) for value, error in pairs]

    def table(self) -> list[dict[str, Any]]:
        """One row per method by column name; distances and noise as fractions, None if there is no such number."""
        labels, rows = self.test_labels, []
        for name, result in self.results.items():
            prediction = self.predictions[name]
            # With one output, only labels ±1 have an accuracy; class numbers do not say how classes are coded.
            scored = labels is not None and (prediction.mean.ndim == 2 or np.isin(labels, (-1, 1)).all())
            coded = labels is not None and labels.ndim == prediction.mean.ndim
            row = {"method": name, "accuracy": prediction.accuracy(labels) if scored else None}
            row |= {"bias": prediction.bias(labels) if coded else None, "variance": prediction.mean_variance()}
            row |= vars(self.distance(name)) | {"log_evidence": getattr(result, "log_evidence", None)}
            mixed = result.diagnostics.mixed if isinstance(result, Posterior) else None
            rows.append(row | {"seconds": self.seconds[name], "mixed": mixed})
        return rows

    def summary(self) -> dict[str, Any]:
        """The methods, the reference, and the temperature."""
        return {"methods": tuple(self.results), "reference": self.reference, "temperature": self.temperature}

    def plot(self, axes: Sequence[Axes] | np.ndarray | None = None) -> np.ndarray:
        """Draws means, standard deviations and entries of U of all methods against those of the reference.

        Arguments:
            axes: three Axes to draw on; default: a new figure, which notebooks show.

        Returns:
            The three Axes.
        """
        return draw("comparison_panels", self.to_xarray(), ax=axes)

    def __str__(self) -> str:
        frame, notes = self._table()
        lines = [line.rstrip() for line in frame.to_string().splitlines()]
        return "\n".join([*lines, *notes])

    def _repr_html_(self) -> str:
        frame, notes = self._table()
        return frame.to_html() + "".join(f"<p>{html.escape(note)}</p>" for note in notes)

    def _table(self) -> tuple[pandas.DataFrame, list[str]]:
        """The table that is shown, and the notes under it."""
        import xarray

        rows, words = self.table(), {"mean": "mean", "deviation": "s.d.", "order_parameter": "U"}
        columns = {"accuracy %": [_cell(row["accuracy"], "{:.1%}").rstrip("%") for row in rows]}
        columns |= {part: [_cell(row[part], "{:.4g}") for row in rows] for part in ("bias", "variance")}
        for part, word in words.items():
            apart = [_percent(row[part], row[f"{part}_noise"]) for row in rows]
            columns[f"{word} vs {self.reference}"] = [
                "reference" if row["method"] == self.reference else cell for row, cell in zip(rows, apart, strict=True)
            ]
        columns["log evidence"] = [_cell(row["log_evidence"], "{:.2f}") for row in rows]
        columns["seconds"] = [f"{row['seconds']:.1f}" for row in rows]
        columns["mixed"] = [{None: "", True: "yes", False: "NO"}[row["mixed"]] for row in rows]
        data = {name: ("method", cells) for name, cells in columns.items()}
        frame = xarray.Dataset(data, {"method": list(self.results)}).to_dataframe()
        notes = []
        if any(isinstance(result, Posterior) for result in self.results.values()):
            notes.append("±: what Monte-Carlo noise alone would show")
        notes += [f"{name} left out: {reason}" for name, reason in self.left_out.items()]
        notes += [f"{name} has not mixed: {reason}" for name, reason in self.unmixed.items()]
        return frame.rename_axis(index=None, columns="method"), notes

    def to_xarray(self, head_names: Sequence[Sequence[str]] | None = None) -> xarray.Dataset:
        """By `approach`: predictions along `example` (and `output`), U along `path` and `path_other`, and scalars.

        Monte-Carlo errors are 0 if nothing is sampled, and numbers that a method does not have are NaN.

        Arguments:
            head_names: names of the heads of each layer, for the names of the paths; default: numbers.
        """
        import xarray

        # An axis called method would collide with the argument of xarray's own sel and reindex.
        names, rows = list(self.results), self.table()
        several = self.predictions[names[0]].mean.ndim
        data: dict[str, Any] = {}
        for axes, results, fields in (
            (EXAMPLES[:several], self.predictions, ("mean", "variance", "mean_error", "variance_error")),
            (ROWS, self.results, ("order_parameter", "order_parameter_error")),
        ):
            for field in fields:
                values = [getattr(results[name], field, None) for name in names]
                blank = np.zeros_like(getattr(results[names[0]], fields[0]))
                data[field] = (("approach", *axes), np.stack([blank if one is None else one for one in values]))
        for part in vars(self.distance(names[0])):
            data[f"distance_{part}"] = ("approach", [row[part] for row in rows])
        for part in ("accuracy", "bias", "log_evidence", "seconds"):
            data[part] = ("approach", [np.nan if row[part] is None else row[part] for row in rows])
        data["mixed"] = ("approach", [row["mixed"] is not False for row in rows])
        if self.test_labels is not None:
            data["test_label"] = (EXAMPLES[: self.test_labels.ndim], self.test_labels)
        attributes = {
            "reference": self.reference,
            "heads": list(self.architecture.heads),
            "widths": list(self.architecture.widths),
            "temperature": self.temperature,
            "left_out": "; ".join(f"{name}: {reason}" for name, reason in self.left_out.items()),
        }
        paths = list(self.architecture.order_names(head_names))
        return xarray.Dataset(data, {"approach": names} | dict.fromkeys(ROWS, paths), attributes)


def compare(
    arch: Architecture,
    features: PathFeatures,
    labels: Any,
    test_features: PathFeatures,
    test_labels: Any = None,
    *,
    temperature: float,
    key: KeyLike,
    methods: Sequence[str] = METHODS,
    draws: int | Mapping[str, int] = 1000,
    chains: int = 2,
    sampler: str = "gibbs",
    progress: Report | None = None,
) -> Comparison:
    """Every method on one problem: predictions, order parameters, accuracy, evidence, and their distances.

    A method that does not apply (one-loop at widths under the number of paths, a saddle that is not found, networks
    too large to sample) is left out, and the comparison says why.

    Arguments:
        features, labels: attentioned inputs ξ and y [example], or [example, output], of the training examples.
        test_features: attentioned inputs of the examples to predict.
        test_labels: their labels; with several outputs codes [example, output] or class numbers [example].
        temperature: τ, above 0 where something is sampled.
        methods: any of "gaussian process", "saddle", "one-loop", "exact" (sampled order parameters) and "sampled"
            (sampled networks). The reference is "exact" where it is among them, else "sampled", else the last.
        draws: draws per chain, one number or one by name, {"exact": ..., "sampled": ...}.
        sampler: how networks are sampled, "gibbs" or "nuts".
        progress: called as progress(done, total, message).

    Example:
        >>> import numpy as np
        >>> xi = np.random.default_rng(0).normal(size=(50, 2, 8))
        >>> feats, y = PathFeatures.from_attentioned_inputs(xi), np.sign(xi[:, 0, 0])
        >>> comparison = compare(
        ...     Architecture((2,), 5), feats[:30], y[:30], feats[30:], y[30:], temperature=0.1, key=0,
        ...     methods=("gaussian process", "saddle"),
        ... )
        >>> comparison.reference, round(comparison.distance("gaussian process").mean, 2)
        ('saddle', 0.12)
    """
    if isinstance(methods, str) or not tuple(methods):
        raise fail("methods", repr(methods), "a sequence of names, at least one")
    names = tuple(one_of("methods", name, METHODS) for name in methods)
    if len(set(names)) < len(names):
        raise fail("methods", names, "every name once")
    y = checked_labels(arch, features, labels)
    check_new_examples(test_features, features.paths, features.token_width, "test_features")
    sampled = set(names) & set(REFERENCES)
    temperature = (positive_number if sampled else nonnegative_number)("temperature", temperature)
    draws_of, chains = _checked_draws(draws), positive_integer("chains", chains)
    one_of("sampler", sampler, SAMPLERS)
    if test_labels is not None:
        test_labels = labels_or_classes("test_labels", test_labels, test_features.examples, arch.outputs)
    exact_key, network_key = jax.random.split(as_key(key))

    def report(name: str) -> Report | None:
        """The sampler's own progress in the message, methods in the count."""
        if progress is None or name not in names:
            return None
        outer, step = progress, names.index(name)
        return lambda done, total, message: outer(step, len(names), f"{name}: {message}, {done} of {total}")

    given = (arch, features, y)
    # Cached, since one-loop builds on it.
    saddle = functools.cache(lambda: solve(*given, temperature=temperature))
    options: dict[str, Any] = {"temperature": temperature, "chains": chains}
    ways: dict[str, Callable[[], PathSum]] = {
        "gaussian process": lambda: gaussian_process(*given, temperature=temperature),
        "saddle": saddle,
        "one-loop": lambda: one_loop(saddle()),
        "exact": lambda: sample_order_parameters(
            *given, key=exact_key, draws=draws_of["exact"], progress=report("exact"), **options
        ),
        "sampled": lambda: sample_weights_on_paths(
            *given, key=network_key, method=sampler, draws=draws_of["sampled"], progress=report("sampled"), **options
        ),
    }
    results, predictions, seconds, left_out = {}, {}, {}, {}
    for step, name in enumerate(names):
        if progress is not None:
            progress(step, len(names), name)
        began = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SamplingWarning)  # said in the table and in `unmixed`
                found = ways[name]()
        except ConvergenceError as error:
            left_out[name] = str(error)
            continue
        except ValueError as error:
            # Input is checked above: what these two still refuse are widths, and sizes beyond memory.
            if name not in ("one-loop", "sampled"):
                raise
            left_out[name] = str(error)
            continue
        results[name], predictions[name] = found, found.predict(test_features)
        seconds[name] = time.perf_counter() - began
        if name == "one-loop":
            seconds[name] += seconds.get("saddle", 0.0)
    if not results:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise fail("methods", f"none that applies ({reasons})", "at least one that does")
    unmixed = {
        name: result.diagnostics.reason
        for name, result in results.items()
        if isinstance(result, Posterior) and not result.diagnostics.mixed
    }
    reference = next((name for name in REFERENCES if name in results), list(results)[-1])
    return Comparison(arch, temperature, results, predictions, test_labels, reference, seconds, left_out, unmixed)


def _relative(ours: tuple[np.ndarray, np.ndarray], theirs: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    """Root-mean-square difference of values over that of theirs, and the noise that both errors put under it."""
    scale = _root_mean_square(theirs[0]) or np.nan
    noise = math.hypot(_root_mean_square(ours[1]), _root_mean_square(theirs[1]))
    return _root_mean_square(ours[0] - theirs[0]) / scale, noise / scale


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _percent(value: float, noise: float) -> str:
    return f"{100 * value:.3g} %" + (f" ± {100 * noise:.2g}" if noise > 0 else "")


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _checked_draws(draws: Any) -> dict[str, int]:
    if not isinstance(draws, Mapping):
        return dict.fromkeys(REFERENCES, positive_integer("draws", draws))
    if set(draws) != set(REFERENCES):
        raise fail("draws", sorted(map(str, draws)), "one number, or one for each of 'exact' and 'sampled'")
    return {name: positive_integer(f"draws[{name!r}]", count) for name, count in draws.items()}

"""Hidden-Markov classification at every width (experiments §1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr

from ..._progress import Progress, inside
from ...learning import (
    Architecture,
    PathFeatures,
    Solution,
    bilinear_attention,
    gaussian_process,
    label_alignment,
    solve_grid,
)
from ...learning.comparison import Comparison
from ...sweeps import resumable
from ..base import Study
from ..sampled import (
    FINITE_WIDTH_NAMES,
    PREDICTION_NAMES,
    beside_theory,
    finite_width_variables,
    side_by_side,
    whole_key,
)
from ..threads import in_threads, usual_workers, within
from . import published
from .config import FOUR_PATHS, TWO_PATHS, MarkovConfig, MarkovVariant

_TRAINING, _TEST, _HEADS, _SAMPLERS = 0, 1, 2, 3  # what a seed is for


@resumable
def markov_repetition(seed: int, config: Mapping[str, Any]) -> xr.Dataset:
    """All variants of one repetition: a point of the sweep.

    Arguments:
        seed: which repetition.
        config: the record of a `MarkovConfig`.
    """
    settings, report = MarkovConfig.from_record(config), inside.get()
    numbers = range(len(settings.variants))
    parts = in_threads([partial(_reported_part, settings, number, seed) for number in numbers], report, usual_workers())
    return _join_variants(settings, parts)


def sequences_and_attention(
    config: MarkovConfig, variant_number: int, index: int, attend: Callable[..., Any] = bilinear_attention
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Tokens [example, token, feature], attention of both layers and labels of one repetition, training first.

    `attend` makes attention from tokens and the weights [head, query feature, key feature] of a layer.
    """
    variant = config.variants[variant_number]
    task = config.task(variant)

    def seed(*purpose: int) -> tuple[int, ...]:
        return (config.seed, index, variant_number, *purpose)

    training = task.sample(config.training_examples, seed=seed(_TRAINING))
    test = task.sample(config.test_examples, seed=seed(_TEST))
    x = np.concatenate([training.x, test.x])
    attention = []
    for layer, kinds in enumerate(variant.heads):
        weights = [task.head(kind, seed=seed(_HEADS, layer, head)) for head, kind in enumerate(kinds)]
        attention.append(attend(x, np.stack(weights)))
    return x, attention, np.concatenate([training.labels, test.labels])


def path_features(
    config: MarkovConfig, variant_number: int, index: int
) -> tuple[PathFeatures, np.ndarray, PathFeatures, np.ndarray]:
    """Training features and labels, test features and labels of one repetition."""
    x, attention, labels = sequences_and_attention(config, variant_number, index)
    features = PathFeatures.from_attention(x, attention, readout="last")
    split = config.training_examples
    return features[:split], labels[:split], features[split:], labels[split:]


def gp_references(variant: MarkovVariant) -> dict[str, tuple[Architecture, list[int]]]:
    """The two GP references: the good path alone, and all that average in the second layer (good + denoising)."""
    in_layer_1, in_layer_2 = np.array(variant.heads[0]), np.array(variant.heads[1])
    heads = variant.architecture().path_heads()
    denoising = np.flatnonzero(in_layer_2[heads[:, 1]] == "uniform").tolist()
    return {
        "good path": (Architecture((1, 1), 1), [0]),
        "good + denoising": (Architecture((len(in_layer_1), len(denoising) // len(in_layer_1)), 1), denoising),
    }


def _reported_part(config: MarkovConfig, variant_number: int, index: int, progress: Progress) -> xr.Dataset:
    variant = config.variants[variant_number]
    where = f"{variant.name}, seed {index + 1}"
    progress(0, 1, where)
    training, labels, test, test_labels = path_features(config, variant_number, index)
    arch = variant.architecture(config.widths[0], config.variance)
    # One point that does not converge must not end the run: it is marked in the data, and the page says so.
    grid = solve_grid(arch, training, labels, widths=config.widths, temperatures=config.temperature, throw=False)
    solutions = [grid.at(width=width, temperature=config.temperature) for width in config.widths]
    solutions.append(gaussian_process(arch, training, labels, temperature=config.temperature))

    predictions = [solution.predict(test) for solution in solutions]
    kernels = [np.asarray(solution.kernel(training)) for solution in (solutions[0], solutions[-1])]
    references = [
        gaussian_process(
            reference.replace(variances=config.variance), training.select(paths), labels, temperature=config.temperature
        )
        .predict(test.select(paths))
        .accuracy(test_labels)
        for reference, paths in gp_references(variant).values()
    ]
    problem = (training, labels, test, test_labels)
    report = within(progress, 0, 1, where)
    finite = [_finite_width(config, variant_number, index, solution, problem, report) for solution in solutions[:-1]]
    order = f"order_parameter_{variant.slug}"
    return xr.Dataset(
        finite_width_variables([*finite, None], "width")
        | {
            "accuracy": ("width", [p.accuracy(test_labels) for p in predictions]),
            "accuracy_diagonal": ("width", [_diagonal_accuracy(s, test, test_labels) for s in solutions]),
            "expected_accuracy": ("width", [p.expected_accuracy(test_labels) for p in predictions]),
            "bias": ("width", [p.bias(test_labels) for p in predictions]),
            "variance": ("width", [p.mean_variance() for p in predictions]),
            "log_evidence": ("width", [s.log_evidence for s in solutions]),
            "converged": ("width", [s.converged for s in solutions]),
            "label_overlap": (
                ("kernel_width", "component"),
                [np.asarray(label_alignment(kernel, labels, components=config.components)) for kernel in kernels],
            ),
            "reference_accuracy": ("reference", references),
            "kernel": (("kernel_width", "example", "other_example"), kernels),
            order: (("width", *_path_axes(variant)), [np.asarray(s.order_parameter) for s in solutions]),
            "label": ("example", labels),
        }
    )


def _finite_width(
    config: MarkovConfig, variant_number: int, index: int, solution: Solution, problem: tuple, progress: Progress
) -> Comparison | None:
    """The exact posterior and sampled networks at the width of a solution, as far as the config asks for them."""
    if index >= config.sampled_seeds:
        return None
    width = solution.architecture.widths[0]
    return beside_theory(
        solution,
        *problem,
        key=whole_key(config.seed, index, variant_number, _SAMPLERS, width),
        exact_draws=config.exact_draws if width <= (config.exact_up_to or width) else None,
        sampled_draws=config.sampled_draws if width <= (config.sampled_up_to or width) else None,
        chains=config.chains,
        progress=within(progress, 0, 1, f"N = {width}"),
    )


def _diagonal_accuracy(solution: Solution, test: PathFeatures, test_labels: np.ndarray) -> float:
    """Accuracy when the paths are weighted but not correlated: the off-diagonal entries of U set to zero."""
    diagonal = jnp.diag(jnp.diag(solution.order_parameter))
    return float(solution.with_order_parameter(diagonal).predict(test).accuracy(test_labels))


def _path_axes(variant: MarkovVariant) -> tuple[str, str]:
    return f"path_{variant.slug}", f"other_path_{variant.slug}"


def _join_variants(config: MarkovConfig, parts: list[xr.Dataset]) -> xr.Dataset:
    """One Dataset with a variant axis; order parameters, whose sizes differ, stay apart."""
    orders = [f"order_parameter_{variant.slug}" for variant in config.variants]
    shared = side_by_side([part.drop_vars(order) for part, order in zip(parts, orders, strict=True)], "variant")
    return shared.assign({order: part[order] for part, order in zip(parts, orders, strict=True)})


class Markov(Study):
    """Hidden-Markov classification: a sweep over repetitions.

    Its Dataset has the dimensions variant, seed (repetition) and width, where the infinite width is the Gaussian
    process: `accuracy`, `accuracy_diagonal` (of U only), `expected_accuracy`, `bias`, `variance`, `log_evidence`,
    `converged`, `reference_accuracy`, one `order_parameter_…` per variant, and, at the smallest and the infinite
    width, `label_overlap` and `kernel`. Of the exact posterior and of sampled networks, nan where they did not
    run: `exact_accuracy`, `exact_distance` of the theory's mean predictor from the exact one with its
    Monte-Carlo noise, `exact_mixed`, `exact_note`, and the same for `sampled_…`.
    """

    name, title, config, point = "markov", "Hidden-Markov classification", MarkovConfig, markov_repetition
    # How many repetitions there are changes none of them.
    over: ClassVar = {"seed": "seeds"}
    same: ClassVar = {"seeds": 1}
    long_names: ClassVar = {
        **PREDICTION_NAMES,
        **FINITE_WIDTH_NAMES,
        "accuracy_diagonal": "test accuracy with the diagonal of U only",
        "expected_accuracy": "expected test accuracy of one network from the posterior",
        "variance": "mean predictor variance on the test set",
        "converged": "whether the solver met its tolerance",
        "label_overlap": "overlap |v_k . y| / sqrt(P) of the labels with the principal components of the kernel",
        "reference_accuracy": "test accuracy of the Gaussian process with a part of the paths",
        "kernel": "kernel of the training examples, without temperature",
    }

    def complete(self, found: xr.Dataset, config: MarkovConfig) -> xr.Dataset:
        """With its coordinates."""
        # Labels alternate: they are the same in every variant and repetition.
        labels = found.label.isel(seed=0, variant=0, drop=True)
        assert (found.label == labels).all()
        widths = np.array([*config.widths, np.inf])
        coordinates: dict[str, Any] = {
            "label": labels,
            "variant": [variant.name for variant in config.variants],
            "width": ("width", widths, {"long_name": "width N; infinite: Gaussian process"}),
            "kernel_width": ("kernel_width", widths[[0, -1]], {"long_name": "widths at which kernels are kept"}),
            "component": np.arange(1, config.components + 1),
            "reference": list(gp_references(config.variants[0])),
        }
        for variant in config.variants:
            coordinates |= {axis: list(variant.path_names) for axis in _path_axes(variant)}
        dataset = found.drop_vars("label").assign_coords(coordinates)
        for variant in config.variants:
            order = dataset[f"order_parameter_{variant.slug}"]
            order.attrs["long_name"] = "order parameter U between attention paths"
        return dataset

    def tables(self, dataset: xr.Dataset, config: MarkovConfig) -> dict[str, pd.DataFrame]:
        """Every accuracy with its published counterpart."""
        return {"accuracy": published.accuracy_table(published.compare(dataset, config))}

    def values(self, dataset: xr.Dataset, config: MarkovConfig) -> dict[str, Any]:
        """Accuracies beside the published ones and beside the samplers, and further measures."""
        rows, variants = published.compare(dataset, config), config.variants
        sampled = [row for row in rows if row.predictor in published.SAMPLERS]
        curves = {}
        for variant in variants:
            full, diagonal = (
                [row for row in rows if (row.variant, row.predictor) == (variant.name, predictor)]
                for predictor in ("accuracy", "accuracy_diagonal")
            )
            curves[variant.name] = {"first": full[0], "last": full[-2], "limit": full[-1], "diagonal": diagonal[0]}
        return {
            "curves": curves,
            "accuracies": {one.name: published.accuracy_rows(one, rows) for one in variants},
            "agreement": published.agreement(rows),
            "sampled_seeds": max((row.seeds for row in sampled), default=0),
            "samplers": published.samplers(dataset, rows),
            "differences": {one.name: published.sampler_rows(dataset, one, rows) for one in variants},
            "published_sampled": [row for row in sampled if row.theirs],
            "overlaps": published.overlap_rows(dataset, config),
            "metrics": {one.name: published.metric_rows(dataset, one) for one in variants},
            "failed": int((~dataset.converged.astype(bool)).sum()),
        }


STUDY = Markov()
run_markov = STUDY.run
__all__ = ["FOUR_PATHS", "STUDY", "TWO_PATHS", "Markov", "MarkovConfig", "MarkovVariant", "run_markov"]

"""The accuracies of the hidden-Markov experiment beside the published ones (experiments §1), and tables of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ..sampled import not_mixed
from ..words import fixed, signed, width_name, with_texts
from .config import MarkovConfig, MarkovVariant

# Test accuracy in %, one seed (experiments §1); infinite width is the Gaussian process.
_WIDTHS = (10, 30, 50, 100, 300, 500, 1000, np.inf)
PUBLISHED = {
    ("4 paths", "accuracy"): dict(zip(_WIDTHS, (96.4, 96.1, 94.5, 91.1, 85.5, 84.0, 83.4, 82.6), strict=True)),
    ("4 paths", "accuracy_diagonal"): dict(zip(_WIDTHS, (96.0, 95.1, 93.4, 90.3, 85.0, 83.7, 83.1), strict=False)),
    ("2 paths", "accuracy"): dict(zip(_WIDTHS, (95.7, 95.5, 95.4, 92.5, 88.1, 86.2, 85.7, 84.3), strict=True)),
    ("2 paths", "accuracy_diagonal"): dict(zip(_WIDTHS, (86.2, 85.8, 85.7, 85.8, 84.8, 84.5, 84.2), strict=False)),
}
# Sampled networks (NUTS over all weights), one seed.
PUBLISHED_SAMPLED = {("4 paths", 10): 96.3}
PUBLISHED_REFERENCES = {("4 paths", "good path"): 94.0, ("4 paths", "good + denoising"): 95.5}
PUBLISHED_LARGEST_OVERLAP = {
    ("4 paths", 10): 0.845,
    ("4 paths", np.inf): 0.361,
    ("2 paths", 10): 0.902,
    ("2 paths", np.inf): 0.367,
}
SAMPLERS = ("exact_accuracy", "sampled_accuracy")
# A published number is one seed's: means over seeds may differ from it by this many points without comment.
AGREEMENT = 3.0


@dataclass(frozen=True)
class Accuracy:
    """One accuracy over seeds, in %, beside the published one (nan if none was published).

    Fields:
        predictor: the variable of the Dataset, or the Gaussian process with some of the paths.
        theory: the theory's mean accuracy on the same seeds, which for samplers are fewer than all; nan for the others.
        gap, gap_spread: mean and standard deviation over these seeds of the difference from the theory.
    """

    variant: str
    predictor: str
    width: float
    mean: float
    spread: float
    seeds: int
    published: float
    theory: float = np.nan
    gap: float = np.nan
    gap_spread: float = np.nan

    @property
    def difference(self) -> float:
        """Ours minus published."""
        return self.mean - self.published

    @property
    def ours(self) -> str:
        """Mean ± standard deviation, or the only number."""
        return f"{self.mean:.1f} ± {self.spread:.1f}" if self.seeds > 1 else f"{self.mean:.1f}"

    @property
    def theirs(self) -> str:
        """The published number, if there is one."""
        return "" if np.isnan(self.published) else f"{self.published:.1f}"

    @property
    def curve(self) -> str:
        """The name of the curve that it is a point of."""
        kind = {"accuracy": "", "accuracy_diagonal": ", diagonal of U"}.get(self.predictor, f", {self.predictor}")
        return self.variant + kind


def published_numbers(config: MarkovConfig) -> dict[tuple[str, str, float], float]:
    """Published accuracies in % by variant, predictor and width; none if the task is another than the published one."""
    if not config.is_published_task:
        return {}
    curves = {(*name, width): value for name, curve in PUBLISHED.items() for width, value in curve.items()}
    references = {(variant, f"GP, {name}", np.inf): value for (variant, name), value in PUBLISHED_REFERENCES.items()}
    sampled = {(variant, SAMPLERS[1], width): value for (variant, width), value in PUBLISHED_SAMPLED.items()}
    return curves | references | sampled


def compare(dataset: xr.Dataset, config: MarkovConfig) -> list[Accuracy]:
    """Every accuracy of the run with its published counterpart."""
    known, rows = published_numbers(config), []
    for variant in dataset.variant.values.tolist():
        chosen = dataset.sel(variant=variant)
        references = {
            (f"GP, {name}", np.inf): chosen.reference_accuracy.sel(reference=name)
            for name in dataset.reference.values.tolist()
        }
        found = _curves(chosen, "accuracy", "accuracy_diagonal") | references | _curves(chosen, *SAMPLERS)
        for (predictor, width), values in found.items():
            if not values.size:
                continue
            mean, spread = _mean_and_spread(values)
            row = Accuracy(
                variant, predictor, width, mean, spread, values.size, known.get((variant, predictor, width), np.nan)
            )
            if predictor in SAMPLERS:
                theory = chosen.accuracy.sel(width=width, seed=values.seed)
                gap, gap_spread = _mean_and_spread(values - theory)
                row = replace(row, theory=_mean_and_spread(theory)[0], gap=gap, gap_spread=gap_spread)
            rows.append(row)
    return rows


def _curves(dataset: xr.Dataset, *names: str) -> dict[tuple[str, float], xr.DataArray]:
    """Accuracies [seed] by variable and width, of the seeds that have one."""
    widths = dataset.width.values.tolist()
    return {(name, width): dataset[name].sel(width=width).dropna("seed") for name in names for width in widths}


def _mean_and_spread(values: xr.DataArray) -> tuple[float, float]:
    """Mean and standard deviation over seeds, in %; the spread of one seed is 0."""
    percent = 100 * values.values
    return float(percent.mean()), float(percent.std(ddof=1)) if len(percent) > 1 else 0.0


def accuracy_table(rows: Sequence[Accuracy]) -> pd.DataFrame:
    """All accuracies, for a CSV file."""
    names = {name: f"{name}_percent" for name in ("mean", "spread", "published")}
    names["theory"] = "theory_on_same_seeds_percent"
    columns = ["variant", "predictor", "width", "mean", "spread", "seeds", "published", "theory"]
    frame = pd.DataFrame([vars(row) for row in rows])[columns]
    return with_texts(frame, width="g", mean=".2f", spread=".2f", theory=".2f").rename(columns=names)


def accuracy_rows(variant: MarkovVariant, rows: Sequence[Accuracy]) -> list[list[str]]:
    """Theory and its diagonal part beside the published numbers, by width, and the two Gaussian processes."""
    own = [row for row in rows if row.variant == variant.name]
    full, diagonal = ([row for row in own if row.predictor == name] for name in ("accuracy", "accuracy_diagonal"))
    lines = [
        [width_name(one.width), one.ours, one.theirs, other.ours, other.theirs]
        for one, other in zip(full, diagonal, strict=True)
    ]
    for row in own:
        repeats_gp = variant.denoises_everywhere and row.predictor == "GP, good + denoising"
        if row.predictor.startswith("GP, ") and not repeats_gp:
            lines.append([row.predictor, row.ours, row.theirs, "", ""])
    return lines


def sampler_rows(dataset: xr.Dataset, variant: MarkovVariant, rows: Sequence[Accuracy]) -> list[list[str]]:
    """Differences of the samplers from the theory in accuracy and in mean predictor, by width."""
    found = {(row.predictor, row.width): row for row in rows if row.variant == variant.name}
    lines = []
    for width in dataset.width.values.tolist():
        at, ran = dataset.sel(variant=variant.name, width=width), [name for name in SAMPLERS if (name, width) in found]
        cells = {predictor: ["", ""] for predictor in SAMPLERS}
        for predictor in ran:
            row, name = found[predictor, width], predictor.removesuffix("_accuracy")
            apart, noise = (100 * float(at[f"{name}_{part}"].mean()) for part in ("distance", "distance_noise"))
            spread = f" ± {row.gap_spread:.1f}" if row.seeds > 1 else ""
            cells[predictor] = [signed(row.gap) + spread, f"{apart:.1f} ± {noise:.1f}"]
        if ran:
            lines.append([width_name(width), f"{found[ran[0], width].theory:.1f}", *itertools.chain(*cells.values())])
    return lines


def overlap_rows(dataset: xr.Dataset, config: MarkovConfig) -> list[list[str]]:
    """The largest overlap of the labels with one component of the kernel, beside the published one."""
    lines = []
    for variant, width in itertools.product(config.variants, dataset.kernel_width.values.tolist()):
        largest = dataset.label_overlap.sel(variant=variant.name, kernel_width=width).max("component").values
        deviation = largest.std(ddof=1) if len(largest) > 1 else 0.0
        known = PUBLISHED_LARGEST_OVERLAP.get((variant.name, width)) if config.is_published_task else None
        ours, theirs = f"{largest.mean():.3f} ± {deviation:.3f}", f"{known:.3f}" if known else ""
        lines.append([f"{variant.name}, {width_name(width)}", ours, theirs])
    return lines


def metric_rows(dataset: xr.Dataset, variant: MarkovVariant) -> list[list[str]]:
    """Expected accuracy, bias, variance and log evidence, means over seeds, by width."""
    means = dataset.sel(variant=variant.name).mean("seed")
    columns = (100 * means.expected_accuracy, 1), (means.bias, 3), (means.variance, 3), (means.log_evidence, 1)
    cells = [[fixed(value, digits) for value in column.values] for column, digits in columns]
    return [list(row) for row in zip(map(width_name, means.width.values), *cells, strict=True)]


def agreement(rows: Sequence[Accuracy]) -> dict[str, Any]:
    """How far the theory is from the published numbers: how many are compared, the worst, and those further away."""
    compared = [row for row in rows if row.theirs and row.predictor not in SAMPLERS]
    if not compared:
        return {"compared": 0}
    apart = [row for row in compared if abs(row.difference) > AGREEMENT]
    worst = max(compared, key=lambda row: abs(row.difference))
    largest = max((abs(row.difference) / row.spread if row.spread else np.inf for row in apart), default=np.inf)
    return {
        "compared": len(compared),
        "near": len(compared) - len(apart),
        "level": AGREEMENT,
        "worst": worst,
        "apart": {
            name: ", ".join(width_name(row.width) for row in apart if row.curve == name)
            for name in dict.fromkeys(row.curve for row in apart)
        },
        "deviations": largest if np.isfinite(largest) else None,
    }


def samplers(dataset: xr.Dataset, rows: Sequence[Accuracy]) -> list[dict[str, Any]]:
    """Of each sampler that ran: its largest and mean difference from the theory, and how many runs have not mixed."""
    found = []
    for predictor in SAMPLERS:
        name, chosen = predictor.removesuffix("_accuracy"), [row for row in rows if row.predictor == predictor]
        if chosen:
            worst, mean = max(chosen, key=lambda row: abs(row.gap)), np.mean([row.gap for row in chosen])
            mixing = not_mixed(dataset[f"{name}_mixed"], dataset[f"{name}_note"])
            found.append({"predictor": predictor, "worst": worst, "mean": mean} | mixing)
    return found

"""The accuracies of the hidden-Markov experiment beside the published ones (experiments §1), and tables of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from ..sampled import not_mixed
from ..words import fixed, signed, width_name
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
class Comparison:
    """One accuracy, in %, beside the published one (nan where none was published).

    Fields:
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
        """The published number; empty where there is none."""
        return "" if np.isnan(self.published) else f"{self.published:.1f}"

    @property
    def curve(self) -> str:
        """The name of the curve that it is a point of."""
        kind = {"accuracy": "", "accuracy_diagonal": ", diagonal of U"}.get(self.predictor, f", {self.predictor}")
        return self.variant + kind


def published_accuracies(config: MarkovConfig, variant: str, predictor: str) -> dict[float, float]:
    """Published accuracies in % by width; none where the config is of another task than the published one."""
    return PUBLISHED.get((variant, predictor), {}) if config.is_published_task else {}


def published_overlaps(config: MarkovConfig, variant: str) -> dict[float, float]:
    """Published largest label overlaps by width, as above."""
    found = {width: value for (name, width), value in PUBLISHED_LARGEST_OVERLAP.items() if name == variant}
    return found if config.is_published_task else {}


def compare(dataset: xr.Dataset, config: MarkovConfig) -> list[Comparison]:
    """Every accuracy of the run with its published counterpart."""
    rows = []
    for variant in dataset.variant.values.tolist():
        chosen = dataset.sel(variant=variant)
        for predictor in ("accuracy", "accuracy_diagonal"):
            published = published_accuracies(config, variant, predictor)
            for width in dataset.width.values.tolist():
                values = chosen[predictor].sel(width=width)
                rows.append(_comparison(variant, predictor, width, values, published.get(width, np.nan)))
        for reference in dataset.reference.values.tolist():
            known = PUBLISHED_REFERENCES.get((variant, reference), np.nan) if config.is_published_task else np.nan
            values = chosen.reference_accuracy.sel(reference=reference)
            rows.append(_comparison(variant, f"GP, {reference}", np.inf, values, known))
        for predictor in SAMPLERS:
            rows += _sampler_rows(chosen, variant, predictor, config)
    return rows


def _sampler_rows(chosen: xr.Dataset, variant: str, predictor: str, config: MarkovConfig) -> list[Comparison]:
    """Rows of a sampler at the widths and for the seeds that it ran at."""
    rows = []
    for width in chosen.width.values.tolist():
        values = chosen[predictor].sel(width=width).dropna("seed")
        if not values.size:
            continue
        known = PUBLISHED_SAMPLED.get((variant, width), np.nan) if predictor == "sampled_accuracy" else np.nan
        row = _comparison(variant, predictor, width, values, known if config.is_published_task else np.nan)
        theory = chosen.accuracy.sel(width=width, seed=values.seed)
        gap = 100 * (values - theory).values
        spread = float(gap.std(ddof=1)) if len(gap) > 1 else 0.0
        rows.append(replace(row, theory=100 * float(theory.mean()), gap=float(gap.mean()), gap_spread=spread))
    return rows


def _comparison(variant: str, predictor: str, width: float, values: xr.DataArray, published: float) -> Comparison:
    percent = 100 * values.values
    spread = float(percent.std(ddof=1)) if len(percent) > 1 else 0.0
    return Comparison(variant, predictor, width, float(percent.mean()), spread, len(percent), published)


def csv_rows(rows: Sequence[Comparison]) -> list[list[Any]]:
    """All accuracies as rows of a CSV file with its header."""
    header = ["variant", "predictor", "width", "mean_percent", "spread_percent", "seeds", "published_percent"]
    lines: list[list[Any]] = [[*header, "theory_on_same_seeds_percent"]]
    for row in rows:
        published = "" if np.isnan(row.published) else row.published
        same = "" if np.isnan(row.theory) else f"{row.theory:.2f}"
        numbers = [f"{row.mean:.2f}", f"{row.spread:.2f}", row.seeds, published, same]
        lines.append([row.variant, row.predictor, f"{row.width:g}", *numbers])
    return lines


def accuracy_rows(variant: MarkovVariant, rows: Sequence[Comparison]) -> list[list[str]]:
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


def sampler_rows(dataset: xr.Dataset, variant: MarkovVariant, rows: Sequence[Comparison]) -> list[list[str]]:
    """Differences of the samplers from the theory in accuracy and in mean predictor, by width."""
    found = {(row.predictor, row.width): row for row in rows if row.variant == variant.name}
    lines = []
    for value in dataset.width.values.tolist():
        cells, at = [], dataset.sel(variant=variant.name, width=value)
        for predictor in SAMPLERS:
            if (row := found.get((predictor, value))) is None:
                cells += ["", ""]
                continue
            name = predictor.removesuffix("_accuracy")
            apart, noise = (100 * float(at[f"{name}_{part}"].mean()) for part in ("distance", "distance_noise"))
            spread = f" ± {row.gap_spread:.1f}" if row.seeds > 1 else ""
            cells += [signed(row.gap) + spread, f"{apart:.1f} ± {noise:.1f}"]
        if any(cells):
            theory = next(found[name, value].theory for name in SAMPLERS if (name, value) in found)
            lines.append([width_name(value), f"{theory:.1f}", *cells])
    return lines


def overlap_rows(dataset: xr.Dataset, config: MarkovConfig) -> list[list[str]]:
    """The largest overlap of the labels with one component of the kernel, beside the published one."""
    lines = []
    for variant in config.variants:
        known = published_overlaps(config, variant.name)
        for value in dataset.kernel_width.values.tolist():
            largest = dataset.label_overlap.sel(variant=variant.name, kernel_width=value).max("component").values
            spread = largest.std(ddof=1) if len(largest) > 1 else 0.0
            published = f"{known[value]:.3f}" if value in known else ""
            lines.append([f"{variant.name}, {width_name(value)}", f"{largest.mean():.3f} ± {spread:.3f}", published])
    return lines


def metric_rows(dataset: xr.Dataset, variant: MarkovVariant) -> list[list[str]]:
    """Expected accuracy, bias, variance and log evidence, means over seeds, by width."""
    means = dataset.sel(variant=variant.name).mean("seed")
    names = {"expected_accuracy": 1, "bias": 3, "variance": 3, "log_evidence": 1}
    means["expected_accuracy"] *= 100
    return [
        [width_name(value), *(fixed(means[name].sel(width=value), digits) for name, digits in names.items())]
        for value in dataset.width.values
    ]


def agreement(rows: Sequence[Comparison]) -> dict[str, Any]:
    """How far the theory is from the published numbers: how many are compared, the worst, and those further away."""
    compared = [row for row in rows if row.theirs and row.predictor not in SAMPLERS]
    if not compared:
        return {"compared": 0}
    apart = [row for row in compared if abs(row.difference) > AGREEMENT]
    worst = max(compared, key=lambda row: abs(row.difference))
    where = "" if worst.predictor.startswith("GP, ") else f", {width_name(worst.width)}"
    curves = dict.fromkeys(row.curve for row in apart)
    largest = max((abs(row.difference) / row.spread if row.spread else np.inf for row in apart), default=np.inf)
    return {
        "compared": len(compared),
        "near": len(compared) - len(apart),
        "level": AGREEMENT,
        "worst": fixed(worst.difference, 1, "+"),
        "worst_name": worst.curve + where,
        "apart": {name: ", ".join(width_name(row.width) for row in apart if row.curve == name) for name in curves},
        "deviations": largest if np.isfinite(largest) else None,
    }


def samplers(dataset: xr.Dataset, rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Of each sampler that ran: its largest and mean difference from the theory, and how many runs have not mixed."""
    found = []
    for predictor, name, of in (
        ("exact_accuracy", "exact finite width", "of the exact posterior"),
        ("sampled_accuracy", "sampled networks", "of sampled networks"),
    ):
        chosen = [row for row in rows if row.predictor == predictor]
        runs, failed, reason = not_mixed(dataset, predictor.removesuffix("_accuracy"))
        if chosen:
            worst, mean = max(chosen, key=lambda row: abs(row.gap)), float(np.mean([row.gap for row in chosen]))
            one = {"name": name, "of": of, "worst": worst, "mean": mean}
            found.append(one | {"runs": runs, "failed": failed, "reason": reason})
    return found

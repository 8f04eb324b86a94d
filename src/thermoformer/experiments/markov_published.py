"""The hidden-Markov experiment beside the published numbers (experiments §1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from .markov_config import MarkovConfig

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

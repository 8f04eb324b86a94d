"""Tables of the one-shot experiment: its Dataset in, HTML out."""

from __future__ import annotations

import itertools

import numpy as np
import xarray as xr

from . import page
from .one_shot_choices import at_choice, repeated_accuracies, with_trained_order
from .one_shot_config import OneShotConfig
from .one_shot_figures import (
    PART_NAMES,
    finite_widths,
    order_parameters,
    width_name,
)
from .one_shot_overlap import COEFFICIENTS, order_chance, order_correlation

# Test accuracy in percent with the heads of another network, trained more briefly, by width and temperature.
PROTOTYPE = {
    (np.inf, 0.01): 69.9, (np.inf, 0.1): 61.7, (np.inf, 0.5): 54.5,
    (10.0, 0.01): 63.7, (10.0, 0.1): 71.4, (10.0, 0.5): 73.1,
    (100.0, 0.01): 64.2, (100.0, 0.1): 71.8, (100.0, 0.5): 58.8,
    (1000.0, 0.01): 68.0, (1000.0, 0.1): 66.4, (1000.0, 0.5): 54.6,
}  # fmt: skip
_PROTOTYPE_EXAMPLES = 600
_SHORT = ("validation", "test", "Fashion", "MNIST")


def chosen_table(dataset: xr.Dataset) -> str:
    """Widths down, parts of the images across, one table per way to choose."""
    tables = []
    for how in ("validation", "evidence"):
        chosen = at_choice(dataset, how)
        lines = []
        for width in dataset.width.values:
            at = chosen.sel(width=width)
            lines.append([width_name(width), f"{float(at.temperature):g}", *_by_part(at.accuracy)])
        if how == "validation":
            best = with_trained_order(dataset)
            lines.append(["GP, trained U", f"{float(best.temperature):g}", *_by_part(best)])
            lines.append(["trained network", "", *_by_part(dataset.trained_accuracy)])
        tables.append(page.table([f"by {how}", "τ", *_SHORT], lines))
    if "free_accuracy" in dataset:
        lines = []
        for width in dataset.width.values:
            at = dataset.sel(width=width)
            setting = f"{float(at.free_temperature):.3g}, {float(at.free_product):.3g}"
            lines.append([width_name(width), setting, *_by_part(at.free_accuracy)])
        tables.append(page.table(["by evidence", "τ, product of variances", *_SHORT], lines))
    return page.side_by_side(*tables)


def repetition_table(dataset: xr.Dataset) -> str:
    """Mean and standard deviation over draws of the sequences, where there are several."""
    if "repeated_accuracy" not in dataset:
        return ""
    found, tables = repeated_accuracies(dataset), []
    for choice in ("τ by validation", "τ by evidence", "τ and variance by evidence"):
        if choice in found:
            rows = {width_name(width): found[choice].sel(width=width) for width in dataset.width.values}
            if choice == "τ by validation":
                rows |= {"GP, trained U": found["trained U"], "trained network": found["trained network"]}
            lines = []
            for name, values in rows.items():
                mean, spread = values.mean("repetition"), values.std("repetition", ddof=1)
                cells = [f"{percent(mean.sel(part=part))} ± {percent(spread.sel(part=part))}" for part in PART_NAMES]
                lines.append([name, *cells])
            tables.append(page.table([choice, *_SHORT], lines))
    words = f"Accuracy in %: mean ± standard deviation over {dataset.sizes['repetition']} draws of all sequences."
    return page.side_by_side(*tables) + page.paragraph(words)


def temperature_table(dataset: xr.Dataset, config: OneShotConfig) -> str:
    """Test accuracy at every width and temperature, earlier numbers in brackets where they may stand there."""
    beside = is_prototype_size(config)
    accuracy = dataset.accuracy.sel(part="test")
    lines = []
    for width in dataset.width.values:
        cells = []
        for temperature in dataset.temperature.values:
            earlier = PROTOTYPE.get((float(width), float(temperature))) if beside else None
            text = percent(accuracy.sel(width=width, temperature=temperature))
            cells.append(text if earlier is None else f"{text} ({earlier:.1f})")
        lines.append([width_name(width), *cells])
    return page.table(["test characters", *(f"τ = {value:g}" for value in dataset.temperature.values)], lines)


def is_prototype_size(config: OneShotConfig) -> bool:
    """Whether earlier numbers may stand beside a run: of as many examples, and not with a network of one's own."""
    return config.training_examples == _PROTOTYPE_EXAMPLES and config.network is None and config.variance == 1


def correlation_table(dataset: xr.Dataset) -> str:
    """Correlations of the theory's U with that of the trained network, at every width."""
    lines = []
    chosen = at_choice(dataset, "validation")
    for width in finite_widths(dataset):
        at = chosen.sel(width=width)
        cells = [_with_chance(at, name) for name in COEFFICIENTS]
        lines.append([width_name(width), f"{float(at.temperature):g}", *cells])
    return page.table(["τ by validation", "τ", *COEFFICIENTS], lines)


def pair_table(dataset: xr.Dataset) -> str:
    """Correlations between every two of theory, sampled networks and trained weights."""
    matrices, heads = order_parameters(dataset), tuple(int(count) for count in np.atleast_1d(dataset.attrs["layers"]))
    *_, last = matrices
    lines = []
    for (first, one), (second, other) in itertools.combinations(matrices.items(), 2):
        cells = []
        for name in COEFFICIENTS:
            setting = {"ranks": name.startswith("Spearman"), "diagonal": "off" not in name}
            text = signed(order_correlation(one, other, **setting), digits=3)
            if second == last:
                text += f" (chance {order_chance(one, other, heads, **setting):.3f})"
            cells.append(text)
        lines.append([f"{first}; {second}", *cells])
    return page.table(["U of", *COEFFICIENTS], lines)


def percent(value: xr.DataArray) -> str:
    """A part of one as a number of percent."""
    return f"{100 * float(value):.1f}"


def signed(value: float, digits: int = 2) -> str:
    """A number with a minus sign as it is printed."""
    return f"{value:.{digits}f}".replace("-", "−")


def _by_part(accuracy: xr.DataArray) -> list[str]:
    return [percent(accuracy.sel(part=part)) for part in PART_NAMES]


def _with_chance(at: xr.Dataset, name: str) -> str:
    value, chance = (float(at[which].sel(coefficient=name)) for which in ("correlation", "correlation_chance"))
    return "" if np.isnan(value) else f"{signed(value)} (chance {chance:.3f})"

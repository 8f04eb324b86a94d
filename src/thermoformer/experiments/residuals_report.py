"""The experiment on skips and normalisation put on paper: figures, a table, and the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from .. import figures
from .._files import csv_writer
from . import page
from .residuals import ResidualsConfig
from .residuals_figures import (
    draw_accuracy,
    draw_distances,
    draw_head_scores,
    draw_order_parameters,
    draw_predictions,
)
from .residuals_table import APPROACHES, EXACT_KINDS, INPUT_NORM, KINDS, NORM_INSIDE, PLAIN, QUANTITIES, SKIPS, slug

_QUESTION = (
    "Transformers add each layer to its input (skips) and normalise tokens (layer norm). The theory holds for skips: a "
    "path may then also pass a layer by, so that two layers of two heads have nine paths and not four. It holds for "
    "layer norm of the input tokens, which is a fixed change of the data. It does not hold for layer norm inside the "
    "network, where the output is no longer linear in the tokens and there are no paths. How far off is it there?"
)
_TASK = (
    "Each example is a sequence of {tokens} noisy tokens that follow a chain of two hidden states; the class says "
    "whether the state tends to stay or to change. Layer 1 has a good head, which compares neighbours, and a random "
    "one; layer 2 has a uniform and a random head. The readout is the last token."
)
_KINDS = (
    "Plain: no skips. Skips: every layer adds to its input. Skips, input norm: besides, every token is normalised over "
    "its features before anything else (mean 0, variance 1). Skips, norm inside: besides skips, tokens are normalised "
    "before each attention layer and before the readout, and not at the input. In every kind the attention matrices "
    "are those of the heads on the bare tokens, so that kinds differ in one thing only. With norm inside, theory and "
    "exact posterior are those with skips: what one would predict if one did not know of the norm."
)
_METHODS = (
    "Theory: the limit of large width and many examples. Exact finite width: the posterior of the order parameters, "
    "sampled with NUTS. Sampled networks: all weights, sampled with blocked Gibbs, or with NUTS where layer norm is "
    "inside. The distance is the root-mean-square difference over the test sequences in % of the root mean square of "
    "sampled networks; noise is what Monte-Carlo errors alone would show."
)


def write_report(dataset: xr.Dataset, config: ResidualsConfig, out: Path) -> Path:
    """Figures (PNG and SVG), the table (CSV) and the page into a folder; returns the path of the page."""
    out.mkdir(parents=True, exist_ok=True)
    _write_table(dataset, out / "residuals.csv")
    drawn = {
        "accuracy": draw_accuracy(dataset),
        "distances": draw_distances(dataset),
        "predictions": draw_predictions(dataset),
        "order_parameters": draw_order_parameters(dataset),
        "head_scores": draw_head_scores(dataset),
    }
    images = {name: figures.save(figure, out / name)[1] for name, figure in drawn.items()}
    return _write_page(dataset, config, images, out / "residuals.html")


def _write_table(dataset: xr.Dataset, file: Path) -> None:
    names = [f"{part}_{slug(quantity)}_percent" for quantity in QUANTITIES for part in ("distance", "noise")]
    with csv_writer(file) as writer:
        writer.writerow(["width", "kind", "approach", "seeds", "accuracy_percent", "spread_percent", *names])
        for width in dataset.width.values:
            for kind in KINDS:
                for approach in APPROACHES:
                    at = dataset.sel(width=width, kind=kind, approach=approach)
                    mean, spread = _mean_and_spread(100 * at.accuracy)
                    row = [width, kind, approach, dataset.sizes["seed"], f"{mean:.2f}", f"{spread:.2f}"]
                    for quantity in QUANTITIES:
                        parts = (100 * float(at[part].sel(quantity=quantity).mean()) for part in ("distance", "noise"))
                        row += ["" if np.isnan(part) else f"{part:.3f}" for part in parts]
                    writer.writerow(row)


def _write_page(dataset: xr.Dataset, config: ResidualsConfig, images: dict[str, Path], file: Path) -> Path:
    seeds = _count(dataset.sizes["seed"], "seed")
    several = dataset.sizes["seed"] > 1
    over = f"mean over {seeds}, with one standard deviation; dots are seeds" if several else "one seed"
    parts = [
        page.paragraph(_QUESTION),
        page.paragraph(_TASK.format(tokens=config.tokens)),
        page.paragraph(_KINDS),
        page.heading("Theory against sampled networks"),
        page.figure(
            images["distances"],
            f"Distance of the predictor of theory and of exact finite width from that of sampled networks: {over}. "
            "Grey: what Monte-Carlo noise alone would show; a point at its grey bar says that no difference is seen.",
            alternative="Distance of mean and standard deviation of the predictor from sampled networks, by kind",
        ),
        page.paragraph(_what_is_seen(dataset)),
        page.side_by_side(*(_distance_table(dataset, width) for width in dataset.width.values)),
        page.paragraph(_METHODS),
        page.figure(
            images["predictions"],
            "Mean predictor of the theory against that of sampled networks, one dot per test sequence, first seed. "
            "With norm inside, the theory is that with skips.",
            alternative="Scatter of predicted means, theory against sampled networks, one panel per kind of network",
        ),
        page.paragraph(_which_theory(dataset)),
        page.heading("Accuracy"),
        page.figure(
            images["accuracy"],
            f"Test accuracy of the mean predictor: {over}.",
            alternative="Test accuracy of theory, exact posterior and sampled networks for four kinds of network",
        ),
        page.paragraph(_accuracy_text(dataset)),
        page.heading("Which paths count when a path may skip"),
        page.figure(
            images["order_parameters"],
            "Order parameter U of the theory between paths, mean over seeds. A path is named by its way through layer "
            "1 and layer 2; skip→skip goes past both to the last token itself.",
            alternative="Matrices of the order parameter between named paths, without and with skips",
        ),
        page.paragraph(_paths_text(dataset)),
        page.figure(
            images["head_scores"],
            "Head scores from U of the theory: the sum of |U| over all pairs of paths that use the head, divided by "
            "the largest.",
            alternative="Scores of the four heads, without and with skips",
        ),
        page.heading("How far to trust the samplers"),
        page.paragraph(_mixing(dataset)),
    ]
    failed = int((~dataset.converged.sel(kind=list(EXACT_KINDS)).astype(bool)).sum())
    if failed:
        parts.append(
            page.paragraph(f"{_count(failed, 'solution')} of the theory did not reach the solver's tolerance.")
        )
    return page.write_page(
        file,
        "Skips and normalisation: where the theory of attention paths holds, and where it ends",
        "The theory covers skips and layer norm of the input. Layer norm inside the network is outside it: here is by "
        "how much it misses.",
        parts,
        f"{seeds}, {config.training_examples} training and {config.test_examples} test sequences of {config.tokens} "
        f"tokens each, token width {config.feature_width + config.tokens + 1}, temperature {config.temperature:g}, all "
        f"prior variances {config.variance:g}. Data: residuals.nc; table: residuals.csv; figures: PNG and SVG, all "
        "beside this page.",
    )


def _distance_table(dataset: xr.Dataset, width: int) -> str:
    lines = []
    for kind in KINDS:
        cells = []
        for quantity in QUANTITIES:
            for approach in ("theory", "exact"):
                cells.append(" ± ".join(_distance(dataset, width, kind, approach, quantity)))
        lines.append([kind, *cells])
    header = [f"N = {width}; % ± noise", "mean: theory", "mean: exact", "s.d.: theory", "s.d.: exact"]
    return page.table(header, lines, "Distance from sampled networks in %, mean over seeds, ± Monte-Carlo noise.")


def _what_is_seen(dataset: xr.Dataset) -> str:
    sentences = []
    for width in dataset.width.values:
        inside = _ratio(dataset, width, NORM_INSIDE)
        others = {kind: _ratio(dataset, width, kind) for kind in EXACT_KINDS}
        means = [_distance(dataset, width, kind, "exact", "mean")[0] for kind in EXACT_KINDS]
        sentences.append(
            f"At N = {width} the exact posterior's mean predictor is {', '.join(means[:-1])} and {means[-1]} % away "
            f"from sampled networks in the three kinds that the theory covers, which is "
            f"{min(others.values()):.1f} to {max(others.values()):.1f} times the Monte-Carlo noise. With layer norm "
            f"inside it is {_distance(dataset, width, NORM_INSIDE, 'exact', 'mean')[0]} %, or {inside:.1f} times the "
            f"noise, and the theory {_distance(dataset, width, NORM_INSIDE, 'theory', 'mean')[0]} %; the standard "
            f"deviation of the predictor is missed by "
            f"{_distance(dataset, width, NORM_INSIDE, 'theory', 'standard deviation')[0]} %."
        )
    return " ".join(sentences)


def _which_theory(dataset: xr.Dataset) -> str:
    sentences = []
    for width in dataset.width.values:
        apart = 100 * dataset.inside_distance.sel(width=width, quantity="mean").mean("seed")
        numbers = {kind: float(apart.sel(theory_kind=kind)) for kind in EXACT_KINDS}
        nearest = min(numbers, key=lambda kind: numbers[kind])
        listed = "; ".join(f"{kind} {_short(number)} %" for kind, number in numbers.items())
        sentences.append(
            f"Distance of the mean predictor of each theory from networks with layer norm inside, N = {width}: "
            f"{listed}. The nearest is the theory “{nearest}”."
        )
    return " ".join(sentences)


def _accuracy_text(dataset: xr.Dataset) -> str:
    sentences = []
    for width in dataset.width.values:
        at = 100 * dataset.accuracy.sel(width=width)
        values = {kind: _accuracy(at.sel(kind=kind, approach="sampled")) for kind in KINDS}
        gap = float((at.sel(approach="theory") - at.sel(approach="sampled")).sel(kind=NORM_INSIDE).mean())
        sentences.append(
            f"At N = {width} sampled networks have {values[PLAIN]} % without skips, {values[SKIPS]} % with them, "
            f"{values[INPUT_NORM]} % with normalised inputs besides, and {values[NORM_INSIDE]} % with layer norm "
            f"inside; there the theory is off by {_signed(gap)} points."
        )
    return " ".join(sentences)


def _paths_text(dataset: xr.Dataset) -> str:
    sentences = []
    for kind in EXACT_KINDS:
        order = dataset[f"order_parameter_{slug(kind)}"].isel(width=0).sel(approach="theory").mean("seed")
        weights, names = np.diagonal(order.values), order[order.dims[0]].values
        first, second = np.argsort(-weights)[:2]
        scores = dataset.head_score.isel(width=0).sel(theory_kind=kind, approach="theory").mean("seed")
        best = str(scores["head"].values[int(np.argmax(scores.values))])
        sentences.append(
            f"{kind[0].upper()}{kind[1:]}: the heaviest path is {names[first]} (U = {weights[first]:.2f}), then "
            f"{names[second]} ({weights[second]:.2f}); the head with the highest score is {best}."
        )
    return " ".join(sentences) + " In an infinitely wide network U would be diagonal."


def _mixing(dataset: xr.Dataset) -> str:
    sentences = []
    groups = {
        "of the exact posterior": dataset.sel(approach="exact", kind=list(EXACT_KINDS)),
        "of networks without norm inside": dataset.sel(approach="sampled", kind=list(EXACT_KINDS)),
        "of networks with norm inside": dataset.sel(approach="sampled", kind=NORM_INSIDE),
    }
    for what, chosen in groups.items():
        failed = chosen.mixed.values == 0
        runs, seconds = _count(chosen.mixed.size, "run"), float(chosen.seconds.mean())
        text = f"{runs} {what}: all mixed" if not failed.any() else f"{runs} {what}: {failed.sum()} had not mixed"
        if failed.any():
            text += f" (the first: {chosen.note.values[failed][0]})"
        sentences.append(f"{text}; {seconds:.0f} s each.")
    inside = groups["of networks with norm inside"]
    gradients = f"{float(inside.gradients.mean()):,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return " ".join(sentences) + (
        f" With norm inside a run took {gradients} gradients. There the scale of a layer's weights hardly changes the "
        "output, so that weights, and U with them, wander slowly; what counts for the distances above is the noise of "
        "the predictor, which is measured."
    )


def _ratio(dataset: xr.Dataset, width: int, kind: str) -> float:
    at = dataset.sel(width=width, kind=kind, approach="exact", quantity="mean").mean("seed")
    return float(at.distance / at.noise)


def _distance(dataset: xr.Dataset, width: int, kind: str, approach: str, quantity: str) -> tuple[str, str]:
    """Distance and noise in %, means over seeds, as text."""
    at = 100 * dataset[["distance", "noise"]].sel(width=width, kind=kind, approach=approach, quantity=quantity)
    return _short(float(at.distance.mean())), _short(float(at.noise.mean()))


def _mean_and_spread(values: xr.DataArray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else 0.0


def _accuracy(percent: xr.DataArray) -> str:
    mean, spread = _mean_and_spread(percent)
    return f"{mean:.1f} ± {spread:.1f}" if percent.size > 1 else f"{mean:.1f}"


def _signed(number: float) -> str:
    return "0.0" if float(f"{number:.1f}") == 0 else f"{number:+.1f}".replace("-", "−")


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 10 else f"{number:.0f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")

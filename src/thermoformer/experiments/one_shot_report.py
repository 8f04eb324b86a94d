"""The one-shot experiment put on paper: figures, tables beside published and earlier numbers, and the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from .. import figures
from .._files import csv_writer
from . import page
from .one_shot_choices import at_choice
from .one_shot_config import OneShotConfig
from .one_shot_figures import (
    draw_accuracy,
    draw_correlation,
    draw_head_scores,
    draw_label_overlap,
    draw_order_parameters,
    finite_widths,
    head_scores,
    order_parameters,
    width_name,
)
from .one_shot_overlap import COEFFICIENTS, order_correlation
from .one_shot_tables import (
    chosen_table,
    correlation_table,
    is_prototype_size,
    pair_table,
    percent,
    repetition_table,
    signed,
    temperature_table,
)
from .one_shot_training import PUBLISHED_ACCURACY

_TASK = (
    "Each example is a sequence of three images: two with a label, of different characters, and a third without. Which "
    "of the two does the third show? The characters of the test were never seen in training. Images of clothes "
    "(Fashion-MNIST) and digits (MNIST), class 0 or 1, are another world altogether."
)
_NETWORK = (
    "A network was trained by gradient descent on everything, queries and keys included. Now its attention heads are "
    "frozen, and the theory learns the rest anew from {examples} sequences of training characters: a Bayesian network "
    "with the same heads and width N, in the limit where N and the number of examples are both large. The Gaussian "
    "process (GP) is the limit of infinite width, in which all {paths} paths weigh the same. The trained network saw "
    "far more sequences, so its accuracy is a mark to look up to, not one to reach."
)
_CHOICES = (
    "The temperature τ of every width is chosen in two ways: by accuracy on validation characters, and by the evidence "
    "of the training labels alone. The width that is looked at closely has the highest accuracy on validation "
    "characters. Test characters, clothes and digits choose nothing. All prior variances are {variance:g}; "
    "in a third way the evidence chooses their product too, together with τ."
)
_ORDER = (
    "Order parameter U between paths. A path is named by its heads, counted from 0: that of layer 0, then that of "
    "layer 1. {sampled}Trained weights: the Gram matrix of the effective path weights of the trained network, N = "
    "{width}. All are scaled to the same trace."
)
_SAMPLED = (
    "Sampled networks: mean over {draws} draws in {chains} chains at the theory's width and temperature, with all "
    "{count} training examples ({method}); largest R-hat {r_hat:.3f}, at least {effective:.0f} effective draws{mixed}. "
)
_METHODS = {"gibbs": "Gibbs over all weights", "nuts": "NUTS over the order parameters"}
_CHANCE = (
    "Correlation over the distinct entries of U. Chance: how often the correlation is as large when the heads of each "
    "layer of the trained network are put in another order, its own order included."
)


def write_report(dataset: xr.Dataset, config: OneShotConfig, out: Path) -> Path:
    """Figures (PNG and SVG), tables (CSV) and the page into a folder; returns the path of the page."""
    _write_accuracies(dataset, out / "accuracy.csv")
    _write_scores(dataset, out / "head_scores.csv")
    drawn = {
        "accuracy": draw_accuracy(dataset),
        "order_parameters": draw_order_parameters(dataset),
        "correlation": draw_correlation(dataset),
        "head_scores": draw_head_scores(dataset),
        "label_overlap": draw_label_overlap(dataset),
    }
    vector = {name: figures.save(figure, out / name)[1] for name, figure in drawn.items()}
    return _write_page(dataset, config, vector, out / "one_shot.html")


def _write_accuracies(dataset: xr.Dataset, file: Path) -> None:
    """One row per width and temperature: everything that the choices, figures and correlations are made of."""
    with csv_writer(file) as writer:
        parts = [f"{part}_percent" for part in dataset.part.values]
        choices = ["chosen_by_validation", "chosen_by_evidence"]
        correlated = [name.lower().replace(",", "").replace(" ", "_") for name in COEFFICIENTS]
        writer.writerow(["width", "temperature", *parts, "log_evidence", "converged", *choices, *correlated])
        for width in dataset.width.values:
            for temperature in dataset.temperature.values:
                at = dataset.sel(width=width, temperature=temperature)
                chosen = [int(float(at[f"temperature_by_{how}"]) == temperature) for how in ("validation", "evidence")]
                accuracies = [f"{100 * value:.2f}" for value in at.accuracy.values]
                numbers = ["" if np.isnan(value) else f"{value:.4f}" for value in at.correlation.values]
                found = [f"{float(at.log_evidence):.3f}", int(at.converged)]
                writer.writerow([f"{width:g}", f"{temperature:g}", *accuracies, *found, *chosen, *numbers])
        accuracies = [f"{100 * value:.2f}" for value in dataset.trained_accuracy.values]
        writer.writerow(["trained network", "", *accuracies, *[""] * (4 + len(correlated))])


def _write_scores(dataset: xr.Dataset, file: Path) -> None:
    scores = head_scores(dataset)
    with csv_writer(file) as writer:
        writer.writerow(["head", *scores])
        for number, head in enumerate(dataset["head"].values):
            writer.writerow([head, *(f"{values[number]:.4f}" for values in scores.values())])


def _write_page(dataset: xr.Dataset, config: OneShotConfig, images: dict[str, Path], file: Path) -> Path:
    parts = [
        page.paragraph(_TASK),
        page.paragraph(_NETWORK.format(examples=config.training_examples, paths=dataset.sizes["path"])),
        page.paragraph(_CHOICES.format(variance=config.variance)),
        page.heading("Accuracy at every width"),
        page.figure(
            images["accuracy"],
            "Accuracy against width N, at the temperature chosen for each width. A ring marks the width with the "
            "highest accuracy on validation characters. Lines across: the trained network and the Gaussian process."
            + _repetition_words(dataset),
            alternative="Accuracy against width on test characters, Fashion-MNIST and MNIST",
        ),
        page.paragraph(_what_is_seen(dataset)),
        repetition_table(dataset),
        chosen_table(dataset),
        page.paragraph(
            "Accuracy in % at the temperature chosen by validation characters or by evidence. GP with the "
            "trained U: the Gaussian predictor whose U is that of the trained weights, with the trace that it has in "
            "the Gaussian process, τ by validation."
        ),
        temperature_table(dataset, config),
        page.paragraph(_table_words(dataset, config)),
        page.heading("The order parameter: theory, sampled networks, trained weights"),
        page.figure(
            images["order_parameters"],
            _ORDER.format(sampled=_sampled_words(dataset, config), width=int(dataset.trained_width)),
            alternative="Matrices of the order parameter between paths: theory, sampled networks, trained weights",
        ),
        page.paragraph(_order_words(dataset)),
        pair_table(dataset),
        page.paragraph(_CHANCE),
        page.figure(
            images["correlation"],
            "Correlation between the entries of the theory's U and those of the trained network's, against width.",
            alternative="Correlation with the trained order parameter against width, by temperature and by coefficient",
        ),
        correlation_table(dataset),
        page.heading("Which heads count"),
        page.figure(
            images["head_scores"],
            "Score of every head: the sum of |U| over the pairs of paths that use it, over the largest.",
            alternative="Scores of all heads from theory, sampled networks and trained weights",
        ),
        page.paragraph(_score_words(dataset)),
        page.heading("The kernel and the labels"),
        page.figure(
            images["label_overlap"],
            f"Overlap of the labels with the first {config.components} principal components of the kernel, largest "
            "eigenvalue first, each at the temperature chosen by validation.",
            alternative="Bars of label overlap per principal component, best width against Gaussian process",
        ),
        page.paragraph(_overlap_words(dataset)),
    ]
    failed = int((~dataset.converged.astype(bool)).sum())
    if failed:
        parts.append(
            page.paragraph(f"{failed} of {dataset.converged.size} points did not reach the solver's tolerance.")
        )
    network = "the network of the package" if config.network is None else "a network of its own"
    return page.write_page(
        file,
        "One-shot images: what the theory makes of trained heads",
        "With its heads frozen, what would a network of another width learn, and along which paths?",
        parts,
        f"{config.training_examples} training, {config.validation_sequences} validation and {config.test_sequences} "
        f"test sequences, {config.other_sequences} each of Fashion-MNIST and MNIST; {network}; seed {config.seed}. "
        "Data: one_shot.nc; numbers: accuracy.csv, head_scores.csv; figures: PNG and SVG, all beside this page. Theory "
        "and published numbers: Tiberi, Mignacco, Irie, Sompolinsky, NeurIPS 2024, arXiv 2405.15926.",
    )


def _repetition_words(dataset: xr.Dataset) -> str:
    if "repeated_accuracy" not in dataset:
        return ""
    return (
        f" All are means over {dataset.sizes['repetition']} draws of all sequences, bars are standard deviations over "
        "them. What follows is of the first draw, where nothing else is said."
    )


def _table_words(dataset: xr.Dataset, config: OneShotConfig) -> str:
    own = percent(dataset.trained_accuracy.sel(part="test"))
    text = (
        f"Test accuracy in % at every width and temperature. The trained network itself has {own} %; the published "
        f"one, of the same size but with three channels, has {PUBLISHED_ACCURACY} %."
    )
    if is_prototype_size(config):
        text += (
            " In brackets: an earlier run of the same theory with the heads of another network (81.2 % on its test "
            "characters). Heads differ, so these numbers need not agree; what should agree is the pattern."
        )
    return text


def _what_is_seen(dataset: xr.Dataset) -> str:
    chosen, best = at_choice(dataset, "validation"), float(dataset.compared_width)
    test = chosen.accuracy.sel(part="test")
    widest = finite_widths(dataset)[-1]
    evidence = at_choice(dataset, "evidence").accuracy.sel(part="test")
    text = (
        f"With τ chosen by validation, {width_name(best)} is best on validation characters; on test characters it has "
        f"{percent(test.sel(width=best))} %, {width_name(widest)} has {percent(test.sel(width=widest))} %, and the "
        f"Gaussian process {percent(test.sel(width=np.inf))} %. With τ chosen by evidence they have "
        f"{percent(evidence.sel(width=best))}, {percent(evidence.sel(width=widest))} and "
        f"{percent(evidence.sel(width=np.inf))} %."
    )
    if "free_accuracy" in dataset:
        free = dataset.free_accuracy.sel(part="test")
        text += (
            " Where the evidence chooses the product of the variances too, they have "
            f"{percent(free.sel(width=best))}, {percent(free.sel(width=widest))} and "
            f"{percent(free.sel(width=np.inf))} %."
        )
        silent = [width_name(width) for width in dataset.width.values if bool(dataset.free_at_bound.sel(width=width))]
        if silent:
            text += (
                f" There the choice is at the edge of what is allowed for {', '.join(silent)}: a product so small that "
                "the network is silent and the labels are all noise."
            )
    edges = {float(dataset.temperature.min()), float(dataset.temperature.max())}
    at_edge = [
        width_name(width) for width in dataset.width.values if float(chosen.temperature.sel(width=width)) in edges
    ]
    if at_edge:
        text += f" At the edge of the temperatures tried, so that more might be gained outside: {', '.join(at_edge)}."
    return text


def _sampled_words(dataset: xr.Dataset, config: OneShotConfig) -> str:
    if "sampled_order_parameter" not in dataset:
        return ""
    return _SAMPLED.format(
        draws=config.chains * config.sampled_draws,
        chains=config.chains,
        count=config.training_examples,
        method=_METHODS[dataset.sampled_method.item()],
        r_hat=float(dataset.sampled_r_hat),
        effective=float(dataset.sampled_effective),
        mixed="" if float(dataset.sampled_mixed) else ", so that the chains have not mixed",
    )


def _order_words(dataset: xr.Dataset) -> str:
    theory, *sampled, trained = order_parameters(dataset).values()
    alone = order_correlation(np.eye(len(trained)), trained)
    text = (
        f"The identity of the Gaussian process alone correlates with the trained weights by {signed(alone)} over all "
        "entries: what counts is what is off the diagonal."
    )
    if not sampled:
        return text
    apart = np.linalg.norm(theory - sampled[0]) / np.linalg.norm(sampled[0])
    mean, error = dataset.sampled_order_parameter.values, dataset.sampled_order_parameter_error.values
    noise = float(np.linalg.norm(error) / np.linalg.norm(mean))
    larger = 100 * float(np.trace(theory) / np.trace(mean) - 1)
    accuracy = at_choice(dataset, "validation").accuracy.sel(width=float(dataset.compared_width))
    text += (
        f" The theory's U is {100 * apart:.0f} % away from the mean of sampled networks (root-mean-square, after "
        f"scaling; Monte-Carlo noise alone: {100 * noise:.0f} %), its trace "
        f"{abs(larger):.1f} % {'larger' if larger > 0 else 'smaller'}. On test characters the theory has "
        f"{percent(accuracy.sel(part='test'))} % and the mean of sampled networks "
        f"{percent(dataset.sampled_accuracy.sel(part='test'))} %."
    )
    if not float(dataset.sampled_mixed):
        text += f" The chains have not mixed ({dataset.sampled_note.item()}): take these numbers as a first look."
    return text


def _score_words(dataset: xr.Dataset) -> str:
    scores = head_scores(dataset)
    theory, *_, trained = scores.values()
    ranks = [np.argsort(np.argsort(values)) for values in (theory, trained)]
    rank = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    names = dataset["head"].values
    return (
        f"Rank correlation of the scores from theory and trained weights: {signed(rank)} over {len(names)} heads. The "
        f"highest score is that of head {names[np.argmax(theory)]} in the theory and of head "
        f"{names[np.argmax(trained)]} in the trained network; the lowest, of {names[np.argmin(theory)]} and of "
        f"{names[np.argmin(trained)]}."
    )


def _overlap_words(dataset: xr.Dataset) -> str:
    overlap = at_choice(dataset, "validation").label_overlap
    sentences = []
    for width in (float(dataset.compared_width), np.inf):
        values = overlap.sel(width=width).values
        sentences.append(
            f"{width_name(width)}: largest overlap {values.max():.3f} (component {values.argmax() + 1}), "
            f"{100 * float((values**2).sum()):.0f} % of the labels within the first {len(values)} components."
        )
    return " ".join(sentences)

"""The pruning experiment put on paper: figures, tables next to the published numbers, and the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from .. import figures
from .._files import csv_writer
from ..figures.pruning import ORDER_LABELS
from ..learning.scores import head_name, head_of
from . import page
from .one_shot_training import PUBLISHED_ACCURACY
from .pruning_config import MEASURED, SCORES, PruningConfig
from .pruning_figures import SCORE_NAMES, TITLES, draw_curves, draw_finetuned, draw_scores
from .pruning_scores import removed_heads
from .pruning_table import (
    PUBLISHED_SINGLE,
    binomial_error,
    order_curves,
    rank_correlation,
    single_drops,
)

_TASK = (
    "A sequence shows two labelled images and a third, of one of the two classes; the network says which. A network of "
    "{heads} heads in {layers} layers was trained for it on characters (Omniglot). Heads are removed from it: a head "
    "is zeroed and its layer divided by the root of the heads that are left, and nothing is trained. The last head of "
    "a layer stays. Heads are named layer.head, counted from 0, layer 0 nearest the input."
)
_SCORES = (
    "Four scores may say which heads matter. Theory's U: the queries and keys are frozen, the theory is solved on "
    "{examples} training sequences, and a head's score is the sum of |U| over the pairs of paths that use it. Evidence "
    "lost: what the log evidence loses when the theory does without the head. Gradient importance: the slope of the "
    "loss along a mask on the head, its absolute value averaged over the same training sequences. U of the trained "
    "weights: the first score with the U that the trained network itself has. Width and temperature of the theory, "
    "N = {width} and τ = {temperature:g}, have the highest accuracy on validation characters, {accuracy:.1f} %. No "
    "score has seen a test character."
)
_CURVES = (
    "Every set of heads that leaves one in each layer was measured ({sets} networks), so that any order can be "
    "followed. Grey: {random} random orders, mean and one standard deviation over orders. Best set on validation: at "
    "each number the set with the highest accuracy on validation characters; it is a search through all sets, and no "
    "order."
)


def write_report(dataset: xr.Dataset, config: PruningConfig, out: Path) -> Path:
    """Figures (PNG and SVG), the tables (CSV) and the page into a folder; returns the path of the page."""
    out.mkdir(parents=True, exist_ok=True)
    _write_heads(dataset, config, out / "heads.csv")
    _write_curves(dataset, config, out / "curves.csv")
    drawn = {"scores": draw_scores(dataset, config), "curves": draw_curves(dataset, config)}
    if dataset.finetuned_accuracy.notnull().any():
        drawn["finetuned"] = draw_finetuned(dataset, config)
    images = {name: figures.save(figure, out / name)[1] for name, figure in drawn.items()}
    return _write_page(dataset, config, images, out / "pruning.html")


def _write_page(dataset: xr.Dataset, config: PruningConfig, images: dict[str, Path], file: Path) -> Path:
    heads = [int(count) for count in np.atleast_1d(dataset.attrs["heads"])]
    best = 100 * float(dataset.grid_accuracy.max())
    width, temperature = int(dataset.chosen_width), float(dataset.chosen_temperature)
    chosen = {"width": width, "temperature": temperature, "accuracy": best}
    parts = [
        page.paragraph(_TASK.format(heads=sum(heads), layers=len(heads))),
        page.paragraph(_SCORES.format(examples=config.training_sequences, **chosen)),
        page.heading("One head removed: what a score says, and what is lost"),
        page.figure(
            images["scores"],
            f"Accuracy lost on {config.test_sequences} sequences of test characters without each head, against its "
            "scores, with binomial errors. ρ: Spearman's rank correlation over the heads; p: the part of all pairings "
            "of scores and drops that are as far from 0.",
            alternative="Accuracy lost without each head against four scores",
        ),
        _heads_table(dataset, config),
        page.paragraph(_correlations(dataset)),
        page.heading("More and more heads removed"),
        page.paragraph(_CURVES.format(sets=dataset.sizes["subset"], random=config.random_orders)),
        page.figure(
            images["curves"],
            "Accuracy as heads go, lowest score first, with binomial errors.",
            alternative="Accuracy against the number of heads removed, in several orders, on three kinds of images",
        ),
    ]
    for part in MEASURED:
        curves = order_curves(dataset, part, config.measured_on(part))
        parts += [_comparison_table(curves, TITLES[part]), page.paragraph(_verdict(curves, TITLES[part]))]
    parts.append(
        page.paragraph(
            "Accuracy in %, and in brackets by how many standard deviations of random orders it is above their mean, "
            "and how many of the random orders have a lower accuracy, ties counted half."
        )
    )
    if "finetuned" in images:
        parts += _finetuned(dataset, config, images["finetuned"])
    return page.write_page(
        file,
        "Pruning: which heads can a trained network do without?",
        "A score of heads is worth something if heads with a low score can go. Here it is held against what is lost.",
        parts,
        f"Seed {config.seed}, {config.test_sequences} test sequences, {config.other_sequences} of each other kind of "
        "image. Data: pruning.nc; tables: heads.csv and curves.csv; figures: PNG and SVG, all beside this page. "
        "Published numbers: Tiberi, Mignacco, Irie, Sompolinsky, NeurIPS 2024, arXiv 2405.15926.",
    )


def _finetuned(dataset: xr.Dataset, config: PruningConfig, image: Path) -> list[str]:
    control = {part: 100 * float(dataset.finetuned_accuracy.sel(part=part, subset=0)) for part in MEASURED}
    random = config.finetuned_random
    curves = order_curves(dataset, "test", config.finetuned_sequences, finetuned=random)
    curves = curves.isel(removed=curves.accuracy.notnull().any("order"))
    return [
        page.heading("After a short fine-tuning"),
        page.paragraph(
            f"Every pruned network, and the whole one as the control, trained for {config.finetuning_steps} more "
            f"batches of {config.finetuning_batch} sequences of training characters at a rate of "
            f"{config.finetuning_rate:g} that falls to 0; measured on {config.finetuned_sequences} sequences of each "
            "kind. The control has "
            + ", ".join(f"{value:.1f} % on {TITLES[part]}" for part, value in control.items())
            + f". There {'is one random order' if random == 1 else f'are {random} random orders'} only, so that their "
            "standard deviation is a rough one."
        ),
        page.figure(
            image,
            "Accuracy of pruned and fine-tuned networks.",
            alternative="Accuracy of fine-tuned networks against the number of heads removed",
        ),
        _comparison_table(curves, "test characters, fine-tuned"),
    ]


def _heads_table(dataset: xr.Dataset, config: PruningConfig) -> str:
    """Heads in ascending score of the theory, beside the published accuracies in theirs."""
    drops, scores = single_drops(dataset), dataset.score.sel(score_name="theory").values
    whole = 100 * float(dataset.accuracy.sel(part="test", subset=0))
    names = dataset["head"].values
    published = PUBLISHED_SINGLE if len(names) == len(PUBLISHED_SINGLE) else ("",) * len(names)
    lines = []
    for place, index in enumerate(np.argsort(scores, kind="stable")):
        error = 100 * float(binomial_error((whole - drops[index]) / 100, config.test_sequences))
        ours = f"{whole - drops[index]:.1f} ± {error:.1f}"
        others = [f"{dataset.score.sel(score_name=name).values[index]:.2f}" for name in SCORES[1:]]
        line = [names[index], f"{scores[index]:.2f}", *others, ours, str(published[place])]
        lines.append([cell.replace("-", "−") for cell in line])
    lines.append(["all heads", "", "", "", "", f"{whole:.1f}", f"{PUBLISHED_ACCURACY}" if published[0] else ""])
    header = ["head removed", *(SCORE_NAMES[name] for name in SCORES), "accuracy, %", "published"]
    caption = (
        "In ascending score of the theory. The published network is another one, with heads of its own: its accuracies "
        "are in ascending order of its own scores."
    )
    return page.table(header, lines, caption, quiet=(6,))


def _correlations(dataset: xr.Dataset) -> str:
    drops = single_drops(dataset)
    texts = []
    for name in SCORES:
        found = rank_correlation(dataset.score.sel(score_name=name).values, drops)
        texts.append(f"{SCORE_NAMES[name]} {found.value:.2f} (p = {found.chance:.2g})")
    published = rank_correlation(range(len(PUBLISHED_SINGLE)), [PUBLISHED_ACCURACY - one for one in PUBLISHED_SINGLE])
    text = (
        f"Rank correlation with the accuracy lost: {'; '.join(texts)}. In the published network, score of the theory: "
        f"{published.value:.2f} (p = {published.chance:.2g}). In an earlier network of ours, 81.2 % on test "
        "characters: 0.60, with 74.5, 78.5, 77.5, 75.9 % without each head of layer 0 and 71.2, 64.2, 67.8, 72.6 % "
        "without each of layer 1."
    )
    return text.replace("-", "−")


def _comparison_table(curves: xr.Dataset, title: str) -> str:
    counts = [int(count) for count in curves.removed.values if count > 0]
    lines = []
    for order in curves.order.values.tolist():
        cells = []
        for count in counts:
            at = curves.sel(order=order, removed=count)
            cells.append("" if np.isnan(at.accuracy) else _cell(at))
        if any(cells):
            lines.append([ORDER_LABELS.get(order, order), *cells])
    spreads = [
        f"{100 * float(at.random_mean):.1f} ± {100 * float(at.random_spread):.1f}".replace(" ± nan", "")
        for at in (curves.sel(removed=count) for count in counts)
    ]
    lines.append(["random orders", *spreads])
    return page.table([f"{title}; removed:", *map(str, counts)], lines)


def _cell(at: xr.Dataset) -> str:
    text = f"{100 * float(at.accuracy):.1f}"
    if np.isfinite(at.deviations):
        text += f" ({float(at.deviations):+.1f}; {100 * float(at.beats):.0f} %)"
    return text.replace("-", "−")


def _verdict(curves: xr.Dataset, title: str) -> str:
    """Where each score beats random orders by more than one standard deviation, and where it does not."""
    sentences = []
    for order in SCORES:
        deviations = curves.deviations.sel(order=order)
        better = [str(int(at.removed)) for at in deviations if float(at) > 1]
        worse = [str(int(at.removed)) for at in deviations if float(at) < -1]
        text = f"by more than one standard deviation at {_listed(better)} removed" if better else "nowhere"
        text += f", and is worse by as much at {_listed(worse)}" if worse else ""
        sentences.append(f"{SCORE_NAMES[order][0].upper()}{SCORE_NAMES[order][1:]} beats random orders {text}.")
    return f"On {title}: " + " ".join(sentences)


def _listed(numbers: list[str]) -> str:
    return numbers[0] if len(numbers) == 1 else f"{', '.join(numbers[:-1])} and {numbers[-1]}"


def _write_heads(dataset: xr.Dataset, config: PruningConfig, file: Path) -> None:
    drops = {part: single_drops(dataset, part) for part in MEASURED}
    whole = float(dataset.accuracy.sel(part="test", subset=0))
    errors = 100 * binomial_error(whole - drops["test"] / 100, config.test_sequences)
    with csv_writer(file) as writer:
        names = [f"drop_{part}_points" for part in MEASURED]
        writer.writerow(["head", *(f"score_{name}" for name in SCORES), *names, "error_test_points"])
        for index, head in enumerate(dataset["head"].values):
            scores = [f"{dataset.score.sel(score_name=name).values[index]:.6g}" for name in SCORES]
            lost = [f"{drops[part][index]:.2f}" for part in MEASURED]
            writer.writerow([head, *scores, *lost, f"{errors[index]:.2f}"])


def _write_curves(dataset: xr.Dataset, config: PruningConfig, file: Path) -> None:
    heads = [head_of(name) for name in dataset["head"].values.tolist()]
    measures = ("accuracy", "error", "random_mean", "random_spread", "deviations", "beats")
    with csv_writer(file) as writer:
        writer.writerow(["part", "fine_tuned", "order", "removed", "heads", *measures])
        for part in MEASURED:
            for finetuned in (None, config.finetuned_random):
                examples = config.measured_on(part) if finetuned is None else config.finetuned_sequences
                curves = order_curves(dataset, part, examples, finetuned=finetuned)
                for order in dataset.order.values.tolist():
                    for count in dataset.removed.values.tolist():
                        at = curves.sel(order=order, removed=count)
                        if np.isnan(at.accuracy):
                            continue
                        gone = removed_heads(heads, int(dataset.order_code.sel(order=order, removed=count)))
                        numbers = [float(at[name]) for name in measures]
                        cells = ["" if np.isnan(number) else f"{number:.4f}" for number in numbers]
                        where = [part, "no" if finetuned is None else "yes", order, count]
                        writer.writerow([*where, " ".join(head_name(head) for head in gone), *cells])

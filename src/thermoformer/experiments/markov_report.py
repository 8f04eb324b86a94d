"""The hidden-Markov experiment put on paper: figures, a table next to the published numbers, and the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from .. import figures
from .._files import csv_writer
from . import page
from .markov_config import MarkovConfig, MarkovVariant
from .markov_figures import draw_accuracy, draw_kernels, draw_label_overlap, draw_order_parameters, width_name
from .markov_published import SAMPLERS, Comparison, compare, published_overlaps
from .sampled import not_mixed

# A published number is one seed's: means over seeds may differ from it by this many points without comment.
AGREEMENT = 3.0
_SAME = "theory_on_same_seeds_percent"

_TASK = (
    "Each example is a sequence of {tokens} noisy tokens. Behind every token stands a hidden state, + or −. In one "
    "class the state tends to stay from one token to the next (probability 0.7), in the other it tends to change. A "
    "single token says nothing about the class: the network must compare neighbours."
)
_NETWORK = (
    "Two layers of fixed attention heads carry the tokens to the readout along paths. The good head of layer 1 looks "
    "at the previous token if it has the same state, and else at the start of the sequence; the uniform head of layer "
    "2 averages over the sequence. Together they are the good path. The other paths pass through random heads (4 "
    "paths) or average twice (2 paths, with much more noise in the tokens): they say nothing about the class, but "
    "share noise with the good path, which can be cancelled against theirs. The rest of the network is learned. The "
    "theory gives its posterior where the width N and the number of training examples are both large; the Gaussian "
    "process (GP) is the limit of infinite width, in which all paths weigh the same."
)
_FINITE_WIDTH = (
    "The theory is an approximation: it holds where N and the number of training examples are both large. Two checks "
    "do without it. Exact finite width: the posterior of the few order parameters, which is exact at every N, sampled "
    "with NUTS. Sampled networks: all weights of networks of width N, sampled with blocked Gibbs, up to a width where "
    "that is cheap. Both predict with the mean over their draws."
)
_METRICS = (
    "Means over seeds. Expected accuracy: of one network drawn from the posterior, not of the mean of all. Bias: "
    "squared difference of mean predictor and label. Variance: of the predictor over networks of the posterior. Log "
    "evidence: of the training labels, known before any test."
)


def write_report(dataset: xr.Dataset, config: MarkovConfig, out: Path) -> Path:
    """Figures (PNG and SVG), the table (CSV) and the page into a folder; returns the path of the page."""
    rows = compare(dataset, config)
    _write_table(rows, out / "accuracy.csv")
    drawn = {
        "accuracy": draw_accuracy(dataset, config),
        "order_parameters": draw_order_parameters(dataset, config),
        "label_overlap": draw_label_overlap(dataset, config),
        "kernels": draw_kernels(dataset, config),
    }
    vector = {name: figures.save(figure, out / name)[1] for name, figure in drawn.items()}
    return _write_page(dataset, config, rows, vector, out / "markov.html")


def _write_table(rows: list[Comparison], file: Path) -> None:
    with csv_writer(file) as writer:
        writer.writerow(
            ["variant", "predictor", "width", "mean_percent", "spread_percent", "seeds", "published_percent", _SAME]
        )
        for row in rows:
            published = "" if np.isnan(row.published) else row.published
            same = "" if np.isnan(row.theory) else f"{row.theory:.2f}"
            numbers = [f"{row.mean:.2f}", f"{row.spread:.2f}", row.seeds, published, same]
            writer.writerow([row.variant, row.predictor, f"{row.width:g}", *numbers])


def _write_page(
    dataset: xr.Dataset, config: MarkovConfig, rows: list[Comparison], images: dict[str, Path], file: Path
) -> Path:
    seeds = _count(dataset.sizes["seed"], "seed")
    parts = [
        page.paragraph(_TASK.format(tokens=config.tokens)),
        page.paragraph(_NETWORK),
        page.heading("Accuracy falls with width"),
        page.figure(
            images["accuracy"],
            f"Test accuracy against width N: mean over {seeds}, one standard deviation either side. Lines across: "
            "Gaussian process with all paths, with the good path alone, and with every path that averages in layer 2 "
            "(good + denoising). Open circles: published, one seed." + _sampler_caption(rows),
            alternative="Test accuracy against width for theory, its diagonal part, samplers and Gaussian processes",
        ),
        page.paragraph(_what_is_seen(rows)),
        page.side_by_side(*(_accuracy_table(variant, rows) for variant in config.variants)),
        page.paragraph(
            f"Test accuracy in %: mean ± standard deviation over {seeds}; published: one seed. Diagonal of U: the same "
            "theory with the correlations between paths left out of U."
        ),
        page.paragraph(_agreement(rows)),
        *_finite_width(dataset, config, rows),
        page.heading("The order parameter: which paths count, and together with which"),
        page.figure(
            images["order_parameters"],
            "Order parameter U between paths, mean over seeds, at three widths. A path is named by its heads, layer 1 "
            "first; columns are in the order of the rows. Narrow networks give the good path more weight and correlate "
            "it with others; as N grows, U returns to the identity of the Gaussian process.",
            alternative="Matrices of the order parameter at three widths for both variants",
        ),
        page.heading("The kernel turns towards the labels"),
        page.figure(
            images["label_overlap"],
            f"Overlap of the labels with the first {config.components} principal components of the kernel, largest "
            "eigenvalue first, of the first seed.",
            alternative="Bars of label overlap per principal component, narrow network against Gaussian process",
        ),
        _overlap_table(dataset, config),
        page.figure(
            images["kernels"],
            "Kernels of the training examples of the first seed, sorted by class. Colours run over the middle 98 % of "
            "the entries off the diagonal.",
            alternative="Kernel matrices of both variants, narrow network against Gaussian process",
        ),
        page.heading("More than accuracy"),
        page.side_by_side(*(_metrics_table(dataset, variant) for variant in config.variants)),
        page.paragraph(_METRICS),
    ]
    failed = int((~dataset.converged.astype(bool)).sum())
    if failed:
        parts.append(page.paragraph(f"{_count(failed, 'solution')} did not reach the solver's tolerance."))
    return page.write_page(
        file,
        "Hidden-Markov chains: narrow networks find the good attention path",
        "A transformer of finite width can learn which of its attention paths to trust. An infinitely wide one cannot.",
        parts,
        f"{seeds}, {config.training_examples} training and {config.test_examples} test sequences each, temperature "
        f"{config.temperature:g}, all prior variances {config.variance:g}. Data: markov.nc; accuracies: accuracy.csv; "
        "figures: PNG and SVG, all beside this page. Theory and published numbers: Tiberi, Mignacco, Irie, "
        "Sompolinsky, NeurIPS 2024, arXiv 2405.15926.",
    )


def _finite_width(dataset: xr.Dataset, config: MarkovConfig, rows: list[Comparison]) -> list[str]:
    """What samplers say beside the theory; nothing where none ran."""
    if not any(row.predictor in SAMPLERS for row in rows):
        return []
    tables = [_sampler_table(dataset, variant, rows) for variant in config.variants]
    texts = [sentence for name in SAMPLERS if (sentence := _gap_sentence(name, rows))]
    return [
        page.heading("Theory against exact finite width and sampled networks"),
        page.paragraph(_FINITE_WIDTH),
        page.side_by_side(*tables),
        page.paragraph(
            "Test accuracy of the theory in %, and of the samplers less that of the theory, all on the same seeds: "
            "mean ± standard deviation over these seeds. Distance: root-mean-square difference of the theory's mean "
            "predictor from that of the sampler over the test sequences, in % of the latter; ±: what Monte-Carlo noise "
            "alone would show."
        ),
        page.paragraph(" ".join([*texts, *_published_sampled(rows), *_mixing(dataset)])),
    ]


def _sampler_table(dataset: xr.Dataset, variant: MarkovVariant, rows: list[Comparison]) -> str:
    found = {(row.predictor, row.width): row for row in rows if row.variant == variant.name}
    lines = []
    for width in dataset.width.values.tolist():
        cells = []
        for predictor in SAMPLERS:
            row = found.get((predictor, width))
            if row is None:
                cells += ["", ""]
                continue
            name = predictor.removesuffix("_accuracy")
            at = dataset.sel(variant=variant.name, width=width)
            apart, noise = (100 * float(at[f"{name}_{part}"].mean()) for part in ("distance", "distance_noise"))
            spread = f" ± {row.gap_spread:.1f}" if row.seeds > 1 else ""
            cells += [_signed(row.gap) + spread, f"{apart:.1f} ± {noise:.1f}"]
        if any(cells):
            theory = next(found[name, width].theory for name in SAMPLERS if (name, width) in found)
            lines.append([width_name(width), f"{theory:.1f}", *cells])
    return page.table([variant.name, "theory", "exact − theory", "distance", "sampled − theory", "distance"], lines)


def _gap_sentence(predictor: str, rows: list[Comparison]) -> str:
    chosen = [row for row in rows if row.predictor == predictor]
    if not chosen:
        return ""
    worst = max(chosen, key=lambda row: abs(row.gap))
    name = {"exact_accuracy": "exact finite width", "sampled_accuracy": "sampled networks"}[predictor]
    return (
        f"The largest difference in accuracy, {name} less theory, is {_signed(worst.gap)} points ({worst.variant}, "
        f"{width_name(worst.width)}, {_count(worst.seeds, 'seed')}); on average over all points it is "
        f"{_signed(float(np.mean([row.gap for row in chosen])))}."
    )


def _published_sampled(rows: list[Comparison]) -> list[str]:
    return [
        f"Published for sampled networks (NUTS, one seed), {row.variant}, {width_name(row.width)}: "
        f"{row.published:.1f} %; ours, on other sequences: {_ours(row)} %, where the theory has {row.theory:.1f} %."
        for row in rows
        if row.predictor == "sampled_accuracy" and not np.isnan(row.published)
    ]


def _mixing(dataset: xr.Dataset) -> list[str]:
    sentences = []
    for name, what in (("exact", "of the exact posterior"), ("sampled", "of sampled networks")):
        runs, failed, reason = not_mixed(dataset, name)
        if failed:
            sentences.append(f"Of {_count(runs, 'run')} {what}, {failed} had not mixed (the first: {reason}).")
        elif runs:
            sentences.append(f"All runs {what} ({runs}) mixed.")
    return sentences


def _sampler_caption(rows: list[Comparison]) -> str:
    seeds = max((row.seeds for row in rows if row.predictor in SAMPLERS), default=0)
    if not seeds:
        return ""
    which = "the first seed" if seeds == 1 else f"the first {seeds} seeds"
    return (
        f" Diamonds and triangles, set a little to the right: exact finite width and sampled networks on {which}, "
        "placed by their difference from the theory on the same seeds."
    )


def _accuracy_table(variant: MarkovVariant, rows: list[Comparison]) -> str:
    def column(predictor: str) -> list[Comparison]:
        return [row for row in rows if (row.variant, row.predictor) == (variant.name, predictor)]

    lines = [
        [width_name(full.width), _ours(full), _published(full), _ours(diagonal), _published(diagonal)]
        for full, diagonal in zip(column("accuracy"), column("accuracy_diagonal"), strict=True)
    ]
    for row in rows:
        repeats_gp = variant.denoises_everywhere and row.predictor == "GP, good + denoising"
        if row.variant == variant.name and row.predictor.startswith("GP, ") and not repeats_gp:
            lines.append([row.predictor, _ours(row), _published(row), "", ""])
    header = [variant.name, "theory", "published", "diagonal of U", "published"]
    return page.table(header, lines, quiet=(2, 4))


def _overlap_table(dataset: xr.Dataset, config: MarkovConfig) -> str:
    lines = []
    for variant in config.variants:
        for width in dataset.kernel_width.values.tolist():
            largest = dataset.label_overlap.sel(variant=variant.name, kernel_width=width).max("component").values
            published = published_overlaps(config, variant.name).get(width)
            spread = largest.std(ddof=1) if len(largest) > 1 else 0.0
            ours = f"{largest.mean():.3f} ± {spread:.3f}"
            lines.append(
                [f"{variant.name}, {width_name(width)}", ours, "" if published is None else f"{published:.3f}"]
            )
    return page.table(["largest overlap of one component", "mean ± sd", "published"], lines)


def _metrics_table(dataset: xr.Dataset, variant: MarkovVariant) -> str:
    means = dataset.sel(variant=variant.name).mean("seed")
    lines = []
    for width in dataset.width.values:
        at = means.sel(width=width)
        numbers = [
            f"{100 * at.expected_accuracy:.1f}",
            f"{at.bias:.3f}",
            f"{at.variance:.3f}",
            f"{at.log_evidence:.1f}",
        ]
        lines.append([width_name(width), *(number.replace("-", "−") for number in numbers)])
    header = [variant.name, "expected acc., %", "bias", "variance", "log evidence"]
    return page.table(header, lines)


def _what_is_seen(rows: list[Comparison]) -> str:
    sentences = []
    for variant in dict.fromkeys(row.variant for row in rows):
        curve = [row for row in rows if row.variant == variant and row.predictor == "accuracy"]
        diagonal = next(row for row in rows if row.variant == variant and row.predictor == "accuracy_diagonal")
        sentences.append(
            f"With {variant} the accuracy goes from {curve[0].mean:.1f} % at N = {curve[0].width:g} to "
            f"{curve[-2].mean:.1f} % at N = {curve[-2].width:g}; the Gaussian process has {curve[-1].mean:.1f} %. "
            f"With only the diagonal of U, N = {curve[0].width:g} gives {diagonal.mean:.1f} %: "
            f"correlations between paths are worth {curve[0].mean - diagonal.mean:.1f} points."
        )
    return " ".join(sentences)


def _agreement(rows: list[Comparison]) -> str:
    compared = [row for row in rows if not np.isnan(row.published) and row.predictor not in SAMPLERS]
    if not compared:
        return "No numbers were published for these settings."
    apart = [row for row in compared if abs(row.difference) > AGREEMENT]
    worst = max(compared, key=lambda row: abs(row.difference))
    text = (
        f"Of {len(compared)} published accuracies (one seed each), {len(compared) - len(apart)} lie within "
        f"{AGREEMENT:g} points of our mean. The largest difference, ours minus published, is "
        f"{worst.difference:+.1f} points ({_row_name(worst)})."
    )
    if apart:
        groups: dict[str, list[Comparison]] = {}
        for row in apart:
            groups.setdefault(_curve_name(row), []).append(row)
        listed = [f"{name}: {', '.join(width_name(row.width) for row in group)}" for name, group in groups.items()]
        largest = max(abs(row.difference) / row.spread if row.spread else np.inf for row in apart)
        text += f" Further away: {'; '.join(listed)}."
        if np.isfinite(largest):
            text += f" At most {largest:.1f} standard deviations over seeds lie between them."
    text += (
        " The differences are the luck of one draw: on the published sequences themselves the theory gives every one "
        "of these numbers to the digit."
    )
    return text.replace("-", "−")


def _row_name(row: Comparison) -> str:
    return _curve_name(row) + ("" if row.predictor.startswith("GP, ") else f", {width_name(row.width)}")


def _curve_name(row: Comparison) -> str:
    kind = {"accuracy": "", "accuracy_diagonal": ", diagonal of U"}.get(row.predictor, f", {row.predictor}")
    return row.variant + kind


def _ours(row: Comparison) -> str:
    return f"{row.mean:.1f} ± {row.spread:.1f}" if row.seeds > 1 else f"{row.mean:.1f}"


def _published(row: Comparison) -> str:
    return "" if np.isnan(row.published) else f"{row.published:.1f}"


def _signed(number: float) -> str:
    """One decimal with its sign; a rounded zero has none."""
    text = f"{number:+.1f}".replace("-", "−")
    return "0.0" if float(f"{number:.1f}") == 0 else text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")

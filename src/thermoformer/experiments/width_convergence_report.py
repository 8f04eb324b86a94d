"""Width convergence put on paper: figures, tables and the page."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from .._files import csv_writer
from ..figures import figure_grid, save, styled
from ..figures.comparison import comparison_panels
from ..figures.convergence import approach_label, convergence
from . import page
from .one_path import QUANTITIES, fitted_slope
from .width_convergence import LEVEL, REFERENCES, WidthConvergenceConfig, duration, geometric_mean, width_within

# Slopes are fitted where the expansion in 1/N has set in.
_LEAST_WIDTH = 16
_THEORIES = ("gaussian process", "saddle", "one-loop")

_QUESTION = (
    "The Gaussian process is the limit of infinite width. The saddle is the limit of large width N and as many "
    "training examples P, at fixed P/N. One-loop adds the correction of order 1/N to the saddle. The exact posterior "
    "holds at any width: it samples the few order parameters and not the networks. Sampled networks are the ground "
    "truth. How wide must a network be for the cheaper ones to be right?"
)
_MEASURE = (
    "Error: root-mean-square difference from the reference over the test examples, divided by the root mean square of "
    "the reference; for the order parameter, over its entries. Curves are geometric means over seeds, with one "
    "standard deviation of the logarithm either side."
)
_FLOOR = (
    "Grey: what Monte-Carlo noise alone would show, from the standard errors of both sides. A curve that enters the "
    "grey does not say how good an approximation is, only that it is at least that good; nothing was subtracted."
)


def write_report(markov: xr.Dataset, one_path: xr.Dataset, config: WidthConvergenceConfig, out: Path) -> Path:
    """Figures (PNG and SVG), the tables (CSV) and the page into a folder; returns the path of the page."""
    _write_tables(markov, one_path, out)
    drawn = {
        "one_path": draw_one_path(one_path),
        "against_exact": draw_errors(markov, "exact"),
        "comparison": draw_comparison(markov, config),
    }
    if config.sampled_widths:
        drawn["against_sampled"] = draw_errors(markov, "sampled")
    images = {name: save(figure, out / name)[1] for name, figure in drawn.items()}
    return _write_page(markov, one_path, config, images, out / "width_convergence.html")


@styled
def draw_one_path(dataset: xr.Dataset) -> Figure:
    """Errors of mean, standard deviation and log evidence against width, one path in one layer."""
    figure, axes = figure_grid(1, 3, size=(4.6, 4.2))
    for ax, quantity in zip(axes[0], QUANTITIES[:2], strict=False):
        convergence(dataset.sel(quantity=quantity)[["error"]], ax, legend=False)
        ax.set_title(quantity)
    evidence = dataset[["evidence_error"]].rename(evidence_error="error")
    convergence(evidence, axes[0, 2], guides={"one-loop": -1}, legend=False)
    axes[0, 2].set_title("log evidence")
    axes[0, 2].set_ylabel("absolute error")
    return _with_legend(figure, axes)


@styled
def draw_errors(dataset: xr.Dataset, reference: str) -> Figure:
    """Errors of mean, standard deviation and order parameter against width on the hidden-Markov task."""
    figure, axes = figure_grid(1, 3, size=(4.6, 4.2))
    chosen = dataset[["error", "noise"]].sel(reference=reference)
    known = np.isfinite(chosen.error)
    chosen = chosen.sel(
        approach=known.any(["seed", "width", "quantity"]), width=known.any(["seed", "approach", "quantity"])
    )
    for ax, quantity in zip(axes[0], QUANTITIES, strict=True):
        convergence(chosen.sel(quantity=quantity), ax, legend=False)
        ax.set_title(quantity)
        if ax.get_ylim()[0] < LEVEL < ax.get_ylim()[1]:
            ax.axhline(LEVEL, color="black", linewidth=0.8, linestyle=(0, (1, 2)))
            ax.annotate("1 %", (1.01, LEVEL), xycoords=("axes fraction", "data"), ha="left", va="center", fontsize=10)
    return _with_legend(figure, axes)


def draw_comparison(dataset: xr.Dataset, config: WidthConvergenceConfig) -> Figure:
    """Every approach at one width, first seed."""
    one = dataset.isel(seed=0).sel(width=_shown_width(config)).assign_attrs(reference="exact")
    return comparison_panels(one)[0].figure


def _with_legend(figure: Figure, axes: np.ndarray) -> Figure:
    found: dict[str, Any] = {}
    for ax in axes.flat:
        handles, labels = ax.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    places = {"loc": "outside lower center", "ncols": len(found), "frameon": False, "fontsize": 12}
    figure.legend(list(found.values()), list(found), **places)
    return figure


def _shown_width(config: WidthConvergenceConfig) -> int:
    """A width where the approaches can be told apart and networks were sampled, if there is one: 10 where it can be."""
    among = config.sampled_widths or config.widths
    return 10 if 10 in among else among[len(among) // 2]


def _write_page(
    markov: xr.Dataset, one_path: xr.Dataset, config: WidthConvergenceConfig, images: dict[str, Path], file: Path
) -> Path:
    seeds = _count(markov.sizes["seed"], "seed")
    parts = [
        page.paragraph(_QUESTION),
        page.paragraph(_MEASURE),
        page.heading("One path, one layer: no Monte Carlo"),
        page.paragraph(
            "With one path in one layer the exact posterior is an integral over one number, done by quadrature to "
            f"1e-12. Inputs are random, P = N, temperature {config.one_path.temperature:g}, "
            f"{_count(config.one_path.data_sets, 'data set')} at each width."
        ),
        page.figure(
            images["one_path"],
            "Errors against the exact posterior. Dashed: powers of N for comparison.",
            alternative="Errors of Gaussian process, saddle and one-loop against width, on logarithmic axes",
        ),
        page.paragraph(_one_path_seen(one_path)),
        _one_path_table(one_path),
        page.heading("The hidden-Markov task: four paths, two layers"),
        page.paragraph(
            f"P = N training sequences, {config.test_examples} test sequences, temperature {config.temperature:g}, "
            f"{seeds}. The exact posterior was sampled with {config.chains} chains; networks were sampled (blocked "
            f"Gibbs over all weights) {_sampled_where(config)}."
        ),
        page.figure(
            images["against_exact"],
            f"Errors against the exact posterior. {_FLOOR}",
            alternative="Errors of Gaussian process, saddle and one-loop against the exact posterior, by width",
        ),
        page.paragraph(_markov_seen(markov)),
        _markov_table(markov, "exact"),
    ]
    if "against_sampled" in images:
        parts += [
            page.figure(
                images["against_sampled"],
                f"Errors against sampled networks, {_sampled_where(config)}. {_FLOOR}",
                alternative="Errors of four approaches against sampled networks, by width",
            ),
            page.paragraph(_sampled_seen(markov)),
            _markov_table(markov, "sampled"),
        ]
    parts += [
        page.heading("What such an error looks like"),
        page.figure(
            images["comparison"],
            f"Every approach at N = {_shown_width(config)}, first seed: means and standard deviations of the predictor "
            "for each test sequence against those of the exact posterior, and the entries of the order parameter with "
            "their Monte-Carlo errors.",
            alternative="Predictions of each approach against the exact ones, and entries of the order parameter",
        ),
        page.heading("What it costs"),
        _cost_table(markov),
        page.paragraph(
            "Seconds on this machine, compilation included, mean over seeds; one-loop with the saddle under it."
        ),
        *map(page.paragraph, _warnings(markov, config)),
    ]
    return page.write_page(
        file,
        "Which width is wide enough?",
        "Errors of the theory at finite width, from the Gaussian process to sampled networks.",
        parts,
        f"{seeds} of the hidden-Markov task, heads and noise as with 4 paths in the experiment markov. Data: "
        "width_convergence.nc and one_path.nc; errors: errors.csv and one_path.csv; figures: PNG and SVG, all beside "
        "this page.",
    )


def _one_path_seen(dataset: xr.Dataset) -> str:
    first, last = (int(dataset.width[place]) for place in (0, -1))

    def mean(approach: str, width: int) -> str:
        return percent(float(geometric_mean(dataset.error.sel(approach=approach, width=width, quantity="mean"))))

    text = (
        f"The mean of the saddle is off by {mean('saddle', first)} at N = {first} and by {mean('saddle', last)} at "
        f"N = {last}; one-loop by {mean('one-loop', first)} and {mean('one-loop', last)}. The Gaussian process does "
        f"not get better with width at fixed P/N: {mean('gaussian process', last)} at N = {last}."
    )
    if int((dataset.width >= _LEAST_WIDTH).sum()) > 1:
        slopes = {name: fitted_slope(dataset.error.sel(approach=name, quantity="mean")) for name in _THEORIES[1:]}
        evidence = fitted_slope(dataset.evidence_error.sel(approach="one-loop"))
        text += (
            f" From N = {_LEAST_WIDTH} on, the error of the saddle falls as N to the power {slopes['saddle']:.2f} and "
            f"that of one-loop as N to the power {slopes['one-loop']:.2f}; the theory says −1 and −2. The log evidence "
            f"of one-loop is off by a term that falls as N to the power {evidence:.2f} (theory: −1), that of the "
            "saddle by a constant: it leaves out the determinant of the fluctuations."
        )
    return text.replace(" -", " −")


def _markov_seen(dataset: xr.Dataset) -> str:
    sentences = []
    widths = dataset.width.values
    for quantity in QUANTITIES[:2]:
        for approach in _THEORIES[1:]:
            chosen = dataset.sel(reference="exact", approach=approach, quantity=quantity)
            errors, noise = geometric_mean(chosen.error).values, geometric_mean(chosen.noise).values
            sentences.append(f"{approach.capitalize()}, {quantity}: {within_sentence(widths, errors, noise)}")
    limit = geometric_mean(dataset.error.sel(reference="exact", approach="gaussian process", quantity="mean")).values
    sentences.append(
        f"At fixed P/N the Gaussian process does not become right with width: its mean is off by {percent(limit[0])} "
        f"at N = {widths[0]} and by {percent(limit[-1])} at N = {widths[-1]}."
    )
    return " ".join(sentences)


def within_sentence(widths: np.ndarray, errors: np.ndarray, noise: np.ndarray, level: float = LEVEL) -> str:
    """From which width on an error is within the level, in words, and what Monte-Carlo noise leaves of that.

    Example:
        >>> import numpy as np
        >>> within_sentence(np.array([10, 1000]), np.array([0.1, 0.001]), np.array([1e-4, 1e-4]))
        'within 1 % of the exact one from about N = 100 on.'
    """
    limit = f"{100 * level:g} %"
    found = width_within(widths, errors, level)
    # At or under twice the noise an error is not told from none.
    hidden = errors <= 2 * noise
    if found is None:
        text = f"not within {limit} of the exact one up to N = {widths[-1]} ({percent(errors[-1])} there)"
    elif found == widths[0]:
        text = f"within {limit} of the exact one at every width from N = {widths[0]} on"
    else:
        # Where the last error over the level is noise, the crossing is that of the noise, and only bounds the width.
        bound = "at the latest " if hidden[np.flatnonzero(widths < found)[-1]] else ""
        digits = -int(np.floor(np.log10(found))) + 1
        text = f"within {limit} of the exact one {bound}from about N = {round(found, digits):g} on"
    if hidden.any():
        text += f"; not told from the Monte-Carlo noise at N = {', '.join(str(width) for width in widths[hidden])}"
        text += f", where that is up to {percent(noise[hidden].max())}"
    return text + "."


def _sampled_seen(dataset: xr.Dataset) -> str:
    chosen = dataset.sel(reference="sampled", quantity="mean")
    errors, noises = geometric_mean(chosen.error), geometric_mean(chosen.noise)
    sentences = []
    for width in dataset.width.values:
        error, noise = (float(values.sel(approach="exact", width=width)) for values in (errors, noises))
        if np.isfinite(error):
            verdict = "no difference is seen" if error <= 2 * noise else "more than noise explains"
            sentences.append(
                f"At N = {width} the means of exact posterior and sampled networks differ by {percent(error)}, where "
                f"noise alone would show {percent(noise)}: {verdict}."
            )
    return " ".join(sentences)


def _seen(chosen: xr.Dataset) -> list[str]:
    return [str(name) for name in chosen.approach.values if np.isfinite(chosen.error.sel(approach=name)).any()]


def _entry(chosen: xr.Dataset, approach: str, width: int) -> str:
    one = chosen.sel(approach=approach, width=width)
    error, noise = (float(geometric_mean(one[name])) for name in ("error", "noise"))
    return "" if np.isnan(error) else f"{percent(error)} ± {percent(noise)}"


def _markov_table(dataset: xr.Dataset, reference: str) -> str:
    header, columns = ["N = P"], []
    for quantity in QUANTITIES[:2]:
        chosen = dataset.sel(reference=reference, quantity=quantity)
        for name in _seen(chosen):
            header.append(f"{approach_label(name)}, {'mean' if quantity == 'mean' else 's.d.'}")
            columns.append((chosen, name))
    rows = [[str(width), *(_entry(chosen, name, width) for chosen, name in columns)] for width in dataset.width.values]
    rows = [row for row in rows if any(row[1:])]
    caption = f"Error against {reference if reference == 'exact' else 'sampled networks'} ± Monte-Carlo noise."
    return page.table(header, rows, caption)


def _one_path_table(dataset: xr.Dataset) -> str:
    header = ["N = P", *(f"{approach_label(name)}, mean" for name in _THEORIES)]
    header += [f"{name}, log evidence" for name in _THEORIES[1:]]
    rows = []
    for width in dataset.width.values:
        at = dataset.sel(width=width)
        means = [percent(float(geometric_mean(at.error.sel(approach=name, quantity="mean")))) for name in _THEORIES]
        evidence = [f"{float(geometric_mean(at.evidence_error.sel(approach=name))):.2g}" for name in _THEORIES[1:]]
        rows.append([str(width), *means, *evidence])
    return page.table(header, rows, "Relative error of the mean; absolute error of the log evidence.")


def _cost_table(dataset: xr.Dataset) -> str:
    names = [str(name) for name in dataset.approach.values]
    seconds = dataset.seconds.mean("seed")
    rows = []
    for width in dataset.width.values:
        values = [float(seconds.sel(approach=name, width=width)) for name in names]
        rows.append([str(width), *("" if np.isnan(value) else duration(value) for value in values)])
    return page.table(["N = P", *map(approach_label, names)], rows)


def _warnings(dataset: xr.Dataset, config: WidthConvergenceConfig) -> list[str]:
    """What must be known before the numbers are used: chains that did not mix, approaches that did not apply."""
    texts = []
    for name in REFERENCES:
        there = np.isfinite(dataset.seconds.sel(approach=name))
        bad = there & ~dataset.mixed.sel(approach=name).astype(bool)
        if bad.any():
            where = ", ".join(f"N = {int(width)}" for width in dataset.width.values[bad.any("seed").values])
            texts.append(
                f"Of {name}, {int(bad.sum())} of {int(there.sum())} points had chains that did not mix ({where})."
            )
    for name in _THEORIES[1:]:
        absent = np.isnan(dataset.seconds.sel(approach=name))
        if absent.any():
            where = ", ".join(f"N = {int(width)}" for width in dataset.width.values[absent.any("seed").values])
            texts.append(f"{name.capitalize()} was left out at {int(absent.sum())} points ({where}): it did not apply.")
    return texts


def _write_tables(markov: xr.Dataset, one_path: xr.Dataset, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with csv_writer(out / "errors.csv") as writer:
        writer.writerow(["width", "seed", "reference", "approach", "quantity", "error", "noise"])
        axes = ("width", "seed", "reference", "approach", "quantity")
        errors, noises = markov.error.transpose(*axes), markov.noise.transpose(*axes)
        names = [markov[axis].values.tolist() for axis in axes]
        for row, error, noise in zip(itertools.product(*names), errors.values.flat, noises.values.flat, strict=True):
            if np.isfinite(error):
                writer.writerow([*row, f"{error:.6g}", f"{noise:.6g}"])
    with csv_writer(out / "one_path.csv") as writer:
        writer.writerow(["width", "data_set", "approach", *QUANTITIES, "log_evidence"])
        axes = ("width", "seed", "approach")
        names = [one_path[axis].values.tolist() for axis in axes]
        errors = one_path.error.transpose(*axes, "quantity").values.reshape(-1, len(QUANTITIES))
        evidences = one_path.evidence_error.transpose(*axes).values.ravel()
        for row, error, evidence in zip(itertools.product(*names), errors, evidences, strict=True):
            writer.writerow([*row, *(f"{value:.6g}" for value in [*error, evidence])])


def _sampled_where(config: WidthConvergenceConfig) -> str:
    if not config.sampled_widths:
        return "at no width"
    return "at N = " + ", ".join(str(width) for width in config.sampled_widths)


def percent(fraction: float) -> str:
    """A fraction in % with two digits, however small.

    Example:
        >>> percent(0.0123), percent(3.4e-7)
        ('1.2 %', '0.000034 %')
    """
    if not np.isfinite(fraction):
        return "unknown"
    value = 100 * fraction
    digits = 0 if value == 0 else max(0, 1 - int(np.floor(np.log10(abs(value)))))
    return f"{value:.{digits}f} %"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")

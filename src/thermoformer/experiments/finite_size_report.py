"""Finite size put on paper: |Δm| against N, the fitted power, both forms side by side, and the page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import xarray as xr

from .. import figures
from .._files import csv_writer
from . import page
from .finite_size import FiniteSizeConfig, fitted_power
from .paper_dynamics import PAPER

# One run each of the paper's system, N to root-mean-square over t ≤ 10 of max_a |Δm|, at β = 1.27.
REFERENCE = {99: 0.356, 990: 0.074, 9900: 0.014, 99_000: 0.0064}

_WHAT = (
    "The mean-field map is exact for infinitely many bits per token. A network of N bits draws each bit at random, so "
    "that its overlaps fluctuate by about N^−1/2 and drift away from the map. Here both start from the same token, and "
    "the distance is the root-mean-square over the first {steps} steps of the largest |Δm| of the {features} overlaps; "
    "points are means over {copies} independent networks, bars standard errors."
)
_COUNTS = (
    "Bits that all features see alike are exchangeable, so that only how many of them are + matters: one binomial "
    "number per class and step is the same law as N bits, at a cost that does not grow with N. Where it can be paid, "
    "the plain network, bit by bit, is beside it: z is the difference of the two means over its standard error."
)


def write_report(dataset: xr.Dataset, config: FiniteSizeConfig, out: Path) -> Path:
    """The figure (PNG and SVG), the table (CSV) and the page into a folder; returns the path of the page."""
    out.mkdir(parents=True, exist_ok=True)
    figure, axes = figures.figure_grid(size=(5.6, 4.2))
    figures.finite_size_scaling(dataset, axes[0, 0])
    image = figures.save(figure, out / "finite_size")[0]
    slope, error, chi_squared = power_of(dataset, config)
    scores = z_scores(dataset)
    _write_table(dataset, scores, out / "finite_size.csv")
    first, last = config.fit_from, config.bits[-1]
    decades = np.log10(last / min(bits for bits in config.bits if bits >= first))
    parts = [
        page.paragraph(_WHAT.format(steps=config.steps, features=3, copies=config.copies)),
        page.figure(
            image,
            "Distance of a network from its mean field against the number of bits. Circles: counts per class; squares: "
            f"every bit drawn; the line has the slope −1/2 and goes through the points from N = {first} on.",
            alternative="Distance from the mean field against N on logarithmic axes",
        ),
        page.heading("The power of N"),
        page.paragraph(
            f"Over {decades:.1f} decades, from N = {first} to {last}, the distance goes as N to the power "
            f"{_minus(f'{slope:.4f}')} ± {error:.4f} (weighted fit, χ² per degree of freedom {chi_squared:.2f}); "
            f"−1/2 is {abs(slope + 0.5) / error:.1f} standard errors away. Below N = {first} the distance is not small "
            "and not yet a power: the map folds, attention jumps from one token to another, and in the end overlaps "
            "cannot be further apart than the attractor is wide." + _one_more(dataset, config)
        ),
        _size_table(dataset, scores),
        page.heading("Two ways to draw the same network"),
        page.paragraph(_COUNTS),
    ]
    return page.write_page(
        out / "finite_size.html",
        "Finite size: how many bits make a mean field",
        "A network of N bits keeps to its mean field within N^−1/2, over many decades of N.",
        parts,
        f"Features of the paper, β = {config.beta:g}, γ = {config.gamma:g}, ε = {config.epsilon:g}; start: the first "
        f"pattern of o. Seed {config.seed}. Data: finite_size.nc; table: finite_size.csv; figure: PNG and SVG, all "
        f"beside this page. System: {PAPER}.",
    )


def _one_more(dataset: xr.Dataset, config: FiniteSizeConfig) -> str:
    """The same fit with one smaller N: how much its range matters."""
    smaller = [bits for bits in config.bits if bits < config.fit_from]
    if not smaller:
        return ""
    slope, error, chi_squared = power_of(dataset, dataclasses.replace(config, fit_from=smaller[-1]))
    return (
        f" Fitted from N = {smaller[-1]} on, the power is {_minus(f'{slope:.4f}')} ± {error:.4f} with χ² per degree of "
        f"freedom {chi_squared:.2f}: a measure of what the choice of the range does."
    )


def power_of(dataset: xr.Dataset, config: FiniteSizeConfig) -> tuple[float, float, float]:
    """The fitted power of N from `fit_from` on: slope, standard error, χ² per degree of freedom."""
    one = dataset.sel(form="classes")
    chosen = one.isel(bits=one.bits.values >= config.fit_from)
    return fitted_power(chosen.bits.values.astype(float), chosen.error.values, chosen.standard_error.values)


def z_scores(dataset: xr.Dataset) -> np.ndarray:
    """Difference of the two forms' means over its standard error, [bits]; nan where one was not run."""
    classes, bits = dataset.sel(form="classes"), dataset.sel(form="bits")
    error = np.sqrt(classes.standard_error.values**2 + bits.standard_error.values**2)
    return (bits.error.values - classes.error.values) / error


def _size_table(dataset: xr.Dataset, scores: np.ndarray) -> str:
    rows = []
    for number, bits in enumerate(dataset.bits.values.tolist()):
        means = []
        for form in ("classes", "bits"):
            one = dataset.sel(form=form, bits=bits)
            value, error = float(one.error), float(one.standard_error)
            means.append("" if np.isnan(value) else f"{value:.4g} ± {error:.1g}")
        z = "" if np.isnan(scores[number]) else _minus(f"{scores[number]:+.1f}")
        scaled = float(dataset.error.sel(form="classes", bits=bits)) * np.sqrt(bits)
        rows.append([str(bits), *means, z, f"{scaled:.3g}", f"{REFERENCE.get(bits, '')}"])
    header = ["N", "counts per class", "every bit", "z", "√N |Δm|", "one run, published"]
    return page.table(header, rows, quiet=(5,))


def _write_table(dataset: xr.Dataset, scores: np.ndarray, file: Path) -> None:
    with csv_writer(file) as writer:
        writer.writerow(["form", "bits", "error", "standard_error", "z"])
        for form in dataset.form.values.tolist():
            for number, bits in enumerate(dataset.bits.values.tolist()):
                one = dataset.sel(form=form, bits=bits)
                if np.isfinite(float(one.error)):
                    z = "" if form == "classes" or np.isnan(scores[number]) else f"{scores[number]:.3f}"
                    writer.writerow([form, bits, f"{float(one.error):.6g}", f"{float(one.standard_error):.3g}", z])


def _minus(text: str) -> str:
    return text.replace("-", "−")

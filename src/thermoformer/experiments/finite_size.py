"""The finite network against its mean field (experiments §5): config to data; `finite_size_report` makes the page."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

from .._progress import Progress, silent
from .._validation import fail, nonnegative_integer, positive_integer
from ..dynamics import Features, FiniteNetwork, orbit
from . import store
from .paper_dynamics import EPSILON, GAMMA, check_numbers, paper_model
from .sampled import whole_key

FORMS = ("classes", "bits")


@dataclass(frozen=True)
class FiniteSizeConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        bits: N, by class counts, which cost the same at any N.
        plain_bits: those of them where the plain network, bit by bit, runs too.
        copies: independent runs at each N.
        seed: all random numbers follow from it.
        beta, gamma, epsilon: parameters of the network.
        steps: tokens after the first that are compared.
        fit_from: the power of N is fitted from this N on: at 99 000 √N |Δm| is still some per cent above its limit.

    Example:
        >>> FiniteSizeConfig().bits[:3]
        (99, 990, 9900)
    """

    bits: tuple[int, ...] = tuple(99 * 10**power for power in range(10))
    plain_bits: tuple[int, ...] = (99, 990, 9900)
    copies: int = 4000
    seed: int = 0
    beta: float = 1.27
    gamma: float = GAMMA
    epsilon: float = EPSILON
    steps: int = 10
    fit_from: int = 990_000

    def __post_init__(self) -> None:
        for name in ("copies", "steps", "fit_from"):
            positive_integer(name, getattr(self, name))
        if self.copies < 2:
            raise fail("copies", self.copies, "2 or more, for a standard error")
        nonnegative_integer("seed", self.seed)
        if not self.bits or list(self.bits) != sorted({positive_integer("bits", number) for number in self.bits}):
            raise fail("bits", self.bits, "at least one number, in ascending order")
        if not set(self.plain_bits) <= set(self.bits):
            raise fail("plain_bits", self.plain_bits, f"some of {self.bits}")
        if sum(number >= self.fit_from for number in self.bits) < 2:
            raise fail("fit_from", self.fit_from, "two or more of the bits from there on")
        check_numbers(self, ("beta", "gamma", "epsilon"))

    @classmethod
    def quick(cls, seed: int = 0) -> FiniteSizeConfig:
        """The small size: fewer copies."""
        return cls(copies=256, seed=seed)

    @property
    def config_hash(self) -> str:
        """Equal for configs whose points have the same numbers, so that sizes can be added to a run."""
        return store.fingerprint(self, apart_from=("bits", "plain_bits", "fit_from"))


def run(out: Path, *, quick: bool = False, seed: int = 0, progress: Progress | None = None) -> Path:
    """The experiment at its usual or quick size; returns the path of its page (see `Experiment.run`)."""
    config = FiniteSizeConfig.quick(seed) if quick else FiniteSizeConfig(seed=seed)
    return run_finite_size(config, out, progress=progress)


def run_finite_size(config: FiniteSizeConfig, out: str | Path, *, progress: Progress | None = None) -> Path:
    """Data, figure, table and page of the experiment into a folder; returns the path of the page."""
    from .finite_size_report import write_report  # matplotlib is slow to import: only when something is drawn

    out, progress = Path(out), progress or silent
    dataset = finite_size_data(config, file=out / "finite_size.nc", progress=progress)
    total = len(config.bits) + len(config.plain_bits)
    progress(total, total, "figure and page")
    page = write_report(dataset, config, out)
    progress(total, total, "done")
    return page


def finite_size_data(
    config: FiniteSizeConfig, *, file: str | Path | None = None, progress: Progress | None = None
) -> xr.Dataset:
    """How far networks are from the mean field.

    Arguments:
        file: a netCDF file to keep finished points (one N, one form) in and to go on from.
        progress: called as progress(done, total, message).

    Returns:
        A Dataset [form, bits]: `distance` of every copy, `error`, its mean over copies, `standard_error`, and
        `by_step`, the root-mean-square over copies at every step. What was not asked for is nan.
    """
    progress = progress or silent
    found = store.load(Path(file), config.config_hash) if file is not None else None
    asked = [("classes", bits) for bits in config.bits] + [("bits", bits) for bits in config.plain_bits]
    for number, (form, bits) in enumerate(asked):
        if found is not None and ((found.form_of == form) & (found.bits_of == bits)).any():
            continue
        progress(number, len(asked), f"N = {bits}, {'counts per class' if form == 'classes' else 'every bit'}")
        distance = distances(config, bits, form)
        one = xr.Dataset({"distance": (("point", "copy", "step"), distance[None])})
        one = one.assign(form_of=("point", [form]), bits_of=("point", [bits]))
        found = one if found is None else xr.concat([found, one], "point", combine_attrs="override")
        if file is not None:
            store.save(found, Path(file), config.config_hash)
    assert found is not None  # there is at least one point
    return _table(found, config)


def distances(config: FiniteSizeConfig, bits: int, form: str) -> np.ndarray:
    """max_a |Δm_a| of the semantic overlaps with o, [copy, step], steps 1, 2, ... after the first token."""
    model = paper_model(config.beta, config.gamma, config.epsilon)
    # The finite network keeps its first token in the window; so does the mean field here.
    limit = orbit(model, model.token(keep=True), steps=config.steps + 1).m_o / (1 - config.epsilon)
    network = FiniteNetwork(Features.paper(), config.beta, config.gamma, config.epsilon, bits=bits)
    key = whole_key(config.seed, FORMS.index(form), bits % 2**32, bits // 2**32)
    # Copies of many bits come a few at a time: a hundred million bits at once are enough memory.
    some = config.copies if form == "classes" else max(10**7 // bits, 1)
    rows = []
    for start in range(0, config.copies, some):
        count = min(some, config.copies - start)
        found = network.run(config.steps + 1, copies=count, key=whole_key(key, start), form=form)
        rows.append(np.abs(found.m_o_semantic - limit[None]).max(axis=2)[:, 1:])
    return np.concatenate(rows)


def _table(points: xr.Dataset, config: FiniteSizeConfig) -> xr.Dataset:
    shape = (len(FORMS), len(config.bits))
    each = np.full((*shape, config.copies), np.nan)
    by_step = np.full((*shape, config.steps), np.nan)
    for form, bits, distance in zip(points.form_of.values, points.bits_of.values, points.distance.values, strict=True):
        if int(bits) in (config.bits if form == "classes" else config.plain_bits):
            place = FORMS.index(str(form)), config.bits.index(int(bits))
            each[place] = np.sqrt(np.mean(distance**2, axis=1))
            by_step[place] = np.sqrt(np.mean(distance**2, axis=0))
    axes = ("form", "bits")
    return xr.Dataset(
        {
            "distance": ((*axes, "copy"), each, {"long_name": "root-mean-square over steps of max_a |Δm|, by copy"}),
            "error": (axes, each.mean(axis=2), {"long_name": "mean over copies of the distance"}),
            "standard_error": (axes, each.std(axis=2, ddof=1) / np.sqrt(config.copies)),
            "by_step": ((*axes, "step"), by_step, {"long_name": "root-mean-square over copies of max_a |Δm|"}),
        },
        {"form": list(FORMS), "bits": list(config.bits), "step": np.arange(1, config.steps + 1)},
        {"title": "Finite size", "fit_from": config.fit_from, "config": json.dumps(dataclasses.asdict(config))},
    )


def fitted_power(bits: np.ndarray, error: np.ndarray, standard_error: np.ndarray) -> tuple[float, float, float]:
    """The power of N by weighted least squares on logarithms: slope, its standard error, χ² per degree of freedom.

    Example:
        >>> slope, _, _ = fitted_power(np.array([1e2, 1e4, 1e6]), np.array([0.1, 0.01, 0.001]), np.full(3, 1e-5))
        >>> round(slope, 6)
        -0.5
    """
    x, y, weight = np.log(bits), np.log(error), (error / standard_error) ** 2
    centre = np.average(x, weights=weight)
    spread = np.sum(weight * (x - centre) ** 2)
    slope = float(np.sum(weight * (x - centre) * y) / spread)
    rest = y - np.average(y, weights=weight) - slope * (x - centre)
    return slope, float(1 / np.sqrt(spread)), float(np.sum(weight * rest**2) / max(len(x) - 2, 1))

"""The Dynamics view: what a reader chooses, and the numbers of the orbit that follows (dynamics §2, §3)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import xarray as xr

from .._validation import fail, nonnegative_integer, nonnegative_number, one_of, real_array
from ..dynamics import (
    Features,
    MeanField,
    Orbit,
    Regime,
    Window,
    fluctuations,
    iterate,
    orbit,
    power_spectrum,
    regime,
)
from .links import LARGEST_SEED, set_field, whole_within
from .work import compiled, dynamics_lock

FEATURE_SETS, CONTEXTS = ("paper", "random", "table"), (2, 4, 8, 16)
ROLES = {"o": "output", "v": "value", "q": "query", "k": "key"}
# A table beyond these would compute for longer than a reader waits.
MOST_FEATURES, MOST_COLUMNS, MOST_POSITIONAL_BITS, MOST_HEADS, LONGEST_TABLE = 6, 64, 4, 4, 20_000
HIGHEST_BETA = 20.0
POSITIONAL_COLUMNS = 2
# Bits of the network whose fluctuations are drawn around the orbit; 0 for none.
BANDS = (0, 10**4, 10**6, 10**8, 10**10)
# Steps of the orbit that its figure shows.
SHOWN_STEPS = 120
# Steps before the orbit that is kept, those kept, those that the quick look averages over, and its longest period.
TRANSIENT, KEPT, QUICK_STEPS, LONGEST_PERIOD, SEGMENT = 20_000, 4_096, 16_000, 1_024, 1_024
# A series that moves by no more than rounding has no frequency.
STILL = 1e-12


@dataclass(frozen=True)
class DynamicsChoice:
    """Everything that decides what the view shows.

    Arguments:
        features: "paper", "random" (independent fair signs), or "table".
        table: the reader's own signs, as `features_from_table` takes them; read for "table" only.
        feature_count, bits, feature_seed: M, semantic bits and seed of random features, which have two positional bits.
        beta, gamma, epsilon: the parameters of the network.
        context: L, one of `CONTEXTS`; positions repeat beyond those that the positional bits can count.
        role, component: the magnetisation that is shown, m_o, m_v, m_q or m_k, and its component, from 1; with several
            heads the components of v, q and k are counted head by head.
        against: the component on the vertical axis of the phase plane; 0 for the same one, one step later.
        start: seed of the window that the orbit begins from.
        band: N, one of `BANDS`: a band around the orbit shows where a network of N bits is.
        between: lowest and highest β of the orbit diagram.

    Example:
        >>> choice = DynamicsChoice(beta=1.28)
        >>> choice.symbol, choice.components
        ('m_o,1', 3)
    """

    features: str = "paper"
    table: str = ""
    feature_count: int = 3
    bits: int = 3
    feature_seed: int = 14
    beta: float = 1.4
    gamma: float = 220.0
    epsilon: float = 0.02
    context: int = 4
    role: str = "o"
    component: int = 1
    against: int = 2
    start: int = 0
    band: int = 0
    between: tuple[float, float] = (1.2, 2.6)

    def __post_init__(self) -> None:
        one_of("features", self.features, FEATURE_SETS)
        one_of("role", self.role, tuple(ROLES))
        for name, lowest, highest in (
            ("feature_count", 1, MOST_FEATURES),
            ("bits", 1, MOST_COLUMNS),
            ("feature_seed", 0, LARGEST_SEED),
            ("start", 0, LARGEST_SEED),
        ):
            whole_within(name, getattr(self, name), lowest, highest)
        for name in ("beta", "gamma", "epsilon"):
            set_field(self, name, nonnegative_number(name, getattr(self, name)))
        if self.context not in CONTEXTS:
            raise fail("context", repr(self.context), "one of " + ", ".join(map(str, CONTEXTS)))
        if self.band not in BANDS:
            raise fail("band", repr(self.band), "one of " + ", ".join(map(str, BANDS)))
        ends = real_array("between", self.between, ("end",))
        if ends.shape != (2,) or not 0 <= ends[0] < ends[1] <= HIGHEST_BETA:
            raise fail("between", self.between, f"a lower and a higher β, from 0 to {HIGHEST_BETA:g}")
        set_field(self, "between", (float(ends[0]), float(ends[1])))
        model_of(self)  # the model has checks of its own
        whole_within("component", self.component, 1, self.components)
        whole_within("against", self.against, 0, self.components)

    @classmethod
    def nearest(cls, **fields: Any) -> Self:
        """The choice with these fields, its components brought into range, and ε = 0 for features without positions.

        So a reader can choose features with fewer components.

        Example:
            >>> DynamicsChoice.nearest(features="random", feature_count=2, component=3).component
            2
        """
        names = ("features", "table", "feature_count", "bits", "feature_seed")
        asked: dict[str, Any] = vars(cls()) | fields
        plain = cls(component=1, against=0, epsilon=0.0, **{name: asked[name] for name in (*names, "role")})
        for name, lowest in (("component", 1), ("against", 0)):
            asked[name] = int(np.clip(nonnegative_integer(name, asked[name]), lowest, plain.components))
        if not features_of(plain).positional_bits:
            asked["epsilon"] = 0.0
        return cls(**asked)

    @property
    def components(self) -> int:
        """How many components the magnetisation has."""
        features = features_of(self)
        return features.count * (1 if self.role == "o" else features.heads)

    @property
    def symbol(self) -> str:
        """The chosen magnetisation as it is written on axes."""
        return f"m_{self.role},{self.component}"


@dataclass(frozen=True, eq=False)
class DynamicsPicture:
    """What the view shows of one orbit; arrays are read-only.

    Fields:
        choice: what was chosen.
        values: [step, component], the magnetisation after the transient.
        spectrum: [frequency], that of the chosen component, in cycles per step.
        peak: the frequency with most power; NaN if the component does not move.
        verdict: the quick look at regime and exponents.
        spread: [shown step, component], two standard deviations of a network of `choice.band` bits; None without band.
    """

    choice: DynamicsChoice
    values: np.ndarray
    spectrum: xr.DataArray
    peak: float
    verdict: Regime
    spread: np.ndarray | None = None

    @property
    def series(self) -> np.ndarray:
        """The chosen component, [step]."""
        return self.values[:, self.choice.component - 1]

    @property
    def plane(self) -> tuple[np.ndarray, np.ndarray]:
        """Points of the phase plane, across and upwards, [point]."""
        if not self.choice.against:
            return self.series[:-1], self.series[1:]
        return self.series, self.values[:, self.choice.against - 1]


def features_from_table(text: str) -> Features:
    """Features from a reader's own signs, one line per pattern, as `Features.from_table` takes them; never a path."""
    if len(text) > LONGEST_TABLE:
        raise fail("table", f"{len(text)} characters", f"at most {LONGEST_TABLE}")
    lines = text.strip().splitlines()
    if len(lines) < len(ROLES):
        raise fail("table", f"{len(lines)} lines", "a line per pattern, at least one each of o, v, q and k")
    features = Features.from_table(plain_lines(text))
    columns = 0 if features.fractions is None else len(features.fractions)
    for what, count, most in (
        ("features", features.count, MOST_FEATURES),
        ("semantic columns", columns, MOST_COLUMNS),
        ("positional bits", features.positional_bits, MOST_POSITIONAL_BITS),
        ("heads", features.heads, MOST_HEADS),
    ):
        if count > most:
            raise fail("table", f"{count} {what}", f"at most {most}")
    return features


def plain_lines(table: str) -> str:
    """The table with plain ends of lines: the library takes text without any for the path of a file."""
    return "\n".join([*table.strip().splitlines(), ""])


def table_text(table: Any) -> str:
    """An array of signs ±1 [pattern, bit] as the text that a choice carries.

    Patterns of o come first, then as many of v, q and k. The last two columns are positional.

    Example:
        >>> print(table_text([[1, -1, 1], [-1, -1, 1], [1, 1, -1], [-1, 1, 1]]))
        o +|-+
        v -|-+
        q +|+-
        k -|++
    """
    signs = real_array("table", table, ("pattern", "bit"))
    if signs.size > LONGEST_TABLE:
        raise fail("table", f"shape {signs.shape}", f"at most {LONGEST_TABLE} signs")
    if (wrong := np.abs(signs) != 1).any():
        row, column = (int(number) + 1 for number in np.argwhere(wrong)[0])
        raise fail("table", f"{signs[wrong][0]:.6g} in row {row}, column {column}", "entries +1 and −1 only")
    if len(signs) % len(ROLES):
        raise fail("table", f"{len(signs)} rows", "a multiple of 4: as many patterns of o as of v, q and k")
    if signs.shape[1] <= POSITIONAL_COLUMNS:
        raise fail(
            "table", f"{signs.shape[1]} columns", f"{POSITIONAL_COLUMNS + 1} or more: the last two are positional"
        )
    roles = np.repeat(list(ROLES), len(signs) // len(ROLES))
    rows = ["".join("+" if sign > 0 else "-" for sign in row) for row in signs]
    lines = zip(roles, rows, strict=True)
    return "\n".join(f"{role} {row[:-POSITIONAL_COLUMNS]}|{row[-POSITIONAL_COLUMNS:]}" for role, row in lines)


def features_of(choice: DynamicsChoice) -> Features:
    """The chosen features."""
    return _features(choice.features, choice.table, choice.feature_count, choice.bits, choice.feature_seed)


@lru_cache(maxsize=128)
def _features(kind: str, table: str, count: int, bits: int, seed: int) -> Features:
    if kind == "random":
        return Features.random(bits, count, key=seed)
    return features_from_table(table) if kind == "table" else Features.paper()


def model_of(choice: DynamicsChoice) -> MeanField:
    """The mean-field map of a choice.

    Example:
        >>> model_of(DynamicsChoice(context=8)).positions[:, 1].astype(int).tolist()
        [-1, 1, -1, 1, -1, 1, -1, 1]
    """
    features, positions = features_of(choice), None
    # Without positional bits there is nothing to repeat.
    if 1 < (period := 2**features.positional_bits) < choice.context:
        positions = np.tile(MeanField(features, 1.0, 1.0, 0.0).positions, (choice.context // period, 1))
    return MeanField(features, choice.beta, choice.gamma, choice.epsilon, choice.context, positions)


def start_of(choice: DynamicsChoice) -> Window:
    """The window that the orbit begins from; it does not depend on β, so that a diagram has one start for all."""
    model = model_of(choice)
    shape = (choice.context, model.features.count)
    return model.window(np.random.default_rng(choice.start).uniform(-0.5, 0.5, shape))


def compiles(choice: DynamicsChoice) -> bool:
    """Whether the picture of a choice needs a program of a new size, which takes seconds to compile.

    Example:
        >>> choice = DynamicsChoice(beta=1.0)
        >>> picture = picture_of(choice)
        >>> compiles(dataclasses.replace(choice, beta=1.1)), compiles(dataclasses.replace(choice, context=16))
        (False, True)
    """
    return _sizes(choice) not in compiled


def _sizes(choice: DynamicsChoice) -> tuple[int, ...]:
    model = model_of(choice)
    features = model.features
    # Positions play no part where ε is 0, which makes another program.
    sizes = features.count, features.heads, features.classes, choice.context, len(model.positions), choice.epsilon > 0
    return (*sizes, choice.band > 0)


@lru_cache(maxsize=64)
def picture_of(choice: DynamicsChoice) -> DynamicsPicture:
    """The orbit of a choice after a transient, its spectrum, and a quick look at its regime.

    Arguments:
        choice: what to show.

    Example:
        >>> picture = picture_of(DynamicsChoice(beta=1.0))
        >>> picture.values.shape, picture.verdict.name, picture.verdict.period
        ((4096, 3), 'periodic', 4)
    """
    path, verdict = _computed(computed_choice(choice))
    values = getattr(path, f"m_{choice.role}").reshape(KEPT, -1)
    series = values[:, choice.component - 1]
    spectrum = power_spectrum(series, segment=SEGMENT)
    # Not by `idxmax` of xarray, which takes longer than all else here.
    largest = 1 + np.argmax(spectrum.values[1:])
    peak = float(spectrum.frequency.values[largest]) if np.ptp(series) > STILL else np.nan
    spread = _spread(computed_choice(choice), choice.band, choice.role) if choice.band else None
    for array in (values, spectrum.values, verdict.exponents, verdict.errors):
        array.setflags(write=False)
    return DynamicsPicture(choice, values, spectrum, peak, verdict, spread)


def computed_choice(choice: DynamicsChoice) -> DynamicsChoice:
    """The choice as far as its orbit depends on it: what is looked at changes nothing of what is computed.

    Example:
        >>> computed_choice(DynamicsChoice(role="v", component=2)) == computed_choice(DynamicsChoice())
        True
    """
    return dataclasses.replace(choice, role="o", component=1, against=0, band=0, between=(0.0, 1.0))


@lru_cache(maxsize=32)
def _computed(choice: DynamicsChoice) -> tuple[Orbit, Regime]:
    model, start = model_of(choice), start_of(choice)
    with dynamics_lock:
        path = orbit(model, start, steps=KEPT, transient=TRANSIENT)
    # Other sessions may compute in between.
    with dynamics_lock:
        verdict = regime(
            model,
            start,
            steps=QUICK_STEPS,
            transient=TRANSIENT,
            k=exponents_of(model),
            longest_period=LONGEST_PERIOD,
        )
    compiled.add(_sizes(choice))
    return path, verdict


@lru_cache(maxsize=32)
def _spread(choice: DynamicsChoice, bits: int, role: str) -> np.ndarray:
    """Two standard deviations [step, component] of networks of N bits that follow the orbit from its first step on."""
    model = model_of(choice)
    with dynamics_lock:
        begun = iterate(model, start_of(choice), TRANSIENT)
        found = fluctuations(model, begun, SHOWN_STEPS)
    compiled.add(_sizes(dataclasses.replace(choice, band=bits)))
    spread = 2 * found.deviation(bits, role)
    spread.setflags(write=False)
    return spread


def exponents_of(model: MeanField) -> int:
    """How many exponents the view computes: two, or as many as there are."""
    return min(2, model.dimension)


def confidence_of(verdict: Regime) -> str:
    """How far a verdict can be trusted, in words.

    Example:
        >>> confidence_of(picture_of(DynamicsChoice(beta=1.0)).verdict)
        'firm: the state returns exactly'
    """
    if verdict.name in ("fixed point", "periodic"):
        return "firm: the state returns exactly"
    if verdict.name == "quasi-periodic":
        return "likely: a very slow or very long cycle looks the same"
    if verdict.name == "undecided":
        return "open: a longer look may tell"
    return f"chaos for {verdict.steps:,} steps: it can still end later".replace(",", " ")

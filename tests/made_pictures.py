"""Stand-ins for parts of the explorer: pictures that nothing was computed for, and the address of a page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import xarray as xr

from thermoformer.app.dynamics_view import KEPT, DynamicsChoice, DynamicsPicture
from thermoformer.app.learning_view import Curve, LearningPicture, Limit
from thermoformer.dynamics import Regime, power_spectrum
from thermoformer.learning import Architecture


def made_picture(heads: tuple[tuple[str, ...], ...]) -> LearningPicture:
    """A picture with numbers drawn at random: figures do not ask where theirs come from."""
    generator = np.random.default_rng(0)
    arch = Architecture(tuple(len(layer) for layer in heads), 40)
    root = generator.normal(size=(arch.paths, 2 * arch.paths))
    sequences = generator.normal(size=(25, 40))
    solution: Any = SimpleNamespace(
        architecture=arch, order_parameter=root @ root.T, log_evidence=-40.0, converged=True
    )
    limit: Any = SimpleNamespace(log_evidence=-50.0)
    return LearningPicture(
        data=SimpleNamespace(heads=heads, classes=("−1", "+1")),  # type: ignore[arg-type]
        solution=solution,
        limit=Limit(limit, 0.65, generator.random(25)),
        curve=Curve(np.array([5, 20, 100]), np.array([0.9, 0.8, 0.7]), np.array([False, True, True])),
        kernel=sequences @ sequences.T,
        kernel_labels=np.where(np.arange(25) < 12, -1.0, 1.0),
        overlaps=generator.random(25),
        train_accuracy=1.0,
        test_accuracy=0.75,
    )


def verdict(name: str = "chaos", period: int | None = None, exponents: tuple[float, ...] = (0.14, -0.05)) -> Regime:
    errors = np.where(np.isfinite(exponents), 0.0123, np.nan)
    return Regime(name, period, np.array(exponents), errors, 0.02, 0, "so it is", 36_000)


def wave_picture(choice=None, *, wave: float = 15.5, size: float = 1.0, **more) -> DynamicsPicture:
    """A wave in place of an orbit: nothing is computed here."""
    choice = choice or DynamicsChoice()
    angle = 2 * np.pi * np.arange(KEPT) / wave
    values = size * np.stack([np.cos(angle + number) for number in range(choice.components)], axis=1)
    spectrum = power_spectrum(values[:, choice.component - 1], segment=1024)
    peak = float(spectrum[1:].idxmax()) if size else np.nan
    return DynamicsPicture(choice, values, spectrum, peak, verdict(**more))


def made_diagram() -> xr.Dataset:
    """An orbit diagram whose lower bins no orbit visits."""
    counts = np.random.default_rng(0).multinomial(2000, np.full(160, 1 / 160), 64)
    counts[:, :40] = 0
    exponents = np.stack([np.linspace(-0.1, 0.2, 64), np.full(64, -0.3)], axis=1)
    exponents[3] = -np.inf
    return xr.Dataset(
        {
            "density": (("beta", "value"), counts),
            "exponents": (("beta", "exponent"), exponents),
            "regime": ("beta", np.where(exponents[:, 0] > 0, 3, 1)),
        },
        {"beta": np.linspace(1.2, 2.6, 64), "value": np.linspace(-0.5, 0.5, 160)},
        {"parameter": "beta", "observable": "m_o[0]"},
    )


class Address(dict):
    """Stands for marimo's query parameters, and counts what is sent to the browser."""

    sent = 0

    def set(self, name: str, text: str) -> None:
        self[name] = text
        self.sent += 1

    def remove(self, name: str) -> None:
        del self[name]
        self.sent += 1

"""Stand-ins for parts of the explorer: pictures that nothing was computed for, and the address of a page."""

from __future__ import annotations

import numpy as np

from thermoformer.app.dynamics_view import KEPT, DynamicsChoice, DynamicsPicture
from thermoformer.app.learning_view import LearningPicture
from thermoformer.dynamics import Regime, power_spectrum
from thermoformer.learning import Architecture


def made_picture(heads: tuple[tuple[str, ...], ...]) -> LearningPicture:
    """A picture with numbers drawn at random: figures do not ask where theirs come from."""
    generator = np.random.default_rng(0)
    arch = Architecture(tuple(len(layer) for layer in heads), 40)
    root = generator.normal(size=(arch.paths, 2 * arch.paths))
    order_parameter, sequences = root @ root.T, generator.normal(size=(25, 40))
    return LearningPicture(
        width=40,
        widths=np.array([5, 20, 100]),
        accuracies=np.array([0.9, 0.8, 0.7]),
        curve_converged=np.array([False, True, True]),
        limit_accuracy=0.65,
        limit_log_evidence=-50.0,
        limit_overlaps=generator.random(25),
        heads=heads,
        path_heads=arch.path_heads(),
        path_names=arch.path_names(heads),
        order_parameter=order_parameter,
        path_scores=np.diagonal(order_parameter).copy(),
        kernel=sequences @ sequences.T,
        kernel_labels=np.where(np.arange(25) < 12, -1.0, 1.0),
        classes=("−1", "+1"),
        overlaps=generator.random(25),
        log_evidence=-40.0,
        train_accuracy=1.0,
        test_accuracy=0.75,
        converged=True,
        train_examples=25,
        test_examples=500,
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
    return DynamicsPicture(choice, values, spectrum.frequency.values, spectrum.values, peak, verdict(**more))


class Address(dict):
    """Stands for marimo's query parameters, and counts what is sent to the browser."""

    sent = 0

    def set(self, name: str, text: str) -> None:
        self[name] = text
        self.sent += 1

    def remove(self, name: str) -> None:
        del self[name]
        self.sent += 1

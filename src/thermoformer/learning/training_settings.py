"""How a network is trained: rates, lengths and precision."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax

from .._validation import fail, nonnegative_integer, nonnegative_number, one_of, positive_integer, positive_number
from .network import READOUTS

# Products of float32 numbers: rounded to 11 significant bits first on GPUs that do so faster (sums stay float32).
PRODUCTS = {"float32": jax.lax.Precision.HIGHEST, "tensorfloat32": jax.lax.Precision.DEFAULT}


@dataclass(frozen=True)
class TrainingSettings:
    """How a network is trained: Adam on the mean squared error.

    Arguments:
        steps: batches seen, at most.
        key_size: G, the rows of Q and K of each head.
        readout: "mean", "last" or "first" query position.
        learning_rate: Adam's rate, on weights divided by the root of their fan-in.
        weight_decay: times the weights, added to the gradient before Adam.
        clip: largest norm of the gradient of all weights together; a longer one is cut to it. None cuts nothing.
        warmup: steps over which the rate rises from 0.
        schedule: "cosine" down to 0 at the last step, or "constant".
        scale: standard deviation of the initial V⁰, V and a.
        key_scale: standard deviation of the initial Q and K, times √N0.
        validate_every: steps from one validation to the next.
        patience: validations without a lower loss after which it stops; never where none is given.
        checkpoint_every: steps from one checkpoint to the next.
        precision: "float32"; "tensorfloat32", the mixed precision of GPUs: factors of products rounded to 11 bits,
            sums and master weights in float32; "auto" for the second on a GPU and the first elsewhere.

    Example:
        >>> TrainingSettings(steps=100, key_size=8).learning_rate
        0.001
    """

    steps: int = 41_000
    key_size: int = 128
    readout: str = "mean"
    learning_rate: float = 1e-3
    weight_decay: float = 5e-5
    clip: float | None = 1.0
    warmup: int = 0
    schedule: str = "cosine"
    scale: float = 1.0
    key_scale: float = 0.5
    validate_every: int = 500
    patience: int | None = None
    checkpoint_every: int = 1000
    precision: str = "auto"

    def __post_init__(self) -> None:
        for name in ("steps", "key_size", "validate_every", "checkpoint_every"):
            positive_integer(name, getattr(self, name))
        if nonnegative_integer("warmup", self.warmup) >= self.steps:
            raise fail("warmup", self.warmup, f"fewer than the {self.steps} steps")
        if self.patience is not None:
            positive_integer("patience", self.patience)
        for name in ("learning_rate", "scale", "key_scale", *(() if self.clip is None else ("clip",))):
            positive_number(name, getattr(self, name))
        nonnegative_number("weight_decay", self.weight_decay)
        one_of("readout", self.readout, READOUTS)
        one_of("schedule", self.schedule, ("cosine", "constant"))
        one_of("precision", self.precision, ("auto", *PRODUCTS))

    @property
    def products(self) -> str:
        """The precision that is used on this machine."""
        if self.precision != "auto":
            return self.precision
        return "float32" if jax.default_backend() == "cpu" else "tensorfloat32"


def learning_rate(settings: TrainingSettings, step: int) -> float:
    """The rate of a step, counted from 0: up in a line to the full rate, then constant or down along a cosine to 0.

    Example:
        >>> settings = TrainingSettings(steps=20, warmup=10, learning_rate=1.0)
        >>> [round(learning_rate(settings, step), 2) for step in (0, 5, 10, 15, 20)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if step < settings.warmup:
        return settings.learning_rate * step / settings.warmup
    if settings.schedule == "constant":
        return settings.learning_rate
    turn = math.pi * (step - settings.warmup) / (settings.steps - settings.warmup)
    return settings.learning_rate * (1 + math.cos(turn)) / 2

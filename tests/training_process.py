"""A training to be killed: run as a script with a checkpoint file; the step it is at goes to standard output."""

from __future__ import annotations

import sys
import time

import numpy as np

from thermoformer.learning import Architecture
from thermoformer.networks import Training, TrainingSettings, train

ARCH = Architecture((2, 2), 6)
SETTINGS = TrainingSettings(steps=240, key_size=3, learning_rate=0.01, validate_every=30, checkpoint_every=20)


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Which half of the tokens is larger along the first feature."""
    random = np.random.default_rng([7, number])
    x = random.normal(size=(16, 6, 4))
    y = np.where(np.arange(16) % 2 == 0, 1.0, -1.0)
    x[:, :3, 0] += 2 * y[:, None]
    return x, y


def run(checkpoint: str | None = None, *, slowly: bool = False) -> Training:
    def progress(done: int, total: int, message: str) -> None:
        print(done, flush=True)

    def slow_batch(number: int) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(0.004)  # so that there is a time to be killed at
        return batch(number)

    return train(
        ARCH,
        slow_batch if slowly else batch,
        batch(10**6),
        settings=SETTINGS,
        key=3,
        checkpoint=checkpoint,
        progress=progress,
    )


if __name__ == "__main__":
    run(sys.argv[1], slowly=True)

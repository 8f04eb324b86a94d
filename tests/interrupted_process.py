"""The command with two more subcommands to be interrupted: a program of hours, and one that collects garbage."""

from __future__ import annotations

import gc
import os
import signal
import time

import jax

from thermoformer import cli
from thermoformer._terminal import messages, plain_errors


@cli.app.command()
def compute() -> None:
    with plain_errors(), messages.status("Computing"):
        # Cheap programs are not run in the threads of XLA; products of matrices are.
        steps = jax.jit(lambda x: jax.lax.fori_loop(0, 2**30, lambda _, y: jax.numpy.sin(y @ y), x))
        found = steps(jax.numpy.ones((100, 100)))
        print("computing", flush=True)
        found.block_until_ready()


@cli.app.command()
def collect() -> None:
    send = os.kill

    def lost(process: int, number: int) -> None:
        """The first one sent again comes to nothing, like one just before a sleep begins."""
        os.kill = send

    def interrupted(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            gc.callbacks.remove(interrupted)
            signal.raise_signal(signal.SIGINT)

    with plain_errors():
        os.kill = lost  # type: ignore[assignment]
        gc.callbacks.append(interrupted)
        gc.collect()
        time.sleep(60)


if __name__ == "__main__":
    # What runs in the background is started deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()

"""Where an experiment runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Executor:
    """Where the points of an experiment run; see `thermoformer.sweeps.Sweep.run`.

    Fields:
        name: "local", "processes" or "dask".
        workers: how many processes; as many as cores where absent.
        cluster: address of a dask scheduler.
    """

    name: str = "local"
    workers: int | None = None
    cluster: str | None = None


HERE = Executor()

"""The paper's orbit diagram about the way into chaos, β from 1.24 to 1.28; see `orbit_diagram`."""

from __future__ import annotations

from pathlib import Path

from .._progress import Progress
from .executor import HERE, Executor
from .orbit_diagram import OrbitDiagramConfig, run_orbit_diagram


def run(
    out: Path, *, quick: bool = False, seed: int = 0, executor: Executor = HERE, progress: Progress | None = None
) -> Path:
    """The diagram on [1.24, 1.28] at its usual or quick size (see `Experiment.run`); nothing here is random."""
    config = OrbitDiagramConfig.zoom()
    return run_orbit_diagram(config.quick() if quick else config, out, executor=executor, progress=progress)

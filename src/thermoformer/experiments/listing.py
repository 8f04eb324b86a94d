"""The list of experiments, and where one runs. An experiment is imported when it runs: that is slow."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._progress import Progress
from .._validation import fail

if TYPE_CHECKING:
    from .base import Study


@dataclass(frozen=True)
class Executor:
    """Where the points of an experiment run; see `thermoformer.sweeps.Sweep.run`.

    Fields:
        name: "local", "processes" or "dask".
        workers: how many processes; default: one per core.
        cluster: address of a dask scheduler.
    """

    name: str = "local"
    workers: int | None = None
    cluster: str | None = None


HERE = Executor()


@dataclass(frozen=True)
class Experiment:
    """An experiment as the list shows it; its `Study` is imported on first use.

    Fields:
        name: what it is called on the command line.
        summary: one line on what it shows.
        quick_time: about how long the quick size takes on two cores.
        module: the module of this package with its study.
        variable: the name of its study there.
    """

    name: str
    summary: str
    quick_time: str
    module: str
    variable: str = "STUDY"

    @property
    def study(self) -> Study:
        """What does the work."""
        return getattr(importlib.import_module(f".{self.module}", __package__), self.variable)

    def run(
        self,
        out: str | Path,
        *,
        quick: bool = False,
        seed: int = 0,
        train: bool = False,
        executor: Executor = HERE,
        progress: Progress | None = None,
    ) -> Path:
        """Runs the experiment and returns the path of its page.

        Arguments:
            out: folder for the data, figures and page; made if missing. Points finished there before are kept.
            quick: the small size.
            seed: all random numbers follow from it.
            train: first train a network (into the folder `training` of `out`), for experiments that start from one.
            executor: where its points run.
            progress: called as progress(done, total, message) along the way.
        """
        config, out = self.study.sized(quick, seed), Path(out)
        if train:
            if not hasattr(config, "with_network"):
                raise fail("train", True, f"no such thing: {self.name} does not start from a trained network")
            from .one_shot import training

            network = training.trained_network(out / "training", quick=quick, seed=seed, progress=progress)
            config = config.with_network(*network)
        return self.study.run(config, out, executor=executor, progress=progress)


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            name="markov",
            summary="Hidden-Markov classification: narrow networks find the good attention path, wide ones do not",
            quick_time="about a minute and a half",
            module="markov",
        ),
        Experiment(
            name="one-shot",
            summary="One-shot images, frozen heads of a trained network: which width does best, which paths count",
            quick_time="about two minutes",
            module="one_shot",
        ),
        Experiment(
            name="width-convergence",
            summary="Which width is wide enough: every theory against the exact posterior and sampled networks",
            quick_time="two to three minutes",
            module="width_convergence",
        ),
        Experiment(
            name="teacher",
            summary="Known ground truth: does the theory find a teacher's path weights, and know its own error?",
            quick_time="about two minutes",
            module="teacher",
        ),
        Experiment(
            name="residuals",
            summary="Skips and norms: where the theory of paths is exact, and how far mean-field norms carry",
            quick_time="about three minutes",
            module="residuals",
        ),
        Experiment(
            name="noise",
            summary="Heavy tails, outliers, flipped classes: when the theory with Gaussian noise misleads",
            quick_time="about half a minute",
            module="noise",
        ),
        Experiment(
            name="pruning",
            summary="Heads pruned from a trained network: do the theory's scores say which can go?",
            quick_time="about two minutes",
            module="pruning",
        ),
        Experiment(
            name="trained-networks",
            summary="Several networks trained apart: does the theory find their U, and predict them pruned?",
            quick_time="about three minutes",
            module="trained_networks",
        ),
        Experiment(
            name="learning-curves",
            summary="Theory and gradient descent on the same sequences, with frozen and with learned heads",
            quick_time="about a minute",
            module="learning_curves",
        ),
        Experiment(
            name="attention",
            summary="Attention that learns: when evidence, posterior and gradient descent find the right heads",
            quick_time="about two minutes",
            module="attention",
        ),
        Experiment(
            name="trajectories",
            summary="Attention that reads its own output, at six temperatures: a closed curve, cycles, and chaos",
            quick_time="about half a minute",
            module="trajectories",
        ),
        Experiment(
            name="orbit-diagram",
            summary="Orbit diagram with Lyapunov exponents: attractors of the network for β from 0 to 3",
            quick_time="about half a minute",
            module="orbit_diagram",
        ),
        Experiment(
            name="orbit-diagram-zoom",
            summary="The same diagram at the onset of chaos: β from 1.24 to 1.28",
            quick_time="about 20 seconds",
            module="orbit_diagram",
            variable="ZOOMED",
        ),
        Experiment(
            name="phase-diagram",
            summary="Order and chaos over the temperatures of output and attention",
            quick_time="about 20 seconds",
            module="phase_diagram",
        ),
        Experiment(
            name="finite-size",
            summary="Finite-size scaling: the deviation from mean field falls as 1/√N",
            quick_time="about 20 seconds",
            module="finite_size",
        ),
    )
}

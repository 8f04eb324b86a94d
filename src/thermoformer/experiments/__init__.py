"""Experiments: the papers' and ours, one package each: config to data to figures to a page.

`EXPERIMENTS` lists them by name; an experiment's code is imported when it runs.
"""

from .._progress import Progress, console_progress
from .demo import run_demo
from .listing import EXPERIMENTS, Executor, Experiment

__all__ = ["EXPERIMENTS", "Executor", "Experiment", "Progress", "console_progress", "run_demo"]

"""Experiments: the papers' and ours, one file each: config to data to figures to a page.

`EXPERIMENTS` lists them by name; an experiment's code is imported when it runs.
"""

from .._progress import Progress, console_progress
from ._registry import EXPERIMENTS, Experiment
from .demo import run_demo
from .executor import Executor

__all__ = ["EXPERIMENTS", "Executor", "Experiment", "Progress", "console_progress", "run_demo"]

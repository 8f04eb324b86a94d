"""Functions over grids of parameters: labelled results on disk, run in one or many processes, and resumed."""

from .chunks import StoreError
from .cluster import ClusterLost
from .description import resumable
from .grid import Grid, Task, point_seed
from .store import SweepStatus, SweepStore
from .sweep import Sweep, errors_of, status_of

__all__ = [
    "ClusterLost",
    "Grid",
    "StoreError",
    "Sweep",
    "SweepStatus",
    "SweepStore",
    "Task",
    "errors_of",
    "point_seed",
    "resumable",
    "status_of",
]

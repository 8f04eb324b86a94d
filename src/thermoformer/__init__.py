"""The statistical mechanics of transformers as a library you can run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import dynamics, experiments, figures, learning, networks, sweeps, tasks
    from . import transformers as transformers
    from ._validation import InputError
    from .arrays import read_arrays
    from .citations import bibtex

__version__ = "0.2.0"

# Packages are imported on first use: `import thermoformer` and the command line's help do not wait for JAX.
_PACKAGES = ("dynamics", "experiments", "figures", "learning", "networks", "sweeps", "tasks", "transformers")
_HOMES = {"InputError": "_validation", "bibtex": "citations", "read_arrays": "arrays"}

# Without "transformers", which needs PyTorch: a star import is to work where that is not installed.
__all__ = [
    "InputError",
    "__version__",
    "bibtex",
    "dynamics",
    "experiments",
    "figures",
    "learning",
    "networks",
    "read_arrays",
    "sweeps",
    "tasks",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f".{name}", __name__)
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

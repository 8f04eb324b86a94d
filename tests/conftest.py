"""What every test shares: the reference numbers, and settings that make runs repeat."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from jaxtyping import install_import_hook

# Figures are drawn to files; a test machine has no screen.
os.environ.setdefault("MPLBACKEND", "Agg")
# Tests run side by side, one process per core: threads of one would only wait for those of another.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A shape that is stretched by accident is an error here; read by JAX when it is first imported.
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
# The shapes that the arithmetic declares are checked at every call. Rooms that meet users check their input themselves.
install_import_hook([f"thermoformer.learning.{name}" for name in ("action", "kernels", "order")], "beartype.beartype")

ROOT = Path(__file__).resolve().parents[1]
# Read once: tests may set it to folders of their own.
DATA = os.environ.get("THERMOFORMER_DATA")

# Longest first. A file that is not named comes after them, and may take some twenty seconds.
LONGEST = (
    "app/test_page.py",
    "learning/test_brute_force.py",
    "learning/test_weights.py",
    "learning/test_exact.py",
    "test_examples.py",
    "experiments/test_width_convergence.py",
    "experiments/test_one_shot.py",
    "sweeps/test_sweeps.py",
    "sweeps/test_cluster.py",
    "dynamics/test_finite.py",
    "dynamics/test_diagrams.py",
    "learning/test_skips_and_outputs.py",
    "learning/test_predictor.py",
    "learning/test_saddle.py",
    "learning/test_pruning.py",
    "sweeps/test_devices.py",
    "test_docs.py",
    "app/test_learning_view.py",
    "app/test_server.py",
    "dynamics/test_lyapunov.py",
    "learning/test_network.py",
    "learning/test_kernels.py",
)

# Compilation makes the first example slow, hence no deadline; the same examples are drawn in every run.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True, database=None, max_examples=25)
hypothesis.settings.load_profile("house")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first: one begun last would be waited for by all cores but one."""
    places = {ROOT / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(autouse=True, scope="module")
def _programs_are_forgotten() -> Iterator[None]:
    """Compiled programs of a file go when it ends: all of them together exceed what a process may map into memory."""
    yield
    import jax  # late, after the settings above

    jax.clear_caches()


@pytest.fixture(scope="session")
def reference() -> Callable[[str], Mapping[str, np.ndarray]]:
    """Loader of reference numbers: `reference("learning/4paths_N10.npz")["U1"]`."""
    folder = Path(os.environ.get("THERMOFORMER_REFERENCE") or ROOT / ".." / "shared" / "reference")
    if not folder.is_dir():
        pytest.skip(f"no reference numbers in {folder}; set THERMOFORMER_REFERENCE to their folder")

    def load(name: str) -> Mapping[str, np.ndarray]:
        # A missing file in a folder that is there is a failure, not a reason to skip.
        with np.load(folder / name, allow_pickle=False) as archive:
            return dict(archive)

    return load


@pytest.fixture
def real_data(monkeypatch) -> Path:
    """The folder with real data files, which loaders then look into."""
    folder = Path(DATA or ROOT / ".." / "shared" / "data")
    if not (folder / "omniglot").is_dir():
        pytest.skip(f"no data files in {folder}; set THERMOFORMER_DATA to their folder")
    monkeypatch.setenv("THERMOFORMER_DATA", str(folder))
    return folder

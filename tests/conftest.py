"""What every test shares: the reference numbers, and settings that make runs repeat."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from jaxtyping import install_import_hook

from thermoformer._programs import keep_programs

# Imports and JAX make many small objects that live on. With Python's own threshold of 700 objects the search for
# garbage takes about a quarter of the time until the tests are collected, and a tenth of that of the tests.
gc.set_threshold(20_000, 20, 20)
# Figures are drawn to files; a test machine has no screen.
os.environ.setdefault("MPLBACKEND", "Agg")
# Tests run side by side, one process per core: threads of one would only wait for those of another. XLA's older code
# generator (--xla_cpu_use_fusion_emitters=false) would compile in half the time, but some of its programs give wrong
# numbers: test_jacobian_is_that_of_the_map finds one. The generator of tiled loops is the slowest part of the new one;
# without it compilation takes up to a third less time, and the other loops of the new one take its place.
FLAGS = "--xla_cpu_multi_thread_eigen=false --xla_backend_extra_options=xla_cpu_disable_tiled_emitter"
os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # programs need not know their lines of Python
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # PyTorch: tests of tiny transformers take nine times as long with two
# Compiled programs are shared by all workers and subprocesses, and kept for the next run. A changed formula is another
# program. The folder is that of commands, within this checkout.
ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("THERMOFORMER_CACHE", str(ROOT / ".programs"))
keep_programs()
# A shape that is stretched by accident is an error here; read by JAX when it is first imported.
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
# The shapes that the arithmetic declares are checked at every call. Public functions check their input themselves.
install_import_hook([f"thermoformer.learning.{name}" for name in ("action", "kernels")], "beartype.beartype")

# Read once: tests may set it to folders of their own.
DATA = os.environ.get("THERMOFORMER_DATA")

MOST_MAPPED = 16_000
# Files that use a browser, processes to be killed, long chains or data of many shapes, roughly slowest first. They run
# before all others, so that no worker waits at the end, and `make test-quick` leaves them out.
SLOW = (
    "app/test_page.py",
    "learning/test_brute_force.py",
    "test_examples.py",
    "learning/test_attention_posterior.py",
    "experiments/test_residuals.py",
    "learning/test_narrow.py",
    "experiments/test_teacher.py",
    "test_docs.py",
    "app/test_server.py",
    "sweeps/test_cluster.py",
    "learning/test_weights.py",
    "learning/test_derivatives.py",
    "learning/test_contributions.py",
    "learning/test_exact.py",
    "experiments/test_dynamics_experiments.py",
    "experiments/test_width_convergence.py",
    "experiments/test_attention.py",
    "learning/test_comparison.py",
    "experiments/test_markov.py",
    "experiments/test_one_shot.py",
    "experiments/test_pruning.py",
    "experiments/test_trained_networks.py",
    "experiments/test_learning_curves.py",
    "experiments/test_heads.py",
    "experiments/test_sampled.py",
    "experiments/test_published_draw.py",
    "experiments/test_demo.py",
    "sweeps/test_sweeps.py",
    "sweeps/test_devices.py",
    "sweeps/test_damage.py",
    "transformers/test_fine_tuning.py",
    "test_train_command.py",
    "test_heads_command.py",
    "test_fuzz.py",
    "test_estimators.py",
    "test_cli.py",
    "test_commands.py",
)

# Files that execute for long: their programs have all optimisations, as everywhere outside the tests. Programs of other
# tests, doctests among them, run shortly: with little optimisation they are compiled in two thirds of the time.
OPTIMISED = ("app/", "test_docs.py", "test_examples.py", "dynamics/test_regimes.py")

# Compilation makes the first example slow, hence no deadline; the same examples are drawn in every run.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True, database=None, max_examples=25)
hypothesis.settings.load_profile("house")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the slow files and puts them first."""
    rank = {ROOT / "tests" / name: number for number, name in enumerate(SLOW)}
    for item in items:
        if item.path in rank:
            item.add_marker("slow")
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def pytest_collection_finish() -> None:
    """From here on the modules that were imported are not searched for garbage, and little is optimised."""
    gc.collect()
    gc.freeze()
    _optimise(False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After failures: the command that runs them again."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line("Run again what failed: .venv/bin/pytest --last-failed", bold=True)


def _optimise(much: bool) -> None:
    """How programs are compiled from here on, by this process and by those that it starts."""
    import jax  # late, after the settings above

    wish = str(int(not much))
    if os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") != wish:
        # Programs of both kinds round differently. Which of them a test gets must not depend on the tests before.
        jax.clear_caches()
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = wish
    jax.config.update("jax_disable_most_optimizations", not much)


@pytest.fixture(autouse=True, scope="module")
def _optimised(request: pytest.FixtureRequest) -> Iterator[None]:
    """Files that execute for long have the usual programs."""
    much = request.path.relative_to(ROOT / "tests").as_posix().startswith(OPTIMISED)
    _optimise(much)
    yield
    _optimise(False)


@pytest.fixture(autouse=True, scope="module")
def _programs_are_forgotten() -> Iterator[None]:
    """Compiled programs go when they are many: they fill memory, and Linux lets a process map 65530 areas at most."""
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or len(maps.read_bytes().splitlines()) > MOST_MAPPED:
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

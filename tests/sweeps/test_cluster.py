"""Sweeps on a dask cluster of real processes: the same numbers, whoever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import sweep_functions as functions
import xarray as xr

from thermoformer.sweeps import ClusterLost, Sweep

pytest.importorskip("distributed", reason="needs the extra `cluster`")
HERE = Path(__file__).parents[1]
GRID = {"a": [1.0, 2.0, 3.0, 4.0, 5.0], "b": list(range(16))}
RESULTS = ("product", "powers", "noise")


def same(one: xr.Dataset, other: xr.Dataset) -> bool:
    return all(np.array_equal(one[name].values, other[name].values) for name in RESULTS)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> xr.Dataset:
    return Sweep(functions.plain, GRID, tmp_path_factory.mktemp("whole") / "sweep", batch=2).run().load()


class Cluster:
    """A scheduler and workers, each a process that can be killed."""

    def __init__(self, workers: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", str(port))
        self.workers = [self.worker() for _ in range(workers)]

    def worker(self) -> subprocess.Popen:
        return self._start("worker", self.address, "--nthreads", "1", "--no-nanny")

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *arguments, "--no-dashboard"]
        environment = os.environ | {"PYTHONPATH": str(HERE), "OPENBLAS_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def stop(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@contextmanager
def cluster(workers: int) -> Iterator[Cluster]:
    made = Cluster(workers)
    try:
        yield made
    finally:
        made.stop()


def test_same_numbers_from_a_cluster_on_this_machine(tmp_path, undisturbed):
    """And a point that raises, one that hangs and one that kills its worker are the only ones that fail."""
    assert same(Sweep(functions.plain, GRID, tmp_path / "s", batch=2).run("dask", workers=2), undisturbed)
    sweep = Sweep(functions.faulty, GRID, tmp_path / "f", batch=2)
    found = sweep.run("dask", workers=2, time_limit=3.0)
    errors = {point: text.strip().splitlines()[-1] for point, text in sweep.errors().items()}
    assert errors == functions.FAULTS
    good = (found.status == 1).values
    for name in RESULTS:
        np.testing.assert_array_equal(found[name].values[good], undisturbed[name].values[good])


def test_a_client_of_ones_own_and_a_function_of_this_file(tmp_path):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as here,
        Client(here) as client,
    ):
        sweep = Sweep(lambda a: {"double": 2 * a}, {"a": np.arange(30)}, tmp_path / "s", batch=4)
        np.testing.assert_array_equal(sweep.run("dask", cluster=client).double, 2 * np.arange(30))
        assert client.status == "running"  # not ours to close
        with pytest.raises(ValueError, match="time_limit: got workers that may not start processes"):
            Sweep(functions.nothing, {"a": [1]}, tmp_path / "l").run("dask", cluster=client, time_limit=5.0)


def test_workers_killed_during_the_sweep(tmp_path, undisturbed):
    """SIGKILL to one worker after another; a new one comes for each."""
    log = tmp_path / "log"
    sweep = Sweep(functions.logged, GRID, tmp_path / "s", batch=2, fixed={"log": str(log), "wait": 0.05})
    killed = []
    with cluster(2) as made:

        def kill(done: int, total: int, message: str) -> None:
            if done >= 10 * (len(killed) + 1) and len(killed) < 4:
                victim = made.workers.pop(0)
                victim.send_signal(signal.SIGKILL)
                killed.append(victim.wait())
                made.workers.append(made.worker())

        found = sweep.run("dask", cluster=made.address, progress=kill)
    assert killed == [-9] * 4
    assert same(found, undisturbed) and (found.status == 1).all()
    calls = log.read_text().splitlines()
    # What a killed worker had in hand, a task and the ones that waited beside it, was run again, and no more.
    assert 80 <= len(calls) <= 80 + 4 * 2 * 4 and len(set(calls)) == 80


def test_scheduler_killed(tmp_path, undisturbed):
    """The run ends with a sentence; on a new cluster it goes on, and nothing that was done is done again."""
    log = tmp_path / "log"
    sweep = Sweep(functions.logged, GRID, tmp_path / "s", batch=2, fixed={"log": str(log), "wait": 0.05})
    with cluster(2) as made:

        def kill(done: int, total: int, message: str) -> None:
            if done >= 30:
                made.scheduler.kill()

        with pytest.raises(ClusterLost, match="the dask scheduler is gone"):
            sweep.run("dask", cluster=made.address, progress=kill)
    done = sweep.status().done
    assert 30 <= done < 80 and sweep.status().failed == 0
    half = sweep.dataset()
    finished = (half.status == 1).values
    np.testing.assert_array_equal(half.noise.values[finished], undisturbed.noise.values[finished])
    before = len(log.read_text().splitlines())
    with cluster(2) as made:
        assert same(sweep.run("dask", cluster=made.address), undisturbed)
    assert len(log.read_text().splitlines()) == before + 80 - done


def test_a_point_that_kills_every_worker(tmp_path, undisturbed):
    """Without a time limit points run in the workers themselves: one takes them along, its neighbour does not."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as here,
        Client(here) as client,
    ):
        sweep = Sweep(functions.deadly, {"a": [3.0, 4.0], "b": [0, 1, 2, 3]}, tmp_path / "s", batch=2)
        found = sweep.run("dask", cluster=client)
    assert found.status.values.tolist() == [[1, 1, 1, 1], [1, 1, 1, 2]]
    expected = undisturbed.noise.sel(a=[3.0, 4.0], b=[0, 1, 2, 3]).values.ravel()[:7]
    np.testing.assert_array_equal(found.noise.values.ravel()[:7], expected)
    assert "the worker died every time" in sweep.errors()[(4.0, 3)]


# What a login node has, as far as dask-jobqueue asks for it: a queue that starts every job at once, here. As a real
# queue does, it takes a copy: the script is deleted as soon as it has been submitted.
SBATCH = """#!/bin/sh
cp "$1" "{folder}/job-$$.sh" || exit 1
setsid sh "{folder}/job-$$.sh" >"{folder}/job-$$.log" 2>&1 &
echo $! >>"{folder}/jobs"
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/sh
for job in "$@"; do kill -- -"$job"; done
"""


def test_jobs_of_a_queue(tmp_path, monkeypatch, undisturbed):
    """The example of the documentation, with a stand-in for the commands of Slurm: dask-jobqueue writes real jobs."""
    jobqueue = pytest.importorskip("dask_jobqueue", reason="needs the extra `cluster`")
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (tmp_path / name).write_text(text.format(folder=tmp_path) if name == "sbatch" else text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with jobqueue.SLURMCluster(
        cores=1,
        memory="1 GB",
        walltime="00:10:00",
        python=sys.executable,
        job_script_prologue=[f"export PYTHONPATH={HERE}"],
        log_directory=str(tmp_path),
        scheduler_options={"dashboard_address": ":0"},
    ) as queue:
        assert "#SBATCH -t 00:10:00" in queue.job_script()
        queue.scale(jobs=2)
        found = Sweep(functions.plain, GRID, tmp_path / "s", batch=2).run("dask", cluster=queue)
    assert same(found, undisturbed) and len((tmp_path / "jobs").read_text().split()) >= 1


def test_a_cluster_without_workers_says_so(tmp_path):
    """Nothing comes back from it, so that the message is the only sign; the user may then stop."""
    from distributed import LocalCluster

    def stop(done: int, total: int, message: str) -> None:
        if "the cluster has no worker" in message:
            assert (done, total) == (0, 80)
            raise KeyboardInterrupt

    with LocalCluster(n_workers=0, dashboard_address=":0") as empty, pytest.raises(KeyboardInterrupt):
        Sweep(functions.plain, GRID, tmp_path / "s", batch=2).run("dask", cluster=empty, progress=stop)


def test_bad_clusters(tmp_path):
    sweep = Sweep(functions.plain, GRID, tmp_path / "s")
    with pytest.raises(ValueError, match="cluster: got 'tcp://127.0.0.1:1' .*expected the address of a dask scheduler"):
        sweep.run("dask", cluster="tcp://127.0.0.1:1")
    with pytest.raises(ValueError, match="cluster: got 'tcp://x'; expected none with executor='local'"):
        sweep.run(cluster="tcp://x")
    with pytest.raises(ValueError, match="workers: got 0"):
        sweep.run("dask", workers=0)
    lock = threading.Lock()  # cannot be sent anywhere
    with pytest.raises(ValueError, match="function: got .*which the workers cannot run"):
        Sweep(lambda a: {"x": a if lock else 0}, {"a": [1]}, tmp_path / "l").run("dask", workers=1)


def test_interrupted_run_leaves_no_worker(tmp_path):
    """Ctrl-C, here from the progress callback: the cluster that was started for the run ends with it."""
    before = set(_children())

    def stop(done: int, total: int, message: str) -> None:
        if done >= 10:
            raise KeyboardInterrupt

    sweep = Sweep(functions.slow, GRID, tmp_path / "s", batch=2)
    with pytest.raises(KeyboardInterrupt):
        sweep.run("dask", workers=2, progress=stop)
    assert 10 <= sweep.status().done < 80
    for _ in range(50):
        if set(_children()) <= before:
            break
        time.sleep(0.1)
    assert set(_children()) <= before


def _children() -> list[str]:
    """Child processes of this one that are alive, apart from Python's own resource tracker."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
            command = (status.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z" and "resource_tracker" not in command:
            found.append(status.parent.name)
    return found

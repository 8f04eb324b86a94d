"""Sweeps: the same numbers everywhere, resumed after anything, refused where something is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import sweep_functions as functions
import xarray as xr

from thermoformer.sweeps import Grid, StoreError, Sweep, SweepStore, errors_of, point_seed, status_of

HERE = Path(__file__).parents[1]
GRID = {"a": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [0, 1, 2, 3]}
RESULTS = ("product", "powers", "noise")


def same(one: xr.Dataset, other: xr.Dataset) -> bool:
    return all(np.array_equal(one[name].values, other[name].values) for name in RESULTS)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> xr.Dataset:
    return Sweep(functions.plain, GRID, tmp_path_factory.mktemp("whole") / "sweep").run().load()


def test_numbers_are_those_of_the_function(undisturbed):
    assert undisturbed.product.dims == ("a", "b") and undisturbed.powers.dims == ("a", "b", "powers_0")
    for a in GRID["a"]:
        for b in GRID["b"]:
            here = undisturbed.sel(a=a, b=b)
            expected = functions.plain(a, b, point_seed(0, {"a": a, "b": b}))
            assert all(np.array_equal(here[name].values, expected[name]) for name in RESULTS)
    assert (undisturbed.status == 1).all() and "thermoformer" in json.loads(undisturbed.attrs["versions"])


@pytest.mark.parametrize(
    ("executor", "workers", "batch"), [("local", None, 3), ("processes", 2, 1), ("processes", 3, 4)]
)
def test_same_numbers_from_everywhere(tmp_path, undisturbed, executor, workers, batch):
    assert same(Sweep(functions.plain, GRID, tmp_path / "s", batch=batch).run(executor, workers=workers), undisturbed)


def test_points_of_an_array_at_once(tmp_path):
    found = Sweep(functions.arrays, GRID, tmp_path / "s", batch=3, vectorised=True, axes={"powers": ("power",)}).run()
    np.testing.assert_array_equal(found.product, np.outer(GRID["a"], GRID["b"]))
    assert found.powers.dims == ("a", "b", "power")
    assert SweepStore(tmp_path / "s").grid().tasks == 10
    wrong = Sweep(functions.nothing, {"a": [1, 2]}, tmp_path / "w", batch=2, vectorised=True, fixed={})
    np.testing.assert_array_equal(wrong.run().double, [2, 4])


def test_what_is_done_is_not_done_again(tmp_path):
    """Stopped in the middle by the progress callback, as Ctrl-C would; then gone on with."""
    log = tmp_path / "log"
    sweep = Sweep(functions.logged, GRID, tmp_path / "s", fixed={"log": str(log)}, batch=2)

    def stop(done, total, message):
        assert total == 20 and ("points/s" in message or message == "starting")
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.run(progress=stop)
    assert sweep.status().done == 8 and sweep.status().left == 12
    half = sweep.dataset()
    assert int(np.isfinite(half.product).sum()) == 8
    sweep.run()
    sweep.run()
    assert len(log.read_text().splitlines()) == 20 == len(set(log.read_text().splitlines()))


def test_faults_of_the_function(tmp_path, undisturbed):
    """One point raises, one returns NaN, one hangs, one kills its worker: all others are as they should be."""
    sweep = Sweep(functions.faulty, GRID, tmp_path / "s", batch=2)
    found = sweep.run("processes", workers=2, time_limit=3.0)
    errors = {point: text.strip().splitlines()[-1] for point, text in sweep.errors().items()}
    assert errors == functions.FAULTS
    good = (found.status == 1).values
    assert good.sum() == 16
    for name in RESULTS:
        np.testing.assert_array_equal(found[name].values[good], undisturbed[name].values[good])
        assert np.isnan(found[name].values[~good]).all()
    # Nothing is run again unless told; then the four alone, by a function that was mended.
    assert sweep.run().status.values.tolist() == found.status.values.tolist()
    log = tmp_path / "log"
    mended = Sweep(functions.logged, GRID, tmp_path / "s", batch=2, fixed={"log": str(log)})
    with pytest.raises(StoreError, match="made with function sweep_functions:faulty"):
        mended.run(retry=True)
    assert same(mended.run(retry=True, accept_changes=True), undisturbed)
    assert len(log.read_text().splitlines()) == 4 and mended.errors() == {}


def script(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "script.py"
    file.write_text(f"import sys\nsys.path.insert(0, {str(HERE)!r})\n" + textwrap.dedent(text))
    return [sys.executable, str(file)]


def test_killed_many_times_at_random(tmp_path):
    """SIGKILL to the main process at random moments, fifty times over, then run to the end."""
    # At 0.03 s per point, more points than 50 lives of these lengths have time for.
    grid = {"a": GRID["a"], "b": list(range(64))}
    points = 320
    folder, log = str(tmp_path / "s"), str(tmp_path / "log")
    code = f"""
    import os, random, signal, time
    import sweep_functions as functions
    from thermoformer.sweeps import Sweep
    def sweep():
        return Sweep(functions.logged, {grid!r}, {folder!r}, batch=2, fixed={{"log": {log!r}}})
    random.seed(0)
    killed, longest = 0, 0.25
    while killed < 50:
        child = os.fork()
        if child == 0:
            sweep().run()
            os._exit(0)
        time.sleep(random.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
        if sweep().store.exists():
            sweep().dataset().load()  # readable at any time
            # A busy machine needs longer to begin.
            longest *= 1 + (killed % 10 == 0 and not sweep().status().done)
    print(killed, sweep().status().done)
    """
    # Slow points only while it is killed: the run to the end need not wait.
    environment = os.environ | {"SECONDS_PER_POINT": "0.03"}
    run = subprocess.run(
        script(tmp_path, code), env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr
    killed, done = map(int, run.stdout.split())
    assert killed == 50 and 0 < done < points  # it was killed at work, every time
    sweep = Sweep(functions.logged, grid, folder, batch=2, fixed={"log": log})
    whole = Sweep(functions.plain, grid, tmp_path / "whole", batch=2).run()
    assert same(sweep.run(), whole) and (sweep.dataset().status == 1).all()
    calls = Path(log).read_text().splitlines()
    # A kill loses the task in flight, two points, and no more; every other point was run once.
    assert points <= len(calls) <= points + 2 * killed and len(set(calls)) == points


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare to mount a small file system")
def test_full_disk(tmp_path, undisturbed):
    """A file system that is full stops the run with the system's word for it; with room again it goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    code = f"""
    import sweep_functions as functions, shutil
    from thermoformer.sweeps import Sweep
    sweep = Sweep(functions.plain, {GRID!r}, {str(disk / "s")!r}, batch=2)
    try:
        sweep.run()
        print("never full")
    except OSError as error:
        print(error.strerror, sweep.status().done)
    shutil.copytree({str(disk / "s")!r}, {str(tmp_path / "rescued")!r})
    """
    small = f"mount -t tmpfs -o size=100k tmpfs {disk} && exec " + " ".join(script(tmp_path, code))
    run = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", small], capture_output=True, text=True, timeout=60, check=False
    )
    if "mount" in run.stderr or "unshare" in run.stderr:
        pytest.skip(f"may not mount here: {run.stderr.strip()}")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("No space left on device")
    assert 0 < int(run.stdout.split()[-1]) < 20
    rescued = Sweep(functions.plain, GRID, tmp_path / "rescued", batch=2)
    assert same(rescued.run(), undisturbed)


def test_a_second_writer_is_refused(tmp_path):
    code = f"""
    import sweep_functions as functions
    from thermoformer.sweeps import Sweep
    def say(done, total, message):
        if message != "starting":
            print("started", flush=True)
    Sweep(functions.slow, {GRID!r}, {str(tmp_path / "s")!r}, fixed={{"wait": 0.2}}).run(progress=say)
    """
    first = subprocess.Popen(script(tmp_path, code), stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None and first.stdout.readline().strip() == "started"
        second = Sweep(functions.slow, GRID, tmp_path / "s", fixed={"wait": 0.2})
        with pytest.raises(StoreError, match=f"which process {first.pid} on .* is writing to"):
            second.run()
        assert second.status().points == 20  # reading is free
    finally:
        first.kill()
        first.wait()
        first.stdout.close()
    with second.store.lock():  # a process that died has let go
        pass


def test_seeds_follow_from_the_point(tmp_path):
    part = Sweep(functions.plain, {"a": [3.0], "b": [2, 3]}, tmp_path / "p").run()
    whole = Sweep(functions.plain, GRID, tmp_path / "w").run()
    assert np.array_equal(part.noise.values[0], whole.noise.sel(a=3.0, b=[2, 3]).values)
    other = Sweep(functions.plain, GRID, tmp_path / "o", seed=1).run()
    assert not np.isin(other.noise.values, whole.noise.values).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": {}}, "grid: got {}; expected values by name"),
        ({"grid": {"a": []}}, "grid\\['a'\\]: got shape"),
        ({"grid": {"a": [1, 1], "b": [0]}}, "grid\\['a'\\]: got a value twice"),
        ({"grid": {"a": [np.nan], "b": [0]}}, "grid\\['a'\\]: got NaN"),
        ({"grid": {"a": [1.0], "b": [0], "c": [1]}}, "grid: got 'c'; expected arguments of the function: a, b, seed"),
        ({"grid": {"a": [1.0]}}, "grid: got nothing for 'b'"),
        ({"grid": {"not a name": [1]}}, "grid: got 'not a name'"),
        ({"grid": {"status": [1]}}, "grid: got an axis named 'status'; expected another name"),
        ({"grid": {"seconds": [1]}}, "grid: got an axis named 'seconds'; expected another name"),
        ({"fixed": {"a": 1}}, "fixed: got a; expected names that are not in the grid"),
        ({"fixed": {"z": 1}}, "fixed: got 'z'"),
        ({"batch": 0}, "batch: got 0"),
        ({"seed": -1}, "seed: got -1"),
        ({"vectorised": "yes"}, "vectorised: got 'yes'; expected True or False"),
        ({"allow_nan": 1}, "allow_nan: got 1; expected True or False"),
        ({"function": 3}, "function: got int"),
    ],
)
def test_bad_sweeps(tmp_path, change, message):
    given = {"function": functions.plain, "grid": GRID, "store": tmp_path / "s"} | change
    with pytest.raises(ValueError, match=message):
        Sweep(**given)


def test_bad_runs_and_folders(tmp_path):
    sweep = Sweep(functions.plain, GRID, tmp_path / "s")
    for word in ("retry", "accept_changes"):
        with pytest.raises(ValueError, match=f"{word}: got 'no'; expected True or False"):
            sweep.run(**{word: "no"})
    (tmp_path / "taken").write_text("precious")
    for store in (tmp_path / "taken", tmp_path / "taken" / "deeper"):
        with pytest.raises(ValueError, match=rf"store: got {store} \(.*\); expected a folder that can be written to"):
            Sweep(functions.plain, GRID, store).run()
    for ask in (status_of, errors_of):
        with pytest.raises(ValueError, match="store: got 'd'; expected a SweepStore"):
            ask("d")
    for number, expected in ((9, "0 to 1"), (-1, "a whole number, zero or more"), ("1", "a whole number")):
        with pytest.raises(ValueError, match=f"number: got {number!r}; expected {expected}"):
            Grid({"a": [1, 2]}).task(number)
    with pytest.raises(ValueError, match="executor: got 'cloud'"):
        sweep.run("cloud")
    with pytest.raises(ValueError, match="workers: got 2; expected none with executor='local'"):
        sweep.run(workers=2)
    with pytest.raises(ValueError, match="time_limit: got 1.0; expected none with executor='local'"):
        sweep.run(time_limit=1.0)
    with pytest.raises(ValueError, match="function: got .*which cannot be sent to another process"):
        Sweep(lambda a: {"x": a}, {"a": [1]}, tmp_path / "l").run("processes")
    sweep.run()
    for change, name in (({"batch": 2}, "batch"), ({"seed": 1}, "seed")):
        with pytest.raises(StoreError, match=f"with another {name}"):
            Sweep(functions.plain, GRID, tmp_path / "s", **change).run()
    with pytest.raises(StoreError, match="with another grid"):
        Sweep(functions.plain, GRID | {"b": [7]}, tmp_path / "s").run()
    with pytest.raises(StoreError, match="made with function sweep_functions:plain"):
        Sweep(functions.mended, GRID, tmp_path / "s").run()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    with pytest.raises(StoreError, match="which holds thesis.tex"):
        Sweep(functions.plain, GRID, foreign).run()
    with pytest.raises(StoreError, match="expected a folder with a sweep in it"):
        status_of(SweepStore(tmp_path / "nowhere"))
    (tmp_path / "s" / "sweep.json").write_text("{")
    with pytest.raises(StoreError, match="sweep.json, which is damaged .it is not JSON"):
        sweep.run()


def test_results_that_do_not_fit(tmp_path):
    """Another shape at one point is an error of that point; names that the store needs are refused."""

    def growing(a):
        return {"x": np.zeros(2 if a < 3 else 3)}

    sweep = Sweep(growing, {"a": [1, 2, 3]}, tmp_path / "g")
    assert sweep.run().status.values.tolist() == [1, 1, 2]
    assert "other points returned float64(2,)" in sweep.errors()[(3,)]
    nameless = Sweep(lambda a: a, {"a": [1]}, tmp_path / "n")
    nameless.run()
    assert "expected arrays or numbers by name" in nameless.errors()[(1,)]


@pytest.mark.parametrize(
    ("results", "axes", "message"),
    [
        ({"status": 1.0}, {}, "function: got a result named 'status'; expected another name"),
        ({"a": 1.0}, {}, "function: got a result named 'a'; expected another name: an axis of the grid"),
        *(
            ({"x": 1.0, name: 2.0}, {}, "function: got a result named .* expected a name that a folder can have")
            for name in ("", ".", "..", ".x", "x/y", "/x", "zarr.json", "x" * 300, "x\0", "\udcff", "x\n")
        ),
        ({"x": np.zeros(2), "x_0": 1.0}, {}, "axes.'x'.: got 'x_0'; expected names of axes that no result"),
        ({"x": np.zeros(2)}, {"x": ("a",)}, "axes.'x'.: got 'a'; expected names of axes"),
        ({"x": np.zeros((2, 2))}, {"x": ("k", "k")}, "axes.'x'.: got 'k'; expected names of axes"),
        ({"x": np.zeros(2)}, {"x": ("k/l",)}, "axes.'x'.: got an axis named 'k/l'; expected a name"),
        ({"x": np.zeros(2), "y": np.zeros(3)}, {"x": ("k",), "y": ("k",)}, "'k' of length 3; expected length 2"),
        (xr.Dataset({"x": 1.0}, attrs={"seed": 5}), {}, "function: got an attribute 'seed'; expected another name"),
    ],
)
def test_names_that_a_store_cannot_hold(tmp_path, results, axes, message):
    """They are refused before anything is stored."""
    sweep = Sweep(lambda a: results, {"a": [1]}, tmp_path / "s", axes=axes)
    with pytest.raises(ValueError, match=message):
        sweep.run()
    assert sweep.status().done == 0 and list(sweep.dataset().data_vars) == ["seconds", "status"]


def test_results_whose_names_become_equal_fail(tmp_path):
    sweep = Sweep(lambda a: {1: 1.0, "1": 2.0}, {"a": [1]}, tmp_path / "s")
    sweep.run()
    assert "names that differ as text" in sweep.errors()[(1,)]


def test_errors_stay_when_other_points_of_their_task_are_run(tmp_path):
    sweep = Sweep(functions.faulty, {"a": [1.0], "b": [2, 3]}, tmp_path / "s", batch=2)
    sweep.run(only={"b": [2]})
    sweep.run(only={"b": [3]})
    assert list(sweep.errors()) == [(1.0, 2)] and sweep.status().failed == 1


@pytest.mark.parametrize("batch", [1, 2])
def test_whole_numbers_and_truth_values_are_nan_where_a_point_failed(tmp_path, batch):
    """A 0 or a False would go into every average without a word."""
    mended = tmp_path / "mended"

    def counted(a, b):
        if a == 2 and not mended.exists():
            raise RuntimeError("no such luck")
        return xr.Dataset({"z": ("k", [3, b], {"unit": "tokens"}), "flag": True, "x": a * 0.5, "word": "yes"})

    sweep = Sweep(counted, {"a": [1, 2], "b": [5, 6]}, tmp_path / "s", batch=batch)
    first = sweep.run(only={"b": [5]}).load()
    nan = np.nan
    np.testing.assert_array_equal(first.z, [[[3, 5], [nan, nan]], [[nan, nan], [nan, nan]]])
    found = sweep.run()
    np.testing.assert_array_equal(found.z, [[[3, 5], [3, 6]], [[nan, nan], [nan, nan]]])
    np.testing.assert_array_equal(found.flag, [[1, 1], [nan, nan]])
    assert float(found.z.mean()) == 4.25 and found.z.attrs == {"unit": "tokens"}
    assert found.status.dtype == np.int8 and found.status.values.tolist() == [[1, 1], [2, 2]]
    assert found.word.values.tolist() == [["yes", "yes"], ["", ""]]
    part = sweep.store.with_own_types(found.sel(a=[1]))
    assert (part.z.dtype, part.flag.dtype, part.x.dtype) == (np.int64, bool, float)
    assert part.z.values.tolist() == [[[3, 5], [3, 6]]] and part.z.attrs == {"unit": "tokens"}
    mended.touch()
    whole = sweep.run(retry=True)
    assert (whole.z.dtype, whole.flag.dtype) == (np.int64, bool) and whole.flag.values.all()


def test_results_with_nothing_along_an_axis(tmp_path):
    empty = Sweep(lambda a: {"x": np.zeros((2, 0)), "note": np.array([], str), "y": a}, {"a": [1, 2]}, tmp_path / "e")
    found = empty.run()
    assert (found.x.shape, found.note.shape) == ((2, 2, 0), (2, 0)) and found.y.values.tolist() == [1, 2]


def test_results_that_are_zero_are_kept(tmp_path):
    """zarr writes no chunk that holds fill values alone, unless it is told to."""
    sweep = Sweep(
        lambda a: {"none": 0, "no": False, "word": "", "nan": np.nan}, {"a": [1, 2]}, tmp_path / "s", allow_nan=True
    )
    sweep.run()
    assert sweep.status().done == 2 and sweep.run().no.values.tolist() == [False, False]
    (tmp_path / "s" / "data.zarr" / "no" / "c" / "1").unlink()
    assert sweep.status().damaged == 1


def test_tasks_cover_the_grid():
    grid = Grid({"x": ["p", "q"], "y": np.arange(5), "z": np.arange(7)}, batch=3)
    seen = [tuple(point.values()) for task in grid for point in task.points]
    assert len(seen) == len(set(seen)) == grid.size == 70
    covered = np.zeros(grid.shape, int)
    for task in grid:
        covered[task.region] += 1
    assert (covered == 1).all()


def test_memory_of_the_main_process_is_flat(tmp_path):
    """Two thousand points more do not make the main process larger."""
    code = f"""
    import sweep_functions as functions, numpy as np, os
    from thermoformer.sweeps import Sweep
    def size():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    sizes = []
    def watch(done, total, message):
        if done in (500, 2500):
            sizes.append(size())
    Sweep(functions.nothing, {{"a": np.arange(2500)}}, {str(tmp_path / "s")!r}, batch=5).run(progress=watch)
    print(sizes[1] - sizes[0])
    """
    run = subprocess.run(script(tmp_path, code), capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 8 * 2**20


@pytest.mark.parametrize(
    ("function", "grid", "options", "count"),
    [("slow", GRID, {"fixed": {"wait": 0.2}}, 2), ("hanging", {"a": [1, 2]}, {}, 1)],
)
def test_workers_end_with_the_main_process(tmp_path, function, grid, options, count):
    """Killed outright, it leaves no worker behind, not even one that hangs in a point."""
    code = f"""
    import sweep_functions as functions, multiprocessing
    from thermoformer.sweeps import Sweep
    if __name__ == "__main__":
        def say(done, total, message):
            if message != "starting":
                print(*[child.pid for child in multiprocessing.active_children()], flush=True)
        sweep = Sweep(functions.{function}, {grid!r}, {str(tmp_path / "s")!r}, **{options!r})
        sweep.run("processes", workers={count}, progress=say)
    """
    main = subprocess.Popen(script(tmp_path, code), stdout=subprocess.PIPE, text=True)
    assert main.stdout is not None
    workers = [int(pid) for pid in main.stdout.readline().split()]
    time.sleep(0.3)  # one that hangs is in its second point by now, for ten minutes
    main.kill()
    main.wait()
    main.stdout.close()
    assert len(workers) == count
    for pid in workers:
        for _ in range(100):
            if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
                break
            time.sleep(0.1)
        else:
            pytest.fail(f"worker {pid} lives on")

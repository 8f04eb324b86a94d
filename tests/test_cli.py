from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import thermoformer
from thermoformer import experiments
from thermoformer.citations import bibtex
from thermoformer.cli import app
from thermoformer.dynamics import Features
from thermoformer.learning import Architecture, ConvergenceError, PathFeatures, head_scores, random_attention, solve

RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(12, 5, 3))
ATTENTION = [np.asarray(random_attention(X, heads=2, key=layer)) for layer in (0, 1)]
XI = np.asarray(PathFeatures.from_attention(X, ATTENTION).values)
Y = np.sign(RANDOM.normal(size=12))
TRAIN, TEST = slice(0, 8), slice(8, 12)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def inputs(tmp_path):
    np.savez(tmp_path / "xi.npz", xi=XI[TRAIN], y=Y[TRAIN], xi_test=XI[TEST], y_test=Y[TEST])
    return tmp_path / "xi.npz"


@pytest.fixture
def tokens(tmp_path):
    first, second = ATTENTION
    np.savez(tmp_path / "x.npz", x=X[TRAIN], attention_1=first[TRAIN], attention_2=second[TRAIN], y=Y[TRAIN])
    return tmp_path / "x.npz"


@pytest.fixture(scope="module")
def solution():
    features = PathFeatures.from_attentioned_inputs(XI[TRAIN])
    return solve(Architecture((2, 2), (10, 20, 30), 1.0), features, Y[TRAIN], temperature=0.1)


SETTINGS = ("--width", "10,20,30", "--temperature", 0.1)


def test_json_is_one_object_with_the_numbers_of_the_library(inputs, solution):
    result = run("solve", inputs, "--heads", "2,2", *SETTINGS, "--json")
    assert result.exit_code == 0 and result.stderr == ""
    report = json.loads(result.stdout)
    for name in ("action", "energy", "entropy", "log_evidence"):
        assert report[name] == pytest.approx(float(getattr(solution, name)), rel=1e-12)
    assert report["converged"] is True
    assert report["stats"]["gradient_norm"] == pytest.approx(float(solution.stats.gradient_norm))
    assert report["architecture"] == {"heads": [2, 2], "widths": [10, 20, 30], "variances": [1.0] * 4}
    np.testing.assert_allclose(report["order_parameter"], solution.order_parameter, rtol=1e-12)
    scores = head_scores(Architecture((2, 2), 10), solution.order_parameter)
    assert [(row["layer"], row["head"]) for row in report["head_scores"]] == [tuple(label) for label in scores.labels]
    np.testing.assert_allclose([row["score"] for row in report["head_scores"]], scores.values)
    prediction = solution.predict(PathFeatures.from_attentioned_inputs(XI[TEST]))
    np.testing.assert_allclose(report["prediction"]["mean"], prediction.mean, rtol=1e-12)
    np.testing.assert_allclose(report["prediction"]["variance"], prediction.variance, rtol=1e-12)
    assert report["prediction"]["accuracy"] == pytest.approx(prediction.accuracy(Y[TEST]))
    assert report["prediction"]["bias"] == pytest.approx(prediction.bias(Y[TEST]))


def test_tokens_with_attention_give_the_same_solution_as_their_attentioned_inputs(tokens, solution):
    report = json.loads(run("solve", tokens, *SETTINGS, "--json").stdout)
    np.testing.assert_allclose(report["order_parameter"], solution.order_parameter, rtol=1e-8)
    assert "prediction" not in report


@pytest.mark.parametrize("form", ["pairs", "features", "dual"])
def test_the_form_reaches_the_solver(tokens, form):
    report = json.loads(run("solve", tokens, *SETTINGS, "--json", "--form", form).stdout)
    assert report["stats"]["form"] == form


def test_a_csv_file_with_labels_0_and_1_gives_the_same_solution(tmp_path, solution):
    columns = ",".join(f"{path}.{feature}" for path in range(4) for feature in range(3))
    table = np.column_stack([XI[TRAIN].reshape(8, 12), Y[TRAIN] > 0])
    file = tmp_path / "mine.csv"
    np.savetxt(file, table, "%.17g", delimiter=",", header=f"{columns},label", comments="")
    given = ("solve", file, "--heads", "2,2", *SETTINGS)
    report = json.loads(run(*given, "--json").stdout)
    np.testing.assert_allclose(report["order_parameter"], solution.order_parameter, rtol=1e-8)
    assert report["notes"] == ["y: labels 0 and 1 are read as −1 and +1"]
    assert "labels 0 and 1 are read" in " ".join(run(*given).stdout.split())


def test_one_width_and_a_list_of_variances(tokens):
    settings = ("--width", "7", "--variance", "1,2,0.5,1.5", "--temperature", "0.1")
    report = json.loads(run("solve", tokens, *settings, "--readout", "mean", "--json").stdout)
    assert report["architecture"] == {"heads": [2, 2], "widths": [7, 7, 7], "variances": [1.0, 2.0, 0.5, 1.5]}


def test_labels_that_are_not_classes_have_a_bias_and_no_accuracy(tmp_path):
    np.savez(tmp_path / "numbers.npz", xi=XI[TRAIN], y=X[TRAIN, 0, 0], xi_test=XI[TEST], y_test=X[TEST, 0, 0])
    result = run("solve", tmp_path / "numbers.npz", "--heads", "2,2", *SETTINGS, "--json")
    assert result.exit_code == 0 and set(json.loads(result.stdout)["prediction"]) == {"mean", "variance", "bias"}


def test_many_paths_show_the_diagonal_alone(inputs, monkeypatch):
    monkeypatch.setattr("thermoformer._reports.LARGEST_TABLE", 3)
    result = run("solve", inputs, "--heads", "2,2", *SETTINGS)
    assert result.exit_code == 0 and "Diagonal of U" in result.stdout and "Order parameter U" not in result.stdout


def test_tables_show_the_summary_the_order_parameter_and_the_scores(inputs, solution):
    result = run("solve", inputs, "--heads", "2,2", *SETTINGS)
    assert result.exit_code == 0
    for word in ("action", "log evidence", "converged", "gradient norm", "test accuracy", "Order parameter U", "score"):
        assert word in result.stdout
    for path in ("0→0", "0→1", "1→0", "1→1"):
        assert path in result.stdout
    assert f"{float(solution.order_parameter[0, 0]):.5g}" in result.stdout


def test_no_convergence_has_an_exit_code_of_its_own(inputs, monkeypatch):
    def stuck(*arguments, **settings):
        raise ConvergenceError("stopped after 3 steps")

    monkeypatch.setattr("thermoformer.learning.solve", stuck)
    result = run("solve", inputs, "--heads", "2,2", *SETTINGS)
    assert result.exit_code == 3
    assert result.stderr == "stopped after 3 steps\n" and result.stdout == ""


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("variances", ("--variance", "1e150"), "variances: got 1e+150; expected smaller numbers: the action overflows"),
        ("labels", (), "labels: got 1e+200; expected smaller numbers: the action overflows"),
    ],
)
def test_an_overflow_names_the_argument_that_is_too_large(tmp_path, name, settings, message):
    labels = Y[TRAIN] * (1e200 if name == "labels" else 1)
    np.savez(tmp_path / "xi.npz", xi=XI[TRAIN], y=labels)
    result = run("solve", tmp_path / "xi.npz", "--heads", "2,2", *SETTINGS, *settings)
    assert (result.exit_code, result.stderr) == (3, message + "\n")


def test_a_size_beyond_memory_is_one_line(inputs, monkeypatch):
    for error in (MemoryError("Unable to allocate 7 EiB"), RuntimeError("RESOURCE_EXHAUSTED: Out of memory")):

        def too_large(*arguments, error=error, **settings):
            raise error

        monkeypatch.setattr("thermoformer.learning.solve", too_large)
        result = run("solve", inputs, "--heads", "2,2", *SETTINGS)
        assert result.exit_code == 2 and result.stderr.startswith("memory: got a size that does not fit")
        assert result.stderr.count("\n") == 1


def test_other_errors_keep_their_traceback(inputs, monkeypatch):
    def broken(*arguments, **settings):
        raise RuntimeError("a bug")

    monkeypatch.setattr("thermoformer.learning.solve", broken)
    result = run("solve", inputs, "--heads", "2,2", *SETTINGS)
    assert isinstance(result.exception, RuntimeError) and str(result.exception) == "a bug"


@dataclass
class Fake:
    """An experiment that writes one file, then does as told."""

    then: BaseException | None = None
    name: str = "fake"
    summary: str = "nothing at all"
    quick_time: str = "no time"
    module: str = "fake"

    def run(self, out: Path, *, quick, seed, train, executor, progress):
        progress(0, 2, "first half")
        out.mkdir(parents=True)
        (out / "data.txt").write_text(f"{quick} {seed}")
        if self.then:
            raise self.then
        progress(2, 2, "done")
        return out / "index.html"


@pytest.fixture
def fake(monkeypatch):
    def install(then=None):
        monkeypatch.setattr(experiments, "EXPERIMENTS", {"fake": Fake(then)})

    return install


def test_without_a_name_the_experiments_are_listed():
    result = run("reproduce")
    assert result.exit_code == 0 and "markov" in result.stdout


def test_the_list_says_what_and_how_long(fake):
    fake()
    result = run("reproduce")
    assert all(word in result.stdout for word in ("fake", "nothing at all", "no time"))


def test_an_experiment_runs_with_its_settings_and_tells_where_the_page_is(fake, tmp_path):
    fake()
    result = run("reproduce", "fake", "--quick", "--seed", 7, "--out", tmp_path / "here")
    assert result.exit_code == 0
    assert (tmp_path / "here" / "data.txt").read_text() == "True 7"
    assert result.stdout == f"Page: {tmp_path / 'here' / 'index.html'}\n"


def test_the_default_folder_is_named_after_the_experiment(fake, tmp_path, monkeypatch):
    fake()
    monkeypatch.chdir(tmp_path)
    assert run("reproduce", "fake").exit_code == 0
    assert (tmp_path / "results" / "fake" / "data.txt").read_text() == "False 0"


def test_interruption_says_what_was_kept(fake, tmp_path):
    fake(KeyboardInterrupt())
    result = run("reproduce", "fake", "--out", tmp_path / "here")
    assert result.exit_code == 130
    assert f"Interrupted; {tmp_path / 'here'} holds 1 files" in result.stderr
    assert "Traceback" not in result.stderr and result.stdout == ""


def test_interruption_before_anything_was_written_says_so(inputs, monkeypatch):
    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("thermoformer.learning.solve", interrupted)
    result = run("solve", inputs, "--heads", "2,2", *SETTINGS)
    assert result.exit_code == 130 and "Interrupted; nothing was written\n" in result.stderr


def test_cite_prints_the_entries_as_they_are():
    assert run("cite").stdout == bibtex() + "\n"


def test_version():
    assert run("--version").stdout == f"thermoformer {thermoformer.__version__}\n"


def test_as_a_program_in_a_process_of_its_own(inputs):
    command = [sys.executable, "-m", "thermoformer", "solve", inputs, "--heads", "2,2", *map(str, SETTINGS)]
    good = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["converged"] is True and good.stderr == ""
    bad = subprocess.run([*command, "--variance", "-1"], capture_output=True, text=True, timeout=120)
    assert bad.returncode == 2 and bad.stderr == "variances: got -1.0; expected a number above 0\n"


def test_help_does_not_wait_for_jax():
    code = "import sys, thermoformer.cli; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


PROGRAM = [sys.executable, "-m", "thermoformer"]


@pytest.mark.parametrize("arguments", [("cite",), ("--version",), ("--help",), ("reproduce",)])
def test_a_full_disk_behind_standard_output_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        result = subprocess.run([*PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert result.returncode == 2 and result.stderr.count("\n") == 1, result.stderr
    assert "output: got an error (No space left on device); expected" in result.stderr


def test_a_closed_standard_output_is_one_line_and_a_closed_pipe_none():
    closed = {"stderr": subprocess.PIPE, "text": True, "timeout": 60}
    result = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *PROGRAM, "cite"], **closed)
    assert result.returncode == 2 and result.stderr.startswith("standard output: got an error (closed)")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run([*PROGRAM, "cite"], stdout=writer, **closed)
    finally:
        os.close(writer)
    assert result.returncode != 0 and result.stderr == ""


def test_a_terminal_without_greek_letters_shows_escapes():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    result = subprocess.run([*PROGRAM, "solve", "--help"], capture_output=True, env=environment, timeout=60)
    assert result.returncode == 0 and b"\\u03c3" in result.stdout and result.stderr == b""


@pytest.mark.parametrize("module", ["typer", "thermoformer.dynamics"])
def test_interruption_of_an_import_ends_quietly(tmp_path, module):
    """Ctrl-C within the first tenths of a second; `sitecustomize` presses it when the module is asked for."""
    (tmp_path / "sitecustomize.py").write_text(
        "import signal, sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            sys.meta_path.remove(self)\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    )
    search = os.pathsep.join([str(tmp_path), str(Path(thermoformer.__file__).parents[1])])
    command = [*PROGRAM, "orbit", "paper", "--beta", "1"]
    result = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": search}, timeout=60
    )
    assert (result.returncode, result.stderr) == (130, "Interrupted while loading\n")


TABLE = "o -++|--\nv -+-|-+\nq +--|+-\nk ---|--\n"
MAP = ("--beta", 1.27, "--steps", 60, "--transient", 20)


@pytest.fixture
def features_files(tmp_path):
    from thermoformer.dynamics import Features

    (tmp_path / "table.txt").write_text(TABLE)
    Features.from_table(TABLE).save(tmp_path / "archive.npz")
    correlations = {role: [[0.5 if role != "o" else 1.0]] for role in "ovqk"}
    Features.from_correlations(correlations).save(tmp_path / "classes.npz")
    return tmp_path


def test_orbit_of_the_paper_is_that_of_the_library(tmp_path):
    import xarray as xr

    from thermoformer.dynamics import Features, MeanField, orbit

    file = tmp_path / "new" / "orbit.nc"
    result = run("orbit", "paper", *MAP, "--out", file, "--json")
    assert result.exit_code == 0 and result.stderr == ""
    report = json.loads(result.stdout)
    model = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
    expected = orbit(model, model.window(), steps=60, transient=20)
    np.testing.assert_allclose(report["first"], expected.m_o[:8], atol=1e-12)
    assert [row["average"] for row in report["features"]] == pytest.approx(expected.m_o.mean(axis=0).tolist())
    assert report["settings"] == {"beta": 1.27, "gamma": 220.0, "epsilon": 0.02, "context": 4}
    with xr.open_dataset(file, engine="h5netcdf") as written:
        np.testing.assert_allclose(written.m_o, expected.m_o, atol=1e-12)
        assert written.attrs["beta"] == 1.27 and written.attrs["transient"] == 20


def test_orbit_prints_tables_for_a_table_an_archive_and_correlations(features_files):
    shown = [run("orbit", features_files / name, *MAP) for name in ("table.txt", "archive.npz")]
    assert all(result.exit_code == 0 for result in shown) and shown[0].stdout == shown[1].stdout
    for word in ("Overlaps m_o over 60 steps after 20", "average", "deviation", "lowest", "highest", "First rows"):
        assert word in shown[0].stdout
    known = run("orbit", features_files / "classes.npz", *MAP, "--epsilon", 0, "--context", 3, "--json")
    assert known.exit_code == 0 and json.loads(known.stdout)["settings"]["context"] == 3


def test_a_matrix_of_signs_is_enough_for_orbit_and_lyapunov(tmp_path):
    """A stored pattern of a Hopfield network is a fixed point."""
    (tmp_path / "mine.csv").write_text("1,1,-1,1\n1,-1,1,1\n")
    assert run("orbit", tmp_path / "mine.csv", *MAP).exit_code == 0
    settings = ("--beta", 1.5, "--steps", 2000, "--transient", 500)
    report = json.loads(run("lyapunov", tmp_path / "mine.csv", *settings, "--json").stdout)
    assert report["regime"] == "fixed point"
    assert report["settings"] == {"beta": 1.5, "gamma": 220.0, "epsilon": 0.0, "context": 4}


@pytest.mark.parametrize("command", ["orbit", "lyapunov"])
def test_files_in_the_help_work(command, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = [line.strip() for line in run(command, "--help").stdout.splitlines()]
    matrix = [line for line in lines if re.fullmatch(r"[-,1]+", line)]
    table = [line for line in lines if re.fullmatch(r"[ovqk] [-+|]+", line)]
    assert (len(matrix), len(table)) == (2, 4)
    for rows, positional in ((matrix, 0), (table, 2)):
        (tmp_path / "mine").write_text("\n".join(rows))
        assert Features.from_file(tmp_path / "mine").positional_bits == positional


def test_lyapunov_tells_regime_period_and_exponents():
    settings = ("--steps", 2000, "--transient", 500, "--longest-period", 100)
    report = json.loads(run("lyapunov", "paper", "--beta", 1.1, *settings, "-k", 2, "--json").stdout)
    assert (report["regime"], report["period"], len(report["exponents"])) == ("periodic", 4, 2)
    assert -0.2 < report["exponents"][0]["value"] < 0 and report["steps"] == 2500
    result = run("lyapunov", "paper", "--beta", 1.28, *settings, "--confirm", 4000)
    assert result.exit_code == 0
    for word in ("Regime", "chaos", "reason", "Lyapunov exponents per step", "12"):
        assert word in result.stdout


INTERRUPTED = [sys.executable, str(Path(__file__).with_name("interrupted_process.py"))]


def test_interruption_while_garbage_is_collected_is_not_dropped():
    result = subprocess.run([*INTERRUPTED, "collect"], capture_output=True, text=True, timeout=50)
    assert (result.returncode, result.stderr) == (130, "Interrupted; nothing was written\n")


def test_interruption_in_a_compiled_program_ends_the_command_at_once():
    """Taken apart in the usual way, it would wait for the program to end, or die of a segmentation fault in it."""
    command = [*INTERRUPTED, "compute"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    # One that never computes, or never ends, ends the test, not the patience of who runs it.
    limit = threading.Timer(60, process.kill)
    limit.start()
    try:
        assert process.stdout is not None and process.stdout.readline() == "computing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "Interrupted; nothing was written\n")
        assert process.returncode == 130
    finally:
        limit.cancel()
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "command",
    [
        ("reproduce", "fake"),
        ("demo",),
        ("train", "one-shot"),
        ("heads", "nowhere", "--task", "trec"),
        ("orbit", "paper", "--beta", 1),
    ],
)
def test_a_file_in_the_way_of_the_results_is_named_at_once(fake, tmp_path, command):
    fake()
    taken = tmp_path / "taken"
    taken.write_text("precious")
    result = run(*command, "--out", taken / "here")
    expected = f"out: got {taken if command[0] == 'orbit' else taken / 'here'} ({taken} is a file); expected a folder"
    assert result.exit_code == 2 and result.stderr.startswith(expected) and taken.read_text() == "precious"


def test_an_orbit_is_not_written_over_a_folder(tmp_path):
    result = run("orbit", "paper", "--beta", 1, "--out", tmp_path)
    assert (result.exit_code, result.stderr) == (2, f"out: got {tmp_path}, a folder; expected a file\n")


def test_an_orbit_replaces_an_orbit_and_nothing_else(tmp_path):
    import xarray as xr

    text, other, own = tmp_path / "text.nc", tmp_path / "other.nc", tmp_path / "own.nc"
    text.write_text("precious")
    xr.Dataset({"precious": 1.0}).to_netcdf(other, engine="h5netcdf")
    for file in (text, other):
        before = file.read_bytes()
        result = run("orbit", "paper", *MAP, "--out", file)
        assert result.exit_code == 2 and file.read_bytes() == before
        assert f"out: got {file}, which is not an orbit of this command" in result.stderr
    for beta in (1.27, 1.3):
        assert run("orbit", "paper", *MAP, "--beta", beta, "--out", own).exit_code == 0
    with xr.open_dataset(own, engine="h5netcdf") as written:
        assert written.attrs["beta"] == 1.3
    os.mkfifo(tmp_path / "pipe")
    result = run("orbit", "paper", *MAP, "--out", tmp_path / "pipe")
    assert result.exit_code == 2 and "which is a FIFO" in result.stderr


@pytest.mark.parametrize(
    ("command", "name"),
    [(("reproduce", "fake"), "fake.html"), (("demo",), "index.html"), (("train", "one-shot"), "record.json")],
)
def test_foreign_results_in_a_folder_are_not_replaced(fake, tmp_path, command, name):
    fake()
    precious = '<p class="lead">precious</p>'  # a common class of other pages too
    (tmp_path / name).write_text(precious)
    result = run(*command, "--out", tmp_path)
    assert result.exit_code == 2 and (tmp_path / name).read_text() == precious
    assert result.stderr == (
        f"out: got {tmp_path / name}, a file that thermoformer did not write; expected another name, or no file there\n"
    )
    assert [file.name for file in tmp_path.iterdir()] == [name]

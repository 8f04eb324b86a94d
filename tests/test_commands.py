"""What holds for every command: its help, bad input in one line that writes nothing, and one JSON object."""

from __future__ import annotations

import io
import json
import os
import zipfile

import numpy as np
import pytest
import sweep_functions
import typer
from typer.testing import CliRunner

from thermoformer.cli import app
from thermoformer.experiments import EXPERIMENTS
from thermoformer.sweeps import Sweep

COMMANDS = [
    ("reproduce",),
    ("demo",),
    ("solve",),
    ("orbit",),
    ("lyapunov",),
    ("sweep", "status"),
    ("sweep", "show"),
    ("sweep", "resume"),
    ("train",),
    ("heads",),
    ("explore",),
    ("cite",),
]
SOLVE = ("solve", "{xi}", "--heads", "2,2", "--width", "5", "--temperature", "1")
MAP = ("--beta", "1.27")
TRAIN = ("train", "one-shot", "--quick", "--out", "{new}")
HEADS = ("heads", "{folder}", "--out", "{new}", "--task")
HUGE = "9" * 20


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def claiming_npz(shape: str) -> bytes:
    """An npz file whose array claims a shape of float64, and holds one number."""
    header = (f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}").ljust(117) + "\n"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(8))
    return stream.getvalue()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What commands are given here, by the names in the arguments."""
    folder = tmp_path_factory.mktemp("commands")
    random = np.random.default_rng(1)
    np.savez(folder / "xi.npz", xi=random.normal(size=(8, 4, 3)), y=np.sign(random.normal(size=8)))
    os.mkfifo(folder / "fifo")
    (folder / "huge.npz").write_bytes(claiming_npz("(10000000000000,)"))
    for name, content in {
        "text": b"\xff\xfe\x00",
        "zip": b"PK\x03\x04 broken",
        "sign": b"o +x-\n",
        "roles": b"o +-\nv +-\n",
    }.items():
        (folder / name).write_bytes(content)
    Sweep(sweep_functions.nothing, {"a": [1, 2]}, folder / "sweep").run()
    names = ("xi.npz", "fifo", "huge.npz", "text", "zip", "sign", "roles", "sweep", "new", "none")
    return {"folder": folder} | {name.partition(".")[0]: folder / name for name in names}


def test_no_command_is_forgotten():
    group = typer.main.get_command(app)
    # Other tests add commands of their own to the app.
    ours = {
        name
        for name, command in group.commands.items()  # type: ignore[attr-defined]
        if name != "sweep" and command.callback.__module__.startswith("thermoformer")
    }
    found = {(name,) for name in ours}
    found |= {("sweep", name) for name in group.commands["sweep"].commands}  # type: ignore[attr-defined]
    assert found == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_option(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = run(*command, "--help")
    assert result.exit_code == 0
    found = typer.main.get_command(app)
    for name in command:
        found = found.commands[name]  # type: ignore[attr-defined]
    text = " ".join(result.stdout.split())
    assert found.help.split(".")[0].split("\n")[0] in text
    for parameter in found.params:
        names = parameter.opts if parameter.param_type_name == "option" else ()
        assert all(name in text for name in names) and parameter.help[:30] in text  # type: ignore[attr-defined]
        # Arguments are words in capitals, as in error messages and in the documentation.
        assert names or parameter.metavar[0].isupper()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("thermoformer so", "solve"),
        ("thermoformer sweep st", "status"),
        ("thermoformer reproduce orbit-diagram-", "-zoom"),
    ],
)
def test_the_shell_completes_commands_and_experiments(typed, offered, monkeypatch):
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    result = CliRunner().invoke(app, [], prog_name="thermoformer", env={"_THERMOFORMER_COMPLETE": "complete_bash"})
    assert offered in result.stdout


def test_help_names_the_defaults():
    shown = run("train", "--help").output
    assert all(f"[default: ({value})]" in shown for value in ("4,4", "512", "never"))


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_options_are_refused(command):
    result = run(*command, "--no-such-option")
    assert result.exit_code == 2 and "No such option" in result.stderr and result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("reproduce", "nonesuch"),
            f"experiment: got 'nonesuch'; expected one of {', '.join(EXPERIMENTS)}",
        ),
        (("reproduce", "markov", "--seed", HUGE), f"seed: got {HUGE}; expected a whole number below 2**63"),
        (
            ("solve", "{xi}", *SOLVE[4:]),
            "heads: got nothing; expected the heads of each layer, whose product",
        ),
        ((*SOLVE, "--heads", "2,two"), "heads: got '2,two'; expected whole numbers separated by commas"),
        ((*SOLVE, "--heads", "3,2"), "; expected "),
        ((*SOLVE, "--heads", HUGE), f"heads: got {HUGE}; expected a whole number below 2**63"),
        ((*SOLVE, "--width", "1.5"), "width: got '1.5'; expected whole numbers"),
        ((*SOLVE, "--width", "0"), "widths: got 0; expected a whole number, 1 or more"),
        ((*SOLVE, "--width", "5,5"), "widths: got 2 numbers; expected one number or 3"),
        ((*SOLVE, "--width", HUGE), f"widths: got {HUGE}; expected a whole"),
        ((*SOLVE, "--temperature", "-1"), "temperature: got -1.0; expected a finite number"),
        ((*SOLVE, "--variance", "1;2"), "variance: got '1;2'; expected numbers separated by"),
        ((*SOLVE, "--variance", "0"), "variances: got 0.0; expected a number above 0"),
        (("solve", "{none}", *SOLVE[4:]), "none, which is not there; expected an npz file"),
        (("orbit", "{none}", *MAP), "none, which is not there; expected an npz file or a table of signs"),
        (("orbit", "paper", "--beta", "nan"), "beta: "),
        (("orbit", "paper", *MAP, "--gamma", "inf"), "gamma: "),
        (("orbit", "paper", *MAP, "--epsilon", 1.5), "epsilon: got 1.5; expected a number from 0 to 1"),
        (("orbit", "paper", *MAP, "--steps", 0), "steps: got 0; expected a whole number, 1 or more"),
        (("orbit", "paper", *MAP, "--transient", -1), "transient: got -1; expected a whole number, zero or more"),
        (("orbit", "paper", *MAP, "--context", 0), "context: "),
        (("orbit", "paper", *MAP, "--context", 10**12), "context: got 1000000000000, which needs about"),
        (("orbit", "paper", *MAP, "--steps", HUGE), f"steps: got {HUGE}; expected at most"),
        (("orbit", "paper", *MAP, "--steps", 10**11), "steps: got 100000000000, which needs about"),
        (("orbit", "paper", *MAP, "--transient", HUGE), f"transient: got {HUGE}; expected at"),
        (("orbit", "paper", *MAP, "--out", "{folder}"), "commands0, a folder; expected a file"),
        (("lyapunov", "paper", *MAP, "--confirm", HUGE), f"confirm: got {HUGE}; expected at"),
        (("lyapunov", "paper", *MAP, "-k", 13), "k: got 13; expected at most 12, the dimension of the map"),
        (("lyapunov", "paper", *MAP, "-k", 0), "k: got 0; expected a whole number, 1 or more"),
        (("lyapunov", "paper", *MAP, "--longest-period", 0), "longest_period: got 0; expected a whole number"),
        (("lyapunov", "{text}", *MAP), "which is not text in UTF-8"),
        (("lyapunov", "{zip}", *MAP), "which is not an npz file, or a damaged one"),
        (("lyapunov", "{sign}", *MAP), "table, line 1: got '+x-'; expected signs + and -"),
        (("lyapunov", "{roles}", *MAP), "table: got heads [] of role q; expected every role"),
        (("sweep", "status", "{none}"), "expected a folder with a sweep in it"),
        (("sweep", "show", "{sweep}", "--result", "nothing"), "result: got 'nothing'; expected one of"),
        (("sweep", "show", "{sweep}", "--out", ""), "out: got '.'; expected the name of a file without its ending"),
        (("sweep", "resume", "{sweep}"), "by name: 'sweep_functions:nothing'"),
        (
            ("sweep", "resume", "{sweep}", "--function", "..:x"),
            "expected a function as module:name",
        ),
        ((*TRAIN, "--heads", "2,two"), "heads: got '2,two'; expected whole numbers separated by commas"),
        ((*TRAIN, "--heads", "0"), "heads: got 0; expected a whole number, 1 or more"),
        ((*TRAIN, "--width", "0"), "widths: got 0"),
        ((*TRAIN, "--key-size", "-1"), "key_size: got -1"),
        ((*TRAIN, "--steps", "0"), "steps: got 0"),
        ((*TRAIN, "--batch", "0"), "batch: got 0"),
        ((*TRAIN, "--learning-rate", "-1"), "learning_rate: got -1.0"),
        ((*TRAIN, "--width", 10**9), "which needs about"),
        ((*TRAIN, "--heads", "30000,30000"), "which needs about"),
        ((*TRAIN, "--key-size", 10**9), "which needs about"),
        ((*TRAIN, "--batch", 10**9), "which needs about"),
        ((*HEADS, "imdb"), "task: got 'imdb'; expected trec, sst2"),
        ((*HEADS, "text"), "task: got 'text' without a file"),
        ((*HEADS, "nowhere.tsv"), "path: got nowhere.tsv, which is not there"),
        ((*HEADS, "trec", "--prune", "1.5"), "prune: got 1.5"),
        ((*HEADS, "trec", "--method", "luck"), "method: got 'luck'"),
        (("explore", "--host", "somewhere", "--no-browser"), "host: got 'somewhere'; expected an address"),
        *(
            ((*command, "{" + name + "}", *options), message)
            for command, options in (
                (("solve",), SOLVE[4:]),
                (("orbit",), MAP),
                (("lyapunov",), MAP),
            )
            for name, message in (
                ("fifo", "which is a FIFO and not a regular file"),
                ("folder", "which is a folder"),
                ("huge", "with y.npy, which does not hold its shape (10000000000000,)"),
            )
        ),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(files, arguments, message):
    before = sorted(files["folder"].rglob("*"))
    result = run(*(str(argument).format_map(files) for argument in arguments))
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.exception
    assert message in result.stderr and result.stdout == ""
    assert result.stderr.strip().count("\n") == 0 and "Traceback" not in result.stderr
    assert sorted(files["folder"].rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [
        SOLVE,
        ("orbit", "paper", *MAP, "--steps", 60, "--transient", 20),
        ("lyapunov", "paper", *MAP, "--steps", 60, "--transient", 20, "-k", 1),
        ("sweep", "status", "{sweep}"),
    ],
)
def test_json_is_one_object_and_nothing_else(files, arguments):
    """Those of `train` and `heads` are tested with their results."""
    given = [str(argument).format_map(files) for argument in arguments]
    result = run(*given, "--json")
    assert result.exit_code == 0 and result.stderr == "" and isinstance(json.loads(result.stdout), dict)
    tables = run(*given)
    assert tables.exit_code == 0 and "│" in tables.stdout

"""What `fuzz.py` runs: the command line, in this process and in others, and a real explorer."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from fuzz import Attempt, Target, Wrong, unwatched
from fuzz_inputs import HUGE, ODD_TEXT, archive_of, damaged

PROGRAM = (sys.executable, "-m", "thermoformer")
_HEADERS = (
    "Cookie",
    "Authorization",
    "Origin",
    "Range",
    "Upgrade",
    "Accept",
    "X",
    "Content-Length",
    "Transfer-Encoding",
)
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
MAP = ("--beta", "1.2", "--steps", "20", "--transient", "5")


def command(*arguments: Any) -> str:
    """Runs a command in this process: its output, or a ValueError with its one line where it is refused."""
    from typer.testing import CliRunner

    from thermoformer.cli import app

    given = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise Wrong(f"{type(result.exception).__name__} from {given}") from result.exception
    _check_output(given, result.exit_code, result.stdout, result.stderr)
    return result.stdout


def _check_output(given: Sequence[str], code: int, output: str, messages: str) -> None:
    """Raises a Wrong where the end of a command is not a clean one, and a ValueError where it refused."""
    said = " ".join(given)[:300]
    if "Traceback (most recent call last)" in output + messages or "Error in " in messages:
        raise Wrong(f"a traceback from {said}: {messages.strip().splitlines()[-1]}")
    if code < 0 or code in (1, 134, 139):
        raise Wrong(f"exit code {code} from {said}: {messages[-300:]}")
    if code:
        # Without a terminal the progress bar is printed once.
        lines = [
            line
            for line in messages.strip().splitlines()
            if line.strip() and "━" not in line and line[0] not in _SPINNER
        ]
        if not lines and "Usage:" not in output:
            raise Wrong(f"exit code {code} without a word from {said}")
        if "Usage:" not in messages and "─ Error ─" not in messages and len(lines) > 1:
            raise Wrong(f"several lines from {said}: {messages[-300:]}")
        raise ValueError("\n".join(lines) or "Usage:")
    if "--json" in given and "--help" not in given:
        json.loads(output)


def _make_inputs(folder: Path) -> None:
    """Valid files for commands."""
    random = np.random.default_rng(1)
    np.savez(folder / "xi.npz", xi=random.normal(size=(6, 4, 2)), y=np.sign(random.normal(size=6)))
    (folder / "table.txt").write_text("o -++|--\nv -+-|-+\nq +--|+-\nk ---|--\n")
    (folder / "animals.tsv").write_text("".join(f"the {one}\t{one}\n" for one in ("cat", "dog") * 5))
    from fuzz_targets import long_curve

    from thermoformer.sweeps import Sweep

    if not (folder / "sweep").exists():
        Sweep(long_curve, {"a": [1.0, 2.0], "b": [1, 2]}, folder / "sweep").run(progress=False)
    # Imports what draws: dask unpickles its own functions when it is imported.
    command("sweep", "show", folder / "sweep", "--out", folder / "figure")


# Good values of options and arguments by name; the first of them is taken where an option must be given.
_GOOD: dict[str, tuple[str, ...]] = {
    "file": ("{folder}/xi.npz", "{folder}/xi.npz", "{folder}/table.txt", "{folder}"),
    "features": ("paper", "{folder}/table.txt", "{folder}/xi.npz", "{folder}"),
    "folder": ("{folder}/sweep", "{folder}", "{folder}/nowhere"),
    "width": ("5", "5,5,5", "7"),
    "temperature": ("0.1", "1"),
    "heads": ("2,2", "4"),
    "variance": ("1.0", "1,1,1,1"),
    "beta": ("1.2", "0.5"),
    "gamma": ("220", "10"),
    "epsilon": ("0.02", "0", "1"),
    "context": ("4", "3"),
    "steps": ("20",),
    "transient": ("5",),
    "k": ("2",),
    "longest_period": ("10",),
    "confirm": ("0", "5"),
    "task": ("one-shot",),
    "function": ("fuzz_targets:long_curve", "math:sqrt", "thermoformer.sweeps:Sweep"),
    "seed": ("1",),
    "out": ("{place}/out",),
    "every": ("5",),
}
# Options without which a command would run long, or for good.
_NEEDED = {"orbit": ("steps", "transient"), "lyapunov": ("steps", "transient"), "explore": ("host",), "demo": ("out",)}
_NEVER = {"live", "workers", "executor", "cluster", "quick", "browser", "compare", "help", "version"}
# Whole numbers that are honest for steps, and take too long.
_LONG = {"1000000000", "1e18"}


def _grammar() -> list[tuple[tuple[str, ...], list[Any]]]:
    """Every command with its arguments and options, as the parser knows them."""
    import typer

    from thermoformer.cli import app

    found = []
    for name, one in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(one, "commands", None)
        found += [((name, sub), each.params) for sub, each in inner.items()] if inner else [((name,), one.params)]
    return found


def command_lines(folder: Path) -> Attempt:
    """Any command with arguments that fit or do not; sizes that fit are small."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["THERMOFORMER_DATA"] = str(folder)
    _make_inputs(folder)
    (folder / "omniglot").mkdir(exist_ok=True)
    for part in ("background", "evaluation"):
        (folder / "omniglot" / f"images_{part}.zip").write_bytes(archive_of({"x.txt": b""}))
    grammar = _grammar()
    usual = ("solve", "{folder}/xi.npz", "--temperature", ".1")
    known = [
        ("orbit", "paper", "--beta", "1", "--steps", HUGE),
        ("orbit", "paper", "--beta", "1", "--transient", HUGE),
        ("lyapunov", "paper", "--beta", "1", "--steps", HUGE),
        ("lyapunov", "paper", *MAP, "--longest-period", HUGE),
        ("lyapunov", "paper", *MAP, "--confirm", HUGE),
        ("orbit", "paper", *MAP, "--context", "1000000000"),
        ("orbit", "paper", *MAP, "--context", HUGE),
        (*usual, "--heads", "2,2", "--width", HUGE),
        (*usual, "--heads", HUGE, "--width", "5"),
        (*usual, "--heads", "2,2", "--width", "9" * 5000),
        (*usual, "--heads", "2,2", "--width", "5", "--variance", "1e308"),
        (*usual, "--heads", "2,2", "--width", "5", "--variance", "1e-320"),
        ("train", "one-shot", "--quick", "--heads", HUGE),
        ("train", "one-shot", "--quick", "--seed", HUGE),
        ("sweep", "resume", "{folder}/sweep", "--function", "..:x"),
        ("sweep", "resume", "{folder}/sweep", "--function", ".:x"),
        ("sweep", "resume", "{folder}/sweep", "--function", "math:sqrt.x"),
        ("sweep", "resume", "{folder}/sweep", "--function", "\udcff:x"),
        ("sweep", "show", "{folder}/sweep", "--result", "\udcff"),
        ("heads", "nowhere", "--task", "x\x00.tsv"),
        ("heads", "org/name", "--task", "{folder}/animals.tsv"),
        ("solve", "a\x00b", "--width", "5", "--temperature", "1"),
        ("orbit", "a" * 5000, *MAP),
        ("sweep", "status", "a\x00b"),
    ]

    def attempt(random: Random, place: Path, number: int) -> None:
        arguments = list(known[number]) if number < len(known) else drawn(random)
        given = [one.replace("{folder}", str(folder)).replace("{place}", str(place)) for one in arguments]
        (place / "command.txt").write_text(repr(given), errors="backslashreplace")
        try:
            command(*given)
        except ValueError as error:
            if "--variance" in given and number < len(known) and "larger temperature" in str(error):
                raise Wrong(f"advice that does not help: {error}") from None
            raise

    def drawn(random: Random) -> list[str]:
        path, params = random.choice(grammar)
        name = path[-1]
        arguments, options = [], []
        for param in params:
            needed = param.required or param.name in _NEEDED.get(name, ())
            if param.name in _NEVER or not (needed or random.random() < 0.25):
                continue
            good = _GOOD.get(param.name, ("1",))
            value = (
                random.choice(good)
                if random.random() < 0.8
                else random.choice((*ODD_TEXT, "{folder}", "{folder}/xi.npz"))
            )
            if name == "reproduce" and param.name == "name":
                value = random.choice(ODD_TEXT)
            if name == "explore" and param.name == "host":
                value = random.choice([text for text in ODD_TEXT if "." not in text])
            if name in ("demo", "train") and param.name == "out":
                value = "{folder}/xi.npz/out" if name == "demo" else "{place}/out"
            if param.name in ("steps", "transient", "confirm", "longest_period") and value in _LONG:
                value = "20"
            if param.param_type_name == "argument":
                arguments.append(value)
            elif getattr(param, "is_flag", False):
                options.append(random.choice(param.opts))
            else:
                options += [random.choice(param.opts), value]
        if name == "reproduce" and not arguments:
            arguments = []  # the list of experiments
        whole = [*path, *arguments, *options]
        if random.random() < 0.1:
            whole.insert(
                random.randrange(len(path), len(whole) + 1),
                random.choice((*ODD_TEXT, "--no-such", "--help", "-k", "--json")),
            )
        elif random.random() < 0.05:  # both together could name a folder in which the demo really runs
            del whole[random.randrange(len(path), len(whole) + 1) - 1]
        return whole

    return attempt


def foreign_files(folder: Path) -> Attempt:
    """Commands that write, where someone else's files are: none of them may change."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    _make_inputs(folder)
    sizes = {"vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=8, max_position_embeddings=16)
    transformers.BertModel(config).save_pretrained(folder / "bert")
    words = Tokenizer(WordLevel({"<unk>": 0, "<pad>": 1, "the": 2, "cat": 3, "dog": 4}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    usual = {"unk_token": "<unk>", "pad_token": "<pad>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **usual).save_pretrained(folder / "bert")
    heads = ["heads", folder / "bert", "--task", folder / "animals.tsv", "--method", "deepest", "--out", "out"]
    names = ["scores.csv", "order.csv", "record.json", "heads.html", "pruned", "pruned/x", "pruned/config.json"]
    names += ["masked/x", "points", "scores.png", "heads.svg", "pruned/pruned_heads.json", ".x"]

    def attempt(random: Random, place: Path, number: int) -> None:
        kind = number % 3
        foreign = random.sample(names, random.randrange(1, 4)) if number > 40 else [names[number // 3 % len(names)]]
        if kind == 1:
            foreign = ["orbit.nc"]
        elif kind == 2:
            foreign = [f"figure.{random.choice(('png', 'svg', 'html'))}"]
        for name in foreign:
            (place / "out" / name).parent.mkdir(parents=True, exist_ok=True)
            if not (place / "out" / name).exists():
                (place / "out" / name).write_text(f"precious {name}")
        before = {file: file.read_bytes() for file in (place / "out").rglob("*") if file.is_file()}
        try:
            if kind == 0:
                command(*heads, *random.choice(((), ("--masked",))))
            elif kind == 1:
                command("orbit", "paper", *MAP, "--out", place / "out" / "orbit.nc")
            else:
                command("sweep", "show", folder / "sweep", "--out", place / "out" / "figure")
        finally:
            changed = [
                str(file.relative_to(place))
                for file, content in before.items()
                if not file.is_file() or file.read_bytes() != content
            ]
            if changed:
                raise Wrong(f"foreign files changed by {('heads', 'orbit', 'sweep show')[kind]}: {changed}")

    return attempt


def odd_files(folder: Path) -> Attempt:
    """Folders, pipes, devices, sockets and broken links in place of files."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    _make_inputs(folder)
    commands = (
        ("solve", "{file}", "--width", "5", "--heads", "2,2", "--temperature", "0.1"),
        ("orbit", "{file}", *MAP),
        ("lyapunov", "{file}", *MAP),
        ("heads", "{folder}", "--task", "{file}.tsv"),
        ("heads", "{folder}", "{file}", "--task", "text"),
        ("heads", "{file}", "--task", "{folder}/animals.tsv"),
        ("sweep", "status", "{file}"),
        ("sweep", "status", "{sweep}"),
        ("sweep", "show", "{sweep}"),
        ("sweep", "resume", "{sweep}", "--function", "fuzz_targets:long_curve"),
        ("orbit", "paper", *MAP, "--out", "{file}"),
        ("solve", "{folder}/xi.npz", "--width", "5", "--heads", "2,2", "--temperature", "0.1", "--json"),
    )
    kinds = ("folder", "fifo", "/dev/zero", "/dev/null", "/dev/urandom", "socket", "dangling", "loop", "deep")

    def make(kind: str, file: Path) -> None:
        if kind == "folder":
            file.mkdir()
        elif kind == "fifo":
            os.mkfifo(file)
        elif kind.startswith("/dev"):
            file.symlink_to(kind)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as made:
                os.chdir(file.parent)
                made.bind(file.name)
        else:
            file.symlink_to({"dangling": "nowhere", "loop": file.name, "deep": "/proc/self/mem"}[kind])

    def attempt(random: Random, place: Path, number: int) -> None:
        arguments, kind = commands[number % len(commands)], kinds[number // len(commands) % len(kinds)]
        file = place / ("x.tsv" if "{file}.tsv" in arguments else "x")
        sweep = place / "sweep"
        if "{sweep}" in arguments:
            shutil.copytree(folder / "sweep", sweep)
            inside = [path for path in sweep.rglob("*") if path.is_file()]
            file = random.choice(sorted(inside))
            file.unlink()
        make(kind, file)
        given = [one.replace("{file}.tsv", str(file)).replace("{file}", str(file)) for one in arguments]
        given = [one.replace("{folder}", str(folder)).replace("{sweep}", str(sweep)) for one in given]
        (place / "command.txt").write_text(f"{given}\n{file} is a {kind}")
        try:
            command(*given)
        except ValueError as error:
            there = kind not in ("dangling",) and str(file) in given
            if there and any(words in str(error) for words in ("not there", "does not exist", "No such file")):
                raise Wrong(f"a {kind} is called absent: {error}") from None
            raise

    return attempt


def _beginning(size: int, closed: bool) -> Callable[[], None]:
    """What a process does before its program: it hears Ctrl-C, writes files up to a size, and may have no output."""

    def begin() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if closed:
            os.close(1)

    return begin


def processes(folder: Path) -> Attempt:
    """Commands in processes of their own: full disks, other encodings, closed pipes, Ctrl-C, absurd sizes."""
    _make_inputs(folder)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from small_images import data_folder

    if not (folder / "data").exists():
        data_folder(folder / "data")
    solve = ("solve", f"{folder}/xi.npz", "--width", "5", "--heads", "2,2", "--temperature", "0.1")
    orbit = ("orbit", "paper", *MAP)
    status = ("sweep", "status", f"{folder}/sweep")
    train = ("train", "one-shot", "--quick", "--steps", "1", "--out", "trained")
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    texts: list[tuple[str, tuple[str, ...]]] = [("help", ("--help",)), ("cite", ("cite",)), ("list", ("reproduce",))]
    texts += [
        ("version", ("--version",)),
        ("solve", solve),
        ("orbit", orbit),
        ("status", status),
        ("bad", ("solve", "é")),
    ]
    cases: list[dict[str, Any]] = [
        *({"arguments": (*orbit, "--out", "x.nc"), "size": size} for size in (0, 100, 1000, 5000, 12_000)),
        *(
            {"arguments": (*train, option, size)}
            for option, size in (("--width", "1000000000"), ("--batch", "1000000000"))
        ),
        *(
            {"arguments": (*train, option, size)}
            for option, size in (("--key-size", "1000000000"), ("--heads", "30000,30000"))
        ),
        *({"arguments": one, "stdout": "/dev/full"} for _, one in texts),
        *({"arguments": one, "environment": ascii_only} for _, one in texts),
        *({"arguments": one, "stdout": "closed"} for _, one in texts[:4]),
        *({"arguments": (*solve, "--json"), "stdout": kind} for kind in ("/dev/full", "closed")),
        {"arguments": ("sweep", "show", f"{folder}/sweep", "--out", "figure"), "size": 2000},
        {"arguments": ("sweep", "resume", f"{folder}/sweep", "--function", "fuzz_targets:long_curve"), "size": 0},
        {"arguments": train, "size": 10_000},
    ]

    def attempt(random: Random, place: Path, number: int) -> None:
        if number < len(cases):
            case = cases[number]
        else:
            long = ("lyapunov", "paper", "--beta", "1.2", "--steps", "100000000")
            case = {
                "arguments": random.choice((long, train, solve, ("demo", "--out", "demo"))),
                "after": random.uniform(0.02, 3),
            }
            if number < len(cases) + 6:
                case = {"arguments": long, "after": 0.05 + 0.1 * (number - len(cases))}
        environment = os.environ | {"THERMOFORMER_DATA": str(folder / "data")} | case.get("environment", {})
        (place / "command.txt").write_text(repr(case))
        target = case.get("stdout")
        with unwatched(), open(target if target == "/dev/full" else os.devnull, "wb") as sink:
            process = subprocess.Popen(
                [*PROGRAM, *case["arguments"]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if target is None else sink,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                preexec_fn=_beginning(case.get("size", resource.RLIM_INFINITY), target == "closed"),
            )
            try:
                if "after" in case:
                    time.sleep(case["after"])
                    process.send_signal(signal.SIGINT)
                output, messages = process.communicate(timeout=100)
            finally:
                process.kill()
                process.wait()
        code = process.returncode
        if "after" in case:
            if code not in (0, 130, -signal.SIGINT):
                raise Wrong(f"exit code {code} after Ctrl-C: {messages[-300:]}")
            if "Traceback" in messages or "Error" in messages:
                raise Wrong(f"a traceback after Ctrl-C: {messages.strip().splitlines()[-1]}")
            return
        if (place / "x.nc").exists() and code:
            raise Wrong(f"half a file is left, exit code {code}")
        if target == "/dev/full" and code == 0:
            raise Wrong("nothing could be written, and the exit code is 0")
        _check_output(case["arguments"], code, (output or "") if target is None else "{}", messages)

    return attempt


def explorer(folder: Path) -> Attempt:
    """Hostile requests to a real explorer on this machine."""
    token = "0123456789abcdef0123"
    said = open(folder / "said.txt", "w+b")
    process = subprocess.Popen(
        [*PROGRAM, "explore", "--no-browser", "--token", token],
        stdout=said,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    port = None
    for _ in range(1200):
        text = (folder / "said.txt").read_text()
        if "Explorer: http" in text:
            port = int(text.split("http://")[1].split(":")[1].split("/")[0])
            break
        time.sleep(0.1)
    assert port is not None, text
    (folder / "server.pid").write_text(str(process.pid))
    time.sleep(20)  # what it compiles at the start takes memory too
    host = f"127.0.0.1:{port}"
    paths = ("/", "/auth/login", "/health", "/api/kernel/instantiate", "/ws", "/assets/x.js", "/@file/1-x.png", "/x")
    bodies = (
        b"",
        b"password=" + token.encode(),
        b'{"objectIds": [], "values": []}',
        b"password=\xff\xfe",
        b"password=%FF%FE%00",
    )

    def memory() -> int:
        return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def asked(content: bytes, wait: float = 10.0) -> bytes:
        with unwatched(), socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
            try:
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
                answer = b""
                while piece := connection.recv(65536):
                    answer += piece
                    if len(answer) > 2**22:
                        break
                return answer
            except ConnectionError:
                return b""

    def request(method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}"
        if body or method == "POST":
            head += f"Content-Length: {len(body)}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        return f"{head}\r\n".encode("utf-8", "surrogateescape") + body

    def half_sent() -> None:
        before, length = memory(), 14 * 2**20
        with unwatched():
            open_ones = []
            try:
                for _ in range(40):
                    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
                    open_ones.append(connection)
                    try:
                        connection.sendall(
                            request("POST", "/auth/login").replace(b"Length: 0", b"Length: %d" % (length + 9))
                        )
                        connection.sendall(bytes(length))
                    except OSError:  # closed, or not read: both are fine
                        pass
                time.sleep(2)
                grown = memory() - before
            finally:
                for connection in open_ones:
                    connection.close()
        if grown > 100 * 2**20:
            raise Wrong(f"{grown / 2**20:.0f} MiB for half-sent requests")

    def slow(beginning: bytes) -> None:
        with unwatched(), socket.create_connection(("127.0.0.1", port), timeout=45) as connection:
            connection.sendall(beginning)
            try:
                while connection.recv(65536):
                    pass
            except TimeoutError:
                raise Wrong("a connection that says nothing is kept for 45 s and more") from None
            except ConnectionError:
                pass

    def page() -> None:
        answer = asked(request("GET", f"/?access_token={token}"))
        cookies = "; ".join(
            line.split(b": ", 1)[1].split(b";")[0].decode()
            for line in answer.split(b"\r\n")
            if line.lower().startswith(b"set-cookie")
        )
        text = asked(request("GET", "/", headers=f"Cookie: {cookies}\r\n"))
        if b" 200 " not in text[:20]:
            raise Wrong(f"no page: {text[:60]!r}")
        import thermoformer

        for secret in (str(Path(thermoformer.__file__).parent), str(Path.home()) + "/", os.getcwd()):
            if secret.encode() in text:
                raise Wrong("an absolute path in the page")

    def refused_token(text: str, method: str) -> None:
        answer = asked(
            request("GET", f"/?access_token={text}")
            if method == "GET"
            else request("POST", "/auth/login", f"password={text}".encode())
        )
        if b" 5" in answer[:12]:
            raise Wrong(f"status {answer[9:12]!r} for a token of {text!r}")

    tokens = ("é", "%C3%A9", "%FF", "%00", "", "%F0%9F%98%80")
    known: list[Any] = [half_sent, page]
    known += [
        lambda beginning=beginning: slow(beginning)
        for beginning in (b"G", request("POST", "/auth/login", b"x" * 9)[:-4])
    ]
    known += [
        lambda text=text, method=method: refused_token(text, method) for text in tokens for method in ("GET", "POST")
    ]

    def attempt(random: Random, place: Path, number: int) -> None:
        at = said.seek(0, os.SEEK_END)
        if number < len(known):
            known[number]()
        else:
            fields = [random.choice(_HEADERS) for _ in range(random.randrange(4))]
            headers = "".join(f"{field}: {random.choice(ODD_TEXT[:30])}\r\n" for field in fields)
            method = random.choice(("GET", "GET", "POST", "POST", "HEAD", "PUT", "OPTIONS", "é"))
            query = random.choice(("", f"?access_token={token}", "?access_token=" + random.choice(ODD_TEXT[:30])))
            content = request(method, random.choice(paths) + query, random.choice(bodies), headers)
            if random.random() < 0.5:
                content = damaged(random, content)
            (place / "request.bin").write_bytes(content)
            answer = asked(content)
            if answer[9:10] == b"5":
                raise Wrong(f"status {answer[9:12].decode()}")
            if answer[9:10] == b"4" or not answer:
                self_check()
                said.seek(at)
                if b"Traceback" in said.read():
                    raise Wrong("a traceback in the server's output")
                raise ValueError("refused: got a request; expected another")
        time.sleep(0.01)
        self_check()
        said.seek(at)
        if b"Traceback" in (new := said.read()):
            raise Wrong(f"a traceback in the server's output: {new.decode(errors='replace').strip().splitlines()[-1]}")

    def self_check() -> None:
        if process.poll() is not None:
            raise Wrong(f"the server has ended with {process.returncode}")

    return attempt


TARGETS = [
    Target("command lines", command_lines, 4, most=3000, batch=500, seconds=60),
    Target("foreign files", foreign_files, 1, most=90, seconds=120),
    Target("odd files", odd_files, 1, most=108, seconds=30),
    Target("processes", processes, 1, most=100, seconds=150, batch=25),
    Target("explorer", explorer, 3, most=4000, seconds=120, batch=4000),
]

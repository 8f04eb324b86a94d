"""Damaged files, absurd commands and hostile requests against every reader and the command line.

Each input follows from (seed, target, number) alone. It is *accepted* (and its values are compared with the right ones
where these are known), *refused* (a ValueError or OSError that says what is wrong, or an exit code with one line), or a
*failure*: another exception, a traceback, a crash, a wrong value, a program that was run, a foreign file overwritten,
or a limit of time or memory exceeded. Inputs run in child processes, so that a crash costs one input.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import platform
import queue
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from thermoformer._progress import shown_progress

ACCEPTED, REFUSED, FAILURE = "accepted", "refused", "failure"
# Seconds until a child has imported the library and made its valid inputs.
START = 300.0
# Address space that one input may reserve beyond what its child had before, in bytes.
MOST_RESERVED = 4 * 2**30
# Crashes and hangs of one batch after which the rest of it is given up: each costs a start.
MOST_RESTARTS = 20

Attempt = Callable[[Random, Path, int], None]


class Wrong(Exception):
    """A failure that no exception of the library shows, such as a wrong value."""


class Target(NamedTuple):
    """Something that reads input.

    Fields:
        name: for the table and `--target`.
        prepare: makes valid inputs in a folder and returns a function that runs one input: it gets a random generator,
            an empty folder (also the working directory) and the input's number.
        share: of the inputs, relative to other targets.
        most: limit on the number of inputs, for targets whose inputs take seconds.
        seconds: that one input may take.
        batch: inputs per child process.
        memory: bytes that one input may take beyond what its child had before.
    """

    name: str
    prepare: Callable[[Path], Attempt]
    share: int
    most: int | None = None
    seconds: float = 30.0
    batch: int = 2500
    memory: int = 2**30


class Outcome(NamedTuple):
    """What one input led to; failures with equal signatures have one cause, as far as one can tell."""

    target: str
    number: int
    kind: str
    signature: str = ""
    detail: str = ""


@dataclass
class Results:
    """Counts and seconds by target (summed over workers), and failures by target and signature."""

    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[tuple[str, str], list[Outcome]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def add(self, outcome: Outcome) -> None:
        with self.lock:
            row = self.counts.setdefault(outcome.target, dict.fromkeys((ACCEPTED, REFUSED, FAILURE), 0))
            row[outcome.kind] += 1
            if outcome.kind == FAILURE:
                self.failures.setdefault((outcome.target, outcome.signature), []).append(outcome)

    def total(self, kind: str | None = None) -> int:
        with self.lock:
            return sum(count for row in self.counts.values() for name, count in row.items() if kind in (None, name))


class Job(NamedTuple):
    """Numbers of inputs of one target that one child runs."""

    target: Target
    seed: int
    numbers: list[int]


# Events of the interpreter that no input may lead to: a program, a pickle, a name looked up on a network.
FORBIDDEN = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class", "socket.getaddrinfo"}
_seen: list[str] = []
_watched = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    # Git may be run (the target `git` sees what it runs), and the child that reads a netCDF file first.
    if _watched and event in FORBIDDEN and arguments[0] != "git" and not _checks_netcdf(event, arguments):
        _seen.append(f"{event} {str(arguments)[:150]}")


def _checks_netcdf(event: str, arguments: tuple[Any, ...]) -> bool:
    ours = getattr(sys.modules.get("thermoformer._files"), "_READ_ALL", None)
    return event == "subprocess.Popen" and arguments[1][:-1] == [sys.executable, "-I", "-c", ours]


def forbidden(what: str) -> Callable[..., Any]:
    """A function to put in place of one that no input may lead to; it is a failure even where the library goes on."""

    def called(*_: Any, **__: Any) -> None:
        _seen.append(f"{what} was called")
        raise Wrong(_seen[-1])

    return called


class unwatched:
    """Lets the harness itself start a process or open a connection."""

    def __enter__(self) -> None:
        global _watched
        self.before, _watched = _watched, False

    def __exit__(self, *_: object) -> None:
        global _watched
        _watched = self.before


def _child(job: Job, folder: Path, saved: Path, pipe: Any) -> None:
    """Runs inputs one after the other and sends an outcome for each; ends early where one took too much memory."""
    global _watched
    os.setpgid(0, 0)  # the parent ends this process with all that it started
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    place, seeds = folder / "input", folder / "seeds"
    seeds.mkdir(exist_ok=True)
    try:
        attempt = job.target.prepare(seeds)
        platform.processor()  # runs a program, and keeps what it says
        with suppress(ImportError):  # dask unpickles functions of its own when it is imported
            import dask.array  # noqa: F401
    except BaseException:
        pipe.send(traceback.format_exc())
        return
    reserved = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (reserved + MOST_RESERVED, reserved + MOST_RESERVED))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(_watch)
    pipe.send(None)  # ready
    kept: set[str] = set()
    for number in job.numbers:
        os.chdir(seeds)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        os.chdir(place)
        _seen.clear()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is taken now
        before = _peak()
        _watched = True
        outcome = _outcome(job, attempt, place, number)
        _watched = False
        taken = _peak() - before
        if _seen and outcome.kind != FAILURE:
            outcome = outcome._replace(kind=FAILURE, signature=_seen[0][:80], detail="\n".join(_seen))
        if taken > job.target.memory and outcome.kind != FAILURE:
            outcome = outcome._replace(kind=FAILURE, signature="memory", detail=f"{taken / 2**20:.0f} MiB")
        if outcome.kind == FAILURE and outcome.signature not in kept:
            kept.add(outcome.signature)
            _keep(place, saved / f"{job.target.name}-{number}", outcome)
        pipe.send(outcome)
        if taken > job.target.memory:
            break
    os._exit(0)  # threads that an input started do not hold this up


def _outcome(job: Job, attempt: Attempt, place: Path, number: int) -> Outcome:
    name = job.target.name
    try:
        attempt(Random(f"{job.seed} {name} {number}"), place, number)
    except (ValueError, OSError) as error:
        text = str(error)
        if (fault := unclear(text)) is None:
            return Outcome(name, number, REFUSED)
        return Outcome(name, number, FAILURE, f"{fault}: {_signature(error)}", traceback.format_exc()[-4000:])
    except BaseException as error:
        return Outcome(name, number, FAILURE, _signature(error), traceback.format_exc()[-4000:])
    return Outcome(name, number, ACCEPTED)


def unclear(text: str) -> str | None:
    """What is wrong with a refusal; None where it names an argument, what came and what was expected."""
    if "Traceback (most recent call last)" in text:
        return "traceback in the message"
    if not text.strip():
        return "empty message"
    # Errors of the system name the file; the command line's parser has a form of its own.
    if not re.search(r"got |expected|\[Errno \d+\]|Usage:|─ Error ─|Interrupted|cannot|could not|checksum|try a", text):
        return "unclear message"
    return None


def _signature(error: BaseException) -> str:
    """The exception and the deepest line of the library in its traceback."""
    while isinstance(error, Wrong) and error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{Path(one.filename).name}:{one.lineno}" for one in frames if "/thermoformer/" in one.filename]
    message = re.sub(r"0x[0-9a-f]+|/\S*|\d+", "#", str(error).split("\n")[0])[:70]
    return f"{type(error).__name__}{' at ' + ours[-1] if ours else ''}: {message}"


def _peak() -> int:
    """The most memory that this process took, in bytes; that of `getrusage` would begin with its parent's."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def _keep(place: Path, saved: Path, outcome: Outcome) -> None:
    """A copy of the input that failed, plain files only, with the error beside it."""
    saved.mkdir(parents=True, exist_ok=True)
    for path in list(place.rglob("*"))[:200]:
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 2**22:
            (saved / "input" / path.relative_to(place)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, saved / "input" / path.relative_to(place))
    text = f"{outcome.signature}\n\n{outcome.detail}\n"
    (saved / "failure.txt").write_text(text, encoding="utf-8", errors="backslashreplace")


def _run_job(job: Job, saved: Path, results: Results, stopping: threading.Event) -> None:
    """All inputs of a job: a child that crashes or hangs is replaced, and its input is a failure."""
    left, restarts = list(job.numbers), 0
    with tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        while left and restarts < MOST_RESTARTS and not stopping.is_set():
            ours, theirs = get_context("spawn").Pipe(duplex=False)
            given = (job._replace(numbers=left), folder, saved, theirs)
            process = get_context("spawn").Process(target=_child, args=given, daemon=True)
            process.start()
            theirs.close()
            began, limit, why = time.monotonic(), START, ""
            while left and not why and not stopping.is_set():
                try:
                    if ours.poll(0.5):
                        outcome = ours.recv()
                        if isinstance(outcome, str):
                            results.add(Outcome(job.target.name, left[0], FAILURE, "no valid inputs", outcome))
                            left = []
                            break
                        if outcome is not None:
                            results.add(outcome)
                            left.remove(outcome.number)
                        began, limit = time.monotonic(), job.target.seconds
                    elif time.monotonic() - began > limit:
                        why = f"no answer within {limit:.0f} s"
                except (EOFError, OSError):
                    process.join(10)
                    why = "ended" if process.exitcode == 0 else f"crash: exit code {process.exitcode}"
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
            # A child that took too much memory ends by itself, its last outcome sent.
            if why not in ("", "ended"):
                detail = (folder / "output.txt").read_text("utf-8", "replace")[-4000:]
                outcome = Outcome(job.target.name, left.pop(0), FAILURE, why, detail)
                _keep(folder / "input", saved / f"{job.target.name}-{outcome.number}", outcome)
                results.add(outcome)
                restarts += 1


def run(jobs: Iterable[Job], workers: int, saved: Path, *, shown: bool | None = None) -> tuple[Results, bool]:
    """Runs all jobs, and returns the results and whether Ctrl-C ended it early."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    total = 0
    for job in jobs:
        waiting.put(job)
        total += len(job.numbers)
    results, stopping = Results(), threading.Event()

    def work() -> None:
        while not stopping.is_set():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            started = time.monotonic()
            _run_job(job, saved, results, stopping)
            with results.lock:
                taken = results.seconds.get(job.target.name, 0.0) + time.monotonic() - started
                results.seconds[job.target.name] = taken

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    try:
        with shown_progress(shown) as report:
            while any(thread.is_alive() for thread in threads):
                done = results.total()
                left = (time.monotonic() - began) * (total - done) / max(done, 1) / 60
                report(done, total, f"{results.total(FAILURE)} failures; {left:.0f} min left")
                time.sleep(0.2)
        return results, False
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end takes a second; another Ctrl-C changes nothing
        stopping.set()
        return results, True
    finally:
        for thread in threads:
            thread.join()


def jobs_for(targets: Sequence[Target], inputs: int, seed: int) -> list[Job]:
    """Inputs dealt to targets by their shares; what is above a target's most goes to the others."""
    counts: dict[str, int] = {}
    left, open_targets = inputs, list(targets)
    while open_targets:
        shares = sum(target.share for target in open_targets)
        capped = [target for target in open_targets if target.most and left * target.share > target.most * shares]
        for target in capped or open_targets:
            counts[target.name] = target.most or 0 if capped else -(-left * target.share // shares)
        left -= sum(counts[target.name] for target in capped)
        open_targets = [target for target in open_targets if capped and target not in capped]
    batches = [
        Job(target, seed, list(range(start, min(start + target.batch, counts[target.name]))))
        for target in targets
        for start in range(0, counts[target.name], target.batch)
    ]
    # The slow ones first, so that no worker is left alone with them.
    return sorted(batches, key=lambda job: -job.target.seconds)


def report(results: Results, saved: Path, seed: int) -> None:
    """Prints the table of counts and the failures, and writes `failures.json`, which `--replay` takes."""
    print(f"{'target':<18}{'inputs':>9}{'accepted':>10}{'refused':>9}{'failures':>10}{'seconds':>9}")
    for name, row in [
        *sorted(results.counts.items()),
        ("all", {kind: results.total(kind) for kind in (ACCEPTED, REFUSED, FAILURE)}),
    ]:
        counts = f"{sum(row.values()):>9}{row[ACCEPTED]:>10}{row[REFUSED]:>9}{row[FAILURE]:>10}"
        print(f"{name:<18}{counts}{results.seconds.get(name, sum(results.seconds.values())):>9.0f}")
    for (name, signature), found in sorted(results.failures.items(), key=lambda item: (item[0][0], -len(item[1]))):
        print(f"{name}: {len(found)} × {signature} (input {min(one.number for one in found)})")
    if results.failures:
        saved.mkdir(parents=True, exist_ok=True)
        every = [one for found in results.failures.values() for one in found]
        rows = [{"target": one.target, "number": one.number, "signature": one.signature} for one in every]
        (saved / "failures.json").write_text(json.dumps({"seed": seed, "failures": rows}, indent=1))
        print(f"Inputs that failed: {saved}; run them again with --replay {saved}")


def main() -> int:
    from fuzz_targets import TARGETS

    named = {target.name: target for target in TARGETS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=sorted(named), help="may be given several times")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("results/fuzz"), help="folder for inputs that failed")
    parser.add_argument("--replay", type=Path, help="run the failures of such a folder again")
    options = parser.parse_args()
    seed = options.seed
    if options.replay:
        record = json.loads((options.replay / "failures.json").read_text())
        seed, numbers = record["seed"], {}
        for one in record["failures"]:
            numbers.setdefault(one["target"], []).append(one["number"])
        jobs = [Job(named[name], seed, sorted(found)) for name, found in numbers.items()]
    else:
        jobs = jobs_for([named[name] for name in options.target or named], options.inputs, seed)
    results, interrupted = run(jobs, options.workers, options.out)
    report(results, options.out, seed)
    return 130 if interrupted else int(bool(results.failures))


if __name__ == "__main__":
    import fuzz  # under its own name, as in the children and in fuzz_targets

    sys.exit(fuzz.main())

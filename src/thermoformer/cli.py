"""The command `thermoformer`: one call of a public function per command.

Packages are imported inside the commands, so that `thermoformer --help` does not wait for JAX.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from . import __version__
from ._files import refuse_foreign
from ._progress import console_progress
from ._terminal import (
    file_for_results,
    folder_for_results,
    messages,
    plain_errors,
    run_command,
    screen,
)
from ._validation import fail, nonnegative_integer

# A rule of the style sheet that every page of an experiment has; those of earlier versions do not name thermoformer.
PAGE_MARK = b"p.lead { font-size: 1.1em; color: #444; }"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="The statistical mechanics of transformers.",
)


def main() -> NoReturn:
    """Run the command line."""
    run_command(app)


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=lambda on: on and _version())
    ] = False,
) -> None:
    pass


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
ExecutorName = Annotated[
    Literal["local", "processes", "dask"], typer.Option("--executor", help="Where the points of a sweep run.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Worker processes.", show_default="as many as cores")]
ClusterAddress = Annotated[str | None, typer.Option(help="Address of a dask scheduler.")]


def _experiment_names(incomplete: str) -> list[tuple[str, str]]:
    """What the shell offers after `reproduce`: names with what they show."""
    from .experiments import EXPERIMENTS

    return [(name, one.summary) for name, one in EXPERIMENTS.items() if name.startswith(incomplete)]


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="The experiment; without it, the list of experiments.",
            autocompletion=_experiment_names,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small size: seconds to minutes, as the list says.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random number.")] = 0,
    train: Annotated[bool, typer.Option("--train", help="Train a network first, where one is needed.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for what it writes.", show_default="results/NAME")] = None,
    executor: ExecutorName = "local",
    workers: Workers = None,
    cluster: ClusterAddress = None,
) -> None:
    """Run an experiment by name, or list them."""
    folder = out or Path("results") / (name or "")
    with plain_errors(kept=folder):
        from .experiments import EXPERIMENTS, Executor

        if name is None:
            table = Table("name", "what it shows", "quick")
            for experiment in EXPERIMENTS.values():
                table.add_row(experiment.name, experiment.summary, experiment.quick_time)
            screen.print(table)
            return
        if name not in EXPERIMENTS:
            raise fail("experiment", repr(name), f"one of {', '.join(EXPERIMENTS)}")
        nonnegative_integer("seed", seed)
        folder_for_results(folder)
        refuse_foreign(folder / f"{EXPERIMENTS[name].module}.html", mark=PAGE_MARK)
        with console_progress(messages) as progress:
            where = Executor(executor, workers, cluster)
            given = {"quick": quick, "seed": seed, "train": train, "executor": where, "progress": progress}
            page = EXPERIMENTS[name].run(folder, **given)
        _tell(f"Page: {page}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for what it writes.")] = Path("results/demo"),
) -> None:
    """Run a quick experiment of each theory, and write one page about both."""
    with plain_errors(kept=out):
        folder_for_results(out)
        refuse_foreign(out / "index.html", mark=PAGE_MARK)
        from .experiments import EXPERIMENTS, run_demo
        from .experiments.demo import PARTS

        messages.print(f"{len(PARTS)} quick experiments, then one page about them. Times are those of two CPU cores.")
        for number, name in enumerate(PARTS, 1):
            part = EXPERIMENTS[name]
            messages.print(f"{number}. {name}, {part.quick_time}: {part.summary}", highlight=False)
        with console_progress(messages) as progress:
            page = run_demo(out, progress=progress)
        _tell(f"Page: {page}")


@app.command()
def solve(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="npz file (y with xi, or with x and attention_1, ...), or csv file.")
    ],
    width: Annotated[str, typer.Option(help="One width, or N_1..N_L and N_a separated by commas.")],
    temperature: Annotated[float, typer.Option(help="Variance of the observation noise.")],
    heads: Annotated[str | None, typer.Option(help="Heads per layer, as in 2,2; not needed with x.")] = None,
    variance: Annotated[str, typer.Option(help="One prior variance, or σ0², σ1²..σL², σa² with commas.")] = "1.0",
    readout: Annotated[
        Literal["last", "first", "mean"], typer.Option(help="Query position of the readout; used with x only.")
    ] = "last",
    form: Annotated[
        Literal["auto", "pairs", "features", "dual"], typer.Option(help="How the kernel is computed.")
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Solve the theory for your own arrays.

    An npz file may also hold xi_test, or x_test with attention_test_1, ..., and y_test: then their predictions come
    too. A csv file has a row per example, a column named label, and a column per feature, named path.feature if there
    are several paths. Labels 0 and 1 are read as -1 and +1.
    """
    with plain_errors(), messages.status("Solving"):
        widths = _one_or_more(_numbers("width", width, int))
        variances = _one_or_more(_numbers("variance", variance, float))
        given = None if heads is None else _numbers("heads", heads, int)

        from ._reports import solution_report, solution_tables
        from .arrays import read_arrays
        from .learning import Architecture
        from .learning import solve as solve_theory

        arrays = read_arrays(file, readout=readout)
        arch = Architecture(heads=arrays.heads_per_layer(given), widths=widths, variances=variances)
        solution = solve_theory(arch, arrays.features, arrays.labels, temperature=temperature, form=form)
        report = solution_report(arrays, solution)
    _show(report, solution_tables, as_json)


FeaturesFile = Annotated[
    str,
    typer.Argument(metavar="FILE", help="Matrix or table of signs, npz file of features, or the word paper."),
]
# Shown under the help of both commands.
SIGN_FILES = """Two files that work. A matrix of signs (csv, txt, npy or npz) has one pattern per row, used for all four
roles (as in a Hopfield network), and no positional bits:

    1,-1,1,1
    -1,1,1,-1

A table of signs has one pattern per line under its role o, v, q or k, positional bits after a bar:

    o +-++|-+
    v -++-|++
    q ++-+|--
    k -+++|+-"""
Beta = Annotated[float, typer.Option(help="Inverse temperature of the output.")]
Gamma = Annotated[float, typer.Option(help="Inverse temperature of attention.")]
Epsilon = Annotated[
    float | None,
    typer.Option(help="Weight of positions, from 0 to 1.", show_default="0.02; 0 without positional bits"),
]
Context = Annotated[
    int | None,
    typer.Option(help="Number of tokens that attention sees.", show_default="2^(positional bits); 4 without them"),
]
Transient = Annotated[int, typer.Option(help="Steps before these, which are not kept.")]


@app.command(epilog=SIGN_FILES)
def orbit(
    features: FeaturesFile,
    beta: Beta,
    gamma: Gamma = 220.0,
    epsilon: Epsilon = None,
    context: Context = None,
    steps: Annotated[int, typer.Option(help="Steps that are kept.")] = 1000,
    transient: Transient = 1000,
    out: Annotated[Path | None, typer.Option(help="netCDF file for the whole orbit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run the mean-field map of your own features and summarise its overlaps."""
    with plain_errors(), messages.status("Running"):
        if out is not None:
            file_for_results(out)
        from ._dynamics_files import check_sizes, mean_field, refuse_no_orbit, write_orbit
        from ._reports import orbit_report, orbit_tables
        from .dynamics import orbit as run_orbit

        if out is not None:
            refuse_no_orbit(out)
        model, start = mean_field(features, beta=beta, gamma=gamma, epsilon=epsilon, context=context)
        check_sizes(model, steps=steps, transient=transient, kept=steps)
        found = run_orbit(model, start, steps=steps, transient=transient)
        report = orbit_report(model, found, transient)
        if out is not None:
            write_orbit(model, found, transient, out)
    _show(report, orbit_tables, as_json)


@app.command(epilog=SIGN_FILES)
def lyapunov(
    features: FeaturesFile,
    beta: Beta,
    gamma: Gamma = 220.0,
    epsilon: Epsilon = None,
    context: Context = None,
    steps: Annotated[int, typer.Option(help="Steps that exponents are averaged over.")] = 20_000,
    transient: Transient = 20_000,
    k: Annotated[int | None, typer.Option("-k", help="How many leading exponents.", show_default="all")] = None,
    longest_period: Annotated[int, typer.Option(help="Longest period that is searched for.")] = 2000,
    confirm: Annotated[int, typer.Option(help="Continue for up to this many steps to rule out transient chaos.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Lyapunov exponents, regime and period of the mean-field map of your own features."""
    with plain_errors(), messages.status("Running"):
        from ._dynamics_files import check_sizes, mean_field
        from ._reports import regime_report, regime_tables
        from .dynamics import regime

        model, start = mean_field(features, beta=beta, gamma=gamma, epsilon=epsilon, context=context)
        count = model.dimension if k is None else k
        others = {"confirm": confirm, "longest_period": longest_period}
        check_sizes(model, directions=count, steps=steps, transient=transient, **others)
        verdict = regime(
            model, start, steps=steps, transient=transient, k=count, longest_period=longest_period, confirm=confirm
        )
        report = regime_report(model, verdict)
    _show(report, regime_tables, as_json)


sweeps = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Look at a sweep on disk, or continue it.")
app.add_typer(sweeps, name="sweep")
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the sweep.")]


@sweeps.command()
def status(folder: Folder, as_json: AsJson = False) -> None:
    """Show the progress of a sweep, who is writing to it, why points failed and which are damaged."""
    with plain_errors():
        from ._reports import sweep_report, sweep_tables
        from .sweeps import SweepStore

        report = sweep_report(SweepStore(folder))
    _show(report, sweep_tables, as_json)


@sweeps.command()
def show(
    folder: Folder,
    result: Annotated[str | None, typer.Option(help="Which result.", show_default="the first")] = None,
    out: Annotated[Path | None, typer.Option(help="Files to write, without ending.", show_default="DIR/figure")] = None,
    live: Annotated[bool, typer.Option("--live", help="Draw again while the sweep runs.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between drawings with --live.")] = 5.0,
) -> None:
    """Draw the finished points of a sweep, also while it runs: PNG, SVG and a page that reloads itself."""
    with plain_errors():
        from ._sweep_page import draw, follow
        from .sweeps import SweepStore

        store, stem = SweepStore(folder), out or folder / "figure"
        if not stem.name:
            raise fail("out", repr(str(stem)), "the name of a file without its ending")
        refuse_foreign(*(stem.with_name(stem.name + end) for end in (".png", ".svg")), stem.with_suffix(".html"))
        if live:
            with messages.status("Drawing") as line:

                def say(page: Path, report: dict[str, Any]) -> None:
                    line.update(f"{report['done']} of {report['points']} points; {page}")

                page = follow(store, result, stem, every, say)
        else:
            page = draw(store, result, stem)
    _tell(f"Page: {page}")


@sweeps.command()
def resume(
    folder: Folder,
    function: Annotated[
        str | None, typer.Option(help="module:name of the function; needed unless it is of this library.")
    ] = None,
    executor: ExecutorName = "local",
    workers: Workers = None,
    cluster: ClusterAddress = None,
    time_limit: Annotated[float | None, typer.Option(help="Seconds that a point may take.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run failed points again.")] = False,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Continue although function, arguments or versions have changed.")
    ] = False,
) -> None:
    """Continue a sweep from its folder: runs the points that are not done, and those that are damaged."""
    with plain_errors(kept=folder):
        from ._reports import sweep_report, sweep_tables
        from .sweeps import Sweep

        sweep = Sweep.from_store(folder, function)
        where = {"workers": workers, "cluster": cluster, "time_limit": time_limit}
        with console_progress(messages) as progress:
            sweep.run(executor, **where, retry=retry, accept_changes=accept_changes, progress=progress)
        report = sweep_report(sweep.store)
    _show(report, sweep_tables, as_json=False)


@app.command()
def train(
    task: Annotated[Literal["one-shot"], typer.Argument(metavar="TASK", help="What to learn: one-shot.")],
    heads: Annotated[str | None, typer.Option(help="Heads per layer.", show_default="4,4")] = None,
    width: Annotated[int | None, typer.Option(help="Width N.", show_default="512")] = None,
    key_size: Annotated[int | None, typer.Option(help="Rows of the query and key weights.", show_default="128")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps, one batch each.", show_default="41000")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences per batch.", show_default="128")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate of Adam.", show_default="0.001")] = None,
    clip: Annotated[
        float | None, typer.Option(min=0, help="Clip gradients at this norm; 0 turns clipping off.", show_default="1")
    ] = None,
    head_dropout: Annotated[
        float | None, typer.Option(min=0, help="Probability of leaving a head out in training.", show_default="0")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many validations without progress.", show_default="never")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and sequences.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for what it writes.", show_default="results/train-TASK")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small network on a few characters.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a network by gradient descent. The same command continues an interrupted training."""
    folder = out or Path("results") / f"train-{task}"
    with plain_errors(kept=folder):
        folder_for_results(folder)
        refuse_foreign(folder / "record.json")
        layers = None if heads is None else _numbers("heads", heads, int)

        from ._reports import training_tables
        from .experiments.one_shot.training import OneShotTrainingConfig, run_one_shot_training

        given = {"heads": layers, "width": width, "key_size": key_size, "steps": steps, "batch": batch, "seed": seed}
        make = OneShotTrainingConfig.quick if quick else OneShotTrainingConfig.full
        config = make(**given, learning_rate=learning_rate, clip=clip, head_dropout=head_dropout, patience=patience)
        with console_progress(messages) as progress:
            record = run_one_shot_training(config, folder, progress)
    _show(record, training_tables, as_json)
    if not as_json:
        _tell(f"Network: {folder / 'network.safetensors'}")


@app.command()
def heads(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A folder with a model and its tokenizer, a name on the hub, a GGUF file."
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Plain text (.txt), or labelled texts (.tsv: text, tab, label)."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="trec or sst2; or a file, here or as FILE.", show_default="FILE")
    ] = None,
    goal: Annotated[
        Literal["auto", "probe", "classifier", "language"],
        typer.Option(help="What is judged; by default as file and model suggest."),
    ] = "auto",
    prune: Annotated[float, typer.Option(help="The share of the heads to remove.")] = 0.5,
    method: Annotated[str, typer.Option(help="How heads are scored: evidence, theory, gradient, ...")] = "evidence",
    out: Annotated[Path, typer.Option(help="Folder for what it writes.")] = Path("results/heads"),
    uniform: Annotated[bool, typer.Option("--uniform", help="Remove equally many heads from every layer.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Also draw pruning curves of ten rules.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of draws of the data, with --compare.")] = 5,
    examples: Annotated[
        int | None, typer.Option(min=1, help="Examples to score with.", show_default="1000 texts, 64 sequences")
    ] = None,
    test_examples: Annotated[int | None, typer.Option(min=1, help="Examples to test on.", show_default="all")] = None,
    length: Annotated[int | None, typer.Option(min=2, help="Maximum number of tokens per example.")] = None,
    readout: Annotated[Literal["mean", "first", "last"], typer.Option(help="Which token a probe reads.")] = "mean",
    masked: Annotated[bool, typer.Option("--masked", help="Also write a checkpoint for from_pretrained.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Examples per batch.")] = 64,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="Precision of the weights.")
    ] = "float32",
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to compute.")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random number.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Remove the heads of a pretrained transformer that a task does not need, and save the rest."""
    with plain_errors(kept=out):
        folder_for_results(out)
        from ._reports import heads_tables
        from .experiments.heads import run_heads

        sizes = {"seeds": seeds, "examples": examples, "test_examples": test_examples, "length": length, "batch": batch}
        how = {"task": task, "file": file, "goal": goal, "prune": prune, "method": method, "uniform": uniform}
        with console_progress(messages) as progress:
            where = {"readout": readout, "masked": masked, "dtype": dtype, "device": device, "seed": seed}
            record = run_heads(model, out, **how, **sizes, **where, compare=compare, progress=progress)
    _show(record, heads_tables, as_json)
    if not as_json:
        _tell(f"Model: {out / 'pruned'}\n{record['load']}\nPage: {record['page']}")


@app.command()
def explore(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.", show_default="any free one")] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond this machine only with a token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(help="Access token. Generated automatically for hosts other than this machine.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
) -> None:
    """Open the explorer: both theories in a browser, until Ctrl-C."""
    with plain_errors():
        from .app import explore as serve
        from .app import place_for

        place = place_for(host, port, token)
        serve(place, browser=browser, started=lambda link: _tell(f"Explorer: {link}  (Ctrl-C stops it)"))
    # A thread may still compute what nobody waits for any more; a normal exit would wait for it.
    sys.stdout.flush()
    os._exit(0)


@app.command()
def cite() -> None:
    """Print BibTeX of what to cite."""
    from .citations import bibtex

    typer.echo(bibtex())


def _tell(text: str) -> None:
    """One line, which the terminal may wrap."""
    screen.print(Text(text), soft_wrap=True)


def _show(report: dict[str, Any], tables: Callable[[dict[str, Any]], Iterable[Table]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report, allow_nan=False))
        return
    for table in tables(report):
        screen.print(table)


def _version() -> NoReturn:
    typer.echo(f"thermoformer {__version__}")
    raise typer.Exit


def _numbers(name: str, text: str, kind: type[int] | type[float]) -> tuple:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise fail(name, repr(text), f"{what} separated by commas") from None


def _one_or_more(numbers: tuple) -> Any:
    """A single number is handed over bare: the library broadcasts it."""
    return numbers[0] if len(numbers) == 1 else numbers

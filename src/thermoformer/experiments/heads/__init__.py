"""Heads removed from a pretrained transformer: scored, cut out, judged and saved."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ... import __version__
from ..._files import refuse_foreign, write_safely
from ..._progress import Progress, advanced_by_passes, silent
from ..._validation import fail, nonnegative_integer, one_of, positive_integer
from ...learning import HeadScores
from ...learning.scores import head_name
from ...transformers import (
    METHODS,
    adapter_for,
    export_masked,
    goal_for,
    measured_speed,
    prune_heads,
    pruning_curve,
    removal_order,
    save_pruned,
    score_heads,
)
from ...transformers.curves import AGAIN, COMPARED, TIMED, draw
from ...transformers.families import Head
from ...transformers.files import MASKED_MARK, PRUNED_MARK, loading_lines, refuse_foreign_folder
from ...transformers.judge import judged
from .. import store
from ..base import write_report
from ..words import binomial_error, fixed, with_texts
from .inputs import GOALS, check_device, examples_for, load_model, quiet, read_task

if TYPE_CHECKING:
    import xarray as xr

# Shares of the heads that are removed in a comparison, besides the requested one.
FRACTIONS = (0.25, 0.5, 0.75)
# Examples that heads are scored with by default; a sequence has a target in each of its tokens.
TEXTS, SEQUENCES = 1000, 64
# The files that are written, each with what tells it from a file of the same name that is not ours.
FILES = {
    "scores.csv": b"layer,head,score,removed",
    "order.csv": b"step,layer,head,score",
    "record.json": b'"scored_again"',
    "curves.csv": b"method,removed,",
    "curves.nc": b"config_hash",
} | dict.fromkeys(("heads.html", "scores.png", "scores.svg", "curves.png", "curves.svg"), b"thermoformer")

_MEANING = {
    "evidence": "log evidence lost without the head",
    "evidence_exact": "log evidence lost without the head, each removed in turn",
    "theory": "U of the head's path",
    "gradient": "mean |slope of the loss| in the head's mask",
    "gradient_by_layer": "mean |slope of the loss|, divided by its norm in the layer",
    "magnitude": "norm of the head's values times its output weights",
    "ablation": "loss gained without the head",
}


def run_heads(
    model: str | Path,
    out: str | Path,
    *,
    task: str | Path | None = None,
    file: str | Path | None = None,
    goal: str = "auto",
    prune: float = 0.5,
    method: str = "evidence",
    uniform: bool = False,
    compare: bool = False,
    methods: Sequence[str] = COMPARED,
    seeds: int = 5,
    examples: int | None = None,
    test_examples: int | None = None,
    length: int | None = None,
    readout: str = "mean",
    masked: bool = False,
    batch: int = 64,
    dtype: str = "float32",
    device: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Scores the heads of a pretrained model for a task, removes some, judges what is left and saves it.

    Into the folder go `pruned/` (the smaller model with its tokenizer, for `load_pruned`), `scores.csv`, `order.csv`,
    `record.json` and the page `heads.html`. Nothing is trained.

    Arguments:
        model: a folder, also one of `save_pruned`, or a name on the hub, of a known family, with safetensors; or a GGUF
            file, in a folder or on the hub.
        out: folder for what is written; made if missing.
        task: "trec", "sst2", a file FILE.tsv of labelled texts, a file FILE.txt of plain text, or "text" with `file`.
            A model with a head for classes is judged by its own accuracy, any other model by the accuracy of a linear
            probe, and a language model on plain text by its perplexity, one of masked tokens by that of the tokens that
            are masked.
        file: plain text, for the task "text"; without a task, a file of either kind.
        goal: "language" for a plain text; "classifier" or "probe" for labelled texts; "auto" by file and model.
        prune: the share of the heads to remove, between 0 and 1.
        method: as in `score_heads`; evidence is scored again as heads go.
        uniform: remove equally many heads from every layer, as `within_layers` of `removal_order` does.
        compare: draw pruning curves of `methods` over several draws of the data too. Finished points are kept in
            `points/`, and a second call goes on from them.
        methods: what is compared, as in `pruning_curve`.
        seeds: how many draws a comparison has.
        examples: how many are drawn to score with, and for a probe to learn from; all if there are fewer. Default: 1000
            labelled texts, or 64 sequences of a plain text.
        test_examples: how many are drawn to judge by; default: all.
        length: tokens of an example at most.
        readout: of tokens, for a probe: "mean", "first" or "last".
        masked: also write `masked/`, a checkpoint of full size in which the heads are silent, for `from_pretrained`.
        batch: examples at once.
        dtype: precision of the weights, also of those that are saved: "float32", "bfloat16" or "float16".
        device: "cpu" or "cuda"; default: the CPU.
        seed: all random numbers follow from it.
        progress: called as progress(done, total, message) along the way.

    Returns:
        The record that `record.json` holds.
    """
    share = _share(prune)
    one_of("method", method, tuple(METHODS))
    one_of("goal", goal, GOALS)
    if examples is not None:
        positive_integer("examples", examples)
    positive_integer("seeds", seeds)
    nonnegative_integer("seed", seed)
    check_device(device)
    out, report = Path(out), progress or silent
    check_out(out)
    report(0, 1, "task")
    read = read_task(task, file, seed=seed)
    if goal != "auto" and (goal == "language") != read.language:
        kind = "plain text" if read.language else "labelled texts"
        raise fail("goal", f"{goal!r} for {kind}", "'language'" if read.language else "'probe' or 'classifier'")
    report(0, 1, f"model {model}")
    whole, tokenizer = load_model(model, language=read.language, goal=goal, precision=dtype)
    whole = whole.to(device or "cpu")
    report(0, 1, "tokens")
    train, test = examples_for(whole, tokenizer, read, length=length, test_examples=test_examples, seed=seed)
    examples = examples or (SEQUENCES if read.language else TEXTS)
    some = draw(train, examples, seed)
    heads = adapter_for(whole).all_heads()
    # Of every layer equally many, or of all layers together.
    parts = adapter_for(whole).layers if uniform else 1
    count = parts * round(share * len(heads) / parts)
    if not 0 < count < len(heads):
        raise fail("prune", prune, f"a share that removes some of the {len(heads)} heads and leaves one")
    given = {"readout": readout, "batch": batch, "device": device}
    found = goal_for(whole, some, **given)

    report(0, 1, f"scores by {method}")
    options = {"goal": found.name, "seed": seed, "progress": report, **given}
    scores, again = score_heads(whole, some, method, **options), method in AGAIN
    removed = scores.ascending()[:count]
    if again or uniform:
        every = None if again else 0
        removed = removal_order(whole, some, method, count=count, every=every, within_layers=uniform, **options)
    smaller = prune_heads(whole, removed)
    models = {"before": whole, "after": smaller}
    record: dict[str, Any] = {
        "model": str(model),
        "class": type(whole).__name__,
        "family": adapter_for(whole).family,
        "task": read.name,
        "goal": found.name,
        "measure": found.measure,
        "method": method,
        "scored_again": again,
        "uniform": uniform,
        "dtype": dtype,
        "heads": len(heads),
        "removed": [head_name(head) for head in removed],
        "examples": len(some),
        "test_examples": len(test),
        "seed": seed,
        "version": __version__,
    }
    with advanced_by_passes(report) as report_judging:
        for place, (name, one) in enumerate(models.items()):
            report_judging(place, len(models), f"{record['measure']} {name}")
            value = float(judged(one, some, test, found.name, **given)[0])
            record[name] = {record["measure"]: value, "parameters": one.num_parameters()}
    report(0, 1, "speed")
    for name, speed in measured_speed(models, draw(test, TIMED, seed), batch=batch).items():
        record[name]["examples_per_second"] = speed

    out.mkdir(parents=True, exist_ok=True)
    places = pd.DataFrame(scores.labels, columns=["layer", "head"])
    gone = ["yes" if label in removed else "no" for label in scores.labels]
    store.write_table(with_texts(places.assign(score=scores.values, removed=gone), score=".6g"), out / "scores.csv")
    order = pd.DataFrame([(step, *head, scores[head]) for step, head in enumerate(removed, 1)])
    order.columns = ["step", "layer", "head", "score"]
    store.write_table(with_texts(order, score=".6g"), out / "order.csv")
    report(0, 1, "saving")
    with quiet():
        save_pruned(smaller, out / "pruned", tokenizer=tokenizer)
        if masked:
            export_masked(whole, removed, out / "masked", tokenizer=tokenizer)
    record["load"] = loading_lines(out / "pruned")
    record["page"] = str(out / "heads.html")
    # The page is there before a comparison, which may take long and be interrupted.
    write_page(record, scores, removed, None, out)
    if compare:
        curves = pruning_curve(
            whole,
            train,
            test,
            methods=methods,
            fractions=fractions_of(share, len(heads)),
            seeds=range(seed, seed + seeds),
            examples=examples,
            within_layers=uniform,
            goal=found.name,
            speed=True,
            keep=out / "points",
            progress=report,
            **given,
        )
        record["curves"] = curve_rows(curves)
        write_page(record, scores, removed, curves, out)
    write_safely(out / "record.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    report(1, 1, "done")
    return record


def check_out(out: Path) -> None:
    """Refuses a folder with anything in the place of an output that is not an earlier output.

    Nothing is computed or written before: a refusal afterwards would leave half of the outputs.
    """
    if out.exists() and not out.is_dir():
        raise fail("out", f"{out}, which is a file", "a folder")
    for name, mark in FILES.items():
        refuse_foreign(out / name, mark=mark)
    refuse_foreign_folder(out / "pruned", PRUNED_MARK)
    refuse_foreign_folder(out / "masked", MASKED_MARK)
    if (out / "points").exists() and not (out / "points").is_dir():
        raise fail("out", f"{out / 'points'}, which is a file", "a folder, or nothing there")


def fractions_of(share: float, heads: int) -> list[float]:
    """The shares that a comparison removes: the usual ones and the requested one, each of another count of heads.

    Example:
        >>> fractions_of(0.5, 72), fractions_of(0.4, 5)
        ([0.25, 0.5, 0.75], [0.25, 0.4, 0.75])
    """
    # The requested one comes last, so that it stays if two are of one count.
    by_count = {round(one * heads): one for one in (*FRACTIONS, share)}
    return [by_count[count] for count in sorted(by_count) if 0 < count < heads]


def curve_rows(curves: xr.Dataset) -> list[dict[str, Any]]:
    """Mean and standard error over draws of every method at every share of heads removed, as plain rows."""
    values = curves.value.isel(penalty=0) if "penalty" in curves.value.dims else curves.value
    draws, rows = values.sizes["seed"], []
    for name, gone in itertools.product(curves.rule.values.tolist(), curves.removed.values.tolist()):
        points = values.sel(rule=name, removed=gone).values
        error = float(points.std(ddof=1) / draws**0.5) if draws > 1 else None
        rows.append({"method": name, "removed": gone, "mean": float(points.mean()), "error": error})
    return rows


def write_page(
    record: dict[str, Any], scores: HeadScores, removed: Sequence[Head], curves: xr.Dataset | None, out: Path
) -> Path:
    """Figures (PNG and SVG), curves (netCDF and CSV) if there are any, and the page; returns its path."""
    from ... import figures  # matplotlib is slow to import: only when something is drawn
    from ...figures.pruning import METHOD_LABELS

    label = _MEANING.get(record["method"], "score of the head")
    drawn: dict[str, Any] = {"scores": figures.head_score_map(scores, removed=removed, label=label).figure}
    values: dict[str, Any] = {
        "record": record,
        "name": Path(record["model"]).name or record["model"],
        "label": label,
        "before_and_after": before_and_after(record),
        "curves": curves,
    }
    tables = {}
    if curves is not None:
        store.save(curves, out / "curves.nc", "")
        names = {"mean": f"{record['measure']}_mean", "error": "standard_error"}
        frame = with_texts(pd.DataFrame(record["curves"]), mean=".6g", error=".6g")
        tables, drawn["curves"] = {"curves": frame.rename(columns=names)}, figures.head_pruning_curves(curves).figure
        by_method: dict[str, list[str]] = {}
        for row in record["curves"]:
            by_method.setdefault(METHOD_LABELS.get(row["method"]) or row["method"], []).append(_cell(row, record))
        sizes = [["parameters", *(f"{count:,}" for count in curves.parameters.values)]]
        if "examples_per_second" in curves:
            sizes.append(["examples per second", *(f"{speed:.4g}" for speed in curves.examples_per_second.values)])
        values |= {"sizes": sizes, "rows": [[name, *cells] for name, cells in by_method.items()]}
    return write_report(out, "heads", Path(__file__).with_name("page.md"), values, drawn, tables)


def before_and_after(record: dict[str, Any]) -> tuple[list[str], list[list[str]], str]:
    """Header, rows and caption of the table of the model with all heads and without some."""
    before, after = record["before"], record["after"]
    counts = record["heads"], record["heads"] - len(record["removed"])
    rows = [["heads", *map(str, counts), change(*counts)]]

    def add(name: str, part: str, form: str) -> None:
        values = before[part], after[part]
        rows.append([name, *(f"{value:{form}}" for value in values), change(*values)])

    add("parameters", "parameters", ",")
    caption = ""
    if record["measure"] == "accuracy":
        values, count = (before["accuracy"], after["accuracy"]), record["test_examples"]
        cells = [f"{100 * value:.1f} ± {100 * binomial_error(value, count):.1f} %" for value in values]
        rows.append(["test accuracy", *cells, f"{fixed(100 * (values[1] - values[0]), 1, '+')} points"])
        caption = f"± is the binomial error of {count} test examples."
    else:
        add("test perplexity", "perplexity", ".4g")
    if "examples_per_second" in before:
        add("examples per second", "examples_per_second", ".4g")
    return ["", "before", "after", "change"], rows, caption


def change(before: float, after: float) -> str:
    """By how much, in percent.

    Example:
        >>> change(200, 150), change(4, 5)
        ('−25.0 %', '+25.0 %')
    """
    return f"{fixed(100 * (after / before - 1), 1, '+')} %"


def _cell(row: dict[str, Any], record: dict[str, Any]) -> str:
    scale, form, error_form = (100, ".1f", ".1f") if record["measure"] == "accuracy" else (1, ".4g", ".2g")
    error = "" if row["error"] is None else f" ± {scale * row['error']:{error_form}}"
    return f"{scale * row['mean']:{form}}{error}"


def _share(prune: Any) -> float:
    if isinstance(prune, bool) or not isinstance(prune, (int, float)) or not 0 < prune < 1:
        raise fail("prune", prune, "a share of the heads between 0 and 1, both excluded")
    return float(prune)

"""Heads removed from a pretrained transformer: scored, cut out, judged and saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import __version__
from ..._files import csv_writer, refuse_foreign, write_safely
from ..._progress import Progress, silent
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
from ...transformers.curves import AGAIN, COMPARED, MEASURES, TIMED, draw
from ...transformers.families import Head
from ...transformers.files import MASKED_MARK, PRUNED_MARK, refuse_foreign_folder
from ...transformers.judge import judged
from .. import page, store
from ..words import fixed
from .inputs import check_device, examples_for, load_model, quiet, read_task

if TYPE_CHECKING:
    import xarray as xr

# Shares of the heads that are removed in a comparison, besides the one asked for.
FRACTIONS = (0.25, 0.5, 0.75)
# Examples that heads are scored with, where not said otherwise; a sequence has a target in each of its tokens.
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
_GOALS = {
    "probe": "accuracy of a linear probe on its features, which learns from the examples that heads were scored with",
    "classifier": "accuracy of its own head for classes",
    "language": "perplexity on the end of the text, which heads were not scored with",
}


def run_heads(
    model: str | Path,
    out: str | Path,
    *,
    task: str | Path,
    file: str | Path | None = None,
    prune: float = 0.5,
    method: str = "evidence",
    compare: bool = False,
    methods: Sequence[str] = COMPARED,
    seeds: int = 5,
    examples: int | None = None,
    test_examples: int | None = None,
    length: int | None = None,
    readout: str = "mean",
    masked: bool = False,
    batch: int = 64,
    device: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Scores the heads of a pretrained model for a task, removes some, judges what is left and saves it.

    Into the folder go `pruned/` (the smaller model with its tokenizer, for `load_pruned`), `scores.csv`, `order.csv`,
    `record.json` and the page `heads.html`. Nothing is trained.

    Arguments:
        model: a folder, also one of `save_pruned`, or a name on the hub; of a known family, with safetensors.
        out: folder for what is written; made if missing.
        task: "trec", "sst2", a file FILE.tsv of labelled texts, a file FILE.txt of plain text, or "text" with `file`.
            A model with a head for classes is judged by its own accuracy, any other model by the accuracy of a linear
            probe, and a causal model on plain text by its perplexity.
        file: plain text, for the task "text".
        prune: the share of the heads to remove, between 0 and 1.
        method: as in `score_heads`; evidence is scored again as heads go.
        compare: draw pruning curves of `methods` over several draws of the data too. Finished points are kept in
            `points/`, and a second call goes on from them.
        methods: what is compared, as in `pruning_curve`.
        seeds: how many draws a comparison has.
        examples: how many are drawn to score with, and for a probe to learn from; all where there are fewer. 1000
            labelled texts where absent, or 64 sequences of a plain text.
        test_examples: how many are drawn to judge by; all where absent.
        length: tokens of an example at most.
        readout: of tokens, for a probe: "mean", "first" or "last".
        masked: also write `masked/`, a checkpoint of full size in which the heads are silent, for `from_pretrained`.
        batch: examples at once.
        device: "cpu" or "cuda"; where absent, the CPU.
        seed: all random numbers follow from it.
        progress: called as progress(done, total, message) along the way.

    Returns:
        The record that `record.json` holds.
    """
    share = _share(prune)
    one_of("method", method, tuple(METHODS))
    if examples is not None:
        positive_integer("examples", examples)
    positive_integer("seeds", seeds)
    nonnegative_integer("seed", seed)
    check_device(device)
    out, report = Path(out), progress or silent
    check_out(out)
    report(0, 1, "task")
    read = read_task(task, file, seed=seed)
    report(0, 1, f"model {model}")
    whole, tokenizer = load_model(model, language=read.language)
    whole = whole.to(device or "cpu")
    report(0, 1, "tokens")
    train, test = examples_for(whole, tokenizer, read, length=length, test_examples=test_examples, seed=seed)
    examples = examples or (SEQUENCES if read.language else TEXTS)
    some = draw(train, examples, seed)
    heads = adapter_for(whole).all_heads()
    count = round(share * len(heads))
    if not 0 < count < len(heads):
        raise fail("prune", prune, f"a share that removes some of the {len(heads)} heads and leaves one")
    given = {"readout": readout, "batch": batch, "device": device}
    wanted = goal_for(whole, some, **given).name

    report(0, 1, f"scores by {method}")
    options = {"goal": wanted, "seed": seed, "progress": report, **given}
    scores, again = score_heads(whole, some, method, **options), method in AGAIN
    removed = removal_order(whole, some, method, count=count, **options) if again else scores.ascending()[:count]
    smaller = prune_heads(whole, removed)
    models = {"before": whole, "after": smaller}
    record: dict[str, Any] = {
        "model": str(model),
        "class": type(whole).__name__,
        "family": adapter_for(whole).family,
        "task": read.name,
        "goal": wanted,
        "measure": MEASURES[wanted],
        "method": method,
        "scored_again": again,
        "heads": len(heads),
        "removed": [head_name(head) for head in removed],
        "examples": len(some),
        "test_examples": len(test),
        "seed": seed,
        "version": __version__,
    }
    for place, (name, one) in enumerate(models.items()):
        report(place, len(models), f"{record['measure']} {name}")
        value = float(judged(one, some, test, wanted, **given)[0])
        record[name] = {record["measure"]: value, "parameters": one.num_parameters()}
    report(0, 1, "speed")
    for name, speed in measured_speed(models, draw(test, TIMED, seed), batch=batch).items():
        record[name]["examples_per_second"] = speed

    out.mkdir(parents=True, exist_ok=True)
    gone = set(removed)
    rows = [
        [*head, f"{value:.6g}", "yes" if head in gone else "no"]
        for head, value in zip(scores.labels, scores.values, strict=True)
    ]
    _write_rows(out / "scores.csv", ["layer", "head", "score", "removed"], rows)
    rows = [[step, *head, f"{scores[head]:.6g}"] for step, head in enumerate(removed, 1)]
    _write_rows(out / "order.csv", ["step", "layer", "head", "score"], rows)
    report(0, 1, "saving")
    with quiet():
        save_pruned(smaller, out / "pruned", tokenizer=tokenizer)
        if masked:
            export_masked(whole, removed, out / "masked", tokenizer=tokenizer)
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
            goal=wanted,
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
        refuse_foreign(out / name, mark)
    refuse_foreign_folder(out / "pruned", PRUNED_MARK)
    refuse_foreign_folder(out / "masked", MASKED_MARK)
    if (out / "points").exists() and not (out / "points").is_dir():
        raise fail("out", f"{out / 'points'}, which is a file", "a folder, or nothing there")


def fractions_of(share: float, heads: int) -> list[float]:
    """The shares that a comparison removes: the usual ones and the one asked for, each of another count of heads.

    Example:
        >>> fractions_of(0.5, 72), fractions_of(0.4, 5)
        ([0.25, 0.5, 0.75], [0.25, 0.4, 0.75])
    """
    # The one asked for comes last, so that it stays where two are of one count.
    by_count = {round(one * heads): one for one in (*FRACTIONS, share)}
    return [by_count[count] for count in sorted(by_count) if 0 < count < heads]


def curve_rows(curves: xr.Dataset) -> list[dict[str, Any]]:
    """Mean and standard error over draws of every method at every share of heads removed, as plain rows."""
    values = curves.value.isel(penalty=0) if "penalty" in curves.value.dims else curves.value
    draws = values.sizes["seed"]
    rows = []
    for name in curves.rule.values.tolist():
        points = values.sel(rule=name).transpose("seed", "removed").values
        errors = points.std(axis=0, ddof=1) / draws**0.5 if draws > 1 else [None] * points.shape[1]
        for column, gone in enumerate(curves.removed.values.tolist()):
            error = None if draws == 1 else float(errors[column])
            rows.append({"method": name, "removed": gone, "mean": float(points[:, column].mean()), "error": error})
    return rows


def write_page(
    record: dict[str, Any], scores: HeadScores, removed: Sequence[Head], curves: xr.Dataset | None, out: Path
) -> Path:
    """Figures (PNG and SVG), the curves (netCDF and CSV) where there are any, and the page; returns its path."""
    from ... import figures  # matplotlib is slow to import: only when something is drawn
    from ...figures.pruning import METHOD_LABELS

    label = _MEANING.get(record["method"], "score of the head")
    drawn: dict[str, Any] = {"scores": figures.head_score_map(scores, removed=removed, label=label).figure}
    values: dict[str, Any] = {"curves": None}
    if curves is not None:
        store.save(curves, out / "curves.nc", "")
        rows = [
            [row["method"], row["removed"], f"{row['mean']:.6g}", "" if row["error"] is None else f"{row['error']:.6g}"]
            for row in record["curves"]
        ]
        _write_rows(out / "curves.csv", ["method", "removed", f"{record['measure']}_mean", "standard_error"], rows)
        drawn["curves"] = figures.head_pruning_curves(curves).figure
        by_method: dict[str, list[str]] = {}
        for row in record["curves"]:
            by_method.setdefault(METHOD_LABELS.get(row["method"]) or row["method"], []).append(_cell(row, record))
        sizes = [["parameters", *(f"{count:,}" for count in curves.parameters.values)]]
        if "examples_per_second" in curves:
            sizes.append(["examples per second", *(f"{speed:.4g}" for speed in curves.examples_per_second.values)])
        values = {"curves": curves, "sizes": sizes, "rows": [[name, *cells] for name, cells in by_method.items()]}
    images = {name: figures.save(figure, out / name)[1] for name, figure in drawn.items()}
    values |= {
        "record": record,
        "name": Path(record["model"]).name or record["model"],
        "label": label,
        "goal": _GOALS[record["goal"]],
        "before_and_after": before_and_after(record),
    }
    return page.write_page(out / "heads.html", Path(__file__).with_name("page.md"), values, images)


def before_and_after(record: dict[str, Any]) -> tuple[list[str], list[list[str]], str]:
    """Header, rows and caption of the table of the model with all heads and without some."""
    before, after = record["before"], record["after"]
    left = record["heads"] - len(record["removed"])
    rows = [
        ["heads", str(record["heads"]), str(left), change(record["heads"], left)],
        [
            "parameters",
            f"{before['parameters']:,}",
            f"{after['parameters']:,}",
            change(before["parameters"], after["parameters"]),
        ],
    ]
    caption = ""
    if record["measure"] == "accuracy":
        cells = [
            f"{100 * one['accuracy']:.1f} ± {100 * binomial_error(one['accuracy'], record['test_examples']):.1f} %"
            for one in (before, after)
        ]
        lost = 100 * (after["accuracy"] - before["accuracy"])
        rows.append(["test accuracy", *cells, f"{fixed(lost, 1, '+')} points"])
        caption = f"± is the binomial error of {record['test_examples']} test examples."
    else:
        values = [one["perplexity"] for one in (before, after)]
        rows.append(["test perplexity", *(f"{value:.4g}" for value in values), change(*values)])
    if "examples_per_second" in before:
        values = [one["examples_per_second"] for one in (before, after)]
        rows.append(["examples per second", *(f"{value:.4g}" for value in values), change(*values)])
    return ["", "before", "after", "change"], rows, caption


def change(before: float, after: float) -> str:
    """By how much, in percent.

    Example:
        >>> change(200, 150), change(4, 5)
        ('−25.0 %', '+25.0 %')
    """
    return f"{fixed(100 * (after / before - 1), 1, '+')} %"


def binomial_error(accuracy: float, examples: int) -> float:
    """The standard error of a share of examples told right."""
    return (accuracy * (1 - accuracy) / examples) ** 0.5


def _cell(row: dict[str, Any], record: dict[str, Any]) -> str:
    scale, form, error_form = (100, ".1f", ".1f") if record["measure"] == "accuracy" else (1, ".4g", ".2g")
    error = "" if row["error"] is None else f" ± {scale * row['error']:{error_form}}"
    return f"{scale * row['mean']:{form}}{error}"


def _write_rows(file: Path, header: list[str], rows: list[list[Any]]) -> None:
    with csv_writer(file) as writer:
        writer.writerows([header, *rows])


def _share(prune: Any) -> float:
    if isinstance(prune, bool) or not isinstance(prune, (int, float)) or not 0 < prune < 1:
        raise fail("prune", prune, "a share of the heads between 0 and 1, both excluded")
    return float(prune)

"""Pruning curves: how well a model does as heads go, by every method, over several draws of the data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .._files import write_safely
from .._progress import Progress, advanced_by_passes, shown_progress
from .._validation import fail, nonnegative_integer, one_of, positive_integer, true_or_false
from ..learning.scores import head_name
from .data import Examples, examples_of
from .families import Head, adapter_for
from .goals import Loss, goal_for
from .judge import judged, measured_speed
from .masks import head_masks
from .pretrained import read_json
from .probe import PENALTY
from .scores import METHODS, removal_order
from .surgery import prune_heads

if TYPE_CHECKING:
    import xarray

# Methods whose usual form scores the heads left again after every few removals; the others score once.
AGAIN = ("evidence", "evidence_exact")

# What a comparison shows by default: the scores of the theory, then the usual rules.
COMPARED = (
    "evidence",
    "evidence:once",
    "theory",
    "gradient",
    "gradient:again",
    "gradient_by_layer",
    "magnitude",
    "deepest",
    "shallowest",
    "random",
)

# Examples that a speed is measured with.
TIMED = 256


def pruning_curve(
    model: Any,
    data: Any,
    test: Any,
    *,
    methods: Sequence[str] = COMPARED,
    fractions: Sequence[float] = (0.25, 0.5, 0.75),
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    examples: int = 1000,
    within_layers: bool = False,
    goal: str | Loss = "auto",
    readout: str = "mean",
    penalties: Sequence[float | str] = (PENALTY,),
    speed: bool = False,
    batch: int = 64,
    device: torch.device | str | None = None,
    keep: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> xarray.Dataset:
    """Accuracy, perplexity or error of a model against heads removed, for several methods and draws of the data.

    Every seed draws its examples from the data, without replacement. Heads are scored with them, and a probe is fitted
    to them for every set of heads. All are judged by the same test set.

    Arguments:
        data: what to draw from, as in `score_heads`: a training set, never the test set.
        test: what to judge by.
        methods: as of `score_heads`. A name alone is the usual form: evidence scored again as heads go, the others
            once. ":again" and ":once" behind a name say otherwise.
        fractions: of the heads that are removed.
        seeds: of the draws.
        examples: in a draw; all where there are fewer.
        within_layers: remove from all layers alike, as in `removal_order`.
        penalties: of the probe, as in `LinearProbe`; judged with each.
        speed: also measure the speed of pruned models, as `measured_speed` does.
        goal, readout, batch, device, progress: as in `score_heads`.
        keep: folder for finished points; a second call goes on from them. Not where `goal` is a function, which no
            file names.

    Returns:
        Dataset with `value` [rule, seed, removed] (a further axis `penalty` for a probe): accuracy between 0 and 1,
        perplexity, the root mean squared error of numbers, or the mean loss where `goal` is a function; `order` [rule,
        seed, step] with the heads removed; `parameters` [removed] of a model from which the first method's heads of the
        first seed are cut, and their `examples_per_second` [removed] if asked for.
    """
    import xarray

    rules = {name: _rule(name) for name in _all_different("methods", methods)}
    heads = adapter_for(model).all_heads()
    counts = _counts(fractions, len(heads))
    draws = [nonnegative_integer("seeds", seed) for seed in _all_different("seeds", seeds)]
    penalties = _all_different("penalties", penalties)
    true_or_false("within_layers", within_layers)
    true_or_false("speed", speed)
    positive_integer("examples", examples)
    options: dict[str, Any] = {"readout": readout, "batch": batch, "device": device}
    data, test = examples_of(data), examples_of(test)
    made = goal_for(model, draw(data, examples, draws[0]), goal, **options)
    wanted, measure = made.name, made.measure
    axis = [str(penalty) for penalty in penalties] if wanted == "probe" else [""]
    settings = [counts, len(test), within_layers, wanted, readout, axis, examples, batch]
    points = _Points(keep, [*settings, digest(model), digest_of(data), digest_of(test)] if keep else [])
    own = wanted == "function"
    if own and keep is not None:
        raise fail("keep", keep, "None where the goal is a function")
    options["goal"] = goal if own else wanted

    def order_of(name: str, seed: int) -> list[Head]:
        """The heads that a rule removes, in order."""
        method, every = rules[name]

        def found() -> list[Head]:
            some, ordering = draw(data, examples, seed), {"count": counts[-1], "within_layers": within_layers}
            return removal_order(model, some, method, every=every, seed=seed, progress=False, **ordering, **options)

        return [(layer, head) for layer, head in points(f"{name} order", seed, (2,), found)]

    def value_of(name: str, seed: int, removed: list[Head]) -> list[float]:
        """How well the model does without some heads [penalty]."""

        def found() -> list[float]:
            with head_masks(model, removed):
                if own:
                    return [goal_for(model, test, **options).loss(np.ones(len(heads)))]
                return judged(model, draw(data, examples, seed), test, penalties=penalties, **options).tolist()

        return points(name, seed, (), found)

    # Not called "method": `sel(method=...)` means something else to xarray, and would select nothing without a word.
    axes = {"penalty": axis, "rule": list(rules), "seed": draws, "removed": [0, *counts]}
    value = xarray.DataArray(np.nan, axes, list(axes), attrs={"long_name": measure})
    orders: dict[tuple[str, int], list[Head]] = {}
    with shown_progress(progress) as shown, advanced_by_passes(shown) as report:
        done, total = 0, len(draws) * (len(rules) + 1)
        for seed in draws:
            report(done, total, f"draw {seed}: all heads")
            value.loc[{"seed": seed, "removed": 0}] = np.array(value_of("whole", seed, []))[:, None]
            for name in rules:
                done += 1
                report(done, total, f"draw {seed}: {name}")
                removed = orders[name, seed] = order_of(name, seed)
                for count in counts:
                    found = value_of(f"{name} {count}", seed, removed[:count])
                    value.loc[{"rule": name, "seed": seed, "removed": count}] = found
            done += 1
        report(total, total, "done")
    first = next(iter(orders.values()))
    # One at a time, since a model may be large; only the measurement of speed needs all of them.
    parameters = [prune_heads(model, first[:count]).num_parameters() for count in (0, *counts)]
    names = [[[head_name(head) for head in orders[name, seed]] for seed in draws] for name in rules]
    data_vars: dict[str, Any] = {
        "value": value,
        "order": (("rule", "seed", "step"), np.array(names)),
        "parameters": ("removed", parameters, {"long_name": "parameters"}),
    }
    if speed:
        cut = {str(count): prune_heads(model, first[:count]) for count in (0, *counts)}
        speeds = measured_speed(cut, draw(test, TIMED, draws[0]), batch=batch, device=device)
        data_vars["examples_per_second"] = ("removed", list(speeds.values()), {"long_name": "examples per second"})
    coords = {"fraction": ("removed", np.array([0, *counts]) / len(heads))}
    attrs = {
        "measure": measure,
        "goal": wanted,
        "heads": len(heads),
        "model": type(model).__name__,
        "examples": min(examples, len(data)),
        "test_examples": len(test),
        "within_layers": int(within_layers),
    }
    dataset = xarray.Dataset(data_vars, coords, attrs)
    return dataset if wanted == "probe" else dataset.squeeze("penalty", drop=True)


def draw(data: Examples, count: int, seed: int) -> Examples:
    """A number of examples drawn from a data set, without replacement; all of them where there are fewer."""
    order = np.random.default_rng(seed).permutation(len(data))
    return data.subset(np.sort(order[:count]))


def digest(model: Any) -> str:
    """A checksum of the weights of a model."""
    found = hashlib.sha256()
    for name, weight in model.state_dict().items():
        found.update(name.encode())
        found.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


def digest_of(examples: Examples) -> str:
    """A checksum of examples and their labels."""
    found = hashlib.sha256()
    for name in sorted(examples.inputs):
        for row in examples.inputs[name]:
            found.update(np.asarray(row).tobytes())
    for row in () if examples.labels is None else examples.labels:
        found.update(np.asarray(row).tobytes())
    return found.hexdigest()


class _Points:
    """Finished points in a folder, one small file each; other settings, data or weights are another folder."""

    def __init__(self, folder: str | Path | None, settings: list[Any]) -> None:
        self.folder = None
        if folder is not None:
            name = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
            self.folder = Path(folder) / name
            self.folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, name: str, seed: int, shape: tuple[int, ...], compute: Callable[[], Any]) -> Any:
        """What an earlier run kept, or what is computed: a list whose items have a given shape."""
        if self.folder is None:
            return compute()
        file = self.folder / f"{name.replace(':', '-').replace(' ', '-')}-{seed}.json"
        if file.exists():
            kept = read_json(file, list)
            try:
                whole = np.shape(kept)[1:] == shape and np.asarray(kept).dtype.kind in "fiu"
            except ValueError:  # rows of unequal length
                whole = False
            if not whole:
                raise fail("keep", f"{file}, which is damaged", "a whole file; delete it to compute its point again")
            return kept
        found = compute()
        write_safely(file, json.dumps(found), name="keep")
        return found


def _rule(name: str) -> tuple[str, int | None]:
    """A method and how often it is scored: again after every few removals (None) or once (0)."""
    method, _, form = name.partition(":")
    one_of("methods", method, tuple(METHODS))
    if form not in ("", "once", "again"):
        raise fail("methods", repr(name), "a method, or a method with ':once' or ':again' behind")
    again = form == "again" or (form == "" and method in AGAIN)
    return method, None if again else 0


def _counts(fractions: Sequence[float], heads: int) -> list[int]:
    counts = []
    for fraction in fractions:
        if not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
            raise fail("fractions", fraction, "numbers between 0 and 1, both excluded")
        counts.append(round(fraction * heads))
    if not counts or sorted(set(counts)) != counts or counts[0] < 1 or counts[-1] >= heads:
        raise fail("fractions", list(fractions), f"ascending numbers that remove different counts of {heads} heads")
    return counts


def _all_different(name: str, given: Sequence[Any]) -> list[Any]:
    found = [given] if isinstance(given, str) else list(given)
    if not found or len(set(found)) < len(found):
        raise fail(name, found, "one or more, all different")
    return found

"""Heads pruned from a network: what a score says against what is lost, and what remains as heads go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from .._validation import fail, real_array
from .display import Axis, Band, Curve, Display, Level, Mark, Text
from .style import PALETTE

# Layers by colour and marker, so that neither is needed alone.
_LAYERS = (("blue", "o"), ("vermilion", "s"), ("green", "^"), ("purple", "D"))
# One look per order in every figure: label, colour, marker, dashes (those of orders that no score would take are long),
# and whether markers are hollow.
_ORDERS: dict[str, tuple[str, str, str, tuple[float, ...], bool]] = {
    "theory": ("theory's U, lowest first", "blue", "o", (), False),
    "evidence": ("evidence, lowest first", "green", "^", (), False),
    "gradient": ("gradient, lowest first", "vermilion", "s", (), False),
    "trained": ("trained U, lowest first", "purple", "D", (), False),
    "theory, rescored": ("theory's U, solved again", "blue", "o", (1, 1.65), True),
    "evidence, rescored": ("evidence, solved again", "green", "^", (1, 1.65), True),
    "theory, descending": ("theory's U, highest first", "sky", "v", (3.7, 1.6), False),
    "search": ("best set on validation", "black", "*", (3.7, 1.6), False),
    "predicted": ("best set predicted by the theory", "orange", "P", (), False),
    "magnitude": ("norm of weights, lowest first", "grey", "X", (1, 1.65), False),
}
ORDER_LABELS = {order: label for order, (label, *_) in _ORDERS.items()}
# Rules for pretrained models: ours in strong colours and full lines.
_OURS: dict[str, dict[str, Any]] = {
    "evidence": {"colour": PALETTE["blue"], "marker": "o"},
    "evidence_exact": {"colour": PALETTE["green"], "marker": "D"},
    "evidence:once": {"colour": PALETTE["sky"], "marker": "o", "hollow": True},
    "theory": {"colour": PALETTE["vermilion"], "marker": "^"},
    "theory:again": {"colour": PALETTE["orange"], "marker": "^", "hollow": True},
}
# Others in greys, told apart by dashes and markers; the lightest still has a contrast of 3 to 1 on white.
_GREYS = ("#4D4D4D", "#6E6E6E", "#8C8C8C")
_DASHES = ((5, 1.5), (1.2, 1.2), (6, 1.5, 1.2, 1.5), (3, 1, 1, 1, 1, 1))
_MARKERS = "sPvXd<>*hp"
METHOD_LABELS = {
    "evidence": "evidence, scored again",
    "evidence:once": "evidence, scored once",
    "evidence:again": "evidence, scored again",
    "evidence_exact": "exact evidence, scored again",
    "evidence_exact:once": "exact evidence, scored once",
    "theory": "theory's U",
    "theory:again": "theory's U, solved again",
    "gradient": "gradient",
    "gradient:again": "gradient, scored again",
    "gradient_by_layer": "gradient by layer",
    "gradient_by_layer:again": "gradient by layer, scored again",
    "magnitude": "weights' norm",
    "ablation": "one by one",
    "ablation:again": "one by one, scored again",
    "deepest": "deepest first",
    "shallowest": "shallowest first",
    "random": "random",
}


def score_against_drop(
    scores: Any,
    drops: Any,
    ax: Axes | None = None,
    *,
    layers: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    errors: Any = None,
    legend: bool = True,
) -> Axes:
    """What is lost without each head against its score, one point per head.

    Arguments:
        scores, drops: [head]; drops of the accuracy in percent points.
        layers: of each head, for colours and markers.
        names: written beside the points.
        errors: standard errors of the drops, [head].

    Example:
        >>> ax = score_against_drop([0.2, 1.0], [1.0, 8.0], layers=[0, 1], names=["0.0", "1.0"])
        >>> ax.get_xlabel(), len(ax.texts)
        ('score of the head', 2)
    """
    x, y = real_array("scores", scores, ("head",)), real_array("drops", drops, ("head",))
    if len(x) != len(y):
        raise fail("drops", f"{len(y)} heads", f"{len(x)}, as many as scores")
    for name, given in (("layers", layers), ("names", names), ("errors", errors)):
        if given is not None and len(given) != len(x):
            raise fail(name, f"{len(given)} heads", f"{len(x)}, as many as scores")
    of_layer = np.zeros(len(x), int) if layers is None else np.asarray(layers)
    spread = np.zeros(len(x)) if errors is None else np.asarray(errors, float)
    marks: list[Mark] = [Level(0, PALETTE["grey"], line=0.8, order=-1)]
    for number, layer in enumerate(np.unique(of_layer).tolist()):
        here = of_layer == layer
        colour, marker = _LAYERS[number % len(_LAYERS)]
        label = "" if layers is None else f"layer {layer}"
        marks.append(Curve(x[here], y[here], PALETTE[colour], spread[here], line=0, marker=marker, label=label))
    if names is not None:
        for one, other, name, shift in zip(x, y, names, _free_places(x, y), strict=True):
            across, up = "left" if shift[0] > 0 else "right", "bottom" if shift[1] > 0 else "top"
            marks.append(Text(one, other, str(name), size=9, across=across, up=up, shift=shift, order=1))
    axes = Axis("score of the head", margin=0.12), Axis("accuracy lost, points", margin=0.12)
    return Display(marks, *axes, "inside" if legend else "").plot(ax)


def _free_places(x: np.ndarray, y: np.ndarray) -> list[tuple[float, float]]:
    """Beside each point, where its name is furthest from other points and from the names set so far; in points."""
    panel = np.array([250.0, 170.0])  # about the size of a panel, in points
    ends = np.stack([x, y], axis=1)
    ends = (ends - ends.min(axis=0)) / np.where(np.ptp(ends, axis=0) > 0, np.ptp(ends, axis=0), 1) * panel
    corners = ((5.0, 4.0), (-5.0, 4.0), (5.0, -4.0), (-5.0, -4.0))
    taken, chosen = [], []
    for index, end in enumerate(ends):
        # The middle of a short name, from its corner.
        middles = [end + np.array([3.0, 2.2]) * corner for corner in corners]
        others = np.array([*np.delete(ends, index, axis=0), *taken]).reshape(-1, 2)
        # Names are wider than they are high; the first corner where there is room is the usual one.
        room = [min([np.hypot(*((other - middle) / (2, 1))) for other in others] + [12.0]) for middle in middles]
        best = int(np.argmax(room))
        taken.append(middles[best])
        chosen.append(corners[best])
    return chosen


def pruning_curves(curves: xr.Dataset, ax: Axes | None = None, *, legend: bool = True) -> Axes:
    """Accuracy in percent as heads go in several orders, beside random orders.

    Arguments:
        curves: `accuracy` [order, removed], nan where there is none. Drawn as well when there: `error` of the same
            shape as bars, and `random_mean` and `random_spread` [removed] as a grey band.

    Example:
        >>> import xarray as xr
        >>> accuracy = ("order", "removed"), [[0.85, 0.8], [0.85, 0.7]]
        >>> curves = xr.Dataset({"accuracy": accuracy}, {"order": ["theory", "gradient"], "removed": [0, 1]})
        >>> [text.get_text() for text in pruning_curves(curves).get_legend().get_texts()]
        ["theory's U, lowest first", 'gradient, lowest first']
    """
    if not isinstance(curves, xr.Dataset) or set(curves.get("accuracy", xr.DataArray()).dims) != {"order", "removed"}:
        raise fail("curves", type(curves).__name__, "an xarray Dataset with accuracy [order, removed]")
    marks: list[Mark] = []
    if "random_mean" in curves:
        there = curves.random_mean.notnull()
        where, grey = curves.removed.values[there], PALETTE["grey"]
        mean, spread = (100 * curves[name].values[there] for name in ("random_mean", "random_spread"))
        spread = np.nan_to_num(spread)
        marks.append(Band(where, mean - spread, mean + spread, grey, 0.25))
        marks.append(Curve(where, mean, grey, label="random orders, ± one s.d."))
    lines = {}
    for order in curves.order.values.tolist():
        there = curves.accuracy.sel(order=order).notnull().values
        one = 100 * curves[[name for name in ("accuracy", "error") if name in curves]].sel(order=order).isel(
            removed=there
        )
        if there.any():
            lines[order] = one.removed.values, one.accuracy.values, one.error.values if "error" in one else None
    looks = {}
    for order in lines:
        label, colour, marker, dashes, hollow = _ORDERS.get(order, (order, "orange", "P", (), False))
        looks[order] = {"label": label, "colour": PALETTE[colour], "marker": marker, "dashes": dashes, "hollow": hollow}
    marks += _removals(lines, looks)
    axes = Axis("heads removed", whole=True), Axis("accuracy, %")
    return Display(marks, *axes, "inside" if legend else "", size=(5.2, 4.2)).plot(ax)


def head_pruning_curves(
    dataset: xr.Dataset, ax: Axes | None = None, *, penalty: float | str | None = None, legend: bool = True
) -> Axes:
    """Accuracy in percent, or perplexity on a logarithmic axis, against the share of heads removed.

    One line per method: the mean over draws of the data, with its standard error as a bar; evidence and theory in
    strong colours, what others do in grey. A dotted line shows the model with all its heads.

    Arguments:
        dataset: as `thermoformer.transformers.pruning_curve` gives it.
        penalty: of the probe, one of those in the dataset; default: the first.
        legend: whether names are written at the ends of the lines.

    Example:
        >>> import xarray as xr
        >>> value = ("rule", "seed", "removed"), [[[0.9, 0.8], [0.8, 0.8]], [[0.9, 0.5], [0.8, 0.6]]]
        >>> axes = {"rule": ["evidence", "random"], "seed": [0, 1], "fraction": ("removed", [0.0, 0.5])}
        >>> ax = head_pruning_curves(xr.Dataset({"value": value}, axes, {"measure": "accuracy"}))
        >>> [text.get_text() for text in ax.texts]
        ['evidence, scored again', 'random', 'all heads']
    """
    values = _values(dataset, penalty).transpose("rule", "seed", "removed")
    measure = dataset.attrs.get("measure", "accuracy")
    percent = measure == "accuracy"
    scale = 100.0 if percent else 1.0
    share, draws = 100 * dataset.fraction.values, values.sizes["seed"]
    lines = {}
    for name, points in zip(dataset.rule.values.tolist(), scale * values.values, strict=True):
        error = points.std(axis=0, ddof=1) / np.sqrt(draws) if draws > 1 else None
        lines[name] = share, points.mean(axis=0), error
    marks = _removals(lines, _method_looks(list(lines)))
    whole = scale * float(values.isel(removed=0).mean())
    marks.append(Level(whole, PALETTE["black"], line=1.3, dashes=(1, 1.65), order=-1, label="all heads"))
    ends = share.min() - 2, share.max() + 2
    across = Axis("heads removed", ends, ticks=share, names=[f"{one:.0f}%" for one in share])
    spread = f"mean ± standard error of {draws} draws" if draws > 1 else "one draw"
    up = Axis(f"test {measure}{', %' if percent else ''}\n{spread}", log=measure == "perplexity")
    size = (7.4, 4.4) if legend else (5.2, 4.2)
    ax = Display(marks, across, up, "ends" if legend else "", size=size).plot(ax)
    if up.log:
        _readable_ticks(ax)
    return ax


def _removals(lines: Mapping[str, tuple[Any, Any, Any]], looks: Mapping[str, dict[str, Any]]) -> list[Mark]:
    """What remains against what was removed: x, y and error by rule."""
    marks: list[Mark] = []
    for name, (x, y, error) in lines.items():
        look: dict[str, Any] = {"line": 1.5, **looks[name]}
        marks.append(Curve(x, y, errors=error, **look))
    return marks


def _method_looks(methods: list[str]) -> dict[str, dict[str, Any]]:
    """How each method is drawn; ours lie on top."""
    looks = {name: {**_OURS[name], "line": 2.2, "size": 6.5, "order": 0.5} for name in methods if name in _OURS}
    for place, name in enumerate(name for name in methods if name not in _OURS):
        colour, marker = _GREYS[place % len(_GREYS)], _MARKERS[place % len(_MARKERS)]
        dashes = _DASHES[place % len(_DASHES)]
        looks[name] = {"colour": colour, "marker": marker, "dashes": dashes, "line": 1.1, "size": 4.5}
    return {name: look | {"label": METHOD_LABELS.get(name, name)} for name, look in looks.items()}


def _readable_ticks(ax: Axes) -> None:
    """Within a decade or two of a logarithmic axis a reader needs more numbers than powers of ten."""
    low, high = ax.get_ylim()
    if high / low < 200:
        steps = (1, 2, 5) if high / low > 20 else (1, 1.5, 2, 3, 5, 7)
        ax.yaxis.set_major_locator(LogLocator(subs=steps) if high / low > 3 else MaxNLocator(5))
        ax.yaxis.set_major_formatter(ScalarFormatter())
        ax.yaxis.set_minor_formatter(NullFormatter())


def _values(dataset: xr.Dataset, penalty: float | str | None) -> xr.DataArray:
    """The values [rule, seed, removed] of one penalty."""
    expected = "an xarray Dataset with value [rule, seed, removed], as `pruning_curve` gives it"
    if not isinstance(dataset, xr.Dataset):
        raise TypeError(str(fail("dataset", f"a {type(dataset).__name__}", expected)))
    values = dataset.get("value", xr.DataArray(0.0))
    if set(values.dims) - {"penalty"} != {"rule", "seed", "removed"} or "fraction" not in dataset:
        raise fail("dataset", f"variables {', '.join(map(str, dataset.variables))}", expected)
    if "penalty" not in values.dims:
        if penalty is not None:
            raise fail("penalty", penalty, "none: there is no probe in the dataset")
        return values
    known = [str(name) for name in values.penalty.values]
    chosen = known[0] if penalty is None else str(penalty)
    if chosen not in known:
        raise fail("penalty", repr(penalty), f"one of {', '.join(known)}")
    return values.isel(penalty=known.index(chosen))

"""Figures of the Learning view, and the columns of numbers behind each."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ._learning_numbers import LearningPicture
from .learning_ribbons import ribbons_of
from .pictures import COLOURS, DIVERGING, INK, SEQUENTIAL, colours_for, house, short_number

# Past this many paths the numbers no longer fit their cells.
LARGEST_WITH_NUMBERS = 6
# Past this many names ticks would overlap, and every second or later one stands for the rest.
MOST_NAMES = 16
# Paths whose names fit side by side, under a matrix or in a legend.
MOST_SIDE_BY_SIDE = 9
# Nodes of the graph that still have room for a name.
MOST_NAMED_NODES = 12


def accuracy_figure(picture: LearningPicture, *, height: int = 380) -> go.Figure:
    """Test accuracy against width, the Gaussian process, and the point where the reader is.

    Example:
        >>> from thermoformer.app.learning_view import LearningChoice, picture_of
        >>> figure = accuracy_figure(picture_of(LearningChoice(layers=("good+random", "uniform"), train=50)))
        >>> [trace.name for trace in figure.data]
        ['Gaussian process', 'theory', 'N = 10']
    """
    table = accuracy_table(picture)
    widths, percent = table["width"], 100 * table["accuracy"]
    limit = 100 * picture.limit_accuracy
    low, high = min(percent.min(), limit), max(percent.max(), limit)
    # A flat curve must not look like a mountain: at least six points of a hundred are shown.
    room = max(0.12 * (high - low), (6 - (high - low)) / 2, 0.8)
    ends = [widths[0] / 1.18, widths[-1] * 1.18]
    name, missing = f"N = {picture.width}", ~table["converged"]
    figure = go.Figure()
    figure.add_scatter(
        x=ends,
        y=[limit, limit],
        mode="lines",
        line={"color": COLOURS["grey"], "dash": "dash", "width": 2},
        name="Gaussian process",
        hovertemplate="N → ∞: %{y:.1f} %<extra></extra>",
    )
    figure.add_scatter(
        x=widths,
        y=percent,
        mode="lines+markers",
        line={"color": COLOURS["blue"], "width": 2.5},
        marker={"size": 7, "symbol": np.where(missing, "circle-open", "circle").tolist()},
        customdata=np.where(missing, ", not converged", ""),
        name="theory",
        hovertemplate="N = %{x}: %{y:.1f} %%{customdata}<extra></extra>",
    )
    figure.add_scatter(
        x=[picture.width],
        y=[100 * picture.test_accuracy],
        mode="markers",
        marker={"size": 15, "symbol": "diamond", "color": COLOURS["vermilion"], "line": {"color": "white", "width": 2}},
        name=name,
        hovertemplate=f"{name}: %{{y:.1f}} %<extra></extra>",
    )
    figure.update_xaxes(
        type="log",
        title_text="width N",
        range=np.log10(ends).tolist(),
        tickvals=[5, 10, 20, 50, 100, 200, 500, 1000, 2000],
        showgrid=False,
    )
    figure.update_yaxes(title_text="test accuracy (%)", range=[low - room, min(high + room, 101)])
    return house(figure, height=height)


def accuracy_table(picture: LearningPicture) -> dict[str, np.ndarray]:
    """Columns width, accuracy, converged and gaussian_process; the chosen width stands among the others."""
    others = picture.widths != picture.width
    widths = np.append(picture.widths[others], picture.width)
    order = np.argsort(widths)
    return {
        "width": widths[order],
        "accuracy": np.append(picture.accuracies[others], picture.test_accuracy)[order],
        "converged": np.append(picture.curve_converged[others], picture.converged)[order],
        "gaussian_process": np.full(len(widths), picture.limit_accuracy),
    }


def order_figure(picture: LearningPicture, *, height: int = 380) -> go.Figure:
    """The order parameter U as a matrix over paths; white is zero.

    Example:
        >>> from thermoformer.app.learning_view import LearningChoice, picture_of
        >>> figure = order_figure(picture_of(LearningChoice(layers=("good+random", "uniform"), train=50)))
        >>> figure.layout.yaxis.ticktext
        ('good→uniform', 'random→uniform')
    """
    matrix, names = picture.order_parameter, list(picture.path_names)
    places = np.arange(len(names))
    limit = float(np.abs(matrix).max()) or 1.0
    small = len(names) <= LARGEST_WITH_NUMBERS
    shown = places[:: -(-len(names) // MOST_NAMES)]
    figure = go.Figure(
        go.Heatmap(
            z=matrix,
            x=places,
            y=places,
            zmin=-limit,
            zmax=limit,
            colorscale=DIVERGING,
            text=[[short_number(round(value, 2)) for value in row] for row in matrix] if small else None,
            texttemplate="%{text}" if small else None,
            textfont={"size": 13},
            customdata=[[f"{one}, {other}" for other in names] for one in names],
            hovertemplate="%{customdata}: %{z:.3g}<extra></extra>",
            xgap=1,
            ygap=1,
            colorbar={"title": {"text": "U"}, "thickness": 12, "outlinewidth": 0, "len": 0.95},
        )
    )
    axis = {
        "tickvals": shown,
        "ticktext": [names[place] for place in shown],
        "showgrid": False,
        "showline": False,
        "ticks": "",
        "ticklabelstandoff": 5,
        "constrain": "domain",
        "automargin": True,  # names are as long as they are
    }
    tilted = 0 if len(names) <= 2 else -35
    figure.update_xaxes(**axis, tickangle=tilted, constraintoward="right")
    if len(names) > MOST_SIDE_BY_SIDE:
        figure.update_xaxes(showticklabels=False, title_text="paths in the order of the rows")
    figure.update_yaxes(**axis, autorange="reversed", scaleanchor="x")
    # Another set of heads has other axes: a zoom into the old ones would cut the new.
    figure.update_layout(margin={"t": 16}, uirevision=" ".join(names))
    return house(figure, height=height)


def order_table(picture: LearningPicture) -> dict[str, np.ndarray]:
    """Columns path, other_path and order_parameter."""
    names = np.array(picture.path_names)
    return {
        "path": np.repeat(names, len(names)),
        "other_path": np.tile(names, len(names)),
        "order_parameter": picture.order_parameter.ravel(),
    }


def kernel_figure(picture: LearningPicture, *, height: int = 380) -> go.Figure:
    """The kernel K between training examples, sorted by label, with lines between the classes.

    Example:
        >>> from thermoformer.app.learning_view import LearningChoice, picture_of
        >>> figure = kernel_figure(picture_of(LearningChoice(layers=("good+random", "uniform"), train=50)))
        >>> figure.layout.xaxis.ticktext
        ('class −1', 'class +1')
    """
    matrix, count = picture.kernel, len(picture.kernel)
    low, high = kernel_ends(matrix)
    figure = go.Figure(
        go.Heatmap(
            z=matrix,
            zmin=low,
            zmax=high,
            colorscale=SEQUENTIAL,
            hovertemplate="K = %{z:.3g}<extra></extra>",
            colorbar={"title": {"text": "K"}, "thickness": 12, "outlinewidth": 0, "len": 0.95},
        )
    )
    first = int(np.count_nonzero(picture.kernel_labels < 0))
    for line in ("add_hline", "add_vline"):
        getattr(figure, line)(first - 0.5, line={"color": "white", "width": 2})
    axis = {
        "tickvals": [(first - 1) / 2, (first + count - 1) / 2],
        "ticktext": [f"class {name}" for name in picture.classes],
        "showgrid": False,
        "showline": False,
        "ticks": "",
        "ticklabelstandoff": 5,
        "constrain": "domain",
    }
    figure.update_xaxes(**axis, title_text="training examples", constraintoward="right")
    figure.update_yaxes(**axis, autorange="reversed", scaleanchor="x", tickangle=-90)
    figure.update_layout(margin={"t": 16}, uirevision=f"{count} {first}")
    return house(figure, height=height)


def kernel_ends(matrix: np.ndarray) -> tuple[float, float]:
    """The values at the ends of the colours: the diagonal is often far above the rest and would take all of them."""
    low, high = np.quantile(matrix[~np.eye(len(matrix), dtype=bool)], [0.01, 0.99]).tolist()
    return low, high if high > low else low + 1


def kernel_table(picture: LearningPicture) -> dict[str, np.ndarray]:
    """Columns example, other_example, label, other_label and kernel."""
    count = len(picture.kernel)
    return {
        "example": np.repeat(np.arange(count), count),
        "other_example": np.tile(np.arange(count), count),
        "label": np.repeat(picture.kernel_labels, count),
        "other_label": np.tile(picture.kernel_labels, count),
        "kernel": picture.kernel.ravel(),
    }


def overlap_figure(picture: LearningPicture, *, height: int = 380) -> go.Figure:
    """How much of the labels lies along each principal component of the kernel, beside the Gaussian process.

    Example:
        >>> from thermoformer.app.learning_view import LearningChoice, picture_of
        >>> figure = overlap_figure(picture_of(LearningChoice(layers=("good+random", "uniform"), train=50)))
        >>> [trace.name for trace in figure.data]
        ['N = 10', 'Gaussian process']
    """
    table = overlap_table(picture)
    figure = go.Figure()
    kinds = (("overlap", f"N = {picture.width}", "blue"), ("gaussian_process", "Gaussian process", "grey"))
    for column, name, colour in kinds:
        figure.add_bar(
            x=table["component"],
            y=table[column],
            name=name,
            marker={"color": COLOURS[colour], "line": {"width": 0}},
            hovertemplate=f"component %{{x}}, {name}: %{{y:.2f}}<extra></extra>",
        )
    figure.update_layout(barmode="group", bargap=0.25, bargroupgap=0)
    count = len(table["component"])
    figure.update_xaxes(
        title_text="principal component of K",
        range=[0.3, count + 0.7],
        tickvals=[1, *range(5, count + 1, 5)],
        showgrid=False,
    )
    figure.update_yaxes(title_text="overlap with the labels", range=[0, 1])
    return house(figure, height=height)


def overlap_table(picture: LearningPicture) -> dict[str, np.ndarray]:
    """Columns component, overlap and gaussian_process."""
    return {
        "component": np.arange(1, len(picture.overlaps) + 1),
        "overlap": picture.overlaps,
        "gaussian_process": picture.limit_overlaps,
    }


def paths_figure(picture: LearningPicture, *, height: int = 380) -> go.Figure:
    """The paths from input to output through the heads, each as thick as its U_ππ.

    Example:
        >>> from thermoformer.app.learning_view import LearningChoice, picture_of
        >>> figure = paths_figure(picture_of(LearningChoice(layers=("good+random", "uniform"), train=50)))
        >>> [note.text for note in figure.layout.annotations]
        ['input', '1.1 good', '1.2 random', '2.1 uniform', 'output']
    """
    found = ribbons_of(picture)
    figure = go.Figure()
    few = len(found.labels) <= MOST_SIDE_BY_SIDE
    for colour, label, (x, low, high) in zip(colours_for(len(found.labels)), found.labels, found.ribbons, strict=True):
        figure.add_scatter(
            x=np.concatenate([x, x[::-1]]),
            y=np.concatenate([high, low[::-1]]),
            mode="lines",
            fill="toself",
            fillcolor=colour,
            # A path of no weight is still a hair.
            line={"color": colour, "width": 0.8},
            opacity=0.8,
            name=label,
            text=label,
            hoverinfo="text",
            hoveron="fills",
            showlegend=few,
        )
    for column, spans in enumerate(found.spans):
        for (low, high), name in zip(spans, found.names[column], strict=True):
            bar = {"x0": column - 0.02, "x1": column + 0.02, "y0": low - 0.004, "y1": high + 0.004}
            figure.add_shape(type="rect", **bar, fillcolor=INK, line={"width": 0})
            if len(spans) <= MOST_NAMED_NODES:
                _name(figure, column, high, name, found.columns - 2)
    figure.update_xaxes(range=[-0.3, found.columns - 0.7], visible=False, fixedrange=True)
    half = found.tallest / 2
    figure.update_yaxes(range=[-half - 0.06, half + 0.16], visible=False, fixedrange=True)
    legend = {"orientation": "h", "x": 0.5, "xanchor": "center", "y": -0.02, "yanchor": "top", "font": {"size": 12}}
    legend["title"] = {"text": "as thick as its entry on the diagonal of U:", "side": "top", "font": {"size": 12}}
    figure.update_layout(
        legend=legend, margin={"l": 8, "r": 8, "t": 8, "b": 8}, uirevision=" ".join(picture.path_names)
    )
    return house(figure, height=height)


def paths_table(picture: LearningPicture) -> dict[str, np.ndarray]:
    """Columns path, one per layer with its head, and order_parameter, which is U_ππ."""
    heads = {
        f"head_{layer + 1}": np.array([names[head] for head in picture.path_heads[:, layer]])
        for layer, names in enumerate(picture.heads)
    }
    return {"path": np.array(picture.path_names), **heads, "order_parameter": picture.path_scores}


def heads_table(picture: LearningPicture) -> dict[str, np.ndarray]:
    """Columns layer and head, counted from 1, name and score from U."""
    return {
        "layer": np.array([layer + 1 for layer, _ in picture.head_labels]),
        "head": np.array([head + 1 for _, head in picture.head_labels]),
        "name": np.array([picture.heads[layer][head] for layer, head in picture.head_labels]),
        "score": picture.head_scores,
    }


def _name(figure: go.Figure, column: int, high: float, name: str, layers: int) -> None:
    anchor = "left" if column == 0 else "right" if column == layers + 1 else "center"
    figure.add_annotation(
        x=column + {"left": -0.02, "right": 0.02, "center": 0}[anchor],
        y=high + 0.012,
        text=name,
        showarrow=False,
        xanchor=anchor,
        yanchor="bottom",
        font={"size": 13},
        bgcolor="rgba(255,255,255,0.75)",
        borderpad=1,
    )

"""Accuracy against width: networks of any width beside the limit of infinite width, from your own arrays."""

import marimo

__generated_with = "0.25.2"
app = marimo.App()

with app.setup:
    import marimo as mo
    import numpy as np
    import xarray as xr

    from thermoformer import figures
    from thermoformer.learning import Architecture, PathFeatures, bilinear_attention, gaussian_process, solve_grid
    from thermoformer.tasks import HiddenMarkovTask


@app.cell(hide_code=True)
def introduction():
    mo.md(r"""
    # Accuracy against width

    What does a Bayesian network of attention heads do at width 10, at 1000, and in the limit of infinite width? The
    theory needs tokens `x` [example, token, feature], the attention of each layer [example, head, query, key], and
    labels ±1: any arrays of your own will do. Here they are those of a hidden-Markov task, in which one attention
    path of four is the right one.
    """)
    return


@app.cell
def arrays():
    def problem(seed):
        """Tokens, attention of both layers, and labels of 100 training and 1000 test sequences."""
        task = HiddenMarkovTask()
        parts = [task.sample(100, seed=(seed, 0)), task.sample(1000, seed=(seed, 1))]
        x = np.concatenate([part.x for part in parts])
        labels = np.concatenate([part.labels for part in parts])
        first = [task.good_head(), task.random_head(seed=(seed, 2))]
        second = [task.uniform_head(), task.random_head(seed=(seed, 3))]
        return x, [bilinear_attention(x, first), bilinear_attention(x, second)], labels

    return (problem,)


@app.cell(hide_code=True)
def about_solving():
    mo.md(r"""
    `solve_grid` finds the order parameter at every width, and `gaussian_process` is the limit. Both predict new
    examples.
    """)
    return


@app.cell
def solving(problem):
    widths = (10, 30, 100, 300, 1000)

    def solved(seed):
        """The theory at every width and in the limit, with its accuracy on the test sequences."""
        x, attention, labels = problem(seed)
        features = PathFeatures.from_attention(x, attention)
        train, test = slice(0, 100), slice(100, None)
        arch = Architecture(heads=(2, 2), widths=10)
        grid = solve_grid(arch, features[train], labels[train], widths=widths, temperatures=0.01)
        limit = gaussian_process(arch, features[train], labels[train], temperature=0.01)
        theories = [*(grid.at(width=width) for width in widths), limit]
        return theories, [theory.predict(features[test]).accuracy(labels[test]) for theory in theories]

    runs = [solved(seed) for seed in range(5)]
    found = [accuracies for _, accuracies in runs]
    accuracy = xr.Dataset({"accuracy": (("seed", "width"), found)}, {"width": [*widths, np.inf]})
    narrow, limit = runs[0][0][0], runs[0][0][-1]
    return accuracy, limit, narrow


@app.cell
def drawing(accuracy, limit, narrow):
    @figures.styled
    def draw():
        figure, axes = figures.figure_grid(1, 3, size=(4.4, 3.6))
        figures.accuracy_against_width(accuracy, axes[0, 0]).set_title("accuracy, five seeds")
        names = narrow.architecture.path_names([["good", "random"], ["uniform", "random"]])
        scale = {"limit": np.abs(narrow.order_parameter).max(), "column_names": False}
        for ax, theory in zip(axes[0, 1:], (narrow, limit), strict=True):
            last = theory is limit
            figures.order_parameter_matrix(
                theory.order_parameter, names, ax, colorbar=last, row_names=not last, **scale
            )
            ax.set_title(f"order parameter, {'infinite width' if last else 'width 10'}")
        return figure

    figure = draw()
    figure
    return (figure,)


@app.cell(hide_code=True)
def result(accuracy):
    mean = 100 * accuracy.accuracy.mean("seed")
    seen = (
        f"Mean over five seeds, bars and band one standard deviation: {mean.sel(width=10):.0f} % at width 10, and "
        f"{mean.sel(width=np.inf):.0f} % at infinite width. Narrow networks find the good path and lean on it; the "
        "wider the network, the more all paths weigh the same. The order parameter says so: the good path, "
        "good→uniform, is the first one; columns are in the order of the rows."
    )
    mo.md(seen)
    return (seen,)


@app.cell(hide_code=True)
def as_script(figure, seen):
    # Run as `python examples/accuracy_against_width.py --out FILE.png` the picture is kept.
    if mo.app_meta().mode == "script":
        print(seen)
        if out := mo.cli_args().get("out"):
            figure.savefig(out, dpi=200)
    return


if __name__ == "__main__":
    app.run()

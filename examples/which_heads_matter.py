"""Which heads matter: four scores of the heads of a trained network, and what pruning by them costs."""

import marimo

__generated_with = "0.25.2"
app = marimo.App()

with app.setup:
    import marimo as mo
    import numpy as np
    import xarray as xr

    from thermoformer import figures
    from thermoformer.experiments.one_shot.training import shipped_network
    from thermoformer.learning import evidence_scores, head_scores, solve
    from thermoformer.networks import gradient_importance, pruning_curve, random_orders, trained_scores
    from thermoformer.tasks import OneShotTask


@app.cell(hide_code=True)
def introduction():
    mo.md(r"""
    # Which heads matter

    A trained network with two layers of four heads comes with the library. It was shown two labelled characters and
    a third, and learned to say which of the two the third is like. Four scores rank its heads; pruning tells what
    they are worth.

    The characters it was trained on need a download, so this page draws some of its own: each is two to four curved
    strokes, and every drawing of it is a little different.
    """)
    return


@app.cell
def characters():
    def drawn_characters(classes, drawings=20, size=32, seed=0):
        """Images [class, drawing, row, column] of strokes, bright on dark."""
        random = np.random.default_rng(seed)
        rows, columns = (axis[..., None] for axis in np.mgrid[:size, :size])
        along = np.linspace(0, 1, 24)[:, None]
        images = np.zeros((classes, drawings, size, size))
        for one in images:
            corners = random.uniform(5, size - 5, size=(random.integers(2, 5), 3, 2))
            for image in one:
                for start, bend, end in corners + random.normal(scale=1.2, size=corners.shape):
                    points = (1 - along) ** 2 * start + 2 * along * (1 - along) * bend + along**2 * end
                    distance = np.hypot(rows - points[:, 0], columns - points[:, 1]).min(axis=-1)
                    np.maximum(image, np.clip(1.8 - distance, 0, 1), out=image)
        return (255 * images).astype(np.uint8)

    task = OneShotTask(drawn_characters(40), part="gallery")
    x, y = task.sequences(128)
    x_test, y_test = task.sequences(512, first=10)
    network = shipped_network()
    whole = network.accuracy(x_test, y_test)
    return network, whole, x, x_test, y, y_test


@app.cell(hide_code=True)
def about_scores():
    mo.md(r"""
    With its queries and keys frozen, the network is a sum over attention paths. `theory` and `evidence` ask what a
    Bayesian network with these heads would do with 128 sequences; `gradient` and `trained` look at the trained
    weights.
    """)
    return


@app.cell
def scoring(network, x, y):
    narrow = network.arch.replace(widths=10)
    features = network.path_features(x)
    solution = solve(narrow, features, y, temperature=0.5)
    scores = {
        "theory": head_scores(narrow, solution.order_parameter),
        "evidence": evidence_scores(narrow, features, y, temperature=0.5, solution=solution),
        "gradient": gradient_importance(network, x, y),
        "trained": trained_scores(network),
    }
    return (scores,)


@app.cell
def pruning(network, scores, x_test, y_test):
    curves = {name: pruning_curve(network, score.ascending(), x_test, y_test) for name, score in scores.items()}
    orders = random_orders(network.arch, 10, key=0)
    luck = np.array([pruning_curve(network, order, x_test, y_test).accuracy for order in orders])
    table = xr.concat([curve.to_xarray() for curve in curves.values()], xr.Variable("order", list(curves)))
    table["random_mean"], table["random_spread"] = ("removed", luck.mean(axis=0)), ("removed", luck.std(axis=0))
    return (table,)


@app.cell
def drawing(table):
    @figures.styled
    def draw():
        figure, axes = figures.figure_grid(size=(7.4, 4.2))
        ax = figures.pruning_curves(table, axes[0, 0], legend=False)
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        return figure

    figure = draw()
    figure
    return (figure,)


@app.cell(hide_code=True)
def result(table, whole):
    left = {str(name): 100 * float(table.accuracy.sel(order=name, removed=3)) for name in table.order.values}
    luckless = 100 * float(table.random_mean.sel(removed=3))
    parts = ", ".join(f"{value:.0f} % by *{name}*" for name, value in left.items())
    seen = (
        f"All eight heads: {100 * whole:.0f} % of 512 new sequences. Without three of them it is {parts}, and "
        f"{luckless:.0f} % on average over random orders; bars are standard errors. A score is a guess: those of the "
        "order parameters rank heads for a network that learns anew, and this one is only cut. So measure."
    )
    mo.md(seen)
    return left, luckless, seen


@app.cell(hide_code=True)
def as_script(figure, seen):
    # Run as `python examples/which_heads_matter.py --out FILE.png` the picture is kept.
    if mo.app_meta().mode == "script":
        print(seen)
        if out := mo.cli_args().get("out"):
            figure.savefig(out, dpi=200)
    return


if __name__ == "__main__":
    app.run()

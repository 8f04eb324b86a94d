"""Exact finite width: Gaussian process, saddle and one-loop against the exact posterior."""

import marimo

__generated_with = "0.25.2"
app = marimo.App()

with app.setup:
    import marimo as mo
    import numpy as np
    import xarray as xr

    from thermoformer import figures
    from thermoformer.learning import Architecture, PathFeatures, compare


@app.cell(hide_code=True)
def introduction():
    mo.md(r"""
    # Exact finite width, and how far the expansions are from it

    `solve` holds for wide networks, `solve(..., correction="one-loop")` to the next order in 1/width, and
    `sample_order_parameters` is exact at any width. `compare` runs all of them on one problem: two paths, of which
    the first says more about the label, with 24 training examples.
    """)
    return


@app.cell
def arrays():
    _random = np.random.default_rng(0)
    xi = _random.normal(size=(224, 2, 10))
    labels = np.sign(xi[:, 0, :3].sum(axis=1) + 0.5 * xi[:, 1, :3].sum(axis=1))
    features = PathFeatures.from_attentioned_inputs(xi)
    given = (features[:24], labels[:24], features[24:], labels[24:])
    return (given,)


@app.cell
def comparing(given):
    widths = (4, 8, 16, 32, 64)
    approaches = ("gaussian process", "saddle", "one-loop")
    comparisons = [
        compare(
            Architecture(heads=(2,), widths=width), *given, temperature=0.1, key=0, methods=(*approaches, "exact"),
            draws=1500,
        )
        for width in widths
    ]  # fmt: skip
    distances = [[one.distance(name) for name in approaches] for one in comparisons]
    return approaches, distances, widths


@app.cell
def drawing(approaches, distances, widths):
    _axes = ("width", "approach")
    errors = xr.Dataset(
        {
            "error": (_axes, [[_one.mean for _one in _row] for _row in distances]),
            "noise": (_axes, [[_one.mean_noise for _one in _row] for _row in distances]),
        },
        {"width": list(widths), "approach": list(approaches)},
    )
    axes = figures.convergence(errors, guides={})
    axes.set_ylabel("relative error of the mean predictor")
    figure = axes.figure
    figure
    return errors, figure


@app.cell(hide_code=True)
def result(errors):
    limit, saddle, one_loop = (100 * errors.error.sel(width=8)).values
    seen = (
        f"At width 8 the Gaussian process misses the exact mean by {limit:.0f} %, the saddle by {saddle:.1f} %, and "
        f"one-loop by {one_loop:.1f} %. The grey floor is what Monte-Carlo noise of the exact draws alone would show: "
        "a point within it is no difference that was seen."
    )
    mo.md(seen)
    return (seen,)


@app.cell(hide_code=True)
def as_script(figure, seen):
    # Run as `python examples/exact_finite_width.py --out FILE.png` the picture is kept.
    if mo.app_meta().mode == "script":
        print(seen)
        if out := mo.cli_args().get("out"):
            figure.savefig(out, dpi=200)
    return


if __name__ == "__main__":
    app.run()

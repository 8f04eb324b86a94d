"""Basins of attraction: which of two cycles attention ends on when it reads its own output."""

import marimo

__generated_with = "0.25.2"
app = marimo.App()

with app.setup:
    import marimo as mo
    import numpy as np
    import xarray as xr

    from thermoformer import figures
    from thermoformer.dynamics import Features, MeanField, basins


@app.cell(hide_code=True)
def introduction():
    mo.md(r"""
    # Basins of attraction

    At β = 1.27 the paper's network has two attractors, a 28-cycle and a 56-cycle. Which of them is reached depends on
    the start. Here the start is a window of four equal tokens, which attention outputs with $A = (a_1, a_2, 0)$ have
    made, and both numbers are varied.
    """)
    return


@app.cell
def running():
    model = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
    points = int(mo.cli_args().get("points") or 32)  # along each axis
    values = np.linspace(-1, 1, points)
    starts = np.zeros((points, points, 4, 3))
    starts[..., 0] = values[:, None, None]
    starts[..., 1] = values[None, :, None]
    axes = ("a_1", "a_2", "token", "feature")
    starts = xr.DataArray(starts, {"a_1": values, "a_2": values}, axes)
    found = basins(model, starts, transient=20_000)
    return (found,)


@app.cell
def drawing(found):
    figure = figures.basin_map(found.dataset).figure
    figure
    return (figure,)


@app.cell(hide_code=True)
def result(found):
    seen = f"{found.summary()}"
    mo.md(seen)
    return (seen,)


@app.cell(hide_code=True)
def as_script(figure, seen):
    # Run as `python examples/basins.py --out FILE.png` the picture is kept.
    if mo.app_meta().mode == "script":
        print(seen)
        if out := mo.cli_args().get("out"):
            figure.savefig(out, dpi=200)
    return


if __name__ == "__main__":
    app.run()

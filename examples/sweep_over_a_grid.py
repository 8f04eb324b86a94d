"""A sweep over a grid of parameters into one store: stopped, resumed, and drawn."""

import marimo

__generated_with = "0.25.2"
app = marimo.App()

with app.setup:
    import tempfile

    import marimo as mo
    import numpy as np

    from thermoformer import figures
    from thermoformer.dynamics import Features, MeanField, lyapunov_spectrum
    from thermoformer.sweeps import Sweep


@app.cell(hide_code=True)
def introduction():
    mo.md(r"""
    # A sweep over a grid, resumed

    A function of named parameters, a grid, and a folder: the results are one labelled Dataset on disk, which can be
    read at any time. What is done is not done again.
    """)
    return


@app.cell
def defining():
    def largest_exponent(beta, gamma):
        model = MeanField(Features.paper(), beta=beta, gamma=gamma, epsilon=0.02)
        found = lyapunov_spectrum(model, model.window(), steps=1500, transient=1500, k=1)
        return {"exponent": float(found.exponents[0])}

    grid = {"gamma": np.linspace(60.0, 380.0, 9), "beta": np.linspace(1.0, 2.2, 13)}
    folder = tempfile.mkdtemp()
    sweep = Sweep(largest_exponent, grid, folder, batch=13)
    return folder, grid, largest_exponent, sweep


@app.cell(hide_code=True)
def about_stopping():
    mo.md(r"""
    First a part of the grid only, as if the run had been stopped. Then a new `Sweep` on the same folder, as another
    process would make it, goes on with the rest.
    """)
    return


@app.cell
def running(folder, grid, largest_exponent, sweep):
    # Datasets of a sweep are read when they are used: this one is kept as it is now.
    partly = sweep.run(only={"gamma": grid["gamma"][:4]}).load()
    before = sweep.status()
    again = Sweep(largest_exponent, grid, folder, batch=13)
    complete = again.run()
    after = again.status()
    return after, before, complete, partly


@app.cell
def drawing(complete, partly):
    figure, _axes = figures.figure_grid(1, 2, size=(5.0, 3.9))
    for _axis, _found in zip(_axes[0], (partly, complete), strict=True):
        figures.sweep_results(_found, "exponent", _axis)
    figure
    return (figure,)


@app.cell(hide_code=True)
def result(after, before, complete):
    chaotic = float((complete.exponent > 0.01).mean())
    seen = (
        f"{before.done} points were in the store when the run was stopped, {after.done} at the end. At "
        f"{100 * chaotic:.0f} % of them the largest Lyapunov exponent is above 0.01: chaos, as far as the orbits go."
    )
    mo.md(seen)
    return chaotic, seen


@app.cell(hide_code=True)
def as_script(figure, seen):
    # Run as `python examples/sweep_over_a_grid.py --out FILE.png` the picture is kept.
    if mo.app_meta().mode == "script":
        print(seen)
        if out := mo.cli_args().get("out"):
            figure.savefig(out, dpi=200)
    return


if __name__ == "__main__":
    app.run()

"""Basins of attraction: on which of three cycles attention ends when it reads its own output."""

import marimo

__generated_with = "0.25.2"
app = marimo.App()

with app.setup:
    import marimo as mo
    import numpy as np
    import xarray as xr

    from thermoformer import figures
    from thermoformer.dynamics import Features, MeanField, basins, find_cycle


@app.cell(hide_code=True)
def introduction():
    mo.md(r"""
    # Basins of attraction

    A network that reads its own output may have several attractors, and the start decides which one is reached. The
    start is a window of tokens here: four equal ones, each made by the attention output $A = (a_1, a_2, 0)$, at
    β = 1.27.
    """)
    return


@app.cell
def running():
    values = np.linspace(-1, 1, 100)
    starts = np.zeros((100, 100, 4, 3))
    starts[..., 0] = values[:, None, None]
    starts[..., 1] = values[None, :, None]
    starts = xr.DataArray(starts, {"$a_1$": values, "$a_2$": values}, ("$a_1$", "$a_2$", "token", "feature"))

    model = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
    found = basins(model, starts, transient=20_000)
    return found, model


@app.cell(hide_code=True)
def about_cycles():
    mo.md(r"""
    Orbits that reach a cycle at different steps of it are on one attractor. The multipliers of each cycle tell that it
    is stable, and how quickly orbits come to it.
    """)
    return


@app.cell
def checking(found, model):
    periods = found.dataset.period.values.tolist()
    cycles = [find_cycle(model, state, period) for state, period in zip(found.states, periods, strict=True)]
    rates = {cycle.period: cycle.exponents[0] for cycle in cycles if cycle.stable}
    return (rates,)


@app.cell
def drawing(found):
    figure = figures.basin_map(found.dataset).figure
    figure
    return (figure,)


@app.cell(hide_code=True)
def result(found, rates):
    _table, _shares = found.dataset.basin.values, found.dataset.fraction.values
    apart = np.mean(_table[1:] != _table[:-1])
    _cycles = ", ".join(f"a {_period}-cycle (λ₁ = {_rate:.4f})" for _period, _rate in rates.items())
    seen = (
        f"From {_table.size} starts these stable cycles are reached: {_cycles}. Of neighbouring starts "
        f"{100 * apart:.0f} % end on different cycles; if each start drew its cycle at random, with these shares, it "
        f"would be {100 * (1 - np.sum(_shares**2)):.0f} %. The way to the cycles is chaotic: at "
        "this resolution their shares are all that can be known."
    )
    mo.md(seen)
    return apart, seen


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

import marimo

app = marimo.App(width="full", app_title="thermoformer explorer")


@app.cell
def _():
    import marimo as mo

    mo.md("# thermoformer")
    return (mo,)

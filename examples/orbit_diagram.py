"""An orbit diagram: where orbits go at each temperature, with exponents and regimes below."""

import marimo

__generated_with = "0.25.2"
app = marimo.App()

with app.setup:
    import marimo as mo
    import numpy as np

    from thermoformer import figures
    from thermoformer.dynamics import Features, MeanField, chaotic_intervals, orbit, orbit_diagram, regime_names


@app.cell(hide_code=True)
def introduction():
    mo.md(r"""
    # An orbit diagram

    One parameter is varied, and at each of its values an orbit is run. All values run side by side in one compiled
    program, with their two largest Lyapunov exponents.
    """)
    return


@app.cell
def running():
    model = MeanField(Features.paper(), beta=3.0, gamma=220.0, epsilon=0.02)
    start = orbit(model, model.token(), steps=1, transient=10_000).final_state
    diagram = orbit_diagram(
        model, start, "beta", np.linspace(1.24, 1.30, 301), steps=2000, transient=6000, k=2, limits=(-0.5, 0.5)
    )
    names = regime_names(diagram).values.tolist()
    counts = {name: names.count(name) for name in sorted(set(names))}
    return counts, diagram


@app.cell
def drawing(diagram):
    figure = figures.orbit_diagram_panels(diagram)[0].figure
    figure
    return (figure,)


@app.cell(hide_code=True)
def result(counts, diagram):
    widest = max(chaotic_intervals(diagram), key=lambda ends: ends[1] - ends[0])
    seen = (
        "Dark is where the orbit often is. From a 4-cycle a torus is born near β = 1.243; then come cycles, chaos, and "
        f"windows of cycles inside it. The widest stretch of chaos here goes from β = {widest[0]:.4f} to "
        f"{widest[1]:.4f}. Of {sum(counts.values())} values {counts['chaos']} are chaotic and "
        f"{counts.get('undecided', 0)} undecided: orbits of 8000 steps are short near a transition."
    )
    mo.md(seen)
    return seen, widest


@app.cell(hide_code=True)
def as_script(figure, seen):
    # Run as `python examples/orbit_diagram.py --out FILE.png` the picture is kept.
    if mo.app_meta().mode == "script":
        print(seen)
        if out := mo.cli_args().get("out"):
            figure.savefig(out, dpi=200)
    return


if __name__ == "__main__":
    app.run()

"""An orbit, its exponents and its regime: what attention does when it reads its own output."""

import marimo

__generated_with = "0.25.2"
app = marimo.App()

with app.setup:
    import marimo as mo
    import numpy as np

    from thermoformer import figures
    from thermoformer.dynamics import Features, MeanField, lyapunov_spectrum, orbit, regime


@app.cell(hide_code=True)
def introduction():
    mo.md(r"""
    # An orbit, its exponents and its regime

    Attention that reads its own output is a dynamical system. With many bits per token it becomes a map of a few
    numbers, the mean-field map. Here are its orbits at two inverse temperatures β that are not far apart.
    """)
    return


@app.cell
def running():
    model = MeanField(Features.paper(), beta=1.255, gamma=220.0, epsilon=0.02)
    models = {beta: model.replace(beta=beta) for beta in (1.255, 1.28)}
    orbits = {beta: orbit(one, one.token(), steps=4096, transient=10_000).m_o for beta, one in models.items()}
    return models, orbits


@app.cell(hide_code=True)
def about_exponents():
    mo.md(r"""
    Lyapunov exponents say how fast neighbouring orbits part, direction by direction, with standard errors. `regime`
    puts exponents and returns together, and says *undecided* rather than guess.
    """)
    return


@app.cell
def judging(models):
    spectra = {
        beta: lyapunov_spectrum(one, one.window(), steps=10_000, transient=10_000, k=4) for beta, one in models.items()
    }
    verdicts = {beta: regime(one, one.window(), steps=10_000, transient=10_000, k=4) for beta, one in models.items()}
    return spectra, verdicts


@app.cell
def drawing(orbits, spectra, verdicts):
    @figures.styled
    def draw():
        figure, axes = figures.figure_grid(2, 3, size=(3.9, 3.0))
        for (series, plane, levels), (beta, values) in zip(axes, orbits.items(), strict=True):
            figures.orbit_series(values[:80], series, legend=False)
            figures.phase_plane(values, (0, 1), plane).locator_params(nbins=5)
            levels.axhline(0, color=figures.PALETTE["grey"], linewidth=0.8)
            found, errors = spectra[beta].exponents, spectra[beta].errors
            levels.errorbar([1, 2, 3, 4], found, errors, color=figures.PALETTE["black"], fmt="D", capsize=3)
            levels.set_xticks([1, 2, 3, 4])
            levels.set_xlabel("number of the exponent")
            levels.set_ylabel("exponent per step")
            plane.set_title(f"β = {beta}: {verdicts[beta].name}")
        names = ["feature 1", "feature 2", "feature 3"]
        figure.legend(axes[0, 0].lines, names, loc="outside lower left", ncols=3)
        return figure

    figure = draw()
    figure
    return (figure,)


@app.cell(hide_code=True)
def result(spectra, verdicts):
    _quiet, _wild = (spectra[_beta].exponents[0] for _beta in (1.255, 1.28))
    seen = (
        f"At β = 1.255 the verdict is *{verdicts[1.255].name}*: the orbit winds around a torus, a closed curve in the "
        f"plane for each of the four positions, and the largest exponent is 0 ({_quiet:.5f} here). At β = 1.28 it is "
        f"*{verdicts[1.28].name}*: the largest exponent is {_wild:.3f}, so that two neighbouring orbits are "
        f"{np.exp(50 * _wild):.0f} times further apart after 50 steps."
    )
    mo.md(seen)
    return (seen,)


@app.cell(hide_code=True)
def as_script(figure, seen):
    # Run as `python examples/orbit_and_regime.py --out FILE.png` the picture is kept.
    if mo.app_meta().mode == "script":
        print(seen)
        if out := mo.cli_args().get("out"):
            figure.savefig(out, dpi=200)
    return


if __name__ == "__main__":
    app.run()

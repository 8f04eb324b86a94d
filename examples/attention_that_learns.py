"""Attention that learns: the maximum of the evidence and the posterior, as labels get noisier."""

import marimo

__generated_with = "0.25.2"
app = marimo.App()

with app.setup:
    import marimo as mo
    import numpy as np

    from thermoformer import figures
    from thermoformer.learning import Architecture, AttentionModel, learn_attention, sample_attention


@app.cell(hide_code=True)
def introduction():
    mo.md(r"""
    # Attention that learns

    A teacher has one head whose query is its key, $2\,(q \cdot x_t)(q \cdot x_s)/N_0$. The direction $q$ is to be found
    from 48 labels. `learn_attention` gives the most probable $q$, `sample_attention` draws $q$ from its posterior. All
    other weights are integrated out.
    """)
    return


@app.cell
def teaching():
    def logits(theta, x):
        seen = x @ theta["q"]
        return [2 / x.shape[2] * seen[:, None, :, None] * seen[:, None, None, :]]

    model, arch = AttentionModel(logits, {"q": np.ones(6)}), Architecture((1,), widths=20)
    _random = np.random.default_rng(0)
    x, q = _random.normal(size=(548, 4, 6)), _random.normal(size=6)
    xi = np.asarray(model.features({"q": q}, x).values)[:, 0]
    signal, noise = xi @ _random.normal(size=6) / np.sqrt(6), _random.normal(size=48)
    return arch, model, noise, q, signal, x


@app.cell
def learning(arch, model, noise, q, signal, x):
    def overlap(theta):
        return np.abs(theta["q"] @ q) / np.linalg.norm(theta["q"], axis=-1) / np.linalg.norm(q)

    def error(found):
        return found.predict(x[48:]).bias(signal[48:]) / np.mean(signal[48:] ** 2)

    strengths, highest, drawn, errors = (0.1, 1.0), {}, {}, {}
    for _strength in strengths:
        _given = (model, arch, x[:48], signal[:48] + _strength * noise)
        _options = {"temperature": _strength**2, "theory": "gaussian process", "key": 0}
        _learned, _posterior = learn_attention(*_given, **_options), sample_attention(*_given, **_options, draws=1500)
        highest[_strength], drawn[_strength] = overlap(_learned.theta), overlap(_posterior.theta).ravel()
        errors[_strength] = {"maximum": error(_learned), "posterior": error(_posterior)}
    return drawn, errors, highest, strengths


@app.cell
def drawing(drawn, highest, strengths):
    figure, _axes = figures.figure_grid(size=(5.6, 4.0))
    _share = np.linspace(0, 1, 1001)
    for _strength in strengths:
        (_line,) = _axes[0, 0].plot(np.quantile(drawn[_strength], _share), _share, label=f"noise {_strength:g}")
        _axes[0, 0].axvline(highest[_strength], color=_line.get_color(), linestyle="--", linewidth=1)
    _axes[0, 0].set(xlabel="overlap with the teacher", ylabel="share of draws below", xlim=(0, 1.01))
    _axes[0, 0].legend()
    figure
    return (figure,)


@app.cell(hide_code=True)
def result(drawn, errors, strengths):
    _low, _high = strengths[0], strengths[-1]
    seen = (
        f"Lines are draws of the posterior, dashes the maximum. With noise {_low:g} the draws have a mean overlap of "
        f"{drawn[_low].mean():.2f}; with noise {_high:g}, as large as the signal, of {drawn[_high].mean():.2f}. The "
        f"maximum then has a test error of {errors[_high]['maximum']:.2f} relative to predicting zero, and the mean "
        f"over the posterior {errors[_high]['posterior']:.2f}."
    )
    mo.md(seen)
    return (seen,)


@app.cell(hide_code=True)
def as_script(figure, seen):
    # Run as `python examples/attention_that_learns.py --out FILE.png` the picture is kept.
    if mo.app_meta().mode == "script":
        print(seen)
        if out := mo.cli_args().get("out"):
            figure.savefig(out, dpi=200)
    return


if __name__ == "__main__":
    app.run()

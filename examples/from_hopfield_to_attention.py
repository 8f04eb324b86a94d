"""From Hopfield to attention: a network that plays a sequence of patterns, with longer and longer windows."""

import marimo

__generated_with = "0.25.2"
app = marimo.App()

with app.setup:
    import itertools

    import marimo as mo
    import numpy as np

    from thermoformer import figures
    from thermoformer.dynamics import Features, MeanField, orbit


@app.cell(hide_code=True)
def introduction():
    mo.md(r"""
    # From Hopfield to attention

    With a window of one token the softmax has nothing to choose from, and attention that reads its own output is a
    Hopfield network in parallel dynamics. Let the values be the output patterns, shifted by one: $v_a = o_{a-1}$. Then
    each of the $M$ patterns calls the next one, and the orbit is a cycle of $M$ steps through all patterns, with the
    overlap $m = \tanh(\beta m)$.

    Longer windows hold several patterns of the sequence at once. With $\gamma = 0$ attention is their mean. With a
    large $\gamma$ it picks the best match. Queries and keys are the output patterns here, so this is the newest token.
    """)
    return


@app.cell
def running():
    patterns, beta = 6, 4.0
    windows, gammas = (1, 2, 3, 4, 6, 8, 12), (0.0, 4.0, 16.0)
    # Every column of signs once: patterns without correlations, as infinitely many random bits have them.
    columns = np.array(list(itertools.product((1, -1), repeat=patterns))).T
    order = np.arange(patterns)
    features = Features.permuted(columns, permutations={"v": np.roll(order, 1), "q": order, "k": order})

    def played(window, gamma):
        """Overlaps [step, feature] of the orbit from a window that holds the sequence."""
        model = MeanField(features, beta, gamma, epsilon=0.0, context=window)
        history = np.eye(patterns)[-np.arange(window) % patterns]
        return orbit(model, model.window(history), steps=1200, transient=4000).m_o

    orbits = {(window, gamma): played(window, gamma) for window in windows for gamma in gammas}
    return beta, gammas, orbits, patterns, windows


@app.cell(hide_code=True)
def about_rounds():
    mo.md(r"""
    The number of steps per round follows from the phase of $\sum_a m_a\, e^{2 \pi i a / M}$. The mean over a window of
    $L$ tokens lags $(L-1)/2$ steps behind the newest token. A phase that advances by $\omega$ per step therefore obeys
    $\omega = 2\pi/M - \omega (L-1)/2$, and a round takes $M (L+1)/2$ steps.
    """)
    return


@app.cell
def measuring(gammas, orbits, patterns, windows):
    def steps_per_round(m):
        phase = np.unwrap(np.angle(m @ np.exp(2j * np.pi * np.arange(patterns) / patterns)))
        return 2 * np.pi * (len(m) - 1) / (phase[-1] - phase[0])

    rounds = {gamma: [steps_per_round(orbits[window, gamma]) for window in windows] for gamma in gammas}
    largest = {gamma: [orbits[window, gamma].max(axis=1).mean() for window in windows] for gamma in gammas}
    return largest, rounds


@app.cell
def drawing(gammas, largest, orbits, patterns, rounds, windows):
    @figures.styled
    def draw():
        figure, axes = figures.figure_grid(2, 2, size=(4.6, 3.2))
        for ax, gamma in zip(axes[0], (0.0, 16.0), strict=True):
            figures.orbit_series(orbits[6, gamma][:43], ax, legend=False)
            ax.set(title=f"window of 6 tokens, γ = {gamma:g}", ylim=(-0.05, 1.05))
        colours = [figures.PALETTE[name] for name in ("blue", "orange", "vermilion")]
        sizes = (9, 6, 3.5)  # on top of each other where they agree
        lengths = np.array(windows)
        theory = {"color": figures.PALETTE["grey"], "linestyle": "--", "zorder": 1}
        axes[1, 0].plot(lengths, patterns * (lengths + 1) / 2, label="M(L + 1)/2", **theory)
        for ax, values in zip(axes[1], (rounds, largest), strict=True):
            for gamma, colour, size in zip(gammas, colours, sizes, strict=True):
                ax.plot(windows, values[gamma], "o", color=colour, markersize=size, label=f"γ = {gamma:g}")
            ax.set(xlabel="window length L")
        axes[1, 0].set(ylabel="steps per round", ylim=(0, None))
        axes[1, 1].set(ylabel="largest overlap", ylim=(0, 1.05))
        axes[1, 0].legend()
        return figure

    figure = draw()
    figure
    return (figure,)


@app.cell(hide_code=True)
def result(largest, rounds, windows):
    _at = windows.index(6)
    seen = (
        f"With one token the round has {rounds[0.0][0]:.0f} steps, one per pattern, whatever γ is. The mean over 6 "
        f"tokens plays it in {rounds[0.0][_at]:.1f} steps, with overlaps of up to {largest[0.0][_at]:.2f}: several "
        f"patterns at once. At γ = 16 attention picks one of the 6 tokens, and the round has "
        f"{rounds[16.0][_at]:.0f} steps with overlaps of {largest[16.0][_at]:.2f} again. Between them, at γ = 4, "
        "attention picks one of two tokens and averages over more."
    )
    mo.md(seen)
    return (seen,)


@app.cell(hide_code=True)
def as_script(figure, seen):
    # Run as `python examples/from_hopfield_to_attention.py --out FILE.png` the picture is kept.
    if mo.app_meta().mode == "script":
        print(seen)
        if out := mo.cli_args().get("out"):
            figure.savefig(out, dpi=200)
    return


if __name__ == "__main__":
    app.run()

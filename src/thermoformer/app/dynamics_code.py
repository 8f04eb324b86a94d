"""The Python that makes what the Dynamics view shows, for readers who want to go on by themselves."""

from __future__ import annotations

from collections.abc import Sequence

from .._validation import fail
from .dynamics_pictures import HIGHEST_SHADE, LOWEST_SHADE
from .dynamics_steps import DIAGRAM_PERIOD, DIAGRAM_STEPS, DIAGRAM_TRANSIENT, DiagramStepper
from .dynamics_view import (
    KEPT,
    LONGEST_PERIOD,
    QUICK_STEPS,
    SEGMENT,
    TRANSIENT,
    DynamicsChoice,
    exponents_of,
    features_of,
    model_of,
    only_text,
)


def setup_code(choice: DynamicsChoice, *names: str, imports: Sequence[str] = (), observed: str = "o") -> list[str]:
    """The lines of Python that make the model and the start of a choice.

    Arguments:
        names: what else is imported from `thermoformer.dynamics`.
        imports: lines that import something else.
        observed: the role that a diagram shows.
    """
    made = {
        "paper": "Features.paper()",
        "random": f"Features.random({choice.bits}, {choice.feature_count}, key={choice.feature_seed})",
        "table": f"Features.from_table({only_text(choice.table)!r})",
    }
    features = features_of(choice)
    parameters = ", ".join(f"{name}={getattr(choice, name)!r}" for name in ("beta", "gamma", "epsilon"))
    period = 2**features.positional_bits
    context = f"context={choice.context}"
    repeated = []
    if 1 < period < choice.context:
        repeated = [
            f"# {features.positional_bits} positional bits count to {period}: positions repeat.",
            f"positions = np.tile(MeanField(features, 1.0, 1.0, 0.0).positions, ({choice.context // period}, 1))",
        ]
        context = "positions=positions"
    if observed != "o":
        context += f", observed={observed!r}"
    return [
        "import numpy as np",
        *imports,
        "",
        "from thermoformer import figures",
        f"from thermoformer.dynamics import {', '.join(sorted(('Features', 'MeanField', *names)))}",
        "",
        f"features = {made[choice.features]}",
        *repeated,
        f"model = MeanField(features, {parameters}, {context})",
        f"A = np.random.default_rng({choice.start}).uniform(-0.5, 0.5, ({choice.context}, {features.count}))",
        "start = model.window(A)",
    ]


def code_of(choice: DynamicsChoice) -> str:
    """The lines of Python that make the numbers of a picture, and draw it.

    Arguments:
        choice: what is shown.

    Example:
        >>> print(code_of(DynamicsChoice()).splitlines()[6])
        model = MeanField(features, beta=1.4, gamma=220.0, epsilon=0.02, context=4)
    """
    number, exponents = choice.component - 1, exponents_of(model_of(choice))
    averages = f"steps={QUICK_STEPS}, transient={TRANSIENT}"
    plane = "series[:-1], series[1:]" if not choice.against else f"series, values[:, {choice.against - 1}]"
    lines = [
        *setup_code(choice, "orbit", "power_spectrum", "regime"),
        "",
        f"path = orbit(model, start, steps={KEPT}, transient={TRANSIENT})",
        f"values = path.m_{choice.role}.reshape({KEPT}, -1)",
        f"series = values[:, {number}]",
        f"spectrum = power_spectrum(series, segment={SEGMENT})",
        f"verdict = regime(model, start, {averages}, k={exponents}, longest_period={LONGEST_PERIOD})",
        "print(verdict.name, verdict.period, verdict.exponents, verdict.errors)",
        "",
        "figure, axes = figures.figure_grid(1, 3)",
        "axes[0, 0].plot(values[:120])",
        f'axes[0, 0].set(xlabel="step", ylabel="$m_{choice.role}$")',
        f'axes[0, 1].plot({plane}, ".", markersize=2)',
        f'axes[0, 1].set(xlabel="{_mathematical(choice, choice.component)}", ylabel="{_upwards(choice)}")',
        "axes[0, 2].semilogy(spectrum.frequency[1:], spectrum[1:])",
        'axes[0, 2].set(xlabel="frequency, cycles per step", ylabel="power")',
        'figure.savefig("orbit.png")',
    ]
    return "\n".join(lines) + "\n"


def _mathematical(choice: DynamicsChoice, component: int) -> str:
    return f"$m_{{{choice.role},{component}}}$"


def _upwards(choice: DynamicsChoice) -> str:
    own = _mathematical(choice, choice.component)
    return _mathematical(choice, choice.against) if choice.against else f"{own} one step later"


def diagram_code_of(stepper: DiagramStepper, *, beta: float | None = None) -> str:
    """The lines of Python that make all columns of a diagram with their exponents, and draw both.

    Arguments:
        stepper: the diagram, after one slice at least: it then knows the range of its bins.
        beta: where a line stands; none for no line.

    Example:
        >>> stepper = DiagramStepper(DynamicsChoice())
        >>> stepper.limits = (-1.0, 1.0)  # as a first slice would find them
        >>> "limits = (-1.0, 1.0)" in diagram_code_of(stepper)
        True
    """
    choice, limits = stepper.choice, stepper.limits
    if limits is None:
        raise fail("stepper", "a diagram without columns", "one that has advanced")
    low, high = choice.between
    bins = len(stepper.bins)
    numbers = f"steps={DIAGRAM_STEPS}, transient={DIAGRAM_TRANSIENT}"
    number, exponents = choice.component - 1, exponents_of(model_of(choice))
    made = [
        "diagram = orbit_diagram(",
        '    model, start, "beta", betas,',
        f"    {numbers}, k={exponents}, longest_period={DIAGRAM_PERIOD},",
        # The same number of values side by side: chaos then has the same rounding, and the same points.
        f"    show={number}, bins={bins}, limits=limits, batch={stepper.lanes},",
        ")",
        "leading, counts = diagram.exponents.values[:, 0], diagram.density.values",
    ]
    lines = [
        *setup_code(choice, "orbit_diagram", imports=_COLOURS, observed=choice.role),
        "",
        f"betas = np.linspace({low!r}, {high!r}, {stepper.columns})",
        f"limits = {limits!r}",
        *made,
        "",
        *_DIAGRAM.format(
            lowest=LOWEST_SHADE,
            highest=HIGHEST_SHADE,
            symbol=_mathematical(choice, choice.component),
            low=low,
            high=high,
        ).splitlines(),
    ]
    if beta is not None and low <= beta <= high:
        lines += [
            "for ax in (top, bottom):",
            f'    ax.axvline({beta!r}, color=figures.PALETTE["blue"], linestyle=":", linewidth=1.2)',
        ]
    return "\n".join([*lines, 'figure.savefig("orbit_diagram.png", dpi=200)']) + "\n"


_COLOURS = ("from matplotlib import colormaps", "from matplotlib.colors import ListedColormap, LogNorm")
# Shades, colours and ranges are those of `dynamics_pictures.diagram_figure`.
_DIAGRAM = """\
figure, axes = figures.figure_grid(size=(9.0, 5.0))
axes[0, 0].remove()
top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(0.76, 0.24))
shares = np.where(counts > 0, counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), np.nan)
half = (betas[1] - betas[0]) / 2  # a column has its β in the middle
image = top.imshow(
    shares.T, origin="lower", aspect="auto", interpolation="nearest",
    extent=(betas[0] - half, betas[-1] + half, *limits),
    norm=LogNorm(10**{lowest!r}, 10**{highest!r}, clip=True),
    cmap=ListedColormap(colormaps["magma_r"](np.linspace(0.12, 1.0, 256))),
)
top.set(ylabel="{symbol}")
bar = figure.colorbar(image, ax=top, label="share of steps")
bar.set_ticks([0.001, 0.01, 0.1], labels=["0.1 %", "1 %", "10 %"])
leading = np.where(np.isfinite(leading), leading, np.nan)
chaotic = np.maximum(np.nan_to_num(leading), 0)
bottom.axhline(0, color="lightgrey", linewidth=1)
bottom.fill_between(betas, chaotic, color=figures.PALETTE["vermilion"], linewidth=0)
bottom.plot(betas, leading, color="black", linewidth=0.8)
# As far below 0 as above: strongly stable columns would flatten the rest.
reach = max(1.15 * chaotic.max(), 0.02)
bottom.set(xlabel="β", ylabel="$λ_1$", xlim=({low!r}, {high!r}), ylim=(-reach, reach))
"""

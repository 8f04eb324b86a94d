"""The Python that makes what the Dynamics view shows, for readers who want to go on by themselves."""

from __future__ import annotations

from .._validation import fail
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


def setup_code(choice: DynamicsChoice, *names: str) -> list[str]:
    """The lines of Python that make the model and the start of a choice.

    Arguments:
        names: what else is imported from `thermoformer.dynamics`.
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
    return [
        "import numpy as np",
        "",
        "from thermoformer import figures",
        f"from thermoformer.dynamics import {', '.join(sorted(('Features', 'MeanField', *names)))}",
        "",
        f"features = {made[choice.features]}",
        *repeated,
        f"model = MeanField(features, {parameters}, {context})",
        f"A = np.random.default_rng({choice.start}).uniform(-0.5, 0.5, ({choice.context}, {features.features}))",
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


def diagram_code_of(stepper: DiagramStepper) -> str:
    """The lines of Python that make all columns of a diagram, and draw it.

    Arguments:
        stepper: the diagram, after one slice at least: it then knows the range of its bins.

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
    number = choice.component - 1
    if choice.role == "o":
        name, exponents = "orbit_diagram", exponents_of(model_of(choice))
        made = [
            "diagram = orbit_diagram(",
            '    model, start, "beta", betas,',
            f"    {numbers}, k={exponents}, longest_period={DIAGRAM_PERIOD},",
            # The same number of values side by side: chaos then has the same rounding, and the same points.
            f"    show={number}, bins={bins}, limits=limits, batch={stepper.lanes},",
            ")",
            "counts = diagram.density.values",
        ]
    else:
        name = "orbit"
        made = [
            "counts = []",
            "for beta in betas:",
            f"    path = orbit(model.replace(beta=beta), start, {numbers})",
            f"    values = path.m_{choice.role}.reshape({DIAGRAM_STEPS}, -1)[:, {number}]",
            f"    counts.append(np.histogram(values, {bins}, limits)[0])",
            "counts = np.array(counts)",
        ]
    lines = [
        *setup_code(choice, name),
        "",
        f"betas = np.linspace({low!r}, {high!r}, {stepper.columns})",
        f"limits = {limits!r}",
        *made,
        "",
        "figure, axes = figures.figure_grid(size=(9.0, 4.0))",
        "shade = np.where(counts > 0, np.log10(np.maximum(counts, 1)), np.nan).T",
        f'axes[0, 0].imshow(shade, origin="lower", aspect="auto", extent=({low!r}, {high!r}, *limits), cmap="magma_r")',
        f'axes[0, 0].set(xlabel="β", ylabel="$m_{{{choice.role},{choice.component}}}$")',
        'figure.savefig("orbit_diagram.png")',
    ]
    return "\n".join(lines) + "\n"

"""The Python calls that give what the Dynamics view shows."""

from __future__ import annotations

from .dynamics_steps import BINS, DIAGRAM_PERIOD, DIAGRAM_STEPS, DIAGRAM_TRANSIENT, DiagramStepper
from .dynamics_view import (
    KEPT,
    LONGEST_PERIOD,
    QUICK_STEPS,
    SEGMENT,
    SHOWN_STEPS,
    TRANSIENT,
    DynamicsChoice,
    exponents_of,
    features_of,
    model_of,
    plain_lines,
)


def setup_code(choice: DynamicsChoice, *names: str, observed: str = "o") -> list[str]:
    """Calls that make the model and the start of a choice.

    Arguments:
        names: other names to import from `thermoformer.dynamics`.
        observed: the role that a diagram shows.
    """
    made = {
        "paper": "Features.paper()",
        "random": f"Features.random({choice.bits}, {choice.feature_count}, key={choice.feature_seed})",
        "table": f"Features.from_table({plain_lines(choice.table)!r})",
    }
    features = features_of(choice)
    parameters = ", ".join(f"{name}={getattr(choice, name)!r}" for name in ("beta", "gamma", "epsilon"))
    period = 2**features.positional_bits
    context, repeated = f"context={choice.context}", []
    if 1 < period < choice.context:
        repeated = [
            f"# {features.positional_bits} positional bits count to {period}: positions repeat.",
            f"positions = np.tile(MeanField(features, 1.0, 1.0, 0.0).positions, ({choice.context // period}, 1))",
        ]
        context = "positions=positions"
    if observed != "o":
        context += f", observed={observed!r}"
    shape = (choice.context, features.count)
    return [
        "import numpy as np",
        "",
        "from thermoformer import figures",
        f"from thermoformer.dynamics import {', '.join(sorted(('Features', 'MeanField', *names)))}",
        "",
        f"features = {made[choice.features]}",
        *repeated,
        f"model = MeanField(features, {parameters}, {context})",
        f"start = model.window(np.random.default_rng({choice.start}).uniform(-0.5, 0.5, {shape}))",
    ]


def code_of(choice: DynamicsChoice) -> str:
    """Calls of public functions that make the numbers of a picture, and its figures.

    Example:
        >>> print(code_of(DynamicsChoice()).splitlines()[6])
        model = MeanField(features, beta=1.4, gamma=220.0, epsilon=0.02, context=4)
    """
    number = choice.component - 1
    averages = f"steps={QUICK_STEPS}, transient={TRANSIENT}, k={exponents_of(model_of(choice))}"
    # The last row of values has no later one.
    plane = f"values, ({number}, {choice.against - 1})"
    if not choice.against:
        plane = f"np.stack([values[:-1, {number}], values[1:, {number}]], axis=1), (0, 1)"
    labels = f"xlabel={_symbol(choice, choice.component)}, ylabel={_symbol(choice, choice.against)}"
    band, spread = [], ""
    if choice.band:
        band = [
            f"# Two standard deviations of a network of {choice.band} bits.",
            f"noise = fluctuations(model, iterate(model, start, {TRANSIENT}), {SHOWN_STEPS})",
            f'spread = 2 * noise.deviation({choice.band}, "{choice.role}")',
        ]
        spread = ", spread=spread"
    lines = [
        *setup_code(choice, "orbit", "power_spectrum", "regime", *(("fluctuations", "iterate") if band else ())),
        "",
        f"path = orbit(model, start, steps={KEPT}, transient={TRANSIENT})",
        f"values = path.m_{choice.role}.reshape({KEPT}, -1)",
        f"spectrum = power_spectrum(values[:, {number}], segment={SEGMENT})",
        f"verdict = regime(model, start, {averages}, longest_period={LONGEST_PERIOD})",
        "print(verdict.name, verdict.period, verdict.exponents, verdict.errors)",
        *band,
        "",
        "figure, axes = figures.figure_grid(1, 3)",
        f"series = figures.orbit_series(values[:{SHOWN_STEPS}], axes[0, 0], legend={choice.role == 'o'}{spread})",
        f'series.set(ylabel="$m_{choice.role}$")',
        f"figures.phase_plane({plane}, axes[0, 1]).set({labels})",
        "figures.power_spectrum_curve(spectrum, axes[0, 2])",
        'figure.savefig("orbit.png", dpi=200)',
    ]
    return "\n".join(lines) + "\n"


def diagram_code_of(stepper: DiagramStepper, *, beta: float) -> str:
    """Calls that make all columns of a diagram with their exponents, and the figure.

    Arguments:
        stepper: the diagram, after one slice at least: it then knows the range of its bins.
        beta: where a line stands, if it is in the range of the diagram.
    """
    choice, (low, high) = stepper.choice, stepper.choice.between
    lines = [
        *setup_code(choice, "orbit_diagram", observed=choice.role),
        "",
        "diagram = orbit_diagram(",
        f'    model, start, "beta", np.linspace({low!r}, {high!r}, {stepper.columns}),',
        f"    steps={DIAGRAM_STEPS}, transient={DIAGRAM_TRANSIENT}, k={exponents_of(model_of(choice))},",
        # The same number of values side by side: chaos then has the same rounding, and the same points.
        f"    longest_period={DIAGRAM_PERIOD}, batch={stepper.lanes},",
        f"    show={choice.component - 1}, bins={BINS}, limits={stepper.limits!r},",
        ")",
        "panels = figures.orbit_diagram_panels(diagram, exponents=1)",
        f"panels[0].set_ylabel({_symbol(choice, choice.component)})",
    ]
    if low <= beta <= high:
        lines += [
            "for panel in panels[:2]:",
            f'    panel.axvline({beta!r}, color=figures.PALETTE["blue"], linestyle=":", linewidth=1.2)',
        ]
    return "\n".join([*lines, 'panels[0].figure.savefig("orbit_diagram.png", dpi=200)']) + "\n"


def _symbol(choice: DynamicsChoice, component: int) -> str:
    """A component of the magnetisation as a label; 0 for the chosen one, one step later."""
    later = "" if component else " one step later"
    return f'"$m_{{{choice.role},{component or choice.component}}}${later}"'

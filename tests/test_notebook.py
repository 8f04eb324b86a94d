"""What results show of themselves: one line of text, a table in notebooks, and a figure."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes

from thermoformer import figures
from thermoformer.dynamics import Features, MeanField, lyapunov_spectrum, orbit, regime
from thermoformer.learning import (
    Architecture,
    OrderPosterior,
    PathFeatures,
    compare,
    gaussian_process,
    head_scores,
    solve_grid,
)

XI = np.random.default_rng(0).normal(size=(50, 2, 8))
Y = np.sign(XI[:, 0, 0])
ARCH, FEATURES = Architecture((2,), 10), PathFeatures.from_attentioned_inputs(XI)
TRAIN, TEST = slice(0, 30), slice(30, 50)


@pytest.fixture(scope="module")
def grid():
    return solve_grid(ARCH, FEATURES[TRAIN], Y[TRAIN], widths=[5, 50], temperatures=0.1)


@pytest.fixture(scope="module")
def results(grid):
    """A result of each kind, with the arguments of its `plot`."""
    solution, given = grid.at(width=5), (ARCH, FEATURES[TRAIN], Y[TRAIN])
    methods = ("gaussian process", "saddle")
    compared = compare(*given, FEATURES[TEST], Y[TEST], temperature=0.1, key=0, methods=methods)
    mixed = SimpleNamespace(chains=2, draws=10, mixed=False)
    model = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
    prediction = solution.predict(FEATURES[TEST])
    return {
        "Solution": (solution, ()),
        "OrderPosterior": (OrderPosterior(ARCH, 0.1, np.eye(2), np.zeros((2, 2)), mixed, None, None, None), ()),
        "SolutionGrid": (grid, (FEATURES[TEST], Y[TEST])),
        "Prediction": (prediction, (Y[TEST],)),
        "Comparison": (compared, ()),
        "HeadScores": (head_scores(ARCH, solution.order_parameter), ()),
        "Orbit": (orbit(model, model.token(), steps=100), ()),
        "LyapunovSpectrum": (lyapunov_spectrum(lambda x: 4 * x * (1 - x), 0.3, steps=200), ()),
        "Regime": (regime(lambda x: x / 2, 1.0, steps=200, transient=100), ()),
    }


KINDS = (
    "Solution",
    "OrderPosterior",
    "SolutionGrid",
    "Prediction",
    "Comparison",
    "HeadScores",
    "Orbit",
    "LyapunovSpectrum",
    "Regime",
)


@pytest.mark.parametrize("kind", KINDS)
def test_text_and_table_are_short_and_tell_the_summary(results, kind):
    result, _ = results[kind]
    assert repr(result).startswith(f"{kind}(") and len(repr(result)) < 200 and "\n" not in repr(result)
    assert all(f"{name}=" in repr(result) for name in result.summary())
    page = result._repr_html_()
    shown = list(result.results) if kind == "Comparison" else [name.replace("_", " ") for name in result.summary()]
    assert page.startswith("<table") and all(f">{name}<" in page for name in shown)


@pytest.mark.parametrize("kind", KINDS)
def test_plot_draws_on_axes_given_and_on_a_figure_of_its_own(results, kind):
    result, arguments = results[kind]
    count = 3 if kind == "Comparison" else 1
    given = figures.figure_grid(1, count)[1][0]
    given = given if count > 1 else given[0]
    drawn = result.plot(*arguments, **{"axes" if count > 1 else "ax": given})
    assert all(one is other for one, other in zip(np.ravel(drawn), np.ravel(given), strict=True))
    own = np.ravel(result.plot(*arguments))
    assert all(isinstance(ax, Axes) and ax.has_data() for ax in own) and own[0].figure is not np.ravel(given)[0].figure


def test_accuracy_of_a_grid_is_that_of_its_solutions_and_ends_in_the_gaussian_process(grid):
    found = grid.accuracy(FEATURES[TEST], Y[TEST])
    limit = gaussian_process(ARCH, FEATURES[TRAIN], Y[TRAIN], temperature=0.1)
    expected = [grid.at(width=5), grid.at(width=50), limit]
    assert found.width.values.tolist() == [5, 50, np.inf]
    for predictors, name in (
        (expected, "accuracy"),
        ([one.with_order_parameter(np.diag(np.diag(one.order_parameter))) for one in expected], "accuracy_diagonal"),
    ):
        assert found[name].values.tolist() == [[one.predict(FEATURES[TEST]).accuracy(Y[TEST]) for one in predictors]]
    layers = solve_grid(ARCH, FEATURES[TRAIN], Y[TRAIN], widths=[(5, 50)], temperatures=0.1)
    with pytest.raises(ValueError, match=r"widths: got \(\(5, 50\),\); expected one number per width"):
        layers.plot(FEATURES[TEST], Y[TEST])


def test_diagrams_are_drawn_as_what_they_are():
    axes, regimes = {"r": [3.2, 4.0], "s": [0.9, 1.0]}, np.zeros((2, 2), int)
    phases = xr.Dataset({"regime": (("r", "s"), regimes)}, axes)
    assert phases.diagram.plot().get_xlabel() == "r"
    own = figures.figure_grid()[1][0, 0]
    assert phases.diagram.plot(own) is own
    with pytest.raises(ValueError, match="dataset: got a Dataset without regimes; expected a diagram"):
        xr.Dataset().diagram.plot()


def test_a_traced_result_has_a_text(grid):
    seen = []

    def look(temperature):
        solution = grid.at(width=5)
        seen.append(repr(type(solution).continued(solution, temperature=temperature)))
        return temperature

    jax.jit(look)(0.1)
    assert seen == [
        "Solution(heads=(2,), widths=5, temperature=traced, method=newton, converged=traced, log_evidence=traced)"
    ]


def test_a_new_figure_is_shown_in_notebooks_and_nowhere_else(results, monkeypatch):
    from IPython.core.formatters import DisplayFormatter

    shown, shell = [], SimpleNamespace(display_formatter=DisplayFormatter())
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr("IPython.display.display", shown.append)
    scores, _ = results["HeadScores"]
    scores.plot()
    assert shown == []  # a terminal of IPython
    shell.kernel = object()
    ax = scores.plot()
    assert shown == [ax.figure] and "image/png" in shell.display_formatter.format(ax.figure)[0]
    scores.plot(ax)
    assert len(shown) == 1

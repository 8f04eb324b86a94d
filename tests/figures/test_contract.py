"""What holds for every figure function: it draws where it is told or on a figure of its own, and leaves no trace."""

from __future__ import annotations

import sys

import matplotlib
import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes

from thermoformer import figures
from thermoformer.dynamics import autocorrelation, power_spectrum
from thermoformer.learning import Architecture, HeadScores

ORBIT = np.stack([np.cos(np.arange(60) * 0.3), np.sin(np.arange(60) * 0.3)], axis=1)
SQUARE = ("approach", "path", "path_other")


def dataset(sizes: dict[str, tuple[str, ...]], axes: dict[str, list], **attributes) -> xr.Dataset:
    """Variables with positive numbers along axes."""
    random = np.random.default_rng(0)
    variables = {
        name: (dims, random.uniform(0.1, 1.0, [len(axes[axis]) for axis in dims])) for name, dims in sizes.items()
    }
    return xr.Dataset(variables, {name: values for name, values in axes.items()}, attributes)


def diagram() -> xr.Dataset:
    """An orbit diagram followed both ways."""
    axes = {"direction": ["up", "down"], "beta": [1.0, 1.5, 2.0], "value": [-0.5, 0.0, 0.5], "exponent": [1, 2]}
    sizes = {"density": ("direction", "beta", "value"), "exponents": ("direction", "beta", "exponent")}
    found = dataset(sizes, axes, parameter="beta", observable="m_o[0]")
    return found.assign(regime=(("direction", "beta"), np.array([[0, 1, 3], [0, 1, 3]])))


def basins() -> xr.Dataset:
    """Two cycles, and what has no attractor."""
    found = dataset({"fraction": ("attractor",), "error": ("attractor",)}, {"attractor": [0, 1, -2]})
    found = found.assign(regime=("attractor", ["periodic"] * 2 + ["unbounded"]), period=("attractor", [28, 56, 0]))
    return found.assign(basin=(("x", "y"), np.array([[0, 1, 1], [0, 0, -2]]))).assign_coords(x=[0, 1], y=[0, 1, 3])


def sweep() -> xr.Dataset:
    done = ("a", "b"), np.ones((2, 3), int)
    return xr.Dataset({"status": done, "sum": (("a", "b"), np.ones((2, 3)))}, {"a": [1, 2], "b": [1, 2, 3]})


# Every public function that takes an Axes, with something to draw.
DRAW = {
    "accuracy_against_width": lambda ax: figures.accuracy_against_width(
        dataset({"accuracy": ("seed", "width")}, {"seed": [0, 1], "width": [10, 100, np.inf]}), ax
    ),
    "autocorrelation_curve": lambda ax: figures.autocorrelation_curve(autocorrelation(ORBIT, lags=20), ax),
    "basin_map": lambda ax: figures.basin_map(basins(), ax),
    "convergence": lambda ax: figures.convergence(
        dataset({"error": ("width", "approach")}, {"width": [10, 100], "approach": ["saddle", "other"]}), ax
    ),
    "curves_against_width": lambda ax: figures.curves_against_width([10, 100], {"theory": [0.9, 0.8]}, ax, marked=10),
    "finite_size_scaling": lambda ax: figures.finite_size_scaling(
        dataset({"error": ("bits",), "standard_error": ("bits",)}, {"bits": [100, 1000]}), ax
    ),
    "finite_size_steps": lambda ax: figures.finite_size_steps(
        dataset(
            {"by_step": ("bits", "step"), "predicted_by_step": ("step",), "predicted_error": ("step",)},
            {"bits": [100, 1000], "step": [1, 2]},
        ),
        ax,
    ),
    "grouped_points": lambda ax: figures.grouped_points({"theory": [0.9, 0.8]}, ["plain", "skips"], ax),
    "head_pruning_curves": lambda ax: figures.head_pruning_curves(
        dataset({"value": ("rule", "seed", "removed")}, {"rule": ["random"], "seed": [0, 1], "removed": [0, 1]}).assign(
            fraction=("removed", [0.0, 0.5])
        ),
        ax,
    ),
    "head_score_map": lambda ax: figures.head_score_map(HeadScores(((0, 0), (0, 1)), np.array([0.1, 2.0])), ax),
    "hysteresis": lambda ax: figures.hysteresis(diagram(), ax),
    "kernel_image": lambda ax: figures.kernel_image(np.eye(3), [1, -1, 1], ax),
    "label_overlap": lambda ax: figures.label_overlap({"GP": [0.1, 0.2]}, ax),
    "orbit_series": lambda ax: figures.orbit_series(ORBIT, ax),
    "order_parameter_matrix": lambda ax: figures.order_parameter_matrix(np.eye(2), ax=ax),
    "path_graph": lambda ax: figures.path_graph(Architecture((2, 1), 10), np.eye(2), ax=ax),
    "phase_diagram_image": lambda ax: figures.phase_diagram_image(
        dataset({"regime": ("beta", "gamma")}, {"beta": [1.0, 2.0], "gamma": [0.0, 1.0]}).astype(int), ax
    ),
    "phase_plane": lambda ax: figures.phase_plane(ORBIT, (0, 1), ax),
    "power_spectrum_curve": lambda ax: figures.power_spectrum_curve(power_spectrum(ORBIT), ax),
    "pruning_curves": lambda ax: figures.pruning_curves(
        dataset({"accuracy": ("order", "removed")}, {"order": ["theory"], "removed": [0, 1]}), ax
    ),
    "score_against_drop": lambda ax: figures.score_against_drop([0.2, 1.0], [1.0, 8.0], ax),
    "sweep_results": lambda ax: figures.sweep_results(sweep(), "sum", ax),
}
# Those with several panels, and how many.
PANELS = {
    "comparison_panels": (
        3,
        lambda axes: figures.comparison_panels(
            dataset(
                {
                    "mean": ("approach", "example"),
                    "variance": ("approach", "example"),
                    "order_parameter": SQUARE,
                    "order_parameter_error": SQUARE,
                },
                {"approach": ["saddle", "exact"], "example": [0, 1], "path": ["a", "b"], "path_other": ["a", "b"]},
                reference="exact",
            ),
            axes,
        ),
    ),
    "orbit_diagram_panels": (3, lambda axes: figures.orbit_diagram_panels(diagram().isel(direction=0), axes)),
}


def test_every_figure_function_is_here():
    others = {"PALETTE", "REGIME_COLOURS", "figure_grid", "save", "styled"}
    assert set(figures.__all__) - others == {*DRAW, *PANELS}


@pytest.fixture
def untouched():
    """matplotlib's settings and pyplot are as they were before the test."""
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW.keys())
def test_a_figure_is_drawn_on_the_axes_or_on_its_own_and_saved_alike(draw, tmp_path, untouched):
    given = figures.figure_grid(1, 2)[1][0, 1]
    assert draw(given) is given
    for name in ("first", "second"):
        own = draw(None)
        assert isinstance(own, Axes) and own.figure is not given.figure
        figures.save(own.figure, tmp_path / name)
    for ending in ("png", "svg"):
        assert (tmp_path / f"first.{ending}").read_bytes() == (tmp_path / f"second.{ending}").read_bytes()


@pytest.mark.parametrize(("count", "draw"), PANELS.values(), ids=PANELS.keys())
def test_panels_are_drawn_on_the_axes_or_on_a_figure_of_their_own(count, draw, untouched):
    given = figures.figure_grid(1, count)[1][0]
    assert list(draw(given)) == list(given)
    own = draw(None)
    assert own.shape == (count,) and len({ax.figure for ax in own}) == 1
    with pytest.raises(ValueError, match="axes: got .*; expected .*three"):
        draw(given[:1])

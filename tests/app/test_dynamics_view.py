"""The numbers of the Dynamics view: those of the library, at once, and the same for all who ask."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from sign_tables import NO_POSITIONS, TWO_HEADS

from thermoformer.app import dynamics_steps as steps_module
from thermoformer.app import dynamics_view as view_module
from thermoformer.app.dynamics_code import code_of, diagram_code_of, setup_code
from thermoformer.app.dynamics_steps import (
    BINS,
    DIAGRAM_PERIOD,
    DIAGRAM_STEPS,
    DIAGRAM_TRANSIENT,
    DiagramStepper,
    Judgement,
    diagram_for,
    refining_order,
    warm,
)
from thermoformer.app.dynamics_view import (
    KEPT,
    QUICK_STEPS,
    TRANSIENT,
    DynamicsChoice,
    confidence_of,
    model_of,
    picture_of,
    start_of,
)
from thermoformer.dynamics import (
    fluctuations,
    iterate,
    lyapunov_spectrum,
    orbit,
    orbit_diagram,
    power_spectrum,
    regime,
    tangents,
)


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """What `warm` compiles but for ε = 0, once for the file.

    Answers that another file has left in memory go first: they would hide that their programs are not compiled.
    """
    for module in (steps_module, view_module):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
    picture_of(DynamicsChoice())
    diagram_for(DynamicsChoice()).advance()
    Judgement(DynamicsChoice()).advance()


def test_a_band_has_the_fluctuations_of_the_library():
    choice = DynamicsChoice(beta=1.0, role="k", band=10**6)
    picture, model = picture_of(choice), model_of(choice)
    found = fluctuations(model, iterate(model, start_of(choice), TRANSIENT), 120)
    np.testing.assert_array_equal(picture.spread, 2 * found.deviation(10**6, "k"))
    np.testing.assert_allclose(found.mean[:, 9:], picture.values[:120], atol=1e-12)
    # Without it nothing else changes, and another width needs no program.
    assert picture_of(dataclasses.replace(choice, band=0)).spread is None
    assert not view_module.compiles(dataclasses.replace(choice, band=10**8))
    assert diagram_for(choice) is diagram_for(dataclasses.replace(choice, band=0))
    with pytest.raises(ValueError, match="read-only"):
        picture.spread[0] = 0


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The programs that are compiled while a test runs."""
    programs: list[str] = []

    def heard(event: str, duration: float, **about: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            programs.append(str(about.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield programs
    jax.monitoring.unregister_event_duration_listener(heard)


@pytest.mark.parametrize(
    "choice", [DynamicsChoice(beta=1.255), DynamicsChoice(role="v", component=2, against=0)], ids=["torus", "chaos"]
)
def test_numbers_are_those_of_the_library(choice):
    picture, model, start = picture_of(choice), model_of(choice), start_of(choice)
    path = orbit(model, start, steps=KEPT, transient=TRANSIENT)
    np.testing.assert_array_equal(picture.values, getattr(path, f"m_{choice.role}"))
    spectrum = lyapunov_spectrum(model, start, steps=QUICK_STEPS, transient=TRANSIENT, k=2)
    np.testing.assert_array_equal(picture.verdict.exponents, spectrum.exponents)
    np.testing.assert_array_equal(picture.verdict.errors, spectrum.errors)
    power = power_spectrum(picture.series, segment=1024)
    np.testing.assert_array_equal(picture.spectrum, power)
    assert picture.peak == float(power[1:].idxmax())


def test_regimes_are_those_of_the_paper():
    found = {beta: picture_of(DynamicsChoice(beta=beta)).verdict for beta in (1.0, 1.255, 1.28)}
    assert [verdict.name for verdict in found.values()] == ["periodic", "quasi-periodic", "chaos"]
    assert found[1.0].period == 4
    assert abs(found[1.28].exponents[0] - 0.143) < 4 * found[1.28].errors[0]
    words = [confidence_of(verdict).split()[0] for verdict in found.values()]
    assert words == ["firm:", "likely:", "chaos"]
    assert confidence_of(dataclasses.replace(found[1.28], name="undecided")).startswith("open")


def test_the_plane_is_of_two_components_or_of_two_steps():
    across, up = picture_of(DynamicsChoice(beta=1.255, component=3)).plane
    values = picture_of(DynamicsChoice(beta=1.255)).values
    np.testing.assert_array_equal((across, up), (values[:, 2], values[:, 1]))
    across, up = picture_of(DynamicsChoice(beta=1.255, against=0)).plane
    np.testing.assert_array_equal(across[1:], up[:-1])


def test_a_picture_is_kept_and_cannot_be_changed():
    picture = picture_of(DynamicsChoice())
    assert picture_of(DynamicsChoice()) is picture
    for array in (picture.values, picture.spectrum.values, picture.verdict.exponents):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize(
    "choice",
    [
        DynamicsChoice(),
        DynamicsChoice(beta=1.255, role="q", component=2, against=0, start=5),
        DynamicsChoice(beta=1.255, role="v", band=10**8),
    ],
    ids=["default", "other", "band"],
)
def test_the_code_makes_the_same_numbers(choice, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code_of(choice), names)
    picture = picture_of(choice)
    np.testing.assert_allclose(names["values"], picture.values, rtol=0, atol=1e-9)
    np.testing.assert_allclose(names["spectrum"], picture.spectrum, rtol=1e-9)
    shown, plane, spectrum = names["axes"][0]
    np.testing.assert_allclose(shown.lines[0].get_ydata(), picture.values[:120, 0], atol=1e-9)
    points = plane.collections[0].get_offsets() if plane.collections else plane.lines[0].get_xydata()
    np.testing.assert_allclose(points.T, picture.plane, atol=1e-9)
    assert f"{choice.role},{choice.component}" in plane.get_xlabel() and spectrum.get_yscale() == "log"
    np.testing.assert_allclose(names["verdict"].exponents, picture.verdict.exponents, rtol=1e-9)
    assert names["verdict"].name == picture.verdict.name in capsys.readouterr().out
    assert len(shown.collections) == (3 if choice.band else 0)
    if choice.band:
        np.testing.assert_allclose(names["spread"], picture.spread, rtol=1e-9)
    assert (tmp_path / "orbit.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "choice",
    [
        DynamicsChoice(features="random", feature_count=4, bits=7, feature_seed=3),
        DynamicsChoice(features="table", table=TWO_HEADS, context=2, role="k", component=4),
        DynamicsChoice(features="table", table=NO_POSITIONS, epsilon=0.0, context=8, against=1),
        DynamicsChoice(context=16, start=2),
    ],
    ids=["random", "table", "without positions", "long"],
)
def test_the_code_makes_the_same_model_and_start(choice):
    names: dict[str, object] = {}
    exec("\n".join(setup_code(choice)), names)
    made, model = names["model"], model_of(choice)
    assert made.parameters == model.parameters
    np.testing.assert_array_equal(made.positions, model.positions)
    np.testing.assert_array_equal(made.features.signs, model.features.signs)
    for role in "ovqk":
        np.testing.assert_array_equal(made.features.weights[role], model.features.weights[role])
        np.testing.assert_array_equal(made.features.positional[role], model.features.positional[role])
    np.testing.assert_array_equal(names["start"].A, start_of(choice).A)
    np.testing.assert_array_equal(names["start"].positions, start_of(choice).positions)


def test_sliders_compile_nothing(compiled):
    for fields in (
        {"beta": 1.2345},
        {"beta": 0.0},
        {"gamma": 31.5},
        {"epsilon": 0.3},
        {"start": 7},
        {"component": 2, "against": 0},
        {"role": "k"},
    ):
        picture_of(DynamicsChoice(**fields))
    stepper = DiagramStepper(DynamicsChoice(gamma=180.0, epsilon=0.05, between=(1.0, 1.5)))
    stepper.advance()
    stepper.advance()
    Judgement(DynamicsChoice(beta=1.31, gamma=190.0), limit=80_000).finish()
    assert not compiled


def test_warm_asks_for_what_a_reader_may_ask_for(monkeypatch, compiled):
    asked: list[DynamicsChoice] = []
    monkeypatch.setattr(steps_module, "picture_of", asked.append)
    warm()
    assert asked == [DynamicsChoice(), DynamicsChoice(epsilon=0.0)]
    assert not compiled


def test_a_diagram_refines_and_computes_no_column_twice(monkeypatch):
    asked: list[float] = []

    def counted(model, state, parameter, values, *, steps, **more):
        if steps == DIAGRAM_STEPS:
            asked.extend(values.tolist())
        return orbit_diagram(model, state, parameter, values, steps=steps, **more)

    monkeypatch.setattr(steps_module, "orbit_diagram", counted)
    stepper = DiagramStepper(DynamicsChoice(), columns=256)
    assert (stepper.fraction, stepper.level, stepper.picture) == (0.0, 0, None)
    seen, columns, levels = set(), {}, []
    while not stepper.done:
        stepper.advance()
        picture = stepper.picture
        betas, density = picture.beta.values, picture.density.values
        assert seen < set(betas.tolist())
        seen = set(betas.tolist())
        assert (np.diff(betas) > 0).all()
        for beta, counts in columns.items():
            np.testing.assert_array_equal(picture.density.sel(beta=beta), counts)
        columns = dict(zip(betas.tolist(), density, strict=True))
        levels.append(stepper.level)
    assert levels == [64, 128, 128, 256]
    assert len(asked) == len(set(asked)) == 256
    np.testing.assert_array_equal(stepper.picture.beta, np.linspace(1.2, 2.6, 256))
    assert set(stepper.picture.density.sum("value").values.tolist()) == {DIAGRAM_STEPS}
    stepper.advance()
    assert len(asked) == 256


@pytest.mark.parametrize("lanes", [64, 16, 8])
@pytest.mark.parametrize("columns", [64, 512, 1024])
def test_every_slice_is_spread_over_the_range(columns, lanes):
    order = refining_order(columns, lanes)
    assert order.shape == (columns // lanes, lanes)
    assert sorted(order.ravel().tolist()) == list(range(columns))
    assert sorted(order[: 64 // lanes].ravel().tolist()) == list(range(0, columns, columns // 64))
    for part in order:
        assert np.diff(part).min() == np.diff(part).max() == columns // lanes


def test_larger_features_take_fewer_columns_at_a_time():
    sizes = [{}, {"context": 16}, {"features": "random", "feature_count": 6, "bits": 64, "context": 16}]
    lanes = [DiagramStepper(DynamicsChoice(**fields)).lanes for fields in sizes]
    assert lanes == [64, 32, 8]


def test_columns_are_those_of_the_library():
    choice = DynamicsChoice(between=(1.25, 1.3))
    stepper = DiagramStepper(choice, columns=64)
    stepper.advance()
    picture = stepper.picture
    found = orbit_diagram(
        model_of(choice),
        start_of(choice),
        "beta",
        picture.beta.values[::-1],
        steps=DIAGRAM_STEPS,
        transient=DIAGRAM_TRANSIENT,
        bins=BINS,
        limits=stepper.limits,
        longest_period=DIAGRAM_PERIOD,
        batch=64,
    ).isel(beta=slice(None, None, -1))
    np.testing.assert_allclose(picture.value, found.value)
    _agree(picture, found.density.values)
    np.testing.assert_allclose(picture.exponents[:, 0], found.exponents[:, 0], atol=0.05)
    np.testing.assert_array_equal(picture.period, found.period)
    assert (picture.period > 0).sum() >= 5 and (picture.regime == found.regime).mean() > 0.9


def test_the_diagram_of_another_role_is_that_of_its_orbits():
    choice = DynamicsChoice(role="v", component=2, between=(1.25, 1.3))
    stepper = DiagramStepper(choice, columns=64)
    stepper.advance()
    edges = np.linspace(*stepper.limits, BINS + 1)
    counts = []
    for beta in stepper.picture.beta.values:
        path = orbit(model_of(choice).replace(beta=beta), start_of(choice), steps=DIAGRAM_STEPS, transient=6000)
        counts.append(np.histogram(path.m_v[:, 1], edges)[0])
    _agree(stepper.picture, np.array(counts))


def _agree(picture, counts: np.ndarray) -> None:
    """Cycles bin by bin but for where on them the count begins; the rest within the error of coarse bins."""
    cycles, density = picture.period.values > 0, picture.density.values
    np.testing.assert_allclose(density[cycles], counts[cycles], rtol=0, atol=2)
    coarse = [found[~cycles].reshape(-1, 16, 10).sum(axis=2) / DIAGRAM_STEPS for found in (density, counts)]
    assert np.median(np.abs(coarse[0] - coarse[1]).sum(axis=1)) < 0.15


@pytest.mark.parametrize("role", ["o", "v", "q", "k"])
def test_the_code_of_a_diagram_makes_its_columns_and_exponents(role, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    component = 1 if role == "o" else 2  # compiled already, above
    stepper = DiagramStepper(DynamicsChoice(role=role, component=component, between=(1.25, 1.3)), columns=64)
    stepper.advance()
    names: dict[str, object] = {}
    exec(diagram_code_of(stepper, beta=1.26), names)
    picture, diagram = stepper.picture, names["diagram"]
    np.testing.assert_allclose(diagram.beta, picture.beta)
    np.testing.assert_allclose(diagram.value, picture.value)
    _agree(picture, diagram.density.values)
    np.testing.assert_array_equal(picture.exponents, diagram.exponents)
    if role == "o":
        np.testing.assert_array_equal(picture.density, diagram.density)
    _draws_both(names["panels"], picture, f"$m_{{{role},{component}}}$")
    # A place outside of the range has no line.
    assert "axvline" not in diagram_code_of(stepper, beta=1.4)
    assert (tmp_path / "orbit_diagram.png").stat().st_size > 10_000


def _draws_both(panels, picture, symbol: str) -> None:
    """The panels are those of the page: where the orbit goes, and the leading exponent below."""
    top, bottom, _ = panels
    assert (top.get_ylabel(), bottom.get_ylabel(), panels[-1].get_xlabel()) == (symbol, "exponents", "β")
    (image,) = top.images
    shown = ~np.ma.getmaskarray(np.ma.masked_invalid(image.get_array()))
    np.testing.assert_array_equal(shown, picture.density.values.T > 0)
    (leading,) = (line for line in bottom.lines if len(line.get_xdata()) == len(picture.beta))
    np.testing.assert_allclose(leading.get_xdata(), picture.beta)
    exponents = picture.exponents[:, 0]
    np.testing.assert_array_equal(leading.get_ydata(), np.where(np.isfinite(exponents), exponents, np.nan))
    for panel in (top, bottom):
        assert panel.get_xlim() == (1.25, 1.3)
        assert {1.26} in [set(line.get_xdata()) for line in panel.lines]


def test_a_diagram_is_shared_by_all_who_ask_for_it():
    stepper = diagram_for(DynamicsChoice())
    assert diagram_for(DynamicsChoice(beta=1.3, against=0)) is stepper
    assert diagram_for(DynamicsChoice(component=2)) is not stepper


@pytest.mark.parametrize("beta", [1.27, 1.28])
def test_a_longer_look_is_the_rule_of_the_library(beta):
    choice = DynamicsChoice(beta=beta)
    judgement = Judgement(choice, limit=160_000)
    fractions = [judgement.fraction]
    while not judgement.done:
        judgement.advance()
        fractions.append(judgement.fraction)
    assert fractions[0] == 0 and fractions[-1] == 1 and (np.diff(fractions) > 0).all()
    direct = regime(model_of(choice), start_of(choice), steps=20_000, transient=20_000, k=2, confirm=120_000)
    assert judgement.verdict.changes == direct.changes
    assert (judgement.verdict.name, judgement.verdict.steps) == (direct.name, direct.steps)
    np.testing.assert_allclose(judgement.verdict.exponents, direct.exponents, atol=0.02)
    assert (judgement.verdict.name == "chaos") == (beta == 1.28)
    judgement.advance()
    assert judgement.steps == direct.steps


def test_several_readers_at_once_see_the_same():
    choices = [DynamicsChoice(beta=1.2 + 0.02 * number) for number in range(4)] * 2
    stepper = DiagramStepper(DynamicsChoice(), columns=128)

    def ask(choice: DynamicsChoice) -> tuple[float, int]:
        picture = picture_of(choice)
        stepper.advance()
        return float(picture.values.sum()), len(stepper.picture.beta)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, choices))
    assert [sums for sums, _ in answers[:4]] == [sums for sums, _ in answers[4:]]
    assert stepper.done and len(stepper.picture.beta) == 128


def test_no_program_of_this_view_calls_lapack():
    """Else it would have to take turns with the Learning view, whose programs do."""
    model = model_of(DynamicsChoice(context=16))
    assert view_module.exponents_of(model) <= tangents.UNROLLED
    columns = np.ones((view_module.exponents_of(model), 3, 2))
    assert "lapack" not in jax.jit(tangents.orthonormalise).lower(columns).as_text()
    many = np.ones((tangents.UNROLLED + 1, tangents.UNROLLED + 1, 2))
    assert "lapack" in jax.jit(tangents.orthonormalise).lower(many).as_text(), "this is not how to tell"

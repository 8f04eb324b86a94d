"""The GPU kernel, which JAX interprets here: the numbers of the engine, and its steps where there can be no kernel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thermoformer.dynamics import (
    DiscreteMap,
    Features,
    MeanField,
    kernel,
    lyapunov_spectrum,
    orbit_diagram,
    orbit_statistics,
    regime,
)
from thermoformer.dynamics.engine import Density, Plan, Returns, Tally, _begin, survey
from thermoformer.dynamics.scalars import Scalars, UnsupportedError, array_of
from thermoformer.dynamics.tangents import exponents_of

LANES = 5
logistic = DiscreteMap(lambda x, r: r * x * (1 - x), {"r": 3.5})
henon = DiscreteMap(lambda x, a: jnp.array([1 - a * x[0] ** 2 + x[1], 0.3 * x[0]]), {"a": 1.4}, ("x", "y"))


@pytest.fixture
def use(monkeypatch):
    """How the engine takes its steps."""
    return lambda mode: monkeypatch.setenv("THERMOFORMER_KERNEL", mode)


def coupling(x):
    return jnp.array([[0.8, 0.2, 0.0], [0.1, 0.9, 0.0], [0.0, 0.3, 0.7]]) @ (3.7 * x * (1 - x))


@pytest.mark.parametrize(
    "function",
    [
        coupling,
        lambda x: x @ x + jnp.outer(x, x) @ x,
        lambda x: jnp.roll(x, 1) - x[::-1] + x.at[1].set(0.5) - x[jnp.array([2, 2, 0])],
        lambda x: jnp.where(x > 0.5, jnp.max(x), jnp.prod(x)) + jnp.sum(x[:2]) - jnp.min(x) * (jnp.sum(x > 0.5) == 1),
        lambda x: jax.lax.dynamic_index_in_dim(x, jnp.int32(10 * x[0]) % 5, 0, False) * jnp.mod(x - 0.5, 0.3),
        lambda x: jax.lax.dynamic_update_index_in_dim(x, -x[0], jnp.int32(10 * x[0]) % 3, 0),
        lambda x: jax.jvp(lambda x: jax.nn.softmax(jnp.pad(x, (0, 2))) ** 3, (x,), (jnp.ones(3),))[1],
        lambda x: jnp.concatenate([jnp.maximum(x, 1 / (x - x)), jnp.arange(2.0)]),
    ],
)
def test_numbers_one_by_one(function):
    x = np.random.default_rng(1).uniform(size=(3, 1, 6))
    jaxpr = jax.make_jaxpr(function)(x[:, 0, 0])

    @jax.jit
    def written_out(x):
        scalars = Scalars(x.shape[1:])
        (found,) = scalars.evaluate(jaxpr.jaxpr, jaxpr.consts, [array_of(list(x), (3,))])
        return jnp.stack([scalars.variable(one) for one in found])

    expected = jax.vmap(function, in_axes=-1, out_axes=-1)(x[:, 0])
    np.testing.assert_allclose(written_out(x)[:, 0], expected, rtol=1e-13)


def test_equal_operations_are_done_once():
    def step(x):
        return jnp.tanh(x[0]) + jnp.tanh(x[0]) * jnp.tanh(x).sum()

    jaxpr = jax.make_jaxpr(step)(np.ones(2))

    def count(x):
        scalars = Scalars(x.shape[1:])
        (found,) = scalars.evaluate(jaxpr.jaxpr, jaxpr.consts, [array_of(list(x), (2,))])
        return found.item()

    assert str(jax.make_jaxpr(count)(np.ones((2, 1, 1)))).count("tanh") == 2


@pytest.mark.parametrize(
    "function",
    [jnp.sort, lambda x: jax.lax.while_loop(lambda x: x[0] < 1, lambda x: 2 * x, x), lambda x: x[jnp.int32(x)]],
)
def test_what_cannot_be_written_out(function):
    jaxpr = jax.make_jaxpr(function)(np.ones(2))
    with pytest.raises(UnsupportedError):
        jax.jit(lambda x: Scalars(()).evaluate(jaxpr.jaxpr, jaxpr.consts, [array_of(list(x), (2,))])[0][0])(np.ones(2))


def compared(use, model, state, plan, parameters):
    """What a survey finds step by step, and in the kernel; the numbers are the same."""
    found = {}
    for mode, name in (("off", "steps"), ("interpret", "kernel")):
        use(mode)
        found[mode] = survey(model, [state], plan, parameters)
        assert set(found[mode].pop("engine")) == {name}
    finals = [one.pop("finals") for one in found.values()]
    for name, values in found["off"].items():
        # On a cycle the distance of a return is rounding.
        these = found["off"]["period"] == 0 if name in ("nearness", "nearest") else slice(None)
        np.testing.assert_allclose(found["interpret"][name][these], values[these], rtol=1e-9, atol=1e-11, err_msg=name)
    return found["interpret"], finals


def test_vector_maps(use):
    """Orbits that return, and one that leaves every bound, with everything that is recorded."""
    recorders = (Tally(), Density.of(henon, 0, 8, (-1.0, 1.0), (1, 0.3)))
    plan = Plan(203, 45, exponents_of(2, 2, 4), recorders, Returns.of(8, 1e-9), blocks=3)
    found, _ = compared(use, henon, np.array([0.1, 0.1]), plan, {"a": np.array([0.2, 0.5, 0.7, 1.0, 5.0])})
    assert found["finite"].tolist() == [True] * 4 + [False]
    assert found["period"].tolist() == [1, 2, 2, 4, 0]
    assert (found["density"].sum(axis=1) <= 44).all() and found["section_density"].sum() > 0


def test_chaos_is_that_of_the_tent_map(use):
    """r = 4 is conjugate to the tent map: the exponent is ln 2, the density 1 / (π √(x (1 − x)))."""
    use("interpret")
    plan = Plan(100, 40_000, exponents_of(1), (Tally(), Density.of(logistic, 0, 8, (0.0, 1.0))))
    found = survey(logistic, [np.array([0.3])], plan, {"r": np.array([4.0])})
    assert found["engine"].tolist() == ["kernel"]
    assert found["exponents"][0, 0] == pytest.approx(np.log(2), abs=5 * found["errors"][0, 0] + 1e-4)
    exact = np.diff(2 / np.pi * np.arcsin(np.sqrt(np.linspace(0, 1, 9))))
    np.testing.assert_allclose(found["density"][0] / 40_000, exact, atol=0.01)
    assert found["density"].sum() == 40_000


def test_mean_field(use):
    """Three tokens, from the second slot of the window on."""
    model = MeanField(Features.random(32, 2, key=3), 1.0, 20.0, 0.1, context=3)
    plan = Plan(4, 12, exponents_of(6, 2, 2), blocks=2)
    _, finals = compared(use, model, model.window(), plan, {"beta": np.linspace(1.0, 1.4, LANES)})
    for one, other in zip(*finals, strict=True):
        np.testing.assert_allclose(other.A, one.A, atol=1e-12)
        assert np.array_equal(other.positions, one.positions)


def test_the_result_says_which_was_used(use):
    given = {"steps": 20, "transient": 0, "longest_period": 0, "limits": (0.0, 1.0)}
    for mode, name in (("off", "steps"), ("interpret", "kernel")):
        use(mode)
        assert orbit_diagram(logistic, 0.3, "r", [3.2, 3.5], k=0, **given).attrs["engine"] == name
        assert lyapunov_spectrum(logistic, 0.3, steps=20, transient=0).engine == name
        assert regime(logistic, 0.3, steps=20, transient=0, longest_period=4).engine == name
        assert orbit_statistics(logistic, 0.3, steps=20).attrs["engine"] == name


def test_steps_where_there_can_be_no_kernel(use):
    use("interpret")
    sorting = DiscreteMap(lambda x, a: a * jnp.sort(x)[::-1], {"a": 0.5}, ("x", "y"))
    assert lyapunov_spectrum(sorting, [0.1, 0.2], steps=8, transient=0).engine == "steps"

    @jax.jit
    def largest(a):
        return lyapunov_spectrum(henon.replace(a=a), [0.1, 0.1], steps=8, transient=0).exponents[0]

    assert np.isfinite(largest(1.0))


@pytest.mark.parametrize("vectors", [0, 2])
def test_lowered_for_cuda(vectors):
    """No operation is left that Triton has not; XLA compiles the rest where there is a GPU."""
    model = MeanField(Features.random(32, 2, heads=2, key=3), 1.0, 20.0, 0.1, context=3)
    window = model.window()
    lanes, state = model.in_lanes([window] * LANES)
    lanes, state = lanes.for_kernel(state)
    made = kernel.Kernel.of(model, window, lanes, LANES, "compiled")
    seeking = Returns(0, np.float64(1e-9), np.arange(LANES) + 1, np.int64(9))
    recorders = (Tally(), Density.of(model, 0, 8, (-1.0, 1.0))) if vectors else (seeking,)
    *sums, columns = _begin(lanes, state, (*recorders, exponents_of(6, vectors) if vectors else None))
    growth = (np.zeros((vectors, LANES)),) * 2 if vectors else None
    varying = [leaf for leaf, known in zip(jax.tree.leaves(lanes), made.known, strict=True) if known is None]
    assert len(varying) == 3  # β, γ and ε
    traced = kernel._launch.trace(made, 2, varying, recorders, (state, tuple(sums), columns, growth), np.int32(5))
    assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()

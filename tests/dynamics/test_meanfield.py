"""The mean-field map against sums over bits, the reference orbits and its own limits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thermoformer.dynamics import Features, MeanField, Window, orbit

GAMMA, EPSILON = 220.0, 0.02


def paper(beta: float = 1.27) -> MeanField:
    return MeanField(Features.paper(), beta=beta, gamma=GAMMA, epsilon=EPSILON)


def brute_step(patterns, bits, A, positions, beta, gamma, epsilon):
    """dynamics §1–2 by sums over every bit; patterns [M, N + B], window newest first."""
    mean_bits = np.tanh(beta * A @ patterns["o"][:, :bits])
    overlap = {
        role: (1 - epsilon) * mean_bits @ patterns[role][:, :bits].T / bits
        + epsilon * positions @ patterns[role][:, bits:].T / positions.shape[1]
        for role in "vqk"
    }
    logits = gamma / np.sqrt(A.shape[1]) * overlap["k"] @ overlap["q"][0]
    weights = np.exp(logits - logits.max())
    return weights / weights.sum() @ overlap["v"], overlap


@pytest.mark.parametrize("beta", ["1.255", "1.27", "1.4"])
def test_reference_orbits(reference, beta):
    data = reference(f"dynamics/traj_beta{beta}.npz")
    model = paper(float(beta))
    found = orbit(model, model.window(data["A0"], data["positions0"]), steps=50)
    names = {"A": "A", "m_o": "m_o_semantic_times_1_minus_eps", "m_v": "m_v", "m_q": "m_q", "m_k": "m_k"}
    for ours, theirs in names.items():
        np.testing.assert_allclose(getattr(found, ours), data[theirs][:50], rtol=0, atol=1e-9)


@pytest.mark.parametrize("beta", ["1.255", "1.27", "1.4"])
def test_one_step_along_all_of_the_reference(reference, beta):
    """Chaos makes orbits part; from the reference's own window, every single step is the same."""
    data = reference(f"dynamics/traj_beta{beta}.npz")
    model = paper(float(beta))
    history = np.concatenate([data["A0"][::-1], data["A"]])
    for step in range(len(data["A"])):
        window = Window(history[step : step + 4][::-1], np.roll(data["positions0"], step, axis=0))
        by_numpy, overlaps = model.look(window)
        np.testing.assert_allclose(by_numpy, data["A"][step], rtol=0, atol=1e-12)
        np.testing.assert_allclose(overlaps["q"][0], data["m_q"][step], rtol=0, atol=1e-12)
        if step % 40 < 4:  # the compiled step in all four phases, now and then
            compiled = orbit(model, window, steps=1)
            np.testing.assert_allclose(compiled.A[0], data["A"][step], rtol=0, atol=1e-12)
            np.testing.assert_allclose(compiled.m_k[0], data["m_k"][step], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["token_beta1.27", "mode1_M2_seed7_beta1.5"])
def test_reference_token_starts(reference, name):
    data = reference(f"dynamics/{name}.npz")
    patterns = {role: data[f"pattern_{role}"] for role in "ovqk"}
    bits = int(data["semantic_bits"])
    features = Features.from_patterns(
        {role: values[:, :bits] for role, values in patterns.items()},
        {role: values[:, bits:] for role, values in patterns.items()},
    )
    model = MeanField(features, float(data["beta"]), float(data["gamma"]), float(data["epsilon"]))
    found = orbit(model, model.token(data["x0"]), steps=50)
    for ours, theirs in {"A": "A", "m_v": "m_v", "m_o": "m_o_semantic_times_1_minus_eps"}.items():
        np.testing.assert_allclose(getattr(found, ours), data[theirs][:50], rtol=0, atol=1e-9)
    # One step from the reference's own windows, once these are full.
    context, history = model.context, data["A"]
    positions = np.roll(model.positions[::-1], 1, axis=0)
    for step in range(context, len(history) - 1, 7):
        window = Window(history[step - context + 1 : step + 1][::-1], np.roll(positions, step + 1, axis=0))
        np.testing.assert_allclose(model.look(window)[0], history[step + 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("features", "heads", "context"), [(1, 1, 3), (2, 2, 8), (4, 1, 5), (5, 2, 8)])
def test_equals_the_sum_over_all_bits(features, heads, context):
    """Any number of features and heads, context shorter than the positions allow: classes against bits."""
    bits = 40
    set_ = Features.random(bits, features, positional_bits=3, heads=heads, key=features)
    model = MeanField(set_, beta=1.5, gamma=30.0, epsilon=0.1, context=context)
    generator = np.random.default_rng(0)
    A = generator.uniform(-0.5, 0.5, (context, features))
    window = model.window(A)
    columns, positional = set_.columns, set_.positional
    expected = np.zeros(features)
    for head in range(heads):
        patterns = {"o": np.concatenate([columns["o"], positional["o"]], axis=-1)}
        patterns |= {role: np.concatenate([columns[role][head], positional[role][head]], axis=-1) for role in "vqk"}
        one, _ = brute_step(patterns, bits, A, window.positions, 1.5, 30.0, 0.1)
        expected += one
    found = orbit(model, window, steps=1)
    np.testing.assert_allclose(found.A[0], expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(model.look(window)[0], expected, rtol=0, atol=1e-13)
    assert found.m_v.shape == ((1, features) if heads == 1 else (1, heads, features))


def test_heads_that_are_copies_add_up():
    """Two equal heads are one head with twice the values."""
    one = Features.segments(3, 2, key=3)
    twice = Features.from_patterns(
        {role: values if role == "o" else np.concatenate([values, values]) for role, values in one.columns.items()},
        {role: values if role == "o" else np.concatenate([values, values]) for role, values in one.positional.items()},
    )
    single, double = (MeanField(features, 1.3, 100.0, 0.05) for features in (one, twice))
    window = single.window(np.full((4, 2), 0.3))
    assert double.look(window)[0] == pytest.approx(2 * single.look(window)[0], abs=1e-14)
    found = orbit(double, window, steps=1)
    np.testing.assert_allclose(found.A[0], 2 * single.look(window)[0], atol=1e-14)


def test_token_kept_in_the_window_is_the_finite_network_without_noise():
    """x_0 with its exact overlaps, then tokens of mean bits: the window that the finite network has."""
    features = Features.random(60, 3, key=4)
    model = MeanField(features, 1.4, 50.0, 0.1)
    x0 = model.first_token()
    start = features.token_overlaps(x0, 0.1)
    found = orbit(model, model.token(keep=True), steps=12)
    np.testing.assert_allclose(found.A[0], start["v"][0], atol=1e-14)
    np.testing.assert_allclose(found.m_q[0], start["q"][0], atol=1e-14)
    tokens = [{role: start[role][0] for role in "vqk"}]
    for step in range(1, 12):
        new = model.overlaps(found.A[step - 1][None], model.positions[step % 4][None])
        tokens = [*tokens, {role: new[role][0, 0] for role in "vqk"}][-4:]
        logits = 50.0 / np.sqrt(3) * np.array([token["k"] @ tokens[-1]["q"] for token in tokens])
        weights = np.exp(logits - logits.max())
        A = weights / weights.sum() @ np.array([token["v"] for token in tokens])
        np.testing.assert_allclose(found.A[step], A, atol=1e-12)


def test_orbit_pieces_fit_together():
    """A transient is the same orbit not kept; the final state goes on where it ended, token starts included."""
    model = paper(1.255)
    for start in (model.token(), model.token(keep=True), model.window(np.full((4, 3), 0.2))):
        whole = orbit(model, start, steps=60)
        late = orbit(model, start, steps=30, transient=30)
        np.testing.assert_allclose(whole.A[30:], late.A, atol=1e-12)
        first = orbit(model, start, steps=2)
        rest = orbit(model, first.final_state, steps=58)
        np.testing.assert_allclose(whole.m_o[2:], rest.m_o, atol=1e-10)
        np.testing.assert_allclose(whole.final_state.A, rest.final_state.A, atol=1e-10)
        np.testing.assert_array_equal(whole.final_state.positions, rest.final_state.positions)


def test_jacobian_is_that_of_the_map():
    """The analytic Jacobian with cached tokens, against automatic differentiation of the plain window map."""
    features = Features.random(30, 2, positional_bits=2, heads=2, key=1)
    model = MeanField(features, 1.2, 9.0, 0.1, context=3)
    window = model.window(np.random.default_rng(1).uniform(-0.4, 0.4, (3, 2)))
    lanes, state = model.in_lanes([window])

    @jax.jit
    def step(x):
        return lanes.coordinates(lanes.step(lanes.at(x[:, None])))[:, 0]

    @jax.jit
    def push():
        linear = lanes.linearise(state)
        columns = lanes.columns(state, jnp.eye(6))
        units = jnp.stack([lanes.in_order(state, column)[:, 0] for column in columns])
        after = lanes.advance(linear).state
        pushed = jnp.stack([lanes.in_order(after, column)[:, 0] for column in lanes.push(linear, columns)])
        return pushed.T @ units, lanes.coordinates(after)[:, 0]

    x = window.A[::-1].ravel()
    jacobian, after = push()
    np.testing.assert_allclose(jacobian, jax.jit(jax.jacfwd(step))(x), atol=1e-13)
    np.testing.assert_allclose(after, step(x), atol=1e-14)


def test_extreme_parameters_do_not_overflow():
    model = MeanField(Features.paper(), beta=1e3, gamma=1e6, epsilon=0.02)
    found = orbit(model, model.token(), steps=200)
    assert all(np.isfinite(getattr(found, name)).all() for name in ("A", "m_o", "m_v", "m_q", "m_k"))
    still = orbit(MeanField(Features.paper(), beta=0.0, gamma=0.0, epsilon=0.0), model.window(), steps=10)
    assert np.abs(still.m_o).max() == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 1.5}, "epsilon: got 1.5; expected a number from 0 to 1"),
        ({"epsilon": -0.1}, "epsilon: got -0.1"),
        ({"beta": np.nan}, "beta: got 1 NaN or infinite"),
        ({"gamma": np.inf}, "gamma: got 1 NaN or infinite"),
        ({"context": 8}, "context: got 8; expected at most 4"),
        ({"context": 0}, "context: got 0"),
        ({"context": 3, "positions": np.ones((4, 2))}, "context: got 3; expected 4, the length of the positions"),
        ({"positions": np.ones((4, 3))}, r"positions: got shape \(4, 3\)"),
        ({"positions": np.zeros((4, 2))}, "positions: got entries other than ±1"),
        ({"features": "paper"}, "features: got str; expected Features"),
    ],
)
def test_bad_models(change, message):
    given = {"features": Features.paper(), "beta": 1.0, "gamma": 1.0, "epsilon": 0.1} | change
    with pytest.raises(ValueError, match=message):
        MeanField(**given)


def test_bad_states():
    model = paper()
    with pytest.raises(ValueError, match=r"A0: got shape \(3, 3\); expected \[4, 3\]"):
        model.window(np.zeros((3, 3)))
    with pytest.raises(ValueError, match="positions0: got shape"):
        model.window(np.zeros((4, 3)), np.ones((3, 2)))
    with pytest.raises(ValueError, match="positions0: got entries other than ±1"):
        model.window(np.zeros((4, 3)), np.zeros((4, 2)))
    with pytest.raises(ValueError, match="keep: got 'no'; expected True or False"):
        model.token(keep="no")
    with pytest.raises(ValueError, match="A0: got 1 NaN"):
        model.window(_one_nan())
    with pytest.raises(ValueError, match="state: got ndarray; expected a Window"):
        orbit(model, np.zeros(12), steps=3)
    with pytest.raises(ValueError, match="state: got a window with A"):
        orbit(model, MeanField(Features.segments(3, 2, key=0), 1.0, 1.0, 0.1).window(np.zeros((4, 2))), steps=3)
    with pytest.raises(ValueError, match="steps: got 0"):
        orbit(model, model.token(), steps=0)
    with pytest.raises(ValueError, match="transient: got -1"):
        orbit(model, model.token(), steps=1, transient=-1)
    with pytest.raises(ValueError, match="parameters: got 'delta'; expected one of 'beta', 'gamma', 'epsilon'"):
        model.replace(delta=1.0)
    without = MeanField(Features.random(20, 2, positional_bits=0, key=0), 1.0, 1.0, 0.0, context=3)
    assert orbit(without, without.token(), steps=5).A.shape == (5, 2)
    with pytest.raises(ValueError, match="epsilon: got 0.1; expected 0"):
        MeanField(without.features, 1.0, 1.0, 0.1, context=3)
    with pytest.raises(ValueError, match="context: got nothing"):
        MeanField(without.features, 1.0, 1.0, 0.0)


def _one_nan() -> np.ndarray:
    A = np.zeros((4, 3))
    A[0, 0] = np.nan
    return A

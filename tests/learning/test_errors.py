"""Bad input meets an error that names the argument, what came and what was expected."""

from __future__ import annotations

import numpy as np
import pytest
from problems import small_problem

from thermoformer.learning import (
    Architecture,
    PathFeatures,
    Prediction,
    Weights,
    attention_from_logits,
    bilinear_attention,
    choose_by_evidence,
    forward,
    gaussian_predictor,
    gaussian_process,
    given_attention,
    head_scores,
    join_heads,
    label_alignment,
    path_scores,
    prior_weights,
    query_key_attention,
    random_attention,
    solve,
    solve_grid,
    uniform_attention,
)

ARCH, FEATURES, LABELS = small_problem((2, 2))
X = np.zeros((4, 3, 2))
UNIFORM = np.full((4, 1, 3, 3), 1 / 3)
NAN_X = np.where(np.arange(24).reshape(4, 3, 2) == 5, np.nan, X)


def solved(**changes):
    return solve(**({"arch": ARCH, "features": FEATURES, "labels": LABELS, "temperature": 0.1} | changes))


CASES = {
    "no layers": (lambda: Architecture((), 10), "heads: got no layers; expected the number of heads"),
    "no heads": (lambda: Architecture((2, 0), 10), "heads: got 0; expected a whole number, 1 or more"),
    "half a head": (lambda: Architecture((1.5,), 10), "heads: got 1.5; expected a whole number"),
    "width zero": (lambda: Architecture((2,), 0), "widths: got 0; expected a whole number, 1 or more"),
    "widths by layer": (lambda: Architecture((2,), (3, 4, 5)), "widths: got 3 numbers; expected one number or 2"),
    "variance zero": (lambda: Architecture((2,), 5, 0.0), "variances: got 0.0; expected a number above 0"),
    "variances": (lambda: Architecture((2,), 5, (1, 1)), "variances: got 2 numbers; expected one number or 3"),
    "variance NaN": (lambda: Architecture((2,), 5, np.nan), "variances: got nan; expected a number above 0"),
    "outputs": (lambda: Architecture((2,), 5, outputs=0), "outputs: got 0; expected a whole number, 1 or more"),
    "skip": (lambda: Architecture((2,), 5, skip=1), "skip: got 1; expected True or False"),
    "skips with unequal widths": (
        lambda: Architecture((2,), (4, 5), skip=True),
        r"widths: got \(4, 5\); expected equal widths with skip=True",
    ),
    "labels of several outputs for one": (
        lambda: solved(labels=np.ones((30, 3))),
        r"labels: got shape \(30, 3\); expected 1 axis \[example\]: the network has one output",
    ),
    "labels of two outputs for three": (
        lambda: solved(arch=ARCH.replace(outputs=3), labels=np.ones((30, 2))),
        r"labels: got shape \(30, 2\); expected \[example, 3\]: the network has 3 outputs",
    ),
    "labels of one output for three": (
        lambda: solved(arch=ARCH.replace(outputs=3)),
        r"labels: got shape \(30,\); expected \[example, 3\]: the network has 3 outputs",
    ),
    "features without skips": (
        lambda: solved(arch=ARCH.replace(skip=True)),
        r"features: got 4 paths; expected 9, the product of heads \(2, 2\), each plus one for the skip",
    ),
    "labels of a prediction": (
        lambda: Prediction(np.ones((2, 3)), np.ones((2, 3))).accuracy([0, 3]),
        r"labels: got shape \(2,\); expected \[2, 3\] codes, or 2 class numbers from 0 to 2",
    ),
    "expected accuracy of several outputs": (
        lambda: Prediction(np.ones((2, 3)), np.ones((2, 3))).expected_accuracy([0, 1]),
        "expected_accuracy: got 3 outputs; expected a network with one output",
    ),
    "replace": (
        lambda: ARCH.replace(width=3),
        "changes: got width; expected only heads, widths, variances, outputs, skip",
    ),
    "head names": (lambda: ARCH.path_names([["a"]]), r"head_names: got \[1\]; expected one name per head, \[2, 2\]"),
    "x axes": (lambda: uniform_attention(X[0]), r"x: got shape \(3, 2\); expected 3 axes \[example, token, feature\]"),
    "x NaN": (lambda: bilinear_attention(NAN_X, np.eye(2)[None]), "x: got 1 NaN or infinite entries; expected finite"),
    "x empty": (lambda: uniform_attention(X[:0]), "x: got shape .*; expected at least one entry along every axis"),
    "x words": (lambda: uniform_attention([[["a"]]]), "x: got an array of type .*; expected an array of real numbers"),
    "x ragged": (lambda: uniform_attention([[[1.0], [1.0, 2.0]]]), "x: got a ragged sequence; expected an array"),
    "weights": (lambda: bilinear_attention(X, np.eye(3)[None]), r"weights: got shape \(1, 3, 3\); expected \[head, 2"),
    "keys": (lambda: query_key_attention(X, np.ones((1, 2, 2)), np.ones((1, 3, 2))), "keys: got shape .*; expected"),
    "queries": (lambda: query_key_attention(X, np.ones((1, 2, 3)), np.ones((1, 2, 3))), "queries: got feature width 3"),
    "logits": (lambda: attention_from_logits(np.zeros((1, 1, 2, 3))), "logits: got shape .*; expected as many queries"),
    "heads": (lambda: uniform_attention(X, heads=0), "heads: got 0; expected a whole number, 1 or more"),
    "key": (lambda: random_attention(X, key="seed"), "key: got 'seed'; expected an integer or one JAX random key"),
    "rows": (
        lambda: given_attention(2 * UNIFORM),
        "attention: got rows that miss a sum of 1 by up to 1; expected",
    ),
    "negative": (lambda: given_attention(-UNIFORM), "attention: got a smallest entry of -0.333; expected no negative"),
    "square": (lambda: given_attention(UNIFORM[:, :, :2]), "attention: got shape .*; expected as many queries as keys"),
    "join": (lambda: join_heads(UNIFORM, UNIFORM[:2]), "attentions: got shapes .*; expected shapes equal but for"),
    "join nothing": (lambda: join_heads(), "attentions: got nothing; expected at least one array"),
    "readout": (
        lambda: PathFeatures.from_attention(X, [UNIFORM], readout="middle"),
        "readout: got 'middle'; expected one of 'last', 'first', 'mean'",
    ),
    "one array": (lambda: PathFeatures.from_attention(X, UNIFORM), "attention: got one array .*; expected a sequence"),
    "no attention": (lambda: PathFeatures.from_attention(X, []), "attention: got no layers; expected at least one"),
    "examples": (
        lambda: PathFeatures.from_attention(X, [UNIFORM[:2]]),
        r"attention\[0\]: got 2 examples of 3 tokens; expected 4 examples of 3 tokens, as in x",
    ),
    "xi": (lambda: PathFeatures.from_attentioned_inputs(np.ones(3)), r"xi: got shape \(3,\); expected 3 axes"),
    "xi NaN": (lambda: PathFeatures.from_attentioned_inputs([[[np.inf]]]), "xi: got 1 NaN or infinite entries"),
    "one example": (lambda: FEATURES[3], "examples: got 3; expected a slice or an array of indices"),
    "paths": (lambda: solved(arch=Architecture((3,), 5)), "features: got 4 paths; expected 3, the product of heads"),
    "labels": (lambda: solved(labels=[1, -1]), "labels: got 2 labels; expected 30, one per example"),
    "labels NaN": (lambda: solved(labels=np.full(30, np.nan)), "labels: got 30 NaN or infinite entries"),
    "temperature": (lambda: solved(temperature=-1), "temperature: got -1.0; expected a finite number, zero or more"),
    "temperature NaN": (lambda: solved(temperature=np.nan), "temperature: got nan; expected a finite number"),
    "temperature word": (lambda: solved(temperature="hot"), "temperature: got 'hot'; expected one number"),
    "temperature zero": (
        lambda: solve(*small_problem((2,), 50, 3), temperature=0),
        "temperature: got 0.0; expected a number above 0: 50 examples in 6 dimensions make K singular",
    ),
    "temperature zero, limit": (
        lambda: gaussian_process(
            Architecture((1,), 5), PathFeatures.from_attentioned_inputs(np.ones((3, 1, 5))), [1, 1, 1], temperature=0
        ),
        "temperature: got 0.0; expected a larger number: the kernel of these examples is singular",
    ),
    "form": (lambda: solved(form="triples"), "form: got 'triples'; expected one of 'auto', 'pairs'"),
    "method": (lambda: solved(method="adam"), "method: got 'adam'; expected one of 'auto', 'newton'"),
    "newton": (
        lambda: solved(method="newton", form="features"),
        "method: got 'newton'; expected 'limited-memory' for 4 paths: Newton's method needs stored pairs",
    ),
    "max_steps": (lambda: solved(max_steps=0), "max_steps: got 0; expected a whole number, 1 or more"),
    "tolerance": (lambda: solved(tolerance=0.0), "tolerance: got 0.0; expected a number above 0"),
    "no widths": (
        lambda: solve_grid(ARCH, FEATURES, LABELS, widths=[], temperatures=1.0),
        "widths: got nothing; expected at least one entry",
    ),
    "grid point": (
        lambda: solve_grid(ARCH, FEATURES, LABELS, widths=[5], temperatures=1.0).at(width=6),
        r"width: got 6; expected one of \(5,\)",
    ),
    "grid temperature": (
        lambda: solve_grid(ARCH, FEATURES, LABELS, widths=[5], temperatures=[1.0]).at(width=5, temperature=2.0),
        r"temperature: got 2.0; expected one of \(1.0,\)",
    ),
    "test features": (
        lambda: solved().predict(PathFeatures.from_attentioned_inputs(np.ones((2, 4, 9)))),
        "features: got 4 paths of token width 9; expected 4 paths of token width 8, as in training",
    ),
    "order parameter": (
        lambda: gaussian_predictor(ARCH, FEATURES, LABELS, order_parameter=np.eye(3), temperature=1.0),
        r"order_parameter: got shape \(3, 3\); expected \(4, 4\)",
    ),
    "not symmetric": (
        lambda: head_scores(ARCH, np.triu(np.ones((4, 4)))),
        "order_parameter: got a matrix that is not symmetric; expected a symmetric matrix",
    ),
    "not positive": (
        lambda: head_scores(ARCH, -np.eye(4)),
        "order_parameter: got a smallest eigenvalue of -1; expected a positive definite matrix",
    ),
    "kind": (lambda: path_scores(ARCH, np.eye(4), kind="sum"), "kind: got 'sum'; expected one of 'diagonal', 'row'"),
    "signs": (
        lambda: Prediction(np.ones(2), np.ones(2)).accuracy([0, 1]),
        "labels: got values such as 0; expected labels −1 and 1",
    ),
    "alignment": (lambda: label_alignment(np.eye(2), [1.0]), "labels: got 1 labels; expected 2, one per example"),
    "range": (
        lambda: choose_by_evidence(ARCH, FEATURES, LABELS, temperature_range=(1.0, 0.1)),
        r"temperature_range: got \(1.0, 0.1\); expected two numbers above 0, the smaller first",
    ),
    "start": (
        lambda: choose_by_evidence(ARCH, FEATURES, LABELS, temperature=1e9),
        "temperature: got 1000000000.0; expected a number from 1e-06 to 1000, the range allowed",
    ),
    "weights readout": (
        lambda: forward(ARCH, Weights(np.ones((10, 2)), (), np.ones(3)), X, [UNIFORM]),
        r"weights.readout: got shape \(3,\); expected \(10,\)",
    ),
    "weights layers": (
        lambda: forward(ARCH, Weights(np.ones((10, 2)), (), np.ones(10)), X, [UNIFORM]),
        "weights.values: got 0 layers; expected 2",
    ),
    "attention heads": (
        lambda: forward(ARCH, prior_weights(ARCH, 2, key=0), X, [UNIFORM, UNIFORM]),
        r"attention: got heads \(1, 1\); expected \(2, 2\)",
    ),
    "token width": (
        lambda: forward(Architecture((1,), 3), prior_weights(Architecture((1,), 3), 5, key=0), X, [UNIFORM]),
        "weights.embedding: got token width 5; expected 2, as in x",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case):
    call, message = CASES[case]
    with pytest.raises(ValueError, match=message):
        call()

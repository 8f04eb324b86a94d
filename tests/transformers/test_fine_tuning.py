"""Classifiers trained from pretrained models, and measured speeds."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import SEQUENCES, labelled, tiny_model  # noqa: E402

from thermoformer.transformers import (  # noqa: E402
    Examples,
    measured_speed,
    own_accuracy,
    prune_heads,
    train_classifier,
)


@pytest.mark.parametrize("name", ["BERT", "GPT-2"])
def test_a_classifier_learns_and_so_does_a_pruned_one(name):
    data = labelled(64)
    model = tiny_model(name, SEQUENCES[name], num_labels=2)
    for one in (model, prune_heads(model, [(0, 1), (1, 0), (1, 1), (1, 2), (1, 3)])):
        losses = train_classifier(one, data, epochs=20, rate=3e-3, batch=16, progress=False)
        assert losses.shape == (80,) and losses[-8:].mean() < 0.2 * losses[:8].mean()
        assert own_accuracy(one, data) > 0.95
        assert not one.training and all(weight.requires_grad for weight in one.parameters())


def test_equal_seeds_train_equal_models():
    data = labelled(16)
    models = [tiny_model("BERT", SEQUENCES["BERT"], num_labels=2) for _ in range(3)]
    state = torch.random.get_rng_state()
    found = [
        train_classifier(one, data, epochs=1, batch=4, seed=seed, progress=False)
        for one, seed in zip(models, (0, 0, 1), strict=True)
    ]
    assert (found[0] == found[1]).all() and (found[0] != found[2]).any()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(state, torch.random.get_rng_state()), "the user's own random numbers go on"


def test_progress_is_reported_at_every_step():
    steps = []
    train_classifier(
        tiny_model("BERT", SEQUENCES["BERT"], num_labels=2),
        labelled(8),
        epochs=2,
        batch=4,
        progress=lambda done, total, message: steps.append((done, total)),
    )
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_speeds_of_all_models_are_measured():
    model = tiny_model("BERT")
    found = measured_speed({"whole": model, "pruned": prune_heads(model, [(0, 0)])}, labelled(8), repeats=2, batch=4)
    assert set(found) == {"whole", "pruned"} and min(found.values()) > 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m, d: train_classifier(m, d, epochs=0), ValueError, "epochs: got 0"),
        (lambda m, d: train_classifier(m, Examples.from_tokens([[1, 2]])), ValueError, "labels: got none"),
        (lambda m, d: train_classifier(torch.nn.Linear(2, 2), d), TypeError, "model: got a Linear"),
        (
            lambda m, d: train_classifier(m, d, rate=1e30, epochs=9),
            ValueError,
            "rate: got 1e\\+30; expected a smaller one",
        ),
        (lambda m, d: measured_speed({}, d), ValueError, "models: got none; expected one or more"),
        (lambda m, d: measured_speed({"one": m}, d, repeats=0), ValueError, "repeats: got 0"),
    ],
)
def test_wrong_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(tiny_model("BERT", SEQUENCES["BERT"], num_labels=2), labelled(16))


def test_too_few_classes_are_refused():
    model = tiny_model("BERT", SEQUENCES["BERT"], num_labels=2)
    data = Examples({"input_ids": (np.array([3, 4]),) * 3}, np.arange(3), 3, "labelled")
    with pytest.raises(ValueError, match="model: got a head for 2 classes; expected 3, as the examples have"):
        train_classifier(model, data)

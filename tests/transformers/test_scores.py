"""Scores of heads and orders of removal, on tiny models of every kind."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import CAUSAL, MODELS, SEQUENCES, images, labelled, sequences, slope_in_mask, tiny_model  # noqa: E402

from thermoformer.transformers import (  # noqa: E402
    METHODS,
    Examples,
    adapter_for,
    generate_stories,
    goal_for,
    head_masks,
    perplexity,
    prune_heads,
    pruning_curve,
    removal_order,
    score_heads,
)
from thermoformer.transformers.goals import Expansion  # noqa: E402
from thermoformer.transformers.scores import greedy  # noqa: E402

GOALS = {
    "probe": lambda: (tiny_model("BERT"), labelled(classes=3)),
    "classifier": lambda: (tiny_model("BERT", "ForSequenceClassification", num_labels=3), labelled(classes=3)),
    "language": lambda: (tiny_model("Llama", "ForCausalLM"), sequences()),
}


@pytest.mark.parametrize("name", GOALS)
def test_slope_of_the_evidence_is_that_of_finite_differences(name):
    model, data = GOALS[name]()
    goal = goal_for(model.double(), data)
    assert goal.name == name
    # Not with all heads: there the evidence of what a classifier says itself is at its maximum.
    mask = np.ones(12)
    mask[[2, 7]] = 0.3
    slope = goal.expansion(mask).slope
    for head in (0, 5, 11):
        assert slope[head] == pytest.approx(slope_in_mask(goal.log_evidence, head, mask), rel=2e-3, abs=1e-3)


@pytest.mark.parametrize("name", ["classifier", "language"])
def test_slopes_of_the_loss_are_those_of_finite_differences(name):
    model, data = GOALS[name]()
    goal = goal_for(model.double(), data)
    slopes = goal.slopes(np.ones(12))
    assert slopes.shape == (len(data), 12)
    found = slopes.sum(0) / (len(data) if name == "classifier" else np.sum(data.lengths - 1))
    for head in (0, 5, 11):
        assert found[head] == pytest.approx(slope_in_mask(goal.loss, head, np.ones(12)), rel=2e-3, abs=1e-5)


def begins(output, batch):
    """The loss of the first token of an answer."""
    return torch.nn.functional.cross_entropy(output.start_logits, batch["labels"], reduction="none")


def test_a_loss_of_ones_own():
    """Of a model that answers questions: where the answer begins."""
    model, data = tiny_model("BERT", "ForQuestionAnswering"), labelled(classes=3)
    goal = goal_for(model.double(), data, begins)
    slopes = goal.slopes(np.ones(12))
    for head in (0, 5, 11):
        assert slopes.mean(0)[head] == pytest.approx(slope_in_mask(goal.loss, head, np.ones(12)), rel=2e-3, abs=1e-5)
    np.testing.assert_allclose(score_heads(model, data, "evidence", goal=begins).values, -slopes.sum(0), rtol=1e-5)
    methods = ("ablation", "theory", "deepest")
    curves = pruning_curve(model, data, data, goal=begins, methods=methods, fractions=(0.5,), seeds=(0,))
    assert curves.attrs["measure"] == "loss" and np.isfinite(curves.value.values).all()
    with head_masks(model, removal_order(model, data, "deepest", count=6)):
        expected = goal.loss(np.ones(12))
    assert curves.value.sel(rule="deepest", removed=6).item() == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="keep: got points; expected None where the goal is a function"):
        pruning_curve(model, data, data, goal=begins, keep="points", fractions=(0.5,))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda output, batch: begins(output, batch).sum(), r"goal: got a Tensor of shape \(\) from the function"),
        (lambda output, batch: 1.0, "goal: got a float from the function; expected a function that returns a tensor"),
        (lambda output, batch: begins(output, batch) / 0, "goal: got NaN or infinite losses from the function"),
    ],
)
def test_functions_that_are_no_losses(function, message):
    with pytest.raises(ValueError, match=message):
        score_heads(tiny_model("BERT", "ForQuestionAnswering"), labelled(classes=3), "gradient", goal=function)


def test_a_classifier_with_all_heads_cannot_say_better_what_it_says():
    model, data = GOALS["classifier"]()
    goal = goal_for(model, data)
    np.testing.assert_allclose(goal.expansion(np.ones(12)).slope, 0, atol=1e-4)
    scores = score_heads(model, data, "evidence_exact", progress=False)
    assert (scores.values > 0).all()
    # Divergences of what the pruned model says from what the whole one says.
    said = [goal_for(one, data).said for one in (model, prune_heads(model, [(0, 1)]))]
    assert scores[0, 1] == pytest.approx(float((said[0] * np.log(said[0] / said[1])).sum()), rel=1e-4)


def test_curvature_of_a_classifier_is_gauss_newton():
    model, data = GOALS["classifier"]()
    goal = goal_for(model.double(), data)
    curvature = goal.expansion(np.ones(12)).curvature

    # Changes of the logits by finite differences, weighted with the covariance of the classes.
    def logits(mask):
        with torch.no_grad(), head_masks(model, torch.from_numpy(mask)):
            return {
                int(p): row
                for places, inputs in data.batches(64)
                for p, row in zip(places, model(**inputs).logits.numpy(), strict=True)
            }

    whole = np.stack([logits(np.ones(12))[place] for place in range(len(data))])
    chances = np.exp(whole) / np.exp(whole).sum(1, keepdims=True)
    changes = []
    for head in range(12):
        mask = np.ones(12)
        mask[head] += 1e-4
        found = logits(mask)
        changes.append((np.stack([found[place] for place in range(len(data))]) - whole) / 1e-4)
    changes = np.stack(changes)
    covariance = np.einsum("ec,cd->ecd", chances, np.eye(3)) - chances[:, :, None] * chances[:, None, :]
    expected = np.einsum("hec,ecd,ked->hk", changes, covariance, changes)
    np.testing.assert_allclose(curvature, expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


def test_curvature_of_a_language_model_is_its_fisher_information():
    model, data = GOALS["language"]()
    one = data.subset([0])
    # The Fisher information of one sequence, token by token, from all possible next tokens.
    mask = torch.ones(12, requires_grad=True)
    with head_masks(model, mask):
        logits = model(input_ids=torch.from_numpy(one.inputs["input_ids"][0])[None]).logits[0, :-1]
        expected = np.zeros((12, 12))
        for row in logits:
            logarithms = torch.log_softmax(row, 0)
            slopes = np.stack([torch.autograd.grad(value, mask, retain_graph=True)[0].numpy() for value in logarithms])
            expected += np.einsum("v,vh,vk->hk", logarithms.exp().detach().numpy(), slopes, slopes)
    found = np.mean([goal_for(model, one, seed=seed).expansion(np.ones(12)).curvature for seed in range(80)], axis=0)
    assert np.abs(found - expected).max() < 0.25 * np.abs(expected).max()
    assert np.trace(found) == pytest.approx(np.trace(expected), rel=0.15)


def test_later_curvatures_of_a_language_model_come_from_slopes_too():
    """The slope is exact; the curvature is that of the first round where the text is the model's own."""
    model = tiny_model("Llama", "ForCausalLM").double()
    data = Examples.from_tokens(generate_stories(model, 600, 9, seed=1))
    goal, mask = goal_for(model, data, batch=600), np.ones(12)
    first = goal.expansion(mask)
    later = goal.expansion(mask, earlier=first)
    np.testing.assert_allclose(later.slope, first.slope, rtol=1e-6, atol=1e-6)
    of_slopes = 2 * later.curvature - first.curvature
    assert np.trace(of_slopes) == pytest.approx(np.trace(first.curvature), rel=0.15)
    assert np.abs(of_slopes - first.curvature).max() < 0.25 * np.abs(first.curvature).max()
    orders = [removal_order(model, data, count=6, every=every, quick=True) for every in (0, 1)]
    assert len(set(orders[0])) == len(set(orders[1])) == 6 and orders[0][0] == orders[1][0]
    # One sequence has no covariance: there it is drawn again.
    one = goal_for(model, data.subset([0]))
    np.testing.assert_array_equal(one.expansion(mask, earlier=first).curvature, one.expansion(mask).curvature)


def test_expansion_of_a_probe_is_that_of_the_evidence():
    model, data = tiny_model("BERT").double(), labelled(60, classes=3)
    goal, ones = goal_for(model, data), np.ones(12)
    whole = goal.log_evidence(ones)
    exact, first, second = [], goal.expansion(ones, curvature=False), goal.expansion(ones, curvature=True)
    np.testing.assert_allclose(first.slope, second.slope, rtol=1e-3, atol=1e-3)
    # A tenth of a head, where the expansion must hold.
    for head in range(12):
        mask = ones.copy()
        mask[head] = 0.9
        exact.append(goal.log_evidence(mask) - whole)
    np.testing.assert_allclose(-0.1 * first.slope, exact, atol=0.3 * np.abs(exact).max())
    assert (np.linalg.eigvalsh(second.curvature) > -1e-8).all()
    # J by finite differences of what the readout says, and Jᵀ(sK + τI)⁻¹J with the full kernel.
    evidence = goal.evidence(ones)
    changes = []
    for head in range(12):
        masks = np.ones((2, 12))
        masks[:, head] += 0.01, -0.01
        up, down = (goal.features(mask) @ evidence.readout() for mask in masks)
        changes.append(((up - down) / 0.02).numpy())
    changes = np.stack(changes)
    changes -= changes.mean(1, keepdims=True)
    kernel = (evidence.features @ evidence.features.T).numpy()
    covariance = evidence.scale * kernel + evidence.temperature * np.eye(60)
    expected = np.einsum("hed,ef,kfd->hk", changes, np.linalg.inv(covariance), changes)
    np.testing.assert_allclose(second.curvature, expected, rtol=0.02, atol=0.01 * np.abs(expected).max())


def test_theory_that_has_not_converged_says_so(monkeypatch):
    from thermoformer.transformers import scores as module

    model, data = GOALS["probe"]()
    monkeypatch.setattr(module, "path_theory", partial(module.path_theory, max_steps=1))
    with pytest.warns(RuntimeWarning, match="theory: the order parameter has not converged"):
        score_heads(model, data, "theory", progress=False)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", GOALS)
def test_every_method_scores_every_head_left(name, method):
    model, data = GOALS[name]()
    scores = score_heads(model, data, method, removed=[(1, 2)], progress=False)
    assert len(scores.labels) == 11 and (1, 2) not in scores.labels
    assert np.isfinite(scores.values).all()
    assert model.training is False and all(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_every_family_is_scored(name):
    data = images() if name == "ViT" else labelled()
    for task in ("Model", SEQUENCES[name]):
        model = tiny_model(name, task)
        scores = score_heads(model, data, progress=False)
        assert list(scores.labels) == adapter_for(model).all_heads() and np.isfinite(scores.values).all()
    if name in CAUSAL:
        assert np.isfinite(score_heads(tiny_model(name, CAUSAL[name]), sequences(), progress=False).values).all()


@pytest.mark.parametrize("name", GOALS)
def test_a_head_that_gives_nothing_goes_first(name):
    model, data = GOALS[name]()
    adapter = adapter_for(model)
    with torch.no_grad():
        adapter.projection_weight(1)[adapter.columns(1, 2)] = 0
    for method in ("evidence_exact", "gradient", "magnitude", "ablation"):
        value = score_heads(model, data, method, progress=False)[1, 2]
        assert value == pytest.approx(0, abs=1e-6)
    assert score_heads(model, data, "evidence", progress=False)[1, 2] == pytest.approx(0, abs=1e-6)
    theory = score_heads(model, data, "theory", progress=False)
    assert theory[1, 2] == pytest.approx(1, abs=1e-3), "a path without features keeps its prior"


def test_exact_scores_are_those_of_pruned_models():
    model, data = GOALS["language"]()
    scores = score_heads(model, data, "ablation", progress=False)
    loss = np.log(perplexity(prune_heads(model, [(2, 1)]), data)) - np.log(perplexity(model, data))
    assert scores[2, 1] == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize(("name", "readout"), [("BERT", "first"), ("Llama", "last")])
def test_theory_of_a_classifier_reads_the_token_that_the_classifier_reads(name, readout):
    model, data = tiny_model(name, SEQUENCES[name], num_labels=2), labelled()
    found = score_heads(model, data, "theory", progress=False)
    same = score_heads(model, data, "theory", goal="probe", readout=readout, progress=False)
    other = score_heads(model, data, "theory", goal="probe", readout="mean", progress=False)
    np.testing.assert_allclose(found.values, same.values, rtol=1e-5)
    assert np.abs(found.values - other.values).max() > 1e-3


def test_rules_of_depth():
    model, data = GOALS["probe"]()
    assert removal_order(model, data, "deepest", progress=False)[:4] == [(2, 0), (2, 1), (2, 2), (2, 3)]
    assert removal_order(model, data, "shallowest", count=1, progress=False) == [(0, 0)]


def test_scored_once_is_the_order_of_the_scores():
    model, data = GOALS["probe"]()
    order = removal_order(model, data, "gradient", every=0, progress=False)
    assert order == score_heads(model, data, "gradient", progress=False).ascending()[:11]


def test_scored_again_is_scored_with_heads_removed():
    model, data = GOALS["probe"]()
    order = removal_order(model, data, "evidence_exact", every=1, count=3, progress=False)
    for place in range(3):
        scores = score_heads(model, data, "evidence_exact", removed=order[:place], progress=False)
        assert scores.ascending()[0] == order[place]


def test_all_layers_alike():
    model, data = GOALS["probe"]()
    order = removal_order(model, data, "gradient", within_layers=True, count=9, progress=False)
    for place in range(0, 9, 3):
        assert sorted(layer for layer, _ in order[place : place + 3]) == [0, 1, 2]


def test_of_two_heads_that_do_the_same_one_goes():
    curvature = np.array([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    assert greedy(Expansion(np.zeros(3), curvature), np.ones(3, bool), 2) == [0, 2]
    assert greedy(Expansion(np.zeros(3), np.zeros((3, 3))), np.array([False, True, True]), 1) == [1]


def test_random_orders_follow_the_seed():
    model, data = GOALS["probe"]()
    orders = [removal_order(model, data, "random", seed=seed, progress=False) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2] and len(set(orders[0])) == 11


def test_curves(tmp_path, monkeypatch):
    model, data = GOALS["probe"]()
    test = labelled(30, classes=3, seed=5)
    given = {"methods": ("evidence", "gradient:again", "random"), "seeds": (0, 1), "examples": 18, "keep": tmp_path}
    found = pruning_curve(model, data, test, penalties=("unit", 0.1), progress=False, **given)
    assert dict(found.sizes) == {"penalty": 2, "rule": 3, "seed": 2, "removed": 4, "step": 9}
    assert found.value.sel(rule="evidence", penalty="unit").dims == ("seed", "removed")
    assert found.removed.values.tolist() == [0, 3, 6, 9] and found.attrs["measure"] == "accuracy"
    assert ((found.value >= 0) & (found.value <= 1)).all()
    assert (found.value.isel(removed=0, rule=0) == found.value.isel(removed=0)).all()
    width = 4 * 32 * 8 + 3 * 8
    assert (found.parameters[0] - found.parameters).values.tolist() == [0, 3 * width, 6 * width, 9 * width]
    # Finished points are not computed again.
    monkeypatch.setattr("thermoformer.transformers.curves.removal_order", None)
    monkeypatch.setattr("thermoformer.transformers.curves.judged", None)
    again = pruning_curve(model, data, test, penalties=("unit", 0.1), progress=False, **given)
    assert again.equals(found)
    with pytest.raises(TypeError):
        pruning_curve(model, data.subset(np.arange(20)), test, penalties=("unit", 0.1), progress=False, **given)


def test_curves_of_models_with_a_readout_of_their_own():
    for name, measure in (("classifier", "accuracy"), ("language", "perplexity")):
        model, data = GOALS[name]()
        found = pruning_curve(model, data, data, methods=("evidence", "deepest"), seeds=(3,), progress=False)
        assert found.value.dims == ("rule", "seed", "removed") and found.attrs["measure"] == measure
        assert np.isfinite(found.value).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, d: score_heads(m, d, "guess"), "method: got 'guess'; expected one of 'evidence'"),
        (lambda m, d: score_heads(m, d, removed=[(0, 9)]), "removed: got"),
        (lambda m, d: score_heads(m, d, removed=adapter_for(m).all_heads()), "removed: got every head"),
        (lambda m, d: score_heads(m, sequences(), goal="probe"), "labels: got none; expected labelled examples"),
        (lambda m, d: score_heads(m, d, goal="wish"), "goal: got 'wish'"),
        (lambda m, d: score_heads(m, d, goal="language"), "model: got a BertModel; expected a causal language model"),
        (lambda m, d: score_heads(m, d, readout="middle"), "readout: got 'middle'"),
        (lambda m, d: score_heads(m, d.subset([0, 0]), "evidence"), "labels: got 1 class"),
        (lambda m, d: removal_order(m, d, count=12), "count: got 12; expected at most 11"),
        (lambda m, d: removal_order(m, d, every=-1), "every: got -1"),
        (lambda m, d: pruning_curve(m, d, d, fractions=(0.5, 0.25)), "fractions: got"),
        (lambda m, d: pruning_curve(m, d, d, fractions=(1.5,)), "fractions: got 1.5"),
        (lambda m, d: pruning_curve(m, d, d, methods=("evidence:twice",)), "methods: got 'evidence:twice'"),
        (lambda m, d: pruning_curve(m, d, d, methods=("random", "random")), "methods: got"),
        (lambda m, d: pruning_curve(m, d, d, seeds=()), "seeds: got"),
        (lambda m, d: pruning_curve(m, d, d, seeds=(-1,)), "seeds: got -1; expected a whole number"),
        (lambda m, d: pruning_curve(m, d, d, penalties=()), r"penalties: got \[\]; expected one or more"),
        (lambda m, d: pruning_curve(m, d, d, within_layers="no"), "within_layers: got 'no'; expected True or False"),
        (lambda m, d: pruning_curve(m, d, d, speed="no"), "speed: got 'no'; expected True or False"),
        (lambda m, d: score_heads(m, d, "random", seed=-1), "seed: got -1; expected a whole number"),
        (lambda m, d: removal_order(m, d, "random", seed=-1), "seed: got -1; expected a whole number"),
        (lambda m, d: removal_order(m, d, within_layers="no"), "within_layers: got 'no'; expected True or False"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(tiny_model("BERT"), labelled())


def test_a_classifier_of_fewer_classes_is_refused():
    model = tiny_model("BERT", "ForSequenceClassification", num_labels=2)
    with pytest.raises(ValueError, match="model: got a classifier of 2 classes; expected 3, as the examples have"):
        score_heads(model, labelled(classes=3))

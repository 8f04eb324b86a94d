"""Masks multiply what heads give, are differentiable, and leave nothing behind."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import MODELS, SEQUENCES, answer, random_heads, tiny_inputs, tiny_model  # noqa: E402

from thermoformer.transformers import adapter_for, head_masks, prune_heads  # noqa: E402


def hooks_of(model):
    return [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules()]


@pytest.mark.parametrize("name", MODELS)
def test_ones_change_nothing_and_zeros_switch_off(name):
    model, inputs = tiny_model(name), tiny_inputs(name)
    heads = adapter_for(model).all_heads()
    before, hooks = answer(model, inputs), hooks_of(model)
    with head_masks(model, torch.ones(len(heads))):
        torch.testing.assert_close(answer(model, inputs), before, rtol=0, atol=0)
    off = random_heads(adapter_for(model), 2, seed=3)
    with head_masks(model, off) as masks:
        assert masks.heads == heads
        by_list = answer(model, inputs)
    with head_masks(model, torch.tensor([head not in off for head in heads])):
        torch.testing.assert_close(answer(model, inputs), by_list, rtol=0, atol=0)
    # What a mask of zero leaves is what zero columns of the output projection leave.
    silent = tiny_model(name)
    adapter = adapter_for(silent)
    with torch.no_grad():
        for head in off:
            adapter.projection_weight(head[0])[adapter.columns(*head)] = 0
    torch.testing.assert_close(answer(silent, inputs), by_list, rtol=1e-5, atol=1e-5)
    assert hooks_of(model) == hooks
    torch.testing.assert_close(answer(model, inputs), before, rtol=0, atol=0)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", SEQUENCES)
def test_the_gradient_is_that_of_finite_differences(name, attention):
    model = tiny_model(name, SEQUENCES[name], attention=attention, num_labels=3).double()
    inputs = tiny_inputs(name)
    if name == "ViT":
        inputs["pixel_values"] = inputs["pixel_values"].double()
    labels = torch.tensor([0, 2, 1])
    mask = torch.linspace(0.4, 1.2, len(adapter_for(model).all_heads()), dtype=torch.float64, requires_grad=True)

    def loss(values):
        with head_masks(model, values):
            return model(**inputs, labels=labels).loss

    (slope,) = torch.autograd.grad(loss(mask), mask)
    # Some families go through float32 on the way, whatever the precision of their weights.
    rounds = name in ("Llama", "Mistral", "Qwen2", "ViT")
    step, tolerance = (3e-3, 1e-3) if rounds else (1e-5, 1e-6)
    with torch.no_grad():
        for index in range(0, len(mask), 3):
            move = step * torch.eye(len(mask), dtype=torch.float64)[index]
            difference = (loss(mask + move) - loss(mask - move)) / (2 * step)
            assert abs(float(difference - slope[index])) < tolerance * float(slope.abs().max())
    assert slope.abs().min() > 0


@pytest.mark.parametrize("name", MODELS)
def test_a_mask_for_each_example(name):
    model, inputs = tiny_model(name, SEQUENCES[name]), tiny_inputs(name)
    count = len(adapter_for(model).all_heads())
    masks = torch.rand(3, count, generator=torch.Generator().manual_seed(0))
    with head_masks(model, masks):
        together = answer(model, inputs)
    for example in range(3):
        with head_masks(model, masks[example]):
            one = answer(model, {key: value[example : example + 1] for key, value in inputs.items()})
        torch.testing.assert_close(together[example : example + 1], one, rtol=1e-4, atol=1e-5)
    with (
        pytest.raises(ValueError, match="mask: got masks for 2 examples; expected 3, the examples of the batch"),
        head_masks(model, masks[:2]),
    ):
        answer(model, inputs)


def test_masks_are_replaced_nested_and_gone_after_an_error():
    model, inputs = tiny_model("BERT"), tiny_inputs("BERT")
    before, hooks = answer(model, inputs), hooks_of(model)
    with head_masks(model, [(0, 0)]) as masks:
        first = answer(model, inputs)
        masks.mask = [(1, 1)]
        second = answer(model, inputs)
        with head_masks(model, [(0, 0)]):
            both = answer(model, inputs)
        torch.testing.assert_close(answer(model, inputs), second, rtol=0, atol=0)
        with pytest.raises(ValueError, match="head_masks: got a block inside its own"):
            masks.__enter__()
    assert not torch.equal(first, second)
    with head_masks(model, [(0, 0), (1, 1)]):
        torch.testing.assert_close(answer(model, inputs), both, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="on the way"), head_masks(model, [(0, 0)]):
        raise RuntimeError("on the way")
    assert hooks_of(model) == hooks
    torch.testing.assert_close(answer(model, inputs), before, rtol=0, atol=0)


def test_one_query_of_a_head_that_several_share():
    """Masked, silenced by pruning, and cut with the head once no other query is left."""
    model, inputs = tiny_model("Llama"), tiny_inputs("Llama")
    places = [(0, 1, 0), (1, 2, 1), (2, 3, 0), (2, 3, 1), (2, 0)]
    with head_masks(model, places) as masks:
        assert masks.mask.shape == (24,) and masks.mask.sum() == 18
        masked = answer(model, inputs)
    with head_masks(model, masks.mask.expand(3, -1)):
        torch.testing.assert_close(answer(model, inputs), masked, rtol=0, atol=0)
    pruned = prune_heads(model, places)
    assert adapter_for(pruned).kept == ((0, 1, 2, 3), (0, 1, 2, 3), (1, 2))
    torch.testing.assert_close(answer(pruned, inputs), masked, rtol=1e-4, atol=1e-5)
    # The other query goes later, and the head with it.
    with head_masks(model, [*places, (0, 1, 1)]):
        masked = answer(model, inputs)
    later = prune_heads(pruned, [(0, 1, 1)], in_place=True)
    assert later is pruned and adapter_for(later).kept[0] == (0, 2, 3)
    torch.testing.assert_close(answer(later, inputs), masked, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"heads: got \(0, 0, 2\); expected one of the 2 queries of a head, from 0"):
        prune_heads(model, [(0, 0, 2)])
    with pytest.raises(ValueError, match=r"mask: got a tensor of shape \(13,\); .* 12 heads, .* or their 24 queries"):
        head_masks(model, torch.ones(13))


def test_masks_of_pruned_models_are_as_long_as_they_have_heads():
    model, inputs = tiny_model("Llama"), tiny_inputs("Llama")
    pruned = prune_heads(model, [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2)])
    with head_masks(pruned, [(1, 3)]) as masks:
        assert masks.mask.tolist() == [1, 1, 0, 1, 1, 1, 1]
        found = answer(pruned, inputs)
    torch.testing.assert_close(found, answer(prune_heads(pruned, [(1, 3)]), inputs), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"mask: got \(1, 2\), which is removed already"):
        head_masks(pruned, [(1, 2)])


def test_a_mask_of_single_precision_on_a_model_of_sixteen_bits():
    model, mask = tiny_model("BERT").to(torch.bfloat16), torch.ones(12, requires_grad=True)
    with head_masks(model, mask):
        model(**tiny_inputs("BERT")).last_hidden_state.float().sum().backward()
    assert mask.grad.dtype == torch.float32 and mask.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.ones(11), ValueError, r"mask: got a tensor of shape \(11,\); expected \[head\] or .* 12 heads"),
        (torch.ones(1, 1, 12), ValueError, r"mask: got a tensor of shape \(1, 1, 12\)"),
        (torch.ones(12, dtype=torch.complex64), ValueError, "mask: got a tensor of type torch.complex64"),
        ([(0, 9)], ValueError, r"mask: got \(0, 9\)"),
        (None, TypeError, "mask: got None; expected a list of different pairs"),
    ],
)
def test_wrong_masks(mask, error, message):
    with pytest.raises(error, match=message):
        head_masks(tiny_model("BERT"), mask)

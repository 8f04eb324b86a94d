"""Pruned models equal masked ones, for every family, whatever goes."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import CAUSAL, ENCODERS, HIDDEN, MODELS, SEQUENCES, answer, random_heads, tiny_inputs, tiny_model  # noqa: E402

from thermoformer.transformers import adapter_for, head_masks, prune_heads  # noqa: E402
from thermoformer.transformers.surgery import restore_heads  # noqa: E402


def masked_answer(model, heads, inputs):
    with head_masks(model, heads):
        return answer(model, inputs)


def assert_close(found, expected, tolerance=2e-5):
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


# transformers refuses flex attention for GPT-2, pruned or not.
ATTENTION = [
    (name, attention)
    for name in MODELS
    for attention in ("eager", "sdpa", "flex_attention", "packed")
    if (name, attention) != ("GPT-2", "flex_attention")
]


@pytest.fixture
def uncompiled():
    """Compiling flex attention takes a minute of a processor, and the same numbers come without."""
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


def removals(adapter):
    """Heads to remove: some at random, and whole layers."""
    yield from (random_heads(adapter, count, seed) for seed, count in enumerate((1, 4, 8)))
    last = adapter.layers - 1  # 0 for ALBERT, whose layers are one
    for layers in ((0,), (1,), (0, 1, 2)):
        emptied = sorted({min(layer, last) for layer in layers})
        yield [(layer, head) for layer in emptied for head in range(4)] + ([] if 0 in emptied else [(0, 2)])


# What PyTorch says of its own insides is not ours to mend.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore::DeprecationWarning")
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(("name", "attention"), ATTENTION)
def test_pruned_equals_masked(name, attention):
    model, inputs = tiny_model(name, attention=attention), tiny_inputs(name)
    whole, everything = answer(model, inputs), adapter_for(model).all_heads()
    assert_close(whole, answer(tiny_model(name), inputs))
    for heads in removals(adapter_for(model)):
        expected = masked_answer(model, heads, inputs)
        assert (expected - whole).abs().max() > 1e-3, "heads that matter"
        pruned = prune_heads(model, heads)
        assert pruned.config._attn_implementation == attention
        assert_close(answer(pruned, inputs), expected)
        adapter = adapter_for(pruned)
        assert adapter.all_heads() == [head for head in everything if head not in heads]
        assert all((adapter.output_projection(layer) is None) == (not kept) for layer, kept in enumerate(adapter.kept))
        again = pickle.loads(pickle.dumps(copy.deepcopy(pruned)))
        torch.testing.assert_close(answer(again, inputs), answer(pruned, inputs), rtol=0, atol=0)
    torch.testing.assert_close(answer(model, inputs), whole, rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_drop_by_the_exact_number(name):
    model = tiny_model(name)
    adapter = adapter_for(model)
    queries, size = adapter.queries_per_head(0), adapter.head_size(0)
    module, parts = adapter.attention(0), adapter.parts
    names = parts.projections * (3 // len(parts.projections))
    biased = [getattr(module, name).bias is not None for name in names]
    query, key, value = ((HIDDEN + bias) * size for bias in biased)
    per_head = queries * query + key + value + queries * size * HIDDEN
    heads = random_heads(adapter, 3, seed=5)
    pruned = prune_heads(model, heads)
    assert model.num_parameters() - pruned.num_parameters() == 3 * per_head
    assert sum(tensor.numel() for tensor in pruned.state_dict().values()) < sum(
        tensor.numel() for tensor in model.state_dict().values()
    )


@pytest.mark.parametrize("name", MODELS)
def test_pruned_twice_is_pruned_at_once(name):
    model, inputs = tiny_model(name), tiny_inputs(name)
    first = [(0, 1), (adapter_for(model).layers - 1, 2)]
    second = [(0, 3), (0, 0)]
    twice = prune_heads(prune_heads(model, first), second)
    once = prune_heads(model, first + second)
    assert adapter_for(twice).kept == adapter_for(once).kept
    for found, expected in zip(twice.parameters(), once.parameters(), strict=True):
        assert torch.equal(found, expected)
    torch.testing.assert_close(answer(twice, inputs), answer(once, inputs), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"heads: got \(0, 1\), which is removed already; expected heads of"):
        prune_heads(twice, [(0, 1)])
    rest = adapter_for(twice).all_heads()
    nothing = prune_heads(twice, rest)
    assert adapter_for(nothing).all_heads() == []
    assert_close(answer(nothing, inputs), masked_answer(model, adapter_for(model).all_heads(), inputs))


@pytest.mark.parametrize("name", MODELS)
def test_restored_heads_are_silent_and_the_model_has_its_size_again(name):
    model, inputs = tiny_model(name), tiny_inputs(name)
    pruned = prune_heads(model, [(0, head) for head in range(4)])
    restored = restore_heads(pruned)
    assert restored.num_parameters() == model.num_parameters() and adapter_for(restored).kept == adapter_for(model).kept
    assert type(adapter_for(restored).attention(0)) is type(adapter_for(model).attention(0))
    assert_close(answer(restored, inputs), answer(pruned, inputs))


@pytest.mark.parametrize("name", SEQUENCES)
def test_models_with_a_task_and_their_bodies_agree(name):
    model, inputs = tiny_model(name, SEQUENCES[name]), tiny_inputs(name)
    heads = random_heads(adapter_for(model), 5 if name != "ALBERT" else 2, seed=2)
    pruned = prune_heads(model, heads)
    assert_close(answer(pruned, inputs), masked_answer(model, heads, inputs))
    assert adapter_for(pruned.base_model).kept == adapter_for(pruned).kept
    same = prune_heads(model.base_model, heads, in_place=True)
    assert same is model.base_model
    torch.testing.assert_close(answer(model, inputs), answer(pruned, inputs), rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_attention_of_pruned_models_is_shown(name):
    model, inputs = tiny_model(name, attention="eager"), tiny_inputs(name)
    heads = [(0, head) for head in range(4)]
    heads += [(2, 1), (2, 3)] if adapter_for(model).layers > 2 else []
    with torch.no_grad():
        before = model(**inputs, output_attentions=True).attentions
        after = prune_heads(model, heads)(**inputs, output_attentions=True).attentions
    fresh = prune_heads(tiny_model(name, attention="eager"), heads)
    with torch.no_grad():
        assert [layer.shape for layer in fresh(**inputs, output_attentions=True).attentions] == [
            layer.shape for layer in after
        ]
    assert len(after) == len(before)
    assert after[0].shape == (before[0].shape[0], 0, *before[0].shape[2:])
    if adapter_for(model).layers == 3:
        assert after[2].shape[1] == before[2].shape[1] // 2


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "ViT"])
def test_models_of_sixteen_bits(name, precision):
    model, inputs = tiny_model(name).to(getattr(torch, precision)), tiny_inputs(name)
    heads = [(0, head) for head in range(4)] + [(1, 2)]
    pruned = prune_heads(model, heads)
    assert {parameter.dtype for parameter in pruned.parameters()} == {getattr(torch, precision)}
    found, expected = answer(pruned, inputs), masked_answer(model, heads, inputs)
    assert found.dtype == expected.dtype
    assert_close(found.float(), expected.float(), tolerance=0.05)


@pytest.mark.parametrize("name", [*CAUSAL, "BERT"])
def test_shared_weights_stay_shared_and_gradients_flow(name):
    task = CAUSAL.get(name, "ForMaskedLM")
    model, inputs = tiny_model(name, task, tie_word_embeddings=True), tiny_inputs(name)
    model.base_model.get_input_embeddings().weight.requires_grad_(False)
    pruned = prune_heads(model, [(0, head) for head in range(4)] + [(1, 0)]).train()
    shared = pruned.get_input_embeddings().weight
    assert pruned.get_output_embeddings().weight is shared and not shared.requires_grad
    pruned(**inputs, labels=inputs["input_ids"]).loss.backward()
    bias = adapter_for(pruned).output_bias(0)
    assert bias is None or bias.grad.abs().max() > 0
    assert adapter_for(pruned).attention(1).layer_idx == 1


@pytest.mark.parametrize("name", ENCODERS)
def test_an_empty_list_gives_a_copy(name):
    model = tiny_model(name)
    other = prune_heads(model, [])
    assert other is not model and adapter_for(other).kept == adapter_for(model).kept


@pytest.mark.parametrize(
    ("heads", "error", "message"),
    [
        ([(3, 0)], ValueError, r"heads: got \(3, 0\); expected heads of a model with \(4, 4, 4\) heads"),
        ([(0, 4)], ValueError, r"heads: got \(0, 4\); expected heads of a model"),
        ([(-1, 0)], ValueError, r"heads: got \(-1, 0\); expected"),
        ([(0, 1), (0, 1)], ValueError, r"heads: got \(0, 1\) more than once"),
        ([(0, 1.5)], TypeError, r"heads: got \(0, 1.5\) among them; expected a list of different pairs"),
        ([(0, True)], TypeError, r"heads: got \(0, True\) among them"),
        ([3], TypeError, "heads: got 3 among them"),
        ([(0, 1, 2)], TypeError, r"heads: got \(0, 1, 2\) among them"),
        (7, TypeError, "heads: got 7; expected"),
        ("01", TypeError, "heads: got '01'; expected"),
        ({0: [1]}, TypeError, r"heads: got \{0: \[1\]\}; expected"),
    ],
)
def test_wrong_heads(heads, error, message):
    with pytest.raises(error, match=message):
        prune_heads(tiny_model("BERT"), heads)


def test_models_that_cannot_be_cut():
    model = tiny_model("BERT")
    with head_masks(model, [(0, 0)]), pytest.raises(ValueError, match="got a model inside `head_masks`"):
        prune_heads(model, [(0, 1)])
    model.hf_quantizer = object()
    with pytest.raises(ValueError, match="model: got a quantised model; expected .* prune first"):
        prune_heads(model, [(0, 1)])
    model = tiny_model("BERT")
    model._tp_size = 2
    with pytest.raises(ValueError, match="model: got a model spread over 2 devices"):
        prune_heads(model, [(0, 1)])

    class Packed(torch.nn.Linear):
        pass

    model = tiny_model("BERT")
    adapter_for(model).attention(1).value.__class__ = Packed
    with pytest.raises(ValueError, match="got a Packed with a weight of type Parameter in its attention"):
        prune_heads(model, [(0, 1)])

    model = tiny_model("BERT")
    attention = adapter_for(model).attention(0)
    attention.forward = attention.forward
    with pytest.raises(ValueError, match="got a model whose attention is wrapped; expected .* device map"):
        prune_heads(model, [(0, 1)])

"""Pruned equals masked under the ways of computing attention that are not the two usual ones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import CAUSAL, MODELS, answer, random_heads, tiny_inputs, tiny_model  # noqa: E402
from transformers import AttentionInterface, AttentionMaskInterface  # noqa: E402
from transformers.masking_utils import flash_attention_mask  # noqa: E402

from thermoformer.transformers import adapter_for, head_masks, prune_heads  # noqa: E402

PAIRS = [
    (name, attention)
    for name in MODELS
    for attention in ("flex_attention", "packed")
    # transformers refuses it, pruned or not.
    if (name, attention) != ("GPT-2", "flex_attention")
]


def packed(module, query, key, value, mask, scaling=None, sliding_window=None, is_causal=None, **_):
    """Attention called as flash attention is: a mask of two axes or none, grouped heads, no weights given back.

    Flash attention itself wants a GPU and a package of its own.
    """
    if 0 in query.shape:
        raise ValueError("flash attention takes no tensors without entries")
    if query.shape[1] % key.shape[1]:
        raise ValueError("flash attention wants as many queries for every key")
    queries, keys = query.shape[2], key.shape[2]
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if module.is_causal if is_causal is None else is_causal:
        seen = distance >= 0
    if sliding_window is not None:
        seen = seen & (distance < sliding_window)
    given = torch.zeros_like(query)
    for example in range(len(query)):
        kept = torch.ones(keys, dtype=torch.bool) if mask is None else mask[example, -keys:].bool()
        rows = kept[-queries:]
        given[example][:, rows] = torch.nn.functional.scaled_dot_product_attention(
            query[example][:, rows],
            key[example][:, kept],
            value[example][:, kept],
            attn_mask=seen[rows][:, kept],
            scale=scaling,
            enable_gqa=True,
        )
    return given.transpose(1, 2), None


@pytest.fixture(autouse=True)
def _known_and_uncompiled():
    AttentionInterface.register("packed", packed)
    AttentionMaskInterface.register("packed", flash_attention_mask)
    # Compiling flex attention takes a minute of a processor, and the same numbers come without.
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


# What PyTorch says of its own insides is not ours to mend.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "attention"), PAIRS)
def test_pruned_equals_masked(name, attention):
    model, inputs = tiny_model(name, attention=attention), tiny_inputs(name)
    whole = answer(model, inputs)
    torch.testing.assert_close(whole, answer(tiny_model(name), inputs), rtol=2e-5, atol=2e-5)
    heads = random_heads(adapter_for(model), 3, seed=2)
    emptied = [(0, head) for head in range(4) if (0, head) not in heads]
    for some in (heads, heads + emptied):
        with head_masks(model, some):
            expected = answer(model, inputs)
        assert (expected - whole).abs().max() > 1e-3, "heads that matter"
        pruned = prune_heads(model, some)
        assert pruned.config._attn_implementation == attention
        torch.testing.assert_close(answer(pruned, inputs), expected, rtol=2e-5, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", CAUSAL)
def test_the_cache_works_with_packed_attention(name):
    model, inputs = tiny_model(name, CAUSAL[name], attention="packed"), tiny_inputs(name, padding="left")
    pruned = prune_heads(model, [(0, 1), (1, 0), (1, 1), (1, 2), (1, 3)])
    lengths = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    found = pruned.generate(**inputs, **lengths)
    assert torch.equal(pruned.generate(**inputs, **lengths, use_cache=False), found)
    pruned.set_attn_implementation("sdpa")
    assert torch.equal(pruned.generate(**inputs, **lengths), found)

"""What holds for every family: heads are found, masked, cut, saved and loaded, as the documentation says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_models import IMAGES, MODELS, OTHERS, answer, images, labelled, tiny_inputs, tiny_model  # noqa: E402

from thermoformer.transformers import (  # noqa: E402
    adapter_for,
    head_contributions,
    head_masks,
    known_families,
    load_pruned,
    prune_heads,
    save_pruned,
    score_heads,
)

NAMES = [name for name in (MODELS | OTHERS) if name != "ALBERT of groups"]
ROWS = re.findall(r"^\| ([^|]+) \| (yes|no) \|$", (Path(__file__).parents[2] / "docs/heads.md").read_text(), re.M)


def assert_close(found, expected, tolerance=2e-5):
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def test_the_documentation_lists_all_families():
    assert [name for name, _ in ROWS] == list(known_families()) and set(known_families()) == set(NAMES)


# DeBERTa-v2 compiles functions with what PyTorch has deprecated.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_family(name, tmp_path):
    model, inputs = tiny_model(name), tiny_inputs(name)
    adapter, whole = adapter_for(model), answer(model, inputs)
    assert adapter.family == name and set(adapter.heads) == {4}
    if name != "CLIP":
        head_contributions(model, [inputs])  # fails unless the heads of a layer add up to its output
    if name not in ("CLIP", "T5", "mT5", "Whisper"):  # whose bodies need more than the examples have
        examples = images(8) if name in IMAGES else labelled(8)
        assert np.abs(score_heads(model, examples, "evidence", progress=False).values).min() > 0
    with head_masks(model, torch.ones(len(adapter.all_heads()))):
        torch.testing.assert_close(answer(model, inputs), whole, rtol=0, atol=0)

    last = adapter.layers - 1
    uneven = [(0, head) for head in range(4)] + ([(last, 0), (last, 2)] if last else [])
    even = [(layer, head) for layer in range(adapter.layers) for head in (layer % 2, 3)]
    for heads in (uneven, even):
        pruned = prune_heads(model, heads)
        with head_masks(model, heads):
            masked = answer(model, inputs)
        assert (masked - whole).abs().max() > 1e-3
        found = answer(pruned, inputs)
        assert_close(found, masked)
        folder = save_pruned(pruned, tmp_path / "model")
        loaded, readme = load_pruned(folder), (folder / "README.md").read_text()
        assert adapter_for(loaded).kept == adapter_for(pruned).kept
        left = len(adapter.all_heads()) - len(heads)
        assert readme.startswith(f"# {type(model).__name__} with {left} of {4 * adapter.layers} attention heads")
        torch.testing.assert_close(answer(loaded, inputs), found, rtol=0, atol=0)
        by_plain = heads is even and dict(ROWS)[name] == "yes"
        assert (f"{type(model).__name__}.from_pretrained(" if by_plain else "= load_pruned(") in readme
        if by_plain:
            plain = type(model).from_pretrained(folder)
            assert adapter_for(plain).heads == (2,) * adapter.layers
            torch.testing.assert_close(answer(plain, inputs), found, rtol=0, atol=0)
        else:
            for kind in (transformers.AutoModel, type(model)):
                with pytest.raises(Exception, match="heads are pruned: load the folder with .*load_pruned"):
                    kind.from_pretrained(folder, ignore_mismatched_sizes=True)


def granite():
    """A model of a family without a description, of the usual shape."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4}
    config = transformers.GraniteConfig(vocab_size=40, intermediate_size=16, pad_token_id=0, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.GraniteModel(config).eval()


def test_an_unknown_family_of_the_usual_shape(tmp_path):
    model, inputs = granite(), tiny_inputs("Llama")
    adapter, before = adapter_for(model), {name: one.clone() for name, one in model.state_dict().items()}
    assert adapter.family == "granite" and adapter.heads == (4, 4) and "granite" not in known_families()
    heads = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2)]
    with head_masks(model, heads):
        masked = answer(model, inputs)
    loaded = load_pruned(save_pruned(prune_heads(model, heads), tmp_path / "model"))
    assert_close(answer(loaded, inputs), masked)
    # The check of its shape left no trace.
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_an_unknown_family_with_cross_attention():
    sizes = {
        f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads", "ffn_dim")
    }
    config = transformers.MBartConfig(vocab_size=40, d_model=8, max_position_embeddings=16, **sizes)
    assert adapter_for(transformers.MBartModel(config).eval()).heads == (2,) * 6


def test_an_unknown_family_whose_heads_depend_on_each_other_is_refused():
    model = granite()
    attention = model.layers[1].self_attn
    attention.o_proj.register_forward_pre_hook(lambda module, given: given[0] - given[0].mean(-1, keepdim=True))
    for _ in range(2):
        with pytest.raises(ValueError, match="a GraniteModel, whose heads cannot be removed .with heads cut it misses"):
            adapter_for(model)

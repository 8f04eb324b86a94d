"""Adapters: how many heads there are, where they lie, and which models are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_models import CAUSAL, HIDDEN, IMAGES, MODELS, OTHERS, SEQUENCES, tiny_inputs, tiny_model  # noqa: E402

from thermoformer.transformers import adapter_for, known_families, prune_heads  # noqa: E402


@pytest.mark.parametrize("name", MODELS)
def test_what_an_adapter_says(name):
    model = tiny_model(name)
    adapter = adapter_for(model)
    layers = {"ALBERT": 1, "ALBERT of groups": 4}.get(name, 3)
    assert adapter.family == name.removesuffix(" of groups") and adapter.family in known_families()
    assert adapter.layers == layers and adapter.heads == (4,) * layers and adapter.hidden_size == HIDDEN
    assert adapter.kept == ((0, 1, 2, 3),) * layers
    assert adapter.all_heads() == [(layer, head) for layer in range(layers) for head in range(4)]
    assert adapter.projection_weight(0).shape == (HIDDEN, HIDDEN)
    assert [adapter.columns(0, head) for head in range(4)] == [slice(8 * head, 8 * head + 8) for head in range(4)]
    assert adapter.value_weight(0, 1).shape == (HIDDEN, 8)


@pytest.mark.parametrize("name", MODELS)
def test_the_adapter_follows_what_is_cut_in_place(name):
    model = tiny_model(name)
    adapter = adapter_for(model)
    value, row = adapter.value_weight(0, 2).clone(), adapter.projection_weight(0)[adapter.columns(0, 2)].clone()
    prune_heads(model, [(0, 1), (0, 3)], in_place=True)
    assert adapter.heads[0] == 4 and adapter.kept[0] == (0, 2) and adapter.columns(0, 2) == slice(8, 16)
    assert torch.equal(adapter.value_weight(0, 2), value)
    assert torch.equal(adapter.projection_weight(0)[adapter.columns(0, 2)], row)
    with pytest.raises(ValueError, match=r"head: got \(0, 1\); expected a \(layer, head\) that the model has"):
        adapter.columns(0, 1)
    prune_heads(model, [(0, 0), (0, 2)], in_place=True)
    assert adapter.output_projection(0) is None and adapter.projection_weight(0).shape == (0, HIDDEN)


# Sinks of GPT-OSS take a part of the attention, and the others need more than tokens.
MORE = (*IMAGES, "GPT-OSS", "CLIP", "T5", "mT5", "BART", "Whisper")


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in (MODELS | OTHERS) if name not in MORE])
def test_value_times_output_weights_are_what_heads_write_of_a_single_token(name):
    """With one token attention is 1, and the layer's output is the sum over heads of x W_V W_O, without biases."""
    model = tiny_model(name)
    adapter = adapter_for(model)
    attention, seen = adapter.attention(0), {}
    for matrix in (adapter.projection(0), getattr(attention, adapter.parts.projections[-1])):
        if matrix.bias is not None:
            matrix.bias.data.zero_()

    def keep(key):
        def hook(module, arguments, output):
            seen.setdefault(key, arguments[0] if key == "input" else output)

        return hook

    getattr(attention, adapter.parts.projections[-1]).register_forward_hook(keep("input"))
    adapter.projection(0).register_forward_hook(keep("output"))
    with torch.no_grad():
        model(input_ids=torch.tensor([[5]]))
    written = [
        adapter.value_weight(0, head) @ adapter.projection_weight(0)[adapter.columns(0, head)] for head in range(4)
    ]
    torch.testing.assert_close(seen["output"], seen["input"] @ sum(written), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "task"), [*SEQUENCES.items(), *CAUSAL.items(), ("BERT", "ForMaskedLM")])
def test_models_with_a_task(name, task):
    assert adapter_for(tiny_model(name, task)).all_heads() == adapter_for(tiny_model(name)).all_heads()


def test_a_model_of_the_user_on_a_known_body():
    class Own(transformers.BertPreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            self.bert = transformers.BertModel(config)
            self.post_init()

    model = Own(tiny_model("BERT").config)
    assert adapter_for(prune_heads(model, [(1, 1)])).kept[1] == (0, 2, 3)


def test_models_that_are_refused():
    with pytest.raises(
        TypeError, match="model: got an object of type Linear; expected a model of one of the families BERT"
    ):
        adapter_for(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="model: got an object of type str"):
        adapter_for("bert-base-uncased")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 9}
    with pytest.raises(ValueError, match="model: got a FNetModel; expected a model of one of the families BERT, .*ViT"):
        adapter_for(transformers.FNetModel(transformers.FNetConfig(**sizes)))
    with pytest.raises(
        ValueError, match="model: got a GPT2Model with cross-attention; expected .* self-attention only"
    ):
        adapter_for(tiny_model("GPT-2", add_cross_attention=True))
    strange = tiny_model("BERT")
    del strange.encoder.layer[1].attention.output.dense
    with pytest.raises(ValueError, match="without a part of its attention .* expected the parts that BERT has"):
        adapter_for(strange)
    cut = tiny_model("BERT")
    cut.encoder.layer[2].attention.output.dense = torch.nn.Linear(24, HIDDEN)
    with pytest.raises(ValueError, match="output projection in layer 2 with 24 inputs; expected 32"):
        adapter_for(cut)


def test_the_library_itself_does_not_wait_for_torch():
    code = "import sys, thermoformer; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_missing_is_named():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "try:\n    import thermoformer.transformers\n"
        "except ImportError as error:\n    print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "needs PyTorch and transformers: pip install 'thermoformer[transformers]'" in found


def test_inputs_of_the_tiny_models_are_padded():
    assert tiny_inputs("BERT")["attention_mask"].sum(1).tolist() == [6, 5, 4]

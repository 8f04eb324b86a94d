"""Pruned models as programs of `torch.export` and as ONNX, which run without this library."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import answer, tiny_inputs, tiny_model  # noqa: E402

from thermoformer.transformers import prune_heads  # noqa: E402

# One layer without heads, one with two of four, one whole.
GONE = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 2)]


class Plain(torch.nn.Module):
    """The logits or last hidden states of a model, which exporters want as a tensor."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        found = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        return found[0]


@pytest.fixture(params=[("BERT", "Model"), ("Llama", "ForCausalLM")], ids=lambda case: case[0])
def pruned(request):
    name, task = request.param
    model, inputs = prune_heads(tiny_model(name, task), GONE), tiny_inputs(name)
    whole = inputs | {"attention_mask": torch.ones_like(inputs["attention_mask"])}
    return Plain(model).eval(), whole, answer(model, whole)


@pytest.mark.filterwarnings("ignore")  # exporters use much that PyTorch has deprecated
def test_a_pruned_model_is_exported(pruned, tmp_path):
    model, inputs, expected = pruned
    torch.export.save(torch.export.export(model, (), inputs), tmp_path / "model.pt2")
    found = torch.export.load(tmp_path / "model.pt2").module()(**inputs)
    torch.testing.assert_close(found.flatten(0, 1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_a_pruned_model_runs_as_onnx(pruned, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, inputs, expected = pruned
    torch.onnx.export(model, (), tmp_path / "model.onnx", kwargs=inputs, dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    torch.testing.assert_close(torch.from_numpy(found).flatten(0, 1), expected, rtol=1e-4, atol=1e-4)

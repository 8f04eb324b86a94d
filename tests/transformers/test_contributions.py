"""Contributions of heads add up to what layers give, and are what is lost where a head is masked."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import CAUSAL, HIDDEN, MODELS, SEQUENCES, tiny_inputs, tiny_model  # noqa: E402

from thermoformer.transformers import adapter_for, head_contributions, head_masks, prune_heads  # noqa: E402


def outputs_of(model, layer, inputs):
    """Every output of a layer's output projection."""
    seen = []

    def keep(module, arguments, output):
        seen.append(output)

    handle = adapter_for(model).projection(layer).register_forward_hook(keep)
    with torch.no_grad():
        model(**inputs)
    handle.remove()
    return seen


def pooled(values, inputs, readout):
    """The readout, example by example."""
    rows = []
    for example, tokens in enumerate(values):
        mask = inputs["attention_mask"][example].bool() if "attention_mask" in inputs else slice(None)
        tokens = tokens[mask]
        rows.append({"mean": tokens.mean(0), "first": tokens[0], "last": tokens[-1]}[readout])
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("readout", ["mean", "first", "last"])
@pytest.mark.parametrize("name", MODELS)
def test_contributions_add_up(name, readout, padding):
    model, inputs = tiny_model(name), tiny_inputs(name, padding=padding)
    found = head_contributions(model, [inputs], readout=readout)
    adapter = adapter_for(model)
    assert found.heads == adapter.all_heads() and found.values.dtype == np.float32
    assert found.values.shape == (3, len(found.heads), HIDDEN) and 0 < found.largest_miss < 1e-5
    for layer in range(adapter.layers):
        whole = sum(pooled(output, inputs, readout) for output in outputs_of(model, layer, inputs))
        mine = [at for at, head in enumerate(found.heads) if head[0] == layer]
        np.testing.assert_allclose(found.values[:, mine].sum(1) + found.output_bias[layer], whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "ALBERT"])
def test_a_contribution_is_what_the_first_layer_loses_without_the_head(name, attention):
    model, inputs = tiny_model(name, SEQUENCES[name], attention=attention), tiny_inputs(name)
    found = head_contributions(model, [inputs], readout="mean")
    (whole, *_) = outputs_of(model, 0, inputs)
    for head in range(4):
        with head_masks(model, [(0, head)]):
            (without, *_) = outputs_of(model, 0, inputs)
        lost = pooled(whole - without, inputs, "mean")
        if name != "ALBERT of groups":  # the sum over repetitions is not what one of them loses
            np.testing.assert_allclose(found.values[:, head], lost, rtol=1e-4, atol=1e-5)
        else:
            assert not np.allclose(found.values[:, head], lost, rtol=1e-2)


@pytest.mark.parametrize("name", MODELS)
def test_batches_make_no_difference_and_the_model_is_left_as_it_was(name):
    model, inputs = tiny_model(name, SEQUENCES[name]), tiny_inputs(name)
    whole = head_contributions(model, [inputs])
    model.train()
    model.base_model.embeddings.eval() if hasattr(model.base_model, "embeddings") else None
    modes = [module.training for module in model.modules()]
    singles = [{key: value[at : at + 1] for key, value in inputs.items()} for at in range(3)]
    calls = []
    parts = head_contributions(
        model, iter(singles), progress=lambda done, total, message: calls.append((done, total, message))
    )
    np.testing.assert_allclose(parts.values, whole.values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(parts.output_bias, whole.output_bias)
    assert [module.training for module in model.modules()] == modes
    assert calls == [(0, 1, "reading heads"), (1, 2, "reading heads"), (2, 3, "reading heads")]
    assert not any(adapter_for(model).projection(0)._forward_hooks)


@pytest.mark.parametrize("name", CAUSAL)
def test_positions_of_language_models(name):
    model, inputs = tiny_model(name, CAUSAL[name]), tiny_inputs(name)
    positions = [[1, 3], [0, 0], [3, 2]]
    labels = {"labels": inputs["input_ids"], "readout_positions": positions}
    found = head_contributions(model, [inputs | labels], readout="positions")
    assert found.values.shape == (6, 12, HIDDEN)
    first = head_contributions(model, [inputs], readout="first")
    np.testing.assert_allclose(found.values[2], first.values[1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.values[3], first.values[1], rtol=1e-4, atol=1e-6)
    last = head_contributions(model, [inputs], readout="last")
    np.testing.assert_allclose(found.values[4], last.values[2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["BERT", "ALBERT of groups", "GPT-2", "Llama"])
def test_pruned_models(name):
    model, inputs = tiny_model(name), tiny_inputs(name)
    heads = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2)]
    pruned = prune_heads(model, heads)
    found = head_contributions(pruned, [inputs])
    with head_masks(model, heads):
        expected = head_contributions(model, [inputs])
    kept = [at for at, head in enumerate(expected.heads) if head not in heads]
    assert found.heads == [expected.heads[at] for at in kept]
    np.testing.assert_allclose(found.values, expected.values[:, kept], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.output_bias, expected.output_bias)


def test_masked_heads_contribute_nothing():
    model, inputs = tiny_model("BERT"), tiny_inputs("BERT")
    with head_masks(model, [(1, 2)]):
        found = head_contributions(model, [inputs])
    assert np.abs(found.values[:, 6]).max() == 0 < np.abs(found.values[:, 5]).max()


@pytest.mark.parametrize("precision", ["bfloat16", "float64"])
def test_other_precisions(precision):
    model, inputs = tiny_model("BERT"), tiny_inputs("BERT")
    expected = head_contributions(model, [inputs])
    found = head_contributions(model.to(getattr(torch, precision)), [inputs])
    tolerance = 0.1 if precision == "bfloat16" else 1e-4
    assert found.values.dtype == np.float32
    np.testing.assert_allclose(found.values, expected.values, atol=tolerance * np.abs(expected.values).max())


def test_to_xarray():
    found = head_contributions(tiny_model("BERT"), [tiny_inputs("BERT")], readout="first")
    table = found.to_xarray()
    assert table["contribution"].dims == ("example", "head", "feature")
    np.testing.assert_array_equal(table["contribution"].sel(head="1.2"), found.values[:, 6])
    assert table["layer_of_head"].values[6] == 1 and table.attrs["readout"] == "first"


def test_an_altered_output_projection_is_noticed():
    model = tiny_model("BERT")
    adapter_for(model).projection(1).register_forward_hook(lambda module, arguments, output: 1.001 * output)
    with pytest.raises(
        ValueError, match="model: got heads of layer 1 that miss its output by 0.001.*; expected heads that add"
    ):
        head_contributions(model, [tiny_inputs("BERT")])
    assert len(adapter_for(model).projection(1)._forward_hooks) == 1


BATCH = {"input_ids": torch.ones(2, 4, dtype=torch.long)}
FLAT = torch.tensor([1, 2])


@pytest.mark.parametrize(
    ("batches", "readout", "error", "message"),
    [
        ([BATCH], "median", ValueError, "readout: got 'median'; expected one of 'mean', 'first', 'last', 'positions'"),
        ([], "mean", ValueError, "batches: got none; expected at least one batch"),
        (BATCH, "mean", TypeError, "batches: got a dict; expected an iterable of dictionaries"),
        ([3], "mean", TypeError, r"batches\[0\]: got a int; expected a dictionary of tensors"),
        ([{"input_ids": [[1, 2]]}], "mean", TypeError, r"batches\[0\]\['input_ids'\]: got a list; expected a tensor"),
        ([BATCH], "positions", ValueError, r"batches\[0\]: got no 'readout_positions'; expected"),
        (
            [BATCH | {"readout_positions": FLAT}],
            "positions",
            ValueError,
            r"shape \(2,\); expected integers \[example, pos",
        ),
        ([BATCH | {"readout_positions": [[1.5], [0.0]]}], "positions", ValueError, "got torch.float32 of shape"),
        ([BATCH | {"readout_positions": [[1], [2, 3]]}], "positions", ValueError, "expected integers"),
        ([BATCH | {"readout_positions": [[4], [0]]}], "positions", ValueError, "up to 4, .*expected 2 .* from 0 to 3"),
        ([BATCH | {"readout_positions": [[1]]}], "positions", ValueError, "got 1 examples .*expected 2 examples"),
        ([BATCH | {"attention_mask": torch.zeros(2, 4)}], "mean", ValueError, "got an example without tokens"),
        ([BATCH | {"attention_mask": torch.ones(2, 1, 4, 4)}], "mean", ValueError, r"shape \(2, 1, 4, 4\); expected 2"),
    ],
)
def test_wrong_input(batches, readout, error, message):
    with pytest.raises(error, match=message):
        head_contributions(tiny_model("BERT"), batches, readout=readout)


def test_a_model_without_heads():
    model = tiny_model("BERT")
    with pytest.raises(ValueError, match="model: got a model without heads"):
        head_contributions(prune_heads(model, adapter_for(model).all_heads()), [BATCH])

"""From a folder with a pretrained model to a pruned one, on tiny models with random weights."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
import warnings
from contextlib import suppress

import numpy as np
import pytest
import torch
import xarray as xr
from safetensors.torch import load_file
from tiny_models import HEADS, LAYERS, WORDS, tiny_folder, tiny_model, without_speed
from transformers import AutoModel, AutoTokenizer, T5Config

from thermoformer.experiments import heads
from thermoformer.experiments.heads import FILES, curve_rows, run_heads
from thermoformer.experiments.heads.inputs import class_places, examples_for, load_model, read_task
from thermoformer.learning.scores import head_name
from thermoformer.transformers import (
    METHODS,
    adapter_for,
    load_pruned,
    own_accuracy,
    perplexity,
    pretrained,
    probe_accuracy,
    removal_order,
)
from thermoformer.transformers.curves import _Points, draw

COUNT = LAYERS * HEADS


def sentences(count: int, seed: int) -> list[list[str]]:
    random = np.random.default_rng(seed)
    return [[WORDS[place] for place in random.integers(len(WORDS), size=random.integers(3, 9))] for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models and files that all tests read and none changes."""
    place = tmp_path_factory.mktemp("heads")
    tiny_folder(place / "bert", "BERT")
    tiny_folder(place / "classifier", "BERT", "ForSequenceClassification", num_labels=2)
    tiny_folder(place / "llama", "Llama", "ForCausalLM")
    rows = [(" ".join(words), "good" if "good" in words or "cat" in words else "bad") for words in sentences(120, 0)]
    (place / "labelled.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    (place / "story.txt").write_text(" ".join(word for words in sentences(200, 1) for word in words))
    return place


def rows_of(file) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def read_back(out, folder, task, **options):
    """The saved model and the examples that it was scored and judged with, all read from disk again."""
    model, tokenizer = load_pruned(out / "pruned"), AutoTokenizer.from_pretrained(out / "pruned")
    train, test = examples_for(model, tokenizer, read_task(folder / task), **options)
    return model, draw(train, 50, 0), test


@pytest.mark.parametrize("method", ["magnitude", "gradient", "random"])
def test_rules_that_score_once_are_computed_once(folder, tmp_path, monkeypatch, method):
    calls, rule = [], METHODS[method]
    monkeypatch.setitem(METHODS, method, lambda scoring: calls.append(method) or rule(scoring))
    given = {"task": folder / "labelled.tsv", "examples": 50, "method": method, "seed": 3}
    record = run_heads(folder / "bert", tmp_path, **given)
    assert calls == [method] and not record["scored_again"]
    model, tokenizer = load_model(folder / "bert", language=False)
    train, _ = examples_for(model, tokenizer, read_task(folder / "labelled.tsv", seed=3))
    expected = removal_order(model, draw(train, 50, 3), method, count=COUNT // 2, every=0, goal="probe", seed=3)
    assert record["removed"] == [head_name(head) for head in expected]


def test_a_probe_before_and_after_from_folder_to_page(folder, tmp_path):
    seen = []
    record = run_heads(
        folder / "bert",
        tmp_path,
        task=folder / "labelled.tsv",
        prune=0.5,
        examples=50,
        masked=True,
        progress=lambda *given: seen.append(given),
    )
    assert (record["goal"], record["heads"], len(record["removed"])) == ("probe", COUNT, COUNT // 2)
    assert record["examples"] == 50 and record["test_examples"] == 24 and record["scored_again"]
    assert record == json.loads((tmp_path / "record.json").read_text())
    # The saved model gives the accuracy that the page states.
    model, train, test = read_back(tmp_path, folder, "labelled.tsv")
    after = record["after"]["accuracy"]
    assert probe_accuracy(model, train, test) == after
    page = (tmp_path / "heads.html").read_text()
    assert f"{100 * after:.1f} ±" in page and f"{record['after']['parameters']:,}" in page
    assert model.num_parameters() == record["after"]["parameters"] < record["before"]["parameters"]
    # Tables, the saved folder and the record name the same heads.
    gone = {f"{row['layer']}.{row['head']}" for row in rows_of(tmp_path / "scores.csv") if row["removed"] == "yes"}
    order = [f"{row['layer']}.{row['head']}" for row in rows_of(tmp_path / "order.csv")]
    left = {f"{layer}.{head}" for layer, head in adapter_for(model).all_heads()}
    assert order == record["removed"] and gone == set(order) and not left & gone and len(left | gone) == COUNT
    # A plain checkpoint with the same heads silent does the same.
    plain = AutoModel.from_pretrained(tmp_path / "masked")
    assert probe_accuracy(plain, train, test) == after
    assert not (tmp_path / "points").exists() and (tmp_path / "scores.png").is_file()
    assert seen[-1] == (1, 1, "done")
    rounds = [done for done, _, message in seen if message.startswith("scores by evidence, ")]
    assert 0 < rounds[1] < 1 and rounds == sorted(rounds), "batches advance the bar within a round"


def test_a_classifier_is_judged_by_its_own_head_and_a_pruned_folder_is_pruned_further(folder, tmp_path):
    given = {"task": folder / "labelled.tsv", "examples": 50, "method": "gradient"}
    first = run_heads(folder / "classifier", tmp_path / "first", prune=0.25, **given)
    assert first["goal"] == "classifier" and not first["scored_again"] and "before" in first
    model, _, test = read_back(tmp_path / "first", folder, "labelled.tsv")
    assert own_accuracy(model, test) == first["after"]["accuracy"]
    second = run_heads(tmp_path / "first" / "pruned", tmp_path / "second", prune=0.3, **given)
    assert second["heads"] == COUNT - len(first["removed"]) and not set(first["removed"]) & set(second["removed"])
    assert without_speed(second)["before"] == without_speed(first)["after"]
    kept = adapter_for(load_pruned(tmp_path / "second" / "pruned")).all_heads()
    assert len(kept) == COUNT - len(first["removed"]) - len(second["removed"])


def test_a_language_model_is_judged_on_the_end_of_the_text(folder, tmp_path):
    given = {"prune": 0.25, "length": 16, "examples": 20, "test_examples": 8}
    record = run_heads(folder / "llama", tmp_path, task=folder / "story.txt", **given)
    assert record["measure"] == "perplexity" and record["test_examples"] == 8
    model, _, test = read_back(tmp_path, folder, "story.txt", length=16, test_examples=8)
    assert perplexity(model, test) == pytest.approx(record["after"]["perplexity"], rel=1e-6)
    assert "test perplexity" in (tmp_path / "heads.html").read_text()
    # The same by the name of the task and the file beside it; the first four fifths score, the others judge.
    task = read_task("text", folder / "story.txt")
    whole, tokenizer = load_model(folder / "llama", language=True)
    train, test = examples_for(whole, tokenizer, task, length=16)
    together = np.concatenate([row[1:] for row in (*train.inputs["input_ids"], *test.inputs["input_ids"])])
    assert tokenizer.decode(together) == task.train
    assert len(train) == round(0.8 * (len(train) + len(test)))
    assert examples_for(whole, tokenizer, task)[0].lengths.max() == 32, "no more than the model reads"


def test_a_comparison_is_kept_and_gone_on_with(folder, tmp_path, monkeypatch):
    from thermoformer.transformers import curves

    given = {
        "task": folder / "labelled.tsv",
        "examples": 40,
        "compare": True,
        "seeds": 2,
        "methods": ("evidence", "magnitude", "random"),
        "method": "magnitude",
    }
    whole = curves.removal_order
    asked = []

    def interrupted(model, data, method, **options):
        asked.append(method)
        if len(asked) == 5:
            raise KeyboardInterrupt
        return whole(model, data, method, **options)

    monkeypatch.setattr(curves, "removal_order", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_heads(folder / "bert", tmp_path, **given)
    points = {file: file.stat().st_mtime_ns for file in (tmp_path / "points").rglob("*.json")}
    # The smaller model and a page without curves are there already.
    assert points and (tmp_path / "pruned").is_dir() and "Against other" not in (tmp_path / "heads.html").read_text()
    record = run_heads(folder / "bert", tmp_path, **given)
    assert asked == ["evidence", "magnitude", "random", "evidence", "magnitude", "magnitude", "random"]
    assert {file: file.stat().st_mtime_ns for file in points} == points
    again = run_heads(folder / "bert", tmp_path, **given)
    assert len(asked) == 7 and without_speed(again) == without_speed(record)
    dataset = xr.load_dataset(tmp_path / "curves.nc", engine="h5netcdf")
    assert dataset.value.shape == (1, 3, 2, 4) and dataset.removed.values.tolist() == [0, 3, 6, 9]
    assert curve_rows(dataset) == record["curves"]
    assert dataset.examples_per_second.dims == ("removed",) and (dataset.examples_per_second > 0).all()
    page = (tmp_path / "heads.html").read_text()
    assert all(f"<td>{count:,}</td>" in page for count in dataset.parameters.values)
    assert f"<td>{float(dataset.examples_per_second[-1]):.4g}</td>" in page
    rows = rows_of(tmp_path / "curves.csv")
    values = dataset.value.sel(rule="random", removed=6).values.ravel()
    row = next(row for row in rows if (row["method"], row["removed"]) == ("random", "6"))
    assert float(row["accuracy_mean"]) == pytest.approx(values.mean(), rel=1e-5)
    assert float(row["standard_error"]) == pytest.approx(values.std(ddof=1) / np.sqrt(2), rel=1e-5)
    page = (tmp_path / "heads.html").read_text()
    assert "weights&#x27; norm" in page and (tmp_path / "curves.svg").is_file() and page.count("<figure>") == 2
    # One draw has no error.
    single = curve_rows(dataset.isel(seed=[0]))
    assert all(row["error"] is None for row in single)


def test_labels_go_where_the_classifier_has_them(folder):
    model = tiny_model("BERT", "ForSequenceClassification", num_labels=3)
    assert class_places(model, ("a", "b", "c"))[0].tolist() == [0, 1, 2]
    assert class_places(model, ("0", "2"))[0].tolist() == [0, 2]
    model.config.id2label = {0: "Neutral", 1: "Positive", 2: "Negative"}
    places, count = class_places(model, ("negative", "positive"))
    assert places.tolist() == [2, 1] and count == 3
    message = (
        "model: got a classifier of Neutral, Positive, Negative; expected one of the classes of the task, ABBR, DESC"
    )
    with pytest.raises(ValueError, match=message):
        class_places(model, ("ABBR", "DESC"))
    assert class_places(tiny_model("BERT"), ("x", "y"))[0].tolist() == [0, 1]


def test_a_labelled_file_is_split_by_the_seed(folder):
    one, same, other = (read_task(folder / "labelled.tsv", seed=seed) for seed in (0, 0, 1))
    assert one.train.texts == same.train.texts != other.train.texts and one.test.texts == same.test.texts
    assert (len(one.train), len(one.test)) == (96, 24)
    assert sorted(one.train.texts + one.test.texts) == sorted(other.train.texts + other.test.texts)


def test_the_body_of_a_model_that_answers_questions(tmp_path):
    """It is called "transformer" there, and "model" in all other classes of Llama."""
    whole = tiny_model("Llama", "ForQuestionAnswering")
    model, _ = load_model(tiny_folder(tmp_path, "Llama", "ForQuestionAnswering"), language=False)
    assert type(model).__name__ == "LlamaModel"
    for found, expected in zip(model.parameters(), whole.transformer.parameters(), strict=True):
        assert torch.equal(found, expected)


def test_a_body_without_a_pooling_layer_gets_no_random_one(folder, tmp_path):
    tiny_folder(tmp_path / "plain", "BERT", "ForMaskedLM")
    model, _ = load_model(tmp_path / "plain", language=False)
    assert type(model).__name__ == "BertModel" and model.pooler is None
    record = run_heads(tmp_path / "plain", tmp_path / "out", task=folder / "labelled.tsv", method="deepest")
    assert load_pruned(tmp_path / "out" / "pruned").pooler is None and record["goal"] == "probe"


def test_a_model_of_masked_tokens_is_judged_by_them(folder, tmp_path):
    model = tiny_model("BERT", "ForMaskedLM")
    model.save_pretrained(tmp_path / "masked")
    tokenizer = AutoTokenizer.from_pretrained(folder / "bert")
    tokenizer.mask_token = "<unk>"
    tokenizer.save_pretrained(tmp_path / "masked")
    given = {"goal": "language", "prune": 0.25, "length": 16, "examples": 20}
    record = run_heads(tmp_path / "masked", tmp_path / "out", file=folder / "story.txt", **given)
    assert (record["class"], record["measure"]) == ("BertForMaskedLM", "perplexity")
    model, _, test = read_back(tmp_path / "out", folder, "story.txt", length=16)
    assert perplexity(model, test) == pytest.approx(record["after"]["perplexity"], rel=1e-6) and test.kind == "tokens"


def test_the_goal_may_be_a_probe_of_a_classifier(folder, tmp_path):
    record = run_heads(folder / "classifier", tmp_path, file=folder / "labelled.tsv", goal="probe", method="deepest")
    assert (record["goal"], record["class"]) == ("probe", "BertModel")
    with pytest.raises(ValueError, match="without weights for classifier.bias, classifier.weight"):
        run_heads(folder / "bert", tmp_path, task=folder / "labelled.tsv", goal="classifier")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_weights_of_16_bits(folder, tmp_path, precision):
    given = {"file": folder / "story.txt", "prune": 0.25, "length": 16, "examples": 20}
    record = run_heads(folder / "llama", tmp_path / precision, dtype=precision, **given)
    whole = run_heads(folder / "llama", tmp_path / "float32", **given)
    assert load_pruned(tmp_path / precision / "pruned").dtype is getattr(torch, precision)
    assert record["before"]["perplexity"] == pytest.approx(whole["before"]["perplexity"], rel=0.02)
    assert len(set(record["removed"]) & set(whole["removed"])) >= 2


def write_gguf(gguf, model, file):
    """A tiny Llama as other programs write it: rows of queries and keys are in the order of pairs that rotate."""
    config, writer = model.config, gguf.GGUFWriter(file, "llama")
    for name, number in {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads,
        "rope_dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
        "layer_norm_rms_eps": config.rms_norm_eps,
        "rope_freq_base": 10000.0,
    }.items():
        getattr(writer, f"add_{name}")(number)
    letters = [chr(ord("a") + place) for place in range(26)] + ["\u0120", "th"]
    tokens = ["<pad>", "<s>", "<|endoftext|>", "<unk>", *letters]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens + [f"<{place}>" for place in range(len(tokens), config.vocab_size)])
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    names |= {"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"}
    names |= {"mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    names |= {"model.layers": "blk"}
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        if "q_proj" in name or "k_proj" in name:
            heads = len(values) // config.head_dim
            values = values.reshape(heads, 2, config.head_dim // 2, -1).swapaxes(1, 2).reshape(values.shape)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_files(folder, tmp_path, monkeypatch):
    gguf = pytest.importorskip("gguf")
    whole = tiny_model("Llama", "ForCausalLM", attention_bias=False, head_dim=4)
    write_gguf(gguf, whole, tmp_path / "tiny.gguf")
    model, tokenizer = load_model(tmp_path / "tiny.gguf", language=True)
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight, rtol=0, atol=0)
    assert tokenizer.decode(tokenizer("the cat")["input_ids"], skip_special_tokens=True) == "the cat"
    body, _ = load_model(tmp_path / "tiny.gguf", language=False)
    assert type(body).__name__ == "LlamaModel" and torch.equal(body.norm.weight, whole.model.norm.weight)
    given = {"file": folder / "story.txt", "method": "deepest", "length": 16, "examples": 20}
    record = run_heads(tmp_path / "tiny.gguf", tmp_path / "out", **given)
    model, _, test = read_back(tmp_path / "out", folder, "story.txt", length=16)
    assert perplexity(model, test) == pytest.approx(record["after"]["perplexity"], rel=1e-6)
    (tmp_path / "odd.gguf").write_bytes((tmp_path / "tiny.gguf").read_bytes()[:200])
    with pytest.raises(ValueError, match="odd.gguf, which could not be read; expected .*a GGUF file of a known family"):
        load_model(tmp_path / "odd.gguf", language=True)


def test_gguf_files_without_what_reads_them(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    with pytest.raises(
        ValueError, match="tiny.gguf, a GGUF file; expected the extra: pip install 'thermoformer.gguf.'"
    ):
        load_model(tmp_path / "tiny.gguf", language=True)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"prune": 0.0}, ValueError, "prune: got 0.0; expected a share of the heads between 0 and 1"),
        ({"prune": 1.0}, ValueError, "prune: got 1.0"),
        ({"prune": True}, ValueError, "prune: got True"),
        ({"prune": 0.01}, ValueError, "prune: got 0.01; expected a share that removes some of the 12 heads"),
        ({"goal": "wish"}, ValueError, "goal: got 'wish'; expected one of 'auto', 'probe', 'classifier', 'language'"),
        ({"goal": "language"}, ValueError, "goal: got 'language' for labelled texts; expected 'probe' or 'classifier'"),
        ({"dtype": "int8"}, ValueError, "dtype: got 'int8'; expected one of 'float32', 'bfloat16', 'float16'"),
        ({"task": None}, ValueError, "task: got none; expected trec, sst2, a file that ends in .tsv"),
        (
            {"model": "nowhere.gguf"},
            FileNotFoundError,
            "model: got nowhere.gguf, which is no file; expected a GGUF file",
        ),
        ({"method": "luck"}, ValueError, "method: got 'luck'; expected one of 'evidence'"),
        ({"examples": 0}, ValueError, "examples: got 0"),
        ({"seed": -1}, ValueError, "seed: got -1"),
        ({"task": "imdb"}, ValueError, "task: got 'imdb'; expected trec, sst2, a file that ends in .tsv"),
        ({"task": "text"}, ValueError, "task: got 'text' without a file"),
        ({"file": "a.txt"}, ValueError, "file: got a.txt beside the task"),
        ({"task": "none.tsv"}, FileNotFoundError, "path: got none.tsv, which is not there"),
        ({"task": "none.txt"}, FileNotFoundError, "path: got none.txt, which is not there"),
        ({"length": 33}, ValueError, "length: got 33; expected at most 32 tokens, as the model reads"),
        ({"model": "./nowhere"}, FileNotFoundError, "model: got ./nowhere, which is no folder"),
        ({"device": "cuda"}, ValueError, "device: got cuda; expected cpu"),
        ({"device": "abacus"}, ValueError, "device: got 'abacus'; expected cpu or cuda"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(folder, tmp_path, monkeypatch, changes, error, message):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    given = {"model": folder / "bert", "task": folder / "labelled.tsv"} | changes
    with pytest.raises(error, match=re.escape(message)):
        run_heads(given.pop("model"), tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_files_that_cannot_serve(folder, tmp_path):
    contents = {
        "empty.tsv": ("", "which is empty"),
        "unlabelled.tsv": ("the cat sits\nthe dog runs\n", "line 1: .the cat sits.; expected a text, a tab"),
        "one.tsv": ("a cat\tgood\na dog\tgood\n", "every label is 'good'"),
        "few.tsv": ("a cat\tgood\na dog\tbad\n", "few.tsv with 2 texts; expected 5 or more"),
    }
    for name, (content, message) in contents.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            run_heads(folder / "bert", tmp_path / "out", task=tmp_path / name)
    for content, message in (("\n", "which is empty"), ("the cat sits", "with 1 sequence of 32 tokens; expected two")):
        (tmp_path / "short.txt").write_text(content)
        with pytest.raises(ValueError, match=message):
            run_heads(folder / "llama", tmp_path / "out", task=tmp_path / "short.txt")
    # A body has no weights that predict masked tokens.
    with pytest.raises(
        ValueError, match="model: got .*bert without weights for .*; expected those of a BertForMaskedLM"
    ):
        run_heads(folder / "bert", tmp_path / "out", task=folder / "story.txt")
    assert not (tmp_path / "out").exists()


def test_folders_that_hold_no_model(folder, tmp_path, monkeypatch):
    def refused(place, message, error=ValueError):
        with pytest.raises(error, match=message):
            load_model(place, language=False)

    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "model: got .*empty, which could not be read; expected a folder or a name on the hub")
    T5Config().save_pretrained(tmp_path / "t5")
    refused(tmp_path / "t5", "model: got one of type 't5'; expected one of the families BERT, .*ViT")
    tiny_model("BERT").save_pretrained(tmp_path / "bare")
    refused(tmp_path / "bare", "model: got .*bare without a tokenizer", FileNotFoundError)
    # Weights that would have to be unpickled are not read.
    tiny_folder(tmp_path / "old", "BERT")
    (tmp_path / "old" / "model.safetensors").rename(tmp_path / "old" / "pytorch_model.bin")
    refused(tmp_path / "old", "model: got .*old, which could not be read; expected .* with weights as safetensors")
    # A body has no weights for a language model's readout, and random ones are no model.
    tiny_folder(tmp_path / "body", "GPT-2", tie_word_embeddings=False)
    with pytest.raises(ValueError, match="model: got .*body without weights for lm_head.weight"):
        load_model(tmp_path / "body", language=True)
    # Code that comes with a model is not run.
    tiny_folder(tmp_path / "code", "BERT")
    config = json.loads((tmp_path / "code" / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (tmp_path / "code" / "config.json").write_text(json.dumps(config))
    (tmp_path / "code" / "own.py").write_text("raise SystemExit('code of a model was run')")
    refused(tmp_path / "code", "model: got one of type 'own'; expected one of the families")

    # A name that is no folder is looked for on the hub.
    def hub(name, file, **options):
        raise OSError("no such model\non the hub")

    monkeypatch.setattr(pretrained, "cached_file", hub)
    refused(
        "someone/some-model", r"model: got someone/some-model, which could not be read; .*\(no such model on the hub\)"
    )


# What an odd entry may be, of every type of JSON.
ODD = [None, True, 0, -1, 3, 2.5, float("inf"), 10**12, "odd", "someone/kernel", [], [1], {}, {"a": [None]}]


@pytest.mark.parametrize(("name", "task"), [("BERT", "ForSequenceClassification"), ("Llama", "ForCausalLM")])
def test_odd_entries_of_a_configuration_are_refused_or_harmless(tmp_path, name, task):
    place = tiny_folder(tmp_path, name, task) / "config.json"
    whole = json.loads(place.read_text())
    entries = [*whole, "attn_implementation", "dtype", "torch_dtype", "num_labels", "rope_scaling", "layer_types"]
    for number, entry in enumerate(entries):
        # Each entry with some of the values, and each value with some of the entries: all pairs take minutes.
        for value in ODD[number % 7 :: 7]:
            place.write_text(json.dumps(whole | {entry: value}))
            with suppress(ValueError, FileNotFoundError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load_model(tmp_path, language=name == "Llama")


def test_damaged_files_of_a_model_are_refused_or_harmless(folder, tmp_path):
    shutil.copytree(folder / "bert", tmp_path / "bert")
    for file in sorted((tmp_path / "bert").iterdir()):
        whole = file.read_bytes()
        for place in range(0, min(len(whole), 3000), 250):
            flipped = bytes([whole[place] ^ (1 << place % 7)])
            for damaged in (whole[:place], whole[:place] + flipped + whole[place + 1 :]):
                file.write_bytes(damaged)
                with suppress(ValueError, FileNotFoundError):
                    load_model(tmp_path / "bert", language=False)
        file.write_bytes(whole)
    load_model(tmp_path / "bert", language=False)


@pytest.mark.parametrize(
    "content", ["", "{", "{}", "[]", '["a"]', "[[1, 2], [3]]", "[[1, 2, 3]]", "[1]", "[[null, 1]]"]
)
def test_a_damaged_point_of_a_comparison_is_named(tmp_path, content):
    points = _Points(tmp_path, ["settings"])
    assert points("random order", 0, (2,), lambda: [[0, 1], [2, 3]]) == [[0, 1], [2, 3]]
    assert points("random order", 0, (2,), lambda: pytest.fail("computed again")) == [[0, 1], [2, 3]]
    (file,) = tmp_path.rglob("*.json")
    file.write_text(content)
    with pytest.raises(ValueError, match="random-order-0.json"):
        points("random order", 0, (2,), list)


def test_only_safetensors_are_read_whatever_the_folder_says(folder, tmp_path, monkeypatch):
    def refused(message, **entries):
        (place / "config.json").write_text(json.dumps(whole | entries))
        with pytest.raises(ValueError, match=message):
            load_model(place, language=False)

    place = tmp_path / "bert"
    shutil.copytree(folder / "bert", place)
    whole = json.loads((place / "config.json").read_text())
    weights = load_file(place / "model.safetensors")
    monkeypatch.setattr(torch, "load", lambda *given, **options: pytest.fail("weights were unpickled"))
    # Other entries that lead to other weights, or to code on the hub, also inside of other configurations.
    refused("config.json: got an entry 'transformers_weights'", transformers_weights="adapter_model.bin")
    refused("config.json: got an entry 'quantization_config'", text_config={"quantization_config": {"bits": 8}})
    refused("config.json: got attn_implementation = 'org/kernel'", attn_implementation="org/kernel")
    refused(
        "config.json: got _attn_implementation = 'org/kernel'", inner=[{"_attn_implementation": {"": "org/kernel"}}]
    )
    refused("config.json: got num_hidden_layers = 1000000000; expected at most 1000", num_hidden_layers=10**9)
    (place / "model.safetensors").rename(place / "model-1.safetensors")
    torch.save(weights, place / "pytorch_model.bin")
    refused("model: got .*bert, which could not be read; .*there is no model.safetensors")
    (place / "pytorch_model.bin").rename(place / "weights.bin")
    index = place / "model.safetensors.index.json"
    for name in ("weights.bin", "../bert/model-1.safetensors", str(place / "model-1.safetensors"), "..safetensors", 7):
        index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, name)}))
        refused("model.safetensors.index.json: got weights in .*; expected names of safetensors files beside it")
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, "model-2.safetensors")}))
    refused("there is no model-2.safetensors, which model.safetensors.index.json names")
    # A whole index is read, with or without metadata.
    index.write_text(json.dumps({"weight_map": dict.fromkeys(weights, "model-1.safetensors")}))
    (place / "config.json").write_text(json.dumps(whole))
    model, _ = load_model(place, language=False)
    expected, _ = load_model(folder / "bert", language=False)
    assert all(torch.equal(tensor, expected.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", [*FILES, "pruned/notes.txt", "masked/notes.txt", "points"])
def test_files_of_others_are_refused_before_anything_is_computed(folder, tmp_path, name, monkeypatch):
    monkeypatch.setattr(heads, "read_task", lambda *given, **options: pytest.fail("work began"))
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(ValueError, match=r"(out|folder): got .*, (a file that thermoformer did not write|which)"):
        run_heads(folder / "bert", tmp_path / "out", task=folder / "labelled.tsv", masked=True)
    found = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert found == [tmp_path / "out" / name] and found[0].read_text() == "mine"


def test_a_file_in_the_place_of_the_folder_is_left(folder, tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(ValueError, match="out: got .*notes, which is a file; expected a folder"):
        run_heads(folder / "bert", tmp_path / "notes", task=folder / "labelled.tsv")
    assert (tmp_path / "notes").read_text() == "mine"

"""Pruned models on disk: what is written comes back, and anything else is refused with its reason."""

from __future__ import annotations

import copy
import json
import resource

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from tiny_models import CAUSAL, MODELS, SEQUENCES, answer, tiny_inputs, tiny_model, tiny_tokenizer  # noqa: E402

from thermoformer.transformers import (  # noqa: E402
    adapter_for,
    export_masked,
    head_masks,
    load_pruned,
    prune_heads,
    save_pruned,
)
from thermoformer.transformers.surgery import restore_heads  # noqa: E402

HEADS = [(0, 0), (0, 1), (0, 2), (0, 3)]


def edit(file, **entries):
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@pytest.fixture
def saved(tmp_path):
    return save_pruned(prune_heads(tiny_model("BERT"), [*HEADS, (1, 2)]), tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "task"),
    [
        *((name, "Model") for name in MODELS),
        *SEQUENCES.items(),
        *CAUSAL.items(),
        ("BERT", "ForMaskedLM"),
        ("ALBERT", "ForMaskedLM"),
        *((name, "ForQuestionAnswering") for name in ("BERT", "GPT-2", "Llama")),
    ],
)
def test_what_is_saved_comes_back(name, task, tmp_path):
    model, inputs = tiny_model(name, task), tiny_inputs(name)
    heads = HEADS + ([(2, 1), (2, 3)] if adapter_for(model).layers > 2 else [])
    pruned = prune_heads(model, heads)
    folder = save_pruned(pruned, tmp_path / "deep" / "model")
    state = torch.get_rng_state()
    loaded = load_pruned(folder)
    assert type(loaded) is type(pruned) and not loaded.training and torch.equal(torch.get_rng_state(), state)
    assert adapter_for(loaded).kept == adapter_for(pruned).kept
    assert loaded.num_parameters() == pruned.num_parameters()
    torch.testing.assert_close(answer(loaded, inputs), answer(pruned, inputs), rtol=0, atol=0)
    eager = load_pruned(folder, device="cpu", attention="eager")
    assert eager.config._attn_implementation == "eager"
    torch.testing.assert_close(answer(eager, inputs), answer(pruned, inputs), rtol=1e-4, atol=1e-4)
    assert {file.name for file in folder.parent.iterdir()} == {"model"}


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_precision_and_generation_settings_are_kept(precision, tmp_path):
    model = tiny_model("Llama", "ForCausalLM", tie_word_embeddings=True).to(getattr(torch, precision))
    model.generation_config.max_new_tokens = 5
    pruned = prune_heads(model, HEADS)
    loaded = load_pruned(save_pruned(pruned, tmp_path / "model"))
    assert loaded.dtype == pruned.dtype and loaded.generation_config.max_new_tokens == 5
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    inputs = tiny_inputs("Llama", padding="left")
    assert torch.equal(loaded.generate(**inputs, do_sample=False), pruned.generate(**inputs, do_sample=False))


def test_a_loaded_model_can_be_pruned_and_saved_again_in_its_place(saved):
    again = prune_heads(load_pruned(saved), [(2, 0)])
    assert save_pruned(again, saved) == saved
    assert adapter_for(load_pruned(saved)).kept == ((), (0, 1, 3), (1, 2, 3))
    assert [file.name for file in saved.parent.iterdir()] == ["model"]


def test_a_body_without_pooling_layer(tmp_path):
    whole = tiny_model("BERT")
    model = transformers.BertModel(whole.config, add_pooling_layer=False)
    loaded = load_pruned(save_pruned(prune_heads(model, HEADS), tmp_path / "model"))
    assert loaded.pooler is None
    for heads in ([], [(0, 1), (1, 1), (2, 1)]):  # plain loading would make one up
        vit = prune_heads(transformers.ViTModel(tiny_model("ViT").config, add_pooling_layer=False), heads)
        assert "load_pruned" in (save_pruned(vit, tmp_path / "vit") / "README.md").read_text()


def test_a_tokenizer_goes_along(saved, tmp_path):
    class Words:
        def save_pretrained(self, folder):
            (folder / "words.txt").write_text("one two")

    model = load_pruned(saved)
    assert (save_pruned(model, tmp_path / "second", tokenizer=Words()) / "words.txt").is_file()
    assert (export_masked(model, [], tmp_path / "third", tokenizer=Words()) / "words.txt").is_file()
    with pytest.raises(TypeError, match="tokenizer: got a str; expected a tokenizer"):
        save_pruned(model, tmp_path / "fourth", tokenizer="bert")


def test_what_cannot_be_loaded_is_not_saved(tmp_path):
    class Own(transformers.BertModel):
        pass

    with pytest.raises(ValueError, match="model: got a Own of .*; expected a class of transformers itself"):
        save_pruned(Own(tiny_model("BERT").config), tmp_path / "model")
    model = tiny_model("BERT")
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"other weights than its configuration says \(extra.bias, extra.weight\)"):
        save_pruned(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [save_pruned, lambda model, folder: export_masked(model, [], folder)])
def test_folders_of_others_are_left_alone(write, tmp_path):
    model, folder = tiny_model("BERT"), tmp_path / "folder"
    folder.mkdir()
    write(model, folder)
    write(model, folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious.txt").write_text("mine")
    with pytest.raises(ValueError, match="folder: got .*other, which holds something else; .* left as it is"):
        write(model, other)
    with pytest.raises(ValueError, match="precious.txt, which is a file"):
        write(model, other / "precious.txt")
    assert (other / "precious.txt").read_text() == "mine" and len(list(tmp_path.iterdir())) == 2


def test_writing_that_breaks_off_leaves_the_old_folder(saved, monkeypatch):
    model = load_pruned(saved)
    monkeypatch.setattr("thermoformer.transformers.files.save_file", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_pruned(prune_heads(model, [(2, 2)]), saved)
    assert adapter_for(load_pruned(saved)).kept == adapter_for(model).kept
    assert [file.name for file in saved.parent.iterdir()] == ["model"]


def test_folders_that_are_not_whole(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere without pruned_heads.json; expected one of `save_pruned`"):
        load_pruned(tmp_path / "nowhere")
    for name in ("model.safetensors", "config.json", "pruned_heads.json"):
        (saved / name).unlink()
        with pytest.raises(FileNotFoundError, match=f"without {name}"):
            load_pruned(saved)


def test_numbers_that_are_not_finite_come_back(tmp_path):
    model = prune_heads(tiny_model("BERT"), [(0, 1)])
    model.config.bounds = [0.0, float("inf")]
    folder = save_pruned(model, tmp_path / "model")
    assert "__float__" in (folder / "config.json").read_text()
    assert load_pruned(folder).config.bounds == [0.0, float("inf")]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"format": "other"}, "pruned_heads.json: got format 'other'; expected 'thermoformer pruned heads 1'"),
        ({"class": 7}, "got class = 7; expected a str"),
        ({"class": "os.system"}, "got a 'os.system' of the family 'BERT'; expected a class of transformers"),
        ({"class": "BertPreTrainedModel"}, "expected a class of transformers of a known family"),
        ({"class": "BertLayer"}, "expected a class of transformers of a known family"),
        ({"class": "GPT2Model"}, "got a 'GPT2Model' of the family 'BERT'"),
        ({"family": "T5"}, "got a 'BertModel' of the family 'T5'"),
        ({"family": "GPT-2", "class": "GPT2Model"}, "config.json: got model_type 'bert'; expected 'gpt2'"),
        ({"options": {"config": 1}}, "got options"),
        ({"heads": [4, 4]}, r"got heads \[4, 4\], .*; expected \[4, 4, 4\], as config.json says"),
        ({"kept": [[0]]}, "1 layers of heads kept"),
        ({"kept": [[], [0, 1, 9], [0]]}, r"got heads \[0, 1, 9\] kept in layer 1; expected rising numbers from 0 to 3"),
        ({"kept": [[], [1, 0], [0]]}, r"got heads \[1, 0\] kept in layer 1"),
        ({"kept": [[], 3, [0]]}, "got heads 3 kept in layer 1"),
        ({"kept": [[], [0, 1], [0, 1, 2, 3]]}, r"model.safetensors: got .*layer.1.* of shape .*; expected"),
        ({"config": {"model_type": "bert"}}, "got model_type: 'bert' in config; expected pairs"),
        ({"sha256": "0"}, "model.safetensors: got another checksum than when it was saved"),
    ],
)
def test_records_that_were_altered(saved, entries, message):
    edit(saved / "pruned_heads.json", **entries)
    with pytest.raises(ValueError, match=message):
        load_pruned(saved)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "gpt2"}, "config.json: got model_type 'gpt2'; expected 'bert', that of BertModel"),
        ({"quantization_config": {}}, "config.json: got an entry 'quantization_config'"),
        ({"attn_implementation": "someone/kernel"}, "config.json: got attn_implementation = 'someone/kernel'"),
        ({"hidden_size": "wide"}, "config.json: got entries"),
        ({"num_attention_heads": 8}, r"got heads \[4, 4, 4\], .*expected \[8, 8, 8\]"),
        ({"vocab_size": 41}, r"got embeddings.word_embeddings.weight of shape \(40, 32\); expected \(41, 32\)"),
        ({"add_cross_attention": True, "is_decoder": True}, "config.json: got entries that make no BertModel"),
    ],
)
def test_configurations_that_were_altered(saved, entries, message):
    edit(saved / "config.json", **entries)
    with pytest.raises(ValueError, match=message):
        load_pruned(saved)


def test_plain_loading_of_a_pruned_model_fails_rather_than_fill_in_random_heads(saved):
    for kind in (transformers.AutoModel, transformers.AutoModelForSequenceClassification, transformers.BertModel):
        for options in ({}, {"ignore_mismatched_sizes": True}):
            with pytest.raises(Exception, match="heads are pruned: load the folder with .*load_pruned"):
                kind.from_pretrained(saved, **options)


@pytest.mark.parametrize("heads", [HEADS, [(0, 1), (1, 1), (2, 1)]])
def test_a_pruned_model_saves_itself_as_trainers_do(heads, tmp_path):
    """Beside what else a trainer keeps in its folder, again and again."""
    folder = tmp_path / "run"
    (folder / "checkpoint-1").mkdir(parents=True)
    model = copy.deepcopy(prune_heads(tiny_model("Llama", "ForCausalLM", num_hidden_layers=3), heads))
    for _ in range(2):
        with torch.no_grad():
            model.lm_head.weight += 0.1
        model.save_pretrained(folder, state_dict=model.state_dict(), is_main_process=True)
    assert (folder / "checkpoint-1").is_dir()
    model.save_pretrained(folder / "none", is_main_process=False)
    assert not (folder / "none").exists()
    loaded = load_pruned(folder)
    assert adapter_for(loaded).kept == adapter_for(model).kept
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    with pytest.raises(ValueError, match="push_to_hub: got True; expected False"):
        model.save_pretrained(folder, push_to_hub=True)
    whole = restore_heads(model)
    whole.save_pretrained(tmp_path / "whole")
    assert (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole").num_parameters() == whole.num_parameters()
    )


def test_a_pruned_model_of_a_class_of_the_user_is_saved_as_transformers_does(tmp_path):
    class Own(transformers.BertModel):
        pass

    prune_heads(Own(tiny_model("BERT").config), [(0, 1)]).save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file() and not (tmp_path / "pruned_heads.json").exists()


def test_a_tokenizer_beside_a_pruned_model_is_read_by_transformers(tmp_path):
    folder = save_pruned(prune_heads(tiny_model("BERT"), HEADS), tmp_path / "model", tokenizer=tiny_tokenizer())
    assert transformers.AutoTokenizer.from_pretrained(folder)("the cat")["input_ids"] == [4, 6]


def test_wrong_ways_to_compute_attention(saved):
    with pytest.raises(ValueError, match="attention: got 'slow'; expected a way to compute it that works here"):
        load_pruned(saved, attention="slow")


def test_a_configuration_cannot_choose_how_attention_is_computed(saved):
    edit(saved / "config.json", _attn_implementation="flex_attention", attn_implementation="flash_attention_2")
    assert load_pruned(saved).config._attn_implementation == "sdpa"


def test_code_of_the_original_model_is_not_named_in_what_is_saved(tmp_path):
    model, tokenizer = tiny_model("BERT"), tiny_tokenizer()
    model.config.auto_map = tokenizer.init_kwargs["auto_map"] = {"AutoModel": "own.Model", "AutoTokenizer": ["own.T"]}
    for folder in (
        save_pruned(model, tmp_path / "pruned", tokenizer=tokenizer),
        export_masked(model, [(0, 1)], tmp_path / "masked", tokenizer=tokenizer),
    ):
        for name in ("config.json", "tokenizer_config.json"):
            assert "auto_map" not in json.loads((folder / name).read_text())
    # Folders of earlier versions have the entry. It is not used.
    edit(tmp_path / "pruned" / "config.json", auto_map={"AutoModel": "own.Model"})
    assert not hasattr(load_pruned(tmp_path / "pruned").config, "auto_map")


def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(ValueError, match="folder: got .*model, which cannot be written .*; expected a folder that"):
            save_pruned(tiny_model("BERT"), tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["pruned_heads.json", "config.json"])
@pytest.mark.parametrize(("text", "message"), [("{", "got no JSON"), ("[1]", "got a list; expected a JSON object")])
def test_malformed_json(saved, name, text, message):
    (saved / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name}: {message}"):
        load_pruned(saved)


def test_weights_that_were_altered(saved):
    file = saved / "model.safetensors"
    tensors = load_file(file)
    name = "encoder.layer.1.attention.self.query.weight"
    save_file(tensors | {name: tensors[name] + 1e-3}, file)
    with pytest.raises(ValueError, match="got another checksum than when it was saved"):
        load_pruned(saved)
    save_file(tensors | {name: tensors[name].to(torch.int32)}, file)
    with pytest.raises(ValueError, match=f"got {name} of type torch.int32; expected torch.float32"):
        load_pruned(saved)
    save_file(tensors | {"more": torch.ones(1)}, file)
    with pytest.raises(ValueError, match=r"got other weights than the model has \(more\); .*saved with version"):
        load_pruned(saved)
    save_file({name: tensors[name]}, file)
    with pytest.raises(ValueError, match=r"got other weights than the model has \(.* and \d+ more\)"):
        load_pruned(saved)
    file.write_bytes(b"not weights")
    with pytest.raises(ValueError, match="model.safetensors: got a file that cannot be read"):
        load_pruned(saved)


@pytest.mark.parametrize(("name", "task"), [*((name, "Model") for name in MODELS), *CAUSAL.items()])
def test_masked_checkpoints_are_plain_ones(name, task, tmp_path):
    model, inputs = tiny_model(name, task), tiny_inputs(name)
    heads = [(0, 1), (adapter_for(model).layers - 1, 3)]
    folder = export_masked(model, heads, tmp_path / "model")
    assert adapter_for(model).projection_weight(0)[adapter_for(model).columns(0, 1)].abs().min() > 0
    plain = type(model).from_pretrained(folder)
    assert plain.num_parameters() == model.num_parameters() and adapter_for(plain).kept == adapter_for(model).kept
    with head_masks(model, heads):
        expected = answer(model, inputs)
    torch.testing.assert_close(answer(plain, inputs), expected, rtol=1e-5, atol=1e-5)
    if task == "Model":
        assert type(transformers.AutoModel.from_pretrained(folder)) is type(model)


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama"])
def test_a_pruned_model_exported_in_full_size(name, tmp_path):
    model, inputs = tiny_model(name), tiny_inputs(name)
    folder = export_masked(prune_heads(model, HEADS), [(1, 2)], tmp_path / "model")
    with head_masks(model, [*HEADS, (1, 2)]):
        expected = answer(model, inputs)
    torch.testing.assert_close(answer(type(model).from_pretrained(folder), inputs), expected, rtol=1e-4, atol=1e-5)
    assert json.loads((folder / "masked_heads.json").read_text())["heads"] == [list(head) for head in [*HEADS, (1, 2)]]
    with pytest.raises(ValueError, match=r"heads: got \(0, 0\), which is removed already"):
        export_masked(prune_heads(model, HEADS), [(0, 0)], tmp_path / "model")

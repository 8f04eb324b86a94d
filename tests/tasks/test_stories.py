from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from thermoformer.tasks import stories, stories_weights, write_stories_folder
from thermoformer.tasks.stories import read_llama, read_tokens

# Width, hidden width, layers, heads, heads of keys and values, tokens and positions.
SMALL = (8, 6, 2, 2, 1, 5, 3)


def binary(path: Path, header=SMALL, *, extra=0):
    """A small file in the published form whose numbers count up, and where each tensor starts."""
    width, hidden, layers, heads, pairs, tokens, positions = header
    of_head = width // heads
    sizes = {
        "embedding": abs(tokens) * width,
        "attention norm": layers * width,
        "queries": layers * width * width,
        "keys": layers * pairs * of_head * width,
        "values": layers * pairs * of_head * width,
        "output": layers * width * width,
        "feed-forward norm": layers * width,
        "gate": layers * width * hidden,
        "down": layers * width * hidden,
        "up": layers * width * hidden,
        "norm": width,
        "rotary": positions * of_head,
        "readout": width * abs(tokens) if tokens < 0 else 0,
    }
    numbers = np.arange(sum(sizes.values()) + extra, dtype="<f4")
    path.write_bytes(struct.pack("<7i", *header) + numbers.tobytes())
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()])[:-1].tolist(), strict=True))
    return path, starts


def test_tensors_lie_where_the_format_says(tmp_path):
    file, starts = binary(tmp_path / "small.bin")
    config, weights = read_llama(file)
    first = {name: float(array.ravel()[0]) for name, array in weights.items()}
    assert first["model.embed_tokens.weight"] == starts["embedding"] and first["model.norm.weight"] == starts["norm"]
    for name, start, size in (
        ("input_layernorm", "attention norm", 8),
        ("self_attn.q_proj", "queries", 64),
        ("self_attn.k_proj", "keys", 32),
        ("self_attn.v_proj", "values", 32),
        ("self_attn.o_proj", "output", 64),
        ("post_attention_layernorm", "feed-forward norm", 8),
        ("mlp.gate_proj", "gate", 48),
        ("mlp.down_proj", "down", 48),
        ("mlp.up_proj", "up", 48),
    ):
        for layer in range(2):
            assert first[f"model.layers.{layer}.{name}.weight"] == starts[start] + layer * size
    assert weights["model.layers.0.mlp.down_proj.weight"].shape == (8, 6)
    # Of a head of four rows the even ones come first, then the odd ones.
    rows = (weights["model.layers.0.self_attn.q_proj.weight"][:, 0] - starts["queries"]) / 8
    assert rows.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert config["num_key_value_heads"] == 1 and config["tie_word_embeddings"] and "lm_head.weight" not in weights


def test_a_readout_of_its_own_is_read(tmp_path):
    file, starts = binary(tmp_path / "small.bin", (8, 6, 2, 2, 1, -5, 3))
    config, weights = read_llama(file)
    assert config["vocab_size"] == 5 and not config["tie_word_embeddings"]
    assert weights["lm_head.weight"].shape == (5, 8) and weights["lm_head.weight"][0, 0] == starts["readout"]


def test_files_of_another_kind_are_refused(tmp_path):
    file, _ = binary(tmp_path / "small.bin", extra=1)
    with pytest.raises(ValueError, match="small.bin with .* bytes of weights; expected .*as its head says"):
        read_llama(file)
    for content in (b"", b"short"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=f"small.bin of {len(content)} bytes; expected a head of seven"):
            read_llama(file)
    for header in ((8, 6, 2, 3, 1, 5, 3), (8, 6, 2, 2, 0, 5, 3), (2**30,) * 7):
        file.write_bytes(struct.pack("<7i", *header) + bytes(400))
        with pytest.raises(ValueError, match="small.bin with dim .*expected sizes of a Llama-type decoder"):
            read_llama(file)


def test_damaged_tokens_are_refused(tmp_path):
    file = tmp_path / "tokens.bin"
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", b"a", b" a"]
    content = struct.pack("<i", 6) + b"".join(
        struct.pack("<fi", -place, len(piece)) + piece for place, piece in enumerate(pieces)
    )
    file.write_bytes(content)
    assert [token.text for token in read_tokens(file, 5)] == ["<unk>", "<s>", "</s>", "a", " a"]
    with pytest.raises(ValueError, match="tokens.bin with 5 tokens; expected 6"):
        read_tokens(file, 6)
    length_below_zero = content[:8] + struct.pack("<i", -8) + content[12:]
    for damaged in (content[:-1], content[:20], content.replace(b"a", b"\xff"), length_below_zero):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="tokens.bin"):
            read_tokens(file, 5)


def test_the_published_weights(real_data):
    from safetensors.numpy import load_file

    config, weights = stories_weights()
    known = load_file(real_data / "stories260K" / "hf" / "model.safetensors")
    assert weights.keys() == known.keys()
    for name, array in known.items():
        np.testing.assert_array_equal(weights[name], array)
    given = json.loads((real_data / "stories260K" / "hf" / "config.json").read_text())
    assert {name: given[name] for name in config} == config


@pytest.fixture
def folder(real_data, tmp_path):
    """stories260K as a folder of transformers."""
    pytest.importorskip("tokenizers")
    return write_stories_folder(tmp_path / "stories")


def best_score_merges(text: str, tokens: list[stories.Token]) -> list[int]:
    """Tokens of a text without any library: again and again the neighbours whose union has the best score."""
    number = {token.text: place for place, token in enumerate(tokens)}
    found = []
    for character in (" " + text) if text else "":
        if character in number:
            found.append(number[character])
        else:
            found += [3 + byte for byte in character.encode()]
    while True:
        best = None
        for place in range(len(found) - 1):
            if min(found[place : place + 2]) < 259:  # bytes
                continue
            union = number.get(tokens[found[place]].text + tokens[found[place + 1]].text)
            if union is not None and (best is None or tokens[union].score > best[0]):
                best = (tokens[union].score, place, union)
        if best is None:
            return found
        found[best[1] : best[1] + 2] = [best[2]]


def test_tokens_are_those_of_greedy_merges(folder, real_data):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = read_tokens(real_data / "stories260K" / "tok512.bin", 512)
    assert [token.text for token in tokens[3:259]] == [f"<0x{byte:02X}>" for byte in range(256)]
    shakespeare = (real_data / "text" / "tinyshakespeare.txt").read_text()
    draw = random.Random(0)
    texts = [
        "",
        "a",
        "aaaaaaa",
        "......",
        "!!!!\n\n",
        "  two  spaces ",
        "naïve café — “so” 😀日本\t",
        "hehehehe thethe",
    ]
    texts += [shakespeare[start : start + 150] for start in (draw.randrange(1_000_000) for _ in range(60))]
    texts += ["".join(draw.choices("the anwsd.,é\n", k=40)) for _ in range(100)]
    texts += ["".join(draw.choices([token.text for token in tokens[259:]], k=25)) for _ in range(100)]
    for text in texts:
        encoded = tokenizer.encode(text)
        assert encoded.ids == [1, *best_score_merges(text, tokens)], text
        assert tokenizer.decode(encoded.ids) == text


def test_transformers_reads_the_folder(folder, real_data):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    assert {file.name for file in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "Once upon a time, there was a little girl."
    numbers = tokenizer(text)["input_ids"]
    assert numbers[0] == tokenizer.bos_token_id == 1 and tokenizer.eos_token_id == 2
    assert tokenizer.decode(numbers, skip_special_tokens=True) == text and tokenizer.model_max_length == 512
    models = [
        transformers.AutoModelForCausalLM.from_pretrained(path) for path in (folder, real_data / "stories260K" / "hf")
    ]
    with torch.no_grad():
        ours, known = (model(torch.tensor([numbers])).logits for model in models)
    torch.testing.assert_close(ours, known, atol=1e-5, rtol=0)
    # The model knows its language: after "Once upon a" comes "time".
    assert ours[0, 3].argmax() == numbers[4]


def test_a_folder_is_written_again_but_not_over_other_files(folder, real_data, tmp_path):
    assert write_stories_folder(folder) == folder
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="folder: got .*which holds other files; expected an empty folder"):
        write_stories_folder(tmp_path)
    with pytest.raises(ValueError, match="folder: got .*which is a file; expected a folder"):
        write_stories_folder(tmp_path / "config.json")

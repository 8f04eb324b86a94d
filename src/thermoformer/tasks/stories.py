"""stories260K: a real decoder of the Llama kind that tells children's stories, small enough for any machine.

Five layers of eight heads (four of keys and values), width 64, 512 tokens, trained on TinyStories (Eldan and Li 2023).
The published files hold the weights as plain numbers and the tokens with their scores; here they are read, and written
as a folder that the library transformers loads.
"""

from __future__ import annotations

import json
import math
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._files import write_safely
from .._validation import fail
from .files import data_file

WEIGHTS = "stories260K/stories260K.bin"
TOKENS = "stories260K/tok512.bin"
# The first three tokens, which are written with line ends in the file of tokens.
UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"

# What sentencepiece writes for a space, so that tokens can be listed.
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_HEADER = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")


class Token(NamedTuple):
    """One token: its text, with real spaces, and its score; of two possible merges the higher score comes first."""

    text: str
    score: float


def stories_weights() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The configuration of stories260K and its weights by their names in transformers' LlamaForCausalLM.

    Returns:
        config: what the class LlamaConfig takes, as in a config.json.
        weights: float32 arrays, [output, input] where they are matrices.
    """
    return read_llama(data_file(WEIGHTS))


def read_llama(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A Llama-type decoder in the published binary form: seven int32, then float32 tensors, layer after layer.

    Arguments:
        file: width, hidden width, layers, heads, heads of keys and values, tokens (negative where the readout is not
            the embedding again) and positions; then the tensors.
    """
    content = file.read_bytes()
    if len(content) < 4 * len(_HEADER):
        raise fail("file", f"{file} of {len(content)} bytes", "a head of seven int32, then float32 weights")
    width, hidden, layers, heads, pairs, signed_tokens, positions = struct.unpack_from("<7i", content)
    tokens, shared = abs(signed_tokens), signed_tokens > 0
    sizes = (width, hidden, layers, heads, pairs, tokens, positions)
    # The limit keeps the sum below from growing absurd on a file of another kind.
    if not all(0 < size < 2**24 for size in sizes) or width % (2 * heads) or heads % pairs:
        described = ", ".join(f"{name} {size}" for name, size in zip(_HEADER, sizes, strict=True))
        raise fail("file", f"{file} with {described}", "sizes of a Llama-type decoder: positive, whole heads")
    of_head = width // heads
    shapes = {
        "embed_tokens": (tokens, width),
        "input_layernorm": (layers, width),
        "self_attn.q_proj": (layers, width, width),
        "self_attn.k_proj": (layers, pairs * of_head, width),
        "self_attn.v_proj": (layers, pairs * of_head, width),
        "self_attn.o_proj": (layers, width, width),
        "post_attention_layernorm": (layers, width),
        "mlp.gate_proj": (layers, hidden, width),
        "mlp.down_proj": (layers, width, hidden),
        "mlp.up_proj": (layers, hidden, width),
        "norm": (width,),
        # Cosines and sines of the rotary positions, which every reader computes itself.
        "rotary": (2, positions, of_head // 2),
        **({} if shared else {"lm_head": (tokens, width)}),
    }
    numbers = np.frombuffer(content, "<f4", offset=4 * len(_HEADER), count=(len(content) - 4 * len(_HEADER)) // 4)
    lengths = [math.prod(shape) for shape in shapes.values()]
    expected = sum(lengths)
    if len(numbers) != expected or len(content) % 4:
        raise fail("file", f"{file} with {len(content) - 28} bytes of weights", f"{4 * expected}, as its head says")
    parts = np.split(numbers.astype(np.float32), np.cumsum(lengths)[:-1])
    found = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
    weights = {"model.embed_tokens.weight": found["embed_tokens"], "model.norm.weight": found["norm"]}
    for name, stacked in found.items():
        if name in ("embed_tokens", "norm", "rotary", "lm_head"):
            continue
        for layer, matrix in enumerate(stacked):
            if name in ("self_attn.q_proj", "self_attn.k_proj"):
                matrix = _half_turned(matrix, of_head)
            weights[f"model.layers.{layer}.{name}.weight"] = matrix
    if not shared:
        weights["lm_head.weight"] = found["lm_head"]
    return _configuration(sizes, shared), weights


def read_tokens(file: Path, count: int) -> list[Token]:
    """The tokens in the published binary form: the longest length, then score (float32), length (int32) and bytes.

    Arguments:
        count: how many tokens the model knows.
    """
    content = file.read_bytes()
    tokens, place = [], 4
    try:
        while place < len(content):
            score, length = struct.unpack_from("<fi", content, place)
            (piece,) = struct.unpack_from(f"<{length}s", content, place + 8)
            tokens.append(Token(piece.decode("utf-8"), score))
            place += 8 + length
    except (struct.error, UnicodeDecodeError) as error:
        raise fail("file", f"{file}, which is damaged at byte {place} ({error})", f"{count} tokens") from error
    if len(tokens) != count:
        raise fail("file", f"{file} with {len(tokens)} tokens", f"{count}, as the model has")
    return [Token(text, token.score) for text, token in zip((UNKNOWN, BEGIN, END), tokens, strict=False)] + tokens[3:]


def write_stories_folder(folder: str | Path) -> Path:
    """stories260K as a folder that transformers loads: `AutoModelForCausalLM` and `AutoTokenizer.from_pretrained`.

    The tokenizer writes a space before the text, as the model was trained, and a token `<s>` (number 1) before that;
    line ends, and characters that no token has, become bytes. Spaces that follow each other are all kept.

    Arguments:
        folder: created where it is absent; a folder with other files is refused.
    """
    import safetensors.numpy

    config, weights = stories_weights()
    tokenizer = _tokenizer(read_tokens(data_file(TOKENS), config["vocab_size"]))
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise fail("folder", f"{folder}, which is a file", "a folder, or a name that is free")
    if path.is_dir() and any(path.iterdir()) and not _same(path / "config.json", config):
        raise fail("folder", f"{folder}, which holds other files", "an empty folder, or a name that is free")
    path.mkdir(parents=True, exist_ok=True)
    special = {"bos_token": BEGIN, "eos_token": END, "unk_token": UNKNOWN}
    documents = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "use_cache": True},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            **special,
        },
    }
    for name, document in documents.items():
        write_safely(path / name, json.dumps(document, indent=2) + "\n", name="folder")
    write_safely(path / "tokenizer.json", tokenizer.to_str(pretty=True), name="folder")
    content = safetensors.numpy.save(weights, metadata={"format": "pt"})
    write_safely(path / "model.safetensors", content, name="folder")
    return path


def _half_turned(matrix: np.ndarray, of_head: int) -> np.ndarray:
    """Rows of queries or keys in transformers' order: the published files turn neighbours, transformers halves."""
    rows, width = matrix.shape
    return np.ascontiguousarray(matrix.reshape(-1, of_head // 2, 2, width).swapaxes(1, 2).reshape(rows, width))


def _configuration(sizes: tuple[int, ...], shared: bool) -> dict[str, Any]:
    width, hidden, layers, heads, pairs, tokens, positions = sizes
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "dtype": "float32",
        "eos_token_id": 2,
        "head_dim": width // heads,
        "hidden_act": "silu",
        "hidden_size": width,
        "initializer_range": 0.02,
        "intermediate_size": hidden,
        "max_position_embeddings": positions,
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": pairs,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": shared,
        "use_cache": True,
        "vocab_size": tokens,
    }


def _tokenizer(tokens: list[Token]) -> Any:
    """The tokens as a model of byte pair encoding: every way to put a token together is a merge, best score first."""
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
    except ImportError as error:
        raise ImportError(
            "tokenizers: got no such package; expected it installed, as it is with the package transformers"
        ) from error

    texts = [token.text.replace(" ", _SPACE) for token in tokens]
    special = (UNKNOWN, BEGIN, END)
    pieces = {
        text: token.score
        for text, token in zip(texts, tokens, strict=True)
        if text not in special and not _BYTE.fullmatch(text)
    }
    merges = [
        (text[:cut], text[cut:])
        for text in sorted(pieces, key=lambda text: -pieces[text])
        for cut in range(1, len(text))
        if text[:cut] in pieces and text[cut:] in pieces
    ]
    places = {text: place for place, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(places, merges, unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN}:1 $B:1", special_tokens=[(BEGIN, places[BEGIN])]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return tokenizer


def _same(file: Path, document: dict[str, Any]) -> bool:
    try:
        return json.loads(file.read_text(encoding="utf-8")) == document
    except (OSError, ValueError):
        return False

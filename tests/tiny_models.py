"""Pretrained architectures in a tiny size with random weights, and inputs for them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import flash_attention_mask

from thermoformer.transformers import Examples

LAYERS, HEADS, HIDDEN, VOCABULARY = 3, 4, 32, 40

_TEXT = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
_BERT = _TEXT | {"intermediate_size": 48, "max_position_embeddings": 32}
_LLAMA = _BERT | {"num_attention_heads": 2 * HEADS, "num_key_value_heads": HEADS}
_GROUPS = {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}

# Name: folder in transformers, beginning of the names of its classes, sizes.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT": ("bert", "Bert", _BERT),
    "RoBERTa": ("roberta", "Roberta", _BERT | {"pad_token_id": 0}),
    "XLM-RoBERTa": ("xlm_roberta", "XLMRoberta", _BERT | {"pad_token_id": 0}),
    "DistilBERT": ("distilbert", "DistilBert", _BERT),
    "ALBERT": ("albert", "Albert", _BERT | {"embedding_size": 16}),
    "ALBERT of groups": ("albert", "Albert", _BERT | {"embedding_size": 16} | _GROUPS),
    "GPT-2": ("gpt2", "GPT2", _TEXT | {"n_positions": 32}),
    "Llama": ("llama", "Llama", _LLAMA | {"attention_bias": True}),
    "Mistral": ("mistral", "Mistral", _LLAMA | {"sliding_window": 4}),
    "Qwen2": ("qwen2", "Qwen2", _LLAMA),
    "ViT": ("vit", "ViT", _TEXT | {"intermediate_size": 48, "image_size": 8, "patch_size": 4}),
}
# The other families, for what is tested of every one: smaller still, and with what sets a family apart.
_SMALL = _BERT | {"num_hidden_layers": 2, "intermediate_size": 16}
_GROUPED = _SMALL | {"num_attention_heads": 2 * HEADS, "num_key_value_heads": HEADS, "head_dim": 8}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
_LOCAL = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
_IMAGE = {"num_hidden_layers": 2, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": 16}
_IMAGE |= {"image_size": 8, "patch_size": 4}
_BOTH: dict[str, Any] = {"d_model": HIDDEN, "decoder_start_token_id": 1}
for _side in ("encoder", "decoder"):
    _BOTH |= {f"{_side}_layers": 2, f"{_side}_attention_heads": HEADS, f"{_side}_ffn_dim": 16}
_T5 = {"vocab_size": VOCABULARY, "d_model": HIDDEN, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": HEADS}
OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ELECTRA": ("electra", "Electra", _SMALL | {"embedding_size": 16}),
    "DeBERTa-v2": (
        "deberta_v2",
        "DebertaV2",
        _SMALL | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4},
    ),
    "ModernBERT": ("modernbert", "ModernBert", _SMALL | {"local_attention": 4, "cls_token_id": 1, "sep_token_id": 2}),
    "MPNet": ("mpnet", "MPNet", _SMALL),
    "Mixtral": ("mixtral", "Mixtral", _GROUPED | _EXPERTS),
    "Qwen3": ("qwen3", "Qwen3", _GROUPED | _LOCAL | {"use_sliding_window": True}),
    "Gemma": ("gemma", "Gemma", _GROUPED),
    "Gemma 2": ("gemma2", "Gemma2", _GROUPED | _LOCAL | {"query_pre_attn_scalar": 8}),
    "Gemma 3": ("gemma3", "Gemma3Text", _GROUPED | _LOCAL | {"query_pre_attn_scalar": 8}),
    "Phi": ("phi", "Phi", _SMALL),
    "Phi-3": ("phi3", "Phi3", _GROUPED | {"head_dim": 4}),
    "SmolLM3": ("smollm3", "SmolLM3", _GROUPED | {"no_rope_layers": [1, 0]}),
    "OLMo2": ("olmo2", "Olmo2", _GROUPED),
    "GPT-OSS": ("gpt_oss", "GptOss", _GROUPED | _EXPERTS | _LOCAL),
    "GPT-NeoX": ("gpt_neox", "GPTNeoX", _SMALL),
    "GPT-Neo": (
        "gpt_neo",
        "GPTNeo",
        {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_layers": 2, "num_heads": HEADS, "window_size": 4}
        | {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 32},
    ),
    "OPT": ("opt", "OPT", _SMALL | {"ffn_dim": 16, "word_embed_proj_dim": HIDDEN}),
    "BLOOM": ("bloom", "Bloom", {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "n_layer": 2, "n_head": HEADS}),
    "DeiT": ("deit", "DeiT", _IMAGE),
    "DINOv2": ("dinov2", "Dinov2", _IMAGE),
    "T5": ("t5", "T5", _T5),
    "mT5": ("mt5", "MT5", _T5),
    "BART": ("bart", "Bart", _BOTH | {"vocab_size": VOCABULARY, "max_position_embeddings": 32}),
    "Whisper": (
        "whisper",
        "Whisper",
        _BOTH | {"vocab_size": VOCABULARY, "num_mel_bins": 4, "max_source_positions": 5, "max_target_positions": 32},
    ),
    "CLIP": ("clip", "CLIP", {"text_config": _SMALL, "vision_config": _IMAGE, "projection_dim": 16}),
}
IMAGES = ("ViT", "DeiT", "DINOv2")
ENCODERS = ("BERT", "RoBERTa", "XLM-RoBERTa", "DistilBERT", "ALBERT", "ALBERT of groups", "ViT")
CAUSAL = {"GPT-2": "LMHeadModel", "Llama": "ForCausalLM", "Mistral": "ForCausalLM", "Qwen2": "ForCausalLM"}
SEQUENCES = {name: "ForSequenceClassification" for name in MODELS} | {"ViT": "ForImageClassification"}


def tiny_model(name: str, task: str = "Model", *, attention: str = "sdpa", seed: int = 0, **sizes: Any) -> Any:
    """A model in evaluation mode; all its weights, biases too, are random.

    Arguments:
        task: end of the class's name, as in "ForSequenceClassification".
        sizes: entries of the configuration besides the usual ones.
    """
    folder, prefix, usual = (MODELS | OTHERS)[name]
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    model_class = getattr(module, prefix + task)
    if name not in (*IMAGES, "CLIP"):
        sizes = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | sizes
    config = model_class.config_class(**usual | sizes)
    config._attn_implementation = attention if name in MODELS or model_class._supports_sdpa else "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = model_class(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.15 * torch.randn(parameter.shape)
    return model.eval()


def tiny_inputs(
    name: str, *, examples: int = 3, tokens: int = 6, padding: str = "right", seed: int = 1
) -> dict[str, torch.Tensor]:
    """A batch; all but the first example of a text are padded."""
    random = torch.Generator().manual_seed(seed)
    images = {"pixel_values": torch.randn(examples, 3, 8, 8, generator=random)}
    if name in IMAGES:
        return images
    mask = torch.ones(examples, tokens, dtype=torch.long)
    for example in range(1, examples):
        away = slice(tokens - example, None) if padding == "right" else slice(0, example)
        mask[example, away] = 0
    words = torch.randint(3, VOCABULARY, (examples, tokens), generator=random)
    if name == "Whisper":
        sounds = torch.randn(examples, 4, 10, generator=random)
        return {"input_features": sounds, "decoder_input_ids": words}
    others = images if name == "CLIP" else {"decoder_input_ids": words} if name in ("T5", "mT5", "BART") else {}
    return {"input_ids": words * mask, "attention_mask": mask} | others


def answer(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits, those of the beginning of an answer, or the last hidden states, at tokens that count."""
    with torch.no_grad():
        given = model(**inputs)
    names = ("logits", "start_logits", "last_hidden_state", "logits_per_image")
    found = next(given[name] for name in names if name in given)
    if found.ndim == 3 and "attention_mask" in inputs:
        found = found[inputs["attention_mask"].bool()]
    return found


def labelled(count: int = 24, classes: int = 2, seed: int = 0) -> Examples:
    """Texts whose class is told by the tokens in them."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % classes)
    rows = tuple(random.integers(3 + 6 * label, 9 + 6 * label, random.integers(3, 8)) for label in labels)
    return Examples({"input_ids": rows}, labels, classes, "labelled")


def images(count: int = 12, classes: int = 2) -> Examples:
    """Noise that a tiny ViT reads."""
    return Examples.from_images(np.random.default_rng(0).normal(size=(count, 3, 8, 8)), np.arange(count) % classes)


def sequences(count: int = 6, length: int = 9) -> Examples:
    """Random tokens for a language model."""
    return Examples.from_tokens(np.random.default_rng(0).integers(3, VOCABULARY, (count, length)))


def slope_in_mask(value: Any, head: int, mask: np.ndarray, step: float = 1e-2) -> float:
    """The slope of a function of a mask in the entry of one head, by finite differences."""
    masks = [mask.copy() for _ in range(2)]
    masks[0][head] += step
    masks[1][head] -= step
    return (value(masks[0]) - value(masks[1])) / (2 * step)


def random_heads(adapter: Any, count: int, seed: int) -> list[tuple[int, int]]:
    """So many different heads of a model."""
    heads = adapter.all_heads()
    order = torch.randperm(len(heads), generator=torch.Generator().manual_seed(seed))
    return [heads[index] for index in order[:count].tolist()]


# Words of the tiny tokenizer, after its special tokens.
WORDS = "the a cat dog bird tree sits runs sings falls on under red green old young good bad very so and but".split()


def tiny_tokenizer(*, beginnings: bool = False) -> Any:
    """A tokenizer of whole words that fits the tiny models.

    Arguments:
        beginnings: texts begin with a token of their own, as for decoders.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    places = {word: place for place, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(places, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"bos_token": "<s>"} if beginnings else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", **special)


def without_speed(record: dict[str, Any]) -> dict[str, Any]:
    """A record of `run_heads` less what no second run repeats."""
    found = dict(record)
    for name in ("before", "after"):
        found[name] = {key: value for key, value in record[name].items() if key != "examples_per_second"}
    return found


def tiny_folder(folder: Path, name: str, task: str = "Model", **sizes: Any) -> Path:
    """A folder with a tiny model and a tokenizer, as from the hub."""
    tiny_model(name, task, **sizes).save_pretrained(folder)
    tiny_tokenizer(beginnings=name in CAUSAL).save_pretrained(folder)
    return folder


def packed(module, query, key, value, mask, scaling=None, sliding_window=None, is_causal=None, **_) -> Any:
    """Attention called as flash attention is: a mask of two axes or none, grouped heads, no weights given back.

    Flash attention itself wants a GPU and a package of its own. `transformers.AttentionInterface` registers it.
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


AttentionInterface.register("packed", packed)
AttentionMaskInterface.register("packed", flash_attention_mask)

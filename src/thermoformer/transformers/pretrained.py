"""Pretrained models from a folder or the hub; nothing that comes with a model is run or unpickled.

Configuration and weights are read here and handed to transformers. Left to itself, transformers also reads pickled
weights and adapters, and fetches code for attention, if a file of the model says so.
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers.utils.hub import cached_file

from .._files import open_file
from .._validation import fail

CONFIG_FILE, WEIGHTS_FILE, INDEX_FILE = "config.json", "model.safetensors", "model.safetensors.index.json"

# Entries that would have transformers unpack other kinds of weights or replace parts of the model.
_REFUSED = (
    "distributed_config",
    "fusion_config",
    "kernel_config",
    "per_layer_config",
    "quantization_config",
    "transformers_weights",
    "trust_remote_code",
    "use_kernels",
)
# Entries that are not used: code of the model itself, and how attention is computed, which transformers chooses.
_ATTENTION = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
_EXPERTS = ("experts_implementation", "_experts_implementation", "_experts_implementation_internal")
_DROPPED = ("auto_map", *_ATTENTION, *_EXPERTS)
# Other names of implementations are those of code on the hub.
_FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
_BUILT_IN = ("eager", "sdpa", "flex_attention", *_FLASH, "batched_mm", "grouped_mm")
_TYPES = ("float16", "bfloat16", "float32", "float64")
# Sizes that cost time or memory before the weights, which are of other shapes then, are looked at.
_LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_hidden_groups", "inner_group_num")
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "vocab_size", "type_vocab_size")
_WIDTHS = ("hidden_size", "dim", "n_embd", "intermediate_size", "image_size")
_LIMITS = {"num_labels": 100_000} | dict.fromkeys(_LAYERS, 1000) | dict.fromkeys((*_POSITIONS, *_WIDTHS), 10_000_000)


def read_json(file: Path, kind: type = dict) -> Any:
    """The content of a JSON file: an object, or a list."""
    try:
        with open_file(file, name=file.name, expected="a JSON file") as stream:
            entries = json.loads(stream.read().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise fail(file.name, f"no JSON ({error})", "a JSON file as it was saved") from error
    if not isinstance(entries, kind):
        raise fail(file.name, f"a {type(entries).__name__}", "a JSON object" if kind is dict else "a JSON list")
    return entries


def _number(entry: dict[str, Any]) -> Any:
    """A number that is not finite, which transformers writes as in {"__float__": "NaN"}; anything else as it is."""
    text = entry.get("__float__")
    return float(text) if len(entry) == 1 and text in ("NaN", "Infinity", "-Infinity") else entry


def config_from(entries: dict[str, Any], config_class: Any) -> Any:
    """The configuration, of a class of transformers, from the entries of a file, which are checked first."""
    expected = f"a whole {CONFIG_FILE} of type {config_class.model_type!r}"
    entries = json.loads(json.dumps(entries), object_hook=_number)
    _check_entries(entries)
    try:
        return config_class(**{name: value for name, value in entries.items() if name not in _DROPPED})
    except Exception as error:  # checks of transformers raise errors of many kinds
        raise fail(CONFIG_FILE, f"entries that do not fit ({_one_line(error)})", expected) from error


def read_config(source: str) -> dict[str, Any]:
    """The entries of the configuration of a model in a folder or on the hub."""
    found = located(source, CONFIG_FILE)
    if found is None:
        raise unreadable(source, f"there is no {CONFIG_FILE}", "a model")
    return read_json(found)


def read_weights(source: str) -> dict[str, torch.Tensor]:
    """The weights of a model in a folder or on the hub, by name: one safetensors file, or several with an index."""
    expected, names = "weights as safetensors", [WEIGHTS_FILE]
    if located(source, WEIGHTS_FILE) is None and (index := located(source, INDEX_FILE)) is not None:
        shards = read_json(index).get("weight_map")
        names = sorted({str(name) for name in shards.values()}) if isinstance(shards, dict) else []
        for name in names:
            if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", name):
                raise fail(INDEX_FILE, f"weights in {name!r}", "names of safetensors files beside it")
    weights: dict[str, torch.Tensor] = {}
    for name in names or [WEIGHTS_FILE]:
        if (file := located(source, name)) is None:
            why = f"there is no {name}" + ("" if name == WEIGHTS_FILE else f", which {INDEX_FILE} names")
            raise unreadable(source, why, expected)
        try:
            weights |= load_file(file)
        except Exception as error:  # SafetensorError, and those of shapes that PyTorch refuses
            raise unreadable(source, f"{file.name}: {_one_line(error)}", expected) from error
    return weights


def read_gguf(file: Path, model: Any = None) -> dict[str, Any]:
    """What transformers reads of a GGUF file: the entries of a configuration, or, given a model, its weights by name.

    Quantized weights are unpacked. Only arrays are read, no code.
    """
    if find_spec("gguf") is None:
        raise fail("model", f"{file.name}, a GGUF file", "the extra: pip install 'thermoformer[gguf]'")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    given = {} if model is None else {"return_tensors": True, "model_to_load": model, "torch_dtype": torch.float32}
    try:
        return load_gguf_checkpoint(str(file), **given)["config" if model is None else "tensors"]
    except Exception as error:  # of damaged files, of many kinds
        raise unreadable(file, error, "a GGUF file of a known family") from error


def unreadable(source: str | Path, why: object, expected: str) -> ValueError:
    """The error for a model that cannot be read, and why."""
    got = f"{source}, which could not be read"
    return fail("model", got, f"a folder or a name on the hub with {expected} ({_one_line(why)})")


def located(source: str, name: str) -> Path | None:
    """Path of a file of a model, fetched if the model is on the hub; None if the model has no such file."""
    if Path(source).is_dir():
        file = Path(source) / name
        return file if file.exists() else None
    try:
        found = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as error:
        raise unreadable(source, error, "a model") from error
    return None if found is None else Path(found)


def _check_entries(entries: dict[str, Any]) -> None:
    """Refuses entries, also of configurations inside, that reach for code or other weights, and absurd sizes."""
    for name, value in entries.items():
        if name in _REFUSED and value is not None:
            raise fail(CONFIG_FILE, f"an entry {name!r}", "a plain model without it")
        if name in (*_ATTENTION, *_EXPERTS):
            for one in value.values() if isinstance(value, dict) else [value]:
                _check_choice(name, one, _BUILT_IN)
        if name in ("dtype", "torch_dtype"):
            _check_choice(name, value, _TYPES)
        most = _LIMITS.get(name)
        if most is not None and isinstance(value, (int, float)) and not value <= most:
            raise fail(CONFIG_FILE, f"{name} = {value}", f"at most {most}")
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                _check_entries(inner)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise fail(CONFIG_FILE, f"{name} = {_one_line(repr(value))}", "one of " + ", ".join(map(repr, choices)))


def _one_line(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."

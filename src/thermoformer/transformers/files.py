"""Pruned models on disk: safetensors weights, the configuration, and a small file that says which heads are left.

Where every layer keeps equally many heads and the configuration of the family can say so, plain `from_pretrained` loads
the folder too. Otherwise plain loading fails with a sentence that names `load_pruned`: the configuration holds that
sentence where the number of heads would be.

A folder is written aside and then moved into place, so that it is whole or not there at all. Nothing in a folder is
run: the class of a model is one that transformers exports for a known family.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from .._files import MissingFileError
from .._validation import fail
from .families import VERIFIED, Adapter, Family, Head, adapter_for, checked_heads, family_named
from .pretrained import CONFIG_FILE, WEIGHTS_FILE, config_from, read_json
from .surgery import prune_heads, refuse_unfit, restore_heads

FORMAT = "thermoformer pruned heads 1"
MASKED = "thermoformer masked heads 1"
RECORD_FILE, MASKED_FILE, README_FILE = "pruned_heads.json", "masked_heads.json", "README.md"
# The file and the format that tell a folder of ours.
PRUNED_MARK, MASKED_MARK = (RECORD_FILE, FORMAT), (MASKED_FILE, MASKED)
# In the configuration in place of a number of heads that it has no room for. Errors of transformers show it.
ONLY_OURS = "heads are pruned: load the folder with thermoformer.transformers.load_pruned"


def save_pruned(model: Any, folder: str | Path, *, tokenizer: Any = None) -> Path:
    """Writes a pruned model to a folder and returns its path.

    `load_pruned` reads the folder. Plain `from_pretrained` of transformers reads it too if every layer keeps equally
    many heads and the configuration of the family can say so (Llama and its kin, ViT). Otherwise plain loading fails
    with a sentence that names `load_pruned`. README.md in the folder has the lines that load the model.
    `save_pretrained` of a pruned model writes the same files.

    Arguments:
        model: of a class of transformers itself, pruned or not.
        folder: where to; a pruned model that is there is replaced, any other folder with something in it is refused.
        tokenizer: saved beside the model, where given.

    Example:
        >>> import tempfile
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=9)
        >>> pruned = prune_heads(BertModel(BertConfig(**sizes)), [(0, 1)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     adapter_for(load_pruned(save_pruned(pruned, folder + "/model"))).kept
        ((0, 2, 3), (0, 1, 2, 3))
    """
    with _new_folder(Path(folder), PRUNED_MARK, tokenizer) as part:
        _write(model, part, Path(folder).name)
    return Path(folder)


def save_in_place(
    model: Any,
    save_directory: str | Path,
    is_main_process: bool = True,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    push_to_hub: bool = False,
    **options: Any,
) -> None:
    """What `save_pretrained` of a pruned model does: the files of `save_pruned`, beside others in the folder.

    A class of the user's own is saved as transformers does: only that class can load it.

    Arguments:
        is_main_process, state_dict: as of `save_pretrained`; its other options do not concern the files written here.
    """
    if _exported(adapter_for(model).parts, type(model).__name__) is not type(model):
        given = {"is_main_process": is_main_process, "state_dict": state_dict, "push_to_hub": push_to_hub}
        return type(model).save_pretrained(model, save_directory, **given, **options)
    if push_to_hub:
        raise fail("push_to_hub", push_to_hub, "False: save the pruned model first, then upload its folder")
    if is_main_process:
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        _write(model, folder, folder.name, state_dict)


def load_pruned(folder: str | Path, *, device: Any = None, attention: str | None = None) -> Any:
    """The model that `save_pruned` wrote, ready to predict.

    Arguments:
        device: where its weights go; by default the CPU.
        attention: how attention is computed ("eager", "sdpa", ...); by default as transformers chooses.

    Example:
        >>> load_pruned("nowhere")
        Traceback (most recent call last):
        thermoformer._files.MissingFileError: folder: got nowhere without pruned_heads.json; expected ...
    """
    folder = Path(folder)
    record = _read_record(folder)
    model_class = _exported(family_named(record["family"]), record["class"])
    if model_class is None:
        got = f"a {record['class']!r} of the family {record['family']!r}"
        raise fail(RECORD_FILE, got, "a class of transformers of a known family")
    model = _built(model_class, _read_config(folder, model_class, record), record)
    if attention is not None:
        try:
            model.set_attn_implementation(attention)
        except (ImportError, ValueError) as error:
            raise fail("attention", repr(attention), f"a way to compute it that works here ({error})") from error
    _fill(model, folder, record)
    if model.can_generate() and (folder / "generation_config.json").is_file():
        try:
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
        except (OSError, TypeError, ValueError) as error:
            raise fail("generation_config.json", f"a file that cannot be read ({error})", "as it was saved") from error
    model.eval()
    return model if device is None else model.to(device)


def export_masked(model: Any, heads: Sequence[Head], folder: str | Path, *, tokenizer: Any = None) -> Path:
    """Writes a checkpoint of full size in which the given heads add nothing, for plain `from_pretrained`.

    Their columns of the output projection are zero. Heads that were removed before are there again, with zeros.

    Arguments:
        heads: pairs (layer, head) to silence.
        folder: where to; an export that is there is replaced, any other folder with something in it is refused.
        tokenizer: saved beside the model, where given.

    Example:
        >>> import tempfile
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=9)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plain = BertModel.from_pretrained(export_masked(BertModel(BertConfig(**sizes)), [(0, 1)], folder))
        >>> adapter = adapter_for(plain)
        >>> int(torch.count_nonzero(adapter.projection_weight(0)[adapter.columns(0, 1)]))
        0
    """
    adapter = adapter_for(model)
    silent = checked_heads(adapter, heads)
    full = restore_heads(model)
    restored = adapter_for(full)
    removed = set(restored.all_heads()) - set(adapter.all_heads())
    with torch.no_grad():
        for layer, head in silent:
            restored.projection_weight(layer)[restored.columns(layer, head)] = 0

    with _new_folder(Path(folder), MASKED_MARK, tokenizer) as part:
        full.save_pretrained(part)
        _edit_json(part / CONFIG_FILE)
        record = {"format": MASKED, "class": type(full).__name__, "heads": sorted({*silent, *removed})}
        (part / MASKED_FILE).write_text(json.dumps(record, indent=1) + "\n")
        _write_readme(part, Path(folder).name, f"{type(full).__name__} with {len(record['heads'])} silent heads")
    return Path(folder)


def loading_lines(folder: str | Path, name: str | None = None) -> str:
    """The two lines of Python that load the model of a folder that `save_pruned` or `export_masked` wrote.

    Arguments:
        name: of the folder in these lines; default: the folder.
    """
    folder = Path(folder)
    if (folder / RECORD_FILE).is_file():
        record = _read_record(folder)
        # Plain loading would give a body without pooling layer a random one.
        plain = not record["options"] and ONLY_OURS not in (written for written, _ in record["config"].values())
    else:
        record, plain = read_json(folder / MASKED_FILE), True
    where = json.dumps(name or str(folder))
    if plain:
        return f"from transformers import {record['class']}\nmodel = {record['class']}.from_pretrained({where})"
    return f"from thermoformer.transformers import load_pruned\nmodel = load_pruned({where})"


def _write(model: Any, folder: Path, name: str, state: Mapping[str, torch.Tensor] | None = None) -> None:
    """Writes the files of a pruned model into a folder that is there; `name` is what the folder will be called."""
    adapter = adapter_for(model)
    refuse_unfit(adapter)
    kind = type(model).__name__
    if _exported(adapter.parts, kind) is not type(model):
        raise fail("model", f"a {kind} of {type(model).__module__}", "a class of transformers itself")
    options = {"add_pooling_layer": False} if getattr(model, "pooler", True) is None else {}
    tensors = _own_tensors(model)
    with torch.device("meta"):
        described = _own_tensors(_blank(type(model), model.config, options))
    if odd := set(tensors) ^ set(described):
        got = f"a {kind} with other weights than its configuration says ({_some(odd)})"
        raise fail("model", got, "one as its configuration describes it")
    if state is not None:
        tensors = {key: state[key] for key in tensors}
    changes = _config_changes(adapter, options)
    record = {
        "format": FORMAT,
        "class": kind,
        "family": adapter.family,
        "options": options,
        "heads": list(adapter.heads),
        "kept": [list(kept) for kept in adapter.kept],
        "config": changes,
        "transformers": transformers.__version__,
    }
    model.config.save_pretrained(folder)
    # As transformers does: a loaded model has the precision of the saved one.
    entries = {"architectures": [kind], "dtype": _precision(model)}
    _edit_json(folder / CONFIG_FILE, **entries | {entry: written for entry, (written, _) in changes.items()})
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    contiguous = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
    save_file(contiguous, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    record["sha256"] = _checksum(folder / WEIGHTS_FILE)
    (folder / RECORD_FILE).write_text(json.dumps(record, indent=1) + "\n")
    left = f"{len(adapter.all_heads())} of {sum(adapter.heads)} attention heads"
    _write_readme(folder, name, f"{kind} with {left}")


def _write_readme(folder: Path, name: str, title: str) -> None:
    lines = ["# " + title, "Written by thermoformer. This loads the model:"]
    code = f"```python\n{loading_lines(folder, name)}\n```"
    (folder / README_FILE).write_text("\n\n".join([*lines, code]) + "\n")


def _config_changes(adapter: Adapter, options: dict[str, Any]) -> dict[str, list[Any]]:
    """Entries of the configuration that are written otherwise than the model has them: [as written, as it was].

    Where a configuration of the family gives a model of the same shape, they are its numbers of heads. Else they make
    plain loading fail.
    """
    if adapter.kept == tuple(tuple(range(count)) for count in adapter.heads):
        return {}
    config, counts = adapter.model.config, {len(kept) for kept in adapter.kept}
    if len(counts) == 1 and (count := counts.pop()) and not options:
        numbers = {
            "num_attention_heads": count * adapter.queries_per_head(0),
            "num_key_value_heads": count,
            "head_dim": adapter.head_size(0),
        }
        if not hasattr(config, "num_key_value_heads"):
            del numbers["num_key_value_heads"]
        changed = copy.deepcopy(config)
        for name, number in numbers.items():
            setattr(changed, name, number)
        if _gives(changed, adapter, options):
            return {
                config.attribute_map.get(name, name): [number, getattr(config, name, None)]
                for name, number in numbers.items()
            }
    # `AutoModel` stops at an unknown type, and classes of models at a text in place of a number, or at an unknown
    # precision where each part of the model has a configuration of its own.
    refused = {"model_type": [ONLY_OURS, config.model_type]}
    number = config.attribute_map.get("num_attention_heads", "num_attention_heads")
    if hasattr(config, number):
        return refused | {number: [ONLY_OURS, getattr(config, number)]}
    return refused | {"dtype": [ONLY_OURS, _precision(adapter.model)]}


def _gives(config: Any, adapter: Adapter, options: dict[str, Any]) -> bool:
    """Whether a configuration makes a model of the same shape, with the same numbers in all its parts."""
    try:
        config.validate()
        with torch.device("meta"):
            other = _blank(type(adapter.model), config, options)
    except Exception:  # checks of transformers raise errors of many kinds
        return False
    return _measures(other) == _measures(adapter.model)


def _precision(model: Any) -> str:
    return str(model.dtype).removeprefix("torch.")


def _measures(model: Any) -> tuple[Any, Any]:
    """Shapes of all tensors of a model, and the numbers that its modules were made with."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    numbers = (
        (part, name, value)
        for part, module in model.named_modules()
        for name, value in vars(module).items()
        if type(value) in (int, float)
    )
    return {name: tensor.shape for name, tensor in tensors.items()}, set(numbers)


def _exported(family: Family, name: str) -> Any:
    """The model class of a name that transformers exports for a family; None where there is none."""
    try:
        module = import_module(family.module)
    except ImportError:
        return None
    found = getattr(module, name) if name in getattr(module, "__all__", ()) else None
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        return None
    # The abstract class that the others inherit from is no model.
    return None if name.endswith("PreTrainedModel") else found


def _own_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Weights and saved buffers, shared ones once."""
    named = dict(model.named_parameters())
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return named | {name: tensor for name, tensor in model.state_dict().items() if name not in every}


def _blank(model_class: Any, config: Any, options: dict[str, Any]) -> Any:
    """A model whose weights are yet to come, shared ones shared."""
    # Some parameters are drawn even so; the user's random numbers are not to depend on it.
    with no_init_weights(), torch.random.fork_rng(devices=[]):
        model = model_class(config, **options)
    model.tie_weights()
    # Without weights there is nothing to check; the model that was saved was checked.
    setattr(model.base_model, VERIFIED, True)
    return model


def _read_record(folder: Path) -> dict[str, Any]:
    for name in (RECORD_FILE, CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise MissingFileError("folder", f"{folder} without {name}", "one of `save_pruned`")
    record = read_json(folder / RECORD_FILE)
    if record.get("format") != FORMAT:
        raise fail(RECORD_FILE, f"format {record.get('format')!r}", repr(FORMAT))
    # Records of earlier versions have no entry "config".
    record = {"config": {}} | record
    kinds = {"class": str, "family": str, "options": dict, "heads": list, "kept": list, "config": dict, "sha256": str}
    for name, kind in kinds.items():
        if not isinstance(record.get(name), kind):
            raise fail(RECORD_FILE, f"{name} = {record.get(name)!r}", f"a {kind.__name__}")
    for name, change in record["config"].items():
        if not isinstance(change, list) or len(change) != 2:
            raise fail(RECORD_FILE, f"{name}: {change!r} in config", "pairs: as written, as it was")
    if record["options"] not in ({}, {"add_pooling_layer": False}):
        raise fail(RECORD_FILE, f"options {record['options']}", "none, or no pooling layer")
    return record


def _read_config(folder: Path, model_class: Any, record: dict[str, Any]) -> Any:
    """The configuration of the model before any head was removed."""
    entries = read_json(folder / CONFIG_FILE)
    for name, (written, original) in record["config"].items():
        if entries.get(name) == written:
            entries[name] = original
            if original is None:
                del entries[name]
    if entries.get("model_type") != model_class.config_class.model_type:
        expected = f"{model_class.config_class.model_type!r}, that of {model_class.__name__}"
        raise fail(CONFIG_FILE, f"model_type {entries.get('model_type')!r}", expected)
    return config_from(entries, model_class.config_class)


def _built(model_class: Any, config: Any, record: dict[str, Any]) -> Any:
    """A model with the shapes that the record says and weights yet to come."""
    try:
        model = _blank(model_class, config, record["options"])
        adapter = adapter_for(model)
    except Exception as error:
        raise fail(CONFIG_FILE, f"entries that make no {model_class.__name__} ({error})", "as it was saved") from error
    if list(adapter.heads) != record["heads"] or len(record["kept"]) != adapter.layers:
        got = f"heads {record['heads']}, and {len(record['kept'])} layers of heads kept"
        raise fail(RECORD_FILE, got, f"{list(adapter.heads)}, as {CONFIG_FILE} says")
    for layer, kept in enumerate(record["kept"]):
        count = adapter.heads[layer]
        if not isinstance(kept, list) or kept != [head for head in range(count) if head in kept]:
            raise fail(RECORD_FILE, f"heads {kept} kept in layer {layer}", f"rising numbers from 0 to {count - 1}")
    gone = [head for head in adapter.all_heads() if head[1] not in record["kept"][head[0]]]
    return prune_heads(model, gone, in_place=True)


def _fill(model: Any, folder: Path, record: dict[str, Any]) -> None:
    """Puts the weights of a folder into a model, all of them and no others."""
    file = folder / WEIGHTS_FILE
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise fail(WEIGHTS_FILE, f"a file that cannot be read ({error})", "safetensors, as it was saved") from error
    own = _own_tensors(model)
    if odd := set(own) ^ set(tensors):
        version = f"{record.get('transformers')} of transformers; here is {transformers.__version__}"
        expected = f"those of a {type(model).__name__} (saved with version {version})"
        raise fail(WEIGHTS_FILE, f"other weights than the model has ({_some(odd)})", expected)
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise fail(WEIGHTS_FILE, f"{name} of shape {tuple(tensor.shape)}", f"{tuple(own[name].shape)}")
        if not tensor.is_floating_point() == own[name].is_floating_point():
            raise fail(WEIGHTS_FILE, f"{name} of type {tensor.dtype}", f"{own[name].dtype}")
    # Last, since the errors above say more.
    if _checksum(file) != record["sha256"]:
        raise fail(WEIGHTS_FILE, "another checksum than when it was saved", f"the weights that {RECORD_FILE} names")
    # The same objects with new contents: weights that are shared stay shared.
    places = dict(model.named_buffers()) | dict(model.named_parameters())
    for name, tensor in tensors.items():
        places[name].data = tensor


@contextmanager
def _new_folder(folder: Path, mark: tuple[str, str], tokenizer: Any) -> Iterator[Path]:
    """A folder to write a model into; it then gets its name. What is there is replaced only where it bears the mark."""
    if tokenizer is not None and not hasattr(tokenizer, "save_pretrained"):
        raise TypeError(str(fail("tokenizer", f"a {type(tokenizer).__name__}", "a tokenizer of transformers")))
    refuse_foreign_folder(folder, mark)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}.part", dir=folder.parent) as aside:
            part, old = Path(aside, "new"), Path(aside, "old")
            part.mkdir()
            yield part
            if tokenizer is not None:
                tokenizer.save_pretrained(part)
                if (part / "tokenizer_config.json").is_file():
                    _edit_json(part / "tokenizer_config.json")
            for file in part.rglob("*"):
                if file.is_file():
                    with file.open("rb+") as stream:
                        os.fsync(stream.fileno())
            if folder.exists():
                os.replace(folder, old)
            try:
                os.replace(part, folder)
            except OSError:
                if old.exists():
                    os.replace(old, folder)
                raise
    except (OSError, SafetensorError) as error:
        expected = "a folder that can be written to, on a disk with space left"
        raise fail("folder", f"{folder}, which cannot be written ({error})", expected) from error


def refuse_foreign_folder(folder: Path, mark: tuple[str, str]) -> None:
    """Refuses a folder that holds something else than an earlier output: the file and format of the mark tell."""
    name, kind = mark
    if not folder.exists():
        return
    expected = f"a new or empty folder, or one with {kind!r}; it is left as it is"
    if not folder.is_dir():
        raise fail("folder", f"{folder}, which is a file", expected)
    if not any(folder.iterdir()):
        return
    try:
        ours = read_json(folder / name).get("format") == kind
    except (OSError, ValueError):
        ours = False
    if not ours:
        raise fail("folder", f"{folder}, which holds something else", expected)


def _edit_json(file: Path, **entries: Any) -> None:
    """Changes entries of a JSON file of a model, and drops the one that names code of the model it came from."""
    kept = {name: value for name, value in read_json(file).items() if name != "auto_map"}
    file.write_text(json.dumps(kept | entries, indent=2) + "\n")


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _some(names: set[str]) -> str:
    shown = sorted(names)[:3]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")

"""What `thermoformer heads` starts from: a pretrained model with its tokenizer, and examples to score and to judge by.

Nothing that comes with a model is run or unpickled: its class is one of transformers, its weights are safetensors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from transformers.models.auto import modeling_auto

from ..._validation import fail, one_of, positive_integer
from ...tasks import LabelledTexts, read_labelled, read_text, sst2, trec
from ...transformers import Examples, adapter_for, known_families, load_pruned
from ...transformers.curves import draw
from ...transformers.families import FAMILIES
from ...transformers.files import RECORD_FILE
from ...transformers.passes import positions_of, predicts_next
from ...transformers.pretrained import config_from, located, read_config, read_gguf, read_weights, unreadable

# The share of a file's own examples that heads are scored with; the rest judges.
TO_SCORE = 0.8
# Tokens of a sequence of text, and of a labelled text, at most.
LENGTH, MAX_LENGTH = 256, 128

TASKS = {"trec": trec, "sst2": sst2}
GOALS = ("auto", "probe", "classifier", "language")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_EXPECTED = "trec, sst2, a file that ends in .tsv (text, tab, label), or text with a file that ends in .txt"
# Entries of a configuration that change what a model returns.
_OUTPUTS = ("output_attentions", "_output_attentions", "output_hidden_states", "return_dict")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.txt", "vocab.json", "tekken.json")


class Task(NamedTuple):
    """What a model is to be good at.

    Fields:
        name: for the page.
        train, test: labelled texts; one long text to be cut in two, and None, for a language model.
    """

    name: str
    train: LabelledTexts | str
    test: LabelledTexts | None

    @property
    def language(self) -> bool:
        """Whether the next token is what counts."""
        return isinstance(self.train, str)


def read_task(task: str | Path | None = None, file: str | Path | None = None, *, seed: int = 0) -> Task:
    """The task of a name or of a file.

    Arguments:
        task: "trec", "sst2", the path of a file that ends in .tsv (labelled, see `read_labelled`) or in .txt (plain
            text), or "text" with the file beside it.
        file: the plain text of the task "text"; without a task, the file of either kind.
        seed: of the split of a labelled file, 80 % to score with and the rest to judge by.

    Example:
        >>> read_task("imdb")
        Traceback (most recent call last):
        thermoformer.InputError: task: got 'imdb'; expected trec, sst2, a file that ends in .tsv (text, tab, label), ...
    """
    if task is None:
        task, file = file, None
    if task is None:
        raise fail("task", "none", _EXPECTED)
    name = str(task)
    if name == "text":
        if file is None:
            raise fail("task", "'text' without a file", "a file with plain text, as in: --task text FILE.txt")
        return Task(Path(file).name, read_text(file), None)
    if file is not None:
        raise fail("file", f"{file} beside the task {name!r}", "a file with the task 'text' only")
    if name in TASKS:
        # The original SST-2 has a test part, whose labels are not looked at here except to judge by.
        return Task(name, TASKS[name]("train"), TASKS[name]("test"))
    if name.endswith(".txt"):
        return Task(Path(name).name, read_text(name), None)
    if not name.endswith(".tsv"):
        raise fail("task", repr(name), _EXPECTED)
    both = read_labelled(name)
    if len(both) < 5:
        raise fail("task", f"{name} with {len(both)} texts", "5 or more, to score with and to judge by")
    return Task(Path(name).name, *both.split(round(TO_SCORE * len(both)), seed=seed))


def load_model(name: str | Path, *, language: bool, goal: str = "auto", precision: str = "float32") -> tuple[Any, Any]:
    """A pretrained model and its tokenizer, from a folder, a GGUF file or the hub.

    Arguments:
        name: a folder, also one of `save_pruned`, a name on the hub, or a GGUF file in either.
        language: whether a language model is wanted, causal or of masked tokens. Else a classifier keeps its own head,
            and of any other model the body is read, for a probe.
        goal: "classifier" or "probe" where it is not to depend on the model.
        precision: of the weights: "float32", "bfloat16" or "float16".
    """
    path = Path(name).expanduser()
    gguf = path.name if path.suffix == ".gguf" else None
    folder = path.parent if gguf else path
    here, given = path.is_file() if gguf else path.is_dir(), str(name).removesuffix(gguf or "").removesuffix("/")
    if not here and (not given or given.count("/") > 1 or given.startswith((".", "/", "~")) or "\\" in given):
        expected = "no file; expected a GGUF file" if gguf else "no folder; expected a folder or a name on the hub"
        raise FileNotFoundError(f"model: got {name}, which is {expected}")
    source = str(folder) if here else given
    dtype = PRECISIONS[one_of("dtype", precision, tuple(PRECISIONS))]
    with quiet():
        if gguf:
            model, tokenizer = _from_gguf(source, gguf, language, goal, dtype)
        elif here and (folder / RECORD_FILE).is_file():
            model = load_pruned(folder).to(dtype)
            tokenizer = _tokenizer(source, folder, model.config)
        else:
            config = _configuration(source, read_config(source))
            model = _pretrained(source, config, language, goal, dtype)
            tokenizer = _tokenizer(source, folder if here else None, model.config)
        if language and not (predicts_next(model) or type(model).__name__.endswith("ForMaskedLM")):
            raise fail("model", f"a {type(model).__name__}", "a causal language model, or one of masked tokens")
        adapter_for(model)
        _try_out(model, tokenizer)
        return model, tokenizer


def _from_gguf(source: str, name: str, language: bool, goal: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """The model and the tokenizer of a GGUF file in a folder or on the hub."""
    if (file := located(source, name)) is None:
        raise unreadable(source, f"there is no {name}", "a GGUF file")
    config = _configuration(str(file), read_gguf(file))
    model = _pretrained(str(file), config, language, goal, dtype, gguf=file)
    # In a folder of its own, where no other file says what the tokenizer is.
    with TemporaryDirectory() as alone:
        (Path(alone) / name).symlink_to(file.resolve())
        return model, _tokenizer(alone, None, model.config, gguf_file=name)


def examples_for(
    model: Any,
    tokenizer: Any,
    task: Task,
    *,
    length: int | None = None,
    test_examples: int | None = None,
    seed: int = 0,
) -> tuple[Examples, Examples]:
    """The examples of a task as a model reads them: what to score with, and what to judge by.

    Arguments:
        length: tokens of an example; by default 256 of plain text and up to 128 of a labelled text, and never more
            than the model reads.
        test_examples: how many are drawn to judge by; default: all.
    """
    most = min(found for found in (positions_of(model), getattr(tokenizer, "model_max_length", None), 10**9) if found)
    tokens = (
        min(most, LENGTH if task.language else MAX_LENGTH) if length is None else positive_integer("length", length)
    )
    if tokens > most:
        raise fail("length", length, f"at most {most} tokens, as the model reads")
    if isinstance(task.train, str):
        sequences = Examples.from_text(tokenizer, task.train, length=tokens)
        if not predicts_next(model):
            sequences = sequences.masked(tokenizer, seed=seed)
        if len(sequences) < 2:
            raise fail("text", f"{task.name} with {len(sequences)} sequence of {tokens} tokens", "two or more")
        # The end of the text judges; a random choice would have it continue what was scored with.
        cut = min(max(round(TO_SCORE * len(sequences)), 1), len(sequences) - 1)
        train, test = (sequences.subset(np.arange(*ends)) for ends in ((0, cut), (cut, len(sequences))))
    else:
        assert task.test is not None
        places, count = class_places(model, task.train.classes)
        train, test = (
            Examples.from_texts(tokenizer, part.texts, places[part.labels], max_length=tokens, classes=count)
            for part in (task.train, task.test)
        )
    if test_examples is not None:
        test = draw(test, positive_integer("test_examples", test_examples), seed)
    return train, test


def class_places(model: Any, classes: tuple[str, ...]) -> tuple[np.ndarray, int]:
    """The number that the model has for each class, int64 [class], and how many classes there are.

    A classifier has an order of its own: names that are its labels go where it has them, and whole numbers are the
    places themselves.
    """
    if not is_classifier(type(model).__name__):
        return np.arange(len(classes)), len(classes)
    labels = {int(place): str(label).casefold() for place, label in model.config.id2label.items()}
    known = {label: place for place, label in labels.items()}
    names = [name.casefold() for name in classes]
    if all(name in known for name in names):
        return np.array([known[name] for name in names]), len(labels)
    if all(name.isdecimal() and int(name) in labels for name in names):
        return np.array([int(name) for name in names]), len(labels)
    if len(names) == len(labels) and all(label == f"label_{place}" for place, label in labels.items()):
        return np.arange(len(names)), len(labels)
    got = f"a classifier of {_listed(model.config.id2label.values())}"
    raise fail("model", got, f"one of the classes of the task, {_listed(classes)}, or a model without a head")


def check_device(device: str | None) -> None:
    """An error where there is no such device."""
    if device is None or device == "cpu":
        return
    if not device.startswith("cuda"):
        raise fail("device", repr(device), "cpu or cuda")
    if not torch.cuda.is_available():
        raise fail("device", device, "cpu, since PyTorch sees no GPU here")


def is_classifier(name: str) -> bool:
    """Whether a model class of this name classifies sequences."""
    return name.endswith("ForSequenceClassification")


def _configuration(source: str, entries: dict[str, Any]) -> Any:
    kind = entries.get("model_type")
    texts = (*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    known = [*(family.model_type for family in FAMILIES.values()), *texts]
    if not isinstance(kind, str) or kind not in known or entries.get("is_encoder_decoder", False):
        expected = f"one of the families {', '.join(known_families())}, without cross-attention"
        raise fail("model", f"one of type {kind!r}", expected)
    entries = {name: value for name, value in entries.items() if name not in _OUTPUTS}
    config = config_from(entries, transformers.CONFIG_MAPPING[kind])
    config.name_or_path = source
    return config


def _pretrained(
    source: str, config: Any, language: bool, goal: str, dtype: torch.dtype, gguf: Path | None = None
) -> Any:
    # Before any weights are fetched. Encoders that could be run as decoders say whether they are.
    known = config.model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    causal = known and getattr(config, "is_decoder", None) is not False
    masks = config.model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if language and not (causal or masks):
        got = f"{source}, a model of type {config.model_type!r}"
        raise fail("model", got, "a language model for plain text, or a task with labels")
    names = config.architectures if isinstance(config.architectures, list) else []
    own = goal == "classifier" or (goal == "auto" and any(is_classifier(str(name)) for name in names))
    classes: Any = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if language and causal
        else modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
        if language
        else modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
        if own
        else modeling_auto.MODEL_MAPPING_NAMES
    )
    if config.model_type not in classes:
        raise fail("model", f"{source}, a {config.model_type!r} that classifies texts", "a type that does")
    kind = getattr(transformers, classes[config.model_type])
    options = {"config": config, "dtype": dtype, "output_loading_info": True}
    if gguf is None:
        weights = read_weights(source)
    else:
        # Its weights have the names that the model of language has.
        names = [modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, "")]
        with torch.device("meta"):
            whole = getattr(transformers, names[0], kind)(config)
        weights = read_gguf(gguf, whole)
    if classes is modeling_auto.MODEL_MAPPING_NAMES:
        # Within a model with a task, the body may have another name than the body calls itself.
        module = import_module(kind.__module__)
        prefixes = {getattr(getattr(module, str(name), kind), "base_model_prefix", "") for name in names}
        for prefix in prefixes:
            weights = {name.removeprefix(f"{prefix}."): weight for name, weight in weights.items()}
    try:
        model, found = kind.from_pretrained(None, state_dict=dict(weights), **options)
        if found["missing_keys"] and all(name.startswith("pooler.") for name in found["missing_keys"]):
            # A probe reads the tokens; a pooling layer with random weights would be saved for nothing.
            model, found = kind.from_pretrained(None, state_dict=dict(weights), add_pooling_layer=False, **options)
    except Exception as error:  # odd entries of a configuration raise errors of many kinds
        raise unreadable(source, error, "a model whose weights fit its configuration") from error
    if missing := sorted(found["missing_keys"]):
        raise fail("model", f"{source} without weights for {_listed(missing)}", f"those of a {type(model).__name__}")
    if model.can_generate() and gguf is None:
        _set_generation(model, source)
    return model.eval()


def _set_generation(model: Any, source: str) -> None:
    """Gives a model the settings for generation that are saved beside it."""
    try:
        model.generation_config = transformers.GenerationConfig.from_pretrained(source)
    except OSError:
        return
    except Exception as error:
        raise unreadable(source, error, "a whole generation_config.json") from error


def _tokenizer(source: str, folder: Path | None, config: Any, **options: Any) -> Any:
    # transformers makes up an empty tokenizer where it finds no file.
    if folder is not None and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise FileNotFoundError(
            f"model: got {folder} without a tokenizer; expected a file such as tokenizer.json in it"
        )
    try:
        return transformers.AutoTokenizer.from_pretrained(source, config=config, trust_remote_code=False, **options)
    except Exception as error:  # damaged files raise errors of many kinds
        raise unreadable(source, error, "a tokenizer") from error


def _try_out(model: Any, tokenizer: Any) -> None:
    """Runs a few words through a model: odd entries of a configuration show only then."""
    expected = "a model that runs with its tokenizer"
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise fail("model", f"{len(tokenizer)} tokens of the tokenizer and {rows} in the model", expected)
    try:
        with torch.no_grad():
            model(**{name: torch.tensor([values]) for name, values in tokenizer("a b c").items()})
    except Exception as error:
        raise fail("model", f"one that does not run ({' '.join(str(error).split())[:300]})", expected) from error


def _listed(names: Any) -> str:
    shown = [str(name) for name in names]
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")


@contextmanager
def quiet() -> Iterator[None]:
    """No bars and notes of transformers: what matters in them is an error here."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(logging.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()

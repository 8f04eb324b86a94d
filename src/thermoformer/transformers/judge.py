"""How well a pretrained transformer does: a linear probe on its features, its own head, perplexity, its stories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from .._validation import fail, nonnegative_integer, one_of, positive_integer, positive_number
from .data import Examples
from .probe import PENALTY, LinearProbe

READOUTS = ("mean", "first", "last")

# Logits as float64 at once, 128 MiB: those of all tokens of a batch would fill a GPU.
_LOGITS_AT_ONCE = 2**24


def pooled(
    model: Any,
    examples: Examples,
    *,
    readout: str = "mean",
    batch: int = 64,
    device: torch.device | str | None = None,
) -> np.ndarray:
    """What a model makes of each example: the last hidden state of its body, read out over the example's tokens.

    Arguments:
        readout: the "mean" over the tokens that the attention mask shows, the "first" token or the "last".
        batch: examples at once.
        device: where to compute; the model is moved there. Where absent, where the model is.

    Returns:
        float32 [example, feature].

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=9)
        >>> pooled(BertModel(BertConfig(**sizes)), Examples.from_tokens([[1, 2, 3], [4, 5, 6]])).shape
        (2, 8)
    """
    one_of("readout", readout, READOUTS)
    rows: np.ndarray | None = None
    with _reading(model, examples, device) as place:
        body = model.base_model
        for places, inputs in examples.batches(batch, place):
            states = body(**inputs, **_without_cache(inputs, body)).last_hidden_state.float()
            found = _read_out(states, inputs.get("attention_mask"), readout).cpu().numpy()
            if rows is None:
                rows = np.empty((len(examples), found.shape[1]), np.float32)
            rows[places] = found
    assert rows is not None
    return rows


def probe_accuracy(
    model: Any,
    train: Examples,
    test: Examples,
    *,
    readout: str = "mean",
    penalty: float | str = PENALTY,
    batch: int = 64,
    device: torch.device | str | None = None,
) -> float:
    """The share of test examples that a `LinearProbe` on the model's pooled features tells right.

    Arguments:
        train: what the probe learns from.
        test: what it is judged by.
        readout, batch, device: as in `pooled`.
        penalty: as in `LinearProbe`.
    """
    labels, classes = train.need_labels(), max(train.classes, test.classes)
    expected = test.need_labels()
    where = {"readout": readout, "batch": batch, "device": device}
    probe = LinearProbe(penalty).fit(pooled(model, train, **where), labels, classes=classes)
    return probe.accuracy(pooled(model, test, **where), expected)


def own_accuracy(model: Any, test: Examples, *, batch: int = 64, device: torch.device | str | None = None) -> float:
    """The share of test examples that a classifier with a head of its own tells right.

    Arguments:
        model: one of transformers' models for sequence or image classification.
        batch, device: as in `pooled`.
    """
    labels = test.need_labels()
    right = 0
    with _reading(model, test, device) as place, _padded_with(model, test):
        for places, inputs in test.batches(batch, place):
            logits = getattr(model(**inputs, **_without_cache(inputs, model)), "logits", None)
            if logits is None or logits.ndim != 2 or logits.shape[1] < 2:
                raise fail("model", f"a {type(model).__name__}", "a classifier with logits [example, class]")
            if logits.shape[1] < test.classes:
                raise fail("test", f"{test.classes} classes", f"{logits.shape[1]}, the classes that the model tells")
            right += int((logits.argmax(1).cpu().numpy() == labels[places]).sum())
    return right / len(test)


def perplexity(model: Any, examples: Examples, *, batch: int = 16, device: torch.device | str | None = None) -> float:
    """The perplexity of a language model, exp(−Σ ln p(token | tokens before) / count), over all predicted tokens.

    Every token but the first of its sequence is predicted and counts once, however long its sequence is; padding does
    not count. The logarithms are taken and summed in float64.

    Arguments:
        model: a causal language model.
        examples: sequences of tokens, two or more each.
        batch: sequences at once; a batch needs their tokens × the model's vocabulary numbers of memory.
        device: as in `pooled`.
    """
    examples.need_tokens()
    _need_causal(model)
    if (shortest := int(examples.lengths.min())) < 2:
        raise fail("examples", f"a sequence of {shortest} token", "two tokens or more, so that one can be predicted")
    total, count = 0.0, 0
    with _reading(model, examples, device) as place:
        for _, inputs in examples.batches(batch, place):
            logits = model(**inputs, **_without_cache(inputs, model)).logits
            shown = inputs["attention_mask"][:, 1:].bool()
            predictions, targets = logits[:, :-1][shown], inputs["input_ids"][:, 1:][shown]
            rows = max(1, _LOGITS_AT_ONCE // predictions.shape[1])
            for some, tokens in zip(predictions.split(rows), targets.split(rows), strict=True):
                logarithms = torch.log_softmax(some.double(), dim=1)
                total -= float(logarithms.gather(1, tokens[:, None]).sum())
            count += len(targets)
    return float(np.exp(total / count))


def generate_stories(
    model: Any,
    count: int,
    length: int,
    *,
    seed: int,
    temperature: float = 1.0,
    batch: int = 64,
    device: torch.device | str | None = None,
) -> np.ndarray:
    """Sequences of tokens drawn from a causal language model, each from the token of a beginning on.

    Every token is drawn from the model's own distribution, softmax(logits / temperature), with nothing cut off. Where
    a story ends the sequence goes on, with the next story as the model tells it, so that all sequences have the full
    length; such sequences of joined stories are what language models are trained on. The random numbers do not depend
    on the batch or on the device.

    Arguments:
        count: sequences.
        length: tokens of each, the beginning included.
        seed: of the draws; equal seeds draw equal sequences.
        temperature: 1 for the model's own distribution; lower is more certain.
        batch: sequences at once.
        device: as in `pooled`.

    Returns:
        int64 [sequence, token].

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
        >>> stories = generate_stories(LlamaForCausalLM(LlamaConfig(**sizes)), 3, 5, seed=0)
        >>> stories.shape, stories[:, 0].tolist()
        ((3, 5), [1, 1, 1])
    """
    shape = positive_integer("count", count), positive_integer("length", length)
    if length < 2:
        raise fail("length", length, "2 tokens or more: the beginning and one that is drawn")
    positive_number("temperature", temperature)
    positive_integer("batch", batch)
    _need_causal(model)
    begin = getattr(getattr(model, "generation_config", None), "bos_token_id", None)
    begin = getattr(getattr(model, "config", None), "bos_token_id", None) if begin is None else begin
    if begin is None:
        raise fail("model", f"a {type(model).__name__} without a token for beginnings", "one with a bos_token_id")
    stories = np.full(shape, begin, np.int64)
    chances = np.random.default_rng(nonnegative_integer("seed", seed)).random((count, length - 1))
    with _reading(model, Examples.from_tokens(stories[:1]), device) as place:
        for start in range(0, count, batch):
            some = slice(start, start + batch)
            drawn = torch.from_numpy(stories[some, :1]).to(place)
            uniform = torch.from_numpy(chances[some]).to(place)
            cache = None
            columns = []
            for step in range(length - 1):
                output = model(input_ids=drawn, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                sums = torch.softmax(output.logits[:, -1].double() / temperature, dim=1).cumsum(1)
                # The sum may miss 1 by rounding; the place right of it skips tokens that cannot occur.
                threshold = uniform[:, step : step + 1] * sums[:, -1:]
                drawn = torch.searchsorted(sums, threshold, right=True).clamp(max=sums.shape[1] - 1)
                columns.append(drawn)
            stories[some, 1:] = torch.cat(columns, 1).cpu().numpy()
    return stories


@contextmanager
def _reading(model: Any, examples: Examples, device: torch.device | str | None) -> Iterator[torch.device]:
    """The model on its device, without gradients and dropout for a while; afterwards every part is in its own mode."""
    if not (isinstance(model, torch.nn.Module) and hasattr(model, "base_model") and hasattr(model, "config")):
        raise TypeError(str(fail("model", f"a {type(model).__name__}", "a PyTorch model of transformers")))
    _check_fits(model, examples)
    if device is not None:
        model.to(device)
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        for module in training:
            module.training = True


def _need_causal(model: Any) -> None:
    """An error where a model does not predict the next token from those before; encoders would see the answer."""
    config = getattr(model, "config", None)
    generates = hasattr(model, "can_generate") and model.can_generate()
    # Encoders that could be run as decoders say whether they are; decoders say nothing.
    if not generates or getattr(config, "is_decoder", None) is False or getattr(config, "is_encoder_decoder", False):
        raise fail("model", f"a {type(model).__name__}", "a causal language model")


def _check_fits(model: Any, examples: Examples) -> None:
    """An error where tokens are unknown to the model or positions beyond it: on a GPU both end in a broken process."""
    wanted = model.base_model.main_input_name
    if wanted not in examples.inputs:
        raise fail("examples", ", ".join(examples.inputs), f"{wanted}, which a {type(model).__name__} reads")
    if wanted != "input_ids":
        return
    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    padding = getattr(getattr(model.base_model, "embeddings", None), "padding_idx", None)
    if positions is not None and padding is not None:
        # RoBERTa counts positions from the one after its padding.
        positions -= padding + 1
    longest = int(examples.lengths.max())
    if positions is not None and longest > positions:
        raise fail("examples", f"one of {longest} tokens", f"at most {positions}, the positions of the model")
    largest = max(int(row.max()) for row in examples.inputs["input_ids"])
    known = model.get_input_embeddings().weight.shape[0]
    if largest >= known:
        got = f"a token {largest}"
        raise fail("examples", got, f"tokens below {known}, as the model has; was this its tokenizer?")


@contextmanager
def _padded_with(model: Any, examples: Examples) -> Iterator[None]:
    """The model told which token fills up: decoders look for the last other token, and classify that."""
    config = model.config.get_text_config()
    before = getattr(config, "pad_token_id", None)
    if "input_ids" in examples.inputs:
        config.pad_token_id = examples.padding
    try:
        yield
    finally:
        if "input_ids" in examples.inputs:
            config.pad_token_id = before


def _without_cache(inputs: dict[str, torch.Tensor], model: Any) -> dict[str, bool]:
    """No keys and values kept for later tokens, where the model would."""
    return {"use_cache": False} if "input_ids" in inputs and getattr(model.config, "use_cache", False) else {}


def _read_out(states: torch.Tensor, mask: torch.Tensor | None, readout: str) -> torch.Tensor:
    """From [example, token, feature] to [example, feature]."""
    if mask is None:
        mask = torch.ones(states.shape[:2], device=states.device, dtype=torch.int64)
    if readout == "mean":
        return (states * (mask / mask.sum(1, keepdim=True))[..., None]).sum(1)
    # Examples are filled up on the right.
    chosen = torch.zeros_like(mask[:, 0]) if readout == "first" else mask.sum(1) - 1
    return states[torch.arange(len(states), device=states.device), chosen]

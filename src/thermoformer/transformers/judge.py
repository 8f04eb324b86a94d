"""How well a pretrained transformer does (by a probe on its features, its own head, perplexity), and how fast it is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .._validation import fail, nonnegative_integer, one_of, positive_integer, positive_number
from .data import IGNORED, Examples, examples_of
from .passes import READOUTS, need_causal, need_token_logits, predicts_next, read_out, reading, run
from .probe import PENALTY, LinearProbe, NumberProbe

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
    """Features of each example: the last hidden state of the model's body, read out over the tokens of the example.

    Arguments:
        readout: the "mean" over the tokens that the attention mask shows, the "first" token or the "last".
        batch: examples at once.
        device: where to compute; the model is moved there. By default where the model is.

    Returns:
        float32 [example, feature].

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=9)
        >>> pooled(BertModel(BertConfig(**sizes)), Examples.from_tokens([[1, 2, 3], [4, 5, 6]])).shape
        (2, 8)
    """
    one_of("readout", readout, READOUTS)
    order, rows = [], []
    with reading(model, examples, device) as place:
        for places, inputs in examples.batches(batch, place):
            order.append(places)
            rows.append(features_of(model, inputs, readout).cpu().numpy())
    return np.concatenate(rows)[np.argsort(np.concatenate(order))]


def features_of(model: Any, inputs: dict[str, torch.Tensor], readout: str) -> torch.Tensor:
    """The last hidden state of the body of a model, read out, float32 [example, feature]."""
    states = run(model.base_model, inputs).last_hidden_state.float()
    return read_out(states, inputs.get("attention_mask"), readout)


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
    """The accuracy on test examples of a `LinearProbe` on the model's pooled features.

    Arguments:
        train: what the probe learns from, with classes for labels.
        test: what it is judged by.
        readout, batch, device: as in `pooled`.
        penalty: as in `LinearProbe`.
    """
    where = {"readout": readout, "batch": batch, "device": device}
    train, test = examples_of(train), examples_of(test)
    train.need_labels()
    return float(judged(model, train, test, "probe", penalties=(penalty,), **where)[0])


def judged(
    model: Any,
    train: Examples,
    test: Examples,
    goal: str,
    *,
    readout: str = "mean",
    penalties: Sequence[float | str] = (PENALTY,),
    batch: int = 64,
    device: torch.device | str | None = None,
) -> np.ndarray:
    """The accuracy, of numbers the error, and for the goal "language" the perplexity: for a probe one per penalty."""
    if goal == "classifier":
        own = own_error if test.kind == "numbers" else own_accuracy
        return np.array([own(model, test, batch=batch, device=device)])
    if goal == "language":
        return np.array([perplexity(model, test, batch=batch, device=device)])
    probes = [probe_for(train, penalty) for penalty in penalties]
    if train.kind == "labelled":
        test.need_labels()
    elif test.kind != train.kind:
        raise fail("test", f"examples of the kind {test.kind!r}", f"{train.kind!r}, as those that are learned from")
    where = {"readout": readout, "batch": batch, "device": device}
    features, others = pooled(model, train, **where), pooled(model, test, **where)
    fitted = [probe.fit(features, train.labels, classes=max(train.classes, test.classes)) for probe in probes]
    return np.array(
        [(one.accuracy if isinstance(one, LinearProbe) else one.error)(others, test.labels) for one in fitted]
    )


def probe_for(examples: Examples, penalty: float | str = PENALTY) -> LinearProbe | NumberProbe:
    """The probe that can learn the labels of examples."""
    if examples.kind in ("several", "numbers"):
        return NumberProbe()
    examples.need_labels()
    return LinearProbe(penalty)


def need_outputs(model: Any, examples: Examples) -> None:
    """An error where the head of a model does not have an output for each label of the examples."""
    count = getattr(getattr(model, "config", None), "num_labels", 0)
    if examples.kind in ("several", "numbers"):
        if count != (wanted := examples.labels.shape[1]):
            raise fail("model", f"one of {count} outputs", f"{wanted}, as the labels have")
        return
    examples.need_labels()
    if count < 2 or examples.classes > count:
        raise fail("model", f"a classifier of {count} classes", f"{max(examples.classes, 2)}, as the examples have")


def own_accuracy(model: Any, test: Any, *, batch: int = 64, device: torch.device | str | None = None) -> float:
    """The accuracy of a classifier with a head of its own: the share of examples, of tokens, or of all labels.

    Arguments:
        model: one of transformers' models for classification of sequences, images or tokens.
        test: examples with classes, with any of several labels, or with classes of tokens.
        batch, device: as in `pooled`.
    """
    test = examples_of(test)
    tokens, several = test.kind == "tokens", test.kind == "several"
    labels = test.labels if tokens or several else test.need_labels()
    right = count = 0
    with reading(model, test, device) as place:
        for places, inputs in test.batches(batch, place):
            logits = getattr(run(model, inputs), "logits", None)
            if logits is None or logits.ndim != (3 if tokens else 2) or (logits.shape[-1] < 2 and not several):
                raise fail("model", f"a {type(model).__name__}", "a classifier with logits [example, class]")
            if logits.shape[-1] < test.classes:
                raise fail("test", f"{test.classes} classes", f"{logits.shape[-1]}, the classes that the model tells")
            wanted = test.token_labels(places, inputs) if tokens else torch.from_numpy(labels[places]).to(place)
            said = (logits > 0).to(wanted.dtype) if several else logits.argmax(-1)
            right += int((said == wanted).sum())
            count += int((wanted != IGNORED).sum())
    return right / count


def own_error(model: Any, test: Any, *, batch: int = 64, device: torch.device | str | None = None) -> float:
    """The root of the mean squared error of a model that predicts numbers.

    Arguments:
        model: one of transformers' models for classification of sequences or images, with as many labels as numbers.
        test: examples with numbers for labels.
        batch, device: as in `pooled`.
    """
    test = examples_of(test)
    need_outputs(model, test)
    squares = 0.0
    with reading(model, test, device) as place:
        for places, inputs in test.batches(batch, place):
            said = run(model, inputs).logits.double().cpu().numpy()
            squares += float(((said - test.labels[places]) ** 2).sum())
    return float(np.sqrt(squares / test.labels.size))


def perplexity(model: Any, examples: Any, *, batch: int = 16, device: torch.device | str | None = None) -> float:
    """The perplexity of a language model, exp(−Σ ln p(token) / count), over all predicted tokens.

    A causal model predicts every token but the first of its sequence from those before, a model of masked tokens those
    that are masked. Every predicted token counts once, however long its sequence is; padding does not count. The
    logarithms are taken and summed in float64.

    Arguments:
        model: a causal language model, or one of masked tokens.
        examples: sequences of tokens, two or more each; for masked tokens those of `Examples.masked`.
        batch: sequences at once; a batch needs their tokens × the model's vocabulary numbers of memory.
        device: as in `pooled`.
    """
    examples = examples_of(examples)
    need_token_logits(model, examples)
    following = predicts_next(model)
    if following and (shortest := int(examples.lengths.min())) < 2:
        raise fail("examples", f"a sequence of {shortest} token", "two tokens or more, so that one can be predicted")
    total, count = 0.0, 0
    with reading(model, examples, device) as place:
        for places, inputs in examples.batches(batch, place):
            logits, wanted = run(model, inputs).logits, examples.token_labels(places, inputs)
            if following:
                logits, wanted = logits[:, :-1], wanted[:, 1:]
            shown = wanted != IGNORED
            predictions, targets = logits[shown], wanted[shown]
            rows = max(1, _LOGITS_AT_ONCE // predictions.shape[1])
            for some, tokens in zip(predictions.split(rows), targets.split(rows), strict=True):
                logarithms = torch.log_softmax(some.double(), dim=1)
                total -= float(logarithms.gather(1, tokens[:, None]).sum())
            count += len(targets)
    if count == 0:
        raise fail("examples", "no token to predict", "one or more")
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
    """Sequences of tokens drawn from a causal language model, each after the token of a beginning.

    Every token is drawn from the model's own distribution, softmax(logits / temperature), with nothing cut off. Where
    a story ends the sequence goes on with the next story, as in the training of language models, so that all sequences
    have the full length. The random numbers do not depend on the batch or on the device.

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
    shape = positive_integer("count", count), length
    if positive_integer("length", length) < 2:
        raise fail("length", length, "2 tokens or more: the beginning and one that is drawn")
    positive_number("temperature", temperature)
    positive_integer("batch", batch)
    need_causal(model)
    ids = [getattr(config, "bos_token_id", None) for config in (model.generation_config, model.config)]
    begin = next((found for found in ids if found is not None), None)
    if begin is None:
        raise fail("model", f"a {type(model).__name__} without a token for beginnings", "one with a bos_token_id")
    stories = np.full(shape, begin, np.int64)
    chances = np.random.default_rng(nonnegative_integer("seed", seed)).random((count, length - 1))
    with reading(model, Examples.from_tokens(stories[:1]), device) as place:
        for start in range(0, count, batch):
            some = slice(start, start + batch)
            drawn = torch.from_numpy(stories[some, :1]).to(place)
            uniform = torch.from_numpy(chances[some]).to(place)
            cache = None
            for step in range(1, length):
                output = model(input_ids=drawn, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                sums = torch.softmax(output.logits[:, -1].double() / temperature, dim=1).cumsum(1)
                # The sum may miss 1 by rounding; the place right of it skips tokens that cannot occur.
                threshold = uniform[:, step - 1 : step] * sums[:, -1:]
                drawn = torch.searchsorted(sums, threshold, right=True).clamp(max=sums.shape[1] - 1)
                stories[some, step : step + 1] = drawn.cpu().numpy()
    return stories


def measured_speed(
    models: Mapping[str, Any],
    examples: Examples,
    *,
    batch: int = 64,
    repeats: int = 5,
    device: torch.device | str | None = None,
) -> dict[str, float]:
    """Examples per second of each model, forward passes only: the median over repeats.

    The models take turns, so that other load on the machine affects all of them alike; the first round does not count.
    Ratios between models of one call are more reliable than the numbers themselves.

    Arguments:
        models: by name.
        examples: what they read, tokenised and batched ahead.
        repeats: passes over the examples by each model.
        device: as in `pooled`.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=9)
        >>> speeds = measured_speed({"whole": BertModel(BertConfig(**sizes))}, Examples.from_tokens([[1, 2, 3]]))
        >>> speeds["whole"] > 0
        True
    """
    if not models:
        raise fail("models", "none", "one or more")
    positive_integer("repeats", repeats)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for repeat in range(repeats + 1):
        for name, model in models.items():
            with reading(model, examples, device) as place:
                batches = [inputs for _, inputs in examples.batches(batch, place)]
                _wait(place)
                start = time.perf_counter()
                for inputs in batches:
                    run(model, inputs)
                _wait(place)
                if repeat:
                    seconds[name].append(time.perf_counter() - start)
    return {name: len(examples) / float(np.median(times)) for name, times in seconds.items()}


def _wait(place: torch.device) -> None:
    """A GPU works on after the call returns."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)

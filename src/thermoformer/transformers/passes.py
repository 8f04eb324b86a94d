"""One pass of a pretrained transformer over examples: checked, without dropout, and put back as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from .._validation import fail
from .data import Examples

READOUTS = ("mean", "first", "last")


@contextmanager
def reading(
    model: Any, examples: Examples, device: torch.device | str | None = None, *, gradients: bool = False
) -> Iterator[torch.device]:
    """The model on its device, without dropout, its weights held fixed; afterwards every part is as it was.

    Arguments:
        gradients: keep track of gradients, in a mask say; those of the weights are left out either way.
    """
    if not (isinstance(model, torch.nn.Module) and hasattr(model, "base_model") and hasattr(model, "config")):
        raise TypeError(str(fail("model", f"a {type(model).__name__}", "a PyTorch model of transformers")))
    check_fits(model, examples)
    if device is not None:
        model.to(device)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in trained:
        weight.requires_grad_(False)
    try:
        with evaluating(model), torch.set_grad_enabled(gradients), padded_with(model, examples):
            yield next(model.parameters()).device
    finally:
        for weight in trained:
            weight.requires_grad_(True)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model without dropout for a while; afterwards every part is in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def padded_with(model: Any, examples: Examples) -> Iterator[None]:
    """The model configured with the padding of the examples: decoders classify by the last other token."""
    if "input_ids" not in examples.inputs:
        yield
        return
    config = model.config.get_text_config()
    before = getattr(config, "pad_token_id", None)
    config.pad_token_id = examples.padding
    try:
        yield
    finally:
        config.pad_token_id = before


def run(model: Any, inputs: Mapping[str, torch.Tensor]) -> Any:
    """The output of a model, without keys and values kept for later tokens."""
    caches = "input_ids" in inputs and getattr(model.config, "use_cache", False)
    return model(**inputs, **({"use_cache": False} if caches else {}))


def read_out(states: torch.Tensor, mask: torch.Tensor | None, readout: str) -> torch.Tensor:
    """From [example, token, feature] to [example, feature], over the tokens of a mask [example, token]."""
    if mask is None:
        mask = torch.ones(states.shape[:2], device=states.device, dtype=torch.int64)
    if readout == "mean":
        return (states * (mask / mask.sum(1, keepdim=True))[..., None]).sum(1)
    return states[torch.arange(len(states), device=states.device), token_read(mask, readout)]


def token_read(mask: torch.Tensor, readout: str) -> torch.Tensor:
    """The place of the first or the last token of a mask [example, token], by example."""
    return mask.argmax(1) if readout == "first" else mask.shape[1] - 1 - mask.flip(1).argmax(1)


def predicts_next(model: Any) -> bool:
    """Whether a model predicts the next token from those before; encoders would see the answer."""
    config = getattr(model, "config", None)
    generates = hasattr(model, "can_generate") and model.can_generate()
    # Encoders that could be run as decoders say whether they are; decoders say nothing.
    decides = getattr(config, "is_decoder", None) is not False and not getattr(config, "is_encoder_decoder", False)
    return bool(generates and decides)


def need_causal(model: Any) -> None:
    """An error where a model does not predict the next token from those before."""
    if not predicts_next(model):
        raise fail("model", f"a {type(model).__name__}", "a causal language model")


def need_token_logits(model: Any, examples: Examples) -> None:
    """An error where a model does not predict the tokens that the examples have for targets."""
    examples.need_tokens()
    if predicts_next(model):
        return
    if not type(model).__name__.endswith(("ForMaskedLM", "ForTokenClassification")):
        raise fail("model", f"a {type(model).__name__}", "a causal language model, or one of masked tokens")
    if examples.kind != "tokens":
        got = f"examples without labels of tokens for a {type(model).__name__}"
        raise fail("examples", got, "masked ones, as of `Examples.masked`, or labels of every token")
    known = model.config.vocab_size if type(model).__name__.endswith("ForMaskedLM") else model.config.num_labels
    if examples.classes > known:
        raise fail("examples", f"labels of {examples.classes} classes", f"{known}, those of the model")


def check_fits(model: Any, examples: Examples) -> None:
    """An error where tokens or positions are beyond those of the model: on a GPU either would break the process."""
    wanted = model.base_model.main_input_name
    if wanted not in examples.inputs:
        raise fail("examples", ", ".join(examples.inputs), f"{wanted}, which a {type(model).__name__} reads")
    if wanted != "input_ids":
        return
    positions, longest = positions_of(model), int(examples.lengths.max())
    if positions is not None and longest > positions:
        raise fail("examples", f"one of {longest} tokens", f"at most {positions}, the positions of the model")
    largest = max(int(row.max()) for row in examples.inputs["input_ids"])
    known = model.get_input_embeddings().weight.shape[0]
    if largest >= known:
        expected = f"tokens below {known}, as the model has; was this its tokenizer?"
        raise fail("examples", f"a token {largest}", expected)


def positions_of(model: Any) -> int | None:
    """How many tokens a model reads at most, where it says."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    padding = getattr(getattr(model.base_model, "embeddings", None), "padding_idx", None)
    # RoBERTa counts positions from the one after its padding.
    return positions if positions is None or padding is None else positions - padding - 1

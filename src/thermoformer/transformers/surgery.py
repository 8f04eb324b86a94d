"""Heads cut out of a model: their weights are removed, and with them their computation.

Layers may keep different numbers of heads, or none. A layer without heads still adds the bias of its output projection,
and still tells a cache how many tokens have passed, since generation reads positions from it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from .._validation import fail
from .families import FAMILIES, RECORD, Adapter, Head, adapter_for, as_matrix, checked_heads
from .masks import is_masked


def prune_heads(model: Any, heads: Sequence[Head], *, in_place: bool = False) -> Any:
    """A model without the given heads; equal to the one in which they are masked, but smaller and faster.

    Rows of the query, key and value weights and columns of the output projection are removed. The configuration stays
    as it was: `save_pruned`, or `save_pretrained` of the pruned model, writes the result, and `load_pruned` reads it.

    Arguments:
        heads: pairs (layer, head), numbered as in the model before any was removed. All heads of a layer may go.
        in_place: change the model itself rather than a copy. Optimisers that hold its old weights must be made anew.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=9)
        >>> model = BertModel(BertConfig(**sizes))
        >>> smaller = prune_heads(model, [(0, 1), (1, 0), (1, 2)])
        >>> adapter_for(smaller).kept, model.num_parameters() - smaller.num_parameters()
        (((0, 2, 3), (1, 3)), 210)
    """
    adapter = adapter_for(model)
    gone = set(checked_heads(adapter, heads))
    left = [tuple(head for head in kept if (layer, head) not in gone) for layer, kept in enumerate(adapter.kept)]
    return _with_heads(adapter, left, in_place)


def restore_heads(model: Any) -> Any:
    """A copy of full size of a pruned model that gives the same: the heads that were removed are there, with zeros."""
    adapter = adapter_for(model)
    return _with_heads(adapter, [tuple(range(count)) for count in adapter.heads], in_place=False)


def refuse_unfit(adapter: Adapter) -> None:
    """An error for models whose weights cannot be cut: quantised, spread over devices, elsewhere, or masked."""
    model = adapter.model
    if getattr(model, "hf_quantizer", None) is not None or getattr(model, "is_quantized", False):
        raise fail("model", "a quantised model", "one with plain weights; prune first, then quantise")
    if (getattr(model, "_tp_size", None) or 1) > 1:
        raise fail("model", f"a model spread over {model._tp_size} devices", "one whose matrices are whole")
    if is_masked(adapter):
        raise fail("model", "a model inside `head_masks`", "one outside such a block")
    for layer in range(adapter.layers):
        adapter.projection_weight(layer)
        module = adapter.attention(layer)
        # Tools that spread a model over devices replace `forward` on the module, out of reach of a change of class.
        if "forward" in vars(module):
            raise fail("model", "a model whose attention is wrapped", "one loaded without a device map")
        for matrix in (getattr(module, name) for name in adapter.parts.projections):
            if as_matrix(matrix).is_meta and hasattr(matrix, "_hf_hook"):
                raise fail("model", "a model with weights kept on disk", "one whose weights are in memory")


def _with_heads(adapter: Adapter, heads: Sequence[tuple[int, ...]], in_place: bool) -> Any:
    """The model with the heads named for each layer, itself or a copy."""
    refuse_unfit(adapter)
    if not in_place:
        adapter = adapter_for(copy.deepcopy(adapter.model))
    for layer, wanted in enumerate(heads):
        if wanted != adapter.kept[layer]:
            _resize(adapter, layer, wanted)
    model = adapter.model
    vars(model).pop("save_pretrained", None)
    if any(len(kept) < count for kept, count in zip(adapter.kept, adapter.heads, strict=True)):
        # Trainers call it too. What transformers would write of a pruned model, nothing reads.
        model.save_pretrained = partial(_save_pretrained, model)
    return model


def _save_pretrained(model: Any, *arguments: Any, **options: Any) -> None:
    from .files import save_in_place  # which prunes what it loads

    save_in_place(model, *arguments, **options)


def _resize(adapter: Adapter, layer: int, heads: tuple[int, ...]) -> None:
    """Gives a layer the heads named, in their order: what it has of them it keeps, what it lacks is zero."""
    parts, module, had = adapter.parts, adapter.attention(layer), adapter.kept[layer]
    size = adapter.head_size(layer)
    group = adapter.queries_per_head(layer) * size
    blocks = 3 if len(parts.projections) == 1 else 1
    for name, width in zip(parts.projections, (group, size, size), strict=False):
        _resize_matrix(getattr(module, name), True, had, heads, width, blocks)
    _resize_matrix(adapter.projection(layer), False, had, heads, group)
    for name in parts.counts:
        setattr(module, name, len(heads))
    for name in parts.widths:
        setattr(module, name, len(heads) * size)
    setattr(module, RECORD, (adapter.heads[layer], heads))
    whole = getattr(type(module), "whole_class", type(module))
    # A change of class, not a new module: hooks, names of weights and type checks of transformers all hold on.
    module.__class__ = whole if heads else _emptied_class(whole, parts.name)


def _resize_matrix(
    matrix: Any, outputs: bool, had: tuple[int, ...], heads: tuple[int, ...], width: int, blocks: int = 1
) -> None:
    """Resizes the outputs or the inputs of a matrix, where heads are one after another, `width` features each."""
    linear = type(matrix) is nn.Linear
    names = ("in_features", "out_features") if linear else ("nx", "nf")
    setattr(matrix, names[outputs], blocks * len(heads) * width)
    matrix.weight = _resized(matrix.weight, 0 if linear == outputs else 1, had, heads, width, blocks)
    if outputs and matrix.bias is not None:
        matrix.bias = _resized(matrix.bias, 0, had, heads, width, blocks)


def _resized(
    parameter: Any, axis: int, had: tuple[int, ...], heads: tuple[int, ...], width: int, blocks: int
) -> nn.Parameter:
    old = parameter.detach().movedim(axis, 0)
    old = old.reshape(blocks, len(had), width, *old.shape[1:])
    new = old.new_zeros(blocks, len(heads), *old.shape[2:])
    for at, head in enumerate(heads):
        if head in had:
            new[:, at] = old[:, had.index(head)]
    return nn.Parameter(new.flatten(0, 2).movedim(0, axis).contiguous(), requires_grad=parameter.requires_grad)


class _Emptied:
    """What an attention module without heads does: nothing but the bias of its output projection."""

    whole_class: type
    family: str

    def forward(self: Any, hidden_states: torch.Tensor, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        """Same call, same return as the module that had heads."""
        parts = FAMILIES[self.family]
        examples, tokens = hidden_states.shape[:2]
        keys = tokens
        if (past := options.get("past_key_values")) is not None:
            past = getattr(past, "self_attention_cache", past)
            # The length of a cache is read from this layer too, and a tensor without entries counts as none: hence one
            # number per token.
            token = hidden_states.new_zeros(examples, 1, tokens, 1)
            keys = past.update(token, token, self.layer_idx)[0].shape[-2]
        eager = self.config._attn_implementation == "eager"
        attention = hidden_states.new_zeros(examples, 0, tokens, keys) if eager else None
        inside = parts.output.removeprefix(parts.attention + ".")
        if inside == parts.output:
            return hidden_states.new_zeros(examples, tokens, 0), attention
        bias = self.get_submodule(inside).bias
        projected = torch.zeros_like(hidden_states) if bias is None else bias.expand(hidden_states.shape)
        return parts.finish(self, hidden_states, projected), attention

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made on the fly, and cannot be found by its name.
        return _blank, (self.whole_class, self.family), self.__dict__


@cache
def _emptied_class(whole: type, family: str) -> Any:
    return type(f"Emptied{whole.__name__}", (_Emptied, whole), {"whole_class": whole, "family": family})


def _blank(whole: type, family: str) -> Any:
    made = _emptied_class(whole, family)
    return made.__new__(made)

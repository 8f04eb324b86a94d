"""Heads cut out of a model: their weights go, and with them the work.

Layers may keep different numbers of heads, or none. A layer without heads still adds the bias of its output projection,
and still tells a cache how many tokens have passed, since generation reads positions from it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from .._validation import fail
from .families import FAMILIES, RECORD, Adapter, Family, Head, adapter_for, as_matrix, checked_heads
from .masks import is_masked


def prune_heads(model: Any, heads: Sequence[Head], *, in_place: bool = False) -> Any:
    """A model without the given heads; equal to the one in which they are masked, but smaller and faster.

    Rows of the query, key and value weights and columns of the output projection are removed. The configuration stays
    as it was: `save_pruned` and `load_pruned` write and read the result.

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
    gone = checked_heads(adapter, heads)
    refuse_unfit(adapter)
    if not in_place:
        model = copy.deepcopy(model)
        adapter = adapter_for(model)
    for layer, kept in enumerate(adapter.kept):
        left = tuple(head for head in kept if (layer, head) not in gone)
        if left != kept:
            _resize(adapter, layer, left)
    return model


def restore_heads(model: Any) -> Any:
    """A copy of full size of a pruned model that gives the same: the heads that were removed are there, with zeros."""
    adapter = adapter_for(model)
    refuse_unfit(adapter)
    model = copy.deepcopy(model)
    adapter = adapter_for(model)
    for layer, count in enumerate(adapter.heads):
        if len(adapter.kept[layer]) < count:
            _resize(adapter, layer, tuple(range(count)))
    return model


def refuse_unfit(adapter: Adapter) -> None:
    """An error for models whose weights cannot be cut: quantised, spread over devices, elsewhere, or masked."""
    model = adapter.model
    if getattr(model, "hf_quantizer", None) is not None or getattr(model, "is_quantized", False):
        raise fail("model", "a quantised model", "one with plain weights; prune first, then quantise")
    if (getattr(model, "_tp_size", None) or 1) > 1:
        raise fail("model", f"a model spread over {model._tp_size} devices", "one whose matrices are whole")
    if is_masked(model):
        raise fail("model", "a model inside `head_masks`", "one outside such a block")
    names = {adapter.parts.query, adapter.parts.key, adapter.parts.value}
    for layer in range(adapter.layers):
        adapter.projection_weight(layer)
        # Tools that spread a model over devices replace `forward` on the module, out of reach of a change of class.
        if "forward" in vars(adapter.attention(layer)):
            raise fail("model", "a model whose attention is wrapped", "one loaded without a device map")
        for name in names:
            matrix = getattr(adapter.attention(layer), name)
            if as_matrix(matrix).is_meta and hasattr(matrix, "_hf_hook"):
                raise fail("model", "a model with weights kept on disk", "one whose weights are in memory")


def _resize(adapter: Adapter, layer: int, heads: tuple[int, ...]) -> None:
    """Gives a layer the heads named, in their order: what it has of them it keeps, what it lacks is zero."""
    parts, module = adapter.parts, adapter.attention(layer)
    had, size, queries = adapter.kept[layer], adapter.head_size(layer), adapter.queries_per_head(layer)
    if parts.fused:
        _resize_matrix(getattr(module, parts.query), "output", had, heads, size, blocks=3)
    else:
        _resize_matrix(getattr(module, parts.query), "output", had, heads, queries * size)
        _resize_matrix(getattr(module, parts.key), "output", had, heads, size)
        _resize_matrix(getattr(module, parts.value), "output", had, heads, size)
    _resize_matrix(adapter.projection(layer), "input", had, heads, queries * size)
    for name in parts.counts:
        setattr(module, name, len(heads))
    for name in parts.widths:
        setattr(module, name, len(heads) * size)
    setattr(module, RECORD, (adapter.heads[layer], heads))
    whole = getattr(type(module), "whole_class", type(module))
    # A change of class, not a new module: hooks, names of weights and type checks of transformers all hold on.
    module.__class__ = whole if heads else _emptied_class(whole, parts.name)


def _resize_matrix(
    module: Any, side: str, had: tuple[int, ...], heads: tuple[int, ...], width: int, blocks: int = 1
) -> None:
    """Resizes one side of a matrix, on which heads lie one after another, `width` entries each."""
    linear = type(module) is nn.Linear
    axis = 0 if linear == (side == "output") else 1
    names = ("in_features", "out_features") if linear else ("nx", "nf")
    setattr(module, names[side == "output"], blocks * len(heads) * width)
    module.weight = _resized(module.weight, axis, had, heads, width, blocks)
    if side == "output" and module.bias is not None:
        module.bias = _resized(module.bias, 0, had, heads, width, blocks)


def _resized(
    parameter: Any, axis: int, had: tuple[int, ...], heads: tuple[int, ...], width: int, blocks: int
) -> nn.Parameter:
    old = parameter.detach().movedim(axis, 0)
    rest = old.shape[1:]
    old = old.reshape(blocks, len(had), width, *rest)
    new = old.new_zeros(blocks, len(heads), width, *rest)
    for at, head in enumerate(heads):
        if head in had:
            new[:, at] = old[:, had.index(head)]
    new = new.reshape(blocks * len(heads) * width, *rest).movedim(0, axis).contiguous()
    return nn.Parameter(new, requires_grad=parameter.requires_grad)


class _Emptied:
    """What an attention module without heads does: nothing but the bias of its output projection."""

    whole_class: type
    family_name: str

    def forward(self: Any, hidden_states: torch.Tensor, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        """Same call, same return as the module that had heads."""
        family: Family = next(family for family in FAMILIES if family.name == self.family_name)
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
        if not family.projects_inside:
            return hidden_states.new_zeros(examples, tokens, 0), attention
        bias = getattr(self, family.output.removeprefix(family.attention + ".")).bias
        given = torch.zeros_like(hidden_states) if bias is None else bias.expand(hidden_states.shape)
        return family.finish(self, hidden_states, given), attention

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made on the fly, and cannot be found by its name.
        return _blank, (self.whole_class, self.family_name), self.__dict__


@cache
def _emptied_class(whole: type, family_name: str) -> Any:
    entries = {"whole_class": whole, "family_name": family_name, "__doc__": _Emptied.__doc__}
    return type(f"Emptied{whole.__name__}", (_Emptied, whole), entries)


def _blank(whole: type, family_name: str) -> Any:
    made = _emptied_class(whole, family_name)
    return made.__new__(made)

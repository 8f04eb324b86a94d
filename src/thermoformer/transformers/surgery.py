"""Heads cut out of a model: their weights are removed, and with them their computation.

Layers may keep different numbers of heads, or none. A layer without heads still adds the bias of its output projection,
and still tells a cache how many tokens have passed, since generation reads positions from it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache, partial
from inspect import signature
from typing import Any

import torch
from torch import nn

from .._validation import fail
from .families import RECORD, Adapter, Head, adapter_for, as_matrix, checked_heads, family_named
from .masks import is_masked

# Attributes of attention modules with the number of query heads, of key heads, and of features of all query heads.
_QUERIES, _KEYS = ("num_attention_heads", "num_heads", "n_heads"), ("num_key_value_heads",)
_WIDTHS = ("all_head_size", "split_size", "inner_dim")


def prune_heads(model: Any, heads: Sequence[Head], *, in_place: bool = False) -> Any:
    """A model without the given heads; equal to the one in which they are masked, but smaller and faster.

    Rows of the query, key and value weights and columns of the output projection are removed. The configuration stays
    as it was: `save_pruned`, or `save_pretrained` of the pruned model, writes the result, and `load_pruned` reads it.

    Arguments:
        heads: pairs (layer, head), numbered as in the model before any was removed. All heads of a layer may go. Where
            several queries share a head, (layer, head, query) silences one of them, and a head that has no other query
            left is cut.
        in_place: change the model itself rather than a copy. Optimisers that hold its old weights must be made anew. A
            model of which only the body was changed is saved with `save_pruned`, not with its own `save_pretrained`.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=9)
        >>> model = BertModel(BertConfig(**sizes))
        >>> smaller = prune_heads(model, [(0, 1), (1, 0), (1, 2)])
        >>> adapter_for(smaller).kept, model.num_parameters() - smaller.num_parameters()
        (((0, 2, 3), (1, 3)), 210)
    """
    adapter = adapter_for(model)
    given = checked_heads(adapter, heads, queries=True)
    refuse_unfit(adapter)
    silent = {place for place in given if len(place) == 3}
    gone = {place[:2] for place in given if len(place) == 2 or _falls_silent(adapter, place[:2], silent)}
    left = [tuple(head for head in kept if (layer, head) not in gone) for layer, kept in enumerate(adapter.kept)]
    smaller = _with_heads(adapter, left, in_place)
    after = adapter_for(smaller)
    with torch.no_grad():
        for layer, head, query in silent:
            if (layer, head) not in gone:
                after.projection_weight(layer)[after.columns(layer, head, query)] = 0
    return smaller


def _falls_silent(adapter: Adapter, head: Head, silent: set[tuple[int, int, int]]) -> bool:
    """Whether no query of a head adds anything with some of them silenced, and others silenced before."""
    weight = adapter.projection_weight(head[0])
    queries = [(*head, query) for query in range(adapter.queries_per_head(head[0]))]
    return all(place in silent or not weight[adapter.columns(*place)].any() for place in queries)


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
    size, group, count = adapter.head_size(layer), adapter.queries_per_head(layer), adapter.heads[layer]
    normed = (module.q_norm, module.k_norm) if adapter.normed_whole(layer) else ()
    for part, outputs, widths in list(adapter.cuts(layer)):
        if isinstance(part, nn.Parameter):
            name = next(name for name, one in module.named_parameters(recurse=False) if one is part)
            setattr(module, name, _resized(part, 0, had, heads, widths))
        else:
            _resize_matrix(part, outputs, had, heads, widths)
    for names, number in ((_QUERIES, len(heads) * group), (_KEYS, len(heads)), (_WIDTHS, len(heads) * group * size)):
        for name in names:
            if hasattr(module, name):
                setattr(module, name, number)
    if parts.counts_in_config:
        module.config = _LayerConfig(
            getattr(module.config, "whole", module.config),
            num_attention_heads=len(heads) * group,
            num_key_value_heads=len(heads),
        )
    setattr(module, RECORD, (count, heads))
    # A change of class, not a new module: hooks, names of weights and type checks of transformers all hold on.
    whole = _whole_class(module)
    if not heads:
        module.__class__ = _changed_class(_Emptied, whole, (parts.name, parts.output))
    elif parts.per_head and len(heads) < count:
        narrowed = _NarrowedT5 if hasattr(module, "has_relative_attention_bias") else _Narrowed
        module.__class__ = _changed_class(narrowed, whole, parts.per_head)
    else:
        module.__class__ = whole
    for norm in normed:
        setattr(norm, RECORD, (count, heads))
        norm.__class__ = _changed_class(_NormOfAll, _whole_class(norm))


def _resize_matrix(
    matrix: Any, outputs: bool, had: tuple[int, ...], heads: tuple[int, ...], widths: tuple[int, ...]
) -> None:
    """Resizes the outputs or the inputs of a matrix: blocks of heads one after another, each of that many features."""
    linear = type(matrix) is nn.Linear
    names = ("in_features", "out_features") if linear else ("nx", "nf")
    setattr(matrix, names[outputs], len(heads) * sum(widths))
    matrix.weight = _resized(matrix.weight, 0 if linear == outputs else 1, had, heads, widths)
    if outputs and matrix.bias is not None:
        matrix.bias = _resized(matrix.bias, 0, had, heads, widths)


def _resized(
    parameter: Any, axis: int, had: tuple[int, ...], heads: tuple[int, ...], widths: tuple[int, ...]
) -> nn.Parameter:
    old, blocks = parameter.detach().movedim(axis, 0), []
    for rows, width in zip(old.split([len(had) * width for width in widths]), widths, strict=True):
        rows = rows.reshape(len(had), width, *rows.shape[1:])
        block = rows.new_zeros(len(heads), *rows.shape[1:])
        for at, head in enumerate(heads):
            if head in had:
                block[at] = rows[had.index(head)]
        blocks.append(block.flatten(0, 1))
    new = torch.cat(blocks).movedim(0, axis).contiguous()
    return nn.Parameter(new, requires_grad=parameter.requires_grad)


class _LayerConfig:
    """The configuration of a model as one layer sees it: with the layer's own numbers of heads."""

    def __init__(self, whole: Any, **numbers: int) -> None:
        self.whole = whole
        self.__dict__.update(numbers)

    def __getattr__(self, name: str) -> Any:
        if name == "whole":  # a copy asks before it has any entry
            raise AttributeError(name)
        return getattr(self.whole, name)


class _Changed:
    """The base of what a class of transformers becomes when heads are cut."""

    whole_class: type
    mixin: type
    details: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made on the fly, and cannot be found by its name.
        return _blank, (self.mixin, self.whole_class, self.details), self.__dict__


class _NormOfAll(_Changed):
    """A norm over the features of all heads, of which those that are left go on."""

    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        """Normalised features of the heads left."""
        count, heads = getattr(self, RECORD)
        return self.whole_class.forward(self, hidden_states).unflatten(-1, (count, -1))[..., list(heads), :].flatten(-2)


class _Narrowed(_Changed):
    """Attention that is given something for each head of the whole layer, and takes that of the heads left."""

    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        """Same call, same return as the whole module."""
        given = signature(self.whole_class.forward).bind(self, *arguments, **options)
        name, _ = self.details
        if given.arguments.get(name) is not None:
            given.arguments[name] = self.narrowed(given.arguments[name])
        return self.whole_class.forward(*given.args, **given.kwargs)

    def narrowed(self: Any, whole: torch.Tensor) -> torch.Tensor:
        """The entries of the heads left."""
        _, axis = self.details
        count, heads = getattr(self, RECORD)
        by_head = whole.unflatten(axis, (-1, count)).movedim(axis + 1, 0)
        return by_head[list(heads)].movedim(0, axis + 1).flatten(axis, axis + 1)


class _NarrowedT5(_Narrowed):
    """Attention of T5, whose first layer computes the bias of positions of all heads and hands it on."""

    def forward(self: Any, *arguments: Any, position_bias: torch.Tensor | None = None, **options: Any) -> Any:
        """Same call, same return as the whole module."""
        self.whole_bias = position_bias
        output, bias, attention = super().forward(*arguments, position_bias=position_bias, **options)
        whole, self.whole_bias = self.whole_bias, None
        if whole is None:  # cross-attention, where the bias is zero
            whole = bias.new_zeros(1, getattr(self, RECORD)[0], *bias.shape[2:])
        return output, whole, attention

    def compute_bias(self: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        """The bias of the heads left."""
        self.whole_bias = self.whole_class.compute_bias(self, *arguments, **options)
        return self.narrowed(self.whole_bias)


class _Emptied(_Changed):
    """What an attention module without heads does: nothing but the bias of its output projection."""

    def forward(self: Any, hidden_states: torch.Tensor, *arguments: Any, **options: Any) -> tuple[Any, ...]:
        """Same call, same return as the module that had heads."""
        family, output = self.details
        examples, tokens = hidden_states.shape[:2]
        seen, keys = 0, tokens
        past = options.get("past_key_values")
        past = options.get("layer_past") if past is None else past
        if (crossed := options.get("key_value_states")) is not None:
            keys = crossed.shape[1]
        elif past is not None:
            past = getattr(past, "self_attention_cache", past)
            # The length of a cache is read from this layer too, and a tensor without entries counts as none: hence one
            # number per token.
            token = hidden_states.new_zeros(examples, 1, tokens, 1)
            place = self.layer_idx if hasattr(self, "layer_idx") else self.layer_id
            seen = past.get_seq_length(place)
            keys = past.update(token, token, place)[0].shape[-2]
        eager = getattr(getattr(self, "config", None), "_attn_implementation", "eager") == "eager"
        attention = hidden_states.new_zeros(examples, 0, tokens, keys) if eager else None
        if output.startswith("../"):
            return hidden_states.new_zeros(examples, tokens, 0), attention
        bias = self.get_submodule(output).bias
        projected = torch.zeros_like(hidden_states) if bias is None else bias.expand(hidden_states.shape)
        projected = family_named(family).finish(self, hidden_states, projected, *arguments)
        if not hasattr(self, "has_relative_attention_bias"):
            return projected, attention
        # T5 hands the bias of positions on to the layers above.
        bias = options.get("position_bias")
        if bias is None and self.has_relative_attention_bias:
            bias = self.compute_bias(tokens, keys, device=hidden_states.device, past_seen_tokens=seen)
        elif bias is None:
            bias = hidden_states.new_zeros(1, getattr(self, RECORD)[0], tokens, keys)
        return projected, bias, attention


def _whole_class(module: Any) -> type:
    return getattr(type(module), "whole_class", type(module))


@cache
def _changed_class(mixin: type, whole: type, details: tuple[Any, ...] = ()) -> Any:
    entries = {"whole_class": whole, "mixin": mixin, "details": details}
    return type(mixin.__name__.removeprefix("_") + whole.__name__, (mixin, whole), entries)


def _blank(mixin: type, whole: type, details: tuple[Any, ...]) -> Any:
    made = _changed_class(mixin, whole, details)
    return made.__new__(made)

"""Heads multiplied by a mask, without a change to the model.

The mask multiplies the output of each head: the input of the output projection. Attention itself is left alone, so this
works with every implementation of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._validation import fail
from .families import Adapter, Head, adapter_for, checked_heads


class HeadMasks:
    """A model under a mask, while the `with` block lasts. `head_masks` makes it.

    The mask can be replaced inside the block: `masks.mask = another`. Blocks can be nested; their masks multiply.
    """

    def __init__(self, model: Any, mask: torch.Tensor | Sequence[Head]) -> None:
        self.adapter = adapter_for(model)
        self.heads = self.adapter.all_heads()
        adapter = self.adapter
        self.queries = [(*head, query) for head in self.heads for query in range(adapter.queries_per_head(head[0]))]
        self.mask = mask
        self._handles: list[Any] = []

    @property
    def mask(self) -> torch.Tensor:
        """The mask [head] or [example, head], in the order of `heads`; or with an entry for each of their queries."""
        return self._mask

    @mask.setter
    def mask(self, mask: Any) -> None:
        if not isinstance(mask, torch.Tensor):
            off = set(checked_heads(self.adapter, mask, "mask", queries=True))
            if any(len(place) == 3 for place in off):
                mask = torch.tensor([0.0 if {place, place[:2]} & off else 1.0 for place in self.queries])
            else:
                mask = torch.tensor([0.0 if head in off else 1.0 for head in self.heads])
        counts = sorted({len(self.heads), len(self.queries)})
        if mask.ndim not in (1, 2) or mask.shape[-1] not in counts:
            queries = f", or their {counts[1]} queries" if len(counts) > 1 else ""
            expected = f"[head] or [example, head] with {len(self.heads)} heads, those that the model has{queries}"
            raise fail("mask", f"a tensor of shape {tuple(mask.shape)}", expected)
        if mask.is_complex():
            raise fail("mask", f"a tensor of type {mask.dtype}", "real numbers")
        self._mask = mask

    def __enter__(self) -> HeadMasks:
        if self._handles:
            raise fail("head_masks", "a block inside its own", "a new `head_masks` for a block within")
        for layer, kept in enumerate(self.adapter.kept):
            if kept:
                # By the length of the mask, which may be replaced inside the block.
                entries = {len(places): _entries(places, layer) for places in (self.queries, self.heads)}
                hook = _MaskHook(self, entries)
                self._handles.append(self.adapter.projection(layer).register_forward_pre_hook(hook))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


class _MaskHook:
    """Multiplies the input of an output projection, head by head."""

    def __init__(self, masks: HeadMasks, entries: dict[int, slice]) -> None:
        self.masks, self.entries = masks, entries

    def __call__(self, module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        given, *others = arguments
        mask = self.masks.mask
        mask = mask[..., self.entries[mask.shape[-1]]].to(given.device, given.dtype)
        factors = mask.repeat_interleave(given.shape[-1] // mask.shape[-1], dim=-1)
        if factors.ndim == 2:
            if len(factors) != len(given):
                raise fail("mask", f"masks for {len(factors)} examples", f"{len(given)}, the examples of the batch")
            factors = factors[:, None, :]
        return given * factors, *others


def _entries(places: Sequence[tuple[int, ...]], layer: int) -> slice:
    """Where a layer is among places that begin with their layers, in ascending order."""
    layers = [place[0] for place in places]
    return slice(layers.index(layer), layers.index(layer) + layers.count(layer))


def head_masks(model: Any, mask: torch.Tensor | Sequence[Head]) -> HeadMasks:
    """A `with` block in which every head of the model is multiplied by its entry of a mask.

    Arguments:
        mask: a tensor [head] in the order of `adapter_for(model).all_heads()`, or [example, head] with a mask for each
            example of a batch; gradients with respect to it come from one backward pass. Or a list of (layer, head)
            to switch off. Where several queries share a head, a mask may have an entry for each query, and a list may
            have (layer, head, query).

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=9)
        >>> model, mask = BertModel(BertConfig(**sizes)).eval(), torch.ones(8, requires_grad=True)
        >>> with head_masks(model, mask):
        ...     model(torch.tensor([[1, 2, 3]])).pooler_output.sum().backward()
        >>> mask.grad.shape
        torch.Size([8])
        >>> with head_masks(model, [(0, 3), (1, 0)]) as masks:
        ...     masks.mask.tolist()
        [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    """
    return HeadMasks(model, mask)


def is_masked(adapter: Adapter) -> bool:
    """Whether a block of `head_masks` is open on the model of an adapter."""
    projections = [adapter.projection(layer) for layer in range(adapter.layers)]
    return any(isinstance(hook, _MaskHook) for one in projections for hook in one._forward_pre_hooks.values())

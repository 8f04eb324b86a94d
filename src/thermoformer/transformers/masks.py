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
        self.mask = mask
        self._handles: list[Any] = []

    @property
    def mask(self) -> torch.Tensor:
        """The mask [head] or [example, head], in the order of `heads`."""
        return self._mask

    @mask.setter
    def mask(self, mask: Any) -> None:
        if not isinstance(mask, torch.Tensor):
            off = set(checked_heads(self.adapter, mask, "mask"))
            mask = torch.tensor([0.0 if head in off else 1.0 for head in self.heads])
        if mask.ndim not in (1, 2) or mask.shape[-1] != len(self.heads):
            expected = f"[head] or [example, head] with {len(self.heads)} heads, those that the model has"
            raise fail("mask", f"a tensor of shape {tuple(mask.shape)}", expected)
        if mask.is_complex():
            raise fail("mask", f"a tensor of type {mask.dtype}", "real numbers")
        self._mask = mask

    def __enter__(self) -> HeadMasks:
        if self._handles:
            raise fail("head_masks", "a block inside its own", "a new `head_masks` for a block within")
        start = 0
        for layer, kept in enumerate(self.adapter.kept):
            if kept:
                hook = _MaskHook(self, slice(start, start + len(kept)))
                self._handles.append(self.adapter.projection(layer).register_forward_pre_hook(hook))
            start += len(kept)
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


class _MaskHook:
    """Multiplies the input of an output projection, head by head."""

    def __init__(self, masks: HeadMasks, heads: slice) -> None:
        self.masks, self.heads = masks, heads

    def __call__(self, module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        given, *others = arguments
        mask = self.masks.mask[..., self.heads].to(given.device, given.dtype)
        factors = mask.repeat_interleave(given.shape[-1] // mask.shape[-1], dim=-1)
        if factors.ndim == 2:
            if len(factors) != len(given):
                raise fail("mask", f"masks for {len(factors)} examples", f"{len(given)}, the examples of the batch")
            factors = factors[:, None, :]
        return given * factors, *others


def head_masks(model: Any, mask: torch.Tensor | Sequence[Head]) -> HeadMasks:
    """A `with` block in which every head of the model is multiplied by its entry of a mask.

    Arguments:
        mask: a tensor [head] in the order of `adapter_for(model).all_heads()`, or [example, head] with a mask for each
            example of a batch; gradients with respect to it come from one backward pass. Or a list of (layer, head)
            to switch off.

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

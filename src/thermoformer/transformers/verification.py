"""Whether heads that are cut give what masked heads give: the check of models whose family has no description."""

from __future__ import annotations

import copy
from typing import Any

import torch

from .._validation import fail
from .contributions import tolerance_of
from .families import VERIFIED, Adapter
from .masks import head_masks
from .passes import evaluating, run
from .surgery import prune_heads

_EXAMPLES, _TOKENS = 2, 8


def verify(adapter: Adapter, expected: str) -> None:
    """An error unless a model without some heads, one layer emptied, gives what it gives with these heads masked."""
    model = adapter.model
    body, name = model.base_model, type(model).__name__
    # While the check runs, and of its copy, too.
    setattr(body, VERIFIED, True)
    gone = [head for head in adapter.all_heads() if head[1] == 0 or (head[0] == 0 and adapter.layers > 1)]
    # The copy shares all weights but those that are cut.
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*body.parameters(), *body.buffers())}
    try:
        inputs = _random_inputs(body)
        with torch.no_grad(), evaluating(body):
            with head_masks(body, gone):
                masked = run(body, inputs).last_hidden_state
            cut = run(prune_heads(copy.deepcopy(body, shared), gone, in_place=True), inputs).last_hidden_state
        miss = float((cut - masked).abs().max() / masked.abs().max())
        if not miss <= tolerance_of(masked.dtype):
            raise ValueError(f"with heads cut it misses what it gives with them masked by {miss:.2g}")
    except Exception as error:  # of parts that nobody foresaw
        delattr(body, VERIFIED)
        got = f"a {name}, whose heads cannot be removed ({' '.join(str(error).split())[:300]})"
        raise fail("model", got, expected) from error


def _random_inputs(body: Any) -> dict[str, torch.Tensor]:
    """Tokens or images as a model takes them."""
    generator, config = torch.Generator().manual_seed(0), body.config
    if body.main_input_name == "pixel_values":
        size = getattr(config, "image_size", 224)
        rows, columns = (size, size) if isinstance(size, int) else size
        shape = _EXAMPLES, getattr(config, "num_channels", 3), rows, columns
        values = torch.randn(shape, generator=generator)
        return {"pixel_values": values.to(body.device, body.dtype)}
    tokens = torch.randint(config.get_text_config().vocab_size, (_EXAMPLES, _TOKENS), generator=generator)
    names = ("input_ids", "decoder_input_ids") if config.is_encoder_decoder else ("input_ids",)
    return dict.fromkeys(names, tokens.to(body.device))

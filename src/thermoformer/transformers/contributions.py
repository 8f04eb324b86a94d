"""What each head adds to the residual stream, read where a task reads it.

Head h of layer l adds A V W_O[h] at every token. A readout (a mean over tokens, say) is linear, and so is W_O: what the
head attends to is read out first, and only then multiplied by W_O. That is one product of [example, column] with
[column, feature] per layer, as many operations as the layer itself spends on one token of each example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .._progress import Progress, shown_progress
from .._validation import fail, one_of
from .families import Adapter, Head, adapter_for
from .passes import READOUTS, evaluating, run, token_read

if TYPE_CHECKING:
    import xarray

POSITIONS = "readout_positions"

# Relative to the largest entry of a layer's output. Models of 16 bits round that output to 8 or 11 bits.
_TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}

# What batches carry for tasks on top of the body, which alone is run here.
_FOR_THE_TASK = ("labels", "next_sentence_label", "sentence_order_label", "start_positions", "end_positions")


def tolerance_of(dtype: torch.dtype) -> float:
    """How far numbers of a precision may miss each other, relative to the largest."""
    return _TOLERANCES.get(dtype, 1e-4)


@dataclass(frozen=True, eq=False)
class HeadContributions:
    """What each head adds to the residual stream at the readout.

    Fields:
        values: float32 [example, head, feature]; with readout "positions", a row for every position of every example.
        heads: (layer, head) along the second axis.
        output_bias: float32 [layer, feature], what the biases of the output projections add, as often as a layer runs.
        largest_miss: the largest deviation between the sum over heads with the bias and the layer's own output,
            relative to the largest entry of the latter.
        readout: as asked for.
    """

    values: np.ndarray
    heads: list[Head]
    output_bias: np.ndarray
    largest_miss: float
    readout: str

    def to_xarray(self) -> xarray.Dataset:
        """Contributions [example, head, feature] with names of heads such as "0.3", and the biases [layer, feature]."""
        import xarray

        from ..learning.scores import head_name

        layers = [layer for layer, _ in self.heads]
        return xarray.Dataset(
            {
                "contribution": (("example", "head", "feature"), self.values),
                "output_bias": (("layer", "feature"), self.output_bias),
            },
            coords={"head": [head_name(head) for head in self.heads], "layer_of_head": ("head", layers)},
            attrs={"readout": self.readout, "largest_miss": self.largest_miss},
        )


def head_contributions(
    model: Any,
    batches: Iterable[Mapping[str, Any]],
    *,
    readout: str = "mean",
    progress: Progress | bool | None = None,
) -> HeadContributions:
    """What every head of a model adds to the residual stream at the readout, in one pass over the data.

    The sum over the heads of a layer and the bias of its output projection are compared with the layer's own output in
    every batch. Where layers repeat the same weights (ALBERT), contributions of a head are summed over repetitions.

    Arguments:
        batches: dictionaries of tensors as the model takes them (input_ids and attention_mask, or pixel_values).
        readout: "mean" over the tokens of the attention mask, its "first" or "last" token, or "positions", an integer
            tensor [example, position] that each batch then carries as "readout_positions".
        progress: called as progress(batches done, batches in all, message), or True or False for a bar or none.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=9)
        >>> batches = [{"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]])}]
        >>> head_contributions(BertModel(BertConfig(**sizes)), batches, readout="first").values.shape
        (2, 8, 8)
    """
    one_of("readout", readout, (*READOUTS, "positions"))
    adapter = adapter_for(model)
    heads = adapter.all_heads()
    if not heads:
        raise fail("model", "a model without heads", "one with a head or more")
    if isinstance(batches, Mapping) or not isinstance(batches, Iterable):
        raise TypeError(str(fail("batches", f"a {type(batches).__name__}", "an iterable of dictionaries of tensors")))
    rows: list[np.ndarray] = []
    total = len(batches) if isinstance(batches, Sized) else 0
    with shown_progress(progress) as report, evaluating(model), torch.no_grad(), _Reader(adapter) as reader:
        for done, batch in enumerate(batches):
            report(done, max(total, done + 1), "reading heads")
            rows.append(reader.read(batch, readout, f"batches[{done}]"))
    if not rows:
        raise fail("batches", "none", "at least one batch")
    found = np.zeros((adapter.layers, adapter.hidden_size), np.float32)
    for layer, times in enumerate(reader.repetitions):
        if (bias := adapter.output_bias(layer)) is not None:
            found[layer] = times * bias.detach().float().cpu().numpy()
    return HeadContributions(np.concatenate(rows), heads, found, reader.largest_miss, readout)


class _Reader:
    """Hooks on the layers that keep what heads add, one batch at a time."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.largest_miss = 0.0
        self.repetitions = np.zeros(adapter.layers, np.float32)
        self._hooks = [(adapter.attention(layer), self._counter(layer)) for layer in range(adapter.layers)]
        for layer, kept in enumerate(adapter.kept):
            if kept:
                self._hooks.append((adapter.projection(layer), self._keeper(layer, len(kept))))

    def __enter__(self) -> _Reader:
        self._handles = [module.register_forward_hook(hook) for module, hook in self._hooks]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def read(self, batch: Any, readout: str, name: str) -> np.ndarray:
        """Contributions [row, head, feature] of one batch."""
        if not isinstance(batch, Mapping):
            raise TypeError(str(fail(name, f"a {type(batch).__name__}", "a dictionary of tensors")))
        inputs = {key: value for key, value in batch.items() if key not in (POSITIONS, *_FOR_THE_TASK)}
        for key, value in inputs.items():
            if not isinstance(value, torch.Tensor):
                raise TypeError(str(fail(f"{name}[{key!r}]", f"a {type(value).__name__}", "a tensor")))
        inputs = {key: value.to(self.adapter.model.device) for key, value in inputs.items()}
        positions = _positions(batch, name) if readout == "positions" else None
        self._pool = _Pool(readout, inputs.get("attention_mask"), positions, name)
        self._sums: dict[int, torch.Tensor] = {}
        self.repetitions[:] = 0
        run(self.adapter.model.base_model, inputs)
        return torch.cat([self._sums[layer] for layer in sorted(self._sums)], dim=1).cpu().numpy()

    def _counter(self, layer: int) -> Any:
        def count(module: Any, arguments: tuple[Any, ...], output: Any) -> None:
            self.repetitions[layer] += 1

        return count

    def _keeper(self, layer: int, heads: int) -> Any:
        matrix = self.adapter.projection_weight(layer).detach().float()
        weight = matrix.reshape(heads, -1, matrix.shape[-1])
        bias = self.adapter.output_bias(layer)

        def keep(module: Any, arguments: tuple[Any, ...], output: torch.Tensor) -> None:
            given = self._pool(arguments[0])
            parts = torch.einsum("rhc,hcf->rhf", given.reshape(len(given), heads, -1), weight)
            self._compare(layer, parts.sum(1) + (0 if bias is None else bias.float()), self._pool(output), output.dtype)
            self._sums[layer] = parts if layer not in self._sums else self._sums[layer] + parts

        return keep

    def _compare(self, layer: int, found: torch.Tensor, actual: torch.Tensor, dtype: torch.dtype) -> None:
        scale = float(actual.abs().max())
        miss = float((found - actual).abs().max()) / (scale or 1.0)
        # Written so that NaN fails too.
        if not miss <= tolerance_of(dtype):
            got = f"heads of layer {layer} that miss its output by {miss:.2g} of its largest entry"
            raise fail("model", got, "heads that add up to it; is the output projection altered or wrapped?")
        self.largest_miss = max(self.largest_miss, miss)


class _Pool:
    """Reads tokens out: from [example, token, column] to float32 [row, column]."""

    def __init__(self, readout: str, mask: Any, positions: Any, name: str) -> None:
        self.readout, self.mask, self.positions, self.name = readout, mask, positions, name
        if mask is not None and mask.ndim != 2:
            raise fail(f"{name}['attention_mask']", f"shape {tuple(mask.shape)}", "2 axes [example, token]")
        if mask is not None and not bool(mask.bool().any(dim=1).all()):
            raise fail(f"{name}['attention_mask']", "an example without tokens", "a token or more in each")

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        examples, tokens = values.shape[:2]
        if self.mask is not None and self.mask.shape != (examples, tokens):
            got = f"a mask of {tuple(self.mask.shape)}"
            raise fail(f"{self.name}['attention_mask']", got, f"{(examples, tokens)}, examples and tokens of the layer")
        mask = torch.ones(examples, tokens, device=values.device) if self.mask is None else self.mask.bool().float()
        if self.readout == "mean":
            return torch.einsum("et,etc->ec", mask / mask.sum(1, keepdim=True), values.float())
        if self.positions is None:
            chosen = token_read(mask, self.readout)[:, None]
        else:
            chosen = self.positions
            if len(chosen) != examples or (chosen.numel() and not 0 <= int(chosen.min()) <= int(chosen.max()) < tokens):
                got = f"{len(chosen)} examples with positions up to {int(chosen.max())}, from {int(chosen.min())}"
                expected = f"{examples} examples with positions from 0 to {tokens - 1}"
                raise fail(f"{self.name}[{POSITIONS!r}]", got, expected)
        index = chosen.to(values.device, torch.int64)[..., None].expand(-1, -1, values.shape[-1])
        return values.gather(1, index).flatten(0, 1).float()


def _positions(batch: Mapping[str, Any], name: str) -> torch.Tensor:
    """The positions that a batch carries [example, position]."""
    if POSITIONS not in batch:
        raise fail(name, f"no {POSITIONS!r}", f"{POSITIONS!r} [example, position], for readout 'positions'")
    name, expected = f"{name}[{POSITIONS!r}]", "integers [example, position]"
    try:
        positions = torch.as_tensor(batch[POSITIONS])
    except (TypeError, ValueError) as error:
        raise fail(name, f"no table ({error})", expected) from error
    if positions.ndim != 2 or positions.is_floating_point() or positions.dtype is torch.bool:
        raise fail(name, f"{positions.dtype} of shape {tuple(positions.shape)}", expected)
    return positions

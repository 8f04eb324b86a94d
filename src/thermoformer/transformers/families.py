"""Where the attention heads lie in pretrained transformers: one adapter for all families of models.

A head is what can go on its own: its query, key and value rows, and its columns of the output projection. Where several
queries share one key and value (grouped-query attention), the group is the head. Layers that repeat the same weights
(ALBERT) count once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import index
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from .._validation import fail

Head = tuple[int, int]

# On the attention module: (heads that it was made with, heads still there in that numbering). It lies there, and not on
# the model, so that a model and the body inside it agree, whichever of them was pruned.
RECORD = "thermoformer_heads"


@dataclass(frozen=True)
class Family:
    """How models of one architecture name the parts of their attention.

    Fields:
        name: as users know it.
        model_type: as transformers names its folder.
        layers: from the body of a model to its layers, those with parameters of their own.
        attention: path from a layer to the module that makes queries, keys and values.
        output: path from a layer to the output projection.
        query, key, value: names in the attention module; all the same where one matrix makes all three.
        size: name of the number of features per head.
        counts, widths: attributes of the attention module that count heads, and features of all heads.
        finish: what the attention module does after the output projection.
        read: the token that classifiers of the family read, "first" or "last".
    """

    name: str
    model_type: str
    layers: Callable[[Any], list[Any]]
    attention: str
    output: str
    query: str
    key: str
    value: str
    size: str
    counts: tuple[str, ...] = ()
    widths: tuple[str, ...] = ()
    finish: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor] = lambda module, hidden, given: given
    read: str = "first"

    @property
    def module(self) -> str:
        """The module of transformers that defines the family's models."""
        return f"transformers.models.{self.model_type}.modeling_{self.model_type}"

    @property
    def fused(self) -> bool:
        """Whether one matrix makes queries, keys and values."""
        return self.query == self.value

    @property
    def projects_inside(self) -> bool:
        """Whether the output projection is part of the attention module."""
        return self.output.startswith(self.attention + ".")


def _bert_like(name: str, model_type: str) -> Family:
    return Family(
        name,
        model_type,
        layers=lambda body: list(body.encoder.layer),
        attention="attention.self",
        output="attention.output.dense",
        query="query",
        key="key",
        value="value",
        size="attention_head_size",
        counts=("num_attention_heads",),
        widths=("all_head_size",),
    )


def _llama_like(name: str, model_type: str) -> Family:
    return Family(
        name,
        model_type,
        layers=lambda body: list(body.layers),
        attention="self_attn",
        output="self_attn.o_proj",
        query="q_proj",
        key="k_proj",
        value="v_proj",
        size="head_dim",
        read="last",
    )


FAMILIES = (
    _bert_like("BERT", "bert"),
    _bert_like("RoBERTa", "roberta"),
    _bert_like("XLM-RoBERTa", "xlm_roberta"),
    Family(
        "DistilBERT",
        "distilbert",
        layers=lambda body: list(body.transformer.layer),
        attention="attention",
        output="attention.out_lin",
        query="q_lin",
        key="k_lin",
        value="v_lin",
        size="attention_head_size",
        counts=("n_heads",),
    ),
    Family(
        "ALBERT",
        "albert",
        layers=lambda body: [layer for group in body.encoder.albert_layer_groups for layer in group.albert_layers],
        attention="attention",
        output="attention.dense",
        query="query",
        key="key",
        value="value",
        size="attention_head_size",
        counts=("num_attention_heads",),
        widths=("all_head_size",),
        finish=lambda module, hidden, given: module.LayerNorm(hidden + module.output_dropout(given)),
    ),
    Family(
        "GPT-2",
        "gpt2",
        layers=lambda body: list(body.h),
        attention="attn",
        output="attn.c_proj",
        query="c_attn",
        key="c_attn",
        value="c_attn",
        size="head_dim",
        counts=("num_heads",),
        widths=("split_size",),
        finish=lambda module, hidden, given: module.resid_dropout(given),
        read="last",
    ),
    _llama_like("Llama", "llama"),
    _llama_like("Mistral", "mistral"),
    _llama_like("Qwen2", "qwen2"),
    Family(
        "ViT",
        "vit",
        layers=lambda body: list(body.layers),
        attention="attention",
        output="attention.o_proj",
        query="q_proj",
        key="k_proj",
        value="v_proj",
        size="head_dim",
        counts=("num_attention_heads",),
    ),
)


def known_families() -> tuple[str, ...]:
    """The names of the families whose heads can be read and cut.

    Example:
        >>> known_families()[:3]
        ('BERT', 'RoBERTa', 'XLM-RoBERTa')
    """
    return tuple(family.name for family in FAMILIES)


def family_of(model_class: type) -> Family | None:
    """The family that a class of models belongs to, by the classes that it inherits from."""
    homes = {parent.__module__ for parent in model_class.__mro__}
    return next((family for family in FAMILIES if family.module in homes), None)


def adapter_for(model: Any) -> Adapter:
    """The adapter that finds the heads of a model.

    Arguments:
        model: a model of transformers of a known family, with or without a task on top.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=9)
        >>> adapter = adapter_for(BertModel(BertConfig(**sizes)))
        >>> adapter.family, adapter.heads, adapter.columns(0, 3)
        ('BERT', (4, 4), slice(6, 8, None))
    """
    known = "a model of one of the families " + ", ".join(known_families())
    if not isinstance(model, PreTrainedModel):
        raise TypeError(str(fail("model", f"an object of type {type(model).__name__}", f"{known} of transformers")))
    family = family_of(type(model))
    if family is None:
        raise fail("model", f"a {type(model).__name__}", known)
    if getattr(model.config, "is_encoder_decoder", False) or getattr(model.config, "add_cross_attention", False):
        raise fail("model", f"a {type(model).__name__} with cross-attention", "one with self-attention only")
    adapter = Adapter(model, family)
    try:
        for layer in range(adapter.layers):
            adapter.check(layer)
    except AttributeError as error:
        got = f"a {type(model).__name__} without a part of its attention ({error})"
        raise fail("model", got, f"the parts that {family.name} has in transformers") from error
    return adapter


class Adapter:
    """The heads of one model: how many, where, and their weights. `adapter_for` makes it.

    It reads the model as it is now: after heads are removed in place, the same adapter shows those left. Heads are
    always numbered as in the model before any was removed.
    """

    def __init__(self, model: Any, family: Family) -> None:
        self.model = model
        self.parts = family

    @property
    def family(self) -> str:
        """Name of the family."""
        return self.parts.name

    @property
    def hidden_size(self) -> int:
        """Features of the residual stream."""
        return int(self.model.config.hidden_size)

    @property
    def layers(self) -> int:
        """Number of attention layers with parameters of their own."""
        return len(self._layers)

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads of each layer before any was removed."""
        return tuple(self._record(layer)[0] for layer in range(self.layers))

    @property
    def kept(self) -> tuple[tuple[int, ...], ...]:
        """The heads still there, by layer."""
        return tuple(self._record(layer)[1] for layer in range(self.layers))

    def all_heads(self) -> list[Head]:
        """Every (layer, head) still there, counted from 0, layer 0 nearest the input."""
        return [(layer, head) for layer, heads in enumerate(self.kept) for head in heads]

    def attention(self, layer: int) -> Any:
        """The module that makes queries, keys and values."""
        return _at_path(self._layers[layer], self.parts.attention)

    def output_projection(self, layer: int) -> Any:
        """The module that maps what the heads give to the residual stream; None where the layer has no head left."""
        return self.projection(layer) if self.kept[layer] else None

    def projection(self, layer: int) -> Any:
        """The output projection, also where it has no inputs left but a bias still."""
        return _at_path(self._layers[layer], self.parts.output)

    def output_bias(self, layer: int) -> torch.Tensor | None:
        """The bias of the output projection, which stays when all heads are gone."""
        return self.projection(layer).bias

    def queries_per_head(self, layer: int) -> int:
        """1, or the queries that share a key and a value."""
        return int(getattr(self.attention(layer), "num_key_value_groups", 1))

    def head_size(self, layer: int) -> int:
        """Features of one query, key or value."""
        return int(getattr(self.attention(layer), self.parts.size))

    def columns(self, layer: int, head: int) -> slice:
        """Where a head lies in the input of the output projection."""
        width = self.queries_per_head(layer) * self.head_size(layer)
        at = self._position(layer, head)
        return slice(at * width, (at + 1) * width)

    def projection_weight(self, layer: int) -> torch.Tensor:
        """The output projection as a matrix [input, output]; rows of a head are at `columns`."""
        return as_matrix(self.projection(layer))

    def value_weight(self, layer: int, head: int) -> torch.Tensor:
        """The value weights of a head [input, column], repeated for every query that shares them.

        Its product with the rows of `projection_weight` at `columns` is what the head writes of what it attends to.
        """
        size, at = self.head_size(layer), self._position(layer, head)
        matrix = as_matrix(getattr(self.attention(layer), self.parts.value))
        # One matrix for all three: queries first, then keys, then values.
        start = 2 * (matrix.shape[1] // 3) if self.parts.fused else 0
        return matrix[:, start + at * size : start + (at + 1) * size].repeat(1, self.queries_per_head(layer))

    def check(self, layer: int) -> None:
        """An error where the weights are not those of the heads that the record names."""
        output = self.projection(layer)
        width = len(self.kept[layer]) * self.queries_per_head(layer) * self.head_size(layer)
        # Quantised weights are packed into shapes of their own.
        if is_plain(output) and as_matrix(output).shape[0] != width:
            got = f"an output projection in layer {layer} with {as_matrix(output).shape[0]} inputs"
            raise fail("model", got, f"{width}, those of its heads; heads removed by other means are not known here")

    @property
    def _layers(self) -> list[Any]:
        return self.parts.layers(self.model.base_model)

    def _record(self, layer: int) -> tuple[int, tuple[int, ...]]:
        config = self.model.config
        count = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return getattr(self.attention(layer), RECORD, (count, tuple(range(count))))

    def _position(self, layer: int, head: int) -> int:
        if not 0 <= layer < self.layers or head not in self.kept[layer]:
            raise fail("head", (layer, head), "a (layer, head) that the model has; `all_heads` lists them")
        return self.kept[layer].index(head)


def checked_heads(adapter: Adapter, heads: Any, name: str = "heads") -> list[Head]:
    """Different pairs (layer, head), all of them in the model, as plain integers."""
    expected = "a list of different pairs (layer, head)"
    if isinstance(heads, (str, bytes, dict)) or not hasattr(heads, "__iter__"):
        raise TypeError(str(fail(name, repr(heads), expected)))
    pairs: list[Head] = []
    for pair in heads:
        try:
            layer, head = pair
            # Numbers with a fraction and True would pass as integers otherwise.
            if isinstance(layer, bool) or isinstance(head, bool):
                raise TypeError
            pairs.append((index(layer), index(head)))
        except (TypeError, ValueError):
            raise TypeError(str(fail(name, f"{pair!r} among them", expected))) from None
    for layer, head in pairs:
        if not 0 <= layer < adapter.layers or not 0 <= head < adapter.heads[layer]:
            raise fail(name, (layer, head), f"heads of a model with {adapter.heads} heads in its layers, from 0")
        if head not in adapter.kept[layer]:
            raise fail(
                name, f"{(layer, head)}, which is removed already", f"heads of {adapter.kept[layer]}, those left"
            )
    if len(set(pairs)) < len(pairs):
        twice = next(pair for pair in pairs if pairs.count(pair) > 1)
        raise fail(name, f"{twice} more than once", expected)
    return pairs


def is_plain(module: Any) -> bool:
    """Whether a module is a plain matrix: not quantised, not wrapped with an adapter, not spread over machines."""
    # Quantised layers inherit from nn.Linear, hence the exact types.
    return type(module) in (nn.Linear, Conv1D) and type(module.weight) is nn.Parameter


def as_matrix(module: Any) -> torch.Tensor:
    """The weights of a plain matrix as [input, output]: GPT-2 stores them so, nn.Linear the other way round."""
    if not is_plain(module):
        weight = type(getattr(module, "weight", None)).__name__
        got = f"a {type(module).__name__} with a weight of type {weight} in its attention"
        raise fail("model", got, "plain weights: not quantised, not wrapped, not spread over several devices")
    return module.weight if type(module) is Conv1D else module.weight.T


def _at_path(module: Any, path: str) -> Any:
    return reduce(getattr, path.split("."), module)

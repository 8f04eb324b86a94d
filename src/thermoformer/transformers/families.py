"""Where the attention heads of pretrained transformers are: a description of each family, one adapter for all.

A head is what can be removed on its own: its query, key and value rows, and its columns of the output projection. Where
several queries share one key and value (grouped-query attention), the group is the head. Layers that repeat the same
weights (ALBERT) count once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from .._validation import fail

Head = tuple[int, int]

# On the attention module: (heads before any was removed, heads left in that numbering). It is there, and not on the
# model, so that a model and the body inside it agree, whichever of them was pruned.
RECORD = "thermoformer_heads"


@dataclass(frozen=True)
class Family:
    """How models of one architecture name the parts of their attention. The defaults are the commonest names.

    Fields:
        name: as users know it.
        model_type: as transformers names its folder.
        attention: path from a layer to the module that computes queries, keys and values.
        output: path from a layer to the output projection.
        projections: names of the query, key and value projections in the attention module; one name where a single
            matrix computes all three, one after the other.
        size: attribute of the attention module with the number of features per head.
        counts, widths: its attributes with the number of heads, and with the number of features of all heads.
        finish: what the attention module does after an output projection of its own: (module, input, projected).
        read: the token that classifiers of the family read, "first" or "last".
    """

    name: str
    model_type: str
    attention: str = "self_attn"
    output: str = "self_attn.o_proj"
    projections: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    size: str = "head_dim"
    counts: tuple[str, ...] = ()
    widths: tuple[str, ...] = ()
    finish: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor] = lambda module, given, projected: projected
    read: str = "last"

    @property
    def module(self) -> str:
        """The module of transformers that defines the models of the family."""
        return f"transformers.models.{self.model_type}.modeling_{self.model_type}"

    def layers(self, body: nn.Module) -> list[nn.Module]:
        """The layers of the body of a model that have attention, from the input on."""
        end = "." + self.attention
        return [body.get_submodule(name.removesuffix(end)) for name, _ in body.named_modules() if name.endswith(end)]


_BERT = Family(
    "BERT",
    "bert",
    attention="attention.self",
    output="attention.output.dense",
    projections=("query", "key", "value"),
    size="attention_head_size",
    counts=("num_attention_heads",),
    widths=("all_head_size",),
    read="first",
)

_ALL = (
    _BERT,
    replace(_BERT, name="RoBERTa", model_type="roberta"),
    replace(_BERT, name="XLM-RoBERTa", model_type="xlm_roberta"),
    Family(
        "DistilBERT",
        "distilbert",
        attention="attention",
        output="attention.out_lin",
        projections=("q_lin", "k_lin", "v_lin"),
        size="attention_head_size",
        counts=("n_heads",),
        read="first",
    ),
    replace(
        _BERT,
        name="ALBERT",
        model_type="albert",
        attention="attention",
        output="attention.dense",
        finish=lambda module, given, projected: module.LayerNorm(given + module.output_dropout(projected)),
    ),
    Family(
        "GPT-2",
        "gpt2",
        attention="attn",
        output="attn.c_proj",
        projections=("c_attn",),
        counts=("num_heads",),
        widths=("split_size",),
        finish=lambda module, given, projected: module.resid_dropout(projected),
    ),
    Family("Llama", "llama"),
    Family("Mistral", "mistral"),
    Family("Qwen2", "qwen2"),
    Family(
        "ViT",
        "vit",
        attention="attention",
        output="attention.o_proj",
        counts=("num_attention_heads",),
        read="first",
    ),
)
FAMILIES = {family.name: family for family in _ALL}


def known_families() -> tuple[str, ...]:
    """The names of the families whose heads can be read and removed.

    Example:
        >>> known_families()[:3]
        ('BERT', 'RoBERTa', 'XLM-RoBERTa')
    """
    return tuple(FAMILIES)


def family_of(model_class: type) -> Family | None:
    """The family that a class of models belongs to, by the classes that it inherits from."""
    modules = {parent.__module__ for parent in model_class.__mro__}
    return next((family for family in FAMILIES.values() if family.module in modules), None)


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
    name, family = type(model).__name__, family_of(type(model))
    if family is None:
        raise fail("model", f"a {name}", known)
    if getattr(model.config, "is_encoder_decoder", False) or getattr(model.config, "add_cross_attention", False):
        raise fail("model", f"a {name} with cross-attention", "one with self-attention only")
    adapter = Adapter(model, family)
    try:
        for layer in range(adapter.layers):
            adapter.check(layer)
    except AttributeError as error:
        got = f"a {name} without a part of its attention ({error})"
        raise fail("model", got, f"the parts that {family.name} has in transformers") from error
    return adapter


class Adapter:
    """The heads of one model: how many, where, and their weights. `adapter_for` makes it.

    It reads the model as it is now: after heads are removed in place, the same adapter shows those left. Heads are
    always numbered as in the model before any was removed.

    Fields:
        model: the model.
        parts: the description of its family.
        family: name of the family.
        layers: number of attention layers with parameters of their own.
        hidden_size: features of the residual stream.
    """

    def __init__(self, model: Any, family: Family) -> None:
        self.model, self.parts, self.family = model, family, family.name
        self._layers = family.layers(model.base_model)
        self.layers, self.hidden_size = len(self._layers), int(model.config.hidden_size)

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads of each layer before any was removed."""
        return tuple(self._record(layer)[0] for layer in range(self.layers))

    @property
    def kept(self) -> tuple[tuple[int, ...], ...]:
        """The heads left, by layer."""
        return tuple(self._record(layer)[1] for layer in range(self.layers))

    def all_heads(self) -> list[Head]:
        """Every (layer, head) left, counted from 0, layer 0 nearest the input."""
        return [(layer, head) for layer, heads in enumerate(self.kept) for head in heads]

    def attention(self, layer: int) -> Any:
        """The module that computes queries, keys and values."""
        return self._layers[layer].get_submodule(self.parts.attention)

    def projection(self, layer: int) -> Any:
        """The output projection, also of a layer without heads, where only its bias counts."""
        return self._layers[layer].get_submodule(self.parts.output)

    def output_projection(self, layer: int) -> Any:
        """The module that maps the outputs of heads to the residual stream; None where the layer has no head left."""
        return self.projection(layer) if self.kept[layer] else None

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
        """Where a head is in the input of the output projection."""
        width, at = self.queries_per_head(layer) * self.head_size(layer), self._position(layer, head)
        return slice(at * width, (at + 1) * width)

    def projection_weight(self, layer: int) -> torch.Tensor:
        """The output projection as a matrix [input, output]; rows of a head are at `columns`."""
        return as_matrix(self.projection(layer))

    def value_weight(self, layer: int, head: int) -> torch.Tensor:
        """The value weights of a head [input, column], repeated for every query that shares them.

        Its product with the rows of `projection_weight` at `columns` is what the head writes of what it attends to.
        """
        size, at = self.head_size(layer), self._position(layer, head)
        *others, value = self.parts.projections
        matrix = as_matrix(getattr(self.attention(layer), value))
        # A single matrix has queries first, then keys, then values.
        start = 0 if others else 2 * (matrix.shape[1] // 3)
        return matrix[:, start + at * size : start + (at + 1) * size].repeat(1, self.queries_per_head(layer))

    def check(self, layer: int) -> None:
        """An error where the weights are not those of the heads that the record names."""
        output = self.projection(layer)
        width = len(self.kept[layer]) * self.queries_per_head(layer) * self.head_size(layer)
        # Quantised weights are packed into shapes of their own.
        if is_plain(output) and as_matrix(output).shape[0] != width:
            got = f"an output projection in layer {layer} with {as_matrix(output).shape[0]} inputs"
            raise fail("model", got, f"{width}, those of its heads; heads removed by other means are not known here")

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
            layer, head = index(layer), index(head)
        except (TypeError, ValueError):
            raise TypeError(str(fail(name, f"{pair!r} among them", expected))) from None
        if not 0 <= layer < adapter.layers or not 0 <= head < adapter.heads[layer]:
            raise fail(name, (layer, head), f"heads of a model with {adapter.heads} heads in its layers, from 0")
        if head not in adapter.kept[layer]:
            left = f"heads of {adapter.kept[layer]}, those left"
            raise fail(name, f"{(layer, head)}, which is removed already", left)
        if (layer, head) in pairs:
            raise fail(name, f"{(layer, head)} more than once", expected)
        pairs.append((layer, head))
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

"""Where the attention heads of pretrained transformers are: one rule, what some families do otherwise, one adapter.

A head is what can be removed on its own: its query, key and value rows, and its columns of the output projection. Where
several queries share one key and value (grouped-query attention), the group is the head. Layers that repeat the same
weights (ALBERT) count once.

Attention is recognised by its parts: a module with query, key and value projections, an output projection in it or
beside it, and an attribute with the features per head. A family of that shape needs no description. One that is not
named here is checked before it is used: heads that are cut must give what masked heads give.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import torch
from torch import nn
from torch.nn.functional import dropout
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from .._validation import fail

Head = tuple[int, int]

# On the attention module: (heads before any was removed, heads left in that numbering). It is there, and not on the
# model, so that a model and the body inside it agree, whichever of them was pruned.
RECORD = "thermoformer_heads"
# On the body of a model of a family without description: its heads were checked.
VERIFIED = "thermoformer_verified"

# The parts of attention, by the names that they have in transformers.
_PROJECTIONS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("query_proj", "key_proj", "value_proj"),
    ("q", "k", "v"),
)
_OUTPUTS = ("o_proj", "out_proj", "dense", "out_lin", "o", "../output.dense")
_SIZES = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim")


@dataclass(frozen=True)
class Family:
    """What the models of one architecture have in common.

    Fields:
        name: as users know it.
        model_type: as transformers names its folder.
        projections: names of the query, key and value projections in the attention module; one name where a single
            matrix computes all three; empty where they are recognised.
        output: path from the attention module to the output projection; "../" leads to what is around the module.
        interleaved: a single matrix has query, key and value of the first head first; else all queries come first.
        others: further parts of the attention module with rows for each head, where a model has them.
        finish: what the attention module does after an output projection of its own: (module, input, projected, further
            arguments).
        per_head: an argument of the attention module with entries for each head of the whole layer, and their axis.
        counts_in_config: the attention module reads the number of heads from its configuration when it runs.
        crossed: models with cross-attention are read too; its heads come after those of self-attention, layer by layer.
        read: the token that classifiers of the family read, "first" or "last".
    """

    name: str
    model_type: str
    projections: tuple[str, ...] = ()
    output: str = ""
    interleaved: bool = False
    others: tuple[str, ...] = ()
    finish: Callable[..., torch.Tensor] = lambda module, given, projected, *_: projected
    per_head: tuple[str, int] | None = None
    counts_in_config: bool = False
    crossed: bool = False
    read: str = "last"

    @property
    def module(self) -> str:
        """The module of transformers that defines the models of the family."""
        return f"transformers.models.{self.model_type}.modeling_{self.model_type}"

    def recognised(self, body: nn.Module) -> Family:
        """The description with the names of the parts that a model has."""
        if self.projections:
            return self
        for module in body.modules():
            for names in _PROJECTIONS:
                if all(name in module._modules for name in names):
                    inside = [name for name in _OUTPUTS if name in module._modules]
                    return replace(self, projections=names, output=(*inside, _OUTPUTS[-1])[0])
        return self

    def attentions(self, body: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
        """The attention modules of the body of a model, from the input on, and what is around the output projection."""
        if not self.projections:
            return []
        names = [name for name, one in body.named_modules() if all(part in one._modules for part in self.projections)]
        up = self.output.startswith("../")
        around = [name.rpartition(".")[0] if up else name for name in names]
        return [(body.get_submodule(name), body.get_submodule(one)) for name, one in zip(names, around, strict=True)]


_ENCODERS = (
    ("BERT", "bert"),
    ("RoBERTa", "roberta"),
    ("XLM-RoBERTa", "xlm_roberta"),
    ("DistilBERT", "distilbert"),
    ("ELECTRA", "electra"),
    ("ViT", "vit"),
    ("DeiT", "deit"),
    ("DINOv2", "dinov2"),
)
_DECODERS = (
    ("Llama", "llama"),
    ("Mistral", "mistral"),
    ("Mixtral", "mixtral"),
    ("Qwen2", "qwen2"),
    ("Qwen3", "qwen3"),
    ("Gemma", "gemma"),
    ("Gemma 2", "gemma2"),
    ("Gemma 3", "gemma3"),
    ("Phi", "phi"),
    ("SmolLM3", "smollm3"),
    ("OLMo2", "olmo2"),
    ("OPT", "opt"),
    ("CLIP", "clip"),
)
_ALL = (
    *(Family(name, folder, read="first") for name, folder in _ENCODERS),
    Family(
        "ALBERT",
        "albert",
        finish=lambda module, given, projected, *_: module.LayerNorm(given + module.output_dropout(projected)),
        read="first",
    ),
    Family("DeBERTa-v2", "deberta_v2", others=("pos_key_proj", "pos_query_proj"), read="first"),
    Family(
        "ModernBERT",
        "modernbert",
        projections=("Wqkv",),
        output="Wo",
        finish=lambda module, given, projected, *_: module.out_drop(projected),
        read="first",
    ),
    *(Family(name, folder) for name, folder in _DECODERS),
    Family("GPT-OSS", "gpt_oss", others=("sinks",)),
    Family(
        "GPT-2",
        "gpt2",
        projections=("c_attn",),
        output="c_proj",
        finish=lambda module, given, projected, *_: module.resid_dropout(projected),
    ),
    Family("GPT-Neo", "gpt_neo", finish=lambda module, given, projected, *_: module.resid_dropout(projected)),
    Family("GPT-NeoX", "gpt_neox", projections=("query_key_value",), output="dense", interleaved=True),
    Family(
        "BLOOM",
        "bloom",
        projections=("query_key_value",),
        output="dense",
        interleaved=True,
        finish=lambda module, given, projected, residual, *_: (
            residual + dropout(projected, module.hidden_dropout, module.training)
        ),
        per_head=("alibi", 0),
    ),
    Family("MPNet", "mpnet", per_head=("position_bias", 1), read="first"),
    Family("Phi-3", "phi3", projections=("qkv_proj",), output="o_proj", counts_in_config=True),
    Family("T5", "t5", per_head=("position_bias", 1), crossed=True),
    Family("mT5", "mt5", per_head=("position_bias", 1), crossed=True),
    Family("BART", "bart", crossed=True),
    Family("Whisper", "whisper", crossed=True),
)
FAMILIES = {family.name: family for family in _ALL}


def known_families() -> tuple[str, ...]:
    """The names of the families whose heads can be read and removed without a check of the model.

    Example:
        >>> known_families()[:3]
        ('BERT', 'RoBERTa', 'XLM-RoBERTa')
    """
    return tuple(FAMILIES)


def family_of(model_class: type) -> Family | None:
    """The family that a class of models belongs to, by the module of transformers that it or its parents come from."""
    for parent in model_class.__mro__:
        if found := re.fullmatch(r"transformers\.models\.(\w+)\.modeling_\1", parent.__module__):
            return family_named(found[1])
    return None


def family_named(name: str) -> Family:
    """The family of a name, or of a folder of transformers: the usual shape for one that has no description."""
    described = (family for family in _ALL if name in (family.name, family.model_type))
    return next(described, Family(name, re.sub(r"\W", "", name)))


def adapter_for(model: Any) -> Adapter:
    """The adapter that finds the heads of a model.

    A model of a family that `known_families` does not list is checked when it is first seen: with some heads cut, it
    has to give for random inputs what it gives with these heads masked.

    Arguments:
        model: a model of transformers, with or without a task on top.

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
    described = family is not None and family.name in FAMILIES
    crossed = getattr(model.config, "is_encoder_decoder", False)
    adapter = None if family is None else Adapter(model, family)
    if adapter is None or not (adapter.layers or described):
        raise fail("model", f"a {name}", known)
    # The check of other families runs an encoder and a decoder, but not a decoder with the output of another model.
    if (described and crossed and not adapter.parts.crossed) or getattr(model.config, "add_cross_attention", False):
        raise fail("model", f"a {name} with cross-attention", "one with self-attention only")
    try:
        for layer in range(adapter.layers):
            adapter.check(layer)
    except AttributeError as error:
        got = f"a {name} without a part of its attention ({error})"
        raise fail("model", got, f"the parts that {adapter.family} has in transformers") from error
    if not described and not hasattr(model.base_model, VERIFIED):
        from .verification import verify  # which masks and prunes

        verify(adapter, known)
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
    """

    def __init__(self, model: Any, family: Family) -> None:
        self.model, self.parts, self.family = model, family.recognised(model.base_model), family.name
        self._layers = self.parts.attentions(model.base_model)
        self.layers = len(self._layers)

    @property
    def hidden_size(self) -> int:
        """Features of the residual stream."""
        return self.projection_weight(0).shape[1]

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
        return self._layers[layer][0]

    def projection(self, layer: int) -> Any:
        """The output projection, also of a layer without heads, where only its bias counts."""
        return self._layers[layer][1].get_submodule(self.parts.output.removeprefix("../"))

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
        module = self.attention(layer)
        name = next((name for name in _SIZES if hasattr(module, name)), _SIZES[0])
        return int(getattr(module, name))

    def columns(self, layer: int, head: int, query: int | None = None) -> slice:
        """Where a head, or one of the queries that share it, is in the input of the output projection."""
        size, group = self.head_size(layer), self.queries_per_head(layer)
        first = self._position(layer, head) * group + (query or 0)
        return slice(first * size, (first + (group if query is None else 1)) * size)

    def projection_weight(self, layer: int) -> torch.Tensor:
        """The output projection as a matrix [input, output]; rows of a head are at `columns`."""
        return as_matrix(self.projection(layer))

    def value_weight(self, layer: int, head: int) -> torch.Tensor:
        """The value weights of a head [input, column], repeated for every query that shares them.

        Its product with the rows of `projection_weight` at `columns` is what the head writes of what it attends to.
        """
        size, at = self.head_size(layer), self._position(layer, head)
        # Where values begin in their matrix, and the columns from one head to the next.
        width, group = self._widths(layer), self.queries_per_head(layer)
        if len(self.parts.projections) == 3:
            start, step = 0, size
        elif self.parts.interleaved:
            start, step = (group + 1) * size, width[0]
        else:
            start, step = len(self.kept[layer]) * (width[0] + size), size
        matrix = as_matrix(getattr(self.attention(layer), self.parts.projections[-1]))
        return matrix[:, start + at * step : start + at * step + size].repeat(1, group)

    def cuts(self, layer: int) -> Iterator[tuple[Any, bool, tuple[int, ...]]]:
        """What has rows or columns of heads: a matrix or a parameter, whether heads are its outputs, and the widths.

        One width: heads in a row, each with that many features. Several: blocks of such heads, one after another.
        """
        module, parts = self.attention(layer), self.parts
        size, widths = self.head_size(layer), self._widths(layer)
        for place, name in enumerate(parts.projections):
            if not (place < 2 and self.normed_whole(layer)):
                separate = len(parts.projections) == 3
                yield getattr(module, name), True, (widths[place],) if separate else widths
        for name in parts.others:
            if hasattr(module, name):
                other = getattr(module, name)
                yield other, True, (widths[0] // size if isinstance(other, nn.Parameter) else size,)
        yield self.projection(layer), False, (self.queries_per_head(layer) * size,)

    def normed_whole(self, layer: int) -> bool:
        """Whether queries and keys are normalised over all heads together (OLMo2)."""
        module = self.attention(layer)
        weight = getattr(getattr(module, "q_norm", None), "weight", None)
        return weight is not None and len(weight) == _outputs(getattr(module, self.parts.projections[0]))

    def _widths(self, layer: int) -> tuple[int, ...]:
        """Features of a head in queries, keys and values; together where they are interleaved."""
        size, group = self.head_size(layer), self.queries_per_head(layer)
        return ((group + 2) * size,) if self.parts.interleaved else (group * size, size, size)

    def check(self, layer: int) -> None:
        """An error where the weights are not those of the heads that the record names."""
        output = self.projection(layer)
        width = len(self.kept[layer]) * self.queries_per_head(layer) * self.head_size(layer)
        # Quantised weights are packed into shapes of their own.
        if is_plain(output) and as_matrix(output).shape[0] != width:
            got = f"an output projection in layer {layer} with {as_matrix(output).shape[0]} inputs"
            raise fail("model", got, f"{width}, those of its heads; heads removed by other means are not known here")

    def _record(self, layer: int) -> tuple[int, tuple[int, ...]]:
        module = self.attention(layer)
        if found := getattr(module, RECORD, None):
            return found
        # Of a single matrix, all widths together are those of a head.
        whole = _outputs(getattr(module, self.parts.projections[-1]))
        widths = self._widths(layer)
        count = whole // (widths[-1] if len(self.parts.projections) == 3 else sum(widths))
        return count, tuple(range(count))

    def _position(self, layer: int, head: int) -> int:
        if not 0 <= layer < self.layers or head not in self.kept[layer]:
            raise fail("head", (layer, head), "a (layer, head) that the model has; `all_heads` lists them")
        return self.kept[layer].index(head)


def checked_heads(adapter: Adapter, heads: Any, name: str = "heads", *, queries: bool = False) -> list[Any]:
    """Different pairs (layer, head), all of them in the model, as plain integers.

    Arguments:
        queries: also accept triples (layer, head, query), where several queries share a head.
    """
    shared = max(map(adapter.queries_per_head, range(adapter.layers)), default=1) > 1
    lengths = (2, 3) if queries and shared else (2,)
    expected = "a list of different pairs (layer, head)" + (" or triples (layer, head, query)" if 3 in lengths else "")
    if isinstance(heads, (str, bytes, dict)) or not hasattr(heads, "__iter__"):
        raise TypeError(str(fail(name, repr(heads), expected)))
    found: list[Any] = []
    for given in heads:
        try:
            place = tuple(given)
            # Numbers with a fraction and True would pass as integers otherwise.
            if len(place) not in lengths or any(isinstance(one, bool) for one in place):
                raise TypeError
            place = tuple(index(one) for one in place)
        except TypeError:
            raise TypeError(str(fail(name, f"{given!r} among them", expected))) from None
        layer, head, *query = place
        if not 0 <= layer < adapter.layers or not 0 <= head < adapter.heads[layer]:
            raise fail(name, place, f"heads of a model with {adapter.heads} heads in its layers, from 0")
        if head not in adapter.kept[layer]:
            raise fail(name, f"{place}, which is removed already", f"heads of {adapter.kept[layer]}, those left")
        if query and not 0 <= query[0] < (group := adapter.queries_per_head(layer)):
            raise fail(name, place, f"one of the {group} queries of a head, from 0")
        if place in found:
            raise fail(name, f"{place} more than once", expected)
        found.append(place)
    return found


def _outputs(matrix: Any) -> int:
    return matrix.nf if type(matrix) is Conv1D else matrix.out_features


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

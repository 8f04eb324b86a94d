"""Evidence against the rules that others prune by, at equally many parameters removed. Nothing is trained.

    python benchmarks/peers.py --minilm FOLDER_OR_NAME --smollm2 FILE.gguf --text FILE.txt

Heads by their weights (magnitude), by weights times activations (Wanda), by gradients times weights (Taylor, as in
LLM-Pruner); attention layers and whole blocks that change their input the least (LLM-Drop, ShortGPT); and, where it is
installed and knows the model, Torch-Pruning. MiniLM-L6 with a linear probe on TREC-6 and SST-2, stories260K on its own
stories, SmolLM2-135M on a text.
"""

from __future__ import annotations

import argparse
import copy
import re
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cosine_similarity, cross_entropy
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from thermoformer.experiments.heads.inputs import load_model
from thermoformer.tasks import read_text, sst2, trec, write_stories_folder
from thermoformer.transformers import (
    Examples,
    LinearProbe,
    adapter_for,
    generate_stories,
    goal_for,
    pooled,
    prune_heads,
    removal_order,
)
from thermoformer.transformers.curves import draw
from thermoformer.transformers.judge import features_of, judged
from thermoformer.transformers.passes import evaluating, run

FRACTIONS = (0.25, 0.5, 0.75)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", help="folder or hub name of all-MiniLM-L6-v2")
    parser.add_argument("--smollm2", type=Path, help="SmolLM2-135M as a GGUF file")
    parser.add_argument("--text", type=Path, help="plain text for SmolLM2")
    parser.add_argument("--parts", nargs="+", default=["trec", "sst2", "stories", "smollm2"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[10, 11, 12])
    parser.add_argument("--examples", type=int, default=1000, help="texts that a probe learns from")
    given = parser.parse_args()
    for part in given.parts:
        start = time.perf_counter()
        {"stories": stories, "smollm2": smollm2}.get(part, probe)(part, given)
        print(f"{part}: {time.perf_counter() - start:.0f} s\n", flush=True)


def probe(task: str, given: argparse.Namespace) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(given.minilm), AutoModel.from_pretrained(given.minilm).eval()
    parts = [{"trec": trec, "sst2": sst2}[task](part) for part in ("train", "test")]
    train, test = (Examples.from_texts(tokenizer, part.texts, part.labels) for part in parts)
    compare(task, model, [draw(train, given.examples, seed) for seed in given.seeds], test)


def stories(part: str, given: argparse.Namespace) -> None:
    with TemporaryDirectory() as folder:
        model = AutoModelForCausalLM.from_pretrained(write_stories_folder(Path(folder) / "stories260K")).eval()
    data, test = (Examples.from_tokens(generate_stories(model, 128, 256, seed=seed)) for seed in (1, 2))
    compare(part, model, [draw(data, 32, seed) for seed in given.seeds], test)


def smollm2(part: str, given: argparse.Namespace) -> None:
    model, tokenizer = load_model(given.smollm2, language=True)
    sequences = Examples.from_text(tokenizer, read_text(given.text), length=128)
    half = len(sequences) // 2
    data, test = sequences.subset(np.arange(half)), sequences.subset(np.arange(half, len(sequences)))
    draws = [draw(data, 8, seed) for seed in given.seeds[:1]]
    compare(part, model, draws, draw(test, 12, 0), batch=8, fractions=FRACTIONS[:2])


def compare(
    part: str,
    model: Any,
    draws: list[Examples],
    test: Examples,
    batch: int = 32,
    fractions: tuple[float, ...] = FRACTIONS,
) -> None:
    """Prints the accuracy or the perplexity of what each rule leaves, mean and standard error over draws."""
    goal = goal_for(model, draws[0])
    heads = len(adapter_for(model).all_heads())
    counts = [round(fraction * heads) for fraction in fractions]
    sizes = [model.num_parameters() - prune_heads(model, order_of_depth(model)[:n]).num_parameters() for n in counts]
    digits, factor = (1, 100) if goal.measure == "accuracy" else (2, 1)
    print(f"{part}: {goal.measure}; parameters removed {', '.join(f'{size:,}' for size in sizes)}")

    def value(one: Any, data: Examples) -> float:
        return factor * float(judged(one, data, test, goal.name, batch=batch)[0])

    def line(name: str, rows: list[list[float]], seconds: float = 0.0) -> None:
        found, error = np.mean(rows, 0), np.std(rows, 0, ddof=1) / len(rows) ** 0.5 if len(rows) > 1 else None
        cells = [
            f"{mean:9.{digits}f}" + ("" if error is None else f" ±{error[at]:5.{digits}f}")
            for at, mean in enumerate(found)
        ]
        print(f"  {name:32s}" + "".join(cells) + (f"   {seconds:4.0f} s to score" if seconds else ""), flush=True)

    line("whole", [[value(model, data)] for data in draws])
    # Torch-Pruning does not take groups of queries for heads; probes are scored again at no other cost.
    rules = dict(RULES)
    if find_spec("torch_pruning") is not None and adapter_for(model).queries_per_head(0) == 1:
        rules |= TORCH_PRUNING
    if goal.name == "probe":
        del rules["evidence, scored again quickly"]
    for name, rule in rules.items():
        start, rows = time.perf_counter(), []
        orders = [rule(model, data, goal.name, batch, counts[-1]) for data in draws]
        seconds = (time.perf_counter() - start) / len(draws)
        for data, order in zip(draws, orders, strict=True):
            rows.append([value(prune_heads(model, order[:count]), data) for count in counts])
        line(name, rows, seconds)
    rows = []
    for data in draws:
        shorter = [without_blocks(model, similarities(model, data, batch)[1], size) for size in sizes]
        rows.append([value(one, data) for one in shorter])
    line("whole blocks (ShortGPT)", rows)
    lost = ", ".join(f"{model.num_parameters() - one.num_parameters():,}" for one in shorter)
    print(f"    which removes {lost} parameters")


# Of a model, examples, a goal, a batch and a count: that many heads or more, in the order in which they go.
Rule = Callable[[Any, Examples, str, int, int], list[tuple[int, int]]]


def ours(method: str, every: int | None = None, quick: bool = False) -> Rule:
    def rule(model: Any, data: Examples, goal: str, batch: int, count: int) -> list[tuple[int, int]]:
        options = {"count": count, "every": every, "goal": goal, "batch": batch, "quick": quick, "progress": False}
        return removal_order(model, data, method, **options)

    return rule


def order_of_depth(model: Any) -> list[tuple[int, int]]:
    return adapter_for(model).all_heads()[::-1]


def ascending(model: Any, scores: dict[tuple[int, int], float]) -> list[tuple[int, int]]:
    return sorted(adapter_for(model).all_heads(), key=lambda head: scores[head])


def watch(model: Any, data: Examples, batch: int, hooks: list[Any], shown: list[Any]) -> None:
    """Passes all examples through a model with hooks, which find the attention mask in `shown`, and removes these."""
    with torch.no_grad(), evaluating(model):
        for _, inputs in data.batches(batch):
            shown[0] = inputs["attention_mask"]
            run(model, inputs)
    for hook in hooks:
        hook.remove()


def wanda(model: Any, data: Examples, goal: str, batch: int, count: int) -> list[tuple[int, int]]:
    """Σ |W_ij| ‖x_i‖ over the output weights of a head, x_i their inputs at all tokens."""
    adapter = adapter_for(model)
    squares: dict[int, Any] = dict.fromkeys(range(adapter.layers), 0.0)

    def reader(layer: int) -> Any:
        def read(module: Any, given: tuple[Any, ...]) -> None:
            squares[layer] = squares[layer] + (given[0] * shown[0][..., None]).double().pow(2).sum((0, 1))

        return read

    shown: list[Any] = [None]
    hooks = [adapter.projection(layer).register_forward_pre_hook(reader(layer)) for layer in range(adapter.layers)]
    watch(model, data, batch, hooks, shown)
    scores = {}
    for layer, head in adapter.all_heads():
        rows = adapter.columns(layer, head)
        weights = adapter.projection_weight(layer)[rows].detach().abs().double()
        scores[layer, head] = float((weights * squares[layer][rows].sqrt()[:, None]).sum())
    return ascending(model, scores)


def backward(model: Any, data: Examples, goal: str, batch: int) -> None:
    """Leaves the gradient of the loss of all examples on the weights of a model."""
    if goal == "probe":
        features = pooled(model, data, batch=batch)
        probe = LinearProbe().fit(features, data.labels, classes=data.classes)
        matrix, offset = map(torch.from_numpy, probe.affine())
        labels = torch.from_numpy(data.labels)
    model.zero_grad()
    with evaluating(model):
        for places, inputs in data.batches(batch):
            if goal == "probe":
                said = features_of(model, inputs, "mean").double() @ matrix + offset
                loss = cross_entropy(said, labels[places], reduction="sum")
            else:
                logits = run(model, inputs).logits[:, :-1].flatten(0, 1)
                loss = cross_entropy(logits.float(), inputs["input_ids"][:, 1:].flatten(), reduction="sum")
            loss.backward()


def taylor(model: Any, data: Examples, goal: str, batch: int, count: int) -> list[tuple[int, int]]:
    """Σ |w ∂loss/∂w| over the query, key, value and output weights of a head."""
    adapter = adapter_for(model)
    backward(model, data, goal, batch)
    scores = dict.fromkeys(adapter.all_heads(), 0.0)
    for layer in range(adapter.layers):
        for matrix_of_heads, outputs, (width,) in adapter.cuts(layer):
            weight = matrix_of_heads.weight
            products = (weight.detach() * weight.grad).abs().sum(1 if outputs else 0).reshape(-1, width).sum(1)
            for head, product in enumerate(products.tolist()):
                scores[layer, head] += product
    model.zero_grad()
    return ascending(model, scores)


def torch_pruning(importance: str) -> Rule:
    """The order of heads by Torch-Pruning's importance of what it finds to go together, averaged over a head."""

    def rule(model: Any, data: Examples, goal: str, batch: int, count: int) -> list[tuple[int, int]]:
        import torch_pruning

        adapter, scores = adapter_for(model), {}
        _, inputs = next(data.subset([0]).batches())
        total = {"output_transform": lambda output: output.last_hidden_state.sum()}
        graph = torch_pruning.DependencyGraph().build_dependency(model, example_inputs=inputs, **total)
        # Building it leaves gradients behind.
        backward(model, data, goal, batch)
        for layer, heads in enumerate(adapter.kept):
            query = getattr(adapter.attention(layer), adapter.parts.projections[0])
            rows = list(range(query.out_features))
            group = graph.get_pruning_group(query, torch_pruning.prune_linear_out_channels, rows)
            found = getattr(torch_pruning.importance, importance)()(group).reshape(len(heads), -1).mean(1)
            scores |= {(layer, head): float(value) for head, value in zip(heads, found, strict=True)}
        model.zero_grad()
        return ascending(model, scores)

    return rule


def similarities(model: Any, data: Examples, batch: int) -> tuple[dict[int, float], dict[str, float]]:
    """Mean cosine of a token before and after every attention layer, and every block."""
    adapter, body = adapter_for(model), model.base_model
    names = {id(module): name for name, module in body.named_modules()}
    blocks = {}
    for layer in range(adapter.layers):
        blocks[layer] = re.match(r"(.*?\.\d+)\.", names[id(adapter.attention(layer))])[1]
    sums: dict[Any, float] = dict.fromkeys([*blocks, *blocks.values()], 0.0)
    entered: dict[str, Any] = {}
    shown: list[Any] = [None]

    def add(key: Any, before: Any, after: Any) -> None:
        sums[key] += float((cosine_similarity(before, after, dim=-1) * shown[0]).sum())

    def enter(name: str) -> Any:
        return lambda module, given, options: entered.__setitem__(name, (given or (options["hidden_states"],))[0])

    def attended(layer: int) -> Any:
        return lambda module, given, out: add(layer, entered[blocks[layer]], entered[blocks[layer]] + out)

    def leave(name: str) -> Any:
        return lambda module, given, out: add(name, entered[name], out[0] if isinstance(out, tuple) else out)

    hooks = []
    for layer, name in blocks.items():
        block = body.get_submodule(name)
        hooks.append(block.register_forward_pre_hook(enter(name), with_kwargs=True))
        hooks.append(adapter.projection(layer).register_forward_hook(attended(layer)))
        hooks.append(block.register_forward_hook(leave(name)))
    watch(model, data, batch, hooks, shown)
    return {layer: sums[layer] for layer in blocks}, {name: sums[name] for name in blocks.values()}


def similar_layers(model: Any, data: Examples, goal: str, batch: int, count: int) -> list[tuple[int, int]]:
    """All heads of the attention layer that changes its input the least, then of the next."""
    similar, _ = similarities(model, data, batch)
    return sorted(adapter_for(model).all_heads(), key=lambda head: -similar[head[0]])


def without_blocks(model: Any, similar: dict[str, float], parameters: int) -> Any:
    """The model without the blocks that change their input the least, of about this many parameters."""
    names = sorted(similar, key=lambda name: -similar[name])
    size = sum(weight.numel() for weight in model.base_model.get_submodule(names[0]).parameters())
    gone = names[: max(1, round(parameters / size))]
    shorter = copy.deepcopy(model)
    parent, _, _ = names[0].rpartition(".")
    blocks = shorter.base_model.get_submodule(parent)
    left = [block for name, block in blocks.named_children() if f"{parent}.{name}" not in gone]
    holder, _, name = parent.rpartition(".")
    setattr(shorter.base_model.get_submodule(holder), name, torch.nn.ModuleList(left))
    shorter.base_model.config.num_hidden_layers = len(left)
    return shorter


RULES: dict[str, Rule] = {
    "evidence, scored again": ours("evidence"),
    "evidence, scored again quickly": ours("evidence", quick=True),
    "evidence, scored once": ours("evidence", 0),
    "gradient in the mask": ours("gradient", 0),
    "magnitude": ours("magnitude"),
    "weights × activations (Wanda)": wanda,
    "gradients × weights (Taylor)": taylor,
    "attention layers (LLM-Drop)": similar_layers,
}
TORCH_PRUNING = {
    "Torch-Pruning, magnitude": torch_pruning("GroupMagnitudeImportance"),
    "Torch-Pruning, Taylor": torch_pruning("GroupTaylorImportance"),
}

if __name__ == "__main__":
    main()

"""The Python calls that give what the Learning view shows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from .learning_view import (
    TEST,
    TEST_EXAMPLES,
    TRAINING,
    LearningChoice,
    named_heads,
    numbered,
    widths_for,
)
from .uploads import Upload


def code_of(choice: LearningChoice) -> str:
    """Calls of public functions that make the numbers of a choice and their figures."""
    noise = f"{choice.perpendicular_noise!r}, {choice.parallel_noise!r}, stay_probability={choice.stay_probability!r}"
    data = _TASK.format(
        noise=noise,
        heads="".join(f"    {layer},\n" for layer in choice.seeded_heads),
        train=choice.train,
        test=TEST_EXAMPLES,
        train_seed=(choice.seed, TRAINING),
        test_seed=(choice.seed, TEST),
    )
    return _lines(data, named_heads(choice.kinds), choice.width, choice.temperature, choice.train)


def code_of_file(name: str, upload: Upload, *, width: int, temperature: float, seed: int) -> str:
    """The same for a user's own file, read by its name.

    Arguments:
        name: of the file.
        upload: its content.
        width, temperature: of the solution shown.
        seed: of the split into training and test examples.
    """
    known, train = json.dumps(Path(name).name, ensure_ascii=False), round(len(upload.labels) / 2)
    data = _FILE.format(name=known)
    return _lines(data + _SPLIT.format(seed=seed, train=train), numbered(upload.heads), width, temperature, train)


def _lines(data: str, names: Sequence[Sequence[str]], width: int, temperature: float, train: int) -> str:
    heads = tuple(map(len, names))
    given = {"width": width, "widths": sorted({*widths_for(math.prod(heads), train), width})}
    return _IMPORTS + data + _REST.format(heads=heads, names=list(map(list, names)), temperature=temperature, **given)


_IMPORTS = """\
import numpy as np

from thermoformer import figures
from thermoformer.learning import Architecture, gaussian_process, label_alignment, solve, solve_grid
"""

_TASK = """\
from thermoformer.tasks import HiddenMarkovTask, hidden_markov_inputs

task = HiddenMarkovTask({noise})
heads = [  # kind and seed, by layer
{heads}]
train, train_labels = hidden_markov_inputs(task, {train}, heads, seed={train_seed})
test, test_labels = hidden_markov_inputs(task, {test}, heads, seed={test_seed})
"""

_FILE = """\
from thermoformer import read_arrays

found = read_arrays({name})
features, labels = found.features, found.labels
"""

_SPLIT = """\
signs = np.where(labels == labels.max(), 1.0, -1.0)
order = np.random.default_rng({seed}).permutation(len(signs))
first, second = np.sort(order[:{train}]), np.sort(order[{train}:])
train, train_labels = features[first], signs[first]
test, test_labels = features[second], signs[second]
"""

_REST = """\

arch = Architecture(heads={heads}, widths={width})
head_names = {names}
solution = solve(arch, train, train_labels, temperature={temperature!r}, throw=False)
limit = gaussian_process(arch, train, train_labels, temperature={temperature!r})
widths = {widths}
grid = solve_grid(arch, train, train_labels, widths=widths, temperatures={temperature!r}, throw=False)
accuracies = np.array([grid.at(width=width).predict(test).accuracy(test_labels) for width in widths])
limit_accuracy = limit.predict(test).accuracy(test_labels)
kernel = solution.kernel(train)
overlaps = label_alignment(kernel, train_labels)[:30]
limit_overlaps = label_alignment(limit.kernel(train), train_labels)[:30]

figure, axes = figures.figure_grid(2, 3, size=(5.0, 3.8))
levels = {{"Gaussian process": 100 * limit_accuracy}}
figures.curves_against_width(widths, {{"theory": 100 * accuracies}}, axes[0, 0], levels=levels, marked={width})
axes[0, 0].set_ylabel("test accuracy (%)")
figures.order_parameter_matrix(solution.order_parameter, arch.path_names(head_names), axes[0, 1])
figures.path_graph(arch, solution.order_parameter, head_names, axes[0, 2])
figures.kernel_image(kernel, train_labels, axes[1, 0])
figures.label_overlap({{"N = {width}": overlaps, "Gaussian process": limit_overlaps}}, axes[1, 1])
axes[1, 2].remove()
figure.savefig("learning.png", dpi=200)
"""

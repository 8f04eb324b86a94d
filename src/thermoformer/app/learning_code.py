"""The Python that makes what the Learning view shows, for readers who want to go on by themselves."""

from __future__ import annotations

import json
import math
from pathlib import Path

from ._learning_numbers import widths_for
from .learning_view import HEADS, TEST, TEST_EXAMPLES, TRAINING, LearningChoice, named_heads, names_for
from .uploads import Upload


def code_of(choice: LearningChoice) -> str:
    """Python lines, with the public functions alone, that make the same numbers and a figure of them.

    Example:
        >>> print(code_of(LearningChoice()).splitlines()[0])
        import numpy as np
    """
    seed, heads = choice.seed, tuple(len(layer) for layer in choice.kinds)
    setup = _TASK.format(
        task=f"HiddenMarkovTask({choice.perpendicular_noise!r}, {choice.parallel_noise!r}, "
        f"stay_probability={choice.stay_probability!r})",
        train=choice.train,
        test=TEST_EXAMPLES,
        train_seed=(seed, TRAINING),
        test_seed=(seed, TEST),
        head_seed=f"({seed}, {HEADS}, layer, head)",
        kinds=json.dumps(choice.kinds),
    )
    return setup + _rest(heads, json.dumps(named_heads(choice.kinds)), choice.width, choice.temperature, choice.train)


def code_of_file(name: str, upload: Upload, *, width: int, temperature: float, seed: int) -> str:
    """The same lines for a user's own file, which they read by the name it has.

    Arguments:
        name: of the file.
        upload: what was found in it.
        width, temperature: of the solution shown.
        seed: of the split into training and test examples.

    Example:
        >>> from thermoformer.app.uploads import upload_of
        >>> upload = upload_of("mine.csv", b"label,a\\n1,2\\n-1,3\\n1,4\\n-1,5\\n")
        >>> lines = code_of_file("mine.csv", upload, width=10, temperature=0.1, seed=0).splitlines()
        >>> next(line for line in lines if line.startswith("with"))
        'with open("mine.csv", encoding="utf-8-sig", newline="") as file:'
    """
    examples = len(upload.labels)
    train = round(examples / 2)
    known = json.dumps(Path(name).name, ensure_ascii=False)
    if upload.columns is None:
        setup = _NPZ.format(name=known)
    else:
        label, columns = upload.columns
        setup = _CSV.format(name=known, label=label, columns=columns)
    setup += _SPLIT.format(seed=seed, train=train)
    names = json.dumps(names_for(None, upload.heads))
    return setup + _rest(upload.heads, names, width, temperature, train)


def _rest(heads: tuple[int, ...], names: str, width: int, temperature: float, train: int) -> str:
    widths = widths_for(math.prod(heads), train)
    return _REST.format(heads=heads, names=names, width=width, temperature=temperature, widths=widths)


_LEARNING = """\
from thermoformer.learning import (
    Architecture,
    PathFeatures,
    {more}gaussian_process,
    head_scores,
    label_alignment,
    solve,
)
"""

_TASK = (
    """\
import numpy as np

from thermoformer import figures
"""
    + _LEARNING.format(more="bilinear_attention,\n    ")
    + """\
from thermoformer.tasks import HiddenMarkovTask

task = {task}
train, test = task.sample({train}, seed={train_seed}), task.sample({test}, seed={test_seed})
kinds = {kinds}
weights = [
    np.stack([task.head(kind, seed={head_seed}) for head, kind in enumerate(heads)])
    for layer, heads in enumerate(kinds)
]


def features_of(x):
    return PathFeatures.from_attention(x, [bilinear_attention(x, layer) for layer in weights])


train_features, test_features = features_of(train.x), features_of(test.x)
train_labels, test_labels = train.labels, test.labels
"""
)

_NPZ = (
    """\
import numpy as np

from thermoformer import figures, read_arrays
"""
    + _LEARNING.format(more="").replace("    PathFeatures,\n", "")
    + """\

found = read_arrays({name})
features, labels = found.features, found.labels
"""
)

_CSV = (
    """\
import csv

import numpy as np

from thermoformer import figures
"""
    + _LEARNING.format(more="")
    + """\

with open({name}, encoding="utf-8-sig", newline="") as file:
    names, *rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
table = np.array(rows, dtype=float)
columns = {columns}  # of each path
features = PathFeatures.from_attentioned_inputs(np.stack([table[:, path] for path in columns], axis=1))
labels = table[:, {label}]
"""
)

_SPLIT = """\
signs = np.where(labels == labels.max(), 1.0, -1.0)
order = np.random.default_rng({seed}).permutation(len(signs))
train, test = np.sort(order[:{train}]), np.sort(order[{train}:])
train_features, test_features = features[train], features[test]
train_labels, test_labels = signs[train], signs[test]
"""

_REST = """\
arch = Architecture(heads={heads}, widths={width})
head_names = {names}
path_names = arch.path_names(head_names)
temperature = {temperature!r}


def solution_at(width):
    network = arch.replace(widths=width)
    return solve(network, train_features, train_labels, temperature=temperature, throw=False)


def accuracy_of(predictor):
    return predictor.predict(test_features).accuracy(test_labels)


solution = solution_at({width})
limit = gaussian_process(arch, train_features, train_labels, temperature=temperature)
widths = {widths}
accuracies = [accuracy_of(solution_at(width)) for width in widths]
test_accuracy, limit_accuracy = accuracy_of(solution), accuracy_of(limit)
train_accuracy = solution.predict(train_features).accuracy(train_labels)
order_parameter, log_evidence = solution.order_parameter, solution.log_evidence
scores = head_scores(arch, order_parameter).values
kernel, limit_kernel = solution.kernel(train_features), limit.kernel(train_features)
overlaps = label_alignment(kernel, train_labels)[:30]
limit_overlaps = label_alignment(limit_kernel, train_labels)[:30]

figure, axes = figures.figure_grid(2, 3, size=(5.0, 3.8))
axes[0, 0].semilogx(widths, 100 * np.array(accuracies), marker="o", color=figures.PALETTE["blue"], label="theory")
here = {{"marker": "D", "linestyle": "none", "color": figures.PALETTE["vermilion"]}}
axes[0, 0].semilogx({width}, 100 * test_accuracy, **here, label="N = {width}")
axes[0, 0].axhline(100 * limit_accuracy, color=figures.PALETTE["grey"], linestyle="--", label="Gaussian process")
axes[0, 0].set(xlabel="width N", ylabel="test accuracy (%)")
axes[0, 0].legend()
figures.order_parameter_matrix(order_parameter, path_names, axes[0, 1])
figures.path_graph(arch, order_parameter, head_names, axes[0, 2])
figures.kernel_image(kernel, train_labels, axes[1, 0])
figures.label_overlap({{"N = {width}": overlaps, "Gaussian process": limit_overlaps}}, axes[1, 1])
axes[1, 2].remove()
figure.savefig("learning.png", dpi=200)
"""

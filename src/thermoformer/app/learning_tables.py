"""The columns of numbers behind each figure of the Learning view."""

from __future__ import annotations

import numpy as np

from .learning_view import LearningPicture


def accuracy_table(picture: LearningPicture) -> dict[str, np.ndarray]:
    """Columns width, accuracy, converged and gaussian_process; the chosen width stands among the others."""
    curve = picture.curve
    others = curve.widths != picture.width
    widths = np.append(curve.widths[others], picture.width)
    order = np.argsort(widths)
    return {
        "width": widths[order],
        "accuracy": np.append(curve.accuracies[others], picture.test_accuracy)[order],
        "converged": np.append(curve.converged[others], picture.solution.converged)[order],
        "gaussian_process": np.full(len(widths), picture.limit.accuracy),
    }


def order_table(picture: LearningPicture) -> dict[str, np.ndarray]:
    """Columns path, other_path and order_parameter."""
    names = np.array(picture.path_names)
    return {
        "path": np.repeat(names, len(names)),
        "other_path": np.tile(names, len(names)),
        "order_parameter": picture.solution.order_parameter.ravel(),
    }


def kernel_table(picture: LearningPicture) -> dict[str, np.ndarray]:
    """Columns example, other_example, label, other_label and kernel."""
    count = len(picture.kernel)
    return {
        "example": np.repeat(np.arange(count), count),
        "other_example": np.tile(np.arange(count), count),
        "label": np.repeat(picture.kernel_labels, count),
        "other_label": np.tile(picture.kernel_labels, count),
        "kernel": picture.kernel.ravel(),
    }


def overlap_table(picture: LearningPicture) -> dict[str, np.ndarray]:
    """Columns component, overlap and gaussian_process."""
    return {
        "component": np.arange(1, len(picture.overlaps) + 1),
        "overlap": picture.overlaps,
        "gaussian_process": picture.limit.overlaps,
    }


def paths_table(picture: LearningPicture) -> dict[str, np.ndarray]:
    """Columns path, one per layer with its head, and order_parameter, which is U_ππ."""
    through = picture.solution.architecture.path_heads().T
    heads = {
        f"head_of_layer_{layer}": np.array(names)[numbers]
        for layer, (names, numbers) in enumerate(zip(picture.data.heads, through, strict=True))
    }
    return {"path": np.array(picture.path_names), **heads, "order_parameter": picture.path_scores}

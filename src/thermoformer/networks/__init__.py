"""Attention networks with queries and keys of their own: trained by gradient descent, saved, and pruned."""

from .attention_network import AttentionNetwork
from .files import load_network, save_network
from .pruning import (
    PruningCurve,
    gradient_importance,
    magnitude_scores,
    pruned_accuracies,
    pruning_curve,
    random_orders,
    removal_order,
    rescored_order,
    trained_scores,
)
from .training import Training, TrainingSettings, train

__all__ = [
    "AttentionNetwork",
    "PruningCurve",
    "Training",
    "TrainingSettings",
    "gradient_importance",
    "load_network",
    "magnitude_scores",
    "pruned_accuracies",
    "pruning_curve",
    "random_orders",
    "removal_order",
    "rescored_order",
    "save_network",
    "train",
    "trained_scores",
]

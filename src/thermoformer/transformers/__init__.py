"""Pretrained transformers: what they read, and how well they do."""

from .data import Examples
from .judge import LinearProbe, generate_stories, own_accuracy, perplexity, pooled, probe_accuracy

__all__ = [
    "Examples",
    "LinearProbe",
    "generate_stories",
    "own_accuracy",
    "perplexity",
    "pooled",
    "probe_accuracy",
]

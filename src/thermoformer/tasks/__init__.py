"""Tasks: data to learn from, with the heads that suit them."""

from .files import data_file
from .hidden_markov import HiddenMarkovTask, MarkovSequences
from .images import ImageClasses, load_omniglot, load_other_images, split_classes
from .one_shot import OneShotDraw, OneShotSequences, OneShotTask, one_shot_tokens

__all__ = [
    "HiddenMarkovTask",
    "ImageClasses",
    "MarkovSequences",
    "OneShotDraw",
    "OneShotSequences",
    "OneShotTask",
    "data_file",
    "load_omniglot",
    "load_other_images",
    "one_shot_tokens",
    "split_classes",
]

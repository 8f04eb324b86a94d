"""Tasks: data to learn from, with the heads that suit them."""

from .files import data_file
from .hidden_markov import HiddenMarkovTask, MarkovSequences
from .images import ImageClasses, load_omniglot, load_other_images, split_classes
from .markov_inputs import hidden_markov_inputs
from .one_shot import OneShotDraw, OneShotSequences, OneShotTask, one_shot_tokens
from .stories import stories_weights, write_stories_folder
from .text import LabelledTexts, read_labelled, read_text, sst2, trec

__all__ = [
    "HiddenMarkovTask",
    "ImageClasses",
    "LabelledTexts",
    "MarkovSequences",
    "OneShotDraw",
    "OneShotSequences",
    "OneShotTask",
    "data_file",
    "hidden_markov_inputs",
    "load_omniglot",
    "load_other_images",
    "one_shot_tokens",
    "read_labelled",
    "read_text",
    "split_classes",
    "sst2",
    "stories_weights",
    "trec",
    "write_stories_folder",
]

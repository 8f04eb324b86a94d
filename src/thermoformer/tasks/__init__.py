"""Tasks: data to learn from, with the heads that suit them."""

from .hidden_markov import HiddenMarkovTask, MarkovSequences

__all__ = ["HiddenMarkovTask", "MarkovSequences"]

"""Pretrained transformers: their heads read, masked, scored and cut out, and how well the model does without them."""

try:
    import torch as _torch  # noqa: F401
    from transformers import PreTrainedModel as _PreTrainedModel  # noqa: F401
except ImportError as error:
    raise ImportError(
        "thermoformer.transformers needs PyTorch and transformers: pip install 'thermoformer[transformers]'"
    ) from error

from .contributions import HeadContributions, head_contributions
from .data import Examples
from .families import Adapter, adapter_for, known_families
from .files import export_masked, load_pruned, save_pruned
from .judge import generate_stories, own_accuracy, perplexity, pooled, probe_accuracy
from .masks import HeadMasks, head_masks
from .probe import LinearProbe
from .surgery import prune_heads

__all__ = [
    "Adapter",
    "Examples",
    "HeadContributions",
    "HeadMasks",
    "LinearProbe",
    "adapter_for",
    "export_masked",
    "generate_stories",
    "head_contributions",
    "head_masks",
    "known_families",
    "load_pruned",
    "own_accuracy",
    "perplexity",
    "pooled",
    "probe_accuracy",
    "prune_heads",
    "save_pruned",
]

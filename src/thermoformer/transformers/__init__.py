"""Attention heads of pretrained transformers: what they add, masked, cut out, and models without them on disk."""

try:
    import torch as _torch  # noqa: F401
    from transformers import PreTrainedModel as _PreTrainedModel  # noqa: F401
except ImportError as error:
    raise ImportError(
        "thermoformer.transformers needs PyTorch and transformers: pip install 'thermoformer[transformers]'"
    ) from error

from .contributions import HeadContributions, head_contributions
from .families import Adapter, adapter_for, known_families
from .files import export_masked, load_pruned, save_pruned
from .masks import HeadMasks, head_masks
from .surgery import prune_heads

__all__ = [
    "Adapter",
    "HeadContributions",
    "HeadMasks",
    "adapter_for",
    "export_masked",
    "head_contributions",
    "head_masks",
    "known_families",
    "load_pruned",
    "prune_heads",
    "save_pruned",
]

"""Pretrained transformers: their heads read, masked, scored and cut out, and how well the model does without them."""

try:
    import torch as _torch  # noqa: F401
    from transformers import PreTrainedModel as _PreTrainedModel  # noqa: F401
except ImportError as error:
    raise ImportError(
        "thermoformer.transformers needs PyTorch and transformers: pip install 'thermoformer[transformers]'"
    ) from error

from .contributions import HeadContributions, head_contributions
from .curves import pruning_curve
from .data import Examples
from .families import Adapter, adapter_for, known_families
from .files import export_masked, load_pruned, save_pruned
from .fine_tuning import train_classifier
from .goals import goal_for
from .judge import generate_stories, measured_speed, own_accuracy, own_error, perplexity, pooled, probe_accuracy
from .masks import HeadMasks, head_masks
from .probe import LinearProbe, NumberProbe
from .readout_evidence import ReadoutEvidence, readout_evidence
from .scores import METHODS, removal_order, score_heads
from .surgery import prune_heads
from .theory import PathTheory, path_theory

__all__ = [
    "METHODS",
    "Adapter",
    "Examples",
    "HeadContributions",
    "HeadMasks",
    "LinearProbe",
    "NumberProbe",
    "PathTheory",
    "ReadoutEvidence",
    "adapter_for",
    "export_masked",
    "generate_stories",
    "goal_for",
    "head_contributions",
    "head_masks",
    "known_families",
    "load_pruned",
    "measured_speed",
    "own_accuracy",
    "own_error",
    "path_theory",
    "perplexity",
    "pooled",
    "probe_accuracy",
    "prune_heads",
    "pruning_curve",
    "readout_evidence",
    "removal_order",
    "save_pruned",
    "score_heads",
    "train_classifier",
]

"""Bayesian learning over attention paths: from tokens to predictions at any width."""

from .architecture import Architecture
from .attention import (
    attention_from_logits,
    bilinear_attention,
    given_attention,
    join_heads,
    query_key_attention,
    random_attention,
    uniform_attention,
)
from .attention_models import AttentionModel, LearnedAttention, learn_attention
from .attention_posterior import AttentionPosterior, sample_attention
from .batches import RotatedFeatures, rotate_examples
from .comparison import Comparison, Distance, compare
from .corrections import CorrectedSolution, one_loop
from .evidence import EvidenceChoice, choose_by_evidence, evidence_scores
from .exact import OrderPosterior, sample_order_parameters
from .influence import Influence, influence
from .kernels import choose_form
from .likelihoods import Likelihood
from .network import Weights, effective_path_weights, forward, order_parameter_from_weights, prior_weights
from .paths import PathFeatures, path_attention
from .results import PathSum, Posterior, Prediction, Predictor, gaussian_predictor, label_alignment
from .saddle import (
    ConvergenceError,
    Solution,
    SolutionGrid,
    Stats,
    gaussian_process,
    solve,
    solve_grid,
    whitened_hessian,
)
from .sampling import Diagnostics, SamplingWarning
from .scores import Ablation, HeadScores, accuracies_without, head_scores, path_scores, without_heads
from .weights import WeightPosterior, sample_weights, sample_weights_on_paths, weight_sampling_memory

__all__ = [
    "Ablation",
    "Architecture",
    "AttentionModel",
    "AttentionPosterior",
    "Comparison",
    "ConvergenceError",
    "CorrectedSolution",
    "Diagnostics",
    "Distance",
    "EvidenceChoice",
    "HeadScores",
    "Influence",
    "LearnedAttention",
    "Likelihood",
    "OrderPosterior",
    "PathFeatures",
    "PathSum",
    "Posterior",
    "Prediction",
    "Predictor",
    "RotatedFeatures",
    "SamplingWarning",
    "Solution",
    "SolutionGrid",
    "Stats",
    "WeightPosterior",
    "Weights",
    "accuracies_without",
    "attention_from_logits",
    "bilinear_attention",
    "choose_by_evidence",
    "choose_form",
    "compare",
    "effective_path_weights",
    "evidence_scores",
    "forward",
    "gaussian_predictor",
    "gaussian_process",
    "given_attention",
    "head_scores",
    "influence",
    "join_heads",
    "label_alignment",
    "learn_attention",
    "one_loop",
    "order_parameter_from_weights",
    "path_attention",
    "path_scores",
    "prior_weights",
    "query_key_attention",
    "random_attention",
    "rotate_examples",
    "sample_attention",
    "sample_order_parameters",
    "sample_weights",
    "sample_weights_on_paths",
    "solve",
    "solve_grid",
    "uniform_attention",
    "weight_sampling_memory",
    "whitened_hessian",
    "without_heads",
]

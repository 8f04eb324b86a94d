"""Bayesian learning over attention paths: from tokens to predictions at any width."""

from .comparison import Comparison, Distance, compare
from .corrections import CorrectedSolution, one_loop
from .evidence import EvidenceChoice, choose_by_evidence, evidence_scores
from .exact import OrderPosterior, sample_order_parameters
from .grid import SolutionGrid, solve_grid
from .heads import (
    attention_from_logits,
    bilinear_attention,
    given_attention,
    join_heads,
    query_key_attention,
    random_attention,
    uniform_attention,
)
from .influence import Influence, influence
from .network import Architecture, Weights, forward, prior_weights
from .order import effective_path_weights, order_parameter_from_weights
from .paths import PathFeatures, path_attention
from .posterior import Posterior
from .predictor import PathSum, Prediction, Predictor, gaussian_predictor, label_alignment
from .saddle import ConvergenceError, Solution, Stats, gaussian_process, solve, whitened_hessian
from .sampling import Diagnostics, SamplingWarning
from .scores import HeadScores, head_scores, path_scores
from .weights import WeightPosterior, sample_weights, sample_weights_on_paths, weight_sampling_memory

__all__ = [
    "Architecture",
    "Comparison",
    "ConvergenceError",
    "CorrectedSolution",
    "Diagnostics",
    "Distance",
    "EvidenceChoice",
    "HeadScores",
    "Influence",
    "OrderPosterior",
    "PathFeatures",
    "PathSum",
    "Posterior",
    "Prediction",
    "Predictor",
    "SamplingWarning",
    "Solution",
    "SolutionGrid",
    "Stats",
    "WeightPosterior",
    "Weights",
    "attention_from_logits",
    "bilinear_attention",
    "choose_by_evidence",
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
    "one_loop",
    "order_parameter_from_weights",
    "path_attention",
    "path_scores",
    "prior_weights",
    "query_key_attention",
    "random_attention",
    "sample_order_parameters",
    "sample_weights",
    "sample_weights_on_paths",
    "solve",
    "solve_grid",
    "uniform_attention",
    "weight_sampling_memory",
    "whitened_hessian",
]

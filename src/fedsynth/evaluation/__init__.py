"""Numbers on real test data: classification, calibration, intervals, fidelity of synthetic latents."""

from fedsynth.evaluation.balls import BallMembership, ball_membership, mutual_ball_membership
from fedsynth.evaluation.bootstrap import (
    BootstrapInterval,
    PairedDifference,
    bootstrap_contrasts,
    bootstrap_intervals,
    holm_adjust,
    paired_bootstrap,
)
from fedsynth.evaluation.calibration import (
    ReliabilityDiagram,
    TemperatureFit,
    brier_score,
    expected_calibration_error,
    fit_temperature,
    reliability_diagram,
    scale_logits,
)
from fedsynth.evaluation.checks import EvaluationError
from fedsynth.evaluation.classification import (
    balanced_accuracy_threshold,
    classification_metrics,
    f1_threshold,
    predict_positive,
)
from fedsynth.evaluation.frechet import frechet_distance, gaussian_frechet_distance
from fedsynth.evaluation.latents import LatentSummary, latent_summary
from fedsynth.evaluation.mmd import median_bandwidth, rbf_mmd
from fedsynth.evaluation.neighbors import Neighbors, nearest_neighbors
from fedsynth.evaluation.participant_bootstrap import (
    participant_means,
    replicate_differences,
    replicate_intervals,
)
from fedsynth.evaluation.prdc import PRDC, prdc
from fedsynth.evaluation.privacy_performance import (
    decision_metrics,
    normalized_privacy_score,
    privacy_performance_score,
)
from fedsynth.evaluation.ranking import auroc, average_precision
from fedsynth.evaluation.scored_system import ScoredSplit, ScoredSystem, system_replicates

__all__ = [
    "PRDC",
    "BallMembership",
    "BootstrapInterval",
    "EvaluationError",
    "LatentSummary",
    "Neighbors",
    "PairedDifference",
    "ReliabilityDiagram",
    "ScoredSplit",
    "ScoredSystem",
    "TemperatureFit",
    "auroc",
    "average_precision",
    "balanced_accuracy_threshold",
    "ball_membership",
    "bootstrap_contrasts",
    "bootstrap_intervals",
    "brier_score",
    "classification_metrics",
    "decision_metrics",
    "expected_calibration_error",
    "f1_threshold",
    "fit_temperature",
    "frechet_distance",
    "gaussian_frechet_distance",
    "holm_adjust",
    "latent_summary",
    "median_bandwidth",
    "mutual_ball_membership",
    "nearest_neighbors",
    "normalized_privacy_score",
    "paired_bootstrap",
    "participant_means",
    "prdc",
    "predict_positive",
    "privacy_performance_score",
    "rbf_mmd",
    "reliability_diagram",
    "replicate_differences",
    "replicate_intervals",
    "scale_logits",
    "system_replicates",
]

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
from fedsynth.evaluation.prdc import PRDC, prdc
from fedsynth.evaluation.ranking import auroc, average_precision

__all__ = [
    "PRDC",
    "BallMembership",
    "BootstrapInterval",
    "EvaluationError",
    "LatentSummary",
    "Neighbors",
    "PairedDifference",
    "ReliabilityDiagram",
    "TemperatureFit",
    "auroc",
    "average_precision",
    "balanced_accuracy_threshold",
    "ball_membership",
    "bootstrap_contrasts",
    "bootstrap_intervals",
    "brier_score",
    "classification_metrics",
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
    "paired_bootstrap",
    "prdc",
    "predict_positive",
    "rbf_mmd",
    "reliability_diagram",
    "scale_logits",
]

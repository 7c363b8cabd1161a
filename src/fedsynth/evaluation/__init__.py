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
from fedsynth.evaluation.irs import (
    ImageRetrievalScore,
    RelativeRetrieval,
    image_retrieval_score,
    relative_retrieval_score,
)
from fedsynth.evaluation.latents import LatentSummary, latent_summary
from fedsynth.evaluation.mmd import median_bandwidth, rbf_mmd
from fedsynth.evaluation.neighbors import Neighbors, nearest_neighbors
from fedsynth.evaluation.occupancy import (
    distinct_distribution,
    distinct_moments,
    reachable_bounds,
    reachable_records,
)
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
from fedsynth.evaluation.rank_tests import (
    CriticalDifference,
    FriedmanTest,
    PairComparison,
    can_reject,
    critical_difference,
    friedman_test,
    signed_rank_p,
    smallest_wilcoxon_p,
)
from fedsynth.evaluation.ranking import auroc, average_precision
from fedsynth.evaluation.scored_system import ScoredSplit, ScoredSystem, system_replicates

__all__ = [
    "PRDC",
    "BallMembership",
    "BootstrapInterval",
    "CriticalDifference",
    "EvaluationError",
    "FriedmanTest",
    "ImageRetrievalScore",
    "LatentSummary",
    "Neighbors",
    "PairComparison",
    "PairedDifference",
    "RelativeRetrieval",
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
    "can_reject",
    "classification_metrics",
    "critical_difference",
    "decision_metrics",
    "distinct_distribution",
    "distinct_moments",
    "expected_calibration_error",
    "f1_threshold",
    "fit_temperature",
    "frechet_distance",
    "friedman_test",
    "gaussian_frechet_distance",
    "holm_adjust",
    "image_retrieval_score",
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
    "reachable_bounds",
    "reachable_records",
    "relative_retrieval_score",
    "reliability_diagram",
    "replicate_differences",
    "replicate_intervals",
    "scale_logits",
    "signed_rank_p",
    "smallest_wilcoxon_p",
    "system_replicates",
]

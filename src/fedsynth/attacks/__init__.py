"""Attacks that audit a release: membership in summaries and classifiers, nearest-neighbor disclosure."""

from fedsynth.attacks.isolation_baseline import dp_isolation_bound, isolation_baseline, isolation_ceiling
from fedsynth.attacks.largest_similarity import (
    LargestSimilarity,
    SimilarityComparison,
    compare_largest_similarity,
    largest_pair_similarity,
    largest_similarity,
)
from fedsynth.attacks.membership import MembershipAttack, membership_attack
from fedsynth.attacks.neighbors import NeighborDisclosure, neighbor_disclosure
from fedsynth.attacks.noise_law import (
    InverseNoiseFit,
    auroc_of_index,
    fit_inverse_noise,
    sensitivity_index,
)
from fedsynth.attacks.prototype_audit import prototype_leakage
from fedsynth.attacks.prototype_evidence import Comparison, PrototypeEvidence, compare_with_prototypes
from fedsynth.attacks.prototype_leakage import (
    RecordOwners,
    client_attribution,
    exact_match_rates,
    membership_cells,
    nearest_shares,
)
from fedsynth.attacks.released_summary import Release, released_summary_attack, shifted_summary_attack
from fedsynth.attacks.repetitions import PairedChange, Spread, SummaryAttack, paired_change, spread
from fedsynth.attacks.residual_risk import Proportion, ResidualRisk, residual_risk, wilson_proportion
from fedsynth.attacks.self_retrieval import SelfRetrieval, self_retrieval
from fedsynth.attacks.singling_out import IsolationCurve, IsolationPoint, isolation_curve, radius_grid
from fedsynth.attacks.summary_scores import (
    Candidates,
    PublicReference,
    ReleasedMeans,
    ReleasedSecondMoments,
    membership_scores,
    public_reference,
)

__all__ = [
    "Candidates",
    "Comparison",
    "InverseNoiseFit",
    "IsolationCurve",
    "IsolationPoint",
    "LargestSimilarity",
    "MembershipAttack",
    "NeighborDisclosure",
    "PairedChange",
    "Proportion",
    "PrototypeEvidence",
    "PublicReference",
    "RecordOwners",
    "Release",
    "ReleasedMeans",
    "ReleasedSecondMoments",
    "ResidualRisk",
    "SelfRetrieval",
    "SimilarityComparison",
    "Spread",
    "SummaryAttack",
    "auroc_of_index",
    "client_attribution",
    "compare_largest_similarity",
    "compare_with_prototypes",
    "dp_isolation_bound",
    "exact_match_rates",
    "fit_inverse_noise",
    "isolation_baseline",
    "isolation_ceiling",
    "isolation_curve",
    "largest_pair_similarity",
    "largest_similarity",
    "membership_attack",
    "membership_cells",
    "membership_scores",
    "nearest_shares",
    "neighbor_disclosure",
    "paired_change",
    "prototype_leakage",
    "public_reference",
    "radius_grid",
    "released_summary_attack",
    "residual_risk",
    "self_retrieval",
    "sensitivity_index",
    "shifted_summary_attack",
    "spread",
    "wilson_proportion",
]

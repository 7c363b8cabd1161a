"""Attacks that audit a release: membership in summaries and classifiers, nearest-neighbor disclosure."""

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
    "MembershipAttack",
    "NeighborDisclosure",
    "PairedChange",
    "PrototypeEvidence",
    "PublicReference",
    "RecordOwners",
    "Release",
    "ReleasedMeans",
    "ReleasedSecondMoments",
    "Spread",
    "SummaryAttack",
    "auroc_of_index",
    "client_attribution",
    "compare_with_prototypes",
    "exact_match_rates",
    "fit_inverse_noise",
    "membership_attack",
    "membership_cells",
    "membership_scores",
    "nearest_shares",
    "neighbor_disclosure",
    "paired_change",
    "prototype_leakage",
    "public_reference",
    "released_summary_attack",
    "sensitivity_index",
    "shifted_summary_attack",
    "spread",
]

"""Attacks that audit a release: membership in summaries and classifiers, nearest-neighbor disclosure."""

from fedsynth.attacks.membership import MembershipAttack, membership_attack
from fedsynth.attacks.neighbors import NeighborDisclosure, neighbor_disclosure
from fedsynth.attacks.released_summary import (
    PairedChange,
    Release,
    Spread,
    SummaryAttack,
    paired_change,
    released_summary_attack,
    shifted_summary_attack,
    spread,
)
from fedsynth.attacks.summary_scores import (
    Candidates,
    PublicReference,
    ReleasedMeans,
    membership_scores,
    public_reference,
)

__all__ = [
    "Candidates",
    "MembershipAttack",
    "NeighborDisclosure",
    "PairedChange",
    "PublicReference",
    "Release",
    "ReleasedMeans",
    "Spread",
    "SummaryAttack",
    "membership_attack",
    "membership_scores",
    "neighbor_disclosure",
    "paired_change",
    "public_reference",
    "released_summary_attack",
    "shifted_summary_attack",
    "spread",
]

"""Class-level summaries that leave the clients, and the mixtures made of them.

Means of fixed shards: FedDP-PALD Eqs. (18)-(25). Moments, all of them paid for: :mod:`fedsynth.prototypes.moments`.
Class prototypes that steer the training itself (FedMPA, FedProto, FedGPD): :mod:`fedsynth.prototypes.class_prototypes`.
The function ``similarity_weights`` has the name of its module and is imported from there.
"""

from fedsynth.prototypes.alignment import align, align_release
from fedsynth.prototypes.class_prototypes import (
    ClassPrototypes,
    PrototypeSums,
    pooled_prototypes,
    update_bank,
)
from fedsynth.prototypes.hybrid_inference import HybridPrediction, hybrid_prediction, prototype_distances
from fedsynth.prototypes.mixture import (
    Components,
    aggregate,
    between_inflation,
    mixture_from_release,
    mixture_log_density,
    sample_mixture,
)
from fedsynth.prototypes.moment_mixture import mixture_from_moments
from fedsynth.prototypes.moment_options import PARTS, MomentOptions, moment_budget
from fedsynth.prototypes.moment_record import MomentFrame, MomentRelease
from fedsynth.prototypes.moments import (
    ReleasedMoments,
    moments_ledger_entry,
    release_cell_moments,
    release_moments,
)
from fedsynth.prototypes.prototype_losses import (
    class_weights,
    distillation_loss,
    pull_loss,
    repulsion_loss,
    weighted_cross_entropy,
)
from fedsynth.prototypes.release import release_ledger_entry, release_prototypes
from fedsynth.prototypes.shards import (
    ShardMerge,
    ShardStatistics,
    fixed_shards,
    merge_small_shards,
    shard_statistics,
)

__all__ = [
    "PARTS",
    "ClassPrototypes",
    "Components",
    "HybridPrediction",
    "MomentFrame",
    "MomentOptions",
    "MomentRelease",
    "PrototypeSums",
    "ReleasedMoments",
    "ShardMerge",
    "ShardStatistics",
    "aggregate",
    "align",
    "align_release",
    "between_inflation",
    "class_weights",
    "distillation_loss",
    "fixed_shards",
    "hybrid_prediction",
    "merge_small_shards",
    "mixture_from_moments",
    "mixture_from_release",
    "mixture_log_density",
    "moment_budget",
    "moments_ledger_entry",
    "pooled_prototypes",
    "prototype_distances",
    "pull_loss",
    "release_cell_moments",
    "release_ledger_entry",
    "release_moments",
    "release_prototypes",
    "repulsion_loss",
    "sample_mixture",
    "shard_statistics",
    "update_bank",
    "weighted_cross_entropy",
]

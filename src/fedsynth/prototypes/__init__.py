"""Class-level summaries that leave the clients, and the mixtures made of them.

Means of fixed shards: FedDP-PALD Eqs. (18)-(25). Moments, all of them paid for: :mod:`fedsynth.prototypes.moments`.
"""

from fedsynth.prototypes.alignment import align, align_release
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
    "Components",
    "MomentFrame",
    "MomentOptions",
    "MomentRelease",
    "ReleasedMoments",
    "ShardMerge",
    "ShardStatistics",
    "aggregate",
    "align",
    "align_release",
    "between_inflation",
    "fixed_shards",
    "merge_small_shards",
    "mixture_from_moments",
    "mixture_from_release",
    "mixture_log_density",
    "moment_budget",
    "moments_ledger_entry",
    "release_cell_moments",
    "release_ledger_entry",
    "release_moments",
    "release_prototypes",
    "sample_mixture",
    "shard_statistics",
]

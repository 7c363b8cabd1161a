"""Class-level summaries: fixed shards, private release, alignment, mixture (FedDP-PALD Eqs. (18)-(25))."""

from fedsynth.prototypes.alignment import align, align_release
from fedsynth.prototypes.mixture import (
    Components,
    aggregate,
    mixture_from_release,
    mixture_log_density,
    sample_mixture,
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
    "Components",
    "ShardMerge",
    "ShardStatistics",
    "aggregate",
    "align",
    "align_release",
    "fixed_shards",
    "merge_small_shards",
    "mixture_from_release",
    "mixture_log_density",
    "release_ledger_entry",
    "release_prototypes",
    "sample_mixture",
    "shard_statistics",
]

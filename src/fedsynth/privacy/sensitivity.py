"""What "one record changed" means, and how far one shard mean can move when it happens. Free of torch."""

from __future__ import annotations

from enum import StrEnum

from fedsynth.privacy.parameters import check_count, check_positive


class Adjacency(StrEnum):
    """When two data sets count as neighbors. An ε without its adjacency says nothing.

    Attributes:
        REPLACE_ONE: One record is exchanged for another of the same client and class; every size stays
            the same and is public ("fixed-size, label-preserving" in FedDP-PALD).
        ADD_OR_REMOVE_ONE: One record is added or left out, so that sizes change. No mechanism in this
            package gives a guarantee under it; it is named so that other mechanisms can be recorded.
    """

    REPLACE_ONE = "replace_one"
    ADD_OR_REMOVE_ONE = "add_or_remove_one"


def shard_mean_sensitivity(clip_radius: float, shard_size: int) -> float:
    """L2 sensitivity of one clipped shard mean under replace-one adjacency.

    Implements FedDP-PALD Eq. (19): Δ = 2C / n. Exchanging one of n vectors of norm ≤ C moves their sum
    by at most 2C (triangle inequality), attained by antipodal points; n is public and stays the same.

    Not to be confused with add-or-remove adjacency, where n itself changes, nor with the sensitivity C
    that some accountants divide by: handing them σ / Δ under REPLACE_ONE misstates ε by a factor of
    about two.

    Args:
        clip_radius: C, the L2 bound already applied to every latent. In latent units, > 0.
        shard_size: n_{k,c,r}, records in this shard, ≥ 1. An empty shard has no mean to release.

    Returns:
        Δ in latent units.

    Raises:
        PrivacyParameterError: If either bound is violated.
    """
    return 2 * check_positive(clip_radius, "clip_radius") / check_count(shard_size, "shard_size")

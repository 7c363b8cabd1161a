"""What "one record changed" means, and how far one shard mean can move when it happens. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Collection
from enum import StrEnum

from fedsynth.privacy.parameters import check_count, check_positive


class Adjacency(StrEnum):
    """When two data sets count as neighbors. An ε without its adjacency says nothing.

    Attributes:
        REPLACE_ONE: One record is exchanged for another of the same client and class; every size stays
            the same and is public ("fixed-size, label-preserving" in FedDP-PALD).
        REPLACE_ONE_ANY_LABEL: One record is exchanged for another of the same client, whatever the class of
            either; only the number of records of each client stays the same and is public. Every pair of
            neighbors under REPLACE_ONE is one under this relation, so a guarantee for it is the stronger.
        ADD_OR_REMOVE_ONE: One record is added or left out, so that sizes change. No mechanism in this
            package gives a guarantee under it; it is named so that other mechanisms can be recorded.
    """

    REPLACE_ONE = "replace_one"
    REPLACE_ONE_ANY_LABEL = "replace_one_any_label"
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


def weakest_common(adjacencies: Collection[Adjacency]) -> Adjacency | None:
    """The relation under which guarantees for several relations hold together; None if there is none.

    REPLACE_ONE_ANY_LABEL implies REPLACE_ONE with the same ε and δ; nothing else implies anything.
    """
    distinct = set(adjacencies)
    if distinct == {Adjacency.REPLACE_ONE, Adjacency.REPLACE_ONE_ANY_LABEL}:
        return Adjacency.REPLACE_ONE
    return distinct.pop() if len(distinct) == 1 else None


def second_moment_sensitivity(radius: float) -> float:
    """Frobenius sensitivity of Σ h hᵀ over vectors of norm ≤ R, one of which is replaced: √2 R².

    ‖h hᵀ - h' h'ᵀ‖_F² = ‖h‖⁴ + ‖h'‖⁴ - 2 <h, h'>² ≤ 2 R⁴, attained by orthogonal vectors of norm R. The same bound
    holds when h is one cell's and h' another's, since the two changes then lie in different coordinates.

    Raises:
        PrivacyParameterError: If R is not positive and finite.
    """
    return math.sqrt(2) * check_positive(radius, "radius") ** 2


def count_sensitivity() -> float:
    """L2 sensitivity of the counts of disjoint cells when one record may move to another cell: √2."""
    return math.sqrt(2)


def counted_sum_sensitivity(radius: float) -> float:
    """L2 sensitivity of (R · count, sum) of disjoint cells of vectors of norm ≤ R: 2R, so the count is free.

    Replaced within a cell, the count stays and the sum moves by ‖u - u'‖ ≤ 2R. Moved to another cell, either
    cell changes by √(R² + ‖u‖²) ≤ √2 R, together √(2R² + 2R²) = 2R.

    Raises:
        PrivacyParameterError: If R is not positive and finite.
    """
    return 2 * check_positive(radius, "radius")

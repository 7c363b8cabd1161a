"""Self-retrieval: is the source of a released image the training record nearest to it?

A release that is made from one record, as pseudo-conditional generators do, may carry what is particular to it. What
this does **not** show: see `fedsynth.attacks.singling_out`; a low rate is no security, only this search failed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from fedsynth.attacks.residual_risk import Proportion, wilson_proportion
from fedsynth.evaluation.balls import ball_membership
from fedsynth.evaluation.checks import (
    EvaluationError,
    PointSet,
    Vector,
    as_tensor,
    check_point_pair,
    check_points,
)
from fedsynth.evaluation.neighbors import nearest_neighbors
from fedsynth.evaluation.pairwise import pair_distances


@dataclass(frozen=True)
class SelfRetrieval:
    """How near released images are to their own sources, among all training records.

    Attributes:
        rank: Training records at most as far as the source, the source included: 1 if it alone is nearest.
        retrieved: Releases of rank 1.
        num_tied: Releases whose source is nearest together with others (repeated training images); not in `retrieved`.
        chance: 1 / n, the share for releases that know nothing of their sources.
    """

    rank: Int[Tensor, " release"]
    retrieved: Proportion
    num_tied: int
    chance: float


def self_retrieval(
    release: PointSet, train: PointSet, source: Vector, *, confidence: float = 0.95
) -> SelfRetrieval:
    """Self-retrieval rate: share of released images whose single nearest training record is their source.

    A rate well above chance says that the release carries what is particular to its source in this space; that a
    nearest-neighbor diversity score is near its ceiling then means memorization. A rate at chance says nothing about
    other spaces: repeat it with the classifier's and with an independent encoder.

    Args:
        release: Features of the released images.
        train: Features of all training records, at least 2.
        source: Row in ``train`` each release was made from.
        confidence: Of the Wilson interval.

    Raises:
        EvaluationError: Bad points, or sources that are not one row of ``train`` per release.
    """
    points, records = check_release(release, train)
    rows = check_source(source, points, records)
    to_source = pair_distances(points, records[rows])
    rank = ball_membership(records, points, to_source).queries_per_ball
    is_nearest = nearest_neighbors(points, records).distance[:, 0] == to_source
    return SelfRetrieval(
        rank=rank,
        retrieved=wilson_proportion(int((rank == 1).sum()), len(points), confidence=confidence),
        num_tied=int((is_nearest & (rank > 1)).sum()),
        chance=1 / len(records),
    )


def check_release(release: PointSet, train: PointSet) -> tuple[Tensor, Tensor]:
    """A release and at least two training records of one space.

    Raises:
        EvaluationError: Otherwise; see `check_points`.
    """
    check_points(train, "train", min_points=2)
    return check_point_pair(release, train, names=("release", "train"))


def check_source(source: Vector, release: Tensor, train: Tensor) -> Int[Tensor, " release"]:
    """The row in ``train`` that each release was made from, as int64.

    Raises:
        EvaluationError: Other shapes, numbers that are no integers, or rows out of range.
    """
    rows = as_tensor(source, "source")
    if rows.shape != (len(release),) or rows.is_floating_point() or rows.dtype == torch.bool:
        raise EvaluationError(
            f"source must hold one row number of train per release ({len(release)}), got shape "
            f"{tuple(rows.shape)} of {rows.dtype}."
        )
    if int(rows.min()) < 0 or int(rows.max()) >= len(train):
        raise EvaluationError(
            f"source must lie in [0, {len(train) - 1}], the rows of train, got {int(rows.min())} to "
            f"{int(rows.max())}. Number sources within the training records that are passed."
        )
    return rows.long().to(train.device)

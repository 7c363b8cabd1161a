"""Nearest-neighbor disclosure: are synthetic points nearer to training records than to unseen ones?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.evaluation.checks import PointSet, check_number, check_points, check_same_space
from fedsynth.evaluation.neighbors import nearest_neighbors


@dataclass(frozen=True)
class NeighborDisclosure:
    """Distances in latent units; `*_distance` hold one value per synthetic point.

    `ratio` is mean_train / mean_held_out: near 1 means no preference for training records, below 1 leans to
    them. `near_duplicate_fraction` is the share of synthetic points within `near_duplicate_cut` of a training
    record.
    """

    train_distance: Float[Tensor, " synthetic"]
    held_out_distance: Float[Tensor, " synthetic"]
    median_train: float
    median_held_out: float
    mean_train: float
    mean_held_out: float
    ratio: float
    near_duplicate_cut: float
    near_duplicate_fraction: float


def neighbor_disclosure(
    *, synthetic: PointSet, train: PointSet, held_out: PointSet, cut_quantile: float = 0.01
) -> NeighborDisclosure:
    """Euclidean nearest-neighbor distances from every synthetic point to train and to held-out records.

    What this does **not** show: synthetic points far off the real data manifold are equally far from
    everything, so a ratio of 1 and no near-duplicates are then no evidence of privacy. A larger training set
    has nearer neighbors by itself; with very unequal sizes the ratio is below 1 without any copying.

    Args:
        synthetic: Synthetic points.
        train: The records the generator (indirectly) saw, at least 2.
        held_out: Real records it never saw.
        cut_quantile: The near-duplicate cut is this quantile of the leave-one-out nearest-neighbor distances
            among `train`; a synthetic point counts when its distance is <= the cut.

    Returns:
        `ratio` is NaN when both means are 0 and inf when only the held-out mean is.

    Raises:
        EvaluationError: Bad points or a quantile outside [0, 1].
    """
    cut_quantile = check_number(
        cut_quantile, "cut_quantile", low=0.0, high=1.0, remedy="The usual value is 0.01."
    )
    points = check_points(synthetic, "synthetic")
    records, unseen = check_points(train, "train", min_points=2), check_points(held_out, "held_out")
    check_same_space(points, records, ("synthetic", "train"))
    check_same_space(points, unseen, ("synthetic", "held_out"))
    to_train = nearest_neighbors(points, records).distance[:, 0]
    to_held_out = nearest_neighbors(points, unseen).distance[:, 0]
    # fidelity: near-duplicate-cut
    cut = torch.quantile(nearest_neighbors(records).distance[:, 0], cut_quantile)
    return NeighborDisclosure(
        train_distance=to_train,
        held_out_distance=to_held_out,
        median_train=float(to_train.quantile(0.5)),
        median_held_out=float(to_held_out.quantile(0.5)),
        mean_train=float(to_train.mean()),
        mean_held_out=float(to_held_out.mean()),
        ratio=float(to_train.mean() / to_held_out.mean()),
        near_duplicate_cut=float(cut),
        near_duplicate_fraction=float((to_train <= cut).double().mean()),
    )

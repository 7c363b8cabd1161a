"""Precision, recall, density, coverage of samples (Kynkäänniemi et al. 2019; Naeem et al. 2020)."""

from __future__ import annotations

from typing import NamedTuple

from fedsynth.evaluation.balls import mutual_ball_membership
from fedsynth.evaluation.checks import PointSet, check_integer, check_point_pair
from fedsynth.evaluation.neighbors import nearest_neighbors


class PRDC(NamedTuple):
    """Fidelity (precision, density) and diversity (recall, coverage); all in [0, 1] but density, >= 0."""

    precision: float
    recall: float
    density: float
    coverage: float


def prdc(*, real: PointSet, synthetic: PointSet, nearest_k: int = 5) -> PRDC:
    """Precision, recall, density and coverage with k-nearest-neighbor balls.

    The ball of a point reaches to its k-th nearest other point of its own set (the point itself not counted).

    - precision: share of synthetic points in at least one real ball;
    - recall: share of real points in at least one synthetic ball;
    - density: mean number of real balls around a synthetic point, divided by k;
    - coverage: share of real balls holding at least one synthetic point.

    Convention: balls are **closed** (``<=``). The reference package uses ``<``, which differs only on exact
    ties and reports no coverage at all for a set in which points are repeated more than k times. With closed
    balls identical sets have precision, recall and coverage 1 whatever the duplicates, and density (k+1)/k
    when there are no ties; when all points of both sets are equal, density is their number over k.

    Not symmetric: swapping the arguments swaps precision with recall, hence keyword-only. Precision and
    recall depend on sample sizes; compare systems at equal sizes only. The measure says nothing about
    privacy.

    Exact (see `fedsynth.evaluation.pairwise`), and in memory linear in the points: every pair is looked at once,
    in blocks.

    Args:
        real: Real points, at least k+1.
        synthetic: Synthetic points, at least k+1, same features.
        nearest_k: k >= 1.

    Raises:
        EvaluationError: Bad points, too few points, or k < 1.
    """
    nearest_k = check_integer(nearest_k, "nearest_k", remedy="The usual value is 5.")
    real_points, synthetic_points = check_point_pair(real, synthetic, min_points=nearest_k + 1)
    real_radius = nearest_neighbors(real_points, num_neighbors=nearest_k).distance[:, -1]
    synthetic_radius = nearest_neighbors(synthetic_points, num_neighbors=nearest_k).distance[:, -1]
    in_real, in_synthetic = mutual_ball_membership(
        synthetic_points, synthetic_radius, real_points, real_radius
    )
    return PRDC(
        precision=float((in_real.balls_per_query > 0).double().mean()),
        recall=float((in_synthetic.balls_per_query > 0).double().mean()),
        density=float(in_real.balls_per_query.double().mean()) / nearest_k,
        coverage=float((in_real.queries_per_ball > 0).double().mean()),
    )

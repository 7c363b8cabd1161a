"""How far the synthetic latents of a class sit from the real ones, to first order."""

from __future__ import annotations

from typing import NamedTuple

from fedsynth.evaluation.checks import PointSet, check_point_pair


class LatentSummary(NamedTuple):
    """All in latent units."""

    mean_gap: float
    real_mean_norm: float
    synthetic_mean_norm: float


def latent_summary(*, real: PointSet, synthetic: PointSet) -> LatentSummary:
    """Distance between the two means, and the mean Euclidean norm of each set. Meant for one class at a time.

    A synthetic norm well below the real one is contraction toward the origin, which leaves the directions
    intact and the magnitudes not.

    Raises:
        EvaluationError: Bad points.
    """
    real_points, synthetic_points = check_point_pair(real, synthetic)
    real_points, synthetic_points = real_points.double(), synthetic_points.double()
    return LatentSummary(
        mean_gap=float((real_points.mean(dim=0) - synthetic_points.mean(dim=0)).norm()),
        real_mean_norm=float(real_points.norm(dim=1).mean()),
        synthetic_mean_norm=float(synthetic_points.norm(dim=1).mean()),
    )
